//! Connections between processes: in order while they last, late, cut, and lost with everything on them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use tailwater_broadcast::message::Message;

use crate::rng::Rng;

/// A process: a replica, a publisher or a listener; never reused.
pub(super) type Pid = u64;
/// A connection; both its ends call it by this number.
pub(super) type LinkId = u64;

/// After this a message that waits for a cut network ends its connection, in milliseconds.
const UNACKNOWLEDGED_MS: u64 = 3_000;

/// A connection.
pub(super) struct Link {
    /// Who opened it.
    pub(super) dialer: Pid,
    /// Who took it.
    pub(super) acceptor: Pid,
    /// When its ends are told that it is open; `None` afterwards.
    pub(super) opens_ms: Option<u64>,
    /// To the acceptor, to the dialer.
    queues: [VecDeque<(u64, Message)>; 2],
    /// When something last came, at the dialer.
    pub(super) heard_ms: u64,
}

/// What the network does next.
pub(super) enum Happening {
    Opened(LinkId),
    Delivered { link: LinkId, to: Pid, from: Pid, message: Box<Message> },
    Broken(LinkId),
}

/// The network.
pub(super) struct Net {
    pub(super) links: BTreeMap<LinkId, Link>,
    next: LinkId,
    /// Pairs of sites between which nothing passes, smaller first.
    pub(super) cuts: BTreeSet<(u32, u32)>,
    /// Where each process is.
    pub(super) sites: BTreeMap<Pid, u32>,
    latency_ms: u64,
}

impl Net {
    pub(super) fn new(latency_ms: u64) -> Self {
        Self { links: BTreeMap::new(), next: 1, cuts: BTreeSet::new(), sites: BTreeMap::new(), latency_ms }
    }

    pub(super) fn is_cut(&self, a: Pid, b: Pid) -> bool {
        let site = |pid| self.sites.get(&pid).copied().unwrap_or(0);
        let (a, b) = (site(a), site(b));
        self.cuts.contains(&(a.min(b), a.max(b)))
    }

    /// Opens a connection, unless the network is cut.
    pub(super) fn dial(&mut self, now_ms: u64, rng: &mut Rng, dialer: Pid, acceptor: Pid) -> Option<LinkId> {
        if self.is_cut(dialer, acceptor) {
            return None;
        }
        let id = self.next;
        self.next += 1;
        let opens_ms = Some(now_ms + rng.between(1, 2 * self.latency_ms));
        self.links
            .insert(id, Link { dialer, acceptor, opens_ms, queues: Default::default(), heard_ms: now_ms });
        Some(id)
    }

    /// Sends a message along a connection; it may never arrive.
    pub(super) fn send(&mut self, now_ms: u64, rng: &mut Rng, link: LinkId, from: Pid, message: Message) {
        let latency_ms = self.latency_ms;
        let Some(link) = self.links.get_mut(&link) else { return };
        let queue = &mut link.queues[usize::from(from != link.dialer)];
        let at_ms = now_ms + rng.between(1, latency_ms);
        let after = queue.back().map_or(0, |(at_ms, _)| *at_ms);
        queue.push_back((at_ms.max(after), message));
    }

    /// Everything that happens up to now, in a fixed order.
    pub(super) fn step(&mut self, now_ms: u64) -> Vec<Happening> {
        let mut happenings = Vec::new();
        let ids: Vec<LinkId> = self.links.keys().copied().collect();
        for id in ids {
            let Some(link) = self.links.get(&id) else { continue };
            let cut = self.is_cut(link.dialer, link.acceptor);
            let Some(link) = self.links.get_mut(&id) else { continue };
            if let Some(opens_ms) = link.opens_ms {
                if !cut && opens_ms <= now_ms {
                    link.opens_ms = None;
                    link.heard_ms = now_ms;
                    happenings.push(Happening::Opened(id));
                }
                continue;
            }
            for direction in 0..2 {
                let (from, to) = match direction {
                    0 => (link.dialer, link.acceptor),
                    _ => (link.acceptor, link.dialer),
                };
                while let Some((at_ms, _)) = link.queues[direction].front() {
                    if cut || *at_ms > now_ms {
                        break;
                    }
                    let Some((_, message)) = link.queues[direction].pop_front() else { break };
                    if direction == 1 {
                        link.heard_ms = now_ms;
                    }
                    let message = Box::new(message);
                    happenings.push(Happening::Delivered { link: id, to, from, message });
                }
            }
            let oldest = link.queues.iter().filter_map(|queue| queue.front()).map(|(at_ms, _)| *at_ms).min();
            let stuck = oldest.is_some_and(|at_ms| at_ms + UNACKNOWLEDGED_MS < now_ms);
            if stuck || link.heard_ms + UNACKNOWLEDGED_MS < now_ms {
                happenings.push(Happening::Broken(id));
            }
        }
        happenings
    }

    /// The connections of a process.
    pub(super) fn of(&self, pid: Pid) -> Vec<LinkId> {
        self.links.iter().filter(|(_, l)| l.dialer == pid || l.acceptor == pid).map(|(id, _)| *id).collect()
    }

    /// The connection that `dialer` opened to `acceptor`.
    pub(super) fn between(&self, dialer: Pid, acceptor: Pid) -> Option<LinkId> {
        self.links.iter().find(|(_, l)| l.dialer == dialer && l.acceptor == acceptor).map(|(id, _)| *id)
    }
}
