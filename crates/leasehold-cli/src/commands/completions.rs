//! `leasehold completions SHELL`: prints the completion script of a shell.

use clap::ValueEnum as _;
use clap_complete::env::Shells;

use crate::args::{CompletionsArgs, Shell};
use crate::complete::VARIABLE;
use crate::exit::{FAILED, Failure};
use crate::output::print;

pub(super) fn completions(args: &CompletionsArgs) -> Result<u8, Failure> {
    let shell = args.shell.to_possible_value();
    let shell = shell.as_ref().map_or(Shell::DEFAULT, |value| value.get_name());
    let shells = Shells::builtins();
    let failed = |what: String| Failure::new(FAILED, "failed", what);
    let completer = shells.completer(shell).ok_or_else(|| failed(format!("no completions for {shell}")))?;
    let mut script = Vec::new();
    completer
        .write_registration(VARIABLE, "leasehold", "leasehold", "leasehold", &mut script)
        .map_err(|error| failed(error.to_string()))?;
    print(&String::from_utf8_lossy(&script))?;
    if args.shell == Shell::Zsh {
        print(ZSH_AUTOLOAD)?;
    }
    Ok(0)
}

/// For a file `_leasehold` in `fpath`: at the first completion, zsh runs the whole file but does not call the function
/// that the file defines.
const ZSH_AUTOLOAD: &str = r#"
if [ "$funcstack[1]" = _leasehold ]; then
    _clap_dynamic_completer_leasehold "$@"
fi
"#;

impl Shell {
    const DEFAULT: &'static str = "bash";
}
