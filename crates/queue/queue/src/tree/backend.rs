//! The tree's file, through `env`, so that a simulated world can lose what was not synced.

use std::fmt;
use std::io;
use std::sync::Arc;

use redb::StorageBackend;
use tailwater_env::File;

/// A file that redb reads and writes.
pub(super) struct TreeFile(pub(super) Arc<dyn File>);

impl fmt::Debug for TreeFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TreeFile")
    }
}

impl StorageBackend for TreeFile {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        match self.0.read_at(out, offset)? {
            count if count == out.len() => Ok(()),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write_all_at(data, offset)
    }
}
