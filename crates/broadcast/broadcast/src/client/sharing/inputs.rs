//! What comes for the core, and from whom: whoever has something takes the core's lock, gives it all that there is, and
//! carries out what follows, in its own task. So what a connection brings is dealt with, passed on and handed over
//! without waking anybody else but the application.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::core::Core;
use super::outbox::Outbox;
use super::{LinkId, SharingStats};
use crate::message::Message;
use crate::name::Stream;
use crate::positions::Position;
use crate::region::Member;

/// Something for the core.
pub(super) enum Input {
    /// The tail is there, or there again, and says where the listener begins, and in which regions anew: with their
    /// lineages.
    Proxy {
        link: LinkId,
        proxy: Member,
        began: Vec<(Stream, Position)>,
        anew: Vec<(String, u64)>,
        writer: Arc<Outbox>,
    },
    /// Another listener has connected.
    Opened { link: LinkId, member: Member, writer: Outbox },
    /// A message came.
    Message(LinkId, Message),
    /// Some of much that waited has left.
    Drained(LinkId),
    /// A connection is gone, or none could be made.
    Closed(LinkId),
}

/// A core that several tasks use.
pub(crate) struct InputsShared {
    /// None once the listener has ended, which it does as well when something panics on the way: what that leaves
    /// behind is not gone on with.
    pub(super) core: Mutex<Option<Box<Core>>>,
    /// The core's own task is to look at it: for its clock, or for the application.
    pub(super) wake: Notify,
    /// What it counts may have changed.
    pub(super) counted: Notify,
}

impl std::fmt::Debug for InputsShared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Shared")
    }
}

impl InputsShared {
    pub(super) fn new(core: Core) -> Self {
        Self { core: Mutex::new(Some(Box::new(core))), wake: Notify::new(), counted: Notify::new() }
    }

    /// Does something with the core.
    pub(super) fn with<T>(&self, act: impl FnOnce(&mut Core) -> T) -> Result<T, Ended> {
        let mut place = self.core.lock();
        let mut core = place.take().ok_or(Ended)?;
        let done = act(&mut core);
        *place = Some(core);
        Ok(done)
    }

    /// Ends it: the application gets what it was handed, and nothing after that.
    pub(super) fn end(&self) {
        drop(self.core.lock().take());
        self.counted.notify_waiters();
    }

    /// What it has counted; `None` once it has ended.
    pub(crate) fn stats(&self) -> Option<SharingStats> {
        self.with(|core| core.stats()).ok()
    }

    /// Waits until `holds` is true of what it has counted; `None` if it ends before.
    pub(crate) async fn until(&self, mut holds: impl FnMut(&SharingStats) -> bool) -> Option<SharingStats> {
        loop {
            let counted = self.counted.notified();
            let stats = self.stats()?;
            if holds(&stats) {
                return Some(stats);
            }
            counted.await;
        }
    }
}

/// Where a connection's task gives the core its inputs. It does not keep the core alive.
#[derive(Clone)]
pub(super) struct SharingInputs(Weak<InputsShared>);

/// The listener has ended.
pub(super) struct Ended;

impl SharingInputs {
    /// To a core that will be there.
    pub(super) fn to(shared: &Weak<InputsShared>) -> Self {
        Self(Weak::clone(shared))
    }

    /// Gives the core inputs, and carries out what follows from them.
    pub(super) fn give(&self, inputs: impl IntoIterator<Item = Input>) -> Result<(), Ended> {
        let shared = self.0.upgrade().ok_or(Ended)?;
        let wakes = shared.with(|core| {
            inputs.into_iter().for_each(|input| core.take(input));
            core.carry_out();
            core.wants_to_be_woken()
        })?;
        if wakes {
            shared.wake.notify_one();
        }
        shared.counted.notify_waiters();
        Ok(())
    }
}
