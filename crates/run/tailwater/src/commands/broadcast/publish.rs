//! `tailwater broadcast publish`

use std::path::PathBuf;

use bytes::Bytes;
use futures::stream::FuturesOrdered;
use futures::{FutureExt, StreamExt};
use serde::Serialize;
use tailwater_broadcast::client::{Acknowledged, PublishError, Publisher};
use tailwater_broadcast::limits::PAYLOAD_BYTES_MAX;
use tailwater_broadcast::{Collect, Content, Stream};
use tailwater_env::Env;
use tokio::signal::unix::{SignalKind, signal};

use super::ProxyFlags;
use crate::lines::{self, Lines};
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
    /// not have. Its other bytes are kept, in whatever encoding. It has 1,048,576 bytes at most.
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
    /// Earlier events that each event makes obsolete: same-key, keep-last=N, before=NUMBER, older-than=AGE (as in 7d,
    /// 12h, 5m, 30s, 100ms) or matching=PREDICATE.
    #[arg(long, value_name = "WHICH")]
    collect: Option<String>,
    /// How long to wait for a node that is not there yet, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 120_000, value_parser = values::number::<u64>(0..=u64::MAX))]
    pub deadline_ms: u64,
    /// Form of the output. With `json`, each acknowledged event is a line: its stream, its number, and whether it was
    /// repeated. A repeated event was published by an earlier try. Its own number is at most the one in the line.
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

/// Publishes lines until there are no more, one can't be read or is refused, or a Ctrl-C comes, and all are answered. A
/// second Ctrl-C does not wait for answers.
///
/// # Errors
/// If not all were published: how many were, and how to go on.
pub async fn run(proxy: &ProxyFlags, args: Args) -> anyhow::Result<()> {
    let env = Env::real();
    let stream = proxy.stream(&args.stream)?;
    let addresses = proxy.numbering(&stream)?;
    let now_ms = env.wall_ms().max(0) as u64;
    let collect = args.collect.as_deref().map(|text| Collect::parse(text, now_ms)).transpose()?;
    let mut lines = Lines::open(args.file.as_deref(), PAYLOAD_BYTES_MAX).await?;
    let publisher = Publisher::new(&env, addresses);
    let mut answers = FuturesOrdered::new();
    let mut told =
        PublishedLines { stream: &stream, format: args.output, answered: 0, published: 0, refused: None };
    let mut unread = None;
    let mut interrupts = signal(SignalKind::interrupt())?;
    while told.refused.is_none() {
        // A terminal or a pipe may be silent for long: what was published is reported meanwhile.
        let line = tokio::select! {
            biased;
            _ = interrupts.recv() => {
                unread = Some(anyhow::anyhow!("interrupted"));
                break;
            }
            Some(answer) = answers.next() => {
                told.add(answer)?;
                continue;
            }
            line = lines.next(), if answers.len() < UNACKNOWLEDGED_MAX => line,
        };
        let line = match line {
            Ok(Some(line)) => line,
            Ok(None) => break,
            Err(error) => {
                unread = Some(error);
                break;
            }
        };
        let content = content(line, &args);
        loop {
            // It is in the publisher's queue when this returns, or was refused.
            let mut answer = publisher.publish(&stream, &content, collect.as_ref()).boxed();
            match futures::poll!(&mut answer) {
                std::task::Poll::Ready(Err(PublishError::Full)) => match answers.next().await {
                    Some(answer) => told.add(answer)?,
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
    // What was read is on its way, however reading ended.
    loop {
        tokio::select! {
            biased;
            _ = interrupts.recv() => break,
            answer = answers.next() => match answer {
                Some(answer) => told.add(answer)?,
                None => break,
            },
        }
    }
    told.end(&args, &lines, unread, answers.len() as u64)
}

/// What is known of the lines that were read.
struct PublishedLines<'a> {
    stream: &'a Stream,
    format: Format,
    /// Lines whose events were published or refused.
    answered: u64,
    published: u64,
    /// The first one that was refused, from 1, and why.
    refused: Option<(u64, PublishError)>,
}

impl PublishedLines<'_> {
    /// The next line's answer: they come in the order of the lines.
    fn add(&mut self, answer: Result<Acknowledged, PublishError>) -> anyhow::Result<()> {
        self.answered += 1;
        match answer {
            Ok(Acknowledged { seq, repeated }) => {
                self.published += 1;
                match self.format {
                    Format::Json => {
                        output::print_json(&PublishCounts { stream: self.stream.as_str(), seq, repeated })
                    }
                    Format::Table => Ok(()),
                }
            }
            Err(error) => {
                self.refused.get_or_insert((self.answered, error));
                Ok(())
            }
        }
    }

    /// Tells what became of all lines; `unread` is why no more were read. The last `open` ones have no answer.
    fn end(self, args: &Args, lines: &Lines, unread: Option<anyhow::Error>, open: u64) -> anyhow::Result<()> {
        let Self { stream, answered, published, .. } = self;
        let of_lines = output::counted(answered + open, "line");
        let published_of = format!("{published} of {of_lines} {} published", output::were(published));
        match (self.refused, unread) {
            (None, None) if self.format == Format::Table => {
                eprintln!("{} published in {stream}", output::counted(published, "event"));
                Ok(())
            }
            (None, None) => Ok(()),
            (None, Some(unread)) => {
                let not_known = match open {
                    0 => String::new(),
                    _ => format!("it is not known of those from line {} on; ", answered + 1),
                };
                let rest = args.rest(lines.next_behind(answered));
                Err(unread.context(format!("{published_of}; {not_known}{rest}")))
            }
            (Some((line, error)), unread) => {
                if let Some(unread) = unread {
                    eprintln!("tailwater: {unread:#}");
                }
                // Lines behind the first that was refused may have been published: sent again, they would be twice.
                let rest = match published + 1 == line {
                    true => args.rest(line),
                    false => format!(
                        "{} refused, and some of the lines behind the first of those were not; behind all of them, {}",
                        answered - published,
                        args.rest(lines.next_behind(answered))
                    ),
                };
                Err(anyhow::Error::new(error)
                    .context(format!("{published_of}; {rest}; line {line} was refused")))
            }
        }
    }
}

impl Args {
    /// How to go on with a line, in the same way.
    fn rest(&self, next: u64) -> String {
        let headers = self.header.iter().map(|(name, value)| {
            format!("{}={}", String::from_utf8_lossy(name), String::from_utf8_lossy(value))
        });
        let headers: Vec<String> = headers.collect();
        let mut options = vec![
            ("--key", self.key.as_deref()),
            ("--key-delimiter", self.key_delimiter.as_deref()),
            ("--collect", self.collect.as_deref()),
        ];
        options.extend(headers.iter().map(|header| ("--header", Some(header.as_str()))));
        lines::rest(next, &["broadcast", "publish", &self.stream], &options)
    }
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
