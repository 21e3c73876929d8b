//! What backends of one cell tell each other: that one has started, and what they hold.
//!
//! A backend that has started again has forgotten what it applied and promised before. So it *joins* the others before
//! it takes its first SET ([`crate::protocol::METHOD_JOIN`]). Each of them answers with a version above all that it
//! ever applied or promised, and at least [`JOIN_CLOCKS_APART`] ahead of its wall clock, and applies nothing at or
//! below it any more. The highest of them is the *floor* of the backend that joins. So:
//! - What the start before applied together with another backend is below the floor. No SET that this start applies,
//!   and no promise that it makes, is below that.
//! - What was under way, acknowledged by the start before and not applied by another backend yet, is refused there: its
//!   client makes it again at a higher version. It counts nobody who has forgotten it. An update that was promised is
//!   refused as well, and what the start before told others of what it held is not copied any more.
//!
//! Then it copies what the others hold ([`super::refill`]).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;
use prost::Message;
use tailwater_rma::Refusal;
use tokio::sync::Notify;

use super::{Backend, malformed};
use crate::cell::Mode;
use crate::configuration::Configuration;
use crate::layout::KeyHash;
use crate::limits::{BUCKETS_PER_SCAN, BUCKETS_PER_STEP, JOIN_CLOCKS_APART};
use crate::protocol::{JoinReply, JoinRequest, REFUSED_UNFILLED, ScanReply, ScanRequest};
use crate::version::Version;

/// Where a backend stands with the others of its cell.
#[derive(Default)]
pub(super) struct BackendCohort {
    /// It can reach them. Otherwise nobody refills it, and it takes what it holds for all there is.
    is_refilled: AtomicBool,
    /// It has not joined them yet, and takes no SETs.
    is_closed: AtomicBool,
    /// Of each other backend that has joined, which start of it that was, and what it was told. At most one for each
    /// backend of the cell.
    joined: Mutex<BTreeMap<u32, (u64, Version)>>,
    pub(super) scans: AtomicU64,
    pub(super) scanned_config_id: AtomicU64,
    /// Keys that the last comparison found to be missed here, but for what was under way.
    pub(super) dirty: AtomicU64,
    pub(super) copied_bytes: AtomicU64,
    /// What keeps it from being refilled.
    pub(super) hindrance: Mutex<String>,
    /// There is another configuration.
    pub(super) changed: Arc<Notify>,
}

impl Backend {
    /// From now on the backend is refilled. Said before it is told a configuration.
    pub(super) fn will_be_refilled(&self) {
        self.cohort.is_refilled.store(true, Ordering::Relaxed);
    }

    /// Begins to be backend `number` in a cell, with nothing: it does not know what it should hold, unless nobody else
    /// holds that either, or nobody refills it.
    pub(super) fn begin_in(&self, configuration: &Configuration, number: u32) {
        let has_others = configuration.mode != Mode::R1 && configuration.place_of(number).is_some();
        let is_unfilled = has_others && self.cohort.is_refilled.load(Ordering::Relaxed);
        self.cohort.is_closed.store(is_unfilled, Ordering::Release);
        match is_unfilled {
            true => self.table.lock().begin_unfilled(),
            false => self.table.lock().end_unfilled(),
        }
        self.for_all_buckets(|buckets| self.table.lock().flag_buckets(buckets));
    }

    /// Whether it has joined the others, if there are any.
    pub(super) fn has_joined(&self) -> bool {
        !self.cohort.is_closed.load(Ordering::Acquire)
    }

    /// It has: all that its start before knew is below `floor`.
    pub(super) fn joined_above(&self, floor: Version) {
        self.table.lock().raise_floor(floor);
        self.cohort.is_closed.store(false, Ordering::Release);
    }

    /// Whether it knows what it should hold.
    pub fn is_filled(&self) -> bool {
        self.table.lock().is_filled()
    }

    /// Whether it would be asked what there is of a key, and does not know.
    pub(super) fn is_asked_in_vain(&self, hash: KeyHash) -> bool {
        // A key that it is going to hold, and is not read of, it need not know.
        let is_read = || {
            let told = self.told()?;
            Some(told.is_read(hash, told.configuration.place_of(told.number)?))
        };
        // Never both locks at once: whoever configures the backend takes them the other way round.
        let is_unknown = self.table.lock().is_unknown(hash);
        is_unknown && is_read().unwrap_or(true)
    }

    /// Before it has joined the others it neither applies nor promises anything.
    pub(super) fn check_joined(&self) -> Result<(), Refusal> {
        match self.has_joined() {
            true => Ok(()),
            false => Err(unfilled(
                "this backend has started again, and has not reached the others of its cell yet",
            )),
        }
    }

    /// Takes note that another backend has started, and tells it above what it may apply SETs.
    pub(super) fn join(&self, payload: Bytes) -> Result<Bytes, Refusal> {
        let request = JoinRequest::decode(payload).map_err(|error| malformed(&error.to_string()))?;
        let told = self.told().filter(|told| told.configuration.place_of(request.number).is_some());
        let told = told.ok_or_else(|| malformed("a backend that is not of this cell"))?;
        let ahead = self.version_ahead();
        let mut joined = self.cohort.joined.lock();
        let mut table = self.table.lock();
        Self::check_config(table.config_id(), request.config_id)?;
        joined.retain(|number, _| told.configuration.place_of(*number).is_some());
        let floor = match joined.get(&request.number) {
            // The same start once more: nothing of it can be lost by now.
            Some((instance, floor)) if *instance == request.instance => *floor,
            _ => {
                let floor = table.highest().max(ahead);
                table.raise_floor(floor);
                joined.insert(request.number, (request.instance, floor));
                floor
            }
        };
        Ok(JoinReply::of(floor).encode_to_vec().into())
    }

    /// Above what any client makes now, as far as clocks agree.
    fn version_ahead(&self) -> Version {
        let wall_us = u64::try_from(self.env.wall_ms()).unwrap_or(0).saturating_mul(1_000);
        let ahead_us = u64::try_from(JOIN_CLOCKS_APART.as_micros()).unwrap_or(u64::MAX);
        let timestamp_us = wall_us.saturating_add(ahead_us);
        Version { timestamp_us, client_id: u32::MAX, sequence: u32::MAX }
    }

    /// The cell was emptied: there is nothing to be refilled with. So a cell that has lost too much to be refilled goes
    /// on.
    pub(super) fn begin_empty(&self) {
        if self.has_joined() && self.is_filled() {
            return;
        }
        self.joined_above(self.version_ahead());
        self.filled_up_to(None);
        self.write_header();
    }

    /// Tells another backend which of its keys this one holds.
    pub(super) fn scan(&self, payload: Bytes) -> Result<Bytes, Refusal> {
        let request = ScanRequest::decode(payload).map_err(|error| malformed(&error.to_string()))?;
        let told = self.told().ok_or_else(|| malformed("this backend knows no configuration"))?;
        let place = told.configuration.place_of(request.number);
        let place = place.ok_or_else(|| malformed("a backend that is not of this cell"))?;
        let table = self.table.lock();
        Self::check_config(table.config_id(), request.config_id)?;
        let is_its_own = |hash| told.holds(hash, place);
        let part = table.scan(request.from, BUCKETS_PER_SCAN, is_its_own);
        let forgotten = table.forgotten();
        drop(table);
        let reply = ScanReply {
            held: ScanReply::pairs(&part.held),
            erased: ScanReply::pairs(&part.erased),
            forgotten: Bytes::copy_from_slice(&forgotten.to_bytes()),
            next: part.next.unwrap_or(0),
            is_known: part.is_known,
        };
        Ok(reply.encode_to_vec().into())
    }

    /// Keys with hashes whose lower half is below `next`, or all, are held if they should be.
    pub(super) fn filled_up_to(&self, next: Option<u64>) {
        while self.table.lock().fill_up_to(next, BUCKETS_PER_STEP) {}
    }
}

impl Backend {
    /// Whether it knows what it holds of keys with hashes whose lower half is below `next`, or of all.
    pub(super) fn knows_up_to(&self, next: Option<u64>) -> bool {
        let buckets = self.config.buckets;
        let behind = next.map_or(buckets, |next| KeyHash::bucket_of(next.saturating_sub(1), buckets) + 1);
        self.table.lock().filled_buckets() >= behind
    }

    /// It was compared with all others, which may have erased or removed keys at `forgotten` or below. It had missed
    /// something of `dirty` keys.
    pub(super) fn has_passed(&self, configuration: &Configuration, forgotten: Version, dirty: u64) {
        let was_filled = self.is_filled();
        if !was_filled {
            self.table.lock().forget_up_to(forgotten);
            self.filled_up_to(None);
            self.write_header();
            let copied = self.table.lock().counts().copied;
            tracing::info!(cell = configuration.name, copied, "cache backend refilled");
        }
        self.cohort.dirty.store(dirty, Ordering::Relaxed);
        self.cohort.scans.fetch_add(1, Ordering::Relaxed);
        // Last: who sees it sees what the comparison found.
        self.cohort.scanned_config_id.store(configuration.id, Ordering::Release);
    }

    /// Some bytes of items came from another backend.
    pub(super) fn note_copied(&self, bytes: usize) {
        self.cohort.copied_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

/// A refusal of a backend that does not know enough yet.
pub(super) fn unfilled(why: &str) -> Refusal {
    Refusal { code: REFUSED_UNFILLED, message: why.to_owned() }
}
