//! What an application uses: [`Publisher`] and [`Listener`] (section 2.1's `publish` and `getEvent`).
//!
//! Both find the head or the tail of the region's chain by themselves, from any of its replicas' addresses, and
//! find the new one when it fails; neither loses nor repeats an event then. A listener is sent events by the tail, or
//! [shares](Listener::sharing) them with the region's other listeners.

mod asking;
mod link;
mod listener;
mod publisher;
pub mod queue;
mod received;
mod sharing;

pub use link::{Newest, ReplicasAt};
pub use listener::{HeardEvent, Listener};
pub use publisher::{PublishError, Publisher};
pub use queue::Acknowledged;
pub use received::{Count, ListenError, Received};
pub use sharing::{Sharing, SharingStats};
