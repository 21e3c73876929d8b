//! The answers, a file for each thing that clients ask about.

pub(crate) mod acls;
pub(crate) mod cluster;
pub(crate) mod configs;
pub(crate) mod consumer_groups;
pub(crate) mod fetch;
pub(crate) mod group_admin;
pub(crate) mod groups;
pub(crate) mod metadata;
pub(crate) mod offsets;
pub(crate) mod positions;
pub(crate) mod produce;
pub(crate) mod producers;
pub(crate) mod quotas;
pub(crate) mod replicas;
pub(crate) mod scram;
pub(crate) mod topics;
pub(crate) mod versions;

use std::collections::BTreeSet;

/// The first of all items with the same key: what a request names twice is answered once, so that an answer is bounded
/// by what there is and not by how often it is asked for.
pub(crate) fn distinct<T, K: Ord>(items: Vec<T>, key: impl Fn(&T) -> K) -> Vec<T> {
    let mut seen = BTreeSet::new();
    items.into_iter().filter(|item| seen.insert(key(item))).collect()
}
