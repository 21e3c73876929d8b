//! Bugs on purpose, put in front of the real code at its seams: a checker that does not catch them checks nothing.
//!
//! The real code is compiled once and knows nothing of this. A planted bug is a wrapper around something that the
//! code is given (a disk, a connection), or a way of calling it or setting it up, which breaks one promise.

mod broadcast;
mod configurations;
mod connections;
mod copying;
mod disks;
mod lengths;
mod logs;
mod mutations;
mod refills;
mod segments;
mod updates;

use std::sync::Arc;

use bytes::Bytes;
use tailwater_cache::Configuration;
use tailwater_env::Disk;
use tailwater_format::{Position, SegmentId};
use tailwater_journal::JournalPosition;
use tailwater_rma::Connection;
use tailwater_store::{SegmentStore, StoreError};

pub use logs::OldAnswers;

/// Which bug is planted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Plant {
    /// None: the code as it is.
    #[default]
    None,
    /// The journal acknowledges before the sync: once something was written behind a file's first page,
    /// `sync_data` answers without doing anything.
    AckBeforeSync,
    /// Names are not synced: `sync_dir` answers without doing anything.
    NamesNotSynced,
    /// The name of a data directory that was made is not synced: `sync_dir` of what it lies in answers without doing
    /// anything.
    DataDirNameNotSynced,
    /// A failed sync is tried again on the same file, and the second answer is believed.
    FailedSyncRetried,
    /// A failed write is ignored.
    FailedWriteIgnored,
    /// The journal is trimmed before segment files are synced: `sync_data` of what lies below `segments` answers
    /// without doing anything.
    TrimBeforeFill,
    /// A checkpoint takes its name before its bytes are synced: `sync_data` of what is not finished answers
    /// without doing anything.
    RenameBeforeSync,
    /// A partial chunk is written from its middle: only what was added since the last time.
    PartialChunkFromItsMiddle,
    /// A length is published before the bytes are durable.
    LengthTooEarly,
    /// A backend answers SETs that it has not applied; two of three do.
    SetAcknowledgedUnapplied,
    /// A quorum of one: what one replica says counts twice.
    OneReplicaCountsTwice,
    /// Backends apply what comes last, whichever version it has.
    VersionIgnored,
    /// They keep nothing of what was erased.
    TombstoneDropped,
    /// The memory of backends moves, and they do not say so: readers go on at the old place.
    MoveNotSaid,
    /// A backend applies what clients that go by another configuration SET.
    SetUnderAnyConfiguration,
    /// Backends tell nobody which configuration they go by.
    ConfigurationNotTold,
    /// A backend that has left its cell is not told.
    LeaveNotTold,
    /// Backends tell their newest configuration with the backends of the first one that they were told.
    OldBackendsTold,
    /// Backends promise nothing, and apply what an update makes of what they held as if it were SET.
    UpdateWithoutPromise,
    /// Backends that are not refilled do not say so.
    UnfilledNotSaid,
    /// A backend that starts again says so to none of the others: they go on with what was under way before.
    StartNotTold,
    /// It is refilled from one of the two others.
    RefilledFromOne,
    /// It is not told what was erased, or may have been.
    ErasuresNotTold,
    /// What is copied to it gets a version of its own.
    CopiedAtNewVersion,
    /// What is copied to it is as old as if it had just been set.
    LifeBegunAgain,
    /// Clients are not told that a change of backends is under way.
    ChangeNotTold,
    /// A change of backends goes on before all is copied.
    CopiedTooEarly,
    /// The backends of a cell are restarted one after another where they are, and the next one before the last one has
    /// been compared with others.
    RolledTooEarly,
    /// One client's clock is half an hour behind.
    ClockFarBehind,
    /// A cell that is created anew under a name goes on with the ids of the one before.
    CellAnewUnderOldIds,
    /// A segment is appended to after a recovery: its owner goes on in it, and the store takes that.
    AppendAfterRecovery,
    /// Chunks are keyed without their segment's term: what the owner of one term writes of a segment number is also
    /// what readers of another term's segment with that number find.
    ChunkKeyWithoutTerm,
    /// Chunks are keyed without their stream: what was written of a stream is also what is found of another one that
    /// was created under its name, until more is written of that one.
    ChunkKeyWithoutStream,
    /// Readers ask the durable layer for lengths a quarter as often as they have to.
    LengthsAskedSeldom,
    /// They ask four times as often.
    LengthsAskedOften,
    /// The durable layer says of each shard how long it was when it was asked first.
    LengthsToldOnce,
    /// A reader goes back to where a published length is that is shorter than what it had before.
    LengthGoesBack,
    /// A reader whose next records were removed goes on at the first that is left, and is not told.
    TruncationNotTold,
    /// A read of a stream answers what was read at the same place of one that was deleted.
    OldStreamRead,
    /// A duplicate of a batch that is on its way is answered at once.
    DuplicateAnsweredEarly,
    /// What is saved of a shard's producers when a segment is completed has nobody in it.
    ProducersSnapshotEmpty,
    /// A start knows of producers what was saved, and not what they have appended since.
    ProducersNotReplayed,
    /// A stream that promises `fsync` acknowledges like one that promises `interval`.
    IntervalAsFsync,
    /// What is written stays in the process until it is synced, so that a process which is killed takes it along.
    KeptUntilSynced,
    /// The journal is trimmed before the queues' tree is synced: `sync_data` of it answers without doing anything.
    TreeNotSynced,
    /// A receive makes nothing invisible.
    VisibleAtOnce,
    /// Who sends again does so under another deduplication id.
    DeduplicationIdAnew,
    /// The messages of a group are sent to one group each.
    GroupNotKept,
    /// Dead letters are brought back as if they were sent again, by their deduplication ids, and then deleted.
    BroughtBackBySending,
    /// The head of a broadcast chain acknowledges what it alone has.
    HeadAcknowledgesAlone,
    /// A replica in the middle of a broadcast chain tells the one before it that all hold what it has.
    HeldTooEarly,
    /// A replica becomes a member of a broadcast chain before it has what the others have.
    JoinedBeforeCaughtUp,
    /// A configuration service whose metadata is lost begins a chain at once, with whoever is heard first.
    ChainBegunAtOnce,
    /// Replicas are not told that their region has begun anew.
    LineageNotTold,
    /// Proxies do not say to others in which lineage their events are.
    LineageNotToldElsewhere,
    /// A listener that comes back goes on at its number, in whichever lineage that is by now.
    ResumedInAnyLineage,
    /// Replicas of a broadcast chain do not say what they wait for.
    WaitsNotTold,
    /// They do not say that they hear nothing of the one before them.
    BeforeNotTold,
    /// They say what they waited for a while ago.
    WaitsToldLate,
    /// A tail says that what it knows is of now.
    AgeNotTold,
    /// A replica gives some events an earlier time than they have when it hands them on.
    TimesGoBack,
    /// A publisher that tries again does so as another one.
    RetryAsAnother,
    /// A publisher takes another name at every gap that a head tells it of.
    RenamedOnGap,
    /// A listener goes on one number behind where it was.
    ResumedTooFar,
    /// A listener keeps where it is before it has kept what it got up to there.
    PositionKeptTooEarly,
    /// What a replica sends counts as read at once.
    DrainedTooEarly,
    /// A listener that shares asks the proxy for nothing that others do not have any more.
    FallbackLeftOut,
    /// A listener that shares leaves the first event out of what it sends others, as if nothing was there.
    HoleHidden,
    /// Who is sent a tombstone for events that retention removed is not told that it has missed them.
    RemovalNotTold,
    /// A replica does not tell others what retention has removed.
    RemovalNotHandedOn,
    /// A listener gets a tombstone for an event that nothing collected.
    TombstoneForNothing,
    /// A proxy subscribes from beyond its own count.
    SubscribedTooFar,
    /// A replica counts events as held that its disk has not synced.
    HeldBeforeSync,
    /// A replica's journal is trimmed when a checkpoint is begun.
    TrimBeforeCheckpoint,
    /// A replica that restarts knows its events, but not who published them.
    PublishersNotRestored,
    /// The shared store answers some of its puts of bodies without doing anything.
    BodyNotPut,
    /// It answers deletes of bodies without doing anything.
    BodyNotDeleted,
    /// A read at a quorum asks one replica.
    ReadOfOne,
    /// A write is at one replica only, and answered as if it were at more.
    QuorumOfOne,
    /// What front ends tell each other is not kept.
    ReportNotPut,
    /// Front ends are told what the others had told when they asked last.
    ReportsReadTooEarly,
    /// Buckets are dropped with the bodies that are in them.
    FullBucketDropped,
    /// The shared store does some conditional writes of groups without comparing.
    ConditionNotChecked,
    /// It does not keep which deduplication ids a group has seen.
    SeenNotKept,
    /// It answers some of its puts of bodies to a dead-letter queue without doing anything.
    LetterNotPut,
    /// It does not keep where messages go as dead letters.
    LetterNotNoted,
    /// It answers the delete of a message that was moved to a dead-letter queue without doing anything.
    MovedAndKept,
    /// Messages are sent without their delay.
    DelayNotSent,
    /// Who has received a message does not see who else has.
    OthersNotSeen,
    /// A cluster keeps the first plan that it was told, and answers as if it kept later ones.
    OlderPlanKept,
    /// Entries that are copied come to another place than the one that they have at their source.
    CopiedElsewhere,
    /// A copy goes on behind records that it was not sent, as if their source had removed them.
    CopyGapNotTold,
    /// Clusters do not tell each other by which way they have what they have.
    WayNotTold,
    /// A cluster is not told where a shard that it has held goes on.
    ResumeNotTold,
    /// A worker is told that what it pushed was taken when nobody has heard of it.
    PushForgotten,
    /// A node goes on hearing workers that are dead.
    DeadWorkerHeard,
    /// A worker ends an operation that is to move before that flows elsewhere.
    BreakBeforeMake,
    /// A worker is not told where a shard goes on of which nothing was taken for a while.
    PushedPlaceNotTold,
    /// Who had more than a source that was taken by force is not told how much of that to put aside.
    SurplusCopied,
    /// Who has received a message takes whoever else has for somebody who was there before.
    OthersSeenFirst,
    /// A node that takes a shard over reads its ledgers to their ends, and does not fence them.
    TakenOverUnfenced,
    /// A node has entries of a new segment acknowledged without asking whether the shard is still its own.
    RightNotConfirmed,
    /// A ledger that is recovered ends where one bookie has nothing more.
    EndOfOneBookie,
    /// Whatever is committed about a shard is so whoever owns the shard by then.
    ShardRecordUnchecked,
    /// A ledger that no record names is left over once its term has ended, also where the next owner has yet to look at
    /// it.
    EndedTermSweptAway,
}

impl Plant {
    /// `disk`, with the bug in front of it if it is one of the disk.
    pub fn disk(self, disk: Arc<dyn Disk>) -> Arc<dyn Disk> {
        match self {
            Plant::AckBeforeSync
            | Plant::NamesNotSynced
            | Plant::DataDirNameNotSynced
            | Plant::FailedSyncRetried
            | Plant::FailedWriteIgnored
            | Plant::TrimBeforeFill
            | Plant::RenameBeforeSync
            | Plant::KeptUntilSynced
            | Plant::TreeNotSynced => Arc::new(disks::PlantedDisk::new(disk, self)),
            _ => disk,
        }
    }

    /// `connection` to one backend, with the bug in front of it if it is one of what is SET.
    pub fn connection(self, connection: Arc<dyn Connection>, backend: usize) -> Arc<dyn Connection> {
        match self {
            Plant::SetAcknowledgedUnapplied if backend == 0 => connection,
            Plant::SetUnderAnyConfiguration
            | Plant::ConfigurationNotTold
            | Plant::LeaveNotTold
            | Plant::ChangeNotTold
            | Plant::OldBackendsTold => configurations::PlantedExchange::in_front_of(connection, self),
            Plant::UnfilledNotSaid
            | Plant::StartNotTold
            | Plant::RefilledFromOne
            | Plant::ErasuresNotTold
            | Plant::CopiedAtNewVersion
            | Plant::LifeBegunAgain => refills::PlantedRefill::in_front_of(connection, self, backend),
            Plant::VersionIgnored | Plant::TombstoneDropped => {
                mutations::PlantedMutations::in_front_of(connection, self)
            }
            Plant::MoveNotSaid => mutations::OldPlace::in_front_of(connection),
            Plant::UpdateWithoutPromise => updates::PlantedUpdates::in_front_of(connection),
            Plant::PartialChunkFromItsMiddle
            | Plant::LengthTooEarly
            | Plant::SetAcknowledgedUnapplied
            | Plant::ChunkKeyWithoutStream
            | Plant::ChunkKeyWithoutTerm => connections::PlantedConnection::in_front_of(connection, self),
            _ => connection,
        }
    }

    /// The backend whose memory is read where that of `backend` is meant.
    pub fn read_of(self, backend: usize) -> usize {
        if self == Plant::OneReplicaCountsTwice && backend == 1 { 0 } else { backend }
    }

    /// A connection that reads by one connection, and has CALLs go over another one.
    pub fn reading_by(reads: Arc<dyn Connection>, calls: Arc<dyn Connection>) -> Arc<dyn Connection> {
        connections::ReadsElsewhere::by(reads, calls)
    }

    /// `connection` to another cluster, with the bug in front of it if it is one of copying.
    pub fn link(self, connection: Arc<dyn Connection>) -> Arc<dyn Connection> {
        match self {
            Plant::OlderPlanKept
            | Plant::CopiedElsewhere
            | Plant::CopyGapNotTold
            | Plant::WayNotTold
            | Plant::ResumeNotTold
            | Plant::PushForgotten
            | Plant::PushedPlaceNotTold
            | Plant::SurplusCopied => copying::PlantedLink::in_front_of(connection, self),
            _ => connection,
        }
    }

    /// The id of the first configuration of a cell that is created anew, after one with `before`.
    pub fn id_anew(self, wall_ms: i64, before: u64) -> u64 {
        match self {
            Plant::CellAnewUnderOldIds => before + 1,
            _ => Configuration::first_id(wall_ms, before),
        }
    }

    /// Appends to a segment; with the bug, also to one that the store refuses because it was recovered.
    pub fn append(
        self,
        store: &SegmentStore,
        id: &SegmentId,
        position: Position,
        entry: Bytes,
    ) -> Result<JournalPosition, StoreError> {
        match store.append(id, position, entry.clone()) {
            Err(StoreError::Recovered { .. }) if self == Plant::AppendAfterRecovery => {
                segments::append_all_the_same(store, id, position, &entry)
            }
            appended => appended,
        }
    }
}
