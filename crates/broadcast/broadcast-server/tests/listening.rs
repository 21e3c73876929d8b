//! Listeners over real connections that name more streams than they may, or than there is room for, or streams of a
//! region that there is not.

mod common;

use tailwater_broadcast::client::{ListenError, Listener, Publisher, Sharing};
use tailwater_broadcast::frame::{self, FrameReader, FrameWriter};
use tailwater_broadcast::limits::{ABSENT_EACH, ABSENT_MAX, STREAMS_MAX};
use tailwater_broadcast::message::{Message, Reason, Role, VERSION};
use tailwater_broadcast::region::Member;
use tailwater_broadcast::{Content, Position, Positions, Stream};
use tailwater_broadcast_server::{ConfigurationAt, Server};
use tailwater_env::Env;
use tailwater_tls::{PeerReadHalf, PeerWriteHalf};
use tokio::net::{TcpListener, TcpStream};

use common::{config, meta};

async fn proxy(env: &Env, configuration: ConfigurationAt) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = Server::start(env, listener, config(env, "eu", configuration)).unwrap();
    proxy.handle().until(|snapshot| snapshot.is_tail).await.unwrap();
    proxy
}

/// As another program.
async fn connected(proxy: &Server) -> (FrameReader<PeerReadHalf>, FrameWriter<PeerWriteHalf>) {
    let (reader, mut writer) = frame::split(TcpStream::connect(proxy.address()).await.unwrap()).unwrap();
    let hello = Message::Hello { version: VERSION, region: "client".to_owned(), role: Role::Client(1) };
    writer.send(&hello).await.unwrap();
    (reader, writer)
}

fn streams(count: usize) -> impl Iterator<Item = Stream> {
    (0..count).map(|n| Stream::parse(&format!("eu/{n:05}")).unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listener_that_names_too_many_streams_is_told_how_many_it_may_and_ends() {
    let env = Env::real();
    let (meta, _dir) = meta(&env).await;
    let proxy = proxy(&env, ConfigurationAt::Here(meta)).await;
    let addresses = vec![proxy.address().to_string()];
    let many = || Positions::of(streams(STREAMS_MAX + 1));
    let mut listener = Listener::new(&env, addresses.clone(), many());
    let Err(ListenError::Refused(why)) = listener.get_event().await else { panic!("it is not refused") };
    assert!(why.contains("4097 streams are named, and a listener names 4096 at most"), "{why}");
    assert_eq!(listener.next().await.unwrap_err(), ListenError::Ended);
    let shares = Listener::sharing(&env, addresses.clone(), many(), Sharing::default()).await;
    assert!(shares.unwrap_err().to_string().contains("4097 streams are named"));
    // As many as it may, to the last of them.
    let mut listener = Listener::new(&env, addresses.clone(), Positions::of(streams(STREAMS_MAX)));
    let last = streams(STREAMS_MAX).last().unwrap();
    Publisher::new(&env, addresses).publish(&last, &Content::default(), None).await.unwrap();
    assert_eq!(*listener.get_event().await.unwrap().stream, last);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_program_that_names_too_many_streams_is_refused_whether_it_shares_or_not() {
    let env = Env::real();
    let (meta, _dir) = meta(&env).await;
    let proxy = proxy(&env, ConfigurationAt::Here(meta)).await;
    let (mut reader, mut writer) = connected(&proxy).await;
    let positions: Vec<_> = streams(STREAMS_MAX + 1).map(|stream| (stream, Position::START)).collect();
    let member = Member { id: 7, address: "127.0.0.1:1".into() };
    for asks in
        [Message::Listen { positions: positions.clone(), others: true }, Message::Share { member, positions }]
    {
        writer.send(&asks).await.unwrap();
        loop {
            match reader.next().await.unwrap().expect("it is open") {
                Message::ListenRefused { reason, text } => {
                    assert!(reason == Reason::Invalid && text.contains("4097 streams are named"), "{text}");
                    break;
                }
                said @ (Message::Listening { .. } | Message::Events { .. }) => panic!("it is sent {said:?}"),
                _ => {}
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listener_for_whose_streams_there_is_no_room_is_told_so_and_gets_them_when_there_is() {
    let env = Env::real();
    let (meta, _dir) = meta(&env).await;
    let proxy = proxy(&env, ConfigurationAt::Here(meta)).await;
    let addresses = vec![proxy.address().to_string()];
    let made_up = |by: usize| (0..STREAMS_MAX).map(move |n| Stream::parse(&format!("eu/{by}-{n}")).unwrap());
    let mut others = Vec::new();
    for by in 0..ABSENT_MAX / (STREAMS_MAX - ABSENT_EACH) {
        let (mut reader, mut writer) = connected(&proxy).await;
        let positions = made_up(by).map(|stream| (stream, Position::NOW)).collect();
        writer.send(&Message::Listen { positions, others: false }).await.unwrap();
        while !matches!(reader.next().await.unwrap().expect("it is open"), Message::Listening { .. }) {}
        others.push((reader, writer));
    }
    let count = ABSENT_EACH + ABSENT_MAX % (STREAMS_MAX - ABSENT_EACH) + 1;
    let mut listener = Listener::new(&env, addresses.clone(), Positions::of(streams(count)));
    let Err(ListenError::Refused(why)) = listener.get_event().await else { panic!("it is not refused") };
    assert!(why.contains("name fewer of them, or try again later"), "{why}");
    drop(others);
    let last = streams(count).last().unwrap();
    Publisher::new(&env, addresses).publish(&last, &Content::default(), None).await.unwrap();
    let heard = loop {
        match listener.get_event().await {
            Err(ListenError::Refused(_)) => {}
            heard => break heard.unwrap().stream.clone(),
        }
    };
    assert_eq!(heard, last);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listener_of_a_region_that_is_not_known_is_told_so_whether_it_shares_or_not() {
    let env = Env::real();
    let (meta, _dir) = meta(&env).await;
    let proxy = proxy(&env, ConfigurationAt::Here(meta)).await;
    let (mut reader, mut writer) = connected(&proxy).await;
    let stream = Stream::parse("mars/news").unwrap();
    let member = Member { id: 7, address: "127.0.0.1:1".into() };
    let asks = |position: Position| {
        let positions =
            vec![(Stream::parse("eu/news").unwrap(), Position::START), (stream.clone(), position)];
        let share = Message::Share { member: member.clone(), positions: positions.clone() };
        [Message::Listen { positions, others: false }, share]
    };
    for asked in [asks(Position::START), asks(Position::NOW)].concat() {
        writer.send(&asked).await.unwrap();
        loop {
            match reader.next().await.unwrap().expect("it is open") {
                Message::ListenRefused { reason, text } => {
                    assert_eq!(reason, Reason::Limit, "the region may come");
                    assert!(text.contains("there is no region mars"), "{text}");
                    break;
                }
                Message::Listening { positions } => panic!("it listens at {positions:?}"),
                _ => {}
            }
        }
    }
    // Whoever has had events of it goes on when it is there again.
    for asked in asks(Position { lineage: 0, seq: 7 }) {
        writer.send(&asked).await.unwrap();
        loop {
            match reader.next().await.unwrap().expect("it is open") {
                Message::Listening { .. } => break,
                Message::ListenRefused { text, .. } => panic!("{text}"),
                _ => {}
            }
        }
    }
    let mut listener = Listener::new(&env, vec![proxy.address().to_string()], Positions::of([stream]));
    let Err(ListenError::Refused(why)) = listener.get_event().await else { panic!("it is not refused") };
    assert!(why.contains("there is no region mars"), "{why}");
}
