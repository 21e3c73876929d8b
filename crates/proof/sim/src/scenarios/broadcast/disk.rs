//! A replica's disk: a journal that is synced some time after it was written, and checkpoints in between. What a crash
//! leaves is what was synced, and some of what was not. It may stand still: what is written then waits.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use tailwater_broadcast::HistoryOptions;
use tailwater_broadcast::record::Record;
use tailwater_broadcast::recovered::RecoveredStream;
use tailwater_broadcast::replica::{Dropped, Replica, ReplicaTicket};
use tailwater_broadcast_server::disk::Walk;

use super::net::Pid;
use crate::checkers::Violation;
use crate::planted::Plant;
use crate::rng::Rng;

/// A checkpoint that is being taken.
struct Unfinished {
    /// None once it has everything.
    walk: Option<Walk>,
    records: Vec<Bytes>,
    /// The journal's records before it are in it; it counts once those before `needs` are durable.
    covered: u64,
    needs: u64,
}

pub(super) struct Disk {
    /// The replica's id, which lies there as well.
    pub(super) id: Pid,
    checkpoint: Vec<Bytes>,
    /// The journal's records and how many there were before them.
    journal: VecDeque<Bytes>,
    trimmed: u64,
    /// How many of all records are durable.
    synced: u64,
    tickets: VecDeque<(u64, ReplicaTicket)>,
    unfinished: Option<Unfinished>,
    /// What the replica dropped and does not lie aside yet, and what is written after that.
    putting_aside: VecDeque<Dropped>,
    waiting: VecDeque<(Bytes, Option<ReplicaTicket>)>,
    /// What lies aside.
    pub(super) aside: Vec<Dropped>,
    /// Until when it stands still.
    pub(super) stands_until_ms: u64,
}

fn encoded(record: &Record) -> Bytes {
    let mut out = BytesMut::new();
    record.encode(&mut out);
    out.freeze()
}

impl Disk {
    pub(super) fn new(id: Pid) -> Self {
        Self {
            id,
            checkpoint: Vec::new(),
            journal: VecDeque::new(),
            trimmed: 0,
            synced: 0,
            tickets: VecDeque::new(),
            unfinished: None,
            putting_aside: VecDeque::new(),
            waiting: VecDeque::new(),
            aside: Vec::new(),
            stands_until_ms: 0,
        }
    }

    fn end(&self) -> u64 {
        self.trimmed + self.journal.len() as u64
    }

    pub(super) fn append(&mut self, record: &Record, ticket: Option<ReplicaTicket>) {
        self.waiting.push_back((encoded(record), ticket));
        self.write();
    }

    fn write(&mut self) {
        while self.putting_aside.is_empty()
            && let Some((record, ticket)) = self.waiting.pop_front()
        {
            self.journal.push_back(record);
            self.tickets.extend(ticket.map(|ticket| (self.end(), ticket)));
        }
    }

    /// The replica of a region has dropped all that it had, or had of another one.
    pub(super) fn put_aside(&mut self, own: &str, dropped: Dropped) {
        let is_dropped = |region: &str| dropped.region == own || dropped.region == region;
        self.waiting.retain(|(record, _)| {
            let record = Record::decode(record.clone()).ok();
            let region = record.as_ref().and_then(Record::region);
            !region.map_or(dropped.region == own, is_dropped)
        });
        self.tickets.retain(|(_, ticket)| !is_dropped(ticket.stream.region()));
        self.unfinished = None;
        self.putting_aside.push_back(dropped);
    }

    /// Syncs the journal, perhaps, and goes on with a checkpoint; the tickets that are answered.
    pub(super) fn step(
        &mut self,
        now_ms: u64,
        rng: &mut Rng,
        plant: Plant,
        replica: &Replica,
    ) -> Vec<ReplicaTicket> {
        if now_ms < self.stands_until_ms {
            return Vec::new();
        }
        if rng.chance(300_000) {
            self.synced = self.end();
        }
        if !self.putting_aside.is_empty() && rng.chance(100_000) {
            self.aside.extend(self.putting_aside.pop_front());
            self.write();
        }
        if self.unfinished.is_none() && self.putting_aside.is_empty() && rng.chance(10_000) {
            let (walk, covered) = (Some(Walk::begin(replica)), self.end());
            self.unfinished = Some(Unfinished { walk, records: Vec::new(), covered, needs: 0 });
            if plant == Plant::TrimBeforeCheckpoint {
                self.trim(covered);
            }
        }
        let end = self.end();
        if let Some(unfinished) = &mut self.unfinished
            && rng.chance(500_000)
        {
            match unfinished.walk.as_mut().map(|walk| walk.next(replica)) {
                Some(Some(records)) => unfinished.records.extend(records.iter().map(encoded)),
                Some(None) => (unfinished.walk, unfinished.needs) = (None, end),
                None if self.synced >= unfinished.needs => {
                    let covered = unfinished.covered;
                    self.checkpoint = std::mem::take(&mut unfinished.records);
                    self.unfinished = None;
                    self.trim(covered);
                }
                None => {}
            }
        }
        let answered_to = if plant == Plant::HeldBeforeSync { end } else { self.synced };
        let mut answered = Vec::new();
        while let Some((_, ticket)) = self.tickets.pop_front_if(|(end, _)| *end <= answered_to) {
            answered.push(ticket);
        }
        answered
    }

    fn trim(&mut self, covered: u64) {
        while self.trimmed < covered && self.journal.pop_front().is_some() {
            self.trimmed += 1;
        }
    }

    /// The replica ends, and its machine with it.
    pub(super) fn crash(&mut self, rng: &mut Rng) {
        let synced = self.synced.max(self.trimmed);
        let kept = rng.between(synced, self.end());
        self.journal.truncate((kept - self.trimmed) as usize);
        // What was found after a crash is made durable.
        self.synced = kept;
        self.tickets.clear();
        self.unfinished = None;
        self.putting_aside.clear();
        self.waiting.clear();
    }

    /// What is there.
    pub(super) fn load(&self, plant: Plant) -> Result<RecoveredStream, Violation> {
        let mut recovered = RecoveredStream::new(HistoryOptions::default());
        for bytes in self.checkpoint.iter().chain(&self.journal) {
            let record = Record::decode(bytes.clone()).map_err(|error| Violation::new(error.to_string()))?;
            if let Some(record) = plant.broadcast_record(record) {
                recovered
                    .apply(record)
                    .map_err(|why| Violation::new(format!("a disk can't be read: {why}")))?;
            }
        }
        Ok(recovered)
    }
}
