//! Who gets which partitions.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tailwater_format::StreamId;

use super::Partitions;

/// Partitions or topics that are looked at to even out members with different subscriptions, at most: some tens of
/// milliseconds. What is left is a little uneven.
const LOOKS_MAX: usize = 1 << 20;

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
    pub topics: Arc<BTreeSet<StreamId>>,
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
    let mut loads = loads_of(0..members.len(), &assigned);
    for (topic, count) in topics {
        let mut free = (0..*count).filter(|number| !taken.contains(&(*topic, *number))).peekable();
        if free.peek().is_none() {
            continue;
        }
        if !is_same {
            let subscribers = (0..members.len()).filter(|index| members[*index].topics.contains(topic));
            loads = loads_of(subscribers, &assigned);
        }
        for number in free {
            let Some((load, index)) = loads.pop_first() else { break };
            loads.insert((load + 1, index));
            assigned[index].insert((*topic, number));
        }
    }
    if !is_same {
        even_out(members, &mut assigned, LOOKS_MAX);
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

/// Members by how much they have: the least loaded come first.
fn loads_of(
    members: impl Iterator<Item = usize>,
    assigned: &[BTreeSet<Partition>],
) -> BTreeSet<(usize, usize)> {
    members.map(|index| (assigned[index].len(), index)).collect()
}

/// Moves partitions from who has at least two more to who subscribes to their topic too, for so many looks.
///
/// Whom nobody can give anything to is not looked at again before somebody has become able to: who has just got more.
fn even_out(members: &[Subscriber], assigned: &mut [BTreeSet<Partition>], looks_max: usize) {
    let mut looks = 0;
    let mut look = |partitions: &BTreeSet<Partition>, topics: &BTreeSet<StreamId>| {
        looks += 1 + topics.len().min(partitions.len());
        if looks > looks_max { Err(AssignmentTooLong) } else { Ok(first_of(partitions, topics)) }
    };
    let mut loads = loads_of(0..members.len(), assigned);
    let mut takers = loads.clone();
    while let Some((less, to)) = takers.pop_first() {
        let mut givers = loads.iter().rev().take_while(|(more, _)| *more > less + 1);
        let given = givers.find_map(|(more, from)| match look(&assigned[*from], &members[to].topics) {
            Ok(None) => None,
            found => Some((*more, *from, found)),
        });
        let Some((more, from, given)) = given else { continue };
        let Ok(Some(given)) = given else { return };
        for (before, after, index) in [(more, more - 1, from), (less, less + 1, to)] {
            loads.remove(&(before, index));
            takers.remove(&(before, index));
            loads.insert((after, index));
            takers.insert((after, index));
        }
        assigned[from].remove(&given);
        assigned[to].insert(given);
        for (index, member) in members.iter().enumerate() {
            let load = assigned[index].len();
            if load < less && !takers.contains(&(load, index)) {
                match look(&assigned[to], &member.topics) {
                    Ok(Some(_)) => _ = takers.insert((load, index)),
                    Ok(None) => {}
                    Err(AssignmentTooLong) => return,
                }
            }
        }
    }
}

/// There were as many looks as may be.
struct AssignmentTooLong;

/// The first partition that is of any of the topics.
fn first_of(partitions: &BTreeSet<Partition>, topics: &BTreeSet<StreamId>) -> Option<Partition> {
    let first_of_topic = |topic: &StreamId| partitions.range((*topic, 0)..=(*topic, u32::MAX)).next();
    let found = match topics.len() < partitions.len() {
        true => topics.iter().find_map(first_of_topic),
        false => partitions.iter().find(|(topic, _)| topics.contains(topic)),
    };
    found.copied()
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
            topics: Arc::new(topics.iter().map(|number| topic(*number)).collect()),
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

    #[test]
    fn how_long_loads_are_evened_out_is_bounded_by_what_is_looked_at() {
        let members = subscribers(&[&[1], &[1, 2]]);
        let all: BTreeSet<Partition> = (0..100).map(|number| (topic(1), number)).collect();
        for (looks, moved) in [(0, 0), (20, 10), (1_000, 50)] {
            let mut assigned = [BTreeSet::new(), all.clone()];
            even_out(&members, &mut assigned, looks);
            assert_eq!(assigned.map(|assigned| assigned.len()), [moved, 100 - moved]);
        }
    }

    #[test]
    fn who_can_be_given_nothing_does_not_keep_others_from_it() {
        let mut wants: Vec<&[u128]> = vec![&[1]; 499];
        wants.extend([&[2_u128, 3][..]; 500]);
        let mut members = subscribers(&wants);
        // All is one's, of those that share it, which took it before the others came.
        members[700].has = [(topic(2), (0..500).collect()), (topic(3), (0..500).collect())].into();
        let topics = [(topic(1), 3), (topic(2), 500), (topic(3), 500)].into();
        let sizes = sizes(&Assignor::Uniform.assign(&members, &topics));
        assert_eq!(sizes.iter().filter(|size| **size == 2).count(), 500);
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
                topics: Arc::new(wants.iter().map(|number| topic(*number)).collect()),
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
                if assignor == Assignor::Uniform {
                    for (less, more) in members.iter().flat_map(|one| members.iter().map(move |other| (one, other))) {
                        let [load, others] = [less, more].map(|member| {
                            assigned[&member.id].values().map(BTreeSet::len).sum::<usize>()
                        });
                        let could = assigned[&more.id].keys().any(|topic| less.topics.contains(topic));
                        prop_assert!(others <= load + 1 || !could, "nobody has two more that another one could have");
                    }
                }
                if assignor == Assignor::Uniform && wants.windows(2).all(|pair| pair[0] == pair[1]) {
                    let sizes = sizes(&assigned);
                    prop_assert!(sizes.iter().max().unwrap() - sizes.iter().min().unwrap() <= 1);
                }
            }
        }
    }
}
