//! Listeners that share (section 3.2) in a world of regions and chains: the library's `region::Peer`, with the
//! connections that its `client/sharing` keeps, and the proxy's side as the server has it. They crash and come back
//! with what they had kept, come and go, read nothing for a while, and are cut off from each other and from the proxy,
//! while replicas do.

use std::collections::BTreeMap;

use tailwater_broadcast::message::Message;
use tailwater_broadcast::region::{self, Member, Options, Peer, PeerOutput, STANDING};
use tailwater_broadcast::{Heard, Position, Positions, Stream};

use super::clients::{Client, Observed};
use super::net::{Pid, SimLinkId};
use super::{Sim, site};
use crate::checkers::Violation;
use crate::planted::Plant;

/// Each is at a site of its own, from here on.
const SITES: u32 = 1_000;
/// Listeners that share of a region.
const SHARERS: (u64, u64) = (3, 8);
/// Bytes that wait for another one after which it is told nothing more.
const WAITING_BYTES_MAX: usize = 512 << 10;
/// How long a connection of no use may be silent, and how often such ones are looked for.
const IDLE_MS: u64 = 3_000;
const SWEEP_MS: u64 = 1_000;

/// A connection to another one.
struct SharingLink {
    member: u64,
    dialled: bool,
    /// What is to be sent once it is open.
    waiting: Option<Vec<Message>>,
    paused: bool,
    used_ms: u64,
}

/// A listener that shares.
pub(super) struct Sharer {
    pub(super) region: usize,
    /// To a replica.
    pub(super) link: Option<SimLinkId>,
    pub(super) wanted: Option<String>,
    pub(super) at: String,
    pub(super) observed: Observed,
    kept: Observed,
    me: Member,
    /// The replica at the other end says that it is the tail; and that we take part.
    tail: Option<u64>,
    takes_part: bool,
    proxy: Member,
    peer: Option<Box<Peer>>,
    /// Where it began; where a region has begun anew since as well.
    began: Positions,
    links: BTreeMap<SimLinkId, SharingLink>,
    /// Of each other one, the connection to write to first.
    of: BTreeMap<u64, Vec<SimLinkId>>,
    outbox: Vec<PeerOutput>,
    reads: bool,
    sweep_ms: u64,
}

impl Sharer {
    fn new(region: usize, me: Member, kept: Observed) -> Result<Self, Violation> {
        let began = kept.resumed()?;
        Ok(Self {
            region,
            link: None,
            wanted: None,
            at: String::new(),
            observed: kept.clone(),
            kept,
            me,
            tail: None,
            takes_part: false,
            proxy: Member { id: 0, address: "".into() },
            peer: None,
            began,
            links: BTreeMap::new(),
            of: BTreeMap::new(),
            outbox: Vec::new(),
            reads: true,
            sweep_ms: 0,
        })
    }

    /// Keeps where it is.
    pub(super) fn keep(&mut self) {
        self.kept = self.observed.clone();
    }

    /// A connection is gone.
    pub(super) fn lost(&mut self, now_ms: u64, link: SimLinkId) {
        if self.link == Some(link) {
            self.link = None;
            self.tail = None;
            let took_part = std::mem::take(&mut self.takes_part);
            if let Some(peer) = self.peer.as_mut().filter(|_| took_part) {
                peer.disconnected(now_ms, self.proxy.id, &mut self.outbox);
            }
        } else {
            self.remove(now_ms, link, true);
        }
    }

    /// Forgets a connection to another one, which may have failed.
    fn remove(&mut self, now_ms: u64, link: SimLinkId, failed: bool) {
        let Some(SharingLink { member, .. }) = self.links.remove(&link) else { return };
        let is_last = self.of.get_mut(&member).is_none_or(|links| {
            links.retain(|other| *other != link);
            links.is_empty()
        });
        if is_last {
            self.of.remove(&member);
        }
        let is_full = self.first(member).is_some_and(|(_, link)| link.paused);
        let Some(peer) = &mut self.peer else { return };
        if failed && is_last {
            peer.disconnected(now_ms, member, &mut self.outbox);
        } else {
            peer.pause(now_ms, member, is_full, &mut self.outbox);
            peer.connected(now_ms, &Member { id: member, address: "".into() }, &mut self.outbox);
        }
    }

    fn first(&mut self, member: u64) -> Option<(SimLinkId, &mut SharingLink)> {
        let id = *self.of.get(&member)?.first()?;
        Some((id, self.links.get_mut(&id)?))
    }

    fn add(&mut self, now_ms: u64, link: SimLinkId, member: u64, dialled: bool) {
        let waiting = dialled.then(Vec::new);
        self.links.insert(link, SharingLink { member, dialled, waiting, paused: false, used_ms: now_ms });
        let links = self.of.entry(member).or_default();
        links.insert(if dialled { 0 } else { links.len() }, link);
    }

    /// The tail is there: the first one, the same one again, or another one.
    fn proxy_is(&mut self, now_ms: u64, began: Vec<(Stream, Position)>, seed: u64) {
        let Some(tail) = self.tail else { return };
        self.takes_part = true;
        for (stream, position) in &began {
            let heard = self.began.hear(stream, position.lineage);
            if heard == Heard::Anew && self.peer.is_none() {
                self.observed.begin_anew(stream.region(), position.lineage);
            }
        }
        let proxy = Member { id: tail, address: self.at.as_str().into() };
        let old = std::mem::replace(&mut self.proxy, proxy.clone());
        match &mut self.peer {
            Some(peer) if old == proxy => peer.connected(now_ms, &proxy, &mut self.outbox),
            Some(peer) => peer.proxy_moved(now_ms, proxy, &mut self.outbox),
            None => {
                let began = began.iter().cloned().collect();
                self.peer = Some(Box::new(Peer::new(self.me.clone(), proxy, began, options(), seed)));
            }
        }
        if let Some(peer) = &mut self.peer {
            for (stream, position) in &began {
                peer.hear(now_ms, stream, position.lineage, &mut self.outbox);
            }
        }
    }
}

/// Small, so that much has to be asked of the proxy, and of several others.
fn options() -> Options {
    Options {
        view_max: 4,
        notify_ms: 5,
        fanout: 2,
        feeds: 2,
        feed_ms: 20,
        gossip_ms: 1_000,
        request_bytes: 2_000,
        recv_bytes: 20_000,
        early_bytes: 20_000,
        ..Options::default()
    }
}

impl Sim {
    pub(super) fn populate_sharers(&mut self) {
        for region in 0..self.regions.len() {
            for _ in 0..self.rng.between(SHARERS.0, SHARERS.1) {
                self.sharer(region, Observed::default()).expect("it begins with nothing");
            }
        }
    }

    /// One more, with what an earlier one had kept.
    pub(super) fn sharer(&mut self, region: usize, kept: Observed) -> Result<(), Violation> {
        let pid = self.next_pid;
        // In some places one that nobody can connect to.
        let address = if self.rng.chance(100_000) { String::new() } else { pid.to_string() };
        let me = Member { id: self.rng.next_u64(), address: address.into() };
        let sharer = Sharer::new(region, me, kept)?;
        let pid = self.client(Client::Sharer(sharer));
        self.net.sites.insert(pid, SITES + pid as u32);
        Ok(())
    }

    fn sharers(&self) -> Vec<(Pid, usize)> {
        let sharers = self.clients.iter().filter_map(|(pid, client)| match client {
            Client::Sharer(sharer) => Some((*pid, sharer.region)),
            _ => None,
        });
        sharers.collect()
    }

    pub(super) fn sharing_fault(&mut self) -> Result<(), Violation> {
        let sharers = self.sharers();
        let (pid, region) = sharers[self.rng.index(sharers.len())];
        let slots = self.regions[region].slots.len();
        match self.rng.below(8) {
            0 | 1 => {
                let with_nothing = self.rng.chance(250_000);
                let kept = self.sharer_ends(pid);
                self.sharer(region, if with_nothing { Observed::default() } else { kept })?;
                self.report.count("sharing listeners that came back", 1);
            }
            2 => {
                self.sharer(region, Observed::default())?;
                self.report.count("sharing listeners that came", 1);
            }
            3 if sharers.iter().filter(|(_, of)| *of == region).count() > 2 => {
                self.sharer_ends(pid);
                self.report.count("sharing listeners that left", 1);
            }
            4 => {
                // Parts of a region's listeners that do not reach each other.
                let parts: Vec<(u32, bool)> = sharers
                    .iter()
                    .filter(|(_, of)| *of == region)
                    .map(|(pid, _)| (SITES + *pid as u32, self.rng.chance(500_000)))
                    .collect();
                for (a, _) in parts.iter().filter(|(_, part)| *part) {
                    for (b, _) in parts.iter().filter(|(_, part)| !*part) {
                        self.cut(*a, *b);
                    }
                }
                self.report.count("sharing listeners cut apart", 1);
            }
            5 => {
                (0..slots).for_each(|slot| self.cut(SITES + pid as u32, site(region, slot)));
                self.report.count("sharing listeners cut off from the proxy", 1);
            }
            6 => {
                let until_ms = self.now_ms + self.rng.between(100, 8_000);
                self.net.stopped.insert(pid, until_ms);
                self.report.count("sharing listeners that stopped", 1);
            }
            _ => {
                if let Some(Client::Sharer(sharer)) = self.clients.get_mut(&pid)
                    && let Some(peer) = &mut sharer.peer
                {
                    sharer.reads = !sharer.reads;
                    peer.reading(self.now_ms, sharer.reads, &mut sharer.outbox);
                    self.report.count("sharing listeners that read nothing", u64::from(!sharer.reads));
                }
            }
        }
        Ok(())
    }

    /// One ends; what it had kept.
    pub(super) fn sharer_ends(&mut self, pid: Pid) -> Observed {
        let sharer = self.clients.remove(&pid);
        self.net.of(pid).into_iter().for_each(|link| self.broken(link));
        self.net.stopped.remove(&pid);
        match sharer {
            Some(Client::Sharer(sharer)) => sharer.kept,
            _ => Observed::default(),
        }
    }

    /// All read again.
    pub(super) fn sharers_read(&mut self) {
        for client in self.clients.values_mut() {
            if let Client::Sharer(sharer) = client
                && let Some(peer) = &mut sharer.peer
            {
                sharer.reads = true;
                peer.reading(self.now_ms, true, &mut sharer.outbox);
            }
        }
    }

    /// One has connected to another one.
    pub(super) fn sharers_opened(&mut self, link: SimLinkId, dialer: Pid, acceptor: Pid) {
        let now_ms = self.now_ms;
        let member = match self.clients.get_mut(&dialer) {
            Some(Client::Sharer(sharer)) if sharer.links.contains_key(&link) => sharer.me.clone(),
            _ => return self.broken(link),
        };
        let Some(Client::Sharer(other)) = self.clients.get_mut(&acceptor) else { return self.broken(link) };
        if other.peer.is_none() {
            // The tail has not said where it begins.
            return self.broken(link);
        }
        let old: Vec<SimLinkId> = other.of.get(&member.id).into_iter().flatten().copied().collect();
        for id in old {
            if other.links.get(&id).is_some_and(|link| !link.dialled) {
                other.remove(now_ms, id, false);
            }
        }
        other.add(now_ms, link, member.id, false);
        let is_full = other.first(member.id).is_some_and(|(_, link)| link.paused);
        if let Some(peer) = &mut other.peer {
            peer.pause(now_ms, member.id, is_full, &mut other.outbox);
            peer.connected(now_ms, &member, &mut other.outbox);
        }
        if let Some(Client::Sharer(sharer)) = self.clients.get_mut(&dialer)
            && let Some(opened) = sharer.links.get_mut(&link)
        {
            for message in opened.waiting.take().into_iter().flatten() {
                self.net.send(now_ms, &mut self.rng, link, dialer, message);
            }
        }
    }

    /// What one had sent has left.
    pub(super) fn sharer_drained(&mut self, link: SimLinkId, from: Pid) {
        let Some(Client::Sharer(sharer)) = self.clients.get_mut(&from) else { return };
        let Some(drained) = sharer.links.get_mut(&link) else { return };
        if drained.paused && self.net.bytes(link, from) <= WAITING_BYTES_MAX / 2 {
            drained.paused = false;
            let member = drained.member;
            if let Some(peer) = &mut sharer.peer {
                peer.pause(self.now_ms, member, false, &mut sharer.outbox);
            }
        }
    }

    /// A message came to one.
    pub(super) fn sharer_receives(
        &mut self,
        pid: Pid,
        link: SimLinkId,
        message: Message,
    ) -> Result<(), Violation> {
        let now_ms = self.now_ms;
        let Some(Client::Sharer(sharer)) = self.clients.get_mut(&pid) else { return Ok(()) };
        if message == Message::Bye {
            sharer.remove(now_ms, link, false);
            self.net.remove(link);
        } else if sharer.link == Some(link) {
            match message {
                Message::Chain(chain) => match chain.members.last() {
                    Some(tail) if tail.address == sharer.at => {
                        sharer.tail = Some(tail.id);
                        let began = sharer.began.streams.clone().into_iter().collect();
                        let positions = self.plant.broadcast_positions(&chain, began);
                        let share = Message::Share { member: sharer.me.clone(), positions };
                        self.net.send(now_ms, &mut self.rng, link, pid, share);
                    }
                    tail => {
                        sharer.wanted = tail.map(|tail| tail.address.clone());
                        self.broken(link);
                    }
                },
                Message::Listening { positions } => {
                    let seed = self.rng.next_u64();
                    sharer.proxy_is(now_ms, positions, seed);
                }
                Message::Region(message) => {
                    if let Some(peer) = &mut sharer.peer {
                        peer.receive(now_ms, sharer.proxy.id, message, &mut sharer.outbox);
                    }
                }
                _ => {}
            }
        } else if let Some(from) = sharer.links.get_mut(&link) {
            from.used_ms = now_ms;
            let member = from.member;
            match message {
                Message::Region(message) => {
                    if let Some(peer) = &mut sharer.peer {
                        peer.receive(now_ms, member, message, &mut sharer.outbox);
                    }
                }
                other => return Err(Violation::new(format!("a listener sent another one {other:?}"))),
            }
        }
        self.sharer_outputs(pid)
    }

    /// What is due, and what follows from it.
    pub(super) fn drive_sharers(&mut self) -> Result<(), Violation> {
        let now_ms = self.now_ms;
        for (pid, _) in self.sharers() {
            let Some(Client::Sharer(sharer)) = self.clients.get_mut(&pid) else { continue };
            if let Some(peer) = &mut sharer.peer {
                if now_ms >= peer.due_ms() {
                    peer.tick(now_ms, &mut sharer.outbox);
                }
                if now_ms >= sharer.sweep_ms {
                    sharer.sweep_ms = now_ms + SWEEP_MS;
                    let idle = sharer.links.iter().filter(|(_, link)| {
                        now_ms - link.used_ms >= IDLE_MS && link.waiting.is_none() && !peer.needs(link.member)
                    });
                    for id in idle.map(|(id, _)| *id).collect::<Vec<_>>() {
                        self.net.send(now_ms, &mut self.rng, id, pid, Message::Bye);
                        let Some(SharingLink { member, .. }) = sharer.links.remove(&id) else { continue };
                        if let Some(links) = sharer.of.get_mut(&member) {
                            links.retain(|other| *other != id);
                            if links.is_empty() {
                                sharer.of.remove(&member);
                            }
                        }
                    }
                }
            }
            self.sharer_outputs(pid)?;
        }
        Ok(())
    }

    fn sharer_outputs(&mut self, pid: Pid) -> Result<(), Violation> {
        loop {
            let Some(Client::Sharer(sharer)) = self.clients.get_mut(&pid) else { return Ok(()) };
            if sharer.outbox.is_empty() {
                return Ok(());
            }
            for output in std::mem::take(&mut sharer.outbox) {
                match output {
                    PeerOutput::Send { to, message } => self.sharer_sends(pid, to, message),
                    PeerOutput::Deliver { stream, lineage, batch } => {
                        let Some(Client::Sharer(sharer)) = self.clients.get_mut(&pid) else { continue };
                        sharer.observed.delivered((&stream, lineage), &batch, &self.truths)?;
                    }
                    PeerOutput::Anew { region, lineage } => {
                        let Some(Client::Sharer(sharer)) = self.clients.get_mut(&pid) else { continue };
                        sharer.observed.begin_anew(&region, lineage);
                    }
                }
            }
        }
    }

    fn sharer_sends(&mut self, pid: Pid, to: u64, mut message: region::Message) {
        let now_ms = self.now_ms;
        let Some(Client::Sharer(sharer)) = self.clients.get_mut(&pid) else { return };
        let Some(peer) = &mut sharer.peer else { return };
        if to == sharer.proxy.id {
            match sharer.link.filter(|_| sharer.takes_part) {
                Some(link) => {
                    let is_late = |m: &region::Message| matches!(m, region::Message::Request { up_to, .. } if *up_to != STANDING);
                    if self.plant != Plant::FallbackLeftOut || !is_late(&message) {
                        self.net.send(now_ms, &mut self.rng, link, pid, Message::Region(message));
                    }
                }
                None => peer.disconnected(now_ms, to, &mut sharer.outbox),
            }
            return;
        }
        if !sharer.of.contains_key(&to) {
            let at = peer.address(to).filter(|_| sharer.me.reachable()).and_then(|at| at.parse::<Pid>().ok());
            let there = at.filter(|at| *at != pid && self.clients.contains_key(at));
            let dialled = there.and_then(|at| self.net.dial(now_ms, &mut self.rng, pid, at));
            let Some(Client::Sharer(sharer)) = self.clients.get_mut(&pid) else { return };
            let Some(link) = dialled else {
                if let Some(peer) = &mut sharer.peer {
                    peer.disconnected(now_ms, to, &mut sharer.outbox);
                }
                return;
            };
            if let Some(link) = self.net.links.get_mut(&link) {
                link.may_be_silent = true;
            }
            sharer.add(now_ms, link, to, true);
        }
        let Some(Client::Sharer(sharer)) = self.clients.get_mut(&pid) else { return };
        self.plant.broadcast_shared(&mut message);
        let message = Message::Region(message);
        let Some((id, link)) = sharer.first(to) else { return };
        link.used_ms = now_ms;
        match &mut link.waiting {
            Some(waiting) => waiting.push(message),
            None => {
                let bytes = self.net.send(now_ms, &mut self.rng, id, pid, message);
                if bytes > WAITING_BYTES_MAX
                    && !std::mem::replace(&mut link.paused, true)
                    && let Some(peer) = &mut sharer.peer
                {
                    peer.pause(now_ms, to, true, &mut sharer.outbox);
                }
            }
        }
    }

    /// How one that shares stands, where it is stuck.
    pub(super) fn sharing_text(&self, pid: Pid) -> String {
        let Some(Client::Sharer(sharer)) = self.clients.get(&pid) else { return String::new() };
        let view: Vec<u64> =
            sharer.peer.iter().flat_map(|peer| peer.view()).map(|member| member.id).collect();
        let stats = sharer.peer.as_deref().map(Peer::stats);
        let Sharer { link, takes_part, reads, at, proxy, .. } = sharer;
        format!(
            " (link {link:?} to {at}, takes part: {takes_part}, reads: {reads}, the proxy is {proxy:?}, it sees {view:?}, is connected to {:?}, {stats:?})",
            sharer.of.keys()
        )
    }

    /// What those that share got from whom.
    pub(super) fn count_shared(&mut self) {
        for client in self.clients.values() {
            if let Client::Sharer(Sharer { peer: Some(peer), .. }) = client {
                let stats = peer.stats();
                self.report.count("shared from the proxy", stats.from_proxy);
                self.report.count("shared from others", stats.from_peers);
                self.report.count("requests given up", stats.timeouts);
            }
        }
    }
}
