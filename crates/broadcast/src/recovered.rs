//! What a replica had, from the records that it wrote.
//!
//! Records are applied in the order in which they were written; some of them may come twice, those of a checkpoint and
//! then the same ones from the journal. Whatever they say, nothing panics: what does not follow is an error.

use std::collections::BTreeMap;

use crate::history::HistoryOptions;
use crate::name::Stream;
use crate::record::Record;
use crate::replica::stream::{Collects, StreamState};

/// Streams as they were.
#[derive(Debug, Default)]
pub struct Recovered {
    history: HistoryOptions,
    streams: BTreeMap<Stream, StreamState>,
}

impl Recovered {
    /// None yet.
    pub fn new(history: HistoryOptions) -> Self {
        Self { history, streams: BTreeMap::new() }
    }

    /// Applies a record; the error says why it can't follow the others.
    pub fn apply(&mut self, record: Record) -> Result<(), String> {
        match record {
            Record::Stored { stream, batch, origin } => {
                let state = self.state_of(&stream);
                state.store(&batch, origin, Collects::UNKNOWN).map_err(|gap| format!("{stream}: {gap}"))?;
            }
            Record::Held { stream, last } => {
                let state = self.state_of(&stream);
                if last > state.last() {
                    return Err(format!("{stream}: held up to {last}, but it ends with {}", state.last()));
                }
                state.settle(last);
            }
            Record::Publishers { stream, numbers } => {
                let state = self.state_of(&stream);
                for (client, number) in numbers {
                    state.publishers.settle(client, number);
                }
            }
            Record::Forgot => self.streams.values_mut().for_each(StreamState::forget_unsettled),
            Record::Mark => {}
            Record::Applied { stream, last } => self.state_of(&stream).applied_elsewhere(last),
        }
        Ok(())
    }

    /// The streams.
    pub fn into_streams(self) -> BTreeMap<Stream, StreamState> {
        self.streams
    }

    fn state_of(&mut self, stream: &Stream) -> &mut StreamState {
        let history = &self.history;
        self.streams.entry(stream.clone()).or_insert_with(|| StreamState::new(history.clone()))
    }
}
