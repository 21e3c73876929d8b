//! What clients change of the node's configuration, and of single groups', while it runs.
//!
//! What holds:
//! - A change is durable before it holds, and before it is answered; changes are made one at a time, and none undoes
//!   what another node has changed meanwhile.
//! - What is set of this broker counts over what is set of all brokers, and that over the node's file.
//! - Only what takes effect at once can be set, and only to what the file could say as well.
//! - Where several nodes are active each goes by what another one sets, a moment later.
//! - It is bounded: as many groups have a configuration of their own as there may be groups.
//!
//! Metadata has the names with their values as text, for the reason that there are few of them:
//!
//! ```text
//! kafka/config/broker         what is set of the only broker
//! kafka/config/broker/NUMBER  what is set of one of several brokers
//! kafka/config/brokers        what is set of all brokers
//! kafka/config/group/GROUP    what is set of a group
//!                    0  1  format   1
//!                    1     lines NAME=VALUE, to the end
//! ```

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use futures::channel::oneshot;
use parking_lot::RwLock;
use tailwater_env::{Env, Task};
use tailwater_meta::{Expect, Meta, MetaError, Op, follow_whole};

use crate::config::KafkaConfig;
use crate::errors::{ErrorCode, RefusedRequest};
use crate::groups::consumer::Limits;
use crate::groups::coordinator::{GROUP_ID_BYTES_MAX, check_name};
use crate::topic_config::{self, TopicConfigKind, not_negative, put};

/// Where all of it is.
const CONFIGS: &str = "kafka/config/";
const FORMAT: u8 = 1;
/// How often a change is tried again when another node has changed the same meanwhile.
const CONFLICTS_MAX: usize = 16;

/// What a configuration is of.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ConfigScope {
    /// This broker.
    Broker,
    /// All brokers of the cluster.
    Brokers,
    /// A group.
    Group(Arc<str>),
}

impl ConfigScope {
    /// A group's, by its name.
    pub fn group(name: &str) -> Result<Self, RefusedRequest> {
        let why = || format!("a group has a name of 1 to {GROUP_ID_BYTES_MAX} bytes");
        check_name(name).map_err(|_| RefusedRequest::new(ErrorCode::InvalidRequest, why()))?;
        Ok(Self::Group(name.into()))
    }
}

/// Names that are set, with their values.
pub(crate) type ConfigValues = BTreeMap<String, String>;

fn encode(values: &ConfigValues) -> Vec<u8> {
    let lines = values.iter().map(|(name, value)| format!("{name}={value}\n"));
    [vec![FORMAT], lines.collect::<String>().into_bytes()].concat()
}

fn decode(bytes: &[u8]) -> Option<ConfigValues> {
    let text = std::str::from_utf8(bytes.strip_prefix(&[FORMAT])?).ok()?;
    text.lines().map(|line| line.split_once('=').map(|(name, value)| (name.into(), value.into()))).collect()
}

/// Puts a value into a configuration.
type Set = fn(&mut KafkaConfig, &str) -> Result<(), String>;

/// A name that can be set while the node runs.
pub(crate) struct RuntimeKey {
    pub name: &'static str,
    pub kind: TopicConfigKind,
    set: Set,
}

const fn settable(name: &'static str, kind: TopicConfigKind, set: Set) -> RuntimeKey {
    RuntimeKey { name, kind, set }
}

/// The names that can be set of a broker.
pub(crate) const BROKER_KEYS: &[RuntimeKey] = &[
    settable("auto.create.topics.enable", TopicConfigKind::Boolean, |config, text| {
        put(&mut config.auto_create_topics, text.parse().map_err(|_| "true or false".to_owned()))
    }),
    settable("connections.max.idle.ms", TopicConfigKind::Long, |config, text| {
        put(&mut config.idle_ms, not_negative::<i64, _>(text))
    }),
    settable("fetch.max.bytes", TopicConfigKind::Int, |config, text| {
        put(&mut config.fetch_bytes_max, not_negative::<i32, _>(text))
    }),
    settable("group.consumer.heartbeat.interval.ms", TopicConfigKind::Int, heartbeat),
    settable("group.consumer.session.timeout.ms", TopicConfigKind::Int, session),
    settable("num.partitions", TopicConfigKind::Int, |config, text| {
        put(&mut config.default_partitions, not_negative::<i32, _>(text))
    }),
];

/// The names that can be set of a group.
pub(crate) const GROUP_KEYS: &[RuntimeKey] = &[
    settable("consumer.heartbeat.interval.ms", TopicConfigKind::Int, heartbeat),
    settable("consumer.session.timeout.ms", TopicConfigKind::Int, session),
];

fn heartbeat(config: &mut KafkaConfig, text: &str) -> Result<(), String> {
    put(&mut config.groups.consumer_heartbeat_ms, not_negative::<i32, _>(text))
}

fn session(config: &mut KafkaConfig, text: &str) -> Result<(), String> {
    put(&mut config.groups.consumer_session_timeout_ms, not_negative::<i32, _>(text))
}

impl RuntimeKey {
    /// The value that a configuration has.
    pub fn value(&self, config: &KafkaConfig) -> String {
        match self.name {
            "auto.create.topics.enable" => config.auto_create_topics.to_string(),
            "connections.max.idle.ms" => config.idle_ms.to_string(),
            "fetch.max.bytes" => config.fetch_bytes_max.to_string(),
            "num.partitions" => config.default_partitions.to_string(),
            name if name.ends_with("consumer.heartbeat.interval.ms") => {
                config.groups.consumer_heartbeat_ms.to_string()
            }
            _ => config.groups.consumer_session_timeout_ms.to_string(),
        }
    }
}

/// What holds at this moment.
struct RuntimeState {
    values: BTreeMap<ConfigScope, ConfigValues>,
    /// Those of the keys in metadata, also of what is left out.
    versions: BTreeMap<ConfigScope, u64>,
    config: Arc<KafkaConfig>,
    limits: Arc<Limits>,
    /// Of groups that have a configuration of their own.
    groups: BTreeMap<Arc<str>, Arc<Limits>>,
}

/// The node's configuration as it is now, and groups'.
pub(crate) struct RuntimeConfigs {
    env: Env,
    meta: Arc<dyn Meta>,
    file: KafkaConfig,
    /// The number of this node among several.
    broker: Option<i32>,
    state: RwLock<RuntimeState>,
    /// Held over a change.
    changing: tokio::sync::Mutex<()>,
    following: OnceLock<Task>,
}

impl RuntimeConfigs {
    /// Reads what was set, and follows what other nodes set. What the file no longer allows is left out, with a line in
    /// the log. `broker` is the number of this node where others are active, too.
    pub async fn open(
        env: &Env,
        meta: Arc<dyn Meta>,
        file: KafkaConfig,
        broker: Option<i32>,
    ) -> Result<Arc<Self>, String> {
        let failed = |error: MetaError| format!("configurations can't be read: {error}");
        // Before they are read, so that nothing is missed between.
        let watch = meta.watch(CONFIGS).await.map_err(failed)?;
        let state = RwLock::new(RuntimeState::of_file(&file));
        let (env, changing) = (env.clone(), tokio::sync::Mutex::default());
        let configs = Arc::new(Self { env, meta, file, broker, state, changing, following: OnceLock::new() });
        configs.read().await.map_err(failed)?;
        let following =
            follow_whole(&configs.env, "kafka-configs", watch, Arc::downgrade(&configs), |configs| {
                Box::pin(async move { configs.read().await })
            });
        let _ = configs.following.set(following);
        Ok(configs)
    }

    /// Has what metadata has by now.
    async fn read(&self) -> Result<(), MetaError> {
        let _changing = self.changing.lock().await;
        let (mut values, mut versions) = (BTreeMap::new(), BTreeMap::new());
        for (key, found) in self.meta.list(CONFIGS).await? {
            match (self.parse(&key), decode(&found.value)) {
                // Of another node.
                (Some(None), _) => {}
                (Some(Some(scope)), Some(set)) => {
                    versions.insert(scope.clone(), found.version);
                    values.insert(scope, set);
                }
                _ => tracing::warn!(key, "a configuration that this program does not know is passed over"),
            }
        }
        if self.state.read().versions == versions {
            return Ok(());
        }
        let mut config = self.file.clone();
        let mut left_out = Vec::new();
        for scope in [ConfigScope::Brokers, ConfigScope::Broker] {
            match with(&config, &scope, values.get(&scope)) {
                Ok(with) => config = with,
                Err(why) => left_out.push((scope, why)),
            }
        }
        let mut state = RuntimeState { values, versions, ..RuntimeState::of_file(&config) };
        left_out.extend(state.set_groups());
        for (scope, RefusedRequest { why, .. }) in left_out {
            tracing::warn!(
                ?scope,
                why,
                "what clients have set is left out: set it anew, or change the node's file"
            );
            state.values.remove(&scope);
        }
        *self.state.write() = state;
        Ok(())
    }

    /// Where something is that is set.
    fn key(&self, scope: &ConfigScope) -> String {
        match (scope, self.broker) {
            (ConfigScope::Broker, None) => format!("{CONFIGS}broker"),
            (ConfigScope::Broker, Some(number)) => format!("{CONFIGS}broker/{number}"),
            (ConfigScope::Brokers, _) => format!("{CONFIGS}brokers"),
            (ConfigScope::Group(name), _) => format!("{CONFIGS}group/{name}"),
        }
    }

    /// What is there; `Some(None)` for what is another node's.
    fn parse(&self, key: &str) -> Option<Option<ConfigScope>> {
        let rest = key.strip_prefix(CONFIGS)?;
        if let Some(name) = rest.strip_prefix("group/") {
            return Some(Some(ConfigScope::Group(name.into())));
        }
        if rest != "broker" && !rest.starts_with("broker/") {
            return (rest == "brokers").then_some(Some(ConfigScope::Brokers));
        }
        Some((key == self.key(&ConfigScope::Broker)).then_some(ConfigScope::Broker))
    }

    /// The node's, with what is set of it.
    pub fn now(&self) -> Arc<KafkaConfig> {
        Arc::clone(&self.state.read().config)
    }

    /// How a group of KIP-848 behaves.
    pub fn group_limits(&self, group: &str) -> Arc<Limits> {
        let state = self.state.read();
        Arc::clone(state.groups.get(group).unwrap_or(&state.limits))
    }

    /// What is set.
    pub fn values(&self, scope: &ConfigScope) -> ConfigValues {
        self.state.read().values.get(scope).cloned().unwrap_or_default()
    }

    /// The groups of which something is set, in order.
    pub fn groups(&self) -> Vec<Arc<str>> {
        self.state.read().groups.keys().cloned().collect()
    }

    /// Sets something else: what `change` makes of what is set. It holds when this is answered; dropping this gives up
    /// the answer only.
    ///
    /// # Errors
    /// What `change` answers; `InvalidConfig` for what the node can't be; what metadata answers.
    pub async fn change(
        self: &Arc<Self>,
        scope: ConfigScope,
        change: impl Fn(&ConfigValues) -> Result<ConfigValues, RefusedRequest> + Send + Sync + 'static,
        only_look: bool,
    ) -> Result<(), RefusedRequest> {
        let (reply, done) = oneshot::channel();
        let configs = Arc::clone(self);
        let task = async move {
            let _ = reply.send(configs.change_to_the_end(scope, change, only_look).await);
        };
        self.env.spawn("kafka-configs", task).detach();
        done.await.unwrap_or_else(|_| {
            Err(RefusedRequest::new(ErrorCode::NotLeaderOrFollower, "the node stops: try again"))
        })
    }

    async fn change_to_the_end(
        &self,
        scope: ConfigScope,
        change: impl Fn(&ConfigValues) -> Result<ConfigValues, RefusedRequest>,
        only_look: bool,
    ) -> Result<(), RefusedRequest> {
        let _changing = self.changing.lock().await;
        let key = self.key(&scope);
        let unrecorded = |error: MetaError| {
            let why = format!("it can't be recorded: {error}");
            RefusedRequest::new(ErrorCode::NotLeaderOrFollower, why)
        };
        for _ in 0..CONFLICTS_MAX {
            let stored = self.meta.get(&key).await.map_err(unrecorded)?;
            let expect = stored.as_ref().map_or(Expect::Absent, |stored| Expect::Version(stored.version));
            let (mut values, mut versions) = {
                let state = self.state.read();
                (state.values.clone(), state.versions.clone())
            };
            // What another node has set since this one began is there as well, and what it has taken away is not; nor
            // is what the file does not allow.
            if stored.is_none() {
                values.remove(&scope);
            }
            if let Some(theirs) = stored.and_then(|stored| decode(&stored.value)) {
                let known = values.insert(scope.clone(), theirs);
                if self.state_of(values.clone()).is_err() {
                    match known {
                        Some(known) => _ = values.insert(scope.clone(), known),
                        None => _ = values.remove(&scope),
                    }
                }
            }
            let set = change(values.get(&scope).unwrap_or(&ConfigValues::new()))?;
            let is_deleted = set.is_empty();
            let op = match is_deleted {
                true => Op::Delete { key: key.clone(), expect },
                false => Op::Put { key: key.clone(), value: encode(&set).into(), expect },
            };
            tracing::info!(?scope, ?set, only_look, "a client sets configurations");
            match is_deleted {
                true => _ = values.remove(&scope),
                false => _ = values.insert(scope.clone(), set),
            }
            let mut state = self.state_of(values)?;
            if only_look {
                return Ok(());
            }
            match self.meta.commit(vec![op]).await {
                Ok(version) => {
                    match is_deleted {
                        true => _ = versions.remove(&scope),
                        false => _ = versions.insert(scope, version),
                    }
                    state.versions = versions;
                    *self.state.write() = state;
                    return Ok(());
                }
                Err(MetaError::Conflict { .. }) => {}
                Err(error) => return Err(unrecorded(error)),
            }
        }
        let why = "others change this configuration all the time: try it again";
        Err(RefusedRequest::new(ErrorCode::NotLeaderOrFollower, why))
    }

    /// What holds if these are set.
    fn state_of(&self, values: BTreeMap<ConfigScope, ConfigValues>) -> Result<RuntimeState, RefusedRequest> {
        let mut config = self.file.clone();
        for scope in [ConfigScope::Brokers, ConfigScope::Broker] {
            config = with(&config, &scope, values.get(&scope))?;
        }
        let mut state = RuntimeState { values, ..RuntimeState::of_file(&config) };
        if let Some((_, why)) = state.set_groups().into_iter().next() {
            return Err(why);
        }
        let max = state.config.groups.groups_max;
        if state.groups.len() > max {
            let why =
                format!("{max} groups have a configuration of their own, which is as many as there may be");
            return Err(RefusedRequest::new(ErrorCode::PolicyViolation, why));
        }
        Ok(state)
    }
}

impl RuntimeState {
    /// One in which nothing is set beside that.
    fn of_file(config: &KafkaConfig) -> Self {
        Self {
            values: BTreeMap::new(),
            versions: BTreeMap::new(),
            limits: Arc::new(config.groups.consumer_limits()),
            config: Arc::new(config.clone()),
            groups: BTreeMap::new(),
        }
    }

    /// Makes the limits of the groups of which something is set; of which of them that can't be, and why.
    fn set_groups(&mut self) -> Vec<(ConfigScope, RefusedRequest)> {
        let mut failed = Vec::new();
        for (scope, set) in &self.values {
            let ConfigScope::Group(name) = scope else { continue };
            match with(&self.config, scope, Some(set)) {
                Ok(config) => {
                    self.groups.insert(Arc::clone(name), Arc::new(config.groups.consumer_limits()));
                }
                Err(why) => failed.push((scope.clone(), why)),
            }
        }
        failed
    }
}

/// A configuration with what is set.
fn with(
    config: &KafkaConfig,
    scope: &ConfigScope,
    set: Option<&ConfigValues>,
) -> Result<KafkaConfig, RefusedRequest> {
    let mut config = config.clone();
    for (name, value) in set.into_iter().flatten() {
        let shown: String = value.chars().take(64).collect();
        let invalid =
            |why: String| RefusedRequest::new(ErrorCode::InvalidConfig, format!("{name} = {shown:?}: {why}"));
        (key(scope, name)?.set)(&mut config, value).map_err(invalid)?;
    }
    // All of them together: an interval may be longer if its timeout is.
    config.check().map_err(|why| {
        let whose =
            if let ConfigScope::Group(name) = scope { format!("group {name}: ") } else { String::new() };
        RefusedRequest::new(ErrorCode::InvalidConfig, format!("{whose}{why}"))
    })?;
    Ok(config)
}

/// The name, if it can be set.
pub(crate) fn key(scope: &ConfigScope, name: &str) -> Result<&'static RuntimeKey, RefusedRequest> {
    let (keys, whose) = match scope {
        ConfigScope::Broker | ConfigScope::Brokers => (BROKER_KEYS, "a broker"),
        ConfigScope::Group(_) => (GROUP_KEYS, "a group"),
    };
    keys.iter().find(|key| key.name == name).ok_or_else(|| {
        let name: String = name.chars().take(64).collect();
        let of_topics = topic_config::KEYS.iter().find(|key| key.synonym == name);
        let why = match of_topics.filter(|_| !matches!(scope, ConfigScope::Group(_))) {
            Some(topic) => format!("{name} is no default that can be set: set {} of each topic", topic.name),
            None => {
                let known: Vec<&str> = keys.iter().map(|key| key.name).collect();
                format!(
                    "{name:?} can't be set of {whose} while the node runs; what can be is {}",
                    known.join(", ")
                )
            }
        };
        RefusedRequest::new(ErrorCode::InvalidConfig, why)
    })
}

#[cfg(test)]
mod tests {
    use tailwater_log::{Log, LogConfig};

    use super::*;

    async fn opened(dir: &std::path::Path, file: KafkaConfig) -> (Log, Arc<RuntimeConfigs>) {
        let env = Env::real();
        let mut config = LogConfig::default();
        config.journal.file_bytes = 16 << 20;
        config.journal.files_max = 4;
        let log = Log::open(&env, config, dir, None).await.expect("opened");
        let configs = RuntimeConfigs::open(&env, Arc::clone(log.meta()), file, None).await.expect("opened");
        (log, configs)
    }

    fn set(
        values: &[(&str, &str)],
    ) -> impl Fn(&ConfigValues) -> Result<ConfigValues, RefusedRequest> + 'static {
        let named = values.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let values: ConfigValues = named.collect();
        move |_| Ok(values.clone())
    }

    fn group(name: &str) -> ConfigScope {
        ConfigScope::group(name).expect("a name")
    }

    #[tokio::test]
    async fn what_is_set_of_this_broker_counts_over_what_is_set_of_all_and_that_over_the_file_also_after_a_restart()
     {
        let dir = tempfile::tempdir().expect("a directory");
        let (log, configs) = opened(dir.path(), KafkaConfig::default()).await;
        let partitions = |configs: &RuntimeConfigs| configs.now().default_partitions;
        for (scope, value, expected) in
            [(ConfigScope::Brokers, "3", 3), (ConfigScope::Broker, "5", 5), (ConfigScope::Brokers, "4", 5)]
        {
            configs.change(scope, set(&[("num.partitions", value)]), false).await.expect("set");
            assert_eq!(partitions(&configs), expected);
        }
        configs
            .change(ConfigScope::Broker, set(&[("num.partitions", "9")]), true)
            .await
            .expect("it could be");
        assert_eq!(partitions(&configs), 5, "it was only looked at");
        log.close().await;
        drop((log, configs));
        let (log, configs) = opened(dir.path(), KafkaConfig::default()).await;
        assert_eq!(partitions(&configs), 5);
        configs.change(ConfigScope::Broker, set(&[]), false).await.expect("taken back");
        assert_eq!(partitions(&configs), 4);
        log.close().await;
    }

    #[tokio::test]
    async fn what_another_node_has_set_of_the_same_is_not_undone() {
        let dir = tempfile::tempdir().expect("a directory");
        let (log, configs) = opened(dir.path(), KafkaConfig::default()).await;
        let env = Env::real();
        let open = RuntimeConfigs::open(&env, Arc::clone(log.meta()), KafkaConfig::default(), None);
        let other = open.await.expect("readable");
        let add = |name: &'static str, value: &'static str| {
            move |before: &ConfigValues| {
                let mut after = before.clone();
                after.insert(name.to_owned(), value.to_owned());
                Ok(after)
            }
        };
        for (partitions, idle_ms) in [("2", "1000"), ("3", "2000"), ("4", "3000")] {
            let (one, two) = futures::join!(
                configs.change(ConfigScope::Broker, add("num.partitions", partitions), false),
                other.change(ConfigScope::Broker, add("connections.max.idle.ms", idle_ms), false),
            );
            assert!(one.is_ok() && two.is_ok());
            let stored = log.meta().get("kafka/config/broker").await.expect("readable").expect("it is there");
            let kept = decode(&stored.value).expect("a configuration");
            assert_eq!((&*kept["num.partitions"], &*kept["connections.max.idle.ms"]), (partitions, idle_ms));
        }
        log.close().await;
    }

    #[tokio::test]
    async fn what_another_node_has_taken_away_does_not_come_back() {
        let dir = tempfile::tempdir().expect("a directory");
        let (log, configs) = opened(dir.path(), KafkaConfig::default()).await;
        configs.change(ConfigScope::Broker, set(&[("num.partitions", "4")]), false).await.expect("set");
        let env = Env::real();
        let open = RuntimeConfigs::open(&env, Arc::clone(log.meta()), KafkaConfig::default(), None);
        let other = open.await.expect("readable");
        other.change(ConfigScope::Broker, set(&[]), false).await.expect("taken back");
        let add = |before: &ConfigValues| {
            let mut after = before.clone();
            after.insert("connections.max.idle.ms".to_owned(), "1000".to_owned());
            Ok(after)
        };
        configs.change(ConfigScope::Broker, add, false).await.expect("set");
        let stored = log.meta().get("kafka/config/broker").await.expect("readable").expect("it is there");
        let kept = decode(&stored.value).expect("a configuration");
        assert_eq!(kept.keys().collect::<Vec<_>>(), ["connections.max.idle.ms"]);
        log.close().await;
    }

    #[tokio::test]
    async fn a_group_has_its_own_timeouts_and_others_have_the_brokers() {
        let dir = tempfile::tempdir().expect("a directory");
        let (log, configs) = opened(dir.path(), KafkaConfig::default()).await;
        let both = [("consumer.heartbeat.interval.ms", "50000"), ("consumer.session.timeout.ms", "90000")];
        configs.change(group("slow"), set(&both), false).await.expect("both fit each other");
        let heartbeat = |name: &str| configs.group_limits(name).heartbeat.as_millis();
        assert_eq!((heartbeat("slow"), heartbeat("other")), (50_000, 5_000));
        let faster = [("group.consumer.heartbeat.interval.ms", "700")];
        configs.change(ConfigScope::Broker, set(&faster), false).await.expect("set");
        assert_eq!((heartbeat("slow"), heartbeat("other")), (50_000, 700));
        assert_eq!(configs.groups(), [Arc::from("slow")]);
        configs.change(group("slow"), set(&[]), false).await.expect("taken back");
        assert_eq!((heartbeat("slow"), configs.groups().len()), (700, 0));
        log.close().await;
    }

    #[tokio::test]
    async fn what_can_not_be_is_refused_with_the_reason_and_changes_nothing() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = KafkaConfig {
            groups: crate::GroupsConfig { groups_max: 1, ..crate::GroupsConfig::default() },
            ..KafkaConfig::default()
        };
        let (log, configs) = opened(dir.path(), file).await;
        let own = [("consumer.heartbeat.interval.ms", "40000")];
        configs.change(group("one"), set(&own), false).await.expect("set");
        for (scope, name, value, why) in [
            (ConfigScope::Broker, "num.partitions", "0", "default_partitions = 0 is not between"),
            (ConfigScope::Broker, "num.partitions", "many", "num.partitions = \"many\": not a number"),
            (ConfigScope::Broker, "auto.create.topics.enable", "yes", "true or false"),
            (ConfigScope::Broker, "log.retention.ms", "1", "set retention.ms of each topic"),
            (
                ConfigScope::Brokers,
                "listeners",
                "PLAINTEXT://:1",
                "can't be set of a broker while the node runs",
            ),
            (group("two"), "share.session.timeout.ms", "50000", "what can be is consumer.heartbeat"),
            (group("two"), "consumer.heartbeat.interval.ms", "45001", "group two: "),
            (group("two"), "consumer.heartbeat.interval.ms", "40000", "1 groups have a configuration"),
            (ConfigScope::Broker, "group.consumer.session.timeout.ms", "30000", "group one: "),
        ] {
            let refused = configs.change(scope, set(&[(name, value)]), false).await.expect_err(name);
            assert!(refused.why.contains(why), "{}", refused.why);
        }
        assert_eq!(configs.values(&ConfigScope::Broker), ConfigValues::new());
        assert_eq!(*configs.now(), configs.file);
        assert!(ConfigScope::group("").is_err() && ConfigScope::group(&"g".repeat(513)).is_err());
        log.close().await;
    }

    #[tokio::test]
    async fn what_the_file_no_longer_allows_is_left_out() {
        let dir = tempfile::tempdir().expect("a directory");
        let (log, configs) = opened(dir.path(), KafkaConfig::default()).await;
        let own = [("consumer.heartbeat.interval.ms", "40000")];
        configs.change(group("one"), set(&own), false).await.expect("set");
        log.close().await;
        drop((log, configs));
        let mut file = KafkaConfig::default();
        file.groups.consumer_session_timeout_ms = 30_000;
        let (log, configs) = opened(dir.path(), file).await;
        assert_eq!(configs.groups().len(), 0);
        configs.change(ConfigScope::Broker, set(&[("num.partitions", "2")]), false).await.expect("set");
        log.close().await;
    }

    #[tokio::test]
    async fn the_bytes_and_keys_of_what_is_set_stay_the_same_for_ever() {
        let values =
            ConfigValues::from([("b".to_owned(), "2".to_owned()), ("a".to_owned(), "1=1".to_owned())]);
        assert_eq!(encode(&values), b"\x01a=1=1\nb=2\n");
        assert_eq!(decode(&encode(&values)), Some(values));
        for bytes in [&b""[..], b"\x02a=1\n", b"\x01a", b"\x01\xff=1\n"] {
            assert_eq!(decode(bytes), None);
        }
        let dir = tempfile::tempdir().expect("a directory");
        let (log, configs) = opened(dir.path(), KafkaConfig::default()).await;
        let open = |number| {
            RuntimeConfigs::open(&configs.env, Arc::clone(log.meta()), KafkaConfig::default(), Some(number))
        };
        let (second, third) = (open(2).await.expect("opened"), open(3).await.expect("opened"));
        for (configs, scope, key) in [
            (&configs, ConfigScope::Broker, "kafka/config/broker"),
            (&second, ConfigScope::Broker, "kafka/config/broker/2"),
            (&second, ConfigScope::Brokers, "kafka/config/brokers"),
            (&second, group("a/b"), "kafka/config/group/a/b"),
        ] {
            assert_eq!(configs.key(&scope), key);
            assert_eq!(configs.parse(key), Some(Some(scope)));
        }
        assert_eq!(third.parse("kafka/config/broker/2"), Some(None), "another node's");
        assert_eq!(third.parse("kafka/config/broken"), None);
        log.close().await;
    }

    #[tokio::test]
    async fn what_one_of_several_nodes_sets_of_all_holds_at_the_others_and_of_itself_only_there() {
        let dir = tempfile::tempdir().expect("a directory");
        let (log, _) = opened(dir.path(), KafkaConfig::default()).await;
        let real = Arc::clone(log.meta());
        let env = Env::real();
        let open =
            |number| RuntimeConfigs::open(&env, Arc::clone(&real), KafkaConfig::default(), Some(number));
        let (one, other) = (open(1).await.expect("opened"), open(2).await.expect("opened"));
        let partitions = |configs: &RuntimeConfigs| configs.now().default_partitions;
        one.change(ConfigScope::Brokers, set(&[("num.partitions", "3")]), false).await.expect("set");
        while partitions(&other) != 3 {
            tokio::task::yield_now().await;
        }
        one.change(ConfigScope::Broker, set(&[("num.partitions", "5")]), false).await.expect("set");
        other.change(ConfigScope::Broker, set(&[("num.partitions", "6")]), false).await.expect("its own");
        assert_eq!((partitions(&one), partitions(&other)), (5, 6));
        log.close().await;
    }
}
