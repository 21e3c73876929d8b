//! One journal through many lives: appenders of two tags that wait for their acknowledgements or do not, trims,
//! failing syncs and writes, a full disk, and crashes at any I/O, recovery included.
//!
//! Checked: the [`DeliveryLedger`]'s rules after every recovery; every replayed byte; positions that only grow; a close
//! that answers `Ok` acknowledges everything; once the disk works again, so does the journal.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tailwater_env::Env;
use tailwater_journal::{
    Journal, JournalAppendError, JournalAppendOptions, JournalConfig, JournalPosition, ReplayError, Tag,
};

use crate::checkers::{DeliveryLedger, RecordId, Report, Violation, ensure};
use crate::planted::Plant;
use crate::rng::Rng;
use crate::world::World;

use super::lives::{self, Lives, Living};
use super::outcome::{Noted, Outcome};

const DIR: &str = "/data/journal";
/// I/Os of a life, and of the recovery after it, at each of which some seed lets the power fail.
pub(super) const EVERY_IO: u64 = 160;
pub(super) const RECOVERY_IO: u64 = 17;
/// Records that an eager appender has under way, at most.
const EAGER_APPENDS_MAX: usize = 50;
const RECORD_BYTES_MAX: usize = 6_000;

/// What the world outside of the node knows.
struct JournalScenario {
    ledger: DeliveryLedger,
    /// Where each accepted record of this life ends.
    accepted: Vec<(RecordId, JournalPosition)>,
    noted: Noted,
    outside: crate::world::Outside,
}

type Outside = Arc<Mutex<JournalScenario>>;

impl JournalScenario {
    fn new(world: &World) -> Self {
        Self {
            ledger: DeliveryLedger::new(),
            accepted: Vec::new(),
            noted: Noted::default(),
            outside: world.outside(),
        }
    }
}

impl Outcome for JournalScenario {
    fn noted(&mut self) -> &mut Noted {
        &mut self.noted
    }

    fn begin_life(&mut self) {
        self.accepted.clear();
    }
}

const LIVES: Lives = Lives {
    name: "journal",
    most: 6,
    changes_max: 120,
    length_max: Duration::from_millis(60),
    calm: Duration::from_millis(5),
    resume_max: Duration::from_secs(20),
    every_io: (EVERY_IO, RECOVERY_IO),
};

/// Runs the scenario.
pub fn run(world: &mut World, plant: Plant) -> Result<Report, Violation> {
    LIVES.drawn(world, plant, JournalScenario::new(world), live)
}

/// The power fails at every I/O: seed after seed at the next one, then at every one of the recovery after it.
pub fn run_every_io(world: &mut World, plant: Plant) -> Result<Report, Violation> {
    LIVES.every_io(world, plant, JournalScenario::new, live)
}

/// From a start to a crash or a close.
fn live(living: &Living<'_, JournalScenario>, rng: &mut Rng) -> Result<(), Violation> {
    let Living { world, env, model: state, .. } = living;
    let opening = open(env.clone(), lives::draw_journal(rng, (3, 8), (8, 64)));
    let Some((journal, found)) = living.open(opening)? else { return Ok(()) };
    state.lock().count("records recovered", found.len() as u64);
    for id in &found {
        world.outside().record("recovered", *id, 0);
    }
    state.lock().ledger.recovered(&found)?;

    for number in 0..rng.between(1, 3) {
        let tag = Tag(1 + (number % 2) as u8);
        let appender = JournalAppender::new(living, &journal, tag, rng.below(2) == 0);
        env.spawn("appender", appender.run()).detach();
    }
    env.spawn("trimmer", trim(env.clone(), journal.clone(), Arc::clone(state))).detach();
    living.end(|| living.world.run(end_in_order(living, journal))?)
}

/// With a disk that works the journal takes a record and acknowledges it, and its close acknowledges the rest.
async fn end_in_order(living: &Living<'_, JournalScenario>, journal: Journal) -> Result<(), Violation> {
    let probe = JournalAppender::new(living, &journal, Tag(1), true);
    let resumed = living.finish("probe", async move {
        let mut lost = 0;
        // Records that were under way when the disk was mended may still get lost.
        while probe.append_one(100, true).await != Fate::Acknowledged {
            lost += 1;
            assert!(lost < 100, "a disk that works loses nothing for ever");
        }
    });
    living.in_time("the disk works again, but the journal does not", resumed).await??;
    living.close(async move { journal.close().await }).await?;
    living.model.lock().ledger.all_acknowledged();
    Ok(())
}

/// Opens the journal and answers the records found, each checked byte by byte.
async fn open(env: Env, config: JournalConfig) -> Result<(Journal, Vec<RecordId>), String> {
    let mut found = Vec::new();
    let mut position = JournalPosition(0);
    let journal = Journal::open(&env, Path::new(DIR), config, &mut |tag, end, bytes| {
        if end <= position {
            return Err(ReplayError::new(format!("position {end} comes after {position}")));
        }
        position = end;
        found.push(decode(tag, bytes)?);
        Ok(())
    });
    Ok((journal.map_err(|error| error.to_string())?, found))
}

/// A record: its id, then bytes that follow from the id and the tag.
pub(super) fn encode(id: RecordId, tag: Tag, length: usize) -> Vec<u8> {
    let mut bytes = id.to_le_bytes().to_vec();
    let filler = filler(id, tag);
    bytes.extend((0..length.saturating_sub(8)).map(|at| filler.wrapping_add(at as u8)));
    bytes
}

fn decode(tag: Tag, bytes: &[u8]) -> Result<RecordId, ReplayError> {
    let (id, rest) = bytes.split_first_chunk::<8>().ok_or_else(|| ReplayError::new("a record cut short"))?;
    let id = RecordId::from_le_bytes(*id);
    let filler = filler(id, tag);
    let as_written = rest.iter().enumerate().all(|(at, byte)| *byte == filler.wrapping_add(at as u8));
    if as_written { Ok(id) } else { Err(ReplayError::new(format!("record {id} has changed"))) }
}

fn filler(id: RecordId, tag: Tag) -> u8 {
    (id as u8).wrapping_mul(31).wrapping_add(tag.0)
}

/// What became of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Acknowledged,
    Lost,
    /// Nobody will say.
    Closed,
}

#[derive(Clone)]
struct JournalAppender {
    env: Env,
    journal: Journal,
    state: Outside,
    tag: Tag,
    /// Does not wait for one record before it appends the next.
    eager: bool,
    /// One permit for each record that it does not wait for.
    under_way: Arc<tokio::sync::Semaphore>,
}

impl JournalAppender {
    fn new(living: &Living<'_, JournalScenario>, journal: &Journal, tag: Tag, eager: bool) -> Self {
        let (env, journal, state) = (living.env.clone(), journal.clone(), Arc::clone(living.model));
        let under_way = Arc::new(tokio::sync::Semaphore::new(EAGER_APPENDS_MAX));
        Self { env, journal, state, tag, eager, under_way }
    }

    async fn run(self) {
        loop {
            let length = match self.env.random_below(20) {
                0 => self.env.random_below(RECORD_BYTES_MAX as u64 - 8) as usize,
                _ => self.env.random_below(300) as usize,
            };
            let sync = self.env.random_below(4) != 0;
            if self.eager && self.under_way.available_permits() > 0 {
                let permit = self.under_way.clone().try_acquire_owned();
                let one = self.clone();
                let append = async move {
                    one.append_one(length, sync).await;
                    drop(permit);
                };
                self.env.spawn("append", append).detach();
                self.env.sleep(Duration::from_micros(self.env.random_below(800))).await;
            } else {
                if self.append_one(length, sync).await == Fate::Closed {
                    return;
                }
            }
            if self.state.lock().has_failed() {
                return;
            }
        }
    }

    /// Appends one record, in as many attempts as it takes, and waits for what becomes of it.
    async fn append_one(&self, length: usize, sync: bool) -> Fate {
        loop {
            match self.offer(length, sync) {
                Ok((id, end)) => return self.await_fate(id, end).await,
                Err(JournalAppendError::Stale { .. }) => {}
                Err(JournalAppendError::Closed) => return Fate::Closed,
                Err(
                    JournalAppendError::Full(_)
                    | JournalAppendError::Latched(_)
                    | JournalAppendError::Backlog { .. },
                ) => {
                    self.state.lock().count("refusals", 1);
                    self.journal.ready().await;
                }
                Err(refused @ JournalAppendError::TooLarge { .. }) => {
                    let what = format!("{length} bytes were refused: {refused}");
                    self.state.lock().note(Err(Violation::new(what)));
                    return Fate::Closed;
                }
            }
        }
    }

    /// One attempt, in one step: the order of acceptance is the order of ids.
    fn offer(&self, length: usize, sync: bool) -> Result<(RecordId, JournalPosition), JournalAppendError> {
        let mut state = self.state.lock();
        let incarnation = self.journal.incarnation();
        let id = state.ledger.next();
        let append = JournalAppendOptions::new(incarnation);
        let append = if sync { append } else { append.unsynced() };
        let bytes = encode(id, self.tag, length.max(8));
        let (head, tail) = bytes.split_at(bytes.len() / 2);
        let end = self.journal.append(self.tag, &[head, tail], append)?;
        state.ledger.accepted(incarnation.0, self.tag.0);
        state.outside.record("accepted", id, end.0);
        let before = state.accepted.last().map_or(JournalPosition(0), |(_, end)| *end);
        state.note(ensure(end > before, || format!("position {end} comes after {before}")));
        state.accepted.push((id, end));
        Ok((id, end))
    }

    async fn await_fate(&self, id: RecordId, end: JournalPosition) -> Fate {
        let durable = self.journal.durable();
        let result = durable.wait_for(end).await;
        let mut state = self.state.lock();
        match result {
            Ok(()) => {
                state.outside.record("acknowledged", id, end.0);
                let acknowledged = state.ledger.acknowledged(id);
                state.note(acknowledged);
                state.count("acknowledged", 1);
                Fate::Acknowledged
            }
            Err(lost) if lost.closed => Fate::Closed,
            Err(_) => {
                state.outside.record("lost", id, end.0);
                let told = state.ledger.lost(id);
                state.note(told);
                state.count("lost", 1);
                Fate::Lost
            }
        }
    }
}

/// Trims now and then, both tags to the same record or one alone.
async fn trim(env: Env, journal: Journal, state: Outside) {
    loop {
        env.sleep(Duration::from_micros(1 + env.random_below(4_000))).await;
        let mut outside = state.lock();
        if outside.accepted.is_empty() {
            continue;
        }
        let at = env.random_below(outside.accepted.len() as u64) as usize;
        let (id, end) = outside.accepted[at];
        if journal.durable().position() < end {
            continue;
        }
        let tags: &[u8] = if env.random_below(4) == 0 { &[1] } else { &[1, 2] };
        for &tag in tags {
            journal.trim(Tag(tag), end);
            outside.ledger.trimmed(tag, id + 1);
        }
        outside.outside.record("trimmed", id + 1, tags.len() as u64);
        outside.count("trims", 1);
    }
}
