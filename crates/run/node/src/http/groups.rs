//! `/v1/groups`: Kafka's consumer groups.

use std::sync::Arc;

use axum::extract::rejection::JsonRejection;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use tailwater_access::Resource;
use tailwater_format::Start;
use tailwater_kafka::{Broker, GroupError, GroupInfo, MemberInfo, Reset, ShardLag};
use tailwater_sqs::JsonObject;

use super::refusal::AdminRefusal;
use super::{ConnectionSender, target};
use crate::NodeShared;
use crate::api::{GroupMemberView, GroupReset, GroupShardView, GroupSummary, GroupView, ResetGroup};

impl From<GroupError> for AdminRefusal {
    fn from(error: GroupError) -> Self {
        let (status, word) = match error {
            GroupError::Unknown(_) => (StatusCode::NOT_FOUND, "unknown_group"),
            GroupError::UnknownStream(_) => (StatusCode::NOT_FOUND, "unknown_stream"),
            GroupError::NotEmpty(_) => (StatusCode::CONFLICT, "group_not_empty"),
            GroupError::NoStream(_) => (StatusCode::BAD_REQUEST, "malformed"),
            GroupError::Read { .. } => (StatusCode::UNPROCESSABLE_ENTITY, "offset_out_of_range"),
            GroupError::Refused { .. } => (StatusCode::SERVICE_UNAVAILABLE, "unavailable"),
        };
        AdminRefusal(status, word, error.to_string())
    }
}

type GroupsAnswer<T> = Result<Json<T>, AdminRefusal>;

fn broker(shared: &NodeShared) -> Result<&Arc<Broker>, AdminRefusal> {
    let off = || {
        let why = "there are no groups: Kafka's protocol is switched off ([kafka] enabled)".to_owned();
        AdminRefusal(StatusCode::NOT_FOUND, "unknown_group", why)
    };
    shared.kafka.as_ref().map(|server| server.broker()).ok_or_else(off)
}

/// Those that whoever asks may know of.
pub(super) async fn list(
    State(shared): State<Arc<NodeShared>>,
    Extension(sender): Extension<ConnectionSender>,
) -> GroupsAnswer<Vec<GroupSummary>> {
    let broker = broker(&shared)?;
    let mut groups = Vec::new();
    let mut names = broker.group_names();
    names.retain(|name| shared.shows(&sender, Resource::Group(name)));
    for name in names {
        // One that is deleted meanwhile is left out.
        groups.extend(broker.describe_group(&name).await.ok().map(|group| summary(&group)));
    }
    Ok(Json(groups))
}

pub(super) async fn describe(
    State(shared): State<Arc<NodeShared>>,
    Path(name): Path<String>,
) -> GroupsAnswer<GroupView> {
    Ok(Json(view(broker(&shared)?.describe_group(&name).await?)))
}

pub(super) async fn delete(
    State(shared): State<Arc<NodeShared>>,
    Path(name): Path<String>,
) -> GroupsAnswer<serde_json::Value> {
    broker(&shared)?.delete_group(&name).await?;
    tracing::info!(group = name, "deleted a group");
    Ok(Json(serde_json::json!({ "deleted": name })))
}

pub(super) async fn reset(
    State(shared): State<Arc<NodeShared>>,
    Path(name): Path<String>,
    body: Result<Json<JsonObject<ResetGroup>>, JsonRejection>,
) -> GroupsAnswer<Vec<GroupReset>> {
    let Json(JsonObject(ResetGroup { to, streams, dry_run })) = body?;
    let start = to.parse::<Start>();
    let start = start.map_err(|why| AdminRefusal(StatusCode::BAD_REQUEST, "malformed", why.to_string()))?;
    let resets = broker(&shared)?.reset_group(&name, &streams, target(start), dry_run).await?;
    if !dry_run {
        tracing::info!(group = name, to, shards = resets.len(), "reset a group");
    }
    let resets = resets.into_iter().map(|Reset { stream, shard, before, after }| GroupReset {
        stream,
        shard,
        before: before.map(|offset| offset.0),
        after: after.0,
    });
    Ok(Json(resets.collect()))
}

fn summary(group: &GroupInfo) -> GroupSummary {
    GroupSummary {
        name: group.name.clone(),
        kind: group.kind.to_owned(),
        state: group.state.to_owned(),
        members: group.members.len(),
        shards: group.shards.len(),
        lag_records: group.lag_records(),
        lag_seconds: group.lag_time().as_secs_f64(),
    }
}

fn view(group: GroupInfo) -> GroupView {
    let member = |member: MemberInfo| {
        let MemberInfo { id, instance, client_id, host, shards } = member;
        GroupMemberView { id, instance, client_id, host, shards }
    };
    let shard = |lag: ShardLag| GroupShardView {
        stream: lag.stream,
        shard: lag.shard,
        member: lag.member,
        committed: lag.committed.map(|offset| offset.0),
        log_start: lag.log_start.0,
        end: lag.end.0,
        lag_records: lag.records,
        lag_seconds: lag.time.map(|time| time.as_secs_f64()),
    };
    GroupView {
        summary: summary(&group),
        protocol_type: group.protocol_type,
        protocol: group.protocol,
        generation: group.generation,
        members: group.members.into_iter().map(member).collect(),
        shards: group.shards.into_iter().map(shard).collect(),
    }
}
