//! The process of a cluster's node: started again whenever it is down.

use std::sync::Arc;
use std::time::Duration;

use tailwater_copy::testing::CopyService;
use tailwater_copy::{ClusterLinks, Copies};
use tailwater_env::{BoxFuture, Env};
use tailwater_rma::{Connection, LocalDoorbell};

use crate::checkers::Violation;
use crate::net::Net;
use crate::planted::Plant;
use crate::scenarios::lives::open_undamaged;
use crate::world::{Crash, Crashed, Node};

use super::{ClusterLife, NAMES, STREAM, Trees, consumers, producers, workers};

/// Where a cluster is reached.
pub(in crate::scenarios) fn address(number: usize) -> String {
    format!("tcp:10.0.0.{}:7420", number + 1)
}

/// Connections of one cluster to others.
pub(in crate::scenarios) struct SimLinks {
    pub(in crate::scenarios) net: Net,
    pub(in crate::scenarios) node: Node,
    pub(in crate::scenarios) plant: Plant,
}

impl ClusterLinks for SimLinks {
    fn connect<'a>(&'a self, address: &'a str) -> BoxFuture<'a, Result<Arc<dyn Connection>, String>> {
        Box::pin(async move {
            let connection = self.net.connect(&self.node, address, false).await;
            Ok(self.plant.link(connection.map_err(|lost| lost.to_string())?))
        })
    }
}

/// Keeps a cluster up, for as long as the scenario lasts.
pub(super) async fn supervise(shared: Trees, number: usize) {
    let node = shared.nodes[number].clone();
    while !shared.outcome.has_failed() {
        if !node.is_up() {
            shared.outside.sleep(Duration::from_millis(200)).await;
            node.start();
        }
        let env = node.env();
        match node.run("open", open(Arc::clone(&shared), number, env.clone())).await {
            Ok(Ok(life)) => {
                shared.outcome.count("starts of clusters", 1);
                shared.lives.lock()[number] = Some(life);
                node.died().await;
                shared.lives.lock()[number] = None;
            }
            // Its disk has failed it on the way down.
            Ok(Err(_)) if !node.is_up() => shared.outcome.count("crashes while starting", 1),
            Ok(Err(why)) => {
                let why = format!("the cluster {} can't start: {why}", NAMES[number]);
                shared.outcome.note(Err(Violation::new(why)));
                node.crash(Crash::Power);
            }
            Err(Crashed) => shared.outcome.count("crashes while starting", 1),
        }
    }
}

async fn open(shared: Trees, number: usize, env: Env) -> Result<ClusterLife, String> {
    let log = open_undamaged(&env, shared.config.clone(), None).await?;
    let (net, node) = (shared.net.clone(), shared.nodes[number].clone());
    // Where there are workers, it is their links that lie.
    let plant = if shared.workers[number].is_empty() { shared.plant } else { Plant::None };
    let links = Arc::new(SimLinks { net, node, plant });
    let copies = Copies::start(&env, &log, Some(NAMES[number]), links).await;
    let copies = copies.map_err(|error| error.to_string())?;
    if let Ok(plan) = copies.plan(STREAM) {
        // It may have crashed before anybody could be told.
        shared.knows(&plan);
    }
    let service = CopyService::new(&env, &copies);
    shared.net.listen(&shared.nodes[number], &address(number), service, LocalDoorbell::new());
    copies.listens_at(&address(number));
    if shared.plant == Plant::DeadWorkerHeard {
        let hearing = workers::hear_the_dead(Arc::clone(&shared), number, env.clone(), copies.clone());
        env.spawn("hear-the-dead", hearing).detach();
    }
    let life = ClusterLife { env: env.clone(), log, copies };
    for shard in 0..shared.stream_config.shards {
        let producing = producers::produce(Arc::clone(&shared), number, life.clone(), shard);
        env.spawn("producer", producing).detach();
        let consuming = consumers::consume(Arc::clone(&shared), number, life.clone(), shard);
        env.spawn("consumer", consuming).detach();
    }
    Ok(life)
}
