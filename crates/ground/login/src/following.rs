//! Users and tokens that other nodes, which share the metadata, add, change and remove.

use std::sync::Arc;
use std::time::Duration;

use tailwater_env::Task;
use tailwater_meta::{MetaError, Watch, WatchEnd};

use crate::tokens::TOKENS;
use crate::users::{USERS, UserError, Users};

/// How long after a look that failed there is another one.
const RETRY: Duration = Duration::from_secs(1);

fn unavailable(error: MetaError) -> UserError {
    UserError::Unavailable(error.to_string())
}

impl Users {
    /// Goes by what metadata has of users and tokens from here on, whoever changes it, until the task is dropped.
    ///
    /// # Errors
    /// Metadata that can't be read.
    pub async fn follow(self: &Arc<Self>) -> Result<Task, UserError> {
        // Before they are read, so that nothing is missed between.
        let mut users = self.meta().watch(USERS).await.map_err(unavailable)?;
        let mut tokens = self.meta().watch(TOKENS).await.map_err(unavailable)?;
        self.read_again().await?;
        let known = Arc::downgrade(self);
        let env = self.env().clone();
        let sleeping = env.clone();
        Ok(env.spawn("login-following", async move {
            loop {
                let event = tokio::select! {
                    biased;
                    event = users.next() => event,
                    event = tokens.next() => event,
                };
                if event == Err(WatchEnd::Closed) {
                    return;
                }
                // Whatever changed: that is seldom, and all are read within milliseconds.
                [&mut users, &mut tokens].into_iter().for_each(drain);
                loop {
                    let Some(known) = known.upgrade() else { return };
                    match known.read_again().await {
                        Ok(()) => break,
                        Err(error) => tracing::warn!(%error, "those who may come in are as they were"),
                    }
                    drop(known);
                    sleeping.sleep(RETRY).await;
                }
            }
        }))
    }

    async fn read_again(&self) -> Result<(), UserError> {
        let are_users_gone = self.read_users().await?;
        let are_tokens_gone = self.tokens().read_again().await?;
        if are_users_gone || are_tokens_gone {
            self.ring();
        }
        Ok(())
    }
}

fn drain(watch: &mut Watch) {
    while watch.try_next().is_some_and(|next| next != Err(WatchEnd::Closed)) {}
}
