//! Batches: records that borrow from the process's one checked copy of them.

use tailwater_client::Batch;

use crate::consumer::PolledBatch;
use crate::given::TailwaterBytes;
use crate::operation::{Brought, TailwaterOperation, take};
use crate::runtime::free;

/// Records of one shard that come next. Opaque. What it says is good until it is freed. Any threads may read it.
pub struct TailwaterBatch {
    records: Vec<TailwaterRecord>,
    /// Those of all records, one behind the other.
    _headers: Vec<TailwaterHeader>,
    /// What all of them point into.
    batch: Batch,
}

/// One record. The bytes are where the library has read and checked them: nothing is copied.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TailwaterRecord {
    /// Its offset in the shard.
    pub offset: u64,
    /// Its time in milliseconds since 1970; -1: it has none.
    pub timestamp_ms: i64,
    /// Its key. `data` is null if it has none.
    pub key: TailwaterBytes,
    /// Its value. `data` is null if it has none.
    pub value: TailwaterBytes,
    /// Its headers, in order; null if it has none.
    pub headers: *const TailwaterHeader,
    /// How many there are.
    pub header_count: usize,
}

/// One header of a record.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TailwaterHeader {
    /// Its name, in UTF-8 and without a 0 at its end.
    pub name: TailwaterBytes,
    /// Its value. `data` is null if it has none.
    pub value: TailwaterBytes,
}

impl TailwaterBatch {
    fn of(batch: Batch) -> Self {
        let lent = |bytes: Option<&[u8]>| bytes.map_or(TailwaterBytes::NONE, TailwaterBytes::lent);
        let mut headers = Vec::new();
        let mut records = Vec::new();
        for record in batch.records() {
            let before = headers.len();
            // A header that is damaged ends the list.
            headers.extend(record.headers.iter().map_while(Result::ok).map(|header| TailwaterHeader {
                name: TailwaterBytes::lent(header.key.as_bytes()),
                value: lent(header.value),
            }));
            records.push(TailwaterRecord {
                offset: record.offset.0,
                timestamp_ms: record.timestamp_ms,
                key: lent(record.key),
                value: lent(record.value),
                headers: std::ptr::null(),
                header_count: headers.len() - before,
            });
        }
        let mut rest = &headers[..];
        for record in &mut records {
            let (its, behind) = rest.split_at(record.header_count);
            if !its.is_empty() {
                record.headers = its.as_ptr();
            }
            rest = behind;
        }
        Self { records, _headers: headers, batch }
    }
}

/// Takes the records out of a poll that is done; null if nothing came in time. The caller frees the batch.
///
/// # Safety
/// As `tailwater_operation_wait`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tailwater_operation_batch(
    operation: *mut TailwaterOperation,
) -> *mut TailwaterBatch {
    let pick = |brought| match brought {
        Brought::Batch(Some(polled)) => Ok(polled),
        other => Err(other),
    };
    // SAFETY: as this function's.
    let taken = unsafe { take(operation, pick) }.and_then(PolledBatch::take);
    taken.map_or(std::ptr::null_mut(), |batch| Box::into_raw(Box::new(TailwaterBatch::of(batch))))
}

/// The shard that the records are of; 0 for a null pointer.
///
/// # Safety
/// `batch` is null, or is not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tailwater_batch_shard(batch: *const TailwaterBatch) -> u32 {
    // SAFETY: as this function's.
    unsafe { batch.as_ref() }.map_or(0, |batch| batch.batch.shard)
}

/// The offset behind the last record; 0 for a null pointer.
///
/// # Safety
/// As `tailwater_batch_shard`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tailwater_batch_next_offset(batch: *const TailwaterBatch) -> u64 {
    // SAFETY: as this function's.
    unsafe { batch.as_ref() }.map_or(0, |batch| batch.batch.next_offset().0)
}

/// The records, and in `count` how many there are. Good until the batch is freed. Null and 0 for a null pointer.
///
/// # Safety
/// As `tailwater_batch_shard`; `count` can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tailwater_batch_records(
    batch: *const TailwaterBatch,
    count: *mut usize,
) -> *const TailwaterRecord {
    // SAFETY: as this function's.
    let records = unsafe { batch.as_ref() }.map(|batch| &batch.records[..]);
    // SAFETY: as this function's.
    if let Some(count) = unsafe { count.as_mut() } {
        *count = records.map_or(0, <[_]>::len);
    }
    records.map_or(std::ptr::null(), <[_]>::as_ptr)
}

/// Frees the batch, and the memory that its records are in if nothing else reads there. A null pointer is nothing.
///
/// # Safety
/// `batch` is null, or was made by this library and is not used again: neither are its records' bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tailwater_batch_free(batch: *mut TailwaterBatch) {
    // SAFETY: as this function's.
    unsafe { free(batch) }
}
