//! The page of each group of crates names its crates, and no others.

#![allow(clippy::disallowed_methods)]

use std::collections::BTreeSet;

use tailwater_tidy::{documents, root};

/// Names in backquotes at the beginning of a table's rows.
fn rows(page: &str) -> BTreeSet<String> {
    let cells = page.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` |"));
    cells.map(|(name, _)| name.to_owned()).collect()
}

#[test]
fn the_page_of_a_group_lists_each_of_its_crates_and_says_where_to_begin_in_it() {
    let mut groups = 0;
    for page in documents() {
        let Some(group) = page
            .path
            .strip_prefix("crates/")
            .and_then(|path| path.strip_suffix("/README.md"))
            .filter(|path| !path.contains('/'))
        else {
            continue;
        };
        groups += 1;
        let folder = root().join("crates").join(group);
        let crates: BTreeSet<String> = std::fs::read_dir(folder)
            .expect("a folder")
            .map(|entry| entry.expect("readable"))
            .filter(|entry| entry.path().join("Cargo.toml").is_file())
            .map(|entry| entry.file_name().into_string().expect("a name"))
            .collect();
        assert_eq!(rows(&page.text), crates, "{}: the rows of its table", page.path);
        let (_, order) = page
            .text
            .split_once("in which order to read it")
            .or_else(|| page.text.split_once("In which order to read it"))
            .unwrap_or_else(|| panic!("{} has no order of reading", page.path));
        for name in crates {
            assert!(
                order.contains(&format!("`{name}`")),
                "{}: `{name}` is not in the order of reading",
                page.path
            );
        }
    }
    assert!(groups >= 7, "{groups} groups");
}
