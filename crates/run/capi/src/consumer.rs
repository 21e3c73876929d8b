//! The one-sided consumer of the log.

use std::collections::BTreeMap;
use std::ffi::c_char;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use parking_lot::Mutex;
use tailwater_client::{Batch, Consumer, Start};
use tailwater_format::Offset;
use tokio::sync::{Mutex as WaitingMutex, OwnedMutexGuard};

use crate::client::{TailwaterClient, client_of};
use crate::given::{array, handle, wanted_text};
use crate::notifier::TailwaterNotifier;
use crate::operation::{Brought, TailwaterOperation, start, take};
use crate::runtime::free;
use crate::status::{NotDone, TailwaterStatus};

/// Reads shards of a stream, in order for each. Opaque. Any threads may use it; one poll at a time is under way.
pub struct TailwaterConsumer {
    shared: Arc<ConsumerShared>,
}

/// Where to begin.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TailwaterStart {
    /// A shard of the stream.
    pub shard: u32,
    /// What `value` means: a number of TailwaterStartKind.
    pub kind: u32,
    /// An offset, a number of records or a time, as `kind` says; else nothing.
    pub value: i64,
}

/// Where a consumer goes on in a shard.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TailwaterPosition {
    /// The shard.
    pub shard: u32,
    /// The offset of the record that is handed out next.
    pub next_offset: u64,
}

/// What a consumer's polls and its handle share.
pub(crate) struct ConsumerShared {
    reading: Arc<WaitingMutex<ConsumerReading>>,
    /// Behind what the caller has taken.
    positions: Mutex<BTreeMap<u32, u64>>,
}

struct ConsumerReading {
    consumer: Consumer,
    /// Records of a poll whose operation was freed: they come next.
    returned: Option<Batch>,
}

/// What a poll brought. No other poll begins before it is taken; if it never is, the next poll brings it.
pub(crate) struct PolledBatch {
    shared: Arc<ConsumerShared>,
    reading: OwnedMutexGuard<ConsumerReading>,
    batch: Option<Batch>,
}

impl PolledBatch {
    /// The records are the caller's now.
    pub(crate) fn take(mut self) -> Option<Batch> {
        let batch = self.batch.take()?;
        self.shared.positions.lock().insert(batch.shard, batch.next_offset().0);
        Some(batch)
    }
}

impl Drop for PolledBatch {
    fn drop(&mut self) {
        if let Some(batch) = self.batch.take() {
            self.reading.returned = Some(batch);
        }
    }
}

/// Where to begin, checked.
fn start_of(given: TailwaterStart) -> Result<Start, NotDone> {
    let TailwaterStart { kind, value, .. } = given;
    let number = |what: &str| {
        u64::try_from(value).map_err(|_| NotDone::invalid(format!("{value} is no {what}: it is 0 or more")))
    };
    match kind {
        0 => Ok(Start::Beginning),
        1 => Ok(Start::End),
        2 => Ok(Start::Offset(Offset(number("offset")?))),
        3 => Ok(Start::Last(number("number of records")?)),
        4 => Ok(Start::TimeMs(value)),
        other => {
            Err(NotDone::invalid(format!("{other} is no place to begin: use one of TailwaterStartKind")))
        }
    }
}

/// Opens a consumer of the stream of that name. It reads the `count` shards at `starts`, each from its own place on.
/// With `is_every_shard` there is one start, whose shard means nothing: that of all shards.
/// `tailwater_operation_consumer` takes what it brings.
///
/// # Safety
/// `client` is not freed, `stream` ends with a 0, there are `count` starts, `notifier` is null or not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tailwater_consumer_open(
    client: *const TailwaterClient,
    stream: *const c_char,
    starts: *const TailwaterStart,
    count: usize,
    is_every_shard: bool,
    notifier: *const TailwaterNotifier,
    tag: u64,
) -> *mut TailwaterOperation {
    // SAFETY: as this function's.
    unsafe {
        self::start(notifier, tag, |_| {
            let client = client_of(client)?;
            let stream = wanted_text(stream, "stream")?;
            let given = array(starts, count, "starts")?;
            let starts: BTreeMap<u32, Start> = given
                .iter()
                .map(|start| Ok((start.shard, start_of(*start)?)))
                .collect::<Result<_, NotDone>>()?;
            if starts.len() != given.len() || starts.is_empty() || is_every_shard && starts.len() != 1 {
                return Err(NotDone::invalid("starts: give one for each shard, or one for all of them"));
            }
            let opening = async move {
                let stream = client.stream(&stream).await?;
                let every = starts.values().next().copied().filter(|_| is_every_shard);
                let starts = match every {
                    Some(start) => (0..stream.shards).map(|shard| (shard, start)).collect(),
                    None => starts.into_iter().collect(),
                };
                let consumer = client.consumer_at(stream, starts).await?;
                let positions = consumer.offsets().map(|(shard, offset)| (shard, offset.0)).collect();
                let reading = Arc::new(WaitingMutex::new(ConsumerReading { consumer, returned: None }));
                Ok(Brought::Consumer(Arc::new(ConsumerShared { reading, positions: Mutex::new(positions) })))
            };
            Ok(opening.boxed())
        })
    }
}

/// Asks for the next records of any shard. It is done when there are some, or after `timeout_ms` milliseconds without
/// any; a negative number is as long as it takes, and 0 takes only what is there. `tailwater_operation_batch` takes
/// what it brings.
///
/// One poll is under way at a time, and its batch is taken, or its operation freed, before the next one: else that one
/// ends as `Busy`. After `Truncated` the next poll goes on with the oldest records that are left.
///
/// # Safety
/// `consumer` is not freed, `notifier` is null or not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tailwater_consumer_poll(
    consumer: *const TailwaterConsumer,
    timeout_ms: i64,
    notifier: *const TailwaterNotifier,
    tag: u64,
) -> *mut TailwaterOperation {
    // SAFETY: as this function's.
    unsafe {
        self::start(notifier, tag, |_| {
            let shared = Arc::clone(&handle(consumer, "consumer")?.shared);
            let within = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
            let reading = Arc::clone(&shared.reading).try_lock_owned().map_err(|_| {
                let why =
                    "another poll of this consumer is under way, or its batch was not taken: one at a time";
                NotDone::new(TailwaterStatus::Busy, why)
            })?;
            let polling = async move {
                let mut reading = reading;
                let batch = match reading.returned.take() {
                    Some(returned) => Some(returned),
                    None => match within {
                        Some(within) => reading.consumer.next_within(within).await?,
                        None => reading.consumer.next().await?,
                    },
                };
                Ok(Brought::Batch(batch.map(|batch| PolledBatch { shared, reading, batch: Some(batch) })))
            };
            Ok(polling.boxed())
        })
    }
}

/// Where the consumer goes on in each shard, behind what was taken of it: what to store in order to go on from here.
/// Writes `capacity` positions at most, and answers how many shards there are.
///
/// # Safety
/// `consumer` is not freed, and there is room for so many positions. With null pointers nothing is written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tailwater_consumer_positions(
    consumer: *const TailwaterConsumer,
    positions: *mut TailwaterPosition,
    capacity: usize,
) -> usize {
    // SAFETY: as this function's.
    let Some(consumer) = (unsafe { consumer.as_ref() }) else { return 0 };
    let known = consumer.shared.positions.lock();
    if !positions.is_null() {
        for (at, (shard, next_offset)) in known.iter().take(capacity).enumerate() {
            let position = TailwaterPosition { shard: *shard, next_offset: *next_offset };
            // SAFETY: `at` is below `capacity`, for which there is room. The caller's array need not be initialized.
            unsafe { positions.add(at).write_unaligned(position) };
        }
    }
    known.len()
}

/// Takes the consumer out of an operation that is done; null if there is none. The caller frees it.
///
/// # Safety
/// As `tailwater_operation_wait`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tailwater_operation_consumer(
    operation: *mut TailwaterOperation,
) -> *mut TailwaterConsumer {
    let pick = |brought| match brought {
        Brought::Consumer(shared) => Ok(shared),
        other => Err(other),
    };
    // SAFETY: as this function's.
    let taken = unsafe { take(operation, pick) };
    taken.map_or(std::ptr::null_mut(), |shared| Box::into_raw(Box::new(TailwaterConsumer { shared })))
}

/// Frees the consumer. Batches that were taken stay as they are. A null pointer is nothing.
///
/// # Safety
/// `consumer` is null, or was made by this library and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tailwater_consumer_free(consumer: *mut TailwaterConsumer) {
    // SAFETY: as this function's.
    unsafe { free(consumer) }
}
