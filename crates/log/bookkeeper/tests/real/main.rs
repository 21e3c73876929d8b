//! Against real ZooKeeper and real bookies, and beside Apache's client in Java. One program: the servers are started once
//! for all tests, at ports that are free, and end with it.

#![allow(clippy::disallowed_methods)] // tests of real processes

mod cluster;

mod java;
mod ledgers;
