//! What a checkpoint holds, gone through piece by piece while the replica goes on.
//!
//! A checkpoint replaces the journal up to the position where its walk began; what follows is replayed on top of it.
//! The walk takes what was held then from the history as that has it when its turn comes: an event may have been
//! collected meanwhile by one that is only in the journal. So a checkpoint counts only once the journal is durable up
//! to where the walk ended.

use std::collections::VecDeque;

use tailwater_broadcast::name::Stream;
use tailwater_broadcast::record::Record;
use tailwater_broadcast::replica::stream::{StreamState, Unsettled};
use tailwater_broadcast::replica::{Lineages, MESSAGE_BYTES, Replica};

/// Publishers in one record.
const PUBLISHERS_A_RECORD: usize = 10_000;

/// One stream as it was when the walk began, as far as it can't be read later.
#[derive(Debug)]
struct Left {
    stream: Stream,
    /// The last number that was held.
    held: u64,
    /// Up to where predicates were applied; none once that was said.
    applied: Option<u64>,
    /// How far the walk got.
    after: u64,
    unsettled: VecDeque<Unsettled>,
}

/// A walk through all streams that are kept on disk.
#[derive(Debug)]
pub struct Walk {
    /// The lineages of all that, until that was said.
    lineages: Option<Lineages>,
    left: VecDeque<Left>,
}

impl Walk {
    /// Begins one: what is on its way down the chain is taken now.
    pub fn begin(replica: &Replica) -> Self {
        let kept = replica.streams().filter(|(stream, _)| replica.is_kept(stream));
        Self::of(replica.lineages(), kept)
    }

    /// One through some streams, which are of these lineages.
    pub(super) fn of<'a>(
        lineages: &Lineages,
        streams: impl Iterator<Item = (&'a Stream, &'a StreamState)>,
    ) -> Self {
        let left = streams.map(|(stream, state)| Left {
            stream: stream.clone(),
            held: state.held(),
            applied: Some(state.history.applied()),
            after: 0,
            unsettled: state.unsettled().cloned().collect(),
        });
        Self { lineages: Some(lineages.clone()), left: left.collect() }
    }

    /// The next piece, at most about 256 KiB of events; `None` at the end.
    pub fn next(&mut self, replica: &Replica) -> Option<Vec<Record>> {
        self.next_of(|stream| replica.stream(stream))
    }

    /// The same, of the streams that `state` knows.
    pub(super) fn next_of<'a>(
        &mut self,
        state: impl FnOnce(&Stream) -> Option<&'a StreamState>,
    ) -> Option<Vec<Record>> {
        if let Some(Lineages { own, member, others }) = self.lineages.take() {
            let own = [Record::Lineage { lineage: own, keeps: true }, Record::Member { epoch: member }];
            let elsewhere = others.into_iter().map(|(region, lineage)| Record::Elsewhere { region, lineage });
            return Some(own.into_iter().chain(elsewhere).collect());
        }
        let left = self.left.front_mut()?;
        let stream = left.stream.clone();
        let Some(state) = state(&stream) else {
            self.left.pop_front();
            return Some(Vec::new());
        };
        if let Some(last) = left.applied.take() {
            // Or all predicates would be applied to all events again when it is read.
            return Some(vec![Record::Applied { stream, last }]);
        }
        if let Some(batch) = state.history.read_live(left.after, left.held, MESSAGE_BYTES) {
            left.after = batch.last;
            let held = Record::Held { stream: stream.clone(), last: batch.last };
            return Some(vec![Record::Stored { stream, batch, origin: None }, held]);
        }
        let numbers = state.publishers.settled_numbers();
        let mut records: Vec<Record> = numbers
            .chunks(PUBLISHERS_A_RECORD)
            .map(|numbers| Record::Publishers { stream: stream.clone(), numbers: numbers.to_vec() })
            .collect();
        records.extend(std::mem::take(&mut left.unsettled).into_iter().map(|entry| Record::Stored {
            stream: stream.clone(),
            batch: entry.batch,
            origin: entry.origin,
        }));
        self.left.pop_front();
        Some(records)
    }
}
