//! Connections between processes: in order while they last, late, slow, cut, and lost with everything on them. Whoever
//! stops reading gets nothing, and keeps its connections.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use tailwater_broadcast::message::Message;
use tailwater_broadcast::replica::size_of_message;

use crate::rng::Rng;

/// A process: a replica, a publisher or a listener; never reused.
pub(super) type Pid = u64;
/// A connection; both its ends call it by this number.
pub(super) type SimLinkId = u64;

/// After this a message that waits for a cut network ends its connection, in milliseconds.
const UNACKNOWLEDGED_MS: u64 = 3_000;

/// A way between two sites that is slow.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slow {
    /// How long a message is on its way, at least and at most.
    pub(super) latency_ms: (u64, u64),
    /// How much of it comes through in a millisecond, on each connection.
    pub(super) bytes_ms: u64,
}

/// A message on its way.
struct NetSent {
    /// When its first byte comes, and its last.
    begins_ms: u64,
    at_ms: u64,
    bytes: usize,
    message: Message,
}

/// One direction of a connection.
#[derive(Default)]
struct NetWay {
    sent: VecDeque<NetSent>,
    /// When all that was sent has left.
    left_ms: u64,
    /// Bytes of all that is on its way.
    bytes: usize,
}

/// A connection.
pub(super) struct SimLink {
    /// Who opened it.
    pub(super) dialer: Pid,
    /// Who took it.
    pub(super) acceptor: Pid,
    /// Where they are, smaller first: nobody moves with a connection open.
    sites: (u32, u32),
    /// When its ends are told that it is open; `None` afterwards.
    pub(super) opens_ms: Option<u64>,
    /// To the acceptor, to the dialer.
    ways: [NetWay; 2],
    /// When something last came, at the dialer.
    pub(super) heard_ms: u64,
    /// Whether it may be silent for as long as it likes.
    pub(super) may_be_silent: bool,
}

/// What the network does next.
pub(super) enum Happening {
    Opened(SimLinkId),
    Delivered { link: SimLinkId, to: Pid, from: Pid, message: Box<Message> },
    Broken(SimLinkId),
}

/// The network.
pub(super) struct Net {
    pub(super) links: BTreeMap<SimLinkId, SimLink>,
    /// The same by who dialled whom, and by who was dialled.
    dialled: BTreeSet<(Pid, Pid, SimLinkId)>,
    taken: BTreeSet<(Pid, SimLinkId)>,
    next: SimLinkId,
    /// Pairs of sites between which nothing passes, smaller first.
    pub(super) cuts: BTreeSet<(u32, u32)>,
    /// Pairs of sites with a slow way between them, smaller first.
    pub(super) slow: BTreeMap<(u32, u32), Slow>,
    /// Where each process is.
    pub(super) sites: BTreeMap<Pid, u32>,
    /// Processes that read nothing, and until when.
    pub(super) stopped: BTreeMap<Pid, u64>,
    latency_ms: u64,
}

impl Net {
    pub(super) fn new(latency_ms: u64) -> Self {
        Self {
            links: BTreeMap::new(),
            dialled: BTreeSet::new(),
            taken: BTreeSet::new(),
            next: 1,
            cuts: BTreeSet::new(),
            slow: BTreeMap::new(),
            sites: BTreeMap::new(),
            stopped: BTreeMap::new(),
            latency_ms,
        }
    }

    fn between_sites(&self, a: Pid, b: Pid) -> (u32, u32) {
        let site = |pid| self.sites.get(&pid).copied().unwrap_or(0);
        let (a, b) = (site(a), site(b));
        (a.min(b), a.max(b))
    }

    /// Nothing is cut or slow any more: what is on its way comes soon.
    pub(super) fn heal(&mut self, now_ms: u64) {
        self.cuts.clear();
        self.slow.clear();
        let soon_ms = now_ms + self.latency_ms;
        for way in self.links.values_mut().flat_map(|link| &mut link.ways) {
            way.left_ms = way.left_ms.min(now_ms);
            for sent in &mut way.sent {
                sent.begins_ms = sent.begins_ms.min(soon_ms);
                sent.at_ms = sent.at_ms.min(soon_ms);
            }
        }
    }

    /// Opens a connection, unless the network is cut.
    pub(super) fn dial(
        &mut self,
        now_ms: u64,
        rng: &mut Rng,
        dialer: Pid,
        acceptor: Pid,
    ) -> Option<SimLinkId> {
        let sites = self.between_sites(dialer, acceptor);
        if self.cuts.contains(&sites) {
            return None;
        }
        let id = self.next;
        self.next += 1;
        let slow = self.slow.get(&sites);
        let latency_ms = slow.map_or(2 * self.latency_ms, |slow| 2 * slow.latency_ms.1);
        let opens_ms = Some(now_ms + rng.between(1, latency_ms));
        let (ways, heard_ms, may_be_silent) = (Default::default(), now_ms, false);
        let link = SimLink { dialer, acceptor, sites, opens_ms, ways, heard_ms, may_be_silent };
        self.links.insert(id, link);
        self.dialled.insert((dialer, acceptor, id));
        self.taken.insert((acceptor, id));
        Some(id)
    }

    /// A connection is gone.
    pub(super) fn remove(&mut self, id: SimLinkId) {
        if let Some(SimLink { dialer, acceptor, .. }) = self.links.remove(&id) {
            self.dialled.remove(&(dialer, acceptor, id));
            self.taken.remove(&(acceptor, id));
        }
    }

    /// Sends a message along a connection; it may never arrive. Answers how many bytes are on their way with it.
    pub(super) fn send(
        &mut self,
        now_ms: u64,
        rng: &mut Rng,
        link: SimLinkId,
        from: Pid,
        message: Message,
    ) -> usize {
        let Some(link) = self.links.get_mut(&link) else { return 0 };
        let slow = self.slow.get(&link.sites);
        let (low_ms, high_ms) = slow.map_or((1, self.latency_ms), |slow| slow.latency_ms);
        let way = &mut link.ways[usize::from(from != link.dialer)];
        let bytes = size_of_message(&message);
        let latency_ms = rng.between(low_ms, high_ms);
        let after_ms = way.sent.back().map_or(0, |sent| sent.at_ms);
        let leaves_ms = way.left_ms.max(now_ms);
        way.left_ms = leaves_ms + slow.map_or(0, |slow| bytes as u64 / slow.bytes_ms);
        let begins_ms = (leaves_ms + latency_ms).max(after_ms);
        let at_ms = (way.left_ms + latency_ms).max(after_ms);
        way.bytes += bytes;
        way.sent.push_back(NetSent { begins_ms, at_ms, bytes, message });
        way.bytes
    }

    /// Bytes that are on their way from one end of a connection.
    pub(super) fn bytes(&self, link: SimLinkId, from: Pid) -> usize {
        self.links.get(&link).map_or(0, |link| link.ways[usize::from(from != link.dialer)].bytes)
    }

    /// Everything that happens up to now, in a fixed order.
    pub(super) fn step(&mut self, now_ms: u64) -> Vec<Happening> {
        let mut happenings = Vec::new();
        self.stopped.retain(|_, until_ms| *until_ms > now_ms);
        for (&id, link) in &mut self.links {
            let cut = self.cuts.contains(&link.sites);
            if let Some(opens_ms) = link.opens_ms {
                if !cut && opens_ms <= now_ms {
                    link.opens_ms = None;
                    link.heard_ms = now_ms;
                    happenings.push(Happening::Opened(id));
                } else if opens_ms + UNACKNOWLEDGED_MS < now_ms {
                    happenings.push(Happening::Broken(id));
                }
                continue;
            }
            let mut stuck = false;
            for direction in 0..2 {
                let (from, to) = match direction {
                    0 => (link.dialer, link.acceptor),
                    _ => (link.acceptor, link.dialer),
                };
                let stopped = self.stopped.contains_key(&to);
                let way = &mut link.ways[direction];
                while let Some(next) = way.sent.front() {
                    if cut || stopped {
                        break;
                    }
                    if direction == 1 && next.begins_ms <= now_ms {
                        // A part of it is there, at least.
                        link.heard_ms = now_ms;
                    }
                    if next.at_ms > now_ms {
                        break;
                    }
                    let Some(NetSent { message, bytes, .. }) = way.sent.pop_front() else { break };
                    way.bytes -= bytes;
                    let message = Box::new(message);
                    happenings.push(Happening::Delivered { link: id, to, from, message });
                }
                if direction == 1 && stopped {
                    link.heard_ms = now_ms;
                }
                let oldest = way.sent.front().filter(|_| !stopped);
                stuck |= oldest.is_some_and(|sent| sent.at_ms + UNACKNOWLEDGED_MS < now_ms);
            }
            let silent = !link.may_be_silent && link.heard_ms + UNACKNOWLEDGED_MS < now_ms;
            if stuck || silent {
                happenings.push(Happening::Broken(id));
            }
        }
        happenings
    }

    /// The connections of a process, in the order in which they were opened.
    pub(super) fn of(&self, pid: Pid) -> Vec<SimLinkId> {
        let dialled = self.dialled_by(pid).map(|(_, id)| id);
        let taken = self.taken.range((pid, 0)..=(pid, SimLinkId::MAX)).map(|(_, id)| *id);
        let mut all: Vec<SimLinkId> = dialled.chain(taken).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Whom a process has connected to, and the connections.
    pub(super) fn dialled_by(&self, pid: Pid) -> impl Iterator<Item = (Pid, SimLinkId)> {
        let all = self.dialled.range((pid, 0, 0)..=(pid, Pid::MAX, SimLinkId::MAX));
        all.map(|(_, acceptor, id)| (*acceptor, *id))
    }

    /// The connection that `dialer` opened to `acceptor` first.
    pub(super) fn between(&self, dialer: Pid, acceptor: Pid) -> Option<SimLinkId> {
        let mut all = self.dialled.range((dialer, acceptor, 0)..=(dialer, acceptor, SimLinkId::MAX));
        all.next().map(|(_, _, id)| *id)
    }
}
