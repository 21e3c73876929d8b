//! A publisher whose link takes little.

use bytes::{Bytes, BytesMut};
use tailwater_broadcast::client::Publisher;
use tailwater_broadcast::message::{Advertised, Chain, Member, Message, Role, VERSION};
use tailwater_broadcast::{Content, Position, Stream};
use tailwater_env::Env;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;

fn encoded(messages: &[Message]) -> BytesMut {
    let mut bytes = BytesMut::new();
    messages.iter().for_each(|message| message.encode(&mut bytes));
    bytes
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_publisher_hears_its_head_while_what_it_publishes_leaves_slowly() {
    let env = Env::real();
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(64 << 10).unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(1).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let publisher = Publisher::new(&env, vec![address.clone()]);
    let content = Content { payload: Bytes::from(vec![7; 1 << 20]), ..Content::default() };
    let mut answers = Vec::new();
    for n in 0..24 {
        // More than the system takes of it.
        let stream = Stream::parse(&format!("here/{}", n % 3)).unwrap();
        answers.push(publisher.publish(&stream, &content, None));
    }
    let (mut head, _) = listener.accept().await.unwrap();
    let chain = Chain {
        epoch: 1,
        lineage: 1,
        region: "here".to_owned(),
        members: vec![Member { id: 2, address }],
        joining: Vec::new(),
    };
    let hello = Message::Hello { version: VERSION, region: "here".to_owned(), role: Role::Replica(2) };
    head.write_all(&encoded(&[hello, Message::Chain(chain)])).await.unwrap();
    let told = |n: u64| Advertised {
        stream: Stream::parse(&format!("here/{n:0200}")).unwrap(),
        count: Position { lineage: 1, seq: n },
        age_ms: 0,
    };
    let alive =
        encoded(&[Message::Advertise { epoch: 1, answers: None, counts: (0..1_000).map(told).collect() }]);
    // It says more than the system takes of that before it has read what was published.
    let mut read = vec![0; 64 << 10];
    let (mut said, mut came) = (0, 0);
    while said < 16 << 20 {
        head.write_all(&alive).await.unwrap();
        said += alive.len();
        came += head.read(&mut read).await.unwrap();
    }
    assert!(came < 16 << 20, "{came}");
}
