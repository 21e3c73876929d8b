//! Cells: keys and values in memory, read one-sidedly.

use std::ffi::{CString, c_char};

use bytes::Bytes;
use futures::FutureExt;
use tailwater_cache::{
    BackendPlace, Backends, CasError, Cell, CellConfig, ItemExtras, Lookup, SetError, UpdateError, Version,
};
use tailwater_rma::Address;

use crate::client::{OptionsGiven, TailwaterClient, TailwaterOptions, check_deadline, client_of};
use crate::given::{TailwaterBytes, array, handle, wanted_text};
use crate::notifier::TailwaterNotifier;
use crate::operation::{Brought, TailwaterOperation, start, take};
use crate::runtime::{LibraryRuntime, free};
use crate::status::{
    NotDone, TailwaterChanged, TailwaterFound, TailwaterStatus, TailwaterVersion, c_text, inconclusive,
    is_consistent,
};

/// A cell. Opaque. Any threads may use it at the same time.
pub struct TailwaterCell {
    cell: Cell,
}

/// A key, the value that it is to have, and for how long.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TailwaterItem {
    /// The key: 1 KiB at most.
    pub key: TailwaterBytes,
    /// The value: 1 MiB at most.
    pub value: TailwaterBytes,
    /// Milliseconds after which the key has no value any more. 0: it keeps it as long as the cell has room.
    pub ttl_ms: u64,
}

/// What a lookup says of one key.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TailwaterLookup {
    /// How it ended.
    pub found: TailwaterFound,
    /// The version of the value, for a hit.
    pub version: TailwaterVersion,
    /// The value, for a hit. Good until the operation is freed.
    pub value: TailwaterBytes,
    /// When the value expires, in milliseconds since 1970; 0: it does not.
    pub expires_ms: u64,
    /// Why nothing can be said, or an empty text. Good until the operation is freed.
    pub why: *const c_char,
}

/// What came of the change of one key.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TailwaterChange {
    /// What.
    pub changed: TailwaterChanged,
    /// The version that the key has since, or the other one that it is at.
    pub version: TailwaterVersion,
    /// Why it was not made, or not known to be; an empty text if it was. Good until the operation is freed.
    pub why: *const c_char,
}

/// Lookups, as C sees them.
pub(crate) struct LookupsTold {
    told: Vec<TailwaterLookup>,
    /// What some of them borrow from. So do those with a value from the operation's lookups.
    _whys: Vec<CString>,
}

/// How changes of keys ended.
pub(crate) struct ChangesMade(Vec<(TailwaterChanged, Version, CString)>);

impl LookupsTold {
    fn of(lookups: &[Lookup]) -> Self {
        let mut whys = Vec::new();
        let told = lookups.iter().map(|lookup| {
            let mut told = TailwaterLookup {
                found: TailwaterFound::Miss,
                version: TailwaterVersion::default(),
                value: TailwaterBytes::NONE,
                expires_ms: 0,
                why: c"".as_ptr(),
            };
            match lookup {
                Lookup::Hit { version, value, extras } => {
                    told.found = TailwaterFound::Hit;
                    told.version = (*version).into();
                    told.value = TailwaterBytes::lent(value);
                    told.expires_ms = extras.expires_ms;
                }
                Lookup::Miss => {}
                Lookup::Failed(failure) => {
                    told.found = TailwaterFound::Inconclusive;
                    let why = c_text(&inconclusive(*failure));
                    // The text's memory stays where it is when the vector grows.
                    told.why = why.as_ptr();
                    whys.push(why);
                }
            }
            told
        });
        let told = told.collect();
        Self { told, _whys: whys }
    }
}

impl ChangesMade {
    fn of_sets(results: Vec<Result<Version, SetError>>) -> Self {
        let of_one = |result| match result {
            Ok(version) => (TailwaterChanged::Applied, version, CString::default()),
            Err(error @ (SetError::Deadline | SetError::Unreachable)) => {
                let why = format!("it is not known whether the key was changed: {error}");
                (TailwaterChanged::Unknown, Version::ZERO, c_text(&why))
            }
            Err(error) => (TailwaterChanged::Failed, Version::ZERO, c_text(&error.to_string())),
        };
        Self(results.into_iter().map(of_one).collect())
    }

    fn of_cas(result: Result<Version, CasError>) -> Self {
        let one = match result {
            Ok(version) => (TailwaterChanged::Applied, version, CString::default()),
            Err(error @ CasError::Other(held)) => {
                (TailwaterChanged::OtherVersion, held, c_text(&error.to_string()))
            }
            Err(CasError::Absent) => {
                (TailwaterChanged::Absent, Version::ZERO, c_text(&CasError::Absent.to_string()))
            }
            Err(CasError::Update(error)) => {
                let changed = match error {
                    UpdateError::Unknown => TailwaterChanged::Unknown,
                    _ => TailwaterChanged::Failed,
                };
                (changed, Version::ZERO, c_text(&error.to_string()))
            }
        };
        Self(vec![one])
    }

    /// As C sees them. They borrow from this.
    fn told(&self) -> Vec<TailwaterChange> {
        let told = |(changed, version, why): &(TailwaterChanged, Version, CString)| TailwaterChange {
            changed: *changed,
            version: (*version).into(),
            why: why.as_ptr(),
        };
        self.0.iter().map(told).collect()
    }
}

/// What a value has beside it that lives for so many milliseconds from now on.
fn extras(library: &LibraryRuntime, ttl_ms: u64) -> ItemExtras {
    let now_ms = u64::try_from(library.env.wall_ms()).unwrap_or(0);
    let expires_ms = if ttl_ms == 0 { 0 } else { now_ms.saturating_add(ttl_ms) };
    ItemExtras { expires_ms, tag: 0, token: 0 }
}

/// Opens the cell that a backend at one of `seeds` belongs to: `unix:PATH`, `tcp:HOST:PORT` or `tls:HOST:PORT`, as
/// `tailwater cell describe` shows them. The first one that answers tells of the others; each has two seconds.
/// `tailwater_operation_cell` takes what it brings.
///
/// # Safety
/// There are `count` texts at `seeds`, each ending with a 0; `options` is null or valid, `notifier` null or not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tailwater_cell_at(
    seeds: *const *const c_char,
    count: usize,
    options: *const TailwaterOptions,
    notifier: *const TailwaterNotifier,
    tag: u64,
) -> *mut TailwaterOperation {
    // SAFETY: as this function's.
    unsafe {
        start(notifier, tag, |library| {
            let seed = |seed: &*const c_char| {
                let address = wanted_text(*seed, "seeds")?;
                address.parse::<Address>().map_err(|error| NotDone::invalid(error.to_string()))?;
                Ok(BackendPlace::new(0, vec![address]))
            };
            let places: Vec<BackendPlace> =
                array(seeds, count, "seeds")?.iter().map(seed).collect::<Result<_, NotDone>>()?;
            if places.is_empty() {
                return Err(NotDone::invalid(
                    "no seed: name a backend of the cell, as unix:PATH or tcp:HOST:PORT",
                ));
            }
            let OptionsGiven { config, deadline_ms } = crate::client::options(&library.env, options)?;
            let connector = Backends::by_address_with(&library.env, config.dialer);
            let client_id = library.env.random_u64() as u32;
            let opening = async move {
                let change = |config: &mut CellConfig| set_deadline(config, deadline_ms);
                let opened = Cell::at_seeds(&library.env, connector, &places, client_id, change).await;
                let no_seed = |why| {
                    let why = format!("no backend of the cell can be asked: {why}");
                    NotDone::new(TailwaterStatus::Unreachable, why)
                };
                opened.map(Brought::Cell).map_err(no_seed)
            };
            Ok(opening.boxed())
        })
    }
}

/// Opens the cell of that name, which was created at the client's node. `deadline_ms` is the longest that one of its
/// operations takes; 0: as the node says. The cell needs the client no more. `tailwater_operation_cell` takes what it
/// brings.
///
/// # Safety
/// `client` is not freed, `name` ends with a 0, `notifier` is null or not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tailwater_client_cell(
    client: *const TailwaterClient,
    name: *const c_char,
    deadline_ms: u32,
    notifier: *const TailwaterNotifier,
    tag: u64,
) -> *mut TailwaterOperation {
    // SAFETY: as this function's.
    unsafe {
        start(notifier, tag, |_| {
            let client = client_of(client)?;
            let name = wanted_text(name, "name")?;
            check_deadline(deadline_ms)?;
            let opening = async move {
                Ok(Brought::Cell(client.cell(&name, |config| set_deadline(config, deadline_ms)).await?))
            };
            Ok(opening.boxed())
        })
    }
}

/// Sets how long operations take, if it is said.
fn set_deadline(config: &mut CellConfig, deadline_ms: u32) {
    if deadline_ms > 0 {
        config.deadline = std::time::Duration::from_millis(deadline_ms.into());
    }
}

/// Looks `count` keys up, at once. `mode` is a number of TailwaterLookupMode. `tailwater_operation_lookups` has what it
/// brings, in the order of the keys.
///
/// # Safety
/// `cell` is not freed, there are `count` keys, `notifier` is null or not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tailwater_cell_get(
    cell: *const TailwaterCell,
    keys: *const TailwaterBytes,
    count: usize,
    mode: u32,
    notifier: *const TailwaterNotifier,
    tag: u64,
) -> *mut TailwaterOperation {
    // SAFETY: as this function's.
    unsafe {
        start(notifier, tag, |_| {
            let cell = cell_of(cell)?;
            let keys = keys_of(keys, count)?;
            let is_consistent = is_consistent(mode)?;
            let looking = async move {
                Ok(Brought::Lookups(match is_consistent {
                    true => cell.get_consistent(&keys).await,
                    false => cell.get_relaxed(&keys).await,
                }))
            };
            Ok(looking.boxed())
        })
    }
}

/// Sets `count` keys, at once. `tailwater_operation_changes` has what came of it, in their order.
///
/// # Safety
/// `cell` is not freed, there are `count` items, `notifier` is null or not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tailwater_cell_set(
    cell: *const TailwaterCell,
    items: *const TailwaterItem,
    count: usize,
    notifier: *const TailwaterNotifier,
    tag: u64,
) -> *mut TailwaterOperation {
    // SAFETY: as this function's.
    unsafe {
        start(notifier, tag, |library| {
            let cell = cell_of(cell)?;
            let item = |item: &TailwaterItem| {
                Ok((item.key.copied("key")?, item.value.copied("value")?, extras(library, item.ttl_ms)))
            };
            let items =
                array(items, count, "items")?.iter().map(item).collect::<Result<Vec<_>, NotDone>>()?;
            let setting =
                async move { Ok(Brought::Changes(ChangesMade::of_sets(cell.set_with(items).await))) };
            Ok(setting.boxed())
        })
    }
}

/// Sets a key if it is at the version `expected`, or has no value where that is null.
/// `tailwater_operation_changes` has what came of it.
///
/// # Safety
/// `cell` is not freed, `item` is valid, `expected` is null or valid, `notifier` is null or not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tailwater_cell_cas(
    cell: *const TailwaterCell,
    item: *const TailwaterItem,
    expected: *const TailwaterVersion,
    notifier: *const TailwaterNotifier,
    tag: u64,
) -> *mut TailwaterOperation {
    // SAFETY: as this function's.
    unsafe {
        start(notifier, tag, |library| {
            let cell = cell_of(cell)?;
            let item = handle(item, "item")?;
            let (key, value) = (item.key.copied("key")?, item.value.copied("value")?);
            let extras = extras(library, item.ttl_ms);
            let expected = expected.as_ref().map(|version| Version::from(*version));
            let exchanging = async move {
                Ok(Brought::Changes(ChangesMade::of_cas(cell.cas(key, expected, value, extras).await)))
            };
            Ok(exchanging.boxed())
        })
    }
}

/// Deletes `count` keys, at once. `tailwater_operation_changes` has what came of it, in their order. A key that
/// has no value is deleted, too.
///
/// # Safety
/// As `tailwater_cell_get`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tailwater_cell_delete(
    cell: *const TailwaterCell,
    keys: *const TailwaterBytes,
    count: usize,
    notifier: *const TailwaterNotifier,
    tag: u64,
) -> *mut TailwaterOperation {
    // SAFETY: as this function's.
    unsafe {
        start(notifier, tag, |_| {
            let cell = cell_of(cell)?;
            let keys = keys_of(keys, count)?;
            let deleting = async move { Ok(Brought::Changes(ChangesMade::of_sets(cell.erase(keys).await))) };
            Ok(deleting.boxed())
        })
    }
}

/// Takes the cell out of an operation that is done; null if there is none. The caller frees it.
///
/// # Safety
/// As `tailwater_operation_wait`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tailwater_operation_cell(operation: *mut TailwaterOperation) -> *mut TailwaterCell {
    let pick = |brought| match brought {
        Brought::Cell(cell) => Ok(cell),
        other => Err(other),
    };
    // SAFETY: as this function's.
    let taken = unsafe { take(operation, pick) };
    taken.map_or(std::ptr::null_mut(), |cell| Box::into_raw(Box::new(TailwaterCell { cell })))
}

/// What a lookup that is done says of each key, and in `count` of how many; null and 0 if there is nothing. Good until
/// the operation is freed.
///
/// # Safety
/// As `tailwater_operation_wait`; `count` can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tailwater_operation_lookups(
    operation: *mut TailwaterOperation,
    count: *mut usize,
) -> *const TailwaterLookup {
    // SAFETY: as this function's.
    unsafe {
        tell(operation, count, |operation| match (&operation.lookups, &operation.outcome) {
            (Some(told), _) => Some((told.told.as_ptr(), told.told.len())),
            (None, Ok(Brought::Lookups(lookups))) => {
                let told = operation.lookups.insert(LookupsTold::of(lookups));
                Some((told.told.as_ptr(), told.told.len()))
            }
            _ => None,
        })
    }
}

/// What came of the change of each key, and in `count` of how many; null and 0 if there is nothing. Good until the
/// operation is freed.
///
/// # Safety
/// As `tailwater_operation_lookups`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tailwater_operation_changes(
    operation: *mut TailwaterOperation,
    count: *mut usize,
) -> *const TailwaterChange {
    // SAFETY: as this function's.
    unsafe {
        tell(operation, count, |operation| match (&operation.changes, &operation.outcome) {
            (Some(told), _) => Some((told.as_ptr(), told.len())),
            (None, Ok(Brought::Changes(made))) => {
                let told = operation.changes.insert(made.told());
                Some((told.as_ptr(), told.len()))
            }
            _ => None,
        })
    }
}

/// Answers an array that is the operation's.
///
/// # Safety
/// As `tailwater_operation_lookups`.
unsafe fn tell<T>(
    operation: *mut TailwaterOperation,
    count: *mut usize,
    of: impl FnOnce(&mut TailwaterOperation) -> Option<(*const T, usize)>,
) -> *const T {
    // SAFETY: as this function's.
    let told = unsafe {
        // What is done may not have been asked yet.
        crate::tailwater_operation_status(operation);
        operation.as_mut().and_then(of)
    };
    let (first, len) = told.unwrap_or((std::ptr::null(), 0));
    // SAFETY: as this function's.
    if let Some(count) = unsafe { count.as_mut() } {
        *count = len;
    }
    first
}

/// Frees the cell. A null pointer is nothing.
///
/// # Safety
/// `cell` is null, or was made by this library and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tailwater_cell_free(cell: *mut TailwaterCell) {
    // SAFETY: as this function's.
    unsafe { free(cell) }
}

/// The cell of a handle.
///
/// # Safety
/// `cell` is null, or is not freed.
unsafe fn cell_of(cell: *const TailwaterCell) -> Result<Cell, NotDone> {
    // SAFETY: as this function's.
    Ok(unsafe { handle(cell, "cell") }?.cell.clone())
}

/// Copies of keys.
///
/// # Safety
/// As [`array`], and each as [`TailwaterBytes::copied`].
unsafe fn keys_of(keys: *const TailwaterBytes, count: usize) -> Result<Vec<Bytes>, NotDone> {
    // SAFETY: as this function's.
    unsafe { array(keys, count, "keys")?.iter().map(|key| key.copied("key")).collect() }
}
