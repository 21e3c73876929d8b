//! Hearing the tail: it is asked how far it is, so that it is never silent as long as it is there.

use std::time::Duration;

use tailwater_env::{Env, Instant};
use tokio::io::AsyncRead;

use crate::frame::FrameReader;
use crate::message::Message;

/// How often the tail is asked how far it is, if nothing else is said.
pub(super) const ASK: Duration = Duration::from_millis(500);
/// How long the tail may say nothing. The tail is asked how far it is at least thrice meanwhile.
const SILENCE_MAX: Duration = Duration::from_secs(3);

/// When a tail is asked how far it is, and for how long it was silent.
pub(super) struct Asking {
    env: Env,
    every: Duration,
    ask_at: Instant,
    /// Begins when it is waited for: what it said before had to be dealt with first.
    silence: Option<Silence>,
}

/// What is to be done next with a tail.
pub(super) enum Next {
    /// To send it this.
    Ask(Message),
    /// To deal with what it said.
    Said(Message),
}

impl Asking {
    /// It is asked at once, and then again and again, `every` so often, but within a third of what it may be silent
    /// for.
    pub(super) fn new(env: &Env, every: Duration) -> Self {
        Self { env: env.clone(), every: every.min(SILENCE_MAX / 3), ask_at: env.now(), silence: None }
    }

    /// Waits for what the tail at `address` says next, or until it is to be asked.
    ///
    /// # Errors
    /// If it closed the connection, or said nothing for too long.
    pub(super) async fn next<R: AsyncRead + Unpin>(
        &mut self,
        reader: &mut FrameReader<R>,
        address: &str,
    ) -> anyhow::Result<Next> {
        loop {
            let silence = self.silence.get_or_insert_with(|| Silence::new(&self.env, reader));
            let now = self.env.now();
            if now >= self.ask_at {
                self.ask_at = now + self.every;
                return Ok(Next::Ask(Message::Ask { at: now.as_ns() / 1_000_000 }));
            }
            match self.env.timeout(silence.until.min(self.ask_at).since(now), reader.next()).await {
                Some(next) => {
                    self.silence = None;
                    let said = next?.map(Next::Said);
                    return said.ok_or_else(|| anyhow::anyhow!("{address} closed the connection"));
                }
                None if silence.is_over(&self.env, reader) => {
                    anyhow::bail!("{address} said nothing for {SILENCE_MAX:?}")
                }
                None => {}
            }
        }
    }
}

/// Until when the tail may say nothing. While a part of a message comes it is not silent: where the link is slow that
/// takes long.
struct Silence {
    until: Instant,
    reads: u64,
}

impl Silence {
    fn new<R: AsyncRead + Unpin>(env: &Env, reader: &FrameReader<R>) -> Self {
        Self { until: env.now() + SILENCE_MAX, reads: reader.reads() }
    }

    /// Whether nothing came for too long.
    fn is_over<R: AsyncRead + Unpin>(&mut self, env: &Env, reader: &FrameReader<R>) -> bool {
        if self.reads != reader.reads() {
            *self = Self::new(env, reader);
        }
        env.now() >= self.until
    }
}
