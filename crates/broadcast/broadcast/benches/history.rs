//! What an event costs a history, in nanoseconds of CPU of the thread that appends it.
//!
//! `cargo bench -p tailwater-broadcast --bench history [-- STORED…]`. By key: events of 16-byte keys and 10-byte
//! payloads, each of which collects the one stored event with its key, in batches of 1,000, once every stored
//! event was replaced on average, so that what is collected is also dropped. By number: 10-byte events, each of
//! which also keeps the last 1,000,000, in batches of 5,000, beside reading such a batch alone.

use std::time::Duration;

use bytes::Bytes;
use rustix::time::{ClockId, clock_gettime};
use tailwater_broadcast::{Batch, Collect, Content, History, HistoryOptions, Writer};

const KEYED: usize = 1000;
const NUMBERED: usize = 5000;

fn main() {
    let sizes: Vec<u64> = std::env::args().skip(1).filter_map(|arg| arg.parse().ok()).collect();
    let sizes = if sizes.is_empty() { vec![10_000, 100_000, 1_000_000, 10_000_000] } else { sizes };
    let mut first = None;
    for stored in sizes {
        let cost = by_key(stored);
        let first = *first.get_or_insert(cost.ns);
        println!(
            "by key, {stored} stored: {:.0} ns an event ({:.2} of the first), slowest batch of {KEYED} {:.2} ms, \
             {:.1} bytes of memory a stored event of which {:.1} are its encoding",
            cost.ns,
            cost.ns / first,
            cost.slowest.as_secs_f64() * 1e3,
            cost.memory,
            cost.encoded,
        );
    }
    by_number();
}

/// The CPU time that this thread has used.
fn cpu() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

struct Cost {
    ns: f64,
    slowest: Duration,
    memory: f64,
    encoded: f64,
}

/// Numbers that look random, the same in every run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((u128::from(self.0) * u128::from(bound)) >> 64) as u64
    }
}

fn batch(history: &History, keys: impl Iterator<Item = u64>) -> Batch {
    let mut writer = Writer::new(history.last());
    for key in keys {
        let key = Some(Bytes::from(format!("key-{key:012}")));
        let content = Content { key, payload: Bytes::from_static(b"0123456789"), ..Content::default() };
        writer.publish(&content, Some(&Collect::SameKey)).expect("within the limits");
    }
    writer.finish(0)
}

fn by_key(stored: u64) -> Cost {
    let mut history = History::new(HistoryOptions { seed: 1 });
    for first in (0..stored).step_by(KEYED) {
        let next = batch(&history, first..(first + KEYED as u64).min(stored));
        history.append(&next).expect("no gap");
    }
    let mut numbers = Numbers(stored);
    let mut update = |history: &mut History| {
        let next = batch(history, (0..KEYED).map(|_| numbers.below(stored)).collect::<Vec<_>>().into_iter());
        let start = cpu();
        history.append(&next).expect("no gap");
        cpu() - start
    };
    let rounds = stored.max(1_000_000) / KEYED as u64;
    for _ in 0..rounds {
        update(&mut history);
    }
    let times: Vec<Duration> = (0..rounds).map(|_| update(&mut history)).collect();
    let total: Duration = times.iter().sum();
    let stats = history.stats();
    assert_eq!(stats.live, stored, "each event replaces one");
    Cost {
        ns: total.as_nanos() as f64 / (rounds * KEYED as u64) as f64,
        slowest: times.into_iter().max().unwrap_or_default(),
        memory: stats.memory_bytes as f64 / stored as f64,
        encoded: stats.bytes as f64 / stats.stored as f64,
    }
}

fn by_number() {
    let content = Content { payload: Bytes::from_static(b"0123456789"), ..Content::default() };
    let mut writer = Writer::new(0);
    for _ in 0..NUMBERED {
        writer.publish(&content, Some(&Collect::KeepLast(1_000_000))).expect("within the limits");
    }
    let first = writer.finish(0);
    let mut history = History::new(HistoryOptions::default());
    let (mut appended, mut read, mut admitted) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
    let rounds = 4000;
    for _ in 0..rounds {
        let after = history.last();
        let next = Batch { after, last: after + NUMBERED as u64, ..first.clone() };
        let start = cpu();
        next.check().expect("well-formed");
        read += cpu() - start;
        let start = cpu();
        history.admit(&next).expect("final");
        admitted += cpu() - start;
        let start = cpu();
        history.append(&next).expect("no gap");
        appended += cpu() - start;
    }
    let each = |time: Duration| time.as_nanos() as f64 / (rounds * NUMBERED) as f64;
    println!(
        "by number: {:.1} ns an event; reading it alone {:.1} ns, admitting it {:.1} ns",
        each(appended),
        each(read),
        each(admitted)
    );
    let stats = history.stats();
    assert!((1_000_000..1_000_000 + 2 * NUMBERED as u64).contains(&stats.live), "{stats:?}");
}
