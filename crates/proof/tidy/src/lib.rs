//! Reads the tree as text, for rules that neither the compiler nor a lint checks. The rules themselves are the tests of
//! this crate: `cargo test -p tailwater-tidy` takes a second and names each line that breaks one.

// Reads the real tree: nothing here runs in a simulated world.
#![allow(clippy::disallowed_methods)]

use std::path::{Path, PathBuf};

/// The root of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..").canonicalize().expect("the repository is there")
}

/// A file of the tree, by its path below [`root`].
#[derive(Clone, Debug)]
pub struct SourceFile {
    /// `crates/GROUP/CRATE/...`, with forward slashes.
    pub path: String,
    /// All of its text.
    pub text: String,
}

impl SourceFile {
    /// The crate that the file belongs to, by its folder: `rma` of `crates/ground/rma/src/lib.rs`.
    pub fn crate_name(&self) -> &str {
        self.path.split('/').nth(2).unwrap_or_default()
    }

    /// Whether only tests compile it: it lies in a folder `tests`, `examples` or `benches`, or is a crate's `tests.rs`.
    pub fn is_test(&self) -> bool {
        let mut parts = self.path.split('/').skip(3);
        parts.any(|part| {
            matches!(part, "tests" | "examples" | "benches" | "tests.rs" | "property.rs" | "conformance.rs")
        })
    }

    /// The text before a module of unit tests at its end.
    pub fn without_unit_tests(&self) -> &str {
        self.text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default()
    }
}

/// Every Rust file below `crates/`, sorted by path.
///
/// # Panics
/// If a folder or a file can't be read: the tests of this crate have nothing to say then.
pub fn rust_files() -> Vec<SourceFile> {
    files("crates", "rs")
}

/// Every Markdown file of the root, of `docs/`, `spec/`, `bench/` and of the groups of crates, sorted by path.
///
/// # Panics
/// As [`rust_files`].
pub fn documents() -> Vec<SourceFile> {
    let mut found: Vec<SourceFile> =
        ["docs", "spec", "bench", "crates"].iter().flat_map(|below| files(below, "md")).collect();
    found.push(read(&root(), &root().join("README.md")));
    found
}

fn files(below: &str, extension: &str) -> Vec<SourceFile> {
    let root = root();
    let mut found = Vec::new();
    let mut folders = vec![root.join(below)];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a readable folder") {
            let path = entry.expect("a readable entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|of| of == extension) {
                found.push(read(&root, &path));
            }
        }
    }
    found.sort_by(|one, other| one.path.cmp(&other.path));
    assert!(!found.is_empty(), "there is no file .{extension} below {below}");
    found
}

fn read(root: &Path, path: &Path) -> SourceFile {
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let below = path.strip_prefix(root).expect("it was found below the root");
    SourceFile { path: below.to_str().expect("our names are UTF-8").to_owned(), text }
}

/// A type that a file declares at the beginning of a line's code: `struct`, `enum`, `union`, `trait`, or `type` outside
/// of an implementation.
#[derive(Clone, Debug)]
pub struct Declared<'a> {
    /// The type's name.
    pub name: &'a str,
    /// Its line, from 1 on.
    pub line: usize,
}

/// The types that `text` declares, in its order.
pub fn declared(text: &str) -> Vec<Declared<'_>> {
    text.lines()
        .enumerate()
        .filter_map(|(at, line)| Some((at + 1, declared_type(line)?)))
        .map(named)
        .collect()
}

fn named((line, name): (usize, &str)) -> Declared<'_> {
    Declared { name, line }
}

fn declared_type(line: &str) -> Option<&str> {
    let mut rest = line.trim_start();
    let indented = rest.len() < line.len();
    if let Some(behind) = rest.strip_prefix("pub") {
        rest = match behind.strip_prefix('(') {
            Some(behind) => behind.split_once(')')?.1,
            None => behind,
        };
        rest = rest.strip_prefix(' ')?;
    }
    rest = rest.strip_prefix("unsafe ").unwrap_or(rest);
    let (keyword, behind) = rest.split_once(' ')?;
    match keyword {
        "struct" | "enum" | "union" | "trait" => {}
        // What is indented is an associated type, which its trait names.
        "type" if !indented => {}
        _ => return None,
    }
    let name = behind.split(|char: char| !char.is_alphanumeric() && char != '_').next()?;
    name.starts_with(|char: char| char.is_ascii_uppercase()).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_found_whatever_stands_before_them() {
        let text = "pub struct A;\n    pub(in crate::x) enum B<T> {\nunsafe trait C {}\ntype D = u8;\n    type E = u8;\n\
                    // struct F\nlet x = G;\npub const H: u8 = 0;\n";
        let names: Vec<&str> = declared(text).iter().map(|found| found.name).collect();
        assert_eq!(names, ["A", "B", "C", "D"]);
    }
}
