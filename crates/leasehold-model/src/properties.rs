//! What must hold in every state, and what must be reached in some.

use crate::LeaseModel;
use crate::time::{self, RATE_ERROR, SLACK, TTL};
use crate::world::{Client, Guard, World};

/// Never do two believe in their grants, unless an operator ended one of them.
pub const EXCLUSION: &str = "no two believe at once";
/// Whoever believes has the record, unless an operator ended the grant: nobody else even can be granted the lock.
pub const BACKED: &str = "who believes has the record";
/// Tokens rise with each grant in the order of commits; so no grant that is over comes back.
pub const TOKENS_RISE: &str = "tokens rise, and no grant that is over comes back";
/// Whoever is told a grant is told a token above those of all grants before, also of records deleted by hand; and whomever
/// it is passed on to, a token that nobody was told or granted before.
pub const TOLD_TOKENS_RISE: &str = "nobody is told a token that is not above all before";
/// A guard that reported its loss believes no more.
pub const LOST_IS_FINAL: &str = "lost is final";
/// "Held" is said to nobody who was granted the lock by the same call.
pub const HELD_IS_TRUE: &str = "held is said to nobody who was granted it";
/// Whoever has watched a dead lease for as long as it can last may have it, whatever else became of its record.
pub const PROLONGED_BY_NOBODY_ELSE: &str = "nobody but its holder prolongs a lease";

/// Of a client and its copy only one renews what they hold: the other one hears that it is lost.
pub const ONE_COPY_RENEWS: &str = "of two copies only one renews";

/// Something that must hold in every state, or be reached in some.
#[derive(Clone, Copy, Debug)]
pub struct Property {
    /// One of the names above, or what has to be reached.
    pub name: &'static str,
    /// Whether it must hold in every state.
    pub always: bool,
    /// Whether it holds in this one.
    pub holds: fn(&LeaseModel, &World) -> bool,
}

/// All of them.
pub const ALL: [Property; 11] = [
    always(EXCLUSION, |model, world| blameless(model, world).count() <= 1),
    always(BACKED, |model, world| {
        let has = |guard: &Guard| world.store.is_some_and(|record| record.held && record.token == guard.top);
        blameless(model, world).all(has)
    }),
    always(TOKENS_RISE, |_, world| !world.wrongs.token_went_back),
    always(TOLD_TOKENS_RISE, |_, world| !world.wrongs.low_token_told),
    always(LOST_IS_FINAL, |_, world| !world.wrongs.lost_came_back),
    always(HELD_IS_TRUE, |_, world| !world.wrongs.held_denied),
    always(PROLONGED_BY_NOBODY_ELSE, |_, world| !world.wrongs.prolonged_by_others),
    always(ONE_COPY_RENEWS, |_, world| !world.wrongs.renewed_by_two),
    sometimes("somebody believes", |model, world| believers(model, world).count() > 0),
    sometimes("a successor believes beside a holder that was lost", |model, world| {
        let lost = world.clients.iter().any(|client| client.guard.is_some_and(|guard| guard.lost));
        lost && believers(model, world).count() > 0
    }),
    sometimes("each client has asked, and there were as many grants", |model, world| {
        usize::from(world.highest) >= model.scope.clients
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
    /// How long a holder believes, in units of its clock.
    pub(crate) fn holder_span(&self) -> i32 {
        let rate_error = if self.safeguards.rate_distances { RATE_ERROR } else { 0.0 };
        time::holder_span(f64::from(TTL), rate_error, SLACK) as i32
    }

    /// How long a contender has to wait, in units of its clock.
    pub(crate) fn contender_span(&self) -> i32 {
        let rate_error = if self.safeguards.rate_distances { RATE_ERROR } else { 0.0 };
        time::contender_span(f64::from(TTL), rate_error, SLACK) as i32
    }

    /// The guard's `check()`: whether the user of `client` may believe in its grant. By the clock each time.
    pub(crate) fn belief<'a>(&self, client: &'a Client) -> Option<&'a Guard> {
        client.guard.as_ref().filter(|guard| self.in_time(client, guard))
    }

    /// The same of each user: there is one before, if it outlived the hand-off.
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

/// Without those whose grant was ended by hand, who cannot know it yet.
fn blameless<'a>(model: &'a LeaseModel, world: &'a World) -> impl Iterator<Item = &'a Guard> {
    believers(model, world).filter(|guard| world.pardoned & (1 << guard.top) == 0)
}
