//! A batch in messages and files (`wire.rs`).

use bytes::BufMut;

use super::{Batch, BatchState, code_of, put_collect, take_collect};
use crate::event::Collect;
use crate::varint;
use crate::wire::{BadMessage, PieceWriter, Reader, WirePiece};

/// In a batch's count: the u64 up to which some were removed comes behind it. Batches have far fewer events.
const HAS_REMOVED: u32 = 1 << 31;

/// What is read is [checked](Batch::check).
impl WirePiece for Batch {
    const SHORTEST: usize = 8 + 8 + 4 + BatchState::SHORTEST + 4;

    fn put(&self, out: &mut PieceWriter<'_>) {
        self.after.put(out);
        self.last.put(out);
        match self.removed {
            0 => self.count.put(out),
            removed => (self.count | HAS_REMOVED, removed).put(out),
        }
        self.state.put(out);
        (self.bytes.len() as u32).put(out);
        out.put_events(&self.bytes);
    }

    fn take(from: &mut Reader) -> Result<Self, BadMessage> {
        let (after, last, count) = (from.u64()?, from.u64()?, from.u32()?);
        let removed = if count & HAS_REMOVED != 0 { from.u64()? } else { 0 };
        let count = count & !HAS_REMOVED;
        let state = BatchState::take(from)?;
        let len = from.u32()? as usize;
        let batch = Batch { after, last, removed, count, state, bytes: from.bytes(len)? };
        batch.check().map_err(|error| BadMessage(error.to_string()))?;
        Ok(batch)
    }

    fn size(&self) -> usize {
        let removed = if self.removed == 0 { 0 } else { 8 };
        8 + 8 + 4 + removed + self.state.size() + 4 + self.bytes.len()
    }
}

/// The time, then a collection's code (0 for none) and its argument as in an event.
impl WirePiece for BatchState {
    const SHORTEST: usize = 8 + 1;

    fn put(&self, out: &mut PieceWriter<'_>) {
        self.time_ms.put(out);
        out.bytes.put_u8(self.collect.as_ref().map_or(0, code_of));
        if let Some(collect) = &self.collect {
            put_collect(out.bytes, collect);
        }
    }

    fn take(from: &mut Reader) -> Result<Self, BadMessage> {
        let (time_ms, code) = (from.u64()?, from.u8()?);
        let collect = if code == 0 {
            None
        } else {
            let mut rest = from.rest();
            let collect = take_collect(code, &mut rest).map_err(|error| BadMessage(error.to_string()))?;
            let passed = from.rest().len() - rest.len();
            from.bytes(passed)?;
            Some(collect)
        };
        Ok(Self { time_ms, collect })
    }

    fn size(&self) -> usize {
        let argument = match &self.collect {
            None | Some(Collect::SameKey) => 0,
            Some(Collect::KeepLast(n) | Collect::Before(n) | Collect::OlderThan(n)) => varint::size(*n),
            Some(Collect::Matching(predicate)) => varint::size(predicate.len() as u64) + predicate.len(),
        };
        8 + 1 + argument
    }
}
