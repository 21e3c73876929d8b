//! The full run of the TLA+ models takes too long for every run of CI. It is asked for where the models have changed.

#![allow(clippy::disallowed_methods)]

use std::process::Command;

use tailwater_tidy::root;

#[test]
fn the_models_have_been_checked_in_full_as_they_are() {
    let hash = Command::new(root().join(".ci/spec-hash")).output().expect("it runs");
    let hash = String::from_utf8(hash.stdout).expect("digits");
    assert_eq!(hash.trim().len(), 12, "what .ci/spec-hash says: {hash}");
    let page = std::fs::read_to_string(root().join("docs/test-long.md")).expect("it is there");
    let row = page.lines().find(|line| line.starts_with("| `models` | passed"));
    assert!(
        row.is_some_and(|row| row.contains(&format!("spec {}", hash.trim()))),
        "spec/ has changed since the models were checked in full; now: make test-long PARTS=models"
    );
}
