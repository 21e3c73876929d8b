//! How results are shown: a table for people; with `-o json` also one JSON object on the last line.

use std::io::{IsTerminal, Write};

use serde::Serialize;
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

/// Form of the output.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportFormat {
    /// For people.
    Table,
    /// For programs: one object on the last line.
    Json,
}

/// Prints a result.
pub fn print(format: ReportFormat, result: &impl Serialize) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    let text = serde_json::to_string(result)?;
    match format {
        ReportFormat::Json => writeln!(out, "{text}")?,
        ReportFormat::Table => {
            let Shown::Fields(fields) = serde_json::from_str(&text)? else {
                anyhow::bail!("a result without fields");
            };
            let width = fields.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
            for (name, value) in fields {
                writeln!(out, "{name:width$}  {}", value.in_words())?;
            }
        }
    }
    out.flush()?;
    Ok(())
}

/// A result as it is shown to people: as its JSON, in the order in which it was written.
enum Shown {
    Fields(Vec<(String, Shown)>),
    List(Vec<Shown>),
    Plain(String),
}

impl Shown {
    fn in_words(&self) -> String {
        match self {
            Shown::Fields(fields) => {
                let words = fields.iter().map(|(name, value)| format!("{name} {}", value.in_words()));
                words.collect::<Vec<_>>().join("   ")
            }
            Shown::List(values) if values.len() > LIST_MAX => {
                format!("{} values, which -o json shows", values.len())
            }
            Shown::List(values) => {
                let words = values.iter().map(|value| format!("\n    {}", value.in_words()));
                words.collect()
            }
            Shown::Plain(text) => text.clone(),
        }
    }
}

/// Longest list that is shown to people.
const LIST_MAX: usize = 40;

impl<'de> Deserialize<'de> for Shown {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ShownVisitor)
    }
}

struct ShownVisitor;

impl<'de> Visitor<'de> for ShownVisitor {
    type Value = Shown;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("any JSON")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Shown, E> {
        Ok(Shown::Plain(if value { "yes" } else { "no" }.to_owned()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Shown, E> {
        Ok(Shown::Plain(value.to_string()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Shown, E> {
        Ok(Shown::Plain(value.to_string()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Shown, E> {
        Ok(Shown::Plain(value.to_string()))
    }

    fn visit_str<E>(self, value: &str) -> Result<Shown, E> {
        Ok(Shown::Plain(value.to_owned()))
    }

    fn visit_unit<E>(self) -> Result<Shown, E> {
        Ok(Shown::Plain("-".to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Shown, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = list.next_element()? {
            values.push(value);
        }
        Ok(Shown::List(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Shown, A::Error> {
        let mut fields = Vec::new();
        while let Some(field) = map.next_entry()? {
            fields.push(field);
        }
        Ok(Shown::Fields(fields))
    }
}

/// A line that shows how far a run is, overwritten in place; nothing where standard error is no terminal.
#[derive(Default)]
pub struct ProgressLine {
    shown: bool,
}

impl ProgressLine {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_shown_in_the_order_in_which_they_were_written() {
        let shown: Shown = serde_json::from_str(r#"{"b":{"z":1,"a":0.5},"a":null,"c":true}"#).expect("JSON");
        assert_eq!(shown.in_words(), "b z 1   a 0.5   a -   c yes");
    }
}
