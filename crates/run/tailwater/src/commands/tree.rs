//! `tailwater tree …`: plans of copy trees, for which no node is asked, and how far those are that there are.

#![allow(clippy::disallowed_methods)] // it reads its user's file, and nothing else

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Subcommand;
use tailwater_node::api::{CopyHopView, CopyTreeView, CrewView};
use tailwater_trees::limits::{CLUSTERS_MAX, COSTS_BYTES_MAX, DEPTH_DEFAULT, FAN_OUT_DEFAULT};
use tailwater_trees::{TreeCosts, TreePlan, TreeRequest, dot, plan, svg};

use crate::admin::{Server, escaped};
use crate::output::{self, Format};
use crate::values::number;

/// What to do with copy trees.
#[derive(Subcommand)]
pub enum Command {
    /// Show which cluster would send a stream to which others, what that costs, and how long it takes.
    ///
    /// No node is asked, and nothing is changed. `tailwater stream place --costs` plans with the default bounds.
    Plan(Args),
    /// Show the operations that copy streams to the cluster that is asked, and which worker runs each.
    Operations {
        /// Form of the output.
        #[arg(short, long, value_enum, default_value_t = Format::Table)]
        output: Format,
    },
    /// Show a stream's copy tree, and how far each of its hops is.
    Show {
        /// The stream's name.
        name: String,
        /// Form of the output.
        #[arg(short, long, value_enum, default_value_t = Format::Table)]
        output: Format,
    },
}

/// Flags of `plan`.
#[derive(clap::Args)]
pub struct Args {
    /// The stream's name. It is shown, and does not change the plan.
    name: String,
    /// The cluster that has the stream.
    #[arg(long, value_name = "CLUSTER")]
    source: String,
    /// The clusters that get copies, separated by commas. By default all clusters of the costs.
    #[arg(long, value_name = "CLUSTERS", value_delimiter = ',')]
    to: Vec<String>,
    /// Clusters and links, with costs and delays: TOML, or JSON if the name ends with .json.
    #[arg(long, value_name = "FILE")]
    costs: PathBuf,
    /// Hops from the source to any cluster, at most.
    #[arg(long, value_name = "N", default_value_t = DEPTH_DEFAULT, value_parser = number::<usize>(1..=CLUSTERS_MAX as u64))]
    depth_max: usize,
    /// Clusters that one cluster sends to, at most.
    #[arg(long, value_name = "N", default_value_t = FAN_OUT_DEFAULT, value_parser = number::<usize>(1..=CLUSTERS_MAX as u64))]
    fan_out_max: usize,
    /// Bytes per second that are written to the stream. The plan leaves out links that carry less than twice as many,
    /// and shows the cost of a day.
    #[arg(long, value_name = "BYTES", value_parser = number::<u64>(1..=u64::MAX))]
    bytes_per_s: Option<u64>,
    /// Form of the output.
    #[arg(short, long, value_enum, default_value_t = TreeFormat::Table)]
    output: TreeFormat,
}

/// Form of a plan.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum TreeFormat {
    /// For people.
    Table,
    /// For Graphviz.
    Dot,
    /// For programs.
    Json,
    /// A picture.
    Svg,
}

/// Does it.
pub fn run(server: &Server, command: Command) -> anyhow::Result<()> {
    let args = match command {
        Command::Plan(args) => args,
        Command::Operations { output } => {
            let crew: CrewView = server.get("/v1/operations")?;
            return if output == Format::Json { output::print_json(&crew) } else { operations(&crew) };
        }
        Command::Show { name, output } => {
            let tree: CopyTreeView = server.get(&format!("/v1/streams/{}/tree", escaped(&name)))?;
            return if output == Format::Json { output::print_json(&tree) } else { show(&tree) };
        }
    };
    let costs = read(&args.costs)?;
    let request = TreeRequest {
        stream: args.name,
        source: args.source,
        to: args.to,
        depth_max: args.depth_max,
        fan_out_max: args.fan_out_max,
        bytes_per_s: args.bytes_per_s,
    };
    let found = plan(&costs, &request).with_context(|| format!("no plan by {}", args.costs.display()))?;
    match args.output {
        TreeFormat::Table => table(&found),
        TreeFormat::Dot => output::print(&dot(&found).trim_end()),
        TreeFormat::Json => output::print_json(&found),
        TreeFormat::Svg => output::print(&svg(&found).trim_end()),
    }
}

/// What the node itself is called.
const HERE: &str = "(node)";

fn operations(crew: &CrewView) -> anyhow::Result<()> {
    let named = |name: &str| if name.is_empty() { HERE.to_owned() } else { name.to_owned() };
    let mut table = output::table(&["worker", "state", "operations", "load", "bytes/s"]);
    for worker in &crew.workers {
        table.add_row([
            named(&worker.name),
            worker.state.clone(),
            worker.operations.to_string(),
            worker.load.to_string(),
            output::bytes(worker.bytes_per_s),
        ]);
    }
    output::print(&table)?;
    let heads = ["stream", "part", "shards", "from", "worker", "state", "delay ms", "bytes/s", "also at"];
    let mut table = output::table(&heads);
    for operation in &crew.operations {
        let shards: Vec<String> = operation.shards.iter().map(u32::to_string).collect();
        let also: Vec<String> = operation.also.iter().map(|name| named(name)).collect();
        table.add_row([
            operation.stream.clone(),
            operation.part.to_string(),
            shards.join(","),
            operation.from.clone(),
            operation.worker.as_deref().map_or_else(|| "-".to_owned(), named),
            operation.state.clone(),
            operation.delay_ms.map_or_else(|| "-".to_owned(), |ms| ms.to_string()),
            output::bytes(operation.bytes_per_s),
            also.join(","),
        ]);
    }
    output::print(&table)
}

fn show(tree: &CopyTreeView) -> anyhow::Result<()> {
    output::print(&format!("{} from {}, plan {}", tree.stream, tree.source, tree.plan))?;
    let heads = ["from", "to", "state", "behind", "bytes behind", "delay ms", "records", "bytes", "sessions"];
    let mut table = output::table(&heads);
    for hop in &tree.hops {
        let state = match (hop.is_copying, hop.plan) {
            (true, _) if waiting(hop) > 0 => format!("copying, {} wait", waiting(hop)),
            (true, Some(plan)) if plan != tree.plan => format!("copying by plan {plan}"),
            (true, _) => "copying".to_owned(),
            (false, _) => "interrupted".to_owned(),
        };
        let number = |of: Option<u64>| of.map_or_else(|| "-".to_owned(), |of| of.to_string());
        let bytes = |of: Option<u64>| of.map_or_else(|| "-".to_owned(), output::bytes);
        table.add_row([
            hop.from.clone(),
            hop.to.clone(),
            state,
            number(hop.behind_records),
            bytes(hop.behind_bytes),
            hop.delay_ms.map_or_else(|| "-".to_owned(), |ms| ms.to_string()),
            number(hop.records),
            bytes(hop.bytes),
            number(hop.sessions),
        ]);
    }
    output::print(&table)?;
    let interrupted = tree.hops.iter().filter(|hop| !hop.is_copying || waiting(hop) > 0);
    interrupted
        .filter_map(|hop| Some((hop, hop.why.as_deref()?)))
        .try_for_each(|(hop, why)| output::print(&format!("{} to {}: {why}", hop.from, hop.to)))
}

/// Shards of a hop that are not copied for now.
fn waiting(hop: &CopyHopView) -> u32 {
    hop.waiting_shards.unwrap_or_default()
}

/// The costs in a file.
pub fn read(path: &Path) -> anyhow::Result<TreeCosts> {
    let shown = path.display();
    let file = File::open(path).with_context(|| format!("{shown} can't be read"))?;
    let mut text = String::new();
    file.take(COSTS_BYTES_MAX as u64 + 1)
        .read_to_string(&mut text)
        .with_context(|| format!("{shown} can't be read"))?;
    anyhow::ensure!(text.len() <= COSTS_BYTES_MAX, "{shown} is larger than {COSTS_BYTES_MAX} bytes");
    let is_json = path.extension().is_some_and(|extension| extension == "json");
    let costs = if is_json { TreeCosts::from_json(&text) } else { TreeCosts::from_toml(&text) };
    costs.with_context(|| format!("{shown} can't be used"))
}

fn table(plan: &TreePlan) -> anyhow::Result<()> {
    let heads = ["from", "to", "hops", "fan-out", "cost/GB", "delay ms", "from source ms", "role", "limit"];
    let mut table = output::table(&heads);
    for hop in &plan.hops {
        let role = if hop.failing_link {
            format!("{}, link fails", hop.role.name())
        } else {
            hop.role.name().to_owned()
        };
        table.add_row([
            hop.from.clone(),
            hop.to.clone(),
            hop.depth.to_string(),
            hop.fan_out.to_string(),
            hop.cost_per_gb.to_string(),
            hop.delay_ms.to_string(),
            hop.delay_total_ms.to_string(),
            role,
            hop.limit_bytes_per_s
                .map_or_else(|| "-".to_owned(), |limit| format!("{}/s", output::bytes(limit))),
        ]);
    }
    output::print(&table)?;
    let clusters = output::counted(plan.clusters as u64, "cluster");
    output::print(&format!(
        "\n{} from {} to {clusters}: {} deep, fan-out {} at most, {} of the source",
        plan.stream,
        plan.source,
        output::counted(plan.depth as u64, "hop"),
        plan.fan_out,
        plan.source_fan_out
    ))?;
    let day = plan.cost_per_day.map_or_else(String::new, |cost| format!(", {cost:.2} a day"));
    output::print(&format!(
        "cost: {} for each GB that is written (durable and cache copy){day}",
        plan.cost_per_gb
    ))?;
    output::print(&format!("delay of the links: {} ms to the farthest cluster", plan.delay_ms))?;
    plan.notes.iter().try_for_each(|note| output::print(&format!("note: {note}")))
}
