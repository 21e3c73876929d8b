//! A connection over a pipe, to a broker over a real log.

use bytes::Bytes;
use tailwater_access::Everybody;
use tailwater_format::{BatchBuilder, Codec, ShardNumber, StreamId};
use tailwater_log::{FlushPolicy, Log, LogConfig, StreamConfig};

mod memory;
mod settings;

use super::*;
use crate::KafkaConfig;
use crate::messages::fetch::{FetchPartition, FetchRequest, FetchTopic};
use crate::messages::header::request;
use crate::messages::produce::{PartitionProduceData, ProduceRequest, TopicProduceData};
use crate::wire::RecordsBytes;

/// A log with a topic of one partition, and a broker in front of it.
async fn broker(dir: &std::path::Path) -> (Log, StreamId, Arc<Broker>) {
    broker_with(dir, KafkaConfig::default()).await
}

async fn broker_with(dir: &std::path::Path, config: KafkaConfig) -> (Log, StreamId, Arc<Broker>) {
    broker_in(&Env::real(), dir, config).await
}

/// The broker is in this world, its log in the real one.
async fn broker_in(env: &Env, dir: &std::path::Path, config: KafkaConfig) -> (Log, StreamId, Arc<Broker>) {
    let log = Log::open(&Env::real(), LogConfig::default(), dir, None).await.expect("it opens");
    let topic = log.create_stream("topic", StreamConfig::default()).await.expect("new").id;
    let opened = Broker::open(env, config, log.clone(), "cluster".to_owned(), Arc::new(Everybody), None);
    (log, topic, opened.await.expect("a broker"))
}

fn peer(broker: &Broker) -> Arc<Peer> {
    let local = SocketAddr::from(([127, 0, 0, 1], 9092));
    let who = tailwater_access::Peer::anonymous("test".to_owned());
    let next_fetch = Mutex::new(broker.env.now());
    Arc::new(Peer {
        address: local,
        connected: who,
        login: None,
        local,
        is_secured: false,
        advertised: None,
        next_fetch,
    })
}

fn connection<S>(stream: S, broker: &Arc<Broker>) -> Connection<S> {
    Connection {
        peer: peer(broker),
        stream,
        buffer: Buffer::default(),
        room: Room::None,
        under_way: VecDeque::new(),
        only_produce: true,
        held: Duration::ZERO,
        held_since: None,
        quota_changes: broker.quotas.changes(),
        broker: Arc::clone(broker),
    }
}

fn next_offset(log: &Log, topic: StreamId) -> u64 {
    log.tails(topic, &[ShardNumber(0)]).expect("it is there")[0].next_offset.0
}

fn produce(acks: i16, timeout_ms: i32) -> Bytes {
    produce_of(b"value", acks, timeout_ms)
}

fn produce_of(value: &[u8], acks: i16, timeout_ms: i32) -> Bytes {
    let mut batch = BatchBuilder::new();
    batch.append(None, Some(value), &[], Env::real().wall_ms()).expect("small");
    let records = RecordsBytes(vec![batch.finish(Codec::None)]);
    let partition_data = vec![PartitionProduceData { index: 0, records }];
    let topic = TopicProduceData { name: "topic".to_owned(), partition_data, ..Default::default() };
    let asked = ProduceRequest { acks, timeout_ms, topic_data: vec![topic], ..Default::default() };
    request(&asked, 9, 1, "test").concat()
}

/// A fetch for an hour, of more than there is.
fn waiting_fetch() -> Bytes {
    let partition = FetchPartition { partition_max_bytes: 1 << 20, ..Default::default() };
    let topic = FetchTopic { topic: "topic".to_owned(), partitions: vec![partition], ..Default::default() };
    let asked = FetchRequest {
        max_wait_ms: 3_600_000,
        min_bytes: 1 << 20,
        max_bytes: 1 << 20,
        session_epoch: -1,
        topics: vec![topic],
        ..Default::default()
    };
    request(&asked, 12, 2, "test").concat()
}

#[tokio::test]
async fn what_a_client_sent_before_it_went_away_is_carried_out() {
    let dir = tempfile::tempdir().expect("a directory");
    let (log, topic, broker) = broker(dir.path()).await;
    let (mut client, stream) = tokio::io::duplex(1 << 20);
    // The fetch waits, so what is behind it is read before its time has come.
    let frames = [waiting_fetch(), produce(0, 0), produce(0, 0), waiting_fetch(), produce(0, 0)].concat();
    client.write_all(&frames).await.expect("sent");
    drop(client);
    connection(stream, &broker).run().await.expect("no half request");
    while next_offset(&log, topic) < 3 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn what_is_read_of_a_large_request_that_may_not_begin_is_no_more_than_small_ones_take() {
    let dir = tempfile::tempdir().expect("a directory");
    let (_log, _, broker) = broker(dir.path()).await;
    let (mut client, stream) = tokio::io::duplex(4 << 20);
    let metadata = [(8_i32 << 20).to_be_bytes(), [0, 3, 0, 9]].concat();
    client.write_all(&[&waiting_fetch()[..], &metadata, &vec![0; 3 << 20]].concat()).await.expect("sent");
    let mut connection = connection(stream, &broker);
    {
        // Every read finds something, so that after so many of them it has read all that it wants.
        let mut running = Box::pin(connection.exchange());
        for _ in 0..1_000 {
            assert!((&mut running).now_or_never().is_none(), "the fetch waits");
            tokio::task::yield_now().await;
        }
    }
    let read = connection.buffer.len();
    assert!((AHEAD_BYTES_MAX..=AHEAD_BYTES_MAX + SMALL_FRAME_BYTES_MAX).contains(&read), "{read}");
}

#[tokio::test]
async fn half_a_request_at_the_end_is_not_carried_out_but_those_before_it_are() {
    let dir = tempfile::tempdir().expect("a directory");
    let (log, topic, broker) = broker(dir.path()).await;
    let (mut client, stream) = tokio::io::duplex(1 << 20);
    let half = produce(0, 0);
    let frames = [waiting_fetch(), produce(0, 0), half.slice(..half.len() / 2)].concat();
    client.write_all(&frames).await.expect("sent");
    drop(client);
    let ended = connection(stream, &broker).run().await;
    assert!(matches!(ended, Err(Closing::Cut)), "{ended:?}");
    while next_offset(&log, topic) < 1 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_large_batch_is_read_to_its_end_while_the_one_before_it_waits_for_the_disk() {
    let dir = tempfile::tempdir().expect("a directory");
    let (log, _, broker) = broker(dir.path()).await;
    let seldom =
        StreamConfig { flush: FlushPolicy::EveryMs(60_000), flush_bytes: 8 << 20, ..Default::default() };
    log.delete_stream("topic").await.expect("there");
    log.create_stream("topic", seldom).await.expect("new");
    // Less than what is read ahead of a request that may not begin.
    let (client, stream) = tokio::io::duplex(16 << 10);
    let (mut answers, mut requests) = tokio::io::split(client);
    let batch = produce_of(&vec![7; 4 * AHEAD_BYTES_MAX], -1, 3_600_000);
    let mut connection = connection(stream, &broker);
    tokio::select! {
        ended = connection.run() => panic!("it is not closed: {ended:?}"),
        answer = answers.read_i32() => panic!("the first is answered before the second is there: {answer:?}"),
        sent = async {
            requests.write_all(&batch).await?;
            requests.write_all(&batch).await
        } => sent.expect("both are taken"),
    }
}

#[tokio::test]
async fn a_produce_of_many_compressed_batches_lets_others_on_between_them() {
    let dir = tempfile::tempdir().expect("a directory");
    let (log, topic, broker) = broker(dir.path()).await;
    let batch = || {
        let mut batch = BatchBuilder::new();
        batch.append(None, Some(&[0; 1_000]), &[], Env::real().wall_ms()).expect("small");
        PartitionProduceData { index: 0, records: RecordsBytes(vec![batch.finish(Codec::Zstd)]) }
    };
    let partition_data = vec![batch(), batch(), batch()];
    let topic_data =
        vec![TopicProduceData { name: "topic".to_owned(), partition_data, ..Default::default() }];
    let asked = ProduceRequest { acks: -1, timeout_ms: 60_000, topic_data, ..Default::default() };
    let frame = request(&asked, 9, 1, "test").concat();
    let peer = peer(&broker);
    let mut begin = std::pin::pin!(broker.begin(&peer, frame.slice(4..), None));
    for _ in 0..2 {
        assert!(futures::poll!(&mut begin).is_pending(), "there is another batch");
    }
    begin.await.expect("well-formed").answer.await;
    assert_eq!(next_offset(&log, topic), 3);
}

#[tokio::test]
async fn a_fetch_of_many_partitions_lets_others_on_between_them() {
    let dir = tempfile::tempdir().expect("a directory");
    let (_log, _, broker) = broker(dir.path()).await;
    let partitions = (1..=1_000).map(|partition| FetchPartition { partition, ..Default::default() });
    let topic =
        FetchTopic { topic: "topic".to_owned(), partitions: partitions.collect(), ..Default::default() };
    let asked = FetchRequest { session_epoch: -1, topics: vec![topic], ..Default::default() };
    let frame = request(&asked, 12, 1, "test").concat();
    let mut answer = broker.begin(&peer(&broker), frame.slice(4..), None).await.expect("well-formed").answer;
    for _ in 0..3 {
        assert!(futures::poll!(&mut answer).is_pending(), "there are more");
    }
    assert!(matches!(answer.await, Outcome::Frame(..)));
}

#[tokio::test]
async fn looking_for_a_time_in_many_partitions_lets_others_on_between_them() {
    use crate::messages::fetch::{ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic};

    let dir = tempfile::tempdir().expect("a directory");
    let (log, _, broker) = broker(dir.path()).await;
    log.create_stream("three", StreamConfig { shards: 3, ..Default::default() }).await.expect("new");
    let partition_data = (0..3).map(|index| {
        let mut batch = BatchBuilder::new();
        batch.append(None, Some(&[0; 1_000]), &[], Env::real().wall_ms()).expect("small");
        PartitionProduceData { index, records: RecordsBytes(vec![batch.finish(Codec::Zstd)]) }
    });
    let topic = TopicProduceData {
        name: "three".to_owned(),
        partition_data: partition_data.collect(),
        ..Default::default()
    };
    let asked =
        ProduceRequest { acks: -1, timeout_ms: 60_000, topic_data: vec![topic], ..Default::default() };
    let frame = request(&asked, 9, 1, "test").concat();
    broker.begin(&peer(&broker), frame.slice(4..), None).await.expect("well-formed").answer.await;
    let partition =
        |partition_index| ListOffsetsPartition { partition_index, timestamp: 0, ..Default::default() };
    let topic = ListOffsetsTopic { name: "three".to_owned(), partitions: (0..3).map(partition).collect() };
    let asked = ListOffsetsRequest { topics: vec![topic], ..Default::default() };
    let frame = request(&asked, 5, 1, "test").concat();
    let mut answer = broker.begin(&peer(&broker), frame.slice(4..), None).await.expect("well-formed").answer;
    for _ in 0..3 {
        assert!(futures::poll!(&mut answer).is_pending(), "there is another batch");
    }
    assert!(matches!(answer.await, Outcome::Frame(..)));
}

#[tokio::test]
async fn the_time_that_a_producer_gives_others_does_not_bound_appends_that_wait_for_nobody() {
    let dir = tempfile::tempdir().expect("a directory");
    let (log, topic, broker) = broker(dir.path()).await;
    let (mut client, stream) = tokio::io::duplex(1 << 20);
    client.write_all(&[produce(1, 0), produce(0, 0), produce(1, 0)].concat()).await.expect("sent");
    let mut connection = connection(stream, &broker);
    let answers = async {
        let mut answers = Vec::new();
        for _ in 0..2 {
            let len = client.read_i32().await.expect("an answer");
            let mut answer = vec![0; len as usize];
            client.read_exact(&mut answer).await.expect("an answer");
            let answer = crate::messages::header::read_response(Api::Produce, 9, answer.into());
            let (_, answer): (i32, crate::messages::produce::ProduceResponse) = answer.expect("well-formed");
            answers.push(answer.responses[0].partition_responses[0].error_code);
        }
        answers
    };
    tokio::select! {
        ended = connection.run() => panic!("it is not closed: {ended:?}"),
        answers = answers => assert_eq!(answers, [0, 0]),
    }
    assert_eq!(next_offset(&log, topic), 3);
}

#[tokio::test]
async fn answers_that_are_not_sent_bound_what_others_read_but_for_a_batch() {
    const VALUE: usize = 100 << 10;
    let dir = tempfile::tempdir().expect("a directory");
    let config = KafkaConfig { answers_bytes_max: 1 << 20, ..KafkaConfig::default() };
    let (log, topic, broker) = broker_with(dir.path(), config).await;
    let peer = peer(&broker);
    let ask = async |frame: Bytes| {
        broker.begin(&peer, frame.slice(4..), None).await.expect("well-formed").answer.await
    };
    for _ in 0..8 {
        ask(produce_of(&[0; VALUE], 1, 0)).await;
    }
    assert_eq!(next_offset(&log, topic), 8);
    let mut unsent = Vec::new();
    let mut sizes = Vec::new();
    for _ in 0..20 {
        // It wants more than there is, and waits for nothing: there is no room for that.
        let Outcome::Frame(frame, room) = ask(waiting_fetch()).await else { panic!("an answer") };
        sizes.push(frame.len() / VALUE);
        unsent.push(room);
    }
    assert_eq!(sizes[0], 2, "a quarter of all");
    assert_eq!(sizes[19], 1, "{sizes:?}");
    let (left, _) = broker.take_answer_room(usize::MAX);
    assert!(left < VALUE, "{left}");
    drop(unsent);
    let (left, _) = broker.take_answer_room(usize::MAX);
    assert_eq!(left, 256 << 10, "all of it is there again");
}

#[tokio::test]
async fn large_answers_that_are_not_sent_are_bounded_together_and_small_ones_go_out_all_the_same() {
    use crate::messages::cluster::{MetadataRequest, MetadataRequestTopic};

    const BYTES_MAX: usize = 1 << 20;
    let dir = tempfile::tempdir().expect("a directory");
    let config = KafkaConfig { answers_bytes_max: BYTES_MAX, ..KafkaConfig::default() };
    let (_log, _, broker) = broker_with(dir.path(), config).await;
    let peer = peer(&broker);
    let ask = async |topics: usize| {
        let topic = |n| MetadataRequestTopic { name: Some(format!("{n:0>200}")), ..Default::default() };
        let topics = Some((0..topics).map(topic).collect());
        let asked = MetadataRequest { topics, allow_auto_topic_creation: false, ..Default::default() };
        let frame = request(&asked, 9, 1, "test").concat();
        broker.begin(&peer, frame.slice(4..), None).await.expect("well-formed").answer.await
    };
    let mut unsent = Vec::new();
    let refused = loop {
        match ask(1_000).await {
            Outcome::Frame(frame, room) => unsent.push((frame, room)),
            Outcome::Close(why) => break why,
            Outcome::Nothing => panic!("it waits for an answer"),
        }
    };
    assert!(refused.contains("answers_bytes_max is 1048576"), "{refused}");
    let held: usize = unsent.iter().map(|(frame, _)| frame.len()).sum();
    assert!(held <= BYTES_MAX && held + unsent[0].0.len() + (unsent.len() << 10) > BYTES_MAX, "{held}");
    assert!(matches!(ask(10).await, Outcome::Frame(_, room) if room.is_empty()), "a small one takes no room");
    drop(unsent);
    assert!(
        matches!(ask(1_000).await, Outcome::Frame(_, room) if room.len() == 1),
        "all of it is there again"
    );
    assert!(
        matches!(ask(10_000).await, Outcome::Frame(_, room) if room.len() == 1),
        "one larger than all room goes out alone"
    );
}

/// A Produce to the topic's partition, and to a thousand that it does not have.
fn produce_to_many() -> Bytes {
    let mut batch = BatchBuilder::new();
    batch.append(None, Some(b"value"), &[], Env::real().wall_ms()).expect("small");
    let records = RecordsBytes(vec![batch.finish(Codec::None)]);
    let mut partition_data = vec![PartitionProduceData { index: 0, records }];
    partition_data.extend((1..=1_000).map(|index| PartitionProduceData { index, ..Default::default() }));
    let topic = TopicProduceData { name: "topic".to_owned(), partition_data, ..Default::default() };
    let asked = ProduceRequest { acks: 1, topic_data: vec![topic], ..Default::default() };
    request(&asked, 9, 1, "test").concat()
}

#[tokio::test]
async fn large_answers_to_produce_that_are_not_sent_are_bounded_before_anything_is_appended() {
    const BYTES_MAX: usize = 1 << 20;
    let dir = tempfile::tempdir().expect("a directory");
    let config = KafkaConfig { answers_bytes_max: BYTES_MAX, ..KafkaConfig::default() };
    let (log, topic, broker) = broker_with(dir.path(), config).await;
    let peer = peer(&broker);
    let ask = async |frame: Bytes| {
        broker.begin(&peer, frame.slice(4..), None).await.expect("well-formed").answer.await
    };
    let mut unsent = Vec::new();
    let mut refused = None;
    for _ in 0..100 {
        match ask(produce_to_many()).await {
            Outcome::Frame(frame, room) => unsent.push((frame, room)),
            Outcome::Close(why) => {
                refused = Some(why);
                break;
            }
            Outcome::Nothing => panic!("it waits for an answer"),
        }
    }
    let refused = refused.expect("there is no room for so many");
    assert!(refused.contains("answers_bytes_max is 1048576"), "{refused}");
    assert_eq!(unsent.len(), 2, "what they may take at most counts");
    assert!(unsent.iter().all(|(_, room)| room.len() == 1));
    assert_eq!(next_offset(&log, topic), unsent.len() as u64, "nothing of what was refused");

    // What a connection sent before is answered, and what it sent behind is not begun.
    let (mut client, stream) = tokio::io::duplex(1 << 20);
    client.write_all(&[produce(1, 0), produce_to_many(), produce(1, 0)].concat()).await.expect("sent");
    let ended = connection(stream, &broker).run().await;
    assert!(matches!(ended, Err(Closing::Refused(_))), "{ended:?}");
    let mut answers = Vec::new();
    client.read_to_end(&mut answers).await.expect("closed");
    let one = u32::from_be_bytes(*answers.first_chunk().expect("an answer")) as usize;
    assert_eq!(answers.len(), 4 + one, "to the first");
    drop(unsent);
    let again = ask(produce_to_many()).await;
    assert!(matches!(again, Outcome::Frame(_, room) if room.len() == 1), "all of it is there again");
    assert_eq!(next_offset(&log, topic), 4, "two, one, and one");
}

#[tokio::test]
async fn the_words_of_errors_of_produce_are_no_longer_than_there_is_room_for() {
    let dir = tempfile::tempdir().expect("a directory");
    let (_log, _, broker) = broker(dir.path()).await;
    // What is said of a batch of each kind, and of one whose time is as far as can be.
    let mut builder = BatchBuilder::new();
    builder.append(None, Some(b"value"), &[], i64::MAX / 2).expect("small");
    for records in [builder.finish(Codec::None), Bytes::new(), vec![0xff; 100].into()] {
        let partition_data = vec![PartitionProduceData { index: 0, records: RecordsBytes(vec![records]) }];
        let topic = TopicProduceData { name: "topic".to_owned(), partition_data, ..Default::default() };
        let produce =
            ProduceRequest { acks: -1, timeout_ms: 30_000, topic_data: vec![topic], ..Default::default() };
        let mut answer = asked(&broker, 9, &produce).await;
        let partition = answer.responses.remove(0).partition_responses.remove(0);
        assert_ne!(partition.error_code, 0);
        let words = partition.error_message.expect("words").len();
        assert!((1..300).contains(&words), "{words}");
    }
}

#[tokio::test]
async fn a_fetch_that_waits_holds_none_of_the_room_for_requests() {
    let dir = tempfile::tempdir().expect("a directory");
    let (_log, _, broker) = broker(dir.path()).await;
    let all = broker.config.huge_bytes();
    let room = Arc::clone(&broker).take_room(all).await;
    let begun = broker.begin(&peer(&broker), waiting_fetch().slice(4..), room).await.expect("well-formed");
    let again = Arc::clone(&broker).take_room(all).now_or_never();
    assert!(again.flatten().is_some(), "all of it is there");
    drop(begun);
}

#[tokio::test]
async fn a_fetch_of_nothing_is_answered_at_once_however_long_it_may_wait() {
    let dir = tempfile::tempdir().expect("a directory");
    let (_log, _, broker) = broker(dir.path()).await;
    let empty = FetchTopic { topic: "topic".to_owned(), ..Default::default() };
    let fetch = FetchRequest {
        max_wait_ms: 3_600_000,
        min_bytes: 1,
        max_bytes: 1 << 20,
        session_epoch: -1,
        topics: vec![empty; 1_000],
        ..Default::default()
    };
    let answer = asked(&broker, 11, &fetch).await;
    assert_eq!((answer.error_code, answer.responses.len()), (0, 0));
}

#[tokio::test]
async fn a_very_large_request_that_waits_for_room_holds_none_of_the_others_up() {
    let dir = tempfile::tempdir().expect("a directory");
    let (_log, _, broker) = broker(dir.path()).await;
    let largest = broker.config.frame_bytes_max;
    let taken =
        Arc::clone(&broker).take_room(largest).now_or_never().flatten().expect("there is room for one");
    let mut next = Arc::clone(&broker).take_room(largest).boxed();
    assert!((&mut next).now_or_never().is_none(), "and for no second one");
    let common = Arc::clone(&broker).take_room(crate::COMMON_FRAME_BYTES_MAX).now_or_never();
    assert!(common.flatten().is_some(), "which others don't wait behind");
    drop(taken);
    assert!(next.now_or_never().flatten().is_some());
}

async fn asked<R: crate::api::ApiRequest>(broker: &Arc<Broker>, version: i16, asked: &R) -> R::Response {
    let frame = request(asked, version, 1, "test").concat();
    let begun = broker.begin(&peer(broker), frame.slice(4..), None).await.expect("well-formed");
    let Outcome::Frame(frame, _) = begun.answer.await else { panic!("an answer") };
    let answer = crate::messages::header::read_response(R::API, version, frame.concat().slice(4..));
    answer.expect("well-formed").1
}

#[tokio::test]
async fn what_a_request_names_twice_is_answered_once() {
    use crate::messages::cluster::{MetadataRequest, MetadataRequestTopic};
    use crate::messages::configs::{DescribeConfigsRequest, DescribeConfigsResource};
    use crate::messages::groups::{ConsumerGroupDescribeRequest, DescribeGroupsRequest};
    use crate::messages::offsets::{OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics};

    let dir = tempfile::tempdir().expect("a directory");
    let (_log, _, broker) = broker(dir.path()).await;
    let name = || "topic".to_owned();

    let topic = MetadataRequestTopic { name: Some(name()), ..Default::default() };
    let metadata = MetadataRequest { topics: Some(vec![topic; 3]), ..Default::default() };
    assert_eq!(asked(&broker, 9, &metadata).await.topics.len(), 1);

    let partition = FetchPartition { partition_max_bytes: 1 << 20, ..Default::default() };
    let topic = FetchTopic { topic: name(), partitions: vec![partition; 3], ..Default::default() };
    let fetch =
        FetchRequest { session_epoch: -1, max_bytes: 1, topics: vec![topic; 2], ..Default::default() };
    let answer = asked(&broker, 12, &fetch).await;
    assert_eq!(answer.responses.iter().map(|topic| topic.partitions.len()).sum::<usize>(), 1);

    let topic =
        OffsetFetchRequestTopics { name: name(), partition_indexes: vec![0, 0, 1, 0], ..Default::default() };
    let group = OffsetFetchRequestGroup {
        group_id: "group".to_owned(),
        topics: Some(vec![topic; 2]),
        member_epoch: -1,
        ..Default::default()
    };
    let fetch = OffsetFetchRequest { groups: vec![group; 2], ..Default::default() };
    let answer = asked(&broker, 8, &fetch).await;
    assert_eq!(answer.groups.len(), 1);
    let partitions = answer.groups[0].topics.iter().flat_map(|topic| &topic.partitions);
    assert_eq!(partitions.map(|partition| partition.partition_index).collect::<Vec<_>>(), [0, 1]);

    let resource =
        DescribeConfigsResource { resource_type: 2, resource_name: name(), configuration_keys: None };
    let describe = DescribeConfigsRequest { resources: vec![resource; 2], ..Default::default() };
    assert_eq!(asked(&broker, 4, &describe).await.results.len(), 1);

    let groups = vec!["group".to_owned(); 2];
    let describe = DescribeGroupsRequest { groups: groups.clone(), ..Default::default() };
    assert_eq!(asked(&broker, 5, &describe).await.groups.len(), 1);
    let describe = ConsumerGroupDescribeRequest { group_ids: groups, ..Default::default() };
    assert_eq!(asked(&broker, 0, &describe).await.groups.len(), 1);
}
