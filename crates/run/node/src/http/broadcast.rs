//! `/v1/broadcast`: the node as a replica of its region's proxy.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use tailwater_broadcast_server::Snapshot;
use tailwater_format::call::{CallErrorCode, CallRefusal};

use super::{AdminAnswer, Failed};
use crate::NodeShared;
use crate::api::{BroadcastStreamView, BroadcastView};
use crate::bridge::Bridges;
use crate::broadcast::{self, Broadcast};

async fn snapshot(shared: &NodeShared) -> Result<(&Broadcast, Snapshot), Failed> {
    let refused = |code, why: &str| Failed(CallRefusal::new(code, why.to_owned()));
    let broadcast = shared.broadcast.as_ref().ok_or_else(|| {
        refused(
            CallErrorCode::Malformed,
            "the node takes no part in broadcasts: [broadcast] enabled is false",
        )
    })?;
    let snapshot = broadcast.snapshot().await;
    let snapshot = snapshot.ok_or_else(|| refused(CallErrorCode::Unavailable, "the node is stopping"))?;
    Ok((broadcast, snapshot))
}

pub async fn describe(State(shared): State<Arc<NodeShared>>) -> AdminAnswer<BroadcastView> {
    let (broadcast, snapshot) = snapshot(&shared).await?;
    let bridges = shared.bridges.lock().as_ref().map(Bridges::views).unwrap_or_default();
    Ok(Json(BroadcastView { bridges, ..broadcast.view(&snapshot) }))
}

pub async fn streams(State(shared): State<Arc<NodeShared>>) -> AdminAnswer<Vec<BroadcastStreamView>> {
    let (_, snapshot) = snapshot(&shared).await?;
    Ok(Json(broadcast::streams(&snapshot)))
}
