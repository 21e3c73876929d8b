//! `bench cache protocol`: memcached's protocol of a node beside memcached itself, by the same clients, in turn.
//!
//! | load | what each connection asks for, one request after the other |
//! |---|---|
//! | `get` | one key |
//! | `multi-get` | many keys at once |
//! | `mixed` | ten gets of one key for each set, as memtier_benchmark does by default |
//! | `set` | one key |
//!
//! Each connection is a thread of this process. The servers share the machine with them, one at a time. The node keeps
//! one copy of each value, as memcached does, in a backend of its own.

use std::net::SocketAddr;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde::Serialize;
use tailwater_load::clock::cpu_of;
use tailwater_load::report::{self, ProgressLine, ReportFormat};
use tailwater_load::stats::{Durations, round};
use tailwater_load::system::{CellProcesses, PeerDurability, System, SystemArgs, WorkspaceArgs};
use tailwater_load::{free_address, interrupt};

use super::PercentilesUs;
use crate::compare::series::Series;
use crate::memcached::{Memcached, TextClient};

/// Keys of a `multi-get`.
const MANY: usize = 32;
/// Gets for each set of `mixed`.
const GETS_FOR_SET: usize = 10;
/// Values that are set together when a server is filled.
const FILL: usize = 64;

/// Flags of `bench cache protocol`.
#[derive(clap::Args)]
pub struct Args {
    /// Connections.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=512))]
    connections: u16,
    /// Threads of memcached.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=64))]
    threads: u16,
    /// Bytes of each value. All loads are run with each.
    #[arg(long, value_delimiter = ',', default_value = "32,1024,4096", value_name = "BYTES")]
    value_bytes: Vec<u32>,
    /// How many values there are.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(64..=1_000_000))]
    values: u32,
    /// How often each load is run on each server, in turn.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=99))]
    rounds: u8,
    /// Seconds for each run.
    #[arg(long, default_value_t = 2.0, value_name = "SECONDS")]
    duration_s: f64,
    /// Form of the output.
    #[arg(short, long, value_enum, default_value_t = ReportFormat::Table)]
    output: ReportFormat,
    #[command(flatten)]
    workspace: WorkspaceArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum ProtocolLoad {
    Get,
    MultiGet,
    Mixed,
    Set,
}

impl ProtocolLoad {
    const ALL: [Self; 4] = [Self::Get, Self::MultiGet, Self::Mixed, Self::Set];

    /// Keys of one request.
    fn keys(self) -> usize {
        if self == Self::MultiGet { MANY } else { 1 }
    }

    /// Whether a connection's request of this number is a set.
    fn is_set(self, request: usize) -> bool {
        match self {
            Self::Get | Self::MultiGet => false,
            Self::Mixed => request.is_multiple_of(GETS_FOR_SET + 1),
            Self::Set => true,
        }
    }
}

#[derive(Serialize)]
struct ProtocolReport {
    bench: &'static str,
    memcached: String,
    connections: u16,
    threads: u16,
    values: u32,
    rounds: u8,
    duration_s: f64,
    loads: Vec<ProtocolMeasured>,
}

/// One load with values of one size.
#[derive(Serialize)]
struct ProtocolMeasured {
    load: ProtocolLoad,
    value_bytes: u32,
    node: ProtocolServer,
    memcached: ProtocolServer,
    /// The node's keys a second over memcached's: the median of the rounds.
    ratio: f64,
    /// The same of keys for each second of the server's processor time.
    cpu_ratio: f64,
}

/// All rounds of one server.
#[derive(Default, Serialize)]
struct ProtocolServer {
    keys_per_s: Vec<f64>,
    /// Keys for each second of the server's processor time.
    keys_per_cpu_s: Vec<f64>,
    /// Of a request.
    request_us: PercentilesUs,
    #[serde(skip)]
    times: Durations,
}

/// Runs it.
pub fn run(args: &Args) -> anyhow::Result<()> {
    ensure!(args.duration_s > 0.0 && !args.value_bytes.is_empty(), "a duration above 0, and sizes of values");
    interrupt::listen()?;
    let largest = u64::from(args.value_bytes.iter().copied().max().unwrap_or_default());
    let capacity = ((largest + 256) * u64::from(args.values) * 3).max(64 << 20);
    let own = Memcached::start(capacity, usize::from(args.threads))?;
    let memcached = own.context("memcached is not installed: bench/peers/install memcached")?;
    let version = TextClient::connect(memcached.address())?.version()?;
    let address = free_address()?;
    let config =
        format!("[memcached]\nenabled = true\nlisten = \"{address}\"\ncapacity_bytes = {capacity}\n");
    let with = SystemArgs::usual(args.workspace.clone()).or_cells(CellProcesses::R1).with_config(&config);
    let system = System::start_for(&with, false, PeerDurability::Fsync)?;
    let mut line = ProgressLine::default();
    let mut loads = Vec::new();
    for &value_bytes in &args.value_bytes {
        for server in [address, memcached.address()] {
            fill(server, args.values, value_bytes)?;
        }
        for load in ProtocolLoad::ALL {
            let (mut node, mut peer) = (ProtocolServer::default(), ProtocolServer::default());
            for number in 0..args.rounds {
                line.show(&format!("{load:?}, {value_bytes} bytes, round {}", number + 1));
                let mut turns = [true, false];
                turns.rotate_left(usize::from(number % 2));
                for is_node in turns {
                    let cpu = || match is_node {
                        true => system.cpu().0,
                        false => cpu_of(memcached.pid()).unwrap_or_default(),
                    };
                    let server = if is_node { address } else { memcached.address() };
                    let begun = cpu();
                    let (keys, times, wall) = measure(args, server, load, value_bytes as usize)?;
                    let cpu_s = (cpu() - begun).as_secs_f64();
                    let of = if is_node { &mut node } else { &mut peer };
                    of.keys_per_s.push(round(keys as f64 / wall.as_secs_f64(), 0));
                    of.keys_per_cpu_s.push(round(keys as f64 / cpu_s.max(0.01), 0));
                    of.times.add(&times);
                }
            }
            for of in [&mut node, &mut peer] {
                of.request_us = of.times.percentiles_ms().into();
            }
            let ratio = |own: &[f64], other: &[f64]| round(Series::ratios(own, other).median(), 2);
            let cpu_ratio = ratio(&node.keys_per_cpu_s, &peer.keys_per_cpu_s);
            let ratio = ratio(&node.keys_per_s, &peer.keys_per_s);
            loads.push(ProtocolMeasured { load, value_bytes, node, memcached: peer, ratio, cpu_ratio });
        }
    }
    drop(line);
    system.stop()?;
    let Args { connections, threads, values, rounds, duration_s, .. } = *args;
    let bench = "cache protocol";
    let report =
        ProtocolReport { bench, memcached: version, connections, threads, values, rounds, duration_s, loads };
    report::print(args.output, &report)
}

fn key(number: u32) -> String {
    format!("bench-{number:010}")
}

fn fill(server: SocketAddr, values: u32, value_bytes: u32) -> anyhow::Result<()> {
    let mut client = TextClient::connect(server)?;
    let value = vec![7; value_bytes as usize];
    let keys: Vec<String> = (0..values).map(key).collect();
    keys.chunks(FILL).try_for_each(|some| {
        interrupt::check()?;
        client.set(some, &value)
    })
}

/// Keys asked for by all connections together, how long their requests took, and how long all of it.
fn measure(
    args: &Args,
    server: SocketAddr,
    load: ProtocolLoad,
    value_bytes: usize,
) -> anyhow::Result<(u64, Durations, Duration)> {
    interrupt::check()?;
    let (is_over, begin) = (AtomicBool::new(false), Barrier::new(usize::from(args.connections) + 1));
    let mut clients = Vec::new();
    for _ in 0..args.connections {
        clients.push(TextClient::connect(server)?);
    }
    let one = |(number, mut client): (usize, TextClient)| -> anyhow::Result<(u64, Durations)> {
        let value = vec![7; value_bytes];
        let (mut asked, mut times, mut random) = (0, Durations::default(), number as u64 + 1);
        begin.wait();
        for request in number.. {
            if is_over.load(Ordering::Relaxed) {
                break;
            }
            let mut next = || key(super::next_index(&mut random, args.values as usize) as u32);
            let keys: Vec<String> = (0..load.keys()).map(|_| next()).collect();
            let sent = Instant::now();
            if load.is_set(request) {
                client.set(&keys, &value)?;
            } else {
                let found = client.get(&keys, value_bytes)?;
                ensure!(found.misses == 0, "{} of {} values are not there", found.misses, keys.len());
            }
            times.record(sent.elapsed().as_nanos() as u64);
            asked += keys.len() as u64;
        }
        Ok((asked, times))
    };
    std::thread::scope(|scope| {
        let one = &one;
        let threads = clients.into_iter().enumerate().map(|client| scope.spawn(move || one(client)));
        let threads: Vec<_> = threads.collect();
        begin.wait();
        let begun = Instant::now();
        std::thread::sleep(Duration::from_secs_f64(args.duration_s));
        is_over.store(true, Ordering::Relaxed);
        let (mut asked, mut times) = (0, Durations::default());
        for thread in threads {
            let (of, took) = thread.join().ok().context("a connection's thread failed")??;
            asked += of;
            times.add(&took);
        }
        Ok((asked, times, begun.elapsed()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mixed_load_has_ten_gets_for_each_set_and_the_others_are_of_one_kind() {
        let sets = |load: ProtocolLoad| (0..110).filter(|request| load.is_set(*request)).count();
        assert_eq!(ProtocolLoad::ALL.map(sets), [0, 0, 10, 110]);
    }
}
