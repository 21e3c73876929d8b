//! This node as a replica of its region's proxy, and what of it is reached over HTTP.

mod http;
mod hub;
mod quotas;
mod ring;
mod ws;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use axum::middleware::from_fn_with_state;
use parking_lot::Mutex;
use tailwater_broadcast::client::ReplicasAt;
use tailwater_broadcast::message::ReplicaId;
use tailwater_broadcast::replica;
use tailwater_broadcast_server::disk::{Disk, DiskOptions};
use tailwater_broadcast_server::{ConfigurationAt, Quotas, ReplicaServerConfig, Server, Snapshot, fresh_id};
use tailwater_env::{Env, Progress, Task};
use tailwater_login::Users;
use tailwater_meta::Meta;
use tailwater_tls::Dialer;
use tokio::net::TcpListener;
use tokio::sync::{oneshot, watch};

use crate::api::{BroadcastStreamView, BroadcastView, DelayView, RegionView, ReplicaView, SharingView};
use crate::config::{BroadcastConfig, QuotasConfig};
use crate::gate::FrontGate;
use crate::http::{Identities, Limits, identify};

/// Bytes of a request's head: a token that names a thousand streams fits in.
const HEADER_BYTES_MAX: usize = 384 << 10;

/// The replica, and what it was started with.
pub struct Broadcast {
    server: Server,
    id: ReplicaId,
    config: BroadcastConfig,
    /// Makes the connections to replicas.
    dialer: Dialer,
    quotas: Option<Arc<Quotas>>,
    http: Mutex<Option<Http>>,
}

/// The HTTP in front of it; it ends when this is dropped.
struct Http {
    address: SocketAddr,
    front: Arc<http::BroadcastFront>,
    _stop: oneshot::Sender<()>,
    /// Its WebSockets end when it closes.
    _stopping: watch::Sender<()>,
    _task: Task,
}

impl Broadcast {
    /// Starts it; it is in the region's chain some time later.
    pub async fn start(
        env: &Env,
        listener: TcpListener,
        config: &BroadcastConfig,
        (data, meta, users): (&Path, &Arc<dyn Meta>, &Arc<Users>),
        gate: &FrontGate,
        progress: &Progress,
    ) -> anyhow::Result<Self> {
        let disk = open_disk(env, config, &data.join("broadcast"), progress).await?;
        let id = disk.as_ref().map_or_else(|| fresh_id(env), Disk::id);
        let configuration = match config.configuration.as_str() {
            _ if config.decides() => ConfigurationAt::Here(Arc::clone(meta)),
            there => ConfigurationAt::There(there.to_owned()),
        };
        let (acceptor, dialer) = gate.broadcast(config.tls);
        let given = &config.quotas;
        let quotas =
            (*given != QuotasConfig::default()).then(|| Quotas::new(env, given.publisher(), given.region()));
        let server = ReplicaServerConfig {
            replica: replica::Config {
                advertise_ms: config.advertise_ms,
                damping: config.damping,
                silence_ms: config.silence_ms,
                streams_max: config.streams_max,
                stream_bytes_max: config.stream_bytes_max,
                region_bytes_max: config.region_bytes_max.max(config.stream_bytes_max),
                retention_ms: config.retention_ms,
                ..replica::Config::new(&config.region, id)
            },
            advertised: Some(config.advertised.clone()).filter(|advertised| !advertised.is_empty()),
            regions: config.regions.clone(),
            configuration,
            joins: config.replica,
            silence_ms: config.silence_ms,
            lost_ms: config.lost_ms,
            connections_max: config.connections_max,
            quotas: quotas.clone(),
            authorizer: Arc::clone(&gate.authorizer),
            acceptor,
            dialer: dialer.clone(),
        };
        let server = Server::start_with(env, listener, server, disk)?;
        let tls = dialer.is_secured();
        tracing::info!(broadcast = %server.address(), region = config.region, tls, "broadcasts are carried");
        let broadcast = Self { server, id, config: config.clone(), dialer, quotas, http: Mutex::default() };
        if config.http.enabled {
            let http = broadcast.serve_http(env, users, gate).await?;
            *broadcast.http.lock() = Some(http);
        }
        Ok(broadcast)
    }

    async fn serve_http(&self, env: &Env, users: &Arc<Users>, gate: &FrontGate) -> anyhow::Result<Http> {
        let config = &self.config.http;
        let listener = TcpListener::bind(config.listen).await.with_context(|| {
            let listen = config.listen;
            format!("broadcasts over HTTP can't be answered on {listen}: see listen below [broadcast.http]")
        })?;
        let address = listener.local_addr()?;
        let handle = self.server.handle().clone();
        let stopping = watch::Sender::new(());
        let front = http::BroadcastFront::new(
            env,
            self.config.clone(),
            handle,
            self.regions(),
            stopping.subscribe(),
            Arc::clone(&gate.authorizer),
        );
        let limits = Limits {
            name: "broadcast HTTP",
            section: "[broadcast.http]",
            connections_max: config.connections_max,
            header_bytes_max: HEADER_BYTES_MAX,
            body_bytes_max: config.body_bytes_max,
            bodies_bytes_max: config.bodies_bytes_max,
            timeout: Duration::from_millis(config.timeout_ms),
        };
        let (stop, stopped) = oneshot::channel();
        let acceptor = gate.acceptor("broadcast HTTP", config.tls);
        let tls = acceptor.is_secured();
        let identities = Identities { env: env.clone(), users: Arc::clone(users), is_secured: tls };
        let router = Arc::clone(&front).router().layer(from_fn_with_state(identities, identify));
        let serve = crate::http::serve(env.clone(), listener, router, limits, acceptor, stopped);
        tracing::info!(http = %address, tls, "broadcasts are published and heard over HTTP");
        Ok(Http {
            address,
            front,
            _stop: stop,
            _stopping: stopping,
            _task: env.spawn("broadcast-http", serve),
        })
    }

    /// Ends HTTP; completes when all WebSockets were told.
    pub async fn close_http(&self) {
        let Some(http) = self.http.lock().take() else { return };
        let front = Arc::clone(&http.front);
        // What is left of it here is what tells them.
        drop(http);
        front.closed().await;
    }

    /// Makes what was held durable; to be called when the node stops.
    pub async fn close(&self) {
        self.server.stop().await;
    }

    /// Where it is reached over HTTP.
    pub fn http(&self) -> Option<SocketAddr> {
        self.http.lock().as_ref().map(|http| http.address)
    }

    /// Batches of publishers that had to wait for a quota, and requests that were refused for one.
    pub fn throttled(&self) -> (u64, u64) {
        let delayed = self.quotas.as_ref().map_or(0, |quotas| quotas.delayed());
        (delayed, self.http.lock().as_ref().map_or(0, |http| http.front.throttled()))
    }

    /// The replicas of each region; of its own one, this.
    pub fn regions(&self) -> BTreeMap<String, ReplicasAt> {
        let (address, region) = self.at();
        let mut regions = self.config.regions.clone();
        regions.insert(region, vec![address]);
        let at = |addresses| ReplicasAt::new(addresses, self.dialer.clone());
        regions.into_iter().map(|(region, addresses)| (region, at(addresses))).collect()
    }

    /// Whether connections to it, and to all other replicas, are in TLS.
    pub fn is_secured(&self) -> bool {
        self.dialer.is_secured()
    }

    /// How it stands; `None` while the node stops.
    pub async fn snapshot(&self) -> Option<Snapshot> {
        self.server.handle().snapshot().await
    }

    /// Where it is reached, and its region.
    pub fn at(&self) -> (String, String) {
        let bound = self.server.address().to_string();
        let advertised = Some(&self.config.advertised).filter(|advertised| !advertised.is_empty());
        (advertised.cloned().unwrap_or(bound), self.config.region.clone())
    }

    /// What `/v1/broadcast` tells.
    pub fn view(&self, snapshot: &Snapshot) -> BroadcastView {
        let (address, region) = self.at();
        let chain = &snapshot.chain;
        let members = chain.members.iter().enumerate().map(|(place, member)| ReplicaView {
            id: shown(member.id),
            address: member.address.clone(),
            role: role(place, chain.members.len()).to_owned(),
        });
        let joining = chain.joining.iter().map(|member| ReplicaView {
            id: shown(member.id),
            address: member.address.clone(),
            role: "joining".to_owned(),
        });
        let chain: Vec<ReplicaView> = members.chain(joining).collect();
        let id = shown(self.id);
        let own = chain.iter().find(|replica| replica.id == id).map(|replica| replica.role.clone());
        let counters = snapshot.counters;
        let (delayed, throttled) = self.throttled();
        BroadcastView {
            region,
            replica: id,
            address,
            tls: self.is_secured(),
            role: own.unwrap_or_else(|| "none".to_owned()),
            answers: snapshot.is_tail,
            place: snapshot.place,
            epoch: snapshot.chain.epoch,
            lineage: format!("{:x}", snapshot.chain.lineage),
            chain,
            by_region: self.by_region(snapshot),
            regions: self.config.regions.clone(),
            connections: snapshot.connections,
            streams: snapshot.streams.len(),
            sharing: SharingView {
                members: snapshot.region.members,
                view: snapshot.region.view,
                standing: snapshot.region.standing,
                requests: snapshot.region.requests,
                dropped: snapshot.region.dropped,
                events: snapshot.region.events,
                bytes: snapshot.region.bytes,
            },
            published: counters.published,
            repeated: counters.repeated,
            refused: counters.refused,
            followed: counters.followed,
            remote: counters.remote,
            moved: counters.moved,
            gaps: counters.gaps,
            left_out: counters.left_out + snapshot.region.left_out,
            removed: counters.removed,
            delayed,
            throttled,
            bridges: Vec::new(),
        }
    }

    fn by_region(&self, snapshot: &Snapshot) -> BTreeMap<String, RegionView> {
        let own = [(self.config.region.clone(), RegionView::default())];
        let others = self.config.regions.keys().map(|region| (region.clone(), RegionView::default()));
        let mut views: BTreeMap<String, RegionView> = others.chain(own).collect();
        for stream in &snapshot.streams {
            let view = views.entry(stream.stream.region().to_owned()).or_default();
            view.lineage = format!("{:x}", stream.lineage);
            view.streams += 1;
            view.events += stream.held;
            view.live += stream.live;
        }
        for (region, delays) in &snapshot.delays {
            let batches = delays.count();
            let [p50_ms, p90_ms, p99_ms] = [50, 90, 99].map(|percent| delays.percentile_ms(percent));
            let mean_ms = delays.sum_ms() as f64 / batches.max(1) as f64;
            let delay = DelayView { batches, p50_ms, p90_ms, p99_ms, mean_ms };
            views.entry(region.clone()).or_default().delay = Some(delay).filter(|_| batches > 0);
        }
        for view in views.values_mut() {
            view.tombstone_ratio = tombstone_ratio(view.events, view.live);
        }
        views
    }
}

/// The part of the events up to a number that tombstones stand for.
fn tombstone_ratio(held: u64, live: u64) -> f64 {
    if held == 0 { 0.0 } else { held.saturating_sub(live) as f64 / held as f64 }
}

/// The replica's disk in `dir`, if this node is one and some streams are kept there.
async fn open_disk(
    env: &Env,
    config: &BroadcastConfig,
    dir: &Path,
    progress: &Progress,
) -> anyhow::Result<Option<Disk>> {
    let durability = config.durabilities();
    if !config.replica {
        anyhow::ensure!(
            env.disk().list(dir).is_err(),
            "[broadcast] replica = false, but {0} has events that nobody else may have: once the region's other replicas have \
             them as well, move {0} away",
            dir.display()
        );
        return Ok(None);
    }
    if !durability.needs_disk() {
        anyhow::ensure!(
            env.disk().list(dir).is_err(),
            "[broadcast] durability = \"memory\", but {0} has events from before, which would be out of date when they \
             are used again: remove {0}",
            dir.display()
        );
        return Ok(None);
    }
    let mut options = DiskOptions {
        checkpoint_bytes: config.checkpoint_bytes,
        progress: progress.clone(),
        ..DiskOptions::new(durability)
    };
    options.journal.sync_interval = Duration::from_millis(config.sync_interval_ms);
    let (opened, answer) = oneshot::channel();
    let (in_env, dir, region) = (env.clone(), dir.to_owned(), config.region.clone());
    let _task = env.spawn_dedicated("broadcast-open", async move {
        let _ = opened.send(Disk::open(&in_env, &dir, &region, options));
    });
    Ok(Some(answer.await?.context("the node can't use the events that it kept of broadcasts")?))
}

/// A replica's number: random, and too large for the numbers of some readers of JSON.
fn shown(id: ReplicaId) -> String {
    format!("{id:016x}")
}

fn role(place: usize, members: usize) -> &'static str {
    match place {
        0 if members == 1 => "only",
        0 => "head",
        place if place + 1 == members => "tail",
        _ => "middle",
    }
}

/// What `/v1/broadcast/streams` tells.
pub fn streams(snapshot: &Snapshot) -> Vec<BroadcastStreamView> {
    let view = |stream: &tailwater_broadcast_server::StreamSnapshot| BroadcastStreamView {
        stream: stream.stream.to_string(),
        source: stream.source.clone(),
        lineage: format!("{:x}", stream.lineage),
        last: stream.last,
        held: stream.held,
        live: stream.live,
        stored: stream.stored,
        bytes: stream.bytes,
        tombstone_ratio: tombstone_ratio(stream.held, stream.live),
    };
    snapshot.streams.iter().map(view).collect()
}

#[cfg(test)]
mod tests {
    use tailwater_broadcast::Durability;

    use super::*;

    #[tokio::test]
    async fn a_node_that_would_leave_events_unused_on_its_disk_does_not_start() {
        let dir = tempfile::tempdir().expect("a directory");
        let refusal = async |change: fn(&mut BroadcastConfig)| {
            let mut config = BroadcastConfig::default();
            change(&mut config);
            let opened = open_disk(&Env::real(), &config, dir.path(), &Progress::default()).await;
            opened.map(drop).expect_err("refused").to_string()
        };
        let path = dir.path().display().to_string();
        let text = refusal(|config| config.replica = false).await;
        assert!(text.contains("replica = false") && text.contains(&format!("move {path} away")), "{text}");
        let text = refusal(|config| config.durability = Durability::Memory).await;
        assert!(text.contains("durability = \"memory\"") && text.contains(&path), "{text}");
    }
}
