//! The latest grants of a lock as a picture: one row for each holder, time from left to right.

use leasehold::Holder;
use leasehold::lease::End;
use leasehold::view::{LockDetail, StateView};
use maud::{Markup, html};

use super::format::{span, time};
use super::parts::{grant, text};

/// Maximum number of rows. If there are more holders, the remaining ones share the last row.
const ROWS: usize = 6;
const ROW: u64 = 34;
const AXIS: u64 = 22;

struct Bar {
    row: usize,
    from: f64,
    width: f64,
    class: &'static str,
    title: String,
}

/// Returns the picture. Positions are percentages, so that text keeps its size on small screens.
pub(super) fn timeline(detail: &LockDetail, now_us: u64) -> Markup {
    let held = detail
        .lock
        .held_by
        .as_ref()
        .filter(|_| matches!(detail.lock.state, StateView::Held | StateView::Lapsed));
    let current = held.and_then(|held| {
        let from_us = now_us.saturating_sub(held.held_ms? * 1_000);
        Some((held.holder.as_ref()?, held.token?, from_us))
    });
    // The clock of the store may differ from the clock of this server, so the picture ends with the last end of a
    // grant.
    let last = detail.history.iter().filter_map(|past| past.until_us).max().unwrap_or(now_us);
    let end = if current.is_some() { now_us.max(last) } else { last };
    let firsts = detail.history.iter().filter_map(|past| past.from_us);
    let Some(begin) = firsts.chain(current.map(|(_, _, from)| from)).min() else { return html! {} };
    let length = end.saturating_sub(begin).max(1_000_000) as f64;
    let at = |us: u64| us.saturating_sub(begin) as f64 * 100.0 / length;

    let mut rows: Vec<String> = Vec::new();
    let mut row_of = |person: &Holder| {
        let name = match person.host.as_str() {
            "" => text(&person.name),
            host => format!("{}@{}", text(&person.name), text(host)),
        };
        let found = rows.iter().position(|row| *row == name);
        found.unwrap_or_else(|| {
            if rows.len() < ROWS {
                rows.push(name);
            } else if let Some(last) = rows.last_mut() {
                "other holders".clone_into(last);
            }
            rows.len() - 1
        })
    };
    let mut bars = Vec::new();
    if let Some((holder, token, from_us)) = current {
        let class = if detail.lock.state == StateView::Lapsed { "now lapsed" } else { "now" };
        let title =
            format!("token {token}, {}, {}, now", text(&holder.name), span((end - from_us.min(end)) / 1_000));
        bars.push(Bar { row: row_of(holder), from: at(from_us), width: 100.0 - at(from_us), class, title });
    }
    for past in &detail.history {
        let (Some(from), Some(until)) = (past.from_us, past.until_us) else { continue };
        let (row, title) = (row_of(&past.holder), grant(past));
        bars.push(Bar { row, from: at(from), width: at(until) - at(from), class: past.end.as_str(), title });
    }
    let height = rows.len() as u64 * ROW + AXIS;
    let axis = rows.len() as u64 * ROW;
    html! {
        figure class="timeline" {
            svg width="100%" height=(height) role="img" aria-label="Who held the lock, and when. The table below has the same data." {
                @for (at, name) in rows.iter().enumerate() {
                    @let y = at as u64 * ROW;
                    rect class="lane" x="0" y=(y + 18) width="100%" height="12" rx="2" {}
                    text class="label" x="0" y=(y + 13) { (name) }
                }
                @for bar in &bars {
                    rect class=(bar.class) x={ (format!("{:.2}", bar.from.min(99.6))) "%" } y=(bar.row as u64 * ROW + 18)
                        width={ (format!("{:.2}", bar.width.clamp(0.4, 100.0))) "%" } height="12" rx="2" {
                        title { (bar.title) }
                    }
                }
                line class="axis" x1="0" x2="100%" y1=(axis + 2) y2=(axis + 2) {}
                @for (at, anchor) in [(0, "start"), (50, "middle"), (100, "end")] {
                    @let us = begin + end.saturating_sub(begin) / 100 * at;
                    line class="axis" x1={ (at) "%" } x2={ (at) "%" } y1=(axis - 2) y2=(axis + 6) {}
                    text class="tick" x={ (at) "%" } y=(axis + 19) text-anchor=(anchor) {
                        @match at {
                            100 if current.is_some() => "now",
                            _ if current.is_some() => { (span(now_us.saturating_sub(us) / 1_000)) " ago" },
                            50 => "",
                            _ => (time(us)),
                        }
                    }
                }
            }
            figcaption class="legend" {
                @if current.is_some() { span class="now" { "held now" } }
                @for end in [End::Released, End::Lapsed, End::Evicted, End::Limit] {
                    @if detail.history.iter().any(|past| past.end == end) { span class=(end.as_str()) { (end.as_str()) } }
                }
                span class="muted" { (span((length / 1_000.0) as u64)) " in total" }
            }
        }
    }
}
