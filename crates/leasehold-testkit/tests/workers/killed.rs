//! What becomes of a lock whose holder is killed, on stores where contenders end its lease.

use std::time::Duration;

use leasehold::clock::{Clock, Deadline, SystemClock};
use leasehold::lease::{State, Ttl};
use leasehold::{LockName, Locker};
use leasehold_testkit::harness::vouch_for;
use leasehold_testkit::servers::Server;

use crate::workers::{self, Worker};

const TTL: Duration = Duration::from_secs(2);
const TTL_OPTION: &[&str] = &["--ttl", "2"];

/// A waiter takes over by observation, with the store's clock off; not before the lease that the dead holder was
/// granted has run out, and without anybody's help.
pub(crate) async fn is_succeeded_by_observation(server: Server) {
    let url = format!("{}&store_clock=off", server.fresh_url());
    vouch_for(&url).await;
    let mut holder = Worker::start("hold", &url, "lock", TTL_OPTION);
    let first = holder.granted().await;
    let granted = Deadline::new(SystemClock.now(), Ttl::new(TTL).unwrap().holder_span());
    let mut waiter = Worker::start("hold", &url, "lock", TTL_OPTION);
    holder.kill().await;
    assert!(waiter.granted().await > first);
    assert!(
        granted.passed(SystemClock.now()),
        "{server:?}: granted before the lease of the dead had run out"
    );
}

/// One that never waited and only tries, as a job of cron does, is granted the lock of a dead holder as soon as the
/// store's own clock shows that its lease is over; what inspection says and what a try gets is the same.
pub(crate) async fn is_succeeded_once_the_clock_of_the_store_says_so(server: Server) {
    let url = format!("{}&margin=0s", server.fresh_url());
    vouch_for(&url).await;
    let mut holder = Worker::start("hold", &url, "lock", TTL_OPTION);
    let first = holder.granted().await;
    holder.kill().await;
    let name = LockName::new("lock").unwrap();
    let lapsed = async {
        loop {
            // Another client each time: nothing was observed before.
            match Locker::open(&url).await.unwrap().inspect(&name).await.unwrap().state {
                State::Lapsed(_) => return,
                State::Held(_) => SystemClock.sleep(TTL / 10).await,
                State::Free => panic!("nobody released it"),
            }
        }
    };
    workers::within("the lapse", lapsed).await;
    let mut next = Worker::start("try", &url, "lock", &[]);
    assert!(next.granted().await > first, "{server:?}");
}
