//! What is kept of requests and answers, and for how long, counts as long as it is kept.

use bytes::BufMut;

use super::*;

/// A topic of one partition that flushes when it has so many bytes.
async fn gathers(log: &Log, name: &str, flush_bytes: u32) -> StreamId {
    let config = StreamConfig { flush: FlushPolicy::EveryMs(60_000), flush_bytes, ..Default::default() };
    log.create_stream(name, config).await.expect("new").id
}

/// A Produce of one batch to the partition of each of these topics.
fn produce_to(topics: &[(&str, usize)], timeout_ms: i32) -> Bytes {
    let topic_data = topics.iter().map(|(name, bytes)| {
        let mut batch = BatchBuilder::new();
        batch.append(None, Some(&vec![7; *bytes]), &[], Env::real().wall_ms()).expect("small");
        let records = RecordsBytes(vec![batch.finish(Codec::None)]);
        let partition_data = vec![PartitionProduceData { index: 0, records }];
        TopicProduceData { name: (*name).to_owned(), partition_data, ..Default::default() }
    });
    let topic_data = topic_data.collect();
    let asked = ProduceRequest { acks: -1, timeout_ms, topic_data, ..Default::default() };
    request(&asked, 9, 1, "test").concat()
}

/// A Fetch of one batch of a topic's partition from an offset on.
fn fetch_of_one(topic: &str, fetch_offset: i64) -> Bytes {
    let partition = FetchPartition { fetch_offset, partition_max_bytes: 1, ..Default::default() };
    let topic = FetchTopic { topic: topic.to_owned(), partitions: vec![partition], ..Default::default() };
    let asked = FetchRequest { max_bytes: 1, session_epoch: -1, topics: vec![topic], ..Default::default() };
    request(&asked, 12, 2, "test").concat()
}

async fn outcome(broker: &Arc<Broker>, frame: &Bytes) -> Outcome {
    broker.begin(&peer(broker), frame.slice(4..), None).await.expect("well-formed").answer.await
}

/// KiB that an answer holds, and its bytes.
async fn held(broker: &Arc<Broker>, frame: &Bytes) -> (usize, usize) {
    let Outcome::Frame(answer, room) = outcome(broker, frame).await else { panic!("an answer") };
    (room.iter().map(OwnedSemaphorePermit::num_permits).sum(), answer.len())
}

#[tokio::test]
async fn an_answer_holds_room_for_the_memory_that_its_records_keep_and_not_for_their_bytes() {
    let dir = tempfile::tempdir().expect("a directory");
    // From memory, and from the disk.
    for hot_bytes in [64 << 20, 0] {
        let name = format!("of-{hot_bytes}");
        let env = Env::real();
        let config = LogConfig { hot_bytes, ..LogConfig::default() };
        let log = Log::open(&env, config, &dir.path().join(&name), None).await.expect("it opens");
        let opened =
            Broker::open(&env, KafkaConfig::default(), log.clone(), String::new(), Arc::new(Everybody), None);
        let broker = opened.await.expect("a broker");
        gathers(&log, "topic", 300_000).await;
        // One entry of 20 and 300 KiB.
        let first = produce_to(&[("topic", 20 << 10)], 60_000);
        let second = produce_to(&[("topic", 300 << 10)], 60_000);
        let waits = broker.begin(&peer(&broker), first.slice(4..), None).await.expect("well-formed");
        outcome(&broker, &second).await;
        waits.answer.await;
        let (room, bytes) = held(&broker, &fetch_of_one("topic", 0)).await;
        assert!((20..25).contains(&(bytes >> 10)) && room <= 25, "a copy of the small one: {room}, {bytes}");
        let (room, bytes) = held(&broker, &fetch_of_one("topic", 1)).await;
        assert!((300..305).contains(&(bytes >> 10)), "{bytes}");
        assert!((320..330).contains(&room), "all of the entry: {room}");
        log.close().await;
    }
}

#[tokio::test]
async fn an_answer_for_whose_memory_there_is_no_room_keeps_its_bytes_alone() {
    let dir = tempfile::tempdir().expect("a directory");
    let config = KafkaConfig { answers_bytes_max: 1 << 20, ..KafkaConfig::default() };
    let (log, _, broker) = broker_with(dir.path(), config).await;
    gathers(&log, "gathers", 300_000).await;
    let first = produce_to(&[("gathers", 200 << 10)], 60_000);
    let waits = broker.begin(&peer(&broker), first.slice(4..), None).await.expect("well-formed");
    outcome(&broker, &produce_to(&[("gathers", 300 << 10)], 60_000)).await;
    waits.answer.await;
    let all = broker.fit_answer_room(None, 1 << 20).expect("all of it");
    let Outcome::Frame(answer, room) = outcome(&broker, &fetch_of_one("gathers", 1)).await else {
        panic!("one batch goes out in any case")
    };
    assert_eq!(room.iter().map(OwnedSemaphorePermit::num_permits).sum::<usize>(), 0);
    assert_eq!(answer.pieces.len(), 1, "nothing is shared");
    drop(all);
    let Outcome::Frame(answer, _) = outcome(&broker, &fetch_of_one("gathers", 1)).await else {
        panic!("an answer")
    };
    assert!(answer.pieces.len() > 1, "where there is room it is");
}

#[tokio::test]
async fn what_an_answer_to_a_fetch_says_of_many_partitions_is_bounded_as_other_answers_are() {
    let dir = tempfile::tempdir().expect("a directory");
    let config = KafkaConfig { answers_bytes_max: 1 << 20, ..KafkaConfig::default() };
    let (_log, _, broker) = broker_with(dir.path(), config).await;
    let fetch_of = |partitions: i32| {
        let partition = |partition| FetchPartition { partition, ..Default::default() };
        let partitions = (1..=partitions).map(partition).collect();
        let topics = vec![FetchTopic { topic: "topic".to_owned(), partitions, ..Default::default() }];
        let asked = FetchRequest { max_bytes: 1, session_epoch: -1, topics, ..Default::default() };
        request(&asked, 12, 2, "test").concat()
    };
    let mut unsent = Vec::new();
    let refused = loop {
        match outcome(&broker, &fetch_of(10_000)).await {
            Outcome::Frame(frame, room) => unsent.push((frame, room)),
            Outcome::Close(why) => break why,
            Outcome::Nothing => panic!("it waits for an answer"),
        }
        assert!(unsent.len() < 100, "there is no end of it");
    };
    assert!(refused.contains("answers_bytes_max is 1048576"), "{refused}");
    assert!(unsent.iter().map(|(frame, _)| frame.len()).sum::<usize>() <= 1 << 20);
    assert!(matches!(outcome(&broker, &fetch_of(10)).await, Outcome::Frame(..)), "small ones go out");
}

#[tokio::test]
async fn a_connection_s_answers_to_produce_leave_room_for_those_of_others() {
    const BYTES_MAX: usize = 4 << 20;
    let dir = tempfile::tempdir().expect("a directory");
    let config = KafkaConfig { answers_bytes_max: BYTES_MAX, ..KafkaConfig::default() };
    let (log, _, broker) = broker_with(dir.path(), config).await;
    // None of them is answered, so it does not matter who reads.
    log.delete_stream("topic").await.expect("there");
    gathers(&log, "topic", 8 << 20).await;
    let (mut client, stream) = tokio::io::duplex(1 << 20);
    for _ in 0..20 {
        client.write_all(&produce_to_many()).await.expect("sent");
    }
    let mut connection = connection(stream, &broker);
    {
        // Each time all that may begin begins.
        let mut running = Box::pin(connection.exchange());
        for _ in 0..1_000 {
            assert!((&mut running).now_or_never().is_none(), "they wait");
            tokio::task::yield_now().await;
        }
    }
    let one = connection.under_way[0].answer_bytes;
    assert!(one > BYTES_MAX / 16, "{one}");
    assert!(connection.under_way.len() > 1, "some are under way together");
    let held: usize = connection.under_way.iter().map(|begun| begun.answer_bytes).sum();
    assert!(held <= BYTES_MAX / 4 + one, "{held}");
    broker.room_for_answer(BYTES_MAX / 2).expect("there is room for others");
}

/// A frame, and whether anybody has any of its bytes.
fn watched(frame: &Bytes) -> (Bytes, std::sync::Weak<()>) {
    struct Watched(Bytes, #[allow(dead_code)] Arc<()>); // it is there as long as its bytes are
    impl AsRef<[u8]> for Watched {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }
    let alive = Arc::new(());
    let watch = Arc::downgrade(&alive);
    (Bytes::from_owner(Watched(frame.slice(4..), alive)), watch)
}

#[tokio::test]
async fn a_small_batch_that_waits_in_the_log_keeps_nothing_of_the_request_that_it_came_in() {
    let dir = tempfile::tempdir().expect("a directory");
    let (log, _, broker) = broker(dir.path()).await;
    gathers(&log, "gathers", 8 << 20).await;
    let (frame, watch) = watched(&produce_to(&[("nowhere", 50_000), ("gathers", 100)], 60_000));
    let begun = broker.begin(&peer(&broker), frame, None).await.expect("well-formed");
    assert_eq!(watch.strong_count(), 0, "it was copied");
    // What makes up most of it is not.
    let (frame, watch) = watched(&produce_to(&[("gathers", 50_000)], 60_000));
    let shared = broker.begin(&peer(&broker), frame, None).await.expect("well-formed");
    assert_eq!(watch.strong_count(), 1);
    drop((begun, shared));
}

#[tokio::test]
async fn a_large_produce_has_its_room_as_long_as_the_log_keeps_a_batch_of_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let (log, _, broker) = broker(dir.path()).await;
    gathers(&log, "gathers", 8 << 20).await;
    let all = broker.config.huge_bytes();
    let is_free = || Arc::clone(&broker).take_room(all).now_or_never().flatten().is_some();
    let room = Arc::clone(&broker).take_room(all).await;
    // It does not wait for the log.
    let frame = produce_to(&[("nowhere", 1 << 20), ("gathers", 100)], 0);
    let begun = broker.begin(&peer(&broker), frame.slice(4..), room).await.expect("well-formed");
    assert!(matches!(begun.answer.await, Outcome::Frame(..)));
    assert!(!is_free(), "the batch is not in its entry yet");
    log.delete_stream("gathers").await.expect("there");
    while !is_free() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_connection_keeps_nothing_of_the_large_requests_that_it_has_carried_out() {
    let dir = tempfile::tempdir().expect("a directory");
    let (_log, _, broker) = broker(dir.path()).await;
    let (client, stream) = tokio::io::duplex(64 << 10);
    let (mut answers, mut requests) = tokio::io::split(client);
    let mut connection = connection(stream, &broker);
    let talk = async {
        for _ in 0..3 {
            requests.write_all(&produce_to(&[("topic", 3 << 20)], 60_000)).await.expect("taken");
            let len = answers.read_i32().await.expect("an answer");
            answers.read_exact(&mut vec![0; len as usize]).await.expect("all of it");
        }
    };
    tokio::select! {
        ended = connection.run() => panic!("it is not closed: {ended:?}"),
        () = talk => {}
    }
    assert!(
        connection.buffer.memory() <= AHEAD_BYTES_MAX + SMALL_FRAME_BYTES_MAX,
        "{}",
        connection.buffer.memory()
    );
}

#[tokio::test]
async fn the_memory_of_a_large_frame_grows_seldom_however_small_the_pieces_are_in_which_it_comes() {
    const LEN: usize = 30 << 20;
    let dir = tempfile::tempdir().expect("a directory");
    let (_log, _, broker) = broker(dir.path()).await;
    let (_client, stream) = tokio::io::duplex(1);
    let mut connection = connection(stream, &broker);
    let mut frame = vec![0; LEN + 4];
    frame[..4].copy_from_slice(&(LEN as u32).to_be_bytes());
    let (mut grown, mut memory) = (0, 0);
    let mut rest = &frame[..];
    while !rest.is_empty() {
        if connection.buffer.len() >= SMALL_FRAME_BYTES_MAX && matches!(connection.room, Room::None) {
            let permit = Arc::clone(&broker).take_room(LEN).await;
            connection.room = connection.taken(permit, LEN);
        }
        let (least, count) = connection.wanted();
        let mut space = connection.buffer.space(least, count);
        let piece = space.remaining_mut().min(1 << 10).min(rest.len());
        assert!(piece > 0, "it would look like the end of the stream");
        space.put_slice(&rest[..piece]);
        rest = &rest[piece..];
        let before = std::mem::replace(&mut memory, connection.buffer.memory());
        grown += usize::from(memory != before);
        assert!(memory <= 2 * connection.buffer.len() + GROW_BYTES, "{memory}: it takes memory as it comes");
    }
    // Small steps up to 64 KiB, one to a MiB, and then it doubles.
    assert!(grown <= 15, "{grown}");
    assert!(memory <= LEN + 4 + READ_BYTES, "{memory}");
    assert_eq!(connection.buffer.take(LEN), frame[4..]);
}
