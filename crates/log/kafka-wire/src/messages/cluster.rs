//! Finding one's way: ApiVersions, Metadata, DescribeCluster, DescribeTopicPartitions, FindCoordinator.

use uuid::Uuid;

messages! {
    ApiVersionsRequest {
        client_software_name: String [3..],
        client_software_version: String [3..],
    }
    ApiVersionsResponse {
        error_code: i16,
        api_keys: Vec<ApiVersion>,
        throttle_time_ms: i32 [1..],
    } + tagged {
        0 => supported_features: Vec<SupportedFeatureKey> [3..],
        1 => finalized_features_epoch: i64 [3..] = -1,
        2 => finalized_features: Vec<FinalizedFeatureKey> [3..],
        3 => zk_migration_ready: bool [3..],
    }
    ApiVersion {
        api_key: i16,
        min_version: i16,
        max_version: i16,
    }
    SupportedFeatureKey {
        name: String,
        min_version: i16,
        max_version: i16,
    }
    FinalizedFeatureKey {
        name: String,
        max_version_level: i16,
        min_version_level: i16,
    }
    MetadataRequest {
        topics: Option<Vec<MetadataRequestTopic>>,
        allow_auto_topic_creation: bool [4..] = true,
        include_cluster_authorized_operations: bool [8..=10],
        include_topic_authorized_operations: bool [8..],
    }
    MetadataRequestTopic {
        topic_id: Uuid [10..],
        name: Option<String>,
    }
    MetadataResponse {
        throttle_time_ms: i32 [3..],
        brokers: Vec<MetadataResponseBroker>,
        cluster_id: Option<String> [2..],
        controller_id: i32 [1..] = -1,
        topics: Vec<MetadataResponseTopic>,
        cluster_authorized_operations: i32 [8..=10] = i32::MIN,
        error_code: i16 [13..],
    }
    MetadataResponseBroker {
        node_id: i32,
        host: String,
        port: i32,
        rack: Option<String> [1..],
    }
    MetadataResponseTopic {
        error_code: i16,
        name: Option<String>,
        topic_id: Uuid [10..],
        is_internal: bool [1..],
        partitions: Vec<MetadataResponsePartition>,
        topic_authorized_operations: i32 [8..] = i32::MIN,
    }
    MetadataResponsePartition {
        error_code: i16,
        partition_index: i32,
        leader_id: i32,
        leader_epoch: i32 [7..] = -1,
        replica_nodes: Vec<i32>,
        isr_nodes: Vec<i32>,
        offline_replicas: Vec<i32> [5..],
    }
    DescribeClusterRequest {
        include_cluster_authorized_operations: bool,
        endpoint_type: i8 [1..] = 1,
        include_fenced_brokers: bool [2..],
    }
    DescribeClusterResponse {
        throttle_time_ms: i32,
        error_code: i16,
        error_message: Option<String>,
        endpoint_type: i8 [1..] = 1,
        cluster_id: String,
        controller_id: i32 = -1,
        brokers: Vec<DescribeClusterBroker>,
        cluster_authorized_operations: i32 = i32::MIN,
    }
    DescribeClusterBroker {
        broker_id: i32,
        host: String,
        port: i32,
        rack: Option<String>,
        is_fenced: bool [2..],
    }
    DescribeTopicPartitionsRequest {
        topics: Vec<TopicRequest>,
        response_partition_limit: i32 = 2000,
        cursor: Option<DescribeTopicPartitionsRequestCursor>,
    }
    TopicRequest {
        name: String,
    }
    DescribeTopicPartitionsRequestCursor {
        topic_name: String,
        partition_index: i32,
    }
    DescribeTopicPartitionsResponse {
        throttle_time_ms: i32,
        topics: Vec<DescribeTopicPartitionsResponseTopic>,
        next_cursor: Option<DescribeTopicPartitionsResponseCursor>,
    }
    DescribeTopicPartitionsResponseTopic {
        error_code: i16,
        name: Option<String>,
        topic_id: Uuid,
        is_internal: bool,
        partitions: Vec<DescribeTopicPartitionsResponsePartition>,
        topic_authorized_operations: i32 = i32::MIN,
    }
    DescribeTopicPartitionsResponsePartition {
        error_code: i16,
        partition_index: i32,
        leader_id: i32,
        leader_epoch: i32 = -1,
        replica_nodes: Vec<i32>,
        isr_nodes: Vec<i32>,
        eligible_leader_replicas: Option<Vec<i32>>,
        last_known_elr: Option<Vec<i32>>,
        offline_replicas: Vec<i32>,
    }
    DescribeTopicPartitionsResponseCursor {
        topic_name: String,
        partition_index: i32,
    }
    FindCoordinatorRequest {
        key: String [0..=3],
        key_type: i8 [1..],
        coordinator_keys: Vec<String> [4..],
    }
    FindCoordinatorResponse {
        throttle_time_ms: i32 [1..],
        error_code: i16 [0..=3],
        error_message: Option<String> [1..=3],
        node_id: i32 [0..=3],
        host: String [0..=3],
        port: i32 [0..=3],
        coordinators: Vec<Coordinator> [4..],
    }
    Coordinator {
        key: String,
        node_id: i32,
        host: String,
        port: i32,
        error_code: i16,
        error_message: Option<String>,
    }
}
