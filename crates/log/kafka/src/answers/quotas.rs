//! Quotas of users, clients and addresses, as Kafka's clients look at them and change them (KIP-546).

use std::collections::BTreeMap;
use std::sync::Arc;

use tailwater_quotas::{ClientQuotas, QuotaBound, QuotaBounds, QuotaEntity, QuotaError};

use crate::broker::{Broker, Context};
use crate::errors::{ErrorCode, RefusedRequest};
use crate::messages::security::{
    AlterClientQuotasEntry, AlterClientQuotasOp, AlterClientQuotasRequest, AlterClientQuotasResponse,
    AlterClientQuotasResult, ComponentData, DescribeClientQuotasRequest, DescribeClientQuotasResponse,
    EntityData, EntryData, ValueData,
};

/// What stands for each one that has no quota of its own: Kafka has no name there.
const EACH: &str = "*";
/// The largest whole number up to which a float has all of them.
const WHOLE_MAX: f64 = 9_007_199_254_740_992.0;

fn invalid(why: impl Into<String>) -> RefusedRequest {
    RefusedRequest::new(ErrorCode::InvalidRequest, why)
}

fn refused(error: QuotaError) -> RefusedRequest {
    let code = match &error {
        QuotaError::Invalid(_) => ErrorCode::InvalidRequest,
        // Clients try it again by themselves.
        QuotaError::Unavailable(_) => ErrorCode::CoordinatorNotAvailable,
    };
    RefusedRequest::new(code, error.to_string())
}

/// The part of an entity that Kafka calls so.
fn part<'a>(entity: &'a mut QuotaEntity, kind: &str) -> Result<&'a mut Option<String>, RefusedRequest> {
    match kind {
        "user" => Ok(&mut entity.user),
        "client-id" => Ok(&mut entity.client_id),
        "ip" => Ok(&mut entity.ip),
        "" => Err(invalid("the type of an entity is empty")),
        other => {
            let why = format!("there are no quotas of {other:?}: of user, client-id, ip");
            Err(RefusedRequest::new(ErrorCode::UnsupportedVersion, why))
        }
    }
}

/// Whom a quota is about, of which each part is named once.
fn entity(named: &[EntityData]) -> Result<QuotaEntity, RefusedRequest> {
    let mut entity = QuotaEntity::default();
    for EntityData { entity_type, entity_name } in named {
        let part = part(&mut entity, entity_type)?;
        if part.is_some() {
            return Err(invalid(format!("the entity names its {entity_type} twice")));
        }
        *part = Some(own_name(entity_name.clone())?);
    }
    Ok(entity)
}

fn own_name(name: Option<String>) -> Result<String, RefusedRequest> {
    match name {
        None => Ok(EACH.to_owned()),
        Some(name) if name == EACH => Err(invalid("* is nobody's name here: the default has none")),
        Some(name) => Ok(name),
    }
}

fn bound(name: &str) -> Result<QuotaBound, RefusedRequest> {
    QuotaBound::from_name(name).ok_or_else(|| {
        let known: Vec<_> = QuotaBound::ALL.iter().map(|bound| bound.name()).collect();
        invalid(format!("{name:?} is not bounded here: {}", known.join(", ")))
    })
}

fn whole(value: f64) -> Result<u64, RefusedRequest> {
    match value.fract() == 0.0 && (0.0..WHOLE_MAX).contains(&value) {
        true => Ok(value as u64),
        false => Err(invalid(format!("{value} is no whole number"))),
    }
}

pub(crate) async fn describe_client_quotas(
    broker: Arc<Broker>,
    context: Context,
    request: DescribeClientQuotasRequest,
) -> DescribeClientQuotasResponse {
    let found = match broker.authorize_cluster(&context) {
        Err(code) => Err(RefusedRequest::new(code, "this client may not look at quotas")),
        Ok(()) => found(&broker.quotas, request),
    };
    match found {
        Ok(entries) => DescribeClientQuotasResponse { entries: Some(entries), ..Default::default() },
        Err(RefusedRequest { error, why }) => DescribeClientQuotasResponse {
            error_code: error.number(),
            error_message: Some(why),
            ..Default::default()
        },
    }
}

/// What an entity has to be for one to be told of.
enum PartWanted {
    Is(String),
    Any,
}

/// Those that a filter means.
fn found(
    quotas: &ClientQuotas,
    DescribeClientQuotasRequest { components, strict }: DescribeClientQuotasRequest,
) -> Result<Vec<EntryData>, RefusedRequest> {
    let mut wanted: [Option<PartWanted>; 3] = [None, None, None];
    for ComponentData { entity_type, match_type, match_kind } in components {
        // Whether there are such parts.
        part(&mut QuotaEntity::default(), &entity_type)?;
        let place = &mut wanted[kinds().position(|kind| kind == entity_type).unwrap_or_default()];
        if place.is_some() {
            return Err(invalid(format!("the filter names {entity_type} twice")));
        }
        *place = Some(match (match_type, match_kind) {
            (0, Some(name)) => PartWanted::Is(own_name(Some(name))?),
            (0, None) => return Err(invalid("an exact match needs a name")),
            (1, None) => PartWanted::Is(EACH.to_owned()),
            (2, None) => PartWanted::Any,
            (1 | 2, Some(_)) => return Err(invalid("only an exact match has a name")),
            (other, _) => return Err(invalid(format!("{other} is no way to match: 0, 1, 2"))),
        });
    }
    let is_meant = |entity: &QuotaEntity| {
        let parts = [&entity.user, &entity.client_id, &entity.ip];
        parts.into_iter().zip(&wanted).all(|(own, wanted)| match (own, wanted) {
            (Some(_), Some(PartWanted::Any)) => true,
            (Some(own), Some(PartWanted::Is(name))) => own == name,
            (None, Some(_)) => false,
            (Some(_), None) => !strict,
            (None, None) => true,
        })
    };
    Ok(quotas.list().into_iter().filter(|(entity, _)| is_meant(entity)).map(told).collect())
}

/// The parts of an entity, in order.
fn kinds() -> impl Iterator<Item = &'static str> {
    ["user", "client-id", "ip"].into_iter()
}

fn told((entity, bounds): (QuotaEntity, QuotaBounds)) -> EntryData {
    let parts = kinds().zip([entity.user, entity.client_id, entity.ip]);
    let parts = parts.filter_map(|(kind, name)| {
        let entity_name = Some(name?).filter(|name| name != EACH);
        Some(EntityData { entity_type: kind.to_owned(), entity_name })
    });
    let value =
        |(bound, most): (QuotaBound, u64)| ValueData { key: bound.name().to_owned(), value: most as f64 };
    EntryData { entity: parts.collect(), values: bounds.into_iter().map(value).collect() }
}

/// Each entry is carried out by itself, and all of it or nothing.
pub(crate) async fn alter_client_quotas(
    broker: Arc<Broker>,
    context: Context,
    request: AlterClientQuotasRequest,
) -> AlterClientQuotasResponse {
    let may = broker.authorize_cluster(&context);
    let mut entries = Vec::with_capacity(request.entries.len());
    for AlterClientQuotasEntry { entity, ops } in request.entries {
        let outcome = match may {
            Err(code) => Err(RefusedRequest::new(code, "this client may not alter quotas")),
            Ok(()) => alter(&broker.quotas, &entity, ops, request.validate_only).await,
        };
        let (error_code, error_message) = match outcome {
            Ok(()) => (0, None),
            Err(RefusedRequest { error, why }) => (error.number(), Some(why)),
        };
        entries.push(AlterClientQuotasResult { error_code, error_message, entity });
    }
    AlterClientQuotasResponse { entries, ..Default::default() }
}

async fn alter(
    quotas: &Arc<ClientQuotas>,
    named: &[EntityData],
    ops: Vec<AlterClientQuotasOp>,
    validate_only: bool,
) -> Result<(), RefusedRequest> {
    let entity = entity(named)?;
    let mut bounds = BTreeMap::new();
    for AlterClientQuotasOp { key, value, remove } in ops {
        let most = if remove { None } else { Some(whole(value)?) };
        let bound = bound(&key)?;
        if entity.ip.is_some() && !matches!(bound, QuotaBound::ConnectionCreationRate) {
            // As Kafka does, whose programs know of nothing else.
            let why = format!("{key} is not of an address in this protocol: `tailwater quota set` bounds it");
            return Err(invalid(why));
        }
        if bounds.insert(bound, most).is_some() {
            return Err(invalid(format!("{key} is named twice")));
        }
    }
    let entity = ClientQuotas::check(entity, &bounds).map_err(refused)?;
    if !validate_only {
        let after = quotas.alter(entity.clone(), bounds).await.map_err(refused)?;
        tracing::info!(%entity, ?after, "a quota was changed");
    }
    Ok(())
}
