//! What each publisher has published in one stream, so that a retry is not published twice.

use std::collections::BTreeMap;

use tailwater_env::HashMap;

use crate::message::PublisherId;

/// Publishers that one stream remembers; beyond it the one that was idle longest is forgotten.
pub const PUBLISHERS_MAX: usize = 65_536;

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

    /// A publisher's last number that all replicas hold.
    pub fn settled(&self, client: PublisherId) -> u64 {
        self.numbers.get(&client).map_or(0, |publisher| publisher.settled)
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

    fn used(&mut self, client: PublisherId) -> &mut Publisher {
        self.uses += 1;
        let used = self.uses;
        if let Some(publisher) = self.numbers.get(&client) {
            self.by_use.remove(&publisher.used);
        } else if self.numbers.len() >= PUBLISHERS_MAX
            && let Some((_, idle)) = self.by_use.pop_first()
        {
            self.numbers.remove(&idle);
        }
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
        publishers.stored(1 << 90, 1);
        assert_eq!(publishers.newest(0), Some(2));
        assert_eq!(publishers.newest(1), None);
        publishers.unsettle();
        assert_eq!((publishers.newest(0), publishers.newest(1 << 90)), (Some(1), Some(0)));
    }
}
