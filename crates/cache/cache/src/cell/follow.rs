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
//! All is decided by [`FollowedBackends`], from what backends answer and when.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use prost::Message;
use tailwater_env::Instant;
use tailwater_rma::CallError;

use super::{Cell, Mode};
use crate::layout::KeyHash;
use crate::limits::{CHANGES_WAIT, MUTATIONS_SETTLE};
use crate::protocol::{ChangesReply, ChangesRequest, METHOD_CHANGES, REFUSED_CONFIG};

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
    /// again by the next backend that applies it: if that one is not heard, and the third one misses the change, that
    /// value stays. Values that expire do so by the reader's clock, and are not told of; nor are those that are removed
    /// for room, which have not changed. Cancelling it loses nothing. Who does not call it for long is told that
    /// everything may have changed.
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
            return is_untold.then_some(CellNews::Everything).into_iter().collect();
        };
        // Those that are not settled are one gap with this one.
        let begin = followed.told();
        followed.is_lost = false;
        followed.has_answered |= config_id == self.config_id;
        followed.place = (reply.order, reply.told);
        let mut changes = Vec::new();
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
        told.get(self.spare).copied().flatten().filter(|_| self.has_begun)
    }
}
