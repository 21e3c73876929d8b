//! The order in which items were last modified, as a doubly linked list through the table's nodes.

use super::slabs::NOBODY;

/// A node's place in the list.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecencyLinks {
    older: u32,
    newer: u32,
}

impl RecencyLinks {
    pub(super) const NONE: RecencyLinks = RecencyLinks { older: NOBODY, newer: NOBODY };
}

/// Anything that finds a node's links by its number.
pub(super) trait RecencyNodes {
    fn links(&mut self, node: u32) -> &mut RecencyLinks;
}

/// The list's ends.
pub(super) struct Recency {
    oldest: u32,
    newest: u32,
}

impl Recency {
    pub(super) const EMPTY: Recency = Recency { oldest: NOBODY, newest: NOBODY };

    /// The node that was not modified for the longest time.
    pub(super) fn oldest(&self) -> Option<u32> {
        (self.oldest != NOBODY).then_some(self.oldest)
    }

    /// Appends a node that is not in the list.
    pub(super) fn push(&mut self, node: u32, nodes: &mut impl RecencyNodes) {
        *nodes.links(node) = RecencyLinks { older: self.newest, newer: NOBODY };
        match self.newest {
            NOBODY => self.oldest = node,
            newest => nodes.links(newest).newer = node,
        }
        self.newest = node;
    }

    /// Takes a node out of the list.
    pub(super) fn unlink(&mut self, node: u32, nodes: &mut impl RecencyNodes) {
        let RecencyLinks { older, newer } = std::mem::replace(nodes.links(node), RecencyLinks::NONE);
        match older {
            NOBODY => self.oldest = newer,
            older => nodes.links(older).newer = newer,
        }
        match newer {
            NOBODY => self.newest = older,
            newer => nodes.links(newer).older = older,
        }
    }
}
