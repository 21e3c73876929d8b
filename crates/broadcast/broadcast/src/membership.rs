//! Who is in a region's chain, and in which order (section 3.3): the configuration service's decisions, as a
//! step function. The shell keeps the chain in `meta`, and tells nobody of a chain before it is durable there.
//!
//! - A member that is not heard is removed, but not the last one: it alone has the events. Only if another replica
//!   wants to join, and the last one can't come back, that one begins a new chain. One that kept its events in memory
//!   can't if the other one has its address, so that it must have ended, or it was not heard for much longer. One with
//!   a disk can't if both are so: then the other one is there without that disk.
//! - A replica joins beyond the tail, and becomes the tail once the tail says that it has everything.
//! - A member that started again has what its disk kept, but the others may have gone on: it goes to the end as long as
//!   one of them is heard after that, or may be yet. If all of them started again the first goes on alone, and the
//!   others join it: whatever was acknowledged, or read, every member's disk has.
//! - A member that lives and does not move on keeps all publishers waiting, so it is removed if that lasts for
//!   [`STUCK_SILENCES_MIN`] times as long as silence may, and another one whose disk goes on is heard after that.
//!   Members say what they wait for ([`Waits`]), and whom that points to is found so:
//!   - A disk that stands still is its owner's own word, and its owner goes.
//!   - A member before whom the next one does not move on waits as well, as what it holds is what all behind it hold.
//!     So it is the last one of those that wait who knows, and who waits for its own disk is not believed about another
//!     one.
//!   - If the one that does not move on hears nothing of the one before it, their link is broken, and either could go:
//!     it is the one that has no other neighbour to whom its link works. If that says nothing, the one behind goes.
//!   - A joining replica to which the tail hands over is removed likewise, and always it: the tail's disk has the
//!     events.
//!   - What is said of another one changes when the chain does, when a further link breaks, and when one speaks that
//!     was not heard yet, and who says it hears of that later. So nobody is removed for it before it has pointed to the
//!     same one, in the same epoch, for as long as silence may last; it counts that much earlier for that.
//!   - In a new epoch it counts once all members have said what they wait for in it, or had half of that time.
//! - One that was removed for that is let in again later, after twice as long each time that it is soon removed again:
//!   however a fault comes and goes, publishers wait ever less often.
//! - A chain that none of the members before it is in begins anew, with a lineage that is greater than that of the
//!   chain before and of what any replica says it has: nobody left is sure to have what was acknowledged. It begins
//!   with the replica that has most, of those that want to join and of those that are kept out.
//! - A service whose metadata has no chain can't tell a region's first start from metadata that is lost. It listens for
//!   as long as silence may last before it begins one: replicas that were in another chain connect again meanwhile and
//!   say what they have. What a member of the last chain has is all that was acknowledged, and one that was a member in
//!   a later epoch than another one misses nothing that the other one has and was acknowledged. So of those that were
//!   heard it is the last lineage, then the last epoch, then most events.
//! - Every change has a greater epoch, which fences those that do not know it yet. With metadata that is lost they go
//!   on from the clock ([`unbegun`]), and from what any replica says that it knows.

use std::collections::{BTreeMap, BTreeSet};

use crate::message::{Chain, Has, Member, ReplicaId, Waits};

/// Replicas of one chain, joining ones included.
pub const MEMBERS_MAX: usize = 16;
/// A member that does not move on though it could is removed after so many times as long as one that is silent.
pub const STUCK_SILENCES_MIN: u64 = 5;
/// How often the time is doubled that a member stays out after it was removed for that. At first it is as many silences
/// as [`STUCK_SILENCES_MIN`].
const DOUBLED_MAX: u32 = 4;
/// Removed members whose time outside is remembered.
const STUCK_MAX: usize = 64;
/// Replicas that are known beyond which those are forgotten that have no part in the chain, nor want one.
const SEEN_MAX: usize = 128;

#[derive(Debug)]
struct MembershipSeen {
    at_ms: u64,
    durable: bool,
    /// Whether this service has heard it, or only found it in the chain when it started itself.
    heard: bool,
    /// What it waits for, once it said that in this epoch.
    waits: Option<Waits>,
    /// What it has, as it said last, and of which epoch it knew.
    has: Has,
    epoch: u64,
}

/// What this service knows of a member of the chain, best first. The best one that a member has decides who stays:
///
/// | state   | it is                                                       | if it is the best one                    |
/// |---------|-------------------------------------------------------------|------------------------------------------|
/// | sure    | heard, since another one started as well                    | `Sure` and `Unsure` stay                 |
/// | unsure  | not silent, and not heard since this service or one started | all stay, until more is known            |
/// | started | heard, and started again: it has what its disk kept         | the first one stays, others join it      |
/// | silent  | not heard, and may come back                                | all stay; if one would join, `Lost` goes |
/// | lost    | not there, and can't come back                              | all stay; if one would join, all go      |
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum MemberState {
    Sure,
    Unsure,
    Started,
    Silent,
    Lost,
}

/// Who says of a replica that it does not move on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Word {
    Own,
    Others,
}

/// That a replica was removed because it did not move on.
#[derive(Clone, Copy, Debug)]
struct Stuck {
    at_ms: u64,
    /// For how long it is kept out.
    out_ms: u64,
}

/// The configuration service of one region.
#[derive(Debug)]
pub struct Membership {
    chain: Chain,
    seen: BTreeMap<ReplicaId, MembershipSeen>,
    caught_up: BTreeSet<ReplicaId>,
    joins: Vec<Member>,
    /// Those that started again, and when.
    started: BTreeMap<ReplicaId, u64>,
    /// Whether what becomes of those that started depends on whether others are heard.
    waits: bool,
    /// Who does not move on, by whose word, and since when they say so.
    stuck: Option<((ReplicaId, Word), u64)>,
    /// Whom the next chain leaves out for that, and when.
    leaves: Option<(ReplicaId, u64)>,
    /// Who was.
    removed: BTreeMap<ReplicaId, Stuck>,
    /// Those of them that want to join, and are kept out.
    kept_out: BTreeMap<ReplicaId, Member>,
    /// When this service last decided, and when the chain was decided that is in force.
    now_ms: u64,
    changed_ms: u64,
    /// Since when it listens before it begins a chain, until it has.
    listens_ms: Option<u64>,
    silence_ms: u64,
    lost_ms: u64,
}

/// A chain that has not begun, for metadata that has none. There may have been other metadata, and replicas that know
/// chains of that, here and in other regions. So its lineage and its epoch are made of the clock: milliseconds since
/// 1970, and for the lineage 20 bits at random for two that begin together. What is counted up from them stays behind
/// the clock.
pub fn unbegun(region: &str, wall_ms: u64, random: u64) -> Chain {
    let lineage = (wall_ms << 20 | random >> 44) & (u64::MAX >> 1);
    Chain { epoch: wall_ms, lineage, region: region.to_owned(), ..Chain::default() }
}

/// A lineage or an epoch that is counted on from: none is so great that nothing comes after it.
fn counted_on(number: u64) -> u64 {
    if number >> 63 == 0 { number } else { 0 }
}

impl Membership {
    /// The service, with the chain that was last durable. A member that is silent for `silence_ms` is removed if
    /// there is another; the last one, if it kept its events in memory, is given up after `lost_ms`. Both count from
    /// `now_ms` on for those that were not heard yet. A chain without members is begun after `silence_ms`.
    pub fn new(now_ms: u64, chain: Chain, silence_ms: u64, lost_ms: u64) -> Self {
        let replicas = chain.members.iter().chain(&chain.joining);
        let comes_back = |id: ReplicaId| id & 1 == 0;
        let listens_ms = chain.members.is_empty().then_some(now_ms);
        let seen = replicas
            .map(|member| {
                let durable = comes_back(member.id);
                let seen = MembershipSeen {
                    at_ms: now_ms,
                    durable,
                    heard: false,
                    waits: None,
                    has: Has::default(),
                    epoch: 0,
                };
                (member.id, seen)
            })
            .collect();
        Self {
            chain,
            seen,
            caught_up: BTreeSet::new(),
            joins: Vec::new(),
            started: BTreeMap::new(),
            waits: false,
            stuck: None,
            leaves: None,
            now_ms,
            changed_ms: now_ms,
            listens_ms,
            removed: BTreeMap::new(),
            kept_out: BTreeMap::new(),
            silence_ms,
            lost_ms,
        }
    }

    /// The chain that is in force.
    pub fn chain(&self) -> &Chain {
        &self.chain
    }

    /// A replica wants to be in the chain; a member says where it listens now. One that `started` loses its place
    /// if there is another member: it may have lost some of what it acknowledged.
    pub fn join(&mut self, now_ms: u64, member: Member, durable: bool, started: bool) {
        if started && self.started.len() < MEMBERS_MAX {
            self.started.entry(member.id).or_insert(now_ms);
        }
        let (has, epoch) = self.seen.get(&member.id).map(|seen| (seen.has, seen.epoch)).unwrap_or_default();
        if self.seen.len() >= SEEN_MAX {
            let Self { chain, joins, kept_out, .. } = self;
            let replicas = chain.members.iter().chain(&chain.joining).chain(&*joins).chain(kept_out.values());
            let known: BTreeSet<ReplicaId> = replicas.map(|member| member.id).collect();
            self.seen.retain(|id, _| known.contains(id));
        }
        self.seen.insert(
            member.id,
            MembershipSeen { at_ms: now_ms, durable, heard: true, waits: None, has, epoch },
        );
        if self.may_join(now_ms, member.id) {
            self.kept_out.remove(&member.id);
        } else {
            self.kept_out.insert(member.id, member.clone());
        }
        self.caught_up.remove(&member.id);
        // Whoever asks again keeps its turn: of several that have nothing the first one is the head.
        if let Some(known) = self.joins.iter_mut().find(|other| other.id == member.id) {
            *known = member;
        } else if self.joins.len() < MEMBERS_MAX {
            self.joins.push(member);
        }
    }

    /// A replica is alive, and waits for something, perhaps; the tail knows who caught up.
    pub fn alive(&mut self, now_ms: u64, id: ReplicaId, epoch: u64, caught_up: &[ReplicaId], waits: Waits) {
        if let Some(seen) = self.seen.get_mut(&id) {
            seen.at_ms = now_ms;
            seen.heard = true;
            seen.epoch = epoch;
            // Of another chain it says nothing about this one.
            seen.waits = (epoch == self.chain.epoch).then_some(waits);
        }
        if self.chain.tail() == Some(id) && epoch == self.chain.epoch {
            self.caught_up = caught_up.iter().copied().collect();
        }
    }

    /// What a replica says that it has.
    pub fn has(&mut self, id: ReplicaId, has: Has) {
        if let Some(seen) = self.seen.get_mut(&id) {
            seen.has = has;
        }
    }

    /// For so long nobody was listened to: it does not count as their silence.
    pub fn did_not_listen(&mut self, ms: u64) {
        self.seen.values_mut().for_each(|seen| seen.at_ms += ms);
        self.started.values_mut().for_each(|at_ms| *at_ms += ms);
        if let Some((_, found_ms)) = &mut self.stuck {
            *found_ms += ms;
        }
        self.changed_ms += ms;
        self.listens_ms = self.listens_ms.map(|since_ms| since_ms + ms);
    }

    /// The chain that should be next, if another one than now; it is in force once [`Membership::changed`] was
    /// called with it.
    pub fn next(&mut self, now_ms: u64) -> Option<Chain> {
        self.now_ms = now_ms;
        self.listens_ms =
            self.listens_ms.filter(|since_ms| now_ms.saturating_sub(*since_ms) <= self.silence_ms);
        if self.listens_ms.is_some() {
            return None;
        }
        let mut next = self.chain.clone();
        next.joining.retain(|member| !self.is_silent(member.id));
        self.keep_members(&mut next);
        let begins = next.members.is_empty();
        self.let_in(&mut next, begins);
        self.promote(&mut next, begins);
        self.begin_anew(&mut next);
        // Whoever is joining and started again begins anew with whom it follows, which a new epoch tells that one.
        let begins_anew = |member: &Member| member.id & 1 == 0 && self.started.contains_key(&member.id);
        if next == self.chain && !next.joining.iter().any(begins_anew) {
            if !self.waits {
                self.joins.clear();
                self.started.clear();
            }
            return None;
        }
        next.epoch += 1;
        Some(next)
    }

    fn is_silent(&self, id: ReplicaId) -> bool {
        let at_ms = self.seen.get(&id).map(|seen| seen.at_ms);
        at_ms.is_none_or(|at_ms| self.now_ms.saturating_sub(at_ms) > self.silence_ms)
    }

    /// What is known of a member of the chain.
    fn state_of(&self, member: &Member) -> MemberState {
        // Another replica has its address, so it must have ended, and its memory with it.
        let mut others = self.joins.iter().chain(&self.chain.joining);
        let has_successor = others.any(|o| o.address == member.address && o.id != member.id);
        let Some(seen) = self.seen.get(&member.id) else { return MemberState::Lost };
        // One that was heard last before another one started may have ended as well.
        let last_start_ms = self.started.values().max().copied().unwrap_or(0);
        if !seen.durable && has_successor {
            MemberState::Lost
        } else if self.is_silent(member.id) {
            let silent_ms = self.now_ms.saturating_sub(seen.at_ms);
            let can_not_come_back = !seen.durable || has_successor;
            let is_lost = can_not_come_back && silent_ms > self.lost_ms;
            if is_lost { MemberState::Lost } else { MemberState::Silent }
        } else if self.started.contains_key(&member.id) {
            MemberState::Started
        } else if seen.heard && seen.at_ms >= last_start_ms {
            MemberState::Sure
        } else {
            MemberState::Unsure
        }
    }

    /// Leaves those members in the next chain that stay: the best state that one has decides ([`MemberState`]).
    fn keep_members(&mut self, next: &mut Chain) {
        (self.waits, self.leaves) = (false, None);
        let best = next.members.iter().map(|member| self.state_of(member)).min();
        match best {
            Some(MemberState::Sure) => {
                next.members.retain(|member| self.state_of(member) <= MemberState::Unsure);
                self.leave_stuck_out(next);
            }
            Some(MemberState::Unsure) => self.waits = true,
            Some(MemberState::Started) => {
                next.members.retain(|member| self.state_of(member) == MemberState::Started);
                let others = next.members.split_off(1);
                next.joining.extend(others);
            }
            Some(MemberState::Silent | MemberState::Lost)
                if !self.joins.is_empty() || !next.joining.is_empty() =>
            {
                next.members.retain(|member| self.state_of(member) == MemberState::Silent);
            }
            Some(MemberState::Silent | MemberState::Lost) | None => {}
        }
    }

    /// Leaves out who keeps the chain from moving on, once that is sure and another member goes on without it.
    fn leave_stuck_out(&mut self, next: &mut Chain) {
        let now_ms = self.now_ms;
        let stuck = self.who_is_stuck();
        if self.stuck.map(|(stuck, _)| stuck) != stuck {
            self.stuck = stuck.map(|stuck| (stuck, now_ms));
        }
        let Some(((id, word), found_ms)) = self.stuck else { return };
        let sure_ms = found_ms + if word == Word::Others { self.silence_ms } else { 0 };
        let goes_on = |other: &Member| {
            let is_alive = self.seen.get(&other.id).is_some_and(|seen| seen.at_ms >= sure_ms);
            is_alive && self.state_of(other) == MemberState::Sure && !self.has_stuck_disk(other.id)
        };
        if next.members == self.chain.members
            && next.members.iter().filter(|other| other.id != id).any(goes_on)
        {
            next.members.retain(|member| member.id != id);
            next.joining.retain(|member| member.id != id);
            self.leaves = Some((id, now_ms));
        }
    }

    /// Lets those join that want to, and says where those listen that are in it. A chain that begins is joined by those
    /// that are kept out as well.
    fn let_in(&self, next: &mut Chain, begins: bool) {
        let kept_out = self.kept_out.values().filter(|member| begins && !self.is_silent(member.id));
        for member in self.joins.iter().chain(kept_out) {
            if let Some(known) =
                next.members.iter_mut().chain(&mut next.joining).find(|known| known.id == member.id)
            {
                known.address.clone_from(&member.address);
            } else if next.members.len() + next.joining.len() < MEMBERS_MAX
                && (begins || self.may_join(self.now_ms, member.id))
                && self.leaves() != Some(member.id)
            {
                next.joining.push(member.clone());
            }
        }
    }

    /// Makes a member of whoever caught up; of a chain that begins, of whoever has most.
    fn promote(&self, next: &mut Chain, begins: bool) {
        let first = if begins { self.who_has_most(&next.joining) } else { None };
        // One that started again since has only what its disk had.
        let caught_up =
            |member: &Member| self.caught_up.contains(&member.id) && !self.started.contains_key(&member.id);
        if let Some(at) = first.or_else(|| next.joining.iter().position(caught_up)) {
            next.members.push(next.joining.remove(at));
        }
    }

    /// Gives a chain that none of the members before it is in a lineage and an epoch that nobody knows yet.
    fn begin_anew(&self, next: &mut Chain) {
        let goes_on = next.members.iter().any(|member| self.chain.place(member.id).is_some());
        if goes_on || next.members.is_empty() {
            return;
        }
        // Of metadata that is lost nobody else knows the lineages and the epochs.
        for seen in self.seen.values() {
            next.lineage = next.lineage.max(counted_on(seen.has.lineage));
            next.epoch = next.epoch.max(counted_on(seen.epoch)).max(counted_on(seen.has.epoch));
        }
        next.lineage = next.lineage.wrapping_add(1);
    }

    /// The place of the replica that a chain should begin with: one that has events, of the last lineage, was a member
    /// last, has most, and is the first one of those that have as much.
    fn who_has_most(&self, replicas: &[Member]) -> Option<usize> {
        let has = |place: &usize| {
            let seen = replicas.get(*place).and_then(|member| self.seen.get(&member.id));
            let has = seen.map(|seen| seen.has).filter(|has| has.events > 0).unwrap_or_default();
            (counted_on(has.lineage), counted_on(has.epoch), has.events)
        };
        (0..replicas.len()).rev().max_by_key(has)
    }

    /// Whether a replica's disk stands still, or has for so long that it is no use to wait for it.
    fn has_stuck_disk(&self, id: ReplicaId) -> bool {
        self.waits_of(id).disk_ms.saturating_mul(2) >= self.stuck_ms()
    }

    /// Who keeps the chain from moving on: a member, or the joining replica that the tail hands over to. By its own
    /// word it has done so for too long; by that of others it will have if they say so for as long as silence may last.
    fn who_is_stuck(&self) -> Option<(ReplicaId, Word)> {
        // Whoever waits may wait for one that waits as well, and was not heard yet of this chain.
        let is_told = |member: &Member| self.seen.get(&member.id).is_some_and(|seen| seen.waits.is_some());
        let is_new = self.now_ms.saturating_sub(self.changed_ms) < self.stuck_ms() / 2;
        if is_new && !self.chain.members.iter().all(is_told) {
            return None;
        }
        let mut line: Vec<ReplicaId> = self.chain.members.iter().map(|member| member.id).collect();
        if let Some(id) = line.iter().find(|id| self.waits_of(**id).disk_ms >= self.stuck_ms()) {
            return Some((*id, Word::Own));
        }
        let members = line.len();
        let tails_next = line.last().and_then(|tail| self.waits_of(*tail).next);
        line.extend(
            self.chain.joining.iter().map(|m| m.id).find(|id| tails_next.is_some_and(|(of, _)| of == *id)),
        );
        let waits_ms = |place: usize| match (line.get(place), line.get(place + 1)) {
            (Some(id), Some(next)) => {
                let waits = self.waits_of(*id).next.filter(|(of, _)| of == next);
                waits.map_or(0, |(_, ms)| ms)
            }
            _ => 0,
        };
        let limit_ms = self.stuck_ms() - self.silence_ms;
        // Half as long is long enough for whoever is behind: it began to wait, or to say so, somewhat later.
        let is_long = |place: usize| waits_ms(place).saturating_mul(2) >= self.stuck_ms();
        let is_cut =
            |place: usize| line.get(place).is_some_and(|id| self.waits_of(*id).before_ms >= self.silence_ms);
        let mut before = (0..line.len()).find(|place| waits_ms(*place) >= limit_ms)?;
        while is_long(before + 1)
            && !is_cut(before + 1)
            && line.get(before + 1).is_some_and(|id| !self.has_stuck_disk(*id))
        {
            before += 1;
        }
        let behind = before + 1;
        if waits_ms(before) < limit_ms || line.get(before).is_none_or(|id| self.has_stuck_disk(*id)) {
            return None;
        }
        let is_alone = before > 0 && behind < members && is_cut(before);
        let behind_is_reached = behind + 1 < members && !is_cut(behind + 1);
        let is_fault_before = is_alone || (before == 0 && behind_is_reached);
        let goes = if is_cut(behind) && is_fault_before { before } else { behind };
        line.get(goes).map(|id| (*id, Word::Others))
    }

    fn waits_of(&self, id: ReplicaId) -> Waits {
        self.seen.get(&id).and_then(|seen| seen.waits).unwrap_or_default()
    }

    fn stuck_ms(&self) -> u64 {
        STUCK_SILENCES_MIN * self.silence_ms
    }

    /// Whether a replica was not removed a short while ago because it did not move on.
    fn may_join(&self, now_ms: u64, id: ReplicaId) -> bool {
        self.removed.get(&id).is_none_or(|stuck| now_ms.saturating_sub(stuck.at_ms) >= stuck.out_ms)
    }

    /// A replica is removed because it does not move on: it is kept out for longer if that was so not long ago.
    fn keep_out(&mut self, now_ms: u64, id: ReplicaId) {
        let shortest_ms = self.stuck_ms();
        let lately = |stuck: &Stuck| now_ms.saturating_sub(stuck.at_ms) < 4 * stuck.out_ms;
        self.removed.retain(|_, stuck| lately(stuck));
        let out_ms = match self.removed.get(&id) {
            Some(stuck) => (2 * stuck.out_ms).min(shortest_ms << DOUBLED_MAX),
            None => shortest_ms,
        };
        if self.removed.len() < STUCK_MAX || self.removed.contains_key(&id) {
            self.removed.insert(id, Stuck { at_ms: now_ms, out_ms });
        }
    }

    /// How many events a replica says that it has.
    pub fn events_of(&self, id: ReplicaId) -> u64 {
        self.seen.get(&id).map_or(0, |seen| seen.has.events)
    }

    /// Who is left out of the next chain because it does not move on.
    pub fn leaves(&self) -> Option<ReplicaId> {
        self.leaves.map(|(id, _)| id)
    }

    /// A chain is durable, and in force.
    pub fn changed(&mut self, chain: Chain) {
        let is_in = |id: ReplicaId| chain.members.iter().chain(&chain.joining).any(|member| member.id == id);
        if let Some((id, at_ms)) = self.leaves.take().filter(|(id, _)| !is_in(*id)) {
            self.keep_out(at_ms, id);
        }
        self.stuck = None;
        self.seen.values_mut().for_each(|seen| seen.waits = None);
        self.changed_ms = self.now_ms;
        self.joins.clear();
        let waits = self.waits;
        self.started.retain(|id, _| waits && chain.place(*id).is_some());
        self.caught_up.clear();
        self.kept_out.retain(|id, _| !is_in(*id) && self.removed.contains_key(id));
        self.seen.retain(|id, _| is_in(*id) || self.kept_out.contains_key(id));
        self.chain = chain;
    }
}

#[cfg(test)]
mod tests;
