//! Scripts about topics and brokers: which there are, how they are configured, and what is refused.

use bytes::Bytes;
use tailwater_kafka::api::{Api, ApiRequest};
use tailwater_kafka::messages::cluster::*;
use tailwater_kafka::messages::configs::*;
use tailwater_kafka::messages::header::read_response;
use tailwater_kafka::messages::security::*;
use tailwater_kafka::messages::topics::{
    CreatableReplicaAssignment, CreatableTopic, CreatableTopicConfig, CreatePartitionsAssignment,
    CreatePartitionsRequest, CreatePartitionsTopic, CreateTopicsRequest, DeleteTopicState,
    DeleteTopicsRequest, DescribableLogDirTopic, DescribeLogDirsRequest,
};
use uuid::Uuid;

use crate::session::Session;

pub fn versions(session: &mut Session) {
    let named = ApiVersionsRequest {
        client_software_name: "tests".to_owned(),
        client_software_version: "1.0".to_owned(),
    };
    session.ask_all("which are spoken", &named);
    for name in ["", "-x", "a b", "x-"] {
        let asked = ApiVersionsRequest { client_software_name: name.to_owned(), ..named.clone() };
        session.ask_in(format!("a client called {name:?}"), 3..=4, &asked);
    }
    // A client of the future is answered in the oldest form.
    let frame = |api: i16, version: i16| {
        let mut frame = vec![0, 0, 0, 11];
        frame.extend(api.to_be_bytes());
        frame.extend(version.to_be_bytes());
        frame.extend([0, 0, 0, 9, 255, 255, 0]);
        frame
    };
    let answer = session.exchange("ApiVersions 99", &frame(18, 99)).expect("answered");
    let answer: (i32, ApiVersionsResponse) =
        read_response(Api::ApiVersions, 0, answer).expect("in version 0");
    assert_eq!((answer.0, answer.1.error_code), (9, 35));
    for (api, version) in
        [(3, 14), (3, -1), (0, 2), (0, 14), (1, 3), (1, 19), (19, 1), (99, 0), (-1, 0), (1000, 1)]
    {
        session.exchange(&format!("API {api} in version {version}"), &frame(api, version));
    }
    session.exchange(
        "an array that is longer than its frame",
        &[0, 0, 0, 14, 0, 3, 0, 1, 0, 0, 0, 1, 255, 255, 0x7f, 255, 255, 255],
    );
    session.exchange("a frame of -1 bytes", &[255; 16]);
    session.exchange("a frame of 2 bytes", &[0, 0, 0, 2, 0, 3]);
}

pub fn metadata(session: &mut Session) {
    let id = session.create("metadata", 3, &[]);
    let named = |name: &str| MetadataRequestTopic { topic_id: Uuid::nil(), name: Some(name.to_owned()) };
    let of = |topics| MetadataRequest { topics, allow_auto_topic_creation: false, ..Default::default() };
    session.ask_all("a topic", &of(Some(vec![named("metadata")])));
    session.ask_in("no topic", 1..=13, &of(Some(vec![])));
    session.ask_in("one that is not there", 4..=13, &of(Some(vec![named("nobody.s"), named("metadata")])));
    session.ask_in("a name that is none", 4..=13, &of(Some(vec![named("a/b"), named("")])));
    let by_id =
        |topic_id, name: Option<&str>| MetadataRequestTopic { topic_id, name: name.map(str::to_owned) };
    session.ask_in("by id", 12..=13, &of(Some(vec![by_id(id, None)])));
    session.ask_in("by an id that is not there", 12..=13, &of(Some(vec![by_id(Uuid::from_u128(3), None)])));
    session.ask_in("by an id before there were any", 10..=11, &of(Some(vec![by_id(id, Some("metadata"))])));
    session.ask_in("neither name nor id", 12..=13, &of(Some(vec![by_id(Uuid::nil(), None)])));
    let allowed = MetadataRequest {
        include_topic_authorized_operations: true,
        include_cluster_authorized_operations: true,
        ..of(Some(vec![named("metadata")]))
    };
    session.ask_in("and what is allowed", 8..=13, &allowed);
}

/// Topics that clients want by asking for them.
pub fn automatic_creation(session: &mut Session) {
    let asked = |name: &str, allow_auto_topic_creation| MetadataRequest {
        topics: Some(vec![MetadataRequestTopic { topic_id: Uuid::nil(), name: Some(name.to_owned()) }]),
        allow_auto_topic_creation,
        ..Default::default()
    };
    session.ask("not wanted", 4, &asked("not-wanted", false));
    session.ask("wanted", 4, &asked("wanted", true));
    session.wait_for("wanted", 1);
    session.ask("wanted before one could say so", 1, &asked("wanted-1", false));
    session.wait_for("wanted-1", 1);
    session.ask("wanted, once more", 4, &asked("wanted", true));
    session.ask("not wanted, once more", 4, &asked("not-wanted", false));
}

fn topic(name: &str, num_partitions: i32, replication_factor: i16) -> CreatableTopic {
    CreatableTopic { name: name.to_owned(), num_partitions, replication_factor, ..Default::default() }
}

fn config(name: &str, value: Option<&str>) -> CreatableTopicConfig {
    CreatableTopicConfig { name: name.to_owned(), value: value.map(str::to_owned) }
}

pub fn creation(session: &mut Session) {
    session.create("there", 1, &[]);
    let of = |topics, validate_only| CreateTopicsRequest { topics, timeout_ms: 30_000, validate_only };
    for version in CreateTopicsRequest::API.versions() {
        let name = format!("created-{version}");
        session.ask("a topic", version, &of(vec![topic(&name, 2, 1)], false));
        session.wait_for(&name, 2);
        session.ask("only validated", version, &of(vec![topic("only-validated", 2, 1)], true));
        session.ask(
            "several, some of them wrong",
            version,
            &of(
                vec![
                    topic("there", 1, 1),
                    topic("no name", 1, 1),
                    topic("", 1, 1),
                    topic("zero", 0, 1),
                    topic("minus", -2, 1),
                    topic("replicated", 1, 3),
                    topic("never-replicated", 1, 0),
                    topic(&format!("good-{version}"), 1, 1),
                ],
                false,
            ),
        );
        session.ask("a name twice", version, &of(vec![topic("twice", 1, 1), topic("twice", 2, 1)], false));
        session.ask("none", version, &of(vec![], false));
    }
    session.ask("as many as usual", 7, &of(vec![topic("usual", -1, -1)], false));
    let assigned = |name: &str, replicas: &[(i32, &[i32])]| CreatableTopic {
        assignments: replicas
            .iter()
            .map(|(partition_index, brokers)| CreatableReplicaAssignment {
                partition_index: *partition_index,
                broker_ids: brokers.to_vec(),
            })
            .collect(),
        ..topic(name, -1, -1)
    };
    session.ask("assigned", 7, &of(vec![assigned("assigned", &[(0, &[1]), (1, &[1])])], false));
    for (what, replicas) in [
        ("assigned to nobody", &[(0, &[9][..])][..]),
        ("assigned with a gap", &[(0, &[1]), (2, &[1])]),
        ("assigned not from 0 on", &[(1, &[1])]),
        ("assigned twice to one", &[(0, &[1, 1])]),
        ("assigned without replicas", &[(0, &[])]),
        ("assigned twice", &[(0, &[1]), (0, &[1])]),
    ] {
        session.ask(what, 7, &of(vec![assigned("not-assigned", replicas)], false));
    }
    let both = CreatableTopic { num_partitions: 2, ..assigned("both", &[(0, &[1])]) };
    session.ask("assigned, and a number", 7, &of(vec![both], false));
    for (name, value) in [
        ("retention.ms", Some("60000")),
        ("retention.ms", Some("-1")),
        ("retention.ms", Some("soon")),
        ("retention.ms", Some("-2")),
        ("retention.ms", None),
        ("no.such.name", Some("1")),
        ("message.timestamp.type", Some("LogAppendTime")),
        ("message.timestamp.type", Some("never")),
        ("max.message.bytes", Some("1000000")),
        ("segment.bytes", Some("10485760")),
        ("cleanup.policy", Some("delete")),
        ("cleanup.policy", Some("compact")),
        ("compression.type", Some("producer")),
        ("compression.type", Some("zstd")),
        ("min.insync.replicas", Some("1")),
        ("min.insync.replicas", Some("0")),
        ("flush.messages", Some("1")),
        ("flush.ms", Some("100")),
    ] {
        let with = CreatableTopic { configs: vec![config(name, value)], ..topic("configured", 1, 1) };
        session.ask(format!("{name} = {value:?}"), 4, &of(vec![with], true));
    }
}

pub fn deletion(session: &mut Session) {
    let named = |names: &[&str]| DeleteTopicsRequest {
        topic_names: names.iter().map(|name| (*name).to_owned()).collect(),
        timeout_ms: 30_000,
        ..Default::default()
    };
    for version in 1..=5 {
        let name = format!("deleted-{version}");
        session.create(&name, 1, &[]);
        session.ask("two topics", version, &named(&[&name, "nobody.s"]));
        session.wait_until_gone(&name);
    }
    let of = |topics: Vec<(Option<&str>, Uuid)>| DeleteTopicsRequest {
        topics: topics
            .into_iter()
            .map(|(name, topic_id)| DeleteTopicState { name: name.map(str::to_owned), topic_id })
            .collect(),
        timeout_ms: 30_000,
        ..Default::default()
    };
    let nil = Uuid::nil();
    let id = session.create("deleted-6", 1, &[]);
    session.ask("by id", 6, &of(vec![(None, id)]));
    session.wait_until_gone("deleted-6");
    let id = session.create("deleted-6", 1, &[]);
    session.ask("an id that is not there", 6, &of(vec![(None, Uuid::from_u128(5))]));
    session.ask("a name that is not there", 6, &of(vec![(Some("nobody.s"), nil)]));
    session.ask("a name twice", 6, &of(vec![(Some("nobody.s"), nil), (Some("nobody.s"), nil)]));
    session.ask("name and id", 6, &of(vec![(Some("deleted-6"), id)]));
    session.ask("neither", 6, &of(vec![(None, nil)]));
    session.ask("by name", 6, &of(vec![(Some("deleted-6"), nil)]));
    session.wait_until_gone("deleted-6");
}

pub fn partitions(session: &mut Session) {
    session.create("growing", 1, &[]);
    let of = |name: &str, count, brokers: Option<&[&[i32]]>| CreatePartitionsTopic {
        name: name.to_owned(),
        count,
        assignments: brokers.map(|brokers| {
            brokers.iter().map(|ids| CreatePartitionsAssignment { broker_ids: ids.to_vec() }).collect()
        }),
    };
    let asked = |topics, validate_only| CreatePartitionsRequest { topics, timeout_ms: 30_000, validate_only };
    for version in CreatePartitionsRequest::API.versions() {
        let count = i32::from(version) + 2;
        session.ask("only validated", version, &asked(vec![of("growing", 9, None)], true));
        session.ask(
            "more",
            version,
            &asked(vec![of("growing", count, None), of("nobody.s", 2, None)], false),
        );
        session.wait_for("growing", count);
        for count in [count, 1, 0, -1] {
            session.ask("not more", version, &asked(vec![of("growing", count, None)], false));
        }
        session.ask("twice", version, &asked(vec![of("growing", 9, None), of("growing", 9, None)], false));
        let next = count + 1;
        session.ask("to nobody", version, &asked(vec![of("growing", next, Some(&[&[5]]))], false));
        session.ask("to too many", version, &asked(vec![of("growing", next, Some(&[&[1], &[1]]))], false));
        session.ask("assigned", version, &asked(vec![of("growing", next, Some(&[&[1]]))], true));
    }
}

pub fn configs(session: &mut Session) {
    topic_configs(session);
    runtime_configs(session);
}

fn describe(kind: i8, name: &str, keys: Option<&[&str]>) -> DescribeConfigsRequest {
    DescribeConfigsRequest {
        resources: vec![DescribeConfigsResource {
            resource_type: kind,
            resource_name: name.to_owned(),
            configuration_keys: keys.map(|keys| keys.iter().map(|key| (*key).to_owned()).collect()),
        }],
        include_synonyms: true,
        include_documentation: true,
    }
}

/// Names, operations and values.
type Edits<'a> = &'a [(&'a str, i8, Option<&'a str>)];

fn edit(kind: i8, name: &str, edits: Edits<'_>, validate_only: bool) -> IncrementalAlterConfigsRequest {
    IncrementalAlterConfigsRequest {
        resources: vec![IncrementalAlterConfigsRequestAlterConfigsResource {
            resource_type: kind,
            resource_name: name.to_owned(),
            configs: edits
                .iter()
                .map(|(name, config_operation, value)| IncrementalAlterConfigsRequestAlterableConfig {
                    name: (*name).to_owned(),
                    config_operation: *config_operation,
                    value: value.map(str::to_owned),
                })
                .collect(),
        }],
        validate_only,
    }
}

fn topic_configs(session: &mut Session) {
    session.create("configs", 1, &[("retention.ms", "60000"), ("message.timestamp.type", "LogAppendTime")]);
    let some = [
        "retention.ms",
        "message.timestamp.type",
        "segment.ms",
        "cleanup.policy",
        "retention.bytes",
        "no.such",
    ];
    session.ask_all("a topic", &describe(2, "configs", Some(&some)));
    session.ask("all of a topic", 4, &describe(2, "configs", None));
    session.ask("a topic that is not there", 4, &describe(2, "nobody.s", None));
    session.ask("a name that is none", 4, &describe(2, "a/b", None));
    session.ask("all brokers", 4, &describe(4, "", None));
    session.ask("this broker", 4, &describe(4, "1", Some(&["auto.create.topics.enable", "num.partitions"])));
    session.ask("another broker", 4, &describe(4, "7", None));
    session.ask("a broker that is none", 4, &describe(4, "me", None));
    session.ask("what there is none of", 4, &describe(99, "x", None));

    let replace = |kind, name: &str, configs: &[(&str, Option<&str>)], validate_only| AlterConfigsRequest {
        resources: vec![AlterConfigsRequestResource {
            resource_type: kind,
            resource_name: name.to_owned(),
            configs: configs
                .iter()
                .map(|(name, value)| AlterConfigsRequestAlterableConfig {
                    name: (*name).to_owned(),
                    value: value.map(str::to_owned),
                })
                .collect(),
        }],
        validate_only,
    };
    let shown = ["retention.ms", "segment.ms"];
    for version in AlterConfigsRequest::API.versions() {
        session.ask("replaced", version, &replace(2, "configs", &[("segment.ms", Some("70000"))], false));
        session.wait_for_config("configs", "segment.ms", Some("70000"));
        session.ask("after it was replaced", 4, &describe(2, "configs", Some(&shown)));
        session.ask("only validated", version, &replace(2, "configs", &[("segment.ms", Some("1"))], true));
        session.ask("a wrong value", version, &replace(2, "configs", &[("segment.ms", Some("x"))], false));
        session.ask("null", version, &replace(2, "configs", &[("segment.ms", None)], false));
        session.ask("no such topic", version, &replace(2, "nobody.s", &[], false));
    }
    for version in IncrementalAlterConfigsRequest::API.versions() {
        session.ask("set", version, &edit(2, "configs", &[("retention.ms", 0, Some("90000"))], false));
        session.wait_for_config("configs", "retention.ms", Some("90000"));
        session.ask("after it was set", 4, &describe(2, "configs", Some(&shown)));
        session.ask("taken back", version, &edit(2, "configs", &[("segment.ms", 1, None)], false));
        session.wait_for_config("configs", "segment.ms", None);
        session.ask("after it was taken back", 4, &describe(2, "configs", Some(&shown)));
        session.ask("only validated", version, &edit(2, "configs", &[("segment.ms", 0, Some("5"))], true));
        for (what, edits) in [
            ("a wrong value", &[("segment.ms", 0, Some("x"))][..]),
            ("null", &[("segment.ms", 0, None)]),
            ("added to what is no list", &[("segment.ms", 2, Some("1"))]),
            ("no such name", &[("no.such", 0, Some("1"))]),
            ("no such operation", &[("segment.ms", 9, Some("1"))]),
            ("twice", &[("segment.ms", 0, Some("1")), ("segment.ms", 0, Some("2"))]),
            ("the list as it is", &[("cleanup.policy", 2, Some("delete"))]),
        ] {
            session.ask(what, version, &edit(2, "configs", edits, false));
        }
        session.ask("no such topic", version, &edit(2, "nobody.s", &[("segment.ms", 0, Some("1"))], false));
        session.ask("what there is none of", version, &edit(99, "x", &[], false));
        let mut both = edit(2, "configs", &[("segment.ms", 0, Some("5"))], false);
        both.resources.push(both.resources[0].clone());
        session.ask("a topic twice", version, &both);
    }
}

/// Of a group, and of brokers.
fn runtime_configs(session: &mut Session) {
    let timeouts = ["consumer.heartbeat.interval.ms", "consumer.session.timeout.ms"];
    let group = describe(32, "configured", Some(&timeouts));
    session.ask("a group of which nothing is set", 4, &group);
    session.ask("a group without a name", 4, &describe(32, "", Some(&timeouts)));
    let wait = |session: &mut Session, value: &str| {
        crate::pairs::until(|| {
            let described = session.client.ask(4, &group).expect("an answer");
            let mut configs = described.results[0].configs.iter();
            configs.any(|config| config.name == timeouts[1] && config.value.as_deref() == Some(value))
        });
    };
    for version in IncrementalAlterConfigsRequest::API.versions() {
        let of_group = |edits: Edits<'_>, only_look| edit(32, "configured", edits, only_look);
        session.ask("a group's", version, &of_group(&[(timeouts[1], 0, Some("50000"))], false));
        wait(session, "50000");
        session.ask("after a group's was set", 4, &group);
        session.ask("groups", 1, &ListConfigResourcesRequest { resource_types: vec![32] });
        for (what, edits) in [
            ("a group's wrong value", &[(timeouts[1], 0, Some("x"))][..]),
            ("a group's, too long", &[(timeouts[0], 0, Some("99999999"))]),
            ("a group's, of no such name", &[("no.such", 0, Some("1"))]),
            ("a group's null", &[(timeouts[1], 0, None)]),
            ("a group's, twice", &[(timeouts[1], 0, Some("46000")), (timeouts[1], 1, None)]),
        ] {
            session.ask(what, version, &of_group(edits, false));
        }
        session.ask("a group's, taken back", version, &of_group(&[(timeouts[1], 1, None)], false));
        wait(session, "45000");
        session.ask("after a group's was taken back", 4, &group);
        session.ask("of another broker", version, &edit(4, "7", &[("num.partitions", 0, Some("2"))], true));
        session.ask("a broker's listeners", version, &edit(4, "1", &[("listeners", 0, Some("x"))], true));
        session.ask(
            "a broker's partitions",
            version,
            &edit(4, "1", &[("num.partitions", 0, Some("2"))], true),
        );
    }
    session.ask("brokers", 1, &ListConfigResourcesRequest { resource_types: vec![4] });
    session.ask("what there is none of", 1, &ListConfigResourcesRequest { resource_types: vec![77] });
    session.ask("clients", 0, &ListConfigResourcesRequest::default());
}

pub fn cluster(session: &mut Session) {
    session.create("cluster-a", 3, &[]);
    session.create("cluster-b", 2, &[]);
    let asked = DescribeClusterRequest { include_cluster_authorized_operations: true, ..Default::default() };
    session.ask_all("all brokers", &asked);
    for endpoint_type in [2, 7] {
        session.ask_in(
            format!("endpoints {endpoint_type}"),
            1..=2,
            &DescribeClusterRequest { endpoint_type, ..asked.clone() },
        );
    }
    let of = |names: &[&str], limit, cursor: Option<(&str, i32)>| DescribeTopicPartitionsRequest {
        topics: names.iter().map(|name| TopicRequest { name: (*name).to_owned() }).collect(),
        response_partition_limit: limit,
        cursor: cursor.map(|(topic_name, partition_index)| DescribeTopicPartitionsRequestCursor {
            topic_name: topic_name.to_owned(),
            partition_index,
        }),
    };
    let both = ["cluster-b", "cluster-a"];
    session.ask_all("two topics", &of(&both, 100, None));
    session.ask_all("two partitions", &of(&both, 2, None));
    session.ask_all("from a cursor on", &of(&both, 2, Some(("cluster-a", 2))));
    session.ask_all("exactly as many", &of(&both, 3, None));
    session.ask_all("one that is not there", &of(&["nobody.s", "cluster-a"], 100, None));
    session.ask_all("a cursor at a topic that is not there", &of(&both, 100, Some(("cluster-aa", 1))));
    let topics = vec![DescribableLogDirTopic { topic: "cluster-a".to_owned(), partitions: vec![0, 2, 9] }];
    session.ask_all("directories", &DescribeLogDirsRequest { topics: Some(topics) });
    session.ask_all("directories of nothing", &DescribeLogDirsRequest { topics: Some(vec![]) });
}

pub fn security(session: &mut Session) {
    session.ask_all(
        "all ACLs",
        &DescribeAclsRequest {
            resource_type_filter: 1,
            operation: 1,
            permission_type: 1,
            pattern_type_filter: 1,
            ..Default::default()
        },
    );
    let creation = AclCreation {
        resource_type: 2,
        resource_name: "t".to_owned(),
        resource_pattern_type: 3,
        principal: "User:me".to_owned(),
        host: "*".to_owned(),
        operation: 3,
        permission_type: 3,
    };
    session.ask_all("an ACL", &CreateAclsRequest { creations: vec![creation] });
    let filter = DeleteAclsFilter {
        resource_type_filter: 1,
        pattern_type_filter: 1,
        operation: 1,
        permission_type: 1,
        ..Default::default()
    };
    session.ask_all("no ACL", &DeleteAclsRequest { filters: vec![filter] });
    session.ask_all("all quotas", &DescribeClientQuotasRequest::default());
    session.ask_all("a login", &SaslHandshakeRequest { mechanism: "PLAIN".to_owned() });
    let password = Bytes::from_static(b"\0me\0secret");
    session.ask_all("a password", &SaslAuthenticateRequest { auth_bytes: password });
}
