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
    /// A read of the durable layer, while no node is late.
    pub durable_us: f64,
    /// A node's core, for each MiB of durable reads.
    pub durable_mib_us: f64,
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
    /// How long a backend that begins again takes no changes, once all others are there.
    pub join_us: u64,
    /// What a change of a cell's backends takes besides copying.
    pub settle_us: u64,
}

impl FlowCosts {
    /// | cost | where it is from |
    /// |---|---|
    /// | `read_us`, `read_mib_us` | what 36 consumers more took of six backends over TCP (1) |
    /// | `set_us`, `set_mib_us` | all that the same backends took besides, publications of lengths too (1) |
    /// | `append_us` | half of a flush interval of 10 ms, and bench/results/tree.toml's first hop |
    /// | `hop_us` | bench/results/tree.toml: the slowest of each hop's figures |
    /// | `line_us` | the paper's 180 ms of network transit over three hops |
    /// | `publish_us`, `lengths_us`, `fetch_us` | round trips of 0.4 ms: two, one and one |
    /// | `durable_us` | assumed |
    /// | `durable_mib_us` | bench/results/kafka-fetch-cpu.toml: 0.076 of a core for each Gbit/s that is fetched |
    /// | `deadline_us` | `CellConfig::of` |
    /// | `delay_max_us`, `retry_us` | `DELAY_MAX` and `RETRY_DELAY` of crates/log/tail/src/limits.rs |
    /// | `ttl_us` | the paper's minute, with which `bench` starts backends |
    /// | `refill_bytes_per_s` | `RefillConfig` |
    /// | `join_us` | `bench acs 1d --quick`: until delays are as before, in a debug build on busy processors |
    /// | `settle_us` | `bench acs 2b --quick`: 5.6 s from 3 to 9 backends with next to nothing to copy |
    ///
    /// (1) `bench fanout --transport tcp --connection-each --consumers N --shards 120 --shards-per-consumer 20
    /// --rate-mbit 120 --flush 50 --every-us 50000 --lengths-every-us 50000 --duration-s 6` with N of 4 and 40, and 40
    /// with `--chunk-bytes 16384`: processor time of the backends, on two Genoa vCPUs with AVX-512 and beside a build,
    /// 2026-11-30. A backend's core sends 15 Gbit/s of chunks of 4 KiB then.
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
        durable_mib_us: 638.0,
        deadline_us: 500_000,
        delay_max_us: 1_000_000,
        retry_us: 100_000,
        ttl_us: 60_000_000,
        refill_bytes_per_s: (64 << 20) as f64,
        join_us: 2_600_000,
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
