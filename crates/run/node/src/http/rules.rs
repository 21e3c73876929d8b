//! `/v1/rules` and `/v1/audit`: who may do what, and who was let and refused.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::extract::{Query, State};
use axum::http::StatusCode;
use tailwater_permissions::{AccessRule, AuditEvent, RuleError, RuleFilter};
use tailwater_sqs::JsonObject;

use super::refusal::AdminRefusal;
use crate::NodeShared;
use crate::api::{AuditQuery, RuleQuery, RulesView};

/// Events that one answer has at most.
const EVENTS_MAX: usize = 1000;

impl From<RuleError> for AdminRefusal {
    fn from(error: RuleError) -> Self {
        let (status, word) = match &error {
            RuleError::Invalid(_) => (StatusCode::BAD_REQUEST, "malformed"),
            RuleError::Unavailable(_) => (StatusCode::SERVICE_UNAVAILABLE, "unavailable"),
        };
        Self(status, word, error.to_string())
    }
}

type RulesAnswer<T> = Result<Json<T>, AdminRefusal>;

fn filter(query: RuleQuery) -> RuleFilter {
    let RuleQuery { principal, effect, operation, kind, name, is_prefix, host } = query;
    RuleFilter { principal, effect, operation, kind, name, is_prefix, about: None, host }
}

pub(super) async fn list(
    State(shared): State<Arc<NodeShared>>,
    query: Result<Query<RuleQuery>, QueryRejection>,
) -> RulesAnswer<RulesView> {
    let Query(query) = query?;
    let rules = &shared.rules;
    Ok(Json(RulesView { enforcement: rules.enforcement(), rules: rules.list(&filter(query)) }))
}

/// Adds all of them or none.
pub(super) async fn add(
    State(shared): State<Arc<NodeShared>>,
    body: Result<Json<Vec<JsonObject<AccessRule>>>, JsonRejection>,
) -> RulesAnswer<RulesView> {
    let Json(rules) = body?;
    let rules: Vec<AccessRule> = rules.into_iter().map(|JsonObject(rule)| rule).collect();
    shared.rules.add(rules.clone()).await?;
    for rule in &rules {
        tracing::info!(%rule, "a rule is kept");
    }
    Ok(Json(RulesView { enforcement: shared.rules.enforcement(), rules }))
}

/// Removes those that the query means, and tells which those were. A query that says nothing means none: nobody removes
/// all rules by leaving something out.
pub(super) async fn remove(
    State(shared): State<Arc<NodeShared>>,
    query: Result<Query<RuleQuery>, QueryRejection>,
) -> RulesAnswer<RulesView> {
    let Query(query) = query?;
    if query == RuleQuery::default() {
        let why =
            "which rules? Say at least one of principal, effect, operation, kind, name, is_prefix, host";
        return Err(RuleError::Invalid(why.to_owned()).into());
    }
    let rules = shared.rules.remove(vec![filter(query)]).await?;
    for rule in &rules {
        tracing::info!(%rule, "removed a rule");
    }
    Ok(Json(RulesView { enforcement: shared.rules.enforcement(), rules }))
}

pub(super) async fn audit(
    State(shared): State<Arc<NodeShared>>,
    query: Result<Query<AuditQuery>, QueryRejection>,
) -> RulesAnswer<Vec<AuditEvent>> {
    let Query(AuditQuery { after, max }) = query?;
    let audit = shared.rules.audit().ok_or_else(|| {
        RuleError::Invalid(
            "there is no audit: [access] rules is off, and may be \"report\" or \"enforce\"".to_owned(),
        )
    })?;
    Ok(Json(audit.recent(after, max.unwrap_or(EVENTS_MAX).min(EVENTS_MAX))))
}
