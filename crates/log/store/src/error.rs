//! What the store answers when it can't do what it was asked.

use tailwater_format::{EntryError, Position, SegmentId, SegmentNumber, Term};

/// Why an operation was refused. Each says what the caller can do about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// There is no such segment (any more).
    #[error("segment {0} does not exist")]
    Unknown(SegmentId),
    /// Another owner has begun a segment of this shard with a higher term: stop writing this shard.
    #[error("term {term} is fenced: a segment of term {highest} exists in the shard")]
    Fenced {
        /// The caller's.
        term: Term,
        /// The highest seen.
        highest: Term,
    },
    /// A pair of number and term is never used twice, and numbers grow within a term.
    #[error("segment {number} of term {term} comes after segment {highest} of the same term")]
    NotNext {
        /// The caller's.
        number: SegmentNumber,
        /// The caller's.
        term: Term,
        /// The highest seen in that term.
        highest: SegmentNumber,
    },
    /// An append has to begin where the one before ended.
    #[error("an append at {position} does not continue the segment, which ends at {appended}")]
    NotContinuing {
        /// The caller's.
        position: Position,
        /// Where it would have to begin.
        appended: Position,
    },
    /// What was appended is not the entry that continues the segment.
    #[error("not the next entry: {0}")]
    Entry(EntryError),
    /// Entries are appended one at a time.
    #[error("{given} bytes appended for an entry of {entry}")]
    EntryLength {
        /// Bytes given.
        given: usize,
        /// Its length according to its header.
        entry: u32,
    },
    /// Appends are ahead of the segment files by all that memory may hold: try again soon.
    #[error(
        "{pending_bytes} of at most {pending_bytes_max} bytes are waiting to be written to segment files"
    )]
    Full {
        /// Bytes waiting.
        pending_bytes: u64,
        /// [`StoreConfig::pending_bytes_max`](crate::StoreConfig::pending_bytes_max).
        pending_bytes_max: u64,
    },
    /// The disk is full. What was acknowledged stays readable; appends are accepted again by themselves when
    /// there is room: free some, or shorten retention.
    #[error(
        "no space for segment files ({why}); {free_bytes} bytes are free; free some space or shorten retention"
    )]
    NoSpace {
        /// The operating system's words.
        why: String,
        /// Bytes free for this process on that file system when it failed.
        free_bytes: u64,
    },
    /// Segment files can't be written. What was acknowledged stays readable; tried again by itself.
    #[error("segment files can't be written: {0}; look at the disk")]
    DiskFailed(String),
    /// The journal refused the record.
    #[error("journal: {0}")]
    Journal(tailwater_journal::JournalAppendError),
    /// A failed sync of the journal took back appends that were not acknowledged yet: seal the segment at
    /// `durable` and go on in another.
    #[error("the journal lost what was not durable: the segment ends at {durable}; seal it there")]
    Lost {
        /// Where the segment ends.
        durable: Position,
    },
    /// A failed sync of the journal took back appends to another segment of the shard, in the same term, which is not
    /// sealed yet. A segment that began now would go on behind the gap: go back to where that one ends, seal or delete
    /// it, and begin then.
    #[error(
        "the journal lost what was not durable of segment {id}, which ends at {durable}; seal it there first"
    )]
    LostBefore {
        /// The segment that lost something.
        id: SegmentId,
        /// Where it ends.
        durable: Position,
    },
    /// The segment was open when the process ended: seal it at `length` and go on in another.
    #[error("the segment was recovered at {length} and is not appended to again; seal it there")]
    Recovered {
        /// Where the segment ends.
        length: Position,
    },
    /// The segment is sealed.
    #[error("the segment is sealed at {length}")]
    Sealed {
        /// Its length, for ever.
        length: Position,
    },
    /// A segment is sealed at or before its appended length.
    #[error("can't seal at {length}: the segment ends at {appended}")]
    SealBeyondEnd {
        /// The caller's.
        length: Position,
        /// The segment's.
        appended: Position,
    },
    /// A read has to begin at or before the durable length.
    #[error("nothing durable at {position}: the segment is durable up to {durable}")]
    BeyondDurable {
        /// The caller's.
        position: Position,
        /// The segment's.
        durable: Position,
    },
    /// Too many reads wait for the disk: try again soon.
    #[error("too many reads of segment files are waiting")]
    Busy,
    /// A segment file can't be read.
    #[error("segment {id} can't be read at {position}: {why}")]
    Read {
        /// The segment.
        id: SegmentId,
        /// Where.
        position: Position,
        /// The operating system's words, or how short the file is.
        why: String,
    },
    /// More bytes than the store takes in one entry.
    #[error("an entry of {given} bytes is longer than the store takes, {max}: send smaller batches")]
    TooLong {
        /// Bytes given.
        given: usize,
        /// Bytes allowed.
        max: usize,
    },
    /// What a replicated store needs does not answer, or there is too little of it: tried again by itself.
    #[error("the replicated store: {0}")]
    Replicas(String),
    /// There can't be as many copies as are wanted, or as few.
    #[error("{0}")]
    Copies(String),
    /// The store was closed.
    #[error("the store is closed")]
    Closed,
}

/// Why the data directory can't be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has it.
    #[error("{} is in use by {}: stop that process, or choose another data directory", dir.display(), holder(*pid))]
    InUse {
        /// The data directory.
        dir: std::path::PathBuf,
        /// The process that holds it, if its lock file says so.
        pid: Option<u32>,
    },
    /// A later version has written here.
    #[error("{} has version {version}, which this version can't read; use the one that wrote it", path.display())]
    Version {
        /// The file.
        path: std::path::PathBuf,
        /// Its version.
        version: u16,
    },
    /// The disk refused.
    #[error("{}: {source}", path.display())]
    Disk {
        /// The file or directory.
        path: std::path::PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
}

fn holder(pid: Option<u32>) -> String {
    pid.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}"))
}
