//! Where metadata is: `metadata`, and `[zookeeper]` for that in ZooKeeper.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tailwater_access::SecretText;
#[cfg(feature = "bookkeeper")]
use tailwater_env::Env;

use super::{Config, QueueStoreKind, segments};

/// `metadata` of a node that keeps it in its data directory.
pub(super) const EMBEDDED: &str = "embedded";

/// What a build without the client of ZooKeeper says to whoever wants metadata there.
#[cfg(not(feature = "bookkeeper"))]
const NO_ZOOKEEPER: &str = "metadata names ZooKeeper, but this build has no client of it: `make dist` makes \
    target/dist/tailwater, which has it, as has one of `cargo build --release -p tailwater --features bookkeeper`; or use \
    \"embedded\"";

/// The node's session with ZooKeeper.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ZooKeeperSection {
    /// How long ZooKeeper hears nothing of a node before it takes it for dead, in milliseconds: a node that stands by
    /// takes over after it. The servers bound it by their `tickTime`.
    pub session_ms: u64,
    /// Who to log in as, where ZooKeeper has users; empty is nobody. Also for the metadata of ledgers.
    pub user: String,
    /// The password.
    pub password: SecretText,
    /// A file that has the password in its first line.
    pub password_file: Option<PathBuf>,
    /// A PEM file with the CAs of the servers' certificates. None is no TLS. Also for the metadata of ledgers.
    pub ca: Option<PathBuf>,
    /// A PEM file with the certificate that is shown to the servers, for those that want one.
    pub certificate: Option<PathBuf>,
    /// A PEM file with its key. None is the file of the certificate.
    pub key: Option<PathBuf>,
}

impl Default for ZooKeeperSection {
    fn default() -> Self {
        Self {
            session_ms: 6_000,
            user: String::new(),
            password: SecretText::default(),
            password_file: None,
            ca: None,
            certificate: None,
            key: None,
        }
    }
}

#[cfg(feature = "bookkeeper")]
impl ZooKeeperSection {
    /// Who is shown to ZooKeeper.
    ///
    /// # Errors
    /// A user without a password, or the other way round.
    pub(crate) fn login(&self) -> anyhow::Result<Option<tailwater_access::EngineLogin>> {
        super::secrets::engine_login("[zookeeper]", &self.user, &self.password)
    }

    /// What makes connections to ZooKeeper.
    ///
    /// # Errors
    /// A file that can't be read, or a certificate that is shown to nobody.
    pub(crate) fn dialer(&self, env: &Env) -> anyhow::Result<tailwater_tls::Dialer> {
        super::secrets::engine_dialer(
            env,
            "[zookeeper]",
            "servers'",
            [&self.ca, &self.certificate, &self.key],
        )
    }
}

impl Config {
    /// Whether metadata is elsewhere than in the data directory.
    pub(crate) fn has_shared_metadata(&self) -> bool {
        self.metadata != EMBEDDED
    }

    /// Whether what is kept in the data directory alone, embedded queues and broadcasts, is in this node's.
    pub(crate) fn is_local_node(&self) -> bool {
        !self.has_shared_metadata() || self.cluster.local_node == self.cluster.node_name()
    }

    pub(super) fn check_metadata(&self) -> anyhow::Result<()> {
        if !self.has_shared_metadata() {
            anyhow::ensure!(
                !self.cluster.is_shared(),
                "[cluster] active = \"all\" is for nodes that share metadata: set `metadata` to zookeeper://zk1,zk2,zk3/tailwater, \
                 or leave `active` out"
            );
            return Ok(());
        }
        self.check_place()?;
        self.check_active()?;
        let session_ms = self.zookeeper.session_ms;
        anyhow::ensure!(
            (1_000..=60_000).contains(&session_ms),
            "[zookeeper] session_ms = {session_ms} is not between 1000 and 60000"
        );
        anyhow::ensure!(
            self.segments != segments::EMBEDDED,
            "metadata = {:?} outlives the data directory, and segments = \"{}\" does not: set `segments` to a BookKeeper \
             cluster, as in bookkeeper://zk1,zk2,zk3/ledgers",
            self.metadata,
            self.segments
        );
        let queues = self.sqs.enabled && self.queues.store == QueueStoreKind::Embedded;
        anyhow::ensure!(
            !self.cluster.local_node.is_empty() || !(queues || self.broadcast.enabled),
            "queues and broadcasts are in one node's data directory, and no other node has them where metadata = {:?}: name \
             that node with local_node below [cluster], or go without them: `enabled = false` below [sqs] and [broadcast] \
             (--no-sqs --no-broadcast), or [queues] store = \"cassandra\"",
            self.metadata
        );
        Ok(())
    }

    /// What has its place in one node is refused where all are active.
    fn check_active(&self) -> anyhow::Result<()> {
        if !self.cluster.is_shared() {
            return Ok(());
        }
        let refused = [
            (
                !self.kafka.enabled,
                "each node is one of Kafka's brokers and coordinates groups: leave `enabled` below [kafka] out",
            ),
            (self.log.cells, "cells are one node's: set cells = false below [log]"),
            (
                !self.cluster.name.is_empty(),
                "streams are not copied between clusters: leave [cluster] name out",
            ),
            (!self.cold.url.is_empty(), "there is no cold storage: leave [cold] url out"),
            (!self.bridge.is_empty(), "broadcasts are not bridged to streams: leave [[bridge]] out"),
            (self.memcached.enabled, "cells are not created: set enabled = false below [memcached]"),
        ];
        for (is_refused, why) in refused {
            anyhow::ensure!(!is_refused, "with [cluster] active = \"all\", {why}");
        }
        for listener in self.kafka.all_listeners().iter().filter(|_| self.kafka.enabled) {
            anyhow::ensure!(
                !listener.advertised.is_empty() || !listener.listen.ip().is_unspecified(),
                "with [cluster] active = \"all\", clients are told of each node by all of them: set `advertised` for the Kafka \
                 listener {} to the host and port at which they reach this one",
                listener.listen
            );
        }
        Ok(())
    }

    #[cfg(feature = "bookkeeper")]
    fn check_place(&self) -> anyhow::Result<()> {
        // Who is shown there is looked at where it is used: a password may be in a file that is read later.
        self.metadata_place().map(drop)
    }

    #[cfg(not(feature = "bookkeeper"))]
    fn check_place(&self) -> anyhow::Result<()> {
        anyhow::ensure!(!self.metadata.starts_with("zookeeper://"), NO_ZOOKEEPER);
        Err(no_place(&self.metadata, &"it is no URL of ZooKeeper"))
    }

    /// Where metadata is, and who is shown to ZooKeeper: `metadata`, or what the configuration names.
    ///
    /// # Errors
    /// If there is no metadata in ZooKeeper, or a secret can't be read.
    #[cfg(feature = "bookkeeper")]
    pub fn metadata_at(
        &mut self,
        env: &Env,
        metadata: Option<tailwater_meta_zookeeper::MetadataUri>,
    ) -> anyhow::Result<tailwater_meta_zookeeper::MetadataUri> {
        self.read_secrets()?;
        match metadata {
            Some(metadata) => self.secured(env, metadata),
            None if self.has_shared_metadata() => self.metadata_uri(env),
            None => anyhow::bail!(
                "no metadata is named: give --metadata zookeeper://HOST/PATH, or --config with the file of a node that has its \
                 metadata there"
            ),
        }
    }

    /// Where metadata is that is not in the data directory, and how it is reached.
    #[cfg(feature = "bookkeeper")]
    pub(crate) fn metadata_uri(&self, env: &Env) -> anyhow::Result<tailwater_meta_zookeeper::MetadataUri> {
        self.secured(env, self.metadata_place()?)
    }

    #[cfg(feature = "bookkeeper")]
    fn metadata_place(&self) -> anyhow::Result<tailwater_meta_zookeeper::MetadataUri> {
        let place = self.metadata.parse::<tailwater_meta_zookeeper::MetadataUri>();
        place.map_err(|fault| no_place(&self.metadata, &fault))
    }

    #[cfg(feature = "bookkeeper")]
    fn secured(
        &self,
        env: &Env,
        uri: tailwater_meta_zookeeper::MetadataUri,
    ) -> anyhow::Result<tailwater_meta_zookeeper::MetadataUri> {
        Ok(uri.with_login(self.zookeeper.login()?).with_dialer(self.zookeeper.dialer(env)?))
    }
}

fn no_place(metadata: &str, why: &dyn std::fmt::Display) -> anyhow::Error {
    anyhow::anyhow!("metadata = {metadata:?} is no place for metadata: use \"{EMBEDDED}\", or a URL; {why}")
}

#[cfg(test)]
mod tests {
    use super::super::cluster::ActiveNodes;
    use super::*;

    fn replicated() -> Config {
        let mut config = Config {
            metadata: "zookeeper://zk1,zk2/tailwater".to_owned(),
            segments: "bookkeeper://zk1,zk2/ledgers".to_owned(),
            ..Config::default()
        };
        config.cluster.local_node = "n1".to_owned();
        config
    }

    fn refused(config: &Config) -> String {
        config.check_metadata().expect_err("refused").to_string()
    }

    #[test]
    fn metadata_is_in_the_data_directory_or_where_a_url_says() {
        assert!(Config::default().check_metadata().is_ok());
        for wrong in ["", "zookeper://zk1/tailwater", "zk1:2181"] {
            let error = refused(&Config { metadata: wrong.to_owned(), ..replicated() });
            assert!(
                error.contains(&format!("metadata = {wrong:?}")) && error.contains("embedded"),
                "{error}"
            );
        }
        if cfg!(feature = "bookkeeper") {
            replicated().check_metadata().expect("a place");
        } else {
            assert!(refused(&replicated()).contains("make dist"));
        }
    }

    #[cfg(feature = "bookkeeper")]
    #[test]
    fn what_would_be_lost_with_a_data_directory_is_refused_unless_a_node_is_named_for_it() {
        let embedded = Config { segments: "embedded".to_owned(), ..replicated() };
        assert!(refused(&embedded).contains("bookkeeper://zk1,zk2,zk3/ledgers"));

        let mut config = replicated();
        config.cluster.local_node.clear();
        assert!(refused(&config).contains("local_node below [cluster]"));
        config.broadcast.enabled = false;
        assert!(refused(&config).contains("--no-sqs"), "queues are left");
        config.sqs.enabled = false;
        assert!(config.check_metadata().is_ok() && !config.is_local_node());

        let mut config = replicated();
        config.cluster.active = ActiveNodes::All;
        assert!(refused(&config).contains("cells = false below [log]"));
        config.log.cells = false;
        config.check_metadata().expect("all are active");
        config.kafka.listen = ([0, 0, 0, 0], 9092).into();
        assert!(refused(&config).contains("set `advertised` for the Kafka listener 0.0.0.0:9092"));
        config.metadata = "embedded".to_owned();
        assert!(refused(&config).contains("is for nodes that share metadata"));

        let mut config = replicated();
        config.cluster.node = "n1".to_owned();
        assert!(config.is_local_node());
        config.zookeeper.session_ms = 999;
        assert!(refused(&config).contains("session_ms = 999"));
    }
}
