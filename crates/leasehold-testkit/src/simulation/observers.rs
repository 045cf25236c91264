//! The observers of a simulated election. Each has its own machine and network.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use leasehold::clock::timeout;
use leasehold::{Guard, Leader};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::checker::Checker;
use super::client::Client;
use super::plan::Fault;
use super::world::World;
use super::{LOCK, Workload};

/// How many observers each election has.
const OBSERVERS: u64 = 2;

/// How long an observer may take to report the leader after its network has healed. It may have just begun to back
/// off, or it may have a request under way that never gets a response.
const LEARNING: Duration = Duration::from_secs(60);

/// The invariant that the observers check.
const OBSERVERS_ARE_TOLD: &str = "E1";

/// The observers of one history.
pub(super) struct Observers {
    checker: Arc<Checker>,
    tasks: JoinSet<()>,
    watched: Vec<Observed>,
}

struct Observed {
    client: Arc<Client>,
    /// The term of the leader that the observer saw last.
    latest: watch::Receiver<Option<u64>>,
}

impl Observers {
    /// Starts the observers, if the workload is an election.
    pub(super) fn start(world: &Arc<World>) -> Self {
        let (plan, mut tasks) = (&world.plan, JoinSet::new());
        let watched = (0..if plan.workload == Workload::Election { OBSERVERS } else { 0 }).map(|n| {
            let seed = plan.seed.wrapping_mul(37).wrapping_add(n + 1_000);
            let client = Arc::new(Client::new(world, seed));
            let (tell, latest) = watch::channel(None);
            tasks.spawn(observe(client.clone(), tell));
            tasks.spawn(have_accidents(client.clone(), seed));
            Observed { client, latest }
        });
        let watched = watched.collect();
        Self { checker: world.checker.clone(), tasks, watched }
    }

    /// Ends the observation of a history whose last leader has `term`. All observers must see that leader once their
    /// networks have healed, unless it loses its lease, because the clocks of the store's front ends differ by more than
    /// half of the margin.
    pub(super) async fn conclude(mut self, term: u64, leads: &Guard) {
        for Observed { client, latest } in &mut self.watched {
            client.world.checker.lock().concluded = true;
            client.link.revive();
            let reported = latest.wait_for(|reported| *reported == Some(term));
            if timeout(&*client.host, LEARNING, reported).await.is_none() && leads.check().is_ok() {
                let latest = *latest.borrow();
                self.checker.violated(
                    OBSERVERS_ARE_TOLD,
                    format!("an observer was told of {latest:?} and never of {term}"),
                );
            }
        }
        self.tasks.shutdown().await;
    }
}

async fn observe(client: Arc<Client>, tell: watch::Sender<Option<u64>>) {
    let mut changes = client.locker.election(LOCK).observe();
    let mut highest = None;
    let mut before: Option<Option<Leader>> = None;
    while let Some(reported) = changes.next().await {
        let reported = match reported {
            Ok(reported) => reported,
            Err(error) => {
                return client
                    .world
                    .checker
                    .violated(OBSERVERS_ARE_TOLD, format!("an observer was told {error}"));
            }
        };
        if before.as_ref() == Some(&reported) {
            client
                .world
                .checker
                .violated(OBSERVERS_ARE_TOLD, format!("an observer was told twice of {reported:?}"));
        }
        let term = reported.as_ref().map(|leader| leader.term.map_or(0, leasehold::Token::get));
        if let Some(leader) = &reported {
            client.world.checker.saw_leader(leader, highest);
            highest = highest.max(term);
        }
        before = Some(reported);
        let _ = tell.send(term);
    }
    client.world.checker.violated(OBSERVERS_ARE_TOLD, "the stream of leaders ended".to_owned());
}

/// Breaks and heals the network of an observer.
async fn have_accidents(client: Arc<Client>, seed: u64) {
    let plan = client.plan();
    let mut random = fastrand::Rng::with_seed(seed);
    loop {
        client.env.sleep(Duration::from_millis(random.u64(..10_000))).await;
        if client.world.checker.lock().concluded {
            return;
        }
        match random.u8(..6) {
            0 if plan.has(Fault::Partitions) => client.link.disconnect(),
            1 if plan.has(Fault::Hangs) => client.link.stall(),
            2 if plan.has(Fault::Suspends) => {
                client.host.machine().suspend(plan.ttl.mul_f64(3.0 * random.f64()));
            }
            3 if plan.has(Fault::WallSteps) => client.host.machine().step_wall(random.i64(-3_600..3_600)),
            // Heals the network even after all processes have died, because an observer has its own process.
            _ => {
                client.link.revive();
                client.link.recover(plan.chaos(random.u64(..)));
            }
        }
    }
}

impl Checker {
    /// Records that an observer that has seen terms up to `highest` sees `leader`.
    fn saw_leader(&self, leader: &Leader, highest: Option<u64>) {
        let mut checked = self.lock();
        checked.history.leaders_seen += 1;
        let term = leader.term.map(leasehold::Token::get);
        let flaw = if term < highest {
            Some(format!("after {highest:?}"))
        } else if term.is_none_or(|term| checked.values.get(&term) != leader.value.as_ref()) {
            Some("whose value does not match its grant".to_owned())
        } else {
            None
        };
        if let Some(flaw) = flaw {
            checked.violates(OBSERVERS_ARE_TOLD, format!("an observer was told of {leader:?}, {flaw}"));
        }
    }
}
