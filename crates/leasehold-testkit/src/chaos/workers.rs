//! The programs that workers run: this one, and one for each client of the agent.

use std::ffi::OsString;
use std::io;
use std::path::Path;

use serde_json::Value;

use super::fleet::Recipe;
use super::scenario::Language;
use super::worker::Orders;
use crate::launch::leasehold;
use crate::peers::Program;

/// Returns whether worker `n` uses a client if the scenario is for a client. Three in four workers do, so that
/// clients are granted the lock even in short runs.
pub const fn uses_client(n: usize) -> bool {
    n % 4 != 3
}

/// Returns whether a worker that uses a client was granted the lock. Workers have names such as `w3.1`.
pub fn clients_were_granted(history: &str) -> bool {
    let events = history.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut granted = events.filter(|event| event["what"] == "granted");
    granted.any(|event| {
        let who = event["who"].as_str().and_then(|who| who.strip_prefix('w')?.split('.').next());
        who.and_then(|number| number.parse().ok()).is_some_and(uses_client)
    })
}

/// Returns how to start a worker in `language`.
///
/// # Errors
/// When the path of this program is unknown.
///
/// # Panics
/// When `./test` or `./chaos` has not prepared the client.
pub fn recipe(
    language: Language,
    orders: Orders,
    mut variables: Vec<(OsString, OsString)>,
) -> io::Result<Recipe> {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR"));
    let script = |name: &str| vec![sources.join("src/chaos/workers").join(name).into_os_string()];
    let (program, arguments) = match language {
        Language::Rust => (std::env::current_exe()?, Vec::new()),
        Language::Python => {
            let client = sources.join("../../clients/python/src");
            variables.push(("PYTHONPATH".into(), client.into_os_string()));
            variables.push(("PYTHONDONTWRITEBYTECODE".into(), "1".into()));
            variables.push(("LEASEHOLD_COMMAND".into(), leasehold()?.into_os_string()));
            (Program::GUIDE_PYTHON.path(), script("worker.py"))
        }
        Language::Node => {
            let client = Program::GUIDE_NODE.path().join("leasehold/dist/index.js");
            variables.push(("LEASEHOLD_NODE_CLIENT".into(), client.into_os_string()));
            variables.push(("LEASEHOLD_COMMAND".into(), leasehold()?.into_os_string()));
            ("node".into(), script("worker.mjs"))
        }
    };
    Ok(Recipe { program, arguments, orders, variables })
}

#[test]
fn grants_of_clients_and_of_the_library_are_distinguished() {
    let event = |what: &str, who: &str| format!("{{\"what\":\"{what}\",\"who\":\"{who}\"}}\n");
    assert!(clients_were_granted(&(event("granted", "w3.1") + &event("granted", "w6.3"))));
    assert!(!clients_were_granted(&(event("granted", "w7.2") + &event("checked", "w6.3") + "{")));
}
