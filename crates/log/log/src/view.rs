//! What everybody but the owner sees of a shard.
//!
//! The owner replaces it before it acknowledges anything that it shows, so whoever was acknowledged finds his
//! records in it. Reading it never waits for the owner.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use tailwater_format::{Offset, SegmentId, ShardId, Tail, TransactionId};
use tokio::sync::Notify;

use crate::hot::{Hot, HotNewest};
use crate::stream::SegmentRecord;

/// A shard at one moment.
#[derive(Clone, Debug)]
pub struct View {
    /// Which shard.
    pub shard: ShardId,
    /// Its tail; `cached` is not filled in.
    pub tail: Tail,
    /// Running transaction id of its last visible record; -1 before the first.
    pub transaction_id: TransactionId,
    /// Offset after the last record that other clusters may copy. In a copy it may be behind the tail's end: what is
    /// durable at the source and not here yet.
    pub copyable_next: Offset,
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

/// A [`View`] that its owner replaces, with the newest entries, and those who wait for the next ones.
#[derive(Debug)]
pub(crate) struct SharedView {
    view: RwLock<View>,
    newest: Mutex<HotNewest>,
    listeners: Mutex<Vec<Arc<Notify>>>,
    /// Written under the lock of `listeners`. Read by the owner after it has replaced the view; a listener looks at
    /// the view after it was added, so one of the two sees the other.
    listening: AtomicUsize,
}

impl SharedView {
    pub(crate) fn new(view: View) -> Arc<Self> {
        Arc::new(Self {
            view: RwLock::new(view),
            newest: Mutex::default(),
            listeners: Mutex::default(),
            listening: AtomicUsize::new(0),
        })
    }

    /// Shows a shard that was given up and is opened again, which may end before where it did.
    pub(crate) fn begin_anew(self: &Arc<Self>, view: View) -> Arc<Self> {
        *self.view.write() = view;
        Arc::clone(self)
    }

    pub(crate) fn get(&self) -> View {
        self.view.read().clone()
    }

    pub(crate) fn tail(&self) -> Tail {
        self.view.read().tail
    }

    /// Called by the shard's owner only.
    pub(crate) fn set(
        &self,
        tail: Tail,
        transaction_id: TransactionId,
        copyable_next: Offset,
        completed: Option<Arc<[SegmentRecord]>>,
    ) {
        {
            let mut view = self.view.write();
            assert!(
                view.tail.segment <= tail.segment.next(),
                "{}: what readers were shown goes forward",
                view.shard
            );
            // Removed records that come back are in the list.
            assert!(
                view.tail.log_start <= tail.log_start || completed.is_some(),
                "{}: the log begins with what is listed",
                view.shard
            );
            debug_assert!(tail.is_possible(), "{}: {tail:?}", view.shard);
            view.tail = tail;
            view.transaction_id = transaction_id;
            view.copyable_next = copyable_next;
            if let Some(completed) = completed {
                view.completed = completed;
            }
        }
        if self.listening.load(Ordering::SeqCst) > 0 {
            self.wake();
        }
    }

    /// Tells listeners to look again.
    pub(crate) fn wake(&self) {
        for listener in &*self.listeners.lock() {
            listener.notify_one();
        }
    }

    /// Keeps an entry in memory that [`SharedView::set`] is about to show. Called by the shard's owner only.
    pub(crate) fn keep(self: &Arc<Self>, hot: &Hot, base_offset: Offset, next_offset: Offset, entry: &Bytes) {
        if hot.is_on() {
            self.newest.lock().push(base_offset, next_offset, entry.clone());
            hot.kept(self, entry.len());
        }
    }

    /// The same for an entry that is copied on before it is shown. Called by the shard's owner only.
    pub(crate) fn keep_ahead(
        self: &Arc<Self>,
        hot: &Hot,
        base_offset: Offset,
        next_offset: Offset,
        entry: &Bytes,
    ) {
        if hot.is_on() {
            self.keep(hot, base_offset, next_offset, entry);
            self.view.write().copyable_next = next_offset;
            if self.listening.load(Ordering::SeqCst) > 0 {
                self.wake();
            }
        }
    }

    pub(crate) fn newest(&self) -> &Mutex<HotNewest> {
        &self.newest
    }

    fn add(&self, listener: &Arc<Notify>) {
        let mut listeners = self.listeners.lock();
        listeners.push(Arc::clone(listener));
        self.listening.store(listeners.len(), Ordering::SeqCst);
    }

    fn remove(&self, listener: &Arc<Notify>) {
        let mut listeners = self.listeners.lock();
        if let Some(index) = listeners.iter().position(|other| Arc::ptr_eq(other, listener)) {
            listeners.swap_remove(index);
        }
        self.listening.store(listeners.len(), Ordering::SeqCst);
    }
}

/// Is told when a shard that it listens to changes, or is deleted. Dropping it leaves nothing behind.
#[derive(Debug)]
pub struct Listener {
    notify: Arc<Notify>,
    views: Vec<Arc<SharedView>>,
}

impl Listener {
    pub(crate) fn new(views: Vec<Arc<SharedView>>) -> Self {
        let notify = Arc::new(Notify::new());
        for view in &views {
            view.add(&notify);
        }
        Self { notify, views }
    }

    /// Completes when one of the shards has changed or was deleted since the listener was made, or since this completed
    /// last. So: listen first, then look, then wait. Cancelling it loses nothing.
    pub async fn changed(&self) {
        self.notify.notified().await;
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        for view in &self.views {
            view.remove(&self.notify);
        }
    }
}
