//! Tokens, and the rules about them: a token has those with which it was created, and they go with it.

use std::sync::Arc;
use std::time::Duration;

use tailwater_env::{Env, Task};
use tailwater_login::{Tokens, UserError, Users};
use tailwater_permissions::{AccessRule, RuleError, RuleFilter, Rules};

/// How often it is looked for tokens whose time is over.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// After metadata that did not answer.
const RETRY: Duration = Duration::from_secs(10);

/// Why something can't be done with a token.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TokenError {
    #[error(transparent)]
    Token(#[from] UserError),
    #[error(transparent)]
    Rule(#[from] RuleError),
}

/// Makes a token that has these rights; its text.
///
/// # Errors
/// Rules that are about somebody else, and what is wrong with either. Then there is no token.
pub(crate) async fn create(
    (users, rules): (&Users, &Arc<Rules>),
    name: &str,
    expires_ms: Option<i64>,
    rights: Vec<AccessRule>,
) -> Result<String, TokenError> {
    let principal = Tokens::principal(name);
    if let Some(other) = rights.iter().find(|rule| rule.principal != principal) {
        let why = format!("the rules of this token are about {principal}, and not about {}", other.principal);
        return Err(RuleError::Invalid(why).into());
    }
    let text = users.tokens().create(name, expires_ms).await?;
    // Until here it may do nothing. A token of its name that was removed may have left some.
    let given = match rules.remove(vec![about(name)]).await {
        Ok(_) => rules.add(rights).await,
        Err(error) => Err(error),
    };
    if let Err(error) = given {
        users.tokens().remove(name).await?;
        return Err(error.into());
    }
    Ok(text)
}

/// Removes a token, and what was open by its rights.
///
/// # Errors
/// That there is none, and metadata that does not answer.
pub(crate) async fn remove((users, rules): (&Users, &Arc<Rules>), name: &str) -> Result<(), TokenError> {
    users.tokens().end(name).await?;
    remove_expired((users, rules), name).await?;
    Ok(())
}

/// Removes a token whose time is over, unless another node has made it anew; whether it did.
///
/// Its rules go between its end and its removal: what they forbid it is forbidden as long as it is good for anything,
/// and as long as it is there no other node makes one of its name, whose rules these would be.
async fn remove_expired((users, rules): (&Users, &Arc<Rules>), name: &str) -> Result<bool, TokenError> {
    if let Some(it_is_there) = users.tokens().is_over(name).await? {
        rules.remove_while(it_is_there, vec![about(name)]).await?;
    }
    Ok(users.tokens().remove_expired(name).await?)
}

fn about(name: &str) -> RuleFilter {
    RuleFilter { principal: Some(Tokens::principal(name)), ..RuleFilter::default() }
}

/// Removes tokens when their time is over, so that what is open by them ends.
pub(crate) fn expire(env: &Env, users: &Arc<Users>, rules: &Arc<Rules>) -> Task {
    let (env_, users, rules) = (env.clone(), Arc::clone(users), Arc::clone(rules));
    env.spawn("tokens", async move {
        loop {
            let mut pause = LOOK_EVERY;
            for name in users.tokens().expired() {
                match remove_expired((&users, &rules), &name).await {
                    Ok(false) => {}
                    Ok(true) => tracing::info!(token = name, "a token has expired"),
                    Err(error) => {
                        tracing::warn!(token = name, %error, "a token that has expired can't be removed");
                        pause = RETRY;
                    }
                }
            }
            env_.sleep(pause).await;
        }
    })
}
