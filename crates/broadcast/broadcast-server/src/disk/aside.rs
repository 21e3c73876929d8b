//! What a replica had of a lineage that goes on no more, put aside: a directory with a checkpoint that needs no
//! journal, and an id of its own, so that a replica can be started on it: one of the region whose lineage it is.

use std::io;
use std::path::{Path, PathBuf};

use tailwater_broadcast::replica::Dropped;
use tailwater_env::{Env, OpenMode};
use tailwater_journal::JournalPosition;

use super::checkpoint::Writer;
use super::{DiskError, Walk, failed, identity};

/// Writes it, for a replica of `region`; where it is then, durably. Blocks on the disk.
pub(super) fn write(env: &Env, dir: &Path, region: &str, dropped: &Dropped) -> Result<PathBuf, DiskError> {
    let lineage = dropped.lineages.own;
    let aside = match dropped.region == region {
        true => dir.join(format!("aside-{lineage:016x}")),
        false => dir.join(format!("aside-{lineage:016x}-{}", dropped.region)),
    };
    let (disk, new, path) = (env.disk(), aside.join("checkpoint.new"), aside.join("checkpoint"));
    disk.create_dir_all(&aside).map_err(failed("made", &aside))?;
    disk.sync_dir(dir).map_err(failed("synced", dir))?;
    let write = || {
        if let Err(error) = disk.remove_file(&new)
            && error.kind() != io::ErrorKind::NotFound
        {
            return Err(error);
        }
        let mut writer = Writer::new(disk.open(&new, OpenMode::CreateNew)?, JournalPosition(0));
        let mut walk = Walk::of(&dropped.lineages, dropped.streams.iter());
        while let Some(records) = walk.next_of(|stream| dropped.streams.get(stream)) {
            for record in &records {
                writer.push(record)?;
            }
        }
        writer.finish()?;
        disk.rename(&new, &path)?;
        disk.sync_dir(&aside)
    };
    write().map_err(failed("written", &path))?;
    identity::create(env, &aside, identity::fresh(env), &dropped.region)?;
    Ok(aside)
}
