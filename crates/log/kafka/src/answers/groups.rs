//! Being in a group of the classic protocol: FindCoordinator, JoinGroup, SyncGroup, Heartbeat, LeaveGroup.

use std::sync::Arc;

use bytes::Bytes;

use crate::broker::{Broker, Context};
use crate::errors::ErrorCode;
use crate::groups::classic::{Join, Sync};
use crate::messages::cluster::{Coordinator, FindCoordinatorRequest, FindCoordinatorResponse};
use crate::messages::membership::{
    HeartbeatRequest, HeartbeatResponse, JoinGroupRequest, JoinGroupResponse, LeaveGroupRequest,
    LeaveGroupResponse, MemberIdentity, MemberResponse, SyncGroupRequest, SyncGroupResponse,
};

/// What FindCoordinator is asked for.
const GROUP: i8 = 0;
const TRANSACTION: i8 = 1;
/// From this version of FindCoordinator on it takes several keys.
const KEYS_FROM_VERSION: i16 = 4;
/// From this version of JoinGroup on a member comes again with the id that it is given.
const ID_REQUIRED_FROM_VERSION: i16 = 4;
/// From this version of JoinGroup on a leader may be told to assign nothing.
const SKIPS_ASSIGNMENT_FROM_VERSION: i16 = 9;
/// From this version of JoinGroup on a protocol's name may be null.
const NULL_PROTOCOL_FROM_VERSION: i16 = 7;
/// From this version of LeaveGroup on several members leave at once.
const MEMBERS_FROM_VERSION: i16 = 3;

pub(crate) async fn find_coordinator(
    broker: Arc<Broker>,
    context: Context,
    request: FindCoordinatorRequest,
) -> FindCoordinatorResponse {
    let find = |key: String| match request.key_type {
        GROUP if broker.authorize_group(&context, &key).is_err() => Coordinator {
            key,
            node_id: -1,
            port: -1,
            error_code: ErrorCode::GroupAuthorizationFailed.number(),
            error_message: Some("this client may not take part in the group".to_owned()),
            ..Default::default()
        },
        // A producer with transactions is told when it asks for its id that there are none.
        GROUP | TRANSACTION => {
            let error_message = Some("NONE".to_owned()).filter(|_| context.version < KEYS_FROM_VERSION);
            match broker.coordinator_of(&context.peer, &key) {
                Ok((node_id, host, port)) => {
                    Coordinator { key, node_id, host, port, error_message, ..Default::default() }
                }
                Err(error) => Coordinator {
                    key,
                    node_id: -1,
                    port: -1,
                    error_code: error.number(),
                    error_message: Some("nobody coordinates it at the moment: try again".to_owned()),
                    ..Default::default()
                },
            }
        }
        other => Coordinator {
            key,
            node_id: -1,
            port: -1,
            error_code: ErrorCode::InvalidRequest.number(),
            error_message: Some(format!("there is no coordinator of type {other}")),
            ..Default::default()
        },
    };
    if context.version >= KEYS_FROM_VERSION {
        let coordinators = request.coordinator_keys.into_iter().map(find).collect();
        return FindCoordinatorResponse { coordinators, ..Default::default() };
    }
    let Coordinator { node_id, host, port, error_code, error_message, .. } = find(request.key);
    FindCoordinatorResponse { node_id, host, port, error_code, error_message, ..Default::default() }
}

pub(crate) async fn join_group(
    broker: Arc<Broker>,
    context: Context,
    request: JoinGroupRequest,
) -> JoinGroupResponse {
    if let Err(error) = broker.authorize_group(&context, &request.group_id) {
        return JoinGroupResponse {
            error_code: error.number(),
            generation_id: -1,
            member_id: request.member_id,
            protocol_name: (context.version < NULL_PROTOCOL_FROM_VERSION).then(String::new),
            ..Default::default()
        };
    }
    let version = context.version;
    let (group, join) = take_apart(&broker, &context, request);
    let coordinator = match broker.groups.of(&group) {
        Ok(coordinator) => coordinator,
        Err(error) => {
            return JoinGroupResponse {
                error_code: error.number(),
                generation_id: -1,
                member_id: join.member_id,
                protocol_name: (version < NULL_PROTOCOL_FROM_VERSION).then(String::new),
                ..Default::default()
            };
        }
    };
    let mut answer = coordinator.join(&group, join).await;
    if version < NULL_PROTOCOL_FROM_VERSION {
        answer.protocol_name.get_or_insert_default();
    }
    answer
}

/// Takes a JoinGroup apart: it waits for others and is not counted, so nothing else of it is kept.
fn take_apart(broker: &Broker, context: &Context, request: JoinGroupRequest) -> (String, Join) {
    let name = request.group_instance_id.as_deref().unwrap_or(&context.client_id);
    let join = Join {
        new_id: broker.groups.new_member_id(name),
        member_id: request.member_id,
        instance: request.group_instance_id,
        client_id: Arc::clone(&context.client_id),
        client_host: format!("/{}", context.peer.address.ip().to_canonical()),
        session_ms: request.session_timeout_ms,
        rebalance_ms: request.rebalance_timeout_ms,
        protocol_type: request.protocol_type,
        protocols: request
            .protocols
            .into_iter()
            .map(|protocol| (protocol.name, Bytes::copy_from_slice(&protocol.metadata)))
            .collect(),
        id_required: context.version >= ID_REQUIRED_FROM_VERSION,
        skips_assignment: context.version >= SKIPS_ASSIGNMENT_FROM_VERSION,
    };
    (request.group_id, join)
}

pub(crate) async fn sync_group(
    broker: Arc<Broker>,
    context: Context,
    request: SyncGroupRequest,
) -> SyncGroupResponse {
    if let Err(error) = broker.authorize_group(&context, &request.group_id) {
        return SyncGroupResponse { error_code: error.number(), ..Default::default() };
    }
    let assignments = request.assignments.into_iter();
    let sync = Sync {
        member_id: request.member_id,
        instance: request.group_instance_id,
        generation: request.generation_id,
        protocol_type: request.protocol_type,
        protocol: request.protocol_name,
        assignments: assignments
            .map(|given| (given.member_id, Bytes::copy_from_slice(&given.assignment)))
            .collect(),
    };
    match broker.groups.of(&request.group_id) {
        Ok(coordinator) => coordinator.sync(&request.group_id, sync).await,
        Err(error) => SyncGroupResponse { error_code: error.number(), ..Default::default() },
    }
}

pub(crate) async fn heartbeat(
    broker: Arc<Broker>,
    context: Context,
    request: HeartbeatRequest,
) -> HeartbeatResponse {
    let HeartbeatRequest { group_id, generation_id, member_id, group_instance_id } = request;
    let heard = broker.authorize_group(&context, &group_id).and_then(|()| {
        let coordinator = broker.groups.of(&group_id)?;
        coordinator.heartbeat(&group_id, &member_id, group_instance_id.as_deref(), generation_id)
    });
    HeartbeatResponse { error_code: code(heard), ..Default::default() }
}

pub(crate) async fn leave_group(
    broker: Arc<Broker>,
    context: Context,
    request: LeaveGroupRequest,
) -> LeaveGroupResponse {
    if let Err(error) = broker.authorize_group(&context, &request.group_id) {
        return LeaveGroupResponse { error_code: error.number(), ..Default::default() };
    }
    let groups = match broker.groups.of(&request.group_id) {
        Ok(coordinator) => coordinator,
        Err(error) => return LeaveGroupResponse { error_code: error.number(), ..Default::default() },
    };
    if context.version < MEMBERS_FROM_VERSION {
        let left = groups.leave(&request.group_id, &request.member_id, None);
        let left = left.and(groups.settled(&request.group_id).await);
        return LeaveGroupResponse { error_code: code(left), ..Default::default() };
    }
    if let Err(error) = crate::groups::coordinator::check_name(&request.group_id) {
        return LeaveGroupResponse { error_code: error.number(), ..Default::default() };
    }
    let members = request.members.into_iter().map(|member| {
        let MemberIdentity { member_id, group_instance_id, reason } = member;
        let left = groups.leave(&request.group_id, &member_id, group_instance_id.as_deref());
        tracing::debug!(group = request.group_id, member_id, ?reason, ?left, "a member leaves");
        MemberResponse { error_code: code(left), member_id, group_instance_id }
    });
    let members = members.collect();
    if let Err(error) = groups.settled(&request.group_id).await {
        return LeaveGroupResponse { error_code: error.number(), ..Default::default() };
    }
    LeaveGroupResponse { members, ..Default::default() }
}

/// What of a result goes over the wire.
pub(crate) fn code(result: Result<(), ErrorCode>) -> i16 {
    result.err().unwrap_or(ErrorCode::None).number()
}
