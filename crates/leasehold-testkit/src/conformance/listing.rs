//! Lock names: a listing returns them exactly as they were given.

use std::collections::BTreeSet;

use futures_util::future::join_all;
use futures_util::{StreamExt, TryStreamExt};
use leasehold::LockName;

use super::Harness;
use super::client::{Client, LONG, name};

async fn listed(client: &Client, prefix: &str) -> BTreeSet<String> {
    let names: Vec<LockName> = client.within("list", client.store.list(prefix).try_collect()).await.unwrap();
    let set: BTreeSet<_> = names.iter().map(|name| name.as_str().to_owned()).collect();
    assert_eq!(set.len(), names.len(), "a name was listed twice: {names:?}");
    set
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

/// Names with spaces, percent signs, dots, quotes or other scripts can be locked, refused to a second claimant,
/// inspected and listed.
pub async fn names_with_odd_characters_are_listed_as_they_are(harness: &dyn Harness) {
    const ODD: &[&str] = &[
        "with space",
        " leading and trailing ",
        "100%",
        "%41",
        "a%2Fb",
        "a+b&c=d?e#f",
        "...",
        "a..b/.hidden",
        "x.lock",
        "x.lock/y",
        "quote'\"`",
        "back\\slash",
        "semi;colon:at@tilde~",
        "<angle>{curly}[square]|pipe^caret*star",
        "-n",
        "_",
        "größe/ünïcode",
        "日本語/ロック",
        "🔒",
        "e\u{301}",
    ];
    let (one, two) = (Client::open(harness, "one").await, Client::open(harness, "two").await);
    // The longest name that is allowed, in segments that MinIO accepts (255 bytes each when encoded).
    let long = format!("{}x", "üüüüüüü/".repeat(LockName::MAX_BYTES / 15));
    assert_eq!(long.len(), LockName::MAX_BYTES);
    let names: Vec<&str> = ODD.iter().copied().chain([long.as_str()]).collect();
    join_all(names.iter().map(async |odd| {
        let grant = one.granted(&name(odd), LONG).await;
        two.assert_held_by(&name(odd), &grant).await;
    }))
    .await;
    assert_eq!(listed(&two, "").await, set(&names));
}

/// Names that a store might confuse are different locks. They differ in case, composition or encoding, or one is
/// within the other.
pub async fn names_that_look_alike_are_different_locks(harness: &dyn Harness) {
    const ALIKE: &[&str] =
        &["a", "A", "a.lock", "a/b", "a%2Fb", "a%252Fb", "a b", "a+b", "a%20b", "é", "e\u{301}", "a ", "a."];
    let one = Client::open(harness, "one").await;
    join_all(ALIKE.iter().map(async |alike| drop(one.granted(&name(alike), LONG).await))).await;
    assert_eq!(listed(&one, "").await, set(ALIKE));
}

/// A prefix is compared with the name's text, with or without a trailing slash.
pub async fn listing_goes_by_prefix(harness: &dyn Harness) {
    let client = Client::open(harness, "one").await;
    assert_eq!(listed(&client, "").await, set(&[]));
    let grants = ["a", "a/b", "a/b/c", "ab", "b", "a%", "ä/x"].map(async |lock| {
        let mut grant = client.granted(&name(lock), LONG).await;
        // A lock whose record remains after its release is still listed.
        if lock == "ab" && client.store.capabilities().history {
            client.release(&mut grant).await;
        }
    });
    join_all(grants).await;
    assert_eq!(listed(&client, "").await, set(&["a", "a/b", "a/b/c", "ab", "b", "a%", "ä/x"]));
    assert_eq!(listed(&client, "a").await, set(&["a", "a/b", "a/b/c", "ab", "a%"]));
    assert_eq!(listed(&client, "a/").await, set(&["a/b", "a/b/c"]));
    assert_eq!(listed(&client, "a/b").await, set(&["a/b", "a/b/c"]));
    assert_eq!(listed(&client, "a%").await, set(&["a%"]));
    assert_eq!(listed(&client, "ä").await, set(&["ä/x"]));
    assert_eq!(listed(&client, "c").await, set(&[]));
}

/// A listing includes all pages. Stores return at most a thousand names per page.
pub async fn listing_goes_beyond_a_thousand_locks(harness: &dyn Harness) {
    const LOCKS: usize = 1_050;
    // Many at once, because some stores delay each of the first grants by about a second. Not all at once, because other tests may use the same server at the same time.
    const AT_ONCE: usize = 16;
    let client = Client::open(harness, "one").await;
    let names: BTreeSet<String> = (0..LOCKS).map(|n| format!("many/{n:04}")).collect();
    futures_util::stream::iter(&names)
        .for_each_concurrent(AT_ONCE, async |lock| drop(client.granted(&name(lock), LONG).await))
        .await;
    assert_eq!(listed(&client, "many/").await, names);
    assert_eq!(listed(&client, "many/104").await.len(), 10);
}
