//! Which keys have changed here, for those who follow that.
//!
//! What holds:
//! - Between two places of one order that a follower is told, it is told of every key that was set, erased, or copied
//!   from another backend here meanwhile.
//! - What it can't be told is a gap, and it is told so: the first time, after a start of the backend, when it is
//!   further behind than what is kept, when everything was forgotten, and when nobody has followed for a while. It is
//!   told, too, if keys may have been copied from another backend in the gap, of which no other backend tells.
//! - A change that is acknowledged after a follower was told its place comes behind that place.
//!
//! What is removed for room, or for its age, has not changed. Values that expire do so by their readers' clocks.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};

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
use crate::version::Version;

/// The changes of one backend.
#[derive(Default)]
pub(super) struct BackendChanges {
    kept: Mutex<Option<KeptChanges>>,
    /// Keys were copied from another backend since the start.
    has_copied: AtomicBool,
}

/// Changes while somebody follows.
struct KeptChanges {
    /// No other start of a backend, and no other time that somebody followed, has this one.
    order: u64,
    /// Changes of this order that are not kept any more.
    gone: u64,
    /// With the version of each, or [`Version::ZERO`] of a copy.
    kept: VecDeque<(KeyHash, Version)>,
    /// As many changes as there were when a key was copied last.
    copied: u64,
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
        let Some(skipped) = told.checked_sub(self.gone) else { return self.gap(told < self.copied) };
        let (mut hashes, mut versions) = (BytesMut::new(), BytesMut::new());
        for (hash, version) in self.kept.iter().skip(skipped as usize).take(CHANGES_PER_REPLY_MAX) {
            hashes.extend_from_slice(&hash.0.to_le_bytes());
            versions.extend_from_slice(&version.to_bytes());
        }
        let told = told + hashes.len() as u64 / 16;
        let is_all = told == self.count();
        let (order, hashes, versions) = (self.order, hashes.freeze(), versions.freeze());
        let (is_gap, has_copied) = (false, false);
        ChangesReply { order, told, hashes, is_gap, is_all, has_copied, versions }.encode_to_vec().into()
    }

    fn gap(&self, has_copied: bool) -> Bytes {
        let (order, told, hashes, versions) = (self.order, self.count(), Bytes::new(), Bytes::new());
        let (is_gap, is_all) = (true, true);
        ChangesReply { order, told, hashes, is_gap, is_all, has_copied, versions }.encode_to_vec().into()
    }
}

/// Answers, which are sent when the changes are not locked any more.
type Answers = Vec<(Reply, Bytes)>;

fn send(answers: Answers) {
    answers.into_iter().for_each(|(reply, answer)| reply.send(Ok(answer)));
}

impl Backend {
    /// Keys have changed, to these versions. Said before that is acknowledged.
    pub(super) fn note_changes(&self, changes: impl Iterator<Item = (KeyHash, Version)>) {
        self.note_some(changes, false);
    }

    /// A key was set or erased as another backend has it. No other backend tells of that.
    pub(super) fn note_copy(&self, hash: KeyHash) {
        self.changes.has_copied.store(true, Ordering::Relaxed);
        self.note_some(std::iter::once((hash, Version::ZERO)), true);
    }

    fn note_some(&self, some: impl Iterator<Item = (KeyHash, Version)>, is_copied: bool) {
        let mut guard = self.changes.kept.lock();
        let Some(changes) = &mut *guard else { return };
        let before = changes.count();
        changes.kept.extend(some);
        if changes.count() == before {
            return;
        }
        if is_copied {
            changes.copied = changes.count();
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
        let has_copied = self.changes.has_copied.load(Ordering::Relaxed);
        let mut guard = self.changes.kept.lock();
        let Some(changes) = &mut *guard else { return };
        changes.order = self.env.random_u64() | 1;
        changes.kept.clear();
        changes.copied = 0;
        let waiting = std::mem::take(&mut changes.waiting);
        let answers: Answers =
            waiting.into_iter().map(|waiting| (waiting.reply, changes.gap(has_copied))).collect();
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
        let mut guard = self.changes.kept.lock();
        let changes = guard.get_or_insert_with(|| KeptChanges {
            // 0 is none.
            order: self.env.random_u64() | 1,
            gone: 0,
            kept: VecDeque::new(),
            copied: 0,
            asked: now,
            waiting: VecDeque::new(),
        });
        changes.asked = now;
        let count = changes.count();
        let answers = if request.order != changes.order || request.told > count {
            // Of what was in another order only that is known.
            vec![(reply, changes.gap(self.changes.has_copied.load(Ordering::Relaxed)))]
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
        let mut guard = self.changes.kept.lock();
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
