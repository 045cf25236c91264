//! How the verdict on a store is recorded in it. This module does no I/O. All stores that are probed share it.

use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::clock::{StoreTime, micros};
use crate::env::Env;
use crate::error::StoreError;
use crate::lease::Id;
use crate::retry::RetryBudget;

/// The key of the marker.
pub(crate) const KEY: &str = ".leasehold-probe";

/// What is proven. Each has its own marker, whose key is not the name of a lock's record, so it is never listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subject {
    /// The preconditions of writes.
    Writes,
    /// The preconditions of deletes, and of writes that race with them.
    Deletes,
}

impl Subject {
    /// Returns the key of the marker.
    pub(super) fn key(self) -> &'static str {
        match self {
            Self::Writes => KEY,
            Self::Deletes => ".leasehold-probe-delete",
        }
    }
}

/// The version of the probe. It is raised when checks are added, so that stores that passed an older probe are probed
/// again.
pub(crate) const PROBE_VERSION: u32 = 2;

/// How long a verdict is valid. A server may be replaced or reconfigured behind the same name.
pub(crate) const LONGEST_AGE: Duration = Duration::from_secs(30 * 24 * 3_600);

/// How far the clocks of a store's front ends may disagree before a verdict seems to be in the future.
const CLOCK_DIFFERENCE: Duration = Duration::from_secs(3_600);

/// The time limit of writing a verdict. A busy store or other processes may delay it.
pub(crate) const RECORD_LIMIT: Duration = Duration::from_secs(10);

/// The maximum number of recorded verdicts. Each name of an endpoint has its own.
const MAX_VERDICTS: usize = 16;

/// Records a verdict. `write` reads and writes the marker once, and returns whether the store accepted the write. If not,
/// another process has changed the marker.
pub(crate) async fn record<F>(env: &Env, mut write: impl FnMut() -> F) -> Result<(), StoreError>
where
    F: Future<Output = Result<bool, StoreError>>,
{
    let mut budget = RetryBudget::new(env, RECORD_LIMIT, RECORD_LIMIT).urgent();
    loop {
        match budget.request(write()).await {
            Ok(true) => return Ok(()),
            Ok(false) => budget.pause_after_conflict().await?,
            Err(error) => budget.pause_after(error).await?,
        }
    }
}

/// The marker object in the store: the verdicts of probes, and of the doctor's examinations.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Marker {
    /// A description for people who find the object.
    about: String,
    /// The version of the probe that gave the verdicts.
    #[serde(default, rename = "examination")]
    probe_version: u32,
    /// A version that the marker has had and will never have again. A write that expects it must be refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    outdated: Option<String>,
    /// At most one verdict for each identity.
    #[serde(default)]
    verdicts: Vec<Verdict>,
    /// The process that is probing the store. Other processes wait for it.
    #[serde(default, rename = "examiner", skip_serializing_if = "Option::is_none")]
    prober: Option<Id>,
    /// When that process began, on the store's clock: microseconds since 1970, lower bound.
    #[serde(default, rename = "examiner_since_us", skip_serializing_if = "Option::is_none")]
    prober_since_us: Option<u64>,
    /// Makes every write, and so every version, different.
    nonce: Id,
}

/// The verdict on one store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Verdict {
    /// The identity of the store: the endpoint and the bucket or table. A copy of the marker elsewhere proves nothing
    /// about the store there.
    #[serde(rename = "place")]
    identity: String,
    /// The time of the verdict on the store's clock: microseconds since 1970, lower bound.
    at_us: u64,
    /// What the store did wrong. `None` if it passed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    refused: Option<String>,
}

/// What a marker records about a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// No valid verdict: the store must be probed.
    Unknown {
        /// The process that is probing it.
        prober: Option<Id>,
    },
    /// The store passed. A write that expects the outdated version must be refused.
    Passed {
        /// The outdated version.
        outdated: String,
    },
    /// The store was found unsafe and has not passed the doctor's examination since.
    Refused {
        /// What it did wrong.
        what: String,
    },
}

impl Marker {
    /// Creates a marker without verdicts.
    pub(crate) fn blank(nonce: Id) -> Self {
        Self {
            about: "leasehold records here whether the store honours preconditions".to_owned(),
            probe_version: PROBE_VERSION,
            outdated: None,
            verdicts: Vec::new(),
            prober: None,
            prober_since_us: None,
            nonce,
        }
    }

    /// Parses a marker. Returns a blank one if the bytes are not a marker, or one of an older probe.
    pub(crate) fn read(bytes: &[u8], nonce: Id) -> Self {
        match serde_json::from_slice(bytes) {
            Ok(marker @ Self { probe_version: PROBE_VERSION, .. }) => Self { nonce, ..marker },
            _ => Self::blank(nonce),
        }
    }

    /// Returns the bytes to write.
    pub(crate) fn to_bytes(&self) -> Bytes {
        // Strings and numbers always serialize. If they did not, an empty marker would only cause another probe.
        serde_json::to_vec(self).map(Bytes::from).unwrap_or_default()
    }

    /// Returns what the marker records about the store `identity`. The marker has the version `current`, and the store's
    /// clock reads `now`. Without a clock, the age of the verdict is unknown.
    pub(crate) fn standing(&self, identity: &str, current: &str, now: Option<StoreTime>) -> Standing {
        let unknown = Standing::Unknown { prober: self.prober };
        match self.verdicts.iter().find(|verdict| verdict.identity == identity) {
            Some(Verdict { refused: Some(what), .. }) => Standing::Refused { what: what.clone() },
            Some(Verdict { at_us, refused: None, .. }) if is_recent(*at_us, now) => match &self.outdated {
                // If the current version is the outdated one, the marker was copied or edited.
                Some(outdated) if outdated != current => Standing::Passed { outdated: outdated.clone() },
                _ => unknown,
            },
            _ => unknown,
        }
    }

    /// Records that `prober` is probing the store `identity` since `now`. The store has not passed until the probe ends.
    #[must_use]
    pub(crate) fn probed_by(mut self, prober: Id, identity: &str, now: Option<StoreTime>) -> Self {
        self.verdicts.retain(|verdict| verdict.identity != identity || verdict.refused.is_some());
        (self.prober, self.prober_since_us) = (Some(prober), now.map(|now| now.lo_us));
        self
    }

    /// Returns whether the process that probes the store began more than `limit` ago.
    pub(crate) fn claim_is_over(&self, limit: Duration, now: Option<StoreTime>) -> bool {
        let since = self.prober_since_us.zip(now);
        since.is_some_and(|(since_us, now)| now.lo_us.saturating_sub(since_us) > micros(limit))
    }

    /// Records that the store `identity` passed. `replaced` is the version of the marker that this one will replace.
    #[must_use]
    pub(crate) fn passed(self, identity: &str, now: Option<StoreTime>, replaced: &str) -> Self {
        Self { outdated: Some(replaced.to_owned()), ..self.judged(identity, now, None) }
    }

    /// Records that the store `identity` is unsafe, and why.
    #[must_use]
    pub(crate) fn refused(self, identity: &str, now: Option<StoreTime>, what: &str) -> Self {
        self.judged(identity, now, Some(what.to_owned()))
    }

    /// Records that the store `identity` is `unsafe_`, or that it passed. A refused store can pass only with `lifts`;
    /// otherwise, returns what it did wrong. `replaced` is the version of the marker that this one will replace.
    pub(crate) fn judge(
        self,
        identity: &str,
        now: Option<StoreTime>,
        replaced: &str,
        unsafe_: Option<&str>,
        lifts: bool,
    ) -> Result<Self, String> {
        match (unsafe_, self.standing(identity, replaced, now)) {
            (None, Standing::Refused { what }) if !lifts => Err(what),
            (None, _) => Ok(self.passed(identity, now, replaced)),
            (Some(what), _) => Ok(self.refused(identity, now, what)),
        }
    }

    fn judged(mut self, identity: &str, now: Option<StoreTime>, refused: Option<String>) -> Self {
        self.verdicts.retain(|verdict| verdict.identity != identity);
        if self.verdicts.len() >= MAX_VERDICTS {
            // Drops the oldest pass, rather than a refusal. The oldest come first.
            let oldest = self.verdicts.iter().position(|verdict| verdict.refused.is_none());
            self.verdicts.remove(oldest.unwrap_or(0));
        }
        let at_us = now.map_or(0, |now| now.lo_us);
        self.verdicts.push(Verdict { identity: identity.to_owned(), at_us, refused });
        (self.prober, self.prober_since_us) = (None, None);
        self
    }
}

fn is_recent(at_us: u64, now: Option<StoreTime>) -> bool {
    now.is_some_and(|now| {
        at_us <= now.hi_us.saturating_add(micros(CLOCK_DIFFERENCE))
            && now.hi_us.saturating_sub(at_us) <= micros(LONGEST_AGE)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden::{assert_written, golden};

    const DAY_US: u64 = 24 * 3_600 * 1_000_000;
    const HERE: &str = "https://s3.example.com/bucket";

    fn id(n: u8) -> Id {
        format!("{n:032x}").parse().unwrap()
    }

    fn at(day: u64) -> Option<StoreTime> {
        Some(StoreTime::exactly(day * DAY_US))
    }

    fn unknown() -> Standing {
        Standing::Unknown { prober: None }
    }

    #[test]
    fn a_pass_counts_for_its_store_and_for_thirty_days() {
        let marker = Marker::blank(id(1)).passed(HERE, at(100), "v1");
        let passed = Standing::Passed { outdated: "v1".to_owned() };
        assert_eq!(marker.standing(HERE, "v2", at(100)), passed);
        assert_eq!(marker.standing(HERE, "v2", at(130)), passed);
        assert_eq!(marker.standing(HERE, "v2", at(131)), unknown(), "too old");
        assert_eq!(marker.standing(HERE, "v2", at(99)), unknown(), "of the future");
        assert_eq!(marker.standing(HERE, "v2", None), unknown(), "of unknown age");
        assert_eq!(marker.standing("https://mirror.example.com/bucket", "v2", at(100)), unknown());
        assert_eq!(marker.standing(HERE, "v1", at(100)), unknown(), "copied or edited");
        assert_eq!(Marker::blank(id(1)).passed(HERE, None, "v1").standing(HERE, "v2", at(100)), unknown());
    }

    #[test]
    fn a_refusal_stays_until_the_store_passes() {
        let elsewhere = "https://mirror.example.com/bucket";
        let marker = Marker::blank(id(1)).passed(elsewhere, at(100), "v1").refused(HERE, at(100), "two won");
        let refused = Standing::Refused { what: "two won".to_owned() };
        for day in [99, 100, 1_000] {
            assert_eq!(marker.standing(HERE, "v2", at(day)), refused);
        }
        assert_eq!(marker.standing(HERE, "v2", None), refused);
        assert_eq!(marker.standing(elsewhere, "v2", at(100)), Standing::Passed { outdated: "v1".to_owned() });
        let probed = marker.probed_by(id(7), HERE, at(100));
        assert_eq!(probed.standing(HERE, "v2", at(100)), refused);
        let passed = probed.passed(HERE, at(101), "v3");
        assert_eq!(passed.standing(HERE, "v4", at(101)), Standing::Passed { outdated: "v3".to_owned() });
    }

    #[test]
    fn a_store_that_is_being_probed_has_not_passed() {
        let marker = Marker::blank(id(1)).passed(HERE, at(100), "v1").probed_by(id(7), HERE, at(100));
        assert_eq!(marker.standing(HERE, "v2", at(100)), Standing::Unknown { prober: Some(id(7)) });
    }

    #[test]
    fn a_claim_is_over_when_its_time_limit_has_passed() {
        let limit = Duration::from_secs(24 * 3_600);
        let marker = Marker::blank(id(1)).probed_by(id(7), HERE, at(100));
        assert!(!marker.claim_is_over(limit, at(101)) && marker.claim_is_over(limit, at(102)));
        assert!(!marker.claim_is_over(limit, at(99)), "of the future");
        assert!(!marker.claim_is_over(limit, None), "of unknown age");
        assert!(!Marker::blank(id(1)).probed_by(id(7), HERE, None).claim_is_over(limit, at(102)));
    }

    #[test]
    fn a_marker_keeps_a_bounded_number_of_verdicts_and_all_refusals() {
        let mut marker = Marker::blank(id(1)).refused(HERE, at(1), "two won");
        for n in 0..100 {
            marker = marker.passed(&format!("place-{n}"), at(100), "v1");
        }
        assert_eq!(marker.verdicts.len(), MAX_VERDICTS);
        assert_eq!(marker.standing(HERE, "v2", at(100)), Standing::Refused { what: "two won".to_owned() });
        assert_ne!(marker.standing("place-99", "v2", at(100)), unknown());
        assert_eq!(marker.standing("place-0", "v2", at(100)), unknown());
    }

    #[test]
    fn the_golden_markers_are_read() {
        let first = Marker::read(golden("1-probe-marker.json").as_bytes(), id(1));
        assert_eq!(first, Marker::blank(id(1)), "of an older probe");
        let nonce = "00112233445566778899aabbccddeeff".parse().unwrap();
        let marker = Marker::blank(nonce)
            .refused("https://mirror.example.com/bucket", at(20_400), "two won")
            .passed(HERE, at(20_412), "\"9b2cf5-1\"");
        let older = Marker { prober: Some(id(7)), ..marker.clone() };
        assert_eq!(Marker::read(golden("2-probe-marker.json").as_bytes(), nonce), older);
        let marker = Marker { prober_since_us: Some(20_412 * DAY_US), ..older };
        assert_written("2-probe-marker-since.json", std::str::from_utf8(&marker.to_bytes()).unwrap());
        assert_eq!(Marker::read(golden("2-probe-marker-since.json").as_bytes(), nonce), marker);
        assert_eq!(Marker::read(b"garbage", nonce), Marker::blank(nonce));
    }
}
