//! Health and metrics over HTTP for a process that is no node.
//!
//! | path | |
//! |---|---|
//! | `GET /healthz`, `/livez` | the process runs |
//! | `GET /readyz` | it does what it is for; 503 with the reason if not |
//! | `GET /metrics` | Prometheus |
//!
//! They tell no record. Nobody is asked who they are, and why a process is not ready may name streams and addresses.

use std::fmt;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::registry::Registry;
use tailwater_env::Env;
use tailwater_tls::Acceptor;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::config::AdminConfig;
use crate::http::{self, Limits};
use crate::metrics::{self, MetricsPage};

/// What a process tells of itself, at one moment.
#[derive(Clone, Debug, Default)]
pub struct ProbeTold {
    /// Why it is not ready, if it is not.
    pub unready: Option<String>,
    /// Names without `_total`, what they mean, and values.
    pub counters: Vec<(&'static str, &'static str, u64)>,
    /// Names, what they mean, and values.
    pub gauges: Vec<(&'static str, &'static str, f64)>,
    /// Metrics that have labels.
    pub families: Vec<ProbeFamily>,
}

/// A metric with a value for each combination of values of its labels.
#[derive(Clone, Debug)]
pub struct ProbeFamily {
    /// Its name, without `_total`.
    pub name: &'static str,
    /// What it means.
    pub help: &'static str,
    /// Whether it only grows.
    pub is_counter: bool,
    /// The names of its labels.
    pub labels: Vec<&'static str>,
    /// Values of the labels, in their order, and the value.
    pub values: Vec<(Vec<String>, f64)>,
}

/// Asks a process what there is to tell. It is called for each request, and does not wait.
pub type ProbeRead = Arc<dyn Fn() -> ProbeTold + Send + Sync>;

/// Answers probes at `listener` until `stopped`.
pub async fn serve(env: Env, listener: TcpListener, read: ProbeRead, stopped: oneshot::Receiver<()>) {
    let routes = Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(page))
        .with_state(read);
    let limits = Limits { name: "probes", section: "--http", ..AdminConfig::default().into() };
    http::serve(env, listener, routes, limits, Acceptor::plain(), stopped).await;
}

async fn ready(State(read): State<ProbeRead>) -> Response {
    match read().unready {
        None => "ok\n".into_response(),
        Some(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")).into_response(),
    }
}

async fn page(State(read): State<ProbeRead>) -> Response {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(ProbePage(read())));
    let mut page = String::new();
    prometheus_client::encoding::text::encode(&mut page, &registry).expect("a string takes everything");
    ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], page).into_response()
}

/// A page of metrics that is about to be written.
#[derive(Debug)]
struct ProbePage(ProbeTold);

impl Collector for ProbePage {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut page = MetricsPage(encoder);
        metrics::build(&mut page)?;
        let ready = u64::from(self.0.unready.is_none());
        page.gauge("tailwater_ready", "1 if it is ready, as /readyz says.", ready)?;
        for (name, help, value) in &self.0.gauges {
            page.gauge(name, help, *value)?;
        }
        for (name, help, value) in &self.0.counters {
            page.counter(name, help, *value)?;
        }
        for ProbeFamily { name, help, is_counter, labels, values } in &self.0.families {
            let with = |values: &[String]| -> Vec<(&'static str, String)> {
                labels.iter().copied().zip(values.iter().cloned()).collect()
            };
            page.family(name, help, *is_counter, values.iter().map(|(keys, value)| (with(keys), *value)))?;
        }
        metrics::process(&mut page)
    }
}
