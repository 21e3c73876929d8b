//! What is in the journal: one record is a round of an owner, the operations one after the other. Little-endian.
//!
//! ```text
//! 1 send     8 queue, 8 sequence, 8 number, 8 sent at, 8 visible at, 1 flags (1 group, 2 deduplication key),
//!            1 + group, 16 key, 4 + content
//! 2 receive  8 queue, 8 sequence, 4 token, 2 receives, 8 at, 8 visible at
//! 3 delete   8 queue, 8 sequence
//! 4 change   8 queue, 8 sequence, 4 token, 8 visible at
//! 5 move     8 queue, 8 sequence, 8 queue to, 8 sequence there, 8 sent at, 1 whether it is a new message there, 8 at
//! 6 purge    8 queue, 8 sequence of the last, 8 at
//! 7 put      8 queue, 4 + its record in JSON
//! 8 drop     8 queue, 8 at
//! 9 task     4 + a move task in JSON
//! 0 nothing
//! ```
//!
//! A receive may be missing, as nobody waits for it; so the same receive is written again before a change of its
//! visibility. Each says what is, and not what changed: whoever applies the same ones twice, in order, has the same as
//! once.

use std::sync::Arc;

use bytes::Bytes;

use crate::deduplication::DeduplicationKey;
use crate::ids::{Number, QueueId, Sequence, Token};
use crate::pages::PageEntry;
use crate::queue::Arrival;

/// One operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum QueueOp {
    Send {
        queue: QueueId,
        arrival: Arrival,
        content: Bytes,
    },
    Receive {
        queue: QueueId,
        sequence: Sequence,
        token: Token,
        receives: u16,
        at: u64,
        visible_at: u64,
    },
    Delete {
        queue: QueueId,
        sequence: Sequence,
    },
    Change {
        queue: QueueId,
        sequence: Sequence,
        token: Token,
        visible_at: u64,
    },
    Move {
        queue: QueueId,
        sequence: Sequence,
        to: QueueId,
        arrives: Sequence,
        sent_at: u64,
        is_new: bool,
        at: u64,
    },
    Purge {
        queue: QueueId,
        upto: Sequence,
        at: u64,
    },
    Put {
        queue: QueueId,
        record: Bytes,
    },
    Drop {
        queue: QueueId,
        at: u64,
    },
    Task {
        task: Bytes,
    },
    Nothing,
}

/// Bytes that are no record of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum QueueRecordError {
    #[error("it ends within an operation")]
    Short,
    #[error("there is no operation {0}")]
    Unknown(u8),
    #[error("a group's name is not UTF-8")]
    Text,
}

const GROUP: u8 = 1;
const KEY: u8 = 2;

impl QueueOp {
    /// The latest receive of a message, as its entry has it.
    pub(crate) fn receive(queue: QueueId, sequence: Sequence, entry: &PageEntry) -> Self {
        QueueOp::Receive {
            queue,
            sequence,
            token: Token(entry.token),
            receives: entry.receives,
            at: entry.sent_at + u64::from(entry.last_after),
            visible_at: entry.visible_at,
        }
    }

    /// Appends the operation to a record.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        match self {
            QueueOp::Send { queue, arrival, content } => {
                let Arrival { sequence, number, sent_at, visible_at, group, deduplication } = arrival;
                out.push(1);
                for field in [queue.0, sequence.0, number.0, *sent_at, *visible_at] {
                    out.extend_from_slice(&field.to_le_bytes());
                }
                let flags = [(group.is_some(), GROUP), (deduplication.is_some(), KEY)];
                out.push(flags.iter().filter(|(is, _)| *is).map(|(_, flag)| flag).sum());
                if let Some(group) = group {
                    out.push(u8::try_from(group.len()).expect("bounded by the front"));
                    out.extend_from_slice(group.as_bytes());
                }
                if let Some(key) = deduplication {
                    out.extend_from_slice(&key.0);
                }
                put_bytes(out, content);
            }
            QueueOp::Receive { queue, sequence, token, receives, at, visible_at } => {
                out.push(2);
                put_u64s(out, [queue.0, sequence.0]);
                out.extend_from_slice(&token.0.to_le_bytes());
                out.extend_from_slice(&receives.to_le_bytes());
                put_u64s(out, [*at, *visible_at]);
            }
            QueueOp::Delete { queue, sequence } => {
                out.push(3);
                put_u64s(out, [queue.0, sequence.0]);
            }
            QueueOp::Change { queue, sequence, token, visible_at } => {
                out.push(4);
                put_u64s(out, [queue.0, sequence.0]);
                out.extend_from_slice(&token.0.to_le_bytes());
                put_u64s(out, [*visible_at]);
            }
            QueueOp::Move { queue, sequence, to, arrives, sent_at, is_new, at } => {
                out.push(5);
                put_u64s(out, [queue.0, sequence.0, to.0, arrives.0, *sent_at]);
                out.push(u8::from(*is_new));
                put_u64s(out, [*at]);
            }
            QueueOp::Purge { queue, upto, at } => {
                out.push(6);
                put_u64s(out, [queue.0, upto.0, *at]);
            }
            QueueOp::Put { queue, record } => {
                out.push(7);
                put_u64s(out, [queue.0]);
                put_bytes(out, record);
            }
            QueueOp::Drop { queue, at } => {
                out.push(8);
                put_u64s(out, [queue.0, *at]);
            }
            QueueOp::Task { task } => {
                out.push(9);
                put_bytes(out, task);
            }
            QueueOp::Nothing => out.push(0),
        }
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, QueueRecordError> {
        Ok(match reader.u8()? {
            0 => QueueOp::Nothing,
            1 => {
                let queue = reader.queue()?;
                let (sequence, number) = (reader.sequence()?, Number(reader.u64()?));
                let (sent_at, visible_at, flags) = (reader.u64()?, reader.u64()?, reader.u8()?);
                let group = (flags & GROUP != 0).then(|| reader.name()).transpose()?;
                let deduplication = (flags & KEY != 0).then(|| reader.key()).transpose()?;
                let arrival = Arrival { sequence, number, sent_at, visible_at, group, deduplication };
                QueueOp::Send { queue, arrival, content: reader.bytes()? }
            }
            2 => QueueOp::Receive {
                queue: reader.queue()?,
                sequence: reader.sequence()?,
                token: reader.token()?,
                receives: reader.u16()?,
                at: reader.u64()?,
                visible_at: reader.u64()?,
            },
            3 => QueueOp::Delete { queue: reader.queue()?, sequence: reader.sequence()? },
            4 => QueueOp::Change {
                queue: reader.queue()?,
                sequence: reader.sequence()?,
                token: reader.token()?,
                visible_at: reader.u64()?,
            },
            5 => QueueOp::Move {
                queue: reader.queue()?,
                sequence: reader.sequence()?,
                to: reader.queue()?,
                arrives: reader.sequence()?,
                sent_at: reader.u64()?,
                is_new: reader.u8()? != 0,
                at: reader.u64()?,
            },
            6 => QueueOp::Purge { queue: reader.queue()?, upto: reader.sequence()?, at: reader.u64()? },
            7 => QueueOp::Put { queue: reader.queue()?, record: reader.bytes()? },
            8 => QueueOp::Drop { queue: reader.queue()?, at: reader.u64()? },
            9 => QueueOp::Task { task: reader.bytes()? },
            other => return Err(QueueRecordError::Unknown(other)),
        })
    }
}

/// The operations of a record.
pub(crate) fn read(record: &[u8]) -> Result<Vec<QueueOp>, QueueRecordError> {
    let mut reader = Reader { bytes: record };
    let mut ops = Vec::new();
    while !reader.bytes.is_empty() {
        ops.push(QueueOp::read(&mut reader)?);
    }
    Ok(ops)
}

fn put_u64s<const N: usize>(out: &mut Vec<u8>, fields: [u64; N]) {
    for field in fields {
        out.extend_from_slice(&field.to_le_bytes());
    }
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    let length = u32::try_from(bytes.len()).expect("bounded far below");
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(bytes);
}

struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], QueueRecordError> {
        let (taken, rest) = self.bytes.split_at_checked(count).ok_or(QueueRecordError::Short)?;
        self.bytes = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], QueueRecordError> {
        Ok(self.take(N)?.try_into().expect("as many as asked for"))
    }

    fn u8(&mut self) -> Result<u8, QueueRecordError> {
        self.array().map(|[byte]| byte)
    }

    fn u16(&mut self) -> Result<u16, QueueRecordError> {
        self.array().map(u16::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, QueueRecordError> {
        self.array().map(u64::from_le_bytes)
    }

    fn queue(&mut self) -> Result<QueueId, QueueRecordError> {
        self.u64().map(QueueId)
    }

    fn sequence(&mut self) -> Result<Sequence, QueueRecordError> {
        self.u64().map(Sequence)
    }

    fn token(&mut self) -> Result<Token, QueueRecordError> {
        self.array().map(|bytes| Token(u32::from_le_bytes(bytes)))
    }

    fn key(&mut self) -> Result<DeduplicationKey, QueueRecordError> {
        self.array().map(DeduplicationKey)
    }

    fn name(&mut self) -> Result<Arc<str>, QueueRecordError> {
        let length = self.u8()?;
        let name = self.take(usize::from(length))?;
        std::str::from_utf8(name).map(Arc::from).map_err(|_| QueueRecordError::Text)
    }

    fn bytes(&mut self) -> Result<Bytes, QueueRecordError> {
        let length = u32::from_le_bytes(self.array()?);
        Ok(Bytes::copy_from_slice(self.take(length as usize)?))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn every_op() -> Vec<QueueOp> {
        let (queue, sequence) = (QueueId(1), Sequence(2));
        let arrival = Arrival {
            sequence,
            number: Number(3),
            sent_at: 4,
            visible_at: 5,
            group: Some("group".into()),
            deduplication: Some(DeduplicationKey([6; 16])),
        };
        let plain = Arrival { group: None, deduplication: None, ..arrival.clone() };
        let token = Token(7);
        vec![
            QueueOp::Send { queue, arrival, content: Bytes::from_static(b"content") },
            QueueOp::Send { queue, arrival: plain, content: Bytes::new() },
            QueueOp::Receive { queue, sequence, token, receives: 8, at: 9, visible_at: 10 },
            QueueOp::Delete { queue, sequence },
            QueueOp::Change { queue, sequence, token, visible_at: 11 },
            QueueOp::Move {
                queue,
                sequence,
                to: QueueId(12),
                arrives: Sequence(13),
                sent_at: 14,
                is_new: true,
                at: 15,
            },
            QueueOp::Purge { queue, upto: sequence, at: 16 },
            QueueOp::Put { queue, record: Bytes::from_static(b"{}") },
            QueueOp::Drop { queue, at: 17 },
            QueueOp::Task { task: Bytes::from_static(b"{}") },
            QueueOp::Nothing,
        ]
    }

    fn written(ops: &[QueueOp]) -> Vec<u8> {
        let mut out = Vec::new();
        ops.iter().for_each(|op| op.write(&mut out));
        out
    }

    #[test]
    fn a_round_is_read_as_it_was_written() {
        assert_eq!(read(&written(&every_op())), Ok(every_op()));
        assert_eq!(read(&[]), Ok(vec![]));
    }

    #[test]
    fn an_operation_that_is_cut_is_refused_wherever_that_is() {
        for op in every_op() {
            let bytes = written(&[op]);
            for length in 1..bytes.len() {
                assert_eq!(read(&bytes[..length]), Err(QueueRecordError::Short));
            }
        }
        assert_eq!(read(&[10]), Err(QueueRecordError::Unknown(10)));
    }

    #[test]
    fn the_bytes_of_a_send_stay_what_they_are() {
        let bytes = written(&every_op()[1..2]);
        let mut expected = vec![1];
        for field in [1_u64, 2, 3, 4, 5] {
            expected.extend_from_slice(&field.to_le_bytes());
        }
        expected.extend_from_slice(&[0, 0, 0, 0, 0]);
        assert_eq!(bytes, expected);
    }

    proptest! {
        #[test]
        fn no_bytes_make_reading_panic(bytes: Vec<u8>) {
            let _ = read(&bytes);
        }
    }
}
