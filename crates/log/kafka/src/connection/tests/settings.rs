//! What settings of a broker do at its connections, from the file and set while it runs; by a clock that the test
//! moves.

use futures::task::Poll;
use tokio::io::DuplexStream;

use super::*;
use crate::messages::cluster::ApiVersionsRequest;
use crate::messages::configs::{
    IncrementalAlterConfigsRequest, IncrementalAlterConfigsRequestAlterConfigsResource,
    IncrementalAlterConfigsRequestAlterableConfig,
};
use crate::moved::{MOMENT, MovedClock, SECOND};

/// Sets one of all brokers' settings, as an administrator does.
async fn set(broker: &Arc<Broker>, name: &str, value: &str) {
    let config = IncrementalAlterConfigsRequestAlterableConfig {
        name: name.to_owned(),
        config_operation: 0,
        value: Some(value.to_owned()),
    };
    let resource = IncrementalAlterConfigsRequestAlterConfigsResource {
        resource_type: 4,
        resource_name: String::new(),
        configs: vec![config],
    };
    let request = IncrementalAlterConfigsRequest { resources: vec![resource], validate_only: false };
    let answer = asked(broker, 1, &request).await;
    assert_eq!(answer.responses[0].error_code, 0, "{answer:?}");
}

/// A request, and its answer.
async fn exchanges(client: &mut DuplexStream) {
    let frame = request(&ApiVersionsRequest::default(), 0, 1, "test").concat();
    client.write_all(&frame).await.expect("sent");
    let len = client.read_i32().await.expect("an answer");
    client.read_exact(&mut vec![0; len as usize]).await.expect("an answer");
}

#[tokio::test]
async fn a_connection_is_closed_when_it_was_idle_for_so_long_and_not_before_and_what_is_set_counts_from_the_next_request()
 {
    let dir = tempfile::tempdir().expect("a directory");
    let (clock, env) = MovedClock::new();
    let config = KafkaConfig { idle_ms: 10_000, ..KafkaConfig::default() };
    let (_log, _, broker) = broker_in(&env, dir.path(), config).await;
    let (mut client, stream) = tokio::io::duplex(1 << 20);
    let mut connection = connection(stream, &broker);
    let mut running = std::pin::pin!(connection.run());
    let mut passes = async |duration, client: Option<&mut DuplexStream>| {
        clock.pass(duration).await;
        if let Some(client) = client {
            tokio::select! {
                ended = &mut running => panic!("it asks for something: {ended:?}"),
                () = exchanges(client) => {}
            }
        }
        futures::poll!(&mut running)
    };
    assert!(passes(Duration::ZERO, None).await.is_pending());
    assert!(passes(10 * SECOND - MOMENT, Some(&mut client)).await.is_pending());
    set(&broker, "connections.max.idle.ms", "4000").await;
    // It was told of nothing yet.
    assert!(passes(10 * SECOND - MOMENT, Some(&mut client)).await.is_pending());
    assert!(passes(4 * SECOND - MOMENT, None).await.is_pending(), "it has a moment left");
    let ended = passes(MOMENT, None).await;
    assert!(matches!(&ended, Poll::Ready(Err(Closing::Idle(idle))) if *idle == 4 * SECOND), "{ended:?}");
}

/// A topic with eight batches of 100 KiB, and a broker of it.
async fn broker_of_eight(dir: &std::path::Path) -> (Log, Arc<Broker>) {
    let (log, topic, broker) = broker(dir).await;
    for _ in 0..8 {
        let frame = produce_of(&[0; 100 << 10], 1, 0);
        broker.begin(&peer(&broker), frame.slice(4..), None).await.expect("well-formed").answer.await;
    }
    assert_eq!(next_offset(&log, topic), 8);
    (log, broker)
}

/// A Fetch with these `min_bytes`, `max_bytes` and `partition_max_bytes`.
fn fetch_of([min_bytes, max_bytes, partition_max_bytes]: [i32; 3]) -> FetchRequest {
    let partition = FetchPartition { partition_max_bytes, ..Default::default() };
    let topic = FetchTopic { topic: "topic".to_owned(), partitions: vec![partition], ..Default::default() };
    FetchRequest {
        max_wait_ms: 3_600_000,
        min_bytes,
        max_bytes,
        session_epoch: -1,
        topics: vec![topic],
        ..Default::default()
    }
}

/// Whole batches of 100 KiB in the answer to it.
async fn batches_of(broker: &Arc<Broker>, fetch: &FetchRequest) -> usize {
    let mut answer = asked(broker, 12, fetch).await;
    answer.responses[0].partitions.remove(0).records.into_bytes().len() / (100 << 10)
}

#[tokio::test]
async fn an_answer_to_a_fetch_is_as_long_as_the_shortest_of_what_is_set_and_what_is_asked_for() {
    let dir = tempfile::tempdir().expect("a directory");
    let (_log, broker) = broker_of_eight(dir.path()).await;
    const ALL: i32 = 1 << 20;
    assert_eq!(batches_of(&broker, &fetch_of([1, ALL, ALL])).await, 8);
    assert_eq!(batches_of(&broker, &fetch_of([1, 450 << 10, ALL])).await, 4);
    assert_eq!(batches_of(&broker, &fetch_of([1, ALL, 250 << 10])).await, 2);
    set(&broker, "fetch.max.bytes", &(350 << 10).to_string()).await;
    assert_eq!(batches_of(&broker, &fetch_of([1, ALL, ALL])).await, 3);
    assert_eq!(batches_of(&broker, &fetch_of([1, ALL, 250 << 10])).await, 2);
    // A longer batch still goes out, alone.
    set(&broker, "fetch.max.bytes", "1024").await;
    assert_eq!(batches_of(&broker, &fetch_of([1, ALL, ALL])).await, 1);
}

#[tokio::test]
async fn a_fetch_whose_next_batch_does_not_fit_is_answered_though_it_has_less_than_it_wants() {
    let dir = tempfile::tempdir().expect("a directory");
    let (_log, broker) = broker_of_eight(dir.path()).await;
    // Each would wait for an hour.
    for limits in [[1 << 20, 450 << 10, 1 << 20], [450 << 10, 1 << 20, 450 << 10]] {
        assert_eq!(batches_of(&broker, &fetch_of(limits)).await, 4);
    }
    set(&broker, "fetch.max.bytes", &(350 << 10).to_string()).await;
    assert_eq!(batches_of(&broker, &fetch_of([1 << 20, 1 << 20, 1 << 20])).await, 3);
}

#[tokio::test]
async fn a_fetch_that_has_all_there_is_waits_for_more() {
    let dir = tempfile::tempdir().expect("a directory");
    let (_log, broker) = broker_of_eight(dir.path()).await;
    let fetch = fetch_of([850 << 10, 1 << 20, 1 << 20]);
    let mut waits = std::pin::pin!(batches_of(&broker, &fetch));
    for _ in 0..100 {
        assert!(futures::poll!(&mut waits).is_pending());
        tokio::task::yield_now().await;
    }
    let frame = produce_of(&[0; 100 << 10], 1, 0);
    broker.begin(&peer(&broker), frame.slice(4..), None).await.expect("well-formed").answer.await;
    assert_eq!(waits.await, 9);
}
