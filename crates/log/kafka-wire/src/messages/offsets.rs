//! A group's offsets: OffsetCommit, OffsetFetch, OffsetDelete.

use uuid::Uuid;

messages! {
    OffsetCommitRequest {
        group_id: String,
        generation_id_or_member_epoch: i32 = -1,
        member_id: String,
        group_instance_id: Option<String> [7..],
        retention_time_ms: i64 [2..=4] = -1,
        topics: Vec<OffsetCommitRequestTopic>,
    }
    OffsetCommitRequestTopic {
        name: String [2..=9],
        topic_id: Uuid [10..],
        partitions: Vec<OffsetCommitRequestPartition>,
    }
    OffsetCommitRequestPartition {
        partition_index: i32,
        committed_offset: i64,
        committed_leader_epoch: i32 [6..] = -1,
        committed_metadata: Option<String>,
    }
    OffsetCommitResponse {
        throttle_time_ms: i32 [3..],
        topics: Vec<OffsetCommitResponseTopic>,
    }
    OffsetCommitResponseTopic {
        name: String [2..=9],
        topic_id: Uuid [10..],
        partitions: Vec<OffsetCommitResponsePartition>,
    }
    OffsetCommitResponsePartition {
        partition_index: i32,
        error_code: i16,
    }
    OffsetFetchRequest {
        group_id: String [1..=7],
        topics: Option<Vec<OffsetFetchRequestTopic>> [1..=7],
        groups: Vec<OffsetFetchRequestGroup> [8..],
        require_stable: bool [7..],
    }
    OffsetFetchRequestTopic {
        name: String,
        partition_indexes: Vec<i32>,
    }
    OffsetFetchRequestGroup {
        group_id: String,
        member_id: Option<String> [9..],
        member_epoch: i32 [9..] = -1,
        topics: Option<Vec<OffsetFetchRequestTopics>>,
    }
    OffsetFetchRequestTopics {
        name: String [8..=9],
        topic_id: Uuid [10..],
        partition_indexes: Vec<i32>,
    }
    OffsetFetchResponse {
        throttle_time_ms: i32 [3..],
        topics: Vec<OffsetFetchResponseTopic> [1..=7],
        error_code: i16 [2..=7],
        groups: Vec<OffsetFetchResponseGroup> [8..],
    }
    OffsetFetchResponseTopic {
        name: String,
        partitions: Vec<OffsetFetchResponsePartition>,
    }
    OffsetFetchResponsePartition {
        partition_index: i32,
        committed_offset: i64,
        committed_leader_epoch: i32 [5..] = -1,
        metadata: Option<String>,
        error_code: i16,
    }
    OffsetFetchResponseGroup {
        group_id: String,
        topics: Vec<OffsetFetchResponseTopics>,
        error_code: i16,
    }
    OffsetFetchResponseTopics {
        name: String [8..=9],
        topic_id: Uuid [10..],
        partitions: Vec<OffsetFetchResponsePartitions>,
    }
    OffsetFetchResponsePartitions {
        partition_index: i32,
        committed_offset: i64,
        committed_leader_epoch: i32 = -1,
        metadata: Option<String>,
        error_code: i16,
    }
    OffsetDeleteRequest {
        group_id: String,
        topics: Vec<OffsetDeleteRequestTopic>,
    }
    OffsetDeleteRequestTopic {
        name: String,
        partitions: Vec<OffsetDeleteRequestPartition>,
    }
    OffsetDeleteRequestPartition {
        partition_index: i32,
    }
    OffsetDeleteResponse {
        error_code: i16,
        throttle_time_ms: i32,
        topics: Vec<OffsetDeleteResponseTopic>,
    }
    OffsetDeleteResponseTopic {
        name: String,
        partitions: Vec<OffsetDeleteResponsePartition>,
    }
    OffsetDeleteResponsePartition {
        partition_index: i32,
        error_code: i16,
    }
}
