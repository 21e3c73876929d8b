//! [`Meta`] in ZooKeeper: reads.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tailwater_env::BoxFuture;
use tailwater_meta::{FromMeta, Lease, Meta, MetaError, Op, UNREADABLE, Versioned, Watch};
use tokio::sync::watch;
use zookeeper_client::{Client, Error as ZkError, Stat};

use crate::limits::UNREADABLE_MAX;
use crate::paths::{KeyChild, base_of, child_of, path_of};
use crate::session::{ZooKeeperSession, all};
use crate::value::{StoredKey, StoredValue};

/// How often a value is read whose parts are replaced meanwhile.
const READ_ATTEMPTS: usize = 8;

/// [`Meta`] below a path of ZooKeeper, for the process that may change it; a handle, cheap to clone. See the crate.
#[derive(Clone)]
pub struct ZooKeeperMeta {
    pub(crate) inner: Arc<MetaInner>,
}

pub(crate) struct MetaInner {
    pub(crate) session: Arc<ZooKeeperSession>,
    /// Of this process's turn: the version that the node of turns has had since.
    pub(crate) turn: i32,
    /// Why this process may not change anything any more, once that is known.
    pub(crate) taken_over: watch::Sender<Option<String>>,
    pub(crate) watches: AtomicUsize,
    /// Keys whose values can't be read, with their versions: the log was told of them.
    pub(crate) unreadable: Mutex<BTreeMap<String, u64>>,
}

/// A key as it was read.
enum ReadKey {
    Gone,
    Found(Versioned),
    /// It is there, and nobody can read it: why not.
    Unreadable {
        why: String,
        version: u64,
    },
}

impl std::fmt::Debug for ZooKeeperMeta {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ZooKeeperMeta({})", self.inner.session.uri)
    }
}

impl Meta for ZooKeeperMeta {
    fn get<'a>(&'a self, key: &'a str) -> FromMeta<'a, Option<Versioned>> {
        Box::pin(async move {
            let client = self.inner.session.synced().await?;
            self.inner.read(&client, key).await
        })
    }

    fn list<'a>(&'a self, prefix: &'a str) -> FromMeta<'a, Vec<(String, Versioned)>> {
        Box::pin(self.inner.list(prefix))
    }

    fn commit(&self, ops: Vec<Op>) -> FromMeta<'_, u64> {
        Box::pin(async move { self.inner.commit(&ops).await })
    }

    fn watch<'a>(&'a self, prefix: &'a str) -> FromMeta<'a, Watch> {
        Box::pin(self.inner.watch(prefix))
    }

    fn lease<'a>(&'a self, key: &'a str, value: Bytes, ttl: Duration) -> FromMeta<'a, Lease> {
        Box::pin(self.inner.lease(key, value, ttl))
    }
}

impl MetaInner {
    /// The path below which keys are.
    pub(crate) fn keys(&self) -> String {
        format!("{}/keys", self.session.uri.root)
    }

    pub(crate) fn path_of(&self, key: &str) -> String {
        path_of(&self.keys(), key)
    }

    pub(crate) fn parts_path(&self, name: uuid::Uuid) -> String {
        format!("{}/parts/{name}", self.session.uri.root)
    }

    /// A key's value, as the client's server knows it.
    pub(crate) async fn read(&self, client: &Client, key: &str) -> Result<Option<Versioned>, MetaError> {
        match self.read_key(client, key).await? {
            ReadKey::Gone => Ok(None),
            ReadKey::Found(found) => Ok(Some(found)),
            ReadKey::Unreadable { why, .. } => Err(MetaError::Unavailable(why)),
        }
    }

    async fn read_key(&self, client: &Client, key: &str) -> Result<ReadKey, MetaError> {
        let path = self.path_of(key);
        let unreadable = |fault: &dyn std::fmt::Display, stat: &Stat| ReadKey::Unreadable {
            why: format!(
                "{}: the value of {key:?} can't be read: {fault}; upgrade this node, or put its node {path} in order",
                self.session.uri
            ),
            version: self.session.saw(stat.mzxid),
        };
        let mut before = None;
        for _ in 0..READ_ATTEMPTS {
            let found = self.session.data(client, &path).await;
            let Some((data, stat)) = found.map_err(|error| self.session.unavailable(&error))? else {
                return Ok(ReadKey::Gone);
            };
            let value = match StoredKey::decode(&data) {
                Ok(stored) => self.value_of(client, stored.value).await?,
                Err(fault) => return Ok(unreadable(&fault, &stat)),
            };
            match value {
                Some(value) => return Ok(ReadKey::Found(self.versioned(value, &stat))),
                // Parts go behind the value that names them. Whoever saw them gone sees that there is another one.
                None if before == Some(stat.mzxid) => return Ok(unreadable(&"parts of it are gone", &stat)),
                None => before = Some(stat.mzxid),
            }
        }
        Err(MetaError::Unavailable(format!(
            "{}: the value of {key:?} changes all the time",
            self.session.uri
        )))
    }

    /// The value that a node says; `None` if it is in parts that are not there.
    async fn value_of(&self, client: &Client, stored: StoredValue) -> Result<Option<Bytes>, MetaError> {
        let parts = match stored {
            StoredValue::Whole(value) => return Ok(Some(value)),
            StoredValue::Parts(parts) => parts,
        };
        let mut value = Vec::new();
        for number in 0..parts.count() {
            let path = format!("{}/{number}", self.parts_path(parts.name));
            match self.session.data(client, &path).await {
                Ok(Some((part, _))) => value.extend_from_slice(&part),
                Ok(None) => return Ok(None),
                Err(error) => return Err(self.session.unavailable(&error)),
            }
        }
        Ok(parts.is(&value).then(|| Bytes::from(value)))
    }

    fn versioned(&self, value: Bytes, stat: &Stat) -> Versioned {
        Versioned { value, version: self.session.saw(stat.mzxid) }
    }

    async fn list(&self, prefix: &str) -> Result<Vec<(String, Versioned)>, MetaError> {
        let client = &self.session.synced().await?;
        let keys = self.keys_below(client, prefix).await.map_err(|error| self.session.unavailable(&error))?;
        let mut reads: Vec<BoxFuture<'_, _>> = Vec::with_capacity(keys.len());
        for key in keys {
            reads.push(Box::pin(self.read_with_key(client, key)));
        }
        let found: BTreeMap<String, Versioned> = all(reads).await?.into_iter().flatten().collect();
        Ok(found.into_iter().collect())
    }

    async fn read_with_key(
        &self,
        client: &Client,
        key: String,
    ) -> Result<Option<(String, Versioned)>, MetaError> {
        Ok(match self.read_key(client, &key).await? {
            ReadKey::Gone => None,
            ReadKey::Found(found) => Some((key, found)),
            ReadKey::Unreadable { why, version } => {
                self.tell_unreadable(&key, version, &why);
                Some((key, Versioned { value: Bytes::from_static(UNREADABLE), version }))
            }
        })
    }

    /// Tells the log of a key whose value can't be read, once for each state of it.
    fn tell_unreadable(&self, key: &str, version: u64, why: &str) {
        let mut told = self.unreadable.lock();
        if told.len() >= UNREADABLE_MAX {
            told.clear();
        }
        if told.insert(key.to_owned(), version) != Some(version) {
            tracing::error!("{why}. Until then it is passed over");
        }
    }

    async fn children_of(
        &self,
        client: &Client,
        (path, above): (String, String),
    ) -> Result<(String, String, Vec<String>), ZkError> {
        let children = self.session.children(client, &path).await?;
        Ok((path, above, children))
    }

    /// The keys that begin with `prefix`.
    async fn keys_below(&self, client: &Client, prefix: &str) -> Result<Vec<String>, ZkError> {
        let root = self.keys();
        let (base, above) = base_of(&root, prefix);
        let mut keys = Vec::new();
        let mut level = vec![(base, above.to_owned())];
        while !level.is_empty() {
            let mut looks: Vec<BoxFuture<'_, _>> = Vec::with_capacity(level.len());
            for node in level {
                looks.push(Box::pin(self.children_of(client, node)));
            }
            let mut below = Vec::new();
            for (path, above, children) in all(looks).await? {
                for name in children {
                    match child_of(&above, &name) {
                        Some(KeyChild::Key(key)) if key.starts_with(prefix) => keys.push(key),
                        // Of what is spread the beginning is not known to be longer.
                        Some(KeyChild::Dir(dir)) if dir.starts_with(prefix) || dir == above => {
                            below.push((format!("{path}/{name}"), dir));
                        }
                        _ => {}
                    }
                }
            }
            level = below;
        }
        Ok(keys)
    }
}
