//! `tailwater node …`: the nodes that share metadata. They are found in ZooKeeper; a node itself is asked only to
//! drain.

use std::path::PathBuf;

use clap::Subcommand;
use serde_json::{Value, json};
use tailwater_env::Env;
use tailwater_meta_zookeeper::{MetadataUri, NodeRecord, nodes_at};
use tailwater_node::Config;
use tailwater_node::api::DrainedNode;
use uuid::Uuid;

use crate::admin::Server;
use crate::output::{self, Format};
use crate::template::write_time;

/// What to do with nodes.
#[derive(Subcommand)]
pub enum Command {
    /// List the nodes that are there: one is active, others stand by.
    #[command(visible_alias = "list")]
    Ls {
        #[command(flatten)]
        metadata: MetadataPlace,
        /// Form of the output.
        #[arg(short, long, value_enum, default_value_t = Format::Table)]
        output: Format,
    },
    /// Show where a node listens, and whether it is active.
    Describe {
        #[command(flatten)]
        metadata: MetadataPlace,
        /// The node's name, or its id.
        node: String,
        /// Form of the output.
        #[arg(short, long, value_enum, default_value_t = Format::Table)]
        output: Format,
    },
    /// Have a node give all that it owns to the other ones, and take nothing until it is started again.
    ///
    /// Use it with `[cluster] active = "all"`. The command asks the node's admin HTTP, whose address the node has told
    /// ZooKeeper.
    Drain {
        #[command(flatten)]
        metadata: MetadataPlace,
        /// The node's name, or its id.
        node: String,
    },
}

/// Where the metadata is.
#[derive(clap::Args)]
pub struct MetadataPlace {
    /// The metadata, as nodes have it: zookeeper://HOST[:PORT][,HOST[:PORT]...]/PATH. By default that of --config, whose
    /// login and certificates are used in any case.
    #[arg(long, value_name = "URL")]
    metadata: Option<MetadataUri>,
}

impl MetadataPlace {
    /// What is named, or the configuration's.
    pub(super) fn find(self, file: Option<&PathBuf>) -> anyhow::Result<MetadataUri> {
        Config::load(file, toml::Table::new())?.metadata_at(&Env::real(), self.metadata)
    }
}

/// Runs one of them.
pub fn run(server: &Server, command: Command, file: Option<&PathBuf>) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    runtime.block_on(async {
        match command {
            Command::Ls { metadata, output } => list(metadata.find(file)?, output).await,
            Command::Describe { metadata, node, output } => {
                describe(metadata.find(file)?, &node, output).await
            }
            Command::Drain { metadata, node } => drain(server, metadata.find(file)?, &node).await,
        }
    })
}

async fn list(metadata: MetadataUri, output: Format) -> anyhow::Result<()> {
    let (cluster, nodes) = nodes_at(&Env::real(), metadata).await?;
    let mut table = output::table(&["node", "id", "role", "started", "addresses"]);
    for node in nodes {
        match output {
            Format::Json => output::print_json(&document(&cluster.to_string(), &node))?,
            Format::Table => {
                let addresses = node.addresses.iter().map(|(name, address)| format!("{name} {address}"));
                let addresses = addresses.collect::<Vec<_>>().join(", ");
                let (role, started) = (role(&node), started(&node));
                table.add_row([node.name, node.id, role.to_owned(), started, addresses]);
            }
        }
    }
    match output {
        Format::Json => Ok(()),
        Format::Table => output::print(&table),
    }
}

/// The one node of that name or id, and its cluster.
async fn find(metadata: MetadataUri, wanted: &str) -> anyhow::Result<(Uuid, NodeRecord)> {
    let place = metadata.to_string();
    let (cluster, nodes) = nodes_at(&Env::real(), metadata).await?;
    let mut found = nodes.into_iter().filter(|node| node.name == wanted || node.id == wanted);
    let node = found.next().ok_or_else(|| {
        anyhow::anyhow!(
            "there is no node {wanted:?} at {place}: `tailwater node ls --metadata {place}` lists them"
        )
    })?;
    anyhow::ensure!(
        found.next().is_none(),
        "several nodes are named {wanted:?}: name one by its id, which `tailwater node ls` shows"
    );
    Ok((cluster, node))
}

async fn drain(server: &Server, metadata: MetadataUri, wanted: &str) -> anyhow::Result<()> {
    let (_, node) = find(metadata, wanted).await?;
    let admin = node.addresses.iter().find(|(listener, _)| listener == "admin");
    let (_, admin) =
        admin.ok_or_else(|| anyhow::anyhow!("the node {wanted:?} has not told where it listens"))?;
    let drained: DrainedNode = server.at(admin).post("/v1/node/drain", &json!({}))?;
    let state = match drained.is_drained {
        true => "is drained: it has given up what it had",
        false => "still gives up what it has, and takes nothing",
    };
    output::print(&format!("node {} {state}", node.name))
}

async fn describe(metadata: MetadataUri, wanted: &str, output: Format) -> anyhow::Result<()> {
    let (cluster, node) = find(metadata, wanted).await?;
    if let Format::Json = output {
        return output::print_json(&document(&cluster.to_string(), &node));
    }
    let mut table = output::table(&["key", "value"]);
    let (role, started) = (role(&node).to_owned(), started(&node));
    let rows = [
        ("node", node.name),
        ("id", node.id),
        ("role", role),
        ("program", node.program),
        ("started", started),
    ];
    rows.into_iter().for_each(|(name, value)| _ = table.add_row([name.to_owned(), value]));
    table.add_row(["cluster".to_owned(), cluster.to_string()]);
    node.addresses.into_iter().for_each(|(name, address)| _ = table.add_row([name, address]));
    output::print(&table)
}

fn role(node: &NodeRecord) -> &'static str {
    if node.active { "active" } else { "standby" }
}

fn started(node: &NodeRecord) -> String {
    let mut text = Vec::new();
    // A vector takes everything.
    let _ = write_time(&mut text, node.started_ms);
    String::from_utf8_lossy(&text).into_owned()
}

fn document(cluster: &str, node: &NodeRecord) -> Value {
    let addresses: Vec<Value> = node
        .addresses
        .iter()
        .map(|(name, address)| json!({ "listener": name, "address": address }))
        .collect();
    json!({
        "node": node.name,
        "id": node.id,
        "role": role(node),
        "program": node.program,
        "started_ms": node.started_ms,
        "cluster": cluster,
        "addresses": addresses,
    })
}
