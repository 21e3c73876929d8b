//! Keeps a message invisible while it is worked on.

use std::fmt;
use std::pin::pin;
use std::time::Duration;

use futures::future::{Either, select};

use super::{Message, Queue};
use crate::error::Error;

/// A pause before a delete that failed is tried again.
const DELETE_PAUSE: Duration = Duration::from_millis(100);

/// What became of a message that was not both done and deleted.
#[derive(Debug)]
pub enum Unhandled<T, E> {
    /// The work failed: the message is visible again, at once or, where the server could not be told, after its
    /// timeout.
    Failed(E),
    /// The work is done, with this result, but the message may come again: it could not be deleted in time.
    NotDeleted(T, Error),
}

impl<T, E: fmt::Display> fmt::Display for Unhandled<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(error) => write!(f, "{error}"),
            Self::NotDeleted(_, error) => write!(f, "it is done and may be done again: {error}"),
        }
    }
}

impl<T: fmt::Debug, E: std::error::Error> std::error::Error for Unhandled<T, E> {}

impl Queue {
    /// Does `work` for a message, which is kept invisible meanwhile; then deletes it, or gives it back if the work
    /// failed. The work must not block the thread: there would be no beats. A beat that fails is a warning in the log.
    pub async fn handle<T, E>(
        &self,
        message: &Message,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, Unhandled<T, E>> {
        let log = |error: &Error| {
            tracing::warn!(id = message.id, %error, "a message may become visible while it is handled");
        };
        self.handle_telling(message, work, log).await
    }

    /// The same; `missed` is told of each beat that failed. The work goes on: that it is done twice is better than not
    /// at all.
    pub async fn handle_telling<T, E>(
        &self,
        message: &Message,
        work: impl Future<Output = Result<T, E>>,
        mut missed: impl FnMut(&Error),
    ) -> Result<T, Unhandled<T, E>> {
        let env = self.endpoint.env();
        let visibility = Duration::from_secs(self.visibility_s.max(1));
        let beat = visibility / 3;
        let mut beat_at = message.received_at + beat;
        let mut invisible_until = message.received_at + visibility;
        let mut work = pin!(work);
        let outcome = loop {
            if let Either::Left((outcome, _)) = select(work.as_mut(), env.sleep_until(beat_at)).await {
                break outcome;
            }
            let begun = env.now();
            beat_at = begun + beat;
            let told = pin!(self.change_visibility_within(message, visibility.as_secs(), beat));
            let (outcome, told) = match select(work.as_mut(), told).await {
                // What is on its way must not come after what follows.
                Either::Left((outcome, told)) => (Some(outcome), told.await),
                Either::Right((told, _)) => (None, told),
            };
            match told {
                Ok(()) => invisible_until = begun + visibility,
                Err(error) => missed(&error),
            }
            if let Some(outcome) = outcome {
                break outcome;
            }
        };
        match outcome {
            Ok(value) => loop {
                match self.delete(message).await {
                    Ok(()) => return Ok(value),
                    Err(error) if error.is_retriable() && env.now() + DELETE_PAUSE < invisible_until => {
                        env.sleep(DELETE_PAUSE).await;
                    }
                    Err(error) => return Err(Unhandled::NotDeleted(value, error)),
                }
            },
            Err(error) => {
                if let Err(error) = self.change_visibility(message, 0).await {
                    tracing::debug!(id = message.id, %error, "a message comes again only after its timeout");
                }
                Err(Unhandled::Failed(error))
            }
        }
    }
}
