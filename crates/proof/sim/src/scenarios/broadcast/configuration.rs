//! The configuration service of a region ends and starts again: with the chain that it had, or without, as its metadata
//! is lost. Then a replica's disk, or memory, may be lost with it: that of the node that kept both.

use tailwater_broadcast::membership::{Membership, unbegun};
use tailwater_broadcast::message::Member;

use super::net::Pid;
use super::{REGIONS, SILENCE_MS, Sim, WALL_MS_AT_START, address};
use crate::planted::Plant;

impl Sim {
    pub(super) fn service_ends(&mut self, region: usize) {
        if self.rng.chance(500_000) && self.loses_metadata(region) {
            return;
        }
        let chain = self.regions[region].service.chain().clone();
        self.regions[region].service = Membership::new(self.now_ms, chain, SILENCE_MS, self.lost_ms);
        self.rejoin(region);
        self.report.count("services restarted", 1);
    }

    /// Replicas that are in the chain say so again to a service that started.
    fn rejoin(&mut self, region: usize) {
        let super::Region { service, durable, .. } = &mut self.regions[region];
        for (pid, node) in self.nodes.iter().filter(|(_, node)| node.region == region && node.joined) {
            let member = Member { id: *pid, address: address(region, node.slot) };
            service.join(self.now_ms, member, *durable, node.replica.chain().epoch == 0);
        }
    }

    /// The metadata is lost, and a replica with it, perhaps, which starts again at once with nothing. The others reach
    /// the service before it has listened for long enough, and one of them at least has been a member until now; if
    /// there is none, nothing is lost.
    fn loses_metadata(&mut self, region: usize) -> bool {
        let slots = self.regions[region].slots.len();
        let slot = self.rng.index(slots + 1);
        let lost = self.regions[region].slots.get(slot).and_then(|(pid, _)| *pid);
        if !self.survives(region, lost) {
            return false;
        }
        if let Some(pid) = lost {
            self.regions[region].disks.remove(&slot);
            self.end(region, slot, pid);
            self.regions[region].slots[slot].1 = self.now_ms;
            self.report.count("replicas lost with the metadata", 1);
        }
        let chain = unbegun(REGIONS[region], WALL_MS_AT_START + self.now_ms, self.rng.next_u64());
        let listens_from_ms = match self.plant {
            Plant::ChainBegunAtOnce => 0,
            _ => self.now_ms,
        };
        self.regions[region].service = Membership::new(listens_from_ms, chain, SILENCE_MS, self.lost_ms);
        for node in self.nodes.values_mut().filter(|node| node.region == region) {
            node.joined = false;
            node.reports_from_ms = self.now_ms + self.rng.between(1, SILENCE_MS / 2);
        }
        self.report.count("metadata lost", 1);
        true
    }

    /// Whether a member other than `lost` is there, knows a chain, and reaches everybody.
    fn survives(&self, region: usize, lost: Option<Pid>) -> bool {
        let members = &self.regions[region].service.chain().members;
        members.iter().filter(|member| Some(member.id) != lost).any(|member| {
            self.nodes.get(&member.id).is_some_and(|node| node.replica.is_in_chain())
                && self.reaches_everybody(member.id)
        })
    }
}
