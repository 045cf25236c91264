//! The connection to a primary. All requests share one connection, because the server runs one script at a time. It is
//! opened on demand, and replaced when it is lost or does not respond.

use std::sync::Arc;

use redis::aio::MultiplexedConnection;
use redis::{RedisError, RedisResult, ScriptInvocation, Value};

use super::connect::Connector;
use super::errors;
use super::link::Link;
use crate::clock::StoreClock;
use crate::env::Env;
use crate::error::StoreError;
use crate::stores::notifications::Calls;
use crate::stores::on_demand::OnDemand;

/// The connection to a primary.
#[derive(Debug)]
pub(super) struct Links {
    pub(super) connector: Connector,
    pub(super) env: Env,
    pub(super) calls: Arc<Calls>,
    current: Arc<OnDemand<Link>>,
    /// The clock of the server.
    pub(super) clock: StoreClock,
}

impl Links {
    pub(super) fn new(connector: Connector, env: Env, calls: Arc<Calls>) -> Self {
        Self { connector, calls, current: OnDemand::new(env.clone()), env, clock: StoreClock::default() }
    }

    pub(super) fn opened(&self) -> Option<Arc<Link>> {
        self.current.opened()
    }

    /// Returns the connection to the primary.
    pub(super) async fn link(self: &Arc<Self>) -> Result<Arc<Link>, StoreError> {
        let (links, listens) = (self.clone(), self.clone());
        let open = async move { links.connector.connect(&links.env, &links.calls, &links.clock).await };
        let in_use = move || {
            if listens.calls.are_expected() {
                listens.listen();
            }
        };
        self.current.get(open, in_use).await
    }

    pub(super) fn close(&self) {
        self.current.close();
    }

    /// Sends a script over `link`. `asks` is whether another server sent the request on to this one, because the slot
    /// moves here.
    pub(super) async fn invoke(
        &self,
        link: &Arc<Link>,
        script: &ScriptInvocation<'_>,
        asks: bool,
    ) -> Result<Value, RedisError> {
        let mut connection = link.connection.clone();
        match asks {
            false => self.run(link, script.invoke_async(&mut connection)).await,
            true => self.run(link, asked(&mut connection, script)).await,
        }
    }

    /// Waits for the response to a request over `link`.
    pub(super) async fn run<T>(
        &self,
        link: &Arc<Link>,
        request: impl Future<Output = RedisResult<T>>,
    ) -> RedisResult<T> {
        let answer = self.current.response(link, request).await;
        answer.inspect_err(|error| {
            if errors::is_of_this_server(error) {
                self.current.give_up(link);
            }
        })
    }
}

/// Sends a script with the command that lets the server run it before it has the whole slot. Sends both at once, because
/// the command is for the next one on the connection.
async fn asked(
    connection: &mut MultiplexedConnection,
    script: &ScriptInvocation<'_>,
) -> Result<Value, RedisError> {
    script.load_async(connection).await?;
    let mut both = redis::pipe();
    both.cmd("ASKING").ignore().invoke_script(script).ignore_errors();
    let (answer,): (RedisResult<Value>,) = both.query_async(connection).await?;
    answer
}
