//! The process of a node: started again whenever it is down.

use std::sync::Arc;
use std::time::Duration;

use tailwater_env::Env;
use tailwater_log::{Log, LogConfig, ShardMember, ShardSharing, SharedMetadata};
use tailwater_meta::Meta;
use tokio::sync::watch;

use crate::scenarios::lives::open_log;
use crate::world::{Crash, Crashed};

use super::links::{LinkPlace, NodeLink};
use super::meta::NodeMeta;
use super::store::SimLedgers;
use super::{NAMES, NodeLife, SharedNodes};

/// How often a node looks who is there, and what is to be done.
const LOOK: Duration = Duration::from_millis(500);
/// Pause before a look that something which has changed gives cause to.
const PAUSE: Duration = Duration::from_millis(20);
/// How often a node says that it is there.
const HEARTBEAT: Duration = Duration::from_millis(300);
/// How often it is looked for ledgers that no record names.
const SWEEP_EVERY: Duration = Duration::from_millis(600);

/// Keeps a node up, for as long as the scenario lasts.
pub(super) async fn supervise(shared: SharedNodes, number: usize) {
    let node = shared.nodes[number].clone();
    while !shared.outcome.has_failed() {
        if !node.is_up() {
            shared.outside.sleep(Duration::from_millis(200)).await;
            node.start();
        }
        match node.run("open", open(Arc::clone(&shared), number, node.env())).await {
            Ok(Ok(life)) => {
                shared.outcome.count("starts of nodes", 1);
                shared.lives.lock()[number] = Some(life);
                node.died().await;
                shared.lives.lock()[number] = None;
            }
            // It does not reach the metadata.
            Ok(Err(_)) => {
                shared.outcome.count("starts in vain", 1);
                node.crash(Crash::Process);
            }
            Err(Crashed) => shared.outcome.count("crashes while starting", 1),
        }
    }
}

async fn open(shared: SharedNodes, number: usize, env: Env) -> Result<NodeLife, String> {
    let link = NodeLink { node: number, env: env.clone(), links: Arc::clone(&shared.links) };
    let (real, plant) = (Arc::clone(&shared.meta), shared.plant);
    let meta: Arc<dyn Meta> = Arc::new(NodeMeta { real, link: link.clone(), plant });
    let (place, cluster) = ("here".to_owned(), uuid::Uuid::from_u128(7));
    let ledgers = SimLedgers { link: link.clone(), bookies: Arc::clone(&shared.bookies), plant };
    let config = LogConfig {
        segments: Some(Arc::new(ledgers)),
        sweep_every: SWEEP_EVERY,
        metadata: Some(SharedMetadata { meta, place, cluster, is_shared: true }),
        ..shared.config.clone()
    };
    let log = open_log(&env, config, None).await?;
    let sharing = ShardSharing::new(&log).map_err(|error| error.to_string())?;
    env.spawn("node-sharing", share(shared, link, log.clone(), sharing)).detach();
    Ok(NodeLife { env, log })
}

/// What a node does to have its part.
async fn share(shared: SharedNodes, link: NodeLink, log: Log, mut sharing: ShardSharing) {
    let (env, number) = (link.env.clone(), link.node);
    let me = || {
        let (id, owner) = (NAMES[number].to_owned(), log.owner_number());
        ShardMember { id, owner, takes: !shared.drains(number) }
    };
    let heartbeats = async {
        loop {
            let member = me();
            link.ask(LinkPlace::Metadata, || shared.sessions.heard(number, member, env.now())).await;
            env.sleep(HEARTBEAT).await;
        }
    };
    let (told, mut members) = watch::channel(Vec::new());
    let seen = sharing.seen();
    let looks = async {
        loop {
            let there = link.ask(LinkPlace::Metadata, || shared.sessions.there(env.now())).await;
            if let Some(there) = there {
                seen.look(env.now(), &there);
                told.send_replace(there);
            }
            env.sleep(LOOK).await;
        }
    };
    let acting = async {
        loop {
            let there = members.borrow_and_update().clone();
            if there.contains(&me()) && sharing.look(&there).await.is_err() {
                shared.outcome.count("looks that failed", 1);
            }
            tokio::select! {
                biased;
                () = sharing.changed() => env.sleep(PAUSE).await,
                Ok(()) = members.changed() => {}
            }
        }
    };
    futures::join!(heartbeats, looks, acting);
}
