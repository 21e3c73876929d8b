//! What a listener hears, on its way to the application.

use tailwater_env::{Env, Instant};

use crate::batch::{Batch, MalformedBatch};
#[cfg(doc)]
use crate::client::Listener;
use crate::message::{AGE_UNKNOWN, Advertised};
use crate::name::Stream;
use crate::positions::Position;

/// What came, and if it is events, of which lineage they are.
#[derive(Debug)]
pub(super) struct Came {
    pub(super) received: Result<Received, ListenError>,
    pub(super) lineage: u64,
}

impl From<Received> for Came {
    fn from(received: Received) -> Self {
        Self { received: Ok(received), lineage: 0 }
    }
}

impl From<ListenError> for Came {
    fn from(error: ListenError) -> Self {
        Self { received: Err(error), lineage: 0 }
    }
}

/// What came.
#[derive(Clone, Debug)]
pub enum Received {
    /// Events; they continue what came before of their stream.
    Events(Stream, Batch),
    /// Where it begins, of the streams that it was told of: for `Positions::now` the numbers that "now" is.
    Began(Vec<(Stream, Position)>),
    /// How far the region's proxy is.
    Counts(Vec<Count>),
    /// The connection to the proxy is gone; the listener may be out of date until [`Received::Counts`] comes.
    Lost,
    /// A region has begun anew: from here on the numbers of its streams are those of other events, which come from the
    /// first one on. What came of them before is no more.
    Anew {
        /// The region; the listener's own, or another one.
        region: String,
        /// Its lineage now, which is greater than any before ([`Chain::lineage`](crate::message::Chain::lineage)).
        lineage: u64,
    },
    /// Retention removed events of a stream before they came here, and nothing had collected them. What comes next of
    /// the stream begins with a tombstone that stands for them, and nothing later explains that. Whoever keeps a state
    /// made of the events begins anew with it.
    Removed {
        /// The stream.
        stream: Stream,
        /// The last number of those.
        last: u64,
    },
}

/// How far the region's proxy has a stream, of the events that the listener listens to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Count {
    /// The stream.
    pub stream: Stream,
    /// The last number.
    pub count: u64,
    /// Then the stream's own region had acknowledged nothing that is not among it: a listener that has all of it was up
    /// to date. `None` if the proxy never knew. However long this was on its way, or waited to be read, it is true.
    pub as_of: Option<Instant>,
}

impl Count {
    /// What the tail says.
    pub(super) fn all(env: &Env, answers: Option<u64>, counts: Vec<Advertised>) -> Vec<Self> {
        let asked_ms = answers.map(|at| at.min(env.now().as_ns() / 1_000_000));
        let count = |told: Advertised| {
            let age_ms = Some(told.age_ms).filter(|age_ms| *age_ms != AGE_UNKNOWN);
            // What is older than this process's clock is as good as unknown.
            let as_of_ms = asked_ms.zip(age_ms).and_then(|(at, age_ms)| at.checked_sub(age_ms.into()));
            let as_of = as_of_ms.map(|ms| Instant::from_ns(ms * 1_000_000));
            Self { stream: told.stream, count: told.count.seq, as_of }
        };
        counts.into_iter().map(count).collect()
    }
}

/// Why no more events come.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ListenError {
    /// The proxy sent events that can't be read.
    #[error(transparent)]
    Malformed(#[from] MalformedBatch),
    /// Of [`Listener::get_event`] only: as [`Received::Anew`]. It goes on when it is asked again.
    #[error(
        "region {0} has begun anew: its streams' events come from the beginning, and those before are no more"
    )]
    Anew(String),
    /// Of [`Listener::get_event`] only: as [`Received::Removed`]. It goes on when it is asked again.
    #[error("retention removed events of {stream}, up to number {last}, before they were heard")]
    Removed {
        /// The stream.
        stream: Stream,
        /// The last number of those.
        last: u64,
    },
    /// The proxy sends it nothing: it names too many streams, after which it has ended, or there is no room for what it
    /// names at the moment, and when it is asked again it tries again.
    #[error("the listener is refused: {0}")]
    Refused(String),
    /// The listener's task has ended.
    #[error("the listener has ended")]
    Ended,
}

/// What a listener is told before a batch that continues what it has.
pub(super) fn removed_of(stream: &Stream, batch: &Batch) -> Option<Received> {
    (batch.removed > 0).then(|| Received::Removed { stream: stream.clone(), last: batch.removed })
}
