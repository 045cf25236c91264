//! Text for people. Text from other machines is printed without control characters.

use std::fmt::Write as _;
use std::time::Duration;

use jiff::Timestamp;
use leasehold::lease::printable;
use leasehold::view::StateView;
pub(crate) use leasehold::view::{span, span_up};
use leasehold::{AlreadyRan, Election, Holder, HolderInfo, Leader, LockName, State, Status};

use crate::exit::Failure;

/// What is shown of a name that was never seen.
pub(crate) const NO_RECORD: &str = "the store has no record of a lock of this name";

/// Returns `error: ...` and its `  help: ...` lines.
pub(crate) fn error(failure: &Failure, colors: bool) -> String {
    let (red, cyan, plain) =
        if colors { ("\u{1b}[1;31m", "\u{1b}[1;36m", "\u{1b}[0m") } else { ("", "", "") };
    let mut text = format!("{red}error:{plain} {}\n", failure.message);
    for help in &failure.help {
        let _ = writeln!(text, "  {cyan}help:{plain} {help}");
    }
    text
}

/// Returns `for deploy/prod: alice@ci-7 pid 4121 "make deploy", held 3m12s; third in line, behind bob@ci-8 pid 77`. If
/// that does not fit into `width` columns, leaves out the waiter ahead, then cuts the note.
///
/// It says nothing about the lease, which the holder renews unseen, unless the holder is no process.
pub(crate) fn waiting(name: &str, held: &HolderInfo, width: Option<usize>) -> String {
    let mut times = String::new();
    if let Some(time) = held.held_for.filter(|_| !held.in_cooldown) {
        let _ = write!(times, ", held {}", span(time));
    }
    if let Some(limit) = held.max_hold() {
        let _ = write!(times, ", limit {}", span(limit));
    }
    if let Some(time) = held.free_for {
        let _ = write!(times, ", free for {}", span(time));
    }
    let left = match held {
        HolderInfo { reserved: true, .. } => Some("reserved for"),
        HolderInfo { in_cooldown: true, .. } => Some("ends in"),
        _ if held.is_by_ticket() => Some("lease"),
        _ => None,
    };
    if let Some((left, within)) = left.zip(held.lapses_within) {
        let _ = write!(times, ", {left} <= {}", span_up(within));
    }
    let behind = held.waiter_ahead.as_ref().map(without_note);
    let (place, behind) = match (held.ahead.map(|ahead| ordinal(ahead + 1)), behind) {
        (Some(place), Some(behind)) => (format!("; {place} in line"), format!(", behind {behind}")),
        (Some(place), None) => (format!("; {place} in line"), String::new()),
        (None, Some(behind)) => (String::new(), format!("; in line behind {behind}")),
        (None, None) => Default::default(),
    };
    let line =
        |held: &HolderInfo, behind: &str| format!("for {name}: {}{times}{place}{behind}", holder(held));
    let full = line(held, &behind);
    let Some(width) = width.filter(|width| !fits(&full, *width)) else { return full };
    let without = line(held, "");
    if fits(&without, width) {
        return without;
    }
    let mut held = held.clone();
    let note = held.holder.as_mut().and_then(|holder| holder.note.take());
    let bare = line(&held, "");
    // A space, two quotes and the mark of the cut.
    let room = width.saturating_sub(bare.chars().count() + 4);
    if let (Some(holder), Some(note)) = (&mut held.holder, note.filter(|_| room > 0)) {
        holder.note = Some(note.chars().take(room).chain(['\u{2026}']).collect());
    }
    cut(&line(&held, ""), width)
}

fn fits(text: &str, width: usize) -> bool {
    text.chars().count() <= width
}

/// Cuts `text` at `width` columns.
pub(crate) fn cut(text: &str, width: usize) -> String {
    if fits(text, width) {
        return text.to_owned();
    }
    text.chars().take(width.saturating_sub(1)).chain(['\u{2026}']).collect()
}

/// Cuts each line of `text` at `width` columns, and ends it with a line break.
pub(crate) fn cut_lines(text: &str, width: Option<usize>) -> String {
    let line = |line: &str| width.map_or_else(|| line.to_owned(), |width| cut(line, width)) + "\n";
    text.lines().map(line).collect()
}

/// Returns `first`, `second`, `third`, `4th`.
fn ordinal(place: usize) -> String {
    match (place, place % 100, place % 10) {
        (1, ..) => "first".to_owned(),
        (2, ..) => "second".to_owned(),
        (3, ..) => "third".to_owned(),
        (_, 11..=13, _) => format!("{place}th"),
        (_, _, 1) => format!("{place}st"),
        (_, _, 2) => format!("{place}nd"),
        (_, _, 3) => format!("{place}rd"),
        _ => format!("{place}th"),
    }
}

/// Returns `for deploy/prod: no response from the store for 3s, giving up in 12s`
pub(crate) fn unanswered(name: &str, passed: Duration, left: Option<Duration>) -> String {
    let text = format!("for {name}: no response from the store for {}", span(passed));
    match left {
        None | Some(Duration::ZERO) => text,
        Some(left) => format!("{text}, giving up in {}", span_up(left)),
    }
}

/// Returns `for processes that the command left running, killing them in 8s`
pub(crate) fn leftovers(left: Duration) -> String {
    format!("for processes that the command left running, killing them in {}", span_up(left))
}

/// Returns `nightly already ran 3m ago (alice@ci-7), next run in <= 57m`
pub(crate) fn already_ran(name: &LockName, ran: &AlreadyRan) -> String {
    let mut text = format!("{name} already ran");
    if let Some(ago) = ran.ago {
        let _ = write!(text, " {} ago", span(ago));
    }
    if let Some(by) = &ran.by {
        let _ = write!(text, " ({})", without_process(by));
    }
    if let Some(left) = ran.again_within {
        let _ = write!(text, ", next run in <= {}", span_up(left));
    }
    text
}

/// Describes the holder: `alice@ci-7 pid 4121 "make deploy"`.
pub(crate) fn holder(held: &HolderInfo) -> String {
    let mut held = held.clone();
    (held.token, held.held_for) = (None, None);
    held.to_string()
}

fn without_note(holder: &Holder) -> Holder {
    let mut holder = holder.clone();
    holder.note = None;
    holder
}

/// Returns `alice@ci-7`.
fn without_process(holder: &Holder) -> String {
    let text = without_note(holder).to_string();
    text.strip_suffix(&format!(" pid {}", holder.pid)).unwrap_or(&text).to_owned()
}

/// Returns a table of locks. Cuts the holders at `width` columns.
pub(crate) fn table(locks: &[Status], width: Option<usize>, colors: bool) -> String {
    let mut rows = vec![["LOCK", "STATE", "HELD", "LEASE", "WAITERS", "HOLDER"].map(str::to_owned)];
    for status in locks {
        let held = status.state.holder();
        let dash = || "-".to_owned();
        rows.push([
            status.name.to_string(),
            StateView::of(&status.state).as_str().to_owned(),
            held.filter(|held| !held.in_cooldown).and_then(held_and_limit).unwrap_or_else(dash),
            held.filter(|_| !matches!(status.state, State::Lapsed(_)))
                .and_then(|held| held.lapses_within)
                .map_or_else(dash, |left| format!("<= {}", span_up(left))),
            if status.waiters.is_empty() { dash() } else { status.waiters.len().to_string() },
            held.map_or_else(dash, |held| match &held.last_holder {
                Some(last) if held.in_cooldown => format!("after {last}"),
                _ => holder(held),
            }),
        ]);
    }
    let text = cut_lines(&aligned(&rows), width);
    if !colors {
        return text;
    }
    // The state is the second column.
    let before = 2 + rows.iter().map(|row| row[0].chars().count()).max().unwrap_or(0);
    let states = locks.iter().map(|status| Some(StateView::of(&status.state)));
    let rows = text.lines().zip(std::iter::once(None).chain(states));
    rows.map(|(line, state)| format!("{}\n", colored(line, before, state))).collect()
}

/// Colors the state that begins in column `before` of a line, or the whole line if it is the header.
fn colored(line: &str, before: usize, state: Option<StateView>) -> String {
    let Some(state) = state else { return format!("\u{1b}[1m{line}\u{1b}[0m") };
    let color = match state {
        StateView::Held => "1;32",
        StateView::Lapsed => "1;31",
        StateView::Reserved | StateView::Cooldown => "1;33",
        StateView::Free => "2",
    };
    let name: String = line.chars().take(before).collect();
    let rest: String = line.chars().skip(before).collect();
    match rest.strip_prefix(state.as_str()) {
        Some(after) => format!("{name}\u{1b}[{color}m{}\u{1b}[0m{after}", state.as_str()),
        None => line.to_owned(),
    }
}

/// Returns `1h3m, limit 2h`: how long a lock has been held, and how long it may be.
fn held_and_limit(held: &HolderInfo) -> Option<String> {
    let limit = held.max_hold().map(|limit| format!("limit {}", span(limit)));
    let parts: Vec<_> = held.held_for.map(span).into_iter().chain(limit).collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

/// Returns all details of one lock, with `state` instead of its state if that is given.
pub(crate) fn lock(status: &Status, state: Option<&str>) -> String {
    let mut rows = vec![["lock", status.name.as_str()].map(str::to_owned)];
    let mut row = |key: &str, value: String| rows.push([key.to_owned(), value]);
    row("state", state.unwrap_or(StateView::of(&status.state).as_str()).to_owned());
    if let Some(held) = status.state.holder().filter(|held| held.in_cooldown) {
        if let Some(last) = &held.last_holder {
            row("after", last.to_string());
        }
        if let Some(left) = held.lapses_within {
            row("ends in", format!("<= {}", span_up(left)));
        }
    } else if let Some(held) = status.state.holder() {
        row("holder", holder(held));
        if let Some(value) = held.holder.as_ref().and_then(|holder| holder.value.as_deref()) {
            row("value", printable(value, Election::MAX_VALUE));
        }
        if let Some(held) = held_and_limit(held) {
            row("held", held);
        }
        if let Some(age) = held.free_for {
            row("free", span(age));
        }
        match (&status.state, held.lapses_within, held.lapsed_for) {
            (State::Lapsed(_), _, Some(ago)) => row("lease", format!("lapsed for {}", span(ago))),
            (State::Lapsed(_), ..) => row("lease", "lapsed".to_owned()),
            (_, Some(left), _) => row("lease", format!("<= {}", span_up(left))),
            _ => {}
        }
    }
    if let Some(token) = status.latest_token() {
        row("token", token.to_string());
    }
    for (n, waiter) in status.waiters.iter().enumerate() {
        let waited =
            waiter.waited.map_or_else(String::new, |waited| format!(", waiting for {}", span(waited)));
        let holds = held_meanwhile(&waiter.holder);
        row(&format!("waiter {}", n + 1), format!("{}{waited}{holds}", waiter.holder));
    }
    aligned(&rows)
}

/// Returns `, holds a and b`: the locks that a waiter holds while it waits.
fn held_meanwhile(waiter: &Holder) -> String {
    let names: Vec<_> = waiter.holds().iter().map(|lock| lock.name.as_str()).collect();
    if names.is_empty() { String::new() } else { format!(", holds {}", names.join(" and ")) }
}

/// Describes the leader: `alice@ci-7 pid 4121 "./serve", term 7, value http://10.0.0.7:8080`.
pub(crate) fn leader(leader: Option<&Leader>) -> String {
    let Some(leader) = leader else { return "no leader".to_owned() };
    match &leader.value {
        Some(value) => format!("{leader}, value {}", printable(value, Election::MAX_VALUE)),
        None => leader.to_string(),
    }
}

/// Returns a table of the most recent ended grants, newest first.
pub(crate) fn history(status: &Status) -> String {
    if status.history.is_empty() {
        return match status.token {
            Some(_) => format!("no grant of {} has ended yet\n", status.name),
            None => format!("{NO_RECORD}\n"),
        };
    }
    let mut rows = vec![["TOKEN", "END", "FROM", "UNTIL", "HOLDER"].map(str::to_owned)];
    for past in &status.history {
        let mut holder = past.holder.to_string();
        if let Some(why) = &past.evicted {
            holder.push_str(&format!(", evicted by {why}"));
        }
        rows.push([
            past.token.to_string(),
            past.end.as_str().to_owned(),
            time(past.from_us),
            time(past.until_us),
            holder,
        ]);
    }
    aligned(&rows)
}

/// Formats a time on the store's clock, or `-` if it is unknown.
pub(crate) fn time(us: Option<u64>) -> String {
    let seconds = us.and_then(|us| i64::try_from(us / 1_000_000).ok());
    let time = seconds.and_then(|seconds| Timestamp::from_second(seconds).ok());
    time.map_or_else(|| "-".to_owned(), |time| time.to_string())
}

fn aligned<const N: usize>(rows: &[[String; N]]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(widths) {
            let _ = write!(line, "{cell:<width$}  ");
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use leasehold::Token;

    use super::*;

    #[test]
    fn positions_are_ordinal_numbers() {
        let places = [1, 2, 3, 4, 11, 12, 13, 21, 22, 23, 64].map(ordinal);
        let expected =
            ["first", "second", "third", "4th", "11th", "12th", "13th", "21st", "22nd", "23rd", "64th"];
        assert_eq!(places, expected);
    }

    #[test]
    fn the_waiting_line_matches_its_documentation() {
        let mut holder = Holder::new("alice", "ci-7", 4121);
        holder.note = Some("make deploy".into());
        let mut held = HolderInfo::default();
        held.holder = Some(holder);
        held.token = Token::new(1_763_654_400_000_041);
        held.held_for = Some(Duration::from_secs(192));
        held.lapses_within = Some(Duration::from_secs(18));
        let line = waiting("deploy/prod", &held, None);
        assert_eq!(line, "for deploy/prod: alice@ci-7 pid 4121 \"make deploy\", held 3m12s");
        let place = |held: &HolderInfo| waiting("x", held, None).split_once("; ").unwrap().1.to_owned();
        let mut bob = Holder::new("bob\n", "ci-8", 77);
        bob.note = Some("make test".into());
        held.waiter_ahead = Some(bob);
        assert_eq!(place(&held), "in line behind bob\u{fffd}@ci-8 pid 77", "on etcd");
        held.ahead = Some(2);
        assert_eq!(place(&held), "third in line, behind bob\u{fffd}@ci-8 pid 77");
        let narrow = |width| waiting("deploy/prod", &held, Some(width));
        assert_eq!(
            narrow(78),
            "for deploy/prod: alice@ci-7 pid 4121 \"make deploy\", held 3m12s; third in line"
        );
        assert_eq!(
            narrow(75),
            "for deploy/prod: alice@ci-7 pid 4121 \"make dep\u{2026}\", held 3m12s; third in line"
        );
        assert_eq!(narrow(66), "for deploy/prod: alice@ci-7 pid 4121, held 3m12s; third in line");
        assert_eq!(narrow(20), "for deploy/prod: al\u{2026}");
        (held.ahead, held.waiter_ahead) = (Some(0), None);
        assert_eq!(place(&held), "first in line");
        (held.reserved, held.free_for) = (true, held.held_for.take());
        let line = waiting("deploy/prod", &held, None);
        assert!(line.ends_with(", free for 3m12s, reserved for <= 18s; first in line"), "{line}");
        (held.reserved, held.free_for) = (false, None);
        let passed = Duration::from_millis(3_100);
        let unanswered = |left: Option<u64>| unanswered("x", passed, left.map(Duration::from_millis));
        assert_eq!(unanswered(Some(11_900)), "for x: no response from the store for 3s, giving up in 12s");
        assert_eq!(unanswered(Some(0)), "for x: no response from the store for 3s");
        assert_eq!(unanswered(None), "for x: no response from the store for 3s");
        let mut ran = AlreadyRan::default();
        let name = LockName::new("nightly").unwrap();
        assert_eq!(already_ran(&name, &ran), "nightly already ran");
        ran.by = held.holder;
        ran.ago = Some(Duration::from_secs(180));
        ran.again_within = Some(Duration::from_secs(3_420));
        assert_eq!(already_ran(&name, &ran), "nightly already ran 3m ago (alice@ci-7), next run in <= 57m");
    }
}
