//! What a store tells of single segments, until the owner's next round: at most one piece of news for each shard.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tailwater_store::{EntryPlace, SegmentWatch};
use tokio::sync::Notify;

use crate::slots::Slot;

/// News of one shard: what became durable, and behind it what was given up.
#[derive(Default)]
pub(super) struct SlotNews {
    pub(super) durable: Option<EntryPlace>,
    pub(super) lost: Option<Arc<str>>,
}

/// News of all shards of an owner.
pub(super) struct OwnerNews {
    news: Mutex<BTreeMap<Slot, SlotNews>>,
    /// Wakes the owner's task.
    wake: Arc<Notify>,
}

impl OwnerNews {
    pub(super) fn new(wake: &Arc<Notify>) -> Arc<Self> {
        Arc::new(Self { news: Mutex::default(), wake: Arc::clone(wake) })
    }

    /// What there is, once.
    pub(super) fn take(&self) -> BTreeMap<Slot, SlotNews> {
        std::mem::take(&mut *self.news.lock())
    }

    fn tell(&self, slot: Slot, tell: impl FnOnce(&mut SlotNews)) {
        tell(self.news.lock().entry(slot).or_default());
        self.wake.notify_one();
    }
}

/// Who tells an owner of the segments of one shard.
struct SlotWatch {
    slot: Slot,
    told: Option<Arc<OwnerNews>>,
}

/// A watch for segments of the shard in `slot`; one that tells nobody where a journal tells of all.
pub(super) fn watch(told: &Option<Arc<OwnerNews>>, slot: Slot) -> Arc<dyn SegmentWatch> {
    Arc::new(SlotWatch { slot, told: told.clone() })
}

impl SegmentWatch for SlotWatch {
    fn durable(&self, upto: EntryPlace) {
        let Some(told) = &self.told else { return };
        told.tell(self.slot, |news| news.durable = news.durable.max(Some(upto)));
    }

    fn lost(&self, why: &str) {
        let Some(told) = &self.told else { return };
        told.tell(self.slot, |news| news.lost = Some(why.into()));
    }
}
