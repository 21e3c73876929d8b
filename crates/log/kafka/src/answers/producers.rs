//! DescribeProducers: what partitions remember of their idempotent producers.

use std::collections::BTreeSet;
use std::sync::Arc;

use tailwater_log::ProducerState;
use uuid::Uuid;

use crate::broker::{Broker, Context, shard_of};
use crate::errors::{ErrorCode, RefusedRequest, read_error};
use crate::messages::topics::{
    DescribeProducersRequest, DescribeProducersResponse, PartitionResponse,
    ProducerState as DescribedProducer, TopicResponse,
};

/// Producers in one answer: those of some five partitions that remember as many as they can.
const PRODUCERS_MAX: usize = 100_000;

pub(crate) async fn describe_producers(
    broker: Arc<Broker>,
    context: Context,
    request: DescribeProducersRequest,
) -> DescribeProducersResponse {
    let mut topics = Vec::new();
    let mut room = PRODUCERS_MAX;
    let mut seen = BTreeSet::new();
    for topic in request.topics {
        let mut partitions = Vec::new();
        for &partition_index in &topic.partition_indexes {
            if !seen.insert((topic.name.clone(), partition_index)) {
                continue;
            }
            let described = describe(&broker, &context, &topic.name, partition_index, room).await;
            partitions.push(match described {
                Ok(active_producers) => {
                    room -= active_producers.len();
                    PartitionResponse { partition_index, active_producers, ..Default::default() }
                }
                Err(refused) => PartitionResponse {
                    partition_index,
                    error_code: refused.error.number(),
                    error_message: Some(refused.why),
                    ..Default::default()
                },
            });
        }
        topics.push(TopicResponse { name: topic.name, partitions });
    }
    DescribeProducersResponse { topics, ..Default::default() }
}

/// Those of one partition, if they are no more than there is `room` for.
async fn describe(
    broker: &Broker,
    context: &Context,
    topic: &str,
    partition: i32,
    room: usize,
) -> Result<Vec<DescribedProducer>, RefusedRequest> {
    let refused = |error| {
        let topic: String = topic.chars().take(64).collect();
        let why = match error {
            ErrorCode::TopicAuthorizationFailed => format!("this client may not see topic {topic:?}"),
            _ => format!("there is no partition {partition} of a topic {topic:?}"),
        };
        RefusedRequest::new(error, why)
    };
    let stream = broker.find_topic(context, topic, Uuid::nil(), false).map_err(refused)?;
    let shard = shard_of(&stream, partition).map_err(refused)?;
    let failed = |error| RefusedRequest::new(read_error(&error), error.to_string());
    let producers = broker.log.producers(shard).await.map_err(failed)?;
    if producers.len() > room {
        let why =
            format!("an answer has room for {PRODUCERS_MAX} producers: ask for fewer partitions at once");
        return Err(RefusedRequest::new(ErrorCode::PolicyViolation, why));
    }
    Ok(producers.iter().filter_map(described).collect())
}

/// One that has appended, as clients know it. There are no transactions, so no coordinator has written markers.
fn described(producer: &ProducerState) -> Option<DescribedProducer> {
    let last = producer.batches.last()?;
    Some(DescribedProducer {
        producer_id: producer.producer,
        producer_epoch: i32::from(last.epoch),
        last_sequence: last.last,
        last_timestamp: producer.last_ms,
        coordinator_epoch: -1,
        current_txn_start_offset: -1,
    })
}

#[cfg(test)]
mod tests {
    use tailwater_format::Offset;
    use tailwater_log::ProducerBatch;

    use super::*;

    #[test]
    fn a_producer_is_told_of_by_the_last_of_its_batches() {
        let batch = |first, last| ProducerBatch { epoch: 3, first, last, base_offset: Offset(9) };
        let producer = ProducerState { producer: 7, last_ms: 1_000, batches: vec![batch(0, 4), batch(5, 6)] };
        let expected = DescribedProducer {
            producer_id: 7,
            producer_epoch: 3,
            last_sequence: 6,
            last_timestamp: 1_000,
            coordinator_epoch: -1,
            current_txn_start_offset: -1,
        };
        assert_eq!(described(&producer), Some(expected));
        assert_eq!(described(&ProducerState { batches: vec![], ..producer }), None);
    }
}
