//! A region loses all its replicas and begins anew with empty ones. One that had left before comes back, with its disk
//! or with what it has in memory, when the new chain has given its numbers to other events. There is another region,
//! perhaps two, over which its events come as well; the late replica may go on telling those what it has.
//!
//! Checked, as in the scenario beside it, for those who publish and listen after that, in all regions, and for those
//! who listened before, some of whom were away meanwhile: whichever replica they ask, the late one as well, they get
//! what was published, and after they were told none of what was before. In every second world some of them share. And
//! what the late one had lies aside on its disk.

use std::collections::BTreeMap;

use tailwater_broadcast::Stream;
use tailwater_broadcast::replica::stream::StreamState;

use super::clients::{Client, Listener, Observed};
use super::net::Pid;
use super::{REGIONS, SETTLE_MS, Sim, site};
use crate::checkers::{Report, Violation, ensure};
use crate::planted::Plant;

/// Members whose disks are gone are given up after so long.
pub(super) const LOST_MS: u64 = 1_500;
/// The region that begins anew.
const REGION: usize = 0;

pub(super) fn run(mut sim: Sim) -> Result<Report, Violation> {
    let slots = sim.rng.between(2, 3) as usize;
    let durable = sim.rng.chance(500_000);
    sim.region(REGIONS[REGION], slots, durable);
    for name in REGIONS.iter().take(1 + sim.rng.between(1, 2) as usize).skip(1) {
        let (slots, durable) = (sim.rng.between(1, 2) as usize, sim.rng.chance(500_000));
        sim.region(name, slots, durable);
    }
    sim.populate_clients();
    sim.shares = sim.rng.chance(500_000);
    if sim.shares {
        sim.populate_sharers();
    }
    sim.publish_for(1_000, 4_000)?;
    sim.settle()?;

    let slot = sim.rng.index(slots);
    let Some(late) = sim.regions[REGION].slots[slot].0 else {
        return Err(Violation::new("a settled region lacks a replica"));
    };
    sim.leaves(late, slot);
    sim.until(true, |sim| sim.regions[REGION].service.chain().place(late).is_none())?;
    sim.publish_for(0, 500)?;
    let of_region = |stream: &&Stream| stream.region() == REGIONS[REGION];
    let before = sim.truths.streams().filter(of_region);
    let before: BTreeMap<Stream, u64> =
        before.map(|stream| (stream.clone(), sim.truths.last(stream))).collect();
    let away = sim.some_go_away();
    sim.lose_all_but(slot);
    sim.until(true, |sim| before.iter().all(|(stream, last)| sim.truths.last(stream) > *last))?;

    let had = sim.comes_back(late, slot)?;
    sim.all_come_back(away)?;
    sim.settle()?;
    if sim.rng.chance(500_000) {
        sim.publish_for(0, 1_000)?;
        sim.settle()?;
    }
    // It joined last, so it is the tail, which answers those who begin now.
    for region in 0..sim.regions.len() {
        sim.client(Client::Listener(Listener::new(region, sim.plant)));
    }
    sim.settle()?;
    sim.report.count("regions begun anew", 1);
    if sim.plant == Plant::None {
        // A bug that makes it keep all of that has to be seen by those who listen.
        sim.lies_aside(slot, &had)?;
    }
    sim.finish()
}

impl Sim {
    fn publish_for(&mut self, least_ms: u64, most_ms: u64) -> Result<(), Violation> {
        let end_ms = self.now_ms + self.rng.between(least_ms, most_ms);
        while self.now_ms < end_ms {
            self.step(true)?;
        }
        Ok(())
    }

    fn until(&mut self, active: bool, holds: impl Fn(&Self) -> bool) -> Result<(), Violation> {
        let end_ms = self.now_ms + SETTLE_MS;
        while !holds(self) {
            ensure(self.now_ms < end_ms, || self.stuck())?;
            self.step(active)?;
        }
        Ok(())
    }

    /// A replica leaves with what it has: it ends, and its disk stays, or nothing reaches it.
    fn leaves(&mut self, late: Pid, slot: usize) {
        self.late = Some(late);
        if self.regions[REGION].durable {
            if let Some(disk) = self.regions[REGION].disks.get_mut(&slot) {
                disk.crash(&mut self.rng);
            }
            self.end_replica(late);
            self.regions[REGION].slots[slot] = (None, u64::MAX);
        } else {
            let others = (0..10).filter(|place| *place != slot);
            others.for_each(|place| self.cut(site(REGION, slot), site(REGION, place)));
            let reaches_others = self.rng.chance(500_000);
            for region in (1..self.regions.len()).filter(|_| !reaches_others) {
                (0..10).for_each(|place| self.cut(site(REGION, slot), site(region, place)));
            }
        }
    }

    /// Listeners of all regions, who are not there when the region begins anew. Of those that share, where, and what
    /// they had kept.
    fn some_go_away(&mut self) -> Vec<(usize, Observed)> {
        let mut away = Vec::new();
        for pid in self.clients.keys().copied().collect::<Vec<_>>() {
            match self.clients.get_mut(&pid) {
                Some(Client::Listener(listener)) if self.rng.chance(500_000) => {
                    listener.is_away = true;
                    self.net.of(pid).into_iter().for_each(|link| self.broken(link));
                }
                Some(Client::Sharer(sharer)) if self.rng.chance(500_000) => {
                    let region = sharer.region;
                    away.push((region, self.sharer_ends(pid)));
                }
                _ => {}
            }
        }
        away
    }

    /// Some with what they have, and some with what they had kept.
    fn all_come_back(&mut self, sharers: Vec<(usize, Observed)>) -> Result<(), Violation> {
        for client in self.clients.values_mut() {
            if let Client::Listener(listener) = client
                && std::mem::take(&mut listener.is_away)
                && self.rng.chance(500_000)
            {
                listener.crashed(false)?;
            }
        }
        sharers.into_iter().try_for_each(|(region, kept)| self.sharer(region, kept))
    }

    /// All others end, and their disks with them; empty ones take their places. Whoever publishes there begins anew.
    fn lose_all_but(&mut self, slot: usize) {
        for other in (0..self.regions[REGION].slots.len()).filter(|other| *other != slot) {
            if let Some(pid) = self.regions[REGION].slots[other].0 {
                self.end_replica(pid);
            }
            self.regions[REGION].disks.remove(&other);
            self.regions[REGION].slots[other] = (None, self.now_ms + self.rng.between(50, 1_000));
        }
        let publishes = |client: &Client| matches!(client, Client::Publisher(p) if p.region == REGION);
        let publishers = self.clients.iter().filter(|(_, client)| publishes(client));
        for pid in publishers.map(|(pid, _)| *pid).collect::<Vec<_>>() {
            self.net.of(pid).into_iter().for_each(|link| self.broken(link));
            self.clients.remove(&pid);
        }
        let lineage = self.regions[REGION].service.chain().lineage;
        self.truths.begin_anew(REGIONS[REGION], lineage);
        self.populate_publishers(REGION, false);
    }

    fn end_replica(&mut self, pid: Pid) {
        self.net.of(pid).into_iter().for_each(|link| self.broken(link));
        self.nodes.remove(&pid);
    }

    /// The late one comes back; how far it has what.
    fn comes_back(&mut self, late: Pid, slot: usize) -> Result<BTreeMap<Stream, u64>, Violation> {
        let last = |(stream, state): (&Stream, &StreamState)| (stream.clone(), state.last());
        let super::Region { disks, slots, .. } = &mut self.regions[REGION];
        if let Some(disk) = disks.get(&slot) {
            slots[slot].1 = self.now_ms;
            return Ok(disk.load(self.plant)?.into_streams().iter().map(last).collect());
        }
        self.net.cuts.clear();
        let node =
            self.nodes.get(&late).ok_or_else(|| Violation::new("a replica that was cut off is gone"))?;
        Ok(node.replica.streams().map(last).collect())
    }

    /// That nothing of what the late one had is in a replica, and all that its disk had lies there.
    fn lies_aside(&self, slot: usize, had: &BTreeMap<Stream, u64>) -> Result<(), Violation> {
        let lineage = self.regions[REGION].service.chain().lineage;
        for (pid, node) in self.nodes.iter().filter(|(_, node)| node.region == REGION) {
            let of = node.replica.lineage();
            ensure(of == lineage, || {
                format!("replica {pid} has what is of lineage {of}, and the chain of {lineage}")
            })?;
        }
        let Some(disk) = self.regions[REGION].disks.get(&slot) else { return Ok(()) };
        for (stream, last) in had.iter().filter(|(_, last)| **last > 0) {
            let lies = disk.aside.iter().any(|dropped| {
                dropped.lineages.own != lineage
                    && dropped.region == REGIONS[REGION]
                    && dropped.streams.get(stream).is_some_and(|state| state.last() == *last)
            });
            ensure(lies, || {
                format!("{stream}, which the late replica had up to {last}, does not lie aside")
            })?;
        }
        Ok(())
    }
}
