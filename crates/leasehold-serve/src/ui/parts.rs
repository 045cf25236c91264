//! Parts that several pages show.

use leasehold::lease::printable;
use leasehold::view::{HolderView, LockView, StateView, lasted_ms};
use leasehold::{Holder, LockName, PastGrant, Token};
use maud::{Markup, html};

use super::format::{link, span, took};
use super::icons;

/// How much of a text is shown.
const MAX_TEXT: usize = 300;

/// Removes characters that hide or reorder text from text of other parties.
pub(super) fn text(text: &str) -> String {
    printable(text, MAX_TEXT)
}

/// Returns a note. Addresses of the web become links.
pub(super) fn note(note: &str) -> Markup {
    let shown = text(note);
    // An address that is cut off leads elsewhere.
    let cut = shown.rfind(' ').map_or(0, |at| at + 1);
    let whole = if note.chars().nth(MAX_TEXT).is_some() { cut } else { shown.len() };
    html! {
        @for piece in shown[..whole].split_inclusive(' ') {
            @let word = piece.trim_end_matches([' ', '.', ',', ';', ':', '!', '?', ')', ']', '>', '"', '\'']);
            @let rest = &piece[word.len()..];
            @let begin = word.find("http").unwrap_or(0);
            @if is_address(&word[begin..]) {
                (&word[..begin])
                a href=(&word[begin..]) rel="noopener noreferrer nofollow" target="_blank" { (&word[begin..]) }
                (rest)
            } @else {
                (piece)
            }
        }
        (&shown[whole..])
    }
}

/// Returns whether `word` is an address of the web and nothing else. Other schemes can run scripts.
fn is_address(word: &str) -> bool {
    let rest = word.strip_prefix("https://").or_else(|| word.strip_prefix("http://"));
    let is_plain = |byte: u8| byte.is_ascii_graphic() && !br#"<>"'\`{}|^"#.contains(&byte);
    rest.is_some_and(|rest| {
        rest.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '[') && rest.bytes().all(is_plain)
    })
}

/// Returns a holder or a waiter with its note.
pub(super) fn person(person: &Holder) -> Markup {
    html! {
        (name(person))
        @if let Some(text) = &person.note { span class="note" { (note(text)) } }
        @for (n, lock) in person.holds().iter().enumerate() {
            span class="muted" { (if n == 0 { " holds " } else { " and " }) } (lock_link(lock.name.as_str()))
        }
    }
}

/// Returns a holder or a waiter without its note.
pub(super) fn name(person: &Holder) -> Markup {
    html! {
        span class="who" {
            b { (text(&person.name)) }
            @if !person.host.is_empty() { span class="muted" { "@" (text(&person.host)) } }
            @if !person.host.is_empty() || person.pid != 0 {
                span class="muted pid" {
                    @if person.pid == 0 { " by ticket" } @else { " pid " (person.pid) }
                }
            }
        }
    }
}

/// Returns the holder of a lock with its note.
pub(super) fn holder(lock: &LockView) -> Markup {
    let text =
        lock.held_by.as_ref().and_then(|held| held.holder.as_ref()).and_then(|holder| holder.note.as_deref());
    html! { (holder_alone(lock)) @if let Some(text) = text { span class="note" { (note(text)) } } }
}

/// Returns the holder of a lock without its note.
pub(super) fn holder_alone(lock: &LockView) -> Markup {
    html! {
        @match lock.held_by.as_ref() {
            Some(held) => {
                @if lock.state == StateView::Reserved { span class="muted" { "for " } }
                @if lock.state == StateView::Cooldown { span class="muted" { "last " } }
                @match (&held.holder, &held.foreign) {
                    (Some(holder), _) => (name(holder)),
                    (None, Some(foreign)) => span class="muted" { "unknown: " (text(foreign)) },
                    (None, None) => span class="muted" { "unknown" },
                }
            }
            None => span class="none" { "–" },
        }
    }
}

/// Returns a duration that keeps growing. The script continues to count it.
pub(super) fn passing(ms: u64) -> Markup {
    html! { span class="num" data-up=(ms) { (span(ms)) } }
}

/// Returns the remaining time of a lease, as a text and a bar that the script shortens as time passes. A full bar stands
/// for the whole lease. Without a record of its length, there is no bar.
pub(super) fn lease(lock: &LockView) -> Markup {
    let Some(HolderView { lapses_within_ms: Some(left), lease_ms, lapsed_ms, .. }) = lock.held_by else {
        return html! { span class="none" { "–" } };
    };
    let is_over = lock.state == StateView::Lapsed || left == 0;
    let after = match lock.state {
        StateView::Reserved => "reserved for ",
        StateView::Cooldown => "free in ",
        _ => "",
    };
    html! {
        span class={ "lease" @if is_over { " over" } } data-left=[(!is_over).then_some(left)] data-full=[lease_ms] data-before=(after) {
            @if let Some(full) = lease_ms.filter(|_| !is_over) {
                svg class="bar" aria-hidden="true" {
                    rect class="track" width="100%" height="100%" rx="2" {}
                    rect class="fill" width={ (left.saturating_mul(100).checked_div(full).unwrap_or(0).min(100)) "%" } height="100%" rx="2" {}
                }
            }
            span class="num left" {
                @match lapsed_ms {
                    Some(lapsed) if is_over => { "lapsed for " (passing(lapsed)) ", may be taken over" }
                    _ if is_over => "lapsed, may be taken over",
                    _ => { (after) (span(left)) @if after.is_empty() { " left" } }
                }
            }
        }
    }
}

/// Returns a token.
pub(super) fn token(token: Option<Token>) -> Markup {
    html! {
        @match token {
            Some(token) => span class="num" { (token) },
            None => span class="none" { "–" },
        }
    }
}

/// Returns the name of a lock, with a link to its page. Lines may break at its slashes.
pub(super) fn lock_link(name: &str) -> Markup {
    html! {
        a class="name" href=(link("lock", name)) data-focus=(name) {
            @for (at, segment) in name.split_inclusive('/').enumerate() {
                @if at > 0 { wbr; }
                (segment)
            }
        }
    }
}

/// Returns one sentence about a lock, which the script announces when the lock changes.
pub(super) fn sentence(lock: &LockView) -> String {
    let name = lock.held_by.as_ref().and_then(|held| held.holder.as_ref()).map(|holder| text(&holder.name));
    let name = name.as_deref().unwrap_or("an unknown holder");
    match lock.state {
        StateView::Free => format!("{} is free", lock.lock),
        StateView::Held => format!("{} is held by {name}", lock.lock),
        StateView::Reserved => format!("{} is reserved for {name}", lock.lock),
        StateView::Cooldown => format!("{} is in its cooldown", lock.lock),
        StateView::Lapsed => format!("{} has lapsed", lock.lock),
    }
}

/// Returns a notice about the locks whose records cannot be read, if there are any.
pub(super) fn unreadable(locks: &[LockName]) -> Markup {
    html! {
        @if !locks.is_empty() {
            p class="notice bad" {
                "These records cannot be read. They are damaged, or this server does not support them: "
                code { "leasehold show" } " says why."
                @for lock in locks { " " code { (lock) } }
            }
        }
    }
}

/// Returns the heading of a column.
pub(super) fn column(title: &str) -> Markup {
    html! { th scope="col" role="columnheader" { (title) } }
}

/// Returns for how long the lock has been held, and its limit if it has one.
pub(super) fn held_for(lock: &LockView) -> Markup {
    let held = lock.held_by.as_ref().filter(|held| !held.in_cooldown && !held.reserved);
    let limit = held.and_then(|held| held.holder.as_ref()?.max_hold_ms);
    html! {
        @match held.and_then(|held| held.held_ms) {
            Some(ms) => (passing(ms)),
            None => span class="none" { "–" },
        }
        @if let Some(limit) = limit { span class="muted" { ", limit " (span(limit)) } }
    }
}

/// Returns how many permits the semaphore or readers-writer lock has to which this lock belongs, if its record says it.
pub(super) fn permits(lock: &LockView) -> Markup {
    let size = lock.size.or_else(|| lock.held_by.as_ref()?.size);
    html! { @if let Some(size) = size { " " span class="muted permits" { "one of " (size) " permits" } } }
}

/// Returns whether the lock is held by a ticket, so that no process renews the lease by itself.
fn is_by_ticket(lock: &LockView) -> bool {
    lock.held_by.as_ref().and_then(|held| held.holder.as_ref()).is_some_and(|holder| holder.pid == 0)
}

/// Returns a state and its meaning, for the page of a lock.
pub(super) fn meaning(lock: &LockView) -> Markup {
    let text = match lock.state {
        StateView::Free => "The next process that requests the lock gets it.",
        StateView::Held if is_by_ticket(lock) => {
            "It is held until its lease ends, unless the holder renews it."
        }
        StateView::Held => "Its holder renews the lease while it works.",
        StateView::Reserved => "It is free, but reserved for the first waiter in the line for a short time.",
        StateView::Cooldown => "It was released, and is not granted before the cooldown ends.",
        StateView::Lapsed => {
            "Its holder has not renewed the lease in time. The next process that requests the lock takes it over."
        }
    };
    html! { (icons::badge(lock.state)) " " span class="muted" { (text) } }
}

/// Returns a short description of a grant, for its bar in the timeline.
pub(super) fn grant(past: &PastGrant) -> String {
    let lasted = lasted_ms(past).map(|ms| format!(", {}", took(ms))).unwrap_or_default();
    format!("token {}, {}{lasted}, {}", past.token, text(&past.holder.name), past.end.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_in_notes_are_links_and_everything_else_is_text() {
        let link = |to: &str| {
            format!("<a href=\"{to}\" rel=\"noopener noreferrer nofollow\" target=\"_blank\">{to}</a>")
        };
        let shown = |text: &str| note(text).into_string();
        assert_eq!(
            shown("see https://ci.example/4711?a=b."),
            format!("see {}.", link("https://ci.example/4711?a=b"))
        );
        assert_eq!(shown("(http://[::1]:80/x), ok"), format!("({}), ok", link("http://[::1]:80/x")));
        assert_eq!(shown("https://a/?x=1&y=2"), link("https://a/?x=1&amp;y=2"));
        for text in [
            "javascript:alert(1)",
            "data:text/html,x",
            "ftp://a/b",
            "http:alert(1)",
            "https:///x",
            "https://",
            "HTTPS://a",
            "https://a\u{202e}b",
            "https://a/<b>",
            "https://a/\"onmouseover=\"x",
            "javascript:alert('http://a')",
        ] {
            let found = shown(text);
            assert!(!found.contains("<a") || found.contains("href=\"http://a\""), "{found}");
            assert!(!found.contains("<b>") && !found.contains("\"onmouseover"), "{found}");
        }
        // A note that is cut off has no complete address.
        let long = format!("https://a/{}", "x".repeat(400));
        assert!(!shown(&long).contains("<a"), "{}", shown(&long));
    }
}
