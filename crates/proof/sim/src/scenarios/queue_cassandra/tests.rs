use tailwater_queue::shared::rows::{Letter, RowCell, RowKind, RowPartition, Rows};
use tailwater_queue::{Counts, MoveStatus, MoveTask, Number, QueueError, QueueId, Redrive, Sequence};

use super::cluster::SimRows;
use super::*;

/// What real Cassandra is tested for, too: the model is one where it holds.
fn holds<F: Future<Output = ()> + std::marker::Send + 'static>(check: fn(Env, SharedQueues) -> F) {
    for seed in [1, 7, 20] {
        let world = World::new(seed);
        let cluster = Cluster::new(world.outside(), Rng::new(seed, "cluster"), 0);
        let env = world.node("front").env();
        let run = async move {
            let rows = Arc::new(SimRows::new(&cluster, &env, Plant::None));
            let store = SharedQueues::start(&env, rows, SharedConfig::default()).await.expect("started");
            check(env, store).await;
        };
        let node = world.node("tests");
        world.run(node.run("tests", run)).expect("it ends").expect("it does not crash");
    }
}

#[test]
fn standard_queues_over_the_model_are_what_the_contract_says() {
    holds(|env, store| async move { tailwater_queue::conformance::check(&env, &store, "standard").await });
}

#[test]
fn fifo_queues_over_the_model_are_what_the_contract_says() {
    holds(|env, store| async move { tailwater_queue::conformance::check_fifo(&env, &store, "fifo").await });
}

/// Two front ends of one cluster.
fn with_two<F: Future<Output = ()> + std::marker::Send + 'static>(
    check: fn(Env, Arc<SimRows>, [SharedQueues; 2]) -> F,
) {
    let world = World::new(1);
    let cluster = Cluster::new(world.outside(), Rng::new(1, "cluster"), 0);
    let env = world.node("fronts").env();
    let run = async move {
        let rows = Arc::new(SimRows::new(&cluster, &env, Plant::None));
        let start =
            async || SharedQueues::start(&env, rows.clone(), SharedConfig::default()).await.expect("started");
        let both = [start().await, start().await];
        check(env.clone(), rows.clone(), both).await;
    };
    let node = world.node("tests");
    world.run(node.run("tests", run)).expect("it ends").expect("it does not crash");
}

/// A cluster, and nodes for two front ends: the clock of the second one is almost as far ahead as it may be.
fn with_cluster<F: Future<Output = ()> + std::marker::Send + 'static>(
    check: fn(Arc<Cluster>, [Env; 2]) -> F,
) {
    let world = World::new(1);
    let cluster = Cluster::new(world.outside(), Rng::new(1, "cluster"), 0);
    let nodes = ["behind", "ahead"].map(|name| world.node(name));
    nodes[1].skew_wall_ms(900);
    let run = check(cluster, [nodes[0].env(), nodes[1].env()]);
    let node = world.node("tests");
    world.run(node.run("tests", run)).expect("it ends").expect("it does not crash");
}

async fn start(cluster: &Arc<Cluster>, env: &Env, consistency: Consistency) -> SharedQueues {
    let rows = Arc::new(SimRows::new(cluster, env, Plant::None));
    let config = SharedConfig { consistency, ..SharedConfig::default() };
    SharedQueues::start(env, rows, config).await.expect("started")
}

/// A queue whose messages are visible at once again after their first receive, and then dead letters in another one.
async fn work_and_dead(front: &SharedQueues) -> (Arc<QueueView>, Arc<QueueView>) {
    let redrive = Some(Redrive { target: "dead".to_owned(), receives_max: 1 });
    let settings = Settings { redrive, visibility_s: 0, ..Settings::default() };
    let work = front.create(QueueRecord::new("a", "work", settings)).await.expect("created");
    let dead = front.create(QueueRecord::new("a", "dead", Settings::default())).await.expect("created");
    (work, dead)
}

#[test]
fn a_purge_takes_what_was_sent_before_and_nothing_that_is_sent_after_it_however_clocks_differ() {
    with_cluster(|cluster, envs| async move {
        let quorum = Consistency::Quorum;
        let fronts = [start(&cluster, &envs[0], quorum).await, start(&cluster, &envs[1], quorum).await];
        for (number, (purging, sending, fifo)) in
            [(0, 1, false), (1, 0, false), (0, 1, true), (1, 0, true)].into_iter().enumerate()
        {
            let settings = Settings { fifo: fifo.then(Fifo::default), ..Settings::default() };
            let record = QueueRecord::new("a", format!("q-{number}"), settings);
            let queue = fronts[0].create(record).await.expect("created");
            let send = async |content: &'static str| {
                let (group, deduplication) = (fifo.then(|| "g".to_owned()), fifo.then(|| content.to_owned()));
                let content = Bytes::from_static(content.as_bytes());
                let send = Send { content, group, deduplication, ..Send::default() };
                fronts[sending].send(&queue, vec![send]).await.expect("sent");
            };
            send("before").await;
            fronts[purging].purge(&queue).await.expect("purged");
            send("after").await;
            let receive = Receive { count: 10, wait: Some(Duration::from_secs(5)), ..Receive::default() };
            let received = fronts[sending].receive(&queue, receive).await.expect("received");
            let contents: Vec<&[u8]> = received.iter().map(|message| &message.content[..]).collect();
            assert_eq!(contents, [b"after"], "{purging} purges, {sending} sends, FIFO: {fifo}");
        }
    });
}

/// By itself a receive that has waited for long looks again every 400 ms; what the world's clock says is no matter of a
/// busy machine.
#[test]
fn what_frees_a_message_wakes_the_receive_that_waits_at_the_same_front_end() {
    const AT_ONCE: Duration = Duration::from_millis(150);
    with_two(|env, _, [front, _]| async move {
        let fifo = Settings { fifo: Some(Fifo::default()), ..Settings::default() };
        for (name, settings, is_freed) in [
            ("q", Settings::default(), false),
            ("q.fifo", fifo.clone(), false),
            // A message that is in flight keeps the next one of its group until it is deleted.
            ("freed.fifo", fifo, true),
        ] {
            let queue = front.create(QueueRecord::new("a", name, settings)).await.expect("created");
            let send = async |group: u64, id: u64| {
                let (group, deduplication) = (Some(group.to_string()), Some(format!("{group}/{id}")));
                front
                    .send(&queue, vec![Send { group, deduplication, ..Send::default() }])
                    .await
                    .expect("sent");
            };
            let receive = async || {
                let wait = Some(Duration::from_secs(20));
                let receive = Receive { count: 1, wait, ..Receive::default() };
                front.receive(&queue, receive).await.expect("received").pop().expect("a message")
            };
            for round in 0..10 {
                let mut before = None;
                if is_freed {
                    send(round, 0).await;
                    before = Some(receive().await);
                    send(round, 1).await;
                }
                let wake = async {
                    env.sleep(Duration::from_secs(2)).await;
                    match before {
                        Some(message) => {
                            drop(front.delete(&queue, vec![message.receipt]).await.expect("deleted"))
                        }
                        None => send(round, 0).await,
                    }
                    env.now()
                };
                let (woken, received) = futures::join!(wake, async { (receive().await, env.now()) });
                assert!(received.1 < woken + AT_ONCE, "{name}: {:?} later", received.1.since(woken));
                front.delete(&queue, vec![received.0.receipt]).await.expect("deleted");
            }
        }
    });
}

#[test]
fn a_queue_without_order_is_sampled_from_all_its_messages_however_close_together_they_came() {
    with_two(|env, _, [front, _]| async move {
        let settings = Settings { order_hint: OrderHint::Infinity, ..Settings::default() };
        let queue = front.create(QueueRecord::new("a", "q", settings)).await.expect("created");
        for number in 0..200_u64 {
            let content = number.to_le_bytes().to_vec().into();
            front.send(&queue, vec![Send { content, ..Send::default() }]).await.expect("sent");
        }
        // Most of what has passed since is empty.
        env.sleep(Duration::from_secs(20)).await;
        let mut oldest = 0;
        for _ in 0..40 {
            let receive = Receive { count: 1, ..Receive::default() };
            let received = front.receive(&queue, receive).await.expect("received");
            let number: [u8; 8] = received[0].content[..].try_into().expect("ours");
            oldest += usize::from(u64::from_le_bytes(number) < 60);
        }
        assert!(oldest < 20, "{oldest} of 40 were among the oldest 60 of 200");
    });
}

#[test]
fn a_deduplication_id_can_be_another_group_s_when_its_time_is_over() {
    with_two(|env, _, [one, other]| async move {
        let settings = Settings { fifo: Some(Fifo::default()), ..Settings::default() };
        let queue = one.create(QueueRecord::new("a", "q.fifo", settings)).await.expect("created");
        let send = async |front: &SharedQueues, group: &str| {
            let (group, deduplication) = (Some(group.to_owned()), Some("id".to_owned()));
            front.send(&queue, vec![Send { group, deduplication, ..Send::default() }]).await
        };
        let first = send(&one, "a").await.expect("sent");
        env.sleep(Duration::from_secs(200)).await;
        assert_eq!(send(&other, "b").await.expect("it is known"), first);
        env.sleep(Duration::from_secs(115)).await;
        assert_ne!(send(&other, "b").await.expect("sent"), first);
    });
}

#[test]
fn a_fifo_queue_whose_level_is_configured_lower_later_acknowledges_only_what_a_majority_has() {
    with_cluster(|cluster, [env, _]| async move {
        let settings = Settings { fifo: Some(Fifo::default()), ..Settings::default() };
        let record = QueueRecord::new("a", "q.fifo", settings);
        let queue = start(&cluster, &env, Consistency::Quorum).await.create(record).await.expect("created");
        let front = start(&cluster, &env, Consistency::One).await;
        let send = async |id: &str| {
            let (group, deduplication) = (Some("g".to_owned()), Some(id.to_owned()));
            front.send(&queue, vec![Send { group, deduplication, ..Send::default() }]).await
        };
        // With a first one the group has its tuple: what comes behind it is a body and a conditional write.
        send("first").await.expect("sent");
        cluster.set_up(1, false);
        cluster.set_up(2, false);
        send("second").await.expect_err("one replica has it");
    });
}

#[test]
fn what_is_sent_to_a_queue_that_was_just_deleted_is_dropped_with_it() {
    with_two(|env, rows, [one, other]| async move {
        let queue = one.create(QueueRecord::new("a", "q", Settings::default())).await.expect("created");
        let there = other.find("a", "q").await.expect("answered").expect("there");
        one.delete_queue(&queue).await.expect("deleted");
        // For a second it does not know.
        other.send(&there, vec![Send::default()]).await.expect("sent");
        let left = async |kind| rows.buckets(Consistency::Quorum, queue.id, kind, 0, 9).await.expect("read");
        assert!(!left(RowKind::Tuples).await.is_empty() && !left(RowKind::Bodies).await.is_empty());
        env.sleep(Duration::from_secs(3_600)).await;
        assert!(left(RowKind::Tuples).await.is_empty() && left(RowKind::Bodies).await.is_empty());
        assert!(rows.records("gone").await.expect("read").is_empty());
    });
}

#[test]
fn a_queue_that_can_not_be_swept_keeps_no_other_one_from_being() {
    with_two(|env, rows, [front, _]| async move {
        let quorum = Consistency::Quorum;
        let fifo = Settings { fifo: Some(Fifo::default()), ..Settings::default() };
        let broken = front.create(QueueRecord::new("a", "a.fifo", fifo)).await.expect("created");
        let whole = front.create(QueueRecord::new("a", "b", Settings::default())).await.expect("created");
        let (group, deduplication) = (Some("g".to_owned()), Some("1".to_owned()));
        let send = Send { group, deduplication, ..Send::default() };
        front.send(&broken, vec![send]).await.expect("sent");
        front.send(&whole, vec![Send::default()]).await.expect("sent");
        for part in 0..2 {
            let bucket_of =
                async |queue, kind| rows.buckets(quorum, queue, kind, 0, 1).await.expect("read")[0];
            // What the first one's group says makes no sense any more.
            let bucket = bucket_of(broken.id, RowKind::Bodies).await;
            let at = RowPartition { queue: broken.id, bucket, part };
            for (_, group) in rows.bodies(quorum, at, Number(0), 9).await.expect("read") {
                let value = Bytes::from_static(b"nonsense");
                let cell = RowCell { key: Bytes::from_static(&[0]), value, version: 2, ttl_s: 1 << 20 };
                let group = group.expect("it is in one");
                assert!(
                    rows.write_cells(broken.id, group, 1, vec![cell], Vec::new()).await.expect("written")
                );
            }
            // And the other one's message has lost its tuple.
            let bucket = bucket_of(whole.id, RowKind::Tuples).await;
            let at = RowPartition { queue: whole.id, bucket, part };
            for tuple in rows.tuples(quorum, at, 0, u64::MAX, 9).await.expect("read") {
                rows.delete_tuple(quorum, at, tuple).await.expect("deleted");
            }
        }
        let receive = || front.receive(&whole, Receive { count: 1, ..Receive::default() });
        assert_eq!(receive().await.expect("received"), []);
        env.sleep(Duration::from_secs(3_600)).await;
        assert_eq!(receive().await.expect("received").len(), 1);
    });
}

#[test]
fn of_a_batch_each_message_is_told_what_became_of_it() {
    with_cluster(|cluster, [env, _]| async move {
        let front = start(&cluster, &env, Consistency::Quorum).await;
        for fifo in [None, Some(Fifo::default())] {
            let name = if fifo.is_some() { "q.fifo" } else { "q" };
            let settings = Settings { fifo, visibility_s: 3_600, ..Settings::default() };
            let queue = front.create(QueueRecord::new("a", name, settings)).await.expect("created");
            let (mut sent, mut failed) = (BTreeSet::new(), 0);
            *cluster.faults_per_million.lock() = 50_000;
            for batch in 0..10_u64 {
                let numbers: Vec<u64> = (10 * batch..10 * batch + 10).collect();
                let sends = numbers.iter().map(|number| Send {
                    content: Bytes::copy_from_slice(&number.to_le_bytes()),
                    group: Some(number.to_string()),
                    deduplication: Some(number.to_string()),
                    delay: None,
                });
                let Ok(each) = front.send_each(&queue, sends.collect()).await else { continue };
                assert_eq!(each.len(), 10);
                failed += each.iter().filter(|one| one.is_err()).count();
                sent.extend(
                    numbers.into_iter().zip(each).filter_map(|(number, one)| one.ok().map(|_| number)),
                );
            }
            *cluster.faults_per_million.lock() = 0;
            assert!(failed > 0 && sent.len() > failed, "{name}: {} sent, {failed} failed", sent.len());
            env.sleep(Duration::from_secs(60)).await;
            while !sent.is_empty() {
                let receive = Receive { count: 10, ..Receive::default() };
                let received = front.receive(&queue, receive).await.expect("received");
                assert!(!received.is_empty(), "{name}: {sent:?} are lost");
                for message in &received {
                    sent.remove(&number_of(message));
                }
            }
        }
    });
}

#[test]
fn a_queue_of_a_deleted_one_s_name_has_none_of_its_move_tasks() {
    with_two(|env, _, [one, other]| async move {
        let (_, dead) = work_and_dead(&one).await;
        one.send(&dead, vec![Send::default(); 10]).await.expect("sent");
        let task =
            || MoveTask { target: Some("work".to_owned()), rate_max: Some(1), ..MoveTask::new("a", "dead") };
        one.start_move(task()).await.expect("started");
        other.delete_queue(&dead).await.expect("deleted");
        env.sleep(Duration::from_secs(90)).await;
        other.create(QueueRecord::new("a", "dead", Settings::default())).await.expect("created");
        assert!(other.list_moves("a", "dead").await.expect("listed").is_empty());
        other.start_move(task()).await.expect("nothing runs");
    });
}

/// How a task ended.
async fn ended(env: &Env, front: &SharedQueues, source: &str) -> MoveTask {
    loop {
        let task = front.list_moves("a", source).await.map(|mut tasks| tasks.remove(0));
        match task {
            Ok(task) if task.status != MoveStatus::Running => return task,
            _ => env.sleep(Duration::from_millis(500)).await,
        }
    }
}

#[test]
fn a_move_task_whose_steps_fail_has_moved_everything_when_it_says_so() {
    with_cluster(|cluster, [env, other]| async move {
        let (front, other) = (
            start(&cluster, &env, Consistency::Quorum).await,
            start(&cluster, &other, Consistency::Quorum).await,
        );
        let (_, dead) = work_and_dead(&front).await;
        for _ in 0..4 {
            front.send(&dead, vec![Send::default(); 10]).await.expect("sent");
        }
        let task = MoveTask { target: Some("work".to_owned()), ..MoveTask::new("a", "dead") };
        front.start_move(task).await.expect("started");
        *cluster.faults_per_million.lock() = 100_000;
        env.sleep(Duration::from_secs(30)).await;
        *cluster.faults_per_million.lock() = 0;
        let task = ended(&env, &other, "dead").await;
        assert_eq!((task.status, task.failure), (MoveStatus::Completed, None));
        let left = other.figures(&dead).await.expect("counted").counts;
        assert_eq!(left, Counts::default(), "{} moved", task.moved);
    });
}

#[test]
fn a_move_task_leaves_letters_that_came_after_its_start_however_old_they_are() {
    with_cluster(|cluster, [env, _]| async move {
        let front = start(&cluster, &env, Consistency::Quorum).await;
        let (work, dead) = work_and_dead(&front).await;
        front.create(QueueRecord::new("a", "target", Settings::default())).await.expect("created");
        front.send(&work, vec![Send::default()]).await.expect("sent");
        front.send(&dead, vec![Send::default(); 6]).await.expect("sent");
        let task =
            MoveTask { target: Some("target".to_owned()), rate_max: Some(1), ..MoveTask::new("a", "dead") };
        front.start_move(task).await.expect("started");
        // Longer than clocks may differ, and shorter than the task takes.
        env.sleep(Duration::from_secs(3)).await;
        for _ in 0..2 {
            let receive = Receive { count: 1, ..Receive::default() };
            front.receive(&work, receive).await.expect("received");
        }
        let task = ended(&env, &front, "dead").await;
        assert_eq!((task.status, task.moved), (MoveStatus::Completed, 6));
        assert_eq!(front.figures(&dead).await.expect("counted").counts.visible, 1);
    });
}

#[test]
fn a_move_task_reads_little_while_what_is_left_for_it_is_invisible_and_others_are_not() {
    with_cluster(|cluster, [env, _]| async move {
        let front = start(&cluster, &env, Consistency::Quorum).await;
        for (fifo, source, target) in
            [(None, "dead", "work"), (Some(Fifo::default()), "dead.fifo", "work.fifo")]
        {
            for name in [source, target] {
                let settings = Settings { fifo, ..Settings::default() };
                front.create(QueueRecord::new("a", name, settings)).await.expect("created");
            }
            let dead = front.find("a", source).await.expect("answered").expect("there");
            let send = async |numbers: std::ops::Range<u64>| {
                let sends = numbers.map(|number| {
                    let (group, deduplication) = (Some(number.to_string()), Some(number.to_string()));
                    Send { group, deduplication, ..Send::default() }
                });
                front.send(&dead, sends.collect()).await.expect("sent");
            };
            send(0..1).await;
            let visibility = Some(Duration::from_secs(3 * 3_600));
            let receive = Receive { count: 1, visibility, ..Receive::default() };
            let hidden = front.receive(&dead, receive).await.expect("received");
            let task = MoveTask { target: Some(target.to_owned()), ..MoveTask::new("a", source) };
            front.start_move(task).await.expect("started");
            // Longer than clocks may differ.
            env.sleep(Duration::from_secs(3)).await;
            for batch in 1..=50 {
                send(10 * batch..10 * batch + 10).await;
            }
            *cluster.rows_read.lock() = 0;
            env.sleep(Duration::from_secs(1_800)).await;
            let read = *cluster.rows_read.lock();
            assert!(read < 200_000, "{source}: {read} rows");
            // It is visible behind all the others.
            let change = (hidden[0].receipt, Duration::ZERO);
            front.change_visibility(&dead, vec![change]).await.expect("changed");
            let task = ended(&env, &front, source).await;
            assert_eq!((task.status, task.moved), (MoveStatus::Completed, 1), "{source}");
            let left = front.figures(&dead).await.expect("counted").counts;
            assert_eq!(left.visible + left.in_flight, 500, "{source}");
        }
    });
}

#[test]
fn a_move_task_whose_looks_take_longer_than_its_mark_stays_ends() {
    with_cluster(|cluster, [env, _]| async move {
        let front = start(&cluster, &env, Consistency::Quorum).await;
        // The others are in as many buckets, or in as many groups.
        for (fifo, source, target, hidden_s, batches, pause) in [
            (None, "dead", "work", 4_200, 400, Duration::from_secs(10)),
            (Some(Fifo::default()), "dead.fifo", "work.fifo", 60, 300, Duration::ZERO),
        ] {
            for name in [source, target] {
                let settings = Settings { fifo, ..Settings::default() };
                front.create(QueueRecord::new("a", name, settings)).await.expect("created");
            }
            let dead = front.find("a", source).await.expect("answered").expect("there");
            let send = async |first: u64| {
                let sends = (10 * first..10 * first + 10).map(|number| {
                    let (group, deduplication) = (Some(number.to_string()), Some(number.to_string()));
                    Send { group, deduplication, ..Send::default() }
                });
                front.send(&dead, sends.collect()).await.expect("sent");
            };
            send(0).await;
            let visibility = Some(Duration::from_secs(hidden_s));
            let receive = Receive { count: 10, visibility, ..Receive::default() };
            assert_eq!(front.receive(&dead, receive).await.expect("received").len(), 10);
            let task = MoveTask { target: Some(target.to_owned()), ..MoveTask::new("a", source) };
            front.start_move(task).await.expect("started");
            // Longer than clocks may differ.
            env.sleep(Duration::from_secs(3)).await;
            for batch in 1..=batches {
                send(batch).await;
                env.sleep(pause).await;
            }
            env.sleep(Duration::from_secs(1_200)).await;
            let task = front.list_moves("a", source).await.expect("listed").remove(0);
            assert_eq!((task.status, task.moved), (MoveStatus::Completed, 10), "{source}");
        }
    });
}

#[test]
fn what_was_deleted_by_an_older_receipt_is_not_counted_until_its_last_timeout_is_over() {
    with_two(|env, _, [front, _]| async move {
        let queue = front.create(QueueRecord::new("a", "q", Settings::default())).await.expect("created");
        front.send(&queue, vec![Send::default()]).await.expect("sent");
        let receive = async |visibility_s| {
            let visibility = Some(Duration::from_secs(visibility_s));
            let receive = Receive { count: 1, visibility, ..Receive::default() };
            front.receive(&queue, receive).await.expect("received").pop().expect("a message")
        };
        let first = receive(0).await;
        receive(12 * 3_600).await;
        front.delete(&queue, vec![first.receipt]).await.expect("deleted");
        // It is somewhere in the index, and gone.
        let in_flight = async || front.figures(&queue).await.expect("counted").counts.in_flight;
        assert_eq!(in_flight().await, 1);
        env.sleep(Duration::from_secs(3_600)).await;
        assert_eq!(in_flight().await, 0);
    });
}

#[test]
fn messages_of_a_fifo_queue_that_nobody_receives_go_when_they_were_kept_for_long_enough() {
    with_two(|env, rows, [one, other]| async move {
        let settings = Settings { fifo: Some(Fifo::default()), retention_s: 600, ..Settings::default() };
        let queue = one.create(QueueRecord::new("a", "q.fifo", settings)).await.expect("created");
        let there = other.find("a", "q.fifo").await.expect("answered").expect("there");
        let send = async |group: &str, numbers: std::ops::Range<u64>| {
            let sends = numbers.map(|number| Send {
                group: Some(group.to_owned()),
                deduplication: Some(number.to_string()),
                ..Send::default()
            });
            one.send(&queue, sends.collect()).await.expect("sent");
        };
        // More of one group than one change takes out; one of the other one is younger.
        for batch in 0..3 {
            send("a", 10 * batch..10 * batch + 10).await;
        }
        send("b", 30..33).await;
        env.sleep(Duration::from_secs(590)).await;
        send("b", 33..34).await;
        let visible = async || one.figures(&queue).await.expect("counted").counts.visible;
        assert_eq!(visible().await, 34);
        env.sleep(Duration::from_secs(20)).await;
        assert_eq!(visible().await, 1);
        let receive = Receive { count: 10, ..Receive::default() };
        env.sleep(Duration::from_secs(500)).await;
        assert_eq!(other.receive(&there, receive).await.expect("received").len(), 1);
        env.sleep(Duration::from_secs(3_600)).await;
        let gone =
            async |front: &SharedQueues, queue| front.figures(queue).await.expect("counted").happened.expired;
        assert_eq!(gone(&one, &queue).await + gone(&other, &there).await, 34);
        let quorum = Consistency::Quorum;
        for bucket in rows.buckets(quorum, queue.id, RowKind::Tuples, 0, 99).await.expect("read") {
            for part in 0..2 {
                let at = RowPartition { queue: queue.id, bucket, part };
                assert_eq!(rows.tuples(quorum, at, 0, u64::MAX, 9).await.expect("read"), []);
            }
        }
        assert!(rows.buckets(quorum, queue.id, RowKind::Bodies, 0, 9).await.expect("read").is_empty());
    });
}

#[test]
fn messages_of_a_standard_queue_that_nobody_receives_go_when_they_were_kept_for_long_enough() {
    with_two(|env, rows, [one, other]| async move {
        let settings = Settings { retention_s: 3_600, visibility_s: 30, ..Settings::default() };
        let queue = one.create(QueueRecord::new("a", "q", settings)).await.expect("created");
        let there = other.find("a", "q").await.expect("answered").expect("there");
        let send = async || drop(one.send(&queue, vec![Send::default(); 3]).await.expect("sent"));
        for _ in 0..30 {
            send().await;
            env.sleep(Duration::from_secs(10)).await;
        }
        // Some are received, and visible again later.
        let receive = Receive { count: 10, ..Receive::default() };
        assert_eq!(one.receive(&queue, receive).await.expect("received").len(), 10);
        env.sleep(Duration::from_secs(3_000)).await;
        send().await;
        // All others were kept for long enough, and swept meanwhile.
        env.sleep(Duration::from_secs(3_400)).await;
        assert_eq!(other.peek(&there, Sequence(0), 100).await.expect("looked").len(), 3);
        assert_eq!(one.figures(&queue).await.expect("counted").counts.visible, 3);
        env.sleep(Duration::from_secs(10_000)).await;
        let gone =
            async |front: &SharedQueues, queue| front.figures(queue).await.expect("counted").happened.expired;
        assert_eq!(gone(&one, &queue).await + gone(&other, &there).await, 93);
        for kind in [RowKind::Tuples, RowKind::Bodies] {
            let left = rows.buckets(Consistency::Quorum, queue.id, kind, 0, 99).await.expect("read");
            assert!(left.is_empty(), "{kind:?}: {left:?}");
        }
    });
}

#[test]
fn a_delete_that_is_answered_while_its_message_becomes_a_dead_letter_deletes_it_there_too() {
    with_two(|env, _, [one, other]| async move {
        let (work, dead) = work_and_dead(&one).await;
        let receive = async |queue| {
            one.receive(queue, Receive { count: 1, ..Receive::default() }).await.expect("received")
        };
        for after in 0..80 {
            one.send(&work, vec![Send::default()]).await.expect("sent");
            let receipt = receive(&work).await[0].receipt;
            let delete = async {
                env.sleep(Duration::from_micros(500 * after)).await;
                other.delete(&work, vec![receipt]).await.expect("deleted");
            };
            let (received, ()) = futures::join!(receive(&work), delete);
            assert_eq!(received, []);
            assert_eq!(receive(&dead).await, [], "deleted {after} half milliseconds later");
        }
    });
}

#[test]
fn a_delete_finds_a_dead_letter_whose_queue_has_no_dead_letter_queue_any_more() {
    with_two(|env, _, [front, _]| async move {
        let (work, dead) = work_and_dead(&front).await;
        let receive = async |queue| {
            front.receive(queue, Receive { count: 1, ..Receive::default() }).await.expect("received")
        };
        front.send(&work, vec![Send::default()]).await.expect("sent");
        let receipt = receive(&work).await[0].receipt;
        assert_eq!(receive(&work).await, []);
        let change = |record: &mut QueueRecord| record.settings.redrive = None;
        front.update(&work, Box::new(change)).await.expect("changed");
        env.sleep(Duration::from_secs(2)).await;
        front.delete(&work, vec![receipt]).await.expect("deleted");
        assert_eq!(receive(&dead).await, []);
    });
}

#[test]
fn of_the_places_of_a_dead_letter_the_latest_is_found_and_too_many_are_not_answered_as_deleted() {
    with_two(|_, rows, [front, _]| async move {
        let quorum = Consistency::Quorum;
        let queue = front.create(QueueRecord::new("a", "q", Settings::default())).await.expect("created");
        let sent = front.send(&queue, vec![Send::default()]).await.expect("sent")[0].number;
        let letter = |count: u64| {
            let at =
                RowPartition { queue: QueueId(1 << 20), bucket: 1 + count / 4, part: (count % 2) as u16 };
            Letter { at, number: Number(count) }
        };
        for count in 0..1_001 {
            rows.put_letter(quorum, queue.id, sent, letter(count)).await.expect("put");
        }
        let found = rows.letters(quorum, queue.id, sent, 3).await.expect("read");
        assert_eq!(found, [letter(1_000), letter(999), letter(998)]);
        let receive = Receive { count: 1, ..Receive::default() };
        let receipt = front.receive(&queue, receive).await.expect("received")[0].receipt;
        front.delete(&queue, vec![receipt]).await.expect_err("there are more");
    });
}

#[test]
fn what_a_failed_move_to_the_dead_letter_queue_left_is_not_brought_back() {
    with_cluster(|cluster, [env, _]| async move {
        let front = start(&cluster, &env, Consistency::Quorum).await;
        let (work, dead) = work_and_dead(&front).await;
        let receive = async |queue| front.receive(queue, Receive { count: 10, ..Receive::default() }).await;
        let mut failed = 0;
        for after in 0..80 {
            front.send(&work, vec![Send::default()]).await.expect("sent");
            assert_eq!(receive(&work).await.expect("received").len(), 1);
            let fail = async {
                env.sleep(Duration::from_micros(500 * after)).await;
                *cluster.faults_per_million.lock() = 1_000_000;
                env.sleep(Duration::from_secs(1)).await;
                *cluster.faults_per_million.lock() = 0;
            };
            let (received, ()) = futures::join!(receive(&work), fail);
            failed += u64::from(received.is_err());
            // What came late has come.
            env.sleep(Duration::from_secs(25)).await;
            while !receive(&work).await.expect("received").is_empty() {}
            let letters = receive(&dead).await.expect("received");
            assert!(!letters.is_empty(), "it is there");
            let receipts = letters.into_iter().map(|letter| letter.receipt).collect();
            front.delete(&dead, receipts).await.expect("deleted");
        }
        assert!(failed > 10, "{failed} failed");
        env.sleep(Duration::from_secs(3_600)).await;
        assert_eq!(receive(&dead).await.expect("received"), []);
    });
}

#[test]
fn calls_that_are_dropped_anywhere_leave_nothing_half_done() {
    with_cluster(|cluster, [env, _]| async move {
        let front = start(&cluster, &env, Consistency::Quorum).await;
        for fifo in [None, Some(Fifo::default())] {
            let name = if fifo.is_some() { "q.fifo" } else { "q" };
            // Nothing is visible again because its timeout is over.
            let settings = Settings { fifo, visibility_s: 3_600, ..Settings::default() };
            let queue = front.create(QueueRecord::new("a", name, settings)).await.expect("created");
            for number in 0..60_u64 {
                let content = Bytes::copy_from_slice(&number.to_le_bytes());
                let (group, deduplication) = (Some((number % 5).to_string()), Some(number.to_string()));
                let sends = vec![Send { content, group, deduplication, ..Send::default() }];
                let patience = Duration::from_micros(500 * (number % 40));
                let _ = env.timeout(patience, front.send(&queue, sends)).await;
            }
            env.sleep(Duration::from_secs(5)).await;
            let receive = || front.receive(&queue, Receive { count: 10, ..Receive::default() });
            let bodies = front.peek(&queue, Sequence(0), 100).await.expect("read").len() as u64;
            assert!(bodies > 20, "{name}: {bodies} were sent");
            let counts = async || front.figures(&queue).await.expect("counted").counts;
            assert_eq!(counts().await, Counts { visible: bodies, ..Counts::default() }, "{name}");
            for number in 0..60 {
                let patience = Duration::from_micros(500 * (number % 40));
                if let Some(received) = env.timeout(patience, receive()).await {
                    let receipts = received.expect("received").into_iter().map(|one| one.receipt);
                    front.give_back(&queue, receipts.collect()).await.expect("given back");
                }
            }
            env.sleep(Duration::from_secs(5)).await;
            assert_eq!(counts().await, Counts { visible: bodies, ..Counts::default() }, "{name}");
        }
    });
}

#[test]
fn of_two_move_tasks_that_begin_at_the_same_time_one_runs_at_most() {
    with_two(|_, _, [one, other]| async move {
        work_and_dead(&one).await;
        let task = || MoveTask { target: Some("work".to_owned()), ..MoveTask::new("a", "dead") };
        let (first, second) = futures::join!(one.start_move(task()), other.start_move(task()));
        let refused =
            [first, second].into_iter().filter(|started| matches!(started, Err(QueueError::TaskRuns)));
        assert!(refused.count() >= 1);
    });
}
