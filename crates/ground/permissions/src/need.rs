//! Which right each request of each protocol needs: one table for all ways in.

use std::borrow::Cow;

use tailwater_access::{AccessRequest, Protocol, Resource};

use crate::rule::{ALL, Operation, ResourceKind};

/// The right that a request needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Need<'a> {
    /// None: it tells nothing of what is kept, and changes nothing. What it leads to is asked for by itself.
    Nothing,
    /// To do this with a resource.
    Right {
        /// What.
        operation: Operation,
        /// To which kind of resource.
        kind: ResourceKind,
        /// Its name. `*` is what has no single name: a rule about all of the kind is about it, and no other.
        name: Cow<'a, str>,
    },
}

/// What `request` needs. What is in no row needs the right to alter the node: what nobody thought of is for those alone
/// who may do everything.
pub fn need<'a>(request: &AccessRequest<'a>) -> Need<'a> {
    let AccessRequest { protocol, operation, resource } = *request;
    let known = match protocol {
        Protocol::Kafka => of_kafka(operation, resource),
        Protocol::Call => of_call(operation),
        Protocol::Cell => of_cell(operation),
        Protocol::Http => of_http(operation, resource),
        Protocol::Broadcast => of_broadcast(operation, resource),
        Protocol::Sqs => of_sqs(operation, resource),
        Protocol::Memcached => of_memcached(operation),
    };
    let operation = match known {
        Some(NeedRow::Nothing) => return Need::Nothing,
        Some(NeedRow::Right(operation)) => operation,
        None => return on_node(Operation::Alter),
    };
    match resource {
        Resource::Stream(name) => right(operation, ResourceKind::Stream, name),
        Resource::Group(name) => right(operation, ResourceKind::Group, name),
        Resource::Broadcast(name) => right(operation, ResourceKind::Broadcast, name),
        Resource::Queue(name) => right(operation, ResourceKind::Queue, name),
        Resource::Cell(name) => right(operation, ResourceKind::Cell, name),
        // Who listens to all that there is may listen to all.
        Resource::Node if protocol == Protocol::Broadcast && operation == Operation::Read => {
            right(operation, ResourceKind::Broadcast, ALL)
        }
        Resource::Node | Resource::Path(_) => on_node(operation),
    }
}

fn right(operation: Operation, kind: ResourceKind, name: &str) -> Need<'_> {
    Need::Right { operation, kind, name: Cow::Borrowed(name) }
}

fn on_node(operation: Operation) -> Need<'static> {
    right(operation, ResourceKind::Node, ResourceKind::NODE_NAME)
}

enum NeedRow {
    Nothing,
    Right(Operation),
}

use Operation::*;

/// As Apache Kafka's documentation has it ("Operations and Resources on Protocols").
fn of_kafka(api: &str, resource: Resource<'_>) -> Option<NeedRow> {
    let operation = match (api, resource) {
        ("ApiVersions" | "SaslHandshake" | "SaslAuthenticate", _) => return Some(NeedRow::Nothing),
        ("Produce", Resource::Stream(_)) => Write,
        ("Fetch" | "OffsetCommit" | "OffsetDelete" | "DescribeProducers", Resource::Stream(_)) => Read,
        ("DeleteTopics" | "DeleteRecords", Resource::Stream(_)) => Delete,
        ("CreateTopics", _) => Create,
        ("CreatePartitions", Resource::Stream(_)) => Alter,
        (
            "Metadata"
            | "ListOffsets"
            | "OffsetFetch"
            | "OffsetForLeaderEpoch"
            | "DescribeTopicPartitions"
            | "ConsumerGroupHeartbeat"
            | "ConsumerGroupDescribe"
            | "DescribeLogDirs"
            | "ListPartitionReassignments",
            Resource::Stream(_),
        ) => Describe,
        (
            "JoinGroup"
            | "SyncGroup"
            | "Heartbeat"
            | "LeaveGroup"
            | "OffsetCommit"
            | "ConsumerGroupHeartbeat",
            Resource::Group(_),
        ) => Read,
        (
            "OffsetFetch" | "FindCoordinator" | "DescribeGroups" | "ListGroups" | "ConsumerGroupDescribe",
            Resource::Group(_),
        ) => Describe,
        ("DeleteGroups" | "OffsetDelete", Resource::Group(_)) => Delete,
        ("InitProducerId", Resource::Node) => IdempotentWrite,
        ("DescribeConfigs" | "ListConfigResources" | "DescribeClientQuotas", _) => DescribeConfigs,
        ("AlterConfigs" | "IncrementalAlterConfigs" | "AlterClientQuotas", _) => AlterConfigs,
        (
            "Metadata"
            | "DescribeCluster"
            | "DescribeAcls"
            | "DescribeLogDirs"
            | "ListGroups"
            | "DescribeQuorum"
            | "ListPartitionReassignments"
            | "DescribeUserScramCredentials",
            Resource::Node,
        ) => Describe,
        _ => return None,
    };
    Some(NeedRow::Right(operation))
}

/// CALLs of the client library. A greeting tells where the cells are, and a cell asks for itself.
fn of_call(method: &str) -> Option<NeedRow> {
    Some(NeedRow::Right(match method {
        "hello" | "delivery_delays" => return Some(NeedRow::Nothing),
        "find_stream" | "find_cell" => Describe,
        "append" => Write,
        "init_producer" => IdempotentWrite,
        "read_durable" | "tails" | "segments" | "locate" | "copy_open" | "copy_next" => Read,
        "copy_state" => Describe,
        "copy_plan" | "copy_lead" | "copy_offsets" | "copy_report" | "copy_push" => ClusterAction,
        _ => return None,
    }))
}

fn of_cell(operation: &str) -> Option<NeedRow> {
    Some(NeedRow::Right(match operation {
        "read" => Read,
        "mutate" => Write,
        "configure" => Alter,
        "clear" => Delete,
        _ => return None,
    }))
}

/// Of the cell that memcached's protocol is spoken over.
fn of_memcached(operation: &str) -> Option<NeedRow> {
    Some(NeedRow::Right(match operation {
        "get" => Read,
        "set" | "delete" => Write,
        "flush_all" => Delete,
        "stats" => Describe,
        _ => return None,
    }))
}

/// By methods, and `create` for a stream that a body names: a group's reset is a commit for it, and a stream is
/// truncated as Kafka's DeleteRecords does.
fn of_http(method: &str, resource: Resource<'_>) -> Option<NeedRow> {
    Some(NeedRow::Right(match (method, resource) {
        ("GET" | "HEAD", Resource::Path("/healthz" | "/livez" | "/readyz")) => return Some(NeedRow::Nothing),
        // What is listed is asked for one by one, and so is a stream that is created, whose name is in the body.
        ("GET" | "HEAD", Resource::Path("/v1/streams" | "/v1/groups")) => return Some(NeedRow::Nothing),
        ("POST", Resource::Path("/v1/streams")) => return Some(NeedRow::Nothing),
        ("GET" | "HEAD", _) => Describe,
        ("POST", Resource::Path("/v1/cells")) => Create,
        ("create", Resource::Stream(_)) => Create,
        ("POST", Resource::Group(_)) => Read,
        // Where a stream is copied to, and what of it comes back.
        ("PUT", Resource::Stream(_)) => Alter,
        ("PATCH", Resource::Stream(_)) => AlterConfigs,
        ("POST" | "DELETE", Resource::Stream(_)) | ("DELETE", Resource::Group(_)) => Delete,
        ("POST", Resource::Cell(_)) => Delete,
        _ => return None,
    }))
}

fn of_broadcast(operation: &str, resource: Resource<'_>) -> Option<NeedRow> {
    Some(NeedRow::Right(match (operation, resource) {
        // The streams of a request over HTTP are asked for one by one.
        ("connect", _) | (_, Resource::Path(_)) => return Some(NeedRow::Nothing),
        ("replicate", _) => ClusterAction,
        ("publish", _) => Write,
        ("listen", _) => Read,
        _ => return None,
    }))
}

/// A queue's policy is asked after this.
fn of_sqs(action: &str, resource: Resource<'_>) -> Option<NeedRow> {
    if resource == Resource::Node {
        // Every action names its queues afterwards, but for these.
        return match action {
            "CancelMessageMoveTask" => None,
            _ => Some(NeedRow::Nothing),
        };
    }
    Some(NeedRow::Right(match action {
        "SendMessage" | "SendMessageBatch" => Write,
        "ReceiveMessage"
        | "DeleteMessage"
        | "DeleteMessageBatch"
        | "ChangeMessageVisibility"
        | "ChangeMessageVisibilityBatch" => Read,
        "CreateQueue" => Create,
        "DeleteQueue" | "PurgeQueue" => Delete,
        "SetQueueAttributes"
        | "AddPermission"
        | "RemovePermission"
        | "TagQueue"
        | "UntagQueue"
        | "StartMessageMoveTask"
        | "CancelMessageMoveTask" => Alter,
        "GetQueueAttributes"
        | "GetQueueUrl"
        | "ListQueues"
        | "ListQueueTags"
        | "ListDeadLetterSourceQueues"
        | "ListMessageMoveTasks" => Describe,
        _ => return None,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(protocol: Protocol, operation: &str, resource: Resource<'static>) -> Need<'static> {
        // The operation's name is not in what is needed.
        need(&AccessRequest { protocol, operation: operation.to_owned().leak(), resource })
    }

    #[test]
    fn what_nobody_thought_of_needs_the_right_to_alter_the_node() {
        let all = [
            Protocol::Call,
            Protocol::Cell,
            Protocol::Http,
            Protocol::Kafka,
            Protocol::Broadcast,
            Protocol::Sqs,
            Protocol::Memcached,
        ];
        for protocol in all {
            assert_eq!(of(protocol, "Unheard", Resource::Stream("news")), on_node(Alter), "{protocol:?}");
        }
        assert_eq!(of(Protocol::Kafka, "Produce", Resource::Group("news")), on_node(Alter));
        assert_eq!(of(Protocol::Http, "POST", Resource::Path("/v1/users")), on_node(Alter));
    }

    #[test]
    fn an_operation_on_a_stream_a_queue_or_a_broadcast_is_the_same_right_by_every_protocol() {
        let write = |kind, name| right(Write, kind, name);
        assert_eq!(
            of(Protocol::Kafka, "Produce", Resource::Stream("news")),
            write(ResourceKind::Stream, "news")
        );
        assert_eq!(
            of(Protocol::Call, "append", Resource::Stream("news")),
            write(ResourceKind::Stream, "news")
        );
        assert_eq!(
            of(Protocol::Broadcast, "publish", Resource::Broadcast("eu/a")),
            write(ResourceKind::Broadcast, "eu/a")
        );
        assert_eq!(
            of(Protocol::Sqs, "SendMessage", Resource::Queue("1/jobs")),
            write(ResourceKind::Queue, "1/jobs")
        );
        assert_eq!(of(Protocol::Cell, "mutate", Resource::Cell("data")), write(ResourceKind::Cell, "data"));
        assert_eq!(of(Protocol::Memcached, "set", Resource::Cell("m")), write(ResourceKind::Cell, "m"));
    }

    #[test]
    fn who_listens_to_all_broadcasts_needs_a_right_to_all_of_them() {
        assert_eq!(
            of(Protocol::Broadcast, "listen", Resource::Node),
            right(Read, ResourceKind::Broadcast, "*")
        );
    }

    #[test]
    fn whether_the_node_lives_may_be_asked_by_everybody_and_what_it_does_may_not() {
        assert_eq!(of(Protocol::Http, "GET", Resource::Path("/healthz")), Need::Nothing);
        assert_eq!(of(Protocol::Http, "GET", Resource::Path("/metrics")), on_node(Describe));
    }
}
