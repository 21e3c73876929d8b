//! The embedded store on a real disk: what was answered survives, whether it is in the journal or in the tree.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use redb::{ReadableDatabase, ReadableTableMetadata};
use tailwater_env::Env;
use tailwater_journal::{Journal, JournalConfig, JournalOpenError};
use tailwater_queue::{
    Fifo, Message, MoveStatus, MoveTask, QueueError, QueueRecord, QueueView, Queues, QueuesConfig, Receive,
    Recovery, Redrive, Send, Sequence, Settings, TAG, TreeError,
};
use tempfile::TempDir;

struct Store {
    env: Env,
    queues: Queues,
    journal: Journal,
    dir: PathBuf,
}

impl Store {
    /// One in a new directory.
    async fn open_anew() -> (TempDir, Self) {
        let dir = tempfile::tempdir().expect("a directory");
        let store = Self::open(dir.path()).await;
        (dir, store)
    }

    async fn open(dir: &Path) -> Self {
        Self::open_with(dir, QueuesConfig::default()).await
    }

    async fn open_with(dir: &Path, config: QueuesConfig) -> Self {
        let env = Env::real();
        loop {
            let mut recovery = match Recovery::begin(&env, &dir.join("queues")) {
                // The threads of the one before end by themselves.
                Err(TreeError::InUse { .. }) => {
                    env.sleep(Duration::from_millis(2)).await;
                    continue;
                }
                recovery => recovery.expect("a tree"),
            };
            let journal = JournalConfig {
                file_bytes: 4 << 20,
                reserve_bytes: 64 << 10,
                record_bytes_max: 3 << 20,
                ..JournalConfig::default()
            };
            let opened = Journal::open(&env, &dir.join("journal"), journal, &mut |tag, position, bytes| {
                assert_eq!(tag, TAG);
                recovery.replay(position, bytes)
            });
            match opened {
                Err(JournalOpenError::InUse { .. }) => env.sleep(Duration::from_millis(2)).await,
                opened => {
                    let journal = opened.expect("a journal");
                    let queues = recovery.finish(&env, journal.clone(), config);
                    return Self { env, queues, journal, dir: dir.to_owned() };
                }
            }
        }
    }

    /// As in a crash of the process, and a start after it.
    async fn crash(self) -> Self {
        let dir = self.dir.clone();
        drop(self);
        Self::open(&dir).await
    }

    /// Starts again until all that was purged is swept out of the tree.
    async fn swept(self) -> Self {
        let path = self.dir.join("queues/tree");
        let mut store = self;
        loop {
            let (env, dir) = (store.env.clone(), store.dir.clone());
            store.close().await;
            // Its threads end by themselves.
            while let Err(TreeError::InUse { .. }) = Recovery::begin(&env, &dir.join("queues")) {
                env.sleep(Duration::from_millis(2)).await;
            }
            let graves = {
                let tree = redb::Database::open(&path).expect("nobody has it open");
                let graves = redb::TableDefinition::<u64, u64>::new("graves");
                let graves = tree.begin_read().expect("read").open_table(graves).expect("there is one");
                graves.len().expect("read")
            };
            store = Self::open(&dir).await;
            if graves == 0 {
                return store;
            }
        }
    }

    async fn close(self) {
        self.queues.close().await;
        self.journal.close().await.expect("closed");
    }

    async fn create(&self, name: &str, settings: Settings) -> Arc<QueueView> {
        let record = QueueRecord {
            attributes: [("Policy".to_owned(), "{}".to_owned())].into(),
            tags: [("tag".to_owned(), "value".to_owned())].into(),
            ..QueueRecord::new("account", name, settings)
        };
        self.queues.create(record).await.expect("created")
    }

    fn find(&self, name: &str) -> Arc<QueueView> {
        self.queues.find("account", name).expect("it is there")
    }

    async fn send(&self, queue: &QueueView, bodies: impl IntoIterator<Item = String>) {
        let sends = bodies.into_iter().map(|body| Send { content: Bytes::from(body), ..Send::default() });
        self.queues.send(queue, sends.collect()).await.expect("sent");
    }

    async fn receive(&self, queue: &QueueView, count: usize) -> Vec<Message> {
        let receive = Receive { count, ..Receive::default() };
        self.queues.receive(queue, receive).await.expect("received")
    }

    async fn delete(&self, queue: &QueueView, messages: &[Message]) {
        let receipts = messages.iter().map(|message| message.receipt).collect();
        for outcome in self.queues.delete(queue, receipts).await.expect("deleted") {
            outcome.expect("deleted");
        }
    }

    /// Receives and deletes everything.
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
}

fn body(message: &Message) -> String {
    String::from_utf8(message.content.to_vec()).expect("text")
}

fn bodies(range: std::ops::Range<usize>) -> Vec<String> {
    range.map(|number| format!("message {number}")).collect()
}

fn fifo() -> Settings {
    Settings { fifo: Some(Fifo::default()), ..Settings::default() }
}

#[tokio::test]
async fn what_was_answered_is_there_after_a_crash_and_what_was_deleted_is_not() {
    let (dir, mut store) = Store::open_anew().await;
    store.create("q", Settings { visibility_s: 0, ..Settings::default() }).await;
    let mut kept = BTreeSet::new();
    for round in 0..6_usize {
        let queue = store.find("q");
        for part in bodies(round * 50..round * 50 + 50).chunks(10) {
            store.send(&queue, part.to_vec()).await;
        }
        kept.extend(bodies(round * 50..round * 50 + 50));
        if round % 2 == 1 {
            store.queues.checkpoint().await;
        }
        // Some of the oldest go, from the tree as well as from the journal.
        for _ in 0..3 {
            let messages = store.receive(&queue, 7).await;
            store.delete(&queue, &messages).await;
            for message in &messages {
                assert!(kept.remove(&body(message)), "{} came back", body(message));
            }
        }
        if round == 3 {
            store.queues.checkpoint().await;
        }
        store = store.crash().await;
        let figures = store.queues.figures(&store.find("q")).await.expect("there");
        assert_eq!(figures.counts.visible, kept.len() as u64);
    }
    let queue = store.find("q");
    assert_eq!(queue.record().tags["tag"], "value");
    assert_eq!(store.drain(&queue).await.into_iter().collect::<BTreeSet<_>>(), kept);
    store.close().await;
    let store = Store::open(dir.path()).await;
    assert_eq!(store.drain(&store.find("q")).await, Vec::<String>::new());
}

#[tokio::test]
async fn contents_that_are_in_the_tree_only_are_read_from_there() {
    let (dir, store) = Store::open_anew().await;
    let queue = store.create("q", Settings::default()).await;
    let all = bodies(0..100);
    for part in all.chunks(10) {
        store.send(&queue, part.to_vec()).await;
    }
    store.close().await;
    let store = Store::open(dir.path()).await;
    let queue = store.find("q");
    let peeked = store.queues.peek(&queue, Sequence(5), 3).await.expect("peeked");
    assert_eq!(peeked.iter().map(body).collect::<Vec<_>>(), bodies(4..7));
    assert_eq!(store.drain(&queue).await, all);
}

#[tokio::test]
async fn a_fifo_queue_takes_nothing_twice_whatever_comes_between() {
    let (_dir, mut store) = Store::open_anew().await;
    store.create("q.fifo", fifo()).await;
    let send = |id: &str| Send {
        content: Bytes::from(id.to_owned()),
        group: Some("g".to_owned()),
        deduplication: Some(id.to_owned()),
        ..Send::default()
    };
    let queue = store.find("q.fifo");
    // Both are on their way at the same time.
    let (first, again) = tokio::join!(
        store.queues.send(&queue, vec![send("a"), send("b")]),
        store.queues.send(&queue, vec![send("b"), send("c")])
    );
    let (first, again) = (first.expect("sent"), again.expect("sent"));
    assert_eq!(first[1], again[0]);
    for round in 0..3 {
        if round == 1 {
            store.queues.checkpoint().await;
        }
        store = store.crash().await;
        let queue = store.find("q.fifo");
        let sent = store.queues.send(&queue, vec![send("a"), send("c")]).await.expect("sent");
        assert_eq!(sent, [first[0], again[1]]);
    }
    let queue = store.find("q.fifo");
    assert_eq!(store.drain(&queue).await, ["a", "b", "c"]);
    // Deleted or not.
    store.queues.send(&queue, vec![send("a")]).await.expect("sent");
    assert_eq!(store.drain(&queue).await, Vec::<String>::new());
}

#[tokio::test]
async fn a_receive_waits_for_a_send_for_a_timeout_or_for_its_own_time() {
    let (_dir, store) = Store::open_anew().await;
    let queue = store.create("q", Settings::default()).await;
    let wait = |ms, visibility_ms| Receive {
        count: 1,
        wait: Some(Duration::from_millis(ms)),
        visibility: Some(Duration::from_millis(visibility_ms)),
        attempt: None,
    };
    let began = store.env.now();
    assert_eq!(store.queues.receive(&queue, wait(60, 0)).await.expect("received"), []);
    assert!(store.env.now().since(began) >= Duration::from_millis(60));

    let (received, ()) = tokio::join!(store.queues.receive(&queue, wait(600_000, 80)), async {
        while store.queues.figures(&queue).await.expect("there").waiting == 0 {
            tokio::task::yield_now().await;
        }
        store.send(&queue, bodies(0..1)).await;
    });
    assert_eq!(received.expect("received").len(), 1);
    let again = store.queues.receive(&queue, wait(600_000, 0)).await.expect("received");
    assert_eq!((body(&again[0]), again[0].receives), ("message 0".to_owned(), 2));
    let figures = store.queues.figures(&queue).await.expect("there");
    assert_eq!((figures.happened.timeouts, figures.waiting), (1, 0));
}

#[tokio::test]
async fn whoever_waits_first_is_served_first_and_who_went_away_takes_nothing_along() {
    let (_dir, store) = Store::open_anew().await;
    let queue = store.create("q", Settings::default()).await;
    let waiting = |store: &Store| {
        let (queues, queue) = (store.queues.clone(), Arc::clone(&queue));
        let wait = Some(Duration::from_secs(600));
        async move { queues.receive(&queue, Receive { count: 1, wait, ..Receive::default() }).await }
    };
    let mut joined = tokio::task::JoinSet::new();
    for count in 1..=50_usize {
        joined.spawn(waiting(&store));
        while store.queues.figures(&queue).await.expect("there").waiting < count {
            tokio::task::yield_now().await;
        }
    }
    joined.abort_all();
    while let Some(ended) = joined.join_next().await {
        assert!(ended.is_err(), "nothing was sent yet");
    }
    let before = store.queues.figures(&queue).await.expect("there").waiting;
    let (received, ()) = tokio::join!(waiting(&store), async {
        while store.queues.figures(&queue).await.expect("there").waiting <= before {
            tokio::task::yield_now().await;
        }
        store.send(&queue, bodies(0..1)).await;
    });
    assert_eq!(received.expect("received").len(), 1);
}

#[tokio::test]
async fn dead_letters_go_to_their_queue_and_are_brought_back_by_a_task() {
    let (_dir, store) = Store::open_anew().await;
    let redrive = Redrive { target: "dead".to_owned(), receives_max: 2 };
    let settings = Settings { redrive: Some(redrive), visibility_s: 0, ..Settings::default() };
    let queue = store.create("work", settings).await;
    let dead = store.create("dead", Settings { visibility_s: 0, ..Settings::default() }).await;
    for part in bodies(0..100).chunks(10) {
        store.send(&queue, part.to_vec()).await;
    }
    store.queues.checkpoint().await;
    // Each is received twice and never deleted.
    while store.queues.figures(&dead).await.expect("there").counts.visible < 100 {
        store.receive(&queue, 10).await;
    }
    let store = store.crash().await;
    let (queue, dead) = (store.find("work"), store.find("dead"));
    let received = store.receive(&dead, 10).await;
    assert_eq!(received[0].source.as_deref(), Some("work"));
    assert_eq!(store.queues.figures(&queue).await.expect("there").counts.visible, 0);

    let task = MoveTask::new("account", "dead");
    let id = store.queues.start_move(task).await.expect("started");
    let status = async || store.queues.list_moves("account", "dead").await.expect("listed").remove(0);
    while status().await.status == MoveStatus::Running {
        tokio::task::yield_now().await;
    }
    let task = status().await;
    assert_eq!((task.id, task.status, task.moved, task.total), (id, MoveStatus::Completed, 100, 100));
    assert!(matches!(store.queues.cancel_move("account", id).await, Err(QueueError::NoTask)));
    let store = store.crash().await;
    let (queue, dead) = (store.find("work"), store.find("dead"));
    assert_eq!(
        store.queues.list_moves("account", "dead").await.expect("listed")[0].status,
        MoveStatus::Completed
    );
    let back: BTreeSet<String> = store.drain(&queue).await.into_iter().collect();
    assert_eq!(back, bodies(0..100).into_iter().collect());
    assert_eq!(store.drain(&dead).await, Vec::<String>::new());
}

#[tokio::test]
async fn dead_letters_survive_the_deletion_of_the_queue_that_they_come_from() {
    let (_dir, store) = Store::open_anew().await;
    let redrive = Redrive { target: "dead".to_owned(), receives_max: 1 };
    let settings = Settings { redrive: Some(redrive), visibility_s: 0, ..Settings::default() };
    let queue = store.create("work", settings).await;
    let dead = store.create("dead", Settings::default()).await;
    for part in bodies(0..30).chunks(10) {
        store.send(&queue, part.to_vec()).await;
    }
    store.queues.checkpoint().await;
    // The tree has them in the one queue, and no checkpoint comes before that one is gone.
    while store.queues.figures(&dead).await.expect("there").counts.visible < 30 {
        store.receive(&queue, 10).await;
    }
    store.queues.delete_queue(&queue).await.expect("deleted");
    store.queues.checkpoint().await;
    let store = store.swept().await;
    let found: BTreeSet<String> = store.drain(&store.find("dead")).await.into_iter().collect();
    assert_eq!(found, bodies(0..30).into_iter().collect());
}

#[tokio::test]
async fn a_purged_queue_and_a_deleted_one_stay_empty_and_leave_nothing_in_the_tree() {
    let (_dir, mut store) = Store::open_anew().await;
    for name in ["purged", "deleted"] {
        let queue = store.create(name, Settings::default()).await;
        for part in bodies(0..50).chunks(10) {
            store.send(&queue, part.to_vec()).await;
        }
    }
    store.queues.checkpoint().await;
    let (purged, deleted) = (store.find("purged"), store.find("deleted"));
    store.queues.purge(&purged).await.expect("purged");
    assert!(matches!(store.queues.purge(&purged).await, Err(QueueError::PurgedRecently)));
    store.send(&purged, ["after".to_owned()]).await;
    store.queues.delete_queue(&deleted).await.expect("deleted");
    assert!(store.queues.find("account", "deleted").is_none());
    let gone = store.queues.send(&deleted, vec![Send::default()]).await;
    assert!(matches!(gone, Err(QueueError::NoQueue)));
    let record = QueueRecord { name: "deleted".to_owned(), ..QueueRecord::clone(&purged.record()) };
    assert!(matches!(store.queues.create(record).await, Err(QueueError::DeletedRecently)));
    for with_checkpoint in [false, true] {
        if with_checkpoint {
            store.queues.checkpoint().await;
        }
        store = store.crash().await;
        let purged = store.find("purged");
        assert_eq!(store.queues.figures(&purged).await.expect("there").counts.visible, 1);
        assert!(store.queues.find("account", "deleted").is_none());
    }
    assert_eq!(store.drain(&store.find("purged")).await, ["after"]);
}

#[tokio::test]
async fn receipts_are_checked_and_say_what_became_of_their_message() {
    let (_dir, store) = Store::open_anew().await;
    let queue = store.create("q", Settings::default()).await;
    store.send(&queue, bodies(0..2)).await;
    let messages = store.receive(&queue, 2).await;
    let text = store.queues.secret().write(&messages[0].receipt);
    let receipt = store.queues.secret().read(&text).expect("ours");
    assert_eq!(receipt, messages[0].receipt);
    let change = |seconds| vec![(receipt, Duration::from_secs(seconds))];
    let outcome = store.queues.change_visibility(&queue, change(0)).await.expect("answered");
    assert_eq!(outcome, [Ok(())]);
    let outcome = store.queues.change_visibility(&queue, change(1)).await.expect("answered");
    assert_eq!(outcome, [Ok(())]);
    // A start keeps the key.
    let store = store.crash().await;
    assert_eq!(store.queues.secret().read(&text), Ok(receipt));
    let queue = store.find("q");
    store.delete(&queue, &messages).await;
    store.delete(&queue, &messages).await;
    assert_eq!(store.queues.figures(&queue).await.expect("there").counts, Default::default());
}

#[tokio::test]
async fn several_owners_share_journal_and_tree() {
    let dir = tempfile::tempdir().expect("a directory");
    let config = QueuesConfig { owners: 3, checkpoint_bytes: 64 << 10, ..QueuesConfig::default() };
    let mut store = Store::open_with(dir.path(), config.clone()).await;
    for number in 0..9 {
        let record = QueueRecord::new(format!("account {number}"), "q", Settings::default());
        store.queues.create(record).await.expect("created");
    }
    for round in 0..4 {
        for queue in store.queues.all() {
            for number in 0..10 {
                let body = format!("{}/{round}/{number}/{}", queue.account, "x".repeat(2_000));
                store.send(&queue, [body]).await;
            }
            let messages = store.receive(&queue, 5).await;
            store.delete(&queue, &messages).await;
        }
        let dir = store.dir.clone();
        drop(store);
        store = Store::open_with(&dir, config.clone()).await;
        for queue in store.queues.all() {
            let figures = store.queues.figures(&queue).await.expect("there");
            assert_eq!(figures.counts.visible, 5 * (round + 1));
        }
    }
    for queue in store.queues.all() {
        assert!(store.drain(&queue).await.iter().all(|body| body.starts_with(&queue.account)));
    }
}

#[tokio::test]
async fn the_embedded_store_is_what_the_contract_says() {
    let (_dir, store) = Store::open_anew().await;
    tailwater_queue::conformance::check(&store.env, &store.queues, "conformance").await;
    tailwater_queue::conformance::check_fifo(&store.env, &store.queues, "conformance").await;
}

#[tokio::test]
async fn a_receive_that_is_dropped_when_it_is_answered_receives_nothing() {
    let (_dir, store) = Store::open_anew().await;
    let queue = store.create("q", Settings { visibility_s: 3_600, ..Settings::default() }).await;
    store.send(&queue, ["one".to_owned()]).await;
    let receive = |wait_s| {
        let wait = Some(Duration::from_secs(wait_s));
        store.queues.receive(&queue, Receive { count: 1, wait, ..Receive::default() })
    };
    {
        let dropped = receive(0);
        futures::pin_mut!(dropped);
        assert!(futures::poll!(&mut dropped).is_pending());
        // What is asked behind it is answered when it has been.
        let counts = store.queues.figures(&queue).await.expect("there").counts;
        assert_eq!(counts.in_flight, 1);
    }
    let received = receive(60).await.expect("received");
    assert_eq!(received.iter().map(|message| message.receives).collect::<Vec<_>>(), [1]);
    store.close().await;
}
