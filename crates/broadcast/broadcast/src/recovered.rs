//! What a replica had, from the records that it wrote.
//!
//! Records are applied in the order in which they were written; some of them may come twice, those of a checkpoint and
//! then the same ones from the journal. Whatever they say, nothing panics: what does not follow is an error.

use std::collections::BTreeMap;

use crate::history::HistoryOptions;
use crate::name::Stream;
use crate::record::Record;
use crate::replica::Lineages;
use crate::replica::stream::{Collects, StreamState};

/// Streams as they were.
#[derive(Debug, Default)]
pub struct RecoveredStream {
    history: HistoryOptions,
    lineages: Lineages,
    streams: BTreeMap<Stream, StreamState>,
}

impl RecoveredStream {
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
            Record::Removed { stream, last } => {
                self.state_of(&stream).remove(last);
            }
            // One that a checkpoint had already says nothing: what follows it there was of the new lineage.
            Record::Lineage { lineage, .. } if lineage == self.lineages.own => {}
            Record::Lineage { lineage, keeps } => {
                self.lineages.own = lineage;
                match keeps {
                    true => self.streams.values_mut().for_each(|state| {
                        state.history.applied_elsewhere(0, 0);
                        state.forget_removes();
                    }),
                    false => {
                        self.streams.clear();
                        self.lineages.others.clear();
                        self.lineages.member = 0;
                    }
                }
            }
            Record::Elsewhere { region, lineage } => {
                if self.lineages.others.get(&region) != Some(&lineage) {
                    self.streams.retain(|stream, _| stream.region() != region);
                    self.lineages.others.insert(region, lineage);
                }
            }
            Record::Member { epoch } => self.lineages.member = epoch.max(self.lineages.member),
        }
        Ok(())
    }

    /// The lineages of what there was.
    pub fn lineages(&self) -> &Lineages {
        &self.lineages
    }

    /// One stream.
    pub fn stream(&self, stream: &Stream) -> Option<&StreamState> {
        self.streams.get(stream)
    }

    /// The streams.
    pub fn into_streams(mut self) -> BTreeMap<Stream, StreamState> {
        // Whoever it goes on copying from tells that anew.
        for state in self.streams.values_mut() {
            state.history.applied_elsewhere(0, 0);
            state.forget_removes();
        }
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
            let mut recovered = RecoveredStream::default();
            records.iter().for_each(|record| recovered.apply(record.clone()).unwrap());
            (recovered.lineages().own, recovered.into_streams().get(&stream).map_or(0, StreamState::last))
        };
        assert_eq!(apply(&[lineage(1, true), stored.clone()]), (1, 1));
        assert_eq!(apply(&[lineage(1, true), stored.clone(), lineage(2, true)]), (2, 1));
        assert_eq!(apply(&[lineage(1, true), stored.clone(), lineage(2, false)]), (2, 0));
        // A checkpoint of what came after that, and the journal from before that on.
        assert_eq!(apply(&[lineage(2, true), stored, lineage(2, false)]), (2, 1));
    }

    #[test]
    fn another_lineage_of_another_region_drops_what_was_there_of_that_one_once_only() {
        let streams = ["us/s", "eu/s"].map(|name| Stream::parse(name).unwrap());
        let stored = |stream: &Stream, count: u64| {
            let mut writer = Writer::new(0);
            (0..count).for_each(|_| writer.publish(&Content::default(), None).unwrap());
            Record::Stored { stream: stream.clone(), batch: writer.finish(0), origin: None }
        };
        let us = |lineage| Record::Elsewhere { region: "us".to_owned(), lineage };
        let apply = |records: &[Record]| {
            let mut recovered = RecoveredStream::default();
            records.iter().for_each(|record| recovered.apply(record.clone()).unwrap());
            let lineage = recovered.lineages().others.get("us").copied();
            let had = recovered.into_streams();
            (lineage, streams.clone().map(|stream| had.get(&stream).map_or(0, StreamState::last)))
        };
        let before = [us(5), stored(&streams[0], 3), stored(&streams[1], 2)];
        assert_eq!(apply(&before), (Some(5), [3, 2]));
        assert_eq!(apply(&[&before[..], &[us(6)]].concat()), (Some(6), [0, 2]));
        let after = [us(6), stored(&streams[0], 1)];
        assert_eq!(apply(&[&before[..], &after].concat()), (Some(6), [1, 2]));
        // A checkpoint of that, and the journal from the change on.
        assert_eq!(apply(&[&after[..], &after].concat()), (Some(6), [1, 0]));
        let joins = Record::Lineage { lineage: 2, keeps: false };
        assert_eq!(apply(&[&after[..], &[joins]].concat()), (None, [0, 0]));
    }
}
