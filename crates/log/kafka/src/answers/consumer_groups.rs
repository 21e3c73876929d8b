//! Groups of KIP-848: ConsumerGroupHeartbeat, ConsumerGroupDescribe.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tailwater_access::Resource;
use tailwater_format::StreamId;

use crate::answers::distinct;
use crate::answers::group_admin::GROUP_OPERATIONS;
use crate::broker::{Broker, Context};
use crate::errors::ErrorCode;
use crate::groups::consumer::{
    Beat, ConsumerGroup, JOINING, LEAVING_FOR_NOW, Member, MemberRefused, Partitions,
};
use crate::groups::group::Group;
use crate::messages::groups::{
    Assignment, ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse,
    ConsumerGroupDescribeResponseDescribedGroup as Described, Member as DescribedMember, TopicPartitions,
};
use crate::messages::membership::{
    Assignment as Given, ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse,
    ConsumerGroupHeartbeatResponseTopicPartitions as GivenPartitions,
};

/// From this version of ConsumerGroupHeartbeat on members make their ids themselves.
const OWN_IDS_FROM_VERSION: i16 = 1;
/// What a member speaks: the classic protocol, or this one.
const CLASSIC_MEMBER: i8 = 0;
const CONSUMER_MEMBER: i8 = 1;

pub(crate) async fn heartbeat(
    broker: Arc<Broker>,
    context: Context,
    request: ConsumerGroupHeartbeatRequest,
) -> ConsumerGroupHeartbeatResponse {
    let group = request.group_id.clone();
    let allowed = broker.authorize_group(&context, &group);
    let allowed = allowed.map_err(|error| (error, "this client may not take part in the group".to_owned()));
    let allowed = allowed.and_then(|()| {
        let mut names = request.subscribed_topic_names.iter().flatten();
        names.try_for_each(|name| broker.authorize_topic(&context, name)).map_err(|error| {
            (error, "this client may not read all of the topics that it subscribes to".to_owned())
        })
    });
    let beat = allowed.and_then(|()| check(&context, request));
    let beat = beat.map(|beat| with_id(&broker, &context, beat));
    // As when a client asks for all topics: of those that it may not know of it hears nothing.
    let may_know = |name: &str| broker.shows(&context, Resource::Stream(name));
    let told = match beat {
        Ok(beat) => match broker.groups.of(&group) {
            Ok(groups) => groups.beat(&group, beat, may_know).await,
            Err(error) => Err((error, "another node coordinates the group".to_owned())),
        },
        Err(refused) => Err(refused),
    };
    match told {
        Ok((told, interval)) => ConsumerGroupHeartbeatResponse {
            member_id: Some(told.member_id),
            member_epoch: told.epoch,
            // Who leaves sends no more.
            heartbeat_interval_ms: if told.epoch < JOINING { 0 } else { interval.as_millis() as i32 },
            assignment: told.assignment.map(given),
            ..Default::default()
        },
        Err((error, why)) => {
            tracing::debug!(group, ?error, why, "a member's heartbeat is refused");
            ConsumerGroupHeartbeatResponse {
                error_code: error.number(),
                error_message: Some(why),
                ..Default::default()
            }
        }
    }
}

/// What holds of every heartbeat by itself.
fn check(context: &Context, request: ConsumerGroupHeartbeatRequest) -> Result<Beat, MemberRefused> {
    let invalid = |why: &str| Err((ErrorCode::InvalidRequest, why.to_owned()));
    let is_empty = |text: &Option<String>| text.as_deref() == Some("");
    let epoch = request.member_epoch;
    let makes_ids = context.version >= OWN_IDS_FROM_VERSION;
    if request.group_id.is_empty() {
        return invalid("a group has a name");
    }
    if request.member_id.is_empty() && (makes_ids || epoch != JOINING) {
        return invalid("a member has an id");
    }
    if is_empty(&request.instance_id) || is_empty(&request.rack_id) || is_empty(&request.server_assignor) {
        return invalid("neither the name of a member nor that of a rack or an assignor is empty");
    }
    if epoch < LEAVING_FOR_NOW {
        return invalid("there is no such epoch");
    }
    if epoch == LEAVING_FOR_NOW && request.instance_id.is_none() {
        return invalid("only a member with a name leaves for now");
    }
    if epoch == JOINING {
        if request.rebalance_timeout_ms < 0 {
            return invalid("a member that joins says its rebalance timeout");
        }
        if request.topic_partitions.as_ref().is_none_or(|owned| !owned.is_empty()) {
            return invalid("a member that joins has no partitions, and says so");
        }
        let has_pattern = request.subscribed_topic_regex.as_deref().is_some_and(|text| !text.is_empty());
        if request.subscribed_topic_names.as_ref().is_none_or(Vec::is_empty) && !has_pattern {
            return invalid("a member that joins subscribes to topics or to a pattern");
        }
    }
    let owned = request.topic_partitions.map(|topics| {
        let mut owned = Partitions::new();
        for topic in topics {
            let numbers = topic.partitions.into_iter().filter_map(|number| u32::try_from(number).ok());
            owned.entry(StreamId(topic.topic_id)).or_default().extend(numbers);
        }
        owned
    });
    Ok(Beat {
        member_id: request.member_id,
        epoch,
        instance: request.instance_id,
        rack: request.rack_id,
        client_id: Arc::clone(&context.client_id),
        client_host: format!("/{}", context.peer.address.ip().to_canonical()),
        rebalance: u64::try_from(request.rebalance_timeout_ms).ok().map(Duration::from_millis),
        topics: request.subscribed_topic_names,
        pattern: request.subscribed_topic_regex,
        principal: Arc::clone(&context.peer.who().principal),
        compiled: None,
        assignor: request.server_assignor,
        owned,
    })
}

fn with_id(broker: &Broker, context: &Context, beat: Beat) -> Beat {
    match beat.member_id.is_empty() {
        true => Beat { member_id: broker.groups.new_member_id(&context.client_id), ..beat },
        false => beat,
    }
}

fn given(partitions: Partitions) -> Given {
    let topics = partitions.into_iter().map(|(topic, partitions)| GivenPartitions {
        topic_id: topic.0,
        partitions: partitions.into_iter().map(|number| number as i32).collect(),
    });
    Given { topic_partitions: topics.collect() }
}

pub(crate) async fn describe(
    broker: Arc<Broker>,
    context: Context,
    request: ConsumerGroupDescribeRequest,
) -> ConsumerGroupDescribeResponse {
    let names: BTreeMap<StreamId, String> =
        broker.log.list_streams().into_iter().map(|stream| (stream.id, stream.name)).collect();
    let authorized_operations =
        if request.include_authorized_operations { GROUP_OPERATIONS } else { i32::MIN };
    let groups = distinct(request.group_ids, String::clone).into_iter().map(|group_id| {
        let allowed = broker.authorize_group(&context, &group_id);
        let found = allowed.and_then(|()| broker.groups.of(&group_id));
        let found = found.map(|groups| groups.group(&group_id).map(|snapshot| snapshot.group));
        let described = match found {
            Err(error) => Described { error_code: error.number(), ..Default::default() },
            Ok(Some(Group::Consumer(group))) if !may_see(&broker, &context, &group, &names) => Described {
                error_code: ErrorCode::TopicAuthorizationFailed.number(),
                error_message: Some(
                    "The group has described topic(s) that the client is not authorized to describe."
                        .to_owned(),
                ),
                ..Default::default()
            },
            Ok(Some(Group::Consumer(group))) => describe_group(&group, &names),
            Ok(found) => {
                let what = if found.is_some() { "is not a consumer group" } else { "not found" };
                let error =
                    if group_id.is_empty() { ErrorCode::InvalidGroupId } else { ErrorCode::GroupIdNotFound };
                Described {
                    error_code: error.number(),
                    error_message: Some(format!("Group {group_id} {what}.")),
                    ..Default::default()
                }
            }
        };
        let authorized_operations = if described.error_code == 0 { authorized_operations } else { i32::MIN };
        Described { group_id, authorized_operations, ..described }
    });
    ConsumerGroupDescribeResponse { groups: groups.collect(), ..Default::default() }
}

/// Whether a client may know of all topics that members of a group have or get.
fn may_see(
    broker: &Broker,
    context: &Context,
    group: &ConsumerGroup,
    names: &BTreeMap<StreamId, String>,
) -> bool {
    let had = group.members.values().flat_map(|member| [&member.assigned, &member.revoking]);
    let topics: BTreeSet<&StreamId> = had.chain(group.target.values()).flat_map(Partitions::keys).collect();
    let mut names = topics.into_iter().filter_map(|topic| names.get(topic));
    names.all(|name| broker.shows(context, Resource::Stream(name)))
}

fn describe_group(group: &ConsumerGroup, names: &BTreeMap<StreamId, String>) -> Described {
    let member = |(id, member): (&String, &Member)| DescribedMember {
        member_id: id.clone(),
        instance_id: member.instance.clone(),
        rack_id: member.rack.clone(),
        member_epoch: member.epoch,
        client_id: member.client_id.to_string(),
        client_host: member.client_host.clone(),
        subscribed_topic_names: member.topics.iter().cloned().collect(),
        subscribed_topic_regex: Some(
            member.pattern.as_ref().map(|pattern| pattern.text.clone()).unwrap_or_default(),
        ),
        assignment: described(&member.has(), names),
        target_assignment: described(group.target.get(id).unwrap_or(&Partitions::new()), names),
        member_type: if member.classic.is_some() { CLASSIC_MEMBER } else { CONSUMER_MEMBER },
    };
    Described {
        group_state: group.state().to_owned(),
        group_epoch: group.epoch,
        assignment_epoch: group.target_epoch,
        assignor_name: group.assignor.name().to_owned(),
        members: group.members.iter().map(member).collect(),
        ..Default::default()
    }
}

fn described(partitions: &Partitions, names: &BTreeMap<StreamId, String>) -> Assignment {
    let topics = partitions.iter().filter_map(|(topic, partitions)| {
        Some(TopicPartitions {
            topic_id: topic.0,
            topic_name: names.get(topic)?.clone(),
            partitions: partitions.iter().map(|number| *number as i32).collect(),
        })
    });
    Assignment { topic_partitions: topics.collect() }
}
