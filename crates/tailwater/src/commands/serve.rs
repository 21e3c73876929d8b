//! `tailwater serve`

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::Serialize;
use tailwater_node::signal::StopSignals;
use tailwater_node::{Config, Node};

/// Flags of `serve`. What is not given comes from `TAILWATER_…` variables, the file, or the defaults.
#[derive(clap::Args)]
pub struct Args {
    /// Directory of everything durable; created if missing.
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Where clients connect.
    #[arg(long, value_name = "IP:PORT", value_parser = super::address)]
    listen: Option<SocketAddr>,
    /// Where admin HTTP listens.
    #[arg(long, value_name = "IP:PORT", value_parser = super::address)]
    admin: Option<SocketAddr>,
    /// Where Kafka's clients connect.
    #[arg(long, value_name = "IP:PORT", value_parser = super::address)]
    kafka: Option<SocketAddr>,
    /// Do not speak Kafka's protocol.
    #[arg(long, conflicts_with = "kafka")]
    no_kafka: bool,
    /// Where SQS's clients connect.
    #[arg(long, value_name = "IP:PORT", value_parser = super::address)]
    sqs: Option<SocketAddr>,
    /// Do not speak SQS's protocol.
    #[arg(long, conflicts_with = "sqs")]
    no_sqs: bool,
    /// Where publishers, listeners and other replicas of broadcasts connect.
    #[arg(long, value_name = "IP:PORT", value_parser = super::address)]
    broadcast: Option<SocketAddr>,
    /// Take no part in broadcasts.
    #[arg(long, conflicts_with = "broadcast")]
    no_broadcast: bool,
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
    #[serde(skip_serializing_if = "FrontFlags::is_empty")]
    kafka: FrontFlags,
    #[serde(skip_serializing_if = "FrontFlags::is_empty")]
    sqs: FrontFlags,
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

#[derive(Serialize)]
struct ListenFlags {
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<SocketAddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    admin: Option<SocketAddr>,
}

impl ListenFlags {
    fn is_empty(&self) -> bool {
        self.data.is_none() && self.admin.is_none()
    }
}

/// Runs a node until it is told to stop; `file` is its configuration file. Or shows what it would be run with.
pub fn run(args: Args, file: Option<&PathBuf>, print_config: bool) -> anyhow::Result<()> {
    let flags = Flags {
        data: args.data,
        listen: ListenFlags { data: args.listen, admin: args.admin },
        kafka: FrontFlags { listen: args.kafka, enabled: args.no_kafka.then_some(false) },
        sqs: FrontFlags { listen: args.sqs, enabled: args.no_sqs.then_some(false) },
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
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let started = runtime.block_on(async {
        let mut stop = StopSignals::caught();
        let node = tokio::select! {
            node = Node::start(config) => node?,
            // As if it had been killed; the next start goes on with what it left.
            () = stop.next() => return anyhow::Ok(false),
        };
        stop.next().await;
        node.stop().await?;
        Ok(true)
    })?;
    if !started {
        tracing::info!("stopped before it had recovered");
        // A thread recovers still, with tasks of the runtime: they end together, with the process.
        std::mem::forget(runtime);
    }
    Ok(())
}
