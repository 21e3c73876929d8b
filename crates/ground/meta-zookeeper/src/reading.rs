//! Metadata for a process that has no turn: it reads, and changes nothing.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tailwater_env::Env;
use tailwater_meta::{FromMeta, Lease, Meta, MetaError, Op, Versioned, Watch};
use tokio::sync::watch;

use crate::limits::SESSION_MIN;
use crate::membership::{MembershipFault, cluster_of};
use crate::session::ZooKeeperSession;
use crate::store::{MetaInner, ZooKeeperMeta};
use crate::uri::MetadataUri;

/// No turn's number: ZooKeeper has no version below zero, but for -1, which stands for any.
const NO_TURN: i32 = i32::MIN;

/// [`Meta`] below a path of ZooKeeper that is read beside the nodes that have it. It refuses commits, watches and
/// leases.
#[derive(Clone, Debug)]
pub struct ZooKeeperReader(ZooKeeperMeta);

impl ZooKeeperReader {
    /// The metadata at `uri`.
    ///
    /// # Errors
    /// Where there are none, or ZooKeeper does not answer.
    pub async fn open(env: &Env, uri: MetadataUri) -> Result<Self, MembershipFault> {
        let session = ZooKeeperSession::new(env.clone(), uri, SESSION_MIN * 6);
        cluster_of(&session, false).await?;
        let inner = MetaInner {
            session: Arc::new(session),
            turn: NO_TURN,
            taken_over: watch::channel(None).0,
            watches: AtomicUsize::new(0),
            unreadable: Mutex::default(),
        };
        Ok(Self(ZooKeeperMeta { inner: Arc::new(inner) }))
    }
}

fn refused<'a, T>() -> FromMeta<'a, T>
where
    T: Send + 'a,
{
    Box::pin(std::future::ready(Err(MetaError::Invalid("this process only reads the metadata".to_owned()))))
}

impl Meta for ZooKeeperReader {
    fn get<'a>(&'a self, key: &'a str) -> FromMeta<'a, Option<Versioned>> {
        self.0.get(key)
    }

    fn list<'a>(&'a self, prefix: &'a str) -> FromMeta<'a, Vec<(String, Versioned)>> {
        self.0.list(prefix)
    }

    fn commit(&self, _: Vec<Op>) -> FromMeta<'_, u64> {
        refused()
    }

    fn watch<'a>(&'a self, _: &'a str) -> FromMeta<'a, Watch> {
        refused()
    }

    fn lease<'a>(&'a self, _: &'a str, _: Bytes, _: Duration) -> FromMeta<'a, Lease> {
        refused()
    }
}
