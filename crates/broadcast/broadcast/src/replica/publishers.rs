//! What each publisher has published in one stream, so that a retry is not published twice.

use std::collections::BTreeMap;

use tailwater_env::HashMap;

use crate::limits::PUBLISHERS_MAX;
use crate::message::PublisherId;

/// Looked at for each new one: where many waited for answers, there may be more than that for a while.
const FORGOTTEN_AT_ONCE: usize = 4;

#[derive(Clone, Copy, Debug)]
struct Publisher {
    /// Its last number that all replicas hold.
    settled: u64,
    /// Its last number that this replica has.
    newest: u64,
    /// Its place in the order of use.
    used: u64,
}

/// The last number of each publisher of a stream.
///
/// A publisher is forgotten only when [`PUBLISHERS_MAX`] others were active since; if it then retries what was
/// published, it is published twice.
#[derive(Debug, Default)]
pub struct Publishers {
    numbers: HashMap<PublisherId, Publisher>,
    by_use: BTreeMap<u64, PublisherId>,
    uses: u64,
}

impl Publishers {
    /// A publisher's last number, settled or not; `None` if it is not known.
    pub fn newest(&self, client: PublisherId) -> Option<u64> {
        self.numbers.get(&client).map(|publisher| publisher.newest)
    }

    /// Whether all replicas hold a publisher's events up to `number`, which this replica has. They do if it is
    /// forgotten: one that waits is not.
    pub fn is_settled(&self, client: PublisherId, number: u64) -> bool {
        self.numbers.get(&client).is_none_or(|publisher| publisher.settled >= number)
    }

    /// A publisher sent again what this replica has: it is not idle.
    pub fn repeated(&mut self, client: PublisherId) {
        if self.numbers.contains_key(&client) {
            self.used(client);
        }
    }

    /// This replica has a publisher's events up to `number`.
    pub fn stored(&mut self, client: PublisherId, number: u64) {
        let publisher = self.used(client);
        publisher.newest = publisher.newest.max(number);
    }

    /// All replicas hold a publisher's events up to `number`.
    pub fn settle(&mut self, client: PublisherId, number: u64) {
        let publisher = self.used(client);
        publisher.settled = publisher.settled.max(number);
        publisher.newest = publisher.newest.max(number);
    }

    /// Forgets what is not settled.
    pub fn unsettle(&mut self) {
        for publisher in self.numbers.values_mut() {
            publisher.newest = publisher.settled;
        }
    }

    /// Each publisher's last number that all replicas hold, the one used last at the end.
    pub fn settled_numbers(&self) -> Vec<(PublisherId, u64)> {
        let known =
            self.by_use.values().filter_map(|client| Some((*client, self.numbers.get(client)?.settled)));
        known.filter(|(_, settled)| *settled > 0).collect()
    }

    /// Forgets the one that was idle longest, if there are too many. One that waits for an answer is not idle.
    fn forget_one(&mut self) {
        if self.numbers.len() < PUBLISHERS_MAX {
            return;
        }
        let Some((_, idle)) = self.by_use.pop_first() else { return };
        match self.numbers.get_mut(&idle).filter(|publisher| publisher.newest > publisher.settled) {
            None => {
                self.numbers.remove(&idle);
            }
            Some(waiting) => {
                self.uses += 1;
                waiting.used = self.uses;
                self.by_use.insert(self.uses, idle);
            }
        }
    }

    fn used(&mut self, client: PublisherId) -> &mut Publisher {
        match self.numbers.get(&client) {
            Some(publisher) => {
                self.by_use.remove(&publisher.used);
            }
            None => (0..FORGOTTEN_AT_ONCE).for_each(|_| self.forget_one()),
        }
        self.uses += 1;
        let used = self.uses;
        self.by_use.insert(used, client);
        let publisher = self.numbers.entry(client).or_insert(Publisher { settled: 0, newest: 0, used });
        publisher.used = used;
        publisher
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_publisher_that_was_idle_longest_is_forgotten_first() {
        let mut publishers = Publishers::default();
        for client in 0..PUBLISHERS_MAX as u128 {
            publishers.settle(client, 1);
        }
        publishers.stored(0, 2);
        publishers.stored(1, 2);
        publishers.stored(1 << 90, 1);
        assert_eq!(publishers.newest(0), Some(2));
        assert_eq!(publishers.newest(2), None);
        publishers.unsettle();
        assert_eq!((publishers.newest(0), publishers.newest(1 << 90)), (Some(1), Some(0)));
    }

    #[test]
    fn a_publisher_that_retries_is_not_idle_and_one_that_is_forgotten_waits_for_nothing() {
        let mut publishers = Publishers::default();
        for client in 0..PUBLISHERS_MAX as u128 {
            publishers.settle(client, 1);
        }
        publishers.repeated(0);
        publishers.stored(1 << 90, 1);
        assert_eq!(publishers.newest(0), Some(1));
        assert_eq!(publishers.newest(1), None);
        assert!(publishers.is_settled(1, 1));
    }

    #[test]
    fn a_publisher_that_waits_for_an_answer_is_not_forgotten_whoever_else_comes() {
        let mut publishers = Publishers::default();
        publishers.stored(7, 1);
        for client in 100..100 + 2 * PUBLISHERS_MAX as u128 {
            publishers.settle(client, 1);
        }
        assert!(!publishers.is_settled(7, 1));
        publishers.settle(7, 1);
        assert!(publishers.is_settled(7, 1));
        assert!(publishers.numbers.len() <= PUBLISHERS_MAX);
    }
}
