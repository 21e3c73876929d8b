//! `tailwater migrate`: what is in a data directory goes to BookKeeper and ZooKeeper. No node runs on it meanwhile.

use std::path::PathBuf;

use serde::Serialize;
use tailwater_log::MigrationStep;
use tailwater_node::{Config, Logging, MigrateNews, MigrateOptions, MigrateReport};

use crate::output::{self, Format};

/// What is moved, and how. Where it goes is in the configuration, as the nodes will have it.
#[derive(clap::Args)]
pub struct Args {
    /// The data directory. By default that of --config.
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Say what is in the directory and what would be moved, and move nothing.
    #[arg(long)]
    dry_run: bool,
    /// Once everything is moved, remove the directory's own segments, which nothing reads any more. This
    /// works on a directory that was moved earlier, too.
    #[arg(long, conflicts_with = "dry_run")]
    remove_segments: bool,
    /// Form of the output.
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    output: Format,
}

#[derive(Serialize)]
struct Flags {
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<PathBuf>,
}

/// Moves the directory.
pub fn run(args: Args, file: Option<&PathBuf>) -> anyhow::Result<()> {
    let Args { data, dry_run, remove_segments, output } = args;
    let config = Config::load(file, Flags { data })?;
    // What is told is what goes wrong: the rest is this command's own to say.
    tailwater_node::logging::init(&Logging { filter: "warn".to_owned(), ..config.logging.clone() })?;
    tailwater_node::panics::end_the_process();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let options = MigrateOptions { dry_run, remove_segments };
    let progress = MoveProgress::new();
    let report = runtime.block_on(tailwater_node::migrate(config, options, &|news| progress.tell(&news)));
    progress.bar.finish_and_clear();
    let report = report?;
    match output {
        Format::Json => output::print_json(&report)?,
        Format::Table => print(&report, dry_run)?,
    }
    match report.refused {
        Some(why) => anyhow::bail!("it is not moved as it is: {why}"),
        None => Ok(()),
    }
}

/// Tells how far it is, on standard error.
struct MoveProgress {
    bar: indicatif::ProgressBar,
}

impl MoveProgress {
    fn new() -> Self {
        Self { bar: output::progress(Some(0)) }
    }

    fn say(&self, text: &str) {
        self.bar.suspend(|| eprintln!("{text}"));
    }

    fn tell(&self, news: &MigrateNews<'_>) {
        match news {
            MigrateNews::Waits(why) => self.say(why),
            MigrateNews::Read(report) if report.was_moved => self.say("an earlier run has moved it"),
            MigrateNews::Read(report) => self.say(&format!("read {}", report.data)),
            MigrateNews::Step(step) => self.tell_step(*step),
        }
    }

    fn tell_step(&self, step: MigrationStep) {
        match step {
            MigrationStep::Begun => self.say("ZooKeeper has taken note: no node starts there before the end"),
            MigrationStep::Deleted(id) => {
                self.say(&format!("a copy of {id} was not whole, or is not wanted"))
            }
            MigrationStep::ToCopy(segments, bytes) => {
                let (segments, size) = (output::counted(segments, "segment"), output::bytes(bytes));
                self.say(&format!("copying {segments}, {size}"));
                self.bar.set_length(bytes);
            }
            MigrationStep::Copied(bytes) => self.bar.inc(bytes),
            MigrationStep::Segment(_) | MigrationStep::Keys(..) => {}
            MigrationStep::Segments => self.say("all segments are in BookKeeper"),
            MigrationStep::Whole => self.say("all metadata is in ZooKeeper"),
            MigrationStep::Marked => self.say("the directory has taken note of where it was moved"),
            MigrationStep::Done => self.say("nodes may start"),
        }
    }
}

fn print(report: &MigrateReport, dry_run: bool) -> anyhow::Result<()> {
    if !report.was_moved {
        let mut table =
            output::table(&["stream", "shards", "records", "segments", "bytes", "in cold storage"]);
        for stream in &report.streams {
            table.add_row([
                stream.name.clone(),
                stream.shards.to_string(),
                stream.records.to_string(),
                stream.segments.to_string(),
                output::bytes(stream.bytes),
                stream.segments_cold.to_string(),
            ]);
        }
        output::print(&table)?;
        let others = report.others.iter().map(|(what, count)| format!("{count} {what}"));
        let others: Vec<String> = others.collect();
        output::print(&format!(
            "beside them: {}",
            if others.is_empty() { "nothing".to_owned() } else { others.join(", ") }
        ))?;
    }
    let MigrateReport { data, metadata, segments, .. } = report;
    output::print(&match (dry_run, report.was_moved) {
        (true, true) => format!("{data} was moved already"),
        (true, false) => format!("{data} would be moved to {metadata} and {segments}"),
        (false, true) => format!("{data} was moved already; nodes may start on {metadata}"),
        (false, false) => format!(
            "{data} is moved to {metadata} and {segments}: {} and {} were copied in this run",
            output::counted(report.copied_segments, "segment"),
            output::counted(report.copied_keys, "key"),
        ),
    })?;
    if report.segments_removed > 0 {
        let removed = output::counted(report.segments_removed as u64, "segment");
        output::print(&format!(
            "{removed} {} removed from {data}",
            output::were(report.segments_removed as u64)
        ))?;
    }
    report.notes.iter().try_for_each(|note| output::print(&format!("note: {note}")))
}
