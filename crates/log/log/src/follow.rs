//! Following a watermark of the journal that may have gaps.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use futures::FutureExt;
use tailwater_journal::{Incarnation, JournalPosition, WaitFor, WatermarkFollower};

use crate::slots::Slot;

/// A journal record that a shard waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Placed {
    pub(crate) journal: JournalPosition,
    pub(crate) slot: Slot,
}

/// Whether a record is covered by a watermark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Covered {
    /// It is.
    Yes,
    /// It may come.
    NotYet,
    /// It was lost.
    Never,
}

/// A watermark, and what waits for it in the order of the journal.
pub(crate) struct Follower {
    watermark: WatermarkFollower,
    incarnation: Incarnation,
    /// Nothing that is not covered by now ever will be.
    closed: bool,
    placed: VecDeque<Placed>,
    covered: Vec<Placed>,
    lost: Vec<Placed>,
}

impl Follower {
    pub(crate) fn new(watermark: WatermarkFollower) -> Self {
        Self {
            incarnation: watermark.incarnation(),
            watermark,
            closed: false,
            placed: VecDeque::new(),
            covered: Vec::new(),
            lost: Vec::new(),
        }
    }

    /// Whether nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.placed.is_empty()
    }

    /// How many wait.
    pub(crate) fn len(&self) -> usize {
        self.placed.len()
    }

    /// The journal is closed.
    pub(crate) fn close(&mut self) {
        self.closed = true;
    }

    /// Completes once the first record that waits is covered, or is known never to be.
    pub(crate) fn first(&self) -> Option<WaitFor> {
        Some(self.watermark.wait_for(self.placed.front()?.journal))
    }

    /// Adds a record that ends behind those placed before.
    pub(crate) fn place(&mut self, placed: Placed) {
        debug_assert!(self.placed.back().is_none_or(|last| last.journal < placed.journal));
        self.placed.push_back(placed);
    }

    /// The records that are covered by now, oldest first, and once each; of several that follow each other in one
    /// shard the last one stands for all. Lost ones are put aside for [`Follower::take_lost`].
    pub(crate) fn take_covered(&mut self) -> Vec<Placed> {
        // In this order: a watermark that has moved over lost records shows its incarnation too.
        let position = self.watermark.position();
        let incarnation = self.watermark.incarnation();
        let may_have_gaps = incarnation != self.incarnation || self.closed;
        while let Some(&placed) = self.placed.front() {
            let covered = if may_have_gaps {
                look(&self.watermark, placed.journal)
            } else if placed.journal <= position {
                Covered::Yes
            } else {
                Covered::NotYet
            };
            match covered {
                Covered::NotYet => break,
                Covered::Yes => match self.covered.last_mut().filter(|last| last.slot == placed.slot) {
                    Some(last) => last.journal = placed.journal,
                    None => self.covered.push(placed),
                },
                Covered::Never => self.lost.push(placed),
            }
            self.placed.pop_front();
        }
        self.incarnation = incarnation;
        std::mem::take(&mut self.covered)
    }

    /// The records that were lost, since the last call.
    pub(crate) fn take_lost(&mut self) -> Vec<Placed> {
        std::mem::take(&mut self.lost)
    }
}

/// Whether a record is covered by a watermark that may have gaps.
pub(crate) fn look(watermark: &WatermarkFollower, position: JournalPosition) -> Covered {
    let mut wait = watermark.wait_for(position);
    match Pin::new(&mut wait).poll_unpin(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Ok(())) => Covered::Yes,
        Poll::Ready(Err(_)) => Covered::Never,
        Poll::Pending => Covered::NotYet,
    }
}
