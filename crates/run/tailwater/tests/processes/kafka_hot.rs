//! Which layer serves Kafka's consumers: memory those at the tail, the durable one those behind it, and neither is in
//! the other's way.

use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use tailwater_format::{BatchBuilder, Codec, batches};

use crate::support::Node;
use crate::support::raw::Raw;

/// Room in memory for the newest records.
const HOT_BYTES: usize = 128 << 10;
/// Bytes of a record, each of which is a batch, and an entry.
const RECORD_BYTES: usize = 8 << 10;
/// Records of a stream that is much larger than that room.
const RECORDS: i64 = 256;
/// What is behind all that can be in memory, also with what one answer has beyond it.
const BEHIND: i64 = RECORDS - 64;
/// Bytes of one answer to who catches up.
const STEP_BYTES: i32 = 64 << 10;

fn batch(number: i64) -> Bytes {
    let mut value = vec![b'.'; RECORD_BYTES];
    value[..8].copy_from_slice(&number.to_be_bytes());
    let mut builder = BatchBuilder::new();
    builder.append(None, Some(&value), &[], number).expect("small");
    builder.finish(Codec::None)
}

/// Bytes that were fetched from memory, and from the durable layer.
fn fetched(node: &Node) -> (f64, f64) {
    let from = |layer: &str| node.metric(&format!("tailwater_kafka_fetched_bytes_total{{from=\"{layer}\"}}"));
    (from("memory").expect("a counter"), from("durable").expect("a counter"))
}

/// Runs something; what it returned, and the bytes that were fetched meanwhile, from memory and from the durable layer.
fn during<T>(node: &Node, run: impl FnOnce() -> T) -> (T, (f64, f64)) {
    let before = fetched(node);
    let result = run();
    let after = fetched(node);
    (result, (after.0 - before.0, after.1 - before.1))
}

/// Reads from one offset on until the next one is at least `end`; that one, and the bytes that came.
fn read(raw: &mut Raw, mut offset: i64, end: i64) -> (i64, f64) {
    let mut bytes = 0;
    while offset < end {
        let records = raw.fetch("s", 0, offset, STEP_BYTES);
        for batch in batches(&records) {
            let header = *batch.expect("whole").header();
            assert_eq!(header.base_offset.0 as i64, offset);
            offset = header.next_offset().0 as i64;
        }
        bytes += records.len();
    }
    (offset, bytes as f64)
}

#[test]
fn who_is_at_the_tail_is_served_from_memory_however_many_catch_up_from_the_durable_layer() {
    const ROUNDS: i64 = 100;
    const CATCHING_UP: usize = 4;
    let dir = tempfile::tempdir().expect("a directory");
    let room = HOT_BYTES.to_string();
    let mut node =
        Node::start_with(&dir.path().join("data"), &[], &[("TAILWATER_KAFKA__HOT_BYTES", room.as_str())]);
    node.run(&["stream", "create", "s"]);
    let mut tail = Raw::connect(&node);
    // Each record is read when it is there.
    let follow = |tail: &mut Raw, numbers: std::ops::Range<i64>| {
        let mut bytes = 0.0;
        for number in numbers {
            assert_eq!(tail.produce("s", 0, batch(number)), number);
            let (next, more) = read(tail, number, number + 1);
            assert_eq!(next, number + 1);
            bytes += more;
        }
        bytes
    };
    let (bytes, (memory, durable)) = during(&node, || follow(&mut tail, 0..RECORDS));
    assert!(bytes > (RECORDS as usize * RECORD_BYTES) as f64);
    assert_eq!((memory, durable), (bytes, 0.0), "all of it at the tail");
    let is_bounded = |node: &Node| {
        let kept = node.metric("tailwater_log_hot_bytes").expect("a gauge");
        assert!(kept > 0.0 && kept <= HOT_BYTES as f64, "{kept} bytes are kept in memory");
    };
    is_bounded(&node);

    // One catches up, from the start, and then goes on at the tail.
    let mut late = Raw::connect(&node);
    let ((next, bytes), (memory, durable)) = during(&node, || read(&mut late, 0, BEHIND));
    assert_eq!((memory, durable), (0.0, bytes), "all of it behind the tail");
    let ((next, _), (memory, _)) = during(&node, || read(&mut late, next, RECORDS));
    assert_eq!(next, RECORDS);
    assert!(memory > 0.0, "it has caught up with what is in memory");
    is_bounded(&node);

    // Many catch up, again and again, while records come and are read at the tail.
    let done = AtomicBool::new(false);
    let ((tail_bytes, late_bytes), (memory, durable)) = during(&node, || {
        std::thread::scope(|scope| {
            let catching_up: [_; CATCHING_UP] = std::array::from_fn(|_| {
                let mut raw = Raw::connect(&node);
                let done = &done;
                scope.spawn(move || {
                    let mut bytes = 0.0;
                    loop {
                        bytes += read(&mut raw, 0, BEHIND).1;
                        if done.load(Ordering::Relaxed) {
                            break bytes;
                        }
                    }
                })
            });
            let tail_bytes = follow(&mut tail, RECORDS..RECORDS + ROUNDS);
            done.store(true, Ordering::Relaxed);
            let late_bytes: f64 = catching_up.into_iter().map(|late| late.join().expect("it read")).sum();
            (tail_bytes, late_bytes)
        })
    });
    assert_eq!((memory, durable), (tail_bytes, late_bytes), "nobody took the other's way");
    is_bounded(&node);

    // After a restart nothing is in memory but what comes from then on.
    assert!(node.process.stop());
    node.restart();
    let mut raw = Raw::connect(&node);
    let end = RECORDS + ROUNDS;
    let ((_, bytes), (memory, durable)) = during(&node, || read(&mut raw, end - 1, end));
    assert_eq!((memory, durable), (0.0, bytes));
    let (bytes, (memory, durable)) = during(&node, || follow(&mut raw, end..end + 1));
    assert_eq!((memory, durable), (bytes, 0.0));
}
