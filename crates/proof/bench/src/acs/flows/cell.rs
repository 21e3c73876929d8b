//! The data cell: which backends have a chunk, and how much work waits for each of them.

use tailwater_cache::{HashRing, Mode, Placement};

use crate::acs::costs::FlowCosts;

/// A shard's chunk.
#[derive(Clone, Copy)]
pub struct FlowChunk {
    pub shard: u32,
    pub number: u64,
}

impl FlowChunk {
    fn key(self) -> [u8; 12] {
        let mut key = [0; 12];
        key[..4].copy_from_slice(&self.shard.to_le_bytes());
        key[4..].copy_from_slice(&self.number.to_le_bytes());
        key
    }
}

/// One replica process with one core.
#[derive(Clone, Copy, Default)]
pub struct FlowBackend {
    /// Work that was given to it in this interval.
    work_us: f64,
    /// Work that waits for it.
    pub backlog_us: f64,
    /// Sent to readers since the controller looked last.
    pub sent_bytes: f64,
    pub sent_reads: f64,
    /// When it began; what was written before is not in it.
    pub since_us: u64,
    pub is_down: bool,
    /// It began again, and has not heard from the others what it may take: it takes no changes yet.
    is_joining: bool,
}

/// A change of the cell's backends.
struct FlowChange {
    after: Placement,
    backends: usize,
    /// Until then what the new ones lack is copied, so many bytes in a microsecond by all of those before together.
    copied_us: u64,
    bytes_per_us: f64,
    ends_us: u64,
}

/// See the module.
pub struct FlowCell {
    costs: FlowCosts,
    ring: HashRing,
    placement: Placement,
    pub backends: Vec<FlowBackend>,
    /// How many of them are read.
    pub read: usize,
    change: Option<FlowChange>,
    /// Whether work waits for any of them, or one is down or lacks something.
    pub is_busy: bool,
    pub is_broken: bool,
    /// When the last backend began again.
    whole_us: u64,
}

impl FlowCell {
    /// A new cell of so many backends.
    pub fn new(costs: FlowCosts, backends: usize) -> Self {
        let ring = HashRing::for_backends(backends);
        Self {
            costs,
            ring,
            placement: placed(ring, backends),
            backends: vec![FlowBackend::default(); backends],
            read: backends,
            change: None,
            is_busy: false,
            is_broken: false,
            whole_us: 0,
        }
    }

    /// The backends that have a chunk, as readers know it.
    fn of(&self, chunk: FlowChunk) -> [usize; 3] {
        replicas(&self.placement, chunk)
    }

    /// `readers` consumers read the chunk, `bytes` each, from any of its replicas.
    pub fn read(&mut self, chunk: FlowChunk, readers: f64, bytes: f64) {
        let of = self.of(chunk);
        let up = of.iter().filter(|place| !self.backends[**place].is_down).count();
        let reads = readers / up.max(1) as f64;
        let work_us = self.costs.reads_us(reads, reads * bytes);
        for place in of {
            let backend = &mut self.backends[place];
            if backend.is_down {
                continue;
            }
            backend.work_us += work_us;
            backend.sent_reads += reads;
            backend.sent_bytes += reads * bytes;
        }
    }

    /// A writer writes the chunk to all of its replicas, those after a change too. How long a quorum takes because of
    /// what waits for it; `None` if there is none.
    pub fn set(&mut self, chunk: FlowChunk, bytes: f64) -> Option<f64> {
        let work_us = self.costs.sets_us(1.0, bytes);
        let before = self.of(chunk);
        let after = self.change.as_ref().map(|change| replicas(&change.after, chunk));
        let mut wait_us: f64 = 0.0;
        for of in std::iter::once(before).chain(after) {
            let mut waits = [f64::INFINITY; 3];
            for (place, wait) in of.into_iter().zip(&mut waits) {
                let backend = &mut self.backends[place];
                if !backend.is_down && !backend.is_joining {
                    backend.work_us += work_us;
                    *wait = backend.backlog_us;
                }
            }
            waits.sort_unstable_by(f64::total_cmp);
            // Two of three acknowledge it.
            wait_us = wait_us.max(waits[1]);
        }
        wait_us.is_finite().then_some(wait_us)
    }

    /// How long a read of the chunk waits at the replica that is furthest behind.
    pub fn wait_us(&self, chunk: FlowChunk) -> f64 {
        let of = self.of(chunk).map(|place| &self.backends[place]);
        of.iter().filter(|backend| !backend.is_down).map(|backend| backend.backlog_us).fold(0.0, f64::max)
    }

    /// Whether a reader gets the chunk that was written at `at_us`: from the only replica that is up, or from two that
    /// have it. One that began later does not know whether there is one.
    pub fn has(&self, chunk: FlowChunk, at_us: u64) -> bool {
        let up = self.of(chunk).map(|place| &self.backends[place]).into_iter();
        let up = up.filter(|backend| !backend.is_down);
        let (all, having) = up.fold((0, 0), |(all, having), backend| {
            (all + 1, having + usize::from(!backend.is_joining && backend.since_us <= at_us))
        });
        having >= 2 || (having == 1 && all == 1)
    }

    /// A replica ends as a killed process does.
    pub fn kill(&mut self, place: usize) {
        self.backends[place] = FlowBackend { is_down: true, ..FlowBackend::default() };
        self.is_broken = true;
    }

    /// It is there again, with nothing in it.
    pub fn restart(&mut self, place: usize, now_us: u64) {
        self.backends[place] = FlowBackend { since_us: now_us, is_joining: true, ..FlowBackend::default() };
        self.whole_us = now_us;
    }

    /// Begins to change to so many backends, where the cell's values have so many bytes, each counted once.
    pub fn resize(&mut self, now_us: u64, backends: usize, held_bytes: f64) {
        let before = self.read;
        assert!(self.change.is_none() && backends > before, "a cell grows, one change at a time");
        self.backends.resize(backends, FlowBackend { since_us: 0, ..FlowBackend::default() });
        let of_each = 3.0 * held_bytes / backends as f64;
        let copying_us = of_each / self.costs.refill_bytes_per_s * 1e6;
        let moved = of_each * (backends - before) as f64;
        let copied_us = now_us + copying_us as u64;
        self.change = Some(FlowChange {
            after: placed(self.ring, backends),
            backends,
            copied_us,
            bytes_per_us: moved / copying_us.max(1.0),
            ends_us: copied_us + self.costs.settle_us,
        });
    }

    /// Whether its backends are being changed.
    pub fn is_changing(&self) -> bool {
        self.change.is_some()
    }

    /// An interval of `long_us` that ends at `now_us` is over.
    pub fn pass(&mut self, now_us: u64, long_us: u64) {
        if let Some(change) = &self.change {
            if now_us <= change.copied_us {
                let bytes = change.bytes_per_us * long_us as f64 / self.read as f64;
                let work_us = self.costs.reads_us(bytes / self.costs.chunk_bytes as f64, bytes);
                self.backends[..self.read].iter_mut().for_each(|backend| backend.work_us += work_us);
            }
            if now_us >= change.ends_us {
                self.placement = change.after.clone();
                self.read = change.backends;
                self.change = None;
            }
        }
        // Who begins again has to hear from all others.
        if self.is_broken
            && now_us >= self.whole_us + self.costs.join_us
            && !self.backends.iter().any(|of| of.is_down)
        {
            self.backends.iter_mut().for_each(|backend| backend.is_joining = false);
        }
        self.is_busy = false;
        for backend in &mut self.backends {
            let left = backend.backlog_us + std::mem::take(&mut backend.work_us) - long_us as f64;
            backend.backlog_us = left.max(0.0);
            self.is_busy |= left > 0.0;
        }
    }
}

fn placed(ring: HashRing, backends: usize) -> Placement {
    let numbers: Vec<u32> = (0..backends as u32).collect();
    Placement::new(Mode::R32, ring, &numbers)
}

fn replicas(placement: &Placement, chunk: FlowChunk) -> [usize; 3] {
    let of = placement.of_key(&chunk.key());
    std::array::from_fn(|replica| usize::from(of[replica]))
}
