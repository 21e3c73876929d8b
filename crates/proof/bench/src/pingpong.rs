//! How far apart the cores are at this moment: the round trip of a cache line between two pinned threads. On a
//! shared host it drifts by a factor of six, and a figure of any loopback system with it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Round trips in one sample.
const ROUNDS: u64 = 20_000;
/// Samples, of which the median counts.
const SAMPLES: usize = 9;

/// The round trip between two cores in ns, the median of some samples; `None` on a machine with one core.
pub fn core_to_core_ns() -> Option<f64> {
    let allowed = sched_getaffinity(None).ok()?;
    let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&core| allowed.is_set(core)).take(2).collect();
    let &[first, second] = &cores[..] else { return None };
    let line = AtomicU64::new(0);
    let samples = std::thread::scope(|scope| {
        let answering = scope.spawn(|| {
            pin(second);
            for number in 0..ROUNDS * SAMPLES as u64 {
                wait_for(&line, 2 * number + 1);
                line.store(2 * number + 2, Ordering::Release);
            }
        });
        let asking = scope.spawn(|| {
            pin(first);
            let mut samples = [0.0; SAMPLES];
            for (index, sample) in samples.iter_mut().enumerate() {
                let begin = Instant::now();
                for number in (index as u64 * ROUNDS)..((index as u64 + 1) * ROUNDS) {
                    line.store(2 * number + 1, Ordering::Release);
                    wait_for(&line, 2 * number + 2);
                }
                *sample = begin.elapsed().as_nanos() as f64 / ROUNDS as f64;
            }
            samples
        });
        answering.join().ok()?;
        asking.join().ok()
    });
    let mut samples = samples?;
    samples.sort_by(f64::total_cmp);
    Some(samples[SAMPLES / 2])
}

fn wait_for(line: &AtomicU64, value: u64) {
    let mut spins = 0u32;
    while line.load(Ordering::Acquire) != value {
        spins += 1;
        if spins.is_multiple_of(1 << 16) {
            // The other thread is not running: somebody else has its core.
            std::thread::yield_now();
        }
        std::hint::spin_loop();
    }
}

fn pin(core: usize) {
    let mut set = CpuSet::new();
    set.set(core);
    // Unpinned, the figure is worse and not wrong.
    let _ = sched_setaffinity(None, &set);
}
