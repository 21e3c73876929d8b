//! Short questions to another cluster.

use std::sync::Arc;
use std::time::Duration;

use tailwater_env::Env;
use tailwater_format::call::{CallMessage, Method, decode_call, encode_call};
use tailwater_rma::{CallError, Connection};

use crate::limits::ASK_MAX;
use crate::links::ClusterLinks;

/// A connection to the node at `address`.
pub(crate) async fn connect(
    env: &Env,
    links: &dyn ClusterLinks,
    address: &str,
) -> Result<Arc<dyn Connection>, String> {
    match env.timeout(ASK_MAX, links.connect(address)).await {
        Some(connected) => connected,
        None => Err(format!("{address} did not take a connection within {} s", ASK_MAX.as_secs())),
    }
}

/// Why a question has no answer, in words.
#[derive(Debug)]
pub(crate) enum AskFailed {
    /// The other node refused it; its connection is whole.
    Refused(String),
    /// The connection may be gone.
    Lost(String),
}

impl AskFailed {
    pub(crate) fn into_words(self) -> String {
        let (Self::Refused(why) | Self::Lost(why)) = self;
        why
    }
}

/// What it answers to a question over a connection.
pub(crate) async fn ask_over<Q: CallMessage, A: CallMessage>(
    env: &Env,
    connection: &dyn Connection,
    method: Method,
    question: &Q,
) -> Result<A, AskFailed> {
    ask_within(env, connection, method, question, ASK_MAX).await
}

/// The same of a question that may take longer.
pub(crate) async fn ask_within<Q: CallMessage, A: CallMessage>(
    env: &Env,
    connection: &dyn Connection,
    method: Method,
    question: &Q,
    limit: Duration,
) -> Result<A, AskFailed> {
    let peer = connection.peer();
    match env.timeout(limit, connection.call(method.number(), encode_call(question))).await {
        None => Err(AskFailed::Lost(format!("{peer} did not answer within {} s", limit.as_secs()))),
        Some(Err(error @ CallError::Lost(_))) => Err(AskFailed::Lost(in_words(&error))),
        Some(Err(error)) => Err(AskFailed::Refused(in_words(&error))),
        Some(Ok(answer)) => {
            decode_call(answer).map_err(|error| AskFailed::Refused(format!("{peer}: {error}")))
        }
    }
}

/// What the node at `address` answers to a question.
pub(crate) async fn ask<Q: CallMessage, A: CallMessage>(
    env: &Env,
    links: &dyn ClusterLinks,
    address: &str,
    method: Method,
    question: &Q,
) -> Result<A, String> {
    let connection = connect(env, links, address).await?;
    ask_over(env, &*connection, method, question).await.map_err(AskFailed::into_words)
}

/// A CALL's error for people: what the other node refuses says what to do.
pub(crate) fn in_words(error: &CallError) -> String {
    match error {
        CallError::Refused { message, .. } => message.clone(),
        other => other.to_string(),
    }
}
