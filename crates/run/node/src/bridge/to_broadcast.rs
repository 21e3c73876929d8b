//! From a log stream into a broadcast stream.
//!
//! What holds, for each shard:
//! - Its records are published in order, each as one event with its key, its headers, and those that say from which
//!   log stream, shard and offset it is.
//! - Each is published exactly once, whatever restarts: the shard is one publisher for ever, whose numbers follow from
//!   the offsets. What is published again after a restart has the number that it had, and the chain leaves it out.
//!   It is published again as well if the chain forgot the publisher (65,536 others were active since), or if
//!   retention removed records that were not carried yet; then readers can tell by the offset.
//! - If all replicas lost the broadcast stream, and its region began anew, it is filled again from the beginning of the
//!   log stream, unless `start` is `now`. The chain's lineage says that, however many events others have published by
//!   then.
//!
//! A record that is too large for an event becomes one without payload, whose header says so.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use bytes::Bytes;
use futures::stream::FuturesOrdered;
use futures::{FutureExt, StreamExt};
use tailwater_broadcast::client::{
    Acknowledged, Listener, Newest, PublishError, Publisher, Received, ReplicasAt,
};
use tailwater_broadcast::message::{PublisherId, Reason};
use tailwater_broadcast::{Batch, Collect, Content, Position, Positions, Stream, TooLarge, Writer};
use tailwater_env::Env;
use tailwater_format::batch::{Decompressor, Record, RecordsOfBatch};
use tailwater_format::limits::RECORDS_DECOMPRESSED_BYTES_MAX;
use tailwater_format::{Offset, SegmentId, ShardId, ShardNumber, batches};
use tailwater_log::{Fetched, LocateRead, LogStreamInfo, ReadError};

use super::state::{ShardState, load, save, shard_key};
use super::{
    BridgeContext, BridgeStatus, FROM_HEADER, OFFSET_HEADER, OMITTED_HEADER, SAVE_EVERY, SHARD_HEADER,
    for_ever,
};
use crate::config::{BridgeConfig, BridgeStart};
use crate::turns::{self, Turn};

/// Bytes of records that are read at once, and of events that are published together.
const PIECE_BYTES: usize = 256 << 10;
/// Pieces of a shard that are on their way.
const IN_FLIGHT_MAX: usize = 8;
/// How often it is looked whether the log stream has more shards.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long a region may take to say how far a stream is.
const ANSWER: Duration = Duration::from_secs(5);

/// Carries all shards, until it is dropped.
pub(super) async fn run(
    context: BridgeContext,
    config: BridgeConfig,
    name: String,
    to: Stream,
    status: Arc<BridgeStatus>,
) {
    let once = || carry_stream(&context, &config, &name, &to, &status);
    for_ever(&context.env, &config, &status, once).await;
}

/// Carries each shard in a task of its own, as long as the log stream is what it is.
async fn carry_stream(
    context: &BridgeContext,
    config: &BridgeConfig,
    name: &str,
    to: &Stream,
    status: &Arc<BridgeStatus>,
) -> anyhow::Result<Infallible> {
    let find = || {
        let found = context.log.stream(name);
        found.with_context(|| format!("log stream {name}: create it with `tailwater stream create {name}`"))
    };
    let from = find()?;
    let shards = match config.shards.is_empty() {
        true => (0..from.config.shards).collect(),
        false => config.shards.clone(),
    };
    if let Some(none) = shards.iter().find(|shard| **shard >= from.config.shards) {
        bail!("log stream {name} has {} shards, from 0, and so no shard {none}", from.config.shards);
    }
    shards.iter().for_each(|shard| status.begins(*shard));
    let mut tasks = Vec::new();
    for shard in shards {
        let (context, config, status) = (context.clone(), config.clone(), Arc::clone(status));
        let shard = Shard {
            context,
            config,
            from: from.clone(),
            shard: ShardNumber(shard),
            to: to.clone(),
            status,
            forgotten: AtomicBool::new(false),
        };
        tasks.push(shard.context.env.clone().spawn("bridge-shard", async move {
            for_ever(&shard.context.env, &shard.config, &shard.status, || shard.carry()).await;
        }));
    }
    loop {
        context.env.sleep(LOOK_EVERY).await;
        let now = find()?;
        if (now.id, now.config.shards) != (from.id, from.config.shards) {
            bail!("log stream {name} is another one now, or has more shards");
        }
    }
}

/// A shard on its way.
struct Shard {
    context: BridgeContext,
    config: BridgeConfig,
    from: LogStreamInfo,
    shard: ShardNumber,
    to: Stream,
    status: Arc<BridgeStatus>,
    /// Whether a head did not know the shard's publisher, of a stream that is not lost.
    forgotten: AtomicBool,
}

/// Events of one piece, and where the shard is behind them.
struct BridgePiece {
    batch: Option<Batch>,
    next: u64,
    count: u64,
    omitted: u64,
}

impl Shard {
    fn id(&self) -> ShardId {
        ShardId { stream: self.from.id, shard: self.shard }
    }

    fn key(&self) -> String {
        shard_key(&self.config, self.shard.0)
    }

    async fn carry(&self) -> anyhow::Result<Infallible> {
        let (env, log) = (&self.context.env, &self.context.log);
        let addresses = self.context.regions.get(self.to.region()).context("the region is not known")?;
        let stored: Option<ShardState> = load(&**log.meta(), &self.key()).await?;
        let mut state = match stored.filter(|stored| stored.stream == self.from.id) {
            Some(state) => self.unless_lost(state).await?,
            // Where it begins is written down first, also while nobody says of which lineage the chain is.
            None => {
                let begun = self.begin(0).await?;
                self.unless_lost(begun).await?
            }
        };
        let client = PublisherId::from_str_radix(&state.publisher, 16).context("its publisher's number")?;
        // As the same publisher, also where it is not known: others may know it, and what it published.
        let forgotten =
            if self.forgotten.swap(false, Ordering::Relaxed) { state.number.saturating_sub(1) } else { 0 };
        let (addresses, to) = (addresses.clone(), self.to.clone());
        let publisher = Publisher::resume(env, addresses, to, client, state.number, forgotten);
        // First the listener, then the look: nothing comes unnoticed between them.
        let listener = log.listen([self.id()]);
        let (mut reading, mut fetch) = (state.next, None);
        let (mut is_at_end, mut is_removed) = (false, false);
        let mut in_flight = FuturesOrdered::new();
        let mut saved = state.clone();
        let mut save_at = env.now() + SAVE_EVERY;
        loop {
            // What was removed is told once what is on its way has arrived.
            let may_read =
                !is_at_end && in_flight.len() < IN_FLIGHT_MAX && (!is_removed || in_flight.is_empty());
            if fetch.is_none() && may_read {
                fetch = Some(self.fetch(Offset(reading)).boxed());
            }
            tokio::select! {
                fetched = async { fetch.as_mut().expect("it is waited for").await }, if fetch.is_some() => {
                    fetch = None;
                    let fetched = match fetched {
                        Ok(fetched) => fetched,
                        Err(ReadError::Truncated { .. }) if !in_flight.is_empty() => {
                            is_removed = true;
                            continue;
                        }
                        Err(ReadError::Truncated { log_start }) => {
                            self.renew(&state, log_start.0).await?;
                            bail!(
                                "retention removed the records {} to {log_start} before they were carried",
                                state.next
                            );
                        }
                        Err(error) => return Err(error.into()),
                    };
                    is_at_end = fetched.pieces.is_empty();
                    for piece in self.pieces(&fetched, reading)? {
                        reading = piece.next;
                        let published = piece.batch.map(|batch| publisher.publish_batch(&self.to, batch));
                        in_flight.push_back(async move {
                            let published = match published {
                                Some(published) => published.await,
                                None => Ok(Acknowledged { seq: 0, repeated: false }),
                            };
                            (published, piece.next, piece.count, piece.omitted)
                        });
                    }
                }
                Some((published, next, count, omitted)) = in_flight.next() => {
                    let newest = publisher.newest();
                    self.look_at_lineage(&state, newest)?;
                    match published {
                        // What is behind its own events may be lost without them.
                        Ok(Acknowledged { repeated: true, .. }) => {}
                        Ok(Acknowledged { seq, .. }) => {
                            state.seq = state.seq.max(seq);
                            if newest.lineage == state.lineage {
                                state.epoch = state.epoch.max(newest.epoch);
                            }
                        }
                        Err(error) => return Err(self.refused(&state, error).await?),
                    }
                    (state.next, state.number) = (next, state.number + count);
                    BridgeStatus::count(&self.status.carried, count);
                    BridgeStatus::count(&self.status.omitted, omitted);
                }
                () = listener.changed(), if is_at_end => is_at_end = false,
                () = env.sleep_until(save_at) => {
                    self.look_at_lineage(&state, publisher.newest())?;
                    if state != saved {
                        save(&**log.meta(), &self.key(), &state).await?;
                        saved = state.clone();
                    }
                    save_at = env.now() + SAVE_EVERY;
                }
            }
            let end = log.tails(self.from.id, &[self.shard])?.first().map_or(0, |tail| tail.next_offset.0);
            self.status.works(self.shard.0, end.saturating_sub(state.next));
        }
    }

    /// The head's chain is of a lineage: if that is another one than that in which the events before were acknowledged,
    /// those are lost.
    fn look_at_lineage(&self, state: &ShardState, newest: Newest) -> anyhow::Result<()> {
        if newest.lineage > state.lineage {
            bail!("region {} has begun anew", self.to.region());
        }
        Ok(())
    }

    async fn fetch(&self, from: Offset) -> Result<Fetched, ReadError> {
        let log = &self.context.log;
        if let Some(fetched) = log.fetch_hot(self.id(), from, PIECE_BYTES, true)? {
            return Ok(fetched);
        }
        let mut turn = self.turn(from).await?;
        let fetched = log.fetch(self.id(), from, PIECE_BYTES, true).await?;
        if let Some(turn) = &mut turn {
            turn.read(fetched.bytes as u64);
        }
        Ok(fetched)
    }

    /// Waits for a turn to read from a place that is far from the shard's end, for as long as it takes. As it is of
    /// whoever reads one-sidedly, there is none to be waited for near the end, nor for cold storage.
    async fn turn(&self, from: Offset) -> Result<Option<Turn>, ReadError> {
        let log = &self.context.log;
        loop {
            let place = log.locate(self.id(), LocateRead::Offset(from)).await?;
            let segment = SegmentId { shard: self.id(), number: place.segment, term: place.term };
            let tail = log.view(self.id())?.tail;
            if log.is_cold_segment(&segment) || !turns::is_far(segment, place.position, &tail) {
                return Ok(None);
            }
            // If it does not come, others are many: it waits again.
            if let Ok(turn) = self.context.turns.turn(&self.key(), PIECE_BYTES as u64).await {
                return Ok(Some(turn));
            }
        }
    }

    /// Where it begins the first time, as somebody that the chain, which is of `lineage` (0 if that is not known), does
    /// not know.
    async fn begin(&self, lineage: u64) -> anyhow::Result<ShardState> {
        let what = match self.config.start {
            BridgeStart::Start => LocateRead::Start,
            BridgeStart::Now => LocateRead::End,
        };
        let next = self.context.log.locate(self.id(), what).await?.offset.0;
        let (stream, publisher) = (self.from.id, String::new());
        let (seq, epoch) = (0, 0);
        self.write(ShardState { stream, publisher, next, number: 1, seq, epoch, lineage }).await
    }

    /// Goes on at `next` as somebody that the chain does not know.
    async fn renew(&self, state: &ShardState, next: u64) -> anyhow::Result<ShardState> {
        self.write(ShardState { next, ..state.clone() }).await
    }

    async fn write(&self, state: ShardState) -> anyhow::Result<ShardState> {
        let env = &self.context.env;
        let client = PublisherId::from(env.random_u64()) << 64 | PublisherId::from(env.random_u64());
        let state = ShardState { publisher: format!("{client:032x}"), number: 1, ..state };
        save(&**self.context.log.meta(), &self.key(), &state).await?;
        Ok(state)
    }

    /// The state, if the broadcast stream has what was published; else one that publishes it again.
    async fn unless_lost(&self, state: ShardState) -> anyhow::Result<ShardState> {
        let known = Newest { lineage: state.lineage, epoch: state.epoch };
        let addresses = self.context.regions.get(self.to.region()).context("the region is not known")?;
        let (Position { lineage, seq: last }, _) =
            last_of(&self.context.env, addresses, &self.to, known).await?;
        if last >= state.seq && (state.lineage == lineage || state.lineage == 0) {
            return Ok(ShardState { lineage, ..state });
        }
        tracing::warn!(
            stream = %self.to, shard = self.shard.0, had = state.seq, has = last,
            "the broadcast stream was lost with all its replicas: it is filled again"
        );
        match self.config.start {
            BridgeStart::Start => self.begin(lineage).await,
            BridgeStart::Now => {
                let next = state.next;
                self.renew(&ShardState { seq: 0, epoch: 0, lineage, ..state }, next).await
            }
        }
    }

    /// What is to be said about events that were not published.
    async fn refused(&self, state: &ShardState, error: PublishError) -> anyhow::Result<anyhow::Error> {
        if let PublishError::Refused { reason: Reason::Gap, .. } = &error {
            let known = self.unless_lost(state.clone()).await?;
            if known == *state {
                save(&**self.context.log.meta(), &self.key(), state).await?;
                self.forgotten.store(true, Ordering::Relaxed);
            }
            return Ok(anyhow!(
                "the chain of {} does not know this bridge any more: it is told anew",
                self.to
            ));
        }
        Ok(error.into())
    }

    /// The events of what was fetched, from the record at `from` on.
    fn pieces(&self, fetched: &Fetched, from: u64) -> anyhow::Result<Vec<BridgePiece>> {
        let now_ms = self.context.env.wall_ms().max(0) as u64;
        let collect = match self.config.collect.as_str() {
            "" => None,
            text => Some(Collect::parse(text, now_ms)?),
        };
        let own = &self.config.to;
        let (mut pieces, mut writer) = (Vec::new(), Writer::new(0));
        let (mut next, mut omitted) = (from, 0);
        let mut decompressor = Decompressor::new();
        for bytes in &fetched.pieces {
            let mut at = 0;
            for batch in batches(bytes) {
                let header = *batch?.header();
                let batch = bytes.slice(at..at + header.len);
                at += header.len;
                let records =
                    RecordsOfBatch::open(&batch, &mut decompressor, RECORDS_DECOMPRESSED_BYTES_MAX)?;
                for record in &records {
                    let record = record?;
                    if record.offset.0 < next {
                        continue;
                    }
                    // What another node's bridge carried from there does not go back.
                    let comes_back = record
                        .headers
                        .iter()
                        .map_while(Result::ok)
                        .any(|header| header.key == FROM_HEADER && header.value == Some(own.as_bytes()));
                    if !comes_back {
                        omitted += u64::from(!self.publish(&mut writer, &record, collect.as_ref())?);
                    }
                    next = record.offset.0 + 1;
                    if writer.len() >= PIECE_BYTES {
                        pieces.push(piece(&mut writer, next, &mut omitted));
                    }
                }
            }
        }
        if next > pieces.last().map_or(from, |piece| piece.next) {
            pieces.push(piece(&mut writer, next, &mut omitted));
        }
        Ok(pieces)
    }

    /// Adds a record's event; false if something of it had to be left out.
    fn publish(
        &self,
        writer: &mut Writer,
        record: &Record<'_>,
        collect: Option<&Collect>,
    ) -> anyhow::Result<bool> {
        let from = [
            (FROM_HEADER, self.config.from.clone()),
            (SHARD_HEADER, self.shard.0.to_string()),
            (OFFSET_HEADER, record.offset.0.to_string()),
        ];
        let from = from.map(|(name, value)| (Bytes::from_static(name.as_bytes()), Bytes::from(value)));
        // The last one to carry it is the first one to be found.
        let mut headers = Vec::from(from.clone());
        for header in record.headers.iter() {
            let header = header.map_err(|why| anyhow!("record {}: {why}", record.offset))?;
            let value = header.value.unwrap_or_default();
            headers.push((Bytes::copy_from_slice(header.key.as_bytes()), Bytes::copy_from_slice(value)));
        }
        let key = record.key.map(Bytes::copy_from_slice);
        let payload = Bytes::copy_from_slice(record.value.unwrap_or_default());
        let Err(TooLarge { what, is, max }) =
            writer.publish(&Content { key: key.clone(), headers, payload }, collect)
        else {
            return Ok(true);
        };
        let mut headers = Vec::from(from);
        let why = format!("{what} is {is}, more than {max}");
        headers.push((Bytes::from_static(OMITTED_HEADER.as_bytes()), why.into()));
        // A key that is too long is nobody's.
        let key = key.filter(|key| key.len() <= tailwater_broadcast::limits::KEY_BYTES_MAX);
        writer.publish(&Content { key, headers, payload: Bytes::new() }, collect)?;
        Ok(false)
    }
}

fn piece(writer: &mut Writer, next: u64, omitted: &mut u64) -> BridgePiece {
    let count = u64::from(writer.count());
    let writer = std::mem::replace(writer, Writer::new(0));
    let batch = (count > 0).then(|| writer.finish(0));
    BridgePiece { batch, next, count, omitted: std::mem::take(omitted) }
}

/// Where a stream ends, as the members of its own region's chain have it that is this one or a later one; and one in
/// which that is so.
pub(super) async fn last_of(
    env: &Env,
    addresses: &ReplicasAt,
    stream: &Stream,
    known: Newest,
) -> anyhow::Result<(Position, Newest)> {
    let mut listener = Listener::since(env, addresses.clone(), Positions::now([stream.clone()]), known);
    let asking = async {
        loop {
            if let Received::Began(positions) = listener.next().await? {
                let found = positions.iter().find(|(name, _)| name == stream).map(|(_, last)| *last);
                let newest = listener.newest();
                let last = found.unwrap_or(Position { lineage: newest.lineage, seq: 0 });
                anyhow::ensure!(
                    last.lineage >= known.lineage,
                    "the replicas of region {} have begun with lineage {:x}, which was {:x} before",
                    stream.region(),
                    last.lineage,
                    known.lineage
                );
                return anyhow::Ok((last, newest));
            }
        }
    };
    match env.timeout(ANSWER, asking).await {
        Some(last) => last,
        None => bail!(
            "no replica of region {} that knows of its chain's epoch {}, or a later one, answers at {}",
            stream.region(),
            known.epoch,
            addresses.addresses().join(", ")
        ),
    }
}
