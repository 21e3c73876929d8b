//! What was read last, each thing once however many ask for it at the same time.

use std::collections::VecDeque;
use std::hash::Hash;
use std::sync::Arc;

use parking_lot::Mutex;
use tailwater_env::HashMap;
use tokio::sync::OnceCell;

struct RecentContent<K, V> {
    cells: HashMap<K, Arc<OnceCell<V>>>,
    /// The one that was asked for longest ago first.
    order: VecDeque<K>,
}

/// The last `count_max` things that were asked for.
pub(crate) struct Recent<K, V> {
    count_max: usize,
    content: Mutex<RecentContent<K, V>>,
}

impl<K: Copy + Eq + Hash, V> Recent<K, V> {
    pub(crate) fn new(count_max: usize) -> Self {
        let content = RecentContent { cells: HashMap::default(), order: VecDeque::new() };
        Self { count_max, content: Mutex::new(content) }
    }

    /// The place of a thing, for whoever comes first to fill. One that could not be filled is tried again.
    pub(crate) fn cell(&self, key: K) -> Arc<OnceCell<V>> {
        let content = &mut *self.content.lock();
        match content.cells.get(&key) {
            // Few enough to look through.
            Some(_) => content.order.retain(|other| *other != key),
            None => {
                content.cells.insert(key, Arc::default());
            }
        }
        content.order.push_back(key);
        while content.order.len() > self.count_max
            && let Some(oldest) = content.order.pop_front()
        {
            content.cells.remove(&oldest);
        }
        Arc::clone(&content.cells[&key])
    }

    /// Whether a thing has a place, filled or not.
    pub(crate) fn has(&self, key: &K) -> bool {
        self.content.lock().cells.contains_key(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_asked_for_longest_ago_makes_room() {
        let recent = Recent::<u64, u64>::new(2);
        recent.cell(1).set(10).expect("empty");
        recent.cell(2);
        assert_eq!(recent.cell(1).get(), Some(&10));
        recent.cell(3);
        assert!(recent.has(&1) && !recent.has(&2) && recent.has(&3));
        assert_eq!(recent.content.lock().cells.len(), 2);
    }
}
