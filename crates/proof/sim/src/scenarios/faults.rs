//! What befalls a node during one of its lives, drawn by seed.

use std::time::Duration;

use crate::disk::{Fault, Faults};
use crate::rng::Rng;
use crate::world::{Crash, Node};

/// How one life of a node goes, and ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life {
    /// What goes wrong on the disk meanwhile.
    pub faults: Faults,
    /// Bytes that the disk has left at the beginning, if it is to become full.
    pub room: Option<u64>,
    /// The call that changes something in which the power fails, if one is.
    pub crash_at_change: Option<u64>,
    /// How long it is left alone.
    pub length: Duration,
    /// How it ends if it has not by itself.
    pub end: End,
}

/// How a life ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// In good order.
    Close,
    /// In the middle of everything.
    Crash(Crash),
}

impl Life {
    /// One in which nothing goes wrong, closed in good order.
    pub fn calm(length: Duration) -> Self {
        Self { faults: Faults::default(), room: None, crash_at_change: None, length, end: End::Close }
    }

    /// Draws one. About a third have a disk that fails, a fifth one that gets full, half end at an I/O.
    pub fn draw(rng: &mut Rng, changes_max: u64, length_max: Duration) -> Self {
        let mut faults = Faults::default();
        if rng.below(3) == 0 {
            let mut fault = |most: u64| match rng.below(4) {
                0 => Fault::Next(1 + rng.below(3) as u32),
                1 => Fault::PerMillion(rng.below(most) as u32),
                _ => Fault::Never,
            };
            faults.sync = fault(100_000);
            faults.sync_dir = fault(100_000);
            faults.write = fault(50_000);
            faults.create = fault(200_000);
        }
        let room = (rng.below(5) == 0).then(|| rng.below(256 << 10));
        let crash_at_change = (rng.below(2) == 0).then(|| 1 + rng.below(changes_max));
        let length = Duration::from_nanos(1 + rng.below(length_max.as_nanos() as u64));
        let end = match rng.below(5) {
            0 => End::Close,
            1 => End::Crash(Crash::Process),
            _ => End::Crash(Crash::Power),
        };
        Self { faults, room, crash_at_change, length, end }
    }

    /// One in which nothing goes wrong until the power fails in the `number`-th call that changes something.
    pub fn until_change(number: u64, length: Duration) -> Self {
        Self { crash_at_change: Some(number), end: End::Crash(Crash::Power), ..Self::calm(length) }
    }

    /// Lets it begin: sets up the node's disk.
    pub fn begin(&self, node: &Node) {
        node.start();
        let disk = node.disk();
        disk.set_faults(self.faults);
        disk.set_capacity(self.room.map_or(u64::MAX, |room| disk.used().saturating_add(room)));
        disk.crash_at_change(self.crash_at_change);
    }

    /// Whether an operation may fail for a reason that lies in the disk.
    pub fn disk_fails(&self) -> bool {
        self.faults != Faults::default() || self.room.is_some()
    }

    /// Lets everything work again from here on.
    pub fn mend(node: &Node) {
        let disk = node.disk();
        disk.set_faults(Faults::default());
        disk.set_capacity(u64::MAX);
        disk.crash_at_change(None);
    }
}
