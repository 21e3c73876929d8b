//! `/v1/quotas`: what each may take in a second; and that requests keep to it.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::extract::{Query, Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tailwater_quotas::{QuotaBound, QuotaBounds, QuotaEntity, QuotaError, QuotaTaker};
use tailwater_sqs::JsonObject;

use super::ConnectionSender;
use super::refusal::AdminRefusal;
use crate::NodeShared;
use crate::api::{QuotaView, SetQuota};

impl From<QuotaError> for AdminRefusal {
    fn from(error: QuotaError) -> Self {
        let (status, word) = match &error {
            QuotaError::Invalid(_) => (StatusCode::BAD_REQUEST, "malformed"),
            QuotaError::Unavailable(_) => (StatusCode::SERVICE_UNAVAILABLE, "unavailable"),
        };
        Self(status, word, error.to_string())
    }
}

type QuotasAnswer<T> = Result<Json<T>, AdminRefusal>;

pub(super) async fn list(State(shared): State<Arc<NodeShared>>) -> Json<Vec<QuotaView>> {
    let view = |(entity, bounds)| QuotaView { entity, bounds };
    Json(shared.quotas.list().into_iter().map(view).collect())
}

/// Sets what is named of a quota, and leaves the rest as it is.
pub(super) async fn set(
    State(shared): State<Arc<NodeShared>>,
    body: Result<Json<JsonObject<SetQuota>>, JsonRejection>,
) -> QuotasAnswer<QuotaView> {
    let Json(JsonObject(SetQuota { entity, bounds })) = body?;
    let entity = entity.checked()?;
    let bounds = shared.quotas.alter(entity.clone(), bounds).await?;
    tracing::info!(%entity, ?bounds, "a quota was changed");
    Ok(Json(QuotaView { entity, bounds }))
}

/// Removes the quota about exactly this.
pub(super) async fn remove(
    State(shared): State<Arc<NodeShared>>,
    query: Result<Query<QuotaEntity>, QueryRejection>,
) -> QuotasAnswer<QuotaView> {
    let Query(entity) = query?;
    let entity = entity.checked()?;
    if !shared.quotas.list().iter().any(|(there, _)| *there == entity) {
        let why = format!("there is no quota about {entity}");
        return Err(AdminRefusal(StatusCode::NOT_FOUND, "unknown_quota", why));
    }
    let all: BTreeMap<QuotaBound, Option<u64>> =
        QuotaBound::ALL.into_iter().filter(|bound| bound.is_of(&entity)).map(|bound| (bound, None)).collect();
    shared.quotas.alter(entity.clone(), all).await?;
    tracing::info!(%entity, "removed a quota");
    Ok(Json(QuotaView { entity, bounds: QuotaBounds::new() }))
}

/// Lets a request through whose sender has not had too many of them. Whoever asks whether the node lives always may.
pub(super) async fn bounded(State(shared): State<Arc<NodeShared>>, request: Request, next: Next) -> Response {
    let is_probe = matches!(request.uri().path(), "/healthz" | "/livez" | "/readyz");
    let sender = request.extensions().get::<ConnectionSender>().filter(|_| !is_probe);
    let Some(sender) = sender else { return next.run(request).await };
    let taker = QuotaTaker::of(&sender.peer, "");
    match shared.quotas.admit(QuotaBound::RequestRate, taker, 1) {
        Ok(()) => next.run(request).await,
        Err(owed) => {
            let why = format!("{taker} has used up its quota: request_rate");
            let refused = AdminRefusal(StatusCode::TOO_MANY_REQUESTS, "throttled", why);
            let mut answer = refused.into_response();
            let seconds = HeaderValue::from(owed.as_secs().saturating_add(1));
            answer.headers_mut().insert(header::RETRY_AFTER, seconds);
            answer
        }
    }
}
