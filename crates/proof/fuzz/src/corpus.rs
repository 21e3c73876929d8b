//! Where inputs are kept.
//!
//! ```text
//! corpus/TARGET            gzip of inputs one behind the other: u32 length, little-endian, and its bytes
//! findings/TARGET/NAME     one input, as it is; the name says what went wrong
//! ```
//! A corpus is one file, for there are thousands of inputs, and none means anything to a person.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;

use crate::FuzzTarget;

fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The file of a target's corpus.
pub fn packed(target: &FuzzTarget) -> PathBuf {
    here().join("corpus").join(target.name)
}

/// The findings of a target, by their names; none if it has none.
///
/// # Panics
/// One can't be read.
pub fn findings(target: &FuzzTarget) -> Vec<(String, Vec<u8>)> {
    let dir = here().join("findings").join(target.name);
    if dir.exists() { files(&dir) } else { Vec::new() }
}

/// All of a target's inputs: seeds, corpus and findings.
///
/// # Panics
/// A file can't be read.
pub fn inputs(target: &FuzzTarget) -> Vec<Vec<u8>> {
    let packed = packed(target);
    let corpus =
        if packed.exists() { unpack(&std::fs::read(&packed).expect("it is there")) } else { Vec::new() };
    let findings = findings(target).into_iter().map(|(_, input)| input);
    (target.seeds)().into_iter().chain(corpus).chain(findings).collect()
}

/// The files of a directory, by their names, in order.
///
/// # Panics
/// One can't be read.
pub fn files(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let entries = std::fs::read_dir(dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
    let mut files: Vec<(String, Vec<u8>)> = entries
        .map(|entry| {
            let entry = entry.expect("an entry of the directory");
            let name = entry.file_name().to_string_lossy().into_owned();
            (name, std::fs::read(entry.path()).expect("a file"))
        })
        .collect();
    files.sort();
    files
}

/// The bytes of a corpus.
///
/// # Panics
/// An input of more than 4 GiB.
pub fn pack(inputs: &[Vec<u8>]) -> Vec<u8> {
    let mut packed = GzEncoder::new(Vec::new(), Compression::best());
    for input in inputs {
        let length = u32::try_from(input.len()).expect("inputs are short").to_le_bytes();
        [&length, &input[..]].into_iter().for_each(|part| packed.write_all(part).expect("memory takes it"));
    }
    packed.finish().expect("memory takes it")
}

/// The inputs in a corpus.
///
/// # Panics
/// The file is cut.
pub fn unpack(packed: &[u8]) -> Vec<Vec<u8>> {
    let (mut unpacked, mut inputs) = (Vec::new(), Vec::new());
    GzDecoder::new(packed).read_to_end(&mut unpacked).expect("a corpus that is whole");
    let mut bytes = &unpacked[..];
    while let Some((length, rest)) = bytes.split_first_chunk() {
        let (input, rest) = rest.split_at(u32::from_le_bytes(*length) as usize);
        inputs.push(input.to_vec());
        bytes = rest;
    }
    assert!(bytes.is_empty(), "a corpus that is cut");
    inputs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_are_unpacked_as_they_were_packed() {
        let inputs = [vec![1, 2, 3], vec![], vec![0; 300]];
        assert_eq!(unpack(&pack(&inputs)), inputs);
    }
}
