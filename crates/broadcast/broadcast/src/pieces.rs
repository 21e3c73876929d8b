//! What waits to be written to a connection: bytes that were put together, and between them long ones that stay where
//! they are.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf, Bytes, BytesMut};

use crate::message::Message;

/// See the module. As a [`Buf`] it is all of them, in order.
#[derive(Debug, Default)]
pub(crate) struct Pieces {
    /// Before `last`; none is empty.
    ready: VecDeque<Bytes>,
    ready_bytes: usize,
    last: BytesMut,
}

impl Pieces {
    /// Adds a message. What many are sent is not copied for each of them.
    pub(crate) fn add(&mut self, message: &Message) {
        // Where in `last` something belongs.
        let mut apart: Vec<(usize, Bytes)> = Vec::new();
        message.encode_apart(&mut self.last, &mut apart);
        let mut split = 0;
        for (at, bytes) in apart {
            self.ready_bytes += at - split + bytes.len();
            self.ready.push_back(self.last.split_to(at - split).freeze());
            self.ready.push_back(bytes);
            split = at;
        }
    }
}

impl Buf for Pieces {
    fn remaining(&self) -> usize {
        self.ready_bytes + self.last.len()
    }

    fn chunk(&self) -> &[u8] {
        self.ready.front().map_or(&self.last[..], |piece| piece)
    }

    fn chunks_vectored<'a>(&'a self, to: &mut [IoSlice<'a>]) -> usize {
        let last = Some(&self.last[..]).filter(|last| !last.is_empty());
        let pieces = self.ready.iter().map(|piece| &piece[..]).chain(last);
        to.iter_mut().zip(pieces).map(|(to, piece)| *to = IoSlice::new(piece)).count()
    }

    fn advance(&mut self, mut count: usize) {
        while let Some(piece) = self.ready.front_mut() {
            if count == 0 {
                return;
            }
            let taken = count.min(piece.len());
            piece.advance(taken);
            if piece.is_empty() {
                self.ready.pop_front();
            }
            self.ready_bytes -= taken;
            count -= taken;
        }
        self.last.advance(count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::APART_BYTES_MIN;
    use crate::{Batch, Content, Stream, Writer, region};

    fn batch(bytes: usize) -> Batch {
        let mut writer = Writer::new(0);
        let payload = Bytes::from(vec![7; bytes]);
        writer.publish(&Content { payload, ..Content::default() }, None).expect("within the limits");
        writer.finish(0)
    }

    #[test]
    fn messages_with_short_and_long_events_are_the_same_bytes_and_the_long_ones_stay_where_they_are() {
        let stream = Stream::parse("eu/prices").expect("a name");
        let long = batch(APART_BYTES_MIN);
        let batches = vec![batch(3), long.clone(), batch(2 * APART_BYTES_MIN), batch(0)];
        let events = region::Message::Events {
            stream: stream.clone(),
            lineage: 1,
            after: 0,
            held: 0,
            count: 9,
            hops: 2,
            stands: true,
            batches,
        };
        let messages = [
            Message::Bye,
            Message::Region(events),
            Message::Token { epoch: 4 },
            Message::Events { stream, lineage: 1, batch: long.clone() },
        ];
        let (mut pieces, mut whole) = (Pieces::default(), BytesMut::new());
        for message in &messages {
            pieces.add(message);
            message.encode(&mut whole);
        }
        assert_eq!(pieces.remaining(), whole.len());
        let is_there = |piece: &Bytes| piece.as_ptr() == long.bytes.as_ptr();
        assert_eq!(pieces.ready.iter().filter(|piece| is_there(piece)).count(), 2, "not copied");
        // However much of it leaves at once.
        let mut written = Vec::new();
        for step in (1..).map(|step| step * 997 % 5_000 + 1) {
            let mut slices = [IoSlice::new(&[]); 3];
            let count = pieces.chunks_vectored(&mut slices);
            if count == 0 {
                break;
            }
            assert_eq!(&slices[0][..], pieces.chunk());
            let seen: Vec<u8> = slices[..count].iter().flat_map(|slice| slice.to_vec()).collect();
            let left = seen.len().min(step);
            written.extend_from_slice(&seen[..left]);
            pieces.advance(left);
        }
        assert!(!pieces.has_remaining());
        assert_eq!(written, whole);
    }
}
