//! What an owner does when the journal has no room, loses something, or takes its time.

use std::time::Duration;

use bytes::Bytes;

use super::*;
use crate::ids::Receipt;
use crate::limits::{DEDUPLICATION_MS, IN_FLIGHT_MAX, MOVE_STEP, MOVE_WAIT_MS};
use crate::record;
use crate::request::{Receive, Send};
use crate::settings::{Fifo, MoveStatus, MoveTask, QueueRecord, Redrive, Settings};

const NOW: u64 = 1_000_000_000;
const QUEUE: QueueId = QueueId(1);

/// A core with one queue, and what the journal has of it.
struct Node {
    core: Core,
    journal: Vec<Vec<u8>>,
}

fn empty(settings: Settings) -> Shelf {
    let mut shelf = Shelf::default();
    shelf.restore(QUEUE, QueueRecord::new("account", "q", settings));
    shelf
}

fn core_of(shelf: Shelf) -> Core {
    let numbers = Numbers { content: AtomicU64::new(1_000), queue: AtomicU64::new(100) };
    Core::new(shelf, Arc::new(numbers), 1)
}

impl Node {
    fn new(settings: Settings) -> Self {
        Self { core: core_of(empty(settings)), journal: Vec::new() }
    }

    /// Asks for something that is answered later.
    fn ask<T>(
        &mut self,
        now: u64,
        request: impl FnOnce(QueueReply<T>) -> QueueRequest,
    ) -> oneshot::Receiver<Result<T, QueueError>> {
        let (reply, answer) = oneshot::channel();
        self.core.take(request(reply), now);
        answer
    }

    /// The journal takes the round and syncs it.
    fn settle(&mut self, now: u64) {
        while let Some(round) = self.core.round() {
            self.journal.push(round.bytes.clone());
            if self.core.appended() {
                self.core.settle(now);
            }
        }
    }

    fn send(&mut self, now: u64, count: usize) -> oneshot::Receiver<Result<Vec<Sent>, QueueError>> {
        let send = Send { content: Bytes::from_static(b"content"), ..Send::default() };
        self.ask(now, |reply| QueueRequest::Send(QUEUE, vec![send; count], reply))
    }

    fn send_to_group(&mut self, now: u64, group: &str) -> oneshot::Receiver<Result<Vec<Sent>, QueueError>> {
        let send = Send { group: Some(group.to_owned()), ..Send::default() };
        self.ask(now, |reply| QueueRequest::Send(QUEUE, vec![send], reply))
    }

    fn create(&mut self, name: &str, settings: Settings) -> QueueId {
        let record = Box::new(QueueRecord::new("account", name, settings));
        let mut created = self.ask(NOW, |reply| QueueRequest::Admin(Admin::Create(record, reply)));
        self.settle(NOW);
        created.try_recv().expect("answered").expect("created").id
    }

    fn receive(&mut self, now: u64, count: usize) -> Vec<Receipt> {
        let receive = Receive { count, ..Receive::default() };
        let mut answer = self.ask(now, |reply| QueueRequest::Receive(QUEUE, receive, reply));
        let found = answer.try_recv().expect("at once").expect("received");
        found.iter().map(|found| found.message.receipt).collect()
    }

    /// What a crash leaves.
    fn recovered(&self, settings: Settings, now: u64) -> Core {
        let mut shelf = empty(settings);
        for op in self.journal.iter().flat_map(|record| record::read(record).expect("a record")) {
            shelf.apply(op, now);
        }
        core_of(shelf)
    }
}

fn fifo() -> Settings {
    Settings { fifo: Some(Fifo::default()), ..Settings::default() }
}

fn full() -> QueueError {
    QueueError::Unavailable("the journal is full".to_owned())
}

#[test]
fn a_change_of_visibility_is_remembered_though_the_record_of_its_receive_was_refused() {
    let mut node = Node::new(Settings::default());
    let mut sent = node.send(NOW, 1);
    node.settle(NOW);
    sent.try_recv().expect("answered").expect("sent");
    let receipt = node.receive(NOW + 10, 1)[0];
    node.core.refused(&full(), NOW + 10);
    let heartbeat = |receipt| vec![(receipt, Duration::from_secs(60))];
    let mut changed =
        node.ask(NOW + 20_000, |reply| QueueRequest::ChangeVisibility(QUEUE, heartbeat(receipt), reply));
    node.settle(NOW + 20_000);
    assert_eq!(changed.try_recv().expect("answered").expect("changed"), [Ok(())]);

    let after = NOW + 20_001;
    let mut node = Node { core: node.recovered(Settings::default(), after), journal: Vec::new() };
    assert_eq!(node.receive(after + 30_000, 1), []);
    let entry = node.core.shelf.queues[&QUEUE].queue.entry(receipt.sequence).expect("it is there");
    assert_eq!((entry.receives, entry.last_after, entry.visible_at), (1, 10, NOW + 80_000));
    // And who has received it goes on with it.
    let mut changed =
        node.ask(after + 40_000, |reply| QueueRequest::ChangeVisibility(QUEUE, heartbeat(receipt), reply));
    node.settle(after + 40_000);
    assert_eq!(changed.try_recv().expect("answered").expect("changed"), [Ok(())]);
}

#[test]
fn a_change_of_visibility_whose_message_somebody_else_receives_before_it_is_durable_is_refused() {
    let mut node = Node::new(Settings::default());
    let mut sent = node.send(NOW, 2);
    node.settle(NOW);
    sent.try_recv().expect("answered").expect("sent");
    let receipts = node.receive(NOW, 2);
    let half_a_minute = Duration::from_secs(30);
    let heartbeat = receipts.iter().map(|receipt| (*receipt, half_a_minute)).collect();
    let mut changed = node.ask(NOW + 29_998, |reply| QueueRequest::ChangeVisibility(QUEUE, heartbeat, reply));
    // The disk takes its time, and both are visible: one of them is received.
    let other = node.receive(NOW + 30_000, 1)[0];
    assert_eq!(other.sequence, receipts[0].sequence);
    node.settle(NOW + 30_003);
    let outcomes = changed.try_recv().expect("answered").expect("changed");
    assert_eq!(outcomes, [Err(ReceiptError::Unavailable), Ok(())]);
    assert_eq!(node.receive(NOW + 59_997, 2), []);
    // The one that was changed is visible first.
    assert_eq!(node.receive(NOW + 59_998, 2).len(), 1);
}

#[test]
fn what_was_received_again_since_a_change_of_visibility_belongs_to_its_last_receiver_after_a_crash() {
    let mut node = Node::new(Settings::default());
    drop(node.send(NOW, 1));
    node.settle(NOW);
    let first = node.receive(NOW, 1)[0];
    // The change is not durable before the message was received again.
    let change = vec![(first, Duration::ZERO)];
    drop(node.ask(NOW + 29_999, |reply| QueueRequest::ChangeVisibility(QUEUE, change, reply)));
    let second = node.receive(NOW + 30_000, 1)[0];
    node.settle(NOW + 30_000);
    let recovered = node.recovered(Settings::default(), NOW + 30_001);
    for core in [&node.core, &recovered] {
        let entry = core.shelf.queues[&QUEUE].queue.entry(first.sequence).expect("it is there");
        assert_eq!((entry.token, entry.receives, entry.visible_at), (second.token.0, 2, NOW + 60_000));
    }
}

#[test]
fn sends_that_the_journal_has_no_room_for_leave_room_to_what_takes_messages_away() {
    let mut node = Node::new(Settings::default());
    drop(node.send(NOW, 4));
    node.settle(NOW);
    let receipts = node.receive(NOW, 3);
    node.settle(NOW);
    // One round: more, a delete, more, a receive, a heartbeat, and a queue that is to be created.
    let mut sent = [node.send(NOW + 1, 10), node.send(NOW + 1, 1)];
    let mut deleted = node.ask(NOW + 1, |reply| QueueRequest::Delete(QUEUE, vec![receipts[0]], reply));
    let mut more = node.send(NOW + 1, 2);
    let fourth = node.receive(NOW + 1, 1)[0];
    let change = vec![(receipts[1], Duration::from_secs(100))];
    let mut changed = node.ask(NOW + 1, |reply| QueueRequest::ChangeVisibility(QUEUE, change, reply));
    let record = Box::new(QueueRecord::new("account", "other", Settings::default()));
    let mut created = node.ask(NOW + 1, |reply| QueueRequest::Admin(Admin::Create(record, reply)));

    assert!(node.core.round().expect("a round").is_growing());
    node.core.refused_growing(&full(), NOW + 1);
    let round = node.core.round().expect("the rest");
    assert!(!round.is_growing() && round.is_awaited);
    let kinds = |op: &QueueOp| match op {
        QueueOp::Delete { sequence, .. } => ("delete", *sequence),
        QueueOp::Receive { sequence, .. } => ("receive", *sequence),
        QueueOp::Change { sequence, .. } => ("change", *sequence),
        other => panic!("{other:?}"),
    };
    let ops: Vec<_> = record::read(&round.bytes).expect("a record").iter().map(kinds).collect();
    let [first, second, _] = receipts[..] else { panic!("three were received") };
    let expected = [("delete", first), ("receive", fourth), ("receive", second), ("change", second)]
        .map(|(kind, of)| (kind, of.sequence));
    assert_eq!(ops, expected);
    for refused in sent.iter_mut().chain([&mut more]) {
        assert!(matches!(refused.try_recv().expect("answered"), Err(QueueError::Unavailable(_))));
    }
    assert!(matches!(created.try_recv().expect("answered"), Err(QueueError::Unavailable(_))));
    node.settle(NOW + 2);
    assert_eq!(deleted.try_recv().expect("answered").expect("deleted"), [Ok(())]);
    assert_eq!(changed.try_recv().expect("answered").expect("changed"), [Ok(())]);
    let queue = &node.core.shelf.queues[&QUEUE].queue;
    assert_eq!((queue.counts().in_flight, queue.entry(first.sequence)), (3, None));
    // What was refused has left nothing behind that keeps others waiting.
    drop(node.ask(NOW + 3, |reply| QueueRequest::Admin(Admin::Purge(QUEUE, reply))));
    node.settle(NOW + 3);
    assert_eq!(node.core.shelf.queues[&QUEUE].queue.counts().in_flight, 0);
}

#[test]
fn a_receive_that_waits_gets_what_was_behind_a_message_that_was_kept_for_too_long() {
    let settings = Settings { retention_s: 60, visibility_s: 3_600, ..fifo() };
    let mut node = Node::new(settings);
    drop(node.send_to_group(NOW, "g"));
    node.settle(NOW);
    assert_eq!(node.receive(NOW, 1).len(), 1);
    drop(node.send_to_group(NOW + 30_000, "g"));
    node.settle(NOW + 30_000);
    let receive = Receive { count: 1, wait: Some(Duration::from_secs(3_600)), ..Receive::default() };
    let mut waiting = node.ask(NOW + 30_000, |reply| QueueRequest::Receive(QUEUE, receive, reply));
    node.core.tick(NOW + 30_000);
    assert!(waiting.try_recv().is_err());
    let at = node.core.wake_at().expect("something happens");
    assert_eq!(at, NOW + 60_000);
    node.core.tick(at);
    let found = waiting.try_recv().expect("answered").expect("received");
    assert_eq!(found[0].message.sent_at, NOW + 30_000);
}

/// A queue with so many messages, and a task that moves them to another one; the task's number.
fn moving(count: usize) -> (Node, QueueId, u64) {
    let mut node = Node::new(Settings::default());
    drop(node.send(NOW, count));
    node.settle(NOW);
    let target = node.create("target", Settings::default());
    let task = MoveTask { target: Some("target".to_owned()), ..MoveTask::new("account", "q") };
    let mut started = node.ask(NOW, |reply| QueueRequest::Admin(Admin::StartTask(Box::new(task), reply)));
    node.settle(NOW);
    let task = started.try_recv().expect("answered").expect("started");
    (node, target, task)
}

#[test]
fn a_cancelled_task_has_moved_what_it_says_and_moves_nothing_more() {
    for is_lost in [false, true] {
        let (mut node, target, task) = moving(3 * MOVE_STEP);
        node.core.tick(NOW);
        let step = node.core.round().expect("a step").bytes.clone();
        assert!(node.core.appended());
        // The step is in the journal when it is told to stop.
        let mut cancelled =
            node.ask(NOW, |reply| QueueRequest::Admin(Admin::CancelTask(task, "account".to_owned(), reply)));
        node.core.tick(NOW + 1_000);
        match is_lost {
            true => node.core.lose_first(&full(), NOW + 1_000),
            false => {
                node.journal.push(step);
                node.core.settle(NOW + 1_000);
            }
        }
        node.core.tick(NOW + 10_000);
        node.settle(NOW + 10_000);
        node.core.tick(NOW + 20_000);
        assert!(node.core.round().is_none() && node.core.wake_at().is_none());
        let moved = if is_lost { 0 } else { MOVE_STEP as u64 };
        assert_eq!(cancelled.try_recv().expect("answered").expect("cancelled"), moved);
        let recovered = node.recovered(Settings::default(), NOW + 20_000);
        for core in [&node.core, &recovered] {
            assert_eq!(core.shelf.queues[&target].queue.counts().visible, moved);
            let known = &core.shelf.tasks[&task];
            assert_eq!((known.status, known.moved), (MoveStatus::Cancelled, moved));
        }
    }
}

#[test]
fn a_cancellation_that_was_lost_leaves_the_task_running() {
    let (mut node, target, task) = moving(MOVE_STEP);
    let mut cancelled =
        node.ask(NOW, |reply| QueueRequest::Admin(Admin::CancelTask(task, "account".to_owned(), reply)));
    node.core.tick(NOW);
    node.core.refused(&full(), NOW);
    assert!(cancelled.try_recv().expect("answered").is_err());
    node.core.tick(NOW);
    node.settle(NOW);
    assert_eq!(node.core.shelf.queues[&target].queue.counts().visible, MOVE_STEP as u64);
}

#[test]
fn with_a_queue_its_move_tasks_go_whatever_is_on_its_way() {
    let (mut node, _, task) = moving(1);
    node.core.tick(NOW);
    node.settle(NOW);
    // The deletion is in the journal before the end of the task.
    let mut dropped = node.ask(NOW + 1_000, |reply| QueueRequest::Admin(Admin::Drop(QUEUE, reply)));
    node.core.tick(NOW + 1_000);
    node.settle(NOW + 1_000);
    dropped.try_recv().expect("answered").expect("deleted");
    assert!(node.core.shelf.tasks.is_empty() && node.core.wake_at().is_none());
    assert_eq!(node.core.shelf.take_delta(NOW).tasks_removed, [task]);
    assert!(node.recovered(Settings::default(), NOW + 1_000).shelf.tasks.is_empty());
}

#[test]
fn a_move_of_one_group_takes_many_messages_at_a_time_in_their_order() {
    let mut node = Node::new(fifo());
    let count = MOVE_STEP + 10;
    for _ in 0..count {
        drop(node.send_to_group(NOW, "g"));
    }
    node.settle(NOW);
    let target = node.create("target", fifo());
    let task = MoveTask { target: Some("target".to_owned()), ..MoveTask::new("account", "q") };
    drop(node.ask(NOW, |reply| QueueRequest::Admin(Admin::StartTask(Box::new(task), reply))));
    node.settle(NOW);
    // A lost step changes nothing.
    node.core.tick(NOW);
    node.core.refused(&full(), NOW);
    for moved in [MOVE_STEP, count] {
        let now = node.core.wake_at().expect("the next step");
        node.core.tick(now);
        node.settle(now);
        assert_eq!(node.core.shelf.queues[&target].queue.counts().visible, moved as u64);
    }
    let found = node.core.shelf.queues[&target].queue.peek(Sequence(0), count);
    let numbers: Vec<u64> = found.iter().map(|(taken, _)| taken.entry.number.0).collect();
    assert_eq!(numbers, (1_000..1_000 + count as u64).collect::<Vec<_>>());
    assert!(found.iter().all(|(_, group)| group.as_deref() == Some("g")));
}

#[test]
fn there_is_a_bound_to_the_deduplication_ids_of_all_queues_together() {
    let mut node = Node::new(fifo());
    let other = node.create("other", fifo());
    node.core.keys_max = 10;
    let send = |node: &mut Node, queue, now, id: u64| {
        let send =
            Send { group: Some("g".to_owned()), deduplication: Some(id.to_string()), ..Send::default() };
        let mut sent = node.ask(now, |reply| QueueRequest::Send(queue, vec![send], reply));
        node.settle(now);
        sent.try_recv().expect("answered").map(|_| ())
    };
    for id in 0..10 {
        let queue = if id % 2 == 0 { QUEUE } else { other };
        assert!(send(&mut node, queue, NOW + id, id).is_ok());
    }
    let refused = send(&mut node, QUEUE, NOW + 10, 10);
    assert!(matches!(refused, Err(QueueError::Overloaded(_))), "{refused:?}");
    // Five minutes later there is room, whether or not somebody has used the queue that the ids are of.
    assert!(send(&mut node, QUEUE, NOW + DEDUPLICATION_MS + 1, 11).is_ok());
    assert_eq!(node.core.shelf.keys.load(Ordering::Relaxed), 9);
    // With a queue its ids go.
    drop(node.ask(NOW + DEDUPLICATION_MS + 1, |reply| QueueRequest::Admin(Admin::Drop(other, reply))));
    node.settle(NOW + DEDUPLICATION_MS + 1);
    assert_eq!(node.core.shelf.keys.load(Ordering::Relaxed), 5);
    // A start counts them, whatever the number of owners.
    let shelves = node.core.shelf.divide(3, |_| 2);
    let counts = shelves.iter().map(|shelf| shelf.keys.load(Ordering::Relaxed));
    assert_eq!(counts.collect::<Vec<_>>(), [0, 0, 5]);
}

/// A queue with many messages that were received too often, and one behind them that was not.
fn overdue(settings: Settings, count: usize) -> (Node, QueueId) {
    let redrive = Redrive { target: "dead".to_owned(), receives_max: 1 };
    let is_fifo = settings.fifo.is_some();
    let with_redrive = Settings { redrive: Some(redrive), ..settings.clone() };
    let mut node = Node::new(with_redrive);
    let send = |node: &mut Node, now, number: usize| {
        drop(match is_fifo {
            true => node.send_to_group(now, &number.to_string()),
            false => node.send(now, 1),
        });
        node.settle(now);
    };
    (0..count).for_each(|number| send(&mut node, NOW, number));
    let mut left = count;
    while left > 0 {
        left -= node.receive(NOW, left.min(10)).len();
        node.settle(NOW);
    }
    // Their time to be received again is before that.
    send(&mut node, NOW + 50_000, count);
    let dead = node.create("dead", settings);
    (node, dead)
}

#[test]
fn a_receive_that_may_not_wait_finds_what_is_behind_many_messages_for_the_dead_letter_queue() {
    for settings in [Settings::default(), fifo()] {
        let count = 2 * MOVE_STEP + MOVE_STEP / 2;
        let (mut node, dead) = overdue(settings, count);
        let now = NOW + 60_000;
        let receive = Receive { count: 10, ..Receive::default() };
        let mut answer = node.ask(now, |reply| QueueRequest::Receive(QUEUE, receive, reply));
        node.settle(now);
        let found = answer.try_recv().expect("answered").expect("received");
        assert_eq!(found.iter().map(|found| found.message.receives).collect::<Vec<_>>(), [1]);
        assert_eq!(node.core.shelf.queues[&dead].queue.counts().visible, count as u64);
    }
}

#[test]
fn a_receive_that_may_not_wait_ends_though_no_message_can_be_moved() {
    let (mut node, _) = overdue(Settings::default(), 3 * MOVE_STEP);
    let mut now = NOW + 60_000;
    let mut answer = node
        .ask(now, |reply| QueueRequest::Receive(QUEUE, Receive { count: 1, ..Receive::default() }, reply));
    let mut looks = 0;
    let found = loop {
        node.core.tick(now);
        if node.core.round().is_some() {
            node.core.refused(&full(), now);
        }
        looks += 1;
        match answer.try_recv() {
            Ok(found) => break found.expect("received"),
            Err(_) => now = node.core.wake_at().expect("its end"),
        }
    };
    assert!(found.is_empty() && looks <= 2 + MOVE_WAIT_MS / MOVE_RETRY_MS, "{looks}");
}

#[test]
fn a_receive_that_moves_something_and_finds_something_is_answered_when_the_move_is_durable_or_lost() {
    for is_lost in [false, true] {
        let (mut node, dead) = overdue(Settings::default(), 1);
        let now = NOW + 60_000;
        let receive = Receive { count: 10, ..Receive::default() };
        let mut answer = node.ask(now, |reply| QueueRequest::Receive(QUEUE, receive, reply));
        assert!(node.core.round().is_some() && node.core.appended());
        assert!(answer.try_recv().is_err(), "the dead letter is not there yet");
        match is_lost {
            true => node.core.lose_first(&full(), now),
            false => node.core.settle(now),
        }
        assert_eq!(answer.try_recv().expect("answered").expect("received").len(), 1);
        assert_eq!(node.core.shelf.queues[&dead].queue.counts().visible, u64::from(!is_lost));
    }
}

/// A FIFO queue with as many messages in one group, of which the first was received as often as it may be, and its
/// dead-letter queue.
fn overdue_before(others: usize) -> (Node, QueueId, Vec<Sequence>) {
    let redrive = Redrive { target: "dead".to_owned(), receives_max: 1 };
    let mut node = Node::new(Settings { redrive: Some(redrive), ..fifo() });
    let dead = node.create("dead", fifo());
    let send = |node: &mut Node| {
        let mut sent = node.send_to_group(NOW, "g");
        node.settle(NOW);
        sent.try_recv().expect("answered").expect("sent")[0].sequence
    };
    let sent: Vec<Sequence> = (0..=others).map(|_| send(&mut node)).collect();
    let received: Vec<Sequence> = node.receive(NOW, 1).iter().map(|receipt| receipt.sequence).collect();
    assert_eq!(received, sent[..1]);
    node.settle(NOW);
    (node, dead, sent)
}

#[test]
fn what_is_behind_a_message_for_the_dead_letter_queue_is_received_when_that_has_left_its_group_for_good() {
    let (mut node, dead, sent) = overdue_before(2);
    let mut now = NOW + 60_000;
    let receive = Receive { count: 10, ..Receive::default() };
    let mut answer = node.ask(now, |reply| QueueRequest::Receive(QUEUE, receive, reply));
    // The journal takes the move, and loses it.
    assert!(node.core.round().is_some() && node.core.appended());
    assert!(answer.try_recv().is_err(), "nothing may have been received before the move is durable");
    node.core.lose_first(&full(), now);
    assert_eq!(node.core.shelf.queues[&dead].queue.counts().visible, 0);
    assert!(answer.try_recv().is_err(), "the first of the group is still there");
    // It rides on the next one.
    now = node.core.wake_at().expect("the next try");
    node.core.tick(now);
    assert!(answer.try_recv().is_err());
    node.settle(now);
    let found = answer.try_recv().expect("answered").expect("received");
    let received: Vec<Sequence> = found.iter().map(|found| found.message.receipt.sequence).collect();
    assert_eq!(received, sent[1..]);
    assert_eq!(node.core.shelf.queues[&dead].queue.counts().visible, 1);
}

#[test]
fn a_receive_that_may_not_wait_is_answered_with_nothing_when_the_moves_before_it_leave_nothing() {
    let (mut node, _, _) = overdue_before(0);
    let now = NOW + 60_000;
    let receive = Receive { count: 10, ..Receive::default() };
    let mut answer = node.ask(now, |reply| QueueRequest::Receive(QUEUE, receive, reply));
    node.settle(now);
    assert!(answer.try_recv().expect("answered").expect("received").is_empty());
    assert_eq!(node.core.wake_at(), None);
}

#[test]
fn what_is_behind_the_messages_of_a_step_of_a_task_is_not_received_before_they_have_left_their_group() {
    let mut node = Node::new(fifo());
    let count = MOVE_STEP + 10;
    (0..count).for_each(|_| drop(node.send_to_group(NOW, "g")));
    node.settle(NOW);
    node.create("target", fifo());
    let task = MoveTask { target: Some("target".to_owned()), ..MoveTask::new("account", "q") };
    drop(node.ask(NOW, |reply| QueueRequest::Admin(Admin::StartTask(Box::new(task), reply))));
    node.settle(NOW);
    node.core.tick(NOW);
    assert!(node.core.round().is_some() && node.core.appended());
    let receive = Receive { count: 1, ..Receive::default() };
    let mut answer = node.ask(NOW, |reply| QueueRequest::Receive(QUEUE, receive, reply));
    assert!(answer.try_recv().is_err());
    node.core.lose_first(&full(), NOW);
    let now = node.core.wake_at().expect("the next try");
    node.core.tick(now);
    let found = answer.try_recv().expect("answered").expect("received");
    assert_eq!(found[0].message.receipt.sequence, Sequence(1));
}

#[test]
fn with_too_many_messages_in_flight_a_receive_that_may_wait_does_and_gets_what_there_is_room_for() {
    let mut node = Node::new(Settings { visibility_s: 43_200, ..Settings::default() });
    let most = IN_FLIGHT_MAX as usize;
    let mut sent = node.send(NOW, most + 1);
    node.settle(NOW);
    sent.try_recv().expect("answered").expect("sent");
    let mut receipts = Vec::with_capacity(most);
    while receipts.len() < most {
        receipts.extend(node.receive(NOW, 10));
    }
    let receive =
        |wait_s| Receive { count: 1, wait: Some(Duration::from_secs(wait_s)), ..Receive::default() };
    let mut at_once = node.ask(NOW, |reply| QueueRequest::Receive(QUEUE, receive(0), reply));
    assert!(matches!(at_once.try_recv().expect("answered"), Err(QueueError::TooManyInFlight)));
    let mut first = node.ask(NOW, |reply| QueueRequest::Receive(QUEUE, receive(20), reply));
    let mut second = node.ask(NOW + 1, |reply| QueueRequest::Receive(QUEUE, receive(20), reply));
    assert!(first.try_recv().is_err() && second.try_recv().is_err(), "both wait");
    let deleted = node.ask(NOW + 2, |reply| QueueRequest::Delete(QUEUE, vec![receipts[0]], reply));
    node.settle(NOW + 2);
    drop(deleted);
    assert_eq!(first.try_recv().expect("answered").expect("received").len(), 1);
    node.core.tick(NOW + 20_001);
    assert_eq!(second.try_recv().expect("answered").expect("there is nothing").len(), 0);
}
