//! Where replicas are and who leads: AlterReplicaLogDirs, ElectLeaders, AlterPartitionReassignments,
//! ListPartitionReassignments, DescribeQuorum, UpdateFeatures.

use uuid::Uuid;

messages! {
    AlterReplicaLogDirsRequest {
        dirs: Vec<AlterReplicaLogDir>,
    }
    AlterReplicaLogDir {
        path: String,
        topics: Vec<AlterReplicaLogDirTopic>,
    }
    AlterReplicaLogDirTopic {
        name: String,
        partitions: Vec<i32>,
    }
    AlterReplicaLogDirsResponse {
        throttle_time_ms: i32,
        results: Vec<AlterReplicaLogDirTopicResult>,
    }
    AlterReplicaLogDirTopicResult {
        topic_name: String,
        partitions: Vec<AlterReplicaLogDirPartitionResult>,
    }
    AlterReplicaLogDirPartitionResult {
        partition_index: i32,
        error_code: i16,
    }
    ElectLeadersRequest {
        election_type: i8 [1..],
        topic_partitions: Option<Vec<ElectLeadersTopicPartitions>>,
        timeout_ms: i32 = 60_000,
    }
    ElectLeadersTopicPartitions {
        topic: String,
        partitions: Vec<i32>,
    }
    ElectLeadersResponse {
        throttle_time_ms: i32,
        error_code: i16 [1..],
        replica_election_results: Vec<ReplicaElectionResult>,
    }
    ReplicaElectionResult {
        topic: String,
        partition_result: Vec<ElectionPartitionResult>,
    }
    ElectionPartitionResult {
        partition_id: i32,
        error_code: i16,
        error_message: Option<String>,
    }
    AlterPartitionReassignmentsRequest {
        timeout_ms: i32 = 60_000,
        allow_replication_factor_change: bool [1..] = true,
        topics: Vec<ReassignableTopic>,
    }
    ReassignableTopic {
        name: String,
        partitions: Vec<ReassignablePartition>,
    }
    ReassignablePartition {
        partition_index: i32,
        replicas: Option<Vec<i32>>,
    }
    AlterPartitionReassignmentsResponse {
        throttle_time_ms: i32,
        allow_replication_factor_change: bool [1..] = true,
        error_code: i16,
        error_message: Option<String>,
        responses: Vec<ReassignableTopicResponse>,
    }
    ReassignableTopicResponse {
        name: String,
        partitions: Vec<ReassignablePartitionResponse>,
    }
    ReassignablePartitionResponse {
        partition_index: i32,
        error_code: i16,
        error_message: Option<String>,
    }
    ListPartitionReassignmentsRequest {
        timeout_ms: i32 = 60_000,
        topics: Option<Vec<ListPartitionReassignmentsTopics>>,
    }
    ListPartitionReassignmentsTopics {
        name: String,
        partition_indexes: Vec<i32>,
    }
    ListPartitionReassignmentsResponse {
        throttle_time_ms: i32,
        error_code: i16,
        error_message: Option<String>,
        topics: Vec<OngoingTopicReassignment>,
    }
    OngoingTopicReassignment {
        name: String,
        partitions: Vec<OngoingPartitionReassignment>,
    }
    OngoingPartitionReassignment {
        partition_index: i32,
        replicas: Vec<i32>,
        adding_replicas: Vec<i32>,
        removing_replicas: Vec<i32>,
    }
    DescribeQuorumRequest {
        topics: Vec<DescribeQuorumRequestTopicData>,
    }
    DescribeQuorumRequestTopicData {
        topic_name: String,
        partitions: Vec<DescribeQuorumRequestPartitionData>,
    }
    DescribeQuorumRequestPartitionData {
        partition_index: i32,
    }
    DescribeQuorumResponse {
        error_code: i16,
        error_message: Option<String> [2..],
        topics: Vec<DescribeQuorumTopicData>,
        nodes: Vec<DescribeQuorumNode> [2..],
    }
    DescribeQuorumTopicData {
        topic_name: String,
        partitions: Vec<DescribeQuorumPartitionData>,
    }
    DescribeQuorumPartitionData {
        partition_index: i32,
        error_code: i16,
        error_message: Option<String> [2..],
        leader_id: i32,
        leader_epoch: i32,
        high_watermark: i64,
        current_voters: Vec<QuorumReplicaState>,
        observers: Vec<QuorumReplicaState>,
    }
    QuorumReplicaState {
        replica_id: i32,
        replica_directory_id: Uuid [2..],
        log_end_offset: i64,
        last_fetch_timestamp: i64 [1..] = -1,
        last_caught_up_timestamp: i64 [1..] = -1,
    }
    DescribeQuorumNode {
        node_id: i32,
        listeners: Vec<DescribeQuorumListener>,
    }
    DescribeQuorumListener {
        name: String,
        host: String,
        port: u16,
    }
    UpdateFeaturesRequest {
        timeout_ms: i32 = 60_000,
        feature_updates: Vec<FeatureUpdateKey>,
        validate_only: bool [1..],
    }
    FeatureUpdateKey {
        feature: String,
        max_version_level: i16,
        allow_downgrade: bool [0..=0],
        upgrade_type: i8 [1..] = 1,
    }
    UpdateFeaturesResponse {
        throttle_time_ms: i32,
        error_code: i16,
        error_message: Option<String>,
        results: Vec<UpdatableFeatureResult> [0..=1],
    }
    UpdatableFeatureResult {
        feature: String,
        error_code: i16,
        error_message: Option<String>,
    }
}
