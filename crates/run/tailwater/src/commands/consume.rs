//! `tailwater consume`

mod format;
mod group;
mod reading;
mod stats;

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;
use tailwater_client::{Batch, Client, ClientConfig, Consumer, ConsumerConfig, Error, Start, Transport};
use tailwater_env::Env;
use tailwater_format::batch::Record;

use crate::admin::Server;
use crate::output::Format;
use crate::values;
use format::Template;
use reading::Reading;
use stats::Stats;

/// How long a pause is before what failed in passing is tried again.
const RETRY_PAUSE: Duration = Duration::from_millis(200);

/// Flags of `consume`.
#[derive(clap::Args)]
pub struct Args {
    /// The stream.
    name: String,
    /// Read only this shard. It may be given several times. By default all shards.
    #[arg(long, value_name = "N", value_parser = values::number::<u32>(0..=u32::MAX.into()))]
    shard: Vec<u32>,
    /// Be a member of this group: share the shards with its other members, and go on from the group's commits. Kafka's
    /// clients may be members too. A shard without a commit begins at `--from`. On an interrupt the member leaves and
    /// the command ends.
    #[arg(short, long, value_name = "NAME", conflicts_with_all = ["shard", "stats"])]
    group: Option<String>,
    /// Where to begin: start, end, OFFSET, -N (before the end), @TIME (ms since the epoch, a date in UTC, or RFC 3339),
    /// dlsn:SEGMENT/ENTRY/SLOT or tx:N.
    #[arg(long, default_value = "start", allow_hyphen_values = true)]
    from: Start,
    /// Go on with records that are appended later. This is the default.
    #[arg(short, long, conflicts_with = "exit_at_end")]
    follow: bool,
    /// Stop behind the records that are there at the start.
    #[arg(short, long)]
    exit_at_end: bool,
    /// Stop after this many records.
    #[arg(short = 'n', long, value_name = "N", value_parser = values::number::<u64>(0..=u64::MAX))]
    count: Option<u64>,
    /// How a record is written: %k key, %v value, %o offset, %s or %p shard, %t timestamp in ms, %T the same in
    /// RFC 3339, %d DLSN, %h headers, %S stream, %% a percent sign; \n, \t, \r, \0 (a zero byte) and \\ as usual.
    #[arg(long, default_value = "%v\\n", value_parser = format::template)]
    format: Template,
    /// Form of the output. With `json`, each record is a line.
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    output: Format,
    /// Print to standard error, every SECONDS seconds and at the end, how fast records are read, and how far behind
    /// each shard is in records and in milliseconds.
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, require_equals = true, default_missing_value = "1",
        value_parser = values::number::<u32>(1..=86_400))]
    stats: Option<u32>,
    /// Which way to the cells.
    #[arg(long, value_enum, default_value_t = TransportArg::Auto)]
    transport: TransportArg,
    /// The Unix socket of this host's sidecar. By default that of a sidecar that was told none.
    #[arg(long, value_name = "PATH")]
    sidecar: Option<PathBuf>,
    #[command(flatten)]
    reading: Reading,
}

/// Which way to the cells.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TransportArg {
    /// Shared memory where the backend runs on this host, elsewhere libfabric if the backend serves it, and else TCP.
    Auto,
    /// Shared memory or nothing.
    Shm,
    /// TCP even on this host.
    Tcp,
    /// libfabric even on this host, from backends that serve it.
    Ofi,
}

impl TransportArg {
    pub(super) fn way(self) -> Transport {
        match self {
            Self::Auto => Transport::Auto,
            Self::Shm => Transport::Shm,
            Self::Tcp => Transport::Tcp,
            Self::Ofi => Transport::Ofi,
        }
    }
}

impl Args {
    /// How the process reads.
    fn client(&self, of_server: ClientConfig) -> ClientConfig {
        let (transport, sidecar) = (self.transport.way(), self.sidecar.clone());
        ClientConfig { transport, sidecar, reader: self.reading.config(), ..of_server }
    }
}

#[derive(Serialize)]
struct JsonRecord<'a> {
    stream: &'a str,
    shard: u32,
    offset: u64,
    dlsn: String,
    term: u32,
    timestamp_ms: i64,
    #[serde(flatten)]
    key: format::TemplateField<'a>,
    #[serde(flatten)]
    value: format::TemplateField<'a>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    headers: Vec<(&'a str, Option<String>)>,
}

/// Writes records to standard output.
pub fn run(server: &Server, args: Args) -> anyhow::Result<()> {
    let address = server.data_address(Duration::ZERO)?;
    let kafka = args.group.is_some().then(|| server.kafka_address()).transpose()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let of_server = server.client(&Env::real())?;
        let client = Client::connect_with(Env::real(), &address, args.client(of_server)).await?;
        match kafka {
            Some(kafka) => group::consume(&client, kafka, args).await,
            None => consume(&client, args).await,
        }
    })
}

async fn consume(client: &Client, args: Args) -> anyhow::Result<()> {
    let stream = client.stream(&args.name).await?;
    for shard in &args.shard {
        anyhow::ensure!(
            *shard < stream.shards,
            "stream {} has shards 0 to {}, no {shard}",
            args.name,
            stream.shards - 1
        );
    }
    let config = |start| ConsumerConfig { shards: args.shard.clone(), start };
    // Where the end is now; what is appended from here on is not waited for.
    let ends: Option<Vec<_>> = match args.exit_at_end {
        true => Some(client.consumer(&args.name, config(Start::End)).await?.offsets().collect()),
        false => None,
    };
    let mut consumer = client.consumer(&args.name, config(args.from)).await?;
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let mut left = args.count.unwrap_or(u64::MAX);
    let mut stats =
        args.stats.map(|seconds| Stats::new(Env::real(), Duration::from_secs(seconds.into()), args.output));
    while left > 0 && !ends.as_ref().is_some_and(|ends| is_at_end(&consumer, ends)) {
        if let Some(stats) = &mut stats {
            stats.tick(client, &consumer)?;
        }
        let batch = match consumer.poll() {
            Ok(Some(batch)) => batch,
            Ok(None) => {
                // Nothing more for now: what was written so far should be seen.
                out.flush()?;
                let patience = stats.as_ref().map_or(Duration::from_secs(86_400), Stats::due_in);
                match consumer.next_within(patience).await {
                    Ok(Some(batch)) => batch,
                    Ok(None) => continue,
                    Err(error) => {
                        go_on(&mut consumer, error).await?;
                        continue;
                    }
                }
            }
            Err(error) => {
                go_on(&mut consumer, error).await?;
                continue;
            }
        };
        let end = ends.as_ref().and_then(|ends| ends.iter().find(|(shard, _)| *shard == batch.shard));
        for record in batch.records().take_while(|record| end.is_none_or(|(_, end)| record.offset < *end)) {
            if left == 0 {
                break;
            }
            left -= 1;
            write_record(&mut out, &args, &batch, &record)?;
            if let Some(stats) = &mut stats {
                stats.records += 1;
            }
        }
    }
    out.flush()?;
    if let Some(stats) = &mut stats {
        stats.print(client, &consumer)?;
    }
    Ok(())
}

/// Removed records are worth a warning, behind which it goes on; everything else ends the command.
async fn go_on(consumer: &mut Consumer, error: Error) -> anyhow::Result<()> {
    tell(error)?;
    // Where they end by now only a node knows, and that may be away for a while.
    while let Err(error) = consumer.resume().await {
        if !error.is_retriable() {
            return Err(error.into());
        }
        eprintln!("tailwater: {error}; trying again");
        Env::real().sleep(RETRY_PAUSE).await;
    }
    Ok(())
}

/// Removed records are worth a warning; everything else ends the command.
fn tell(error: Error) -> anyhow::Result<()> {
    match error {
        Error::Truncated { .. } => {
            eprintln!("tailwater: {error}");
            Ok(())
        }
        other => Err(other.into()),
    }
}

fn is_at_end(consumer: &Consumer, ends: &[(u32, tailwater_format::Offset)]) -> bool {
    consumer.offsets().zip(ends).all(|((_, offset), (_, end))| offset >= *end)
}

fn write_record(out: &mut impl Write, args: &Args, batch: &Batch, record: &Record<'_>) -> anyhow::Result<()> {
    if args.output == Format::Table {
        format::write(&args.format, out, &args.name, batch, record)?;
        return Ok(());
    }
    let headers = record.headers.iter().filter_map(Result::ok);
    let json = JsonRecord {
        stream: &args.name,
        shard: batch.shard,
        offset: record.offset.0,
        dlsn: batch.dlsn(record.offset).unwrap_or_default().to_string(),
        term: batch.term().0,
        timestamp_ms: record.timestamp_ms,
        key: format::TemplateField::key(record.key),
        value: format::TemplateField::value(record.value),
        headers: headers
            .map(|header| (header.key, header.value.map(|v| String::from_utf8_lossy(v).into_owned())))
            .collect(),
    };
    serde_json::to_writer(&mut *out, &json)?;
    out.write_all(b"\n")?;
    Ok(())
}
