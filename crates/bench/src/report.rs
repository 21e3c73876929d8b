//! How results are shown: a table for people; with `-o json` also one JSON object on the last line.

use std::io::{IsTerminal, Write};

use serde::Serialize;
use serde_json::Value;

/// Form of the output.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// For people.
    Table,
    /// For programs: one object on the last line.
    Json,
}

/// Prints a result.
pub fn print(format: Format, result: &impl Serialize) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    let value = serde_json::to_value(result)?;
    match format {
        Format::Json => writeln!(out, "{}", serde_json::to_string(result)?)?,
        Format::Table => {
            let Value::Object(fields) = value else { return Ok(()) };
            let width = fields.keys().map(String::len).max().unwrap_or(0);
            for (name, value) in fields {
                writeln!(out, "{name:width$}  {}", for_people(&value))?;
            }
        }
    }
    out.flush()?;
    Ok(())
}

fn for_people(value: &Value) -> String {
    match value {
        Value::Object(fields) => {
            let fields: Vec<_> =
                fields.iter().map(|(name, value)| format!("{name} {}", for_people(value))).collect();
            fields.join("   ")
        }
        Value::Array(values) if values.len() > 8 => format!("{} values; see them with -o json", values.len()),
        Value::Array(values) => values.iter().map(for_people).collect::<Vec<_>>().join("\n    "),
        Value::String(text) => text.clone(),
        Value::Null => "-".to_owned(),
        other => other.to_string(),
    }
}

/// A line that shows how far a run is, overwritten in place; nothing where standard error is no terminal.
pub struct ProgressLine {
    shown: bool,
}

impl ProgressLine {
    /// One that is empty.
    pub fn new() -> Self {
        Self { shown: false }
    }

    /// Shows another text.
    pub fn show(&mut self, text: &str) {
        if std::io::stderr().is_terminal() {
            eprint!("\r\x1b[K{text}");
            self.shown = true;
        }
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        if self.shown {
            eprint!("\r\x1b[K");
        }
    }
}
