//! Where segments lie below the data directory, and what the names there mean.
//!
//! ```text
//! DATA/lock                                        held by the process that owns the directory; its pid
//! DATA/segments/checkpoint                         how far open segments are synced (checkpoint.rs)
//! DATA/segments/checkpoint.new                     the next one, before it is renamed
//! DATA/segments/<stream uuid>/<shard>/
//!     <segment number, 20 digits>.<term>.seg       entries
//!     <segment number, 20 digits>.<term>.seg.new   a replacement after a failed sync, before it is renamed
//!     <segment number, 20 digits>.<term>.idx       sealed length and sparse indexes (index.rs)
//! ```
//!
//! Twenty digits hold any 64-bit number, so names sort as their numbers do. A pair of number and term is
//! never used again in its shard.

use std::path::{Path, PathBuf};

use tailwater_format::{SegmentId, SegmentNumber, ShardId, ShardNumber, StreamId, Term};
use uuid::Uuid;

/// The paths of one data directory.
#[derive(Clone, Debug)]
pub struct Layout {
    data: PathBuf,
    root: PathBuf,
}

/// What a name in a shard's directory stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileName {
    /// A segment's entries.
    Segment(SegmentNumber, Term),
    /// A sealed segment's sidecar.
    Sidecar(SegmentNumber, Term),
    /// A replacement that was not finished; worth nothing.
    Unfinished,
    /// Not ours; left alone.
    Foreign,
}

impl Layout {
    /// The layout below the data directory `data`.
    pub fn new(data: &Path) -> Self {
        Self { data: data.to_owned(), root: data.join("segments") }
    }

    /// The data directory.
    pub fn data(&self) -> &Path {
        &self.data
    }

    /// The directory of all streams.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The lock file.
    pub fn lock(&self) -> PathBuf {
        self.data.join("lock")
    }

    /// The checkpoint.
    pub fn checkpoint(&self) -> PathBuf {
        self.root.join("checkpoint")
    }

    /// The checkpoint being written.
    pub fn checkpoint_unfinished(&self) -> PathBuf {
        self.root.join("checkpoint.new")
    }

    /// A stream's directory.
    pub fn stream(&self, stream: StreamId) -> PathBuf {
        self.root.join(stream.0.as_hyphenated().to_string())
    }

    /// A shard's directory.
    pub fn shard(&self, shard: &ShardId) -> PathBuf {
        self.stream(shard.stream).join(shard.shard.to_string())
    }

    /// A segment's file.
    pub fn segment(&self, id: &SegmentId) -> PathBuf {
        self.shard(&id.shard).join(format!("{}.seg", stem(id)))
    }

    /// The replacement of a segment's file, before it is renamed.
    pub fn replacement(&self, id: &SegmentId) -> PathBuf {
        self.shard(&id.shard).join(format!("{}.seg.new", stem(id)))
    }

    /// A sealed segment's sidecar.
    pub fn sidecar(&self, id: &SegmentId) -> PathBuf {
        self.shard(&id.shard).join(format!("{}.idx", stem(id)))
    }
}

fn stem(id: &SegmentId) -> String {
    format!("{:020}.{}", id.number.0, id.term.0)
}

/// The stream whose directory is called `name`, if it is one.
pub fn parse_stream(name: &str) -> Option<StreamId> {
    let id = Uuid::try_parse(name).ok()?;
    // Other spellings of the same UUID would be a second directory for one stream.
    (id.as_hyphenated().to_string() == name).then_some(StreamId(id))
}

/// The shard whose directory is called `name`, if it is one.
pub fn parse_shard(name: &str) -> Option<ShardNumber> {
    let number: u32 = name.parse().ok()?;
    (number.to_string() == name).then_some(ShardNumber(number))
}

/// What `name` in a shard's directory stands for.
pub fn parse_name(name: &str) -> FileName {
    let Some((stem, kind)) = name.split_at_checked(20).and_then(|(number, rest)| {
        let (term, kind) = rest.strip_prefix('.')?.split_once('.')?;
        let number: u64 =
            number.bytes().all(|digit| digit.is_ascii_digit()).then(|| number.parse().ok())??;
        let value: u32 = term.parse().ok()?;
        (value.to_string() == term).then_some(((SegmentNumber(number), Term(value)), kind))
    }) else {
        return FileName::Foreign;
    };
    match kind {
        "seg" => FileName::Segment(stem.0, stem.1),
        "idx" => FileName::Sidecar(stem.0, stem.1),
        "seg.new" => FileName::Unfinished,
        _ => FileName::Foreign,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u64, term: u32) -> SegmentId {
        let shard = ShardId { stream: StreamId(Uuid::from_u128(7)), shard: ShardNumber(3) };
        SegmentId { shard, number: SegmentNumber(number), term: Term(term) }
    }

    #[test]
    fn every_name_it_gives_is_one_it_understands() {
        let layout = Layout::new(Path::new("/d"));
        for (number, term) in [(0, 0), (1, 7), (u64::MAX, u32::MAX)] {
            let id = id(number, term);
            let name = |path: PathBuf| path.file_name().and_then(|name| name.to_str()).map(str::to_owned);
            let segment = name(layout.segment(&id)).expect("ASCII");
            assert_eq!(parse_name(&segment), FileName::Segment(id.number, id.term));
            let sidecar = name(layout.sidecar(&id)).expect("ASCII");
            assert_eq!(parse_name(&sidecar), FileName::Sidecar(id.number, id.term));
            let replacement = name(layout.replacement(&id)).expect("ASCII");
            assert_eq!(parse_name(&replacement), FileName::Unfinished);
        }
        assert_eq!(
            layout.segment(&id(5, 2)).to_str(),
            Some("/d/segments/00000000-0000-0000-0000-000000000007/3/00000000000000000005.2.seg")
        );
    }

    #[test]
    fn what_somebody_else_put_there_is_foreign() {
        for name in [
            "",
            "x",
            "00000000000000000005.seg",
            "00000000000000000005.02.seg",
            "+0000000000000000005.2.seg",
            "0000000000000000000é.2.seg",
            "00000000000000000005.2.bak",
            "99999999999999999999.2.seg",
        ] {
            assert_eq!(parse_name(name), FileName::Foreign, "{name}");
        }
        assert_eq!(parse_shard("03"), None);
        assert_eq!(parse_shard("3"), Some(ShardNumber(3)));
        assert_eq!(parse_stream("checkpoint"), None);
        assert_eq!(parse_stream("00000000000000000000000000000007"), None);
    }
}
