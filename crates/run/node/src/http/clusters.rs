//! `/v1/clusters` and `/v1/streams/NAME/tree`: other clusters, and what is copied to them.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use tailwater_copy::{
    ClusterEnds, CopyError, CopyTree, CrewView, KnownCluster, PlaceRequest, TreeEdge, TreeHopState,
};
use tailwater_sqs::JsonObject;

use super::refusal::AdminRefusal;
use crate::NodeShared;
use crate::api::{
    AddCluster, ClusterEndsView, ClusterView, CopyHopView, CopyTreeView, DrainCluster, DrainedCluster,
    PlaceStream,
};
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
            CopyError::SourceAlready(_) => (StatusCode::CONFLICT, "source_already"),
            CopyError::NoCopy { .. } => (StatusCode::CONFLICT, "no_copy"),
            CopyError::Draining(_) => (StatusCode::CONFLICT, "cluster_draining"),
            CopyError::TooManyForks { .. } => (StatusCode::CONFLICT, "too_many_forced_moves"),
            CopyError::Moving { .. } => (StatusCode::SERVICE_UNAVAILABLE, "moving"),
            CopyError::Aside { .. } => (StatusCode::SERVICE_UNAVAILABLE, "unavailable"),
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
    let KnownCluster { name, address, is_draining } = cluster;
    ClusterView { name, address: Some(address), is_here: false, is_draining }
}

/// This cluster, if it has a name, and the others.
pub(super) async fn list(State(shared): State<Arc<NodeShared>>) -> Json<Vec<ClusterView>> {
    let here =
        |name: &str| ClusterView { name: name.to_owned(), address: None, is_here: true, is_draining: false };
    let here = shared.copies.name().map(here);
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

pub(super) async fn drain(
    State(shared): State<Arc<NodeShared>>,
    Path(name): Path<String>,
    body: Result<Json<JsonObject<DrainCluster>>, JsonRejection>,
) -> ClustersAnswer<DrainedCluster> {
    let Json(JsonObject(DrainCluster { is_draining })) = body?;
    let (cluster, streams) = shared.copies.drain(&name, is_draining).await?;
    tracing::info!(cluster = name, is_draining, ?streams, "a cluster is drained, or not any more");
    Ok(Json(DrainedCluster { cluster: known(cluster), streams }))
}

pub(super) async fn place(
    State(shared): State<Arc<NodeShared>>,
    Path(stream): Path<String>,
    body: Result<Json<JsonObject<PlaceStream>>, JsonRejection>,
) -> ClustersAnswer<CopyTreeView> {
    let Json(JsonObject(PlaceStream { source, to, force, hops })) = body?;
    let copies = &shared.copies;
    let is_here = copies.name() == Some(&*source);
    let (plan, clusters) = match to {
        _ if force => {
            if !is_here || to.is_some() {
                let why = "a source is taken by force by a node of the cluster that shall have it, which is asked so; \
                           place the stream then";
                return Err(CopyError::Invalid(why.to_owned()).into());
            }
            let taken = copies.take_source(&stream).await?;
            (taken.plan, taken.clusters)
        }
        None if is_here => return Err(CopyError::Invalid("no clusters are given".to_owned()).into()),
        None => (copies.move_source(&stream, &source).await?, Vec::new()),
        Some(to) => {
            let edge = |[from, to]: [String; 2]| TreeEdge { from, to };
            let hops = hops.map(|hops| hops.into_iter().map(edge).collect());
            (copies.place(&PlaceRequest { stream, source, to, hops }).await?, Vec::new())
        }
    };
    let hops = plan.hops.iter().map(|edge| hop_view(edge, None)).collect();
    let clusters = clusters.into_iter().map(ends_view).collect();
    Ok(Json(CopyTreeView { clusters, ..view(&plan, hops) }))
}

fn ends_view(of: ClusterEnds) -> ClusterEndsView {
    let (ends, why) = match of.ends {
        Ok(ends) => (ends.iter().map(|end| end.next_offset.0).collect(), None),
        Err(why) => (Vec::new(), Some(why)),
    };
    ClusterEndsView { cluster: of.cluster, ends, why }
}

pub(super) async fn tree(
    State(shared): State<Arc<NodeShared>>,
    Path(stream): Path<String>,
) -> ClustersAnswer<CopyTreeView> {
    let (plan, states) = shared.copies.tree(&stream).await?;
    let hops = states.iter().map(|state| hop_view(&state.edge, Some(state))).collect();
    Ok(Json(view(&plan, hops)))
}

/// What copies streams to this cluster, and who runs that.
pub(super) async fn operations(State(shared): State<Arc<NodeShared>>) -> Json<CrewView> {
    Json(shared.copies.crew())
}

fn view(plan: &CopyTree, hops: Vec<CopyHopView>) -> CopyTreeView {
    CopyTreeView {
        stream: plan.stream.name().to_owned(),
        plan: plan.number,
        source: plan.source.clone(),
        hops,
        clusters: Vec::new(),
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
            view.waiting_shards = Some(hop.waiting_shards);
        }
    }
    view
}
