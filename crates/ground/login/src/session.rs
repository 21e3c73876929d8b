//! How long whoever has logged in may go on.

use std::sync::Arc;
use std::time::Duration;

use futures::future::select;
use tailwater_access::RightsChanges;

use crate::tokens::Tokens;
use crate::users::Users;

/// The wall's clock may be set: it is looked at again after so long.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// What a login is good for: until its user, or its token, is removed, or its time is over.
#[derive(Clone)]
pub struct LoginSession {
    users: Arc<Users>,
    of: SessionOf,
    until_ms: Option<i64>,
    changes: RightsChanges,
}

/// As what somebody has logged in. A user who was removed and is there again is another one, and so is a token.
#[derive(Clone, PartialEq, Eq)]
enum SessionOf {
    User { name: String, number: Option<u64> },
    Token { name: String, hash: Option<[u8; 32]> },
    Issued,
}

impl std::fmt::Debug for LoginSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LoginSession").field("until_ms", &self.until_ms).finish_non_exhaustive()
    }
}

impl LoginSession {
    /// One that begins now.
    pub(crate) fn begin(users: &Arc<Users>, principal: &str, until_ms: Option<i64>) -> Self {
        // From before it is looked whether there is one.
        let changes = users.removals();
        let of = match Tokens::name_of(principal) {
            Some(name) => SessionOf::Token { name: name.to_owned(), hash: users.tokens().hash(name) },
            None if Tokens::is_principal(principal) => SessionOf::Issued,
            None => SessionOf::User { name: principal.to_owned(), number: users.number(principal) },
        };
        Self { users: Arc::clone(users), of, until_ms, changes }
    }

    /// Whether its user, or its token, is there no more.
    pub fn is_removed(&self) -> bool {
        match &self.of {
            SessionOf::User { name, number } => number.is_none() || self.users.number(name) != *number,
            SessionOf::Token { name, hash } => hash.is_none() || self.users.tokens().hash(name) != *hash,
            SessionOf::Issued => false,
        }
    }

    /// Whether it was removed, or its time is over.
    pub fn is_over(&self) -> bool {
        self.until_ms.is_some_and(|until| self.users.wall_ms() >= until) || self.is_removed()
    }

    /// Completes when its user, or its token, is removed.
    pub async fn removed(mut self) {
        while !self.is_removed() {
            self.changes.changed().await;
        }
    }

    /// Completes when it is over.
    pub async fn over(mut self) {
        if self.until_ms.is_none() {
            return self.removed().await;
        }
        while !self.is_over() {
            let left_ms = self.until_ms.map(|until| until.saturating_sub(self.users.wall_ms()).max(1));
            let left = left_ms.map_or(LOOK_EVERY, |ms| Duration::from_millis(ms as u64).min(LOOK_EVERY));
            let (changed, slept) = (Box::pin(self.changes.changed()), self.users.sleep(left));
            select(changed, slept).await;
        }
    }
}
