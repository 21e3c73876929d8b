//! `tailwater cell …`

mod load;

use std::path::PathBuf;
use std::time::Duration;

use clap::Subcommand;
use tailwater_node::api::{
    CellPlaceView, CellView, CreateCell, DrainCell, ResizeCell, RestoreCell, RollCell,
};
use tailwater_node::{CellModeSetting, EvictionSetting};

use crate::admin::{Server, escaped};
use crate::output::{self, Format, ListArgs};
use crate::values;

/// Backends of one cell that a node runs itself, at most.
const OWN_BACKENDS_MAX: u64 = 16;

/// What to do with cells.
#[derive(Subcommand)]
pub enum Command {
    /// Create a cell: a cache for all clients that connect to its backends.
    ///
    /// The node keeps the cell's configuration, and gives it to the backends. These give it to clients. A client needs
    /// the address of one backend.
    Create {
        /// The cell's name: 1 to 48 of a-z A-Z 0-9 . _ -
        name: String,
        /// Copies of each value: `r1`; `r3.2` for three of which two make a quorum; `r2-immutable` for two of what
        /// `tailwater cell load` loads as a whole.
        #[arg(long, value_enum)]
        mode: ModeArg,
        /// Backends that the node runs itself: at least one with `r1`, two with `r2-immutable`, three with `r3.2`.
        /// They are empty after each start of the node.
        #[arg(long, value_name = "N", value_parser = values::number::<usize>(1..=OWN_BACKENDS_MAX),
              conflicts_with = "backend")]
        backends: Option<usize>,
        /// Addresses of a backend that runs as a process of its own (`tailwater cache serve --cell NAME`), nearest
        /// first, as in `unix:/run/a.sock,tcp:10.0.0.1:7500`. Give it again for each further one.
        #[arg(long, value_name = "ADDRESSES")]
        backend: Vec<String>,
        /// Spares that the node runs. A spare takes over the data of a backend that is drained or restarted.
        #[arg(long, value_name = "N", value_parser = values::number::<usize>(0..=OWN_BACKENDS_MAX),
              conflicts_with_all = ["backend", "spare"], default_value = "0")]
        spares: usize,
        /// Addresses of a spare that runs as a process of its own. Give it again for each further one.
        #[arg(long, value_name = "ADDRESSES", conflicts_with = "backends")]
        spare: Vec<String>,
        /// Memory for values in each backend that the node runs. By default 268435456.
        #[arg(long, value_name = "BYTES", value_parser = values::number::<u64>(1 << 20..=u64::MAX))]
        capacity_bytes: Option<u64>,
        /// Expected size of a value; it decides the size of the index of such a backend. By default 4096.
        #[arg(long, value_name = "BYTES", value_parser = values::number::<u64>(512..=1 << 20))]
        value_bytes: Option<u64>,
        /// How long such a backend keeps a value that is not written again. By default 60000.
        #[arg(long, value_name = "MS", value_parser = values::number::<u64>(1_000..=u64::MAX))]
        ttl_ms: Option<u64>,
        /// How full such a backend may get, in percent, before it evicts values. By default 80.
        #[arg(long, value_name = "PERCENT", value_parser = values::number::<u8>(1..=100))]
        eviction_percent: Option<u8>,
        /// Which values such a backend evicts: `lrm` for the one that was not written for longest, `lru` for the one
        /// that was neither written nor read for longest, `s3-fifo` for those that were only written before those that
        /// were read. By default `lrm`.
        #[arg(long, value_enum)]
        eviction: Option<EvictionArg>,
        /// Form of the output.
        #[arg(short, long, value_enum, default_value_t = Format::Table)]
        output: Format,
    },
    /// Load all values of a cell in mode `r2-immutable`, while it is read.
    ///
    /// Readers get the former load until all backends have the new one. There has to be room for both.
    Load {
        /// The cell's name.
        name: String,
        /// A directory, a file or an object store. Each file below the directory is a value, and its path there is the
        /// key. Each line of the file is a key, a tab and a value. Each object below `s3://BUCKET/PREFIX`,
        /// `gs://BUCKET/PREFIX` or `az://CONTAINER/PREFIX` is a value, and its name there is the key. Credentials come
        /// from the environment, as in AWS_ACCESS_KEY_ID.
        #[arg(long, value_name = "DIR|FILE|URL")]
        from: PathBuf,
        /// Form of the output.
        #[arg(short, long, value_enum, default_value_t = Format::Table)]
        output: Format,
    },
    /// Change the number of a cell's backends, while it is used, and wait for the end.
    ///
    /// The cell copies its values to their new backends. The change goes on if you end this command.
    Resize {
        /// The cell's name.
        name: String,
        /// Backends that the node runs itself. If there are more, those with the highest numbers leave.
        #[arg(long, value_name = "N", value_parser = values::number::<usize>(1..=OWN_BACKENDS_MAX),
              conflicts_with = "backend")]
        backends: Option<usize>,
        /// Addresses of one more backend that runs as a process of its own, as in `tailwater cell create`. Give it
        /// again for each further one.
        #[arg(long, value_name = "ADDRESSES")]
        backend: Vec<String>,
        /// Spares that the node runs itself.
        #[arg(long, value_name = "N", value_parser = values::number::<usize>(0..=OWN_BACKENDS_MAX),
              conflicts_with_all = ["backends", "backend", "spare"])]
        spares: Option<usize>,
        /// Addresses of one more spare that runs as a process of its own. Give it again for each further one.
        #[arg(long, value_name = "ADDRESSES", conflicts_with_all = ["backends", "backend"])]
        spare: Vec<String>,
    },
    /// Take a backend out of a cell, while the cell is used, and wait for the end.
    ///
    /// The backend may be gone already. If the cell has a spare, the spare takes over the backend's data. If not, the
    /// other backends do. The change goes on if you end this command. `tailwater cell restore` puts the backend back in
    /// place of the spare.
    Drain {
        /// The cell's name.
        name: String,
        /// The backend's number, as `tailwater cell describe` shows it.
        #[arg(value_parser = values::number::<u32>(0..=u32::MAX as u64))]
        backend: u32,
        /// The backend does not come back: the other backends take over its data, even if there are spares.
        #[arg(long)]
        for_good: bool,
    },
    /// Put a drained backend back in place of its spare, and wait for the end.
    ///
    /// If the backend is a process of its own, start it before. The node starts its own backends.
    Restore {
        /// The cell's name.
        name: String,
        /// The backend's number.
        #[arg(value_parser = values::number::<u32>(0..=u32::MAX as u64))]
        backend: u32,
    },
    /// Restart all backends of a cell one after another, while it is used, and wait for the end.
    ///
    /// A spare stands for each backend meanwhile. The next one follows when a comparison of all backends has found
    /// nothing missing. A backend in its own process exits with status 10; its supervisor has to restart it. The node
    /// restarts its own backends. The roll goes on if you end this command.
    Roll {
        /// The cell's name.
        name: String,
        /// Stop a roll. A backend that is drained then stays drained.
        #[arg(long)]
        stop: bool,
    },
    /// List a node's cells: the two of its log, and those that were created.
    #[command(visible_alias = "list")]
    Ls(ListArgs),
    /// Show a cell's configuration, and the backends that the node is connected to.
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
    /// Two copies of what is loaded as a whole.
    #[value(name = "r2-immutable")]
    R2Immutable,
}

impl ModeArg {
    fn setting(self) -> CellModeSetting {
        match self {
            ModeArg::R1 => CellModeSetting::R1,
            ModeArg::R32 => CellModeSetting::R32,
            ModeArg::R2Immutable => CellModeSetting::R2Immutable,
        }
    }
}

/// Which values a backend evicts.
#[derive(clap::ValueEnum, Clone, Copy, Debug)]
pub enum EvictionArg {
    /// The value written longest ago.
    Lrm,
    /// The value written or read longest ago.
    Lru,
    /// Values that were only written go before values that were read.
    #[value(name = "s3-fifo")]
    S3Fifo,
}

impl EvictionArg {
    /// The same as a node has it.
    pub fn setting(self) -> EvictionSetting {
        match self {
            EvictionArg::Lrm => EvictionSetting::Lrm,
            EvictionArg::Lru => EvictionSetting::Lru,
            EvictionArg::S3Fifo => EvictionSetting::S3Fifo,
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
            spares,
            spare,
            capacity_bytes,
            value_bytes,
            ttl_ms,
            eviction_percent,
            eviction,
            output,
        } => {
            anyhow::ensure!(
                backends.is_some() || !backend.is_empty(),
                "a cell needs backends: say how many the node runs with --backends, or name each with --backend"
            );
            let create = CreateCell {
                name,
                backends: backends.unwrap_or(0),
                mode: mode.setting(),
                addresses: split(backend),
                spares,
                spare_addresses: split(spare),
                capacity_bytes,
                value_bytes,
                ttl_ms,
                eviction_percent,
                eviction: eviction.map(EvictionArg::setting),
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
        Command::Load { name, from, output } => load::run(server, &name, &from, output),
        Command::Resize { name, backends, backend, spares, spare } => {
            anyhow::ensure!(
                backends.is_some() || spares.is_some() || !(backend.is_empty() && spare.is_empty()),
                "say how many backends the node is to run with --backends, or name each new one with --backend; for spares, \
                 --spares or --spare"
            );
            let (addresses, spare_addresses) = (split(backend), split(spare));
            let asked = ResizeCell { backends, addresses, spares, spare_addresses };
            change(server, &name, "resize", &asked)
        }
        Command::Drain { name, backend, for_good } => {
            change(server, &name, "drain", &DrainCell { backend, for_good })
        }
        Command::Restore { name, backend } => change(server, &name, "restore", &RestoreCell { backend }),
        Command::Roll { name, stop } => roll(server, &name, stop),
        Command::Ls(ListArgs { output }) => list(server, output),
        Command::Describe { name, output } => {
            let cell: CellView = server.get(&format!("/v1/cells/{}", escaped(&name)))?;
            if output == Format::Json { output::print_json(&cell) } else { describe(&cell) }
        }
    }
}

/// The addresses of each backend.
fn split(backends: Vec<String>) -> Vec<Vec<String>> {
    backends.into_iter().map(|addresses| addresses.split(',').map(str::to_owned).collect()).collect()
}

/// Has the backends of a cell changed, and waits for the end of that.
fn change(server: &Server, name: &str, how: &str, asked: &impl serde::Serialize) -> anyhow::Result<()> {
    let path = format!("/v1/cells/{}", escaped(name));
    let begun: CellView = server.post(&format!("{path}/{how}"), asked)?;
    let mut cell = begun;
    let mut told = None;
    while cell.change.is_some() {
        if cell.change != told {
            told.clone_from(&cell.change);
            eprintln!("tailwater: cell {}: {}", cell.name, phase(told.as_deref().unwrap_or_default()));
        }
        pause();
        cell = server.get(&path)?;
    }
    let mut places = cell.places.clone();
    places.sort_by_key(|place| place.number);
    let numbers: Vec<String> = places.iter().map(numbered).collect();
    let spares: Vec<String> = cell.spares.iter().map(|spare| spare.number.to_string()).collect();
    let spares = match spares.len() {
        0 => String::new(),
        count => format!("; {}: {}", output::counted(count as u64, "spare"), spares.join(", ")),
    };
    output::print(&format!(
        "cell {} has {} now: {}{spares}",
        cell.name,
        output::counted(cell.backends.len() as u64, "backend"),
        numbers.join(", ")
    ))
}

/// A backend by its number, and for which other one it stands.
fn numbered(place: &CellPlaceView) -> String {
    match place.stands_for {
        Some(other) => format!("{} for {other}", place.number),
        None => place.number.to_string(),
    }
}

/// Has all backends of a cell restarted, and waits for the end of that; or ends it.
fn roll(server: &Server, name: &str, stop: bool) -> anyhow::Result<()> {
    let path = format!("/v1/cells/{}", escaped(name));
    let mut cell: CellView = server.post(&format!("{path}/roll"), &RollCell { stop })?;
    if stop {
        return output::print(&format!("the backends of the cell {name} are not being restarted any more"));
    }
    let count = cell.rolling.as_ref().map_or(0, |rolling| rolling.pending.len());
    let mut told = String::new();
    while let Some(rolling) = &cell.rolling {
        let pending: Vec<String> = rolling.pending.iter().map(u32::to_string).collect();
        let now = format!("to be restarted: {}; waiting for {}", pending.join(", "), rolling.waits_for);
        if now != told && !rolling.waits_for.is_empty() {
            eprintln!("tailwater: cell {name}: {now}");
            told = now;
        }
        pause();
        cell = server.get(&path)?;
    }
    output::print(&format!("cell {name}: {} restarted", output::counted(count as u64, "backend")))
}

/// How far a change is, for whoever waits for it.
fn phase(name: &str) -> &str {
    match name {
        "copying" => "copying what it holds to where it lies afterwards",
        "leaving" => "everything is copied; backends that are not in it any more leave",
        other => other,
    }
}

/// What a change does to a backend, and for which one it stands.
fn part(place: &CellPlaceView) -> String {
    let stands = place.stands_for.map(|other| format!("for {other}"));
    place.part.clone().into_iter().chain(stands).collect::<Vec<_>>().join(", ")
}

/// Between two looks at how far a change is.
#[allow(clippy::disallowed_methods)] // A command has nothing else to do meanwhile.
fn pause() {
    std::thread::sleep(Duration::from_millis(100));
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
    if let Some(generation) = cell.generation {
        let generation =
            if generation == 0 { "nothing is loaded yet".to_owned() } else { generation.to_string() };
        table.add_row(["load", &generation]);
    }
    if let Some(change) = &cell.change {
        table.add_row(["change", change]);
    }
    output::print(&table)?;
    output::print(&"")?;
    let mut table = output::table(&["backend", "part", "live", "copies", "refilled", "addresses"]);
    for (place, addresses) in cell.places.iter().zip(&cell.backends) {
        table.add_row([
            place.number.to_string(),
            part(place),
            if place.is_live { "yes" } else { "no" }.to_owned(),
            format!("{:.1} %", place.copies_percent),
            place.filled_percent.map_or_else(|| "unknown".to_owned(), |filled| format!("{filled:.1} %")),
            addresses.join(" or "),
        ]);
    }
    output::print(&table)?;
    for spare in &cell.spares {
        let stands = match spare.stand_in {
            Some(other) => format!("drained: backend {other} stands for it"),
            None => "a spare".to_owned(),
        };
        let live = match spare.is_live {
            Some(true) => ", live",
            Some(false) => ", not reached",
            None => "",
        };
        let addresses = spare.addresses.join(" or ");
        output::print(&format!("backend {} is {stands}{live}, at {addresses}", spare.number))?;
    }
    if let Some(rolling) = &cell.rolling {
        let pending: Vec<String> = rolling.pending.iter().map(u32::to_string).collect();
        output::print(&format!(
            "backends are restarted one after another; still to come: {}; waiting for {}",
            pending.join(", "),
            rolling.waits_for
        ))?;
    }
    for place in &cell.places {
        if let Some(why) = &place.hindrance {
            output::print(&format!("backend {} is not compared with the others: {why}", place.number))?;
        }
    }
    Ok(())
}
