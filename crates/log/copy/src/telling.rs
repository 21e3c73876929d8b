//! Telling all clusters of the plans of this cluster's streams: when they change, and now and then. Asking the sources
//! of copies where they end: when somebody here wants to know.

use std::sync::Arc;

use futures::StreamExt;
use tailwater_format::Offset;
use tailwater_format::call::{CopyHops, CopyPlan, CopyPlanKept, CopyState, Method, stream_to_wire};
use tailwater_log::StreamError;
use tailwater_meta::{Expect, Op};

use crate::ask::ask;
use crate::clusters::KnownCluster;
use crate::copies::{CopiesInner, ToldPlan};
use crate::limits::{ASK_ENDS_EVERY, TELL_AGAIN, TELL_AT_ONCE, TELL_EVERY};
use crate::plan::CopyTree;

/// Tells every cluster of the plans of this cluster's streams: when they change, and now and then.
pub(crate) async fn tell(inner: Arc<CopiesInner>) {
    loop {
        let is_reached = !inner.address.lock().is_empty();
        let mut telling = Vec::new();
        for plan in inner.own_plans().into_iter().filter(|_| is_reached) {
            // What is told is the stream as it is by now; of one that is deleted nothing is told any more.
            match inner.log.stream_by_id(plan.stream.id()) {
                Ok(stream) => {
                    let plan = Arc::new(inner.refreshed(plan, &stream));
                    let clusters: Vec<KnownCluster> = inner.clusters.lock().values().cloned().collect();
                    telling.extend(clusters.into_iter().map(|cluster| (cluster, Arc::clone(&plan))));
                }
                Err(StreamError::NoStream(_)) => inner.forget(&plan).await,
                Err(_) => {}
            }
        }
        let tell_one = |(cluster, plan): (KnownCluster, Arc<CopyTree>)| {
            let inner = &inner;
            async move { inner.tell_cluster(&cluster, &plan).await }
        };
        futures::stream::iter(telling).map(tell_one).buffer_unordered(TELL_AT_ONCE).collect::<()>().await;
        inner.env.timeout(TELL_EVERY, inner.news.notified()).await;
    }
}

impl CopiesInner {
    /// Tells a cluster of a plan, unless it knows.
    async fn tell_cluster(&self, cluster: &KnownCluster, plan: &CopyTree) {
        let (key, bytes) = ((plan.stream.id(), cluster.name.clone()), plan.to_bytes());
        let now = self.env.now();
        let knows = |told: &ToldPlan| told.plan == bytes && now.since(told.at) < TELL_AGAIN;
        if self.told.lock().get(&key).is_some_and(knows) {
            return;
        }
        let question = CopyPlan { plan: bytes.clone() };
        let kept: Result<CopyPlanKept, String> =
            ask(&self.env, &*self.links, &cluster.address, Method::CopyPlan, &question).await;
        match kept {
            Ok(kept) if kept.cluster != cluster.name => {
                tracing::warn!(
                    cluster = cluster.name,
                    address = cluster.address,
                    is = kept.cluster,
                    "another cluster answers there than the one that was added"
                );
            }
            Ok(kept) if kept.number != plan.number => {
                tracing::warn!(
                    cluster = cluster.name,
                    stream = plan.stream.name(),
                    number = kept.number,
                    "it goes by another plan"
                );
            }
            Ok(_) => drop(self.told.lock().insert(key, ToldPlan { plan: bytes, at: now })),
            Err(why) => {
                tracing::info!(cluster = cluster.name, stream = plan.stream.name(), %why, "it was not told of a plan");
            }
        }
    }

    /// Forgets the plan of a stream that was deleted.
    async fn forget(&self, plan: &CopyTree) {
        let _changing = self.changing.lock().await;
        let delete = Op::Delete { key: CopyTree::key(plan.stream.id()), expect: Expect::Any };
        if self.log.meta().commit(vec![delete]).await.is_ok() {
            self.plans.lock().remove(&plan.stream.id());
            self.told.lock().retain(|(stream, _), _| *stream != plan.stream.id());
        }
    }
}

/// Asks the sources of copies where they end, whenever somebody wants to know.
pub(crate) async fn ask_sources(inner: Arc<CopiesInner>) {
    loop {
        let wanted = inner.log.source_ends_wanted().await;
        let asking = wanted.into_iter().map(|stream| {
            let inner = &inner;
            async move {
                let plan = inner.plans.lock().get(&stream).cloned()?;
                let address = plan.address(&plan.source)?;
                let asked = inner.env.now();
                let question = CopyState { stream: stream_to_wire(stream) };
                let state: CopyHops =
                    ask(&inner.env, &*inner.links, address, Method::CopyState, &question).await.ok()?;
                // One that goes by another plan may not be the source any more.
                if state.hop.is_none() && state.moves == plan.moves && !state.ends.is_empty() {
                    let ends = state.ends.iter().map(|end| Offset(end.next_offset)).collect();
                    inner.log.source_ends_told(stream, asked, ends);
                }
                Some(())
            }
        });
        futures::stream::iter(asking).buffer_unordered(TELL_AT_ONCE).collect::<Vec<_>>().await;
        inner.env.sleep(ASK_ENDS_EVERY).await;
    }
}
