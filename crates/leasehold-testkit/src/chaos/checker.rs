//! Judges a merged history, and reads nothing else. It shares no code with leasehold, does not know how locks are
//! implemented, and uses only the times in the history.
//!
//! A grant is *believed in* at a moment when its worker checked whether it holds the lock and the check passed. Each
//! moment is known only as an interval. The checker orders two moments only if their intervals do not overlap, so
//! wide intervals can hide a violation but never invent one.

mod registers;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde_json::Value;

use self::registers::Registers;

/// A rule that a history must keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// While one grant is believed in, no other is.
    OneHolder,
    /// Once a token has been believed in, no lower token is.
    TokensRise,
    /// No two grants have the same token.
    TokensAreUnique,
    /// The resource accepts no token lower than the highest it has seen.
    FenceHolds,
    /// The counter equals the number of accepted writes.
    CounterIsExact,
    /// After the last fault, the lock is granted again.
    GrantedAgain,
    /// The registers are linearizable.
    Linearizable,
    /// The registers are linearizable, except that a failover may lose writes.
    LinearizableBetweenFailovers,
    /// The history can be read.
    Readable,
}

impl Rule {
    /// All rules.
    pub const ALL: &[Self] = &[
        Self::OneHolder,
        Self::TokensRise,
        Self::TokensAreUnique,
        Self::FenceHolds,
        Self::CounterIsExact,
        Self::GrantedAgain,
        Self::Linearizable,
        Self::LinearizableBetweenFailovers,
        Self::Readable,
    ];

    /// Returns the name of the rule in a history.
    pub const fn name(self) -> &'static str {
        match self {
            Self::OneHolder => "one holder",
            Self::TokensRise => "tokens rise",
            Self::TokensAreUnique => "tokens are unique",
            Self::FenceHolds => "the fence holds",
            Self::CounterIsExact => "the counter is exact",
            Self::GrantedAgain => "granted again",
            Self::Linearizable => "linearizable",
            Self::LinearizableBetweenFailovers => "linearizable between failovers",
            Self::Readable => "readable",
        }
    }
}

/// A violation of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The rule.
    pub rule: Rule,
    /// A description of the violation.
    pub text: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.rule.name(), self.text)
    }
}

/// Counts of the events in a history.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Grants.
    pub grants: u64,
    /// Grants that follow one that was lost or never given up.
    pub takeovers: u64,
    /// Grants whose holders found out that they had lost the lock.
    pub losses: u64,
    /// Losses that the holder noticed before the next grant was believed in. Only losses with a next grant count.
    pub known_first: u64,
    /// Losses that another grant followed.
    pub succeeded: u64,
    /// Checks that passed.
    pub checks: u64,
    /// Writes that the counter accepted.
    pub writes: u64,
    /// Reads and writes that the counter refused.
    pub refused: u64,
    /// Operations on registers.
    pub operations: u64,
    /// The operations that changed a register.
    pub changes: u64,
    /// Acquisitions that failed.
    pub failures: u64,
    /// Grants after the last fault.
    pub granted_again: u64,
    /// Faults of each kind.
    pub faults: BTreeMap<String, u64>,
}

/// The result of judging a history.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    /// Violations of promised rules.
    pub broken: Vec<Finding>,
    /// Violations of rules that were not promised.
    pub observed: Vec<Finding>,
    /// Counts of the events in the history.
    pub counts: Counts,
}

/// Judges a merged history.
pub fn judge(history: &str) -> Verdict {
    let mut case = Case::default();
    for line in history.lines() {
        case.read_event(line);
    }
    case.verdict()
}

/// A moment at which a grant was believed in. It lies between `from` and `until`.
#[derive(Clone, Copy, Debug)]
struct Belief {
    grant: usize,
    token: u64,
    from: u64,
    until: u64,
}

#[derive(Debug, Default)]
struct Grant {
    name: String,
    lock: String,
    token: u64,
    from: u64,
    until: u64,
    beliefs: Vec<Belief>,
    lost_until: Option<u64>,
    given_up: bool,
}

impl Grant {
    /// Returns the interval throughout which the grant was certainly believed in: from the earliest upper bound of
    /// its moments to the latest lower bound.
    fn span(&self) -> Option<(u64, u64)> {
        let first = self.beliefs.iter().map(|belief| belief.until).min()?;
        let last = self.beliefs.iter().map(|belief| belief.from).max()?;
        Some((first, last))
    }
}

#[derive(Debug)]
struct Access {
    number: u64,
    write: bool,
    token: u64,
    accepted: bool,
    value: u64,
}

#[derive(Debug, Default)]
struct Case {
    /// The promised rules; `None` until a `run` event has been read.
    promises: Option<BTreeSet<&'static str>>,
    grants: Vec<Grant>,
    by_name: BTreeMap<String, usize>,
    accesses: BTreeMap<String, Vec<Access>>,
    registers: Registers,
    healed: Option<u64>,
    counts: Counts,
    findings: Vec<Finding>,
}

impl Case {
    fn read_event(&mut self, line: &str) {
        if self.parse_event(line).is_none() {
            self.find(Rule::Readable, format!("not an event: {line}"));
        }
    }

    fn parse_event(&mut self, line: &str) -> Option<()> {
        let event: Value = serde_json::from_str(line).ok()?;
        let (from, until) = (event["from"].as_u64()?, event["until"].as_u64()?);
        match event["what"].as_str()? {
            "run" => {
                let promised = event["promises"].as_array()?;
                let known = Rule::ALL.iter().map(|rule| rule.name());
                self.registers.grace_ms = event["failover_grace_ms"].as_u64().unwrap_or(0);
                self.promises = Some(known.filter(|name| promised.iter().any(|rule| rule == name)).collect());
            }
            "granted" => self.granted(&event, from, until)?,
            "checked" => {
                let (grant, token) = (self.known(&event)?, event["token"].as_u64()?);
                self.grants[grant].beliefs.push(Belief { grant, token, from, until });
                self.counts.checks += 1;
            }
            "lost" => {
                let grant = self.known(&event)?;
                self.grants[grant].lost_until.get_or_insert(until);
            }
            "over" => {
                let grant = self.known(&event)?;
                self.grants[grant].given_up = true;
            }
            "read" | "write" => self.accessed(&event)?,
            "seen" | "sent" | "answered" => self.registers.read_event(&event, from, until)?,
            "failed" => self.counts.failures += 1,
            "fault" => {
                let kind = event["kind"].as_str()?;
                *self.counts.faults.entry(kind.to_owned()).or_default() += 1;
                self.registers.fault(kind, &event["target"], from, until);
            }
            "healed" => self.healed = Some(until),
            _ => return None,
        }
        Some(())
    }

    fn granted(&mut self, event: &Value, from: u64, until: u64) -> Option<()> {
        let (name, lock) = (event["grant"].as_str()?.to_owned(), event["lock"].as_str()?.to_owned());
        let token = event["token"].as_u64()?;
        self.by_name.insert(name.clone(), self.grants.len());
        self.grants.push(Grant { name, lock, token, from, until, ..Grant::default() });
        Some(())
    }

    fn known(&self, event: &Value) -> Option<usize> {
        self.by_name.get(event["grant"].as_str()?).copied()
    }

    fn accessed(&mut self, event: &Value) -> Option<()> {
        let access = Access {
            number: event["number"].as_u64()?,
            write: event["what"] == "write",
            token: event["token"].as_u64()?,
            accepted: event["accepted"].as_bool()?,
            value: event["value"].as_u64()?,
        };
        self.accesses.entry(event["lock"].as_str()?.to_owned()).or_default().push(access);
        Some(())
    }

    fn find(&mut self, rule: Rule, text: String) {
        self.findings.push(Finding { rule, text });
    }

    fn verdict(mut self) -> Verdict {
        let locks: BTreeSet<String> = self.grants.iter().map(|grant| grant.lock.clone()).collect();
        for lock in &locks {
            self.one_holder(lock);
            self.tokens_rise(lock);
            self.tokens_are_unique(lock);
            self.granted_again(lock);
            self.count(lock);
        }
        for (lock, accesses) in std::mem::take(&mut self.accesses) {
            self.fence_and_counter(&lock, accesses);
        }
        let registers = std::mem::take(&mut self.registers);
        (self.counts.operations, self.counts.changes) = registers.counts();
        for (rule, text) in registers.violations() {
            self.find(rule, text);
        }
        // A file without a `run` event is no history, so it proves nothing.
        if self.promises.is_none() {
            self.find(Rule::Readable, "there is no `run` event".to_owned());
        }
        let promises = self.promises.unwrap_or_default();
        let (broken, observed) = self
            .findings
            .into_iter()
            .partition(|finding| finding.rule == Rule::Readable || promises.contains(finding.rule.name()));
        Verdict { broken, observed, counts: self.counts }
    }

    fn on<'a>(&'a self, lock: &'a str) -> impl Iterator<Item = (usize, &'a Grant)> {
        self.grants.iter().enumerate().filter(move |(_, grant)| grant.lock == lock)
    }

    fn beliefs(&self, lock: &str) -> Vec<Belief> {
        self.on(lock).flat_map(|(_, grant)| grant.beliefs.iter().copied()).collect()
    }

    fn one_holder(&mut self, lock: &str) {
        let mut beliefs = self.beliefs(lock);
        beliefs.sort_by_key(|belief| belief.from);
        let mut findings = Vec::new();
        for (number, grant) in self.on(lock) {
            let Some((first, last)) = grant.span() else { continue };
            let later = beliefs.partition_point(|belief| belief.from <= first);
            let within = beliefs[later..].iter().take_while(|belief| belief.from < last);
            // One finding per grant is enough, because there may be thousands.
            let other = within.copied().find(|belief| belief.grant != number && belief.until < last);
            if let Some(other) = other {
                findings.push(format!(
                    "{lock}: {} was believed in until {last} at least, and {} between {} and {}",
                    described(grant),
                    described(&self.grants[other.grant]),
                    other.from,
                    other.until
                ));
            }
        }
        findings.into_iter().for_each(|text| self.find(Rule::OneHolder, text));
    }

    /// Checks that no grant or belief has a lower token than one that certainly came before it.
    fn tokens_rise(&mut self, lock: &str) {
        let granted = self.on(lock).map(|(number, grant)| {
            let Grant { token, from, until, .. } = *grant;
            Belief { grant: number, token, from, until }
        });
        let beliefs: Vec<Belief> =
            granted.chain(self.beliefs(lock)).filter(|belief| belief.token > 0).collect();
        let (mut by_from, mut by_until) = (beliefs.clone(), beliefs);
        by_from.sort_by_key(|belief| belief.from);
        by_until.sort_by_key(|belief| belief.until);
        let (mut earlier, mut highest) = (by_until.into_iter().peekable(), None::<Belief>);
        let mut reported = BTreeSet::new();
        for belief in by_from {
            while let Some(before) = earlier.next_if(|before| before.until < belief.from) {
                if highest.is_none_or(|highest| before.token > highest.token) {
                    highest = Some(before);
                }
            }
            if let Some(highest) = highest
                && belief.token < highest.token
                && reported.insert(belief.grant)
            {
                let text = format!(
                    "{lock}: {} was believed in after {}, and {} before {}",
                    described(&self.grants[belief.grant]),
                    belief.from,
                    described(&self.grants[highest.grant]),
                    highest.until
                );
                self.find(Rule::TokensRise, text);
            }
        }
    }

    fn tokens_are_unique(&mut self, lock: &str) {
        let mut seen = BTreeMap::new();
        let mut findings = Vec::new();
        for (_, grant) in self.on(lock).filter(|(_, grant)| grant.token > 0) {
            if let Some(other) = seen.insert(grant.token, described(grant)) {
                findings.push(format!("{lock}: {other} and {}", described(grant)));
            }
        }
        findings.into_iter().for_each(|text| self.find(Rule::TokensAreUnique, text));
    }

    fn granted_again(&mut self, lock: &str) {
        let Some(healed) = self.healed else { return };
        let again = self.on(lock).filter(|(_, grant)| grant.until > healed).count() as u64;
        self.counts.granted_again += again;
        if again == 0 {
            self.find(
                Rule::GrantedAgain,
                format!("{lock}: no grant after {healed}, when the last fault was over"),
            );
        }
    }

    fn fence_and_counter(&mut self, lock: &str, mut accesses: Vec<Access>) {
        accesses.sort_by_key(|access| access.number);
        let (mut highest, mut value) = (0, 0);
        for access in accesses {
            if !access.accepted {
                self.counts.refused += 1;
                continue;
            }
            if access.token > 0 && access.token < highest {
                let text = format!("{lock}: {} was accepted after {highest}", access.token);
                self.find(Rule::FenceHolds, text);
            }
            highest = highest.max(access.token);
            if access.write {
                self.counts.writes += 1;
                if access.value != value + 1 {
                    let text = format!("{lock}: token {} wrote {} over {value}", access.token, access.value);
                    self.find(Rule::CounterIsExact, text);
                }
                value = access.value;
            }
        }
    }

    fn count(&mut self, lock: &str) {
        let mut grants: Vec<&Grant> = self.on(lock).map(|(_, grant)| grant).collect();
        grants.sort_by_key(|grant| grant.until);
        let mut counts = self.counts.clone();
        counts.grants += grants.len() as u64;
        for (n, grant) in grants.iter().enumerate() {
            let next = grants.get(n + 1);
            counts.losses += u64::from(grant.lost_until.is_some());
            counts.takeovers += u64::from(next.is_some() && (!grant.given_up || grant.lost_until.is_some()));
            if let (Some(lost), Some(next)) = (grant.lost_until, next) {
                counts.succeeded += 1;
                counts.known_first += u64::from(next.span().is_none_or(|(first, _)| lost <= first));
            }
        }
        self.counts = counts;
    }
}

fn described(grant: &Grant) -> String {
    format!("grant {} (token {})", grant.name, grant.token)
}

#[cfg(test)]
mod tests;
