//! Quotas, as real clients meet them.

use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

use tailwater_client::{Client, ClientConfig, ConsumerConfig, Start, Transport};
use tailwater_env::Env;

use crate::support::kafka::{java, need, program};
use crate::support::{Node, Process, told, wait_for};

/// A node whose Kafka clients log in, as `ops`, `orders` or `free`.
fn node(dir: &tempfile::TempDir) -> Node {
    let node = Node::start_with(&dir.path().join("data"), &[], &[("TAILWATER_KAFKA__LOGIN", "true")]);
    for user in ["ops", "orders", "free"] {
        let added = node.output(&["user", "add", user], b"correct horse\n");
        assert!(added.status.success(), "{}", String::from_utf8_lossy(&added.stderr));
    }
    node
}

fn kcat(node: &Node, user: &str, args: &[&str]) -> Command {
    let mut command = Command::new("kcat");
    command.args(["-b", &node.kafka, "-m", "60", "-X", "broker.address.family=v4"]);
    command.args(["-X", "security.protocol=SASL_PLAINTEXT", "-X", "sasl.mechanism=SCRAM-SHA-256"]);
    command.args(["-X", &format!("sasl.username={user}"), "-X", "sasl.password=correct horse"]);
    command.args(args);
    command
}

/// What kcat and Java log in as `ops` with.
fn properties(dir: &tempfile::TempDir) -> String {
    let path = dir.path().join("ops.properties");
    let text = "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-512\nsasl.jaas.config=\
                org.apache.kafka.common.security.scram.ScramLoginModule required username=\"ops\" \
                password=\"correct horse\";\n";
    std::fs::write(&path, text).expect("written");
    path.to_str().expect("text").to_owned()
}

fn exceeded(node: &Node, bound: &str) -> f64 {
    node.metric(&format!("tailwater_quota_exceeded_total{{bound=\"{bound}\"}}")).expect("a metric")
}

#[test]
fn a_producer_over_its_quota_is_held_beside_others_until_the_quota_is_taken_away() {
    need("kcat");
    let dir = tempfile::tempdir().expect("a directory");
    let node = node(&dir);
    node.run(&["stream", "create", "held"]);
    node.run(&["stream", "create", "quick"]);
    let set = node.run(&["quota", "set", "--user", "orders", "--producer-byte-rate", "2000"]);
    assert_eq!(set, "user orders: producer_byte_rate 2000\n");
    // Ten minutes' worth, which kcat does not hold back by itself.
    let lines = dir.path().join("lines");
    std::fs::write(&lines, format!("{}\n", "x".repeat(999)).repeat(1_200)).expect("written");
    let lines = lines.to_str().expect("text");
    let slowly = ["-X", "batch.num.messages=20", "-X", "max.in.flight=1", "-X", "request.timeout.ms=600000"];
    let slowly = [&slowly[..], &["-X", "socket.timeout.ms=300000", "-X", "message.timeout.ms=0"]].concat();
    let write =
        |user, stream: &str| kcat(&node, user, &[&slowly[..], &["-P", "-t", stream, "-l", lines]].concat());
    let mut held = Process::start(&mut write("orders", "held"), &dir.path().join("held.log"));
    wait_for("the quota to be used up", || (exceeded(&node, "producer_byte_rate") >= 2.0).then_some(()));
    let (ok, _, err) = told(&mut write("free", "quick"), "");
    assert!(ok, "{err}");
    assert!(held.is_running(), "{}", held.log());
    node.run(&["quota", "rm", "--user", "orders"]);
    assert!(held.ended().success(), "{}", held.log());
    assert_eq!(node.run(&["consume", "held", "--exit-at-end"]).lines().count(), 1_200);
    let error = node.run_failing(&["quota", "rm", "--user", "orders"]);
    assert!(error.contains("there is no quota about user orders"), "{error}");
}

#[test]
fn java_sets_quotas_and_is_told_how_long_it_is_held() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = node(&dir);
    node.run(&["stream", "create", "quotas"]);
    let (ok, out, err) =
        told(program("Clients.java").args([&node.kafka, "quotas"]).arg(properties(&dir)), "");
    assert!(ok, "{out}\n{err}\n{}", node.process.log());
    assert!(exceeded(&node, "consumer_byte_rate") >= 1.0);
}

#[test]
fn kafka_s_own_tool_sets_quotas_that_are_still_there_after_a_start() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut node = node(&dir);
    let properties = properties(&dir);
    let broker = node.kafka.clone();
    let configs = |args: &[&str]| {
        let mut tool = java("kafka.admin.ConfigCommand");
        tool.args(["--bootstrap-server", &broker, "--command-config", &properties]).args(args);
        let (ok, out, err) = told(&mut tool, "");
        assert!(ok && !out.contains("Error"), "{args:?}: {out}\n{err}");
        out
    };
    let alter = ["--alter", "--add-config", "producer_byte_rate=1048576,consumer_byte_rate=2097152"];
    configs(&[&alter[..], &["--entity-type", "users", "--entity-name", "orders"]].concat());
    configs(&[&alter[..], &["--entity-type", "clients", "--entity-default"]].concat());
    let told = configs(&["--describe", "--entity-type", "users", "--entity-name", "orders"]);
    assert!(told.contains("producer_byte_rate=1048576"), "{told}");
    assert!(node.process.stop());
    node.restart();
    let listed = node.run(&["quota", "ls", "-o", "json"]);
    let listed: serde_json::Value = serde_json::from_str(&listed).expect("JSON");
    let bounds = serde_json::json!({"producer_byte_rate": 1_048_576, "consumer_byte_rate": 2_097_152});
    let expected = serde_json::json!([
        {"entity": {"client_id": "*"}, "bounds": bounds},
        {"entity": {"user": "orders"}, "bounds": bounds},
    ]);
    assert_eq!(listed, expected);
}

#[test]
fn commands_and_appends_by_calls_keep_to_quotas_too() {
    let (_dir, node) = Node::start_anew();
    node.run(&["stream", "create", "s"]);
    node.run(&["quota", "set", "--user", "*", "--producer-byte-rate", "100000"]);
    let lines = format!("{}\n", "x".repeat(999)).repeat(400);
    let begin = Instant::now();
    let written = node.output(&["produce", "s"], lines.as_bytes());
    assert!(written.status.success(), "{}", String::from_utf8_lossy(&written.stderr));
    assert!(begin.elapsed() >= Duration::from_secs(2), "400 kB, of which 100 may be had at once");
    assert!(exceeded(&node, "producer_byte_rate") >= 1.0);
    assert_eq!(node.run(&["consume", "s", "--exit-at-end"]).lines().count(), 400);

    node.run(&["quota", "set", "--user", "anonymous", "--request-rate", "1"]);
    let error = wait_for("a request too many", || {
        let listed = node.output(&["stream", "ls"], b"");
        (!listed.status.success()).then(|| String::from_utf8_lossy(&listed.stderr).into_owned())
    });
    assert!(error.contains("has used up its quota: request_rate"), "{error}");
    wait_for("its turn", || {
        node.output(&["quota", "rm", "--user", "anonymous"], b"").status.success().then_some(())
    });
    assert!(exceeded(&node, "request_rate") >= 1.0);
}

#[test]
fn what_the_cells_send_to_a_one_sided_reader_over_tcp_counts_and_it_gets_all_of_it_later() {
    let (_dir, node) = Node::with_stream(&["s"]);
    node.run(&["quota", "set", "--user", "*", "--consumer-byte-rate", "20000"]);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let config = ClientConfig { transport: Transport::Tcp, ..ClientConfig::default() };
        let client = Client::connect_with(Env::real(), &node.data, config).await.expect("connected");
        let config = ConsumerConfig { start: Start::Beginning, ..ConsumerConfig::default() };
        let mut consumer = client.consumer("s", config).await.expect("a consumer");
        // Each round is more than a second's worth, however long it takes.
        while client.reader_stats().cell_bytes < 25_000 {
            node.produce("s", &vec!["x".repeat(999); 50]);
            let mut read = 0;
            while read < 50 {
                read += consumer.next().await.expect("readable").expect("records").records().count();
            }
        }
    });
    assert!(exceeded(&node, "consumer_byte_rate") >= 1.0);
}

#[test]
fn who_owes_requests_connects_again_and_each_of_its_calls_is_answered_also_one_that_is_refused() {
    let (_dir, mut node) = Node::start_anew();
    node.run(&["stream", "create", "s"]);
    node.run(&["quota", "set", "--user", "*", "--request-rate", "2"]);
    for number in 0..4 {
        // Each is a connection of its own, and there is no such stream for every second one.
        let stream = ["s", "absent"][number % 2];
        let written = node.output(&["produce", stream, "--deadline-ms", "120000"], b"line\n");
        let told = String::from_utf8_lossy(&written.stderr);
        assert_eq!(written.status.success(), stream == "s", "{told}");
        assert!(!told.contains("timed out") && !told.contains("deadline"), "{told}");
    }
    assert!(node.process.stop(), "{}", node.process.log());
}

#[test]
fn an_address_makes_no_more_connections_and_requests_than_its_quota_says() {
    let (_dir, node) = Node::start_anew();
    node.run(&["quota", "set", "--address", "127.0.0.1", "--connection-creation-rate", "1"]);
    let mut open = Vec::new();
    wait_for("a connection too many", || {
        open.push(TcpStream::connect(&node.kafka).expect("it listens"));
        (exceeded(&node, "connection_creation_rate") >= 1.0).then_some(())
    });
    node.run(&["quota", "rm", "--address", "127.0.0.1"]);
    node.run(&["quota", "set", "--address", "*", "--request-rate", "1"]);
    let error = wait_for("a request too many", || {
        let listed = node.output(&["stream", "ls"], b"");
        (!listed.status.success()).then(|| String::from_utf8_lossy(&listed.stderr).into_owned())
    });
    assert!(error.contains("anonymous at 127.0.0.1 has used up its quota: request_rate"), "{error}");
    wait_for("its turn", || {
        node.output(&["quota", "rm", "--address", "*"], b"").status.success().then_some(())
    });
    need("kcat");
    let (ok, _, err) = told(Command::new("kcat").args(["-b", &node.kafka, "-m", "60", "-L"]), "");
    assert!(ok, "{err}");
    let error = node.run_failing(&["quota", "set", "--user", "a", "--connection-creation-rate", "1"]);
    assert!(error.contains("connection_creation_rate is of an address"), "{error}");
}
