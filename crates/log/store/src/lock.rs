//! Who owns a data directory: one process at a time.

use std::io;
use std::path::Path;

use tailwater_env::{Env, LockGuard, OpenMode};

use crate::OpenError;
use crate::files::read_whole;
use crate::layout::Layout;

/// Bytes of a lock file that are looked at: a process number and a line end.
const PID_BYTES_MAX: u64 = 64;

/// A data directory that is ours until this is dropped, or the process ends in whatever way.
pub struct DataDir {
    _lock: LockGuard,
}

/// Takes a data directory, which is created if it is missing. Everything that opens journal, segments or
/// metadata in it does so after this and drops this last.
///
/// # Errors
/// [`OpenError::InUse`] names the process that has it; [`OpenError::Disk`].
pub fn lock_data_dir(env: &Env, dir: &Path) -> Result<DataDir, OpenError> {
    let disk = env.disk();
    let path = Layout::new(dir).lock();
    let failed = |source| OpenError::Disk { path: path.clone(), source };
    let is_missing = |path: &&Path| !path.as_os_str().is_empty() && disk.list(path).is_err();
    let missing: Vec<&Path> = dir.ancestors().take_while(is_missing).collect();
    disk.create_dir_all(dir).map_err(failed)?;
    // A name that is not synced goes with the next power failure, and all that is below it. That of `dir` itself
    // may have been left unsynced by a process that was killed right here.
    for name in std::iter::once(dir).chain(missing) {
        let parent = name.parent().filter(|parent| !parent.as_os_str().is_empty());
        let parent = parent.unwrap_or(Path::new(if name.is_absolute() { "/" } else { "." }));
        disk.sync_dir(parent).map_err(failed)?;
    }
    let lock = match disk.lock(&path) {
        Ok(lock) => lock,
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            let bytes = read_whole(&**disk, &path, PID_BYTES_MAX).ok().flatten().unwrap_or_default();
            let pid = std::str::from_utf8(&bytes).ok().and_then(|pid| pid.trim().parse().ok());
            return Err(OpenError::InUse { dir: dir.to_owned(), pid });
        }
        Err(error) => return Err(failed(error)),
    };
    // What is in the file is only read by people and by the error above, so it need not be durable; a disk too
    // full for it is none of the lock's business.
    if let Ok(file) = disk.open(&path, OpenMode::ReadWrite) {
        let _ = file.set_len(0);
        let _ = file.write_all_at(format!("{}\n", std::process::id()).as_bytes(), 0);
    }
    Ok(DataDir { _lock: lock })
}
