//! A client's endpoint: it reads what one server has registered.
//!
//! Whoever reads begins its reads itself, and looks once whether they have ended: over shared memory they have. A
//! thread drives what is left: it hands out what ends, begins again what there was no room for, and notices what takes
//! too long. All of them take turns with the endpoint, which nobody keeps while waiting.

use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tailwater_env::{Env, Instant};
use tokio::sync::oneshot;

use crate::fabric::ffi::{BegunRead, FabricEndpoint, FabricPeer, FabricRead};
use crate::fabric::pool::{FabricSlot, SlotPool};
use crate::fabric::{Looks, Waker, node_of};
use crate::frame::{FabricReply, RegionKey};
use crate::limits::{FABRIC_READ_DEADLINE, FABRIC_SLOTS};

/// How often the thread looks for what takes too long.
const LOOK_FOR_LATE: Duration = Duration::from_millis(250);
/// How long it sleeps at most while nothing is under way.
const LOOK_ANYWAY: Duration = Duration::from_secs(10);
/// When what there was no room for is tried again, if nothing else happens: connections that are being made don't
/// always tell that they are.
const TRY_AGAIN_AFTER: Duration = Duration::from_micros(200);

/// A read's end: the slot with its bytes, or why there are none.
type SlotDone = Result<FabricSlot, String>;

/// A read under way, in a slot of its own.
pub(crate) type SlotPending = oneshot::Receiver<SlotDone>;

/// An endpoint that reads from one server. Dropping it ends it.
pub(crate) struct Initiator {
    shared: Arc<InitiatorShared>,
    peer: FabricPeer,
    keys: Vec<Option<RegionKey>>,
}

struct InitiatorShared {
    env: Env,
    pool: Arc<SlotPool>,
    waker: Waker,
    driven: Mutex<Driven>,
    /// Tells that there is something to poll; none where the endpoint can only be asked.
    descriptor: Option<OwnedFd>,
}

struct Driven {
    endpoint: FabricEndpoint,
    pool: Arc<SlotPool>,
    /// Who waits for the read in each slot, and since when. Nobody, if it came too late.
    waiting: Vec<Option<(Instant, oneshot::Sender<SlotDone>)>>,
    /// How many those are.
    under_way: usize,
    /// What there was no room for.
    again: VecDeque<(FabricSlot, FabricRead, Instant, oneshot::Sender<SlotDone>)>,
    /// It is of no use any more, because of this; its pool is closed then.
    failed: Option<String>,
    stopped: bool,
}

impl Initiator {
    /// Opens an endpoint that reads from the server at `ip`, as that has told. Blocks for some milliseconds, and much
    /// longer where a provider looks for its hardware.
    ///
    /// # Errors
    /// Where there is no libfabric, not the server's provider, or no way to that server.
    pub(crate) fn open(env: &Env, ip: IpAddr, told: &FabricReply) -> io::Result<Self> {
        let pool = SlotPool::new()?;
        let node = node_of(&told.provider, ip);
        let mut endpoint = FabricEndpoint::reading(&told.provider, node.as_deref(), Arc::clone(&pool))?;
        if endpoint.format() != told.format {
            let why = format!("its names are of format {}, and not {}", told.format, endpoint.format());
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        let peer = endpoint.know(&told.name)?;
        let descriptor = endpoint.wait_descriptor().map(OwnedFd::try_clone).transpose()?;
        let mut waiting = Vec::new();
        waiting.resize_with(FABRIC_SLOTS, || None);
        let driven = Mutex::new(Driven {
            endpoint,
            pool: Arc::clone(&pool),
            waiting,
            under_way: 0,
            again: VecDeque::new(),
            failed: None,
            stopped: false,
        });
        let waker = Waker::new()?;
        let shared = Arc::new(InitiatorShared { env: env.clone(), pool, waker, driven, descriptor });
        let initiator = Self { shared: Arc::clone(&shared), peer, keys: told.keys.clone() };
        env.spawn_dedicated("rma-fabric", async move { shared.run() }).detach();
        Ok(initiator)
    }

    /// By what a region is read.
    pub(crate) fn key_of(&self, region: usize) -> Option<RegionKey> {
        self.keys.get(region).copied().flatten()
    }

    /// A slot to read into, if one is free.
    pub(crate) fn try_slot(&self) -> Option<FabricSlot> {
        self.shared.pool.try_take()
    }

    /// A slot to read into, as soon as one is free; `None` once the endpoint has failed.
    pub(crate) async fn slot(&self) -> Option<FabricSlot> {
        self.shared.pool.take().await
    }

    /// Begins to read `len` bytes, at most a slot's, at `offset` of the region that `key` is of.
    pub(crate) fn begin(&self, slot: FabricSlot, key: RegionKey, offset: u64, len: usize) -> SlotPending {
        let address = key.base.wrapping_add(offset);
        let read = FabricRead { peer: self.peer, key: key.key, address, len };
        let (done, pending) = oneshot::channel();
        let now = self.shared.env.now();
        let mut driven = self.shared.driven.lock();
        // What has waited for longer goes first.
        if driven.again.is_empty() {
            driven.begin(slot, read, now, done);
        } else {
            driven.again.push_back((slot, read, now, done));
        }
        let has_to_wait = !driven.again.is_empty();
        drop(driven);
        if has_to_wait {
            self.shared.waker.wake();
        }
        pending
    }

    /// Looks once what has ended of what was begun. What has not is the thread's to drive.
    pub(crate) fn look(&self) {
        let mut driven = self.shared.driven.lock();
        driven.poll();
        let is_under_way = driven.under_way > 0;
        drop(driven);
        if is_under_way && self.shared.descriptor.is_none() {
            self.shared.waker.wake();
        }
    }

    /// Ends all reads, and those that are begun later, because of this.
    pub(crate) fn fail(&self, why: &str) {
        self.shared.driven.lock().fail(why);
    }
}

impl Drop for Initiator {
    fn drop(&mut self) {
        self.shared.driven.lock().stopped = true;
        self.shared.waker.wake();
    }
}

impl InitiatorShared {
    fn run(&self) {
        let mut looks = Looks::default();
        loop {
            let (found, time) = {
                let mut driven = self.driven.lock();
                if driven.stopped {
                    return;
                }
                if driven.failed.is_some() {
                    drop(driven);
                    self.waker.wait(None, None);
                    continue;
                }
                let found = driven.poll();
                driven.try_again();
                driven.look_for_late(self.env.now());
                if self.descriptor.is_some() && !driven.endpoint.may_wait() {
                    continue;
                }
                (found, driven.sleeps_at_most())
            };
            if found {
                looks.found();
            }
            let is_idle = time == LOOK_ANYWAY;
            let time = if self.descriptor.is_some() || is_idle { time } else { looks.pause() };
            self.waker.wait(self.descriptor.as_ref(), Some(time));
        }
    }
}

impl Driven {
    /// Hands out what has ended; whether anything has.
    fn poll(&mut self) -> bool {
        let (waiting, under_way) = (&mut self.waiting, &mut self.under_way);
        let mut found = false;
        let polled = self.endpoint.poll(|slot, error| {
            found = true;
            *under_way -= 1;
            if let Some((_, done)) = waiting[slot.place()].take() {
                // Whoever asked may have given up.
                let _ = done.send(error.map_or(Ok(slot), |error| Err(error.to_string())));
            }
        });
        if let Err(error) = polled {
            self.fail(&error.to_string());
        }
        found
    }

    fn begin(&mut self, slot: FabricSlot, read: FabricRead, since: Instant, done: oneshot::Sender<SlotDone>) {
        if let Some(why) = &self.failed {
            let _ = done.send(Err(why.clone()));
            return;
        }
        let place = slot.place();
        match self.endpoint.begin(slot, &read) {
            BegunRead::UnderWay => {
                self.waiting[place] = Some((since, done));
                self.under_way += 1;
            }
            BegunRead::Again(slot) => self.again.push_front((slot, read, since, done)),
            BegunRead::Failed(error) => drop(done.send(Err(error.to_string()))),
        }
    }

    /// Begins what there was no room for, as far as there is now.
    fn try_again(&mut self) {
        let mut left = self.again.len();
        while left > 0
            && let Some((slot, read, since, done)) = self.again.pop_front()
        {
            self.begin(slot, read, since, done);
            if self.again.len() == left {
                return;
            }
            left = self.again.len();
        }
    }

    /// A read that takes too long stands for all: the peer is gone, and nobody told.
    fn look_for_late(&mut self, now: Instant) {
        let begun = self.waiting.iter().flatten().map(|(since, _)| *since);
        let oldest = begun.chain(self.again.iter().map(|(_, _, since, _)| *since)).min();
        if oldest.is_some_and(|since| since + FABRIC_READ_DEADLINE <= now) {
            self.fail(&format!("a read took longer than {FABRIC_READ_DEADLINE:?}"));
        }
    }

    /// Slots stay with the endpoint, which may still read into them. So nobody waits for one.
    fn fail(&mut self, why: &str) {
        self.pool.close();
        let why = self.failed.get_or_insert_with(|| why.to_owned()).clone();
        let waiting = self.waiting.iter_mut().filter_map(Option::take).map(|(_, done)| done);
        for done in waiting.chain(self.again.drain(..).map(|(_, _, _, done)| done)) {
            let _ = done.send(Err(why.clone()));
        }
    }

    fn sleeps_at_most(&self) -> Duration {
        match (self.again.is_empty(), self.under_way) {
            (false, _) => TRY_AGAIN_AFTER,
            (true, 0) => LOOK_ANYWAY,
            (true, _) => LOOK_FOR_LATE,
        }
    }
}
