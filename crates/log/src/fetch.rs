//! Record batches from an offset on, as two-sided readers ask for them: whole batches, the first of which holds the
//! record at that offset, as bytes that go out as they are.
//!
//! At the tail they are the newest entries' own memory (`hot.rs`). Behind it they come from the store, in pieces of
//! about what was asked for; how many do so at the same time is bounded, so that those who catch up, however many they
//! are, neither fill the memory nor keep the disk from the journal.

use bytes::Bytes;
use tailwater_format::{Offset, ShardId, batches};

use crate::error::ReadError;
use crate::locate::{Locate, end_of_segment};
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
}

impl Fetched {
    /// Takes the whole batches of `body` from the one that holds `offset` on that fit into `bytes_max`; the first one
    /// in any case if nothing was taken yet and `at_least_one`. Whether all were taken.
    fn take(
        &mut self,
        body: &Bytes,
        offset: Offset,
        bytes_max: usize,
        at_least_one: bool,
    ) -> Result<bool, ReadError> {
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
            let first = at_least_one && self.bytes == 0 && end == 0;
            if !first && self.bytes + (at - begin_at) > bytes_max {
                self.push(body, begin_at, end);
                return Ok(false);
            }
            end = at;
        }
        if let Some(begin) = begin {
            self.push(body, begin, end);
        }
        Ok(true)
    }

    fn push(&mut self, body: &Bytes, begin: usize, end: usize) {
        if end > begin {
            self.bytes += end - begin;
            self.pieces.push(body.slice(begin..end));
        }
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
        let _permit = self.inner.catching_up.acquire().await;
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
        let _permit = self.inner.single.acquire().await;
        self.fetch_durable(shard, offset, 1, true).await
    }

    async fn fetch_durable(
        &self,
        shard: ShardId,
        offset: Offset,
        bytes_max: usize,
        at_least_one: bool,
    ) -> Result<Fetched, ReadError> {
        let mut fetched = Fetched::default();
        let location = self.locate(shard, Locate::Offset(offset)).await?;
        let view = self.view(shard)?;
        let Some((id, end)) = end_of_segment(&view, location.segment) else { return Ok(fetched) };
        let mut scan = Scan::new(&self.inner.store, id, location.position, end);
        while fetched.bytes < bytes_max || (at_least_one && fetched.bytes == 0) {
            let Some(scanned) = scan.next().await? else { break };
            if scanned.header.is_control() {
                continue;
            }
            let body = scan.batches(&scanned).await?;
            if !fetched.take(&body, offset, bytes_max, at_least_one)? {
                break;
            }
        }
        Ok(fetched)
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
    let mut fetched = Fetched::default();
    for body in &bodies {
        if !fetched.take(body, offset, bytes_max, at_least_one)? {
            break;
        }
    }
    Ok(Some(fetched))
}
