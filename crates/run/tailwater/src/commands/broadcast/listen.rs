//! `tailwater broadcast listen`

use std::collections::BTreeMap;
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use futures::FutureExt;
use serde::Serialize;
use tailwater_broadcast::client::{ListenError, Listener, Sharing, SharingStats};
use tailwater_broadcast::message::FROM_NOW;
use tailwater_broadcast::{Event, Position, Positions, Stream, TooManyStreams};
use tailwater_env::Env;
use tailwater_node::api::{BroadcastStreamView, EventView};
use tailwater_node::signal::StopSignals;

use super::ProxyFlags;
use crate::output::{Format, counted};
use crate::template::{Template, write_headers, write_time};
use crate::values;

/// The letters of `--format` and of `--tombstone-format`; their help says what each is.
const LETTERS: &str = "kvnStThc";
const TOMBSTONE_LETTERS: &str = "anSt";

/// How often the token is written to its file, at most.
const TOKEN_EVERY: Duration = Duration::from_millis(500);

/// Flags of `broadcast listen`.
#[derive(clap::Args)]
pub struct Args {
    /// Streams: REGION/NAME, or NAME in the node's own region. By default all streams, with those that begin later.
    stream: Vec<String>,
    /// Where to begin: `start` (all that still matters), `now`, or token:TOKEN (where another listener ended).
    #[arg(long, default_value = "start")]
    from: From,
    /// Keep the token in this file: go on from it if the file is there, and write each later token to it.
    #[arg(long, value_name = "FILE", conflicts_with = "from")]
    token_file: Option<PathBuf>,
    /// Stop behind the events that are there at the start.
    #[arg(short, long)]
    exit_at_end: bool,
    /// Stop after this many events; tombstones count.
    #[arg(short = 'n', long, value_name = "N", value_parser = values::number::<u64>(0..=u64::MAX))]
    count: Option<u64>,
    /// Share events with the region's other listeners that share: fetch most events from them, and pass events on.
    #[arg(long)]
    share: bool,
    /// Where other listeners connect to this one. 127.0.0.1 is for listeners on the same machine.
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:0", value_parser = values::address, requires = "share")]
    share_listen: SocketAddr,
    /// The HOST:PORT that other listeners are told, if it is not the address of --share-listen.
    #[arg(long, value_name = "HOST:PORT", value_parser = values::host_and_port, requires = "share")]
    share_advertised: Option<String>,
    /// With --share, print the origins of events to standard error, every SECONDS seconds and at the end.
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, require_equals = true, default_missing_value = "1",
        value_parser = values::number::<u32>(1..=86_400), requires = "share")]
    stats: Option<u32>,
    /// How an event is written: %k key, %v payload, %n number, %S stream, %t time in ms, %T the same in RFC 3339, %h
    /// headers, %c what it collects, %% a percent sign; \n, \t, \r, \0 (a zero byte) and \\ as usual.
    #[arg(long, default_value = "%v\\n", value_parser = template)]
    format: Template,
    /// How a tombstone is written: %a the first number that it covers, %n the last; %S, %t, %% and what begins with a
    /// backslash as in --format.
    #[arg(long, value_name = "FORMAT", default_value = "# %S: %a to %n collected\\n", value_parser = tombstone)]
    tombstone_format: Template,
    /// Form of the output. With `json`, each event is a line.
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    output: Format,
}

#[derive(Clone)]
enum From {
    Start,
    Now,
    Token(Positions),
}

impl std::str::FromStr for From {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "start" => Ok(Self::Start),
            "now" => Ok(Self::Now),
            other => match other.strip_prefix("token:") {
                Some(token) => Positions::parse(token).map(Self::Token).map_err(|error| error.to_string()),
                None => Err("use start, now or token:TOKEN".to_owned()),
            },
        }
    }
}

fn template(text: &str) -> Result<Template, String> {
    Template::parse(text, LETTERS)
}

fn tombstone(text: &str) -> Result<Template, String> {
    Template::parse(text, TOMBSTONE_LETTERS)
}

#[derive(Serialize)]
struct JsonEvent<'a> {
    stream: &'a str,
    #[serde(flatten)]
    event: EventView,
}

/// Writes events to standard output until it is interrupted, or there is an end.
pub async fn run(proxy: &ProxyFlags, known: Vec<BroadcastStreamView>, args: Args) -> anyhow::Result<()> {
    let env = Env::real();
    let end = |view: BroadcastStreamView| {
        let lineage = u64::from_str_radix(&view.lineage, 16).unwrap_or(0);
        Ok((Stream::parse(&view.stream)?, Position { lineage, seq: view.held }))
    };
    let held: BTreeMap<Stream, Position> = known.into_iter().map(end).collect::<anyhow::Result<_>>()?;
    let positions = positions(proxy, &held, &args).await?;
    TooManyStreams::check(positions.named().len())?;
    if args.exit_at_end {
        // The proxy refuses the same, but with nothing to wait for its answer is not awaited.
        let named = positions.named();
        let strange = named.iter().map(|(stream, _)| stream).filter(|stream| {
            let region = stream.region();
            held.keys().all(|other| other.region() != region)
        });
        strange.map(|stream| proxy.numbering(stream)).try_for_each(|known| known.map(drop))?;
    }
    for name in &args.stream {
        let stream = proxy.stream(name)?;
        if !held.contains_key(&stream) {
            // Its first event makes it; but the name may also be another one than was meant.
            eprintln!("{stream} has no event here yet");
        }
    }
    let mut left = args.exit_at_end.then(|| ends(&positions, held));
    let mut listener = match args.share {
        false => Listener::new(&env, proxy.replicas(), positions),
        true => share(&env, proxy, positions, &args).await?,
    };
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let mut count = args.count.unwrap_or(u64::MAX);
    let mut stop = StopSignals::caught();
    let mut token_at = env.now();
    let stats_every = Duration::from_secs(args.stats.unwrap_or(86_400).into());
    let mut stats_at = env.now() + stats_every;
    while count > 0 && left.as_ref().is_none_or(|left| !left.is_empty()) {
        if stop.next().now_or_never().is_some() {
            break;
        }
        let event = match listener.get_event().now_or_never() {
            Some(event) => event,
            None => {
                // Nothing more for now: what was written so far should be seen.
                out.flush()?;
                if let Some(file) = args.token_file.as_ref().filter(|_| env.now() >= token_at + TOKEN_EVERY) {
                    write_token(file, listener.positions()).await?;
                    token_at = env.now();
                }
                if env.now() >= stats_at
                    && let Some(stats) = listener.sharing_stats()
                {
                    stats_at = env.now() + stats_every;
                    eprintln!("{}", shared(&stats));
                }
                tokio::select! {
                    biased;
                    () = stop.next() => break,
                    () = env.sleep_until(stats_at), if args.stats.is_some() => continue,
                    event = listener.get_event() => event,
                }
            }
        };
        let event = match event {
            Err(anew @ ListenError::Anew(_)) => {
                out.flush()?;
                eprintln!("{anew}");
                if let (ListenError::Anew(region), Some(left)) = (&anew, &mut left) {
                    forget(left, region, listener.positions());
                }
                continue;
            }
            Err(removed @ ListenError::Removed { .. }) => {
                out.flush()?;
                eprintln!("{removed}");
                continue;
            }
            event => event?,
        };
        let (stream, event) = (event.stream.clone(), event.to_event());
        count -= 1;
        let reached = listener.positions().streams.get(&stream);
        if let Some(left) = &mut left
            && left.get(&stream).is_some_and(|end| reached >= Some(end))
        {
            left.remove(&stream);
        }
        write_event(&mut out, &args, &stream, event)?;
    }
    out.flush()?;
    if let Some(stats) = listener.sharing_stats() {
        eprintln!("{}", shared(&stats));
    }
    match &args.token_file {
        Some(file) => write_token(file, listener.positions()).await?,
        None => eprintln!("token:{}", listener.positions().token()),
    }
    Ok(())
}

/// Takes away the ends that a region's streams had before it began anew: they are never reached.
fn forget(left: &mut BTreeMap<Stream, Position>, region: &str, positions: &Positions) {
    let lineage = positions.lineage_of(region);
    left.retain(|stream, end| stream.region() != region || end.lineage >= lineage);
}

async fn share(env: &Env, proxy: &ProxyFlags, positions: Positions, args: &Args) -> anyhow::Result<Listener> {
    let listen = args.share_listen;
    anyhow::ensure!(
        args.share_advertised.is_some() || !listen.ip().is_unspecified(),
        "other listeners can't be told to connect to {listen}: give --share-advertised HOST:PORT as well"
    );
    let advertised = args.share_advertised.clone();
    let sharing = Sharing { listen: Some(listen), advertised, ..Sharing::default() };
    let listener = Listener::sharing(env, proxy.replicas(), positions, sharing).await;
    listener.with_context(|| format!("can't listen for other listeners at --share-listen {listen}"))
}

/// What became of the events, and how it stands with the others.
fn shared(stats: &SharingStats) -> String {
    let SharingStats { region, links } = stats;
    format!(
        "shared: {}, {} of them from other listeners and {} from the proxy; {} sent to others; {} to the \
         proxy, {} to others, {} given up; {} known, {links} connected; fed with {}, over {} at most, feeds {}",
        counted(region.delivered, "event"),
        region.from_peers,
        region.from_proxy,
        region.served,
        counted(region.requests_to_proxy, "request"),
        region.requests_to_peers,
        region.timeouts,
        region.view,
        counted(region.fed as u64, "stream"),
        counted(if region.fed == 0 { 0 } else { region.hops.into() }, "member"),
        region.feeds,
    )
}

async fn positions(
    proxy: &ProxyFlags,
    held: &BTreeMap<Stream, Position>,
    args: &Args,
) -> anyhow::Result<Positions> {
    let named = args.stream.iter().map(|name| proxy.stream(name)).collect::<Result<Vec<_>, _>>()?;
    let mut from = args.from.clone();
    if let Some(file) = &args.token_file
        && let Some(token) = read_token(file).await?
    {
        from = From::Token(Positions::parse(&token).with_context(|| file.display().to_string())?);
    }
    Ok(match from {
        From::Start if named.is_empty() => Positions::start(),
        From::Start => Positions::of(named),
        // Streams that begin later are all "from now".
        From::Now if named.is_empty() => Positions { others: true, ..Positions::now(held.keys().cloned()) },
        From::Now => Positions::now(named),
        From::Token(positions) if named.is_empty() => positions,
        From::Token(positions) => positions.resumed(Positions::of(named)),
    })
}

/// The streams that are not at their ends, with those.
fn ends(positions: &Positions, held: BTreeMap<Stream, Position>) -> BTreeMap<Stream, Position> {
    let mut ends = held;
    ends.retain(|stream, end| match positions.streams.get(stream) {
        Some(at) => at < end && at.seq != FROM_NOW && end.seq > 0,
        None => positions.others && end.seq > 0,
    });
    ends
}

fn write_event(out: &mut impl Write, args: &Args, stream: &Stream, event: Event) -> anyhow::Result<()> {
    if args.output == Format::Json {
        serde_json::to_writer(&mut *out, &JsonEvent { stream: stream.as_str(), event: event.into() })?;
        out.write_all(b"\n")?;
        return Ok(());
    }
    let Some(content) = event.content() else {
        args.tombstone_format.write(out, |out, letter| match letter {
            'a' => write!(out, "{}", event.after() + 1),
            'n' => write!(out, "{}", event.seq),
            't' => write!(out, "{}", event.time_ms),
            _ => write!(out, "{stream}"),
        })?;
        return Ok(());
    };
    args.format.write(out, |out, letter| match letter {
        'k' => out.write_all(content.key.as_deref().unwrap_or_default()),
        'v' => out.write_all(&content.payload),
        'n' => write!(out, "{}", event.seq),
        't' => write!(out, "{}", event.time_ms),
        'T' => write_time(out, event.time_ms as i64),
        'h' => {
            write_headers(out, content.headers.iter().map(|(name, value)| (name.as_ref(), value.as_ref())))
        }
        'c' => match &event.kind {
            tailwater_broadcast::Kind::Collection(_, collect) => write!(out, "{collect}"),
            _ => Ok(()),
        },
        _ => write!(out, "{stream}"),
    })?;
    Ok(())
}

async fn read_token(file: &Path) -> anyhow::Result<Option<String>> {
    match tokio::fs::read_to_string(file).await {
        Ok(token) => Ok(Some(token.trim().trim_start_matches("token:").to_owned())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("can't read {}", file.display())),
    }
}

/// Writes the token beside the file, and then into its place: whoever is interrupted has the old one.
async fn write_token(file: &Path, positions: &Positions) -> anyhow::Result<()> {
    let mut beside = file.as_os_str().to_owned();
    beside.push(".new");
    let failed = || format!("can't write {}", file.display());
    tokio::fs::write(&beside, positions.token() + "\n").await.with_context(failed)?;
    tokio::fs::rename(&beside, file).await.with_context(failed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::template::help_names;

    #[test]
    fn the_help_names_every_letter_and_no_other() {
        help_names(&["broadcast", "listen"], "format", LETTERS);
        help_names(&["broadcast", "listen"], "tombstone-format", TOMBSTONE_LETTERS);
    }
}
