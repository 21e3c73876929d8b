//! What happened, as a running hash and as the last few events in words.
//!
//! Every scheduling decision, timer, I/O, message and random draw is folded into the hash in the order it
//! happens. Two runs with equal hashes made the same decisions: that is what "same seed, same trace" asserts.

use std::collections::VecDeque;
use std::fmt;

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// How many of the last events are kept for a report.
const RECENT_EVENTS: usize = 400;

/// One event: when, of which kind, about what.
#[derive(Clone, Copy, Debug)]
pub struct Event {
    /// Virtual time in ns.
    pub at_ns: u64,
    /// What kind of event, and its name where it has one.
    pub kind: &'static str,
    /// Who it is about, such as a task's name.
    pub name: &'static str,
    /// First number, by kind.
    pub a: u64,
    /// Second number, by kind.
    pub b: u64,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Event { at_ns, kind, name, a, b } = self;
        write!(f, "{:>12.3} us  {kind} {name} {a} {b}", *at_ns as f64 / 1e3)
    }
}

/// The running hash and the last events.
#[derive(Default)]
pub struct Trace {
    hash: u64,
    count: u64,
    recent: VecDeque<Event>,
    print: bool,
}

impl Trace {
    /// Folds an event into the hash.
    pub fn record(&mut self, event: Event) {
        let Event { at_ns, kind, name, a, b } = event;
        let mut hash = xxh3_64_with_seed(kind.as_bytes(), self.hash);
        if !name.is_empty() {
            hash = xxh3_64_with_seed(name.as_bytes(), hash);
        }
        for word in [at_ns, a, b] {
            hash = (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        }
        self.hash = hash;
        self.count += 1;
        if self.recent.len() == RECENT_EVENTS {
            self.recent.pop_front();
        }
        self.recent.push_back(event);
        if self.print {
            eprintln!("{event}");
        }
    }

    /// The hash over everything so far.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// Number of events so far.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The last events, oldest first.
    pub fn recent(&self) -> impl Iterator<Item = &Event> {
        self.recent.iter()
    }

    /// Whether each event is also written to standard error as it happens.
    pub fn set_print(&mut self, print: bool) {
        self.print = print;
    }
}
