//! For tests, of other crates: a connection that stands in front of another one, and does some things otherwise.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;

use crate::connection::{
    CallDone, Capabilities, Connection, ConnectionLost, OpError, ReadOp, ReadResults, RegionInfo, ScarOp,
    ScarReply, ScarResults,
};
use crate::service::Service;

/// What a [`Decorated`] connection does otherwise than the one behind it: nothing, unless a method says so.
pub trait ConnectionHooks: Send + Sync + 'static {
    /// What the transport can do.
    fn capabilities(&self, inner: &dyn Connection) -> Capabilities {
        inner.capabilities()
    }

    /// Comes before each READ, SCAR and CALL, and behind each WATCH; an error is the operation's.
    fn pass(&self) -> BoxFuture<'_, Result<(), ConnectionLost>> {
        Box::pin(std::future::ready(self.lost().map_or(Ok(()), Err)))
    }

    /// Comes behind each READ, with what was read.
    fn after_read(&self, _ops: &[ReadOp], _out: &mut [u8]) {}

    /// A SCAR.
    fn scar<'a>(&'a self, inner: &'a dyn Connection, ops: &'a [ScarOp]) -> BoxFuture<'a, ScarResults> {
        inner.scar(ops)
    }

    /// A CALL.
    fn call<'a>(&'a self, inner: &'a dyn Connection, method: u16, payload: Bytes) -> CallDone<'a> {
        inner.call(method, payload)
    }

    /// Why the connection is gone, if that is for another reason than the one behind it has.
    fn lost(&self) -> Option<ConnectionLost> {
        None
    }
}

/// A connection with hooks in front of it.
pub struct Decorated<H> {
    /// The connection that operations go on to.
    pub inner: Arc<dyn Connection>,
    /// What is otherwise.
    pub hooks: H,
}

impl<H: ConnectionHooks> Connection for Decorated<H> {
    fn peer(&self) -> &str {
        self.inner.peer()
    }

    fn capabilities(&self) -> Capabilities {
        self.hooks.capabilities(&*self.inner)
    }

    fn regions(&self) -> Vec<RegionInfo> {
        self.inner.regions()
    }

    fn read<'a>(&'a self, ops: &'a [ReadOp], out: &'a mut [u8]) -> BoxFuture<'a, ReadResults> {
        Box::pin(async move {
            self.hooks.pass().await?;
            let results = self.inner.read(ops, out).await?;
            self.hooks.after_read(ops, out);
            Ok(results)
        })
    }

    fn scar<'a>(&'a self, ops: &'a [ScarOp]) -> BoxFuture<'a, ScarResults> {
        Box::pin(async move {
            self.hooks.pass().await?;
            self.hooks.scar(&*self.inner, ops).await
        })
    }

    fn watch(&self, last_seen: u32, deadline: Duration) -> BoxFuture<'_, Result<u32, ConnectionLost>> {
        Box::pin(async move {
            let seen = self.inner.watch(last_seen, deadline).await;
            self.hooks.pass().await?;
            seen
        })
    }

    fn call(&self, method: u16, payload: Bytes) -> CallDone<'_> {
        Box::pin(async move {
            self.hooks.pass().await?;
            self.hooks.call(&*self.inner, method, payload).await
        })
    }

    fn lost(&self) -> Option<ConnectionLost> {
        self.hooks.lost().or_else(|| self.inner.lost())
    }
}

/// The connection to `peer` as a test has cut it, if it `is_cut`.
pub fn cut(peer: &str, is_cut: bool) -> Option<ConnectionLost> {
    is_cut.then(|| ConnectionLost { peer: peer.to_owned(), reason: "a test cut it".to_owned() })
}

/// What the far side of a socket answers to a batch of SCARs if it runs `service`. `damage` gets what an operation
/// found, but for what comes apart.
pub fn scar_of(service: &dyn Service, ops: &[ScarOp], damage: impl Fn(&mut [u8])) -> ScarResults {
    let regions = service.regions();
    let copy = |(place, offset, len): (usize, u64, u32)| {
        let mut bytes = vec![0; len as usize];
        regions[place].read(offset, &mut bytes);
        bytes
    };
    let reply = |op: &ScarOp| {
        let hit = service.scar(op).ok_or(OpError::OutOfBounds)?;
        let bucket = Bytes::from(copy(hit.bucket));
        let mut frame = hit.data.map(copy).unwrap_or_default();
        let apart = frame.len().min(op.apart as usize);
        damage(&mut frame[apart..]);
        let frame = Bytes::from(frame);
        Ok(ScarReply { bucket, head: frame.slice(..apart), data: frame.slice(apart..), frame })
    };
    Ok(ops.iter().map(reply).collect())
}
