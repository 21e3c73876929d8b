//! Users and tokens that other nodes, which share the metadata, add, change and remove.

use std::sync::Arc;

use tailwater_env::Task;
use tailwater_meta::{MetaError, follow_whole};

use crate::users::{UserError, Users};

/// Where users and tokens are.
const LOGIN: &str = "login/";

impl Users {
    /// Goes by what metadata has of users and tokens from here on, whoever changes it, until the task is dropped.
    ///
    /// # Errors
    /// Metadata that can't be read.
    pub async fn follow(self: &Arc<Self>) -> Result<Task, UserError> {
        let unavailable = |error: MetaError| UserError::Unavailable(error.to_string());
        // Before they are read, so that nothing is missed between.
        let watch = self.meta().watch(LOGIN).await.map_err(unavailable)?;
        self.read_again().await?;
        Ok(follow_whole(self.env(), "login-following", watch, Arc::downgrade(self), |users| {
            Box::pin(async move { users.read_again().await })
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
