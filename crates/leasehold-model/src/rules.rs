//! The rules of the protocol. Each rule can be removed.

/// The rules of the lease protocol (`docs/protocol.md`). Rule 1 has two parts, and rule 12 has three. A rule is
/// followed if its field is `true`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Rule 1, the holder. Without it, the holder's time counts from the response.
    pub holder_counts_from_before_the_send: bool,
    /// Rule 1, the contender. Without it, the contender's time counts from its request.
    pub contender_counts_from_the_answer: bool,
    /// Rule 2. Without it, all writes of a claim have the same nonce.
    pub fresh_nonces: bool,
    /// Rule 3. Without it, a release deletes the record.
    pub release_keeps_the_record: bool,
    /// Rule 4. Without it, a conflict or a missing response counts as a refusal.
    pub unknown_until_read_back: bool,
    /// Rule 5. Without it, an unexpected record of the client's own claim is adopted when it is read.
    pub adopted_only_by_a_write: bool,
    /// Rule 6. Without it, belief ends when the response to the release arrives.
    pub belief_ends_before_the_release: bool,
    /// Rule 7. Without it, a renewal overwrites any record.
    pub renewal_is_no_acquisition: bool,
    /// Rule 8. Without it, any new version counts as a sign of life.
    pub alive_by_grant_and_beat: bool,
    /// Rule 9. Without it, a renewal whose response arrives after the deadline extends the lease.
    pub lost_is_final: bool,
    /// Rule 10. Without it, a client that finds another client's record after a write with an unknown outcome returns
    /// "held".
    pub may_have_held_is_lost: bool,
    /// Rule 11. Without it, a record that a copy of the client has renewed counts as the result of the client's own
    /// earlier write.
    pub what_a_copy_renews_is_lost: bool,
    /// Rule 12, the token. Without it, a repeated request of a claim that holds the lock is granted a new token.
    pub repetitions_keep_the_token: bool,
    /// Rule 12, the end. Without it, a repeated request of a claim whose grant has ended is granted the lock.
    pub ended_claims_are_spent: bool,
    /// Rule 12, the clean-up. Without it, a server that gives up a claim ends the grant that it finds under the claim's
    /// id.
    pub servers_end_no_grant_by_id: bool,
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
        repetitions_keep_the_token: true,
        ended_claims_are_spent: true,
        servers_end_no_grant_by_id: true,
    };
}

/// The safeguards besides the twelve rules. A safeguard is in place if its field is `true`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Safeguards {
    /// The allowance for clock rates: the holder's span is shorter than the ttl, and the contender's span is longer.
    pub rate_distances: bool,
    /// The margin of a takeover by the store's clock, for front ends whose clocks differ.
    pub margin: bool,
    /// A record is written with the upper bound of the store's clock and judged by the lower bound.
    pub outer_bounds: bool,
    /// A create marks its record as unconfirmed, so that the next token comes from the store's clock.
    pub unconfirmed_mark: bool,
    /// If the response to a create was late, or if the create was found by reading, it is written again before its
    /// grant is reported.
    pub late_creates_are_written_again: bool,
    /// A release removes the unconfirmed mark only from the record whose grant got its response in time. It does not
    /// remove the mark from a record that a late create of the same claim has left.
    pub only_the_answered_record_is_confirmed: bool,
    /// Rule 10 also checks the record's history, because a conflict may be the response to the duplicate of a request
    /// whose first copy was committed.
    pub history_tells: bool,
    /// Hand-off: a grant that creates the record has one token, because nothing shows which tokens were used before.
    pub a_create_has_one_token: bool,
    /// Hand-off: a grant over an unconfirmed record also has one token.
    pub over_an_unconfirmed_one_token: bool,
    /// Hand-off: a grant raises the record's token by the number of tokens that it may use, so that no other grant gets
    /// one of them.
    pub tokens_are_reserved: bool,
    /// Hand-off: the previous guard is invalidated before the next token is issued.
    pub invalidated_before_the_next: bool,
    /// Hand-off: a grant that is known to be lost is not passed on.
    pub lost_is_not_passed_on: bool,
    /// Hand-off: the next guard's time counts from the grant, not from the hand-off.
    pub deadline_is_the_grants: bool,
}

impl Safeguards {
    /// All of them.
    pub const ALL: Self = Self {
        rate_distances: true,
        margin: true,
        outer_bounds: true,
        unconfirmed_mark: true,
        late_creates_are_written_again: true,
        only_the_answered_record_is_confirmed: true,
        history_tells: true,
        a_create_has_one_token: true,
        over_an_unconfirmed_one_token: true,
        tokens_are_reserved: true,
        invalidated_before_the_next: true,
        lost_is_not_passed_on: true,
        deadline_is_the_grants: true,
    };
}
