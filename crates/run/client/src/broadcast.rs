//! Broadcasts: events that every listener of every region gets, and a local cache that they keep up to date.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use tailwater_client::broadcast::{Collect, Content, Listener, Positions, Publisher, Stream};
//!
//! let env = tailwater_env::Env::real();
//! let proxy = vec!["127.0.0.1:9400".to_owned()];
//! let stream = Stream::parse("local/prices")?;
//! let publisher = Publisher::new(&env, proxy.clone());
//! let price = Content { key: Some("tea".into()), payload: "4.20".into(), ..Content::default() };
//! publisher.publish(&stream, &price, Some(&Collect::SameKey)).await?;     // held by the whole chain
//!
//! let mut listener = Listener::new(&env, proxy, Positions::start());      // or Listener::sharing
//! loop {
//!     let event = listener.get_event().await?;                            // in place; `to_event` makes one to keep
//!     println!("{} {} {:?}", event.stream, event.seq(), event.payload());
//! }
//! # }
//! ```

mod invalidating;
mod of_cell;

use std::ops::ControlFlow;

pub use invalidating::{Cached, InvalidatingCache, InvalidatingConfig, Load};
pub use of_cell::{CELL_AS_OF_KEY, cell_event_key, cell_event_key_of};
pub use tailwater_broadcast::client::{
    Acknowledged, Count, HeardEvent, ListenError, Listener, PublishError, Publisher, Received, ReplicasAt,
    Sharing, SharingStats,
};
pub use tailwater_broadcast::region::{Options as RegionOptions, Stats as RegionStats};
pub use tailwater_broadcast::{Batch, Collect, Content, Event, Kind, Position, Positions, Stream};

/// Hands every event to `callback` until that breaks, the listener ends, a region has begun anew, or retention removed
/// what comes next: [`ListenError::Anew`] and [`ListenError::Removed`] are answered once, and called again it
/// goes on. Dropping the future ends it; the listener's positions then say where to go on.
pub async fn listen_with(
    listener: &mut Listener,
    mut callback: impl FnMut(HeardEvent<'_>) -> ControlFlow<()>,
) -> Result<(), ListenError> {
    loop {
        if callback(listener.get_event().await?).is_break() {
            return Ok(());
        }
    }
}
