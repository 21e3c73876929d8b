//! Receiving from a queue without groups.

use super::{Queue, QueueReceived, Want};
use crate::ids::Token;
use crate::limits::MOVE_STEP;
use crate::settings::OrderHint;

impl Queue {
    pub(super) fn receive_standard(
        &mut self,
        now: u64,
        want: &Want,
        random_below: &mut dyn FnMut(u64) -> u64,
    ) -> QueueReceived {
        let mut received = QueueReceived::default();
        let mut handed_out = Vec::new();
        while received.taken.len() < want.count && received.overdue.len() < MOVE_STEP {
            let Self { index, pages, .. } = self;
            let at = |sequence| pages.get(sequence).map_or(0, |entry| entry.visible_at);
            let count = want.count - received.taken.len();
            let (tuples, passed) = match self.settings.order_hint {
                OrderHint::Infinity => (index.take_any(count, at, &mut *random_below), 0),
                OrderHint::K(hint) => index.take(count, hint, at, &mut *random_below),
                // One process has no duplicates that order could be given up for.
                OrderHint::Auto => index.take(count, 1, at, &mut *random_below),
            };
            self.happened.displaced += passed;
            if tuples.is_empty() {
                break;
            }
            for (_, sequence) in tuples {
                let Some(entry) = self.pages.get(sequence) else { continue };
                if self.is_overdue(&entry, want) {
                    received.overdue.extend(self.begin_move(sequence, now));
                    continue;
                }
                let token = Token(random_below(1 << 32) as u32);
                received.taken.extend(self.hand_out(sequence, now, want.visibility_ms, token));
                handed_out.push(sequence);
            }
        }
        // Only now: what is visible at once again must not come twice.
        for sequence in handed_out {
            self.list(sequence, now);
        }
        received
    }
}
