//! One shape for each state, so that states do not differ only in colour.

use leasehold::doctor::CheckStatus;
use leasehold::view::StateView;
use maud::{Markup, html};

use super::format::capitalized;

pub(super) const STATES: [StateView; 5] =
    [StateView::Held, StateView::Lapsed, StateView::Reserved, StateView::Cooldown, StateView::Free];

/// Returns a state with its shape.
pub(super) fn badge(state: StateView) -> Markup {
    html! {
        span class={ "state " (state.as_str()) } { (shape(state)) (capitalized(state.as_str())) }
    }
}

/// Returns the outcome of a check with its shape.
pub(super) fn verdict(status: CheckStatus) -> Markup {
    let (class, title, path) = match status {
        CheckStatus::Passed => ("good", "Passed", "M2.5 8.5 6.3 12.3 13.5 4.2"),
        CheckStatus::Warning => ("warn", "Warning", "M8 1.8 15 14H1zM8 6.2v3.6M8 11.2v1.4"),
        CheckStatus::Failed => ("bad", "Failed", "M3 3l10 10M13 3 3 13"),
        CheckStatus::NotApplicable => ("free", "Not checked", "M3 8h10"),
    };
    html! {
        span class={ "state " (class) } {
            svg class="icon" viewBox="0 0 16 16" aria-hidden="true" {
                path d=(path) fill="none" stroke="currentColor" stroke-width="1.8" stroke-linejoin="round" {}
            }
            (title)
        }
    }
}

fn shape(state: StateView) -> Markup {
    html! {
        svg class="icon" viewBox="0 0 16 16" aria-hidden="true" {
            @match state {
                StateView::Held => {
                    path d="M5 7V5a3 3 0 0 1 6 0v2" fill="none" stroke="currentColor" stroke-width="1.8" {}
                    rect x="3" y="7" width="10" height="7" rx="1.5" fill="currentColor" {}
                }
                StateView::Free => {
                    circle cx="8" cy="8" r="5.2" fill="none" stroke="currentColor" stroke-width="1.6" {}
                }
                StateView::Reserved => {
                    circle cx="8" cy="8" r="5.2" fill="none" stroke="currentColor" stroke-width="1.6" {}
                    path d="M8 2.8a5.2 5.2 0 0 1 0 10.4z" fill="currentColor" {}
                }
                StateView::Cooldown => {
                    circle cx="8" cy="8" r="5.6" fill="none" stroke="currentColor" stroke-width="1.6" {}
                    path d="M8 4.8V8l2.2 1.6" fill="none" stroke="currentColor" stroke-width="1.6" {}
                }
                StateView::Lapsed => {
                    path d="M8 1.8 15 14H1z" fill="none" stroke="currentColor" stroke-width="1.6" stroke-linejoin="round" {}
                    path d="M8 6.2v3.6M8 11.2v1.4" stroke="currentColor" stroke-width="1.6" {}
                }
            }
        }
    }
}
