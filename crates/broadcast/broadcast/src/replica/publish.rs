//! Publishing (section 2.1): the head numbers a publisher's events, and answers when the tail holds them.

use crate::batch::{Batch, MalformedBatch, Writer};
use crate::history::FinalityRefusal;
use crate::limits::STREAMS_MAX;
use crate::message::{Message, Origin, PublisherId, Reason};
use crate::name::Stream;
use crate::replica::stream::{Collects, StreamState};
use crate::replica::{Config, ConnectionId, Replica, ReplicaAnswer, ReplicaOutput};

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
        batch: Batch,
    ) {
        let count = batch.count;
        match self.take_in(from, &stream, client, (answered, first), batch) {
            Ok(Some(PublishTaken { number, seq, repeated })) => {
                self.answer_later(ReplicaAnswer { connection: from, client, stream, number, seq, repeated });
            }
            Ok(None) => {}
            Err(PublishRefused { reason, text }) => {
                self.counters.refused += u64::from(count);
                self.send(from, Message::Refused { stream, first, reason, text });
            }
        }
    }

    /// Takes a publisher's events in. Answers what is to be answered once they are settled, if anything is.
    fn take_in(
        &mut self,
        from: ConnectionId,
        stream: &Stream,
        client: PublisherId,
        (answered, first): (u64, u64),
        batch: Batch,
    ) -> Result<Option<PublishTaken>, PublishRefused> {
        self.may_publish(stream, client, first, &batch)?;
        self.may_begin(stream)?;
        let Some(number) = first.checked_add(u64::from(batch.count) - 1) else { return Ok(None) };
        let known = self.known_of(stream, client, (answered, first), number)?;
        let batch = match known {
            0 => batch,
            known if known == u64::from(batch.count) => return Ok(self.all_is_known(from, stream, number)),
            known => match batch.rest(batch.after + known) {
                Ok(Some(rest)) => rest,
                _ => return Ok(None),
            },
        };
        // What is refused begins no stream.
        let mut new;
        let state = match self.streams.get_mut(stream) {
            Some(state) => state,
            None => {
                new = StreamState::new(self.config.history.clone());
                &mut new
            }
        };
        if state.is_full() {
            let text =
                format!("more of {stream} is on its way down the chain than may be: publish it again later");
            return Err(PublishRefused::limit(text));
        }
        let batch = numbered(state, batch, self.wall_ms)?;
        let collects = state.admit(&batch, &mut self.admission)?;
        has_room(stream, state, &batch, collects, self.config.stream_bytes_max)?;
        self.has_region_room(batch.bytes.len() as u64, collects)?;
        let origin = Some(Origin { client, first: number + 1 - u64::from(batch.count) });
        let seq = batch.last;
        if self.state_of(stream).store(&batch, origin, collects) != Ok(true) {
            return Ok(None);
        }
        self.counters.published += u64::from(batch.count);
        self.stored(stream.clone(), batch, origin);
        Ok(Some(PublishTaken { number, seq: Some(seq), repeated: known > 0 }))
    }

    /// Counts what the streams of this region hold: what was removed is room again, and what came along the chain while
    /// this was not its head counts as well.
    pub(super) fn count_region(&mut self) {
        let local = self.streams.iter().filter(|(stream, _)| stream.region() == self.config.region);
        self.region_bytes = local.map(|(_, state)| state.bytes()).sum();
    }

    /// Whether the streams of this region may hold `more` bytes together, which they do from now on.
    fn has_region_room(&mut self, more: u64, collects: Collects) -> Result<(), PublishRefused> {
        let bytes_max = self.config.region_bytes_max;
        let may = bound_for(bytes_max, collects);
        if self.region_bytes.saturating_add(more) > may {
            self.count_region();
        }
        let held = self.region_bytes;
        if held.saturating_add(more) <= may {
            self.region_bytes = held.saturating_add(more);
            return Ok(());
        }
        let text = format!(
            "the streams of region {} hold {held} bytes, and with {more} more they would hold more than they may, which \
             are {bytes_max} ([broadcast] region_bytes_max): collect events of them first, or have retention remove \
             them ([broadcast] retention_ms)",
            self.config.region
        );
        Err(PublishRefused { reason: Reason::Full, text })
    }

    /// Whether it is this replica that gives the events their numbers, and they can have some.
    fn may_publish(
        &self,
        stream: &Stream,
        client: PublisherId,
        first: u64,
        batch: &Batch,
    ) -> Result<(), PublishRefused> {
        let Config { id, region, .. } = &self.config;
        if !self.is_local(stream) {
            let of = stream.region();
            return Err(PublishRefused::invalid(format!(
                "{stream} belongs to region {of}, and this is the proxy of region {region}: publish it to a replica \
                 of {of}"
            )));
        }
        if !self.is_head() {
            let text = format!("replica {id} is not the head of region {region}'s chain");
            return Err(PublishRefused { reason: Reason::NotHead, text });
        }
        let count = u64::from(batch.count);
        if batch.last - batch.after != count || batch.removed != 0 || first == 0 {
            return Err(PublishRefused::invalid("what is published can't contain tombstones".to_owned()));
        }
        if !(Origin { client, first }).may_have(batch.count) {
            let text = format!("a publisher has no {count} numbers from {first} on");
            return Err(PublishRefused::invalid(text));
        }
        Ok(())
    }

    /// Whether a stream is there, or there is room for it.
    fn may_begin(&self, stream: &Stream) -> Result<(), PublishRefused> {
        if self.streams.contains_key(stream) {
            return Ok(());
        }
        let local = self.streams.keys().filter(|stream| self.is_local(stream)).count();
        if local >= self.config.streams_max {
            let region = &self.config.region;
            return Err(PublishRefused::limit(format!(
                "region {region} has {local} streams, as many as it may"
            )));
        }
        // Listeners name them all, and tokens have them.
        if self.streams.len() >= STREAMS_MAX {
            return Err(PublishRefused::limit(format!(
                "there are {STREAMS_MAX} streams of all regions, as many as a proxy carries"
            )));
        }
        Ok(())
    }

    /// How many of a publisher's events, from its number `first` up to `last`, were published before.
    fn known_of(
        &mut self,
        stream: &Stream,
        client: PublisherId,
        (answered, first): (u64, u64),
        last: u64,
    ) -> Result<u64, PublishRefused> {
        // One that is not known has to begin with the first that is not answered: a later one may have overtaken it.
        let newest = self.streams.get(stream).and_then(|state| state.publishers.newest(client)).unwrap_or(0);
        let newest = newest.max(answered.min(first - 1));
        if first > newest.saturating_add(1) {
            let text = format!("the publisher's event {} is missing here", newest + 1);
            return Err(PublishRefused { reason: Reason::Gap, text });
        }
        let known = (newest + 1 - first).min(last + 1 - first);
        if known > 0 {
            self.counters.repeated += known;
            self.state_of(stream).publishers.repeated(client);
        }
        Ok(known)
    }

    /// All of a message was published before: it is answered as well, unless very many wait for that.
    fn all_is_known(&mut self, from: ConnectionId, stream: &Stream, number: u64) -> Option<PublishTaken> {
        if self.answers.get(stream).is_some_and(|answers| answers.len() >= ANSWERS_MAX) {
            // A refusal would say that it was not published.
            let text = format!("too many wait for what was published of {stream}");
            self.outputs.push(ReplicaOutput::Close(from, text));
            return None;
        }
        Some(PublishTaken { number, seq: None, repeated: true })
    }

    /// Answers a publisher once its events up to `answer.number` are settled.
    fn answer_later(&mut self, answer: ReplicaAnswer) {
        self.answers.entry(answer.stream.clone()).or_default().push_back(answer);
    }

    /// Sends the answers whose events all replicas hold, and listeners are near to if this head is the tail as well.
    pub(super) fn answer(&mut self) {
        let mut due = Vec::new();
        let (now_ms, held_back_ms) = (self.now_ms, self.held_back_ms());
        for (stream, answers) in &mut self.answers {
            let Some(state) = self.streams.get(stream) else { continue };
            let may_be_told = state.readers.may_be_told(now_ms, held_back_ms);
            let settled = |answer: &ReplicaAnswer| {
                answer.seq.is_none_or(|seq| seq <= may_be_told)
                    && state.publishers.is_settled(answer.client, answer.number)
            };
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

/// What is published, and has to be settled before its publisher is answered: as in [`ReplicaAnswer`].
struct PublishTaken {
    number: u64,
    seq: Option<u64>,
    repeated: bool,
}

/// Why events are not published.
struct PublishRefused {
    reason: Reason,
    text: String,
}

impl PublishRefused {
    fn invalid(text: String) -> Self {
        Self { reason: Reason::Invalid, text }
    }

    fn limit(text: String) -> Self {
        Self { reason: Reason::Limit, text }
    }
}

impl From<MalformedBatch> for PublishRefused {
    fn from(malformed: MalformedBatch) -> Self {
        Self::invalid(malformed.to_string())
    }
}

impl From<FinalityRefusal> for PublishRefused {
    fn from(refusal: FinalityRefusal) -> Self {
        match refusal {
            FinalityRefusal::Busy { .. } | FinalityRefusal::Spent { .. } => Self::limit(refusal.to_string()),
            _ => Self::invalid(refusal.to_string()),
        }
    }
}

/// What a bound is to a batch: an eighth more where it collects others, and so makes room.
fn bound_for(bytes_max: u64, collects: Collects) -> u64 {
    if collects.any() { bytes_max.saturating_add(bytes_max / 8) } else { bytes_max }
}

/// Whether a stream may hold a batch more.
fn has_room(
    stream: &Stream,
    state: &StreamState,
    batch: &Batch,
    collects: Collects,
    bytes_max: u64,
) -> Result<(), PublishRefused> {
    let (held, more) = (state.bytes(), batch.bytes.len() as u64);
    if held.saturating_add(more) <= bound_for(bytes_max, collects) {
        return Ok(());
    }
    let text = format!(
        "{stream} holds {held} bytes, and with {more} more it would hold more than it may, which are {bytes_max} \
         ([broadcast] stream_bytes_max): collect events of it first, or have retention remove them ([broadcast] \
         retention_ms)"
    );
    Err(PublishRefused { reason: Reason::Full, text })
}

/// A publisher's batch with the numbers that are next in a stream. Its events have the time at which they get them,
/// whatever their publisher says; and none that is before another's in front of it, whatever this replica's clock says.
fn numbered(state: &StreamState, mut batch: Batch, wall_ms: u64) -> Result<Batch, MalformedBatch> {
    let after = state.last();
    if !batch.has_one_time() {
        let mut writer = Writer::new(after);
        writer.extend(&batch)?;
        batch = writer.finish(0);
        // It may say more than its publisher did, who had the first event's collection in the batch's state.
        batch.check()?;
    }
    batch.last = after + u64::from(batch.count);
    batch.after = after;
    batch.state.time_ms = wall_ms.max(state.time_ms());
    Ok(batch)
}
