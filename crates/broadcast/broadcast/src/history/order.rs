//! A sorted map whose keys are close together in memory, and in which a search has no branches that depend on what it
//! finds: so the processor goes on to the next search while one waits. Both is otherwise in a tree.
//!
//! Two levels: runs of at most 128 neighbours, and the first key of each. What an insertion moves is a run, and the
//! list of runs where one is split.

/// Keys of a run at most.
const RUN_MAX: usize = 128;

/// Where one is: its run, and its place there. It holds until one is added or taken out.
#[derive(Clone, Copy, Debug)]
pub(super) struct OrderPlace(usize, usize);

#[derive(Clone, Debug)]
struct Run<V> {
    keys: Vec<u64>,
    values: Vec<V>,
}

/// The map.
#[derive(Clone, Debug)]
pub(super) struct Order<V> {
    /// The first key of each run.
    firsts: Vec<u64>,
    /// None is empty.
    runs: Vec<Run<V>>,
    len: usize,
}

impl<V> Default for Order<V> {
    fn default() -> Self {
        Self { firsts: Vec::new(), runs: Vec::new(), len: 0 }
    }
}

impl<V> Order<V> {
    /// How many it has.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Where the last one is that has at most this key.
    #[inline]
    pub(super) fn place(&self, key: u64) -> Option<OrderPlace> {
        let run = self.firsts.partition_point(|&first| first <= key).checked_sub(1)?;
        Some(OrderPlace(run, self.runs[run].keys.partition_point(|&other| other <= key) - 1))
    }

    /// The one at a place.
    ///
    /// # Panics
    /// If there is none.
    #[inline]
    pub(super) fn at(&self, OrderPlace(run, at): OrderPlace) -> &V {
        &self.runs[run].values[at]
    }

    /// The same, to be changed.
    ///
    /// # Panics
    /// As [`at`](Self::at).
    #[inline]
    pub(super) fn at_mut(&mut self, OrderPlace(run, at): OrderPlace) -> (u64, &mut V) {
        (self.runs[run].keys[at], &mut self.runs[run].values[at])
    }

    /// The last one that has at most this key.
    #[inline]
    pub(super) fn up_to(&self, key: u64) -> Option<(u64, &V)> {
        let OrderPlace(run, at) = self.place(key)?;
        Some((self.runs[run].keys[at], &self.runs[run].values[at]))
    }

    /// The same, to be changed.
    #[inline]
    pub(super) fn up_to_mut(&mut self, key: u64) -> Option<(u64, &mut V)> {
        self.place(key).map(|place| self.at_mut(place))
    }

    /// The one that has the least key.
    pub(super) fn first(&self) -> Option<(u64, &V)> {
        let run = self.runs.first()?;
        Some((*run.keys.first()?, run.values.first()?))
    }

    /// All from a key on.
    pub(super) fn from(&self, key: u64) -> impl Iterator<Item = (u64, &V)> {
        let (run, at) = match key.checked_sub(1).and_then(|before| self.place(before)) {
            Some(OrderPlace(run, at)) => (run, at + 1),
            None => (0, 0),
        };
        let (first, others) = self.runs[run..].split_first().unzip();
        first
            .into_iter()
            .flat_map(move |run| run.iter().skip(at))
            .chain(others.into_iter().flatten().flat_map(Run::iter))
    }

    /// All of them.
    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = (u64, &V)> {
        self.runs.iter().flat_map(Run::iter)
    }

    /// Adds one, whose key is not there.
    pub(super) fn insert(&mut self, key: u64, value: V) {
        self.len += 1;
        let (run, at) = match self.place(key) {
            Some(OrderPlace(run, at)) => (run, at + 1),
            None if self.runs.is_empty() => {
                self.firsts.push(key);
                self.runs.push(Run { keys: vec![key], values: vec![value] });
                return;
            }
            None => (0, 0),
        };
        let to = &mut self.runs[run];
        to.keys.insert(at, key);
        to.values.insert(at, value);
        self.firsts[run] = to.keys[0];
        if to.keys.len() > RUN_MAX {
            // Most come at the end, and leave full runs behind.
            let half = if at == RUN_MAX { RUN_MAX } else { RUN_MAX / 2 };
            let split = Run { keys: to.keys.split_off(half), values: to.values.split_off(half) };
            self.firsts.insert(run + 1, split.keys[0]);
            self.runs.insert(run + 1, split);
        }
    }

    /// Takes one out.
    pub(super) fn remove(&mut self, key: u64) -> Option<V> {
        let OrderPlace(run, at) = self.place(key)?;
        let of = &mut self.runs[run];
        if of.keys[at] != key {
            return None;
        }
        self.len -= 1;
        of.keys.remove(at);
        let value = of.values.remove(at);
        let next = self.runs.get(run + 1).map_or(RUN_MAX, |next| next.keys.len());
        if self.runs[run].keys.len() + next <= RUN_MAX / 2 {
            let next = self.runs.remove(run + 1);
            self.firsts.remove(run + 1);
            let of = &mut self.runs[run];
            of.keys.extend(next.keys);
            of.values.extend(next.values);
        }
        match self.runs[run].keys.first() {
            Some(first) => self.firsts[run] = *first,
            None => {
                self.firsts.remove(run);
                self.runs.remove(run);
            }
        }
        Some(value)
    }
}

impl<V> Run<V> {
    fn iter(&self) -> impl DoubleEndedIterator<Item = (u64, &V)> {
        self.keys.iter().copied().zip(&self.values)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn an_order_answers_as_a_map_does(steps in proptest::collection::vec((0..2000u64, any::<bool>()), 0..3000)) {
            let (mut order, mut map) = (Order::default(), BTreeMap::new());
            for (step, (key, is_added)) in steps.into_iter().enumerate() {
                if !is_added {
                    prop_assert_eq!(order.remove(key), map.remove(&key));
                } else if map.insert(key, step).is_none() {
                    order.insert(key, step);
                } else if let Some((_, value)) = order.up_to_mut(key) {
                    *value = step;
                }
                prop_assert_eq!(order.len(), map.len());
            }
            for key in 0..2000 {
                prop_assert_eq!(order.up_to(key), map.range(..=key).next_back().map(|(key, value)| (*key, value)));
                prop_assert_eq!(order.from(key).next(), map.range(key..).next().map(|(key, value)| (*key, value)));
            }
            prop_assert!(order.iter().eq(map.iter().map(|(key, value)| (*key, value))));
            prop_assert!(order.iter().rev().eq(map.iter().rev().map(|(key, value)| (*key, value))));
        }
    }
}
