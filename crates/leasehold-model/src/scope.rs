//! The bounds of a history. Everything else is unbounded: reads, conflicts, and time.

/// A scope: the bounds that make the state space finite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scope {
    /// The number of clients: two or three.
    pub clients: usize,
    /// Whether each client's clock may be slow or fast. If not, the first clock is slow and the others are fast.
    pub any_clocks: bool,
    /// How often each client acquires the lock, with a new claim each time.
    pub claims: u8,
    /// How many times a client retries a claim that it gave up.
    pub retries: u8,
    /// How many renewals each grant may send.
    pub renewals: u8,
    /// How many times each grant may be passed on within its process. The grant has the same number of additional
    /// tokens.
    pub hand_offs: u8,
    /// How many writes, in total, are given up before their response arrives. Each of them may have been applied
    /// already, may be applied later, or may never be applied.
    pub unanswered: u8,
    /// How many writes, in total, arrive twice, at any two times. Either copy may get the response.
    pub doubled: u8,
    /// How many current grants an operator evicts.
    pub evictions: u8,
    /// How many times the record is edited without changing its meaning.
    pub edits: u8,
    /// How many times the record is deleted by hand.
    pub deletions: u8,
    /// Whether the record is also deleted within the tick of a grant. Tokens then do not always rise.
    pub deletes_new_grants: bool,
    /// How many times a client that holds the lock is copied while it runs. The copy replaces an idle client.
    pub copies: u8,
    /// Whether the first two clients are servers that act for one claim. The client of the claim sends its request to
    /// both, at any times, and may withdraw the claim through either. `claims` is then the number of requests that each
    /// server receives.
    pub replicas: bool,
    /// Whether the record exists at the start. If not, the first grant creates it.
    pub record_exists: bool,
    /// Whether contenders also use the store's clock. The clocks of its front ends differ by up to the margin.
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
        deletes_new_grants: false,
        copies: 0,
        replicas: false,
        record_exists: true,
        store_clock: false,
    };

    /// Two responses are lost.
    pub const SILENCE: Self = Self { renewals: 1, unanswered: 2, ..Self::NETWORK };

    /// An operator evicts a holder, and a request is duplicated.
    pub const OPERATOR: Self = Self { renewals: 0, doubled: 1, evictions: 1, ..Self::NETWORK };

    /// A holder keeps renewing after it was evicted, and a person edits the record.
    pub const EVICTED: Self = Self { unanswered: 0, evictions: 1, edits: 1, ..Self::NETWORK };

    /// A person deletes the record, and grants are passed on.
    pub const BY_HAND: Self = Self {
        any_clocks: false,
        renewals: 0,
        hand_offs: 1,
        deletions: 1,
        record_exists: false,
        ..Self::NETWORK
    };

    /// A claim is given up and retried.
    pub const RETRIED: Self = Self { any_clocks: false, renewals: 0, retries: 1, ..Self::NETWORK };

    /// Each client acquires the lock twice.
    pub const AGAIN: Self =
        Self { any_clocks: false, claims: 2, renewals: 1, unanswered: 0, ..Self::NETWORK };

    /// Takeovers by the store's clock.
    pub const STORE_CLOCK: Self = Self { renewals: 1, unanswered: 0, store_clock: true, ..Self::NETWORK };

    /// Grants are passed on while renewals are in progress and responses are lost.
    pub const HAND_OFF: Self = Self { any_clocks: false, renewals: 1, hand_offs: 2, ..Self::NETWORK };

    /// Grants are passed on, and a holder is evicted.
    pub const HAND_OFF_EVICTED: Self = Self { any_clocks: false, renewals: 1, hand_offs: 1, ..Self::EVICTED };

    /// A holder is copied while it runs.
    pub const COPIED: Self = Self { any_clocks: false, copies: 1, ..Self::NETWORK };

    /// Two servers act for one claim, and a third client contends.
    pub const REPLICAS: Self =
        Self { clients: 3, any_clocks: false, renewals: 0, unanswered: 0, replicas: true, ..Self::NETWORK };

    /// Three clients.
    pub const THREE: Self = Self { clients: 3, renewals: 0, unanswered: 0, ..Self::NETWORK };
}
