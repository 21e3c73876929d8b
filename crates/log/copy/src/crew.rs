//! The workers of a cluster as its node sees them: the shell around `schedule.rs`, and what workers ask and push.
//!
//! The node is the cluster's scheduler. It is told of operations by the plans that it keeps, which the source tells it
//! of, and it is a worker itself. What it knows of the others is in memory only: when it starts it listens to them
//! first, and they go on meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tailwater_env::Instant;
use tailwater_format::StreamId;
use tailwater_format::call::{
    CallErrorCode, CallRefusal, CopyHop, CopyPush, CopyPushed, CopyReport, CopyTask, CopyTasks,
    stream_from_wire, stream_to_wire,
};
use tailwater_format::limits::COPY_TASKS_MAX;
use tailwater_meta::{Expect, Op};
use tokio::sync::Notify;

use crate::copies::{Copies, CopiesInner, HopOperation};
use crate::error::CopyError;
use crate::hop::Hop;
use crate::intake::{CopyIntake, malformed, over};
use crate::limits::{
    INTAKE_IDLE, INTAKES_MAX, LEARN, MEASURE_EVERY, PARTS_MAX, SCHEDULE_EVERY, WINDOW, WORK_AFTER,
    WORKER_NAME_BYTES_MAX, WORKERS_MAX,
};
use crate::plan::CopyTree;
use crate::schedule::{
    HERE, OperationId, OperationRun, ScheduleCounts, ScheduleInput, ScheduleRules, Scheduler, WorkerReport,
};

/// In metadata once the cluster has had a worker: a scheduler that begins listens to them.
pub(crate) const KNOWN_KEY: &str = "copy/workers";

/// How operations are divided among workers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CrewView {
    /// The workers, the node itself first, which has no name.
    pub workers: Vec<WorkerView>,
    /// The operations, by stream and part.
    pub operations: Vec<OperationView>,
    /// What the scheduler has done since the node's start.
    #[serde(flatten)]
    pub counts: ScheduleCounts,
}

/// A worker of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerView {
    /// Its name; empty for the node itself.
    pub name: String,
    /// `serving`, `slow`, `leaving`.
    pub state: String,
    /// Operations that it is to run.
    pub operations: u64,
    /// What they weigh: one each, and one more for each 64 KiB/s that they copy.
    pub load: u64,
    /// What it copies, in bytes a second.
    pub bytes_per_s: u64,
}

/// An operation: the copy of a part of a stream's shards to this cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperationView {
    /// The stream's name.
    pub stream: String,
    /// The part.
    pub part: u32,
    /// Its shards.
    pub shards: Vec<u32>,
    /// The cluster from which it copies.
    pub from: String,
    /// The worker that is to run it, where the scheduler has decided that; empty for the node itself.
    pub worker: Option<String>,
    /// `flows`, `waits`, or `moves`: it is to run elsewhere, and flows where it was until then.
    pub state: String,
    /// How late it is, in ms; none where nothing comes.
    pub delay_ms: Option<u64>,
    /// What it copies, in bytes a second.
    pub bytes_per_s: u64,
    /// Others that run it, too.
    pub also: Vec<String>,
}

/// What a node keeps of its workers.
pub(crate) struct CopyCrew {
    state: Mutex<CrewState>,
    /// What some worker is to run has changed.
    changed: Notify,
    /// A worker was heard.
    heard: Notify,
    /// That there are workers is in metadata.
    is_known: AtomicBool,
}

struct CrewState {
    scheduler: Scheduler,
    /// Another one with each change of what a worker is to run.
    numbers: BTreeMap<String, u64>,
    intakes: BTreeMap<OperationId, BTreeMap<String, Arc<CopyIntake>>>,
    /// Streams of which nothing is copied until an operation is asked for again.
    halted: BTreeSet<StreamId>,
    /// Records, bytes and sessions of intakes that are over.
    past: BTreeMap<StreamId, [u64; 3]>,
}

impl CrewState {
    fn retire(&mut self, operation: &OperationId, worker: &str) {
        let Some(of) = self.intakes.get_mut(operation) else { return };
        let Some(intake) = of.remove(worker) else { return };
        intake.close();
        let view = intake.hop.view();
        let past = self.past.entry(operation.stream).or_default();
        for (past, more) in past.iter_mut().zip([view.records, view.bytes, view.sessions]) {
            *past += more;
        }
        if of.is_empty() {
            self.intakes.remove(operation);
        }
    }

    /// Ends what a worker pushes, but for these operations.
    fn retire_all_of(&mut self, worker: &str, but: &[OperationId]) {
        let of = self.intakes.iter().filter(|(id, of)| of.contains_key(worker) && !but.contains(id));
        let over: Vec<OperationId> = of.map(|(id, _)| *id).collect();
        over.iter().for_each(|id| self.retire(id, worker));
    }

    /// What is known of an operation that a worker says to run.
    fn run_of(&self, operation: &OperationId, worker: &str) -> OperationRun {
        let intake = self.intakes.get(operation).and_then(|of| of.get(worker));
        intake.map_or_else(OperationRun::default, |intake| intake.run(MEASURE_EVERY))
    }
}

impl CopyCrew {
    /// That of a node that begins at `now`, whose cluster had workers before or had none.
    pub(crate) fn new(now: Instant, had_workers: bool) -> Self {
        let mut rules = ScheduleRules::default();
        if had_workers {
            rules.learn = LEARN;
        }
        Self {
            state: Mutex::new(CrewState {
                scheduler: Scheduler::new(rules, now),
                numbers: BTreeMap::new(),
                intakes: BTreeMap::new(),
                halted: BTreeSet::new(),
                past: BTreeMap::new(),
            }),
            changed: Notify::new(),
            heard: Notify::new(),
            is_known: AtomicBool::new(had_workers),
        }
    }
}

/// What a worker's message says of a stream.
fn operation_of(stream: &[u8], part: u32) -> Result<OperationId, CallRefusal> {
    let stream = stream_from_wire(stream).map_err(|error| malformed(error.to_string()))?;
    Ok(OperationId { stream, part })
}

/// The parts into which the shards of a stream are divided.
fn parts_of(plan: &CopyTree) -> u32 {
    plan.stream.shards().min(PARTS_MAX)
}

fn shards_of(plan: &CopyTree, part: u32) -> impl Iterator<Item = u32> + use<> {
    (part..plan.stream.shards()).step_by(parts_of(plan).max(1) as usize)
}

/// What workers ask. Whoever calls these has seen to it that they may.
impl Copies {
    /// Takes note of what a worker runs, and answers what it is to run: at once if that is something else than by the
    /// answer that it goes by, after [`WORK_AFTER`] otherwise. Cancelling it loses nothing.
    ///
    /// # Errors
    /// A message that makes no sense; a cluster without a name; a name that another worker has; too many workers.
    pub async fn work(&self, asked: CopyReport) -> Result<CopyTasks, CallRefusal> {
        let inner = &self.inner;
        if inner.name.is_none() {
            return Err(malformed(CopyError::NoName.to_string()));
        }
        if !(1..=WORKER_NAME_BYTES_MAX).contains(&asked.worker.len()) || asked.running.len() > COPY_TASKS_MAX
        {
            return Err(malformed(format!(
                "a worker has a name of 1 to {WORKER_NAME_BYTES_MAX} bytes, and {COPY_TASKS_MAX} operations at most"
            )));
        }
        let running = asked.running.iter().map(|run| operation_of(&run.stream, run.part));
        let running: Vec<OperationId> = running.collect::<Result<_, _>>()?;
        inner.report(&asked, &running)?;
        inner.remember_workers().await;
        inner.crew.heard.notify_one();
        let until = inner.env.now() + WORK_AFTER;
        loop {
            // Before the look, so that no change is missed.
            let changed = inner.crew.changed.notified();
            let tasks = inner.tasks(&asked.worker);
            let now = inner.env.now();
            if tasks.may_go {
                // The next one need not wait until this one is silent.
                inner.step(ScheduleInput::Gone(asked.worker.clone(), asked.start));
            }
            if tasks.number != asked.number || tasks.may_go || now >= until {
                return Ok(tasks);
            }
            inner.env.timeout(until.since(now), changed).await;
        }
    }

    /// Takes in what a worker has copied.
    ///
    /// # Errors
    /// What ends the operation's session there.
    pub async fn push(&self, asked: CopyPush) -> Result<CopyPushed, CallRefusal> {
        let inner = &self.inner;
        let operation = operation_of(&asked.stream, asked.part)?;
        let intake = inner.intake(operation, &asked)?;
        let leads_back = inner.name.as_ref().is_some_and(|here| asked.way.contains(here));
        if leads_back {
            // Nobody copies from here what may have come from there.
            inner.sessions.set_way(operation.stream, None);
        }
        if !asked.ended.is_empty() {
            intake.hop.end(&asked.ended);
            intake.set_flows(false);
            return Ok(CopyPushed::default());
        }
        if leads_back {
            return Err(malformed("the copy there is made from the one here".to_owned()));
        }
        let pace = inner.pace_from(&intake.hop.from);
        if let Some(pace) = pace {
            let bytes = asked.shards.iter().map(|news| news.entries.len()).sum();
            pace.spend(&inner.env, bytes).await;
        }
        if !asked.way.is_empty() {
            inner.sessions.set_way(operation.stream, Some(asked.way.clone()));
        }
        let pushed = intake.take(&asked).await?;
        if !asked.is_first && intake.set_flows(true) {
            inner.step(ScheduleInput::Flows(asked.worker, operation));
        }
        Ok(pushed)
    }

    /// How operations are divided among workers.
    pub fn crew(&self) -> CrewView {
        let inner = &*self.inner;
        let plans = inner.plans.lock().clone();
        let here = inner.name.as_deref().unwrap_or_default();
        let crew = inner.crew.state.lock();
        let scheduler = &crew.scheduler;
        let workers = scheduler.workers(inner.env.now());
        let mut view = CrewView { counts: scheduler.counts(), ..CrewView::default() };
        for (name, load, state) in &workers {
            view.workers.push(WorkerView {
                name: name.clone(),
                state: (*state).to_owned(),
                load: *load,
                ..WorkerView::default()
            });
        }
        for id in scheduler.operations() {
            let Some(plan) = plans.get(&id.stream) else { continue };
            let owner = scheduler.owner(&id);
            let flows = |name: &String| scheduler.run_of(name, &id).is_some_and(|run| run.flows);
            let also = workers.iter().map(|(name, ..)| name.clone());
            let also: Vec<String> = also.filter(|name| owner != Some(name) && flows(name)).collect();
            let run = owner.and_then(|owner| scheduler.run_of(owner, &id)).unwrap_or_default();
            let state = match (run.flows, also.is_empty()) {
                (true, _) => "flows",
                (false, true) => "waits",
                (false, false) => "moves",
            };
            if let Some(worker) = view.workers.iter_mut().find(|worker| Some(&*worker.name) == owner) {
                worker.operations += 1;
                worker.bytes_per_s += run.bytes_per_s;
            }
            view.operations.push(OperationView {
                stream: plan.stream.name().to_owned(),
                part: id.part,
                shards: shards_of(plan, id.part).collect(),
                from: plan.above(here).unwrap_or_default().to_owned(),
                worker: owner.map(str::to_owned),
                state: state.to_owned(),
                delay_ms: run.delay.map(|delay| delay.as_millis() as u64),
                bytes_per_s: run.bytes_per_s,
                also,
            });
        }
        view
    }
}

impl CopiesInner {
    /// Tells the scheduler what has happened, and does what it says.
    pub(crate) fn step(&self, input: ScheduleInput) {
        let changed = {
            let mut crew = self.crew.state.lock();
            let changed = crew.scheduler.step(self.env.now(), input);
            // A dead worker copies nothing. One that lives, and was not heard, begins anew.
            for gone in crew.scheduler.take_gone() {
                crew.retire_all_of(&gone, &[]);
            }
            for worker in &changed {
                crew.numbers.insert(worker.clone(), self.env.random_u64());
            }
            changed
        };
        if changed.contains(HERE) {
            self.run_here();
        }
        if !changed.is_empty() {
            self.crew.changed.notify_waiters();
        }
    }

    /// Takes note of what a worker tells.
    fn report(&self, asked: &CopyReport, running: &[OperationId]) -> Result<(), CallRefusal> {
        let busy = |why: String| CallRefusal::new(CallErrorCode::Overloaded, why);
        let running = {
            let mut crew = self.crew.state.lock();
            let workers = crew.scheduler.workers(self.env.now());
            let is_there = workers.iter().any(|(name, ..)| *name == asked.worker);
            if crew.scheduler.is_other_start(&asked.worker, asked.start) {
                return Err(busy(format!(
                    "another worker is called {:?}: give this one another name",
                    asked.worker
                )));
            }
            if !is_there && workers.len() > WORKERS_MAX {
                return Err(busy(format!(
                    "the cluster has {WORKERS_MAX} workers already, which is the most"
                )));
            }
            // What it does not run any more is over: it tells all that it runs.
            crew.retire_all_of(&asked.worker, running);
            running.iter().map(|id| (*id, crew.run_of(id, &asked.worker))).collect()
        };
        let (worker, start, is_leaving) = (asked.worker.clone(), asked.start, asked.is_leaving);
        self.step(ScheduleInput::Report(WorkerReport { worker, start, is_leaving, running }));
        Ok(())
    }

    /// Sees to it that a scheduler that begins knows that there are workers.
    async fn remember_workers(&self) {
        if self.crew.is_known.swap(true, Ordering::AcqRel) {
            return;
        }
        let put = Op::Put { key: KNOWN_KEY.to_owned(), value: b"1".to_vec().into(), expect: Expect::Any };
        if let Err(error) = self.log.meta().commit(vec![put]).await {
            tracing::warn!(%error, "a node that takes over will not listen to the workers first");
            self.crew.is_known.store(false, Ordering::Release);
        }
    }

    /// What a worker is to run.
    fn tasks(&self, worker: &str) -> CopyTasks {
        let (wanted, number, may_go) = {
            let crew = self.crew.state.lock();
            let number = crew.numbers.get(worker).copied().unwrap_or_default();
            (crew.scheduler.wanted(worker), number, crew.scheduler.may_go(worker))
        };
        let plans = self.plans.lock();
        let task = |id: &OperationId| {
            let plan = plans.get(&id.stream)?;
            let here = self.name.clone()?;
            let above = plan.above(&here)?.to_owned();
            let window = self.pace_from(&above).map_or(WINDOW, |pace| pace.window());
            Some(CopyTask {
                stream: stream_to_wire(id.stream),
                part: id.part,
                shards: shards_of(plan, id.part).collect(),
                address: plan.address(&above).unwrap_or_default().to_owned(),
                cluster: here,
                above,
                plan: plan.number,
                lineage: plan.lineage(),
                window: window as u32,
            })
        };
        let tasks = wanted.iter().filter_map(task).take(COPY_TASKS_MAX).collect();
        CopyTasks { number, tasks, may_go }
    }

    /// That of an operation which a worker pushes.
    fn intake(&self, operation: OperationId, asked: &CopyPush) -> Result<Arc<CopyIntake>, CallRefusal> {
        let plan = self.plans.lock().get(&operation.stream).cloned();
        let here = self.name.as_deref().unwrap_or_default();
        let above = plan.as_ref().and_then(|plan| Some((plan, plan.above(here)?)));
        let (plan, above) = above.ok_or_else(over)?;
        let mut crew = self.crew.state.lock();
        if crew.halted.contains(&operation.stream)
            || plan.lineage() != asked.lineage
            || (plan.number, above) != (asked.plan, &*asked.above)
            || operation.part >= parts_of(plan)
        {
            return Err(over());
        }
        let known = crew.intakes.get(&operation).and_then(|of| of.get(&asked.worker));
        let known = known.filter(|known| known.session == asked.session && known.lineage == asked.lineage);
        if let Some(known) = known {
            return Ok(Arc::clone(known));
        }
        if !asked.is_first {
            return Err(over());
        }
        crew.retire(&operation, &asked.worker);
        let of = crew.intakes.get(&operation).into_iter().flatten();
        let oldest = of.min_by_key(|(_, intake)| intake.heard()).map(|(worker, _)| worker.clone());
        let is_full = crew.intakes.get(&operation).is_some_and(|of| of.len() >= INTAKES_MAX);
        if let Some(oldest) = oldest.filter(|_| is_full) {
            crew.retire(&operation, &oldest);
        }
        let shards = shards_of(plan, operation.part).collect();
        let hop = Hop::new(above, here, plan.number);
        let (stream, session) = (operation.stream, (asked.session, asked.lineage));
        let intake = CopyIntake::new(&self.env, &self.log, stream, shards, session, hop);
        let of = crew.intakes.entry(operation).or_default();
        of.insert(asked.worker.clone(), Arc::clone(&intake));
        Ok(intake)
    }

    /// Ends all copying of a stream here, until [`CopiesInner::operate`] asks for it again.
    pub(crate) fn halt(&self, stream: StreamId) {
        let mut operations = self.operations.lock();
        operations.remove(&stream);
        let mut crew = self.crew.state.lock();
        crew.halted.insert(stream);
        crew.end_intakes(|id, _| id.stream == stream);
    }

    /// Ends all copying, so that the log can be closed.
    pub(crate) fn halt_all(&self) {
        let mut operations = self.operations.lock();
        let mut crew = self.crew.state.lock();
        let all: Vec<StreamId> = self.plans.lock().keys().copied().collect();
        crew.halted.extend(all);
        crew.end_intakes(|_, _| true);
        operations.clear();
    }

    /// All operations that the plans ask for.
    pub(crate) fn operations_planned(&self) -> BTreeSet<OperationId> {
        let Some(here) = self.name.as_deref() else { return BTreeSet::new() };
        let plans = self.plans.lock();
        let to_here = plans.iter().filter(|(_, plan)| plan.above(here).is_some());
        to_here
            .flat_map(|(stream, plan)| {
                let stream = *stream;
                (0..parts_of(plan)).map(move |part| OperationId { stream, part })
            })
            .collect()
    }

    /// The plan of a stream may ask for other operations than before.
    pub(crate) fn replan(&self, stream: StreamId) {
        let plan = self.plans.lock().get(&stream).cloned();
        let here = self.name.as_deref().unwrap_or_default();
        let by_plan = |hop: &Hop| {
            plan.as_ref().is_some_and(|plan| plan.number == hop.plan && plan.above(here) == Some(&*hop.from))
        };
        {
            let mut crew = self.crew.state.lock();
            crew.halted.remove(&stream);
            // What goes by an older plan ends, as the node's own operation does: it may come from another cluster.
            crew.end_intakes(|id, intake| id.stream == stream && !by_plan(&intake.hop));
            for number in crew.numbers.values_mut() {
                *number = self.env.random_u64();
            }
        }
        self.step(ScheduleInput::Operations(self.operations_planned()));
        self.run_here();
        self.crew.changed.notify_waiters();
    }

    /// The streams of which the node itself is to copy something.
    pub(crate) fn wanted_here(&self) -> BTreeSet<StreamId> {
        let crew = self.crew.state.lock();
        let wanted = crew.scheduler.wanted(HERE);
        wanted.iter().map(|id| id.stream).filter(|stream| !crew.halted.contains(stream)).collect()
    }

    /// How far the copy of a stream is, whoever makes it; `None` where there is to be none.
    pub(crate) fn hop_view(&self, stream: StreamId, own: Option<&HopOperation>) -> Option<CopyHop> {
        let plan = self.plans.lock().get(&stream).cloned()?;
        let here = self.name.as_deref()?;
        let above = plan.above(here)?;
        let crew = self.crew.state.lock();
        if crew.halted.contains(&stream) {
            return None;
        }
        let [records, bytes, sessions] = crew.past.get(&stream).copied().unwrap_or_default();
        let mut view = own.map_or_else(|| Hop::new(above, here, plan.number).view(), |own| own.hop.view());
        (view.records, view.bytes, view.sessions) =
            (view.records + records, view.bytes + bytes, view.sessions + sessions);
        let mut is_copying = true;
        for part in 0..parts_of(&plan) {
            let id = OperationId { stream, part };
            let of = crew.intakes.get(&id).into_iter().flatten();
            let owner = crew.scheduler.owner(&id);
            // Of several the one that is to go on.
            let best = of.clone().max_by_key(|(worker, intake)| (intake.flows(), Some(&***worker) == owner));
            for (_, intake) in of {
                let of = intake.hop.view();
                view.records += of.records;
                view.bytes += of.bytes;
                view.sessions += of.sessions;
            }
            let best = best.map(|(_, intake)| CopyHop { is_copying: intake.flows(), ..intake.hop.view() });
            let part_copies = best.as_ref().is_some_and(|of| of.is_copying);
            is_copying &= part_copies;
            if let Some(best) = best.filter(|_| own.is_none()) {
                view.behind_records += best.behind_records;
                view.behind_bytes += best.behind_bytes;
                view.delay_ms = view.delay_ms.max(best.delay_ms);
                view.waiting_shards += best.waiting_shards;
                if view.why.is_empty() {
                    view.why = best.why;
                }
            } else if own.is_none() && view.why.is_empty() {
                view.why = "no worker has begun yet".to_owned();
            }
        }
        view.is_copying |= is_copying;
        Some(view)
    }

    /// Looks what has become of workers and operations.
    fn look_at_crew(&self) {
        let running = {
            let own: BTreeMap<StreamId, CopyHop> = {
                let operations = self.operations.lock();
                operations.iter().map(|(stream, of)| (*stream, of.hop.view())).collect()
            };
            let mut crew = self.crew.state.lock();
            let now = self.env.now();
            crew.end_intakes(|_, intake| now.since(intake.heard()) > INTAKE_IDLE);
            let run = |id: OperationId| {
                let view = own.get(&id.stream)?;
                Some((id, OperationRun { flows: view.is_copying, ..OperationRun::default() }))
            };
            crew.scheduler.wanted(HERE).into_iter().filter_map(run).collect()
        };
        self.step(ScheduleInput::Report(WorkerReport { running, ..WorkerReport::default() }));
        self.step(ScheduleInput::Tick);
        self.run_here();
    }
}

impl CrewState {
    fn end_intakes(&mut self, is_over: impl Fn(&OperationId, &CopyIntake) -> bool) {
        let all = self.intakes.iter().flat_map(|(id, of)| of.iter().map(move |of| (id, of)));
        let over = all.filter(|(id, (_, intake))| is_over(id, intake));
        let over: Vec<(OperationId, String)> = over.map(|(id, (worker, _))| (*id, worker.clone())).collect();
        over.iter().for_each(|(id, worker)| self.retire(id, worker));
    }
}

/// Looks after the workers, for as long as there are any.
pub(crate) async fn schedule(inner: Arc<CopiesInner>) {
    loop {
        let is_alone = inner.crew.state.lock().scheduler.is_alone(inner.env.now());
        if is_alone {
            inner.crew.heard.notified().await;
        }
        inner.look_at_crew();
        inner.env.sleep(SCHEDULE_EVERY).await;
    }
}
