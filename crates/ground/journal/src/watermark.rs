//! How far the journal is written, and durable; and waiting for it.
//!
//! Moved forward by the writer's thread only, looked at by anyone. A wait is kept sorted by the position that
//! it waits for, so that one sync wakes those that it completes and nobody else, however many wait.

use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

use crate::limits::GAPS_MAX;
use crate::position::{Incarnation, JournalPosition};

/// The record that was waited for will not be acknowledged.
///
/// It was cut after a failure of the disk, or the journal was closed first. Until a further file was begun a
/// crash of the machine may still bring it back, as after any failed write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the journal lost records and is at incarnation {incarnation}{}", if *.closed { ", and closed" } else { "" })]
pub struct Lost {
    /// The journal's incarnation, which the next append has to name.
    pub incarnation: Incarnation,
    /// The journal is closed.
    pub closed: bool,
}

/// Follows one watermark: [`crate::Journal::durable`] or [`crate::Journal::written`].
#[derive(Clone, Debug)]
pub struct WatermarkFollower {
    watermark: Arc<Watermark>,
    seen: JournalPosition,
    incarnation_seen: Incarnation,
}

impl WatermarkFollower {
    /// Everything up to here that was not reported [`Lost`] has this watermark's property. Never goes back.
    pub fn position(&self) -> JournalPosition {
        self.watermark.position()
    }

    /// The journal's incarnation.
    pub fn incarnation(&self) -> Incarnation {
        self.watermark.incarnation()
    }

    /// Completes once the record that ends at `position` is covered, or is known never to be. Dropping it has
    /// no effect on the record. A `position` beyond what was appended waits for the records to come.
    pub fn wait_for(&self, position: JournalPosition) -> WaitFor {
        WaitFor { watermark: Arc::clone(&self.watermark), position, registered: None }
    }

    /// Completes when the watermark is beyond what this handle last answered here, with its position; or when
    /// records were lost since, once for each time this is seen. After the close it answers `Lost` always.
    pub async fn changed(&mut self) -> Result<JournalPosition, Lost> {
        let wait = Changed {
            watermark: Arc::clone(&self.watermark),
            seen: self.seen,
            incarnation_seen: self.incarnation_seen,
            registered: None,
        };
        let answer = wait.await;
        match answer {
            Ok(position) => self.seen = position,
            Err(lost) => self.incarnation_seen = lost.incarnation,
        }
        answer
    }
}

/// See [`WatermarkFollower::wait_for`].
#[derive(Debug)]
#[must_use = "futures do nothing unless awaited"]
pub struct WaitFor {
    watermark: Arc<Watermark>,
    position: JournalPosition,
    registered: Option<WaiterKey>,
}

impl Future for WaitFor {
    type Output = Result<(), Lost>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if this.watermark.passed_without_gap(this.position) {
            return Poll::Ready(Ok(()));
        }
        let mut state = this.watermark.state.lock();
        if let Some(answer) = this.watermark.check(&state, this.position) {
            return Poll::Ready(answer);
        }
        state.register(&mut this.registered, this.position, context.waker());
        Poll::Pending
    }
}

impl Drop for WaitFor {
    fn drop(&mut self) {
        self.watermark.forget(self.registered);
    }
}

struct Changed {
    watermark: Arc<Watermark>,
    seen: JournalPosition,
    incarnation_seen: Incarnation,
    registered: Option<WaiterKey>,
}

impl Future for Changed {
    type Output = Result<JournalPosition, Lost>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let mut state = this.watermark.state.lock();
        let incarnation = this.watermark.incarnation();
        if incarnation != this.incarnation_seen {
            return Poll::Ready(Err(Lost { incarnation, closed: state.closed }));
        }
        let position = this.watermark.position();
        if position > this.seen {
            return Poll::Ready(Ok(position));
        }
        if state.closed {
            return Poll::Ready(Err(Lost { incarnation, closed: true }));
        }
        state.register(&mut this.registered, this.seen.plus(1), context.waker());
        Poll::Pending
    }
}

impl Drop for Changed {
    fn drop(&mut self) {
        self.watermark.forget(self.registered);
    }
}

/// What a waiter waits for, and its number among those that wait for the same.
type WaiterKey = (JournalPosition, u64);

/// One watermark.
#[derive(Debug)]
pub(crate) struct Watermark {
    /// Written by the writer's thread, under `state`; read by anyone. Its release publishes `gap_end`.
    position: AtomicU64,
    /// The end of the newest gap; written before the position moves over it.
    gap_end: AtomicU64,
    /// Written by the writer's thread, under `state`; read by anyone.
    incarnation: AtomicU64,
    state: Mutex<WatermarkState>,
}

#[derive(Debug, Default)]
struct WatermarkState {
    /// Ranges (after, up to) of lost records, oldest first.
    gaps: VecDeque<(JournalPosition, JournalPosition)>,
    /// Whether a position up to here was lost is not known any more.
    forgotten: JournalPosition,
    waiters: BTreeMap<WaiterKey, Waker>,
    waiters_ever: u64,
    closed: bool,
}

impl WatermarkState {
    fn register(&mut self, registered: &mut Option<WaiterKey>, position: JournalPosition, waker: &Waker) {
        let key = *registered.get_or_insert_with(|| {
            self.waiters_ever += 1;
            (position, self.waiters_ever)
        });
        match self.waiters.get_mut(&key) {
            Some(known) => known.clone_from(waker),
            None => {
                self.waiters.insert(key, waker.clone());
            }
        }
    }
}

impl Watermark {
    pub(crate) fn new(position: JournalPosition, incarnation: Incarnation) -> Arc<Self> {
        Arc::new(Self {
            position: AtomicU64::new(position.0),
            gap_end: AtomicU64::new(0),
            incarnation: AtomicU64::new(incarnation.0),
            state: Mutex::new(WatermarkState::default()),
        })
    }

    pub(crate) fn follow(self: &Arc<Self>) -> WatermarkFollower {
        WatermarkFollower {
            watermark: Arc::clone(self),
            seen: self.position(),
            incarnation_seen: self.incarnation(),
        }
    }

    fn position(&self) -> JournalPosition {
        JournalPosition(self.position.load(Ordering::Acquire))
    }

    fn incarnation(&self) -> Incarnation {
        Incarnation(self.incarnation.load(Ordering::Acquire))
    }

    /// Moves the watermark and wakes those who waited for it.
    pub(crate) fn advance(&self, position: JournalPosition) {
        let mut state = self.state.lock();
        let before = self.position();
        assert!(before <= position, "a watermark moves forward only: {before} to {position}");
        if before == position {
            return;
        }
        self.position.store(position.0, Ordering::Release);
        let rest = state.waiters.split_off(&(position.plus(1), 0));
        let woken = std::mem::replace(&mut state.waiters, rest);
        drop(state);
        woken.into_values().for_each(Waker::wake);
    }

    /// Notes that records in (`after`, `upto`] were lost and wakes everyone.
    pub(crate) fn lose(&self, after: JournalPosition, upto: JournalPosition, incarnation: Incarnation) {
        let mut state = self.state.lock();
        if upto > after {
            self.gap_end.store(upto.0, Ordering::Release);
            state.gaps.push_back((after, upto));
            if state.gaps.len() > GAPS_MAX {
                let (_, forgotten) = state.gaps.pop_front().expect("there are many");
                state.forgotten = forgotten;
            }
        }
        self.incarnation.store(incarnation.0, Ordering::Release);
        let woken = std::mem::take(&mut state.waiters);
        drop(state);
        woken.into_values().for_each(Waker::wake);
    }

    /// What is not covered by now never will be.
    pub(crate) fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        let woken = std::mem::take(&mut state.waiters);
        drop(state);
        woken.into_values().for_each(Waker::wake);
    }

    fn passed_without_gap(&self, position: JournalPosition) -> bool {
        // The load of the watermark comes first: it acquires the end of every gap that it has moved over.
        position <= self.position() && position.0 > self.gap_end.load(Ordering::Acquire)
    }

    fn check(&self, state: &WatermarkState, position: JournalPosition) -> Option<Result<(), Lost>> {
        let lost = Lost { incarnation: self.incarnation(), closed: state.closed };
        if position <= state.forgotten {
            return Some(Err(lost));
        }
        if state.gaps.iter().any(|(after, upto)| *after < position && position <= *upto) {
            return Some(Err(lost));
        }
        if position <= self.position() {
            return Some(Ok(()));
        }
        state.closed.then_some(Err(lost))
    }

    fn forget(&self, registered: Option<WaiterKey>) {
        if let Some(key) = registered {
            self.state.lock().waiters.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    struct Waiting {
        wait: WaitFor,
        wakes: Arc<Wakes>,
    }

    impl Waiting {
        fn begin(watermark: &Arc<Watermark>, position: u64) -> Self {
            let wait = watermark.follow().wait_for(JournalPosition(position));
            let mut waiting = Self { wait, wakes: Arc::default() };
            assert_eq!(waiting.poll(), None);
            waiting
        }

        fn poll(&mut self) -> Option<Result<(), Lost>> {
            let waker = Waker::from(Arc::clone(&self.wakes));
            match Pin::new(&mut self.wait).poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(answer) => Some(answer),
                Poll::Pending => None,
            }
        }

        fn wakes(&self) -> usize {
            self.wakes.0.load(Ordering::Relaxed)
        }
    }

    fn watermark() -> Arc<Watermark> {
        Watermark::new(JournalPosition(100), Incarnation(1))
    }

    #[test]
    fn an_advance_wakes_those_whose_record_is_covered_and_nobody_else() {
        let watermark = watermark();
        let mut near = Waiting::begin(&watermark, 150);
        let mut far = Waiting::begin(&watermark, 151);
        watermark.advance(JournalPosition(150));
        assert_eq!((near.wakes(), far.wakes()), (1, 0));
        assert_eq!(near.poll(), Some(Ok(())));
        assert_eq!(far.poll(), None);
    }

    #[test]
    fn a_lost_record_stays_lost_when_the_watermark_moves_over_it() {
        let watermark = watermark();
        let mut cut = Waiting::begin(&watermark, 180);
        let mut later = Waiting::begin(&watermark, 250);
        watermark.lose(JournalPosition(150), JournalPosition(200), Incarnation(2));
        let lost = Lost { incarnation: Incarnation(2), closed: false };
        assert_eq!(cut.poll(), Some(Err(lost)));
        assert_eq!(later.poll(), None);
        watermark.advance(JournalPosition(250));
        assert_eq!(later.poll(), Some(Ok(())));
        for (position, answer) in
            [(150, Ok(())), (151, Err(lost)), (200, Err(lost)), (201, Ok(())), (100, Ok(()))]
        {
            let mut wait = watermark.follow().wait_for(JournalPosition(position));
            let waker = Waker::noop();
            let polled = Pin::new(&mut wait).poll(&mut Context::from_waker(waker));
            assert_eq!(polled, Poll::Ready(answer), "position {position}");
        }
    }

    #[test]
    fn a_close_answers_those_who_still_wait() {
        let watermark = watermark();
        let mut wait = Waiting::begin(&watermark, 101);
        watermark.close();
        assert_eq!(wait.poll(), Some(Err(Lost { incarnation: Incarnation(1), closed: true })));
    }

    #[test]
    fn a_dropped_wait_leaves_nothing_behind() {
        let watermark = watermark();
        drop(Waiting::begin(&watermark, 101));
        assert!(watermark.state.lock().waiters.is_empty());
    }

    #[test]
    fn a_follower_sees_each_advance_and_each_loss_once() {
        let watermark = watermark();
        let mut follower = watermark.follow();
        watermark.advance(JournalPosition(120));
        watermark.lose(JournalPosition(120), JournalPosition(130), Incarnation(2));
        let next = |follower: &mut WatermarkFollower| futures::executor::block_on(follower.changed());
        assert_eq!(next(&mut follower), Err(Lost { incarnation: Incarnation(2), closed: false }));
        assert_eq!(next(&mut follower), Ok(JournalPosition(120)));
        watermark.close();
        assert_eq!(next(&mut follower), Err(Lost { incarnation: Incarnation(2), closed: true }));
    }

    #[test]
    fn gaps_that_were_forgotten_count_as_lost() {
        let watermark = watermark();
        for gap in 0..=GAPS_MAX as u64 {
            let after = JournalPosition(100 + gap * 10);
            watermark.advance(after);
            watermark.lose(after, after.plus(5), Incarnation(2 + gap));
        }
        assert_eq!(watermark.state.lock().gaps.len(), GAPS_MAX);
        let answer = futures::executor::block_on(watermark.follow().wait_for(JournalPosition(103)));
        assert!(answer.is_err());
    }
}
