//! Reading: Fetch, ListOffsets, OffsetForLeaderEpoch.

use uuid::Uuid;

use crate::wire::RecordsBytes;

messages! {
    FetchRequest {
        replica_id: i32 [4..=14] = -1,
        max_wait_ms: i32,
        min_bytes: i32,
        max_bytes: i32 = i32::MAX,
        isolation_level: i8,
        session_id: i32 [7..],
        session_epoch: i32 [7..] = -1,
        topics: Vec<FetchTopic>,
        forgotten_topics_data: Vec<ForgottenTopic> [7..],
        rack_id: String [11..],
    } + tagged {
        0 => cluster_id: Option<String> [12..],
        1 => replica_state: ReplicaState [15..],
    }
    ReplicaState {
        replica_id: i32 = -1,
        replica_epoch: i64 = -1,
    }
    FetchTopic {
        topic: String [4..=12],
        topic_id: Uuid [13..],
        partitions: Vec<FetchPartition>,
    }
    FetchPartition {
        partition: i32,
        current_leader_epoch: i32 [9..] = -1,
        fetch_offset: i64,
        last_fetched_epoch: i32 [12..] = -1,
        log_start_offset: i64 [5..] = -1,
        partition_max_bytes: i32,
    } + tagged {
        0 => replica_directory_id: Uuid [17..],
        1 => high_watermark: i64 [18..] = i64::MAX,
    }
    ForgottenTopic {
        topic: String [7..=12],
        topic_id: Uuid [13..],
        partitions: Vec<i32>,
    }
    FetchResponse {
        throttle_time_ms: i32,
        error_code: i16 [7..],
        session_id: i32 [7..],
        responses: Vec<FetchableTopicResponse>,
    } + tagged {
        0 => node_endpoints: Vec<NodeEndpoint> [16..],
    }
    FetchableTopicResponse {
        topic: String [4..=12],
        topic_id: Uuid [13..],
        partitions: Vec<PartitionData>,
    }
    PartitionData {
        partition_index: i32,
        error_code: i16,
        high_watermark: i64,
        last_stable_offset: i64 = -1,
        log_start_offset: i64 [5..] = -1,
        aborted_transactions: Option<Vec<AbortedTransaction>>,
        preferred_read_replica: i32 [11..] = -1,
        records: RecordsBytes,
    } + tagged {
        0 => diverging_epoch: FetchResponseEpochEndOffset [12..],
        1 => current_leader: LeaderIdAndEpoch [12..],
        2 => snapshot_id: SnapshotId [12..],
    }
    FetchResponseEpochEndOffset {
        epoch: i32 = -1,
        end_offset: i64 = -1,
    }
    LeaderIdAndEpoch {
        leader_id: i32 = -1,
        leader_epoch: i32 = -1,
    }
    SnapshotId {
        end_offset: i64 = -1,
        epoch: i32 = -1,
    }
    AbortedTransaction {
        producer_id: i64,
        first_offset: i64,
    }
    NodeEndpoint {
        node_id: i32,
        host: String,
        port: i32,
        rack: Option<String>,
    }
    ListOffsetsRequest {
        replica_id: i32,
        isolation_level: i8 [2..],
        topics: Vec<ListOffsetsTopic>,
        timeout_ms: i32 [10..],
    }
    ListOffsetsTopic {
        name: String,
        partitions: Vec<ListOffsetsPartition>,
    }
    ListOffsetsPartition {
        partition_index: i32,
        current_leader_epoch: i32 [4..] = -1,
        timestamp: i64,
    }
    ListOffsetsResponse {
        throttle_time_ms: i32 [2..],
        topics: Vec<ListOffsetsTopicResponse>,
    }
    ListOffsetsTopicResponse {
        name: String,
        partitions: Vec<ListOffsetsPartitionResponse>,
    }
    ListOffsetsPartitionResponse {
        partition_index: i32,
        error_code: i16,
        timestamp: i64 = -1,
        offset: i64 = -1,
        leader_epoch: i32 [4..] = -1,
    }
    OffsetForLeaderEpochRequest {
        replica_id: i32 [3..] = -2,
        topics: Vec<OffsetForLeaderTopic>,
    }
    OffsetForLeaderTopic {
        topic: String,
        partitions: Vec<OffsetForLeaderPartition>,
    }
    OffsetForLeaderPartition {
        partition: i32,
        current_leader_epoch: i32 = -1,
        leader_epoch: i32,
    }
    OffsetForLeaderEpochResponse {
        throttle_time_ms: i32,
        topics: Vec<OffsetForLeaderTopicResult>,
    }
    OffsetForLeaderTopicResult {
        topic: String,
        partitions: Vec<OffsetForLeaderEpochResponseEpochEndOffset>,
    }
    OffsetForLeaderEpochResponseEpochEndOffset {
        error_code: i16,
        partition: i32,
        leader_epoch: i32 = -1,
        end_offset: i64 = -1,
    }
}
