//! One file's bytes: as the running process sees them, as the disk has them, and what lies between.

use crate::rng::Rng;

use super::SECTOR_BYTES;

/// What was done to a file since its last successful sync.
enum PendingWrites {
    Write { position: u64, bytes: Vec<u8> },
    SetLen(u64),
}

/// How much of what was not synced a power failure leaves, drawn once for a crash: independent draws alone would
/// hardly ever leave all, nothing, or all but the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Survival {
    /// Nothing.
    None,
    /// Everything.
    All,
    /// Everything in order up to a point, drawn for each file, the write at that point torn.
    Prefix,
    /// Each by itself, in so many of a million cases.
    Each(u32),
}

impl Survival {
    pub(super) fn draw(rng: &mut Rng) -> Self {
        match rng.below(8) {
            0 | 1 => Survival::None,
            2 => Survival::All,
            3 | 4 => Survival::Prefix,
            _ => Survival::Each(rng.between(50_000, 950_000) as u32),
        }
    }
}

/// A file's contents.
#[derive(Default)]
pub(super) struct Inode {
    /// What reads answer.
    current: Vec<u8>,
    /// What is on the disk for certain.
    durable: Vec<u8>,
    pending: Vec<PendingWrites>,
}

impl Inode {
    pub(super) fn len(&self) -> u64 {
        self.current.len() as u64
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.current
    }

    pub(super) fn read(&self, buffer: &mut [u8], position: u64) -> usize {
        let from = usize::try_from(position).unwrap_or(usize::MAX).min(self.current.len());
        let count = buffer.len().min(self.current.len() - from);
        buffer[..count].copy_from_slice(&self.current[from..from + count]);
        count
    }

    pub(super) fn write(&mut self, bytes: &[u8], position: u64) {
        write_into(&mut self.current, bytes, position);
        self.pending.push(PendingWrites::Write { position, bytes: bytes.to_vec() });
    }

    pub(super) fn set_len(&mut self, length: u64) {
        self.current.resize(length as usize, 0);
        self.pending.push(PendingWrites::SetLen(length));
    }

    pub(super) fn sync(&mut self) {
        for pending in std::mem::take(&mut self.pending) {
            match pending {
                PendingWrites::Write { position, bytes } => write_into(&mut self.durable, &bytes, position),
                PendingWrites::SetLen(length) => self.durable.resize(length as usize, 0),
            }
        }
    }

    /// A sync that failed: some of the pending bytes reached the disk, the rest never will.
    pub(super) fn fail_sync(&mut self, rng: &mut Rng) {
        let survival = Survival::draw(rng);
        self.settle(survival, rng);
        // Pages marked clean are read from memory until they are dropped, then from the disk.
        if rng.below(2) == 0 {
            self.current.clone_from(&self.durable);
        }
    }

    /// The power failed.
    pub(super) fn crash(&mut self, survival: Survival, rng: &mut Rng) {
        self.settle(survival, rng);
        self.current.clone_from(&self.durable);
    }

    pub(super) fn flip_bit(&mut self, position: usize, bit: u8) -> bool {
        let mask = 1 << (bit % 8);
        for bytes in [&mut self.current, &mut self.durable] {
            if let Some(byte) = bytes.get_mut(position) {
                *byte ^= mask;
            }
        }
        position < self.current.len()
    }

    /// Decides for each pending change whether the disk has it.
    fn settle(&mut self, survival: Survival, rng: &mut Rng) {
        let pending = std::mem::take(&mut self.pending);
        let cut = match survival {
            Survival::None => 0,
            Survival::Prefix => rng.index(pending.len() + 1),
            Survival::All | Survival::Each(_) => pending.len(),
        };
        let mut longest = self.durable.len() as u64;
        for (place, pending) in pending.into_iter().enumerate() {
            let (whole, torn) = match survival {
                Survival::All => (true, false),
                Survival::None => (false, false),
                Survival::Prefix => (place < cut, place == cut),
                Survival::Each(chance) => {
                    let whole = rng.chance(chance);
                    (whole, !whole && rng.below(2) == 0)
                }
            };
            match pending {
                PendingWrites::Write { position, bytes } => {
                    longest = longest.max(position + bytes.len() as u64);
                    if whole {
                        write_into(&mut self.durable, &bytes, position);
                    } else if torn {
                        write_torn(&mut self.durable, &bytes, position, rng);
                    }
                }
                PendingWrites::SetLen(length) if whole => {
                    self.durable.resize(length as usize, 0);
                    longest = longest.max(length);
                }
                PendingWrites::SetLen(_) => {}
            }
        }
        // A length may reach the disk without the bytes below it.
        if matches!(survival, Survival::Prefix | Survival::Each(_)) && rng.below(3) == 0 {
            let length = rng.between(self.durable.len() as u64, longest.max(self.durable.len() as u64));
            self.durable.resize(length as usize, 0);
        }
    }
}

fn write_into(target: &mut Vec<u8>, bytes: &[u8], position: u64) {
    let from = position as usize;
    let to = from + bytes.len();
    if target.len() < to {
        target.resize(to, 0);
    }
    target[from..to].copy_from_slice(bytes);
}

/// Writes some of the sectors that `bytes` touches: the first ones, the last ones, or each by itself.
fn write_torn(target: &mut Vec<u8>, bytes: &[u8], position: u64, rng: &mut Rng) {
    let end = position + bytes.len() as u64;
    let first = position / SECTOR_BYTES;
    let sectors = end.div_ceil(SECTOR_BYTES) - first;
    let style = rng.below(3);
    let cut = rng.below(sectors + 1);
    for sector in 0..sectors {
        let survives = match style {
            0 => sector < cut,
            1 => sector >= cut,
            _ => rng.below(2) == 0,
        };
        if survives {
            let from = ((first + sector) * SECTOR_BYTES).max(position);
            let to = ((first + sector + 1) * SECTOR_BYTES).min(end);
            write_into(target, &bytes[(from - position) as usize..(to - position) as usize], from);
        }
    }
}
