//! What the tests with real connections have in common.

use std::collections::BTreeMap;
use std::sync::Arc;

use tailwater_broadcast::replica::Config;
use tailwater_broadcast_server::{ConfigurationAt, ReplicaServerConfig, fresh_id};
use tailwater_env::Env;
use tailwater_journal::{Journal, JournalConfig};
use tailwater_meta::{Meta, MetaConfig, Recovery};

/// Some metadata; the directory lives as long as it.
pub async fn meta(env: &Env) -> (Arc<dyn Meta>, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let mut recovery = Recovery::begin(env, &dir.path().join("meta")).unwrap();
    let mut replay = |_, position, bytes: &[u8]| recovery.replay(position, bytes);
    let journal =
        Journal::open(env, &dir.path().join("journal"), JournalConfig::default(), &mut replay).unwrap();
    (Arc::new(recovery.finish(env, journal, MetaConfig::default())), dir)
}

/// Of a new replica in a region that is alone.
pub fn config(env: &Env, region: &str, configuration: ConfigurationAt) -> ReplicaServerConfig {
    ReplicaServerConfig {
        replica: Config::new(region, fresh_id(env)),
        advertised: None,
        regions: BTreeMap::new(),
        configuration,
        joins: true,
        silence_ms: 1_000,
        lost_ms: 60_000,
        connections_max: 100,
        quotas: None,
        authorizer: Arc::new(tailwater_access::Everybody),
        acceptor: tailwater_tls::Acceptor::plain(),
        dialer: tailwater_tls::Dialer::plain(),
    }
}
