//! What everybody but the owner sees of a shard.
//!
//! The owner replaces it before it acknowledges anything that it shows, so whoever was acknowledged finds his
//! records in it. Reading it never waits for the owner.

use std::sync::Arc;

use parking_lot::RwLock;
use tailwater_format::{SegmentId, ShardId, Tail};

use crate::stream::SegmentRecord;

/// A shard at one moment.
#[derive(Clone, Debug)]
pub struct View {
    /// Which shard.
    pub shard: ShardId,
    /// Its tail; `cached` is not filled in.
    pub tail: Tail,
    /// Its completed segments, oldest first.
    pub completed: Arc<[SegmentRecord]>,
}

impl View {
    /// The open segment, if it has records.
    pub fn open(&self) -> Option<SegmentId> {
        let tail = &self.tail;
        (!tail.sealed && tail.durable.0 > 0).then(|| tail.segment_id(self.shard))
    }

    /// A completed segment's full name.
    pub fn id(&self, segment: &SegmentRecord) -> SegmentId {
        SegmentId { shard: self.shard, number: segment.number, term: segment.term }
    }
}

/// A [`View`] that its owner replaces.
#[derive(Debug)]
pub(crate) struct SharedView(RwLock<View>);

impl SharedView {
    pub(crate) fn new(view: View) -> Arc<Self> {
        Arc::new(Self(RwLock::new(view)))
    }

    pub(crate) fn get(&self) -> View {
        self.0.read().clone()
    }

    pub(crate) fn tail(&self) -> Tail {
        self.0.read().tail
    }

    /// Called by the shard's owner only.
    pub(crate) fn set(&self, tail: Tail, completed: Option<Arc<[SegmentRecord]>>) {
        let mut view = self.0.write();
        view.tail = tail;
        if let Some(completed) = completed {
            view.completed = completed;
        }
    }
}
