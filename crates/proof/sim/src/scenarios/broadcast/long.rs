//! Faults that last: the link between two members of a chain is cut for as long, or all that a member has to its
//! region's replicas, one after the other, or a member's disk stands still, or that of one which joins. All replicas
//! reach the configuration service meanwhile, and say that they live.
//!
//! Checked: no publisher waits for longer than [`WAIT_MAX_MS`] for as long as the fault lasts, nobody leaves the chain
//! to whom nothing happened, and who does is not let in and removed over and over.

use std::collections::BTreeMap;

use super::clients::Client;
use super::net::Pid;
use super::{SILENCE_MS, Sim, address, site};
use crate::checkers::{Violation, ensure};

/// How long such a fault lasts.
const LASTS_MS: u64 = 20_000;
/// A member is removed once it did not move on for 2 s; then its publishers find the head, and the chain its links.
const WAIT_MAX_MS: u64 = 6_000;
/// The chain is whole before, and one replica leaves it, joins, and is a member again: that takes three changes. There
/// is no second time, as it is a member again only behind a tail that it reaches, with a disk that goes on; and without
/// that it stays joining.
const CHANGES_MAX: u64 = 3;
/// As many before that, if it ended and started again.
const RESTART_CHANGES_MAX: u64 = 3;

/// A member's second link is cut so much later than the first one at most. Nobody is removed for a link before it did
/// not move on for five times as long as silence may last, and that a link is cut is known after that long once, and
/// half as much until it is told.
const APART_MAX_MS: u64 = 7 * SILENCE_MS / 2;
/// About so long after it begins to join a replica is handed over to, and is a member.
const JOINS_MS: u64 = 400;

/// When a fault begins.
#[derive(Clone, Copy)]
enum Begins {
    At(u64),
    /// So long after the replica that is hit begins to join.
    AfterJoining(u64),
}

/// A fault that has yet to begin.
enum LaterStart {
    /// The disk stands still.
    Stands,
    /// The link to another slot is cut.
    Cut(usize),
}

impl Sim {
    /// A fault that lasts, after all is well; answers whether there was one.
    pub(super) fn last_long(&mut self) -> Result<bool, Violation> {
        let region = self.rng.index(self.regions.len());
        let slots = self.regions[region].slots.len();
        if slots < 2 {
            return Ok(false);
        }
        let slot = self.rng.index(slots);
        let mut changes_max = CHANGES_MAX;
        // One of them leaves the chain.
        let mut hit = vec![slot];
        let (what, mut later) = match self.rng.below(4) {
            0 => {
                let other = (slot + 1 + self.rng.index(slots - 1)) % slots;
                self.cut(site(region, slot), site(region, other));
                hit.push(other);
                ("links cut for long", None)
            }
            1 => {
                let first = (slot + 1 + self.rng.index(slots - 1)) % slots;
                self.cut(site(region, slot), site(region, first));
                let second = (0..slots).find(|other| ![slot, first].contains(other));
                if second.is_none() {
                    // Nobody can tell which of the two is alone.
                    hit.push(first);
                }
                let at_ms = self.now_ms + self.rng.below(APART_MAX_MS);
                let later = second.map(|second| (Begins::At(at_ms), LaterStart::Cut(second)));
                ("replicas alone for long", later)
            }
            2 if self.regions[region].durable => {
                ("disks standing still for long", Some((Begins::At(self.now_ms), LaterStart::Stands)))
            }
            _ if self.regions[region].durable => {
                self.crash(region, slot);
                changes_max += RESTART_CHANGES_MAX;
                let begins = match self.rng.chance(500_000) {
                    true => Begins::AfterJoining(self.rng.below(JOINS_MS)),
                    false => Begins::At(self.now_ms + self.rng.below(5_000)),
                };
                ("disks standing still for long at a start", Some((begins, LaterStart::Stands)))
            }
            _ => return Ok(false),
        };
        self.report.count(what, 1);
        let at = self.regions[region].slots.iter().enumerate().filter(|(slot, _)| !hit.contains(slot));
        let well: Vec<Pid> = at.filter_map(|(_, (pid, _))| *pid).collect();
        let (end_ms, epoch) = (self.now_ms + LASTS_MS, self.regions[region].service.chain().epoch);
        let mut waits: BTreeMap<Pid, (u64, u64)> = BTreeMap::new();
        while self.now_ms < end_ms {
            self.step(true)?;
            for pid in &well {
                let is_member = self.regions[region].service.chain().place(*pid).is_some();
                ensure(is_member, || format!("{what}: replica {pid} is removed, to which nothing happened"))?;
            }
            if let Some((begins, _)) = &mut later
                && let Begins::AfterJoining(after_ms) = *begins
                && let joining = &self.regions[region].service.chain().joining
                && joining.iter().any(|member| member.address == address(region, slot))
            {
                *begins = Begins::At(self.now_ms + after_ms);
            }
            match later.take_if(|(begins, _)| matches!(begins, Begins::At(ms) if *ms <= self.now_ms)) {
                Some((_, LaterStart::Cut(other))) => self.cut(site(region, slot), site(region, other)),
                Some((_, LaterStart::Stands)) => {
                    if let Some(disk) = self.regions[region].disks.get_mut(&slot) {
                        disk.stands_until_ms = end_ms;
                    }
                }
                None => {}
            }
            for (pid, client) in &self.clients {
                let Client::Publisher(publisher) = client else { continue };
                let Some(oldest) = publisher.oldest() else {
                    waits.remove(pid);
                    continue;
                };
                let (first, since_ms) = waits.entry(*pid).or_insert((oldest, self.now_ms));
                if *first != oldest {
                    (*first, *since_ms) = (oldest, self.now_ms);
                }
                ensure(self.now_ms - *since_ms <= WAIT_MAX_MS, || {
                    format!("{what}: publisher {pid} waits for {WAIT_MAX_MS} ms; {}", self.stuck())
                })?;
            }
        }
        let changes = self.regions[region].service.chain().epoch - epoch;
        ensure(changes <= changes_max, || format!("{what}: the chain changed {changes} times"))?;
        self.net.heal(self.now_ms);
        Ok(true)
    }

    /// Nothing passes between two sites.
    pub(super) fn cut(&mut self, a: u32, b: u32) {
        self.net.cuts.insert((a.min(b), a.max(b)));
    }
}
