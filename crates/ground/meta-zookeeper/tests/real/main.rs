//! Against a real ZooKeeper. One program: the server is started once for all tests that need it whole, at a port
//! that is free, and ends with it.

#![allow(clippy::disallowed_methods)] // tests of real processes

#[path = "../../../../log/bookkeeper/tests/real/cluster.rs"]
mod cluster;
mod rights;
mod turns;

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bytes::Bytes;
use cluster::Cluster;
use tailwater_env::Env;
use tailwater_meta::{Expect, Meta, Op, UNREADABLE, WatchEnd, conformance};
use tailwater_meta_zookeeper::{MetadataUri, NodeMembership, NodeRecord, ZooKeeperMeta};
use zookeeper_client::Client;

static SERVER: LazyLock<Cluster> = LazyLock::new(Cluster::zookeeper);

/// Where a test has its metadata.
fn place(server: &Cluster, name: &str) -> MetadataUri {
    format!("zookeeper://{}/{name}", server.zookeeper).parse().expect("a place")
}

fn record(id: &str) -> NodeRecord {
    NodeRecord {
        id: id.to_owned(),
        name: format!("node-{id}"),
        program: "tailwater".to_owned(),
        started_ms: 0,
        addresses: Vec::new(),
        active: false,
        shares: Default::default(),
    }
}

async fn join(uri: &MetadataUri, id: &str) -> NodeMembership {
    join_as(uri, id, false).await
}

/// A process that shares its turn, or does not.
async fn join_as(uri: &MetadataUri, id: &str, shared: bool) -> NodeMembership {
    let session = Duration::from_secs(2);
    NodeMembership::join(&Env::real(), uri.clone(), session, record(id), shared, |_| {})
        .await
        .expect("it can be used")
}

/// A process that has its turn.
async fn take_turn(uri: &MetadataUri, id: &str) -> (NodeMembership, ZooKeeperMeta) {
    let membership = join(uri, id).await;
    let meta = membership.take_turn(|_| {}).await;
    (membership, meta)
}

/// A client that goes by no rules.
async fn raw(server: &Cluster) -> Client {
    Client::connect(&server.zookeeper).await.expect("it is there")
}

fn put(key: &str, value: impl Into<Bytes>) -> Vec<Op> {
    vec![Op::Put { key: key.to_owned(), value: value.into(), expect: Expect::Any }]
}

async fn value(meta: &ZooKeeperMeta, key: &str) -> Option<Bytes> {
    meta.get(key).await.expect("available").map(|found| found.value)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_is_what_the_contract_says() {
    let (_membership, meta) = take_turn(&place(&SERVER, "conformance"), "a").await;
    conformance::check(&Env::real(), Arc::new(meta)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_value_that_can_not_be_read_keeps_nobody_from_the_others_and_can_be_replaced() {
    let (_membership, meta) = take_turn(&place(&SERVER, "unreadable"), "a").await;
    let client = raw(&SERVER).await;
    for (key, value) in [("a/good", 1), ("a/later", 2), ("a/parts", 3)] {
        let length = if key == "a/parts" { 1 << 20 } else { 1 };
        meta.commit(put(key, vec![value; length])).await.expect("committed");
    }
    let mut events = meta.watch("a/").await.expect("watched");
    client.set_data("/unreadable/keys/a/=later", b"\x09 of a later version", None).await.expect("set");
    let parts = client.list_children("/unreadable/parts").await.expect("listed").remove(0);
    let parts = format!("/unreadable/parts/{parts}");
    for part in client.list_children(&parts).await.expect("listed") {
        client.delete(&format!("{parts}/{part}"), None).await.expect("deleted");
    }
    let listed = meta.list("a/").await.expect("listed");
    let values: Vec<&[u8]> = listed.iter().map(|(_, found)| &found.value[..]).collect();
    assert_eq!(values, [&[1][..], UNREADABLE, UNREADABLE]);
    let refused = meta.get("a/later").await.expect_err("it can't be read").to_string();
    assert!(refused.contains("a/later") && refused.contains("upgrade"), "{refused}");
    assert_eq!(events.next().await, Err(WatchEnd::Lagged), "to be listed");
    let expect = Expect::Version(listed[1].1.version);
    let anew = Op::Put { key: "a/later".to_owned(), value: Bytes::from_static(b"anew"), expect };
    meta.commit(vec![anew]).await.expect("committed");
    assert_eq!(value(&meta, "a/later").await, Some(Bytes::from_static(b"anew")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parts_of_large_values_go_with_them_and_what_a_crash_leaves_goes_with_the_next_turn() {
    let uri = place(&SERVER, "parts");
    let (membership, meta) = take_turn(&uri, "a").await;
    let client = raw(&SERVER).await;
    let large = |byte: u8| Bytes::from(vec![byte; 1 << 20]);
    let parts = async || client.list_children("/parts/parts").await.expect("listed");
    meta.commit(put("large", large(1))).await.expect("committed");
    assert_eq!(parts().await.len(), 1);
    meta.commit(put("large", large(2))).await.expect("committed");
    let named = parts().await;
    assert_eq!((named.len(), value(&meta, "large").await), (1, Some(large(2))));
    // A process that is killed between the parts and the transaction that names them.
    let options = zookeeper_client::CreateMode::Persistent.with_acls(zookeeper_client::Acls::anyone_all());
    client.create("/parts/parts/nobody", b"large", &options).await.expect("created");
    client.create("/parts/parts/nobody/0", b"x", &options).await.expect("created");
    membership.leave().await;
    drop((membership, meta));

    let (_membership, meta) = take_turn(&uri, "b").await;
    while parts().await != named {
        Env::real().sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(value(&meta, "large").await, Some(large(2)));
    meta.commit(vec![Op::Delete { key: "large".to_owned(), expect: Expect::Present }])
        .await
        .expect("committed");
    assert_eq!(parts().await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_value_that_something_else_has_written_is_an_error_that_names_it() {
    let (_membership, meta) = take_turn(&place(&SERVER, "damaged"), "a").await;
    meta.commit(put("log/segments", "x")).await.expect("committed");
    let client = raw(&SERVER).await;
    client.set_data("/damaged/keys/log/=segments", b"\x09", None).await.expect("set");
    let error = meta.get("log/segments").await.expect_err("unreadable").to_string();
    assert!(error.contains("log/segments") && error.contains("a later version"), "{error}");
}
