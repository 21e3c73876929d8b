//! Looking after groups: ListGroups, DescribeGroups, DeleteGroups.

use std::sync::Arc;

use tailwater_access::Resource;

use crate::answers::distinct;
use crate::answers::groups::code;
use crate::broker::{Broker, Context};
use crate::errors::ErrorCode;
use crate::groups::classic::ClassicGroup;
use crate::groups::coordinator::Snapshot;
use crate::groups::group::Group;
use crate::messages::groups::{
    DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse, DescribeGroupsRequest,
    DescribeGroupsResponse, DescribeGroupsResponseDescribedGroup, DescribedGroupMember, ListGroupsRequest,
    ListGroupsResponse, ListedGroup,
};

/// What everybody may do with a group: read, delete, describe, and describe and alter its configuration. Bit i stands
/// for operation i.
pub(crate) const GROUP_OPERATIONS: i32 = 0b1101_0100_1000;
/// From this version of DescribeGroups on a group that is not there is an error.
const NOT_FOUND_FROM_VERSION: i16 = 6;

pub(crate) async fn list_groups(
    broker: Arc<Broker>,
    context: Context,
    request: ListGroupsRequest,
) -> ListGroupsResponse {
    let is_wanted = |filter: &[String], value: &str| {
        filter.is_empty() || filter.iter().any(|wanted| wanted.eq_ignore_ascii_case(value))
    };
    let groups = broker.groups.summaries().into_iter().map(|group| ListedGroup {
        group_id: group.name.to_string(),
        protocol_type: group.protocol_type,
        group_state: group.state.to_owned(),
        group_type: group.kind.name().to_owned(),
    });
    let groups = groups.filter(|group| {
        broker.shows(&context, Resource::Group(&group.group_id))
            && is_wanted(&request.states_filter, &group.group_state)
            && is_wanted(&request.types_filter, &group.group_type)
    });
    ListGroupsResponse { groups: groups.collect(), ..Default::default() }
}

pub(crate) async fn describe_groups(
    broker: Arc<Broker>,
    context: Context,
    request: DescribeGroupsRequest,
) -> DescribeGroupsResponse {
    let authorized_operations =
        if request.include_authorized_operations { GROUP_OPERATIONS } else { i32::MIN };
    let groups = distinct(request.groups, String::clone).into_iter().map(|name| {
        let found = broker.authorize_group(&context, &name);
        let found = found.and_then(|()| Ok(broker.groups.of(&name)?.group(&name)));
        let described = match found {
            Ok(Some(Snapshot { group: Group::Classic(group), .. })) => describe(&group),
            Ok(Some(_)) => not_found(context.version, format!("Group {name} is not a classic group.")),
            Ok(None) => not_found(context.version, format!("Group {name} not found.")),
            Err(error) => {
                DescribeGroupsResponseDescribedGroup { error_code: error.number(), ..Default::default() }
            }
        };
        let authorized_operations = if described.error_code == 0 { authorized_operations } else { i32::MIN };
        DescribeGroupsResponseDescribedGroup { group_id: name, authorized_operations, ..described }
    });
    DescribeGroupsResponse { groups: groups.collect(), ..Default::default() }
}

fn not_found(version: i16, why: String) -> DescribeGroupsResponseDescribedGroup {
    let group_state = "Dead".to_owned();
    let dead = DescribeGroupsResponseDescribedGroup { group_state, ..Default::default() };
    if version < NOT_FOUND_FROM_VERSION {
        return dead;
    }
    DescribeGroupsResponseDescribedGroup {
        error_code: ErrorCode::GroupIdNotFound.number(),
        error_message: Some(why),
        ..dead
    }
}

fn describe(group: &ClassicGroup) -> DescribeGroupsResponseDescribedGroup {
    let is_stable = group.state() == "Stable";
    let members = group.members.iter().map(|(id, member)| DescribedGroupMember {
        member_id: id.clone(),
        group_instance_id: member.instance.clone(),
        client_id: member.client_id.to_string(),
        client_host: member.client_host.clone(),
        member_metadata: group.member_metadata(member),
        member_assignment: member.assignment.clone(),
    });
    DescribeGroupsResponseDescribedGroup {
        group_state: group.state().to_owned(),
        protocol_type: group.protocol_type.clone().unwrap_or_default(),
        protocol_data: group.protocol.clone().filter(|_| is_stable).unwrap_or_default(),
        members: members.collect(),
        ..Default::default()
    }
}

pub(crate) async fn delete_groups(
    broker: Arc<Broker>,
    context: Context,
    request: DeleteGroupsRequest,
) -> DeleteGroupsResponse {
    let mut results = Vec::with_capacity(request.groups_names.len());
    for group_id in request.groups_names {
        let deleted = match broker.authorize_group(&context, &group_id) {
            Ok(()) => match broker.groups.of(&group_id) {
                Ok(groups) => groups.delete(&group_id).await,
                Err(error) => Err(error),
            },
            Err(error) => Err(error),
        };
        if deleted.is_ok() {
            tracing::info!(group = group_id, "deleted");
        }
        results.push(DeletableGroupResult { group_id, error_code: code(deleted) });
    }
    DeleteGroupsResponse { results, ..Default::default() }
}
