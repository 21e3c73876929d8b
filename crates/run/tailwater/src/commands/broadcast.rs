//! `tailwater broadcast …`

mod listen;
mod publish;

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Context;
use clap::Subcommand;
use tailwater_broadcast::Stream;
use tailwater_broadcast::client::ReplicasAt;
use tailwater_client::Dialer;
use tailwater_env::Env;
use tailwater_node::api::{BroadcastStreamView, BroadcastView, DelayView};
use tailwater_tls::DialError;
use tokio::runtime::Runtime;

use crate::admin::Server;
use crate::output::{self, Format};

/// What to do with broadcasts.
#[derive(Subcommand)]
pub enum Command {
    /// Publish the lines of a file, or of standard input, in a stream.
    Publish(publish::Args),
    /// Write out the events of streams from a position on, as they come.
    Listen(listen::Args),
    /// List streams, with the node's position in each and the events that it keeps.
    Streams {
        /// Form of the output.
        #[arg(short, long, value_enum, default_value_t = Format::Table)]
        output: Format,
    },
    /// Show the node's place in its region's chain, its events of each region, their delays, and its counters.
    Stats {
        /// Form of the output.
        #[arg(short, long, value_enum, default_value_t = Format::Table)]
        output: Format,
    },
}

/// Runs one of them.
pub fn run(server: &Server, command: Command) -> anyhow::Result<()> {
    let runtime = || tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    match command {
        Command::Publish(args) => {
            let runtime = runtime()?;
            let proxy = ProxyFlags::of(server, &runtime, Duration::from_millis(args.deadline_ms))?;
            let done = runtime.block_on(publish::run(&proxy, args));
            // A read of standard input goes on after an event was refused, and nobody waits for it.
            runtime.shutdown_background();
            done
        }
        Command::Listen(args) => {
            let runtime = runtime()?;
            let proxy = ProxyFlags::of(server, &runtime, Duration::ZERO)?;
            let streams = server.get("/v1/broadcast/streams")?;
            runtime.block_on(listen::run(&proxy, streams, args))
        }
        Command::Streams { output } => streams(server, output),
        Command::Stats { output } => stats(server, output),
    }
}

/// The proxy of the node's region, and where those of others are.
struct ProxyFlags {
    region: String,
    addresses: Vec<String>,
    dialer: Dialer,
    others: BTreeMap<String, Vec<String>>,
}

impl ProxyFlags {
    /// Of a node that is waited for until `patience` is over.
    fn of(server: &Server, runtime: &Runtime, patience: Duration) -> anyhow::Result<Self> {
        let view: BroadcastView = server.get_within(patience, "/v1/broadcast")?;
        let mut addresses = vec![view.address];
        for replica in view.chain {
            if !addresses.contains(&replica.address) {
                addresses.push(replica.address);
            }
        }
        let dialer = match view.tls {
            true => runtime.block_on(trusted(server, &addresses[0]))?,
            false => Dialer::plain(),
        };
        Ok(Self { region: view.region, addresses, dialer, others: view.regions })
    }

    /// Where the region's replicas are.
    fn replicas(&self) -> ReplicasAt {
        ReplicasAt::new(self.addresses.clone(), self.dialer.clone())
    }

    /// Where events of a stream get their numbers.
    ///
    /// # Errors
    /// If the node does not know its region.
    fn numbering(&self, stream: &Stream) -> anyhow::Result<ReplicasAt> {
        let region = stream.region();
        let found = if region == self.region { Some(&self.addresses) } else { self.others.get(region) };
        let found = found.map(|addresses| ReplicasAt::new(addresses.clone(), self.dialer.clone()));
        found.with_context(|| {
            let known = self.others.keys().map(|other| format!(", {other}")).collect::<String>();
            format!(
                "{stream} belongs to region {region}, and the node knows {}{known}: name one that knows it with \
                 --server, or add it to [broadcast.regions]",
                self.region
            )
        })
    }

    /// A stream by its name, in this region if none is given.
    fn stream(&self, name: &str) -> anyhow::Result<Stream> {
        let full = if name.contains('/') { name.to_owned() } else { format!("{}/{name}", self.region) };
        Stream::parse(&full).with_context(|| format!("{name} can't be a stream"))
    }
}

/// What makes connections to replicas in TLS, if the one at `address` takes them.
///
/// # Errors
/// Why not, which publishers and listeners would wait for for ever.
async fn trusted(server: &Server, address: &str) -> anyhow::Result<Dialer> {
    let dialer = server.dialer(&Env::real())?;
    anyhow::ensure!(
        dialer.is_secured(),
        "the replica at {address} is reached in TLS, and nothing says whose certificates are good: name the file of its CA \
         with --ca or TAILWATER_CA"
    );
    match dialer.connect(address).await {
        Err(error @ DialError::Refused(_)) => Err(error).with_context(|| format!("the replica at {address}")),
        // One that is away is waited for.
        _ => Ok(dialer),
    }
}

fn streams(server: &Server, output: Format) -> anyhow::Result<()> {
    let streams: Vec<BroadcastStreamView> = server.get("/v1/broadcast/streams")?;
    if output == Format::Json {
        return streams.iter().try_for_each(output::print_json);
    }
    let mut table = output::table(&[
        "stream",
        "from",
        "lineage",
        "last",
        "held",
        "live",
        "stored",
        "bytes",
        "tombstones",
    ]);
    for stream in streams {
        table.add_row([
            stream.stream,
            stream.source.unwrap_or_else(|| "-".to_owned()),
            stream.lineage,
            stream.last.to_string(),
            stream.held.to_string(),
            stream.live.to_string(),
            stream.stored.to_string(),
            output::bytes(stream.bytes),
            percent(stream.tombstone_ratio),
        ]);
    }
    output::print(&table)
}

fn percent(ratio: f64) -> String {
    format!("{:.1} %", 100.0 * ratio)
}

/// What some of a region's delays are below.
fn below(delay: Option<DelayView>, percentile_ms: impl Fn(DelayView) -> Option<u64>) -> String {
    match delay.map(percentile_ms) {
        None => "-".to_owned(),
        Some(None) => "131 s or more".to_owned(),
        Some(Some(ms)) => format!("< {ms} ms"),
    }
}

fn stats(server: &Server, output: Format) -> anyhow::Result<()> {
    let view: BroadcastView = server.get("/v1/broadcast")?;
    if output == Format::Json {
        return output::print_json(&view);
    }
    let members = view.chain.iter().filter(|replica| replica.role != "joining").count();
    let mut table = output::table(&["key", "value"]);
    for (key, value) in [
        ("region", &view.region),
        ("replica", &view.replica),
        ("address", &view.address),
        ("role", &view.role),
        ("place in the chain", &format!("{} of {}", view.place, members)),
        ("answers listeners", &if view.answers { "yes" } else { "no" }.to_owned()),
        ("epoch", &view.epoch.to_string()),
        ("lineage", &view.lineage),
        ("connections", &view.connections.to_string()),
        ("streams", &view.streams.to_string()),
        ("published", &view.published.to_string()),
        ("repeated", &view.repeated.to_string()),
        ("refused", &view.refused.to_string()),
        ("followed", &view.followed.to_string()),
        ("remote", &view.remote.to_string()),
        ("moved", &view.moved.to_string()),
        ("gaps", &view.gaps.to_string()),
        ("streams left out", &view.left_out.to_string()),
        ("removed by retention", &view.removed.to_string()),
        ("delayed by quotas", &view.delayed.to_string()),
        ("refused by quotas", &view.throttled.to_string()),
        ("listeners that share", &view.sharing.members.to_string()),
        ("of those, in the view", &view.sharing.view.to_string()),
        ("of those, fed from here", &view.sharing.standing.to_string()),
        ("requests of them", &view.sharing.requests.to_string()),
        ("of those, dropped", &view.sharing.dropped.to_string()),
        ("events sent to them", &view.sharing.events.to_string()),
        ("bytes of those", &output::bytes(view.sharing.bytes)),
    ] {
        table.add_row([key, value]);
    }
    output::print(&table)?;
    output::print(&"")?;
    let heads = ["region", "lineage", "streams", "events", "live", "tombstones", "delay p50", "p90", "p99"];
    let mut table = output::table(&heads);
    for (region, of) in view.by_region {
        table.add_row([
            region,
            if of.lineage.is_empty() { "-".to_owned() } else { of.lineage },
            of.streams.to_string(),
            of.events.to_string(),
            of.live.to_string(),
            percent(of.tombstone_ratio),
            below(of.delay, |delay| delay.p50_ms),
            below(of.delay, |delay| delay.p90_ms),
            below(of.delay, |delay| delay.p99_ms),
        ]);
    }
    output::print(&table)?;
    output::print(&"")?;
    let mut table = output::table(&["role", "address", "replica"]);
    for replica in view.chain {
        table.add_row([replica.role, replica.address, replica.id]);
    }
    output::print(&table)?;
    if !view.bridges.is_empty() {
        output::print(&"")?;
        let mut table =
            output::table(&["bridge from", "to", "carried", "lag", "removed", "errors", "waits because"]);
        for bridge in view.bridges {
            let why = bridge.error.unwrap_or_default();
            let [carried, removed, errors] =
                [bridge.carried, bridge.removed, bridge.errors].map(|n| n.to_string());
            let lag = bridge.lag.map_or_else(|| "?".to_owned(), |lag| lag.to_string());
            table.add_row([bridge.from, bridge.to, carried, lag, removed, errors, why]);
        }
        output::print(&table)?;
    }
    if !view.regions.is_empty() {
        output::print(&"")?;
        let mut table = output::table(&["region", "addresses"]);
        for (region, addresses) in view.regions {
            table.add_row([region, addresses.join(" ")]);
        }
        output::print(&table)?;
    }
    Ok(())
}
