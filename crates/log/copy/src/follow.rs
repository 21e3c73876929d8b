//! What the lower end of a hop makes of the answers of a session: a step function, without clock, connection or log.
//!
//! What holds:
//! - Answers are taken in the order of their numbers, in whichever order they come. So many are kept as are asked for.
//! - An entry is appended where the last one ended. One that begins later is missing something, unless the cluster
//!   above has removed what lies between: then the copy is told to go on behind the gap first.
//! - What the copy has already is left out.
//! - A shard that can't go on is held: what comes of it is left out, and the cluster above is asked for no more of it.
//!   It goes on where the log ends, with the answer to the question that said so. The others are not held up. One
//!   question at a time tells of a shard, so questions may overtake each other.
//! - A way that leads back to the cluster itself ends the session.

use std::collections::BTreeMap;

use bytes::Bytes;
use tailwater_format::call::{CopiedShard, CopyEntries, CopyFrom, CopyNext};
use tailwater_format::limits::OFFSET_MAX;
use tailwater_format::{
    AppendedTo, ENTRY_HEADER_BYTES, Offset, ShardId, ShardNumber, StreamId, Tail, batches, parse_entry_header,
};

use crate::hop::CopiedEntry;

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

/// Whether a shard is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ShardFlow {
    /// It is.
    Flowing,
    /// Nothing of it is taken.
    Held,
    /// It will be, with the answer to the question that says so.
    Resumes,
}

/// How far a shard of the copy is.
#[derive(Clone, Copy, Debug)]
struct CopyPlace {
    flow: ShardFlow,
    /// The cluster above is to be told that it is held, or where it goes on.
    is_to_be_told: bool,
    /// A question that tells of it is not answered, and said that it goes on as it now does.
    telling: Option<bool>,
    /// What was removed is being removed here, too.
    is_truncating: bool,
    /// Offset after the last record that the log was given.
    next: AppendedTo<Offset>,
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
    /// The number of the next question.
    asked: u64,
    /// The number of the next answer.
    sequence: u64,
    /// Answers that came before the next one, each with the number of its question.
    early: BTreeMap<u64, (u64, CopyEntries)>,
    /// The shards that questions tell of which are not answered.
    telling: BTreeMap<u64, Vec<usize>>,
}

impl Follow {
    /// A session with the cluster `above`, from where the shards of the copy in `here` end.
    pub(crate) fn new(stream: StreamId, here: &str, above: &str, tails: &[Tail]) -> Self {
        let place = |tail: &Tail| CopyPlace {
            flow: ShardFlow::Flowing,
            is_to_be_told: false,
            telling: None,
            is_truncating: false,
            next: AppendedTo::new(tail.next_offset),
            start: tail.log_start,
            wanted_start: tail.log_start,
        };
        Self {
            stream,
            here: here.to_owned(),
            above: above.to_owned(),
            places: tails.iter().map(place).collect(),
            asked: 0,
            sequence: 0,
            early: BTreeMap::new(),
            telling: BTreeMap::new(),
        }
    }

    /// How many shards it has.
    pub(crate) fn shards(&self) -> usize {
        self.places.len()
    }

    /// The next question of a session and its number, with what the cluster above has to know of shards that are held
    /// or go on.
    pub(crate) fn question(&mut self, session: u64) -> (u64, CopyNext) {
        let number = self.asked;
        self.asked += 1;
        let mut question = CopyNext { session, ..CopyNext::default() };
        let mut told = Vec::new();
        for (shard, place) in (0..).zip(&mut self.places) {
            if !place.is_to_be_told || place.telling.is_some() {
                continue;
            }
            let resumes = place.flow == ShardFlow::Resumes;
            (place.is_to_be_told, place.telling) = (false, Some(resumes));
            if resumes {
                question.from.push(CopyFrom { shard, next_offset: place.next.get().0 });
            } else {
                question.hold.push(shard);
            }
            told.push(shard as usize);
        }
        if !told.is_empty() {
            self.telling.insert(number, told);
        }
        (number, question)
    }

    /// Questions that are not answered.
    pub(crate) fn unanswered(&self) -> usize {
        (self.asked - self.sequence) as usize - self.early.len()
    }

    /// Whether the next question tells the cluster above something.
    pub(crate) fn has_news(&self) -> bool {
        self.places.iter().any(|place| place.is_to_be_told && place.telling.is_none())
    }

    /// Holds a shard: nothing of it is taken until it goes on.
    pub(crate) fn hold(&mut self, shard: ShardNumber) {
        if let Some(place) = self.places.get_mut(shard.0 as usize) {
            (place.flow, place.is_to_be_told) = (ShardFlow::Held, true);
            place.telling = place.telling.map(|_| false);
        }
    }

    /// Has a shard that is held go on where the log ends, which has answered all that it took.
    pub(crate) fn resume(&mut self, shard: ShardNumber, next: Offset, start: Offset) {
        if let Some(place) = self.places.get_mut(shard.0 as usize) {
            (place.flow, place.is_to_be_told) = (ShardFlow::Resumes, true);
            // What was lost comes again, so it may be before where it was.
            (place.next, place.start) = (AppendedTo::new(next), start);
        }
    }

    /// Whether nothing of a shard is to be taken.
    pub(crate) fn is_held(&self, shard: ShardNumber) -> bool {
        self.places.get(shard.0 as usize).is_none_or(|place| place.flow != ShardFlow::Flowing)
    }

    /// Whether nothing of a shard comes, and it is not known from where it goes on.
    pub(crate) fn is_stopped(&self, shard: ShardNumber) -> bool {
        self.places.get(shard.0 as usize).is_some_and(|place| place.flow == ShardFlow::Held)
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

    /// Takes in the answer to question `asked`: what is to be done by now.
    ///
    /// # Errors
    /// In words, what ends the session: nothing of the answer is to be done then.
    pub(crate) fn answer(&mut self, asked: u64, answer: CopyEntries) -> Result<Vec<FollowStep>, String> {
        let number = answer.sequence;
        let is_asked = (self.sequence..self.asked).contains(&number);
        if !is_asked || self.early.insert(number, (asked, answer)).is_some() {
            return Err(format!("answer {number} in place of answer {}", self.sequence));
        }
        let mut steps = Vec::new();
        while let Some((asked, next)) = self.early.remove(&self.sequence) {
            self.sequence += 1;
            for shard in self.telling.remove(&asked).unwrap_or_default() {
                let place = &mut self.places[shard];
                if place.telling.take() == Some(true) {
                    place.flow = ShardFlow::Flowing;
                }
            }
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
        if place.flow != ShardFlow::Flowing {
            return Ok(());
        }
        while !rest.is_empty() {
            let header = parse_entry_header(&rest).map_err(|error| error.to_string())?;
            if header.len as usize > rest.len() || (header.len as usize) < ENTRY_HEADER_BYTES {
                return Err(format!("an entry of {} bytes in {}", header.len, rest.len()));
            }
            let entry = rest.split_to(header.len as usize);
            let next = place.next.get();
            if header.next_offset() <= next {
                continue;
            }
            if header.base_offset > next {
                if log_start <= next {
                    return Err(format!("offsets {next} to {} are missing", header.base_offset));
                }
                steps.push(FollowStep::Begin(shard, header.base_offset));
            }
            place.next.advance(header.next_offset());
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
        if log_start > place.next.get() {
            steps.push(FollowStep::Begin(shard, log_start));
            place.next.advance(log_start);
        }
        place.wanted_start = place.wanted_start.max(log_start);
        Ok(())
    }

    /// The shards of which the cluster above has removed more than this one, and up to where: each until
    /// [`Follow::truncated`] says how that ended.
    pub(crate) fn truncations(&mut self) -> Vec<(ShardId, Offset)> {
        let stream = self.stream;
        let shards = (0..).map(ShardNumber).zip(&mut self.places);
        let is_behind = |place: &CopyPlace| place.wanted_start > place.start && !place.is_truncating;
        let behind = shards.filter(|(_, place)| is_behind(place));
        let begun = behind.map(|(shard, place)| {
            place.is_truncating = true;
            (ShardId { stream, shard }, place.wanted_start)
        });
        begun.collect()
    }

    /// A shard begins at `start` by now, or where it did.
    pub(crate) fn truncated(&mut self, shard: ShardNumber, start: Option<Offset>) {
        if let Some(place) = self.places.get_mut(shard.0 as usize) {
            place.is_truncating = false;
            place.start = start.unwrap_or(place.start);
        }
    }
}

/// Timestamp of the last batch of an entry, or 0.
pub(crate) fn last_timestamp(entry: &[u8]) -> i64 {
    let body = entry.get(ENTRY_HEADER_BYTES..).unwrap_or_default();
    batches(body).flatten().last().map_or(0, |batch| batch.header().max_timestamp_ms)
}

#[cfg(test)]
mod tests;
