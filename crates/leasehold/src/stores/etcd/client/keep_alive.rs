//! The stream of keep-alives. It stays open from one heartbeat to the next, and all leases of a client use it.
//!
//! At most one keep-alive is under way on a stream. A keep-alive that is abandoned closes its stream, so a late
//! response is never mistaken for the response to a later request. No deadline can be counted from such a response. Two
//! leases that are kept alive at the same time use two streams, so neither waits for the other's response.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use futures_util::FutureExt;
use futures_util::stream::{self, BoxStream, StreamExt};
use tokio::sync::mpsc;
use tonic::Status;
use tonic::metadata::MetadataMap;

use super::super::wire::{LeaseKeepAliveRequest, LeaseKeepAliveResponse};
use super::Member;

/// The stream, while no keep-alive uses it.
#[derive(Debug, Default)]
pub(super) struct KeepAlives(Mutex<Option<Open>>);

/// A stream on which every earlier request got its response.
pub(super) struct Open {
    /// The client's turn number when the stream was opened.
    turn: usize,
    asks: mpsc::UnboundedSender<LeaseKeepAliveRequest>,
    answers: BoxStream<'static, Result<LeaseKeepAliveResponse, Status>>,
}

impl fmt::Debug for Open {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Open").field("turn", &self.turn).finish_non_exhaustive()
    }
}

impl KeepAlives {
    fn idle(&self) -> MutexGuard<'_, Option<Open>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the stream if it was opened in `turn` and has not ended. Otherwise drops it.
    pub(super) fn take(&self, turn: usize) -> Option<Open> {
        let mut open = self.idle().take().filter(|open| open.turn == turn)?;
        // A stream that has ended, failed or sent an unexpected response cannot be used: its message would be mistaken
        // for the response to the next request.
        open.answers.next().now_or_never().is_none().then_some(open)
    }

    /// Puts the stream back for the next keep-alive.
    pub(super) fn put(&self, open: Open) {
        *self.idle() = Some(open);
    }
}

impl Open {
    /// Opens a stream to `member`, the member of `turn`. Sends a first keep-alive, because etcd sends nothing before
    /// that.
    pub(super) async fn at(
        member: Member,
        turn: usize,
        metadata: MetadataMap,
        lease: i64,
    ) -> Result<(Self, LeaseKeepAliveResponse), Status> {
        let (asks, mut requests) = mpsc::unbounded_channel();
        send(&asks, lease)?;
        let requests = stream::poll_fn(move |context| requests.poll_recv(context));
        let answers = member.stream("/etcdserverpb.Lease/LeaseKeepAlive", metadata, requests).await?;
        Self { turn, asks, answers: answers.boxed() }.answered().await
    }

    /// Sends one more keep-alive. Returns the stream only together with the response.
    pub(super) async fn ask(self, lease: i64) -> Result<(Self, LeaseKeepAliveResponse), Status> {
        send(&self.asks, lease)?;
        self.answered().await
    }

    async fn answered(mut self) -> Result<(Self, LeaseKeepAliveResponse), Status> {
        let answer = self.answers.next().await.unwrap_or_else(|| Err(ended()))?;
        Ok((self, answer))
    }
}

fn send(asks: &mpsc::UnboundedSender<LeaseKeepAliveRequest>, id: i64) -> Result<(), Status> {
    asks.send(LeaseKeepAliveRequest { id }).map_err(|_| ended())
}

fn ended() -> Status {
    Status::unavailable("the stream of keep-alives ended without a response")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The member's end of a stream.
    struct Member {
        asked: mpsc::UnboundedReceiver<LeaseKeepAliveRequest>,
        answers: mpsc::UnboundedSender<Result<LeaseKeepAliveResponse, Status>>,
    }

    impl Member {
        fn asked(&mut self) -> Option<i64> {
            self.asked.try_recv().ok().map(|request| request.id)
        }

        fn answers(&self, ttl: i64) {
            let _ = self.answers.send(Ok(LeaseKeepAliveResponse { header: None, ttl }));
        }
    }

    fn opened(turn: usize) -> (Open, Member) {
        let (asks, asked) = mpsc::unbounded_channel();
        let (answers, mut heard) = mpsc::unbounded_channel();
        let heard = stream::poll_fn(move |context| heard.poll_recv(context)).boxed();
        (Open { turn, asks, answers: heard }, Member { asked, answers })
    }

    #[tokio::test]
    async fn a_stream_is_used_again_at_the_same_member_only() {
        let kept = KeepAlives::default();
        assert!(kept.take(0).is_none());
        let (open, mut member) = opened(3);
        kept.put(open);
        for ttl in 1..=3 {
            member.answers_next(&kept, ttl).await;
        }
        assert!(kept.take(4).is_none(), "requests go to another member now");
        assert!(kept.take(3).is_none(), "and the stream is closed");
        assert!(member.asked.recv().await.is_none());
    }

    impl Member {
        /// Sends one keep-alive and its response.
        async fn answers_next(&mut self, kept: &KeepAlives, ttl: i64) {
            let mut asking = Box::pin(kept.take(3).unwrap().ask(7));
            assert!((&mut asking).now_or_never().is_none());
            assert_eq!((self.asked(), self.asked()), (Some(7), None));
            self.answers(ttl);
            let (open, answer) = asking.await.unwrap();
            assert_eq!(answer.ttl, ttl);
            kept.put(open);
        }
    }

    /// The response to an abandoned keep-alive may arrive later. The next request must not count its deadline from that
    /// response.
    #[tokio::test]
    async fn a_stream_with_an_abandoned_keep_alive_is_not_used_again() {
        let kept = KeepAlives::default();
        let (open, mut member) = opened(3);
        kept.put(open);
        let mut asking = Box::pin(kept.take(3).unwrap().ask(7));
        assert!((&mut asking).now_or_never().is_none());
        assert!(kept.take(3).is_none(), "no other call uses it meanwhile");
        drop(asking);
        assert_eq!(member.asked(), Some(7));
        member.answers(1);
        assert!(kept.take(3).is_none());
        assert!(member.asked.recv().await.is_none(), "the stream is closed");
    }

    #[tokio::test]
    async fn a_stream_with_an_unexpected_message_is_not_used_again() {
        let kept = KeepAlives::default();
        let (open, member) = opened(3);
        member.answers(1);
        kept.put(open);
        assert!(kept.take(3).is_none(), "a response without a request");
        let (open, member) = opened(3);
        drop(member.answers);
        kept.put(open);
        assert!(kept.take(3).is_none(), "the end");
        let (open, member) = opened(3);
        member.answers.send(Err(Status::unavailable("etcdserver: no leader"))).unwrap();
        kept.put(open);
        assert!(kept.take(3).is_none(), "an error");
    }

    #[tokio::test]
    async fn a_stream_that_ends_before_the_response_is_an_error() {
        let (open, member) = opened(3);
        drop(member.answers);
        assert!(open.ask(7).await.is_err());
        let (open, member) = opened(3);
        drop(member.asked);
        assert!(open.ask(7).await.is_err());
    }
}
