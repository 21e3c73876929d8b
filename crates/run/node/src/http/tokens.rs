//! `/v1/tokens`: what programs show in place of a user's name and password.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::extract::{Path, State};
use tailwater_login::TokenInfo;
use tailwater_sqs::JsonObject;

use super::refusal::AdminRefusal;
use crate::NodeShared;
use crate::api::{CreateToken, CreatedToken, TokenView};
use crate::tokens::{self, TokenError};

impl From<TokenError> for AdminRefusal {
    fn from(error: TokenError) -> Self {
        match error {
            TokenError::Token(error) => error.into(),
            TokenError::Rule(error) => error.into(),
        }
    }
}

type TokensAnswer<T> = Result<Json<T>, AdminRefusal>;

pub(super) async fn list(State(shared): State<Arc<NodeShared>>) -> Json<Vec<TokenView>> {
    let view = |TokenInfo { name, expires_ms }| TokenView { name, expires_ms };
    Json(shared.identities.users.tokens().list().into_iter().map(view).collect())
}

pub(super) async fn create(
    State(shared): State<Arc<NodeShared>>,
    body: Result<Json<JsonObject<CreateToken>>, JsonRejection>,
) -> TokensAnswer<CreatedToken> {
    let Json(JsonObject(CreateToken { name, expires_ms, rules })) = body?;
    let to = (&*shared.identities.users, &shared.rules);
    let token = tokens::create(to, &name, expires_ms, rules).await?;
    tracing::info!(token = name, "there is a new token");
    Ok(Json(CreatedToken { name, expires_ms, token, enforcement: shared.rules.enforcement() }))
}

pub(super) async fn remove(
    State(shared): State<Arc<NodeShared>>,
    Path(name): Path<String>,
) -> TokensAnswer<TokenView> {
    tokens::remove((&shared.identities.users, &shared.rules), &name).await?;
    tracing::info!(token = name, "removed a token");
    Ok(Json(TokenView { name, expires_ms: None }))
}
