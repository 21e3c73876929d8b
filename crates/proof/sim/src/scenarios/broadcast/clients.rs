//! Publishers and listeners, as the client library behaves: what a publisher sends is decided by the library's own
//! queue. They keep now and then how far they are, and one that crashes goes on from there, as who it was.

use std::collections::{BTreeMap, VecDeque};

use tailwater_broadcast::checks::Observer;
use tailwater_broadcast::client::queue::Queue;
use tailwater_broadcast::message::{Chain, Message, PublisherId, Reason};
use tailwater_broadcast::{Batch, Heard, Position, Positions, Stream, Writer};

use super::WALL_MS_AT_START;
use super::net::{Pid, SimLinkId};
use super::sharing::Sharer;
use super::truth::{Truths, content, may_be_refused};
use crate::checkers::{Violation, ensure};
use crate::planted::Plant;

/// What a client does about a message.
pub(super) enum NextAct {
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
    pub(super) link: Option<SimLinkId>,
    pub(super) wanted: Option<String>,
    pub(super) at: String,
    ready: bool,
    next: u64,
    /// Its own first and last numbers of what was published together and is not answered, in order.
    waiting: VecDeque<(u64, u64)>,
    queue: Queue<(u64, u64)>,
    /// How many names it had.
    names: u128,
    /// The epoch of the chain of the head that it is connected to, and the greatest of a head that it heard.
    head_epoch: u64,
    epoch: u64,
    /// What it kept: its own number of the first event that was not answered, and that epoch.
    kept: (u64, u64),
    now_ms: u64,
    plant: Plant,
}

impl Publisher {
    pub(super) fn new(region: usize, id: PublisherId, stream: Stream, plant: Plant) -> Self {
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
            head_epoch: 0,
            epoch: 0,
            kept: (1, 0),
            now_ms: 0,
            plant,
        }
    }

    /// What its events collect.
    pub(super) fn kind(&self) -> usize {
        (self.id % 4) as usize
    }

    /// Keeps how far it is.
    pub(super) fn keep(&mut self) {
        self.kept = (self.oldest().unwrap_or(self.next), self.epoch);
    }

    /// It crashed, and comes back with what it had kept: what was not answered then it publishes again, some time.
    pub(super) fn crashed(&mut self) {
        self.lost();
        (self.next, self.epoch) = self.kept;
        self.waiting.clear();
        self.queue = Queue::resume(self.id, self.next, 0);
    }

    pub(super) fn is_done(&self) -> bool {
        self.queue.is_empty()
    }

    /// Its own number of the first event that is not answered.
    pub(super) fn oldest(&self) -> Option<u64> {
        self.waiting.front().map(|(first, _)| *first)
    }

    /// Publishes `count` more events; answers what to send.
    pub(super) fn publish(&mut self, now_ms: u64, count: u64) -> Vec<Message> {
        let numbers = (self.next, self.next + count - 1);
        self.next += count;
        self.waiting.push_back(numbers);
        self.now_ms = now_ms;
        self.push(numbers);
        self.messages()
    }

    fn push(&mut self, (first, last): (u64, u64)) {
        let mut writer = Writer::new(0);
        for number in first..=last {
            let (content, collect) = content(self.id, number, WALL_MS_AT_START + self.now_ms);
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

    pub(super) fn receive(&mut self, message: Message, truths: &mut Truths) -> Result<NextAct, Violation> {
        match message {
            Message::Chain(chain) => match chain.members.first() {
                Some(head) if head.address == self.at => {
                    self.ready = true;
                    self.head_epoch = chain.epoch;
                    self.epoch = self.epoch.max(chain.epoch);
                    Ok(NextAct::Send(self.messages()))
                }
                head => Ok(NextAct::Reconnect(head.map(|head| head.address.clone()))),
            },
            Message::Published { stream, number, seq, repeated } => {
                for ((first, last), told) in self.queue.published(number, seq, repeated) {
                    for each in first..=last {
                        let seq = told.seq.saturating_sub(last - each);
                        truths.acknowledged(&stream, self.id, each, (seq, told.repeated));
                    }
                    self.waiting.pop_front();
                }
                Ok(NextAct::Send(self.messages()))
            }
            Message::Refused { reason: Reason::NotHead, .. } => Ok(NextAct::Reconnect(None)),
            Message::Refused { reason: Reason::Gap, first, .. } => self.gap(first),
            Message::Refused { first, reason, .. } if may_be_refused(self.id) => {
                for (first, last) in self.queue.refused(first, reason) {
                    (first..=last).for_each(|number| truths.refused(&self.stream, self.id, number));
                    self.waiting.retain(|numbers| *numbers != (first, last));
                }
                Ok(NextAct::Send(self.messages()))
            }
            Message::Refused { text, reason, .. } => {
                Err(Violation::new(format!("a publish was refused ({reason:?}): {text}")))
            }
            _ => Ok(NextAct::Nothing),
        }
    }
}

impl Publisher {
    /// The head says that it does not know what came before `first`.
    fn gap(&mut self, first: u64) -> Result<NextAct, Violation> {
        if self.plant == Plant::RenamedOnGap {
            self.rename();
            return Ok(NextAct::Send(self.messages()));
        }
        if self.queue.refused(first, Reason::Gap).is_empty() {
            return Ok(NextAct::Send(self.messages()));
        }
        // It goes on from what it had kept, and was answered up to there.
        ensure(self.head_epoch < self.epoch, || {
            format!(
                "{}: the head of epoch {} misses what publisher {} was answered in epoch {}, before its event {first}",
                self.stream, self.head_epoch, self.id, self.epoch
            )
        })?;
        let oldest = self.oldest().unwrap_or(self.next);
        self.queue = Queue::resume(self.id, oldest, 0);
        for numbers in self.waiting.clone() {
            self.push(numbers);
        }
        Ok(NextAct::Reconnect(None))
    }
}

/// Of a client that listens, where it is, as the library keeps it, and all that it has made of what it got.
#[derive(Clone)]
pub(super) struct Observed {
    pub(super) positions: Positions,
    pub(super) observers: BTreeMap<Stream, Observer>,
    /// The lineages of what those have observed.
    lineages: BTreeMap<Stream, u64>,
    /// How often a region has begun anew.
    pub(super) anew: u64,
    /// How often it was told that events were removed before it got them.
    pub(super) removed: u64,
}

impl Default for Observed {
    fn default() -> Self {
        Self {
            positions: Positions::start(),
            observers: BTreeMap::new(),
            lineages: BTreeMap::new(),
            anew: 0,
            removed: 0,
        }
    }
}

impl Observed {
    /// Where it is, by way of a resume token.
    pub(super) fn resumed(&self) -> Result<Positions, Violation> {
        Positions::parse(&self.positions.token()).map_err(|error| Violation::new(error.to_string()))
    }

    /// The last number that it has observed.
    pub(super) fn at(&self, stream: &Stream) -> u64 {
        self.observers.get(stream).map_or(0, Observer::at)
    }

    /// It is told that a region has begun anew.
    pub(super) fn begin_anew(&mut self, region: &str, lineage: u64) {
        self.anew += 1;
        self.positions.begin_anew(region, lineage);
        self.observers.retain(|stream, _| stream.region() != region);
        self.lineages.retain(|stream, _| stream.region() != region);
    }

    /// Whether what is said in a lineage is of what it listens to.
    fn hears(&mut self, stream: &Stream, lineage: u64) -> bool {
        let heard = self.positions.hear(stream, lineage);
        if heard == Heard::Anew {
            self.begin_anew(stream.region(), lineage);
        }
        heard != Heard::Older
    }

    /// It is delivered events.
    pub(super) fn delivered(
        &mut self,
        (stream, lineage): (&Stream, u64),
        batch: &Batch,
        truths: &Truths,
    ) -> Result<(), Violation> {
        let observed = *self.lineages.entry(stream.clone()).or_insert(lineage);
        ensure(observed == lineage, || {
            format!("{stream}: a listener goes on with lineage {lineage} behind {observed}, and was not told")
        })?;
        let observer = self.observers.entry(stream.clone()).or_insert_with(|| Observer::new(0));
        if batch.removed > 0 {
            self.removed += 1;
            truths.told_removed((stream, lineage), observer, batch.removed)?;
        }
        for event in batch.events() {
            let event = event.map_err(|error| Violation::new(error.to_string()))?;
            truths.delivered((stream, lineage), observer, &event)?;
        }
        let position = Position { lineage, seq: observer.at() };
        self.positions.streams.insert(stream.clone(), position);
        Ok(())
    }
}

/// Listens to everything, from the beginning, and where a region begins anew from there.
pub(super) struct Listener {
    pub(super) region: usize,
    pub(super) link: Option<SimLinkId>,
    pub(super) wanted: Option<String>,
    pub(super) at: String,
    pub(super) observed: Observed,
    /// What it kept.
    kept: Observed,
    /// A bug: where it goes on, if not from what it kept.
    ahead: Option<Positions>,
    /// Whether it is away.
    pub(super) is_away: bool,
    plant: Plant,
}

impl Listener {
    pub(super) fn new(region: usize, plant: Plant) -> Self {
        Self {
            region,
            link: None,
            wanted: None,
            at: String::new(),
            observed: Observed::default(),
            kept: Observed::default(),
            ahead: None,
            is_away: false,
            plant,
        }
    }

    /// Keeps where it is.
    pub(super) fn keep(&mut self) {
        self.kept = self.observed.clone();
    }

    /// It crashed, and comes back with what it had kept, or with nothing.
    pub(super) fn crashed(&mut self, with_nothing: bool) -> Result<(), Violation> {
        self.link = None;
        if with_nothing {
            self.kept = Observed::default();
        } else if self.plant == Plant::PositionKeptTooEarly {
            self.ahead = Some(self.observed.resumed()?);
        }
        self.observed = self.kept.clone();
        Ok(())
    }

    /// What it says to the tail of a chain.
    fn listen(&mut self, chain: &Chain) -> Result<Message, Violation> {
        let Positions { streams, others } = match self.ahead.take() {
            Some(ahead) => ahead,
            None => self.observed.resumed()?,
        };
        let positions = self.plant.broadcast_positions(chain, streams.into_iter().collect());
        Ok(Message::Listen { positions, others })
    }

    pub(super) fn receive(&mut self, message: Message, truths: &mut Truths) -> Result<NextAct, Violation> {
        match message {
            Message::Chain(chain) => self.chain(&chain),
            Message::Listening { positions } => {
                for (stream, position) in positions {
                    self.observed.hears(&stream, position.lineage);
                }
                Ok(NextAct::Nothing)
            }
            Message::Events { stream, lineage, batch } => {
                if !self.observed.hears(&stream, lineage) {
                    return Ok(NextAct::Nothing);
                }
                // A listener that asked twice is sent some of it twice.
                let rest = batch.rest(self.observed.at(&stream));
                if let Some(batch) = rest.map_err(|error| Violation::new(error.to_string()))? {
                    self.observed.delivered((&stream, lineage), &batch, truths)?;
                }
                Ok(NextAct::Nothing)
            }
            _ => Ok(NextAct::Nothing),
        }
    }

    fn chain(&mut self, chain: &Chain) -> Result<NextAct, Violation> {
        Ok(match chain.members.last() {
            Some(tail) if tail.address == self.at => NextAct::Send(vec![self.listen(chain)?]),
            tail => NextAct::Reconnect(tail.map(|tail| tail.address.clone())),
        })
    }
}

/// One of them.
pub(super) enum Client {
    Publisher(Publisher),
    Listener(Listener),
    Sharer(Sharer),
}

impl Client {
    pub(super) fn receive(&mut self, message: Message, truths: &mut Truths) -> Result<NextAct, Violation> {
        match self {
            Client::Publisher(publisher) => publisher.receive(message, truths),
            Client::Listener(listener) => listener.receive(message, truths),
            Client::Sharer(_) => Ok(NextAct::Nothing),
        }
    }

    pub(super) fn region(&self) -> usize {
        match self {
            Client::Publisher(publisher) => publisher.region,
            Client::Listener(listener) => listener.region,
            Client::Sharer(sharer) => sharer.region,
        }
    }

    pub(super) fn link(&self) -> Option<SimLinkId> {
        match self {
            Client::Publisher(publisher) => publisher.link,
            Client::Listener(listener) => listener.link,
            Client::Sharer(sharer) => sharer.link,
        }
    }

    pub(super) fn linked(&mut self, link: SimLinkId, at: String) {
        match self {
            Client::Publisher(publisher) => (publisher.link, publisher.at) = (Some(link), at),
            Client::Listener(listener) => (listener.link, listener.at) = (Some(link), at),
            Client::Sharer(sharer) => (sharer.link, sharer.at) = (Some(link), at),
        }
    }

    pub(super) fn lost(&mut self) {
        match self {
            Client::Publisher(publisher) => publisher.lost(),
            Client::Listener(listener) => listener.link = None,
            Client::Sharer(sharer) => sharer.link = None,
        }
    }

    pub(super) fn wanted(&mut self) -> &mut Option<String> {
        match self {
            Client::Publisher(publisher) => &mut publisher.wanted,
            Client::Listener(listener) => &mut listener.wanted,
            Client::Sharer(sharer) => &mut sharer.wanted,
        }
    }

    pub(super) fn id(&self, pid: Pid) -> PublisherId {
        match self {
            Client::Publisher(publisher) => publisher.id,
            Client::Listener(_) | Client::Sharer(_) => u128::from(pid),
        }
    }
}
