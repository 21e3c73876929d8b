//! Looking after groups: ListGroups, DescribeGroups, DeleteGroups, ConsumerGroupDescribe.

use bytes::Bytes;
use uuid::Uuid;

messages! {
    ListGroupsRequest {
        states_filter: Vec<String> [4..],
        types_filter: Vec<String> [5..],
    }
    ListGroupsResponse {
        throttle_time_ms: i32 [1..],
        error_code: i16,
        groups: Vec<ListedGroup>,
    }
    ListedGroup {
        group_id: String,
        protocol_type: String,
        group_state: String [4..],
        group_type: String [5..],
    }
    DescribeGroupsRequest {
        groups: Vec<String>,
        include_authorized_operations: bool [3..],
    }
    DescribeGroupsResponse {
        throttle_time_ms: i32 [1..],
        groups: Vec<DescribeGroupsResponseDescribedGroup>,
    }
    DescribeGroupsResponseDescribedGroup {
        error_code: i16,
        error_message: Option<String> [6..],
        group_id: String,
        group_state: String,
        protocol_type: String,
        protocol_data: String,
        members: Vec<DescribedGroupMember>,
        authorized_operations: i32 [3..] = i32::MIN,
    }
    DescribedGroupMember {
        member_id: String,
        group_instance_id: Option<String> [4..],
        client_id: String,
        client_host: String,
        member_metadata: Bytes,
        member_assignment: Bytes,
    }
    DeleteGroupsRequest {
        groups_names: Vec<String>,
    }
    DeleteGroupsResponse {
        throttle_time_ms: i32,
        results: Vec<DeletableGroupResult>,
    }
    DeletableGroupResult {
        group_id: String,
        error_code: i16,
    }
    ConsumerGroupDescribeRequest {
        group_ids: Vec<String>,
        include_authorized_operations: bool,
    }
    ConsumerGroupDescribeResponse {
        throttle_time_ms: i32,
        groups: Vec<ConsumerGroupDescribeResponseDescribedGroup>,
    }
    ConsumerGroupDescribeResponseDescribedGroup {
        error_code: i16,
        error_message: Option<String>,
        group_id: String,
        group_state: String,
        group_epoch: i32,
        assignment_epoch: i32,
        assignor_name: String,
        members: Vec<Member>,
        authorized_operations: i32 = i32::MIN,
    }
    Member {
        member_id: String,
        instance_id: Option<String>,
        rack_id: Option<String>,
        member_epoch: i32,
        client_id: String,
        client_host: String,
        subscribed_topic_names: Vec<String>,
        subscribed_topic_regex: Option<String>,
        assignment: Assignment,
        target_assignment: Assignment,
        member_type: i8 [1..] = -1,
    }
    Assignment {
        topic_partitions: Vec<TopicPartitions>,
    }
    TopicPartitions {
        topic_id: Uuid,
        topic_name: String,
        partitions: Vec<i32>,
    }
}
