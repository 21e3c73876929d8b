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
use crate::segment::Phase;
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

/// The points of a segment: those of its sidecar, or of a scan. They are kept, so that neither a full disk, on which a
/// segment can't be sealed, nor the number of segments has each lookup scan again. Those of a segment that is not filed
/// are kept with it, and the sidecar gets them in the end.
fn index(inner: &StoreInner, id: SegmentId) -> Result<Arc<SparseIndex>, StoreError> {
    let kept = inner.indexes.lock().get(&id);
    if let Some(index) = kept {
        return Ok(index);
    }
    let step = inner.config.index_step;
    let (synced, appended, pending) = {
        let stripe = inner.stripe(&id.shard);
        let segment = stripe.shards.get(&id)?;
        if let Some(index) = &segment.index {
            // Another reader's, meanwhile.
            return Ok(Arc::new(index.clone()));
        }
        let pending = &segment.pending;
        let entries = pending.pieces().map(|piece| (piece.start, &piece.bytes[..]));
        (pending.synced(), pending.appended(), SparseIndex::of(step, entries))
    };
    let sidecar = read_whole(&**inner.env.disk(), &inner.layout.sidecar(&id), SIDECAR_BYTES_MAX);
    let points = match sidecar {
        Ok(Some(bytes)) if Sidecar::decode(&id, &bytes).is_ok_and(|sidecar| sidecar.length == appended) => {
            Sidecar::decode_points(&bytes)
        }
        _ => None,
    };
    let is_read = points.is_some();
    let index = match points {
        Some(points) => points,
        None => {
            let mut index = match synced {
                Position(0) => SparseIndex::new(step),
                _ => {
                    let file = open(inner, &id);
                    let scanned = file.and_then(|file| scan(&*file, id, synced, step));
                    scanned.map_err(|error| failed(inner, &id, Position(0), error.to_string()))?.index
                }
            };
            index.extend(pending);
            index
        }
    };
    let mut stripe = inner.stripe(&id.shard);
    let segment = stripe.shards.get_mut(&id)?;
    if segment.phase == Phase::Filed {
        let index = Arc::new(index);
        // Under the stripe's lock, or a deletion in between would leave it here.
        let mut indexes = inner.indexes.lock();
        match is_read {
            true => indexes.keep_read(id, index.clone()),
            false => indexes.keep_scanned(id, index.clone()),
        }
        return Ok(index);
    }
    // A segment without an index is not appended to any more, but it may have been cut.
    if segment.pending.appended() == appended {
        segment.index = Some(index.clone());
    }
    Ok(Arc::new(index))
}
