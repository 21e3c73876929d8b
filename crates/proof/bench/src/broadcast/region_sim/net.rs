//! Time and the network of the simulated regions: what happens when, and how long bytes take.
//!
//! A machine sends and receives one byte after the other at its card's rate, and handles one message after the other.
//! Between regions there is one link in each direction. Nothing is lost unless a link is cut.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A machine's number.
pub type NodeId = u32;
/// Nanoseconds since the beginning.
pub type Time = u64;

pub const MS: Time = 1_000_000;
pub const SECOND: Time = 1_000 * MS;

/// What the machines and the network are like.
#[derive(Clone, Debug)]
pub struct Network {
    /// One-way latency between regions, in milliseconds, by their numbers.
    pub latency_ms: Vec<Vec<f64>>,
    /// Within a region.
    pub local_latency_ms: f64,
    /// Bits a second of a machine's card, in each direction.
    pub local_bits_s: f64,
    /// Bits a second between two regions, in each direction.
    pub region_bits_s: f64,
}

/// What it costs a machine's processor to send or to receive.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub struct Costs {
    /// Nanoseconds for a message.
    pub message_ns: f64,
    /// Nanoseconds for each event in it.
    pub event_ns: f64,
}

/// Bytes of a message on the wire: Ethernet, IP and TCP put 78 bytes around each 1,448.
fn wire_bytes(bytes: usize) -> f64 {
    (bytes + 78 * bytes.div_ceil(1448)) as f64
}

/// Until when what a machine has is taken.
struct NetTaken {
    region: u32,
    up: Time,
    down: Time,
    processor: Time,
}

/// The cards, the processors and the links as far as they are taken.
pub struct NetLines {
    network: Network,
    machines: Vec<NetTaken>,
    links: Vec<Vec<Time>>,
    cut: Vec<(u32, u32)>,
}

impl NetLines {
    pub fn new(network: Network, region_of: Vec<u32>) -> Self {
        let regions = network.latency_ms.len();
        let machine = |region| NetTaken { region, up: 0, down: 0, processor: 0 };
        Self {
            network,
            machines: region_of.into_iter().map(machine).collect(),
            links: vec![vec![0; regions]; regions],
            cut: Vec::new(),
        }
    }

    pub fn region_of(&self, node: NodeId) -> u32 {
        self.machines[node as usize].region
    }

    /// Cuts or heals the link between two regions.
    pub fn cut(&mut self, a: u32, b: u32, cut: bool) {
        self.cut.retain(|link| *link != (a, b) && *link != (b, a));
        if cut {
            self.cut.push((a, b));
        }
    }

    /// Sends a message: when its last byte has left, and when it arrives, if it does.
    pub fn send(&mut self, now: Time, from: NodeId, to: NodeId, bytes: usize) -> (Time, Option<Time>) {
        let (a, b) = (self.region_of(from), self.region_of(to));
        let bits = 8.0 * wire_bytes(bytes);
        if a == b {
            let line = &mut self.machines[from as usize].up;
            *line = now.max(*line) + (bits / self.network.local_bits_s * 1e9) as Time;
            let left = *line;
            return (left, Some(left + (self.network.local_latency_ms * 1e6) as Time));
        }
        let line = &mut self.links[a as usize][b as usize];
        *line = now.max(*line) + (bits / self.network.region_bits_s * 1e9) as Time;
        let left = *line;
        let arrives = left + (self.network.latency_ms[a as usize][b as usize] * 1e6) as Time;
        let lost = self.cut.contains(&(a, b)) || self.cut.contains(&(b, a));
        (left, (!lost).then_some(arrives))
    }

    /// A message is there: when its machine has received and handled it.
    pub fn handle(&mut self, now: Time, node: NodeId, bytes: usize, cost_ns: f64) -> Time {
        let machine = &mut self.machines[node as usize];
        let takes = (8.0 * wire_bytes(bytes) / self.network.local_bits_s * 1e9) as Time;
        machine.down = now.max(machine.down + takes);
        machine.processor = machine.down.max(machine.processor) + cost_ns as Time;
        machine.processor
    }

    /// When a machine that has something to do at `now` has done it.
    pub fn work(&mut self, now: Time, node: NodeId, cost_ns: f64) -> Time {
        let processor = &mut self.machines[node as usize].processor;
        *processor = now.max(*processor) + cost_ns as Time;
        *processor
    }
}

/// What is to happen, in its order: by its time, and what is for the same time in the order in which it was put in.
///
/// Nearly all of it is for the next milliseconds. It lies in buckets of a short time each, and only the current one is
/// put in order: a heap of all that waits is as deep as there are clients, and each level of it waits for memory.
pub struct Queue<T> {
    /// What is left of the current bucket, the next one last.
    current: Vec<NetEntry>,
    /// What has come for the current bucket since it was put in order.
    late: BinaryHeap<Reverse<NetEntry>>,
    /// The buckets after the current one, each at its number modulo [`BUCKETS`].
    buckets: Vec<Vec<NetEntry>>,
    /// Entries in them.
    near: usize,
    /// What is beyond them.
    far: BinaryHeap<Reverse<NetEntry>>,
    /// The current bucket's number.
    bucket: u64,
    slots: Vec<Option<T>>,
    free: Vec<u32>,
    number: u64,
    happened: u64,
}

/// A time, the number in the order of arrival, and a slot, or a machine whose tick it is.
type NetEntry = (Time, u64, u32);

/// What happens next.
#[derive(Debug, PartialEq, Eq)]
pub enum NextArrival<T> {
    /// A machine's tick, which takes no slot: there are more of them than of all else.
    Tick(NodeId),
    /// Something else.
    What(T),
}

/// In an entry: a tick, of the machine whose number the other bits are.
const TICK: u32 = 1 << 31;
/// Nanoseconds of a bucket, as a power of two: 33 us.
const BUCKET_BITS: u32 = 15;
/// So many are two seconds: longer than nearly everything waits.
const BUCKETS: u64 = 1 << 16;
/// A bucket that had more entries than this gives its memory back.
const ENTRIES_KEPT: usize = 64;

impl<T> Queue<T> {
    pub fn new() -> Self {
        Self {
            current: Vec::new(),
            late: BinaryHeap::new(),
            buckets: (0..BUCKETS).map(|_| Vec::new()).collect(),
            near: 0,
            far: BinaryHeap::new(),
            bucket: 0,
            slots: Vec::new(),
            free: Vec::new(),
            number: 0,
            happened: 0,
        }
    }

    pub fn at(&mut self, time: Time, what: T) {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() as u32 - 1
        });
        self.slots[slot as usize] = Some(what);
        self.put(time, slot);
    }

    /// A machine's tick.
    pub fn tick_at(&mut self, time: Time, node: NodeId) {
        self.put(time, TICK | node);
    }

    fn put(&mut self, time: Time, what: u32) {
        self.number += 1;
        self.place((time, self.number, what));
    }

    fn place(&mut self, entry: NetEntry) {
        let bucket = entry.0 >> BUCKET_BITS;
        if bucket <= self.bucket {
            self.late.push(Reverse(entry));
        } else if bucket < self.bucket + BUCKETS {
            self.buckets[(bucket % BUCKETS) as usize].push(entry);
            self.near += 1;
        } else {
            self.far.push(Reverse(entry));
        }
    }

    /// Makes the next bucket that has something the current one; whether there is one.
    fn turn(&mut self) -> bool {
        while self.current.is_empty() && self.late.is_empty() {
            if self.near > 0 {
                self.bucket += 1;
            } else if let Some(Reverse((time, _, _))) = self.far.peek() {
                self.bucket = time >> BUCKET_BITS;
            } else {
                return false;
            }
            let bucket = &mut self.buckets[(self.bucket % BUCKETS) as usize];
            self.near -= bucket.len();
            self.current.append(bucket);
            if bucket.capacity() > ENTRIES_KEPT {
                *bucket = Vec::new();
            }
            self.current.sort_unstable_by(|a, b| b.cmp(a));
            while let Some(Reverse(entry)) = self.far.peek().copied()
                && entry.0 >> BUCKET_BITS < self.bucket + BUCKETS
            {
                self.far.pop();
                self.place(entry);
            }
        }
        true
    }

    /// The next, if it is before `end`.
    pub fn next(&mut self, end: Time) -> Option<(Time, NextArrival<T>)> {
        if !self.turn() {
            return None;
        }
        let late = self.late.peek().map(|Reverse(entry)| *entry);
        let is_late = late.is_some_and(|late| self.current.last().is_none_or(|first| late < *first));
        let (time, _, what) = if is_late { late? } else { *self.current.last()? };
        if time >= end {
            return None;
        }
        if is_late {
            self.late.pop();
        } else {
            self.current.pop();
        }
        self.happened += 1;
        if what & TICK != 0 {
            return Some((time, NextArrival::Tick(what & !TICK)));
        }
        self.free.push(what);
        Some((time, NextArrival::What(self.slots[what as usize].take()?)))
    }

    /// How much has happened.
    pub fn happened(&self) -> u64 {
        self.happened
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_wait_for_those_before_them_and_a_cut_link_loses_them() {
        let network = Network {
            latency_ms: vec![vec![0.0, 10.0], vec![10.0, 0.0]],
            local_latency_ms: 1.0,
            local_bits_s: 1e9,
            region_bits_s: 1e10,
        };
        let mut lines = NetLines::new(network, vec![0, 0, 1]);
        // 1,448 bytes and their headers: 12,208 bits.
        assert_eq!(lines.send(0, 0, 1, 1448), (12_208, Some(12_208 + MS)));
        assert_eq!(lines.send(0, 0, 1, 1448), (24_416, Some(24_416 + MS)));
        assert_eq!(lines.send(0, 0, 2, 1448).1, Some(1_220 + 10 * MS));
        lines.cut(1, 0, true);
        assert_eq!(lines.send(0, 0, 2, 1448).1, None);
        lines.cut(0, 1, false);
        assert!(lines.send(0, 0, 2, 1448).1.is_some());
        assert_eq!(lines.handle(5 * MS, 1, 1448, 1000.0), 5 * MS + 1000);
        assert_eq!(lines.handle(5 * MS, 1, 1448, 1000.0), 5 * MS + 12_208 + 1000);
    }

    #[test]
    fn what_is_queued_happens_in_the_order_of_its_times_and_then_of_its_arrival() {
        let mut queue = Queue::new();
        for (time, what) in [(5, 'c'), (1, 'a'), (5, 'd'), (2, 'b')] {
            queue.at(time, what);
        }
        queue.tick_at(2, 7);
        let order: Vec<NextArrival<char>> =
            std::iter::from_fn(|| queue.next(6).map(|(_, next)| next)).collect();
        let what = NextArrival::What;
        assert_eq!(order, [what('a'), what('b'), NextArrival::Tick(7), what('c'), what('d')]);
        assert_eq!(queue.happened(), 5);
    }

    #[test]
    fn what_is_put_in_while_other_things_happen_has_its_turn_as_in_a_heap_of_all() {
        let mut queue = Queue::new();
        let mut heap = BinaryHeap::new();
        let mut random = 1u64;
        let mut now = 0;
        let mut number = 0u64;
        for round in 0..50_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // At once, in the same bucket or the next ones, in those that are near, and beyond them; often for the same
            // time.
            let ahead = [0, 1_000, 100_000, 5 * MS, 900 * MS, 5 * SECOND][(random >> 33) as usize % 6];
            let time = now + (random >> 40) * ahead / (1 << 24) / 500 * 500;
            number += 1;
            queue.at(time, number);
            heap.push(Reverse((time, number)));
            // More comes than happens at first, and then all of it happens.
            if round % 3 > 0 || round > 30_000 {
                let Some(Reverse((time, number))) = heap.pop() else { continue };
                assert_eq!(queue.next(Time::MAX), Some((time, NextArrival::What(number))));
                now = time;
            }
        }
        while let Some(Reverse((time, number))) = heap.pop() {
            assert_eq!(queue.next(Time::MAX), Some((time, NextArrival::What(number))));
        }
        assert_eq!((queue.next(Time::MAX), queue.happened()), (None, number));
    }
}
