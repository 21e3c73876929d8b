//! The pages of figures and their pictures, made from the result files that are committed.
//!
//! ```text
//!   bench/results/*.toml ---> docs/benchmarks.md     one line for each file
//!   git's history -------/    docs/figures/*.md      one section for each file, with its command, machine and build
//!                             docs/img/figures/*.svg a picture of a file's own figures
//!                             docs/img/compared.svg  the README's: figures of three files
//! ```
//!
//! - What came out is only in the result files: ratios, verdicts and pictures are computed from them.
//! - The same files make the same pages and pictures, byte for byte, apart from what is said of their age.
//! - A figure whose code was changed after its build says so, with the commit that did it first ([`history`]). What a
//!   later commit would make wrong is printed, and on no page.
//!
//! bench/README.md says how a run becomes a result file.

mod compared;
mod history;
mod overview;
mod picture;
mod recorded;
mod sections;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, ensure};
use clap::Parser;

use history::{CodeHistory, Freshness};
use overview::PAGE;
use recorded::{PagePart, Recorded};

/// Where the pictures are, and nothing else.
const PICTURES: &str = "docs/img/figures";

/// Flags.
#[derive(Parser)]
#[command(
    name = "figures",
    about = "Makes docs/benchmarks.md, docs/figures and their pictures from bench/results."
)]
struct Args {
    #[command(subcommand)]
    command: Option<FigureCommand>,
}

/// Commands besides making the pages.
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

/// Writes the pages and the pictures, and removes those that no result has.
fn make(root: &Path) -> anyhow::Result<()> {
    let (machines, results) = recorded::read(root)?;
    let ages = ages(root, &results)?;
    std::fs::write(root.join(PAGE), overview::write(&machines, &results, &ages))?;
    fill(&root.join(sections::FOLDER), &details(&results, &ages))?;
    let pictures = pictures(&results);
    fill(&root.join(PICTURES), &pictures)?;
    std::fs::write(root.join(compared::PICTURE), compared::draw(&results)?)?;
    println!(
        "{PAGE}: {} results, their pages in {}, {} pictures in {PICTURES}, {}",
        results.len(),
        sections::FOLDER,
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

/// Writes `wanted`, by their files' names, into `folder`, and removes what else is there.
fn fill(folder: &Path, wanted: &BTreeMap<String, String>) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder)?;
    for name in files(folder)?.into_iter().filter(|name| !wanted.contains_key(name)) {
        std::fs::remove_file(folder.join(name))?;
    }
    for (name, text) in wanted {
        std::fs::write(folder.join(name), text)?;
    }
    Ok(())
}

/// The page of each part that has results, by its file's name.
fn details(results: &[Recorded], ages: &[Freshness]) -> BTreeMap<String, String> {
    let mut pages = BTreeMap::new();
    for part in PagePart::ALL {
        let of_part: Vec<_> = results.iter().zip(ages).filter(|(result, _)| result.part == part).collect();
        if !of_part.is_empty() {
            pages.insert(format!("{}.md", part.stem()), sections::write(part, &of_part));
        }
    }
    pages
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
