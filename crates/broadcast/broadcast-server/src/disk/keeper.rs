//! Writes what a replica has to its disk. It belongs to the task that owns the replica, and never blocks that.
//!
//! ```text
//!   replica --record--> journal --written, durable--> ticket --> replica
//!      `--Walk, a piece at a time--> a thread that writes the checkpoint --> the journal is trimmed
//! ```
//!
//! When the journal lost records (`Lost`: the disk failed, and works again) what is in memory is still whole. So a
//! checkpoint is taken of it, and no ticket is answered before that is durable. The same is done when the journal has
//! been full for a while, as only a checkpoint makes room then, and can't wait for what has none.
//!
//! What the replica drops, all of it or what it has of another region, is put aside by a thread, and the journal gets
//! nothing of that, nor what says so, before that is done: until then the disk has all of it under its own lineage, and
//! a start in between finds that. What is written of other regions goes on, up to what is about all.

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::BytesMut;
use tailwater_broadcast::durability::{Durabilities, Durability};
use tailwater_broadcast::name::Stream;
use tailwater_broadcast::record::Record;
use tailwater_broadcast::replica::{Dropped, Replica, ReplicaOutput, ReplicaTicket};
use tailwater_env::{Env, Instant, OpenMode, Task};
use tailwater_journal::{
    Incarnation, Journal, JournalAppendError, JournalAppendOptions, JournalPosition, Lost, WatermarkFollower,
};
use tokio::sync::{mpsc, oneshot};

use super::checkpoint::Writer;
use super::{DiskOptions, DiskStats, TAG, Walk, aside};

/// Pieces that wait for the thread which writes the checkpoint.
const PIECES_MAX: usize = 4;
/// Regions whose dropped events wait to be put aside, besides the one whose are being put there.
const ASIDES_MAX: usize = 4;
/// A pause after a checkpoint failed.
const RETRY: Duration = Duration::from_secs(1);

/// What is done once the journal has a record.
enum KeeperThen {
    Nothing,
    Answer(ReplicaTicket),
    /// The checkpoint counts once the journal is durable up to here.
    EndCheckpoint,
}

/// For the thread that writes a checkpoint.
enum KeeperPiece {
    Records(Vec<Record>),
    /// All is there; it counts once the journal is durable up to here.
    End(JournalPosition),
}

/// A checkpoint that is being taken.
struct Checkpoint {
    /// What of it was not sent yet, and whether its mark in the journal was asked for.
    walk: Option<Walk>,
    /// Where its mark in the journal ends, until that was sent.
    end: Option<JournalPosition>,
    /// None once it was given up.
    pieces: Option<mpsc::Sender<KeeperPiece>>,
    done: oneshot::Receiver<Result<u64, String>>,
    covered: JournalPosition,
    /// Bytes that the journal had taken when it began.
    journalled: u64,
    /// What it makes durable, if it was begun because records were lost.
    brings_back: Option<Vec<ReplicaTicket>>,
    _task: Task,
}

/// What is being put aside.
struct PuttingAside {
    /// Whose it is: this replica's region for all there was.
    region: String,
    /// `None` if its thread ended without having done it: then nothing is written any more, as that would take the
    /// place of what lies nowhere else.
    done: Option<oneshot::Receiver<PathBuf>>,
    _task: Task,
}

/// Something that [`Keeper::handle`] has to see.
pub enum KeeperHappened {
    /// The journal is further.
    Moved,
    /// The journal takes records again.
    Room,
    /// It lost records.
    Lost(Lost),
    /// The checkpoint's thread takes a piece.
    Wanted,
    /// The checkpoint ended.
    Ended(Result<u64, String>),
    /// What was dropped lies aside; or nobody puts it there.
    PutAside(Option<PathBuf>),
}

/// The disk of a replica, for the task that owns that; see the module.
pub struct Keeper {
    env: Env,
    dir: PathBuf,
    region: String,
    journal: Journal,
    durability: Durabilities,
    incarnation: Incarnation,
    written: WatermarkFollower,
    durable: WatermarkFollower,
    /// Not in the journal yet.
    waiting: VecDeque<(Record, KeeperThen)>,
    /// Tickets of streams that are `interval`, and of those that are `fsync`, by their records' ends.
    unwritten: VecDeque<(JournalPosition, ReplicaTicket)>,
    unsynced: VecDeque<(JournalPosition, ReplicaTicket)>,
    /// What is held and not journalled as such.
    held: BTreeMap<Stream, u64>,
    /// Where the last record ends.
    end: JournalPosition,
    /// Bytes that the journal took, and when the last checkpoint began.
    journalled: u64,
    checkpointed: u64,
    file_bytes: u64,
    checkpoint_bytes_min: u64,
    /// Of the last checkpoint.
    checkpoint_bytes: u64,
    checkpoint: Option<Checkpoint>,
    putting_aside: Option<PuttingAside>,
    /// What is put aside after that.
    asides: VecDeque<Dropped>,
    /// What waits for that, and whether all that comes has to.
    held_back: VecDeque<(Record, KeeperThen)>,
    holds_all: bool,
    /// A checkpoint is due in any case.
    is_due: bool,
    /// Records were lost, or find no room, that only a checkpoint brings to the disk.
    is_behind: bool,
    /// Since when the journal has had no room, if nothing was lost since.
    full_since: Option<Instant>,
    retry_at: Instant,
    stats: DiskStats,
    buffer: BytesMut,
}

impl Keeper {
    pub(super) fn new(
        env: &Env,
        (dir, region): (&Path, &str),
        journal: Journal,
        end: JournalPosition,
        options: &DiskOptions,
    ) -> Self {
        Self {
            env: env.clone(),
            dir: dir.to_owned(),
            region: region.to_owned(),
            durability: options.durability.clone(),
            incarnation: journal.incarnation(),
            written: journal.written(),
            durable: journal.durable(),
            journal,
            waiting: VecDeque::new(),
            unwritten: VecDeque::new(),
            unsynced: VecDeque::new(),
            held: BTreeMap::new(),
            end,
            journalled: 0,
            checkpointed: 0,
            file_bytes: options.journal.file_bytes,
            checkpoint_bytes_min: options.checkpoint_bytes,
            checkpoint_bytes: 0,
            checkpoint: None,
            putting_aside: None,
            asides: VecDeque::new(),
            held_back: VecDeque::new(),
            holds_all: false,
            is_due: false,
            is_behind: false,
            full_since: None,
            retry_at: env.now(),
            stats: DiskStats::default(),
            buffer: BytesMut::new(),
        }
    }

    /// What was found: bytes of the journal's records and of the checkpoint, live events, and whether a checkpoint is
    /// due at once.
    pub(super) fn begin_with(&mut self, journalled: u64, checkpoint_bytes: u64, loaded: u64, is_due: bool) {
        (self.journalled, self.checkpoint_bytes, self.is_due) = (journalled, checkpoint_bytes, is_due);
        self.stats.loaded = loaded;
    }

    /// Takes what a replica wants on its disk, among all that it wants done.
    pub fn take(&mut self, output: ReplicaOutput) {
        match output {
            ReplicaOutput::Persist { record, ticket } => {
                self.flush_held();
                self.append(record, ticket.map_or(KeeperThen::Nothing, KeeperThen::Answer));
            }
            ReplicaOutput::Held { stream, last } if self.durability.of(&stream) > Durability::Memory => {
                self.held.insert(stream, last);
            }
            ReplicaOutput::SetAside(dropped) => self.put_aside(dropped),
            ReplicaOutput::Held { .. } | ReplicaOutput::Send(..) | ReplicaOutput::Close(..) => {}
        }
    }

    /// Time passed.
    pub fn tick(&mut self, replica: &Replica) {
        self.flush_held();
        if !self.is_behind && self.full_since.is_some_and(|since| self.env.now().since(since) >= RETRY) {
            tracing::warn!("the journal of broadcasts is full: a checkpoint is taken of all there is");
            self.fall_behind();
        }
        let grown = self.journalled - self.checkpointed;
        let due = self.is_due || grown > self.checkpoint_bytes_min.max(self.checkpoint_bytes);
        let may_begin = self.checkpoint.is_none() && self.putting_aside.is_none();
        if due && may_begin && self.env.now() >= self.retry_at {
            self.begin_checkpoint(replica);
        }
    }

    /// Completes when there is something for [`Keeper::handle`]; dropping it has no effect.
    pub async fn happened(&mut self) -> KeeperHappened {
        let moved = |moved: Result<JournalPosition, Lost>| match moved {
            Ok(_) => KeeperHappened::Moved,
            Err(lost) => KeeperHappened::Lost(lost),
        };
        let wants_room = next_of(&self.waiting, self.is_behind).is_some();
        let (pieces, done) = match &mut self.checkpoint {
            Some(checkpoint) => {
                let wanted = checkpoint.walk.is_some() || checkpoint.end.is_some();
                (checkpoint.pieces.clone().filter(|_| wanted), Some(&mut checkpoint.done))
            }
            None => (None, None),
        };
        let ended = async {
            match done {
                Some(done) => done.await.unwrap_or_else(|_| Err("its thread ended".to_owned())),
                None => std::future::pending().await,
            }
        };
        let putting = self.putting_aside.as_mut().and_then(|putting| putting.done.as_mut());
        let put_aside = async {
            match putting {
                Some(done) => done.await.ok(),
                None => std::future::pending().await,
            }
        };
        let wanted = async {
            // The thread has ended if this fails, and `ended` says why.
            let taken = match &pieces {
                Some(pieces) => pieces.reserve().await.is_ok(),
                None => false,
            };
            if !taken {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            biased;
            changed = self.durable.changed(), if !self.unsynced.is_empty() => moved(changed),
            changed = self.written.changed(), if !self.unwritten.is_empty() => moved(changed),
            path = put_aside => KeeperHappened::PutAside(path),
            () = self.journal.ready(), if wants_room => KeeperHappened::Room,
            result = ended => KeeperHappened::Ended(result),
            () = wanted => KeeperHappened::Wanted,
        }
    }

    /// Deals with it; the tickets that the disk has now.
    pub fn handle(&mut self, happened: KeeperHappened, replica: &Replica) -> Vec<ReplicaTicket> {
        match happened {
            KeeperHappened::Moved => self.answered(),
            KeeperHappened::Room => {
                self.flush();
                Vec::new()
            }
            KeeperHappened::Lost(lost) => {
                self.lost(lost);
                Vec::new()
            }
            KeeperHappened::Wanted => {
                self.feed_checkpoint(replica);
                Vec::new()
            }
            KeeperHappened::Ended(result) => self.end_checkpoint(result),
            KeeperHappened::PutAside(path) => {
                self.end_putting_aside(path.as_deref());
                Vec::new()
            }
        }
    }

    /// How it is doing.
    pub fn stats(&self) -> DiskStats {
        let journal = self.journal.stats();
        let files = u64::from(journal.files) + u64::from(journal.spares);
        DiskStats {
            bytes: self.checkpoint_bytes + files * self.file_bytes,
            waiting: (self.waiting.len() + self.held_back.len()) as u64,
            journal,
            ..self.stats.clone()
        }
    }

    /// Which streams are kept, and how.
    pub fn durability(&self) -> &Durabilities {
        &self.durability
    }

    /// The journal, to be closed when the keeper is gone.
    pub fn journal(&self) -> &Journal {
        &self.journal
    }

    fn flush_held(&mut self) {
        for (stream, last) in std::mem::take(&mut self.held) {
            self.append(Record::Held { stream, last }, KeeperThen::Nothing);
        }
    }

    fn append(&mut self, record: Record, then: KeeperThen) {
        self.enqueue(record, then);
        self.flush();
    }

    fn enqueue(&mut self, record: Record, then: KeeperThen) {
        let is_about_all = record.region().is_none();
        let waits = match record.region() {
            Some(region) => self.holds_all || self.puts_aside(region),
            None => self.holds_all || !self.held_back.is_empty(),
        };
        if waits {
            self.holds_all |= is_about_all;
            self.held_back.push_back((record, then));
        } else {
            self.waiting.push_back((record, then));
        }
    }

    /// Whether something of a region is to be put aside.
    fn puts_aside(&self, region: &str) -> bool {
        let putting = self.putting_aside.iter().map(|putting| &putting.region);
        putting.chain(self.asides.iter().map(|dropped| &dropped.region)).any(|of| of == region)
    }

    /// Gives the journal what it takes.
    fn flush(&mut self) {
        while let Some((record, then)) = next_of(&self.waiting, self.is_behind) {
            let is_mark = matches!(then, KeeperThen::EndCheckpoint);
            let is_fsync = match then {
                KeeperThen::Answer(ticket) => self.durability.of(&ticket.stream) == Durability::Fsync,
                KeeperThen::EndCheckpoint => true,
                KeeperThen::Nothing => false,
            };
            self.buffer.clear();
            record.encode(&mut self.buffer);
            let append = JournalAppendOptions::new(self.incarnation);
            let append = if is_fsync { append } else { append.unsynced() };
            let end = match self.journal.append(TAG, &[&self.buffer], append) {
                Ok(end) => end,
                Err(JournalAppendError::Stale { current }) => {
                    self.lost(Lost { incarnation: current, closed: false });
                    continue;
                }
                Err(error @ JournalAppendError::TooLarge { .. }) => {
                    unreachable!("a record is no larger than a batch may be: {error}")
                }
                Err(JournalAppendError::Full(_)) => {
                    self.full_since.get_or_insert(self.env.now());
                    if self.is_behind && is_mark {
                        // Nothing was answered since it began, so that it needs nothing that the journal would have.
                        self.waiting.pop_front();
                        if let Some(checkpoint) = &mut self.checkpoint {
                            checkpoint.end = Some(self.durable.position());
                        }
                    }
                    return;
                }
                Err(JournalAppendError::Latched(_) | JournalAppendError::Backlog { .. }) => return,
                Err(JournalAppendError::Closed) => {
                    self.waiting.clear();
                    return;
                }
            };
            assert!(self.end < end, "a record ends at {end}, and the one before it at {}", self.end);
            (self.end, self.full_since) = (end, None);
            self.journalled += self.buffer.len() as u64;
            match self.waiting.pop_front() {
                Some((_, KeeperThen::Answer(ticket))) if is_fsync => self.unsynced.push_back((end, ticket)),
                Some((_, KeeperThen::Answer(ticket))) => self.unwritten.push_back((end, ticket)),
                Some((_, KeeperThen::EndCheckpoint)) => {
                    if let Some(checkpoint) = &mut self.checkpoint {
                        checkpoint.end = Some(end);
                    }
                }
                Some((_, KeeperThen::Nothing)) | None => {}
            }
        }
    }

    /// The tickets whose records the disk has.
    fn answered(&mut self) -> Vec<ReplicaTicket> {
        let mut answered = Vec::new();
        if self.is_behind {
            return answered;
        }
        for (queue, position) in
            [(&mut self.unwritten, self.written.position()), (&mut self.unsynced, self.durable.position())]
        {
            while let Some((_, ticket)) = queue.pop_front_if(|(end, _)| *end <= position) {
                answered.push(ticket);
            }
        }
        answered
    }

    /// Records were lost: what is in memory goes into a checkpoint.
    fn lost(&mut self, lost: Lost) {
        if lost.closed || lost.incarnation == self.incarnation {
            return;
        }
        tracing::error!("the journal of broadcasts lost records, and all of them are written again");
        self.incarnation = lost.incarnation;
        self.unwritten.clear();
        self.unsynced.clear();
        self.full_since = None;
        self.fall_behind();
    }

    /// Only a checkpoint of what is in memory helps, and none that was begun before.
    fn fall_behind(&mut self) {
        self.waiting.retain(|(_, then)| !matches!(then, KeeperThen::EndCheckpoint));
        self.give_up_checkpoint();
        (self.is_due, self.is_behind) = (true, true);
    }

    /// The next one begins when its thread has ended: they have one file.
    fn give_up_checkpoint(&mut self) {
        if let Some(checkpoint) = &mut self.checkpoint {
            (checkpoint.walk, checkpoint.end, checkpoint.pieces) = (None, None, None);
            checkpoint.brings_back = None;
        }
    }

    /// The replica has dropped all that it had, or had of another region: none of it is written any more but aside.
    fn put_aside(&mut self, mut dropped: Dropped) {
        let is_dropped = |region: &str| dropped.region == self.region || dropped.region == region;
        for queue in [&mut self.waiting, &mut self.held_back] {
            queue.retain(|(record, then)| {
                let is_of = match record.region() {
                    Some(region) => is_dropped(region),
                    None => dropped.region == self.region,
                };
                !is_of && !matches!(then, KeeperThen::EndCheckpoint)
            });
        }
        self.held.retain(|stream, _| !is_dropped(stream.region()));
        self.unwritten.retain(|(_, ticket)| !is_dropped(ticket.stream.region()));
        self.unsynced.retain(|(_, ticket)| !is_dropped(ticket.stream.region()));
        // What it goes through is not there any more.
        self.give_up_checkpoint();
        // One that was to bring lost records back does so no more.
        self.is_due |= self.is_behind;
        let (live, lineage) = (dropped.live(), dropped.lineages.own);
        let is_kept = |stream: &Stream| self.durability.of(stream) > Durability::Memory;
        dropped.streams.retain(|stream, state| is_kept(stream) && state.last() > 0);
        let is_own = dropped.region == self.region;
        let why = match dropped.streams.is_empty() {
            true => Some("they were in memory only"),
            // The region itself has them, if anybody does.
            false if self.asides.len() >= ASIDES_MAX && !is_own => Some("too much waits to be put aside"),
            false => None,
        };
        // What says that all there was is dropped comes behind what is put aside, in any case.
        self.holds_all |= is_own && (why.is_none() || self.putting_aside.is_some());
        if let Some(why) = why {
            tracing::warn!(
                region = dropped.region,
                lineage = %format_args!("{lineage:x}"),
                events = live,
                why,
                "events of an earlier beginning of a region are forgotten"
            );
            return;
        }
        self.asides.push_back(dropped);
        self.put_next_aside();
    }

    fn put_next_aside(&mut self) {
        if self.putting_aside.is_some() {
            return;
        }
        let Some(dropped) = self.asides.pop_front() else { return };
        let of = dropped.region.clone();
        let (answer, done) = oneshot::channel();
        let (env, dir, region) = (self.env.clone(), self.dir.clone(), self.region.clone());
        let write = async move {
            loop {
                match aside::write(&env, &dir, &region, &dropped) {
                    Ok(path) => {
                        let _ = answer.send(path);
                        return;
                    }
                    Err(error) => {
                        tracing::warn!(%error, "events of an earlier beginning of a region can't be put aside, trying on");
                        env.sleep(RETRY).await;
                    }
                }
            }
        };
        let task = self.env.spawn_dedicated("broadcast-aside", write);
        self.putting_aside = Some(PuttingAside { region: of, done: Some(done), _task: task });
    }

    fn end_putting_aside(&mut self, path: Option<&Path>) {
        let Some(path) = path else {
            tracing::error!(
                "the thread that puts events of an earlier beginning aside has ended: start the node again"
            );
            if let Some(putting) = &mut self.putting_aside {
                putting.done = None;
            }
            return;
        };
        tracing::warn!(
            path = %path.display(),
            "events that this replica had are of an earlier beginning of a region, which has begun anew without them: they are \
             put aside, and it copies those that are there now; remove them when nobody needs them"
        );
        self.putting_aside = None;
        self.put_next_aside();
        self.holds_all = self.puts_aside(&self.region);
        for (record, then) in std::mem::take(&mut self.held_back) {
            self.enqueue(record, then);
        }
        // The journal keeps them as well until there is one.
        self.is_due = true;
        self.flush();
    }

    fn begin_checkpoint(&mut self, replica: &Replica) {
        let (pieces, to_write) = mpsc::channel(PIECES_MAX);
        let (answer, done) = oneshot::channel();
        let (env, dir, durable) = (self.env.clone(), self.dir.clone(), self.journal.durable());
        let covered = self.end;
        let write = async move {
            let result = write(&env, &dir, covered, to_write, durable).await;
            let _ = answer.send(result);
        };
        self.is_due = false;
        self.checkpoint = Some(Checkpoint {
            walk: Some(Walk::begin(replica)),
            end: None,
            pieces: Some(pieces),
            done,
            covered,
            journalled: self.journalled,
            brings_back: self.is_behind.then(|| replica.tickets()),
            _task: self.env.spawn_dedicated("broadcast-checkpoint", write),
        });
    }

    /// Hands a piece to the thread that writes the checkpoint.
    fn feed_checkpoint(&mut self, replica: &Replica) {
        let Some(checkpoint) = &mut self.checkpoint else { return };
        let Some(pieces) = &checkpoint.pieces else { return };
        if let Some(end) = checkpoint.end.take() {
            let _ = pieces.try_send(KeeperPiece::End(end));
            return;
        }
        let Some(walk) = &mut checkpoint.walk else { return };
        match walk.next(replica) {
            Some(records) => {
                let _ = pieces.try_send(KeeperPiece::Records(records));
            }
            None => {
                checkpoint.walk = None;
                if self.is_behind && self.full_since.is_some() {
                    // Nothing was collected since it began by what the journal does not have: nothing was answered.
                    checkpoint.end = Some(self.end);
                    return;
                }
                let mark = (Record::Mark, KeeperThen::EndCheckpoint);
                match self.is_behind {
                    true => self.waiting.push_front(mark),
                    false => self.waiting.push_back(mark),
                }
                self.flush();
            }
        }
    }

    fn end_checkpoint(&mut self, result: Result<u64, String>) -> Vec<ReplicaTicket> {
        let Some(checkpoint) = self.checkpoint.take() else { return Vec::new() };
        match result {
            Ok(bytes) => {
                self.checkpoint_bytes = bytes;
                self.checkpointed = checkpoint.journalled;
                self.stats.checkpoints += 1;
                self.journal.trim(TAG, checkpoint.covered);
                let Some(mut answered) = checkpoint.brings_back else { return Vec::new() };
                (self.is_behind, self.full_since) = (false, None);
                self.flush();
                answered.extend(self.answered());
                answered
            }
            Err(error) => {
                tracing::warn!(error, "no checkpoint of the broadcasts can be taken, trying on");
                self.stats.checkpoints_failed += 1;
                self.is_due = true;
                self.retry_at = self.env.now() + RETRY;
                Vec::new()
            }
        }
    }
}

/// What the journal is given next. While it has a gap that is nothing but the mark of the checkpoint that mends it.
fn next_of(waiting: &VecDeque<(Record, KeeperThen)>, is_behind: bool) -> Option<&(Record, KeeperThen)> {
    waiting.front().filter(|(_, then)| !is_behind || matches!(then, KeeperThen::EndCheckpoint))
}

/// Writes a checkpoint; its bytes. On a thread of its own: it blocks on the disk.
async fn write(
    env: &Env,
    dir: &Path,
    covered: JournalPosition,
    mut pieces: mpsc::Receiver<KeeperPiece>,
    durable: WatermarkFollower,
) -> Result<u64, String> {
    let (disk, new) = (env.disk(), dir.join("checkpoint.new"));
    let text = |error: std::io::Error| error.to_string();
    let _ = disk.remove_file(&new);
    let file = disk.open(&new, OpenMode::CreateNew).map_err(text)?;
    let mut writer = Writer::new(file, covered);
    let end = loop {
        match pieces.recv().await {
            Some(KeeperPiece::Records(records)) => {
                for record in &records {
                    writer.push(record).map_err(text)?;
                }
            }
            Some(KeeperPiece::End(end)) => break end,
            None => return Err("it was given up".to_owned()),
        }
    };
    let bytes = writer.finish().map_err(text)?;
    // What it leaves out may be collected by what only the journal has.
    durable.wait_for(end).await.map_err(|lost| lost.to_string())?;
    disk.rename(&new, &dir.join("checkpoint")).map_err(text)?;
    disk.sync_dir(dir).map_err(text)?;
    Ok(bytes)
}
