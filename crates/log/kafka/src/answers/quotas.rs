//! What a broker without quotas says.

use std::sync::Arc;

use crate::broker::{Broker, Context};
use crate::errors::ErrorCode;
use crate::messages::security::{
    AlterClientQuotasEntry, AlterClientQuotasRequest, AlterClientQuotasResponse, AlterClientQuotasResult,
    DescribeClientQuotasRequest, DescribeClientQuotasResponse,
};

const NO_QUOTAS: &str = "there are no quotas: all clients share what the node can do";

/// None are set, whatever is asked for.
pub(crate) async fn describe_client_quotas(
    broker: Arc<Broker>,
    context: Context,
    _: DescribeClientQuotasRequest,
) -> DescribeClientQuotasResponse {
    if let Err(error) = broker.authorize_cluster(&context) {
        let error_message = Some("this client may not look at quotas".to_owned());
        return DescribeClientQuotasResponse {
            error_code: error.number(),
            error_message,
            ..Default::default()
        };
    }
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
