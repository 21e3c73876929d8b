//! `tailwater segment` on a real BookKeeper cluster, which other tests have, too.

#[path = "../../../../log/bookkeeper/tests/real/cluster.rs"]
pub mod cluster;

use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use serde_json::Value;
use tailwater_bookkeeper::digest::DigestKind;
use tailwater_bookkeeper::{BookKeeper, LedgerFault, LedgerOptions, LedgerWriter, Quorums};

use self::cluster::Cluster;
use crate::support::{tailwater, told, wait_for};

/// One bookie may be dead, and ledgers have three.
const BOOKIES: usize = 5;

static CLUSTER: LazyLock<Cluster> = LazyLock::new(|| Cluster::start(BOOKIES));
static ALONE: Mutex<()> = Mutex::new(());

/// The cluster, started by whoever needs it first.
pub fn cluster() -> &'static Cluster {
    &CLUSTER
}

/// Some tests kill bookies, and others need them: each holds this meanwhile.
pub fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether `tailwater segment COMMAND --store URL` succeeded, and what it said.
pub fn segment(store: &str, args: &[&str]) -> (bool, String, String) {
    told(tailwater().arg("segment").args(args).args(["--store", store]), "")
}

async fn written(client: &BookKeeper, entries: usize) -> LedgerWriter {
    let options = LedgerOptions {
        quorums: Quorums::new(3, 3, 2).expect("in order"),
        digest: DigestKind::Crc32c,
        password: Bytes::from_static(b"secret"),
        custom: [("stream".to_owned(), Bytes::from_static(b"orders"))].into(),
    };
    let writer = client.create(&options).await.expect("bookies are there");
    for _ in 0..entries {
        writer.append(Bytes::from_static(b"ten bytes.")).await.expect("acknowledged");
    }
    writer
}

#[test]
fn ledgers_of_a_cluster_are_listed_described_recovered_and_verified() {
    let (cluster, _alone) = (cluster(), alone());
    let store = cluster.uri().to_string();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let client = runtime.block_on(cluster.client());
    let (closed, open) = runtime.block_on(async {
        let writer = written(&client, 20).await;
        let closed = writer.ledger();
        writer.close().await.expect("it closes");
        (closed, written(&client, 10).await)
    });
    let (closed, ledger) = (closed.to_string(), open.ledger().to_string());

    let (_, listed, errors) = segment(&store, &["ls"]);
    let rows: Vec<Vec<&str>> = listed.lines().skip(1).map(|row| row.split_whitespace().collect()).collect();
    for row in [[&*closed, "closed", "19"], [&*ledger, "open", "-"]] {
        assert!(rows.iter().any(|listed| listed.starts_with(&row)), "{row:?}: {listed}{errors}");
    }
    let (_, described, _) = segment(&store, &["describe", &ledger]);
    assert!(["3/3/2", "crc32c", "orders"].iter().all(|what| described.contains(what)), "{described}");
    assert_eq!(described.matches(" up").count(), 3, "{described}");

    let (_, recovered, errors) = segment(&store, &["recover", &ledger]);
    assert!(recovered.contains("is closed at entry 9, with 100"), "{recovered}{errors}");
    let late = runtime.block_on(open.append(Bytes::from_static(b"late")));
    assert_eq!(late, Err(LedgerFault::Fenced));
    let (_, again, _) = segment(&store, &["recover", &ledger]);
    assert!(again.contains("already closed at entry 9"), "{again}");

    let (whole, verified, errors) = segment(&store, &["verify", &closed, &ledger, "--output", "json"]);
    let documents: Vec<Value> =
        verified.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert!(whole, "{verified}{errors}");
    assert_eq!(
        (documents.len(), &documents[0]["copies"], &documents[1]["bytes"]),
        (2, &60.into(), &100.into())
    );

    let victim = a_bookie_of(&store, &closed);
    let number = cluster.kill(&victim);
    let (whole, verified, errors) = segment(&store, &["verify", &closed]);
    assert!(!whole && errors.contains("1 ledger is not whole"), "{verified}{errors}");
    assert!(verified.contains(&format!("at {victim}: its bookie does not answer")), "{verified}");
    cluster.restart(number);
    // It listens before it answers.
    wait_for("the ledger to be whole again", || segment(&store, &["verify", &closed]).0.then_some(()));

    let (ok, _, errors) = segment(&store, &["describe", "123456"]);
    assert!(!ok && errors.contains("ledger 123456: there is no such ledger"), "{errors}");
    let (ok, _, errors) = segment(&store.replace("/ledgers", "/nothing"), &["ls"]);
    assert!(!ok && errors.contains("/nothing/LAYOUT is not there"), "{errors}");
}

/// A bookie of a ledger.
fn a_bookie_of(store: &str, ledger: &str) -> String {
    let (_, described, _) = segment(store, &["describe", ledger, "--output", "json"]);
    let described: Value = serde_json::from_str(&described).expect("JSON");
    described["ensembles"][0]["bookies"][0].as_str().expect("a name").to_owned()
}

#[test]
fn a_store_that_is_none_is_refused_by_name() {
    let (ok, _, errors) = segment("http://127.0.0.1:2181/ledgers", &["ls"]);
    assert!(!ok && errors.contains("bookkeeper://HOST[:PORT]"), "{errors}");
    let (ok, _, errors) = segment("bookkeeper://127.0.0.1:1/ledgers", &["recover", "7"]);
    assert!(!ok && errors.contains("bookkeeper://127.0.0.1:1/ledgers: ZooKeeper"), "{errors}");
    let (ok, _, errors) = segment("bookkeeper://127.0.0.1:1/ledgers", &["gc"]);
    assert!(!ok && errors.contains("no metadata is named: give --metadata zookeeper://"), "{errors}");
}
