//! The schedule of faults, which is drawn from a seed before the run starts.

use std::time::Duration;

use fastrand::Rng;

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// The holder is stopped for longer than its lease, then resumed.
    StopHolder,
    /// The agent of the holder is stopped for longer than the lease, then resumed. The holder keeps running.
    StopAgent,
    /// Any worker is stopped, for any duration.
    StopWorker,
    /// `kill -9` of the holder.
    KillHolder,
    /// `kill -9` of a worker that does not hold the lock.
    KillWaiter,
    /// The holder cannot reach the store for longer than its lease.
    CutHolder,
    /// Workers' requests are applied, but the responses are lost.
    LoseAnswers,
    /// Connections break, and their requests are lost.
    CutConnections,
    /// Requests arrive late.
    DelayRequests,
    /// Responses arrive late.
    DelayAnswers,
    /// Requests arrive twice.
    DoubleRequests,
    /// Requests arrive twice, and the second response is returned.
    GiveSecondAnswer,
    /// The store reports that it is overloaded.
    Unavailable,
    /// The server is stopped for a while.
    StopServer,
    /// `kill -9` of the server, and a restart on the same data and port.
    KillServer,
    /// The leader of a cluster is stopped for a while.
    StopLeader,
    /// `kill -9` of a cluster's leader, and a restart on the same data and port.
    KillLeader,
    /// A wall clock is set an hour forward or back while a process runs.
    StepWall,
}

impl Kind {
    /// All kinds.
    pub const ALL: &[Self] = &[
        Self::StopHolder,
        Self::StopAgent,
        Self::StopWorker,
        Self::KillHolder,
        Self::KillWaiter,
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
    /// Faults of the worker processes.
    pub const TO_WORKERS: &[Self] = &[Self::StopHolder, Self::StopWorker, Self::KillHolder, Self::KillWaiter];
    /// Faults that an HTTP proxy can cause.
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
    /// Faults that a proxy for other protocols can cause.
    pub const TO_CONNECTIONS: &[Self] = &[Self::CutHolder, Self::LoseAnswers, Self::DelayAnswers];

    /// Returns the name of the fault in a history.
    pub const fn name(self) -> &'static str {
        match self {
            Self::StopHolder => "holder stopped",
            Self::StopAgent => "agent stopped",
            Self::StopWorker => "worker stopped",
            Self::KillHolder => "holder killed",
            Self::KillWaiter => "waiter killed",
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

    /// Returns whether a worker must hold the lock throughout the fault.
    pub fn is_for_a_holder(self) -> bool {
        matches!(
            self,
            Self::StopHolder | Self::StopAgent | Self::CutHolder | Self::KillServer | Self::KillLeader
        )
    }

    /// Returns whether the fault hits a server.
    fn is_for_a_server(self) -> bool {
        matches!(self, Self::StopServer | Self::KillServer | Self::StopLeader | Self::KillLeader)
    }

    /// Returns the kind that this fault becomes if no worker holds the lock. It then hits any worker.
    pub(super) fn without_a_holder(self) -> Self {
        match self {
            Self::StopHolder => Self::StopWorker,
            Self::KillHolder => Self::KillWaiter,
            Self::CutHolder => Self::CutConnections,
            other => other,
        }
    }

    /// Returns the duration, as a multiple of the ttl.
    fn lasts(self, random: &mut Rng) -> f64 {
        let mut between = |least: f64, most: f64| least + (most - least) * random.f64();
        match self {
            // Longer than the lease, so that another worker is granted the lock in the meantime.
            Self::StopHolder | Self::StopAgent | Self::CutHolder => between(1.3, 2.2),
            Self::StopServer | Self::KillServer | Self::StopLeader | Self::KillLeader => between(0.1, 1.2),
            Self::StopWorker | Self::DelayRequests | Self::DelayAnswers => between(0.1, 1.6),
            _ => between(0.1, 0.6),
        }
    }
}

/// One fault of a plan.
#[derive(Clone, Debug, PartialEq)]
pub struct Fault {
    /// The kind of fault.
    pub kind: Kind,
    /// The delay since the previous fault began.
    pub after: Duration,
    /// How long it lasts.
    pub lasts: Duration,
    /// Selects the target, unless the kind of fault determines it.
    pub pick: u64,
}

/// Draws faults of `kinds` for `duration`, with leases of `ttl`. Each kind occurs once before any kind occurs again, but
/// no fault hits a server within `rest` of the previous one.
pub fn plan(seed: u64, kinds: &[Kind], duration: Duration, ttl: Duration, rest: Duration) -> Vec<Fault> {
    let mut random = Rng::with_seed(seed);
    let mut faults = Vec::new();
    let (mut at, mut before, mut rested, mut bag) =
        (Duration::ZERO, Duration::ZERO, Duration::ZERO, Vec::new());
    // A short plan has short pauses, so that every kind occurs.
    let pause = (duration / (kinds.len().max(1) as u32)).min(ttl).as_secs_f64();
    while !kinds.is_empty() {
        if bag.is_empty() {
            bag = kinds.to_vec();
            random.shuffle(&mut bag);
        }
        at += Duration::from_secs_f64(pause * (0.5 + random.f64() / 2.0));
        let Some(kind) = bag.pop().filter(|_| at < duration) else { break };
        if kind.is_for_a_server() {
            if at < rested {
                continue;
            }
            rested = at + rest;
        }
        let lasts = ttl.mul_f64(kind.lasts(&mut random));
        faults.push(Fault { kind, after: at - before, lasts, pick: random.u64(..) });
        before = at;
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
        let one = plan(7, Kind::TO_REQUESTS, minute, TTL, Duration::ZERO);
        assert_eq!(one, plan(7, Kind::TO_REQUESTS, minute, TTL, Duration::ZERO));
        assert_ne!(one, plan(8, Kind::TO_REQUESTS, minute, TTL, Duration::ZERO));
        assert!(one.iter().map(|fault| fault.after).sum::<Duration>() < minute);
    }

    #[test]
    fn every_kind_comes_also_in_a_short_plan() {
        for seed in 0..100 {
            let faults = plan(seed, Kind::TO_REQUESTS, Duration::from_secs(8), TTL, Duration::ZERO);
            for kind in Kind::TO_REQUESTS {
                assert!(faults.iter().any(|fault| fault.kind == *kind), "{seed}: {kind:?}");
            }
        }
    }

    #[test]
    fn holders_are_stopped_and_cut_off_for_longer_than_their_leases() {
        let kinds = [Kind::StopHolder, Kind::StopAgent, Kind::CutHolder];
        let faults = plan(1, &kinds, Duration::from_secs(600), TTL, Duration::ZERO);
        assert!(faults.len() > 100 && faults.iter().all(|fault| fault.lasts > TTL));
    }

    #[test]
    fn servers_rest_between_their_faults_and_workers_do_not() {
        let (kinds, length) =
            ([Kind::StopServer, Kind::KillServer, Kind::StopWorker], Duration::from_secs(600));
        let rest = 10 * TTL;
        let times = |rest| {
            let mut at = Duration::ZERO;
            let (servers, workers): (Vec<_>, Vec<_>) = plan(1, &kinds, length, TTL, rest)
                .into_iter()
                .map(|fault| {
                    at += fault.after;
                    (fault.kind.is_for_a_server(), at)
                })
                .partition(|(is_for_a_server, _)| *is_for_a_server);
            assert!(workers.len() > 100);
            servers.into_iter().map(|(_, at)| at).collect::<Vec<_>>()
        };
        assert!(times(Duration::ZERO).len() > 200);
        let times = times(rest);
        assert!(times.len() > 20 && times.windows(2).all(|two| two[1] - two[0] >= rest), "{times:?}");
    }
}
