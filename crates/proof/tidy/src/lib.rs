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

/// Every Markdown file of the root, of `docs/`, `spec/`, `bench/`, `clients/` and of the groups of crates, sorted by
/// path.
///
/// # Panics
/// As [`rust_files`].
pub fn documents() -> Vec<SourceFile> {
    let mut found: Vec<SourceFile> =
        ["docs", "spec", "bench", "clients", "crates"].iter().flat_map(|below| files(below, "md")).collect();
    found.extend(["README.md", "CHANGELOG.md"].map(|page| read(&root(), &root().join(page))));
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

/// The lines of `text` that begin a member of the type `name`: in its declaration, and in each `impl` of it or for it.
///
/// As rustfmt lays code out: a body ends at the first brace as far to the right as its head begins, and members begin
/// four columns further.
pub fn members_of<'a>(text: &'a str, name: &str) -> Vec<&'a str> {
    let mut members = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let Some(mut head) = is_head(line).then(|| line.to_owned()) else { continue };
        while !head.contains(['{', ';']) {
            let Some(more) = lines.next() else { break };
            head = format!("{head} {}", more.trim());
        }
        let of = declared_type(line).or_else(|| implemented_type(&head));
        if of != Some(name) || !head.trim_end().ends_with('{') {
            continue;
        }
        let indent = line.len() - line.trim_start().len();
        let end = format!("{:indent$}}}", "");
        let body = lines.by_ref().take_while(|line| *line != end);
        members.extend(body.filter(|line| line.len() - line.trim_start().len() == indent + 4));
    }
    members
}

fn is_head(line: &str) -> bool {
    let line = line.trim_start();
    line.starts_with("impl") || line.starts_with("unsafe impl") || declared_type(line).is_some()
}

/// The type that `impl ... {` is of, or for.
fn implemented_type(head: &str) -> Option<&str> {
    let head = head.trim_start().trim_start_matches("unsafe ").strip_prefix("impl")?;
    let head = if head.starts_with('<') { &head[end_of_generics(head)?..] } else { head };
    let head = head.split('{').next().unwrap_or_default();
    let head = head.split_once(" for ").map_or(head, |(_, of)| of);
    let path =
        head.trim_start().split(|char: char| !char.is_alphanumeric() && !"_:".contains(char)).next()?;
    path.rsplit("::").next()
}

/// Where the angle bracket that `text` begins with is closed: behind it. An arrow's is none.
fn end_of_generics(text: &str) -> Option<usize> {
    let mut depth = 0;
    let mut before = ' ';
    for (at, char) in text.char_indices() {
        match char {
            '<' => depth += 1,
            '>' if before != '-' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(at + 1);
        }
        before = char;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_type_s_members_are_in_its_declaration_and_in_what_is_implemented_for_it() {
        let text = "\
pub struct A {
    field: u8,
}

impl<T: Fn() -> B> From<B> for x::A<T>
where
    T: C,
{
    fn from() {
        local: u8,
    }
}

impl B {
    fn other() {}
}

mod m {
    unsafe impl super::A {
        fn inner() {}
    }
}
";
        let found: Vec<&str> = members_of(text, "A").into_iter().map(str::trim).collect();
        assert_eq!(found, ["field: u8,", "fn from() {", "}", "fn inner() {}"]);
    }

    #[test]
    fn types_are_found_whatever_stands_before_them() {
        let text = "pub struct A;\n    pub(in crate::x) enum B<T> {\nunsafe trait C {}\ntype D = u8;\n    type E = u8;\n\
                    // struct F\nlet x = G;\npub const H: u8 = 0;\n";
        let names: Vec<&str> = declared(text).iter().map(|found| found.name).collect();
        assert_eq!(names, ["A", "B", "C", "D"]);
    }
}
