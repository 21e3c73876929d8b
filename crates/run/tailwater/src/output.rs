//! How results are shown: tables for people, JSON for programs.

use std::io::{IsTerminal, Write};

use comfy_table::{ContentArrangement, Table, presets};

/// Form of the output.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// For people.
    Table,
    /// For programs: one JSON document, or one a line where there are many.
    Json,
}

/// How what is listed is shown.
#[derive(clap::Args, Clone, Copy, Debug)]
pub struct ListArgs {
    /// Form of the output.
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    pub output: Format,
}

/// A table with these column heads.
pub fn table(heads: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(heads.iter().map(|head| head.to_uppercase()));
    table
}

/// Prints a table, or whatever else, and a line's end.
pub fn print(what: &impl std::fmt::Display) -> anyhow::Result<()> {
    writeln!(std::io::stdout().lock(), "{what}")?;
    Ok(())
}

/// Prints one JSON document on one line.
pub fn print_json(value: &impl serde::Serialize) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, value)?;
    writeln!(out)?;
    Ok(())
}

/// A progress line on standard error, if that is a terminal.
pub fn progress(total_bytes: Option<u64>) -> indicatif::ProgressBar {
    if !std::io::stderr().is_terminal() {
        return indicatif::ProgressBar::hidden();
    }
    let (bar, template) = match total_bytes {
        Some(total) => (
            indicatif::ProgressBar::new(total),
            "{bar:30} {bytes}/{total_bytes} {binary_bytes_per_sec} {msg}",
        ),
        None => (indicatif::ProgressBar::new_spinner(), "{spinner} {bytes} {binary_bytes_per_sec} {msg}"),
    };
    bar.with_style(indicatif::ProgressStyle::with_template(template).expect("a template of known keys"))
}

/// A number of things that one word names, as people write it: "1 record", "2 records".
pub fn counted(count: u64, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// What stands behind a number of things that something was done to.
pub fn were(count: u64) -> &'static str {
    if count == 1 { "was" } else { "were" }
}

/// A number of bytes as people write it.
pub fn bytes(count: u64) -> String {
    indicatif::BinaryBytes(count).to_string()
}

/// What to do about a refusal, where that is not in its own words.
pub fn hint(error: &anyhow::Error) -> Option<&'static str> {
    let code = error.chain().find_map(|cause| {
        let by_call = cause.downcast_ref().and_then(|error| match error {
            tailwater_client::Error::Refused(refusal) => Some(refusal.code.name()),
            tailwater_client::Error::Queue { code, .. } => Some(code.as_str()),
            _ => None,
        });
        by_call.or_else(|| Some(cause.downcast_ref::<crate::admin::AdminRefused>()?.0.error.as_str()))
    });
    match code? {
        "unknown_stream" => {
            Some("`tailwater stream ls` lists the streams, `tailwater stream create NAME` makes one.")
        }
        "unknown_cell" => {
            Some("`tailwater cell ls` lists the cells, `tailwater cell create NAME` makes one.")
        }
        "unknown_user" => Some("`tailwater user ls` lists the users."),
        "unknown_group" => Some("`tailwater group ls` lists the groups."),
        "offset_out_of_range" => {
            Some("`tailwater stream describe NAME` shows where each shard starts and ends.")
        }
        "AWS.SimpleQueueService.NonExistentQueue" => {
            Some("`tailwater queue ls` lists the queues, `tailwater queue create NAME` makes one.")
        }
        _ => None,
    }
}

/// Whether an error only says that nobody reads our output any more.
pub fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let io = cause.downcast_ref::<std::io::Error>();
        let json = cause.downcast_ref::<serde_json::Error>().and_then(serde_json::Error::io_error_kind);
        io.map(std::io::Error::kind).or(json) == Some(std::io::ErrorKind::BrokenPipe)
    })
}
