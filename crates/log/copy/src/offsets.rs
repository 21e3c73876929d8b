//! What groups have committed, along the copy trees: each cluster asks its neighbours now and then what is new there,
//! and keeps it. So it comes to every cluster that has the stream.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::StreamExt;
use parking_lot::Mutex;
use tailwater_env::{BoxFuture, Complaints, Env};
use tailwater_format::StreamId;
use tailwater_format::call::{
    CallErrorCode, CallRefusal, CopiedOffset, CopiedOffsets, CopyOffsets, Method, stream_from_wire,
    stream_to_wire,
};
use tailwater_rma::Connection;

use crate::ask::{AskFailed, ask_over, connect};
use crate::copies::{Copies, CopiesInner};
use crate::limits::{OFFSETS_ANSWERS, OFFSETS_EVERY, TELL_AT_ONCE};
use crate::links::ClusterLinks;

/// What groups commit: the seam to whoever keeps it.
pub trait OffsetsKeeper: Send + Sync {
    /// What is new of a stream since an answer with this life and count; 0 and 0 before the first.
    fn since(&self, stream: StreamId, life: u64, after: u64) -> CopiedOffsets;

    /// Keeps what was committed, or deleted, in another cluster, where it is later than what is here; in words why it
    /// can't for now.
    fn follow(&self, stream: StreamId, offsets: Vec<CopiedOffset>) -> BoxFuture<'_, Result<(), String>>;
}

/// A cluster next to this one in a stream's copy tree.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Neighbour {
    stream: StreamId,
    cluster: String,
    address: String,
}

impl Copies {
    /// Brings what groups commit along the copy trees, to others from here on and to this cluster `after` some time.
    pub fn follow_groups(&self, groups: Arc<dyn OffsetsKeeper>, after: Duration) {
        let inner = &self.inner;
        *inner.groups.lock() = Some(Arc::clone(&groups));
        let task =
            inner.env.spawn("copy-offsets", follow(inner.env.clone(), Arc::downgrade(inner), groups, after));
        *inner.following.lock() = Some(task);
    }

    /// Says of a stream whether it is in other clusters too, by the plans that there are then. It keeps nothing alive.
    pub fn placed(&self) -> impl Fn(StreamId) -> bool + Send + Sync + 'static {
        let inner = Arc::downgrade(&self.inner);
        move |stream| {
            let Some(inner) = inner.upgrade() else { return false };
            inner.name.is_some() && inner.plans.lock().get(&stream).is_some_and(|plan| !plan.hops.is_empty())
        }
    }

    /// What groups have committed of a stream. Whoever calls this has seen to it that who asks may.
    ///
    /// # Errors
    /// A message that makes no sense.
    pub fn offsets(&self, asked: &CopyOffsets) -> Result<CopiedOffsets, CallRefusal> {
        let stream = stream_from_wire(&asked.stream)
            .map_err(|error| CallRefusal::new(CallErrorCode::Malformed, error.to_string()))?;
        let groups = self.inner.groups.lock().clone();
        Ok(groups.map(|groups| groups.since(stream, asked.life, asked.after)).unwrap_or_default())
    }
}

impl CopiesInner {
    /// The clusters that this one copies from, and those that copy from it.
    fn neighbours(&self) -> BTreeSet<Neighbour> {
        let Some(here) = self.name.as_deref() else { return BTreeSet::new() };
        let plans = self.plans.lock();
        let of_plan = |plan: &crate::plan::CopyTree| {
            let below = plan.hops.iter().filter(|hop| hop.from == here).map(|hop| &*hop.to);
            let neighbours = plan.above(here).into_iter().chain(below);
            let neighbours = neighbours.filter_map(|cluster| {
                let address = plan.address(cluster)?.to_owned();
                Some(Neighbour { stream: plan.stream.id(), cluster: cluster.to_owned(), address })
            });
            neighbours.collect::<Vec<_>>()
        };
        plans.values().flat_map(of_plan).collect()
    }
}

/// Asks all neighbours, again and again.
async fn follow(env: Env, inner: Weak<CopiesInner>, groups: Arc<dyn OffsetsKeeper>, after: Duration) {
    env.sleep(after).await;
    let asker = OffsetsAsker::new(env.clone(), groups);
    loop {
        let Some(strong) = inner.upgrade() else { return };
        let neighbours = strong.neighbours();
        asker.forget_others(&neighbours);
        let ask = |neighbour: Neighbour| asker.ask(&*strong.links, neighbour);
        futures::stream::iter(neighbours).map(ask).buffer_unordered(TELL_AT_ONCE).collect::<()>().await;
        drop(strong);
        env.sleep(OFFSETS_EVERY).await;
    }
}

struct OffsetsAsker {
    env: Env,
    complaints: Complaints,
    groups: Arc<dyn OffsetsKeeper>,
    /// By address.
    connections: Mutex<BTreeMap<String, Arc<dyn Connection>>>,
    /// How far each neighbour has told: its life, and what it counts.
    told: Mutex<BTreeMap<Neighbour, (u64, u64)>>,
}

impl OffsetsAsker {
    fn new(env: Env, groups: Arc<dyn OffsetsKeeper>) -> Self {
        let (connections, told) = (Mutex::default(), Mutex::default());
        Self { env, complaints: Complaints::default(), groups, connections, told }
    }

    fn forget_others(&self, neighbours: &BTreeSet<Neighbour>) {
        self.told.lock().retain(|neighbour, _| neighbours.contains(neighbour));
        let addresses: BTreeSet<&str> = neighbours.iter().map(|neighbour| &*neighbour.address).collect();
        self.connections.lock().retain(|address, _| addresses.contains(&**address));
    }

    async fn connection(
        &self,
        links: &dyn ClusterLinks,
        address: &str,
    ) -> Result<Arc<dyn Connection>, String> {
        if let Some(connection) = self.connections.lock().get(address) {
            return Ok(Arc::clone(connection));
        }
        let connection = connect(&self.env, links, address).await?;
        self.connections.lock().insert(address.to_owned(), Arc::clone(&connection));
        Ok(connection)
    }

    /// Takes what is new at a neighbour. All streams share its connection, which is given up when it may be gone.
    async fn ask(&self, links: &dyn ClusterLinks, neighbour: Neighbour) {
        let failed = self.take_news(links, &neighbour).await.err();
        let Neighbour { stream, cluster, address } = neighbour;
        match failed {
            None => {}
            Some(AskFailed::Lost(why)) => {
                self.connections.lock().remove(&address);
                tracing::debug!(%stream, cluster, why, "it does not tell what groups have committed there");
            }
            Some(AskFailed::Refused(why)) => {
                if let Some(left_out) = self.complaints.admit(self.env.now(), "groups") {
                    tracing::warn!(%stream, cluster, why, left_out, "what groups have committed there is not taken");
                }
            }
        }
    }

    async fn take_news(&self, links: &dyn ClusterLinks, neighbour: &Neighbour) -> Result<(), AskFailed> {
        let connection = self.connection(links, &neighbour.address).await.map_err(AskFailed::Lost)?;
        for _ in 0..OFFSETS_ANSWERS {
            let (life, after) = self.told.lock().get(neighbour).copied().unwrap_or_default();
            let asked = CopyOffsets { stream: stream_to_wire(neighbour.stream), life, after };
            let told: CopiedOffsets = ask_over(&self.env, &*connection, Method::CopyOffsets, &asked).await?;
            if told.offsets.is_empty() {
                break;
            }
            self.groups.follow(neighbour.stream, told.offsets).await.map_err(AskFailed::Refused)?;
            self.told.lock().insert(neighbour.clone(), (told.life, told.upto));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
