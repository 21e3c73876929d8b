//! One suite for every transport: what a `Connection` promises, whatever is in between.

#![allow(missing_docs)]
#![allow(clippy::disallowed_methods)] // writers and ringers outside the runtime that is tested

mod world;

use std::time::Duration;

use bytes::Bytes;
use tailwater_rma::{CallError, OpError, READ_BYTES_MAX, ReadOp, RegionId, ScarOp, ScarReply, ServerConfig};

use world::{
    BUCKETS, CODE_REFUSED, METHOD_ABANDON, METHOD_ECHO, METHOD_LARGE, METHOD_NOTE, METHOD_NOTE_LATER,
    METHOD_PANIC, METHOD_REFUSE, Transport, World, on_every_socket_with, on_every_transport,
};

const LONG: Duration = Duration::from_secs(30);

#[test]
fn the_region_table_says_what_there_is() {
    on_every_transport(async |world: World| {
        let regions = world.connection.regions();
        assert_eq!(regions.len(), 2);
        for (info, region) in regions.iter().zip(&world.service.regions) {
            assert_eq!(
                (info.generation, info.len, info.kind),
                (region.generation(), region.len(), region.kind())
            );
        }
        assert_eq!(world.connection.lost(), None);
    });
}

#[test]
fn a_batch_reads_each_operation_into_its_place() {
    on_every_transport(async |world: World| {
        world.service.regions[0].write(100, b"first");
        world.service.regions[1].write(7, b"second!");
        let ops = [world.op(0, 100, 5), world.op(1, 0, 0), world.op(1, 7, 7), world.op(0, 102, 2)];
        let mut out = [0; 14];
        let results = world.connection.read(&ops, &mut out).await.expect("it is there");
        assert_eq!(results, [Ok(()); 4]);
        assert_eq!(&out, b"firstsecond!rs");
    });
}

#[test]
fn an_operation_that_fails_leaves_the_others_of_its_batch_alone() {
    on_every_transport(async |world: World| {
        world.service.regions[0].write(0, b"ab");
        let len = world.service.regions[0].len();
        let unknown = ReadOp { region: RegionId(9), ..world.op(0, 0, 1) };
        let stale = ReadOp { generation: !world.service.regions[0].generation(), ..world.op(0, 0, 1) };
        let ops = [
            world.op(0, 0, 1),
            unknown,
            stale,
            world.op(0, len, 1),
            world.op(0, len - 1, 2),
            world.op(0, u64::MAX, 2),
            world.op(0, len, 0),
            world.op(0, 1, 1),
        ];
        let mut out = vec![b'-'; 9];
        let results = world.connection.read(&ops, &mut out).await.expect("it is there");
        let (stale, bounds) = (Err(OpError::StaleRegion), Err(OpError::OutOfBounds));
        assert_eq!(results, [Ok(()), stale, stale, bounds, bounds, bounds, Ok(()), Ok(())]);
        assert_eq!((out[0], out[8]), (b'a', b'b'));
    });
}

#[test]
fn a_read_longer_than_one_may_be_is_refused() {
    on_every_transport(async |world: World| {
        let ops = [world.op(0, 0, READ_BYTES_MAX), world.op(0, 0, READ_BYTES_MAX + 1)];
        let mut out = vec![0; 2 * READ_BYTES_MAX as usize + 1];
        let results = world.connection.read(&ops, &mut out).await.expect("it is there");
        assert_eq!(results, [Ok(()), Err(OpError::OutOfBounds)]);
    });
}

#[test]
fn a_batch_larger_than_any_frame_arrives_whole() {
    on_every_transport(async |world: World| {
        let region = &world.service.regions[0];
        let mut pattern = vec![0u8; region.len() as usize];
        for (i, byte) in pattern.iter_mut().enumerate() {
            *byte = (i / 4096) as u8;
        }
        region.write(0, &pattern);
        let ops: Vec<_> = (0..5000).map(|i| world.op(0, (i % 512) * 4096, 4096)).collect();
        let mut out = vec![0; 5000 * 4096];
        let results = world.connection.read(&ops, &mut out).await.expect("it is there");
        assert_eq!(results.len(), 5000);
        assert!(results.iter().all(Result::is_ok));
        for (i, page) in out.chunks(4096).enumerate() {
            assert!(page.iter().all(|byte| *byte == (i % 512) as u8), "page {i}");
        }
    });
}

#[test]
fn no_operations_bring_no_results() {
    on_every_transport(async |world: World| {
        assert_eq!(world.connection.read(&[], &mut []).await, Ok(vec![]));
        assert_eq!(world.connection.scar(&[]).await, Ok(vec![]));
    });
}

#[test]
fn many_tasks_share_a_connection() {
    on_every_transport(async |world: World| {
        let region = &world.service.regions[0];
        for i in 0..256u64 {
            region.write(i * 8, &i.to_le_bytes());
        }
        let tasks = (0..64u64).map(async |task| {
            for round in 0..50 {
                let i = (task * 7 + round) % 256;
                let mut out = [0; 8];
                let read = world.connection.read(&[world.op(0, i * 8, 8)], &mut out).await;
                assert_eq!(read, Ok(vec![Ok(())]));
                assert_eq!(u64::from_le_bytes(out), i);
                let answer = world.connection.call(METHOD_ECHO, Bytes::from(i.to_string())).await;
                assert_eq!(answer, Ok(Bytes::from(i.to_string())));
            }
        });
        futures::future::join_all(tasks).await;
    });
}

#[test]
fn a_read_given_up_does_not_disturb_the_next() {
    on_every_transport(async |world: World| {
        world.service.regions[0].write(0, b"kept");
        for _ in 0..100 {
            let ops = vec![world.op(0, 0, READ_BYTES_MAX); 2];
            let mut out = vec![0; 2 * READ_BYTES_MAX as usize];
            let read = world.connection.read(&ops, &mut out);
            // Polled once and dropped.
            let _ = futures::FutureExt::now_or_never(read);
        }
        let mut out = [0; 4];
        let read = world.connection.read(&[world.op(0, 0, 4)], &mut out).await;
        assert_eq!((read, &out), (Ok(vec![Ok(())]), b"kept"));
    });
}

#[test]
fn scar_brings_bucket_and_data_or_says_that_it_is_not_served() {
    on_every_transport(async |world: World| {
        world.service.regions[0].write(3 * 64, b"bucket three");
        world.service.regions[1].write(512, b"its data");
        let ops: Vec<_> = [3, 4, BUCKETS].map(|bucket| ScarOp { bucket, key_hash: 512, apart: 4 }).to_vec();
        let results = world.connection.scar(&ops).await.expect("it is there");
        assert_eq!(results.len(), 3);
        if world.connection.capabilities().scar {
            let hit = results[0].as_ref().expect("the bucket is there");
            assert_eq!((hit.bucket.len(), &hit.bucket[..12]), (64, &b"bucket three"[..]));
            assert_eq!((&hit.head[..], &hit.data[..4]), (&b"its "[..], &b"data"[..]));
            assert_eq!(hit.data.len(), 252);
            assert!(results[1].as_ref().is_ok_and(|miss| miss.bucket.len() == 64));
            assert_eq!(results[2], Err(OpError::Unsupported));
        } else {
            assert!(results.iter().all(|result| *result == Err(OpError::Unsupported)));
        }
    });
}

#[test]
fn scars_that_fill_many_responses_all_come_back() {
    on_every_transport(async |world: World| {
        if !world.connection.capabilities().scar {
            return;
        }
        // The service answers the odd key hash with half a megabyte.
        let ops = vec![ScarOp { bucket: 1, key_hash: 1, apart: 80 }; 40];
        let results = world.connection.scar(&ops).await.expect("it is there");
        assert_eq!(results.len(), 40);
        let hits: Vec<_> = results.into_iter().map(|result| result.expect("it is there")).collect();
        assert!(hits.iter().all(|hit| (hit.head.len(), hit.data.len()) == (80, (512 << 10) - 80)));
        let together = |hits: &[ScarReply]| hits[0].frame.as_ptr() == hits[1].frame.as_ptr();
        let pairs: Vec<_> = hits.windows(2).filter(|hits| together(hits)).collect();
        assert!(pairs.len() >= 20, "a response has room for seven");
        for pair in pairs {
            assert_eq!(pair[0].data.as_ptr_range().end, pair[1].data.as_ptr(), "nothing lies in between");
        }
    });
}

#[test]
fn a_call_is_answered_refused_abandoned_or_survives_a_panic() {
    on_every_transport(async |world: World| {
        let call = async |method| world.connection.call(method, Bytes::from_static(b"hello")).await;
        assert_eq!(call(METHOD_ECHO).await, Ok(Bytes::from_static(b"hello")));
        let refused = CallError::Refused { code: CODE_REFUSED, message: "no".to_owned() };
        assert_eq!(call(METHOD_REFUSE).await, Err(refused));
        let code = |error| match error {
            Err(CallError::Refused { code, .. }) => code,
            other => panic!("{other:?}"),
        };
        assert_eq!(code(call(METHOD_ABANDON).await), tailwater_rma::REFUSED_ABANDONED);
        if world.transport != Transport::Local {
            assert_eq!(code(call(METHOD_PANIC).await), tailwater_rma::REFUSED_ABANDONED);
        }
        assert_eq!(call(METHOD_ECHO).await, Ok(Bytes::from_static(b"hello")));
    });
}

#[test]
fn a_short_call_does_not_overtake_one_that_a_worker_has() {
    on_every_socket_with(&ServerConfig { call_workers: 1, ..ServerConfig::default() }, async |world| {
        let note =
            |method, what: &'static str| world.connection.call(method, Bytes::from_static(what.as_bytes()));
        let noted = || world.service.noted.lock().expect("no test panics with it").clone();
        note(METHOD_NOTE, "first").await.expect("noted");
        let last = async {
            // Where a READ is a request, it is taken behind the two before it.
            let read = world.connection.read(&[world.op(0, 0, 8)], &mut [0; 8]).await;
            assert_eq!(read.expect("read"), [Ok(())]);
            assert_eq!(noted(), ["first"], "the engine serves, and nothing has overtaken");
            world.service.open_gate();
        };
        let (later, short, ()) =
            tokio::join!(note(METHOD_NOTE_LATER, "second"), note(METHOD_NOTE, "third"), last);
        later.expect("noted");
        short.expect("noted");
        assert_eq!(noted(), ["first", "second", "third"]);
        note(METHOD_NOTE, "fourth").await.expect("noted");
        assert_eq!(noted().len(), 4);
    });
}

#[test]
fn a_call_of_the_largest_size_passes_and_one_byte_more_is_refused() {
    on_every_transport(async |world: World| {
        let max = tailwater_rma::CALL_BYTES_MAX;
        let payload = Bytes::from(vec![7; max]);
        assert_eq!(world.connection.call(METHOD_ECHO, payload.clone()).await, Ok(payload));
        let too_long = Bytes::from(vec![7; max + 1]);
        for call in [
            world.connection.call(METHOD_ECHO, too_long).await,
            world.connection.call(METHOD_LARGE, Bytes::new()).await,
        ] {
            match call {
                Err(CallError::Refused { code, .. }) => assert_eq!(code, tailwater_rma::REFUSED_TOO_LARGE),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(world.connection.lost(), None);
    });
}

#[test]
fn calls_that_together_exceed_what_may_be_unsent_take_their_turns() {
    on_every_transport(async |world: World| {
        let payload = Bytes::from(vec![3; 3 << 20]);
        let calls = (0..16).map(|_| world.connection.call(METHOD_ECHO, payload.clone()));
        for answer in futures::future::join_all(calls).await {
            assert_eq!(answer.map(|bytes| bytes.len()), Ok(payload.len()));
        }
    });
}

#[test]
fn a_watch_of_an_old_value_completes_at_once() {
    on_every_transport(async |world: World| {
        let seen = world.connection.watch(0, LONG).await.expect("it is there");
        assert_ne!(seen, 0);
        world.ring();
        let next = world.connection.watch(seen, LONG).await.expect("it is there");
        assert_eq!(next, seen.wrapping_add(1));
    });
}

#[test]
fn a_watch_that_nobody_rings_for_ends_at_its_deadline() {
    on_every_transport(async |world: World| {
        let seen = world.connection.watch(0, LONG).await.expect("it is there");
        let again = world.connection.watch(seen, Duration::from_millis(20)).await;
        assert_eq!(again, Ok(seen));
    });
}

#[test]
fn no_ring_is_lost_however_watches_and_rings_interleave() {
    on_every_transport(async |world: World| {
        let mut seen = world.connection.watch(0, LONG).await.expect("it is there");
        let rounds = 2_000;
        let last = seen.wrapping_add(rounds);
        let ringer = std::thread::spawn(world.ringer(rounds));
        // Each watch has a deadline far beyond the test: only a ring ends it.
        while seen != last {
            let next = world.connection.watch(seen, Duration::from_secs(600)).await.expect("it is there");
            assert_ne!(next, seen);
            seen = next;
        }
        ringer.join().expect("ringing does not panic");
    });
}

#[test]
fn every_task_that_watches_is_told() {
    on_every_transport(async |world: World| {
        let seen = world.connection.watch(0, LONG).await.expect("it is there");
        let watches = (0..100).map(|_| world.connection.watch(seen, Duration::from_secs(600)));
        let ring = async {
            // The watches are polled first, and so are waiting.
            world.ring();
        };
        let (told, ()) = futures::future::join(futures::future::join_all(watches), ring).await;
        assert!(told.iter().all(|value| *value == Ok(seen.wrapping_add(1))));
    });
}

#[test]
fn a_ring_makes_what_was_written_before_it_visible() {
    on_every_transport(async |world: World| {
        let mut seen = world.connection.watch(0, LONG).await.expect("it is there");
        for round in 1..200u64 {
            world.service.regions[0].write(0, &round.to_le_bytes());
            world.ring();
            seen = world.connection.watch(seen, LONG).await.expect("it is there");
            let mut out = [0; 8];
            let read = world.connection.read(&[world.op(0, 0, 8)], &mut out).await;
            assert_eq!(read, Ok(vec![Ok(())]));
            assert_eq!(u64::from_le_bytes(out), round);
        }
    });
}

#[test]
fn torn_copies_are_caught_by_a_checksum_and_whole_ones_arrive() {
    on_every_transport(async |world: World| {
        let region = world.service.regions[0].clone();
        let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let writer = {
            let stop = stop.clone();
            std::thread::spawn(move || {
                let mut round = 0u64;
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    round += 1;
                    region.write(0, &world::sealed_value(round));
                    std::thread::yield_now();
                }
            })
        };
        // Until both kinds were seen, or long enough that tearing is no matter of luck on any machine.
        let (mut whole, mut torn) = (0, 0);
        while whole < 1_000 || (torn == 0 && whole < 20_000) {
            let mut out = [0; world::VALUE_BYTES];
            let op = world.op(0, 0, world::VALUE_BYTES as u32);
            assert_eq!(world.connection.read(&[op], &mut out).await, Ok(vec![Ok(())]));
            match world::open_value(&out) {
                Some(_) => whole += 1,
                None => torn += 1,
            }
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        writer.join().expect("writing does not panic");
    });
}
