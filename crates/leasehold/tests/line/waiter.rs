//! A process that waits in the line, and the line in the store.

use leasehold::lease::{AcquireOutcome, Claim, Grant, HolderInfo, LeaseStore, Token, Watch};
use leasehold::register::{Precondition, Register};

use crate::common::{Client, World, granted};

pub(super) const LINE: &str = "x.line";

/// A claim that waits, and its client.
pub(super) struct Waiter {
    pub(super) client: Client,
    pub(super) claim: Claim,
}

impl Waiter {
    pub(super) fn new(world: &World, seed: u64) -> Self {
        let client = world.dated(seed);
        let mut claim = client.claim();
        claim.waits = true;
        claim.holder.name = format!("waiter-{seed}");
        claim.holder.note = Some(format!("job {seed}"));
        Self { client, claim }
    }

    /// Creates a waiter and waits until it has joined the line. The lock must be held.
    pub(super) async fn joined(world: &World, seed: u64) -> Self {
        let waiter = Self::new(world, seed);
        let mut held = waiter.refused().await;
        while held.ahead.is_none() {
            waiter.turn(&held).await;
            held = waiter.refused().await;
        }
        waiter
    }

    pub(super) async fn ask(&self) -> AcquireOutcome {
        self.client.leases.try_acquire(&self.claim).await.unwrap()
    }

    pub(super) async fn refused(&self) -> HolderInfo {
        match self.ask().await {
            AcquireOutcome::Held(held) => held,
            other => panic!("not held: {other:?}"),
        }
    }

    pub(super) async fn granted(&self) -> Grant {
        granted(self.ask().await)
    }

    pub(super) async fn turn(&self, held: &HolderInfo) {
        self.client.leases.turn(&self.claim, held).await.unwrap();
    }

    /// Waits until the lock is granted.
    pub(super) async fn acquires(&self) -> Grant {
        loop {
            match self.ask().await {
                AcquireOutcome::Granted(grant) => return grant,
                AcquireOutcome::Held(held) => self.turn(&held).await,
                AcquireOutcome::Lost(loss) => panic!("{loss}"),
            }
        }
    }

    pub(super) async fn release(&self, grant: &mut Grant) {
        self.client.leases.release(grant, None).await.unwrap();
    }

    pub(super) async fn withdraws(&self) {
        let mut withdrawn = Grant::new(&self.claim, Token::default(), self.client.env.now());
        self.client.leases.release(&mut withdrawn, None).await.unwrap();
    }
}

/// Returns the names of the waiters in the line, in order.
pub(super) async fn in_line(world: &World) -> Vec<String> {
    let Some(line) = world.register.read(LINE).await.unwrap() else { return Vec::new() };
    let line: serde_json::Value = serde_json::from_slice(&line.value).unwrap();
    let served = world.raw().await["served"].as_u64().unwrap_or(0);
    let waiters = line["waiters"].as_array().unwrap().iter();
    waiters
        .filter(|waiter| waiter["number"].as_u64().unwrap() > served)
        .map(|waiter| waiter["holder"]["name"].as_str().unwrap().to_owned())
        .collect()
}

pub(super) async fn write_line(world: &World, line: &str) {
    let there = world.register.read(LINE).await.unwrap();
    let expect = there.as_ref().map_or(Precondition::Absent, |there| Precondition::Version(&there.version));
    world.register.write(LINE, expect, line.to_owned().into()).await.unwrap();
}
