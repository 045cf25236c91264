//! Programs that `./test` has made ready: clients by others that take the same locks, and tools of the stores.

use std::path::PathBuf;

use leasehold::url::StoreUrl;

use crate::process::Process;
use crate::servers::set_by_test;

/// A program. Its path comes in an environment variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Program {
    /// etcd's server, for clusters that a test starts itself.
    EtcdServer,
    /// etcd's command, which has `lock`.
    EtcdCtl,
    /// Amazon's command.
    Aws,
    /// A peer: AWS's lock client for DynamoDB, in Java.
    DynamoDbJava,
    /// A peer: dynamolock, its port to Go.
    DynamoDbGo,
    /// A peer: the mutex of etcd's client in Go.
    EtcdGo,
}

impl Program {
    /// The environment variable that holds its path.
    pub const fn variable(self) -> &'static str {
        match self {
            Self::EtcdServer => "LEASEHOLD_TEST_ETCD_SERVER",
            Self::EtcdCtl => "LEASEHOLD_TEST_ETCDCTL",
            Self::Aws => "LEASEHOLD_TEST_AWS",
            Self::DynamoDbJava => "LEASEHOLD_TEST_PEER_DYNAMODB_JAVA",
            Self::DynamoDbGo => "LEASEHOLD_TEST_PEER_DYNAMODB_GO",
            Self::EtcdGo => "LEASEHOLD_TEST_PEER_ETCD_GO",
        }
    }

    /// Where it is.
    ///
    /// # Panics
    /// When `./test` has not said so.
    pub fn path(self) -> PathBuf {
        set_by_test(self.variable(), "program").into()
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
        let mut arguments = vec![verb.to_owned()];
        arguments.extend(self.server(url));
        arguments.extend(["--lock".to_owned(), lock.to_owned()]);
        arguments.extend(more.iter().map(|argument| (*argument).to_owned()));
        Process::start(self.path(), arguments)
    }

    /// Starts a peer as a contender of the benchmark, on the server of the store at `url`. Its protocol is written down in
    /// `peers/go/contender.go`.
    ///
    /// # Panics
    /// As [`start`](Self::start).
    pub fn contender(self, verb: &str, url: &str, lock: &str, more: &[&str]) -> Process {
        let mut arguments = vec!["bench".to_owned(), verb.to_owned()];
        arguments.extend(self.server(url));
        arguments.extend(["--lock", lock].iter().chain(more).map(|argument| (*argument).to_owned()));
        Process::start(self.path(), arguments)
    }

    /// The options that name the server.
    fn server(self, url: &str) -> Vec<String> {
        let mut url = StoreUrl::parse(url).unwrap();
        let place = url.authority().expect("the store URL names a host or a table").to_owned();
        match self {
            Self::DynamoDbJava | Self::DynamoDbGo => {
                let endpoint = url.take("endpoint").expect("the store URL names an endpoint");
                vec!["--endpoint".to_owned(), endpoint, "--table".to_owned(), place]
            }
            Self::EtcdGo => vec!["--endpoint".to_owned(), place],
            Self::EtcdServer | Self::EtcdCtl | Self::Aws => panic!("{self:?} is no peer"),
        }
    }
}
