//! The context of every subcommand: settings, output and store.

use std::ffi::OsStr;
use std::sync::Arc;
use std::time::Duration;

use clap::ValueEnum as _;
use leasehold::clock::{Clock, SystemClock, timeout};
use leasehold::lease::StoreOptions;
use leasehold::observe::{Event, Observer};
use leasehold::url::StoreUrl;
use leasehold::{ErrorKind, LockName, Locker};

use crate::args::{ColorChoice, CommandArgs, Common};
use crate::config::{Settings, Store};
use crate::default_store;
use crate::exit::{FAILED, Failure};
use crate::log::{LogLayer, log_to_stderr};
use crate::output::{Output, human};
use crate::shell;
use crate::wait_progress::WaitProgress;

#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) settings: Settings,
    pub(crate) output: Output,
    common: Common,
}

impl Context {
    pub(crate) fn new(common: Common, settings: Settings) -> Result<Self, Failure> {
        let color = settings.pick(common.color, "color", |text| ColorChoice::from_str(text, true))?;
        let output = Output {
            json: Settings::switch(common.json, "json")?,
            quiet: Settings::switch(common.quiet, "quiet")?,
            color: color.unwrap_or_default(),
            verbose: common.verbose > 0,
        };
        Ok(Self { settings, output, common })
    }

    /// Creates the context of a subcommand that needs no settings, so that it works with wrong ones.
    pub(crate) fn without_settings(common: Common) -> Self {
        let output = Output {
            json: common.json,
            quiet: common.quiet,
            color: common.color.unwrap_or_default(),
            verbose: common.verbose > 0,
        };
        Self { settings: Settings::default(), output, common }
    }

    /// Writes the log to stderr, with `-v`.
    pub(crate) fn start_log(&self) {
        if self.output.verbose {
            self.start_log_of_server(None);
        }
    }

    /// Writes the log to stderr, and warnings even without `-v`. `spans` receives the spans.
    pub(crate) fn start_log_of_server(&self, spans: Option<LogLayer>) {
        let level = match self.common.verbose {
            0 => "warn",
            1 => "debug",
            _ => "trace",
        };
        log_to_stderr(level, self.output, spans);
    }

    /// Returns the store from the option, the environment or config.toml.
    pub(crate) fn store(&self) -> Result<Store, Failure> {
        self.settings.store(self.store_option())
    }

    /// Returns the value of the option `--store`.
    pub(crate) fn store_option(&self) -> Option<String> {
        self.common.store.clone()
    }

    /// Returns the store from the option only.
    pub(crate) fn explicit_store(&self) -> Result<Option<Store>, Failure> {
        self.common.store.is_some().then(|| self.store()).transpose()
    }
}

/// Opens `store`.
pub(crate) async fn open(store: &Store) -> Result<Locker, Failure> {
    open_with(store, StoreOptions::default()).await
}

async fn open_with(store: &Store, options: StoreOptions) -> Result<Locker, Failure> {
    Locker::open_with(&store.url, options).await.map_err(|error| match error.kind() {
        ErrorKind::Unavailable => {
            let message = format!("the store {} cannot be opened: {error}", store.shown());
            Failure { help: error.help().to_vec(), ..unavailable(message) }
        }
        _ => error.into(),
    })
}

/// Opens `store`, unless it is the one in memory, whose locks exclude no other process.
async fn open_shared(store: &Store, options: StoreOptions) -> Result<Locker, Failure> {
    let locker = open_with(store, options).await?;
    if StoreUrl::parse(&store.url).is_ok_and(|url| url.scheme() == "mem") {
        let message = "a lock in `mem:` exists only in this process, so it excludes no other process";
        return Err(Failure::new(FAILED, ErrorKind::Invalid.as_str(), message)
            .with_help("use a store that other processes can open: `leasehold help stores` lists them"));
    }
    Ok(locker)
}

/// How much longer than its limit opening a store may take.
const GRACE: Duration = Duration::from_secs(1);

/// Opens `store` for the lock `name`, and shows the wait for a slow store. Gives up after `limit`.
pub(crate) async fn open_for(
    name: &LockName,
    store: &Store,
    limit: Option<Duration>,
    output: &Output,
) -> Result<Locker, Failure> {
    // Shows no limit, because the store may give up earlier.
    let progress = WaitProgress::new(name.clone(), Arc::new(SystemClock));
    let mut options = StoreOptions::default();
    options.open_timeout = limit.unwrap_or(options.open_timeout);
    let deadlocks = Arc::new(Deadlocks(*output));
    let opened = async {
        let locker = open_shared(store, options).await?;
        default_store::announce(store, output);
        Ok(locker.observed_by(deadlocks))
    };
    let opened = progress.show_during(output, opened);
    let Some(limit) = limit else { return opened.await };
    // The store gives up by itself, with the cause. Opening a file may hang.
    timeout(&SystemClock, limit + GRACE, opened).await.unwrap_or_else(|| {
        let (shown, limit) = (store.shown(), human::span(limit));
        Err(unavailable(format!("lock `{name}`: the store {shown} did not respond within {limit}")))
    })
}

/// Prints the cycles of waiters in which this process waits on. The one that gives up prints an error.
#[derive(Debug)]
struct Deadlocks(Output);

impl Observer for Deadlocks {
    fn observe(&self, event: &Event<'_>) {
        if let Event::Deadlock { cycle, fails: false, .. } = event
            && !self.0.quiet
        {
            self.0.warning(&format!("deadlock: {cycle}"));
        }
    }
}

fn unavailable(message: String) -> Failure {
    Failure::new(FAILED, ErrorKind::Unavailable.as_str(), message)
}

/// Returns the clock that the locks of `locker` use.
pub(crate) fn clock(locker: &Locker) -> Arc<dyn Clock> {
    locker.store().env().clock.clone()
}

/// Parses a prefix of lock names given on the command line.
pub(crate) fn prefix(given: Option<&OsStr>) -> Result<&str, Failure> {
    let given = given.unwrap_or_default();
    given
        .to_str()
        .ok_or_else(|| Failure::usage(format!("the prefix {:?} is not UTF-8", given.to_string_lossy())))
}

/// Returns the `--store` option that selects `store` on a command line, or an empty string for the default store.
pub(crate) fn store_flag(store: &Store) -> String {
    store.given.as_deref().map_or_else(String::new, |given| format!(" -s {}", shell::quoted(given)))
}

/// The note about a command. Other processes see it, so by default it contains only the name, because arguments may
/// hold secrets.
#[derive(Clone, Debug)]
pub(crate) struct Note {
    /// `make …`
    pub(crate) name: String,
    /// `make deploy`
    pub(crate) command_line: String,
}

impl Note {
    pub(crate) fn of(command: &CommandArgs) -> Self {
        let words: Vec<_> = command.command.iter().map(|word| word.to_string_lossy()).collect();
        let program = match words.first() {
            // A shell line can begin with anything, such as an assignment that holds a secret.
            Some(_) if command.shell => "sh",
            Some(program) => program.rsplit('/').next().unwrap_or_default(),
            None => "",
        };
        let more = if command.shell || words.len() > 1 { " \u{2026}" } else { "" };
        Self {
            name: format!("{program}{more}").chars().take(120).collect(),
            command_line: words.join(" ").chars().take(120).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_has_no_arguments_unless_requested() {
        let note = |shell, words: &[&str]| {
            let command = words.iter().map(Into::into).collect();
            Note::of(&CommandArgs { shell, command, ..CommandArgs::default() })
        };
        let curl = note(false, &["/usr/bin/curl", "-H", "Authorization: hunter2"]);
        assert_eq!(curl.name, "curl \u{2026}");
        assert_eq!(curl.command_line, "/usr/bin/curl -H Authorization: hunter2");
        assert_eq!(note(false, &["./report.sh"]).name, "report.sh");
        assert_eq!(note(true, &["TOKEN=hunter2 ./report.sh"]).name, "sh \u{2026}");
        assert_eq!(note(false, &[]).name, "");
    }
}
