//! Publishing.
//!
//! Events of one stream leave in the order in which they were given. While some are on their way the next ones
//! gather, so batches grow with the load and a lone event waits for nothing. What is not acknowledged is sent
//! again to whoever is the head by then, under the numbers that it had: the chain leaves out what it has.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tailwater_env::{Env, Task};
use tokio::sync::{mpsc, oneshot};

use crate::batch::{Batch, Malformed, TooLarge, Writer};
use crate::client::link::{self, CLIENT, End, Link};
use crate::event::{Collect, Content};
use crate::message::{GATEWAY, Message, PublisherId, Reason};
use crate::name::Stream;

/// Requests taken at once.
const GATHERED_MAX: usize = 4096;
/// Bytes of events that are not acknowledged yet; beyond it nothing more is taken.
pub const UNACKNOWLEDGED_BYTES_MAX: usize = 64 << 20;
/// Batches of a stream on their way.
const IN_FLIGHT_MAX: usize = 8;
/// Bytes of events in one message.
const MESSAGE_BYTES: usize = 256 << 10;
/// A pause between two tries to reach the head.
const RETRY: Duration = Duration::from_millis(50);
/// How long the head may say nothing: it says that it is alive more often than that.
const SILENCE: Duration = Duration::from_secs(3);

/// Why an event was not published.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PublishError {
    /// A part of it is too large.
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
    /// It is no batch of events.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// The head refused it.
    #[error("{stream}: {text}")]
    Refused {
        /// The stream.
        stream: Stream,
        /// For programs.
        reason: Reason,
        /// For people.
        text: String,
    },
    /// More than [`UNACKNOWLEDGED_BYTES_MAX`] wait for the chain: await earlier answers first.
    #[error("too much is waiting to be published: await earlier answers first")]
    Full,
    /// The publisher has ended; whether the event is published is open.
    #[error("the publisher has ended")]
    Ended,
}

/// What a publisher is told of an event that all replicas of its region hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acknowledged {
    /// The event's number in its stream. If it was `repeated`, a number up to which all replicas hold the stream, which is not
    /// smaller.
    pub seq: u64,
    /// Whether an earlier try had published it, so that its own number is not known any more.
    pub repeated: bool,
}

/// Publishes events. Dropping it gives up what is not acknowledged.
#[derive(Debug)]
pub struct Publisher {
    requests: mpsc::UnboundedSender<Request>,
    waiting: Arc<AtomicUsize>,
    _task: Task,
}

#[derive(Debug)]
struct Request {
    stream: Stream,
    batch: Batch,
    answer: Answer,
}

/// A message's worth of events, with who waits for which of them.
#[derive(Debug)]
struct Pending {
    first: u64,
    /// What was given, in order; one batch once it was sent.
    batches: Vec<Batch>,
    count: u64,
    bytes: usize,
    answers: Vec<(u64, Answer)>,
    sent: bool,
    /// Whether nothing is put together with it: something was, and was refused, or the head may have it already.
    alone: bool,
}

impl Pending {
    /// What each one asked for, by itself.
    fn apart(mut self) -> Vec<Self> {
        let whole = self.joined();
        let mut next = self.first;
        let each = self.answers.into_iter().map(|(last, answer)| {
            let first = std::mem::replace(&mut next, last + 1);
            let part = whole.rest(whole.after + (first - self.first)).ok().flatten();
            let part = part.and_then(|rest| rest.up_to(whole.after + (next - self.first)).ok().flatten());
            let batch = part.expect("each has events, and no tombstones");
            let (count, bytes) = (u64::from(batch.count), batch.bytes.len());
            let (batches, answers) = (vec![batch], vec![(last, answer)]);
            Self { first, batches, count, bytes, answers, sent: false, alone: true }
        });
        each.collect()
    }

    /// All of it as one batch.
    fn joined(&mut self) -> Batch {
        if let [first, .., _] = self.batches.as_slice() {
            let mut writer = Writer::new(first.after);
            for batch in &self.batches {
                writer.extend(batch).expect("they were checked when they were given");
            }
            self.batches = vec![writer.finish(0)];
        }
        self.batches[0].clone()
    }
}

#[derive(Debug)]
struct Queue {
    /// As whom it publishes in this stream.
    client: PublisherId,
    /// Whether any of it was published.
    began: bool,
    /// Whether it goes on from an earlier publisher's numbers, and so can't take others.
    resumed: bool,
    pending: VecDeque<Pending>,
    next: u64,
}

impl Publisher {
    /// A publisher for the region whose replicas are at `addresses` (any of them is enough). It connects by
    /// itself, and again when it has to.
    pub fn new(env: &Env, addresses: Vec<String>) -> Self {
        Self::start(env, addresses, CLIENT)
    }

    /// As [`Publisher::new`], for the events of others, whose quotas its owner looks after: that of one connection does
    /// not apply.
    pub fn gateway(env: &Env, addresses: Vec<String>) -> Self {
        Self::start(env, addresses, GATEWAY)
    }

    /// As [`Publisher::gateway`], one that goes on where an earlier one was: in `stream` the next event that it is
    /// given is the one that `client` gave the number `next`, from 1. What of that the chain has is left out, and
    /// answered how far the stream is, also after a restart of whoever publishes.
    ///
    /// An event is refused with [`Reason::Gap`] if the chain does not know the one before it, because its replicas lost
    /// the stream or forgot the publisher: then it needs another `client`.
    pub fn resume(env: &Env, addresses: Vec<String>, stream: Stream, client: PublisherId, next: u64) -> Self {
        let queue = Queue { client, began: true, resumed: true, pending: VecDeque::new(), next };
        Self::begin(env, addresses, GATEWAY, [(stream, queue)].into())
    }

    fn start(env: &Env, addresses: Vec<String>, region: &'static str) -> Self {
        Self::begin(env, addresses, region, BTreeMap::new())
    }

    fn begin(
        env: &Env,
        addresses: Vec<String>,
        region: &'static str,
        queues: BTreeMap<Stream, Queue>,
    ) -> Self {
        let (requests, queue) = mpsc::unbounded_channel();
        let state = State { env: env.clone(), addresses, region, queues };
        let task = env.spawn("broadcast-publisher", state.run(queue));
        Self { requests, waiting: Arc::default(), _task: task }
    }

    /// Publishes an event: it is held by the tail of its region's chain, and so by all its replicas, when this
    /// completes.
    ///
    /// Events are published in the order of these calls, whether or not what they answer was awaited. Dropping
    /// the answer leaves open whether the event is published.
    pub fn publish(
        &self,
        stream: &Stream,
        content: &Content,
        collect: Option<&Collect>,
    ) -> impl Future<Output = Result<Acknowledged, PublishError>> + Send + use<> {
        let mut writer = Writer::new(0);
        let published = writer.publish(content, collect);
        let batch = published.map(|()| writer.finish(0)).map_err(PublishError::from);
        let answered = batch.and_then(|batch| self.enqueue(stream, batch));
        async move { answered?.await.map_err(|_| PublishError::Ended)? }
    }

    /// As [`Publisher::publish`], for several events, made with [`Writer`] from 0 on; what is answered is the last one's.
    pub fn publish_batch(
        &self,
        stream: &Stream,
        batch: Batch,
    ) -> impl Future<Output = Result<Acknowledged, PublishError>> + Send + use<> {
        let checked = batch.check().and_then(|()| match batch.last - batch.after == u64::from(batch.count) {
            true => Ok(()),
            false => Err(Malformed("what is published can't contain tombstones")),
        });
        let answered = checked.map_err(PublishError::from).and_then(|()| self.enqueue(stream, batch));
        async move { answered?.await.map_err(|_| PublishError::Ended)? }
    }

    fn enqueue(&self, stream: &Stream, batch: Batch) -> Result<Answered, PublishError> {
        let bytes = batch.bytes.len() + 64;
        if self.waiting.fetch_add(bytes, Ordering::Relaxed) > UNACKNOWLEDGED_BYTES_MAX {
            self.waiting.fetch_sub(bytes, Ordering::Relaxed);
            return Err(PublishError::Full);
        }
        let room = Room { bytes, waiting: Arc::clone(&self.waiting) };
        let (answer, answered) = oneshot::channel();
        let answer = Answer { answer, _room: room };
        self.requests
            .send(Request { stream: stream.clone(), batch, answer })
            .map_err(|_| PublishError::Ended)?;
        Ok(answered)
    }
}

type Answered = oneshot::Receiver<Result<Acknowledged, PublishError>>;

/// Who waits for an event, and the room that it takes until it is answered.
#[derive(Debug)]
struct Answer {
    answer: oneshot::Sender<Result<Acknowledged, PublishError>>,
    _room: Room,
}

#[derive(Debug)]
struct Room {
    bytes: usize,
    waiting: Arc<AtomicUsize>,
}

impl Drop for Room {
    fn drop(&mut self) {
        self.waiting.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

struct State {
    env: Env,
    addresses: Vec<String>,
    /// As what it says hello.
    region: &'static str,
    queues: BTreeMap<Stream, Queue>,
}

impl State {
    async fn run(mut self, mut requests: mpsc::UnboundedReceiver<Request>) {
        loop {
            let me = (fresh_id(&self.env), self.region);
            let Ok(link) = link::connect(&self.env, &self.addresses, me, End::Head).await else {
                self.env.sleep(RETRY).await;
                continue;
            };
            for pending in self.queues.values_mut().flat_map(|queue| &mut queue.pending) {
                // What the head may have is sent as it was, so that it has all of it or nothing.
                pending.alone |= pending.sent;
                pending.sent = false;
            }
            match self.serve(link, &mut requests).await {
                Ok(()) => return,
                Err(error) => tracing::debug!(%error, "the publisher looks for the head again"),
            }
            self.env.sleep(RETRY).await;
        }
    }

    /// Publishes through one connection. Answers `Ok` when nobody can ask any more.
    async fn serve(
        &mut self,
        link: Link,
        requests: &mut mpsc::UnboundedReceiver<Request>,
    ) -> anyhow::Result<()> {
        let Link { mut reader, mut writer, chain, address } = link;
        let mut gathered = Vec::new();
        let env = self.env.clone();
        let _ = chain;
        loop {
            for (stream, queue) in &mut self.queues {
                let sent = queue.pending.iter().take_while(|pending| pending.sent).count();
                for pending in queue.pending.iter_mut().skip(sent).take(IN_FLIGHT_MAX.saturating_sub(sent)) {
                    let (first, batch) = (pending.first, pending.joined());
                    pending.sent = true;
                    writer.add(&Message::Publish {
                        stream: stream.clone(),
                        client: queue.client,
                        first,
                        batch,
                    });
                }
            }
            writer.flush().await?;
            let room = self.queues.values().all(|queue| queue.pending.len() < 2 * IN_FLIGHT_MAX);
            tokio::select! {
                message = env.timeout(SILENCE, reader.next()) => match message {
                    None => anyhow::bail!("{address} said nothing for {SILENCE:?}"),
                    Some(message) => match message? {
                        Some(message) => self.answered(message, &address)?,
                        None => anyhow::bail!("{address} closed the connection"),
                    },
                },
                count = requests.recv_many(&mut gathered, GATHERED_MAX), if room => {
                    if count == 0 {
                        return Ok(());
                    }
                    for request in gathered.drain(..) {
                        self.queue(request);
                    }
                }
            }
        }
    }

    /// Adds a request to the last message that was not sent, or begins another one.
    fn queue(&mut self, request: Request) {
        let Request { stream, batch, answer } = request;
        let env = &self.env;
        let new = || Queue {
            client: fresh_id(env),
            began: false,
            resumed: false,
            pending: VecDeque::new(),
            next: 1,
        };
        let queue = self.queues.entry(stream).or_insert_with(new);
        let first = queue.next;
        queue.next += u64::from(batch.count);
        let answer = (queue.next - 1, answer);
        let (count, bytes) = (u64::from(batch.count), batch.bytes.len());
        match queue.pending.back_mut() {
            Some(pending) if !pending.sent && !pending.alone && pending.bytes + bytes <= MESSAGE_BYTES => {
                pending.batches.push(batch);
                pending.count += count;
                pending.bytes += bytes;
                pending.answers.push(answer);
            }
            _ => {
                let (batches, answers) = (vec![batch], vec![answer]);
                queue.pending.push_back(Pending {
                    first,
                    batches,
                    count,
                    bytes,
                    answers,
                    sent: false,
                    alone: false,
                });
            }
        }
    }

    fn answered(&mut self, message: Message, address: &str) -> anyhow::Result<()> {
        match message {
            Message::Published { stream, number, seq, repeated } => {
                let Some(queue) = self.queues.get_mut(&stream) else { return Ok(()) };
                queue.began = true;
                while queue.pending.front().is_some_and(|p| p.first + p.count - 1 <= number) {
                    for (last, answer) in queue.pending.pop_front().into_iter().flat_map(|p| p.answers) {
                        // The numbers of one message follow each other, and no two events have the same.
                        let seq = seq.saturating_sub(number - last);
                        let _ = answer.answer.send(Ok(Acknowledged { seq, repeated }));
                    }
                }
                Ok(())
            }
            Message::Refused { reason: Reason::NotHead, text, .. } => anyhow::bail!("{text}"),
            Message::Refused { stream, first, reason: Reason::Gap, text } => {
                if let Some(queue) = self.queues.get_mut(&stream)
                    && queue.pending.front().is_some_and(|oldest| oldest.first == first)
                {
                    if queue.resumed {
                        for (_, answer) in queue.pending.drain(..).flat_map(|pending| pending.answers) {
                            let (stream, reason, text) = (stream.clone(), Reason::Gap, text.clone());
                            let _ = answer.answer.send(Err(PublishError::Refused { stream, reason, text }));
                        }
                        return Ok(());
                    }
                    // The chain has forgotten this publisher: nothing of what waits is published.
                    queue.client = fresh_id(&self.env);
                    queue.renumber(0, 1);
                }
                // Else what was refused before it is sent again, and this after it.
                Ok(())
            }
            Message::Refused { stream, first, reason, text } => {
                if let Some(queue) = self.queues.get_mut(&stream) {
                    queue.refused(&stream, first, reason, &text);
                    // Of streams that are refused there may be any number.
                    if queue.pending.is_empty() && !queue.began {
                        self.queues.remove(&stream);
                    }
                }
                Ok(())
            }
            Message::Chain(chain) => {
                let head = chain.members.first().map(|member| member.address.as_str());
                if head == Some(address) {
                    Ok(())
                } else {
                    anyhow::bail!("{address} is not the head any more")
                }
            }
            _ => Ok(()),
        }
    }
}

impl Queue {
    /// The head refused the message that begins with `first`. What follows it gets its numbers, and is sent
    /// again: the head refused it as well, for the gap.
    fn refused(&mut self, stream: &Stream, first: u64, reason: Reason, text: &str) {
        let Some(at) = self.pending.iter().position(|pending| pending.first == first && pending.sent) else {
            return;
        };
        let Some(refused) = self.pending.remove(at) else { return };
        if matches!(reason, Reason::Invalid | Reason::Limit) && refused.answers.len() > 1 {
            // One of those who asked did so for something that can't be: each is asked for alone.
            for (place, pending) in refused.apart().into_iter().enumerate() {
                self.pending.insert(at + place, pending);
            }
            return self.renumber(at, first);
        }
        for (_, answer) in refused.answers {
            let (stream, text) = (stream.clone(), text.to_owned());
            let _ = answer.answer.send(Err(PublishError::Refused { stream, reason, text }));
        }
        self.renumber(at, first);
    }

    /// Gives what waits from the place `at` on the numbers from `next` on, to be sent again.
    fn renumber(&mut self, at: usize, mut next: u64) {
        for pending in self.pending.iter_mut().skip(at) {
            let moved = pending.first - next;
            pending.first = next;
            pending.sent = false;
            for (last, _) in &mut pending.answers {
                *last -= moved;
            }
            next += pending.count;
        }
        self.next = next;
    }
}

/// A number that no other publisher has.
fn fresh_id(env: &Env) -> PublisherId {
    u128::from(env.random_u64()) << 64 | u128::from(env.random_u64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn nothing_is_kept_of_a_stream_whose_first_event_was_refused() {
        let env = Env::real();
        let mut state = State { env, addresses: Vec::new(), region: CLIENT, queues: BTreeMap::new() };
        let stream = Stream::parse("here/news").unwrap();
        let mut events = Writer::new(0);
        events.publish(&Content::default(), None).unwrap();
        let (answer, mut answered) = oneshot::channel();
        let room = Room { bytes: 0, waiting: Arc::default() };
        let (batch, answer) = (events.finish(0), Answer { answer, _room: room });
        state.queue(Request { stream: stream.clone(), batch, answer });
        state.queues.get_mut(&stream).unwrap().pending[0].sent = true;
        let refused =
            Message::Refused { stream, first: 1, reason: Reason::Limit, text: "too many".to_owned() };
        state.answered(refused, "here").unwrap();
        assert!(matches!(answered.try_recv(), Ok(Err(PublishError::Refused { .. }))));
        assert!(state.queues.is_empty());
    }
}
