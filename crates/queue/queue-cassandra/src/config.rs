//! Where the cluster is, and what is kept there.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tailwater_access::SecretText;
use tailwater_queue::limits::WRITE_MS;

/// The `[queues.cassandra]` section.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CassandraConfig {
    /// Some nodes, `host:port`: the others are learned from them.
    pub contact_points: Vec<String>,
    /// The keyspace; created if it is not there.
    pub keyspace: String,
    /// Copies of each row, by data center, when the keyspace is created. Without data centers `replicas`, wherever they
    /// are.
    pub datacenters: BTreeMap<String, u32>,
    /// Copies of each row when the keyspace is created, where no data centers are named.
    pub replicas: u32,
    /// The data center whose nodes are asked; empty is any.
    pub local_datacenter: String,
    /// Who to log in as; empty is nobody.
    pub user: String,
    /// The password.
    pub password: SecretText,
    /// A file that has the password in its first line. Whoever starts the node reads it into `password`.
    pub password_file: Option<PathBuf>,
    /// How long a node may take to answer, in milliseconds.
    pub request_timeout_ms: u64,
}

impl Default for CassandraConfig {
    fn default() -> Self {
        Self {
            contact_points: vec!["127.0.0.1:9042".to_owned()],
            keyspace: "tailwater".to_owned(),
            datacenters: BTreeMap::new(),
            replicas: 3,
            local_datacenter: String::new(),
            user: String::new(),
            password: SecretText::default(),
            password_file: None,
            request_timeout_ms: WRITE_MS,
        }
    }
}

impl CassandraConfig {
    /// Whether every field lies in its bounds; if not, which one does not and what to do.
    pub fn check(&self) -> Result<(), String> {
        let is_name = |name: &str| {
            (1..=48).contains(&name.len())
                && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-')
        };
        if self.contact_points.is_empty() {
            return Err("[queues.cassandra] contact_points is empty: name at least one node".to_owned());
        }
        if !is_name(&self.keyspace) || self.keyspace.contains('-') {
            return Err(format!(
                "[queues.cassandra] keyspace = {:?} is no name: use up to 48 letters, digits and _",
                self.keyspace
            ));
        }
        if let Some(bad) = self.datacenters.keys().find(|name| !is_name(name)) {
            return Err(format!("[queues.cassandra] datacenters: {bad:?} is no name of a data center"));
        }
        let copies = self.datacenters.values().copied().chain([self.replicas]);
        if copies.into_iter().any(|copies| !(1..=9).contains(&copies)) {
            return Err("[queues.cassandra] keeps 1 to 9 copies, in each data center".to_owned());
        }
        if !(100..=600_000).contains(&self.request_timeout_ms) {
            return Err(format!(
                "[queues.cassandra] request_timeout_ms = {} is not from 100 to 600000",
                self.request_timeout_ms
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_be_no_cql_is_refused() {
        let good = CassandraConfig::default();
        assert_eq!(good.check(), Ok(()));
        let injected = CassandraConfig { keyspace: "a; DROP".to_owned(), ..good.clone() };
        assert!(injected.check().is_err());
        let datacenters = BTreeMap::from([("eu-west".to_owned(), 3), ("us'".to_owned(), 1)]);
        assert!(CassandraConfig { datacenters, ..good }.check().is_err());
    }
}
