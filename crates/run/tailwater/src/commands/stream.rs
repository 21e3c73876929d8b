//! `tailwater stream …`

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Args, Subcommand};
use serde_json::Value;
use tailwater_client::Start;
use tailwater_format::limits::OFFSET_MAX;
use tailwater_node::api::{
    AlterStream, ClusterEndsView, CopyTreeView, CreateStream, PlaceStream, RestoreStream, ShardView,
    StreamView, Truncate, Truncated,
};
use tailwater_trees::TreeRequest;

use super::tree;
use crate::admin::{Server, escaped};
use crate::output::{self, Format, ListArgs};
use crate::values;

/// Shards of a stream, as a node has it (`tailwater_log::limits`).
const SHARDS_MAX: u64 = 4_096;

/// How the segments of a stream are kept.
#[derive(Args)]
pub struct SegmentsKeptArgs {
    /// Delete a segment this many milliseconds after it was completed. `none` keeps it. The default of a new stream is
    /// 604800000, a week.
    #[arg(long, value_name = "MS|none", allow_negative_numbers = true)]
    retention_ms: Option<String>,
    /// Delete the oldest completed segments beyond this many bytes in a shard. `none` (the default of a new stream)
    /// sets no limit.
    #[arg(long, value_name = "BYTES|none", allow_negative_numbers = true)]
    retention_bytes: Option<String>,
    /// Complete a segment at this size. The default of a new stream is 268435456.
    #[arg(long, value_name = "BYTES", value_parser = values::number::<u64>(0..=u64::MAX))]
    segment_bytes: Option<u64>,
    /// Complete a segment at this age. The default of a new stream is 86400000, a day.
    #[arg(long, value_name = "MS", value_parser = values::number::<u64>(0..=u64::MAX))]
    segment_ms: Option<u64>,
    /// Copy completed segments to the node's cold storage. With `=false` the node copies nothing more. Existing copies
    /// stay readable.
    #[arg(long, value_name = "true|false", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    cold: Option<bool>,
    /// A copied segment leaves the node this many milliseconds after it was completed. `none` (the default of a new
    /// stream) keeps it there as long as retention keeps it.
    #[arg(long, value_name = "MS|none", allow_negative_numbers = true)]
    cold_after_ms: Option<String>,
    /// The oldest copied segments leave the node while the others on it have at least this many bytes. `none` (the
    /// default of a new stream) sets no limit.
    #[arg(long, value_name = "BYTES|none", allow_negative_numbers = true)]
    cold_after_bytes: Option<String>,
    /// Copies of each record, where segments are in BookKeeper. `default` is what the node's configuration says below
    /// `[ledgers]`, as for the next two. A segment keeps what it began with.
    #[arg(long, value_name = "N|default")]
    write_quorum: Option<String>,
    /// Copies that are durable before an append is acknowledged. With a write quorum of its own a stream has a majority
    /// of that by default.
    #[arg(long, value_name = "N|default")]
    ack_quorum: Option<String>,
    /// Bookies that a segment is spread over. With a write quorum of its own a stream has as many by default.
    #[arg(long, value_name = "N|default")]
    ensemble: Option<String>,
    /// With segments in BookKeeper: the number of regions that have to hold an append before it is acknowledged. At
    /// most the ack quorum. `default` is what the node's configuration says below `[ledgers]`.
    #[arg(long, value_name = "N|default")]
    min_regions: Option<String>,
}

impl SegmentsKeptArgs {
    /// As the API takes it.
    fn altering(self) -> anyhow::Result<AlterStream> {
        Ok(AlterStream {
            retention_ms: limit("--retention-ms", self.retention_ms)?,
            retention_bytes: limit("--retention-bytes", self.retention_bytes)?,
            segment_bytes: self.segment_bytes,
            segment_ms: self.segment_ms,
            cold: self.cold,
            cold_after_ms: limit("--cold-after-ms", self.cold_after_ms)?,
            cold_after_bytes: limit("--cold-after-bytes", self.cold_after_bytes)?,
            ensemble: copies("--ensemble", self.ensemble)?,
            write_quorum: copies("--write-quorum", self.write_quorum)?,
            ack_quorum: copies("--ack-quorum", self.ack_quorum)?,
            min_regions: copies("--min-regions", self.min_regions)?,
        })
    }
}

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
        /// Size of the chunks in the data cell, a power of two. By default 4096.
        #[arg(long, value_name = "BYTES", value_parser = values::number::<u32>(0..=u32::MAX.into()))]
        chunk_bytes: Option<u32>,
        /// Whether the data cell gets the stream's records. Everybody who may read the cell reads them there. `false`
        /// is for a stream that only some may read: its readers ask the node, which looks at the rights of the stream
        /// [default: true].
        #[arg(long, value_name = "true|false")]
        cells: Option<bool>,
        /// When appended records are written: at once (`immediate`, the default), or every MS milliseconds.
        #[arg(long, value_name = "immediate|MS")]
        flush: Option<String>,
        /// What an acknowledgement promises. `fsync`, the default: the record is on disk, or on the disks of a quorum
        /// of bookies. `interval`: the operating system has the record.
        #[arg(long, value_name = "fsync|interval")]
        durability: Option<String>,
        /// The time of a record: `create` is its producer's time, `append` is the time of its append [default: create].
        #[arg(long, value_name = "create|append")]
        timestamps: Option<String>,
        #[command(flatten)]
        kept: SegmentsKeptArgs,
        /// Form of the output.
        #[arg(short, long, value_enum, default_value_t = Format::Table)]
        output: Format,
    },
    /// Change how a stream's segments are kept. Settings that you do not give stay as they are.
    Alter {
        /// The stream's name.
        name: String,
        #[command(flatten)]
        kept: SegmentsKeptArgs,
        /// Form of the output.
        #[arg(short, long, value_enum, default_value_t = Format::Table)]
        output: Format,
    },
    /// Bring removed records back from cold storage.
    Restore {
        /// The stream's name.
        name: String,
        /// The first offset to bring back. By default the first one in cold storage.
        #[arg(long, value_name = "OFFSET", default_value_t = 0, value_parser = values::number::<u64>(0..=OFFSET_MAX))]
        from: u64,
        /// The shard. By default all shards.
        #[arg(long, value_name = "N", value_parser = values::number::<u32>(0..=u32::MAX.into()))]
        shard: Option<u32>,
    },
    /// Say which clusters have copies of a stream, or move its source to another cluster.
    ///
    /// With `--to` the command plans the copy tree, and copying begins. Without it the source moves to another cluster
    /// of the tree. The old source takes no more records. The new one copies the rest, and goes on in a higher term.
    Place {
        /// The stream's name.
        name: String,
        /// The source: the asked node's own cluster. To move the source, name the new cluster.
        #[arg(long, value_name = "CLUSTER")]
        source: String,
        /// The clusters that get copies, separated by commas. `none` ends copying. The copies stay.
        #[arg(long, value_name = "CLUSTERS|none", value_delimiter = ',')]
        to: Vec<String>,
        /// Make the asked node's copy the source at once, without the old source. Other clusters put records beyond it
        /// aside. The command shows what each cluster has.
        #[arg(long, conflicts_with_all = ["to", "costs"])]
        force: bool,
        /// File with the costs of links, as for `tailwater tree plan`. By default all links cost the same.
        #[arg(long, value_name = "FILE", requires = "to")]
        costs: Option<PathBuf>,
        /// Form of the output.
        #[arg(short, long, value_enum, default_value_t = Format::Table)]
        output: Format,
    },
    /// List streams.
    #[command(visible_alias = "list")]
    Ls(ListArgs),
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
    /// and removes nothing. Then use `--shard` to name a shard that has the position, or give a position that every
    /// shard has: `end`, -N or @TIME.
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
        Command::Create { name, shards, kept, chunk_bytes, cells, flush, durability, timestamps, output } => {
            let kept = kept.altering()?;
            let create =
                CreateStream { name, shards, chunk_bytes, cells, flush, durability, timestamps, kept };
            let created: StreamView = server.post("/v1/streams", &create)?;
            match output {
                Format::Json => output::print_json(&created),
                Format::Table => output::print(&format!(
                    "stream {} with {} created",
                    created.name,
                    output::counted(created.config.shards.into(), "shard")
                )),
            }
        }
        Command::Alter { name, kept, output } => {
            let altered: StreamView = server.patch(&path(&name), &kept.altering()?)?;
            match output {
                Format::Json => output::print_json(&altered),
                Format::Table => configuration(&altered),
            }
        }
        Command::Restore { name, from, shard } => {
            let restore = RestoreStream { from, shard };
            let shards: Vec<Truncated> = server.put(&format!("{}/restore", path(&name)), &restore)?;
            for done in shards {
                output::print(&format!("shard {} now begins at offset {}", done.shard, done.log_start))?;
            }
            Ok(())
        }
        Command::Place { name, source, to, force, costs, output } => {
            let placed = place(server, &name, source, to, force, costs.as_deref())?;
            if output == Format::Json { output::print_json(&placed) } else { placed_table(&placed) }
        }
        Command::Ls(ListArgs { output }) => {
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

/// A number, or `none`, as the API takes it, if it is given.
fn limit(flag: &str, given: Option<String>) -> anyhow::Result<Option<Option<u64>>> {
    let Some(text) = given else { return Ok(None) };
    if text == "none" || text == "-1" {
        return Ok(Some(None));
    }
    let parsed =
        text.parse().map_err(|_| anyhow::anyhow!("{flag} is {text:?}, it must be a number or `none`"));
    parsed.map(|number| Some(Some(number)))
}

/// A number of copies, or that it is the node's.
fn copies(flag: &str, given: Option<String>) -> anyhow::Result<Option<Option<u32>>> {
    let Some(text) = given else { return Ok(None) };
    if text == "default" {
        return Ok(Some(None));
    }
    let parsed = text.parse();
    let wrong = |_| anyhow::anyhow!("{flag} is {text:?}, it must be a number or `default`");
    parsed.map(|number| Some(Some(number))).map_err(wrong)
}

/// How many segments are copied, and of how many there is nothing but the copy.
fn in_cold_storage(shard: &ShardView) -> String {
    let copied = shard.segments.iter().filter(|segment| segment.copied).count();
    let released = shard.segments.iter().filter(|segment| segment.released).count();
    if copied == 0 { "none".to_owned() } else { format!("{copied}, {released} of them only there") }
}

fn path(name: &str) -> String {
    format!("/v1/streams/{}", escaped(name))
}

fn configuration(stream: &StreamView) -> anyhow::Result<()> {
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
    table.add_row(["cells", &config.cells.to_string()]);
    table.add_row(["segment-bytes", &config.segment_bytes.to_string()]);
    table.add_row(["segment-ms", &config.segment_ms.to_string()]);
    table.add_row(["retention-ms", &or_none(config.retention_ms)]);
    table.add_row(["retention-bytes", &or_none(config.retention_bytes)]);
    table.add_row(["cold", &config.cold.to_string()]);
    table.add_row(["cold-after-ms", &or_none(config.cold_after_ms)]);
    table.add_row(["cold-after-bytes", &or_none(config.cold_after_bytes)]);
    let or_default = |copies: Option<u32>| copies.map_or("default".to_owned(), |copies| copies.to_string());
    table.add_row(["write-quorum", &or_default(config.write_quorum)]);
    table.add_row(["ack-quorum", &or_default(config.ack_quorum)]);
    table.add_row(["ensemble", &or_default(config.ensemble)]);
    table.add_row(["min-regions", &or_default(config.min_regions)]);
    output::print(&table)
}

fn describe(stream: &StreamView) -> anyhow::Result<()> {
    configuration(stream)?;
    output::print(&"")?;
    let mut table = output::table(&[
        "shard",
        "start",
        "end",
        "segments",
        "in cold storage",
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
            in_cold_storage(shard),
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
    let elsewhere = stream.shards.iter().filter(|shard| shard.elsewhere);
    let elsewhere: Vec<String> = elsewhere.map(|shard| shard.shard.to_string()).collect();
    if !elsewhere.is_empty() {
        let which = elsewhere.join(", ");
        output::print(&format!("of other nodes, and shown as this one knew them last: shards {which}"))?;
    }
    Ok(())
}
