//! What a node does to have its part where all nodes are active: it tells the others who it is, looks who they are, and
//! brings what it owns closer to its part, again and again.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tailwater_env::{Env, Task};
use tailwater_kafka::{Broker, BrokerNode};
use tailwater_log::{Log, MembersSeen, ShardMember, ShardSharing};
use tailwater_meta::{Expect, Meta, MetaError, Op};
use tailwater_meta_zookeeper::{NodeMembership, NodeRecord};
use tokio::sync::watch;

/// How often a node looks who is there, and what is to be done.
const LOOK: Duration = Duration::from_millis(500);
/// Pause before a look that something which has changed gives cause to: more of it may follow.
const PAUSE: Duration = Duration::from_millis(20);
/// Keys of the numbers that nodes have among Kafka's brokers, each with the id of a data directory.
const NUMBERS: &str = "node/number/";
/// The largest number that a node has among Kafka's brokers.
const NUMBER_MAX: i32 = 99_999;

/// What nodes tell each other of themselves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct SharedNode {
    /// The number of its log, by which records know it.
    owner: u64,
    /// Whether it is to own anything.
    takes: bool,
    /// Its number among Kafka's brokers.
    broker: i32,
    /// Where Kafka's clients connect, for each of its listeners.
    kafka: Vec<(String, u16)>,
}

/// What is told of how much a node has still to give up; `None` before the first look after it is to give up all.
type SharesLeft = Option<usize>;

/// A node that shares with others what there is.
pub(crate) struct NodeSharing {
    drains: watch::Sender<bool>,
    left: watch::Receiver<SharesLeft>,
    task: Mutex<Option<Task>>,
}

impl NodeSharing {
    /// Begins to share.
    pub(super) fn start(
        env: &Env,
        membership: Arc<NodeMembership>,
        log: &Log,
        broker: Option<Arc<Broker>>,
        (number, kafka): (i32, Vec<(String, u16)>),
    ) -> anyhow::Result<Self> {
        let (drains, draining) = watch::channel(false);
        let (told, left) = watch::channel(None);
        let me = SharedNode { owner: log.owner_number(), takes: true, broker: number, kafka };
        let run = SharingRun {
            env: env.clone(),
            membership,
            broker,
            sharing: ShardSharing::new(log)?,
            log: log.clone(),
            me,
            draining,
            told,
        };
        Ok(Self { drains, left, task: Mutex::new(Some(env.spawn("node-sharing", run.run()))) })
    }

    /// Gives everything to the other nodes, and takes nothing from here on.
    pub(crate) fn drain(&self) {
        self.drains.send_replace(true);
    }

    /// Changes nothing any more.
    pub(crate) fn end(&self) {
        drop(self.task.lock().take());
    }

    /// Completes when nothing is left that another node could have, or nothing changes any more; whether nothing is
    /// left.
    pub(crate) async fn drained(&self) -> bool {
        let mut left = self.left.clone();
        // An error says that the task is gone.
        left.wait_for(|left| *left == Some(0)).await.is_ok()
    }
}

struct SharingRun {
    env: Env,
    membership: Arc<NodeMembership>,
    broker: Option<Arc<Broker>>,
    sharing: ShardSharing,
    log: Log,
    me: SharedNode,
    draining: watch::Receiver<bool>,
    told: watch::Sender<SharesLeft>,
}

/// The nodes that were seen last; `Err` says why they are not known.
type NodesSeen = Result<Vec<(NodeRecord, SharedNode)>, String>;

/// Looks who is there, again and again. What is done with it may take longer, and would take whoever it did not see
/// meanwhile for gone.
async fn watch_nodes(
    env: Env,
    membership: Arc<NodeMembership>,
    seen: MembersSeen,
    nodes: watch::Sender<Option<NodesSeen>>,
) {
    loop {
        let found = membership.nodes().await.map_err(|error| error.to_string());
        let found = found.map(|found| found.into_iter().filter_map(shared).collect::<Vec<_>>());
        if let Ok(found) = &found {
            seen.look(env.now(), &members_of(found));
        }
        nodes.send_replace(Some(found));
        env.sleep(LOOK).await;
    }
}

impl SharingRun {
    async fn run(self) {
        let (told, nodes) = watch::channel(None);
        let (env, membership) = (self.env.clone(), Arc::clone(&self.membership));
        let watching = watch_nodes(env, membership, self.sharing.seen(), told);
        tokio::join!(watching, self.act(nodes));
    }

    async fn act(mut self, mut nodes: watch::Receiver<Option<NodesSeen>>) {
        let mut trouble = None;
        loop {
            self.me.takes = !*self.draining.borrow_and_update();
            self.announce();
            let seen = nodes.borrow_and_update().clone();
            let why = match seen {
                None => None,
                Some(Err(why)) => Some(why),
                Some(Ok(nodes)) => self.look(nodes).await.err().map(|error| format!("{error:#}")),
            };
            // Once for each reason: ZooKeeper may be away for long.
            if let Some(why) = why.as_ref().filter(|_| why != trouble) {
                tracing::warn!(why, "what this node owns stays as it is for now");
            }
            trouble = why;
            tokio::select! {
                biased;
                Ok(()) = self.draining.changed() => {}
                () = self.sharing.changed() => self.env.sleep(PAUSE).await,
                Ok(()) = nodes.changed() => {}
            }
        }
    }

    /// Tells the others who this node is.
    fn announce(&self) {
        let me = serde_json::to_value(&self.me).unwrap_or_default();
        self.membership.announce_if(|record| {
            let is_new = record.shares != me;
            record.shares = me;
            is_new
        });
    }

    async fn look(&mut self, nodes: Vec<(NodeRecord, SharedNode)>) -> anyhow::Result<()> {
        if !nodes.iter().any(|(_, shared)| *shared == self.me) {
            // The others do not know yet that this one is there.
            return Ok(());
        }
        let members = members_of(&nodes);
        if let Some(broker) = &self.broker {
            broker.set_nodes(brokers_of(&nodes));
        }
        // Neither keeps the other one from going on.
        let shards = self.sharing.look(&members).await;
        let groups = match &self.broker {
            Some(broker) => broker.share_groups(&members, &self.sharing.seen()).await,
            None => Ok(0),
        };
        let mut left = shards? + groups?;
        if !self.me.takes && members.iter().any(|member| member.takes) {
            left += self.log.shards_owned();
        }
        self.told.send_replace((!self.me.takes).then_some(left));
        Ok(())
    }
}

fn members_of(nodes: &[(NodeRecord, SharedNode)]) -> Vec<ShardMember> {
    nodes.iter().map(member_of).collect()
}

fn member_of((record, shared): &(NodeRecord, SharedNode)) -> ShardMember {
    ShardMember { id: record.id.clone(), owner: shared.owner, takes: shared.takes }
}

/// The nodes, as Kafka's clients are told of them.
fn brokers_of(nodes: &[(NodeRecord, SharedNode)]) -> Vec<BrokerNode> {
    let of = |node: &(NodeRecord, SharedNode)| BrokerNode {
        id: node.1.broker,
        member: member_of(node),
        listeners: node.1.kafka.clone(),
    };
    nodes.iter().map(of).collect()
}

/// What a node tells of itself; `None` if it does not share.
fn shared(record: NodeRecord) -> Option<(NodeRecord, SharedNode)> {
    let shared = serde_json::from_value(record.shares.clone()).ok()?;
    Some((record, shared))
}

/// The number among Kafka's brokers of the node with that data directory, which it keeps.
pub(super) async fn number_of(meta: &dyn Meta, id: &str) -> anyhow::Result<i32> {
    loop {
        let mut free = 1;
        for (key, found) in meta.list(NUMBERS).await? {
            let number = key.strip_prefix(NUMBERS).and_then(|number| number.parse::<i32>().ok());
            let Some(number) = number else {
                tracing::warn!(
                    key,
                    "it is no node's number, and is passed over: remove it from the metadata"
                );
                continue;
            };
            if found.value == id.as_bytes() {
                return Ok(number);
            }
            if number == free {
                free += 1;
            }
        }
        anyhow::ensure!(free <= NUMBER_MAX, "there are {NUMBER_MAX} nodes already");
        let value = id.as_bytes().to_vec().into();
        let put = Op::Put { key: format!("{NUMBERS}{free:05}"), value, expect: Expect::Absent };
        match meta.commit(vec![put]).await {
            Ok(_) => return Ok(free),
            // Another node has it.
            Err(MetaError::Conflict { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
