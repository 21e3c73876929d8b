//! A group as it is kept over a restart, and again afterwards.
//!
//! What is kept of members is what they were told, or were about to be: it is durable before they are. So whatever a
//! member may have, its record says so, unless it was heard to have given it up. Sessions begin anew.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tailwater_env::Instant;
use tailwater_format::StreamId;

use super::classic::Classic;
use super::pattern::PatternKey;
use super::reconcile::{Wanted, without};
use super::{Catalog, ConsumerGroup, Limits, Member, Partitions, Pattern};
use crate::groups::members::{ClassicRecord, MemberRecord};

impl ConsumerGroup {
    /// The members of which something else is to be kept than when this was asked last, or nothing any more.
    pub fn take_touched(&mut self) -> BTreeSet<String> {
        std::mem::take(&mut self.touched)
    }

    /// What is to be kept of a member; `None` if it is none.
    pub fn record_of(&self, id: &str) -> Option<MemberRecord> {
        let member = self.members.get(id)?;
        let millis = |duration: Duration| u32::try_from(duration.as_millis()).unwrap_or(u32::MAX);
        let pattern = member.pattern.as_ref();
        Some(MemberRecord {
            id: id.to_owned(),
            instance: member.instance.clone(),
            rack: member.rack.clone(),
            client_id: Arc::clone(&member.client_id),
            client_host: member.client_host.clone(),
            rebalance_ms: millis(member.rebalance),
            topics: member.topics.clone(),
            pattern: pattern.map(|pattern| (pattern.text.clone(), Arc::clone(&pattern.principal))),
            assignor: member.assignor,
            epoch: member.epoch,
            previous_epoch: member.previous_epoch,
            assigned: member.assigned.clone(),
            revoking: member.revoking.clone(),
            target: self.target.get(id).cloned().unwrap_or_default(),
            classic: member.classic.as_ref().map(|classic| ClassicRecord {
                session_ms: millis(classic.session),
                is_due: classic.due.is_some(),
                protocols: classic.protocols.clone(),
            }),
        })
    }

    /// A group of which that is kept. Its members' patterns have found by then what they had found before. A member
    /// whose pattern is none any more is not in it.
    ///
    /// Changes may have become durable in part, if nobody was told of them. So epochs are no earlier than those of
    /// members, and what two members have nobody was told to take: one of them has it.
    pub fn restore(
        now: Instant,
        limits: Arc<Limits>,
        (epoch, target_epoch): (i32, i32),
        records: Vec<MemberRecord>,
        catalog: &Catalog,
    ) -> Self {
        let mut group = Self::new(limits, epoch);
        let patterns = compile(now, &records, catalog);
        let mut taken = BTreeSet::new();
        group.target_epoch = target_epoch;
        for record in records {
            let MemberRecord { id, instance, client_id, client_host, mut assigned, mut revoking, .. } =
                record;
            let pattern = match &record.pattern {
                None => None,
                Some((text, principal)) => match patterns.get(&(text.clone(), Arc::clone(principal))) {
                    Some(pattern) => Some(pattern.clone()),
                    None => {
                        group.touched.insert(id);
                        continue;
                    }
                },
            };
            let mut is_its_own = true;
            for had in [&mut assigned, &mut revoking] {
                had.retain(|topic, numbers| {
                    let count = numbers.len();
                    numbers.retain(|number| taken.insert((*topic, *number)));
                    is_its_own &= numbers.len() == count;
                    !numbers.is_empty()
                });
            }
            if !is_its_own {
                group.touched.insert(id.clone());
            }
            let rebalance = Duration::from_millis(record.rebalance_ms.into());
            let classic = record.classic.map(|classic| Classic {
                session: Duration::from_millis(classic.session_ms.into()),
                protocols: classic.protocols,
                due: classic.is_due.then(|| now + rebalance),
            });
            let session = classic.as_ref().map_or(group.limits.session, |classic| classic.session);
            let mut member = Member {
                rack: record.rack,
                rebalance,
                pattern,
                assignor: record.assignor,
                epoch: record.epoch,
                previous_epoch: record.previous_epoch,
                waits: !without(&record.target, &assigned).is_empty(),
                revoke_deadline: (!revoking.is_empty()).then(|| now + rebalance),
                assigned,
                revoking,
                classic,
                ..Member::new(instance.clone(), client_id, client_host, now + session)
            };
            member.subscribe(record.topics);
            group.target_epoch = group.target_epoch.max(member.epoch);
            group.instances.extend(instance.map(|instance| (instance, id.clone())));
            group.target.insert(id.clone(), record.target);
            group.members.insert(id, member);
        }
        group.epoch = group.epoch.max(group.target_epoch);
        group.assignor = group.preferred();
        group.count_patterns();
        if !group.touched.is_empty() {
            group.bump();
        }
        group.is_restored = true;
        group
    }

    /// Whether the target is one of these topics: each of their partitions is one member's that wants the topic, and
    /// nothing else is anybody's.
    pub(super) fn is_target_of(&self, wanted: &[Wanted], topics: &BTreeMap<StreamId, u32>) -> bool {
        let mut given = BTreeSet::new();
        let all: usize = topics.values().map(|count| *count as usize).sum();
        let is_right = self.members.keys().zip(wanted).all(|(id, wanted)| {
            self.target.get(id).into_iter().flatten().all(|(topic, numbers)| {
                let count = topics.get(topic).copied().unwrap_or(0);
                wanted.contains(topic)
                    && numbers.iter().all(|number| *number < count && given.insert((*topic, *number)))
            })
        });
        is_right && given.len() == all
    }
}

/// The patterns of these members by text and principal, each once, if it is one. Which topics whoever has it may know
/// of is asked with the next heartbeat; until then those are found that members with the pattern had, or were to get.
fn compile(
    now: Instant,
    records: &[MemberRecord],
    catalog: &Catalog,
) -> BTreeMap<(String, Arc<str>), Pattern> {
    let mut had: BTreeMap<PatternKey<'_>, BTreeSet<StreamId>> = BTreeMap::new();
    for record in records {
        if let Some((text, principal)) = &record.pattern {
            let all = [&record.assigned, &record.revoking, &record.target];
            let topics = all.into_iter().flat_map(Partitions::keys);
            had.entry((text.as_str(), &**principal)).or_default().extend(topics);
        }
    }
    let compiled = had.into_iter().filter_map(|((text, principal), had)| {
        let principal = Arc::from(principal);
        let pattern = Pattern::new(text, &principal).ok()?;
        pattern.had_found(now, catalog, &had);
        Some(((text.to_owned(), principal), pattern))
    });
    compiled.collect()
}
