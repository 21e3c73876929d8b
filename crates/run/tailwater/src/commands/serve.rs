//! `tailwater serve`

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::Serialize;
use tailwater_node::signal::{StopSignals, at_hangups};
use tailwater_node::{Config, Node};

use crate::values;

/// Flags of `serve`. Other settings come from `TAILWATER_…` variables, the file, or the defaults.
#[derive(clap::Args)]
pub struct Args {
    /// Directory of the journal, and of all data that is not kept elsewhere. The node creates it if it is missing.
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Where clients connect.
    #[arg(long, value_name = "IP:PORT", value_parser = values::address)]
    listen: Option<SocketAddr>,
    /// Where admin HTTP listens.
    #[arg(long, value_name = "IP:PORT", value_parser = values::address)]
    admin: Option<SocketAddr>,
    /// Where Kafka's clients connect. Write ADDRESS=ADVERTISED to tell clients another address. Give it again for each
    /// further listener.
    #[arg(long, value_name = "IP:PORT[=HOST:PORT]", value_parser = kafka_listener)]
    kafka: Vec<KafkaListener>,
    /// Do not speak Kafka's protocol.
    #[arg(long, conflicts_with = "kafka")]
    no_kafka: bool,
    /// Where SQS's clients connect.
    #[arg(long, value_name = "IP:PORT", value_parser = values::address)]
    sqs: Option<SocketAddr>,
    /// Do not speak SQS's protocol.
    #[arg(long, conflicts_with = "sqs")]
    no_sqs: bool,
    /// Speak memcached's protocol at this address.
    #[arg(long, value_name = "IP:PORT", value_parser = values::address)]
    memcached: Option<SocketAddr>,
    /// The cell of memcached's clients. By default memcached. If there is no cell of that name, the node creates one
    /// with one backend.
    #[arg(long, value_name = "NAME", requires = "memcached")]
    memcached_cell: Option<String>,
    /// Where publishers, listeners and other replicas of broadcasts connect.
    #[arg(long, value_name = "IP:PORT", value_parser = values::address)]
    broadcast: Option<SocketAddr>,
    /// Take no part in broadcasts.
    #[arg(long, conflicts_with = "broadcast")]
    no_broadcast: bool,
    /// Let every client in, from other hosts too, unencrypted. Without it a listener that is not on loopback needs TLS,
    /// and a login, accounts or certificates of clients.
    #[arg(long)]
    insecure: bool,
    /// Check the configuration and stop.
    #[arg(long)]
    config_check: bool,
}

#[derive(Serialize)]
struct Flags {
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<PathBuf>,
    #[serde(skip_serializing_if = "ListenFlags::is_empty")]
    listen: ListenFlags,
    #[serde(skip_serializing_if = "KafkaFlags::is_empty")]
    kafka: KafkaFlags,
    #[serde(skip_serializing_if = "FrontFlags::is_empty")]
    sqs: FrontFlags,
    #[serde(skip_serializing_if = "Option::is_none")]
    memcached: Option<MemcachedFlags>,
    #[serde(skip_serializing_if = "FrontFlags::is_empty")]
    broadcast: FrontFlags,
}

/// Of a protocol's front.
#[derive(Serialize)]
struct FrontFlags {
    #[serde(skip_serializing_if = "Option::is_none")]
    listen: Option<SocketAddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    enabled: Option<bool>,
}

impl FrontFlags {
    fn is_empty(&self) -> bool {
        self.listen.is_none() && self.enabled.is_none()
    }
}

/// Of memcached's protocol, which is not spoken where nothing is said.
#[derive(Serialize)]
struct MemcachedFlags {
    listen: SocketAddr,
    enabled: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    cell: Option<String>,
}

/// Of Kafka's protocol. The first listener is `listen` and `advertised`, of which the flag need not say the second; any
/// more of them are all that there are besides.
#[derive(Serialize)]
struct KafkaFlags {
    #[serde(skip_serializing_if = "Option::is_none")]
    listen: Option<SocketAddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    advertised: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    listeners: Vec<KafkaListener>,
    #[serde(skip_serializing_if = "Option::is_none")]
    enabled: Option<bool>,
}

/// One of `[[kafka.listeners]]`.
#[derive(Clone, Serialize)]
struct KafkaListener {
    listen: SocketAddr,
    #[serde(skip_serializing_if = "Option::is_none")]
    advertised: Option<String>,
}

impl KafkaFlags {
    fn new(listeners: Vec<KafkaListener>, is_off: bool) -> Self {
        let mut listeners = listeners.into_iter();
        let first = listeners.next();
        Self {
            listen: first.as_ref().map(|first| first.listen),
            advertised: first.and_then(|first| first.advertised),
            listeners: listeners.collect(),
            enabled: is_off.then_some(false),
        }
    }

    fn is_empty(&self) -> bool {
        self.listen.is_none() && self.enabled.is_none()
    }
}

/// Where Kafka's clients connect, and what they are told.
fn kafka_listener(text: &str) -> Result<KafkaListener, String> {
    let (listen, advertised) = match text.split_once('=') {
        Some((listen, advertised)) => (listen, Some(advertised.to_owned())),
        None => (text, None),
    };
    let listen = values::address(listen)
        .map_err(|why| format!("{why}; with what clients are told: 0.0.0.0:9092=kafka.example:9092"))?;
    Ok(KafkaListener { listen, advertised })
}

#[derive(Serialize)]
struct ListenFlags {
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<SocketAddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    admin: Option<SocketAddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    insecure: Option<bool>,
}

impl ListenFlags {
    fn is_empty(&self) -> bool {
        self.data.is_none() && self.admin.is_none() && self.insecure.is_none()
    }
}

/// Runs a node until it is told to stop; `file` is its configuration file. Or shows what it would be run with.
pub fn run(args: Args, file: Option<&PathBuf>, print_config: bool) -> anyhow::Result<()> {
    let flags = Flags {
        data: args.data,
        listen: ListenFlags { data: args.listen, admin: args.admin, insecure: args.insecure.then_some(true) },
        kafka: KafkaFlags::new(args.kafka, args.no_kafka),
        sqs: FrontFlags { listen: args.sqs, enabled: args.no_sqs.then_some(false) },
        memcached: args.memcached.map(|listen| MemcachedFlags {
            listen,
            enabled: true,
            cell: args.memcached_cell,
        }),
        broadcast: FrontFlags { listen: args.broadcast, enabled: args.no_broadcast.then_some(false) },
    };
    let config = Config::load(file, flags)?;
    if print_config {
        print!("{}", config.to_toml()?);
        return Ok(());
    }
    if args.config_check {
        println!("the configuration is valid");
        return Ok(());
    }
    tailwater_node::logging::init(&config.logging)?;
    tailwater_node::panics::end_the_process();
    // Before there are other threads, which have what the one has that starts them.
    tailwater_node::priority::prefer(config.listen.nice);
    let workers = tailwater_node::thread_count(config.listen.workers);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(workers).enable_all().build()?;
    let ended = runtime.block_on(async {
        let mut stop = StopSignals::caught();
        let window = super::window::WantedWindow::of(&config);
        let node = tokio::select! {
            node = Node::start(config) => node?,
            // As if it had been killed; the next start goes on with what it left.
            () = stop.next() => return anyhow::Ok(NodeEnded::Starting),
        };
        tokio::select! {
            () = stop.next() => {}
            // As if it had been killed: it may change nothing any more.
            by = node.taken_over() => return anyhow::Ok(NodeEnded::TakenOver(by)),
            // For ever; the process that it runs ends with it.
            () = super::window::supervise(window, &node) => {}
            // As daemons do; a node without certificates has nothing to read again.
            () = at_hangups(|| node.look_at_certificates()), if node.has_certificates() => {}
        }
        node.stop().await?;
        Ok(NodeEnded::Stopped)
    })?;
    match ended {
        NodeEnded::Stopped => Ok(()),
        NodeEnded::Starting => {
            tracing::info!("stopped before it had recovered");
            // A thread recovers still, with tasks of the runtime: they end together, with the process.
            std::mem::forget(runtime);
            Ok(())
        }
        NodeEnded::TakenOver(by) => {
            std::mem::forget(runtime);
            anyhow::bail!("{by}: this one has ended; started again, it stands by")
        }
    }
}

/// How a node ended.
enum NodeEnded {
    Stopped,
    /// Before it had started.
    Starting,
    /// Another one has its place, as these words say.
    TakenOver(String),
}
