//! The journal's step machine: every decision, and no input or output.
//!
//! Appenders call [`Core::enqueue`]; the writer's thread asks [`Core::next_step`], does it, and says how it
//! went ([`Core::written`], [`Core::synced`], [`Core::begun`], [`Core::failed`]); the files' thread asks
//! [`Core::next_chore`]. All under one short lock, and all times are given.
//!
//! Invariants:
//! - `durable <= written <= appended`; each grows only.
//! - At most one group is in flight, and it belongs to the active file, whose header is durable.
//! - A file is begun only when everything in its predecessor is durable, or has been cut.
//! - While latched nothing is pending: what was has been cut, and appends are refused.

use std::collections::VecDeque;
use std::time::Duration;

use tailwater_env::Instant;

use crate::config::JournalConfig;
use crate::error::{FullReason, JournalAppendError, JournalFailure};
use crate::frame::{Salt, push_frame};
use crate::header::FileHeader;
use crate::journal::{JournalAppendOptions, Priority};
use crate::limits::{
    BUFFERS_KEPT, DEAD_MAX, FILES_ASKED_BACK, FRAME_BYTES, GROUP_BYTES_INITIAL, HEADER_BYTES, PAGE_BYTES,
    RETRY_MAX, RETRY_MIN, SPARES_FOR_FAILURE, SPARES_KEPT_MAX, SPARES_TARGET, UNSYNCED_BYTES_MAX,
};
use crate::position::{FileSequence, Incarnation, JournalPosition, Tag};
use crate::reach::JournalReach;

/// Where each tag's last record in a file ends; 0 if it has none there.
pub(crate) type TagEnds = Box<[JournalPosition; 256]>;

pub(crate) fn no_tag_ends() -> TagEnds {
    Box::new([JournalPosition(0); 256])
}

/// A file that holds records that may still be needed, is being written, or will be next.
#[derive(Debug)]
pub(crate) struct LiveFile {
    pub(crate) sequence: FileSequence,
    pub(crate) base: JournalPosition,
    /// Where its records end so far.
    pub(crate) end: JournalPosition,
    pub(crate) predecessor: FileSequence,
    pub(crate) predecessor_end: JournalPosition,
    pub(crate) tag_ends: TagEnds,
    /// It was not written whole before its use, so that each sync has the file system's metadata to write, too. Only
    /// said of files begun since the start: others are not written any more.
    pub(crate) grows: bool,
}

impl LiveFile {
    fn is_empty(&self) -> bool {
        self.end == self.base
    }
}

/// What recovery found, for the core to continue.
#[derive(Debug)]
pub(crate) struct RecoveredJournal {
    pub(crate) journal: [u8; 16],
    /// Of the last file; 0 if there is none.
    pub(crate) incarnation: Incarnation,
    /// Oldest first.
    pub(crate) files: VecDeque<LiveFile>,
    /// The highest sequence of any file in the directory, dead ones included.
    pub(crate) sequence_max: FileSequence,
    /// Files that are not in the chain.
    pub(crate) dead: Vec<FileSequence>,
    pub(crate) spares: u32,
}

/// A group of framed records to be written at `offset` of the active file.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) sequence: FileSequence,
    /// In the file, in bytes.
    pub(crate) offset: u64,
    pub(crate) bytes: Vec<u8>,
    pub(crate) end: JournalPosition,
    /// Somebody wants it synced at once.
    pub(crate) sync: bool,
}

/// How to begin a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) header: FileHeader,
    pub(crate) source: AppendSource,
}

/// Where a file comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AppendSource {
    /// A spare one, preallocated.
    Spare,
    /// A file that grows as it is written: none is ready.
    Grow,
}

/// What the writer's thread does next.
#[derive(Debug)]
pub(crate) enum Step {
    /// Write the group; if it says so, sync it too.
    Write(Group),
    /// Sync what was written without.
    Sync,
    /// Begin a file.
    Begin(Plan),
    /// Nothing to do before that time, or before it is woken.
    Wait(Option<Instant>),
    /// Closed, and everything durable that can be.
    Done(Result<(), JournalFailure>),
}

/// What the files' thread does next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Chore {
    /// Take the file out of the journal; keep it as a spare if told so.
    Recycle { sequence: FileSequence, keep: bool },
    /// Make a spare file.
    Zero,
    /// Nothing to do before that time, or before it is woken.
    Wait(Option<Instant>),
    /// Closed.
    Done,
}

/// The records in (`after`, `upto`] were cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Loss {
    pub(crate) after: JournalPosition,
    pub(crate) upto: JournalPosition,
    pub(crate) incarnation: Incarnation,
}

#[derive(Debug)]
enum JournalState {
    Running,
    Latched { failure: JournalFailure, backoff: Duration, retry_at: Instant },
}

#[derive(Debug)]
pub(crate) struct Core {
    config: JournalConfig,
    journal: [u8; 16],
    incarnation: Incarnation,
    state: JournalState,
    closing: bool,
    /// Oldest first; the last one takes the next record. Those behind `active` are only planned.
    files: VecDeque<LiveFile>,
    /// The file that is being written.
    active: FileSequence,
    sequence_next: FileSequence,
    /// Planned files and where they come from, in order.
    planned: VecDeque<AppendSource>,
    /// Groups that wait for the disk, oldest first; the last one is being assembled.
    pending: VecDeque<Group>,
    pending_bytes: usize,
    in_flight: bool,
    reach: JournalReach,
    unsynced_since: Option<Instant>,
    /// Somebody waits for a sync up to here, and does not want to wait for the interval.
    sync_asked: JournalPosition,
    trims: TagEnds,
    /// Ready and not promised to a planned file.
    spares: u32,
    /// Why no spare could be made when last tried, and when to try again.
    blocked: Option<(FullReason, Instant)>,
    /// Files that are out of the chain and wait to be removed. They go before any file of the chain: a file
    /// older than one that is missing would look as if that one had been taken away.
    dead: Vec<FileSequence>,
    /// A file that could not be taken out of the journal, and when to try again.
    recycle_again: Option<(FileSequence, Instant)>,
    buffers: Vec<Vec<u8>>,
    records: u64,
    writer_idle: bool,
    refused: bool,
    last_failure: Option<JournalFailure>,
}

/// What an append brings about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Enqueued {
    pub(crate) end: JournalPosition,
    pub(crate) wake_writer: bool,
}

impl Core {
    /// A journal that has to begin its first file yet; see [`Core::next_step`].
    pub(crate) fn new(config: JournalConfig, recovered: RecoveredJournal, now: Instant) -> Self {
        let end = recovered.files.back().map_or(JournalPosition(0), |file| file.end);
        let opening = JournalFailure {
            what: "opening",
            path: "the journal".into(),
            kind: std::io::ErrorKind::NotConnected,
            message: "no file was begun yet".into(),
        };
        Self {
            config,
            journal: recovered.journal,
            incarnation: recovered.incarnation.next(),
            state: JournalState::Latched { failure: opening, backoff: RETRY_MIN, retry_at: now },
            closing: false,
            active: recovered.files.back().map_or(FileSequence(0), |file| file.sequence),
            files: recovered.files,
            sequence_next: recovered.sequence_max.next(),
            planned: VecDeque::new(),
            pending: VecDeque::new(),
            pending_bytes: 0,
            in_flight: false,
            reach: JournalReach::at(end),
            unsynced_since: None,
            sync_asked: JournalPosition(0),
            trims: no_tag_ends(),
            spares: recovered.spares,
            blocked: None,
            dead: recovered.dead,
            recycle_again: None,
            buffers: Vec::new(),
            records: 0,
            writer_idle: false,
            refused: false,
            last_failure: None,
        }
    }

    pub(crate) fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// How far the journal is written, and durable.
    pub(crate) fn watermarks(&self) -> (JournalPosition, JournalPosition) {
        (self.reach.written(), self.reach.durable())
    }

    /// The file being written.
    pub(crate) fn active(&self) -> FileSequence {
        self.active
    }

    pub(crate) fn records(&self) -> u64 {
        self.records
    }

    pub(crate) fn file_count(&self) -> u32 {
        self.files.len() as u32
    }

    pub(crate) fn spare_count(&self) -> u32 {
        self.spares
    }

    // ---- appending ----

    /// Frames a record into the group that is being assembled.
    pub(crate) fn enqueue(
        &mut self,
        tag: Tag,
        parts: &[&[u8]],
        append: &JournalAppendOptions,
    ) -> Result<Enqueued, JournalAppendError> {
        let length = parts.iter().map(|part| part.len()).sum();
        if let Err(error) = self.admit(length, append) {
            self.refused = true;
            return Err(error);
        }
        let framed = FRAME_BYTES + length;
        if framed as u64 > self.room() || self.outgrown() {
            self.plan_next_file();
        }
        assert!(framed as u64 <= self.room(), "admitted only if it fits");

        let position = self.reach.appended();
        self.reach.append(framed as u64);
        let end = self.reach.appended();
        let file = self.files.back_mut().expect("a file is open while the journal is not latched");
        file.end = end;
        file.tag_ends[usize::from(tag.0)] = end;
        let (sequence, base) = (file.sequence, file.base);

        if self.pending.back().is_none_or(|group| group.sequence != sequence) {
            let bytes = self.buffers.pop().unwrap_or_else(|| Vec::with_capacity(GROUP_BYTES_INITIAL));
            let offset = HEADER_BYTES + position.bytes_since(base);
            self.pending.push_back(Group { sequence, offset, bytes, end: position, sync: false });
        }
        let group = self.pending.back_mut().expect("just made sure");
        let durable = self.reach.durable();
        push_frame(&mut group.bytes, tag, position, durable, parts, Salt::new(&self.journal, sequence));
        group.end = end;
        group.sync |= append.sync;
        self.pending_bytes += framed;
        self.records += 1;
        Ok(Enqueued { end, wake_writer: std::mem::take(&mut self.writer_idle) })
    }

    /// Has what was appended up to `upto` synced as soon as it is written; whether the writer has to be woken for it.
    pub(crate) fn ask_sync(&mut self, upto: JournalPosition) -> bool {
        self.sync_asked = self.sync_asked.max(upto.min(self.reach.appended()));
        self.sync_asked > self.reach.durable() && std::mem::take(&mut self.writer_idle)
    }

    /// Whether a record of that length would be taken.
    pub(crate) fn admit(
        &self,
        length: usize,
        append: &JournalAppendOptions,
    ) -> Result<(), JournalAppendError> {
        if self.closing {
            return Err(JournalAppendError::Closed);
        }
        if append.incarnation != self.incarnation {
            return Err(JournalAppendError::Stale { current: self.incarnation });
        }
        if let JournalState::Latched { failure, .. } = &self.state {
            return Err(JournalAppendError::Latched(failure.clone()));
        }
        let length_max = self.config.record_bytes_max;
        if length > length_max {
            return Err(JournalAppendError::TooLarge { length, length_max });
        }
        let framed = FRAME_BYTES + length;
        if self.pending_bytes > 0 && self.pending_bytes + framed > self.config.backlog_bytes {
            return Err(JournalAppendError::Backlog { backlog_bytes: self.pending_bytes });
        }
        if self.next_source().is_none() {
            let reserve = match append.priority {
                Priority::Normal => self.config.reserve_bytes,
                Priority::Reserved => 0,
            };
            if framed as u64 + reserve > self.room() {
                return Err(JournalAppendError::Full(self.full_reason()));
            }
        }
        Ok(())
    }

    /// Bytes left in the file that takes the next record.
    fn room(&self) -> u64 {
        let file = self.files.back().expect("a file is open while the journal is not latched");
        self.config.file_capacity() - file.end.bytes_since(file.base)
    }

    /// Whether the file that takes the next record is left before it is full: it grows, as that of a new directory
    /// does, and one that was written whole is ready by now. Not where files are scarce, for what is left of it is
    /// lost.
    fn outgrown(&self) -> bool {
        let file = self.files.back().expect("a file is open while the journal is not latched");
        file.grows
            && !file.is_empty()
            && self.next_source() == Some(AppendSource::Spare)
            && self.file_count() < self.files_asked_back()
    }

    /// Where the next file of an ordinary roll would come from.
    fn next_source(&self) -> Option<AppendSource> {
        if self.spares > SPARES_FOR_FAILURE {
            return Some(AppendSource::Spare);
        }
        let used = self.files.len() as u32 + self.spares.max(SPARES_FOR_FAILURE);
        (self.blocked.is_none() && used < self.config.files_max).then_some(AppendSource::Grow)
    }

    fn full_reason(&self) -> FullReason {
        match &self.blocked {
            Some((reason, _)) => reason.clone(),
            None => FullReason::FilesMax { files_max: self.config.files_max },
        }
    }

    fn plan_next_file(&mut self) {
        let source = self.next_source().expect("admitted only if there is one");
        if source == AppendSource::Spare {
            self.spares -= 1;
        }
        self.planned.push_back(source);
        let last = self.files.back().expect("a file is open while the journal is not latched");
        let planned = LiveFile {
            sequence: self.sequence_next,
            base: self.reach.appended(),
            end: self.reach.appended(),
            predecessor: last.sequence,
            predecessor_end: last.end,
            tag_ends: no_tag_ends(),
            grows: source == AppendSource::Grow,
        };
        assert!(planned.sequence > planned.predecessor, "sequences only grow");
        self.sequence_next = planned.sequence.next();
        self.files.push_back(planned);
    }

    /// Whether there is room for whoever was refused, however long his record, with something to spare: one who is
    /// told so and refused again would ask in a loop.
    pub(crate) fn is_ready(&self) -> bool {
        let largest = (FRAME_BYTES + self.config.record_bytes_max) as u64;
        let backlog_left = self.config.backlog_bytes.saturating_sub(self.pending_bytes);
        matches!(self.state, JournalState::Running)
            && self.pending_bytes <= self.config.backlog_bytes / 2
            && (self.pending_bytes == 0 || backlog_left as u64 >= largest)
            && (self.next_source().is_some() || self.room() >= largest + self.config.reserve_bytes)
    }

    /// Whether the disk lets it take a record of any length; if not, what an append is, or soon will be, refused with.
    pub(crate) fn health(&self) -> Result<(), JournalAppendError> {
        match (&self.state, &self.blocked) {
            (JournalState::Latched { failure, .. }, _) => Err(JournalAppendError::Latched(failure.clone())),
            (JournalState::Running, Some((reason, _))) if self.next_source().is_none() => {
                let largest = (FRAME_BYTES + self.config.record_bytes_max) as u64;
                let is_room = self.room() >= largest + self.config.reserve_bytes;
                if is_room { Ok(()) } else { Err(JournalAppendError::Full(reason.clone())) }
            }
            _ => Ok(()),
        }
    }

    /// The latest failure of the disk since the start.
    pub(crate) fn last_failure(&self) -> Option<&JournalFailure> {
        self.last_failure.as_ref()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closing
    }

    /// Somebody waits for [`Core::is_ready`].
    pub(crate) fn note_refused(&mut self) {
        self.refused = true;
    }

    /// Whether somebody was refused and there is room by now; answered once.
    pub(crate) fn take_refused(&mut self) -> bool {
        self.refused && self.is_ready() && std::mem::take(&mut self.refused)
    }

    // ---- writing ----

    /// What the writer's thread has to do at `now`.
    pub(crate) fn next_step(&mut self, now: Instant) -> Step {
        assert!(!self.in_flight, "one step at a time");
        if let JournalState::Latched { failure, retry_at, .. } = &self.state {
            if self.closing {
                return Step::Done(Err(failure.clone()));
            }
            // A disk that neither begins a file nor removes what is left of it must not be filled with attempts.
            let retry_at =
                if self.dead.len() < DEAD_MAX { *retry_at } else { (now + RETRY_MAX).max(*retry_at) };
            if now < retry_at {
                self.writer_idle = true;
                return Step::Wait(Some(retry_at));
            }
            return Step::Begin(self.reopening());
        }
        let sync_at = self.unsynced_since.map(|since| match self.sync_asked > self.reach.durable() {
            true => since,
            false => since + self.config.sync_interval,
        });
        if let Some(group) = self.pending.front() {
            if group.sequence != self.active {
                return if self.unsynced_since.is_some() { Step::Sync } else { Step::Begin(self.rolling()) };
            }
            let mut group = self.pending.pop_front().expect("seen just above");
            self.pending_bytes -= group.bytes.len();
            self.in_flight = true;
            group.sync |= self.sync_asked > self.reach.durable()
                || sync_at.is_some_and(|at| at <= now)
                || group.end.bytes_since(self.reach.durable()) > UNSYNCED_BYTES_MAX;
            pad(&mut group);
            return Step::Write(group);
        }
        match sync_at {
            Some(at) if self.closing || at <= now => Step::Sync,
            None if self.closing => Step::Done(Ok(())),
            _ => {
                self.writer_idle = true;
                Step::Wait(sync_at)
            }
        }
    }

    fn header_after(&self, predecessor: FileSequence, predecessor_end: JournalPosition) -> FileHeader {
        FileHeader {
            journal: self.journal,
            sequence: self.sequence_next,
            incarnation: self.incarnation,
            base: self.reach.appended(),
            predecessor,
            predecessor_end,
        }
    }

    /// The planned file that the front group belongs to.
    fn rolling(&self) -> Plan {
        let file = self.files.iter().find(|file| file.sequence > self.active).expect("it was planned");
        let header = FileHeader {
            sequence: file.sequence,
            base: file.base,
            ..self.header_after(file.predecessor, file.predecessor_end)
        };
        Plan { header, source: *self.planned.front().expect("planned together with the file") }
    }

    /// A file to continue in after a failure or a start. Files without a record are left out of the chain, so
    /// that a disk that fails again and again does not fill the directory.
    fn reopening(&self) -> Plan {
        let (predecessor, predecessor_end) = match self.files.back() {
            None => (FileSequence(0), JournalPosition(0)),
            Some(last) if last.is_empty() => (last.predecessor, last.predecessor_end),
            Some(last) => (last.sequence, last.end),
        };
        let source = if self.spares > 0 { AppendSource::Spare } else { AppendSource::Grow };
        Plan { header: self.header_after(predecessor, predecessor_end), source }
    }

    /// The group in flight was written, and synced if it asked for it.
    pub(crate) fn written(&mut self, group: Group, now: Instant) {
        assert!(self.in_flight, "it was taken by next_step");
        self.in_flight = false;
        self.reach.write(group.end);
        if group.sync {
            self.synced();
        } else {
            self.unsynced_since.get_or_insert(now);
        }
        let mut buffer = group.bytes;
        if self.buffers.len() < BUFFERS_KEPT {
            buffer.clear();
            self.buffers.push(buffer);
        }
    }

    /// Everything written is durable.
    pub(crate) fn synced(&mut self) {
        self.reach.sync();
        self.unsynced_since = None;
    }

    /// The planned file was begun: its header and its name are durable.
    pub(crate) fn begun(&mut self, plan: &Plan) {
        let header = &plan.header;
        match &self.state {
            JournalState::Running => {
                self.planned.pop_front();
            }
            JournalState::Latched { .. } => {
                if plan.source == AppendSource::Spare {
                    self.spares -= 1;
                }
                self.sequence_next = header.sequence.next();
                if let Some(empty) = self.files.pop_back_if(|file| file.is_empty()) {
                    self.dead.push(empty.sequence);
                }
                self.files.push_back(LiveFile {
                    sequence: header.sequence,
                    base: header.base,
                    end: header.base,
                    predecessor: header.predecessor,
                    predecessor_end: header.predecessor_end,
                    tag_ends: no_tag_ends(),
                    grows: plan.source == AppendSource::Grow,
                });
                self.reach.go_on_at(header.base);
                self.state = JournalState::Running;
            }
        }
        self.active = header.sequence;
    }

    /// A write, a sync, or the beginning of a file failed. Everything that is not durable is cut; what was
    /// lost, unless nothing was.
    pub(crate) fn failed(
        &mut self,
        failure: JournalFailure,
        plan: Option<&Plan>,
        now: Instant,
    ) -> Option<Loss> {
        self.in_flight = false;
        self.unsynced_since = None;
        self.last_failure = Some(failure.clone());
        if let Some(plan) = plan {
            // Its name may be there or not, and it holds nothing.
            self.dead.push(plan.header.sequence);
        }
        if let JournalState::Latched { failure: latched, backoff, retry_at } = &mut self.state {
            let plan = plan.expect("while latched, only the beginning of a file can fail");
            if plan.source == AppendSource::Spare {
                self.spares -= 1;
            }
            self.sequence_next = plan.header.sequence.next();
            *latched = failure;
            *retry_at = now + *backoff;
            *backoff = (*backoff * 2).min(RETRY_MAX);
            return None;
        }
        // The spare that the beginning of a file used up is gone; those promised to later ones are not.
        if plan.is_some() {
            self.planned.pop_front();
        }
        let promised = self.planned.drain(..).filter(|source| *source == AppendSource::Spare).count();
        self.spares += promised as u32;
        while self.files.pop_back_if(|file| file.sequence > self.active).is_some() {}
        self.cut_active_file();
        self.pending.clear();
        self.pending_bytes = 0;
        self.incarnation = self.incarnation.next();
        // The first attempt follows at once: it is the one that usually works.
        self.state = JournalState::Latched { failure, backoff: RETRY_MIN, retry_at: now };
        Some(Loss { after: self.reach.durable(), upto: self.reach.appended(), incarnation: self.incarnation })
    }

    fn cut_active_file(&mut self) {
        let durable = self.reach.durable();
        let file = self.files.back_mut().expect("the active file");
        assert_eq!(file.sequence, self.active);
        file.end = file.end.min(durable);
        let end = if file.is_empty() { JournalPosition(0) } else { file.end };
        // A tag whose last record was cut may have earlier ones in the file, so it still has to trim them.
        for tag_end in file.tag_ends.iter_mut() {
            *tag_end = (*tag_end).min(end);
        }
    }

    // ---- files ----

    /// Notes that `tag` needs nothing before `upto`; whether a file became free by that.
    pub(crate) fn trim(&mut self, tag: Tag, upto: JournalPosition) -> bool {
        let trim = &mut self.trims[usize::from(tag.0)];
        *trim = (*trim).max(upto);
        self.front_is_free()
    }

    fn front_is_free(&self) -> bool {
        self.files.front().is_some_and(|file| {
            file.sequence < self.active
                && file.tag_ends.iter().zip(self.trims.iter()).all(|(end, trim)| end <= trim)
        })
    }

    /// Files from which on they are asked back.
    fn files_asked_back(&self) -> u32 {
        (self.config.files_max / 2).clamp(2, FILES_ASKED_BACK)
    }

    /// Up to where `tag` should trim for the oldest file to become free, if files are getting scarce.
    pub(crate) fn trim_wanted(&self, tag: Tag) -> Option<JournalPosition> {
        let scarce = self.blocked.is_some() || self.file_count() >= self.files_asked_back();
        let file = self.files.front().filter(|file| scarce && file.sequence < self.active)?;
        let end = file.tag_ends[usize::from(tag.0)];
        (end > self.trims[usize::from(tag.0)]).then_some(end)
    }

    /// What the files' thread has to do at `now`.
    pub(crate) fn next_chore(&mut self, now: Instant) -> Chore {
        if self.closing {
            return Chore::Done;
        }
        // In order and one at a time, or a crash could leave an older file and not the one after it.
        if let Some((sequence, retry_at)) = self.recycle_again {
            if now < retry_at {
                return Chore::Wait(Some(retry_at));
            }
            self.recycle_again = None;
            return Chore::Recycle { sequence, keep: false };
        }
        if let Some(sequence) = self.dead.pop() {
            return Chore::Recycle { sequence, keep: false };
        }
        if self.front_is_free() {
            let file = self.files.pop_front().expect("seen just above");
            let spares = self.spares;
            let keep = spares < SPARES_KEPT_MAX && self.file_count() + spares < self.config.files_max;
            return Chore::Recycle { sequence: file.sequence, keep };
        }
        if self.spares >= SPARES_TARGET || self.file_count() + self.spares >= self.config.files_max {
            return Chore::Wait(None);
        }
        match &self.blocked {
            Some((_, retry_at)) if now < *retry_at => Chore::Wait(Some(*retry_at)),
            _ => Chore::Zero,
        }
    }

    /// A spare file is ready.
    pub(crate) fn spare_ready(&mut self) {
        self.spares += 1;
        self.blocked = None;
    }

    /// No spare file could be made.
    pub(crate) fn spare_failed(&mut self, reason: FullReason, now: Instant) {
        self.blocked = Some((reason, now + RETRY_MAX));
    }

    /// A file that was to be recycled could not be: it is tried again, before any other.
    pub(crate) fn recycle_failed(&mut self, sequence: FileSequence, now: Instant) {
        self.recycle_again = Some((sequence, now + RETRY_MAX));
    }

    /// Refuses appends from now on; the threads end when what is pending is done.
    pub(crate) fn close(&mut self) {
        self.closing = true;
    }
}

/// Fills the group's last page with zeros. The next group overwrites them.
fn pad(group: &mut Group) {
    let end = group.offset + group.bytes.len() as u64;
    let padded = group.bytes.len() as u64 + (end.next_multiple_of(PAGE_BYTES) - end);
    group.bytes.resize(padded as usize, 0);
}

#[cfg(test)]
mod tests;
