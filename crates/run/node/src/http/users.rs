//! `/v1/users`: who may log in.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use tailwater_login::UserError;
use tailwater_sqs::JsonObject;

use super::refusal::AdminRefusal;
use crate::NodeShared;
use crate::api::{SetUser, UserView};

impl From<UserError> for AdminRefusal {
    fn from(error: UserError) -> Self {
        let (status, word) = match &error {
            UserError::Invalid(_) => (StatusCode::BAD_REQUEST, "malformed"),
            UserError::Unknown(_) | UserError::NoSuchMechanism(_) => (StatusCode::NOT_FOUND, "unknown_user"),
            UserError::UnknownToken(_) => (StatusCode::NOT_FOUND, "unknown_token"),
            UserError::Needed(_) => (StatusCode::CONFLICT, "last_super_user"),
            UserError::Unavailable(_) => (StatusCode::SERVICE_UNAVAILABLE, "unavailable"),
        };
        Self(status, word, error.to_string())
    }
}

type UsersAnswer<T> = Result<Json<T>, AdminRefusal>;

pub(super) async fn list(State(shared): State<Arc<NodeShared>>) -> Json<Vec<UserView>> {
    Json(shared.identities.users.names().into_iter().map(|name| UserView { name }).collect())
}

pub(super) async fn set(
    State(shared): State<Arc<NodeShared>>,
    Path(name): Path<String>,
    body: Result<Json<JsonObject<SetUser>>, JsonRejection>,
) -> UsersAnswer<UserView> {
    let Json(JsonObject(SetUser { password })) = body?;
    let is_new = shared.identities.users.set(&name, &password).await?;
    tracing::info!(user = name, is_new, "a user has a password");
    Ok(Json(UserView { name }))
}

pub(super) async fn remove(
    State(shared): State<Arc<NodeShared>>,
    Path(name): Path<String>,
) -> UsersAnswer<UserView> {
    shared.identities.users.remove(&name).await?;
    tracing::info!(user = name, "removed a user");
    Ok(Json(UserView { name }))
}
