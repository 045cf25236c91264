//! The properties that must hold in every state, and those that must hold in some state.

use crate::LeaseModel;
use crate::time::{self, RATE_ERROR, SLACK, TTL};
use crate::world::{Client, Guard, World};

/// No two users believe in their grants at the same time, unless an operator ended one of the grants.
pub const EXCLUSION: &str = "no two guards are valid at once";
/// The record shows the grant of every user that believes in one, unless an operator ended the grant. So no other
/// client can even be granted the lock.
pub const BACKED: &str = "the record shows the grant of every valid guard";
/// In the order of commits, the token rises with each grant, so no past grant comes back.
pub const TOKENS_RISE: &str = "tokens rise, and no past grant comes back";
/// The token of every reported grant is above the tokens of all earlier grants, including grants in records that were
/// deleted by hand. A guard that is passed on gets a token that was neither reported nor granted before.
pub const TOLD_TOKENS_RISE: &str = "every reported token is above all earlier ones";
/// A user that has learned of its loss never believes again.
pub const LOST_IS_FINAL: &str = "lost is final";
/// A call that was granted the lock never returns "held".
pub const HELD_IS_TRUE: &str = "no call that was granted the lock returns held";
/// A client that has watched a dead lease for as long as the lease can last may take it over, even if others changed
/// its record in the meantime.
pub const ONLY_THE_HOLDER_PROLONGS: &str = "only its holder prolongs a lease";

/// Of a client and its copy, only one renews the grant. The other learns that it has lost the grant.
pub const ONE_COPY_RENEWS: &str = "only one of two copies renews";

/// A claim for which two servers act is not granted the lock again after its grant has ended.
pub const ENDED_IS_SPENT: &str = "no claim is granted again after its end";

/// Trace validation explains each write that a client sends, and each act of a person.
pub const EXPLAINED: &str = "trace validation explains every write";

/// A property that must hold in every state, or in some state.
#[derive(Clone, Copy, Debug)]
pub struct Property {
    /// One of the names above, or a description of a state that must be reached.
    pub name: &'static str,
    /// Whether the property must hold in every state.
    pub always: bool,
    /// Returns whether the property holds in a state.
    pub holds: fn(&LeaseModel, &World) -> bool,
}

/// All properties.
pub const ALL: [Property; 13] = [
    always(EXCLUSION, |model, world| {
        // If two servers act for one claim, their callers are one client with one token.
        let same = |guard: &Guard| blameless(model, world).all(|other| other.token == guard.token);
        let count = blameless(model, world).count();
        count <= 1 || model.scope.replicas && blameless(model, world).all(same)
    }),
    always(BACKED, |model, world| {
        let has = |guard: &Guard| world.store.is_some_and(|record| record.held && record.token == guard.top);
        blameless(model, world).all(has)
    }),
    always(TOKENS_RISE, |_, world| !world.wrongs.token_went_back),
    always(TOLD_TOKENS_RISE, |_, world| !world.wrongs.low_token_told),
    always(LOST_IS_FINAL, |_, world| !world.wrongs.lost_came_back),
    always(HELD_IS_TRUE, |_, world| !world.wrongs.held_denied),
    always(ONLY_THE_HOLDER_PROLONGS, |_, world| !world.wrongs.prolonged_by_others),
    always(ONE_COPY_RENEWS, |_, world| !world.wrongs.renewed_by_two),
    always(ENDED_IS_SPENT, |_, world| !world.wrongs.spent_was_granted),
    always(EXPLAINED, |_, world| !world.wrongs.unexplained),
    sometimes("a user believes", |model, world| believers(model, world).count() > 0),
    sometimes("a successor believes beside a holder that was lost", |model, world| {
        let lost = world.clients.iter().any(|client| client.guard.is_some_and(|guard| guard.lost));
        lost && believers(model, world).count() > 0
    }),
    sometimes("each client has asked, and there were as many grants", |model, world| {
        usize::from(world.highest) >= model.scope.clients - usize::from(model.scope.replicas)
            && world.clients.iter().take(model.scope.clients).all(|client| client.claims > 0)
    }),
];

const fn always(name: &'static str, holds: fn(&LeaseModel, &World) -> bool) -> Property {
    Property { name, always: true, holds }
}

const fn sometimes(name: &'static str, holds: fn(&LeaseModel, &World) -> bool) -> Property {
    Property { name, always: false, holds }
}

impl LeaseModel {
    /// Returns how long a holder believes in its grant, in units of its clock.
    pub(crate) fn holder_span(&self) -> i32 {
        let rate_error = if self.safeguards.rate_distances { RATE_ERROR } else { 0.0 };
        time::holder_span(f64::from(TTL), rate_error, SLACK) as i32
    }

    /// Returns how long a contender must wait, in units of its clock.
    pub(crate) fn contender_span(&self) -> i32 {
        let rate_error = if self.safeguards.rate_distances { RATE_ERROR } else { 0.0 };
        time::contender_span(f64::from(TTL), rate_error, SLACK) as i32
    }

    /// Returns the guard of `client` if its user may believe in the grant now. This corresponds to `Guard::check()`.
    pub(crate) fn belief<'a>(&self, client: &'a Client) -> Option<&'a Guard> {
        client.guard.as_ref().filter(|guard| self.in_time(client, guard))
    }

    /// Returns the guards of all users of `client` that may believe now. There are two if an earlier guard outlived the
    /// hand-off.
    pub(crate) fn beliefs<'a>(&'a self, client: &'a Client) -> impl Iterator<Item = &'a Guard> {
        client.guard.iter().chain(&client.outlived).filter(|guard| self.in_time(client, guard))
    }

    fn in_time(&self, client: &Client, guard: &Guard) -> bool {
        client.rate.elapsed(guard.age) < self.holder_span()
    }
}

fn believers<'a>(model: &'a LeaseModel, world: &'a World) -> impl Iterator<Item = &'a Guard> {
    world.clients.iter().flat_map(|client| model.beliefs(client))
}

/// Returns the users that believe, except those whose grant an operator ended, because they cannot know of it yet.
fn blameless<'a>(model: &'a LeaseModel, world: &'a World) -> impl Iterator<Item = &'a Guard> {
    believers(model, world).filter(|guard| world.pardoned & (1 << guard.top) == 0)
}
