//! `docs/limits.md` has every limit of the code on one page, made from the code:
//! `UPDATE=1 cargo test -p tailwater-tidy --test limits` writes it anew.

#![allow(clippy::disallowed_methods)]

use std::collections::BTreeMap;
use std::fmt::Write as _;

use tailwater_tidy::{SourceFile, root, rust_files};

/// A constant that bounds something.
struct Limit {
    name: String,
    value: String,
    what: String,
    path: String,
}

/// The constants of a `limits.rs`, and elsewhere those whose name says that they are the most, the least, or how long
/// somebody else is waited for.
fn limits(file: &SourceFile) -> Vec<Limit> {
    let all = file.path.ends_with("/limits.rs");
    let (mut found, mut comment) = (Vec::new(), String::new());
    let mut lines = file.without_unit_tests().lines();
    while let Some(line) = lines.next() {
        let code = line.trim();
        if let Some(text) = code.strip_prefix("///") {
            comment.push_str(text);
            continue;
        }
        let Some((before, behind)) = code.split_once("const ") else {
            comment.clear();
            continue;
        };
        let Some((name, typed)) = behind.split_once(": ") else { continue };
        if name == "_" {
            continue; // a relation between limits, which the compiler checks
        }
        let bounds = ["_MAX", "_MIN", "TIMEOUT", "DEADLINE"].iter().any(|end| name.ends_with(end));
        let is_constant = before.is_empty() || before.starts_with("pub");
        if is_constant
            && (all || bounds)
            && name.chars().all(|char| char.is_ascii_uppercase() || "_0123456789".contains(char))
        {
            let mut whole = typed.to_owned();
            while !whole.ends_with(';') {
                let Some(more) = lines.next() else { break };
                write!(whole, " {}", more.trim()).expect("a string takes it");
            }
            let value = whole.split_once(" = ").map_or("", |(_, value)| value.trim_end_matches(';'));
            if value.starts_with('$') {
                comment.clear();
                continue; // a macro's: the limits are what it is called with
            }
            found.push(Limit {
                name: name.to_owned(),
                value: readable(name, value),
                what: first_sentence(&comment),
                path: file.path.clone(),
            });
        }
        comment.clear();
    }
    found
}

fn first_sentence(comment: &str) -> String {
    let text = comment.trim().replace('|', "\\|");
    let end = text.find(". ").map_or(text.len(), |at| at + 1);
    // What a link points to is only known inside of its crate.
    text[..end].replace(['[', ']'], "")
}

/// `4 << 20` of a name with BYTES is "4 MiB", `Duration::from_secs(3)` "3 s"; what is not a number stays as it is
/// written.
fn readable(name: &str, value: &str) -> String {
    if let Some(number) = number(value) {
        let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
        let unit = units.iter().find(|(bits, _)| number >> bits > 0 && number.trailing_zeros() >= *bits);
        return match unit {
            Some((bits, unit)) if name.contains("BYTES") => format!("{} {unit}", number >> bits),
            _ => number.to_string(),
        };
    }
    let units = [("from_secs(", "s"), ("from_millis(", "ms"), ("from_micros(", "us"), ("from_nanos(", "ns")];
    for (call, unit) in units {
        let of = value.strip_prefix("Duration::").and_then(|of| of.strip_prefix(call)?.strip_suffix(')'));
        if let Some(number) = of.and_then(number) {
            return format!("{number} {unit}");
        }
    }
    format!("`{value}`")
}

fn number(value: &str) -> Option<u128> {
    if let Some((left, right)) = value.split_once(" << ") {
        return number(left)?.checked_shl(right.parse().ok()?);
    }
    if let Some((left, right)) = value.split_once(" * ") {
        return number(left)?.checked_mul(number(right)?);
    }
    value.replace('_', "").parse().ok()
}

fn page() -> String {
    let mut crates: BTreeMap<String, Vec<Limit>> = BTreeMap::new();
    for file in rust_files() {
        let parts: Vec<&str> = file.path.split('/').collect();
        let (group, name, inside) = (parts[1], parts[2], parts[3]);
        if group != "proof" && inside == "src" && !file.is_test() {
            crates.entry(format!("{group}/{name}")).or_default().extend(limits(&file));
        }
    }
    let mut text = String::from(
        "# Limits\n\nBounds of the code, by crate: every constant of a file `limits.rs`, and elsewhere those whose names end with MAX, MIN,\n\
         TIMEOUT or DEADLINE. A test makes this page from the constants and their first sentences:\n\
         `UPDATE=1 cargo test -p tailwater-tidy --test limits`. What a user may set is in [configuration.md](configuration.md).\n",
    );
    for (name, limits) in crates.iter().filter(|(_, limits)| !limits.is_empty()) {
        write!(text, "\n## `{name}`\n\n| constant | value | what it bounds |\n|---|---|---|\n")
            .expect("a string takes it");
        for limit in limits {
            let file = limit.path.splitn(5, '/').nth(4).unwrap_or_default();
            let inside = if file == "limits.rs" { String::new() } else { format!(" (`{file}`)") };
            writeln!(text, "| `{}`{inside} | {} | {} |", limit.name, limit.value, limit.what)
                .expect("a string takes it");
        }
    }
    text
}

#[test]
fn each_limit_says_what_it_bounds() {
    let files = rust_files();
    let of_products = files.iter().filter(|file| !file.path.starts_with("crates/proof") && !file.is_test());
    let silent: Vec<String> = of_products
        .filter(|file| file.path.contains("/src/"))
        .flat_map(limits)
        .filter(|limit| limit.what.is_empty())
        .map(|limit| format!("{}: {}", limit.path, limit.name))
        .collect();
    assert!(silent.is_empty(), "these have no doc comment of their own:\n{}", silent.join("\n"));
}

#[test]
fn the_page_of_limits_is_what_the_code_says() {
    let path = root().join("docs/limits.md");
    let made = page();
    assert!(made.lines().count() > 100, "this test does not find the limits any more");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, &made).expect("the page can be written");
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    let differs = made.lines().zip(committed.lines()).find(|(made, committed)| made != committed);
    assert!(
        made == committed,
        "docs/limits.md is older than the code (first difference: {differs:?}); make it anew: \
         UPDATE=1 cargo test -p tailwater-tidy --test limits"
    );
}
