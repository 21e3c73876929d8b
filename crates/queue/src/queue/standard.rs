//! Receiving from a queue without groups.

use super::{Queue, Received, Want};
use crate::ids::Token;
use crate::limits::MOVE_STEP;

impl Queue {
    pub(super) fn receive_standard(
        &mut self,
        now: u64,
        want: &Want,
        random_below: &mut dyn FnMut(u64) -> u64,
    ) -> Received {
        let mut received = Received::default();
        let hint = self.settings.order_hint.get();
        let mut handed_out = Vec::new();
        while received.taken.len() < want.count && received.overdue.len() < MOVE_STEP {
            let Self { index, pages, .. } = self;
            let at = |sequence| pages.get(sequence).map_or(0, |entry| entry.visible_at);
            let tuples = index.take(want.count - received.taken.len(), hint, at, &mut *random_below);
            if tuples.is_empty() {
                break;
            }
            for (_, sequence) in tuples {
                let Some(entry) = self.pages.get(sequence).copied() else { continue };
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
