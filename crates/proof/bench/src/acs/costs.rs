//! What the parts of a cluster cost, for the model by flows. All that was measured is here, with where it was measured.

/// Costs and times of one cluster. Times are in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct FlowCosts {
    /// Bytes of a chunk.
    pub chunk_bytes: u64,
    /// A backend's core, for each chunk that it sends, whatever the chunk's length.
    pub read_us: f64,
    /// A backend's core, for each MiB that it sends.
    pub read_mib_us: f64,
    /// A backend's core, for each chunk that it takes.
    pub set_us: f64,
    /// A backend's core, for each MiB that it takes.
    pub set_mib_us: f64,
    /// From a flush until its entry may be shadowed: half of all, and 99 of 100.
    pub append_us: [f64; 2],
    /// What a hop takes besides its line: half of all, and 99 of 100.
    pub hop_us: [f64; 2],
    /// The line of a hop.
    pub line_us: f64,
    /// From the bytes to a published length, while no backend is late.
    pub publish_us: f64,
    /// A read of lengths.
    pub lengths_us: f64,
    /// A read of chunks, while no backend is late.
    pub fetch_us: f64,
    /// A read of the durable layer.
    pub durable_us: f64,
    /// A lookup in a cell is given up after so long, and is made once more in consistent mode.
    pub deadline_us: u64,
    /// A reader waits so long for the cached layer before it reads the durable one.
    pub delay_max_us: u64,
    /// A writer tries again so long after a failed round.
    pub retry_us: u64,
    /// A chunk stays in the data cell for so long.
    pub ttl_us: u64,
    /// Bytes that a backend copies from others in a second.
    pub refill_bytes_per_s: f64,
    /// What a change of a cell's backends takes besides copying.
    pub settle_us: u64,
}

impl FlowCosts {
    /// | cost | where it is from |
    /// |---|---|
    /// | `read_us`, `read_mib_us` | processor time of backends over TCP, with 40 and with 4 consumers and chunks of 4 and of 16 KiB: see below |
    /// | `set_us`, `set_mib_us` | what the same backends took besides, all of it: publications of lengths too |
    /// | `append_us` | bench/results/fanout-apart.toml: acknowledgements p99, and half of a flush interval |
    /// | `hop_us` | bench/results/tree.toml: the slowest of the three hops |
    /// | `line_us` | the paper's 180 ms of network transit over three hops |
    /// | `publish_us`, `lengths_us`, `fetch_us` | a cluster's network of 0.2 ms each way, as in the chunk-level run |
    /// | `deadline_us` | `CellConfig::of` |
    /// | `delay_max_us`, `retry_us` | `DELAY_MAX` and `RETRY_DELAY` of crates/log/tail/src/limits.rs |
    /// | `ttl_us` | the paper's minute, as `cache serve` is started by `bench` |
    /// | `refill_bytes_per_s` | `RefillConfig` |
    /// | `settle_us` | MEASURED_SETTLE |
    pub const MEASURED: Self = Self {
        chunk_bytes: 4_096,
        read_us: 0.4,
        read_mib_us: 456.0,
        set_us: 2.0,
        set_mib_us: 1_000.0,
        append_us: [5_000.0, 14_000.0],
        hop_us: [7_100.0, 33_600.0],
        line_us: 60_000.0,
        publish_us: 1_200.0,
        lengths_us: 400.0,
        fetch_us: 400.0,
        durable_us: 5_000.0,
        deadline_us: 500_000,
        delay_max_us: 1_000_000,
        retry_us: 100_000,
        ttl_us: 60_000_000,
        refill_bytes_per_s: (64 << 20) as f64,
        settle_us: 5_000_000,
    };

    /// What a backend's core takes to send so many chunks of so many bytes in all.
    pub fn reads_us(&self, reads: f64, bytes: f64) -> f64 {
        reads * self.read_us + bytes / MIB * self.read_mib_us
    }

    /// What it takes to receive them.
    pub fn sets_us(&self, sets: f64, bytes: f64) -> f64 {
        sets * self.set_us + bytes / MIB * self.set_mib_us
    }
}

const MIB: f64 = (1 << 20) as f64;
