//! The contents that are in memory: all that the tree does not have yet, and the oldest of what it has.

use std::collections::VecDeque;

use bytes::Bytes;
use tailwater_env::HashMap;

use crate::ids::Number;
use crate::limits::HOT_BYTES;

/// Contents by number.
#[derive(Default)]
pub(crate) struct Contents {
    contents: HashMap<Number, Bytes>,
    bytes: u64,
    /// Those that the tree has too, older ones first; some are gone.
    stored: VecDeque<Number>,
}

impl Contents {
    pub(crate) fn insert(&mut self, number: Number, content: Bytes) {
        self.bytes += content.len() as u64;
        if let Some(before) = self.contents.insert(number, content) {
            self.bytes -= before.len() as u64;
        }
    }

    pub(crate) fn get(&self, number: Number) -> Option<Bytes> {
        self.contents.get(&number).cloned()
    }

    pub(crate) fn remove(&mut self, number: Number) {
        if let Some(content) = self.contents.remove(&number) {
            self.bytes -= content.len() as u64;
        }
    }

    /// Bytes of all.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The tree has these too: the newest go, until what is left fits. The oldest will be received first.
    pub(crate) fn stored(&mut self, numbers: impl Iterator<Item = Number>) {
        self.stored.extend(numbers);
        while self.bytes > HOT_BYTES
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
