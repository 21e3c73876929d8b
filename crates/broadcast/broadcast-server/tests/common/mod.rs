//! What the tests with real connections have in common.

#![allow(dead_code)] // each test uses some of it

use std::collections::BTreeMap;
use std::sync::Arc;

use tailwater_broadcast::replica::Config;
use tailwater_broadcast_server::{ConfigurationAt, ReplicaServerConfig, fresh_id};
use tailwater_env::Env;
use tailwater_meta::Meta;

/// Some metadata; the directory lives as long as it.
pub async fn meta(env: &Env) -> (Arc<dyn Meta>, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    (tailwater_meta::testing::open(env, dir.path()).1, dir)
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
