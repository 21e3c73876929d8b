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
    Journal, JournalAppendError, JournalAppendOptions, JournalConfig, JournalOpenError, JournalPosition,
    ReplayError, Tag,
};

use crate::checkers::{DeliveryLedger, RecordId, Report, Violation, ensure};
use crate::planted::Plant;
use crate::rng::Rng;
use crate::world::{Crash, Node, World};

use super::faults::{End, Life};
use super::lives::{self, Lives, Outcome};

const DIR: &str = "/data/journal";
/// Longest time that a working disk may leave an append without an answer: the journal's longest pause between
/// two attempts, with room to spare.
const RESUME_MAX: Duration = Duration::from_secs(20);
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
    violation: Option<Violation>,
    report: Report,
    outside: crate::world::Outside,
}

type Outside = Arc<Mutex<JournalScenario>>;

impl JournalScenario {
    fn new(world: &World) -> Self {
        Self {
            ledger: DeliveryLedger::new(),
            accepted: Vec::new(),
            violation: None,
            report: Report::default(),
            outside: world.outside(),
        }
    }
}

impl Outcome for JournalScenario {
    fn report(&mut self) -> &mut Report {
        &mut self.report
    }

    fn violation(&mut self) -> &mut Option<Violation> {
        &mut self.violation
    }
}

const LIVES: Lives = Lives {
    name: "journal",
    most: 6,
    changes_max: 120,
    length_max: Duration::from_millis(60),
    calm: Duration::from_millis(5),
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
fn live(
    world: &World,
    node: &Node,
    rng: &mut Rng,
    life: &Life,
    plant: Plant,
    state: &Outside,
) -> Result<(), Violation> {
    life.begin(node);
    let env = node.env_with_disk(|disk| plant.disk(disk));
    state.lock().report.count("lives", 1);
    state.lock().accepted.clear();
    let config = draw_config(rng);
    let opened = world.run(node.run("open", open(env.clone(), config)))?;
    let Ok(opened) = opened else {
        state.lock().report.count("crashes in recovery", 1);
        return Ok(());
    };
    let (journal, found) = match opened {
        Ok(opened) => opened,
        Err(JournalOpenError::Disk(_)) if life.disk_fails() || !node.is_up() => {
            state.lock().report.count("failed opens", 1);
            node.crash(Crash::Process);
            return Ok(());
        }
        Err(error) => return Err(Violation::new(format!("the journal can't be opened: {error}"))),
    };
    state.lock().report.count("records recovered", found.len() as u64);
    for id in &found {
        world.outside().record("recovered", *id, 0);
    }
    state.lock().ledger.recovered(&found)?;

    for number in 0..rng.between(1, 3) {
        let appender = JournalAppender {
            env: env.clone(),
            journal: journal.clone(),
            state: state.clone(),
            tag: Tag(1 + (number % 2) as u8),
            eager: rng.below(2) == 0,
            under_way: under_way(),
        };
        env.spawn("appender", appender.run()).detach();
    }
    env.spawn("trimmer", trim(env.clone(), journal.clone(), state.clone())).detach();

    if !lives::pass(world, node, life, state)? {
        return Ok(());
    }
    match life.end {
        End::Crash(how) => node.crash(how),
        End::Close => {
            Life::mend(node);
            world.run(end_in_order(world, node, journal, env, state.clone()))??;
        }
    }
    state.lock().take_violation()
}

/// With a disk that works the journal takes a record and acknowledges it, and its close acknowledges the rest.
async fn end_in_order(
    world: &World,
    node: &Node,
    journal: Journal,
    env: Env,
    state: Outside,
) -> Result<(), Violation> {
    let probe = JournalAppender {
        env,
        journal: journal.clone(),
        state: state.clone(),
        tag: Tag(1),
        eager: true,
        under_way: under_way(),
    };
    let resumed = node.run("probe", async move {
        let mut lost = 0;
        // Records that were under way when the disk was mended may still get lost.
        while probe.append_one(100, true).await != Fate::Acknowledged {
            lost += 1;
            assert!(lost < 100, "a disk that works loses nothing for ever");
        }
    });
    let resumed = world.outside().timeout(RESUME_MAX, resumed).await;
    ensure(resumed.is_some(), || "the disk works again, but the journal does not".to_owned())?;
    let closing = journal.clone();
    let closed = node.run("close", async move { closing.close().await });
    let closed = world.outside().timeout(RESUME_MAX, closed).await;
    match closed {
        Some(Ok(Ok(()))) => {
            state.lock().ledger.all_acknowledged();
            state.lock().report.count("closes", 1);
        }
        Some(Ok(Err(error))) => {
            return Err(Violation::new(format!("the disk works, but closing failed: {error}")));
        }
        Some(Err(_)) => return Err(Violation::new("nobody crashed the node")),
        None => return Err(Violation::new("closing takes for ever")),
    }
    node.crash(Crash::Power);
    Ok(())
}

fn under_way() -> Arc<tokio::sync::Semaphore> {
    Arc::new(tokio::sync::Semaphore::new(EAGER_APPENDS_MAX))
}

fn draw_config(rng: &mut Rng) -> JournalConfig {
    JournalConfig {
        file_bytes: 64 << 10,
        files_max: rng.between(3, 8) as u32,
        reserve_bytes: 4 << 10,
        backlog_bytes: rng.between(8, 64) as usize * 1024,
        record_bytes_max: RECORD_BYTES_MAX,
        sync_interval: Duration::from_millis(rng.between(1, 20)),
    }
}

/// Opens the journal and answers the records found, each checked byte by byte.
async fn open(env: Env, config: JournalConfig) -> Result<(Journal, Vec<RecordId>), JournalOpenError> {
    let mut found = Vec::new();
    let mut position = JournalPosition(0);
    let journal = Journal::open(&env, Path::new(DIR), config, &mut |tag, end, bytes| {
        if end <= position {
            return Err(ReplayError::new(format!("position {end} comes after {position}")));
        }
        position = end;
        found.push(decode(tag, bytes)?);
        Ok(())
    })?;
    Ok((journal, found))
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
            if self.state.lock().violation.is_some() {
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
                    self.state.lock().report.count("refusals", 1);
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
                state.report.count("acknowledged", 1);
                Fate::Acknowledged
            }
            Err(lost) if lost.closed => Fate::Closed,
            Err(_) => {
                state.outside.record("lost", id, end.0);
                let told = state.ledger.lost(id);
                state.note(told);
                state.report.count("lost", 1);
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
        outside.report.count("trims", 1);
    }
}
