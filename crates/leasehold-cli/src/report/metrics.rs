//! `--metrics-file FILE`: the last run as metrics, for the textfile collector of Prometheus' node_exporter. Cron jobs end
//! before Prometheus can scrape them.

use std::fmt::Write as _;
use std::path::PathBuf;

use leasehold::clock::{Clock as _, SystemClock};

use super::{Kind, Report, check, replace};
use crate::exit::Failure;

/// The folder of the metrics is often one to which several users write.
pub(super) const METRICS: Kind = Kind { what: "metrics", may_be_link: false };
const SUCCESS: &str = "leasehold_last_success_timestamp_seconds";

/// The file to which the metrics are written.
#[derive(Debug)]
pub(crate) struct MetricsFile {
    file: PathBuf,
    /// The lock as named on the command line. The name of a permit differs from run to run.
    lock: String,
}

impl MetricsFile {
    /// Checks that the metrics can be written.
    pub(crate) fn new(file: PathBuf, lock: String) -> Result<Self, Failure> {
        check(&file, &METRICS)?;
        Ok(Self { file, lock })
    }

    /// Writes the metrics of `report`. The time of the last success stays in the file after a run that failed.
    pub(crate) fn write(&self, report: &Report) -> Result<(), Failure> {
        let now = seconds(SystemClock.now().wall_us() / 1_000);
        let succeeded = report.outcome == "exited" && report.exit_code == 0;
        let success = if succeeded { Some(now.clone()) } else { self.last_success() };
        replace(&self.file, self.text(report, now, success).as_bytes(), &METRICS)
    }

    fn label(&self) -> String {
        // A lock's name has no control characters.
        self.lock.replace('\\', "\\\\").replace('"', "\\\"")
    }

    fn last_success(&self) -> Option<String> {
        let start = format!("{SUCCESS}{{lock=\"{}\"}} ", self.label());
        // A pipe would have to be opened by a writer first.
        self.file.symlink_metadata().ok().filter(std::fs::Metadata::is_file)?;
        let text = std::fs::read_to_string(&self.file).ok()?;
        let value = text.lines().find_map(|line| line.strip_prefix(&start))?;
        value.parse::<f64>().is_ok_and(f64::is_finite).then(|| value.to_owned())
    }

    fn text(&self, report: &Report, now: String, success: Option<String>) -> String {
        let lost = u8::from(report.outcome == "lost");
        let outcome = format!(",outcome=\"{}\"", report.outcome);
        let gauges = [
            ("last_run_timestamp_seconds", "When the last run ended.", Some(now)),
            ("last_success_timestamp_seconds", "When the command last exited with 0.", success),
            ("last_run_exit_code", "The exit code of leasehold.", Some(report.exit_code.to_string())),
            ("last_run_outcome", "How the last run ended, as in --report.", Some("1".to_owned())),
            ("last_run_lost", "Whether the last run lost the lock.", Some(lost.to_string())),
            (
                "last_run_acquire_duration_seconds",
                "How long the last run waited for the lock.",
                report.waited_ms.map(seconds),
            ),
            (
                "last_run_hold_duration_seconds",
                "How long the last run held the lock.",
                report.held_ms.map(seconds),
            ),
        ];
        let lock = self.label();
        let mut text = String::new();
        for (name, help, value) in gauges {
            let Some(value) = value else { continue };
            let more = if name == "last_run_outcome" { &*outcome } else { "" };
            let name = format!("leasehold_{name}");
            // Writing to a string does not fail.
            let _ = write!(
                text,
                "# HELP {name} {help}\n# TYPE {name} gauge\n{name}{{lock=\"{lock}\"{more}}} {value}\n"
            );
        }
        text
    }
}

/// Formats milliseconds as seconds.
fn seconds(ms: u64) -> String {
    format!("{}.{:03}", ms / 1_000, ms % 1_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_success_stays_after_a_failure() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("nightly.prom");
        let name = "a\"b\\c".to_owned();
        let metrics = MetricsFile::new(path.clone(), name).unwrap();
        let report = |outcome: &str, exit_code| Report {
            outcome: outcome.to_owned(),
            exit_code,
            waited_ms: Some(1_005),
            ..Report::default()
        };
        let write = |report| {
            metrics.write(&report).unwrap();
            std::fs::read_to_string(&path).unwrap()
        };
        let labels = "{lock=\"a\\\"b\\\\c\"";
        assert!(!write(report("exited", 1)).contains(SUCCESS));
        let good = write(report("exited", 0));
        let waited = format!("leasehold_last_run_acquire_duration_seconds{labels}}} 1.005\n");
        assert!(good.contains(&waited), "{good}");
        let line = |text: &str| text.lines().find(|line| line.starts_with(SUCCESS)).unwrap().to_owned();
        let lost = write(report("lost", 122));
        assert_eq!(line(&lost), line(&good));
        assert!(lost.contains(&format!("leasehold_last_run_lost{labels}}} 1\n")), "{lost}");
        assert!(lost.contains(&format!("last_run_outcome{labels},outcome=\"lost\"}} 1\n")), "{lost}");
        std::fs::write(&path, line(&good).replace(|c: char| c.is_ascii_digit(), "x")).unwrap();
        assert!(!write(report("held", 123)).contains(SUCCESS), "a value that is not a number is dropped");
    }
}
