//! `/v1/cells`: the two of the node's log, and those that were created.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use tailwater_cache::Cell;
use tailwater_sqs::JsonObject;

use super::refusal::AdminRefusal;
use crate::NodeShared;
use crate::api::{CellView, CreateCell, DrainCell, LoadCell, ResizeCell, RestoreCell, RollCell};
use crate::cells::{self, CellError};

/// How often a cell is emptied until all of its backends have said that they did: one that is busy is late at times.
const CLEAR_ATTEMPTS: usize = 3;

impl From<CellError> for AdminRefusal {
    fn from(error: CellError) -> Self {
        let (status, word) = match &error {
            CellError::Invalid(_) => (StatusCode::BAD_REQUEST, "malformed"),
            CellError::Unknown(_) => (StatusCode::NOT_FOUND, "unknown_cell"),
            CellError::Exists(_) => (StatusCode::CONFLICT, "cell_exists"),
            CellError::Changing(_) | CellError::Rolling(_) => (StatusCode::CONFLICT, "cell_changing"),
            CellError::Unavailable(_) => (StatusCode::SERVICE_UNAVAILABLE, "unavailable"),
        };
        Self(status, word, error.to_string())
    }
}

type CellsAnswer<T> = Result<Json<T>, AdminRefusal>;

pub(super) async fn list(State(shared): State<Arc<NodeShared>>) -> Json<Vec<CellView>> {
    let mut views: Vec<CellView> = shared.cells().map(|cell| cell.view()).collect();
    views.extend(shared.created.views().await);
    Json(views)
}

pub(super) async fn create(
    State(shared): State<Arc<NodeShared>>,
    body: Result<Json<JsonObject<CreateCell>>, JsonRejection>,
) -> CellsAnswer<CellView> {
    let Json(JsonObject(create)) = body?;
    let created = shared.created.create(create).await?;
    tracing::info!(cell = created.name, id = created.config_id, "created a cell");
    Ok(Json(created))
}

pub(super) async fn describe(
    State(shared): State<Arc<NodeShared>>,
    Path(name): Path<String>,
) -> CellsAnswer<CellView> {
    let Json(views) = list(State(Arc::clone(&shared))).await;
    let found = views.into_iter().find(|view| view.name == name);
    let (Some(mut view), Some(cell)) = (found, cell_of(&shared, &name).await) else {
        return Err(CellError::Unknown(name).into());
    };
    cells::ask_backends(&cell, &mut view).await;
    Ok(Json(view))
}

/// The node's cell of that name.
async fn cell_of(shared: &NodeShared, name: &str) -> Option<Cell> {
    let of_log = shared.cells().find(|cell| cell.view().name == name).map(|cell| cell.cell.clone());
    match of_log {
        Some(cell) => Some(cell),
        None => shared.created.cell(name).await,
    }
}

pub(super) async fn resize(
    State(shared): State<Arc<NodeShared>>,
    Path(name): Path<String>,
    body: Result<Json<JsonObject<ResizeCell>>, JsonRejection>,
) -> CellsAnswer<CellView> {
    let Json(JsonObject(asked)) = body?;
    let of_log = shared.cells().find(|cell| cell.view().name == name);
    Ok(Json(match of_log {
        Some(cell) => cell.resize(asked).await?,
        None => shared.created.resize(&name, asked).await?,
    }))
}

pub(super) async fn load(
    State(shared): State<Arc<NodeShared>>,
    Path(name): Path<String>,
    body: Result<Json<JsonObject<LoadCell>>, JsonRejection>,
) -> CellsAnswer<CellView> {
    let Json(JsonObject(asked)) = body?;
    Ok(Json(shared.created.load(&name, asked).await?))
}

pub(super) async fn drain(
    State(shared): State<Arc<NodeShared>>,
    Path(name): Path<String>,
    body: Result<Json<JsonObject<DrainCell>>, JsonRejection>,
) -> CellsAnswer<CellView> {
    let Json(JsonObject(asked)) = body?;
    Ok(Json(shared.created.drain(&name, asked).await?))
}

pub(super) async fn restore(
    State(shared): State<Arc<NodeShared>>,
    Path(name): Path<String>,
    body: Result<Json<JsonObject<RestoreCell>>, JsonRejection>,
) -> CellsAnswer<CellView> {
    let Json(JsonObject(RestoreCell { backend })) = body?;
    Ok(Json(shared.created.restore(&name, backend).await?))
}

pub(super) async fn roll(
    State(shared): State<Arc<NodeShared>>,
    Path(name): Path<String>,
    body: Result<Json<JsonObject<RollCell>>, JsonRejection>,
) -> CellsAnswer<CellView> {
    let Json(JsonObject(RollCell { stop })) = body?;
    Ok(Json(shared.created.roll(&name, stop).await?))
}

pub(super) async fn clear(
    State(shared): State<Arc<NodeShared>>,
    Path(name): Path<String>,
) -> CellsAnswer<CellView> {
    let cell = cell_of(&shared, &name).await.ok_or_else(|| CellError::Unknown(name.clone()))?;
    if cell.configuration().mode.is_immutable() {
        let why =
            format!("the cell {name} is loaded as a whole: `tailwater cell load` replaces what it holds");
        return Err(CellError::Invalid(why).into());
    }
    let backends = cell.backends().len();
    let mut cleared = 0;
    for _ in 0..CLEAR_ATTEMPTS {
        cleared = cell.clear().await;
        if cleared == backends {
            tracing::info!(cell = name, "cleared");
            return describe(State(shared), Path(name)).await;
        }
    }
    Err(CellError::Unavailable(format!(
        "{cleared} of {backends} backends of the {name} cell were emptied, and the others did not answer: what they \
         hold they have as long as they run; clear it again when `tailwater cell ls` shows all of them live"
    ))
    .into())
}
