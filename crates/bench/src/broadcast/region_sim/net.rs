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

/// The cards, the processors and the links as far as they are taken.
pub struct Lines {
    network: Network,
    region_of: Vec<u32>,
    up: Vec<Time>,
    down: Vec<Time>,
    processor: Vec<Time>,
    links: Vec<Vec<Time>>,
    cut: Vec<(u32, u32)>,
}

impl Lines {
    pub fn new(network: Network, region_of: Vec<u32>) -> Self {
        let (nodes, regions) = (region_of.len(), network.latency_ms.len());
        Self {
            network,
            region_of,
            up: vec![0; nodes],
            down: vec![0; nodes],
            processor: vec![0; nodes],
            links: vec![vec![0; regions]; regions],
            cut: Vec::new(),
        }
    }

    pub fn region_of(&self, node: NodeId) -> u32 {
        self.region_of[node as usize]
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
            let line = &mut self.up[from as usize];
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
        let node = node as usize;
        let takes = (8.0 * wire_bytes(bytes) / self.network.local_bits_s * 1e9) as Time;
        self.down[node] = now.max(self.down[node] + takes);
        self.processor[node] = self.down[node].max(self.processor[node]) + cost_ns as Time;
        self.processor[node]
    }

    /// When a machine that has something to do at `now` has done it.
    pub fn work(&mut self, now: Time, node: NodeId, cost_ns: f64) -> Time {
        let processor = &mut self.processor[node as usize];
        *processor = now.max(*processor) + cost_ns as Time;
        *processor
    }
}

/// What is to happen, in its order.
pub struct Queue<T> {
    heap: BinaryHeap<Reverse<(Time, u64, u32)>>,
    slots: Vec<Option<T>>,
    free: Vec<u32>,
    number: u64,
}

impl<T> Queue<T> {
    pub fn new() -> Self {
        Self { heap: BinaryHeap::new(), slots: Vec::new(), free: Vec::new(), number: 0 }
    }

    pub fn at(&mut self, time: Time, what: T) {
        self.number += 1;
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() as u32 - 1
        });
        self.slots[slot as usize] = Some(what);
        self.heap.push(Reverse((time, self.number, slot)));
    }

    /// The next, if it is before `end`.
    pub fn next(&mut self, end: Time) -> Option<(Time, T)> {
        let Reverse((time, _, slot)) = *self.heap.peek()?;
        if time >= end {
            return None;
        }
        self.heap.pop();
        self.free.push(slot);
        Some((time, self.slots[slot as usize].take()?))
    }

    /// How much has happened.
    pub fn happened(&self) -> u64 {
        self.number - self.heap.len() as u64
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
        let mut lines = Lines::new(network, vec![0, 0, 1]);
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
        let order: String = std::iter::from_fn(|| queue.next(6).map(|(_, what)| what)).collect();
        assert_eq!((order.as_str(), queue.happened()), ("abcd", 4));
    }
}
