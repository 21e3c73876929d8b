//! Structured logs, to standard error.

use std::io::IsTerminal;

use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::config::{LogFormat, Logging};

/// Starts logging for the process.
pub fn init(config: &Logging) -> anyhow::Result<()> {
    // By targets and levels alone: what finds single spans needs a regex engine of its own.
    let filter: Targets = config
        .filter
        .parse()
        .map_err(|error| anyhow::anyhow!("[logging] filter = {:?}: {error}", config.filter))?;
    let colours = std::io::stderr().is_terminal();
    // A line that can't be written, as the disk is full or nobody reads any more, is left out. To complain of that
    // there as well would be a panic.
    let lines = tracing_subscriber::fmt::layer()
        .with_ansi(colours)
        .with_writer(std::io::stderr)
        .log_internal_errors(false);
    let logs = tracing_subscriber::registry().with(filter);
    match config.format {
        LogFormat::Text => logs.with(lines).init(),
        LogFormat::Json => logs.with(lines.json()).init(),
    }
    Ok(())
}
