//! The transport within one process: no socket, no copy of the frame, the same contract.
//!
//! For backends that are embedded in the process that reads them, and for the simulator, which wraps it to add
//! delay and tearing. A connection made here is never lost; what ends is the process.

use std::sync::Arc;
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

/// The doorbell of a service in the same process.
#[derive(Clone, Debug)]
pub struct LocalDoorbell {
    word: Arc<watch::Sender<u32>>,
}

impl LocalDoorbell {
    /// A doorbell that nobody has rung.
    pub fn new() -> Self {
        Self { word: Arc::new(watch::Sender::new(DOORBELL_START)) }
    }

    /// Moves the word and wakes everybody who waits for that. What was written to regions before is visible to
    /// them.
    pub fn ring(&self) {
        self.word.send_modify(|word| *word = word.wrapping_add(1));
    }

    /// The word.
    pub fn value(&self) -> u32 {
        *self.word.borrow()
    }
}

impl Default for LocalDoorbell {
    fn default() -> Self {
        Self::new()
    }
}

/// Connects to a service in this process. CALLs run on the task that makes them.
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
        Box::pin(async move {
            let mut rest = out;
            let mut results = Vec::with_capacity(ops.len());
            for op in ops {
                let (part, behind) = rest.split_at_mut(op.len as usize);
                rest = behind;
                results.push(self.table.find(op).map(|region| region.read(op.offset, part)));
            }
            Ok(results)
        })
    }

    fn watch(&self, last_seen: u32, deadline: Duration) -> BoxFuture<'_, Result<u32, ConnectionLost>> {
        Box::pin(async move {
            let mut word = self.doorbell.word.subscribe();
            let moved = word.wait_for(|word| *word != last_seen);
            // The sender lives as long as `self`: what ends this early is the deadline only.
            let _ = self.env.timeout(deadline, moved).await;
            Ok(self.doorbell.value())
        })
    }

    fn call(&self, method: u16, payload: Bytes) -> CallDone<'_> {
        Box::pin(async move {
            if payload.len() > CALL_BYTES_MAX {
                return Err(too_large("payload", payload.len()));
            }
            let (send, answer) = oneshot::channel();
            // Nobody listens any more if the caller gave up, which is its right.
            let reply = Reply::new(move |answer| drop(send.send(answer)));
            self.service.call(&self.peer, method, payload, reply);
            let answer = answer.await.expect("a reply always answers, if only when it is dropped");
            match answer {
                Ok(bytes) if bytes.len() > CALL_BYTES_MAX => Err(too_large("answer", bytes.len())),
                Ok(bytes) => Ok(bytes),
                Err(Refusal { code, message }) => Err(CallError::Refused { code, message }),
            }
        })
    }

    fn lost(&self) -> Option<ConnectionLost> {
        None
    }
}

/// The error of a CALL whose payload or answer is longer than one may be.
pub(crate) fn too_large(what: &str, len: usize) -> CallError {
    let message = format!("{what} of {len} bytes is longer than {CALL_BYTES_MAX}");
    CallError::Refused { code: REFUSED_TOO_LARGE, message }
}
