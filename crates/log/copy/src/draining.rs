//! A cluster is drained: nothing is copied through it any more, and nothing is placed there.

use tailwater_format::StreamId;
use tailwater_meta::{Expect, Op};

use crate::clusters::KnownCluster;
use crate::copies::{Copies, CopiesInner, unavailable};
use crate::error::CopyError;
use crate::plan::{CopyTree, TreeEdge};

impl Copies {
    /// Begins to drain a cluster, or ends that. Clusters that copy from it copy from the one above it then, which is in
    /// the plans of the streams that have their source here: these are answered by their names. Its own copies go on.
    ///
    /// # Errors
    /// `NoName`, `Invalid` for this cluster itself, `UnknownCluster`, `Unavailable`.
    pub async fn drain(
        &self,
        name: &str,
        is_draining: bool,
    ) -> Result<(KnownCluster, Vec<String>), CopyError> {
        let inner = &*self.inner;
        let here = inner.name.as_deref().ok_or(CopyError::NoName)?;
        if name == here {
            let why =
                format!("{name:?} is this cluster itself: drain it where the sources of its streams are");
            return Err(CopyError::Invalid(why));
        }
        let _changing = inner.changing.lock().await;
        let known = inner.clusters.lock().get(name).cloned();
        let known = known.ok_or_else(|| CopyError::UnknownCluster(name.to_owned()))?;
        let cluster = KnownCluster { is_draining, ..known };
        let (key, value) = (KnownCluster::key(name), cluster.encode().into());
        let put = Op::Put { key, value, expect: Expect::Any };
        inner.log.meta().commit(vec![put]).await.map_err(unavailable)?;
        inner.clusters.lock().insert(name.to_owned(), cluster.clone());
        let mut changed = Vec::new();
        for plan in inner.own_plans().into_iter().filter(|_| is_draining) {
            let Some(hops) = plan.hops_around(name) else { continue };
            let plan = CopyTree { number: plan.number + 1, hops, ..plan };
            inner.keep(&plan, Expect::Any).await?;
            changed.push(plan.stream.name().to_owned());
        }
        inner.news.notify_one();
        Ok((cluster, changed))
    }
}

impl CopiesInner {
    /// Whether hops go through no cluster that is drained, and lead to none that has no copy of the stream yet.
    pub(crate) fn check_draining(&self, stream: StreamId, hops: &[TreeEdge]) -> Result<(), CopyError> {
        let known = self.clusters.lock();
        let is_draining = |name: &str| known.get(name).is_some_and(|cluster| cluster.is_draining);
        let plans = self.plans.lock();
        let had = |name: &str| plans.get(&stream).is_some_and(|plan| plan.has(name));
        let refused = hops.iter().find_map(|hop| {
            let is_new = is_draining(&hop.to) && !had(&hop.to);
            is_new.then_some(&hop.to).or_else(|| is_draining(&hop.from).then_some(&hop.from))
        });
        refused.map_or(Ok(()), |name| Err(CopyError::Draining(name.clone())))
    }
}
