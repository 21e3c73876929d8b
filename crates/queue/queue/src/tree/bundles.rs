//! Contents as the tree has them: small ones many in a row, since a row of its own for each would be a page of its own
//! for each that is half a page long, written, read and freed one by one.
//!
//! A bundle has contents of one checkpoint in the order of their numbers, and is cut by its bytes; its key is the first
//! of these numbers. Numbers in different bundles do not mix: what is not beyond all that was ever put in bundles lies
//! alone, and so does what is large. A bundle's row does not change when some of its contents are not wanted any more:
//! which are is in a small row beside it. When few are left it is written again without the others, so that what is
//! kept for nothing is bounded.

use bytes::Bytes;
use redb::{ReadTransaction, ReadableTable, Table, TableDefinition, WriteTransaction};

use super::{BUNDLED, CONTENTS};
use crate::ids::Number;
use crate::limits::{BUNDLE_BYTES, BUNDLE_CONTENTS_MAX, BUNDLE_KEPT_PART, BUNDLED_BYTES_MAX};

pub(super) const BUNDLES: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("bundles");
pub(super) const LIVE: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("live");

/// Before each content in a bundle: 8 number, 4 length, little-endian.
const HEADER_BYTES: usize = 12;

/// The contents of a bundle, with their numbers; nothing behind what makes no sense.
fn parse(mut bytes: &[u8]) -> impl Iterator<Item = (u64, &[u8])> {
    std::iter::from_fn(move || {
        let (header, rest) = bytes.split_first_chunk::<HEADER_BYTES>()?;
        let number = u64::from_le_bytes(header[..8].try_into().expect("8 bytes"));
        let length = u32::from_le_bytes(header[8..].try_into().expect("4 bytes"));
        let (content, rest) = rest.split_at_checked(length as usize)?;
        bytes = rest;
        Some((number, content))
    })
}

fn push(bundle: &mut Vec<u8>, number: u64, content: &[u8]) {
    bundle.extend_from_slice(&number.to_le_bytes());
    bundle.extend_from_slice(&u32::try_from(content.len()).expect("only small ones are here").to_le_bytes());
    bundle.extend_from_slice(content);
}

/// What of a bundle is still wanted. Little-endian: 4 contents that it has, 8 each number that is wanted, ascending.
struct Live {
    count: u32,
    numbers: Vec<u64>,
}

impl Live {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = self.count.to_le_bytes().to_vec();
        bytes.extend(self.numbers.iter().flat_map(|number| number.to_le_bytes()));
        bytes
    }

    fn decode(bytes: &[u8]) -> Self {
        let (count, numbers) = bytes.split_first_chunk().unwrap_or((&[0; 4], &[]));
        let numbers = numbers.chunks_exact(8).map(|one| u64::from_le_bytes(one.try_into().expect("8 bytes")));
        Self { count: u32::from_le_bytes(*count), numbers: numbers.collect() }
    }

    fn has(&self, number: u64) -> bool {
        self.numbers.binary_search(&number).is_ok()
    }
}

/// The tables that contents are in, to change.
pub(super) struct Writer<'t> {
    contents: Table<'t, u64, &'static [u8]>,
    bundles: Table<'t, u64, &'static [u8]>,
    live: Table<'t, u64, &'static [u8]>,
}

impl<'t> Writer<'t> {
    pub(super) fn open(transaction: &'t WriteTransaction) -> Result<Self, redb::Error> {
        let contents = transaction.open_table(CONTENTS)?;
        Ok(Self { contents, bundles: transaction.open_table(BUNDLES)?, live: transaction.open_table(LIVE)? })
    }

    /// Puts contents in.
    pub(super) fn insert(
        &mut self,
        numbers: &mut Table<'_, &'static str, u64>,
        mut all: Vec<(Number, &Bytes)>,
    ) -> Result<(), redb::Error> {
        all.sort_unstable_by_key(|(number, _)| *number);
        all.dedup_by_key(|(number, _)| *number);
        let bundled = numbers.get(BUNDLED)?.map_or(0, |last| last.value());
        let mut last = bundled;
        let (mut bundle, mut inside) = (Vec::with_capacity(BUNDLE_BYTES), Vec::new());
        for (Number(number), content) in all {
            if content.len() > BUNDLED_BYTES_MAX {
                self.contents.insert(number, &content[..])?;
            } else if number <= bundled {
                // A replay brings what is there already.
                if self.bundle_of(number)?.is_none() {
                    self.contents.insert(number, &content[..])?;
                }
            } else {
                let is_full = bundle.len() + HEADER_BYTES + content.len() > BUNDLE_BYTES;
                if is_full || inside.len() >= BUNDLE_CONTENTS_MAX {
                    self.put(&mut bundle, &mut inside)?;
                }
                push(&mut bundle, number, content);
                inside.push(number);
                last = number;
            }
        }
        if !inside.is_empty() {
            self.put(&mut bundle, &mut inside)?;
            numbers.insert(BUNDLED, last)?;
        }
        Ok(())
    }

    fn put(&mut self, bundle: &mut Vec<u8>, inside: &mut Vec<u64>) -> Result<(), redb::Error> {
        let (key, count) = (inside[0], u32::try_from(inside.len()).expect("few"));
        self.bundles.insert(key, &bundle[..])?;
        self.live.insert(key, &Live { count, numbers: std::mem::take(inside) }.encode()[..])?;
        bundle.clear();
        Ok(())
    }

    /// The bundle that has this content and of which it is wanted.
    fn bundle_of(&self, number: u64) -> Result<Option<(u64, Live)>, redb::Error> {
        let found = self.live.range(..=number)?.next_back().transpose()?;
        let found = found.map(|(key, live)| (key.value(), Live::decode(live.value())));
        Ok(found.filter(|(_, live)| live.has(number)))
    }

    /// Removes contents, as far as they are there.
    pub(super) fn remove(&mut self, mut all: Vec<Number>) -> Result<(), redb::Error> {
        all.sort_unstable();
        let mut rest = &all[..];
        while let Some(first) = rest.first() {
            let Some((key, mut live)) = self.bundle_of(first.0)? else {
                self.contents.remove(first.0)?;
                rest = &rest[1..];
                continue;
            };
            let last = live.numbers.last().copied().unwrap_or(key);
            let (going, others) = rest.split_at(rest.partition_point(|number| number.0 <= last));
            rest = others;
            for number in going.iter().filter(|number| !live.has(number.0)) {
                self.contents.remove(number.0)?;
            }
            live.numbers.retain(|number| going.binary_search(&Number(*number)).is_err());
            if live.numbers.is_empty() {
                self.bundles.remove(key)?;
                self.live.remove(key)?;
                continue;
            }
            if live.numbers.len() * BUNDLE_KEPT_PART <= live.count as usize {
                self.write_again(key, &mut live)?;
            }
            self.live.insert(key, &live.encode()[..])?;
        }
        Ok(())
    }

    /// Writes a bundle without what is not wanted.
    fn write_again(&mut self, key: u64, live: &mut Live) -> Result<(), redb::Error> {
        let mut bundle = Vec::new();
        if let Some(before) = self.bundles.get(key)? {
            for (number, content) in parse(before.value()).filter(|(number, _)| live.has(*number)) {
                push(&mut bundle, number, content);
            }
        }
        self.bundles.insert(key, &bundle[..])?;
        live.count = u32::try_from(live.numbers.len()).expect("few");
        Ok(())
    }
}

/// The contents of these numbers, as far as they are there; not those that come after so many bytes.
pub(super) fn read(
    transaction: &ReadTransaction,
    numbers: &[Number],
    most: usize,
) -> Result<Vec<Option<Bytes>>, redb::Error> {
    let (alone, bundles) = (transaction.open_table(CONTENTS)?, transaction.open_table(BUNDLES)?);
    let (mut contents, mut bytes) = (Vec::with_capacity(numbers.len()), 0);
    // The bundle that the last one was in: the next one mostly is there, too.
    let mut bundle = None;
    for Number(number) in numbers {
        if bytes > most {
            break;
        }
        let mut content = bundle.as_ref().and_then(|bundle| find(bundle, *number));
        if content.is_none() {
            bundle = bundles.range(..=*number)?.next_back().transpose()?.map(|(_, bundle)| bundle);
            content = bundle.as_ref().and_then(|bundle| find(bundle, *number));
        }
        if content.is_none() {
            content = alone.get(*number)?.map(|value| Bytes::copy_from_slice(value.value()));
        }
        bytes += content.as_ref().map_or(0, Bytes::len);
        contents.push(content);
    }
    Ok(contents)
}

fn find(bundle: &redb::AccessGuard<'_, &'static [u8]>, number: u64) -> Option<Bytes> {
    // A copy: one that stays in memory must not keep the others there.
    parse(bundle.value())
        .find(|(other, _)| *other == number)
        .map(|(_, content)| Bytes::copy_from_slice(content))
}

/// How many contents are wanted. That what is wanted is there is looked at, too.
#[cfg(test)]
pub(super) fn count(transaction: &ReadTransaction) -> Result<u64, redb::Error> {
    use redb::ReadableTableMetadata;
    let (bundles, live) = (transaction.open_table(BUNDLES)?, transaction.open_table(LIVE)?);
    assert_eq!(bundles.len()?, live.len()?);
    let mut count = transaction.open_table(CONTENTS)?.len()?;
    for row in live.iter()? {
        let (key, live) = row?;
        let live = Live::decode(live.value());
        let bundle = bundles.get(key.value())?.expect("the bundle of what is wanted");
        let inside: Vec<u64> = parse(bundle.value()).map(|(number, _)| number).collect();
        assert_eq!(inside.len(), live.count as usize);
        assert!(live.numbers.iter().all(|number| inside.contains(number)));
        assert!(live.numbers.len() * BUNDLE_KEPT_PART > inside.len() || live.numbers.len() == inside.len());
        count += live.numbers.len() as u64;
    }
    Ok(count)
}
