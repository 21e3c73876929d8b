//! A region begins anew, and a replica comes back whose disk is from before that; programs of two versions meet.

mod common;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;

use bytes::{Bytes, BytesMut};
use tailwater_broadcast::client::{ListenError, Listener, Publisher, Received, Sharing};
use tailwater_broadcast::frame;
use tailwater_broadcast::message::{Chain, Member, Message, Role, VERSION};
use tailwater_broadcast::replica::{Config, Dropped, Peer, Replica, ReplicaOutput};
use tailwater_broadcast::{Content, Durability, Positions, Stream, Writer};
use tailwater_broadcast_server::disk::{Disk, DiskOptions, KeeperHappened};
use tailwater_broadcast_server::{ConfigurationAt, ReplicaServerConfig, Server, fresh_id};
use tailwater_env::Env;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};

use common::meta;

fn config(env: &Env, configuration: ConfigurationAt) -> ReplicaServerConfig {
    ReplicaServerConfig { silence_ms: 500, ..common::config(env, "a", configuration) }
}

async fn on(address: SocketAddr) -> TcpListener {
    loop {
        // Whoever had it may not have ended yet.
        match TcpListener::bind(address).await {
            Ok(listener) => return listener,
            Err(_) => tokio::task::yield_now().await,
        }
    }
}

fn stream() -> Stream {
    Stream::parse("a/prices").unwrap()
}

async fn publish(env: &Env, server: &Server, texts: &[&'static str]) {
    let publisher = Publisher::new(env, vec![server.address().to_string()]);
    for text in texts {
        let content = Content { payload: Bytes::from_static(text.as_bytes()), ..Content::default() };
        publisher.publish(&stream(), &content, None).await.unwrap();
    }
}

async fn heard(env: &Env, server: &Server, count: usize) -> Vec<Bytes> {
    let mut listener = Listener::new(env, vec![server.address().to_string()], Positions::of([stream()]));
    next(&mut listener, count).await
}

async fn next(listener: &mut Listener, count: usize) -> Vec<Bytes> {
    let mut all = Vec::new();
    while all.len() < count {
        let event = listener.get_event().await.unwrap().to_event();
        all.push(event.content().expect("nothing is collected").payload.clone());
    }
    all
}

/// Opens a replica's directory, once whoever had it open has ended.
async fn open(env: &Env, dir: &Path) -> Disk {
    open_of(env, dir, "a").await
}

async fn open_of(env: &Env, dir: &Path, region: &str) -> Disk {
    let lock = dir.join("journal").join("lock");
    while env.disk().open(&lock, tailwater_env::OpenMode::Read).is_ok() && env.disk().lock(&lock).is_err() {
        tokio::task::yield_now().await;
    }
    Disk::open(env, dir, region, DiskOptions::new(Durability::Fsync.into())).unwrap()
}

async fn members(server: &Server, count: usize) {
    let all = move |snapshot: &tailwater_broadcast_server::Snapshot| {
        snapshot.place > 0 && snapshot.chain.members.len() == count
    };
    server.handle().until(all).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_from_before_its_region_began_anew_is_put_aside_and_what_came_since_is_copied() {
    let env = Env::real();
    let ((meta, _meta_dir), dir) = (meta(&env).await, tempfile::tempdir().unwrap());
    let events = dir.path().join("broadcast");
    let any = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let first = Server::start(&env, any, config(&env, ConfigurationAt::Here(meta.clone()))).unwrap();
    let address = first.address();
    let there = ConfigurationAt::There(address.to_string());
    let any = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let late =
        Server::start_with(&env, any, config(&env, there.clone()), Some(open(&env, &events).await)).unwrap();
    members(&late, 2).await;
    publish(&env, &first, &["old 1", "old 2", "old 3"]).await;
    late.stop().await;
    drop(late);
    members(&first, 1).await;
    drop(first);

    // All that had the events in memory are gone; the chain goes further than the disk.
    let first = Server::start(&env, on(address).await, config(&env, ConfigurationAt::Here(meta))).unwrap();
    members(&first, 1).await;
    let new = ["new 1", "new 2", "new 3", "new 4", "new 5"];
    publish(&env, &first, &new).await;
    let any = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let late = Server::start_with(&env, any, config(&env, there), Some(open(&env, &events).await)).unwrap();
    members(&late, 2).await;
    late.handle().until(|snapshot| snapshot.is_tail).await.unwrap();
    assert_eq!(heard(&env, &late, new.len()).await, new);
    late.stop().await;
    drop((late, first));

    // After another start as well, and what was there before can be started from.
    let disk = open(&env, &events).await;
    assert_eq!(disk.streams[&stream()].last(), new.len() as u64);
    let is_aside = |name: &String| name.starts_with("aside-");
    let aside: Vec<String> = env.disk().list(&events).unwrap().into_iter().filter(is_aside).collect();
    assert_eq!(aside.len(), 1, "{aside:?}");
    let before = open(&env, &events.join(&aside[0])).await;
    assert_eq!(before.streams[&stream()].last(), 3);
    assert_ne!((before.id(), before.lineages.own), (disk.id(), disk.lineages.own));
}

/// What a listener hears until it has the last of `new`, which all other events come before.
async fn anew(listener: &mut Listener, new: &[&str]) {
    let told = loop {
        match listener.next().await.unwrap() {
            Received::Anew { region, .. } => break region,
            Received::Events(_, batch) => panic!("{batch:?} came, and nobody said of which lineage"),
            Received::Began(_) | Received::Counts(_) | Received::Removed { .. } | Received::Lost => {}
        }
    };
    assert_eq!(told, "a");
    assert_eq!(next(listener, new.len()).await, new);
    assert_eq!(listener.positions().streams[&stream()].seq, new.len() as u64);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn listeners_of_another_region_are_told_that_one_began_anew_and_get_all_it_has_since_also_if_they_were_away()
 {
    let env = Env::real();
    let ((own_meta, _own), (far_meta, _far)) = (meta(&env).await, meta(&env).await);
    let dir = tempfile::tempdir().unwrap();
    let events = dir.path().join("broadcast");
    let any = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let own = Server::start(&env, any, config(&env, ConfigurationAt::Here(own_meta.clone()))).unwrap();
    let address = own.address();
    let far = ReplicaServerConfig {
        replica: Config::new("b", fresh_id(&env)),
        regions: BTreeMap::from([("a".to_owned(), vec![address.to_string()])]),
        ..config(&env, ConfigurationAt::Here(far_meta))
    };
    let any = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let far = Server::start_with(&env, any, far, Some(open_of(&env, &events, "b").await)).unwrap();
    let at = vec![far.address().to_string()];
    let old = ["old 1", "old 2", "old 3"];
    members(&own, 1).await;
    publish(&env, &own, &old).await;
    let mut stays = Listener::new(&env, at.clone(), Positions::start());
    let mut shares =
        Listener::sharing(&env, at.clone(), Positions::start(), Sharing::default()).await.unwrap();
    for listener in [&mut stays, &mut shares] {
        assert_eq!(next(listener, old.len()).await, old);
    }
    let token = stays.positions().token();
    let mut paper = Listener::new(&env, at.clone(), Positions::parse(&token).unwrap());
    drop(own);

    // All that had the events in memory are gone, and there are more new ones than there were old.
    let own = Server::start(&env, on(address).await, config(&env, ConfigurationAt::Here(own_meta))).unwrap();
    members(&own, 1).await;
    let new = ["new 1", "new 2", "new 3", "new 4", "new 5"];
    publish(&env, &own, &new).await;
    for listener in [&mut stays, &mut shares] {
        anew(listener, &new).await;
    }
    assert_eq!(paper.get_event().await.unwrap_err(), ListenError::Anew("a".to_owned()));
    assert_eq!(next(&mut paper, new.len()).await, new);
    // One that was away, and then shares or not.
    let back = || Positions::parse(&token).unwrap();
    anew(&mut Listener::new(&env, at.clone(), back()), &new).await;
    anew(&mut Listener::sharing(&env, at, back(), Sharing::default()).await.unwrap(), &new).await;

    far.stop().await;
    drop(far);
    let disk = open_of(&env, &events, "b").await;
    assert_eq!(disk.streams[&stream()].last(), new.len() as u64);
    let is_aside = |name: &String| name.starts_with("aside-");
    let aside: Vec<String> = env.disk().list(&events).unwrap().into_iter().filter(is_aside).collect();
    assert!(matches!(&aside[..], [one] if one.ends_with("-a")), "{aside:?}");
    // A replica of the region itself can be started on it.
    let before = open(&env, &events.join(&aside[0])).await;
    assert_eq!(before.streams[&stream()].last(), old.len() as u64);
    assert!(before.lineages.own < disk.lineages.others["a"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_survivors_have_is_read_and_added_to_after_the_node_that_kept_the_chain_lost_all_it_had() {
    let env = Env::real();
    let ((kept, _kept), dir) = (meta(&env).await, tempfile::tempdir().unwrap());
    let any = async || TcpListener::bind("127.0.0.1:0").await.unwrap();
    let disk = async |name: &str| Some(open(&env, &dir.path().join(name)).await);
    let here = config(&env, ConfigurationAt::Here(kept));
    let keeps = Server::start_with(&env, any().await, here, disk("keeps").await).unwrap();
    let address = keeps.address();
    members(&keeps, 1).await;
    let there = config(&env, ConfigurationAt::There(address.to_string()));
    let mut survivors = Vec::new();
    for (count, name) in [(2, "second"), (3, "third")] {
        let joins = Server::start_with(&env, any().await, there.clone(), disk(name).await).unwrap();
        members(&joins, count).await;
        survivors.push(joins);
    }
    let old = ["old 1", "old 2", "old 3"];
    publish(&env, &keeps, &old).await;
    let at: Vec<String> = survivors.iter().map(|server| server.address().to_string()).collect();
    let mut stays = Listener::new(&env, at, Positions::of([stream()]));
    assert_eq!(next(&mut stays, old.len()).await, old);
    let before = keeps.handle().until(|_| true).await.unwrap().chain;
    drop(keeps);

    // Its disk, and the metadata on it, are replaced by empty ones.
    let (lost, _lost) = meta(&env).await;
    let here = config(&env, ConfigurationAt::Here(lost));
    let keeps = Server::start_with(&env, on(address).await, here, disk("replaced").await).unwrap();
    members(&keeps, 3).await;
    let after = keeps.handle().until(|_| true).await.unwrap().chain;
    assert!(after.lineage > before.lineage && after.epoch > before.epoch, "{before:?} {after:?}");
    assert_ne!(after.head(), before.head());
    publish(&env, &keeps, &["new"]).await;
    let all = [&old[..], &["new"]].concat();
    assert_eq!(heard(&env, &keeps, all.len()).await, all);
    anew(&mut stays, &all).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_of_another_version_is_told_which_one_is_spoken_here_and_ended() {
    let env = Env::real();
    let (meta, _dir) = meta(&env).await;
    let any = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = Server::start(&env, any, config(&env, ConfigurationAt::Here(meta))).unwrap();
    let mut connection = TcpStream::connect(server.address()).await.unwrap();
    let mut hello = BytesMut::new();
    let role = Role::Client(7);
    Message::Hello { version: 1, region: "client".to_owned(), role }.encode(&mut hello);
    connection.write_all(&hello).await.unwrap();
    let (mut reader, _writer) = frame::split(connection).unwrap();
    let answer = reader.next().await.unwrap();
    assert!(matches!(answer, Some(Message::Hello { version: VERSION, .. })), "{answer:?}");
    assert_eq!(reader.next().await.unwrap(), None);
}

/// What a replica of a region had of lineage 7, an event, when it joins a chain of another one; and that replica.
fn dropped(region: &str) -> (Dropped, Replica) {
    let chain = |epoch, lineage, members: &[u64], joining: &[u64]| {
        let all = |ids: &[u64]| ids.iter().map(|id| Member { id: *id, address: String::new() }).collect();
        let (members, joining) = (all(members), all(joining));
        Chain { epoch, lineage, region: region.to_owned(), members, joining }
    };
    let config = Config { durability: Durability::Fsync.into(), ..Config::new(region, 2) };
    let mut replica = Replica::new(config);
    replica.configure(0, chain(1, 7, &[2], &[]));
    replica.connected(0, 1, Peer::In("client".to_owned(), Role::Client(9)));
    let mut events = Writer::new(0);
    events.publish(&Content::default(), None).unwrap();
    let stream = Stream::parse(&format!("{region}/prices")).unwrap();
    let batch = events.finish(0);
    replica.receive(0, 1, Message::Publish { stream, client: 9, answered: 0, first: 1, batch });
    replica.configure(0, chain(5, 8, &[4], &[2]));
    replica.connected(0, 8, Peer::Out(region.to_owned(), 4));
    let dropped = replica.outputs().into_iter().find_map(|output| match output {
        ReplicaOutput::SetAside(dropped) => Some(dropped),
        _ => None,
    });
    (dropped.unwrap(), replica)
}

#[tokio::test]
async fn what_a_replica_had_of_its_own_region_is_put_aside_however_much_of_others_waits_for_that() {
    let (env, dir) = (Env::real(), tempfile::tempdir().unwrap());
    let events = dir.path().join("broadcast");
    let mut keeper = open(&env, &events).await.keeper;
    for region in 0..9 {
        keeper.take(ReplicaOutput::SetAside(dropped(&format!("r{region}")).0));
    }
    let (own, replica) = dropped("a");
    keeper.take(ReplicaOutput::SetAside(own));
    let own = events.join(format!("aside-{:016x}", 7));
    loop {
        let happened = keeper.happened().await;
        let is_own = matches!(&happened, KeeperHappened::PutAside(Some(path)) if *path == own);
        keeper.handle(happened, &replica);
        if is_own {
            break;
        }
    }
    assert_eq!(open(&env, &own).await.streams[&stream()].last(), 1);
}
