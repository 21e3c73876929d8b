//! What everybody but the owner sees of a shard.
//!
//! The owner replaces it before it acknowledges anything that it shows, so whoever was acknowledged finds his
//! records in it, and after it has kept the newest entries in memory, so whoever sees them finds them there
//! ([`SharedView::show`]). Reading it never waits for the owner.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use tailwater_format::{AppendedTo, DurableTo, Offset, SegmentId, ShardId, Tail, TransactionId};
use tokio::sync::Notify;

use crate::hot::{Hot, HotNewest};
use crate::shard::{Output, Shard, ViewChange};
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
    pub copyable_next: DurableTo<Offset>,
    /// Its completed segments, oldest first.
    pub completed: Arc<[SegmentRecord]>,
}

impl View {
    /// A shard that is opened.
    pub(crate) fn of(shard: &Shard) -> Self {
        Self {
            shard: shard.id(),
            tail: shard.tail(),
            transaction_id: shard.acked_transaction_id(),
            copyable_next: shard.copyable_next(),
            completed: shard.completed().copied().collect(),
        }
    }

    /// The open segment, if it has records.
    pub fn open(&self) -> Option<SegmentId> {
        let tail = &self.tail;
        (!tail.sealed && tail.durable.0 > 0).then(|| tail.segment_id(self.shard))
    }

    /// Asserts that what follows goes forward.
    fn check_order(&self, news: &ViewNews) {
        let (shard, before, after) = (self.shard, &self.tail, &news.tail);
        // A segment of which all was lost is none any more.
        let oldest = if news.taken_back { after.segment.next() } else { after.segment };
        assert!(before.segment <= oldest, "{shard}: what readers were shown goes forward");
        // Removed records come back with their segments, or in one that has stayed.
        let listed = news.completed.as_deref().unwrap_or(&self.completed);
        let first = listed.first().map_or(after.base_offset, |segment| segment.base_offset);
        assert!(
            before.log_start <= after.log_start || first <= after.log_start,
            "{shard}: the log begins with what is listed, at {first}: {before:?}, and then {after:?}"
        );
        let is_same = (before.segment, before.term) == (after.segment, after.term);
        assert!(
            news.taken_back
                || (before.next_offset <= after.next_offset && !(is_same && before.durable > after.durable)),
            "{shard}: readers were shown more: {before:?}, and then {after:?}"
        );
        assert!(
            after.next_offset <= news.accepted_next.get(),
            "{shard}: {} was not accepted",
            after.next_offset
        );
        debug_assert!(after.is_possible(), "{shard}: {after:?}");
    }

    /// A completed segment's full name.
    pub fn id(&self, segment: &SegmentRecord) -> SegmentId {
        SegmentId { shard: self.shard, number: segment.number, term: segment.term }
    }
}

/// What an owner shows of its shard.
#[derive(Debug)]
struct ViewNews {
    tail: Tail,
    transaction_id: TransactionId,
    copyable_next: DurableTo<Offset>,
    /// How far records were accepted.
    accepted_next: AppendedTo<Offset>,
    /// The completed segments, if they changed.
    completed: Option<Arc<[SegmentRecord]>>,
    /// Whether records were lost: only then it may end before where it did.
    taken_back: bool,
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

    /// Shows what a step has changed of a shard, with what it put out. Called by the shard's owner only.
    ///
    /// # Panics
    /// If the shard ends before where it did, and nothing was taken back. A copy that begins anew behind what its
    /// source has removed goes forward; a shard that is opened again, whose end others may have cut, is shown by
    /// [`SharedView::begin_anew`].
    pub(crate) fn show(self: &Arc<Self>, hot: &Hot, shard: &Shard, changed: ViewChange, out: &[Output]) {
        let mut is_copyable = false;
        for output in out {
            match output {
                Output::Extend { base_offset, bytes, tail, was_taken: false, .. } => {
                    self.keep(hot, *base_offset, tail.next_offset, bytes);
                }
                Output::Took { base_offset, next_offset, bytes } => {
                    self.keep(hot, *base_offset, *next_offset, bytes);
                    is_copyable = true;
                }
                _ => {}
            }
        }
        if changed.tail || changed.list {
            self.set(ViewNews {
                tail: shard.tail(),
                transaction_id: shard.acked_transaction_id(),
                copyable_next: shard.copyable_next(),
                accepted_next: shard.accepted_next(),
                completed: changed.list.then(|| shard.completed().copied().collect()),
                taken_back: changed.taken_back,
            });
        } else if is_copyable && hot.is_on() {
            self.set_copyable(shard.copyable_next(), shard.accepted_next());
        }
    }

    fn set(&self, news: ViewNews) {
        {
            let mut view = self.view.write();
            view.check_order(&news);
            view.tail = news.tail;
            view.transaction_id = news.transaction_id;
            if news.taken_back {
                view.copyable_next = news.copyable_next;
            } else {
                view.copyable_next.advance(news.copyable_next.get(), news.accepted_next);
            }
            if let Some(completed) = news.completed {
                view.completed = completed;
            }
        }
        self.wake_listening();
    }

    /// Shows that more may be copied, of which readers see nothing yet.
    fn set_copyable(&self, copyable_next: DurableTo<Offset>, accepted_next: AppendedTo<Offset>) {
        self.view.write().copyable_next.advance(copyable_next.get(), accepted_next);
        self.wake_listening();
    }

    fn wake_listening(&self) {
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

    /// Keeps an entry in memory that is about to be shown.
    pub(crate) fn keep(self: &Arc<Self>, hot: &Hot, base_offset: Offset, next_offset: Offset, entry: &Bytes) {
        if hot.is_on() {
            self.newest.lock().push(base_offset, next_offset, entry.clone());
            hot.kept(self, entry.len());
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

#[cfg(test)]
mod tests;
