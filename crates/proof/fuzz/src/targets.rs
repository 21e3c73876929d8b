//! The list of them.

mod backend;
mod broadcast;
mod cells;
mod log;
mod replica;

use ReadBytesOf::{Anybody, Disk, Known};
use tailwater_bookkeeper::fuzz as bookkeeper;
use tailwater_cold::fuzz as cold;
use tailwater_copy::fuzz as copy;
use tailwater_journal::fuzz as journal;
use tailwater_kafka::fuzz as groups;
use tailwater_kafka_wire::fuzz as kafka;
use tailwater_log::fuzz as streams;
use tailwater_login::fuzz as login;
use tailwater_meta::fuzz as meta;
use tailwater_meta_zookeeper::fuzz as zookeeper;
use tailwater_queue::fuzz as queue;
use tailwater_rma::fuzz as rma;
use tailwater_sqs::fuzz as sqs;
use tailwater_store::fuzz as store;
use tailwater_tls::fuzz as tls;

use crate::{FuzzTarget, ReadBytesOf};

/// What is taken however few bytes there are, by nearly all.
const MEMORY_BYTES: usize = 1 << 20;
const LARGE_BYTES: usize = 16 << 20;
/// What reads text and the like takes a few times its bytes.
const FEW: usize = 64;
/// An item of a list is a byte or two on the wire and some hundreds in memory, twice while a vector grows, and what was
/// read is read again.
const ITEMS: usize = 2_000;

fn target(
    name: &'static str,
    of: ReadBytesOf,
    memory_per_byte: usize,
    run: fn(&[u8]),
    seeds: fn() -> Vec<Vec<u8>>,
) -> FuzzTarget {
    FuzzTarget { name, of, run, seeds, memory_bytes: MEMORY_BYTES, memory_per_byte }
}

/// All of them.
pub fn targets() -> Vec<FuzzTarget> {
    // Tables that a backend has from its beginning, and what a frame of LZ4 may say that its blocks take.
    let large = |target| FuzzTarget { memory_bytes: LARGE_BYTES, ..target };
    vec![
        target("kafka-requests", Anybody, ITEMS, kafka::requests, || kafka::seeds().0),
        target("scram", Anybody, FEW, login::scram, || login::seeds()[0].clone()),
        target("passwords", Anybody, FEW, login::passwords, || login::seeds()[1].clone()),
        target("http-credentials", Anybody, FEW, login::http, || login::seeds()[4].clone()),
        target("jwts", Anybody, FEW, login::jwts, || login::seeds()[2].clone()),
        target("jwks", Known, ITEMS, login::jwks, || login::seeds()[3].clone()),
        target("certificates", Anybody, ITEMS, tls::certificates, tls::seeds),
        target("sqs-requests", Anybody, ITEMS, sqs::requests, || sqs::seeds()[0].clone()),
        target("rma-session", Anybody, ITEMS, rma::session, || rma::seeds().0),
        target("memcached", Anybody, ITEMS, cells::memcached, cells::memcached_seeds),
        target("broadcast-frames", Anybody, ITEMS, broadcast::frames, broadcast::frame_seeds),
        target("broadcast-replica", Anybody, ITEMS, replica::run, replica::seeds),
        large(target("cell-backend", Anybody, ITEMS, backend::run, backend::seeds)),
        target("kafka-answers", Known, ITEMS, kafka::responses, || kafka::seeds().1),
        target("kafka-consumers", Known, ITEMS, kafka::consumers, log::consumer_seeds),
        large(target("record-batches", Known, FEW, log::batches, log::batch_seeds)),
        target("calls", Known, ITEMS, log::calls, log::call_seeds),
        target("cell-calls", Known, ITEMS, cells::calls, cells::call_seeds),
        target("rma-answers", Known, ITEMS, rma::answers, || rma::seeds().1),
        target("broadcast-members", Known, ITEMS, broadcast::members, broadcast::member_seeds),
        target("broadcast-tokens", Anybody, ITEMS, broadcast::tokens, broadcast::token_seeds),
        target("predicates", Known, ITEMS, broadcast::predicates, broadcast::predicate_seeds),
        target("sqs-policies", Known, ITEMS, sqs::policies, || sqs::seeds()[1].clone()),
        target("receipts", Known, FEW, queue::receipts, || queue::seeds().1),
        target("bookie-answers", Known, ITEMS, bookkeeper::answers, || bookkeeper::seeds()[0].clone()),
        target("ledger-entries", Known, FEW, bookkeeper::entries, || bookkeeper::seeds()[1].clone()),
        target("ledger-metadata", Known, ITEMS, bookkeeper::metadata, || bookkeeper::seeds()[2].clone()),
        target("plans", Known, ITEMS, copy::plans, || copy::seeds().0),
        target("zookeeper-values", Known, FEW, zookeeper::values, zookeeper::seeds),
        large(target("cold-indexes", Known, FEW, cold::indexes, || cold::seeds().0)),
        target("cold-names", Known, FEW, cold::names, || cold::seeds().1),
        target("cell-items", Known, FEW, cells::items, cells::item_seeds),
        target("cell-configurations", Known, ITEMS, cells::configurations, cells::configuration_seeds),
        target("tails", Known, FEW, log::tails, log::tail_seeds),
        target("snapshots", Known, FEW, log::snapshots, log::snapshot_seeds),
        target("entries", Disk, FEW, log::entries, log::entry_seeds),
        target("journal-files", Disk, FEW, journal::files, journal::seeds),
        target("store-records", Disk, FEW, store::records, || store::seeds()[0].clone()),
        target("store-checkpoints", Disk, FEW, store::checkpoints, || store::seeds()[1].clone()),
        target("store-sidecars", Disk, FEW, store::sidecars, || store::seeds()[2].clone()),
        target("meta-commits", Disk, ITEMS, meta::commits, || meta::seeds().0),
        target("meta-snapshots", Disk, ITEMS, meta::snapshots, || meta::seeds().1),
        target("queue-records", Disk, ITEMS, queue::records, || queue::seeds().0),
        target("sqs-contents", Disk, ITEMS, sqs::contents, || sqs::seeds()[2].clone()),
        target("sqs-accounts", Disk, ITEMS, sqs::accounts, sqs::account_seeds),
        target("stream-records", Disk, ITEMS, streams::records, streams::seeds),
        target("group-records", Disk, ITEMS, groups::group_records, groups::seeds),
        target("cluster-records", Disk, ITEMS, copy::clusters, || copy::seeds().1),
        target("login-records", Disk, FEW, login::stored, login::stored_seeds),
        target("broadcast-records", Disk, ITEMS, broadcast::records, broadcast::record_seeds),
    ]
}

/// The one with this name.
pub fn find(name: &str) -> Option<FuzzTarget> {
    targets().into_iter().find(|target| target.name == name)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_target_has_a_name_of_its_own_and_something_to_begin_with() {
        let all = targets();
        let names: BTreeSet<&str> = all.iter().map(|target| target.name).collect();
        assert_eq!(names.len(), all.len());
        for target in all {
            assert!(!(target.seeds)().is_empty(), "{}", target.name);
        }
        assert!(find("scram").is_some() && find("none").is_none());
    }
}
