//! The flaws that the store can have.

macro_rules! flaws {
    ($($flaw:ident,)*) => {
        /// A flaw of the store.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Flaw {
            $($flaw,)*
        }

        /// All flaws.
        pub(crate) const FLAWS: &[Flaw] = &[$(Flaw::$flaw,)*];
    };
}

flaws! {
    TokenStaysAfterRelease,
    TokenStaysAfterLapse,
    TokenStaysAfterEviction,
    TokenForgottenWithTheRecord,
    TakesOverEarly,
    NeverLapses,
    TtlOfTheContenderRules,
    LockDelayIgnored,
    LockDelayAfterRelease,
    RefusesItsOwnClaim,
    AsksAndActsApart,
    TakesOverByAskingAndActingApart,
    HolderIsUnknown,
    OneLockForAll,
    CaseDoesNotMatter,
    NamesEndAtPercent,
    DeadlineTooLate,
    DeadlineNotMoved,
    RenewalTakesBack,
    RenewalUndoesEviction,
    RenewalBringsBackTheRecord,
    RenewalNotStored,
    RenewalNeedsMemo,
    ReleaseBlind,
    ReleaseNotAtOnce,
    ReleaseBringsBackTheRecord,
    RestIgnored,
    RestForgotten,
    EvictionBlind,
    EvictionForgetsTheSize,
    EvictionDoesNothing,
    MissesRelease,
    // The store claims to have a line of waiters and has none.
    ServesInAnyOrder,
    HidesWhatWaitersHold,
    HidesWhoIsBefore,
    NamesTheFirstAsBefore,
    KeepsTheLockForTheDead,
    PassesOverAllAtOnce,
    MissesEviction,
    MissesLapse,
    MissesReleaseBeforeTheWait,
    InspectsNothing,
    InspectsLapseEarly,
    NoHistory,
    HistoryBackwards,
    PrefixIgnored,
    FirstPageOnly,
    DetachEnds,
    SpentIdIsGranted,
    RepetitionShortensTheLease,
    RenewalByTheTtlOfTheTicket,
    TicketsTokenIgnored,
}
