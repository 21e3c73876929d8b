//! Replicas that crash, and clients that do and come back with what they had kept; listeners that stop reading; slow
//! links.

use tailwater_broadcast::message::Member;

use super::clients::{Client, Publisher};
use super::net::{Pid, Slow};
use super::truth::{may_be_refused, publisher_id};
use super::{Sim, site};
use crate::checkers::Violation;

/// Of all clients, one in so many keeps how far it is in a step.
const KEEPS_ONE_IN: usize = 20;

impl Sim {
    /// Whether another member of the chain is there and reaches everybody: without one, what the chain holds is
    /// lost, or nobody can tell that it is not.
    pub(super) fn can_spare(&self, region: usize, pid: Pid) -> bool {
        let members = &self.regions[region].service.chain().members;
        members.iter().any(|member| member.id != pid && self.reaches_everybody(member.id))
    }

    /// Whether a replica is there and reaches all of its region.
    pub(super) fn reaches_everybody(&self, pid: Pid) -> bool {
        let Some(node) = self.nodes.get(&pid) else { return false };
        let me = site(node.region, node.slot);
        let mut sites = (0..10).map(|place| site(node.region, place));
        !sites.any(|at| self.net.cuts.contains(&(me.min(at), me.max(at))))
    }

    /// A replica dies, if another member of its chain is there, or all of them have their disks; its own may die as
    /// well if one is there. So the last member that the configuration service waits for comes back.
    pub(super) fn crash(&mut self, region: usize, slot: usize) {
        let Some(pid) = self.regions[region].slots[slot].0 else { return };
        let can_spare = self.can_spare(region, pid);
        let super::Region { service, disks, durable, .. } = &self.regions[region];
        let has_disk = |member: &Member| disks.values().any(|disk| disk.id == member.id);
        let members = &service.chain().members;
        let comes_back = *durable && !members.is_empty() && members.iter().all(has_disk);
        if !can_spare && !comes_back {
            return;
        }
        if let Some(disk) = self.regions[region].disks.get_mut(&slot) {
            disk.crash(&mut self.rng);
            if can_spare && self.rng.chance(200_000) {
                self.regions[region].disks.remove(&slot);
                self.report.count("disks lost", 1);
            }
        }
        self.end(region, slot, pid);
        self.regions[region].slots[slot].1 = self.now_ms + self.rng.between(50, 3_000);
    }

    /// A replica ends.
    pub(super) fn end(&mut self, region: usize, slot: usize, pid: Pid) {
        self.outside.record("crash", pid, 0);
        self.report.count("crashes", 1);
        for link in self.net.of(pid) {
            self.broken(link);
        }
        self.nodes.remove(&pid);
        if !self.regions[region].disks.contains_key(&slot) {
            self.truths.gone(pid);
        }
        self.regions[region].slots[slot].0 = None;
    }

    /// Some keep how far they are.
    pub(super) fn clients_keep(&mut self) {
        let pids: Vec<Pid> = self.clients.keys().copied().collect();
        for _ in 0..pids.len().div_ceil(KEEPS_ONE_IN) {
            match self.clients.get_mut(&pids[self.rng.index(pids.len())]) {
                Some(Client::Publisher(publisher)) => publisher.keep(),
                Some(Client::Listener(listener)) => listener.keep(),
                Some(Client::Sharer(sharer)) => sharer.keep(),
                None => {}
            }
        }
    }

    /// One crashes, and comes back at once, as soon as it is connected: with what it had kept, or with nothing. A
    /// listener may come back in another region.
    pub(super) fn crash_client(&mut self) -> Result<(), Violation> {
        let are_alone = self.clients.iter().filter(|(_, client)| !matches!(client, Client::Sharer(_)));
        let pids: Vec<Pid> = are_alone.map(|(pid, _)| *pid).collect();
        let pid = pids[self.rng.index(pids.len())];
        self.net.of(pid).into_iter().for_each(|link| self.broken(link));
        self.net.stopped.remove(&pid);
        let with_nothing = self.rng.chance(250_000);
        let other = self.rng.index(self.regions.len());
        let region = if self.rng.chance(250_000) { Some(other) } else { None };
        let random = self.rng.next_u64();
        let what = match self.clients.get_mut(&pid) {
            Some(Client::Publisher(publisher)) if with_nothing || may_be_refused(publisher.id) => {
                // Nobody knows what it had published: it is another one.
                let (region, stream, kind) = (publisher.region, publisher.stream.clone(), publisher.kind());
                let id = publisher_id(random, kind, false);
                *publisher = Publisher::new(region, id, stream, self.plant);
                "publishers that came back with nothing"
            }
            Some(Client::Publisher(publisher)) => {
                publisher.crashed();
                "publishers that came back"
            }
            Some(Client::Listener(listener)) => {
                listener.crashed(with_nothing)?;
                if let Some(region) = region {
                    listener.region = region;
                    self.net.sites.insert(pid, site(region, 9));
                }
                if with_nothing {
                    "listeners that came back with nothing"
                } else {
                    "listeners that came back"
                }
            }
            Some(Client::Sharer(_)) | None => return Ok(()),
        };
        self.outside.record("client crash", pid, 0);
        self.report.count(what, 1);
        Ok(())
    }

    /// A listener reads nothing for a while.
    pub(super) fn stop_listener(&mut self) {
        let listeners = self.clients.iter().filter(|(_, client)| matches!(client, Client::Listener(_)));
        let pids: Vec<Pid> = listeners.map(|(pid, _)| *pid).collect();
        let pid = pids[self.rng.index(pids.len())];
        let until_ms = self.now_ms + self.rng.between(100, 10_000);
        self.net.stopped.insert(pid, until_ms);
        self.report.count("listeners that stopped reading", 1);
    }

    /// A link becomes slow, or slow in another way: between two replicas of a region, two regions, or a replica and its
    /// region's clients.
    pub(super) fn slow_link(&mut self) {
        let (region, other) = (self.rng.index(self.regions.len()), self.rng.index(self.regions.len()));
        let slots = self.regions[region].slots.len();
        let (low_ms, more_ms) = (self.rng.between(1, 500), self.rng.below(1_500));
        let latency_ms = (low_ms, low_ms + more_ms);
        // Some seconds for what may wait for a connection, or a minute.
        let slow = Slow { latency_ms, bytes_ms: self.rng.between(20, 200) };
        let slot = self.rng.index(slots);
        let pairs: Vec<(u32, u32)> = match self.rng.below(3) {
            0 if other != region => {
                let pairs = (0..10).flat_map(|a| (0..10).map(move |b| (a, b)));
                pairs.map(|(a, b)| (site(region, a), site(other, b))).collect()
            }
            1 if slots > 1 => {
                let next = (slot + 1 + self.rng.index(slots - 1)) % slots;
                vec![(site(region, slot), site(region, next))]
            }
            _ => vec![(site(region, slot), site(region, 9))],
        };
        for (a, b) in pairs {
            self.net.slow.insert((a.min(b), a.max(b)), slow);
        }
        self.report.count("links made slow", 1);
    }

    /// The head is cut off from its region and its configuration service, and not from its clients: it takes itself for
    /// the head while there is another one.
    pub(super) fn head_alone(&mut self, region: usize) {
        let Some(head) = self.regions[region].service.chain().head() else { return };
        let Some(slot) = self.nodes.get(&head).map(|node| node.slot) else { return };
        if !self.can_spare(region, head) {
            return;
        }
        for other in (0..9).filter(|other| *other != slot) {
            self.cut(site(region, slot), site(region, other));
        }
        self.report.count("heads cut off from all but clients", 1);
    }
}
