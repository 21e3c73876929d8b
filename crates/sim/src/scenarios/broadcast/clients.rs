//! Publishers and listeners, as the client library behaves.

use std::collections::{BTreeMap, VecDeque};

use tailwater_broadcast::checks::Observer;
use tailwater_broadcast::message::{Chain, Message, PublisherId, Reason};
use tailwater_broadcast::{Batch, Stream, Writer};

use super::net::{LinkId, Pid};
use super::truth::{Truths, content};
use crate::checkers::Violation;

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
    pending: VecDeque<(u64, Batch)>,
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
            pending: VecDeque::new(),
        }
    }

    pub(super) fn is_done(&self) -> bool {
        self.pending.is_empty()
    }

    /// Its own number of the first event that is not answered.
    pub(super) fn oldest(&self) -> Option<u64> {
        self.pending.front().map(|(first, _)| *first)
    }

    /// Publishes `count` more events; answers what to send.
    pub(super) fn publish(&mut self, count: u64) -> Option<Message> {
        let mut writer = Writer::new(0);
        for number in self.next..self.next + count {
            let (content, collect) = content(self.id, number);
            writer.publish(&content, collect.as_ref()).expect("it is small");
        }
        let batch = writer.finish(0);
        self.pending.push_back((self.next, batch.clone()));
        let message = self.message(self.next, batch);
        self.next += count;
        self.ready.then_some(message)
    }

    fn message(&self, first: u64, batch: Batch) -> Message {
        Message::Publish { stream: self.stream.clone(), client: self.id, first, batch }
    }

    pub(super) fn lost(&mut self) {
        self.ready = false;
        self.link = None;
    }

    pub(super) fn receive(&mut self, message: Message, truths: &mut Truths) -> Result<Next, Violation> {
        match message {
            Message::Chain(chain) => match chain.members.first() {
                Some(head) if head.address == self.at => {
                    if self.ready {
                        return Ok(Next::Nothing);
                    }
                    self.ready = true;
                    let again = self.pending.iter().map(|(first, batch)| self.message(*first, batch.clone()));
                    Ok(Next::Send(again.collect()))
                }
                head => Ok(Next::Reconnect(head.map(|head| head.address.clone()))),
            },
            Message::Published { stream, number, seq, repeated } => {
                while let Some((first, batch)) = self.pending.front() {
                    let last = first + u64::from(batch.count) - 1;
                    if last > number {
                        break;
                    }
                    for each in *first..=last {
                        let told = seq.saturating_sub(number - each);
                        truths.acknowledged(&stream, self.id, each, (told, repeated));
                    }
                    self.pending.pop_front();
                }
                Ok(Next::Nothing)
            }
            Message::Refused { reason: Reason::NotHead, .. } => Ok(Next::Reconnect(None)),
            // It became the head between two messages, and refused the first one.
            Message::Refused { reason: Reason::Gap, .. } => Ok(Next::Nothing),
            Message::Refused { text, reason, .. } => {
                Err(Violation::new(format!("a publish was refused ({reason:?}): {text}")))
            }
            _ => Ok(Next::Nothing),
        }
    }
}

/// Listens to everything, from the beginning.
pub(super) struct Listener {
    pub(super) region: usize,
    pub(super) link: Option<LinkId>,
    pub(super) wanted: Option<String>,
    pub(super) at: String,
    pub(super) observers: BTreeMap<Stream, Observer>,
}

impl Listener {
    pub(super) fn new(region: usize) -> Self {
        Self { region, link: None, wanted: None, at: String::new(), observers: BTreeMap::new() }
    }

    pub(super) fn listen(&self) -> Message {
        let positions = self.observers.iter().map(|(stream, observer)| (stream.clone(), observer.at()));
        Message::Listen { positions: positions.collect(), others: true }
    }

    pub(super) fn receive(&mut self, message: Message, truths: &mut Truths) -> Result<Next, Violation> {
        match message {
            Message::Chain(chain) => Ok(self.chain(&chain)),
            Message::Events { stream, batch } => {
                let observer = self.observers.entry(stream.clone()).or_insert_with(|| Observer::new(0));
                // A listener that asked twice is sent some of it twice.
                let rest = batch.rest(observer.at()).map_err(|error| Violation::new(error.to_string()))?;
                let Some(batch) = rest else { return Ok(Next::Nothing) };
                for event in batch.events() {
                    let event = event.map_err(|error| Violation::new(error.to_string()))?;
                    truths.delivered(&stream, observer, &event)?;
                }
                Ok(Next::Nothing)
            }
            _ => Ok(Next::Nothing),
        }
    }

    fn chain(&mut self, chain: &Chain) -> Next {
        match chain.members.last() {
            Some(tail) if tail.address == self.at => Next::Send(vec![self.listen()]),
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
