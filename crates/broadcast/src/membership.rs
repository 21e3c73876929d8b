//! Who is in a region's chain, and in which order (section 3.3): the configuration service's decisions, as a
//! step function. The shell keeps the chain in `meta`, and tells nobody of a chain before it is durable there.
//!
//! - A member that is not heard is removed, but not the last one: it alone has the events. Only if another replica
//!   wants to join, and the last one can't come back, that one begins a new chain. One that kept its events in memory
//!   can't if the other one has its address, so that it must have ended, or it was not heard for much longer. One with
//!   a disk can't if both are so: then the other one is there without that disk.
//! - A replica joins beyond the tail, and becomes the tail once the tail says that it has everything.
//! - A member that started again has what its disk kept, but the others may have gone on: it goes to the end as long as
//!   one of them is heard after that, or may be yet. If all of them started again the first goes on alone, and the others join it:
//!   whatever was acknowledged, or read, every member's disk has.
//! - A member that lives and does not move on keeps all publishers waiting, so it is removed if that lasts for
//!   [`STUCK_SILENCES`] times as long as silence may, and another one whose disk goes on is heard after that. Members say what they
//!   wait for ([`Waits`]), and whom that points to is found so:
//!   - A disk that stands still is its owner's own word, and its owner goes.
//!   - A member before whom the next one does not move on waits as well, as what it holds is what all behind it hold. So it
//!     is the last one of those that wait who knows, and who waits for its own disk is not believed about another one.
//!   - If the one that does not move on hears nothing of the one before it, their link is broken, and either could go: it
//!     is the one that has no other neighbour to whom its link works. If that says nothing, the one behind goes.
//!   - A joining replica to which the tail hands over is removed likewise, and always it: the tail's disk has the events.
//!   - What is said of another one changes when the chain does, when a further link breaks, and when one speaks that was not heard yet,
//!     and who says it hears of that later. So nobody is removed for it before it has pointed to the same one, in the same epoch, for
//!     as long as silence may last; it counts that much earlier for that.
//!   - In a new epoch it counts once all members have said what they wait for in it, or had half of that time.
//! - One that was removed for that is let in again later, after twice as long each time that it is soon removed again:
//!   however a fault comes and goes, publishers wait ever less often.
//! - A chain that none of the members before it is in begins anew, with a lineage that is greater than that of the chain before and of
//!   what any replica says it has: nobody left is sure to have what was acknowledged. It begins with the replica that has most, of those that want to join and of those that are kept out.
//! - Every change has a greater epoch, which fences those that do not know it yet.

use std::collections::{BTreeMap, BTreeSet};

use crate::message::{Chain, Has, Member, ReplicaId, Waits};

/// Replicas of one chain, joining ones included.
pub const MEMBERS_MAX: usize = 16;
/// A member that does not move on though it could is removed after so many times as long as one that is silent.
pub const STUCK_SILENCES: u64 = 5;
/// One that was removed for that is kept out for that time, doubled so many times at most.
const DOUBLED_MAX: u32 = 4;
/// Of so many it is remembered.
const STUCK_MAX: usize = 64;
/// Replicas that are known beyond which those are forgotten that have no part in the chain, nor want one.
const SEEN_MAX: usize = 128;

#[derive(Debug)]
struct Seen {
    at_ms: u64,
    durable: bool,
    /// Whether this service has heard it, or only found it in the chain when it started itself.
    heard: bool,
    /// What it waits for, once it said that in this epoch.
    waits: Option<Waits>,
    /// What it has, as it said last.
    has: Has,
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
    seen: BTreeMap<ReplicaId, Seen>,
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
    silence_ms: u64,
    lost_ms: u64,
}

impl Membership {
    /// The service, with the chain that was last durable. A member that is silent for `silence_ms` is removed if
    /// there is another; the last one, if it kept its events in memory, is given up after `lost_ms`. Both count from
    /// `now_ms` on for those that were not heard yet.
    pub fn new(now_ms: u64, chain: Chain, silence_ms: u64, lost_ms: u64) -> Self {
        let replicas = chain.members.iter().chain(&chain.joining);
        let comes_back = |id: ReplicaId| id & 1 == 0;
        let seen = replicas
            .map(|member| {
                let durable = comes_back(member.id);
                let has = Has::default();
                (member.id, Seen { at_ms: now_ms, durable, heard: false, waits: None, has })
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
        let has = self.seen.get(&member.id).map(|seen| seen.has).unwrap_or_default();
        if self.seen.len() >= SEEN_MAX {
            let Self { chain, joins, kept_out, .. } = self;
            let replicas = chain.members.iter().chain(&chain.joining).chain(&*joins).chain(kept_out.values());
            let known: BTreeSet<ReplicaId> = replicas.map(|member| member.id).collect();
            self.seen.retain(|id, _| known.contains(id));
        }
        self.seen.insert(member.id, Seen { at_ms: now_ms, durable, heard: true, waits: None, has });
        if self.may_join(now_ms, member.id) {
            self.kept_out.remove(&member.id);
        } else {
            self.kept_out.insert(member.id, member.clone());
        }
        self.caught_up.remove(&member.id);
        self.joins.retain(|other| other.id != member.id);
        if self.joins.len() < MEMBERS_MAX {
            self.joins.push(member);
        }
    }

    /// A replica is alive, and waits for something, perhaps; the tail knows who caught up.
    pub fn alive(&mut self, now_ms: u64, id: ReplicaId, epoch: u64, caught_up: &[ReplicaId], waits: Waits) {
        if let Some(seen) = self.seen.get_mut(&id) {
            seen.at_ms = now_ms;
            seen.heard = true;
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
    }

    /// The chain that should be next, if another one than now; it is in force once [`Membership::changed`] was
    /// called with it.
    pub fn next(&mut self, now_ms: u64) -> Option<Chain> {
        self.now_ms = now_ms;
        let mut next = self.chain.clone();
        let silent = |id: ReplicaId| {
            let at_ms = self.seen.get(&id).map(|seen| seen.at_ms);
            at_ms.is_none_or(|at_ms| now_ms.saturating_sub(at_ms) > self.silence_ms)
        };
        next.joining.retain(|member| !silent(member.id));
        // Another replica has its address, so it must have ended, and its memory with it.
        let has_successor = |member: &Member| {
            let mut others = self.joins.iter().chain(&self.chain.joining);
            others.any(|o| o.address == member.address && o.id != member.id)
        };
        let comes_back = |member: &Member| self.seen.get(&member.id).is_some_and(|seen| seen.durable);
        let replaced = |member: &Member| !comes_back(member) && has_successor(member);
        let stays = |member: &Member| {
            !silent(member.id) && !self.started.contains_key(&member.id) && !replaced(member)
        };
        // One that was heard last before another one started may have ended as well.
        let last_start_ms = self.started.values().max().copied().unwrap_or(0);
        let heard = |member: &Member| {
            self.seen.get(&member.id).is_some_and(|seen| seen.heard && seen.at_ms >= last_start_ms)
        };
        let is_there = |member: &Member| !silent(member.id) && !replaced(member);
        (self.waits, self.leaves) = (false, None);
        if next.members.iter().any(|member| stays(member) && heard(member)) {
            next.members.retain(stays);
            let stuck = self.who_is_stuck();
            if self.stuck.map(|(stuck, _)| stuck) != stuck {
                self.stuck = stuck.map(|stuck| (stuck, now_ms));
            }
            if let Some(((id, word), found_ms)) = self.stuck
                && let sure_ms = found_ms + if word == Word::Others { self.silence_ms } else { 0 }
                && next.members == self.chain.members
                && next.members.iter().filter(|other| other.id != id).any(|other| {
                    let is_alive = self.seen.get(&other.id).is_some_and(|seen| seen.at_ms >= sure_ms);
                    is_alive && heard(other) && !self.has_stuck_disk(other.id)
                })
            {
                next.members.retain(|member| member.id != id);
                next.joining.retain(|member| member.id != id);
                self.leaves = Some((id, now_ms));
            }
        } else if next.members.iter().any(stays) {
            // Nobody has heard them since this service, or the member, started: they may be there all the same.
            self.waits = true;
        } else if next.members.iter().any(is_there) {
            // All that are there have started again.
            next.members.retain(is_there);
            let others = next.members.split_off(1);
            next.joining.extend(others);
        } else if !self.joins.is_empty() || !next.joining.is_empty() {
            let lost = |member: &Member| {
                let Some(seen) = self.seen.get(&member.id) else { return true };
                let silent_ms = now_ms.saturating_sub(seen.at_ms);
                let can_not_come_back = !seen.durable || has_successor(member);
                replaced(member) || (can_not_come_back && silent_ms > self.lost_ms)
            };
            next.members.retain(|member| !lost(member));
        }
        let begins = next.members.is_empty();
        let kept_out = self.kept_out.values().filter(|member| begins && !silent(member.id));
        for member in self.joins.iter().chain(kept_out) {
            if let Some(known) =
                next.members.iter_mut().chain(&mut next.joining).find(|known| known.id == member.id)
            {
                known.address.clone_from(&member.address);
            } else if next.members.len() + next.joining.len() < MEMBERS_MAX
                && (begins || self.may_join(now_ms, member.id))
                && self.leaves() != Some(member.id)
            {
                next.joining.push(member.clone());
            }
        }
        if begins && let Some(first) = self.who_has_most(&next.joining) {
            next.members.push(next.joining.remove(first));
        } else if let Some(at) = next.joining.iter().position(|member| {
            // One that started again since has only what its disk had.
            self.caught_up.contains(&member.id) && !self.started.contains_key(&member.id)
        }) {
            next.members.push(next.joining.remove(at));
        }
        let goes_on = next.members.iter().any(|member| self.chain.place(member.id).is_some());
        if !goes_on && !next.members.is_empty() {
            // Of metadata that is lost nobody else knows the lineages. One that can't be of any says nothing.
            let has = next.members.iter().chain(&next.joining).filter_map(|member| self.seen.get(&member.id));
            let known = has.map(|seen| seen.has.lineage).filter(|lineage| lineage >> 63 == 0).max();
            next.lineage = self.chain.lineage.max(known.unwrap_or(0)).wrapping_add(1);
        }
        // Whoever is joining and started again begins anew with whom it follows, which a new epoch tells that one.
        let begins_anew = |member: &Member| member.id & 1 == 0 && self.started.contains_key(&member.id);
        if next == self.chain && !next.joining.iter().any(begins_anew) {
            if !self.waits {
                self.joins.clear();
                self.started.clear();
            }
            return None;
        }
        next.epoch = self.chain.epoch + 1;
        Some(next)
    }

    /// The place of the replica that a chain should begin with: of what was acknowledged last rather than of another lineage, most
    /// of it, and the first one of those that have as much.
    fn who_has_most(&self, replicas: &[Member]) -> Option<usize> {
        let has = |place: &usize| {
            let seen = replicas.get(*place).and_then(|member| self.seen.get(&member.id));
            let has = seen.map(|seen| seen.has).unwrap_or_default();
            (has.events > 0 && has.lineage == self.chain.lineage, has.events)
        };
        (0..replicas.len()).rev().max_by_key(has)
    }

    /// Whether a replica's disk stands still, or has for so long that it is no use to wait for it.
    fn has_stuck_disk(&self, id: ReplicaId) -> bool {
        self.waits_of(id).disk_ms.saturating_mul(2) >= self.stuck_ms()
    }

    /// Who keeps the chain from moving on: a member, or the joining replica that the tail hands over to. By its own word it has done
    /// so for too long; by that of others it will have if they say so for as long as silence may last.
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
        STUCK_SILENCES * self.silence_ms
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
mod tests {
    use super::*;

    fn member(id: ReplicaId) -> Member {
        Member { id, address: format!("127.0.0.1:{id}") }
    }

    fn ids(chain: &Chain) -> (Vec<ReplicaId>, Vec<ReplicaId>) {
        let of = |members: &[Member]| members.iter().map(|member| member.id).collect();
        (of(&chain.members), of(&chain.joining))
    }

    fn step(service: &mut Membership, now_ms: u64) -> Option<(Vec<ReplicaId>, Vec<ReplicaId>)> {
        let next = service.next(now_ms)?;
        assert_eq!(next.epoch, service.chain().epoch + 1);
        service.changed(next.clone());
        Some(ids(&next))
    }

    #[test]
    fn replicas_join_at_the_end_when_they_caught_up_and_silent_ones_leave() {
        let mut service = Membership::new(0, Chain { region: "eu".into(), ..Chain::default() }, 1000, 3000);
        service.join(0, member(1), false, true);
        assert_eq!(step(&mut service, 0), Some((vec![1], vec![])));
        service.join(1, member(2), false, true);
        service.join(1, member(3), false, true);
        assert_eq!(step(&mut service, 1), Some((vec![1], vec![2, 3])));
        assert_eq!(step(&mut service, 2), None);
        let epoch = service.chain().epoch;
        service.alive(3, 1, epoch, &[3], Waits::default());
        assert_eq!(step(&mut service, 3), Some((vec![1, 3], vec![2])));
        // What the tail of an earlier epoch says does not count.
        service.alive(4, 3, epoch, &[2], Waits::default());
        assert_eq!(step(&mut service, 4), None);
        service.alive(900, 3, service.chain().epoch, &[2], Waits::default());
        service.alive(900, 2, service.chain().epoch, &[], Waits::default());
        assert_eq!(step(&mut service, 900), Some((vec![1, 3, 2], vec![])));
        assert_eq!(step(&mut service, 1500), Some((vec![3, 2], vec![])));
    }

    #[test]
    fn whoever_wants_to_join_a_full_chain_under_ever_other_numbers_takes_bounded_room() {
        let mut service = Membership::new(0, Chain { region: "eu".into(), ..Chain::default() }, 1000, 3000);
        for id in 1..100_000 {
            service.join(0, member(id), true, true);
            // As soon as it is full there is nothing to decide any more.
            step(&mut service, 0);
        }
        let chain = service.chain();
        assert_eq!(chain.members.len() + chain.joining.len(), MEMBERS_MAX);
        assert!(service.seen.len() <= SEEN_MAX, "{}", service.seen.len());
        let known = chain.members.iter().chain(&chain.joining);
        assert!(known.clone().all(|member| service.seen.contains_key(&member.id)));
    }

    #[test]
    fn nobody_is_silent_while_nobody_is_listened_to() {
        let mut service = alive(3);
        service.did_not_listen(2_000);
        service.alive(2_010, 1, 5, &[], Waits::default());
        assert_eq!(step(&mut service, 2_010), None);
        assert_eq!(step(&mut service, 3_001), Some((vec![1], vec![])));
    }

    #[test]
    fn a_joining_replica_that_started_again_has_not_caught_up_whatever_the_tail_says() {
        let mut service = Membership::new(0, Chain { region: "eu".into(), ..Chain::default() }, 1000, 3000);
        service.join(0, member(1), false, true);
        service.join(0, member(2), true, false);
        assert_eq!(step(&mut service, 0), Some((vec![1], vec![2])));
        service.join(10, member(2), true, true);
        // It has not heard of that yet.
        service.alive(20, 1, service.chain().epoch, &[2], Waits::default());
        assert_eq!(step(&mut service, 20), Some((vec![1], vec![2])), "it begins anew");
        service.alive(30, 1, service.chain().epoch, &[2], Waits::default());
        assert_eq!(step(&mut service, 30), Some((vec![1, 2], vec![])));
    }

    #[test]
    fn a_member_that_started_again_goes_to_the_end_if_there_is_another() {
        let mut service = Membership::new(0, Chain { region: "eu".into(), ..Chain::default() }, 1000, 3000);
        service.join(0, member(1), true, true);
        step(&mut service, 0);
        service.join(1, member(1), true, true);
        assert_eq!(step(&mut service, 1), None);
        service.join(1, member(2), true, true);
        step(&mut service, 1);
        service.alive(2, 1, service.chain().epoch, &[2], Waits::default());
        assert_eq!(step(&mut service, 2), Some((vec![1, 2], vec![])));
        service.join(3, member(1), true, false);
        assert_eq!(step(&mut service, 3), None);
        service.join(4, member(1), true, true);
        assert_eq!(step(&mut service, 4), None);
        service.alive(5, 2, service.chain().epoch, &[], Waits::default());
        assert_eq!(step(&mut service, 5), Some((vec![2], vec![1])));
    }

    /// Members 2, 4 and 6, which keep their events, and a service that has just started.
    fn all_down() -> Membership {
        let members = vec![member(2), member(4), member(6)];
        let chain = Chain { epoch: 5, lineage: 7, region: "eu".into(), members, joining: vec![] };
        Membership::new(0, chain, 1000, 60_000)
    }

    #[test]
    fn when_all_members_started_again_the_first_goes_on_and_the_others_join_it() {
        let mut service = all_down();
        service.join(10, member(4), true, true);
        assert_eq!(step(&mut service, 10), None);
        service.join(20, member(2), true, true);
        assert_eq!(step(&mut service, 20), None);
        service.join(30, member(6), true, true);
        assert_eq!(step(&mut service, 30), Some((vec![2], vec![4, 6])));
        service.alive(40, 2, service.chain().epoch, &[4], Waits::default());
        assert_eq!(step(&mut service, 40), Some((vec![2, 4], vec![6])));
        assert_eq!(step(&mut service, 50), None);
    }

    #[test]
    fn a_member_that_started_again_joins_the_others_if_they_are_there_and_goes_on_alone_if_they_stay_away() {
        let mut service = all_down();
        service.join(10, member(4), true, true);
        assert_eq!(step(&mut service, 10), None);
        service.join(20, member(6), true, false);
        assert_eq!(step(&mut service, 20), Some((vec![2, 6], vec![4])));
        let mut service = all_down();
        service.join(10, member(4), true, true);
        service.alive(900, 4, 5, &[], Waits::default());
        assert_eq!(step(&mut service, 1000), None);
        assert_eq!(step(&mut service, 1001), Some((vec![4], vec![])));
    }

    #[test]
    fn one_that_starts_again_while_it_joins_gets_a_new_epoch() {
        let mut service = Membership::new(0, Chain { region: "eu".into(), ..Chain::default() }, 1000, 3000);
        service.join(0, member(2), true, true);
        step(&mut service, 0);
        service.join(1, member(4), true, true);
        step(&mut service, 1);
        service.join(2, member(4), true, false);
        assert_eq!(step(&mut service, 2), None);
        service.join(3, member(4), true, true);
        assert_eq!(step(&mut service, 3), Some((vec![2], vec![4])));
    }

    #[test]
    fn a_service_that_restarts_waits_for_members_that_can_come_back_and_replaces_those_that_can_not() {
        for (last, replaced) in [(8, false), (7, true)] {
            let chain = Chain {
                epoch: 5,
                lineage: 7,
                region: "eu".into(),
                members: vec![member(last)],
                joining: vec![],
            };
            let mut service = Membership::new(0, chain, 1000, 3000);
            service.join(0, member(2), false, true);
            assert_eq!(step(&mut service, 0), Some((vec![last], vec![2])));
            service.alive(4000, 2, 6, &[], Waits::default());
            assert_eq!(step(&mut service, 4000), replaced.then(|| (vec![2], vec![])));
        }
    }

    #[test]
    fn a_replica_at_the_address_of_the_last_member_replaces_it_at_once_if_its_memory_is_gone() {
        let members = vec![Member { id: 7, address: "127.0.0.1:9400".to_owned() }];
        let chain = Chain { epoch: 5, lineage: 7, region: "eu".into(), members, joining: vec![] };
        let mut service = Membership::new(0, chain, 1000, 60_000);
        service.join(10, Member { id: 9, address: "127.0.0.1:9400".to_owned() }, false, true);
        assert_eq!(step(&mut service, 10), Some((vec![9], vec![])));
    }

    #[test]
    fn a_replica_at_the_address_of_the_last_member_replaces_it_later_if_it_had_a_disk() {
        let members = vec![Member { id: 8, address: "127.0.0.1:9400".to_owned() }];
        let chain = Chain { epoch: 5, lineage: 7, region: "eu".into(), members, joining: vec![] };
        let mut service = Membership::new(0, chain, 1000, 60_000);
        service.join(10, Member { id: 6, address: "127.0.0.1:9400".to_owned() }, true, true);
        assert_eq!(step(&mut service, 10), Some((vec![8], vec![6])));
        service.alive(60_000, 6, service.chain().epoch, &[], Waits::default());
        assert_eq!(step(&mut service, 60_000), None);
        assert_eq!(step(&mut service, 60_001), Some((vec![6], vec![])));
    }

    #[test]
    fn the_last_member_stays_if_it_can_come_back_and_is_replaced_if_it_can_not() {
        for durable in [true, false] {
            let mut service =
                Membership::new(0, Chain { region: "eu".into(), ..Chain::default() }, 1000, 3000);
            service.join(0, member(1), durable, true);
            step(&mut service, 0);
            assert_eq!(step(&mut service, 5000), None);
            service.join(2000, member(2), durable, true);
            assert_eq!(step(&mut service, 2000), Some((vec![1], vec![2])));
            service.alive(5000, 2, 2, &[], Waits::default());
            assert_eq!(step(&mut service, 5000), if durable { None } else { Some((vec![2], vec![])) });
        }
    }

    fn has(lineage: u64, events: u64) -> Has {
        Has { lineage, events }
    }

    #[test]
    fn a_chain_that_no_member_goes_on_in_is_of_another_lineage_and_only_that() {
        let chain = Chain { region: "eu".into(), lineage: 100, ..Chain::default() };
        let mut service = Membership::new(0, chain, 1000, 3000);
        service.join(0, member(2), true, true);
        step(&mut service, 0);
        assert_eq!(service.chain().lineage, 101);
        service.join(1, member(4), true, true);
        step(&mut service, 1);
        service.alive(2, 2, service.chain().epoch, &[4], Waits::default());
        assert_eq!(step(&mut service, 2), Some((vec![2, 4], vec![])));
        // The first one is gone, and the second one has what its disk kept.
        service.join(2_000, member(4), true, true);
        assert_eq!(step(&mut service, 2_000), Some((vec![4], vec![])));
        assert_eq!(service.chain().lineage, 101);
        // Now its disk is gone as well.
        service.join(4_000, Member { id: 6, ..member(4) }, true, true);
        assert_eq!(step(&mut service, 4_000), Some((vec![4], vec![6])));
        assert_eq!(service.chain().lineage, 101);
        service.alive(6_000, 6, service.chain().epoch, &[], Waits::default());
        assert_eq!(step(&mut service, 6_000), Some((vec![6], vec![])));
        assert_eq!(service.chain().lineage, 102);
    }

    #[test]
    fn a_new_lineage_is_greater_than_that_of_any_replica_that_is_there_unless_it_can_not_be() {
        for (known, lineage) in [(3, 8), (7, 8), (90, 91), (1 << 63, 8)] {
            let chain = Chain { region: "eu".into(), lineage: 7, ..Chain::default() };
            let mut service = Membership::new(0, chain, 1000, 3000);
            service.join(0, member(2), true, true);
            service.join(0, member(4), true, true);
            service.has(4, has(known, 5));
            step(&mut service, 0);
            assert_eq!(service.chain().lineage, lineage, "{known}");
        }
    }

    #[test]
    fn a_region_begins_anew_with_the_replica_that_has_most_of_what_was_there() {
        for (of_2, of_3, of_4, first) in [
            (has(0, 0), has(7, 5), has(7, 9), 4),
            (has(7, 0), has(7, 5), has(6, 9), 3),
            (has(0, 0), has(5, 5), has(6, 9), 4),
            (has(7, 0), has(7, 0), has(0, 0), 2),
        ] {
            let (members, joining) = (vec![member(7)], vec![member(2), member(3), member(4)]);
            let chain = Chain { epoch: 5, lineage: 7, region: "eu".into(), members, joining };
            let mut service = Membership::new(0, chain, 1000, 3000);
            for (id, has) in [(2, of_2), (3, of_3), (4, of_4)] {
                service.alive(4_000, id, 5, &[], Waits::default());
                service.has(id, has);
            }
            let others = [2, 3, 4].into_iter().filter(|id| *id != first).collect();
            assert_eq!(step(&mut service, 4_000), Some((vec![first], others)));
            assert_eq!(service.chain().lineage, 8);
        }
    }

    #[test]
    fn a_region_begins_anew_with_a_replica_that_is_kept_out_and_has_events_rather_than_with_an_empty_one() {
        let mut service = alive(2);
        assert_eq!(step_after(&mut service, 1_010, &[(1, next(3, 5_000))]), Some((vec![1], vec![])));
        let mut now_ms = 1_020;
        let kept_out = |service: &mut Membership, now_ms| {
            service.join(now_ms, member(3), false, false);
            service.has(3, has(7, 5));
        };
        kept_out(&mut service, now_ms);
        assert_eq!(step(&mut service, now_ms), None);
        // The last member is gone: an empty one has its address.
        now_ms = 1_030;
        service.join(now_ms, Member { id: 9, ..member(1) }, false, true);
        assert_eq!(step(&mut service, now_ms), Some((vec![3], vec![9])));
        assert_eq!(service.chain().lineage, 8);
        // One that is silent is not waited for.
        let mut service = alive(2);
        step_after(&mut service, 1_010, &[(1, next(3, 5_000))]);
        kept_out(&mut service, 1_020);
        assert_eq!(step(&mut service, 1_020), None);
        service.alive(2_500, 1, service.chain().epoch, &[], Waits::default());
        service.join(2_500, Member { id: 9, ..member(1) }, false, true);
        assert_eq!(step(&mut service, 2_500), Some((vec![9], vec![])));
    }

    /// Members 1, 3, 5 and so on, which say all the time that they are alive.
    fn alive(members: u64) -> Membership {
        let members = (0..members).map(|place| member(2 * place + 1)).collect();
        let chain = Chain { epoch: 5, lineage: 7, region: "eu".into(), members, joining: vec![] };
        let mut service = Membership::new(0, chain, 1000, 60_000);
        say(&mut service, 0, &[]);
        service
    }

    /// What some wait for; the others say that they are alive.
    fn say(service: &mut Membership, now_ms: u64, waits: &[(ReplicaId, Waits)]) {
        let Chain { epoch, members, joining, .. } = service.chain().clone();
        for Member { id, .. } in members.iter().chain(&joining) {
            let waits = waits.iter().find(|(of, _)| of == id).map(|(_, waits)| *waits).unwrap_or_default();
            service.alive(now_ms, *id, epoch, &[], waits);
        }
    }

    /// The chain after this was said for as long as silence may last, up to `now_ms`, if it is another one.
    fn step_after(
        service: &mut Membership,
        now_ms: u64,
        waits: &[(ReplicaId, Waits)],
    ) -> Option<(Vec<ReplicaId>, Vec<ReplicaId>)> {
        for at_ms in [now_ms - 1_000, now_ms - 1] {
            say(service, at_ms, waits);
            assert_eq!(step(service, at_ms), None, "at {at_ms}");
        }
        say(service, now_ms, waits);
        step(service, now_ms)
    }

    /// Who is removed if this is said for as long as silence may last.
    fn goes(members: u64, waits: &[(ReplicaId, Waits)]) -> Option<ReplicaId> {
        let mut service = alive(members);
        let before = ids(service.chain()).0;
        let after = step_after(&mut service, 2_000, waits)?.0;
        before.into_iter().find(|id| !after.contains(id))
    }

    fn disk(ms: u64) -> Waits {
        Waits { disk_ms: ms, ..Waits::default() }
    }

    fn next(id: ReplicaId, ms: u64) -> Waits {
        Waits { next: Some((id, ms)), ..Waits::default() }
    }

    fn cut(ms: u64) -> Waits {
        Waits { before_ms: ms, ..Waits::default() }
    }

    #[test]
    fn a_member_whose_disk_stands_still_is_removed_if_anothers_goes_on() {
        assert_eq!(goes(3, &[(3, disk(4_999)), (1, next(3, 3_999))]), None);
        for id in [1, 3, 5] {
            let mut service = alive(3);
            say(&mut service, 10, &[(id, disk(5_000))]);
            let others = [1, 3, 5].into_iter().filter(|other| *other != id).collect();
            assert_eq!(step(&mut service, 10), Some((others, vec![])), "its own word is enough");
        }
        assert_eq!(goes(1, &[(1, disk(50_000))]), None);
        assert_eq!(goes(2, &[(1, disk(50_000)), (3, disk(4_000))]), None);
    }

    #[test]
    fn of_those_that_wait_for_the_one_behind_the_last_one_knows_who_does_not_move_on() {
        assert_eq!(goes(2, &[(1, next(3, 5_000))]), Some(3));
        assert_eq!(goes(4, &[(1, next(3, 6_000)), (3, next(5, 6_000)), (5, next(7, 5_000))]), Some(7));
        // The last one has not waited for long enough, and will have.
        assert_eq!(goes(4, &[(1, next(3, 6_000)), (3, next(5, 6_000)), (5, next(7, 3_900))]), None);
        assert_eq!(goes(4, &[(1, next(3, 6_000)), (3, next(5, 6_000)), (5, next(7, 1_000))]), Some(5));
        // It waits for another one than that which is behind it now.
        assert_eq!(goes(2, &[(1, next(9, 5_000))]), None);
    }

    #[test]
    fn a_member_that_waits_for_its_own_disk_is_not_believed_about_another_one() {
        let both = Waits { disk_ms: 4_000, ..next(5, 9_000) };
        assert_eq!(goes(3, &[(3, both)]), None);
        let mut service = alive(3);
        say(&mut service, 10, &[(3, Waits { disk_ms: 5_000, ..both })]);
        assert_eq!(step(&mut service, 10), Some((vec![1, 5], vec![])));
        assert_eq!(goes(3, &[(1, next(3, 5_000)), (3, both)]), Some(3));
        assert_eq!(goes(3, &[(3, next(5, 9_000))]), Some(5));
    }

    #[test]
    fn of_the_two_ends_of_a_broken_link_that_one_is_removed_which_nobody_else_reaches() {
        // The link alone, between members that others reach: the one behind.
        assert_eq!(goes(4, &[(3, next(5, 5_000)), (1, next(3, 5_000)), (5, cut(5_000))]), Some(5));
        assert_eq!(goes(2, &[(1, next(3, 5_000)), (3, cut(5_000))]), Some(3));
        // The head, which has no other neighbour, or nobody reaches the two.
        assert_eq!(goes(3, &[(1, next(3, 5_000)), (3, cut(5_000))]), Some(1));
        // One in the middle that nobody reaches, whether or not it had something for the one behind it.
        let alone = Waits { before_ms: 5_000, ..next(5, 5_000) };
        for middle in [alone, cut(5_000)] {
            assert_eq!(goes(3, &[(1, next(3, 5_000)), (3, middle), (5, cut(5_000))]), Some(3));
        }
        assert_eq!(goes(3, &[(3, alone), (5, cut(5_000))]), Some(3), "nothing waits for it yet");
        // The tail.
        assert_eq!(goes(3, &[(1, next(3, 5_000)), (3, next(5, 5_000)), (5, cut(5_000))]), Some(5));
    }

    #[test]
    fn one_whose_disk_stands_still_stays_until_another_one_is_heard_which_may_have_ended() {
        let mut service = alive(2);
        service.alive(10, 3, 5, &[], disk(5_000));
        assert_eq!(step(&mut service, 10), None);
        service.alive(500, 3, 5, &[], disk(5_500));
        assert_eq!(step(&mut service, 500), None);
        service.alive(600, 1, 5, &[], Waits::default());
        assert_eq!(step(&mut service, 600), Some((vec![1], vec![])));
    }

    #[test]
    fn one_that_keeps_another_waiting_stays_if_that_one_may_have_ended_meanwhile() {
        let mut service = alive(2);
        for now_ms in [10, 1_009] {
            say(&mut service, now_ms, &[(1, next(3, 5_000))]);
            assert_eq!(step(&mut service, now_ms), None, "at {now_ms}");
        }
        service.alive(1_020, 3, 5, &[], Waits::default());
        assert_eq!(step(&mut service, 1_020), None);
        // Its own word comes after the other one's last.
        service.alive(1_900, 3, 5, &[], disk(5_000));
        assert_eq!(step(&mut service, 1_900), None);
        service.alive(2_009, 3, 5, &[], Waits::default());
        assert_eq!(step(&mut service, 2_009), None);
        assert_eq!(step(&mut service, 2_010), Some((vec![3], vec![])));
    }

    #[test]
    fn what_is_said_of_another_epoch_removes_nobody() {
        let mut service = alive(2);
        for now_ms in [10, 1_010] {
            service.alive(now_ms, 3, 5, &[], Waits::default());
            service.alive(now_ms, 1, 4, &[], next(3, 9_000));
            assert_eq!(step(&mut service, now_ms), None);
        }
        assert_eq!(step_after(&mut service, 2_010, &[(1, next(3, 9_000))]), Some((vec![1], vec![])));
    }

    #[test]
    fn nobody_is_removed_before_all_said_what_they_wait_for_or_had_the_time_to() {
        let mut service = alive(3);
        service.join(10, member(7), false, true);
        assert_eq!(step(&mut service, 10), Some((vec![1, 3, 5], vec![7])));
        for now_ms in [20, 1_020] {
            service.alive(now_ms, 1, 6, &[], next(3, 5_000));
            service.alive(now_ms, 3, 5, &[], Waits::default());
            service.alive(now_ms, 5, 5, &[], Waits::default());
            service.alive(now_ms, 7, 6, &[], Waits::default());
            assert_eq!(step(&mut service, now_ms), None);
        }
        service.alive(1_030, 5, 6, &[], Waits::default());
        service.alive(1_030, 3, 6, &[], next(5, 3_900));
        assert_eq!(step(&mut service, 1_030), None, "the third one is it");
        // The second one does not hear of the chain.
        let mut service = alive(3);
        service.join(10, member(7), false, true);
        step(&mut service, 10);
        for (now_ms, gone) in
            [(900, false), (1_700, false), (2_509, false), (2_510, false), (3_509, false), (3_510, true)]
        {
            say(&mut service, now_ms, &[(1, next(3, 5_000))]);
            service.alive(now_ms, 3, 5, &[], Waits::default());
            assert_eq!(step(&mut service, now_ms), gone.then(|| (vec![1, 5], vec![7])));
        }
    }

    #[test]
    fn one_that_did_not_move_on_is_kept_out_for_longer_each_time_unless_nobody_else_is_left() {
        let mut service = alive(2);
        let mut now_ms = 10;
        for out_ms in [5_000, 10_000, 20_000, 40_000, 80_000, 80_000] {
            // It joins again before it knows.
            now_ms += 1_000;
            service.join(now_ms, member(3), false, false);
            assert_eq!(step_after(&mut service, now_ms, &[(1, next(3, 5_000))]), Some((vec![1], vec![])));
            let until_ms = now_ms + out_ms;
            for (at_ms, joins) in [(now_ms + 1, false), (until_ms - 1, false), (until_ms, true)] {
                say(&mut service, at_ms, &[]);
                service.join(at_ms, member(3), false, false);
                assert_eq!(step(&mut service, at_ms), joins.then(|| (vec![1], vec![3])), "after {out_ms}");
            }
            let epoch = service.chain().epoch;
            service.alive(until_ms, 1, epoch, &[3], Waits::default());
            assert_eq!(step(&mut service, until_ms), Some((vec![1, 3], vec![])));
            now_ms = until_ms;
        }
        // Later it is a fault like the first one, and if the other one is lost it is not waited for.
        now_ms += 4 * 80_000;
        assert_eq!(step_after(&mut service, now_ms, &[(1, next(3, 5_000))]), Some((vec![1], vec![])));
        service.join(now_ms + 1, Member { id: 3, ..member(1) }, false, false);
        assert_eq!(step(&mut service, now_ms + 1), Some((vec![3], vec![])));
    }

    #[test]
    fn a_joining_replica_that_is_handed_over_to_and_does_not_move_on_is_removed_and_never_the_tail() {
        for waits in [disk(9_000), cut(9_000), Waits::default()] {
            let mut service = alive(2);
            service.join(10, member(7), false, true);
            assert_eq!(step(&mut service, 10), Some((vec![1, 3], vec![7])));
            assert_eq!(step_after(&mut service, 1_020, &[(7, waits)]), None, "it keeps nobody waiting");
            let waits = [(1, next(3, 5_100)), (3, next(7, 5_000)), (7, waits)];
            assert_eq!(step_after(&mut service, 2_030, &waits), Some((vec![1, 3], vec![])));
            service.join(2_040, member(7), false, false);
            assert_eq!(step(&mut service, 2_040), None);
        }
    }

    #[test]
    fn the_tail_stays_when_one_that_joined_and_kept_it_waiting_is_removed_and_the_head_hears_of_it_later() {
        let mut service = alive(2);
        service.join(10, member(7), false, true);
        assert_eq!(step(&mut service, 10), Some((vec![1, 3], vec![7])));
        let waits = [(1, next(3, 5_000)), (3, next(7, 5_000))];
        assert_eq!(step_after(&mut service, 2_000, &waits), Some((vec![1, 3], vec![])));
        // The tail holds everything at once, and the first one has not heard of that.
        for now_ms in [2_010, 2_500, 2_990] {
            say(&mut service, now_ms, &[(1, next(3, 6_000))]);
            assert_eq!(step(&mut service, now_ms), None, "at {now_ms}");
        }
        say(&mut service, 3_000, &[]);
        assert_eq!(step(&mut service, 3_000), None);
        // From here on it is the tail.
        assert_eq!(step_after(&mut service, 10_000, &[(1, next(3, 5_000))]), Some((vec![1], vec![])));
    }

    #[test]
    fn a_member_that_reaches_the_service_anew_stays_though_it_has_not_said_yet_what_it_waits_for() {
        let mut service = alive(3);
        let waits = [(1, next(3, 4_500)), (3, next(5, 3_900))];
        say(&mut service, 10, &waits);
        assert_eq!(step(&mut service, 10), None);
        service.join(20, member(3), false, false);
        assert_eq!(step(&mut service, 20), None);
        service.alive(30, 1, 5, &[], waits[0].1);
        assert_eq!(step(&mut service, 30), None);
        let waits = [(1, next(3, 5_000)), (3, next(5, 5_000))];
        assert_eq!(step_after(&mut service, 1_100, &waits), Some((vec![1, 3], vec![])));
    }

    #[test]
    fn a_member_whose_links_break_one_after_the_other_is_removed_and_no_neighbour_of_it() {
        let from = |from_ms: u64, now_ms: u64| now_ms.saturating_sub(from_ms);
        let later = [1_000, 2_400, 2_600, 3_900];
        for (first_ms, second_ms) in later.into_iter().flat_map(|ms| [(0, ms), (ms, 0)]) {
            let mut service = alive(3);
            let gone = (0..=6_000).step_by(100).find_map(|now_ms| {
                // From when its link to the first one is broken nothing comes through it, and what that one says of it begins with
                // whichever breaks first.
                let (before_ms, after_ms) = (from(first_ms, now_ms), from(second_ms, now_ms));
                let middle = Waits { before_ms, ..next(5, if second_ms < first_ms { after_ms } else { 0 }) };
                let waits = [(1, next(3, now_ms)), (3, middle), (5, cut(after_ms))];
                say(&mut service, now_ms, &waits);
                step(&mut service, now_ms)
            });
            assert_eq!(gone, Some((vec![1, 5], vec![])), "{first_ms} {second_ms}");
        }
    }
}
