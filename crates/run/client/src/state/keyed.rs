//! The state of a stream whose records each set the value of a key.

use std::collections::BTreeMap;

use bytes::Bytes;
use tailwater_format::snapshot::SnapshotEntry;

use super::StateNews;
use crate::shard_of_key;

/// The last value of each key, of all shards. A record without a value removes its key.
#[derive(Clone, Debug, Default)]
pub struct KeyedState {
    shards: Vec<BTreeMap<Bytes, Bytes>>,
    keyless: u64,
}

impl KeyedState {
    /// One without keys, for a stream of that many shards.
    pub fn new(shards: u32) -> Self {
        Self { shards: (0..shards).map(|_| BTreeMap::new()).collect(), keyless: 0 }
    }

    /// Takes in what comes next.
    ///
    /// # Panics
    /// If the state was made for fewer shards.
    pub fn apply(&mut self, news: &StateNews) {
        let shard = &mut self.shards[news.shard() as usize];
        if let StateNews::Reset { .. } = news {
            shard.clear();
        }
        let keyless = &mut self.keyless;
        news.apply(|entry| match entry {
            (Some(key), Some(value)) => {
                match shard.get_mut(key) {
                    Some(known) => *known = Bytes::copy_from_slice(value),
                    None => drop(shard.insert(Bytes::copy_from_slice(key), Bytes::copy_from_slice(value))),
                };
            }
            (Some(key), None) => drop(shard.remove(key)),
            (None, _) => *keyless += 1,
        });
    }

    /// The value of a key. It is looked for first in the shard that producers put it into by default.
    pub fn get(&self, key: &[u8]) -> Option<&[u8]> {
        let first = shard_of_key(key, self.shards().max(1)).0 as usize;
        let (others, from_first) = self.shards.split_at(first.min(self.shards.len()));
        from_first.iter().chain(others).find_map(|shard| shard.get(key)).map(|value| &value[..])
    }

    /// Keys and values of a shard, in the order of the keys.
    ///
    /// # Panics
    /// If there is no such shard.
    pub fn entries(&self, shard: u32) -> impl ExactSizeIterator<Item = SnapshotEntry<'_>> {
        self.shards[shard as usize].iter().map(|(key, value)| (Some(&key[..]), Some(&value[..])))
    }

    /// How many shards it was made for.
    pub fn shards(&self) -> u32 {
        u32::try_from(self.shards.len()).unwrap_or(u32::MAX)
    }

    /// How many keys there are in all shards.
    pub fn len(&self) -> usize {
        self.shards.iter().map(BTreeMap::len).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Records that came without a key, and are in no state.
    pub fn keyless(&self) -> u64 {
        self.keyless
    }
}
