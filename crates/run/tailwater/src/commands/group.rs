//! `tailwater group …`

use std::io::{IsTerminal, Write};
use std::time::Duration;

use clap::Subcommand;
use serde_json::Value;
use tailwater_client::Start;
use tailwater_env::Env;
use tailwater_node::api::{GroupReset, GroupShardView, GroupSummary, GroupView, ResetGroup};

use crate::admin::{Server, escaped};
use crate::output::{self, Format};
use crate::values;

/// What to do with groups.
#[derive(Subcommand)]
pub enum Command {
    /// List groups with their lag: the records that are not consumed, and the age of the oldest of these.
    #[command(visible_alias = "list")]
    Ls {
        #[command(flatten)]
        watch: Watch,
        /// Form of the output.
        #[arg(short, long, value_enum, default_value_t = Format::Table)]
        output: Format,
    },
    /// Show a group's members and shards, and how far behind the group is in each shard.
    Describe {
        /// The group's name.
        name: String,
        #[command(flatten)]
        watch: Watch,
        /// Form of the output.
        #[arg(short, long, value_enum, default_value_t = Format::Table)]
        output: Format,
    },
    /// Let a group without members go on from another position.
    Reset {
        /// The group's name. A group that does not exist is created.
        name: String,
        /// The record that is consumed next: start, end, OFFSET, -N (before the end), @TIME (ms since the epoch, a
        /// date in UTC, or RFC 3339), dlsn:SEGMENT/ENTRY/SLOT or tx:N.
        #[arg(long, value_name = "POSITION", allow_hyphen_values = true)]
        to: Start,
        /// Reset all shards of this stream. It may be given several times. By default the shards in which the group has
        /// committed something.
        #[arg(long, value_name = "NAME")]
        stream: Vec<String>,
        /// Only show what would be committed.
        #[arg(long)]
        dry_run: bool,
        /// Form of the output.
        #[arg(short, long, value_enum, default_value_t = Format::Table)]
        output: Format,
    },
    /// Delete a group without members, and what it committed.
    Delete {
        /// The group's name.
        name: String,
    },
}

/// Showing something again and again.
#[derive(clap::Args, Clone, Copy)]
pub struct Watch {
    /// Show it again every SECONDS seconds, until interrupted.
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, require_equals = true, default_missing_value = "1",
        value_parser = values::number::<u32>(1..=86_400))]
    watch: Option<u32>,
}

impl Watch {
    /// Shows something once, or for as long as it can be.
    fn show(self, output: Format, show: impl Fn() -> anyhow::Result<()>) -> anyhow::Result<()> {
        let Some(seconds) = self.watch else { return show() };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
        let env = runtime.block_on(async { Env::real() });
        loop {
            if output == Format::Table && std::io::stdout().is_terminal() {
                // From the top of an empty screen.
                write!(std::io::stdout(), "\x1b[H\x1b[2J")?;
            }
            show()?;
            std::io::stdout().flush()?;
            runtime.block_on(async { env.sleep(Duration::from_secs(seconds.into())).await });
        }
    }
}

/// Runs one of them.
pub fn run(server: &Server, command: Command) -> anyhow::Result<()> {
    match command {
        Command::Ls { watch, output } => watch.show(output, || list(server, output)),
        Command::Describe { name, watch, output } => watch.show(output, || describe(server, &name, output)),
        Command::Reset { name, to, stream, dry_run, output } => {
            let reset = ResetGroup { to: to.to_string(), streams: stream, dry_run };
            let done: Vec<GroupReset> = server.post(&format!("{}/reset", path(&name)), &reset)?;
            if output == Format::Json {
                return done.iter().try_for_each(output::print_json);
            }
            let mut table = output::table(&["stream", "shard", "before", "after"]);
            for done in done {
                let before = done.before.map_or("-".to_owned(), |before| before.to_string());
                table.add_row([done.stream, done.shard.to_string(), before, done.after.to_string()]);
            }
            output::print(&table)
        }
        Command::Delete { name } => {
            let _: Value = server.delete(&path(&name))?;
            output::print(&format!("group {name} deleted"))
        }
    }
}

fn path(name: &str) -> String {
    format!("/v1/groups/{}", escaped(name))
}

fn list(server: &Server, output: Format) -> anyhow::Result<()> {
    let groups: Vec<GroupSummary> = server.get("/v1/groups")?;
    if output == Format::Json {
        return groups.iter().try_for_each(output::print_json);
    }
    let heads = ["name", "kind", "state", "members", "shards", "lag records", "lag seconds"];
    let mut table = output::table(&heads);
    for group in groups {
        table.add_row([
            group.name,
            group.kind,
            group.state,
            group.members.to_string(),
            group.shards.to_string(),
            group.lag_records.to_string(),
            seconds(group.lag_seconds),
        ]);
    }
    output::print(&table)
}

fn describe(server: &Server, name: &str, output: Format) -> anyhow::Result<()> {
    let group: GroupView = server.get(&path(name))?;
    if output == Format::Json {
        return output::print_json(&group);
    }
    let mut table = output::table(&["key", "value"]);
    table.add_row(["name", &group.summary.name]);
    table.add_row(["kind", &group.summary.kind]);
    table.add_row(["state", &group.summary.state]);
    table.add_row(["generation", &group.generation.to_string()]);
    table.add_row(["protocol", &group.protocol]);
    table.add_row(["lag-records", &group.summary.lag_records.to_string()]);
    table.add_row(["lag-seconds", &seconds(group.summary.lag_seconds)]);
    output::print(&table)?;
    if !group.members.is_empty() {
        output::print(&"")?;
        let mut table = output::table(&["member", "instance", "client", "host", "shards"]);
        for member in group.members {
            let instance = member.instance.unwrap_or_else(|| "-".to_owned());
            table.add_row([member.id, instance, member.client_id, member.host, member.shards.to_string()]);
        }
        output::print(&table)?;
    }
    if !group.shards.is_empty() {
        output::print(&"")?;
        output::print(&shards(&group.shards))?;
    }
    Ok(())
}

fn shards(shards: &[GroupShardView]) -> impl std::fmt::Display {
    let heads = ["stream", "shard", "committed", "start", "end", "lag records", "lag seconds", "member"];
    let mut table = output::table(&heads);
    let or_none = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    for shard in shards {
        table.add_row([
            shard.stream.clone(),
            shard.shard.to_string(),
            or_none(shard.committed.map(|offset| offset.to_string())),
            shard.log_start.to_string(),
            shard.end.to_string(),
            shard.lag_records.to_string(),
            or_none(shard.lag_seconds.map(seconds)),
            or_none(shard.member.clone()),
        ]);
    }
    table
}

fn seconds(seconds: f64) -> String {
    format!("{seconds:.1}")
}
