//! Test machines that share one register under paused time.

use std::sync::Arc;
use std::time::Duration;

use leasehold::clock::TestClock;
use leasehold::env::Env;
use leasehold::lease::{
    AcquireOutcome, Claim, Grant, HolderInfo, LeaseStore, PollInterval, Renewal, StoreOptions, Ttl,
};
use leasehold::register::{Precondition, Register, RegisterCapabilities};
use leasehold::stores::memory::MemoryRegister;
use leasehold::{Holder, LockName, Loss, RegisterLeases, State};
use leasehold_testkit::fault::{FaultyRegister, Kind, Outcome};
use leasehold_testkit::layer::{Layer, Layered};
use leasehold_testkit::machine::Machine;

pub(crate) const TTL: Duration = Duration::from_secs(30);
pub(crate) const KEY: &str = "x.lock";

/// The poll interval of S3.
pub(crate) const POLL_INTERVAL: PollInterval =
    PollInterval { min: Duration::from_millis(100), max: Duration::from_secs(2) };

const ROUND_TRIP: Duration = Duration::from_millis(30);

/// A register that reports the poll interval of S3.
#[derive(Debug)]
pub(crate) struct Paced(pub(crate) FaultyRegister);

impl Layer for Paced {
    fn inner(&self) -> &dyn Register {
        &self.0
    }
    fn capabilities(&self) -> RegisterCapabilities {
        let mut capabilities = self.0.capabilities();
        capabilities.poll_interval = POLL_INTERVAL;
        capabilities
    }
}

/// The store that the machines of a test share.
pub(crate) struct World {
    pub(crate) register: Arc<MemoryRegister>,
    pub(crate) clock: Arc<TestClock>,
    /// Whether a lock is held while its object exists.
    pub(crate) by_existence: bool,
    /// Whether clients poll at the interval of S3, and every read and write takes a round trip.
    pub(crate) paced: bool,
}

/// A machine with its own network and clock.
pub(crate) struct Client {
    pub(crate) leases: Arc<RegisterLeases>,
    pub(crate) network: FaultyRegister,
    pub(crate) clock: Arc<TestClock>,
    pub(crate) env: Env,
}

impl World {
    pub(crate) fn new() -> Self {
        let clock = Arc::new(TestClock::default());
        let register = Arc::new(MemoryRegister::new(Env::seeded(clock.clone(), 0)));
        Self { register, clock, by_existence: false, paced: false }
    }

    /// Creates a world with the existence protocol: a lock is held while its object exists.
    pub(crate) fn by_existence() -> Self {
        Self { by_existence: true, ..Self::new() }
    }

    /// Creates a world with the poll interval and the round trips of S3.
    pub(crate) fn paced() -> Self {
        Self { paced: true, ..Self::new() }
    }

    /// Creates a machine that detects lapses only by observation.
    pub(crate) fn observer(&self, seed: u64) -> Client {
        self.client(seed, TestClock::default(), false)
    }

    /// Creates a machine that also uses the store's clock.
    pub(crate) fn dated(&self, seed: u64) -> Client {
        self.client(seed, TestClock::default(), true)
    }

    pub(crate) fn client(&self, seed: u64, clock: TestClock, store_clock: bool) -> Client {
        let clock = Arc::new(clock);
        let env = Env::seeded(clock.clone(), seed + 1);
        let network = FaultyRegister::new(self.register.clone());
        let mut options = StoreOptions::default();
        options.env = env.clone();
        options.store_clock = store_clock;
        let register: Arc<dyn Register> = match self.paced {
            true => Arc::new(Layered(Paced(network.clone()))),
            false => Arc::new(network.clone()),
        };
        if self.paced {
            network.every(Kind::Read, Outcome::Delayed(ROUND_TRIP));
            network.every(Kind::Write, Outcome::Delayed(ROUND_TRIP));
        }
        let machine = Machine::new(register, env.clone());
        let leases = if self.by_existence { RegisterLeases::by_existence } else { RegisterLeases::new };
        Client { leases: Arc::new(leases(Arc::new(machine), options)), network, clock, env }
    }

    /// Reads the record directly from the store.
    pub(crate) async fn raw(&self) -> serde_json::Value {
        let cell = self.register.read(KEY).await.unwrap().expect("there is no record");
        serde_json::from_slice(&cell.value).unwrap()
    }

    /// Edits the record directly.
    pub(crate) async fn edit(&self, edit: impl FnOnce(&mut serde_json::Value)) {
        let cell = self.register.read(KEY).await.unwrap().expect("there is no record");
        let mut value = serde_json::from_slice(&cell.value).unwrap();
        edit(&mut value);
        let bytes: bytes::Bytes = serde_json::to_vec(&value).unwrap().into();
        self.register.write(KEY, Precondition::Version(&cell.version), bytes.into()).await.unwrap();
    }

    /// Deletes the record directly.
    pub(crate) async fn delete(&self) {
        let cell = self.register.read(KEY).await.unwrap().expect("there is no record");
        self.register.delete(KEY, &cell.version).await.unwrap();
    }
}

impl Client {
    pub(crate) fn claim(&self) -> Claim {
        Claim::new(&self.env, name(), Ttl::new(TTL).unwrap(), Holder::this_process())
    }

    pub(crate) async fn granted(&self) -> Grant {
        granted(self.leases.try_acquire(&self.claim()).await.unwrap())
    }

    pub(crate) async fn held(&self) -> HolderInfo {
        match self.leases.try_acquire(&self.claim()).await.unwrap() {
            AcquireOutcome::Held(held) => held,
            other => panic!("not held: {other:?}"),
        }
    }

    pub(crate) async fn is_free(&self) -> bool {
        matches!(self.leases.inspect(&name()).await.unwrap().state, State::Free)
    }

    pub(crate) async fn lost(&self, grant: &mut Grant) -> Loss {
        match self.leases.renew(grant).await.unwrap() {
            Renewal::Lost(loss) => loss,
            Renewal::Renewed => panic!("renewed"),
        }
    }
}

pub(crate) fn granted(verdict: AcquireOutcome) -> Grant {
    match verdict {
        AcquireOutcome::Granted(grant) => grant,
        other => panic!("not granted: {other:?}"),
    }
}

pub(crate) fn name() -> LockName {
    LockName::new("x").unwrap()
}

pub(crate) fn holder_span() -> Duration {
    Ttl::new(TTL).unwrap().holder_span()
}

pub(crate) fn contender_span() -> Duration {
    Ttl::new(TTL).unwrap().contender_span()
}
