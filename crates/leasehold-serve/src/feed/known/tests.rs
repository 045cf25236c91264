//! Tests of the order of listings and looks.

use super::*;
use serde_json::json;

fn at(seconds: u64) -> Moment {
    Moment::from_raw(seconds * 1_000_000_000, (seconds * 1_000_000_000).cast_signed())
}

fn look(name: &str, lapses_within_ms: u64, at: Moment) -> Look {
    let held = json!({ "lapses_within_ms": lapses_within_ms });
    let detail = json!({ "lock": name, "state": "held", "token": 1, "held_by": held });
    Look { detail: Arc::new(serde_json::from_value(detail).unwrap()), at }
}

fn name(text: &str) -> LockName {
    LockName::new(text).unwrap()
}

fn names(texts: &[&str]) -> Vec<LockName> {
    texts.iter().map(|text| name(text)).collect()
}

fn list(prefix: &str) -> Option<Step> {
    Some(Step::List(prefix.to_owned()))
}

/// Returns the state with a viewer of `prefix`, which has these locks: their names, when their leases end, and when
/// they were seen.
fn viewed(prefix: &str, locks: &[(&str, u64, u64)]) -> Known {
    let mut known = Known::default();
    known.join(prefix);
    known.list(prefix, names(&locks.iter().map(|(name, ..)| *name).collect::<Vec<_>>()), true, at(0));
    for (text, lapses_within_ms, seen) in locks {
        assert_eq!(known.record(&name(text), look(text, *lapses_within_ms, at(*seen))), Some(false));
    }
    known
}

#[test]
fn the_most_outdated_lock_is_next() {
    let mut known = viewed("", &[("a", 30_000, 0), ("b", 4_000, 1)]);
    let lock = |text: &str| Some(Step::Look(name(text)));
    assert_eq!(known.next(at(2)), lock("a"), "`b` was seen less than two seconds ago");
    assert_eq!(known.next(at(5)), lock("b"), "its lease ends soon");
    assert_eq!(known.next(at(1)), None);
    known.join("c");
    known.list("c", names(&["c"]), true, at(5));
    assert_eq!(known.next(at(5)), lock("c"), "it was not seen yet");
}

#[test]
fn a_lock_that_cannot_be_read_does_not_block_others() {
    let mut known = Known::default();
    known.join("");
    known.list("", names(&["bad", "good"]), true, at(0));
    known.record(&name("good"), look("good", 30_000, at(0)));
    let lock = |text: &str| Some(name(text));
    assert_eq!(known.outdated(at(3)), lock("bad"), "no read was tried yet");
    known.not_read(&name("bad"), false, at(3));
    assert_eq!(known.outdated(at(4)), lock("good"));
    known.record(&name("good"), look("good", 30_000, at(4)));
    assert_eq!(known.outdated(at(4)), None, "the interval applies to failed reads too");
    assert_eq!(known.outdated(at(5)), lock("bad"));
    known.not_read(&name("bad"), false, at(5));
    assert_eq!(known.outdated(at(6)), lock("good"));
    known.record(&name("bad"), look("bad", 30_000, at(6)));
    assert_eq!(known.locks[&name("bad")].failed, None);
}

#[test]
fn a_change_whose_read_failed_is_read_again_after_a_pause() {
    let mut known = viewed("", &[("bad", 30_000, 0)]);
    known.changed(name("bad"), at(1));
    assert_eq!(known.due(at(1)), Some(name("bad")));
    known.not_read(&name("bad"), false, at(1));
    known.changed(name("good"), at(1));
    for now in [1, 2] {
        assert_eq!(known.due(at(now)), Some(name("good")));
    }
    assert_eq!(known.due(at(3)), Some(name("bad")));
    assert_eq!(known.due(at(3)), Some(name("good")), "they take turns");
}

#[test]
fn changes_listings_and_outdated_locks_take_turns() {
    let mut known = viewed("", &[("a", 1, 0)]);
    for number in 0..10 {
        known.changed(name(&format!("changed-{number}")), at(1));
    }
    let steps: Vec<_> = (0..9).map(|_| known.next(at(60)).unwrap()).collect();
    let count = |wanted: &dyn Fn(&Step) -> bool| steps.iter().filter(|step| wanted(step)).count();
    assert_eq!(count(&|step| *step == Step::List(String::new())), 3);
    assert_eq!(count(&|step| *step == Step::Look(name("a"))), 3);
    for number in 0..3 {
        let changed = Step::Look(name(&format!("changed-{number}")));
        assert_eq!(count(&|step| *step == changed), 1, "they take turns too");
    }
}

#[test]
fn a_lock_that_this_server_changed_is_read_again() {
    let mut known = viewed("", &[("a", 1, 0)]);
    known.changed(name("a"), at(1));
    assert_eq!(known.record(&name("a"), look("a", 1, at(0))), None, "this look began before the change");
    assert_eq!(known.next(at(1)), Some(Step::Look(name("a"))));
    assert_eq!(known.record(&name("a"), look("a", 1, at(2))), Some(true));
    assert_eq!(known.due(at(2)), None);
    known.changed(name("b"), at(3));
    assert_eq!(known.record(&name("b"), look("b", 1, at(3))), Some(true), "it is new");
}

#[test]
fn the_number_of_watched_locks_is_limited() {
    let mut known = Known::default();
    for prefix in 0..20 {
        let prefix = format!("{prefix}/");
        known.join(&prefix);
        let names = (0..MAX_LOCKS / 10).map(|number| name(&format!("{prefix}{number}"))).collect();
        known.list(&prefix, names, true, at(0));
    }
    assert_eq!(known.locks.len(), MAX_LOCKS);
    assert!(known.covers("0/") && !known.covers("11/"));
    known.changed(name("11/1"), at(1));
    assert_eq!(known.locks.len(), MAX_LOCKS);
    known.leave("0/");
    known.list("11/", names(&["11/1"]), true, at(15));
    assert!(known.covers("11/"));
}

#[test]
fn a_prefix_is_listed_when_viewed_and_then_at_intervals() {
    let mut known = Known::default();
    assert_eq!(known.next(at(0)), None);
    known.join("a/");
    known.join("a/b");
    assert_eq!(known.next(at(0)), list("a/"), "it has the names of the other prefix");
    assert!(known.list("a/", Vec::new(), true, at(0)).is_empty());
    assert_eq!(known.next(at(14)), None);
    assert_eq!(known.next(at(15)), list("a/"));
    known.leave("a/");
    assert_eq!(known.next(at(14)), None, "its names were listed");
    assert_eq!(known.next(at(15)), list("a/b"));
}

#[test]
fn a_listing_that_failed_is_tried_again_and_holds_up_no_other() {
    let mut known = Known::default();
    known.join("a/");
    known.join("b/");
    known.list("b/", names(&["b/1"]), true, at(0));
    known.not_listed("a/", at(1));
    assert!(!known.covers("a/"));
    known.record(&name("b/1"), look("b/1", 30_000, at(1)));
    assert_eq!(known.next(at(2)), None);
    known.not_listed("b/", at(3));
    assert!(known.covers("b/"), "its names are known from before");
    assert_eq!(known.unlisted(at(3)).as_deref(), Some("a/"));
    known.not_listed("a/", at(3));
    assert_eq!(known.unlisted(at(4)), None);
}

#[test]
fn a_listing_shows_what_is_new_and_what_is_gone() {
    let mut known = Known::default();
    known.join("a/");
    assert!(known.list("a/", names(&["a/1", "a/2"]), true, at(0)).is_empty());
    assert_eq!(
        known.record(&name("a/2"), look("a/2", 1, at(1))),
        Some(false),
        "the first listing shows no changes"
    );
    assert_eq!(known.list("a/", names(&["a/2", "a/3"]), true, at(15)), names(&["a/1"]));
    assert_eq!(known.record(&name("a/3"), look("a/3", 1, at(16))), Some(true));
    // A lock that was seen during the listing is not gone.
    known.changed(name("a/4"), at(31));
    known.record(&name("a/3"), look("a/3", 1, at(31)));
    assert_eq!(known.list("a/", Vec::new(), true, at(30)), names(&["a/2"]));
}

#[test]
fn viewers_of_nested_prefixes_see_new_and_deleted_locks() {
    let mut known = viewed("a/b/", &[("a/b/old", 1, 0)]);
    known.join("a/");
    assert_eq!(known.list("a/", names(&["a/1", "a/b/new"]), true, at(5)), names(&["a/b/old"]));
    assert_eq!(known.record(&name("a/b/new"), look("a/b/new", 1, at(6))), Some(true));
    assert_eq!(
        known.record(&name("a/1"), look("a/1", 1, at(6))),
        Some(false),
        "it was unknown whether it was there"
    );
    // The same applies in the other direction.
    known.leave("a/");
    assert_eq!(known.list("a/b/", names(&["a/b/newer"]), true, at(20)), names(&["a/b/new"]));
    assert_eq!(known.record(&name("a/b/newer"), look("a/b/newer", 1, at(21))), Some(true));
}

#[test]
fn an_incomplete_listing_stands_for_no_other_prefix() {
    let mut known = viewed("z/", &[("z/1", 1, 0)]);
    known.join("");
    known.list("", names(&["a", "b"]), false, at(0));
    assert!(known.one(&name("z/1")).is_some(), "it may still be there");
    assert_eq!(known.unlisted(at(15)).as_deref(), Some("z/"));
    assert!(known.covers("") && known.covers("z/") && !known.covers("y/"));
    known.list("z/", names(&["z/1"]), true, at(15));
    assert_eq!(known.list("", names(&["b", "c"]), false, at(15)), [], "`a` may still be there");
    assert_eq!(known.record(&name("c"), look("c", 1, at(16))), Some(false), "it may have been there");
}

#[test]
fn locks_without_viewers_are_forgotten() {
    let mut known = viewed("a/", &[("a/1", 1, 0), ("a/b/1", 1, 0)]);
    known.join("a/b/");
    known.join("a/");
    known.leave("a/");
    assert_eq!(known.locks.len(), 2, "there is another viewer");
    known.leave("a/");
    assert_eq!(known.locks.keys().cloned().collect::<Vec<_>>(), names(&["a/b/1"]));
    // The listing began before the viewers left.
    known.list("a/", names(&["a/1"]), true, at(15));
    known.changed(name("a/1"), at(15));
    assert_eq!(known.record(&name("a/1"), look("a/1", 1, at(16))), None);
    assert_eq!(known.locks.len(), 1);
}

#[test]
fn an_older_look_changes_nothing() {
    let mut known = viewed("", &[("a", 1, 5)]);
    assert_eq!(known.record(&name("a"), look("a", 2, at(4))), None);
    assert_eq!(
        known.record(&name("a"), look("a", 2, at(6))),
        Some(false),
        "only the time that is left has changed"
    );
}

#[test]
fn what_was_seen_counts_only_for_listed_prefixes() {
    let known = viewed("a/", &[("a/1", 1, 0)]);
    assert_eq!(known.under("a/").unwrap().len(), 1);
    assert!(known.under("").is_none() && known.under("b").is_none());
}

#[test]
fn a_damaged_record_is_known_until_it_can_be_read_again() {
    let mut known = viewed("", &[("a", 1, 0)]);
    known.not_read(&name("a"), true, at(1));
    let latest = |known: &Known| [known.under("").unwrap()[0].1.clone(), known.latest(&name("a"))];
    assert!(latest(&known).iter().all(|latest| matches!(latest, Latest::Unreadable)));
    known.not_read(&name("a"), false, at(2));
    assert!(matches!(latest(&known)[0], Latest::Unreadable), "an outage is no news of the record");
    assert_eq!(known.record(&name("a"), look("a", 1, at(3))), Some(false));
    assert!(latest(&known).iter().all(|latest| matches!(latest, Latest::Look(_))));
}

#[test]
fn many_locks_cost_a_bounded_number_of_requests() {
    let pauses = [0, 500, 1_000, 5_000, 20_000, MAX_LOCKS].map(|locks| pause(locks).as_millis());
    assert_eq!(pauses, [200, 200, 100, 20, 20, 20]);
    let mut known = Known::default();
    known.join("");
    known.list("", (0..20_000).map(|number| name(&number.to_string())).collect(), true, at(0));
    assert_eq!(known.pause(), MIN_PAUSE);
    assert_eq!((known.unlisted(at(59)), known.unlisted(at(60))), (None, Some(String::new())));
}

#[test]
fn the_next_viewer_of_a_lock_gets_its_latest_look() {
    let mut known = viewed("a/", &[("a/1", 1, 5), ("a/2", 1, 5)]);
    known.leave("a/");
    known.clear();
    // A page reads a lock before its stream begins.
    assert_eq!(known.record(&name("a/1"), look("a/1", 2, at(9))), None);
    known.keep(&name("a/3"), look("a/3", 3, at(9)));
    known.join("");
    known.list("", names(&["a/1", "a/2", "a/3", "a/4"]), true, at(10));
    let seen: Vec<_> =
        known.under("").unwrap().into_iter().map(|(_, latest)| Some(latest.look()?.at)).collect();
    assert_eq!(seen, [Some(at(9)), Some(at(5)), Some(at(9)), None]);
    assert!(known.former.is_empty());
    known.leave("");
    known.forget();
    assert!(known.latest(&name("a/1")).look().is_none());
}
