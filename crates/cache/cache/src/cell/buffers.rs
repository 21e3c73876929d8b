//! Buffers that items are read into, and that the values handed out borrow from.
//!
//! A value is a slice of the buffer that its item was read into. When the last slice of a buffer is dropped, the
//! buffer goes back to its pool, on whatever thread that happens. The pool is bounded in count, and in the size
//! of what it keeps; a value that is kept keeps its whole buffer (see
//! [`DATA_BYTES_PER_READ`](crate::limits::DATA_BYTES_PER_READ)).

use std::sync::Arc;

use parking_lot::Mutex;

use crate::limits::{BUFFER_KEPT_BYTES_MAX, BUFFERS_KEPT_MAX};

/// New buffers are a multiple of this long, so that they fit other requests as well.
const ROUND_BYTES: usize = 4096;

/// A pool of buffers.
#[derive(Clone, Default)]
pub(super) struct BufferPool {
    idle: Arc<Mutex<Vec<Vec<u8>>>>,
}

/// A buffer on loan.
pub(super) struct PooledBuffer {
    bytes: Vec<u8>,
    pool: BufferPool,
}

impl BufferPool {
    /// A buffer of at least `len` bytes, and at most twice that and a page, with anything in it.
    pub(super) fn take(&self, len: usize) -> PooledBuffer {
        let fits = |bytes: &Vec<u8>| bytes.len() >= len && bytes.len() <= 2 * len + ROUND_BYTES;
        let found = {
            let mut idle = self.idle.lock();
            idle.iter().rposition(fits).map(|index| idle.swap_remove(index))
        };
        let bytes = found.unwrap_or_else(|| vec![0; len.next_multiple_of(ROUND_BYTES)]);
        PooledBuffer { bytes, pool: self.clone() }
    }
}

impl AsRef<[u8]> for PooledBuffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl AsMut<[u8]> for PooledBuffer {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl Drop for PooledBuffer {
    fn drop(&mut self) {
        if self.bytes.len() > BUFFER_KEPT_BYTES_MAX {
            return;
        }
        let bytes = std::mem::take(&mut self.bytes);
        let mut idle = self.pool.idle.lock();
        if idle.len() < BUFFERS_KEPT_MAX {
            idle.push(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    #[test]
    fn a_buffer_returns_when_the_last_value_in_it_is_dropped() {
        let buffers = BufferPool::default();
        let whole = Bytes::from_owner(buffers.take(5000));
        let (first, second) = (whole.slice(..10), whole.slice(10..20));
        drop(whole);
        drop(first);
        assert_eq!(buffers.idle.lock().len(), 0);
        drop(second);
        assert_eq!(buffers.idle.lock().len(), 1);
        assert_eq!(buffers.take(4100).as_ref().len(), 8192);
        assert_eq!(buffers.idle.lock().len(), 1, "and again");
    }

    #[test]
    fn a_pool_keeps_neither_many_nor_large_buffers_and_does_not_lend_ones_far_too_large() {
        let buffers = BufferPool::default();
        let taken: Vec<PooledBuffer> = (0..2 * BUFFERS_KEPT_MAX).map(|_| buffers.take(100_000)).collect();
        drop(taken);
        assert_eq!(buffers.idle.lock().len(), BUFFERS_KEPT_MAX);
        assert_eq!(buffers.take(10).as_ref().len(), 4096);
        let buffers = BufferPool::default();
        drop(buffers.take(BUFFER_KEPT_BYTES_MAX + 1));
        assert!(buffers.idle.lock().is_empty());
    }
}
