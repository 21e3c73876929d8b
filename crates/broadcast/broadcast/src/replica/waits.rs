//! How long a replica has waited for what its place in the chain needs, for the configuration service: it removes who
//! keeps the others waiting.
//!
//! - Streams of one durability are looked at together. What moves one of them on can move all: a stream whose turn
//!   on the connection has not come yet is not stuck. Those of another durability may move though these do not: a disk
//!   that takes writes and finishes no sync holds what is `interval`.
//! - Of the replica behind this one only that counts which this one's own disk has, as no more is sent to it.
//! - When another chain is behind this replica it waits anew: who kept it waiting may be gone.
//! - Of a region that has begun anew nothing is written before what was there of it is put aside, which is no fault of
//!   the disk: its streams are left out until something of it is written, here and at the next one, for [`TURNING_MS`]
//!   at most.
//! - A replica that was not awake did not wait: of a pause only [`AWAKE_MS`] count.

use std::collections::BTreeMap;

use crate::durability::Durability;
use crate::message::{ReplicaId, Waits};
use crate::replica::chain::persisted;
use crate::replica::{Connection, Peer, Replica, Role};

/// Milliseconds between two looks that count at most, if this is more than twice as long as there should be.
const AWAKE_MS: u64 = 100;
/// Milliseconds that putting aside may take. What takes longer is a disk that takes nothing.
const TURNING_MS: u64 = 300_000;
/// The durabilities.
const KINDS: usize = Durability::Fsync as usize + 1;

/// How far streams are that are kept in the same way, all numbers added up, and for how long that did not grow.
#[derive(Clone, Copy, Debug, Default)]
struct Stall {
    reached: u64,
    waited_ms: u64,
}

/// What a look finds.
#[derive(Clone, Copy, Default)]
struct WaitFound {
    reached: u64,
    /// Whether there is more to reach.
    is_behind: bool,
}

impl Stall {
    fn look(&mut self, found: WaitFound, elapsed_ms: u64) {
        if !found.is_behind || found.reached > self.reached {
            *self = Self { reached: found.reached, waited_ms: 0 };
        } else {
            self.waited_ms += elapsed_ms;
        }
    }
}

/// Another region has begun anew, and what was there of it is put aside.
#[derive(Debug, Default)]
struct Turning {
    elapsed_ms: u64,
    /// Whether something of it was written since.
    is_written: bool,
}

/// Since when a replica waits for what.
#[derive(Debug, Default)]
pub(super) struct Watch {
    disk: [Stall; KINDS],
    /// Other regions that have begun anew, for [`TURNING_MS`].
    turning: BTreeMap<String, Turning>,
    /// Who is behind this one, and how far the first of them holds what.
    behind: Vec<ReplicaId>,
    held: [Stall; KINDS],
    /// Whom this one follows, whether anything came of it since the last look, and for how long nothing did before.
    before: Option<ReplicaId>,
    heard: bool,
    before_ms: u64,
}

impl Watch {
    /// Something came of the replica before this one.
    pub(super) fn heard_of_before(&mut self) {
        self.heard = true;
    }

    /// What was on its way is forgotten, and with it how far the disk was.
    pub(super) fn forgot(&mut self) {
        self.disk = Default::default();
        self.turning.clear();
    }

    /// Something of a region is to be put aside, before anything else of it is written.
    pub(super) fn puts_aside(&mut self, region: &str) {
        self.turning.entry(region.to_owned()).or_default().is_written = false;
    }

    /// Something of a region is written.
    pub(super) fn wrote(&mut self, region: &str) {
        if let Some(turning) = self.turning.get_mut(region) {
            turning.is_written = true;
        }
    }

    /// What was there of some streams is dropped: numbers that had been reached are to be reached again.
    pub(super) fn turned(&mut self) {
        (self.disk, self.held) = Default::default();
    }
}

impl Replica {
    /// For how long it has waited, for the configuration service.
    pub fn waits(&self) -> Waits {
        let longest = |stalls: &[Stall]| stalls.iter().map(|stall| stall.waited_ms).max().unwrap_or(0);
        let next_ms = if self.watch.behind == self.behind() { longest(&self.watch.held) } else { 0 };
        let is_followed = self.watch.before == self.predecessor().map(|member| member.id);
        Waits {
            disk_ms: longest(&self.watch.disk),
            before_ms: if is_followed { self.watch.before_ms } else { 0 },
            next: self.waits_for().filter(|_| next_ms > 0).map(|next| (next, next_ms)),
        }
    }

    /// Those that hold what this replica counts as held.
    fn behind(&self) -> Vec<ReplicaId> {
        let members = self.chain.members.iter().map(|member| member.id);
        let behind = members.skip_while(|id| *id != self.config.id).skip(1);
        behind.chain(self.handover.as_ref().map(|handover| handover.to)).collect()
    }

    /// Looks at what has moved; `elapsed_ms` after the last time.
    pub(super) fn watch_chain(&mut self, elapsed_ms: u64) {
        let elapsed_ms = elapsed_ms.min(AWAKE_MS.max(2 * self.config.advertise_ms));
        let (next, behind) = (self.waits_for(), self.behind());
        let before = self.predecessor().map(|member| member.id);
        let is_it = |connection: &&Connection| matches!(connection.peer, Peer::In(_, Role::Replica(id)) if Some(id) == next);
        let follows = self.connections.values().filter(is_it).filter_map(|c| c.follows.as_ref());
        let held: Vec<_> =
            follows.filter(|f| f.epoch == self.chain.epoch).map(|follower| &follower.held).collect();
        self.watch.turning.retain(|_, turning| {
            turning.elapsed_ms += elapsed_ms;
            turning.elapsed_ms < TURNING_MS
        });
        let (mut on_disks, mut helds) = ([WaitFound::default(); KINDS], [WaitFound::default(); KINDS]);
        for (stream, state) in &self.streams {
            let kind = self.config.durability.of(stream) as usize;
            let last = state.last();
            let on_disk = persisted(&self.config.durability, &self.persisted, stream).min(last);
            let turning = self.watch.turning.get(stream.region());
            let to_write = if turning.is_some_and(|turning| !turning.is_written) { on_disk } else { last };
            let of = self.lineage_of(stream);
            let held = held.iter().filter_map(|held| held.get(stream)).filter(|held| held.lineage == of);
            let held = held.map(|held| held.seq).max().unwrap_or(0);
            let to_hold = if turning.is_some() && held == 0 { 0 } else { on_disk };
            for (found, reached, of) in
                [(&mut on_disks[kind], on_disk, to_write), (&mut helds[kind], held.min(on_disk), to_hold)]
            {
                found.reached = found.reached.saturating_add(reached);
                found.is_behind |= reached < of;
            }
        }
        let watch = &mut self.watch;
        if watch.behind != behind {
            (watch.behind, watch.held) = (behind, Default::default());
        }
        for (stall, found) in watch.disk.iter_mut().zip(on_disks) {
            stall.look(found, elapsed_ms);
        }
        for (stall, found) in watch.held.iter_mut().zip(helds).filter(|_| next.is_some()) {
            stall.look(found, elapsed_ms);
        }
        let heard = std::mem::take(&mut watch.heard) || before.is_none() || watch.before != before;
        watch.before = before;
        watch.before_ms = if heard { 0 } else { watch.before_ms + elapsed_ms };
    }
}
