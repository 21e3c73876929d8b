//! One ledger, its bookies and its metadata, a writer, readers and those who recover it, in a network that loses,
//! delays and reorders. A seed decides everything; [`run`] says what happened, or which promise was broken.
//!
//! Until [`HEALED_AT`] everything goes wrong that the seed wants. Then bookies are up and messages arrive, and a last
//! recovery has to close the ledger, with everything that was acknowledged in it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tailwater_env::Instant;

use super::actors::{Actor, Role};
use super::bookie::ModelBookie;
use super::checks;
use crate::digest::DigestKind;
use crate::ids::{BookieId, EntryId, LedgerId, Quorums};
use crate::metadata::{LedgerMetadata, LedgerStatus};
use crate::planted::Planted;
use crate::protocol::{BookieAnswer, BookieError, BookieRequest};
use crate::step::{Choice, ReplaceFault, StepEffect, StepInput, VersionedMetadata};

/// Milliseconds until nothing goes wrong any more, and until the end.
const HEALED_AT: u64 = 1_500;
const END: u64 = 6_000;
const TICK: u64 = 10;

/// What a run takes place in.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// All there are.
    pub bookies: usize,
    /// Ensemble, write quorum, ack quorum.
    pub quorums: (usize, usize, usize),
}

/// What happened, over one run or many.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    pub runs: u64,
    /// Runs whose ledger was closed before everything was well.
    pub closed: u64,
    pub acknowledged: u64,
    /// Changes of bookies.
    pub ensembles: u64,
    pub crashes: u64,
    pub fenced_writers: u64,
    /// Recoveries that ended in the middle.
    pub died_recoveries: u64,
    /// Runs in which two found the same end.
    pub closed_by_two: u64,
    /// Entries that a recovery sent to a bookie.
    pub written_back: u64,
    pub read_entries: u64,
    /// A sum of all that happened, in order.
    pub history: u64,
}

impl Outcome {
    /// Adds a run.
    pub fn add(&mut self, other: &Self) {
        self.runs += other.runs;
        self.closed += other.closed;
        self.acknowledged += other.acknowledged;
        self.ensembles += other.ensembles;
        self.crashes += other.crashes;
        self.fenced_writers += other.fenced_writers;
        self.died_recoveries += other.died_recoveries;
        self.closed_by_two += other.closed_by_two;
        self.written_back += other.written_back;
        self.read_entries += other.read_entries;
        self.history ^= other.history;
    }

    fn note(&mut self, number: u64) {
        // FNV.
        self.history = (self.history ^ number).wrapping_mul(0x100_0000_01b3);
    }
}

enum Event {
    /// A request is at its bookie.
    Arrive {
        actor: usize,
        token: u64,
        bookie: BookieId,
        request: BookieRequest,
    },
    /// An answer is back, or a request has failed.
    Answer {
        actor: usize,
        token: u64,
        result: Result<BookieAnswer, BookieError>,
    },
    /// A change is at the store. Whoever asked hears of it later, or not.
    Replace {
        actor: usize,
        metadata: Box<LedgerMetadata>,
        version: i32,
    },
    Reread {
        actor: usize,
    },
    ListBookies {
        actor: usize,
    },
    Input {
        actor: usize,
        input: StepInput,
    },
    Append {
        entries: usize,
    },
    Close,
    Tick,
    Crash {
        bookie: usize,
        ms: u64,
    },
    Restart {
        bookie: usize,
    },
    Recover {
        last: bool,
    },
    Read,
    Die {
        actor: usize,
    },
    Heal,
}

/// See the module.
pub struct World {
    pub ledger: LedgerId,
    pub quorums: Quorums,
    pub bookies: BTreeMap<BookieId, ModelBookie>,
    /// The metadata as they are stored.
    pub stored: VersionedMetadata,
    /// As they were when the first recovery began.
    pub claimed: Option<LedgerMetadata>,
    pub actors: Vec<Actor>,
    pub outcome: Outcome,
    /// The last entry that the writer was told to be acknowledged.
    pub acked: EntryId,
    /// The last recovery, once everything is well.
    pub last: Option<usize>,
    planted: Planted,
    choice: Choice,
    now: u64,
    order: u64,
    events: BTreeMap<(u64, u64), Event>,
    /// Of a hundred messages, how many are lost, and how many are late.
    lost: usize,
    late: usize,
    /// Milliseconds until a request that was not answered has failed.
    patience: u64,
    /// Ways that nothing passes: an actor's to a bookie.
    cuts: BTreeSet<(usize, BookieId)>,
}

/// What an entry of the run has in it.
pub fn payload(entry: EntryId) -> Vec<u8> {
    vec![entry.get() as u8; 1 + (entry.get() as usize * 7) % 23]
}

/// One run.
pub fn run(setting: Setting, planted: Planted, seed: u64) -> Result<Outcome, String> {
    let mut world = World::new(setting, planted, seed);
    world.plan();
    while let Some(((now, _), event)) = world.events.pop_first() {
        if now > END {
            break;
        }
        world.now = now;
        world.happen(event)?;
    }
    checks::at_the_end(&mut world)?;
    Ok(world.outcome)
}

impl World {
    fn new(setting: Setting, planted: Planted, seed: u64) -> Self {
        let (ensemble, write, ack) = setting.quorums;
        let quorums = Quorums::new(ensemble, write, ack).expect("in order");
        let names: Vec<BookieId> =
            (0..setting.bookies).map(|number| BookieId::new(&format!("bookie{number}:3181"))).collect();
        let metadata =
            LedgerMetadata::new(quorums, names[..ensemble].to_vec(), DigestKind::Crc32c, b"secret");
        let mut choice = Choice::new(seed.wrapping_mul(0x9e37_79b9));
        let lost = [0, 1, 8][choice.below(3)];
        let late = [2, 10, 40][choice.below(3)];
        let patience = [60, 250][choice.below(2)];
        Self {
            ledger: LedgerId::new(7).expect("not negative"),
            quorums,
            bookies: names.into_iter().map(|name| (name, ModelBookie::new())).collect(),
            stored: VersionedMetadata { metadata, version: 0 },
            claimed: None,
            actors: Vec::new(),
            outcome: Outcome { runs: 1, ..Outcome::default() },
            acked: EntryId::NONE,
            last: None,
            planted,
            choice,
            now: 0,
            order: 0,
            events: BTreeMap::new(),
            lost,
            late,
            patience,
            cuts: BTreeSet::new(),
        }
    }

    /// What goes wrong, and when.
    fn plan(&mut self) {
        let writer = Role::writer(self.ledger, self.stored.clone(), self.planted, self.instant());
        self.actors.push(Actor::new(writer));
        for _ in 0..8 + self.choice.below(12) {
            let entries = 1 + self.choice.below(4);
            self.at(0, HEALED_AT - 300, Event::Append { entries });
        }
        for _ in 0..self.choice.below(4) {
            let (bookie, ms) = (self.choice.below(self.bookies.len()), 20 + self.choice.below(500) as u64);
            self.at(0, HEALED_AT, Event::Crash { bookie, ms });
        }
        for _ in 0..self.choice.below(3) {
            let bookie = self.choice.below(self.bookies.len());
            let bookie = self.bookies.keys().nth(bookie).expect("one of them").clone();
            self.cuts.insert((self.choice.below(3), bookie));
        }
        for _ in 0..self.choice.below(4) {
            self.at(200, HEALED_AT - 100, Event::Recover { last: false });
        }
        for _ in 0..3 {
            self.at(100, HEALED_AT, Event::Read);
        }
        if self.choice.below(5) == 0 {
            self.at(300, HEALED_AT, Event::Die { actor: 0 });
        }
        if self.choice.below(3) == 0 {
            self.at(HEALED_AT / 2, HEALED_AT, Event::Close);
        }
        self.at(HEALED_AT, HEALED_AT, Event::Heal);
        self.at(HEALED_AT, HEALED_AT, Event::Recover { last: true });
        self.at(TICK, TICK, Event::Tick);
    }

    /// Something happens at some time from `from` to `to`.
    fn at(&mut self, from: u64, to: u64, event: Event) {
        let at = from + self.choice.below((to - from + 1) as usize) as u64;
        self.order += 1;
        self.events.insert((at, self.order), event);
    }

    fn after(&mut self, ms: u64, event: Event) {
        self.at(self.now + ms, self.now + ms, event);
    }

    pub fn instant(&self) -> Instant {
        Instant::from_ns(self.now * 1_000_000)
    }

    /// How long a message takes; `None` if it does not arrive.
    fn way(&mut self) -> Option<u64> {
        if self.choice.below(100) < self.lost {
            return None;
        }
        let late = self.choice.below(100) < self.late;
        Some(1 + self.choice.below(if late { 150 } else { 12 }) as u64)
    }

    fn happen(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::Arrive { actor, token, bookie, request } => self.arrive(actor, token, &bookie, &request),
            Event::Answer { actor, token, result } => {
                if let Some(token) = self.actors[actor].waits_for.remove(&token) {
                    return self.step(actor, StepInput::Answer { token, result });
                }
            }
            Event::Replace { actor, metadata, version } => self.replace(actor, *metadata, version)?,
            Event::Reread { actor } => {
                let input = StepInput::Reread(Ok(self.stored.clone()));
                self.after(2, Event::Input { actor, input });
            }
            Event::ListBookies { actor } => {
                let up = self.bookies.iter().filter(|(_, bookie)| bookie.up).map(|(name, _)| name.clone());
                let input = StepInput::Bookies(Some(up.collect()));
                self.after(2, Event::Input { actor, input });
            }
            Event::Input { actor, input } => return self.step(actor, input),
            Event::Append { entries } => {
                for _ in 0..entries {
                    self.act(0, Actor::append)?;
                }
            }
            Event::Close => return self.act(0, Actor::close),
            Event::Tick => {
                self.after(TICK, Event::Tick);
                for actor in 0..self.actors.len() {
                    self.step(actor, StepInput::Tick)?;
                }
            }
            Event::Crash { bookie, ms } => self.crash(bookie, ms),
            Event::Restart { bookie } => self.nth(bookie).up = true,
            Event::Recover { last } => return self.recover(last),
            Event::Read => {
                let (metadata, now) = (self.stored.metadata.clone(), self.instant());
                let mut effects = Vec::new();
                let reader = Role::reader(self.ledger, metadata, now, &mut effects);
                return self.join(Actor::new(reader), effects);
            }
            Event::Die { actor } => self.die(actor),
            Event::Heal => {
                self.outcome.closed =
                    u64::from(matches!(self.stored.metadata.state, LedgerStatus::Closed { .. }));
                (self.lost, self.late) = (0, 0);
                self.cuts.clear();
                self.bookies.values_mut().for_each(|bookie| bookie.up = true);
            }
        }
        Ok(())
    }

    fn nth(&mut self, bookie: usize) -> &mut ModelBookie {
        self.bookies.values_mut().nth(bookie).expect("one of them")
    }

    fn crash(&mut self, bookie: usize, ms: u64) {
        self.nth(bookie).up = false;
        self.outcome.crashes += 1;
        self.after(ms, Event::Restart { bookie });
    }

    fn die(&mut self, actor: usize) {
        let dying = &mut self.actors[actor];
        if !dying.dead && dying.recovers() && !dying.has_recovered() {
            self.outcome.died_recoveries += 1;
        }
        dying.dead = true;
    }

    fn recover(&mut self, last: bool) -> Result<(), String> {
        let actor = self.actors.len();
        let mut effects = Vec::new();
        let (versioned, seed, now) = (self.stored.clone(), self.choice.below(1 << 30) as u64, self.instant());
        let role = Role::recoverer(self.ledger, versioned, self.planted, seed, now, &mut effects);
        if last {
            self.last = Some(actor);
        } else if self.choice.below(3) == 0 {
            let ms = 5 + self.choice.below(150) as u64;
            self.after(ms, Event::Die { actor });
        }
        // What is on its way while a ledger is fenced is what can go wrong.
        for _ in 0..4 {
            self.at(self.now, self.now + 30, Event::Append { entries: 1 });
        }
        self.join(Actor::new(role), effects)
    }

    fn join(&mut self, actor: Actor, effects: Vec<StepEffect>) -> Result<(), String> {
        self.actors.push(actor);
        self.carry_out(self.actors.len() - 1, effects)
    }

    fn arrive(&mut self, actor: usize, token: u64, bookie: &BookieId, request: &BookieRequest) {
        let served =
            self.bookies.get_mut(bookie).filter(|bookie| bookie.up).map(|bookie| bookie.serve(request));
        let (result, busy) = (served.unwrap_or(Err(BookieError::Unreachable)), self.choice.below(60) == 0);
        // A bookie may refuse without saying anything about what it has.
        let refused = busy && matches!(result, Ok(BookieAnswer::Entry { .. }) | Err(BookieError::NoEntry));
        let result = if refused { Err(BookieError::Refused(101)) } else { result };
        if let Some(ms) = self.way() {
            self.after(ms, Event::Answer { actor, token, result });
        }
    }

    fn replace(&mut self, actor: usize, metadata: LedgerMetadata, version: i32) -> Result<(), String> {
        let result = if version == -1 || version == self.stored.version {
            checks::change(&self.stored.metadata, &metadata)?;
            self.outcome.ensembles +=
                u64::from(metadata.ensembles().count() > self.stored.metadata.ensembles().count());
            if metadata.state == LedgerStatus::InRecovery {
                self.claimed = Some(metadata.clone());
            }
            self.stored = VersionedMetadata { metadata, version: self.stored.version + 1 };
            Ok(self.stored.version)
        } else {
            Err(ReplaceFault::Conflict)
        };
        let result = if self.way().is_some() { result } else { Err(ReplaceFault::Unknown) };
        self.after(2, Event::Input { actor, input: StepInput::Replaced(result) });
        Ok(())
    }

    fn step(&mut self, actor: usize, input: StepInput) -> Result<(), String> {
        self.act(actor, |acting, now, effects| acting.step(now, input, effects))
    }

    fn act(
        &mut self,
        actor: usize,
        act: impl FnOnce(&mut Actor, Instant, &mut Vec<StepEffect>),
    ) -> Result<(), String> {
        let now = self.instant();
        let acting = &mut self.actors[actor];
        if acting.dead {
            return Ok(());
        }
        let mut effects = Vec::new();
        act(acting, now, &mut effects);
        let heard = acting.heard();
        checks::heard(self, heard)?;
        self.carry_out(actor, effects)
    }

    fn carry_out(&mut self, actor: usize, effects: Vec<StepEffect>) -> Result<(), String> {
        for effect in effects {
            self.outcome.note(self.now << 8 | actor as u64);
            match effect {
                StepEffect::Ask { token, bookie, request } => {
                    if self.actors[actor].recovers() {
                        checks::recovery_asks(self, &request)?;
                    }
                    self.outcome.note(token);
                    // Its own tokens need not differ from each other.
                    self.order += 1;
                    self.actors[actor].waits_for.insert(self.order, token);
                    let token = self.order;
                    let failed = Err(BookieError::TimedOut);
                    self.after(self.patience, Event::Answer { actor, token, result: failed });
                    let cut = self.cuts.contains(&(actor, bookie.clone()));
                    if let Some(ms) = self.way().filter(|_| !cut) {
                        self.after(ms, Event::Arrive { actor, token, bookie, request });
                    }
                }
                StepEffect::Replace { metadata, version } => match self.way() {
                    Some(ms) => self.after(ms, Event::Replace { actor, metadata, version }),
                    None => {
                        let input = StepInput::Replaced(Err(ReplaceFault::Unknown));
                        self.after(20, Event::Input { actor, input });
                    }
                },
                StepEffect::Reread => self.after(2, Event::Reread { actor }),
                StepEffect::ListBookies => self.after(2, Event::ListBookies { actor }),
            }
        }
        Ok(())
    }
}

/// Milliseconds.
pub const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}
