//! What is known of the log from outside.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use tailwater_format::{Offset, StreamId};
use tailwater_log::{Log, StreamConfig};

use crate::checkers::{ShardChecker, Violation, ensure};
use crate::planted::OldAnswers;
use crate::scenarios::outcome::{Noted, Outcome};

use super::{SHARDS, STREAM, shard_id};

/// A stream between its creation and its deletion.
pub(super) struct Stream {
    pub(super) id: StreamId,
    pub(super) checkers: [ShardChecker; SHARDS as usize],
    /// Somebody has asked for its deletion.
    pub(super) deleting: bool,
    /// That was answered, or somebody was told.
    pub(super) deleted: bool,
}

/// Which of [`Model::streams`].
pub(super) type Generation = usize;

/// Records on their way, in one batch.
#[derive(Clone)]
pub(super) struct Batch {
    pub(super) generation: Generation,
    pub(super) identities: Vec<u64>,
    /// Of an idempotent producer: that of its first record.
    pub(super) sequence: i32,
    pub(super) bytes: Bytes,
}

/// An idempotent producer, which outlives the node.
#[derive(Default)]
pub(super) struct Producer {
    pub(super) id: Option<i64>,
    /// Sequence number of its next record.
    pub(super) sequence: i32,
    /// What it has to send again.
    pub(super) unanswered: Option<Batch>,
    /// What was answered last.
    pub(super) answered: Option<Batch>,
}

pub(super) struct Model {
    pub(super) noted: Noted,
    pub(super) config: StreamConfig,
    /// The stream each time it was created; the last one is the one there is, if any.
    pub(super) streams: Vec<Stream>,
    pub(super) producer: Producer,
    pub(super) producer_ids: BTreeSet<i64>,
    pub(super) old_answers: Arc<OldAnswers>,
    /// Appends acknowledged, by shard.
    pub(super) answered: [u64; SHARDS as usize],
    identity_next: u64,
}

impl Outcome for Model {
    fn noted(&mut self) -> &mut Noted {
        &mut self.noted
    }
}

impl Model {
    pub(super) fn new(config: StreamConfig) -> Self {
        Self {
            noted: Noted::default(),
            config,
            streams: Vec::new(),
            producer: Producer::default(),
            producer_ids: BTreeSet::new(),
            old_answers: Arc::default(),
            answered: [0; SHARDS as usize],
            identity_next: 0,
        }
    }

    /// What a start found is what there was.
    pub(super) fn recovered(&mut self, log: &Log) -> Result<(), Violation> {
        let found = log.stream(STREAM).ok().map(|found| found.id);
        if let Some(last) = self.streams.last_mut() {
            ensure(found.is_some() || last.deleting, || "the stream is gone".to_owned())?;
            if found != Some(last.id) {
                last.deleted = true;
            }
        }
        if let Some(found) = found {
            self.found(found)?;
            for shard in 0..SHARDS {
                let view = log.view(shard_id(found, shard));
                let start = view.map_err(|error| Violation::new(format!("shard {shard}: {error}")))?;
                self.told_of_start(self.streams.len() - 1, shard, start.tail.log_start);
                self.checker(self.streams.len() - 1, shard).starts_at(start.tail.log_start.0)?;
            }
        }
        Ok(())
    }

    /// The stream with this id is there. One that is new takes the place of one that was to be deleted.
    pub(super) fn found(&mut self, id: StreamId) -> Result<(), Violation> {
        match self.streams.last() {
            Some(last) if last.id == id => {
                return ensure(!last.deleted, || "a stream that was deleted came back".to_owned());
            }
            Some(last) => ensure(last.deleting, || "another stream has taken the name".to_owned())?,
            None => {}
        }
        let again = self.streams.iter().any(|stream| stream.id == id);
        ensure(!again, || "a stream that was deleted came back".to_owned())?;
        if let Some(last) = self.streams.last_mut() {
            last.deleted = true;
        }
        let checkers = std::array::from_fn(|_| ShardChecker::new());
        self.streams.push(Stream { id, checkers, deleting: false, deleted: false });
        self.count("streams", 1);
        Ok(())
    }

    /// The stream there is.
    pub(super) fn current(&self) -> Option<(Generation, StreamId)> {
        let last = self.streams.last().filter(|last| !last.deleted)?;
        Some((self.streams.len() - 1, last.id))
    }

    pub(super) fn checker(&mut self, generation: Generation, shard: u32) -> &mut ShardChecker {
        &mut self.streams[generation].checkers[shard as usize]
    }

    /// Somebody was told that a shard starts at `start`, which retention may have moved at any time.
    pub(super) fn told_of_start(&mut self, generation: Generation, shard: u32, start: Offset) {
        if self.config.retention_bytes.is_some() {
            self.checker(generation, shard).truncating(start.0);
        }
    }

    /// Somebody was told that a stream is none.
    pub(super) fn told_of_deletion(&mut self, generation: Generation) {
        let deleting = self.streams[generation].deleting;
        self.note(ensure(deleting, || "the stream is said to be none".to_owned()));
    }

    /// Identities for `count` records that are about to be appended.
    pub(super) fn identities(&mut self, generation: Generation, shard: u32, count: u64) -> Vec<u64> {
        let first = self.identity_next;
        self.identity_next += count;
        let checker = self.checker(generation, shard);
        (first..first + count).inspect(|&identity| checker.produced(identity)).collect()
    }

    /// Whether something was acknowledged in each shard since `before`.
    pub(super) fn all_answered_since(&self, before: [u64; SHARDS as usize]) -> bool {
        self.answered.iter().zip(before).all(|(now, before)| *now > before)
    }
}
