//! FIFO queues.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;

use super::{Suite, bodies, body};
use crate::ids::Sequence;
use crate::queue::{Counts, ReceiptError};
use crate::request::{Message, Receive, Send, Sent};
use crate::settings::{Fifo, MoveStatus, MoveTask, Redrive, Scope, Settings};
use crate::view::QueueView;

fn settings(visibility_s: u32) -> Settings {
    Settings { fifo: Some(Fifo::default()), visibility_s, ..Settings::default() }
}

/// Its deduplication id is what it says.
fn message(group: &str, body: &str) -> Send {
    Send {
        content: Bytes::from(body.to_owned()),
        delay: None,
        group: Some(group.to_owned()),
        deduplication: Some(body.to_owned()),
    }
}

impl Suite<'_> {
    async fn send_to(&self, queue: &QueueView, group: &str, bodies: &[String]) -> Vec<Sent> {
        let mut sent = Vec::new();
        for some in bodies.chunks(10) {
            let sends = some.iter().map(|body| message(group, body)).collect();
            sent.extend(self.store.send(queue, sends).await.expect("sent"));
        }
        sent
    }

    async fn received(&self, queue: &QueueView, count: usize) -> Vec<String> {
        self.receive(queue, count).await.iter().map(body).collect()
    }

    pub(super) async fn each_group_is_in_order_and_nothing_passes_what_is_invisible(&self) {
        let queue = self.create("hidden.fifo", settings(60)).await;
        let sends = ["a1", "b1", "a2", "b2", "a3", "b3"].map(|body| message(&body[..1], body));
        let sent = self.store.send(&queue, sends.to_vec()).await.expect("sent");
        assert!(sent[0].sequence < sent[2].sequence && sent[2].sequence < sent[4].sequence);
        assert_eq!(self.counts(&queue).await, Counts { visible: 6, in_flight: 0, delayed: 0 });
        let first = self.receive(&queue, 4).await;
        let names: Vec<String> = first.iter().map(body).collect();
        // As many as possible of one group, then the other one.
        let one_first = [["a1", "a2", "a3", "b1"], ["b1", "b2", "b3", "a1"]];
        assert!(one_first.iter().any(|expected| names == *expected), "{names:?}");
        assert_eq!(self.received(&queue, 10).await, Vec::<String>::new());
        assert_eq!(self.counts(&queue).await, Counts { visible: 2, in_flight: 4, delayed: 0 });
        // The second of the group is visible again, but the first is not.
        assert_eq!(self.change(&queue, first[1].receipt, 0).await, Ok(()));
        assert_eq!(self.received(&queue, 10).await, Vec::<String>::new());
        self.delete(&queue, &first[..1]).await;
        assert_eq!(self.received(&queue, 10).await, names[1..2], "and the third is still invisible");
        self.delete(&queue, &first[3..]).await;
        let rest: Vec<String> = self.received(&queue, 10).await;
        let other = &names[3][..1];
        assert_eq!(rest, [format!("{other}2"), format!("{other}3")]);
        let peeked = self.store.peek(&queue, Sequence(0), 10).await.expect("peeked");
        assert_eq!(peeked.len(), 4);
    }

    pub(super) async fn a_receipt_of_an_earlier_receive_is_refused_by_a_fifo_queue(&self) {
        let queue = self.create("stale.fifo", settings(60)).await;
        self.send_to(&queue, "g", &bodies(0..1)).await;
        let old = self.receive_for(&queue, 1, Some(1)).await.pop().expect("one");
        let new = self.await_one(&queue).await;
        assert_eq!((body(&new), new.receives), (body(&old), 2));
        let outcome = self.store.delete(&queue, vec![old.receipt]).await.expect("answered");
        assert_eq!(outcome, [Err(ReceiptError::Expired)]);
        assert_eq!(self.change(&queue, old.receipt, 1_000).await, Err(ReceiptError::Unavailable));
        self.delete(&queue, std::slice::from_ref(&new)).await;
        self.delete(&queue, &[new]).await;
        assert_eq!(self.counts(&queue).await, Counts::default());
    }

    pub(super) async fn the_first_of_a_group_can_be_visible_earlier_and_is_first_again(&self) {
        let queue = self.create("visibility.fifo", settings(60)).await;
        self.send_to(&queue, "g", &bodies(0..12)).await;
        let first = self.receive(&queue, 10).await;
        assert_eq!(first.iter().map(body).collect::<Vec<_>>(), bodies(0..10));
        for message in first[1..].iter().rev().chain(&first[..1]) {
            assert_eq!(self.change(&queue, message.receipt, 0).await, Ok(()));
        }
        assert_eq!(self.change(&queue, first[0].receipt, 1_000).await, Err(ReceiptError::NotInFlight));
        let again = self.receive(&queue, 10).await;
        assert_eq!(again.iter().map(body).collect::<Vec<_>>(), bodies(0..10));
        self.delete(&queue, &again).await;
        assert_eq!(self.drain(&queue).await, bodies(10..12));
        assert_eq!(self.counts(&queue).await, Counts::default());
    }

    pub(super) async fn a_deduplication_id_is_one_message_whoever_sends_it_when(&self) {
        let queue = self.create("once.fifo", settings(60)).await;
        let send = async |group: &str, ids: &[&str]| {
            let sends = ids.iter().map(|id| message(group, id)).collect();
            self.store.send(&queue, sends).await.expect("sent")
        };
        let (first, second) = futures::join!(send("g", &["a", "b", "a"]), send("g", &["b", "c"]));
        assert_eq!((first[0], first[1]), (first[2], second[0]));
        assert_eq!(send("g", &["c", "a"]).await, [second[1], first[0]]);
        // Also for another group, where ids are the queue's.
        assert_eq!(send("h", &["a"]).await, [first[0]]);
        let mut drained = self.drain(&queue).await;
        drained.sort_unstable();
        assert_eq!(drained, ["a", "b", "c"]);
        // Deleted or not.
        assert_eq!(send("g", &["a"]).await, [first[0]]);
        assert_eq!(self.drain(&queue).await, Vec::<String>::new());

        let fifo = Some(Fifo { scope: Scope::Group, ..Fifo::default() });
        let queue = self.create("groups.fifo", Settings { fifo, ..settings(60) }).await;
        for group in ["g", "h", "g"] {
            self.store.send(&queue, vec![message(group, "a")]).await.expect("sent");
        }
        assert_eq!(self.drain(&queue).await, ["a", "a"]);
    }

    pub(super) async fn receivers_at_the_same_time_keep_the_order_of_each_group(&self) {
        let queue = self.create("shared.fifo", settings(60)).await;
        let groups = ["a", "b", "c"];
        for group in groups {
            let bodies: Vec<String> = bodies(0..20).iter().map(|body| format!("{group} {body}")).collect();
            self.send_to(&queue, group, &bodies).await;
        }
        let all = parking_lot::Mutex::new(Vec::new());
        let work = || async {
            let mut empty = 0;
            while empty < 3 {
                let messages = self.receive(&queue, 3).await;
                empty = if messages.is_empty() { empty + 1 } else { 0 };
                all.lock().extend(messages.iter().map(body));
                self.delete(&queue, &messages).await;
            }
        };
        join_all((0..3).map(|_| work())).await;
        let rest = self.drain(&queue).await;
        all.lock().extend(rest);
        let mut by_group: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for body in all.into_inner() {
            let (group, rest) = body.split_once(' ').expect("a group");
            by_group.entry(group.to_owned()).or_default().push(rest.to_owned());
        }
        assert!(by_group.len() == 3 && by_group.values().all(|all| *all == bodies(0..20)), "{by_group:?}");
    }

    pub(super) async fn an_attempt_has_the_same_messages_again(&self) {
        let queue = self.create("attempts.fifo", settings(60)).await;
        self.send_to(&queue, "g", &bodies(0..4)).await;
        let receive = Receive { count: 2, attempt: Some("attempt".to_owned()), ..Receive::default() };
        let receive = async || self.store.receive(&queue, receive.clone()).await.expect("received");
        let (first, again) = (receive().await, receive().await);
        let receipts = |messages: &[Message]| messages.iter().map(|one| one.receipt).collect::<Vec<_>>();
        assert_eq!((first.len(), receipts(&first)), (2, receipts(&again)));
        assert_eq!(again[0].content, first[0].content);
        // Once one of them is deleted it is another receive.
        self.delete(&queue, &first[..1]).await;
        assert_eq!(receive().await, []);
    }

    pub(super) async fn dead_letters_of_a_group_stay_in_order_and_come_back(&self) {
        let redrive = Some(Redrive { target: "dead.fifo".to_owned(), receives_max: 2 });
        let work = self.create("work.fifo", Settings { redrive, ..settings(0) }).await;
        let dead = self.create("dead.fifo", settings(0)).await;
        self.send_to(&work, "g", &bodies(0..12)).await;
        while self.counts(&dead).await.visible < 12 {
            self.receive(&work, 10).await;
        }
        assert_eq!(self.counts(&work).await, Counts::default());
        let received = self.receive(&dead, 10).await;
        assert_eq!(received.iter().map(body).collect::<Vec<_>>(), bodies(0..10));
        assert!(received.iter().all(|one| one.source.as_deref() == Some("work.fifo")));
        let task = MoveTask::new(self.account, "dead.fifo");
        self.store.start_move(task).await.expect("started");
        let task = loop {
            let task = self.store.list_moves(self.account, "dead.fifo").await.expect("listed").remove(0);
            if task.status != MoveStatus::Running {
                break task;
            }
            self.env.sleep(Duration::from_millis(2)).await;
        };
        assert_eq!((task.status, task.moved), (MoveStatus::Completed, 12));
        let mut back = Vec::new();
        while back.len() < 12 {
            let messages = self.receive_for(&work, 10, Some(60_000)).await;
            back.extend(messages.iter().map(body));
            self.delete(&work, &messages).await;
        }
        assert_eq!(back, bodies(0..12));
        assert_eq!(self.counts(&dead).await.visible, 0);
    }

    pub(super) async fn a_purged_fifo_queue_is_empty_and_goes_on(&self) {
        let queue = self.create("purge.fifo", settings(60)).await;
        self.send_to(&queue, "g", &bodies(0..15)).await;
        self.send_to(&queue, "h", &bodies(15..18)).await;
        self.receive(&queue, 5).await;
        self.store.purge(&queue).await.expect("purged");
        assert_eq!(self.counts(&queue).await, Counts::default());
        self.send_to(&queue, "g", &bodies(20..25)).await;
        assert_eq!(self.drain(&queue).await, bodies(20..25));
        assert_eq!(self.counts(&queue).await, Counts::default());
    }

    pub(super) async fn a_group_waits_for_what_is_sent_to_it(&self) {
        let queue = self.create("wait.fifo", settings(60)).await;
        let (received, ()) = futures::join!(self.await_one(&queue), async {
            while self.store.figures(&queue).await.expect("there").waiting < 1 {
                self.env.sleep(Duration::from_millis(1)).await;
            }
            self.send_to(&queue, "g", &bodies(0..2)).await;
        });
        // Its group's next message comes when it is gone.
        assert_eq!(body(&received), bodies(0..1)[0]);
        let (next, ()) =
            futures::join!(self.await_one(&queue), self.delete(&queue, std::slice::from_ref(&received)));
        assert_eq!(body(&next), bodies(1..2)[0]);
    }
}
