//! What a broker without rules says: ACLs are switched off, and there are no quotas.

use std::sync::Arc;

use crate::broker::{Broker, Context};
use crate::errors::ErrorCode;
use crate::messages::security::{
    AclCreationResult, AlterClientQuotasEntry, AlterClientQuotasRequest, AlterClientQuotasResponse,
    AlterClientQuotasResult, CreateAclsRequest, CreateAclsResponse, DeleteAclsFilterResult,
    DeleteAclsRequest, DeleteAclsResponse, DescribeAclsRequest, DescribeAclsResponse,
    DescribeClientQuotasRequest, DescribeClientQuotasResponse,
};

const NO_ACLS: &str = "there are no ACLs: whoever reaches the node may do everything";
const NO_QUOTAS: &str = "there are no quotas: all clients share what the node can do";
const DISABLED: i16 = ErrorCode::SecurityDisabled.number();

pub(crate) async fn describe_acls(
    _: Arc<Broker>,
    _: Context,
    _: DescribeAclsRequest,
) -> DescribeAclsResponse {
    let error_message = Some(NO_ACLS.to_owned());
    DescribeAclsResponse { error_code: DISABLED, error_message, ..Default::default() }
}

pub(crate) async fn create_acls(
    _: Arc<Broker>,
    _: Context,
    request: CreateAclsRequest,
) -> CreateAclsResponse {
    let refused = |_| AclCreationResult { error_code: DISABLED, error_message: Some(NO_ACLS.to_owned()) };
    CreateAclsResponse { results: request.creations.iter().map(refused).collect(), ..Default::default() }
}

pub(crate) async fn delete_acls(
    _: Arc<Broker>,
    _: Context,
    request: DeleteAclsRequest,
) -> DeleteAclsResponse {
    let refused = |_| DeleteAclsFilterResult {
        error_code: DISABLED,
        error_message: Some(NO_ACLS.to_owned()),
        matching_acls: vec![],
    };
    DeleteAclsResponse { filter_results: request.filters.iter().map(refused).collect(), ..Default::default() }
}

/// None are set, whatever is asked for.
pub(crate) async fn describe_client_quotas(
    _: Arc<Broker>,
    _: Context,
    _: DescribeClientQuotasRequest,
) -> DescribeClientQuotasResponse {
    DescribeClientQuotasResponse { entries: Some(vec![]), ..Default::default() }
}

/// There are none, so to take some away succeeds.
pub(crate) async fn alter_client_quotas(
    broker: Arc<Broker>,
    context: Context,
    request: AlterClientQuotasRequest,
) -> AlterClientQuotasResponse {
    let may = broker.authorize_cluster(&context);
    let alter = |entry: &AlterClientQuotasEntry| {
        may.map_err(|error| (error, "this client may not alter quotas"))?;
        match entry.ops.iter().all(|op| op.remove) {
            true => Ok(()),
            false => Err((ErrorCode::InvalidRequest, NO_QUOTAS)),
        }
    };
    let entries = request.entries.into_iter().map(|entry| {
        let refused = alter(&entry).err();
        AlterClientQuotasResult {
            error_code: refused.map_or(0, |(error, _)| error.number()),
            error_message: refused.map(|(_, why)| why.to_owned()),
            entity: entry.entity,
        }
    });
    AlterClientQuotasResponse { entries: entries.collect(), ..Default::default() }
}
