//! The keys: put as they are in the data directory.

use std::collections::BTreeMap;

use bytes::Bytes;
use tailwater_meta::{Expect, Op};
use uuid::Uuid;

use super::{MigrationError, MigrationRun, MigrationStep};
use crate::limits::{MIGRATED_BYTES_AT_A_TIME, MIGRATED_KEYS_AT_A_TIME, MIGRATION_PASSES};
use crate::stream::MOVING_KEY;

/// What makes the keys that are there the wanted ones, in their order.
fn changes(wanted: &BTreeMap<String, Bytes>, there: &BTreeMap<String, Bytes>) -> Vec<Op> {
    let put = |(key, value): (&String, &Bytes)| Op::Put {
        key: key.clone(),
        value: value.clone(),
        expect: Expect::Any,
    };
    let puts = wanted.iter().filter(|(key, value)| there.get(*key) != Some(value)).map(put);
    let left = there.keys().filter(|key| !wanted.contains_key(*key) && *key != MOVING_KEY);
    puts.chain(left.map(|key| Op::Delete { key: key.clone(), expect: Expect::Any })).collect()
}

fn bytes_of(op: &Op) -> usize {
    match op {
        Op::Put { key, value, .. } => key.len() + value.len(),
        other => other.key().len(),
    }
}

/// The next commit of what is to be done, at least one operation.
fn next_commit(ops: &mut std::iter::Peekable<impl Iterator<Item = Op>>) -> Vec<Op> {
    let (mut commit, mut bytes) = (Vec::new(), 0);
    while let Some(op) = ops.next_if(|op| {
        let fits = bytes + bytes_of(op) <= MIGRATED_BYTES_AT_A_TIME && commit.len() < MIGRATED_KEYS_AT_A_TIME;
        commit.is_empty() || fits
    }) {
        bytes += bytes_of(&op);
        commit.push(op);
    }
    commit
}

impl MigrationRun<'_> {
    /// Makes the shared metadata what the data directory has, with its segments by the number `cluster`.
    pub(super) async fn copy_keys(&mut self, cluster: Uuid) -> Result<(), MigrationError> {
        let wanted = self.source.wanted(cluster);
        self.progress.begin("keys", wanted.len() as u64);
        for _ in 0..MIGRATION_PASSES {
            let there = self.meta().list("").await?;
            let there: BTreeMap<String, Bytes> =
                there.into_iter().map(|(key, found)| (key, found.value)).collect();
            let ops = changes(&wanted, &there);
            let count = ops.len();
            // As they were read, and not as they were sent.
            if count == 0 {
                return Ok(());
            }
            let mut ops = ops.into_iter().peekable();
            let mut done = 0;
            while ops.peek().is_some() {
                let commit = next_commit(&mut ops);
                done += commit.len();
                self.outcome.keys += commit.len() as u64;
                self.meta().commit(commit).await?;
                self.tell(MigrationStep::Keys(done, count))?;
            }
        }
        let place = &self.target.metadata.place;
        Err(MigrationError::Refused(format!("{place} is changed by others: stop them")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(keys: &[(&str, &'static str)]) -> BTreeMap<String, Bytes> {
        keys.iter().map(|(key, value)| ((*key).to_owned(), Bytes::from_static(value.as_bytes()))).collect()
    }

    #[test]
    fn what_is_there_already_is_left_what_differs_is_put_and_what_is_not_wanted_goes() {
        let wanted = map(&[("a", "1"), ("b", "2"), ("c", "3")]);
        let there = map(&[("a", "1"), ("b", "1"), ("d", "4"), (MOVING_KEY, "dir")]);
        let ops = changes(&wanted, &there);
        let keys: Vec<&str> = ops.iter().map(Op::key).collect();
        assert_eq!(keys, ["b", "c", "d"]);
        assert!(matches!(ops[2], Op::Delete { .. }));
        assert!(changes(&wanted, &wanted).is_empty());
    }

    #[test]
    fn commits_are_bounded_in_number_and_in_bytes_and_a_large_value_goes_alone() {
        let large = "x".repeat(MIGRATED_BYTES_AT_A_TIME);
        let put = |value: &str| Op::Put {
            key: "key".to_owned(),
            value: Bytes::copy_from_slice(value.as_bytes()),
            expect: Expect::Any,
        };
        let small = (0..MIGRATED_KEYS_AT_A_TIME + 1).map(|_| put(""));
        let mut ops = [put("small"), put(&large), put("")].into_iter().chain(small).peekable();
        let mut lengths = Vec::new();
        while ops.peek().is_some() {
            lengths.push(next_commit(&mut ops).len());
        }
        assert_eq!(lengths, [1, 1, MIGRATED_KEYS_AT_A_TIME, 2]);
    }
}
