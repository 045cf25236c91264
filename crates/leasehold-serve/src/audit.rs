//! The audit log: a line of JSON for each change of a lock, and for refused requests.
//!
//! A thread writes the lines, so that a slow disk delays no request about a lock for longer than [`LIMIT`]. If a line
//! cannot be written, the server goes on, reports it at `/readyz` and in its metrics, and later writes how many lines
//! are missing. Only an eviction is not carried out if its line cannot be written.

mod log;

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold::clock::{Moment, timeout};
use leasehold::env::Env;
use serde::Serialize;
use tokio::sync::{mpsc, oneshot};

use self::log::Log;
use crate::feed::FeedEvent;
use crate::problem::{Problem, ProblemType};
use crate::rates::Rates;

/// How long a request waits until its line is written, before it goes on or, if it must be recorded, fails.
const LIMIT: Duration = Duration::from_secs(1);
const REQUIRED_LIMIT: Duration = Duration::from_secs(5);
/// How many lines may wait for the disk.
const QUEUE: usize = 10_000;
/// How many refused requests are recorded: of one principal, and of all. Per second, and at once.
const REFUSED: (f64, f64) = (1.0, 10.0);
const ALL_REFUSED: (f64, f64) = (10.0, 100.0);
/// How many principals are named in the lines about refused requests that were not recorded.
const MAX_PRINCIPALS: usize = 1_000;
/// How often such lines are written.
pub(crate) const FLUSH_INTERVAL: Duration = Duration::from_secs(10);

/// The audit log.
#[derive(Debug)]
pub(crate) struct Audit {
    env: Env,
    queue: mpsc::Sender<Job>,
    health: Arc<Health>,
    refused: Rates<String>,
    all_refused: Rates<()>,
    /// How many refused requests of each principal were not recorded.
    omitted: Mutex<BTreeMap<String, u64>>,
}

/// A line for the writer.
#[derive(Debug)]
struct Job {
    /// A JSON object. Without it, only the lines that are missing are reported.
    text: Option<String>,
    /// Whether the request fails without the line. If not, a line that cannot be written is missing.
    is_required: bool,
    written: oneshot::Sender<bool>,
}

/// Whether lines can be written.
#[derive(Debug, Default)]
struct Health {
    is_failing: AtomicBool,
    /// How many lines are missing in the file.
    missing: AtomicU64,
}

/// A line about an event. It contains no ticket and no key.
#[derive(Serialize)]
struct Line<'a> {
    #[serde(flatten)]
    event: &'a FeedEvent,
    /// The principal that sent the request.
    principal: &'a str,
}

/// A line about lines that were not written.
#[derive(Serialize)]
struct Summary<'a> {
    /// `omitted`: there were too many refused requests of `principal`. `missing`: lines could not be written.
    #[serde(rename = "type")]
    kind: &'static str,
    count: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    principal: Option<&'a str>,
    at_us: u64,
}

impl Audit {
    /// Opens the log at `path`, or creates it with access only for its owner.
    ///
    /// # Errors
    /// It cannot be opened or read.
    pub(crate) fn open(path: &Path, env: &Env) -> io::Result<Self> {
        let log = Log::open(path)?;
        let (queue, jobs) = mpsc::channel(QUEUE);
        let health = Arc::new(Health::default());
        let writer = Writer { log, env: env.clone(), health: health.clone() };
        std::thread::Builder::new().name("leasehold-audit".to_owned()).spawn(move || writer.write(jobs))?;
        Ok(Self {
            env: env.clone(),
            queue,
            health,
            refused: Rates::new(REFUSED.0, REFUSED.1),
            all_refused: Rates::new(ALL_REFUSED.0, ALL_REFUSED.1),
            omitted: Mutex::default(),
        })
    }

    /// Records an event that `principal` caused. The line is in the queue when this function returns. The future returns
    /// whether it was written.
    pub(crate) fn record(&self, event: &FeedEvent, principal: &str) -> impl Future<Output = bool> + use<> {
        let written = self.send(Some(text(&Line { event, principal })), false);
        let (clock, health) = (self.env.clock.clone(), self.health.clone());
        async move {
            // Do not wait for a disk that does not respond.
            let limit = if health.is_failing.load(Ordering::Relaxed) { Duration::ZERO } else { LIMIT };
            let written = timeout(&*clock, limit, written).await;
            if written.is_none() {
                health.is_failing.store(true, Ordering::Relaxed);
            }
            written.is_some_and(|written| written == Ok(true))
        }
    }

    /// Records what `principal` is about to do.
    ///
    /// # Errors
    /// The line was not written, so it must not be done.
    pub(crate) async fn require(&self, event: &FeedEvent, principal: &str) -> Result<(), Problem> {
        let written = self.send(Some(text(&Line { event, principal })), true);
        match timeout(&*self.env.clock, REQUIRED_LIMIT, written).await {
            Some(Ok(true)) => Ok(()),
            _ => Err(Problem::new(
                ProblemType::NotAudited,
                "the audit log cannot be written, so the lock was not changed",
            )
            .with_help("the log of the server has the error; free space on the disk of the audit log")),
        }
    }

    /// Records a request of `principal` that was refused at `now`, unless there are too many of them.
    pub(crate) fn refused(&self, event: &FeedEvent, principal: &str, now: Moment) {
        if self.refused.take(principal.to_owned(), now) && self.all_refused.take((), now) {
            drop(self.send(Some(text(&Line { event, principal })), false));
            return;
        }
        let mut omitted = self.omitted();
        let is_named = omitted.contains_key(principal) || omitted.len() < MAX_PRINCIPALS;
        *omitted.entry(if is_named { principal } else { "" }.to_owned()).or_default() += 1;
    }

    fn omitted(&self) -> MutexGuard<'_, BTreeMap<String, u64>> {
        self.omitted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes how many refused requests were not recorded. Returns when the writer has written everything before.
    pub(crate) async fn flush(&self) {
        let at_us = self.env.now().wall_us();
        for (principal, count) in std::mem::take(&mut *self.omitted()) {
            let principal = Some(&*principal).filter(|principal| !principal.is_empty());
            let summary = text(&Summary { kind: "omitted", count, principal, at_us });
            drop(self.send(Some(summary), false));
        }
        let _ = timeout(&*self.env.clock, LIMIT, self.send(None, true)).await;
    }

    /// Returns whether the log can be written. If it could not be written before, tries again.
    pub(crate) async fn is_writable(&self) -> bool {
        if self.health.is_failing.load(Ordering::Relaxed) {
            return matches!(timeout(&*self.env.clock, LIMIT, self.send(None, true)).await, Some(Ok(true)));
        }
        true
    }

    /// Sends a line to the writer. If the queue is full, the line is missing.
    fn send(&self, text: Option<String>, is_required: bool) -> oneshot::Receiver<bool> {
        let (written, response) = oneshot::channel();
        if self.queue.try_send(Job { text, is_required, written }).is_err() {
            self.health.failed(!is_required);
        }
        response
    }
}

impl Health {
    /// Records that a line could not be written. Returns whether this is the first one.
    fn failed(&self, is_missing: bool) -> bool {
        self.missing.fetch_add(u64::from(is_missing), Ordering::Relaxed);
        !self.is_failing.swap(true, Ordering::Relaxed)
    }
}

/// The thread that writes the lines.
struct Writer {
    log: Log,
    env: Env,
    health: Arc<Health>,
}

impl Writer {
    /// Writes lines until the audit log is dropped.
    fn write(mut self, mut jobs: mpsc::Receiver<Job>) {
        while let Some(Job { text, is_required, written }) = jobs.blocking_recv() {
            let is_missing = text.is_some() && !is_required;
            let result = self.append(text, is_required);
            if let Err(error) = &result
                && self.health.failed(is_missing)
            {
                tracing::error!(%error, "the audit log cannot be written");
            }
            // The request may have ended.
            let _ = written.send(result.is_ok());
        }
    }

    fn append(&mut self, line: Option<String>, is_required: bool) -> io::Result<()> {
        let is_failing = self.health.is_failing.load(Ordering::Relaxed);
        let missing = self.health.missing.load(Ordering::Relaxed);
        // After a failure, this line also shows whether the file can be written again.
        if missing > 0 || (is_failing && line.is_none()) {
            let at_us = self.env.now().wall_us();
            let summary = text(&Summary { kind: "missing", count: missing, principal: None, at_us });
            self.log.append(&summary, false)?;
            self.health.missing.fetch_sub(missing, Ordering::Relaxed);
        }
        if let Some(line) = line {
            self.log.append(&line, is_required)?;
        }
        if is_failing {
            self.health.is_failing.store(false, Ordering::Relaxed);
            tracing::warn!(missing, "the audit log can be written again");
        }
        Ok(())
    }
}

fn text(line: &impl Serialize) -> String {
    // This does not fail, because JSON can represent all values in a line.
    serde_json::to_string(line).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use leasehold::LockName;
    use serde_json::Value;
    use tempfile::TempDir;

    use super::log::tests::chained;
    use super::*;

    struct Folder {
        root: TempDir,
        path: PathBuf,
    }

    impl Folder {
        fn new() -> Self {
            let root = tempfile::tempdir().unwrap();
            fs::create_dir(root.path().join("logs")).unwrap();
            let path = root.path().join("logs/audit.jsonl");
            Self { root, path }
        }

        /// Makes the log unwritable, or writable again.
        fn move_from(&self, from: &str, to: &str) {
            fs::rename(self.root.path().join(from), self.root.path().join(to)).unwrap();
        }

        fn lines(&self) -> Vec<Value> {
            chained(&[&self.path])
        }
    }

    fn event(kind: &'static str) -> FeedEvent {
        FeedEvent::new(kind, &LockName::new("x").unwrap())
    }

    fn at(seconds: u64) -> Moment {
        Moment::from_raw(seconds * 1_000_000_000, (seconds * 1_000_000_000).cast_signed())
    }

    #[tokio::test]
    async fn missing_lines_are_counted_and_the_log_recovers() {
        let folder = Folder::new();
        let audit = Audit::open(&folder.path, &Env::system()).unwrap();
        assert!(audit.record(&event("acquired"), "ci").await && audit.is_writable().await);
        folder.move_from("logs", "moved");
        assert!(!audit.record(&event("released"), "ci").await && !audit.is_writable().await);
        let problem = audit.require(&event("evicting"), "ops").await.unwrap_err();
        assert_eq!((problem.word(), problem.status().as_u16()), ("not-audited", 503));
        audit.record(&event("acquired"), "ci").await;
        assert!(!audit.is_writable().await);
        folder.move_from("moved", "logs");
        assert!(audit.is_writable().await, "a probe tries again");
        audit.require(&event("evicting"), "ops").await.unwrap();
        let lines = folder.lines();
        let kinds: Vec<_> = lines.iter().map(|line| line["type"].as_str().unwrap()).collect();
        assert_eq!(kinds, ["acquired", "missing", "evicting"]);
        assert_eq!((&lines[1]["count"], &lines[0]["principal"]), (&2.into(), &"ci".into()));
    }

    #[tokio::test]
    async fn refused_requests_are_recorded_at_a_bounded_rate() {
        let folder = Folder::new();
        let audit = Audit::open(&folder.path, &Env::system()).unwrap();
        for _ in 0..1_000 {
            audit.refused(&event("refused"), "mallory", at(1));
        }
        audit.refused(&event("refused"), "ci", at(1));
        audit.flush().await;
        let (lines, summary) = (folder.lines().len(), folder.lines().pop().unwrap());
        assert_eq!(lines, 10 + 1 + 1);
        assert_eq!((&summary["type"], &summary["principal"]), (&"omitted".into(), &"mallory".into()));
        assert_eq!(summary["count"], 990);
        // Many principals together do not write more.
        for number in 0..10_000 {
            audit.refused(&event("refused"), &format!("m{number}"), at(1));
        }
        audit.flush().await;
        let (all, counted) = (folder.lines(), |line: &Value| line["count"].as_u64().unwrap_or(1));
        assert_eq!(all.len() - lines, 89 + MAX_PRINCIPALS + 1);
        assert_eq!(all[lines..].iter().map(counted).sum::<u64>(), 10_000);
    }
}
