//! Programs that `./test` has made ready: clients by others that take the same locks, and tools of the stores. The files
//! of the [stores](crate::stores) say which there are.

use std::path::PathBuf;

use crate::process::Process;
use crate::servers::set_by_test;

/// A program. Its path comes in an environment variable.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    variable: &'static str,
    /// Of a peer: the options that name the server of the store at a URL.
    server: Option<fn(&str) -> Vec<String>>,
}

impl Program {
    /// A tool, whose path `variable` holds.
    pub const fn tool(variable: &'static str) -> Self {
        Self { variable, server: None }
    }

    /// A peer, whose path `variable` holds.
    pub const fn peer(variable: &'static str, server: fn(&str) -> Vec<String>) -> Self {
        Self { variable, server: Some(server) }
    }

    /// The environment variable that holds its path.
    pub const fn variable(self) -> &'static str {
        self.variable
    }

    /// Where it is.
    ///
    /// # Panics
    /// When `./test` has not said so.
    pub fn path(self) -> PathBuf {
        set_by_test(self.variable, "program").into()
    }

    /// Starts a peer, which does `verb` with `lock` on the server of the store at `url`. `lock` is what the peer calls
    /// it: the whole key in the table, or the whole prefix in etcd. `more` are further options, like `--ttl`.
    ///
    /// | verb | `more` | says |
    /// |---|---|---|
    /// | `hold` | `--ttl SECONDS` | `granted` when it has the lock; after [`Process::end_input`] it releases it, and says `released` |
    /// | `try` | `--ttl SECONDS` | `granted` and releases; or `held`, with exit code 1 |
    /// | `increment` | `--ttl SECONDS --file FILE --times N` | `FROM UNTIL` for each addition: nanoseconds since boot, between which it held the lock |
    ///
    /// # Panics
    /// When it is no peer, or `./test` has not made it ready, or the store URL does not name its server.
    pub fn start(self, verb: &str, url: &str, lock: &str, more: &[&str]) -> Process {
        self.run(&[verb], url, lock, more)
    }

    /// Starts a peer as a contender of the benchmark, on the server of the store at `url`. Its protocol is written down in
    /// `peers/go/contender.go`.
    ///
    /// # Panics
    /// As [`start`](Self::start).
    pub fn contender(self, verb: &str, url: &str, lock: &str, more: &[&str]) -> Process {
        self.run(&["bench", verb], url, lock, more)
    }

    fn run(self, words: &[&str], url: &str, lock: &str, more: &[&str]) -> Process {
        let server = self.server.unwrap_or_else(|| panic!("{} is no peer", self.variable));
        let mut arguments: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        arguments.extend(server(url));
        arguments.extend(["--lock", lock].iter().chain(more).map(|argument| (*argument).to_owned()));
        Process::start(self.path(), arguments)
    }
}
