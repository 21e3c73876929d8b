//! Being in a group: JoinGroup, SyncGroup, Heartbeat, LeaveGroup, and KIP-848's ConsumerGroupHeartbeat.

use bytes::Bytes;
use uuid::Uuid;

messages! {
    JoinGroupRequest {
        group_id: String,
        session_timeout_ms: i32,
        rebalance_timeout_ms: i32 [1..] = -1,
        member_id: String,
        group_instance_id: Option<String> [5..],
        protocol_type: String,
        protocols: Vec<JoinGroupRequestProtocol>,
        reason: Option<String> [8..],
    }
    JoinGroupRequestProtocol {
        name: String,
        metadata: Bytes,
    }
    JoinGroupResponse {
        throttle_time_ms: i32 [2..],
        error_code: i16,
        generation_id: i32 = -1,
        protocol_type: Option<String> [7..],
        protocol_name: Option<String>,
        leader: String,
        skip_assignment: bool [9..],
        member_id: String,
        members: Vec<JoinGroupResponseMember>,
    }
    JoinGroupResponseMember {
        member_id: String,
        group_instance_id: Option<String> [5..],
        metadata: Bytes,
    }
    SyncGroupRequest {
        group_id: String,
        generation_id: i32,
        member_id: String,
        group_instance_id: Option<String> [3..],
        protocol_type: Option<String> [5..],
        protocol_name: Option<String> [5..],
        assignments: Vec<SyncGroupRequestAssignment>,
    }
    SyncGroupRequestAssignment {
        member_id: String,
        assignment: Bytes,
    }
    SyncGroupResponse {
        throttle_time_ms: i32 [1..],
        error_code: i16,
        protocol_type: Option<String> [5..],
        protocol_name: Option<String> [5..],
        assignment: Bytes,
    }
    HeartbeatRequest {
        group_id: String,
        generation_id: i32,
        member_id: String,
        group_instance_id: Option<String> [3..],
    }
    HeartbeatResponse {
        throttle_time_ms: i32 [1..],
        error_code: i16,
    }
    LeaveGroupRequest {
        group_id: String,
        member_id: String [0..=2],
        members: Vec<MemberIdentity> [3..],
    }
    MemberIdentity {
        member_id: String,
        group_instance_id: Option<String>,
        reason: Option<String> [5..],
    }
    LeaveGroupResponse {
        throttle_time_ms: i32 [1..],
        error_code: i16,
        members: Vec<MemberResponse> [3..],
    }
    MemberResponse {
        member_id: String,
        group_instance_id: Option<String>,
        error_code: i16,
    }
    ConsumerGroupHeartbeatRequest {
        group_id: String,
        member_id: String,
        member_epoch: i32,
        instance_id: Option<String>,
        rack_id: Option<String>,
        rebalance_timeout_ms: i32 = -1,
        subscribed_topic_names: Option<Vec<String>>,
        subscribed_topic_regex: Option<String> [1..],
        server_assignor: Option<String>,
        topic_partitions: Option<Vec<ConsumerGroupHeartbeatRequestTopicPartitions>>,
    }
    ConsumerGroupHeartbeatRequestTopicPartitions {
        topic_id: Uuid,
        partitions: Vec<i32>,
    }
    ConsumerGroupHeartbeatResponse {
        throttle_time_ms: i32,
        error_code: i16,
        error_message: Option<String>,
        member_id: Option<String>,
        member_epoch: i32,
        heartbeat_interval_ms: i32,
        assignment: Option<Assignment>,
    }
    Assignment {
        topic_partitions: Vec<ConsumerGroupHeartbeatResponseTopicPartitions>,
    }
    ConsumerGroupHeartbeatResponseTopicPartitions {
        topic_id: Uuid,
        partitions: Vec<i32>,
    }
}
