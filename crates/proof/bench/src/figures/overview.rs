//! The page of claims: a line for each result, in a table for each part.

use std::fmt::Write;

use crate::compare::series::Series;

use super::history::Freshness;
use super::recorded::{Bound, Machines, Quantity, Recorded};
use super::sections::{address, bounds, enough, shown, significant};

/// Where the page is, from the repository's root.
pub const PAGE: &str = "docs/benchmarks.md";

/// What stands above everything.
const INTRODUCTION: &str = "\
# Benchmarks

A line for each claim, with one figure. The link leads to all figures of its run, the command, the build and what has to be said about it.
`make figures` makes this page, those in [figures](figures) and their pictures from the result files in [bench/results](../bench/results): change
those. How to run each command: [crates/proof/bench/README.md](../crates/proof/bench/README.md); the peers, and how a run becomes a result file:
[bench/README.md](../bench/README.md). What was learned by measuring: [notes](notes/README.md).

- Commands that begin with `bench` are `tailwater bench …`.
- What stands in one table of a detail page was measured in one run, or in runs in turn, unless its note says otherwise. A figure of several runs
  is their median, on a detail page with the least and the most behind it. A ratio is that of each run.
- Unless a command says otherwise, cells are at R=3.2 in six backend processes, messages have 1 KiB, every record is synced before it is
  acknowledged and checked by every consumer, and nothing was lost, reordered or corrupted.
- Clients and servers shared the machine's processors. The machines are small and virtual, and change from minute to minute: compare figures of one
  line, not of two.
- Profiles: `dist` is what is shipped, with link-time optimization of everything at once and one codegen unit. `release (thin LTO)` was `release` until
  2026-11-28, with thin link-time optimization and four units. Today's `release` has none and sixteen units, and no figure is of it. `release (no LTO)`
  is the former one with link-time optimization turned off. `dev` is what tests are built with: for what does not depend on speed.
- A figure is of its build. It is *older* once a later commit has changed the code it is about, tests and comments apart; the detail page names
  the first such commit. How many have since is on no page, as each commit changes that: `make figures` prints it.

![Tailwater beside Kafka, NATS and Aeron](img/compared.svg)
";

/// The whole page.
pub fn write(machines: &Machines, results: &[Recorded], ages: &[Freshness]) -> String {
    let mut text = INTRODUCTION.to_owned();
    let failed = results.iter().filter(|result| verdict(result).contains("not reached")).count();
    // Writing to a string does not fail, here and below.
    let _ = writeln!(
        text,
        "\n{failed} of {} claims have an aim that is **not reached**: their lines say so.",
        results.len()
    );
    let mut part = None;
    for (result, age) in results.iter().zip(ages) {
        if part != Some(result.part) {
            part = Some(result.part);
            let _ = write!(text, "\n## {}\n", result.part.heading());
            let pictured = results.iter().find(|one| one.part == result.part && one.picture.is_some());
            if let Some((picture, file)) =
                pictured.and_then(|one| one.picture.as_ref().zip(one.picture_file()))
            {
                let _ = write!(text, "\n![{}](img/figures/{file})\n", picture.title);
            }
            text += "\n| claim | figure | ours | beside | ratio | aims | run | age |\n|---|---|---|---|---|---|---|---|\n";
        }
        line(&mut text, result, age);
    }
    text += "\n## The machines\n\n| machine | what it is |\n|---|---|\n";
    for (name, description) in machines {
        let _ = writeln!(text, "| {name} | {description} |");
    }
    text
}

/// A result's line.
fn line(text: &mut String, result: &Recorded, age: &Freshness) {
    let figure = result.headline();
    let median = |values: &[f64]| shown(figure, &[Series::of(values.iter().copied()).median()]);
    let named = |value: String, name: &str| format!("{value} ({name})");
    let ours = match result.are_systems() {
        true => median(&figure.ours),
        false => named(median(&figure.ours), &result.ours),
    };
    let beside = beside(result, figure);
    let other = beside.map_or_else(dash, |(name, values)| named(median(values), name));
    // Cases of one system differ in what is done: their ratio says something where an aim asks for it.
    let is_over = figure.aims.iter().any(|aim| aim.over.is_some());
    let is_above = figure.aims.iter().any(|aim| aim.above.is_some());
    let ratio = beside.filter(|_| is_over || result.are_systems() && !is_above);
    let ratio = ratio.map_or_else(dash, |(name, _)| {
        let over = Bound { over: Some(name.to_owned()), above: None, at_least: None, at_most: None };
        let ratio = result.bounded(figure, &over).median();
        significant(&Series::of([ratio]), if ratio < 20.0 { 2 } else { 0 })
    });
    let _ = writeln!(
        text,
        "| [{}]({}) | {} | {ours} | {other} | {ratio} | {} | {}, {}, {} | {} |",
        result.title,
        address(result),
        figure.what,
        verdict(result),
        result.machine,
        result.date,
        result.profile,
        in_a_word(age),
    );
}

fn dash() -> String {
    "-".to_owned()
}

/// The column that a figure is held against, and its values: the one that an aim names, or else the first one that has
/// some.
fn beside<'a>(result: &'a Recorded, figure: &'a Quantity) -> Option<(&'a str, &'a [f64])> {
    let mut columns = result.beside.iter().zip(&figure.beside).filter(|(_, values)| !values.is_empty());
    let named = figure.aims.iter().find_map(|aim| aim.over.as_ref().or(aim.above.as_ref()));
    let column = match named {
        Some(named) => columns.find(|(name, _)| *name == named),
        None => columns.next(),
    };
    column.map(|(name, values)| (name.as_str(), values.as_slice()))
}

/// Whether a result's aims are reached: what the figure in its line should be, and how many of all fail.
fn verdict(result: &Recorded) -> String {
    let aims = |figure| Quantity::bounding(figure).map(move |aim| enough(aim, &result.bounded(figure, aim)));
    let all: Vec<bool> = result.figures.iter().flat_map(aims).collect();
    let failed = all.iter().filter(|&&reached| !reached).count();
    let asked = Quantity::bounding(result.headline()).find_map(|aim| {
        let above = if aim.above.is_some() { " more" } else { "" };
        bounds(aim).map(|bounds| bounds + above)
    });
    match (all.len(), failed) {
        (0, _) => dash(),
        (_, 0) => asked.map_or_else(|| "reached".to_owned(), |asked| format!("{asked}: reached")),
        (1, _) => asked.map_or_else(dash, |asked| format!("{asked}: **not reached**")),
        (all, failed) => format!("**{failed} of {all} not reached**"),
    }
}

/// What a line says of a figure whose code has not changed.
const CURRENT: &str = "current";

fn in_a_word(age: &Freshness) -> &'static str {
    match age {
        Freshness::Current => CURRENT,
        Freshness::Older { .. } => "older",
        Freshness::Unknown => "unknown",
    }
}

/// `page` without what its lines say about ages.
#[cfg(test)]
pub fn without_ages(page: &str) -> String {
    let ages = [CURRENT, "older", "unknown"].map(|age| format!(" | {age} |"));
    let line = |line| ages.iter().find_map(|age| str::strip_suffix(line, age.as_str())).unwrap_or(line);
    page.lines().map(line).collect::<Vec<_>>().join("\n")
}

/// Whether `page` calls `result` current.
#[cfg(test)]
pub fn calls_current(page: &str, result: &Recorded) -> bool {
    let begin = format!("| [{}](", result.title);
    page.lines().any(|line| line.starts_with(&begin) && line.ends_with(&format!("| {CURRENT} |")))
}
