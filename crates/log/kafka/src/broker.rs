//! What every request passes through: its API and version are looked at, its body is read, and one of the functions in
//! `answers/` answers it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use tailwater_access::{AccessRequest, Authorizer, Protocol, Resource, RightsChanges};
use tailwater_env::{Complaints, Env, Instant};
use tailwater_format::{ShardId, ShardNumber};
use tailwater_log::{Log, LogStreamInfo, MembersSeen, ShardMember};
use tailwater_login::Users;
use tailwater_meta::FromMeta;
use tailwater_permissions::Rules;
use tailwater_quotas::{ClientQuotas, QuotaBound, QuotaTaker};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use uuid::Uuid;

use crate::answers;
use crate::api::{Api, ApiRequest};
use crate::config::COMMON_FRAME_BYTES_MAX;
use crate::config::KafkaConfig;
use crate::connection::Closing;
use crate::errors::ErrorCode;
use crate::groups::Coordinators;
use crate::groups::admin::RecordTimes;
use crate::internal::{self, OFFSETS_TOPIC};
use crate::messages::header::{RequestHeader, response};
use crate::nodes::BrokerNodes;
use crate::pace::Pace;
use crate::runtime::RuntimeConfigs;
use crate::sasl::{self, PeerLogin};
use crate::stats::Stats;
use crate::wire::{Frame, Malformed, Reader, TooLong, Wire};

/// Answers up to this size, but for those to Fetch, take nothing of the room that others share.
const SMALL_ANSWER_BYTES: usize = 64 << 10;

/// What a line in the log says at most of what a client asked for.
const RESOURCE_CHARS: usize = 300;

/// What is asked of the authorizer.
const fn asked(api: Api, resource: Resource<'_>) -> AccessRequest<'_> {
    AccessRequest { protocol: Protocol::Kafka, operation: api.name(), resource }
}

/// What becomes of a request.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// This is sent; it holds so much of the room for answers until then.
    Frame(Frame, Vec<OwnedSemaphorePermit>),
    /// Nothing is: the client does not wait for an answer.
    Nothing,
    /// The connection is closed: the only way to tell a client that does not wait.
    Close(String),
}

impl From<Result<Frame, TooLong>> for Outcome {
    fn from(written: Result<Frame, TooLong>) -> Self {
        written.map_or_else(
            |error| Self::Close(format!("it asked for {error}")),
            |frame| Self::Frame(frame, Vec::new()),
        )
    }
}

/// An answer on its way. Dropping it gives up waiting, not what was begun.
pub(crate) type Answer = BoxFuture<'static, Outcome>;

/// An answer on its way, and how much of the room for answers is kept for it from the beginning.
pub(crate) struct Promised {
    pub answer: Answer,
    pub bytes: usize,
}

impl From<Answer> for Promised {
    fn from(answer: Answer) -> Self {
        Self { answer, bytes: 0 }
    }
}

/// A request that was begun.
pub(crate) struct Begun {
    pub answer: Answer,
    /// [`Promised::bytes`].
    pub answer_bytes: usize,
    /// Whether it is answered when others do something, and not before: records are produced, members join.
    pub waits_for_others: bool,
    /// Whether it was refused in a way that ends its connection: nothing behind it may begin.
    pub is_last: bool,
}

/// Both ends of a connection.
#[derive(Debug)]
pub(crate) struct Peer {
    /// The client's address.
    pub address: SocketAddr,
    /// The same in words, and on whose behalf it asks by its connection alone.
    pub connected: tailwater_access::Peer,
    /// Its login, where it has to.
    pub login: Option<PeerLogin>,
    /// The address at which it reached us.
    pub local: SocketAddr,
    /// Whether the connection is encrypted.
    pub is_secured: bool,
    /// The one that clients of its listener are told instead.
    pub advertised: Option<Arc<(String, u16)>>,
    /// The next fetch is looked at not before this.
    pub next_fetch: Mutex<Instant>,
}

impl Peer {
    /// On whose behalf it asks.
    pub fn who(&self) -> &tailwater_access::Peer {
        self.login.as_ref().and_then(PeerLogin::known).unwrap_or(&self.connected)
    }

    /// Whether it has to log in before anything else.
    pub fn is_stranger(&self) -> bool {
        self.login.as_ref().is_some_and(|login| login.known().is_none())
    }
}

/// A request, and its room, which is taken until nobody has any of its bytes.
struct Counted {
    request: Bytes,
    _room: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.request
    }
}

/// What whoever keeps a part of a request keeps with it.
#[derive(Clone, Copy)]
pub(crate) enum Memory {
    /// What has its room as long as any of it is kept.
    Counted,
    /// So many bytes.
    Uncounted(usize),
}

/// Whose request is answered, and in which version.
#[derive(Clone, Debug)]
pub(crate) struct Context {
    pub peer: Arc<Peer>,
    /// The name that the client gave itself; empty if none.
    pub client_id: Arc<str>,
    pub api: Api,
    pub version: i16,
}

/// What clients look at and change of who may come in, and what each may do.
#[derive(Clone, Debug)]
pub struct Administered {
    /// Access control lists.
    pub rules: Arc<Rules>,
    /// Users with passwords.
    pub users: Arc<Users>,
    /// What each may take in a second.
    pub quotas: Arc<ClientQuotas>,
}

/// Answers requests from a log.
pub struct Broker {
    pub(crate) env: Env,
    pub(crate) log: Log,
    /// As the file has it; what can be set while the node runs is in `configs`.
    pub(crate) config: KafkaConfig,
    pub(crate) configs: Arc<RuntimeConfigs>,
    pub(crate) cluster_id: String,
    pub(crate) stats: Stats,
    pub(crate) pace: Pace,
    pub(crate) groups: Coordinators,
    /// Where several are active.
    pub(crate) nodes: BrokerNodes,
    pub(crate) record_times: RecordTimes,
    authorizer: Arc<dyn Authorizer>,
    /// What its clients may look at and change of what the authorizer goes by.
    pub(crate) rules: Option<Arc<Rules>>,
    pub(crate) users: Option<Arc<Users>>,
    pub(crate) quotas: Arc<ClientQuotas>,
    complaints: Complaints,
    /// KiB that large requests may take together.
    room: Arc<Semaphore>,
    /// KiB that those of more than [`COMMON_FRAME_BYTES_MAX`] may take together.
    room_of_huge: Arc<Semaphore>,
    /// KiB that answers to Fetch may take together until they are sent.
    answers: Arc<Semaphore>,
    /// As many for other large ones. Their own: consumers that catch up use what they may.
    other_answers: Arc<Semaphore>,
}

impl std::fmt::Debug for Broker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Broker({})", self.config.broker_id)
    }
}

impl Broker {
    /// A broker in front of `log`; `cluster_id` is what clients are told, and `authorizer` says what each may do.
    /// Without what is `administered` clients are told that there are neither users nor rules, and the quotas are the
    /// broker's own.
    pub async fn open(
        env: &Env,
        config: KafkaConfig,
        log: Log,
        cluster_id: String,
        authorizer: Arc<dyn Authorizer>,
        administered: Option<Administered>,
    ) -> Result<Arc<Self>, String> {
        config.check()?;
        let (rules, users, quotas) = match administered {
            Some(Administered { rules, users, quotas }) => (Some(rules), Some(users), quotas),
            None => {
                let own = ClientQuotas::open(env, Arc::clone(log.meta())).await;
                (None, None, own.map_err(|error| error.to_string())?)
            }
        };
        let number = log.is_shared().then_some(config.broker_id);
        let configs = RuntimeConfigs::open(env, Arc::clone(log.meta()), config.clone(), number).await?;
        let groups = Coordinators::open(env, Arc::clone(&configs), &log).await?;
        Ok(Arc::new(Self {
            env: env.clone(),
            log,
            cluster_id,
            stats: Stats::default(),
            pace: Pace::default(),
            configs,
            groups,
            nodes: BrokerNodes::default(),
            record_times: RecordTimes::default(),
            authorizer,
            rules,
            users,
            quotas,
            complaints: Complaints::default(),
            room: Arc::new(Semaphore::new(kib(config.requests_bytes_max - config.huge_bytes()) as usize)),
            room_of_huge: Arc::new(Semaphore::new(kib(config.huge_bytes()) as usize)),
            answers: Arc::new(Semaphore::new(kib(config.answers_bytes_max) as usize)),
            other_answers: Arc::new(Semaphore::new(kib(config.answers_bytes_max) as usize)),
            config,
        }))
    }

    /// Brings what this node coordinates of the groups closer to its share beside `members`, which were `seen`, where
    /// several nodes are active. Answers how many of their shares it has still to give up.
    ///
    /// # Errors
    /// What metadata answers. The next call goes on.
    pub fn share_groups<'a>(
        &'a self,
        members: &'a [ShardMember],
        seen: &'a MembersSeen,
    ) -> FromMeta<'a, usize> {
        self.groups.look(members, seen).boxed()
    }

    /// Counters.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Whether a line about something that clients cause may be written, and how many were not before it.
    pub(crate) fn complain(&self, reason: &'static str) -> Option<u64> {
        self.complaints.admit(self.env.now(), reason)
    }

    /// Room for a large request; waits for it.
    pub(crate) async fn take_room(self: Arc<Self>, bytes: usize) -> Option<OwnedSemaphorePermit> {
        // One that takes nearly everything is waited for by its like only.
        let room = if bytes > COMMON_FRAME_BYTES_MAX { &self.room_of_huge } else { &self.room };
        // Never closed, so there is always an answer.
        Arc::clone(room).acquire_many_owned(kib(bytes)).await.ok()
    }

    /// Room for what a Fetch reads: as many bytes as it wants, or what it gets of the rest. Never waits: there may be
    /// none.
    pub(crate) fn take_answer_room(&self, wanted: usize) -> (usize, Option<OwnedSemaphorePermit>) {
        // A part of the rest, so that a few who are slow leave something for all others.
        let bytes = wanted.min((self.answers.available_permits() << 10) / 4);
        match Arc::clone(&self.answers).try_acquire_many_owned(kib(bytes)) {
            Ok(permit) => (bytes, Some(permit)),
            Err(_) => (0, None),
        }
    }

    /// The same room with as many bytes as an answer turned out to keep in memory. Never waits.
    ///
    /// # Errors
    /// The room as it was: there is no more.
    pub(crate) fn fit_answer_room(
        &self,
        room: Option<OwnedSemaphorePermit>,
        bytes: usize,
    ) -> Result<Option<OwnedSemaphorePermit>, Option<OwnedSemaphorePermit>> {
        let has = room.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let wanted = kib(bytes) as usize;
        let mut room = room;
        if wanted <= has {
            drop(room.as_mut().and_then(|room| room.split(has - wanted)));
            return Ok(room);
        }
        match Arc::clone(&self.answers).try_acquire_many_owned((wanted - has) as u32) {
            Ok(more) => match &mut room {
                Some(held) => held.merge(more),
                None => room = Some(more),
            },
            Err(_) => return Err(room),
        }
        Ok(room)
    }

    /// The address that a client is told to connect to: of the listener by which it came, which it can reach.
    pub(crate) fn address_for(&self, peer: &Peer) -> (String, i32) {
        match peer.advertised.as_deref() {
            Some((host, port)) => (host.clone(), i32::from(*port)),
            None => (peer.local.ip().to_canonical().to_string(), i32::from(peer.local.port())),
        }
    }

    /// Begins to carry a request out. What takes long of that lets others on meanwhile.
    ///
    /// # Errors
    /// What the connection is closed for.
    pub(crate) async fn begin(
        self: &Arc<Self>,
        peer: &Arc<Peer>,
        request: Bytes,
        room: Option<OwnedSemaphorePermit>,
    ) -> Result<Begun, Closing> {
        let bytes = request.len() as u64;
        // The log keeps batches of a Produce for longer than this may wait for them, and they keep all of the request.
        let is_produce = request.starts_with(&Api::Produce.number().to_be_bytes());
        let (request, room, memory) = match room {
            Some(room) if is_produce => {
                (Bytes::from_owner(Counted { request, _room: room }), None, Memory::Counted)
            }
            room => (request, room, Memory::Uncounted(bytes as usize)),
        };
        let malformed = |api| {
            move |error| match error {
                Malformed::Items { max } => Closing::Items { api, max },
                error => Closing::Malformed { api, error },
            }
        };
        let (header, reader) = RequestHeader::read(request, self.config.items_max).map_err(malformed("a"))?;
        let RequestHeader { version, correlation_id, .. } = header;
        let Some(api) = Api::from_number(header.api) else {
            return Err(Closing::Unsupported { api: header.api, version });
        };
        if peer.login.as_ref().is_some_and(|login| !login.lets(api)) {
            return Err(Closing::Stranger(api.name()));
        }
        if !api.versions().contains(&version) {
            if api == Api::ApiVersions {
                // In the oldest form, which everybody reads, so that the client learns which ones there are.
                let answer = answers::versions::answer(ErrorCode::UnsupportedVersion);
                let outcome = response(api, 0, correlation_id, &answer).into();
                let answer = futures::future::ready(outcome).boxed();
                return Ok(Begun { answer, answer_bytes: 0, waits_for_others: false, is_last: false });
            }
            return Err(Closing::Unsupported { api: header.api, version });
        }
        let context = Context {
            peer: Arc::clone(peer),
            client_id: header.client_id.unwrap_or_default().into(),
            api,
            version,
        };
        tracing::trace!(peer = %peer.address, client = %context.client_id, api = api.name(), version, "request");
        let call = self.stats.request(api, bytes, self.env.now());
        self.take_quotas(&context, bytes);
        let begun = self.dispatch(api, correlation_id, context, reader, memory).await;
        let begun = begun.map_err(malformed(api.name()))?;
        let is_last = begun.is_err();
        let Promised { answer, bytes: answer_bytes } =
            begun.unwrap_or_else(|why| futures::future::ready(Outcome::Close(why)).boxed().into());
        // What others decide about may take as long as they like, and the request is taken apart already.
        let waits_for_others = matches!(api, Api::JoinGroup | Api::SyncGroup | Api::Fetch);
        let room = room.filter(|_| !waits_for_others);
        let broker = Arc::clone(self);
        let answer = async move {
            let outcome = answer.await;
            broker.stats.answered(call, broker.env.now());
            drop(room);
            outcome
        };
        Ok(Begun { answer: answer.boxed(), answer_bytes, waits_for_others, is_last })
    }

    /// Takes a request, and what it appends, from its client's quotas.
    fn take_quotas(&self, context: &Context, bytes: u64) {
        let Context { peer, client_id, api, .. } = context;
        if !self.quotas.is_any() || peer.is_stranger() {
            return;
        }
        let taker = QuotaTaker::of(peer.who(), client_id);
        self.quotas.take(QuotaBound::RequestRate, taker, 1);
        if *api == Api::Produce {
            self.quotas.take(QuotaBound::ProducerByteRate, taker, bytes);
        }
    }

    /// How long a client is held before its next request to `api`, because of what it has taken.
    pub(crate) fn owed(&self, peer: &Peer, client_id: &str, api: Option<Api>) -> Duration {
        if !self.quotas.is_any() || peer.is_stranger() {
            return Duration::ZERO;
        }
        let taker = QuotaTaker::of(peer.who(), client_id);
        let bytes = match api {
            Some(Api::Produce) => Some(QuotaBound::ProducerByteRate),
            Some(Api::Fetch) => Some(QuotaBound::ConsumerByteRate),
            _ => None,
        };
        let owed = |bound| self.quotas.owed(bound, taker);
        owed(QuotaBound::RequestRate).max(bytes.map_or(Duration::ZERO, owed))
    }

    /// The same in milliseconds, as the client is told in the answer to such a request.
    pub(crate) fn throttle_time_ms(&self, context: &Context) -> i32 {
        let owed = self.owed(&context.peer, &context.client_id, Some(context.api));
        i32::try_from(owed.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX)
    }

    /// Begins a request that is read; why it was not, if its connection has to end.
    async fn dispatch(
        self: &Arc<Self>,
        api: Api,
        correlation_id: i32,
        context: Context,
        mut reader: Reader,
        memory: Memory,
    ) -> Result<Result<Promised, String>, Malformed> {
        macro_rules! answer {
            ($function:path) => {
                self.answer(correlation_id, context, reader, $function).map(|answer| Ok(answer.into()))
            };
        }
        match api {
            Api::Produce => {
                let request = Wire::read(&mut reader)?;
                Ok(answers::produce::produce(self, &context, correlation_id, request, memory).await)
            }
            Api::Fetch => {
                let request = Wire::read(&mut reader)?;
                let answer = answers::fetch::fetch(Arc::clone(self), context, correlation_id, request);
                Ok(Ok(answer.boxed().into()))
            }
            Api::ListOffsets => answer!(answers::positions::list_offsets),
            Api::OffsetForLeaderEpoch => answer!(answers::positions::offset_for_leader_epoch),
            Api::ApiVersions => answer!(answers::versions::api_versions),
            Api::Metadata => answer!(answers::metadata::metadata),
            Api::FindCoordinator => answer!(answers::groups::find_coordinator),
            Api::JoinGroup => answer!(answers::groups::join_group),
            Api::SyncGroup => answer!(answers::groups::sync_group),
            Api::Heartbeat => answer!(answers::groups::heartbeat),
            Api::LeaveGroup => answer!(answers::groups::leave_group),
            Api::OffsetCommit => answer!(answers::offsets::offset_commit),
            Api::OffsetFetch => answer!(answers::offsets::offset_fetch),
            Api::OffsetDelete => answer!(answers::offsets::offset_delete),
            Api::ListGroups => answer!(answers::group_admin::list_groups),
            Api::DescribeGroups => answer!(answers::group_admin::describe_groups),
            Api::DeleteGroups => answer!(answers::group_admin::delete_groups),
            Api::ConsumerGroupHeartbeat => answer!(answers::consumer_groups::heartbeat),
            Api::ConsumerGroupDescribe => answer!(answers::consumer_groups::describe),
            Api::InitProducerId => answer!(answers::produce::init_producer_id),
            Api::CreateTopics => answer!(answers::topics::create_topics),
            Api::DeleteTopics => answer!(answers::topics::delete_topics),
            Api::CreatePartitions => answer!(answers::topics::create_partitions),
            Api::DeleteRecords => answer!(answers::topics::delete_records),
            Api::DescribeConfigs => answer!(answers::configs::describe_configs),
            Api::AlterConfigs => answer!(answers::configs::alter_configs),
            Api::IncrementalAlterConfigs => answer!(answers::configs::incremental_alter_configs),
            Api::ListConfigResources => answer!(answers::configs::list_config_resources),
            Api::DescribeCluster => answer!(answers::cluster::describe_cluster),
            Api::DescribeTopicPartitions => answer!(answers::cluster::describe_topic_partitions),
            Api::DescribeLogDirs => answer!(answers::cluster::describe_log_dirs),
            Api::DescribeAcls => answer!(answers::acls::describe_acls),
            Api::CreateAcls => answer!(answers::acls::create_acls),
            Api::DeleteAcls => answer!(answers::acls::delete_acls),
            Api::DescribeClientQuotas => answer!(answers::quotas::describe_client_quotas),
            Api::AlterClientQuotas => answer!(answers::quotas::alter_client_quotas),
            Api::DescribeUserScramCredentials => answer!(answers::scram::describe_user_scram_credentials),
            Api::AlterUserScramCredentials => answer!(answers::scram::alter_user_scram_credentials),
            Api::AlterReplicaLogDirs => answer!(answers::replicas::alter_replica_log_dirs),
            Api::ElectLeaders => answer!(answers::replicas::elect_leaders),
            Api::AlterPartitionReassignments => answer!(answers::replicas::alter_partition_reassignments),
            Api::ListPartitionReassignments => answer!(answers::replicas::list_partition_reassignments),
            Api::DescribeQuorum => answer!(answers::replicas::describe_quorum),
            Api::UpdateFeatures => answer!(answers::replicas::update_features),
            Api::DescribeProducers => answer!(answers::producers::describe_producers),
            Api::SaslHandshake => answer!(sasl::handshake),
            Api::SaslAuthenticate => answer!(sasl::authenticate),
        }
    }

    /// Reads a request and lets `function` answer it.
    fn answer<R, F>(
        self: &Arc<Self>,
        correlation_id: i32,
        context: Context,
        mut reader: Reader,
        function: impl FnOnce(Arc<Self>, Context, R) -> F,
    ) -> Result<Answer, Malformed>
    where
        R: ApiRequest,
        R::Response: Send,
        F: Future<Output = R::Response> + Send + 'static,
    {
        let request = R::read(&mut reader)?;
        let version = context.version;
        let answer = function(Arc::clone(self), context, request);
        let broker = Arc::clone(self);
        let bound = move |answer| broker.bound(response(R::API, version, correlation_id, &answer).into());
        Ok(answer.map(bound).boxed())
    }

    /// The same answer with the room that it takes until it is sent, if it is large. One that finds none is not sent:
    /// to wait for room would be to hold it.
    fn bound(&self, outcome: Outcome) -> Outcome {
        let Outcome::Frame(frame, _) = outcome else { return outcome };
        match self.room_for_answer(frame.len()) {
            Ok(room) => Outcome::Frame(frame, Vec::from_iter(room)),
            Err(why) => Outcome::Close(why),
        }
    }

    /// The room that an answer takes until it is sent, but for the records in one to a Fetch, if it is large; why its
    /// connection is closed instead. An answer to a Produce takes it before anything is appended: a producer whose
    /// answer is withheld would send again what was. One to a Fetch takes it before it waits.
    pub(crate) fn room_for_answer(&self, bytes: usize) -> Result<Option<OwnedSemaphorePermit>, String> {
        if bytes <= SMALL_ANSWER_BYTES {
            return Ok(None);
        }
        // One that is larger than all room goes out alone.
        let room = kib(bytes).min(kib(self.config.answers_bytes_max));
        Arc::clone(&self.other_answers).try_acquire_many_owned(room).map(Some).map_err(|_| {
            format!(
                "its answer of {bytes} bytes finds no room beside those that others have yet to take: [kafka] \
                 answers_bytes_max is {}",
                self.config.answers_bytes_max
            )
        })
    }

    /// Whether a client may do what it asks for, to `resource`; the code that clients know for it if not.
    pub(crate) fn authorize(&self, context: &Context, resource: Resource<'_>) -> Result<(), ErrorCode> {
        let Context { peer, api, .. } = context;
        self.authorizer.authorize(peer.who(), asked(*api, resource)).map_err(|denied| {
            if let Some(left_out) = self.complain("not authorized") {
                // A client names what it likes, at any length.
                let resource: String = format!("{resource:?}").chars().take(RESOURCE_CHARS).collect();
                tracing::info!(peer = %peer.address, api = api.name(), resource, %denied, left_out, "refused");
            }
            match resource {
                Resource::Stream(_) => ErrorCode::TopicAuthorizationFailed,
                Resource::Group(_) => ErrorCode::GroupAuthorizationFailed,
                _ => ErrorCode::ClusterAuthorizationFailed,
            }
        })
    }

    /// Tells whoever waits when to ask again.
    pub(crate) fn rights(&self) -> RightsChanges {
        self.authorizer.changes()
    }

    /// Whether a client that asks for all there is may know of this. That it may not is nothing to tell of.
    pub(crate) fn shows(&self, context: &Context, resource: Resource<'_>) -> bool {
        self.authorizer.shows(context.peer.who(), asked(context.api, resource))
    }

    /// Whether a client may do what it asks for to a topic.
    pub(crate) fn authorize_topic(&self, context: &Context, name: &str) -> Result<(), ErrorCode> {
        self.authorize(context, Resource::Stream(name))
    }

    /// Whether a client may do what it asks for to a group.
    pub(crate) fn authorize_group(&self, context: &Context, name: &str) -> Result<(), ErrorCode> {
        self.authorize(context, Resource::Group(name))
    }

    /// Whether a client may do what it asks for to the cluster, which is this node.
    pub(crate) fn authorize_cluster(&self, context: &Context) -> Result<(), ErrorCode> {
        self.authorize(context, Resource::Node)
    }

    /// The streams that a client may know of, without the internal topic.
    pub(crate) fn visible_topics(&self, context: &Context) -> impl Iterator<Item = LogStreamInfo> {
        let streams = self.log.list_streams().into_iter();
        let streams = streams.filter(|stream| stream.name != OFFSETS_TOPIC);
        streams.filter(|stream| self.shows(context, Resource::Stream(&stream.name)))
    }

    /// The stream that a request names, by id where its version has ids, else by name, if the client may do to it what
    /// it asks for. The internal topic is `InvalidTopic`.
    pub(crate) fn find_topic(
        &self,
        context: &Context,
        name: &str,
        id: Uuid,
        by_id: bool,
    ) -> Result<LogStreamInfo, ErrorCode> {
        if internal::is_asked_for(name, id, by_id) {
            return Err(ErrorCode::InvalidTopic);
        }
        if by_id {
            let found = self.log.stream_by_id(tailwater_format::StreamId(id));
            let found = found.ok().filter(|stream| stream.name != OFFSETS_TOPIC);
            let found = found.ok_or(ErrorCode::UnknownTopicId)?;
            self.authorize_topic(context, &found.name)?;
            return Ok(found);
        }
        self.authorize_topic(context, name)?;
        self.log.stream(name).map_err(|_| ErrorCode::UnknownTopicOrPartition)
    }
}

/// The shard that a partition is.
pub(crate) fn shard_of(stream: &LogStreamInfo, partition: i32) -> Result<ShardId, ErrorCode> {
    let number = u32::try_from(partition).ok().filter(|number| *number < stream.config.shards);
    let shard = ShardNumber(number.ok_or(ErrorCode::UnknownTopicOrPartition)?);
    Ok(ShardId { stream: stream.id, shard })
}

/// KiB that hold so many bytes.
pub(crate) fn kib(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(1 << 10)).unwrap_or(u32::MAX)
}
