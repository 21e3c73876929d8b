//! Tests of real processes: the binary's commands, nodes that are killed, clients that others wrote. One program, so
//! that the tests share what they start processes with, and both cores while one of them waits.

#![allow(clippy::disallowed_methods)] // tests of real processes and real files

mod support;

#[cfg(feature = "bench")]
mod bench;
#[cfg(feature = "bench")]
mod bench_broadcast;
mod bridge;
mod broadcast;
mod broadcast_disk;
mod broadcast_http;
mod broadcast_links;
mod broadcast_ws;
mod cell_rights;
mod cells;
mod cells_load;
mod cells_loaded;
mod cold;
mod copied_groups;
mod copies;
mod demo;
mod docs;
mod examples;
mod faults;
mod flags;
#[cfg(feature = "tls")]
mod jwt;
mod kafka_clients;
mod kafka_faults;
mod kafka_groups;
mod kafka_hot;
mod kafka_kcat;
mod kafka_lag;
mod kafka_listeners;
mod languages;
mod ledgers_secured;
#[cfg(feature = "bookkeeper")]
mod left_over;
#[cfg(feature = "ofi")]
mod libfabric;
mod library;
mod lines;
mod logins;
mod memcached;
#[cfg(feature = "bookkeeper")]
mod metadata;
mod metrics;
#[cfg(feature = "bookkeeper")]
mod migrate;
mod monitor;
mod moves;
#[cfg(feature = "bookkeeper")]
mod nodes;
mod panics;
mod permissions;
mod queues;
#[cfg(feature = "cassandra")]
mod queues_cassandra;
mod quotas;
mod releases;
#[cfg(feature = "bookkeeper")]
mod replicated;
mod roles;
#[cfg(feature = "tls")]
mod security_page;
#[cfg(feature = "bookkeeper")]
mod segments;
mod settings;
mod sidecar;
mod snapshots;
mod sqs_accounts;
mod sqs_clients;
mod streams;
#[cfg(feature = "tls")]
mod tls;
#[cfg(feature = "tls")]
mod tls_broadcast;
#[cfg(feature = "tls")]
mod tls_data;
#[cfg(feature = "tls")]
mod tls_logins;
mod trees;
mod window;
mod workers;
#[cfg(feature = "bookkeeper")]
mod write_rights;
