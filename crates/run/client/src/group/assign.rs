//! Who gets which shards: `range`, as all of Kafka's clients know it.

use std::collections::BTreeMap;

use bytes::Bytes;
use tailwater_kafka_wire::consumer::{Assigned, Assignment, encode, topics};

/// Its name.
pub(super) const RANGE: &str = "range";

/// Members that subscribe to each topic, from what they say of themselves. Who says it in no known form gets nothing.
pub(super) fn subscribers(members: &[(String, Bytes)]) -> BTreeMap<String, Vec<String>> {
    let mut subscribers: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (id, subscription) in members {
        for topic in topics(subscription.clone()).unwrap_or_default() {
            subscribers.entry(topic).or_default().push(id.clone());
        }
    }
    subscribers
}

/// Of each topic, its subscribers in the order of their ids get as many partitions each, in rows; the first ones get
/// one more where that does not come out even.
pub(super) fn range(
    subscribers: &BTreeMap<String, Vec<String>>,
    partitions: &BTreeMap<String, u32>,
) -> BTreeMap<String, Bytes> {
    let mut assigned: BTreeMap<&String, Vec<Assigned>> = BTreeMap::new();
    for (topic, ids) in subscribers {
        let count = partitions.get(topic).copied().unwrap_or(0) as usize;
        let mut ids: Vec<&String> = ids.iter().collect();
        ids.sort();
        ids.dedup();
        let (each, more) = (count / ids.len(), count % ids.len());
        let mut first = 0;
        for (index, id) in ids.into_iter().enumerate() {
            let next = first + each + usize::from(index < more);
            let partitions: Vec<i32> = (first..next).map(|number| number as i32).collect();
            first = next;
            let topics = assigned.entry(id).or_default();
            if !partitions.is_empty() {
                topics.push(Assigned { topic: topic.clone(), partitions });
            }
        }
    }
    let encoded = |topics| encode(&Assignment { topics, user_data: None }, 0);
    assigned.into_iter().map(|(id, topics)| (id.clone(), encoded(topics))).collect()
}

#[cfg(test)]
mod tests {
    use tailwater_kafka_wire::consumer::{Subscription, assigned};

    use super::*;

    fn subscription(topics: &[&str]) -> Bytes {
        let topics = topics.iter().map(|topic| (*topic).to_owned()).collect();
        encode(&Subscription { topics, ..Default::default() }, 1)
    }

    #[test]
    fn every_partition_is_one_subscriber_s() {
        let members = [
            ("b".to_owned(), subscription(&["t", "u"])),
            ("a".to_owned(), subscription(&["t"])),
            ("c".to_owned(), subscription(&["t"])),
            ("d".to_owned(), Bytes::from_static(&[9])),
        ];
        let counts = [("t".to_owned(), 7), ("u".to_owned(), 2)].into();
        let all = range(&subscribers(&members), &counts);
        let of = |id: &str| -> Vec<(String, Vec<i32>)> {
            let topics = assigned(all[id].clone()).expect("in a known form");
            topics.into_iter().map(|topic| (topic.topic, topic.partitions)).collect()
        };
        assert_eq!(of("a"), [("t".to_owned(), vec![0, 1, 2])]);
        assert_eq!(of("b"), [("t".to_owned(), vec![3, 4]), ("u".to_owned(), vec![0, 1])]);
        assert_eq!(of("c"), [("t".to_owned(), vec![5, 6])]);
        assert!(!all.contains_key("d"));
    }

    #[test]
    fn more_members_than_partitions_leave_some_without_any() {
        let members: Vec<_> = (0..3).map(|id| (id.to_string(), subscription(&["t"]))).collect();
        let all = range(&subscribers(&members), &[("t".to_owned(), 1)].into());
        let counts: Vec<usize> =
            all.values().map(|bytes| assigned(bytes.clone()).expect("known").len()).collect();
        assert_eq!(counts, [1, 0, 0]);
    }
}
