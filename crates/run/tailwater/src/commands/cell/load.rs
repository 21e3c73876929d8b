//! `tailwater cell load`: all that a cell holds, out of a directory, a file or an object store.
#![allow(clippy::disallowed_methods)] // It reads its user's files.

#[cfg(feature = "cold")]
mod objects;

use std::collections::VecDeque;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use serde_json::json;
use tailwater_cache::CellLoad;
use tailwater_node::api::{CellView, LoadCell};

use crate::admin::{Server, escaped};
use crate::commands::cache;
use crate::output::{self, Format};

/// Bytes of keys and values that are set at once.
const BATCH_BYTES: usize = 4 << 20;

/// Keys that are.
const BATCH_KEYS: usize = 4_096;

/// The longest line of a file: the longest key and value.
const LINE_BYTES_MAX: u64 = 2 << 20;

/// How long a batch may take.
const DEADLINE: Duration = Duration::from_secs(30);

/// Loads a cell, and waits until that is read.
pub fn run(server: &Server, name: &str, from: &Path, form: Format) -> anyhow::Result<()> {
    // Before the cell is asked for anything.
    let mut corpus = Corpus::open(from)?;
    let (loaded, generation, config_id) = cache::in_named_cell(server, name, DEADLINE, async |cell| {
        corpus.begin().await?;
        let mut load = cell.begin_load().await?;
        let loaded = fill(&mut load, corpus).await?;
        let (generation, config_id) = (load.generation(), load.config_id());
        load.end().await?;
        Ok((loaded, generation, config_id))
    })?;
    let path = format!("/v1/cells/{}/load", escaped(name));
    let cell: CellView = server.post(&path, &LoadCell { generation, config_id })?;
    match form {
        Format::Json => output::print_json(&json!({
            "cell": cell.name, "keys": loaded.keys, "bytes": loaded.bytes, "generation": generation,
        })),
        Format::Table => output::print(&format!(
            "cell {} has {} of {} now, load {generation}",
            cell.name,
            output::counted(loaded.keys, "key"),
            output::bytes(loaded.bytes)
        )),
    }
}

/// What was set.
#[derive(Default)]
struct LoadCount {
    keys: u64,
    bytes: u64,
}

async fn fill(load: &mut CellLoad, mut corpus: Corpus) -> anyhow::Result<LoadCount> {
    let mut loaded = LoadCount::default();
    let mut batch = Vec::new();
    let mut batch_bytes = 0;
    while let Some((key, value)) = corpus.next().await? {
        batch_bytes += key.len() + value.len();
        loaded.keys += 1;
        loaded.bytes += (key.len() + value.len()) as u64;
        batch.push((key, value));
        if batch_bytes >= BATCH_BYTES || batch.len() >= BATCH_KEYS {
            load.set(std::mem::take(&mut batch)).await?;
            batch_bytes = 0;
        }
    }
    load.set(batch).await?;
    anyhow::ensure!(loaded.keys > 0, "there is nothing to load there: what the cell holds stays");
    Ok(loaded)
}

/// Keys and values, one after another.
enum Corpus {
    Files {
        root: PathBuf,
        open: VecDeque<PathBuf>,
    },
    Lines {
        path: PathBuf,
        lines: BufReader<fs::File>,
        number: u64,
    },
    #[cfg(feature = "cold")]
    Objects(objects::CorpusObjects),
}

impl Corpus {
    fn open(from: &Path) -> anyhow::Result<Self> {
        let url = from.to_str().filter(|from| from.contains("://"));
        let from = match url {
            None => from,
            Some(url) => match url.strip_prefix("file://") {
                Some(path) => Path::new(path),
                None => return Self::of_url(url),
            },
        };
        let told = || format!("{} can't be read", from.display());
        let metadata = fs::metadata(from).with_context(told)?;
        if metadata.is_dir() {
            return Ok(Self::Files { root: from.to_owned(), open: VecDeque::from([from.to_owned()]) });
        }
        let lines = BufReader::new(fs::File::open(from).with_context(told)?);
        Ok(Self::Lines { path: from.to_owned(), lines, number: 0 })
    }

    #[cfg(feature = "cold")]
    fn of_url(url: &str) -> anyhow::Result<Self> {
        Ok(Self::Objects(objects::CorpusObjects::of(url)))
    }

    #[cfg(not(feature = "cold"))]
    fn of_url(url: &str) -> anyhow::Result<Self> {
        let left_out = crate::commands::left_out::run("client of object stores", "cold");
        Err(left_out.expect_err("it says so")).context(format!("{url} names an object store"))
    }

    /// Makes sure that there is something to read from.
    async fn begin(&mut self) -> anyhow::Result<()> {
        match self {
            Self::Files { .. } | Self::Lines { .. } => Ok(()),
            #[cfg(feature = "cold")]
            Self::Objects(objects) => objects.begin().await,
        }
    }

    /// The next key with its value.
    async fn next(&mut self) -> anyhow::Result<Option<(Bytes, Bytes)>> {
        match self {
            Self::Files { root, open } => Self::next_file(root, open),
            Self::Lines { path, lines, number } => Self::next_line(path, lines, number),
            #[cfg(feature = "cold")]
            Self::Objects(objects) => objects.next().await,
        }
    }

    /// The next file below the directory.
    fn next_file(root: &Path, open: &mut VecDeque<PathBuf>) -> anyhow::Result<Option<(Bytes, Bytes)>> {
        while let Some(path) = open.pop_front() {
            let told = || format!("{} can't be read", path.display());
            if !path.is_dir() {
                let key = path.strip_prefix(root).with_context(told)?;
                let key = key.to_str().with_context(|| format!("{} is no text", path.display()))?;
                let value = fs::read(&path).with_context(told)?;
                return Ok(Some((key.to_owned().into(), value.into())));
            }
            for entry in fs::read_dir(&path).with_context(told)? {
                open.push_back(entry.with_context(told)?.path());
            }
        }
        Ok(None)
    }

    /// The next line of the file.
    fn next_line(
        path: &Path,
        lines: &mut BufReader<fs::File>,
        number: &mut u64,
    ) -> anyhow::Result<Option<(Bytes, Bytes)>> {
        use std::io::Read;
        let mut line = Vec::new();
        let read = lines.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line);
        read.with_context(|| format!("{} can't be read", path.display()))?;
        if line.is_empty() {
            return Ok(None);
        }
        *number += 1;
        let line = line.strip_suffix(b"\n").unwrap_or(&line);
        let tab = line.iter().position(|byte| *byte == b'\t');
        let tab = tab.with_context(|| {
            format!("line {number} of {} has no tab: a line is a key, a tab and its value", path.display())
        })?;
        Ok(Some((Bytes::copy_from_slice(&line[..tab]), Bytes::copy_from_slice(&line[tab + 1..]))))
    }
}
