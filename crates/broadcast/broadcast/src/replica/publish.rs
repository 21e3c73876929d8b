//! Publishing (section 2.1): the head numbers a publisher's events, and answers when the tail holds them.

use crate::batch::{Batch, Writer};
use crate::history::FinalityRefusal;
use crate::limits::STREAMS_MAX;
use crate::message::{Message, Origin, PublisherId, Reason};
use crate::name::Stream;
use crate::replica::stream::StreamState;
use crate::replica::{ConnectionId, Replica, ReplicaAnswer, ReplicaOutput};

/// Answers that wait for the events of one stream beyond which nothing that is there already is asked for.
const ANSWERS_MAX: usize = 1 << 18;

impl Replica {
    /// A publisher's events, in its order: `first` is its own number of the first one. What it published before is left
    /// out; what would leave a gap in its numbers is refused, as it may be a retry that overtook another. What was
    /// answered is no gap: if this head counts, the chain forgot it, or it was refused; and if it does not count, what
    /// it takes comes to nothing, and is known to the others when it comes again.
    pub(super) fn publish(
        &mut self,
        from: ConnectionId,
        stream: Stream,
        client: PublisherId,
        (answered, first): (u64, u64),
        mut batch: Batch,
    ) {
        let count = u64::from(batch.count);
        let refuse = |replica: &mut Self, reason, text: String| {
            replica.counters.refused += count;
            replica.send(from, Message::Refused { stream: stream.clone(), first, reason, text });
        };
        if !self.is_local(&stream) {
            let text = format!(
                "{stream} belongs to region {}, and this is the proxy of region {}: publish it to a replica of {0}",
                stream.region(),
                self.config.region
            );
            return refuse(self, Reason::Invalid, text);
        }
        if !self.is_head() {
            let text = format!(
                "replica {} is not the head of region {}'s chain",
                self.config.id, self.config.region
            );
            return refuse(self, Reason::NotHead, text);
        }
        if batch.last - batch.after != count || first == 0 {
            return refuse(self, Reason::Invalid, "what is published can't contain tombstones".to_owned());
        }
        if !(Origin { client, first }).may_have(batch.count) {
            let text = format!("a publisher has no {count} numbers from {first} on");
            return refuse(self, Reason::Invalid, text);
        }
        if !self.streams.contains_key(&stream) {
            let local = self.streams.keys().filter(|stream| self.is_local(stream)).count();
            if local >= self.config.streams_max {
                let text = format!("region {} has {local} streams, as many as it may", self.config.region);
                return refuse(self, Reason::Limit, text);
            }
            // Listeners name them all, and tokens have them.
            if self.streams.len() >= STREAMS_MAX {
                let text =
                    format!("there are {STREAMS_MAX} streams of all regions, as many as a proxy carries");
                return refuse(self, Reason::Limit, text);
            }
        }
        let Some(last) = first.checked_add(count - 1) else { return };
        // One that is not known has to begin with the first that is not answered: a later one may have overtaken it.
        let newest = self.streams.get(&stream).and_then(|state| state.publishers.newest(client)).unwrap_or(0);
        let newest = newest.max(answered.min(first - 1));
        if first > newest.saturating_add(1) {
            let text = format!("the publisher's event {} is missing here", newest + 1);
            return refuse(self, Reason::Gap, text);
        }
        let repeated = (newest + 1 - first).min(count);
        if repeated > 0 {
            self.counters.repeated += repeated;
            self.state_of(&stream).publishers.repeated(client);
            if last <= newest {
                if self.answers.get(&stream).is_some_and(|answers| answers.len() >= ANSWERS_MAX) {
                    // A refusal would say that it was not published.
                    let text = format!("too many wait for what was published of {stream}");
                    self.outputs.push(ReplicaOutput::Close(from, text));
                    return;
                }
                let number = last;
                self.answer_later(ReplicaAnswer {
                    connection: from,
                    client,
                    stream,
                    number,
                    seq: None,
                    repeated: true,
                });
                return;
            }
            match batch.rest(batch.after + repeated) {
                Ok(Some(rest)) => batch = rest,
                _ => return,
            }
        }
        // What is refused begins no stream.
        let mut new;
        let state = match self.streams.get_mut(&stream) {
            Some(state) => state,
            None => {
                new = StreamState::new(self.config.history.clone());
                &mut new
            }
        };
        if state.is_full() {
            let text =
                format!("more of {stream} is on its way down the chain than may be: publish it again later");
            return refuse(self, Reason::Limit, text);
        }
        let after = state.last();
        if !batch.has_one_time() {
            // Events have the time at which they got their number, whatever their publisher says; and none that is
            // before another's in front of it, whatever this replica's clock says.
            let mut writer = Writer::new(after);
            if let Err(malformed) = writer.extend(&batch) {
                return refuse(self, Reason::Invalid, malformed.to_string());
            }
            batch = writer.finish(0);
            // It may say more than its publisher did, who had the first event's collection in the batch's state.
            if let Err(malformed) = batch.check() {
                return refuse(self, Reason::Invalid, malformed.to_string());
            }
        }
        batch.last = after + u64::from(batch.count);
        batch.after = after;
        batch.state.time_ms = self.wall_ms.max(state.time_ms());
        let collects = match state.admit(&batch, &mut self.admission) {
            Ok(collects) => collects,
            Err(refusal @ (FinalityRefusal::Busy { .. } | FinalityRefusal::Spent { .. })) => {
                return refuse(self, Reason::Limit, refusal.to_string());
            }
            Err(refusal) => return refuse(self, Reason::Invalid, refusal.to_string()),
        };
        let origin = Some(Origin { client, first: last + 1 - u64::from(batch.count) });
        let seq = batch.last;
        if self.state_of(&stream).store(&batch, origin, collects) == Ok(true) {
            self.counters.published += u64::from(batch.count);
            self.stored(stream.clone(), batch, origin);
            let (seq, repeated, number) = (Some(seq), repeated > 0, last);
            self.answer_later(ReplicaAnswer { connection: from, client, stream, number, seq, repeated });
        }
    }

    /// Answers a publisher once its events up to `answer.number` are settled.
    fn answer_later(&mut self, answer: ReplicaAnswer) {
        self.answers.entry(answer.stream.clone()).or_default().push_back(answer);
    }

    /// Sends the answers whose events all replicas hold.
    pub(super) fn answer(&mut self) {
        let mut due = Vec::new();
        for (stream, answers) in &mut self.answers {
            let Some(state) = self.streams.get(stream) else { continue };
            let settled = |answer: &ReplicaAnswer| state.publishers.is_settled(answer.client, answer.number);
            // In the order of the stream, but for retries of what was settled before: those are few.
            while answers.front().is_some_and(settled) {
                due.extend(answers.pop_front().map(|answer| (answer, state.held())));
            }
        }
        for (ReplicaAnswer { connection, stream, number, seq, repeated, .. }, held) in due {
            let seq = seq.unwrap_or(held);
            self.send(connection, Message::Published { stream, number, seq, repeated });
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
