//! What replicas of a broadcast send, and read from their disks, changed.

use std::collections::VecDeque;

use tailwater_broadcast::message::{Chain, Message, Waits};
use tailwater_broadcast::record::Record;
use tailwater_broadcast::region;
use tailwater_broadcast::replica::Replica;
use tailwater_broadcast::{Batch, Position, Stream, Writer};

use super::Plant;

impl Plant {
    /// A message that a replica sends, as the bug makes it.
    pub fn broadcast_message(self, replica: &Replica, message: Message) -> Message {
        match (self, message) {
            (Plant::HeldTooEarly, Message::Held { epoch, counts }) => {
                let last = |stream: &Stream| Position {
                    lineage: replica.lineage_of(stream),
                    seq: replica.stream(stream).map_or(0, |state| state.last()),
                };
                let counts = counts.into_iter().map(|(stream, _)| (last(&stream), stream));
                let counts = counts.map(|(last, stream)| (stream, last)).collect();
                Message::Held { epoch, counts }
            }
            (Plant::AgeNotTold, Message::Advertise { epoch, answers, mut counts }) => {
                counts.iter_mut().for_each(|told| told.age_ms = 0);
                Message::Advertise { epoch, answers, counts }
            }
            (Plant::TimesGoBack, Message::Append { epoch, stream, lineage, origin, mut batch })
                if batch.last.is_multiple_of(3) =>
            {
                batch.state.time_ms -= EARLIER_MS;
                Message::Append { epoch, stream, lineage, origin, batch }
            }
            (Plant::TombstoneForNothing, Message::Events { stream, lineage, batch }) => {
                Message::Events { stream, lineage, batch: without_first(&batch) }
            }
            (Plant::RemovalNotTold, Message::Events { stream, lineage, mut batch }) => {
                batch.removed = 0;
                Message::Events { stream, lineage, batch }
            }
            (Plant::RemovalNotHandedOn, Message::Removed { epoch, stream, last }) => {
                Message::Removed { epoch, stream, last: Position { seq: 0, ..last } }
            }
            (Plant::LineageNotToldElsewhere, Message::Advertise { epoch, answers, mut counts }) => {
                counts.iter_mut().for_each(|told| told.count.lineage = 1);
                Message::Advertise { epoch, answers, counts }
            }
            (Plant::LineageNotToldElsewhere, Message::Events { stream, batch, .. }) => {
                Message::Events { stream, lineage: 1, batch }
            }
            (Plant::SubscribedTooFar, Message::Subscribe { stream, after }) => {
                Message::Subscribe { stream, after: Position { seq: after.seq + 1, ..after } }
            }
            (_, message) => message,
        }
    }

    /// Makes what a listener that shares sends another one as the bug makes it.
    pub fn broadcast_shared(self, message: &mut region::Message) {
        if self == Plant::HoleHidden
            && let region::Message::Events { batches, .. } = message
            && let Some(first) = batches.first_mut()
            && let Ok(Some(rest)) = first.rest(first.after + 1)
        {
            *first = Batch { after: first.after, ..rest };
        }
    }

    /// From where on a listener that was there before wants events, as the bug makes it.
    pub fn broadcast_positions(
        self,
        chain: &Chain,
        mut positions: Vec<(Stream, Position)>,
    ) -> Vec<(Stream, Position)> {
        let own = positions.iter_mut().filter(|(stream, _)| stream.region() == chain.region);
        match self {
            Plant::ResumedInAnyLineage => own.for_each(|(_, after)| after.lineage = chain.lineage),
            Plant::ResumedTooFar => positions.iter_mut().for_each(|(_, after)| after.seq += 1),
            _ => {}
        }
        positions
    }

    /// The chain as replicas are told it.
    pub fn broadcast_chain(self, chain: Chain) -> Chain {
        if self == Plant::LineageNotTold { Chain { lineage: 1, ..chain } } else { chain }
    }

    /// What a replica says that it waits for; `waited` is what it did when it said so before.
    pub fn broadcast_waits(self, waits: Waits, waited: &mut VecDeque<Waits>) -> Waits {
        match self {
            Plant::WaitsToldLate => {
                waited.push_back(waits);
                if waited.len() > LATE_REPORTS { waited.pop_front() } else { None }.unwrap_or_default()
            }
            Plant::WaitsNotTold => Waits::default(),
            Plant::BeforeNotTold => Waits { before_ms: 0, ..waits },
            _ => waits,
        }
    }

    /// A record that a replica finds on its disk, as the bug reads it.
    pub fn broadcast_record(self, record: Record) -> Option<Record> {
        match (self, record) {
            (Plant::PublishersNotRestored, Record::Publishers { .. }) => None,
            (Plant::PublishersNotRestored, Record::Stored { stream, batch, .. }) => {
                Some(Record::Stored { stream, batch, origin: None })
            }
            (_, record) => Some(record),
        }
    }
}

/// What a replica says that it waits for is so many of its reports old.
const LATE_REPORTS: usize = 60;
/// So much earlier than it was.
const EARLIER_MS: u64 = 10_000;
/// Without a larger event a message counts for less when it has left than when it was sent: that would be another bug.
const BYTES_MAX: usize = 4 << 10;

/// A batch of several small events without its first one.
fn without_first(batch: &Batch) -> Batch {
    let mut writer = Writer::new(batch.after);
    let mut cursor = batch.cursor();
    let mut first = batch.count > 1 && batch.bytes.len() < BYTES_MAX;
    while let Ok(Some(event)) = cursor.next() {
        if !std::mem::take(&mut first) {
            writer.push(&event);
        }
    }
    writer.finish(batch.last)
}
