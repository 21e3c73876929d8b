//! How a record is written out.

use std::io::{self, Write};

use tailwater_client::Batch;
use tailwater_format::batch::Record;

pub use crate::template::{Template, TemplateField};
use crate::template::{write_headers, write_time};

/// The letters of `--format`; its help says what each is.
const LETTERS: &str = "kvosptTdhS";

/// A record's `--format`.
pub fn template(text: &str) -> Result<Template, String> {
    Template::parse(text, LETTERS)
}

/// Writes one record.
pub fn write<W: Write>(
    template: &Template,
    out: &mut W,
    stream: &str,
    batch: &Batch,
    record: &Record<'_>,
) -> io::Result<()> {
    template.write(out, |out, letter| match letter {
        'k' => out.write_all(record.key.unwrap_or_default()),
        'v' => out.write_all(record.value.unwrap_or_default()),
        'o' => write!(out, "{}", record.offset),
        's' | 'p' => write!(out, "{}", batch.shard),
        't' => write!(out, "{}", record.timestamp_ms),
        'T' => write_time(out, record.timestamp_ms),
        'd' => write!(out, "{}", batch.dlsn(record.offset).unwrap_or_default()),
        'h' => {
            let headers = record.headers.iter().filter_map(Result::ok);
            write_headers(
                out,
                headers.map(|header| (header.key.as_bytes(), header.value.unwrap_or_default())),
            )
        }
        _ => out.write_all(stream.as_bytes()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::template::help_names;

    #[test]
    fn the_help_names_every_letter_and_no_other() {
        help_names(&["consume"], "format", LETTERS);
    }
}
