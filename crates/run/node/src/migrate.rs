//! `tailwater migrate`: what is in a data directory goes to where nodes share it. [`tailwater_log::migrate`] does it;
//! here it gets its directory, its place in ZooKeeper and its store.
//!
//! The directory's lock keeps a node, and a second run, from it. The turn in ZooKeeper does the same there. A run of
//! the same directory that was killed a moment ago keeps nobody waiting.
//!
//! Embedded queues and broadcasts are not moved. They stay in the directory, and with it on one node: where this node
//! is to serve them, the configuration names it (`[cluster] local_node`).

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Context;
use serde::Serialize;
use tailwater_env::{Env, Progress};
use tailwater_journal::ReplayError;
use tailwater_log::{
    LogConfig, MigrationError, MigrationOutcome, MigrationSource, MigrationStep, MigrationStream,
    MigrationTarget, SharedMetadata,
};
use tailwater_meta_zookeeper::{NodeMembership, NodeRecord, TurnWait, ZooKeeperMeta};
use tokio::sync::watch;

use crate::config::{Config, QueueStoreKind};
use crate::metadata::node_id;
use crate::queues;

/// What is to be done.
#[derive(Clone, Copy, Debug, Default)]
pub struct MigrateOptions {
    /// Nothing but to say what would be done.
    pub dry_run: bool,
    /// To remove the directory's own segments too, once it is moved.
    pub remove_segments: bool,
}

/// What there is to tell meanwhile.
#[derive(Debug)]
pub enum MigrateNews<'a> {
    /// It waits, for that.
    Waits(&'a str),
    /// The directory is read, and has that.
    Read(&'a MigrateReport),
    /// A step is done.
    Step(MigrationStep),
}

/// Who is told.
pub type MigrateTold<'a> = dyn Fn(MigrateNews<'_>) + Send + Sync + 'a;

/// What is in a directory, and what was done with it.
#[derive(Clone, Debug, Default, Serialize)]
pub struct MigrateReport {
    /// The data directory.
    pub data: String,
    /// Where metadata goes.
    pub metadata: String,
    /// Where segments go.
    pub segments: String,
    /// Whether everything is there now.
    pub is_moved: bool,
    /// Whether an earlier run had moved it.
    pub was_moved: bool,
    /// The streams, by their names.
    pub streams: Vec<MigrationStream>,
    /// How much else metadata has, by what it is.
    pub others: BTreeMap<&'static str, u64>,
    /// Queues, which stay in the directory.
    pub queues: usize,
    /// Whether there are events of broadcasts, which stay in the directory.
    pub has_broadcasts: bool,
    /// Segments that this run has copied.
    pub copied_segments: u64,
    /// Their bytes.
    pub copied_bytes: u64,
    /// Keys of metadata that this run has put or deleted.
    pub copied_keys: u64,
    /// Segments that are on this host's disk.
    pub segments_here: usize,
    /// Segments that were removed from it.
    pub segments_removed: usize,
    /// What somebody should know.
    pub notes: Vec<String>,
    /// Why it is not moved as it is, and what to do.
    pub refused: Option<String>,
}

/// What keys of metadata are, by their first two parts; those of streams are told with the streams.
const KINDS: [(&str, &str, &str); 12] = [
    ("log", "producers", "snapshots of producers"),
    ("kafka", "group", "groups"),
    ("kafka", "offsets", "blocks of positions of groups"),
    ("kafka", "config", "settings of Kafka's clients"),
    ("login", "user", "users"),
    ("login", "token", "tokens"),
    ("access", "rule", "rules"),
    ("access", "quota", "quotas"),
    ("sqs", "account", "accounts"),
    ("cell", "created", "cells"),
    ("copy", "plan", "plans of copies"),
    ("broadcast", "chain", "chains of broadcasts"),
];
/// What is told with the streams, below `log`.
const OF_STREAMS: [&str; 4] = ["stream", "name", "shard", "segment"];

fn kind_of(key: &str) -> Option<&'static str> {
    let mut parts = key.split('/');
    let (first, second) = (parts.next()?, parts.next().unwrap_or_default());
    if first == "log" && OF_STREAMS.contains(&second) {
        return None;
    }
    let kind = KINDS.iter().find(|(one, other, _)| (*one, *other) == (first, second));
    Some(kind.map_or("other keys", |(_, _, kind)| kind))
}

/// What is in the directory of `config`, and what would be moved.
fn report_of(config: &Config, source: &MigrationSource, env: &Env, queues: usize) -> MigrateReport {
    let broadcast = env.disk().list(&config.data.join("broadcast")).unwrap_or_default();
    let mut report = MigrateReport {
        data: config.data.display().to_string(),
        metadata: config.metadata.clone(),
        segments: config.segments.clone(),
        was_moved: source.moved_to.is_some(),
        queues,
        has_broadcasts: broadcast.iter().any(|name| name == "replica"),
        segments_here: source.segments_here(),
        ..MigrateReport::default()
    };
    if report.was_moved {
        return report;
    }
    for key in source.keys() {
        if let Some(kind) = kind_of(key) {
            *report.others.entry(kind).or_default() += 1;
        }
    }
    report.streams = source.streams();
    let single: Vec<&str> = report
        .streams
        .iter()
        .filter(|stream| stream.write_quorum == Some(1))
        .map(|stream| stream.name.as_str())
        .collect();
    report.refused = refused(config, source, &report);
    if !single.is_empty() {
        report.notes.push(format!(
            "these streams ask for one copy of each entry, and have one in BookKeeper too: {}. `tailwater stream alter NAME \
             --write-quorum default` before the move gives them as many as [ledgers] says",
            single.join(" ")
        ));
    }
    report.notes.extend(stays(config, &report));
    report
}

/// Why the directory is not moved as it is.
fn refused(config: &Config, source: &MigrationSource, report: &MigrateReport) -> Option<String> {
    let node = config.cluster.node_name();
    let queues = report.queues > 0 && config.sqs.enabled && config.queues.store == QueueStoreKind::Embedded;
    for (are_served, what, section) in [
        (queues, format!("{} queues", report.queues), "[sqs]"),
        (report.has_broadcasts && config.broadcast.enabled, "events of broadcasts".to_owned(), "[broadcast]"),
    ] {
        if are_served && !config.is_local_node() {
            let named = &config.cluster.local_node;
            return Some(format!(
                "this data directory has {what}, which stay in it, and [cluster] local_node names {named:?} as the node that \
                 serves them: name this one, {node:?}, or go without them: enabled = false below {section}"
            ));
        }
    }
    if source.segments_cold() > 0 && config.cold.url.is_empty() {
        return Some(format!(
            "{} segments are in cold storage alone: set url below [cold] to where that is",
            source.segments_cold()
        ));
    }
    source.refused()
}

/// What becomes of what is not moved.
fn stays(config: &Config, report: &MigrateReport) -> Vec<String> {
    let dir = &report.data;
    let queues = (report.queues > 0).then(|| (format!("{} queues", report.queues), config.sqs.enabled));
    let broadcasts =
        report.has_broadcasts.then(|| ("events of broadcasts".to_owned(), config.broadcast.enabled));
    let of = |(what, is_enabled): (String, bool)| match is_enabled {
        true => format!(
            "{what} stay in {dir}: the node {:?} serves them while it is active, and no other one",
            config.cluster.local_node
        ),
        false => format!("{what} stay in {dir}, and no node serves them, as the configuration says"),
    };
    queues.into_iter().chain(broadcasts).map(of).collect()
}

/// Moves the data directory of `config` to where its `metadata` and `segments` are. A run that ends in the midst of it,
/// in whatever way, is gone on with by the next one.
///
/// # Errors
/// In words, with what to do. The report says why a directory is not moved as it is, and that is no error of a trial.
pub async fn migrate(
    config: Config,
    options: MigrateOptions,
    told: &MigrateTold<'_>,
) -> anyhow::Result<MigrateReport> {
    let env = Env::real();
    let dir = &config.data;
    anyhow::ensure!(
        config.has_shared_metadata(),
        "metadata = {:?} is where the data directory's own is already: set `metadata` to zookeeper://zk1,zk2,zk3/tailwater and \
         `segments` to bookkeeper://zk1,zk2,zk3/ledgers, as the nodes will have them",
        config.metadata
    );
    anyhow::ensure!(
        env.disk().list(&dir.join("journal")).is_ok(),
        "{} is no data directory: no node was ever started on it",
        dir.display()
    );
    let used = || format!("the data directory {} can't be used", dir.display());
    let lock = tailwater_store::lock_data_dir(&env, dir).with_context(used)?;
    let mut queues = queues::Recovery::begin(&env, &config)?;
    let mut others = |tag, position, bytes: &[u8]| match tag {
        tailwater_queue::TAG => queues.replay(position, bytes),
        _ => Err(ReplayError::new("written by a later version: its tag is not known")),
    };
    let progress = Progress::default();
    let log_config: LogConfig = config.log_config(&env)?;
    let source = MigrationSource::open(&env, &log_config, dir, lock, &mut others, &progress);
    let source = source.await.with_context(used)?;
    let mut report = report_of(&config, &source, &env, queues.queues());
    drop(queues);
    told(MigrateNews::Read(&report));
    let moved = match options.dry_run {
        true => Ok(None),
        false => move_to(&env, &config, (&source, log_config), &report, &progress, told).await.map(Some),
    };
    if let Ok(Some(MigrationOutcome { segments, bytes, keys, .. })) = moved {
        (report.copied_segments, report.copied_bytes, report.copied_keys) = (segments, bytes, keys);
        report.is_moved = true;
        if options.remove_segments {
            report.segments_removed = source.remove_segments().await.map_err(anyhow::Error::msg)?;
            report.segments_here -= report.segments_removed;
        }
        if report.segments_here > 0 {
            report.notes.push(format!(
                "{} segments are still in {}, and nothing reads them: `tailwater migrate --remove-segments` removes them",
                report.segments_here, report.data
            ));
        }
    }
    source.close().await;
    moved.map(|_| report)
}

/// Takes the turn at the place in ZooKeeper, and moves everything there.
async fn move_to(
    env: &Env,
    config: &Config,
    (source, log_config): (&MigrationSource, LogConfig),
    report: &MigrateReport,
    progress: &Progress,
    told: &MigrateTold<'_>,
) -> anyhow::Result<MigrationOutcome> {
    if let Some(why) = &report.refused {
        anyhow::bail!("{why}");
    }
    let segments = log_config.segments.context("`segments` names no replicated store")?;
    let uri = config.metadata_uri(env)?;
    let place = uri.to_string();
    let id = node_id(env, &config.data)
        .with_context(|| format!("the data directory {} takes no file", config.data.display()))?;
    let record = NodeRecord {
        id: id.clone(),
        name: config.cluster.node_name(),
        program: concat!("tailwater migrate ", env!("CARGO_PKG_VERSION")).to_owned(),
        started_ms: env.wall_ms(),
        addresses: Vec::new(),
        active: false,
        shares: serde_json::Value::Null,
    };
    let session = Duration::from_millis(config.zookeeper.session_ms);
    let waits = |waiting: TurnWait| {
        if let TurnWait::ForZooKeeper(why) = waiting {
            told(MigrateNews::Waits(&format!("waiting for ZooKeeper: {why}")));
        }
    };
    let membership = NodeMembership::join(env, uri, session, record, false, waits).await?;
    let moved = async {
        let meta = take_turn(&membership, &place, told).await?;
        let cluster = membership.cluster();
        let metadata = SharedMetadata { meta: std::sync::Arc::new(meta), place, cluster, is_shared: false };
        let target = MigrationTarget { metadata, segments, source: id };
        let step = |step: MigrationStep| {
            told(MigrateNews::Step(step));
            true
        };
        let moved = tailwater_log::migrate(env, source, &target, progress, &step).await;
        moved.map_err(|error| match error {
            refused @ MigrationError::Refused(_) => anyhow::Error::from(refused),
            error => anyhow::Error::from(error)
                .context("not everything is moved: run it again, and it goes on with what is left"),
        })
    };
    let moved = moved.await;
    membership.leave().await;
    moved
}

/// The right to change the metadata there, which nobody else is to have.
async fn take_turn(
    membership: &NodeMembership,
    place: &str,
    told: &MigrateTold<'_>,
) -> anyhow::Result<ZooKeeperMeta> {
    let (tell, mut heard) = watch::channel(None);
    let taking = membership.take_turn(|waiting| match waiting {
        TurnWait::ForZooKeeper(why) => told(MigrateNews::Waits(&format!("waiting for ZooKeeper: {why}"))),
        TurnWait::ForActive(node) => _ = tell.send_replace(Some(node)),
    });
    let other = async {
        // Its sender is there for as long as the turn is waited for.
        heard.wait_for(Option::is_some).await.ok().and_then(|node| node.clone()).unwrap_or_default()
    };
    tokio::select! {
        biased;
        meta = taking => Ok(meta),
        node = other => anyhow::bail!(
            "another process is active at {place}, the node {node}: stop it, or name a path that is not there yet"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_told_by_what_they_are_and_those_of_streams_with_their_streams() {
        let kind = |parts: [&str; 3]| kind_of(&parts.join("/"));
        assert_eq!(kind(["log", "segment", "x"]), None);
        assert_eq!(kind(["log", "producers", "x"]), Some("snapshots of producers"));
        assert_eq!(kind(["kafka", "offsets", "x"]), Some("blocks of positions of groups"));
        assert_eq!(kind(["login", "user", "orders"]), Some("users"));
        assert_eq!(kind(["login", "life", "orders"]), Some("other keys"));
        assert_eq!(kind_of("alone"), Some("other keys"));
    }
}
