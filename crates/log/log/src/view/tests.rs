//! In which order a shard is shown.

use tailwater_format::{Position, ShardNumber, StreamId};

use super::*;
use crate::config::StreamConfig;
use crate::producer::Producers;
use crate::shard::Recovered;

fn view() -> View {
    let shard = ShardId { stream: StreamId(uuid::Uuid::from_u128(1)), shard: ShardNumber(0) };
    let config = Arc::new(StreamConfig::default());
    View::of(&Shard::new(shard, config, 1, Recovered::default(), Producers::default()))
}

/// A shard whose first segment has so many bytes, whose records and copyable ones end there.
fn news(durable: u64, next: u64, copyable: u64) -> ViewNews {
    ViewNews {
        tail: Tail { durable: Position(durable), next_offset: Offset(next), ..view().tail },
        transaction_id: TransactionId(1),
        copyable_next: DurableTo::new(Offset(copyable)),
        accepted_next: AppendedTo::new(Offset(10)),
        completed: None,
        taken_back: false,
    }
}

fn shown() -> Arc<SharedView> {
    let shown = SharedView::new(view());
    shown.set(news(100, 4, 6));
    shown
}

#[test]
fn a_shard_is_shown_forward_and_back_only_when_something_was_taken_back() {
    let shown = shown();
    shown.set_copyable(DurableTo::new(Offset(7)), AppendedTo::new(Offset(10)));
    shown.set(news(200, 5, 7));
    shown.set(ViewNews { taken_back: true, ..news(150, 3, 3) });
    let view = shown.get();
    assert_eq!((view.tail.next_offset, view.copyable_next), (Offset(3), DurableTo::new(Offset(3))));
    shown.set(news(160, 4, 4));
}

#[test]
fn a_copy_that_begins_anew_behind_a_gap_goes_forward_in_another_segment() {
    let shown = shown();
    let begun = news(0, 9, 9);
    let tail = Tail { segment: begun.tail.segment.next(), base_offset: Offset(9), ..begun.tail };
    shown.set(ViewNews { tail, ..begun });
}

#[test]
fn a_shard_that_is_opened_again_may_end_before_where_it_did() {
    let shown = shown();
    assert_eq!(shown.begin_anew(view()).get().tail.next_offset, Offset(0));
    shown.set(news(10, 1, 1));
}

#[test]
#[should_panic(expected = "readers were shown more")]
fn records_that_were_shown_are_not_hidden() {
    shown().set(news(100, 3, 6));
}

#[test]
#[should_panic(expected = "readers were shown more")]
fn bytes_that_were_shown_are_not_hidden() {
    shown().set(news(99, 4, 6));
}

#[test]
#[should_panic(expected = "goes forward only: from 6 to 5")]
fn what_may_be_copied_goes_forward() {
    shown().set(news(100, 4, 5));
}

#[test]
#[should_panic(expected = "11 was not accepted")]
fn what_was_not_accepted_is_not_shown() {
    shown().set(news(100, 11, 6));
}
