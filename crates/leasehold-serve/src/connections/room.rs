//! Room for connections: how many may be open, and which of them is closed to make room for a new one.
//!
//! A connection may always be closed, except while it has a complete request of a caller with rights. So clients without such
//! rights cannot take the room of others, however many connections they open and however slowly they read or write. At a
//! limit, the connection is closed that has been without such a request for the longest time; first those that never
//! had one.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::peer::network;

/// How many connections may be open.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MostConnections {
    pub(crate) in_total: usize,
    pub(crate) per_address: usize,
}

/// The open connections of a listener.
#[derive(Debug)]
pub(super) struct Room {
    most: MostConnections,
    state: Mutex<State>,
    /// Notified when a connection ends or may be closed.
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// The number of the next change.
    next: u64,
    open: HashMap<u64, Open>,
    addresses: HashMap<IpAddr, Address>,
    /// The connections that may be closed, in this order.
    spare: BTreeMap<Order, u64>,
}

/// An open connection.
#[derive(Debug)]
struct Open {
    address: IpAddr,
    /// Cancelled when the connection must make room.
    closed: CancellationToken,
    /// How many requests of callers with rights it has.
    requests: usize,
    /// Its position among the connections that may be closed.
    order: Option<Order>,
}

/// The connections of one address.
#[derive(Debug, Default)]
struct Address {
    open: usize,
    spare: BTreeMap<Order, u64>,
}

/// The order in which connections are closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Order {
    /// Whether the connection has had a request of a caller with rights.
    is_known: bool,
    /// The change since which it may be closed.
    since: u64,
}

/// Why there is no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Full {
    /// All connections of this address have requests.
    Address,
    /// All connections have requests.
    All,
}

/// The place of a connection. Dropping it makes room for another one.
#[derive(Debug)]
pub(super) struct Place(Handle);

/// Refers to the place of a connection.
#[derive(Clone, Debug)]
pub(crate) struct Handle {
    room: Arc<Room>,
    id: u64,
    closed: CancellationToken,
}

/// A request of a caller with rights. Until it is dropped, its connection is not closed to make room.
#[derive(Debug)]
pub(crate) struct InProgress(Handle);

impl Room {
    pub(super) fn new(most: MostConnections) -> Arc<Self> {
        Arc::new(Self { most, state: Mutex::default(), changed: Notify::new() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a place for a connection from `address`. Closes another connection if necessary.
    pub(super) fn enter(self: &Arc<Self>, address: IpAddr) -> Result<Place, Full> {
        let address = network(address);
        let mut state = self.state();
        if state.addresses.get(&address).is_some_and(|own| own.open >= self.most.per_address) {
            let oldest = state.addresses.get(&address).and_then(|own| own.spare.first_key_value());
            let id = oldest.map(|(_, id)| *id).ok_or(Full::Address)?;
            state.close(id);
        }
        if state.open.len() >= self.most.in_total {
            let id = state.spare.first_key_value().map(|(_, id)| *id).ok_or(Full::All)?;
            state.close(id);
        }
        let (id, closed) = (state.number(), CancellationToken::new());
        state.open.insert(id, Open { address, closed: closed.clone(), requests: 0, order: None });
        state.addresses.entry(address).or_default().open += 1;
        state.may_close(id, false);
        Ok(Place(Handle { room: self.clone(), id, closed }))
    }

    /// Completes when a connection has ended or may be closed since this method was called.
    pub(super) fn changed(&self) -> impl Future<Output = ()> {
        self.changed.notified()
    }

    /// Completes when no connection is open.
    pub(super) async fn empty(&self) {
        loop {
            let changed = self.changed();
            if self.state().open.is_empty() {
                return;
            }
            changed.await;
        }
    }

    /// Returns the number of the next change, for [`close_spare_before`](Self::close_spare_before).
    pub(super) fn mark(&self) -> u64 {
        self.state().next
    }

    /// Closes the connections that have had no request of a caller with rights since `mark`.
    pub(super) fn close_spare_before(&self, mark: u64) {
        let mut state = self.state();
        let old = state.spare.iter().filter(|(order, _)| order.since < mark);
        for id in old.map(|(_, id)| *id).collect::<Vec<_>>() {
            state.close(id);
        }
        drop(state);
        self.changed.notify_waiters();
    }
}

impl State {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    /// Adds the connection to those that may be closed.
    fn may_close(&mut self, id: u64, is_known: bool) {
        let order = Order { is_known, since: self.number() };
        let Some(open) = self.open.get_mut(&id) else { return };
        open.order = Some(order);
        self.spare.insert(order, id);
        if let Some(address) = self.addresses.get_mut(&open.address) {
            address.spare.insert(order, id);
        }
    }

    /// Removes the connection from those that may be closed.
    fn must_stay(&mut self, id: u64) {
        let Some(open) = self.open.get_mut(&id) else { return };
        let Some(order) = open.order.take() else { return };
        self.spare.remove(&order);
        if let Some(address) = self.addresses.get_mut(&open.address) {
            address.spare.remove(&order);
        }
    }

    /// Removes the connection.
    fn leave(&mut self, id: u64) -> Option<Open> {
        self.must_stay(id);
        let open = self.open.remove(&id)?;
        if let Some(address) = self.addresses.get_mut(&open.address) {
            address.open -= 1;
            if address.open == 0 {
                self.addresses.remove(&open.address);
            }
        }
        Some(open)
    }

    /// Closes the connection, and removes it at once.
    fn close(&mut self, id: u64) {
        if let Some(open) = self.leave(id) {
            open.closed.cancel();
        }
    }
}

impl Place {
    pub(super) fn handle(&self) -> &Handle {
        &self.0
    }

    /// Completes when the connection must make room.
    pub(super) async fn closed(&self) {
        self.0.closed.cancelled().await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.room.state().leave(self.0.id);
        self.0.room.changed.notify_waiters();
    }
}

impl Handle {
    /// Marks that the connection has a request of a caller with rights.
    pub(crate) fn begin(&self) -> InProgress {
        let mut state = self.room.state();
        state.must_stay(self.id);
        if let Some(open) = state.open.get_mut(&self.id) {
            open.requests += 1;
        }
        drop(state);
        InProgress(self.clone())
    }
}

/// The request of a caller with rights, whose body may still arrive. Until it has arrived, the connection may be closed
/// to make room, so a client that sends slowly takes no room of others.
#[derive(Clone, Debug)]
pub(crate) struct Arriving {
    place: Handle,
    begun: Arc<Mutex<Option<InProgress>>>,
}

impl Arriving {
    pub(crate) fn new(place: &Handle) -> Self {
        Self { place: place.clone(), begun: Arc::default() }
    }

    /// Marks that the request has arrived completely.
    pub(crate) fn arrived(&self) {
        self.begun().get_or_insert_with(|| self.place.begin());
    }

    /// Returns the request, if it has arrived.
    pub(crate) fn into_progress(self) -> Option<InProgress> {
        self.begun().take()
    }

    fn begun(&self) -> MutexGuard<'_, Option<InProgress>> {
        self.begun.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for InProgress {
    fn drop(&mut self) {
        let (room, id) = (&self.0.room, self.0.id);
        let mut state = room.state();
        let Some(open) = state.open.get_mut(&id) else { return };
        open.requests -= 1;
        if open.requests == 0 {
            state.may_close(id, true);
        }
        drop(state);
        room.changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    fn room(in_total: usize, per_address: usize) -> Arc<Room> {
        Room::new(MostConnections { in_total, per_address })
    }

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn is_closed(place: &Place) -> bool {
        place.closed().now_or_never().is_some()
    }

    #[test]
    fn the_oldest_connection_without_a_caller_makes_room() {
        let (room, one) = (room(3, 3), address("10.0.0.1"));
        let known = room.enter(one).unwrap();
        drop(known.handle().begin());
        let (first, second) = (room.enter(one).unwrap(), room.enter(one).unwrap());
        let _third = room.enter(one).unwrap();
        assert!(is_closed(&first) && !is_closed(&second) && !is_closed(&known));
        let _fourth = room.enter(one).unwrap();
        assert!(is_closed(&second) && !is_closed(&known));
    }

    #[test]
    fn a_connection_with_a_callers_request_is_not_closed() {
        let (room, one) = (room(2, 2), address("10.0.0.1"));
        let places = [room.enter(one).unwrap(), room.enter(one).unwrap()];
        let mut requests: Vec<_> = places.iter().map(|place| place.handle().begin()).collect();
        assert_eq!(room.enter(one).unwrap_err(), Full::Address);
        assert_eq!(room.enter(address("10.0.0.2")).unwrap_err(), Full::All);
        let changed = room.changed();
        requests.pop();
        assert!(changed.now_or_never().is_some());
        let _new = room.enter(one).unwrap();
        assert!(!is_closed(&places[0]) && is_closed(&places[1]));
    }

    #[test]
    fn one_address_cannot_take_the_room_of_others() {
        let room = room(4, 2);
        let (one, other) = (address("10.0.0.1"), address("10.0.0.2"));
        let others = [room.enter(other).unwrap(), room.enter(other).unwrap()];
        let mut ours = Vec::new();
        for _ in 0..10 {
            ours.push(room.enter(one).unwrap());
        }
        assert!(others.iter().all(|place| !is_closed(place)));
        assert_eq!(ours.iter().filter(|place| !is_closed(place)).count(), 2);
        drop((ours, others));
        assert!(room.empty().now_or_never().is_some() && room.state().addresses.is_empty());
    }

    #[test]
    fn only_connections_without_a_request_since_the_mark_are_closed() {
        let (room, one) = (room(4, 4), address("10.0.0.1"));
        let places: Vec<_> = (0..3).map(|_| room.enter(one).unwrap()).collect();
        let _runs = places[0].handle().begin();
        let ends = places[1].handle().begin();
        let mark = room.mark();
        drop(ends);
        room.close_spare_before(mark);
        assert_eq!(places.iter().map(is_closed).collect::<Vec<_>>(), [false, false, true]);
    }
}
