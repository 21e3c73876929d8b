//! How often consumers at the tail are answered when they are many.
//!
//! A fetch that waits is answered as soon as there is a record, and its consumer asks again at once. While records keep
//! coming, that is an answer for each of them and for each consumer, and an answer costs the node some 20 us however
//! little is in it. So small answers are counted: where there are more than [`BEGIN_PER_S`], a connection's next fetch
//! is looked at only after a pause, and finds more. A consumer of a quiet topic is not concerned: the pause is over
//! before something comes.
//!
//! The pause follows the load in steps, a step for each [`WINDOW`]: longer while there are too many answers, shorter
//! while there are few. It begins late and ends early, as its first step is already longer than what some twenty
//! consumers are behind without it.

use std::time::Duration;

use parking_lot::Mutex;
use tailwater_env::Instant;

/// Small answers to all consumers together, in a second, beyond which there are pauses: half of a core.
const BEGIN_PER_S: u32 = 24_000;
/// Beyond which pauses get longer, once there are some.
const MANY_PER_S: u32 = 16_000;
/// Below which they get shorter.
const FEW_PER_S: u32 = 12_000;
/// Answers from this size on are not counted, and not followed by a pause: who catches up is not held up.
const SMALL_BYTES: usize = 256 << 10;
/// How often the pause changes.
const WINDOW: Duration = Duration::from_millis(10);
/// What it changes by.
const STEP: Duration = Duration::from_millis(1);
/// The longest one: what consumers are behind by then is still little beside what so many of them cause.
const PAUSE_MAX: Duration = Duration::from_millis(10);

const WINDOWS_PER_S: u32 = 1_000 / WINDOW.as_millis() as u32;

/// The pause of all connections.
#[derive(Debug, Default)]
pub(crate) struct Pace(Mutex<PaceState>);

#[derive(Debug, Default)]
struct PaceState {
    window: Option<Instant>,
    answers: u32,
    pause: Duration,
}

impl Pace {
    /// An answer of so many bytes goes out `now`; how long its connection's next fetch has to wait.
    pub(crate) fn answered(&self, now: Instant, bytes: usize) -> Duration {
        if bytes == 0 || bytes >= SMALL_BYTES {
            return Duration::ZERO;
        }
        let mut state = self.0.lock();
        let begin = *state.window.get_or_insert(now);
        let windows = u32::try_from(now.since(begin).as_nanos() / WINDOW.as_nanos()).unwrap_or(u32::MAX);
        if windows > 0 {
            // Between one and the other it stays as it is.
            let most = if state.pause.is_zero() { BEGIN_PER_S } else { MANY_PER_S };
            if state.answers > (most / WINDOWS_PER_S).saturating_mul(windows) {
                state.pause = (state.pause + STEP).min(PAUSE_MAX);
            } else if state.answers < (FEW_PER_S / WINDOWS_PER_S).saturating_mul(windows) {
                state.pause = state.pause.saturating_sub(STEP * windows);
            }
            (state.window, state.answers) = (Some(now), 0);
        }
        state.answers += 1;
        state.pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So many answers in every millisecond for `ms` of them; the pause behind them.
    fn pause_after(pace: &Pace, from_ms: u64, ms: u64, answers_per_ms: u32) -> Duration {
        let begin = Instant::default() + Duration::from_millis(from_ms);
        let mut pause = Duration::ZERO;
        for at in 0..ms {
            for _ in 0..answers_per_ms {
                pause = pace.answered(begin + Duration::from_millis(at), 1_000);
            }
        }
        pause
    }

    #[test]
    fn few_answers_are_given_at_once_and_many_ever_later_up_to_a_bound() {
        let pace = Pace::default();
        assert_eq!(pause_after(&pace, 0, 1_000, 10), Duration::ZERO);
        assert_eq!(pause_after(&pace, 1_000, 15, 64), STEP);
        assert_eq!(pause_after(&pace, 2_000, 1_000, 64), PAUSE_MAX);
    }

    #[test]
    fn a_load_that_is_bearable_without_a_pause_gets_back_there_behind_a_burst() {
        let pace = Pace::default();
        assert_eq!(pause_after(&pace, 0, 1_000, 20), Duration::ZERO);
        assert_eq!(pause_after(&pace, 1_000, 20, 64), STEP);
        assert_eq!(pause_after(&pace, 1_020, 100, 14), 2 * STEP, "neither many nor few");
        assert_eq!(
            pause_after(&pace, 1_120, 100, 11),
            Duration::ZERO,
            "sixteen consumers, each a pause later"
        );
        assert_eq!(pause_after(&pace, 1_220, 1_000, 20), Duration::ZERO);
    }

    #[test]
    fn the_pause_ends_with_the_load() {
        let pace = Pace::default();
        assert_eq!(pause_after(&pace, 0, 1_000, 64), PAUSE_MAX);
        assert_eq!(pause_after(&pace, 1_000, 200, 4), Duration::ZERO);
        assert_eq!(pause_after(&pace, 2_000, 1_000, 64), PAUSE_MAX);
        // And after days without any.
        assert_eq!(pause_after(&pace, 30 * 24 * 3_600_000, 1, 1), Duration::ZERO);
    }

    #[test]
    fn who_catches_up_is_not_held_up_and_does_not_count() {
        let pace = Pace::default();
        for at in 0..1_000_000 {
            let now = Instant::default() + Duration::from_micros(at);
            assert_eq!(pace.answered(now, SMALL_BYTES), Duration::ZERO);
        }
    }
}
