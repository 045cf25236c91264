//! A limit on how long a client may leave what it is sent unread.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use leasehold::clock::{Clock, Moment};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::sync::CancellationToken;

/// How long a client may read nothing. A client that reads slowly may be late by this much in total.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);
/// The same while the server stops.
pub(super) const LAST_PATIENCE: Duration = Duration::from_secs(2);
/// The rate at which a client must read, in bytes per second.
const RATE: f64 = 1_024.0;

/// A connection that ends with an error if its client reads too slowly.
pub(super) struct TimedWrites<S> {
    stream: S,
    clock: Arc<dyn Clock>,
    stopping: CancellationToken,
    /// How long the client may still leave the server waiting.
    left: Duration,
    blocked: Option<Blocked>,
}

/// A write that waits for the client.
struct Blocked {
    since: Moment,
    over: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl<S> TimedWrites<S> {
    pub(super) fn new(stream: S, clock: Arc<dyn Clock>, stopping: CancellationToken) -> Self {
        Self { stream, clock, stopping, left: PATIENCE, blocked: None }
    }

    fn blocked(&self) -> Blocked {
        let (clock, stopping, left) = (self.clock.clone(), self.stopping.clone(), self.left);
        let over = async move {
            tokio::select! {
                () = clock.sleep(left) => {}
                () = async {
                    stopping.cancelled().await;
                    clock.sleep(left.min(LAST_PATIENCE)).await;
                } => {}
            }
        };
        Blocked { since: self.clock.now(), over: Box::pin(over) }
    }

    /// Returns the result of a write, or an error if the client has not read for too long.
    fn in_time(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        let Poll::Ready(written) = written else {
            let blocked = match self.blocked.take() {
                Some(blocked) => blocked,
                None => self.blocked(),
            };
            let blocked = self.blocked.insert(blocked);
            ready!(blocked.over.as_mut().poll(context));
            let error = "the client does not read, or reads too slowly";
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, error)));
        };
        if let Some(blocked) = self.blocked.take() {
            self.left = self.left.saturating_sub(self.clock.now().shortest_since(blocked.since));
        }
        if let Ok(bytes) = &written {
            #[expect(clippy::cast_precision_loss, reason = "a write has few bytes")]
            let paid = Duration::from_secs_f64(*bytes as f64 / RATE);
            self.left = (self.left + paid).min(PATIENCE);
        }
        Poll::Ready(written)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for TimedWrites<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TimedWrites<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.in_time(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, bytes);
        self.in_time(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // A socket has nothing to flush.
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use leasehold::clock::{TestClock, timeout};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};

    use super::*;

    /// Returns a connection whose buffer has this many bytes, and the end of its client.
    fn connection(
        buffer: usize,
    ) -> (TimedWrites<DuplexStream>, DuplexStream, CancellationToken, Arc<TestClock>) {
        let (ours, theirs) = duplex(buffer);
        let (clock, stopping) = (Arc::new(TestClock::default()), CancellationToken::new());
        (TimedWrites::new(ours, clock.clone(), stopping.clone()), theirs, stopping, clock)
    }

    /// Returns how long it takes to write `length` bytes, and whether it succeeds.
    async fn write(
        stream: &mut TimedWrites<DuplexStream>,
        length: usize,
        clock: &TestClock,
    ) -> (Duration, bool) {
        let begin = clock.now();
        let written = timeout(clock, 1_000 * PATIENCE, stream.write_all(&vec![b'x'; length])).await;
        (clock.now().longest_since(begin), written.expect("it never ends").is_ok())
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_never_reads_is_given_up() {
        let (mut stream, _client, _stopping, clock) = connection(1_024);
        assert_eq!(write(&mut stream, 1_024, &clock).await, (Duration::ZERO, true));
        let (took, is_written) = write(&mut stream, 1, &clock).await;
        assert!(!is_written && took >= PATIENCE && took < 2 * PATIENCE, "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_stopping_server_gives_it_up_soon() {
        let (mut stream, _client, stopping, clock) = connection(1_024);
        stopping.cancel();
        let (took, is_written) = write(&mut stream, 2_000, &clock).await;
        assert!(!is_written && took < 2 * LAST_PATIENCE, "{took:?}");
    }

    /// Reads at this rate, in bytes per second. Returns whether 1 MiB arrives.
    async fn arrives_at(rate: usize) -> bool {
        const LENGTH: usize = 1024 * 1024;
        let (mut stream, mut client, _stopping, clock) = connection(1_024);
        let reads = async {
            let mut buffer = vec![0; rate];
            loop {
                clock.sleep(Duration::from_secs(1)).await;
                if client.read_exact(&mut buffer).await.is_err() {
                    return std::future::pending().await;
                }
            }
        };
        tokio::select! {
            () = reads => false,
            (_, is_written) = write(&mut stream, LENGTH, &clock) => is_written,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_client_is_served_but_not_one_that_trickles() {
        assert!(arrives_at(4_096).await);
        // It reads something every second, but would take longer than eleven days.
        assert!(!arrives_at(1).await);
    }
}
