//! Broadcasts over HTTP, for applications: publishing by POST, listening by server-sent events or over a WebSocket.
//!
//! | path | |
//! |---|---|
//! | `POST /v1/streams/{region}/{name}/events` | publishes; answers once all replicas of the region hold it |
//! | `GET /v1/events?stream=…&from=…&token=…` | server-sent events: a batch each, whose id is the resume token |
//! | `GET /v1/ws?stream=…&from=…&token=…` | a WebSocket with the same batches, see `ws.rs` |

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::fmt;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{DefaultBodyLimit, Path, Query, Request, State};
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use futures::future::select;
use futures::{FutureExt, StreamExt};
use parking_lot::Mutex;
use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer as _};
use serde_json::json;
use tailwater_access::{AccessRequest, Authorizer, Denied, Peer, Protocol, Resource, RightsChanges};
use tailwater_broadcast::client::{Acknowledged, PublishError, Publisher, ReplicasAt};
use tailwater_broadcast::limits::{ABSENT_EACH, ABSENT_MAX, PREDICATE_BYTES_MAX};
use tailwater_broadcast::message::{PublisherId, Reason};
use tailwater_broadcast::{Collect, Content, NoRoomForStreams, Positions, Predicate, Stream, Writer};
use tailwater_broadcast_server::Handle;
use tailwater_env::Env;
use tailwater_login::LoginSession;
use tailwater_sqs::JsonObject;
use tokio::sync::{Semaphore, watch};
use uuid::Uuid;

use super::hub::{Hub, HubFeed, HubPiece};
use super::quotas::QuotaAddresses;
use super::ws::{self, NoUpgrade, Upgrade};
use crate::api::{ErrorBody, EventText};
use crate::config::BroadcastConfig;
use crate::http::ConnectionSender;

/// How often a listener for which there is nothing is sent a line, so that a connection that is gone is noticed.
const HEARTBEAT: Duration = Duration::from_secs(10);
/// What a browser may send besides what every page may.
const BROWSER_HEADERS: &str = "content-type, tailwater-key, tailwater-collect, tailwater-header, tailwater-publisher, tailwater-number, \
     last-event-id";
/// Streams that one listener may name.
const STREAMS_MAX: usize = 1_000;
/// After so many seconds whoever was refused for what others do may try again.
const RETRY_AFTER: header::HeaderValue = header::HeaderValue::from_static("1");

/// Requests under way whose events have their publisher's own numbers: each has a connection to the head, which has
/// replicas and other clients to connect to it as well.
const NUMBERED_MAX: usize = 256;

/// What the routes need.
pub struct BroadcastFront {
    env: Env,
    config: BroadcastConfig,
    handle: Handle,
    /// Where each region's proxy is; the own one's first of all.
    regions: BTreeMap<String, ReplicasAt>,
    hub: tokio::sync::Mutex<Weak<Hub>>,
    publishers: Mutex<BTreeMap<String, Arc<Publisher>>>,
    /// What those who post may publish.
    quotas: QuotaAddresses,
    /// Room for requests whose events have their publisher's own numbers.
    numbered: Semaphore,
    /// Room for WebSockets.
    sockets: Arc<Semaphore>,
    /// Room for streams that listeners name and that are not there, as in a replica.
    absent: Arc<Semaphore>,
    /// Closes when they have to end.
    stopping: watch::Receiver<()>,
    authorizer: Arc<dyn Authorizer>,
}

struct Failed(StatusCode, &'static str, String);

impl Failed {
    /// What it says is about this part of the body.
    fn at(self, place: impl fmt::Display) -> Self {
        Self(self.0, self.1, format!("{place}: {}", self.2))
    }
}

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        let status = self.0;
        let mut answer =
            (status, Json(ErrorBody { error: self.1.to_owned(), message: self.2 })).into_response();
        if matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
            answer.headers_mut().insert(header::RETRY_AFTER, RETRY_AFTER);
        }
        answer
    }
}

fn malformed(why: impl ToString) -> Failed {
    Failed(StatusCode::BAD_REQUEST, "malformed", why.to_string())
}

impl From<PublishError> for Failed {
    fn from(error: PublishError) -> Self {
        let (status, code) = match &error {
            PublishError::TooLarge(_) => (StatusCode::PAYLOAD_TOO_LARGE, "too_large"),
            PublishError::Malformed(_) => (StatusCode::PAYLOAD_TOO_LARGE, "malformed"),
            PublishError::Refused { reason: Reason::Limit, .. } => (StatusCode::TOO_MANY_REQUESTS, "limit"),
            PublishError::Refused { reason: Reason::Full, .. } => (StatusCode::INSUFFICIENT_STORAGE, "full"),
            PublishError::Refused { reason: Reason::NotAuthorized, .. } => {
                (StatusCode::FORBIDDEN, "not_authorized")
            }
            PublishError::Refused { reason: Reason::Gap, .. } => (StatusCode::CONFLICT, "gap"),
            PublishError::Refused { .. } => (StatusCode::CONFLICT, "refused"),
            PublishError::Full | PublishError::Ended => (StatusCode::SERVICE_UNAVAILABLE, "overloaded"),
        };
        Self(status, code, error.to_string())
    }
}

impl BroadcastFront {
    /// For the proxy that `handle` is a replica of; the `regions`' replicas, its own one's too; until `stopping`
    /// closes.
    pub fn new(
        env: &Env,
        config: BroadcastConfig,
        handle: Handle,
        regions: BTreeMap<String, ReplicasAt>,
        stopping: watch::Receiver<()>,
        authorizer: Arc<dyn Authorizer>,
    ) -> Arc<Self> {
        let (hub, publishers) = Default::default();
        let sockets = Arc::new(Semaphore::new(config.http.connections_max));
        let quotas = QuotaAddresses::new(env, config.quotas.publisher());
        let env = env.clone();
        Arc::new(Self {
            env,
            config,
            handle,
            regions,
            hub,
            publishers,
            quotas,
            numbered: Semaphore::new(NUMBERED_MAX),
            sockets,
            absent: Arc::new(Semaphore::new(ABSENT_MAX)),
            stopping,
            authorizer,
        })
    }

    /// The routes.
    pub fn router(self: Arc<Self>) -> Router {
        Router::new()
            .route("/v1/streams/{region}/{name}/events", post(publish))
            .route("/v1/events", get(listen))
            .route("/v1/ws", get(open_socket))
            .fallback(|method, uri| async { unknown(StatusCode::NOT_FOUND, method, uri) })
            .method_not_allowed_fallback(|method, uri| async {
                unknown(StatusCode::METHOD_NOT_ALLOWED, method, uri)
            })
            .layer(DefaultBodyLimit::disable())
            .layer(middleware::from_fn_with_state(Arc::clone(&self), authorized))
            .layer(middleware::from_fn_with_state(Arc::clone(&self), check_origin))
            .with_state(self)
    }

    /// Completes when no WebSocket is open.
    pub async fn closed(&self) {
        let all = u32::try_from(self.config.http.connections_max).unwrap_or(u32::MAX);
        let _ = self.sockets.acquire_many(all).await;
    }

    /// Requests that were refused for a quota.
    pub fn throttled(&self) -> u64 {
        self.quotas.refused()
    }

    async fn hub(&self) -> Result<Arc<Hub>, Failed> {
        let mut hub = self.hub.lock().await;
        if let Some(hub) = hub.upgrade() {
            return Ok(hub);
        }
        let started = Hub::start(
            &self.env,
            self.regions[&self.config.region].clone(),
            self.streams().await?,
            self.config.http.listener_bytes_max,
        );
        *hub = Arc::downgrade(&started);
        Ok(started)
    }

    /// What somebody is sent from `positions` on.
    async fn feed(&self, positions: Positions) -> Result<HubFeed, Failed> {
        let hub = self.hub().await?;
        let absent = hub.absent(&positions).saturating_sub(ABSENT_EACH);
        let feed = HubFeed::new(hub, positions);
        if absent == 0 {
            return Ok(feed);
        }
        let room = Arc::clone(&self.absent).try_acquire_many_owned(absent as u32);
        let refused = |_| Failed(StatusCode::SERVICE_UNAVAILABLE, "overloaded", NoRoomForStreams.to_string());
        let room = room.map_err(refused)?;
        Ok(feed.within(room))
    }

    async fn streams(&self) -> Result<Vec<Stream>, Failed> {
        let snapshot = self.handle.snapshot().await;
        let stopping =
            Failed(StatusCode::SERVICE_UNAVAILABLE, "unavailable", "the node is stopping".to_owned());
        Ok(snapshot.ok_or(stopping)?.streams.into_iter().map(|stream| stream.stream).collect())
    }

    fn addresses(&self, region: &str) -> Result<&ReplicasAt, Failed> {
        self.regions.get(region).ok_or_else(|| {
            let why =
                format!("there is no region {region} in [broadcast.regions], and it is not this node's own");
            Failed(StatusCode::NOT_FOUND, "unknown_region", why)
        })
    }

    /// Refuses streams of a region that this node does not know, and that no stream here is of.
    async fn check_regions(&self, named: &[Stream]) -> Result<(), Failed> {
        if named.iter().all(|stream| self.regions.contains_key(stream.region())) {
            return Ok(());
        }
        let here = self.streams().await?;
        let is_here = |region: &str| here.iter().any(|stream| stream.region() == region);
        let regions = named.iter().map(Stream::region).filter(|region| !is_here(region));
        regions.map(|region| self.addresses(region)).try_for_each(|known| known.map(drop))
    }

    /// Whether `peer` may do this.
    fn ask(&self, peer: &Peer, operation: &str, resource: Resource<'_>) -> Result<(), Failed> {
        let asked = AccessRequest { protocol: Protocol::Broadcast, operation, resource };
        let refused = |denied: Denied| Failed(StatusCode::FORBIDDEN, "not_authorized", denied.to_string());
        self.authorizer.authorize(peer, asked).map_err(refused)
    }

    /// The same of hearing these streams, and all others.
    fn ask_to_listen<'a>(
        &self,
        peer: &Peer,
        others: bool,
        streams: impl IntoIterator<Item = &'a Stream>,
    ) -> Result<(), Failed> {
        if others {
            self.ask(peer, "listen", Resource::Node)?;
        }
        let mut streams = streams.into_iter();
        streams.try_for_each(|stream| self.ask(peer, "listen", Resource::Broadcast(stream.as_str())))
    }

    /// What the sender of a request is let listen to, to be asked again.
    fn right(self: &Arc<Self>, sender: &ConnectionSender) -> ListenRight {
        let (front, peer, changes) = (Arc::clone(self), Arc::clone(&sender.peer), self.authorizer.changes());
        let session = sender.session.clone();
        ListenRight { front, peer, session, changes, others: false, streams: BTreeSet::new() }
    }

    fn publisher(&self, region: &str) -> Result<Arc<Publisher>, Failed> {
        let addresses = self.addresses(region)?;
        let mut publishers = self.publishers.lock();
        let publisher = publishers.entry(region.to_owned());
        Ok(Arc::clone(
            publisher.or_insert_with(|| Arc::new(Publisher::gateway(&self.env, addresses.clone()))),
        ))
    }
}

/// What a listener was let listen to.
pub(super) struct ListenRight {
    front: Arc<BroadcastFront>,
    peer: Arc<Peer>,
    /// How long it may listen at all, where it has shown a password or a token.
    session: Option<LoginSession>,
    /// From before anything was asked.
    changes: RightsChanges,
    /// To all streams.
    others: bool,
    /// To these.
    streams: BTreeSet<Stream>,
}

impl ListenRight {
    /// Asks whether the peer may listen to these streams too.
    fn ask<'a>(
        &mut self,
        others: bool,
        streams: impl Iterator<Item = &'a Stream> + Clone,
    ) -> Result<(), Failed> {
        self.front.ask_to_listen(&self.peer, others, streams.clone())?;
        self.others |= others;
        self.streams.extend(streams.cloned());
        Ok(())
    }

    /// Completes when it may not go on.
    pub(super) async fn revoked(mut self) {
        let over = match self.session.take() {
            Some(session) => session.over().boxed(),
            None => std::future::pending().boxed(),
        };
        select(over, pin!(self.taken())).await;
    }

    /// Completes when it may not listen to all of it any more.
    async fn taken(mut self) {
        loop {
            self.changes.changed().await;
            if self.front.ask_to_listen(&self.peer, self.others, &self.streams).is_err() {
                return;
            }
        }
    }
}

/// Any page in a browser could publish and listen through the browser's own machine: those whose origin is not
/// allowed may not.
async fn check_origin(State(front): State<Arc<BroadcastFront>>, request: Request, next: Next) -> Response {
    let Some(origin) = request.headers().get(header::ORIGIN).cloned() else { return next.run(request).await };
    if !front.config.http.origins.iter().any(|allowed| allowed.as_bytes() == origin.as_bytes()) {
        let why = format!("pages of {origin:?} may not use this: see origins below [broadcast.http]");
        return Failed(StatusCode::FORBIDDEN, "not_authorized", why).into_response();
    }
    let mut answer = match preflight(&request) {
        Some(answer) => answer,
        None => next.run(request).await,
    };
    answer.headers_mut().insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    answer
}

/// The answer to a browser that asks what a page may send; whether it may be done is decided when it is sent.
fn preflight(request: &Request) -> Option<Response> {
    if request.method() != Method::OPTIONS
        || !request.headers().contains_key(header::ACCESS_CONTROL_REQUEST_METHOD)
    {
        return None;
    }
    let allowed = [
        (header::ACCESS_CONTROL_ALLOW_METHODS, "GET, POST"),
        (header::ACCESS_CONTROL_ALLOW_HEADERS, BROWSER_HEADERS),
    ];
    Some((StatusCode::NO_CONTENT, allowed).into_response())
}

/// Lets a request through that its sender may make.
async fn authorized(State(front): State<Arc<BroadcastFront>>, request: Request, next: Next) -> Response {
    match crate::http::ask(&*front.authorizer, Protocol::Broadcast, &request) {
        Ok(()) => next.run(request).await,
        Err(denied) => Failed(StatusCode::FORBIDDEN, "not_authorized", denied.to_string()).into_response(),
    }
}

/// A path, or a method of a path, that there is not.
fn unknown(status: StatusCode, method: Method, uri: Uri) -> Failed {
    let why = format!(
        "there is no {method} of {}: POST /v1/streams/REGION/NAME/events publishes, GET /v1/events and GET /v1/ws listen",
        uri.path()
    );
    Failed(status, "malformed", why)
}

/// An event that is to be published.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PublishEvent {
    #[serde(default)]
    key: Option<EventText>,
    #[serde(default)]
    headers: Vec<(EventText, EventText)>,
    #[serde(default)]
    collect: Option<String>,
    #[serde(default)]
    payload: EventText,
}

/// What a request publishes. Its events are encoded one by one as they are read: what a body holds of small ones would
/// take many times as much otherwise.
struct PostedEvents {
    writer: Writer,
    now_ms: u64,
}

impl PostedEvents {
    /// Reads a request in the form that its type says.
    fn read(headers: &HeaderMap, body: &Bytes, now_ms: u64) -> Result<Writer, Failed> {
        let mut events = Self { writer: Writer::new(0), now_ms };
        let text = |name: &str| match headers.get(name).map(|value| value.to_str()) {
            Some(Ok(text)) => Ok(Some(text.to_owned())),
            Some(Err(_)) => Err(malformed(format!("the header {name} is no text"))),
            None => Ok(None),
        };
        let kind = text("content-type")?.unwrap_or_default();
        match kind.split(';').next().unwrap_or_default().trim() {
            // What is wrong with an event is said of the form that it has.
            "application/json" if body.trim_ascii_start().starts_with(b"[") => {
                let mut failed = None;
                let mut json = serde_json::Deserializer::from_slice(body);
                let array = Array { events: &mut events, failed: &mut failed };
                let read = json.deserialize_seq(array).and_then(|()| json.end());
                failed.map_or(Ok(()), Err)?;
                read.map_err(malformed)?;
            }
            "application/json" => {
                let JsonObject(event) = serde_json::from_slice(body).map_err(malformed)?;
                events.add(event)?;
            }
            "application/x-ndjson" => {
                let lines = (1u64..).zip(body.split(|byte| *byte == b'\n'));
                for (number, line) in lines.filter(|(_, line)| !line.trim_ascii().is_empty()) {
                    let read = serde_json::from_slice(line).map_err(malformed);
                    let added = read.and_then(|JsonObject(event)| events.add(event));
                    added
                        .map_err(|failed| failed.at(format_args!("line {number} of the body, by itself")))?;
                }
            }
            _ => {
                let mut pairs = Vec::new();
                for value in headers.get_all("tailwater-header") {
                    let pair = value.to_str().ok().and_then(|text| text.split_once('='));
                    let (name, value) = pair.ok_or_else(|| malformed("a Tailwater-Header is name=value"))?;
                    pairs.push((EventText(name.to_owned().into()), EventText(value.to_owned().into())));
                }
                let key = text("tailwater-key")?.map(|key| EventText(key.into()));
                let collect = text("tailwater-collect")?;
                events.add(PublishEvent {
                    key,
                    headers: pairs,
                    collect,
                    payload: EventText(body.clone()),
                })?;
            }
        }
        Ok(events.writer)
    }

    fn add(&mut self, event: PublishEvent) -> Result<(), Failed> {
        let collect = event.collect.map(|text| collection(&text, self.now_ms)).transpose()?;
        let content = Content {
            key: event.key.map(|key| key.0),
            headers: event.headers.into_iter().map(|(name, value)| (name.0, value.0)).collect(),
            payload: event.payload.0,
        };
        self.writer.publish(&content, collect.as_ref()).map_err(PublishError::from)?;
        Ok(())
    }
}

/// What an event collects. The head looks at its predicate as well, among much else that may be wrong with it there:
/// that it is none can be told here.
fn collection(text: &str, now_ms: u64) -> Result<Collect, Failed> {
    let collect = Collect::parse(text, now_ms).map_err(malformed)?;
    // One that is too large is told so by whoever encodes it.
    if let Collect::Matching(text) = &collect
        && text.len() <= PREDICATE_BYTES_MAX
    {
        Predicate::parse(text).map_err(malformed)?;
    }
    Ok(collect)
}

/// An array of events. What was wrong with one, other than its JSON, is left in `failed`.
struct Array<'a> {
    events: &'a mut PostedEvents,
    failed: &'a mut Option<Failed>,
}

impl<'de> Visitor<'de> for Array<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of events")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut array: A) -> Result<(), A::Error> {
        let mut number = 0u64;
        while let Some(JsonObject(event)) = array.next_element()? {
            number += 1;
            if let Err(failed) = self.events.add(event) {
                *self.failed = Some(failed.at(format_args!("event {number} of the body")));
                return Err(A::Error::custom("it is refused"));
            }
        }
        Ok(())
    }
}

/// Who publishes, and its own number of the first event, if it says so.
fn numbered(headers: &HeaderMap, count: u32) -> Result<Option<(PublisherId, u64)>, Failed> {
    let [publisher, number] = ["tailwater-publisher", "tailwater-number"].map(|name| headers.get(name));
    let (Some(publisher), Some(number)) = (publisher, number) else {
        return match publisher.or(number) {
            None => Ok(None),
            Some(_) => Err(malformed("Tailwater-Publisher and Tailwater-Number go together")),
        };
    };
    let publisher = publisher.to_str().ok().and_then(|text| Uuid::parse_str(text).ok());
    let number = number.to_str().ok().and_then(|text| text.parse::<u64>().ok());
    let number = number.filter(|first| *first > 0 && first.checked_add(count.into()).is_some());
    match (publisher, number) {
        (Some(publisher), Some(number)) => Ok(Some((publisher.as_u128(), number))),
        (None, _) => Err(malformed("a Tailwater-Publisher is a UUID that nobody else has")),
        (_, None) => Err(malformed("a Tailwater-Number is its number of the first event, from 1")),
    }
}

async fn publish(
    State(front): State<Arc<BroadcastFront>>,
    path: Result<Path<(String, String)>, PathRejection>,
    Extension(ConnectionSender { address: sender, peer, .. }): Extension<ConnectionSender>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Failed> {
    if let Err(wait) = front.quotas.admit(sender.ip()) {
        return Ok(over_quota(wait));
    }
    if let Some(refused) = refuse_encoded(&headers) {
        return Ok(refused);
    }
    let Path((region, name)) = path.map_err(|rejected| malformed(rejected.body_text()))?;
    let stream = Stream::parse(&format!("{region}/{name}")).map_err(malformed)?;
    front.ask(&peer, "publish", Resource::Broadcast(stream.as_str()))?;
    let writer = PostedEvents::read(&headers, &body, front.env.wall_ms().max(0) as u64)?;
    let count = writer.count();
    if count == 0 {
        return Err(malformed("there is no event in the body"));
    }
    // The publisher ends first, and its connection with it.
    let (_room, publisher) = match numbered(&headers, count)? {
        None => (None, front.publisher(&region)?),
        Some((client, number)) => {
            let addresses = front.addresses(&region)?.clone();
            let room = front.numbered.try_acquire().map_err(|_| {
                let why = format!(
                    "{NUMBERED_MAX} requests with a Tailwater-Number are under way, and this one published nothing: send it \
                     again later, with the same number"
                );
                Failed(StatusCode::SERVICE_UNAVAILABLE, "unavailable", why)
            })?;
            let publisher = Publisher::resume(&front.env, addresses, stream.clone(), client, number, 0);
            (Some(room), Arc::new(publisher))
        }
    };
    front.quotas.spend(sender.ip(), writer.len() as u64, u64::from(count));
    let patience = Duration::from_millis(front.config.http.timeout_ms);
    let answer = publisher.publish_batch(&stream, writer.finish(0));
    let Some(answer) = front.env.timeout(patience, answer).await else {
        let why =
            format!("not all replicas acknowledged within {patience:?}: whether it is published is open");
        return Err(Failed(StatusCode::SERVICE_UNAVAILABLE, "unavailable", why));
    };
    let Acknowledged { seq, repeated } = answer?;
    let answer = json!({ "stream": stream.as_str(), "published": count, "last": seq, "repeated": repeated });
    Ok(Json(answer).into_response())
}

/// The answer to a body that is compressed: listeners would be sent it as it is, and not know it.
fn refuse_encoded(headers: &HeaderMap) -> Option<Response> {
    let mut encodings = headers.get_all(header::CONTENT_ENCODING).iter();
    let encoding = encodings.find(|encoding| !encoding.as_bytes().eq_ignore_ascii_case(b"identity"))?;
    let why = format!(
        "a body in Content-Encoding {encoding:?} is not taken: send it as it is, without this header"
    );
    let mut answer = Failed(StatusCode::UNSUPPORTED_MEDIA_TYPE, "malformed", why).into_response();
    answer.headers_mut().insert(header::ACCEPT_ENCODING, header::HeaderValue::from_static("identity"));
    Some(answer)
}

/// Its quota is used up for so long.
fn over_quota(wait: Duration) -> Response {
    let why = "too much was published from this address: see [broadcast.quotas]".to_owned();
    let mut answer = Failed(StatusCode::TOO_MANY_REQUESTS, "limit", why).into_response();
    let seconds = wait.as_secs_f64().ceil() as u64;
    answer.headers_mut().insert(header::RETRY_AFTER, header::HeaderValue::from(seconds));
    answer
}

/// Where a listener wants to begin, if it may listen to all of that.
async fn positions(
    front: &BroadcastFront,
    right: &mut ListenRight,
    headers: &HeaderMap,
    query: Result<Query<Vec<(String, String)>>, QueryRejection>,
) -> Result<Positions, Failed> {
    let Query(query) = query.map_err(|rejected| malformed(rejected.body_text()))?;
    let (mut named, mut from, mut token) = (Vec::new(), "start".to_owned(), None);
    for (key, value) in query {
        match key.as_str() {
            "stream" => named.push(Stream::parse(&value).map_err(malformed)?),
            "from" => from = value,
            "token" => token = Some(value),
            // Whoever asks for it was found out before.
            "access_token" => {}
            other => return Err(malformed(format!("there is no {other}: use stream, from, token"))),
        }
    }
    if named.len() > STREAMS_MAX {
        return Err(malformed(format!("{} streams are named, {STREAMS_MAX} at most", named.len())));
    }
    // What an EventSource sends when it connects again, by itself.
    if let Some(last) = headers.get("last-event-id").and_then(|id| id.to_str().ok()) {
        token = Some(last.to_owned());
    }
    // Whoever resumes has had events: the region was there, and may come back.
    if token.is_none() {
        front.check_regions(&named).await?;
    }
    let names_all = named.is_empty();
    right.ask(names_all, named.iter())?;
    let wanted = match from.as_str() {
        "start" if names_all => Positions::start(),
        "start" => Positions::of(named),
        "now" if names_all => Positions { others: true, ..Positions::now(front.streams().await?) },
        "now" => Positions::now(named),
        other => return Err(malformed(format!("from is start or now, not {other:?}"))),
    };
    let Some(token) = token.filter(|token| !token.is_empty()) else { return Ok(wanted) };
    let token = Positions::parse(&token).map_err(malformed)?;
    right.ask(token.others, token.streams.keys())?;
    Ok(if names_all { token } else { token.resumed(wanted) })
}

async fn listen(
    State(front): State<Arc<BroadcastFront>>,
    query: Result<Query<Vec<(String, String)>>, QueryRejection>,
    Extension(sender): Extension<ConnectionSender>,
    headers: HeaderMap,
) -> Result<Response, Failed> {
    let mut right = front.right(&sender);
    let positions = positions(&front, &mut right, &headers, query).await?;
    let feed = front.feed(positions).await?;
    let head = [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-store")];
    // Who comes again is told why not.
    let frames = frames(front.env.clone(), feed, HEARTBEAT).take_until(Box::pin(right.revoked()));
    Ok((head, Body::from_stream(frames)).into_response())
}

/// What a listener is sent, piece by piece.
fn frames(
    env: Env,
    feed: HubFeed,
    heartbeat: Duration,
) -> impl futures::Stream<Item = Result<Bytes, Infallible>> {
    const HEART: Bytes = Bytes::from_static(b":\n\n");
    futures::stream::unfold((feed, env, EventFrame::Begin), move |(mut feed, env, next)| async move {
        let (frame, next) = match next {
            // So that who heard nothing before its connection ended resumes at the same place.
            EventFrame::Begin => match env.timeout(heartbeat, feed.begin()).await {
                None => (HEART, EventFrame::Begin),
                Some(token) => {
                    (Bytes::from(format!("id: {token}\nevent: begin\ndata: {{}}\n\n")), EventFrame::Piece)
                }
            },
            EventFrame::Piece => match env.timeout(heartbeat, feed.next()).await {
                None => (HEART, EventFrame::Piece),
                Some(HubPiece { token, event: None, json }) => {
                    (Bytes::from(format!("id: {token}\ndata: ")), EventFrame::Body(json))
                }
                Some(HubPiece { token, event: Some(event), json }) => {
                    (Bytes::from(format!("id: {token}\nevent: {event}\ndata: ")), EventFrame::Body(json))
                }
            },
            EventFrame::Body(json) => (json, EventFrame::End),
            EventFrame::End => (Bytes::from_static(b"\n\n"), EventFrame::Piece),
        };
        Some((Ok(frame), (feed, env, next)))
    })
}

async fn open_socket(
    State(front): State<Arc<BroadcastFront>>,
    query: Result<Query<Vec<(String, String)>>, QueryRejection>,
    Extension(sender): Extension<ConnectionSender>,
    mut request: Request,
) -> Result<Response, Failed> {
    let upgrade = match Upgrade::of(&mut request) {
        Ok(upgrade) => upgrade,
        Err(NoUpgrade(status, why)) => {
            let mut answer = Failed(status, "malformed", why.to_owned()).into_response();
            if status == StatusCode::UPGRADE_REQUIRED {
                // The answer has to name what would do (RFC 9110, 15.5.22; of the version RFC 6455, 4.4).
                let websocket = header::HeaderValue::from_static("websocket");
                answer.headers_mut().insert(header::UPGRADE, websocket);
                let version = header::HeaderValue::from_static("13");
                answer.headers_mut().insert(header::SEC_WEBSOCKET_VERSION, version);
            }
            return Ok(answer);
        }
    };
    let mut right = front.right(&sender);
    let positions = positions(&front, &mut right, request.headers(), query).await?;
    // The server counts a connection only until it is a WebSocket.
    let permit = Arc::clone(&front.sockets).try_acquire_owned().map_err(|_| {
        let why = "connections_max WebSockets are open: see [broadcast.http]";
        Failed(StatusCode::SERVICE_UNAVAILABLE, "overloaded", why.to_owned())
    })?;
    let feed = front.feed(positions).await?;
    let (response, on_upgrade) = upgrade.accept();
    let patience = Duration::from_millis(front.config.http.timeout_ms);
    let end = (right, front.stopping.clone());
    let serve = ws::serve(front.env.clone(), on_upgrade, feed, patience, end, permit);
    front.env.spawn("broadcast-websocket", serve).detach();
    Ok(response)
}

/// What of the stream of server-sent events comes next. A batch's JSON has no line ends in it, and is sent as it is.
enum EventFrame {
    Begin,
    Piece,
    Body(Bytes),
    End,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_an_object_and_no_array_of_its_fields() {
        let read = |kind: &str, body: &str| {
            let headers = HeaderMap::from_iter([(header::CONTENT_TYPE, kind.parse().expect("a type"))]);
            PostedEvents::read(&headers, &Bytes::from(body.to_owned()), 1_000).is_ok()
        };
        let (json, lines) = ("application/json", "application/x-ndjson");
        for (kind, body) in [(json, r#"[{"key":"k","payload":"p"}]"#), (json, "{}"), (lines, "{}\n{}")] {
            assert!(read(kind, body), "{body}");
        }
        for (kind, body) in
            [(json, r#"[["k",[],null,"p"]]"#), (lines, r#"["k",[],null,"p"]"#), (lines, "{}\n[]")]
        {
            assert!(!read(kind, body), "{body}");
        }
    }

    #[tokio::test]
    async fn a_listener_from_now_on_is_sent_heartbeats_while_it_is_not_known_when_that_is() {
        let env = Env::real();
        // Nobody answers there.
        let hub = Hub::start(&env, vec!["127.0.0.1:1".to_owned()], Vec::new(), 1 << 20);
        let feed = HubFeed::new(hub, Positions::now([Stream::parse("eu/prices").unwrap()]));
        let mut frames = std::pin::pin!(frames(env.clone(), feed, Duration::from_millis(1)));
        for _ in 0..2 {
            let frame =
                env.timeout(Duration::from_secs(60), frames.next()).await.expect("something was sent");
            assert_eq!(frame.unwrap().unwrap(), ":\n\n");
        }
    }

    #[test]
    fn what_is_wrong_with_an_event_in_json_is_said_of_the_form_that_it_has() {
        let refused = |kind: &str, body: &'static str| {
            let headers = HeaderMap::from_iter([(header::CONTENT_TYPE, kind.parse().unwrap())]);
            PostedEvents::read(&headers, &Bytes::from_static(body.as_bytes()), 0)
                .expect_err("it is refused")
                .2
        };
        for (body, expected) in [
            (
                r#"{"payload": 7}"#,
                "integer `7`, expected a string or {\"base64\": \"…\"} at line 1 column 13",
            ),
            (r#"{"payload": [7]}"#, "sequence, expected a string or"),
            (r#"{"payload": {"text": "x"}}"#, "expected a string or {\"base64\": \"…\"}"),
            (r#"{"payload": {"base64": "eA==", "more": 1}}"#, "expected a string or {\"base64\": \"…\"}"),
            (r#" [{"payload": "x"}, {"payload": {"base64": "?"}}]"#, "it is no base64"),
            (
                r#"[{"payload": "x"}, {"collect": "matching=key"}]"#,
                "event 2 of the body: predicate, line 1, column 4",
            ),
            (r#"[{"payload": "x"}] 7"#, "trailing characters at line 1 column 20"),
            (r#"{"value": "x"}"#, "unknown field `value`"),
            (r#"[{"key": "k",}]"#, "line 1 column 14"),
            ("7", "invalid type: integer `7`"),
        ] {
            let why = refused("application/json", body);
            assert!(why.contains(expected), "{why}");
        }
        let why = refused("application/x-ndjson", "{\"payload\": \"x\"}\n\n{\"value\": \"x\"}\n");
        assert!(why.contains("line 3 of the body") && why.contains("unknown field `value`"), "{why}");
        let why = refused("application/x-ndjson", "{}\n{\"collect\": \"same\"}\n");
        assert!(why.starts_with("line 2 of the body, by itself: \"same\" is no collection"), "{why}");
    }

    #[test]
    fn a_browser_is_told_that_a_page_may_post_with_a_key_and_anything_else_is_no_question() {
        let request = |method, asks: bool| {
            let mut request = Request::builder().method(method).uri("/v1/streams/eu/prices/events");
            if asks {
                request = request.header(header::ACCESS_CONTROL_REQUEST_METHOD, "POST");
            }
            request.body(Body::empty()).unwrap()
        };
        let answer = preflight(&request(Method::OPTIONS, true)).unwrap();
        assert_eq!(answer.status(), StatusCode::NO_CONTENT);
        let allowed = |name: &str| answer.headers()[name].to_str().unwrap().to_owned();
        assert!(allowed("access-control-allow-methods").contains("POST"));
        assert!(allowed("access-control-allow-headers").contains("tailwater-key"));
        assert!(preflight(&request(Method::OPTIONS, false)).is_none());
        assert!(preflight(&request(Method::POST, true)).is_none());
    }
}
