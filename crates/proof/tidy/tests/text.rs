//! How the code looks: lines that fit beside each other, functions that fit on a screen or two, one style of modules.

use tailwater_tidy::{SourceFile, documents, rust_files};

/// Columns of a line that is a comment, with its indentation.
const COMMENT_COLUMNS_MAX: usize = 120;
/// Lines of a function, from its `fn` to its closing brace.
const FUNCTION_LINES_MAX: usize = 100;

fn none_of(found: &[String]) {
    assert!(found.is_empty(), "{} places:\n{}", found.len(), found.join("\n"));
}

#[test]
fn comments_are_at_most_120_columns_wide() {
    let mut found = Vec::new();
    for file in rust_files() {
        for (at, line) in file.text.lines().enumerate() {
            let columns = line.chars().count();
            // An address can't be broken, nor a row of a table.
            let text = line.trim_start().trim_start_matches(['/', '!']).trim_start();
            let may = line.contains("://") || text.starts_with('|');
            if line.trim_start().starts_with("//") && columns > COMMENT_COLUMNS_MAX && !may {
                found.push(format!("{}:{}: {columns} columns", file.path, at + 1));
            }
        }
    }
    none_of(&found);
}

/// Columns of a line of prose in a document.
const PROSE_COLUMNS_MAX: usize = 150;

fn is_of_figures(path: &str) -> bool {
    path.ends_with("benchmarks.md") || path.starts_with("docs/figures/")
}

#[test]
fn prose_in_documents_is_at_most_150_columns_wide() {
    let mut found = Vec::new();
    // The pages of figures are made by a program.
    for document in documents().iter().filter(|document| !is_of_figures(&document.path)) {
        let mut is_code = false;
        for (at, line) in document.text.lines().enumerate() {
            is_code ^= line.trim_start().starts_with("```");
            let columns = line.chars().count();
            // What can't be broken is as wide as it is: rows of tables, headings, commands and addresses.
            let text = line.trim_start();
            let may = is_code
                || text.starts_with(['|', '<', '!', '#'])
                || line.starts_with("    ")
                || line.contains("://");
            if columns > PROSE_COLUMNS_MAX && !may {
                found.push(format!("{}:{}: {columns} columns", document.path, at + 1));
            }
        }
    }
    none_of(&found);
}

/// What no sentence of a document, or of a command's help, begins with: the subject comes first.
const INVERTED: [&str; 13] = [
    "Of ",
    "Whoever ",
    "Whom ",
    "What else ",
    "Neither ",
    "Nor ",
    "So are ",
    "So is ",
    "So has ",
    "So have ",
    "So do ",
    "So does ",
    "To write ",
];

/// Whether a sentence within a text, behind what another one ends with, begins so.
fn has_inverted_behind(text: &str, ends: &[&str]) -> bool {
    INVERTED.iter().any(|word| ends.iter().any(|end| format!("{text} ").contains(&format!("{end}{word}"))))
}

#[test]
fn sentences_of_documents_begin_with_their_subject() {
    let mut found = Vec::new();
    // The page of limits has the comments of the code.
    for document in documents().iter().filter(|document| !document.path.ends_with("limits.md")) {
        let mut before = "";
        for (at, line) in document.text.lines().enumerate() {
            let text = line.trim_start_matches([' ', '-', '|', '>', '*', '#', '1', '.']);
            let is_first = before.is_empty() || text.len() < line.len() || before.ends_with(['.', ':', '*']);
            let within = has_inverted_behind(text, &[". ", ": ", "** ", "| "]);
            if within || is_first && INVERTED.iter().any(|word| text.starts_with(word)) {
                found.push(format!("{}:{}: {text}", document.path, at + 1));
            }
            before = line.trim_end();
        }
    }
    none_of(&found);
}

/// What clap shows of the types of a file: paragraphs of documentation, each in one line, with the line that it begins
/// at, and texts that attributes name. As rustfmt lays code out: a type ends at the first brace as far to the right as
/// its `derive`.
fn help_texts(text: &str) -> Vec<(usize, String)> {
    let is_of_clap = |line: &str| {
        let derived = line.trim_start().strip_prefix("#[derive(");
        let mut words = derived.into_iter().flat_map(|of| of.split(|char: char| !char.is_alphanumeric()));
        words.any(|word| matches!(word, "Args" | "Parser" | "Subcommand" | "ValueEnum"))
    };
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate().filter(|(_, line)| is_of_clap(line)) {
        let is_before =
            |line: &&&str| line.trim_start().starts_with("///") || line.trim_start().starts_with("#[");
        let begin = at - lines[..at].iter().rev().take_while(is_before).count();
        let end = format!("{}}}", &line[..line.len() - line.trim_start().len()]);
        let length = lines[at..].iter().position(|line| *line == end || line.ends_with(';')).unwrap_or(0);
        let mut paragraph: Option<(usize, String)> = None;
        for (at, line) in lines.iter().enumerate().take(at + length).skip(begin) {
            match line.trim_start().strip_prefix("///").map(str::trim) {
                Some("") | None => found.extend(paragraph.take()),
                Some(words) => {
                    let so_far = paragraph.get_or_insert((at + 1, String::new()));
                    so_far.1 = format!("{} {words}", so_far.1).trim_start().to_owned();
                }
            }
            for name in ["help = \"", "about = \""] {
                let named = line.split_once(name).and_then(|(_, behind)| behind.split('"').next());
                found.extend(named.map(|named| (at + 1, named.to_owned())));
            }
        }
        found.extend(paragraph);
    }
    found
}

#[test]
fn what_clap_shows_of_a_type_is_its_documentation_and_what_attributes_name() {
    let text = "\
/// Before,
/// in two lines.
#[derive(Debug, clap::Args)]
#[command(about = \"Named\")]
struct A {
    /// One.
    ///
    /// Two.
    #[arg(long, help = \"Other\")]
    field: u8,
}

/// Not shown.
#[derive(Debug)]
struct B;
";
    let expected = [(1, "Before, in two lines."), (4, "Named"), (6, "One."), (8, "Two."), (9, "Other")];
    assert_eq!(help_texts(text), expected.map(|(at, text)| (at, text.to_owned())));
}

#[test]
fn sentences_of_help_begin_with_their_subject() {
    let (mut found, mut seen) = (Vec::new(), 0);
    for file in rust_files().iter().filter(|file| !file.is_test() && file.crate_name() != "tidy") {
        for (line, text) in help_texts(&file.text) {
            seen += 1;
            if INVERTED.iter().any(|word| text.starts_with(word)) || has_inverted_behind(&text, &[". ", ": "])
            {
                found.push(format!("{}:{line}: {text}", file.path));
            }
        }
    }
    assert!(seen > 500, "only {seen} texts were found: does this test still see them?");
    none_of(&found);
}

/// The functions of a file with the lines they take, by indentation: rustfmt puts the closing brace below the `fn`.
fn functions(file: &SourceFile) -> Vec<(usize, String, usize)> {
    let lines: Vec<&str> = file.text.lines().collect();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let code = line.trim_start();
        let Some((before, behind)) = code.split_once("fn ") else { continue };
        let qualifies = |word: &str| {
            matches!(word, "pub" | "const" | "async" | "unsafe" | "extern" | "\"C\"")
                || word.starts_with("pub(")
        };
        if !before.split_whitespace().all(qualifies) || line.ends_with(';') {
            continue;
        }
        let closing = format!("{}}}", &line[..line.len() - code.len()]);
        let Some(length) = lines[at..].iter().position(|line| *line == closing) else { continue };
        let name = behind.split(['(', '<']).next().unwrap_or_default().to_owned();
        found.push((at + 1, name, length + 1));
    }
    found
}

#[test]
fn functions_are_at_most_100_lines_long() {
    let (mut found, mut seen) = (Vec::new(), 0);
    for file in rust_files() {
        for (line, name, length) in functions(&file) {
            seen += 1;
            if length > FUNCTION_LINES_MAX {
                found.push(format!("{}:{line}: {name} has {length} lines", file.path));
            }
        }
    }
    assert!(seen > 5_000, "only {seen} functions were found: does this test still see them?");
    none_of(&found);
}

#[test]
fn a_module_with_parts_is_a_file_beside_their_folder() {
    let files = rust_files();
    let in_src = files.iter().filter(|file| file.path.split('/').nth(3) == Some("src"));
    let found: Vec<String> = in_src
        .filter(|file| file.path.ends_with("/mod.rs"))
        .map(|file| format!("{}: name it as its folder, beside it", file.path))
        .collect();
    none_of(&found);
}
