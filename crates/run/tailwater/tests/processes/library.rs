//! The client library against a real node, as an application uses it.

use crate::support::{Node, PATIENCE, wait_for};
use tailwater_client::{Client, ClientConfig, ConsumerConfig, Error, ProducerSettings, Start, Transport};
use tailwater_format::call::CallErrorCode;

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

#[test]
fn explicit_transaction_ids_position_exactly_and_a_decreasing_one_is_refused() {
    let (_dir, node) = Node::with_stream(&["s"]);
    runtime().block_on(async {
        let client = Client::connect(&node.data).await.expect("connected");
        let config = ProducerSettings { explicit_transaction_ids: true, ..ProducerSettings::default() };
        let producer = client.producer("s", config).await.expect("a producer");
        for id in [10, 20, 20, 35] {
            let value = format!("transaction {id}");
            producer.send_at(0, id, None, value.as_bytes()).expect("room").await.expect("appended");
        }
        let refused = producer.send_at(0, 34, None, b"too late").expect("room").await;
        let Err(Error::Refused(refusal)) = refused else { panic!("{refused:?}") };
        assert_eq!(refusal.code, CallErrorCode::TransactionIdDecreased);

        for (wanted, first) in [(0, 0), (10, 0), (11, 1), (20, 1), (21, 3), (35, 3)] {
            let config = ConsumerConfig { start: Start::TransactionId(wanted), ..Default::default() };
            let mut consumer = client.consumer("s", config).await.expect("a consumer");
            let batch = consumer.next().await.expect("readable").expect("records");
            let record = batch.records().next().expect("a record");
            assert_eq!(record.offset.0, first, "the first record with a transaction id of at least {wanted}");
        }
    });
}

#[test]
fn a_consumer_knows_how_far_behind_it_is_in_each_shard() {
    let (_dir, node) = Node::with_stream(&["s", "--shards", "2"]);
    runtime().block_on(async {
        let client = Client::connect(&node.data).await.expect("connected");
        let producer = client.producer("s", ProducerSettings::default()).await.expect("a producer");
        for number in 0..10 {
            producer.send_at(0, number, None, b"value").expect("room").await.expect("appended");
        }
        let config = ConsumerConfig { start: Start::Beginning, ..ConsumerConfig::default() };
        let mut consumer = client.consumer("s", config).await.expect("a consumer");
        let known = |lag: tailwater_client::Lag| lag.end_offset.map(|end| end.0);
        while consumer.lags().filter_map(known).collect::<Vec<_>>() != [10, 0] {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        let lags: Vec<_> = consumer.lags().collect();
        assert_eq!(lags.iter().map(|lag| (lag.shard, lag.records())).collect::<Vec<_>>(), [(0, 10), (1, 0)]);
        assert_eq!(lags[0].time, None, "nothing was read that tells");
        assert_eq!(lags[1].time, Some(std::time::Duration::ZERO));
        let mut read = 0;
        while read < 10 {
            let batch = consumer.next().await.expect("readable").expect("records");
            read += batch.records().count() as u64;
            let lag = consumer.lags().next().expect("shard 0");
            assert_eq!(lag.records(), 10 - read);
            // Their timestamps are a few ms of 1970.
            let age = lag.time.expect("something was read");
            assert!(if read < 10 { age.as_secs() > 1_000_000_000 } else { age.is_zero() }, "{lag:?}");
        }
    });
}

#[test]
fn more_consumers_and_shards_than_a_connection_may_ask_for_at_once_start_at_the_same_time() {
    let (_dir, node) = Node::with_stream(&["s", "--shards", "32"]);
    runtime().block_on(async {
        let client = Client::connect(&node.data).await.expect("connected");
        let config = || ConsumerConfig { start: Start::Beginning, ..ConsumerConfig::default() };
        let starting = (0..300).map(|_| client.consumer("s", config()));
        let consumers = futures::future::try_join_all(starting).await.expect("all of them start");
        assert!(consumers.iter().all(|consumer| consumer.offsets().count() == 32));
    });
}

/// Has the sockets of `theirs` at the paths that `node` tells of its own.
fn take_the_sockets(node: &Node, theirs: &Node, names: &[&str]) {
    for name in names {
        let path = node.dir.join(name);
        std::fs::remove_file(&path).expect("the node's own");
        std::fs::hard_link(theirs.dir.join(name), path).expect("linked");
    }
}

#[test]
fn another_node_s_cells_at_the_paths_that_a_node_tells_are_not_read_and_its_own_are_over_tcp() {
    let dir = tempfile::tempdir().expect("a directory");
    let [here, there] = ["here", "there"].map(|name| Node::start(&dir.path().join(name)));
    take_the_sockets(&there, &here, &["data-cell.sock", "metadata-cell.sock"]);
    there.run(&["stream", "create", "s"]);
    runtime().block_on(async {
        // By TCP, as from another host, where the same paths are its own node's.
        let client = Client::connect(&there.data).await.expect("connected");
        let producer = client.producer("s", ProducerSettings::default()).await.expect("a producer");
        let config = ConsumerConfig { start: Start::Beginning, ..ConsumerConfig::default() };
        let mut consumer = client.consumer("s", config).await.expect("a consumer");
        for number in 0.. {
            producer.send(None, b"value").expect("room").await.expect("appended");
            let batch = consumer.next().await.expect("readable").expect("records");
            assert_eq!(batch.records().count(), 1);
            // Whoever reads the wrong cells misses for ever, and gets a record in a second.
            if client.reader_stats().cell_bytes > 0 {
                break;
            }
            assert!(number < 60, "nothing came from a cell: {:?}", client.reader_stats());
        }
    });
}

#[test]
fn the_command_line_appends_to_the_node_that_was_named_although_another_one_has_its_socket_s_path_here() {
    let dir = tempfile::tempdir().expect("a directory");
    let [here, there] = ["here", "there"].map(|name| Node::start(&dir.path().join(name)));
    take_the_sockets(&there, &here, &["node.sock"]);
    for node in [&here, &there] {
        node.run(&["stream", "create", "news"]);
    }
    there.produce("news", &["for there".to_owned()]);
    assert_eq!(there.consume("news"), ["for there"]);
    assert_eq!(here.consume("news"), Vec::<String>::new());
}

#[test]
fn a_node_whose_address_is_another_node_s_from_here_is_an_error_that_says_what_to_set() {
    let dir = tempfile::tempdir().expect("a directory");
    let here = Node::start(&dir.path().join("here"));
    let environment = [
        ("TAILWATER_LISTEN__ADVERTISED_DATA", here.data.as_str()),
        ("TAILWATER_LISTEN__UNIX", "elsewhere.sock"),
    ];
    let there = Node::start_with(&dir.path().join("there"), &[], &environment);
    std::fs::remove_file(there.dir.join("elsewhere.sock")).expect("its socket");
    for node in [&here, &there] {
        node.run(&["stream", "create", "news"]);
    }
    let error = there.run_failing(&["produce", "news"]);
    assert!(error.contains("another node answers") && error.contains("advertised_data"), "{error}");
}

#[test]
fn every_codec_comes_back_over_shared_memory_and_over_tcp() {
    use tailwater_format::batch::Codec;
    let (_dir, node) = Node::with_stream(&["s"]);
    runtime().block_on(async {
        let client = Client::connect(&node.data).await.expect("connected");
        let mut sent = Vec::new();
        for codec in Codec::ALL {
            let config = ProducerSettings { codec, ..ProducerSettings::default() };
            let producer = client.producer("s", config).await.expect("a producer");
            for number in 0..200 {
                let value = format!("{codec} {number} {}", "text that repeats ".repeat(10));
                drop(producer.send(Some(b"key"), value.as_bytes()).expect("room"));
                sent.push(value);
            }
            producer.flush().await;
        }
        for transport in [Transport::Shm, Transport::Tcp] {
            let config = ClientConfig { transport, ..ClientConfig::default() };
            let env = tailwater_env::Env::real();
            let client = Client::connect_with(env, &node.data, config).await.expect("connected");
            let config = ConsumerConfig { start: Start::Beginning, ..Default::default() };
            let mut consumer = client.consumer("s", config).await.expect("a consumer");
            let mut received = Vec::new();
            while received.len() < sent.len() {
                let batch = consumer.next().await.expect("readable").expect("records");
                for record in batch.records() {
                    let value = record.value.expect("a value").to_vec();
                    received.push(String::from_utf8(value).expect("text"));
                }
            }
            assert_eq!(received, sent, "{transport:?}");
        }
    });
}

#[test]
fn a_client_over_tcp_finds_the_cells_of_a_restarted_node_again_the_log_s_and_one_that_it_named() {
    let (_dir, mut node) = Node::with_stream(&["s"]);
    node.run(&["cell", "create", "tiles", "--backends", "1", "--mode", "r1", "--capacity-bytes", "16777216"]);
    runtime().block_on(async {
        let config = ClientConfig { transport: Transport::Tcp, ..ClientConfig::default() };
        let client = Client::connect_with(tailwater_env::Env::real(), &node.data, config).await;
        let client = client.expect("connected");
        let producer = client.producer("s", ProducerSettings::default()).await.expect("a producer");
        let config = ConsumerConfig { start: Start::Beginning, ..ConsumerConfig::default() };
        let mut consumer = client.consumer("s", config).await.expect("a consumer");
        let mut sent: u64 = 0;
        // One by one, so that each is at the tail when it is read; ends when one came out of a cell.
        let mut until_one_came_from_a_cell = async || {
            let before = client.reader_stats().cell_bytes;
            while client.reader_stats().cell_bytes == before {
                let value = sent.to_string();
                producer.send_to(0, None, value.as_bytes()).expect("room").await.expect("appended");
                let batch = consumer.next().await.expect("readable").expect("records");
                let values: Vec<_> =
                    batch.records().map(|record| record.value.expect("one").to_vec()).collect();
                assert_eq!(values, [value.into_bytes()]);
                sent += 1;
            }
        };
        let missing = client.cell("nowhere", |_| {}).await.map(drop).expect_err("there is none");
        assert!(missing.is_unknown_cell() && missing.to_string().contains("cell create"), "{missing}");
        let tiles = client.cell("tiles", |config| config.deadline = PATIENCE).await.expect("it is there");
        let set = async || tiles.set(vec![("tea".into(), "Assam".into())]).await.remove(0);
        set().await.expect("its backend answers");
        until_one_came_from_a_cell().await;
        node.process.kill();
        node.restart();
        until_one_came_from_a_cell().await;
        // Its backend is at another port.
        while let Err(error) = set().await {
            assert!(error.is_unknown(), "{error}");
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
    });
}

#[test]
fn records_that_a_dying_node_may_have_taken_are_there_once_and_in_order() {
    let (_dir, mut node) = Node::with_stream(&["s"]);
    let runtime = runtime();
    let address = node.data.clone();
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let stopping = std::sync::Arc::clone(&stop);
    // Sends without a pause while the node is killed again and again; every record must end acknowledged.
    let sending = runtime.spawn(async move {
        let client = Client::connect(&address).await.expect("connected");
        let producer = client.producer("s", ProducerSettings::default()).await.expect("a producer");
        let mut acks = std::collections::VecDeque::new();
        let mut count = 0_u64;
        while !stopping.load(std::sync::atomic::Ordering::Relaxed) {
            while acks.len() < 100 {
                acks.push_back(producer.send_to(0, None, count.to_string().as_bytes()).expect("room"));
                count += 1;
            }
            acks.pop_front().expect("100 of them").await.expect("acknowledged in the end");
        }
        for ack in acks {
            ack.await.expect("acknowledged in the end");
        }
        count
    });
    for _ in 0..4 {
        wait_for("some appends", || {
            let metrics = node.get("/metrics")?;
            let line = metrics.lines().find(|line| line.starts_with("tailwater_log_appends_total "))?;
            let appends: f64 = line.rsplit(' ').next()?.parse().ok()?;
            (appends > 50.0).then_some(())
        });
        node.process.kill();
        node.restart();
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    let count = runtime.block_on(sending).expect("it ended");
    let expected: Vec<String> = (0..count).map(|number| number.to_string()).collect();
    assert_eq!(node.consume("s"), expected);
}
