//! The workload of section 5.4: cache invalidations, of keys of very different popularity.
//!
//! Keys stand in an order of popularity. An invalidation is of the key at a rank that is drawn from a Zipf
//! distribution over all of them. A new key comes in at a rank drawn from a Zeta distribution with the same skew
//! (Zipf over an infinite set; behind the last key if it is beyond), so that those behind it become less popular.
//! In each tick a number of new keys and a number of invalidations come, both Poisson distributed. (The paper
//! calls its lambda the parameter of the inter-arrival times, but its figures grow with it: it is a rate.)
//!
//! With a finite set of keys there are 100,000 from the start, and all ranks, new keys' too, are Zipf distributed over
//! the keys that there are. Arrivals are the same; there may be no new keys.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rand_distr::{Distribution, Poisson, Zeta, Zipf};

/// Keys of the finite set.
pub const FINITE_KEYS: u32 = 100_000;
/// Keys of one chunk of the order.
const CHUNK_MAX: usize = 512;

/// What to generate.
#[derive(Clone, Copy, Debug)]
pub enum WorkloadArrivals {
    /// From no key on; new keys and invalidations for each tick, on average.
    Growing { new_keys: f64, invalidations: f64 },
    /// From 100,000 keys on; likewise, and new keys may be 0.
    Finite { new_keys: f64, invalidations: f64 },
}

impl WorkloadArrivals {
    /// How many new keys and invalidations come in a tick.
    fn draw(self, random: &mut StdRng) -> (u64, u64) {
        let (Self::Growing { new_keys, invalidations } | Self::Finite { new_keys, invalidations }) = self;
        let mut draw = |mean| match mean {
            0.0 => 0,
            mean => Poisson::new(mean).expect("a mean above 0").sample(random) as u64,
        };
        (draw(new_keys), draw(invalidations))
    }
}

/// An event of the workload.
#[derive(Clone, Copy, Debug)]
pub struct Update {
    /// The key that it is about.
    pub key: u32,
    /// When it comes.
    pub tick: u64,
    /// When the key was added; the same if this adds it.
    pub added: u64,
}

/// Generates it; the same for the same seed.
pub struct Workload {
    random: StdRng,
    skew: f64,
    arrivals: WorkloadArrivals,
    order: WorkloadOrder,
    /// By key, when it was added.
    added: Vec<u64>,
    tick: u64,
    /// Still to come in this tick.
    new_keys: u64,
    invalidations: u64,
}

impl Workload {
    /// A workload with a skew above 1.
    pub fn new(seed: u64, skew: f64, arrivals: WorkloadArrivals) -> Self {
        let mut order = WorkloadOrder::default();
        let mut added = Vec::new();
        if let WorkloadArrivals::Finite { .. } = arrivals {
            (0..FINITE_KEYS).for_each(|key| order.insert(key as usize, key));
            added = vec![0; FINITE_KEYS as usize];
        }
        let random = StdRng::seed_from_u64(seed);
        Self { random, skew, arrivals, order, added, tick: 0, new_keys: 0, invalidations: 0 }
    }

    fn zipf(&mut self) -> usize {
        let zipf = Zipf::new(self.order.len as f64, self.skew).expect("a key and a skew");
        zipf.sample(&mut self.random) as usize - 1
    }

    fn add(&mut self) -> Update {
        let key = self.added.len() as u32;
        let rank = match self.arrivals {
            // Far ranks are more than a usize holds.
            WorkloadArrivals::Growing { .. } => {
                let zeta = Zeta::new(self.skew).expect("a skew above 1");
                zeta.sample(&mut self.random).min(u32::MAX.into()) as usize - 1
            }
            WorkloadArrivals::Finite { .. } => self.zipf(),
        };
        self.order.insert(rank, key);
        self.added.push(self.tick);
        Update { key, tick: self.tick, added: self.tick }
    }

    fn invalidate(&mut self) -> Update {
        let rank = self.zipf();
        let key = self.order.at(rank);
        Update { key, tick: self.tick, added: self.added[key as usize] }
    }

    /// The next event.
    pub fn next(&mut self) -> Update {
        loop {
            // In any order within a tick: in proportion to what is left of each.
            let left = self.new_keys + self.invalidations;
            if left == 0 {
                self.tick += 1;
                (self.new_keys, self.invalidations) = self.arrivals.draw(&mut self.random);
            } else if self.random.random_range(0..left) < self.new_keys {
                self.new_keys -= 1;
                return self.add();
            } else {
                self.invalidations -= 1;
                // Before the first key there is nothing to invalidate.
                if self.order.len > 0 {
                    return self.invalidate();
                }
            }
        }
    }
}

/// Keys in an order: the one at a rank, and inserting at a rank, in time with the root of their number.
#[derive(Default)]
struct WorkloadOrder {
    chunks: Vec<Vec<u32>>,
    len: usize,
}

impl WorkloadOrder {
    fn chunk(&self, mut rank: usize) -> (usize, usize) {
        for (at, chunk) in self.chunks.iter().enumerate() {
            if rank < chunk.len() {
                return (at, rank);
            }
            rank -= chunk.len();
        }
        (self.chunks.len().saturating_sub(1), usize::MAX)
    }

    fn at(&self, rank: usize) -> u32 {
        let (chunk, place) = self.chunk(rank);
        self.chunks[chunk][place]
    }

    /// Inserts before the one that has the rank now, or behind the last one.
    fn insert(&mut self, rank: usize, key: u32) {
        if self.chunks.is_empty() {
            self.chunks.push(Vec::new());
        }
        let (at, place) = self.chunk(rank);
        let chunk = &mut self.chunks[at];
        chunk.insert(place.min(chunk.len()), key);
        self.len += 1;
        if chunk.len() > CHUNK_MAX {
            let half = chunk.split_off(CHUNK_MAX / 2);
            self.chunks.insert(at + 1, half);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_is_that_of_a_plain_list() {
        let (mut order, mut list) = (WorkloadOrder::default(), Vec::new());
        let mut random = StdRng::seed_from_u64(1);
        for key in 0..5000u32 {
            let rank = random.random_range(0..=list.len() + 1);
            order.insert(rank, key);
            list.insert(rank.min(list.len()), key);
        }
        assert!((0..5000).all(|rank| order.at(rank) == list[rank]));
    }

    #[test]
    fn the_same_seed_generates_the_same_and_new_keys_come_more_often_than_old_ones() {
        let arrivals = WorkloadArrivals::Growing { new_keys: 10.0, invalidations: 200.0 };
        let generate = |seed| {
            let mut workload = Workload::new(seed, 1.1, arrivals);
            (0..50_000).map(|_| workload.next()).collect::<Vec<_>>()
        };
        let (a, b) = (generate(7), generate(7));
        assert!(a.iter().zip(&b).all(|(a, b)| (a.key, a.tick) == (b.key, b.tick)));
        let of_age = |age| a.iter().filter(|update| update.tick - update.added == age).count();
        let (new, old) = (of_age(0), of_age(50));
        assert!(new > 10 * old, "{new} in the tick in which they were added, {old} fifty ticks later");
        let ticks = a.last().map_or(0, |update| update.tick);
        assert!((200..280).contains(&ticks), "{ticks}");
    }
    #[test]
    fn of_a_finite_set_poisson_distributed_numbers_of_invalidations_and_of_new_keys_come_in_a_tick() {
        for (new_keys, invalidations) in [(0.0, 100.0), (10.0, 100.0)] {
            let mut workload = Workload::new(7, 1.1, WorkloadArrivals::Finite { new_keys, invalidations });
            // Of each tick: new keys, invalidations.
            let mut ticks = vec![[0.0f64; 2]; 1_001];
            loop {
                let keys = workload.order.len;
                let update = workload.next();
                let Some(tick) = ticks.get_mut(update.tick as usize) else { break };
                tick[usize::from(workload.order.len == keys)] += 1.0;
            }
            for (kind, mean) in [new_keys, invalidations].into_iter().enumerate() {
                let counts = ticks[1..].iter().map(|tick| tick[kind]);
                let found = counts.clone().sum::<f64>() / 1_000.0;
                let variance = counts.map(|count| (count - found).powi(2)).sum::<f64>() / 1_000.0;
                assert!((found - mean).abs() <= 0.05 * mean, "{found} on average, not {mean}");
                assert!((variance - mean).abs() <= 0.25 * mean, "a variance of {variance}, not {mean}");
            }
        }
    }
}
