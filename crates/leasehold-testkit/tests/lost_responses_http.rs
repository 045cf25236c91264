//! A running server behind a proxy that loses, repeats and refuses requests. Each request names its claim or its grant,
//! so the client can find out every outcome.

use std::sync::Arc;
use std::time::Duration;

use leasehold::env::Env;
use leasehold::lease::{AcquireOutcome, Claim, Evicted, Grant, LeaseStore, Released, Renewal, State, Ttl};
use leasehold::url::StoreUrl;
use leasehold::{Holder, LockName, Token};
use leasehold_testkit::harness::Fresh;
use leasehold_testkit::proxy::{Harm, Proxy};
use leasehold_testkit::servers::through;
use leasehold_testkit::stores::fresh;

use crate::leases::open;

const LONG: Duration = Duration::from_secs(600);

/// A server, with its store through a proxy and directly.
struct Site {
    proxy: Proxy,
    behind: Arc<dyn LeaseStore>,
    direct: Arc<dyn LeaseStore>,
    _storage: Fresh,
}

async fn site() -> Site {
    let fresh = fresh("http_sqlite");
    let url = StoreUrl::parse(fresh.url()).unwrap();
    let server = url.authority().unwrap().to_owned();
    let proxy = Proxy::start(server).await;
    let behind = open(&through(fresh.url(), proxy.address())).await;
    Site { proxy, behind, direct: open(fresh.url()).await, _storage: fresh }
}

fn claim(name: &LockName) -> Claim {
    let mut claim = Claim::new(&Env::system(), name.clone(), Ttl::new(LONG).unwrap(), Holder::this_process());
    claim.store_timeout = LONG;
    claim
}

#[tokio::test]
async fn every_lost_response_is_resolved() {
    let Site { proxy, behind, direct, _storage } = site().await;
    let name = LockName::new("lock").unwrap();
    let mut before = None;
    for harm in [Harm::AnswerLost, Harm::Cut, Harm::Status(503), Harm::Twice, Harm::TwiceSecondAnswer] {
        let claim = claim(&name);
        proxy.next("POST", harm);
        let outcome = behind.try_acquire(&claim).await.unwrap();
        let AcquireOutcome::Granted(mut grant) = outcome else { panic!("{harm:?}: {outcome:?}") };
        assert!(Some(grant.token) > before, "{harm:?}");
        before = Some(grant.token);
        proxy.next("POST", harm);
        assert!(matches!(behind.renew(&mut grant).await.unwrap(), Renewal::Renewed), "{harm:?}");
        assert!(matches!(direct.inspect(&name).await.unwrap().state, State::Held(_)), "{harm:?}");
        proxy.next("POST", harm);
        let released = behind.release(&mut grant, None).await.unwrap();
        // If a proxy repeats the request, the second response is that of a request that found the lock released.
        assert!(released == Released::Released || harm == Harm::TwiceSecondAnswer, "{harm:?}");
        assert_eq!(direct.inspect(&name).await.unwrap().state, State::Free, "{harm:?}");
        // The claim is spent and is not granted again.
        assert!(matches!(direct.try_acquire(&claim).await.unwrap(), AcquireOutcome::Lost(_)), "{harm:?}");
    }
}

#[tokio::test]
async fn a_waiters_grant_with_a_lost_response_is_found_or_withdrawn() {
    let Site { proxy, behind, direct, _storage } = site().await;
    let name = LockName::new("lock").unwrap();
    for is_withdrawn in [false, true] {
        let AcquireOutcome::Granted(mut held) = direct.try_acquire(&claim(&name)).await.unwrap() else {
            panic!()
        };
        let mut waiting = claim(&name);
        waiting.waits = true;
        let AcquireOutcome::Held(seen) = behind.try_acquire(&waiting).await.unwrap() else { panic!() };
        proxy.reset();
        proxy.next("POST", Harm::AnswerLost);
        let release = async {
            proxy.until(|log| !log.is_empty()).await;
            direct.release(&mut held, None).await.unwrap()
        };
        let (turn, _) = tokio::join!(behind.turn(&waiting, &seen), release);
        assert!(turn.unwrap_err().is_transient());
        // The server has granted the lock to the waiter.
        let State::Held(holder) = direct.inspect(&name).await.unwrap().state else { panic!("not granted") };
        if is_withdrawn {
            let mut withdrawn = Grant::new(&waiting, Token::default(), behind.env().now());
            assert_eq!(behind.release(&mut withdrawn, None).await.unwrap(), Released::Released);
        } else {
            let outcome = behind.try_acquire(&waiting).await.unwrap();
            let AcquireOutcome::Granted(grant) = outcome else { panic!("{outcome:?}") };
            assert_eq!(Some(grant.token), holder.token);
            // An operator evicts the grant, and the first response is lost.
            proxy.next("POST", Harm::AnswerLost);
            assert_eq!(behind.evict(&name, grant.token, None).await.unwrap(), Evicted::Evicted);
        }
        assert_eq!(direct.inspect(&name).await.unwrap().state, State::Free);
    }
}
