//! A node's turn, in ZooKeeper.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tailwater_env::{Disk, Env, OpenMode, Progress};
use tailwater_kafka::Broker;
use tailwater_log::{Log, SharedMetadata};
use tailwater_meta_zookeeper::{NodeMembership, NodeRecord, TurnWait, ZooKeeperMeta};

use super::STANDING_BY;
use super::sharing::{NodeSharing, number_of};
use crate::config::Config;

/// The file of a data directory's id.
const ID_FILE: &str = "node-id";
/// Characters of an id.
const ID_BYTES: usize = 16;

/// The node's turn: it alone may change the metadata, until another one takes over.
pub(crate) struct Turn {
    membership: Arc<NodeMembership>,
    meta: ZooKeeperMeta,
    place: String,
    /// Of the data directory.
    id: String,
    /// Whether all nodes are active.
    is_shared: bool,
}

impl Turn {
    /// Waits for its turn where metadata is shared, and takes it. `admin` is where others find the node meanwhile.
    pub(crate) async fn take(
        env: &Env,
        config: &Config,
        admin: SocketAddr,
        progress: &Progress,
    ) -> anyhow::Result<Option<Self>> {
        if !config.has_shared_metadata() {
            return Ok(None);
        }
        let uri = config.metadata_uri(env)?;
        let place = uri.to_string();
        check_begun_shared(env, &config.data, &place)?;
        let id = node_id(env, &config.data)
            .with_context(|| format!("the data directory {} takes no file", config.data.display()))?;
        let record = NodeRecord {
            id: id.clone(),
            name: config.cluster.node_name(),
            program: concat!("tailwater ", env!("CARGO_PKG_VERSION")).to_owned(),
            started_ms: env.wall_ms(),
            addresses: vec![("admin".to_owned(), admin.to_string())],
            active: false,
            shares: serde_json::Value::Null,
        };
        let is_shared = config.cluster.is_shared();
        let mut last = None;
        // Once for each reason: a wait may be long.
        let mut tell = |waiting: TurnWait| {
            match &waiting {
                TurnWait::ForZooKeeper(_) => {
                    progress.begin("the wait for ZooKeeper, which has the metadata", 0)
                }
                TurnWait::ForActive(_) => progress.begin(STANDING_BY, 0),
            }
            if last.as_ref() != Some(&waiting) {
                match &waiting {
                    TurnWait::ForZooKeeper(why) => tracing::warn!("waiting for ZooKeeper: {why}"),
                    TurnWait::ForActive(node) => tracing::info!(node, "standing by: another node is active"),
                }
                last = Some(waiting);
            }
        };
        progress.begin("the wait for ZooKeeper, which has the metadata", 0);
        let session = Duration::from_millis(config.zookeeper.session_ms);
        let membership = NodeMembership::join(env, uri, session, record, is_shared, &mut tell).await?;
        let meta = membership.take_turn(&mut tell).await;
        tracing::info!(metadata = place, cluster = %membership.cluster(), "it is this node's turn");
        Ok(Some(Self { membership: Arc::new(membership), meta, place, id, is_shared }))
    }

    /// The metadata.
    pub(crate) fn shared(&self) -> SharedMetadata {
        SharedMetadata {
            meta: Arc::new(self.meta.clone()),
            place: self.place.clone(),
            cluster: self.membership.cluster(),
            is_shared: self.is_shared,
        }
    }

    /// The number of this node among Kafka's brokers, where all nodes are active.
    pub(crate) async fn broker_number(&self) -> anyhow::Result<Option<i32>> {
        match self.is_shared {
            true => number_of(&self.meta, &self.id).await.map(Some),
            false => Ok(None),
        }
    }

    /// Begins to own a part of what there is, where all nodes are active.
    pub(crate) fn share(
        &self,
        env: &Env,
        log: &Log,
        broker: Option<Arc<Broker>>,
        told: Option<(i32, Vec<(String, u16)>)>,
    ) -> anyhow::Result<Option<NodeSharing>> {
        let start = |told| NodeSharing::start(env, Arc::clone(&self.membership), log, broker, told);
        told.map(start).transpose()
    }

    /// Tells others where this node listens.
    pub(crate) fn announce(&self, addresses: Vec<(String, String)>) {
        self.membership.announce(|record| record.addresses = addresses);
    }

    /// Completes when another node has taken over.
    pub(crate) async fn taken_over(&self) -> String {
        self.meta.taken_over().await
    }

    /// Gives the turn up: everything is closed.
    pub(crate) async fn leave(&self) {
        self.membership.leave().await;
    }
}

/// Whether a data directory began with shared metadata, or has yet to begin: one that did has an id before it has a
/// journal. So one with metadata of its own is refused at once, and not when its turn comes.
fn check_begun_shared(env: &Env, dir: &Path, place: &str) -> anyhow::Result<()> {
    let has_begun = env.disk().list(&dir.join("journal")).is_ok_and(|files| !files.is_empty());
    let has_id = read_id(&**env.disk(), &dir.join(ID_FILE)).is_ok_and(|id| id.is_some());
    anyhow::ensure!(
        has_id || !has_begun,
        "the data directory {} has metadata of its own, and `metadata` names {place}: `tailwater migrate` with this \
         configuration moves everything there; or leave `metadata` out, or use a new data directory",
        dir.display()
    );
    Ok(())
}

/// The id of a data directory, made when there is none.
pub(crate) fn node_id(env: &Env, dir: &Path) -> io::Result<String> {
    let (disk, path) = (env.disk(), dir.join(ID_FILE));
    if let Some(id) = read_id(&**disk, &path)? {
        return Ok(id);
    }
    let id = format!("{:016x}", env.random_u64());
    let new = dir.join(format!("{ID_FILE}.new"));
    match disk.remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let file = disk.open(&new, OpenMode::CreateNew)?;
    file.write_all_at(id.as_bytes(), 0)?;
    file.sync_data()?;
    disk.rename(&new, &path)?;
    disk.sync_dir(dir)?;
    Ok(id)
}

/// `None` if there is none, or something else is in its place.
fn read_id(disk: &dyn Disk, path: &Path) -> io::Result<Option<String>> {
    let file = match disk.open(path, OpenMode::Read) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut bytes = [0; ID_BYTES + 1];
    let length = file.read_at(&mut bytes, 0)?;
    let text = std::str::from_utf8(&bytes[..length]).unwrap_or_default();
    let is_id = text.len() == ID_BYTES && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    Ok(is_id.then(|| text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_data_directory_keeps_its_id() {
        let dir = tempfile::tempdir().expect("a directory");
        let env = Env::real();
        let id = node_id(&env, dir.path()).expect("made");
        assert_eq!(node_id(&env, dir.path()).expect("read"), id);
        env.disk().remove_file(&dir.path().join(ID_FILE)).expect("removed");
        assert_ne!(node_id(&env, dir.path()).expect("made again"), id);
    }
}
