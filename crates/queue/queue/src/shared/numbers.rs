//! Numbers of messages and queues, made by many front ends at once: the later the greater, as far as clocks agree.
//!
//! ```text
//! bit 63             22 21          10 9          0
//!    | milliseconds    | front end    | counter    |    since the beginning of 2020, for 139 years
//! ```
//!
//! No two front ends have the same place at the same time: each takes one of 4,096, as a record that ends unless it is
//! renewed, and makes no number when it could not renew it. A place is free again only after longer than clocks may
//! differ.

use parking_lot::Mutex;
use tailwater_env::{Env, Instant};

use crate::ids::Number;
use crate::request::QueueError;

/// The beginning of 2020, in milliseconds since the epoch.
const ORIGIN_MS: u64 = 1_577_836_800_000;
const COUNTER_BITS: u32 = 10;
const FRONT_BITS: u32 = 12;

/// Front ends at the same time.
pub(super) const FRONTS_MAX: u64 = 1 << FRONT_BITS;

/// How long a place is kept without being renewed, in seconds.
pub(super) const PLACE_S: u32 = 60;

/// When the message of a number was sent, in milliseconds since the epoch.
pub fn sent_at(number: Number) -> u64 {
    (number.0 >> (COUNTER_BITS + FRONT_BITS)) + ORIGIN_MS
}

/// The greatest number of all messages sent at a time, in milliseconds since the epoch.
pub(super) fn last_at(ms: u64) -> Number {
    const REST: u32 = COUNTER_BITS + FRONT_BITS;
    Number(ms.saturating_sub(ORIGIN_MS) << REST | ((1 << REST) - 1))
}

/// Makes numbers.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    state: Mutex<NumbersState>,
}

#[derive(Debug, Default)]
struct NumbersState {
    front: Option<(u64, Instant)>,
    last: u64,
}

impl Numbers {
    /// This front end has a place until then.
    pub(super) fn place(&self, front: u64, until: Instant) {
        self.state.lock().front = Some((front, until));
    }

    /// A number that nobody else has, not before `now_ms`.
    pub(super) fn next(&self, env: &Env, now_ms: u64) -> Result<Number, QueueError> {
        let mut state = self.state.lock();
        let (front, until) = state.front.ok_or(QueueError::Overloaded("the front end has no place yet"))?;
        if env.now() >= until {
            return Err(QueueError::Overloaded("the front end's place could not be renewed"));
        }
        // The last one's time and counter, counted up, or now.
        let counted = ((state.last >> (COUNTER_BITS + FRONT_BITS)) << COUNTER_BITS
            | state.last & ((1 << COUNTER_BITS) - 1))
            + 1;
        let next = counted.max(now_ms.saturating_sub(ORIGIN_MS) << COUNTER_BITS);
        let counter = next & ((1 << COUNTER_BITS) - 1);
        state.last = (next >> COUNTER_BITS) << (COUNTER_BITS + FRONT_BITS) | front << COUNTER_BITS | counter;
        Ok(Number(state.last))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[tokio::test]
    async fn numbers_grow_tell_their_time_and_are_never_the_same() {
        let env = Env::real();
        let (one, other) = (Numbers::default(), Numbers::default());
        assert!(one.next(&env, 0).is_err());
        let until = env.now() + std::time::Duration::from_secs(3_600);
        one.place(3, until);
        other.place(4, until);
        let now = ORIGIN_MS + 1_000;
        let mut all = BTreeSet::new();
        let mut last = Number(0);
        for _ in 0..5_000 {
            let number = one.next(&env, now).expect("a place");
            assert!(number > last);
            last = number;
            assert!(all.insert(number) && all.insert(other.next(&env, now).expect("a place")));
        }
        // 1,024 a millisecond, and then it is ahead of its clock.
        assert_eq!(sent_at(*all.first().expect("some")), now);
        assert_eq!(sent_at(last), now + 4);
        assert!(last < last_at(now + 4) && last > last_at(now + 3));
        assert_eq!(sent_at(one.next(&env, now + 500).expect("a place")), now + 500);
        one.place(3, env.now());
        assert!(one.next(&env, now).is_err());
    }
}
