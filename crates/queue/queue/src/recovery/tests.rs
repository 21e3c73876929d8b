//! Operations, checkpoints, sweeps and crashes in any order: what a recovery finds, and what is left in the tree.

use std::collections::BTreeSet;

use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::ids::Number;
use crate::queue::Arrival;
use crate::settings::{QueueRecord, Settings};
use crate::tree::Checkpoint;

/// A store whose journal is a list of operations; the position of one is its place in it, from 1 on.
struct Store {
    env: Env,
    /// Of `env`, though nothing runs here.
    _runtime: tokio::runtime::Runtime,
    dir: tempfile::TempDir,
    journal: Vec<QueueOp>,
    /// None only while it is opened again.
    recovery: Option<Recovery>,
    /// Each queue's messages by their numbers there, with their contents'.
    model: BTreeMap<QueueId, BTreeMap<Sequence, Number>>,
    queues: u64,
    numbers: u64,
}

impl Store {
    fn new() -> Self {
        let (journal, model) = Default::default();
        let dir = tempfile::tempdir().expect("a directory");
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let env = runtime.block_on(async { Env::real() });
        let mut store =
            Self { env, _runtime: runtime, dir, journal, recovery: None, model, queues: 0, numbers: 0 };
        store.crash();
        store
    }

    fn recovery(&mut self) -> &mut Recovery {
        self.recovery.as_mut().expect("it is open")
    }

    fn apply(&mut self, op: QueueOp) {
        self.journal.push(op.clone());
        let recovery = self.recovery();
        let now = recovery.now;
        recovery.shelf.apply(op, now);
    }

    fn create(&mut self) -> QueueId {
        self.queues += 1;
        let queue = QueueId(self.queues);
        let record = QueueRecord::new("account", queue.0.to_string(), Settings::default());
        let record = Bytes::from(serde_json::to_vec(&record).expect("it is plain data"));
        self.apply(QueueOp::Put { queue, record });
        self.model.insert(queue, BTreeMap::new());
        queue
    }

    fn next(&mut self, queue: QueueId) -> Sequence {
        let hosted = self.recovery().shelf.queues.get_mut(&queue).expect("the model has it");
        crate::core::next_sequence(&mut hosted.queue)
    }

    fn send(&mut self, queue: QueueId) {
        self.numbers += 1;
        let (sequence, number, now) = (self.next(queue), Number(self.numbers), self.recovery().now);
        let arrival =
            Arrival { sequence, number, sent_at: now, visible_at: now, group: None, deduplication: None };
        self.apply(QueueOp::Send { queue, arrival, content: content(number) });
        self.model.get_mut(&queue).expect("it is there").insert(sequence, number);
    }

    fn shift(&mut self, queue: QueueId, which: usize, to: QueueId) {
        let Some((sequence, number)) = self.pick(queue, which).filter(|_| queue != to) else { return };
        let (arrives, now) = (self.next(to), self.recovery().now);
        self.apply(QueueOp::Move { queue, sequence, to, arrives, sent_at: now, is_new: false, at: now });
        self.model.get_mut(&queue).expect("it is there").remove(&sequence);
        self.model.get_mut(&to).expect("it is there").insert(arrives, number);
    }

    fn delete(&mut self, queue: QueueId, which: usize) {
        let Some((sequence, _)) = self.pick(queue, which) else { return };
        self.apply(QueueOp::Delete { queue, sequence });
        self.model.get_mut(&queue).expect("it is there").remove(&sequence);
    }

    fn purge(&mut self, queue: QueueId) {
        let upto = self.recovery().shelf.queues[&queue].queue.last();
        let at = self.recovery().now;
        self.apply(QueueOp::Purge { queue, upto, at });
        self.model.insert(queue, BTreeMap::new());
    }

    fn drop_queue(&mut self, queue: QueueId) {
        let at = self.recovery().now;
        self.apply(QueueOp::Drop { queue, at });
        self.model.remove(&queue);
    }

    fn pick(&self, queue: QueueId, which: usize) -> Option<(Sequence, Number)> {
        let messages = &self.model[&queue];
        messages.iter().nth(which % messages.len().max(1)).map(|(sequence, number)| (*sequence, *number))
    }

    /// Takes a checkpoint; the last `beyond` operations are in it though it does not say so.
    fn checkpoint(&mut self, beyond: usize) {
        let covered = JournalPosition(self.journal.len().saturating_sub(beyond) as u64);
        let (next_number, next_queue) = (Number(self.numbers), QueueId(self.queues));
        let recovery = self.recovery();
        recovery.covered = recovery.covered.max(covered);
        let shelves = vec![recovery.shelf.take_delta(recovery.now)];
        let checkpoint = Checkpoint { covered: recovery.covered, next_number, next_queue, shelves };
        recovery.tree.commit(&checkpoint).expect("written");
    }

    fn sweep(&mut self) -> bool {
        self.recovery().tree.sweep().expect("swept")
    }

    fn crash(&mut self) {
        drop(self.recovery.take());
        let mut recovery =
            Recovery::begin(&self.env, &self.dir.path().join("queues")).expect("a tree that was closed");
        for (place, op) in self.journal.iter().enumerate() {
            let mut record = Vec::new();
            op.write(&mut record);
            recovery.replay(JournalPosition(place as u64 + 1), &record).expect("a record");
        }
        self.recovery = Some(recovery);
    }

    /// The queues have what the model has, with contents.
    fn check(&mut self) {
        let model = self.model.clone();
        let Recovery { shelf, tree, .. } = self.recovery();
        let found: BTreeMap<QueueId, BTreeMap<Sequence, Number>> = (shelf.queues.iter())
            .map(|(id, hosted)| {
                let all = hosted.queue.peek(Sequence(0), usize::MAX).into_iter();
                (*id, all.map(|(taken, _)| (taken.sequence, taken.entry.number)).collect())
            })
            .collect();
        assert_eq!(found, model);
        for number in model.values().flat_map(BTreeMap::values) {
            let read = || tree.contents(&[*number], usize::MAX).expect("read").remove(0);
            assert_eq!(shelf.contents.get(*number).or_else(read), Some(content(*number)));
        }
    }

    /// All is swept: the tree has what the model has, and no more.
    fn check_swept(&mut self) {
        self.crash();
        self.check();
        self.checkpoint(0);
        while self.sweep() {}
        let all: BTreeSet<Number> = self.model.values().flat_map(|of| of.values().copied()).collect();
        assert_eq!(self.recovery().tree.rows().expect("read"), (all.len() as u64, all.len() as u64, 0));
        self.crash();
        self.check();
    }
}

/// Some are too large for a bundle of the tree's, and of the others more or fewer fit into one.
fn content(number: Number) -> Bytes {
    let length = [10, 100, 5_000, 8_000, 9_000][number.0 as usize % 5];
    Bytes::from(format!("content {}{:length$}", number.0, ""))
}

#[test]
fn of_many_contents_a_few_that_stay_are_all_that_is_kept_in_the_tree() {
    let mut store = Store::new();
    let queue = store.create();
    for _ in 0..300 {
        store.send(queue);
    }
    store.checkpoint(0);
    store.check();
    // Of each five, one after the other goes; then all but every fiftieth.
    for left in [4, 3, 2, 1] {
        for fifth in 0..60 {
            store.delete(queue, fifth * left);
        }
        store.checkpoint(0);
        store.check_swept();
    }
    for place in (0..60).rev().filter(|place| place % 10 != 0) {
        store.delete(queue, place);
    }
    // What a replay brings a second time is there once.
    store.recovery().covered = JournalPosition(0);
    store.checkpoint(1_000);
    store.check_swept();
    assert_eq!(store.model[&queue].len(), 6);
}

#[test]
fn what_was_moved_away_survives_the_deletion_and_the_purge_of_the_queue_that_it_left() {
    // Whether a checkpoint has the move before the deletion, and whether a crash comes between.
    for (checkpoint, crash, is_purge) in [false, true]
        .into_iter()
        .flat_map(|one| [(one, false), (one, true)])
        .flat_map(|(one, two)| [(one, two, false), (one, two, true)])
    {
        let mut store = Store::new();
        let (source, target) = (store.create(), store.create());
        for _ in 0..3 {
            store.send(source);
        }
        store.checkpoint(0);
        store.shift(source, 1, target);
        if checkpoint {
            store.checkpoint(0);
        }
        if crash {
            store.crash();
        }
        match is_purge {
            true => store.purge(source),
            false => store.drop_queue(source),
        }
        store.checkpoint(0);
        while store.sweep() {}
        assert_eq!(store.model[&target].len(), 1);
        store.check_swept();
    }
}

#[test]
fn what_went_with_the_queue_that_it_was_moved_to_is_not_back_where_it_came_from() {
    let mut store = Store::new();
    let (source, target) = (store.create(), store.create());
    store.checkpoint(0);
    store.send(source);
    store.shift(source, 0, target);
    store.drop_queue(target);
    // The tree has all of it, and does not say so: two owners are not asked at the same time.
    store.checkpoint(3);
    store.check_swept();
}

#[derive(Clone, Debug)]
enum Step {
    Create,
    Send { queue: usize },
    Shift { queue: usize, which: usize, to: usize },
    Delete { queue: usize, which: usize },
    Purge { queue: usize },
    Drop { queue: usize },
    Checkpoint { beyond: usize },
    Sweep,
    Crash,
}

fn step() -> impl Strategy<Value = Step> {
    let any = || 0..100_usize;
    prop_oneof![
        2 => Just(Step::Create),
        8 => any().prop_map(|queue| Step::Send { queue }),
        6 => (any(), any(), any()).prop_map(|(queue, which, to)| Step::Shift { queue, which, to }),
        3 => (any(), any()).prop_map(|(queue, which)| Step::Delete { queue, which }),
        1 => any().prop_map(|queue| Step::Purge { queue }),
        2 => any().prop_map(|queue| Step::Drop { queue }),
        3 => (0..20_usize).prop_map(|beyond| Step::Checkpoint { beyond }),
        1 => Just(Step::Sweep),
        1 => Just(Step::Crash),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn a_recovery_finds_what_there_was_and_the_tree_keeps_nothing_else(steps in prop::collection::vec(step(), 1..60)) {
        let mut store = Store::new();
        for step in steps {
            let ids: Vec<QueueId> = store.model.keys().copied().collect();
            let id = |place: usize| ids.get(place % ids.len().max(1)).copied();
            match step {
                Step::Create => drop(store.create()),
                Step::Checkpoint { beyond } => store.checkpoint(beyond),
                Step::Sweep => drop(store.sweep()),
                Step::Crash => {
                    store.crash();
                    store.check();
                }
                Step::Send { queue } => id(queue).into_iter().for_each(|queue| store.send(queue)),
                Step::Shift { queue, which, to } => {
                    id(queue).zip(id(to)).into_iter().for_each(|(queue, to)| store.shift(queue, which, to));
                }
                Step::Delete { queue, which } => {
                    id(queue).into_iter().for_each(|queue| store.delete(queue, which));
                }
                Step::Purge { queue } => id(queue).into_iter().for_each(|queue| store.purge(queue)),
                Step::Drop { queue } => id(queue).into_iter().for_each(|queue| store.drop_queue(queue)),
            }
        }
        store.check_swept();
    }
}
