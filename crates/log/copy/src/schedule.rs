//! Who runs which operation of a cluster (Fast ACS, 2.3, 3 and 5): a step function, without clock, network or metadata.
//!
//! An *operation* copies a part of a stream's shards over the hop to this cluster. A *worker* is a process that runs
//! operations. The node itself is one, too ([`HERE`]): it runs what no other one can.
//!
//! What holds after each step:
//! - **Complete.** Once the scheduler has learned, an operation that is known has one worker that is to run it, its
//!   owner. Of new ones so many begin at a time ([`ScheduleRules::starts_max`]).
//! - **At once.** What a dead worker owned has other owners in the step in which it is found dead.
//! - **Make before break.** A worker is told to end an operation that flows only when it flows at its owner.
//! - **Calm.** So many operations move at a time ([`ScheduleRules::moves_max`]), and one that has moved stays for a
//!   while. None is shed while workers come or go.
//! - **Balanced.** Where nothing moves, and no operation has moved lately, the loads of the workers with most and least
//!   differ by an eighth at most, or by less than 16/15 of the lightest operation of the one with most. So where all
//!   weigh the same they differ by one at most, or by an eighth.
//! - **Two are legal.** That several run one operation costs bytes, and nothing else: what is appended has its place.
//!   So workers go on without a scheduler, and a scheduler that begins takes what runs for what is to run.
//! - **Bounded** by the operations and workers that it is told of.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tailwater_env::Instant;
use tailwater_format::StreamId;

/// The name of the node itself among workers.
pub(crate) const HERE: &str = "";

/// An operation: a part of a stream's shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct OperationId {
    pub(crate) stream: StreamId,
    pub(crate) part: u32,
}

/// What is known of an operation at one worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OperationRun {
    /// It has a session with the cluster above, and what came was taken.
    pub(crate) flows: bool,
    /// How late it is; `None` where nothing came that would tell.
    pub(crate) delay: Option<Duration>,
    /// What it copies.
    pub(crate) bytes_per_s: u64,
}

/// What a worker tells.
#[derive(Clone, Debug, Default)]
pub(crate) struct WorkerReport {
    /// Its name, which no other worker of the cluster has.
    pub(crate) worker: String,
    /// A random number of its start.
    pub(crate) start: u64,
    /// It wants to end.
    pub(crate) is_leaving: bool,
    /// All that it runs.
    pub(crate) running: BTreeMap<OperationId, OperationRun>,
}

/// What happens.
#[derive(Clone, Debug)]
pub(crate) enum ScheduleInput {
    /// These are all operations that there are to be.
    Operations(BTreeSet<OperationId>),
    /// A worker tells what it runs.
    Report(WorkerReport),
    /// An operation flows at a worker.
    Flows(String, OperationId),
    /// A worker is gone, if that is still its start.
    Gone(String, u64),
    /// Time has passed.
    Tick,
}

/// The bounds by which it goes.
#[derive(Clone, Debug)]
pub(crate) struct ScheduleRules {
    /// How long a scheduler that begins only listens.
    pub(crate) learn: Duration,
    /// A worker that tells nothing for so long is dead.
    pub(crate) silence: Duration,
    /// New operations that begin at a time.
    pub(crate) starts_max: usize,
    /// Operations that move at a time.
    pub(crate) moves_max: usize,
    /// An operation that does not begin to flow at its owner for so long is tried elsewhere.
    pub(crate) patience: Duration,
    /// An operation that has moved stays for so long where it is.
    pub(crate) stay: Duration,
    /// Nothing is shed for so long after a worker has come or gone.
    pub(crate) quiet: Duration,
    /// How often it is looked who is slow.
    pub(crate) look: Duration,
    /// A worker is slow that is late in so many looks one after the other.
    pub(crate) strikes: u32,
    /// One is late whose delay is three times that of the others, and more than this above it.
    pub(crate) late: Duration,
    /// A slow worker gets nothing for so long, and twice as long each further time.
    pub(crate) rest: Duration,
}

impl Default for ScheduleRules {
    fn default() -> Self {
        Self {
            learn: Duration::ZERO,
            silence: Duration::from_millis(1_500),
            starts_max: 64,
            moves_max: 8,
            patience: Duration::from_secs(5),
            stay: Duration::from_secs(20),
            quiet: Duration::from_secs(5),
            look: Duration::from_secs(1),
            strikes: 5,
            late: Duration::from_millis(250),
            rest: Duration::from_secs(60),
        }
    }
}

/// Bytes a second that weigh as much as an operation that copies nothing.
const WEIGHT_BYTES_PER_S: u64 = 64 << 10;
/// How often a slow worker's rest is doubled at most, and the patience with an operation that flows nowhere.
const DOUBLED_MAX: u32 = 4;
/// An operation that was tried elsewhere so often in vain is the node's own for a while.
const TRIES_MAX: u32 = 2;
/// A worker is late with a delay so many times that of the others.
const LATE_TIMES: u32 = 3;
/// Workers that may be slow, or about to leave with their operations moved: one in so many, and always one.
const AT_ONCE_PART: usize = 3;

#[derive(Debug)]
struct ScheduledWorker {
    start: u64,
    heard: Instant,
    is_leaving: bool,
    /// It is its turn to leave: its operations move.
    has_turn: bool,
    running: BTreeMap<OperationId, OperationRun>,
    strikes: u32,
    /// How often it was slow, and until when it gets nothing.
    slow: Option<(u32, Instant)>,
}

#[derive(Debug)]
struct ScheduledOperation {
    owner: Option<String>,
    /// Since when that owns it.
    since: Instant,
    /// Its owner has died, and it has no other one yet.
    is_displaced: bool,
    /// It does not move before, other than from one that is gone or leaves.
    stays_until: Instant,
    /// How often it was tried elsewhere in vain.
    tried: u32,
}

/// What a scheduler has done since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScheduleCounts {
    /// Operations that got another worker as theirs had died.
    pub displaced: u64,
    /// Operations that were moved from workers that live, for whatever reason.
    pub moved: u64,
    /// Those of them that were moved to restore balance.
    pub shed: u64,
    /// Workers that were found slow.
    pub slow: u64,
    /// Workers that were found dead.
    pub dead: u64,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Scheduler {
    rules: ScheduleRules,
    learned_at: Instant,
    /// When a worker has come or gone last.
    changed_at: Option<Instant>,
    looked_at: Instant,
    operations: BTreeMap<OperationId, ScheduledOperation>,
    workers: BTreeMap<String, ScheduledWorker>,
    /// What each worker is to run, as of the last step.
    wanted: BTreeMap<String, BTreeSet<OperationId>>,
    counts: ScheduleCounts,
    /// Workers that are gone since it was asked for them last.
    gone: Vec<String>,
}

impl Scheduler {
    /// One that begins at `now`, and knows of nothing but the node itself.
    pub(crate) fn new(rules: ScheduleRules, now: Instant) -> Self {
        let learned_at = now + rules.learn;
        let mut new = Self {
            rules,
            learned_at,
            changed_at: None,
            looked_at: now,
            operations: BTreeMap::new(),
            workers: BTreeMap::new(),
            wanted: BTreeMap::new(),
            counts: ScheduleCounts::default(),
            gone: Vec::new(),
        };
        new.workers.insert(HERE.to_owned(), ScheduledWorker::new(0, now));
        new
    }

    /// Takes in what has happened by `now`. Answers the workers that are to run something else than before.
    pub(crate) fn step(&mut self, now: Instant, input: ScheduleInput) -> BTreeSet<String> {
        let is_tick = matches!(input, ScheduleInput::Tick);
        self.take_in(now, input);
        let silent = |(name, worker): (&String, &ScheduledWorker)| {
            let is_silent = name != HERE && now.since(worker.heard) > self.rules.silence;
            is_silent.then(|| name.clone())
        };
        let silent: Vec<String> = self.workers.iter().filter_map(silent).collect();
        silent.iter().for_each(|name| self.gone(now, name));
        if is_tick && now.since(self.looked_at) >= self.rules.look {
            self.looked_at = now;
            self.look_for_slow(now);
        }
        self.adopt(now);
        self.place(now);
        if now >= self.learned_at {
            self.give_turns();
            self.move_some(now);
        }
        self.tell()
    }

    /// The workers that are gone since the last time: what they copied has ended.
    pub(crate) fn take_gone(&mut self) -> Vec<String> {
        std::mem::take(&mut self.gone)
    }

    /// What a worker is to run; nothing of one that is not known.
    pub(crate) fn wanted(&self, worker: &str) -> BTreeSet<OperationId> {
        self.wanted.get(worker).cloned().unwrap_or_default()
    }

    /// Whether a worker that wants to end has nothing left to run.
    pub(crate) fn may_go(&self, worker: &str) -> bool {
        let Some(known) = self.workers.get(worker) else { return true };
        known.is_leaving && known.has_turn && self.wanted(worker).is_empty()
    }

    /// Whether another process has this worker's name, and was heard lately.
    pub(crate) fn is_other_start(&self, worker: &str, start: u64) -> bool {
        self.workers.get(worker).is_some_and(|known| known.start != start)
    }

    /// Whether there is nobody but the node itself, which runs everything, and nobody is waited for.
    pub(crate) fn is_alone(&self, now: Instant) -> bool {
        let is_here = |of: &ScheduledOperation| of.owner.as_deref() == Some(HERE);
        self.workers.len() == 1 && now >= self.learned_at && self.operations.values().all(is_here)
    }

    /// The worker that is to run an operation.
    pub(crate) fn owner(&self, operation: &OperationId) -> Option<&str> {
        self.operations.get(operation)?.owner.as_deref()
    }

    /// All operations that there are to be.
    pub(crate) fn operations(&self) -> impl Iterator<Item = OperationId> {
        self.operations.keys().copied()
    }

    /// What is known of an operation at a worker.
    pub(crate) fn run_of(&self, worker: &str, operation: &OperationId) -> Option<OperationRun> {
        self.workers.get(worker)?.running.get(operation).copied()
    }

    /// The workers, the node itself first: name, load, and what is to be said of it.
    pub(crate) fn workers(&self, now: Instant) -> Vec<(String, u64, &'static str)> {
        let loads = self.loads();
        let of = |(name, worker): (&String, &ScheduledWorker)| {
            let state = match worker {
                worker if worker.is_leaving => "leaving",
                worker if worker.is_slow(now) => "slow",
                _ => "serving",
            };
            (name.clone(), loads.get(name).copied().unwrap_or_default(), state)
        };
        self.workers.iter().map(of).collect()
    }

    /// What it has done.
    pub(crate) fn counts(&self) -> ScheduleCounts {
        self.counts
    }
}

impl ScheduledWorker {
    fn new(start: u64, now: Instant) -> Self {
        Self {
            start,
            heard: now,
            is_leaving: false,
            has_turn: false,
            running: BTreeMap::new(),
            strikes: 0,
            slow: None,
        }
    }

    fn is_slow(&self, now: Instant) -> bool {
        self.slow.is_some_and(|(_, until)| now < until)
    }

    fn flows(&self, operation: &OperationId) -> bool {
        self.running.get(operation).is_some_and(|run| run.flows)
    }
}

impl Scheduler {
    fn take_in(&mut self, now: Instant, input: ScheduleInput) {
        match input {
            ScheduleInput::Operations(operations) => {
                self.operations.retain(|operation, _| operations.contains(operation));
                for operation in operations {
                    self.operations.entry(operation).or_insert(ScheduledOperation {
                        owner: None,
                        since: now,
                        is_displaced: false,
                        stays_until: now,
                        tried: 0,
                    });
                }
            }
            ScheduleInput::Report(report) => self.report(now, report),
            ScheduleInput::Flows(worker, operation) => {
                if let Some(worker) = self.workers.get_mut(&worker) {
                    worker.running.entry(operation).or_default().flows = true;
                }
            }
            ScheduleInput::Gone(worker, start) => {
                if self.workers.get(&worker).is_some_and(|known| known.start == start) {
                    self.gone(now, &worker);
                }
            }
            ScheduleInput::Tick => {}
        }
    }

    fn report(&mut self, now: Instant, report: WorkerReport) {
        let WorkerReport { worker, start, is_leaving, running } = report;
        if self.workers.get(&worker).is_some_and(|known| known.start != start) {
            self.gone(now, &worker);
        }
        if !self.workers.contains_key(&worker) {
            self.workers.insert(worker.clone(), ScheduledWorker::new(start, now));
            self.changed_at = Some(now);
        }
        let Some(known) = self.workers.get_mut(&worker) else { return };
        (known.heard, known.is_leaving) = (now, is_leaving);
        known.has_turn &= is_leaving;
        known.running = running;
    }

    fn gone(&mut self, now: Instant, name: &str) {
        let Some(worker) = self.workers.remove(name) else { return };
        self.changed_at = Some(now);
        self.gone.push(name.to_owned());
        // One that was told that it may go has kept its word.
        self.counts.dead += u64::from(!worker.is_leaving);
        for operation in self.operations.values_mut() {
            if operation.owner.as_deref() == Some(name) {
                (operation.owner, operation.is_displaced) = (None, true);
            }
        }
    }

    /// What runs and is nobody's is that worker's: orphans go on.
    fn adopt(&mut self, now: Instant) {
        for (id, operation) in self.operations.iter_mut().filter(|(_, of)| of.owner.is_none()) {
            let runs = self.workers.iter().filter(|(name, worker)| {
                *name != HERE && !worker.is_leaving && worker.running.contains_key(id)
            });
            let best = runs.max_by_key(|(_, worker)| worker.flows(id));
            if let Some((name, _)) = best {
                self.counts.displaced += u64::from(operation.is_displaced);
                (operation.owner, operation.is_displaced) = (Some(name.clone()), false);
                operation.since = now;
            }
        }
    }

    /// Gives operations that have no owner one.
    fn place(&mut self, now: Instant) {
        let mut loads = self.loads();
        let is_learning = now < self.learned_at;
        let is_starting = |of: &&ScheduledOperation| {
            of.owner.as_ref().is_some_and(|owner| owner != HERE) && now.since(of.since) < self.rules.patience
        };
        let starting = self.operations.iter().filter(|(_, of)| is_starting(of));
        let mut starting = starting.filter(|(id, of)| !self.flows_at_owner(id, of)).count();
        let nobody_owns: Vec<(OperationId, bool)> = self
            .operations
            .iter()
            .filter(|(_, of)| of.owner.is_none() && (of.is_displaced || !is_learning))
            .map(|(id, of)| (*id, of.is_displaced))
            .collect();
        for (id, is_displaced) in nobody_owns {
            let to = self.least_loaded(now, &loads, None);
            if to != HERE && !is_displaced {
                if starting >= self.rules.starts_max {
                    continue;
                }
                starting += 1;
            }
            self.counts.displaced += u64::from(is_displaced);
            *loads.entry(to.clone()).or_default() += self.weight(&id);
            if let Some(operation) = self.operations.get_mut(&id) {
                (operation.owner, operation.is_displaced, operation.since) = (Some(to), false, now);
            }
        }
    }

    /// Of the workers that want to end some at a time: those that have had their turn, and then by name.
    fn give_turns(&mut self) {
        let others = self.workers.len() - 1;
        let turns = others.div_ceil(AT_ONCE_PART);
        let mut given = self.workers.values().filter(|worker| worker.has_turn).count();
        for worker in self.workers.values_mut().filter(|worker| worker.is_leaving && !worker.has_turn) {
            if given >= turns {
                break;
            }
            (worker.has_turn, given) = (true, given + 1);
        }
    }

    /// Moves operations from those that leave, that are slow, that they do not flow at, and that have more than others.
    fn move_some(&mut self, now: Instant) {
        let mut loads = self.loads();
        let mut moving = self.operations.iter().filter(|(id, of)| self.is_moving(now, id, of)).count();
        for id in self.operations.keys().copied().collect::<Vec<_>>() {
            let Some((from, is_in_vain)) = self.reason_to_move(now, &id) else { continue };
            // What stands still is broken already: but what flows moves a few at a time.
            let flows = self.is_flowing_anywhere(&id);
            if flows && moving >= self.rules.moves_max {
                continue;
            }
            let tried = self.operations.get(&id).map_or(0, |of| of.tried);
            let to = match self.flowing_elsewhere(now, &id, &from) {
                Some(to) => to,
                None if is_in_vain && tried >= TRIES_MAX => HERE.to_owned(),
                None => self.least_loaded(now, &loads, Some(&from)),
            };
            let is_last_resort = is_in_vain || self.workers.get(&from).is_none_or(|of| of.is_leaving);
            let is_better = to != from && (to != HERE || is_last_resort);
            if is_better {
                moving += usize::from(flows);
                self.move_to(now, &mut loads, id, &from, &to, is_in_vain);
            }
        }
        if self.changed_at.is_none_or(|at| now.since(at) >= self.rules.quiet) {
            while moving < self.rules.moves_max && self.shed_one(now, &mut loads) {
                moving += 1;
            }
        }
    }

    /// Why an operation is to have another owner: the one that it has, and whether it was there in vain.
    fn reason_to_move(&self, now: Instant, id: &OperationId) -> Option<(String, bool)> {
        let operation = self.operations.get(id)?;
        let owner = operation.owner.clone()?;
        let worker = self.workers.get(&owner)?;
        if worker.is_leaving {
            return worker.has_turn.then_some((owner, false));
        }
        let is_settled = now >= operation.stays_until;
        // The node itself runs it only while nobody else can.
        if owner == HERE || worker.is_slow(now) {
            return is_settled.then_some((owner, false));
        }
        let is_stuck = !worker.flows(id) && now.since(operation.since) >= self.rules.patience;
        (is_settled && is_stuck).then_some((owner, true))
    }

    fn move_to(
        &mut self,
        now: Instant,
        loads: &mut BTreeMap<String, u64>,
        id: OperationId,
        from: &str,
        to: &str,
        is_in_vain: bool,
    ) {
        let weight = self.weight(&id);
        let Some(operation) = self.operations.get_mut(&id) else { return };
        operation.tried = match (is_in_vain, from) {
            (true, _) => (operation.tried + 1).min(DOUBLED_MAX),
            (false, HERE) => operation.tried,
            (false, _) => 0,
        };
        operation.owner = Some(to.to_owned());
        operation.since = now;
        let stays = if is_in_vain && to != HERE { self.rules.patience } else { self.rules.stay };
        operation.stays_until = now + stays * (1 << operation.tried);
        self.counts.moved += 1;
        if let Some(load) = loads.get_mut(from) {
            *load = load.saturating_sub(weight);
        }
        *loads.entry(to.to_owned()).or_default() += weight;
    }

    /// Moves one operation from the worker with most load to the one with least, if that makes the two more alike.
    fn shed_one(&mut self, now: Instant, loads: &mut BTreeMap<String, u64>) -> bool {
        let able = self.able(now);
        let load = |name: &String| (loads.get(name).copied().unwrap_or_default(), name.clone());
        let Some((most, from)) = able.iter().map(load).max() else { return false };
        let Some((least, to)) = able.iter().map(load).min() else { return false };
        let gap = most - least;
        if gap * 8 <= most {
            return false;
        }
        let may = |(id, operation): (&OperationId, &ScheduledOperation)| {
            let is_there = operation.owner.as_ref() == Some(&from) && now >= operation.stays_until;
            let weight = self.weight(id);
            // One that weighs as much as the two differ by would only change them over.
            let is_of_use = weight * 16 <= gap * 15;
            let may = is_there && is_of_use && self.flows_at_owner(id, operation);
            // The one after which they differ by least.
            may.then_some((gap.abs_diff(weight * 2), *id))
        };
        let Some((_, id)) = self.operations.iter().filter_map(may).min() else { return false };
        self.counts.shed += 1;
        self.move_to(now, loads, id, &from, &to, false);
        true
    }

    /// Finds workers whose operations are late beside those of the others.
    fn look_for_slow(&mut self, now: Instant) {
        let delay = |name: &String, worker: &ScheduledWorker| {
            let runs = worker.running.iter().filter(|(id, _)| self.owner(id) == Some(name));
            median(runs.filter_map(|(_, run)| run.delay).collect())
        };
        let others = self.workers.iter().filter(|(name, _)| *name != HERE);
        let delays: BTreeMap<String, Duration> =
            others.filter_map(|(name, worker)| Some((name.clone(), delay(name, worker)?))).collect();
        let slow_max = (self.workers.len() - 1) / AT_ONCE_PART;
        let mut slow = self.workers.values().filter(|worker| worker.is_slow(now)).count();
        for (name, worker) in self.workers.iter_mut().filter(|(name, _)| *name != HERE) {
            let Some(delay) = delays.get(name) else { continue };
            let rest = delays.iter().filter(|(other, _)| *other != name).map(|(_, delay)| *delay);
            let Some(usual) = median(rest.collect()) else { continue };
            let is_late = *delay > usual * LATE_TIMES && *delay > usual + self.rules.late;
            worker.strikes = if is_late { worker.strikes + 1 } else { worker.strikes.saturating_sub(1) };
            if worker.strikes >= self.rules.strikes && !worker.is_slow(now) && slow < slow_max.max(1) {
                let times = worker.slow.map_or(0, |(times, _)| (times + 1).min(DOUBLED_MAX));
                worker.slow = Some((times, now + self.rules.rest * (1 << times)));
                worker.strikes = 0;
                slow += 1;
                self.counts.slow += 1;
                tracing::warn!(worker = name, ?delay, ?usual, "a worker is slow: its operations move");
            }
        }
    }

    /// Takes note of what each worker is to run, and answers those of which it has changed.
    fn tell(&mut self) -> BTreeSet<String> {
        let mut wanted: BTreeMap<String, BTreeSet<OperationId>> =
            self.workers.keys().map(|name| (name.clone(), BTreeSet::new())).collect();
        for (id, operation) in &self.operations {
            let flows = self.flows_at_owner(id, operation);
            for (name, wanted) in &mut wanted {
                let is_owner = operation.owner.as_ref() == Some(name);
                // Until it flows elsewhere, it goes on where it flows.
                let is_last = !flows && self.workers.get(name).is_some_and(|worker| worker.flows(id));
                if is_owner || is_last {
                    wanted.insert(*id);
                }
            }
        }
        let changed = wanted.iter().filter(|(name, ids)| self.wanted.get(*name) != Some(ids));
        let changed = changed.map(|(name, _)| name.clone()).collect();
        self.wanted = wanted;
        changed
    }
}

impl Scheduler {
    /// Those that may get operations: of the best kind that there is.
    fn able(&self, now: Instant) -> Vec<String> {
        let of = |may: &dyn Fn(&ScheduledWorker) -> bool| -> Vec<String> {
            let able = self.workers.iter().filter(|(name, worker)| *name != HERE && may(worker));
            able.map(|(name, _)| name.clone()).collect()
        };
        let well = of(&|worker| !worker.is_leaving && !worker.is_slow(now));
        if well.is_empty() { of(&|worker| !worker.is_leaving) } else { well }
    }

    fn least_loaded(&self, now: Instant, loads: &BTreeMap<String, u64>, but: Option<&str>) -> String {
        let able = self.able(now).into_iter().filter(|name| Some(&**name) != but);
        let least = able.min_by_key(|name| (loads.get(name).copied().unwrap_or_default(), name.clone()));
        least.unwrap_or_else(|| HERE.to_owned())
    }

    /// A worker other than `from` at which an operation flows already.
    fn flowing_elsewhere(&self, now: Instant, id: &OperationId, from: &str) -> Option<String> {
        let able = self.able(now).into_iter().filter(|name| name != from);
        able.into_iter().find(|name| self.workers.get(name).is_some_and(|worker| worker.flows(id)))
    }

    fn flows_at_owner(&self, id: &OperationId, operation: &ScheduledOperation) -> bool {
        let owner = operation.owner.as_ref().and_then(|owner| self.workers.get(owner));
        owner.is_some_and(|worker| worker.flows(id))
    }

    fn is_flowing_anywhere(&self, id: &OperationId) -> bool {
        self.workers.values().any(|worker| worker.flows(id))
    }

    /// Whether it has got an owner lately at which it has yet to begin, and flows elsewhere until then.
    fn is_moving(&self, now: Instant, id: &OperationId, operation: &ScheduledOperation) -> bool {
        let is_late = now.since(operation.since) >= self.rules.patience;
        !is_late && !self.flows_at_owner(id, operation) && self.is_flowing_anywhere(id)
    }

    /// What an operation weighs: one, and more with what it copies.
    fn weight(&self, id: &OperationId) -> u64 {
        let runs = self.workers.values().filter_map(|worker| worker.running.get(id));
        1 + runs.map(|run| run.bytes_per_s).max().unwrap_or_default() / WEIGHT_BYTES_PER_S
    }

    fn loads(&self) -> BTreeMap<String, u64> {
        let mut loads: BTreeMap<String, u64> = BTreeMap::new();
        for (id, operation) in &self.operations {
            if let Some(owner) = &operation.owner {
                *loads.entry(owner.clone()).or_default() += self.weight(id);
            }
        }
        loads
    }
}

fn median(mut of: Vec<Duration>) -> Option<Duration> {
    of.sort_unstable();
    of.get(of.len() / 2).copied()
}

#[cfg(test)]
mod tests;
