//! `/v1/accounts`: the accounts of Amazon SQS's clients.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use tailwater_sqs::{AccountError, AccountInfo, Accounts, JsonObject, NewAccountKey};

use super::refusal::AdminRefusal;
use crate::NodeShared;
use crate::api::{AccountView, CreateAccountKey, CreatedAccountKey, RemoveAccount};

impl From<AccountError> for AdminRefusal {
    fn from(error: AccountError) -> Self {
        let (status, word) = match &error {
            AccountError::Invalid(_) => (StatusCode::BAD_REQUEST, "malformed"),
            AccountError::Unknown(_) => (StatusCode::NOT_FOUND, "unknown_account"),
            AccountError::Last { .. } => (StatusCode::CONFLICT, "last_account"),
            AccountError::Unavailable(_) => (StatusCode::SERVICE_UNAVAILABLE, "unavailable"),
        };
        Self(status, word, error.to_string())
    }
}

type AccountsAnswer<T> = Result<Json<T>, AdminRefusal>;

fn accounts(shared: &NodeShared) -> Result<&Arc<Accounts>, AdminRefusal> {
    let why = "the node does not speak Amazon SQS's protocol: [sqs] enabled";
    let none = || AdminRefusal(StatusCode::CONFLICT, "no_sqs", why.to_owned());
    shared.sqs.as_ref().map(|sqs| sqs.front().accounts()).ok_or_else(none)
}

pub(super) async fn list(State(shared): State<Arc<NodeShared>>) -> AccountsAnswer<Vec<AccountView>> {
    let view = |AccountInfo { id, keys, is_configured }| AccountView { id, keys, is_configured };
    Ok(Json(accounts(&shared)?.list().into_iter().map(view).collect()))
}

pub(super) async fn add_key(
    State(shared): State<Arc<NodeShared>>,
    body: Result<Json<JsonObject<CreateAccountKey>>, JsonRejection>,
) -> AccountsAnswer<CreatedAccountKey> {
    let Json(JsonObject(CreateAccountKey { id, bounds })) = body?;
    let NewAccountKey { id: key, secret } = accounts(&shared)?.add_key(&id, bounds).await?;
    tracing::info!(account = id, key, "there is a new key");
    Ok(Json(CreatedAccountKey { id, key, secret }))
}

pub(super) async fn remove(
    State(shared): State<Arc<NodeShared>>,
    Path(id): Path<String>,
    query: Result<Query<RemoveAccount>, QueryRejection>,
) -> AccountsAnswer<RemoveAccount> {
    let Query(removed) = query?;
    let RemoveAccount { key, everybody } = &removed;
    accounts(&shared)?.remove(&id, key.as_deref(), *everybody).await?;
    tracing::info!(account = id, key, "removed an account, or a key of it");
    Ok(Json(removed))
}
