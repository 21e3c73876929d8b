//! Who a replica with a disk is. The id lies beside the events: where they are gone it is gone as well, and the replica
//! is another one, of which nobody expects them.
//!
//! ```text
//! magic "TWbi", u16 version 2, u16 zero, u64 id (even), u8 length, region, u64 XXH3-64 of all before it
//! ```

use std::io;
use std::path::Path;

use bytes::{BufMut, Bytes, BytesMut};
use tailwater_broadcast::message::ReplicaId;
use tailwater_broadcast::wire::{Reader, put_text};
use tailwater_env::{Env, OpenMode};
use xxhash_rust::xxh3::xxh3_64;

use super::{DiskError, failed};

const MAGIC: [u8; 4] = *b"TWbi";
/// Of the whole directory, the records in it included.
const VERSION: u16 = 2;
/// Bytes of the file.
const BYTES_MAX: usize = 1 << 10;

/// The id of the directory's replica, or a new one, and whether it is new.
pub(super) fn open(env: &Env, dir: &Path, region: &str) -> Result<(ReplicaId, bool), DiskError> {
    let path = dir.join("replica");
    let file = match env.disk().open(&path, OpenMode::Read) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let names = env.disk().list(dir).map_err(failed("read", dir))?;
            if names.iter().any(|name| name == "checkpoint") {
                let why = "the file that says whose it is is gone".to_owned();
                return Err(DiskError::Damaged { path, why });
            }
            return Ok((fresh(env), true));
        }
        opened => opened.map_err(failed("opened", &path))?,
    };
    let mut bytes = vec![0; BYTES_MAX];
    let len = file.read_at(&mut bytes, 0).map_err(failed("read", &path))?;
    bytes.truncate(len);
    let damaged = |why: &str| DiskError::Damaged { path: path.clone(), why: why.to_owned() };
    let (body, sum) = bytes.split_last_chunk::<8>().ok_or_else(|| damaged("it is cut off"))?;
    if xxh3_64(body) != u64::from_le_bytes(*sum) || !body.starts_with(&MAGIC) {
        return Err(damaged("it is not what was written"));
    }
    let mut reader = Reader::new(Bytes::copy_from_slice(&body[4..]));
    let read = (|| {
        Ok::<_, tailwater_broadcast::wire::BadMessage>((
            reader.u16()?,
            reader.u16()?,
            reader.u64()?,
            reader.text()?,
        ))
    })();
    match read {
        Ok((VERSION, _, id, was)) if was == region => Ok((id, false)),
        Ok((VERSION, _, _, was)) => {
            Err(DiskError::Region { dir: dir.to_owned(), was, is: region.to_owned() })
        }
        Ok((version, ..)) => Err(damaged(&format!(
            "its directory is of version {version}, and this program knows version {VERSION}"
        ))),
        Err(error) => Err(damaged(&error.to_string())),
    }
}

/// An id that no other replica has.
pub(super) fn fresh(env: &Env) -> ReplicaId {
    env.random_u64() & !1
}

/// Gives the directory an id; durable when it returns.
pub(super) fn create(env: &Env, dir: &Path, id: ReplicaId, region: &str) -> Result<(), DiskError> {
    let mut out = BytesMut::new();
    out.put_slice(&MAGIC);
    out.put_u16_le(VERSION);
    out.put_u16_le(0);
    out.put_u64_le(id);
    put_text(&mut out, region);
    let sum = xxh3_64(&out);
    out.put_u64_le(sum);
    let (disk, new, path) = (env.disk(), dir.join("replica.new"), dir.join("replica"));
    let write = || {
        if let Err(error) = disk.remove_file(&new)
            && error.kind() != io::ErrorKind::NotFound
        {
            return Err(error);
        }
        let file = disk.open(&new, OpenMode::CreateNew)?;
        file.write_all_at(&out, 0)?;
        file.sync_data()?;
        disk.rename(&new, &path)?;
        disk.sync_dir(dir)
    };
    write().map_err(failed("written", &path))
}
