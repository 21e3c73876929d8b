//! The shards that readers follow: each that enough of them follow is fed, by a consumer of the client library.

use std::collections::BTreeMap;
use std::future::pending;

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use tailwater_client::{Client, Consumer, ConsumerConfig, Error, Start, Stream};
use tailwater_format::{Position, SegmentId, ShardId, ShardNumber, Tail};
use tailwater_tail::window::{WindowMessage, encode_block, records_of};

use crate::limits::{MESSAGE_BYTES_MAX, MESSAGE_ENTRIES_MAX, SHARDS_MAX, START_PAUSE_BEATS, STARTS_MAX};
use crate::publisher::ArenaPublisher;
use crate::readers::ReaderConnections;

/// A consumer that was started, or why not.
pub(crate) type StartedShard = (ShardId, Result<Consumer, Error>);

/// One shard.
#[derive(Default)]
struct FedShard {
    followers: usize,
    /// It is read whether somebody follows it or not.
    is_kept: bool,
    /// Whether it has so many that it is to be fed; it is until it has less than half as many.
    is_wanted: bool,
    /// It was fed, and is not any more, which its followers have to be told.
    is_lost: bool,
    /// `None` until it has started.
    consumer: Option<Consumer>,
    is_starting: bool,
    /// Beats until a start that failed is tried again.
    pause: u32,
    /// Where the last block that was handed on ends.
    at: Option<(SegmentId, Position)>,
    /// As it was told last.
    tail: Option<Tail>,
    /// Somebody has come who was not told where it is.
    is_untold: bool,
}

/// All of them.
pub(crate) struct FedShards {
    client: Client,
    /// Followers from which on a shard is fed.
    from: usize,
    shards: BTreeMap<ShardId, FedShard>,
    /// Bytes of blocks, counted for each follower.
    lent: u64,
    starting: FuturesUnordered<BoxFuture<'static, StartedShard>>,
}

impl FedShards {
    pub(crate) fn new(client: Client, from: usize) -> Self {
        Self { client, from, shards: BTreeMap::new(), lent: 0, starting: FuturesUnordered::new() }
    }

    /// A shard's entry, if there is room for it.
    fn entry(&mut self, shard: ShardId) -> Option<&mut FedShard> {
        if self.shards.len() >= SHARDS_MAX && !self.shards.contains_key(&shard) {
            tracing::warn!(shards = SHARDS_MAX, "the window has no room for another shard");
            return None;
        }
        Some(self.shards.entry(shard).or_default())
    }

    /// Reads a stream's shards whether somebody follows them or not.
    pub(crate) fn keep(&mut self, stream: &Stream) {
        for shard in shards_of(stream) {
            let Some(fed) = self.entry(shard) else { break };
            (fed.is_kept, fed.is_wanted) = (true, true);
        }
        self.start_some();
    }

    /// Not any more.
    pub(crate) fn unkeep(&mut self, stream: &Stream) {
        for shard in shards_of(stream) {
            if let Some(fed) = self.shards.get_mut(&shard) {
                fed.is_kept = false;
                self.let_go(shard);
            }
        }
    }

    /// One more reader follows a shard; `false` if there is no room for it, and it is not to leave it then.
    pub(crate) fn follow(&mut self, shard: ShardId) -> bool {
        let from = self.from;
        let Some(fed) = self.entry(shard) else { return false };
        fed.followers += 1;
        fed.is_wanted |= fed.followers >= from;
        fed.is_untold = true;
        self.start_some();
        true
    }

    /// One less.
    pub(crate) fn leave(&mut self, shard: ShardId) {
        let Some(fed) = self.shards.get_mut(&shard) else { return };
        fed.followers -= 1;
        self.let_go(shard);
    }

    /// Forgets a shard that nobody follows, and reads one no more that few do; unless it is kept.
    fn let_go(&mut self, shard: ShardId) {
        let Some(fed) = self.shards.get_mut(&shard).filter(|fed| !fed.is_kept) else { return };
        if fed.followers == 0 {
            self.shards.remove(&shard);
        } else if fed.followers < self.from.div_ceil(2) {
            fed.is_wanted = false;
            fed.is_lost |= fed.consumer.take().is_some();
        }
    }

    /// How many are kept and not fed.
    pub(crate) fn kept_unfed(&self) -> usize {
        self.shards.values().filter(|fed| fed.is_kept && fed.consumer.is_none()).count()
    }

    /// Bytes of blocks that were handed on, counted for each reader that followed their shard then.
    pub(crate) fn lent(&self) -> u64 {
        self.lent
    }

    /// Records that are known of, and were not handed on.
    pub(crate) fn behind(&self) -> u64 {
        let consumers = self.shards.values().filter_map(|fed| fed.consumer.as_ref());
        consumers.flat_map(|consumer| consumer.lags()).map(|lag| lag.records()).sum()
    }

    /// How many are fed.
    pub(crate) fn fed(&self) -> usize {
        self.shards.values().filter(|fed| fed.consumer.is_some()).count()
    }

    /// Whether its followers hear of it.
    pub(crate) fn is_fed(&self, shard: ShardId) -> bool {
        self.shards.get(&shard).is_some_and(|fed| fed.consumer.is_some())
    }

    /// Starts consumers of those that have none, as far as that is done at a time.
    fn start_some(&mut self) {
        let waiting = self.shards.iter_mut().filter(|(_, fed)| fed.is_waiting());
        for (shard, fed) in waiting {
            if self.starting.len() >= STARTS_MAX {
                return;
            }
            fed.is_starting = true;
            let (client, shard) = (self.client.clone(), *shard);
            self.starting.push(Box::pin(async move {
                let number = shard.shard.0;
                // Its name is for errors.
                let name = shard.stream.to_string().into();
                let stream = Stream { name, id: shard.stream, shards: number.saturating_add(1) };
                let config = ConsumerConfig { shards: vec![number], start: Start::End };
                (shard, client.consumer_of(stream, config).await)
            }));
        }
    }

    /// The next consumer that was started. Cancelling it loses nothing.
    pub(crate) async fn started(&mut self) -> StartedShard {
        match self.starting.next().await {
            Some(started) => started,
            None => pending().await,
        }
    }

    /// Takes in a consumer. Where there is none, because the stream is gone or the node does not answer, readers hear
    /// nothing of the shard, and read it by themselves.
    pub(crate) fn take(&mut self, (shard, started): StartedShard) {
        if let Some(fed) = self.shards.get_mut(&shard) {
            fed.is_starting = false;
            match started {
                // Too many have left it meanwhile.
                Ok(_) if !fed.is_wanted => {}
                Ok(consumer) => {
                    (fed.consumer, fed.at, fed.tail, fed.is_untold) = (Some(consumer), None, None, true);
                }
                Err(why) => {
                    fed.pause = START_PAUSE_BEATS;
                    tracing::debug!(%shard, %why, "a shard is not fed");
                }
            }
        }
        self.start_some();
    }

    /// Tries again what failed a while ago.
    pub(crate) fn beat(&mut self) {
        for fed in self.shards.values_mut() {
            fed.pause = fed.pause.saturating_sub(1);
        }
        self.start_some();
    }

    /// Appends what is new of all shards.
    ///
    /// # Errors
    /// If there is no memory.
    pub(crate) fn pump(
        &mut self,
        publisher: &mut ArenaPublisher,
        readers: &mut ReaderConnections,
    ) -> std::io::Result<Pumped> {
        let (mut any, mut blocks) = (false, 0);
        let mut append = |pieces: &[&[u8]]| {
            any = true;
            if !publisher.append(pieces) {
                readers.pass_to_all(publisher);
                publisher.begin_arena()?;
                assert!(publisher.append(pieces), "no message is longer than an arena");
            }
            std::io::Result::Ok(())
        };
        for (shard, fed) in &mut self.shards {
            let bytes = fed.pump(*shard, &mut append)?;
            blocks += bytes;
            self.lent += bytes * fed.followers as u64;
        }
        Ok(Pumped { any, any_block: blocks > 0 })
    }
}

/// What was appended.
pub(crate) struct Pumped {
    /// Anything.
    pub(crate) any: bool,
    /// Records.
    pub(crate) any_block: bool,
}

fn shards_of(stream: &Stream) -> impl Iterator<Item = ShardId> + use<> {
    let id = stream.id;
    (0..stream.shards).map(move |shard| ShardId { stream: id, shard: ShardNumber(shard) })
}

impl FedShard {
    fn is_waiting(&self) -> bool {
        self.is_wanted && self.consumer.is_none() && !self.is_starting && self.pause == 0
    }

    /// Appends what is new of the shard; bytes of its blocks.
    fn pump(
        &mut self,
        shard: ShardId,
        append: &mut impl FnMut(&[&[u8]]) -> std::io::Result<()>,
    ) -> std::io::Result<u64> {
        let mut bytes = 0;
        if std::mem::take(&mut self.is_lost) {
            append(&[&short(&WindowMessage::Lost(shard))])?;
        }
        let Some(consumer) = &mut self.consumer else { return Ok(0) };
        let Some((place, Some(tail))) = consumer.reach(shard.shard.0) else { return Ok(0) };
        // Before the blocks, so that a reader knows the segment that they are of.
        if self.tail != Some(tail) || self.is_untold {
            self.tail = Some(tail);
            append(&[&short(&WindowMessage::Tail(shard, tail))])?;
        }
        if self.at.is_none() && place.segment == tail.segment {
            self.at = Some((tail.segment_id(shard), place.position));
            self.is_untold = true;
        }
        if let Some((segment, position)) = self.at.filter(|_| self.is_untold) {
            append(&[&short(&WindowMessage::At(segment, position))])?;
            self.is_untold = false;
        }
        loop {
            match consumer.poll_block(shard.shard.0) {
                Ok(Some(block)) => {
                    self.at = Some((block.segment, block.end));
                    for part in block.parts(MESSAGE_BYTES_MAX, MESSAGE_ENTRIES_MAX) {
                        let Ok(head) = encode_block(&part) else {
                            // Whoever waits for it hears that it does not come.
                            append(&[&short(&WindowMessage::Lost(shard))])?;
                            continue;
                        };
                        let mut pieces = vec![&head[..]];
                        pieces.extend(records_of(&part));
                        bytes += pieces.iter().map(|piece| piece.len() as u64).sum::<u64>();
                        append(&pieces)?;
                    }
                }
                Ok(None) => return Ok(bytes),
                Err(why) => {
                    tracing::debug!(%shard, %why, "a shard is not fed any more");
                    append(&[&short(&WindowMessage::Lost(shard))])?;
                    (self.consumer, self.pause) = (None, START_PAUSE_BEATS);
                    return Ok(bytes);
                }
            }
        }
    }
}

fn short(message: &WindowMessage) -> Vec<u8> {
    message.encode().expect("it has no records")
}
