//! How a server is bounded, as its configuration has it.

use std::time::Duration;

/// The limits of one session.
#[derive(Clone, Debug)]
pub(crate) struct SessionLimits {
    pub(crate) output_bytes_max: usize,
    pub(crate) hello_deadline: Duration,
    pub(crate) login_deadline: Duration,
    pub(crate) frame_deadline: Duration,
    pub(crate) drain_deadline: Duration,
    pub(crate) idle_deadline: Option<Duration>,
}
