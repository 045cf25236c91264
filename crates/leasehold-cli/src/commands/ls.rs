//! `leasehold ls [PREFIX]`: lists locks.

use std::io::{Write as _, stdout};
use std::time::Duration;

use futures_util::StreamExt as _;
use leasehold::view::StateView;
use leasehold::{ErrorKind, LockName, Locker, Status};

use crate::args::{LsArgs, duration};
use crate::context::{self, Context};
use crate::exit::{FAILED, Failure};
use crate::output::{columns, human, json, print, print_unless_closed, size};
use crate::shell;

/// Number of locks to inspect concurrently.
const CONCURRENCY: usize = 8;
/// The interval of `--watch` without a value.
const DEFAULT_INTERVAL: Duration = Duration::from_secs(2);
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
    if args.watch == Some(None) && duration(prefix).is_ok() {
        let prefix = shell::quoted(prefix);
        return Err(Failure::usage(format!("{prefix} is a prefix of lock names here, not an interval"))
            .with_help(format!("for an interval: --watch={prefix}; for the prefix: --watch=2s {prefix}")));
    }
    let locker = context::open(&context.store()?).await?;
    let output = &context.output;
    if let Some(interval) = args.watch {
        let interval = interval.unwrap_or(DEFAULT_INTERVAL).max(SHORTEST_INTERVAL);
        return watch(context, &locker, prefix, &args.state, interval).await;
    }
    let mut reported = 0;
    let listing = list(&locker, prefix, &args.state, |listing| {
        for skipped in &listing.skipped[reported..] {
            output.warning(skipped);
        }
        reported = listing.skipped.len();
        if output.json {
            for status in listing.locks.drain(..) {
                if !print_unless_closed(&format!("{}\n", json::lock(&status)))? {
                    return Ok(false);
                }
            }
        }
        Ok(true)
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

/// Lists the locks in one of `states`, or in any if there are none. Calls `read` after each lock, until it returns false.
async fn list(
    locker: &Locker,
    prefix: &str,
    states: &[StateView],
    mut read: impl FnMut(&mut Listing) -> Result<bool, Failure>,
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
        if !read(&mut listing)? {
            break;
        }
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
        let began = clock.now();
        let text = match list(locker, prefix, states, |_| Ok(true)).await {
            Ok(listing) => {
                let mut text = match listing.locks.is_empty() {
                    true => format!("{}\n", none(states)),
                    false => table(context, &listing.locks),
                };
                for skipped in &listing.skipped {
                    text += &human::cut_lines(&format!("warning: {skipped}"), columns(&stdout()));
                }
                text
            }
            Err(failure) if is_first => return Err(failure),
            Err(failure) => human::cut_lines(&human::error(&failure, false), columns(&stdout())),
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
        clock.sleep(interval.saturating_sub(clock.now().shortest_since(began))).await;
    }
}

/// Returns one look: on a terminal the whole screen, else a table after an empty line.
fn frame(head: &str, text: &str) -> String {
    let Some((lines, width)) = size(&stdout()) else { return format!("{head}\n{text}\n") };
    let total = text.lines().count();
    // Without the head, the empty line, the number of lines that are left out, and the line of the cursor.
    let room = lines.saturating_sub(4);
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
