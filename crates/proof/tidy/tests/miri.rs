//! Miri takes too long for every run of CI. It is asked for where what it looks at has changed.

#![allow(clippy::disallowed_methods)]

use std::process::Command;

use tailwater_tidy::root;

#[test]
fn miri_has_looked_at_what_moves_raw_bytes_as_it_is() {
    let hash = Command::new(root().join(".ci/miri-hash")).output().expect("it runs");
    let hash = String::from_utf8(hash.stdout).expect("digits");
    assert_eq!(hash.trim().len(), 12, "what .ci/miri-hash says: {hash}");
    let page = std::fs::read_to_string(root().join("docs/miri.md")).expect("it is there");
    assert!(
        page.contains(&format!("sources {},", hash.trim())),
        "what .ci/miri-hash lists has changed since Miri looked at it; now: make miri"
    );
}
