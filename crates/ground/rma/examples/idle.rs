//! What waiting costs: processes full of tasks that wait for a doorbell nobody rings, and then for one that is rung.
//!
//! ```text
//! cargo run --release -p tailwater-rma --example idle [PROCESSES] [TASKS] [DEADLINE_MS]
//! ```

#![allow(clippy::disallowed_methods)] // it looks at real processes

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tailwater_env::Env;
use tailwater_rma::{
    Address, Backing, Peer, Region, Reply, ScarHit, ScarOp, Server, ServerConfig, Service, connect,
};

struct OneRegion(Arc<Region>);

impl Service for OneRegion {
    fn regions(&self) -> Vec<Arc<Region>> {
        vec![self.0.clone()]
    }

    fn scar(&self, _op: &ScarOp) -> Option<ScarHit> {
        None
    }

    fn call(&self, _peer: &Peer, _method: u16, _payload: Bytes, reply: Reply) {
        drop(reply);
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    if let [wait, path, tasks, deadline_ms] = &arguments[..]
        && wait == "wait"
    {
        let deadline = Duration::from_millis(deadline_ms.parse()?);
        return runtime.block_on(waiters(path, tasks.parse()?, deadline));
    }
    let argument = |place: usize, default: u64| -> Result<u64, std::num::ParseIntError> {
        arguments.get(place).map_or(Ok(default), |text| text.parse())
    };
    runtime.block_on(measure(argument(0, 20)?, argument(1, 500)?, argument(2, 10_000)?))
}

/// One process of waiters: says how many rings its tasks saw when its input ends.
async fn waiters(path: &str, tasks: u64, deadline: Duration) -> Result<(), Box<dyn std::error::Error>> {
    let env = Env::real();
    let connection = connect(&env, &Address::Unix(path.into())).await?;
    for _ in 0..tasks {
        let connection = connection.clone();
        let wait = async move {
            let mut seen = 0;
            while let Ok(next) = connection.watch(seen, deadline).await {
                seen = next;
            }
        };
        env.spawn("waiter", wait).detach();
    }
    println!("ready");
    std::io::stdout().flush()?;
    while connection.lost().is_none() {
        env.sleep(Duration::from_secs(5)).await;
    }
    Ok(())
}

async fn measure(processes: u64, tasks: u64, deadline_ms: u64) -> Result<(), Box<dyn std::error::Error>> {
    let env = Env::real();
    let path = std::env::temp_dir().join(format!("rma-idle-{}", std::process::id()));
    let region = Arc::new(Region::create("idle", 4096, 0, Backing::Shared)?);
    let config = ServerConfig { unix: Some(path.clone()), ..ServerConfig::default() };
    let server = Server::start(&env, config, Arc::new(OneRegion(region)))?;
    let mut children = Vec::new();
    for _ in 0..processes {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["wait".as_ref(), path.as_os_str()])
            .args([tasks.to_string(), deadline_ms.to_string()])
            .stdout(Stdio::piped())
            .spawn()?;
        BufReader::new(child.stdout.take().ok_or("its output is a pipe")?).read_line(&mut String::new())?;
        children.push(child);
    }
    env.sleep(Duration::from_secs(2)).await;
    println!("{processes} processes of {tasks} tasks, watches of {deadline_ms} ms");
    for (name, rings_per_s) in [("idle", 0u64), ("10 rings/s", 10), ("1,000 rings/s", 1_000)] {
        let time = Duration::from_secs(10);
        let (start, before, mine) = (env.now(), cpu_times(&children), cpu_time(std::process::id()));
        let bell = server.doorbell();
        while env.now().since(start) < time {
            let pause = if rings_per_s == 0 { time } else { Duration::from_secs(1) / rings_per_s as u32 };
            env.sleep(pause).await;
            if rings_per_s > 0 {
                bell.ring();
            }
        }
        let elapsed = env.now().since(start).as_secs_f64();
        let cores = |cpu: Duration| cpu.as_secs_f64() / elapsed;
        println!(
            "{name:<16} waiters {:.4} cores, server {:.4} cores",
            cores(cpu_times(&children).saturating_sub(before)),
            cores(cpu_time(std::process::id()).saturating_sub(mine)),
        );
    }
    drop(server);
    for mut child in children {
        child.wait()?;
    }
    Ok(())
}

fn cpu_times(processes: &[Child]) -> Duration {
    processes.iter().map(|process| cpu_time(process.id())).sum()
}

/// The CPU time of all threads of a process, by the scheduler's own clock.
fn cpu_time(process: u32) -> Duration {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let ns = tasks.filter_map(|task| {
        let stat = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        stat.split_whitespace().next()?.parse::<u64>().ok()
    });
    Duration::from_nanos(ns.sum())
}
