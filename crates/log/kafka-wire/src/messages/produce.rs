//! Appending: Produce, InitProducerId.

use uuid::Uuid;

use crate::wire::RecordsBytes;

messages! {
    ProduceRequest {
        transactional_id: Option<String>,
        acks: i16,
        timeout_ms: i32,
        topic_data: Vec<TopicProduceData>,
    }
    TopicProduceData {
        name: String [3..=12],
        topic_id: Uuid [13..],
        partition_data: Vec<PartitionProduceData>,
    }
    PartitionProduceData {
        index: i32,
        records: RecordsBytes,
    }
    ProduceResponse {
        responses: Vec<TopicProduceResponse>,
        throttle_time_ms: i32,
    } + tagged {
        0 => node_endpoints: Vec<NodeEndpoint> [10..],
    }
    TopicProduceResponse {
        name: String [3..=12],
        topic_id: Uuid [13..],
        partition_responses: Vec<PartitionProduceResponse>,
    }
    PartitionProduceResponse {
        index: i32,
        error_code: i16,
        base_offset: i64,
        log_append_time_ms: i64 = -1,
        log_start_offset: i64 [5..] = -1,
        record_errors: Vec<BatchIndexAndErrorMessage> [8..],
        error_message: Option<String> [8..],
    } + tagged {
        0 => current_leader: LeaderIdAndEpoch [10..],
    }
    BatchIndexAndErrorMessage {
        batch_index: i32,
        batch_index_error_message: Option<String>,
    }
    LeaderIdAndEpoch {
        leader_id: i32 = -1,
        leader_epoch: i32 = -1,
    }
    NodeEndpoint {
        node_id: i32,
        host: String,
        port: i32,
        rack: Option<String>,
    }
    InitProducerIdRequest {
        transactional_id: Option<String>,
        transaction_timeout_ms: i32,
        producer_id: i64 [3..] = -1,
        producer_epoch: i16 [3..] = -1,
        enable2_pc: bool [6..],
        keep_prepared_txn: bool [6..],
    }
    InitProducerIdResponse {
        throttle_time_ms: i32,
        error_code: i16,
        producer_id: i64 = -1,
        producer_epoch: i16,
        ongoing_txn_producer_id: i64 [6..] = -1,
        ongoing_txn_producer_epoch: i16 [6..] = -1,
    }
}
