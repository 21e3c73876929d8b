//! `/v1/clusters` and `/v1/streams/NAME/tree`: other clusters, and what is copied to them.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use tailwater_copy::{CopyError, CopyTree, KnownCluster, PlaceRequest, TreeEdge, TreeHopState};
use tailwater_sqs::JsonObject;

use super::refusal::AdminRefusal;
use crate::NodeShared;
use crate::api::{AddCluster, ClusterView, CopyHopView, CopyTreeView, PlaceStream};
use crate::calls::stream_refusal;

impl From<CopyError> for AdminRefusal {
    fn from(error: CopyError) -> Self {
        let (status, word) = match &error {
            CopyError::NoName | CopyError::Invalid(_) | CopyError::Plan(_) => {
                (StatusCode::BAD_REQUEST, "malformed")
            }
            CopyError::UnknownCluster(_) => (StatusCode::NOT_FOUND, "unknown_cluster"),
            CopyError::NotPlaced(_) => (StatusCode::NOT_FOUND, "not_placed"),
            CopyError::KnownAlready { .. } => (StatusCode::CONFLICT, "cluster_exists"),
            CopyError::InUse { .. } => (StatusCode::CONFLICT, "cluster_in_use"),
            CopyError::NotSource { .. } => (StatusCode::CONFLICT, "not_source"),
            CopyError::Stream(error) => match stream_refusal(error.clone()).code.name() {
                word @ "unknown_stream" => (StatusCode::NOT_FOUND, word),
                word => (StatusCode::SERVICE_UNAVAILABLE, word),
            },
            CopyError::Unavailable(_) => (StatusCode::SERVICE_UNAVAILABLE, "unavailable"),
        };
        Self(status, word, error.to_string())
    }
}

type ClustersAnswer<T> = Result<Json<T>, AdminRefusal>;

fn known(cluster: KnownCluster) -> ClusterView {
    ClusterView { name: cluster.name, address: Some(cluster.address), is_here: false }
}

/// This cluster, if it has a name, and the others.
pub(super) async fn list(State(shared): State<Arc<NodeShared>>) -> Json<Vec<ClusterView>> {
    let here =
        shared.copies.name().map(|name| ClusterView { name: name.to_owned(), address: None, is_here: true });
    Json(here.into_iter().chain(shared.copies.clusters().into_iter().map(known)).collect())
}

pub(super) async fn describe(
    State(shared): State<Arc<NodeShared>>,
    Path(name): Path<String>,
) -> ClustersAnswer<ClusterView> {
    let Json(views) = list(State(shared)).await;
    let found = views.into_iter().find(|view| view.name == name);
    Ok(Json(found.ok_or(CopyError::UnknownCluster(name))?))
}

pub(super) async fn add(
    State(shared): State<Arc<NodeShared>>,
    Path(name): Path<String>,
    body: Result<Json<JsonObject<AddCluster>>, JsonRejection>,
) -> ClustersAnswer<ClusterView> {
    let Json(JsonObject(add)) = body?;
    let added = shared.copies.add(&name, &add.address).await?;
    tracing::info!(cluster = added.name, address = added.address, "added a cluster");
    Ok(Json(known(added)))
}

pub(super) async fn remove(
    State(shared): State<Arc<NodeShared>>,
    Path(name): Path<String>,
) -> ClustersAnswer<serde_json::Value> {
    shared.copies.remove(&name).await?;
    tracing::info!(cluster = name, "removed a cluster");
    Ok(Json(serde_json::json!({})))
}

pub(super) async fn place(
    State(shared): State<Arc<NodeShared>>,
    Path(stream): Path<String>,
    body: Result<Json<JsonObject<PlaceStream>>, JsonRejection>,
) -> ClustersAnswer<CopyTreeView> {
    let Json(JsonObject(PlaceStream { source, to, hops })) = body?;
    let edges = |hops: Vec<[String; 2]>| hops.into_iter().map(|[from, to]| TreeEdge { from, to }).collect();
    let plan = shared.copies.place(&PlaceRequest { stream, source, to, hops: hops.map(edges) }).await?;
    let hops = plan.hops.iter().map(|edge| hop_view(edge, None)).collect();
    Ok(Json(view(&plan, hops)))
}

pub(super) async fn tree(
    State(shared): State<Arc<NodeShared>>,
    Path(stream): Path<String>,
) -> ClustersAnswer<CopyTreeView> {
    let (plan, states) = shared.copies.tree(&stream).await?;
    let hops = states.iter().map(|state| hop_view(&state.edge, Some(state))).collect();
    Ok(Json(view(&plan, hops)))
}

fn view(plan: &CopyTree, hops: Vec<CopyHopView>) -> CopyTreeView {
    CopyTreeView {
        stream: plan.stream.name().to_owned(),
        plan: plan.number,
        source: plan.source.clone(),
        hops,
    }
}

fn hop_view(edge: &TreeEdge, state: Option<&TreeHopState>) -> CopyHopView {
    let mut view = CopyHopView { from: edge.from.clone(), to: edge.to.clone(), ..CopyHopView::default() };
    match state.map(|state| &state.state) {
        None => {}
        Some(Err(why)) => view.why = Some(why.clone()),
        Some(Ok(hop)) => {
            view.plan = Some(hop.plan);
            view.is_copying = hop.is_copying && hop.from == edge.from;
            view.why = Some(hop.why.clone()).filter(|why| !why.is_empty());
            view.behind_records = Some(hop.behind_records);
            view.behind_bytes = Some(hop.behind_bytes);
            view.delay_ms = hop.delay_ms;
            view.records = Some(hop.records);
            view.bytes = Some(hop.bytes);
            view.sessions = Some(hop.sessions);
        }
    }
    view
}
