use super::group::{FIRST, Group, GroupReceived, GroupSlot, GroupState, Want};
use crate::deduplication::DeduplicationKey;
use crate::ids::{Number, Sequence, Token};
use crate::limits::BATCH_MAX;
use crate::queue::ReceiptError;
use crate::settings::Scope;
use crate::shared::fifo::group::{GroupListed, read, read_slot, slot_key};
use crate::shared::fifo::{group_key, state_of, tuple_of};
use crate::shared::numbers::sent_at;
use crate::shared::rows::{RowCell, stamp};

/// A time after the beginning of numbers.
const START: u64 = 1_800_000_000_000;

/// A message's number.
fn number(ms: u64) -> Number {
    Number((ms - sent_at(Number(0))) << 22)
}

/// What is stored of a group.
#[derive(Default)]
struct Stored {
    version: u64,
    state: GroupState,
    slots: Vec<GroupSlot>,
}

impl Stored {
    fn group(&self) -> Group {
        let first = self.slots.iter().filter(|slot| slot.sequence >= self.state.head).take(FIRST);
        Group::new(self.version, self.state, first.copied().collect())
    }

    /// Writes it, as if its tuple were put where it has to be; whether it was to be put anew.
    fn write(&mut self, mut group: Group) -> bool {
        let listed = group.to_be_listed();
        if let Some(visible_at) = listed {
            group.state.tuple = visible_at.map(|visible_at| GroupListed { visible_at, moves: 1 });
        }
        let (cells, gone) = group.into_cells();
        assert_eq!(cells[0].version, self.version + 1);
        (self.version, self.state) = state_of(cells.first()).expect("a state");
        for cell in cells[1..].iter().filter(|cell| cell.key[0] == 1) {
            let slot = read_slot(cell).expect("a slot");
            self.slots.retain(|other| other.sequence != slot.sequence);
            self.slots.push(slot);
        }
        self.slots.retain(|slot| !gone.contains(&slot_key(slot.sequence)));
        self.slots.sort_unstable_by_key(|slot| slot.sequence);
        let first = self.slots.iter().find(|slot| slot.sequence >= self.state.head);
        assert_eq!(first.is_some(), self.state.tuple.is_some(), "a tuple as long as there are messages");
        listed.is_some()
    }

    fn send(&mut self, now: u64, count: u64) -> Vec<u64> {
        let mut group = Group::new(self.version, self.state, Vec::new());
        let sent = (0..count).map(|at| group.append(number(now + at), now, None).sequence).collect();
        self.write(group);
        sent
    }

    fn receive(&mut self, now: u64, want: Want) -> GroupReceived {
        let mut group = self.group();
        let received = group.receive(now, &want);
        self.write(group);
        received
    }
}

fn want(count: usize, token: u32) -> Want {
    Want { count, visibility_ms: 1_000, token: Token(token), kept_ms: 1 << 40, receives_max: None }
}

fn sequences(slots: &[GroupSlot]) -> Vec<u64> {
    slots.iter().map(|slot| slot.sequence).collect()
}

#[test]
fn a_group_is_received_in_order_and_stops_at_what_is_invisible() {
    let mut stored = Stored::default();
    let sent = stored.send(START, 13);
    assert!(stored.group().to_be_listed().is_none(), "its tuple is there");
    let first = stored.receive(START, want(3, 1)).taken;
    assert_eq!(sequences(&first), sent[..3]);
    assert_eq!(stored.state.tuple.map(|tuple| tuple.visible_at), Some(START + 1_000));
    assert_eq!(stored.receive(START + 999, want(10, 2)), GroupReceived::default());
    // The second goes, and the first is visible again: then comes the third, which is not.
    let mut group = stored.group();
    assert_eq!(group.delete(Sequence(sent[1]), Token(1), START + 1).map(|gone| gone.is_some()), Ok(true));
    assert_eq!(group.change(Sequence(sent[0]), Token(1), 0, START + 1), Ok(()));
    assert!(stored.write(group));
    assert_eq!(sequences(&stored.receive(START + 2, want(10, 3)).taken), sent[..1]);
    let all = stored.receive(START + 2_000, want(BATCH_MAX, 4)).taken;
    assert_eq!(sequences(&all), [&sent[..1], &sent[2..11]].concat());
    for (at, slot) in all.iter().enumerate() {
        let mut group = stored.group();
        group.delete(Sequence(slot.sequence), Token(4), START + 2_001).expect("it is held");
        stored.write(group);
        assert_eq!(stored.slots.len(), 12 - at - 1);
    }
    assert_eq!(sequences(&stored.receive(START + 2_002, want(10, 5)).taken), sent[11..]);
}

#[test]
fn a_receipt_deletes_only_as_long_as_its_receive_holds_the_message() {
    let mut stored = Stored::default();
    let sent = Sequence(stored.send(START, 1)[0]);
    stored.receive(START, want(1, 1));
    stored.receive(START + 1_000, want(1, 2));
    let now = START + 1_500;
    let mut group = stored.group();
    assert_eq!(group.delete(sent, Token(1), now), Err(ReceiptError::Expired));
    assert_eq!(group.change(sent, Token(1), 1, now), Err(ReceiptError::Unavailable));
    assert_eq!(group.change(sent, Token(2), 1, now + 500), Err(ReceiptError::NotInFlight));
    assert_eq!(group.delete(sent, Token(2), now + 500), Err(ReceiptError::Expired));
    assert_eq!(group.change(sent, Token(2), 13 * 3_600_000, now), Err(ReceiptError::TooLong));
    assert!(!group.is_changed());
    assert_eq!(group.delete(sent, Token(2), now).map(|gone| gone.is_some()), Ok(true));
    assert_eq!(group.delete(sent, Token(2), now), Ok(None), "it is deleted already");
    stored.write(group);
    assert_eq!(stored.state.tuple, None);
}

#[test]
fn sequences_grow_whatever_clocks_say_and_after_everything_was_deleted() {
    let mut stored = Stored::default();
    let first = stored.send(START, 2);
    let second = stored.send(START - 5_000, 1);
    assert!(first[0] < first[1] && first[1] < second[0]);
    let taken = stored.receive(START, want(10, 1)).taken;
    let mut group = stored.group();
    for slot in &taken {
        group.delete(Sequence(slot.sequence), Token(1), START).expect("it is held");
    }
    stored.write(group);
    let third = stored.send(START - 6_000, 1);
    assert!(third[0] > second[0]);
    assert_eq!(sequences(&stored.receive(START + 1, want(10, 2)).taken), third);
}

#[test]
fn what_is_too_old_is_out_before_what_comes_after_it_is_received_and_what_was_received_too_often_is_claimed()
{
    let mut stored = Stored::default();
    let sent = [stored.send(START, 1), stored.send(START + 60_000, 3)].concat();
    let kept_ms = 100_000;
    let now = START + kept_ms;
    stored.receive(now - 10_000, Want { kept_ms, ..want(3, 1) });
    let want = |token| Want { kept_ms, receives_max: Some(1), ..want(10, token) };
    let mut group = stored.group();
    let claimed = group.claim(now, now + 500, &want(2));
    assert_eq!(sequences(&claimed), sent[1..3]);
    // Who had them has not, and nobody gets what is behind them.
    for sequence in &sent[1..3] {
        assert_eq!(group.delete(Sequence(*sequence), Token(1), now), Err(ReceiptError::Expired));
    }
    stored.write(group);
    let received = stored.receive(now, want(3));
    assert_eq!((sequences(&received.expired), received.taken), (sent[..1].to_vec(), vec![]));
    // Another claim, when that one is over; the first one takes nothing any more.
    let mut group = stored.group();
    assert_eq!(group.claim(now + 499, now + 1_000, &want(4)), []);
    let again = group.claim(now + 500, now + 1_000, &want(5));
    assert_eq!(sequences(&again), sent[1..3]);
    assert_eq!(group.take_claimed(&claimed), []);
    assert_eq!(group.take_claimed(&again), again);
    stored.write(group);
    assert_eq!(sequences(&stored.receive(now + 500, want(6)).taken), sent[3..]);
    assert_eq!(sequences(&stored.slots), sent[3..]);
}

#[test]
fn an_id_that_was_seen_is_written_with_its_message() {
    let mut group = Group::default();
    let key = DeduplicationKey::new(Scope::Group, "g", "id");
    let seen = group.append(number(START), START, Some((&key, 300)));
    let (cells, _) = group.into_cells();
    let kept: Vec<&RowCell> = cells.iter().filter(|cell| cell.key == super::seen_key(&key)).collect();
    assert_eq!((kept.len(), kept[0].ttl_s), (1, 300));
    assert_eq!(read::<super::GroupSeen>(kept[0]).expect("it can be read"), seen);
}

#[test]
fn a_group_s_tuple_has_a_timestamp_that_is_long_ago() {
    for name in ["", "g", "another group"] {
        let moves = u32::MAX >> 1;
        let tuple = tuple_of(group_key(name), GroupListed { visible_at: START, moves });
        assert!(stamp(tuple.number, tuple.moves) < i64::try_from(START).expect("a time") * 1_000);
    }
}
