//! Where the node's queues are: in its journal and a tree, or in a store that many nodes share.

use std::sync::Arc;

#[cfg(feature = "cassandra")]
use anyhow::Context;
use tailwater_env::Env;
use tailwater_journal::{Journal, JournalPosition, ReplayError};
use tailwater_queue::QueueStore;

use crate::config::{Config, QueueStoreKind};

/// A start of the queues: what the journal has of them is replayed between its begin and its end.
pub(crate) enum Recovery {
    Embedded(Box<tailwater_queue::Recovery>),
    Shared,
}

impl Recovery {
    pub(crate) fn begin(env: &Env, config: &Config) -> anyhow::Result<Self> {
        Ok(match config.queues.store {
            QueueStoreKind::Embedded => {
                let recovery = tailwater_queue::Recovery::begin(env, &config.data.join("queues"))?;
                Self::Embedded(Box::new(recovery))
            }
            QueueStoreKind::Cassandra => Self::Shared,
        })
    }

    pub(crate) fn replay(&mut self, position: JournalPosition, bytes: &[u8]) -> Result<(), ReplayError> {
        match self {
            Self::Embedded(recovery) => recovery.replay(position, bytes),
            Self::Shared => Err(ReplayError::new(
                "it has queues of the embedded store: use [queues] store = \"embedded\", or another data directory",
            )),
        }
    }

    /// How many queues were found in the data directory.
    #[cfg(feature = "bookkeeper")]
    pub(crate) fn queues(&self) -> usize {
        match self {
            Self::Embedded(recovery) => recovery.queues(),
            Self::Shared => 0,
        }
    }

    pub(crate) async fn finish(
        self,
        env: &Env,
        config: &Config,
        journal: &Journal,
    ) -> anyhow::Result<Arc<dyn QueueStore>> {
        match self {
            Self::Embedded(recovery) => {
                Ok(Arc::new(recovery.finish(env, journal.clone(), config.queues_config())))
            }
            Self::Shared => open_shared(env, config).await,
        }
    }
}

#[cfg(feature = "cassandra")]
async fn open_shared(env: &Env, config: &Config) -> anyhow::Result<Arc<dyn QueueStore>> {
    let cassandra = &config.queues.cassandra;
    let at = || format!("the queues in Cassandra at {:?}", cassandra.contact_points);
    let rows = tailwater_queue_cassandra::CassandraRows::shared(cassandra).await.with_context(at)?;
    let queues = tailwater_queue::shared::SharedQueues::start(env, rows, config.queues.shared()).await;
    Ok(Arc::new(queues.with_context(at)?))
}

#[cfg(not(feature = "cassandra"))]
async fn open_shared(_: &Env, _: &Config) -> anyhow::Result<Arc<dyn QueueStore>> {
    anyhow::bail!(crate::config::NO_CASSANDRA)
}
