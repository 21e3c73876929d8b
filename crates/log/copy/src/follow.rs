//! What the lower end of a hop makes of the answers of a session: a step function, without clock, connection or log.
//!
//! What holds:
//! - Answers are taken in the order of their numbers, in whichever order they come. So many are kept as are asked for.
//! - An entry is appended where the last one ended. One that begins later is missing something, unless the cluster
//!   above has removed what lies between: then the copy is told to go on behind the gap first.
//! - What the copy has already is left out.
//! - A way that leads back to the cluster itself ends the session.

use std::collections::BTreeMap;

use bytes::Bytes;
use tailwater_format::call::{CopiedShard, CopyEntries};
use tailwater_format::limits::OFFSET_MAX;
use tailwater_format::{
    ENTRY_HEADER_BYTES, Offset, ShardId, ShardNumber, StreamId, Tail, batches, parse_entry_header,
};

use crate::hop::CopiedEntry;
use crate::limits::WINDOW;

/// What is to be done, in this order.
#[derive(Debug)]
pub(crate) enum FollowStep {
    /// The clusters from the source to the one above are these.
    Way(Vec<String>),
    /// The cluster above has told this of a shard.
    Told(CopiedShard),
    /// Go on at that offset, once all that was appended is durable: the source has removed what lies before it.
    Begin(ShardId, Offset),
    /// Append an entry.
    Append(ShardId, Bytes, CopiedEntry),
}

/// How far a shard of the copy is.
#[derive(Clone, Copy, Debug)]
struct CopyPlace {
    /// Offset after the last record that the log was given.
    next: Offset,
    /// Where it begins.
    start: Offset,
    /// Where the cluster above begins.
    wanted_start: Offset,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Follow {
    stream: StreamId,
    /// The name of this cluster, and of the one above.
    here: String,
    above: String,
    places: Vec<CopyPlace>,
    /// The number of the next answer.
    sequence: u64,
    /// Answers that came before the next one.
    early: BTreeMap<u64, CopyEntries>,
}

impl Follow {
    /// A session with the cluster `above`, from where the shards of the copy in `here` end.
    pub(crate) fn new(stream: StreamId, here: &str, above: &str, tails: &[Tail]) -> Self {
        let place = |tail: &Tail| CopyPlace {
            next: tail.next_offset,
            start: tail.log_start,
            wanted_start: tail.log_start,
        };
        Self {
            stream,
            here: here.to_owned(),
            above: above.to_owned(),
            places: tails.iter().map(place).collect(),
            sequence: 0,
            early: BTreeMap::new(),
        }
    }

    /// How many shards it has.
    pub(crate) fn shards(&self) -> usize {
        self.places.len()
    }

    /// Takes note of the clusters from the source to the one above.
    ///
    /// # Errors
    /// In words, where this one is among them: what comes from there may have come from here.
    pub(crate) fn check_way(&self, way: &[String]) -> Result<(), String> {
        if way.contains(&self.here) {
            return Err(format!(
                "the copy in {} is made from the one here: it goes by an older plan, or this cluster does",
                self.above
            ));
        }
        Ok(())
    }

    /// Takes in an answer: what is to be done by now.
    ///
    /// # Errors
    /// In words, what ends the session: nothing of the answer is to be done then.
    pub(crate) fn answer(&mut self, answer: CopyEntries) -> Result<Vec<FollowStep>, String> {
        let number = answer.sequence;
        let is_asked = (self.sequence..self.sequence + WINDOW as u64).contains(&number);
        if !is_asked || self.early.insert(number, answer).is_some() {
            return Err(format!("answer {number} in place of answer {}", self.sequence));
        }
        let mut steps = Vec::new();
        while let Some(next) = self.early.remove(&self.sequence) {
            self.sequence += 1;
            self.check_way(&next.way)?;
            steps.push(FollowStep::Way(next.way));
            for news in next.shards {
                self.take(news, &mut steps)?;
            }
        }
        Ok(steps)
    }

    /// Takes in the news of one shard.
    fn take(&mut self, news: CopiedShard, steps: &mut Vec<FollowStep>) -> Result<(), String> {
        let index = news.shard as usize;
        let Some(place) = self.places.get_mut(index) else {
            return Err(format!("entries of shard {}, which was not asked for", news.shard));
        };
        let shard = ShardId { stream: self.stream, shard: ShardNumber(news.shard) };
        if news.log_start > news.next_offset || news.next_offset > OFFSET_MAX {
            return Err(format!(
                "shard {} is said to go from {} to {}",
                news.shard, news.log_start, news.next_offset
            ));
        }
        let log_start = Offset(news.log_start);
        let mut rest = news.entries.clone();
        steps.push(FollowStep::Told(CopiedShard { entries: Bytes::new(), ..news }));
        while !rest.is_empty() {
            let header = parse_entry_header(&rest).map_err(|error| error.to_string())?;
            if header.len as usize > rest.len() || (header.len as usize) < ENTRY_HEADER_BYTES {
                return Err(format!("an entry of {} bytes in {}", header.len, rest.len()));
            }
            let entry = rest.split_to(header.len as usize);
            if header.next_offset() <= place.next {
                continue;
            }
            if header.base_offset > place.next {
                if log_start <= place.next {
                    return Err(format!("offsets {} to {} are missing", place.next, header.base_offset));
                }
                steps.push(FollowStep::Begin(shard, header.base_offset));
            }
            place.next = header.next_offset();
            let copied = CopiedEntry {
                shard: index,
                next_offset: header.next_offset(),
                records: u64::from(header.record_count),
                bytes: entry.len() as u64,
                timestamp_ms: last_timestamp(&entry),
            };
            steps.push(FollowStep::Append(shard, entry, copied));
        }
        // All there ever was is removed.
        if log_start > place.next {
            steps.push(FollowStep::Begin(shard, log_start));
            place.next = log_start;
        }
        place.wanted_start = place.wanted_start.max(log_start);
        Ok(())
    }

    /// The shards of which the cluster above has removed more than this one, and up to where.
    pub(crate) fn truncations(&self) -> Vec<(ShardId, Offset)> {
        let stream = self.stream;
        let shards = (0..).map(ShardNumber).zip(&self.places);
        let behind = shards.filter(|(_, place)| place.wanted_start > place.start);
        behind.map(|(shard, place)| (ShardId { stream, shard }, place.wanted_start)).collect()
    }

    /// A shard begins at `start` by now.
    pub(crate) fn truncated(&mut self, shard: ShardNumber, start: Offset) {
        if let Some(place) = self.places.get_mut(shard.0 as usize) {
            place.start = start;
        }
    }
}

/// Timestamp of the last batch of an entry, or 0.
fn last_timestamp(entry: &[u8]) -> i64 {
    let body = entry.get(ENTRY_HEADER_BYTES..).unwrap_or_default();
    batches(body).flatten().last().map_or(0, |batch| batch.header().max_timestamp_ms)
}

#[cfg(test)]
mod tests;
