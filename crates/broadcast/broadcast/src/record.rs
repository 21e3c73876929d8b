//! What a replica writes to its disk, in the journal and in checkpoints alike: replayed in order, it is what the
//! replica had. All numbers are little-endian; streams, batches and lists are as in [`crate::wire`].
//!
//! ```text
//! kind   u8
//! 1      stored:      stream, u8 1 if published here, u128 publisher, u64 its number of the first event, batch
//! 2      held:        stream, u64 last
//! 3      publishers:  stream, list of (u128 publisher, u64 its last number that all replicas hold)
//! 4      forgot
//! 5      mark
//! 6      applied:     stream, u64 last
//! 7      lineage:     u64 lineage, u8 1 if what was there before is of it
//! 8      elsewhere:   text region, u64 lineage
//! 9      member:      u64 epoch
//! ```

use bytes::{BufMut, Bytes, BytesMut};

use crate::batch::Batch;
use crate::message::{Origin, PublisherId};
use crate::name::Stream;
use crate::wire::{BadMessage, Reader, put_batch, put_list, put_stream, put_text};

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// The replica has new events, which are on their way down the chain; the batch may begin with some that it had.
    Stored {
        /// The stream.
        stream: Stream,
        /// The events.
        batch: Batch,
        /// Who published them, if it is known.
        origin: Option<Origin>,
    },
    /// All replicas from here to the tail hold the stream up to here.
    Held {
        /// The stream.
        stream: Stream,
        /// The last number.
        last: u64,
    },
    /// What publishers have published, as another replica said.
    Publishers {
        /// The stream.
        stream: Stream,
        /// Their last numbers that all replicas hold.
        numbers: Vec<(PublisherId, u64)>,
    },
    /// What was on its way down the chain was forgotten, in all streams: the replica was removed from the chain.
    Forgot,
    /// Nothing: a checkpoint counts once the journal is durable up to here.
    Mark,
    /// What is stored of the stream from here on comes from somebody who had applied the predicates up to here, and is
    /// without what he had collected.
    Applied {
        /// The stream.
        stream: Stream,
        /// The last number.
        last: u64,
    },
    /// What follows is of this lineage ([`Chain::lineage`](crate::message::Chain::lineage)). If it is another one than
    /// before, what there was is of it as well, or has been dropped.
    Lineage {
        /// Which one.
        lineage: u64,
        /// Whether what there was before is of it.
        keeps: bool,
    },
    /// What follows of another region's streams is of this lineage of that region. If it is another one than before,
    /// what there was has been dropped.
    Elsewhere {
        /// The region.
        region: String,
        /// Which one.
        lineage: u64,
    },
    /// The replica is a member of its chain, or as good as one ([`Has::epoch`](crate::message::Has::epoch)).
    Member {
        /// The chain's epoch.
        epoch: u64,
    },
}

impl Record {
    /// Appends its bytes.
    pub fn encode(&self, out: &mut BytesMut) {
        match self {
            Record::Stored { stream, batch, origin } => {
                out.put_u8(1);
                put_stream(out, stream);
                out.put_u8(u8::from(origin.is_some()));
                let origin = origin.unwrap_or(Origin { client: 0, first: 0 });
                out.put_u128_le(origin.client);
                out.put_u64_le(origin.first);
                put_batch(out, batch);
            }
            Record::Held { stream, last } => {
                out.put_u8(2);
                put_stream(out, stream);
                out.put_u64_le(*last);
            }
            Record::Publishers { stream, numbers } => {
                out.put_u8(3);
                put_stream(out, stream);
                put_list(out, numbers, |out, (client, number)| {
                    out.put_u128_le(*client);
                    out.put_u64_le(*number);
                });
            }
            Record::Forgot => out.put_u8(4),
            Record::Mark => out.put_u8(5),
            Record::Applied { stream, last } => {
                out.put_u8(6);
                put_stream(out, stream);
                out.put_u64_le(*last);
            }
            Record::Lineage { lineage, keeps } => {
                out.put_u8(7);
                out.put_u64_le(*lineage);
                out.put_u8(u8::from(*keeps));
            }
            Record::Elsewhere { region, lineage } => {
                out.put_u8(8);
                put_text(out, region);
                out.put_u64_le(*lineage);
            }
            Record::Member { epoch } => {
                out.put_u8(9);
                out.put_u64_le(*epoch);
            }
        }
    }

    /// The region of the streams that it is about, if it is about those of one.
    pub fn region(&self) -> Option<&str> {
        match self {
            Record::Stored { stream, .. }
            | Record::Held { stream, .. }
            | Record::Publishers { stream, .. }
            | Record::Applied { stream, .. } => Some(stream.region()),
            Record::Elsewhere { region, .. } => Some(region),
            Record::Forgot | Record::Mark | Record::Lineage { .. } | Record::Member { .. } => None,
        }
    }

    /// Reads what [`Record::encode`] wrote. Batches in it are checked.
    pub fn decode(bytes: Bytes) -> Result<Self, BadMessage> {
        let mut from = Reader::new(bytes);
        let record = match from.u8()? {
            1 => {
                let (stream, has) = (from.stream()?, from.u8()? != 0);
                let origin = Origin { client: from.u128()?, first: from.u64()? };
                let batch = from.batch()?;
                if has && !origin.may_have(batch.count) {
                    return Err(BadMessage("a publisher's numbers begin with 1".to_owned()));
                }
                Record::Stored { stream, batch, origin: has.then_some(origin) }
            }
            2 => Record::Held { stream: from.stream()?, last: from.u64()? },
            3 => Record::Publishers {
                stream: from.stream()?,
                numbers: from.list(24, |from| Ok((from.u128()?, from.u64()?)))?,
            },
            4 => Record::Forgot,
            5 => Record::Mark,
            6 => Record::Applied { stream: from.stream()?, last: from.u64()? },
            7 => Record::Lineage { lineage: from.u64()?, keeps: from.u8()? != 0 },
            8 => Record::Elsewhere { region: from.text()?, lineage: from.u64()? },
            9 => Record::Member { epoch: from.u64()? },
            other => return Err(BadMessage(format!("kind {other} is unknown"))),
        };
        from.end()?;
        Ok(record)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Content, Writer};

    fn samples() -> Vec<Record> {
        let stream = Stream::parse("eu/prices").unwrap();
        let mut writer = Writer::new(7);
        let content = Content { payload: Bytes::from_static(b"payload"), ..Content::default() };
        writer.publish(&content, None).unwrap();
        let batch = writer.finish(9);
        let origin = Some(Origin { client: 5, first: 6 });
        vec![
            Record::Stored { stream: stream.clone(), batch: batch.clone(), origin },
            Record::Stored { stream: stream.clone(), batch, origin: None },
            Record::Held { stream: stream.clone(), last: 9 },
            Record::Publishers { stream: stream.clone(), numbers: vec![(5, 6), (7, 8)] },
            Record::Forgot,
            Record::Mark,
            Record::Applied { stream, last: 9 },
            Record::Lineage { lineage: 9, keeps: true },
            Record::Elsewhere { region: "us".to_owned(), lineage: 9 },
            Record::Member { epoch: 9 },
        ]
    }

    fn encoded(record: &Record) -> Bytes {
        let mut out = BytesMut::new();
        record.encode(&mut out);
        out.freeze()
    }

    #[test]
    fn every_record_comes_back_and_every_cut_one_is_refused() {
        for record in samples() {
            let bytes = encoded(&record);
            assert_eq!(Record::decode(bytes.clone()).unwrap(), record);
            for cut in 0..bytes.len() {
                assert!(Record::decode(bytes.slice(..cut)).is_err(), "{record:?} cut at {cut}");
            }
        }
    }

    proptest! {
        #[test]
        fn a_changed_record_is_refused_or_read_without_a_panic(
            which in 0..10usize, changes in proptest::collection::vec((any::<usize>(), any::<u8>()), 1..4),
        ) {
            let mut bytes = encoded(&samples()[which]).to_vec();
            for (at, to) in changes {
                let len = bytes.len();
                bytes[at % len] = to;
            }
            if let Ok(record) = Record::decode(bytes.into()) {
                let _ = crate::recovered::RecoveredStream::default().apply(record);
            }
        }
    }
}
