//! Room in memory that all clients share, of bodies and of answers: who wants more than there is waits.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Some of the room, until it is dropped.
#[derive(Debug)]
pub(crate) struct RoomTaken(OwnedSemaphorePermit);

/// The room. It is counted in KiB, so that a semaphore can have as much as a configuration can say.
#[derive(Debug)]
pub(crate) struct SocketRoom {
    free: Arc<Semaphore>,
    kib: usize,
}

fn kib(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(1024)).unwrap_or(u32::MAX)
}

impl SocketRoom {
    /// Room for so many bytes.
    pub(crate) fn new(bytes: usize) -> Self {
        let kib = bytes.div_ceil(1024).min(Semaphore::MAX_PERMITS);
        Self { free: Arc::new(Semaphore::new(kib)), kib }
    }

    /// Takes room for so many bytes, or all of it if that is less; waits for it, behind those that came before.
    pub(crate) async fn take(&self, bytes: usize) -> RoomTaken {
        let wanted = kib(bytes).min(u32::try_from(self.kib).unwrap_or(u32::MAX));
        RoomTaken(Arc::clone(&self.free).acquire_many_owned(wanted).await.expect("it is never closed"))
    }

    /// Bytes that are taken at the moment.
    pub(crate) fn taken_bytes(&self) -> u64 {
        (self.kib - self.free.available_permits()) as u64 * 1024
    }
}

impl RoomTaken {
    /// Both together.
    pub(crate) fn joined(mut self, other: Self) -> Self {
        self.0.merge(other.0);
        self
    }

    /// The same for so many bytes only, if it is enough for them.
    pub(crate) fn shrunk_to(self, bytes: usize) -> Option<Self> {
        let Self(mut all) = self;
        all.split(kib(bytes) as usize).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_taken_is_missing_until_it_is_dropped() {
        let room = SocketRoom::new(10 << 10);
        let (one, two) = (room.take(4 << 10).await, room.take(6_000).await);
        assert_eq!(room.taken_bytes(), 10 << 10);
        let third = room.take(1);
        futures::pin_mut!(third);
        assert!(futures::poll!(&mut third).is_pending());
        let one = one.shrunk_to(1_000).expect("it is enough");
        third.await;
        assert_eq!(room.taken_bytes(), 7 << 10);
        assert!(one.shrunk_to(2_000).is_none(), "it is not enough");
        drop(two);
        assert_eq!(room.taken_bytes(), 0);
        // Whoever needs more than there is has it alone.
        drop(room.take(1 << 30).await);
    }
}
