//! Requests to a cluster: the choice of the member, the login, and the metadata that etcd expects with each request.

mod keep_alive;

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::stream::{Stream, StreamExt};
use prost::Message;
use tokio::runtime::Handle;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::{Ascii, MetadataMap, MetadataValue};
use tonic::transport::Channel;
use tonic::{Request, Status, Streaming};
use tonic_prost::ProstCodec;

use self::keep_alive::{KeepAlives, Open};
use super::config::{Location, Login};
use super::connect::{Connector, Files};
use super::errors::{Effect, EtcdError, Link, of_status};
use super::wire::{
    AuthenticateRequest, AuthenticateResponse, LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveResponse,
    LeaseRevokeRequest, LeaseRevokeResponse, LeaseTimeToLiveRequest, LeaseTimeToLiveResponse,
    MemberListRequest, MemberListResponse, RangeRequest, RangeResponse, StatusRequest, StatusResponse,
    TxnRequest, TxnResponse, WatchRequest, WatchResponse,
};
use crate::error::{Error, Fault};
use crate::stores::password::Accepted;

/// The maximum size of a response. A page of a listing or of a long queue is far smaller.
const MAX_ANSWER_BYTES: usize = 64 << 20;

/// A cluster. Requests go to one member until it fails.
pub(super) struct Client {
    /// Replaced when the TLS files have changed. The number of members stays the same.
    members: Mutex<Vec<Member>>,
    connector: Connector,
    /// The files with which the members' channels were made. Locked while the files are read again.
    files: tokio::sync::Mutex<Files>,
    /// The number of the member that is asked first. It only grows, and is taken modulo the number of members.
    current: AtomicUsize,
    login: Option<Login>,
    token: Mutex<Option<MetadataValue<Ascii>>>,
    accepted: Accepted,
    keep_alives: KeepAlives,
}

#[derive(Clone)]
pub(super) struct Member {
    address: Arc<str>,
    channel: Channel,
    tls: bool,
    /// Whether the member has ever sent a valid response.
    proven: Arc<AtomicBool>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("members", &self.connector.members()).finish_non_exhaustive()
    }
}

impl Client {
    /// Creates a client. Sends nothing. Must be called inside the runtime to which the connections will belong.
    pub(super) fn new(location: &Location) -> Result<Self, Error> {
        let connector = Connector::to(location);
        let files = connector.read()?;
        // Reports an unreadable password at once, and not with the first request.
        location.login.as_ref().map(|login| login.password.read()).transpose()?;
        Ok(Self {
            members: Mutex::new(members(&connector, &files)?),
            connector,
            files: tokio::sync::Mutex::new(files),
            current: AtomicUsize::new(0),
            login: location.login.clone(),
            token: Mutex::default(),
            accepted: Accepted::default(),
            keep_alives: KeepAlives::default(),
        })
    }

    /// Reads keys. The read is linearizable.
    pub(super) async fn range(&self, request: RangeRequest) -> Result<RangeResponse, EtcdError> {
        self.unary("/etcdserverpb.KV/Range", Effect::None, &request).await
    }

    /// Sends a transaction. It is linearizable even if it only reads.
    pub(super) async fn txn(&self, effect: Effect, request: &TxnRequest) -> Result<TxnResponse, EtcdError> {
        self.unary("/etcdserverpb.KV/Txn", effect, request).await
    }

    pub(super) async fn grant(&self, id: i64, ttl: i64) -> Result<LeaseGrantResponse, EtcdError> {
        let request = LeaseGrantRequest { ttl, id };
        self.unary("/etcdserverpb.Lease/LeaseGrant", Effect::Writes, &request).await
    }

    pub(super) async fn time_to_live(&self, id: i64) -> Result<LeaseTimeToLiveResponse, EtcdError> {
        let request = LeaseTimeToLiveRequest { id };
        self.unary("/etcdserverpb.Lease/LeaseTimeToLive", Effect::None, &request).await
    }

    pub(super) async fn revoke(&self, id: i64) -> Result<LeaseRevokeResponse, EtcdError> {
        let request = LeaseRevokeRequest { id };
        self.unary("/etcdserverpb.Lease/LeaseRevoke", Effect::Writes, &request).await
    }

    /// Sends one keep-alive on the open stream. Opens a new stream if the old one has ended, was abandoned, or leads to
    /// a member that is no longer used. If the response does not arrive in time, the caller must drop the future, which
    /// closes the stream.
    pub(super) async fn keep_alive(&self, id: i64) -> Result<LeaseKeepAliveResponse, EtcdError> {
        let (turn, _) = self.member();
        if let Some(open) = self.keep_alives.take(turn) {
            let hung = NextMember { client: self, turn, answered: false };
            let answer = open.ask(id).await;
            hung.answered();
            match answer {
                Ok((open, answer)) => {
                    self.keep_alives.put(open);
                    return Ok(answer);
                }
                // The stream may have ended long ago. If there is a problem, a new stream will show it.
                Err(status) => tracing::debug!(%status, "the stream of keep-alives ended"),
            }
        }
        let (open, answer) = self
            .on_some_member(Effect::None, |turn, member, metadata| Open::at(member, turn, metadata, id))
            .await?;
        self.keep_alives.put(open);
        Ok(answer)
    }

    /// Opens a stream of watches. `asked` is called for each member that is tried. Its stream must have the first
    /// message ready, because etcd sends nothing before it receives that message.
    pub(super) async fn watch<S>(
        &self,
        asked: impl Fn() -> S + Send + Sync,
    ) -> Result<Streaming<WatchResponse>, EtcdError>
    where
        S: Stream<Item = WatchRequest> + Send + 'static,
    {
        self.on_some_member(Effect::None, |_, member, metadata| {
            let asked = asked();
            async move { member.stream("/etcdserverpb.Watch/Watch", metadata, asked).await }
        })
        .await
    }

    /// Returns the number of members that the store URL names.
    pub(super) fn members(&self) -> usize {
        self.connector.members().len()
    }

    /// Returns the address of a member. Numbers of members are below [`members`](Self::members).
    pub(super) fn address(&self, member: usize) -> &str {
        self.connector.members().get(member).map_or("", String::as_str)
    }

    /// Returns the status that the member reports about itself, or the reason why there is none.
    pub(super) async fn status(&self, member: usize) -> Result<StatusResponse, String> {
        let Some(member) = self.channels().get(member).cloned() else {
            return Err("there is none".to_owned());
        };
        let token = self.token(&member).await.map_err(|error| error.into_store_error().to_string())?;
        let asked = member.clone().unary(
            "/etcdserverpb.Maintenance/Status",
            metadata(token.as_ref()),
            StatusRequest {},
        );
        asked.await.map_err(|status| member.error_of(Effect::None, &status).into_store_error().to_string())
    }

    /// Returns the number of members of the cluster. Returns `None` if the cluster does not report it.
    pub(super) async fn cluster_size(&self) -> Option<usize> {
        let path = "/etcdserverpb.Cluster/MemberList";
        let answer: MemberListResponse = self.unary(path, Effect::None, &MemberListRequest {}).await.ok()?;
        Some(answer.members.len())
    }

    async fn unary<Q, A>(&self, path: &'static str, effect: Effect, request: &Q) -> Result<A, EtcdError>
    where
        Q: Message + Clone + 'static,
        A: Message + Default + 'static,
    {
        self.on_some_member(effect, |_, member, metadata| {
            let request = request.clone();
            async move { member.unary(path, metadata, request).await }
        })
        .await
    }

    /// Asks the current member. Asks another member only if it is certain that the first one did nothing. If a member
    /// does not respond, the next request goes to another member first. This also holds if the caller timed out and
    /// dropped this future.
    async fn on_some_member<A, F>(
        &self,
        effect: Effect,
        ask: impl Fn(usize, Member, MetadataMap) -> F + Send + Sync,
    ) -> Result<A, EtcdError>
    where
        F: Future<Output = Result<A, Status>> + Send,
    {
        let (mut tried, mut logins) = (0, 0);
        loop {
            let (turn, member) = self.member();
            let hung = NextMember { client: self, turn, answered: false };
            let token = self.token(&member).await?;
            let answer = ask(turn, member.clone(), metadata(token.as_ref())).await;
            let error = match answer {
                Ok(answer) => {
                    hung.answered();
                    member.proven.store(true, Ordering::Relaxed);
                    return Ok(answer);
                }
                Err(status) => member.error_of(effect, &status),
            };
            match error {
                EtcdError::LogInAgain | EtcdError::NoUser if self.login.is_some() && logins < 2 => {
                    logins += 1;
                    hung.answered();
                    self.forget(token.as_ref());
                }
                EtcdError::NotSent(_) if self.read_again().await => {
                    hung.answered();
                }
                EtcdError::NotSent(_) | EtcdError::NotHere(_) if tried + 1 < self.members() => tried += 1,
                EtcdError::NotSent(_) | EtcdError::NotHere(_) => return Err(error),
                EtcdError::Failed(ref cause) if cause.is_transient() => {
                    // The member may have refused the client certificate. TLS 1.3 reports this only after the
                    // connection was made.
                    self.read_again().await;
                    return Err(error);
                }
                _ => {
                    hung.answered();
                    return Err(error);
                }
            }
        }
    }

    fn member(&self) -> (usize, Member) {
        let turn = self.current.load(Ordering::Relaxed);
        let members = self.channels();
        (turn, members[turn % members.len()].clone())
    }

    fn channels(&self) -> MutexGuard<'_, Vec<Member>> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the TLS files again. If they have changed, makes new connections. Returns whether they have changed.
    async fn read_again(&self) -> bool {
        if !self.connector.has_files() {
            return false;
        }
        // If another task is reading the files, does not wait for it.
        let Ok(mut files) = self.files.try_lock() else { return false };
        let (connector, known, runtime) = (self.connector.clone(), files.clone(), Handle::current());
        // Reads on a blocking thread, because a file may be on a disk that hangs.
        let read = tokio::task::spawn_blocking(move || {
            let found = connector.read()?;
            if found == known {
                return Ok(None);
            }
            let _in_the_runtime = runtime.enter();
            members(&connector, &found).map(|members| Some((found, members)))
        });
        match read.await {
            Ok(Ok(None)) => false,
            Ok(Ok(Some((found, members)))) => {
                tracing::debug!("the TLS files have changed: reconnecting");
                *files = found;
                *self.channels() = members;
                true
            }
            Ok(Err(error)) => {
                tracing::debug!(%error, "the TLS files could not be read again");
                false
            }
            Err(_) => false,
        }
    }

    /// Returns the login token. Returns `None` if the store URL has no login or the cluster has no users. Requests the
    /// token once, and again when it has expired.
    async fn token(&self, member: &Member) -> Result<Option<MetadataValue<Ascii>>, EtcdError> {
        let Some(login) = &self.login else { return Ok(None) };
        if let Some(token) = &*self.known_token() {
            return Ok(Some(token.clone()));
        }
        // Reads the password for each login, on a blocking thread, because a file may be on a disk that hangs.
        let reads = login.password.clone();
        let password = match tokio::task::spawn_blocking(move || reads.read()).await {
            Ok(Ok(password)) => password,
            // The password was readable when the store was opened, so another attempt may succeed.
            Ok(Err(error)) => return Err(EtcdError::Failed(unread(&error).not_applied())),
            Err(_) => {
                return Err(EtcdError::Failed(Fault::unavailable("no password was read").not_applied()));
            }
        };
        let request = AuthenticateRequest { name: login.user.clone(), password };
        let answer: Result<AuthenticateResponse, _> =
            member.clone().unary("/etcdserverpb.Auth/Authenticate", metadata(None), request).await;
        let answer = match answer.map_err(|status| member.error_of(Effect::None, &status)) {
            // A cluster without users needs no login.
            Err(EtcdError::NoLogin) => return Ok(None),
            Err(EtcdError::Failed(error)) => return Err(EtcdError::Failed(self.accepted.judge(error))),
            answer => answer?,
        };
        self.accepted.note();
        let mut token = MetadataValue::try_from(answer.token.as_str()).map_err(|_| {
            EtcdError::Failed(
                Fault::unavailable("etcd responded to the login with a token that is not text").not_applied(),
            )
        })?;
        token.set_sensitive(true);
        *self.known_token() = Some(token.clone());
        Ok(Some(token))
    }

    /// Removes the token, unless another task has already logged in again.
    fn forget(&self, expired: Option<&MetadataValue<Ascii>>) {
        let mut token = self.known_token();
        if token.as_ref() == expired {
            *token = None;
        }
    }

    fn known_token(&self) -> MutexGuard<'_, Option<MetadataValue<Ascii>>> {
        self.token.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn unread(error: &Error) -> Fault {
    let fault = Fault::unavailable(error.to_string());
    match error.help().first() {
        Some(help) => fault.with_help(help),
        None => fault,
    }
}

fn members(connector: &Connector, files: &Files) -> Result<Vec<Member>, Error> {
    let addresses = connector.members().iter().map(|address| address.as_str().into());
    Ok(addresses
        .zip(connector.channels(files)?)
        .map(|(address, channel)| Member {
            address,
            channel,
            tls: connector.is_tls(),
            proven: Arc::default(),
        })
        .collect())
}

/// Switches to the next member when dropped, unless this one has responded.
struct NextMember<'a> {
    client: &'a Client,
    turn: usize,
    answered: bool,
}

impl NextMember<'_> {
    fn answered(mut self) {
        self.answered = true;
    }
}

impl Drop for NextMember<'_> {
    fn drop(&mut self) {
        if self.answered {
            return;
        }
        // Switches once, no matter how many requests were waiting for the member.
        let next = self.turn.wrapping_add(1);
        let _ = self.client.current.compare_exchange(self.turn, next, Ordering::Relaxed, Ordering::Relaxed);
    }
}

impl Member {
    fn error_of(&self, effect: Effect, status: &Status) -> EtcdError {
        let link = match self.tls {
            _ if self.proven.load(Ordering::Relaxed) => Link::Proven,
            true => Link::Tls,
            false => Link::Plain,
        };
        of_status(&self.address, link, effect, status)
    }

    async fn unary<Q, A>(self, path: &'static str, metadata: MetadataMap, message: Q) -> Result<A, Status>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let mut grpc = self.ready().await?;
        let request = Request::from_parts(metadata, Default::default(), message);
        let codec: ProstCodec<Q, A> = ProstCodec::default();
        let answer = grpc.unary(request, PathAndQuery::from_static(path), codec).await?;
        Ok(answer.into_inner())
    }

    pub(super) async fn stream<Q, A, S>(
        self,
        path: &'static str,
        metadata: MetadataMap,
        asked: S,
    ) -> Result<Streaming<A>, Status>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
        S: Stream<Item = Q> + Send + 'static,
    {
        let mut grpc = self.ready().await?;
        let request = Request::from_parts(metadata, Default::default(), asked.boxed());
        let codec: ProstCodec<Q, A> = ProstCodec::default();
        let answer = grpc.streaming(request, PathAndQuery::from_static(path), codec).await?;
        Ok(answer.into_inner())
    }

    async fn ready(&self) -> Result<Grpc<Channel>, Status> {
        let mut grpc = Grpc::new(self.channel.clone()).max_decoding_message_size(MAX_ANSWER_BYTES);
        grpc.ready().await.map_err(|error| Status::from_error(error.into()))?;
        Ok(grpc)
    }
}

/// Returns the metadata of a request. With `hasleader`, only a member that has a leader serves the request. A member
/// that is cut off from the others returns an error instead of waiting.
fn metadata(token: Option<&MetadataValue<Ascii>>) -> MetadataMap {
    let mut metadata = MetadataMap::new();
    metadata.insert("hasleader", MetadataValue::from_static("true"));
    if let Some(token) = token {
        metadata.insert("token", token.clone());
    }
    metadata
}
