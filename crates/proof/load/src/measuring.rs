//! The times of a run: a warm-up, which does not count, and the measured time with what grew in it. And waiting for
//! what has to come.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use crate::clock::monotonic_ns;
use crate::interrupt;
use crate::stats::round;

/// How often it is looked at what is waited for, and what has to be alive meanwhile.
const LOOK: Duration = Duration::from_millis(10);
/// Stack of a thread that is part of a load: there may be thousands.
const STACK_BYTES: usize = 256 << 10;

/// Where a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunPhase {
    /// Nothing counts yet.
    WarmUp,
    /// The measured time has begun: this is the first look at it.
    Begins,
    /// It goes on.
    Measured,
    /// It is over.
    Over,
}

/// Times of a run, in ns of CLOCK_MONOTONIC.
#[derive(Clone, Copy, Debug)]
pub struct RunTimes {
    /// When it begins.
    pub begin_ns: u64,
    /// When the measured time begins.
    pub from_ns: u64,
    /// When that ends.
    pub until_ns: u64,
}

/// Reads `N` counters, such as CPU seconds and events, where the measured time begins and where it ends.
#[derive(Clone, Debug)]
pub struct RunMeter<const N: usize> {
    times: RunTimes,
    before: Option<(u64, [f64; N])>,
}

/// What was measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Metered<const N: usize> {
    /// How long it was.
    pub seconds: f64,
    /// By how much each counter grew.
    pub grew: [f64; N],
}

impl<const N: usize> Metered<N> {
    /// By how much each counter grew in a second, with so many digits behind the point.
    pub fn per_s(&self, digits: i32) -> [f64; N] {
        self.grew.map(|grew| round(grew / self.seconds, digits))
    }
}

impl<const N: usize> RunMeter<N> {
    /// Of a run that begins now.
    pub fn start(warmup: Duration, measured: Duration) -> Self {
        let begin_ns = monotonic_ns();
        let from_ns = begin_ns + warmup.as_nanos() as u64;
        let until_ns = from_ns + measured.as_nanos() as u64;
        Self { times: RunTimes { begin_ns, from_ns, until_ns }, before: None }
    }

    /// Its times.
    pub fn times(&self) -> RunTimes {
        self.times
    }

    /// Where the run is at `now_ns`. The first look behind the warm-up reads the counters.
    pub fn look(&mut self, now_ns: u64, counters: impl FnOnce() -> [f64; N]) -> RunPhase {
        match self.before {
            _ if now_ns < self.times.from_ns => RunPhase::WarmUp,
            None => {
                self.before = Some((now_ns, counters()));
                RunPhase::Begins
            }
            Some(_) if now_ns < self.times.until_ns => RunPhase::Measured,
            Some(_) => RunPhase::Over,
        }
    }

    /// What grew until now.
    ///
    /// # Errors
    /// The measured time has not begun.
    pub fn end(self, counters: [f64; N]) -> anyhow::Result<Metered<N>> {
        let (begin_ns, before) = self.before.context("the run ended before the measured time began")?;
        let seconds = (monotonic_ns() - begin_ns) as f64 / 1e9;
        Ok(Metered { seconds, grew: std::array::from_fn(|n| counters[n] - before[n]) })
    }

    /// Lets a run pass whose load is elsewhere and follows `switch`. `check` is called at each look, with `of`.
    ///
    /// # Errors
    /// Those of `check`, and that the user wants it to end. The load is told to stop in any case.
    pub fn pass<T>(
        mut self,
        switch: &LoadSwitch,
        of: &mut T,
        counters: impl Fn(&T) -> [f64; N],
        mut check: impl FnMut(&mut T) -> anyhow::Result<()>,
    ) -> anyhow::Result<Metered<N>> {
        let passed = loop {
            let phase = self.look(monotonic_ns(), || counters(of));
            switch.measuring.store(phase != RunPhase::WarmUp, Ordering::Relaxed);
            if phase == RunPhase::Over {
                break self.end(counters(of));
            }
            if let Err(error) = interrupt::check().and_then(|()| check(of)) {
                break Err(error);
            }
            std::thread::sleep(LOOK);
        };
        switch.measuring.store(false, Ordering::Relaxed);
        switch.stopping.store(true, Ordering::Relaxed);
        passed
    }
}

/// What the threads and tasks of a load follow.
#[derive(Debug, Default)]
pub struct LoadSwitch {
    measuring: AtomicBool,
    stopping: AtomicBool,
}

impl LoadSwitch {
    /// Whether what happens now counts.
    pub fn is_measuring(&self) -> bool {
        self.measuring.load(Ordering::Relaxed)
    }

    /// Whether the load is to end.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }
}

/// Has `count` threads work, each with its number, while this one does something else; what they bring, and that.
///
/// # Errors
/// The first one that failed, if it is one of the threads; else that of `meanwhile`.
pub fn on_threads<R: Send, T>(
    count: usize,
    work: impl Fn(usize) -> anyhow::Result<R> + Sync,
    meanwhile: impl FnOnce() -> anyhow::Result<T>,
) -> anyhow::Result<(Vec<R>, T)> {
    std::thread::scope(|scope| {
        let work = &work;
        let start = |number| {
            let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
            thread.spawn_scoped(scope, move || work(number))
        };
        // Those that were started end by what is done meanwhile, also if another one was not.
        let threads: Vec<_> = (0..count).map(start).collect();
        let result = meanwhile();
        let join = |thread: std::io::Result<ScopedJoinHandle<_>>| {
            let thread = thread.context("a thread of the load can't be started")?;
            thread.join().map_err(|_| anyhow::anyhow!("a thread of the load panicked"))?
        };
        Ok((threads.into_iter().map(join).collect::<anyhow::Result<_>>()?, result?))
    })
}

/// Waits until `look` finds what is waited for, and looks every few milliseconds.
///
/// # Errors
/// Those of `look`; that it was not found within `limit`, which names `what` was to happen, as in "the node answers";
/// that the user wants it to end.
pub fn until<T>(
    what: &str,
    limit: Duration,
    mut look: impl FnMut() -> anyhow::Result<Option<T>>,
) -> anyhow::Result<T> {
    let begin = Instant::now();
    loop {
        interrupt::check()?;
        if let Some(found) = look()? {
            return Ok(found);
        }
        ensure!(begin.elapsed() < limit, "not within {limit:?}: {what}");
        std::thread::sleep(LOOK);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    #[test]
    fn counters_are_read_at_the_first_look_behind_the_warm_up_and_at_the_end() {
        let mut meter = RunMeter::start(Duration::from_secs(3), Duration::from_secs(2));
        let RunTimes { begin_ns, from_ns, until_ns } = meter.times();
        assert_eq!((from_ns - begin_ns, until_ns - from_ns), (3_000_000_000, 2_000_000_000));
        let unread = || -> [f64; 1] { panic!("nothing counts yet") };
        assert_eq!(meter.look(from_ns - 1, unread), RunPhase::WarmUp);
        assert!(meter.clone().end([0.0]).is_err(), "it has not begun");
        // A look that comes late is still the first one.
        assert_eq!(meter.look(from_ns + 5_000_000_000, || [7.0]), RunPhase::Begins);
        let unread = || -> [f64; 1] { panic!("they were read") };
        assert_eq!(meter.look(from_ns + 1, unread), RunPhase::Measured);
        assert_eq!(meter.look(until_ns, unread), RunPhase::Over);
        meter.before = Some((monotonic_ns() - 1_000_000_000, [7.0]));
        let metered = meter.end([17.0]).expect("it has begun");
        assert_eq!(metered.grew, [10.0]);
        assert!(metered.seconds >= 1.0 && metered.per_s(2)[0] <= 10.0, "{metered:?}");
    }

    #[test]
    fn a_load_is_told_when_it_is_measured_and_when_to_stop() {
        let switch = LoadSwitch::default();
        let meter = RunMeter::start(Duration::from_millis(20), Duration::from_millis(20));
        let counted = AtomicU64::new(0);
        let work = |_| {
            while !switch.is_stopping() {
                counted.fetch_add(u64::from(switch.is_measuring()), Ordering::Relaxed);
                std::thread::yield_now();
            }
            Ok(())
        };
        let counters = |(): &()| [counted.load(Ordering::Relaxed) as f64];
        let metered = on_threads(2, work, || meter.pass(&switch, &mut (), counters, |()| Ok(())));
        let all = counted.load(Ordering::Relaxed) as f64;
        assert!(metered.is_ok_and(|(_, metered)| metered.grew[0] <= all));
        assert!(switch.is_stopping() && !switch.is_measuring());
    }

    #[test]
    fn a_check_that_fails_ends_the_run_and_stops_the_load() {
        let switch = LoadSwitch::default();
        let meter = RunMeter::start(Duration::ZERO, Duration::from_secs(3_600));
        let ended = meter.pass(&switch, &mut (), |()| [], |()| anyhow::bail!("a part is gone"));
        assert!(ended.is_err_and(|why| why.to_string() == "a part is gone"));
        assert!(switch.is_stopping() && !switch.is_measuring());
    }

    #[test]
    fn a_thread_that_fails_is_told_before_what_was_done_meanwhile() {
        let work = |number| if number == 1 { anyhow::bail!("number {number}") } else { Ok(number) };
        assert!(on_threads(2, work, || Ok(())).is_err_and(|why| why.to_string() == "number 1"));
        assert_eq!(on_threads(1, work, || Ok(7)).expect("none fails"), (vec![0], 7));
    }

    #[test]
    fn what_never_comes_is_named_with_how_long_it_was_waited_for() {
        let error = until("the node answers", Duration::ZERO, || Ok(None::<()>)).expect_err("never");
        assert_eq!(error.to_string(), "not within 0ns: the node answers");
        let mut left = 3;
        let found = until("it counts down", Duration::from_secs(60), || {
            left -= 1;
            Ok((left == 0).then_some("found"))
        });
        assert_eq!(found.expect("it comes"), "found");
    }
}
