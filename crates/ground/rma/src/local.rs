//! The transport within one process: no socket, no copy of the frame, the same contract.
//!
//! For backends that are embedded in the process that reads them, and for the simulator, which wraps it to add
//! delay and tearing. A connection made here is lost when its service's [`LocalDoorbell`] is closed: by an owner that
//! replaces the service while the process goes on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use tailwater_access::Peer;
use tailwater_env::Env;
use tokio::sync::{oneshot, watch};

use crate::connection::{
    CallDone, CallError, Capabilities, Connection, ConnectionLost, ReadOp, ReadResults, RegionInfo,
    assert_fills,
};
use crate::limits::{CALL_BYTES_MAX, DOORBELL_START};
use crate::service::{REFUSED_TOO_LARGE, Refusal, Reply, Service};
use crate::table::RegionTable;

/// Why a connection is lost.
const LOST: &str = "its service has ended";

/// The doorbell of a service in the same process, which is also how its end becomes known.
#[derive(Clone, Debug)]
pub struct LocalDoorbell {
    shared: Arc<LocalDoorbellShared>,
}

#[derive(Debug)]
struct LocalDoorbellShared {
    word: watch::Sender<u32>,
    /// Set before `word` and `closed` tell those who wait.
    is_closed: AtomicBool,
    /// Apart from `word`: who waits for an answer is not woken each time it rings.
    closed: watch::Sender<()>,
}

impl LocalDoorbell {
    /// A doorbell that nobody has rung.
    pub fn new() -> Self {
        let (word, is_closed) = (watch::Sender::new(DOORBELL_START), AtomicBool::new(false));
        let closed = watch::Sender::new(());
        Self { shared: Arc::new(LocalDoorbellShared { word, is_closed, closed }) }
    }

    /// Moves the word and wakes everybody who waits for that. What was written to regions before is visible to
    /// them.
    pub fn ring(&self) {
        self.shared.word.send_modify(|word| *word = word.wrapping_add(1));
    }

    /// The word.
    pub fn value(&self) -> u32 {
        *self.shared.word.borrow()
    }

    /// The service has ended: all its connections are lost from now on, those that are made later, too. Those who wait
    /// for an answer are told that it is lost, though the service may have got the CALL. For good.
    pub fn close(&self) {
        self.shared.is_closed.store(true, Ordering::Release);
        self.shared.closed.send_replace(());
        self.ring();
    }

    /// Whether the service has ended.
    pub fn is_closed(&self) -> bool {
        self.shared.is_closed.load(Ordering::Acquire)
    }

    /// Completes when the service has ended.
    async fn closed(&self) {
        // The sender lives as long as `self`.
        let _ = self.shared.closed.subscribe().wait_for(|()| self.is_closed()).await;
    }
}

impl Default for LocalDoorbell {
    fn default() -> Self {
        Self::new()
    }
}

/// Connects to a service in this process, whose doorbell that is. CALLs run on the task that makes them.
pub fn connect(service: Arc<dyn Service>, doorbell: LocalDoorbell, env: &Env) -> Arc<dyn Connection> {
    let table = RegionTable::of(&*service);
    let peer = Peer::anonymous("local".to_owned());
    Arc::new(Local { service, table, doorbell, env: env.clone(), peer })
}

struct Local {
    service: Arc<dyn Service>,
    table: RegionTable,
    doorbell: LocalDoorbell,
    env: Env,
    peer: Peer,
}

impl Connection for Local {
    fn peer(&self) -> &str {
        &self.peer.address
    }

    fn capabilities(&self) -> Capabilities {
        // Memory reads are better than a scan by the far side, which is this side.
        Capabilities { memory: true, scar: false }
    }

    fn regions(&self) -> Vec<RegionInfo> {
        self.table.infos()
    }

    fn read<'a>(&'a self, ops: &'a [ReadOp], out: &'a mut [u8]) -> BoxFuture<'a, ReadResults> {
        assert_fills(ops, out);
        Box::pin(async move { self.read_here(ops, out) })
    }

    fn watch(&self, last_seen: u32, deadline: Duration) -> BoxFuture<'_, Result<u32, ConnectionLost>> {
        Box::pin(async move {
            let mut word = self.doorbell.shared.word.subscribe();
            let moved = word.wait_for(|word| *word != last_seen || self.doorbell.is_closed());
            // The sender lives as long as `self`: what ends this early is the deadline only.
            let _ = self.env.timeout(deadline, moved).await;
            self.alive()?;
            Ok(self.doorbell.value())
        })
    }

    fn call(&self, method: u16, payload: Bytes) -> CallDone<'_> {
        Box::pin(async move {
            self.alive()?;
            if payload.len() > CALL_BYTES_MAX {
                return Err(too_large("payload", payload.len()));
            }
            let (send, mut answer) = oneshot::channel();
            // Nobody listens any more if the caller gave up, which is its right.
            let reply = Reply::new(move |answer| drop(send.send(answer)));
            self.service.call(&self.peer, method, payload, reply);
            // Most CALLs are answered by now.
            let answer = match answer.try_recv() {
                Ok(answer) => answer,
                Err(_) => tokio::select! {
                    biased;
                    answer = answer => answer.expect("a reply always answers, if only when it is dropped"),
                    () = self.doorbell.closed() => return Err(self.why_lost().into()),
                },
            };
            match answer {
                Ok(bytes) if bytes.len() > CALL_BYTES_MAX => Err(too_large("answer", bytes.len())),
                Ok(bytes) => Ok(bytes),
                Err(Refusal { code, message }) => Err(CallError::Refused { code, message }),
            }
        })
    }

    fn lost(&self) -> Option<ConnectionLost> {
        self.doorbell.is_closed().then(|| self.why_lost())
    }
}

impl Local {
    fn alive(&self) -> Result<(), ConnectionLost> {
        if self.doorbell.is_closed() { Err(self.why_lost()) } else { Ok(()) }
    }

    fn why_lost(&self) -> ConnectionLost {
        ConnectionLost { peer: self.peer.address.clone(), reason: LOST.to_owned() }
    }

    fn read_here(&self, ops: &[ReadOp], out: &mut [u8]) -> ReadResults {
        self.alive()?;
        let mut rest = out;
        let mut results = Vec::with_capacity(ops.len());
        for (place, op) in ops.iter().enumerate() {
            if let Some(next) = ops.get(place + 1)
                && let Ok(region) = self.table.find(next)
            {
                region.prefetch(next.offset);
            }
            let (part, behind) = rest.split_at_mut(op.len as usize);
            rest = behind;
            results.push(self.table.find(op).map(|region| region.read(op.offset, part)));
        }
        // As over a socket: what was read while the service ended is worth nothing.
        self.alive()?;
        Ok(results)
    }
}

/// The error of a CALL whose payload or answer is longer than one may be.
pub(crate) fn too_large(what: &str, len: usize) -> CallError {
    let message = format!("{what} of {len} bytes is longer than {CALL_BYTES_MAX}");
    CallError::Refused { code: REFUSED_TOO_LARGE, message }
}
