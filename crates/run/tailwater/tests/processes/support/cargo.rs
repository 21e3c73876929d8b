//! What cargo builds besides this program and the command line.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Builds targets of the workspace that `wanted` names, as in `--example NAME`; what cargo says of each artifact.
///
/// `cargo test --workspace --all-features` has built the same with the same features, so that this only looks them up;
/// in a test of this crate alone, it is what builds them.
fn build(wanted: &[&str]) -> Vec<serde_json::Value> {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("it is below the target directory");
    let mut cargo = Command::new(env!("CARGO"));
    // What they need was fetched to build this test.
    cargo
        .args([
            "build",
            "--workspace",
            "--all-features",
            "--offline",
            "--message-format=json",
            "--target-dir",
        ])
        .arg(target);
    // What cargo tells this test of its package is no setting of another build: a build script that is run again where
    // it changes (ring's) would have nearly everything built anew, and what was built before would not fit it.
    let told = ["CARGO_MANIFEST_", "CARGO_PKG_", "CARGO_CRATE_", "CARGO_BIN_", "CARGO_PRIMARY_"];
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    names.filter(|name| told.iter().any(|begin| name.starts_with(begin))).for_each(|name| {
        cargo.env_remove(name);
    });
    cargo.args(if cfg!(debug_assertions) { &[][..] } else { &["--release"] }).args(wanted);
    let built = cargo.current_dir(env!("CARGO_MANIFEST_DIR")).output().expect("cargo runs");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    String::from_utf8(built.stdout)
        .expect("text")
        .lines()
        .map(|line| serde_json::from_str(line).expect("a message of cargo is JSON"))
        .collect()
}

/// Builds examples of the client library; where each one's executable is.
pub fn examples(names: &[&str]) -> Vec<PathBuf> {
    let wanted: Vec<&str> = names.iter().flat_map(|name| ["--example", name]).collect();
    let messages = build(&wanted);
    let executable = |name: &&str| {
        let message = messages
            .iter()
            .find(|message| message["target"]["kind"][0] == "example" && message["target"]["name"] == **name);
        let path = message.and_then(|message| message["executable"].as_str());
        PathBuf::from(path.unwrap_or_else(|| panic!("cargo built no example {name}")))
    };
    names.iter().map(executable).collect()
}

/// Builds `libtailwater`; where it is. Its own test needs it, which is why that is built, too.
pub fn libtailwater() -> PathBuf {
    let messages = build(&["--test", "abi"]);
    let files = messages
        .iter()
        .filter(|message| {
            message["target"]["name"] == "tailwater" && message["target"]["kind"][0] == "cdylib"
        })
        .flat_map(|message| message["filenames"].as_array().into_iter().flatten());
    let library = files.filter_map(|file| file.as_str()).find(|file| file.ends_with(".so"));
    PathBuf::from(library.expect("cargo built no libtailwater.so"))
}
