//! Being a member: joining, heartbeats, committing, leaving.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tailwater_env::{Env, Task};
use tailwater_format::Offset;
use tailwater_kafka_wire::ErrorCode;
use tailwater_kafka_wire::consumer::{PROTOCOL_TYPE, Subscription, assigned, encode};
use tailwater_kafka_wire::messages::membership::{
    HeartbeatRequest, JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse, LeaveGroupRequest,
    MemberIdentity, SyncGroupRequest, SyncGroupRequestAssignment,
};
use tailwater_kafka_wire::messages::offsets::{
    OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic, OffsetFetchRequest,
    OffsetFetchRequestGroup, OffsetFetchRequestTopics,
};
use tokio::sync::Notify;

use super::GroupConfig;
use super::assign::{RANGE, range, subscribers};
use super::connection::Connection;
use crate::connection::Node;
use crate::limits::RETRY_PAUSE;
use crate::{Client, Error, Stream};

/// A member sends so many heartbeats in its session timeout: every 3 s of the usual 45, as Kafka's clients do.
const HEARTBEATS_PER_SESSION: u32 = 15;

/// A member of a group, or one to be.
pub(super) struct GroupMembership {
    env: Env,
    config: GroupConfig,
    stream: Stream,
    connection: Arc<tokio::sync::Mutex<Connection>>,
    /// Empty if it has none, or lost it.
    member_id: String,
    generation: i32,
    shared: Arc<MembershipShared>,
    heartbeats: Option<Task>,
}

/// What the task of the heartbeats has to say.
#[derive(Default)]
struct MembershipShared {
    /// Why it has to join, if it has to.
    due: Mutex<Option<ErrorCode>>,
    changed: Notify,
}

impl MembershipShared {
    fn join_again(&self, why: ErrorCode) {
        *self.due.lock() = Some(why);
        self.changed.notify_one();
    }
}

impl GroupMembership {
    pub(super) fn new(env: &Env, config: &GroupConfig, node: &Node, stream: &Stream) -> Self {
        let opens = (node.dialer(), node.login().map(|login| &login.0));
        let connection = Connection::new(env, &config.kafka, opens, &config.client_id);
        let shared =
            MembershipShared { due: Mutex::new(Some(ErrorCode::None)), ..MembershipShared::default() };
        Self {
            env: env.clone(),
            config: config.clone(),
            stream: stream.clone(),
            connection: Arc::new(tokio::sync::Mutex::new(connection)),
            member_id: String::new(),
            generation: -1,
            shared: Arc::new(shared),
            heartbeats: None,
        }
    }

    /// Whether it has to join.
    pub(super) fn is_due(&self) -> bool {
        self.shared.due.lock().is_some()
    }

    /// Completes when it may have to join.
    pub(super) async fn changed(&self) {
        self.shared.changed.notified().await;
    }

    /// Has it join at the next occasion.
    pub(super) fn join_again(&self, why: ErrorCode) {
        self.shared.join_again(why);
    }

    /// It has joined, and knows what it needs.
    pub(super) fn joined(&self) {
        let mut due = self.shared.due.lock();
        // What was heard before this generation began says nothing about it, but for what came since.
        if *due == Some(ErrorCode::None) {
            *due = None;
        }
    }

    /// Whether it is in a generation in which it may still commit, as far as it knows.
    pub(super) fn is_member(&self) -> bool {
        !self.member_id.is_empty()
            && matches!(*self.shared.due.lock(), None | Some(ErrorCode::RebalanceInProgress))
    }

    /// Joins until a generation has it; its shards of the stream.
    pub(super) async fn join(&mut self, client: &Client) -> Result<BTreeSet<u32>, Error> {
        self.heartbeats = None;
        if self.shared.due.lock().replace(ErrorCode::None) == Some(ErrorCode::UnknownMemberId) {
            self.member_id.clear();
        }
        loop {
            match self.try_join(client).await {
                Err(Error::Group { code: ErrorCode::UnknownMemberId, .. }) => self.member_id.clear(),
                // It comes again at once with the id that it got.
                Err(Error::Group { code: ErrorCode::MemberIdRequired, .. }) => {}
                Err(Error::Group { code, .. }) if is_passing(code) => self.env.sleep(RETRY_PAUSE).await,
                done => return done,
            }
        }
    }

    async fn try_join(&mut self, client: &Client) -> Result<BTreeSet<u32>, Error> {
        let joined = self.join_group().await?;
        self.member_id.clone_from(&joined.member_id);
        if joined.error_code == ErrorCode::MemberIdRequired.number() {
            return Err(self.error(ErrorCode::MemberIdRequired.number()));
        }
        self.check(joined.error_code)?;
        self.generation = joined.generation_id;
        let assignments = match joined.leader == joined.member_id && !joined.skip_assignment {
            true => self.assign(client, &joined).await?,
            false => Vec::new(),
        };
        // From here on it would be missed.
        self.start_heartbeats();
        let sync = SyncGroupRequest {
            group_id: self.config.group.clone(),
            generation_id: self.generation,
            member_id: self.member_id.clone(),
            group_instance_id: self.config.instance.clone(),
            protocol_type: joined.protocol_type,
            protocol_name: joined.protocol_name,
            assignments,
        };
        let synced = self.connection.lock().await.call(&sync, self.config.rebalance_timeout).await?;
        self.check(synced.error_code)?;
        let topics = assigned(synced.assignment).unwrap_or_default();
        let ours = topics.into_iter().filter(|topic| *topic.topic == *self.stream.name);
        let numbers = ours.flat_map(|topic| topic.partitions).filter_map(|number| u32::try_from(number).ok());
        Ok(numbers.filter(|number| *number < self.stream.shards).collect())
    }

    async fn join_group(&self) -> Result<JoinGroupResponse, Error> {
        let topics = vec![self.stream.name.to_string()];
        let metadata = encode(&Subscription { topics, ..Default::default() }, 1);
        let join = JoinGroupRequest {
            group_id: self.config.group.clone(),
            session_timeout_ms: millis(self.config.session_timeout),
            rebalance_timeout_ms: millis(self.config.rebalance_timeout),
            member_id: self.member_id.clone(),
            group_instance_id: self.config.instance.clone(),
            protocol_type: PROTOCOL_TYPE.to_owned(),
            protocols: vec![JoinGroupRequestProtocol { name: RANGE.to_owned(), metadata }],
            reason: None,
        };
        self.connection.lock().await.call(&join, self.config.rebalance_timeout).await
    }

    /// As the leader: who gets which shards, of all streams that anybody in the group reads.
    async fn assign(
        &self,
        client: &Client,
        joined: &JoinGroupResponse,
    ) -> Result<Vec<SyncGroupRequestAssignment>, Error> {
        let members = joined.members.iter().map(|member| (member.member_id.clone(), member.metadata.clone()));
        let subscribers = subscribers(&members.collect::<Vec<(String, Bytes)>>());
        let mut partitions = BTreeMap::new();
        for topic in subscribers.keys() {
            match client.stream(topic).await {
                Ok(stream) => _ = partitions.insert(topic.clone(), stream.shards),
                Err(error) if error.is_unknown_stream() => {}
                Err(error) => return Err(error),
            }
        }
        let assignments = range(&subscribers, &partitions).into_iter();
        Ok(assignments
            .map(|(member_id, assignment)| SyncGroupRequestAssignment { member_id, assignment })
            .collect())
    }

    fn start_heartbeats(&mut self) {
        let heartbeat = HeartbeatRequest {
            group_id: self.config.group.clone(),
            generation_id: self.generation,
            member_id: self.member_id.clone(),
            group_instance_id: self.config.instance.clone(),
        };
        let (env, every) = (self.env.clone(), self.config.session_timeout / HEARTBEATS_PER_SESSION);
        let (connection, shared) = (Arc::clone(&self.connection), Arc::clone(&self.shared));
        self.heartbeats = Some(self.env.spawn("group-heartbeats", async move {
            loop {
                env.sleep(every).await;
                let answer = connection.lock().await.call(&heartbeat, Duration::ZERO).await;
                match answer.map(|answer| error_of(answer.error_code)) {
                    // Whoever is not reached now may be the next time: sessions are longer.
                    Ok(ErrorCode::None) | Err(_) => {}
                    Ok(code @ (ErrorCode::RebalanceInProgress | ErrorCode::IllegalGeneration)) => {
                        return shared.join_again(code);
                    }
                    Ok(code) if is_passing(code) => {}
                    Ok(code) => return shared.join_again(code),
                }
            }
        }));
    }

    /// What the group has committed of some shards.
    pub(super) async fn committed(&self, shards: &BTreeSet<u32>) -> Result<BTreeMap<u32, Offset>, Error> {
        let topic = OffsetFetchRequestTopics {
            name: self.stream.name.to_string(),
            topic_id: self.stream.id.0,
            partition_indexes: shards.iter().map(|shard| *shard as i32).collect(),
        };
        let group = OffsetFetchRequestGroup {
            group_id: self.config.group.clone(),
            topics: Some(vec![topic]),
            ..Default::default()
        };
        let fetch = OffsetFetchRequest { groups: vec![group], ..Default::default() };
        let answer = self.connection.lock().await.call(&fetch, Duration::ZERO).await?;
        let mut committed = BTreeMap::new();
        for group in answer.groups {
            self.check(group.error_code)?;
            for partition in group.topics.into_iter().flat_map(|topic| topic.partitions) {
                self.check(partition.error_code)?;
                let found = u32::try_from(partition.partition_index).ok();
                let found = found.zip(u64::try_from(partition.committed_offset).ok());
                committed.extend(found.map(|(shard, offset)| (shard, Offset(offset))));
            }
        }
        Ok(committed)
    }

    /// Commits; the offsets are durable when this is answered.
    pub(super) async fn commit(&self, offsets: Vec<(u32, Offset)>) -> Result<(), Error> {
        let partitions = offsets.into_iter().map(|(shard, offset)| OffsetCommitRequestPartition {
            partition_index: shard as i32,
            committed_offset: offset.0 as i64,
            ..Default::default()
        });
        let topic = OffsetCommitRequestTopic {
            name: self.stream.name.to_string(),
            topic_id: self.stream.id.0,
            partitions: partitions.collect(),
        };
        let commit = OffsetCommitRequest {
            group_id: self.config.group.clone(),
            generation_id_or_member_epoch: self.generation,
            member_id: self.member_id.clone(),
            group_instance_id: self.config.instance.clone(),
            topics: vec![topic],
            ..Default::default()
        };
        let answer = self.connection.lock().await.call(&commit, Duration::ZERO).await?;
        let mut partitions = answer.topics.iter().flat_map(|topic| &topic.partitions);
        partitions.try_for_each(|partition| self.check(partition.error_code))
    }

    /// Leaves, if it can: who can't be told learns it when the session ends. A static member stays, so that it has its
    /// shards again when it is back in time.
    pub(super) async fn leave(&mut self) {
        self.heartbeats = None;
        if self.member_id.is_empty() || self.config.instance.is_some() {
            return;
        }
        let member_id = std::mem::take(&mut self.member_id);
        let leave = LeaveGroupRequest {
            group_id: self.config.group.clone(),
            members: vec![MemberIdentity { member_id, ..Default::default() }],
            ..Default::default()
        };
        if let Err(error) = self.connection.lock().await.call(&leave, Duration::ZERO).await {
            tracing::warn!(group = self.config.group, %error, "it can't be told that this member leaves");
        }
    }

    fn check(&self, code: i16) -> Result<(), Error> {
        if code == 0 { Ok(()) } else { Err(self.error(code)) }
    }

    fn error(&self, code: i16) -> Error {
        Error::group(&self.config.group, error_of(code))
    }
}

fn error_of(code: i16) -> ErrorCode {
    ErrorCode::from_number(code).unwrap_or(ErrorCode::UnknownServerError)
}

/// Whether a member whose commit is refused so has to join again, and may commit then.
pub(super) fn is_healed_by_joining(code: ErrorCode) -> bool {
    matches!(code, ErrorCode::UnknownMemberId | ErrorCode::GroupIdNotFound) || is_passing(code)
}

/// Whether joining again may help.
fn is_passing(code: ErrorCode) -> bool {
    matches!(
        code,
        ErrorCode::RebalanceInProgress
            | ErrorCode::IllegalGeneration
            | ErrorCode::CoordinatorLoadInProgress
            | ErrorCode::CoordinatorNotAvailable
            | ErrorCode::NotCoordinator
    )
}

fn millis(duration: Duration) -> i32 {
    i32::try_from(duration.as_millis()).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_that_is_refused_for_what_is_in_it_is_not_healed_by_joining_again() {
        use ErrorCode::{
            FencedInstanceId, GroupAuthorizationFailed, GroupIdNotFound, IllegalGeneration,
            InvalidCommitOffsetSize, OffsetMetadataTooLarge, RebalanceInProgress, UnknownMemberId,
            UnknownTopicId,
        };
        for passing in [UnknownMemberId, GroupIdNotFound, IllegalGeneration, RebalanceInProgress] {
            assert!(is_healed_by_joining(passing), "{passing:?}");
        }
        for final_one in [
            InvalidCommitOffsetSize,
            OffsetMetadataTooLarge,
            UnknownTopicId,
            GroupAuthorizationFailed,
            FencedInstanceId,
        ] {
            assert!(!is_healed_by_joining(final_one), "{final_one:?}");
        }
    }
}
