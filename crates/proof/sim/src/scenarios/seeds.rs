//! Many seeds of a scenario, on several threads.

use std::collections::BTreeMap;
use std::num::NonZero;
use std::ops::{ControlFlow, Range};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;

use super::{Scenario, ScenarioFailure};
use crate::checkers::Report;
use crate::planted::Plant;

/// As much as a process's first thread has: scenarios that are run on that one have it, too.
const STACK_BYTES: usize = 8 << 20;

/// Runs `seeds`, so many at the same time, each in a world of its own on one thread. `tell` hears of all of them in
/// their order, until it breaks.
///
/// # Panics
/// If the machine has no more threads.
pub fn run_seeds(
    scenario: &Scenario,
    seeds: Range<u64>,
    jobs: NonZero<usize>,
    mut tell: impl FnMut(Result<Report, ScenarioFailure>) -> ControlFlow<()>,
) {
    let (next, end) = (AtomicU64::new(seeds.start), seeds.end);
    let (done, results) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..jobs.get() {
            let (done, next) = (done.clone(), &next);
            let run = move || {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    // Nobody wants to know any more once `tell` has broken.
                    if seed >= end || done.send((seed, scenario.run_seed(seed, Plant::None, false))).is_err()
                    {
                        return;
                    }
                }
            };
            let thread = thread::Builder::new().stack_size(STACK_BYTES);
            thread.spawn_scoped(scope, run).expect("there is a thread to be had");
        }
        drop(done);
        let (mut turn, mut early) = (seeds.start, BTreeMap::new());
        for (seed, result) in results {
            early.insert(seed, result);
            while let Some(result) = early.remove(&turn) {
                turn += 1;
                if tell(result).is_break() {
                    return;
                }
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::super::find;
    use super::*;

    /// The traces of the first seeds, until so many were told of.
    fn traces(jobs: usize, most: usize) -> Vec<u64> {
        let mut traces = Vec::new();
        let jobs = NonZero::new(jobs).expect("some");
        run_seeds(find("journal").expect("it is listed"), 0..12, jobs, |result| {
            traces.push(result.expect("it holds").trace);
            if traces.len() < most { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        traces
    }

    #[test]
    fn seeds_on_several_threads_are_what_they_are_on_one_and_told_of_in_their_order() {
        let alone = traces(1, 12);
        assert_eq!(alone.len(), 12);
        for jobs in [2, 5, 20] {
            assert_eq!(traces(jobs, 12), alone, "{jobs} at the same time");
        }
    }

    #[test]
    fn no_more_seeds_are_told_of_than_are_wanted() {
        assert_eq!(traces(3, 4), traces(1, 12)[..4]);
    }
}
