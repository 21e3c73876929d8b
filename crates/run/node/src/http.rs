//! Admin HTTP: health, metrics, and `/v1`, which the command line itself uses.
//!
//! | path | |
//! |---|---|
//! | `GET /healthz`, `/livez` | the process runs |
//! | `GET /readyz` | the log takes appends; 503 with the reason if not, recovery among them |
//! | `GET /metrics` | Prometheus |
//! | `GET /v1/node` | addresses, cells |
//! | `GET, POST /v1/cells`, `GET /v1/cells/{cell}` | lists the cells, creates one, describes one |
//! | `POST /v1/cells/{cell}/resize`, and `drain` or `restore` there | begins to change its backends |
//! | `POST /v1/cells/{cell}/roll` | begins or ends to restart them one after another |
//! | `POST /v1/cells/{cell}/load` | has a load read that its backends have |
//! | `POST /v1/cells/{cell}/clear` | forgets all that a cell holds |
//! | `GET, POST /v1/streams` | lists, creates |
//! | `GET, PATCH, DELETE /v1/streams/{name}` | describes, changes, deletes |
//! | `POST /v1/streams/{name}/truncate` | removes the records before a position |
//! | `PUT /v1/streams/{name}/restore` | brings removed records back from cold storage |
//! | `GET, PUT /v1/streams/{name}/tree` | the copy tree and how far its hops are; places the stream |
//! | `GET /v1/operations` | the operations that copy streams to this cluster, and the workers that run them |
//! | `GET /v1/clusters` | the clusters that this one knows |
//! | `GET, PUT, DELETE /v1/clusters/{name}` | describes, adds, removes one |
//! | `POST /v1/clusters/{name}/drain` | begins or ends to drain one |
//! | `GET /v1/broadcast` | the node as a replica: chain, place in it, counters |
//! | `GET /v1/broadcast/streams` | how far it is in each broadcast stream, and what it stores |
//! | `GET /v1/groups` | Kafka's groups, with their lag |
//! | `GET, DELETE /v1/groups/{name}` | describes, deletes |
//! | `POST /v1/groups/{name}/reset` | commits a position for a group without members |
//! | `GET /v1/users` | who may log in |
//! | `PUT, DELETE /v1/users/{name}` | gives a user a password, removes one |
//! | `GET, POST /v1/tokens` | lists the tokens, makes one |
//! | `DELETE /v1/tokens/{name}` | removes one |
//! | `GET, POST /v1/accounts` | lists the accounts of SQS's clients, makes a key of one |
//! | `DELETE /v1/accounts/{id}` | removes one, or one of its keys |
//! | `GET, POST, DELETE /v1/rules` | lists, adds, removes rules about who may do what |
//! | `GET, PUT, DELETE /v1/quotas` | lists quotas, sets one, removes one |
//! | `GET /v1/audit` | who was let and refused, of late |

mod accounts;
mod broadcast;
mod cells;
mod clusters;
mod cold;
mod connections;
mod groups;
mod identity;
mod nodes;
mod quotas;
mod refusal;
mod rights;
mod rules;
mod tokens;
mod users;

use std::sync::{Arc, OnceLock};

use axum::extract::rejection::JsonRejection;
use axum::extract::{DefaultBodyLimit, Path, Request, State};
use axum::http::{StatusCode, Uri, header};
use axum::middleware;
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post, put};
use axum::{Extension, Json, Router};
pub use connections::{ConnectionSender, Limits, serve};
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
pub(crate) use identity::{Identities, identify};
pub(crate) use rights::ask;
use tailwater_access::{AccessRequest, Authorizer, Protocol, Resource};
use tailwater_env::Progress;
use tailwater_format::call::{CallErrorCode, CallRefusal};
use tailwater_format::{ShardId, ShardNumber, Start, TransactionId};
use tailwater_log::{LocateRead, LogStreamInfo, ReadError};
use tailwater_rma::Address;
use tailwater_sqs::JsonObject;

use crate::NodeShared;
use crate::api::{BroadcastAt, CreateStream, ErrorBody, NodeView, StreamView, Truncate, Truncated};
use crate::calls::{read_refusal, stream_refusal};
use crate::{metrics, views};

type AdminAnswer<T> = Result<Json<T>, Failed>;

/// The routes of a node that has started.
fn router(shared: Arc<NodeShared>) -> Router {
    Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(render_metrics))
        .route("/v1/node", get(node))
        .route("/v1/node/drain", post(nodes::drain))
        .route("/v1/cells", get(cells::list).post(cells::create))
        .route("/v1/cells/{cell}", get(cells::describe))
        .route("/v1/cells/{cell}/clear", post(cells::clear))
        .route("/v1/cells/{cell}/load", post(cells::load))
        .route("/v1/cells/{cell}/resize", post(cells::resize))
        .route("/v1/cells/{cell}/drain", post(cells::drain))
        .route("/v1/cells/{cell}/restore", post(cells::restore))
        .route("/v1/cells/{cell}/roll", post(cells::roll))
        .route("/v1/streams", get(list_streams).post(create_stream))
        .route("/v1/streams/{name}", get(describe_stream).patch(cold::alter).delete(delete_stream))
        .route("/v1/streams/{name}/truncate", post(truncate_stream))
        .route("/v1/streams/{name}/restore", put(cold::restore))
        .route("/v1/streams/{name}/tree", get(clusters::tree).put(clusters::place))
        .route("/v1/operations", get(clusters::operations))
        .route("/v1/clusters", get(clusters::list))
        .route("/v1/clusters/{name}/drain", post(clusters::drain))
        .route("/v1/clusters/{name}", get(clusters::describe).put(clusters::add).delete(clusters::remove))
        .route("/v1/broadcast", get(broadcast::describe))
        .route("/v1/broadcast/streams", get(broadcast::streams))
        .route("/v1/groups", get(groups::list))
        .route("/v1/groups/{name}", get(groups::describe).delete(groups::delete))
        .route("/v1/groups/{name}/reset", post(groups::reset))
        .route("/v1/users", get(users::list))
        .route("/v1/users/{name}", put(users::set).delete(users::remove))
        .route("/v1/tokens", get(tokens::list).post(tokens::create))
        .route("/v1/tokens/{name}", delete(tokens::remove))
        .route("/v1/accounts", get(accounts::list).post(accounts::add_key))
        .route("/v1/accounts/{id}", delete(accounts::remove))
        .route("/v1/rules", get(rules::list).post(rules::add).delete(rules::remove))
        .route("/v1/quotas", get(quotas::list).put(quotas::set).delete(quotas::remove))
        .route("/v1/audit", get(rules::audit))
        .fallback(unknown_path)
        .layer(middleware::from_fn_with_state(Arc::clone(&shared), rights::authorized))
        .layer(middleware::from_fn_with_state(Arc::clone(&shared), quotas::bounded))
        .layer(middleware::from_fn_with_state(shared.identities.clone(), identify))
        // The connection has bounded it already.
        .layer(DefaultBodyLimit::disable())
        .with_state(shared)
}

/// The routes of a node that may not have started yet: until it has, that is what it answers.
pub(crate) struct Starting {
    authorizer: Arc<dyn Authorizer>,
    progress: Progress,
    started: OnceLock<TowerToHyperService<Router>>,
}

impl Starting {
    /// None has started; it is as far as `progress` tells.
    pub(crate) fn new(authorizer: Arc<dyn Authorizer>, progress: Progress) -> Arc<Self> {
        Arc::new(Self { authorizer, progress, started: OnceLock::new() })
    }

    /// The routes, which are the node's own once there is one.
    pub(crate) fn routes(self: Arc<Self>) -> Router {
        Router::new().fallback(starting).layer(DefaultBodyLimit::disable()).with_state(self)
    }

    /// The node has started.
    pub(crate) fn started(&self, shared: Arc<NodeShared>) {
        // A node starts once.
        let _ = self.started.set(TowerToHyperService::new(router(shared)));
    }
}

async fn starting(State(starting): State<Arc<Starting>>, request: Request) -> Response {
    if let Some(routes) = starting.started.get() {
        return match routes.call(request).await {
            Ok(answer) => answer,
            Err(never) => match never {},
        };
    }
    if let Err(denied) = ask(&*starting.authorizer, Protocol::Http, &request) {
        return rights::refused(denied).into_response();
    }
    let stage = starting.progress.stage();
    let why = format!("the node takes no requests yet: it is at {stage}");
    match request.uri().path() {
        "/healthz" | "/livez" => "ok\n".into_response(),
        "/readyz" => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")).into_response(),
        _ => Failed(CallRefusal::new(CallErrorCode::Unavailable, why)).into_response(),
    }
}

/// An error as JSON.
fn refused(status: StatusCode, code: CallErrorCode, message: String) -> Response {
    (status, Json(ErrorBody { error: code.name().to_owned(), message })).into_response()
}

async fn unknown_path(uri: Uri) -> Response {
    let why = format!(
        "there is no {}: /healthz, /readyz, /metrics, /v1/node, /v1/cells, /v1/streams, /v1/clusters, /v1/broadcast, /v1/groups, \
         /v1/users, /v1/tokens, /v1/accounts, /v1/rules, /v1/quotas, /v1/audit",
        uri.path()
    );
    refused(StatusCode::NOT_FOUND, CallErrorCode::Malformed, why)
}

/// An error as JSON, under the status that fits.
struct Failed(CallRefusal);

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        let CallRefusal { code, message } = self.0;
        let status = match code {
            CallErrorCode::Malformed => StatusCode::BAD_REQUEST,
            CallErrorCode::UnknownStream | CallErrorCode::UnknownShard => StatusCode::NOT_FOUND,
            CallErrorCode::StreamExists => StatusCode::CONFLICT,
            CallErrorCode::OffsetOutOfRange => StatusCode::UNPROCESSABLE_ENTITY,
            CallErrorCode::NotAuthorized => StatusCode::FORBIDDEN,
            code if code.is_retriable() => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        refused(status, code, message)
    }
}

impl From<JsonRejection> for Failed {
    fn from(rejection: JsonRejection) -> Self {
        Failed(CallRefusal::new(CallErrorCode::Malformed, rejection.body_text()))
    }
}

impl NodeShared {
    /// Whether something is told to a sender who asked for all that there is.
    fn shows(&self, sender: &ConnectionSender, resource: Resource<'_>) -> bool {
        let asked = AccessRequest { protocol: Protocol::Http, operation: "GET", resource };
        self.gate.authorizer.shows(&sender.peer, asked)
    }

    fn view(&self, name: &str) -> Result<StreamView, Failed> {
        let description = self.log.describe(name).map_err(|error| Failed(stream_refusal(error)))?;
        Ok(views::stream_view(&description, |shard| self.log.tail_writer().cached(shard)))
    }
}

async fn ready(State(shared): State<Arc<NodeShared>>) -> Response {
    match shared.log.health() {
        Ok(()) => "ok\n".into_response(),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")).into_response(),
    }
}

async fn render_metrics(State(shared): State<Arc<NodeShared>>) -> Response {
    ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], metrics::render(&shared).await).into_response()
}

async fn node(State(shared): State<Arc<NodeShared>>) -> Json<NodeView> {
    Json(NodeView {
        id: shared.id.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        data: shared.data,
        data_tls: matches!(shared.server.tcp_address(), Some(Address::Tls(_))),
        unix: shared.unix.clone(),
        kafka: shared.kafka.as_ref().and_then(|kafka| kafka.open_address()),
        kafka_tls: shared.kafka.as_ref().and_then(|kafka| kafka.secured_address()),
        kafka_login: shared.kafka.as_ref().and_then(|kafka| kafka.login_address(false)),
        kafka_tls_login: shared.kafka.as_ref().and_then(|kafka| kafka.login_address(true)),
        sqs: shared.sqs.as_ref().map(|sqs| sqs.address()),
        sqs_tls: shared.sqs.as_ref().is_some_and(|sqs| sqs.is_secured()),
        memcached: shared.memcached.as_ref().map(|memcached| memcached.address()),
        memcached_tls: shared.memcached.as_ref().is_some_and(|memcached| memcached.is_secured()),
        broadcast: shared.broadcast.as_ref().map(|broadcast| {
            let (address, region) = broadcast.at();
            BroadcastAt { region, address, tls: broadcast.is_secured(), http: broadcast.http() }
        }),
        cells: shared.cells().map(|cell| cell.view()).collect(),
    })
}

/// Those that whoever asks may know of.
async fn list_streams(
    State(shared): State<Arc<NodeShared>>,
    Extension(sender): Extension<ConnectionSender>,
) -> Json<Vec<StreamView>> {
    let mut streams = shared.log.list_streams();
    streams.retain(|stream| shared.shows(&sender, Resource::Stream(&stream.name)));
    // One that is deleted meanwhile is left out.
    let view = |stream: &LogStreamInfo| {
        let mut view = shared.view(&stream.name).ok()?;
        for shard in &mut view.shards {
            // There may be millions of all streams together.
            shard.segments = Vec::new();
        }
        Some(view)
    };
    Json(streams.iter().filter_map(view).collect())
}

async fn create_stream(
    State(shared): State<Arc<NodeShared>>,
    Extension(sender): Extension<ConnectionSender>,
    body: Result<Json<JsonObject<CreateStream>>, JsonRejection>,
) -> AdminAnswer<StreamView> {
    let Json(JsonObject(create)) = body?;
    let resource = Resource::Stream(&create.name);
    let asked = AccessRequest { protocol: Protocol::Http, operation: "create", resource };
    shared.gate.authorizer.authorize(&sender.peer, asked).map_err(rights::refused)?;
    let config = create.config().map_err(|error| Failed(stream_refusal(error.into())))?;
    let created = shared.log.create_stream(&create.name, config).await;
    let created = created.map_err(|error| Failed(stream_refusal(error)))?;
    tracing::info!(stream = create.name, id = %created.id, shards = created.config.shards, "created a stream");
    let chunk_bytes = created.config.chunk_bytes;
    let laid_out_for = shared.cells.as_ref().and_then(|[data, _]| data.laid_out_for());
    if let Some(value_bytes) = laid_out_for.filter(|values| u64::from(chunk_bytes) < values / 2) {
        tracing::warn!(
            stream = create.name,
            chunk_bytes,
            value_bytes,
            "the data cell is laid out for longer chunks: a cell full of such short ones evicts them early, and readers \
             fall back to calls; lower [data_cell] value_bytes if most of what is read has them"
        );
    }
    Ok(Json(shared.view(&create.name)?))
}

async fn describe_stream(
    State(shared): State<Arc<NodeShared>>,
    Path(name): Path<String>,
) -> AdminAnswer<StreamView> {
    Ok(Json(shared.view(&name)?))
}

async fn delete_stream(
    State(shared): State<Arc<NodeShared>>,
    Path(name): Path<String>,
) -> AdminAnswer<serde_json::Value> {
    shared.log.delete_stream(&name).await.map_err(|error| Failed(stream_refusal(error)))?;
    tracing::info!(stream = name, "deleted a stream");
    Ok(Json(serde_json::json!({ "deleted": name })))
}

/// The place in a log that somebody wrote.
fn target(start: Start) -> LocateRead {
    match start {
        Start::Beginning => LocateRead::Start,
        Start::End => LocateRead::End,
        Start::Offset(offset) => LocateRead::Offset(offset),
        Start::Last(count) => LocateRead::Last(count),
        // By default a record's transaction id is the running maximum of timestamps in ms.
        Start::TimeMs(id) | Start::TransactionId(id) => LocateRead::TransactionId(TransactionId(id)),
        Start::Dlsn(dlsn) => LocateRead::Dlsn(dlsn),
    }
}

async fn truncate_stream(
    State(shared): State<Arc<NodeShared>>,
    Path(name): Path<String>,
    body: Result<Json<JsonObject<Truncate>>, JsonRejection>,
) -> AdminAnswer<Vec<Truncated>> {
    let Json(JsonObject(truncate)) = body?;
    let before = truncate.before.parse::<Start>();
    let before = before.map_err(|why| Failed(CallRefusal::new(CallErrorCode::Malformed, why.to_string())))?;
    let before = target(before);
    let log = &shared.log;
    let stream = log.stream(&name).map_err(|error| Failed(stream_refusal(error)))?;
    let shards = match truncate.shard {
        Some(shard) => shard..shard.saturating_add(1),
        None => 0..stream.config.shards,
    };
    let refused = |shard: u32, CallRefusal { code, message }, what: &str| {
        Failed(CallRefusal::new(code, format!("shard {shard}: {message}; {what}")))
    };
    // All of them are found before one is changed: a place that one of them does not have is a mistake.
    let mut found = Vec::new();
    for shard in shards {
        let id = ShardId { stream: stream.id, shard: ShardNumber(shard) };
        let offset = match log.locate(id, before).await {
            Ok(location) => location.offset,
            Err(ReadError::Truncated { log_start }) => log_start,
            Err(error) => return Err(refused(shard, read_refusal(error), "nothing was truncated")),
        };
        found.push((shard, offset));
    }
    let mut done = Vec::new();
    for (shard, offset) in found {
        let log_start = log.truncate(&name, ShardNumber(shard), offset).await.map_err(|error| {
            let what =
                if done.is_empty() { "nothing was truncated" } else { "the shards before it were truncated" };
            refused(shard, stream_refusal(error), what)
        })?;
        done.push(Truncated { shard, log_start: log_start.0 });
    }
    Ok(Json(done))
}
