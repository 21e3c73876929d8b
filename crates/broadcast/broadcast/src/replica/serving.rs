//! What a replica gives to the clients of its region that ask for events.

use crate::batch::Batch;
use crate::name::Stream;
use crate::region::ServeSource;

use super::Replica;

/// What all replicas of a chain hold.
impl ServeSource for Replica {
    fn lineage(&self, stream: &Stream) -> u64 {
        self.lineage_of(stream)
    }

    fn held(&self, stream: &Stream) -> Option<(u64, u64)> {
        Some((0, self.stream(stream)?.held()))
    }

    fn read(&self, stream: &Stream, after: u64, up_to: u64, bytes_max: usize) -> Option<Batch> {
        self.stream(stream)?.history.read(after, up_to, bytes_max)
    }
}
