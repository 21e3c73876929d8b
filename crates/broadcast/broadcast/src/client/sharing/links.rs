//! The connections to other listeners: whom they lead to, what waits for them, and which are of no use any more.
//!
//! Two listeners may have connected to each other at the same time; then the one that was dialled here is written to,
//! and both are read.

use std::collections::BTreeMap;

use tailwater_env::Task;

use super::LinkId;
use super::outbox::{Outbox, WAITING_BYTES_MAX};
use crate::message::Message;
use crate::region::AGAIN_MS;

/// Bytes that wait for a link, after which the link is ended: its listener makes us answer what is not held back.
const UNREAD_BYTES_MAX: usize = 8 << 20;
/// How long a link may leave unread what waits for it, in milliseconds.
const STALLED_MS_MAX: u64 = 5_000;
/// How long a link may be silent if its listener is in the view, and if it is not, in milliseconds. Whoever tells it of
/// progress again would have to connect anew each time if that were shorter.
const IDLE_MS: (u64, u64) = (60_000, 2 * AGAIN_MS + 2_000);
/// How long a goodbye may take to leave, in milliseconds.
const BYE_MS: u64 = 1_000;

pub(super) struct Links {
    links: BTreeMap<LinkId, Link>,
    /// Of each listener, the one to write to first.
    of: BTreeMap<u64, Vec<LinkId>>,
    /// Those with something that was not written yet.
    unwritten: Vec<LinkId>,
    /// Said goodbye to, and since when.
    ending: Vec<(u64, Task)>,
    dialled_max: usize,
}

struct Link {
    member: u64,
    writer: Outbox,
    /// What keeps it, if it was dialled here.
    dialled: Option<Task>,
    paused: bool,
    /// When it was paused, or last read something since.
    moved_ms: u64,
    /// When it was last used, in either direction.
    used_ms: u64,
}

/// What became of a message.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum LinkSent {
    /// It waits to be written.
    Yes,
    /// So does it, but nothing more should.
    Full,
    /// There is no connection.
    No,
}

/// A link that is gone.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct LinkGone {
    /// Whom it led to.
    pub(super) member: u64,
    /// Whether no other one leads there.
    pub(super) last: bool,
}

impl Links {
    pub(super) fn new(dialled_max: usize) -> Self {
        let (links, of) = (BTreeMap::new(), BTreeMap::new());
        Self { links, of, unwritten: Vec::new(), ending: Vec::new(), dialled_max }
    }

    pub(super) fn len(&self) -> usize {
        self.links.len()
    }

    pub(super) fn leads_to(&self, member: u64) -> bool {
        self.of.contains_key(&member)
    }

    /// A listener has connected to this one. An earlier connection of it is taken for broken.
    pub(super) fn accepted(&mut self, now_ms: u64, link: LinkId, member: u64, writer: Outbox) {
        let old = self.of.get(&member).into_iter().flatten().copied();
        let old: Vec<LinkId> = old.filter(|id| self.links[id].dialled.is_none()).collect();
        for id in old {
            self.remove(id);
        }
        self.add(now_ms, link, member, writer, None);
        self.of.entry(member).or_default().push(link);
    }

    /// This listener connects to another one. If it has too many such connections, the one that was not used for
    /// longest is ended.
    pub(super) fn dialled(&mut self, now_ms: u64, link: LinkId, member: u64, writer: Outbox, task: Task) {
        let dialled = || self.links.iter().filter(|(_, link)| link.dialled.is_some());
        if dialled().count() >= self.dialled_max
            && let Some(oldest) = dialled().min_by_key(|(_, link)| link.used_ms).map(|(id, _)| *id)
        {
            self.part(now_ms, oldest);
        }
        self.add(now_ms, link, member, writer, Some(task));
        self.of.entry(member).or_default().insert(0, link);
    }

    fn add(&mut self, now_ms: u64, link: LinkId, member: u64, writer: Outbox, dialled: Option<Task>) {
        let (paused, moved_ms, used_ms) = (false, now_ms, now_ms);
        self.links.insert(link, Link { member, writer, dialled, paused, moved_ms, used_ms });
    }

    /// Sends something to a listener, with the next [`flush`](Self::flush).
    pub(super) fn send(&mut self, now_ms: u64, member: u64, message: &Message) -> LinkSent {
        let Some(id) = self.of.get(&member).and_then(|links| links.first()) else { return LinkSent::No };
        let Some(link) = self.links.get_mut(id) else { return LinkSent::No };
        if self.unwritten.last() != Some(id) {
            self.unwritten.push(*id);
        }
        link.used_ms = now_ms;
        if link.writer.add(message) <= WAITING_BYTES_MAX || link.paused {
            return LinkSent::Yes;
        }
        (link.paused, link.moved_ms) = (true, now_ms);
        LinkSent::Full
    }

    /// Writes what was sent, as far as the connections take it at once.
    pub(super) fn flush(&mut self) {
        for id in self.unwritten.drain(..) {
            if let Some(link) = self.links.get(&id) {
                link.writer.flush();
            }
        }
    }

    /// Whether a listener should be sent nothing more for now.
    pub(super) fn is_full(&self, member: u64) -> bool {
        let link = self.of.get(&member).and_then(|links| links.first());
        link.and_then(|id| self.links.get(id)).is_some_and(|link| link.paused)
    }

    /// A message came over a link; from whom.
    pub(super) fn heard(&mut self, now_ms: u64, link: LinkId) -> Option<u64> {
        let link = self.links.get_mut(&link)?;
        link.used_ms = now_ms;
        Some(link.member)
    }

    /// Something has left. Whose link takes something again.
    pub(super) fn drained(&mut self, now_ms: u64, link: LinkId) -> Option<u64> {
        let link = self.links.get_mut(&link)?;
        link.moved_ms = now_ms;
        if !link.paused || link.writer.waiting() > WAITING_BYTES_MAX / 2 {
            return None;
        }
        link.paused = false;
        Some(link.member)
    }

    /// Forgets a link, which ends it if it stands.
    pub(super) fn remove(&mut self, id: LinkId) -> Option<LinkGone> {
        let link = self.links.remove(&id)?;
        let links = self.of.get_mut(&link.member)?;
        links.retain(|other| *other != id);
        let last = links.is_empty();
        if last {
            self.of.remove(&link.member);
        }
        Some(LinkGone { member: link.member, last })
    }

    /// Ends a link of no use: its listener is told that this is no failure.
    fn part(&mut self, now_ms: u64, id: LinkId) {
        if let Some(link) = self.links.get_mut(&id) {
            link.writer.add(&Message::Bye);
            link.writer.flush();
            self.ending.extend(link.dialled.take().map(|task| (now_ms, task)));
        }
        self.remove(id);
    }

    /// Ends links that nobody uses, and forgets those that are stuck; these are answered.
    pub(super) fn sweep(&mut self, now_ms: u64, needed: impl Fn(u64) -> bool) -> Vec<LinkGone> {
        self.ending.retain(|(since, _)| now_ms.saturating_sub(*since) < BYE_MS);
        let silent = |link: &Link| now_ms.saturating_sub(link.used_ms);
        let idle = self.links.iter().filter(|(_, link)| {
            link.writer.waiting() == 0
                && silent(link) >= if needed(link.member) { IDLE_MS.0 } else { IDLE_MS.1 }
        });
        for id in idle.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.part(now_ms, id);
        }
        let stuck = self.links.iter().filter(|(_, link)| {
            let stalled = link.paused && now_ms.saturating_sub(link.moved_ms) > STALLED_MS_MAX;
            stalled || link.writer.waiting() > UNREAD_BYTES_MAX
        });
        let stuck: Vec<LinkId> = stuck.map(|(id, _)| *id).collect();
        stuck.into_iter().filter_map(|id| self.remove(id)).collect()
    }
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;

    use super::*;
    use crate::client::sharing::outbox::{OutboxWritten, outbox};

    fn task() -> Task {
        Task::new(|| {})
    }

    /// What is to be written, if it is one message or none.
    fn written(by: &OutboxWritten) -> Option<Message> {
        let bytes = by.take();
        (!bytes.is_empty()).then(|| Message::decode(bytes.slice(4..)).unwrap())
    }

    #[test]
    fn two_links_to_one_listener_are_one_way_to_it_until_both_are_gone() {
        let mut links = Links::new(9);
        let ((in_, accepted), (out, dialled)) = (outbox(), outbox());
        links.accepted(0, 1, 7, in_);
        links.dialled(0, 2, 7, out, task());
        assert_eq!(links.send(0, 7, &Message::Bye), LinkSent::Yes);
        assert!(written(&dialled).is_some() && written(&accepted).is_none());
        assert_eq!(links.remove(2), Some(LinkGone { member: 7, last: false }));
        assert_eq!(links.send(0, 7, &Message::Bye), LinkSent::Yes);
        assert!(written(&accepted).is_some());
        assert_eq!(links.remove(1), Some(LinkGone { member: 7, last: true }));
        assert_eq!(links.send(0, 7, &Message::Bye), LinkSent::No);
    }

    #[test]
    fn a_link_that_is_not_read_is_full_once_and_then_forgotten() {
        let mut links = Links::new(9);
        let (writer, _reader) = outbox();
        let mut size = BytesMut::new();
        Message::Bye.encode(&mut size);
        links.accepted(0, 1, 7, writer);
        let mut full = 0;
        for _ in 0..WAITING_BYTES_MAX / size.len() + 9 {
            full += u64::from(links.send(0, 7, &Message::Bye) == LinkSent::Full);
        }
        assert_eq!(full, 1);
        assert_eq!(links.sweep(STALLED_MS_MAX, |_| true), []);
        assert_eq!(links.sweep(STALLED_MS_MAX + 1, |_| true), [LinkGone { member: 7, last: true }]);
    }

    #[test]
    fn links_that_nobody_uses_end_with_a_goodbye_and_so_does_the_oldest_of_too_many() {
        let mut links = Links::new(2);
        let mut readers = Vec::new();
        for member in 1..=3 {
            let (writer, reader) = outbox();
            links.dialled(member, member, member, writer, task());
            readers.push(reader);
        }
        assert_eq!((links.len(), written(&readers[0])), (2, Some(Message::Bye)));
        assert_eq!(links.sweep(3 + IDLE_MS.1, |member| member == 2), []);
        assert!(links.leads_to(2) && !links.leads_to(3));
        assert_eq!(written(&readers[2]), Some(Message::Bye));
    }
}
