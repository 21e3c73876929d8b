//! What the operating system knows of this process, under the names that Prometheus' own libraries use.

use std::fs;

/// The process, at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcessMetrics {
    /// User and system time since it began.
    pub cpu_seconds: f64,
    /// Memory that is its own or mapped, cells included.
    pub resident_bytes: u64,
    /// Address space.
    pub virtual_bytes: u64,
    /// File descriptors in use.
    pub fds_open: u64,
    /// File descriptors allowed.
    pub fds_max: Option<u64>,
    /// Threads.
    pub threads: u64,
    /// When it began, since the epoch.
    pub start_seconds: f64,
}

impl ProcessMetrics {
    /// Looks. What can't be read is 0: `/proc` may be hidden, and a page of metrics is no place to fail for that.
    #[allow(clippy::disallowed_methods)] // It is this very process.
    pub fn read() -> Self {
        let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let mut process = Self::parse(&text("/proc/self/stat"), &text("/proc/stat"));
        // The one that is open for this very look does not count.
        let fds = fs::read_dir("/proc/self/fd").map_or(0, |fds| fds.count() as u64);
        process.fds_open = fds.saturating_sub(1);
        process.fds_max = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        process
    }

    /// From the line of `/proc/self/stat` and the lines of `/proc/stat`.
    fn parse(stat: &str, system: &str) -> Self {
        let ticks_per_second = rustix::param::clock_ticks_per_second() as f64;
        // The program's name is in parentheses and may hold anything, parentheses too. The field behind it is the
        // third.
        let fields: Vec<&str> =
            stat.rsplit_once(')').map_or(Vec::new(), |(_, rest)| rest.split_ascii_whitespace().collect());
        let field = |number: usize| -> u64 {
            fields.get(number - 3).and_then(|field| field.parse().ok()).unwrap_or_default()
        };
        let booted = system.lines().find_map(|line| line.strip_prefix("btime "));
        let booted: f64 = booted.and_then(|seconds| seconds.parse().ok()).unwrap_or_default();
        Self {
            cpu_seconds: (field(14) + field(15)) as f64 / ticks_per_second,
            threads: field(20),
            start_seconds: booted + field(22) as f64 / ticks_per_second,
            virtual_bytes: field(23),
            resident_bytes: field(24) * rustix::param::page_size() as u64,
            ..Self::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_kernel_is_understood_whatever_the_program_is_called() {
        let stat =
            "7 (a) b (c) S 1 7 7 0 -1 4194560 1 2 3 4 150 50 0 0 20 0 9 0 400 8192 3 18446744073709551615 1";
        let process = ProcessMetrics::parse(stat, "cpu 1 2\nbtime 1000\n");
        assert_eq!(process.cpu_seconds, 200.0 / rustix::param::clock_ticks_per_second() as f64);
        assert_eq!((process.threads, process.virtual_bytes), (9, 8192));
        assert_eq!(process.resident_bytes, 3 * rustix::param::page_size() as u64);
        assert!(process.start_seconds > 1000.0);
    }

    #[test]
    fn this_process_uses_something_of_everything() {
        let process = ProcessMetrics::read();
        assert!(process.resident_bytes > 0 && process.virtual_bytes >= process.resident_bytes);
        assert!(process.fds_open >= 3 && process.threads >= 1);
        assert!(process.start_seconds > 1e9);
    }
}
