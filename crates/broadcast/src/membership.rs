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
//! - Every change has a greater epoch, which fences those that do not know it yet.

use std::collections::{BTreeMap, BTreeSet};

use crate::message::{Chain, Member, ReplicaId};

/// Replicas of one chain, joining ones included.
pub const MEMBERS_MAX: usize = 16;

#[derive(Debug)]
struct Seen {
    at_ms: u64,
    durable: bool,
    /// Whether this service has heard it, or only found it in the chain when it started itself.
    heard: bool,
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
            .map(|member| (member.id, Seen { at_ms: now_ms, durable: comes_back(member.id), heard: false }))
            .collect();
        Self {
            chain,
            seen,
            caught_up: BTreeSet::new(),
            joins: Vec::new(),
            started: BTreeMap::new(),
            waits: false,
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
        self.seen.insert(member.id, Seen { at_ms: now_ms, durable, heard: true });
        self.caught_up.remove(&member.id);
        self.joins.retain(|other| other.id != member.id);
        if self.joins.len() < MEMBERS_MAX {
            self.joins.push(member);
        }
    }

    /// A replica is alive; the tail knows who caught up.
    pub fn alive(&mut self, now_ms: u64, id: ReplicaId, epoch: u64, caught_up: &[ReplicaId]) {
        if let Some(seen) = self.seen.get_mut(&id) {
            seen.at_ms = now_ms;
            seen.heard = true;
        }
        if self.chain.tail() == Some(id) && epoch == self.chain.epoch {
            self.caught_up = caught_up.iter().copied().collect();
        }
    }

    /// The chain that should be next, if another one than now; it is in force once [`Membership::changed`] was
    /// called with it.
    pub fn next(&mut self, now_ms: u64) -> Option<Chain> {
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
        self.waits = false;
        if next.members.iter().any(|member| stays(member) && heard(member)) {
            next.members.retain(stays);
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
        for member in &self.joins {
            if let Some(known) =
                next.members.iter_mut().chain(&mut next.joining).find(|known| known.id == member.id)
            {
                known.address.clone_from(&member.address);
            } else if next.members.len() + next.joining.len() < MEMBERS_MAX {
                next.joining.push(member.clone());
            }
        }
        if next.members.is_empty() && !next.joining.is_empty() {
            next.members.push(next.joining.remove(0));
        } else if let Some(at) = next.joining.iter().position(|m| self.caught_up.contains(&m.id)) {
            next.members.push(next.joining.remove(at));
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

    /// A chain is durable, and in force.
    pub fn changed(&mut self, chain: Chain) {
        self.joins.clear();
        let waits = self.waits;
        self.started.retain(|id, _| waits && chain.place(*id).is_some());
        self.caught_up.clear();
        let known = |id: &ReplicaId| chain.members.iter().chain(&chain.joining).any(|m| m.id == *id);
        self.seen.retain(|id, _| known(id));
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
        service.alive(3, 1, epoch, &[3]);
        assert_eq!(step(&mut service, 3), Some((vec![1, 3], vec![2])));
        // What the tail of an earlier epoch says does not count.
        service.alive(4, 3, epoch, &[2]);
        assert_eq!(step(&mut service, 4), None);
        service.alive(900, 3, service.chain().epoch, &[2]);
        service.alive(900, 2, service.chain().epoch, &[]);
        assert_eq!(step(&mut service, 900), Some((vec![1, 3, 2], vec![])));
        assert_eq!(step(&mut service, 1500), Some((vec![3, 2], vec![])));
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
        service.alive(2, 1, service.chain().epoch, &[2]);
        assert_eq!(step(&mut service, 2), Some((vec![1, 2], vec![])));
        service.join(3, member(1), true, false);
        assert_eq!(step(&mut service, 3), None);
        service.join(4, member(1), true, true);
        assert_eq!(step(&mut service, 4), None);
        service.alive(5, 2, service.chain().epoch, &[]);
        assert_eq!(step(&mut service, 5), Some((vec![2], vec![1])));
    }

    /// Members 2, 4 and 6, which keep their events, and a service that has just started.
    fn all_down() -> Membership {
        let members = vec![member(2), member(4), member(6)];
        let chain = Chain { epoch: 5, region: "eu".into(), members, joining: vec![] };
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
        service.alive(40, 2, service.chain().epoch, &[4]);
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
        service.alive(900, 4, 5, &[]);
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
            let chain = Chain { epoch: 5, region: "eu".into(), members: vec![member(last)], joining: vec![] };
            let mut service = Membership::new(0, chain, 1000, 3000);
            service.join(0, member(2), false, true);
            assert_eq!(step(&mut service, 0), Some((vec![last], vec![2])));
            service.alive(4000, 2, 6, &[]);
            assert_eq!(step(&mut service, 4000), replaced.then(|| (vec![2], vec![])));
        }
    }

    #[test]
    fn a_replica_at_the_address_of_the_last_member_replaces_it_at_once_if_its_memory_is_gone() {
        let members = vec![Member { id: 7, address: "127.0.0.1:9400".to_owned() }];
        let chain = Chain { epoch: 5, region: "eu".into(), members, joining: vec![] };
        let mut service = Membership::new(0, chain, 1000, 60_000);
        service.join(10, Member { id: 9, address: "127.0.0.1:9400".to_owned() }, false, true);
        assert_eq!(step(&mut service, 10), Some((vec![9], vec![])));
    }

    #[test]
    fn a_replica_at_the_address_of_the_last_member_replaces_it_later_if_it_had_a_disk() {
        let members = vec![Member { id: 8, address: "127.0.0.1:9400".to_owned() }];
        let chain = Chain { epoch: 5, region: "eu".into(), members, joining: vec![] };
        let mut service = Membership::new(0, chain, 1000, 60_000);
        service.join(10, Member { id: 6, address: "127.0.0.1:9400".to_owned() }, true, true);
        assert_eq!(step(&mut service, 10), Some((vec![8], vec![6])));
        service.alive(60_000, 6, service.chain().epoch, &[]);
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
            service.alive(5000, 2, 2, &[]);
            assert_eq!(step(&mut service, 5000), if durable { None } else { Some((vec![2], vec![])) });
        }
    }
}
