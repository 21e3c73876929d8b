//! Members of groups of KIP-848 as metadata keeps them. Little-endian.
//!
//! ```text
//! kafka/member/SLOT/PART/GROUP: 0  1  format      1
//!                               1  2  parts       of the member's record
//!                               3  8  hash        XXH3-64 of the record, which is what its parts have, together:
//!                              11     at most 512 KiB of the record, to the end
//!
//! a record: 0  4  epoch                what the member was told, or is about to be; -2 while it is away for now
//!           4  4  previous epoch
//!           8  4  rebalance timeout    in ms
//!          12  1  assignor             0 = none, 1 = uniform, 2 = range
//!          13     texts                id, client's id, client's host; each a length of 4 bytes, then as many bytes
//!                 texts that may be missing: instance, rack, pattern, the principal that has it; a length of -1 is
//!                                      none
//!                 topics               their number in 4 bytes, then their names
//!                 partitions           assigned, then to be revoked
//!                 target               1 byte: 0 = what is assigned; 1 = other partitions, which follow
//!                 classic              1 byte: 0 = it speaks KIP-848; 1 = the classic protocol; 2 = that, and it has
//!                                      something to do; then its session timeout in ms (4), the number of its
//!                                      protocols (4), and for each its name and what it says, with their lengths
//! partitions:  0  4  number of topics
//!              4     for each: its id (16), the number of its partitions (4), these (4 each)
//! ```
//!
//! Ids of members are longer than keys may be, so a member has a slot: a number below which its record is kept until it
//! is out. A record has several parts where one value can't hold it; parts that do not belong together are no record.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use tailwater_format::StreamId;
use xxhash_rust::xxh3::xxh3_64;

use super::consumer::Partitions;
use super::consumer::assign::Assignor;
use super::records::{BadRecord, take};

/// Where members are.
pub(crate) const MEMBERS: &str = "kafka/member/";
/// Bytes of a record in one part: several fit into one commit of metadata.
const PART_BYTES_MAX: usize = 512 << 10;
/// Slots of a group are below that: more than a group may have members.
const SLOTS_MAX: u32 = 1 << 20;
const FORMAT: u8 = 1;
/// The length of a text that is not there.
const NONE: u32 = u32::MAX;

/// Where a part of a record is: slot and number.
pub(crate) type MemberPart = (u32, u16);

/// What is written of members: parts of records, and `None` for those that go.
pub(crate) type MemberChanges = BTreeMap<MemberPart, Option<Bytes>>;

/// What is kept of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MemberRecord {
    pub id: String,
    pub instance: Option<String>,
    pub rack: Option<String>,
    pub client_id: Arc<str>,
    pub client_host: String,
    pub rebalance_ms: u32,
    pub topics: BTreeSet<String>,
    /// The pattern's text, and on whose behalf it is.
    pub pattern: Option<(String, Arc<str>)>,
    pub assignor: Option<Assignor>,
    pub epoch: i32,
    pub previous_epoch: i32,
    pub assigned: Partitions,
    pub revoking: Partitions,
    pub target: Partitions,
    pub classic: Option<ClassicRecord>,
}

/// What is kept of a member that speaks the classic protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClassicRecord {
    pub session_ms: u32,
    /// Whether it has to join again, or to sync.
    pub is_due: bool,
    pub protocols: Vec<(String, Bytes)>,
}

impl MemberRecord {
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(256);
        bytes.extend(self.epoch.to_le_bytes());
        bytes.extend(self.previous_epoch.to_le_bytes());
        bytes.extend(self.rebalance_ms.to_le_bytes());
        bytes.push(match self.assignor {
            None => 0,
            Some(Assignor::Uniform) => 1,
            Some(Assignor::Range) => 2,
        });
        for text in [&self.id, &*self.client_id, &self.client_host] {
            put(&mut bytes, text.as_bytes());
        }
        let (pattern, principal) = match &self.pattern {
            Some((text, principal)) => (Some(text.as_str()), Some(&**principal)),
            None => (None, None),
        };
        for text in [self.instance.as_deref(), self.rack.as_deref(), pattern, principal] {
            match text {
                Some(text) => put(&mut bytes, text.as_bytes()),
                None => bytes.extend(NONE.to_le_bytes()),
            }
        }
        put_count(&mut bytes, self.topics.len());
        self.topics.iter().for_each(|topic| put(&mut bytes, topic.as_bytes()));
        put_partitions(&mut bytes, &self.assigned);
        put_partitions(&mut bytes, &self.revoking);
        bytes.push(u8::from(self.target != self.assigned));
        if self.target != self.assigned {
            put_partitions(&mut bytes, &self.target);
        }
        match &self.classic {
            None => bytes.push(0),
            Some(classic) => {
                bytes.push(1 + u8::from(classic.is_due));
                bytes.extend(classic.session_ms.to_le_bytes());
                put_count(&mut bytes, classic.protocols.len());
                for (name, said) in &classic.protocols {
                    put(&mut bytes, name.as_bytes());
                    put(&mut bytes, said);
                }
            }
        }
        bytes
    }

    /// Takes a few times as much memory as there are bytes.
    pub fn decode(mut bytes: &[u8]) -> Result<Self, BadRecord> {
        let bytes = &mut bytes;
        let epoch = i32::from_le_bytes(take(bytes)?);
        let previous_epoch = i32::from_le_bytes(take(bytes)?);
        let rebalance_ms = u32::from_le_bytes(take(bytes)?);
        let assignor = match take(bytes)? {
            [0] => None,
            [1] => Some(Assignor::Uniform),
            [2] => Some(Assignor::Range),
            _ => return Err(BadRecord),
        };
        let mut text = || get_text(bytes)?.ok_or(BadRecord);
        let (id, client_id, client_host) = (text()?, text()?.into(), text()?);
        let (instance, rack) = (get_text(bytes)?, get_text(bytes)?);
        let pattern = match (get_text(bytes)?, get_text(bytes)?) {
            (Some(text), Some(principal)) => Some((text, principal.into())),
            (None, None) => None,
            _ => return Err(BadRecord),
        };
        let mut topics = BTreeSet::new();
        for _ in 0..u32::from_le_bytes(take(bytes)?) {
            topics.insert(get_text(bytes)?.ok_or(BadRecord)?);
        }
        let (assigned, revoking) = (get_partitions(bytes)?, get_partitions(bytes)?);
        let target = match take(bytes)? {
            [0] => assigned.clone(),
            [1] => get_partitions(bytes)?,
            _ => return Err(BadRecord),
        };
        let classic = match take(bytes)? {
            [0] => None,
            [is_due @ 1..=2] => {
                let session_ms = u32::from_le_bytes(take(bytes)?);
                let mut protocols = Vec::new();
                for _ in 0..u32::from_le_bytes(take(bytes)?) {
                    let name = get_text(bytes)?.ok_or(BadRecord)?;
                    let said = Bytes::copy_from_slice(get(bytes)?.ok_or(BadRecord)?);
                    protocols.push((name, said));
                }
                Some(ClassicRecord { session_ms, is_due: is_due == 2, protocols })
            }
            _ => return Err(BadRecord),
        };
        if !bytes.is_empty() {
            return Err(BadRecord);
        }
        Ok(Self {
            id,
            instance,
            rack,
            client_id,
            client_host,
            rebalance_ms,
            topics,
            pattern,
            assignor,
            epoch,
            previous_epoch,
            assigned,
            revoking,
            target,
            classic,
        })
    }
}

fn put_count(bytes: &mut Vec<u8>, count: usize) {
    let count = u32::try_from(count).expect("a request has fewer bytes than that");
    bytes.extend(count.to_le_bytes());
}

fn put(bytes: &mut Vec<u8>, item: &[u8]) {
    put_count(bytes, item.len());
    bytes.extend(item);
}

fn put_partitions(bytes: &mut Vec<u8>, partitions: &Partitions) {
    put_count(bytes, partitions.len());
    for (topic, numbers) in partitions {
        bytes.extend(topic.0.as_bytes());
        put_count(bytes, numbers.len());
        numbers.iter().for_each(|number| bytes.extend(number.to_le_bytes()));
    }
}

fn get<'a>(bytes: &mut &'a [u8]) -> Result<Option<&'a [u8]>, BadRecord> {
    let len = u32::from_le_bytes(take(bytes)?);
    if len == NONE {
        return Ok(None);
    }
    let (item, rest) = bytes.split_at_checked(len as usize).ok_or(BadRecord)?;
    *bytes = rest;
    Ok(Some(item))
}

fn get_text(bytes: &mut &[u8]) -> Result<Option<String>, BadRecord> {
    let Some(item) = get(bytes)? else { return Ok(None) };
    std::str::from_utf8(item).map(|text| Some(text.to_owned())).map_err(|_| BadRecord)
}

fn get_partitions(bytes: &mut &[u8]) -> Result<Partitions, BadRecord> {
    let mut partitions = Partitions::new();
    for _ in 0..u32::from_le_bytes(take(bytes)?) {
        let topic = StreamId(uuid::Uuid::from_bytes(take(bytes)?));
        let numbers = partitions.entry(topic).or_default();
        for _ in 0..u32::from_le_bytes(take(bytes)?) {
            numbers.insert(u32::from_le_bytes(take(bytes)?));
        }
    }
    Ok(partitions)
}

/// The key of a part of a group's member.
pub(crate) fn member_key((slot, part): MemberPart, group: &str) -> String {
    format!("{MEMBERS}{slot}/{part}/{group}")
}

/// The part and group of a key.
pub(crate) fn parse_member_key(key: &str) -> Option<(MemberPart, &str)> {
    let mut parts = key.strip_prefix(MEMBERS)?.splitn(3, '/');
    let (slot, part, group) = (parts.next()?, parts.next()?, parts.next()?);
    Some(((slot.parse().ok()?, part.parse().ok()?), group))
}

/// Where a member's record is kept, and which one.
#[derive(Clone, Debug)]
struct KeptMember {
    slot: u32,
    parts: u16,
    hash: u64,
    bytes: usize,
}

/// What metadata has of a group's members, or is about to.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeptMembers {
    by_id: BTreeMap<String, KeptMember>,
    /// Slots below `next` that nobody has.
    free: BTreeSet<u32>,
    next: u32,
    bytes: usize,
}

impl KeptMembers {
    /// Bytes of all records.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Keeps a member as it is now; `None` if it is out. What is kept already is not written again.
    pub fn keep(&mut self, id: &str, record: Option<&MemberRecord>, changes: &mut MemberChanges) {
        let Some(record) = record else { return self.forget(id, changes) };
        let bytes = Bytes::from(record.encode());
        let hash = xxh3_64(&bytes);
        let before = self.by_id.get(id).cloned();
        if before.as_ref().is_some_and(|before| before.hash == hash) {
            return;
        }
        let slot = before.as_ref().map(|before| before.slot).or_else(|| self.free.pop_first());
        let slot = slot.unwrap_or_else(|| {
            self.next += 1;
            self.next - 1
        });
        let pieces = bytes.chunks(PART_BYTES_MAX);
        let parts = u16::try_from(pieces.len()).expect("a request is far shorter");
        for (part, piece) in (0..).zip(pieces) {
            let mut value = Vec::with_capacity(11 + piece.len());
            value.push(FORMAT);
            value.extend(parts.to_le_bytes());
            value.extend(hash.to_le_bytes());
            value.extend(piece);
            changes.insert((slot, part), Some(value.into()));
        }
        let before = before.map_or((0, 0), |before| (before.parts, before.bytes));
        changes.extend((parts..before.0).map(|part| ((slot, part), None)));
        self.bytes = self.bytes + bytes.len() - before.1;
        self.by_id.insert(id.to_owned(), KeptMember { slot, parts, hash, bytes: bytes.len() });
    }

    fn forget(&mut self, id: &str, changes: &mut MemberChanges) {
        let Some(KeptMember { slot, parts, bytes, .. }) = self.by_id.remove(id) else { return };
        changes.extend((0..parts).map(|part| ((slot, part), None)));
        self.free.insert(slot);
        self.bytes -= bytes;
    }

    /// Nobody is in the group any more, or none of whom anything is kept.
    pub fn forget_all(&mut self, changes: &mut MemberChanges) {
        for id in self.by_id.keys().cloned().collect::<Vec<_>>() {
            self.forget(&id, changes);
        }
    }

    /// What is kept of a group's members. What is no record, or a second one of a member, goes with the `changes`.
    pub fn restore(
        kept: &BTreeMap<MemberPart, Bytes>,
        changes: &mut MemberChanges,
    ) -> (Self, Vec<MemberRecord>) {
        let (mut members, mut records) = (Self::default(), Vec::new());
        let mut slots: BTreeMap<u32, Vec<(u16, &Bytes)>> = BTreeMap::new();
        for ((slot, part), value) in kept {
            slots.entry(*slot).or_default().push((*part, value));
        }
        for (slot, parts) in slots {
            let known = |record: &MemberRecord| members.by_id.contains_key(&record.id);
            match joined(&parts).ok().filter(|(record, _)| slot < SLOTS_MAX && !known(record)) {
                Some((record, kept)) => {
                    members.bytes += kept.bytes;
                    members.by_id.insert(record.id.clone(), KeptMember { slot, ..kept });
                    members.free.extend(members.next..slot);
                    members.next = slot + 1;
                    records.push(record);
                }
                None => changes.extend(parts.iter().map(|(part, _)| ((slot, *part), None))),
            }
        }
        (members, records)
    }
}

/// The record that these parts are of.
fn joined(parts: &[(u16, &Bytes)]) -> Result<(MemberRecord, KeptMember), BadRecord> {
    let (mut record, mut header) = (Vec::new(), None);
    for (number, (part, value)) in (0..).zip(parts) {
        let mut value: &[u8] = value;
        let [format] = take(&mut value)?;
        let of = (u16::from_le_bytes(take(&mut value)?), u64::from_le_bytes(take(&mut value)?));
        if format != FORMAT || *part != number || *header.get_or_insert(of) != of {
            return Err(BadRecord);
        }
        record.extend(value);
    }
    let (count, hash) = header.ok_or(BadRecord)?;
    if usize::from(count) != parts.len() || xxh3_64(&record) != hash {
        return Err(BadRecord);
    }
    let kept = KeptMember { slot: 0, parts: count, hash, bytes: record.len() };
    Ok((MemberRecord::decode(&record)?, kept))
}
