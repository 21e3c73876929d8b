use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use super::*;

const LONG: Duration = Duration::from_secs(60);

/// A ring, unless this kernel has none, which other tests say.
fn ring() -> Option<Ring> {
    Ring::new().inspect_err(|error| eprintln!("no io_uring here: {error}")).ok()
}

fn pair() -> (UnixStream, UnixStream) {
    UnixStream::pair().expect("a pair of sockets")
}

#[test]
fn bytes_go_and_come_in_order_until_the_far_side_closes() {
    let Some(mut ring) = ring() else { return };
    let (here, there) = pair();
    let mut here = Some(here);
    let bytes: Vec<u8> = (0..1_000_000u32).map(|i| i as u8).collect();
    // What is to be sent from which index on, while no send is under way.
    let mut to_send = Some((bytes.clone(), 0));
    let mut sending_from = 0;
    let (mut received, mut receiving, mut closed) = (Vec::new(), false, false);
    while !closed {
        match to_send.take() {
            Some((buffer, from)) if from == buffer.len() => here = None,
            Some((buffer, from)) => {
                let here = here.as_ref().expect("it is open while there is something to send");
                ring.send(here.as_fd(), 1, buffer, from).expect("there is room");
                sending_from = from;
            }
            None => {}
        }
        if !std::mem::replace(&mut receiving, true) {
            ring.receive(there.as_fd(), 2).expect("there is room");
        }
        ring.wait(LONG, |completion| match completion {
            Completion::Sent { token: 1, buffer, result } => {
                to_send = Some((buffer, sending_from + result.expect("the far side is there")));
            }
            Completion::Received { token: 2, result, more } => {
                receiving = more;
                match result {
                    Ok([]) => closed = true,
                    Ok(bytes) => received.extend_from_slice(bytes),
                    Err(error) => assert!(is(&error, &[libc::ENOBUFS]), "{error}"),
                }
            }
            _ => panic!("nothing else is under way"),
        })
        .expect("the ring works");
    }
    assert!(received == bytes, "{} bytes came", received.len());
}

#[test]
fn a_poll_completes_once_and_a_wait_ends_at_its_deadline() {
    let Some(mut ring) = ring() else { return };
    let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).expect("an event");
    ring.poll(event.as_fd(), 7).expect("there is room");
    let mut polled = 0;
    ring.wait(Duration::from_millis(1), |_| polled += 1).expect("the ring works");
    assert_eq!(polled, 0);
    rustix::io::write(&event, &1u64.to_ne_bytes()).expect("it is open");
    ring.wait(LONG, |completion| {
        assert!(matches!(completion, Completion::Polled { token: 7 }));
        polled += 1;
    })
    .expect("the ring works");
    ring.wait(Duration::from_millis(1), |_| polled += 1).expect("the ring works");
    assert_eq!(polled, 1);
}

#[test]
fn a_receive_that_is_cancelled_ends() {
    let Some(mut ring) = ring() else { return };
    let (_here, there) = pair();
    ring.receive(there.as_fd(), 3).expect("there is room");
    ring.cancel_receive(3).expect("there is room");
    let mut ended = false;
    while !ended {
        ring.wait(LONG, |completion| match completion {
            Completion::Received { token: 3, result: Err(error), more: false } => {
                assert!(is(&error, &[libc::ECANCELED]), "{error}");
                ended = true;
            }
            _ => panic!("nothing else is under way"),
        })
        .expect("the ring works");
    }
    assert_eq!(ring.outstanding, 0);
}

#[test]
fn a_ring_that_is_dropped_ends_what_is_under_way() {
    let Some(mut ring) = ring() else { return };
    let (here, there) = pair();
    ring.receive(there.as_fd(), 1).expect("there is room");
    // More than the socket takes while nobody reads.
    ring.send(there.as_fd(), 2, vec![0; 8 << 20], 0).expect("there is room");
    ring.poll(here.as_fd(), 3).expect("there is room");
    ring.wait(Duration::from_millis(1), |_| {}).expect("the ring works");
    assert!(ring.cancel_all(), "{} operations did not end", ring.outstanding);
}

#[test]
fn more_operations_than_the_queue_holds_are_all_carried_out() {
    let Some(mut ring) = ring() else { return };
    let event = rustix::event::eventfd(1, rustix::event::EventfdFlags::NONBLOCK).expect("an event");
    let count = u64::from(QUEUE) * 3;
    for token in 0..count {
        ring.poll(event.as_fd(), token).expect("there is room");
    }
    let mut polled = std::collections::BTreeSet::new();
    while (polled.len() as u64) < count {
        ring.wait(LONG, |completion| {
            if let Completion::Polled { token } = completion {
                polled.insert(token);
            }
        })
        .expect("the ring works");
    }
}
