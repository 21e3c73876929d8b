//! What the engines of one server have in common.

use std::sync::Arc;

use tailwater_access::PlacesByAddress;
use tailwater_env::{Complaints, Env};

use crate::atomics::{AtomicUsize, Ordering};
use crate::doorbell::Doorbell;
use crate::server::calls::Calls;
use crate::server::limits::SessionLimits;
use crate::server::mailbox::Mailbox;
use crate::server::{FabricHost, ServerConfig};
use crate::service::Service;

pub(crate) struct EngineShared {
    pub(crate) env: Env,
    pub(crate) config: ServerConfig,
    pub(crate) service: Arc<dyn Service>,
    pub(crate) doorbell: Doorbell,
    pub(crate) calls: Arc<Calls>,
    /// One for each engine.
    pub(crate) mailboxes: Vec<Arc<Mailbox>>,
    /// Connections accepted and not ended; a plain counter.
    pub(crate) connections: AtomicUsize,
    /// Bytes held for all connections; a plain counter.
    pub(crate) memory: AtomicUsize,
    pub(crate) complaints: Complaints,
    /// Connections that have to log in and have not.
    pub(crate) strangers: PlacesByAddress,
    /// Reads the regions over libfabric, if anything does.
    pub(crate) fabric: Option<Arc<FabricHost>>,
}

impl EngineShared {
    /// Whether a line about something that peers cause may be written, and how many were not before it.
    pub(crate) fn complain(&self, reason: &'static str) -> Option<u64> {
        self.complaints.admit(self.env.now(), reason)
    }

    /// Counts a connection, or answers `false` if there are as many as there may be.
    pub(crate) fn count_connection(&self) -> bool {
        if self.connections.fetch_add(1, Ordering::Relaxed) < self.config.connections_max {
            return true;
        }
        self.uncount_connection();
        false
    }

    pub(crate) fn uncount_connection(&self) {
        self.connections.fetch_sub(1, Ordering::Relaxed);
    }

    /// Replaces one connection's share of the memory and answers the total.
    pub(crate) fn change_memory(&self, from: usize, to: usize) -> usize {
        if from == to {
            return self.memory.load(Ordering::Relaxed);
        }
        // Wrapping addition of the difference: the sum of all shares stays what it is.
        let difference = to.wrapping_sub(from);
        self.memory.fetch_add(difference, Ordering::Relaxed).wrapping_add(difference)
    }

    /// What each connection may hold, in bytes, whatever the others do.
    pub(crate) fn memory_share(&self) -> usize {
        self.config.memory_bytes_max / self.connections.load(Ordering::Relaxed).max(1)
    }

    pub(crate) fn session_limits(&self, unix: bool) -> SessionLimits {
        let config = &self.config;
        SessionLimits {
            output_bytes_max: config.output_bytes_max.max(1),
            hello_deadline: config.hello_deadline,
            login_deadline: config.login_deadline,
            frame_deadline: config.frame_deadline,
            drain_deadline: config.drain_deadline,
            // A client that maps the regions has nothing to say, and the kernel tells us when it is gone.
            idle_deadline: config.idle_deadline.filter(|_| !unix),
        }
    }
}
