//! From a broadcast stream into a log stream.
//!
//! What holds:
//! - Events are appended in their order, those with the same key to the same shard; each record has its event's key,
//!   payload, time and headers, and those that say from which stream and number it is.
//! - What is collected before it was carried is not appended: a tombstone is no record.
//! - Each event is appended exactly once, whatever restarts, and is as durable as the log stream promises before the
//!   next ones are: at a start, the numbers of the records behind what was written down last are read from the log.
//! - What retention removed before it was carried is missing in the log stream. The node's log and the bridge's
//!   figures say so.
//! - If all replicas lost the broadcast stream, and its region began anew, what it has now is appended from its
//!   beginning. The chain's lineage says that, however many events it has by then.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use bytes::Bytes;
use tailwater_broadcast::client::{Listener, Newest, Received};
use tailwater_broadcast::{Batch, Content, Position, Positions, Stream};
use tailwater_client::shard_of_key;
use tailwater_format::batch::{BatchBuilder, Codec, Decompressor, RecordsOfBatch};
use tailwater_format::limits::RECORDS_DECOMPRESSED_BYTES_MAX;
use tailwater_format::{Offset, ShardId, ShardNumber, batches};
use tailwater_log::{AppendOptions, LocateRead, LogStreamInfo, ReadError};

use super::state::{BridgeState, load, save, stream_key};
use super::to_broadcast::last_of;
use super::{BridgeContext, BridgeStatus, FROM_HEADER, SAVE_EVERY, SEQ_HEADER, for_ever};
use crate::config::{BridgeConfig, BridgeStart};

/// Bytes of one append, roughly, and of what is read at once.
const PIECE_BYTES: usize = 256 << 10;

/// Carries it, until it is dropped.
pub(super) async fn run(
    context: BridgeContext,
    config: BridgeConfig,
    from: Stream,
    name: String,
    status: Arc<BridgeStatus>,
) {
    let once = || carry(&context, &config, &from, &name, &status);
    for_ever(&context.env, &config, &status, once).await;
}

async fn carry(
    context: &BridgeContext,
    config: &BridgeConfig,
    from: &Stream,
    name: &str,
    status: &BridgeStatus,
) -> anyhow::Result<Infallible> {
    let (env, log) = (&context.env, &context.log);
    let found = log.stream(name);
    let to = found
        .with_context(|| format!("log stream {name}: create it with `tailwater stream create {name}`"))?;
    let addresses = context.regions.get(from.region()).context("the region is not known")?;
    let (meta, key) = (&**log.meta(), stream_key(config));
    let stored: Option<BridgeState> = load(meta, &key).await?;
    let known = stored.as_ref().map(|stored| Newest { lineage: stored.lineage, epoch: stored.epoch });
    let known = known.unwrap_or_default();
    let (Position { lineage, seq: last }, newest) = last_of(env, addresses, from, known).await?;
    let goes_on = |state: &BridgeState| state.seq <= last && (state.lineage == lineage || state.lineage == 0);
    let mut state = match stored.filter(|stored| stored.stream == to.id) {
        Some(state) if goes_on(&state) => BridgeState { lineage, ..state },
        other => {
            let seq = match (other, config.start) {
                (Some(state), _) => {
                    tracing::warn!(stream = %from, had = state.seq, has = last, "the broadcast stream began anew");
                    0
                }
                (None, BridgeStart::Start) => 0,
                (None, BridgeStart::Now) => last,
            };
            let state =
                BridgeState { stream: to.id, seq, epoch: newest.epoch, lineage, ends: ends(context, &to)? };
            save(meta, &key, &state).await?;
            state
        }
    };
    let appended = appended_after(context, config, &to, &state).await?;
    let to = BridgeTarget { context, config, stream: to, appended };
    let position = Position { lineage, seq: state.seq };
    let positions = Positions { streams: [(from.clone(), position)].into(), others: false };
    let mut listener = Listener::since(env, addresses.clone(), positions, newest);
    let (mut seq, mut save_at) = (state.seq, env.now() + SAVE_EVERY);
    loop {
        tokio::select! {
            received = listener.next() => match received? {
                Received::Events(_, batch) => {
                    BridgeStatus::count(&status.carried, to.append(&batch).await?);
                    seq = batch.last;
                    status.works(0, last.saturating_sub(seq));
                }
                Received::Counts(counts) => {
                    let count = counts.iter().find(|told| told.stream == *from).map_or(0, |told| told.count);
                    if count < seq {
                        bail!("{from} has {count} events, and {seq} of them were carried: it began anew");
                    }
                    status.works(0, count - seq);
                }
                // From the beginning of what there is now, behind what is in the log by now.
                Received::Anew { region, .. } => bail!("region {region} has begun anew"),
                // What is left of it is carried: nothing else could be.
                Received::Removed { stream, last } => {
                    tracing::warn!(%stream, after = seq, last, "retention removed events before a bridge carried them");
                    BridgeStatus::count(&status.removed, 1);
                }
                Received::Began(_) | Received::Lost => {}
            },
            () = env.sleep_until(save_at) => {
                if seq != state.seq {
                    // Nothing is being appended here now: all up to `seq` is before these ends.
                    let (newest, ends) = (listener.newest(), ends(context, &to.stream)?);
                    let epoch = if newest.lineage == state.lineage { newest.epoch } else { state.epoch };
                    state = BridgeState { seq, epoch, ends, ..state };
                    save(meta, &key, &state).await?;
                }
                save_at = env.now() + SAVE_EVERY;
            }
        }
    }
}

fn ends(context: &BridgeContext, stream: &LogStreamInfo) -> anyhow::Result<Vec<u64>> {
    let shards: Vec<ShardNumber> = (0..stream.config.shards).map(ShardNumber).collect();
    let tails = context.log.tails(stream.id, &shards)?;
    Ok(tails.iter().map(|tail| tail.next_offset.0).collect())
}

/// The numbers of the events that are in the log behind what `state` tells of.
async fn appended_after(
    context: &BridgeContext,
    config: &BridgeConfig,
    to: &LogStreamInfo,
    state: &BridgeState,
) -> anyhow::Result<BTreeSet<u64>> {
    let log = &context.log;
    let mut appended = BTreeSet::new();
    let mut decompressor = Decompressor::new();
    for shard in 0..to.config.shards {
        let id = ShardId { stream: to.id, shard: ShardNumber(shard) };
        let mut at = Offset(state.ends.get(shard as usize).copied().unwrap_or(0));
        loop {
            let fetched = match log.fetch(id, at, PIECE_BYTES, true).await {
                Ok(fetched) => fetched,
                Err(ReadError::Truncated { .. }) => {
                    at = log.locate(id, LocateRead::Start).await?.offset;
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            if fetched.pieces.is_empty() {
                break;
            }
            for bytes in &fetched.pieces {
                let mut from = 0;
                for batch in batches(bytes) {
                    let header = *batch?.header();
                    let batch = bytes.slice(from..from + header.len);
                    from += header.len;
                    at = header.next_offset();
                    for record in
                        &RecordsOfBatch::open(&batch, &mut decompressor, RECORDS_DECOMPRESSED_BYTES_MAX)?
                    {
                        let headers = record?.headers;
                        let is_ours = headers.get(FROM_HEADER) == Some(Some(config.from.as_bytes()));
                        let seq = headers.get(SEQ_HEADER).flatten().and_then(|seq| str::from_utf8(seq).ok());
                        appended.extend(seq.filter(|_| is_ours).and_then(|seq| seq.parse::<u64>().ok()));
                    }
                }
            }
        }
    }
    Ok(appended)
}

/// The log stream, and what is in it already.
struct BridgeTarget<'a> {
    context: &'a BridgeContext,
    config: &'a BridgeConfig,
    stream: LogStreamInfo,
    appended: BTreeSet<u64>,
}

impl BridgeTarget<'_> {
    /// Appends a batch's events; how many, when all are as durable as they have to be.
    async fn append(&self, batch: &Batch) -> anyhow::Result<u64> {
        let mut builders: BTreeMap<ShardNumber, BatchBuilder> = BTreeMap::new();
        let mut full: Vec<(ShardNumber, Bytes)> = Vec::new();
        let mut count = 0;
        for event in batch.events() {
            let event = event?;
            let Some(content) = event.content() else { continue };
            // What another node's bridge carried from there does not go back.
            let comes_back = |(name, value): &(Bytes, Bytes)| {
                name == FROM_HEADER.as_bytes() && value == self.config.to.as_bytes()
            };
            if self.appended.contains(&event.seq) || content.headers.iter().any(comes_back) {
                continue;
            }
            let shard = self.shard(content, event.seq);
            let builder = builders.entry(shard).or_default();
            self.add(builder, content, event.seq, event.time_ms)?;
            count += 1;
            if builder.len() >= PIECE_BYTES {
                full.push((shard, builder.finish(Codec::None)));
                builder.clear();
            }
        }
        let rest = builders.into_iter().filter(|(_, builder)| !builder.is_empty());
        full.extend(rest.map(|(shard, mut builder)| (shard, builder.finish(Codec::None))));
        let mut pending = Vec::new();
        let mut failed = None;
        for (shard, bytes) in full {
            match self.context.log.submit(self.stream.id, shard, bytes, AppendOptions::default()) {
                Ok(append) => pending.push(append),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        // All of them, so that nothing is on its way when it is looked what is in the log.
        for append in pending {
            failed = failed.or(append.outcome().await.err());
        }
        match failed {
            Some(error) => Err(error.into()),
            None => Ok(count),
        }
    }

    fn shard(&self, content: &Content, seq: u64) -> ShardNumber {
        let shards = self.stream.config.shards;
        match &content.key {
            Some(key) => shard_of_key(key, shards),
            None => ShardNumber((seq % u64::from(shards)) as u32),
        }
    }

    fn add(
        &self,
        builder: &mut BatchBuilder,
        content: &Content,
        seq: u64,
        time_ms: u64,
    ) -> anyhow::Result<()> {
        let seq = seq.to_string();
        let names: Vec<_> = content.headers.iter().map(|(name, _)| String::from_utf8_lossy(name)).collect();
        // The last one to carry it is the first one to be found.
        let mut headers: Vec<(&str, Option<&[u8]>)> =
            vec![(FROM_HEADER, Some(self.config.from.as_bytes())), (SEQ_HEADER, Some(seq.as_bytes()))];
        headers
            .extend(names.iter().zip(&content.headers).map(|(name, (_, value))| (&**name, Some(&**value))));
        let key = content.key.as_deref();
        builder.append(key, Some(&content.payload), &headers, time_ms as i64)?;
        Ok(())
    }
}
