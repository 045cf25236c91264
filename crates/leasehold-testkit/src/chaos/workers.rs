//! The programs of the workers: this one, and one for each client of the agent.

use std::ffi::OsString;
use std::io;
use std::path::Path;

use super::fleet::Recipe;
use super::scenario::Language;
use super::worker::Orders;
use crate::peers::Program;

/// How a worker in `language` is started.
///
/// # Errors
/// When this program's path is unknown.
pub fn recipe(
    language: Language,
    orders: Orders,
    mut variables: Vec<(OsString, OsString)>,
) -> io::Result<Recipe> {
    let this = std::env::current_exe()?;
    let sources = Path::new(env!("CARGO_MANIFEST_DIR"));
    let script = |name: &str| vec![sources.join("src/chaos/workers").join(name).into_os_string()];
    let (program, arguments) = match language {
        Language::Rust => (this, Vec::new()),
        Language::Python => {
            let client = sources.join("../../clients/python/src");
            variables.push(("PYTHONPATH".into(), client.into_os_string()));
            variables.push(("PYTHONDONTWRITEBYTECODE".into(), "1".into()));
            variables.push(("LEASEHOLD_COMMAND".into(), this.with_file_name("leasehold").into_os_string()));
            (Program::GUIDE_PYTHON.path(), script("worker.py"))
        }
        Language::Node => {
            let client = Program::GUIDE_NODE.path().join("leasehold/dist/index.js");
            variables.push(("LEASEHOLD_NODE_CLIENT".into(), client.into_os_string()));
            variables.push(("LEASEHOLD_COMMAND".into(), this.with_file_name("leasehold").into_os_string()));
            ("node".into(), script("worker.mjs"))
        }
    };
    Ok(Recipe { program, arguments, orders, variables })
}
