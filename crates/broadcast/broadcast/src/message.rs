//! What replicas, proxies and clients say to each other.
//!
//! A frame is a u32 length of what follows, and then a [`Message`] as its table has it: a u8 that says which kind it
//! is, and that kind's fields in their order. The forms of the fields are those of [`wire`](crate::wire), but for
//! these:
//!
//! ```text
//! hello             u16 version, u8 role (0 client, 1 replica), text region, u64 replica, u128 client
//! text of a refusal u16 length (1000 at most), its bytes
//! ```

use bytes::{BufMut, Bytes, BytesMut};

use crate::batch::Batch;
use crate::limits::PUBLISHERS_MAX;
use crate::name::Stream;
pub use crate::positions::FROM_NOW;
use crate::positions::Position;
use crate::region;
use crate::wire::table::{kinds, pieces};
use crate::wire::{BadMessage, PieceWriter, Reader, WirePiece};

/// The version that [`Message::Hello`] carries; both ends need the same. A hello's own bytes are the same in all of
/// them, so that each end can say which one the other has.
pub const VERSION: u16 = 4;
/// Bytes of a frame at most, without its length.
pub const FRAME_BYTES_MAX: usize = 4 << 20;

/// As an age: nothing is known.
pub const AGE_UNKNOWN: u32 = u32::MAX;

/// The region in the hello of a client that publishes for others, whom it has counted: its own quota does not apply.
pub const GATEWAY: &str = "gateway";

/// A replica of a region's proxy; unique in its region, and never reused for a replica with another memory. One that
/// keeps its events in memory only has an odd number, so that whoever reads of it in an old chain knows that it can't
/// come back.
pub type ReplicaId = u64;
/// A publisher. It draws the number at random when it starts, so that a retry is known for what it is.
pub type PublisherId = u128;

/// Who a connection's other end is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// Publishes and listens.
    Client(PublisherId),
    /// A replica of the region's proxy.
    Replica(ReplicaId),
}

pieces! {
    /// A replica and where it listens.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Member {
        /// Which one.
        pub id: ReplicaId,
        /// `HOST:PORT`.
        pub address: String,
    }

    /// The replicas of a region's proxy, head first, as the configuration service has them (section 3.3).
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct Chain {
        /// Grows with every change.
        pub epoch: u64,
        /// Which beginning of the region's events this is: another number each time that a chain begins with nobody who
        /// was a member of the one before, and a greater one. What replicas have of another lineage has the same
        /// numbers for other events.
        pub lineage: u64,
        /// The region.
        pub region: String,
        /// Head, middle, tail; the same replica if there is one.
        pub members: Vec<Member>,
        /// Replicas that copy from the tail and want to become members.
        pub joining: Vec<Member>,
    }

    /// How far a replica has a stream.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Advertised {
        /// The stream.
        pub stream: Stream,
        /// The last number that is held, and of which lineage.
        pub count: Position,
        /// So many milliseconds before this was sent the stream's own region had acknowledged nothing that is not among
        /// it; [`AGE_UNKNOWN`] if that is not known.
        pub age_ms: u32,
    }

    /// For how long a replica has waited for what its place in the chain needs, in milliseconds in which it was awake;
    /// 0 if it does not wait.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Waits {
        /// Until its own disk takes more of what it has.
        pub disk_ms: u64,
        /// Until it hears something of the replica before it.
        pub before_ms: u64,
        /// Until the replica behind it, or the joining one that it hands over to, holds more of what its own disk has.
        pub next: Option<(ReplicaId, u64)>,
    }

    /// What a replica has, for the configuration service: when a region has to begin anew, it is with the one that has
    /// most.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Has {
        /// The lineage of it.
        pub lineage: u64,
        /// The epoch of the last chain, as it knows, of which it was a member, or to which the tail had handed over:
        /// what that chain's members acknowledged until then it has. 0 if there was none.
        pub epoch: u64,
        /// The last numbers of all its streams, added up.
        pub events: u64,
    }

    /// Who published a batch.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Origin {
        /// The publisher.
        pub client: PublisherId,
        /// Its own number of the batch's first event.
        pub first: u64,
    }
}

impl Chain {
    /// The member that gives numbers.
    pub fn head(&self) -> Option<ReplicaId> {
        self.members.first().map(|member| member.id)
    }

    /// The member that answers readers.
    pub fn tail(&self) -> Option<ReplicaId> {
        self.members.last().map(|member| member.id)
    }

    /// A member's place, from 0 at the head.
    pub fn place(&self, id: ReplicaId) -> Option<usize> {
        self.members.iter().position(|member| member.id == id)
    }

    /// Whom a replica copies from: the member before it, or the tail if it is joining.
    pub fn before(&self, id: ReplicaId) -> Option<&Member> {
        match self.place(id) {
            Some(place) => place.checked_sub(1).map(|before| &self.members[before]),
            None if self.joining.iter().any(|member| member.id == id) => self.members.last(),
            None => None,
        }
    }

    /// Whom a member waits for before it counts an event as held.
    pub fn next(&self, id: ReplicaId) -> Option<ReplicaId> {
        let place = self.place(id)?;
        self.members.get(place + 1).map(|member| member.id)
    }
}

kinds! {
    /// Why a publish is not carried out.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Reason {
        /// This replica is not the head of its region's chain: ask for the chain again.
        0 => NotHead,
        /// Events that the publisher published before, and was not answered, are missing here: send them again first.
        1 => Gap,
        /// It would undo an earlier garbage collection, its predicate is no predicate, or its stream is of another
        /// region.
        2 => Invalid,
        /// A quota or a limit; nothing is wrong with the event.
        3 => Limit,
        /// The publisher may not publish to the stream.
        4 => NotAuthorized,
        /// The stream holds as many bytes as it may: events of it have to be collected first.
        5 => Full,
    }
}

kinds! {
    /// A message; the connection says from whom.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub enum Message checked by check {
        /// The first one in both directions.
        1 => Hello {
            /// [`VERSION`].
            version: u16,
            /// The sender's region.
            region: String,
            /// What the sender is.
            role: Role,
        } as hello,
        /// To clients and replicas: how the chain is now.
        2 => Chain(chain: Chain),
        /// To the head: a publisher's events, in its order. Each is answered once, by [`Self::Published`] or
        /// [`Self::Refused`], unless the connection ends.
        3 => Publish {
            /// The stream.
            stream: Stream,
            /// The publisher.
            client: PublisherId,
            /// The publisher's own number up to which all of its events were answered, so that the head need not know
            /// them.
            answered: u64,
            /// The publisher's own number of the first one, from 1, without gaps behind what was answered.
            first: u64,
            /// The events, not numbered.
            batch: Batch as copied,
        },
        /// To a publisher: the tail holds its events up to `number`.
        4 => Published {
            /// The stream.
            stream: Stream,
            /// The publisher's own number of the last one.
            number: u64,
            /// That event's number in the stream; if it was `repeated`, one up to which all replicas hold it, which is
            /// not smaller.
            seq: u64,
            /// Whether it was published earlier, or a part of what it was published with.
            repeated: bool,
        },
        /// To a publisher: its events from `first` of the same message on are not published.
        5 => Refused {
            /// The stream.
            stream: Stream,
            /// As in the request.
            first: u64,
            /// For programs.
            reason: Reason,
            /// For people.
            text: String as why,
        },
        /// From a tail to clients and to the replicas of other regions, and from a replica to the one behind it: how
        /// far it got in every stream.
        6 => Advertise {
            /// The sender's epoch.
            epoch: u64,
            /// What it was asked with, if this is an answer.
            answers: Option<u64>,
            /// Each stream that it has.
            counts: Vec<Advertised>,
        },
        /// From a head to another region's tail, of a stream that it told of: send its events from the one after
        /// `after` on.
        7 => Subscribe {
            /// The stream.
            stream: Stream,
            /// Where the subscriber is. Of another lineage than this it is sent nothing.
            after: Position,
        },
        /// From a head to another region's tail: no more of this stream.
        8 => Unsubscribe {
            /// The stream.
            stream: Stream,
        },
        /// To a subscriber.
        9 => Events {
            /// The stream.
            stream: Stream,
            /// Of which lineage of its region they are. A client whose position was of an earlier one is sent all of
            /// this one.
            lineage: u64,
            /// What follows the last one sent.
            batch: Batch,
        },
        /// From a replica to the one before it: send me what I miss.
        10 => Follow {
            /// The follower's epoch.
            epoch: u64,
            /// The lineage of what it has.
            lineage: u64,
            /// How far it got.
            counts: Vec<(Stream, Position)>,
        },
        /// To the replica behind: what the region's publishers have published in a stream, up to what all hold.
        11 => Publishers {
            /// The stream.
            stream: Stream,
            /// Each publisher's last number.
            numbers: Vec<(PublisherId, u64)>,
        },
        /// To the replica behind: events.
        12 => Append {
            /// The sender's epoch.
            epoch: u64,
            /// The stream.
            stream: Stream,
            /// Of which lineage of its region they are: the follower drops what it has of another one.
            lineage: u64,
            /// Who published them, if it was in this region and they are new.
            origin: Option<Origin>,
            /// The events.
            batch: Batch,
        },
        /// To the replica before: all from here to the tail hold the streams up to these numbers. To a joining replica:
        /// the chain does.
        13 => Held {
            /// The sender's epoch.
            epoch: u64,
            /// The numbers.
            counts: Vec<(Stream, Position)>,
        },
        /// To the replica behind: you are the tail now. To one that is joining: you have been sent what you need to
        /// become it.
        14 => Token {
            /// The epoch in which it is.
            epoch: u64,
        },
        /// From a client to a tail: send me events; instead of what it sent before.
        15 => Listen {
            /// From the event after these numbers on; [`FROM_NOW`]: only what comes from now on. Of a later lineage
            /// than that of a position it is sent all, of an earlier one nothing.
            positions: Vec<(Stream, Position)>,
            /// Whether all other streams are wanted as well, from their beginnings.
            others: bool,
        },
        /// From a replica to its region's configuration service: make me a member.
        16 => Join {
            /// The replica.
            member: Member,
            /// Whether it keeps its events over a restart.
            durable: bool,
            /// Whether it just started. It may have lost some of what it acknowledged, so if others are there it
            /// joins at the end, and copies what it misses.
            started: bool,
            /// What it has.
            has: Has,
        },
        /// From a replica to its region's configuration service, often.
        17 => Alive {
            /// The epoch that it knows.
            epoch: u64,
            /// Joining replicas that have what it has, if it is the tail.
            caught_up: Vec<ReplicaId>,
            /// What it waits for.
            waits: Waits,
            /// What it has.
            has: Has,
        },
        /// To a client that listens: from where on it is sent events.
        18 => Listening {
            /// As in the listen, with numbers instead of [`FROM_NOW`], and the beginnings of later lineages.
            positions: Vec<(Stream, Position)>,
        },
        /// From a joining replica, in answer to the token.
        19 => Ready {
            /// The epoch in which it is.
            epoch: u64,
        },
        /// From a client that takes part in the region-level protocol: to a tail, which answers [`Message::Listening`],
        /// or, as the first one in both directions, to another such client.
        20 => Share {
            /// The sender.
            member: region::Member,
            /// To a tail: where it begins, [`FROM_NOW`] among it; to another client: nothing.
            positions: Vec<(Stream, Position)>,
        },
        /// Between those who take part.
        21 => Region(message: region::Message),
        /// The last one on a connection of two clients that one of them has no use for any more.
        22 => Bye,
        /// To the replica behind, before a stream's first events: of those nothing is left that the predicates up to
        /// `last` collect.
        23 => Applied {
            /// The sender's epoch.
            epoch: u64,
            /// The stream.
            stream: Stream,
            /// The last number.
            last: Position,
        },
        /// To a replica: say how far you are.
        24 => Ask {
            /// When this is sent, in milliseconds on the sender's own clock, to which it comes back.
            at: u64,
        },
        /// To a client that wants to listen: it is sent nothing.
        25 => ListenRefused {
            /// For programs: [`Reason::Limit`] if it may ask again later, [`Reason::Invalid`] if that is no use.
            reason: Reason,
            /// For people.
            text: String as why,
        },
        /// To the replica behind, and from a tail to a head of another region that subscribes the stream: retention has
        /// removed all of the stream up to a number.
        26 => Removed {
            /// The sender's epoch.
            epoch: u64,
            /// The stream.
            stream: Stream,
            /// That number.
            last: Position,
        },
    }
}

impl Origin {
    /// Whether so many events can have numbers from `first` on, which are at least 1.
    pub fn may_have(&self, count: u32) -> bool {
        self.first > 0 && self.first.checked_add(u64::from(count)).is_some()
    }

    /// That it may have published a batch.
    pub(crate) fn check(&self, batch: &Batch) -> Result<(), BadMessage> {
        match self.may_have(batch.count) {
            true => Ok(()),
            false => Err(BadMessage("a publisher's numbers begin with 1".to_owned())),
        }
    }
}

impl Message {
    /// Appends the message as a frame.
    pub fn encode(&self, out: &mut BytesMut) {
        self.put_frame(PieceWriter::new(out));
    }

    /// As [`encode`](Self::encode); long bytes of events that go to many are put in `apart` instead, each with the
    /// place in `out` to which it belongs.
    pub(crate) fn encode_apart(&self, out: &mut BytesMut, apart: &mut Vec<(usize, Bytes)>) {
        self.put_frame(PieceWriter::with_apart(out, apart));
    }

    fn put_frame(&self, mut out: PieceWriter<'_>) {
        let start = out.len();
        out.bytes.put_u32_le(0);
        self.put(&mut out);
        let len = (out.len() - start - 4) as u32;
        out.bytes[start..start + 4].copy_from_slice(&len.to_le_bytes());
    }

    /// Reads a frame's bytes after its length. Batches in it are checked.
    pub fn decode(frame: Bytes) -> Result<Self, BadMessage> {
        let mut from = Reader::new(frame);
        let message = Self::take(&mut from)?;
        from.end()?;
        Ok(message)
    }

    /// What its fields say of each other.
    fn check(&self) -> Result<(), BadMessage> {
        match self {
            Message::Publishers { numbers, .. } if numbers.len() > PUBLISHERS_MAX => {
                Err(BadMessage(format!("{} publishers, more than {PUBLISHERS_MAX}", numbers.len())))
            }
            Message::Append { origin: Some(origin), batch, .. } => origin.check(batch),
            _ => Ok(()),
        }
    }
}

/// A hello says all that either role has; what its own has not is 0.
mod hello {
    use super::*;
    use crate::wire::put_text;

    pub(super) fn put(out: &mut PieceWriter<'_>, version: &u16, region: &str, role: &Role) {
        let (code, replica, client) = match role {
            Role::Client(client) => (0_u8, 0_u64, *client),
            Role::Replica(replica) => (1, *replica, 0),
        };
        (*version, code).put(out);
        put_text(out.bytes, region);
        (replica, client).put(out);
    }

    pub(super) fn take(from: &mut Reader) -> Result<Message, BadMessage> {
        let (version, code) = <(u16, u8)>::take(from)?;
        let region = String::take(from)?;
        let (replica, client) = WirePiece::take(from)?;
        let role = match code {
            0 => Role::Client(client),
            1 => Role::Replica(replica),
            other => return Err(BadMessage(format!("role {other} is unknown"))),
        };
        Ok(Message::Hello { version, region, role })
    }

    pub(super) fn size(_: &u16, region: &str, _: &Role) -> usize {
        2 + 1 + 1 + region.len() + 8 + 16
    }
}

/// A text for people: u16 length, at most 1000 bytes, cut off there. What is no UTF-8 is replaced.
mod why {
    use super::*;

    /// Bytes of the text that says why something is refused; what is longer is cut off.
    const BYTES_MAX: usize = 1000;

    pub(super) fn put(out: &mut PieceWriter<'_>, text: &str) {
        let text = &text.as_bytes()[..size(text) - 2];
        (text.len() as u16).put(out);
        out.bytes.put_slice(text);
    }

    pub(super) fn take(from: &mut Reader) -> Result<String, BadMessage> {
        let len = u16::take(from)?;
        Ok(String::from_utf8_lossy(&from.bytes(usize::from(len))?).into_owned())
    }

    pub(super) fn size(text: &str) -> usize {
        2 + text.len().min(BYTES_MAX)
    }
}

/// A batch that goes to one only: its bytes are copied however long they are.
mod copied {
    use super::*;

    pub(super) fn put(out: &mut PieceWriter<'_>, batch: &Batch) {
        batch.append(out.bytes);
    }

    pub(super) fn take(from: &mut Reader) -> Result<Batch, BadMessage> {
        Batch::take(from)
    }

    pub(super) fn size(batch: &Batch) -> usize {
        batch.size()
    }
}
