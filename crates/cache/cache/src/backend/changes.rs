//! Which keys have changed here, for those who follow that.
//!
//! What holds:
//! - Between two places of one order that a follower is told, it is told of every key that was set, erased, or copied
//!   from another backend here meanwhile.
//! - What it can't be told is a gap, and it is told so: the first time, after a start of the backend, when it is
//!   further behind than what is kept, when everything was forgotten, and when nobody has followed for a while.
//! - A change that is acknowledged after a follower was told its place comes behind that place.
//!
//! What is removed for room, or for its age, has not changed. Values that expire do so by their readers' clocks.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use prost::Message;
use tailwater_env::Instant;
use tailwater_rma::Reply;

use super::{Backend, malformed};
use crate::layout::KeyHash;
use crate::limits::{
    CHANGES_FOLLOWED, CHANGES_KEPT_MAX, CHANGES_PER_REPLY_MAX, CHANGES_WAIT, CHANGES_WAITS_MAX,
};
use crate::protocol::{ChangesReply, ChangesRequest};

/// The changes of one backend.
#[derive(Default)]
pub(super) struct BackendChanges(Mutex<Option<KeptChanges>>);

/// Changes while somebody follows.
struct KeptChanges {
    /// No other start of a backend, and no other time that somebody followed, has this one.
    order: u64,
    /// Changes of this order that are not kept any more.
    gone: u64,
    kept: VecDeque<KeyHash>,
    /// When somebody asked last.
    asked: Instant,
    /// Those who know all that is kept, who waits longest first.
    waiting: VecDeque<WaitingForChanges>,
}

struct WaitingForChanges {
    told: u64,
    since: Instant,
    reply: Reply,
}

impl KeptChanges {
    fn count(&self) -> u64 {
        self.gone + self.kept.len() as u64
    }

    /// The answer to who was told of so many changes, which is not more than there were.
    fn behind(&self, told: u64) -> Bytes {
        let Some(skipped) = told.checked_sub(self.gone) else { return self.gap() };
        let mut hashes = BytesMut::new();
        let some = self.kept.iter().skip(skipped as usize).take(CHANGES_PER_REPLY_MAX);
        some.for_each(|hash| hashes.extend_from_slice(&hash.0.to_le_bytes()));
        let told = told + hashes.len() as u64 / 16;
        let is_all = told == self.count();
        let (order, hashes) = (self.order, hashes.freeze());
        ChangesReply { order, told, hashes, is_gap: false, is_all }.encode_to_vec().into()
    }

    fn gap(&self) -> Bytes {
        let (order, told) = (self.order, self.count());
        ChangesReply { order, told, hashes: Bytes::new(), is_gap: true, is_all: true }.encode_to_vec().into()
    }
}

/// Answers, which are sent when the changes are not locked any more.
type Answers = Vec<(Reply, Bytes)>;

fn send(answers: Answers) {
    answers.into_iter().for_each(|(reply, answer)| reply.send(Ok(answer)));
}

impl Backend {
    /// Keys have changed. Said before that is acknowledged.
    pub(super) fn note_changes(&self, hashes: impl Iterator<Item = KeyHash>) {
        let mut guard = self.changes.0.lock();
        let Some(changes) = &mut *guard else { return };
        let before = changes.count();
        changes.kept.extend(hashes);
        if changes.count() == before {
            return;
        }
        let waiting = std::mem::take(&mut changes.waiting);
        // Those who wait know all that was there before.
        let answers: Answers =
            waiting.into_iter().map(|waiting| (waiting.reply, changes.behind(waiting.told))).collect();
        let over = changes.kept.len().saturating_sub(CHANGES_KEPT_MAX);
        changes.kept.drain(..over);
        changes.gone += over as u64;
        drop(guard);
        send(answers);
    }

    /// Any key may have changed.
    pub(super) fn note_all_changed(&self) {
        let mut guard = self.changes.0.lock();
        let Some(changes) = &mut *guard else { return };
        changes.order = self.env.random_u64() | 1;
        changes.kept.clear();
        let waiting = std::mem::take(&mut changes.waiting);
        let answers: Answers = waiting.into_iter().map(|waiting| (waiting.reply, changes.gap())).collect();
        drop(guard);
        send(answers);
    }

    /// Answers what has changed behind a place: at once, or when something has.
    pub(super) fn answer_changes(&self, payload: Bytes, reply: Reply) {
        let request = match ChangesRequest::decode(payload) {
            Ok(request) => request,
            Err(error) => return reply.send(Err(malformed(&error.to_string()))),
        };
        if let Err(refusal) = Self::check_config(self.config_id(), request.config_id) {
            return reply.send(Err(refusal));
        }
        let now = self.env.now();
        let mut guard = self.changes.0.lock();
        let changes = guard.get_or_insert_with(|| KeptChanges {
            // 0 is none.
            order: self.env.random_u64() | 1,
            gone: 0,
            kept: VecDeque::new(),
            asked: now,
            waiting: VecDeque::new(),
        });
        changes.asked = now;
        let count = changes.count();
        let answers = if request.order != changes.order || request.told > count {
            vec![(reply, changes.gap())]
        } else if request.told < count {
            vec![(reply, changes.behind(request.told))]
        } else {
            changes.waiting.push_back(WaitingForChanges { told: request.told, since: now, reply });
            let over = changes.waiting.len().saturating_sub(CHANGES_WAITS_MAX);
            let first: Vec<_> = changes.waiting.drain(..over).collect();
            first.into_iter().map(|first| (first.reply, changes.behind(first.told))).collect()
        };
        drop(guard);
        send(answers);
    }

    /// Answers those who have waited for long that nothing has changed, and keeps nothing where nobody follows.
    pub(super) fn answer_waiting_for_changes(&self) {
        let now = self.env.now();
        let mut guard = self.changes.0.lock();
        let Some(followed) = &mut *guard else { return };
        let mut answers = Answers::new();
        while let Some(first) = followed.waiting.pop_front_if(|first| now.since(first.since) >= CHANGES_WAIT)
        {
            answers.push((first.reply, followed.behind(first.told)));
        }
        if now.since(followed.asked) >= CHANGES_FOLLOWED {
            *guard = None;
        }
        drop(guard);
        send(answers);
    }
}
