//! `tailwater cell …`

use clap::Subcommand;
use tailwater_node::CellModeSetting;
use tailwater_node::api::{CellView, CreateCell};

use crate::admin::{Server, escaped};
use crate::output::{self, Format};
use crate::values;

/// Backends of one cell that a node runs itself, at most.
const OWN_BACKENDS_MAX: u64 = 16;

/// What to do with cells.
#[derive(Subcommand)]
pub enum Command {
    /// Create a cell: a cache for whoever connects to one of its backends.
    ///
    /// The node keeps the cell's configuration, and tells it to the backends. They tell it to clients, who need the
    /// address of one of them.
    Create {
        /// The cell's name: 1 to 48 of a-z A-Z 0-9 . _ -
        name: String,
        /// Copies of each value: `r1`, or `r3.2` for three of which two make a quorum.
        #[arg(long, value_enum)]
        mode: ModeArg,
        /// Backends that the node runs itself: one at least with `r1`, three with `r3.2`. They begin empty again with
        /// the node.
        #[arg(long, value_name = "N", value_parser = values::number::<usize>(1..=OWN_BACKENDS_MAX),
              conflicts_with = "backend")]
        backends: Option<usize>,
        /// A backend that runs as a process of its own (`tailwater cache serve --cell NAME`): its addresses, nearest
        /// first, as in `unix:/run/a.sock,tcp:10.0.0.1:7500`. Once for each.
        #[arg(long, value_name = "ADDRESSES")]
        backend: Vec<String>,
        /// Memory for values in each backend that the node runs. By default 268435456.
        #[arg(long, value_name = "BYTES", value_parser = values::number::<u64>(1 << 20..=u64::MAX))]
        capacity_bytes: Option<u64>,
        /// The size of values for which the index of such a backend is laid out. By default 4096.
        #[arg(long, value_name = "BYTES", value_parser = values::number::<u64>(512..=1 << 20))]
        value_bytes: Option<u64>,
        /// How long such a backend keeps a value that is not written again. By default 60000.
        #[arg(long, value_name = "MS", value_parser = values::number::<u64>(1_000..=u64::MAX))]
        ttl_ms: Option<u64>,
        /// How full such a backend may get, in percent, before it evicts what was not written for longest. By default
        /// 80.
        #[arg(long, value_name = "PERCENT", value_parser = values::number::<u8>(1..=100))]
        eviction_percent: Option<u8>,
        /// Form of the output.
        #[arg(short, long, value_enum, default_value_t = Format::Table)]
        output: Format,
    },
    /// List a node's cells: the two of its log, and those that were created.
    #[command(visible_alias = "list")]
    Ls {
        /// Form of the output.
        #[arg(short, long, value_enum, default_value_t = Format::Table)]
        output: Format,
    },
    /// Show a cell's configuration, and which of its backends the node is connected to.
    Describe {
        /// The cell's name.
        name: String,
        /// Form of the output.
        #[arg(short, long, value_enum, default_value_t = Format::Table)]
        output: Format,
    },
}

/// How many copies a cell keeps.
#[derive(clap::ValueEnum, Clone, Copy, Debug)]
pub enum ModeArg {
    /// One copy.
    R1,
    /// Three copies, of which two make a quorum.
    #[value(name = "r3.2")]
    R32,
}

impl ModeArg {
    fn setting(self) -> CellModeSetting {
        match self {
            ModeArg::R1 => CellModeSetting::R1,
            ModeArg::R32 => CellModeSetting::R32,
        }
    }
}

/// Runs one of them.
pub fn run(server: &Server, command: Command) -> anyhow::Result<()> {
    match command {
        Command::Create {
            name,
            mode,
            backends,
            backend,
            capacity_bytes,
            value_bytes,
            ttl_ms,
            eviction_percent,
            output,
        } => {
            anyhow::ensure!(
                backends.is_some() || !backend.is_empty(),
                "a cell needs backends: say how many the node runs with --backends, or name each with --backend"
            );
            let split = |addresses: String| addresses.split(',').map(str::to_owned).collect();
            let create = CreateCell {
                name,
                backends: backends.unwrap_or(0),
                mode: mode.setting(),
                addresses: backend.into_iter().map(split).collect(),
                capacity_bytes,
                value_bytes,
                ttl_ms,
                eviction_percent,
            };
            let created: CellView = server.post("/v1/cells", &create)?;
            match output {
                Format::Json => output::print_json(&created),
                Format::Table => output::print(&format!(
                    "cell {} with {} in mode {} created",
                    created.name,
                    output::counted(created.backends.len() as u64, "backend"),
                    created.mode
                )),
            }
        }
        Command::Ls { output } => list(server, output),
        Command::Describe { name, output } => {
            let cell: CellView = server.get(&format!("/v1/cells/{}", escaped(&name)))?;
            if output == Format::Json { output::print_json(&cell) } else { describe(&cell) }
        }
    }
}

/// The node's cells.
pub fn list(server: &Server, output: Format) -> anyhow::Result<()> {
    let cells: Vec<CellView> = server.get("/v1/cells")?;
    if output == Format::Json {
        return cells.iter().try_for_each(output::print_json);
    }
    let mut table = output::table(&["cell", "mode", "backends", "live", "addresses"]);
    for cell in cells {
        let addresses: Vec<String> = cell.backends.iter().map(|backend| backend.join(" or ")).collect();
        table.add_row([
            cell.name,
            cell.mode,
            cell.backends.len().to_string(),
            cell.live.to_string(),
            addresses.join("; "),
        ]);
    }
    output::print(&table)
}

fn describe(cell: &CellView) -> anyhow::Result<()> {
    let mut table = output::table(&["key", "value"]);
    table.add_row(["name", &cell.name]);
    table.add_row(["mode", &cell.mode]);
    table.add_row(["configuration", &format!("{:#x}", cell.config_id)]);
    table.add_row(["rows", &cell.rows.to_string()]);
    table.add_row(["points", &cell.points.to_string()]);
    output::print(&table)?;
    output::print(&"")?;
    let mut table = output::table(&["backend", "live", "copies", "refilled", "addresses"]);
    for (place, addresses) in cell.places.iter().zip(&cell.backends) {
        table.add_row([
            place.number.to_string(),
            if place.is_live { "yes" } else { "no" }.to_owned(),
            format!("{:.1} %", place.copies_percent),
            place.filled_percent.map_or_else(|| "unknown".to_owned(), |filled| format!("{filled:.1} %")),
            addresses.join(" or "),
        ]);
    }
    output::print(&table)?;
    for place in &cell.places {
        if let Some(why) = &place.hindrance {
            output::print(&format!("backend {} is not compared with the others: {why}", place.number))?;
        }
    }
    Ok(())
}
