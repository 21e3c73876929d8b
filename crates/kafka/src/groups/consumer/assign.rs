//! Who gets which partitions.

use std::collections::{BTreeMap, BTreeSet};

use tailwater_format::StreamId;

use super::Partitions;

/// Moves that even out members with different subscriptions, at most: what is left is a little uneven.
const MOVES_MAX: usize = 10_000;

/// How partitions are divided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Assignor {
    /// As many for each member, and as little moved as that allows.
    #[default]
    Uniform,
    /// Of each topic, rows of partitions in the order of the members: the same ones of all topics with as many.
    Range,
}

/// A member, as an assignor sees it.
#[derive(Clone, Debug)]
pub(crate) struct Subscriber {
    pub id: String,
    pub topics: BTreeSet<StreamId>,
    /// What the last target gave it.
    pub has: Partitions,
}

impl Assignor {
    /// The one of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "uniform" => Some(Self::Uniform),
            "range" => Some(Self::Range),
            _ => None,
        }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Uniform => "uniform",
            Self::Range => "range",
        }
    }

    /// What each member gets of topics with so many partitions: every partition of a topic that anybody subscribes to
    /// goes to one of those who do.
    pub fn assign(
        self,
        members: &[Subscriber],
        topics: &BTreeMap<StreamId, u32>,
    ) -> BTreeMap<String, Partitions> {
        let assigned = match self {
            Self::Uniform => uniform(members, topics),
            Self::Range => range(members, topics),
        };
        members.iter().map(|member| member.id.clone()).zip(assigned).collect()
    }
}

fn range(members: &[Subscriber], topics: &BTreeMap<StreamId, u32>) -> Vec<Partitions> {
    let mut assigned = vec![Partitions::new(); members.len()];
    for (topic, count) in topics {
        let subscribers = (0..members.len()).filter(|index| members[*index].topics.contains(topic));
        let subscribers: Vec<usize> = subscribers.collect();
        if subscribers.is_empty() {
            continue;
        }
        let (each, more) = (count / subscribers.len() as u32, count % subscribers.len() as u32);
        let mut first = 0;
        for (place, index) in subscribers.into_iter().enumerate() {
            let next = first + each + u32::from((place as u32) < more);
            if next > first {
                assigned[index].insert(*topic, (first..next).collect());
            }
            first = next;
        }
    }
    assigned
}

/// One partition.
type Partition = (StreamId, u32);

fn uniform(members: &[Subscriber], topics: &BTreeMap<StreamId, u32>) -> Vec<Partitions> {
    // What is still right of the last target stays at first.
    let mut assigned: Vec<BTreeSet<Partition>> = vec![BTreeSet::new(); members.len()];
    let mut taken: BTreeSet<Partition> = BTreeSet::new();
    for (member, assigned) in members.iter().zip(&mut assigned) {
        for (topic, partitions) in &member.has {
            let count = topics.get(topic).copied().unwrap_or(0);
            if member.topics.contains(topic) {
                let still = partitions.iter().filter(|number| **number < count);
                assigned.extend(still.map(|number| (*topic, *number)).filter(|one| taken.insert(*one)));
            }
        }
    }
    let is_same = members.windows(2).all(|pair| pair[0].topics == pair[1].topics);
    if is_same {
        give_back_beyond_even(members.len(), topics, &mut assigned, &mut taken);
    }
    // The least loaded come first.
    let mut loads: BTreeSet<(usize, usize)> =
        assigned.iter().enumerate().map(|(index, assigned)| (assigned.len(), index)).collect();
    for (topic, count) in topics {
        for number in 0..*count {
            if taken.contains(&(*topic, number)) {
                continue;
            }
            let found = loads.iter().find(|(_, index)| members[*index].topics.contains(topic)).copied();
            let Some((load, index)) = found else { break };
            loads.remove(&(load, index));
            loads.insert((load + 1, index));
            assigned[index].insert((*topic, number));
        }
    }
    if !is_same {
        even_out(members, &mut assigned, &mut loads);
    }
    let by_topic = assigned.into_iter().map(|assigned| {
        let mut partitions = Partitions::new();
        for (topic, number) in assigned {
            partitions.entry(topic).or_default().insert(number);
        }
        partitions
    });
    by_topic.collect()
}

/// Everybody gets as many, or one more: who has more than that gives it back.
fn give_back_beyond_even(
    members: usize,
    topics: &BTreeMap<StreamId, u32>,
    assigned: &mut [BTreeSet<Partition>],
    taken: &mut BTreeSet<Partition>,
) {
    if members == 0 {
        return;
    }
    let total: usize = topics.values().map(|count| *count as usize).sum();
    let (each, mut more) = (total / members, total % members);
    for assigned in assigned {
        let keeps = each + usize::from(more > 0);
        more -= usize::from(more > 0 && assigned.len() > each);
        while assigned.len() > keeps
            && let Some(last) = assigned.pop_last()
        {
            taken.remove(&last);
        }
    }
}

/// Moves partitions from who has at least two more to who subscribes to their topic too.
fn even_out(
    members: &[Subscriber],
    assigned: &mut [BTreeSet<Partition>],
    loads: &mut BTreeSet<(usize, usize)>,
) {
    for _ in 0..MOVES_MAX {
        let found = loads.iter().find_map(|(less, to)| {
            let more = loads.iter().rev().take_while(|(more, _)| *more > less + 1);
            more.into_iter().find_map(|(more, from)| {
                let moved = assigned[*from].iter().find(|(topic, _)| members[*to].topics.contains(topic))?;
                Some(((*more, *from), (*less, *to), *moved))
            })
        });
        let Some((from, to, moved)) = found else { return };
        loads.remove(&from);
        loads.remove(&to);
        loads.insert((from.0 - 1, from.1));
        loads.insert((to.0 + 1, to.1));
        assigned[from.1].remove(&moved);
        assigned[to.1].insert(moved);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn topic(number: u128) -> StreamId {
        StreamId(uuid::Uuid::from_u128(number))
    }

    fn subscribers(topics: &[&[u128]]) -> Vec<Subscriber> {
        let member = |(index, topics): (usize, &&[u128])| Subscriber {
            id: format!("m{index}"),
            topics: topics.iter().map(|number| topic(*number)).collect(),
            has: Partitions::new(),
        };
        topics.iter().enumerate().map(member).collect()
    }

    fn sizes(assigned: &BTreeMap<String, Partitions>) -> Vec<usize> {
        assigned.values().map(|partitions| partitions.values().map(BTreeSet::len).sum()).collect()
    }

    #[test]
    fn range_gives_the_same_rows_of_all_topics() {
        let topics = [(topic(1), 5), (topic(2), 5)].into();
        let assigned = Assignor::Range.assign(&subscribers(&[&[1, 2], &[1, 2]]), &topics);
        let expected = |row: std::ops::Range<u32>| -> Partitions {
            [(topic(1), row.clone().collect()), (topic(2), row.collect())].into()
        };
        assert_eq!(assigned["m0"], expected(0..3));
        assert_eq!(assigned["m1"], expected(3..5));
    }

    #[test]
    fn uniform_moves_no_more_than_it_has_to() {
        let topics = [(topic(1), 7), (topic(2), 5)].into();
        let mut members = subscribers(&[&[1, 2], &[1, 2]]);
        let first = Assignor::Uniform.assign(&members, &topics);
        assert_eq!(sizes(&first), [6, 6]);
        for member in &mut members {
            member.has = first[&member.id].clone();
        }
        assert_eq!(Assignor::Uniform.assign(&members, &topics), first, "nothing changed");
        members.extend(subscribers(&[&[1, 2], &[1, 2], &[1, 2]]).pop());
        let second = Assignor::Uniform.assign(&members, &topics);
        assert_eq!(sizes(&second), [4, 4, 4]);
        for member in ["m0", "m1"] {
            assert!(super::super::contains(&first[member], &second[member]), "they only give up");
        }
    }

    proptest! {
        #[test]
        fn every_partition_is_one_subscriber_s_and_loads_are_even(
            wants in prop::collection::vec(prop::collection::btree_set(0..4_u128, 0..4), 1..8),
            counts in prop::collection::vec(0..20_u32, 4),
            has in prop::collection::vec((0..4_u128, 0..25_u32, 0..8_usize), 0..40),
        ) {
            let mut members: Vec<Subscriber> = wants.iter().enumerate().map(|(index, wants)| Subscriber {
                id: format!("m{index}"),
                topics: wants.iter().map(|number| topic(*number)).collect(),
                has: Partitions::new(),
            }).collect();
            for (number, partition, member) in has {
                let member = member % members.len();
                members[member].has.entry(topic(number)).or_default().insert(partition);
            }
            let wanted: BTreeSet<u128> = wants.iter().flatten().copied().collect();
            let topics: BTreeMap<StreamId, u32> =
                wanted.iter().map(|number| (topic(*number), counts[*number as usize])).collect();
            for assignor in [Assignor::Uniform, Assignor::Range] {
                let assigned = assignor.assign(&members, &topics);
                let mut seen = BTreeSet::new();
                for member in &members {
                    for (topic, partitions) in &assigned[&member.id] {
                        prop_assert!(member.topics.contains(topic));
                        for number in partitions {
                            prop_assert!(*number < topics[topic] && seen.insert((*topic, *number)));
                        }
                    }
                }
                prop_assert_eq!(seen.len(), topics.values().sum::<u32>() as usize);
                if assignor == Assignor::Uniform && wants.windows(2).all(|pair| pair[0] == pair[1]) {
                    let sizes = sizes(&assigned);
                    prop_assert!(sizes.iter().max().unwrap() - sizes.iter().min().unwrap() <= 1);
                }
            }
        }
    }
}
