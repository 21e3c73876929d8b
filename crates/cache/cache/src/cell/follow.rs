//! Following what changes in a cell: for whoever keeps copies of its values.
//!
//! Each backend tells in which order keys have changed there. A change that a quorum acknowledged is in the order of
//! two of the key's replicas, so it is told though one backend of the cell is not heard. It may be told three times.
//!
//! What can't be told is said: from then on any key may have changed. Where a key has one replica that is each gap of a
//! backend. Where it has three, it takes gaps of two backends that one change fits into, which is under way for
//! [`MUTATIONS_SETTLE`] at most; or one gap in which a backend may have copied keys from another one. What one backend
//! applied in its gap another one may apply that much later. So a gap is *settled* when the others were heard that long
//! after it, or do not answer, which is said. It is said at the beginning and whenever the cell's configuration has
//! changed, too.
//!
//! A backend tells of a change before another one may have applied it. Who gets the key then may get the value before.
//! So a change that one backend alone tells of is told once more when nothing of it is under way any more.
//!
//! All is decided by [`FollowedBackends`], from what backends answer and when, and by [`OpenChanges`].

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use prost::Message;
use tailwater_env::Instant;
use tailwater_rma::CallError;

use super::{Cell, Mode};
use crate::layout::KeyHash;
use crate::limits::{CHANGES_OPEN_MAX, CHANGES_WAIT, MUTATIONS_SETTLE};
use crate::protocol::{ChangesReply, ChangesRequest, METHOD_CHANGES, REFUSED_CONFIG};
use crate::version::Version;

/// The pause before a backend is asked again that did not answer.
const ASK_AGAIN: Duration = Duration::from_millis(100);

/// What has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CellNews {
    /// The keys with these hashes, or some of them. A key may be told more than once.
    Keys(Vec<KeyHash>),
    /// Any key may have.
    Everything,
}

/// What changes in a cell from when it was made on; see [`Cell::follow`].
pub struct CellFollower {
    cell: Cell,
    asked: FuturesUnordered<BoxFuture<'static, AskedBackend>>,
    following: FollowedBackends,
    /// What was not answered yet.
    told: VecDeque<CellNews>,
}

/// How it went to ask a backend.
struct AskedBackend {
    number: u32,
    config_id: u64,
    asked: Instant,
    /// `None`: it did not answer.
    reply: Option<ChangesReply>,
}

impl Cell {
    /// Follows what changes. The first thing told is [`CellNews::Everything`]: of what was got before that nothing is
    /// said. It costs each backend two CALLs a second, and one for each batch of changes.
    pub fn follow(&self) -> CellFollower {
        let following = FollowedBackends::default();
        CellFollower { cell: self.clone(), asked: FuturesUnordered::new(), following, told: VecDeque::new() }
    }
}

impl CellFollower {
    /// What has changed next. Whoever keeps values that he got by quorum, and forgets those that this tells of, keeps
    /// none that was replaced before [`CellFollower::as_of`]. A value that is being got while its key is told is not to
    /// be kept. One that is got within [`MUTATIONS_SETTLE`] after that may be the one before the change, which is told
    /// again: by the next backend that applies it, or when it can't be under way any more. Values that expire do so by
    /// the reader's clock, and are not told of; nor are those that are removed for room, which have not changed.
    /// Cancelling it loses nothing. Who does not call it for long is told that everything may have changed.
    pub async fn next(&mut self) -> CellNews {
        loop {
            if let Some(told) = self.told.pop_front() {
                return told;
            }
            self.ask();
            let Some(answered) = self.asked.next().await else { continue };
            self.take(answered);
        }
    }

    /// Every change is told that was acknowledged before then; `None` if that is not known. It follows the clock by
    /// about two seconds, and falls behind where backends are not heard.
    pub fn as_of(&self) -> Option<Instant> {
        // What is not answered yet is not told.
        self.told.is_empty().then(|| self.following.as_of()).flatten()
    }

    /// Whether some backend was never heard.
    #[cfg(test)]
    pub(super) fn is_open(&self) -> bool {
        self.following.backends.values().any(|followed| !followed.has_answered)
    }

    /// Asks all backends that are not being asked.
    fn ask(&mut self) {
        let inner = self.cell.inner();
        let numbers = inner.replicas.iter().map(|replica| replica.number);
        self.following.go_by(inner.config_id, inner.mode, numbers);
        self.following.open.is_changing = inner.other.is_some();
        for replica in &inner.replicas {
            let Some((order, told)) = self.following.begin_asking(replica.number) else { continue };
            let (inner, replica) = (std::sync::Arc::clone(&inner), std::sync::Arc::clone(replica));
            self.asked.push(Box::pin(async move {
                let (env, config_id) = (&inner.env, inner.config_id);
                let asked = env.now();
                let request = ChangesRequest { config_id, order, told }.encode_to_vec();
                let reply = async {
                    let live = replica.live()?;
                    let call = live.connection.call(METHOD_CHANGES, request.into());
                    // Nothing changes for a while, and then it takes its time to look.
                    match env.timeout(inner.deadline + 4 * CHANGES_WAIT, call).await? {
                        Ok(reply) => ChangesReply::decode(reply).ok(),
                        Err(CallError::Lost(_)) => {
                            replica.give_up(&live);
                            None
                        }
                        Err(CallError::Refused { code: REFUSED_CONFIG, .. }) => {
                            replica.doubt();
                            None
                        }
                        Err(CallError::Refused { .. } | CallError::Overloaded { .. }) => None,
                    }
                };
                let reply = reply.await;
                if reply.is_none() {
                    env.sleep(ASK_AGAIN).await;
                }
                AskedBackend { number: replica.number, config_id, asked, reply }
            }));
        }
    }

    fn take(&mut self, answered: AskedBackend) {
        let now = self.cell.shared.env.now();
        let is_loaded = self.cell.inner().generation.is_some();
        let AskedBackend { number, config_id, asked, reply } = answered;
        let changes = self.following.answered(number, config_id, asked, reply, now);
        // What is loaded has keys of its own, and changes as a whole.
        self.told.extend(changes.into_iter().filter(|change| !is_loaded || *change == CellNews::Everything));
    }
}

/// How far each backend was followed, and what follows from that.
#[derive(Default)]
pub(super) struct FollowedBackends {
    config_id: u64,
    /// A change is told though so many backends are not heard.
    spare: usize,
    backends: BTreeMap<u32, Followed>,
    /// Whether the begin under this configuration was told.
    has_begun: bool,
    open: OpenChanges,
}

/// Changes of which some backends have told and others may yet, where a quorum is more than one of them.
#[derive(Default)]
struct OpenChanges {
    /// The latest that is known of each key.
    of: BTreeMap<KeyHash, OpenChange>,
    /// Those of which one backend alone has told, by until when it had told all before.
    lone: BTreeSet<(Option<Instant>, KeyHash)>,
    /// By when they were told first.
    order: VecDeque<(Instant, KeyHash)>,
    /// There were too many: when that was, and until when all was told before the oldest one.
    left_out: Option<(Instant, Option<Instant>)>,
    /// The cell's backends change: two of those before and two of those after acknowledge, so two that have told may be
    /// no quorum.
    is_changing: bool,
}

#[derive(Clone, Copy)]
struct OpenChange {
    version: Version,
    /// Who told first.
    number: u32,
    told: Instant,
    /// Until when that one had told all before.
    since: Option<Instant>,
    is_lone: bool,
}

impl OpenChanges {
    /// A backend that had told all up to `since` has told of a change.
    fn hear(&mut self, hash: KeyHash, version: Version, number: u32, since: Option<Instant>, now: Instant) {
        match self.of.get_mut(&hash) {
            Some(known) if known.version == version => {
                if known.number == number || self.is_changing {
                    return;
                }
                if known.is_lone {
                    known.is_lone = false;
                    self.lone.remove(&(known.since, hash));
                } else {
                    // A key has three replicas.
                    self.of.remove(&hash);
                }
                return;
            }
            Some(known) if known.version > version => return,
            Some(known) => drop(self.lone.remove(&(known.since, hash))),
            None => {}
        }
        self.of.insert(hash, OpenChange { version, number, told: now, since, is_lone: true });
        self.lone.insert((since, hash));
        self.order.push_back((now, hash));
        while self.order.len() > CHANGES_OPEN_MAX {
            let Some(change) = self.pop() else { continue };
            let (_, since) = self.left_out.unwrap_or((now, change.since));
            self.left_out = Some((now, since.min(change.since)));
        }
    }

    /// The first one in order, if one backend alone has told of it.
    fn pop(&mut self) -> Option<OpenChange> {
        let (told, hash) = self.order.pop_front()?;
        // It may be a later one of the key.
        let change = *self.of.get(&hash).filter(|change| change.told == told)?;
        self.of.remove(&hash);
        self.lone.remove(&(change.since, hash)).then_some(change)
    }

    /// What is to be told once more.
    fn due(&mut self, now: Instant) -> Option<CellNews> {
        let is_over = |told: Instant| now.since(told) >= MUTATIONS_SETTLE;
        let mut keys = Vec::new();
        while let Some((_, hash)) = self.order.front().copied().filter(|(told, _)| is_over(*told)) {
            if self.pop().is_some() {
                keys.push(hash);
            }
        }
        if self.left_out.is_some_and(|(when, _)| is_over(when)) {
            self.left_out = None;
            return Some(CellNews::Everything);
        }
        (!keys.is_empty()).then_some(CellNews::Keys(keys))
    }

    /// Until when all is told more than once, if it is `as_of` otherwise.
    fn as_of(&self, as_of: Option<Instant>) -> Option<Instant> {
        let lone = self.lone.first().map_or(as_of, |(since, _)| *since);
        let left_out = self.left_out.map_or(as_of, |(_, since)| since);
        as_of.min(lone).min(left_out)
    }
}

/// One backend.
#[derive(Default)]
struct Followed {
    is_asked: bool,
    /// Its order, and how many changes of that were told. 0 and 0: it never answered.
    place: (u64, u64),
    /// It did not answer when it was asked last.
    is_lost: bool,
    /// It answered under this configuration.
    has_answered: bool,
    /// All that it applied before then was told, but for what was in a gap.
    heard: Option<Instant>,
    gap: Option<FollowedGap>,
}

/// The last gap of a backend, and those before it that were not settled.
#[derive(Clone, Copy)]
struct FollowedGap {
    /// None where it began with ourselves.
    begin: Option<Instant>,
    end: Instant,
    is_settled: bool,
}

impl FollowedGap {
    /// Nothing that was applied in it is applied by another one from then on.
    fn settles(&self) -> Instant {
        self.end + MUTATIONS_SETTLE
    }
}

impl Followed {
    /// Whether it may have missed to tell of something that another one applied at `from` or later.
    fn lacks(&self, from: Option<Instant>) -> bool {
        let reaches = |gap: FollowedGap| from.is_none_or(|from| gap.settles() >= from);
        self.is_lost || self.place.0 == 0 || self.gap.is_some_and(reaches)
    }

    /// Until when it has told all that it applied.
    fn told(&self) -> Option<Instant> {
        match self.gap {
            Some(FollowedGap { begin, is_settled: false, .. }) => begin,
            _ => self.heard,
        }
    }
}

impl FollowedBackends {
    /// The cell has this configuration by now.
    pub(super) fn go_by(&mut self, config_id: u64, mode: Mode, numbers: impl Iterator<Item = u32>) {
        if self.config_id == config_id {
            return;
        }
        (self.config_id, self.has_begun) = (config_id, false);
        self.spare = match mode {
            Mode::R32 => 1,
            Mode::R1 | Mode::R2Immutable => 0,
        };
        let mut before = std::mem::take(&mut self.backends);
        for number in numbers {
            let followed = before.remove(&number).unwrap_or_default();
            self.backends.insert(number, Followed { has_answered: false, ..followed });
        }
    }

    /// The place behind which a backend is to be asked; `None` if it is being asked.
    pub(super) fn begin_asking(&mut self, number: u32) -> Option<(u64, u64)> {
        let followed = self.backends.get_mut(&number).filter(|followed| !followed.is_asked)?;
        followed.is_asked = true;
        Some(followed.place)
    }

    /// A backend that was asked at `asked` has answered by `now`, or has not.
    pub(super) fn answered(
        &mut self,
        number: u32,
        config_id: u64,
        asked: Instant,
        reply: Option<ChangesReply>,
        now: Instant,
    ) -> Vec<CellNews> {
        let Some(followed) = self.backends.get_mut(&number) else { return Vec::new() };
        followed.is_asked = false;
        let hashes = reply.as_ref().and_then(ChangesReply::decode_hashes);
        let (Some(reply), Some(hashes)) = (reply, hashes) else {
            followed.is_lost = true;
            let is_untold = self.settle(now) && self.has_begun;
            let everything = is_untold.then_some(CellNews::Everything);
            return everything.into_iter().chain(self.open.due(now)).collect();
        };
        // Those that are not settled are one gap with this one.
        let begin = followed.told();
        followed.is_lost = false;
        followed.has_answered |= config_id == self.config_id;
        followed.place = (reply.order, reply.told);
        let mut changes: Vec<CellNews> = self.open.due(now).into_iter().collect();
        if self.spare > 0 {
            for (hash, version) in hashes.iter().zip(reply.decode_versions()) {
                // What is copied is at two replicas when that is told.
                if version != Version::ZERO {
                    self.open.hear(*hash, version, number, begin, now);
                }
            }
        }
        if !hashes.is_empty() {
            changes.push(CellNews::Keys(hashes));
        }
        if reply.is_gap {
            // The one replica has applied it, and who gets it from now on gets that.
            let is_settled = self.spare == 0;
            followed.gap = Some(FollowedGap { begin, end: now, is_settled });
        }
        if reply.is_all {
            followed.heard = followed.heard.max(Some(asked));
        }
        let others = || self.backends.iter().filter(|(other, _)| **other != number);
        // What one replica alone had is told by who copies it, and by nobody else.
        let is_alone = self.spare == 0 || reply.has_copied;
        let is_untold = reply.is_gap && (is_alone || others().any(|(_, other)| other.lacks(begin)));
        let is_untold = self.settle(now) || is_untold;
        let open = self.backends.values().filter(|followed| !followed.has_answered).count();
        let begins = !self.has_begun && open <= self.spare;
        self.has_begun |= begins;
        if begins || is_untold && self.has_begun {
            changes.push(CellNews::Everything);
        }
        changes
    }

    /// Settles gaps. Whether something may have been lost in one, together with a backend that does not answer.
    fn settle(&mut self, now: Instant) -> bool {
        let mut is_untold = false;
        let numbers: Vec<u32> = self.backends.keys().copied().collect();
        for number in numbers {
            let gap = self.backends[&number].gap.filter(|gap| !gap.is_settled && gap.settles() <= now);
            let Some(gap) = gap else { continue };
            let others = self.backends.iter().filter(|(other, _)| **other != number);
            let unheard: Vec<&Followed> =
                others.map(|(_, other)| other).filter(|other| other.heard < Some(gap.settles())).collect();
            if unheard.iter().any(|other| !other.is_lost) {
                // It may still tell.
                continue;
            }
            is_untold |= !unheard.is_empty();
            let settled = Some(FollowedGap { is_settled: true, ..gap });
            self.backends.entry(number).and_modify(|followed| followed.gap = settled);
        }
        is_untold
    }

    pub(super) fn as_of(&self) -> Option<Instant> {
        let mut told: Vec<Option<Instant>> = self.backends.values().map(Followed::told).collect();
        told.sort_unstable();
        // The one that is furthest behind is not needed, if there is a spare one.
        self.open.as_of(told.get(self.spare).copied().flatten()).filter(|_| self.has_begun)
    }
}
