//! Record batches from an offset on, as two-sided readers ask for them: whole batches, the first of which holds the
//! record at that offset, as bytes that go out as they are.
//!
//! At the tail they are the newest entries' own memory (`hot.rs`). Behind it they come from the store, in pieces of
//! about what was asked for; how many do so at the same time is bounded, so that those who catch up, however many they
//! are, neither fill the memory nor keep the disk from the journal.
//!
//! What goes out may be kept for long by whoever takes it slowly. So a few batches of a large block of memory are
//! copied out of it, and the others share it: what is kept is never more than about twice what was found.

use bytes::Bytes;
use tailwater_format::{Offset, ShardId, batches};

use crate::error::ReadError;
use crate::locate::{LocateRead, end_of_segment};
use crate::log::Log;
use crate::scan::Scan;
use crate::view::{Listener, SharedView};

/// Record batches that follow each other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fetched {
    /// One or more whole batches in each piece; the first may begin before the offset asked for.
    pub pieces: Vec<Bytes>,
    /// Bytes of all of them.
    pub bytes: usize,
    /// Bytes of the memory that is kept as long as they are.
    pub memory: usize,
    /// Offset after the last of them; `None` if there is none.
    pub next_offset: Option<Offset>,
}

/// Batches that are being gathered.
#[derive(Default)]
struct Gathered {
    fetched: Fetched,
    /// The memory that the last pieces are parts of.
    block: Bytes,
    /// The first of these pieces.
    first: usize,
}

impl Gathered {
    /// Takes the whole batches of `body`, which is a part of `block`, from the one that holds `offset` on that fit into
    /// `bytes_max`; the first one in any case if nothing was taken yet and `at_least_one`. Whether all were taken.
    fn take(
        &mut self,
        block: &Bytes,
        body: &Bytes,
        offset: Offset,
        bytes_max: usize,
        at_least_one: bool,
    ) -> Result<bool, ReadError> {
        // As long as it is held here, no other block is at its address.
        if block.as_ptr() != self.block.as_ptr() {
            self.settle();
            self.block = block.clone();
        }
        // The usual case: all of an entry's batches are wanted, and nobody looks at them.
        let mut at = 0;
        let mut begin = None;
        let mut end = 0;
        for batch in batches(body) {
            let batch = batch.map_err(|error| ReadError::Corrupt(error.to_string()))?;
            let header = batch.header();
            at += header.len;
            if header.next_offset() <= offset {
                continue;
            }
            let begin_at = *begin.get_or_insert(at - header.len);
            let first = at_least_one && self.fetched.bytes == 0 && end == 0;
            if !first && self.fetched.bytes + (at - begin_at) > bytes_max {
                self.push(body, begin_at, end);
                return Ok(false);
            }
            end = at;
            self.fetched.next_offset = Some(header.next_offset());
        }
        if let Some(begin) = begin {
            self.push(body, begin, end);
        }
        Ok(true)
    }

    fn push(&mut self, body: &Bytes, begin: usize, end: usize) {
        if end > begin {
            self.fetched.bytes += end - begin;
            self.fetched.pieces.push(body.slice(begin..end));
        }
    }

    /// Decides what becomes of the last pieces: they share their block, or are copied if they are less than half of it.
    fn settle(&mut self) {
        let Fetched { pieces, memory, .. } = &mut self.fetched;
        let bytes: usize = pieces[self.first..].iter().map(Bytes::len).sum();
        if bytes > 0 && bytes < self.block.len() / 2 {
            let copied = pieces[self.first..].concat();
            pieces.truncate(self.first);
            pieces.push(copied.into());
            *memory += bytes;
        } else if bytes > 0 {
            *memory += self.block.len();
        }
        self.first = pieces.len();
    }

    fn finish(mut self) -> Fetched {
        self.settle();
        self.fetched
    }
}

impl Log {
    /// Is told when one of `shards` has something new, or is deleted. Those that do not exist are left out.
    pub fn listen(&self, shards: impl IntoIterator<Item = ShardId>) -> Listener {
        let views = shards.into_iter().filter_map(|shard| self.shared_view(shard).ok()).collect();
        Listener::new(views)
    }

    /// Whole batches from the one that holds the record at `offset` on, at most `bytes_max` bytes; the first one in any
    /// case if `at_least_one`. None at the end. Never waits: `None` says that they are not in memory, and
    /// [`Log::fetch`] has them.
    ///
    /// # Errors
    /// `Truncated`, `BeyondEnd`; `NoStream`, `NoShard`, `Damaged`.
    pub fn fetch_hot(
        &self,
        shard: ShardId,
        offset: Offset,
        bytes_max: usize,
        at_least_one: bool,
    ) -> Result<Option<Fetched>, ReadError> {
        let view = self.shared_view(shard)?;
        let tail = view.tail();
        if offset < tail.log_start {
            return Err(ReadError::Truncated { log_start: tail.log_start });
        }
        if offset >= tail.next_offset {
            let end = tail.next_offset;
            return if offset == end {
                Ok(Some(Fetched::default()))
            } else {
                Err(ReadError::BeyondEnd { end })
            };
        }
        fetch_newest(&view, offset, tail.next_offset, bytes_max, at_least_one)
    }

    /// The same from the durable layer.
    ///
    /// # Errors
    /// Those of [`Log::fetch_hot`]; `Corrupt`, `Unavailable`.
    pub async fn fetch(
        &self,
        shard: ShardId,
        offset: Offset,
        bytes_max: usize,
        at_least_one: bool,
    ) -> Result<Fetched, ReadError> {
        let _permit = self.inner.reading(self.is_cold(shard, offset)).await;
        self.fetch_durable(shard, offset, bytes_max, at_least_one).await
    }

    /// The batch that holds the record at `offset`, from memory if it is there. Does not wait for those who catch up.
    ///
    /// # Errors
    /// As of [`Log::fetch`].
    pub async fn fetch_one(&self, shard: ShardId, offset: Offset) -> Result<Fetched, ReadError> {
        if let Some(fetched) = self.fetch_hot(shard, offset, 1, true)? {
            return Ok(fetched);
        }
        let _permit = match self.is_cold(shard, offset) {
            true => self.inner.reading(true).await,
            false => self.inner.single.acquire().await.ok(),
        };
        self.fetch_durable(shard, offset, 1, true).await
    }

    async fn fetch_durable(
        &self,
        shard: ShardId,
        offset: Offset,
        bytes_max: usize,
        at_least_one: bool,
    ) -> Result<Fetched, ReadError> {
        let mut gathered = Gathered::default();
        let (id, position, end) = loop {
            let location = self.locate(shard, LocateRead::Offset(offset)).await?;
            let view = self.view(shard)?;
            if let Some((id, end)) = end_of_segment(&view, location.segment) {
                break (id, location.position, end);
            }
            if offset >= view.tail.next_offset {
                return Ok(Fetched::default());
            }
            // Its segment was removed in between, as the next look says.
        };
        let mut scan = Scan::new(&*self.inner.segments, id, position, end);
        while gathered.fetched.bytes < bytes_max || (at_least_one && gathered.fetched.bytes == 0) {
            let Some(scanned) = scan.next().await? else { break };
            if scanned.header.is_control() {
                continue;
            }
            let body = scan.batches(&scanned).await?;
            if !gathered.take(scan.block(), &body, offset, bytes_max, at_least_one)? {
                break;
            }
        }
        Ok(gathered.finish())
    }
}

fn fetch_newest(
    view: &SharedView,
    offset: Offset,
    end: Offset,
    bytes_max: usize,
    at_least_one: bool,
) -> Result<Option<Fetched>, ReadError> {
    let Some(bodies) = view.newest().lock().from(offset, end, bytes_max.max(1)) else { return Ok(None) };
    let mut gathered = Gathered::default();
    for body in &bodies {
        if !gathered.take(body, body, offset, bytes_max, at_least_one)? {
            break;
        }
    }
    Ok(Some(gathered.finish()))
}

#[cfg(test)]
mod tests {
    use tailwater_format::{BatchBuilder, Codec};

    use super::*;

    /// Batches of one record of about so many bytes each, from offset 0 on, and where each of them begins and the last
    /// one ends.
    fn batches_of(values: &[usize]) -> (Bytes, Vec<usize>) {
        let (mut all, mut begins) = (Vec::new(), vec![0]);
        for (offset, value) in (0_u64..).zip(values) {
            let mut batch = BatchBuilder::new();
            batch.append(None, Some(&vec![7; *value]), &[], 0).expect("small");
            let mut batch = batch.finish(Codec::None).to_vec();
            batch[..8].copy_from_slice(&offset.to_be_bytes());
            all.extend_from_slice(&batch);
            begins.push(all.len());
        }
        (all.into(), begins)
    }

    fn is_part(piece: &Bytes, block: &Bytes) -> bool {
        block.as_ptr_range().contains(&piece.as_ptr())
    }

    #[test]
    fn a_few_batches_of_a_large_block_are_copied_and_do_not_keep_it() {
        let (block, begins) = batches_of(&[100, 100, 100_000]);
        let mut gathered = Gathered::default();
        assert!(!gathered.take(&block, &block, Offset(0), 1_000, false).expect("batches"));
        let fetched = gathered.finish();
        assert_eq!(fetched.pieces, [block.slice(..begins[2])]);
        assert!(!is_part(&fetched.pieces[0], &block));
        assert_eq!((fetched.bytes, fetched.memory), (begins[2], begins[2]));
    }

    #[test]
    fn most_of_a_block_is_shared_and_all_of_it_counts() {
        let (block, begins) = batches_of(&[100, 100, 100_000]);
        let mut gathered = Gathered::default();
        assert!(gathered.take(&block, &block, Offset(2), 1_000, true).expect("batches"));
        let fetched = gathered.finish();
        assert_eq!(fetched.pieces, [block.slice(begins[2]..)]);
        assert!(is_part(&fetched.pieces[0], &block));
        assert_eq!((fetched.bytes, fetched.memory), (begins[3] - begins[2], block.len()));
    }

    #[test]
    fn what_lies_in_one_block_is_counted_once_and_each_of_several_blocks_is_looked_at() {
        let (first, begins) = batches_of(&[1_000, 1_000]);
        let (second, others) = batches_of(&[1_000, 1_000, 100_000]);
        let mut gathered = Gathered::default();
        let parts =
            [&begins[..], &others[..3]].map(|begins| begins.windows(2).map(|at| at[0]..at[1]).collect());
        let [of_first, of_second]: [Vec<std::ops::Range<usize>>; 2] = parts;
        for (block, parts) in [(&first, of_first), (&second, of_second)] {
            for part in parts {
                assert!(
                    gathered.take(block, &block.slice(part), Offset(0), 1 << 20, false).expect("batches")
                );
            }
        }
        let fetched = gathered.finish();
        assert_eq!(fetched.pieces.concat(), [&first[..], &second[..others[2]]].concat());
        assert_eq!(fetched.pieces.iter().filter(|piece| is_part(piece, &first)).count(), 2);
        assert!(!fetched.pieces.iter().any(|piece| is_part(piece, &second)));
        assert_eq!(fetched.memory, first.len() + others[2]);
        assert_eq!(fetched.bytes, fetched.pieces.iter().map(Bytes::len).sum::<usize>());
    }
}
