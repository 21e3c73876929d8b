//! What a replica writes to its disk, in the journal and in checkpoints alike: replayed in order, it is what the
//! replica had. A record's bytes are a u8 that says which kind it is, and that kind's fields as the table has them, in
//! the forms of [`crate::wire`].

use bytes::{Bytes, BytesMut};

use crate::batch::Batch;
use crate::message::{Origin, PublisherId};
use crate::name::Stream;
use crate::wire::table::kinds;
use crate::wire::{BadMessage, Reader, WirePiece};

kinds! {
    /// One of them.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub enum Record checked by check {
        /// The replica has new events, which are on their way down the chain; the batch may begin with some that it
        /// had.
        1 => Stored {
            /// The stream.
            stream: Stream,
            /// Who published them, if it is known.
            origin: Option<Origin>,
            /// The events.
            batch: Batch,
        },
        /// All replicas from here to the tail hold the stream up to here.
        2 => Held {
            /// The stream.
            stream: Stream,
            /// The last number.
            last: u64,
        },
        /// What publishers have published, as another replica said.
        3 => Publishers {
            /// The stream.
            stream: Stream,
            /// Their last numbers that all replicas hold.
            numbers: Vec<(PublisherId, u64)>,
        },
        /// What was on its way down the chain was forgotten, in all streams: the replica was removed from the chain.
        4 => Forgot,
        /// Nothing: a checkpoint counts once the journal is durable up to here.
        5 => Mark,
        /// What is stored of the stream from here on comes from somebody who had applied the predicates up to here, and
        /// is without what he had collected.
        6 => Applied {
            /// The stream.
            stream: Stream,
            /// The last number.
            last: u64,
        },
        /// What follows is of this lineage ([`Chain::lineage`](crate::message::Chain::lineage)). If it is another one
        /// than before, what there was is of it as well, or has been dropped.
        7 => Lineage {
            /// Which one.
            lineage: u64,
            /// Whether what there was before is of it.
            keeps: bool,
        },
        /// What follows of another region's streams is of this lineage of that region. If it is another one than
        /// before, what there was has been dropped.
        8 => Elsewhere {
            /// The region.
            region: String,
            /// Which one.
            lineage: u64,
        },
        /// The replica is a member of its chain, or as good as one ([`Has::epoch`](crate::message::Has::epoch)).
        9 => Member {
            /// The chain's epoch.
            epoch: u64,
        },
        /// Retention removed all of the stream up to here, collected or not.
        10 => Removed {
            /// The stream.
            stream: Stream,
            /// The last number.
            last: u64,
        },
    }
}

impl Record {
    /// Appends its bytes.
    pub fn encode(&self, out: &mut BytesMut) {
        self.append(out);
    }

    /// The region of the streams that it is about, if it is about those of one.
    pub fn region(&self) -> Option<&str> {
        match self {
            Record::Stored { stream, .. }
            | Record::Held { stream, .. }
            | Record::Publishers { stream, .. }
            | Record::Applied { stream, .. }
            | Record::Removed { stream, .. } => Some(stream.region()),
            Record::Elsewhere { region, .. } => Some(region),
            Record::Forgot | Record::Mark | Record::Lineage { .. } | Record::Member { .. } => None,
        }
    }

    /// Reads what [`Record::encode`] wrote. Batches in it are checked.
    pub fn decode(bytes: Bytes) -> Result<Self, BadMessage> {
        let mut from = Reader::new(bytes);
        let record = Self::take(&mut from)?;
        from.end()?;
        Ok(record)
    }

    /// What its fields say of each other.
    fn check(&self) -> Result<(), BadMessage> {
        match self {
            Record::Stored { origin: Some(origin), batch, .. } => origin.check(batch),
            _ => Ok(()),
        }
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
            Record::Applied { stream: stream.clone(), last: 9 },
            Record::Removed { stream, last: 9 },
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
            which in 0..11usize, changes in proptest::collection::vec((any::<usize>(), any::<u8>()), 1..4),
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
