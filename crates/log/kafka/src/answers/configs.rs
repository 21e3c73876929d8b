//! DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, ListConfigResources. A topic's configuration is its
//! stream's, seen through `topic_config.rs`; the node's is in its file, and what of it, and of a group's, can be set
//! while the node runs is in `runtime.rs`.

use std::collections::BTreeSet;
use std::sync::Arc;

use tailwater_access::Resource;
use tailwater_log::{StreamConfig, StreamError};

use crate::answers::distinct;
use crate::answers::topics::may;
use crate::broker::{Broker, Context};
use crate::config::{Listener, security_protocol};
use crate::errors::{ErrorCode, RefusedRequest};
use crate::internal::{OFFSETS_TOPIC, check_not_internal};
use crate::messages::configs::{
    AlterConfigsRequest, AlterConfigsResponse, AlterConfigsResponseResourceResponse, ConfigResource,
    DescribeConfigsRequest, DescribeConfigsResource, DescribeConfigsResourceResult, DescribeConfigsResponse,
    DescribeConfigsResult, DescribeConfigsSynonym, IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse, IncrementalAlterConfigsResponseAlterConfigsResourceResponse,
    ListConfigResourcesRequest, ListConfigResourcesResponse,
};
use crate::replicas::{self, with_copies};
use crate::runtime::{self, BROKER_KEYS, ConfigScope, ConfigValues, GROUP_KEYS};
use crate::topic_config::{self, KEYS, TopicConfigKind};

/// What has a configuration.
const TOPIC: i8 = 2;
const BROKER: i8 = 4;
const GROUP: i8 = 32;
const KINDS: [i8; 5] = [TOPIC, BROKER, 8, 16, GROUP];

/// Where a value comes from.
const FROM_TOPIC: i8 = 1;
const FROM_BROKER: i8 = 2;
const FROM_BROKERS: i8 = 3;
const FROM_FILE: i8 = 4;
const FROM_DEFAULT: i8 = 5;
const FROM_GROUP: i8 = 8;

/// What IncrementalAlterConfigs does with a value.
const SET: i8 = 0;
const DELETE: i8 = 1;
const APPEND: i8 = 2;
const SUBTRACT: i8 = 3;

pub(crate) async fn describe_configs(
    broker: Arc<Broker>,
    context: Context,
    request: DescribeConfigsRequest,
) -> DescribeConfigsResponse {
    let describe = |asked: &DescribeConfigsResource| {
        let keys = asked.configuration_keys.as_deref().filter(|keys| !keys.is_empty());
        match asked.resource_type {
            TOPIC => {
                let name = &asked.resource_name;
                may(&broker, &context, name)?;
                if name == OFFSETS_TOPIC {
                    return Ok(of_internal(&broker, keys, request.include_synonyms));
                }
                tailwater_log::check_name(name).map_err(StreamError::from)?;
                let stream = broker.log.stream(name)?;
                Ok(of_topic(&broker, &stream.config, keys, request.include_synonyms))
            }
            BROKER => may_cluster(&broker, &context)
                .and_then(|()| of_broker(&broker, &asked.resource_name, keys, request.include_synonyms)),
            GROUP => may_group(&broker, &context, &asked.resource_name)
                .and_then(|()| of_group(&broker, &asked.resource_name, keys, request.include_synonyms)),
            other => Err(no_such_resource(other)),
        }
    };
    let asked_for = |asked: &DescribeConfigsResource| {
        (asked.resource_type, asked.resource_name.clone(), asked.configuration_keys.clone())
    };
    let results = distinct(request.resources, asked_for).into_iter().map(|asked| {
        let (refused, mut configs) = match describe(&asked) {
            Ok(configs) => (None, configs),
            Err(refused) => (Some(refused), vec![]),
        };
        if !request.include_documentation {
            configs.iter_mut().for_each(|config| config.documentation = None);
        }
        DescribeConfigsResult {
            error_code: refused.as_ref().map_or(0, |refused| refused.error.number()),
            error_message: refused.map(|refused| refused.why),
            resource_type: asked.resource_type,
            resource_name: asked.resource_name,
            configs,
        }
    });
    DescribeConfigsResponse { results: results.collect(), ..Default::default() }
}

fn may_cluster(broker: &Broker, context: &Context) -> Result<(), RefusedRequest> {
    let refused = |error| RefusedRequest::new(error, "this client may not do that to the broker");
    broker.authorize_cluster(context).map_err(refused)
}

fn may_group(broker: &Broker, context: &Context, group: &str) -> Result<(), RefusedRequest> {
    let refused = |error| RefusedRequest::new(error, "this client may not do that to the group");
    broker.authorize_group(context, group).map_err(refused)
}

fn no_such_resource(given: i8) -> RefusedRequest {
    RefusedRequest::new(
        ErrorCode::InvalidRequest,
        format!(
            "resource type {given}: only topics ({TOPIC}), brokers ({BROKER}) and groups ({GROUP}) have a configuration \
             here"
        ),
    )
}

/// What a topic with this configuration is told to have; only `keys`, if there are any.
pub(crate) fn of_topic(
    broker: &Broker,
    config: &StreamConfig,
    keys: Option<&[String]>,
    synonyms: bool,
) -> Vec<DescribeConfigsResourceResult> {
    let after_max_ms = broker.log.timestamp_after_max_ms();
    let (config, default) =
        (&with_copies(&broker.log, config), with_copies(&broker.log, &StreamConfig::default()));
    let wanted = KEYS.iter().filter(|key| keys.is_none_or(|keys| keys.iter().any(|name| name == key.name)));
    let describe = |key: &topic_config::TopicConfigKey| {
        let (value, default) = (key.value(config, after_max_ms), key.value(&default, after_max_ms));
        let source = if value == default { FROM_DEFAULT } else { FROM_TOPIC };
        let mut same = Vec::new();
        if synonyms {
            if source == FROM_TOPIC {
                let name = key.name.to_owned();
                same.push(DescribeConfigsSynonym { name, value: Some(value.clone()), source });
            }
            if !key.synonym.is_empty() {
                let name = key.synonym.to_owned();
                same.push(DescribeConfigsSynonym { name, value: Some(default), source: FROM_DEFAULT });
            }
        }
        DescribeConfigsResourceResult {
            name: key.name.to_owned(),
            value: Some(value),
            read_only: key.is_fixed(),
            config_source: source,
            is_sensitive: false,
            synonyms: same,
            config_type: key.kind as i8,
            documentation: Some(key.documentation.to_owned()),
        }
    };
    wanted.map(describe).collect()
}

/// What the internal topic is told to have: nothing of it can be set, and of what is committed the latest is kept.
fn of_internal(
    broker: &Broker,
    keys: Option<&[String]>,
    synonyms: bool,
) -> Vec<DescribeConfigsResourceResult> {
    let mut configs = of_topic(broker, &StreamConfig::default(), keys, synonyms);
    for config in &mut configs {
        config.read_only = true;
        if config.name == "cleanup.policy" {
            (config.value, config.config_source) = (Some("compact".to_owned()), FROM_TOPIC);
        }
    }
    configs
}

/// A value that may have been set, as clients are told it.
fn described(
    name: &str,
    kind: TopicConfigKind,
    read_only: bool,
    values: Vec<(&str, String, i8)>,
    synonyms: bool,
) -> DescribeConfigsResourceResult {
    let documentation = match read_only {
        true => "In the node's own configuration, under [kafka].",
        false => "Can be set while the node runs; else as in the node's own configuration, under [kafka].",
    };
    let (_, value, source) = values.first().cloned().unwrap_or_default();
    let same = values.into_iter().map(|(name, value, source)| DescribeConfigsSynonym {
        name: name.to_owned(),
        value: Some(value),
        source,
    });
    DescribeConfigsResourceResult {
        name: name.to_owned(),
        value: Some(value),
        read_only,
        config_source: source,
        is_sensitive: false,
        synonyms: if synonyms { same.collect() } else { vec![] },
        config_type: kind as i8,
        documentation: Some(documentation.to_owned()),
    }
}

/// What of a group's configuration is its own, and what is the node's.
fn of_group(
    broker: &Broker,
    name: &str,
    keys: Option<&[String]>,
    synonyms: bool,
) -> Result<Vec<DescribeConfigsResourceResult>, RefusedRequest> {
    let own = broker.configs.values(&ConfigScope::group(name)?);
    let wanted = GROUP_KEYS.iter().filter(|key| is_asked_for(keys, key.name));
    let describe = |key: &runtime::RuntimeKey| {
        let own = own.get(key.name).map(|value| (key.name, value.clone(), FROM_GROUP));
        // The node's is called the same, as a group's.
        let node = BROKER_KEYS.iter().find(|node| node.name.strip_prefix("group.") == Some(key.name));
        let node = node.into_iter().flat_map(|node| layers(broker, node));
        described(key.name, key.kind, false, own.into_iter().chain(node).collect(), synonyms)
    };
    Ok(wanted.map(describe).collect())
}

/// The values that a name has: of this broker, of all brokers, and in the file. The first one counts.
fn layers(broker: &Broker, key: &'static runtime::RuntimeKey) -> Vec<(&'static str, String, i8)> {
    let set = [(ConfigScope::Broker, FROM_BROKER), (ConfigScope::Brokers, FROM_BROKERS)].into_iter();
    let set = set.filter_map(|(scope, source)| {
        Some((key.name, broker.configs.values(&scope).get(key.name)?.clone(), source))
    });
    set.chain([(key.name, key.value(&broker.config), FROM_FILE)]).collect()
}

fn is_asked_for(keys: Option<&[String]>, name: &str) -> bool {
    keys.is_none_or(|keys| keys.iter().any(|key| key == name))
}

/// The node's own configuration; of all brokers of a cluster, under an empty name, what is set of them.
fn of_broker(
    broker: &Broker,
    name: &str,
    keys: Option<&[String]>,
    synonyms: bool,
) -> Result<Vec<DescribeConfigsResourceResult>, RefusedRequest> {
    let config = &broker.config;
    if broker_scope(broker, name)? == ConfigScope::Brokers {
        let brokers = broker.configs.values(&ConfigScope::Brokers);
        let set = BROKER_KEYS.iter().filter(|key| is_asked_for(keys, key.name)).filter_map(|key| {
            let values = vec![(key.name, brokers.get(key.name)?.clone(), FROM_BROKERS)];
            Some(described(key.name, key.kind, false, values, synonyms))
        });
        return Ok(set.collect());
    }
    let at = |listener: &Listener, address: &dyn std::fmt::Display| {
        format!("{}://{address}", security_protocol(listener.tls == Some(true), listener.login))
    };
    let (listeners, advertised): (Vec<_>, Vec<_>) = config
        .all_listeners()
        .iter()
        .map(|listener| match listener.advertised.as_str() {
            "" => (at(listener, &listener.listen), at(listener, &listener.listen)),
            address => (at(listener, &listener.listen), at(listener, &address)),
        })
        .unzip();
    let values = [
        ("advertised.listeners", TopicConfigKind::String, advertised.join(",")),
        (
            "default.replication.factor",
            TopicConfigKind::Int,
            broker.log.decided_copies(&StreamConfig::default()).write_quorum.to_string(),
        ),
        ("delete.topic.enable", TopicConfigKind::Boolean, "true".to_owned()),
        ("listeners", TopicConfigKind::String, listeners.join(",")),
        ("log.dirs", TopicConfigKind::String, broker.log.dir().display().to_string()),
        ("max.connections", TopicConfigKind::Int, config.connections_max.to_string()),
        ("node.id", TopicConfigKind::Int, config.broker_id.to_string()),
        ("queued.max.request.bytes", TopicConfigKind::Long, config.requests_bytes_max.to_string()),
        ("socket.request.max.bytes", TopicConfigKind::Int, config.frame_bytes_max.to_string()),
    ];
    let fixed = values.into_iter().filter(|(name, ..)| is_asked_for(keys, name));
    let fixed = fixed
        .map(|(name, kind, value)| described(name, kind, true, vec![(name, value, FROM_FILE)], synonyms));
    let changing = BROKER_KEYS.iter().filter(|key| is_asked_for(keys, key.name));
    let changing = changing.map(|key| described(key.name, key.kind, false, layers(broker, key), synonyms));
    let mut all: Vec<_> = fixed.chain(changing).collect();
    all.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(all)
}

/// Which configuration a broker's name stands for.
fn broker_scope(broker: &Broker, name: &str) -> Result<ConfigScope, RefusedRequest> {
    let own = broker.config.broker_id;
    match name {
        "" => Ok(ConfigScope::Brokers),
        name if name.parse() == Ok(own) => Ok(ConfigScope::Broker),
        name => {
            let name: String = name.chars().take(64).collect();
            let why = format!("there is no broker {name:?}: this one is {own}");
            Err(RefusedRequest::new(ErrorCode::InvalidRequest, why))
        }
    }
}

/// What one name of a topic's configuration is to become.
struct Edit {
    name: String,
    operation: i8,
    value: Option<String>,
}

pub(crate) async fn alter_configs(
    broker: Arc<Broker>,
    context: Context,
    request: AlterConfigsRequest,
) -> AlterConfigsResponse {
    let resources = request.resources.into_iter().map(|resource| {
        let edits = resource.configs.into_iter();
        let edits = edits.map(|config| Edit { name: config.name, operation: SET, value: config.value });
        ((resource.resource_type, resource.resource_name), edits.collect())
    });
    // What is not named goes back to its default.
    let edited = edit_each(&broker, &context, resources.collect(), true, request.validate_only).await;
    let response = |((resource_type, resource_name), (error_code, error_message))| {
        AlterConfigsResponseResourceResponse { error_code, error_message, resource_type, resource_name }
    };
    AlterConfigsResponse { responses: edited.into_iter().map(response).collect(), ..Default::default() }
}

pub(crate) async fn incremental_alter_configs(
    broker: Arc<Broker>,
    context: Context,
    request: IncrementalAlterConfigsRequest,
) -> IncrementalAlterConfigsResponse {
    use IncrementalAlterConfigsResponseAlterConfigsResourceResponse as Response;
    let resources = request.resources.into_iter().map(|resource| {
        let edits = resource.configs.into_iter().map(|config| Edit {
            name: config.name,
            operation: config.config_operation,
            value: config.value,
        });
        ((resource.resource_type, resource.resource_name), edits.collect())
    });
    let edited = edit_each(&broker, &context, resources.collect(), false, request.validate_only).await;
    let response = |((resource_type, resource_name), (error_code, error_message))| Response {
        error_code,
        error_message,
        resource_type,
        resource_name,
    };
    let responses = edited.into_iter().map(response).collect();
    IncrementalAlterConfigsResponse { responses, ..Default::default() }
}

/// Changes the configurations of resources, one after the other, as [`edit`] does; with each the number of an error and
/// why.
async fn edit_each(
    broker: &Broker,
    context: &Context,
    resources: Vec<(NamedResource, Vec<Edit>)>,
    all_of_it: bool,
    only_look: bool,
) -> Vec<(NamedResource, (i16, Option<String>))> {
    let twice = repeated(resources.iter().map(|((kind, name), _)| (*kind, name.as_str())));
    let mut edited = Vec::with_capacity(resources.len());
    for (target, edits) in resources {
        let refused = edit(broker, context, &target, &twice, edits, all_of_it, only_look).await.err();
        let code = refused.as_ref().map_or(0, |refused| refused.error.number());
        edited.push((target, (code, refused.map(|refused| refused.why))));
    }
    edited
}

type NamedResource = (i8, String);

/// The resources that are there more than once.
fn repeated<'a>(resources: impl Iterator<Item = (i8, &'a str)>) -> BTreeSet<NamedResource> {
    let mut seen = BTreeSet::new();
    resources
        .map(|(kind, name)| (kind, name.to_owned()))
        .filter(|resource| !seen.insert(resource.clone()))
        .collect()
}

/// Changes the configuration of one resource; from the defaults on, if `all_of_it`.
async fn edit(
    broker: &Broker,
    context: &Context,
    (kind, name): &NamedResource,
    twice: &BTreeSet<NamedResource>,
    edits: Vec<Edit>,
    all_of_it: bool,
    only_look: bool,
) -> Result<(), RefusedRequest> {
    if twice.contains(&(*kind, name.clone())) {
        return Err(RefusedRequest::new(
            ErrorCode::InvalidRequest,
            "the resource is named twice in one request",
        ));
    }
    let scope = match *kind {
        TOPIC => None,
        BROKER => {
            may_cluster(broker, context)?;
            Some(broker_scope(broker, name)?)
        }
        GROUP => {
            may_group(broker, context, name)?;
            Some(ConfigScope::group(name)?)
        }
        other => return Err(no_such_resource(other)),
    };
    if let Some(scope) = scope {
        let of = scope.clone();
        let change = move |old: &ConfigValues| set(&of, old, &edits, all_of_it);
        return broker.configs.change(scope, change, only_look).await;
    }
    may(broker, context, name)?;
    check_not_internal(name)?;
    let after_max_ms = broker.log.timestamp_after_max_ms();
    let log = broker.log.clone();
    let change = move |old: &StreamConfig| {
        replicas::settle(&log, old.ack_quorum, apply(old, &edits, all_of_it, after_max_ms)?)
    };
    if only_look {
        let old = broker.log.stream(name)?.config;
        let new = change(&old)?;
        old.may_become(&new).map_err(StreamError::from)?;
        return Ok(broker.log.check_copies(&new).await?);
    }
    broker.log.alter_stream(name, change).await?;
    Ok(())
}

/// What is set of a broker or a group after these edits.
fn set(
    scope: &ConfigScope,
    old: &ConfigValues,
    edits: &[Edit],
    all_of_it: bool,
) -> Result<ConfigValues, RefusedRequest> {
    let mut values = if all_of_it { ConfigValues::new() } else { old.clone() };
    let mut seen = BTreeSet::new();
    for edit in edits {
        let invalid =
            |why: &str| RefusedRequest::new(ErrorCode::InvalidRequest, format!("{}: {why}", edit.name));
        if !seen.insert(&edit.name) {
            return Err(invalid(TWICE));
        }
        runtime::key(scope, &edit.name)?;
        match edit.operation {
            DELETE => _ = values.remove(&edit.name),
            SET => {
                let value = edit.value.as_deref().ok_or_else(|| invalid(NULL))?;
                values.insert(edit.name.clone(), value.trim().to_owned());
            }
            APPEND | SUBTRACT => return Err(no_list(&edit.name)),
            _ => return Err(invalid(OPERATIONS)),
        }
    }
    Ok(values)
}

const TWICE: &str = "it is named twice";
const NULL: &str = "null is no value";
const OPERATIONS: &str = "only set (0), delete (1), append (2) and subtract (3) are known";

fn no_list(name: &str) -> RefusedRequest {
    let why = format!("{name} is no list: nothing can be added to it or taken away");
    RefusedRequest::new(ErrorCode::InvalidConfig, why)
}

fn apply(
    old: &StreamConfig,
    edits: &[Edit],
    all_of_it: bool,
    after_max_ms: u64,
) -> Result<StreamConfig, RefusedRequest> {
    // What is fixed when a stream is created, and what Kafka has no name for, stays.
    let default = StreamConfig {
        shards: old.shards,
        chunk_bytes: old.chunk_bytes,
        cells: old.cells,
        durability: old.durability,
        flush_bytes: old.flush_bytes,
        ensemble: old.ensemble,
        write_quorum: old.write_quorum,
        ..StreamConfig::default()
    };
    let mut config = if all_of_it { default.clone() } else { old.clone() };
    let mut seen = BTreeSet::new();
    for edit in edits {
        let invalid =
            |why: &str| RefusedRequest::new(ErrorCode::InvalidRequest, format!("{}: {why}", edit.name));
        if !seen.insert(&edit.name) {
            return Err(invalid(TWICE));
        }
        let key = topic_config::key(&edit.name)?;
        if edit.operation == DELETE {
            key.reset(&mut config, &default, after_max_ms);
            continue;
        }
        let value = edit.value.as_deref().ok_or_else(|| invalid(NULL))?;
        match edit.operation {
            SET => key.set(&mut config, value)?,
            APPEND | SUBTRACT if key.kind != TopicConfigKind::List => return Err(no_list(&edit.name)),
            APPEND | SUBTRACT => {
                let now = key.value(&config, after_max_ms);
                key.set(&mut config, &list(&now, value, edit.operation == APPEND))?;
            }
            _ => return Err(invalid(OPERATIONS)),
        }
    }
    Ok(config)
}

/// A list with some words more, or less.
fn list(now: &str, words: &str, append: bool) -> String {
    let words: Vec<&str> = words.split(',').map(str::trim).collect();
    let mut all: Vec<&str> = now.split(',').filter(|word| append || !words.contains(word)).collect();
    if append {
        all.extend(words.iter().filter(|word| !now.split(',').any(|there| there == **word)));
    }
    all.join(",")
}

pub(crate) async fn list_config_resources(
    broker: Arc<Broker>,
    context: Context,
    request: ListConfigResourcesRequest,
) -> ListConfigResourcesResponse {
    // Version 0 asks for what clients tell about themselves, which nobody does here.
    let asked: BTreeSet<i8> = match (context.version, request.resource_types.is_empty()) {
        (0, _) => BTreeSet::new(),
        (_, true) => KINDS.into(),
        (_, false) => request.resource_types.into_iter().collect(),
    };
    if asked.iter().any(|kind| !KINDS.contains(kind)) {
        let error_code = ErrorCode::UnsupportedVersion.number();
        return ListConfigResourcesResponse { error_code, ..Default::default() };
    }
    let mut resources = Vec::new();
    if asked.contains(&TOPIC) {
        let streams = broker.listed_topics(&context).into_iter();
        resources.extend(
            streams.map(|stream| ConfigResource { resource_name: stream.name, resource_type: TOPIC }),
        );
    }
    if asked.contains(&BROKER) {
        let resource_name = broker.config.broker_id.to_string();
        resources.push(ConfigResource { resource_name, resource_type: BROKER });
    }
    if asked.contains(&GROUP) {
        let groups = broker.configs.groups().into_iter();
        let shown = groups.filter(|name| broker.shows(&context, Resource::Group(name)));
        resources.extend(
            shown.map(|name| ConfigResource { resource_name: name.to_string(), resource_type: GROUP }),
        );
    }
    ListConfigResourcesResponse { config_resources: resources, ..Default::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_added_to_a_list_once_and_taken_away() {
        assert_eq!(list("delete", "compact", true), "delete,compact");
        assert_eq!(list("delete", "delete", true), "delete");
        assert_eq!(list("delete,compact", "compact", false), "delete");
    }

    #[test]
    fn a_whole_new_configuration_forgets_what_it_does_not_name_and_a_change_keeps_it() {
        let old = StreamConfig { shards: 3, retention_ms: Some(5), segment_ms: 7, ..StreamConfig::default() };
        let edit = |name: &str, operation, value: Option<&str>| Edit {
            name: name.to_owned(),
            operation,
            value: value.map(str::to_owned),
        };
        let set = [edit("segment.ms", SET, Some("9"))];
        let whole = apply(&old, &set, true, 1).expect("changed");
        assert_eq!(whole, StreamConfig { shards: 3, segment_ms: 9, ..StreamConfig::default() });
        let changed = apply(&old, &set, false, 1).expect("changed");
        assert_eq!(changed, StreamConfig { segment_ms: 9, ..old.clone() });
        let reset = apply(&old, &[edit("retention.ms", DELETE, None)], false, 1).expect("changed");
        assert_eq!(reset.retention_ms, StreamConfig::default().retention_ms);
        for (edits, error) in [
            (vec![edit("segment.ms", SET, None)], ErrorCode::InvalidRequest),
            (vec![edit("segment.ms", 9, Some("1"))], ErrorCode::InvalidRequest),
            (vec![edit("segment.ms", APPEND, Some("1"))], ErrorCode::InvalidConfig),
            (vec![edit("cleanup.policy", APPEND, Some("compact"))], ErrorCode::InvalidConfig),
            (vec![edit("cleanup.policy", SUBTRACT, Some("delete"))], ErrorCode::InvalidConfig),
            (
                vec![edit("retention.ms", DELETE, None), edit("retention.ms", SET, Some("1"))],
                ErrorCode::InvalidRequest,
            ),
        ] {
            assert_eq!(apply(&old, &edits, false, 1).expect_err("refused").error, error);
        }
    }
}
