//! The page of figures and its pictures, made from the result files that are committed.
//!
//! ```text
//!   bench/results/*.toml ---> docs/benchmarks.md     one section for each file, with its command, machine and build
//!   git's history -------/    docs/img/figures/*.svg a picture of a file's own figures
//!                             docs/img/compared.svg  the README's: figures of three files
//! ```
//!
//! - What came out is only in the result files: ratios, verdicts and pictures are computed from them.
//! - The same files make the same page and pictures, byte for byte, apart from what is said of their age.
//! - A figure whose code was changed after its build says so, with the commit that did it first ([`history`]). What a
//!   later commit would make wrong is printed, and not on the page.
//!
//! bench/README.md says how a run becomes a result file.

mod compared;
mod history;
mod page;
mod picture;
mod recorded;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, ensure};
use clap::Parser;

use history::{CodeHistory, Freshness};
use recorded::Recorded;

/// Where the page is, from the repository's root.
const PAGE: &str = "docs/benchmarks.md";
/// Where the pictures are, and nothing else.
const PICTURES: &str = "docs/img/figures";

/// Flags.
#[derive(Parser)]
#[command(name = "figures", about = "Makes docs/benchmarks.md and its pictures from bench/results.")]
struct Args {
    #[command(subcommand)]
    command: Option<FigureCommand>,
}

/// What else it does.
#[derive(clap::Subcommand)]
enum FigureCommand {
    /// Starts a result file, of the commit that is checked out and of today, to be filled in.
    New {
        /// The file's name without its ending.
        name: String,
    },
}

/// Does what the command line says, to the repository in the current directory.
pub fn main() -> anyhow::Result<()> {
    let root = std::env::current_dir()?;
    match Args::parse().command {
        Some(FigureCommand::New { name }) => begin(&root, &name),
        None => make(&root),
    }
}

/// Starts the result file `name`.
fn begin(root: &Path, name: &str) -> anyhow::Result<()> {
    let plain = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    ensure!(plain, "a result's name has letters, digits and hyphens: {name:?}");
    let file = root.join(recorded::FOLDER).join(format!("{name}.toml"));
    ensure!(!file.exists(), "{} is there: change it, or choose another name", file.display());
    let build = CodeHistory::of(root)?.build()?;
    std::fs::write(&file, recorded::template(&build, &jiff::Timestamp::now().strftime("%F").to_string()))
        .with_context(|| format!("{} can't be written", file.display()))?;
    println!("{}: fill it in, then `make figures`", file.display());
    Ok(())
}

/// Writes the page and the pictures, and removes pictures that no result has.
fn make(root: &Path) -> anyhow::Result<()> {
    let (machines, results) = recorded::read(root)?;
    let ages = ages(root, &results)?;
    std::fs::write(root.join(PAGE), page::write(&machines, &results, &ages))?;
    let pictures = pictures(&results);
    let folder = root.join(PICTURES);
    std::fs::create_dir_all(&folder)?;
    for name in files(&folder)?.into_iter().filter(|name| !pictures.contains_key(name)) {
        std::fs::remove_file(folder.join(name))?;
    }
    for (name, picture) in &pictures {
        std::fs::write(folder.join(name), picture)?;
    }
    std::fs::write(root.join(compared::PICTURE), compared::draw(&results)?)?;
    println!(
        "{PAGE}: {} results, {} pictures in {PICTURES}, {}",
        results.len(),
        pictures.len(),
        compared::PICTURE
    );
    println!("Commits that changed a result's code since its build, tests and comments apart:");
    for (result, age) in results.iter().zip(&ages) {
        let commits = match age {
            Freshness::Current => "0".to_owned(),
            Freshness::Older { commits, .. } => commits.to_string(),
            Freshness::Unknown => "?".to_owned(),
        };
        println!("{commits:>5}  {} of {}: {}", &result.build[..7], result.date, result.name);
    }
    Ok(())
}

/// How old each result is, in their order.
fn ages(root: &Path, results: &[Recorded]) -> anyhow::Result<Vec<Freshness>> {
    let history = CodeHistory::of(root)?;
    Ok(results.iter().map(|result| history.freshness(&result.build, &result.paths)).collect())
}

/// Every picture by its file's name.
fn pictures(results: &[Recorded]) -> BTreeMap<String, String> {
    let drawn = |result: &Recorded| Some((result.picture_file()?, picture::draw(result)?));
    results.iter().filter_map(drawn).collect()
}

/// The names of the files in `folder`.
fn files(folder: &Path) -> anyhow::Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for entry in std::fs::read_dir(folder).with_context(|| format!("{} can't be read", folder.display()))? {
        names.insert(entry?.file_name().to_string_lossy().into_owned());
    }
    Ok(names)
}
