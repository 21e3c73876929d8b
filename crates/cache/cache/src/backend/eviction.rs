//! Which item is removed when there has to be room for another one.
//!
//! Readers run no code here: clients tell afterwards which keys they have read, in batches, and not of all. What they
//! tell decides which value goes sooner, and nothing else. Where nobody tells anything, every policy here goes by the
//! order in which items were set.
//!
//! - *LRM* removes what was not modified for longest. The table has that order in any case, as items expire by it.
//! - *LRU* removes what was neither modified nor read for longest.
//! - *S3-FIFO* has two queues. What is new goes through the small one, which has a tenth of the bytes. What was used
//!   on the way goes on to the main one, and the rest is removed. What was used in the main one goes round again. The
//!   names of what the small one has removed are kept for a while: what comes back goes to the main one at once. So
//!   items that are set once and never read pass by those that are read. Clients tell a key once in a batch, however
//!   often they have read it, so one use is enough, where the algorithm counts two.

use std::collections::{BTreeSet, VecDeque};

use super::{KeyHash, NodeArena, Recency, RecencyLinks, RecencyNodes};

/// The small queue gives up items while it has more than this part of all bytes.
const SMALL_ONE_IN: u64 = 10;

/// Uses of an item that are counted, at most: so often it goes round.
const USES_MAX: u8 = 3;

/// Items that are looked at for one that is not used any more, at most: the table is locked meanwhile. After so many
/// the next one goes, though it was used.
const LOOKS_MAX: usize = 256;

/// Names of removed items that are kept, at least. At most they are as many as there are items.
const GHOSTS_MIN: usize = 64;

/// By what an item is chosen that has to go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EvictionPolicy {
    /// That which was not modified for longest.
    #[default]
    Lrm,
    /// That which was neither modified nor read for longest, as far as clients tell.
    Lru,
    /// By S3-FIFO: what was read, as far as clients tell, outlasts what was only set.
    S3Fifo,
}

impl EvictionPolicy {
    /// Whether it goes by what clients have read.
    pub const fn wants_touches(self) -> bool {
        !matches!(self, EvictionPolicy::Lrm)
    }
}

/// A node's place in the order in which items are removed.
#[derive(Clone, Copy, Debug)]
pub(super) struct EvictionPlace {
    links: RecencyLinks,
    /// In the small queue.
    is_small: bool,
    /// How often it was used since it came to where it is.
    pub(super) uses: u8,
    /// Bytes that the small queue counts for it.
    bytes: u32,
}

impl EvictionPlace {
    pub(super) const NONE: EvictionPlace =
        EvictionPlace { links: RecencyLinks::NONE, is_small: false, uses: 0, bytes: 0 };
}

struct EvictionNodes<'a>(&'a mut NodeArena);

impl EvictionNodes<'_> {
    fn place(&mut self, node: u32) -> &mut EvictionPlace {
        &mut self.0.0[node as usize].eviction
    }
}

impl RecencyNodes for EvictionNodes<'_> {
    fn links(&mut self, node: u32) -> &mut RecencyLinks {
        &mut self.place(node).links
    }
}

/// All nodes in that order. By LRM it has none.
pub(super) struct EvictionOrder {
    policy: EvictionPolicy,
    main: Recency,
    small: Recency,
    small_bytes: u64,
    ghosts: Ghosts,
}

impl EvictionOrder {
    pub(super) fn new(policy: EvictionPolicy) -> Self {
        let (main, small) = (Recency::EMPTY, Recency::EMPTY);
        Self { policy, main, small, small_bytes: 0, ghosts: Ghosts::default() }
    }

    pub(super) fn policy(&self) -> EvictionPolicy {
        self.policy
    }

    /// Takes in a node that is new.
    pub(super) fn insert(&mut self, node: u32, nodes: &mut NodeArena) {
        if self.policy == EvictionPolicy::Lrm {
            return;
        }
        let (hash, bytes) = (nodes.0[node as usize].hash, nodes.0[node as usize].len);
        let is_small = self.policy == EvictionPolicy::S3Fifo && !self.ghosts.take(hash);
        let mut nodes = EvictionNodes(nodes);
        *nodes.place(node) = EvictionPlace { is_small, bytes, ..EvictionPlace::NONE };
        if is_small {
            self.small_bytes += u64::from(bytes);
            self.small.push(node, &mut nodes);
        } else {
            self.main.push(node, &mut nodes);
        }
    }

    /// Lets go of a node.
    pub(super) fn remove(&mut self, node: u32, nodes: &mut NodeArena) {
        if self.policy == EvictionPolicy::Lrm {
            return;
        }
        let mut nodes = EvictionNodes(nodes);
        if nodes.place(node).is_small {
            self.small_bytes -= u64::from(nodes.place(node).bytes);
            self.small.unlink(node, &mut nodes);
        } else {
            self.main.unlink(node, &mut nodes);
        }
    }

    /// A node's item was replaced by one of other length.
    pub(super) fn resize(&mut self, node: u32, bytes: u32, nodes: &mut NodeArena) {
        let mut nodes = EvictionNodes(nodes);
        let place = nodes.place(node);
        let before = std::mem::replace(&mut place.bytes, bytes);
        if place.is_small {
            self.small_bytes = self.small_bytes - u64::from(before) + u64::from(bytes);
        }
    }

    /// A node's item was read, or set again.
    pub(super) fn note_use(&mut self, node: u32, nodes: &mut NodeArena) {
        let mut nodes = EvictionNodes(nodes);
        match self.policy {
            EvictionPolicy::Lrm => {}
            EvictionPolicy::Lru => {
                self.main.unlink(node, &mut nodes);
                self.main.push(node, &mut nodes);
            }
            EvictionPolicy::S3Fifo => {
                let uses = &mut nodes.place(node).uses;
                *uses = (*uses + 1).min(USES_MAX);
            }
        }
    }

    /// A node's item is about to be removed for room. `items` are held.
    pub(super) fn note_evicted(&mut self, node: u32, items: usize, nodes: &mut NodeArena) {
        let hash = nodes.0[node as usize].hash;
        if EvictionNodes(nodes).place(node).is_small {
            self.ghosts.add(hash, items.max(GHOSTS_MIN));
        }
    }

    /// Forgets what was removed.
    pub(super) fn forget(&mut self) {
        self.ghosts = Ghosts::default();
    }

    /// The node that is to go next; `live_bytes` are held. Nodes that were used take another place on the way.
    pub(super) fn next(&mut self, live_bytes: u64, nodes: &mut NodeArena) -> Option<u32> {
        let mut nodes = EvictionNodes(nodes);
        for _ in 0..LOOKS_MAX {
            let is_small_full = self.small_bytes * SMALL_ONE_IN > live_bytes;
            let from_small = self.small.oldest().filter(|_| is_small_full || self.main.oldest().is_none());
            let node = from_small.or(self.main.oldest())?;
            let place = nodes.place(node);
            if place.uses == 0 {
                return Some(node);
            }
            if place.is_small {
                let bytes = place.bytes;
                (place.is_small, place.uses) = (false, 0);
                self.small_bytes -= u64::from(bytes);
                self.small.unlink(node, &mut nodes);
            } else {
                place.uses -= 1;
                self.main.unlink(node, &mut nodes);
            }
            self.main.push(node, &mut nodes);
        }
        self.peek()
    }

    /// A node that is to go next or soon; none by LRM.
    pub(super) fn peek(&self) -> Option<u32> {
        self.small.oldest().or(self.main.oldest())
    }
}

/// Names of items that were removed not long ago.
#[derive(Default)]
struct Ghosts {
    names: BTreeSet<u64>,
    /// In the order in which they were removed. Some may have come back.
    order: VecDeque<u64>,
}

impl Ghosts {
    fn add(&mut self, hash: KeyHash, max: usize) {
        let name = hash.0 as u64;
        if self.names.insert(name) {
            self.order.push_back(name);
        }
        while self.order.len() > max {
            let Some(first) = self.order.pop_front() else { break };
            self.names.remove(&first);
        }
    }

    /// Whether it was among them; it is not any more.
    fn take(&mut self, hash: KeyHash) -> bool {
        self.names.remove(&(hash.0 as u64))
    }
}
