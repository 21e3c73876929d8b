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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use tailwater_env::Instant;

    use super::super::{Node, TablePlace};
    use super::*;
    use crate::version::Version;

    /// Items there is room for, a byte each.
    const ROOM: usize = 500;
    const HOT: std::ops::Range<u64> = 0..50;

    /// Bugs on purpose, in how the order is used: a check that does not catch them checks nothing.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum S3Plant {
        /// None: as it is used.
        None,
        /// What is read is not noted.
        UsesNotCounted,
        /// The small queue never has more than its part, so that all has to go from the main one.
        SmallNeverFull,
        /// Names of what was removed are not kept.
        GhostsForgotten,
    }

    /// A cache of items that are names alone.
    struct S3Cache {
        plant: S3Plant,
        order: EvictionOrder,
        nodes: NodeArena,
        held: BTreeMap<u64, u32>,
        free: Vec<u32>,
        next_cold: u64,
    }

    impl S3Cache {
        fn new(plant: S3Plant) -> Self {
            let order = EvictionOrder::new(EvictionPolicy::S3Fifo);
            let (nodes, held, free) = (NodeArena(Vec::new()), BTreeMap::new(), Vec::new());
            Self { plant, order, nodes, held, free, next_cold: 1_000 }
        }

        fn node(name: u64) -> Node {
            let begin = Instant::from_ns(0);
            let mut slabs = super::super::Slabs::new(1);
            Node {
                hash: KeyHash(name.into()),
                version: Version::ZERO,
                slot: slabs.allocate(64, begin).expect("room"),
                len: 1,
                place: TablePlace::Chain,
                modified: begin,
                used: begin,
                expires_ms: 0,
                links: RecencyLinks::NONE,
                eviction: EvictionPlace::NONE,
                is_copied: false,
            }
        }

        fn touch(&mut self, name: u64) {
            if let Some(node) = self.held.get(&name).filter(|_| self.plant != S3Plant::UsesNotCounted) {
                self.order.note_use(*node, &mut self.nodes);
            }
        }

        fn set(&mut self, name: u64) {
            if self.held.contains_key(&name) {
                return self.touch(name);
            }
            while self.held.len() >= ROOM {
                self.evict();
            }
            let node = self.free.pop().unwrap_or(self.nodes.0.len() as u32);
            match self.nodes.0.get_mut(node as usize) {
                Some(free) => *free = Self::node(name),
                None => self.nodes.0.push(Self::node(name)),
            }
            self.order.insert(node, &mut self.nodes);
            self.held.insert(name, node);
        }

        fn evict(&mut self) {
            let live = if self.plant == S3Plant::SmallNeverFull { u64::MAX } else { self.held.len() as u64 };
            let node = self.order.next(live, &mut self.nodes).expect("some are held");
            self.order.note_evicted(node, self.held.len(), &mut self.nodes);
            self.order.remove(node, &mut self.nodes);
            if self.plant == S3Plant::GhostsForgotten {
                self.order.forget();
            }
            let name = self.nodes.0[node as usize].hash.0 as u64;
            assert_eq!(self.held.remove(&name), Some(node), "what is removed was held");
            self.free.push(node);
        }

        /// Sets names that nobody set before, and that nobody reads.
        fn scan(&mut self, count: usize) {
            for _ in 0..count {
                self.next_cold += 1;
                self.set(self.next_cold);
            }
        }

        fn hot_held(&self) -> usize {
            HOT.filter(|name| self.held.contains_key(name)).count()
        }
    }

    /// What S3-FIFO promises, or what of it does not hold.
    fn check(plant: S3Plant) -> Result<(), String> {
        let mut read = S3Cache::new(plant);
        HOT.for_each(|name| read.set(name));
        for round in 0..20 {
            HOT.for_each(|name| read.touch(name));
            read.scan(ROOM / 5);
            let held = read.hot_held();
            if held < 50 {
                return Err(format!("{held} of 50 that are read all the time are left in round {round}"));
            }
        }
        let mut back = S3Cache::new(plant);
        HOT.for_each(|name| back.set(name));
        back.scan(ROOM);
        if back.hot_held() > 0 {
            return Err("what nobody reads stays".to_owned());
        }
        HOT.for_each(|name| back.set(name));
        back.scan(3 * ROOM);
        let small: u64 =
            back.held.values().filter(|node| back.nodes.0[**node as usize].eviction.is_small).count() as u64;
        if small != back.order.small_bytes {
            return Err(format!("the small queue counts {} bytes of {small}", back.order.small_bytes));
        }
        match back.hot_held() {
            50 => Ok(()),
            held => Err(format!("{held} of 50 that came back soon outlast a scan")),
        }
    }

    #[test]
    fn s3_fifo_keeps_what_is_read_and_what_comes_back_and_each_planted_bug_is_caught() {
        assert_eq!(check(S3Plant::None), Ok(()));
        for (plant, what) in [
            (S3Plant::UsesNotCounted, "read all the time"),
            (S3Plant::SmallNeverFull, "read all the time"),
            (S3Plant::GhostsForgotten, "came back soon"),
        ] {
            let caught = check(plant).expect_err("it is caught");
            assert!(caught.contains(what), "{plant:?}, by chance only: {caught}");
        }
    }
}
