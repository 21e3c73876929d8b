//! Publishing.
//!
//! Events of one stream leave in the order in which they were given. While some are on their way the next ones
//! gather, so batches grow with the load and a lone event waits for nothing. What is not acknowledged is sent
//! again to whoever is the head by then, under the numbers that it had: the chain leaves out what it has (`queue.rs`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tailwater_env::{Env, Task};
use tokio::sync::{mpsc, oneshot};

use crate::batch::{Batch, MalformedBatch, TooLarge, Writer};
use crate::client::link::{self, CLIENT, Hears, Link, LinkEnd, Newest, ReplicasAt};
use crate::client::queue::{Acknowledged, Queue};
use crate::event::{Collect, Content};
use crate::message::{GATEWAY, Message, PublisherId, Reason};
use crate::name::Stream;

/// Requests taken at once.
const GATHERED_MAX: usize = 4096;
/// Bytes of events that are not acknowledged yet; beyond it nothing more is taken.
pub const UNACKNOWLEDGED_BYTES_MAX: usize = 64 << 20;
/// A pause between two tries to reach the head.
const RETRY: Duration = Duration::from_millis(50);
/// How long the head may say nothing: it says that it is alive more often than that.
const SILENCE_MAX: Duration = Duration::from_secs(3);

/// Why an event was not published.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PublishError {
    /// A part of it is too large.
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
    /// It is no batch of events.
    #[error(transparent)]
    Malformed(#[from] MalformedBatch),
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

/// Publishes events. Dropping it gives up what is not acknowledged.
#[derive(Debug)]
pub struct Publisher {
    requests: mpsc::UnboundedSender<PublishRequest>,
    waiting: Arc<AtomicUsize>,
    newest: Arc<Hears>,
    _task: Task,
}

#[derive(Debug)]
struct PublishRequest {
    stream: Stream,
    batch: Batch,
    answer: PublisherAnswer,
}

impl Publisher {
    /// A publisher for the region whose replicas are at `addresses` (any of them is enough). It connects by
    /// itself, and again when it has to.
    pub fn new(env: &Env, addresses: impl Into<ReplicasAt>) -> Self {
        Self::start(env, addresses.into(), CLIENT)
    }

    /// As [`Publisher::new`], for the events of others, whose quotas its owner looks after: that of one connection does
    /// not apply.
    pub fn gateway(env: &Env, addresses: impl Into<ReplicasAt>) -> Self {
        Self::start(env, addresses.into(), GATEWAY)
    }

    /// As [`Publisher::gateway`], one that goes on where an earlier one was: in `stream` the next event that it is
    /// given is the one that `client` gave the number `next`, from 1. What of that the chain has is left out, and
    /// answered how far the stream is, also after a restart of whoever publishes.
    ///
    /// An event is refused with [`Reason::Gap`] if whoever says that it is the head does not know the one before it:
    /// its replicas lost the stream or forgot the publisher, or it does not count any more. Who knows that the stream
    /// is not lost goes on as the same publisher, with the number before `next` as `forgotten`: what it was given up to
    /// there is not asked for. (Another publisher would publish again what the chain has.) Otherwise that is 0.
    pub fn resume(
        env: &Env,
        addresses: impl Into<ReplicasAt>,
        stream: Stream,
        client: PublisherId,
        next: u64,
        forgotten: u64,
    ) -> Self {
        let queue = Queue::resume(client, next, forgotten);
        Self::begin(env, addresses.into(), GATEWAY, [(stream, queue)].into())
    }

    fn start(env: &Env, replicas: ReplicasAt, region: &'static str) -> Self {
        Self::begin(env, replicas, region, BTreeMap::new())
    }

    fn begin(
        env: &Env,
        replicas: ReplicasAt,
        region: &'static str,
        queues: BTreeMap<Stream, Queue<PublisherAnswer>>,
    ) -> Self {
        let (requests, queue) = mpsc::unbounded_channel();
        let newest = Arc::<Hears>::default();
        let state =
            PublisherState { env: env.clone(), replicas, region, queues, newest: Arc::clone(&newest) };
        let task = env.spawn("broadcast-publisher", state.run(queue));
        Self { requests, waiting: Arc::default(), newest, _task: task }
    }

    /// The newest head's chain that was heard, for [`Listener::since`](super::Listener::since): its members hold all
    /// that was acknowledged so far. If its lineage is not greater than before, nothing that was acknowledged before
    /// this is asked for was lost with all replicas ([`Chain::lineage`](crate::message::Chain::lineage)).
    pub fn newest(&self) -> Newest {
        self.newest.get()
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

    /// As [`Publisher::publish`], for several events, made with [`Writer`] from 0 on; what is answered is the last
    /// one's.
    pub fn publish_batch(
        &self,
        stream: &Stream,
        batch: Batch,
    ) -> impl Future<Output = Result<Acknowledged, PublishError>> + Send + use<> {
        let checked = batch.check().and_then(|()| match batch.last - batch.after == u64::from(batch.count) {
            true => Ok(()),
            false => Err(MalformedBatch("what is published can't contain tombstones")),
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
        let room = PublisherRoom { bytes, waiting: Arc::clone(&self.waiting) };
        let (answer, answered) = oneshot::channel();
        let answer = PublisherAnswer { answer, _room: room };
        self.requests
            .send(PublishRequest { stream: stream.clone(), batch, answer })
            .map_err(|_| PublishError::Ended)?;
        Ok(answered)
    }
}

type Answered = oneshot::Receiver<Result<Acknowledged, PublishError>>;

/// Who waits for an event, and the room that it takes until it is answered.
#[derive(Debug)]
struct PublisherAnswer {
    answer: oneshot::Sender<Result<Acknowledged, PublishError>>,
    _room: PublisherRoom,
}

#[derive(Debug)]
struct PublisherRoom {
    bytes: usize,
    waiting: Arc<AtomicUsize>,
}

impl Drop for PublisherRoom {
    fn drop(&mut self) {
        self.waiting.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

struct PublisherState {
    env: Env,
    replicas: ReplicasAt,
    /// As what it says hello.
    region: &'static str,
    queues: BTreeMap<Stream, Queue<PublisherAnswer>>,
    newest: Arc<Hears>,
}

impl PublisherState {
    async fn run(mut self, mut requests: mpsc::UnboundedReceiver<PublishRequest>) {
        loop {
            let me = (fresh_id(&self.env), self.region);
            let Ok(link) = link::connect(&self.env, &self.replicas, me, LinkEnd::Head).await else {
                self.env.sleep(RETRY).await;
                continue;
            };
            self.queues.values_mut().for_each(Queue::reconnected);
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
        requests: &mut mpsc::UnboundedReceiver<PublishRequest>,
    ) -> anyhow::Result<()> {
        let Link { mut reader, mut writer, chain, address } = link;
        let mut gathered = Vec::new();
        let env = self.env.clone();
        self.newest.hear(&chain);
        loop {
            for (stream, queue) in &mut self.queues {
                while let Some(message) = queue.next(stream) {
                    writer.add(&message);
                }
            }
            // What the link does not take at once leaves while the head is heard, who ends what does not read.
            tokio::select! {
                biased;
                flushed = writer.flush() => flushed?,
                () = std::future::ready(()) => {}
            }
            let is_written = writer.is_empty();
            let room = is_written && self.queues.values().all(Queue::has_room);
            tokio::select! {
                biased;
                message = reader.next_unless_silent(&env, SILENCE_MAX) => match message {
                    None => anyhow::bail!("{address} said nothing for {SILENCE_MAX:?}"),
                    Some(message) => match message? {
                        Some(message) => self.answered(message, &address)?,
                        None => anyhow::bail!("{address} closed the connection"),
                    },
                },
                flushed = writer.flush(), if !is_written => flushed?,
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

    fn queue(&mut self, request: PublishRequest) {
        let PublishRequest { stream, batch, answer } = request;
        let env = &self.env;
        self.queues.entry(stream).or_insert_with(|| Queue::new(fresh_id(env))).push(batch, answer);
    }

    fn answered(&mut self, message: Message, address: &str) -> anyhow::Result<()> {
        match message {
            Message::Published { stream, number, seq, repeated } => {
                let Some(queue) = self.queues.get_mut(&stream) else { return Ok(()) };
                for (answer, acknowledged) in queue.published(number, seq, repeated) {
                    let _ = answer.answer.send(Ok(acknowledged));
                }
                Ok(())
            }
            Message::Refused { reason: Reason::NotHead, text, .. } => anyhow::bail!("{text}"),
            Message::Refused { stream, first, reason, text } => {
                let Some(queue) = self.queues.get_mut(&stream) else { return Ok(()) };
                for answer in queue.refused(first, reason) {
                    let (stream, text) = (stream.clone(), text.clone());
                    let _ = answer.answer.send(Err(PublishError::Refused { stream, reason, text }));
                }
                // Of streams that are refused there may be any number.
                if queue.is_unused() {
                    self.queues.remove(&stream);
                }
                Ok(())
            }
            Message::Chain(chain) => {
                let head = chain.members.first().map(|member| member.address.as_str());
                if head == Some(address) {
                    self.newest.hear(&chain);
                    Ok(())
                } else {
                    anyhow::bail!("{address} is not the head any more")
                }
            }
            _ => Ok(()),
        }
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
        let (queues, newest) = (BTreeMap::new(), Arc::default());
        let mut state =
            PublisherState { env, replicas: ReplicasAt::default(), region: CLIENT, queues, newest };
        let stream = Stream::parse("here/news").unwrap();
        let mut events = Writer::new(0);
        events.publish(&Content::default(), None).unwrap();
        let (answer, mut answered) = oneshot::channel();
        let room = PublisherRoom { bytes: 0, waiting: Arc::default() };
        let (batch, answer) = (events.finish(0), PublisherAnswer { answer, _room: room });
        state.queue(PublishRequest { stream: stream.clone(), batch, answer });
        assert!(state.queues.get_mut(&stream).unwrap().next(&stream).is_some());
        let refused =
            Message::Refused { stream, first: 1, reason: Reason::Limit, text: "too many".to_owned() };
        state.answered(refused, "here").unwrap();
        assert!(matches!(answered.try_recv(), Ok(Err(PublishError::Refused { .. }))));
        assert!(state.queues.is_empty());
    }
}
