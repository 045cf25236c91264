//! Creates one shell script from a guide.

use std::fmt::Write as _;

use super::document::Block;
use super::workflow;

/// The variable with the output folder. Each block has a file there, named by its number.
pub(crate) const OUTPUT: &str = "GUIDE_OUTPUT";

/// The file with the number of the current block, or `DONE`.
pub(crate) const PROGRESS: &str = "progress";

/// The content of the progress file after all blocks.
pub(crate) const DONE: &str = "done";

/// The beginning of the script. It ends background jobs, even after a failure.
const HEAD: &str = r#"set -euo pipefail
end_jobs() { local jobs; jobs=$(jobs -p); [[ -z $jobs ]] || kill $jobs 2>/dev/null || true; }
trap end_jobs EXIT
"#;

/// The end of the script.
const FOOT: &str = r#"if [[ -n $(jobs -pr) ]]; then echo 'the guide leaves this running:'; jobs -r; exit 1; fi
"#;

/// Returns the script for `blocks`, which runs after `setup`.
pub(crate) fn of(blocks: &[Block], setup: &str) -> Result<String, String> {
    let mut script = HEAD.to_owned() + setup;
    let mut has_command = false;
    for (number, block) in blocks.iter().enumerate() {
        let commands = match block.kind.as_str() {
            "sh" => Ok(block.text.clone()),
            "crontab" => crontab(&block.text),
            "yaml" => workflow::read(&block.text).map(steps),
            "text" => output_of_the_one_before(blocks, number),
            "rust" => Ok(String::new()),
            kind => program(kind, &block.text)
                .ok_or_else(|| format!("nothing here runs a block of the kind {kind:?}")),
        };
        let commands = commands.map_err(|error| format!("line {}: {error}", block.line))?;
        has_command |= !commands.is_empty();
        let _ =
            writeln!(script, "echo {number} >\"${OUTPUT}/{PROGRESS}\"; exec >\"${OUTPUT}/{number}\" 2>&1");
        script.push_str(&commands);
    }
    if !has_command {
        return Err("a guide without a command".to_owned());
    }
    script.push_str(FOOT);
    let _ = writeln!(script, "echo {DONE} >\"${OUTPUT}/{PROGRESS}\"");
    Ok(script)
}

/// Returns a command that writes the file of a block like `python worker.py`.
fn program(kind: &str, text: &str) -> Option<String> {
    let (language, file) = kind.split_once(' ')?;
    let suffix = match language {
        "python" => ".py",
        "ruby" => ".rb",
        "js" => ".mjs",
        _ => return None,
    };
    file.ends_with(suffix).then(|| format!("cat >{} <<'{END}'\n{text}{END}\n", quoted(file)))
}

/// The line after the text of a file.
const END: &str = "END OF THE FILE";

fn output_of_the_one_before(blocks: &[Block], number: usize) -> Result<String, String> {
    let before = number.checked_sub(1).map(|before| blocks[before].kind.as_str());
    match before {
        Some("sh" | "crontab" | "yaml") => Ok(String::new()),
        _ => Err("a text block without a block before it that prints".to_owned()),
    }
}

/// Returns a script that runs the entries as cron does: with `sh` and an almost empty environment.
fn crontab(text: &str) -> Result<String, String> {
    let mut settings = vec!["PATH=/usr/bin:/bin".to_owned()];
    let mut commands = String::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if line.contains('%') {
            return Err("cron takes % for the end of a line".to_owned());
        }
        let is_setting = |name: &str| name.bytes().all(|b| b.is_ascii_uppercase() || b == b'_');
        if let Some((name, value)) = line.split_once('=').filter(|(name, _)| is_setting(name)) {
            settings.push(format!("{name}={}", value.trim_matches('"')));
            continue;
        }
        let command = command_of(line).ok_or_else(|| format!("no time and command: {line}"))?;
        let environment: Vec<String> = settings.iter().map(|setting| quoted(setting)).collect();
        let _ = writeln!(commands, "env {} /bin/sh -c {}", environment.join(" "), quoted(command));
    }
    match commands.is_empty() {
        true => Err("a crontab without a command".to_owned()),
        false => Ok(commands),
    }
}

/// Returns the command after the five time fields, or after a word like `@daily`.
fn command_of(line: &str) -> Option<&str> {
    let mut rest = line;
    let fields = if line.starts_with('@') { 1 } else { 5 };
    for _ in 0..fields {
        let (field, after) = rest.split_once(' ')?;
        let is_time = field.contains(|c: char| c.is_ascii_digit() || c == '*' || c == '@')
            && field.bytes().all(|b| b.is_ascii_alphanumeric() || b"*/,-@".contains(&b));
        if !is_time {
            return None;
        }
        rest = after.trim_start();
    }
    Some(rest).filter(|rest| !rest.is_empty())
}

/// Variables that the systems set for each step.
const WORKFLOW_HEAD: &str = r#"export GITHUB_ENV="$GUIDE_OUTPUT/github-env" GITHUB_RUN_ID=4711 CI_PIPELINE_ID=4711
: >"$GITHUB_ENV"
"#;

/// Returns a script that runs each step in a new shell, as both systems do. Settings that a step writes to
/// `$GITHUB_ENV` are set for later steps.
fn steps(workflow: workflow::Workflow) -> String {
    let mut commands = WORKFLOW_HEAD.to_owned();
    let variables: Vec<String> =
        workflow.variables.iter().map(|(name, value)| quoted(&format!("{name}={value}"))).collect();
    for step in workflow.steps {
        let _ = writeln!(
            commands,
            "(while IFS= read -r setting; do export \"$setting\"; done <\"$GITHUB_ENV\"; exec env {} bash -eo pipefail -c {})",
            variables.join(" "),
            quoted(&step)
        );
    }
    commands
}

/// Quotes `text` for a shell.
pub(crate) fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[test]
fn a_program_is_written_to_its_file() {
    let command = program("python a.py", "print(1)\n").unwrap();
    assert_eq!(command, "cat >'a.py' <<'END OF THE FILE'\nprint(1)\nEND OF THE FILE\n");
    for kind in ["python", "python a.rb", "ruby a.py", "js a.py"] {
        assert_eq!(program(kind, ""), None, "{kind}");
    }
}

#[test]
fn a_crontab_is_read_as_cron_does() {
    let commands = crontab("# every night\nMAILTO=me\n0 3 * * 1-5 a 'b'\n@daily c=1 d\n").unwrap();
    assert_eq!(
        commands,
        "env 'PATH=/usr/bin:/bin' 'MAILTO=me' /bin/sh -c 'a '\\''b'\\'''\nenv 'PATH=/usr/bin:/bin' 'MAILTO=me' /bin/sh -c 'c=1 d'\n"
    );
    for bad in ["MAILTO=me\n", "0 3 * * a b\n", "0 3 * * *\n", "0 3 * * * date +%s\n", "@daily\n"] {
        assert!(crontab(bad).is_err(), "{bad}");
    }
}
