//! What comes for the core, and from whom: whoever has something takes the core's lock, gives it all that there is, and
//! carries out what follows, in its own task. So what a connection brings is dealt with, passed on and handed over without
//! waking anybody else but the application.

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
    /// The tail is there, or there again, and says where the listener begins, and in which regions anew: with their lineages.
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
pub(crate) struct Shared {
    pub(super) core: Mutex<Core>,
    /// The core's own task is to look at it: for its clock, or for the application.
    pub(super) wake: Notify,
    /// What it counts may have changed.
    pub(super) counted: Notify,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Shared")
    }
}

impl Shared {
    /// What it has counted.
    pub(crate) fn stats(&self) -> SharingStats {
        self.core.lock().stats()
    }

    /// Waits until `holds` is true of what it has counted.
    pub(crate) async fn until(&self, mut holds: impl FnMut(&SharingStats) -> bool) -> SharingStats {
        loop {
            let counted = self.counted.notified();
            let stats = self.stats();
            if holds(&stats) {
                return stats;
            }
            counted.await;
        }
    }
}

/// Where a connection's task gives the core its inputs. It does not keep the core alive.
#[derive(Clone)]
pub(super) struct Inputs(Weak<Shared>);

/// The listener has ended.
pub(super) struct Ended;

impl Inputs {
    /// To a core that will be there.
    pub(super) fn to(shared: &Weak<Shared>) -> Self {
        Self(Weak::clone(shared))
    }

    /// Gives the core inputs, and carries out what follows from them.
    pub(super) fn give(&self, inputs: impl IntoIterator<Item = Input>) -> Result<(), Ended> {
        let shared = self.0.upgrade().ok_or(Ended)?;
        let mut core = shared.core.lock();
        inputs.into_iter().for_each(|input| core.take(input));
        core.carry_out();
        if core.wants_to_be_woken() {
            shared.wake.notify_one();
        }
        drop(core);
        shared.counted.notify_waiters();
        Ok(())
    }
}
