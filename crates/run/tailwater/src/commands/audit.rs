//! `tailwater audit …`

use std::io::Write;
use std::time::Duration;

use clap::Subcommand;
use tailwater_env::Env;
use tailwater_node::api::AuditEvent;

use crate::admin::Server;
use crate::output::{self, Format};
use crate::template::write_time;
use crate::values;

/// How often the node is asked for new events.
const ASK_EVERY: Duration = Duration::from_millis(500);

/// What to do with the audit.
#[derive(Subcommand)]
pub enum Command {
    /// Show recent requests that were refused or would have been, and recent changes.
    Tail {
        /// Go on with new events, until interrupted.
        #[arg(short, long)]
        follow: bool,
        /// How many of the newest events are shown first.
        #[arg(short = 'n', long, value_name = "COUNT", default_value = "20",
            value_parser = values::number::<usize>(0..=1_000))]
        last: usize,
        /// Form of the output: for programs, a JSON document a line.
        #[arg(short, long, value_enum, default_value_t = Format::Table)]
        output: Format,
    },
}

/// Does it.
pub fn run(server: &Server, command: Command) -> anyhow::Result<()> {
    let Command::Tail { follow, last, output } = command;
    let recent: Vec<AuditEvent> = server.get(&format!("/v1/audit?max={last}"))?;
    // With none at all the newest one's number is not known, and all that comes is new.
    let mut after = recent.last().map_or(0, |event| event.number);
    recent.iter().try_for_each(|event| show(event, output))?;
    if !follow {
        return Ok(());
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    let env = runtime.block_on(async { Env::real() });
    loop {
        std::io::stdout().flush()?;
        runtime.block_on(async { env.sleep(ASK_EVERY).await });
        let new: Vec<AuditEvent> = server.get(&format!("/v1/audit?after={after}"))?;
        if let Some(first) = new.first().filter(|first| first.number > after + 1 && after > 0) {
            let missed = first.number - after - 1;
            let (counted, were) = (output::counted(missed, "event"), output::were(missed));
            eprintln!("tailwater: {counted} {were} not shown: there were too many at once");
        }
        after = new.last().map_or(after, |event| event.number);
        new.iter().try_for_each(|event| show(event, output))?;
    }
}

fn show(event: &AuditEvent, output: Format) -> anyhow::Result<()> {
    if output == Format::Json {
        return output::print_json(event);
    }
    let AuditEvent { outcome, principal, address, protocol, request, operation, kind, name, .. } = event;
    let mut out = std::io::stdout().lock();
    write_time(&mut out, event.time_ms)?;
    let what = format!("{operation} {kind} {name} ({protocol} {request})");
    writeln!(out, " {outcome} {principal} {what} from {address}")?;
    Ok(())
}
