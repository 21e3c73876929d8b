//! From what a member has to what it gets, without anything having two owners.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tailwater_env::Instant;
use tailwater_format::StreamId;

use super::assign::{Assignor, Subscriber};
use super::pattern::PatternKey;
use super::{Catalog, ConsumerGroup, Member, Partitions, Pattern};

/// The topics that a member wants.
pub(super) type Wanted = Arc<BTreeSet<StreamId>>;

impl ConsumerGroup {
    /// Makes a new target if members or topics are not those that the last one was made of.
    pub(super) fn refresh(&mut self, catalog: &Catalog) {
        if self.epoch == self.target_epoch && self.catalog_version >= Some(catalog.version) {
            // What most heartbeats find: nobody came, left or wants something else, and topics are as they were. Older
            // ones say nothing about what there is now.
            return;
        }
        self.catalog_version = Some(catalog.version);
        let (wanted, topics) = self.wanted(catalog);
        // After a restart what the target was made of is not known, only what it is.
        let was_restored = std::mem::take(&mut self.is_restored);
        let mut is_same = match was_restored {
            true => self.is_target_of(&wanted, &topics),
            false => topics == self.topics,
        };
        self.topics = topics;
        for (member, wanted) in self.members.values_mut().zip(&wanted) {
            is_same &= was_restored || member.wanted == *wanted;
            member.wanted = Arc::clone(wanted);
        }
        if !is_same {
            self.bump();
        }
        if self.epoch == self.target_epoch {
            return;
        }
        self.assignor = self.preferred();
        let mut members: Vec<(&str, Subscriber)> = Vec::with_capacity(self.members.len());
        for ((id, member), topics) in self.members.iter().zip(wanted) {
            let subscriber =
                Subscriber { id: id.clone(), topics, has: self.target.get(id).cloned().unwrap_or_default() };
            members.push((member.order(id), subscriber));
        }
        members.sort_by_key(|(order, _)| *order);
        let members: Vec<Subscriber> = members.into_iter().map(|(_, member)| member).collect();
        let target = self.assignor.assign(&members, &self.topics);
        let before = std::mem::replace(&mut self.target, target);
        let changed = self.target.iter().filter(|(id, target)| before.get(*id) != Some(*target));
        self.touched.extend(changed.map(|(id, _)| id.clone()));
        self.target_epoch = self.epoch;
    }

    /// The topics of the catalog that members want: each of them, in their order, and all together. What was found for
    /// one is shared by those who say the same.
    pub(super) fn wanted(&self, catalog: &Catalog) -> (Vec<Wanted>, BTreeMap<StreamId, u32>) {
        let mut found: BTreeMap<(&BTreeSet<String>, Option<PatternKey<'_>>), Wanted> = BTreeMap::new();
        let each = self.members.values().map(|member| {
            let said = (&member.topics, member.pattern.as_ref().map(Pattern::key));
            Arc::clone(found.entry(said).or_insert_with(|| Arc::new(member.wants(catalog))))
        });
        let each = each.collect();
        let all: BTreeSet<StreamId> = found.values().flat_map(|topics| topics.iter().copied()).collect();
        (each, catalog.values().filter(|(id, _)| all.contains(id)).copied().collect())
    }

    /// The assignor that most members want.
    pub(super) fn preferred(&self) -> Assignor {
        let mut votes: BTreeMap<Assignor, usize> = BTreeMap::new();
        for assignor in self.members.values().filter_map(|member| member.assignor) {
            *votes.entry(assignor).or_default() += 1;
        }
        let most = votes.into_iter().rev().max_by_key(|(_, count)| *count);
        most.map_or(Assignor::default(), |(assignor, _)| assignor)
    }

    /// Brings a member nearer to its target; `owned` is what it says that it has, if it does.
    pub(super) fn reconcile(&mut self, now: Instant, id: &str, owned: Option<&Partitions>) {
        let target_epoch = self.target_epoch;
        let is_there =
            |member: &Member| member.epoch == target_epoch && !member.waits && member.revoking.is_empty();
        if self.members.get(id).is_none_or(is_there) {
            return;
        }
        self.touched.insert(id.to_owned());
        let target = self.target.get(id).cloned().unwrap_or_default();
        let taken = self.taken_by_others(id);
        let Some(member) = self.members.get_mut(id) else { return };
        let still_has = |given_up: &Partitions| owned.is_none_or(|owned| intersects(owned, given_up));
        if !member.revoking.is_empty() {
            if still_has(&member.revoking) {
                return;
            }
            member.revoking.clear();
            member.revoke_deadline = None;
        }
        let keeps = common(&member.assigned, &target);
        let gives_up = without(&member.assigned, &target);
        if !gives_up.is_empty() && still_has(&gives_up) {
            member.assigned = keeps;
            member.revoking = gives_up;
            member.revoke_deadline = Some(now + member.rebalance);
            return;
        }
        let missing = without(&target, &keeps);
        let free = without(&missing, &taken);
        member.waits = free != missing;
        member.assigned = keeps;
        for (topic, partitions) in free {
            member.assigned.entry(topic).or_default().extend(partitions);
        }
        if member.epoch != target_epoch {
            member.previous_epoch = member.epoch;
            member.epoch = target_epoch;
        }
    }

    /// What others have, or have to give up and were not heard to have; those too who will be back.
    pub(super) fn taken_by_others(&self, id: &str) -> Partitions {
        let mut taken = Partitions::new();
        let others = self.members.iter().filter(|(other, _)| *other != id);
        for (_, member) in others {
            for (topic, partitions) in member.assigned.iter().chain(&member.revoking) {
                taken.entry(*topic).or_default().extend(partitions);
            }
        }
        taken
    }
}

/// What both have.
fn common(one: &Partitions, other: &Partitions) -> Partitions {
    let both = one.iter().filter_map(|(topic, partitions)| {
        let both: BTreeSet<u32> = partitions.intersection(other.get(topic)?).copied().collect();
        Some((*topic, both))
    });
    both.filter(|(_, partitions)| !partitions.is_empty()).collect()
}

/// What `one` has and `other` does not.
pub(super) fn without(one: &Partitions, other: &Partitions) -> Partitions {
    let rest = one.iter().map(|(topic, partitions)| {
        let rest = match other.get(topic) {
            Some(other) => partitions.difference(other).copied().collect(),
            None => partitions.clone(),
        };
        (*topic, rest)
    });
    rest.filter(|(_, partitions)| !partitions.is_empty()).collect()
}

pub(super) fn intersects(one: &Partitions, other: &Partitions) -> bool {
    one.iter().any(|(topic, partitions)| other.get(topic).is_some_and(|other| !partitions.is_disjoint(other)))
}
