//! `tailwater snapshot publish`

use std::path::PathBuf;
use std::time::Duration;

use tailwater_client::{
    Client, KeyedState, ShardSnapshot, SnapshotUpTo, SnapshotWriter, Snapshots, StateConsumer, shard_of_key,
};
use tailwater_env::Env;
use tailwater_format::Start;
use tailwater_format::limits::SNAPSHOT_ENTRY_BYTES_MAX;
use tailwater_format::snapshot::SNAPSHOTS_SUFFIX;
use tailwater_node::api::{AlterStream, CreateStream, StreamView, Truncate, Truncated};

use super::{StateArgs, next};
use crate::admin::{Server, escaped};
use crate::lines::Lines;
use crate::output::{self, Format, counted};
use crate::values;

/// Flags of `snapshot publish`.
#[derive(clap::Args)]
pub struct Args {
    /// The stream.
    name: String,
    /// Publish the lines of this file instead, with a key and a value each. `-` is standard input. A line belongs to
    /// the shard in which `produce` puts its key.
    #[arg(long, value_name = "FILE", requires = "up_to", conflicts_with_all = ["every", "take_what_is_left"])]
    lines: Option<PathBuf>,
    /// The first update that the lines do not have: start, end, OFFSET, -N (before the end), @TIME (ms since the epoch,
    /// a date in UTC, or RFC 3339), dlsn:SEGMENT/ENTRY/SLOT or tx:N.
    #[arg(long, value_name = "POSITION", allow_hyphen_values = true, requires = "lines")]
    up_to: Option<Start>,
    /// What separates key and value in a line. By default a tab.
    #[arg(
        short,
        long,
        value_name = "TEXT",
        default_value = "\t",
        hide_default_value = true,
        requires = "lines"
    )]
    key_delimiter: String,
    /// Remove the snapshots before the newest ones that are kept, and the records that all of these have. Nothing is
    /// removed of a shard before it has as many snapshots.
    #[arg(long)]
    trim: bool,
    /// How many snapshots of each shard `--trim` keeps.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = values::number::<usize>(1..=100), requires = "trim")]
    keep: usize,
    /// Go on, and publish again every SECONDS seconds. A shard without updates since then gets no snapshot.
    #[arg(long, value_name = "SECONDS", value_parser = values::number::<u32>(1..=604_800))]
    every: Option<u32>,
    #[command(flatten)]
    state: StateArgs,
    /// Form of the output. With `json`, each snapshot is a line.
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    output: Format,
}

/// A snapshot that was published.
#[derive(serde::Serialize)]
struct PublishedRow {
    shard: u32,
    offset: u64,
    position: u64,
    entries: u64,
    bytes: u64,
}

pub(super) async fn run(server: &Server, client: &Client, args: Args) -> anyhow::Result<()> {
    create(server, &args.name)?;
    let stream = client.stream(&args.name).await?;
    let snapshots = client.snapshots(&stream).await?;
    let snapshots =
        snapshots.ok_or_else(|| anyhow::anyhow!("{}{SNAPSHOTS_SUFFIX} was deleted", args.name))?;
    if let Some(up_to) = args.up_to {
        publish_lines(&args, &snapshots, up_to).await?;
        return trim(server, &snapshots, &args).await;
    }
    let mut state = client.state(&args.name, args.state.config()).await?;
    let mut keyed = KeyedState::new(stream.shards);
    loop {
        let ends = state.ends().await?;
        while !state.has_reached(&ends) {
            keyed.apply(&next(&mut state).await?);
        }
        publish(&args, &snapshots, &state, &keyed).await?;
        trim(server, &snapshots, &args).await?;
        let Some(seconds) = args.every else { return Ok(()) };
        let pause = Duration::from_secs(seconds.into());
        // What comes meanwhile is taken in as it comes.
        let following = async {
            loop {
                match next(&mut state).await {
                    Ok(news) => keyed.apply(&news),
                    Err(error) => return error,
                }
            }
        };
        if let Some(error) = Env::real().timeout(pause, following).await {
            return Err(error.into());
        }
    }
}

/// Creates the stream of snapshots, if it is not there.
fn create(server: &Server, name: &str) -> anyhow::Result<()> {
    let of: StreamView = server.get(&format!("/v1/streams/{}", escaped(name)))?;
    let snapshots = format!("{name}{SNAPSHOTS_SUFFIX}");
    let streams: Vec<StreamView> = server.get("/v1/streams")?;
    if streams.iter().any(|stream| stream.name == snapshots) {
        return Ok(());
    }
    // Snapshots go when somebody asks for it, and not by their age: updates may have gone that they have.
    let kept =
        AlterStream { retention_ms: Some(None), retention_bytes: Some(None), ..AlterStream::default() };
    let create = CreateStream {
        name: snapshots,
        shards: of.config.shards,
        chunk_bytes: None,
        // Who may not read the updates in a cell may not read the state there.
        cells: Some(of.config.cells),
        flush: None,
        durability: None,
        timestamps: None,
        kept,
    };
    let _: StreamView = server.post("/v1/streams", &create)?;
    Ok(())
}

/// Publishes what the state has, of each shard that has updates since its last snapshot.
async fn publish(
    args: &Args,
    snapshots: &Snapshots,
    state: &StateConsumer,
    keyed: &KeyedState,
) -> anyhow::Result<()> {
    anyhow::ensure!(
        keyed.keyless() == 0,
        "{} in {} no key, so that its last values say nothing of them: publish the lines of a file instead",
        counted(keyed.keyless(), "record"),
        if keyed.keyless() == 1 { format!("{} has", args.name) } else { format!("{} have", args.name) },
    );
    for shard in 0..snapshots.updates().shards {
        let Some(up_to) = state.up_to(shard) else { continue };
        let newest = snapshots.newest(shard).await?;
        if newest.is_some_and(|newest| newest.manifest.up_to == up_to) {
            continue;
        }
        let mut writer = snapshots.begin(shard, up_to).await?;
        for (key, value) in keyed.entries(shard) {
            writer.put(key, value).await?;
        }
        published(args.output, &writer.finish().await?)?;
    }
    Ok(())
}

/// Publishes lines as a snapshot of each shard.
async fn publish_lines(args: &Args, snapshots: &Snapshots, up_to: Start) -> anyhow::Result<()> {
    let shards = snapshots.updates().shards;
    let mut writers: Vec<SnapshotWriter> = Vec::new();
    for shard in 0..shards {
        let up_to: SnapshotUpTo = snapshots.up_to(shard, up_to).await?;
        writers.push(snapshots.begin(shard, up_to).await?);
    }
    let mut lines = Lines::open(args.lines.as_deref(), SNAPSHOT_ENTRY_BYTES_MAX).await?;
    let mut count: u64 = 0;
    while let Some(line) = lines.next().await? {
        count += 1;
        let (Some(key), value) = super::super::produce::split(line, Some(&args.key_delimiter)) else {
            let delimiter = &args.key_delimiter;
            anyhow::bail!(
                "line {count} has no {delimiter:?}, which separates key and value (--key-delimiter)"
            );
        };
        writers[shard_of_key(key, shards).0 as usize].put(Some(key), Some(value)).await?;
    }
    for writer in writers {
        published(args.output, &writer.finish().await?)?;
    }
    Ok(())
}

fn published(output: Format, snapshot: &ShardSnapshot) -> anyhow::Result<()> {
    let manifest = &snapshot.manifest;
    let row = PublishedRow {
        shard: manifest.shard.0,
        offset: snapshot.offset.0,
        position: manifest.up_to.position.0,
        entries: manifest.totals.entries,
        bytes: manifest.totals.bytes,
    };
    match output {
        Format::Json => output::print_json(&row),
        Format::Table => output::print(&format!(
            "shard {}: {} of {} up to offset {}, at offset {} of the snapshots",
            row.shard,
            counted(row.entries, "key"),
            output::bytes(row.bytes),
            row.position,
            row.offset
        )),
    }
}

/// Removes what the kept snapshots make unnecessary.
async fn trim(server: &Server, snapshots: &Snapshots, args: &Args) -> anyhow::Result<()> {
    if !args.trim {
        return Ok(());
    }
    for shard in 0..snapshots.updates().shards {
        let Some(kept) = snapshots.kept(shard, args.keep).await? else { continue };
        // The updates first: snapshots that are about to go are not loaded for long.
        let both = [(&args.name[..], kept.updates_from), (&snapshots.stream().name[..], kept.snapshots_from)];
        for (name, before) in both {
            let truncate = Truncate { before: before.to_string(), shard: Some(shard) };
            let path = format!("/v1/streams/{}/truncate", escaped(name));
            let done: Vec<Truncated> = server.post(&path, &truncate)?;
            if args.output == Format::Table {
                for done in done {
                    output::print(&format!(
                        "shard {shard} of {name} now begins at offset {}",
                        done.log_start
                    ))?;
                }
            }
        }
    }
    Ok(())
}
