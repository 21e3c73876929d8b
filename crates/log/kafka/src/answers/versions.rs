//! ApiVersions: what is spoken here.

use std::sync::Arc;

use crate::api::Api;
use crate::broker::{Broker, Context};
use crate::errors::ErrorCode;
use crate::messages::cluster::{ApiVersion, ApiVersionsRequest, ApiVersionsResponse};

pub(crate) async fn api_versions(
    _: Arc<Broker>,
    context: Context,
    request: ApiVersionsRequest,
) -> ApiVersionsResponse {
    // As Kafka has it: a client that tells its name tells one that could be a host's.
    let is_name = |text: &str| {
        let ends = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
        ends(text.chars().next())
            && ends(text.chars().next_back())
            && text.chars().all(|c| c.is_ascii_alphanumeric() || ".-".contains(c))
    };
    let named = is_name(&request.client_software_name) && is_name(&request.client_software_version);
    if context.version >= 3 && !named {
        return ApiVersionsResponse { error_code: ErrorCode::InvalidRequest.number(), ..Default::default() };
    }
    tracing::debug!(
        peer = %context.peer.address,
        client = %context.client_id,
        software = request.client_software_name,
        version = request.client_software_version,
        "a Kafka client"
    );
    answer(ErrorCode::None)
}

pub(crate) fn answer(error: ErrorCode) -> ApiVersionsResponse {
    let api_keys = Api::ALL.iter().map(|api| {
        let (min, max) = api.versions().into_inner();
        // librdkafka takes a broker without Produce 0 for one of before 2015, so Kafka 4 says that it has it
        // (KAFKA-18659), and closes the connection on who uses it.
        let min_version = if *api == Api::Produce { 0 } else { min };
        ApiVersion { api_key: api.number(), min_version, max_version: max }
    });
    ApiVersionsResponse { error_code: error.number(), api_keys: api_keys.collect(), ..Default::default() }
}
