//! Checks the model with stateright.

use std::collections::BTreeSet;

use leasehold_model::coverage::Coverage;
use leasehold_model::properties::{ALL, Property as Promise};
use leasehold_model::scope::Scope;
use leasehold_model::world::World;
use leasehold_model::{Action, LeaseModel};
use stateright::{Checker, HasDiscoveries, Model, Path, Property};

/// The adapter between the model and stateright.
struct Checked(LeaseModel);

impl Model for Checked {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        self.0.beginnings()
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        self.0.actions(world, actions);
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        self.0.next(world, action)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = Vec::with_capacity(ALL.len());
        macro_rules! each {
            ($($i:literal)*) => {$({
                let Promise { name, always, .. } = ALL[$i];
                let holds: fn(&Self, &World) -> bool = |model, world| (ALL[$i].holds)(&model.0, world);
                properties.push(match always {
                    true => Property::always(name, holds),
                    false => Property::sometimes(name, holds),
                });
            })*};
        }
        each!(0 1 2 3 4 5 6 7 8 9 10 11 12);
        properties
    }
}

/// Returns the number of processors. The checker uses all of them.
fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Returns the small or the large scope, depending on the environment variable `LEASEHOLD_MODEL_SCOPE`.
pub(crate) fn scale(small: Scope, large: Scope) -> Scope {
    match std::env::var("LEASEHOLD_MODEL_SCOPE").as_deref() {
        Ok("large") => large,
        Ok("small") | Err(_) => small,
        Ok(other) => panic!("LEASEHOLD_MODEL_SCOPE is `small` or `large`, and not `{other}`"),
    }
}

/// Checks all histories. Asserts that no property is violated, that every required state is reached, and that there are
/// at least `at_least` states.
pub(crate) fn holds(model: LeaseModel, at_least: usize) -> Coverage {
    let scope = model.scope;
    let checker = Checked(model)
        .checker()
        .threads(threads())
        .finish_when(HasDiscoveries::AnyFailures)
        .spawn_dfs()
        .join();
    let states = checker.unique_state_count();
    println!("{states} states, {} transitions, {scope:?}", checker.state_count());
    for promise in &ALL {
        match (promise.always, checker.discovery(promise.name)) {
            (true, Some(path)) => panic!("broken: {}\n{}", promise.name, told(&checker, path)),
            (false, None) => panic!("never reached: {}", promise.name),
            _ => {}
        }
    }
    assert!(states >= at_least, "only {states} states");
    checker.model().0.coverage.clone()
}

/// Checks until a history breaks `promise`, and prints a shortest such history.
pub(crate) fn is_broken(promise: &'static str, model: LeaseModel) {
    let scope = model.scope;
    let checker = Checked(model)
        .checker()
        .threads(1) // The first counterexample found is then a shortest one.
        .finish_when(HasDiscoveries::AnyOf(BTreeSet::from([promise])))
        .spawn_bfs()
        .join();
    let states = checker.unique_state_count();
    let Some(path) = checker.discovery(promise) else {
        panic!("in none of {states} states is this broken: {promise} ({scope:?})");
    };
    println!("after {states} states, broken: {promise}\n{}", told(&checker, path));
}

fn told(checker: &impl Checker<Checked>, path: Path<World, Action>) -> String {
    let steps = path.into_vec();
    let actions: Vec<_> = steps.iter().filter_map(|(_, action)| *action).collect();
    checker.model().0.story(steps[0].0, &actions)
}
