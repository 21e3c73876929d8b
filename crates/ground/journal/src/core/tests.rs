use std::time::Duration;

use super::*;

const TAG: Tag = Tag(2);

fn config() -> JournalConfig {
    JournalConfig {
        file_bytes: 64 << 10,
        files_max: 4,
        reserve_bytes: 4 << 10,
        backlog_bytes: 128 << 10,
        record_bytes_max: 16 << 10,
        sync_interval: Duration::from_millis(100),
    }
}

fn at(ms: u64) -> Instant {
    Instant::from_ns(ms * 1_000_000)
}

fn failure() -> JournalFailure {
    JournalFailure::new("write", std::path::Path::new("x"), &std::io::Error::other("broken"))
}

fn empty() -> Core {
    empty_with(config())
}

fn empty_with(config: JournalConfig) -> Core {
    let recovered = RecoveredJournal {
        journal: [3; 16],
        incarnation: Incarnation(0),
        files: VecDeque::new(),
        sequence_max: FileSequence(0),
        dead: Vec::new(),
        spares: 0,
    };
    Core::new(config, recovered, at(0))
}

/// A core whose first file was begun.
fn begun() -> Core {
    let mut core = empty();
    begin(&mut core, 0);
    core
}

fn begin(core: &mut Core, ms: u64) -> Plan {
    let Step::Begin(plan) = core.next_step(at(ms)) else { panic!("a file is to be begun") };
    core.begun(&plan);
    plan
}

fn append(core: &mut Core, bytes: usize) -> Result<JournalPosition, JournalAppendError> {
    let append = JournalAppendOptions::new(core.incarnation());
    core.enqueue(TAG, &[&vec![1; bytes]], &append).map(|enqueued| enqueued.end)
}

fn write(core: &mut Core, ms: u64) -> JournalPosition {
    let Step::Write(group) = core.next_step(at(ms)) else { panic!("a group is to be written") };
    let end = group.end;
    core.written(group, at(ms));
    end
}

#[test]
fn a_fresh_journal_begins_file_one_and_takes_nothing_before() {
    let mut core = empty();
    assert!(matches!(append(&mut core, 1), Err(JournalAppendError::Latched(_))));
    let plan = begin(&mut core, 0);
    assert_eq!((plan.header.sequence, plan.header.predecessor), (FileSequence(1), FileSequence(0)));
    assert_eq!(plan.source, AppendSource::Grow);
    append(&mut core, 1).expect("open");
}

#[test]
fn who_was_refused_is_told_to_try_again_when_the_longest_record_has_room() {
    let backlog_bytes = 20 << 10;
    let longest = config().record_bytes_max;
    let mut core = empty_with(JournalConfig { backlog_bytes, ..config() });
    begin(&mut core, 0);
    append(&mut core, 8 << 10).expect("room");
    assert!(matches!(append(&mut core, longest), Err(JournalAppendError::Backlog { .. })));
    assert!(!core.take_refused(), "half of the backlog is free, which is not enough");
    let Step::Write(group) = core.next_step(at(0)) else { panic!("a group is to be written") };
    assert!(core.take_refused());
    append(&mut core, longest).expect("room");
    core.written(group, at(0));
}

#[test]
fn everything_enqueued_while_a_group_is_written_goes_into_the_next_one() {
    let mut core = begun();
    let first = append(&mut core, 10).expect("room");
    let Step::Write(group) = core.next_step(at(0)) else { panic!("a group is to be written") };
    append(&mut core, 20).expect("room");
    let last = append(&mut core, 30).expect("room");
    core.written(group, at(0));
    assert_eq!(core.watermarks(), (first, first));
    assert_eq!(write(&mut core, 0), last);
    assert_eq!(core.watermarks(), (last, last));
    assert!(matches!(core.next_step(at(0)), Step::Wait(None)));
}

#[test]
fn groups_fill_whole_pages_and_the_next_one_begins_where_the_records_ended() {
    let mut core = begun();
    for expected in [4096, 4096 + 124] {
        append(&mut core, 100).expect("room");
        let Step::Write(group) = core.next_step(at(0)) else { panic!("a group is to be written") };
        assert_eq!(group.offset, expected);
        assert_eq!((group.offset + group.bytes.len() as u64) % PAGE_BYTES, 0);
        core.written(group, at(0));
    }
}

#[test]
fn the_writer_is_woken_by_the_first_record_after_it_went_to_sleep_and_not_by_the_next() {
    let mut core = begun();
    assert!(matches!(core.next_step(at(0)), Step::Wait(None)));
    let append = JournalAppendOptions::new(core.incarnation());
    assert!(core.enqueue(TAG, &[b"a"], &append).expect("room").wake_writer);
    assert!(!core.enqueue(TAG, &[b"b"], &append).expect("room").wake_writer);
}

#[test]
fn a_record_that_does_not_fit_waits_for_the_next_file_which_waits_for_the_last_sync() {
    let mut core = begun();
    let unsynced = JournalAppendOptions::new(core.incarnation()).unsynced();
    for _ in 0..3 {
        core.enqueue(TAG, &[&[1; 16 << 10]], &unsynced).expect("room");
    }
    let end = core.enqueue(TAG, &[&[1; 16 << 10]], &unsynced).expect("room in the next file").end;
    write(&mut core, 0);
    assert!(matches!(core.next_step(at(0)), Step::Sync), "the old file before the new one's header");
    core.synced();
    let plan = begin(&mut core, 0);
    assert_eq!(plan.header.predecessor, FileSequence(1));
    assert_eq!(plan.header.predecessor_end, core.watermarks().1);
    assert_eq!(plan.header.base, plan.header.predecessor_end);
    let Step::Write(group) = core.next_step(at(0)) else { panic!("a group is to be written") };
    assert_eq!((group.offset, group.sequence, group.end), (HEADER_BYTES, FileSequence(2), end));
}

#[test]
fn what_is_written_without_a_sync_is_synced_when_the_interval_is_over() {
    let mut core = begun();
    let unsynced = JournalAppendOptions::new(core.incarnation()).unsynced();
    core.enqueue(TAG, &[b"a"], &unsynced).expect("room");
    let end = write(&mut core, 10);
    assert!(matches!(core.next_step(at(20)), Step::Wait(Some(deadline)) if deadline == at(110)));
    core.enqueue(TAG, &[b"b"], &unsynced).expect("room");
    write(&mut core, 50);
    assert!(core.watermarks().1 < end);
    assert!(matches!(core.next_step(at(110)), Step::Sync), "the oldest unsynced record sets the time");
    core.synced();
    assert_eq!(core.watermarks().0, core.watermarks().1);
}

#[test]
fn much_that_is_written_without_a_sync_does_not_wait_for_the_interval() {
    let mib = 1 << 20;
    let mut core = empty_with(JournalConfig {
        file_bytes: 64 * mib as u64,
        backlog_bytes: 8 * mib,
        record_bytes_max: 2 * mib,
        ..config()
    });
    begin(&mut core, 0);
    let unsynced = JournalAppendOptions::new(core.incarnation()).unsynced();
    let record = vec![1; mib];
    let synced_with = |core: &mut Core| {
        for count in 1..32 {
            core.enqueue(TAG, &[&record], &unsynced).expect("room");
            let end = write(core, 10);
            if core.watermarks().1 == end {
                return count;
            }
        }
        panic!("it waits for the interval");
    };
    assert_eq!(
        (synced_with(&mut core), synced_with(&mut core)),
        (16, 16),
        "16 MiB with their frames are more"
    );
}

#[test]
fn who_asks_for_a_sync_does_not_wait_for_the_interval() {
    let mut core = begun();
    let unsynced = JournalAppendOptions::new(core.incarnation()).unsynced();
    let first = core.enqueue(TAG, &[b"a"], &unsynced).expect("room").end;
    write(&mut core, 10);
    assert!(matches!(core.next_step(at(20)), Step::Wait(Some(_))));
    assert!(core.ask_sync(first), "the writer sleeps");
    assert!(matches!(core.next_step(at(20)), Step::Sync));
    core.synced();
    let second = core.enqueue(TAG, &[b"b"], &unsynced).expect("room").end;
    assert!(!core.ask_sync(second), "the writer was woken by the record");
    let end = write(&mut core, 20);
    assert_eq!(core.watermarks(), (end, end), "it was asked for before it was written");
    core.enqueue(TAG, &[b"c"], &unsynced).expect("room");
    write(&mut core, 20);
    assert!(!core.ask_sync(second));
    assert_eq!(core.watermarks().1, end, "what comes later is not meant");
    assert!(matches!(core.next_step(at(20)), Step::Wait(Some(_))));
}

#[test]
fn a_steady_stream_without_syncs_is_synced_with_a_group_once_it_is_time() {
    let mut core = begun();
    let unsynced = JournalAppendOptions::new(core.incarnation()).unsynced();
    core.enqueue(TAG, &[b"a"], &unsynced).expect("room");
    write(&mut core, 0);
    core.enqueue(TAG, &[b"b"], &unsynced).expect("room");
    let end = write(&mut core, 200);
    assert_eq!(core.watermarks(), (end, end));
}

#[test]
fn a_failure_cuts_all_that_is_not_durable_and_skips_its_positions() {
    let mut core = begun();
    append(&mut core, 10).expect("room");
    let durable = write(&mut core, 0);
    append(&mut core, 20).expect("room");
    let Step::Write(_) = core.next_step(at(0)) else { panic!("a group is to be written") };
    let upto = append(&mut core, 30).expect("room");
    let before = core.incarnation();
    let loss = core.failed(failure(), None, at(5)).expect("records were lost");
    assert_eq!(loss, Loss { after: durable, upto, incarnation: before.next() });
    assert!(matches!(append(&mut core, 1), Err(JournalAppendError::Latched(_))));
    let stale = core.enqueue(TAG, &[b"x"], &JournalAppendOptions::new(before));
    assert_eq!(stale, Err(JournalAppendError::Stale { current: before.next() }));
    let plan = begin(&mut core, 5);
    assert_eq!((plan.header.predecessor_end, plan.header.base), (durable, upto));
    assert!(append(&mut core, 1).expect("open again") > upto);
}

#[test]
fn attempts_at_a_further_file_are_spaced_out() {
    let mut core = begun();
    append(&mut core, 10).expect("room");
    let Step::Write(_) = core.next_step(at(0)) else { panic!("a group is to be written") };
    core.failed(failure(), None, at(0));
    let mut now = at(0);
    let mut sequences = Vec::new();
    for wait in [RETRY_MIN, RETRY_MIN * 2, RETRY_MIN * 4] {
        let Step::Begin(plan) = core.next_step(now) else { panic!("an attempt is due") };
        sequences.push(plan.header.sequence.0);
        assert_eq!(core.failed(failure(), Some(&plan), now), None, "nothing more is lost");
        assert!(matches!(core.next_step(now), Step::Wait(Some(retry_at)) if retry_at == now + wait));
        now = now + wait;
    }
    assert_eq!(sequences, [2, 3, 4], "an attempt that failed may have left its name");
}

#[test]
fn a_file_that_grows_is_left_for_the_first_written_one_that_may_be_used_and_that_is_filled() {
    let mut core = begun();
    append(&mut core, 1).expect("room");
    core.spare_ready();
    append(&mut core, 1).expect("room");
    write(&mut core, 0);
    assert_eq!(core.active(), FileSequence(1), "the only spare one is kept for a failure");
    core.spare_ready();
    let end = append(&mut core, 1).expect("room");
    let plan = begin(&mut core, 0);
    assert_eq!((plan.header.sequence, plan.source), (FileSequence(2), AppendSource::Spare));
    assert_eq!(write(&mut core, 0), end);
    core.spare_ready();
    append(&mut core, 1).expect("room");
    write(&mut core, 0);
    assert_eq!(core.active(), FileSequence(2), "nothing is gained by leaving it");
}

#[test]
fn the_last_spare_file_is_kept_for_the_step_after_a_failure() {
    let mut core = begun();
    core.spare_ready();
    core.spare_failed(FullReason::NoSpace { free_bytes: 0, file_bytes: 1 }, at(0));
    let full = loop {
        match append(&mut core, 8 << 10) {
            Ok(_) => drop(write(&mut core, 0)),
            Err(error) => break error,
        }
    };
    assert!(matches!(full, JournalAppendError::Full(FullReason::NoSpace { .. })), "{full}");
    let reserved = JournalAppendOptions::new(core.incarnation()).reserved();
    core.enqueue(TAG, &[&[1; 3 << 10]], &reserved).expect("kept back for it");
    let Step::Write(_) = core.next_step(at(0)) else { panic!("a group is to be written") };
    core.failed(failure(), None, at(0));
    assert_eq!(begin(&mut core, 0).source, AppendSource::Spare);
    append(&mut core, 8 << 10).expect("there is room in it");
}

#[test]
fn a_file_is_free_once_all_its_tags_are_trimmed_and_it_is_not_being_written() {
    let mut core = begun();
    let append = JournalAppendOptions::new(core.incarnation());
    let first = core.enqueue(Tag(1), &[b"a"], &append).expect("room").end;
    for _ in 0..3 {
        core.enqueue(TAG, &[&[1; 15 << 10]], &append).expect("room");
    }
    write(&mut core, 0);
    let end = core.watermarks().1;
    assert!(!core.trim(TAG, end) && !core.trim(Tag(1), end), "it is being written");
    core.enqueue(TAG, &[&[1; 16 << 10]], &append).expect("room");
    begin(&mut core, 0);
    assert_eq!(core.next_chore(at(0)), Chore::Recycle { sequence: FileSequence(1), keep: true });
    assert!(first < end);
}

#[test]
fn the_owner_of_the_oldest_record_is_asked_to_trim_when_files_get_scarce() {
    let mut core = begun();
    let append = JournalAppendOptions::new(core.incarnation());
    let first = core.enqueue(Tag(1), &[b"a"], &append).expect("room").end;
    assert_eq!(core.trim_wanted(Tag(1)), None);
    for _ in 0..4 {
        core.enqueue(TAG, &[&[1; 15 << 10]], &append).expect("room");
    }
    write(&mut core, 0);
    begin(&mut core, 0);
    assert_eq!(core.trim_wanted(Tag(1)), Some(first));
    assert!(core.trim_wanted(TAG) > Some(first));
    assert_eq!(core.trim_wanted(Tag(3)), None);
}

#[test]
fn a_close_syncs_what_is_left_and_then_ends() {
    let mut core = begun();
    let unsynced = JournalAppendOptions::new(core.incarnation()).unsynced();
    core.enqueue(TAG, &[b"a"], &unsynced).expect("room");
    core.close();
    assert_eq!(core.enqueue(TAG, &[b"b"], &unsynced), Err(JournalAppendError::Closed));
    write(&mut core, 0);
    assert!(matches!(core.next_step(at(0)), Step::Sync));
    core.synced();
    assert!(matches!(core.next_step(at(0)), Step::Done(Ok(()))));
    assert_eq!(core.next_chore(at(0)), Chore::Done);
}
