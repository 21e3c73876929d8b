//! The node's configuration: defaults, under a TOML file, under `TAILWATER_…` variables, under flags.
//!
//! A variable names a key with its section, joined by two underscores: `TAILWATER_LISTEN__ADMIN` is `admin` in
//! `[listen]`. Unknown keys are refused, so that a misspelt one does not go unnoticed.

mod access;
mod bridge;
mod broadcast;
mod cells;
mod cluster;
mod cold;
mod exposure;
mod file;
mod listen;
mod metadata;
mod queues;
mod secrets;
mod segments;
mod variables;

use std::num::NonZero;
use std::path::PathBuf;
use std::time::Duration;

use figment::Figment;
use figment::providers::{Env, Serialized};
use serde::{Deserialize, Serialize};
use tailwater_format::limits::{APPEND_BYTES_MAX, RECORDS_DECOMPRESSED_BYTES_MAX};
use tailwater_kafka::KafkaConfig;
use tailwater_memcached::MemcachedConfig;
use tailwater_sqs::SqsConfig;
use tailwater_tail::lock::LockTiming;
use tailwater_tls::TlsConfig;

use crate::backend::CellKind;

pub use self::access::{AccessConfig, JwtConfig};
pub(crate) use self::bridge::BridgeEnd;
pub use self::bridge::{BridgeConfig, BridgeStart};
pub use self::broadcast::BroadcastConfig;
pub(crate) use self::broadcast::QuotasConfig;
pub use self::cells::{CellModeSetting, CellSection, EvictionSetting};
pub use self::cluster::{ClusterConfig, GroupSharing};
pub use self::cold::ColdSection;
pub use self::exposure::is_of_this_host;
use self::file::ConfigFile;
pub use self::file::parse_toml;
pub use self::listen::{InsecureListeners, Listen};
pub use self::metadata::ZooKeeperSection;
#[cfg(not(feature = "cassandra"))]
pub(crate) use self::queues::NO_CASSANDRA;
pub use self::queues::{QueueStoreKind, QueuesSection};
pub use self::segments::LedgersSection;

/// Longest path of a Unix socket: what the system's addresses have room for, less the zero at the end.
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// How many threads there are of a kind that `configured` says the number of, engines or workers: as many, or, for 0,
/// one for each core but one, which is left to everything else; at least one.
pub fn thread_count(configured: usize) -> usize {
    let cores = || std::thread::available_parallelism().map_or(1, NonZero::get);
    if configured == 0 { (cores() - 1).max(1) } else { configured }
}

/// Everything that can be configured.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Directory of the journal, and of what is embedded; created if missing, used by one process at a time.
    pub data: PathBuf,
    /// Where metadata is: `embedded` in the data directory, or the URL of a path of ZooKeeper.
    pub metadata: String,
    /// Where the segments of streams are: `embedded` in the data directory, or the URL of a BookKeeper cluster.
    pub segments: String,
    /// Where the node listens.
    pub listen: Listen,
    /// The node's certificates, and which of its listeners use them.
    pub tls: TlsConfig,
    /// Who may do what.
    pub access: AccessConfig,
    /// What admin HTTP takes.
    pub admin: AdminConfig,
    /// The data cell: chunks.
    pub data_cell: CellSection,
    /// The metadata cell: lengths and locks.
    pub metadata_cell: CellSection,
    /// The node among clusters.
    pub cluster: ClusterConfig,
    /// The journal.
    pub journal: JournalSection,
    /// The log.
    pub log: LogSection,
    /// Segments in BookKeeper.
    pub ledgers: LedgersSection,
    /// Metadata in ZooKeeper.
    pub zookeeper: ZooKeeperSection,
    /// Cold storage.
    pub cold: ColdSection,
    /// Kafka's protocol.
    pub kafka: KafkaConfig,
    /// The queues.
    pub queues: QueuesSection,
    /// SQS's protocol.
    pub sqs: SqsConfig,
    /// memcached's protocol.
    pub memcached: MemcachedConfig,
    /// Broadcasts.
    pub broadcast: BroadcastConfig,
    /// Bridges between log streams and broadcast streams.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub bridge: Vec<BridgeConfig>,
    /// Metrics.
    pub metrics: MetricsConfig,
    /// Logging.
    pub logging: Logging,
    /// What the command line's other commands have in the same file, for them to read.
    #[serde(skip_serializing_if = "toml::Table::is_empty")]
    pub client: toml::Table,
}

/// What admin HTTP takes. The defaults leave it some 25 MiB at most.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AdminConfig {
    /// Whether connections are encrypted; if not said, as `[tls]` has it.
    pub tls: Option<bool>,
    /// Connections at a time; one more is answered 503.
    pub connections_max: usize,
    /// Longest head of a request, in bytes.
    pub header_bytes_max: usize,
    /// Longest body of a request, in bytes: none has more than a few names and numbers.
    pub body_bytes_max: usize,
    /// How long a head or a body may take, or a connection idle between requests, or an answer wait to be read, in
    /// milliseconds.
    pub timeout_ms: u64,
}

/// The journal.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct JournalSection {
    /// Size of each journal file in bytes.
    pub file_bytes: u64,
    /// Most files, so that `file_bytes * files_max` is the most disk that the journal takes.
    pub files_max: u32,
    /// How often what was acknowledged with `durability = interval` is synced, in milliseconds.
    pub sync_interval_ms: u64,
}

/// The log.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LogSection {
    /// Whether what is written is shadowed to cells at all. Without them no memory is reserved for them, and readers
    /// ask the node for everything.
    pub cells: bool,
    /// Owner tasks, among which the shards are divided.
    pub owners: usize,
    /// How far a record's timestamp may be ahead of the node's clock, in milliseconds (Kafka's
    /// `message.timestamp.after.max.ms`): transaction ids and positions by time go by the largest timestamp so far.
    pub timestamp_after_max_ms: u64,
    /// Bytes of the records of one append when decompressed. Readers keep so much for each entry that they read.
    pub decompressed_bytes_max: usize,
    /// Bytes of one shard that wait to be written to the data cell; beyond it readers take them from the disk.
    pub shadow_bytes_max: usize,
    /// The same for all shards together.
    pub shadow_bytes_total_max: usize,
    /// How often in a second bytes of some shard are written to the data cell, for all shards together.
    pub shadow_writes_per_s: u64,
    /// Durable reads that go on at the same time for readers who are far from their shard's end; the connections take
    /// turns.
    pub catch_up_reads_max: usize,
    /// Bytes per second that all those readers get together; 0 is no bound.
    pub catch_up_bytes_per_s: u64,
    /// How long a durable length waits for its bytes to be cached before it is published alone, in milliseconds.
    pub publish_delay_ms: u64,
    /// After a failed write to a cell, how long until the next attempt, in milliseconds.
    pub retry_delay_ms: u64,
    /// How often the writer of lengths looks at their lock, in milliseconds. The same for all nodes that write to a
    /// cell, as are the next two.
    pub lock_check_ms: u64,
    /// How long it waits for another one that holds the lock and does not answer before it seizes it, in milliseconds.
    pub lock_seize_ms: u64,
    /// How long one that lost the lock waits before it tries to get it back, in milliseconds.
    pub lock_retry_ms: u64,
}

/// Metrics.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MetricsConfig {
    /// Queues that get series of their own, the first ones by account and name. 0 is none.
    pub queues_max: usize,
    /// Streams that get series of their own, the first ones by name: every series costs whoever keeps it. 0 is none.
    pub streams_max: usize,
    /// Groups that get series of their own, likewise.
    pub groups_max: usize,
    /// Shards of those groups that get series of their own, the first ones by group, stream and number. 0 is none.
    pub group_shards_max: usize,
}

/// Form of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// Logging, to standard error.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Logging {
    /// Form of the lines.
    pub format: LogFormat,
    /// Filter, as in `info,tailwater_cache=debug`.
    pub filter: String,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            data: PathBuf::from("tailwater-data"),
            metadata: metadata::EMBEDDED.to_owned(),
            segments: segments::EMBEDDED.to_owned(),
            listen: Listen::default(),
            tls: TlsConfig::default(),
            access: AccessConfig::default(),
            admin: AdminConfig::default(),
            data_cell: CellSection::default(),
            metadata_cell: CellSection {
                capacity_bytes: 16 << 20,
                value_bytes: CellKind::Metadata.value_bytes(),
                ttl_ms: 24 * 3_600 * 1_000,
                refresh_ms: tailwater_tail::limits::PAGE_REFRESH.as_millis() as u32,
                ..CellSection::default()
            },
            cluster: ClusterConfig::default(),
            journal: JournalSection::default(),
            log: LogSection::default(),
            ledgers: LedgersSection::default(),
            zookeeper: ZooKeeperSection::default(),
            cold: ColdSection::default(),
            kafka: KafkaConfig::default(),
            queues: QueuesSection::default(),
            sqs: SqsConfig::default(),
            memcached: MemcachedConfig::default(),
            broadcast: BroadcastConfig::default(),
            bridge: Vec::new(),
            metrics: MetricsConfig::default(),
            logging: Logging::default(),
            client: toml::Table::new(),
        }
    }
}

impl Default for AdminConfig {
    fn default() -> Self {
        Self {
            tls: None,
            connections_max: 256,
            header_bytes_max: 16 << 10,
            body_bytes_max: 64 << 10,
            // More than the 15 s that Prometheus leaves between two scrapes.
            timeout_ms: 30_000,
        }
    }
}

impl AdminConfig {
    /// [`AdminConfig::timeout_ms`].
    pub(crate) fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout_ms)
    }
}

impl Default for JournalSection {
    fn default() -> Self {
        Self { file_bytes: 64 << 20, files_max: 16, sync_interval_ms: 1_000 }
    }
}

impl Default for LogSection {
    fn default() -> Self {
        let tail = tailwater_tail::WriterConfig::default();
        Self {
            cells: true,
            owners: 2,
            timestamp_after_max_ms: 3_600_000,
            decompressed_bytes_max: RECORDS_DECOMPRESSED_BYTES_MAX,
            shadow_bytes_max: tail.shadow_bytes_max,
            shadow_bytes_total_max: tail.shadow_bytes_total_max,
            shadow_writes_per_s: tail.shadow_writes_per_s,
            // Two that are read and two behind them, for the store's two threads.
            catch_up_reads_max: 4,
            catch_up_bytes_per_s: 256 << 20,
            publish_delay_ms: tail.publish_delay.as_millis() as u64,
            retry_delay_ms: tail.retry_delay.as_millis() as u64,
            lock_check_ms: tail.lock.check_every.as_millis() as u64,
            lock_seize_ms: tail.lock.seize_after.as_millis() as u64,
            lock_retry_ms: tail.lock.retry_after.as_millis() as u64,
        }
    }
}

impl Default for MetricsConfig {
    fn default() -> Self {
        Self { queues_max: 100, streams_max: 100, groups_max: 100, group_shards_max: 1_000 }
    }
}

impl Default for Logging {
    fn default() -> Self {
        Self { format: LogFormat::Text, filter: "info".to_owned() }
    }
}

/// What is told where an address is none.
const ADDRESSES: &str = ": use an IP address and a port, as in 127.0.0.1:7420 or [::1]:7420";

impl Config {
    /// Defaults under `file` under the environment under `flags`, checked.
    pub fn load(file: Option<&PathBuf>, flags: impl Serialize) -> anyhow::Result<Self> {
        let mut figment = Figment::from(Serialized::defaults(Self::default()));
        if let Some(file) = file {
            figment = figment.merge(ConfigFile::read(file)?);
        }
        let sections = [
            "DATA",
            "METADATA",
            "SEGMENTS",
            "LISTEN",
            "TLS",
            "ACCESS",
            "ADMIN",
            "DATA_CELL",
            "METADATA_CELL",
            "CLUSTER",
            "JOURNAL",
            "LOG",
            "LEDGERS",
            "ZOOKEEPER",
            "COLD",
            "KAFKA",
            "QUEUES",
            "SQS",
            "MEMCACHED",
            "BROADCAST",
            "BRIDGE",
            "METRICS",
            "LOGGING",
        ];
        let is_known = move |section: &str| sections.iter().any(|known| section.eq_ignore_ascii_case(known));
        // TAILWATER_SERVER and the like are the command line's own.
        let section = |key: &str| key.split("__").next().unwrap_or_default().to_owned();
        let variables = Env::prefixed("TAILWATER_");
        for (key, _) in variables.iter() {
            let (key, name) = (key.as_str(), key.as_str().to_uppercase());
            anyhow::ensure!(
                !key.contains("__") || is_known(&section(key)),
                "TAILWATER_{name} names no section of the configuration: `tailwater serve --print-config` lists them"
            );
        }
        let variables = variables.filter(move |key| is_known(&section(key.as_str()))).split("__");
        let given: Vec<(String, String)> =
            variables.iter().map(|(key, text)| (key.into_string().to_lowercase(), text)).collect();
        let read = variables::extract(&figment, variables, given, &Serialized::defaults(flags));
        let mut config = read.map_err(|error| {
            let told = secrets::told(*error);
            // What the standard library says of an address does not say what one looks like.
            let right = if told.contains("invalid socket address") { ADDRESSES } else { "" };
            anyhow::anyhow!("{told}{right}")
        })?;
        config.check()?;
        config.read_secrets()?;
        Ok(config)
    }

    /// The configuration as a file would have it, with `***` for secrets.
    pub fn to_toml(&self) -> anyhow::Result<String> {
        Ok(toml::to_string_pretty(self)?)
    }

    /// What the log is opened with.
    ///
    /// # Errors
    /// If `segments` names no store, or `[cold]` no place.
    pub(crate) fn log_config(&self, env: &tailwater_env::Env) -> anyhow::Result<tailwater_log::LogConfig> {
        let defaults = tailwater_log::LogConfig::default();
        let journal = &self.journal;
        let journal_bytes = journal.file_bytes * u64::from(journal.files_max);
        Ok(tailwater_log::LogConfig {
            owners: self.log.owners,
            segments: self.ledgers.opening(env, &self.segments, &self.zookeeper)?,
            sweep_every: Duration::from_millis(self.ledgers.sweep_ms),
            cold: self.cold.opening(env)?,
            hot_bytes: if self.kafka.enabled || self.cluster.given().is_some() {
                self.kafka.hot_bytes
            } else {
                0
            },
            timestamp_after_max: Duration::from_millis(self.log.timestamp_after_max_ms),
            decompressed_bytes_max: self.log.decompressed_bytes_max,
            journal: tailwater_journal::JournalConfig {
                file_bytes: journal.file_bytes,
                files_max: journal.files_max,
                sync_interval: Duration::from_millis(journal.sync_interval_ms),
                ..defaults.journal
            },
            store: tailwater_store::StoreConfig {
                // Well before the journal is full, segment files are synced so that it can be trimmed.
                journal_bytes: defaults.store.journal_bytes.min(journal_bytes / 4),
                sync_bytes: defaults.store.sync_bytes.min(journal_bytes / 4),
                ..defaults.store
            },
            tail: self.tail_config(),
            ..defaults
        })
    }

    /// How the cells are written.
    fn tail_config(&self) -> tailwater_tail::WriterConfig {
        let of = Duration::from_millis;
        let defaults = tailwater_tail::WriterConfig::default();
        tailwater_tail::WriterConfig {
            publish_delay: of(self.log.publish_delay_ms),
            retry_delay: of(self.log.retry_delay_ms),
            chunk_refresh: self.data_cell.refresh(),
            page_refresh: self.metadata_cell.refresh(),
            shadow_bytes_max: self.log.shadow_bytes_max,
            shadow_bytes_total_max: self.log.shadow_bytes_total_max,
            shadow_writes_per_s: self.log.shadow_writes_per_s,
            refill_bytes_max: (self.log.shadow_bytes_max as u64 / 2).min(defaults.refill_bytes_max),
            // A small cell of the node's own keeps room for what others write.
            refill_bytes_total_max: (self.data_cell.capacity_bytes / 4)
                .min(self.log.shadow_bytes_total_max as u64 / 2)
                .min(defaults.refill_bytes_total_max),
            lock: LockTiming {
                check_every: of(self.log.lock_check_ms),
                seize_after: of(self.log.lock_seize_ms),
                retry_after: of(self.log.lock_retry_ms),
            },
        }
    }

    /// What the queues are opened with.
    pub(crate) fn queues_config(&self) -> tailwater_queue::QueuesConfig {
        let journal_bytes = self.journal.file_bytes * u64::from(self.journal.files_max);
        tailwater_queue::QueuesConfig {
            owners: self.queues.owners,
            // Well before the journal is full, as the log does.
            checkpoint_bytes: self.queues.checkpoint_bytes.min(journal_bytes / 4),
            cooldowns: self.queues.cooldowns,
            ..tailwater_queue::QueuesConfig::default()
        }
    }

    /// Where clients on this host connect. Below the data directory if it is not absolute.
    pub fn node_socket(&self) -> PathBuf {
        // An absolute path replaces what it is joined to.
        self.data.join(&self.listen.unix)
    }

    /// Where they connect to the window, if there is to be one. Without cells there is nothing to read for others.
    pub fn window_socket(&self) -> Option<PathBuf> {
        (self.listen.window && self.log.cells).then(|| self.node_socket().with_extension("window"))
    }

    /// Where they connect to the backend of a cell that the node runs itself.
    pub fn cell_socket(&self, name: &str) -> PathBuf {
        self.data.join(format!("{name}-cell.sock"))
    }

    /// Whether clients can connect to the node's Unix sockets.
    ///
    /// # Errors
    /// A path that is longer than the system's addresses, and what to shorten. Clients are told absolute ones.
    pub fn check_sockets(&self) -> anyhow::Result<()> {
        let own = |kind: CellKind, cell: &CellSection| {
            cell.backends.is_empty().then(|| self.cell_socket(kind.name()))
        };
        let cells = [own(CellKind::Data, &self.data_cell), own(CellKind::Metadata, &self.metadata_cell)];
        let cells = cells.into_iter().flatten().filter(|_| self.log.cells);
        for path in cells.chain([self.node_socket()]).chain(self.window_socket()) {
            let path = std::path::absolute(&path).unwrap_or(path);
            let length = path.as_os_str().len();
            anyhow::ensure!(
                length <= SOCKET_PATH_BYTES_MAX,
                "the socket {} has a path of {length} bytes, and the system's addresses have room for \
                 {SOCKET_PATH_BYTES_MAX}: choose a data directory with a path that is {} shorter; a symbolic link to \
                 it does",
                path.display(),
                length - SOCKET_PATH_BYTES_MAX
            );
        }
        Ok(())
    }

    /// Whether listeners can be encrypted as they should be, in a build that `has_tls` or not.
    fn check_tls(&self, has_tls: bool) -> anyhow::Result<()> {
        let further = self.kafka.listeners.iter().map(|listener| ("[[kafka.listeners]]", listener.tls));
        let listeners = [
            ("[listen]", self.listen.tls),
            ("[admin]", self.admin.tls),
            ("[kafka]", self.kafka.tls),
            ("[sqs]", self.sqs.tls),
            ("[memcached]", self.memcached.tls),
            ("[broadcast]", self.broadcast.tls),
            ("[broadcast.http]", self.broadcast.http.tls),
        ];
        let checked = self.tls.check(has_tls, listeners.into_iter().chain(further));
        checked.map_err(|why| anyhow::anyhow!(why))?;
        anyhow::ensure!(
            self.broadcast.tls != Some(true) || self.tls.covers_replicas(Some(true)),
            "[broadcast] has tls = true, and nothing says whose certificates replicas have, which connect to each other: \
             write ca = \"FILE\" below [tls]"
        );
        Ok(())
    }

    fn check(&self) -> anyhow::Result<()> {
        self.check_sockets()?;
        self.listen.check()?;
        self.check_tls(cfg!(feature = "tls"))?;
        self.admin.check()?;
        for (name, cell) in [("data_cell", &self.data_cell), ("metadata_cell", &self.metadata_cell)] {
            cell.check(name)?;
            cell.check_trust(name, &self.tls)?;
        }
        self.journal.check()?;
        self.log.check()?;
        self.cluster.check()?;
        self.ledgers.check(&self.segments)?;
        self.check_metadata()?;
        self.cold.check()?;
        self.kafka.check().map_err(|why| anyhow::anyhow!(why))?;
        self.queues.check()?;
        self.sqs.check().map_err(|why| anyhow::anyhow!(why))?;
        self.memcached.check().map_err(|why| anyhow::anyhow!(why))?;
        self.broadcast.check()?;
        bridge::check(&self.bridge, &self.broadcast)?;
        self.check_exposure()
    }
}

impl AdminConfig {
    fn check(&self) -> anyhow::Result<()> {
        anyhow::ensure!(
            self.connections_max >= 1,
            "[admin] connections_max = 0 lets nobody in: use at least 1"
        );
        anyhow::ensure!(
            self.header_bytes_max >= 8 << 10,
            "[admin] header_bytes_max = {} is too small: use at least 8192",
            self.header_bytes_max
        );
        anyhow::ensure!(
            self.body_bytes_max >= 1 << 10,
            "[admin] body_bytes_max = {} is too small to create a stream: use at least 1024",
            self.body_bytes_max
        );
        anyhow::ensure!(
            (100..=3_600_000).contains(&self.timeout_ms),
            "[admin] timeout_ms = {} is not between 100 and 3600000",
            self.timeout_ms
        );
        Ok(())
    }
}

impl JournalSection {
    fn check(&self) -> anyhow::Result<()> {
        anyhow::ensure!(
            self.file_bytes >= 16 << 20,
            "[journal] file_bytes = {} is too small for the longest record: use at least 16777216",
            self.file_bytes
        );
        anyhow::ensure!(
            self.files_max >= 3,
            "[journal] files_max = {} is too few: use at least 3",
            self.files_max
        );
        Ok(())
    }
}

impl LogSection {
    fn check(&self) -> anyhow::Result<()> {
        anyhow::ensure!(
            (1..=64).contains(&self.owners),
            "[log] owners = {} is not between 1 and 64",
            self.owners
        );
        anyhow::ensure!(
            (APPEND_BYTES_MAX..=RECORDS_DECOMPRESSED_BYTES_MAX).contains(&self.decompressed_bytes_max),
            "[log] decompressed_bytes_max = {} is not between {APPEND_BYTES_MAX}, which is an append, and \
             {RECORDS_DECOMPRESSED_BYTES_MAX}, which is what readers take",
            self.decompressed_bytes_max
        );
        anyhow::ensure!(
            self.shadow_bytes_max >= 64 << 10,
            "[log] shadow_bytes_max = {} is too small: use at least 65536",
            self.shadow_bytes_max
        );
        anyhow::ensure!(
            self.shadow_bytes_total_max >= self.shadow_bytes_max,
            "[log] shadow_bytes_total_max = {} is less than shadow_bytes_max = {}, which is a part of it",
            self.shadow_bytes_total_max,
            self.shadow_bytes_max
        );
        anyhow::ensure!(
            (100..=10_000_000).contains(&self.shadow_writes_per_s),
            "[log] shadow_writes_per_s = {} is not between 100 and 10000000",
            self.shadow_writes_per_s
        );
        anyhow::ensure!(
            (1..=1_024).contains(&self.catch_up_reads_max),
            "[log] catch_up_reads_max = {} is not between 1 and 1024",
            self.catch_up_reads_max
        );
        anyhow::ensure!(
            self.catch_up_bytes_per_s == 0 || self.catch_up_bytes_per_s >= 64 << 10,
            "[log] catch_up_bytes_per_s = {} is too little for a read: use at least 65536, or 0 for no bound",
            self.catch_up_bytes_per_s
        );
        for (name, given, least, most) in [
            ("publish_delay_ms", self.publish_delay_ms, 0, 1_000),
            ("retry_delay_ms", self.retry_delay_ms, 1, 60_000),
            ("lock_check_ms", self.lock_check_ms, 1, 30_000),
            ("lock_retry_ms", self.lock_retry_ms, 100, 3_600_000),
        ] {
            anyhow::ensure!(
                (least..=most).contains(&given),
                "[log] {name} = {given} is not between {least} and {most}"
            );
        }
        // A holder looks at its lock so often; fewer looks than two would take it from one that is well.
        let seize_ms_min = 2 * self.lock_check_ms;
        anyhow::ensure!(
            (seize_ms_min..=60_000).contains(&self.lock_seize_ms),
            "[log] lock_seize_ms = {} is not between {seize_ms_min}, which is two looks of a holder, and 60000",
            self.lock_seize_ms
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_printed_configuration_is_the_one_it_was_printed_from() {
        let printed = Config::default().to_toml().expect("printable");
        let read: Config = toml::from_str(&printed).expect("readable");
        assert_eq!(read.to_toml().expect("printable"), printed);
    }

    #[test]
    fn three_copies_without_three_backends_are_refused_with_advice() {
        let mut config = Config::default();
        config.data_cell.mode = CellModeSetting::R32;
        let error = config.check().expect_err("refused").to_string();
        assert!(error.contains("tailwater cache serve"), "{error}");
    }

    #[test]
    fn what_is_idle_in_a_cell_is_written_again_as_configured_and_before_it_is_forgotten() {
        let mut config = Config::default();
        let tail = config.tail_config();
        assert_eq!((tail.chunk_refresh.as_millis(), tail.page_refresh.as_millis()), (20_000, 5_000));
        config.metadata_cell.refresh_ms = 700;
        config.data_cell.ttl_ms = 3_000;
        config.log.lock_seize_ms = 900;
        (config.log.lock_check_ms, config.log.lock_retry_ms) = (30, 4_000);
        (config.log.publish_delay_ms, config.log.retry_delay_ms) = (5, 50);
        config.check().expect("fine");
        let tail = config.tail_config();
        assert_eq!((tail.chunk_refresh.as_millis(), tail.page_refresh.as_millis()), (1_000, 700));
        let LockTiming { check_every, seize_after, retry_after } = tail.lock;
        assert_eq!([check_every, seize_after, retry_after].map(|of| of.as_millis()), [30, 900, 4_000]);
        assert_eq!([tail.publish_delay, tail.retry_delay].map(|of| of.as_millis()), [5, 50]);
    }

    #[test]
    fn times_and_sizes_that_readers_or_writers_of_cells_can_not_live_with_are_refused_with_what_can_be() {
        type Change = fn(&mut Config);
        let changes: [(Change, &str); 14] = [
            (|config| config.log.catch_up_reads_max = 0, "[log] catch_up_reads_max = 0 is not between"),
            (|config| config.log.catch_up_bytes_per_s = 1, "[log] catch_up_bytes_per_s = 1 is too little"),
            (|config| config.data_cell.refresh_ms = 0, "[data_cell] refresh_ms = 0 is not between 10 and"),
            (|config| config.metadata_cell.refresh_ms = 60_001, "[metadata_cell] refresh_ms"),
            (|config| config.data_cell.value_bytes = 511, "[data_cell] value_bytes = 511 is not between 512"),
            (
                |config| config.log.publish_delay_ms = 1_001,
                "[log] publish_delay_ms = 1001 is not between 0 and",
            ),
            (|config| config.log.retry_delay_ms = 0, "[log] retry_delay_ms = 0 is not between 1 and"),
            (|config| config.log.lock_retry_ms = 99, "[log] lock_retry_ms = 99 is not between 100 and"),
            (|config| config.log.lock_check_ms = 300, "[log] lock_seize_ms = 500 is not between 600"),
            (|config| config.log.lock_seize_ms = 199, "[log] lock_seize_ms = 199 is not between 200"),
            (|config| config.log.lock_seize_ms = u64::MAX, "[log] lock_seize_ms"),
            (|config| config.log.shadow_bytes_max = 0, "[log] shadow_bytes_max = 0 is too small"),
            (|config| config.log.shadow_bytes_total_max = 1 << 20, "[log] shadow_bytes_total_max"),
            (|config| config.log.shadow_writes_per_s = 0, "[log] shadow_writes_per_s = 0 is not between 100"),
        ];
        for (change, named) in changes {
            let mut config = Config::default();
            change(&mut config);
            let error = config.check().expect_err(named).to_string();
            assert!(error.contains(named), "{error}");
        }
    }

    #[test]
    fn all_addresses_are_none_that_clients_can_be_told() {
        let told = |data: &str, advertised: Option<&str>| {
            let mut config = Config::default();
            config.listen.insecure = InsecureListeners::All(true);
            config.listen.data = data.parse().expect("an address");
            config.listen.advertised_data = advertised.map(|address| address.parse().expect("an address"));
            config.check().map_err(|error| error.to_string())
        };
        for all in ["0.0.0.0:7420", "[::]:7420"] {
            let error = told(all, None).expect_err("refused");
            assert!(error.contains(all) && error.contains("set advertised_data"), "{error}");
            told(all, Some("10.0.0.5:7420")).expect("clients are told that one");
            assert!(told(all, Some(all)).is_err());
        }
        assert!(told("10.0.0.5:7420", Some("10.0.0.5:0")).is_err());
        told("10.0.0.5:0", None).expect("the port that it gets is told");
    }

    #[test]
    fn certificates_are_refused_by_a_build_without_tls_and_a_listener_in_tls_without_certificates() {
        let read = |text: &str| toml::from_str::<Config>(text).expect("TOML");
        let secured = read("[tls]\ncertificate = 'node.pem'\nkey = 'node.key'\n");
        secured.check_tls(true).expect("it has it");
        let error = secured.check_tls(false).expect_err("refused").to_string();
        assert!(error.contains("make dist") && error.contains("--features tls"), "{error}");
        for (text, section) in [
            ("[listen]\ntls = true\n", "[listen]"),
            ("[admin]\ntls = true\n", "[admin]"),
            ("[sqs]\ntls = true\n", "[sqs]"),
            ("[[kafka.listeners]]\nlisten = '127.0.0.1:1'\ntls = true\n", "[[kafka.listeners]]"),
            ("[broadcast]\ntls = true\n", "[broadcast]"),
            ("[broadcast.http]\ntls = true\n", "[broadcast.http]"),
        ] {
            let error = read(text).check_tls(true).expect_err("refused").to_string();
            assert!(error.starts_with(&format!("{section} has tls = true")), "{error}");
        }
    }

    #[test]
    fn a_misspelt_key_is_refused() {
        assert!(toml::from_str::<Config>("[listen]\nadmim = '127.0.0.1:1'\n").is_err());
    }
}
