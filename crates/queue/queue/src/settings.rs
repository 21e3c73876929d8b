//! What can be set for a queue, and what is kept of it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::limits::ORDER_HINT_MAX;

/// Among how many of the oldest visible messages a receive chooses (BDQS, section III.B.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "u32", into = "u32")]
pub enum OrderHint {
    /// Among K, 1 to [`ORDER_HINT_MAX`].
    K(u32),
    /// Among as few as the observed concurrency allows ([`crate::order_hint`]): one, where nobody else receives.
    #[default]
    Auto,
    /// Among all: random sampling, the paper's baseline without order.
    Infinity,
}

/// A text that is no order hint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an order hint is a number from 1 to {ORDER_HINT_MAX}, `auto` or `infinity`")]
pub struct NoOrderHint;

impl OrderHint {
    /// A hint of K, 1 to [`ORDER_HINT_MAX`].
    pub fn new(k: u32) -> Option<Self> {
        (1..=ORDER_HINT_MAX).contains(&k).then_some(Self::K(k))
    }
}

impl std::str::FromStr for OrderHint {
    type Err = NoOrderHint;

    fn from_str(text: &str) -> Result<Self, NoOrderHint> {
        match text {
            "auto" => Ok(Self::Auto),
            "infinity" => Ok(Self::Infinity),
            k => k.parse().ok().and_then(Self::new).ok_or(NoOrderHint),
        }
    }
}

impl std::fmt::Display for OrderHint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::K(k) => k.fmt(f),
            Self::Auto => f.write_str("auto"),
            Self::Infinity => f.write_str("infinity"),
        }
    }
}

/// As it is stored: K, 0 for auto, the greatest number for infinity.
impl From<OrderHint> for u32 {
    fn from(hint: OrderHint) -> Self {
        match hint {
            OrderHint::K(k) => k,
            OrderHint::Auto => 0,
            OrderHint::Infinity => u32::MAX,
        }
    }
}

impl From<u32> for OrderHint {
    fn from(stored: u32) -> Self {
        match stored {
            0 => Self::Auto,
            u32::MAX => Self::Infinity,
            k => Self::K(k.min(ORDER_HINT_MAX)),
        }
    }
}

/// How many replicas have to answer, where the store has replicas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Consistency {
    /// One, as in the paper.
    One,
    /// More than half.
    #[default]
    Quorum,
}

/// A text that is no consistency level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a consistency level is `one` or `quorum`")]
pub struct NoConsistency;

impl std::str::FromStr for Consistency {
    type Err = NoConsistency;

    fn from_str(text: &str) -> Result<Self, NoConsistency> {
        match text.to_ascii_lowercase().as_str() {
            "one" => Ok(Self::One),
            "quorum" => Ok(Self::Quorum),
            _ => Err(NoConsistency),
        }
    }
}

/// Within what a deduplication id means one message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Scope {
    /// The queue.
    #[default]
    Queue,
    /// Each of its groups.
    Group,
}

/// What makes a queue a FIFO queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fifo {
    /// Within what a deduplication id means one message.
    pub scope: Scope,
    /// Whether a message without a deduplication id has its body's checksum for one.
    pub by_content: bool,
    /// Whether the limit of throughput is each group's (Amazon's high throughput mode; here there is none).
    pub limit_by_group: bool,
}

/// Where messages go that were received too often.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Redrive {
    /// Name of the queue, of the same account.
    pub target: String,
    /// Receives after which a message goes there instead of being received once more.
    pub receives_max: u16,
}

/// How a queue behaves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// How long a received message is invisible if the receive does not say, in seconds.
    pub visibility_s: u32,
    /// How long a message is invisible after it was sent if the send does not say, in seconds.
    pub delay_s: u32,
    /// How long a message is kept, in seconds.
    pub retention_s: u32,
    /// How long a receive waits for messages if it does not say, in seconds.
    pub wait_s: u32,
    /// Most bytes of a message.
    pub message_bytes_max: u32,
    /// Where messages go that were received too often.
    pub redrive: Option<Redrive>,
    /// Whether it is a FIFO queue; for ever as it was created.
    pub fifo: Option<Fifo>,
    /// Among how many messages a receive chooses.
    pub order_hint: OrderHint,
    /// How many replicas have to answer; the store's default without. Without effect in the embedded store.
    #[serde(default)]
    pub consistency: Option<Consistency>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            visibility_s: 30,
            delay_s: 0,
            retention_s: 4 * 24 * 3_600,
            wait_s: 0,
            message_bytes_max: 1 << 20,
            redrive: None,
            fifo: None,
            order_hint: OrderHint::default(),
            consistency: None,
        }
    }
}

/// A queue as it is kept: who it belongs to, how it behaves, and what is only kept for its owner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueRecord {
    /// The account that it belongs to.
    pub account: String,
    /// Its name, unique in its account.
    pub name: String,
    /// When it was created, in milliseconds since the epoch.
    pub created_at: u64,
    /// When its settings were changed last.
    pub modified_at: u64,
    /// How it behaves.
    pub settings: Settings,
    /// Attributes that have no effect here but are told again.
    #[serde(default)]
    pub attributes: BTreeMap<String, String>,
    /// Tags.
    #[serde(default)]
    pub tags: BTreeMap<String, String>,
}

impl QueueRecord {
    /// One that is to be created, with neither attributes nor tags: the store says when that is.
    pub fn new(account: impl Into<String>, name: impl Into<String>, settings: Settings) -> Self {
        let (account, name) = (account.into(), name.into());
        let (attributes, tags) = Default::default();
        Self { account, name, created_at: 0, modified_at: 0, settings, attributes, tags }
    }
}

/// How a move task stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MoveStatus {
    /// It moves messages.
    Running,
    /// All that were there at its start have been moved.
    Completed,
    /// It was told to stop.
    Cancelled,
    /// It can't go on; the task says why.
    Failed,
}

/// Why a task failed, in Amazon's words: the queue that it takes from, or brings to, is not there.
pub(crate) const NO_QUEUE: &str = "AWS.SimpleQueueService.NonExistentQueue";

/// Why a task failed, in Amazon's words: it is not known where a message came from, or that queue is not there.
pub(crate) const NO_SOURCE: &str = "CouldNotDetermineMessageSource";

/// A task that brings messages of a dead-letter queue back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoveTask {
    /// Its number.
    pub id: u64,
    /// The account it belongs to.
    pub account: String,
    /// Name of the queue that messages are taken from.
    pub source: String,
    /// Name of the queue that they go to; without one, where each came from.
    pub target: Option<String>,
    /// Messages a second, if limited.
    pub rate_max: Option<u32>,
    /// How it stands.
    pub status: MoveStatus,
    /// Why it failed.
    pub failure: Option<String>,
    /// Messages moved.
    pub moved: u64,
    /// Messages that there were at its start.
    pub total: u64,
    /// The newest message that there was at its start.
    pub upto: u64,
    /// When it began, in milliseconds since the epoch.
    pub started_at: u64,
}

impl MoveTask {
    /// One that is to begin, without a limit, and where each message came from. Its number and what it moves is for
    /// the store to say.
    pub fn new(account: &str, source: &str) -> Self {
        Self {
            id: 0,
            account: account.to_owned(),
            source: source.to_owned(),
            target: None,
            rate_max: None,
            status: MoveStatus::Running,
            failure: None,
            moved: 0,
            total: 0,
            upto: 0,
            started_at: 0,
        }
    }
}
