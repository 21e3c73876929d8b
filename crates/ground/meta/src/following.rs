//! What is kept in metadata, changes seldom, and is read whole whenever something of it has changed.

use std::fmt::Display;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tailwater_env::{BoxFuture, Env, Task};

use crate::watch::{Watch, WatchEnd};

/// After so long a read that failed is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// Has `state` read what it has in metadata, by `read`, whenever `watch` tells of a change. While that can't be read
/// the state stays as it was, which the log says of `what`. Ends with the last strong handle on the state, with the
/// watch, and with the task that this answers.
pub fn follow_whole<State, Error>(
    env: &Env,
    what: &'static str,
    mut watch: Watch,
    state: Weak<State>,
    read: impl Fn(Arc<State>) -> BoxFuture<'static, Result<(), Error>> + Send + 'static,
) -> Task
where
    State: Send + Sync + 'static,
    Error: Display + Send + 'static,
{
    let clock = env.clone();
    env.spawn(what, async move {
        loop {
            match watch.next().await {
                // Whatever changed: all of it is read within milliseconds.
                Ok(_) | Err(WatchEnd::Lagged) => {}
                Err(WatchEnd::Closed) => return,
            }
            while watch.try_next().is_some_and(|next| next != Err(WatchEnd::Closed)) {}
            loop {
                let Some(state) = state.upgrade() else { return };
                match read(state).await {
                    Ok(()) => break,
                    Err(error) => {
                        tracing::warn!(what, %error, "it can't be read again; what was read before is gone by");
                        clock.sleep(RETRY).await;
                    }
                }
            }
        }
    })
}
