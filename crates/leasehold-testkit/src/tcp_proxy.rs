//! A TCP proxy for servers whose requests the HTTP proxy cannot parse: etcd, PostgreSQL and Redis.

use std::net::SocketAddr;
use std::time::Duration;

use leasehold::clock::{Clock, SystemClock};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// A proxy in front of a server, which can delay and lose responses.
#[derive(Debug)]
pub struct Wire {
    address: SocketAddr,
    member: watch::Sender<String>,
    answers: watch::Sender<Answers>,
    lost: watch::Receiver<bool>,
    task: JoinHandle<()>,
}

/// What happens to a member's responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answers {
    /// They arrive.
    Arrive,
    /// They arrive this much later.
    ArriveAfter(Duration),
    /// They are lost until this setting changes; then their connections are closed.
    AreLost,
    /// Existing and new connections are closed until this setting changes. Requests do not pass either.
    Cut,
    /// Neither requests nor responses pass, and no connection is closed until this setting changes, as when packets are
    /// lost.
    Stopped,
}

impl Wire {
    /// Starts a proxy that forwards connections to `member`.
    ///
    /// # Panics
    /// When no loopback port is free.
    pub async fn to(member: &str) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (member, leads_to) = watch::channel(member.to_owned());
        let (answers, how) = watch::channel(Answers::Arrive);
        let (loses, lost) = watch::channel(false);
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                if *how.borrow() == Answers::Cut {
                    continue;
                }
                let member = leads_to.borrow().clone();
                let Ok(server) = TcpStream::connect(member).await else { continue };
                tokio::spawn(forward(client, server, how.clone(), loses.clone()));
            }
        });
        Self { address, member, answers, lost, task }
    }

    /// Returns the address to connect to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Forwards new connections to `member` from now on.
    pub fn lead_to(&self, member: &str) {
        self.member.send_replace(member.to_owned());
    }

    /// Sets what happens to responses from now on.
    pub fn let_answers(&self, how: Answers) {
        self.answers.send_replace(how);
    }

    /// Waits until a response was lost since the start of the proxy.
    pub async fn until_lost(&self) {
        let _ = self.lost.clone().wait_for(|lost| *lost).await;
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn forward(
    client: TcpStream,
    server: TcpStream,
    mut how: watch::Receiver<Answers>,
    loses: watch::Sender<bool>,
) {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let (mut cut, mut stopped, mut resumed) = (how.clone(), how.clone(), how.clone());
    let asked = tokio::io::copy(&mut from_client, &mut to_server);
    let answered = async {
        let mut bytes = vec![0; 64 << 10];
        loop {
            let count = from_server.read(&mut bytes).await.unwrap_or(0);
            let now = *how.borrow();
            match now {
                _ if count == 0 => return,
                Answers::Arrive => {}
                Answers::ArriveAfter(delay) => SystemClock.sleep(delay).await,
                // Lost data leaves a gap that no client may see, so the connection is closed.
                Answers::AreLost => {
                    loses.send_replace(true);
                    let _ = how.wait_for(|how| *how != Answers::AreLost).await;
                    return;
                }
                Answers::Cut => return,
                Answers::Stopped => std::future::pending().await,
            }
            if to_client.write_all(&bytes[..count]).await.is_err() {
                return;
            }
        }
    };
    let is_stopped = tokio::select! {
        _ = asked => false,
        () = answered => false,
        _ = cut.wait_for(|how| *how == Answers::Cut) => false,
        _ = stopped.wait_for(|how| *how == Answers::Stopped) => true,
    };
    if is_stopped {
        let _ = resumed.wait_for(|how| *how != Answers::Stopped).await;
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;
    use crate::process::within;

    async fn echoed(wire: &Wire) -> io::Result<TcpStream> {
        let mut connection = TcpStream::connect(wire.address()).await?;
        echo(&mut connection).await?;
        Ok(connection)
    }

    async fn echo(connection: &mut TcpStream) -> io::Result<()> {
        connection.write_all(b"!").await?;
        connection.read_exact(&mut [0]).await.map(|_| ())
    }

    #[tokio::test]
    async fn nothing_passes_through_a_cut_wire() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let member = listener.local_addr().unwrap().to_string();
        let (heard, hears) = watch::channel(0);
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let heard = heard.clone();
                tokio::spawn(async move {
                    while let Ok(byte) = client.read_u8().await {
                        heard.send_modify(|count| *count += 1);
                        client.write_u8(byte).await.unwrap();
                    }
                });
            }
        });
        let wire = Wire::to(&member).await;
        let mut open = within("an echo", echoed(&wire)).await.unwrap();
        wire.let_answers(Answers::Cut);
        within("an end", echo(&mut open)).await.unwrap_err();
        within("an end", echoed(&wire)).await.unwrap_err();
        assert_eq!(*hears.borrow(), 1, "nothing is asked either");
        wire.let_answers(Answers::Arrive);
        within("an echo", echoed(&wire)).await.unwrap();
    }
}
