//! What a fuzzer runs: what of queues lies on disk, and the receipts that clients bring back.

use crate::deduplication::DeduplicationKey;
use crate::ids::{Number, QueueId, Receipt, Secret, Sequence, Token};
use crate::queue::Arrival;
use crate::record::{self, QueueOp};

/// A round of operations in the journal.
pub fn records(data: &[u8]) {
    let ops = match record::read(data) {
        Ok(ops) => ops,
        Err(why) => return assert!(!why.to_string().is_empty()),
    };
    let mut written = Vec::new();
    ops.iter().for_each(|op| op.write(&mut written));
    assert_eq!(record::read(&written), Ok(ops));
}

/// A receipt of a client, and one that was given out with some bits of it flipped: it is known as it was, or not at
/// all.
pub fn receipts(data: &[u8]) {
    let secret = Secret([7; 32]);
    let receipt = Receipt { queue: QueueId(1), sequence: Sequence(2), token: Token(3), place: 4 };
    if let Ok(text) = std::str::from_utf8(data)
        && let Ok(read) = secret.read(text)
    {
        // The fuzzer reads along where texts are compared.
        assert_eq!(read, receipt, "nobody knows the secret");
    }
    let given = secret.write(&receipt);
    let flipped: Vec<u8> =
        given.bytes().enumerate().map(|(at, byte)| byte ^ data.get(at).copied().unwrap_or(0)).collect();
    match std::str::from_utf8(&flipped) {
        Ok(text) if text == given => assert_eq!(secret.read(text), Ok(receipt)),
        Ok(text) => assert!(secret.read(text).is_err(), "{text} for {given}"),
        Err(_) => {}
    }
}

/// Bytes for [`records`], and for [`receipts`].
pub fn seeds() -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let (queue, sequence, token) = (QueueId(1), Sequence(2), Token(3));
    let arrival = |is_fifo: bool| Arrival {
        sequence,
        number: Number(4),
        sent_at: 5,
        visible_at: 6,
        group: is_fifo.then(|| "group".into()),
        deduplication: is_fifo.then_some(DeduplicationKey([9; 16])),
    };
    let content = bytes::Bytes::from_static(b"content");
    let ops = [
        QueueOp::Send { queue, arrival: arrival(true), content: content.clone() },
        QueueOp::Send { queue, arrival: arrival(false), content: content.clone() },
        QueueOp::Receive { queue, sequence, token, receives: 1, at: 7, visible_at: 8 },
        QueueOp::Delete { queue, sequence },
        QueueOp::Change { queue, sequence, token, visible_at: 9 },
        QueueOp::Move { queue, sequence, to: QueueId(2), arrives: sequence, sent_at: 5, is_new: true, at: 7 },
        QueueOp::Purge { queue, upto: sequence, at: 7 },
        QueueOp::Put { queue, record: content.clone() },
        QueueOp::Drop { queue, at: 7 },
        QueueOp::Task { task: content },
        QueueOp::Nothing,
    ];
    let written = |op: &QueueOp| {
        let mut bytes = Vec::new();
        op.write(&mut bytes);
        bytes
    };
    let each: Vec<Vec<u8>> = ops.iter().map(written).collect();
    let all = each.concat();
    (each.into_iter().chain([all]).collect(), vec![b"AgEAAAAAAAAA".to_vec(), vec![0; 60]])
}
