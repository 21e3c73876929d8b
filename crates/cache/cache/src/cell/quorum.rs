//! What the replicas' answers amount to: pure decisions, no waiting.

use super::placement::{Mode, REPLICAS_MAX};
use crate::version::Version;

/// What one replica says of one key in a consistent read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Vote {
    /// It holds this version.
    Holds(Version),
    /// It holds none.
    Absent,
    /// No answer is to be had from it.
    None,
}

/// What the votes so far amount to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QuorumVerdict {
    /// Further votes decide.
    Wait,
    /// A quorum holds this version. `replica` was the first to say so: the preferred one to fetch it from.
    Agreed { version: Version, replica: usize },
    /// A quorum holds nothing.
    Miss,
    /// All voted, and no quorum agrees: a SET is under way, or a replica lost the key.
    Disagree,
    /// Too few replicas vote for a quorum ever to come about.
    Unreachable,
}

/// The votes on one key, in the order in which they came.
#[derive(Clone, Copy, Debug)]
pub(super) struct Votes {
    mode: Mode,
    count: usize,
    votes: [(usize, Vote); REPLICAS_MAX],
}

impl Votes {
    pub(super) fn new(mode: Mode) -> Self {
        Self { mode, count: 0, votes: [(0, Vote::None); REPLICAS_MAX] }
    }

    /// Counts a replica's vote.
    ///
    /// # Panics
    /// If it voted before, or there is no such replica.
    pub(super) fn cast(&mut self, replica: usize, vote: Vote) {
        assert!(replica < self.mode.replicas() && !self.has_voted(replica));
        self.votes[self.count] = (replica, vote);
        self.count += 1;
    }

    /// How many have voted.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Whether a replica has voted.
    pub(super) fn has_voted(&self, replica: usize) -> bool {
        self.iter().any(|(voted, _)| voted == replica)
    }

    fn iter(&self) -> impl Iterator<Item = (usize, Vote)> + '_ {
        self.votes[..self.count].iter().copied()
    }

    pub(super) fn verdict(&self) -> QuorumVerdict {
        let quorum = self.mode.quorum();
        let votes_for = |wanted: Vote| self.iter().filter(|(_, vote)| *vote == wanted).count();
        for (replica, vote) in self.iter() {
            if let Vote::Holds(version) = vote
                && votes_for(vote) >= quorum
            {
                return QuorumVerdict::Agreed { version, replica };
            }
        }
        if votes_for(Vote::Absent) >= quorum {
            return QuorumVerdict::Miss;
        }
        if votes_for(Vote::None) > self.mode.replicas() - quorum {
            return QuorumVerdict::Unreachable;
        }
        if self.count < self.mode.replicas() { QuorumVerdict::Wait } else { QuorumVerdict::Disagree }
    }
}

/// What one replica answered to a SET or an ERASE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReplicaAck {
    /// It holds this version, or a later one of the same client, which then came after it.
    Applied,
    /// It refused because of this higher version of another client.
    Superseded(Version),
    /// There was no room in the queue to it.
    Overloaded,
    /// It has just started, and takes none yet.
    NotYet,
    /// It has no room, and removes nothing for it.
    NoRoom,
    /// No answer is to be had from it.
    None,
}

/// What the acknowledgements so far amount to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Settled {
    /// Further ones decide.
    Wait,
    /// A quorum applied it.
    Applied,
    /// No quorum will, and this is the highest version that stood against it.
    Superseded(Version),
    /// No quorum will, because too many queues are full.
    Overloaded,
    /// None does now, because some have just started.
    NotYet,
    /// No quorum will, because some have no room.
    NoRoom,
    /// No quorum will, because too few replicas answer.
    Unreachable,
}

/// The acknowledgements of one SET or ERASE.
#[derive(Clone, Copy, Debug)]
pub(super) struct Acks {
    mode: Mode,
    applied: usize,
    refused: usize,
    overloaded: usize,
    not_yet: usize,
    no_room: usize,
    unanswered: usize,
    highest: Version,
}

impl Acks {
    pub(super) fn new(mode: Mode) -> Self {
        let highest = Version::ZERO;
        Self { mode, applied: 0, refused: 0, overloaded: 0, not_yet: 0, no_room: 0, unanswered: 0, highest }
    }

    /// Counts one replica's answer; the caller counts each replica once.
    pub(super) fn count(&mut self, ack: ReplicaAck) {
        match ack {
            ReplicaAck::Applied => self.applied += 1,
            ReplicaAck::Superseded(version) => {
                self.refused += 1;
                self.highest = self.highest.max(version);
            }
            ReplicaAck::Overloaded => self.overloaded += 1,
            ReplicaAck::NotYet => self.not_yet += 1,
            ReplicaAck::NoRoom => self.no_room += 1,
            ReplicaAck::None => self.unanswered += 1,
        }
        assert!(self.applied + self.against() <= self.mode.replicas(), "a replica answers once");
    }

    fn against(&self) -> usize {
        self.refused + self.overloaded + self.not_yet + self.no_room + self.unanswered
    }

    pub(super) fn settled(&self) -> Settled {
        if self.applied >= self.mode.write_quorum() {
            return Settled::Applied;
        }
        if self.against() <= self.mode.replicas() - self.mode.write_quorum() {
            return Settled::Wait;
        }
        if self.no_room > 0 {
            Settled::NoRoom
        } else if self.refused > 0 {
            Settled::Superseded(self.highest)
        } else if self.overloaded > 0 {
            Settled::Overloaded
        } else if self.not_yet > 0 {
            Settled::NotYet
        } else {
            Settled::Unreachable
        }
    }
}

/// Of which quorums of a key a replica is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WriteQuorums {
    /// Of those that are read.
    pub(super) read: bool,
    /// Of the others that have to acknowledge while the cell's backends change.
    pub(super) other: bool,
}

impl WriteQuorums {
    /// Of those that are read alone.
    pub(super) const READ: WriteQuorums = WriteQuorums { read: true, other: false };
}

/// The acknowledgements of one SET or ERASE, of both quorums while there are two.
#[derive(Clone, Copy, Debug)]
pub(super) struct AllAcks {
    read: Acks,
    other: Option<Acks>,
}

impl AllAcks {
    pub(super) fn new(mode: Mode, has_other: bool) -> Self {
        Self { read: Acks::new(mode), other: has_other.then(|| Acks::new(mode)) }
    }

    /// Counts one replica's answer; the caller counts each replica once.
    pub(super) fn count(&mut self, of: WriteQuorums, ack: ReplicaAck) {
        if of.read {
            self.read.count(ack);
        }
        if let Some(other) = self.other.as_mut().filter(|_| of.other) {
            other.count(ack);
        }
    }

    /// Both have to apply it; the worse of them decides, and until then both are waited for.
    pub(super) fn settled(&self) -> Settled {
        let read = self.read.settled();
        let other = self.other.map_or(read, |other| other.settled());
        match (read, other) {
            (Settled::Superseded(one), Settled::Superseded(another)) => Settled::Superseded(one.max(another)),
            (Settled::Applied, rest) | (rest, Settled::Applied) => rest,
            (Settled::Wait, rest) | (rest, Settled::Wait) => rest,
            // What is worth another try comes last: the other one stays.
            (Settled::NotYet, rest) | (rest, Settled::NotYet) => rest,
            (Settled::Superseded(_), rest) | (rest, _) => rest,
        }
    }
}

/// One key of a relaxed read: who was asked and who is still to answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    replicas: usize,
    /// Bit per replica.
    asked: u8,
    last: usize,
    waiting: usize,
}

impl Asked {
    pub(super) fn new(mode: Mode) -> Self {
        Self { replicas: mode.replicas(), asked: 0, last: 0, waiting: 0 }
    }

    /// The first replica at or after `start`, cyclically, that was not asked yet and that `usable` allows; it
    /// counts as asked from now on.
    pub(super) fn ask(&mut self, start: usize, usable: impl Fn(usize) -> bool) -> Option<usize> {
        let mut candidates = (0..self.replicas).map(|step| (start + step) % self.replicas);
        let next = candidates.find(|replica| self.asked & (1 << replica) == 0 && usable(*replica))?;
        self.asked |= 1 << next;
        self.last = next;
        self.waiting += 1;
        Some(next)
    }

    /// A replica that was asked answered; `true` if another one is still to answer.
    pub(super) fn answered(&mut self) -> bool {
        assert!(self.waiting > 0, "only who was asked answers");
        self.waiting -= 1;
        self.waiting > 0
    }

    /// The replica that was asked last.
    pub(super) fn last(&self) -> usize {
        self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const V1: Vote = Vote::Holds(Version { timestamp_us: 1, client_id: 0, sequence: 0 });
    const V2: Vote = Vote::Holds(Version { timestamp_us: 2, client_id: 0, sequence: 0 });
    const V3: Vote = Vote::Holds(Version { timestamp_us: 3, client_id: 0, sequence: 0 });

    fn agreed(vote: Vote, replica: usize) -> QuorumVerdict {
        let Vote::Holds(version) = vote else { panic!("a version") };
        QuorumVerdict::Agreed { version, replica }
    }

    fn verdict(mode: Mode, votes: &[(usize, Vote)]) -> QuorumVerdict {
        let mut all = Votes::new(mode);
        for (replica, vote) in votes {
            all.cast(*replica, *vote);
        }
        all.verdict()
    }

    #[test]
    fn decision_table_of_a_consistent_read() {
        use Vote::{Absent, None};
        type Case<'a> = (&'a str, &'a [(usize, Vote)], QuorumVerdict);
        let cases: &[Case] = &[
            ("nobody voted", &[], QuorumVerdict::Wait),
            ("one vote is no quorum", &[(0, V1)], QuorumVerdict::Wait),
            ("two agree, the third is not waited for", &[(2, V1), (0, V1)], agreed(V1, 2)),
            ("two differ, the third decides", &[(0, V1), (1, V2)], QuorumVerdict::Wait),
            ("the third agrees with the second", &[(0, V1), (1, V2), (2, V2)], agreed(V2, 1)),
            ("a quorum on an old version is the answer", &[(0, V2), (1, V1), (2, V1)], agreed(V1, 1)),
            ("all differ", &[(0, V1), (1, V2), (2, V3)], QuorumVerdict::Disagree),
            ("a miss needs a quorum", &[(0, Absent)], QuorumVerdict::Wait),
            ("two misses", &[(1, Absent), (2, Absent)], QuorumVerdict::Miss),
            ("a restarted replica is outvoted", &[(0, Absent), (1, V1), (2, V1)], agreed(V1, 1)),
            ("one of three holds it", &[(0, Absent), (1, V1), (2, Absent)], QuorumVerdict::Miss),
            ("one gone, two agree", &[(0, None), (1, V1), (2, V1)], agreed(V1, 1)),
            ("one gone, two miss", &[(0, None), (1, Absent), (2, Absent)], QuorumVerdict::Miss),
            ("one gone, two differ", &[(0, None), (1, V1), (2, V2)], QuorumVerdict::Disagree),
            ("one gone, one lost it", &[(0, None), (1, V1), (2, Absent)], QuorumVerdict::Disagree),
            ("one gone so far", &[(0, None)], QuorumVerdict::Wait),
            ("two gone, the third is not waited for", &[(0, None), (1, None)], QuorumVerdict::Unreachable),
            ("two gone", &[(0, V1), (1, None), (2, None)], QuorumVerdict::Unreachable),
        ];
        for (name, votes, expected) in cases {
            assert_eq!(verdict(Mode::R32, votes), *expected, "{name}");
        }
        let immutable = Mode::R2Immutable;
        assert_eq!(verdict(immutable, &[(1, V1)]), agreed(V1, 1), "of what does not change one is enough");
        assert_eq!(verdict(immutable, &[(1, None)]), QuorumVerdict::Wait, "and the other one if that fails");
        assert_eq!(verdict(immutable, &[(1, None), (0, Absent)]), QuorumVerdict::Miss);
        assert_eq!(verdict(immutable, &[(1, None), (0, None)]), QuorumVerdict::Unreachable);
        assert_eq!(verdict(Mode::R1, &[]), QuorumVerdict::Wait);
        assert_eq!(verdict(Mode::R1, &[(0, V1)]), agreed(V1, 0));
        assert_eq!(verdict(Mode::R1, &[(0, Absent)]), QuorumVerdict::Miss);
        assert_eq!(verdict(Mode::R1, &[(0, None)]), QuorumVerdict::Unreachable);
    }

    #[test]
    fn decision_table_of_a_set() {
        use ReplicaAck::{Applied, None, Overloaded, Superseded};
        let v = |timestamp_us| Version { timestamp_us, client_id: 0, sequence: 0 };
        type Case<'a> = (&'a str, &'a [ReplicaAck], Settled);
        let cases: &[Case] = &[
            ("nobody answered", &[], Settled::Wait),
            ("one of two", &[Applied], Settled::Wait),
            ("two acknowledged, the third is not waited for", &[Applied, Applied], Settled::Applied),
            ("one gone", &[None, Applied, Applied], Settled::Applied),
            ("one full", &[Overloaded, Applied, Applied], Settled::Applied),
            ("one against it so far", &[Superseded(v(5)), Applied], Settled::Wait),
            ("two against it", &[Superseded(v(5)), Superseded(v(7))], Settled::Superseded(v(7))),
            ("one gone, one against it", &[None, Superseded(v(5))], Settled::Superseded(v(5))),
            ("two full", &[Overloaded, Overloaded], Settled::Overloaded),
            ("one gone, one full", &[None, Overloaded], Settled::Overloaded),
            ("two gone", &[Applied, None, None], Settled::Unreachable),
        ];
        for (name, acks, expected) in cases {
            let mut all = Acks::new(Mode::R32);
            for ack in *acks {
                all.count(*ack);
            }
            assert_eq!(all.settled(), *expected, "{name}");
        }
        let mut both = Acks::new(Mode::R2Immutable);
        both.count(Applied);
        assert_eq!(both.settled(), Settled::Wait, "what is loaded is at both");
        both.count(None);
        assert_eq!(both.settled(), Settled::Unreachable);
        let mut one = Acks::new(Mode::R1);
        one.count(Applied);
        assert_eq!(one.settled(), Settled::Applied);
    }

    #[test]
    fn a_relaxed_read_asks_each_replica_once() {
        let mut asked = Asked::new(Mode::R32);
        assert_eq!(asked.ask(2, |_| true), Some(2));
        assert_eq!(asked.ask(2, |replica| replica != 0), Some(1), "the next usable one");
        assert_eq!(asked.last(), 1);
        assert!(asked.answered(), "one of two is still to answer");
        assert!(!asked.answered());
        assert_eq!(asked.ask(1, |replica| replica != 0), None, "the one left is not usable");
        assert_eq!(asked.ask(1, |_| true), Some(0));
        assert_eq!(asked.ask(1, |_| true), None);

        let mut alone = Asked::new(Mode::R1);
        assert_eq!(alone.ask(0, |_| true), Some(0));
        assert_eq!(alone.ask(0, |_| true), None);
    }
}
