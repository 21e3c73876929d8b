//! `tailwater worker`: a process that copies parts of streams for the node of its cluster.

use std::time::Duration;

use anyhow::Context;
use tailwater_env::Env;
use tailwater_node::signal::StopSignals;
use tailwater_node::worker::WorkerProcess;
use tailwater_node::{LogFormat, Logging};
use tokio::sync::oneshot;

use crate::admin::Server;
use crate::values;

/// How long a node is waited for that does not answer.
const NODE_PATIENCE: Duration = Duration::from_secs(86_400);

/// Flags of `worker`.
#[derive(clap::Args)]
pub struct Args {
    /// What it is called among the workers of its cluster. By default this host's name and the number of the process.
    #[arg(long)]
    name: Option<String>,
    /// Where the cluster's node listens for CALLs, [listen] data there: each of them, where several nodes take turns.
    /// By default the node at --server is asked.
    #[arg(long, value_name = "IP:PORT")]
    node: Vec<String>,
    /// Print what the worker has done, every SECONDS seconds.
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, require_equals = true, default_missing_value = "1",
        value_parser = values::number::<u32>(1..=86_400))]
    stats: Option<u32>,
    /// Which log lines are written, as in `info,tailwater_copy=debug`.
    #[arg(long, value_name = "FILTER", default_value = "info")]
    log: String,
}

/// Works until it is stopped, and others run what it ran.
pub fn run(server: &Server, args: Args) -> anyhow::Result<()> {
    tailwater_node::logging::init(&Logging { filter: args.log.clone(), format: LogFormat::Text })?;
    tailwater_node::panics::end_the_process();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let done = runtime.block_on(async {
        let mut stop = StopSignals::caught();
        let nodes = tokio::select! {
            biased;
            () = stop.next() => return Ok(()),
            nodes = nodes_of(server, &args) => nodes?,
        };
        let env = Env::real();
        let every = args.stats.map(|seconds| Duration::from_secs(seconds.into()));
        let work = WorkerProcess {
            nodes,
            name: args.name.clone(),
            dialer: server.dialer(&env)?,
            stats_every: every,
        };
        work.run(&env, stop.next()).await;
        Ok(())
    });
    // A thread may wait for the node.
    runtime.shutdown_background();
    done
}

/// The addresses of the cluster's nodes. One that is asked is waited for.
async fn nodes_of(server: &Server, args: &Args) -> anyhow::Result<Vec<String>> {
    if !args.node.is_empty() {
        let with_scheme = |address: &String| match address.split_once(':') {
            Some(("tcp" | "tls" | "unix", _)) => address.clone(),
            _ => format!("tcp:{address}"),
        };
        return Ok(args.node.iter().map(with_scheme).collect());
    }
    let (told, address) = oneshot::channel();
    let server = server.clone();
    // Nobody waits for it when the worker is stopped.
    let ask = move || drop(told.send(server.data_address(NODE_PATIENCE)));
    std::thread::Builder::new().name("worker-node".to_owned()).spawn(ask)?;
    Ok(vec![address.await.context("nobody asks for the node any more")??])
}
