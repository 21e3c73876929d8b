//! Receiving from a queue of groups: in each group in order, and nothing of a group whose first message is invisible.

use std::collections::VecDeque;

use tailwater_env::HashMap;

use super::{Queue, QueueReceived, Taken, Want};
use crate::ids::{Sequence, Token};
use crate::limits::{ATTEMPT_MS, ATTEMPTS_MAX, BATCH_MAX, MOVE_STEP};
use crate::pages::{IN_FLIGHT, MOVING};

impl Queue {
    pub(super) fn receive_fifo(
        &mut self,
        now: u64,
        want: &Want,
        random_below: &mut dyn FnMut(u64) -> u64,
    ) -> QueueReceived {
        if let Some(again) = want.attempt.as_ref().and_then(|attempt| self.receive_again(attempt, now, want))
        {
            return QueueReceived { taken: again, ..QueueReceived::default() };
        }
        let mut received = QueueReceived::default();
        let mut groups = Vec::new();
        while received.taken.len() < want.count && received.overdue.len() < MOVE_STEP {
            // The group whose first message is the oldest; its tuple is out of the index meanwhile.
            let Self { index, pages, .. } = self;
            let at = |sequence| pages.get(sequence).map_or(0, |entry| entry.visible_at);
            let Some((_, head)) = index.take(1, 1, at, &mut *random_below).0.pop() else { break };
            let Some(group) = self.pages.get(head).map(|entry| entry.group) else { continue };
            self.groups.get_mut(group).head = None;
            groups.push(group);
            let (mut next, mut is_behind_moving) = (0, false);
            while received.taken.len() < want.count
                && let Some(sequence) = self.groups.get(group).messages.get(next).copied()
            {
                let Some(entry) = self.pages.get(sequence) else {
                    next += 1;
                    continue;
                };
                if entry.visible_at > now || entry.is(MOVING) {
                    break;
                }
                if self.is_overdue(&entry, want) {
                    self.begin_move_within(sequence);
                    received.overdue.push(sequence);
                    if received.overdue.len() >= MOVE_STEP {
                        break;
                    }
                    (next, is_behind_moving) = (next + 1, true);
                    continue;
                }
                // The move may be lost, and then the message before this one is still there.
                if is_behind_moving {
                    break;
                }
                let token = Token(random_below(1 << 32) as u32);
                received.taken.extend(self.hand_out(sequence, now, want.visibility_ms, token));
                next += 1;
            }
        }
        for taken in &received.taken {
            self.list(taken.sequence, now);
        }
        for group in groups {
            self.refresh(group, now);
        }
        if let Some(attempt) = want.attempt.clone().filter(|_| !received.taken.is_empty()) {
            let taken = received.taken.iter().map(|taken| (taken.sequence, Token(taken.entry.token)));
            self.attempts.remember(attempt, taken.collect(), now);
        }
        received
    }

    /// What the same attempt has received, if all of it is still in flight by that receive.
    fn receive_again(&mut self, attempt: &str, now: u64, want: &Want) -> Option<Vec<Taken>> {
        let taken = self.attempts.get(attempt, now)?.clone();
        let is_ours = |(sequence, token): &(Sequence, Token)| {
            let entry = self.pages.get(*sequence);
            entry.is_some_and(|entry| entry.is(IN_FLIGHT) && entry.token == token.0)
        };
        if !taken.iter().all(is_ours) {
            self.attempts.forget(attempt);
            return None;
        }
        let again = taken.into_iter().filter_map(|(sequence, token)| {
            self.apply_change(sequence, token, now + want.visibility_ms, now);
            let entry = self.pages.get(sequence)?;
            Some(Taken { sequence, source: self.source_of(&entry), entry })
        });
        Some(again.collect())
    }

    /// The next messages of the groups that `taken` are of and of those whose first messages are `heads`, as many of
    /// each.
    pub(super) fn upcoming_fifo(
        &self,
        taken: &[Taken],
        heads: impl Iterator<Item = Sequence>,
        count: usize,
    ) -> Vec<Sequence> {
        let mut groups: Vec<u32> = taken.iter().map(|taken| taken.entry.group).collect();
        groups.dedup();
        groups.extend(heads.filter_map(|head| Some(self.pages.get(head)?.group)));
        let each = (count / groups.len().max(1)).max(1);
        let is_next = |sequence: &&Sequence| {
            self.pages.get(**sequence).is_some_and(|entry| !entry.is(IN_FLIGHT | MOVING))
        };
        let next = groups.into_iter().flat_map(|group| {
            // What was taken lies before it, and so does a little that is gone.
            let messages = self.groups.get(group).messages.iter().take(each + 2 * BATCH_MAX);
            messages.filter(is_next).take(each)
        });
        next.take(count).copied().collect()
    }

    /// Messages of the groups whose first messages are `heads`, each group's in its order and up to the first that is
    /// invisible.
    pub(super) fn movable_fifo(
        &self,
        heads: impl Iterator<Item = Sequence>,
        upto: Sequence,
        count: usize,
        now: u64,
    ) -> Vec<Sequence> {
        let groups = heads.filter_map(|head| Some(self.pages.get(head)?.group));
        let movable = groups.flat_map(|group| {
            let messages = self.groups.get(group).messages.iter().copied();
            let there = messages.filter_map(|sequence| Some((sequence, self.pages.get(sequence)?)));
            there
                .take_while(|(sequence, entry)| {
                    *sequence <= upto && entry.visible_at <= now && !entry.is(MOVING)
                })
                .map(|(sequence, _)| sequence)
        });
        movable.take(count).collect()
    }

    /// Makes the index have the tuple of a group's first message, unless that is moving, and forgets a group that has
    /// none.
    pub(super) fn refresh(&mut self, place: u32, now: u64) {
        let group = self.groups.get_mut(place);
        while group.messages.front().is_some_and(|first| self.pages.get(*first).is_none()) {
            group.messages.pop_front();
        }
        let first = group.messages.front().copied();
        let there = first.and_then(|first| Some((first, self.pages.get(first)?)));
        let head =
            there.filter(|(_, entry)| !entry.is(MOVING)).map(|(first, entry)| (entry.visible_at, first));
        let before = std::mem::replace(&mut group.head, head);
        if before != head {
            if let Some(tuple) = before {
                self.index.remove(tuple);
            }
            if let Some(tuple) = head {
                self.index.insert(tuple, now);
            }
        }
        if first.is_none() && self.groups.is_used(place) {
            self.groups.free(place);
        }
    }

    pub(super) fn forget_in_group(&mut self, place: u32, sequence: Sequence) {
        let messages = &mut self.groups.get_mut(place).messages;
        if let Ok(at) = messages.binary_search(&sequence) {
            messages.remove(at);
        }
    }
}

/// What attempts have received, so that a client that got no answer can ask again.
#[derive(Default)]
pub(super) struct Attempts {
    taken: HashMap<String, (u64, Vec<(Sequence, Token)>)>,
    order: VecDeque<(u64, String)>,
}

impl Attempts {
    fn get(&mut self, attempt: &str, now: u64) -> Option<&Vec<(Sequence, Token)>> {
        self.expire(now);
        self.taken.get(attempt).map(|(_, taken)| taken)
    }

    fn remember(&mut self, attempt: String, taken: Vec<(Sequence, Token)>, now: u64) {
        self.expire(now);
        self.order.push_back((now, attempt.clone()));
        self.taken.insert(attempt, (now, taken));
    }

    fn forget(&mut self, attempt: &str) {
        self.taken.remove(attempt);
    }

    fn expire(&mut self, now: u64) {
        while let Some((at, _)) = self.order.front()
            && (at + ATTEMPT_MS <= now || self.order.len() > ATTEMPTS_MAX)
        {
            let (at, attempt) = self.order.pop_front().expect("there is one");
            if self.taken.get(&attempt).is_some_and(|(taken_at, _)| *taken_at == at) {
                self.taken.remove(&attempt);
            }
        }
    }
}
