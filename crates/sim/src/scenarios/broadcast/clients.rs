//! Publishers and listeners, as the client library behaves: what a publisher sends is decided by the library's own queue.

use std::collections::{BTreeMap, VecDeque};

use tailwater_broadcast::checks::Observer;
use tailwater_broadcast::client::queue::Queue;
use tailwater_broadcast::message::{Chain, Message, PublisherId, Reason};
use tailwater_broadcast::{Heard, Position, Positions, Stream, Writer};

use super::net::{LinkId, Pid};
use super::truth::{Truths, content};
use crate::checkers::{Violation, ensure};
use crate::planted::Plant;

/// What a client does about a message.
pub(super) enum Next {
    Nothing,
    Send(Vec<Message>),
    /// It is connected to the wrong replica: try this one, or any.
    Reconnect(Option<String>),
}

/// Publishes to one stream, and tries again until it is told that it is published.
pub(super) struct Publisher {
    pub(super) region: usize,
    pub(super) id: PublisherId,
    pub(super) stream: Stream,
    pub(super) link: Option<LinkId>,
    pub(super) wanted: Option<String>,
    pub(super) at: String,
    ready: bool,
    next: u64,
    /// Its own first and last numbers of what was published together and is not answered, in order.
    waiting: VecDeque<(u64, u64)>,
    queue: Queue<(u64, u64)>,
    /// How many names it had.
    names: u128,
}

impl Publisher {
    pub(super) fn new(region: usize, id: PublisherId, stream: Stream) -> Self {
        Self {
            region,
            id,
            stream,
            link: None,
            wanted: None,
            at: String::new(),
            ready: false,
            next: 1,
            waiting: VecDeque::new(),
            queue: Queue::new(id),
            names: 1,
        }
    }

    pub(super) fn is_done(&self) -> bool {
        self.queue.is_empty()
    }

    /// Its own number of the first event that is not answered.
    pub(super) fn oldest(&self) -> Option<u64> {
        self.waiting.front().map(|(first, _)| *first)
    }

    /// Publishes `count` more events; answers what to send.
    pub(super) fn publish(&mut self, count: u64) -> Vec<Message> {
        let numbers = (self.next, self.next + count - 1);
        self.next += count;
        self.waiting.push_back(numbers);
        self.push(numbers);
        self.messages()
    }

    fn push(&mut self, (first, last): (u64, u64)) {
        let mut writer = Writer::new(0);
        for number in first..=last {
            let (content, collect) = content(self.id, number);
            writer.publish(&content, collect.as_ref()).expect("it is small");
        }
        self.queue.push(writer.finish(0), (first, last));
    }

    fn messages(&mut self) -> Vec<Message> {
        if !self.ready {
            return Vec::new();
        }
        std::iter::from_fn(|| self.queue.next(&self.stream)).collect()
    }

    /// A bug: it goes on as somebody else, with all that is not answered.
    pub(super) fn rename(&mut self) {
        self.queue = Queue::new(self.id + (self.names << 80));
        self.names += 1;
        for numbers in self.waiting.clone() {
            self.push(numbers);
        }
    }

    pub(super) fn lost(&mut self) {
        self.ready = false;
        self.link = None;
        self.queue.reconnected();
    }

    pub(super) fn receive(&mut self, message: Message, truths: &mut Truths) -> Result<Next, Violation> {
        match message {
            Message::Chain(chain) => match chain.members.first() {
                Some(head) if head.address == self.at => {
                    self.ready = true;
                    Ok(Next::Send(self.messages()))
                }
                head => Ok(Next::Reconnect(head.map(|head| head.address.clone()))),
            },
            Message::Published { stream, number, seq, repeated } => {
                for ((first, last), told) in self.queue.published(number, seq, repeated) {
                    for each in first..=last {
                        let seq = told.seq.saturating_sub(last - each);
                        truths.acknowledged(&stream, self.id, each, (seq, told.repeated));
                    }
                    self.waiting.pop_front();
                }
                Ok(Next::Send(self.messages()))
            }
            Message::Refused { reason: Reason::NotHead, .. } => Ok(Next::Reconnect(None)),
            Message::Refused { reason: Reason::Gap, first, .. } => {
                self.queue.refused(first, Reason::Gap);
                Ok(Next::Send(self.messages()))
            }
            Message::Refused { text, reason, .. } => {
                Err(Violation::new(format!("a publish was refused ({reason:?}): {text}")))
            }
            _ => Ok(Next::Nothing),
        }
    }
}

/// Listens to everything, from the beginning, and where a region begins anew from there.
pub(super) struct Listener {
    pub(super) region: usize,
    pub(super) link: Option<LinkId>,
    pub(super) wanted: Option<String>,
    pub(super) at: String,
    pub(super) observers: BTreeMap<Stream, Observer>,
    /// The lineages of what those have observed.
    lineages: BTreeMap<Stream, u64>,
    /// Where it is, as the library keeps it.
    pub(super) positions: Positions,
    /// Whether it is away.
    pub(super) is_away: bool,
    /// How often a region has begun anew.
    pub(super) anew: u64,
    plant: Plant,
}

impl Listener {
    pub(super) fn new(region: usize, plant: Plant) -> Self {
        Self {
            region,
            link: None,
            wanted: None,
            at: String::new(),
            observers: BTreeMap::new(),
            lineages: BTreeMap::new(),
            positions: Positions::start(),
            is_away: false,
            anew: 0,
            plant,
        }
    }

    /// What it says to the tail of a chain.
    pub(super) fn listen(&self, chain: &Chain) -> Message {
        let positions = self.positions.streams.iter().map(|(stream, position)| (stream.clone(), *position));
        let positions = self.plant.broadcast_positions(chain, positions.collect());
        Message::Listen { positions, others: true }
    }

    /// Whether what is said in a lineage is of what it listens to.
    fn hears(&mut self, stream: &Stream, lineage: u64) -> bool {
        let heard = self.positions.hear(stream, lineage);
        if heard == Heard::Anew {
            self.anew += 1;
            self.observers.retain(|other, _| other.region() != stream.region());
            self.lineages.retain(|other, _| other.region() != stream.region());
        }
        heard != Heard::Older
    }

    pub(super) fn receive(&mut self, message: Message, truths: &mut Truths) -> Result<Next, Violation> {
        match message {
            Message::Chain(chain) => Ok(self.chain(&chain)),
            Message::Listening { positions } => {
                for (stream, position) in positions {
                    self.hears(&stream, position.lineage);
                }
                Ok(Next::Nothing)
            }
            Message::Events { stream, lineage, batch } => {
                if !self.hears(&stream, lineage) {
                    return Ok(Next::Nothing);
                }
                let observed = *self.lineages.entry(stream.clone()).or_insert(lineage);
                ensure(observed == lineage, || {
                    format!(
                        "{stream}: a listener goes on with lineage {lineage} behind {observed}, and was not told"
                    )
                })?;
                let observer = self.observers.entry(stream.clone()).or_insert_with(|| Observer::new(0));
                // A listener that asked twice is sent some of it twice.
                let rest = batch.rest(observer.at()).map_err(|error| Violation::new(error.to_string()))?;
                let Some(batch) = rest else { return Ok(Next::Nothing) };
                for event in batch.events() {
                    let event = event.map_err(|error| Violation::new(error.to_string()))?;
                    truths.delivered((&stream, lineage), observer, &event)?;
                }
                let position = Position { lineage, seq: observer.at() };
                self.positions.streams.insert(stream, position);
                Ok(Next::Nothing)
            }
            _ => Ok(Next::Nothing),
        }
    }

    fn chain(&mut self, chain: &Chain) -> Next {
        match chain.members.last() {
            Some(tail) if tail.address == self.at => Next::Send(vec![self.listen(chain)]),
            tail => Next::Reconnect(tail.map(|tail| tail.address.clone())),
        }
    }
}

/// Either.
pub(super) enum Client {
    Publisher(Publisher),
    Listener(Listener),
}

impl Client {
    pub(super) fn receive(&mut self, message: Message, truths: &mut Truths) -> Result<Next, Violation> {
        match self {
            Client::Publisher(publisher) => publisher.receive(message, truths),
            Client::Listener(listener) => listener.receive(message, truths),
        }
    }

    pub(super) fn region(&self) -> usize {
        match self {
            Client::Publisher(publisher) => publisher.region,
            Client::Listener(listener) => listener.region,
        }
    }

    pub(super) fn link(&self) -> Option<LinkId> {
        match self {
            Client::Publisher(publisher) => publisher.link,
            Client::Listener(listener) => listener.link,
        }
    }

    pub(super) fn linked(&mut self, link: LinkId, at: String) {
        match self {
            Client::Publisher(publisher) => (publisher.link, publisher.at) = (Some(link), at),
            Client::Listener(listener) => (listener.link, listener.at) = (Some(link), at),
        }
    }

    pub(super) fn lost(&mut self) {
        match self {
            Client::Publisher(publisher) => publisher.lost(),
            Client::Listener(listener) => listener.link = None,
        }
    }

    pub(super) fn wanted(&mut self) -> &mut Option<String> {
        match self {
            Client::Publisher(publisher) => &mut publisher.wanted,
            Client::Listener(listener) => &mut listener.wanted,
        }
    }

    pub(super) fn id(&self, pid: Pid) -> PublisherId {
        match self {
            Client::Publisher(publisher) => publisher.id,
            Client::Listener(_) => u128::from(pid),
        }
    }
}
