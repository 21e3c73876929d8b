//! `tailwater cluster …`

use clap::Subcommand;
use serde_json::Value;
use tailwater_node::api::{AddCluster, ClusterView, DrainCluster, DrainedCluster};

use crate::admin::{Server, escaped};
use crate::output::{self, Format, ListArgs};

/// What to do with clusters.
#[derive(Subcommand)]
pub enum Command {
    /// Tell this cluster about another one, so that streams can be copied there.
    Add {
        /// The other cluster's name, as its node has it below [cluster].
        name: String,
        /// The address of its node's [listen] data: IP:PORT, or tls:IP:PORT.
        address: String,
    },
    /// List this cluster and those that it knows.
    #[command(visible_alias = "list")]
    Ls(ListArgs),
    /// Show a cluster.
    Describe {
        /// Its name.
        name: String,
        /// Form of the output.
        #[arg(short, long, value_enum, default_value_t = Format::Table)]
        output: Format,
    },
    /// Copy nothing through a cluster, and place nothing there.
    ///
    /// Its own copies go on. Streams whose source is here are copied around it.
    Drain {
        /// Its name.
        name: String,
        /// Let it be used again. The trees stay as they are until their streams are placed again.
        #[arg(long)]
        undo: bool,
    },
    /// Forget a cluster that no stream is copied to.
    #[command(visible_alias = "rm")]
    Remove {
        /// Its name.
        name: String,
    },
}

/// Runs one of them.
pub fn run(server: &Server, command: Command) -> anyhow::Result<()> {
    match command {
        Command::Add { name, address } => {
            let added: ClusterView = server.put(&path(&name), &AddCluster { address })?;
            output::print(&format!("cluster {} at {} added", added.name, added.address.unwrap_or_default()))
        }
        Command::Ls(ListArgs { output }) => {
            let clusters: Vec<ClusterView> = server.get("/v1/clusters")?;
            if output == Format::Json {
                return clusters.iter().try_for_each(output::print_json);
            }
            table(&clusters)
        }
        Command::Describe { name, output } => {
            let cluster: ClusterView = server.get(&path(&name))?;
            if output == Format::Json { output::print_json(&cluster) } else { table(&[cluster]) }
        }
        Command::Drain { name, undo } => {
            let path = format!("{}/drain", path(&name));
            let drained: DrainedCluster = server.post(&path, &DrainCluster { is_draining: !undo })?;
            let state = if undo { "is used again" } else { "is drained: nothing is placed there" };
            output::print(&format!("cluster {} {state}", drained.cluster.name))?;
            let around = |stream: &String| output::print(&format!("stream {stream} is copied around it now"));
            drained.streams.iter().try_for_each(around)
        }
        Command::Remove { name } => {
            let _: Value = server.delete(&path(&name))?;
            output::print(&format!("cluster {name} removed"))
        }
    }
}

fn path(name: &str) -> String {
    format!("/v1/clusters/{}", escaped(name))
}

fn table(clusters: &[ClusterView]) -> anyhow::Result<()> {
    let mut table = output::table(&["cluster", "address", "state"]);
    for cluster in clusters {
        let address = if cluster.is_here { Some("this cluster") } else { cluster.address.as_deref() };
        let state = if cluster.is_draining { "draining" } else { "used" };
        table.add_row([&*cluster.name, address.unwrap_or("-"), state]);
    }
    output::print(&table)
}
