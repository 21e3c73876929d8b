//! The node's side of the CALL protocol: decodes, authorizes, asks the log, answers.
//!
//! Appends are handed to the log in the order in which they arrive, on the engine thread of their connection, so
//! that batches which a producer sends one behind the other are taken in that order. Nothing waits on that thread:
//! whatever takes time goes on in a task. Appends with compressed batches, and whatever their connection sends behind
//! them, run on the one worker, in the same order.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tailwater_access::{AccessRequest, Authorizer, Protocol, Resource};
use tailwater_cache::limits::NAME_BYTES_MAX;
use tailwater_copy::Copies;
use tailwater_env::{Complaints, Env, Instant, TIMES_BUCKETS};
use tailwater_format::call::{
    self, Append, AppendItem, AppendOutcome, AppendResult, Appended, Appends, CallErrorCode, CallMessage,
    CallRefusal, CopyLead, CopyNext, CopyOffsets, CopyOpen, CopyPlan, CopyPush, CopyReport, CopyState,
    DelaysTaken, DeliveryDelays, FindCell, FindStream, InitProducer, Locate, LocateWhat, Location, Method,
    NodeInfo, ProducerInfo, ReadDurable, SegmentsReply, ShardTail, Tails, TailsReply, decode_call,
    encode_call, stream_from_wire,
};
use tailwater_format::limits::SEGMENTS_PER_REPLY_MAX;
use tailwater_format::{
    Codec, Offset, Position, SegmentId, SegmentNumber, ShardId, ShardNumber, StreamId, Term, TransactionId,
};
use tailwater_log::{
    AppendError, AppendOptions, LocateRead as Target, Log, ReadError, StreamError, TransactionIds,
};
use tailwater_rma::{LoginDemand, LoginDialogue, Peer, Refusal, Region, Reply, ScarHit, ScarOp, Service};

use crate::cells::created::CreatedCells;
use crate::logins::CallLogins;
use crate::metrics::Meters;
use crate::turns::{self, Turns};
use crate::views;

/// Bytes that one durable read answers at most.
const READ_BYTES_MAX: u32 = 2 << 20;

/// How long whoever wants to begin behind the end of a copy waits for it, before it is told to ask again.
const COPY_WAIT: Duration = Duration::from_secs(2);

/// What a turn to read counts as at least.
const TURN_BYTES_MIN: u64 = 4 << 10;

/// Batches that a client's consumers are given between two times that it tells of them: with more than it can mean, a
/// counter would go over its end.
const DELAYS_TOLD_MAX: u64 = 1 << 32;

/// Answers CALLs from a log.
pub struct NodeService {
    env: Env,
    log: Log,
    turns: Arc<Turns>,
    info: Box<dyn Fn() -> NodeInfo + Send + Sync>,
    meters: Arc<Meters>,
    authorizer: Arc<dyn Authorizer>,
    logins: Arc<CallLogins>,
    copies: Copies,
    created: Arc<CreatedCells>,
    complaints: Complaints,
}

impl NodeService {
    /// A service in front of `log`; `info` says what it answers to a greeting, `turns` are those of who catches up,
    /// `meters` count what it does, `authorizer` says what each peer may do, `logins` are those of its peers, `copies`
    /// are made for other clusters, and `created` are the cells beside the log's.
    pub fn new(
        env: Env,
        log: Log,
        turns: Arc<Turns>,
        info: impl Fn() -> NodeInfo + Send + Sync + 'static,
        meters: Arc<Meters>,
        (authorizer, logins): (Arc<dyn Authorizer>, Arc<CallLogins>),
        (copies, created): (Copies, Arc<CreatedCells>),
    ) -> Self {
        let complaints = Complaints::default();
        Self {
            env,
            log,
            turns,
            info: Box::new(info),
            meters,
            authorizer,
            logins,
            copies,
            created,
            complaints,
        }
    }

    /// Whether `peer` may do this to `resource`.
    fn authorize(&self, peer: &Peer, method: Method, resource: Resource<'_>) -> Result<(), CallRefusal> {
        let request = AccessRequest { protocol: Protocol::Call, operation: method.name(), resource };
        let allowed = self.authorizer.authorize(peer, request);
        allowed.map_err(|denied| CallRefusal::new(CallErrorCode::NotAuthorized, denied.to_string()))
    }

    /// Whether `peer` may do this to the stream that a message is about. One that is not there is answered as such.
    fn authorize_stream(
        &self,
        peer: &Peer,
        method: Method,
        message: &impl AboutStream,
    ) -> Result<(), CallRefusal> {
        self.authorize_stream_by_id(peer, method, message.stream()?)
    }

    /// Answers `reply` with what `answer` comes to, without keeping the caller.
    fn answer_later(
        &self,
        method: Method,
        reply: Reply,
        answer: impl Future<Output = Result<Bytes, CallRefusal>> + Send + 'static,
    ) {
        let meters = Arc::clone(&self.meters);
        let task = self.env.spawn("call", async move {
            let answer = answer.await;
            if answer.is_err() {
                meters.of(method).refused.fetch_add(1, Ordering::Relaxed);
            }
            reply.send(answer.map_err(refusal));
        });
        task.detach();
    }

    fn append(&self, peer: &Peer, payload: Bytes, reply: Reply) -> Result<(), (Reply, CallRefusal)> {
        let decoded = decode::<Append>(payload).and_then(|append| {
            self.authorize_stream(peer, Method::Append, &append)?;
            Ok((append.stream()?, append))
        });
        let (stream, append) = match decoded {
            Ok(decoded) => decoded,
            Err(refused) => return Err((reply, refused)),
        };
        let transaction_ids = match append.explicit_transaction_ids {
            true => TransactionIds::Explicit,
            false => TransactionIds::RunningMaximum,
        };
        let gathered = Arc::new(GatheredReads {
            env: self.env.clone(),
            meters: Arc::clone(&self.meters),
            stream,
            arrived: self.env.now(),
            gathering: Mutex::new(ReadGathering::new(append.items.len(), reply)),
        });
        let alone = append.items.len() == 1;
        for (item, AppendItem { shard, batches, expected_term }) in append.items.into_iter().enumerate() {
            let options = AppendOptions { expected_term: expected_term.map(Term), transaction_ids, alone };
            let (bytes, later) = (batches.len() as u64, Arc::clone(&gathered));
            let answer = move |outcome| later.put(item, bytes, outcome);
            if let Err(error) = self.log.submit_with(stream, ShardNumber(shard), batches, options, answer) {
                gathered.put(item, bytes, Err(error));
            }
        }
        Ok(())
    }

    /// Takes note of an append that is refused before it is looked at, and will come again: the log takes nothing that
    /// its producers have sent behind it before that. Whoever may append can name another's producer here, as in any
    /// append; if the log knows nothing of that one yet, its appends are refused until it is forgotten.
    ///
    /// # Errors
    /// That `peer` may not append there, or a message that makes no sense.
    pub(crate) fn refuse_append(&self, peer: &Peer, payload: Bytes) -> Result<(), CallRefusal> {
        let append = decode::<Append>(payload)?;
        self.authorize_stream(peer, Method::Append, &append)?;
        let stream = append.stream()?;
        for AppendItem { shard, batches, .. } in &append.items {
            self.log.refuse(stream, ShardNumber(*shard), batches);
        }
        Ok(())
    }

    /// Counts what a client tells of its consumers.
    fn count(&self, told: &DeliveryDelays) -> Result<DelaysTaken, CallRefusal> {
        if told.counts.len() > TIMES_BUCKETS {
            let why = format!("{} counts, at most {TIMES_BUCKETS} are known", told.counts.len());
            return Err(CallRefusal::new(CallErrorCode::Malformed, why));
        }
        let all = told.counts.iter().fold(0_u64, |all, count| all.saturating_add(*count));
        if all > DELAYS_TOLD_MAX {
            let why = format!("{all} records at once, at most {DELAYS_TOLD_MAX} are believed");
            return Err(CallRefusal::new(CallErrorCode::Malformed, why));
        }
        self.meters.delivery_times.add_all(&told.counts, Duration::from_nanos(told.sum_ns));
        Ok(DelaysTaken {})
    }

    fn dispatch(
        &self,
        peer: &Peer,
        method: Method,
        payload: Bytes,
        reply: Reply,
    ) -> Result<(), (Reply, CallRefusal)> {
        let log = self.log.clone();
        match method {
            Method::Append => self.append(peer, payload, reply),
            Method::Hello => match self.authorize(peer, method, Resource::Node) {
                Ok(()) => {
                    reply.send(Ok(encode_call(&(self.info)())));
                    Ok(())
                }
                Err(refused) => Err((reply, refused)),
            },
            Method::FindStream => {
                let may =
                    |find: &FindStream| self.authorize(peer, method, Resource::Stream(find.name.as_str()));
                self.answer_with(method, reply, payload, may, move |find: FindStream| find_stream(log, find))
            }
            Method::FindCell => {
                let created = Arc::clone(&self.created);
                let may = |find: &FindCell| self.authorize(peer, method, Resource::Cell(find.name.as_str()));
                self.answer_with(method, reply, payload, may, move |find: FindCell| find_cell(created, find))
            }
            Method::Tails => {
                let may = |asked: &Tails| self.authorize_stream(peer, method, asked);
                self.answer_with(method, reply, payload, may, move |asked: Tails| async move {
                    tails(&log, &asked).map(|tails| encode_call(&tails))
                })
            }
            Method::Segments => {
                let may = |asked: &call::Segments| self.authorize_stream(peer, method, asked);
                self.answer_with(method, reply, payload, may, move |asked: call::Segments| async move {
                    segments(&log, &asked).map(|segments| encode_call(&segments))
                })
            }
            Method::ReadDurable => {
                let (meters, turns) = (Arc::clone(&self.meters), Arc::clone(&self.turns));
                let connection = peer.address.clone();
                let may = |asked: &ReadDurable| self.authorize_stream(peer, method, asked);
                self.answer_with(method, reply, payload, may, move |asked: ReadDurable| async move {
                    let bytes = read_durable(&log, &turns, &connection, asked).await?;
                    meters.durable_read_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                    Ok(bytes)
                })
            }
            Method::Locate => {
                let may = |asked: &Locate| self.authorize_stream(peer, method, asked);
                let env = self.env.clone();
                self.answer_with(method, reply, payload, may, move |asked: Locate| locate(env, log, asked))
            }
            Method::InitProducer => {
                let may = |_: &InitProducer| self.authorize(peer, method, Resource::Node);
                self.answer_with(method, reply, payload, may, move |_: InitProducer| async move {
                    let producer_id = log.init_producer_id().await.map_err(stream_refusal)?;
                    Ok(encode_call(&ProducerInfo { producer_id, epoch: 0 }))
                })
            }
            Method::CopyOpen
            | Method::CopyNext
            | Method::CopyPlan
            | Method::CopyLead
            | Method::CopyState
            | Method::CopyReport
            | Method::CopyPush
            | Method::CopyOffsets => self.dispatch_copy(peer, method, payload, reply),
            Method::Login => {
                let why =
                    "a login comes before everything else, and whoever wants one says so when it connects";
                Err((reply, CallRefusal::new(CallErrorCode::Malformed, why.to_owned())))
            }
            Method::DeliveryDelays => {
                let allowed = self.authorize(peer, method, Resource::Node);
                match allowed.and_then(|()| self.count(&decode::<DeliveryDelays>(payload)?)) {
                    Ok(taken) => {
                        reply.send(Ok(encode_call(&taken)));
                        Ok(())
                    }
                    Err(refused) => Err((reply, refused)),
                }
            }
        }
    }

    /// What other clusters ask.
    fn dispatch_copy(
        &self,
        peer: &Peer,
        method: Method,
        payload: Bytes,
        reply: Reply,
    ) -> Result<(), (Reply, CallRefusal)> {
        let copies = self.copies.clone();
        match method {
            Method::CopyOpen => {
                let may = |asked: &CopyOpen| self.authorize_stream(peer, method, asked);
                self.answer_with(method, reply, payload, may, move |asked: CopyOpen| {
                    let opened = copies.open(&asked).map(|opened| encode_call(&opened));
                    std::future::ready(opened)
                })
            }
            Method::CopyNext => {
                let may = |asked: &CopyNext| match self.copies.stream_of(asked) {
                    Some(stream) => self.authorize_stream_by_id(peer, method, stream),
                    None => Ok(()),
                };
                self.answer_with(method, reply, payload, may, move |asked: CopyNext| copies.next(asked))
            }
            Method::CopyPlan => {
                let may = |_: &CopyPlan| self.authorize(peer, method, Resource::Node);
                self.answer_with(method, reply, payload, may, move |told: CopyPlan| async move {
                    copies.keep_plan(&told).await.map(|kept| encode_call(&kept))
                })
            }
            Method::CopyLead => {
                let may = |_: &CopyLead| self.authorize(peer, method, Resource::Node);
                self.answer_with(method, reply, payload, may, move |asked: CopyLead| async move {
                    copies.take_lead(&asked).await.map(|kept| encode_call(&kept))
                })
            }
            Method::CopyOffsets => {
                // Groups have names that a reader of the stream need not know.
                let may = |_: &CopyOffsets| self.authorize(peer, method, Resource::Node);
                self.answer_with(method, reply, payload, may, move |asked: CopyOffsets| {
                    std::future::ready(copies.offsets(&asked).map(|told| encode_call(&told)))
                })
            }
            Method::CopyReport => {
                let may = |_: &CopyReport| self.authorize(peer, method, Resource::Node);
                self.answer_with(method, reply, payload, may, move |asked: CopyReport| async move {
                    copies.work(asked).await.map(|tasks| encode_call(&tasks))
                })
            }
            Method::CopyPush => {
                let may = |_: &CopyPush| self.authorize(peer, method, Resource::Node);
                self.answer_with(method, reply, payload, may, move |pushed: CopyPush| async move {
                    copies.push(pushed).await.map(|pushed| encode_call(&pushed))
                })
            }
            _ => {
                let may = |asked: &CopyState| self.authorize_stream(peer, method, asked);
                self.answer_with(method, reply, payload, may, move |asked: CopyState| {
                    std::future::ready(copies.state(&asked).map(|hops| encode_call(&hops)))
                })
            }
        }
    }

    fn authorize_stream_by_id(
        &self,
        peer: &Peer,
        method: Method,
        stream: StreamId,
    ) -> Result<(), CallRefusal> {
        match self.log.stream_by_id(stream) {
            Ok(stream) => self.authorize(peer, method, Resource::Stream(&stream.name)),
            Err(_) => Ok(()),
        }
    }

    fn answer_with<Q: CallMessage, F>(
        &self,
        method: Method,
        reply: Reply,
        payload: Bytes,
        may: impl FnOnce(&Q) -> Result<(), CallRefusal>,
        answer: impl FnOnce(Q) -> F,
    ) -> Result<(), (Reply, CallRefusal)>
    where
        F: Future<Output = Result<Bytes, CallRefusal>> + Send + 'static,
    {
        match decode(payload).and_then(|asked| may(&asked).map(|()| asked)) {
            Ok(asked) => {
                self.answer_later(method, reply, answer(asked));
                Ok(())
            }
            Err(refused) => Err((reply, refused)),
        }
    }
}

/// A message about one stream, which it names by its id.
trait AboutStream {
    /// Which.
    fn stream(&self) -> Result<StreamId, CallRefusal>;
}

macro_rules! about_streams {
    ($($message:ty),*) => {$(
        impl AboutStream for $message {
            fn stream(&self) -> Result<StreamId, CallRefusal> {
                stream_from_wire(&self.stream).map_err(malformed)
            }
        }
    )*};
}
about_streams!(Append, Tails, call::Segments, Locate, CopyOpen, CopyState);

impl AboutStream for ReadDurable {
    fn stream(&self) -> Result<StreamId, CallRefusal> {
        let segment = self.segment.as_ref().ok_or_else(|| missing("segment"))?;
        SegmentId::try_from(segment).map(|segment| segment.shard.stream).map_err(malformed)
    }
}

/// The results of one CALL's appends. Whichever comes last answers the CALL, on the thread that it came on.
struct GatheredReads {
    env: Env,
    meters: Arc<Meters>,
    stream: StreamId,
    arrived: Instant,
    gathering: Mutex<ReadGathering>,
}

struct ReadGathering {
    results: Vec<AppendResult>,
    missing: usize,
    reply: Option<Reply>,
}

impl GatheredReads {
    /// Notes how an append of so many bytes ended.
    fn put(&self, item: usize, bytes: u64, outcome: Result<tailwater_log::AppendAnswer, AppendError>) {
        if let Ok(appended) = &outcome {
            self.meters.append_times.add(self.env.now().since(self.arrived));
            let records = appended.last_offset.0 - appended.base_offset.0 + 1;
            self.meters.appended(self.stream, records, bytes);
        }
        let result = append_result(outcome);
        let mut gathering = self.gathering.lock();
        gathering.results[item] = result;
        gathering.missing -= 1;
        gathering.answer_if_whole();
    }
}

impl ReadGathering {
    /// Of so many results. None at all are answered at once.
    fn new(items: usize, reply: Reply) -> Self {
        let results = vec![AppendResult::default(); items];
        let mut gathering = Self { results, missing: items, reply: Some(reply) };
        gathering.answer_if_whole();
        gathering
    }

    fn answer_if_whole(&mut self) {
        if self.missing == 0
            && let Some(reply) = self.reply.take()
        {
            let results = std::mem::take(&mut self.results);
            reply.send(Ok(encode_call(&Appends { results })));
        }
    }
}

impl Service for NodeService {
    fn login_demand(&self, peer: &Peer) -> Option<LoginDemand> {
        Some(self.logins.demand(peer))
    }

    fn begin_login(&self, peer: &Peer, is_private: bool) -> Result<Box<dyn LoginDialogue>, Refusal> {
        self.logins.begin(peer, is_private)
    }

    fn regions(&self) -> Vec<Arc<Region>> {
        Vec::new()
    }

    fn scar(&self, _op: &ScarOp) -> Option<ScarHit> {
        None
    }

    /// Nothing waits on the engine's thread, but an append's batches are checked there, down to their records, and
    /// copied on their way to the journal: up to [`CALL_BYTES_MAX`] of them, which a core reads in a millisecond or
    /// two. What those bytes decompress to is bounded for each batch only, and may be a thousand times as much.
    fn is_short(&self, method: u16, payload: &Bytes) -> bool {
        Method::from_number(method) != Some(Method::Append) || !has_compressed_batch(payload)
    }

    fn call(&self, peer: &Peer, method: u16, payload: Bytes, reply: Reply) {
        let known = Method::from_number(method)
            .ok_or_else(|| {
                CallRefusal::new(CallErrorCode::UnknownMethod, format!("there is no method {method}"))
            })
            .inspect(|method| {
                self.meters.of(*method).calls.fetch_add(1, Ordering::Relaxed);
            });
        let refused = match known {
            Ok(method) => match self.dispatch(peer, method, payload, reply) {
                Ok(()) => return,
                Err(refused) => {
                    self.meters.of(method).refused.fetch_add(1, Ordering::Relaxed);
                    refused
                }
            },
            Err(refused) => (reply, refused),
        };
        let (reply, refused) = refused;
        if let Some(left_out) = self.complaints.admit(self.env.now(), "refused a call") {
            tracing::info!(peer = %peer.address, method, error = %refused, left_out, "refused a call");
        }
        reply.send(Err(refusal(refused)));
    }
}

/// Whether an append has a batch that is compressed, as far as it can be read: what makes no sense is refused without
/// looking into it.
fn has_compressed_batch(append: &[u8]) -> bool {
    Append::any_batches(append, |bytes| {
        tailwater_format::batches(bytes).flatten().any(|batch| batch.header().codec != Codec::None)
    })
}

async fn find_stream(log: Log, find: FindStream) -> Result<Bytes, CallRefusal> {
    let found = log.stream(&find.name).map_err(stream_refusal)?;
    Ok(encode_call(&views::stream_info(&found)))
}

async fn find_cell(created: Arc<CreatedCells>, find: FindCell) -> Result<Bytes, CallRefusal> {
    let found = created.info(&find.name).await;
    let found = found.ok_or_else(|| {
        let name: String = find.name.chars().take(NAME_BYTES_MAX).collect();
        let why = format!(
            "there is no cell {name}: `tailwater cell create` makes one, `tailwater cell ls` lists them"
        );
        CallRefusal::new(CallErrorCode::UnknownCell, why)
    })?;
    Ok(encode_call(&found))
}

fn tails(log: &Log, asked: &Tails) -> Result<TailsReply, CallRefusal> {
    let stream = asked.stream()?;
    let shards: Vec<ShardNumber> = asked.shards.iter().copied().map(ShardNumber).collect();
    match log.tails(stream, &shards) {
        Ok(tails) => {
            let tails = shards.iter().zip(&tails).map(|(shard, tail)| ShardTail::new(*shard, tail)).collect();
            Ok(TailsReply { tails, deleted: false })
        }
        Err(ReadError::NoStream) => Ok(TailsReply { tails: Vec::new(), deleted: true }),
        Err(error) => Err(read_refusal(error)),
    }
}

fn segments(log: &Log, asked: &call::Segments) -> Result<SegmentsReply, CallRefusal> {
    let shard = ShardId { stream: asked.stream()?, shard: ShardNumber(asked.shard) };
    let listed = match asked.from_segment {
        Some(number) => log.segments(shard, SegmentNumber(number)),
        None => log.segments_from_offset(shard, Offset(asked.from_offset)),
    };
    let listed = listed.map_err(read_refusal)?;
    let tail = log.view(shard).map_err(read_refusal)?.tail;
    let more = listed.len() > SEGMENTS_PER_REPLY_MAX;
    let shown = listed.iter().take(SEGMENTS_PER_REPLY_MAX);
    let segments = shown.map(|segment| views::segment_info(segment, tail.chunk_bytes)).collect();
    Ok(SegmentsReply { segments, more, log_start: tail.log_start.0 })
}

async fn read_durable(
    log: &Log,
    turns: &Turns,
    connection: &str,
    asked: ReadDurable,
) -> Result<Bytes, CallRefusal> {
    let segment = asked.segment.as_ref().ok_or_else(|| missing("segment"))?;
    let segment = SegmentId::try_from(segment).map_err(malformed)?;
    let (position, len) = (Position(asked.position), asked.len.min(READ_BYTES_MAX));
    let tail = log.view(segment.shard).map_err(read_refusal)?.tail;
    // What waits for cold storage keeps nobody from the disk: it takes no turn there.
    let is_cold = log.is_cold_segment(&segment);
    let mut turn = match !is_cold && turns::is_far(segment, position, &tail) {
        true => Some(turns.turn(connection, u64::from(len).max(TURN_BYTES_MIN)).await?),
        false => None,
    };
    let bytes = log.read_durable(segment, position, len).await.map_err(read_refusal)?;
    if let Some(turn) = &mut turn {
        turn.read(bytes.len() as u64);
    }
    Ok(bytes)
}

async fn locate(env: Env, log: Log, asked: Locate) -> Result<Bytes, CallRefusal> {
    let shard = ShardId { stream: asked.stream()?, shard: ShardNumber(asked.shard) };
    let target = match asked.what.ok_or_else(|| missing("what"))? {
        LocateWhat::Start(()) => Target::Start,
        LocateWhat::End(()) => Target::End,
        LocateWhat::Offset(offset) => Target::Offset(Offset(offset)),
        LocateWhat::TimeMs(ms) => Target::TransactionId(TransactionId(ms)),
        LocateWhat::TransactionId(id) => Target::TransactionId(TransactionId(id)),
        LocateWhat::Dlsn(dlsn) => Target::Dlsn((&dlsn).into()),
        LocateWhat::Last(count) => Target::Last(count),
    };
    let listener = log.listen([shard]);
    let until = env.now() + COPY_WAIT;
    let found = loop {
        match log.locate(shard, target).await {
            // It may be there already where the source of this copy is.
            Err(ReadError::BeyondEnd { end }) if log.is_copy(shard.stream) => {
                let left = until.since(env.now());
                if left.is_zero() || env.timeout(left, listener.changed()).await.is_none() {
                    let why = format!("the copy ends at offset {end} yet: try again");
                    return Err(CallRefusal::new(CallErrorCode::Overloaded, why));
                }
            }
            found => break found.map_err(read_refusal)?,
        }
    };
    let tail = log.view(shard).map_err(read_refusal)?.tail;
    Ok(encode_call(&Location {
        offset: found.offset.0,
        segment: found.segment.0,
        term: found.term.0,
        position: found.position.0,
        log_start: tail.log_start.0,
        chunk_bytes: tail.chunk_bytes,
    }))
}

fn append_result(result: Result<tailwater_log::AppendAnswer, AppendError>) -> AppendResult {
    let outcome = match result {
        Ok(appended) => {
            // Not known of a duplicate whose first append was long ago.
            let dlsn = appended.dlsn.unwrap_or_default();
            AppendOutcome::Appended(Appended {
                base_offset: appended.base_offset.0,
                last_offset: appended.last_offset.0,
                term: appended.term.0,
                append_time_ms: appended.append_time_ms,
                segment: dlsn.segment.0,
                entry: dlsn.entry.0,
                slot: dlsn.slot.0,
            })
        }
        Err(error) => AppendOutcome::Failed(append_refusal(error).into()),
    };
    AppendResult { outcome: Some(outcome) }
}

fn decode<Q: CallMessage>(payload: Bytes) -> Result<Q, CallRefusal> {
    decode_call(payload).map_err(malformed)
}

fn malformed(error: impl std::fmt::Display) -> CallRefusal {
    CallRefusal::new(CallErrorCode::Malformed, error.to_string())
}

fn missing(field: &str) -> CallRefusal {
    CallRefusal::new(CallErrorCode::Malformed, format!("{field} is not set"))
}

pub(crate) fn refusal(refused: CallRefusal) -> Refusal {
    Refusal { code: refused.code.number(), message: refused.message }
}

fn append_refusal(error: AppendError) -> CallRefusal {
    use tailwater_log::SequenceError;
    let code = match &error {
        AppendError::NoStream => CallErrorCode::UnknownStream,
        AppendError::NoShard { .. } => CallErrorCode::UnknownShard,
        AppendError::Invalid(_) | AppendError::Corrupt(_) | AppendError::NotNext { .. } => {
            CallErrorCode::CorruptBatch
        }
        AppendError::TooLarge { .. } | AppendError::TooLargeDecompressed { .. } => {
            CallErrorCode::BatchTooLarge
        }
        AppendError::Sequence(SequenceError::OutOfOrder { .. }) => CallErrorCode::OutOfOrderSequence,
        AppendError::Sequence(SequenceError::Epoch { .. }) => CallErrorCode::ProducerFenced,
        AppendError::TransactionId { .. } => CallErrorCode::TransactionIdDecreased,
        AppendError::Damaged(_) => CallErrorCode::Damaged,
        AppendError::Copy { .. } => CallErrorCode::Copy,
        AppendError::Refused(_) => CallErrorCode::Internal,
        AppendError::Timestamp { .. } | AppendError::TimestampOld { .. } => CallErrorCode::InvalidTimestamp,
        AppendError::Term { .. } => CallErrorCode::WrongTerm,
        AppendError::NotOwner => CallErrorCode::NotOwner,
        AppendError::Overloaded(_) => CallErrorCode::Overloaded,
        AppendError::NoSpace(_) => CallErrorCode::NoSpace,
        AppendError::Lost(_) => CallErrorCode::StorageFailed,
        AppendError::Unavailable(_) | AppendError::Closed => CallErrorCode::Unavailable,
    };
    CallRefusal::new(code, error.to_string())
}

/// What a stream's error is on the wire.
pub fn stream_refusal(error: StreamError) -> CallRefusal {
    let code = match &error {
        StreamError::NoStream(_) => CallErrorCode::UnknownStream,
        StreamError::NoShard { .. } => CallErrorCode::UnknownShard,
        StreamError::Exists(_) => CallErrorCode::StreamExists,
        StreamError::Config(_) | StreamError::TooManyShards { .. } => CallErrorCode::Malformed,
        StreamError::BeyondEnd { .. } | StreamError::NothingToRestore { .. } => {
            CallErrorCode::OffsetOutOfRange
        }
        StreamError::Damaged(_) => CallErrorCode::Damaged,
        StreamError::Copy(_) => CallErrorCode::Copy,
        StreamError::Refused(_) => CallErrorCode::Internal,
        StreamError::NotOwner => CallErrorCode::NotOwner,
        StreamError::Overloaded => CallErrorCode::Overloaded,
        StreamError::Unavailable(_) | StreamError::Closed => CallErrorCode::Unavailable,
    };
    CallRefusal::new(code, error.to_string())
}

/// What a read's error is on the wire.
pub fn read_refusal(error: ReadError) -> CallRefusal {
    let code = match &error {
        ReadError::NoStream => CallErrorCode::UnknownStream,
        ReadError::NoShard { .. } => CallErrorCode::UnknownShard,
        ReadError::Truncated { .. } | ReadError::BeyondEnd { .. } => CallErrorCode::OffsetOutOfRange,
        ReadError::Damaged(_) => CallErrorCode::Damaged,
        ReadError::NoSegment => CallErrorCode::UnknownSegment,
        ReadError::NotOwner => CallErrorCode::NotOwner,
        ReadError::Corrupt(_) => CallErrorCode::Internal,
        ReadError::Unavailable(_) => CallErrorCode::Unavailable,
    };
    CallRefusal::new(code, error.to_string())
}

#[cfg(test)]
mod tests {
    use tailwater_format::BatchBuilder;

    use super::*;

    fn batch(codec: Codec) -> Bytes {
        let mut builder = BatchBuilder::new();
        builder.append(None, Some(&[b'x'; 1_000]), &[], 5).expect("short");
        builder.finish(codec)
    }

    fn append(items: &[&[Codec]]) -> Bytes {
        let item = |codecs: &&[Codec]| AppendItem {
            shard: 0,
            batches: codecs.iter().flat_map(|codec| batch(*codec)).collect::<Vec<u8>>().into(),
            expected_term: None,
        };
        let items = items.iter().map(item).collect();
        encode_call(&Append { items, ..Append::default() })
    }

    #[test]
    fn an_append_with_a_compressed_batch_anywhere_is_found() {
        use Codec::{Gzip, Lz4, None, Snappy, Zstd};
        for codec in [Gzip, Lz4, Snappy, Zstd] {
            assert!(has_compressed_batch(&append(&[&[codec]])), "{codec:?}");
            assert!(has_compressed_batch(&append(&[&[None], &[None, codec]])), "{codec:?} behind others");
        }
        assert!(!has_compressed_batch(&append(&[&[None], &[None, None]])));
        assert!(!has_compressed_batch(&append(&[])));
        assert!(!has_compressed_batch(b"\xff\xff nonsense"));
    }
}
