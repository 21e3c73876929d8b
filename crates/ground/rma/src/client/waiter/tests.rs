use std::os::fd::AsFd;

use futures::future::join_all;

use super::*;
use crate::doorbell::DOORBELL_BYTES;
use crate::region::sealed_memory;

/// A doorbell's page that is rung without ever waking anybody, as if all wakes were stolen.
struct Silent {
    page: Mapping,
    registration: Registration,
}

impl Silent {
    fn new(env: &Env) -> Self {
        let (page, file) = sealed_memory("doorbell", DOORBELL_BYTES).expect("there is memory");
        let reader = Mapping::reader(file.as_fd(), DOORBELL_BYTES).expect("it is sealed");
        Self { page, registration: Registration::new(env, Bell::new(reader)) }
    }

    fn ring(&self) {
        self.page.word().fetch_add(1, Ordering::Release);
    }
}

fn run(test: impl AsyncFnOnce(Env)) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build();
    runtime.expect("a runtime").block_on(async { test(Env::real()).await });
}

#[test]
fn rings_whose_wakes_are_stolen_are_noticed_by_looking_again() {
    run(async |env| {
        let bell = Silent::new(&env);
        for round in 0..5 {
            let ring = async { bell.ring() };
            let (moved, ()) = futures::future::join(bell.registration.moved(round), ring).await;
            assert_eq!(moved, Some(round + 1));
        }
    });
}

#[test]
fn more_doorbells_than_the_kernel_waits_for_at_once_are_all_heard() {
    run(async |env| {
        let bells: Vec<_> = (0..DOORBELLS_WAITED_MAX + 10).map(|_| Silent::new(&env)).collect();
        for round in 0..3 {
            let moved = bells.iter().map(|bell| bell.registration.moved(round));
            let ring = async { bells.iter().for_each(Silent::ring) };
            let (moved, ()) = futures::future::join(join_all(moved), ring).await;
            assert!(moved.iter().all(|value| *value == Some(round + 1)));
        }
    });
}

#[test]
fn a_doorbell_that_is_lost_ends_the_waiting_and_leaves_others_alone() {
    run(async |env| {
        let (lost, other) = (Silent::new(&env), Silent::new(&env));
        let lose = async { lost.registration.bell().lose() };
        let (moved, ()) = futures::future::join(lost.registration.moved(0), lose).await;
        assert_eq!(moved, None);
        other.ring();
        assert_eq!(other.registration.moved(0).await, Some(1));
    });
}

#[test]
fn waiting_works_again_after_the_last_connection_went_and_another_came() {
    run(async |env| {
        for _ in 0..20 {
            let bell = Silent::new(&env);
            let ring = async { bell.ring() };
            let (moved, ()) = futures::future::join(bell.registration.moved(0), ring).await;
            assert_eq!(moved, Some(1));
        }
    });
}
