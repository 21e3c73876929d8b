//! Telling a follower what is settled of each publisher of the region's streams, in pieces.
//!
//! Each stream's turn comes later than the greeting began: what was settled in between was on its way then, so that
//! the follower knows already who published it.

use std::collections::{BTreeMap, VecDeque};

use crate::message::{Message, PublisherId};
use crate::name::Stream;
use crate::replica::stream::StreamState;

/// Publishers in one message.
const PUBLISHERS_A_MESSAGE: usize = 10_000;

/// How far a follower was told of the publishers.
#[derive(Debug)]
pub(super) struct Greeting {
    streams: VecDeque<Stream>,
    /// What is left of the stream whose turn it is.
    stream: Option<Stream>,
    numbers: VecDeque<(PublisherId, u64)>,
}

impl Greeting {
    /// Begins, with the streams that are there.
    pub(super) fn of(streams: &BTreeMap<Stream, StreamState>, region: &str) -> Self {
        let local = streams.keys().filter(|stream| stream.region() == region);
        Self { streams: local.cloned().collect(), stream: None, numbers: VecDeque::new() }
    }

    /// Whether nothing is left to be told.
    pub(super) fn is_told(&self) -> bool {
        self.streams.is_empty() && self.numbers.is_empty()
    }

    /// The next piece.
    pub(super) fn next(&mut self, streams: &BTreeMap<Stream, StreamState>) -> Option<Message> {
        while self.numbers.is_empty() {
            let stream = self.streams.pop_front()?;
            if let Some(state) = streams.get(&stream) {
                self.numbers = state.publishers.settled_numbers().into();
            }
            self.stream = Some(stream);
        }
        let numbers = self.numbers.drain(..PUBLISHERS_A_MESSAGE.min(self.numbers.len())).collect();
        Some(Message::Publishers { stream: self.stream.clone()?, numbers })
    }
}
