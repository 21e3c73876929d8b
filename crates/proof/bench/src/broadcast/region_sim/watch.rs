//! What arrives where and when: delays until all clients have an event, and events a second.

use super::net::{SECOND, Time};
use tailwater_load::stats::{Durations, PercentilesMs, round};

/// What is measured of one stream. Its events are published in lots of the same size.
struct WatchedLink {
    /// Events of a lot.
    lot: u64,
    /// Of each lot when it came to its proxy, and how many clients do not have it.
    lots: Vec<(Time, u32)>,
}

/// Sums over one second.
#[derive(Clone, Copy, Default)]
struct Second {
    delivered: u64,
    /// Lots that all clients got, and the sum of how long that took.
    lots: u64,
    delay_ns: u64,
}

pub struct Watch {
    streams: Vec<WatchedLink>,
    clients: u32,
    /// Only what is delivered, and what is published, from here on counts, and what is delivered until there.
    from: Time,
    until: Time,
    delivered: u64,
    /// Until all clients had an event, for each stream.
    to_all: Vec<Durations>,
    /// Until one client had an event.
    to_each: Durations,
    seconds: Vec<Vec<Second>>,
}

impl Watch {
    pub fn new(clients: u32, lots: Vec<u64>, from: Time, until: Time) -> Self {
        let streams: Vec<WatchedLink> =
            lots.into_iter().map(|lot| WatchedLink { lot, lots: Vec::new() }).collect();
        Self {
            to_all: streams.iter().map(|_| Durations::default()).collect(),
            seconds: streams.iter().map(|_| Vec::new()).collect(),
            streams,
            clients,
            from,
            until,
            delivered: 0,
            to_each: Durations::default(),
        }
    }

    /// A lot came to its proxy.
    pub fn published(&mut self, now: Time, stream: usize) {
        self.streams[stream].lots.push((now, self.clients));
    }

    /// A client was delivered the numbers (after, last].
    pub fn delivered(&mut self, now: Time, stream: usize, after: u64, last: u64) {
        let watched = &mut self.streams[stream];
        if (self.from..self.until).contains(&now) {
            self.delivered += last - after;
        }
        let second = (now / SECOND) as usize;
        if self.seconds[stream].len() <= second {
            self.seconds[stream].resize(second + 1, Second::default());
        }
        self.seconds[stream][second].delivered += last - after;
        for lot in after / watched.lot..last / watched.lot {
            let (published, left) = &mut watched.lots[lot as usize];
            *left -= 1;
            let delay = now - *published;
            let counts = *published >= self.from;
            if counts {
                self.to_each.record_many(delay, watched.lot);
            }
            if *left == 0 {
                if counts {
                    self.to_all[stream].record_many(delay, watched.lot);
                }
                // By when they were published, as one that is on its way for long is late then.
                let second = (*published / SECOND) as usize;
                self.seconds[stream][second].lots += 1;
                self.seconds[stream][second].delay_ns += delay;
            }
        }
    }

    /// Events a second that each client got, on average.
    pub fn events_s(&self) -> f64 {
        let seconds = self.until.saturating_sub(self.from) as f64 / SECOND as f64;
        self.delivered as f64 / f64::from(self.clients.max(1)) / seconds.max(1e-9)
    }

    /// Events a second that came to the proxies.
    pub fn published_s(&self) -> f64 {
        let counts = |(time, _): &&(Time, u32)| (self.from..self.until).contains(time);
        let of = |stream: &WatchedLink| stream.lots.iter().filter(counts).count() as u64 * stream.lot;
        let seconds = self.until.saturating_sub(self.from) as f64 / SECOND as f64;
        self.streams.iter().map(of).sum::<u64>() as f64 / seconds.max(1e-9)
    }

    /// Of what was published in time to count, up to `end`, the share that has not reached all clients.
    pub fn missing(&self, end: Time) -> f64 {
        let lots = || self.streams.iter().flat_map(|stream| &stream.lots);
        let counted = lots().filter(|(time, _)| (self.from..end).contains(time)).count();
        let missing = lots().filter(|(time, left)| (self.from..end).contains(time) && *left > 0).count();
        missing as f64 / counted.max(1) as f64
    }

    /// Until all clients had an event of a stream.
    pub fn to_all(&self, stream: usize) -> (f64, PercentilesMs) {
        (mean_ms(&self.to_all[stream]), self.to_all[stream].percentiles_ms())
    }

    /// The same over all streams.
    pub fn to_all_of_all(&self) -> (f64, PercentilesMs) {
        let mut all = Durations::default();
        self.to_all.iter().for_each(|one| all.add(one));
        (mean_ms(&all), all.percentiles_ms())
    }

    /// Until one client had an event.
    pub fn to_each(&self) -> PercentilesMs {
        self.to_each.percentiles_ms()
    }

    /// For each second: events that each client got of a stream, and milliseconds until all had what was published
    /// then (0 if nobody knows yet).
    pub fn series(&self, stream: usize) -> Vec<(f64, f64)> {
        let clients = f64::from(self.clients.max(1));
        let line = self.seconds[stream].iter().map(|second| {
            let delay = second.delay_ns as f64 / second.lots.max(1) as f64 / 1e6;
            (round(second.delivered as f64 / clients, 0), round(delay, 1))
        });
        line.collect()
    }
}

/// By quantiles, at most 1.6 % too much.
fn mean_ms(durations: &Durations) -> f64 {
    let sum: u64 = (0..100).map(|i| durations.quantile_ns((f64::from(i) + 0.5) / 100.0)).sum();
    round(sum as f64 / 1e8, 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broadcast::region_sim::net::MS;

    #[test]
    fn an_event_is_there_when_the_last_client_has_it() {
        let mut watch = Watch::new(2, vec![10], 0, SECOND);
        watch.published(MS, 0);
        watch.published(2 * MS, 0);
        watch.delivered(3 * MS, 0, 0, 15);
        watch.delivered(4 * MS, 0, 0, 20);
        assert_eq!(watch.missing(SECOND), 0.5);
        watch.delivered(5 * MS, 0, 15, 20);
        assert_eq!(watch.missing(SECOND), 0.0);
        let (mean, percentiles) = watch.to_all(0);
        assert!((mean - 3.0).abs() < 0.1 && (percentiles.max - 3.0).abs() < 0.1, "{mean} {percentiles:?}");
        assert_eq!(watch.events_s(), 20.0);
        assert_eq!(watch.series(0), vec![(20.0, 3.0)]);
    }
}
