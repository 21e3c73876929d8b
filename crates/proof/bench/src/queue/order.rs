//! Metrics of order (BDQS, section V.A): of what a queue's receivers got, in the order in which they got it.

use serde::Serialize;

/// What became of the messages of one run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct DeliveryOrder {
    /// Messages sent.
    pub sent: u64,
    /// Messages that did not come, or came damaged.
    pub lost: u64,
    /// Receives of a message that had come before.
    pub duplicates: u64,
    /// Messages that are not in the longest increasing subsequence.
    pub out_of_order: u64,
    /// By how much positions differ from those in the correct order, summed over all messages.
    pub displacement: u64,
}

impl DeliveryOrder {
    /// Compares what was received, in places of the correct order of `sent` messages, with that.
    pub fn of(received: &[u32], sent: u32) -> Self {
        let mut seen = vec![false; sent as usize];
        let first: Vec<u32> = received
            .iter()
            .copied()
            .filter(|place| !std::mem::replace(&mut seen[*place as usize], true))
            .collect();
        let mut places: Vec<u32> = first.clone();
        places.sort_unstable();
        // Positions are among those that came.
        let position = |place: &u32| places.partition_point(|other| other < place);
        let displacement =
            first.iter().enumerate().map(|(at, place)| at.abs_diff(position(place)) as u64).sum();
        Self {
            sent: sent.into(),
            lost: u64::from(sent) - first.len() as u64,
            duplicates: (received.len() - first.len()) as u64,
            out_of_order: (first.len() - longest_increasing(&first)) as u64,
            displacement,
        }
    }

    /// Adds another queue's.
    pub fn add(&mut self, other: &Self) {
        self.sent += other.sent;
        self.lost += other.lost;
        self.duplicates += other.duplicates;
        self.out_of_order += other.out_of_order;
        self.displacement += other.displacement;
    }
}

/// Length of the longest increasing subsequence, by the smallest ends of those of each length.
fn longest_increasing(values: &[u32]) -> usize {
    let mut ends: Vec<u32> = Vec::new();
    for value in values {
        let at = ends.partition_point(|end| end < value);
        match ends.get_mut(at) {
            Some(end) => *end = *value,
            None => ends.push(*value),
        }
    }
    ends.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_paper_s_examples_are_counted_as_the_paper_counts_them() {
        let one = DeliveryOrder::of(&[1, 0, 2, 3, 4], 5);
        assert_eq!((one.out_of_order, one.displacement), (1, 2), "20 %, 0.4");
        let other = DeliveryOrder::of(&[1, 2, 3, 4, 0], 5);
        assert_eq!((other.out_of_order, other.displacement), (1, 8), "20 %, 1.6");
    }

    #[test]
    fn duplicates_and_losses_are_counted_and_left_out_of_the_order() {
        let order = DeliveryOrder::of(&[0, 1, 0, 3, 1, 4], 5);
        assert_eq!((order.lost, order.duplicates, order.out_of_order, order.displacement), (1, 2, 0, 0));
        assert_eq!(DeliveryOrder::of(&[], 3), DeliveryOrder { sent: 3, lost: 3, ..DeliveryOrder::default() });
    }
}
