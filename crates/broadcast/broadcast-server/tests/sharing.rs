//! Listeners that share events with each other, on real connections.

mod common;

use bytes::{Bytes, BytesMut};
use tailwater_broadcast::client::{ListenError, Listener, Publisher, Received, Sharing, SharingStats};
use tailwater_broadcast::message::{Message, Role, VERSION};
use tailwater_broadcast::region::{Member, Options, RegionProgress};
use tailwater_broadcast::{Content, Position, Positions, Stream, region};
use tailwater_broadcast_server::{ConfigurationAt, ReplicaServerConfig, Server, Snapshot};
use tailwater_env::Env;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use common::{config, meta};

async fn start(env: &Env, configuration: ConfigurationAt) -> Server {
    let config =
        ReplicaServerConfig { silence_ms: 500, connections_max: 1_000, ..config(env, "a", configuration) };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    Server::start(env, listener, config).unwrap()
}

fn stream() -> Stream {
    Stream::parse("a/prices").unwrap()
}

fn content(n: u64) -> Content {
    Content { payload: Bytes::copy_from_slice(&n.to_le_bytes()), ..Content::default() }
}

fn options() -> Options {
    Options { gossip_ms: 100, ..Options::default() }
}

async fn share(env: &Env, addresses: &[String], positions: Positions, options: Options) -> Listener {
    let sharing = Sharing { options, ..Sharing::default() };
    Listener::sharing(env, addresses.to_vec(), positions, sharing).await.unwrap()
}

/// Waits until a listener has heard the events with the numbers (`after`, `last`], in order and without a gap.
async fn hear(listener: &mut Listener, after: u64, last: u64) {
    for seq in after + 1..=last {
        let event = listener.get_event().await.unwrap();
        assert_eq!((event.seq(), event.is_tombstone()), (seq, false));
        assert_eq!(event.payload(), seq.to_le_bytes());
    }
}

/// Publishes the events with the numbers (`after`, `last`], some at a time.
async fn publish(publisher: &Publisher, after: u64, last: u64) {
    for seq in after + 1..=last {
        let published = publisher.publish(&stream(), &content(seq), None);
        if seq % 10 == 0 || seq == last {
            let answered = published.await.unwrap();
            assert!(answered.seq == seq || answered.repeated && answered.seq > seq, "{answered:?}");
        }
    }
}

async fn wait_for(server: &Server, holds: impl Fn(&Snapshot) -> bool + Send + 'static) -> Snapshot {
    server.handle().until(holds).await.unwrap()
}

/// Waits until every listener knows a few others.
async fn wait_for_views(listeners: &[Listener], least: usize) {
    for listener in listeners {
        listener.sharing_until(|stats| stats.region.view >= least).await.unwrap();
    }
}

fn sum(listeners: &[Listener]) -> SharingStats {
    listeners.iter().fold(SharingStats::default(), |mut all, listener| {
        let stats = listener.sharing_stats().unwrap();
        all.region.delivered += stats.region.delivered;
        all.region.from_proxy += stats.region.from_proxy;
        all.region.from_peers += stats.region.from_peers;
        all.links += stats.links;
        all
    })
}

async fn hear_all(listeners: &mut [Listener], after: u64, last: u64) {
    futures::future::join_all(listeners.iter_mut().map(|listener| hear(listener, after, last))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thirty_listeners_get_everything_and_less_than_half_of_it_from_the_proxy() {
    let env = Env::real();
    let (meta, _dir) = meta(&env).await;
    let server = start(&env, ConfigurationAt::Here(meta)).await;
    let addresses = vec![server.address().to_string()];
    let mut listeners = Vec::new();
    for n in 0..30 {
        // Nobody turns to the proxy because others have to wait for a processor.
        let options = Options { request_timeout_ms: 30_000, ..options() };
        // Those that have no socket for their host connect through TCP, and so do others to them.
        let sharing = Sharing { options, host_sockets: n % 2 == 0, ..Sharing::default() };
        listeners
            .push(Listener::sharing(&env, addresses.clone(), Positions::start(), sharing).await.unwrap());
    }
    wait_for(&server, |snapshot| snapshot.region.members == 30).await;
    wait_for_views(&listeners, 5).await;
    let publisher = Publisher::new(&env, addresses);
    let publishing = publish(&publisher, 0, 3_000);
    tokio::join!(publishing, hear_all(&mut listeners, 0, 3_000));
    let all = sum(&listeners).region;
    assert_eq!(all.delivered, 30 * 3_000);
    assert!(all.from_proxy * 2 < all.delivered, "{all:?}");
    let snapshot = wait_for(&server, |_| true).await;
    let region = snapshot.region;
    assert!(region.events >= 3_000 && region.events * 2 < all.delivered, "{region:?}");
    assert!(region.bytes > 8 * 3_000 && region.requests > 0 && region.view > 0, "{region:?}");
    for listener in &mut listeners {
        assert_eq!(listener.positions().streams[&stream()].seq, 3_000);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn listeners_that_leave_or_never_read_and_garbage_hurt_nobody() {
    let env = Env::real();
    let (meta, _dir) = meta(&env).await;
    let server = start(&env, ConfigurationAt::Here(meta)).await;
    let addresses = vec![server.address().to_string()];
    let (mut stay, mut leave) = (Vec::new(), Vec::new());
    for _ in 0..10 {
        stay.push(share(&env, &addresses, Positions::start(), options()).await);
        leave.push(share(&env, &addresses, Positions::start(), options()).await);
    }
    // Its application never takes anything.
    let idle = share(&env, &addresses, Positions::start(), options()).await;
    wait_for(&server, |snapshot| snapshot.region.members == 21).await;
    // It says who it is, where nobody answers, asks for everything again and again, and reads nothing.
    let rude = rude(&addresses[0], lineage(&server).await).await;
    wait_for(&server, |snapshot| snapshot.region.members == 22).await;
    wait_for_views(&stay, 5).await;
    let publisher = Publisher::new(&env, addresses.clone());
    publish(&publisher, 0, 500).await;
    hear_all(&mut stay, 0, 500).await;
    let publishing = async {
        for round in 0..10 {
            leave.pop();
            publish(&publisher, 500 + round * 100, 600 + round * 100).await;
        }
    };
    tokio::join!(publishing, hear_all(&mut stay, 500, 1_500));
    for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 64], &[1, 0, 0, 0, 21]] {
        let mut connection = TcpStream::connect(&addresses[0]).await.unwrap();
        connection.write_all(garbage).await.unwrap();
        let mut answer = Vec::new();
        let _ = connection.read_to_end(&mut answer).await;
    }
    publish(&publisher, 1_500, 1_600).await;
    hear_all(&mut stay, 1_500, 1_600).await;
    wait_for(&server, |snapshot| snapshot.region.members <= 12).await;
    drop((idle, rude));
}

/// Of the region's chain.
async fn lineage(server: &Server) -> u64 {
    server.handle().snapshot().await.unwrap().chain.lineage
}

/// A client that shares in name only.
async fn rude(address: &str, lineage: u64) -> TcpStream {
    let mut connection = TcpStream::connect(address).await.unwrap();
    let mut bytes = BytesMut::new();
    let role = Role::Client(66);
    Message::Hello { version: VERSION, region: "client".to_owned(), role }.encode(&mut bytes);
    let member = Member { id: 66, address: "127.0.0.1:1".into() };
    Message::Share { member: member.clone(), positions: Vec::new() }.encode(&mut bytes);
    let gossip = region::Message::Gossip { me: member, view: Vec::new(), answer: false };
    Message::Region(gossip).encode(&mut bytes);
    let progress = RegionProgress { stream: stream(), lineage, held: 0, count: u64::MAX, hops: 1 };
    Message::Region(region::Message::Notify(vec![progress])).encode(&mut bytes);
    for after in 0..10_000 {
        let (stream, up_to, bytes_max) = (stream(), u64::MAX, u32::MAX);
        let request = region::Message::Request { stream, lineage, after, up_to, bytes_max };
        Message::Region(request).encode(&mut bytes);
    }
    connection.write_all(&bytes).await.unwrap();
    connection
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_others_keep_no_longer_is_fetched_from_the_proxy() {
    let env = Env::real();
    let (meta, _dir) = meta(&env).await;
    let server = start(&env, ConfigurationAt::Here(meta)).await;
    let addresses = vec![server.address().to_string()];
    let publisher = Publisher::new(&env, addresses.clone());
    // Each keeps the last few events only.
    let forgetful = Options { recv_bytes: 1_000, ..options() };
    let mut early = Vec::new();
    for _ in 0..5 {
        early.push(share(&env, &addresses, Positions::start(), forgetful.clone()).await);
    }
    publish(&publisher, 0, 1_000).await;
    hear_all(&mut early, 0, 1_000).await;
    let mut late = share(&env, &addresses, Positions::start(), forgetful.clone()).await;
    hear(&mut late, 0, 1_000).await;
    assert!(late.sharing_stats().unwrap().region.from_proxy > 900, "{:?}", late.sharing_stats());
    // Nobody can connect to it: it has the proxy alone.
    let hidden = Sharing { listen: None, options: options(), ..Sharing::default() };
    let mut hidden =
        Listener::sharing(&env, addresses.clone(), Positions::of([stream()]), hidden).await.unwrap();
    hear(&mut hidden, 0, 1_000).await;
    // It goes on from where another one ended, and one begins now.
    let mut resumed = share(&env, &addresses, late.positions().clone(), options()).await;
    let mut now = share(&env, &addresses, Positions::now([stream()]), options()).await;
    let began = loop {
        if let Received::Began(began) = now.next().await.unwrap() {
            break began;
        }
    };
    assert_eq!(began, [(stream(), Position { lineage: lineage(&server).await, seq: 1_000 })]);
    assert_eq!(now.positions().streams[&stream()].seq, 1_000);
    drop(late);
    publish(&publisher, 1_000, 1_100).await;
    for listener in early.iter_mut().chain([&mut hidden, &mut resumed, &mut now]) {
        hear(listener, 1_000, 1_100).await;
    }
    let stats = hidden.sharing_stats().unwrap();
    assert_eq!((stats.region.from_proxy, stats.links), (1_100, 0), "{stats:?}");
    // And it hears how far the proxy is.
    loop {
        if let Received::Counts(counts) = now.next().await.unwrap()
            && counts
                .iter()
                .any(|told| told.stream == stream() && told.count == 1_100 && told.as_of.is_some())
        {
            break;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_tail_dies_under_listeners_that_share_and_nothing_is_lost() {
    let env = Env::real();
    let (meta, _dir) = meta(&env).await;
    let first = start(&env, ConfigurationAt::Here(meta)).await;
    let at = ConfigurationAt::There(first.address().to_string());
    let mut addresses = vec![first.address().to_string()];
    let mut listeners = Vec::new();
    for _ in 0..8 {
        listeners.push(share(&env, &addresses, Positions::start(), options()).await);
    }
    let publisher = Publisher::new(&env, addresses.clone());
    publish(&publisher, 0, 300).await;
    // Another one becomes the tail.
    let second = start(&env, at).await;
    addresses.push(second.address().to_string());
    wait_for(&second, |snapshot| snapshot.is_tail && snapshot.region.members == 8).await;
    publish(&publisher, 300, 600).await;
    hear_all(&mut listeners, 0, 600).await;
    // It dies, and the first one is the tail again.
    let publishing = async {
        publish(&publisher, 600, 700).await;
        drop(second);
        publish(&publisher, 700, 1_200).await;
    };
    tokio::join!(publishing, hear_all(&mut listeners, 600, 1_200));
    wait_for(&first, |snapshot| snapshot.is_tail && snapshot.region.members == 8).await;
    publish(&publisher, 1_200, 1_300).await;
    hear_all(&mut listeners, 1_200, 1_300).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_asks_for_much_and_reads_nothing_is_cut_off() {
    let env = Env::real();
    let (meta, _dir) = meta(&env).await;
    let server = start(&env, ConfigurationAt::Here(meta)).await;
    let addresses = vec![server.address().to_string()];
    let publisher = Publisher::new(&env, addresses.clone());
    let large = Content { payload: vec![7; 1 << 20].into(), ..Content::default() };
    for _ in 0..8 {
        publisher.publish(&stream(), &large, None).await.unwrap();
    }
    let lineage = lineage(&server).await;
    let mut rude = rude(&addresses[0], lineage).await;
    let (stream, after, up_to, bytes_max) = (stream(), 0, u64::MAX, u32::MAX);
    let request = region::Message::Request { stream, lineage, after, up_to, bytes_max };
    let mut bytes = BytesMut::new();
    Message::Region(request).encode(&mut bytes);
    while rude.write_all(&bytes).await.is_ok() {
        tokio::task::yield_now().await;
    }
    let region = wait_for(&server, |snapshot| snapshot.region.members == 0).await.region;
    assert!(region.bytes < 64 << 20, "{region:?}");
}

#[tokio::test]
async fn an_address_that_others_can_not_use_is_refused() {
    let env = Env::real();
    let sharing = Sharing { listen: Some(([0, 0, 0, 0], 0).into()), ..Sharing::default() };
    let refused = Listener::sharing(&env, Vec::new(), Positions::start(), sharing).await.unwrap_err();
    assert!(refused.to_string().contains("advertise"), "{refused}");
}

#[test]
fn a_listener_that_shares_has_ended_when_what_its_tasks_ran_on_has_whether_they_had_begun_or_not() {
    for have_begun in [false, true] {
        let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let first = runtime();
        let env = first.block_on(async { Env::real() });
        let starting = Listener::sharing(&env, Vec::new(), Positions::start(), Sharing::default());
        let mut listener = first.block_on(starting).unwrap();
        if have_begun {
            first.block_on(tokio::task::yield_now());
        }
        drop(first);
        let second = runtime();
        assert!(matches!(second.block_on(listener.next()), Err(ListenError::Ended)), "begun: {have_begun}");
        assert_eq!(second.block_on(listener.sharing_until(|_| false)), None);
    }
}
