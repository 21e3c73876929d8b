//! Access control lists: the node's rules, as Kafka's clients look at them and change them. Where rules are off, they
//! are told so, as by a broker without an authorizer.

use std::collections::BTreeMap;
use std::sync::Arc;

use tailwater_permissions::{AccessRule, Enforcement, RuleError, RuleFilter, Rules};

use crate::acls::{self, Acl};
use crate::broker::{Broker, Context};
use crate::errors::ErrorCode;
use crate::messages::security::{
    AclCreationResult, AclDescription, CreateAclsRequest, CreateAclsResponse, DeleteAclsFilter,
    DeleteAclsFilterResult, DeleteAclsMatchingAcl, DeleteAclsRequest, DeleteAclsResponse,
    DescribeAclsRequest, DescribeAclsResource, DescribeAclsResponse,
};

/// Why a request is refused.
#[derive(Clone)]
struct RefusedAcls(ErrorCode, String);

impl RefusedAcls {
    fn number(&self) -> i16 {
        self.0.number()
    }

    fn invalid(why: String) -> Self {
        Self(ErrorCode::InvalidRequest, why)
    }
}

impl From<RuleError> for RefusedAcls {
    fn from(error: RuleError) -> Self {
        let code = match error {
            RuleError::Invalid(_) => ErrorCode::InvalidRequest,
            // Clients try these again by themselves.
            RuleError::Unavailable(_) => ErrorCode::CoordinatorNotAvailable,
        };
        Self(code, error.to_string())
    }
}

impl Broker {
    /// The rules, for whom may do this to them.
    fn rules_for(&self, context: &Context) -> Result<&Arc<Rules>, RefusedAcls> {
        self.authorize_cluster(context)
            .map_err(|code| RefusedAcls(code, "this client may not do this to rules".to_owned()))?;
        let rules = self.rules.as_ref().filter(|rules| rules.enforcement() != Enforcement::Off);
        rules.ok_or_else(|| {
            let why =
                "the node goes by no rules: [access] rules is off, and may be \"report\" or \"enforce\"";
            RefusedAcls(ErrorCode::SecurityDisabled, why.to_owned())
        })
    }
}

pub(crate) async fn describe_acls(
    broker: Arc<Broker>,
    context: Context,
    request: DescribeAclsRequest,
) -> DescribeAclsResponse {
    let described = broker.rules_for(&context).and_then(|rules| {
        let filters = acls::to_filters(acls::filter_of(request)).map_err(RefusedAcls::invalid)?;
        Ok(filters.iter().flat_map(|filter| rules.list(filter)).collect::<Vec<_>>())
    });
    match described {
        Ok(rules) => DescribeAclsResponse { resources: by_resource(&rules), ..Default::default() },
        Err(refused) => DescribeAclsResponse {
            error_code: refused.number(),
            error_message: Some(refused.1),
            ..Default::default()
        },
    }
}

fn by_resource(rules: &[AccessRule]) -> Vec<DescribeAclsResource> {
    let mut resources: BTreeMap<_, Vec<AclDescription>> = BTreeMap::new();
    for acl in rules.iter().filter_map(acls::from_rule) {
        let Acl { resource_type, resource_name, pattern_type, principal, host, operation, permission_type } =
            acl;
        let about = resources.entry((resource_type, resource_name, pattern_type)).or_default();
        about.push(AclDescription { principal, host, operation, permission_type });
    }
    let resources = resources.into_iter().map(|((resource_type, resource_name, pattern_type), acls)| {
        DescribeAclsResource { resource_type, resource_name, pattern_type, acls }
    });
    resources.collect()
}

/// Those that can't be rules are refused one by one; the others are added together.
pub(crate) async fn create_acls(
    broker: Arc<Broker>,
    context: Context,
    request: CreateAclsRequest,
) -> CreateAclsResponse {
    let count = request.creations.len();
    let outcomes = match broker.rules_for(&context) {
        Err(refused) => vec![Err(refused); count],
        Ok(rules) => {
            let read = request.creations.into_iter().map(|acl| {
                let rule = acls::to_rule(acl).map_err(RefusedAcls::invalid)?;
                rule.check()?;
                Ok(rule)
            });
            let read: Vec<Result<AccessRule, RefusedAcls>> = read.collect();
            let right = read.iter().filter_map(|rule| rule.as_ref().ok().cloned()).collect();
            let added = rules.add(right).await.map_err(RefusedAcls::from);
            read.into_iter().map(|rule| rule.and(added.clone())).collect()
        }
    };
    let results = outcomes.into_iter().map(|outcome| {
        let refused = outcome.err();
        AclCreationResult {
            error_code: refused.as_ref().map_or(0, RefusedAcls::number),
            error_message: refused.map(|refused| refused.1),
        }
    });
    CreateAclsResponse { results: results.collect(), ..Default::default() }
}

/// Filters that can't be understood are refused one by one; what the others mean is removed together.
pub(crate) async fn delete_acls(
    broker: Arc<Broker>,
    context: Context,
    request: DeleteAclsRequest,
) -> DeleteAclsResponse {
    let count = request.filters.len();
    let outcomes = match broker.rules_for(&context) {
        Err(refused) => vec![Err(refused); count],
        Ok(rules) => remove(rules, request.filters).await,
    };
    let filter_results = outcomes.into_iter().map(|outcome| match outcome {
        Ok(removed) => DeleteAclsFilterResult {
            matching_acls: removed.iter().filter_map(acls::from_rule).map(removed_acl).collect(),
            ..Default::default()
        },
        Err(refused) => DeleteAclsFilterResult {
            error_code: refused.number(),
            error_message: Some(refused.1),
            matching_acls: vec![],
        },
    });
    DeleteAclsResponse { filter_results: filter_results.collect(), ..Default::default() }
}

/// Which rules went, for each filter.
async fn remove(
    rules: &Arc<Rules>,
    filters: Vec<DeleteAclsFilter>,
) -> Vec<Result<Vec<AccessRule>, RefusedAcls>> {
    let read = filters.into_iter().map(|filter| acls::to_filters(filter).map_err(RefusedAcls::invalid));
    let read: Vec<Result<Vec<RuleFilter>, RefusedAcls>> = read.collect();
    let meant = read.iter().flatten().flatten().cloned().collect();
    let removed = rules.remove(meant).await.map_err(RefusedAcls::from);
    let of_filter = |filters: Result<Vec<RuleFilter>, RefusedAcls>| {
        let (filters, removed) = (filters?, removed.clone()?);
        let own = removed.into_iter().filter(|rule| filters.iter().any(|filter| filter.takes(rule)));
        Ok(own.collect())
    };
    read.into_iter().map(of_filter).collect()
}

fn removed_acl(acl: Acl) -> DeleteAclsMatchingAcl {
    let Acl { resource_type, resource_name, pattern_type, principal, host, operation, permission_type } = acl;
    DeleteAclsMatchingAcl {
        error_code: 0,
        error_message: None,
        resource_type,
        resource_name,
        pattern_type,
        principal,
        host,
        operation,
        permission_type,
    }
}
