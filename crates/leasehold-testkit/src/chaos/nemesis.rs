//! Runs a scenario: starts servers and workers, applies the plan of faults, waits for recovery, and judges the
//! history.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::future::{join_all, try_join_all};
use leasehold::clock::{Clock, SystemClock, timeout};
use serde_json::json;
use tempfile::TempDir;

use super::checker::{Rule, Verdict, judge};
use super::environment::Environment;
use super::faults::{Stepper, World};
use super::fleet::Slot;
use super::history::{History, merged};
use super::plan::{Fault, Kind, plan};
use super::resource::Resource;
use super::scenario::{Clocks, Language, Scenario};
use super::worker::Orders;
use super::workers;

/// How many processes contend for the lock.
const WORKERS: usize = 8;

/// Faults start after this many grants.
const GRANTS_BEFORE: u64 = 2;

/// After the last fault, the run waits for this many grants, but not longer than `RECOVERY`. That is enough for any
/// lease to end and for any client that has backed off to try again.
const GRANTS_AFTERWARDS: u64 = 3;
const RECOVERY: Duration = Duration::from_secs(60);

/// The checker must find the flaw of an incorrect lock within this time.
const LONG_ENOUGH: Duration = Duration::from_secs(60);

/// After so many operations on registers, at least one write must have succeeded.
const ENOUGH_OPERATIONS: u64 = 20;

/// How often the checker judges the history of an incorrect lock.
const LOOK: Duration = Duration::from_secs(1);

/// Settings of a chaos run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The seed of the plan of faults.
    pub seed: u64,
    /// For how long faults occur.
    pub duration: Duration,
    /// The faketime library, preloaded into workers whose clocks are faked.
    pub faketime: String,
    /// Whether histories are kept even if nothing is wrong.
    pub keep: bool,
}

/// The result of a scenario.
#[derive(Debug)]
pub struct Outcome {
    /// The scenario.
    pub scenario: Scenario,
    /// The verdict on its history.
    pub verdict: Verdict,
    /// Everything that is wrong, including broken promises; empty on success.
    pub wrong: Vec<String>,
    /// Where the histories are kept, if something is wrong or on request.
    pub kept: Option<PathBuf>,
    /// How long the run took.
    pub took: Duration,
}

/// Runs `scenario`.
///
/// # Errors
/// When servers or workers cannot be run. Such a run proves nothing.
pub async fn run(scenario: &Scenario, settings: &Settings) -> io::Result<Outcome> {
    let start = SystemClock.now();
    let mut folder = Folder(tempfile::Builder::new().prefix("leasehold-chaos-").tempdir()?);
    match make_and_judge(scenario, settings, folder.path()).await {
        Ok((verdict, wrong)) => {
            let kept = (settings.keep || !wrong.is_empty()).then(|| folder.keep());
            let took = SystemClock.now().longest_since(start);
            Ok(Outcome { scenario: *scenario, verdict, wrong, kept, took })
        }
        Err(error) => {
            Err(io::Error::other(format!("{error}; logs and histories: {}", folder.keep().display())))
        }
    }
}

/// The folder of the logs and histories. It is also kept if this program panics.
struct Folder(TempDir);

impl Folder {
    fn path(&self) -> &Path {
        self.0.path()
    }

    fn keep(&mut self) -> PathBuf {
        self.0.disable_cleanup(true);
        self.path().to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("logs and histories: {}", self.keep().display());
        }
    }
}

async fn make_and_judge(
    scenario: &Scenario,
    settings: &Settings,
    folder: &Path,
) -> io::Result<(Verdict, Vec<String>)> {
    let odd_deaths = make_chaos(scenario, settings, folder).await?;
    let history = merged(&folder.join("histories"))?;
    std::fs::write(folder.join("history.jsonl"), &history)?;
    let verdict = judge(&history);
    let mut wrong = failures(scenario, &verdict, odd_deaths);
    if scenario.language != Language::Rust && !workers::clients_were_granted(&history) {
        wrong.push(format!("no worker in {:?} was granted the lock: nothing was tried", scenario.language));
    }
    Ok((verdict, wrong))
}

fn failures(scenario: &Scenario, verdict: &Verdict, odd_deaths: Vec<String>) -> Vec<String> {
    // A rule that must be broken is not promised, so its violations are only observed. It is an error if there are
    // none.
    let mut wrong: Vec<String> = verdict.broken.iter().map(ToString::to_string).collect();
    wrong.extend(odd_deaths);
    if let Some(rule) = scenario.must_break
        && !verdict.observed.iter().any(|finding| finding.rule == rule)
    {
        wrong.push(format!("it is incorrect, but the checker found no violation of: {}", rule.name()));
    }
    if verdict.counts.changes == 0 && verdict.counts.operations >= ENOUGH_OPERATIONS {
        wrong.push("no register was written: only reads were tried".to_owned());
    }
    if verdict.counts.grants < scenario.least_grants {
        wrong.push(format!("only {} grants: nothing was tried", verdict.counts.grants));
    }
    wrong
}

/// Runs the workers and the faults. Returns the deaths of workers that no fault caused.
async fn make_chaos(scenario: &Scenario, settings: &Settings, folder: &Path) -> io::Result<Vec<String>> {
    let histories = folder.join("histories");
    std::fs::create_dir(&histories)?;
    let history = History::create(&histories, "nemesis")?;
    let promises: Vec<&str> = scenario.promises.iter().map(|rule| Rule::name(*rule)).collect();
    let grace_ms = u64::try_from(scenario.failover_grace().as_millis()).unwrap_or(u64::MAX);
    let run = json!({
        "store": scenario.name,
        "seed": settings.seed,
        "promises": promises,
        "failover_grace_ms": grace_ms,
    });
    history.record("run", history.now(), run);
    let environment = Environment::start(scenario, WORKERS, folder).await?;
    let resource = Resource::start(History::create(&histories, "counter")?).await?;
    let mut world = World { environment, slots: Vec::new(), resource, steppers: Vec::new(), history };
    for n in 0..WORKERS {
        let variables = world.clock_of(n, scenario.clocks, folder, settings)?;
        let orders = Orders {
            who: format!("w{n}"),
            kind: scenario.kind,
            store: world.environment.url(n),
            lock: "chaos".to_owned(),
            ttl: scenario.ttl,
            folder: histories.clone(),
            resource: world.resource.address().to_string(),
            seed: settings.seed.wrapping_mul(1_000).wrapping_add(n as u64 * 100),
        };
        let language = if workers::uses_client(n) { scenario.language } else { Language::Rust };
        world.slots.push(Slot::start(workers::recipe(language, orders, variables)?));
    }
    world.granted(GRANTS_BEFORE).await;
    // With an incorrect lock, faults occur until the checker has found the flaw, but not longer than `LONG_ENOUGH`.
    let duration = if scenario.must_break.is_some() { LONG_ENOUGH } else { settings.duration };
    let kinds = world.kinds(scenario.language);
    let faults = plan(settings.seed, &kinds, duration, scenario.ttl, scenario.rest);
    if scenario.must_break.is_some() {
        tokio::select! {
            suffered = world.suffer_all(&faults) => suffered?,
            found = found_out(scenario, &histories) => found?,
        }
    } else {
        world.suffer_all(&faults).await?;
        world.recover().await;
    }
    let deaths: io::Result<Vec<Vec<String>>> =
        join_all(world.slots.into_iter().map(Slot::finish)).await.into_iter().collect();
    Ok(deaths?.concat())
}

/// Completes when the checker has found the expected violation.
async fn found_out(scenario: &Scenario, histories: &Path) -> io::Result<()> {
    loop {
        SystemClock.sleep(LOOK).await;
        let verdict = judge(&merged(histories)?);
        if verdict.observed.iter().any(|finding| Some(finding.rule) == scenario.must_break) {
            return Ok(());
        }
    }
}

impl World {
    /// Returns the kinds of fault that apply to this scenario.
    fn kinds(&self, language: Language) -> Vec<Kind> {
        let mut kinds = Kind::TO_WORKERS.to_vec();
        if language != Language::Rust {
            // Twice, because one in four of the holders that it finds uses the library and has no agent.
            kinds.extend([Kind::StopAgent; 2]);
        }
        kinds.extend(self.environment.faults());
        if !self.steppers.is_empty() {
            kinds.push(Kind::StepWall);
        }
        kinds
    }

    /// Returns the environment variables that fake the clocks of worker `n`.
    fn clock_of(
        &mut self,
        n: usize,
        clocks: Clocks,
        folder: &Path,
        settings: &Settings,
    ) -> io::Result<Vec<(OsString, OsString)>> {
        let mut variables = vec![
            ("LD_PRELOAD".into(), OsString::from(&settings.faketime)),
            ("FAKETIME_NO_CACHE".into(), "1".into()),
            ("NO_FAKE_STAT".into(), "1".into()),
        ];
        let of_its_own = |all: &'static str, wall: &'static str| match clocks {
            Clocks::WithinBounds => all,
            Clocks::WallOnly => wall,
            Clocks::TwiceTooFast => ["+0s x0.5", "+0s x2"][n % 2],
        };
        let spec = match n {
            1 | 2 if clocks != Clocks::TwiceTooFast => {
                // This clock is stepped while the worker runs. Only the wall clock can be stepped.
                let stepper = Stepper::new(folder, n)?;
                variables.push(("FAKETIME_DONT_FAKE_MONOTONIC".into(), "1".into()));
                variables.push(("FAKETIME_TIMESTAMP_FILE".into(), stepper.path().into()));
                self.steppers.push(stepper);
                self.history.record(
                    "fault",
                    self.history.now(),
                    json!({ "kind": "clock that is stepped", "target": format!("w{n}") }),
                );
                return Ok(variables);
            }
            3 | 6 => of_its_own("+3600s x1.004", "+3600s"),
            4 | 7 => of_its_own("-3600s x0.996", "-3600s"),
            5 => of_its_own("+0s x0.996", "+0s"),
            _ if clocks == Clocks::TwiceTooFast => of_its_own("", ""),
            _ => return Ok(Vec::new()),
        };
        if clocks == Clocks::WallOnly {
            variables.push(("FAKETIME_DONT_FAKE_MONOTONIC".into(), "1".into()));
        }
        variables.push(("FAKETIME".into(), spec.into()));
        let event = json!({ "kind": format!("clock of {spec}"), "target": format!("w{n}") });
        self.history.record("fault", self.history.now(), event);
        Ok(variables)
    }

    /// Applies each fault at its time, even while others last.
    async fn suffer_all(&self, faults: &[Fault]) -> io::Result<()> {
        let mut at = Duration::ZERO;
        let all = faults.iter().map(|fault| {
            at += fault.after;
            let start = at;
            async move {
                SystemClock.sleep(start).await;
                self.suffer(fault).await
            }
        });
        try_join_all(all.collect::<Vec<_>>()).await.map(|_| ())
    }

    /// Records the end of the faults, and waits for further grants.
    async fn recover(&self) {
        self.history.record("healed", self.history.now(), json!({}));
        self.granted(GRANTS_AFTERWARDS).await;
    }

    /// Waits for `times` more grants. Gives up after a long time; the checker reports the missing grants.
    async fn granted(&self, times: u64) {
        let mut seen = self.resource.seen();
        let so_far = seen.borrow().grants;
        let again = seen.wait_for(|seen| seen.grants >= so_far + times);
        let _ = timeout(&SystemClock, RECOVERY, again).await;
    }
}
