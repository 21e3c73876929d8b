//! The pages of details: one for each part, with a section for each result.

use std::fmt::Write;

use crate::compare::series::Series;

use super::history::Freshness;
use super::recorded::{self, Bound, PagePart, Quantity, Recorded};

/// Where the pages are, from the repository's root.
pub const FOLDER: &str = "docs/figures";

/// What stands at the head of each page.
const INTRODUCTION: &str = "\
`make figures` makes this page and its pictures from the result files in [bench/results](../../bench/results): change those.
[Benchmarks](../benchmarks.md) has every claim in one line, and says what holds for all tables and what the machines are.
";

/// The page of a part, whose results and their ages these are.
pub fn write(part: PagePart, results: &[(&Recorded, &Freshness)]) -> String {
    let mut text = format!("# {}: figures\n\n{INTRODUCTION}", part.heading());
    for (result, age) in results {
        section(&mut text, result, age);
    }
    text
}

/// A section's address, from the folder of the documents.
pub fn address(result: &Recorded) -> String {
    format!("figures/{}.md#{}", result.part.stem(), anchor(&result.title))
}

/// `page` without what it says about ages.
#[cfg(test)]
pub fn without_ages(page: &str) -> String {
    let line = |line| if str::starts_with(line, AGE) { AGE } else { line };
    page.lines().map(line).collect::<Vec<_>>().join("\n")
}

/// What a line that says how old something is begins with.
const AGE: &str = "**Age:**";

fn section(text: &mut String, result: &Recorded, age: &Freshness) {
    let _ = write!(text, "\n## {}\n\n{}\n\n", result.title, result.claim);
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
    let (build, file, results) = (&result.build[..7], &result.name, recorded::FOLDER);
    let _ = writeln!(
        text,
        "\nOn {}, {}, build `{build}`, {}; [all figures](../../{results}/{file}.toml).\\",
        result.machine, result.date, result.profile
    );
    let _ = writeln!(text, "{AGE} {}.", at_length(age));
    if let Some(file) = result.picture_file() {
        let title = result.picture.as_ref().map_or("", |picture| &picture.title);
        let _ = write!(text, "\n![{title}](../img/figures/{file})\n");
    }
}

/// Values as the figure has them, with no more than four digits if some are behind the point, and with a digit that is
/// not 0 unless all are.
pub fn shown(figure: &Quantity, values: &[f64]) -> String {
    let values = Series::of(values.iter().copied());
    let before = values.median().abs().max(1.0).log10() as i32 + 1;
    significant(&values, figure.digits.min((4 - before).max(0)))
}

/// `values` with `digits` behind the point, or with as many as the least of them needs if it is below 0.01.
pub fn significant(values: &Series, digits: i32) -> String {
    let least = values.values().iter().map(|value| value.abs()).filter(|&value| value > 0.0);
    match least.reduce(f64::min).filter(|&least| least < 0.01) {
        None => values.show(digits),
        Some(least) => values.show(digits.max(-least.log10().floor() as i32)),
    }
}

/// What an aim says, what came out if the table does not have it, and whether that is enough.
fn aim_cell(result: &Recorded, figure: &Quantity, aim: &Bound) -> String {
    let came_out = result.bounded(figure, aim);
    let shown = significant(&came_out, 2);
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

/// What an aim asks for, if it asks for something.
pub fn bounds(aim: &Bound) -> Option<String> {
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
pub fn enough(aim: &Bound, came_out: &Series) -> bool {
    let median = came_out.median();
    aim.at_least.is_none_or(|least| median >= least) && aim.at_most.is_none_or(|most| median <= most)
}

/// What is said of a figure whose code has not changed. A later commit makes it wrong; nothing else that is said of an
/// age can become so.
const CURRENT: &str = "as new as its code";

/// Whether `page` calls `result` current.
#[cfg(test)]
pub fn calls_current(page: &str, result: &Recorded) -> bool {
    let section = page.split_once(&format!("\n## {}\n", result.title)).map_or("", |(_, behind)| behind);
    section.split("\n## ").next().unwrap_or_default().contains(&format!("\n{AGE} {CURRENT}."))
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
