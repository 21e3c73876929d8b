//! What listeners over HTTP are sent.
//!
//! ```text
//!   proxy --> one Listener --> HashRing (each batch encoded once) --> Feed, Feed, Feed … at the live edge
//!   proxy --> a Listener of its own -----------------------------> Feed that is behind, until it is close
//! ```
//!
//! A feed is a place in the ring and the positions that it was sent, nothing more: a slow one costs nothing, and
//! finds that its place has left the ring. It then catches up through a listener of its own, with tombstones for what
//! was collected meanwhile; at most [`CATCHING_UP_MAX`] do at a time. One that is not read loses its turn when others
//! wait for one, and goes on from its positions later.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tailwater_broadcast::client::{ListenError, Listener, Received, ReplicasAt};
use tailwater_broadcast::message::FROM_NOW;
use tailwater_broadcast::{Batch, Heard, MalformedBatch, Position, Positions, Stream};
use tailwater_env::{Complaints, Env, Instant, Task};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::ring::{EventRing, RingItem};
use crate::api::EventView;

/// Feeds with a listener of their own; each may have some MiB waiting.
const CATCHING_UP_MAX: usize = 32;
/// How long one of them may leave its listener alone while others wait, and how often it is looked whether one does.
const PATIENCE: Duration = Duration::from_secs(1);
/// Items that a feed takes from the ring at once, and bytes of the tokens that say where it is behind each of them.
const TAKEN_MAX: usize = 64;
const TAKEN_TOKENS_BYTES: usize = 1 << 20;
/// Bytes of JSON behind which the rest of a batch is a batch of its own: what takes two bytes there may take thousands
/// in JSON, where each event says its collection.
const JSON_BYTES: usize = 1 << 20;
/// Tokens that are kept for other listeners.
const TOKENS_MAX: usize = 2 * TAKEN_MAX;
/// Tokens of one batch.
const ALIKE_MAX: usize = 4;
/// A pause after the proxy sent what can't be read.
const PAUSE: Duration = Duration::from_millis(200);

/// The first events of a batch in JSON, and the number up to which they are.
fn encode(stream: &Stream, batch: &Batch) -> Result<(Bytes, u64), MalformedBatch> {
    let (mut events, mut last) = (Vec::new(), batch.after);
    for event in batch.events() {
        let event = event?;
        last = event.seq;
        events.push(if events.is_empty() { b'[' } else { b',' });
        serde_json::to_writer(&mut events, &EventView::from(event)).expect("text and numbers");
        if events.len() >= JSON_BYTES {
            break;
        }
    }
    let head = format!("{{\"stream\":\"{stream}\",\"after\":{},\"last\":{last},\"events\":", batch.after);
    let mut json = Vec::with_capacity(head.len() + events.len() + 2);
    json.extend_from_slice(head.as_bytes());
    json.append(&mut events);
    json.extend_from_slice(b"]}");
    Ok((json.into(), last))
}

/// The live edge; it lives as long as somebody listens.
pub struct Hub {
    env: Env,
    addresses: ReplicasAt,
    live: Arc<HubLive>,
    tokens: Mutex<ResumeTokens>,
    catching_up: Arc<Semaphore>,
    turns: Mutex<Vec<Weak<Mutex<Option<Turn>>>>>,
    _task: Task,
}

/// What a feed that is behind is sent through.
struct Turn {
    listener: Listener,
    _permit: OwnedSemaphorePermit,
    /// When the listener was last asked.
    asked: Instant,
}

/// A turn that is used now, and given back when this is dropped.
struct HubTaken<'a> {
    turn: Option<Turn>,
    of: &'a Mutex<Option<Turn>>,
    env: &'a Env,
}

impl Drop for HubTaken<'_> {
    fn drop(&mut self) {
        *self.of.lock() = self.turn.take().map(|turn| Turn { asked: self.env.now(), ..turn });
    }
}

struct HubLive {
    ring: Mutex<EventRing>,
    /// The ring's end.
    moved: watch::Sender<u64>,
    complaints: Complaints,
}

impl Hub {
    /// Follows the proxy at `addresses`, from now on; `known` are the streams that it has now.
    pub fn start(
        env: &Env,
        addresses: impl Into<ReplicasAt>,
        known: Vec<Stream>,
        bytes_max: usize,
    ) -> Arc<Self> {
        let addresses = addresses.into();
        let ring = Mutex::new(EventRing::new(bytes_max));
        let live =
            Arc::new(HubLive { ring, moved: watch::Sender::new(0), complaints: Complaints::default() });
        let positions = Positions { others: true, ..Positions::now(known) };
        let follow = follow(env.clone(), addresses.clone(), positions, Arc::clone(&live));
        Arc::new(Self {
            env: env.clone(),
            addresses,
            live,
            tokens: Mutex::default(),
            catching_up: Arc::new(Semaphore::new(CATCHING_UP_MAX)),
            turns: Mutex::default(),
            _task: env.spawn("broadcast-hub", follow),
        })
    }

    /// How many of the streams that somebody names nobody has published in, as far as it knows.
    pub fn absent(&self, positions: &Positions) -> usize {
        self.live.ring.lock().absent(positions)
    }

    /// A turn for a feed that is at `positions`; `None` if the hub ends.
    async fn turn(&self, positions: &Positions) -> Option<Arc<Mutex<Option<Turn>>>> {
        let permit = loop {
            let free = Arc::clone(&self.catching_up).acquire_owned();
            match self.env.timeout(PATIENCE, free).await {
                Some(permit) => break permit.ok()?,
                None => self.take_back(),
            }
        };
        let listener = Listener::new(&self.env, self.addresses.clone(), positions.clone());
        let turn = Turn { listener, _permit: permit, asked: self.env.now() };
        let turn = Arc::new(Mutex::new(Some(turn)));
        let mut turns = self.turns.lock();
        turns.retain(|turn| turn.strong_count() > 0);
        turns.push(Arc::downgrade(&turn));
        Some(turn)
    }

    /// Takes the turns of those that leave them alone.
    fn take_back(&self) {
        let now = self.env.now();
        self.turns.lock().retain(|turn| {
            let Some(turn) = turn.upgrade() else { return false };
            let mut turn = turn.lock();
            let is_idle = turn.as_ref().is_some_and(|turn| now.since(turn.asked) >= PATIENCE);
            if is_idle {
                *turn = None;
            }
            !is_idle
        });
    }
}

async fn follow(env: Env, addresses: ReplicasAt, mut positions: Positions, live: Arc<HubLive>) {
    loop {
        let mut listener = Listener::new(&env, addresses.clone(), positions.clone());
        loop {
            let received = match listener.next().await {
                Ok(received) => received,
                Err(error) => {
                    live.complain(&env, &error);
                    break;
                }
            };
            match received {
                Received::Began(positions) => live.ring.lock().begin(&positions),
                Received::Events(stream, batch) => {
                    let lineage = lineage_of(&mut listener, &stream);
                    if live.take(&stream, lineage, batch).await.is_err() {
                        break;
                    }
                }
                Received::Anew { region, lineage } => {
                    live.ring.lock().push(RingItem::Anew { region, lineage })
                }
                // Each feed finds out by the batch what it has missed.
                Received::Removed { .. } | Received::Counts(_) | Received::Lost => continue,
            }
            live.tell();
            positions = listener.positions().clone();
        }
        env.sleep(PAUSE).await;
    }
}

impl HubLive {
    /// Puts a batch into the ring.
    async fn take(&self, stream: &Stream, lineage: u64, batch: Batch) -> Result<(), MalformedBatch> {
        let mut rest = Some(batch);
        while let Some(batch) = rest {
            let (json, last) = encode(stream, &batch)?;
            rest = batch.rest(last)?;
            let Some(batch) = batch.up_to(last)? else { return Ok(()) };
            self.ring.lock().push(RingItem::Events { stream: stream.clone(), lineage, batch, json });
            if rest.is_some() {
                self.tell();
                tokio::task::yield_now().await;
            }
        }
        Ok(())
    }

    /// Writes a line about a listener to the proxy that is sent nothing.
    fn complain(&self, env: &Env, error: &ListenError) {
        if let Some(left_out) = self.complaints.admit(env.now(), "no events") {
            tracing::warn!(%error, left_out, "listeners over HTTP get nothing from the proxy for the moment");
        }
    }

    /// Tells the feeds how far the ring is.
    fn tell(&self) {
        let end = self.ring.lock().end();
        self.moved.send_replace(end);
    }
}

/// The lineage of the events of a stream that a listener has just answered.
fn lineage_of(listener: &mut Listener, stream: &Stream) -> u64 {
    listener.positions().streams.get(stream).map_or(0, |position| position.lineage)
}

/// What a feed answers, and the token that resumes behind it.
pub struct HubPiece {
    pub token: Arc<str>,
    /// What it is, if it is no batch: [`ANEW`], [`STALE`] or [`REMOVED`].
    pub event: Option<&'static str>,
    /// An object that is not empty.
    pub json: Bytes,
}

/// A region has begun anew: `{"anew": REGION}`.
pub const ANEW: &str = "anew";
/// The listener was cut off from the live edge, and is behind for now, or is there again: `{"stale": true}`, `{"stale":
/// false}`.
pub const STALE: &str = "stale";
/// Retention removed events of a stream before the listener was sent them: `{"removed": STREAM, "last": NUMBER}`.
pub const REMOVED: &str = "removed";

/// What becomes of positions by a batch at a place in the ring, and the token that says so.
struct Moved {
    place: u64,
    before: Arc<Positions>,
    after: Arc<Positions>,
    token: Arc<str>,
}

/// The newest ones: most listeners at the live edge have the same positions, and a token has all streams in it. Those
/// that had the same have it as the same memory from then on, so that finding it takes no look at the streams.
#[derive(Default)]
struct ResumeTokens(VecDeque<Moved>);

impl ResumeTokens {
    fn find(&self, place: u64, before: &Arc<Positions>) -> Option<(Arc<Positions>, Arc<str>)> {
        let mut here = self.0.iter().filter(|moved| moved.place == place);
        let is_it = |moved: &&Moved| Arc::ptr_eq(&moved.before, before);
        let found = here.clone().find(is_it).or_else(|| here.find(|moved| moved.before == *before))?;
        Some((Arc::clone(&found.after), Arc::clone(&found.token)))
    }

    fn add(&mut self, moved: Moved) {
        if self.0.iter().filter(|known| known.place == moved.place).count() >= ALIKE_MAX {
            return;
        }
        if self.0.len() >= TOKENS_MAX {
            self.0.pop_front();
        }
        self.0.push_back(moved);
    }
}

/// One listener's way through the events.
pub struct HubFeed {
    hub: Arc<Hub>,
    positions: Arc<Positions>,
    at: At,
    /// Whether it was told that it may be stale, and not yet that it is not any more.
    stale: bool,
    ready: VecDeque<HubPiece>,
    /// What follows them of a batch that is not in the ring, and its lineage.
    rest: Option<(Stream, u64, Batch)>,
    /// Bytes of the last token.
    token_bytes: usize,
    moved: watch::Receiver<u64>,
    /// For streams that it names and that are not there.
    _room: Option<OwnedSemaphorePermit>,
}

enum At {
    /// Nowhere yet, or no more.
    Apart,
    /// Empty once it was taken back.
    Behind(Arc<Mutex<Option<Turn>>>),
    Live(u64),
}

impl HubFeed {
    /// From `positions` on.
    pub fn new(hub: Arc<Hub>, positions: Positions) -> Self {
        let moved = hub.live.moved.subscribe();
        let (positions, ready) = (Arc::new(positions), VecDeque::new());
        let (at, stale, rest, token_bytes) = (At::Apart, false, None, 0);
        Self { hub, positions, at, stale, ready, rest, token_bytes, moved, _room: None }
    }

    /// With room for its streams that are not there.
    pub fn within(self, room: OwnedSemaphorePermit) -> Self {
        Self { _room: Some(room), ..self }
    }

    /// The token that resumes here. Completes once it is known what "now" was.
    pub async fn begin(&mut self) -> String {
        while self.positions.streams.values().any(|position| position.seq == FROM_NOW) {
            let place = self.hub.live.ring.lock().join(Arc::make_mut(&mut self.positions));
            match place {
                Some(place) => self.at = At::Live(place),
                // Somebody may want one stream from now on and another one from far back.
                None if self.hub.live.ring.lock().has_begun() => self.step().await,
                None => drop(self.moved.changed().await),
            }
        }
        let token = self.positions.token();
        self.token_bytes = token.len();
        token
    }

    /// What comes next. Cancelling it loses nothing.
    pub async fn next(&mut self) -> HubPiece {
        loop {
            if let Some(piece) = self.ready.pop_front() {
                return piece;
            }
            self.step().await;
        }
    }

    async fn step(&mut self) {
        if let Some((stream, lineage, batch)) = self.rest.take() {
            return self.take((&stream, lineage), &batch, None);
        }
        if !matches!(self.at, At::Live(_)) {
            // Dropping a listener loses nothing: the positions tell what was sent.
            let place = self.hub.live.ring.lock().join(Arc::make_mut(&mut self.positions));
            if let Some(place) = place {
                self.at = At::Live(place);
            }
        }
        match &mut self.at {
            At::Apart => {
                if !self.hub.live.ring.lock().has_begun() {
                    let _ = self.moved.changed().await;
                    return;
                }
                if let Some(turn) = self.hub.turn(&self.positions).await {
                    self.at = At::Behind(turn);
                }
            }
            At::Behind(turn) => {
                let mut taken = HubTaken { turn: turn.lock().take(), of: turn, env: &self.hub.env };
                let (received, lineage) = match &mut taken.turn {
                    Some(turn) => {
                        let received = turn.listener.next().await;
                        let lineage = match &received {
                            Ok(Received::Events(stream, _)) => lineage_of(&mut turn.listener, stream),
                            _ => 0,
                        };
                        (received, lineage)
                    }
                    None => {
                        drop(taken);
                        self.at = At::Apart;
                        return;
                    }
                };
                drop(taken);
                match received {
                    Ok(Received::Began(positions)) => {
                        let own = Arc::make_mut(&mut self.positions);
                        positions.iter().for_each(|(stream, position)| own.begin(stream, *position));
                    }
                    Ok(Received::Events(stream, batch)) => self.take((&stream, lineage), &batch, None),
                    Ok(Received::Anew { region, lineage }) => {
                        self.hear(&region, lineage);
                    }
                    Ok(Received::Removed { .. } | Received::Counts(_) | Received::Lost) => {}
                    Err(error) => {
                        self.hub.live.complain(&self.hub.env, &error);
                        self.at = At::Apart;
                        self.tell_stale(true);
                        self.hub.env.sleep(PAUSE).await;
                    }
                }
            }
            At::Live(place) => {
                let most = (TAKEN_TOKENS_BYTES / self.token_bytes.max(1)).clamp(1, TAKEN_MAX);
                let items = self.hub.live.ring.lock().read(*place, most);
                match items {
                    // Cut off: too much came since it was sent something.
                    None => {
                        self.at = At::Apart;
                        self.tell_stale(true);
                    }
                    Some(items) if items.is_empty() && self.stale => self.tell_stale(false),
                    Some(items) if items.is_empty() => {
                        let place = *place;
                        // The hub outlives its feeds, so there is always somebody to tell.
                        let _ = self.moved.wait_for(|end| *end > place).await;
                    }
                    Some(items) => {
                        let first = *place;
                        *place += items.len() as u64;
                        for (item, place) in items.iter().zip(first..) {
                            match &**item {
                                RingItem::Events { stream, lineage, batch, json } => {
                                    self.take((stream, *lineage), batch, Some((place, json)));
                                }
                                RingItem::Anew { region, lineage } => {
                                    self.hear(region, *lineage);
                                }
                                RingItem::Gone => {}
                            }
                        }
                    }
                }
            }
        }
    }

    fn tell_stale(&mut self, stale: bool) {
        if std::mem::replace(&mut self.stale, stale) != stale {
            let json = serde_json::json!({ "stale": stale }).to_string();
            self.tell(STALE, json);
        }
    }

    fn tell(&mut self, event: &'static str, json: String) {
        self.ready.push_back(HubPiece {
            token: self.positions.token().into(),
            event: Some(event),
            json: json.into(),
        });
    }

    /// Something comes of a region in a lineage: whether that is of what it is sent, or begins anew with.
    fn hear(&mut self, region: &str, lineage: u64) -> bool {
        let mut positions = Positions::clone(&self.positions);
        let heard = positions.hear_region(region, lineage);
        if positions != *self.positions {
            self.positions = Arc::new(positions);
        }
        if heard == Heard::Anew {
            self.tell(ANEW, serde_json::json!({ "anew": region }).to_string());
        }
        heard != Heard::Older
    }

    /// Takes the part of a batch that it was not sent yet; `shared` is its place in the ring, and the whole of it.
    fn take(&mut self, (stream, lineage): (&Stream, u64), batch: &Batch, shared: Option<(u64, &Bytes)>) {
        let known = self.positions.streams.get(stream).copied();
        if known.is_none() && !self.positions.others {
            return;
        }
        if known.is_none_or(|known| known.lineage != lineage) && !self.hear(stream.region(), lineage) {
            return;
        }
        let position = self.positions.streams.get(stream).map_or(0, |position| position.seq);
        if batch.last <= position {
            return;
        }
        if batch.after > position {
            // Not reached: both ways continue what was sent. Should it be, asking anew mends it.
            self.at = At::Apart;
            return;
        }
        let shared = shared.filter(|_| batch.after == position);
        let encoded = match shared {
            Some((_, json)) => Ok((json.clone(), batch.last, None)),
            None => batch.rest(position).and_then(|rest| {
                let rest = rest.as_ref().unwrap_or(batch);
                let (json, last) = encode(stream, rest)?;
                Ok((json, last, rest.rest(last)?))
            }),
        };
        let Ok((json, last, rest)) = encoded else {
            self.at = At::Apart;
            return;
        };
        self.rest = rest.map(|rest| (stream.clone(), lineage, rest));
        if batch.removed > position {
            let json = serde_json::json!({ "removed": stream.as_str(), "last": batch.removed }).to_string();
            self.tell(REMOVED, json);
        }
        let known = shared.and_then(|(place, _)| self.hub.tokens.lock().find(place, &self.positions));
        let token = match known {
            Some((after, token)) => {
                self.positions = after;
                token
            }
            None => {
                let before = shared.map(|(place, _)| (place, Arc::clone(&self.positions)));
                let position = Position { lineage, seq: last };
                Arc::make_mut(&mut self.positions).streams.insert(stream.clone(), position);
                let token = Arc::<str>::from(self.positions.token());
                if let Some((place, before)) = before {
                    let (after, token) = (Arc::clone(&self.positions), Arc::clone(&token));
                    self.hub.tokens.lock().add(Moved { place, before, after, token });
                }
                token
            }
        };
        self.token_bytes = token.len();
        self.ready.push_back(HubPiece { token, event: None, json });
    }
}

#[cfg(test)]
mod tests {
    use tailwater_broadcast::{Collect, Content, Writer};

    use super::*;

    #[tokio::test]
    async fn listeners_with_the_same_positions_share_the_token_of_a_batch_and_others_have_their_own() {
        let env = Env::real();
        let hub = Hub::start(&env, vec!["127.0.0.1:1".to_owned()], Vec::new(), 1 << 20);
        let [stream, other] = ["eu/prices", "eu/flags"].map(|name| Stream::parse(name).unwrap());
        let one = Positions::of([stream.clone()]);
        let two = Positions::of([stream.clone(), other]);
        let mut feeds: Vec<HubFeed> =
            [&one, &two, &one, &two].map(|at| HubFeed::new(Arc::clone(&hub), at.clone())).into();
        for place in 0..3 {
            let mut events = Writer::new(place);
            events.publish(&Content::default(), None).unwrap();
            let batch = events.finish(0);
            let (json, _) = encode(&stream, &batch).unwrap();
            let mut tokens = Vec::new();
            for feed in &mut feeds {
                feed.take((&stream, 1), &batch, Some((place, &json)));
                let piece = feed.ready.pop_front().unwrap();
                assert_eq!(*piece.token, *feed.positions.token());
                assert_eq!(feed.positions.streams[&stream], Position { lineage: 1, seq: place + 1 });
                tokens.push(piece.token);
            }
            assert!(Arc::ptr_eq(&tokens[0], &tokens[2]) && Arc::ptr_eq(&tokens[1], &tokens[3]));
            assert_ne!(tokens[0], tokens[1]);
        }
    }

    #[tokio::test]
    async fn a_listener_is_told_that_a_region_began_anew_and_that_it_was_cut_off_between_what_comes() {
        let env = Env::real();
        let hub = Hub::start(&env, vec!["127.0.0.1:1".to_owned()], Vec::new(), 2_000);
        let stream = Stream::parse("eu/prices").unwrap();
        let at = |lineage, seq| {
            let streams = [(stream.clone(), Position { lineage, seq })].into();
            Positions { streams, others: false }
        };
        let push = |lineage, after| {
            let mut events = Writer::new(after);
            events.publish(&Content::default(), None).unwrap();
            let batch = events.finish(0);
            let (json, _) = encode(&stream, &batch).unwrap();
            hub.live.ring.lock().push(RingItem::Events { stream: stream.clone(), lineage, batch, json });
        };
        hub.live.ring.lock().begin(&[(stream.clone(), Position { lineage: 1, seq: 3 })]);
        let mut feed = HubFeed::new(Arc::clone(&hub), at(1, 3));
        push(1, 3);
        let mut next = async || {
            let HubPiece { token, event, json } = feed.next().await;
            let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
            (event, json, Positions::parse(&token).unwrap())
        };
        let (event, json, token) = next().await;
        assert_eq!((event, &json["last"], token), (None, &4.into(), at(1, 4)));
        push(1, 4);
        hub.live.ring.lock().push(RingItem::Anew { region: "eu".to_owned(), lineage: 2 });
        push(2, 0);
        assert_eq!(next().await, (Some(ANEW), serde_json::json!({ "anew": "eu" }), at(2, 0)));
        let (event, json, token) = next().await;
        assert_eq!((event, &json["after"], token), (None, &0.into(), at(2, 1)));
        // Far more than the ring holds.
        (1..100).for_each(|after| push(2, after));
        assert_eq!(next().await, (Some(STALE), serde_json::json!({ "stale": true }), at(2, 1)));
    }

    #[tokio::test]
    async fn a_listener_is_told_what_was_removed_before_what_is_left_unless_it_had_got_it() {
        let env = Env::real();
        let hub = Hub::start(&env, vec!["127.0.0.1:1".to_owned()], Vec::new(), 1 << 20);
        let stream = Stream::parse("eu/prices").unwrap();
        let mut events = Writer::new(7);
        events.publish(&Content::default(), None).unwrap();
        let left = events.finish(0);
        let batch = Batch { removed: 7, ..Batch::joined(&[Writer::new(2).finish(7), left]).unwrap() };
        let (json, _) = encode(&stream, &batch).unwrap();
        for (after, is_shared) in [(2, true), (2, false), (6, false), (7, false)] {
            let streams = [(stream.clone(), Position { lineage: 1, seq: after })].into();
            let mut feed = HubFeed::new(Arc::clone(&hub), Positions { streams, others: false });
            feed.take((&stream, 1), &batch, is_shared.then_some((0, &json)));
            if after < 7 {
                let told = feed.ready.pop_front().unwrap();
                let said: serde_json::Value = serde_json::from_slice(&told.json).unwrap();
                assert_eq!(said, serde_json::json!({ "removed": "eu/prices", "last": 7 }));
                // Who resumes there is told again.
                let at = Positions::parse(&told.token).unwrap().streams[&stream];
                assert_eq!((told.event, at.seq), (Some(REMOVED), after));
            }
            let piece = feed.ready.pop_front().unwrap();
            let said: serde_json::Value = serde_json::from_slice(&piece.json).unwrap();
            assert_eq!((piece.event, &said["after"], &said["last"]), (None, &after.into(), &8.into()));
        }
    }

    /// One of `count` events without anything but the same predicate, which it takes one byte to repeat.
    fn events_that_repeat_a_predicate(count: u64) -> Batch {
        let mut events = Writer::new(0);
        let predicate = format!("key = \"{}\"", "k".repeat(4_000));
        let collect = Collect::Matching(predicate.into());
        (0..count).for_each(|_| events.publish(&Content::default(), Some(&collect)).unwrap());
        events.finish(0)
    }

    #[tokio::test]
    async fn a_batch_that_is_large_in_json_only_comes_in_parts_at_the_live_edge_and_behind_it() {
        let env = Env::real();
        let hub = Hub::start(&env, vec!["127.0.0.1:1".to_owned()], Vec::new(), 4 * JSON_BYTES);
        let stream = Stream::parse("eu/prices").unwrap();
        const COUNT: u64 = 2_000;
        let batch = events_that_repeat_a_predicate(COUNT);
        assert!(batch.bytes.len() < 10_000);
        hub.live.ring.lock().begin(&[(stream.clone(), Position { lineage: 1, seq: 0 })]);
        let mut live = HubFeed::new(Arc::clone(&hub), Positions::of([stream.clone()]));
        let mut behind = HubFeed::new(Arc::clone(&hub), Positions::of([stream.clone()]));
        // As a listener of its own is answered.
        behind.take((&stream, 1), &batch, None);
        hub.live.take(&stream, 1, batch).await.unwrap();
        // More than the ring holds: so it was never whole in memory.
        assert!(hub.live.ring.lock().read(0, 1).is_none());
        let mut last = 0;
        while last < COUNT {
            let HubPiece { token, json, .. } = behind.next().await;
            assert!(json.len() < JSON_BYTES + 10_000 && behind.ready.is_empty());
            let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
            assert_eq!(json["after"], last);
            last = json["last"].as_u64().unwrap();
            let events = json["events"].as_array().unwrap();
            assert_eq!(events.len() as u64, last - json["after"].as_u64().unwrap());
            let at = Positions::parse(&token).unwrap().streams[&stream];
            assert_eq!(at, Position { lineage: 1, seq: last });
        }
        // One at the live edge is at what the ring begins with by now.
        live.positions = Arc::new(Positions {
            streams: [(stream.clone(), Position { lineage: 1, seq: COUNT - 10 })].into(),
            others: false,
        });
        let json: serde_json::Value = serde_json::from_slice(&live.next().await.json).unwrap();
        assert_eq!((json["after"].as_u64(), json["last"].as_u64()), (Some(COUNT - 10), Some(COUNT)));
    }

    #[tokio::test]
    async fn a_listener_with_a_large_token_takes_few_batches_at_once() {
        let env = Env::real();
        let hub = Hub::start(&env, vec!["127.0.0.1:1".to_owned()], Vec::new(), 8 << 20);
        let stream = Stream::parse("eu/prices").unwrap();
        hub.live.ring.lock().begin(&[(stream.clone(), Position { lineage: 1, seq: 0 })]);
        let others = (0..4_000).map(|n| Stream::parse(&format!("eu/{n}-{}", "x".repeat(50))).unwrap());
        let mut feed = HubFeed::new(Arc::clone(&hub), Positions::of(others.chain([stream.clone()])));
        let token = feed.begin().await;
        for after in 0..64 {
            let mut events = Writer::new(after);
            events.publish(&Content::default(), None).unwrap();
            hub.live.take(&stream, 1, events.finish(0)).await.unwrap();
        }
        for last in 1..=64 {
            let piece = feed.next().await;
            assert_eq!(Positions::parse(&piece.token).unwrap().streams[&stream].seq, last);
            assert!((1 + feed.ready.len()) * token.len() <= TAKEN_TOKENS_BYTES, "{}", feed.ready.len());
        }
    }
}
