//! How far those are that a proxy feeds.

use super::*;

/// A proxy with 100 events, which feeds members from 10 on, each from its number on.
struct Feeding {
    proxy: ProxyPeer,
    history: History,
    now_ms: u64,
}

impl Feeding {
    fn new(after: &[u64]) -> Self {
        let history = History(BTreeMap::from([(stream(0), vec![false; 100])]), 0);
        let options = Options { request_bytes: 1 << 20, ..small() };
        let mut feeding = Self { proxy: ProxyPeer::new(member(PROXY), &options, 1), history, now_ms: 0 };
        for (id, &after) in (10..).zip(after) {
            feeding.join(id, after);
        }
        feeding
    }

    fn join(&mut self, id: u64, after: u64) {
        let Self { proxy, history, now_ms } = self;
        let mut out = Vec::new();
        proxy.connected(*now_ms, &member(id), history, &mut out);
        let (up_to, bytes_max) = (STANDING, 1 << 20);
        let request = Message::Request { stream: stream(0), lineage: 0, after, up_to, bytes_max };
        proxy.receive(*now_ms, id, request, history, &mut out);
    }

    fn publish(&mut self, events: usize) {
        let of = self.history.0.get_mut(&stream(0)).unwrap();
        of.extend(std::iter::repeat_n(false, events));
        let (last, mut out) = (at(of.len() as u64), Vec::new());
        self.proxy.appended(&stream(0), last, &mut out);
        self.now_ms += 100;
        self.proxy.tick(self.now_ms, &self.history, &mut out);
    }

    fn pause(&mut self, id: u64, paused: bool) {
        self.proxy.pause(self.now_ms, id, paused, &self.history, &mut Vec::new());
    }

    fn fed_up_to(&self) -> Option<u64> {
        self.proxy.fed_up_to(&stream(0))
    }
}

#[test]
fn one_listener_of_three_that_reads_nothing_does_not_count_and_two_do() {
    let mut feeding = Feeding::new(&[0, 0, 0]);
    assert_eq!(feeding.fed_up_to(), Some(100));
    feeding.pause(10, true);
    (0..50).for_each(|_| feeding.publish(10));
    assert_eq!(feeding.fed_up_to(), Some(600));
    feeding.pause(11, true);
    (0..50).for_each(|_| feeding.publish(10));
    assert_eq!(feeding.fed_up_to(), Some(600));
    feeding.pause(11, false);
    feeding.publish(10);
    assert_eq!(feeding.fed_up_to(), Some(1_110));
}

#[test]
fn nothing_is_said_of_fewer_than_three_or_of_those_that_come_from_behind() {
    let mut feeding = Feeding::new(&[0, 0]);
    assert_eq!(feeding.fed_up_to(), None);
    // It has taken nothing yet.
    feeding.pause(12, true);
    feeding.join(12, 0);
    feeding.publish(10);
    assert_eq!(feeding.fed_up_to(), None);
    feeding.join(13, 100);
    assert_eq!(feeding.fed_up_to(), Some(110));
    assert_eq!(feeding.proxy.fed_up_to(&stream(1)), None);
}

#[test]
fn a_proxy_that_can_not_send_as_much_as_all_want_keeps_three_and_they_lag() {
    let options = Options { upload_bytes_s: 20_000, ..small() };
    let mut feeding = Feeding::new(&[100; 6]);
    feeding.proxy = ProxyPeer::new(member(PROXY), &options, 1);
    (10..16).for_each(|id| feeding.join(id, 100));
    assert_eq!(feeding.proxy.stats().feeds, 6);
    (0..50).for_each(|_| feeding.publish(100));
    assert_eq!(feeding.proxy.stats().feeds, 3);
    let has = feeding.fed_up_to().unwrap();
    assert!((101..5_100).contains(&has), "{has}");
}
