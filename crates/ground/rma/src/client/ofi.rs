//! READs over libfabric, and everything else as frames over TCP.
//!
//! What libfabric cannot do goes over TCP as well, so that a reader never notices more than another speed: regions
//! without a key, and all READs while there is no endpoint. After a failure a new endpoint is tried, by what the server
//! says then: it has made new keys if its regions have moved.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use tailwater_env::{Env, Instant, Task};
use tokio::sync::oneshot;

use crate::client::stream::Stream;
use crate::client::tcp::Tcp;
use crate::connection::{
    CallDone, Capabilities, Connection, ConnectionLost, OpError, ReadOp, ReadResults, RegionInfo,
    assert_fills,
};
use crate::fabric::initiator::{Initiator, SlotPending};
use crate::fabric::pool::FabricSlot;
use crate::frame::{self, Decoder, FabricReply, FrameKind, HelloReply, RegionKey};
use crate::limits::{FABRIC_AGAIN, FABRIC_OPEN_DEADLINE, FABRIC_SLOT_BYTES, READ_BYTES_MAX};

/// A connection whose READs nobody at the far side answers, as far as libfabric's provider is one of hardware.
pub(crate) struct Ofi {
    tcp: Arc<Tcp>,
    /// Where the server is.
    ip: IpAddr,
    state: Arc<Mutex<FabricState>>,
}

enum FabricState {
    Up(Arc<Initiator>),
    /// A new endpoint is being made.
    Opening(#[allow(dead_code)] Option<Task>), // cancelled when it is dropped
    /// None is there until then, at least.
    Down(Instant),
    /// The server is gone.
    Lost,
}

/// A part of a READ that one slot has room for.
struct SlotPiece {
    key: RegionKey,
    offset: u64,
    /// Where it begins in the caller's memory.
    at: usize,
    len: usize,
}

/// What to read for a batch, and the result of each of its operations if that succeeds.
type PlannedReads = (Vec<SlotPiece>, Vec<Result<(), OpError>>);

/// libfabric does not read; the text is for the log.
struct FabricFailed(String);

impl Ofi {
    /// Takes over a socket on which HELLO was exchanged, and opens an endpoint by what the server tells.
    pub(crate) async fn start(
        env: &Env,
        peer: String,
        ip: IpAddr,
        stream: Stream,
        decoder: Decoder,
        reply: HelloReply,
    ) -> Self {
        let state = Arc::new(Mutex::new(FabricState::Opening(None)));
        let on_lost = {
            let state = Arc::clone(&state);
            move || {
                let was = std::mem::replace(&mut *state.lock(), FabricState::Lost);
                if let FabricState::Up(initiator) = was {
                    initiator.fail("the server is gone");
                }
            }
        };
        let tcp = Arc::new(Tcp::start_and_tell(env, peer, stream, decoder, reply, on_lost));
        let ofi = Self { tcp, ip, state };
        open(&ofi.tcp, ip, &ofi.state).await;
        ofi
    }

    /// What reads at the moment.
    fn initiator(&self) -> Option<Arc<Initiator>> {
        let mut state = self.state.lock();
        match &*state {
            FabricState::Up(initiator) => return Some(Arc::clone(initiator)),
            FabricState::Down(until) if *until <= self.tcp.env.now() => {}
            FabricState::Down(_) | FabricState::Opening(_) | FabricState::Lost => return None,
        }
        let (tcp, ip, weak) = (Arc::downgrade(&self.tcp), self.ip, Arc::downgrade(&self.state));
        let opening = async move {
            if let (Some(tcp), Some(state)) = (tcp.upgrade(), weak.upgrade()) {
                open(&tcp, ip, &state).await;
            }
        };
        *state = FabricState::Opening(Some(self.tcp.env.spawn("rma-fabric-open", opening)));
        None
    }

    /// Goes on without an initiator that failed.
    fn failed(&self, initiator: &Arc<Initiator>, why: &FabricFailed) {
        let mut state = self.state.lock();
        if matches!(&*state, FabricState::Up(is_up) if Arc::ptr_eq(is_up, initiator)) {
            tracing::warn!(peer = self.tcp.peer(), why = why.0, "libfabric does not read: READs go over TCP");
            *state = FabricState::Down(self.tcp.env.now() + FABRIC_AGAIN);
            drop(state);
            initiator.fail(&why.0);
        }
    }

    async fn read_anyhow(&self, ops: &[ReadOp], out: &mut [u8]) -> ReadResults {
        self.tcp.mux.alive()?;
        let initiator = self.initiator();
        let pieces = initiator.as_ref().and_then(|initiator| self.pieces_of(initiator, ops));
        let (Some(initiator), Some((pieces, results))) = (initiator, pieces) else {
            return self.tcp.read_frames(ops, out).await;
        };
        if let Err(why) = read_pieces(&initiator, &pieces, out).await {
            self.failed(&initiator, &why);
            return self.tcp.read_frames(ops, out).await;
        }
        // What a server that has hung up lets us read is not ours to read.
        self.tcp.mux.alive()?;
        Ok(results)
    }

    /// What to read for `ops`, and the result of each if that succeeds; `None` if one of the regions has no key.
    fn pieces_of(&self, initiator: &Initiator, ops: &[ReadOp]) -> Option<PlannedReads> {
        let (mut pieces, mut results) = (Vec::with_capacity(ops.len()), Vec::with_capacity(ops.len()));
        let mut at = 0;
        for op in ops {
            let len = op.len as usize;
            let found = self.find(op);
            if found.is_ok() {
                let key = initiator.key_of(op.region.0 as usize)?;
                for done in (0..len).step_by(FABRIC_SLOT_BYTES) {
                    let offset = op.offset + done as u64;
                    pieces.push(SlotPiece {
                        key,
                        offset,
                        at: at + done,
                        len: (len - done).min(FABRIC_SLOT_BYTES),
                    });
                }
            }
            at += len;
            results.push(found);
        }
        Some((pieces, results))
    }

    fn find(&self, op: &ReadOp) -> Result<(), OpError> {
        let info = self.tcp.regions.get(op.region.0 as usize).ok_or(OpError::StaleRegion)?;
        if info.generation != op.generation {
            return Err(OpError::StaleRegion);
        }
        let end = op.offset.checked_add(u64::from(op.len));
        let is_inside = op.len <= READ_BYTES_MAX && end.is_some_and(|end| end <= info.len);
        if is_inside { Ok(()) } else { Err(OpError::OutOfBounds) }
    }
}

/// Reads all pieces, as many at a time as there are slots for.
async fn read_pieces(
    initiator: &Initiator,
    pieces: &[SlotPiece],
    out: &mut [u8],
) -> Result<(), FabricFailed> {
    let mut under_way = std::collections::VecDeque::new();
    let mut next = pieces.iter();
    let mut waits = next.next();
    while waits.is_some() || !under_way.is_empty() {
        while let Some(piece) = waits {
            // Who holds none waits for one; who does waits for its own first.
            let slot = match initiator.try_slot() {
                Some(slot) => slot,
                None if under_way.is_empty() => {
                    let failed = || FabricFailed("its endpoint has failed".to_owned());
                    initiator.slot().await.ok_or_else(failed)?
                }
                None => break,
            };
            under_way.push_back((piece, initiator.begin(slot, piece.key, piece.offset, piece.len)));
            waits = next.next();
        }
        initiator.look();
        // As many as have ended, and one at least: there is room for others then.
        let mut first = true;
        while let Some((piece, pending)) = under_way.front_mut() {
            match ended(pending, first).await? {
                Some(slot) => slot.copy_to(&mut out[piece.at..piece.at + piece.len]),
                None => break,
            }
            first = false;
            under_way.pop_front();
        }
    }
    Ok(())
}

/// The slot of a read that has ended; `None` if it has not, and is not waited for.
async fn ended(pending: &mut SlotPending, is_waited_for: bool) -> Result<Option<FabricSlot>, FabricFailed> {
    let gone = || FabricFailed("its endpoint is gone".to_owned());
    let done = match pending.try_recv() {
        Err(oneshot::error::TryRecvError::Empty) if is_waited_for => pending.await.map_err(|_| gone())?,
        Err(oneshot::error::TryRecvError::Empty) => return Ok(None),
        Err(oneshot::error::TryRecvError::Closed) => return Err(gone()),
        Ok(done) => done,
    };
    done.map(Some).map_err(FabricFailed)
}

/// Asks the server how its regions are read, and opens an endpoint that does.
async fn open(tcp: &Arc<Tcp>, ip: IpAddr, state: &Mutex<FabricState>) {
    let opened = tcp.env.timeout(FABRIC_OPEN_DEADLINE, try_open(tcp, ip)).await;
    let slow = || Err(format!("no endpoint within {FABRIC_OPEN_DEADLINE:?}"));
    let opened = opened.unwrap_or_else(slow);
    let mut state = state.lock();
    if matches!(*state, FabricState::Lost) {
        return;
    }
    *state = match opened {
        Ok(initiator) => FabricState::Up(Arc::new(initiator)),
        Err(why) => {
            tracing::warn!(peer = tcp.peer(), why, "libfabric does not read: READs go over TCP");
            FabricState::Down(tcp.env.now() + FABRIC_AGAIN)
        }
    };
}

async fn try_open(tcp: &Tcp, ip: IpAddr) -> Result<Initiator, String> {
    let told = ask(tcp).await.map_err(|lost| lost.to_string())?;
    if told.keys.len() != tcp.regions.len() {
        return Err("the server has no endpoint at the moment".to_owned());
    }
    let (done, opened) = oneshot::channel();
    let env = tcp.env.clone();
    // On a thread of its own: libfabric looks at the machine's hardware, and blocks meanwhile.
    let opening = async move { drop(done.send(Initiator::open(&env, ip, &told))) };
    tcp.env.spawn_dedicated("rma-fabric-open", opening).detach();
    match opened.await {
        Ok(opened) => opened.map_err(|error| error.to_string()),
        Err(_) => Err("its thread did not start".to_owned()),
    }
}

async fn ask(tcp: &Tcp) -> Result<FabricReply, ConnectionLost> {
    let pending = tcp.mux.request(frame::encode_fabric).await?;
    let (header, body) = pending.answer(FrameKind::FabricReply).await?;
    FabricReply::parse(&header, body).map_err(|error| tcp.mux.refuse(&error))
}

impl Connection for Ofi {
    fn peer(&self) -> &str {
        self.tcp.peer()
    }

    fn capabilities(&self) -> Capabilities {
        // A SCAR would have the far side's processor take part.
        Capabilities { memory: false, scar: false }
    }

    fn regions(&self) -> Vec<RegionInfo> {
        self.tcp.regions()
    }

    fn read<'a>(&'a self, ops: &'a [ReadOp], out: &'a mut [u8]) -> BoxFuture<'a, ReadResults> {
        assert_fills(ops, out);
        Box::pin(self.read_anyhow(ops, out))
    }

    fn watch(&self, last_seen: u32, deadline: Duration) -> BoxFuture<'_, Result<u32, ConnectionLost>> {
        self.tcp.watch(last_seen, deadline)
    }

    fn call(&self, method: u16, payload: Bytes) -> CallDone<'_> {
        self.tcp.call(method, payload)
    }

    fn call_with_pieces(&self, method: u16, pieces: Vec<Bytes>) -> CallDone<'_> {
        self.tcp.call_with_pieces(method, pieces)
    }

    fn lost(&self) -> Option<ConnectionLost> {
        self.tcp.lost()
    }
}

#[cfg(test)]
mod tests;
