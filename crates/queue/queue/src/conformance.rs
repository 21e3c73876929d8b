//! The tests of standard queues, and of FIFO queues, that every [`QueueStore`] passes, whatever is behind it.
//!
//! A store's own tests call [`check`] on a store that may hold anything but the queues of the account that they name.
//! What only one store promises (what survives a crash, what several front ends see) it tests itself.

mod fifo;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use tailwater_env::Env;

use crate::contract::QueueStore;
use crate::ids::{Receipt, Sequence};
use crate::queue::{Counts, ReceiptError};
use crate::request::{Message, QueueError, Receive, Send};
use crate::settings::{Fifo, MoveStatus, MoveTask, OrderHint, QueueRecord, Redrive, Settings};
use crate::view::QueueView;

/// A store under test.
struct Suite<'a> {
    env: &'a Env,
    store: &'a dyn QueueStore,
    account: &'a str,
}

/// Runs all tests, one after the other.
///
/// # Panics
/// If the store is not what the contract says.
pub async fn check(env: &Env, store: &dyn QueueStore, account: &str) {
    let suite = Suite { env, store, account };
    suite.a_queue_is_found_listed_changed_and_deleted().await;
    suite.messages_come_in_order_and_with_what_was_sent().await;
    suite.what_was_received_is_invisible_until_its_timeout_is_over().await;
    suite.what_was_deleted_does_not_come_back_whichever_receipt_deleted_it().await;
    suite.visibility_can_be_changed_again_and_again_with_one_receipt().await;
    suite.what_was_not_handed_out_is_visible_again_and_was_not_received("given", Settings::default()).await;
    suite.a_delayed_message_comes_after_its_delay().await;
    suite.a_receive_waits_for_a_send_or_for_its_own_time().await;
    suite.a_batch_is_in_order_and_among_the_oldest().await;
    suite.without_order_everything_is_received_all_the_same().await;
    suite.receivers_at_the_same_time_share_the_messages().await;
    suite.dead_letters_go_to_their_queue_and_come_back().await;
    suite.a_purged_queue_is_empty_and_goes_on().await;
    suite.peeking_receives_nothing().await;
    suite.what_is_too_old_is_gone("retention", Settings::default()).await;
}

/// Runs all tests of FIFO queues, one after the other.
///
/// # Panics
/// If the store is not what the contract says.
pub async fn check_fifo(env: &Env, store: &dyn QueueStore, account: &str) {
    let suite = Suite { env, store, account };
    suite.each_group_is_in_order_and_nothing_passes_what_is_invisible().await;
    suite.a_receipt_of_an_earlier_receive_is_refused_by_a_fifo_queue().await;
    suite.the_first_of_a_group_can_be_visible_earlier_and_is_first_again().await;
    suite.a_deduplication_id_is_one_message_whoever_sends_it_when().await;
    suite.receivers_at_the_same_time_keep_the_order_of_each_group().await;
    suite.an_attempt_has_the_same_messages_again().await;
    let fifo = Settings { fifo: Some(Fifo::default()), ..Settings::default() };
    suite.what_was_not_handed_out_is_visible_again_and_was_not_received("given.fifo", fifo.clone()).await;
    suite.dead_letters_of_a_group_stay_in_order_and_come_back().await;
    suite.a_purged_fifo_queue_is_empty_and_goes_on().await;
    suite.a_group_waits_for_what_is_sent_to_it().await;
    suite.what_is_too_old_is_gone("retention.fifo", fifo).await;
}

impl Suite<'_> {
    async fn create(&self, name: &str, mut settings: Settings) -> Arc<QueueView> {
        if settings.visibility_s == Settings::default().visibility_s {
            settings.visibility_s = 600; // nothing lapses because this machine is busy
        }
        let record = QueueRecord {
            attributes: [("Policy".to_owned(), "{}".to_owned())].into(),
            tags: [("tag".to_owned(), "value".to_owned())].into(),
            ..QueueRecord::new(self.account, name, settings)
        };
        self.store.create(record).await.expect("created")
    }

    async fn send(&self, queue: &QueueView, bodies: &[String]) {
        for some in bodies.chunks(10) {
            let sends =
                some.iter().map(|body| Send { content: Bytes::from(body.clone()), ..Send::default() });
            let sent = self.store.send(queue, sends.collect()).await.expect("sent");
            assert_eq!(sent.len(), some.len());
        }
    }

    async fn receive(&self, queue: &QueueView, count: usize) -> Vec<Message> {
        self.receive_for(queue, count, None).await
    }

    async fn receive_for(&self, queue: &QueueView, count: usize, visibility_ms: Option<u64>) -> Vec<Message> {
        let visibility = visibility_ms.map(Duration::from_millis);
        self.store
            .receive(queue, Receive { count, visibility, wait: None, attempt: None })
            .await
            .expect("received")
    }

    /// Receives one that is there, or will be.
    async fn await_one(&self, queue: &QueueView) -> Message {
        let wait = Some(Duration::from_secs(60));
        let receive = Receive { count: 1, wait, ..Receive::default() };
        self.store.receive(queue, receive).await.expect("received").pop().expect("it came")
    }

    async fn delete(&self, queue: &QueueView, messages: &[Message]) {
        let receipts = messages.iter().map(|message| message.receipt).collect();
        let outcomes = self.store.delete(queue, receipts).await.expect("deleted");
        assert!(outcomes.iter().all(Result::is_ok) && outcomes.len() == messages.len(), "{outcomes:?}");
    }

    async fn drain(&self, queue: &QueueView) -> Vec<String> {
        let mut bodies = Vec::new();
        loop {
            let messages = self.receive(queue, 10).await;
            if messages.is_empty() {
                return bodies;
            }
            bodies.extend(messages.iter().map(body));
            self.delete(queue, &messages).await;
        }
    }

    async fn counts(&self, queue: &QueueView) -> Counts {
        self.store.figures(queue).await.expect("there").counts
    }

    async fn change(&self, queue: &QueueView, receipt: Receipt, ms: u64) -> Result<(), ReceiptError> {
        let changes = vec![(receipt, Duration::from_millis(ms))];
        self.store.change_visibility(queue, changes).await.expect("answered")[0]
    }

    async fn a_queue_is_found_listed_changed_and_deleted(&self) {
        let Self { store, account, .. } = self;
        assert!(store.find(account, "a").await.expect("answered").is_none());
        for name in ["a", "b-1", "b-2", "c"] {
            self.create(name, Settings::default()).await;
        }
        let queue = store.find(account, "b-1").await.expect("answered").expect("created");
        assert_eq!(queue.record().tags["tag"], "value");
        assert!(queue.record().created_at > 0);
        let again = store.create(QueueRecord::clone(&queue.record())).await;
        assert!(matches!(again, Err(QueueError::Exists(known)) if known.id == queue.id));
        let list = async |prefix: &str, after, most| -> Vec<String> {
            let listed = store.list(account, prefix, after, most).await.expect("answered");
            listed.iter().map(|view| view.name.clone()).collect()
        };
        assert_eq!(list("", None, 9).await, ["a", "b-1", "b-2", "c"]);
        assert_eq!(list("b", Some("b-1"), 9).await, ["b-2"]);
        assert_eq!(list("b", None, 1).await, ["b-1"]);
        let change = |record: &mut QueueRecord| record.settings.visibility_s = 77;
        store.update(&queue, Box::new(change)).await.expect("changed");
        let queue = store.find(account, "b-1").await.expect("answered").expect("it is there");
        assert_eq!(queue.record().settings.visibility_s, 77);
        self.send(&queue, &bodies(0..3)).await;
        store.delete_queue(&queue).await.expect("deleted");
        assert!(store.find(account, "b-1").await.expect("answered").is_none());
        let gone = store.send(&queue, vec![Send::default()]).await;
        assert!(matches!(gone, Err(QueueError::NoQueue)), "{gone:?}");
        assert!(matches!(store.delete_queue(&queue).await, Err(QueueError::NoQueue)));
        let anew = store.create(QueueRecord::clone(&queue.record())).await;
        assert!(matches!(anew, Err(QueueError::DeletedRecently)), "{anew:?}");
        let all = store.all().await.expect("answered");
        assert_eq!(all.iter().filter(|view| view.account == *account).count(), 3);
    }

    async fn messages_come_in_order_and_with_what_was_sent(&self) {
        let queue = self.create("order", Settings::default()).await;
        let all = bodies(0..35);
        self.send(&queue, &all).await;
        assert_eq!(self.counts(&queue).await, Counts { visible: 35, in_flight: 0, delayed: 0 });
        let first = self.receive(&queue, 1).await.pop().expect("one");
        assert_eq!((body(&first), first.receives), (all[0].clone(), 1));
        assert!(first.sent_at > 0 && first.first_received_at >= first.sent_at, "{first:?}");
        assert!(first.visible_at >= first.first_received_at + 600_000);
        assert_eq!(self.counts(&queue).await, Counts { visible: 34, in_flight: 1, delayed: 0 });
        assert_eq!(self.drain(&queue).await, all[1..]);
        self.delete(&queue, &[first]).await;
        assert_eq!(self.counts(&queue).await, Counts::default());
        let empty = Send::default();
        let large = Send { content: Bytes::from(vec![7; 1 << 20]), ..Send::default() };
        self.store.send(&queue, vec![empty.clone(), large.clone()]).await.expect("sent");
        let received = self.receive(&queue, 10).await;
        assert!(received[0].content == empty.content && received[1].content == large.content);
    }

    async fn what_was_received_is_invisible_until_its_timeout_is_over(&self) {
        let queue = self.create("timeout", Settings { visibility_s: 1, ..Settings::default() }).await;
        self.send(&queue, &bodies(0..1)).await;
        let first = self.await_one(&queue).await;
        let second = self.await_one(&queue).await;
        assert_eq!((body(&second), second.receives), (body(&first), 2));
        assert_eq!(second.first_received_at, first.first_received_at);
        assert!(second.visible_at >= first.visible_at + 1_000, "not before its timeout");
        assert_ne!(second.receipt, first.receipt);
    }

    async fn what_was_deleted_does_not_come_back_whichever_receipt_deleted_it(&self) {
        let queue = self.create("older", Settings { visibility_s: 0, ..Settings::default() }).await;
        self.send(&queue, &bodies(0..2)).await;
        let first = self.receive(&queue, 1).await;
        let later = self.receive_for(&queue, 2, Some(300)).await;
        assert_eq!(later.len(), 2);
        self.delete(&queue, &first).await;
        // Its second receive is in flight, but it is gone.
        let rest: Vec<Message> = self.await_all(&queue, 1).await;
        assert_ne!(body(&rest[0]), body(&first[0]));
        self.delete(&queue, &rest).await;
        self.delete(&queue, &rest).await;
        self.delete(&queue, &later).await;
        assert_eq!(self.drain(&queue).await, Vec::<String>::new());
    }

    /// Receives until so many came.
    async fn await_all(&self, queue: &QueueView, count: usize) -> Vec<Message> {
        let mut messages = Vec::new();
        while messages.len() < count {
            messages.push(self.await_one(queue).await);
        }
        messages
    }

    async fn visibility_can_be_changed_again_and_again_with_one_receipt(&self) {
        let queue = self.create("visibility", Settings::default()).await;
        self.send(&queue, &bodies(0..1)).await;
        let first = self.receive(&queue, 1).await.pop().expect("one");
        for ms in [30_000, 40_000, 50_000] {
            assert_eq!(self.change(&queue, first.receipt, ms).await, Ok(()));
        }
        assert_eq!(self.change(&queue, first.receipt, 12 * 3_600_000 + 1).await, Err(ReceiptError::TooLong));
        assert_eq!(self.receive(&queue, 1).await, []);
        assert_eq!(self.counts(&queue).await, Counts { visible: 0, in_flight: 1, delayed: 0 });
        assert_eq!(self.change(&queue, first.receipt, 0).await, Ok(()));
        // It is its receiver's that it was last, until somebody else receives it.
        assert_eq!(self.change(&queue, first.receipt, 60_000).await, Ok(()));
        assert_eq!(self.receive(&queue, 1).await, []);
        assert_eq!(self.change(&queue, first.receipt, 0).await, Ok(()));
        let second = self.receive(&queue, 1).await.pop().expect("it is visible at once");
        assert_eq!(self.change(&queue, first.receipt, 1_000).await, Err(ReceiptError::Unavailable));
        assert_eq!(self.change(&queue, second.receipt, 60_000).await, Ok(()));
        self.delete(&queue, &[second]).await;
        assert_eq!(self.counts(&queue).await, Counts::default());
    }

    async fn what_was_not_handed_out_is_visible_again_and_was_not_received(
        &self,
        name: &str,
        settings: Settings,
    ) {
        let dead = self.create(&name.replace("given", "given-dead"), settings.clone()).await;
        let redrive = Some(Redrive { target: dead.name.clone(), receives_max: 2 });
        let queue = self.create(name, Settings { redrive, ..settings }).await;
        let group = || Some("g".to_owned());
        let send = Send { group: group(), deduplication: group(), ..Send::default() };
        self.store.send(&queue, vec![send]).await.expect("sent");
        // More often than would take it to its dead-letter queue, before it was received and after.
        for receives in [1, 2] {
            let mut last = None;
            for _ in 0..4 {
                let before = self.store.figures(&queue).await.expect("there").now;
                let message = self.await_one(&queue).await;
                assert_eq!(message.receives, receives);
                assert!(receives == 2 || message.first_received_at >= before, "it was not received before");
                self.store.give_back(&queue, vec![message.receipt]).await.expect("given back");
                // Twice is once.
                self.store.give_back(&queue, vec![message.receipt]).await.expect("given back");
                last = Some(message);
            }
            let message = self.await_one(&queue).await;
            assert_eq!(message.receives, receives);
            // Somebody else has it now.
            self.store.give_back(&queue, vec![last.expect("four").receipt]).await.expect("answered");
            assert_eq!(self.counts(&queue).await, Counts { visible: 0, in_flight: 1, delayed: 0 });
            assert_eq!(self.change(&queue, message.receipt, 0).await, Ok(()));
        }
        assert_eq!(self.receive(&queue, 1).await, []);
        assert_eq!(self.await_one(&dead).await.receives, 1);
    }

    async fn a_delayed_message_comes_after_its_delay(&self) {
        let queue = self.create("delay", Settings { delay_s: 3_600, ..Settings::default() }).await;
        self.send(&queue, &bodies(0..1)).await;
        assert_eq!(self.counts(&queue).await, Counts { visible: 0, in_flight: 0, delayed: 1 });
        let soon = Send {
            content: Bytes::from_static(b"soon"),
            delay: Some(Duration::from_millis(400)),
            ..Send::default()
        };
        self.store.send(&queue, vec![soon]).await.expect("sent");
        let message = self.await_one(&queue).await;
        assert_eq!(body(&message), "soon");
        assert!(message.first_received_at >= message.sent_at + 400);
    }

    async fn a_receive_waits_for_a_send_or_for_its_own_time(&self) {
        let queue = self.create("wait", Settings::default()).await;
        let began = self.env.now();
        let wait = Some(Duration::from_millis(150));
        let receive = Receive { count: 1, wait, ..Receive::default() };
        assert_eq!(self.store.receive(&queue, receive).await.expect("received"), []);
        assert!(self.env.now().since(began) >= Duration::from_millis(150));
        let waiting = join_all((0..5).map(|_| self.await_one(&queue)));
        let (received, ()) = futures::join!(waiting, async {
            while self.store.figures(&queue).await.expect("there").waiting < 5 {
                self.env.sleep(Duration::from_millis(1)).await;
            }
            self.send(&queue, &bodies(0..5)).await;
        });
        let received: BTreeSet<String> = received.iter().map(body).collect();
        assert_eq!(received, bodies(0..5).into_iter().collect());
    }

    async fn a_batch_is_in_order_and_among_the_oldest(&self) {
        let order_hint = OrderHint::new(4).expect("a hint");
        let queue = self.create("hint", Settings { order_hint, ..Settings::default() }).await;
        self.send(&queue, &bodies(100..130)).await;
        let received: Vec<String> = self.receive(&queue, 3).await.iter().map(body).collect();
        assert_eq!(received.len(), 3);
        assert!(
            received.is_sorted() && received[2] <= bodies(105..106)[0],
            "of the oldest six: {received:?}"
        );
        assert_eq!(self.drain(&queue).await.len(), 27);
    }

    async fn without_order_everything_is_received_all_the_same(&self) {
        for (name, order_hint) in [("auto", OrderHint::Auto), ("infinity", OrderHint::Infinity)] {
            let queue = self.create(name, Settings { order_hint, ..Settings::default() }).await;
            self.send(&queue, &bodies(100..140)).await;
            let mut received = Vec::new();
            while received.len() < 40 {
                let message = self.await_one(&queue).await;
                received.push(body(&message));
                self.delete(&queue, &[message]).await;
            }
            if order_hint == OrderHint::Auto {
                assert_eq!(received, bodies(100..140), "alone it keeps the order");
            }
            received.sort_unstable();
            assert_eq!(received, bodies(100..140));
        }
    }

    async fn receivers_at_the_same_time_share_the_messages(&self) {
        let queue = self.create("shared", Settings::default()).await;
        self.send(&queue, &bodies(0..60)).await;
        let drained = join_all((0..4).map(|_| self.drain(&queue))).await;
        let mut all: Vec<String> = drained.into_iter().flatten().collect();
        // Whoever was the last may have looked while the others had the rest.
        all.extend(self.drain(&queue).await);
        all.sort_unstable();
        let mut expected = bodies(0..60);
        expected.sort_unstable();
        assert_eq!(all, expected, "each once: none is lost, none is there twice");
    }

    async fn dead_letters_go_to_their_queue_and_come_back(&self) {
        let redrive = Some(Redrive { target: "dead".to_owned(), receives_max: 2 });
        let settings = Settings { redrive, visibility_s: 0, ..Settings::default() };
        let work = self.create("work", settings).await;
        let dead = self.create("dead", Settings { visibility_s: 0, ..Settings::default() }).await;
        self.send(&work, &bodies(0..20)).await;
        let mut ids = BTreeSet::new();
        while self.counts(&dead).await.visible < 20 {
            ids.extend(self.receive(&work, 10).await.iter().map(|message| message.number));
        }
        assert_eq!(self.counts(&work).await, Counts::default());
        let received = self.receive(&dead, 10).await;
        assert!(
            received.iter().all(|one| one.source.as_deref() == Some("work") && ids.contains(&one.number))
        );
        let task = MoveTask::new(self.account, "dead");
        let id = self.store.start_move(task).await.expect("started");
        let task = loop {
            let task = self.store.list_moves(self.account, "dead").await.expect("listed").remove(0);
            if task.status != MoveStatus::Running {
                break task;
            }
            self.env.sleep(Duration::from_millis(2)).await;
        };
        assert_eq!((task.id, task.status, task.moved), (id, MoveStatus::Completed, 20));
        assert!(matches!(self.store.cancel_move(self.account, id).await, Err(QueueError::NoTask)));
        let back: BTreeSet<String> = self.drain(&work).await.into_iter().collect();
        assert_eq!(back, bodies(0..20).into_iter().collect());
        assert_eq!(self.counts(&dead).await.visible, 0);
    }

    async fn a_purged_queue_is_empty_and_goes_on(&self) {
        let queue = self.create("purge", Settings::default()).await;
        self.send(&queue, &bodies(0..25)).await;
        let received = self.receive(&queue, 5).await;
        self.store.purge(&queue).await.expect("purged");
        assert!(matches!(self.store.purge(&queue).await, Err(QueueError::PurgedRecently)));
        self.delete(&queue, &received).await;
        self.send(&queue, &bodies(25..30)).await;
        assert_eq!(self.drain(&queue).await, bodies(25..30));
        assert_eq!(self.counts(&queue).await, Counts::default());
    }

    async fn peeking_receives_nothing(&self) {
        let queue = self.create("peek", Settings::default()).await;
        self.send(&queue, &bodies(0..30)).await;
        self.receive(&queue, 3).await;
        let mut peeked: Vec<String> = Vec::new();
        let mut from = Sequence(0);
        loop {
            let messages = self.store.peek(&queue, from, 7).await.expect("peeked");
            let Some(last) = messages.last() else { break };
            from = Sequence(last.receipt.sequence.0 + 1);
            assert!(messages.iter().all(|one| one.receives <= 1));
            peeked.extend(messages.iter().map(body));
        }
        assert_eq!(peeked, bodies(0..30));
        assert_eq!(self.drain(&queue).await, bodies(3..30));
    }

    async fn what_is_too_old_is_gone(&self, name: &str, settings: Settings) {
        let queue = self.create(name, Settings { retention_s: 1, ..settings }).await;
        let sends = bodies(0..5).into_iter().map(|body| Send {
            content: Bytes::from(body.clone()),
            group: Some("group".to_owned()),
            deduplication: Some(body),
            delay: None,
        });
        self.store.send(&queue, sends.collect()).await.expect("sent");
        let sent = self.env.wall_ms();
        while self.env.wall_ms() <= sent + 1_500 {
            self.env.sleep(Duration::from_millis(50)).await;
        }
        // Whether or not somebody looks for it.
        assert_eq!(self.store.peek(&queue, Sequence(0), 10).await.expect("peeked"), []);
        assert_eq!(self.counts(&queue).await, Counts::default());
        assert_eq!(self.drain(&queue).await, Vec::<String>::new());
        assert_eq!(self.counts(&queue).await, Counts::default());
    }
}

fn body(message: &Message) -> String {
    String::from_utf8(message.content.to_vec()).expect("text")
}

fn bodies(range: std::ops::Range<usize>) -> Vec<String> {
    range.map(|number| format!("message {number:03}")).collect()
}
