use proptest::prelude::*;
use uuid::Uuid;

use super::*;

const MS: Duration = Duration::from_millis(1);

fn id(number: u32) -> OperationId {
    OperationId { stream: StreamId(Uuid::from_u128(u128::from(number / 8))), part: number % 8 }
}

fn ids(count: u32) -> BTreeSet<OperationId> {
    (0..count).map(id).collect()
}

/// A scheduler, and workers that do what it says.
struct Crew {
    now: Instant,
    scheduler: Scheduler,
    /// Those that live, by name: their start, whether they want to end, what they run, and how late all of it is.
    workers: BTreeMap<String, CrewWorker>,
    rules: ScheduleRules,
}

#[derive(Clone, Default)]
struct CrewWorker {
    start: u64,
    is_leaving: bool,
    running: BTreeMap<OperationId, OperationRun>,
    delay: Option<Duration>,
    /// It begins operations, and they do not flow.
    is_cut_off: bool,
}

impl Crew {
    fn new(operations: u32, workers: &[&str], rules: ScheduleRules) -> Self {
        let now = Instant::from_ns(1_000_000_000);
        let scheduler = Scheduler::new(rules.clone(), now);
        let mut crew = Self { now, scheduler, workers: BTreeMap::new(), rules };
        workers.iter().for_each(|name| crew.join(name));
        crew.step(ScheduleInput::Operations(ids(operations)));
        crew
    }

    fn join(&mut self, name: &str) {
        let start = self.now.since(Instant::from_ns(0)).as_nanos() as u64;
        self.workers.insert(name.to_owned(), CrewWorker { start, ..CrewWorker::default() });
        self.report(name);
    }

    /// One step, after which what always holds is looked at.
    fn step(&mut self, input: ScheduleInput) {
        let before: BTreeMap<String, BTreeSet<OperationId>> =
            self.scheduler.workers.keys().map(|name| (name.clone(), self.scheduler.wanted(name))).collect();
        let owners: BTreeMap<OperationId, Option<String>> =
            self.scheduler.operations.iter().map(|(id, of)| (*id, of.owner.clone())).collect();
        let changed = self.scheduler.step(self.now, input);
        let after = &self.scheduler;
        for (name, worker) in &after.workers {
            let (had, has) = (before.get(name).cloned().unwrap_or_default(), after.wanted(name));
            assert!(had == has || changed.contains(name), "{name} is told what has changed");
            for id in had.difference(&has).filter(|id| worker.flows(id)) {
                let Some(operation) = after.operations.get(id) else { continue };
                assert!(after.flows_at_owner(id, operation), "{name} ends {id:?}, which flows nowhere else");
            }
        }
        let is_dead =
            |name: &Option<String>| name.as_ref().is_some_and(|name| !after.workers.contains_key(name));
        let moved = after.operations.iter().filter(|(id, of)| {
            let Some(Some(before)) = owners.get(id) else { return false };
            of.owner.as_ref() != Some(before)
                && !is_dead(&Some(before.clone()))
                && after.is_flowing_anywhere(id)
        });
        assert!(moved.count() <= self.rules.moves_max, "so many move at a time");
        assert!(after.operations.values().all(|of| !is_dead(&of.owner)), "nobody dead owns anything");
        if self.now >= after.learned_at {
            let unowned = after.operations.values().filter(|of| of.owner.is_none());
            let starting = after.operations.iter().filter(|(id, of)| {
                of.owner.as_ref().is_some_and(|owner| owner != HERE) && !after.flows_at_owner(id, of)
            });
            assert!(
                unowned.clone().all(|of| !of.is_displaced),
                "what a dead worker had has an owner at once"
            );
            assert!(unowned.count() == 0 || starting.count() >= self.rules.starts_max, "only too many wait");
        }
    }

    /// A worker tells what it runs, and is told what to run.
    fn report(&mut self, name: &str) {
        let Some(worker) = self.workers.get(name).cloned() else { return };
        let report = WorkerReport {
            worker: name.to_owned(),
            start: worker.start,
            is_leaving: worker.is_leaving,
            running: worker.running.clone(),
        };
        self.step(ScheduleInput::Report(report));
        let wanted = self.scheduler.wanted(name);
        let Some(worker) = self.workers.get_mut(name) else { return };
        worker.running.retain(|id, _| wanted.contains(id));
        for id in wanted {
            let run = worker.running.entry(id).or_default();
            (run.flows, run.delay) = (!worker.is_cut_off, worker.delay);
        }
    }

    /// Everybody tells and is told, twice a second, for so long.
    fn go_on(&mut self, time: Duration) {
        let until = self.now + time;
        while self.now < until {
            self.now = self.now + 100 * MS;
            self.run_here();
            if self.now.since(Instant::from_ns(0)).as_millis().is_multiple_of(500) {
                let names: Vec<String> = self.workers.keys().cloned().collect();
                names.iter().for_each(|name| self.report(name));
            }
            self.step(ScheduleInput::Tick);
        }
    }

    /// The node does what it is to do at once.
    fn run_here(&mut self) {
        let run = OperationRun { flows: true, ..OperationRun::default() };
        let running = self.scheduler.wanted(HERE).into_iter().map(|id| (id, run)).collect();
        self.step(ScheduleInput::Report(WorkerReport { running, ..WorkerReport::default() }));
    }

    fn owned(&self, name: &str) -> usize {
        self.scheduler.operations.values().filter(|of| of.owner.as_deref() == Some(name)).count()
    }

    fn assert_balanced(&self) {
        let loads = self.scheduler.loads();
        let able = self.scheduler.able(self.now);
        let loads: Vec<u64> = able.iter().map(|name| loads.get(name).copied().unwrap_or_default()).collect();
        let (Some(most), Some(least)) = (loads.iter().max(), loads.iter().min()) else { return };
        let gap = most - least;
        assert!(gap < 2 || gap * 8 <= *most, "all weigh 1 here, and the loads are {loads:?}");
    }
}

#[test]
fn a_node_without_workers_runs_everything_itself_at_once() {
    let crew = Crew::new(20, &[], ScheduleRules::default());
    assert_eq!(crew.scheduler.wanted(HERE), ids(20));
}

#[test]
fn a_worker_that_comes_gets_what_the_node_runs_a_few_at_a_time_and_the_node_goes_on_until_it_flows() {
    let mut crew = Crew::new(20, &[], ScheduleRules::default());
    crew.run_here();
    crew.join("a");
    assert_eq!(crew.scheduler.wanted("a").len(), crew.rules.moves_max);
    assert_eq!(crew.scheduler.wanted(HERE).len(), 20, "nothing flows elsewhere yet");
    let first = *crew.scheduler.wanted("a").first().expect("some");
    crew.step(ScheduleInput::Flows("a".to_owned(), first));
    assert!(!crew.scheduler.wanted(HERE).contains(&first));
    crew.go_on(Duration::from_secs(10));
    assert_eq!((crew.owned("a"), crew.scheduler.wanted(HERE).len()), (20, 0));
}

#[test]
fn new_operations_begin_a_bounded_number_at_a_time() {
    let rules = ScheduleRules { starts_max: 4, ..ScheduleRules::default() };
    let mut crew = Crew::new(0, &["a", "b"], rules);
    crew.step(ScheduleInput::Operations(ids(20)));
    assert_eq!(crew.owned("a") + crew.owned("b"), 4);
    crew.go_on(Duration::from_secs(10));
    assert_eq!((crew.owned("a"), crew.owned("b")), (10, 10));
}

#[test]
fn what_a_dead_worker_had_has_others_in_the_step_in_which_it_is_found_dead() {
    let mut crew = Crew::new(30, &["a", "b", "c"], ScheduleRules::default());
    crew.go_on(Duration::from_secs(10));
    let start = crew.workers.remove("a").expect("it is there").start;
    crew.step(ScheduleInput::Gone("a".to_owned(), start + 1));
    assert_eq!(crew.owned("a"), 10, "another start of it is meant");
    crew.step(ScheduleInput::Gone("a".to_owned(), start));
    assert_eq!((crew.owned("a"), crew.owned("b"), crew.owned("c")), (0, 15, 15));
    assert_eq!(crew.scheduler.counts().displaced, 10);
    // The others fall silent, and the node is left.
    crew.workers.clear();
    crew.now = crew.now + crew.rules.silence + MS;
    crew.step(ScheduleInput::Tick);
    assert_eq!(crew.scheduler.wanted(HERE), ids(30));
}

#[test]
fn a_worker_that_comes_later_gets_its_part_when_all_has_been_quiet_for_a_while() {
    let mut crew = Crew::new(40, &["a", "b"], ScheduleRules::default());
    crew.go_on(Duration::from_secs(30));
    crew.join("c");
    crew.go_on(crew.rules.quiet - Duration::from_secs(1));
    assert_eq!(crew.owned("c"), 0, "nothing is shed while workers come and go");
    crew.go_on(Duration::from_secs(30));
    crew.assert_balanced();
    assert!(crew.owned("c") >= 12, "it has {}", crew.owned("c"));
    assert!(crew.scheduler.counts().shed >= 12);
}

#[test]
fn operations_are_shed_by_what_they_copy() {
    let mut crew = Crew::new(4, &["a", "b"], ScheduleRules::default());
    crew.go_on(Duration::from_secs(25));
    let busy: Vec<OperationId> = crew.scheduler.wanted("a").into_iter().collect();
    for _ in 0..100 {
        for id in &busy {
            for worker in crew.workers.values_mut() {
                worker.running.entry(*id).and_modify(|run| run.bytes_per_s = 10 << 20);
            }
        }
        crew.go_on(500 * MS);
    }
    let of_a = busy.iter().filter(|id| crew.scheduler.owner(id) == Some("a")).count();
    assert_eq!(of_a, 1, "each has one of the two that copy much");
}

#[test]
fn a_worker_that_is_late_beside_the_others_is_found_and_emptied_and_gets_nothing_for_a_while() {
    let mut crew = Crew::new(30, &["a", "b", "c"], ScheduleRules::default());
    crew.workers.values_mut().for_each(|worker| worker.delay = Some(40 * MS));
    crew.go_on(Duration::from_secs(25));
    crew.workers.get_mut("b").expect("it is there").delay = Some(Duration::from_secs(2));
    crew.go_on(Duration::from_secs(3));
    assert_eq!(crew.scheduler.counts().slow, 0, "a few late looks are no proof");
    crew.go_on(Duration::from_secs(10));
    assert_eq!((crew.scheduler.counts().slow, crew.owned("b")), (1, 0));
    crew.go_on(Duration::from_secs(30));
    assert_eq!(crew.owned("b"), 0);
    crew.workers.get_mut("b").expect("it is there").delay = Some(40 * MS);
    crew.go_on(Duration::from_secs(60));
    crew.assert_balanced();
    assert!(crew.owned("b") > 0, "it has had its rest");
}

#[test]
fn where_all_are_late_nobody_is_slow() {
    let mut crew = Crew::new(30, &["a", "b", "c"], ScheduleRules::default());
    for late in 1..10 {
        crew.workers.values_mut().for_each(|worker| worker.delay = Some(Duration::from_secs(late)));
        crew.go_on(Duration::from_secs(10));
    }
    assert_eq!((crew.scheduler.counts().slow, crew.scheduler.counts().moved), (0, 0));
}

#[test]
fn one_late_operation_makes_no_worker_slow() {
    let mut crew = Crew::new(30, &["a", "b", "c"], ScheduleRules::default());
    crew.workers.values_mut().for_each(|worker| worker.delay = Some(40 * MS));
    for _ in 0..20 {
        crew.go_on(900 * MS);
        let first = crew.workers.get_mut("a").and_then(|worker| worker.running.values_mut().next());
        first.expect("some").delay = Some(Duration::from_secs(9));
        crew.report("a");
    }
    assert_eq!(crew.scheduler.counts().slow, 0);
}

#[test]
fn what_does_not_begin_to_flow_is_tried_elsewhere_and_goes_on_where_it_flows_meanwhile() {
    let mut crew = Crew::new(6, &["a"], ScheduleRules::default());
    crew.go_on(Duration::from_secs(25));
    crew.join("b");
    crew.workers.get_mut("b").expect("it is there").is_cut_off = true;
    crew.go_on(Duration::from_secs(60));
    let flows = |id: &OperationId| crew.scheduler.run_of("a", id).is_some_and(|run| run.flows);
    assert!(ids(6).iter().all(flows), "the one that can runs them");
    // Without the other one the node itself does.
    crew.workers.remove("a");
    crew.go_on(Duration::from_secs(20));
    assert_eq!(crew.scheduler.wanted(HERE), ids(6));
}

#[test]
fn a_scheduler_that_begins_learns_what_runs_and_moves_nothing_of_it() {
    let mut crew = Crew::new(24, &["a", "b"], ScheduleRules::default());
    crew.go_on(Duration::from_secs(25));
    let before: Vec<Option<String>> =
        ids(24).iter().map(|id| crew.scheduler.owner(id).map(str::to_owned)).collect();
    crew.rules.learn = Duration::from_secs(2);
    crew.scheduler = Scheduler::new(crew.rules.clone(), crew.now);
    crew.step(ScheduleInput::Operations(ids(30)));
    assert!(crew.scheduler.wanted(HERE).is_empty(), "it listens first");
    crew.go_on(Duration::from_secs(1));
    let after: Vec<Option<String>> =
        ids(24).iter().map(|id| crew.scheduler.owner(id).map(str::to_owned)).collect();
    assert_eq!(before, after);
    assert_eq!(crew.scheduler.owner(&id(29)), None, "somebody may run it that was not heard yet");
    crew.go_on(Duration::from_secs(2));
    assert!(crew.scheduler.owner(&id(29)).is_some());
    assert_eq!(crew.scheduler.counts().moved, 0);
}

#[test]
fn of_two_workers_that_run_the_same_one_ends_when_it_flows_at_the_other() {
    let mut crew = Crew::new(1, &["a", "b"], ScheduleRules::default());
    let run = OperationRun { flows: true, ..OperationRun::default() };
    for worker in crew.workers.values_mut() {
        worker.running = BTreeMap::from([(id(0), run)]);
    }
    crew.go_on(Duration::from_secs(2));
    let running = crew.workers.values().filter(|worker| !worker.running.is_empty()).count();
    assert_eq!(running, 1);
}

#[test]
fn those_that_leave_go_by_thirds_and_none_while_the_scheduler_learns() {
    let names = ["a", "b", "c", "d", "e", "f"];
    let rules = ScheduleRules { learn: Duration::from_secs(2), ..ScheduleRules::default() };
    let mut crew = Crew::new(24, &names, rules);
    crew.workers.values_mut().for_each(|worker| worker.is_leaving = true);
    crew.go_on(Duration::from_secs(1));
    assert!(names.iter().all(|name| !crew.scheduler.may_go(name)), "the scheduler has just begun");
    crew.workers.values_mut().for_each(|worker| worker.is_leaving = false);
    crew.go_on(Duration::from_secs(25));
    crew.workers.values_mut().for_each(|worker| worker.is_leaving = true);
    crew.go_on(Duration::from_secs(20));
    let going: Vec<&&str> = names.iter().filter(|name| crew.scheduler.may_go(name)).collect();
    assert_eq!(going.len(), 2, "{going:?}");
    let left: usize = names.iter().map(|name| crew.owned(name)).sum();
    assert_eq!(left + crew.owned(HERE), 24);
}

/// What may happen to a crew.
#[derive(Clone, Debug)]
enum CrewTrouble {
    Join(u8),
    Die(u8),
    Leave(u8),
    CutOff(u8, bool),
    Late(u8, u16),
    Operations(u32),
    /// The scheduler begins anew.
    Anew,
    Wait(u8),
}

fn trouble() -> impl Strategy<Value = CrewTrouble> {
    let name = 0..6_u8;
    prop_oneof![
        name.clone().prop_map(CrewTrouble::Join),
        name.clone().prop_map(CrewTrouble::Die),
        name.clone().prop_map(CrewTrouble::Leave),
        (name.clone(), any::<bool>()).prop_map(|(name, is)| CrewTrouble::CutOff(name, is)),
        (name, 0..3_000_u16).prop_map(|(name, ms)| CrewTrouble::Late(name, ms)),
        (0..60_u32).prop_map(CrewTrouble::Operations),
        Just(CrewTrouble::Anew),
        (0..100_u8).prop_map(CrewTrouble::Wait),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]

    /// [`Crew::step`] looks at what always holds.
    #[test]
    fn whatever_happens_nothing_is_left_out_or_broken_and_afterwards_all_flows_and_is_balanced(
        troubles in prop::collection::vec(trouble(), 1..40),
    ) {
        let short = Duration::from_secs(2);
        let rules = ScheduleRules {
            learn: Duration::from_secs(1),
            starts_max: 8,
            patience: short,
            stay: short,
            quiet: short,
            rest: short * 2,
            ..ScheduleRules::default()
        };
        let mut crew = Crew::new(30, &["w0", "w1", "w2"], rules.clone());
        let mut operations = 30;
        for trouble in troubles {
            let name = |number: u8| format!("w{number}");
            match trouble {
                CrewTrouble::Join(number) if !crew.workers.contains_key(&name(number)) => crew.join(&name(number)),
                CrewTrouble::Join(_) => {}
                CrewTrouble::Die(number) => drop(crew.workers.remove(&name(number))),
                CrewTrouble::Leave(number) => {
                    crew.workers.entry(name(number)).and_modify(|worker| worker.is_leaving = true);
                }
                CrewTrouble::CutOff(number, is) => {
                    crew.workers.entry(name(number)).and_modify(|worker| worker.is_cut_off = is);
                }
                CrewTrouble::Late(number, ms) => {
                    let delay = Some(Duration::from_millis(ms.into()));
                    crew.workers.entry(name(number)).and_modify(|worker| worker.delay = delay);
                }
                CrewTrouble::Operations(count) => {
                    operations = count;
                    crew.step(ScheduleInput::Operations(ids(count)));
                }
                CrewTrouble::Anew => {
                    crew.scheduler = Scheduler::new(rules.clone(), crew.now);
                    crew.step(ScheduleInput::Operations(ids(operations)));
                }
                CrewTrouble::Wait(tenths) => crew.go_on(100 * MS * u32::from(tenths)),
            }
        }
        for worker in crew.workers.values_mut() {
            (worker.is_cut_off, worker.is_leaving, worker.delay) = (false, false, Some(MS));
        }
        // The longest rest of a slow worker, and the longest stay.
        crew.go_on(rules.rest * (1 << DOUBLED_MAX) + rules.stay * (2 << DOUBLED_MAX));
        prop_assert!(crew.scheduler.operations.iter().all(|(id, of)| crew.scheduler.flows_at_owner(id, of)));
        if !crew.workers.is_empty() {
            prop_assert_eq!(crew.owned(HERE), 0, "the node runs what nobody else can");
        }
        crew.assert_balanced();
    }
}
