//! From a request of HTTP to its answer: who asks, for what, in which form.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Body;
use hyper::header::{HOST, HeaderMap};
use hyper::http::request::Parts;
use hyper::{Method, Request, Response};
use percent_encoding::percent_decode_str;
use tailwater_access::{AccessRequest, Authorizer, Peer, Protocol, Resource, RightsChanges};
use tailwater_env::Env;
use tailwater_queue::{Message, QueueStore, QueueView};

use crate::accounts::{Accounts, Identity};
use crate::actions::{self, Made};
use crate::config::SqsConfig;
use crate::error::{Code, ErrorRefusal};
use crate::limits::{BODY_STEP_BYTES, ROOM_WAIT_MS, SMALL_BYTES};
use crate::names;
use crate::policy;
use crate::protocol::{self, ActionAsked, SqsProtocol};
use crate::room::{RoomTaken, SocketRoom};
use crate::signature::{self, Signed};
use crate::stats::{SqsStatsRead, Stats};

/// Answers requests, for all connections.
pub struct Front {
    pub(crate) env: Env,
    pub(crate) config: SqsConfig,
    pub(crate) queues: Arc<dyn QueueStore>,
    pub(crate) accounts: Arc<Accounts>,
    pub(crate) stats: Stats,
    authorizer: Arc<dyn Authorizer>,
    /// Room for large bodies.
    bodies: SocketRoom,
    /// Room for large answers, from before they are made until they are sent.
    answers: SocketRoom,
}

impl std::fmt::Debug for Front {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Front").field("listen", &self.config.listen).finish_non_exhaustive()
    }
}

/// A request whose sender is known.
pub(crate) struct RequestContext<'a> {
    pub(crate) front: &'a Front,
    pub(crate) asked: &'a ActionAsked,
    pub(crate) identity: Identity,
    /// The same as the authorizer knows it.
    peer: Peer,
    /// What addresses of queues begin with: `http://host:port`.
    base: String,
    /// The request's path: in the Query protocol it may name the queue.
    path: &'a str,
    pub(crate) request_id: &'a str,
    /// The trace that the request is part of, as its header says.
    pub(crate) trace: Option<&'a str>,
    /// How long the request's body is, in bytes.
    pub(crate) body_bytes: usize,
}

type HttpAnswer = Response<Full<Bytes>>;

impl Front {
    /// A front of `queues`, for those whom `authorizer` lets, with the accounts of `config`.
    pub fn new(
        env: &Env,
        config: SqsConfig,
        queues: Arc<dyn QueueStore>,
        authorizer: Arc<dyn Authorizer>,
    ) -> Arc<Self> {
        let accounts = Accounts::of(env, &config);
        Self::with_accounts(env, config, queues, authorizer, accounts)
    }

    /// The same with other accounts.
    pub fn with_accounts(
        env: &Env,
        config: SqsConfig,
        queues: Arc<dyn QueueStore>,
        authorizer: Arc<dyn Authorizer>,
        accounts: Arc<Accounts>,
    ) -> Arc<Self> {
        Arc::new(Self {
            env: env.clone(),
            accounts,
            bodies: SocketRoom::new(config.bodies_bytes_max),
            answers: SocketRoom::new(config.answers_bytes_max),
            config,
            queues,
            stats: Stats::default(),
            authorizer,
        })
    }

    /// The queues that it is for.
    pub fn queues(&self) -> &Arc<dyn QueueStore> {
        &self.queues
    }

    /// The accounts that it knows.
    pub fn accounts(&self) -> &Arc<Accounts> {
        &self.accounts
    }

    /// The counters at this moment.
    pub fn stats(&self) -> SqsStatsRead {
        self.stats.read(self.answers.taken_bytes())
    }

    /// Tells whoever waits when to ask again.
    pub(crate) fn rights(&self) -> RightsChanges {
        self.authorizer.changes()
    }

    /// Answers one request of the connection of `peer`. Dropping it while a receive waits ends that.
    pub async fn answer<B>(&self, peer: &Peer, request: Request<B>) -> HttpAnswer
    where
        B: Body<Data = Bytes>,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        if is_health(&request) {
            return Response::new(Full::new(Bytes::from_static(b"ok\n")));
        }
        let request_id = self.request_id();
        let (head, body) = request.into_parts();
        let protocol = match head.headers.contains_key("x-amz-target") {
            true => SqsProtocol::Json,
            false => SqsProtocol::Query,
        };
        let query = head.uri.query().unwrap_or_default();
        let refused = |protocol, refusal: &ErrorRefusal| {
            self.stats.refused.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            if refusal.code == Code::RequestThrottled {
                self.stats.throttled.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            }
            protocol::refuse(protocol, &request_id, refusal).map(Full::new)
        };
        if let Err(refusal) = self.accounts.check_quota(claimed_key(&head.headers, query)) {
            return refused(protocol, &refusal);
        }
        let (body, _room) = match self.read_body(body).await {
            Ok(read) => read,
            Err(refusal) => return refused(protocol, &refusal),
        };
        let body_bytes = body.len();
        self.stats.request_bytes.fetch_add(body_bytes as u64, std::sync::atomic::Ordering::Relaxed);
        let signed = Signed {
            method: head.method.as_str(),
            path: head.uri.path(),
            query,
            headers: &head.headers,
            body: &body,
        };
        let (identity, body) = match self.identify(&signed) {
            Ok((identity, unchunked)) => (identity, unchunked.unwrap_or(body)),
            Err(refusal) => return refused(protocol, &refusal),
        };
        if let Err(refusal) = self.accounts.admit(&identity, body_bytes) {
            return refused(protocol, &refusal);
        }
        let asked = match protocol::read(&head.headers, query, body) {
            Ok(asked) => asked,
            Err((protocol, refusal)) => return refused(protocol, &refusal),
        };
        self.stats.count(&asked.action);
        let path = percent_decode_str(head.uri.path()).decode_utf8_lossy();
        let base = self.base(&head);
        let context = RequestContext {
            front: self,
            asked: &asked,
            peer: identity.peer(peer),
            identity,
            base,
            path: &path,
            request_id: &request_id,
            trace: head.headers.get("x-amzn-trace-id").and_then(|trace| trace.to_str().ok()),
            body_bytes,
        };
        if let Err(refusal) = context.ask(Resource::Node) {
            return refused(asked.protocol, &refusal);
        }
        let answer = match actions::answer(&context).await {
            Ok(Made { answer, room, held }) => {
                let answer = self.in_room(answer, room).await;
                if let (Ok(_), Some(held)) = (&answer, held) {
                    held.handed_out();
                }
                answer
            }
            Err(refusal) => Err(refusal),
        };
        answer.unwrap_or_else(|refusal| refused(asked.protocol, &refusal))
    }

    /// Waits until there is some room for answers. Before messages are read: while there is none, none are.
    pub(crate) async fn wait_for_room(&self) -> Result<(), ErrorRefusal> {
        self.take_room(1, self.config.stalled_ms).await.map(drop)
    }

    /// Room for an answer with these messages, if it is not small: for them as they are, and once more as they will be
    /// sent. They don't wait for long: each is invisible for others meanwhile.
    pub(crate) async fn room_for(&self, messages: &[Message]) -> Result<Option<RoomTaken>, ErrorRefusal> {
        match messages.iter().map(|message| 2 * message.content.len()).sum() {
            0..=SMALL_BYTES => Ok(None),
            bytes => self.take_room(bytes, ROOM_WAIT_MS).await.map(Some),
        }
    }

    async fn take_room(&self, bytes: usize, most_ms: u64) -> Result<RoomTaken, ErrorRefusal> {
        let most = Duration::from_millis(most_ms.min(self.config.stalled_ms));
        self.env.timeout(most, self.answers.take(bytes)).await.ok_or_else(|| {
            let message = "Too many answers wait for clients that do not take them: [sqs] answers_bytes_max";
            ErrorRefusal::new(Code::ServiceUnavailable, message)
        })
    }

    /// An answer in its room, which is free again when the system has the last byte of it.
    async fn in_room(
        &self,
        answer: Response<Bytes>,
        room: Option<RoomTaken>,
    ) -> Result<HttpAnswer, ErrorRefusal> {
        let bytes = answer.body().len();
        if bytes <= SMALL_BYTES {
            return Ok(answer.map(Full::new));
        }
        let room = match room.and_then(|room| room.shrunk_to(bytes)) {
            Some(room) => room,
            // It became longer than it was taken for. What it had is free by now: who has some never waits for more.
            None => self.take_room(bytes, ROOM_WAIT_MS).await?,
        };
        Ok(answer.map(|body| Full::new(Bytes::from_owner(InRoom { body, _room: room }))))
    }

    /// Who sent the request; and its body, if that was in signed chunks.
    fn identify(&self, signed: &Signed<'_>) -> Result<(Identity, Option<Bytes>), ErrorRefusal> {
        if let Some(everybody) = self.accounts.everybody() {
            return Ok((everybody, None));
        }
        let now_s = u64::try_from(self.env.wall_ms() / 1_000).unwrap_or(0);
        let (key, body) = signature::verify(signed, now_s, |key| self.accounts.secret(key))?;
        let identity = self.accounts.identity(key);
        let identity =
            identity.ok_or_else(|| ErrorRefusal::new(Code::InvalidClientTokenId, "The key is not known."))?;
        Ok((identity, body))
    }

    /// A body, and its room as long as the request is under way, if it is not small.
    async fn read_body<B>(&self, body: B) -> Result<(Bytes, Option<RoomTaken>), ErrorRefusal>
    where
        B: Body<Data = Bytes>,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let most = self.config.body_bytes_max;
        let too_long = || {
            ErrorRefusal::new(
                Code::Malformed,
                format!("the body is longer than {most} bytes: [sqs] body_bytes_max"),
            )
        };
        // One that does not say, as it comes in chunks, is taken to be as long as it may be until it is read.
        let announced =
            body.size_hint().upper().map_or(most, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
        if announced > most {
            return Err(too_long());
        }
        let (stalled, head) = (self.config.stalled_ms, self.config.head_ms);
        let of = Duration::from_millis;
        let slow =
            |ms| ErrorRefusal::new(Code::Malformed, format!("the body did not come within {:?}", of(ms)));
        let until = self.env.now() + of(stalled);
        let mut body = pin!(Limited::new(body, most));
        let (mut parts, mut bytes, mut covered) = (Vec::new(), 0, SMALL_BYTES);
        let mut room: Option<RoomTaken> = None;
        loop {
            let now = self.env.now();
            let left = until.since(now);
            // What has said that it is coming holds nothing, and what has come does not hold it for long without the
            // rest.
            let next = self.env.timeout(left.min(of(head)), body.frame()).await;
            let frame = match next {
                None if left.is_zero() => return Err(slow(stalled)),
                None => return Err(slow(head)),
                Some(None) => break,
                Some(Some(Err(error))) if error.is::<LengthLimitError>() => return Err(too_long()),
                Some(Some(Err(error))) => return Err(ErrorRefusal::new(Code::Malformed, error.to_string())),
                Some(Some(Ok(frame))) => frame,
            };
            let Ok(part) = frame.into_data() else { continue };
            bytes += part.len();
            parts.push(part);
            if bytes > covered {
                let more = (bytes - covered).max(BODY_STEP_BYTES).min(most.saturating_sub(covered));
                // Whoever has some does not wait for long: others may wait for that, and it for theirs. And not all of
                // them as long as each other: then all would have to give up.
                let most_ms = match room.is_some() {
                    true => ROOM_WAIT_MS / 2 + self.env.random_below(ROOM_WAIT_MS),
                    false => stalled,
                };
                let taken = self.env.timeout(of(most_ms.min(stalled)), self.bodies.take(more)).await;
                let taken = taken.ok_or_else(|| {
                    let message = "Too many large bodies come at the same time: [sqs] bodies_bytes_max";
                    ErrorRefusal::new(Code::ServiceUnavailable, message)
                })?;
                covered += more;
                room = Some(match room {
                    Some(room) => room.joined(taken),
                    None => taken,
                });
            }
        }
        let mut read = BytesMut::with_capacity(if parts.len() > 1 { bytes } else { 0 });
        let read = match <[Bytes; 1]>::try_from(parts) {
            Ok([whole]) => whole,
            Err(parts) => {
                parts.into_iter().for_each(|part| read.extend_from_slice(&part));
                read.freeze()
            }
        };
        // A request may be under way for long: a receive that waits.
        let room = room.and_then(|room| room.shrunk_to(read.len().checked_sub(SMALL_BYTES)?));
        Ok((read, room))
    }

    fn base(&self, head: &Parts) -> String {
        if !self.config.advertised.is_empty() {
            return self.config.advertised.trim_end_matches('/').to_owned();
        }
        let scheme = if head.extensions.get::<OverTls>().is_some() { "https" } else { "http" };
        match head.headers.get(HOST).and_then(|host| host.to_str().ok()) {
            Some(host) => format!("{scheme}://{host}"),
            None => format!("{scheme}://{}", self.config.listen),
        }
    }

    /// In the form of a UUID.
    fn request_id(&self) -> String {
        let (high, low) = (self.env.random_u64(), self.env.random_u64());
        format!(
            "{:08x}-{:04x}-4{:03x}-8{:03x}-{:012x}",
            high >> 32,
            high >> 16 & 0xffff,
            high & 0xfff,
            low >> 52,
            low & 0xffff_ffff_ffff
        )
    }
}

/// An answer, until it is sent.
struct InRoom {
    body: Bytes,
    _room: RoomTaken,
}

impl AsRef<[u8]> for InRoom {
    fn as_ref(&self) -> &[u8] {
        &self.body
    }
}

/// An extension of requests that came over an encrypted connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OverTls;

/// Whether somebody asks how the node is, as everybody may.
pub(crate) fn is_health<B>(request: &Request<B>) -> bool {
    request.method() == Method::GET && request.uri().path() == "/health"
}

/// The access key that a request says it is signed with; not verified.
fn claimed_key<'a>(headers: &'a HeaderMap, query: &'a str) -> &'a str {
    let authorization = headers.get("authorization").and_then(|value| value.to_str().ok()).unwrap_or(query);
    let begin = authorization.find("Credential=").map(|at| &authorization[at + "Credential=".len()..]);
    begin.and_then(|begin| begin.split(['/', '%']).next()).unwrap_or_default()
}

impl RequestContext<'_> {
    pub(crate) fn account(&self) -> &str {
        &self.identity.account
    }

    pub(crate) fn url(&self, queue: &QueueView) -> String {
        format!("{}/{}/{}", self.base, queue.account, queue.name)
    }

    pub(crate) fn arn(&self, queue: &QueueView) -> String {
        names::arn(&self.front.config.region, &queue.account, &queue.name)
    }

    /// The queue that the request is about, if whoever asks may do this with it.
    pub(crate) async fn queue(&self, url: Option<&str>) -> Result<Arc<QueueView>, ErrorRefusal> {
        let url = url.filter(|url| !url.is_empty()).or_else(|| self.asked.form_queue_url());
        let url = match (url, self.path) {
            (Some(url), _) => url,
            (None, "/") => return Err(ErrorRefusal::missing("QueueUrl")),
            (None, path) => path,
        };
        let (account, name) = names::of_url(url).ok_or_else(|| {
            ErrorRefusal::new(
                Code::InvalidAddress,
                format!("The address {url} is not valid for this endpoint."),
            )
        })?;
        // What ElasticMQ's addresses have in place of an account.
        let account = account.filter(|account| *account != "queue").unwrap_or(self.account());
        self.find(account, name).await
    }

    /// Whether the request came to a queue's address, `/account/name`, in the form in which that says which queue is
    /// meant.
    pub(crate) fn is_at_queue(&self) -> bool {
        let is_account = |text: &str| text.len() == 12 && text.bytes().all(|byte| byte.is_ascii_digit());
        let parts = self.path.strip_prefix('/').and_then(|path| path.split_once('/'));
        self.asked.protocol == SqsProtocol::Query
            && parts.is_some_and(|(account, name)| is_account(account) && !name.is_empty())
    }

    /// Whether the authorizer lets whoever asks do this with `resource`. That is asked before anything else is looked
    /// at, a queue's own policy too.
    fn ask(&self, resource: Resource<'_>) -> Result<(), ErrorRefusal> {
        self.front
            .authorizer
            .authorize(&self.peer, self.asked_of(resource))
            .map_err(|denied| ErrorRefusal::new(Code::AccessDenied, denied.to_string()))
    }

    fn asked_of<'a>(&'a self, resource: Resource<'a>) -> AccessRequest<'a> {
        AccessRequest { protocol: Protocol::Sqs, operation: self.asked.action.as_str(), resource }
    }

    /// Whether whoever asked for all that there is may know of this queue.
    pub(crate) fn shows(&self, queue: &QueueView) -> bool {
        let name = format!("{}/{}", queue.account, queue.name);
        self.front.authorizer.shows(&self.peer, self.asked_of(Resource::Queue(&name)))
    }

    /// The same of a queue, whether it is there or not.
    pub(crate) fn ask_for_queue(&self, account: &str, name: &str) -> Result<(), ErrorRefusal> {
        self.ask(Resource::Queue(&format!("{account}/{name}")))
    }

    /// A queue by its names, if whoever asks may do this with it.
    pub(crate) async fn find(&self, account: &str, name: &str) -> Result<Arc<QueueView>, ErrorRefusal> {
        self.ask_for_queue(account, name)?;
        let queue = self.front.queues.find(account, name).await?;
        if account == self.account() {
            return queue.ok_or_else(ErrorRefusal::no_queue);
        }
        let is_allowed = queue.as_ref().is_some_and(|queue| {
            let record = queue.record();
            let policy = record.attributes.get("Policy");
            let allows = |policy: &String| {
                policy::allows(policy, self.account(), &self.asked.action, &self.arn(queue))
            };
            policy.is_some_and(allows)
        });
        queue.filter(|_| is_allowed).ok_or_else(|| {
            let message = format!("Access to the resource {}/{account}/{name} is denied.", self.base);
            ErrorRefusal::new(Code::AccessDenied, message)
        })
    }

    /// A queue of the account that asks, by its ARN.
    pub(crate) async fn by_arn(
        &self,
        arn: Option<&str>,
        parameter: &str,
    ) -> Result<Arc<QueueView>, ErrorRefusal> {
        let arn = arn.ok_or_else(|| ErrorRefusal::missing(parameter))?;
        let (account, name) = names::of_arn(arn).ok_or_else(|| {
            let message = format!(
                "You must use this format to specify the {parameter}: \
                 arn:<partition>:<service>:<region>:<account-id>:<resource-id>"
            );
            ErrorRefusal::new(Code::InvalidParameterValue, message)
        })?;
        self.ask_for_queue(account, name)?;
        let queue = match account == self.account() {
            true => self.front.queues.find(account, name).await?,
            false => None,
        };
        queue.ok_or_else(|| {
            let message =
                format!("The resource that you specified for the {parameter} parameter doesn't exist.");
            ErrorRefusal::new(Code::ResourceNotFound, message)
        })
    }
}
