//! `tailwater snapshot …`: snapshots of streams whose records each set the value of a key.

mod publish;

use std::io::Write;
use std::time::Duration;

use clap::Subcommand;
use serde::Serialize;
use tailwater_client::{Client, Error, KeyedState, StateConfig, StateConsumer, StateNews};
use tailwater_env::Env;
use tailwater_format::Offset;

use crate::admin::Server;
use crate::output::{self, Format};

/// How many snapshots of a shard are listed.
const LISTED_MAX: usize = 100;
/// How long a pause is before what failed in passing is tried again.
const RETRY_PAUSE: Duration = Duration::from_millis(200);

/// What to do with snapshots.
#[derive(Subcommand)]
pub enum Command {
    /// Publish a snapshot of each shard of a stream: the last value of each key.
    ///
    /// A record sets the value of its key. A record without a value removes its key. The snapshots are records of the
    /// stream NAME.snapshots. The command creates that stream if it is not there. Consumers of the stream's state load
    /// the newest snapshot, and then read the updates behind it. The command keeps the last values in memory.
    Publish(publish::Args),
    /// List the snapshots of a stream, the newest one of each shard first.
    #[command(visible_alias = "list")]
    Ls {
        /// The stream.
        name: String,
        /// Form of the output.
        #[arg(short, long, value_enum, default_value_t = Format::Table)]
        output: Format,
    },
    /// Print the keys and values that a stream comes to: the newest snapshots, and the updates behind them.
    Load {
        /// The stream.
        name: String,
        /// What separates key and value in a line. By default a tab.
        #[arg(short, long, value_name = "TEXT", default_value = "\t", hide_default_value = true)]
        key_delimiter: String,
        /// Print what the snapshots have, without the updates behind them.
        #[arg(long)]
        snapshots_only: bool,
        #[command(flatten)]
        state: StateArgs,
        /// Form of the output. With `json`, each key is a line.
        #[arg(short, long, value_enum, default_value_t = Format::Table)]
        output: Format,
    },
}

/// How a state is brought.
#[derive(clap::Args, Clone, Copy)]
pub struct StateArgs {
    /// If records were removed that no snapshot has, take the records that are left for all there is. By default the
    /// command fails then.
    #[arg(long)]
    take_what_is_left: bool,
}

impl StateArgs {
    fn config(self) -> StateConfig {
        StateConfig { takes_what_is_left: self.take_what_is_left }
    }
}

/// A snapshot in a list.
#[derive(Serialize)]
struct SnapshotRow {
    shard: u32,
    /// Of the manifest, in the stream of snapshots.
    offset: u64,
    id: String,
    /// The first update that it does not have.
    position: u64,
    term: u32,
    /// Updates behind it.
    updates_since: u64,
    entries: u64,
    bytes: u64,
    parts: u32,
    created_ms: i64,
}

/// A key in a state.
#[derive(Serialize)]
struct KeyRow<'a> {
    shard: u32,
    key: std::borrow::Cow<'a, str>,
    value: std::borrow::Cow<'a, str>,
}

/// Runs one of them.
pub fn run(server: &Server, command: Command) -> anyhow::Result<()> {
    let address = server.data_address(Duration::ZERO)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let done = runtime.block_on(async {
        let env = Env::real();
        let config = server.client(&env)?;
        let client = Client::connect_with(env, &address, config).await?;
        match command {
            Command::Publish(args) => publish::run(server, &client, args).await,
            Command::Ls { name, output } => list(&client, &name, output).await,
            Command::Load { name, key_delimiter, snapshots_only, state, output } => {
                let state = client.state(&name, state.config()).await?;
                let keyed = load(state, snapshots_only).await?;
                print(&keyed, &key_delimiter, output)
            }
        }
    });
    // A read of standard input goes on after a Ctrl-C, and nobody waits for it.
    runtime.shutdown_background();
    done
}

async fn list(client: &Client, name: &str, output: Format) -> anyhow::Result<()> {
    let stream = client.stream(name).await?;
    let ends = client.state(name, StateConfig::default()).await?.ends().await?;
    let mut rows = Vec::new();
    if let Some(snapshots) = client.snapshots(&stream).await? {
        for (shard, end) in (0..stream.shards).zip(ends) {
            let listed = snapshots.list(shard, LISTED_MAX).await?;
            rows.extend(listed.into_iter().map(|snapshot| {
                let manifest = snapshot.manifest;
                SnapshotRow {
                    shard,
                    offset: snapshot.offset.0,
                    id: format!("{:016x}", manifest.id),
                    position: manifest.up_to.position.0,
                    term: manifest.up_to.term.0,
                    updates_since: end.0.saturating_sub(manifest.up_to.position.0),
                    entries: manifest.totals.entries,
                    bytes: manifest.totals.bytes,
                    parts: manifest.totals.parts,
                    created_ms: manifest.created_ms,
                }
            }));
        }
    }
    if output == Format::Json {
        return rows.iter().try_for_each(output::print_json);
    }
    let heads = ["shard", "offset", "up to", "updates since", "entries", "bytes", "created"];
    let mut table = output::table(&heads);
    for row in rows {
        table.add_row([
            row.shard.to_string(),
            row.offset.to_string(),
            row.position.to_string(),
            row.updates_since.to_string(),
            row.entries.to_string(),
            output::bytes(row.bytes),
            jiff::Timestamp::from_millisecond(row.created_ms).map_or("-".to_owned(), |at| at.to_string()),
        ]);
    }
    output::print(&table)
}

/// What a stream comes to now.
async fn load(mut state: StateConsumer, snapshots_only: bool) -> anyhow::Result<KeyedState> {
    let mut keyed = KeyedState::new(state.stream().shards);
    let ends =
        if snapshots_only { vec![Offset(0); state.stream().shards as usize] } else { state.ends().await? };
    while !state.has_reached(&ends) {
        let news = next(&mut state).await?;
        if !(snapshots_only && matches!(news, StateNews::Updates(_))) {
            keyed.apply(&news);
        }
    }
    Ok(keyed)
}

/// What comes next; a node that is away for a while is waited for.
async fn next(state: &mut StateConsumer) -> Result<StateNews, Error> {
    loop {
        match state.next().await {
            Err(error) if error.is_retriable() => {
                eprintln!("tailwater: {error}; trying again");
                Env::real().sleep(RETRY_PAUSE).await;
            }
            news => return news,
        }
    }
}

fn print(keyed: &KeyedState, delimiter: &str, output: Format) -> anyhow::Result<()> {
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    for shard in 0..keyed.shards() {
        for (key, value) in keyed.entries(shard) {
            let (key, value) = (key.unwrap_or_default(), value.unwrap_or_default());
            if output == Format::Json {
                let (key, value) = (String::from_utf8_lossy(key), String::from_utf8_lossy(value));
                serde_json::to_writer(&mut out, &KeyRow { shard, key, value })?;
            } else {
                out.write_all(key)?;
                out.write_all(delimiter.as_bytes())?;
                out.write_all(value)?;
            }
            out.write_all(b"\n")?;
        }
    }
    out.flush()?;
    Ok(())
}
