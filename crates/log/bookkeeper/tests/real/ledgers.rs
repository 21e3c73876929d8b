//! What is written is read, whatever dies meanwhile.

use std::time::Duration;

use bytes::Bytes;
use tailwater_bookkeeper::digest::DigestKind;
use tailwater_bookkeeper::limits::ENTRY_BYTES_MAX;
use tailwater_bookkeeper::{
    BookKeeper, EntryId, LedgerFault, LedgerOptions, LedgerStatus, LedgerTimes, LedgerWriter, Quorums,
};
use tailwater_env::Env;

use crate::cluster;

pub const PASSWORD: &[u8] = b"secret";

pub fn options(ensemble: usize, write: usize, ack: usize) -> LedgerOptions {
    LedgerOptions {
        quorums: Quorums::new(ensemble, write, ack).expect("in order"),
        digest: DigestKind::Crc32c,
        password: Bytes::from_static(PASSWORD),
        custom: [("stream".to_owned(), Bytes::from_static(b"orders"))].into(),
    }
}

pub fn payload(entry: i64) -> Bytes {
    Bytes::from(format!("entry {entry}"))
}

/// Sends entries, and waits until the last one is acknowledged.
pub async fn append(writer: &LedgerWriter, entries: std::ops::Range<i64>) {
    let mut pending = Vec::new();
    for entry in entries.clone() {
        pending.push(writer.send(payload(entry)).await.expect("it is open"));
    }
    for (entry, pending) in entries.zip(pending) {
        assert_eq!(pending.acknowledged().await.expect("acknowledged").get(), entry);
    }
}

/// Everything up to the LAC.
pub async fn read_all(client: &BookKeeper, ledger: tailwater_bookkeeper::LedgerId) -> Vec<Bytes> {
    let reader = client.open(ledger, PASSWORD).await.expect("it is there");
    let mut read = Vec::new();
    loop {
        let entries = reader.read_range(EntryId::new(read.len() as i64)).await.expect("it can be read");
        if entries.is_empty() {
            return read;
        }
        read.extend(entries.into_iter().map(|entry| entry.payload));
    }
}

fn expected(entries: i64) -> Vec<Bytes> {
    (0..entries).map(payload).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_appended_is_read_and_the_closed_ledger_says_how_much_that_is() {
    let client = cluster().client().await;
    for (ensemble, write, ack) in [(3, 3, 2), (5, 3, 2), (1, 1, 1)] {
        let writer = client.create(&options(ensemble, write, ack)).await.expect("bookies are there");
        let ledger = writer.ledger();
        append(&writer, 0..100).await;
        assert_eq!(writer.close().await, Ok(EntryId::new(99)));
        assert_eq!(read_all(&client, ledger).await, expected(100));
        let metadata = client.ledgers().read(ledger).await.expect("it is there").metadata;
        let length = expected(100).iter().map(|payload| payload.len() as u64).sum();
        assert_eq!(metadata.state, LedgerStatus::Closed { last: EntryId::new(99), length });
        assert_eq!(metadata.custom["stream"], "orders");
        client.delete(ledger).await.expect("it is there");
        assert!(matches!(client.open(ledger, PASSWORD).await.err(), Some(LedgerFault::NoLedger)));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_entries_come_with_one_request_and_the_same_ones_with_one_each() {
    let patience = Duration::from_secs(300);
    // Entries that are read together are not given up because this machine is busy.
    let speculative = Duration::from_secs(30);
    let times = LedgerTimes { entry: patience, read: patience, speculative, ..LedgerTimes::default() };
    let client = BookKeeper::connect(Env::real(), cluster().uri(), times).await.expect("ZooKeeper is there");
    let writer = client.create(&options(3, 3, 3)).await.expect("bookies are there");
    append(&writer, 0..3_000).await;
    let ledger = writer.ledger();
    writer.close().await.expect("it closes");
    let reader = client.open(ledger, PASSWORD).await.expect("it is there");
    let mut read = Vec::new();
    while read.len() < 3_000 {
        let some = reader.read_some(EntryId::new(read.len() as i64), 500, 1 << 20).await;
        let some = some.expect("it can be read");
        assert!((1..=500).contains(&some.len()), "{}", some.len());
        read.extend(some.into_iter().map(|entry| entry.payload));
    }
    assert_eq!(read, expected(3_000));
    // Another test may have killed a bookie, whose part comes one by one.
    let batched = client.entries_batched();
    assert!(batched >= 500, "{batched}");
    let few = reader.read_some(EntryId::FIRST, 500, 1_000).await.expect("it can be read");
    assert!(few.len() < 100, "{} within 1000 bytes", few.len());
    let batched = client.entries_batched();
    let singly = client.clone().with_batches(false);
    assert_eq!(read_all(&singly, ledger).await, expected(3_000));
    assert_eq!(client.entries_batched(), batched);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_follows_the_writer_and_sees_the_last_entry_without_another_one() {
    let client = cluster().client().await;
    let writer = client.create(&options(4, 3, 2)).await.expect("bookies are there");
    let reader = client.open(writer.ledger(), PASSWORD).await.expect("it is there");
    assert_eq!(reader.lac().await, EntryId::NONE);
    for entry in 0..20 {
        append(&writer, entry..entry + 1).await;
        // Nothing follows it: the LAC is told by itself.
        let lac = reader.wait_beyond(EntryId::new(entry - 1)).await.expect("bookies answer");
        assert_eq!(lac.get(), entry);
        assert_eq!(reader.read(lac).await.expect("it is there").payload, payload(entry));
    }
    let none = reader.read(EntryId::new(20)).await;
    assert_eq!(none, Err(LedgerFault::NoEntry(EntryId::new(20), EntryId::new(19))));
    writer.close().await.expect("it closes");
    assert_eq!(reader.wait_beyond(EntryId::new(19)).await, Ok(EntryId::new(19)));
    assert!(reader.is_closed().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_recovers_shuts_the_writer_out_and_keeps_what_was_acknowledged() {
    let client = cluster().client().await;
    for (ensemble, write, ack) in [(3, 3, 2), (5, 3, 2)] {
        let writer = client.create(&options(ensemble, write, ack)).await.expect("bookies are there");
        let ledger = writer.ledger();
        append(&writer, 0..50).await;
        // Two at a time: both find the same end.
        let other = cluster().client().await;
        let (one, two) = tokio::join!(client.recover(ledger, PASSWORD), other.recover(ledger, PASSWORD));
        let metadata = one.expect("bookies answer");
        assert_eq!(metadata.state, two.expect("bookies answer").state);
        assert!(matches!(metadata.state, LedgerStatus::Closed { last, .. } if last.get() == 49));
        assert_eq!(writer.append(payload(50)).await, Err(LedgerFault::Fenced));
        assert_eq!(read_all(&client, ledger).await, expected(50));
        assert_eq!(writer.close().await, Err(LedgerFault::Fenced));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_longest_entry_is_taken_and_a_longer_one_is_refused_before_it_is_sent() {
    let client = cluster().client().await;
    let writer = client.create(&options(3, 3, 2)).await.expect("bookies are there");
    let longest = Bytes::from(vec![7; ENTRY_BYTES_MAX]);
    assert_eq!(writer.append(longest.clone()).await, Ok(EntryId::FIRST));
    let longer = Bytes::from(vec![7; ENTRY_BYTES_MAX + 1]);
    assert_eq!(writer.append(longer).await, Err(LedgerFault::TooLong(ENTRY_BYTES_MAX + 1)));
    append(&writer, 1..2).await;
    let ledger = writer.ledger();
    writer.close().await.expect("it closes");
    assert!(read_all(&client, ledger).await == [longest, payload(1)], "other entries");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_empty_ledger_is_recovered_and_another_password_is_refused() {
    let client = cluster().client().await;
    let writer = client.create(&options(3, 3, 2)).await.expect("bookies are there");
    let ledger = writer.ledger();
    assert!(matches!(client.recover(ledger, b"other").await, Err(LedgerFault::Unauthorized)));
    let metadata = client.recover(ledger, PASSWORD).await.expect("bookies answer");
    assert_eq!(metadata.state, LedgerStatus::Closed { last: EntryId::NONE, length: 0 });
    assert_eq!(writer.append(payload(0)).await, Err(LedgerFault::Fenced));
    let too_many = client.create(&options(40, 3, 2)).await.err();
    assert!(matches!(too_many, Some(LedgerFault::TooFewBookies { need: 40, .. })));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bookie_dies_and_its_place_is_taken_by_another_one_under_load() {
    let client = cluster().client().await;
    let writer = client.create(&options(3, 3, 2)).await.expect("bookies are there");
    let ledger = writer.ledger();
    append(&writer, 0..100).await;
    let victim = writer.metadata().last_ensemble().1[1].name().to_owned();
    let mut pending = Vec::new();
    for entry in 100..300 {
        pending.push(writer.send(payload(entry)).await.expect("it is open"));
    }
    let number = cluster().kill(&victim);
    for entry in 300..500 {
        pending.push(writer.send(payload(entry)).await.expect("it is open"));
    }
    for (entry, pending) in (100..).zip(pending) {
        assert_eq!(pending.acknowledged().await.expect("acknowledged").get(), entry);
    }
    assert!(writer.metadata().last_ensemble().1.iter().all(|bookie| bookie.name() != victim));
    // While it is dead the ledger is recovered, by somebody else, and read.
    let other = cluster().client().await;
    let metadata = other.recover(ledger, PASSWORD).await.expect("enough bookies answer");
    assert!(metadata.ensembles().count() > 1);
    assert_eq!(read_all(&other, ledger).await, expected(500));
    cluster().restart(number);
    assert_eq!(read_all(&client, ledger).await, expected(500));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_scan_has_what_any_client_created_before_and_reads_it_by_the_session_that_has_seen_it() {
    let (one, other) = (cluster().client().await, cluster().client().await);
    for _ in 0..8 {
        let kept = one.create(&options(1, 1, 1)).await.expect("bookies are there");
        let deleted = one.create(&options(1, 1, 1)).await.expect("bookies are there");
        let scan = other.ledgers().scan().await.expect("ZooKeeper answers");
        for ledger in [kept.ledger(), deleted.ledger()] {
            assert!(scan.ledgers().contains(&ledger));
            assert!(scan.read(ledger).await.is_ok());
        }
        one.delete(deleted.ledger()).await.expect("it is there");
        assert_eq!(other.ledgers().read_latest(deleted.ledger()).await.err(), Some(LedgerFault::NoLedger));
        assert_eq!(scan.read(deleted.ledger()).await.err(), Some(LedgerFault::NoLedger));
        one.delete(kept.ledger()).await.expect("it is there");
    }
}
