//! The page of each group of crates names its crates, and no others, the groups that it stands on, and those that it
//! carries.

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

/// The groups whose names stand in backquotes.
fn named(text: &str) -> BTreeSet<String> {
    text.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

#[test]
fn the_page_of_a_group_says_on_which_groups_it_stands_and_which_it_carries() {
    // From each group to those that its crates depend on.
    let manifests = crate_manifests();
    let group_of = |package: &str| manifests.iter().find(|crate_| crate_.package == package);
    let mut arrows = BTreeSet::new();
    for CrateManifest { group, text, .. } in &manifests {
        let (_, dependencies) = text.split_once("\n[dependencies]\n").unwrap_or_default();
        let dependencies = dependencies.split("\n[").next().unwrap_or_default();
        for line in dependencies.lines() {
            let package = line.split([' ', '.', '=']).next().unwrap_or_default();
            if let Some(below) = group_of(package).filter(|below| below.group != *group) {
                arrows.insert((group.clone(), below.group.clone()));
            }
        }
    }
    let groups: BTreeSet<&String> = manifests.iter().map(|manifest| &manifest.group).collect();
    for group in groups {
        let path = root().join("crates").join(group).join("README.md");
        let page = std::fs::read_to_string(path).expect("the page of a group");
        let line = page.lines().find_map(|line| line.strip_prefix("Stands on: "));
        let line = line.unwrap_or_else(|| panic!("{group}: its page does not say on what it stands"));
        let (below, carried) = line.split_once(". Carries: ").unwrap_or_else(|| panic!("{group}: {line}"));
        let carried = carried.split('.').next().unwrap_or_default();
        let real = |is: &dyn Fn(&(String, String)) -> Option<String>| arrows.iter().filter_map(is).collect();
        let below_it: BTreeSet<String> = real(&|(from, to)| (from == group).then(|| to.clone()));
        let above_it: BTreeSet<String> = real(&|(from, to)| (to == group).then(|| from.clone()));
        assert_eq!(
            (named(below), named(carried)),
            (below_it, above_it),
            "{group}: what it stands on, and carries"
        );
    }
}

struct CrateManifest {
    group: String,
    package: String,
    text: String,
}

fn crate_manifests() -> Vec<CrateManifest> {
    let folders =
        |path| std::fs::read_dir(path).expect("a folder").map(|entry| entry.expect("readable").path());
    let crates = folders(root().join("crates")).filter(|group| group.is_dir()).flat_map(folders);
    let found = crates.filter_map(|folder| {
        let text = std::fs::read_to_string(folder.join("Cargo.toml")).ok()?;
        let name = |path: &std::path::Path| path.file_name().expect("a name").to_string_lossy().into_owned();
        let group = name(folder.parent().expect("in a group"));
        let package = text.lines().find_map(|line| line.strip_prefix("name = ")).expect("a package");
        Some(CrateManifest { group, package: package.trim_matches('"').to_owned(), text })
    });
    found.collect()
}
