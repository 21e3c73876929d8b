//! What stands above the tables, and the tables.

use std::fmt::Write;
use std::path::Path;

use super::{Args, Effort, machine};

/// Where and how everything ran.
pub fn heading(args: &Args, effort: &Effort, work: &Path) -> anyhow::Result<String> {
    let congestion = machine::congestion_control()?;
    anyhow::ensure!(congestion == "cubic", "connections use {congestion}, not cubic: see bench/peers/cubic");
    let quick = if args.quick { "\n**A quick try: these figures are no results.**\n" } else { "" };
    Ok(format!(
        "## Beside its peers\n{quick}\nOne run of `make bench-compare` on {}. Everything is pinned to these cores, client and server \
         alike; TCP uses {congestion}. {} interleaved rounds; a figure is their median, with the least and the most \
         behind it. Data is on the file system of {}; Tailwater {} with cells at R=3.2 in six backend processes.\n",
        machine::describe()?,
        effort.rounds,
        work.parent().unwrap_or(work).display(),
        env!("CARGO_PKG_VERSION"),
    ))
}

/// A table with a title.
pub struct MarkdownTable {
    text: String,
    columns: usize,
}

impl MarkdownTable {
    /// One without rows.
    pub fn new(title: &str, columns: &[&str]) -> Self {
        let mut text = format!("\n### {title}\n\n");
        // Writing to a string does not fail, here and below.
        let _ = writeln!(text, "| {} |\n|{}", columns.join(" | "), "---|".repeat(columns.len()));
        Self { text, columns: columns.len() }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: &[&str]) {
        let _ = writeln!(self.text, "| {} |", cells.join(" | "));
    }

    /// Adds a system without a result.
    pub fn missing(&mut self, name: &str, why: &str) {
        let _ = writeln!(self.text, "| {name} | {why}{} |", " |".repeat(self.columns - 2));
    }

    /// Ends it with what has to be said.
    pub fn end(mut self, notes: &str) -> String {
        let _ = writeln!(self.text, "\n{notes}");
        self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_as_many_cells_as_there_are_columns() {
        let mut table = MarkdownTable::new("t", &["a", "b", "c"]);
        table.row(&["1", "2", "3"]);
        table.missing("x", "not installed");
        let text = table.end("That was it.");
        let rows: Vec<_> = text.lines().filter(|line| line.starts_with('|')).collect();
        assert_eq!(rows.len(), 4);
        assert!(rows.iter().all(|row| row.matches('|').count() == 4), "{text}");
    }
}
