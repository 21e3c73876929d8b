//! One word for one thing: a type's name says which type it is in all of the tree.

use std::collections::{BTreeMap, BTreeSet};

use tailwater_tidy::{declared, documents, members_of, root, rust_files};

/// Names that types of more than one crate have, each with the reason why that confuses nobody. At most [`SHARED_MAX`]
/// of them.
const SHARED: &str = include_str!("shared-names.txt");
const SHARED_MAX: usize = 60;

fn shared_names() -> BTreeMap<&'static str, &'static str> {
    let lines = SHARED.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| line.split_once(": ").expect("NAME: REASON")).collect()
}

fn crates_of_names() -> BTreeMap<String, BTreeSet<String>> {
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for file in rust_files().iter().filter(|file| !file.is_test()) {
        for of in declared(file.without_unit_tests()) {
            found.entry(of.name.to_owned()).or_default().insert(file.crate_name().to_owned());
        }
    }
    found
}

#[test]
fn a_type_s_name_is_in_one_crate_unless_the_list_says_why() {
    let listed = shared_names();
    let found: Vec<String> = crates_of_names()
        .into_iter()
        .filter(|(name, crates)| crates.len() > 1 && !listed.contains_key(name.as_str()))
        .map(|(name, crates)| format!("{name}: {}", crates.into_iter().collect::<Vec<_>>().join(", ")))
        .collect();
    assert!(
        found.is_empty(),
        "give these names of their own, or list them in shared-names.txt with the reason:\n{}",
        found.join("\n")
    );
}

#[test]
fn the_list_of_shared_names_is_short_and_has_no_name_too_many() {
    let listed = shared_names();
    assert!(listed.len() <= SHARED_MAX, "{} names are shared, of {SHARED_MAX} at most", listed.len());
    let crates = crates_of_names();
    for (name, reason) in listed {
        assert!(reason.len() > 10, "{name} has no reason");
        assert!(
            crates.get(name).is_some_and(|of| of.len() > 1),
            "{name} is in one crate only: take it off the list"
        );
    }
}

/// `Type::function` or `Type::Variant` in a document, if it looks like one of ours.
fn paths_in(text: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for quoted in text.split('`').skip(1).step_by(2) {
        let mut parts = quoted.split("::").collect::<Vec<_>>();
        let Some(last) = parts.pop() else { continue };
        let Some(of) = parts.pop() else { continue };
        let name = last.split(|char: char| !char.is_alphanumeric() && char != '_').next().unwrap_or_default();
        let is_type = of.starts_with(|char: char| char.is_ascii_uppercase())
            && of.chars().all(|char| char.is_alphanumeric() || char == '_');
        if is_type && !name.is_empty() {
            found.push((of.to_owned(), name.to_owned()));
        }
    }
    found
}

/// Whether a line declares a function, a constant, a type, a field or a variant of that name.
fn declares(line: &str, name: &str) -> bool {
    let line = line.trim_start();
    if line.starts_with("//") {
        return false;
    }
    let ends = |rest: &str| !rest.starts_with(|char: char| char.is_alphanumeric() || char == '_');
    let after = |word: &str| line.split(word).skip(1).any(|rest| rest.strip_prefix(name).is_some_and(ends));
    let member =
        line.trim_start_matches("pub ").trim_start_matches("pub(crate) ").trim_start_matches("pub(super) ");
    let is_member = member.strip_prefix(name).is_some_and(|rest| {
        let rest = rest.trim_end();
        rest.is_empty()
            || rest.starts_with([',', '(', '{'])
            || rest.starts_with(" {")
            || rest.starts_with(": ")
            || rest.starts_with(" =")
    });
    is_member || after("fn ") || after("const ") || after("type ")
}

#[test]
fn documents_name_functions_as_the_code_does() {
    let files = rust_files();
    let mut crates_of: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for file in &files {
        for of in declared(&file.text) {
            crates_of.entry(of.name).or_default().insert(file.crate_name());
        }
    }
    let mut checked = 0;
    let mut wrong = Vec::new();
    for document in documents() {
        if document.path.ends_with("CHANGELOG.md") {
            continue;
        }
        for (of, name) in paths_in(&document.text) {
            let Some(crates) = crates_of.get(of.as_str()) else {
                if !FOREIGN.contains(&of.as_str()) {
                    wrong.push(format!("{}: `{of}`", document.path));
                }
                continue;
            };
            // The type has a member of that name: a function, a variant, a field or a constant.
            let mut its_files = files.iter().filter(|file| crates.contains(file.crate_name()));
            let known = its_files
                .any(|file| members_of(&file.text, &of).into_iter().any(|member| declares(member, &name)));
            checked += 1;
            if !known {
                wrong.push(format!("{}: `{of}::{name}`", document.path));
            }
        }
    }
    assert!(checked > 0, "no name was found in {}: does this test still see them?", root().display());
    assert!(wrong.is_empty(), "the type has no such member:\n{}", wrong.join("\n"));
}

/// Types of others that documents name.
const FOREIGN: [&str; 1] = ["Mutex"];

/// What is stored as metadata has a kind, the first part of its key: it is written down once, where its keys are made.
#[test]
fn no_kind_of_metadata_is_written_down_twice() {
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for file in rust_files().iter().filter(|file| !file.is_test() && file.crate_name() != "sim") {
        for (at, line) in file.without_unit_tests().lines().enumerate() {
            if line.trim_start().starts_with("//") {
                continue;
            }
            for literal in line.split('"').skip(1).step_by(2) {
                let Some((first, behind)) = literal.split_once('/') else { continue };
                if KEEPERS.contains(&first) {
                    let kind = behind.split(['/', '{']).next().unwrap_or_default();
                    let place = format!("{}:{}", file.path, at + 1);
                    places.entry(format!("{first}/{kind}")).or_default().push(place);
                }
            }
        }
    }
    assert!(places.len() >= KEEPERS.len(), "only {places:?}: does this test still see the keys?");
    let twice: Vec<String> = places
        .into_iter()
        .filter(|(_, places)| places.len() > 1)
        .map(|(kind, places)| format!("{kind}: {}", places.join(", ")))
        .collect();
    assert!(twice.is_empty(), "name these once, as a constant:\n{}", twice.join("\n"));
}

/// Who keeps metadata: the first part of the keys.
const KEEPERS: [&str; 10] =
    ["access", "bridge", "broadcast", "cell", "copy", "kafka", "log", "login", "node", "sqs"];
