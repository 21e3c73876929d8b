//! The clock that all processes of one host share, and the CPU time that they used.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds of CLOCK_MONOTONIC: comparable between the processes of one host.
#[inline]
pub fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// User and system time of a process since it began, all its threads together, in steps of 10 ms; `None` if it is
/// gone.
pub fn cpu_of(pid: u32) -> Option<Duration> {
    cpu_at(&format!("/proc/{pid}/stat"))
}

/// How often the threads of a process have gone to sleep, which is about how often they were woken; 0 if it is gone.
pub fn sleeps_of(pid: u32) -> u64 {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let status = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("status")).ok());
    let count = |status: String| {
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        line.trim().parse::<u64>().ok()
    };
    status.filter_map(count).sum()
}

/// The child of a process that runs this command of ours.
pub fn child_with_command(pid: u32, command: &str) -> Option<u32> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let children = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
    let is_it = |child: &u32| {
        let line = std::fs::read(format!("/proc/{child}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).nth(1) == Some(command.as_bytes())
    };
    let children: Vec<String> = children.collect();
    children
        .iter()
        .flat_map(|line| line.split_ascii_whitespace())
        .filter_map(|id| id.parse().ok())
        .find(is_it)
}

/// The same of one thread of this process.
pub fn cpu_of_thread(thread: u32) -> Option<Duration> {
    cpu_at(&format!("/proc/self/task/{thread}/stat"))
}

fn cpu_at(file: &str) -> Option<Duration> {
    let ticks = stat_ticks(&std::fs::read_to_string(file).ok()?)?;
    let per_second = rustix::param::clock_ticks_per_second();
    Some(Duration::from_nanos(ticks * 1_000_000_000 / per_second))
}

/// utime and stime of a line of `/proc/PID/stat`.
fn stat_ticks(stat: &str) -> Option<u64> {
    // The program's name is in parentheses and may hold anything, parentheses too.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_s_name_may_hold_anything() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194560 1 2 3 4 150 25 0 0 20 0 9 0 42 1 1";
        assert_eq!(stat_ticks(stat), Some(175));
        assert_eq!(stat_ticks("7 (a"), None);
    }

    #[test]
    fn this_process_has_a_cpu_time_and_a_dead_one_has_none() {
        assert!(cpu_of(std::process::id()).is_some());
        assert_eq!(cpu_of(u32::MAX), None);
    }
}
