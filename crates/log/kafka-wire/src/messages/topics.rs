//! Looking after topics: CreateTopics, DeleteTopics, CreatePartitions, DeleteRecords, DescribeLogDirs,
//! DescribeProducers.

use uuid::Uuid;

messages! {
    CreateTopicsRequest {
        topics: Vec<CreatableTopic>,
        timeout_ms: i32 = 60000,
        validate_only: bool,
    }
    CreatableTopic {
        name: String,
        num_partitions: i32,
        replication_factor: i16,
        assignments: Vec<CreatableReplicaAssignment>,
        configs: Vec<CreatableTopicConfig>,
    }
    CreatableReplicaAssignment {
        partition_index: i32,
        broker_ids: Vec<i32>,
    }
    CreatableTopicConfig {
        name: String,
        value: Option<String>,
    }
    CreateTopicsResponse {
        throttle_time_ms: i32,
        topics: Vec<CreatableTopicResult>,
    }
    CreatableTopicResult {
        name: String,
        topic_id: Uuid [7..],
        error_code: i16,
        error_message: Option<String>,
        num_partitions: i32 [5..] = -1,
        replication_factor: i16 [5..] = -1,
        configs: Option<Vec<CreatableTopicConfigs>> [5..],
    } + tagged {
        0 => topic_config_error_code: i16 [5..],
    }
    CreatableTopicConfigs {
        name: String,
        value: Option<String>,
        read_only: bool,
        config_source: i8 = -1,
        is_sensitive: bool,
    }
    DeleteTopicsRequest {
        topics: Vec<DeleteTopicState> [6..],
        topic_names: Vec<String> [1..=5],
        timeout_ms: i32,
    }
    DeleteTopicState {
        name: Option<String>,
        topic_id: Uuid,
    }
    DeleteTopicsResponse {
        throttle_time_ms: i32,
        responses: Vec<DeletableTopicResult>,
    }
    DeletableTopicResult {
        name: Option<String>,
        topic_id: Uuid [6..],
        error_code: i16,
        error_message: Option<String> [5..],
    }
    CreatePartitionsRequest {
        topics: Vec<CreatePartitionsTopic>,
        timeout_ms: i32,
        validate_only: bool,
    }
    CreatePartitionsTopic {
        name: String,
        count: i32,
        assignments: Option<Vec<CreatePartitionsAssignment>>,
    }
    CreatePartitionsAssignment {
        broker_ids: Vec<i32>,
    }
    CreatePartitionsResponse {
        throttle_time_ms: i32,
        results: Vec<CreatePartitionsTopicResult>,
    }
    CreatePartitionsTopicResult {
        name: String,
        error_code: i16,
        error_message: Option<String>,
    }
    DeleteRecordsRequest {
        topics: Vec<DeleteRecordsTopic>,
        timeout_ms: i32,
    }
    DeleteRecordsTopic {
        name: String,
        partitions: Vec<DeleteRecordsPartition>,
    }
    DeleteRecordsPartition {
        partition_index: i32,
        offset: i64,
    }
    DeleteRecordsResponse {
        throttle_time_ms: i32,
        topics: Vec<DeleteRecordsTopicResult>,
    }
    DeleteRecordsTopicResult {
        name: String,
        partitions: Vec<DeleteRecordsPartitionResult>,
    }
    DeleteRecordsPartitionResult {
        partition_index: i32,
        low_watermark: i64,
        error_code: i16,
    }
    DescribeLogDirsRequest {
        topics: Option<Vec<DescribableLogDirTopic>>,
    }
    DescribableLogDirTopic {
        topic: String,
        partitions: Vec<i32>,
    }
    DescribeLogDirsResponse {
        throttle_time_ms: i32,
        error_code: i16 [3..],
        results: Vec<DescribeLogDirsResult>,
    }
    DescribeLogDirsResult {
        error_code: i16,
        log_dir: String,
        topics: Vec<DescribeLogDirsTopic>,
        total_bytes: i64 [4..] = -1,
        usable_bytes: i64 [4..] = -1,
        is_cordoned: bool [5..],
    }
    DescribeLogDirsTopic {
        name: String,
        partitions: Vec<DescribeLogDirsPartition>,
    }
    DescribeLogDirsPartition {
        partition_index: i32,
        partition_size: i64,
        offset_lag: i64,
        is_future_key: bool,
    }
    DescribeProducersRequest {
        topics: Vec<TopicRequest>,
    }
    TopicRequest {
        name: String,
        partition_indexes: Vec<i32>,
    }
    DescribeProducersResponse {
        throttle_time_ms: i32,
        topics: Vec<TopicResponse>,
    }
    TopicResponse {
        name: String,
        partitions: Vec<PartitionResponse>,
    }
    PartitionResponse {
        partition_index: i32,
        error_code: i16,
        error_message: Option<String>,
        active_producers: Vec<ProducerState>,
    }
    ProducerState {
        producer_id: i64,
        producer_epoch: i32,
        last_sequence: i32 = -1,
        last_timestamp: i64 = -1,
        coordinator_epoch: i32,
        current_txn_start_offset: i64 = -1,
    }
}
