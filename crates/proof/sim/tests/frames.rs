//! Messages of a broadcast on links that are slow, in virtual time.

use std::time::Duration;

use bytes::BytesMut;
use tailwater_broadcast::frame::FrameReader;
use tailwater_broadcast::message::Message;
use tailwater_sim::World;
use tokio::io::AsyncWriteExt;

const SILENCE: Duration = Duration::from_secs(3);

#[test]
fn a_message_that_comes_slowly_is_waited_for_and_one_that_stands_still_is_not() {
    let world = World::new(1);
    let node = world.node("reader");
    let env = node.env();
    let token = Message::Token { epoch: 7 };
    let mut bytes = BytesMut::new();
    token.encode(&mut bytes);
    let (mut to, from) = tokio::io::duplex(1 << 10);
    let mut reader = FrameReader::new(from);
    world
        .run(async {
            let sending = async {
                for byte in &bytes {
                    to.write_all(&[*byte]).await.unwrap();
                    env.sleep(SILENCE / 2).await;
                }
                to.write_all(&bytes[..3]).await.unwrap();
            };
            let receiving = async {
                let begun = env.now();
                let next = reader.next_unless_silent(&env, SILENCE).await;
                assert_eq!(next.unwrap().unwrap(), Some(token.clone()));
                assert!(env.now().since(begun) > 2 * SILENCE);
                assert!(reader.next_unless_silent(&env, SILENCE).await.is_none());
            };
            tokio::join!(sending, receiving);
        })
        .unwrap();
}
