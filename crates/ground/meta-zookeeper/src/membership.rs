//! Which processes there are, and which of them may change the metadata.
//!
//! ```text
//!  ROOT/cluster        which metadata this is: made once
//!  ROOT/turn           who has the turn; its version is the number of the turn
//!  ROOT/active         ephemeral: the process that has the turn is there
//!  ROOT/nodes/ID       ephemeral: a process that is there, with its addresses
//! ```
//!
//! A process *takes a turn* by one transaction, which changes `turn` at the version that was read and makes
//! `active`. Every change of metadata checks that `turn` has the version that it had then. So a process that was
//! thought to be dead changes nothing any more once another one has a turn, whatever it believes of its session.
//!
//! Processes may *share* a turn: the first of them takes it for all, without `active`, and each further one goes by
//! the version that `turn` has then. Who of them may change what is a matter of the keys. One that takes a turn for
//! itself waits until no process that shares one is there.
//!
//! The turn is not given up by a session that ends: ZooKeeper may have been away. A process that comes back finds
//! its turn as it was and makes `active` again, for which others leave it [`GRACE`].

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use futures::{StreamExt, stream};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tailwater_env::{Env, Task};
use tailwater_meta::{FromMeta, MetaError};
use tokio::sync::watch;
use uuid::Uuid;
use zookeeper_client::{Client, Error as ZkError, MultiWriteError};

use crate::limits::{GRACE, LOOK, REQUESTS_AT_A_TIME, RETRY};
use crate::session::ZooKeeperSession;
use crate::store::{MetaInner, ZooKeeperMeta};
use crate::uri::MetadataUri;

/// Of everything below the path.
const LAYOUT: u32 = 1;

/// A process, as others see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRecord {
    /// Of its data directory.
    pub id: String,
    /// As its configuration says.
    pub name: String,
    /// The program and its version.
    pub program: String,
    /// When it started, in milliseconds since 1970.
    pub started_ms: i64,
    /// Its listeners: what they are for, and where they are.
    pub addresses: Vec<(String, String)>,
    /// Whether it may change the metadata.
    pub active: bool,
    /// What it has to say to those that share a turn with it, in words of their own.
    #[serde(default, skip_serializing_if = "serde_json::Value::is_null")]
    pub shares: serde_json::Value,
}

/// `ROOT/cluster`.
#[derive(Serialize, Deserialize)]
struct ClusterRecord {
    layout: u32,
    cluster: Uuid,
}

/// `ROOT/turn` and `ROOT/active`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct TurnRecord {
    id: String,
    name: String,
    /// Random, of the attempt: by it an unanswered one is known again.
    mark: u64,
    /// Whether it is the turn of all processes that want to share one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    shared: bool,
}

/// Why a place of metadata can't be used, however long one waits.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MembershipFault {
    /// Something else is there.
    #[error(
        "{uri} is not Tailwater's: there is {found:?}, and no `cluster`. Name a path that is not there yet, or the one \
         that this cluster's nodes have"
    )]
    Foreign {
        /// The place.
        uri: String,
        /// A child of it.
        found: String,
    },
    /// A later version has been there.
    #[error(
        "{uri} has metadata of layout {found}, and this program knows {LAYOUT}: use a later version of it"
    )]
    Layout {
        /// The place.
        uri: String,
        /// Its layout.
        found: u32,
    },
    /// What is there can't be read.
    #[error("{uri}: {path} can't be read, this program did not write it: {why}")]
    Damaged {
        /// The place.
        uri: String,
        /// The node.
        path: String,
        /// Why.
        why: String,
    },
    /// ZooKeeper does not answer, or not as wanted: another try may do.
    #[error("{0}")]
    Unavailable(String),
}

impl From<MetaError> for MembershipFault {
    fn from(error: MetaError) -> Self {
        match error {
            MetaError::Unavailable(why) => Self::Unavailable(why),
            other => Self::Unavailable(other.to_string()),
        }
    }
}

/// What a process tells while it waits for its turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TurnWait {
    /// For ZooKeeper, with the reason.
    ForZooKeeper(String),
    /// For the process that has the turn, by its name and id.
    ForActive(String),
}

/// A process among those of a cluster. Its drop leaves them.
pub struct NodeMembership {
    session: Arc<ZooKeeperSession>,
    cluster: Uuid,
    record: watch::Sender<NodeRecord>,
    mark: u64,
    /// Whether it shares its turn.
    shared: bool,
    /// Until the process leaves.
    registering: Mutex<Option<Task>>,
}

impl NodeMembership {
    /// Joins the processes at `uri`, whose session ends when ZooKeeper hears nothing of it for `session`. It takes
    /// turns for itself, or for all that want a `shared` one. Waits for ZooKeeper, and tells why.
    ///
    /// # Errors
    /// What no waiting changes.
    pub async fn join(
        env: &Env,
        uri: MetadataUri,
        session: Duration,
        record: NodeRecord,
        shared: bool,
        mut told: impl FnMut(TurnWait),
    ) -> Result<Self, MembershipFault> {
        let session = Arc::new(ZooKeeperSession::new(env.clone(), uri, session));
        let cluster = loop {
            match cluster_of(&session, true).await {
                Ok(cluster) => break cluster,
                Err(MembershipFault::Unavailable(why)) => told(TurnWait::ForZooKeeper(why)),
                Err(fault) => return Err(fault),
            }
            env.sleep(RETRY).await;
        };
        let (record, changed) = watch::channel(record);
        let registering = env.spawn("meta-node", register(Arc::clone(&session), changed));
        let registering = Mutex::new(Some(registering));
        Ok(Self { session, cluster, record, mark: env.random_u64(), shared, registering })
    }

    /// Which metadata this is.
    pub fn cluster(&self) -> Uuid {
        self.cluster
    }

    /// Changes what others see.
    pub fn announce(&self, change: impl FnOnce(&mut NodeRecord)) {
        self.record.send_modify(change);
    }

    /// The same, where `change` says whether it has changed anything.
    pub fn announce_if(&self, change: impl FnOnce(&mut NodeRecord) -> bool) {
        self.record.send_if_modified(change);
    }

    /// Waits for a turn, and takes it. Tells whom it waits for.
    pub async fn take_turn(&self, mut told: impl FnMut(TurnWait)) -> ZooKeeperMeta {
        let mut has_waited = false;
        loop {
            match self.try_turn(&mut has_waited, &mut told).await {
                Ok(Some(turn)) => return self.begin(turn).await,
                Ok(None) => {}
                Err(error) => {
                    told(TurnWait::ForZooKeeper(self.session.unavailable(&error).to_string()));
                    self.session.env.sleep(RETRY).await;
                }
            }
        }
    }

    /// The number of the turn, if it was taken; otherwise something may have changed.
    async fn try_turn(
        &self,
        has_waited: &mut bool,
        told: &mut impl FnMut(TurnWait),
    ) -> Result<Option<i32>, ZkError> {
        let session = &self.session;
        let client = self.synced().await?;
        let root = &session.uri.root;
        let (active, turn) = (format!("{root}/active"), format!("{root}/turn"));
        let me = self.turn_record();
        if let Some((holder, stat)) = read_turn(session, &client, &active).await? {
            // A process of the same data directory that is not this one is gone: this one has the directory's lock.
            if holder.id == me.id && stat.ephemeral_owner != client.session_id().0 {
                let deleted = session.timed(client.delete(&active, Some(stat.version))).await;
                return match deleted {
                    Ok(()) | Err(ZkError::NoNode | ZkError::BadVersion) => Ok(None),
                    Err(error) => Err(error),
                };
            }
            if holder != me {
                *has_waited = true;
                told(TurnWait::ForActive(format!("{} ({})", holder.name, holder.id)));
                return self.wait_for_change(&client, &active).await.map(|()| None);
            }
        } else if std::mem::take(has_waited) {
            session.env.sleep(GRACE).await;
            return Ok(None);
        }
        let (last, stat) = match read_turn(session, &client, &turn).await? {
            Some(found) => found,
            None => {
                session.make(&client, &turn, &session.persistent()).await?;
                return Ok(None);
            }
        };
        if last == me {
            // An attempt of this process's that was not answered.
            return Ok(Some(stat.version));
        }
        if self.shared && last.shared {
            return Ok(Some(stat.version));
        }
        if !self.shared
            && last.shared
            && let Some(other) = self.others(&client).await?.into_iter().find(|other| other.active)
        {
            *has_waited = true;
            told(TurnWait::ForActive(format!("{} ({})", other.name, other.id)));
            session.env.sleep(LOOK).await;
            return Ok(None);
        }
        let data = serde_json::to_vec(&me).unwrap_or_default();
        let mut writer = client.new_multi_writer();
        writer.add_set_data(&turn, &data, Some(stat.version))?;
        // It can be made only if no process with a turn of its own is there by now.
        writer.add_create(&active, &data, &session.ephemeral())?;
        if self.shared {
            writer.add_delete(&active, None)?;
        }
        match session.env.timeout(crate::limits::PATIENCE, writer.commit()).await {
            Some(Ok(_)) => Ok(Some(stat.version + 1)),
            Some(Err(MultiWriteError::OperationFailed { .. })) => Ok(None),
            Some(Err(MultiWriteError::RequestFailed { source })) => Err(source),
            None => Err(ZkError::Timeout),
        }
    }

    fn turn_record(&self) -> TurnRecord {
        let record = self.record.borrow();
        TurnRecord { id: record.id.clone(), name: record.name.clone(), mark: self.mark, shared: self.shared }
    }

    /// The processes that are there by now, this one among them if ZooKeeper has it.
    ///
    /// # Errors
    /// `Unavailable`.
    pub fn nodes(&self) -> FromMeta<'_, Vec<NodeRecord>> {
        Box::pin(async move {
            let client = self.session.synced().await?;
            let read = nodes_of(&self.session, &client).await;
            let (nodes, _) = read.map_err(|error| self.session.unavailable(&error))?;
            Ok(nodes)
        })
    }

    async fn others(&self, client: &Client) -> Result<Vec<NodeRecord>, ZkError> {
        let (mut nodes, _) = nodes_of(&self.session, client).await?;
        let me = self.record.borrow().id.clone();
        nodes.retain(|node| node.id != me);
        Ok(nodes)
    }

    async fn synced(&self) -> Result<Client, ZkError> {
        let client = self.session.ready().await.map_err(|_| ZkError::ConnectionLoss)?;
        self.session.timed(client.sync(&self.session.uri.root)).await?;
        Ok(client)
    }

    /// Completes when a node has changed or is gone, or the session is, and after a while.
    async fn wait_for_change(&self, client: &Client, path: &str) -> Result<(), ZkError> {
        let looked = self.session.timed(client.check_and_watch_stat(path)).await?;
        if let (Some(_), changed) = looked {
            let _ = self.session.env.timeout(LOOK * 10, changed.changed()).await;
        }
        Ok(())
    }

    async fn begin(&self, turn: i32) -> ZooKeeperMeta {
        self.announce(|record| record.active = true);
        let (taken_over, _) = watch::channel(None);
        let session = Arc::clone(&self.session);
        let (watches, unreadable) = (AtomicUsize::new(0), Mutex::default());
        let inner = Arc::new(MetaInner { session, turn, taken_over, watches, unreadable });
        let path = format!("{}/parts", self.session.uri.root);
        if self.shared {
            // Others may write parts that no key names yet.
            let keeping = keep_turn(Arc::downgrade(&inner), None);
            self.session.env.spawn("meta-turn", keeping).detach();
            return ZooKeeperMeta { inner };
        }
        let listed = async {
            let client = self.synced().await?;
            self.session.children(&client, &path).await
        };
        // Listed before anything is written in this turn.
        if let Ok(names) = listed.await {
            let sweeping = Arc::clone(&inner);
            let sweep = async move {
                if let Err(error) = sweeping.sweep_parts(names).await {
                    tracing::debug!(%error, "parts of values are left for the next start");
                }
            };
            self.session.env.spawn("meta-sweep", sweep).detach();
        }
        let keeping = keep_turn(Arc::downgrade(&inner), Some(self.turn_record()));
        self.session.env.spawn("meta-turn", keeping).detach();
        ZooKeeperMeta { inner }
    }

    /// Gives the turn up, so that nobody waits for the end of the session. Nothing may be changed after it.
    pub async fn leave(&self) {
        let me = self.turn_record();
        let root = &self.session.uri.root;
        drop(self.registering.lock().take());
        let Ok(client) = self.session.ready().await else { return };
        let active = format!("{root}/active");
        if let Ok(Some((holder, stat))) = read_turn(&self.session, &client, &active).await
            && holder == me
        {
            let _ = self.session.timed(client.delete(&active, Some(stat.version))).await;
        }
        let node = format!("{root}/nodes/{}", me.id);
        let _ = self.session.timed(client.delete(&node, None)).await;
    }
}

impl ZooKeeperMeta {
    /// Completes when another process has taken a turn, and says which.
    pub async fn taken_over(&self) -> String {
        let mut taken_over = self.inner.taken_over.subscribe();
        let why = taken_over.wait_for(Option::is_some).await;
        why.ok().and_then(|why| why.clone()).unwrap_or_default()
    }
}

impl MetaInner {
    pub(crate) fn turn_path(&self) -> String {
        format!("{}/turn", self.session.uri.root)
    }

    /// Another process has taken a turn: takes note of it, and says so.
    pub(crate) async fn lost_turn(&self, client: &Client) -> MetaError {
        let by = match read_turn(&self.session, client, &self.turn_path()).await {
            Ok(Some((by, _))) => format!("the node {} ({}) has taken over", by.name, by.id),
            _ => "another node has taken over".to_owned(),
        };
        self.taken_over.send_replace(Some(by.clone()));
        MetaError::TakenOver(by)
    }
}

/// Sees to it that `active` is there in whatever session there is, for as long as it is this process's turn; of a
/// shared turn only that it ends.
async fn keep_turn(meta: std::sync::Weak<MetaInner>, me: Option<TurnRecord>) {
    loop {
        let Some(strong) = meta.upgrade() else { return };
        let session = Arc::clone(&strong.session);
        match keep_turn_once(&strong, me.as_ref()).await {
            Ok(Some(changed)) => {
                drop(strong);
                let _ = session.env.timeout(LOOK * 10, changed.changed()).await;
            }
            Ok(None) => return,
            Err(error) => {
                tracing::debug!(%error, "the node's place in ZooKeeper can't be looked at");
                drop(strong);
                session.env.sleep(RETRY).await;
            }
        }
    }
}

/// What to wait for, if it is still this process's turn.
async fn keep_turn_once(
    meta: &MetaInner,
    me: Option<&TurnRecord>,
) -> Result<Option<zookeeper_client::OneshotWatcher>, ZkError> {
    let session = &meta.session;
    let client = session.ready().await.map_err(|_| ZkError::ConnectionLoss)?;
    session.timed(client.sync(&session.uri.root)).await?;
    let (_, stat, changed) = session.timed(client.get_and_watch_data(&meta.turn_path())).await?;
    if stat.version != meta.turn {
        meta.lost_turn(&client).await;
        return Ok(None);
    }
    let Some(me) = me else { return Ok(Some(changed)) };
    let active = format!("{}/active", session.uri.root);
    let holder = read_turn(session, &client, &active).await?;
    let is_there = |stat: &zookeeper_client::Stat| stat.ephemeral_owner == client.session_id().0;
    if !holder.as_ref().is_some_and(|(_, stat)| is_there(stat)) {
        let data = serde_json::to_vec(me).unwrap_or_default();
        let mut writer = client.new_multi_writer();
        writer.add_check_version(&meta.turn_path(), meta.turn)?;
        if let Some((_, stat)) = holder {
            // An earlier session's, whose end ZooKeeper has yet to notice.
            writer.add_delete(&active, Some(stat.version))?;
        }
        writer.add_create(&active, &data, &session.ephemeral())?;
        match session.env.timeout(crate::limits::PATIENCE, writer.commit()).await {
            Some(Ok(_)) => tracing::info!("the node keeps its turn in another session of ZooKeeper"),
            Some(Err(error)) => return Err(error.into()),
            None => return Err(ZkError::Timeout),
        }
    }
    Ok(Some(changed))
}

async fn read_turn(
    session: &ZooKeeperSession,
    client: &Client,
    path: &str,
) -> Result<Option<(TurnRecord, zookeeper_client::Stat)>, ZkError> {
    let nobody = || TurnRecord { id: String::new(), name: "nobody".to_owned(), mark: 0, shared: false };
    let read = session.data(client, path).await?;
    // Of what can't be read the version counts.
    Ok(read.map(|(data, stat)| (serde_json::from_slice(&data).unwrap_or_else(|_| nobody()), stat)))
}

/// Keeps the node's record, in whatever session there is.
async fn register(session: Arc<ZooKeeperSession>, mut record: watch::Receiver<NodeRecord>) {
    loop {
        let now = record.borrow_and_update().clone();
        let registered = register_once(&session, &now).await;
        let env = &session.env;
        match registered {
            Ok(gone) => {
                let changed = async {
                    tokio::select! {
                        biased;
                        changed = record.changed() => changed.is_ok(),
                        _ = gone.changed() => true,
                    }
                };
                // Nobody has the membership any more.
                if env.timeout(LOOK * 10, changed).await == Some(false) {
                    return;
                }
            }
            Err(_) => env.sleep(RETRY).await,
        }
    }
}

async fn register_once(
    session: &ZooKeeperSession,
    record: &NodeRecord,
) -> Result<zookeeper_client::OneshotWatcher, ZkError> {
    let client = session.ready().await.map_err(|_| ZkError::ConnectionLoss)?;
    let path = format!("{}/nodes/{}", session.uri.root, record.id);
    let data = serde_json::to_vec(record).unwrap_or_default();
    match session.data(&client, &path).await? {
        Some((_, stat)) if stat.ephemeral_owner != client.session_id().0 => {
            // An earlier process's of this data directory, or an earlier session's.
            session.timed(client.delete(&path, Some(stat.version))).await?;
            session.timed(client.create(&path, &data, &session.ephemeral())).await?;
        }
        Some((found, _)) if found == data => {}
        Some((_, stat)) => _ = session.timed(client.set_data(&path, &data, Some(stat.version))).await?,
        None => _ = session.timed(client.create(&path, &data, &session.ephemeral())).await?,
    }
    let (_, _, gone) = session.timed(client.get_and_watch_data(&path)).await?;
    Ok(gone)
}

/// Which metadata is at a place; made where there is none and `makes` says so.
pub(crate) async fn cluster_of(session: &ZooKeeperSession, makes: bool) -> Result<Uuid, MembershipFault> {
    let client = session.synced().await?;
    let (uri, root) = (session.uri.to_string(), &session.uri.root);
    let unavailable = |error: ZkError| MembershipFault::from(session.unavailable(&error));
    let path = format!("{root}/cluster");
    for _ in 0..2 {
        if let Some((data, _)) = session.data(&client, &path).await.map_err(unavailable)? {
            let damaged =
                |why: String| MembershipFault::Damaged { uri: uri.clone(), path: path.clone(), why };
            let found: serde_json::Value =
                serde_json::from_slice(&data).map_err(|error| damaged(error.to_string()))?;
            let layout = found["layout"].as_u64().unwrap_or_default();
            if layout != u64::from(LAYOUT) {
                let found = u32::try_from(layout).unwrap_or(u32::MAX);
                return Err(MembershipFault::Layout { uri, found });
            }
            let record: ClusterRecord =
                serde_json::from_value(found).map_err(|error| damaged(error.to_string()))?;
            for name in ["keys", "parts", "nodes"].iter().filter(|_| makes) {
                session
                    .make(&client, &format!("{root}/{name}"), &session.persistent())
                    .await
                    .map_err(unavailable)?;
            }
            return Ok(record.cluster);
        }
        let children = session.children(&client, root).await.map_err(unavailable)?;
        if let Some(found) = children.into_iter().find(|name| name != "cluster") {
            return Err(MembershipFault::Foreign { uri, found });
        }
        if !makes {
            break;
        }
        session.make(&client, root, &session.persistent()).await.map_err(unavailable)?;
        let random = || u128::from(session.env.random_u64());
        let cluster = uuid::Builder::from_random_bytes((random() << 64 | random()).to_be_bytes()).into_uuid();
        let record = serde_json::to_vec(&ClusterRecord { layout: LAYOUT, cluster }).unwrap_or_default();
        match session.timed(client.create(&path, &record, &session.persistent())).await {
            // Another one may have made it.
            Ok(_) | Err(ZkError::NodeExists) => {}
            Err(error) => return Err(unavailable(error)),
        }
    }
    Err(MembershipFault::Unavailable(format!("{uri} has no metadata: no node was ever started on it")))
}

/// The processes that are there, by their names. Changes nothing.
///
/// # Errors
/// Where no such metadata is, or ZooKeeper does not answer.
pub async fn nodes_at(env: &Env, uri: MetadataUri) -> Result<(Uuid, Vec<NodeRecord>), MembershipFault> {
    let session = ZooKeeperSession::new(env.clone(), uri, crate::limits::SESSION_MIN * 6);
    let cluster = cluster_of(&session, false).await?;
    let client = session.synced().await?;
    let read = nodes_of(&session, &client).await;
    let (mut nodes, damaged) = read.map_err(|error| session.unavailable(&error))?;
    if let Some((path, why)) = damaged {
        return Err(MembershipFault::Damaged { uri: session.uri.to_string(), path, why });
    }
    nodes.sort_by(|one: &NodeRecord, other| (&one.name, &one.id).cmp(&(&other.name, &other.id)));
    Ok((cluster, nodes))
}

/// The processes that are there, and a record that can't be read, with the reason.
async fn nodes_of(
    session: &ZooKeeperSession,
    client: &Client,
) -> Result<(Vec<NodeRecord>, Option<(String, String)>), ZkError> {
    let path = format!("{}/nodes", session.uri.root);
    let (mut nodes, mut damaged) = (Vec::new(), None);
    let names = session.children(client, &path).await?;
    // Several at a time: whoever looks who is there goes by how long ago it has seen each.
    let reads = names.into_iter().map(|name| {
        let path = format!("{path}/{name}");
        async move { session.data(client, &path).await.map(|read| (path, read)) }
    });
    let mut reads = stream::iter(reads).buffered(REQUESTS_AT_A_TIME);
    while let Some(read) = reads.next().await {
        // One that has gone meanwhile is left out.
        let (path, Some((data, _))) = read? else { continue };
        match serde_json::from_slice(&data) {
            Ok(record) => nodes.push(record),
            Err(error) => damaged = Some((path, error.to_string())),
        }
    }
    Ok((nodes, damaged))
}
