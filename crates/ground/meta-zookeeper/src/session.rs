//! A session with ZooKeeper, and another one after it expired.

use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::future::{Either, select};
use futures::{StreamExt, TryStreamExt, stream};
use tailwater_access::EngineLogin;
use tailwater_env::{BoxFuture, Env};
use tailwater_meta::MetaError;
use tailwater_tls::Relays;
use tokio::sync::{Mutex, OnceCell};
use zookeeper_client::{
    Acls, Client, CreateMode, CreateOptions, Error as ZkError, SaslOptions, SessionState, Stat,
};

use crate::limits::{PATIENCE, REQUESTS_AT_A_TIME};
use crate::uri::MetadataUri;

/// A way to ZooKeeper.
pub(crate) struct ZooKeeperSession {
    pub(crate) env: Env,
    pub(crate) uri: MetadataUri,
    timeout: Duration,
    /// The ways to the servers, once they were needed.
    relays: OnceCell<Relays>,
    /// The session, and a new one after it expired.
    client: Mutex<Option<Client>>,
    /// The largest transaction id that was seen.
    seen: AtomicU64,
}

impl ZooKeeperSession {
    pub(crate) fn new(env: Env, uri: MetadataUri, timeout: Duration) -> Self {
        let (relays, client) = (OnceCell::new(), Mutex::new(None));
        Self { env, uri, timeout, relays, client, seen: AtomicU64::new(1) }
    }

    /// A connected client, once there is one.
    ///
    /// # Errors
    /// Why there is none within [`PATIENCE`].
    pub(crate) async fn ready(&self) -> Result<Client, MetaError> {
        match self.env.timeout(PATIENCE, self.connected()).await {
            Some(Ok(client)) => Ok(client),
            Some(Err(error)) => Err(self.unavailable(&error)),
            None => Err(self.unavailable(&ZkError::ConnectionLoss)),
        }
    }

    /// The same without an end to patience, but where the answer is no.
    async fn connected(&self) -> Result<Client, ZkError> {
        loop {
            let client = self.client().await?;
            let mut states = client.state_watcher();
            let mut state = client.state();
            loop {
                match state {
                    SessionState::SyncConnected => return Ok(client),
                    state if state.is_terminated() => break,
                    _ => state = states.changed().await,
                }
            }
        }
    }

    /// A client whose session has not ended, as far as is known.
    async fn client(&self) -> Result<Client, ZkError> {
        let mut client = self.client.lock().await;
        if let Some(client) = client.as_ref().filter(|client| !client.state().is_terminated()) {
            return Ok(client.clone());
        }
        let mut connector = Client::connector().with_session_timeout(self.timeout);
        if let Some(EngineLogin { user, password }) = &self.uri.login {
            connector =
                connector.with_sasl(SaslOptions::digest_md5(user.clone(), password.text().to_owned()));
        }
        let relaying = || Relays::open(&self.env, &self.uri.dialer, &self.uri.servers);
        let relays = self.relays.get_or_try_init(relaying).await.map_err(|_| ZkError::NoHosts)?;
        let connecting = pin!(connector.connect(relays.servers()));
        let new = match select(connecting, pin!(relays.all_refused())).await {
            Either::Left((connected, _)) => connected?,
            Either::Right(_) => return Err(ZkError::ConnectionLoss),
        };
        *client = Some(new.clone());
        Ok(new)
    }

    /// How a node is made that stays until somebody deletes it.
    pub(crate) fn persistent(&self) -> CreateOptions<'static> {
        CreateMode::Persistent.with_acls(self.acls())
    }

    /// How a node is made that goes with this session.
    pub(crate) fn ephemeral(&self) -> CreateOptions<'static> {
        CreateMode::Ephemeral.with_acls(self.acls())
    }

    /// How a node is made that goes with its last child.
    pub(crate) fn container(&self) -> CreateOptions<'static> {
        CreateMode::Container.with_acls(self.acls())
    }

    /// What is made is its user's alone, where this process logs in.
    fn acls(&self) -> Acls<'static> {
        if self.uri.login.is_some() { Acls::creator_all() } else { Acls::anyone_all() }
    }

    /// An answer, or why there is none in time. What was asked may be carried out later.
    pub(crate) async fn timed<T>(
        &self,
        asked: impl Future<Output = Result<T, ZkError>>,
    ) -> Result<T, ZkError> {
        self.env.timeout(PATIENCE, asked).await.unwrap_or(Err(ZkError::Timeout))
    }

    /// A connected client whose server knows everything that was answered before, to whomever.
    pub(crate) async fn synced(&self) -> Result<Client, MetaError> {
        let client = self.ready().await?;
        let synced = self.timed(client.sync(&self.uri.root)).await;
        synced.map_err(|error| self.unavailable(&error))?;
        Ok(client)
    }

    pub(crate) fn unavailable(&self, error: &ZkError) -> MetaError {
        // Of a connection in TLS that does not come to be the client hears only that it has ended.
        let refusal = self.relays.get().and_then(Relays::refusal);
        let why = match error {
            ZkError::Timeout | ZkError::ConnectionLoss | ZkError::NoHosts => refusal,
            _ => None,
        };
        MetaError::Unavailable(format!("{}: {}", self.uri, why.unwrap_or_else(|| told(error))))
    }

    /// Notes a transaction id.
    pub(crate) fn saw(&self, zxid: i64) -> u64 {
        let zxid = u64::try_from(zxid).unwrap_or_default();
        self.seen.fetch_max(zxid, Ordering::Relaxed);
        zxid
    }

    /// The largest transaction id that was seen.
    pub(crate) fn seen(&self) -> u64 {
        self.seen.load(Ordering::Relaxed)
    }

    /// A node's data, if it is there.
    pub(crate) async fn data(&self, client: &Client, path: &str) -> Result<Option<(Vec<u8>, Stat)>, ZkError> {
        match self.timed(client.get_data(path)).await {
            Ok(found) => Ok(Some(found)),
            Err(ZkError::NoNode) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The names of a node's children; none of one that is not there.
    pub(crate) async fn children(&self, client: &Client, path: &str) -> Result<Vec<String>, ZkError> {
        match self.timed(client.list_children(path)).await {
            Err(ZkError::NoNode) => Ok(Vec::new()),
            other => other,
        }
    }

    /// Makes a node that may be there already, and those above it.
    pub(crate) async fn make(
        &self,
        client: &Client,
        path: &str,
        options: &CreateOptions<'static>,
    ) -> Result<(), ZkError> {
        self.timed(client.mkdir(path, options)).await
    }

    /// Deletes a node with its children, if it is there.
    pub(crate) async fn remove_all(&self, client: &Client, path: &str) -> Result<(), ZkError> {
        let children = self.children(client, path).await?;
        let mut removals: Vec<BoxFuture<'_, _>> = Vec::with_capacity(children.len());
        for name in children {
            removals.push(Box::pin(self.remove(client, format!("{path}/{name}"))));
        }
        all(removals).await?;
        self.remove(client, path.to_owned()).await
    }

    async fn remove(&self, client: &Client, path: String) -> Result<(), ZkError> {
        match self.timed(client.delete(&path, None)).await {
            Err(ZkError::NoNode) => Ok(()),
            other => other,
        }
    }
}

/// Makes many requests, some at a time; their answers in order, or the first failure.
pub(crate) async fn all<T, E>(requests: Vec<BoxFuture<'_, Result<T, E>>>) -> Result<Vec<T>, E> {
    stream::iter(requests).buffered(REQUESTS_AT_A_TIME).try_collect().await
}

/// What an error of ZooKeeper's says to whoever looks after a node.
pub(crate) fn told(error: &ZkError) -> String {
    match error {
        ZkError::Timeout | ZkError::ConnectionLoss | ZkError::NoHosts => {
            "no server of ZooKeeper answers".to_owned()
        }
        ZkError::AuthFailed | ZkError::NoAuth => {
            format!("ZooKeeper: {error}: it does not let in the user and password of [zookeeper]")
        }
        other => format!("ZooKeeper: {other}"),
    }
}
