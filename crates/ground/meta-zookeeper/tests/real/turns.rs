//! Whose turn it is, and what becomes of it without ZooKeeper.

use futures::FutureExt;
use tailwater_env::Env;
use tailwater_meta::{Meta, MetaError, WatchEnd};
use tailwater_meta_zookeeper::{MembershipFault, NodeMembership, TurnWait, nodes_at};
use zookeeper_client::{Acls, CreateMode};

use crate::cluster::Cluster;
use crate::{SERVER, join, join_as, place, put, raw, record, take_turn, value};

const PERSISTENT: zookeeper_client::CreateOptions<'static> =
    CreateMode::Persistent.with_acls(Acls::anyone_all());

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_was_taken_for_dead_changes_nothing_once_another_has_its_turn() {
    let uri = place(&SERVER, "taken-over");
    let (_first, old) = take_turn(&uri, "a").await;
    old.commit(put("key", "old")).await.expect("its turn");
    let second = join(&uri, "b").await;
    let (told, mut hears) = tokio::sync::mpsc::unbounded_channel();
    let turn = second.take_turn(|waiting| drop(told.send(waiting)));
    let client = raw(&SERVER).await;
    let ended = async {
        assert_eq!(hears.recv().await, Some(TurnWait::ForActive("node-a (a)".to_owned())), "it stands by");
        // As if its session had ended, of which it does not know.
        loop {
            let _ = client.delete("/taken-over/active", None).await;
            Env::real().sleep(std::time::Duration::from_millis(10)).await;
            // It comes back for as long as nobody has taken over.
            if let Err(MetaError::TakenOver(by)) = old.commit(Vec::new()).await {
                return by;
            }
        }
    };
    let (new, by) = futures::join!(turn, ended);
    assert!(by.contains("node-b"), "{by}");
    assert_eq!(old.taken_over().await, by);
    let refused = old.commit(put("key", "late")).await;
    assert!(matches!(refused, Err(MetaError::TakenOver(_))), "{refused:?}");
    let refused = old.lease("lease", "x".into(), std::time::Duration::from_secs(1)).await;
    assert!(matches!(refused.map(|_| ()), Err(MetaError::TakenOver(_))));
    assert_eq!(value(&new, "key").await.as_deref(), Some(&b"old"[..]));
    new.commit(put("key", "new")).await.expect("its turn");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_turn_that_is_given_up_is_the_next_ones_and_a_directory_takes_its_own_again() {
    let uri = place(&SERVER, "given-up");
    let (first, meta) = take_turn(&uri, "a").await;
    meta.commit(put("key", "kept")).await.expect("its turn");
    // As a process that is killed: its session goes on for a while, and its data directory is opened again.
    let (again, meta) = take_turn(&uri, "a").await;
    assert_eq!(value(&meta, "key").await.as_deref(), Some(&b"kept"[..]));
    let standby = join(&uri, "b").await;
    again.announce(|record| record.addresses.push(("admin".to_owned(), "127.0.0.1:1".to_owned())));
    let nodes = loop {
        let (cluster, nodes) = nodes_at(&Env::real(), uri.clone()).await.expect("there");
        assert_eq!(cluster, again.cluster());
        if nodes.len() == 2 && !nodes[0].addresses.is_empty() {
            break nodes;
        }
        Env::real().sleep(std::time::Duration::from_millis(10)).await;
    };
    let roles: Vec<(&str, bool)> = nodes.iter().map(|node| (&*node.name, node.active)).collect();
    assert_eq!(roles, [("node-a", true), ("node-b", false)]);
    again.leave().await;
    standby.take_turn(|_| {}).await.commit(Vec::new()).await.expect("its turn");
    drop(first);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_that_share_a_turn_all_change_metadata_and_one_that_wants_it_alone_waits_and_shuts_them_out()
 {
    let uri = place(&SERVER, "shared");
    let (first, second) = (join_as(&uri, "a", true).await, join_as(&uri, "b", true).await);
    let (one, other) = (first.take_turn(|_| {}).await, second.take_turn(|_| {}).await);
    one.commit(put("key", "one")).await.expect("it is everybody's turn");
    other.commit(put("key", "other")).await.expect("it is everybody's turn");
    assert_eq!(value(&one, "key").await.as_deref(), Some(&b"other"[..]));
    // What each says of itself the others hear.
    first.announce(|record| record.shares = serde_json::json!({ "owner": 7 }));
    loop {
        let nodes = second.nodes().await.expect("available");
        if nodes.len() == 2
            && nodes.iter().all(|node| node.active)
            && nodes.iter().any(|node| node.shares["owner"] == 7)
        {
            break;
        }
        Env::real().sleep(std::time::Duration::from_millis(10)).await;
    }
    let alone = join(&uri, "c").await;
    let (told, mut hears) = tokio::sync::mpsc::unbounded_channel();
    let turn = alone.take_turn(|waiting| drop(told.send(waiting)));
    let leaving = async {
        let Some(TurnWait::ForActive(by)) = hears.recv().await else { panic!("it waits") };
        assert!(by.contains("node-a") || by.contains("node-b"), "{by}");
        one.commit(put("key", "meanwhile")).await.expect("it waits");
        first.leave().await;
        second.leave().await;
    };
    let (new, ()) = futures::join!(turn, leaving);
    new.commit(put("key", "alone")).await.expect("its turn");
    let refused = other.commit(put("key", "late")).await;
    assert!(matches!(refused, Err(MetaError::TakenOver(_))), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn places_of_something_else_are_refused_by_name_and_missing_ones_are_not_made_by_a_look() {
    let client = raw(&SERVER).await;
    client.create("/other", b"", &PERSISTENT).await.expect("created");
    client.create("/other/available", b"", &PERSISTENT).await.expect("created");
    client.create("/later", b"", &PERSISTENT).await.expect("created");
    client.create("/later/cluster", b"{\"layout\": 2}", &PERSISTENT).await.expect("created");
    client.create("/damaged-cluster", b"", &PERSISTENT).await.expect("created");
    client.create("/damaged-cluster/cluster", b"?", &PERSISTENT).await.expect("created");
    let refused = async |name: &str| {
        let session = std::time::Duration::from_secs(2);
        let joined =
            NodeMembership::join(&Env::real(), place(&SERVER, name), session, record("a"), false, |_| {})
                .await;
        joined.map(|_| ()).expect_err("refused")
    };
    let foreign = refused("other").await;
    assert!(matches!(&foreign, MembershipFault::Foreign { found, .. } if found == "available"), "{foreign}");
    assert!(matches!(refused("later").await, MembershipFault::Layout { found: 2, .. }));
    assert!(matches!(refused("damaged-cluster").await, MembershipFault::Damaged { .. }));
    let missing = nodes_at(&Env::real(), place(&SERVER, "missing")).await.expect_err("nobody was there");
    assert!(missing.to_string().contains("no node was ever started"), "{missing}");
    assert_eq!(client.check_stat("/missing").await, Ok(None));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_zookeeper_commits_wait_and_afterwards_the_turn_and_the_watches_go_on() {
    let server = tokio::task::spawn_blocking(Cluster::zookeeper).await.expect("started");
    let uri = place(&server, "away");
    let (_membership, meta) = take_turn(&uri, "a").await;
    let version = meta.commit(put("key", "before")).await.expect("its turn");
    let mut watch = meta.watch("").await.expect("available");
    server.kill_zookeeper();
    let waiting = meta.commit(put("key", "meanwhile"));
    let restarted = tokio::task::spawn_blocking(move || {
        server.restart_zookeeper();
        server
    });
    let (waited, server) = futures::join!(waiting, restarted);
    // It may be refused on a slow machine, and is known then not to have been made, or not known.
    assert!(matches!(waited, Ok(_) | Err(MetaError::Unavailable(_))), "{waited:?}");
    let after = loop {
        match meta.commit(put("key", "after")).await {
            Ok(after) => break after,
            Err(MetaError::Unavailable(_)) => {}
            Err(other) => panic!("{other}"),
        }
    };
    assert_ne!(after, version);
    loop {
        match watch.next().await {
            Ok(event) if event.value.as_ref().is_some_and(|found| found.version == after) => break,
            Ok(_) => {}
            Err(WatchEnd::Lagged) if value(&meta, "key").await.as_deref() == Some(b"after") => break,
            Err(WatchEnd::Lagged) => {}
            Err(WatchEnd::Closed) => panic!("the store is there"),
        }
    }
    assert!(meta.taken_over().now_or_never().is_none());
    drop(server);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_no_zookeeper_answers_a_process_waits_and_says_so() {
    let port =
        std::net::TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a port");
    let uri = format!("zookeeper://{port}/nowhere").parse().expect("a place");
    let (told, mut heard) = tokio::sync::mpsc::unbounded_channel();
    let session = std::time::Duration::from_secs(1);
    let join = tokio::spawn(async move {
        NodeMembership::join(&Env::real(), uri, session, record("a"), false, |waiting| {
            drop(told.send(waiting))
        })
        .await
    });
    let Some(TurnWait::ForZooKeeper(why)) = heard.recv().await else { panic!("it waits") };
    assert!(why.contains(&port.to_string()) && why.contains("no server of ZooKeeper answers"), "{why}");
    join.abort();
}
