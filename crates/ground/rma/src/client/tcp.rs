//! Everything as frames over a socket: TCP, or a Unix socket whose server has no memory files to pass.

use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use tailwater_env::Env;

use crate::client::mux::{Mux, watch_until};
use crate::client::stream::Stream;
use crate::connection::{
    CallDone, Capabilities, Connection, ConnectionLost, OpError, ReadOp, ReadResults, RegionInfo, ScarOp,
    ScarResults, assert_fills,
};
use crate::frame::{self, Decoder, FrameKind, HelloReply};
use crate::limits::{BATCH_BYTES_MAX, BATCH_OPS_MAX, READ_BYTES_MAX};

/// A connection whose READs are answered by the far side's engine.
pub(crate) struct Tcp {
    pub(super) env: Env,
    pub(super) mux: Mux,
    pub(super) regions: Vec<RegionInfo>,
    scar: bool,
}

impl Tcp {
    pub(crate) fn start(
        env: &Env,
        peer: String,
        stream: Stream,
        decoder: Decoder,
        reply: HelloReply,
    ) -> Self {
        Self::start_and_tell(env, peer, stream, decoder, reply, || {})
    }

    /// As [`Tcp::start`]; `on_lost` runs once when the connection is lost.
    pub(crate) fn start_and_tell(
        env: &Env,
        peer: String,
        stream: Stream,
        decoder: Decoder,
        reply: HelloReply,
        on_lost: impl FnOnce() + Send + 'static,
    ) -> Self {
        let mux = Mux::start(env, peer, stream, decoder, reply.doorbell, on_lost);
        Self { env: env.clone(), mux, regions: reply.regions, scar: reply.scar }
    }

    pub(super) async fn read_frames(&self, ops: &[ReadOp], mut out: &mut [u8]) -> ReadResults {
        let mut results = Vec::with_capacity(ops.len());
        // All frames go out before the first answer is waited for.
        let mut under_way = Vec::new();
        for batch in batches(ops) {
            let ops = &ops[batch.clone()];
            under_way.push((batch, self.mux.request(|out, id| frame::encode_read(out, id, ops)).await?));
        }
        for (batch, pending) in under_way {
            let ops = &ops[batch];
            let len = ops.iter().map(|op| op.len as usize).sum();
            let (part, rest) = out.split_at_mut(len);
            out = rest;
            let (header, body) = pending.answer(FrameKind::ReadReply).await?;
            frame::unpack_read(&header, &body, ops, part, &mut results)
                .map_err(|error| self.mux.refuse(&error))?;
        }
        Ok(results)
    }

    async fn scar_frames(&self, ops: &[ScarOp]) -> ScarResults {
        let mut results = Vec::with_capacity(ops.len());
        // What did not fit in one response is asked for again; each carries out its first at least.
        while results.len() < ops.len() {
            let rest = &ops[results.len()..];
            let batch = &rest[..rest.len().min(BATCH_OPS_MAX)];
            let pending = self.mux.request(|out, id| frame::encode_scar(out, id, batch)).await?;
            let (header, body) = pending.answer(FrameKind::ScarReply).await?;
            let replies =
                frame::unpack_scar(&header, &body, batch).map_err(|error| self.mux.refuse(&error))?;
            results.extend(replies.into_iter().map_while(|reply| reply));
        }
        Ok(results)
    }
}

/// `ops` in pieces that a frame may ask for.
fn batches(ops: &[ReadOp]) -> impl Iterator<Item = Range<usize>> + '_ {
    let mut start = 0;
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fits = ops[start..].iter().take(BATCH_OPS_MAX).take_while(|op| {
            // What is longer than a READ may be is refused by the far side, and brings nothing back.
            bytes += if op.len <= READ_BYTES_MAX { op.len as usize } else { 0 };
            bytes <= BATCH_BYTES_MAX
        });
        let count = fits.count();
        let batch = start..start + count;
        start += count;
        (count > 0).then_some(batch)
    })
}

impl Connection for Tcp {
    fn peer(&self) -> &str {
        self.mux.peer()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { memory: false, scar: self.scar }
    }

    fn regions(&self) -> Vec<RegionInfo> {
        self.regions.clone()
    }

    fn read<'a>(&'a self, ops: &'a [ReadOp], out: &'a mut [u8]) -> BoxFuture<'a, ReadResults> {
        assert_fills(ops, out);
        Box::pin(self.read_frames(ops, out))
    }

    fn scar<'a>(&'a self, ops: &'a [ScarOp]) -> BoxFuture<'a, ScarResults> {
        if self.scar {
            Box::pin(self.scar_frames(ops))
        } else {
            Box::pin(std::future::ready(Ok(vec![Err(OpError::Unsupported); ops.len()])))
        }
    }

    fn watch(&self, last_seen: u32, deadline: Duration) -> BoxFuture<'_, Result<u32, ConnectionLost>> {
        let moved = self.mux.doorbell_moved(last_seen);
        Box::pin(watch_until(&self.env, deadline, moved, || self.mux.doorbell()))
    }

    fn call(&self, method: u16, payload: Bytes) -> CallDone<'_> {
        Box::pin(async move { self.mux.call(method, &[payload]).await })
    }

    fn call_with_pieces(&self, method: u16, pieces: Vec<Bytes>) -> CallDone<'_> {
        Box::pin(async move { self.mux.call(method, &pieces).await })
    }

    fn lost(&self) -> Option<ConnectionLost> {
        self.mux.lost()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::RegionId;

    fn ops(lens: &[u32]) -> Vec<ReadOp> {
        lens.iter().map(|len| ReadOp { region: RegionId(0), generation: 0, offset: 0, len: *len }).collect()
    }

    #[test]
    fn batches_cover_all_operations_in_order_within_the_limits() {
        let half = BATCH_BYTES_MAX as u32 / 4;
        let cases =
            [vec![], vec![0], vec![half; 9], vec![1; 3 * BATCH_OPS_MAX + 1], vec![u32::MAX, half, u32::MAX]];
        for lens in cases {
            let ops = ops(&lens);
            let mut next = 0;
            for batch in batches(&ops) {
                assert_eq!(batch.start, next);
                assert!((1..=BATCH_OPS_MAX).contains(&batch.len()));
                let lens = ops[batch.clone()].iter().map(|op| op.len as usize);
                assert!(lens.filter(|len| *len <= READ_BYTES_MAX as usize).sum::<usize>() <= BATCH_BYTES_MAX);
                next = batch.end;
            }
            assert_eq!(next, ops.len());
        }
    }
}
