//! Clients and what they are told of chains.

use tailwater_broadcast::client::{Listener, Newest, Received};
use tailwater_broadcast::frame;
use tailwater_broadcast::message::{Chain, Member, Message, Role, VERSION};
use tailwater_broadcast::{Position, Positions, Stream};
use tailwater_env::Env;
use tokio::net::TcpListener;

fn chain(lineage: u64, epoch: u64) -> Newest {
    Newest { lineage, epoch }
}

fn number(seq: u64) -> Position {
    Position { lineage: 1, seq }
}

/// Takes a connection as the only replica of a chain; what it is sent behind the hello, and whether that came.
async fn take(
    at: &TcpListener,
    newest: Newest,
    count: u64,
    stream: &Stream,
) -> (Option<Message>, impl Sized + use<>) {
    let (mut reader, mut writer) = frame::split(at.accept().await.unwrap().0).unwrap();
    assert!(matches!(reader.next().await, Ok(Some(Message::Hello { .. }))));
    let hello = Message::Hello { version: VERSION, region: "here".to_owned(), role: Role::Replica(2) };
    writer.send(&hello).await.unwrap();
    let Newest { lineage, epoch } = newest;
    let members = vec![Member { id: 2, address: at.local_addr().unwrap().to_string() }];
    let chain = Chain { epoch, lineage, region: "here".to_owned(), members, joining: Vec::new() };
    writer.send(&Message::Chain(chain)).await.unwrap();
    let asked = reader.next().await.unwrap_or(None);
    if asked.is_some() {
        writer.send(&Message::Listening { positions: vec![(stream.clone(), number(count))] }).await.unwrap();
    }
    (asked, (reader, writer))
}

#[tokio::test]
async fn who_knows_of_a_later_chain_does_not_hear_a_tail_that_was_removed() {
    let (env, stream) = (Env::real(), Stream::parse("here/news").unwrap());
    let at = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addresses = vec![at.local_addr().unwrap().to_string()];
    let began = |received| matches!(received, Ok(Received::Began(positions)) if positions == [(stream.clone(), number(9))]);

    // One that knows of none hears it, whatever it is.
    let mut any = Listener::new(&env, addresses.clone(), Positions::now([stream.clone()]));
    let (asked, _connection) = take(&at, chain(1, 3), 9, &stream).await;
    assert!(matches!(asked, Some(Message::Listen { .. })), "{asked:?}");
    assert!(began(any.next().await));
    assert_eq!(any.newest(), chain(1, 3));
    drop(any);

    let mut since = Listener::since(&env, addresses, Positions::now([stream.clone()]), chain(1, 7));
    for epoch in [3, 6] {
        let (asked, _connection) = take(&at, chain(1, epoch), 4, &stream).await;
        assert_eq!(asked, None, "of epoch {epoch} it wants nothing");
    }
    let (asked, connection) = take(&at, chain(1, 8), 9, &stream).await;
    assert!(matches!(asked, Some(Message::Listen { .. })), "{asked:?}");
    assert!(began(since.next().await));
    assert_eq!(since.newest(), chain(1, 8));
    drop(connection);
    assert!(matches!(since.next().await, Ok(Received::Lost)));
    // And of what it has heard itself.
    let (asked, _connection) = take(&at, chain(1, 7), 4, &stream).await;
    assert_eq!(asked, None);
    let (asked, connection) = take(&at, chain(1, 8), 9, &stream).await;
    assert!(asked.is_some());
    assert!(began(since.next().await));
    drop(connection);
    assert!(matches!(since.next().await, Ok(Received::Lost)));
    // The configuration service lost what it knew, and its epochs begin again.
    let (asked, _connection) = take(&at, chain(2, 1), 9, &stream).await;
    assert!(asked.is_some());
    assert!(began(since.next().await));
    assert_eq!(since.newest(), chain(2, 1));
}
