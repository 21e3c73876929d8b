//! `/v1/node/drain`: the node among those that share metadata.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;

use super::refusal::AdminRefusal;
use crate::NodeShared;
use crate::api::DrainedNode;

/// How long a request waits until everything is given up, which goes on after that.
const PATIENCE: Duration = Duration::from_secs(30);

/// Gives everything to other nodes, and takes nothing until the node is started again.
pub(super) async fn drain(State(shared): State<Arc<NodeShared>>) -> Result<Json<DrainedNode>, AdminRefusal> {
    let sharing = shared.sharing.get().ok_or_else(|| {
        let why = "this node shares nothing: where metadata is in ZooKeeper, [cluster] active = \"all\" has all nodes active";
        AdminRefusal(StatusCode::CONFLICT, "not_shared", why.to_owned())
    })?;
    sharing.drain();
    let is_drained = shared.env.timeout(PATIENCE, sharing.drained()).await == Some(true);
    tracing::info!(is_drained, "the node gives what it owns to others, and takes nothing");
    Ok(Json(DrainedNode { is_drained }))
}
