use super::*;

/// A doorbell whose engine has so many WATCHes parked.
fn bell(parked: usize) -> Doorbell {
    let engine = Arc::new(Mailbox::new().expect("an eventfd"));
    engine.parking.announce(parked);
    Doorbell::create(&Env::real(), vec![engine]).expect("a doorbell")
}

#[tokio::test]
async fn rings_without_end_wake_waiters_once_per_interval_and_count_them() {
    const WAITERS: usize = 10;
    const WAKES: u64 = 5;
    let bell = bell(WAITERS);
    let env = bell.bell.env.clone();
    let begun = env.now();
    while bell.stats().wakes < WAKES {
        bell.ring();
        let timer = bell.timer();
        let mut fired = [rustix::event::PollFd::new(&timer, rustix::event::PollFlags::IN)];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        if rustix::event::poll(&mut fired, Some(&at_once)).expect("it polls") > 0 {
            bell.timer_fired();
        }
    }
    assert!(env.now().since(begun) >= WAKE_INTERVAL * (WAKES as u32 - 1));
    assert_eq!(bell.stats(), DoorbellStats { wakes: WAKES, woken: WAKES * WAITERS as u64 });
}

#[tokio::test]
async fn a_ring_that_nobody_waits_for_wakes_nobody_and_delays_no_later_one() {
    let bell = bell(0);
    bell.ring();
    assert_eq!(bell.stats(), DoorbellStats::default());
    assert_eq!(bell.value(), DOORBELL_START + 1);
}
