//! The contents that are in memory: all that the tree does not have yet, and the oldest of what it has.

use std::collections::VecDeque;

use bytes::Bytes;
use tailwater_env::HashMap;

use crate::ids::Number;
use crate::limits::{CONTENT_OVERHEAD_BYTES, HOT_BYTES};

/// Contents by number.
#[derive(Default)]
pub(crate) struct Contents {
    contents: HashMap<Number, Bytes>,
    /// What they take in memory, about.
    bytes: u64,
    /// Those that the tree has too, older ones first; some are gone.
    stored: VecDeque<Number>,
}

impl Contents {
    pub(crate) fn insert(&mut self, number: Number, content: Bytes) {
        self.bytes += cost(&content);
        if let Some(before) = self.contents.insert(number, content) {
            self.bytes -= cost(&before);
        }
    }

    pub(crate) fn get(&self, number: Number) -> Option<Bytes> {
        self.contents.get(&number).cloned()
    }

    pub(crate) fn has(&self, number: Number) -> bool {
        self.contents.contains_key(&number)
    }

    /// A content that the tree has, too, and that will be received before all others of these.
    pub(crate) fn insert_read(&mut self, number: Number, content: Bytes) {
        if !self.has(number) {
            self.insert(number, content);
            self.stored.push_front(number);
            self.evict(2 * HOT_BYTES);
        }
    }

    pub(crate) fn remove(&mut self, number: Number) {
        if let Some(content) = self.contents.remove(&number) {
            self.bytes -= cost(&content);
        }
    }

    /// Bytes of memory that all take, about.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The tree has these too: the newest go, until what is left fits. The oldest will be received first.
    pub(crate) fn stored(&mut self, numbers: impl Iterator<Item = Number>) {
        self.stored.extend(numbers);
        self.evict(HOT_BYTES);
    }

    fn evict(&mut self, most: u64) {
        while self.bytes > most
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
        self.bytes = 0;
        self.stored.clear();
        std::mem::take(&mut self.contents).into_iter()
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
        for number in 1_000..1_000 + 2 * most {
            contents.insert_read(Number(number), content.clone());
        }
        assert_eq!(contents.bytes(), 2 * HOT_BYTES);
        assert!(contents.has(Number(1_000)) && !contents.has(Number(0)));
    }
}
