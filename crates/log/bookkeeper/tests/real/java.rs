//! What one client wrote the other opens, tails, fences and recovers.

use tailwater_bookkeeper::{EntryId, LedgerFault, LedgerId, LedgerStatus};

use crate::apache::Java;
use crate::cluster;
use crate::ledgers::{PASSWORD, append, options, payload, read_all};

fn ledger_of(java: &mut Java) -> LedgerId {
    let line = java.line();
    let number = line.strip_prefix("ledger ").and_then(|number| number.parse().ok());
    number.and_then(LedgerId::new).expect(&line)
}

fn java_payloads(entries: i64) -> Vec<String> {
    (0..entries).map(|entry| format!("java {entry}")).collect()
}

async fn read_text(client: &tailwater_bookkeeper::BookKeeper, ledger: LedgerId) -> Vec<String> {
    let read = read_all(client, ledger).await;
    read.iter().map(|payload| String::from_utf8_lossy(payload).into_owned()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_java_wrote_is_read_and_recovered_with_each_digest() {
    let client = cluster().client().await;
    let mut ledgers = Vec::new();
    for (digests, end) in [("CRC32C,DUMMY", "close"), ("CRC32,MAC", "leave")] {
        let mut java = Java::start(cluster(), &["write", "secret", "5", "3", "2", digests, "30", end]);
        for digest in digests.split(',') {
            ledgers.push((digest, ledger_of(&mut java)));
            assert_eq!(java.line(), "written");
        }
        java.rest();
    }
    for (digest, ledger) in ledgers {
        let metadata = client.recover(ledger, PASSWORD).await.expect("bookies answer");
        let length = java_payloads(30).iter().map(|payload| payload.len() as u64).sum();
        assert_eq!(metadata.state, LedgerStatus::Closed { last: EntryId::new(29), length }, "{digest}");
        assert_eq!(read_text(&client, ledger).await, java_payloads(30), "{digest}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ledger_that_java_writes_is_followed_and_then_fenced() {
    let client = cluster().client().await;
    let mut java = Java::start(cluster(), &["write", "secret", "3", "3", "2", "CRC32C", "10", "wait"]);
    let ledger = ledger_of(&mut java);
    assert_eq!(java.line(), "written");
    let reader = client.open(ledger, PASSWORD).await.expect("it is there");
    let mut lac = reader.lac().await;
    while lac.get() < 9 {
        lac = reader.wait_beyond(lac).await.expect("bookies answer");
    }
    let last = reader.read(EntryId::new(9)).await.expect("it is there");
    assert_eq!(&last.payload[..], b"java 9");
    let metadata = client.recover(ledger, PASSWORD).await.expect("bookies answer");
    assert!(matches!(metadata.state, LedgerStatus::Closed { last, .. } if last.get() == 9));
    java.go_on();
    assert_eq!(java.line(), "refused BKLedgerFencedException");
    java.rest();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn java_reads_follows_fences_and_recovers_what_is_written_here() {
    let client = cluster().client().await;
    let closed = client.create(&options(4, 3, 2)).await.expect("bookies are there");
    let ledger = closed.ledger().to_string();
    append(&closed, 0..25).await;
    closed.close().await.expect("it closes");
    let lines = Java::start(cluster(), &["read", "secret", &ledger, "CRC32C", "open"]).rest();
    let length: usize = (0..25).map(|entry| payload(entry).len()).sum();
    assert_eq!(lines[0], format!("last 24 length {length} closed true"));
    assert_eq!(lines[25], "entry 24 entry 24");

    let open = client.create(&options(3, 3, 2)).await.expect("bookies are there");
    let ledger = open.ledger().to_string();
    let mut tail = Java::start(cluster(), &["tail", "secret", &ledger, "CRC32C", "15"]);
    assert_eq!(tail.line(), "tailing");
    append(&open, 0..15).await;
    let lines = tail.rest();
    assert_eq!((lines.len(), &lines[14][..]), (15, "entry 14 entry 14"));

    let lines = Java::start(cluster(), &["read", "secret", &ledger, "CRC32C", "recover"]).rest();
    assert!(lines[0].starts_with("last 14 ") && lines[0].ends_with("closed true"), "{lines:?}");
    assert_eq!(open.append(payload(15)).await, Err(LedgerFault::Fenced));
}
