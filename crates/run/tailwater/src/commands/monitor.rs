//! `tailwater monitor`: a consumer of each stream in each cluster, which measures and does nothing else.
//!
//! What it tells of a cluster without records is by what the cluster of the source has: a producer that has stopped is
//! told from a copy, or a reader, that stands still.

mod watched;

use std::time::Duration;

use anyhow::{Context, ensure};
use serde::Serialize;
use tailwater_client::Dialer;
use tailwater_env::{Env, Task};
use tailwater_node::api::{ClusterView, CopyTreeView};

use self::watched::{SharedWatch, WatchedStream, follow};
use crate::admin::{AdminRefused, Server, escaped};
use crate::output::{self, Format};
use crate::values::number;

/// Flags of `monitor`.
#[derive(clap::Args)]
pub struct Args {
    /// The streams.
    #[arg(required = true)]
    names: Vec<String>,
    /// Consume in these clusters, separated by commas, and in the source's. By default in all clusters that have a
    /// stream.
    #[arg(long, value_name = "CLUSTERS", value_delimiter = ',')]
    clusters: Vec<String>,
    /// How often to write a line for each stream and cluster, in seconds.
    #[arg(long, default_value_t = 10, value_name = "SECONDS", value_parser = number::<u32>(1..=3_600))]
    every: u32,
    /// End after this many lines for each.
    #[arg(short = 'n', long, value_name = "N", value_parser = number::<u64>(1..=u64::MAX))]
    count: Option<u64>,
    /// Form of the output.
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    output: Format,
}

/// What is written of a stream in a cluster.
#[derive(Serialize)]
struct MonitorLine<'a> {
    stream: &'a str,
    cluster: &'a str,
    state: MonitorState,
    /// Why it is away, or was last.
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
    records: u64,
    bytes: u64,
    /// Records that the source has and that did not come here; not there while the source is away.
    behind: Option<u64>,
    p50_ms: Option<f64>,
    p99_ms: Option<f64>,
    p999_ms: Option<f64>,
    p9999_ms: Option<f64>,
    max_ms: Option<f64>,
}

/// How it is with a stream in a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum MonitorState {
    /// Records came.
    Delivering,
    /// None came, and the source has none that did not.
    NoProducer,
    /// None came, and the source has some that are not in this cluster.
    CopyStuck,
    /// None came, and this cluster has some.
    ReadingStuck,
    /// None came, and the cluster of the source does not answer.
    SourceAway,
    /// This cluster does not answer.
    Away,
}

impl MonitorState {
    fn of(watched: &WatchedStream, behind: Option<u64>, is_source_away: bool) -> Self {
        match behind {
            _ if watched.records > 0 => Self::Delivering,
            _ if watched.why.is_some() => Self::Away,
            _ if watched.unread > 0 => Self::ReadingStuck,
            _ if is_source_away => Self::SourceAway,
            Some(1..) => Self::CopyStuck,
            _ => Self::NoProducer,
        }
    }

    fn in_words(self) -> &'static str {
        match self {
            Self::Delivering => "delivering",
            Self::NoProducer => "no producer",
            Self::CopyStuck => "copy stuck",
            Self::ReadingStuck => "reading stuck",
            Self::SourceAway => "source away",
            Self::Away => "away",
        }
    }
}

/// A stream, and the clusters in which it is consumed, that of the source first.
struct Monitored {
    stream: String,
    clusters: Vec<(String, SharedWatch)>,
    _tasks: Vec<Task>,
}

/// Runs it, until it is interrupted.
pub fn run(server: &Server, args: Args) -> anyhow::Result<()> {
    let known: Vec<ClusterView> = server.get("/v1/clusters")?;
    let here = server.data_address(Duration::ZERO)?;
    let places = args.names.iter().map(|name| places(server, name, &args.clusters, &known, &here));
    let places: Vec<_> = places.collect::<anyhow::Result<_>>()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let env = Env::real();
        let dialer = server.dialer(&env)?;
        let streams = args.names.iter().zip(places);
        let streams: Vec<_> =
            streams.map(|(name, places)| Monitored::start(&env, &dialer, name, places)).collect();
        if args.output == Format::Table {
            output::print(&head())?;
        }
        let mut left = args.count.unwrap_or(u64::MAX);
        while left > 0 {
            left -= 1;
            env.sleep(Duration::from_secs(args.every.into())).await;
            streams.iter().try_for_each(|stream| stream.tell(args.output))?;
        }
        Ok(())
    })
}

/// Where a stream is consumed: names and addresses of clusters, that of the source first.
fn places(
    server: &Server,
    stream: &str,
    wanted: &[String],
    known: &[ClusterView],
    here: &str,
) -> anyhow::Result<Vec<(String, String)>> {
    let tree: anyhow::Result<CopyTreeView> = server.get(&format!("/v1/streams/{}/tree", escaped(stream)));
    let names = match tree {
        Ok(tree) => {
            let to: Vec<String> = tree.hops.into_iter().map(|hop| hop.to).collect();
            if let Some(name) = wanted.iter().find(|name| **name != tree.source && !to.contains(name)) {
                anyhow::bail!("cluster {name} has no copy of {stream}: name one of {}", to.join(", "));
            }
            let to = to.into_iter().filter(|name| wanted.is_empty() || wanted.contains(name));
            std::iter::once(tree.source).chain(to.collect::<Vec<_>>()).collect()
        }
        // It is nowhere else.
        Err(error) => match error.downcast_ref::<AdminRefused>() {
            Some(AdminRefused(refused)) if refused.error == "not_placed" => {
                ensure!(wanted.is_empty(), "{stream} is copied to no cluster");
                vec![known.iter().find(|known| known.is_here).map_or("-", |here| &here.name).to_owned()]
            }
            _ => return Err(error),
        },
    };
    let place = |name: String| {
        let of = known.iter().find(|known| known.name == name);
        let address = match of {
            Some(ClusterView { is_here: false, address: Some(address), .. }) => address.clone(),
            Some(ClusterView { is_here: true, .. }) => here.to_owned(),
            None if name == "-" => here.to_owned(),
            _ => {
                return Err(anyhow::anyhow!(
                    "the node does not know cluster {name}: ask that of the cluster of the source"
                ));
            }
        };
        Ok((name, address))
    };
    let names: Vec<String> = names;
    names.into_iter().map(place).collect::<anyhow::Result<_>>().with_context(|| format!("stream {stream}"))
}

impl Monitored {
    fn start(env: &Env, dialer: &Dialer, stream: &str, places: Vec<(String, String)>) -> Self {
        let (mut clusters, mut tasks) = (Vec::new(), Vec::new());
        for (cluster, address) in places {
            let watch = SharedWatch::default();
            let follow = follow(env.clone(), dialer.clone(), address, stream.to_owned(), watch.clone());
            tasks.push(env.spawn("monitor", follow));
            clusters.push((cluster, watch));
        }
        Self { stream: stream.to_owned(), clusters, _tasks: tasks }
    }

    fn tell(&self, format: Format) -> anyhow::Result<()> {
        let watched: Vec<_> = self.clusters.iter().map(|(_, watch)| watch.take()).collect();
        // What is here is looked at before what the source has: it never seems to be further than that.
        let source = watched.first().filter(|source| source.why.is_none()).and_then(|source| source.end);
        for ((cluster, _), watched) in self.clusters.iter().zip(watched) {
            let position = watched.position;
            let behind = source.zip(position).map(|(end, position)| end.saturating_sub(position));
            let state = MonitorState::of(&watched, behind, source.is_none());
            let ms = |quantile| {
                let ns = (watched.delays.count() > 0).then(|| watched.delays.quantile_ns(quantile));
                ns.map(|ns| (ns as f64 / 1e4).round() / 1e2)
            };
            let line = MonitorLine {
                stream: &self.stream,
                cluster,
                state,
                why: watched.why.clone(),
                records: watched.records,
                bytes: watched.bytes,
                behind,
                p50_ms: ms(0.5),
                p99_ms: ms(0.99),
                p999_ms: ms(0.999),
                p9999_ms: ms(0.9999),
                max_ms: ms(1.0),
            };
            match format {
                Format::Json => output::print_json(&line)?,
                Format::Table => output::print(&row(&line))?,
            }
        }
        Ok(())
    }
}

fn head() -> String {
    format!(
        "{:20} {:12} {:13} {:>9} {:>9} {:>9} {:>8} {:>8} {:>8} {:>8} {:>8}",
        "STREAM", "CLUSTER", "STATE", "RECORDS", "BYTES", "BEHIND", "P50 MS", "P99", "P99.9", "P99.99", "MAX"
    )
}

fn row(line: &MonitorLine<'_>) -> String {
    let ms = |ms: Option<f64>| ms.map_or_else(|| "-".to_owned(), |ms| format!("{ms:.1}"));
    let why = line.why.as_deref().map_or_else(String::new, |why| format!("  {why}"));
    format!(
        "{:20} {:12} {:13} {:>9} {:>9} {:>9} {:>8} {:>8} {:>8} {:>8} {:>8}{why}",
        line.stream,
        line.cluster,
        line.state.in_words(),
        line.records,
        output::bytes(line.bytes),
        line.behind.map_or_else(|| "-".to_owned(), |behind| behind.to_string()),
        ms(line.p50_ms),
        ms(line.p99_ms),
        ms(line.p999_ms),
        ms(line.p9999_ms),
        ms(line.max_ms),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stopped_producer_is_told_from_what_stands_still_and_from_who_is_away() {
        let quiet = WatchedStream::default();
        let state = |watched: &WatchedStream, behind, away| MonitorState::of(watched, behind, away);
        assert_eq!(state(&quiet, Some(0), false), MonitorState::NoProducer);
        assert_eq!(state(&quiet, Some(3), false), MonitorState::CopyStuck);
        assert_eq!(state(&quiet, None, true), MonitorState::SourceAway);
        let unread = WatchedStream { unread: 3, ..WatchedStream::default() };
        assert_eq!(state(&unread, Some(3), false), MonitorState::ReadingStuck);
        let away = WatchedStream { why: Some("it is".to_owned()), ..WatchedStream::default() };
        assert_eq!(state(&away, Some(3), false), MonitorState::Away);
        let busy = WatchedStream { records: 1, ..WatchedStream::default() };
        assert_eq!(state(&busy, Some(3), false), MonitorState::Delivering);
    }
}
