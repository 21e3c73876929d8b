//! Reads of segment files, off the asynchronous threads: a few dedicated tasks, each with a bounded queue.

use std::io;
use std::sync::Arc;

use tailwater_env::{File, OpenMode};
use tailwater_format::{Position, SegmentId};
use tokio::sync::{mpsc, oneshot};

use crate::StoreError;
use crate::files::{read_whole, scan};
use crate::index::{Sidecar, SparseIndex};
use crate::limits::{DISK_READ_BYTES, SIDECAR_BYTES_MAX};
use crate::store::StoreInner;

/// What a reader task is asked for.
pub(crate) enum Job {
    /// Bytes of a segment's file, all of them synced.
    Read {
        id: SegmentId,
        position: Position,
        bytes: usize,
        reply: oneshot::Sender<Result<Vec<u8>, StoreError>>,
    },
    /// The sparse index of a segment that has none in memory.
    Index { id: SegmentId, reply: oneshot::Sender<Result<Arc<SparseIndex>, StoreError>> },
}

/// A reader task: ends when the store's last handle is dropped.
pub(crate) async fn run(inner: Arc<StoreInner>, mut jobs: mpsc::Receiver<Job>) {
    while let Some(job) = jobs.recv().await {
        match job {
            Job::Read { reply, .. } if reply.is_closed() => {}
            Job::Index { reply, .. } if reply.is_closed() => {}
            Job::Read { id, position, bytes, reply } => {
                // Nobody waits any more if this fails.
                let _ = reply.send(read(&inner, &id, position, bytes));
            }
            Job::Index { id, reply } => {
                let _ = reply.send(index(&inner, id));
            }
        }
    }
}

fn read(inner: &StoreInner, id: &SegmentId, position: Position, bytes: usize) -> Result<Vec<u8>, StoreError> {
    let mut buffer = vec![0; bytes];
    let cached = inner.handles.lock().get(id);
    if let Some(file) = cached {
        if matches!(read_pieces(&*file, &mut buffer, position), Ok(read) if read == bytes) {
            return Ok(buffer);
        }
        // The error may be of the open file alone.
        inner.handles.lock().forget(id);
    }
    let read = open(inner, id).and_then(|file| read_pieces(&*file, &mut buffer, position));
    match read {
        Ok(read) if read == bytes => Ok(buffer),
        Ok(read) => Err(failed(inner, id, position, format!("the file ends {} bytes early", bytes - read))),
        Err(error) => Err(failed(inner, id, position, error.to_string())),
    }
}

/// Reads into `buffer` from `position`, so that what else the disk has to do comes in between; less than its length
/// only at the end of the file.
fn read_pieces(file: &dyn File, buffer: &mut [u8], position: Position) -> io::Result<usize> {
    let mut done = 0;
    for piece in buffer.chunks_mut(DISK_READ_BYTES) {
        let read = file.read_at(piece, position.0 + done as u64)?;
        done += read;
        if read < piece.len() {
            break;
        }
    }
    Ok(done)
}

fn open(inner: &StoreInner, id: &SegmentId) -> io::Result<Arc<dyn File>> {
    let forgotten = inner.handles.lock().forgotten();
    let file = inner.env.disk().open(&inner.layout.segment(id), OpenMode::Read)?;
    file.read_nothing_ahead();
    inner.handles.lock().put(*id, file.clone(), forgotten);
    Ok(file)
}

fn failed(inner: &StoreInner, id: &SegmentId, position: Position, why: String) -> StoreError {
    if inner.stripe(&id.shard).shards.get(id).is_err() {
        return StoreError::Unknown(*id);
    }
    StoreError::Read { id: *id, position, why }
}

/// The points of a segment: those of its sidecar, or of a scan.
fn index(inner: &StoreInner, id: SegmentId) -> Result<Arc<SparseIndex>, StoreError> {
    if let Some(index) = inner.cached_index(&id) {
        return Ok(index);
    }
    let (sealed, synced, appended) = {
        let stripe = inner.stripe(&id.shard);
        let segment = stripe.shards.get(&id)?;
        (segment.is_sealed(), segment.pending.synced(), segment.pending.appended())
    };
    let sidecar = read_whole(&**inner.env.disk(), &inner.layout.sidecar(&id), SIDECAR_BYTES_MAX);
    let points = match sidecar {
        Ok(Some(bytes)) if Sidecar::decode(&id, &bytes).is_ok() => Sidecar::decode_points(&bytes),
        _ => None,
    };
    let index = match points {
        Some(points) => points,
        None if synced == Position(0) => SparseIndex::new(inner.config.index_step),
        None => {
            let file = open(inner, &id);
            let scanned = file.and_then(|file| scan(&*file, id, synced, inner.config.index_step));
            scanned.map_err(|error| failed(inner, &id, Position(0), error.to_string()))?.index
        }
    };
    let index = Arc::new(index);
    // A segment whose end is still in memory gets further points later: its entries lie behind the last one
    // that is known here, so the lookup is right, but from further away than a step.
    if sealed && synced == appended {
        inner.cache_index(id, index.clone());
    }
    Ok(index)
}
