//! Updates: a key is changed by what it holds, at once for everybody.
//!
//! In two steps. First the replicas are asked what they hold, and to *promise* a version: nothing of the key below it
//! is applied any more. When a quorum has promised, the highest version among what they hold is what the key holds: a
//! mutation that only a minority has, and that may or may not have been answered, comes about with this. Then the
//! change is made of that, and goes to the replicas at the promised version; each applies it if nothing came in
//! between. A quorum that does has the update come about.
//!
//! Why at most one of two updates of the same value comes about: each has a quorum of promises, so some replica
//! promised both. It applies the lower one only before it promises the higher one, and then the higher one is told of
//! it.
//!
//! A change that a minority applied is open. The next round's promises tell: if its version is the highest, the round
//! finishes it; if the highest is lower, what this round makes of that has it come to nothing; if somebody went on
//! meanwhile, it stays unknown whether they went on from it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use prost::Message;
use tailwater_env::Instant;
use tailwater_rma::CallError;

use super::quorum::WriteQuorums;
use super::replica::Replica;
use super::{Cell, CellFailure, CellInner, set};
use crate::layout::{EncodedItem, Item, ItemExtras, KeyHash};
use crate::limits::{CONFIGURATION_RETRIES_MAX, KEY_BYTES_MAX, UPDATE_ROUNDS_MAX, VALUE_BYTES_MAX};
use crate::protocol::{
    METHOD_ACCEPT, METHOD_PROMISE, MutateReply, Outcome, PromiseReply, PromiseRequest, PromiseState,
    REFUSED_CONFIG, REFUSED_METHOD, REFUSED_UNFILLED, REFUSED_VERSION, encode_mutate,
};
use crate::version::Version;

/// The longest pause before the second round.
const PAUSE: Duration = Duration::from_millis(1);
/// How often it doubles before further rounds.
const PAUSE_DOUBLINGS_MAX: u32 = 4;

/// A value and what there is beside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CellValue {
    /// The version it was set at.
    pub version: Version,
    /// Its bytes.
    pub value: Bytes,
    /// What it has beside them.
    pub extras: ItemExtras,
}

/// What an update makes of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UpdateTo {
    /// Nothing: it stays as it is.
    Keep,
    /// This value.
    Set(Bytes, ItemExtras),
    /// No value.
    Erase,
}

/// What an update did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Updated {
    /// What the key held before, unless it had expired.
    pub before: Option<CellValue>,
    /// The version that it has since, or was erased at; `None` if it stayed as it is.
    pub version: Option<Version>,
}

/// Why an update did not come about, or that this is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UpdateError {
    /// Key or value are longer than the limits; nothing has changed.
    #[error("a key of {key_len} or a value of {value_len} bytes is too large")]
    TooLarge {
        /// Bytes of the key.
        key_len: usize,
        /// Bytes of the value.
        value_len: usize,
    },
    /// Nothing has changed, for this reason.
    #[error("nothing has changed: {0}")]
    NotApplied(CellFailure),
    /// Nothing has changed: others changed the key each time.
    #[error("nothing has changed: others change the key all the time")]
    Contended,
    /// Nothing has changed: the cell's keys can't be changed one by one.
    #[error("nothing has changed: the cell is in mode R2/Immutable, and is loaded as a whole")]
    Immutable,
    /// It may have come about, or come about later, or never.
    #[error("it is not known whether it came about: no quorum of its replicas answered")]
    Unknown,
}

/// Why a value was not exchanged for another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CasError {
    /// The key holds another version.
    #[error("the key is at version {0}")]
    Other(Version),
    /// The key holds nothing.
    #[error("the key has no value")]
    Absent,
    /// See there.
    #[error(transparent)]
    Update(#[from] UpdateError),
}

type Decide<'a> = dyn FnMut(Option<&CellValue>) -> UpdateTo + Send + 'a;

impl Cell {
    /// Changes a key by what it holds. `decide` says what is made of that, and is asked again each time that another
    /// change came in between; it must not wait. What it says of what stays as it is holds at a moment between the
    /// begin and the end of the call.
    pub async fn update(
        &self,
        key: Bytes,
        mut decide: impl FnMut(Option<&CellValue>) -> UpdateTo + Send,
    ) -> Result<Updated, UpdateError> {
        let mut inner = self.inner();
        if inner.mode.is_immutable() {
            return Err(UpdateError::Immutable);
        }
        if key.len() > KEY_BYTES_MAX {
            return Err(UpdateError::TooLarge { key_len: key.len(), value_len: 0 });
        }
        let mut doubts = self.shared.agreed.doubts();
        let deadline = inner.env.now() + inner.deadline;
        let mut open = Vec::new();
        let mut result = run(&inner, &key, &mut decide, deadline, &mut open).await;
        for _ in 0..CONFIGURATION_RETRIES_MAX {
            let is_cut_short = matches!(
                result,
                Err(UpdateError::NotApplied(CellFailure::Unreachable) | UpdateError::Unknown)
            );
            if !is_cut_short || !self.settled_after(doubts, &mut Some(deadline)).await {
                break;
            }
            // In this order: what changes in between is a doubt that came after.
            doubts = self.shared.agreed.doubts();
            inner = self.inner();
            result = run(&inner, &key, &mut decide, deadline, &mut open).await;
        }
        let counters = &inner.counters;
        match &result {
            Ok(_) => counters.updates.add(1),
            Err(UpdateError::Unknown) => counters.updates_unknown.add(1),
            Err(_) => counters.update_failures.add(1),
        }
        result
    }

    /// Sets a key to a value if it is at version `expected`, or has no value where that is `None`; answers its new
    /// version.
    pub async fn cas(
        &self,
        key: Bytes,
        expected: Option<Version>,
        value: Bytes,
        extras: ItemExtras,
    ) -> Result<Version, CasError> {
        let decide = |held: Option<&CellValue>| match held.map(|held| held.version) == expected {
            true => UpdateTo::Set(value.clone(), extras),
            false => UpdateTo::Keep,
        };
        let Updated { before, version } = self.update(key, decide).await?;
        match (version, before) {
            (Some(version), _) => Ok(version),
            (None, Some(held)) => Err(CasError::Other(held.version)),
            (None, None) => Err(CasError::Absent),
        }
    }

    /// Gives a key's value another expiry, and answers its new version; `None` if it has no value.
    pub async fn touch(&self, key: Bytes, expires_ms: u64) -> Result<Option<Version>, UpdateError> {
        let decide = |held: Option<&CellValue>| match held {
            Some(held) => UpdateTo::Set(held.value.clone(), ItemExtras { expires_ms, ..held.extras }),
            None => UpdateTo::Keep,
        };
        Ok(self.update(key, decide).await?.version)
    }
}

/// A round's change that some replica may have applied, and that may come about until another one has.
struct OpenUpdate {
    version: Version,
    before: Option<CellValue>,
}

/// What a replica that has promised holds.
enum PromisedState {
    Held(CellValue),
    Gone(Version),
}

impl PromisedState {
    fn version(&self) -> Version {
        match self {
            Self::Held(held) => held.version,
            Self::Gone(erased) => *erased,
        }
    }
}

/// What came of asking for promises.
enum UpdatePromises {
    /// A quorum's, of which all hold the same version or not; this is the highest.
    Promised { highest: PromisedState, is_same: bool },
    /// This version stands against it.
    Against(Version),
    /// Some have just started, or do not know of the key yet.
    NotYet,
}

/// Rounds until one comes to an end.
async fn run(
    cell: &CellInner,
    key: &Bytes,
    decide: &mut Decide<'_>,
    deadline: Instant,
    open: &mut Vec<OpenUpdate>,
) -> Result<Updated, UpdateError> {
    let mut why = UpdateError::Contended;
    for round in 0..UPDATE_ROUNDS_MAX {
        if round > 0 {
            cell.counters.update_retries.add(1);
            let bound = PAUSE.as_nanos() as u64 * (1 << (round - 1).min(PAUSE_DOUBLINGS_MAX));
            cell.env.sleep(Duration::from_nanos(cell.env.random_below(bound))).await;
        }
        if cell.env.now() >= deadline {
            why = UpdateError::NotApplied(CellFailure::Deadline);
            break;
        }
        match run_round(cell, key, decide, deadline, open).await {
            Ok(Some(updated)) => return Ok(updated),
            Ok(None) => {}
            Err(error) => {
                why = error;
                break;
            }
        }
    }
    Err(if open.is_empty() { why } else { UpdateError::Unknown })
}

/// One round; `None` if there has to be another one.
async fn run_round(
    cell: &CellInner,
    key: &Bytes,
    decide: &mut Decide<'_>,
    deadline: Instant,
    open: &mut Vec<OpenUpdate>,
) -> Result<Option<Updated>, UpdateError> {
    let version = cell.versions.next(cell.env.wall_ms());
    let promised = promises(cell, key, version, deadline).await.map_err(UpdateError::NotApplied)?;
    let (highest, is_same) = match promised {
        UpdatePromises::Promised { highest, is_same } => (highest, is_same),
        UpdatePromises::NotYet => return Ok(None),
        UpdatePromises::Against(against) => {
            let is_followed = cell.versions.follow(against, cell.env.wall_ms());
            return if is_followed { Ok(None) } else { Err(UpdateError::Contended) };
        }
    };
    let as_it_is = match &highest {
        PromisedState::Held(held) => Some((held.value.clone(), held.extras)),
        PromisedState::Gone(_) => None,
    };
    let finished = open.iter().find(|ours| ours.version == highest.version());
    if finished.is_none() && open.iter().any(|ours| ours.version < highest.version()) {
        return Err(UpdateError::Unknown);
    }
    let wall_ms = cell.env.wall_ms();
    let (before, to, is_kept) = match finished {
        Some(ours) => (ours.before.clone(), as_it_is, false),
        None => {
            let before = match highest {
                PromisedState::Held(held) => Some(held).filter(|held| !held.extras.is_expired(wall_ms)),
                PromisedState::Gone(_) => None,
            };
            match decide(before.as_ref()) {
                UpdateTo::Keep if is_same && open.is_empty() => {
                    return Ok(Some(Updated { before, version: None }));
                }
                // What a minority may have is made the quorum's, or comes to nothing, so that what was said of it
                // holds.
                UpdateTo::Keep => (before, as_it_is, true),
                UpdateTo::Set(value, extras) => (before, Some((value, extras)), false),
                UpdateTo::Erase => (before, None, false),
            }
        }
    };
    let value_len = to.as_ref().map_or(0, |(value, _)| value.len());
    if value_len > VALUE_BYTES_MAX {
        return Err(UpdateError::TooLarge { key_len: key.len(), value_len });
    }
    let extras = to.as_ref().map(|(_, extras)| *extras).unwrap_or_default();
    let item = EncodedItem::new(key, version, to.as_ref().map(|(value, _)| value), extras);
    match accepted(cell, key, &item, deadline).await {
        // A value that was written back has another version now.
        UpdateAccepted::Yes if is_kept => {
            let before = before.map(|before| CellValue { version, ..before });
            Ok(Some(Updated { before, version: None }))
        }
        UpdateAccepted::Yes => Ok(Some(Updated { before, version: Some(version) })),
        UpdateAccepted::No(against) => {
            cell.versions.follow(against, cell.env.wall_ms());
            Ok(None)
        }
        // Another round makes nothing of its own of what was written back.
        UpdateAccepted::Open if is_kept => Ok(None),
        UpdateAccepted::Open => {
            open.push(OpenUpdate { version, before });
            Ok(None)
        }
    }
}

/// Asks all replicas for a promise, and answers when a quorum has promised, or none can any more.
async fn promises(
    cell: &CellInner,
    key: &Bytes,
    version: Version,
    deadline: Instant,
) -> Result<UpdatePromises, CellFailure> {
    let hash = KeyHash::of(key);
    let payload: Bytes = PromiseRequest::of(cell.config_id, hash, version).encode_to_vec().into();
    let mut asked: FuturesUnordered<_> = cell
        .writers(hash)
        .map(|(backend, of)| {
            let answer = call(cell, &cell.replicas[backend], METHOD_PROMISE, vec![payload.clone()]);
            async move { (of, answer.await) }
        })
        .collect();
    let mut missing = MissingAcks::of(cell);
    let mut states: Vec<PromisedState> = Vec::with_capacity(cell.mode.replicas());
    let (mut against, mut is_not_yet) = (None, false);
    while !missing.is_none() {
        let left = deadline.since(cell.env.now());
        let Some(answer) = cell.env.timeout(left, asked.next()).await else {
            return Err(CellFailure::Deadline);
        };
        let Some((of, answer)) = answer else {
            return match against {
                Some(against) => Ok(UpdatePromises::Against(against)),
                None if is_not_yet => Ok(UpdatePromises::NotYet),
                None => Err(CellFailure::Unreachable),
            };
        };
        is_not_yet |= matches!(answer, Err(NoReply::NotYet));
        let said = answer.ok().and_then(|bytes| PromiseReply::decode(bytes).ok());
        let said = said.and_then(PromiseReply::promised);
        match said {
            Some(Ok(state)) => {
                let Some(state) = proven(state, key) else { continue };
                missing.count(of);
                // Who is not read need not know what there is.
                states.extend(Some(state).filter(|_| of.read || cell.reads_both));
            }
            Some(Err(version)) => against = against.max(Some(version)),
            None => {}
        }
    }
    let is_same = states.iter().all(|state| state.version() == states[0].version());
    let highest = states.into_iter().max_by_key(PromisedState::version).ok_or(CellFailure::Unreachable)?;
    Ok(UpdatePromises::Promised { highest, is_same })
}

/// How many replicas are still missing to a quorum, of those that are read and of the others.
struct MissingAcks {
    read: usize,
    other: usize,
}

impl MissingAcks {
    fn of(cell: &CellInner) -> Self {
        let quorum = cell.mode.quorum();
        Self { read: quorum, other: if cell.other.is_some() { quorum } else { 0 } }
    }

    fn count(&mut self, of: WriteQuorums) {
        self.read = self.read.saturating_sub(usize::from(of.read));
        self.other = self.other.saturating_sub(usize::from(of.other));
    }

    fn is_none(&self) -> bool {
        self.read == 0 && self.other == 0
    }
}

/// What a replica says it holds, if that proves itself.
fn proven(state: PromiseState, key: &Bytes) -> Option<PromisedState> {
    let bytes = match state {
        PromiseState::Gone(erased) => return Some(PromisedState::Gone(erased)),
        PromiseState::Held(bytes) => bytes,
    };
    let item = Item::parse(&bytes).ok()?;
    if item.key != key || item.tombstone {
        // Another key with the same hash: this one takes its place.
        return Some(PromisedState::Gone(Version::ZERO));
    }
    let begin = item.value_offset();
    let value = bytes.slice(begin..begin + item.value.len());
    Some(PromisedState::Held(CellValue { version: item.version, value, extras: item.extras }))
}

/// Whether a quorum applied what it had promised.
enum UpdateAccepted {
    Yes,
    /// No replica has, and none will: this version stood against it.
    No(Version),
    /// Some replica may have.
    Open,
}

async fn accepted(cell: &CellInner, key: &Bytes, item: &EncodedItem, deadline: Instant) -> UpdateAccepted {
    let pieces = encode_mutate(cell.config_id, item.pieces());
    let mut asked: FuturesUnordered<_> = cell
        .writers(KeyHash::of(key))
        .map(|(backend, of)| {
            let answer = call(cell, &cell.replicas[backend], METHOD_ACCEPT, pieces.clone());
            async move { (backend, of, answer.await) }
        })
        .collect();
    let mut missing = MissingAcks::of(cell);
    let (mut is_open, mut refused) = (false, Vec::new());
    let mut against = Version::ZERO;
    while !missing.is_none() {
        let left = deadline.since(cell.env.now());
        let Some(answer) = cell.env.timeout(left, asked.next()).await else { return UpdateAccepted::Open };
        let Some((backend, of, answer)) = answer else {
            return if is_open { UpdateAccepted::Open } else { UpdateAccepted::No(against) };
        };
        let outcomes = match answer {
            Ok(bytes) => MutateReply::decode(bytes).ok().and_then(|of| of.outcomes(1)),
            Err(NoReply::NotDone | NoReply::NotYet) => continue,
            Err(NoReply::Unknown) => None,
        };
        match outcomes.as_deref() {
            Some([Outcome::Superseded(version) | Outcome::BelowSummary(version)]) => {
                refused.push(backend);
                against = against.max(*version);
            }
            Some([Outcome::Applied]) => {
                missing.count(of);
                is_open = true;
            }
            _ => is_open = true,
        }
    }
    refused.into_iter().for_each(|backend| set::mend(cell, backend, item, deadline));
    UpdateAccepted::Yes
}

/// That a replica has not answered a CALL.
#[derive(Clone, Copy, PartialEq, Eq)]
enum NoReply {
    /// It was not sent, or refused as a whole: nothing of it was carried out.
    NotDone,
    /// The same, as the backend has just started.
    NotYet,
    /// It may have been carried out.
    Unknown,
}

/// A replica's answer, if there is one to be had.
async fn call(
    cell: &CellInner,
    replica: &Arc<Replica>,
    method: u16,
    pieces: Vec<Bytes>,
) -> Result<Bytes, NoReply> {
    let live = replica.live().ok_or(NoReply::NotDone)?;
    match live.connection.call_with_pieces(method, pieces).await {
        Ok(bytes) => {
            live.note_answer(&cell.env);
            cell.count_bytes(bytes.len());
            Ok(bytes)
        }
        Err(CallError::Overloaded { .. } | CallError::Refused { code: REFUSED_METHOD, .. }) => {
            Err(NoReply::NotDone)
        }
        Err(CallError::Refused { code: REFUSED_UNFILLED, .. }) => Err(NoReply::NotYet),
        Err(CallError::Refused { code: REFUSED_CONFIG, .. }) => {
            cell.agreed.doubt();
            replica.doubt();
            Err(NoReply::NotDone)
        }
        Err(error @ CallError::Refused { code: REFUSED_VERSION, .. }) => {
            tracing::warn!(peer = live.connection.peer(), %error, "cache update not taken: set the clock");
            Err(NoReply::NotDone)
        }
        Err(CallError::Refused { .. }) => {
            replica.give_up(&live);
            Err(NoReply::NotDone)
        }
        Err(CallError::Lost(_)) => {
            replica.give_up(&live);
            Err(NoReply::Unknown)
        }
    }
}
