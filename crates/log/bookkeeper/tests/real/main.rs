//! Against real ZooKeeper and real bookies, and beside Apache's client in Java. One program: the servers are started
//! once for all tests, at ports that are free, and end with it.

#![allow(clippy::disallowed_methods)] // tests of real processes

mod apache;
mod cluster;

mod java;
mod ledgers;
mod secured;
mod security;

use std::sync::LazyLock;

use cluster::Cluster;

/// One bookie may be dead in a test while another test has an ensemble of five.
const BOOKIES: usize = 6;

static CLUSTER: LazyLock<Cluster> = LazyLock::new(|| Cluster::start(BOOKIES));

/// The cluster, started by whoever needs it first.
fn cluster() -> &'static Cluster {
    &CLUSTER
}
