//! The JSON of `/v1`: what the node answers, and the command line reads.

mod broadcast;
mod event;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Deserializer, Serialize};
pub use tailwater_copy::CrewView;
use tailwater_format::StreamId;
use tailwater_log::StreamConfig;
pub use tailwater_permissions::{AccessRule, AuditEvent, Effect, Enforcement, Operation, ResourceKind};
pub use tailwater_quotas::limits::QUOTA_MAX;
pub use tailwater_quotas::{QuotaBound, QuotaBounds, QuotaEntity};
pub use tailwater_sqs::AccountBounds;
use tailwater_sqs::JsonObject;

use crate::config::{CellModeSetting, EvictionSetting};

pub use self::broadcast::{
    BridgeView, BroadcastStreamView, BroadcastView, DelayView, RegionView, ReplicaView, SharingView,
};
pub use self::event::{EventText, EventView};

/// A user, as in `GET /v1/users`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserView {
    /// Its name.
    pub name: String,
}

/// `PUT /v1/users/{name}`
#[derive(Clone, Serialize, Deserialize)]
pub struct SetUser {
    /// What the user is to be known by.
    pub password: String,
}

impl std::fmt::Debug for SetUser {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SetUser").finish_non_exhaustive()
    }
}

/// A token, as in `GET /v1/tokens`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenView {
    /// Its name.
    pub name: String,
    /// Until when it is good, in milliseconds since 1970; for ever if that is not said.
    pub expires_ms: Option<i64>,
}

/// `POST /v1/tokens`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CreateToken {
    /// Its name.
    pub name: String,
    /// Until when it is good, in milliseconds since 1970; for ever if that is not said.
    #[serde(default)]
    pub expires_ms: Option<i64>,
    /// What it may do: rules about `token:NAME`.
    #[serde(deserialize_with = "objects")]
    pub rules: Vec<AccessRule>,
}

/// An object, which is not written as an array.
fn object<'de, T: Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    JsonObject::<T>::deserialize(deserializer).map(|JsonObject(object)| object)
}

/// A list of objects. What is written as arrays is refused, as it is elsewhere.
fn objects<'de, T: Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<T>, D::Error> {
    let objects = Vec::<JsonObject<T>>::deserialize(deserializer)?;
    Ok(objects.into_iter().map(|JsonObject(object)| object).collect())
}

/// A token that was made.
#[derive(Clone, Serialize, Deserialize)]
pub struct CreatedToken {
    /// Its name.
    pub name: String,
    /// Until when it is good, in milliseconds since 1970; for ever if that is not said.
    pub expires_ms: Option<i64>,
    /// What is to be shown. Nobody is told it again.
    pub token: String,
    /// What rules are for.
    pub enforcement: Enforcement,
}

impl std::fmt::Debug for CreatedToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CreatedToken").field("name", &self.name).finish_non_exhaustive()
    }
}

/// An account of Amazon SQS's protocol, as in `GET /v1/accounts`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccountView {
    /// Its number.
    pub id: String,
    /// The ids of its keys.
    pub keys: Vec<String>,
    /// Whether it is one of the configuration, which only the configuration changes.
    pub is_configured: bool,
}

/// `POST /v1/accounts`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CreateAccountKey {
    /// The account's number; it is made if it is not there.
    pub id: String,
    /// What bounds the account.
    #[serde(default, deserialize_with = "object")]
    pub bounds: AccountBounds,
}

/// A key that was made.
#[derive(Clone, Serialize, Deserialize)]
pub struct CreatedAccountKey {
    /// The account's number.
    pub id: String,
    /// The key's id.
    pub key: String,
    /// What requests are signed with. Nobody is told it again.
    pub secret: String,
}

impl std::fmt::Debug for CreatedAccountKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CreatedAccountKey").field("key", &self.key).finish_non_exhaustive()
    }
}

/// `DELETE /v1/accounts/{id}`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RemoveAccount {
    /// Only this key of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Whether everybody may be let in if it is the last account.
    pub everybody: bool,
}

/// `GET /v1/rules`, and what was added or removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RulesView {
    /// What rules are for.
    pub enforcement: Enforcement,
    /// Those that are meant.
    pub rules: Vec<AccessRule>,
}

/// Which rules are meant: those that say this, where this says something.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RuleQuery {
    /// About this principal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub principal: Option<String>,
    /// `allow` or `deny`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effect: Option<Effect>,
    /// With this operation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operation: Option<Operation>,
    /// About resources of this kind.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<ResourceKind>,
    /// With this name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Whether the name is how names begin.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub is_prefix: Option<bool>,
    /// From this host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
}

/// A quota, as in `GET /v1/quotas`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaView {
    /// Whom it is about.
    pub entity: QuotaEntity,
    /// What may be taken in a second.
    pub bounds: QuotaBounds,
}

/// `PUT /v1/quotas`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetQuota {
    /// Whom it is about.
    #[serde(deserialize_with = "object")]
    pub entity: QuotaEntity,
    /// What may be taken in a second; null takes a bound away. Bounds that are left out stay.
    pub bounds: BTreeMap<QuotaBound, Option<u64>>,
}

/// Which events of `GET /v1/audit`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AuditQuery {
    /// Those after the one of this number.
    pub after: u64,
    /// So many at most, the newest: up to 1,000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max: Option<usize>,
}

/// `GET /v1/node`
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NodeView {
    /// Random, for the life of the data directory.
    pub id: String,
    /// Of the program.
    pub version: String,
    /// Where clients connect over TCP.
    pub data: SocketAddr,
    /// Whether they do in TLS.
    #[serde(default)]
    pub data_tls: bool,
    /// Where clients on the same host connect.
    pub unix: Option<PathBuf>,
    /// Where Kafka's clients connect, if their protocol is spoken: the first of its listeners that is not encrypted and
    /// wants no login.
    #[serde(default)]
    pub kafka: Option<SocketAddr>,
    /// The first that is encrypted and wants no login.
    #[serde(default)]
    pub kafka_tls: Option<SocketAddr>,
    /// The first that is not encrypted and wants a login.
    #[serde(default)]
    pub kafka_login: Option<SocketAddr>,
    /// The first that is encrypted and wants a login.
    #[serde(default)]
    pub kafka_tls_login: Option<SocketAddr>,
    /// Where SQS's clients connect, if their protocol is spoken.
    #[serde(default)]
    pub sqs: Option<SocketAddr>,
    /// Whether they do in TLS.
    #[serde(default)]
    pub sqs_tls: bool,
    /// Where memcached's clients connect, if their protocol is spoken.
    #[serde(default)]
    pub memcached: Option<SocketAddr>,
    /// Whether they do in TLS.
    #[serde(default)]
    pub memcached_tls: bool,
    /// Its part in broadcasts, if it has one.
    #[serde(default)]
    pub broadcast: Option<BroadcastAt>,
    /// Its cells.
    pub cells: Vec<CellView>,
}

/// A node's part in broadcasts, as in `GET /v1/node`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BroadcastAt {
    /// Its region.
    pub region: String,
    /// Where publishers and listeners connect.
    pub address: String,
    /// Whether they do in TLS.
    #[serde(default)]
    pub tls: bool,
    /// Where they do over HTTP, if they can.
    #[serde(default)]
    pub http: Option<SocketAddr>,
}

/// One cell, as in `GET /v1/cells`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CellView {
    /// `data`, `metadata`, or as it was created.
    pub name: String,
    /// `R1`, `R3.2` or `R2/Immutable`.
    pub mode: String,
    /// Each backend's addresses.
    pub backends: Vec<Vec<String>>,
    /// Backends that the node is connected to.
    pub live: usize,
    /// Which configuration of the cell this is: it grows with every change.
    #[serde(default)]
    pub config_id: u64,
    /// What there is to say of each backend besides its addresses.
    #[serde(default)]
    pub places: Vec<CellPlaceView>,
    /// While its backends change, how far that is: `copying` or `leaving`.
    #[serde(default)]
    pub change: Option<String>,
    /// Backends that hold nothing.
    #[serde(default)]
    pub spares: Vec<CellSpareView>,
    /// While its backends are restarted one after another, how far that is.
    #[serde(default)]
    pub rolling: Option<CellRollView>,
    /// Which load is read, of a cell that is loaded as a whole; 0: nothing was loaded yet.
    #[serde(default)]
    pub generation: Option<u64>,
    /// Rows of the ring that keys are spread by.
    #[serde(default)]
    pub rows: u32,
    /// Points of each backend on it.
    #[serde(default)]
    pub points: u16,
}

/// One backend of a cell.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CellPlaceView {
    /// Its number in the cell, which is never another backend's.
    pub number: u32,
    /// Whether the node is connected to it.
    pub is_live: bool,
    /// The part of all copies of keys that the ring gives it, in percent.
    pub copies_percent: f64,
    /// The part of what it should hold of which it knows whether it is there, in percent: less than 100 while it is
    /// refilled after a start. `None` if it was not asked, or does not answer.
    #[serde(default)]
    pub filled_percent: Option<f64>,
    /// What keeps it from being refilled, if anything does.
    #[serde(default)]
    pub hindrance: Option<String>,
    /// `comes` or `leaves`, if a change that is under way does that to it.
    #[serde(default)]
    pub part: Option<String>,
    /// The number of the backend that it stands for: it holds that one's keys.
    #[serde(default)]
    pub stands_for: Option<u32>,
}

/// A backend of a cell that holds nothing.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CellSpareView {
    /// Its number in the cell.
    pub number: u32,
    /// Its addresses.
    pub addresses: Vec<String>,
    /// Whether the node reaches it. `None` if it was not asked.
    #[serde(default)]
    pub is_live: Option<bool>,
    /// The number of the backend that stands for it, if it is drained.
    #[serde(default)]
    pub stand_in: Option<u32>,
}

/// How far it is that the backends of a cell are restarted one after another.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CellRollView {
    /// The numbers of those that are still to start again.
    pub pending: Vec<u32>,
    /// What it waits for.
    pub waits_for: String,
}

/// `POST /v1/cells`. What is not given has the default.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CreateCell {
    /// The cell's name.
    pub name: String,
    /// Backends that the node runs itself.
    #[serde(default)]
    pub backends: usize,
    /// Copies of each value.
    pub mode: CellModeSetting,
    /// Addresses of backends that run as processes of their own.
    #[serde(default)]
    pub addresses: Vec<Vec<String>>,
    /// Spares that the node runs itself.
    #[serde(default)]
    pub spares: usize,
    /// Addresses of spares that run as processes of their own.
    #[serde(default)]
    pub spare_addresses: Vec<Vec<String>>,
    /// Memory of each backend that the node runs, in bytes.
    pub capacity_bytes: Option<u64>,
    /// The size of the values that their indexes are laid out for, in bytes.
    pub value_bytes: Option<u64>,
    /// Time after which a value that was not written again is forgotten, in milliseconds.
    pub ttl_ms: Option<u64>,
    /// How full a backend may get before it evicts, in percent.
    pub eviction_percent: Option<u8>,
    /// Which values it evicts.
    pub eviction: Option<EvictionSetting>,
}

/// `POST /v1/cells/{name}/load`: has a load read that all backends have.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoadCell {
    /// Which load it is.
    pub generation: u64,
    /// The configuration that it began under.
    pub config_id: u64,
}

/// `POST /v1/cells/{name}/resize`: one of these.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResizeCell {
    /// How many backends the node is to run.
    #[serde(default)]
    pub backends: Option<usize>,
    /// Addresses of more backends that run as processes of their own.
    #[serde(default)]
    pub addresses: Vec<Vec<String>>,
    /// How many spares the node is to run.
    #[serde(default)]
    pub spares: Option<usize>,
    /// Addresses of more spares that run as processes of their own.
    #[serde(default)]
    pub spare_addresses: Vec<Vec<String>>,
}

/// `POST /v1/cells/{name}/drain`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DrainCell {
    /// The number of the backend that leaves.
    pub backend: u32,
    /// It leaves for good, also where a spare could stand for it.
    #[serde(default)]
    pub for_good: bool,
}

/// `POST /v1/cells/{name}/restore`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RestoreCell {
    /// The number of the backend that comes back.
    pub backend: u32,
}

/// `POST /v1/cells/{name}/roll`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RollCell {
    /// Ends one that is under way, instead of beginning one.
    #[serde(default)]
    pub stop: bool,
}

/// A cluster, as in `GET /v1/clusters`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ClusterView {
    /// Its name.
    pub name: String,
    /// Where its node listens for CALLs; not told of the node's own cluster.
    pub address: Option<String>,
    /// Whether the node that answers is of this cluster.
    pub is_here: bool,
    /// Whether nothing is copied through it, and no stream placed there.
    #[serde(default)]
    pub is_draining: bool,
}

/// `POST /v1/clusters/{name}/drain`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DrainCluster {
    /// Whether it is to be drained from here on.
    pub is_draining: bool,
}

/// What `POST /v1/node/drain` answers.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct DrainedNode {
    /// Whether nothing is left that another node could have. Otherwise giving it up goes on.
    pub is_drained: bool,
}

/// What it answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DrainedCluster {
    /// The cluster.
    pub cluster: ClusterView,
    /// The streams that were copied through it, and are copied around it now.
    pub streams: Vec<String>,
}

/// `PUT /v1/clusters/{name}`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AddCluster {
    /// Where its node listens for CALLs: `IP:PORT`, `tls:IP:PORT`.
    pub address: String,
}

/// `PUT /v1/streams/{name}/tree`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlaceStream {
    /// The cluster that has the stream. Another one than that of the node that is asked is the one that the source
    /// moves to.
    pub source: String,
    /// The clusters that are to have copies; none ends copying. Not given where the source moves.
    #[serde(default)]
    pub to: Option<Vec<String>>,
    /// Makes the copy of the node that is asked the source, whether the source answers or not.
    #[serde(default)]
    pub force: bool,
    /// From which cluster to which it goes, each hop before those that follow it. Without it the node plans as if all
    /// links cost the same.
    #[serde(default)]
    pub hops: Option<Vec<[String; 2]>>,
}

/// A stream's copy tree, as in `GET /v1/streams/{name}/tree`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CopyTreeView {
    /// The stream's name.
    pub stream: String,
    /// The number of the plan.
    pub plan: u64,
    /// The cluster that has the stream.
    pub source: String,
    /// Each hop, before those that follow it.
    pub hops: Vec<CopyHopView>,
    /// Up to where each cluster had the stream when its source was moved by force; empty otherwise.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clusters: Vec<ClusterEndsView>,
}

/// Up to where a cluster has a stream.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ClusterEndsView {
    /// The cluster.
    pub cluster: String,
    /// The offset after the last record of each shard.
    pub ends: Vec<u64>,
    /// Why that is not known, where it is not.
    pub why: Option<String>,
}

/// A hop of it, as its lower end tells. What that does not tell is not there.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct CopyHopView {
    /// The cluster that is copied from.
    pub from: String,
    /// The cluster that copies.
    pub to: String,
    /// The number of the plan by which it does.
    pub plan: Option<u64>,
    /// Whether it does.
    pub is_copying: bool,
    /// Why not, or why it was interrupted last.
    pub why: Option<String>,
    /// Records that it has yet to copy.
    pub behind_records: Option<u64>,
    /// Bytes of them.
    pub behind_bytes: Option<u64>,
    /// From the timestamp of the last record that it copied until that was durable there, in ms.
    pub delay_ms: Option<i64>,
    /// Records that it has copied since its start.
    pub records: Option<u64>,
    /// Bytes of their entries.
    pub bytes: Option<u64>,
    /// Sessions that it has opened since then.
    pub sessions: Option<u64>,
    /// Shards that are not copied for now, while the others are; `why` is of the first of them then.
    #[serde(default)]
    pub waiting_shards: Option<u32>,
}

/// `POST /v1/streams`. What is not given has the default; a limit of `null` is none.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CreateStream {
    /// Its name.
    pub name: String,
    /// Number of shards.
    #[serde(default = "one")]
    pub shards: u32,
    /// See [`StreamConfig`], as for the next four.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chunk_bytes: Option<u32>,
    /// Whether the cells get its records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cells: Option<bool>,
    /// `immediate`, or a number of milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flush: Option<String>,
    /// `fsync` or `interval`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub durability: Option<String>,
    /// `create` or `append`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timestamps: Option<String>,
    /// What may be changed later.
    #[serde(flatten)]
    pub kept: AlterStream,
}

/// `PATCH /v1/streams/NAME`. What is not given stays as it is; a limit of `null` is none.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AlterStream {
    /// See [`StreamConfig`], as for all below.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "given")]
    pub retention_ms: Option<Option<u64>>,
    #[serde(default, skip_serializing_if = "Option::is_none", with = "given")]
    #[allow(missing_docs)]
    pub retention_bytes: Option<Option<u64>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[allow(missing_docs)]
    pub segment_bytes: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[allow(missing_docs)]
    pub segment_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[allow(missing_docs)]
    pub cold: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none", with = "given")]
    #[allow(missing_docs)]
    pub cold_after_ms: Option<Option<u64>>,
    #[serde(default, skip_serializing_if = "Option::is_none", with = "given")]
    #[allow(missing_docs)]
    pub cold_after_bytes: Option<Option<u64>>,
    #[serde(default, skip_serializing_if = "Option::is_none", with = "given")]
    #[allow(missing_docs)]
    pub ensemble: Option<Option<u32>>,
    #[serde(default, skip_serializing_if = "Option::is_none", with = "given")]
    #[allow(missing_docs)]
    pub write_quorum: Option<Option<u32>>,
    #[serde(default, skip_serializing_if = "Option::is_none", with = "given")]
    #[allow(missing_docs)]
    pub ack_quorum: Option<Option<u32>>,
    #[serde(default, skip_serializing_if = "Option::is_none", with = "given")]
    #[allow(missing_docs)]
    pub min_regions: Option<Option<u32>>,
}

impl AlterStream {
    /// What becomes of a configuration.
    pub fn applied_to(&self, config: &StreamConfig) -> StreamConfig {
        StreamConfig {
            retention_ms: self.retention_ms.unwrap_or(config.retention_ms),
            retention_bytes: self.retention_bytes.unwrap_or(config.retention_bytes),
            segment_bytes: self.segment_bytes.unwrap_or(config.segment_bytes),
            segment_ms: self.segment_ms.unwrap_or(config.segment_ms),
            cold: self.cold.unwrap_or(config.cold),
            cold_after_ms: self.cold_after_ms.unwrap_or(config.cold_after_ms),
            cold_after_bytes: self.cold_after_bytes.unwrap_or(config.cold_after_bytes),
            ensemble: self.ensemble.unwrap_or(config.ensemble),
            write_quorum: self.write_quorum.unwrap_or(config.write_quorum),
            ack_quorum: self.ack_quorum.unwrap_or(config.ack_quorum),
            min_regions: self.min_regions.unwrap_or(config.min_regions),
            ..config.clone()
        }
    }
}

fn one() -> u32 {
    1
}

/// Tells "not given" from `null`.
mod given {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub fn serialize<T: Serialize + Copy, S: Serializer>(
        value: &Option<Option<T>>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        value.flatten().serialize(serializer)
    }

    pub fn deserialize<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Option<T>>, D::Error> {
        Option::deserialize(deserializer).map(Some)
    }
}

impl CreateStream {
    /// The configuration it asks for.
    pub fn config(&self) -> Result<StreamConfig, tailwater_log::ConfigError> {
        let default = self.kept.applied_to(&StreamConfig::default());
        Ok(StreamConfig {
            shards: self.shards,
            chunk_bytes: self.chunk_bytes.unwrap_or(default.chunk_bytes),
            cells: self.cells.unwrap_or(default.cells),
            flush: self.flush.as_deref().map_or(Ok(default.flush), str::parse)?,
            durability: self.durability.as_deref().map_or(Ok(default.durability), str::parse)?,
            timestamps: self.timestamps.as_deref().map_or(Ok(default.timestamps), str::parse)?,
            ..default
        })
    }
}

/// A stream, as in `GET /v1/streams` and `GET /v1/streams/NAME`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StreamView {
    /// Its name.
    pub name: String,
    /// Its id, for ever.
    pub id: StreamId,
    /// Its configuration.
    pub config: StreamConfig,
    /// The cluster that has its source, if it is a copy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Its shards.
    pub shards: Vec<ShardView>,
}

/// A shard of a stream.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ShardView {
    /// Its number.
    pub shard: u32,
    /// First offset that was not removed.
    pub log_start: u64,
    /// The offset that the next record gets.
    pub next_offset: u64,
    /// Bytes of all its segments.
    pub bytes: u64,
    /// The newest segment.
    pub segment: u64,
    /// Its term.
    pub term: u32,
    /// Its durable bytes.
    pub durable: u64,
    /// Its cached bytes.
    pub cached: u64,
    /// All segments, oldest first; not in the list of all streams.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub segments: Vec<SegmentView>,
    /// Why it was not opened, if bytes of it are missing: then the rest says nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub damaged: Option<String>,
    /// Whether another node owns it, which is to be asked: then the rest is what was known last.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub elsewhere: bool,
}

/// A segment of a shard.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SegmentView {
    /// Its number.
    pub number: u64,
    /// The term of its writer.
    pub term: u32,
    /// Offset of its first record.
    pub base_offset: u64,
    /// Durable bytes.
    pub bytes: u64,
    /// Whether nothing is appended to it any more.
    pub sealed: bool,
    /// Whether cold storage has a copy.
    #[serde(default)]
    pub copied: bool,
    /// Whether only cold storage has it.
    #[serde(default)]
    pub released: bool,
}

/// `PUT /v1/streams/NAME/restore`: brings records back that retention or a truncation removed.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RestoreStream {
    /// The first offset to bring back; the first one that is kept if not given.
    #[serde(default)]
    pub from: u64,
    /// The shard; all of them if not given. Of all shards those are left alone of which nothing is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shard: Option<u32>,
}

/// `POST /v1/streams/NAME/truncate`. A shard that begins behind the position keeps its beginning. A shard that ends
/// before it, or is damaged, is an error that names it, and no shard is truncated.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Truncate {
    /// The first record that is left, in a form of [`tailwater_format::Start`].
    pub before: String,
    /// The shard; all of them if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shard: Option<u32>,
}

/// What became of a shard's beginning.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Truncated {
    /// The shard.
    pub shard: u32,
    /// First offset that was not removed.
    pub log_start: u64,
}

/// A group, as in `GET /v1/groups`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct GroupSummary {
    /// Its name.
    pub name: String,
    /// Which of Kafka's protocols its members speak: `classic` or `consumer`.
    pub kind: String,
    /// `Empty`, `PreparingRebalance`, `CompletingRebalance`, `Stable`, and the like.
    pub state: String,
    /// Its members.
    pub members: usize,
    /// Shards that it has committed something of, or reads.
    pub shards: usize,
    /// Records that are there and not consumed, going by what was committed.
    pub lag_records: u64,
    /// The age of the oldest of those whose age is known, in seconds; 0 if there are none.
    pub lag_seconds: f64,
}

/// A group, as in `GET /v1/groups/NAME`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct GroupView {
    /// The group in short.
    #[serde(flatten)]
    pub summary: GroupSummary,
    /// What its members are: `consumer` for consumers; empty if it never had any.
    pub protocol_type: String,
    /// How they divide shards.
    pub protocol: String,
    /// The last generation.
    pub generation: i32,
    /// Its members.
    #[serde(rename = "member_list")]
    pub members: Vec<GroupMemberView>,
    /// Its shards.
    #[serde(rename = "shard_list")]
    pub shards: Vec<GroupShardView>,
}

/// A member of a group.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct GroupMemberView {
    /// Its id.
    pub id: String,
    /// Its name, if it is a static member.
    pub instance: Option<String>,
    /// What its client calls itself.
    pub client_id: String,
    /// Its client's address.
    pub host: String,
    /// How many shards it reads.
    pub shards: usize,
}

/// How far behind a group is in one shard.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct GroupShardView {
    /// The stream.
    pub stream: String,
    /// The shard.
    pub shard: u32,
    /// The id of the member that reads it.
    pub member: Option<String>,
    /// What was committed; `None` if nothing was yet.
    pub committed: Option<u64>,
    /// First offset that was not removed.
    pub log_start: u64,
    /// The offset that the next record gets.
    pub end: u64,
    /// Records that are there and not consumed.
    pub lag_records: u64,
    /// The age of the oldest of them, in seconds; 0 if there are none, `None` if it can't be read or has no time.
    pub lag_seconds: Option<f64>,
}

/// `POST /v1/groups/NAME/reset`
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResetGroup {
    /// The record that is consumed next, in a form of [`tailwater_format::Start`].
    pub to: String,
    /// In all shards of these streams; if none are given, of those that the group has committed something of.
    #[serde(default)]
    pub streams: Vec<String>,
    /// Only say what would be committed.
    #[serde(default)]
    pub dry_run: bool,
}

/// What became of one shard.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct GroupReset {
    /// The stream.
    pub stream: String,
    /// The shard.
    pub shard: u32,
    /// What was committed before.
    pub before: Option<u64>,
    /// What is committed now.
    pub after: u64,
}

/// The body of every error.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ErrorBody {
    /// A word for programs.
    pub error: String,
    /// A sentence for people.
    pub message: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_stream_has_what_may_be_changed_later_beside_the_rest_and_nothing_unknown() {
        let body =
            r#"{"name": "s", "shards": 3, "retention_ms": null, "write_quorum": 2, "chunk_bytes": 512}"#;
        let create: CreateStream = serde_json::from_str(body).expect("well-formed");
        assert_eq!((create.kept.retention_ms, create.kept.retention_bytes), (Some(None), None));
        let config = create.config().expect("all is in its bounds");
        assert_eq!((config.shards, config.retention_ms, config.chunk_bytes), (3, None, 512));
        assert_eq!((config.write_quorum, config.retention_bytes), (Some(2), None));
        let again = serde_json::to_value(&create).expect("JSON");
        assert_eq!(again["retention_ms"], serde_json::Value::Null);
        assert!(again.get("kept").is_none() && again.get("cold").is_none(), "{again}");
        for wrong in [r#"{"name": "s", "retention": 1}"#, r#"{"name": "s", "kept": {}}"#] {
            let error = serde_json::from_str::<CreateStream>(wrong).expect_err("refused").to_string();
            assert!(error.contains("unknown field"), "{error}");
        }
    }
}
