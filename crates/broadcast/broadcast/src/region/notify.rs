//! Tells others how far a member has come: F of its neighbours, which are others after each shuffle, at most once in
//! so many milliseconds, and only what they were not told and have not told themselves. Who has told everybody in its
//! view is silent.

use std::collections::BTreeMap;

use crate::name::Stream;

use super::message::{Member, Message, RegionProgress};
use super::options::Options;
use super::rng::RegionRng;

/// Milliseconds after which a member that was told of progress and asked for nothing is told again.
pub(crate) const AGAIN_MS: u64 = 5_000;
/// What a member knows of a stream with which it is fed from here: all, also what is to come.
pub(super) const FED_HERE: u64 = u64::MAX;
/// Members outside the view that are told.
const DIRECT_MAX: usize = 1 << 16;

#[derive(Debug)]
pub(super) struct Notifier {
    streams: Vec<RegionProgress>,
    /// What each neighbour was told.
    told: BTreeMap<u64, NotifyTold>,
    /// Whom to tell until the next shuffle.
    chosen: Vec<u64>,
    /// Those that are told always, because nobody else does.
    direct: BTreeMap<u64, NotifyTold>,
    /// As [`AGAIN_MS`], or 0 where everybody has to ask.
    again_ms: u64,
    fanout: usize,
    notify_ms: u64,
    shuffle_ms: u64,
    shuffle_at_ms: u64,
    flush_at_ms: u64,
    /// Whether there is something that the chosen ones may not know.
    news: bool,
    /// From when on there may be others who do not know all, and have to be chosen.
    rest_ms: u64,
    /// Until then nobody is to be told, whatever is new of the streams so far: all wait to be told again, or are fed
    /// here.
    asleep_ms: u64,
}

/// What one was told. It is told more when it has asked, so that one that is slow, or fed, costs little.
#[derive(Debug, Default)]
struct NotifyTold {
    /// The count of each stream.
    counts: Vec<u64>,
    waits_since_ms: Option<u64>,
}

impl NotifyTold {
    fn of(&self, index: usize) -> u64 {
        self.counts.get(index).copied().unwrap_or(0)
    }

    /// From when on it is to be told: at once if it has asked since, or there is a stream that it was never told of.
    fn due_ms(&self, again_ms: u64, mut news: impl Iterator<Item = usize>) -> u64 {
        let waits = self.waits_since_ms.filter(|_| news.all(|index| self.of(index) > 0));
        waits.map_or(0, |since| since.saturating_add(again_ms))
    }
}

impl Notifier {
    pub(super) fn new(options: &Options) -> Self {
        Self {
            streams: Vec::new(),
            told: BTreeMap::new(),
            chosen: Vec::new(),
            direct: BTreeMap::new(),
            again_ms: if options.feeds == 0 { 0 } else { AGAIN_MS },
            fanout: options.fanout,
            notify_ms: options.notify_ms,
            shuffle_ms: options.shuffle_ms,
            shuffle_at_ms: 0,
            flush_at_ms: 0,
            news: false,
            rest_ms: u64::MAX,
            asleep_ms: 0,
        }
    }

    /// How it stands with a stream; whether there is more of it. Streams are numbered in the order in which they come
    /// here first.
    pub(super) fn progress(&mut self, index: usize, progress: RegionProgress) -> bool {
        if index == self.streams.len() {
            self.streams.push(RegionProgress { count: 0, ..progress.clone() });
            self.asleep_ms = 0;
        }
        let known = &self.streams[index];
        if progress.lineage != known.lineage {
            // What others were told was of other events.
            for told in self.told.values_mut().chain(self.direct.values_mut()) {
                told.counts.get_mut(index).into_iter().for_each(|count| *count = 0);
            }
            self.asleep_ms = 0;
        }
        let more = (progress.lineage, progress.count) != (known.lineage, known.count);
        self.news |= more;
        self.streams[index] = progress;
        more
    }

    /// Whether that is how it stands with a stream already, so that [`progress`](Self::progress) has nothing to take
    /// over.
    pub(super) fn is_at(&self, index: usize, lineage: u64, (held, count): (u64, u64), hops: u8) -> bool {
        self.streams.get(index).is_some_and(|known| {
            (known.lineage, known.held, known.count, known.hops) == (lineage, held, count, hops)
        })
    }

    /// The view has changed: there may be somebody to tell.
    pub(super) fn view_changed(&mut self, members: &[u64]) {
        self.told.retain(|id, _| members.contains(id));
        self.chosen.retain(|id| members.contains(id));
        self.look_around();
    }

    /// A member whose connection ended, or that came back: it knows nothing.
    pub(super) fn forget(&mut self, id: u64) {
        self.told.remove(&id);
        self.chosen.retain(|chosen| *chosen != id);
        self.direct.remove(&id);
        self.look_around();
    }

    /// There may be somebody who has not been told all.
    fn look_around(&mut self) {
        self.asleep_ms = 0;
        if !self.streams.is_empty() {
            self.rest_ms = 0;
        }
    }

    /// A member that nobody else tells.
    pub(super) fn add_direct(&mut self, id: u64) {
        if self.direct.len() < DIRECT_MAX {
            self.direct.entry(id).or_default();
            (self.news, self.asleep_ms) = (true, 0);
        }
    }

    /// A member has asked for something.
    pub(super) fn asked(&mut self, id: u64) {
        self.asleep_ms = 0;
        for told in [self.told.get_mut(&id), self.direct.get_mut(&id)].into_iter().flatten() {
            self.news |= told.waits_since_ms.take().is_some();
        }
    }

    /// When there is something to tell.
    pub(super) fn due_ms(&self) -> u64 {
        let news = if self.news { self.flush_at_ms.max(self.asleep_ms) } else { u64::MAX };
        news.min(self.rest_ms.max(self.shuffle_at_ms).max(self.flush_at_ms))
    }

    /// Tells those whose turn it is, if it is time. `neighbours` are those of the view that are told at all; `knows`
    /// is what a member has said of its own count of a stream, or [`FED_HERE`]; who is `busy` is told later.
    pub(super) fn flush<'a>(
        &mut self,
        now_ms: u64,
        rng: &mut RegionRng,
        neighbours: impl Iterator<Item = &'a Member>,
        knows: impl Fn(u64, &Stream, usize) -> u64,
        busy: impl Fn(u64) -> bool,
        mut send: impl FnMut(u64, Message),
    ) {
        if now_ms < self.due_ms() {
            return;
        }
        self.news = false;
        self.flush_at_ms = now_ms + self.notify_ms;
        let shuffle = now_ms >= self.shuffle_at_ms || self.chosen.is_empty();
        let mut rest_ms = if shuffle { u64::MAX } else { 0 };
        self.asleep_ms = 0;
        if shuffle {
            let mut ids: Vec<u64> = neighbours.map(|member| member.id).collect();
            if self.again_ms > 0 {
                // Most are fed, and are told of progress seldom: it is no use to choose those.
                let mut asleep_ms = if self.direct.is_empty() { u64::MAX } else { 0 };
                let is_fed = |id: u64| {
                    self.streams.iter().enumerate().all(|(at, of)| knows(id, &of.stream, at) == FED_HERE)
                };
                ids.retain(|id| {
                    let news = self.due_news(now_ms, *id, &knows);
                    let until_ms = news.as_ref().err().copied();
                    rest_ms = rest_ms.min(until_ms.unwrap_or(u64::MAX));
                    // Who has just been told all, and is not fed, is told of the next news at once.
                    let waits = until_ms.filter(|until_ms| *until_ms < u64::MAX || is_fed(*id));
                    asleep_ms = asleep_ms.min(waits.unwrap_or(0));
                    news.is_ok()
                });
                // Who is fed may be left, which is not heard of here.
                self.asleep_ms = asleep_ms.min(now_ms + self.again_ms);
            }
            let fanout = self.fanout.min(ids.len());
            rng.draw(&mut ids, fanout);
            // Those beyond are told after a later shuffle, if nobody else has told them by then.
            if ids[fanout..].iter().any(|id| self.news_for(*id, &knows).next().is_some()) {
                rest_ms = 0;
            }
            ids.truncate(fanout);
            self.chosen = ids;
            self.shuffle_at_ms = now_ms + self.shuffle_ms;
        }
        for at in 0..self.chosen.len() {
            let id = self.chosen[at];
            match self.due_news(now_ms, id, &knows) {
                Err(until_ms) => rest_ms = rest_ms.min(until_ms),
                Ok(_) if busy(id) => rest_ms = 0,
                Ok(news) => {
                    let told = self.told.entry(id).or_default();
                    told.waits_since_ms = Some(now_ms);
                    send(id, tell(&self.streams, &mut told.counts, &news));
                }
            }
        }
        for (id, told) in &mut self.direct {
            let more = |index: &usize| {
                let progress = &self.streams[*index];
                progress.count > told.of(*index) && progress.count > knows(*id, &progress.stream, *index)
            };
            let news: Vec<usize> = (0..self.streams.len()).filter(more).collect();
            if news.is_empty() {
                continue;
            }
            let due_ms = told.due_ms(AGAIN_MS, news.iter().copied());
            if busy(*id) || due_ms > now_ms {
                rest_ms = rest_ms.min(due_ms);
                continue;
            }
            told.waits_since_ms = Some(now_ms);
            send(*id, tell(&self.streams, &mut told.counts, &news));
        }
        self.rest_ms = rest_ms;
    }

    /// Tells a member at once, whatever it was told before: for one that has just been heard of.
    pub(super) fn greet(&mut self, to: u64) -> Option<Message> {
        if self.streams.iter().all(|progress| progress.count == 0) {
            return None;
        }
        let mut counts = Vec::new();
        let all: Vec<usize> = (0..self.streams.len()).collect();
        let message = tell(&self.streams, &mut counts, &all);
        if let Some(told) = self.told.get_mut(&to) {
            told.counts = counts;
        }
        Some(message)
    }

    /// The streams of which a member is to be told now, or until when there is nothing to tell it; that is for ever if
    /// it knows all.
    fn due_news(
        &self,
        now_ms: u64,
        id: u64,
        knows: &impl Fn(u64, &Stream, usize) -> u64,
    ) -> Result<Vec<usize>, u64> {
        let told = self.told.get(&id);
        let due_ms =
            |told: &NotifyTold, which: &mut dyn Iterator<Item = usize>| told.due_ms(self.again_ms, which);
        // Nearly always it was told of all streams, and has not asked: then nobody need look what is new to it.
        let mut all = (0..self.streams.len()).filter(|index| self.streams[*index].count > 0);
        if let Some(until_ms) = told.map(|told| due_ms(told, &mut all)).filter(|until_ms| *until_ms > now_ms)
        {
            return Err(until_ms);
        }
        let news: Vec<usize> = self.news_for(id, knows).collect();
        if news.is_empty() {
            return Err(u64::MAX);
        }
        let until_ms = told.map_or(0, |told| due_ms(told, &mut news.iter().copied()));
        if until_ms > now_ms { Err(until_ms) } else { Ok(news) }
    }

    /// The streams of which a member does not know all.
    fn news_for(&self, id: u64, knows: &impl Fn(u64, &Stream, usize) -> u64) -> impl Iterator<Item = usize> {
        let told = self.told.get(&id);
        (0..self.streams.len()).filter(move |&index| {
            let RegionProgress { stream, count, .. } = &self.streams[index];
            let told = told.map_or(0, |told| told.of(index));
            *count > told && *count > knows(id, stream, index)
        })
    }
}

/// The message that tells of some streams, noted in `counts`.
fn tell(streams: &[RegionProgress], counts: &mut Vec<u64>, which: &[usize]) -> Message {
    counts.resize(streams.len(), 0);
    which.iter().for_each(|&index| counts[index] = streams[index].count);
    Message::Notify(which.iter().map(|&index| streams[index].clone()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn once_all_neighbours_were_told_nothing_is_due_until_the_first_of_them_may_be_told_again() {
        let options = Options::default();
        let mut notifier = Notifier::new(&options);
        let neighbours: Vec<Member> = (1..=12).map(|id| Member { id, address: "there:1".into() }).collect();
        notifier.view_changed(&neighbours.iter().map(|member| member.id).collect::<Vec<_>>());
        let mut rng = RegionRng::new(1);
        let mut told: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        let stream = Stream::parse("eu/prices").unwrap();
        let progress = |notifier: &mut Notifier, count| {
            notifier
                .progress(0, RegionProgress { stream: stream.clone(), lineage: 0, held: 0, count, hops: 1 });
        };
        // Something new every 40 ms for a second, and nothing after that.
        let (mut steps, mut now_ms) = (0, 0);
        while now_ms < 10_000 {
            if now_ms % 40 == 0 && now_ms < 1_000 {
                progress(&mut notifier, now_ms / 40 + 1);
            }
            steps += u64::from(notifier.due_ms() <= now_ms);
            notifier.flush(
                now_ms,
                &mut rng,
                neighbours.iter(),
                |_, _, _| 0,
                |_| false,
                |id, _| {
                    told.entry(id).or_default().push(now_ms);
                },
            );
            now_ms += 1;
        }
        assert!(neighbours.iter().all(|member| told[&member.id].len() == 2), "{told:?}");
        assert!(told.values().all(|times| times[1] - times[0] >= AGAIN_MS), "{told:?}");
        // To tell those whose time has come, and once more to find that all wait.
        assert!(steps <= 2 * 12 + 1, "{steps} steps");
    }
}
