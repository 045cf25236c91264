//! Which faults come when: drawn from a seed, before anything runs.

use std::time::Duration;

use fastrand::Rng;

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// The holder is stopped for longer than its lease, and goes on as if nothing had happened.
    StopHolder,
    /// Any worker is stopped, for long or short.
    StopWorker,
    /// `kill -9` of the holder.
    KillHolder,
    /// `kill -9` of any worker.
    KillWorker,
    /// The holder cannot reach the store for longer than its lease.
    CutHolder,
    /// What workers ask is done, and the answers are lost.
    LoseAnswers,
    /// Connections break instead of requests.
    CutConnections,
    /// Requests arrive late.
    DelayRequests,
    /// Answers arrive late.
    DelayAnswers,
    /// Requests arrive twice.
    DoubleRequests,
    /// Requests arrive twice, and the second answer is given.
    GiveSecondAnswer,
    /// The store says that it is overloaded.
    Unavailable,
    /// The server is stopped for a while.
    StopServer,
    /// `kill -9` of the server, and a start on the same data and port.
    KillServer,
    /// The leader of a cluster is stopped for a while.
    StopLeader,
    /// `kill -9` of the leader of a cluster, and a start on the same data and port.
    KillLeader,
    /// A wall clock is set an hour forward or back while a process runs.
    StepWall,
}

impl Kind {
    /// All of them.
    pub const ALL: &[Self] = &[
        Self::StopHolder,
        Self::StopWorker,
        Self::KillHolder,
        Self::KillWorker,
        Self::CutHolder,
        Self::LoseAnswers,
        Self::CutConnections,
        Self::DelayRequests,
        Self::DelayAnswers,
        Self::DoubleRequests,
        Self::GiveSecondAnswer,
        Self::Unavailable,
        Self::StopServer,
        Self::KillServer,
        Self::StopLeader,
        Self::KillLeader,
        Self::StepWall,
    ];
    /// What happens to processes that contend for a lock.
    pub const TO_WORKERS: &[Self] = &[Self::StopHolder, Self::StopWorker, Self::KillHolder, Self::KillWorker];
    /// What a proxy does to HTTP.
    pub const TO_REQUESTS: &[Self] = &[
        Self::CutHolder,
        Self::LoseAnswers,
        Self::CutConnections,
        Self::DelayRequests,
        Self::DelayAnswers,
        Self::DoubleRequests,
        Self::GiveSecondAnswer,
        Self::Unavailable,
    ];
    /// What a wire does to anything else.
    pub const TO_CONNECTIONS: &[Self] = &[Self::CutHolder, Self::LoseAnswers, Self::DelayAnswers];

    /// What it is called in a history.
    pub const fn name(self) -> &'static str {
        match self {
            Self::StopHolder => "holder stopped",
            Self::StopWorker => "worker stopped",
            Self::KillHolder => "holder killed",
            Self::KillWorker => "worker killed",
            Self::CutHolder => "holder cut off",
            Self::LoseAnswers => "answers lost",
            Self::CutConnections => "connections cut",
            Self::DelayRequests => "requests delayed",
            Self::DelayAnswers => "answers delayed",
            Self::DoubleRequests => "requests doubled",
            Self::GiveSecondAnswer => "second answer given",
            Self::Unavailable => "503 answered",
            Self::StopServer => "server stopped",
            Self::KillServer => "server killed",
            Self::StopLeader => "leader stopped",
            Self::KillLeader => "leader killed",
            Self::StepWall => "wall clock stepped",
        }
    }

    /// Whether a lock should be held all the while.
    pub fn is_for_a_holder(self) -> bool {
        matches!(self, Self::StopHolder | Self::CutHolder | Self::KillServer | Self::KillLeader)
    }

    /// What it is when nobody holds the lock: it meets any worker.
    pub(super) fn without_a_holder(self) -> Self {
        match self {
            Self::StopHolder => Self::StopWorker,
            Self::KillHolder => Self::KillWorker,
            Self::CutHolder => Self::CutConnections,
            other => other,
        }
    }

    /// For how long, in parts of the ttl.
    fn lasts(self, random: &mut Rng) -> f64 {
        let mut between = |least: f64, most: f64| least + (most - least) * random.f64();
        match self {
            // Longer than the lease: somebody else is granted the lock meanwhile.
            Self::StopHolder | Self::CutHolder => between(1.3, 2.2),
            Self::StopServer | Self::KillServer | Self::StopLeader | Self::KillLeader => between(0.1, 1.2),
            Self::StopWorker | Self::DelayRequests | Self::DelayAnswers => between(0.1, 1.6),
            _ => between(0.1, 0.6),
        }
    }
}

/// A fault of a plan.
#[derive(Clone, Debug, PartialEq)]
pub struct Fault {
    /// What goes wrong.
    pub kind: Kind,
    /// After the fault before it has begun.
    pub after: Duration,
    /// For how long.
    pub lasts: Duration,
    /// Draws whom it meets, where that is open.
    pub pick: u64,
}

/// Faults of `kinds` for `duration`, to leases of `ttl`. Every kind comes once before any comes again.
pub fn plan(seed: u64, kinds: &[Kind], duration: Duration, ttl: Duration) -> Vec<Fault> {
    let mut random = Rng::with_seed(seed);
    let mut faults = Vec::new();
    let (mut at, mut bag) = (Duration::ZERO, Vec::new());
    // In a short plan faults come fast, so that each kind comes at all.
    let pause = (duration / (kinds.len().max(1) as u32)).min(ttl).as_secs_f64();
    while !kinds.is_empty() {
        if bag.is_empty() {
            bag = kinds.to_vec();
            random.shuffle(&mut bag);
        }
        let after = Duration::from_secs_f64(pause * (0.5 + random.f64() / 2.0));
        at += after;
        let Some(kind) = bag.pop().filter(|_| at < duration) else { break };
        let lasts = ttl.mul_f64(kind.lasts(&mut random));
        faults.push(Fault { kind, after, lasts, pick: random.u64(..) });
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(2);

    #[test]
    fn a_seed_is_a_plan() {
        let minute = Duration::from_secs(60);
        let one = plan(7, Kind::TO_REQUESTS, minute, TTL);
        assert_eq!(one, plan(7, Kind::TO_REQUESTS, minute, TTL));
        assert_ne!(one, plan(8, Kind::TO_REQUESTS, minute, TTL));
        assert!(one.iter().map(|fault| fault.after).sum::<Duration>() < minute);
    }

    #[test]
    fn every_kind_comes_also_in_a_short_plan() {
        for seed in 0..100 {
            let faults = plan(seed, Kind::TO_REQUESTS, Duration::from_secs(8), TTL);
            for kind in Kind::TO_REQUESTS {
                assert!(faults.iter().any(|fault| fault.kind == *kind), "{seed}: {kind:?}");
            }
        }
    }

    #[test]
    fn holders_are_stopped_and_cut_off_for_longer_than_their_leases() {
        let kinds = [Kind::StopHolder, Kind::CutHolder];
        let faults = plan(1, &kinds, Duration::from_secs(600), TTL);
        assert!(faults.len() > 100 && faults.iter().all(|fault| fault.lasts > TTL));
    }
}
