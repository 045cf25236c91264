//! `leasehold ls [PREFIX]`: lists locks.

use std::fmt::Write as _;
use std::io::{Write as _, stdout};
use std::time::Duration;

use futures_util::StreamExt as _;
use leasehold::view::StateView;
use leasehold::{ErrorKind, LockName, Locker, Status};

use crate::args::LsArgs;
use crate::context::{self, Context};
use crate::exit::{FAILED, Failure};
use crate::output::{columns, human, json, print, print_unless_closed, size};

/// Number of locks to inspect concurrently.
const CONCURRENCY: usize = 8;
/// The shortest interval of `--watch`.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(100);

/// The locks with a prefix.
#[derive(Debug, Default)]
struct Listing {
    locks: Vec<Status>,
    /// Why records were skipped: they are damaged, or a newer version wrote them.
    skipped: Vec<String>,
}

pub(super) async fn ls(context: &Context, args: LsArgs) -> Result<u8, Failure> {
    let prefix = context::prefix(args.prefix.as_deref())?;
    if args.watch.is_some() && context.output.json {
        return Err(Failure::usage("--watch cannot be used with --json")
            .with_help("run `leasehold ls --json` again for each look"));
    }
    let locker = context::open(&context.store()?).await?;
    let output = &context.output;
    if let Some(interval) = args.watch {
        let states = args.state.clone();
        return watch(context, &locker, prefix, &states, interval.max(SHORTEST_INTERVAL)).await;
    }
    let mut reported = 0;
    let listing = list(&locker, prefix, &args.state, |listing| {
        for skipped in &listing.skipped[reported..] {
            output.warning(skipped);
        }
        reported = listing.skipped.len();
        if output.json {
            for status in listing.locks.drain(..) {
                print(&format!("{}\n", json::lock(&status)))?;
            }
        }
        Ok(())
    })
    .await?;
    if !listing.locks.is_empty() {
        print(&table(context, &listing.locks))?;
    } else if listing.skipped.is_empty() && !output.json && !output.quiet {
        // Explain the empty output on stderr, because programs read stdout.
        let _ = writeln!(std::io::stderr(), "{}", none(&args.state));
    }
    if !listing.skipped.is_empty() {
        let message = format!("{} of the records could not be read", listing.skipped.len());
        return Err(Failure::new(FAILED, ErrorKind::Corrupt.as_str(), message));
    }
    Ok(0)
}

/// Lists the locks in one of `states`, or in any if there are none. Calls `read` after each lock.
async fn list(
    locker: &Locker,
    prefix: &str,
    states: &[StateView],
    mut read: impl FnMut(&mut Listing) -> Result<(), Failure>,
) -> Result<Listing, Failure> {
    let inspect = async |name: leasehold::Result<LockName>| {
        let name = name?;
        let status = locker.inspect(&name).await;
        leasehold::Result::Ok((name, status))
    };
    let mut statuses = locker.list(prefix).map(inspect).buffered(CONCURRENCY);
    let mut listing = Listing::default();
    while let Some(outcome) = statuses.next().await {
        let (name, status) = outcome?;
        match status {
            Ok(status) if states.is_empty() || states.contains(&StateView::of(&status.state)) => {
                listing.locks.push(status);
            }
            Ok(_) => {}
            Err(error) if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Unsupported) => {
                listing.skipped.push(format!("skipped lock `{name}`: {error}"));
            }
            Err(error) => return Err(error.into()),
        }
        read(&mut listing)?;
    }
    Ok(listing)
}

/// Lists the locks again and again. On a terminal, each table replaces the one before. A store that does not respond after
/// the first look is reported, and asked again.
async fn watch(
    context: &Context,
    locker: &Locker,
    prefix: &str,
    states: &[StateView],
    interval: Duration,
) -> Result<u8, Failure> {
    let clock = context::clock(locker);
    let mut is_first = true;
    loop {
        let text = match list(locker, prefix, states, |_| Ok(())).await {
            Ok(listing) => {
                let mut text = match listing.locks.is_empty() {
                    true => format!("{}\n", none(states)),
                    false => table(context, &listing.locks),
                };
                for skipped in &listing.skipped {
                    let _ = writeln!(text, "warning: {skipped}");
                }
                text
            }
            Err(failure) if is_first => return Err(failure),
            Err(failure) => human::error(&failure, context.output.colors_on_stdout()),
        };
        if let Some((lines, _)) = size(&stdout()).filter(|_| is_first) {
            // What is on the screen scrolls away instead of being overwritten.
            print(&"\n".repeat(lines))?;
        }
        is_first = false;
        let head = format!("{}, every {}", human::time(Some(clock.now().wall_us())), human::span(interval));
        if !print_unless_closed(&frame(&head, &text))? {
            return Ok(0);
        }
        clock.sleep(interval).await;
    }
}

/// Returns one look: on a terminal the whole screen, else a table after an empty line.
fn frame(head: &str, text: &str) -> String {
    let Some((lines, width)) = size(&stdout()) else { return format!("{head}\n{text}\n") };
    let total = text.lines().count();
    let room = lines.saturating_sub(3);
    let mut shown: Vec<&str> = text.lines().take(room.max(1)).collect();
    let more = (total > shown.len()).then(|| format!("... and {} more lines", total - shown.len()));
    shown.extend(more.as_deref());
    // To the upper left corner, then the lines, each without what stood there, then nothing below. This does not flicker.
    let head = human::cut(head, width);
    let lines = [&*head, ""].into_iter().chain(shown);
    lines.fold("\u{1b}[H".to_owned(), |text, line| format!("{text}{line}\u{1b}[K\n")) + "\u{1b}[J"
}

fn table(context: &Context, locks: &[Status]) -> String {
    human::table(locks, columns(&stdout()), context.output.colors_on_stdout())
}

fn none(states: &[StateView]) -> String {
    let states: Vec<_> = states.iter().map(|state| state.as_str()).collect();
    if states.is_empty() { "no locks".to_owned() } else { format!("no locks are {}", states.join(" or ")) }
}
