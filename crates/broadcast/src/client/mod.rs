//! What an application uses: [`Publisher`] and [`Listener`] (section 2.1's `publish` and `getEvent`).
//!
//! Both find the head or the tail of the region's chain by themselves, from any of its replicas' addresses, and
//! find the new one when it fails; neither loses nor repeats an event then.

mod link;
mod listener;
mod publisher;

pub use listener::{ListenError, Listener, Received};
pub use publisher::{PublishError, Publisher};
