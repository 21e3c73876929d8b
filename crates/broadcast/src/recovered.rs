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
    lineage: u64,
    streams: BTreeMap<Stream, StreamState>,
}

impl Recovered {
    /// None yet.
    pub fn new(history: HistoryOptions) -> Self {
        Self { history, ..Self::default() }
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
            // One that a checkpoint had already says nothing: what follows it there was of the new lineage.
            Record::Lineage { lineage, .. } if lineage == self.lineage => {}
            Record::Lineage { lineage, keeps } => {
                self.lineage = lineage;
                match keeps {
                    true => self.streams.values_mut().for_each(|state| state.history.applied_elsewhere(0, 0)),
                    false => self.streams.clear(),
                }
            }
        }
        Ok(())
    }

    /// The lineage of what there was; 0 if nothing says so.
    pub fn lineage(&self) -> u64 {
        self.lineage
    }

    /// One stream.
    pub fn stream(&self, stream: &Stream) -> Option<&StreamState> {
        self.streams.get(stream)
    }

    /// The streams.
    pub fn into_streams(mut self) -> BTreeMap<Stream, StreamState> {
        // Whoever it goes on copying from tells that anew.
        self.streams.values_mut().for_each(|state| state.history.applied_elsewhere(0, 0));
        self.streams
    }

    fn state_of(&mut self, stream: &Stream) -> &mut StreamState {
        let history = &self.history;
        self.streams.entry(stream.clone()).or_insert_with(|| StreamState::new(history.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Content, Writer};

    #[test]
    fn another_lineage_drops_what_was_there_unless_it_keeps_it_and_once_only() {
        let stream = Stream::parse("eu/s").unwrap();
        let mut writer = Writer::new(0);
        writer.publish(&Content::default(), None).unwrap();
        let (batch, origin) = (writer.finish(0), None);
        let stored = Record::Stored { stream: stream.clone(), batch, origin };
        let lineage = |lineage, keeps| Record::Lineage { lineage, keeps };
        let apply = |records: &[Record]| {
            let mut recovered = Recovered::default();
            records.iter().for_each(|record| recovered.apply(record.clone()).unwrap());
            (recovered.lineage(), recovered.into_streams().get(&stream).map_or(0, StreamState::last))
        };
        assert_eq!(apply(&[lineage(1, true), stored.clone()]), (1, 1));
        assert_eq!(apply(&[lineage(1, true), stored.clone(), lineage(2, true)]), (2, 1));
        assert_eq!(apply(&[lineage(1, true), stored.clone(), lineage(2, false)]), (2, 0));
        // A checkpoint of what came after that, and the journal from before that on.
        assert_eq!(apply(&[lineage(2, true), stored, lineage(2, false)]), (2, 1));
    }
}
