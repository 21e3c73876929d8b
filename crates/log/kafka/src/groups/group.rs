//! A group of either kind.

use tailwater_env::Instant;

use super::classic::{ClassicGroup, ClassicOutput, ClassicPhase, Join};
use super::consumer::{Beat, Catalog, ConsumerGroup};
use super::records::GroupRecordKind;
use crate::errors::ErrorCode;

/// A group, by the protocol that its members speak. One without members becomes the other kind when a member of that
/// kind comes; one of consumers also while members are in it (`consumer/classic.rs`).
#[derive(Clone, Debug)]
pub(crate) enum Group {
    Classic(ClassicGroup),
    Consumer(ConsumerGroup),
}

impl Group {
    pub fn kind(&self) -> GroupRecordKind {
        match self {
            Self::Classic(_) => GroupRecordKind::Classic,
            Self::Consumer(_) => GroupRecordKind::Consumer,
        }
    }

    pub fn state(&self) -> &'static str {
        match self {
            Self::Classic(group) => group.state(),
            Self::Consumer(group) => group.state(),
        }
    }

    /// The last generation, or epoch.
    pub fn generation(&self) -> i32 {
        match self {
            Self::Classic(group) => group.generation,
            Self::Consumer(group) => group.epoch,
        }
    }

    /// The epoch of its members' target; the last generation of a classic one.
    pub fn target_epoch(&self) -> i32 {
        match self {
            Self::Classic(group) => group.generation,
            Self::Consumer(group) => group.target_epoch,
        }
    }

    /// What its members are; `None` if it never had any.
    pub fn protocol_type(&self) -> Option<&str> {
        match self {
            Self::Classic(group) => group.protocol_type.as_deref(),
            Self::Consumer(_) => Some(tailwater_kafka_wire::consumer::PROTOCOL_TYPE),
        }
    }

    pub fn has_members(&self) -> bool {
        match self {
            Self::Classic(group) => !group.members.is_empty(),
            Self::Consumer(group) => !group.members.is_empty(),
        }
    }

    /// Whether nobody is in it or about to be.
    pub fn is_unused(&self) -> bool {
        match self {
            Self::Classic(group) => group.is_unused(),
            Self::Consumer(group) => group.members.is_empty() && !group.is_dead,
        }
    }

    pub fn is_dead(&self) -> bool {
        match self {
            Self::Classic(group) => group.phase == ClassicPhase::Dead,
            Self::Consumer(group) => group.is_dead,
        }
    }

    /// Bytes of what its members say of themselves, and of their assignments.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Classic(group) => group.bytes(),
            Self::Consumer(group) => group.bytes(),
        }
    }

    /// Of that, what is given up for what a member says that joins.
    pub fn replaced_by_join(&self, join: &Join) -> usize {
        match self {
            Self::Classic(group) => group.replaced_by(join),
            Self::Consumer(group) => group.replaced_by_join(join),
        }
    }

    /// The same for a leader that says who gets what.
    pub fn replaced_by_sync(&self) -> usize {
        match self {
            Self::Classic(group) => group.assigned_bytes(),
            Self::Consumer(_) => 0,
        }
    }

    /// The same for a member of KIP-848.
    pub fn replaced_by_beat(&self, beat: &Beat) -> usize {
        match self {
            Self::Classic(_) => 0,
            Self::Consumer(group) => group.replaced_by(beat),
        }
    }

    pub fn next_deadline(&self) -> Option<Instant> {
        match self {
            Self::Classic(group) => group.next_deadline(),
            Self::Consumer(group) => group.next_deadline(),
        }
    }

    pub fn tick(&mut self, now: Instant, out: &mut Vec<ClassicOutput>) {
        match self {
            Self::Classic(group) => group.tick(now, out),
            Self::Consumer(group) => group.tick(now),
        }
    }

    /// Has it be dead. What it was before is answered; nobody was in it.
    pub fn delete(&mut self) -> Result<Self, ErrorCode> {
        if self.has_members() {
            return Err(ErrorCode::NonEmptyGroup);
        }
        let alive = self.clone();
        match self {
            Self::Classic(group) => group.delete(),
            Self::Consumer(group) => group.delete(),
        }?;
        Ok(alive)
    }

    /// The topics that its members read, by name; `None` where that is not known.
    pub fn subscribed_topics(&self, catalog: &Catalog) -> Option<std::collections::BTreeSet<String>> {
        match self {
            Self::Classic(group) => group.subscribed_topics(),
            Self::Consumer(group) => Some(group.subscribed_topics(catalog)),
        }
    }
}
