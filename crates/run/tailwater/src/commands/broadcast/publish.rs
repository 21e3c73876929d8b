//! `tailwater broadcast publish`

use std::path::PathBuf;

use anyhow::Context;
use bytes::Bytes;
use futures::stream::FuturesOrdered;
use futures::{FutureExt, StreamExt};
use serde::Serialize;
use tailwater_broadcast::client::{Acknowledged, PublishError, Publisher};
use tailwater_broadcast::limits::PAYLOAD_BYTES_MAX;
use tailwater_broadcast::{Collect, Content};
use tailwater_env::Env;

use super::ProxyFlags;
use crate::lines::Lines;
use crate::output::{self, Format};
use crate::values;

/// Events that are not acknowledged yet; beyond it no more lines are read.
const UNACKNOWLEDGED_MAX: usize = 65_536;

/// Flags of `broadcast publish`.
#[derive(clap::Args)]
pub struct Args {
    /// The stream: REGION/NAME, or NAME in the node's own region. Its first event makes it.
    stream: String,
    /// File whose lines become events. By default standard input. A line ends with LF or CR LF, which the event does
    /// not have, and has 1 MiB at most.
    file: Option<PathBuf>,
    /// The key of all events.
    #[arg(long, value_name = "TEXT", conflicts_with = "key_delimiter")]
    key: Option<String>,
    /// What separates key and payload in a line. A line without it has no key.
    #[arg(short, long, value_name = "TEXT")]
    key_delimiter: Option<String>,
    /// A header of all events. It may be given several times.
    #[arg(long, value_name = "NAME=VALUE", value_parser = header)]
    header: Vec<(Bytes, Bytes)>,
    /// Which earlier events each event makes obsolete: same-key, keep-last=N, before=NUMBER, older-than=AGE (as in 7d,
    /// 12h, 5m, 30s, 100ms) or matching=PREDICATE.
    #[arg(long, value_name = "WHICH")]
    collect: Option<String>,
    /// How long a node that is not there yet is waited for, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 120_000, value_parser = values::number::<u64>(0..=u64::MAX))]
    pub deadline_ms: u64,
    /// Form of the output. With `json`, each acknowledged event is a line: its stream, its number, and whether it was
    /// repeated. Of a repeated event an earlier try had published it, and its own number is at most the one given.
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    output: Format,
}

#[derive(Serialize)]
struct PublishCounts<'a> {
    stream: &'a str,
    seq: u64,
    repeated: bool,
}

fn header(text: &str) -> Result<(Bytes, Bytes), String> {
    let (name, value) = text.split_once('=').ok_or("a header is NAME=VALUE")?;
    Ok((Bytes::copy_from_slice(name.as_bytes()), Bytes::copy_from_slice(value.as_bytes())))
}

/// Publishes lines until there are no more and all are acknowledged.
pub async fn run(proxy: &ProxyFlags, args: Args) -> anyhow::Result<()> {
    let env = Env::real();
    let stream = proxy.stream(&args.stream)?;
    let addresses = proxy.numbering(&stream)?;
    let now_ms = env.wall_ms().max(0) as u64;
    let collect = args.collect.as_deref().map(|text| Collect::parse(text, now_ms)).transpose()?;
    let mut lines = Lines::open(args.file.as_deref(), PAYLOAD_BYTES_MAX).await?;
    let publisher = Publisher::new(&env, addresses);
    let mut answers = FuturesOrdered::new();
    let mut published = 0u64;
    let mut tell = |answer: Result<Acknowledged, PublishError>| {
        let Acknowledged { seq, repeated } =
            answer.with_context(|| format!("{published} events were published before this"))?;
        published += 1;
        match args.output {
            Format::Json => output::print_json(&PublishCounts { stream: stream.as_str(), seq, repeated }),
            Format::Table => Ok(()),
        }
    };
    loop {
        // A terminal or a pipe may be silent for long: what was published is reported meanwhile.
        let line = tokio::select! {
            biased;
            Some(answer) = answers.next() => {
                tell(answer)?;
                continue;
            }
            line = lines.next(), if answers.len() < UNACKNOWLEDGED_MAX => line?,
        };
        let Some(line) = line else { break };
        let content = content(line, &args);
        loop {
            // It is in the publisher's queue when this returns, or was refused.
            let mut answer = publisher.publish(&stream, &content, collect.as_ref()).boxed();
            match futures::poll!(&mut answer) {
                std::task::Poll::Ready(Err(PublishError::Full)) => match answers.next().await {
                    Some(answer) => tell(answer)?,
                    None => env.sleep(std::time::Duration::from_millis(1)).await,
                },
                // Told behind those that are waited for.
                std::task::Poll::Ready(answer) => {
                    answers.push_back(std::future::ready(answer).boxed());
                    break;
                }
                std::task::Poll::Pending => {
                    answers.push_back(answer);
                    break;
                }
            }
        }
    }
    while let Some(answer) = answers.next().await {
        tell(answer)?;
    }
    if args.output == Format::Table {
        eprintln!("{} published in {stream}", output::counted(published, "event"));
    }
    Ok(())
}

fn content(line: &[u8], args: &Args) -> Content {
    let (mut key, payload) = crate::commands::produce::split(line, args.key_delimiter.as_deref());
    key = args.key.as_ref().map(String::as_bytes).or(key);
    Content {
        key: key.map(Bytes::copy_from_slice),
        headers: args.header.clone(),
        payload: Bytes::copy_from_slice(payload),
    }
}
