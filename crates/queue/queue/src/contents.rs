//! The contents that are in memory: all that the tree does not have yet, and the oldest of what it has.

use std::collections::VecDeque;

use bytes::Bytes;
use tailwater_env::HashMap;

use crate::ids::Number;
use crate::limits::{CONTENT_OVERHEAD_BYTES, HOT_BYTES};

/// Contents by number.
#[derive(Default)]
pub(crate) struct Contents {
    contents: HashMap<Number, KeptContent>,
    /// What they take in memory, about.
    bytes: u64,
    /// What of that those take that the tree has too.
    stored_bytes: u64,
    /// These, older ones first; some are gone.
    stored: VecDeque<Number>,
}

struct KeptContent {
    content: Bytes,
    /// Whether the tree has it too.
    is_stored: bool,
}

impl Contents {
    pub(crate) fn insert(&mut self, number: Number, content: Bytes) {
        self.put(number, KeptContent { content, is_stored: false });
    }

    fn put(&mut self, number: Number, kept: KeptContent) {
        self.count(&kept, u64::wrapping_add);
        if let Some(before) = self.contents.insert(number, kept) {
            self.count(&before, u64::wrapping_sub);
        }
    }

    fn count(&mut self, kept: &KeptContent, change: impl Fn(u64, u64) -> u64) {
        let cost = cost(&kept.content);
        self.bytes = change(self.bytes, cost);
        self.stored_bytes = change(self.stored_bytes, if kept.is_stored { cost } else { 0 });
    }

    pub(crate) fn get(&self, number: Number) -> Option<Bytes> {
        self.contents.get(&number).map(|kept| kept.content.clone())
    }

    pub(crate) fn has(&self, number: Number) -> bool {
        self.contents.contains_key(&number)
    }

    /// A content that the tree has, too, and that will be received before all others of these.
    pub(crate) fn insert_read(&mut self, number: Number, content: Bytes) {
        if !self.has(number) {
            self.put(number, KeptContent { content, is_stored: true });
            self.stored.push_front(number);
            self.evict();
        }
    }

    pub(crate) fn remove(&mut self, number: Number) {
        if let Some(kept) = self.contents.remove(&number) {
            self.count(&kept, u64::wrapping_sub);
        }
    }

    /// Bytes of memory that all take, about.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The tree has these too: the newest go, until what is left fits. The oldest will be received first.
    pub(crate) fn stored(&mut self, numbers: impl Iterator<Item = Number>) {
        for number in numbers {
            if let Some(kept) = self.contents.get_mut(&number).filter(|kept| !kept.is_stored) {
                kept.is_stored = true;
                self.stored_bytes += cost(&kept.content);
                self.stored.push_back(number);
            }
        }
        self.evict();
    }

    /// What the tree does not have yet is not counted: what is received next would have to go whenever much is sent.
    fn evict(&mut self) {
        while self.stored_bytes > HOT_BYTES
            && let Some(number) = self.stored.pop_back()
        {
            self.remove(number);
        }
        if self.stored.len() > 2 * self.contents.len() + 1024 {
            let Self { stored, contents, .. } = self;
            stored.retain(|number| contents.contains_key(number));
        }
    }

    /// Takes everything out, with its numbers.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = (Number, Bytes)> {
        (self.bytes, self.stored_bytes) = (0, 0);
        self.stored.clear();
        std::mem::take(&mut self.contents).into_iter().map(|(number, kept)| (number, kept.content))
    }
}

fn cost(content: &Bytes) -> u64 {
    content.len() as u64 + CONTENT_OVERHEAD_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_what_the_tree_has_too_the_next_ones_stay_and_those_read_ahead_before_all() {
        let mut contents = Contents::default();
        let content = Bytes::from(vec![0; (1 << 20) - CONTENT_OVERHEAD_BYTES as usize]);
        let most = HOT_BYTES >> 20;
        for number in 0..2 * most {
            contents.insert(Number(number), content.clone());
        }
        assert_eq!(contents.bytes(), 2 * HOT_BYTES, "what the tree does not have stays");
        contents.stored((0..2 * most).map(Number));
        assert_eq!(contents.bytes(), HOT_BYTES);
        assert!(contents.has(Number(most - 1)) && !contents.has(Number(most)));
        // However much is waiting for the tree, what was read ahead is there until it was received.
        for number in 500..500 + 3 * most {
            contents.insert(Number(number), content.clone());
        }
        for number in 1_000..1_000 + most / 2 {
            contents.insert_read(Number(number), content.clone());
        }
        assert_eq!(contents.bytes(), 4 * HOT_BYTES);
        assert!((1_000..1_000 + most / 2).all(|number| contents.has(Number(number))));
        assert!(contents.has(Number(0)) && !contents.has(Number(most / 2)));
        contents.stored((500..500 + 3 * most).map(Number));
        assert_eq!(contents.bytes(), HOT_BYTES);
        assert!(contents.has(Number(1_000)) && contents.has(Number(0)) && !contents.has(Number(500)));
        for number in (1_000..1_000 + most / 2).chain(0..most / 2) {
            contents.remove(Number(number));
        }
        assert_eq!((contents.bytes(), contents.stored_bytes), (0, 0));
    }
}
