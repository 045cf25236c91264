//! Each rule, on a handwritten history that keeps it and on one that breaks it.

use super::*;

/// A handwritten history in which every rule is promised.
#[derive(Default)]
struct Events(String);

impl Events {
    fn event(mut self, what: &str, (from, until): (u64, u64), more: &str) -> Self {
        self.0 += &format!("{{\"what\":\"{what}\",\"from\":{from},\"until\":{until}{more}}}\n");
        self
    }

    fn about(self, what: &str, grant: &str, token: u64, span: (u64, u64)) -> Self {
        self.event(what, span, &format!(",\"lock\":\"l\",\"grant\":\"{grant}\",\"token\":{token}"))
    }

    /// Adds a grant that is checked twice.
    fn held(self, grant: &str, token: u64, first: u64, last: u64) -> Self {
        self.about("granted", grant, token, (first - 5, first))
            .about("checked", grant, token, (first, first + 10))
            .about("checked", grant, token, (last, last + 10))
    }

    fn counter(self, what: &str, number: u64, token: u64, accepted: bool, value: u64) -> Self {
        let more = format!(
            ",\"lock\":\"l\",\"number\":{number},\"token\":{token},\"accepted\":{accepted},\"value\":{value}"
        );
        self.event(what, (1, 2), &more)
    }

    /// Adds a read of a register.
    fn seen(self, who: &str, span: (u64, u64), state: &str) -> Self {
        self.event("seen", span, &format!(",\"who\":\"{who}\",\"register\":\"r\",\"state\":{state}"))
    }

    /// Adds a write, with its outcome if it is not empty.
    fn change(self, who: &str, number: u64, span: (u64, u64), change: [&str; 2], outcome: &str) -> Self {
        let [over, to] = change;
        let is = format!(",\"who\":\"{who}\",\"change\":{number}");
        let sent = format!("{is},\"register\":\"r\",\"over\":{over},\"to\":{to}");
        let events = self.event("sent", (span.0, span.0), &sent);
        if outcome.is_empty() {
            return events;
        }
        events.event("answered", span, &format!("{is},\"outcome\":\"{outcome}\""))
    }

    fn fault(self, kind: &str, target: &str, span: (u64, u64)) -> Self {
        self.event("fault", span, &format!(",\"kind\":\"{kind}\",\"target\":\"{target}\""))
    }

    fn verdict(self) -> Verdict {
        let rules: Vec<String> = Rule::ALL.iter().map(|rule| format!("\"{}\"", rule.name())).collect();
        let run = Events::default().event(
            "run",
            (0, 0),
            &format!(",\"promises\":[{}],\"failover_grace_ms\":50", rules.join(",")),
        );
        judge(&(run.0 + &self.0))
    }

    fn broken(self) -> Vec<Rule> {
        self.verdict().broken.into_iter().map(|finding| finding.rule).collect()
    }
}

#[test]
fn holders_after_one_another_are_fine() {
    let events = Events::default().held("a", 1, 100, 200).held("b", 2, 211, 300).held("c", 5, 320, 400);
    assert_eq!(events.broken(), []);
}

#[test]
fn two_holders_at_once_are_found() {
    let events = Events::default().held("a", 0, 100, 300).held("b", 0, 150, 200);
    assert_eq!(events.broken(), [Rule::OneHolder]);
}

#[test]
fn two_holders_whose_times_cross_are_found() {
    let events = Events::default().held("a", 0, 100, 300).held("b", 0, 150, 400);
    assert_eq!(events.broken(), [Rule::OneHolder, Rule::OneHolder], "each within the other's time");
}

#[test]
fn grants_that_may_be_sequential_are_no_violation() {
    // The second holder's check may have come after both of the first holder's, because the intervals overlap.
    let events = Events::default().held("a", 1, 100, 200).about("granted", "b", 2, (100, 205)).about(
        "checked",
        "b",
        2,
        (205, 206),
    );
    assert_eq!(events.broken(), []);
}

#[test]
fn holders_of_different_locks_are_not_compared() {
    let events = Events::default()
        .held("a", 1, 100, 300)
        .event("granted", (110, 120), ",\"lock\":\"m\",\"grant\":\"b\",\"token\":1")
        .event("checked", (120, 130), ",\"lock\":\"m\",\"grant\":\"b\",\"token\":1");
    assert_eq!(events.broken(), []);
}

#[test]
fn a_lower_token_that_is_valid_after_a_higher_one_is_found() {
    let events = Events::default().held("a", 7, 100, 200).held("b", 6, 300, 400);
    assert_eq!(events.broken(), [Rule::TokensRise]);
}

#[test]
fn a_stale_holder_whose_check_passes_is_found() {
    // The holder was stopped for long and does not know it. Its check passes after the successor's.
    let events =
        Events::default().held("a", 1, 100, 110).held("b", 2, 200, 210).about("checked", "a", 1, (300, 310));
    assert_eq!(events.broken(), [Rule::OneHolder, Rule::TokensRise]);
}

#[test]
fn the_same_token_twice_is_found() {
    let events = Events::default().held("a", 7, 100, 200).held("b", 7, 300, 400);
    assert_eq!(events.broken(), [Rule::TokensAreUnique]);
}

#[test]
fn a_lower_token_that_the_resource_accepts_is_found() {
    let events = Events::default().counter("read", 1, 5, true, 0).counter("write", 2, 4, true, 1);
    assert_eq!(events.broken(), [Rule::FenceHolds]);
    let events = Events::default().counter("read", 1, 5, true, 0).counter("write", 2, 4, false, 1);
    let verdict = events.verdict();
    assert_eq!((verdict.broken.len(), verdict.counts.refused), (0, 1));
}

#[test]
fn a_lost_addition_is_found() {
    let events = Events::default().counter("write", 1, 1, true, 1).counter("write", 3, 3, true, 2);
    assert_eq!(events.counter("write", 2, 2, true, 2).broken(), [Rule::CounterIsExact]);
}

#[test]
fn a_lock_that_is_not_granted_again_is_found() {
    let events = Events::default().held("a", 1, 100, 200).event("healed", (500, 510), "");
    assert_eq!(events.broken(), [Rule::GrantedAgain]);
    let events = Events::default().held("a", 1, 100, 200).event("healed", (150, 160), "");
    assert_eq!(events.held("b", 2, 300, 400).broken(), []);
}

#[test]
fn unreadable_lines_are_found() {
    let events = Events("{\"what\":\"granted\"}\nnonsense\n".to_owned());
    assert_eq!(events.broken(), [Rule::Readable, Rule::Readable]);
    // This check is of a grant that does not exist.
    assert_eq!(Events::default().about("checked", "a", 1, (1, 2)).broken(), [Rule::Readable]);
}

#[test]
fn violations_that_are_not_promised_are_only_observed() {
    let run = Events::default().event("run", (0, 0), ",\"promises\":[]");
    let verdict = judge(&run.held("a", 0, 100, 300).held("b", 0, 150, 200).0);
    assert_eq!((verdict.broken.len(), verdict.observed.len()), (0, 1));
}

#[test]
fn a_file_that_is_no_history_is_found() {
    for text in ["", "nonsense\n", &Events::default().held("a", 1, 100, 200).0] {
        assert!(judge(text).broken.iter().any(|finding| finding.rule == Rule::Readable), "{text}");
    }
}

#[test]
fn losses_and_takeovers_are_counted() {
    let events = Events::default()
        .held("a", 1, 100, 200)
        .about("lost", "a", 1, (250, 260))
        .held("b", 2, 300, 400)
        .about("over", "b", 2, (410, 420))
        .held("c", 3, 500, 600)
        .held("d", 4, 700, 800)
        .about("lost", "c", 3, (900, 910))
        .event("fault", (1, 2), ",\"kind\":\"holder killed\"");
    let counts = events.verdict().counts;
    assert_eq!((counts.grants, counts.losses, counts.takeovers), (4, 2, 2));
    assert_eq!((counts.known_first, counts.succeeded, counts.checks), (1, 2, 8));
    assert_eq!(counts.faults.get("holder killed"), Some(&1));
}

/// The states of the register in the histories below.
const NONE: &str = "null";
const A: &str = "\"0a\"";
const B: &str = "\"0b\"";

/// A process creates a register, and replaces its value.
fn replaced() -> Events {
    Events::default().change("w0.1", 1, (100, 110), [NONE, A], "applied").change(
        "w0.1",
        2,
        (120, 130),
        [A, B],
        "applied",
    )
}

const NEVER: [Rule; 2] = [Rule::Linearizable, Rule::LinearizableBetweenFailovers];

#[test]
fn a_register_whose_reads_are_stale_is_found() {
    assert_eq!(replaced().seen("w1.1", (140, 150), B).broken(), []);
    assert_eq!(replaced().seen("w1.1", (140, 150), A).broken(), NEVER);
    let other = replaced().event("seen", (140, 150), ",\"who\":\"w1.1\",\"register\":\"q\",\"state\":null");
    assert_eq!(other.broken(), [], "another register");
}

#[test]
fn each_process_waits_for_its_responses() {
    // The clock of a history is coarse, so the order of the events counts.
    let own = Events::default().change("w0.1", 1, (100, 110), [NONE, A], "applied");
    assert_eq!(own.seen("w0.1", (100, 110), NONE).broken(), NEVER);
    let before = Events::default().seen("w0.1", (100, 110), NONE);
    assert_eq!(before.change("w0.1", 1, (100, 110), [NONE, A], "applied").broken(), []);
}

#[test]
fn a_write_without_a_response_may_happen_and_a_refused_one_may_not() {
    for (outcome, broken) in [("", &[][..]), ("refused", &NEVER), ("conflict", &NEVER)] {
        let events = Events::default().change("w0.1", 1, (100, 110), [NONE, A], outcome);
        assert_eq!(events.seen("w1.1", (140, 150), A).broken(), broken, "{outcome}");
    }
}

#[test]
fn a_request_that_arrived_twice_may_conflict_with_itself() {
    let twice = || {
        let events = Events::default().change("w0.1", 1, (100, 110), [NONE, A], "conflict");
        events.seen("w1.1", (140, 150), A)
    };
    assert_eq!(twice().fault("second answer given", "w0", (90, 200)).broken(), []);
    assert_eq!(twice().fault("requests doubled", "w0", (90, 95)).broken(), NEVER, "before");
    assert_eq!(twice().fault("requests doubled", "w1", (90, 200)).broken(), NEVER, "another worker");
    assert_eq!(twice().fault("answers lost", "w0", (90, 200)).broken(), NEVER);
}

#[test]
fn a_failover_may_lose_writes_until_its_grace_is_over() {
    let lost = |from: u64| replaced().seen("w1.1", (from, from + 5), A);
    let failover =
        |events: Events, from: u64| events.fault("server killed", "server", (from, from + 50)).broken();
    assert_eq!(failover(lost(300), 200), [Rule::Linearizable]);
    assert_eq!(failover(lost(140), 200), NEVER, "it was lost before");
    assert_eq!(failover(lost(300).seen("w1.1", (310, 315), B), 200), NEVER, "then there is one state");
    assert_eq!(
        failover(lost(280).seen("w1.1", (285, 290), B), 200),
        [Rule::Linearizable],
        "the grace is not over"
    );
}
