//! Listening.
//!
//! A listener asks the tail of its region's chain for what follows its positions, and goes on from there after
//! every failure; it never accepts a gap. What it is sent waits in its connection until it is asked for, so a
//! slow listener costs nobody anything: it is sent the rest later, with tombstones for what was collected
//! meanwhile.

use std::sync::Arc;
use std::time::Duration;

use tailwater_env::{Env, Task};
use tokio::sync::mpsc;

use crate::batch::{Batch, Events, HeaderIter};
use crate::client::asking::{ASK, Asking, Next};
use crate::client::link::{self, CLIENT, Hears, Link, LinkEnd, Newest, ReplicasAt};
use crate::client::received::{Came, Count, ListenError, Received, removed_of};
use crate::client::sharing::{self, InputsShared, Sharing, SharingStats};
use crate::event::{Collect, Event};
use crate::message::{Message, Reason};
use crate::name::Stream;
use crate::positions::{Heard, Position, Positions, TooManyStreams};

/// Batches that wait for [`Listener::next`].
const WAITING_MAX: usize = 16;
/// A pause between two tries to reach the tail.
const RETRY: Duration = Duration::from_millis(50);
/// A pause after it refused what was asked for.
const REFUSED: Duration = Duration::from_secs(1);

/// Listens. Dropping it ends it.
#[derive(Debug)]
pub struct Listener {
    received: mpsc::Receiver<Came>,
    positions: Positions,
    unread: Option<Unread>,
    newest: Arc<Hears>,
    shared: Option<Arc<InputsShared>>,
    _task: Task,
}

/// The batch that [`Listener::get_event`] is in.
#[derive(Debug)]
struct Unread {
    stream: Stream,
    batch: Batch,
    /// At the event that it has answered last.
    events: Events,
}

/// An event that [`Listener::get_event`] has answered, in the batch that it came in.
#[derive(Clone, Copy, Debug)]
pub struct HeardEvent<'a> {
    /// Its stream.
    pub stream: &'a Stream,
    /// At the event.
    events: &'a Events,
}

impl<'a> HeardEvent<'a> {
    /// [`Event::seq`].
    pub fn seq(&self) -> u64 {
        self.events.seq()
    }

    /// [`Event::range`].
    pub fn range(&self) -> u64 {
        self.events.range()
    }

    /// The number before the first one that it covers.
    pub fn after(&self) -> u64 {
        self.events.seq() - self.events.range()
    }

    /// [`Event::time_ms`].
    pub fn time_ms(&self) -> u64 {
        self.events.time_ms()
    }

    /// Whether it stands for collected events; then it has no key, no headers and no payload.
    pub fn is_tombstone(&self) -> bool {
        self.events.is_tombstone()
    }

    /// What it is about, if it says so.
    pub fn key(&self) -> Option<&'a [u8]> {
        self.events.key()
    }

    /// Its headers' names and values.
    pub fn headers(&self) -> HeaderIter<'a> {
        self.events.headers()
    }

    /// Its payload.
    pub fn payload(&self) -> &'a [u8] {
        self.events.payload()
    }

    /// Which earlier events it makes obsolete.
    pub fn collect(&self) -> Option<&'a Collect> {
        self.events.collect()
    }

    /// The event to keep. What it carries stays in the batch's memory, which is kept as long.
    pub fn to_event(&self) -> Event {
        self.events.to_event()
    }
}

impl Listener {
    /// A listener of the region whose replicas are at `addresses`, from `positions` on.
    pub fn new(env: &Env, addresses: impl Into<ReplicasAt>, positions: Positions) -> Self {
        Self::start(env, addresses.into(), positions, None)
    }

    /// As [`Listener::new`], one that hears no tail of an earlier chain than `since`, nor of an earlier one than it has
    /// heard: a tail that was cut off from its region may not know that it was removed. What the members of a chain
    /// hold, those of all later ones hold, so what is missing at a tail that is heard was lost with all replicas.
    pub fn since(env: &Env, addresses: impl Into<ReplicasAt>, positions: Positions, since: Newest) -> Self {
        Self::start(env, addresses.into(), positions, Some(since))
    }

    fn start(env: &Env, replicas: ReplicasAt, positions: Positions, since: Option<Newest>) -> Self {
        let (events, received) = mpsc::channel(WAITING_MAX);
        let newest = Arc::new(Hears::new(since.unwrap_or_default()));
        let state = ListenerState {
            env: env.clone(),
            replicas,
            positions: positions.clone(),
            events,
            newest: Arc::clone(&newest),
            hears_all: since.is_none(),
        };
        let task = env.spawn("broadcast-listener", state.run());
        Self::of(received, positions, newest, None, task)
    }

    /// A chain whose members hold all that came, for [`Listener::since`]; none is known to one that shares.
    pub fn newest(&self) -> Newest {
        self.newest.get()
    }

    /// As [`Listener::new`], but it gets most events from the region's other listeners that share, and passes them on
    /// to others (section 3.2). What they no longer have it gets from the proxy.
    ///
    /// # Errors
    /// If it can't listen for the others, or they could not be told where.
    pub async fn sharing(
        env: &Env,
        addresses: impl Into<ReplicasAt>,
        positions: Positions,
        sharing: Sharing,
    ) -> std::io::Result<Self> {
        let (events, received) = mpsc::channel(WAITING_MAX);
        let (shared, task) =
            sharing::start(env, addresses.into(), positions.clone(), sharing, events).await?;
        let newest = Arc::default();
        Ok(Self::of(received, positions, newest, Some(shared), task))
    }

    fn of(
        received: mpsc::Receiver<Came>,
        positions: Positions,
        newest: Arc<Hears>,
        shared: Option<Arc<InputsShared>>,
        task: Task,
    ) -> Self {
        Self { received, positions, unread: None, newest, shared, _task: task }
    }

    /// What a listener that shares has counted; `None` for one that does not, or has ended.
    pub fn sharing_stats(&self) -> Option<SharingStats> {
        self.shared.as_ref()?.stats()
    }

    /// Waits until `holds` is true of what it has counted; `None` if it does not share, or has ended.
    pub async fn sharing_until(&self, holds: impl FnMut(&SharingStats) -> bool) -> Option<SharingStats> {
        self.shared.as_ref()?.until(holds).await
    }

    /// What comes next; first what [`Listener::get_event`] has left of a batch. Cancelling it loses nothing.
    pub async fn next(&mut self) -> Result<Received, ListenError> {
        self.settle();
        if let Some(Unread { stream, batch, events }) = self.unread.take()
            && let Some(rest) = batch.rest(events.seq())?
        {
            self.positions.streams.entry(stream.clone()).or_default().seq = rest.last;
            return Ok(Received::Events(stream, rest));
        }
        let Came { received, lineage } = self.received.recv().await.ok_or(ListenError::Ended)?;
        let received = received?;
        match &received {
            Received::Events(stream, batch) => {
                self.positions.streams.insert(stream.clone(), Position { lineage, seq: batch.last });
            }
            Received::Began(positions) => self.began(positions),
            Received::Anew { region, lineage } => self.positions.begin_anew(region, *lineage),
            Received::Removed { .. } | Received::Counts(_) | Received::Lost => {}
        }
        Ok(received)
    }

    /// The next event (the paper's `getEvent`), or [`ListenError::Anew`] before the first one of a region that has
    /// begun anew, or [`ListenError::Removed`] before what comes behind events that are missed.
    /// Cancelling it loses nothing. The event is looked at in the batch that it came in, which takes no lock and no
    /// allocation; [`HeardEvent::to_event`] makes one to keep.
    pub async fn get_event(&mut self) -> Result<HeardEvent<'_>, ListenError> {
        while !self.advance()? {
            // Apart, so that what is made for each event is small.
            Box::pin(self.take_in()).await?;
        }
        let Unread { stream, events, .. } = self.unread.as_ref().expect("it is at an event");
        Ok(HeardEvent { stream, events })
    }

    /// Goes on to the next event of the last batch; `false` if there is none.
    fn advance(&mut self) -> Result<bool, ListenError> {
        match &mut self.unread {
            Some(unread) => Ok(unread.events.advance()?),
            None => Ok(false),
        }
    }

    /// Waits for what comes next, when all of the last batch was answered.
    async fn take_in(&mut self) -> Result<(), ListenError> {
        let Came { received, lineage } = self.received.recv().await.ok_or(ListenError::Ended)?;
        self.settle();
        self.unread = None;
        match received? {
            Received::Events(stream, batch) => {
                self.positions.streams.entry(stream.clone()).or_default().lineage = lineage;
                self.unread = Some(Unread { stream, events: batch.events(), batch });
            }
            Received::Began(positions) => self.began(&positions),
            Received::Anew { region, lineage } => {
                self.positions.begin_anew(&region, lineage);
                return Err(ListenError::Anew(region));
            }
            Received::Removed { stream, last } => return Err(ListenError::Removed { stream, last }),
            Received::Counts(_) | Received::Lost => {}
        }
        Ok(())
    }

    /// From here on a token says the number that "now" was, so that who resumes from it misses nothing.
    fn began(&mut self, positions: &[(Stream, Position)]) {
        positions.iter().for_each(|(stream, position)| self.positions.begin(stream, *position));
    }

    /// How far it got, to go on from there later: what [`Listener::next`] and [`Listener::get_event`] answered.
    pub fn positions(&mut self) -> &Positions {
        self.settle();
        &self.positions
    }

    /// Notes how far [`Listener::get_event`] got in the last batch, which is not worth a look for each event.
    fn settle(&mut self) {
        // Its position is there since the batch came.
        if let Some(unread) = &self.unread
            && let Some(position) = self.positions.streams.get_mut(&unread.stream)
        {
            position.seq = unread.events.seq();
        }
    }
}

struct ListenerState {
    env: Env,
    replicas: ReplicasAt,
    positions: Positions,
    events: mpsc::Sender<Came>,
    /// The newest chain whose tail was heard, or that it was to be.
    newest: Arc<Hears>,
    /// Whether tails of earlier ones are heard as well.
    hears_all: bool,
}

impl ListenerState {
    async fn run(mut self) {
        let client = u128::from(self.env.random_u64());
        if let Err(too_many) = TooManyStreams::check(self.positions.named().len()) {
            // Nobody listens any more, or it is told.
            let _ = self.events.send(ListenError::Refused(too_many.to_string()).into()).await;
            return;
        }
        loop {
            match link::connect(&self.env, &self.replicas, (client, CLIENT), LinkEnd::Tail).await {
                Ok(link) if !self.hears_all && Newest::from(&link.chain) < self.newest.get() => {
                    tracing::debug!(
                        link.address,
                        link.chain.lineage,
                        link.chain.epoch,
                        "the listener hears no tail of an old chain"
                    );
                }
                Ok(link) => {
                    match self.serve(link).await {
                        Ok(()) => return,
                        Err(error) => tracing::debug!(%error, "the listener looks for the tail again"),
                    }
                    if self.events.send(Received::Lost.into()).await.is_err() {
                        return;
                    }
                }
                Err(error) => tracing::debug!(%error, "the listener finds no tail"),
            }
            if self.events.is_closed() {
                return;
            }
            self.env.sleep(RETRY).await;
        }
    }

    /// Whether what is said of a stream is of the events that it listens to, or of those with which the stream's region
    /// has begun anew: that is said before anything of them comes.
    async fn hears(&mut self, stream: &Stream, lineage: u64) -> anyhow::Result<bool> {
        let heard = self.positions.hear(stream, lineage);
        if heard == Heard::Anew {
            self.tell_anew(stream.region().to_owned(), lineage).await?;
        }
        Ok(heard != Heard::Older)
    }

    async fn tell_anew(&self, region: String, lineage: u64) -> anyhow::Result<()> {
        tracing::warn!(
            region,
            "a region has begun anew: its streams' numbers are those of other events now, which come from the first one on"
        );
        Ok(self.events.send(Received::Anew { region, lineage }.into()).await?)
    }

    /// Listens through one connection. Answers `Ok` if it is refused for good.
    async fn serve(&mut self, mut link: Link) -> anyhow::Result<()> {
        let mut asking = Asking::new(&self.env, ASK);
        loop {
            self.newest.hear(&link.chain);
            let (positions, others) = (self.positions.named(), self.positions.others);
            link.writer.send(&Message::Listen { positions, others }).await?;
            loop {
                let message = match asking.next(&mut link.reader, &link.address).await? {
                    Next::Ask(ask) => {
                        link.writer.send(&ask).await?;
                        continue;
                    }
                    Next::Said(message) => message,
                };
                match message {
                    Message::Events { stream, lineage, batch } => {
                        self.received(stream, lineage, batch).await?
                    }
                    Message::Listening { mut positions } => {
                        for (region, lineage) in self.positions.hear_begins(&mut positions) {
                            self.tell_anew(region, lineage).await?;
                        }
                        self.events.send(Received::Began(positions).into()).await?;
                    }
                    Message::Advertise { answers, counts, .. } => {
                        let mut heard = Vec::new();
                        for told in counts {
                            if self.hears(&told.stream, told.count.lineage).await? {
                                heard.push(told);
                            }
                        }
                        if !heard.is_empty() {
                            let counts = Count::all(&self.env, answers, heard);
                            self.events.send(Received::Counts(counts).into()).await?;
                        }
                    }
                    Message::ListenRefused { reason, text } => {
                        self.events.send(ListenError::Refused(text).into()).await?;
                        if reason == Reason::Invalid {
                            return Ok(());
                        }
                        self.env.sleep(REFUSED).await;
                        break;
                    }
                    Message::Chain(chain) if link.is_at(&chain, LinkEnd::Tail) => {
                        link.chain = chain;
                        // It is the tail, or about to be: the token may be on its way.
                        self.env.sleep(RETRY).await;
                        break;
                    }
                    Message::Chain(_) => anyhow::bail!("{} is not the tail any more", link.address),
                    other => anyhow::bail!("{} sent {other:?}", link.address),
                }
            }
        }
    }

    async fn received(&mut self, stream: Stream, lineage: u64, batch: Batch) -> anyhow::Result<()> {
        if !self.hears(&stream, lineage).await? {
            return Ok(());
        }
        let known = self.positions.streams.get(&stream).copied();
        let position = known.map_or(0, |known| known.seq);
        let batch = if position == batch.after {
            batch
        } else if batch.after < position {
            match batch.rest(position)? {
                Some(rest) => rest,
                None => return Ok(()),
            }
        } else {
            anyhow::bail!("{stream} continues after {}, not {position}", batch.after);
        };
        if known.is_none() && !self.positions.others {
            return Ok(());
        }
        self.positions.streams.insert(stream.clone(), Position { lineage, seq: batch.last });
        if let Some(removed) = removed_of(&stream, &batch) {
            self.events.send(removed.into()).await?;
        }
        self.events.send(Came { received: Ok(Received::Events(stream, batch)), lineage }).await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::Writer;
    use crate::event::{Collect, Content};

    #[tokio::test]
    async fn events_of_a_large_batch_are_taken_out_of_it_as_they_are_asked_for_and_are_slices_of_it() {
        const COUNT: u64 = 100_000;
        let (came, received) = mpsc::channel(WAITING_MAX);
        let task = Env::real().spawn("nothing", async {});
        let mut listener = Listener::of(received, Positions::start(), Arc::default(), None, task);
        let stream = Stream::parse("eu/prices").unwrap();
        let mut events = Writer::new(0);
        let content = Content { payload: "4.20".into(), ..Content::default() };
        (0..COUNT).for_each(|_| events.publish(&content, Some(&Collect::SameKey)).unwrap());
        // What follows the last one was collected.
        let batch = events.finish(COUNT + 5);
        let bytes = batch.bytes.as_ptr_range();
        let received = Received::Events(stream.clone(), batch);
        came.send(Came { received: Ok(received), lineage: 3 }).await.unwrap();
        for seq in 1..=COUNT {
            let event = listener.get_event().await.unwrap();
            assert_eq!((event.stream, event.seq(), event.range()), (&stream, seq, 1));
            assert_eq!((event.payload(), event.collect()), (&b"4.20"[..], Some(&Collect::SameKey)));
            let kept = event.to_event();
            let payload = &kept.content().unwrap().payload;
            assert!(payload == "4.20" && bytes.contains(&payload.as_ptr()));
            assert_eq!(listener.positions().streams[&stream], Position { lineage: 3, seq });
        }
        let last = listener.get_event().await.unwrap();
        assert!(last.is_tombstone());
        assert_eq!((last.after(), last.seq()), (COUNT, COUNT + 5));
        drop(came);
        assert_eq!(listener.get_event().await.unwrap_err(), ListenError::Ended);
    }

    #[tokio::test]
    async fn who_goes_on_by_batches_gets_first_what_it_has_not_taken_out_of_the_last_one() {
        let (came, received) = mpsc::channel(WAITING_MAX);
        let task = Env::real().spawn("nothing", async {});
        let mut listener = Listener::of(received, Positions::start(), Arc::default(), None, task);
        let stream = Stream::parse("eu/prices").unwrap();
        for after in [0, 10] {
            let mut events = Writer::new(after);
            let content = |n: u64| Content { payload: n.to_string().into(), ..Content::default() };
            (1..=10).for_each(|n| events.publish(&content(after + n), None).unwrap());
            let received = Received::Events(stream.clone(), events.finish(after + 10));
            came.send(Came { received: Ok(received), lineage: 3 }).await.unwrap();
        }
        for seq in 1..=4 {
            assert_eq!(listener.get_event().await.unwrap().seq(), seq);
        }
        for (after, last) in [(4, 10), (10, 20)] {
            let Ok(Received::Events(_, batch)) = listener.next().await else { panic!("no events") };
            assert_eq!((batch.after, batch.last, u64::from(batch.count)), (after, last, last - after));
            assert_eq!(listener.positions().streams[&stream], Position { lineage: 3, seq: last });
        }
    }
}
