//! A region's listener of figure 4: it hears every event, and checks of each that it continues its stream and its
//! driver.
//!
//! It takes each event by `get_event`, as an application does, or whole batches, whose events it reads in place. A
//! delay ends when the listener has been handed the event: by `get_event` it reads the clock behind the last of the
//! events that were made at the same time, a driver's batch, so that the others' delays are a little too long; of a
//! batch it reads it once, when that came.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::FutureExt;
use serde::Serialize;
use tailwater_client::broadcast::{ListenError, Listener, Received, Stream};
use tailwater_load::stats::Durations;

use super::proxies::Run;

/// An event's payload: u32 its number, u16 its driver, u32 when it was made.
pub(super) const PAYLOAD_BYTES: usize = 10;

/// How a listener takes what comes.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum HearingReceive {
    /// Each event by `Listener::get_event`.
    GetEvent,
    /// Batches by `Listener::next`.
    Batches,
}

/// What one region's listener has got.
#[derive(Default)]
pub(super) struct EventsHeard {
    pub(super) events: AtomicU64,
    /// Of which it heard a tombstone.
    pub(super) collected: AtomicU64,
    pub(super) streams: AtomicU64,
    pub(super) reordered: AtomicU64,
    pub(super) delays: Mutex<Durations>,
}

impl EventsHeard {
    /// Events and tombstones: all that it was told of.
    pub(super) fn all(&self) -> u64 {
        self.events.load(Ordering::Relaxed) + self.collected.load(Ordering::Relaxed)
    }
}

/// Hears everything, and checks it.
pub(super) async fn listen(
    listener: Listener,
    receive: HearingReceive,
    heard: Arc<EventsHeard>,
    run: Arc<Run>,
    drivers: u16,
) -> Result<(), ListenError> {
    let checks = Checks::new(heard, drivers);
    match receive {
        HearingReceive::GetEvent => take_events(listener, checks, &run).await,
        HearingReceive::Batches => take_batches(listener, checks, &run).await,
    }
}

async fn take_events(mut listener: Listener, mut checks: Checks, run: &Run) -> Result<(), ListenError> {
    loop {
        let event = match listener.get_event().now_or_never() {
            Some(event) => event?,
            None => {
                // Before it waits.
                checks.handed(run);
                listener.get_event().await?
            }
        };
        let stream = checks.stream(event.stream);
        if event.is_tombstone() {
            checks.tombstone(stream, event.after(), event.seq());
            continue;
        }
        if made_us(event.payload()) != checks.made_us {
            checks.handed(run);
        }
        checks.event(stream, event.seq(), event.payload());
    }
}

async fn take_batches(mut listener: Listener, mut checks: Checks, run: &Run) -> Result<(), ListenError> {
    loop {
        let Received::Events(stream, batch) = listener.next().await? else { continue };
        let (now_us, measuring) = (run.now_us(), run.switch.is_measuring());
        let stream = checks.stream(&stream);
        checks.continues(stream, batch.after);
        let mut cursor = batch.cursor();
        while let Some(event) = cursor.next()? {
            if event.skipped > 0 {
                let last = event.seq - 1;
                checks.tombstone(stream, last - event.skipped, last);
            }
            if made_us(event.payload) != checks.made_us {
                checks.handed_at(now_us, measuring);
            }
            checks.event(stream, event.seq, event.payload);
        }
        let end = cursor.seq;
        if batch.last > end {
            checks.tombstone(stream, end, batch.last);
        }
        checks.handed_at(now_us, measuring);
    }
}

/// When an event was made.
fn made_us(payload: &[u8]) -> u32 {
    payload.last_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

/// How far a listener is in one stream.
struct Follows {
    stream: Stream,
    last: u64,
    /// Of each driver the number of its next event; not known behind a tombstone.
    numbers: Vec<Option<u32>>,
}

/// What a listener knows of what it is to get next, and what it has counted since it last told it.
struct Checks {
    heard: Arc<EventsHeard>,
    drivers: u16,
    streams: Vec<Follows>,
    /// The stream of the last event.
    at: usize,
    /// Of the last events, which were made at the same time: when that was, and how many they are.
    made_us: u32,
    alike: u64,
    collected: u64,
    reordered: u64,
}

impl Checks {
    fn new(heard: Arc<EventsHeard>, drivers: u16) -> Self {
        Self { heard, drivers, streams: Vec::new(), at: 0, made_us: 0, alike: 0, collected: 0, reordered: 0 }
    }

    /// Which of its streams that is.
    fn stream(&mut self, stream: &Stream) -> usize {
        if self.streams.get(self.at).is_some_and(|follows| follows.stream == *stream) {
            return self.at;
        }
        let known = self.streams.iter().position(|follows| follows.stream == *stream);
        self.at = known.unwrap_or_else(|| {
            let numbers = vec![Some(0); usize::from(self.drivers)];
            self.streams.push(Follows { stream: stream.clone(), last: 0, numbers });
            self.heard.streams.fetch_add(1, Ordering::Relaxed);
            self.streams.len() - 1
        });
        self.at
    }

    /// What comes next follows this number.
    fn continues(&mut self, stream: usize, after: u64) {
        self.reordered += u64::from(self.streams[stream].last != after);
    }

    fn event(&mut self, stream: usize, seq: u64, payload: &[u8]) {
        self.continues(stream, seq - 1);
        let follows = &mut self.streams[stream];
        follows.last = seq;
        (self.made_us, self.alike) = (made_us(payload), self.alike + 1);
        let [a, b, c, d, low, high, ..] = *payload else {
            self.reordered += 1;
            return;
        };
        let (number, driver) = (u32::from_le_bytes([a, b, c, d]), u16::from_le_bytes([low, high]));
        match follows.numbers.get_mut(usize::from(driver)) {
            Some(next) => {
                self.reordered += u64::from(next.is_some_and(|next| next != number));
                *next = Some(number.wrapping_add(1));
            }
            None => self.reordered += 1,
        }
    }

    /// The numbers (`after`, `last`] were collected; of which drivers they were is not known.
    fn tombstone(&mut self, stream: usize, after: u64, last: u64) {
        self.continues(stream, after);
        self.collected += last - after;
        let follows = &mut self.streams[stream];
        follows.last = last;
        follows.numbers.fill(None);
    }

    /// It has been handed the last events now.
    fn handed(&mut self, run: &Run) {
        self.handed_at(run.now_us(), run.switch.is_measuring());
    }

    /// It had been handed the last events by then. Tells what it has counted.
    fn handed_at(&mut self, now_us: u32, measuring: bool) {
        let heard = &self.heard;
        if measuring && self.alike > 0 {
            let delay_ns = u64::from(now_us.wrapping_sub(self.made_us)) * 1000;
            heard.delays.lock().expect("no listener panics").record_many(delay_ns, self.alike);
        }
        for (told, counted) in [
            (&heard.events, &mut self.alike),
            (&heard.collected, &mut self.collected),
            (&heard.reordered, &mut self.reordered),
        ] {
            if *counted > 0 {
                told.fetch_add(std::mem::take(counted), Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn payload(number: u32, driver: u16, made_us: u32) -> Vec<u8> {
        [&number.to_le_bytes()[..], &driver.to_le_bytes(), &made_us.to_le_bytes()].concat()
    }

    #[test]
    fn a_tombstone_is_no_loss_and_no_event_and_what_follows_it_may_have_any_number_of_its_driver() {
        let heard = Arc::new(EventsHeard::default());
        let mut checks = Checks::new(Arc::clone(&heard), 2);
        let name = Stream::parse("r0/events").unwrap();
        let stream = checks.stream(&name);
        checks.event(stream, 1, &payload(0, 0, 5));
        checks.event(stream, 2, &payload(0, 1, 5));
        checks.tombstone(stream, 2, 40);
        checks.event(stream, 41, &payload(30, 0, 6));
        checks.event(stream, 42, &payload(31, 0, 6));
        checks.handed_at(9, true);
        let told = |of: &AtomicU64| of.load(Ordering::Relaxed);
        assert_eq!((told(&heard.events), told(&heard.collected), told(&heard.reordered)), (4, 38, 0));
        assert_eq!((heard.all(), told(&heard.streams)), (42, 1));
        // A number is missing, and then one of its driver.
        checks.event(stream, 44, &payload(32, 0, 6));
        checks.event(stream, 45, &payload(34, 0, 6));
        checks.handed_at(9, false);
        assert_eq!(told(&heard.reordered), 2);
    }
}
