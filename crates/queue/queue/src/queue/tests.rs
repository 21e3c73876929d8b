use proptest::prelude::*;

use super::*;
use crate::settings::{Fifo, Redrive};

mod model;

use model::Model;

const SECOND: u64 = 1_000;

const NONE: [u64; 0] = [];

/// The time at which tests begin.
const START: u64 = 1_000_000 * SECOND;

fn settings(fifo: bool) -> Settings {
    Settings { fifo: fifo.then(Fifo::default), ..Settings::default() }
}

fn no_choice(_: u64) -> u64 {
    0
}

impl Queue {
    fn send_at(&mut self, now: u64, delay_ms: u64, group: Option<&str>) -> Sequence {
        let sequence = self.next;
        self.next.0 += 1;
        let arrival = Arrival {
            sequence,
            number: Number(sequence.0 + 100),
            sent_at: now,
            visible_at: now + delay_ms,
            group: group.map(Arc::from),
            deduplication: None,
        };
        self.apply_arrival(&arrival, now);
        sequence
    }

    fn receive_at(&mut self, now: u64, count: usize) -> Vec<(Sequence, Token)> {
        let want = Want { count, visibility_ms: 30 * SECOND, attempt: None, may_redrive: true };
        let mut token = now;
        let received = self.receive(now, &want, &mut |bound| {
            token += 1;
            token % bound
        });
        received.taken.iter().map(|taken| (taken.sequence, Token(taken.entry.token))).collect()
    }

    fn received_at(&mut self, now: u64, count: usize) -> Vec<u64> {
        self.receive_at(now, count).into_iter().map(|(sequence, _)| sequence.0).collect()
    }
}

#[test]
fn a_received_message_is_invisible_until_its_timeout_and_its_tuple_goes_by_that() {
    // Figure 1 of the paper: two messages, one received and not deleted, one received and deleted.
    let mut queue = Queue::new(settings(false));
    let first = queue.send_at(START, 0, None);
    queue.send_at(START + 1, 0, None);
    assert_eq!(queue.received_at(START + 2, 1), [first.0]);
    let (second, _) = queue.receive_at(START + 3, 1)[0];
    assert_eq!(queue.received_at(START + 4, 1), NONE);
    queue.apply_delete(second, START + 5);
    assert_eq!(queue.counts(), Counts { visible: 0, in_flight: 1, delayed: 0 });
    let third = queue.send_at(START + 6, 0, None);
    assert_eq!(queue.next_at(), Some(START + 2 + 30 * SECOND));
    // The third was sent before the first became visible again.
    assert_eq!(queue.received_at(START + 40 * SECOND, 2), [third.0, first.0]);
    assert_eq!(queue.happened.timeouts, 1);
}

#[test]
fn a_delayed_message_is_not_received_before_its_time() {
    let mut queue = Queue::new(settings(false));
    let late = queue.send_at(START, 5 * SECOND, None);
    let early = queue.send_at(START + 1, 0, None);
    assert_eq!(queue.counts(), Counts { visible: 1, in_flight: 0, delayed: 1 });
    assert_eq!(queue.received_at(START + 2, 10), [early.0]);
    assert_eq!(queue.received_at(START + 5 * SECOND - 1, 10), NONE);
    assert_eq!(queue.received_at(START + 5 * SECOND, 10), [late.0]);
}

#[test]
fn what_comes_after_an_invisible_message_of_its_group_stays_hidden() {
    let mut queue = Queue::new(settings(true));
    let sent: Vec<u64> = (0..6).map(|at| queue.send_at(START, 0, Some(["a", "b"][at % 2])).0).collect();
    // As many as possible of one group, then the other one.
    let all = queue.receive_at(START, 4);
    assert_eq!(
        all.iter().map(|(sequence, _)| sequence.0).collect::<Vec<_>>(),
        [sent[0], sent[2], sent[4], sent[1]]
    );
    assert_eq!(queue.received_at(START + 1, 10), NONE);
    // The second of `a` is visible again, but the first is not.
    queue.apply_change(all[1].0, all[1].1, START + 2, START + 2);
    assert_eq!(queue.received_at(START + 3, 10), NONE);
    queue.apply_delete(all[0].0, START + 4);
    assert_eq!(queue.received_at(START + 5, 10), [sent[2]], "and the third is still invisible");
    queue.apply_delete(Sequence(sent[1]), START + 6);
    assert_eq!(queue.received_at(START + 7, 10), [sent[3], sent[5]]);
}

#[test]
fn an_empty_group_is_forgotten() {
    let mut queue = Queue::new(settings(true));
    for round in 0..3 {
        for group in 0..100 {
            queue.send_at(START + round, 0, Some(&format!("{round}/{group}")));
        }
        for _ in 0..10 {
            for (sequence, _) in queue.receive_at(START + round, 10) {
                queue.apply_delete(sequence, START + round);
            }
        }
        assert_eq!((queue.groups_len(), queue.counts().visible), (0, 0));
    }
}

#[test]
fn a_fifo_backlog_of_200_000_messages_is_not_looked_at_by_a_receive() {
    // Work is counted, not timed: the index has one tuple for the group, whatever is behind it.
    let mut queue = Queue::new(settings(true));
    for at in 0..200_000 {
        queue.send_at(START + at / 1_000, 0, Some("one"));
    }
    assert_eq!(queue.index.visible_len(), 1);
    let first = queue.receive_at(START + SECOND, 10);
    assert_eq!(first.len(), 10);
    assert_eq!((queue.index.visible_len(), queue.timeouts.len()), (0, 10));
    for (sequence, _) in first {
        queue.apply_delete(sequence, START + SECOND);
    }
    assert_eq!((queue.index.visible_len(), queue.timeouts.len()), (1, 0));
}

#[test]
fn a_stale_receipt_deletes_from_a_standard_queue_and_is_refused_by_a_fifo_queue() {
    for fifo in [false, true] {
        let mut queue = Queue::new(settings(fifo));
        queue.send_at(START, 0, fifo.then_some("g"));
        let (sequence, old) = queue.receive_at(START, 1)[0];
        let now = START + 31 * SECOND;
        let (_, new) = queue.receive_at(now, 1)[0];
        let refused = if fifo { Err(ReceiptError::Expired) } else { Ok(()) };
        assert_eq!(queue.check_delete(sequence, old, now), refused);
        assert_eq!(queue.check_delete(sequence, new, now), Ok(()));
        assert_eq!(queue.check_change(sequence, old, SECOND, now), Err(ReceiptError::Unavailable));
        let late = now + 31 * SECOND;
        let late_change = if fifo { Err(ReceiptError::NotInFlight) } else { Ok(()) };
        assert_eq!(queue.check_change(sequence, new, SECOND, late), late_change);
        assert_eq!(queue.check_delete(sequence, new, late), refused);
    }
}

#[test]
fn a_fifo_queue_s_other_delay_is_that_of_what_was_not_received_yet() {
    let delayed = |fifo, delay_s| Settings { delay_s, ..settings(fifo) };
    for fifo in [false, true] {
        let mut queue = Queue::new(delayed(fifo, 60));
        for group in ["g", "g", "h"] {
            queue.send_at(START, 60 * SECOND, fifo.then_some(group));
        }
        let now = START + SECOND;
        queue.set(delayed(fifo, 0), now);
        let (visible, delayed_still) = if fifo { (3, 0) } else { (0, 3) };
        assert_eq!(queue.counts(), Counts { visible, in_flight: 0, delayed: delayed_still });
        assert_eq!(queue.receive_at(now, 1).len(), usize::from(fifo));
        // What was received has its visibility timeout, and no delay any more.
        queue.set(delayed(fifo, 30), now);
        let (in_flight, delayed_now) = if fifo { (1, 2) } else { (0, 3) };
        assert_eq!(queue.counts(), Counts { visible: 0, in_flight, delayed: delayed_now });
        let then = if fifo { START + 30 * SECOND } else { START + 60 * SECOND };
        queue.advance(then - 1);
        assert_eq!(queue.counts().visible, 0);
        queue.advance(then);
        assert!(queue.counts().visible >= 2, "of the delay");
    }
}

#[test]
fn nothing_is_invisible_for_more_than_twelve_hours_since_it_was_received() {
    let mut queue = Queue::new(settings(false));
    queue.send_at(START, 0, None);
    let now = START + 100 * SECOND;
    let (sequence, token) = queue.receive_at(now, 1)[0];
    assert_eq!(queue.check_change(sequence, token, INVISIBLE_MS_MAX - SECOND, now + SECOND), Ok(()));
    let beyond = queue.check_change(sequence, token, INVISIBLE_MS_MAX, now + SECOND);
    assert_eq!(beyond, Err(ReceiptError::TooLong));
}

#[test]
fn messages_go_when_they_are_too_old_whether_in_flight_or_from_another_queue() {
    let mut queue = Queue::new(Settings { retention_s: 60, ..settings(false) });
    for at in 0..3 {
        queue.send_at(START + at * SECOND, 0, None);
    }
    queue.received_at(START + 3 * SECOND, 1);
    // Sent long before it came here.
    let carried =
        Carried { entry: PageEntry::new(Number(9), START - 50 * SECOND, 0), group: None, source: None };
    let moved = Sequence(queue.next.0);
    queue.apply_moved(moved, &carried, START - 50 * SECOND, None, false, (START, START + 3 * SECOND));
    assert_eq!(queue.oldest_sent_at(), Some(START - 50 * SECOND));
    queue.advance(START + 10 * SECOND);
    assert_eq!((queue.entry(moved), queue.counts().visible), (None, 2));
    queue.advance(START + 61 * SECOND);
    assert_eq!(queue.counts(), Counts { visible: 1, in_flight: 0, delayed: 0 });
    assert_eq!(queue.happened.expired, 3);
}

#[test]
fn a_message_received_too_often_is_moved_and_is_back_if_that_is_lost() {
    for fifo in [false, true] {
        let redrive = Redrive { target: "dead".to_owned(), receives_max: 2 };
        let mut queue = Queue::new(Settings { redrive: Some(redrive), ..settings(fifo) });
        let group = fifo.then_some("g");
        let (bad, good) = (queue.send_at(START, 0, group), queue.send_at(START, 0, group));
        let mut now = START;
        for _ in 0..2 {
            let received = queue.receive_at(now, 10);
            assert_eq!(received.len(), 2);
            queue.apply_change(good, received[1].1, now, now);
            let good_again = queue.pages.get_mut(good).expect("it is there");
            good_again.receives = 0;
            now += 31 * SECOND;
        }
        let want = Want { count: 10, visibility_ms: SECOND, attempt: None, may_redrive: true };
        let received = queue.receive(now, &want, &mut no_choice);
        // In its group nothing is behind it yet.
        assert_eq!((received.overdue, received.taken.len()), (vec![bad], usize::from(!fifo)));
        assert_eq!(queue.receive(now, &want, &mut no_choice), QueueReceived::default());
        queue.abort_move(bad, now);
        let received = queue.receive(now, &want, &mut no_choice);
        assert_eq!((received.overdue, received.taken.len()), (vec![bad], 0));
        let carried = queue.finish_move(bad, now).expect("it was on its way");
        assert_eq!(carried.group.as_deref(), group);
        assert_eq!(queue.receive(now, &want, &mut no_choice).taken.len(), usize::from(fifo));
        assert_eq!(queue.counts().in_flight, 1);
        let mut dead = Queue::new(settings(fifo));
        let source: Arc<str> = "source".into();
        dead.apply_moved(Sequence(1), &carried, START, Some(&source), false, (now, now));
        assert_eq!(dead.received_at(now, 1), [1]);
        assert_eq!(dead.came_from(Sequence(1)).as_deref(), Some("source"));
    }
}

#[test]
fn a_purge_takes_what_was_sent_before_it() {
    for fifo in [false, true] {
        let mut queue = Queue::new(settings(fifo));
        for _ in 0..100 {
            queue.send_at(START, 0, fifo.then_some("g"));
        }
        queue.received_at(START, 5);
        let upto = queue.last();
        let kept = queue.send_at(START, 0, fifo.then_some("g"));
        queue.apply_purge(upto, START);
        assert_eq!(queue.counts(), Counts { visible: 1, in_flight: 0, delayed: 0 });
        assert_eq!(queue.received_at(START, 10), [kept.0]);
        assert_eq!(queue.next_at(), Some(START + 30 * SECOND));
    }
}

#[test]
fn a_receive_that_is_asked_for_again_by_its_attempt_has_the_same_messages() {
    let mut queue = Queue::new(settings(true));
    for _ in 0..4 {
        queue.send_at(START, 0, Some("g"));
    }
    let want =
        Want { count: 2, visibility_ms: 30 * SECOND, attempt: Some("attempt".to_owned()), may_redrive: true };
    let first = queue.receive(START, &want, &mut no_choice).taken;
    let again = queue.receive(START + SECOND, &want, &mut no_choice).taken;
    let sequences = |taken: &[Taken]| taken.iter().map(|taken| taken.sequence).collect::<Vec<_>>();
    assert_eq!(sequences(&first), sequences(&again));
    assert_eq!(again[0].entry.visible_at, START + 31 * SECOND);
    // Once one of them is deleted it is another receive.
    queue.apply_delete(first[0].sequence, START + SECOND);
    assert_eq!(queue.receive(START + SECOND, &want, &mut no_choice).taken, []);
}

#[test]
fn a_checkpoint_has_what_changed_since_the_last_one_and_restores_it() {
    for fifo in [false, true] {
        let mut queue = Queue::new(settings(fifo));
        let group = fifo.then_some("g");
        for _ in 0..10 {
            queue.send_at(START, 0, group);
        }
        let taken = queue.receive_at(START, 3);
        queue.apply_delete(taken[0].0, START);
        let first = queue.take_delta();
        assert_eq!((first.upserts.len(), first.removed.len()), (9, 0), "what came and went is not written");
        assert!(first.upserts.iter().all(|upsert| upsert.content.is_some()));
        assert!(queue.is_clean());
        queue.apply_delete(taken[1].0, START);
        queue.apply_change(taken[2].0, taken[2].1, START + 7 * SECOND, START);
        let second = queue.take_delta();
        assert_eq!(second.removed, [(taken[1].0, Some(Number(taken[1].0.0 + 100)))]);
        assert_eq!(second.upserts.len(), 1);
        assert_eq!(second.upserts[0].content, None);

        let mut restored = Queue::new(settings(fifo));
        for upsert in first.upserts.iter().filter(|upsert| upsert.sequence.0 > 3).chain(&second.upserts) {
            restored.restore(upsert.sequence, ChangesState::decode(&upsert.state).expect("a state"), START);
        }
        restored.next = second.next;
        assert_eq!(restored.counts(), queue.counts());
        for now in [START + SECOND, START + 7 * SECOND] {
            assert_eq!(restored.received_at(now, 4), queue.received_at(now, 4));
        }
        assert_eq!(restored.next, queue.next);
        assert!(restored.take_delta().removed.is_empty());
    }
}

#[derive(Clone, Debug)]
enum Step {
    Send { delay_ms: u64, group: u8 },
    Receive { count: usize, visibility_ms: u64 },
    Delete { which: usize },
    Change { which: usize, visibility_ms: u64 },
    Redrive { which: usize, is_lost: bool },
    Purge,
    Pass { ms: u64 },
    Checkpoint,
}

fn step() -> impl Strategy<Value = Step> {
    let times = prop_oneof![Just(0), 1..50_u64, 1..5_000_u64];
    prop_oneof![
        6 => (prop_oneof![3 => Just(0), 1 => 1..2_000_u64], 0..4_u8)
            .prop_map(|(delay_ms, group)| Step::Send { delay_ms, group }),
        6 => (1..12_usize, times.clone()).prop_map(|(count, visibility_ms)| Step::Receive { count, visibility_ms }),
        4 => (0..1_000_usize).prop_map(|which| Step::Delete { which }),
        3 => (0..1_000_usize, times.clone())
            .prop_map(|(which, visibility_ms)| Step::Change { which, visibility_ms }),
        1 => (0..1_000_usize, any::<bool>()).prop_map(|(which, is_lost)| Step::Redrive { which, is_lost }),
        4 => times.prop_map(|ms| Step::Pass { ms }),
        1 => Just(Step::Checkpoint),
        1 => Just(Step::Purge),
    ]
}

/// Runs the steps on a queue and on the model, which have to agree after each.
fn agrees(fifo: bool, steps: Vec<Step>) -> Result<(), TestCaseError> {
    let settings = Settings { retention_s: 10, ..settings(fifo) };
    let (mut queue, mut model) = (Queue::new(settings), Model::new(fifo, 10 * SECOND));
    let (mut now, mut token) = (START, 0);
    let mut receipts: Vec<(Sequence, Token)> = Vec::new();
    for step in steps {
        match step {
            Step::Send { delay_ms, group } => {
                let group = fifo.then(|| group.to_string());
                let sequence = queue.send_at(now, delay_ms, group.as_deref());
                model.send(sequence, now, now + delay_ms, group);
            }
            Step::Receive { count, visibility_ms } => {
                let want = Want { count, visibility_ms, attempt: None, may_redrive: true };
                let received = queue.receive(now, &want, &mut |bound| {
                    token += 1;
                    token % bound
                });
                let taken = received.taken.iter().map(|taken| (taken.sequence, Token(taken.entry.token)));
                let taken: Vec<_> = taken.collect();
                prop_assert_eq!(&model.receive(now, count, visibility_ms, &taken), &taken);
                receipts.extend(taken);
            }
            Step::Delete { which } if !receipts.is_empty() => {
                let (sequence, token) = receipts[which % receipts.len()];
                let outcome = queue.check_delete(sequence, token, now);
                prop_assert_eq!(outcome, model.check_delete(sequence, token, now));
                if outcome.is_ok() {
                    queue.apply_delete(sequence, now);
                    model.delete(sequence);
                }
            }
            Step::Change { which, visibility_ms } if !receipts.is_empty() => {
                let (sequence, token) = receipts[which % receipts.len()];
                let outcome = queue.check_change(sequence, token, visibility_ms, now);
                prop_assert_eq!(outcome, model.check_change(sequence, token, now));
                if outcome.is_ok() {
                    queue.apply_change(sequence, token, now + visibility_ms, now);
                    model.change(sequence, now + visibility_ms);
                }
            }
            Step::Redrive { which, is_lost } => {
                queue.advance(now);
                let mut all = queue.peek(Sequence(0), 1_000);
                all.retain(|(taken, _)| taken.entry.visible_at <= now);
                if let Some((taken, _)) = all.get(which % all.len().max(1)) {
                    queue.begin_move(taken.sequence, now);
                    if is_lost {
                        queue.abort_move(taken.sequence, now);
                    } else {
                        prop_assert!(queue.finish_move(taken.sequence, now).is_some());
                        model.delete(taken.sequence);
                    }
                }
            }
            Step::Purge => {
                let upto = Sequence(queue.last().0.saturating_sub(2));
                queue.apply_purge(upto, now);
                model.purge(upto);
            }
            Step::Pass { ms } => now += ms,
            Step::Checkpoint => drop(queue.take_delta()),
            Step::Delete { .. } | Step::Change { .. } => {}
        }
        queue.advance(now);
        prop_assert_eq!(queue.counts(), model.counts(now));
        prop_assert_eq!(queue.oldest_sent_at(), model.oldest_sent_at());
    }
    Ok(())
}

proptest! {
    #[test]
    fn a_standard_queue_is_what_a_list_that_is_searched_would_be(steps in prop::collection::vec(step(), 1..120)) {
        agrees(false, steps)?;
    }

    #[test]
    fn a_fifo_queue_is_what_a_list_that_is_searched_would_be(steps in prop::collection::vec(step(), 1..120)) {
        agrees(true, steps)?;
    }
}
