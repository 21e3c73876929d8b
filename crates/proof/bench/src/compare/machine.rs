//! What everything ran on, as the machine itself says it.

use std::net::{TcpListener, TcpStream};

use rustix::thread::{CpuSet, sched_getaffinity};

/// The machine in one line.
pub fn describe() -> anyhow::Result<String> {
    let allowed = sched_getaffinity(None)?;
    let cores: Vec<_> = (0..CpuSet::MAX_CPU).filter(|&core| allowed.is_set(core)).collect();
    let all = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let online = all.lines().filter(|line| line.starts_with("processor")).count();
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = field(&memory, "MemTotal").trim_end_matches("kB").trim().parse().unwrap_or(0u64);
    let uname = rustix::system::uname();
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    Ok(format!(
        "{} (cores {cores:?} of {online}), {} GiB, kernel {}; load before: {}",
        field(&all, "model name"),
        kib >> 20,
        uname.release().to_string_lossy(),
        load.split_ascii_whitespace().next().unwrap_or("unknown"),
    ))
}

fn field<'a>(text: &'a str, name: &str) -> &'a str {
    let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
    line.split_once(':').map_or("unknown", |(_, value)| value.trim())
}

/// What a TCP connection over the loopback uses if it does not choose.
pub fn congestion_control() -> anyhow::Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let stream = TcpStream::connect(listener.local_addr()?)?;
    Ok(rustix::net::sockopt::tcp_congestion(&stream)?)
}
