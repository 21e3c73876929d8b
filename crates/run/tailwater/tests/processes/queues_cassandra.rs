//! Queues in a real Cassandra: one, for all of these tests.

use std::sync::Arc;
use std::time::Duration;

use crate::sqs_accounts;
use crate::support::cassandra::Cassandra;
use crate::support::sqs::{Client, World, drain, under_load};
use crate::support::{Node, told, wait_for};
use bytes::Bytes;
use serde_json::json;
use tailwater_env::Env;
use tailwater_queue::SharedConfig;
use tailwater_queue::shared::SharedQueues;
use tailwater_queue::{
    Consistency, Fifo, FrontReport, QueueError, QueueRecord, QueueStore, ReceiptError, Receive, Send,
    Settings,
};
use tailwater_queue_cassandra::{CassandraConfig, CassandraRows};

#[test]
fn queues_in_cassandra_are_what_the_contract_says_and_lose_nothing_whoever_is_killed() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut cassandra = Cassandra::start(&dir.path().join("cassandra"));
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let env = Env::real();
        let (one, other) = (front(&cassandra).await, front(&cassandra).await);
        tokio::join!(
            tailwater_queue::conformance::check(&env, &one, "conformance"),
            tailwater_queue::conformance::check_fifo(&env, &one, "fifo"),
            front_ends_share_queues(&one, &other),
            front_ends_share_groups(&one, &other),
        );
    });
    drop(runtime);
    a_client_that_keeps_to_one_of_two_front_ends_has_most_of_its_account_s_quota(dir.path(), &cassandra);
    fronts_and_cassandra_are_killed_under_load(dir.path(), &mut cassandra);
}

async fn front(cassandra: &Cassandra) -> SharedQueues {
    let config = CassandraConfig {
        contact_points: vec![cassandra.address.to_string()],
        replicas: 1,
        keyspace: "fronts".to_owned(),
        request_timeout_ms: 60_000,
        ..CassandraConfig::default()
    };
    let rows = CassandraRows::shared(&config).await.expect("connected");
    SharedQueues::start(&Env::real(), rows, SharedConfig::default()).await.expect("started")
}

/// What one front end does another one sees; without either knowing of the other.
async fn front_ends_share_queues(one: &SharedQueues, other: &SharedQueues) {
    let told = |front, number| FrontReport { front, number, value: Bytes::from(format!("{front}/{number}")) };
    let mut known = Vec::new();
    // What comes late, with a smaller number, does not take the place of what is there.
    for (front, report) in [(one, told(1, 2)), (other, told(2, 1)), (one, told(1, 1))] {
        known = front.exchange_reports(report).await.expect("answered").expect("there are others");
    }
    known.sort_by_key(|report| report.front);
    assert_eq!(known, [told(1, 2), told(2, 1)], "whoever tells reads what the others have told");
    let created = one.create(QueueRecord::new("account", "q", Settings::default())).await.expect("created");
    let again = other.create(QueueRecord::new("account", "q", Settings::default())).await;
    assert!(matches!(again, Err(QueueError::Exists(view)) if view.id == created.id));
    let queue = other.find("account", "q").await.expect("answered").expect("created");
    for number in 0..20 {
        let sends = vec![Send { content: Bytes::from(format!("{number}")), ..Send::default() }];
        let from = if number % 2 == 0 { one } else { other };
        from.send(&queue, sends).await.expect("sent");
    }
    let receive = Receive { count: 10, visibility: Some(Duration::from_secs(600)), ..Receive::default() };
    let first = one.receive(&queue, receive.clone()).await.expect("received");
    let second = other.receive(&queue, receive).await.expect("received");
    let numbers: Vec<_> = first.iter().chain(&second).map(|message| message.content.clone()).collect();
    assert_eq!(numbers, (0..20).map(|number| Bytes::from(format!("{number}"))).collect::<Vec<_>>());

    // A receipt is good at every front end, also after its visibility was changed at another one.
    assert_eq!(one.secret().write(&first[0].receipt), other.secret().write(&first[0].receipt));
    let change = |seconds| vec![(first[0].receipt, Duration::from_secs(seconds))];
    for front in [other, one, other] {
        assert_eq!(front.change_visibility(&queue, change(3_600)).await.expect("answered"), [Ok(())]);
    }
    one.delete(&queue, first.iter().map(|message| message.receipt).collect()).await.expect("deleted");
    let soon = vec![(second[0].receipt, Duration::from_millis(300))];
    assert_eq!(one.change_visibility(&queue, soon).await.expect("answered"), [Ok(())]);
    let wait = Some(Duration::from_secs(60));
    let third =
        one.receive(&queue, Receive { count: 1, wait, ..Receive::default() }).await.expect("received");
    assert_eq!((third[0].content.clone(), third[0].receives), (Bytes::from_static(b"10"), 2));
    let stale = other.change_visibility(&queue, vec![(second[0].receipt, Duration::ZERO)]).await;
    assert_eq!(stale.expect("answered"), [Err(ReceiptError::Unavailable)]);

    // What is not there, or was not asked for as it has to be.
    let settings =
        Settings { fifo: Some(Fifo::default()), consistency: Some(Consistency::One), ..Settings::default() };
    let refused = one.create(QueueRecord::new("account", "q.fifo", settings)).await;
    assert!(matches!(refused, Err(QueueError::Unsupported(why)) if why.contains("quorum")));
}

/// Two front ends send to the same groups and receive from them, at the same time: each group stays in order, each id
/// is one message, and a group is one receiver's at a time.
async fn front_ends_share_groups(one: &SharedQueues, other: &SharedQueues) {
    let settings = Settings { fifo: Some(Fifo::default()), ..Settings::default() };
    let queue = one.create(QueueRecord::new("account", "groups.fifo", settings)).await.expect("created");
    const EACH: usize = 8;
    let send = async |front: &SharedQueues, group: &str, number: usize| {
        let body = format!("{group} {number}");
        let send = Send {
            content: Bytes::from(body.clone()),
            delay: None,
            group: Some(group.to_owned()),
            deduplication: Some(body),
        };
        front.send(&queue, vec![send]).await.expect("sent")[0]
    };
    let groups = ["a", "b"].map(async |group| {
        for number in 0..EACH {
            // Whoever was not sure sends again, elsewhere.
            let (first, again) = tokio::join!(send(one, group, number), send(other, group, number));
            assert_eq!(first, again, "a deduplication id is one message");
        }
    });
    let received = std::sync::Mutex::new(Vec::new());
    let receive = async |front: &SharedQueues| {
        while received.lock().expect("nobody panicked").len() < 2 * EACH {
            let receive = Receive {
                count: 2,
                wait: Some(Duration::from_secs(1)),
                // Nobody is too late to delete, however busy the machine.
                visibility: Some(Duration::from_secs(600)),
                ..Receive::default()
            };
            let messages = front.receive(&queue, receive).await.expect("received");
            let bodies = messages.iter().map(|message| message.content.clone());
            received.lock().expect("nobody panicked").extend(bodies);
            let receipts = messages.iter().map(|message| message.receipt).collect();
            let outcomes = front.delete(&queue, receipts).await.expect("deleted");
            assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
        }
    };
    tokio::join!(futures::future::join_all(groups), receive(one), receive(other));
    let received = received.into_inner().expect("nobody panicked");
    for group in ["a", "b"] {
        let of_group = received.iter().filter(|body| body.starts_with(group.as_bytes()));
        let expected: Vec<String> = (0..EACH).map(|number| format!("{group} {number}")).collect();
        assert!(of_group.eq(expected.iter()), "{received:?}");
    }
    assert_eq!(one.figures(&queue).await.expect("there").counts, Default::default());
}

/// Asks a front end for as much as it can, until three quarters of the quota are let through in some seconds: with an
/// equal share, and a second's worth of it besides, it would be less.
const ASK: &str = "
import sys, threading, time, boto3, botocore
config = botocore.config.Config(retries={'total_max_attempts': 1})
admitted = []
def ask():
    sqs = boto3.client('sqs', endpoint_url=sys.argv[1], region_name='us-east-1', config=config)
    while True:
        try:
            sqs.list_queues()
            admitted.append(1)
        except botocore.exceptions.ClientError as error:
            assert error.response['Error']['Code'] == 'RequestThrottled', error
for _ in range(2):
    threading.Thread(target=ask, daemon=True).start()
for _ in range(60):
    before = len(admitted)
    time.sleep(4)
    seen = len(admitted) - before
    print(seen, flush=True)
    if seen > 0.75 * 4 * int(sys.argv[2]):
        sys.exit(0)
sys.exit('never')
";

fn a_client_that_keeps_to_one_of_two_front_ends_has_most_of_its_account_s_quota(
    dir: &std::path::Path,
    cassandra: &Cassandra,
) {
    const QUOTA: &str = "20";
    let environment = cassandra.environment("quotas", 1);
    let environment: Vec<(&str, &str)> =
        environment.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    let nodes = ["asked", "silent"].map(|name| Node::start_with(&dir.join(name), &[], &environment));
    let keys =
        nodes.each_ref().map(|node| sqs_accounts::add(node, "111122223333", &["--requests-per-s", QUOTA]));
    for node in &nodes {
        wait_for("both to know of each other", || {
            (node.metric("tailwater_sqs_front_ends") == Some(2.0)).then_some(())
        });
    }
    let (ok, out, err) = told(sqs_accounts::boto3(&nodes[0], ASK, &keys[0]).arg(QUOTA), "");
    assert!(ok, "{out}{err}");
}

/// Two nodes and Cassandra: each is killed again and again while clients of both send and receive.
fn fronts_and_cassandra_are_killed_under_load(dir: &std::path::Path, cassandra: &mut Cassandra) {
    let environment = cassandra.environment("killed", 1);
    let environment: Vec<(&str, &str)> =
        environment.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    let [mut one, other] = ["one", "other"].map(|name| Node::start_with(&dir.join(name), &[], &environment));
    one.run(&["queue", "create", "q", "--visibility-timeout", "1", "--consistency", "quorum"]);
    let world = Arc::new(World::default());
    let queue = format!("http://{}/000000000000/q", one.sqs);
    for round in 0..3 {
        let pid = rustix::process::Pid::from_raw(one.process.id().cast_signed()).expect("a process");
        under_load(&world, &[&one, &other], &queue, 100, || match round {
            1 => cassandra.kill(),
            _ => rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("it is there"),
        });
        match round {
            1 => cassandra.restart(),
            _ => {
                one.process.kill();
                one.restart();
            }
        }
    }
    drain(&world, &Client::new(&other, &queue));
    let client = Client::new(&one, &queue);
    let left = wait_for("a receive to be answered", || client.call("ReceiveMessage", json!({})));
    assert!(left["Messages"].is_null(), "{left}");
}

#[test]
#[ignore = "three Cassandras take long to start on two cores: `make test-long PARTS=cassandra`"]
fn queues_in_three_replicas_go_on_while_any_one_of_them_is_dead_and_lose_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let dirs = ["1", "2", "3"].map(|name| dir.path().join(format!("cassandra-{name}")));
    let mut replicas = Cassandra::start_cluster(dirs.each_ref().map(|dir| dir.as_path()));
    let environment = replicas[0].environment("replicated", 3);
    let environment: Vec<(&str, &str)> =
        environment.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    let nodes = ["one", "other"].map(|name| Node::start_with(&dir.path().join(name), &[], &environment));
    let [one, other] = nodes.each_ref();
    one.run(&["queue", "create", "q", "--visibility-timeout", "1", "--consistency", "quorum"]);
    one.run(&["queue", "create", "q.fifo", "--fifo", "--visibility-timeout", "1"]);
    for (name, world) in [("q", World::default()), ("q.fifo", World::fifo())] {
        let (world, queue) = (Arc::new(world), format!("http://{}/000000000000/{name}", one.sqs));
        for replica in &mut replicas {
            under_load(&world, &[one, other], &queue, 50, || {
                replica.kill();
                let before = world.ledger().counts();
                wait_for("load with one replica dead", || {
                    let (sent, deleted) = world.ledger().counts();
                    (sent > before.0 + 50 && deleted > before.1 + 50).then_some(())
                });
            });
            replica.restart();
        }
        drain(&world, &Client::new(other, &queue));
    }
}
