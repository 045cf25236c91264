//! The bounds of a history. Everything that is not bounded here is unbounded: reads, conflicts, and time.

/// A scope: the bounds that make the state space finite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scope {
    /// Two or three.
    pub clients: usize,
    /// Whether each client's clock may be slow or fast. If not, the first one is slow, the others are fast.
    pub any_clocks: bool,
    /// How many locks each client acquires, one after the other.
    pub claims: u8,
    /// How many times a client asks again with a claim that it gave up.
    pub retries: u8,
    /// How many renewals each grant may send.
    pub renewals: u8,
    /// How many times each grant may be passed on within its process. It has as many additional tokens.
    pub hand_offs: u8,
    /// How many writes, in total, are given up before their response arrives. Each may have been applied already,
    /// may be applied later, or never.
    pub unanswered: u8,
    /// How many writes, in total, arrive twice, at any two times. Either of the two may get the response.
    pub doubled: u8,
    /// How many live grants an operator evicts.
    pub evictions: u8,
    /// How many times the record is edited without changing its meaning.
    pub edits: u8,
    /// How many times the record is deleted by hand, but not within the tick in which it was written.
    pub deletions: u8,
    /// How many times a client that holds the lock is copied while it runs, in place of an idle client.
    pub copies: u8,
    /// Whether the first two clients are servers that act for one claim: the client of the claim sends its request to both,
    /// at any times, and withdraws the claim through either. `claims` is how many requests each server receives.
    pub replicas: bool,
    /// Whether there is a record at the start. If not, the first grant creates it.
    pub record_exists: bool,
    /// Whether contenders use the store's clock too. Front ends disagree by up to the margin.
    pub store_clock: bool,
}

impl Scope {
    /// Two clients, with renewals on a bad network.
    pub const NETWORK: Self = Self {
        clients: 2,
        any_clocks: true,
        claims: 1,
        retries: 0,
        renewals: 2,
        hand_offs: 0,
        unanswered: 1,
        doubled: 0,
        evictions: 0,
        edits: 0,
        deletions: 0,
        copies: 0,
        replicas: false,
        record_exists: true,
        store_clock: false,
    };

    /// Two responses that are lost.
    pub const SILENCE: Self = Self { renewals: 1, unanswered: 2, ..Self::NETWORK };

    /// With an operator who evicts, and duplicated requests.
    pub const OPERATOR: Self = Self { renewals: 0, doubled: 1, evictions: 1, ..Self::NETWORK };

    /// A holder that keeps renewing after it was evicted, and a person who edits the record.
    pub const EVICTED: Self = Self { unanswered: 0, evictions: 1, edits: 1, ..Self::NETWORK };

    /// With a person who deletes the record. Grants are passed on too.
    pub const BY_HAND: Self = Self {
        any_clocks: false,
        renewals: 0,
        hand_offs: 1,
        deletions: 1,
        record_exists: false,
        ..Self::NETWORK
    };

    /// A claim that is given up and tried again.
    pub const RETRIED: Self = Self { any_clocks: false, renewals: 0, retries: 1, ..Self::NETWORK };

    /// Each client acquires twice.
    pub const AGAIN: Self =
        Self { any_clocks: false, claims: 2, renewals: 1, unanswered: 0, ..Self::NETWORK };

    /// Takeovers by the store's clock.
    pub const STORE_CLOCK: Self = Self { renewals: 1, unanswered: 0, store_clock: true, ..Self::NETWORK };

    /// Grants that are passed on while renewals are in progress and responses are lost.
    pub const HAND_OFF: Self = Self { any_clocks: false, renewals: 1, hand_offs: 2, ..Self::NETWORK };

    /// The same, for holders that are evicted.
    pub const HAND_OFF_EVICTED: Self = Self { any_clocks: false, renewals: 1, hand_offs: 1, ..Self::EVICTED };

    /// A holder that is copied while it runs.
    pub const COPIED: Self = Self { any_clocks: false, copies: 1, ..Self::NETWORK };

    /// Two servers that act for one claim, and a contender.
    pub const REPLICAS: Self =
        Self { clients: 3, any_clocks: false, renewals: 0, unanswered: 0, replicas: true, ..Self::NETWORK };

    /// Three clients.
    pub const THREE: Self = Self { clients: 3, renewals: 0, unanswered: 0, ..Self::NETWORK };
}
