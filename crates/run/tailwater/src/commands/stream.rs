//! `tailwater stream …`

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Subcommand;
use serde_json::Value;
use tailwater_client::Start;
use tailwater_node::api::{
    ClusterEndsView, CopyTreeView, CreateStream, PlaceStream, StreamView, Truncate, Truncated,
};
use tailwater_trees::TreeRequest;

use super::tree;
use crate::admin::{Server, escaped};
use crate::output::{self, Format};
use crate::values;

/// Shards of a stream, as a node has it (`tailwater_log::limits`).
const SHARDS_MAX: u64 = 4_096;

/// What to do with streams.
#[derive(Subcommand)]
pub enum Command {
    /// Create a stream.
    Create {
        /// The stream's name: 1 to 249 of a-z A-Z 0-9 . _ -
        name: String,
        /// Number of shards. Each is an ordered log of its own.
        #[arg(long, value_name = "N", default_value_t = 1, value_parser = values::number::<u32>(1..=SHARDS_MAX))]
        shards: u32,
        /// Delete a segment this many milliseconds after it was completed. `none` keeps it. By default 604800000, which
        /// is a week.
        #[arg(long, value_name = "MS|none", allow_negative_numbers = true)]
        retention_ms: Option<String>,
        /// Delete the oldest completed segments beyond this many bytes in a shard. `none`, the default, is no limit.
        #[arg(long, value_name = "BYTES|none", allow_negative_numbers = true)]
        retention_bytes: Option<String>,
        /// Complete a segment at this size. By default 268435456.
        #[arg(long, value_name = "BYTES", value_parser = values::number::<u64>(0..=u64::MAX))]
        segment_bytes: Option<u64>,
        /// Complete a segment at this age. By default 86400000, which is a day.
        #[arg(long, value_name = "MS", value_parser = values::number::<u64>(0..=u64::MAX))]
        segment_ms: Option<u64>,
        /// Size of the chunks in the data cell, a power of two. By default 4096.
        #[arg(long, value_name = "BYTES", value_parser = values::number::<u32>(0..=u32::MAX.into()))]
        chunk_bytes: Option<u32>,
        /// When appended records are written: at once (`immediate`, the default), or every MS milliseconds.
        #[arg(long, value_name = "immediate|MS")]
        flush: Option<String>,
        /// What an acknowledgement promises. `fsync`, the default: the record is on disk. `interval`: the operating
        /// system has it.
        #[arg(long, value_name = "fsync|interval")]
        durability: Option<String>,
        /// Which time a record has: `create` is its producer's time, `append` that of its append [default: create].
        #[arg(long, value_name = "create|append")]
        timestamps: Option<String>,
        /// Form of the output.
        #[arg(short, long, value_enum, default_value_t = Format::Table)]
        output: Format,
    },
    /// Say which clusters have copies of a stream, or move its source to another cluster.
    ///
    /// With `--to` its copy tree is planned, and copying begins. Without it the source moves to another cluster of the
    /// tree: it takes no more records, the other one copies what is left, and goes on in a higher term.
    Place {
        /// The stream's name.
        name: String,
        /// The cluster that has the stream, which is the one of the node that is asked; or the one that shall have it.
        #[arg(long, value_name = "CLUSTER")]
        source: String,
        /// The clusters that are to have copies, separated by commas. `none` ends copying; the copies stay.
        #[arg(long, value_name = "CLUSTERS|none", value_delimiter = ',')]
        to: Vec<String>,
        /// Make the copy in the cluster of the node that is asked the source, although the source does not answer. What
        /// others have beyond that copy is put aside. It is shown which cluster has what.
        #[arg(long, conflicts_with_all = ["to", "costs"])]
        force: bool,
        /// What links cost, as for `tailwater tree plan`. By default all of them cost the same.
        #[arg(long, value_name = "FILE")]
        costs: Option<PathBuf>,
        /// Form of the output.
        #[arg(short, long, value_enum, default_value_t = Format::Table)]
        output: Format,
    },
    /// List streams.
    #[command(visible_alias = "list")]
    Ls {
        /// Form of the output.
        #[arg(short, long, value_enum, default_value_t = Format::Table)]
        output: Format,
    },
    /// Show a stream's configuration, shards and segments.
    Describe {
        /// The stream's name.
        name: String,
        /// Form of the output.
        #[arg(short, long, value_enum, default_value_t = Format::Table)]
        output: Format,
    },
    /// Delete a stream and everything in it.
    Delete {
        /// The stream's name.
        name: String,
    },
    /// Remove the records before a position, in one shard or in all of them.
    ///
    /// A shard that begins behind the position stays as it is. If a shard ends before the position, the command fails
    /// and removes nothing. Then name a shard that has the position with `--shard`, or give a position that every shard
    /// has: `end`, -N or @TIME.
    Truncate {
        /// The stream's name.
        name: String,
        /// The first record that is left: start, end, OFFSET, -N (before the end), @TIME (ms since the epoch, a
        /// date in UTC, or RFC 3339), dlsn:SEGMENT/ENTRY/SLOT or tx:N.
        #[arg(long, value_name = "POSITION", allow_hyphen_values = true)]
        before: Start,
        /// The shard. By default all shards.
        #[arg(long, value_name = "N", value_parser = values::number::<u32>(0..=u32::MAX.into()))]
        shard: Option<u32>,
    },
}

/// Runs one of them.
pub fn run(server: &Server, command: Command) -> anyhow::Result<()> {
    match command {
        Command::Create {
            name,
            shards,
            retention_ms,
            retention_bytes,
            segment_bytes,
            segment_ms,
            chunk_bytes,
            flush,
            durability,
            timestamps,
            output,
        } => {
            let create = CreateStream {
                name,
                shards,
                retention_ms: retention_ms
                    .as_deref()
                    .map(|given| limit("--retention-ms", given))
                    .transpose()?,
                retention_bytes: retention_bytes
                    .as_deref()
                    .map(|given| limit("--retention-bytes", given))
                    .transpose()?,
                segment_bytes,
                segment_ms,
                chunk_bytes,
                flush,
                durability,
                timestamps,
            };
            let created: StreamView = server.post("/v1/streams", &create)?;
            match output {
                Format::Json => output::print_json(&created),
                Format::Table => output::print(&format!(
                    "stream {} with {} shards created",
                    created.name, created.config.shards
                )),
            }
        }
        Command::Place { name, source, to, force, costs, output } => {
            let placed = place(server, &name, source, to, force, costs.as_deref())?;
            if output == Format::Json { output::print_json(&placed) } else { placed_table(&placed) }
        }
        Command::Ls { output } => {
            let streams: Vec<StreamView> = server.get("/v1/streams")?;
            if output == Format::Json {
                return streams.iter().try_for_each(output::print_json);
            }
            let mut table =
                output::table(&["name", "shards", "records", "bytes", "flush", "durability", "id"]);
            for stream in streams {
                let records: u64 =
                    stream.shards.iter().map(|shard| shard.next_offset - shard.log_start).sum();
                let bytes: u64 = stream.shards.iter().map(|shard| shard.bytes).sum();
                table.add_row([
                    stream.name,
                    stream.config.shards.to_string(),
                    records.to_string(),
                    output::bytes(bytes),
                    stream.config.flush.to_string(),
                    stream.config.durability.to_string(),
                    stream.id.to_string(),
                ]);
            }
            output::print(&table)
        }
        Command::Describe { name, output } => {
            let stream: StreamView = server.get(&path(&name))?;
            if output == Format::Json { output::print_json(&stream) } else { describe(&stream) }
        }
        Command::Delete { name } => {
            let _: Value = server.delete(&path(&name))?;
            output::print(&format!("stream {name} deleted"))
        }
        Command::Truncate { name, before, shard } => {
            let truncate = Truncate { before: before.to_string(), shard };
            let shards: Vec<Truncated> = server.post(&format!("{}/truncate", path(&name)), &truncate)?;
            for done in shards {
                output::print(&format!("shard {} now begins at offset {}", done.shard, done.log_start))?;
            }
            Ok(())
        }
    }
}

fn place(
    server: &Server,
    name: &str,
    source: String,
    to: Vec<String>,
    force: bool,
    costs: Option<&Path>,
) -> anyhow::Result<CopyTreeView> {
    if to.is_empty() {
        anyhow::ensure!(costs.is_none(), "--costs is for --to: a source that moves keeps its tree");
        return server
            .put(&format!("{}/tree", path(name)), &PlaceStream { source, to: None, force, hops: None });
    }
    let to = if to == ["none"] { Vec::new() } else { to };
    let hops = match costs.filter(|_| !to.is_empty()) {
        None => None,
        Some(file) => {
            let request = TreeRequest { to: to.clone(), ..TreeRequest::new(name, &source) };
            let planned = tailwater_trees::plan(&tree::read(file)?, &request);
            let planned = planned.with_context(|| format!("no plan by {}", file.display()))?;
            Some(planned.hops.into_iter().map(|hop| [hop.from, hop.to]).collect())
        }
    };
    server.put(&format!("{}/tree", path(name)), &PlaceStream { source, to: Some(to), force, hops })
}

fn placed_table(placed: &CopyTreeView) -> anyhow::Result<()> {
    if !placed.clusters.is_empty() {
        ends_table(&placed.clusters)?;
        output::print(&"what a cluster has beyond its source it puts aside when it is told\n")?;
    }
    output::print(&format!(
        "stream {} has its source in {}, and plan {} now",
        placed.stream, placed.source, placed.plan
    ))?;
    if placed.hops.is_empty() {
        return output::print(&"it is copied to no cluster");
    }
    let mut table = output::table(&["from", "to"]);
    for hop in &placed.hops {
        table.add_row([&hop.from, &hop.to]);
    }
    output::print(&table)
}

/// Up to where each cluster had a stream, the new source first.
fn ends_table(clusters: &[ClusterEndsView]) -> anyhow::Result<()> {
    let mut table = output::table(&["cluster", "shard", "end", "beyond the source"]);
    let source = clusters.first().map_or(&[][..], |source| &source.ends);
    for cluster in clusters {
        if let Some(why) = &cluster.why {
            table.add_row([&*cluster.cluster, "-", "not known", why]);
        }
        for (shard, end) in cluster.ends.iter().enumerate() {
            let beyond = end.saturating_sub(source.get(shard).copied().unwrap_or_default());
            let row = [cluster.cluster.clone(), shard.to_string(), end.to_string(), beyond.to_string()];
            table.add_row(row);
        }
    }
    output::print(&table)
}

/// A number, or `none`, as the API takes it.
fn limit(flag: &str, text: &str) -> anyhow::Result<Option<u64>> {
    match text {
        "none" | "-1" => Ok(None),
        number => {
            let parsed = number.parse();
            Ok(Some(
                parsed.map_err(|_| anyhow::anyhow!("{flag} is {number:?}, it must be a number or `none`"))?,
            ))
        }
    }
}

fn path(name: &str) -> String {
    format!("/v1/streams/{}", escaped(name))
}

fn describe(stream: &StreamView) -> anyhow::Result<()> {
    let config = &stream.config;
    let or_none = |limit: Option<u64>| limit.map_or("none".to_owned(), |limit| limit.to_string());
    let mut table = output::table(&["key", "value"]);
    table.add_row(["name", &stream.name]);
    table.add_row(["id", &stream.id.to_string()]);
    if let Some(source) = &stream.source {
        table.add_row(["copy of the one in", source]);
    }
    table.add_row(["shards", &config.shards.to_string()]);
    table.add_row(["flush", &config.flush.to_string()]);
    table.add_row(["durability", &config.durability.to_string()]);
    table.add_row(["timestamps", &config.timestamps.to_string()]);
    table.add_row(["chunk-bytes", &config.chunk_bytes.to_string()]);
    table.add_row(["segment-bytes", &config.segment_bytes.to_string()]);
    table.add_row(["segment-ms", &config.segment_ms.to_string()]);
    table.add_row(["retention-ms", &or_none(config.retention_ms)]);
    table.add_row(["retention-bytes", &or_none(config.retention_bytes)]);
    output::print(&table)?;
    output::print(&"")?;
    let mut table = output::table(&[
        "shard",
        "start",
        "end",
        "segments",
        "bytes",
        "open segment",
        "term",
        "durable",
        "cached",
    ]);
    for shard in &stream.shards {
        table.add_row([
            shard.shard.to_string(),
            shard.log_start.to_string(),
            shard.next_offset.to_string(),
            shard.segments.len().to_string(),
            output::bytes(shard.bytes),
            shard.segment.to_string(),
            shard.term.to_string(),
            shard.durable.to_string(),
            shard.cached.to_string(),
        ]);
    }
    output::print(&table)?;
    for damaged in stream.shards.iter().filter_map(|shard| shard.damaged.as_deref()) {
        output::print(&format!("damaged and not opened: {damaged}"))?;
    }
    Ok(())
}
