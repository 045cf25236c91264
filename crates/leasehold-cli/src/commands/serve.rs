//! `leasehold serve`: serves the locks of a store over HTTP.

use std::path::Path;
use std::time::Duration;

use leasehold::lease::Id;
use leasehold::random::Random;
use leasehold_serve::{Access, Dashboard, ServeError, Server, Settings, Tls};
use rustix::fs::{FileType, fstat};
use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};
use serde_json::json;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;

use crate::args::{ServeArgs, Ui};
use crate::context::{self, Context};
use crate::exit::{Exit, FAILED, Failure};
#[cfg(feature = "otlp")]
use crate::otlp::Traces;
use crate::output::print;
use crate::signals::Signals;

/// Minimum length of a secret, in bytes.
const SECRET: usize = 32;

/// How many files the server opens at most that are not connections of clients to the API: connections to the store and
/// to the listener for metrics, and files.
const OTHER_FILES: u64 = 256;

/// How long the shutdown of the server may wait for the threads of its runtime.
const THREADS_TIMEOUT: Duration = Duration::from_secs(1);

pub(super) fn serve(context: &Context, args: ServeArgs, runtime: Runtime) -> Result<Exit, Failure> {
    #[cfg(feature = "otlp")]
    let traces = Traces::start()?;
    #[cfg(feature = "otlp")]
    let spans = traces.as_ref().map(Traces::layer);
    #[cfg(not(feature = "otlp"))]
    let spans = None;
    context.start_log_of_server(spans);
    let ended = runtime.block_on(run(context, args));
    // Cancels the remaining tasks. A span ends when its last task has ended, which may be shortly after the response.
    runtime.shutdown_timeout(THREADS_TIMEOUT);
    #[cfg(feature = "otlp")]
    if let Some(traces) = traces {
        traces.end();
    }
    ended
}

async fn run(context: &Context, args: ServeArgs) -> Result<Exit, Failure> {
    let store = context.store()?;
    let (access, operator) = match &args.access {
        Some(file) => (read_access(file)?, None),
        None => {
            let operator = random_text();
            (Access::local(&operator), Some(operator))
        }
    };
    let secret = match &args.secret_file {
        Some(file) => read_secret(file)?,
        None => random_text().into_bytes(),
    };
    let mut settings = Settings::new(args.listen, access, secret);
    settings.hosts = args.host;
    settings.insecure = args.insecure;
    (settings.audit, settings.metrics) = (args.audit, args.metrics);
    settings.max_connections = with_files(args.max_connections);
    settings.behind_proxy = args.behind_proxy;
    if let (Some(certificate), Some(key)) = (args.tls_cert, args.tls_key) {
        let tls = Tls::load(certificate, key, args.client_ca).map_err(|error| {
            Failure::usage(format!("TLS: {error}"))
                .with_help("--tls-cert, --tls-key and --client-ca must name PEM files")
        })?;
        settings.tls = Some(tls.into());
    }
    let scheme = if settings.tls.is_some() { "https" } else { "http" };
    settings.dashboard = match args.ui {
        Ui::Off => Dashboard::Off,
        Ui::Ro => Dashboard::ReadOnly,
        Ui::Rw => Dashboard::ReadWrite,
    };
    // Handle signals first, so that a signal during startup ends the server in the same way as a later one.
    let mut signals = Signals::ending().map_err(|error| {
        Failure::new(FAILED, "failed", format!("cannot install signal handlers: {error}"))
    })?;
    let locker = context::open(&store).await?;
    let url = locker.url().unwrap_or_default().to_owned();
    let server = Server::bind(locker, settings).await?;
    let address = format!("{scheme}://{}", server.address());
    let metrics = server.metrics_address().map(|address| format!("http://{address}/metrics"));
    if operator.is_some() && others_can_read_stdout() {
        context.output.warning(
            "other users can read the file that stdout is written to, which has the token for evictions: use `umask 077`",
        );
    }
    if context.output.json {
        let line = json!({ "type": "serving", "address": address, "store": url, "operator_token": operator, "metrics": metrics });
        print(&format!("{line}\n"))?;
    } else if !context.output.quiet {
        let mut text = format!("serving the locks of {url} on {address}\n");
        if let Some(operator) = operator {
            text.push_str(&format!("to sign in or to evict holders, use this token: {operator}\n"));
        }
        print(&text)?;
    }
    let (stopped, mut stopped_by) = oneshot::channel();
    let stop = async move {
        let _ = stopped.send(signals.next_ending().await);
    };
    server.run(stop).await?;
    Ok(match stopped_by.try_recv() {
        // Service managers stop a server with SIGTERM, so it has succeeded.
        Err(_) | Ok(Signal::TERM) => Exit::Code(0),
        Ok(signal) => Exit::By(signal),
    })
}

/// Returns whether stdout is a file that other users can read.
fn others_can_read_stdout() -> bool {
    fstat(std::io::stdout()).is_ok_and(|found| {
        FileType::from_raw_mode(found.st_mode) == FileType::RegularFile && found.st_mode & 0o077 != 0
    })
}

/// Returns how many connections the server can have, at most `wanted`. Each needs an open file. Raises the limit of this
/// process if necessary.
fn with_files(wanted: usize) -> usize {
    let limit = getrlimit(Resource::Nofile);
    let needed = u64::try_from(wanted).unwrap_or(u64::MAX).saturating_add(OTHER_FILES);
    if limit.current.is_none_or(|current| current >= needed) {
        return wanted;
    }
    let most = limit.maximum.map_or(needed, |maximum| needed.min(maximum));
    let raised = setrlimit(Resource::Nofile, Rlimit { current: Some(most), ..limit });
    let files = if raised.is_ok() { most } else { limit.current.unwrap_or(most) };
    if files >= needed {
        return wanted;
    }
    // Keep half of a small limit for other files.
    let found = usize::try_from(files.saturating_sub(OTHER_FILES).max(files / 2)).unwrap_or(wanted);
    tracing::warn!(
        "this process may open {files} files, so the server accepts {found} connections instead of {wanted}. Raise the \
limit: LimitNOFILE of systemd, ulimit -n"
    );
    found
}

/// Returns 128 random bits as text.
fn random_text() -> String {
    Id::random(&Random::from_os()).to_string()
}

fn read_access(file: &Path) -> Result<Access, Failure> {
    let text = std::fs::read_to_string(file).map_err(|error| unreadable("--access", file, &error))?;
    Access::parse(&text).map_err(|error| {
        Failure::usage(format!("the access file {}: {error}", file.display()))
            .with_help("docs/serve/access.md has an example")
    })
}

fn read_secret(file: &Path) -> Result<Vec<u8>, Failure> {
    let secret = std::fs::read(file).map_err(|error| unreadable("--secret-file", file, &error))?;
    if secret.trim_ascii().len() < SECRET {
        return Err(Failure::usage(format!(
            "the secret in {} has fewer than {SECRET} bytes",
            file.display()
        ))
        .with_help("to create one: openssl rand -hex 32 > FILE; chmod 600 FILE"));
    }
    Ok(secret.trim_ascii().to_vec())
}

fn unreadable(option: &str, file: &Path, error: &std::io::Error) -> Failure {
    Failure::usage(format!("{option}: cannot read {}: {error}", file.display()))
}

impl From<ServeError> for Failure {
    fn from(error: ServeError) -> Self {
        let failure = Self::new(FAILED, "failed", error.to_string());
        match error.help() {
            Some(help) => failure.with_help(help),
            None => failure,
        }
    }
}
