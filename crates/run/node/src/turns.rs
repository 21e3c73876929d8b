//! Turns of those who catch up: reads of the durable layer far from the tail share the disk, and the node's time.
//!
//! What is near the end of its shard is read at once: it is in memory, and whoever asks for it is a reader at the tail
//! that the cells fail. Everything else waits for a turn. Few reads go on at a time; the next one is that of the
//! connection which got the fewest bytes, so one that asks for much holds nobody back but itself; and all together keep
//! to a rate. A read whose turn does not come in time is refused as overloaded, which clients try again: were it to
//! wait for longer than they do, it would be done for nobody.
//!
//! [`TurnsWaiting`] is the state; [`Turns`] hands them out.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex;
use tailwater_broadcast::quota::{Meter, Quota};
use tailwater_env::{Env, Instant, Task};
use tailwater_format::call::{CallErrorCode, CallRefusal};
use tailwater_format::{Position, SegmentId, Tail};
use tokio::sync::{Notify, oneshot};

use crate::metrics::Meters;

/// Bytes of a shard that lie behind a place near its tail: what a reader keeps of it.
const NEAR_TAIL_BYTES: u64 = tailwater_tail::limits::WINDOW_BYTES as u64;

/// The longest that a read waits for its turn: well below a client's deadline for a CALL.
const WAIT_MAX: Duration = Duration::from_secs(4);

/// Connections that are remembered before those are forgotten that wait for nothing.
const CONNECTIONS_MAX: usize = 10_000;

/// Whether a read at `position` of `segment` is one of those who catch up.
pub fn is_far(segment: SegmentId, position: Position, tail: &Tail) -> bool {
    tail.rest(segment.number, position).is_none_or(|rest| rest > NEAR_TAIL_BYTES)
}

/// Hands turns out.
pub struct Turns {
    shared: Arc<TurnsShared>,
    _later: Task,
}

struct TurnsShared {
    env: Env,
    meters: Arc<Meters>,
    waiting: Mutex<TurnsWaiting<oneshot::Sender<Turn>>>,
    /// Rung when the rate holds somebody up.
    held_up: Notify,
}

/// The right to read. Dropping it gives the turn to the next one.
pub struct Turn {
    shared: Arc<TurnsShared>,
    connection: String,
    bytes: u64,
}

impl Turns {
    /// For so many reads at a time, and so many bytes of them a second (0 is any number).
    pub fn new(env: &Env, reads_max: usize, bytes_per_s: u64, meters: Arc<Meters>) -> Self {
        let waiting = Mutex::new(TurnsWaiting::new(reads_max, bytes_per_s, env.now()));
        let shared = Arc::new(TurnsShared { env: env.clone(), meters, waiting, held_up: Notify::new() });
        let later = env.spawn("catch-up-turns", begin_later(Arc::clone(&shared)));
        Self { shared, _later: later }
    }

    /// Waits for a turn to read so many bytes for a connection.
    ///
    /// # Errors
    /// If it does not come in time.
    pub async fn turn(&self, connection: &str, bytes: u64) -> Result<Turn, CallRefusal> {
        let shared = &self.shared;
        let asked = shared.env.now();
        let (begin, mut begun) = oneshot::channel();
        shared.waiting.lock().ask(connection, bytes, begin);
        shared.begin();
        let turn = match shared.env.timeout(WAIT_MAX, &mut begun).await {
            Some(turn) => turn.ok(),
            None => {
                begun.close();
                // It may have come at the last moment.
                begun.try_recv().ok()
            }
        };
        let meter = &shared.meters.catch_up;
        let Some(turn) = turn else {
            meter.refused.fetch_add(1, Ordering::Relaxed);
            let why = "too many readers catch up: its turn to read did not come in time";
            return Err(CallRefusal::new(CallErrorCode::Overloaded, why));
        };
        meter.waits.add(shared.env.now().since(asked));
        Ok(turn)
    }

    /// Reads that wait for a turn.
    pub fn waiting(&self) -> usize {
        self.shared.waiting.lock().count(oneshot::Sender::is_closed)
    }
}

impl Turn {
    /// So many bytes were read.
    pub fn read(&mut self, bytes: u64) {
        self.bytes += bytes;
        self.shared.meters.catch_up.bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let now = self.shared.env.now();
        self.shared.waiting.lock().ended(now, &self.connection, self.bytes);
        self.shared.begin();
    }
}

impl TurnsShared {
    /// Gives turns to all who may begin.
    fn begin(self: &Arc<Self>) {
        loop {
            let next = self.waiting.lock().next(self.env.now(), oneshot::Sender::is_closed);
            match next {
                NextTurn::Begin { connection, who } => {
                    let turn = Turn { shared: Arc::clone(self), connection, bytes: 0 };
                    // Nobody may be there any more: then it is the next one's.
                    drop(who.send(turn));
                }
                NextTurn::Later(_) => return self.held_up.notify_one(),
                NextTurn::Nobody => return,
            }
        }
    }
}

/// Gives turns to those whom the rate holds up.
async fn begin_later(shared: Arc<TurnsShared>) {
    loop {
        let next_at = shared.waiting.lock().later(shared.env.now());
        match next_at {
            Some(at) => shared.env.sleep_until(at).await,
            None => shared.held_up.notified().await,
        }
        shared.begin();
    }
}

/// What to do next.
#[derive(Debug, PartialEq, Eq)]
enum NextTurn<T> {
    /// It is their turn.
    Begin { connection: String, who: T },
    /// The rate holds whoever is next up until then.
    Later(Instant),
    /// Nobody waits, or enough read already.
    Nobody,
}

/// Who waits, and what each connection got.
#[derive(Debug)]
struct TurnsWaiting<T> {
    reads_max: usize,
    reading: usize,
    meter: Meter,
    connections: BTreeMap<String, Connection<T>>,
    /// Those of whom somebody waits, by what they got.
    order: BTreeSet<(u64, String)>,
    /// What the one had got that got a turn last: who comes or comes back has as much, so that nobody saves turns up.
    got: u64,
}

#[derive(Debug)]
struct Connection<T> {
    got: u64,
    reading: usize,
    waiting: VecDeque<(u64, T)>,
}

impl<T> TurnsWaiting<T> {
    fn new(reads_max: usize, bytes_per_s: u64, now: Instant) -> Self {
        let quota = Quota { bytes_per_s, ..Quota::NONE };
        Self {
            reads_max,
            reading: 0,
            meter: Meter::new(quota, now),
            connections: BTreeMap::new(),
            order: BTreeSet::new(),
            got: 0,
        }
    }

    /// `who`, of a connection, wants to read so many bytes.
    fn ask(&mut self, connection: &str, bytes: u64, who: T) {
        if self.connections.len() >= CONNECTIONS_MAX && !self.connections.contains_key(connection) {
            self.connections.retain(|_, other| other.reading > 0 || !other.waiting.is_empty());
        }
        let known = self.connections.entry(connection.to_owned());
        let known = known.or_insert_with(|| Connection { got: 0, reading: 0, waiting: VecDeque::new() });
        if known.waiting.is_empty() {
            known.got = known.got.max(self.got);
            self.order.insert((known.got, connection.to_owned()));
        }
        known.waiting.push_back((bytes, who));
    }

    /// What to do next. Those who are gone are left out.
    fn next(&mut self, now: Instant, is_gone: impl Fn(&T) -> bool) -> NextTurn<T> {
        while self.reading < self.reads_max {
            let Some((got, connection)) = self.order.pop_first() else { return NextTurn::Nobody };
            let known = self.connections.get_mut(&connection).expect("it waits");
            while known.waiting.pop_front_if(|(_, who)| is_gone(who)).is_some() {}
            if known.waiting.is_empty() {
                continue;
            }
            let wait = self.meter.wait(now);
            if !wait.is_zero() {
                self.order.insert((got, connection));
                return NextTurn::Later(now + wait);
            }
            let (bytes, who) = known.waiting.pop_front().expect("somebody is left");
            self.got = got;
            self.reading += 1;
            known.reading += 1;
            known.got = got.saturating_add(bytes);
            if !known.waiting.is_empty() {
                self.order.insert((known.got, connection.clone()));
            }
            return NextTurn::Begin { connection, who };
        }
        NextTurn::Nobody
    }

    /// When whoever is next may begin, if it is the rate that holds them up.
    fn later(&mut self, now: Instant) -> Option<Instant> {
        let wait = self.meter.wait(now);
        (!self.order.is_empty() && self.reading < self.reads_max && !wait.is_zero()).then(|| now + wait)
    }

    /// A read of a connection has ended, and brought so many bytes.
    fn ended(&mut self, now: Instant, connection: &str, bytes: u64) {
        self.meter.wait(now);
        self.meter.spend(bytes, 0);
        self.reading -= 1;
        if let Some(known) = self.connections.get_mut(connection) {
            known.reading -= 1;
        }
        if self.reading == 0 && self.order.is_empty() {
            // Nobody is there to be fair to.
            self.connections.clear();
        }
    }

    fn count(&self, is_gone: impl Fn(&T) -> bool) -> usize {
        let waiting = self.connections.values().flat_map(|connection| &connection.waiting);
        waiting.filter(|(_, who)| !is_gone(who)).count()
    }
}

#[cfg(test)]
mod tests;
