//! What a connection has read and not begun yet.
//!
//! What holds: memory is bounded by what is in it, and nobody else keeps any of it. A frame that is taken out keeps
//! itself, and at most as much again: a small one is copied, a large one goes with the memory into which it came.

use bytes::buf::Limit;
use bytes::{BufMut, Bytes};

use super::SMALL_FRAME_BYTES_MAX;

/// The four bytes in front of a frame that say its length.
const PREFIX_BYTES: usize = 4;

#[derive(Debug, Default)]
pub(super) struct Buffer {
    bytes: Vec<u8>,
    /// What is before it was taken out.
    begin: usize,
}

impl Buffer {
    /// What came, in its order.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[self.begin..]
    }

    pub fn len(&self) -> usize {
        self.bytes.len() - self.begin
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of memory.
    #[cfg(test)]
    pub fn memory(&self) -> usize {
        self.bytes.capacity()
    }

    /// Where the next bytes go: as many as fit into its memory. If that has room for fewer than `least` it grows, until
    /// there is room for `count`: were both the same, it would grow, and be copied, for nearly every read.
    pub fn space(&mut self, least: usize, count: usize) -> Limit<&mut Vec<u8>> {
        if self.bytes.capacity() - self.bytes.len() < least {
            self.bytes.drain(..self.begin);
            self.begin = 0;
            self.bytes.reserve_exact(count);
        }
        let spare = self.bytes.capacity() - self.bytes.len();
        (&mut self.bytes).limit(spare)
    }

    /// Takes out the frame at the front, all of which is there: `len` bytes behind those that say so.
    pub fn take(&mut self, len: usize) -> Bytes {
        let (from, to) = (self.begin + PREFIX_BYTES, self.begin + PREFIX_BYTES + len);
        if len <= SMALL_FRAME_BYTES_MAX || len < self.bytes.capacity() / 2 {
            let frame = Bytes::copy_from_slice(&self.bytes[from..to]);
            self.begin = to;
            if self.is_empty() {
                self.begin = 0;
                self.bytes.clear();
                // Whoever says nothing more keeps little.
                self.bytes.shrink_to(SMALL_FRAME_BYTES_MAX);
            }
            return frame;
        }
        let rest = self.bytes.split_off(to);
        self.begin = 0;
        Bytes::from(std::mem::replace(&mut self.bytes, rest)).slice(from..)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(number: u8, len: usize) -> Vec<u8> {
        [&(len as u32).to_be_bytes()[..], &vec![number; len]].concat()
    }

    /// Puts it in as it comes: so many bytes at a time.
    fn put(buffer: &mut Buffer, mut bytes: &[u8], at_once: usize) {
        while !bytes.is_empty() {
            let count = at_once.min(bytes.len());
            let mut space = buffer.space(at_once, at_once);
            assert!(space.remaining_mut() >= at_once);
            space.put_slice(&bytes[..count]);
            bytes = &bytes[count..];
        }
    }

    #[test]
    fn frames_come_out_as_they_went_in_whatever_their_sizes() {
        let lens = [8, 70_000, 9, SMALL_FRAME_BYTES_MAX, SMALL_FRAME_BYTES_MAX + 1, 1 << 20, 10, 300_000, 11];
        for at_once in [1_000, 16 << 10, 64 << 10] {
            let mut buffer = Buffer::default();
            let mut taken = 0;
            for (number, len) in (0_u8..).zip(lens) {
                put(&mut buffer, &frame(number, len), at_once);
                // Some are there before those in front of them are taken out.
                while buffer.len() > 200_000 {
                    assert_eq!(buffer.take(lens[taken]), vec![taken as u8; lens[taken]]);
                    taken += 1;
                }
            }
            for (number, len) in (0_u8..).zip(lens).skip(taken) {
                assert_eq!(buffer.bytes()[..4], (len as u32).to_be_bytes());
                assert_eq!(buffer.take(len), vec![number; len]);
            }
            assert!(buffer.is_empty());
        }
    }

    #[test]
    fn a_large_frame_takes_its_memory_with_it_and_little_is_left_of_many_small_ones() {
        let mut buffer = Buffer::default();
        put(&mut buffer, &frame(1, 8 << 20), 16 << 10);
        assert!(buffer.memory() <= (8 << 20) + (32 << 10), "{}", buffer.memory());
        put(&mut buffer, &frame(2, 10), 16 << 10);
        let large = buffer.take(8 << 20);
        assert!(buffer.memory() <= 32 << 10, "{}", buffer.memory());
        assert_eq!((large.len(), buffer.take(10)), (8 << 20, Bytes::from(vec![2; 10])));
        for number in 0..100 {
            put(&mut buffer, &frame(number, 2_000), 16 << 10);
        }
        assert!(buffer.memory() <= 250 << 10, "{}", buffer.memory());
        for _ in 0..100 {
            buffer.take(2_000);
        }
        assert!(buffer.memory() <= SMALL_FRAME_BYTES_MAX, "{}", buffer.memory());
    }

    #[test]
    fn a_buffer_that_never_runs_empty_takes_no_more_memory_than_what_was_in_it_at_once() {
        let mut buffer = Buffer::default();
        put(&mut buffer, &frame(0, 50_000), 1_000);
        for number in 1..1_000 {
            put(&mut buffer, &frame((number % 250) as u8, 50_000), 1_000);
            buffer.take(50_000);
            assert!(buffer.memory() <= 2 * 50_004 + 1_000, "{}", buffer.memory());
        }
    }

    #[test]
    fn what_is_kept_of_a_frame_is_no_more_than_it_and_as_much_again() {
        let mut buffer = Buffer::default();
        // Behind others, in memory that was made for all of them.
        let len = SMALL_FRAME_BYTES_MAX + 1;
        let frames = [frame(1, 60_000), frame(2, 60_000), frame(3, len)].concat();
        put(&mut buffer, &frames, frames.len());
        let memory = buffer.memory();
        assert!(memory > 2 * len);
        for small in [60_000, 60_000] {
            buffer.take(small);
        }
        let last = buffer.bytes().as_ptr_range();
        assert!(!last.contains(&buffer.take(len).as_ptr()), "copied");
    }
}
