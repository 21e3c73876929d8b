//! The way to a backend from within the process that serves it: no socket, no other thread.
//!
//! A connection of this kind is lost when the backend ends, as one over a socket is. Who holds it connects again, to
//! the backend that has taken its place, if one has.

use std::sync::Arc;

use bytes::Bytes;
use tailwater_cache::Backend;
use tailwater_cache::protocol::{METHOD_CLEAR, METHOD_CONFIGURE, METHOD_JOIN, METHOD_LOAD, METHOD_SCAN};
use tailwater_env::Env;
use tailwater_rma::{Connection, LocalDoorbell, Peer, Region, Reply, ScarHit, ScarOp, Service, local};

/// A backend of this process, for its own clients. They are asked for no rights. Dropped, all connections to it are
/// lost.
pub(crate) struct NearBackend {
    env: Env,
    service: Arc<NearService>,
    doorbell: LocalDoorbell,
}

impl NearBackend {
    pub(crate) fn new(env: &Env, backend: &Arc<Backend>) -> Arc<Self> {
        let doorbell = LocalDoorbell::new();
        let ringing = doorbell.clone();
        backend.ring_on_change(move || ringing.ring());
        let service = Arc::new(NearService { env: env.clone(), backend: Arc::clone(backend) });
        Arc::new(Self { env: env.clone(), service, doorbell })
    }

    /// A connection to it.
    pub(crate) fn connect(&self) -> Arc<dyn Connection> {
        local::connect(Arc::clone(&self.service) as _, self.doorbell.clone(), &self.env)
    }
}

impl Drop for NearBackend {
    fn drop(&mut self) {
        self.doorbell.close();
    }
}

/// The backend with its long CALLs on threads of their own, as no server has workers for them.
struct NearService {
    env: Env,
    backend: Arc<Backend>,
}

impl Service for NearService {
    fn regions(&self) -> Vec<Arc<Region>> {
        self.backend.regions()
    }

    fn scar(&self, op: &ScarOp) -> Option<ScarHit> {
        self.backend.scar(op)
    }

    fn is_short(&self, method: u16, payload: &Bytes) -> bool {
        self.backend.is_short(method, payload)
    }

    fn call(&self, peer: &Peer, method: u16, payload: Bytes, reply: Reply) {
        if !goes_through_all(method) {
            return self.backend.call(peer, method, payload, reply);
        }
        let (backend, peer) = (Arc::clone(&self.backend), peer.clone());
        let calling = async move { backend.call(&peer, method, payload, reply) };
        // It is carried out whether somebody waits for it or not, as behind a socket.
        self.env.spawn_dedicated("cell-call", calling).detach();
    }
}

/// Whether a CALL may go through much of what the backend holds.
fn goes_through_all(method: u16) -> bool {
    matches!(method, METHOD_CLEAR | METHOD_CONFIGURE | METHOD_JOIN | METHOD_LOAD | METHOD_SCAN)
}
