//! Where one shard of a state is, without I/O.

use std::collections::BTreeSet;

use tailwater_format::snapshot::{SnapshotAssembly, SnapshotUpTo};
use tailwater_format::{Offset, Term};

use crate::ShardSnapshot;

/// What is under way for a shard.
#[derive(Clone, Debug, Default)]
pub(super) enum StatePhase {
    /// A snapshot is to be looked for.
    #[default]
    Unplaced,
    /// Parts of this one come.
    Loading { snapshot: ShardSnapshot, assembly: Box<SnapshotAssembly> },
    /// All of it was handed out; the updates behind it are to be looked for.
    Loaded { snapshot: ShardSnapshot },
    /// Updates come.
    Following(FollowedUpdates),
}

/// One shard.
#[derive(Debug, Default)]
pub(super) struct StateShard {
    pub(super) phase: StatePhase,
    /// Manifests of snapshots that were torn, or had updates that were lost. Others may fit all the same.
    useless: BTreeSet<Offset>,
}

impl StateShard {
    pub(super) fn is_of_no_use(&self, snapshot: Offset) -> bool {
        self.useless.contains(&snapshot)
    }

    /// Updates come from here on.
    pub(super) fn follow(&mut self, following: FollowedUpdates) {
        if following.ahead.is_none() {
            // What a snapshot had lost then, it still has lost; but nobody asks for these soon.
            self.useless.clear();
        }
        self.phase = StatePhase::Following(following);
    }

    /// All that is known is forgotten; a snapshot that brought it here is not tried again.
    pub(super) fn begin_anew(&mut self, without: Option<Offset>) {
        self.useless.extend(without);
        self.phase = StatePhase::Unplaced;
    }
}

/// Which updates come next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FollowedUpdates {
    /// The next one that is read.
    next: Offset,
    /// The term of the last one that the state has; 0 if it is not known.
    term: Term,
    /// What the snapshot has whose last updates were not read yet.
    ahead: Option<AheadSnapshot>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct AheadSnapshot {
    /// Where its manifest is.
    offset: Offset,
    up_to: SnapshotUpTo,
}

/// What becomes of updates that were read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UpdateStep {
    /// Those from here on are handed out.
    From(Offset),
    /// The snapshot has them.
    Nothing,
    /// The state has other ones, and begins anew without this snapshot.
    Other { snapshot: Option<Offset> },
}

impl FollowedUpdates {
    /// Without a snapshot.
    pub(super) fn from(next: Offset) -> Self {
        Self { next, term: Term(0), ahead: None }
    }

    /// Behind what a snapshot has.
    pub(super) fn behind(up_to: SnapshotUpTo) -> Self {
        Self { next: up_to.position, term: up_to.term, ahead: None }
    }

    /// From the end of what is there, `next`, which is before the end of what the snapshot has.
    pub(super) fn waiting_for(snapshot: Offset, up_to: SnapshotUpTo, next: Offset) -> Self {
        Self { next, term: up_to.term, ahead: Some(AheadSnapshot { offset: snapshot, up_to }) }
    }

    /// What the state has.
    pub(super) fn up_to(&self) -> SnapshotUpTo {
        let own = SnapshotUpTo { position: self.next, term: self.term };
        self.ahead.map_or(own, |ahead| ahead.up_to)
    }

    /// Takes updates from `first` to `next`, which is exclusive, of a term.
    pub(super) fn take(&mut self, first: Offset, next: Offset, term: Term) -> UpdateStep {
        if first != self.next {
            // Some that were read turned out to be lost, and these have taken their offsets.
            return UpdateStep::Other { snapshot: self.ahead.map(|ahead| ahead.offset) };
        }
        self.next = next;
        let Some(AheadSnapshot { offset, up_to }) = self.ahead else {
            self.term = term;
            return UpdateStep::From(first);
        };
        if next < up_to.position {
            return UpdateStep::Nothing;
        }
        // The last update that the snapshot has is among these, and so it was in the writer's log, if the term says so.
        if up_to.term != Term(0) && term != up_to.term {
            return UpdateStep::Other { snapshot: Some(offset) };
        }
        self.ahead = None;
        self.term = term;
        if next == up_to.position { UpdateStep::Nothing } else { UpdateStep::From(up_to.position) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn up_to(position: u64, term: u32) -> SnapshotUpTo {
        SnapshotUpTo { position: Offset(position), term: Term(term) }
    }

    #[test]
    fn each_update_behind_a_snapshot_is_handed_out_once() {
        let mut following = FollowedUpdates::behind(up_to(10, 3));
        assert_eq!(following.take(Offset(10), Offset(14), Term(3)), UpdateStep::From(Offset(10)));
        assert_eq!(following.take(Offset(14), Offset(15), Term(4)), UpdateStep::From(Offset(14)));
        assert_eq!(following.up_to(), up_to(15, 4));
    }

    #[test]
    fn updates_that_come_again_in_a_higher_term_begin_the_state_anew() {
        let mut following = FollowedUpdates::from(Offset(0));
        assert_eq!(following.take(Offset(0), Offset(9), Term(1)), UpdateStep::From(Offset(0)));
        assert_eq!(following.take(Offset(7), Offset(8), Term(2)), UpdateStep::Other { snapshot: None });
    }

    #[test]
    fn a_snapshot_ahead_of_the_updates_waits_for_them_and_has_those_before_its_position_once() {
        let mut following = FollowedUpdates::waiting_for(Offset(99), up_to(10, 3), Offset(4));
        assert_eq!(following.up_to(), up_to(10, 3));
        assert_eq!(following.take(Offset(4), Offset(6), Term(2)), UpdateStep::Nothing);
        assert_eq!(following.up_to(), up_to(10, 3), "it has them all the time");
        let mut exact = following;
        assert_eq!(following.take(Offset(6), Offset(12), Term(3)), UpdateStep::From(Offset(10)));
        assert_eq!(following.up_to(), up_to(12, 3));
        assert_eq!(exact.take(Offset(6), Offset(10), Term(3)), UpdateStep::Nothing);
        assert_eq!(exact.take(Offset(10), Offset(11), Term(3)), UpdateStep::From(Offset(10)));
    }

    #[test]
    fn a_snapshot_ahead_of_a_log_that_goes_on_with_other_updates_is_left_out() {
        let mut following = FollowedUpdates::waiting_for(Offset(99), up_to(10, 3), Offset(4));
        assert_eq!(following.take(Offset(4), Offset(9), Term(4)), UpdateStep::Nothing);
        let other = UpdateStep::Other { snapshot: Some(Offset(99)) };
        assert_eq!(following.take(Offset(9), Offset(20), Term(4)), other);

        let mut shard = StateShard::default();
        shard.begin_anew(Some(Offset(99)));
        assert!(shard.is_of_no_use(Offset(99)) && !shard.is_of_no_use(Offset(50)));
        shard.follow(FollowedUpdates::waiting_for(Offset(50), up_to(8, 3), Offset(4)));
        assert!(shard.is_of_no_use(Offset(99)), "the other one may turn out the same");
        shard.follow(FollowedUpdates::behind(up_to(8, 3)));
        assert!(!shard.is_of_no_use(Offset(99)));
    }
}
