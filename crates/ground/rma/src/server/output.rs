//! What one connection is owed, in order: bytes, and stretches of regions that go out from where they lie.
//!
//! A stretch is a promise of so many bytes, not of what they are: the kernel takes them out of the region's pages
//! when it sends them, or later still. Readers know that what they read may be torn, whichever way it comes.
//! It saves two copies of every byte; below [`STRETCH_BYTES_MIN`] the copies cost less than the system call.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::region::Region;
use crate::server::pipe;

/// The shortest stretch that is not copied. Measured on one stream over the loopback, with a `sendfile` for each, in
/// seconds of the sender's CPU for each GB: 4 KiB 1.2 copied and 1.5 not, 16 KiB 0.51 and 0.33, 64 KiB 0.30 and 0.16,
/// 256 KiB 0.24 and 0.10.
pub(crate) const STRETCH_BYTES_MIN: u32 = 16 << 10;

/// Bytes of a region, to be sent from where they lie.
#[derive(Debug)]
pub(crate) struct Stretch {
    region: Arc<Region>,
    offset: u64,
    len: usize,
}

#[derive(Debug)]
enum OutputPiece {
    Bytes(Vec<u8>),
    Stretch(Stretch),
}

/// What is to be sent next.
#[derive(Debug)]
pub(crate) enum NextOutput<'a> {
    /// These bytes, and what is behind them.
    Bytes(&'a [u8]),
    /// These bytes, behind which there is nothing.
    LastBytes(&'a [u8]),
    Stretch(&'a Stretch),
}

/// Unsent answers.
#[derive(Debug, Default)]
pub(crate) struct OutputQueue {
    /// What goes before `tail`.
    ahead: VecDeque<OutputPiece>,
    tail: Vec<u8>,
    /// How many of the first piece's bytes went, if it is one of bytes.
    sent: usize,
    /// Bytes taken out to be sent, before all others, that are not reported sent.
    taken: usize,
    /// Unsent bytes of `ahead`, stretches included.
    ahead_bytes: usize,
}

impl OutputQueue {
    /// Where further bytes are appended.
    pub(crate) fn bytes(&mut self) -> &mut Vec<u8> {
        &mut self.tail
    }

    /// Appends `len` bytes of `region`, which has them, from `offset` on: copied now, or later from where they lie.
    pub(crate) fn region(&mut self, region: &Arc<Region>, offset: u64, len: u32) {
        if len < STRETCH_BYTES_MIN || region.file().is_none() || !pipe::works() {
            return region.append_to(offset, len, &mut self.tail);
        }
        if !self.tail.is_empty() {
            // A copy of what is little: the tail's own memory is an engine's, and large.
            let bytes =
                self.tail[if self.ahead.is_empty() { std::mem::take(&mut self.sent) } else { 0 }..].to_vec();
            self.tail.clear();
            if !bytes.is_empty() {
                self.ahead_bytes += bytes.len();
                self.ahead.push_back(OutputPiece::Bytes(bytes));
            }
        }
        let len = len as usize;
        self.ahead_bytes += len;
        self.ahead.push_back(OutputPiece::Stretch(Stretch { region: Arc::clone(region), offset, len }));
    }

    /// What is to be sent next, but for what was taken; `None` if there is nothing.
    pub(crate) fn next(&self) -> Option<NextOutput<'_>> {
        let last = || (self.sent < self.tail.len()).then(|| NextOutput::LastBytes(&self.tail[self.sent..]));
        self.ahead().next().or_else(last)
    }

    /// Bytes that the peer has not taken.
    pub(crate) fn pending(&self) -> usize {
        let tail_sent = if self.ahead.is_empty() { self.sent } else { 0 };
        self.taken + self.ahead_bytes + self.tail.len() - tail_sent
    }

    /// Bytes of memory held.
    pub(crate) fn memory(&self) -> usize {
        let held = |piece: &OutputPiece| match piece {
            OutputPiece::Bytes(bytes) => bytes.capacity(),
            OutputPiece::Stretch(_) => size_of::<OutputPiece>(),
        };
        self.taken + self.tail.capacity() + self.ahead.iter().map(held).sum::<usize>()
    }

    /// What goes before the last bytes, beginning with what is to be sent next.
    pub(crate) fn ahead(&self) -> impl Iterator<Item = NextOutput<'_>> {
        let mut sent = self.sent;
        self.ahead.iter().map(move |piece| match piece {
            OutputPiece::Bytes(bytes) => NextOutput::Bytes(&bytes[std::mem::take(&mut sent)..]),
            OutputPiece::Stretch(stretch) => NextOutput::Stretch(stretch),
        })
    }

    /// The next `count` bytes went: of what was taken or, if nothing was, of all that is there.
    ///
    /// # Panics
    /// If those are fewer.
    pub(crate) fn sent(&mut self, count: usize) {
        if self.taken > 0 {
            self.taken = self.taken.checked_sub(count).expect("no more is sent than was taken");
            return;
        }
        let mut left = count;
        while left > 0 {
            let (part, is_over) = match self.ahead.front_mut() {
                Some(OutputPiece::Bytes(bytes)) => {
                    let part = left.min(bytes.len() - self.sent);
                    self.sent += part;
                    (part, self.sent == bytes.len())
                }
                Some(OutputPiece::Stretch(stretch)) => {
                    let part = left.min(stretch.len);
                    stretch.len -= part;
                    stretch.offset += part as u64;
                    (part, stretch.len == 0)
                }
                None => {
                    self.sent += left;
                    assert!(self.sent <= self.tail.len(), "no more is sent than there is");
                    if self.sent == self.tail.len() {
                        self.sent = 0;
                        self.tail.clear();
                    }
                    return;
                }
            };
            left -= part;
            self.ahead_bytes -= part;
            if is_over {
                self.sent = 0;
                self.ahead.pop_front();
            }
        }
    }

    /// Takes out what [`OutputQueue::next`] answers, a stretch as a copy, to be sent as a whole before anything else is
    /// taken.
    pub(crate) fn take(&mut self) -> Option<Vec<u8>> {
        assert_eq!(self.taken, 0, "one at a time");
        let ahead = self.ahead.pop_front();
        let is_ahead = ahead.is_some();
        let mut bytes = match ahead {
            Some(OutputPiece::Bytes(bytes)) => bytes,
            Some(OutputPiece::Stretch(Stretch { region, offset, len })) => {
                let mut bytes = Vec::with_capacity(len);
                region.append_to(offset, len as u32, &mut bytes);
                bytes
            }
            None if self.tail.is_empty() => return None,
            None => std::mem::take(&mut self.tail),
        };
        bytes.drain(..std::mem::take(&mut self.sent));
        self.taken = bytes.len();
        if is_ahead {
            self.ahead_bytes -= bytes.len();
        }
        Some(bytes)
    }

    /// Takes out the next bytes, `bytes_max` at most, and appends them to `out`, stretches as copies; to be sent as a
    /// whole before anything else is taken.
    pub(crate) fn take_into(&mut self, out: &mut Vec<u8>, bytes_max: usize) {
        assert_eq!(self.taken, 0, "one at a time");
        let mut left = bytes_max;
        while left > 0 {
            let part = match self.next() {
                None => break,
                Some(NextOutput::Bytes(bytes) | NextOutput::LastBytes(bytes)) => {
                    let part = bytes.len().min(left);
                    out.extend_from_slice(&bytes[..part]);
                    part
                }
                Some(NextOutput::Stretch(Stretch { region, offset, len })) => {
                    let part = (*len).min(left);
                    region.append_to(*offset, part as u32, out);
                    part
                }
            };
            self.sent(part);
            left -= part;
        }
        self.taken = bytes_max - left;
    }

    /// Lends a buffer for further bytes, if there is none: an engine has one large buffer, and a connection has one
    /// only while it is behind.
    pub(crate) fn lend(&mut self, spare: &mut Vec<u8>) {
        if self.tail.capacity() == 0 {
            std::mem::swap(&mut self.tail, spare);
        }
    }

    /// Takes the buffer back, if it is of no use any more and not longer than `bytes_max`.
    pub(crate) fn give_back(&mut self, spare: &mut Vec<u8>, bytes_max: usize) {
        if self.tail.is_empty() {
            let mine = std::mem::take(&mut self.tail);
            if spare.capacity() == 0 && mine.capacity() <= bytes_max {
                *spare = mine;
            }
        }
    }
}

impl Stretch {
    /// How many bytes it is.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Puts the pages that it lies in into a pipe, as far as there is room; how many bytes.
    ///
    /// # Errors
    /// Of kind `WouldBlock` if there is none.
    pub(crate) fn put_into(&self, pipe: BorrowedFd<'_>) -> io::Result<usize> {
        self.region.put_into(self.offset, self.len, pipe)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::region::Backing;

    const LONG: u32 = 3 * STRETCH_BYTES_MIN;

    fn region(backing: Backing) -> Arc<Region> {
        let region = Region::create("output", 1 << 20, 0, backing).expect("there is memory");
        let bytes: Vec<u8> = (0..region.len()).map(|place| (place % 251) as u8).collect();
        region.write(0, &bytes);
        Arc::new(region)
    }

    /// Everything, sent in pieces of at most `step` bytes through `sent`, or taken where `taken` says so.
    fn drain(output: &mut OutputQueue, step: usize, taken: impl Fn(usize) -> bool) -> Vec<u8> {
        let mut all = Vec::new();
        for turn in 0.. {
            let pending = output.pending();
            let bytes = if taken(turn) {
                let Some(bytes) = output.take() else { break };
                assert_eq!(output.pending(), pending, "until it is reported");
                bytes
            } else {
                match output.next() {
                    None => break,
                    Some(NextOutput::Bytes(bytes) | NextOutput::LastBytes(bytes)) => {
                        bytes[..step.min(bytes.len())].to_vec()
                    }
                    Some(NextOutput::Stretch(Stretch { region, offset, len })) => {
                        let mut bytes = Vec::new();
                        region.append_to(*offset, step.min(*len) as u32, &mut bytes);
                        bytes
                    }
                }
            };
            output.sent(bytes.len());
            assert_eq!(output.pending(), pending - bytes.len());
            all.extend(bytes);
        }
        assert_eq!(output.pending(), 0);
        all
    }

    #[test]
    fn bytes_and_stretches_go_in_the_order_in_which_they_were_added_however_they_are_sent() {
        let mut expected = Vec::new();
        for (round, step) in [usize::MAX, 1_000, 4_096].into_iter().enumerate() {
            for taken in [|_| false, |_| true, |turn: usize| turn.is_multiple_of(3)] {
                for backing in [Backing::Shared, Backing::Private] {
                    let region = region(backing);
                    let mut output = OutputQueue::default();
                    output.bytes().extend_from_slice(b"first");
                    output.sent(2);
                    output.region(&region, 7, LONG);
                    output.region(&region, 1_000, LONG + 1);
                    output.bytes().extend_from_slice(b"between");
                    output.region(&region, 3, 10);
                    output.region(&region, 0, STRETCH_BYTES_MIN);
                    output.bytes().extend_from_slice(b"last");
                    let all = drain(&mut output, step, taken);
                    if expected.is_empty() {
                        expected = all.clone();
                    }
                    assert!(all == expected, "{backing:?}, round {round}");
                }
            }
        }
        let stretches = 2 * LONG + 1 + STRETCH_BYTES_MIN + 10;
        assert_eq!(expected.len(), "rstbetweenlast".len() + stretches as usize);
        assert!(expected.starts_with(b"rst\x07\x08") && expected.ends_with(b"last"));
    }

    #[test]
    fn a_stretch_takes_no_memory_of_its_own() {
        let region = region(Backing::Shared);
        let mut output = OutputQueue::default();
        output.bytes().extend_from_slice(b"header");
        for _ in 0..10 {
            output.region(&region, 0, 1 << 19);
        }
        assert!(output.pending() > 5 << 20 && output.memory() < 4096, "{}", output.memory());
    }
}
