//! Publishing (section 2.1): the head numbers a publisher's events, and answers when the tail holds them.

use crate::batch::Batch;
use crate::message::{Message, Origin, PublisherId, Reason};
use crate::name::Stream;
use crate::replica::{Answer, ConnectionId, Replica};

impl Replica {
    /// A publisher's events, in its order: `first` is its own number of the first one. What it published before
    /// is left out; what would leave a gap in its numbers is refused, as it may be a retry that overtook another.
    pub(super) fn publish(
        &mut self,
        from: ConnectionId,
        stream: Stream,
        client: PublisherId,
        first: u64,
        mut batch: Batch,
    ) {
        let count = u64::from(batch.count);
        let refuse = |replica: &mut Self, reason, text: String| {
            replica.counters.refused += count;
            replica.send(from, Message::Refused { stream: stream.clone(), first, reason, text });
        };
        if !self.is_head() || !self.is_local(&stream) {
            let text = format!(
                "this replica ({} of region {}) is not the head of the chain that {stream} belongs to",
                self.config.id, self.config.region
            );
            return refuse(self, Reason::NotHead, text);
        }
        if batch.last - batch.after != count || first == 0 {
            return refuse(self, Reason::Invalid, "what is published can't contain tombstones".to_owned());
        }
        if !self.streams.contains_key(&stream) {
            let local = self.streams.keys().filter(|stream| self.is_local(stream)).count();
            if local >= self.config.streams_max {
                let text = format!("region {} has {local} streams, as many as it may", self.config.region);
                return refuse(self, Reason::Limit, text);
            }
        }
        let Some(last) = first.checked_add(count - 1) else { return };
        let state = self.state_of(&stream);
        // One that is not known has to begin with its first: a later one may have overtaken it.
        let newest = state.publishers.newest(client).unwrap_or(0);
        if first > newest + 1 {
            let text = format!("the publisher's event {} is missing here", newest + 1);
            return refuse(self, Reason::Gap, text);
        }
        let repeated = (newest + 1 - first).min(count);
        if repeated > 0 {
            self.counters.repeated += repeated;
            if last <= newest {
                self.answer_later(from, client, stream, last, 0);
                return;
            }
            match batch.rest(batch.after + repeated) {
                Ok(Some(rest)) => batch = rest,
                _ => return,
            }
        }
        let now_ms = self.wall_ms;
        let state = self.state_of(&stream);
        if state.is_full() {
            let text =
                format!("more of {stream} is on its way down the chain than may be: publish it again later");
            return refuse(self, Reason::Limit, text);
        }
        let after = state.last();
        batch.last = after + u64::from(batch.count);
        batch.after = after;
        batch.state.time_ms = now_ms;
        let collects = match state.admit(&batch) {
            Ok(collects) => collects,
            Err(refusal) => return refuse(self, Reason::Invalid, refusal.to_string()),
        };
        let origin = Some(Origin { client, first: last + 1 - u64::from(batch.count) });
        let seq = batch.last;
        if state.store(&batch, origin, collects) == Ok(true) {
            self.counters.published += u64::from(batch.count);
            self.stored(stream.clone(), batch, origin);
            self.answer_later(from, client, stream, last, seq);
        }
    }

    /// Answers a publisher once its events up to `number` are settled.
    fn answer_later(
        &mut self,
        connection: ConnectionId,
        client: PublisherId,
        stream: Stream,
        number: u64,
        seq: u64,
    ) {
        self.answers.entry(stream.clone()).or_default().push_back(Answer {
            connection,
            client,
            stream,
            number,
            seq,
        });
    }

    /// Sends the answers whose events all replicas hold.
    pub(super) fn answer(&mut self) {
        let mut due = Vec::new();
        for (stream, answers) in &mut self.answers {
            let Some(state) = self.streams.get(stream) else { continue };
            let settled = |answer: &Answer| state.publishers.settled(answer.client) >= answer.number;
            // In the order of the stream, but for retries of what was settled before: those are few.
            while answers.front().is_some_and(settled) {
                due.extend(answers.pop_front());
            }
        }
        for Answer { connection, stream, number, seq, .. } in due {
            self.send(connection, Message::Published { stream, number, seq });
        }
    }

    /// This replica is not the head any more: publishers have to ask the new one.
    pub(super) fn refuse_all_answers(&mut self) {
        for answer in std::mem::take(&mut self.answers).into_values().flatten() {
            let text = "this replica is not the head any more".to_owned();
            let (stream, first) = (answer.stream, answer.number);
            self.send(answer.connection, Message::Refused { stream, first, reason: Reason::NotHead, text });
        }
    }
}
