//! Following keys: a bounded queue of events from the store to one reader.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::contract::Versioned;
use crate::limits::{WATCH_BYTES_MAX, WATCH_EVENTS_MAX};

/// A key's change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The key.
    pub key: String,
    /// What it is by now; `None` if it was removed.
    pub value: Option<Versioned>,
}

/// Why there is no next event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WatchEnd {
    /// The reader was too slow, and events were dropped. List again; events after that follow.
    #[error("events were dropped: list again")]
    Lagged,
    /// The store has ended, or the connection to it; there will be no more.
    #[error("the watch has ended")]
    Closed,
}

/// The reader's end of a watch; see [`crate::Meta::watch`]. Dropping it ends the watch.
#[derive(Debug)]
pub struct Watch {
    shared: Arc<WatchShared>,
}

/// The store's end of a watch.
#[derive(Debug)]
pub struct WatchSender {
    shared: Arc<WatchShared>,
}

#[derive(Debug, Default)]
struct WatchShared {
    queue: Mutex<Queue>,
    /// One permit is enough: there is one reader.
    changed: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    events: VecDeque<Event>,
    bytes: usize,
    lagged: bool,
    closed: bool,
}

/// Both ends of a watch, for whoever implements [`crate::Meta`].
pub fn watch_channel() -> (WatchSender, Watch) {
    let shared = Arc::new(WatchShared::default());
    (WatchSender { shared: Arc::clone(&shared) }, Watch { shared })
}

impl Watch {
    /// The next event. Dropping the future loses none.
    pub async fn next(&mut self) -> Result<Event, WatchEnd> {
        loop {
            if let Some(next) = self.try_next() {
                return next;
            }
            self.shared.changed.notified().await;
        }
    }

    /// The next event if there is one already.
    pub fn try_next(&mut self) -> Option<Result<Event, WatchEnd>> {
        let mut queue = self.shared.queue.lock();
        if std::mem::take(&mut queue.lagged) {
            return Some(Err(WatchEnd::Lagged));
        }
        if let Some(event) = queue.events.pop_front() {
            queue.bytes -= size(&event);
            return Some(Ok(event));
        }
        queue.closed.then_some(Err(WatchEnd::Closed))
    }
}

impl WatchSender {
    /// Adds an event; drops all that are there if they have become too many.
    pub fn send(&self, event: Event) {
        let mut queue = self.shared.queue.lock();
        let bytes = queue.bytes + size(&event);
        if queue.events.len() >= WATCH_EVENTS_MAX || bytes > WATCH_BYTES_MAX {
            queue.events.clear();
            queue.bytes = 0;
            queue.lagged = true;
        } else {
            queue.bytes = bytes;
            queue.events.push_back(event);
        }
        drop(queue);
        self.shared.changed.notify_one();
    }

    /// Events may have been missed: drops those that are there, and has the reader list again.
    pub fn lag(&self) {
        let mut queue = self.shared.queue.lock();
        queue.events.clear();
        queue.bytes = 0;
        queue.lagged = true;
        drop(queue);
        self.shared.changed.notify_one();
    }

    /// Whether the reader has dropped its end.
    pub fn is_abandoned(&self) -> bool {
        Arc::strong_count(&self.shared) == 1
    }
}

impl Drop for WatchSender {
    fn drop(&mut self) {
        self.shared.queue.lock().closed = true;
        self.shared.changed.notify_one();
    }
}

fn size(event: &Event) -> usize {
    event.key.len() + event.value.as_ref().map_or(0, |versioned| versioned.value.len())
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn event(number: usize, bytes: usize) -> Event {
        let value = Some(Versioned { value: Bytes::from(vec![0; bytes]), version: number as u64 });
        Event { key: number.to_string(), value }
    }

    fn next(watch: &mut Watch) -> Result<Event, WatchEnd> {
        futures::executor::block_on(watch.next())
    }

    #[test]
    fn events_come_in_order_and_the_end_after_them() {
        let (sender, mut watch) = watch_channel();
        sender.send(event(1, 1));
        sender.send(event(2, 1));
        drop(sender);
        assert_eq!(next(&mut watch), Ok(event(1, 1)));
        assert_eq!(next(&mut watch), Ok(event(2, 1)));
        assert_eq!(next(&mut watch), Err(WatchEnd::Closed));
        assert_eq!(next(&mut watch), Err(WatchEnd::Closed));
    }

    #[test]
    fn a_reader_that_is_too_slow_is_told_and_goes_on_with_what_comes_after() {
        for (count, bytes) in [(WATCH_EVENTS_MAX + 1, 1), (8, 1 << 20)] {
            let (sender, mut watch) = watch_channel();
            (0..count).for_each(|number| sender.send(event(number, bytes)));
            assert!(sender.shared.queue.lock().bytes <= WATCH_BYTES_MAX);
            assert_eq!(next(&mut watch), Err(WatchEnd::Lagged));
            assert_eq!(watch.try_next(), None);
            sender.send(event(5000, 1));
            assert_eq!(next(&mut watch), Ok(event(5000, 1)));
        }
    }

    #[test]
    fn the_store_notices_that_the_reader_is_gone() {
        let (sender, watch) = watch_channel();
        assert!(!sender.is_abandoned());
        drop(watch);
        assert!(sender.is_abandoned());
    }
}
