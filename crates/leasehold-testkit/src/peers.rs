//! Programs that `./test` prepares: other clients that take the same locks, and the stores' tools. The files of the
//! [stores](crate::stores) define them.

use std::path::PathBuf;

use crate::process::Process;
use crate::servers::set_by_test;

/// A program whose path is in an environment variable.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    variable: &'static str,
    /// For a peer: builds the options that name the server of a store URL.
    server: Option<fn(&str) -> Vec<String>>,
}

impl Program {
    /// Python with the packages that the guides import.
    pub const GUIDE_PYTHON: Self = Self::tool("LEASEHOLD_TEST_GUIDE_PYTHON");
    /// The folder `node_modules` with the packages that the guides import.
    pub const GUIDE_NODE: Self = Self::tool("LEASEHOLD_TEST_GUIDE_NODE");

    /// OpenTofu.
    pub const OPENTOFU: Self = Self::tool("LEASEHOLD_TEST_OPENTOFU");

    /// Defines a tool whose path is in the environment variable `variable`.
    pub const fn tool(variable: &'static str) -> Self {
        Self { variable, server: None }
    }

    /// Defines a peer whose path is in the environment variable `variable`.
    pub const fn peer(variable: &'static str, server: fn(&str) -> Vec<String>) -> Self {
        Self { variable, server: Some(server) }
    }

    /// Returns the environment variable that holds the path.
    pub const fn variable(self) -> &'static str {
        self.variable
    }

    /// Returns the path.
    ///
    /// # Panics
    /// When `./test` has not set the variable.
    pub fn path(self) -> PathBuf {
        set_by_test(self.variable, "program").into()
    }

    /// Starts a peer that runs `verb` on a lock, on the server of the store at `url`. `lock` is the peer's name for
    /// the lock, which is the whole key in the table, or the whole prefix in etcd. `more` contains additional
    /// options, such as `--ttl`.
    ///
    /// | verb | `more` | prints |
    /// |---|---|---|
    /// | `hold` | `--ttl SECONDS` | `granted` when it has the lock; after [`Process::end_input`], `released` |
    /// | `try` | `--ttl SECONDS` | `granted` and releases the lock, or `held` and exits with 1 |
    /// | `increment` | `--ttl SECONDS --file FILE --times N` | `FROM UNTIL`: each addition's hold, in nanoseconds since boot |
    ///
    /// # Panics
    /// When this is not a peer, when `./test` has not prepared it, or when the store URL does not name its server.
    pub fn start(self, verb: &str, url: &str, lock: &str, more: &[&str]) -> Process {
        self.run(&[verb], url, lock, more)
    }

    /// Starts a peer as a contender of the benchmark, on the server of the store at `url`. `peers/go/contender.go`
    /// describes the protocol.
    ///
    /// # Panics
    /// As [`start`](Self::start).
    pub fn contender(self, verb: &str, url: &str, lock: &str, more: &[&str]) -> Process {
        self.run(&["bench", verb], url, lock, more)
    }

    fn run(self, words: &[&str], url: &str, lock: &str, more: &[&str]) -> Process {
        let server = self.server.unwrap_or_else(|| panic!("{} is not a peer", self.variable));
        let mut arguments: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        arguments.extend(server(url));
        arguments.extend(["--lock", lock].iter().chain(more).map(|argument| (*argument).to_owned()));
        Process::start(self.path(), arguments)
    }
}
