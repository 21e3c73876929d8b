//! The checkpoint: all keys in one file, so that the journal need not keep every commit. Little-endian.
//!
//! ```text
//! offset width
//!   0      8   magic      "TWMETASN"
//!   8      4   version    1
//!  12      4   zero
//!  16      8   revision   of the last commit in it
//!  24      8   count      of keys
//!  32      n   keys, ascending: 8 version, 4 + key, 4 + value
//!  32+n    8   checksum   CRC-64/NVME of everything before
//! ```
//!
//! Named by its revision. It is written under another name, synced, renamed and the directory synced before the
//! one before it is removed: a file of that name is whole, or damaged.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tailwater_env::{Disk, OpenMode};

use crate::contract::Versioned;
use crate::limits::SNAPSHOT_WRITE_BYTES;
use crate::record::{MetaRecordError, Reader, put_bytes};

const MAGIC: [u8; 8] = *b"TWMETASN";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 32;
const CHECKSUM_BYTES: usize = 8;
const UNFINISHED_NAME: &str = "snapshot.unfinished";

/// All keys at one revision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Snapshot {
    pub(crate) revision: u64,
    pub(crate) keys: BTreeMap<Arc<str>, Versioned>,
}

/// Why a file is not a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SnapshotError {
    #[error("it is not a snapshot of metadata")]
    Magic,
    #[error("its format version is {found}, and this program knows version {VERSION}")]
    Version { found: u32 },
    #[error("its checksum is wrong")]
    Checksum,
    #[error("a key in it can't be read: {0}")]
    Key(#[from] MetaRecordError),
}

impl Snapshot {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&self.revision.to_le_bytes());
        bytes.extend_from_slice(&(self.keys.len() as u64).to_le_bytes());
        for (key, versioned) in &self.keys {
            bytes.extend_from_slice(&versioned.version.to_le_bytes());
            put_bytes(&mut bytes, key.as_bytes());
            put_bytes(&mut bytes, &versioned.value);
        }
        let checksum = crc_fast::crc64_nvme(&bytes);
        bytes.extend_from_slice(&checksum.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, SnapshotError> {
        if bytes.len() < HEADER_BYTES + CHECKSUM_BYTES || bytes[..8] != MAGIC {
            return Err(SnapshotError::Magic);
        }
        let found = u32::from_le_bytes(bytes[8..12].try_into().expect("4 bytes"));
        if found != VERSION {
            return Err(SnapshotError::Version { found });
        }
        let (checked, checksum) = bytes.split_at(bytes.len() - CHECKSUM_BYTES);
        if crc_fast::crc64_nvme(checked).to_le_bytes() != checksum {
            return Err(SnapshotError::Checksum);
        }
        let mut reader = Reader { bytes: &checked[16..] };
        let (revision, count) = (reader.u64()?, reader.u64()?);
        let mut keys = BTreeMap::new();
        for _ in 0..count {
            let version = reader.u64()?;
            let key = reader.key()?;
            let value = reader.value()?;
            if version > revision || keys.insert(key, Versioned { value, version }).is_some() {
                return Err(MetaRecordError::Impossible.into());
            }
        }
        if !reader.bytes.is_empty() {
            return Err(MetaRecordError::Impossible.into());
        }
        Ok(Self { revision, keys })
    }

    /// Makes the snapshot durable under its name, and removes older ones after that.
    pub(crate) fn store(&self, disk: &dyn Disk, dir: &Path) -> io::Result<()> {
        let unfinished = dir.join(UNFINISHED_NAME);
        remove_if_there(disk, &unfinished)?;
        let file = disk.open(&unfinished, OpenMode::CreateNew)?;
        let bytes = self.encode();
        for (number, slice) in bytes.chunks(SNAPSHOT_WRITE_BYTES).enumerate() {
            file.write_all_at(slice, (number * SNAPSHOT_WRITE_BYTES) as u64)?;
        }
        file.sync_data()?;
        disk.rename(&unfinished, &dir.join(name(self.revision)))?;
        disk.sync_dir(dir)?;
        for (revision, path) in stored(disk, dir)? {
            if revision < self.revision {
                disk.remove_file(&path)?;
            }
        }
        Ok(())
    }
}

/// The snapshots in a directory, by revision, ascending.
pub(crate) fn stored(disk: &dyn Disk, dir: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let names = disk.list(dir)?;
    Ok(names.iter().filter_map(|name| Some((revision(name)?, dir.join(name)))).collect())
}

/// The whole of a file.
pub(crate) fn read(disk: &dyn Disk, path: &Path) -> io::Result<Vec<u8>> {
    let file = disk.open(path, OpenMode::Read)?;
    let length = usize::try_from(file.len()?).map_err(io::Error::other)?;
    let mut bytes = vec![0; length];
    let count = file.read_at(&mut bytes, 0)?;
    bytes.truncate(count);
    Ok(bytes)
}

fn remove_if_there(disk: &dyn Disk, path: &Path) -> io::Result<()> {
    match disk.remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

fn name(revision: u64) -> String {
    format!("{revision:020}.snapshot")
}

fn revision(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(".snapshot")?;
    (digits.len() == 20 && digits.bytes().all(|byte| byte.is_ascii_digit())).then(|| digits.parse().ok())?
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;

    use super::*;

    fn snapshot() -> Snapshot {
        let versioned = |version| Versioned { value: Bytes::from_static(b"value"), version };
        let keys = [("a".into(), versioned(3)), ("b/c".into(), versioned(7))];
        Snapshot { revision: 9, keys: keys.into_iter().collect() }
    }

    #[test]
    fn a_snapshot_comes_back_as_it_was() {
        for snapshot in [snapshot(), Snapshot::default()] {
            assert_eq!(Snapshot::decode(&snapshot.encode()), Ok(snapshot));
        }
    }

    #[test]
    fn a_damaged_snapshot_is_refused_whichever_bit_it_is() {
        let bytes = snapshot().encode();
        for bit in 0..bytes.len() * 8 {
            let mut bytes = bytes.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(Snapshot::decode(&bytes).is_err(), "bit {bit}");
        }
        for length in 0..bytes.len() {
            assert!(Snapshot::decode(&bytes[..length]).is_err(), "{length} bytes");
        }
    }

    #[test]
    fn a_count_that_is_too_large_costs_nothing() {
        let mut bytes = snapshot().encode();
        bytes[24..32].copy_from_slice(&u64::MAX.to_le_bytes());
        let end = bytes.len() - CHECKSUM_BYTES;
        let checksum = crc_fast::crc64_nvme(&bytes[..end]);
        bytes[end..].copy_from_slice(&checksum.to_le_bytes());
        assert_eq!(Snapshot::decode(&bytes), Err(SnapshotError::Key(MetaRecordError::Short)));
    }

    proptest! {
        #[test]
        fn no_bytes_make_decoding_panic(bytes: Vec<u8>) {
            let _ = Snapshot::decode(&bytes);
        }
    }

    #[test]
    fn only_snapshots_have_the_name_of_one() {
        assert_eq!(revision(&name(12)), Some(12));
        for other in ["snapshot.unfinished", "12.snapshot", "a0000000000000000000.snapshot"] {
            assert_eq!(revision(other), None, "{other}");
        }
    }
}
