//! A bookie, as the protocols see it: what it answered is durable, and survives a crash.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::ids::EntryId;
use crate::protocol::{BookieAnswer, BookieError, BookieRequest};

/// One bookie's part of one ledger.
#[derive(Default)]
pub struct ModelBookie {
    /// Whether it answers.
    pub up: bool,
    /// Whether it takes entries from a recovery only.
    pub fenced: bool,
    /// What it has.
    pub entries: BTreeMap<EntryId, Bytes>,
    explicit: Option<Bytes>,
    lac: Option<EntryId>,
}

impl ModelBookie {
    /// One that has nothing yet.
    pub fn new() -> Self {
        Self { up: true, ..Self::default() }
    }

    /// Does what it is asked. What it answers is durable.
    pub fn serve(&mut self, request: &BookieRequest) -> Result<BookieAnswer, BookieError> {
        match request {
            BookieRequest::Add { entry, packet, recovery, .. } => {
                if self.fenced && !recovery {
                    return Err(BookieError::Fenced);
                }
                self.learn(EntryId::new(i64::from_be_bytes(packet[16..24].try_into().expect("eight bytes"))));
                self.entries.insert(*entry, packet.clone());
                Ok(BookieAnswer::Added)
            }
            BookieRequest::Read { entry, fence, .. } => {
                self.fenced |= fence.is_some();
                let found = if entry.is_some() {
                    self.entries.get(entry)
                } else {
                    self.entries.last_key_value().map(|(_, packet)| packet)
                };
                let packet = found.cloned().ok_or(self.absence())?;
                Ok(BookieAnswer::Entry { packet: Some(packet), lac: None })
            }
            BookieRequest::ReadBatch { first, count_max, .. } => {
                let mut packets = Vec::new();
                let mut entry = *first;
                while packets.len() < *count_max as usize
                    && let Some(packet) = self.entries.get(&entry)
                {
                    packets.push(packet.clone());
                    entry = entry.next();
                }
                if packets.is_empty() { Err(self.absence()) } else { Ok(BookieAnswer::Batch { packets }) }
            }
            BookieRequest::ReadLac { .. } => {
                let last = self.entries.last_key_value().map(|(_, packet)| packet.clone());
                if last.is_none() && self.explicit.is_none() {
                    return Err(BookieError::NoLedger);
                }
                Ok(BookieAnswer::Lac { explicit: self.explicit.clone(), last })
            }
            // It does not wait here.
            BookieRequest::Poll { previous, .. } => {
                let lac = self.lac.ok_or(BookieError::NoLedger)?;
                let packet = (lac > *previous).then(|| self.entries.get(&previous.next()).cloned()).flatten();
                Ok(BookieAnswer::Entry { packet, lac: Some(lac) })
            }
            BookieRequest::WriteLac { lac, packet, .. } => {
                self.learn(*lac);
                self.explicit = Some(packet.clone());
                Ok(BookieAnswer::LacWritten)
            }
        }
    }

    fn learn(&mut self, lac: EntryId) {
        self.lac = self.lac.max(Some(lac));
    }

    fn absence(&self) -> BookieError {
        if self.entries.is_empty() { BookieError::NoLedger } else { BookieError::NoEntry }
    }
}
