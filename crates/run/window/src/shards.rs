//! The shards that readers follow, each with a consumer of the client library.

use std::collections::BTreeMap;
use std::future::pending;

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use tailwater_client::{Client, Consumer, ConsumerConfig, Error, Start, Stream};
use tailwater_format::{Position, SegmentId, ShardId, Tail};
use tailwater_tail::window::{WindowMessage, encode_block, records_of};

use crate::limits::{SHARDS_MAX, START_PAUSE_BEATS, STARTS_MAX};
use crate::publisher::ArenaPublisher;
use crate::readers::ReaderConnections;

/// A consumer that was started, or why not.
pub(crate) type StartedShard = (ShardId, Result<Consumer, Error>);

/// One shard.
#[derive(Default)]
struct FedShard {
    followers: usize,
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
    shards: BTreeMap<ShardId, FedShard>,
    starting: FuturesUnordered<BoxFuture<'static, StartedShard>>,
}

impl FedShards {
    pub(crate) fn new(client: Client) -> Self {
        Self { client, shards: BTreeMap::new(), starting: FuturesUnordered::new() }
    }

    /// One more reader follows a shard.
    pub(crate) fn follow(&mut self, shard: ShardId) {
        if self.shards.len() >= SHARDS_MAX && !self.shards.contains_key(&shard) {
            tracing::warn!(shards = SHARDS_MAX, "the window has no room for another shard");
            return;
        }
        let fed = self.shards.entry(shard).or_default();
        fed.followers += 1;
        fed.is_untold = true;
        self.start_some();
    }

    /// One less.
    pub(crate) fn leave(&mut self, shard: ShardId) {
        let Some(fed) = self.shards.get_mut(&shard) else { return };
        fed.followers -= 1;
        if fed.followers == 0 {
            self.shards.remove(&shard);
        }
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

    /// Appends what is new of all shards; whether there was anything.
    ///
    /// # Errors
    /// If there is no memory.
    pub(crate) fn pump(
        &mut self,
        publisher: &mut ArenaPublisher,
        readers: &mut ReaderConnections,
    ) -> std::io::Result<bool> {
        let mut any = false;
        let mut append = |pieces: &[&[u8]]| {
            any = true;
            if publisher.append(pieces)? {
                readers.pass(publisher);
            }
            std::io::Result::Ok(())
        };
        for (shard, fed) in &mut self.shards {
            fed.pump(*shard, &mut append)?;
        }
        Ok(any)
    }
}

impl FedShard {
    fn is_waiting(&self) -> bool {
        self.consumer.is_none() && !self.is_starting && self.pause == 0
    }

    fn pump(
        &mut self,
        shard: ShardId,
        append: &mut impl FnMut(&[&[u8]]) -> std::io::Result<()>,
    ) -> std::io::Result<()> {
        let Some(consumer) = &mut self.consumer else { return Ok(()) };
        let Some((place, Some(tail))) = consumer.reach(shard.shard.0) else { return Ok(()) };
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
                    let Ok(head) = encode_block(&block) else {
                        // Whoever waits for it hears that it does not come.
                        append(&[&short(&WindowMessage::Lost(shard))])?;
                        continue;
                    };
                    let mut pieces = vec![&head[..]];
                    pieces.extend(records_of(&block));
                    append(&pieces)?;
                }
                Ok(None) => return Ok(()),
                Err(why) => {
                    tracing::debug!(%shard, %why, "a shard is not fed any more");
                    append(&[&short(&WindowMessage::Lost(shard))])?;
                    (self.consumer, self.pause) = (None, START_PAUSE_BEATS);
                    return Ok(());
                }
            }
        }
    }
}

fn short(message: &WindowMessage) -> Vec<u8> {
    message.encode().expect("it has no records")
}
