//! `tailwater produce`

use std::collections::VecDeque;
use std::convert::Infallible;
use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use clap::builder::PossibleValue;
use indicatif::ProgressBar;
use serde::Serialize;
use tailwater_client::limits::RECORD_BYTES_MAX;
use tailwater_client::{Ack, Client, Error, Partitioner, Producer, ProducerSettings};
use tailwater_env::Env;
use tailwater_format::call::CallErrorCode;
use tokio::signal::unix::{SignalKind, signal};

use crate::admin::Server;
use crate::lines::{self, Lines};
use crate::output::{self, Format};
use crate::values;

/// How long records wait before it is said why.
const TROUBLE_TOLD_AFTER: Duration = Duration::from_secs(1);
const TROUBLE_LOOK_EVERY: Duration = Duration::from_millis(200);

/// Flags of `produce`.
#[derive(clap::Args)]
pub struct Args {
    /// The stream.
    name: String,
    /// File whose lines become records. By default standard input. A line ends with LF or CR LF, which the record does
    /// not have. Its other bytes are kept, in whatever encoding. It has 4,194,048 bytes at most.
    file: Option<PathBuf>,
    /// What separates key and value in a line. A line without it has no key.
    #[arg(short, long, value_name = "TEXT")]
    key_delimiter: Option<String>,
    /// Which shard a record goes to.
    #[arg(long, value_enum, default_value_t = PartitionerArg::Key)]
    partitioner: PartitionerArg,
    /// Append all records to this shard.
    #[arg(long, value_name = "N", value_parser = values::number::<u32>(0..=u32::MAX.into()), conflicts_with = "partitioner")]
    shard: Option<u32>,
    /// Compression: none, gzip, snappy, lz4 or zstd.
    #[arg(long, default_value = "none")]
    codec: String,
    /// How long to try a batch before it fails, in milliseconds. Then the command fails as well. The command also waits
    /// this long for a node that is not there yet.
    #[arg(long, value_name = "MS", default_value_t = 120_000, value_parser = values::number::<u64>(0..=u64::MAX))]
    deadline_ms: u64,
    /// Form of the output. With `json`, each acknowledged batch is a line: stream, shard, first offset, count.
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    output: Format,
}

#[derive(clap::ValueEnum, Clone, Copy)]
enum PartitionerArg {
    /// By the hash of the key. Records without a key go to one shard after the other.
    Key,
    /// To one shard after the other.
    RoundRobin,
    /// To any shard.
    Random,
}

impl Args {
    /// How to go on with a line, in the same way.
    fn rest(&self, next: u64) -> String {
        let shard = self.shard.map(|shard| shard.to_string());
        let partitioner = self.partitioner.to_possible_value();
        let partitioner = partitioner.filter(|_| !matches!(self.partitioner, PartitionerArg::Key));
        let options = [
            ("--key-delimiter", self.key_delimiter.as_deref()),
            ("--shard", shard.as_deref()),
            ("--partitioner", partitioner.as_ref().map(PossibleValue::get_name)),
            ("--codec", Some(self.codec.as_str()).filter(|codec| *codec != "none")),
        ];
        lines::rest(next, &["produce", &self.name], &options)
    }
}

/// How reading lines ended.
enum InputEnd {
    /// There are no more.
    Input,
    /// By Ctrl-C.
    Interrupted,
}

#[derive(Serialize)]
struct AckedBatch<'a> {
    stream: &'a str,
    shard: u32,
    first_offset: u64,
    count: u32,
}

/// Appends lines until there are no more and all are acknowledged.
pub fn run(server: &Server, args: Args) -> anyhow::Result<()> {
    let address = server.data_address(Duration::from_millis(args.deadline_ms))?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let done = runtime.block_on(produce(server, &address, args));
    // A read of standard input goes on after a Ctrl-C, and nobody waits for it.
    runtime.shutdown_background();
    done
}

async fn produce(server: &Server, address: &str, args: Args) -> anyhow::Result<()> {
    let partitioner = match args.partitioner {
        PartitionerArg::Key => Partitioner::Key,
        PartitionerArg::RoundRobin => Partitioner::RoundRobin,
        PartitionerArg::Random => Partitioner::Random,
    };
    let codec = args.codec.parse().map_err(|error| anyhow::anyhow!("{error}"))?;
    let deadline = Duration::from_millis(args.deadline_ms);
    let config = ProducerSettings { partitioner, codec, deadline, ..Default::default() };
    let env = Env::real();
    let config_of_client = server.client(&env)?;
    let client = Client::connect_with(env, address, config_of_client).await?;
    let producer = client.producer(&args.name, config).await?;
    if let Some(shard) = args.shard {
        let shards = producer.stream().shards;
        anyhow::ensure!(shard < shards, "stream {} has shards 0 to {}, no {shard}", args.name, shards - 1);
    }
    #[allow(clippy::disallowed_methods)] // Its user's file.
    let size = args.file.as_ref().and_then(|file| std::fs::metadata(file).ok()).map(|file| file.len());
    let mut lines = Lines::open(args.file.as_deref(), RECORD_BYTES_MAX).await?;
    let progress = output::progress(size);
    let mut report = Report::new(&args.name, args.output);
    let appended = tokio::select! {
        done = append(&producer, &args, &mut lines, &mut report, &progress) => done,
        never = tell_trouble(&producer, &progress) => match never {},
    };
    progress.finish_and_clear();
    let count = output::counted(report.appended, "record");
    let rest = || {
        let sent_lines = output::counted(report.sent, "line");
        let were = output::were(report.appended);
        format!("{count} of {sent_lines} {were} appended; {}", report.rest(&args, &lines))
    };
    match appended {
        Ok(InputEnd::Input) if args.output == Format::Table => eprintln!("{count} appended to {}", args.name),
        Ok(InputEnd::Input) => {}
        Ok(InputEnd::Interrupted) => anyhow::bail!("interrupted: {}", rest()),
        Err(error) => return Err(error.context(rest())),
    }
    Ok(())
}

async fn append(
    producer: &Producer,
    args: &Args,
    lines: &mut Lines,
    report: &mut Report<'_>,
    progress: &ProgressBar,
) -> anyhow::Result<InputEnd> {
    let mut interrupts = signal(SignalKind::interrupt())?;
    let ended = loop {
        if report.failure.is_some() {
            break InputEnd::Input;
        }
        // A terminal or a pipe may be silent for long: what was sent is reported meanwhile.
        let line = tokio::select! {
            biased;
            _ = interrupts.recv() => break InputEnd::Interrupted,
            line = lines.next() => line,
            told = report.next() => {
                told?;
                continue;
            }
        };
        let line = match line {
            Ok(Some(line)) => line,
            Ok(None) => break InputEnd::Input,
            Err(error) => {
                report.failure = Some(error);
                continue;
            }
        };
        progress.inc(line.len() as u64 + 1);
        let (key, value) = split(line, args.key_delimiter.as_deref());
        match send(producer, args.shard, key, value).await {
            Ok(ack) => report.add(ack),
            Err(error) => report.failure = Some(error.into()),
        }
        report.finished()?;
    };
    // What was sent is on its way, however it ended. Whoever interrupts a second time does not wait for it.
    let told = async {
        producer.flush().await;
        while !report.acks.is_empty() {
            report.next().await?;
        }
        anyhow::Ok(())
    };
    tokio::select! {
        told = told => told?,
        _ = interrupts.recv() => {}
    }
    match report.failure.take() {
        Some(error) => Err(error),
        None => Ok(ended),
    }
}

/// Tells why nothing is acknowledged, for as long as that is so: batches are tried for minutes.
async fn tell_trouble(producer: &Producer, progress: &ProgressBar) -> Infallible {
    let env = Env::real();
    let mut told = None;
    loop {
        env.sleep(TROUBLE_LOOK_EVERY).await;
        let trouble = producer.trouble().filter(|trouble| trouble.lasts >= TROUBLE_TOLD_AFTER);
        let error = trouble.map(|trouble| trouble.error);
        progress.set_message(error.as_ref().map(Error::to_string).unwrap_or_default());
        // The words of one reason have numbers in them that change.
        let kind = error.as_ref().map(kind);
        if let Some(error) = error.filter(|_| kind != told) {
            progress.suspend(|| eprintln!("tailwater: not acknowledged, trying again: {error}"));
        }
        told = kind;
    }
}

/// What tells one reason from another.
fn kind(error: &Error) -> (std::mem::Discriminant<Error>, Option<CallErrorCode>) {
    let code = match error {
        Error::Refused(refusal) => Some(refusal.code),
        _ => None,
    };
    (std::mem::discriminant(error), code)
}

async fn send(
    producer: &Producer,
    shard: Option<u32>,
    key: Option<&[u8]>,
    value: &[u8],
) -> Result<Ack, Error> {
    loop {
        let sent = match shard {
            Some(shard) => producer.send_to(shard, key, value),
            None => producer.send(key, value),
        };
        match sent {
            Err(Error::BufferFull { .. }) => producer.room().await,
            other => return other,
        }
    }
}

/// A line's key, which ends before the first delimiter, and its value.
pub fn split<'a>(line: &'a [u8], delimiter: Option<&str>) -> (Option<&'a [u8]>, &'a [u8]) {
    let Some(delimiter) = delimiter.map(str::as_bytes).filter(|delimiter| !delimiter.is_empty()) else {
        return (None, line);
    };
    match line.windows(delimiter.len()).position(|window| window == delimiter) {
        Some(at) => (Some(&line[..at]), &line[at + delimiter.len()..]),
        None => (None, line),
    }
}

/// What was sent, and what became of it.
struct Report<'a> {
    name: &'a str,
    format: Format,
    /// Those that are not acknowledged yet, in the order of their lines.
    acks: VecDeque<SentLines>,
    /// Records that the producer took, one for each line.
    sent: u64,
    /// Records that were acknowledged.
    appended: u64,
    /// Lines that were not appended, and the first of them, from 1.
    failed: u64,
    first_failed: Option<u64>,
    /// Why the first of those was not, or why no more lines were read.
    failure: Option<anyhow::Error>,
}

/// Lines that follow each other and share a batch.
struct SentLines {
    /// That of the first one.
    ack: Ack,
    /// Its number, from 1.
    first: u64,
    count: u64,
}

impl<'a> Report<'a> {
    fn new(name: &'a str, format: Format) -> Self {
        let (acks, failure) = (VecDeque::new(), None);
        Self { name, format, acks, sent: 0, appended: 0, failed: 0, first_failed: None, failure }
    }

    fn add(&mut self, ack: Ack) {
        self.sent += 1;
        match self.acks.back_mut().filter(|last| last.ack.same_batch(&ack)) {
            // Records that share a batch share its acknowledgement.
            Some(last) => last.count += 1,
            None => self.acks.push_back(SentLines { ack, first: self.sent, count: 1 }),
        }
    }

    /// Reports what was acknowledged by now.
    fn finished(&mut self) -> anyhow::Result<()> {
        while let Some(result) = self.acks.front().and_then(|lines| lines.ack.try_result()) {
            self.report(result)?;
        }
        Ok(())
    }

    /// Waits for the oldest one and reports it. Waits for ever if there is none.
    async fn next(&mut self) -> anyhow::Result<()> {
        match self.acks.front_mut() {
            Some(lines) => {
                let result = (&mut lines.ack).await;
                self.report(result)
            }
            None => std::future::pending().await,
        }
    }

    /// Reports what became of the oldest ones.
    fn report(&mut self, result: Result<tailwater_client::Acked, Error>) -> anyhow::Result<()> {
        let Some(lines) = self.acks.pop_front() else { return Ok(()) };
        let acked = match result {
            Ok(acked) => acked,
            Err(error) => {
                self.failed += lines.count;
                self.first_failed.get_or_insert(lines.first);
                self.failure.get_or_insert_with(|| error.into());
                return Ok(());
            }
        };
        self.appended += lines.count;
        // Lines for another shard may lie between those of the batch: its first record tells of it.
        if acked.offset == acked.base_offset && self.format == Format::Json {
            output::print_json(&AckedBatch {
                stream: self.name,
                shard: acked.shard,
                first_offset: acked.base_offset.0,
                count: acked.count,
            })?;
        }
        Ok(())
    }

    /// How to send what was not appended. Lines behind a failed one may have been appended: they come again then, as
    /// nothing may be left out.
    fn rest(&self, args: &Args, lines: &Lines) -> String {
        let (failed, open) = (self.failed, self.sent - self.appended - self.failed);
        let first_open = self.acks.front().map(|lines| lines.first);
        let Some(first) = first_open.into_iter().chain(self.first_failed).min() else {
            return args.rest(lines.next_behind(self.sent));
        };
        let mut told = String::new();
        if failed > 0 {
            told += &format!("{} {} not; ", output::counted(failed, "line"), output::were(failed));
        }
        if open > 0 {
            told += &format!("it is not known of {}; ", output::counted(open, "line"));
        }
        let again = match self.sent - first + 1 > failed + open {
            true => format!(
                "line {first} is the first of them, and some behind it were appended and come again; "
            ),
            false => String::new(),
        };
        told + &again + &args.rest(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_cut_at_its_first_delimiter_only() {
        assert_eq!(split(b"k::v::w", Some("::")), (Some(&b"k"[..]), &b"v::w"[..]));
        assert_eq!(split(b"no key", Some("::")), (None, &b"no key"[..]));
        assert_eq!(split(b"", Some(":")), (None, &b""[..]));
        assert_eq!(split(b":v", Some(":")), (Some(&b""[..]), &b"v"[..]));
    }
}
