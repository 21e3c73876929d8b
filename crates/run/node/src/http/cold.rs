//! `PATCH /v1/streams/NAME` and `PUT /v1/streams/NAME/restore`: how a stream's segments are kept, and bringing them
//! back.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::extract::{Path, State};
use tailwater_format::call::CallRefusal;
use tailwater_format::{Offset, ShardNumber};
use tailwater_log::{StreamConfig, StreamError};
use tailwater_sqs::JsonObject;

use super::{AdminAnswer, Failed};
use crate::NodeShared;
use crate::api::{AlterStream, RestoreStream, StreamView, Truncated};
use crate::calls::stream_refusal;

pub(super) async fn alter(
    State(shared): State<Arc<NodeShared>>,
    Path(name): Path<String>,
    body: Result<Json<JsonObject<AlterStream>>, JsonRejection>,
) -> AdminAnswer<StreamView> {
    let Json(JsonObject(alter)) = body?;
    let change = move |config: &StreamConfig| Ok::<_, StreamError>(alter.applied_to(config));
    shared.log.alter_stream(&name, change).await.map_err(|error| Failed(stream_refusal(error)))?;
    Ok(Json(shared.view(&name)?))
}

pub(super) async fn restore(
    State(shared): State<Arc<NodeShared>>,
    Path(name): Path<String>,
    body: Result<Json<JsonObject<RestoreStream>>, JsonRejection>,
) -> AdminAnswer<Vec<Truncated>> {
    let Json(JsonObject(restore)) = body?;
    let log = &shared.log;
    let stream = log.stream(&name).map_err(|error| Failed(stream_refusal(error)))?;
    let shards = match restore.shard {
        Some(shard) => shard..shard.saturating_add(1),
        None => 0..stream.config.shards,
    };
    let (mut done, mut nothing) = (Vec::new(), None);
    for shard in shards {
        match log.restore(&name, ShardNumber(shard), Offset(restore.from)).await {
            Ok(log_start) => {
                tracing::info!(stream = name, shard, %log_start, "restored from cold storage");
                done.push(Truncated { shard, log_start: log_start.0 });
            }
            Err(error @ StreamError::NothingToRestore { .. }) if restore.shard.is_none() => {
                nothing = Some(error)
            }
            Err(error) => {
                let CallRefusal { code, message } = stream_refusal(error);
                let before = if done.is_empty() {
                    "nothing was restored"
                } else {
                    "the shards before it were restored"
                };
                return Err(Failed(CallRefusal::new(code, format!("shard {shard}: {message}; {before}"))));
            }
        }
    }
    match nothing.filter(|_| done.is_empty()) {
        Some(error) => Err(Failed(stream_refusal(error))),
        None => Ok(Json(done)),
    }
}
