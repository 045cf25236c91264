//! The subcommands, one file each.

mod acquire;
mod agent;
mod completions;
mod doctor;
mod elect;
mod evict;
mod get;
mod help;
mod history;
mod init;
mod ls;
mod man;
mod once;
mod put;
mod release;
mod renew;
mod resize;
mod run;
#[cfg(feature = "serve")]
mod serve;
mod show;
mod sweep;
#[cfg(feature = "serve")]
mod terraform;
mod ticket;
mod update;
mod wait;

use std::ffi::OsString;
use std::os::unix::net::UnixStream;

use clap::error::ErrorKind;
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{SignalKind, signal};

use crate::args::{Cli, Subcommand};
use crate::child;
use crate::config::Settings;
use crate::context::Context;
use crate::exit::{Exit, FAILED, Failure};
use crate::output::Output;
use crate::words;

/// Runs the subcommand in `arguments`, and returns how leasehold ends.
pub(crate) fn dispatch(arguments: &[OsString]) -> Exit {
    let cli = match Cli::parse_words(arguments) {
        Ok(cli) => cli,
        Err(error) => return explain(error, arguments).into(),
    };
    let output = Output { json: wants_json(cli.common.json), ..Output::default() };
    let context = match cli.subcommand {
        // The errors about wrong settings refer to `help`.
        Subcommand::Completions(_) | Subcommand::Man(_) | Subcommand::Help(_) => {
            Ok(Context::without_settings(cli.common))
        }
        _ => Settings::load().and_then(|settings| Context::new(cli.common, settings)),
    };
    let context = match context {
        Ok(context) => context,
        Err(failure) => {
            output.failure(&failure);
            return failure.exit();
        }
    };
    if let Some(warning) = context.settings.warning().filter(|_| !context.output.quiet) {
        context.output.warning(&warning);
    }
    execute(&context, cli.subcommand).unwrap_or_else(|failure| {
        context.output.failure(&failure);
        failure.exit()
    })
}

fn execute(context: &Context, subcommand: Subcommand) -> Result<Exit, Failure> {
    match subcommand {
        // The server starts its log itself.
        #[cfg(feature = "serve")]
        Subcommand::Serve(_) => {}
        _ => context.start_log(),
    }
    match subcommand {
        Subcommand::Run(args) => on(run_runtime(), run::run(context, args)),
        Subcommand::Once(args) => on(run_runtime(), once::once(context, args)),
        Subcommand::Elect(args) => on(run_runtime(), elect::elect(context, args)),
        Subcommand::Acquire(args) => on(small_runtime(), acquire::acquire(context, args)),
        Subcommand::Renew(args) => on(small_runtime(), renew::renew(context, args)),
        Subcommand::Release(args) => on(small_runtime(), release::release(context, args)),
        Subcommand::Ls(args) => on(small_runtime(), ls::ls(context, args)),
        Subcommand::Show(args) => on(small_runtime(), show::show(context, args)),
        Subcommand::History(args) => on(small_runtime(), history::history(context, args)),
        Subcommand::Wait(args) => on(small_runtime(), wait::wait(context, args)),
        Subcommand::Evict(args) => on(small_runtime(), evict::evict(context, args)),
        Subcommand::Resize(args) => on(run_runtime(), resize::resize(context, args)),
        Subcommand::Sweep(args) => on(small_runtime(), sweep::sweep(context, args)),
        Subcommand::Get(args) => on(small_runtime(), get::get(context, args)),
        Subcommand::Update(args) => on(small_runtime(), update::update(context, args)),
        Subcommand::Put(args) => on(small_runtime(), put::put(context, args)),
        #[cfg(feature = "serve")]
        Subcommand::Terraform(args) => on(run_runtime(), terraform::terraform(context, args)),
        Subcommand::Agent => on(run_runtime(), agent::agent(context)),
        #[cfg(feature = "serve")]
        Subcommand::Serve(args) => serve::serve(context, args, started(serve_runtime())?),
        Subcommand::Init => on(small_runtime(), init::init(context)),
        Subcommand::Doctor(args) => on(run_runtime(), doctor::doctor(context, &args)),
        Subcommand::Completions(args) => completions::completions(&args).map(Exit::from),
        Subcommand::Man(args) => man::man(&args).map(Exit::from),
        Subcommand::Help(args) => help::help(&args).map(Exit::from),
    }
}

/// Checks for the descriptors and the thread without which starting a runtime would panic.
fn check_limits() -> std::io::Result<()> {
    let _descriptors = [UnixStream::pair()?, UnixStream::pair()?, UnixStream::pair()?, UnixStream::pair()?];
    // Its end does not matter.
    drop(std::thread::Builder::new().spawn(|| {})?.join());
    Ok(())
}

/// Creates the runtime for subcommands that run a command. One worker thread renews the lease, even if the main thread
/// is busy or blocked by a terminal.
fn run_runtime() -> std::io::Result<Runtime> {
    check_limits()?;
    Builder::new_multi_thread().worker_threads(1).enable_all().build()
}

/// Creates the runtime for the server, whose requests use all processors.
#[cfg(feature = "serve")]
fn serve_runtime() -> std::io::Result<Runtime> {
    check_limits()?;
    Builder::new_multi_thread().enable_all().build()
}

/// Creates the runtime for the other subcommands. It starts fastest.
fn small_runtime() -> std::io::Result<Runtime> {
    check_limits()?;
    Builder::new_current_thread().enable_all().build()
}

/// Runs `subcommand` on the main thread, where `run` must start its command.
fn on<T: Into<Exit>>(
    runtime: std::io::Result<Runtime>,
    subcommand: impl Future<Output = Result<T, Failure>>,
) -> Result<Exit, Failure> {
    let runtime = started(runtime)?;
    let outcome = runtime.block_on(subcommand);
    // Do not wait for a thread that may hang in a name lookup or on stdin.
    runtime.shutdown_background();
    outcome.map(Into::into)
}

fn started(runtime: std::io::Result<Runtime>) -> Result<Runtime, Failure> {
    let failed = |error| {
        Failure::new(FAILED, "failed", format!("cannot start: {error}")).with_help(
            "increase the limits of open files (ulimit -n) and of processes (ulimit -u, pids of a container)",
        )
    };
    let runtime = runtime.map_err(failed)?;
    let context = runtime.enter();
    // If the parent process ignores SIGCHLD, this process ignores it too, and the kernel discards the exit codes of
    // children. The handler remains for the life of the process. Programs that this process executes have the default.
    let child_ended = signal(SignalKind::child()).map_err(failed)?;
    drop(context);
    runtime.spawn(child::reap_orphans(child_ended));
    Ok(runtime)
}

/// Returns whether errors before the start of the subcommand are printed as JSON.
fn wants_json(flag: bool) -> bool {
    Settings::switch(flag, "json").unwrap_or_default()
}

/// Prints the usage error, the help or the version, and returns the exit code.
fn explain(mut error: clap::Error, arguments: &[OsString]) -> u8 {
    words::suggest(&mut error);
    let json = wants_json(arguments.iter().take_while(|word| *word != "--").any(|word| word == "--json"));
    let shows_help = matches!(
        error.kind(),
        ErrorKind::DisplayHelp
            | ErrorKind::DisplayVersion
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    );
    if json && !shows_help {
        let text = error.render().to_string();
        let mut paragraphs = text.trim().split("\n\n");
        let message = paragraphs.next().unwrap_or_default().trim_start_matches("error: ");
        let mut failure = Failure::usage(message);
        failure.help = paragraphs.map(|help| help.trim().to_owned()).collect();
        Output { json, ..Output::default() }.failure(&failure);
        return failure.code;
    }
    // A closed output is not an error.
    let _ = error.print();
    u8::try_from(error.exit_code()).unwrap_or(FAILED)
}
