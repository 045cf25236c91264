//! Fenced writes: the write of a holder that has lost its lock is refused, however late it arrives.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use leasehold::clock::{TestClock, timeout};
use leasehold::env::Env;
use leasehold::error::{Error, StoreError};
use leasehold::register::{Body, Precondition, Register, Version, VersionedValue, Write};
use leasehold::stores::memory::MemoryRegister;
use leasehold::{ErrorKind, Object, Token, fence, update};
use leasehold_testkit::fault::{Chaos, FaultyRegister, Kind, Outcome};
use leasehold_testkit::layer::{Layer, Layered};
use tokio::task::JoinHandle;

const KEY: &str = "state.json";

fn env(seed: u64) -> Env {
    Env::seeded(Arc::new(TestClock::default()), seed)
}

fn token(number: u64) -> Token {
    Token::new(number).unwrap()
}

/// Returns a store with generations, and one whose versions depend only on the content.
fn both() -> [Arc<MemoryRegister>; 2] {
    [Arc::new(MemoryRegister::new(env(0))), by_content()]
}

fn by_content() -> Arc<MemoryRegister> {
    Arc::new(MemoryRegister::by_content(env(0)))
}

async fn text(register: &dyn Register) -> String {
    String::from_utf8(register.read(KEY).await.unwrap().unwrap().value.to_vec()).unwrap()
}

async fn written_with(register: &dyn Register) -> u64 {
    register.head(KEY).await.unwrap().unwrap().metadata.user["leasehold-token"].parse().unwrap()
}

async fn write(register: &dyn Register, number: u64, text: &'static str) -> Result<(), Error> {
    fence::write(register, KEY, token(number), text.into()).await
}

/// Starts a write with token `number`. When this function returns, the write is under way.
async fn under_way(
    register: &Arc<MemoryRegister>,
    number: u64,
    text: &'static str,
) -> (FaultyRegister, JoinHandle<Result<(), Error>>) {
    let network = FaultyRegister::new(register.clone());
    network.next_write(Outcome::Stalled);
    let writing = tokio::spawn({
        let network = network.clone();
        async move { write(&network, number, text).await }
    });
    network.sent(2).await;
    (network, writing)
}

fn is_refused_by(outcome: Result<impl std::fmt::Debug, Error>, by: u64) {
    let error = outcome.unwrap_err();
    assert_eq!((error.kind(), error.refused_by()), (ErrorKind::Lost, Some(token(by))), "{error:?}");
    assert!(!error.maybe_applied() && error.to_string().contains(&by.to_string()), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn a_lower_token_is_refused_and_an_equal_one_writes_on() {
    for register in both() {
        let network = FaultyRegister::new(register.clone());
        write(&network, 5, "a").await.unwrap();
        write(&network, 5, "b").await.unwrap();
        write(&network, 7, "c").await.unwrap();
        assert_eq!((network.counts().reads, network.counts().writes), (3, 3), "a look and a write each");
        is_refused_by(write(&network, 6, "d").await, 7);
        assert_eq!((network.counts().reads, network.counts().writes), (4, 3), "refused without a write");
        assert_eq!((text(&*register).await.as_str(), written_with(&*register).await), ("c", 7));
    }
}

#[tokio::test(start_paused = true)]
async fn a_write_delayed_past_a_takeover_is_refused() {
    for register in both() {
        write(&*register, 3, "a").await.unwrap();
        let (network, writing) = under_way(&register, 5, "b").await;
        write(&*register, 6, "c").await.unwrap();
        assert_eq!(network.deliver().await, Some(Write::Conflict));
        is_refused_by(writing.await.unwrap(), 6);
        assert_eq!((text(&*register).await.as_str(), written_with(&*register).await), ("c", 6));
    }
}

#[tokio::test(start_paused = true)]
async fn a_create_delayed_past_a_takeover_is_refused() {
    for register in both() {
        let (network, writing) = under_way(&register, 5, "b").await;
        write(&*register, 6, "c").await.unwrap();
        assert_eq!(network.deliver().await, Some(Write::Conflict));
        is_refused_by(writing.await.unwrap(), 6);
    }
}

#[tokio::test(start_paused = true)]
async fn a_lost_response_is_resolved_also_after_a_takeover() {
    for register in both() {
        let network = FaultyRegister::new(register.clone());
        write(&network, 5, "a").await.unwrap();
        network.next_write(Outcome::AppliedLost);
        network.next_read(Outcome::Fine);
        network.next_read(Outcome::Stalled);
        network.reset_counts();
        let writing = tokio::spawn({
            let network = network.clone();
            async move { write(&network, 5, "b").await }
        });
        network.sent(3).await;
        write(&*register, 6, "c").await.unwrap();
        network.deliver().await;
        writing.await.unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn two_holders_never_lose_one_anothers_update() {
    for register in both() {
        let append = async |register: &dyn Register, number: u64, word: &str| {
            fence::update(register, KEY, token(number), async |content| {
                let text = content.map_or_else(String::new, |b| String::from_utf8_lossy(&b).into_owned());
                Ok::<_, Error>(Some(format!("{text}{word} ").into()))
            })
            .await
        };
        append(&*register, 5, "a").await.unwrap();
        let network = FaultyRegister::new(register.clone());
        network.next_write(Outcome::Stalled);
        let late = tokio::spawn({
            let network = network.clone();
            async move {
                fence::update(&network, KEY, token(5), async |_| Ok::<_, Error>(Some("a late ".into()))).await
            }
        });
        network.sent(2).await;
        append(&*register, 6, "b").await.unwrap();
        network.deliver().await;
        is_refused_by(late.await.unwrap(), 6);
        is_refused_by(append(&*register, 5, "c").await, 6);
        // An update without a token does not change the fence.
        update(&*register, KEY, async |_| Ok::<_, Error>(Some("a b d ".into()))).await.unwrap();
        is_refused_by(append(&*register, 5, "c").await, 6);
        assert_eq!(text(&*register).await, "a b d ");
    }
}

#[tokio::test(start_paused = true)]
async fn a_read_that_raises_the_fence_shuts_the_earlier_holder_out() {
    let register = Arc::new(MemoryRegister::new(env(0)));
    assert_eq!(fence::read(&*register, KEY, token(4)).await.unwrap(), None);
    write(&*register, 3, "a").await.unwrap();
    let (network, writing) = under_way(&register, 5, "b").await;
    assert_eq!(fence::read(&*register, KEY, token(6)).await.unwrap().as_deref(), Some(&b"a"[..]));
    assert_eq!(network.deliver().await, Some(Write::Conflict));
    is_refused_by(writing.await.unwrap(), 6);
    is_refused_by(fence::read(&*register, KEY, token(5)).await, 6);
    network.reset_counts();
    fence::read(&network, KEY, token(6)).await.unwrap();
    assert_eq!(network.counts().writes, 0, "the token is there already");
    assert_eq!(text(&*register).await, "a");
}

#[tokio::test(start_paused = true)]
async fn a_foreign_write_removes_the_fence() {
    let register = MemoryRegister::new(env(0));
    write(&register, 7, "a").await.unwrap();
    let version = register.head(KEY).await.unwrap().unwrap().version;
    register.write(KEY, Precondition::Version(&version), "plain".into()).await.unwrap();
    write(&register, 5, "b").await.unwrap();
}

/// The content that a delayed write expects to find must not come back under a higher token.
#[tokio::test(start_paused = true)]
async fn with_reused_versions_content_of_lower_tokens_is_refused() {
    let register = by_content();
    write(&*register, 3, "a").await.unwrap();
    let (network, _writing) = under_way(&register, 5, "late").await;
    let same = write(&*register, 6, "a").await.unwrap_err();
    assert_eq!((same.kind(), same.maybe_applied()), (ErrorKind::Unsupported, false), "{same:?}");
    assert!(same.help()[0].contains("token"), "{same:?}");
    assert_eq!(fence::read(&*register, KEY, token(6)).await.unwrap_err().kind(), ErrorKind::Unsupported);
    write(&*register, 6, "b").await.unwrap();
    assert!(write(&*register, 6, "a").await.is_err(), "by an indirect way");
    write(&*register, 6, "c").await.unwrap();
    write(&*register, 6, "b").await.unwrap();
    assert!(update(&*register, KEY, async |_| Ok::<_, Error>(Some("a".into()))).await.is_err());
    assert_eq!(network.deliver().await, Some(Write::Conflict));
    assert_eq!((text(&*register).await.as_str(), written_with(&*register).await), ("b", 6));
}

#[tokio::test(start_paused = true)]
async fn with_reused_versions_an_equal_write_sends_nothing() {
    let register = FaultyRegister::new(by_content());
    write(&register, 3, "a").await.unwrap();
    write(&register, 3, "a").await.unwrap();
    assert_eq!(register.counts().writes, 1);
    let typed = Object::new(Arc::new(register.clone()), KEY).content_type("text/plain");
    typed.write_fenced(token(3), "a").await.unwrap();
    assert_eq!(register.counts().writes, 2, "another content type");
    typed.write_fenced(token(3), "a").await.unwrap();
    assert_eq!(register.counts().writes, 2);
}

#[tokio::test(start_paused = true)]
async fn a_superseded_holder_is_not_told_to_try_again() {
    for register in both() {
        write(&*register, 5, "a").await.unwrap();
        let object = Object::new(register.clone(), KEY).attempts(1);
        let outcome = object.update_fenced(token(5), async |_| {
            write(&*register, 6, "b").await?;
            Ok::<_, Error>(Some("c".into()))
        });
        is_refused_by(outcome.await, 6);
    }
}

/// If a caller waits for a long time between the read and the write, the write is late from the start.
#[tokio::test(start_paused = true)]
async fn with_reused_versions_an_old_read_is_repeated() {
    let register = by_content();
    write(&*register, 3, "a").await.unwrap();
    let network = FaultyRegister::new(register.clone());
    let slow = fence::update(&network, KEY, token(3), async |_| {
        register.env().sleep(Duration::from_secs(60)).await;
        Ok::<_, Error>(Some("b".into()))
    });
    slow.await.unwrap();
    assert_eq!((network.counts().reads, network.counts().writes), (2, 1));

    let other = register.clone();
    network.reset_counts();
    let overtaken = fence::update(&network, KEY, token(3), async |_| {
        register.env().sleep(Duration::from_secs(60)).await;
        write(&*other, 4, "c").await.unwrap();
        Ok::<_, Error>(Some("d".into()))
    });
    is_refused_by(overtaken.await, 4);
    assert_eq!((network.counts().reads, network.counts().writes), (3, 0));
}

/// Returns 8 MiB of content, for which the time limit of a request is 32 s longer.
fn large(text: &str) -> Bytes {
    text.repeat(8 << 20).into()
}

/// Reading takes longer than the read result stays valid. Only the metadata is read again.
#[tokio::test(start_paused = true)]
async fn with_reused_versions_a_slow_read_does_not_stop_a_write() {
    let inner = by_content();
    fence::write(&*inner, KEY, token(3), large("a")).await.unwrap();
    let slow = Layered(Witness { reading: Duration::from_secs(20), ..Witness::of(inner) });
    let updating = fence::update(&slow, KEY, token(4), async |_| Ok::<_, Error>(Some("b".into())));
    let updated = timeout(&*slow.env().clock, Duration::from_secs(3_600), updating).await;
    assert!(updated.unwrap().unwrap().written);
    assert_eq!(text(&*slow.0.inner).await, "b");
}

/// A write that takes longer than the read result stays valid is not retried forever.
#[tokio::test(start_paused = true)]
async fn with_reused_versions_writes_in_doubt_are_given_up() {
    let register = by_content();
    write(&*register, 3, "a").await.unwrap();
    let network = FaultyRegister::new(register.clone());
    network.every(Kind::Write, Outcome::Stalled);
    let writing = fence::write(&network, KEY, token(3), large("b"));
    let given_up = timeout(&*register.env().clock, Duration::from_secs(3_600), writing).await;
    let error = given_up.expect("an end").unwrap_err();
    assert!(error.kind() == ErrorKind::Unavailable && error.maybe_applied(), "{error:?}");
}

/// The write cannot be refused in advance. It is not reported as written.
#[tokio::test(start_paused = true)]
async fn unexpectedly_reused_versions_are_an_error() {
    let inner = by_content();
    write(&*inner, 3, "a").await.unwrap();
    let opaque = Layered(Witness { opaque: true, ..Witness::of(inner) });
    write(&opaque, 6, "b").await.unwrap();
    let error = write(&opaque, 6, "a").await.unwrap_err();
    assert!(error.kind() == ErrorKind::Unsupported && error.maybe_applied(), "{error:?}");
    assert!(error.help().iter().any(|line| line.contains("written anyway")), "{error:?}");
}

/// A register that records the tokens of applied writes, so that a test can find one that is lower than the one before.
#[derive(Debug)]
struct Witness {
    inner: Arc<MemoryRegister>,
    tokens: Mutex<Vec<u64>>,
    /// How long it takes to read content.
    reading: Duration,
    /// Whether the version of a write cannot be predicted, as in an encrypted bucket.
    opaque: bool,
}

impl Witness {
    fn of(inner: Arc<MemoryRegister>) -> Self {
        Self { inner, tokens: Mutex::default(), reading: Duration::ZERO, opaque: false }
    }
}

#[async_trait]
impl Layer for Witness {
    fn inner(&self) -> &dyn Register {
        &*self.inner
    }
    async fn read(&self, key: &str) -> Result<Option<VersionedValue>, StoreError> {
        self.inner.env().sleep(self.reading).await;
        self.inner.read(key).await
    }
    async fn write(&self, key: &str, expect: Precondition<'_>, body: Body) -> Result<Write, StoreError> {
        let token = body.metadata.user["leasehold-token"].parse().unwrap();
        let written = self.inner.write(key, expect, body).await?;
        if matches!(written, Write::Committed(_)) {
            self.tokens.lock().unwrap().push(token);
        }
        Ok(written)
    }
    fn version_of(&self, bytes: &[u8]) -> Option<Version> {
        self.inner.version_of(bytes).filter(|_| !self.opaque)
    }
}

/// Holders with rising tokens write on a bad network. There are few different contents, so contents recur.
#[tokio::test(start_paused = true)]
async fn accepted_tokens_never_go_back_under_any_faults() {
    let mut accepted = 0;
    for seed in 0..seeds() {
        let inner = if seed % 2 == 0 {
            Arc::new(MemoryRegister::new(env(seed)))
        } else {
            Arc::new(MemoryRegister::by_content(env(seed)))
        };
        let witness = Arc::new(Layered(Witness::of(inner)));
        let holders: Vec<_> = (1..=6).map(|number| holder(witness.clone(), seed, number)).collect();
        for holder in holders {
            let network = holder.await.unwrap();
            network.deliver_all().await;
        }
        tokio::time::advance(Duration::from_secs(60)).await;
        let tokens = witness.0.tokens.lock().unwrap();
        assert!(tokens.is_sorted(), "seed {seed}: {tokens:?}");
        accepted += tokens.len();
    }
    assert!(accepted as u64 > 6 * seeds(), "{accepted}");
}

fn holder(witness: Arc<Layered<Witness>>, seed: u64, number: u64) -> JoinHandle<FaultyRegister> {
    let network = FaultyRegister::new(witness.clone());
    let mut chaos = Chaos::all(seed * 8 + number, 0.07);
    chaos.delay_most = Duration::from_secs(4);
    network.chaos(chaos);
    network.every(Kind::List, Outcome::Fine);
    tokio::spawn(async move {
        // Each holder starts while the one before still writes.
        witness.env().sleep(Duration::from_millis(700 * number)).await;
        for n in 0..8 {
            let text = ["a", "b", "c", "d"][((seed + number + n) % 4) as usize];
            let _ = write(&network, number, text).await;
            witness.env().sleep(Duration::from_millis(100)).await;
            if n % 4 == 3 {
                network.deliver_all().await;
            }
        }
        network
    })
}

fn seeds() -> u64 {
    std::env::var("LEASEHOLD_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(2_000) / 4
}
