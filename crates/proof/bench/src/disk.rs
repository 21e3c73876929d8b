//! What the disk can do at this moment, by itself.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use tailwater_load::interrupt;
use tailwater_load::stats::Durations;

/// What was measured.
pub struct Synced {
    /// How long one append and its fdatasync took.
    pub times: Durations,
    /// Bytes per second that were appended and synced.
    pub bytes_per_s: f64,
}

/// Appends blocks of `bytes` to a growing file in `dir` for `duration`, each with its fdatasync.
pub fn append_and_sync(dir: &Path, bytes: usize, duration: Duration) -> anyhow::Result<Synced> {
    let path = dir.join("fdatasync-probe");
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).open(&path)?;
    let result = append_all(&mut file, bytes, duration);
    std::fs::remove_file(&path)?;
    result
}

fn append_all(file: &mut File, bytes: usize, duration: Duration) -> anyhow::Result<Synced> {
    let block: Vec<u8> = (0..bytes).map(|i| ((i * 31) >> 3) as u8).collect();
    let mut times = Durations::default();
    let begin = Instant::now();
    while begin.elapsed() < duration {
        interrupt::check()?;
        let before = Instant::now();
        file.write_all(&block)?;
        file.sync_data()?;
        times.record(before.elapsed().as_nanos() as u64);
    }
    let written = times.count() as f64 * bytes as f64;
    Ok(Synced { times, bytes_per_s: written / begin.elapsed().as_secs_f64() })
}
