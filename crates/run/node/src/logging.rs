//! Structured logs, to standard error.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

use crate::config::{LogFormat, Logging};

/// Starts logging for the process.
pub fn init(config: &Logging) -> anyhow::Result<()> {
    let filter = EnvFilter::try_new(&config.filter)
        .map_err(|error| anyhow::anyhow!("[logging] filter = {:?}: {error}", config.filter))?;
    let colours = std::io::stderr().is_terminal();
    // A line that can't be written, as the disk is full or nobody reads any more, is left out. To complain of that
    // there as well would be a panic.
    let logs = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(colours)
        .with_writer(std::io::stderr)
        .log_internal_errors(false);
    match config.format {
        LogFormat::Text => logs.init(),
        LogFormat::Json => logs.json().init(),
    }
    Ok(())
}
