//! A backend whose regions have moved, as a client follows it.

use std::sync::atomic::{AtomicU64, Ordering};

use tailwater_rma::{Connection, Service};

use super::replica::keep_connected;
use super::tests::{MEMORY, world};
use super::*;
use crate::layout::{HEADER_USED_BYTES, INDEX_KIND, IndexHeader};
use crate::testing::{Double, in_runtime, world_by_hand};

/// Hands out the same connection each time.
struct Same {
    connection: Arc<dyn Connection>,
    connects: AtomicU64,
}

impl Connector for Same {
    fn connect<'a>(&'a self, _: &'a BackendPlace) -> Connecting<'a> {
        assert!(self.connects.fetch_add(1, Ordering::Relaxed) < 100, "again and again, without a pause");
        Box::pin(std::future::ready(Ok(Arc::clone(&self.connection))))
    }
}

#[test]
fn who_is_given_regions_that_have_moved_once_more_pauses_before_it_connects_again() {
    let (by_hand, clock) = world_by_hand();
    in_runtime(|env| async move {
        let world = world(env.clone(), Mode::R1, 1, MEMORY).await;
        let (backend, doorbell) = &world.backends[0];
        let (connection, _faults) = Double::connect(&env, backend, doorbell, MEMORY);
        let index =
            backend.regions().into_iter().find(|region| region.kind() == INDEX_KIND).expect("an index");
        let mut header = [0; HEADER_USED_BYTES];
        index.read(0, &mut header);
        let header = IndexHeader::decode(&header, index.len()).expect("whole");
        index.write(0, &IndexHeader { has_moved: true, ..header }.encode());

        let connector = Arc::new(Same { connection, connects: AtomicU64::new(0) });
        let shared = &world.cell.shared;
        let replica = Arc::new(Replica::new(BackendPlace::new(0, Vec::new()), Sender::new(1, 1)));
        let (tried, _is_tried) = watch::channel(false);
        let mut keeping = std::pin::pin!(keep_connected(
            by_hand,
            shared.keep,
            Arc::downgrade(shared),
            Arc::clone(&replica),
            Arc::clone(&connector) as _,
            tried,
            Arc::default(),
        ));
        for connects in 2..5 {
            for _ in 0..10 {
                assert!(futures::poll!(&mut keeping).is_pending());
            }
            assert_eq!(connector.connects.load(Ordering::Relaxed), connects);
            assert!(replica.live().is_some(), "what it has is read on");
            clock.advance(shared.keep.backoff_min);
        }
    });
}
