//! A server's endpoint: the thread that drives it, and what clients are told of it.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use tailwater_env::Env;

use crate::fabric::ffi::FabricEndpoint;
use crate::fabric::{Looks, Waker, node_of};
use crate::frame::FabricReply;
use crate::limits::FABRIC_PROVIDER_BYTES_MAX;
use crate::service::Service;
use crate::table::RegionTable;

/// How long its thread sleeps at most where a descriptor tells of what comes in.
const LOOK_ANYWAY: Duration = Duration::from_secs(1);
/// How often a new endpoint is tried where there could not be one.
const AGAIN_AFTER: Duration = Duration::from_secs(5);

/// The endpoint of one server. Dropping it ends it, and what its clients read goes over TCP.
pub(crate) struct FabricHost {
    shared: Arc<HostShared>,
}

struct HostShared {
    env: Env,
    provider: String,
    node: Option<String>,
    service: Arc<dyn Service>,
    told: RwLock<Arc<FabricReply>>,
    waker: Waker,
    orders: Mutex<HostOrders>,
}

/// What the thread is to do beside driving its endpoint.
#[derive(Clone, Copy, Default)]
struct HostOrders {
    renew: bool,
    stop: bool,
}

impl FabricHost {
    /// Opens an endpoint of `provider` at `ip`, at which clients reach the server, and has it serve the regions of
    /// `service`.
    ///
    /// # Errors
    /// Where there is no libfabric, no such provider, or one that can't.
    pub(crate) fn start(
        env: &Env,
        provider: &str,
        ip: IpAddr,
        service: Arc<dyn Service>,
    ) -> io::Result<Self> {
        let invalid = |why: String| io::Error::new(io::ErrorKind::InvalidInput, why);
        if provider.len() > FABRIC_PROVIDER_BYTES_MAX {
            return Err(invalid(format!("{provider:?} is too long for a provider of libfabric's")));
        }
        if ip.is_unspecified() {
            return Err(invalid(format!("libfabric needs an address that clients reach, and not {ip}")));
        }
        let shared = Arc::new(HostShared {
            env: env.clone(),
            provider: provider.to_owned(),
            node: node_of(provider, ip),
            service,
            told: RwLock::default(),
            waker: Waker::new()?,
            orders: Mutex::default(),
        });
        let host = Self { shared: Arc::clone(&shared) };
        let (started, starts) = sync_channel(1);
        let run = async move {
            match shared.open() {
                Ok(endpoint) => {
                    // Whoever starts it is there until it has heard.
                    let _ = started.send(Ok(()));
                    shared.run(endpoint);
                }
                Err(error) => drop(started.send(Err(error))),
            }
        };
        env.spawn_dedicated("rma-fabric", run).detach();
        starts.recv().unwrap_or_else(|_| Err(io::Error::other("libfabric's thread did not start")))?;
        Ok(host)
    }

    /// What a client is told.
    pub(crate) fn told(&self) -> Arc<FabricReply> {
        Arc::clone(&self.shared.told.read())
    }

    /// Makes a new endpoint, with new keys, for the regions as they are: the old keys are good for nothing soon, and
    /// reads that are under way fail.
    pub(crate) fn renew(&self) {
        self.shared.orders.lock().renew = true;
        self.shared.waker.wake();
    }
}

impl Drop for FabricHost {
    fn drop(&mut self) {
        self.shared.orders.lock().stop = true;
        self.shared.waker.wake();
    }
}

impl HostShared {
    fn open(&self) -> io::Result<FabricEndpoint> {
        let mut endpoint = FabricEndpoint::serving(&self.provider, self.node.as_deref())?;
        let table = RegionTable::of(&*self.service);
        let mut keys = Vec::new();
        for region in table.regions() {
            // 0 is what some providers take for none.
            let key = self.env.random_u64().max(1);
            keys.push(Some(endpoint.serve(Arc::clone(region), key)?));
        }
        let (format, name) = (endpoint.format(), endpoint.name()?);
        *self.told.write() = Arc::new(FabricReply { provider: self.provider.clone(), format, name, keys });
        Ok(endpoint)
    }

    fn run(&self, endpoint: FabricEndpoint) {
        let mut open = Some(endpoint);
        let mut looks = Looks::default();
        loop {
            let orders = std::mem::take(&mut *self.orders.lock());
            if orders.stop {
                return;
            }
            if orders.renew || open.is_none() {
                open = self.renew(open.take());
            }
            match &mut open {
                Some(endpoint) => {
                    if let Err(error) = endpoint.poll(|_, _| {}) {
                        tracing::error!(%error, "libfabric's endpoint failed: it is opened again");
                        self.orders.lock().renew = true;
                        continue;
                    }
                    self.wait(endpoint, &mut looks);
                }
                None => self.waker.wait(None, Some(AGAIN_AFTER)),
            }
        }
    }

    /// The old one ends first, so that nobody reads by its keys, and its address is free.
    fn renew(&self, old: Option<FabricEndpoint>) -> Option<FabricEndpoint> {
        *self.told.write() =
            Arc::new(FabricReply { provider: self.provider.clone(), ..FabricReply::default() });
        drop(old);
        match self.open() {
            Ok(endpoint) => Some(endpoint),
            Err(error) => {
                tracing::error!(%error, "no new endpoint of libfabric: clients read over TCP meanwhile");
                None
            }
        }
    }

    fn wait(&self, endpoint: &mut FabricEndpoint, looks: &mut Looks) {
        if endpoint.wait_descriptor().is_none() {
            // Peers' reads bring nothing that is seen here, so it is looked at as if there were none.
            self.waker.wait(None, Some(looks.pause()));
        } else if endpoint.may_wait() {
            self.waker.wait(endpoint.wait_descriptor(), Some(LOOK_ANYWAY));
        }
    }
}
