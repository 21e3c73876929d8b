//! Reads of mapped regions: no round trip, nobody at the far side takes part.
//!
//! The regions came with HELLO over a Unix socket, which carries CALLs from then on. Its hang-up is how the
//! server's end becomes known: the mapping of a dead server's region looks perfectly alive. From then on every
//! read answers that the connection is lost, and the memory behind the mappings is given back at once, though
//! somebody may be in the middle of a copy (which then answers the same).

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use tailwater_env::Env;

use crate::client::mux::{Mux, watch_until};
use crate::client::stream::Stream;
use crate::client::waiter::{Bell, Registration};
use crate::connection::{
    CallDone, Capabilities, Connection, ConnectionLost, OpError, ReadOp, ReadResults, RegionInfo,
    assert_fills,
};
use crate::doorbell::DOORBELL_BYTES;
use crate::frame::{Decoder, HelloReply};
use crate::limits::READ_BYTES_MAX;
use crate::mapping::Mapping;

/// What a server handed over.
pub(crate) struct Maps {
    regions: Vec<(RegionInfo, Mapping)>,
    doorbell: Mapping,
}

impl Maps {
    /// Maps what came with HELLO.
    ///
    /// # Errors
    /// If there are not as many files as were announced, or one is not what it was announced as.
    pub(crate) fn of(reply: &HelloReply, files: Vec<OwnedFd>) -> io::Result<Self> {
        if files.len() != reply.regions.len() + 1 {
            let why = format!("{} files came for {} regions", files.len(), reply.regions.len());
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        let mut files = files.into_iter();
        let doorbell = files.next().expect("one more than regions");
        let doorbell = Mapping::reader(doorbell.as_fd(), DOORBELL_BYTES)?;
        let map = |(info, file): (&RegionInfo, OwnedFd)| {
            let len = usize::try_from(info.len).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
            Ok((*info, Mapping::reader(file.as_fd(), len)?))
        };
        let regions = reply.regions.iter().zip(files).map(map).collect::<io::Result<_>>()?;
        Ok(Self { regions, doorbell })
    }
}

/// A connection whose READs are memory copies.
pub(crate) struct Shm {
    env: Env,
    mux: Mux,
    regions: Arc<Vec<(RegionInfo, Mapping)>>,
    bell: Registration,
}

impl Shm {
    pub(crate) fn start(env: &Env, peer: String, stream: Stream, decoder: Decoder, maps: Maps) -> Self {
        let Maps { regions, doorbell } = maps;
        let regions = Arc::new(regions);
        let bell = Registration::new(env, Bell::new(doorbell));
        let value = bell.value();
        let on_lost = {
            let regions = regions.clone();
            let bell = bell.bell();
            move || {
                bell.lose();
                for (info, mapping) in regions.iter() {
                    if let Err(error) = mapping.blank() {
                        // The memory is given back when the connection is dropped.
                        tracing::warn!(region = info.id.0, %error, "cannot give back a dead region yet");
                    }
                }
            }
        };
        let mux = Mux::start(env, peer, stream, decoder, value, on_lost);
        Self { env: env.clone(), mux, regions, bell }
    }

    fn read_mapped(&self, ops: &[ReadOp], out: &mut [u8]) -> ReadResults {
        self.mux.alive()?;
        let mut results = Vec::with_capacity(ops.len());
        let mut rest = out;
        for (place, op) in ops.iter().enumerate() {
            if let Some(Ok((mapping, offset))) = ops.get(place + 1).map(|next| self.find(next)) {
                mapping.prefetch(offset);
            }
            let (part, behind) = rest.split_at_mut(op.len as usize);
            rest = behind;
            results.push(self.find(op).map(|(mapping, offset)| mapping.read(offset, part)));
        }
        // What was copied while the server died may be the zeros of a blanked mapping.
        self.mux.alive()?;
        Ok(results)
    }

    #[inline]
    fn find(&self, op: &ReadOp) -> Result<(&Mapping, usize), OpError> {
        let (info, mapping) = self.regions.get(op.region.0 as usize).ok_or(OpError::StaleRegion)?;
        if info.generation != op.generation {
            return Err(OpError::StaleRegion);
        }
        let end = op.offset.checked_add(u64::from(op.len));
        match usize::try_from(op.offset) {
            Ok(offset) if op.len <= READ_BYTES_MAX && end.is_some_and(|end| end <= info.len) => {
                Ok((mapping, offset))
            }
            _ => Err(OpError::OutOfBounds),
        }
    }
}

impl Connection for Shm {
    fn peer(&self) -> &str {
        self.mux.peer()
    }

    fn capabilities(&self) -> Capabilities {
        // A SCAR would be a round trip that memory reads do not need.
        Capabilities { memory: true, scar: false }
    }

    fn regions(&self) -> Vec<RegionInfo> {
        self.regions.iter().map(|(info, _)| *info).collect()
    }

    fn read<'a>(&'a self, ops: &'a [ReadOp], out: &'a mut [u8]) -> BoxFuture<'a, ReadResults> {
        assert_fills(ops, out);
        Box::pin(async move { self.read_mapped(ops, out) })
    }

    fn watch(&self, last_seen: u32, deadline: Duration) -> BoxFuture<'_, Result<u32, ConnectionLost>> {
        Box::pin(async move {
            self.mux.alive()?;
            let moved = async {
                match self.bell.moved(last_seen).await {
                    Some(value) => Ok(value),
                    // Lost: the reason is there, since it was set before anybody was told.
                    None => self.mux.alive().map(|()| self.bell.value()),
                }
            };
            watch_until(&self.env, deadline, moved, || self.bell.value()).await
        })
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
