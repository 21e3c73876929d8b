//! The page: a section for each result.

use std::fmt::Write;

use crate::compare::series::Series;

use super::history::Freshness;
use super::recorded::{Bound, FOLDER, Machines, PagePart, Quantity, Recorded};

/// What stands above everything.
const INTRODUCTION: &str = "\
# Benchmarks

`make figures` makes this page and its pictures from the result files in [bench/results](../bench/results): change those.
How to run each command: [crates/proof/bench/README.md](../crates/proof/bench/README.md); the peers, and how a run becomes a
result file: [bench/README.md](../bench/README.md). What was learned by measuring: [notes](notes/README.md).

- Commands that begin with `bench` are `tailwater bench …`.
- What stands in one table was measured in one run, or in runs in turn. A figure of several runs is their median, with the least
  and the most behind it; a ratio is that of each run.
- Unless a command says otherwise, cells are at R=3.2 in six backend processes, messages have 1 KiB, every record is synced before
  it is acknowledged and checked by every consumer, and nothing was lost, reordered or corrupted.
- Clients and servers shared the machine's processors. The machines are small and virtual, and change from minute to minute: compare
  figures of one table, not of two.
- A figure is of its build. It is older than its code once a later commit has changed the code it is about, tests and comments apart.
  How many have since is not on this page, as each commit changes that: `make figures` prints it.
";

/// The whole page.
pub fn write(machines: &Machines, results: &[Recorded], ages: &[Freshness]) -> String {
    let mut text = INTRODUCTION.to_owned();
    text += "\n| machine | what it is |\n|---|---|\n";
    for (name, description) in machines {
        // Writing to a string does not fail, here and below.
        let _ = writeln!(text, "| {name} | {description} |");
    }
    summary(&mut text, results, ages);
    let mut part = None;
    for (result, age) in results.iter().zip(ages) {
        if part != Some(result.part) {
            part = Some(result.part);
            let _ = write!(text, "\n## {}\n", heading(result.part));
        }
        section(&mut text, result, age);
    }
    text
}

/// `page` without what it says about ages.
#[cfg(test)]
pub fn without_ages(page: &str) -> String {
    let line = |line| if str::starts_with(line, AGE) { AGE } else { line };
    page.lines().map(line).collect::<Vec<_>>().join("\n")
}

/// What a line that says how old something is begins with.
const AGE: &str = "**Age:**";
/// What the page's head says before those that are current.
const CURRENT_ARE: &str = "as new as their code are:";

fn heading(part: PagePart) -> &'static str {
    match part {
        PagePart::Appends => "The log: appends",
        PagePart::SharedMemory => "The log: consumers in shared memory",
        PagePart::Tcp => "The log: consumers over TCP",
        PagePart::Modelled => "The log: large clusters, computed",
        PagePart::Kafka => "Kafka's protocol",
        PagePart::Ledgers => "Streams in ledgers",
        PagePart::Cache => "The cache",
        PagePart::Broadcast => "Broadcasts",
        PagePart::Regions => "Broadcasts in simulated time",
        PagePart::Queues => "Queues",
        PagePart::Binary => "The binary",
    }
}

/// Which aims are not reached, and how many results are as new as their code.
fn summary(text: &mut String, results: &[Recorded], ages: &[Freshness]) {
    let reached = |result: &&Recorded| {
        let aims =
            |figure: &Quantity| figure.aims.iter().all(|aim| enough(aim, &result.bounded(figure, aim)));
        !result.figures.iter().all(aims)
    };
    let failed: Vec<_> = results.iter().filter(reached).map(link).collect();
    let failed = if failed.is_empty() { "none".to_owned() } else { failed.join(", ") };
    let current: Vec<_> = results
        .iter()
        .zip(ages)
        .filter(|(_, age)| **age == Freshness::Current)
        .map(|(result, _)| link(result))
        .collect();
    let current = if current.is_empty() { "none".to_owned() } else { current.join(", ") };
    let _ = write!(text, "\n**Aims that are not reached:** {failed}.\n\n{AGE} {CURRENT_ARE} {current}.\n");
}

fn link(result: &Recorded) -> String {
    format!("[{}](#{})", result.title, anchor(&result.title))
}

fn section(text: &mut String, result: &Recorded, age: &Freshness) {
    let _ = write!(text, "\n### {}\n\n{}\n\n", result.title, result.claim);
    let figures: Vec<_> = result.figures.iter().filter(|figure| !figure.detail).collect();
    let aims = figures.iter().any(|figure| !figure.aims.is_empty());
    let mut columns = vec!["", &result.ours];
    columns.extend(result.beside.iter().map(String::as_str));
    columns.extend(aims.then_some("aim"));
    let _ = writeln!(text, "| {} |\n|{}", columns.join(" | "), "---|".repeat(columns.len()));
    for figure in figures {
        let mut cells = vec![figure.what.clone(), shown(figure, &figure.ours)];
        for number in 0..result.beside.len() {
            cells.push(
                figure.beside.get(number).map_or_else(|| "-".to_owned(), |values| shown(figure, values)),
            );
        }
        if aims {
            let aims: Vec<_> = figure.aims.iter().map(|aim| aim_cell(result, figure, aim)).collect();
            cells.push(aims.join("; "));
        }
        let _ = writeln!(text, "| {} |", cells.join(" | "));
    }
    if !result.note.is_empty() {
        let _ = write!(text, "\n{}\n", result.note);
    }
    text.push('\n');
    for command in &result.commands {
        let _ = writeln!(text, "    {command}");
    }
    let (build, file) = (&result.build[..7], &result.name);
    let _ = writeln!(
        text,
        "\nOn {}, {}, build `{build}`, {}; [all figures](../{FOLDER}/{file}.toml).\\",
        result.machine, result.date, result.profile
    );
    let _ = writeln!(text, "{AGE} {}.", at_length(age));
    if let Some(file) = result.picture_file() {
        let title = result.picture.as_ref().map_or("", |picture| &picture.title);
        let _ = write!(text, "\n![{title}](img/figures/{file})\n");
    }
}

/// Values as the figure has them, with no more than four digits if some are behind the point.
fn shown(figure: &Quantity, values: &[f64]) -> String {
    let values = Series::of(values.iter().copied());
    let before = values.median().abs().max(1.0).log10() as i32 + 1;
    values.show(figure.digits.min((4 - before).max(0)))
}

/// What an aim says, what came out if the table does not have it, and whether that is enough.
fn aim_cell(result: &Recorded, figure: &Quantity, aim: &Bound) -> String {
    let came_out = result.bounded(figure, aim);
    let shown = came_out.show(2);
    let verdict = if enough(aim, &came_out) { "reached" } else { "**not reached**" };
    let of_what = match (&aim.over, &aim.above) {
        (Some(name), _) => format!(" × {name}"),
        (None, Some(name)) => format!(" above {name}"),
        (None, None) => String::new(),
    };
    match bounds(aim) {
        None => format!("**{shown}**{of_what}"),
        Some(bounds) if of_what.is_empty() => format!("{bounds}: {verdict}"),
        Some(bounds) => format!("{bounds}{of_what}: **{shown}**, {verdict}"),
    }
}

fn bounds(aim: &Bound) -> Option<String> {
    let number =
        |bound: f64| if bound.fract() == 0.0 { Series::of([bound]).show(0) } else { bound.to_string() };
    match (aim.at_least.map(number), aim.at_most.map(number)) {
        (Some(least), Some(most)) => Some(format!("{least} to {most}")),
        (Some(least), None) => Some(format!("at least {least}")),
        (None, Some(most)) => Some(format!("at most {most}")),
        (None, None) => None,
    }
}

/// The median decides.
fn enough(aim: &Bound, came_out: &Series) -> bool {
    let median = came_out.median();
    aim.at_least.is_none_or(|least| median >= least) && aim.at_most.is_none_or(|most| median <= most)
}

/// What is said of a figure whose code has not changed. A later commit makes it wrong; nothing else that is said of an
/// age can become so.
const CURRENT: &str = "as new as its code";

/// The results that `page`, made of `results`, calls current: in their sections, and at its head.
#[cfg(test)]
pub fn called_current<'a>(page: &str, results: &'a [Recorded]) -> [Vec<&'a Recorded>; 2] {
    let head = format!("{AGE} {CURRENT_ARE}");
    let head = page.lines().find(|line| line.starts_with(&head)).unwrap_or_default();
    let in_section = |result: &&Recorded| {
        let title = format!("\n### {}\n", result.title);
        let section = page.split_once(&title).map_or("", |(_, behind)| behind);
        let section = section.split("\n### ").next().unwrap_or_default();
        section.contains(&format!("\n{AGE} {CURRENT}."))
    };
    let at_head = |result: &&Recorded| head.contains(&link(result));
    [results.iter().filter(in_section).collect(), results.iter().filter(at_head).collect()]
}

fn at_length(age: &Freshness) -> String {
    match age {
        Freshness::Current => CURRENT.to_owned(),
        Freshness::Older { first, .. } => format!("older than its code, which was changed by {first}"),
        Freshness::Unknown => "unknown, as there is no history back to its build".to_owned(),
    }
}

/// A heading's anchor, as GitHub makes it.
pub fn anchor(title: &str) -> String {
    let keep = |char: &char| char.is_alphanumeric() || matches!(char, ' ' | '-' | '_');
    title.to_lowercase().chars().filter(keep).map(|char| if char == ' ' { '-' } else { char }).collect()
}
