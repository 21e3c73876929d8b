//! Whether what does not come can't come, as nobody produces, or stands still on the way.

use std::time::Duration;

use serde::Serialize;
use tailwater_env::Instant;

/// How it is with a stream in a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MonitorState {
    /// Records came.
    Delivering,
    /// None came, and the source has some that did not come here, for less time than it takes to be stuck.
    Late,
    /// None came, and the source has none that did not.
    NoProducer,
    /// The source has records that are not in this cluster, and none has come here for too long.
    CopyStuck,
    /// This cluster has records that were not read for too long.
    ReadingStuck,
    /// None came, and the cluster of the source does not answer.
    SourceAway,
    /// This cluster does not answer.
    Away,
}

impl MonitorState {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Delivering,
        Self::Late,
        Self::NoProducer,
        Self::CopyStuck,
        Self::ReadingStuck,
        Self::SourceAway,
        Self::Away,
    ];

    /// For people.
    pub fn in_words(self) -> &'static str {
        match self {
            Self::Delivering => "delivering",
            Self::Late => "late",
            Self::NoProducer => "no producer",
            Self::CopyStuck => "copy stuck",
            Self::ReadingStuck => "reading stuck",
            Self::SourceAway => "source away",
            Self::Away => "away",
        }
    }
}

/// One shard in one cluster, as it was seen last.
#[derive(Clone, Copy, Debug, Default)]
pub struct ShardStanding {
    /// The offset that is read next.
    pub position: u64,
    /// The offset after the last record that is here.
    pub end: u64,
    /// Since when there is something that was not read, and nothing was.
    unread_since: Option<Instant>,
    /// Since when the source has something more, and nothing of it came here.
    uncopied_since: Option<Instant>,
}

impl ShardStanding {
    /// Takes note of how far it is. `source_end` is where the shard ends at its source, if that is known.
    pub fn look(&mut self, now: Instant, position: u64, end: u64, source_end: Option<u64>) {
        let since = |is_behind: bool, has_moved: bool, since: Option<Instant>| {
            is_behind.then(|| since.filter(|_| !has_moved).unwrap_or(now))
        };
        self.unread_since = since(position < end, position != self.position, self.unread_since);
        let is_behind = source_end.is_some_and(|source_end| end < source_end);
        self.uncopied_since = since(is_behind, end != self.end, self.uncopied_since);
        (self.position, self.end) = (position, end);
    }

    /// Nothing is known of it for now.
    pub fn forget(&mut self) {
        (self.unread_since, self.uncopied_since) = (None, None);
    }
}

/// The shards of a stream in a cluster that stand still.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StuckShards {
    /// Those that are here and are not read.
    pub reading: Vec<usize>,
    /// Those that do not come from the source.
    pub copy: Vec<usize>,
}

impl StuckShards {
    /// Those that have stood still for `after` or longer.
    pub fn of(shards: &[ShardStanding], now: Instant, after: Duration) -> Self {
        let of = |since: fn(&ShardStanding) -> Option<Instant>| {
            let is_stuck = |shard: &ShardStanding| since(shard).is_some_and(|at| now.since(at) >= after);
            shards.iter().enumerate().filter(|(_, shard)| is_stuck(shard)).map(|(number, _)| number).collect()
        };
        Self { reading: of(|shard| shard.unread_since), copy: of(|shard| shard.uncopied_since) }
    }

    /// How it is with the stream, of which so many records came since it was told last. `behind` are those of the
    /// source that did not come: not known while the source is away.
    pub fn state(&self, came: u64, is_away: bool, behind: Option<u64>) -> MonitorState {
        match behind {
            _ if is_away && came == 0 => MonitorState::Away,
            _ if !self.reading.is_empty() => MonitorState::ReadingStuck,
            _ if !self.copy.is_empty() => MonitorState::CopyStuck,
            _ if came > 0 => MonitorState::Delivering,
            None => MonitorState::SourceAway,
            Some(1..) => MonitorState::Late,
            Some(0) => MonitorState::NoProducer,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AFTER: Duration = Duration::from_secs(3);

    fn at(s: u64) -> Instant {
        Instant::from_ns(s * 1_000_000_000)
    }

    #[test]
    fn a_stopped_producer_is_told_from_a_copy_and_from_a_reader_that_stand_still() {
        let mut shards = [ShardStanding::default(); 2];
        let mut look = |s, seen: [(u64, u64, Option<u64>); 2], came| {
            for (shard, (position, end, source_end)) in shards.iter_mut().zip(seen) {
                shard.look(at(s), position, end, source_end);
            }
            let behind = seen.iter().try_fold(0, |sum, (position, _, end)| Some(sum + (*end)? - position));
            let stuck = StuckShards::of(&shards, at(s), AFTER);
            (stuck.state(came, false, behind), stuck)
        };
        let quiet = [(10, 10, Some(10)); 2];
        assert_eq!(look(0, quiet, 0).0, MonitorState::NoProducer);
        assert_eq!(look(60, quiet, 0).0, MonitorState::NoProducer, "however long it takes");
        // The source moves, and this cluster's length does not.
        let uncopied = [(10, 10, Some(10)), (10, 10, Some(11))];
        assert_eq!(look(61, uncopied, 0).0, MonitorState::Late);
        assert_eq!(look(63, uncopied, 0).0, MonitorState::Late);
        let (state, stuck) = look(64, uncopied, 0);
        assert_eq!((state, stuck), (MonitorState::CopyStuck, StuckShards { reading: vec![], copy: vec![1] }));
        // The other shard goes on, which hides nothing.
        assert_eq!(look(65, [(12, 12, Some(12)), (10, 10, Some(11))], 2).0, MonitorState::CopyStuck);
        // It moves, although it is not there yet.
        assert_eq!(look(66, [(12, 12, Some(12)), (11, 11, Some(20))], 1).0, MonitorState::Delivering);
        // It is here, and is not read.
        let unread = [(12, 12, Some(12)), (11, 20, Some(20))];
        assert_eq!(look(67, unread, 0).0, MonitorState::Late);
        assert_eq!(
            look(70, unread, 0),
            (MonitorState::ReadingStuck, StuckShards { reading: vec![1], copy: vec![] })
        );
        assert_eq!(look(71, [(12, 12, Some(12)), (20, 20, Some(20))], 9).0, MonitorState::Delivering);
    }

    #[test]
    fn who_is_away_is_told_from_what_stands_still_and_a_source_that_is_away_accuses_nobody() {
        let mut shard = ShardStanding::default();
        shard.look(at(0), 5, 5, Some(9));
        shard.look(at(9), 5, 5, None);
        let stuck = StuckShards::of(&[shard], at(9), AFTER);
        assert_eq!(stuck.state(0, false, None), MonitorState::SourceAway);
        assert_eq!(stuck.state(0, true, None), MonitorState::Away);
        shard.look(at(10), 5, 5, Some(9));
        shard.forget();
        let stuck = StuckShards::of(&[shard], at(60), AFTER);
        assert_eq!(stuck, StuckShards::default(), "nobody looked");
    }
}
