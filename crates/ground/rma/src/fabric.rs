//! Reads over libfabric: RDMA, and what does as it does.
//!
//! ```text
//! client == TCP ============== server's engines      HELLO, FABRIC, SCAR, WATCH, CALL; READ where this fails
//!    |                             |  told: name, keys
//!    +----- libfabric: fi_read --- endpoint, registered regions
//! ```
//!
//! A server's [`host`] registers its regions, and says by which keys they are read. A client's [`initiator`] reads by
//! them. Both go by what libfabric's provider needs: one of hardware serves by itself; one of software is driven by the
//! threads here.
//!
//! A key is the permission to read a region. So keys are random where the provider lets them be, and new ones are made
//! with a new endpoint when somebody who was told them is admitted no longer, or when regions have moved.

#[allow(unsafe_code)]
mod ffi;
pub(crate) mod host;
pub(crate) mod initiator;
pub(crate) mod pool;

use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

/// Looks at an endpoint without a descriptor that bring nothing, until the thread that drives it pauses between them.
const LOOKS_AT_ONCE: u32 = 50;
/// The first pause. It doubles from look to look.
const LOOK_AFTER: Duration = Duration::from_micros(20);
/// The longest pause between two looks at an endpoint without a descriptor.
const LOOK_AFTER_MAX: Duration = Duration::from_millis(1);

/// The address of IP that an endpoint is opened with; the others have names of their own.
fn node_of(provider: &str, ip: IpAddr) -> Option<String> {
    let of_ip = ["tcp", "verbs", "net", "sockets", "udp"];
    of_ip.iter().any(|name| provider.split(';').any(|part| part == *name)).then(|| ip.to_string())
}

/// Something that a thread here waits for beside its endpoint.
struct Waker(OwnedFd);

impl Waker {
    fn new() -> std::io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?))
    }

    fn wake(&self) {
        // The counter cannot overflow: it would take longer than anybody wakes.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Waits until it is woken, `other` has something, or the time is over; no time is for ever.
    fn wait(&self, other: Option<&OwnedFd>, time: Option<Duration>) {
        let time = time.map(|time| Timespec {
            tv_sec: time.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: time.subsec_nanos().into(),
        });
        let own = PollFd::from_borrowed_fd(self.0.as_fd(), PollFlags::IN);
        let mut waited = vec![own];
        waited.extend(other.map(|other| PollFd::from_borrowed_fd(other.as_fd(), PollFlags::IN)));
        // Interrupted, it is looked again.
        let _ = poll(&mut waited, time.as_ref());
        if !waited[0].revents().is_empty() {
            // Only empties it.
            let _ = rustix::io::read(&self.0, &mut [0u8; 8]);
        }
    }
}

/// How long to wait before an endpoint without a descriptor is looked at again.
#[derive(Default)]
struct Looks(u32);

impl Looks {
    /// The last look brought something.
    fn found(&mut self) {
        self.0 = 0;
    }

    fn pause(&mut self) -> Duration {
        self.0 = self.0.saturating_add(1);
        let doublings = self.0.saturating_sub(LOOKS_AT_ONCE);
        if doublings == 0 {
            return Duration::ZERO;
        }
        (LOOK_AFTER * (1 << (doublings - 1).min(10))).min(LOOK_AFTER_MAX)
    }
}

#[cfg(test)]
mod tests;
