//! What replicas, proxies and clients say to each other.
//!
//! ```text
//! frame      u32 length of what follows, u8 kind, body (numbers little-endian; pieces as in wire.rs)
//!   1 hello        u16 version, u8 role (0 client, 1 replica), text region, u64 replica, u128 client
//!   2 chain        u64 epoch, u64 lineage, text region, members, joining: lists of (u64 replica, text address)
//!   3 publish      stream, u128 client, u64 answered, u64 first, batch
//!   4 published    stream, u64 number, u64 seq, u8 repeated?    5 refused    stream, u64 first, u8 reason, u16 length, text
//!   6 advertise    u64 epoch, u8 answers?, u64 answers, list of (stream, position, u32 age ms)
//!   7 subscribe    stream, position
//!   8 unsubscribe  stream                                       9 events     stream, u64 lineage, batch
//!  10 follow       u64 epoch, u64 lineage, list of (stream, position)
//!  11 publishers   stream, list of (u128, u64)
//!  12 append       u64 epoch, stream, u64 lineage, u8 origin?, u128 client, u64 first, batch
//!  13 held         u64 epoch, list of (stream, position)       14 token      u64 epoch
//!  15 listen       list of (stream, position), u8 others?     16 join       member, u8 durable?, u8 started?, has
//!  17 alive        u64 epoch, list of u64, waits, has          18 listening  list of (stream, position)
//!  19 ready        u64 epoch                                   20 share      region member, list of (stream, position)
//!  21 region       a message of region/message.rs              22 bye        nothing
//!  23 applied      u64 epoch, stream, position                 24 ask        u64 at
//!  25 listen refused  u8 reason, u16 length, text
//! position   u64 lineage of the stream's region, u64 number
//! waits      u64 disk ms, u64 before ms, u8 next?, u64 replica, u64 next ms
//! has        u64 lineage, u64 events
//! ```

use bytes::{BufMut, Bytes, BytesMut};

use crate::batch::Batch;
use crate::limits::PUBLISHERS_MAX;
use crate::name::Stream;
use crate::positions::Position;
use crate::region;
use crate::wire::{
    BadMessage, Reader, put_batch, put_batch_with, put_bytes, put_list, put_position, put_stream, put_text,
};

/// The version that [`Message::Hello`] carries; both ends need the same. A hello's own bytes are the same in all of
/// them, so that each end can say which one the other has.
pub const VERSION: u16 = 4;
/// Bytes of a frame at most, without its length.
pub const FRAME_BYTES_MAX: usize = 4 << 20;

/// As an age: nothing is known.
pub const AGE_UNKNOWN: u32 = u32::MAX;

/// As a position's number: what comes from now on.
pub const FROM_NOW: u64 = u64::MAX;
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
    /// Which beginning of the region's events this is: another number each time that a chain begins with nobody who was
    /// a member of the one before, and a greater one. What replicas have of another lineage has the same numbers for
    /// other events.
    pub lineage: u64,
    /// The region.
    pub region: String,
    /// Head, middle, tail; the same replica if there is one.
    pub members: Vec<Member>,
    /// Replicas that copy from the tail and want to become members.
    pub joining: Vec<Member>,
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

/// Why a publish is not carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// This replica is not the head of its region's chain: ask for the chain again.
    NotHead,
    /// Events that the publisher published before, and was not answered, are missing here: send them again first.
    Gap,
    /// It would undo an earlier garbage collection, its predicate is no predicate, or its stream is of another region.
    Invalid,
    /// A quota or a limit; nothing is wrong with the event.
    Limit,
    /// The publisher may not publish to the stream.
    NotAuthorized,
}

/// A message; the connection says from whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// The first one in both directions.
    Hello {
        /// [`VERSION`].
        version: u16,
        /// The sender's region.
        region: String,
        /// What the sender is.
        role: Role,
    },
    /// To clients and replicas: how the chain is now.
    Chain(Chain),
    /// To the head: a publisher's events, in its order. Each is answered once, by [`Self::Published`] or
    /// [`Self::Refused`], unless the connection ends.
    Publish {
        /// The stream.
        stream: Stream,
        /// The publisher.
        client: PublisherId,
        /// The publisher's own number up to which all of its events were answered, so that the head need not know them.
        answered: u64,
        /// The publisher's own number of the first one, from 1, without gaps behind what was answered.
        first: u64,
        /// The events, not numbered.
        batch: Batch,
    },
    /// To a publisher: the tail holds its events up to `number`.
    Published {
        /// The stream.
        stream: Stream,
        /// The publisher's own number of the last one.
        number: u64,
        /// That event's number in the stream; if it was `repeated`, one up to which all replicas hold it, which is not
        /// smaller.
        seq: u64,
        /// Whether it was published earlier, or a part of what it was published with.
        repeated: bool,
    },
    /// To a publisher: its events from `first` of the same message on are not published.
    Refused {
        /// The stream.
        stream: Stream,
        /// As in the request.
        first: u64,
        /// For programs.
        reason: Reason,
        /// For people.
        text: String,
    },
    /// From a tail to clients and to the replicas of other regions, and from a replica to the one behind it: how far it
    /// got in every stream.
    Advertise {
        /// The sender's epoch.
        epoch: u64,
        /// What it was asked with, if this is an answer.
        answers: Option<u64>,
        /// Each stream that it has.
        counts: Vec<Advertised>,
    },
    /// To a replica: say how far you are.
    Ask {
        /// When this is sent, in milliseconds on the sender's own clock, to which it comes back.
        at: u64,
    },
    /// From a head to another region's tail, of a stream that it told of: send its events from the one after `after`
    /// on.
    Subscribe {
        /// The stream.
        stream: Stream,
        /// Where the subscriber is. Of another lineage than this it is sent nothing.
        after: Position,
    },
    /// From a head to another region's tail: no more of this stream.
    Unsubscribe {
        /// The stream.
        stream: Stream,
    },
    /// To a subscriber.
    Events {
        /// The stream.
        stream: Stream,
        /// Of which lineage of its region they are. A client whose position was of an earlier one is sent all of this
        /// one.
        lineage: u64,
        /// What follows the last one sent.
        batch: Batch,
    },
    /// From a replica to the one before it: send me what I miss.
    Follow {
        /// The follower's epoch.
        epoch: u64,
        /// The lineage of what it has.
        lineage: u64,
        /// How far it got.
        counts: Vec<(Stream, Position)>,
    },
    /// To the replica behind: what the region's publishers have published in a stream, up to what all hold.
    Publishers {
        /// The stream.
        stream: Stream,
        /// Each publisher's last number.
        numbers: Vec<(PublisherId, u64)>,
    },
    /// To the replica behind: events.
    Append {
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
    /// To the replica behind, before a stream's first events: of those nothing is left that the predicates up to `last`
    /// collect.
    Applied {
        /// The sender's epoch.
        epoch: u64,
        /// The stream.
        stream: Stream,
        /// The last number.
        last: Position,
    },
    /// To the replica before: all from here to the tail hold the streams up to these numbers. To a joining replica: the
    /// chain does.
    Held {
        /// The sender's epoch.
        epoch: u64,
        /// The numbers.
        counts: Vec<(Stream, Position)>,
    },
    /// From a client to a tail: send me events; instead of what it sent before.
    Listen {
        /// From the event after these numbers on; [`FROM_NOW`]: only what comes from now on. Of a later lineage than
        /// that of a position it is sent all, of an earlier one nothing.
        positions: Vec<(Stream, Position)>,
        /// Whether all other streams are wanted as well, from their beginnings.
        others: bool,
    },
    /// To a client that listens: from where on it is sent events.
    Listening {
        /// As in the listen, with numbers instead of [`FROM_NOW`], and the beginnings of later lineages.
        positions: Vec<(Stream, Position)>,
    },
    /// To a client that wants to listen: it is sent nothing.
    ListenRefused {
        /// For programs: [`Reason::Limit`] if it may ask again later, [`Reason::Invalid`] if that is no use.
        reason: Reason,
        /// For people.
        text: String,
    },
    /// From a replica to its region's configuration service: make me a member.
    Join {
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
    Alive {
        /// The epoch that it knows.
        epoch: u64,
        /// Joining replicas that have what it has, if it is the tail.
        caught_up: Vec<ReplicaId>,
        /// What it waits for.
        waits: Waits,
        /// What it has.
        has: Has,
    },
    /// To the replica behind: you are the tail now. To one that is joining: you have been sent what you need to
    /// become it.
    Token {
        /// The epoch in which it is.
        epoch: u64,
    },
    /// From a joining replica, in answer to the token.
    Ready {
        /// The epoch in which it is.
        epoch: u64,
    },
    /// From a client that takes part in the region-level protocol: to a tail, which answers [`Message::Listening`],
    /// or, as the first one in both directions, to another such client.
    Share {
        /// The sender.
        member: region::Member,
        /// To a tail: where it begins, [`FROM_NOW`] among it; to another client: nothing.
        positions: Vec<(Stream, Position)>,
    },
    /// Between those who take part.
    Region(region::Message),
    /// The last one on a connection of two clients that one of them has no use for any more.
    Bye,
}

/// How far a replica has a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Advertised {
    /// The stream.
    pub stream: Stream,
    /// The last number that is held, and of which lineage.
    pub count: Position,
    /// So many milliseconds before this was sent the stream's own region had acknowledged nothing that is not among it;
    /// [`AGE_UNKNOWN`] if that is not known.
    pub age_ms: u32,
}

/// For how long a replica has waited for what its place in the chain needs, in milliseconds in which it was awake; 0 if
/// it does not wait.
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
    /// The epoch of the last chain, as it knows, of which it was a member, or to which the tail had handed over: what
    /// that chain's members acknowledged until then it has. 0 if there was none.
    pub epoch: u64,
    /// The last numbers of all its streams, added up.
    pub events: u64,
}

/// Who published a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The publisher.
    pub client: PublisherId,
    /// Its own number of the batch's first event.
    pub first: u64,
}

impl Origin {
    /// Whether so many events can have numbers from `first` on, which are at least 1.
    pub fn may_have(&self, count: u32) -> bool {
        self.first > 0 && self.first.checked_add(u64::from(count)).is_some()
    }
}

impl Message {
    /// Appends the message as a frame.
    pub fn encode(&self, out: &mut BytesMut) {
        self.encode_with(out, &mut put_bytes);
    }

    /// As [`encode`](Self::encode); `place` puts the bytes of events that go to many where they belong, or answers how
    /// many of them it has not.
    pub(crate) fn encode_with(
        &self,
        out: &mut BytesMut,
        place: &mut impl FnMut(&mut BytesMut, &Bytes) -> usize,
    ) {
        let start = out.len();
        let mut apart = 0;
        out.put_u32_le(0);
        match self {
            Message::Hello { version, region, role } => {
                out.put_u8(1);
                out.put_u16_le(*version);
                let (code, replica, client) = match role {
                    Role::Client(client) => (0, 0, *client),
                    Role::Replica(replica) => (1, *replica, 0),
                };
                out.put_u8(code);
                put_text(out, region);
                out.put_u64_le(replica);
                out.put_u128_le(client);
            }
            Message::Chain(chain) => {
                out.put_u8(2);
                put_chain(out, chain);
            }
            Message::Publish { stream, client, answered, first, batch } => {
                out.put_u8(3);
                put_stream(out, stream);
                out.put_u128_le(*client);
                out.put_u64_le(*answered);
                out.put_u64_le(*first);
                put_batch(out, batch);
            }
            Message::Published { stream, number, seq, repeated } => {
                out.put_u8(4);
                put_stream(out, stream);
                out.put_u64_le(*number);
                out.put_u64_le(*seq);
                out.put_u8((*repeated).into());
            }
            Message::Refused { stream, first, reason, text } => {
                out.put_u8(5);
                put_stream(out, stream);
                out.put_u64_le(*first);
                put_refusal(out, *reason, text);
            }
            Message::Advertise { epoch, answers, counts } => {
                out.put_u8(6);
                out.put_u64_le(*epoch);
                out.put_u8(u8::from(answers.is_some()));
                out.put_u64_le(answers.unwrap_or(0));
                put_list(out, counts, |out, told| {
                    put_stream(out, &told.stream);
                    put_position(out, told.count);
                    out.put_u32_le(told.age_ms);
                });
            }
            Message::Ask { at } => {
                out.put_u8(24);
                out.put_u64_le(*at);
            }
            Message::Subscribe { stream, after } => {
                out.put_u8(7);
                put_stream(out, stream);
                put_position(out, *after);
            }
            Message::Unsubscribe { stream } => {
                out.put_u8(8);
                put_stream(out, stream);
            }
            Message::Events { stream, lineage, batch } => {
                out.put_u8(9);
                put_stream(out, stream);
                out.put_u64_le(*lineage);
                apart = put_batch_with(out, batch, place);
            }
            Message::Follow { epoch, lineage, counts } => {
                out.put_u8(10);
                out.put_u64_le(*epoch);
                out.put_u64_le(*lineage);
                put_counts(out, counts);
            }
            Message::Publishers { stream, numbers } => {
                out.put_u8(11);
                put_stream(out, stream);
                put_list(out, numbers, |out, (client, number)| {
                    out.put_u128_le(*client);
                    out.put_u64_le(*number);
                });
            }
            Message::Append { epoch, stream, lineage, origin, batch } => {
                out.put_u8(12);
                out.put_u64_le(*epoch);
                put_stream(out, stream);
                out.put_u64_le(*lineage);
                out.put_u8(u8::from(origin.is_some()));
                let origin = origin.unwrap_or(Origin { client: 0, first: 0 });
                out.put_u128_le(origin.client);
                out.put_u64_le(origin.first);
                apart = put_batch_with(out, batch, place);
            }
            Message::Held { epoch, counts } => {
                out.put_u8(13);
                out.put_u64_le(*epoch);
                put_counts(out, counts);
            }
            Message::Ready { epoch } => {
                out.put_u8(19);
                out.put_u64_le(*epoch);
            }
            Message::Share { member, positions } => {
                out.put_u8(20);
                region::message::put_member(out, member);
                put_counts(out, positions);
            }
            Message::Region(message) => {
                out.put_u8(21);
                apart = message.encode_with(out, place);
            }
            Message::Bye => out.put_u8(22),
            Message::Applied { epoch, stream, last } => {
                out.put_u8(23);
                out.put_u64_le(*epoch);
                put_stream(out, stream);
                put_position(out, *last);
            }
            Message::Listen { positions, others } => {
                out.put_u8(15);
                put_counts(out, positions);
                out.put_u8(u8::from(*others));
            }
            Message::Listening { positions } => {
                out.put_u8(18);
                put_counts(out, positions);
            }
            Message::ListenRefused { reason, text } => {
                out.put_u8(25);
                put_refusal(out, *reason, text);
            }
            Message::Join { member, durable, started, has } => {
                out.put_u8(16);
                put_member(out, member);
                out.put_u8(u8::from(*durable));
                out.put_u8(u8::from(*started));
                put_has(out, has);
            }
            Message::Alive { epoch, caught_up, waits, has } => {
                out.put_u8(17);
                out.put_u64_le(*epoch);
                put_list(out, caught_up, |out, id| out.put_u64_le(*id));
                put_waits(out, waits);
                put_has(out, has);
            }
            Message::Token { epoch } => {
                out.put_u8(14);
                out.put_u64_le(*epoch);
            }
        }
        let len = (out.len() + apart - start - 4) as u32;
        out[start..start + 4].copy_from_slice(&len.to_le_bytes());
    }

    /// Reads a frame's bytes after its length. Batches in it are checked.
    pub fn decode(frame: Bytes) -> Result<Self, BadMessage> {
        let mut from = Reader::new(frame);
        let message = match from.u8()? {
            1 => {
                let (version, code, region) = (from.u16()?, from.u8()?, from.text()?);
                let (replica, client) = (from.u64()?, from.u128()?);
                let role = match code {
                    0 => Role::Client(client),
                    1 => Role::Replica(replica),
                    other => return Err(BadMessage(format!("role {other} is unknown"))),
                };
                Message::Hello { version, region, role }
            }
            2 => Message::Chain(take_chain(&mut from)?),
            3 => Message::Publish {
                stream: from.stream()?,
                client: from.u128()?,
                answered: from.u64()?,
                first: from.u64()?,
                batch: from.batch()?,
            },
            4 => Message::Published {
                stream: from.stream()?,
                number: from.u64()?,
                seq: from.u64()?,
                repeated: from.u8()? != 0,
            },
            5 => {
                let (stream, first) = (from.stream()?, from.u64()?);
                let (reason, text) = take_refusal(&mut from)?;
                Message::Refused { stream, first, reason, text }
            }
            6 => {
                let (epoch, is_answer, at) = (from.u64()?, from.u8()? != 0, from.u64()?);
                let take = |from: &mut Reader| {
                    Ok(Advertised { stream: from.stream()?, count: from.position()?, age_ms: from.u32()? })
                };
                Message::Advertise { epoch, answers: is_answer.then_some(at), counts: from.list(24, take)? }
            }
            24 => Message::Ask { at: from.u64()? },
            7 => Message::Subscribe { stream: from.stream()?, after: from.position()? },
            8 => Message::Unsubscribe { stream: from.stream()? },
            9 => Message::Events { stream: from.stream()?, lineage: from.u64()?, batch: from.batch()? },
            10 => {
                Message::Follow { epoch: from.u64()?, lineage: from.u64()?, counts: take_counts(&mut from)? }
            }
            11 => Message::Publishers {
                stream: from.stream()?,
                numbers: {
                    let numbers = from.list(24, |from| Ok((from.u128()?, from.u64()?)))?;
                    if numbers.len() > PUBLISHERS_MAX {
                        return Err(BadMessage(format!(
                            "{} publishers, more than {PUBLISHERS_MAX}",
                            numbers.len()
                        )));
                    }
                    numbers
                },
            },
            12 => {
                let (epoch, stream, lineage) = (from.u64()?, from.stream()?, from.u64()?);
                let has = from.u8()? != 0;
                let origin = Origin { client: from.u128()?, first: from.u64()? };
                let batch = from.batch()?;
                let origin = has.then_some(origin);
                if origin.is_some_and(|origin| !origin.may_have(batch.count)) {
                    return Err(BadMessage("a publisher's numbers begin with 1".to_owned()));
                }
                Message::Append { epoch, stream, lineage, origin, batch }
            }
            13 => Message::Held { epoch: from.u64()?, counts: take_counts(&mut from)? },
            14 => Message::Token { epoch: from.u64()? },
            15 => Message::Listen { positions: take_counts(&mut from)?, others: from.u8()? != 0 },
            16 => Message::Join {
                member: take_member(&mut from)?,
                durable: from.u8()? != 0,
                started: from.u8()? != 0,
                has: take_has(&mut from)?,
            },
            19 => Message::Ready { epoch: from.u64()? },
            20 => Message::Share {
                member: region::message::member(&mut from)?,
                positions: take_counts(&mut from)?,
            },
            21 => Message::Region(region::Message::read(&mut from)?),
            22 => Message::Bye,
            23 => Message::Applied { epoch: from.u64()?, stream: from.stream()?, last: from.position()? },
            18 => Message::Listening { positions: take_counts(&mut from)? },
            25 => {
                let (reason, text) = take_refusal(&mut from)?;
                Message::ListenRefused { reason, text }
            }
            17 => Message::Alive {
                epoch: from.u64()?,
                caught_up: from.list(8, Reader::u64)?,
                waits: take_waits(&mut from)?,
                has: take_has(&mut from)?,
            },
            other => return Err(BadMessage(format!("kind {other} is unknown"))),
        };
        from.end()?;
        Ok(message)
    }
}

fn put_refusal(out: &mut BytesMut, reason: Reason, text: &str) {
    out.put_u8(reason as u8);
    let text = &text.as_bytes()[..text.len().min(1000)];
    out.put_u16_le(text.len() as u16);
    out.put_slice(text);
}

fn take_refusal(from: &mut Reader) -> Result<(Reason, String), BadMessage> {
    let (code, len) = (from.u8()?, from.u16()?);
    let text = String::from_utf8_lossy(&from.bytes(usize::from(len))?).into_owned();
    let reason = match code {
        0 => Reason::NotHead,
        1 => Reason::Gap,
        2 => Reason::Invalid,
        3 => Reason::Limit,
        4 => Reason::NotAuthorized,
        other => return Err(BadMessage(format!("reason {other} is unknown"))),
    };
    Ok((reason, text))
}

fn put_waits(out: &mut BytesMut, waits: &Waits) {
    out.put_u64_le(waits.disk_ms);
    out.put_u64_le(waits.before_ms);
    out.put_u8(u8::from(waits.next.is_some()));
    let (next, next_ms) = waits.next.unwrap_or((0, 0));
    out.put_u64_le(next);
    out.put_u64_le(next_ms);
}

fn take_waits(from: &mut Reader) -> Result<Waits, BadMessage> {
    let (disk_ms, before_ms, has_next) = (from.u64()?, from.u64()?, from.u8()? != 0);
    let next = (from.u64()?, from.u64()?);
    Ok(Waits { disk_ms, before_ms, next: has_next.then_some(next) })
}

fn put_has(out: &mut BytesMut, has: &Has) {
    out.put_u64_le(has.lineage);
    out.put_u64_le(has.epoch);
    out.put_u64_le(has.events);
}

fn take_has(from: &mut Reader) -> Result<Has, BadMessage> {
    Ok(Has { lineage: from.u64()?, epoch: from.u64()?, events: from.u64()? })
}

fn put_counts(out: &mut BytesMut, counts: &[(Stream, Position)]) {
    put_list(out, counts, |out, (stream, count)| {
        put_stream(out, stream);
        put_position(out, *count);
    });
}

fn take_counts(from: &mut Reader) -> Result<Vec<(Stream, Position)>, BadMessage> {
    from.list(20, |from| Ok((from.stream()?, from.position()?)))
}

/// Appends a chain: u64 epoch, u64 lineage, text region, then members and joining replicas, each a list of (u64, text).
pub fn put_chain(out: &mut BytesMut, chain: &Chain) {
    out.put_u64_le(chain.epoch);
    out.put_u64_le(chain.lineage);
    put_text(out, &chain.region);
    for members in [&chain.members, &chain.joining] {
        put_list(out, members, put_member);
    }
}

fn put_member(out: &mut BytesMut, member: &Member) {
    out.put_u64_le(member.id);
    put_text(out, &member.address);
}

fn take_member(from: &mut Reader) -> Result<Member, BadMessage> {
    Ok(Member { id: from.u64()?, address: from.text()? })
}

/// Takes what [`put_chain`] wrote.
pub fn take_chain(from: &mut Reader) -> Result<Chain, BadMessage> {
    let (epoch, lineage, region) = (from.u64()?, from.u64()?, from.text()?);
    let mut members = || from.list(9, take_member);
    Ok(Chain { epoch, lineage, region, members: members()?, joining: members()? })
}
