use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use parking_lot::Mutex;
use tailwater_env::OpenMode;
use tokio::sync::{mpsc, watch};

use super::*;

/// Three tasks that take turns by chance, talk to each other, sleep, draw numbers and use the disk.
fn busy(seed: u64) -> (u64, Vec<(u64, u64)>) {
    let world = World::new(seed);
    let (send, mut receive) = mpsc::channel(4);
    for name in ["a", "b", "c"] {
        let env = world.node(name).env();
        let send = send.clone();
        let inner = env.clone();
        env.spawn_dedicated("worker", async move {
            let file = inner.disk().open(Path::new("/f"), OpenMode::CreateNew).expect("a new name");
            for round in 0..20 {
                inner.sleep(Duration::from_micros(inner.random_below(500))).await;
                file.write_all_at(&[round; 700], u64::from(round) * 700).expect("there is room");
                file.sync_data().expect("no faults");
                if send.send((inner.now().as_ns(), inner.random_below(1_000))).await.is_err() {
                    return;
                }
            }
        })
        .detach();
    }
    drop(send);
    let history = world
        .run(async {
            let mut history = Vec::new();
            while let Some(item) = receive.recv().await {
                history.push(item);
            }
            history
        })
        .expect("it ends");
    assert_eq!(history.len(), 60);
    (world.trace(), history)
}

#[test]
fn same_seed_same_trace_other_seed_other_trace() {
    let mut traces = BTreeSet::new();
    for seed in 0..20 {
        let first = busy(seed);
        assert_eq!(first, busy(seed), "seed {seed}");
        traces.insert(first.0);
    }
    assert_eq!(traces.len(), 20);
}

#[test]
fn time_jumps_to_the_next_timer_and_not_past_it() {
    let world = World::new(1);
    let env = world.node("a").env();
    let order = Arc::new(Mutex::new(Vec::new()));
    for hours in [3, 1, 2] {
        let (clock, order) = (env.clone(), order.clone());
        env.spawn("sleeper", async move {
            clock.sleep(Duration::from_secs(hours * 3_600)).await;
            order.lock().push(hours);
        })
        .detach();
    }
    world.run_for(Duration::from_secs(4 * 3_600)).expect("timers are set");
    assert_eq!(*order.lock(), [1, 2, 3]);
    let slack = world.now().since(Instant::from_ns(4 * 3_600_000_000_000));
    assert!(slack < Duration::from_millis(1), "{slack:?}");
}

#[test]
fn a_wait_that_cannot_end_is_reported_and_so_is_a_task_that_spins() {
    let mut world = World::new(1);
    let stuck = world.run(futures::future::pending::<()>()).expect_err("nobody wakes it");
    assert!(matches!(stuck, StuckWorld::Deadlock { .. }), "{stuck}");

    world.set_steps_max(10_000);
    let env = world.node("a").env();
    let spinner = env.spawn("spinner", async {
        loop {
            let mut polled = false;
            futures::future::poll_fn(|context| {
                context.waker().wake_by_ref();
                if std::mem::replace(&mut polled, true) { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
        }
    });
    let stuck = world.run(futures::future::pending::<()>()).expect_err("bounded");
    assert!(matches!(stuck, StuckWorld::StepsUsedUp { .. }), "{stuck}");
    drop(spinner);
}

#[test]
fn a_dropped_task_is_cancelled_and_a_detached_one_is_not() {
    let world = World::new(1);
    let env = world.node("a").env();
    let (send, receive) = watch::channel(0);
    let start = |add: u64| {
        let (clock, send) = (env.clone(), send.clone());
        env.spawn("adder", async move {
            clock.sleep(Duration::from_millis(1)).await;
            send.send_modify(|sum| *sum += add);
        })
    };
    drop(start(1));
    start(10).detach();
    let held = start(100);
    world.run_for(Duration::from_millis(5)).expect("timers are set");
    assert_eq!(*receive.borrow(), 110);
    drop(held);
}

#[test]
fn a_crash_drops_the_futures_of_its_node_only_and_frees_its_locks() {
    let world = World::new(1);
    let (node, other) = (world.node("a"), world.node("b"));
    let dropped = Arc::new(Mutex::new(Vec::new()));
    struct Tell(&'static str, Arc<Mutex<Vec<&'static str>>>);
    impl Drop for Tell {
        fn drop(&mut self) {
            self.1.lock().push(self.0);
        }
    }
    for node in [&node, &other] {
        let tell = Tell(node.name(), dropped.clone());
        node.env()
            .spawn("waiter", async move {
                let _tell = tell;
                futures::future::pending::<()>().await;
            })
            .detach();
    }
    let env = node.env();
    let lock = env.disk().lock(Path::new("/lock")).expect("free");
    world.run_for(Duration::from_millis(1)).expect("a timer is set");
    node.crash(Crash::Process);
    world
        .run(async {
            node.died().await;
            assert!(node.run("late", async {}).await.is_err(), "a node that is down runs nothing");
        })
        .expect("it is down");
    assert_eq!(*dropped.lock(), ["a"]);
    assert!(env.disk().list(Path::new("/")).is_err(), "handles of a dead process reach nothing");

    node.start();
    let again = node.env().disk().lock(Path::new("/lock")).expect("its holder is dead");
    drop(lock);
    assert!(node.env().disk().lock(Path::new("/lock")).is_err(), "a dead holder's guard frees nothing");
    drop(again);
}

#[test]
fn other_tasks_run_in_the_middle_of_a_dedicated_tasks_disk_call() {
    let world = World::new(3);
    let env = world.node("a").env();
    let (inside, ticks) = (Arc::new(Mutex::new(false)), Arc::new(Mutex::new(0)));
    let (disk, flag) = (env.disk().clone(), inside.clone());
    env.spawn_dedicated("writer", async move {
        let file = disk.open(Path::new("/f"), OpenMode::CreateNew).expect("a new name");
        for _ in 0..50 {
            *flag.lock() = true;
            file.sync_data().expect("no faults");
            *flag.lock() = false;
        }
    })
    .detach();
    let (clock, seen) = (env.clone(), ticks.clone());
    env.spawn("ticker", async move {
        loop {
            if *inside.lock() {
                *seen.lock() += 1;
            }
            clock.sleep(Duration::from_micros(20)).await;
        }
    })
    .detach();
    world.run_for(Duration::from_millis(100)).expect("timers are set");
    assert!(*ticks.lock() > 10);
}

#[test]
fn a_crash_in_the_middle_of_a_disk_call_leaves_the_call_without_effect_or_answer() {
    for seed in 0..200 {
        let world = World::new(seed);
        let node = world.node("a");
        let env = node.env();
        let acked = Arc::new(Mutex::new(0u64));
        let count = acked.clone();
        let file = env.disk().open(Path::new("/f"), OpenMode::CreateNew).expect("a new name");
        env.disk().sync_dir(Path::new("/")).expect("no faults");
        env.spawn_dedicated("writer", async move {
            for at in 0..1_000 {
                let written = file.write_all_at(&[1], at).and_then(|()| file.sync_data());
                if written.is_err() {
                    return;
                }
                *count.lock() += 1;
                futures::future::ready(()).await;
            }
        })
        .detach();
        let (outside, victim) = (world.outside(), node.clone());
        let after = Duration::from_micros(500 + seed * 37);
        outside
            .clone()
            .spawn("chaos", async move {
                outside.sleep(after).await;
                victim.crash(Crash::Power);
            })
            .detach();
        world.run(node.died()).expect("it is crashed");
        let acked = *acked.lock();
        let length = node.disk().contents(Path::new("/f")).map_or(0, |bytes| bytes.len() as u64);
        assert!(length >= acked, "seed {seed}: {length} bytes left of {acked} synced");
        assert!(length <= acked + 1, "seed {seed}: {length} bytes, but only {acked} were ever acknowledged");
    }
}

#[test]
#[should_panic(expected = "a task does not yield")]
fn a_task_that_never_yields_is_noticed() {
    let world = World::new(1);
    let env = world.node("a").env();
    let clock = env.clone();
    env.spawn("spinner", async move {
        loop {
            clock.random_u64();
        }
    })
    .detach();
    let _ = world.run_for(Duration::from_secs(1));
}

#[test]
fn the_order_in_which_one_change_wakes_many_tasks_does_not_matter() {
    let traced = |seed| {
        let world = World::new(seed);
        let env = world.node("a").env();
        let change = watch::Sender::new(0);
        for _ in 0..40 {
            let mut seen = change.subscribe();
            env.spawn("waiter", async move { while seen.changed().await.is_ok() {} }).detach();
        }
        world.run_for(Duration::from_micros(1)).expect("a timer is set");
        for value in 1..20 {
            change.send_replace(value);
            world.run_for(Duration::from_micros(100)).expect("a timer is set");
        }
        world.trace()
    };
    for seed in 0..10 {
        assert_eq!(traced(seed), traced(seed), "seed {seed}");
    }
}

#[test]
fn the_futures_of_one_task_that_wait_for_a_death_are_woken_in_the_order_in_which_they_came() {
    for _ in 0..10 {
        let world = World::new(1);
        let mortal = world.node("mortal");
        let told = Arc::new(Mutex::new(Vec::new()));
        let all: FuturesUnordered<_> = (0..40)
            .map(|number| {
                let (mortal, told) = (mortal.clone(), told.clone());
                async move {
                    mortal.died().await;
                    told.lock().push(number);
                }
            })
            .collect();
        world.node("a").env().spawn("waiters", all.for_each(|()| std::future::ready(()))).detach();
        world.run_for(Duration::from_micros(10)).expect("a timer is set");
        mortal.crash(Crash::Process);
        world.run_for(Duration::from_micros(10)).expect("a timer is set");
        assert_eq!(*told.lock(), (0..40).collect::<Vec<_>>());
    }
}

#[test]
fn a_node_that_stands_still_goes_on_where_it_was_and_its_timers_went_on_meanwhile() {
    let world = World::new(7);
    let node = world.node("a");
    let (env, seen) = (node.env(), Arc::new(Mutex::new(Vec::new())));
    let (inner, noted) = (env.clone(), Arc::clone(&seen));
    env.spawn("ticker", async move {
        loop {
            inner.sleep(Duration::from_millis(10)).await;
            noted.lock().push(inner.now().as_ns() / 1_000_000);
        }
    })
    .detach();
    world.run_for(Duration::from_millis(35)).expect("it ends");
    node.pause();
    world.run_for(Duration::from_millis(100)).expect("it ends");
    assert_eq!(seen.lock().len(), 3);
    node.resume();
    world.run_for(Duration::from_millis(5)).expect("it ends");
    assert_eq!(seen.lock()[3..], [135], "once, however long it stood still");
    node.pause();
    node.restart(Crash::Process);
    let restarted = world.run(node.run("task", async { 1 })).expect("it ends");
    assert_eq!(restarted, Ok(1), "a crash ends it");
}
