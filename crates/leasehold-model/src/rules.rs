//! The rules of the protocol, each of which can be taken out.

/// The rules of the lease protocol (`docs/protocol.md`), two of them in their halves. `true`: it is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Rule 1, the holder. Without it: its time counts from the answer.
    pub holder_counts_from_before_the_send: bool,
    /// Rule 1, the contender. Without it: its time counts from when it asked.
    pub contender_counts_from_the_answer: bool,
    /// Rule 2. Without it: all writes of a claim bear the same nonce.
    pub fresh_nonces: bool,
    /// Rule 3. Without it: a release deletes the record.
    pub release_keeps_the_record: bool,
    /// Rule 4. Without it: a conflict, or no answer, is taken for a refusal.
    pub unknown_until_read_back: bool,
    /// Rule 5. Without it: an unexpected record of one's own is adopted when it is read.
    pub adopted_only_by_a_write: bool,
    /// Rule 6. Without it: belief ends when the release has been answered.
    pub belief_ends_before_the_release: bool,
    /// Rule 7. Without it: a renewal goes over whatever it finds.
    pub renewal_is_no_acquisition: bool,
    /// Rule 8. Without it: a lease is told alive by its version.
    pub alive_by_grant_and_beat: bool,
    /// Rule 9. Without it: a renewal that is answered after the deadline prolongs the lease.
    pub lost_is_final: bool,
    /// Rule 10. Without it: whoever finds another's record after a write of unknown fate says "held".
    pub may_have_held_is_lost: bool,
    /// Rule 11. Without it: what a copy of the client has renewed is taken for what some earlier write of its own has left.
    pub what_a_copy_renews_is_lost: bool,
}

impl Rules {
    /// All of them.
    pub const ALL: Self = Self {
        holder_counts_from_before_the_send: true,
        contender_counts_from_the_answer: true,
        fresh_nonces: true,
        release_keeps_the_record: true,
        unknown_until_read_back: true,
        adopted_only_by_a_write: true,
        belief_ends_before_the_release: true,
        renewal_is_no_acquisition: true,
        alive_by_grant_and_beat: true,
        lost_is_final: true,
        may_have_held_is_lost: true,
        what_a_copy_renews_is_lost: true,
    };
}

/// What else keeps the promise, beside the eleven rules. `true`: it is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Safeguards {
    /// The distances that make up for clock rates: the holder's span is shorter than the ttl, the contender's longer.
    pub rate_distances: bool,
    /// The margin on a takeover by the store's clock, for front ends that disagree.
    pub margin: bool,
    /// A record is written with the upper bound of the store's clock, and judged by the lower one.
    pub outer_bounds: bool,
    /// A create marks its record as newborn: the next token comes from the store's clock.
    pub newborn_mark: bool,
    /// A create that was answered late, or read back, is written once more before anybody is told.
    pub late_creates_are_written_again: bool,
    /// A release takes the newborn mark off the record whose grant was answered in time, and off no other that a late
    /// create of the same claim has left.
    pub only_the_answered_record_is_confirmed: bool,
    /// Rule 10 asks the record's history too: a conflict may be the answer to the second copy of a request of which the
    /// first was committed.
    pub history_tells: bool,
    /// Hand-off: a grant over no record has one token, since nothing tells which were used before.
    pub a_create_has_one_token: bool,
    /// Hand-off: so has a grant over a newborn record.
    pub over_a_newborn_one_token: bool,
    /// Hand-off: the record's token is raised by as many as may be used, so that nobody else is granted one of them.
    pub tokens_are_reserved: bool,
    /// Hand-off: whoever had the lock before is dead before the next token is given out.
    pub dead_before_the_next: bool,
    /// Hand-off: what is known to be lost is passed on to nobody.
    pub lost_goes_to_nobody: bool,
    /// Hand-off: the next one's time counts from where the grant's does, not from the hand-off.
    pub deadline_is_the_grants: bool,
}

impl Safeguards {
    /// All of them.
    pub const ALL: Self = Self {
        rate_distances: true,
        margin: true,
        outer_bounds: true,
        newborn_mark: true,
        late_creates_are_written_again: true,
        only_the_answered_record_is_confirmed: true,
        history_tells: true,
        a_create_has_one_token: true,
        over_a_newborn_one_token: true,
        tokens_are_reserved: true,
        dead_before_the_next: true,
        lost_goes_to_nobody: true,
        deadline_is_the_grants: true,
    };
}
