//! One shard as its producers and readers see it: every offset has one record, for everybody and for ever.
//!
//! - What was acknowledged at an offset is what every reader gets there.
//! - What one reader got, acknowledged or not, every other gets too: readers only see what is durable.
//! - A reader's offsets are dense, but where it was told that retention removed records.
//! - A record carries its identity; one that was never produced to this shard is foreign. Each is at one offset at
//!   most, however often it was sent, and they are in the order in which they were produced.
//!
//! A shard that [may lose](ShardChecker::that_may_lose) records, because the machine under its `interval` durability
//! crashes, is held to less: records from some offset on may be replaced by others, in a higher term, and readers go
//! back to those.

use std::collections::{BTreeMap, BTreeSet};

use super::{Violation, ensure};

/// Checks one shard.
#[derive(Clone, Debug, Default)]
pub struct ShardChecker {
    /// Identities produced, acknowledged or not.
    produced: BTreeSet<u64>,
    /// What is at each offset, once anybody saw it or was told. Terms never decrease.
    records: BTreeMap<u64, KnownRecords>,
    /// The offset of each of these.
    offsets: BTreeMap<u64, u64>,
    acknowledged: BTreeSet<u64>,
    readers: BTreeMap<u64, Reader>,
    may_lose: bool,
    /// Offsets before it may have been removed by retention or truncation.
    start: u64,
    /// Offsets before it are removed for certain.
    removed: u64,
}

/// A record that was seen.
#[derive(Clone, Copy, Debug)]
struct KnownRecords {
    identity: u64,
    term: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Reader {
    /// The offset that it gets next.
    next: u64,
    /// Of the last record it got.
    term: u32,
}

impl ShardChecker {
    /// A shard in which nothing happened yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// One that may lose what it has acknowledged, if a new term shows it.
    pub fn that_may_lose() -> Self {
        Self { may_lose: true, ..Self::default() }
    }

    /// The same shard as it is known by now, without what is at `end` and behind it: others come there.
    pub fn forked(&self, end: u64) -> Self {
        let mut forked = self.clone();
        let lost = forked.records.split_off(&end);
        for known in lost.values() {
            forked.offsets.remove(&known.identity);
            forked.produced.remove(&known.identity);
        }
        forked.acknowledged.split_off(&end);
        for reader in forked.readers.values_mut().filter(|reader| reader.next > end) {
            *reader = Reader { next: end, term: 0 };
        }
        forked
    }

    /// A record with this identity is about to be appended.
    pub fn produced(&mut self, identity: u64) {
        self.produced.insert(identity);
    }

    /// Records were acknowledged from offset `base` on, in `term`.
    pub fn acknowledged(&mut self, base: u64, identities: &[u64], term: u32) -> Result<(), Violation> {
        for (offset, &identity) in (base..).zip(identities) {
            if self.seen(offset, identity, term, "acknowledged")? {
                self.acknowledged.insert(offset);
            }
        }
        Ok(())
    }

    /// These were refused for good: nobody may ever see them.
    pub fn refused(&mut self, identities: &[u64]) -> Result<(), Violation> {
        for identity in identities {
            let seen = self.offsets.contains_key(identity);
            ensure(!seen, || format!("record {identity:#x} was refused, but somebody has read it"))?;
            self.produced.remove(identity);
        }
        Ok(())
    }

    /// A reader begins at `offset`, or begins again there.
    pub fn reader_at(&mut self, reader: u64, offset: u64) {
        self.readers.insert(reader, Reader { next: offset, term: 0 });
    }

    /// A reader was told that everything before `offset` was removed.
    pub fn reader_truncated(&mut self, reader: u64, offset: u64) -> Result<(), Violation> {
        ensure(offset <= self.start, || {
            format!(
                "reader {reader} was told that retention removed what is before {offset}, but the shard starts at {}",
                self.start
            )
        })?;
        let reader = self.readers.entry(reader).or_default();
        reader.next = reader.next.max(offset);
        Ok(())
    }

    /// A reader was handed a record that was written in `term`.
    pub fn read(&mut self, reader: u64, offset: u64, identity: u64, term: u32) -> Result<(), Violation> {
        let Reader { next, term: before } = self.readers.get(&reader).copied().unwrap_or_default();
        let goes_back = self.may_lose && offset < next && term > before;
        ensure(offset == next || goes_back, || {
            format!("reader {reader} was handed offset {offset} of term {term}, but {next} comes next")
        })?;
        ensure(term >= before, || format!("reader {reader} was handed term {term} after {before}"))?;
        self.seen(offset, identity, term, "read")?;
        self.readers.insert(reader, Reader { next: offset + 1, term });
        Ok(())
    }

    /// Offsets before `offset` are about to be removed.
    pub fn truncating(&mut self, offset: u64) {
        self.start = self.start.max(offset);
    }

    /// It was answered that offsets before `offset` are removed.
    pub fn truncated(&mut self, offset: u64) -> Result<(), Violation> {
        ensure(offset <= self.start, || {
            format!("the shard starts at {offset}, though only what is before {} was to go", self.start)
        })?;
        self.removed = self.removed.max(offset);
        Ok(())
    }

    /// The shard says that it starts at `offset`.
    pub fn starts_at(&self, offset: u64) -> Result<(), Violation> {
        ensure((self.removed..=self.start).contains(&offset), || {
            let Self { removed, start, .. } = self;
            format!("the shard starts at {offset}, but {removed} was answered and {start} asked for")
        })
    }

    /// The offset after the last acknowledged record; 0 if there is none.
    pub fn acknowledged_end(&self) -> u64 {
        self.acknowledged.last().map_or(0, |last| last + 1)
    }

    /// Number of acknowledged records.
    pub fn acknowledged_count(&self) -> u64 {
        self.acknowledged.len() as u64
    }

    /// The offset after the last record that this reader was handed.
    pub fn reader_next(&self, reader: u64) -> u64 {
        self.readers.get(&reader).map_or(0, |reader| reader.next)
    }

    /// At the end: this reader, which had all the time it needs, got everything that was acknowledged.
    pub fn complete(&self, reader: u64) -> Result<(), Violation> {
        let next = self.reader_next(reader);
        let end = self.acknowledged_end();
        ensure(next >= end, || {
            format!("reader {reader} stopped at offset {next}, but acknowledged records reach {end}")
        })
    }

    /// Somebody saw a record; `false` if it is known to be lost by now.
    fn seen(&mut self, offset: u64, identity: u64, term: u32, how: &str) -> Result<bool, Violation> {
        ensure(self.produced.contains(&identity), || {
            format!("offset {offset}: {how} a foreign record {identity:#x}")
        })?;
        if self.may_lose {
            if self.records.range(..=offset).next_back().is_some_and(|(_, before)| before.term > term) {
                return Ok(false);
            }
            self.lose(offset, term);
        }
        let known = self.records.entry(offset).or_insert(KnownRecords { identity, term }).identity;
        ensure(known == identity, || {
            format!("offset {offset}: {how} record {identity:#x}, but it was {known:#x} before")
        })?;
        let first = *self.offsets.entry(identity).or_insert(offset);
        ensure(first == offset, || {
            format!("offset {offset}: {how} record {identity:#x}, which is at offset {first} already")
        })?;
        let before = self.offsets.range(..identity).next_back().is_none_or(|(_, before)| *before < offset);
        let after = self.offsets.range(identity + 1..).next().is_none_or(|(_, after)| *after > offset);
        ensure(before && after, || {
            format!("offset {offset}: {how} record {identity:#x}, out of the order of production")
        })?;
        Ok(true)
    }

    /// From `offset` on, what was written before `term` is not there any more.
    fn lose(&mut self, offset: u64, term: u32) {
        while let Some((&lost, known)) = self.records.range(offset..).next().filter(|(_, it)| it.term < term)
        {
            self.offsets.remove(&known.identity);
            self.acknowledged.remove(&lost);
            self.records.remove(&lost);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shard() -> ShardChecker {
        let mut shard = ShardChecker::new();
        for identity in 10..20 {
            shard.produced(identity);
        }
        shard.acknowledged(0, &[10, 11, 12], 1).expect("fresh offsets");
        shard
    }

    #[test]
    fn readers_are_prefixes_of_one_another() {
        let mut shard = shard();
        for (offset, identity) in [(0, 10), (1, 11), (2, 12), (3, 13)] {
            shard.read(1, offset, identity, 1).expect("in order");
        }
        shard.read(2, 0, 10, 1).expect("in order");
        shard.reader_at(2, 3);
        assert!(shard.clone().read(2, 3, 14, 1).is_err(), "reader 1 got another record there");
        shard.read(2, 3, 13, 1).expect("the same record");
        shard.complete(2).expect("it has everything");
    }

    #[test]
    fn gaps_repetitions_and_foreign_records_are_noticed() {
        let shard = shard();
        assert!(shard.clone().read(1, 1, 11, 1).is_err(), "a gap");
        assert!(shard.clone().read(1, 0, 99, 1).is_err(), "foreign");
        assert!(shard.clone().read(1, 0, 11, 1).is_err(), "another record than the acknowledged one");
        let mut twice = shard.clone();
        twice.read(1, 0, 10, 1).expect("in order");
        assert!(twice.read(1, 0, 10, 1).is_err(), "twice");
        assert!(twice.complete(1).is_err(), "two acknowledged records are missing");
    }

    #[test]
    fn a_reader_skips_only_what_retention_removed() {
        let mut shard = shard();
        assert!(shard.reader_truncated(1, 2).is_err());
        shard.truncating(2);
        shard.reader_truncated(1, 2).expect("it was removed");
        shard.read(1, 2, 12, 1).expect("next");
        assert!(shard.truncated(3).is_err(), "more than was asked for");
        shard.truncated(2).expect("as asked for");
        assert!(shard.starts_at(1).is_err(), "what was removed came back");
        shard.starts_at(2).expect("where it was truncated");
    }

    #[test]
    fn a_record_that_is_there_twice_or_out_of_order_is_noticed() {
        let mut shard = shard();
        assert!(shard.clone().acknowledged(3, &[12], 1).is_err(), "twice");
        shard.acknowledged(3, &[15], 1).expect("later ones");
        shard.acknowledged(3, &[15], 1).expect("a duplicate of the same");
        assert!(shard.acknowledged(4, &[14], 1).is_err(), "out of order");
    }

    #[test]
    fn a_record_that_was_refused_is_foreign() {
        let mut shard = shard();
        shard.refused(&[13]).expect("nobody saw it");
        assert!(shard.clone().acknowledged(3, &[13], 1).is_err());
        assert!(shard.refused(&[12]).is_err(), "it was acknowledged");
    }

    #[test]
    fn an_offset_is_acknowledged_for_one_record_only() {
        let mut shard = shard();
        assert!(shard.acknowledged(2, &[13], 1).is_err());
    }

    #[test]
    fn what_is_lost_comes_back_as_others_in_a_higher_term_or_not_at_all() {
        let mut shard = ShardChecker::that_may_lose();
        for identity in 10..20 {
            shard.produced(identity);
        }
        shard.acknowledged(0, &[10, 11, 12], 1).expect("fresh offsets");
        for (offset, identity) in [(0, 10), (1, 11), (2, 12)] {
            shard.read(1, offset, identity, 1).expect("in order");
        }
        assert!(shard.clone().read(1, 1, 13, 1).is_err(), "nothing shows that 11 was lost");
        assert!(shard.clone().acknowledged(1, &[13], 1).is_err(), "nothing shows that 11 was lost");
        shard.acknowledged(1, &[13], 2).expect("11 and 12 are lost");
        assert_eq!(shard.acknowledged_end(), 2);
        shard.read(1, 1, 13, 2).expect("back to where the loss began");
        assert!(shard.clone().read(1, 1, 13, 2).is_err(), "twice in one term");
        shard.read(2, 0, 10, 1).expect("what was kept");
        shard.read(2, 1, 11, 1).expect("what it had before it was lost");
        shard.read(2, 1, 13, 2).expect("and what it was replaced with");
        shard.complete(1).expect("it has everything");
    }
}
