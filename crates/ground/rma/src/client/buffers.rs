//! Memory that answers are received into, used again once nobody borrows from it.
//!
//! One pool serves the whole process: what is received is checked and read within moments, so the memory that
//! was used last is still in the core's cache; and an idle connection holds none. Memory that the allocator has to
//! ask the kernel for costs more than the bytes that come into it: a fault for each page, several microseconds on a
//! virtual machine.
//!
//! The pool is bounded in count ([`KEPT_MAX`]) and in size; what a kept buffer's borrowers still hold is theirs.

use bytes::BytesMut;
use parking_lot::Mutex;

/// Bytes of the shortest buffer. They double from one size to the next.
pub(super) const SHORT_BYTES: usize = 64 << 10;

/// Bytes of the longest buffer that is kept: an answer to a SCAR of as many chunks as a reader asks for at once (2
/// MiB), with what comes around them.
const KEPT_BYTES_MAX: usize = (2 << 20) + (256 << 10);

/// Buffers kept: as many as there are connections in a process, of consumers that each have their own, which get long
/// answers at the same time.
const KEPT_MAX: usize = 64;

/// The process's.
pub(super) static RECEIVE: Pool = Pool::new();

/// A pool of buffers.
pub(super) struct Pool {
    /// Handles on buffers, from which what came was split off; the last to be used last.
    kept: Mutex<Vec<BytesMut>>,
}

impl Pool {
    const fn new() -> Self {
        Self { kept: Mutex::new(Vec::new()) }
    }

    /// An empty buffer of at least `bytes`, and less than twice as many if that is not little.
    pub(super) fn take(&self, bytes: usize) -> BytesMut {
        if bytes > KEPT_BYTES_MAX {
            return BytesMut::with_capacity(bytes);
        }
        let size = bytes.next_power_of_two().clamp(SHORT_BYTES, KEPT_BYTES_MAX);
        let mut kept = self.kept.lock();
        let fits = |buffer: &mut BytesMut| buffer.try_reclaim(size) && buffer.capacity() < 2 * size;
        let place = (0..kept.len()).rev().find(|place| fits(&mut kept[*place]));
        place.map_or_else(|| BytesMut::with_capacity(size), |place| kept.remove(place))
    }

    /// Gives back what is left of a buffer.
    pub(super) fn keep(&self, mut rest: BytesMut) {
        rest.clear();
        let mut kept = self.kept.lock();
        if kept.len() == KEPT_MAX {
            kept.remove(0);
        }
        kept.push(rest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_lent_again_when_nobody_borrows_from_it_and_not_before() {
        let pool = Pool::new();
        let mut buffer = pool.take(1);
        let memory = buffer.as_ptr();
        buffer.extend_from_slice(b"answer");
        let answer = buffer.split_to(6).freeze();
        pool.keep(buffer);
        assert_ne!(pool.take(SHORT_BYTES).as_ptr(), memory);
        assert_eq!(&answer[..], b"answer");
        drop(answer);
        assert_eq!(pool.take(SHORT_BYTES).as_ptr(), memory);
    }

    #[test]
    fn a_buffer_is_as_long_as_asked_for_and_only_so_many_are_kept() {
        let pool = Pool::new();
        let buffers: Vec<_> = (0..2 * KEPT_MAX).map(|i| pool.take(i * SHORT_BYTES / 4)).collect();
        for (i, buffer) in buffers.into_iter().enumerate() {
            assert!(buffer.is_empty() && buffer.capacity() >= SHORT_BYTES.max(i * SHORT_BYTES / 4));
            pool.keep(buffer);
        }
        assert_eq!(pool.kept.lock().len(), KEPT_MAX);
    }

    #[test]
    fn what_a_reader_asks_for_at_once_comes_into_memory_that_is_kept_and_more_does_not() {
        let pool = Pool::new();
        let long = pool.take((2 << 20) + (100 << 10));
        assert_eq!(long.capacity(), KEPT_BYTES_MAX);
        let memory = long.as_ptr();
        pool.keep(long);
        assert_ne!(pool.take(KEPT_BYTES_MAX + 1).as_ptr(), memory);
        assert_eq!(pool.take((2 << 20) + 1).as_ptr(), memory);
    }

    #[test]
    fn what_is_short_is_not_lent_memory_of_what_was_long() {
        let pool = Pool::new();
        pool.keep(pool.take(8 * SHORT_BYTES));
        assert_eq!(pool.take(1).capacity(), SHORT_BYTES);
        assert_eq!(pool.kept.lock().len(), 1);
        assert!(pool.take(5 * SHORT_BYTES).capacity() >= 8 * SHORT_BYTES);
        assert_eq!(pool.kept.lock().len(), 0, "it is lent");
    }
}
