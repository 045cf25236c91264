//! Prints histories for people.

use std::fmt::{self, Write};

use crate::world::{Record, Request, Token, World};
use crate::{Action, Copy, LeaseModel};

impl LeaseModel {
    /// Describes `actions` from `beginning`, line by line. Each line shows the true time in ticks and the action. If
    /// the record in the store or the set of believing users changes, the line also shows the new value.
    pub fn story(&self, beginning: World, actions: &[Action]) -> String {
        let (mut text, mut world, mut ticks) = (String::new(), beginning, 0);
        for (i, client) in world.clients.iter().enumerate().take(self.scope.clients) {
            let _ = writeln!(text, "        client {i} has a {:?} clock", client.rate);
        }
        for action in actions {
            let Some(next) = self.next(&world, *action) else { continue };
            if *action == Action::Tick {
                ticks += 1;
            }
            let _ = write!(text, "  t={ticks:<3} {:<66}", action.to_string());
            let (before, after) = (Shown(world.store).to_string(), Shown(next.store).to_string());
            if after != before {
                let _ = write!(text, " store: {after}");
            }
            if self.believing(&next) != self.believing(&world) {
                let _ = write!(text, " believing (client, token): {:?}", self.believing(&next));
            }
            text.truncate(text.trim_end().len());
            text.push('\n');
            world = next;
        }
        text
    }

    /// Returns the clients whose users believe in a grant, with the tokens of their guards.
    fn believing(&self, world: &World) -> Vec<(usize, Token)> {
        let clients = world.clients.iter().enumerate();
        clients.flat_map(|(i, client)| self.beliefs(client).map(move |guard| (i, guard.token))).collect()
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::Tick => write!(f, "a tick passes"),
            Action::Start(who) => write!(f, "client {who} asks for the lock"),
            Action::Retry(who) => write!(f, "client {who} asks again with the same claim"),
            Action::Look(who) => write!(f, "client {who}, waiting, reads"),
            Action::TakeKnown(who) => write!(f, "client {who}, waiting, writes over what it saw"),
            Action::Read(who) => write!(f, "the store answers the read of client {who}"),
            Action::Receive(who) => write!(f, "client {who} receives its response"),
            Action::GiveUp(who) => write!(f, "client {who} stops waiting for the response"),
            Action::Abandon(who) => write!(f, "client {who} withdraws its claim"),
            Action::StopServing(who) => write!(f, "server {who} gives up the claim"),
            Action::Withdraw(who) => write!(f, "the client withdraws the claim through server {who}"),
            Action::Renew(who) => write!(f, "client {who} sends a renewal"),
            Action::PassOn(who) => write!(f, "client {who} passes the lock on to its next task"),
            Action::Release(who) => write!(f, "client {who} sends a release"),
            Action::Quit(who) => write!(f, "client {who} stops releasing"),
            Action::Deliver(Request { from, write, .. }, copy) => {
                write!(f, "client {from}'s write of {} arrives", Shown(*write))?;
                if *copy == Copy::None { Ok(()) } else { write!(f, ", and will again") }
            }
            Action::Evict => write!(f, "an operator evicts the holder"),
            Action::Edit => write!(f, "a person edits the record"),
            Action::Delete => write!(f, "a person deletes the record"),
            Action::Clone(from, to) => write!(f, "client {from} is copied while it runs, to client {to}"),
        }
    }
}

struct Shown(Option<Record>);

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(Record { held, token, grant, heartbeat, unconfirmed, .. }) = self.0 else {
            return write!(f, "nothing");
        };
        let state = if held { "held" } else { "free" };
        let unconfirmed = if unconfirmed { " unconfirmed" } else { "" };
        write!(f, "[{state} token {token} claim {grant} heartbeat {heartbeat}{unconfirmed}]")
    }
}
