//! Text that every Debian machine has: licences, Perl's modules, the documentation of its packages.

use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};

use crate::limits::{LINE_BYTES_MAX, TEXT_BYTES_MAX};

/// Where to look, in this order. `base-files` has the first, `perl-base` the second, every package the last.
const PLACES: [&str; 5] = [
    "/usr/share/common-licenses",
    "/usr/lib/x86_64-linux-gnu/perl-base",
    "/usr/lib/aarch64-linux-gnu/perl-base",
    "/usr/share/perl",
    "/usr/share/doc",
];

/// Lines, read again and again.
pub struct Text {
    bytes: Vec<u8>,
    at: usize,
    files: usize,
}

impl Text {
    /// The lines of a file, or of the text that this machine has if there is no name.
    pub fn open(input: Option<&Path>) -> anyhow::Result<Self> {
        let mut text = Self { bytes: Vec::new(), at: 0, files: 0 };
        match input {
            Some(file) => {
                let bytes =
                    std::fs::read(file).with_context(|| format!("{} can't be read", file.display()))?;
                text.add(bytes);
            }
            None => PLACES.iter().for_each(|place| text.walk(Path::new(place))),
        }
        ensure!(!text.bytes.is_empty(), "there is no text to append: name a file that has some with --input");
        Ok(text)
    }

    /// How many bytes and files it has.
    pub fn size(&self) -> (usize, usize) {
        (self.bytes.len(), self.files)
    }

    /// The next line, without its end; after the last one comes the first.
    pub fn next_line(&mut self) -> &[u8] {
        if self.at >= self.bytes.len() {
            self.at = 0;
        }
        let rest = &self.bytes[self.at..];
        let longest = &rest[..rest.len().min(LINE_BYTES_MAX)];
        let end = longest.iter().position(|&byte| byte == b'\n');
        self.at += end.map_or(longest.len(), |end| end + 1);
        &longest[..end.unwrap_or(longest.len())]
    }

    fn walk(&mut self, dir: &Path) {
        let Ok(entries) = std::fs::read_dir(dir) else { return };
        let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
        paths.sort();
        for path in paths {
            if self.bytes.len() >= TEXT_BYTES_MAX {
                return;
            }
            let Ok(kind) = std::fs::symlink_metadata(&path) else { continue };
            if kind.is_dir() {
                self.walk(&path);
            } else if kind.is_file() && kind.len() <= TEXT_BYTES_MAX as u64 / 8 {
                // What can't be read is left out; there is more.
                self.add(std::fs::read(&path).unwrap_or_default());
            }
        }
    }

    fn add(&mut self, bytes: Vec<u8>) {
        if bytes.is_empty() || bytes.contains(&0) || std::str::from_utf8(&bytes).is_err() {
            return;
        }
        self.files += 1;
        self.bytes.extend_from_slice(&bytes);
        if self.bytes.last() != Some(&b'\n') {
            self.bytes.push(b'\n');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_in_order_and_then_again_from_the_first() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("text");
        std::fs::write(&file, "one\n\nthree").expect("written");
        let mut text = Text::open(Some(&file)).expect("text");
        let lines: Vec<_> = (0..4).map(|_| String::from_utf8_lossy(text.next_line()).into_owned()).collect();
        assert_eq!(lines, ["one", "", "three", "one"]);
    }

    #[test]
    fn a_line_that_never_ends_is_cut() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("text");
        std::fs::write(&file, vec![b'x'; LINE_BYTES_MAX + 1]).expect("written");
        let mut text = Text::open(Some(&file)).expect("text");
        assert_eq!(text.next_line().len(), LINE_BYTES_MAX);
        assert_eq!(text.next_line().len(), 1);
    }

    #[test]
    fn a_file_without_text_is_refused_with_advice() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("text");
        std::fs::write(&file, [0, 1, 2]).expect("written");
        let error = Text::open(Some(&file)).err().expect("refused").to_string();
        assert!(error.contains("--input"), "{error}");
    }
}
