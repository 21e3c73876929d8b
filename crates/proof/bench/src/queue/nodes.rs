//! The nodes under test: this same binary, one with its embedded queues, or several over one Cassandra.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use tailwater_load::child::Child;
use tailwater_load::system::{Workspace, free_address};

use super::client::{Client, LoadCredentials};

const START_DEADLINE: Duration = Duration::from_secs(60);

/// Where the queues are.
#[derive(clap::Args, Clone, Debug)]
pub struct StoreArgs {
    /// A node of Cassandra for the queues, HOST:PORT. By default queues are in the embedded store.
    #[arg(long, value_name = "ADDRESS")]
    pub cassandra: Option<String>,
    /// Copies of each row in Cassandra.
    #[arg(long, default_value_t = 1)]
    pub replicas: u32,
    /// Replicas that have to answer: one or quorum.
    #[arg(long, default_value = "quorum")]
    pub consistency: tailwater_queue::Consistency,
    /// Nodes in front of Cassandra. The embedded store has one.
    #[arg(long, default_value_t = 3)]
    pub fronts: usize,
    /// Partitions over which a queue is spread in Cassandra.
    #[arg(long, default_value_t = 1)]
    pub parts: u16,
    /// Where to put data and logs.
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
}

impl StoreArgs {
    /// Its name in reports.
    pub fn name(&self) -> &'static str {
        if self.cassandra.is_some() { "cassandra" } else { "embedded" }
    }
}

/// A node, killed with this process.
struct Node {
    child: Option<Child>,
    name: String,
    config: PathBuf,
    sqs: SocketAddr,
    credentials: Option<LoadCredentials>,
}

/// An account of the nodes, with a quota.
pub struct LoadAccount {
    /// Its id.
    pub id: String,
    /// Requests that it may send in a second; 0 is any number.
    pub requests_per_s: u64,
    /// The key that it signs with.
    pub credentials: LoadCredentials,
}

/// All of them.
pub struct Nodes {
    nodes: Vec<Node>,
    workspace: Workspace,
}

impl Nodes {
    /// Starts them, and waits until they answer. Everybody is one account, and nobody signs.
    pub fn start(args: &StoreArgs) -> anyhow::Result<Self> {
        Self::start_with(args, &[])
    }

    /// The same, with these accounts, who have to sign.
    pub fn start_with(args: &StoreArgs, accounts: &[LoadAccount]) -> anyhow::Result<Self> {
        let workspace = Workspace::create(args.dir.as_deref(), false)?;
        let count = if args.cassandra.is_some() { args.fronts.max(1) } else { 1 };
        let mut nodes = Vec::new();
        for number in 0..count {
            let name = format!("node-{number}");
            let (data, admin, sqs) = (free_address()?, free_address()?, free_address()?);
            let mut config = format!(
                "data = {:?}\n[listen]\ndata = \"{data}\"\nadmin = \"{admin}\"\n[kafka]\nenabled = false\n[broadcast]\nenabled = false\n\
                 [sqs]\nlisten = \"{sqs}\"\n[logging]\n",
                workspace.path().join(&name)
            );
            if let Some(cassandra) = &args.cassandra {
                // A keyspace for each run.
                config += &format!(
                    "[queues]\nstore = \"cassandra\"\nparts = {}\n[queues.cassandra]\ncontact_points = [{cassandra:?}]\n\
                     keyspace = \"bench_{}\"\nreplicas = {}\n",
                    args.parts,
                    std::process::id(),
                    args.replicas
                );
            }
            for LoadAccount { id, requests_per_s, credentials: LoadCredentials { key_id, secret } } in
                accounts
            {
                config += &format!(
                    "[[sqs.accounts]]\nid = {id:?}\nrequests_per_s = {requests_per_s}\n\
                     [[sqs.accounts.keys]]\nid = {key_id:?}\nsecret = {secret:?}\n"
                );
            }
            let path = workspace.path().join(format!("{name}.toml"));
            std::fs::write(&path, config)?;
            let credentials = accounts.first().map(|account| account.credentials.clone());
            let mut node = Node { child: None, name, config: path, sqs, credentials };
            // One after the other: the first makes the tables.
            node.start(&workspace)?;
            nodes.push(node);
        }
        Ok(Self { nodes, workspace })
    }

    /// Where they answer.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.nodes.iter().map(|node| node.sqs).collect()
    }

    /// CPU time of all of them.
    pub fn cpu(&self) -> Duration {
        self.nodes.iter().filter_map(|node| node.child.as_ref()).map(Child::cpu).sum()
    }

    /// Memory of all of them that is in use, in bytes.
    pub fn rss_bytes(&self) -> u64 {
        self.nodes.iter().filter_map(|node| node.child.as_ref()).map(Child::rss_bytes).sum()
    }

    /// kill -9 of one.
    pub fn kill(&mut self, number: usize) {
        self.nodes[number].child = None;
    }

    /// Starts one again that was killed.
    pub fn restart(&mut self, number: usize) -> anyhow::Result<()> {
        let Self { nodes, workspace } = self;
        nodes[number].start(workspace)
    }
}

impl Node {
    fn start(&mut self, workspace: &Workspace) -> anyhow::Result<()> {
        let config = self.config.display().to_string();
        let mut child = Child::start(&self.name, &["serve", "--config", &config], workspace.path())?;
        let mut client = Client::new(self.sqs).signed(self.credentials.clone());
        child.until("does not answer", START_DEADLINE, || {
            client.call("ListQueues", &serde_json::json!({})).is_ok()
        })?;
        self.child = Some(child);
        Ok(())
    }
}

/// Creates queues; their addresses.
pub fn create_queues(
    node: SocketAddr,
    names: impl Iterator<Item = String>,
    order_hint: &str,
    consistency: tailwater_queue::Consistency,
) -> anyhow::Result<Vec<String>> {
    let mut client = Client::new(node);
    let consistency = serde_json::to_value(consistency)?;
    let create = |name: String| {
        let parameters = serde_json::json!({
            "QueueName": name,
            "Attributes": {"VisibilityTimeout": "10"},
            "tags": {"tailwater-order-hint": order_hint, "tailwater-consistency": consistency},
        });
        let created = client.call("CreateQueue", &parameters)?;
        Ok(created["QueueUrl"].as_str().context("no address of the queue")?.to_owned())
    };
    names.map(create).collect()
}
