//! One replica of a region's proxy, as a step function: messages and ticks in, messages out. It has no clock,
//! network or disk of its own, so the same code runs on real connections and in a simulated world.
//!
//! An event's way: `publish.rs` gives it its number at the head; `chain.rs` carries it from replica to replica
//! to the tail (section 3.3) and its acknowledgement back; the tail's subscribers get it, among them the heads
//! of other regions, where `proxy.rs` decides whom to subscribe to (section 3.1) and the same chain carries it
//! on. `stream.rs` is what a replica has of one stream.
//!
//! What holds whatever fails:
//! - A replica never accepts a gap: what it has of a stream are the numbers from 1 to its last.
//! - What the head acknowledged, and what any reader outside the chain has seen, all members of the chain hold.
//! - A replica that was removed from the chain acknowledges nothing and is answered nothing: those behind it
//!   have a greater epoch.
//! - Of a stream that is kept on disk, a replica sends the one behind it nothing that its own disk does not have, and
//!   counts nothing else as held. So what was acknowledged, or read, is on the disks of all members, and each of
//!   them can go on alone when all of them ended.
//! - What a replica has of a stream is of one lineage of the stream's region. When it joins a chain of another one it
//!   drops all of it, and gets that chain's; when it hears that another region has begun anew, what it has of that one.

mod chain;
mod delays;
mod follower;
mod fresh;
mod greeting;
mod lineage;
mod proxy;
mod publish;
pub mod publishers;
mod pump;
mod readers;
mod retention;
mod serving;
pub mod stream;
mod waits;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::durability::{Durabilities, Durability};
use crate::history::{Budget, HistoryOptions};
use crate::message::{Chain, Message, PublisherId, Reason, ReplicaId, Role, VERSION};
use crate::name::Stream;
use crate::positions::Position;
use crate::record::Record;
pub use delays::Delays;
use follower::StreamFollower;
pub use lineage::{Dropped, Lineages};
pub use readers::{HELD_BACK_BYTES_MAX, HELD_BACK_MS_MAX, LAG_MS};
use stream::StreamState;

/// One connection of a replica; given by the shell, never reused.
pub type ConnectionId = u64;

/// Bytes that a connection may have waiting; a connection with more gets nothing new until it drained.
pub const WAITING_BYTES_MAX: usize = 1 << 20;
/// Bytes waiting after which a connection is ended: answers and advertisements that are not read.
pub const UNREAD_BYTES_MAX: usize = 16 << 20;
/// Bytes of events in one message, roughly.
pub const MESSAGE_BYTES: usize = 256 << 10;

/// What can be set.
#[derive(Clone, Debug)]
pub struct Config {
    /// This replica's region.
    pub region: String,
    /// This replica.
    pub id: ReplicaId,
    /// How often a tail tells other regions how far it is, in milliseconds.
    pub advertise_ms: u64,
    /// The paper's C, in events times seconds: another proxy has to be ahead of the one subscribed to by this,
    /// divided by the seconds since that one was last further.
    pub damping: f64,
    /// A source of events that said nothing for so long is taken for dead, in milliseconds.
    pub silence_ms: u64,
    /// Streams that publishers of this region may begin.
    pub streams_max: usize,
    /// Bytes of encoded events that a stream of this region may hold, on their way among them, before publishers are
    /// refused; an eighth more for events that collect others, as they make room.
    pub stream_bytes_max: u64,
    /// The same for all streams of this region together.
    pub region_bytes_max: u64,
    /// How long a stream of this region holds its events at least, but for its last one, in milliseconds from when they
    /// got their numbers; 0 is for ever. The chain's head removes older ones.
    pub retention_ms: u64,
    /// Of every stream's history.
    pub history: HistoryOptions,
    /// Which streams are kept on disk.
    pub durability: Durabilities,
}

impl Config {
    /// The defaults.
    pub fn new(region: &str, id: ReplicaId) -> Self {
        Self {
            region: region.to_owned(),
            id,
            advertise_ms: 100,
            damping: 100.0,
            silence_ms: 500,
            streams_max: 64,
            stream_bytes_max: u64::MAX,
            region_bytes_max: u64::MAX,
            retention_ms: 0,
            history: HistoryOptions::default(),
            durability: Durabilities::default(),
        }
    }
}

/// What a replica wants done.
#[derive(Debug, PartialEq)]
pub enum ReplicaOutput {
    /// A message to be sent; the shell says with [`Replica::drained`] when its bytes left.
    Send(ConnectionId, Message),
    /// The connection broke the protocol; the text says how.
    Close(ConnectionId, String),
    /// To be written to the disk, in this order; said only of streams that are kept there.
    Persist {
        /// What.
        record: Record,
        /// To be given to [`Replica::persisted`] once the disk has it.
        ticket: Option<ReplicaTicket>,
    },
    /// All replicas hold the stream up to here, and readers outside the chain may see it. If the stream is kept on
    /// disk it has to get there some time, as [`Record::Held`] behind what was to be written before.
    Held {
        /// The stream.
        stream: Stream,
        /// The last number.
        last: u64,
    },
    /// The replica has dropped all that it had, or had of another region. It is to be put aside on the disk, for
    /// whoever may need it, before anything that follows is written.
    SetAside(Dropped),
}

/// Events that are on their way to the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaTicket {
    /// The stream.
    pub stream: Stream,
    /// The last event's number.
    pub last: u64,
    /// The lineage of the stream's region, if that is another one.
    elsewhere: u64,
    /// How often the replica had forgotten what was on its way: since then other events may have the number.
    forgot: u64,
}

/// Who is at a connection's other end, and which side opened it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Peer {
    /// It connected to us: a client, or a replica of any region, which then asks us for events.
    In(String, Role),
    /// We connected to it, a replica: we ask it for events.
    Out(String, ReplicaId),
}

#[derive(Debug)]
struct Connection {
    peer: Peer,
    /// Bytes handed to the shell that did not leave yet.
    waiting: usize,
    /// When it last said anything, in the shell's milliseconds.
    heard_ms: u64,
    /// As whose subscriber it gets events: where it is in each stream.
    subscriptions: BTreeMap<Stream, Position>,
    /// Up to which number of each of them it was told that retention removed all, if it is a replica.
    told_removed: BTreeMap<Stream, u64>,
    /// How many of them count against [`ABSENT_MAX`](crate::limits::ABSENT_MAX).
    absent: usize,
    /// The one of them whose events filled the connection last.
    filled: Option<Stream>,
    /// Whether it wants streams that begin later as well.
    listens_to_all: bool,
    /// As whose follower down the chain it gets events.
    follows: Option<StreamFollower>,
    /// How far it says it is, if it is another region's tail.
    told: proxy::ProxyTold,
    /// What it asks with and is not answered yet, whether it has ever asked, and when it was last told anything.
    asks: Option<u64>,
    has_asked: bool,
    told_ms: u64,
}

impl Connection {
    /// Whether it may be sent events.
    fn receives(&self) -> bool {
        self.follows.is_some() || !self.subscriptions.is_empty()
    }
}

/// A publish that is not answered yet.
#[derive(Debug)]
struct ReplicaAnswer {
    connection: ConnectionId,
    client: PublisherId,
    stream: Stream,
    number: u64,
    /// `None` if all of it was published earlier.
    seq: Option<u64>,
    /// Whether some of it was.
    repeated: bool,
}

/// A replica.
#[derive(Debug)]
pub struct Replica {
    config: Config,
    chain: Chain,
    /// The lineages of what it has.
    lineages: Lineages,
    /// The epoch whose tail we are, once the token is here.
    token: Option<u64>,
    streams: BTreeMap<Stream, StreamState>,
    /// Bytes that the streams of this region hold at most: counted now and then, and what was published since.
    region_bytes: u64,
    connections: BTreeMap<ConnectionId, Connection>,
    /// Those of them that may be sent events: most clients that share are sent none.
    receivers: BTreeSet<ConnectionId>,
    expects: BTreeMap<Stream, proxy::Expects>,
    answers: BTreeMap<Stream, VecDeque<ReplicaAnswer>>,
    /// How old it is what is known of each stream, and when this replica was last the head and handed over to nobody.
    known: BTreeMap<Stream, fresh::Known>,
    heads_ms: Option<u64>,
    /// The replica we follow, through which connection, and what we last told it to hold.
    following: Option<(ReplicaId, ConnectionId)>,
    told_held: BTreeMap<Stream, u64>,
    /// What is held without us, while we are joining.
    held_before: BTreeMap<Stream, Position>,
    /// The joining replica that this tail hands over to.
    handover: Option<chain::Handover>,
    /// How long it has waited for what.
    watch: waits::Watch,
    now_ms: u64,
    /// The time that events get, in milliseconds since 1970.
    wall_ms: u64,
    /// What `now_ms` was when `wall_ms` was that.
    ticked_ms: u64,
    advertised_ms: u64,
    advertisements: u64,
    /// When it last looked for what retention removes.
    removed_ms: u64,
    /// How far the disk has each of the streams that are kept there.
    persisted: BTreeMap<Stream, u64>,
    /// How often this replica forgot what was on its way.
    forgot: u64,
    /// Whether it restarted with what its disk had, and has no place in a chain yet.
    recovered: bool,
    /// The steps that are left for finding out what may be published.
    admission: Budget,
    outputs: Vec<ReplicaOutput>,
    /// For the metrics.
    pub counters: Counters,
    /// For the metrics, while this replica is a member of the chain: by the streams' region, how long after its number
    /// the oldest event of each batch was known here to be held by all members.
    pub delays: BTreeMap<String, Delays>,
}

/// Numbers since the start.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counters {
    /// Events published here, as the head.
    pub published: u64,
    /// Events published again by a retry, and left out.
    pub repeated: u64,
    /// Events that were refused.
    pub refused: u64,
    /// Events that came down the chain, from the replica before this one.
    pub followed: u64,
    /// Events of other regions that came.
    pub remote: u64,
    /// Times that a subscription moved to another proxy.
    pub moved: u64,
    /// Batches that came with a gap, and were left out.
    pub gaps: u64,
    /// Times that another region told of a stream which was left out, as there were
    /// [`STREAMS_MAX`](crate::limits::STREAMS_MAX).
    pub left_out: u64,
    /// Events that retention removed and nothing had collected.
    pub removed: u64,
    /// Events that were answered later, as the tail, because most listeners lagged.
    pub held_back: u64,
}

impl Replica {
    /// A replica with nothing, in no chain yet.
    pub fn new(config: Config) -> Self {
        Self {
            config,
            chain: Chain::default(),
            lineages: Lineages::default(),
            token: None,
            streams: BTreeMap::new(),
            region_bytes: u64::MAX,
            connections: BTreeMap::new(),
            receivers: BTreeSet::new(),
            expects: BTreeMap::new(),
            answers: BTreeMap::new(),
            known: BTreeMap::new(),
            heads_ms: None,
            following: None,
            told_held: BTreeMap::new(),
            held_before: BTreeMap::new(),
            handover: None,
            watch: waits::Watch::default(),
            now_ms: 0,
            wall_ms: 0,
            ticked_ms: 0,
            advertised_ms: 0,
            advertisements: 0,
            removed_ms: 0,
            persisted: BTreeMap::new(),
            forgot: 0,
            recovered: false,
            admission: Budget::default(),
            outputs: Vec::new(),
            counters: Counters::default(),
            delays: BTreeMap::new(),
        }
    }

    /// A replica that restarts with what its disk had, and the lineages of that.
    pub fn recovered(config: Config, lineages: Lineages, streams: BTreeMap<Stream, StreamState>) -> Self {
        let persisted = streams.iter().map(|(stream, state)| (stream.clone(), state.last())).collect();
        Self { lineages, streams, persisted, recovered: true, ..Self::new(config) }
    }

    /// The chain as this replica knows it.
    pub fn chain(&self) -> &Chain {
        &self.chain
    }

    /// Its streams and what it has of them.
    pub fn streams(&self) -> impl Iterator<Item = (&Stream, &StreamState)> {
        self.streams.iter()
    }

    /// Those of its own region.
    pub fn own_streams(&self) -> impl Iterator<Item = &Stream> {
        self.streams.keys().filter(|stream| self.is_local(stream))
    }

    /// One stream.
    pub fn stream(&self, stream: &Stream) -> Option<&StreamState> {
        self.streams.get(stream)
    }

    /// Its place in the chain, from 1; 0 if it is no member.
    pub fn place(&self) -> usize {
        let found = self.chain.members.iter().position(|member| member.id == self.config.id);
        found.map_or(0, |place| place + 1)
    }

    /// Whether it gives numbers to its region's events.
    pub fn is_head(&self) -> bool {
        self.chain.head() == Some(self.config.id)
    }

    /// Whether it answers readers: it is the last of the chain, and the one before it handed over.
    pub fn is_tail(&self) -> bool {
        self.chain.tail() == Some(self.config.id) && self.token.is_some()
    }

    /// Whether it is a member of the chain that it knows, or joining it.
    pub fn is_in_chain(&self) -> bool {
        self.chain.members.iter().chain(&self.chain.joining).any(|member| member.id == self.config.id)
    }

    /// Who is at a connection's other end.
    pub fn peer(&self, connection: ConnectionId) -> Option<&Peer> {
        self.connections.get(&connection).map(|connection| &connection.peer)
    }

    /// Where this replica has to be connected to for the chain, besides the replicas of other regions.
    pub fn predecessor(&self) -> Option<&crate::message::Member> {
        self.chain.before(self.config.id)
    }

    /// A connection is open, and the other end has said who it is.
    pub fn connected(&mut self, now_ms: u64, connection: ConnectionId, peer: Peer) {
        self.now_ms = now_ms;
        let opened = Connection {
            peer: peer.clone(),
            waiting: 0,
            heard_ms: now_ms,
            subscriptions: BTreeMap::new(),
            told_removed: BTreeMap::new(),
            absent: 0,
            filled: None,
            listens_to_all: false,
            follows: None,
            told: proxy::ProxyTold::default(),
            asks: None,
            has_asked: false,
            told_ms: 0,
        };
        self.connections.insert(connection, opened);
        match peer {
            Peer::In(_, Role::Client(_)) => self.send(connection, Message::Chain(self.chain.clone())),
            Peer::In(_, Role::Replica(_)) => self.advertise_to(connection),
            Peer::Out(..) => self.follow_if_before(connection),
        }
    }

    /// A connection is gone.
    pub fn closed(&mut self, now_ms: u64, connection: ConnectionId) {
        self.now_ms = now_ms;
        self.connections.remove(&connection);
        for answers in self.answers.values_mut() {
            answers.retain(|answer| answer.connection != connection);
        }
        if self.following.is_some_and(|(_, through)| through == connection) {
            self.following = None;
        }
        self.source_lost(connection);
    }

    /// So many bytes of a connection's messages have left.
    pub fn drained(&mut self, connection: ConnectionId, bytes: usize) {
        if let Some(connection) = self.connections.get_mut(&connection) {
            connection.waiting = connection.waiting.saturating_sub(bytes);
        }
    }

    /// A message came.
    pub fn receive(&mut self, now_ms: u64, from: ConnectionId, message: Message) {
        self.now_ms = now_ms;
        let Some(connection) = self.connections.get_mut(&from) else { return };
        connection.heard_ms = now_ms;
        let peer = connection.peer.clone();
        if self.following.is_some_and(|(_, through)| through == from) {
            self.watch.heard_of_before();
        }
        match (message, peer) {
            (Message::Publish { stream, client, answered, first, batch }, Peer::In(..)) => {
                self.publish(from, stream, client, (answered, first), batch);
            }
            (Message::Subscribe { stream, after }, Peer::In(_, Role::Replica(_))) => {
                self.subscribe(from, stream, after);
            }
            (Message::Listen { positions, others }, Peer::In(_, Role::Client(_))) => {
                self.listen(from, positions, others);
            }
            (Message::Unsubscribe { stream }, Peer::In(_, Role::Replica(_))) => {
                if let Some(connection) = self.connections.get_mut(&from) {
                    connection.subscriptions.remove(&stream);
                }
            }
            (Message::Follow { epoch, lineage, counts }, Peer::In(region, Role::Replica(_)))
                if region == self.config.region =>
            {
                self.followed(from, epoch, lineage, counts);
            }
            (Message::Held { epoch, counts }, Peer::In(region, Role::Replica(id)))
                if region == self.config.region =>
            {
                self.follower_holds(from, id, epoch, counts);
            }
            (Message::Held { epoch, counts }, Peer::Out(region, _)) if region == self.config.region => {
                self.tail_holds(from, epoch, counts);
            }
            (Message::Ready { epoch }, Peer::In(region, Role::Replica(id)))
                if region == self.config.region =>
            {
                self.follower_is_ready(id, epoch);
            }
            (Message::Advertise { epoch, answers, counts }, Peer::Out(region, _)) => {
                self.advertised(from, &region, (epoch, answers), counts);
            }
            (Message::Ask { at }, Peer::In(..)) => self.asked(from, at),
            (Message::Events { stream, lineage, batch }, Peer::Out(region, _))
                if region != self.config.region =>
            {
                self.remote_events(from, &stream, lineage, &batch);
            }
            (Message::Publishers { stream, numbers }, Peer::Out(region, _))
                if region == self.config.region =>
            {
                self.publishers_from(from, stream, numbers);
            }
            (Message::Append { epoch, stream, lineage, origin, batch }, Peer::Out(region, id))
                if region == self.config.region =>
            {
                self.append((from, id, epoch), stream, lineage, origin, batch);
            }
            (Message::Applied { epoch, stream, last }, Peer::Out(region, id))
                if region == self.config.region =>
            {
                self.applied_before((from, id, epoch), stream, last);
            }
            (Message::Removed { epoch, stream, last }, Peer::Out(region, id)) => {
                match region == self.config.region {
                    true => self.removed_before((from, id, epoch), &stream, last),
                    false => self.removed_elsewhere(&stream, last),
                }
            }
            (Message::Token { epoch }, Peer::Out(region, _)) if region == self.config.region => {
                self.token_from(from, epoch);
            }
            (message, peer) => {
                let why = format!("{peer:?} may not send {}", kind_of(&message));
                self.outputs.push(ReplicaOutput::Close(from, why));
            }
        }
    }

    /// Time passed: `now_ms` on a clock that never goes back, `wall_ms` since 1970.
    pub fn tick(&mut self, now_ms: u64, wall_ms: u64) {
        (self.now_ms, self.wall_ms, self.ticked_ms) = (now_ms, wall_ms, now_ms);
        self.know_own();
        self.answer_askers();
        let elapsed_ms = now_ms.saturating_sub(self.advertised_ms);
        if elapsed_ms >= self.config.advertise_ms {
            self.advertised_ms = now_ms;
            self.advertisements += 1;
            self.advertise(self.advertisements.is_multiple_of(ADVERTISEMENTS_A_CLIENT));
            self.ask();
            self.watch_sources();
            self.watch_chain(elapsed_ms);
            self.expire();
            self.count_region();
        }
        self.admission.tick();
        let due = self.streams.values_mut().filter(|stream| stream.history.is_due());
        let mut due: Vec<&mut StreamState> = due.collect();
        let steps = SWEEP_STEPS / due.len().max(1);
        for stream in &mut due {
            stream.history.sweep(steps);
        }
    }

    /// Steps, of about 5 ns each, that finding out what may be published took since the start: an input may take very
    /// many of them.
    pub fn steps(&self) -> u64 {
        self.admission.taken()
    }

    /// What is to be done after the inputs so far. The shell calls it after every burst of inputs: events that
    /// came together leave together.
    pub fn outputs(&mut self) -> Vec<ReplicaOutput> {
        self.tell_held();
        self.answer();
        self.pump();
        std::mem::take(&mut self.outputs)
    }

    /// Tells a client how the chain is: it asked a replica that does not answer readers.
    pub fn tell_chain(&mut self, to: ConnectionId) {
        self.send(to, Message::Chain(self.chain.clone()));
    }

    /// The hello that this replica begins its connections with.
    pub fn hello(&self) -> Message {
        let role = Role::Replica(self.config.id);
        Message::Hello { version: VERSION, region: self.config.region.clone(), role }
    }

    /// Whether a stream is kept on disk.
    pub fn is_kept(&self, stream: &Stream) -> bool {
        self.config.durability.of(stream) > Durability::Memory
    }

    fn is_local(&self, stream: &Stream) -> bool {
        stream.region() == self.config.region
    }

    /// A stream's state; a new one's listeners are all those that want every stream.
    fn state_of(&mut self, stream: &Stream) -> &mut StreamState {
        let options = &self.config.history;
        self.streams.entry(stream.clone()).or_insert_with(|| {
            for (id, connection) in self.connections.iter_mut().filter(|(_, c)| c.listens_to_all) {
                connection.subscriptions.entry(stream.clone()).or_insert(Position::START);
                self.receivers.insert(*id);
            }
            StreamState::new(options.clone())
        })
    }

    /// Answers a publisher that its events from `first` on are not published, for a reason that was found before they
    /// came here.
    pub fn refuse(&mut self, to: ConnectionId, stream: Stream, first: u64, reason: Reason, text: String) {
        self.counters.refused += 1;
        self.send(to, Message::Refused { stream, first, reason, text });
    }

    fn send(&mut self, to: ConnectionId, message: Message) {
        let Some(connection) = self.connections.get_mut(&to) else { return };
        connection.waiting += size_of_message(&message);
        if connection.waiting > UNREAD_BYTES_MAX {
            self.outputs.push(ReplicaOutput::Close(to, "it does not read what it is sent".to_owned()));
        } else {
            self.outputs.push(ReplicaOutput::Send(to, message));
        }
    }
}

/// Clients that do not ask are told how far their proxy is with every so many advertisements.
const ADVERTISEMENTS_A_CLIENT: u64 = 5;
/// Steps of the work that is due in all streams together, in one tick: about a millisecond.
const SWEEP_STEPS: usize = 200_000;

/// What a message counts for in a connection's waiting bytes: what it takes in memory, about.
pub fn size_of_message(message: &Message) -> usize {
    let counts =
        |counts: &[(Stream, Position)]| counts.iter().map(|(stream, _)| 64 + stream.as_str().len()).sum();
    64 + match message {
        Message::Advertise { counts, .. } => counts.iter().map(|told| 64 + told.stream.as_str().len()).sum(),
        Message::Listening { positions } | Message::Listen { positions, .. } => counts(positions),
        Message::Follow { counts: held, .. } | Message::Held { counts: held, .. } => counts(held),
        Message::Share { positions, .. } => counts(positions),
        Message::Refused { text, .. } | Message::ListenRefused { text, .. } => text.len(),
        Message::Chain(chain) => chain.members.iter().map(|member| 64 + member.address.len()).sum(),
        Message::Publish { batch, .. } | Message::Events { batch, .. } | Message::Append { batch, .. } => {
            batch.bytes.len()
        }
        Message::Publishers { numbers, .. } => 24 * numbers.len(),
        Message::Region(message) => message.size(),
        _ => 0,
    }
}

fn kind_of(message: &Message) -> &'static str {
    match message {
        Message::Hello { .. } => "a second hello",
        Message::Chain(_) => "a chain",
        Message::Publish { .. } => "a publish",
        Message::Published { .. } | Message::Refused { .. } | Message::ListenRefused { .. } => "an answer",
        Message::Advertise { .. } => "an advertisement",
        Message::Ask { .. } => "an ask",
        Message::Subscribe { .. } | Message::Unsubscribe { .. } => "a subscription",
        Message::Events { .. } => "events",
        Message::Follow { .. } => "a follow",
        Message::Publishers { .. } => "publishers",
        Message::Append { .. } => "an append",
        Message::Applied { .. } => "how far predicates are applied",
        Message::Held { .. } => "what it holds",
        Message::Removed { .. } => "what retention removed",
        Message::Token { .. } | Message::Ready { .. } => "a token",
        Message::Listen { .. } | Message::Listening { .. } => "a listen",
        Message::Join { .. } | Message::Alive { .. } => "a report to the configuration service",
        Message::Share { .. } | Message::Region(_) | Message::Bye => "what clients say to each other",
    }
}
