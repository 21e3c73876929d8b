//! What the members of a region say to each other, and its bytes: a u8 that says which kind of [`Message`] it is, and
//! that kind's fields as the table has them, in the forms of [`wire`](crate::wire).
//!
//! A lineage is that of the stream's region, of which the sender has the stream
//! ([`Chain::lineage`](crate::message::Chain::lineage)): what is of a smaller one than the receiver's says nothing, and
//! of a greater one the receiver begins anew with.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use crate::batch::Batch;
use crate::limits::STREAMS_MAX;
use crate::name::Stream;
use crate::wire::table::{kinds, pieces};
use crate::wire::{BadMessage, Reader, WirePiece};

/// Members named in one message.
pub const MEMBERS_MAX: usize = 256;
/// Batches in one message.
pub const BATCHES_MAX: usize = 4096;

/// As the last number of a request: it stands, and what comes is sent when it comes. From this number on as well it
/// takes back the one that stands.
pub const STANDING: u64 = u64::MAX;
/// Hops of a member that no other one feeds.
pub const UNFED: u8 = u8::MAX;

pieces! {
    /// One who takes part.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Member {
        /// Its number: a random one that it drew when it started, unique in its region.
        pub id: u64,
        /// Where others can connect to it, at most 255 bytes; empty if nobody can, and then it talks to the proxy
        /// alone.
        pub address: Arc<str>,
    }

    /// A member of a view.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct MessageSeen {
        /// Who.
        pub member: Member,
        /// For how many rounds of gossip it has not been heard itself.
        pub rounds: u16,
    }

    /// How far somebody has come in a stream: it keeps the events with the numbers (`held`, `count`].
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct RegionProgress {
        /// Which stream.
        pub stream: Stream,
        /// Of which lineage.
        pub lineage: u64,
        /// The number after which it keeps events.
        pub held: u64,
        /// The last number that it has.
        pub count: u64,
        /// Through how many members events come to it from the proxy, itself included: 0 is the proxy, [`UNFED`] says
        /// that no request of it stands anywhere.
        pub hops: u8,
    }
}

impl Member {
    /// Whether others can connect to it.
    pub fn reachable(&self) -> bool {
        !self.address.is_empty()
    }
}

kinds! {
    /// A message of the region-level protocol.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub enum Message checked by check {
        /// The sender's view.
        1 => Gossip {
            /// Whether it answers another one, and wants no answer.
            answer: bool,
            /// The sender.
            me: Member,
            /// Its view.
            view: Vec<MessageSeen>,
        },
        /// How far the sender has come in some streams.
        2 => Notify(streams: Vec<RegionProgress>),
        /// Wants events with the numbers (`after`, `up_to`].
        3 => Request {
            /// Of this stream.
            stream: Stream,
            /// Of which lineage.
            lineage: u64,
            /// The number before the first one.
            after: u64,
            /// The last one, or [`STANDING`].
            up_to: u64,
            /// About so many bytes of them; at least one event comes, if there is one.
            bytes_max: u32,
        },
        /// The answer to a request: what of it the sender has, or as much of that as was asked for. Without any, to
        /// whoever does not know of its lineage.
        4 => Events {
            /// Of this stream.
            stream: Stream,
            /// Of which lineage.
            lineage: u64,
            /// As in the request.
            after: u64,
            /// As in [`RegionProgress`].
            held: u64,
            /// As in [`RegionProgress`].
            count: u64,
            /// As in [`RegionProgress`].
            hops: u8,
            /// Whether the request stands. One that was to stand and does not was answered once.
            stands: bool,
            /// The events, in order, perhaps with holes.
            batches: Vec<Batch>,
        },
    }
}

impl Message {
    /// Appends its bytes.
    ///
    /// # Panics
    /// If an address has more than 255 bytes.
    pub fn encode(&self, out: &mut BytesMut) {
        self.append(out);
    }

    /// Reads one from all of `bytes`; batches are checked, and slices of them.
    pub fn decode(bytes: Bytes) -> Result<Self, BadMessage> {
        let mut reader = Reader::new(bytes);
        let message = Self::take(&mut reader)?;
        reader.end()?;
        Ok(message)
    }

    /// How many bytes it takes.
    pub fn size(&self) -> usize {
        WirePiece::size(self)
    }

    /// That it names no more than it may.
    fn check(&self) -> Result<(), BadMessage> {
        match self {
            Message::Gossip { view, .. } => within("members", view.len(), MEMBERS_MAX),
            Message::Notify(streams) => within("streams", streams.len(), STREAMS_MAX),
            Message::Events { batches, .. } => within("batches", batches.len(), BATCHES_MAX),
            Message::Request { .. } => Ok(()),
        }
    }
}

/// How many bytes a batch takes up, header included.
pub(crate) fn batch_size(batch: &Batch) -> usize {
    batch.bytes.len() + 48
}

fn within(what: &str, count: usize, max: usize) -> Result<(), BadMessage> {
    if count > max { Err(BadMessage(format!("{count} {what}, more than {max}"))) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::{Collect, Content, Writer};

    fn stream() -> impl Strategy<Value = Stream> {
        "[a-z]{1,9}/[a-z0-9.]{1,9}".prop_map(|text| Stream::parse(&text).unwrap())
    }

    fn a_member() -> impl Strategy<Value = Member> {
        (any::<u64>(), "[a-z0-9.:]{0,21}").prop_map(|(id, address)| Member { id, address: address.into() })
    }

    fn batch() -> impl Strategy<Value = Batch> {
        (0..1u64 << 40, vec(vec(any::<u8>(), 0..9), 1..5), 0..3u64).prop_map(|(after, payloads, more)| {
            let mut writer = Writer::new(after);
            for payload in payloads {
                let content = Content { payload: payload.into(), ..Content::default() };
                writer.publish(&content, Some(&Collect::KeepLast(5))).unwrap();
            }
            let last = after + u64::from(writer.count()) + more;
            writer.finish(last)
        })
    }

    fn message() -> impl Strategy<Value = Message> {
        let seen = (a_member(), any::<u16>()).prop_map(|(member, rounds)| MessageSeen { member, rounds });
        let progress =
            (stream(), any::<[u64; 3]>(), any::<u8>()).prop_map(|(stream, [lineage, held, count], hops)| {
                RegionProgress { stream, lineage, held, count, hops }
            });
        prop_oneof![
            (a_member(), vec(seen, 0..4), any::<bool>()).prop_map(|(me, view, answer)| Message::Gossip {
                me,
                view,
                answer
            }),
            vec(progress, 0..4).prop_map(Message::Notify),
            (stream(), any::<[u64; 3]>(), any::<u32>()).prop_map(
                |(stream, [lineage, after, up_to], bytes_max)| Message::Request {
                    stream,
                    lineage,
                    after,
                    up_to,
                    bytes_max
                }
            ),
            (stream(), any::<[u64; 4]>(), any::<(u8, bool)>(), vec(batch(), 0..3)).prop_map(
                |(stream, [lineage, after, held, count], (hops, stands), batches)| Message::Events {
                    stream,
                    lineage,
                    after,
                    held,
                    count,
                    hops,
                    stands,
                    batches
                }
            ),
        ]
    }

    proptest! {
        #[test]
        fn messages_come_back_and_their_size_is_that_of_their_bytes(message in message()) {
            let mut out = BytesMut::new();
            message.encode(&mut out);
            prop_assert_eq!(out.len(), message.size());
            prop_assert_eq!(Message::decode(out.freeze()).unwrap(), message);
        }

        #[test]
        fn cut_and_changed_bytes_are_refused_or_read_without_a_panic(
            message in message(), changes in vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
            cut in any::<prop::sample::Index>(),
        ) {
            let mut out = BytesMut::new();
            message.encode(&mut out);
            for (at, byte) in changes {
                let at = at.index(out.len());
                out[at] = byte;
            }
            let bytes = out.freeze();
            prop_assert!(Message::decode(bytes.slice(..cut.index(bytes.len()))).is_err() || bytes[0] != 0);
            let _ = Message::decode(bytes);
        }
    }

    #[test]
    fn too_many_members_streams_and_batches_are_refused() {
        let me = Member { id: 1, address: "a:1".into() };
        let view = vec![MessageSeen { member: me.clone(), rounds: 0 }; MEMBERS_MAX + 1];
        let stream = Stream::parse("eu/x").unwrap();
        let progress = RegionProgress { stream, lineage: 0, held: 0, count: 1, hops: 0 };
        let messages =
            [Message::Gossip { me, view, answer: false }, Message::Notify(vec![progress; STREAMS_MAX + 1])];
        for message in messages {
            let mut out = BytesMut::new();
            message.encode(&mut out);
            assert!(Message::decode(out.freeze()).is_err());
        }
    }
}
