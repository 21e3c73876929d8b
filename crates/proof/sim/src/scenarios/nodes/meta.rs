//! Metadata as a node reaches it over the network, and which nodes it knows of.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tailwater_env::{BoxFuture, Instant};
use tailwater_log::ShardMember;
use tailwater_meta::{
    Expect, Lease, Meta, MetaError, Op, Versioned, Watch, WatchEnd, WatchSender, watch_channel,
};

use crate::planted::Plant;

use super::links::{LinkPlace, NodeLink};

/// A node that is not heard of for so long is taken off the list of those that are there.
const SESSION: Duration = Duration::from_millis(1_500);
/// How long a call waits for an answer.
const PATIENCE: Duration = Duration::from_millis(500);
/// How often a watch that is cut off looks whether it still is.
const LOOK: Duration = Duration::from_millis(50);

/// The sessions of nodes.
#[derive(Default)]
pub(super) struct NodeSessions(Mutex<BTreeMap<usize, (ShardMember, Instant)>>);

impl NodeSessions {
    /// A node says that it is there.
    pub(super) fn heard(&self, node: usize, member: ShardMember, now: Instant) {
        self.0.lock().insert(node, (member, now));
    }

    /// Those that are there.
    pub(super) fn there(&self, now: Instant) -> Vec<ShardMember> {
        let sessions = self.0.lock();
        let there = sessions.values().filter(|(_, heard)| now.since(*heard) < SESSION);
        there.map(|(member, _)| member.clone()).collect()
    }
}

/// Metadata that a node reaches by its link. A call whose answer is lost may have been carried out.
pub(super) struct NodeMeta {
    pub(super) real: Arc<dyn Meta>,
    pub(super) link: NodeLink,
    pub(super) plant: Plant,
}

impl NodeMeta {
    async fn reach<T>(&self, call: impl Future<Output = Result<T, MetaError>>) -> Result<T, MetaError> {
        if self.link.travel(LinkPlace::Metadata).await {
            let answer = call.await;
            if self.link.travel(LinkPlace::Metadata).await {
                return answer;
            }
        }
        self.link.env.sleep(PATIENCE).await;
        Err(MetaError::Unavailable("it is not reached".to_owned()))
    }
}

impl Meta for NodeMeta {
    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<Versioned>, MetaError>> {
        Box::pin(self.reach(self.real.get(key)))
    }

    fn list<'a>(&'a self, prefix: &'a str) -> BoxFuture<'a, Result<Vec<(String, Versioned)>, MetaError>> {
        Box::pin(self.reach(self.real.list(prefix)))
    }

    fn commit(&self, mut ops: Vec<Op>) -> BoxFuture<'_, Result<u64, MetaError>> {
        if self.plant == Plant::ShardRecordUnchecked {
            ops.iter_mut().for_each(uncheck);
        }
        Box::pin(self.reach(self.real.commit(ops)))
    }

    fn watch<'a>(&'a self, prefix: &'a str) -> BoxFuture<'a, Result<Watch, MetaError>> {
        Box::pin(async move {
            let real = self.reach(self.real.watch(prefix)).await?;
            let (sender, watch) = watch_channel();
            self.link.env.spawn("sim-watch", tell(real, sender, self.link.clone())).detach();
            Ok(watch)
        })
    }

    fn lease<'a>(
        &'a self,
        key: &'a str,
        value: Bytes,
        ttl: Duration,
    ) -> BoxFuture<'a, Result<Lease, MetaError>> {
        Box::pin(self.reach(self.real.lease(key, value, ttl)))
    }
}

/// Takes away what is expected of a shard's record.
fn uncheck(op: &mut Op) {
    if let Op::Put { key, expect, .. } | Op::Check { key, expect } = op
        && key.starts_with("log/shard/")
    {
        *expect = Expect::Any;
    }
}

/// Hands a watch's events on. What happens while the node is cut off is not told.
async fn tell(mut real: Watch, sender: WatchSender, link: NodeLink) {
    loop {
        let event = real.next().await;
        if sender.is_abandoned() {
            return;
        }
        match event {
            Ok(event) if link.travel(LinkPlace::Metadata).await => sender.send(event),
            Ok(_) | Err(WatchEnd::Lagged) => {
                while link.links.is_cut(link.node, LinkPlace::Metadata) {
                    link.env.sleep(LOOK).await;
                }
                while real.try_next().is_some_and(|next| next != Err(WatchEnd::Closed)) {}
                sender.lag();
            }
            Err(WatchEnd::Closed) => return,
        }
    }
}
