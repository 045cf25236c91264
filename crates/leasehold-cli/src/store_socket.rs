//! Passes the URL of a store that contains a password from `leasehold run --store URL` to a `leasehold` in its command.
//!
//! `/proc` shows the environment and the open files of a process, also to programs that need not know the password. So
//! the environment has only the name of a socket, which exists as long as the run. It answers processes of the same user.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::Duration;

use leasehold::lease::Id;
use leasehold::random::Random;
use rustix::net::sockopt::socket_peercred;
use rustix::process::{Uid, geteuid};

/// How long an answer may take.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The maximum length of a URL, in bytes. It fits into the buffer of a socket, so sending never waits.
const MAX_URL: u64 = 64 << 10;

/// Offers `url` until this process ends. Returns the name of the socket.
pub(crate) fn offer(url: &str) -> io::Result<String> {
    let name = Id::random(&Random::from_os()).to_string();
    let listener = UnixListener::bind_addr(&address(&name)?)?;
    let url = url.to_owned();
    std::thread::Builder::new().name("store".into()).spawn(move || serve(&listener, &url))?;
    Ok(name)
}

fn serve(listener: &UnixListener, url: &str) {
    loop {
        match listener.accept() {
            Ok((mut stream, _)) => {
                if socket_peercred(&stream).is_ok_and(|peer| may_know(peer.uid)) {
                    let _ = stream.write_all(url.as_bytes());
                }
            }
            Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => {}
            Err(_) => return,
        }
    }
}

fn may_know(user: Uid) -> bool {
    user == geteuid() || user.is_root()
}

/// Returns the URL that is offered at the socket `name`, if it still is.
pub(crate) fn ask(name: &str) -> Option<String> {
    let stream = UnixStream::connect_addr(&address(name).ok()?).ok()?;
    stream.set_read_timeout(Some(TIMEOUT)).ok()?;
    let mut url = String::new();
    stream.take(MAX_URL).read_to_string(&mut url).ok()?;
    Some(url).filter(|url| !url.is_empty())
}

fn address(name: &str) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("leasehold-store-{name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_passed_to_the_same_user_alone() {
        let url = "redis://u:hunter2@h";
        let name = offer(url).unwrap();
        assert!(!name.contains("hunter2"));
        assert_eq!(ask(&name).as_deref(), Some(url));
        assert_eq!(ask(&name).as_deref(), Some(url));
        assert_eq!(ask("another"), None);
        assert!(may_know(geteuid()) && may_know(Uid::ROOT) && !may_know(Uid::from_raw(54_321)));
    }
}
