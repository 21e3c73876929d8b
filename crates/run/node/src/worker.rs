//! A worker of a cluster as a process: it copies parts of streams, and pushes what comes to the cluster's node.

use std::time::Duration;

use tailwater_copy::{CopyWorker, DialedLinks};
use tailwater_env::Env;
use tailwater_tls::Dialer;

/// What a worker's process is given.
pub struct WorkerProcess {
    /// Where the cluster's nodes listen for CALLs: the worker goes from one to the next until one has its turn.
    pub nodes: Vec<String>,
    /// What it is called; by default the host's name and the number of the process.
    pub name: Option<String>,
    /// How it connects.
    pub dialer: Dialer,
    /// How often it prints what it has done.
    pub stats_every: Option<Duration>,
}

impl WorkerProcess {
    /// Works until `stop` completes, and others run what it ran. Its drop ends it at once.
    pub async fn run(self, env: &Env, stop: impl Future<Output = ()>) {
        let host = || rustix::system::uname().nodename().to_string_lossy().into_owned();
        let name = self.name.unwrap_or_else(|| format!("{}-{}", host(), std::process::id()));
        let links = DialedLinks::new(env, &self.dialer);
        tracing::info!(worker = name, nodes = ?self.nodes, "the worker begins");
        let worker = CopyWorker::new(env, links, self.nodes, &name);
        let stats = worker.stats();
        let _telling = self.stats_every.map(|every| {
            let waiting = env.clone();
            env.spawn("worker-stats", async move {
                loop {
                    waiting.sleep(every).await;
                    let (operations, sessions, bytes) = (stats.operations(), stats.sessions(), stats.bytes());
                    tracing::info!(operations, sessions, bytes, "what the worker has done");
                }
            })
        });
        worker.run(stop).await;
        tracing::info!("the worker ends");
    }
}
