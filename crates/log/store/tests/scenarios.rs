//! What a segment store promises, scenario by scenario, in a seeded world with a disk that forgets.

mod common;

use std::future::Future;
use std::path::{Path, PathBuf};

use common::*;
use futures::FutureExt;
use tailwater_env::{Progress, Stage};
use tailwater_format::{Offset, Position, Term, TransactionId};
use tailwater_journal::{Journal, JournalPosition};
use tailwater_sim::{Crash, Fault, Faults, Node, World};
use tailwater_store::{RecoveredSegment, Recovery, SegmentStore, StoreConfig, StoreError};

/// A store that only does what a test asks for.
fn quiet() -> StoreConfig {
    StoreConfig {
        fill_bytes: u64::MAX,
        sync_bytes: u64::MAX,
        journal_bytes: u64::MAX,
        sync_age: std::time::Duration::from_secs(1 << 20),
        ..store_config()
    }
}

/// The same with memory for many segments.
fn roomy() -> StoreConfig {
    StoreConfig { pending_bytes_max: 4 << 20, ..quiet() }
}

/// Segments whose files all have to be looked into.
const SEGMENTS_MANY: u32 = 100;

struct Bench {
    world: World,
    node: Node,
}

impl Bench {
    fn new(seed: u64) -> Self {
        let world = World::new(seed);
        let node = world.node("a");
        make_data_dir(&node.env());
        Self { world, node }
    }

    fn open(&self, config: StoreConfig) -> Opened {
        let env = self.node.env();
        self.run(async move { open(&env, config) }).expect("a disk that works")
    }

    fn restart(&self, store: SegmentStore, how: Crash) -> Opened {
        drop(store);
        self.node.restart(how);
        self.open(quiet())
    }

    fn run<T: Send + 'static>(&self, future: impl Future<Output = T> + Send + 'static) -> T {
        self.world.run(self.node.run("test", future)).expect("it ends").expect("nobody crashes it")
    }

    /// Completes when the record is durable.
    fn durable(&self, store: &SegmentStore, end: JournalPosition) {
        let durable = store.journal().durable();
        self.run(async move { durable.wait_for(end).await }).expect("a disk that works");
    }

    fn flush(&self, store: &SegmentStore) -> Result<(), StoreError> {
        let store = store.clone();
        self.run(async move { store.flush().await })
    }

    fn read(&self, store: &SegmentStore, entries: &Entries) -> Vec<u8> {
        let (store, id, to) = (store.clone(), entries.id, entries.position);
        self.run(async move { read_all(&store, &id, Position(0), to).await }).expect("readable")
    }

    /// Seals a segment at its end, and everything comes into files.
    fn seal(&self, store: &SegmentStore, entries: &Entries) {
        let end = store.seal(&entries.id, entries.position).expect("at its end");
        self.durable(store, end);
        self.flush(store).expect("a disk that works");
    }

    /// Deletes a segment, and it is gone from the files.
    fn delete(&self, store: &SegmentStore, entries: &Entries) {
        let end = store.delete(&entries.id).expect("there");
        self.durable(store, end);
        self.flush(store).expect("a disk that works");
    }

    /// Waits until the journal has a file to go on in.
    fn ready(&self, store: &SegmentStore) {
        let journal = store.journal().clone();
        self.run(async move { journal.ready().await });
    }

    /// Waits until the store takes appends again.
    fn resumed(&self, store: &SegmentStore) {
        let (waiting, env) = (store.clone(), self.node.env());
        self.run(async move {
            while waiting.refusal().is_some() {
                env.sleep(std::time::Duration::from_millis(10)).await;
            }
        });
    }

    fn faults(&self, faults: Faults) {
        self.node.disk().set_faults(faults);
    }

    fn files(&self, kind: &str) -> Vec<PathBuf> {
        let files = self.node.disk().files().into_iter().map(|(path, _)| path);
        files.filter(|path| path.to_string_lossy().ends_with(kind)).collect()
    }
}

/// An empty store, and a fresh segment in it.
fn begun(seed: u64) -> (Bench, SegmentStore, Entries) {
    let bench = Bench::new(seed);
    let (store, _) = bench.open(quiet());
    let entries = Entries::new(segment(0, 0, 1));
    store.create(entries.id).expect("fresh");
    (bench, store, entries)
}

/// A segment with `count` durable entries, and the bytes that they are.
fn fill(bench: &Bench, store: &SegmentStore, entries: &mut Entries, count: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut end = JournalPosition(0);
    for number in 0..count {
        let entry = entries.make(if number % 4 == 3 { 0 } else { 100 });
        end = store.append(&entries.id, entries.position, entry.clone()).expect("taken");
        entries.took(&entry);
        bytes.extend_from_slice(&entry);
    }
    bench.durable(store, end);
    bytes
}

fn recovered_lengths(recovered: &[RecoveredSegment]) -> Vec<(u64, bool)> {
    recovered.iter().map(|segment| (segment.length.0, segment.sealed)).collect()
}

#[test]
fn whoever_waits_for_a_start_is_told_how_many_segments_are_read_and_how_many_are_to_be_scanned() {
    let bench = Bench::new(2);
    let (store, _) = bench.open(store_config());
    for number in 0..5 {
        let mut entries = Entries::new(segment(0, number, 1));
        store.create(entries.id).expect("fresh");
        fill(&bench, &store, &mut entries, 10);
        store.seal(&entries.id, entries.position).expect("taken");
    }
    bench.flush(&store).expect("a disk that works");
    drop(store);
    bench.node.restart(Crash::Process);
    let spoken_of = [bench.files(".idx"), bench.files("checkpoint")].concat();
    let env = bench.node.env();
    let [read, scanned] = bench.run(async move {
        let (dir, progress) = (Path::new(DATA), Progress::default());
        let begin = || Recovery::begin_telling(&env, dir, store_config(), progress.clone()).expect("begun");
        drop(begin());
        let read = progress.stage();
        // With another journal, nothing speaks of the segments any more.
        spoken_of.iter().for_each(|path| env.disk().remove_file(path).expect("removed"));
        let mut recovery = begin();
        let mut replay = |_, end, bytes: &[u8]| recovery.replay(end, bytes);
        let journal = Journal::open(&env, &dir.join("other"), journal_config(), &mut replay).expect("new");
        let _store = recovery.finish(journal).expect("a disk that works");
        [read, progress.stage()]
    });
    assert_eq!((read.what, read.done), ("segments", read.whole));
    assert!(read.whole >= 5, "{read}");
    assert_eq!(scanned, Stage { what: "segments to be scanned", done: 5, whole: 5 });
}

#[test]
fn what_is_not_durable_is_not_read_and_what_is_durable_reads_back() {
    let bench = Bench::new(1);
    let (store, recovered) = bench.open(quiet());
    assert_eq!(recovered, []);
    let mut entries = Entries::new(segment(0, 0, 1));
    store.create(entries.id).expect("fresh");
    let end = entries.append(&store, 50).expect("taken");
    assert_eq!(store.appended(&entries.id), Ok(entries.position));
    assert_eq!(store.durable_length(&entries.id), Ok(Position(0)));
    let read = store.read(&entries.id, Position(0), 100).now_or_never();
    assert_eq!(read, Some(Ok("".into())), "from memory, so at once");
    bench.durable(&store, end);
    assert_eq!(store.durable_length(&entries.id), Ok(entries.position));
    assert_eq!(bench.read(&store, &entries), Entries::new(entries.id).make(50));
    let (reader, id, beyond) = (store.clone(), entries.id, Position(entries.position.0 + 1));
    let refused = bench.run(async move { reader.read(&id, beyond, 1).await });
    assert_eq!(refused, Err(StoreError::BeyondDurable { position: beyond, durable: entries.position }));
}

#[test]
fn appends_that_do_not_continue_are_refused() {
    let bench = Bench::new(2);
    let (store, _) = bench.open(quiet());
    let id = segment(0, 0, 5);
    let mut entries = Entries::new(id);
    assert_eq!(store.append(&id, Position(0), entries.make(9)), Err(StoreError::Unknown(id)));
    store.create(id).expect("fresh");
    let first = entries.make(9);
    entries.append(&store, 9).expect("taken");
    let appended = entries.position;
    let gap = Position(appended.0 + 1);
    let refused = store.append(&id, gap, entries.make(9));
    assert_eq!(refused, Err(StoreError::NotContinuing { position: gap, appended }));
    assert!(
        matches!(store.append(&id, appended, first.clone()), Err(StoreError::Entry(_))),
        "entry id 0 again"
    );
    let mut twice = entries.make(9).to_vec();
    twice.extend_from_slice(&first);
    assert!(matches!(store.append(&id, appended, twice.into()), Err(StoreError::EntryLength { .. })));
    assert!(matches!(store.append(&id, appended, "garbage".into()), Err(StoreError::Entry(_))));
    let other = Entries { entry_id: 1, ..Entries::new(segment(1, 0, 5)) };
    assert!(matches!(store.append(&id, appended, other.make(9)), Err(StoreError::Entry(_))));
    entries.append(&store, 0).expect("none of it did harm");
}

#[test]
fn a_higher_term_fences_the_old_owner_across_restarts() {
    let bench = Bench::new(3);
    let (store, _) = bench.open(quiet());
    let mut old = Entries::new(segment(0, 0, 1));
    store.create(old.id).expect("fresh");
    let end = store.create(segment(0, 1, 3)).expect("higher");
    let fenced = StoreError::Fenced { term: Term(1), highest: Term(3) };
    assert_eq!(old.append(&store, 5), Err(fenced.clone()));
    assert_eq!(store.create(segment(0, 2, 1)), Err(fenced));
    assert!(matches!(store.create(segment(0, 1, 3)), Err(StoreError::NotNext { .. })));
    bench.durable(&store, end);
    let (store, _) = bench.restart(store, Crash::Power);
    assert_eq!(store.highest_term(&shard(0)), Some(Term(3)));
    assert!(matches!(store.create(segment(0, 2, 2)), Err(StoreError::Fenced { .. })));
}

#[test]
fn filled_bytes_leave_memory_and_come_back_from_the_file() {
    let (bench, store, mut entries) = begun(4);
    let mut bytes = fill(&bench, &store, &mut entries, 10);
    assert_eq!(bench.files(".seg"), Vec::<PathBuf>::new(), "nothing is written on the way of an append");
    bench.flush(&store).expect("a disk that works");
    assert_eq!(store.stats().pending_bytes, 0);
    assert_eq!(bench.read(&store, &entries), bytes);
    assert!(store.stats().file_reads > 0);
    bytes.extend(fill(&bench, &store, &mut entries, 3));
    assert_eq!(bench.read(&store, &entries), bytes, "part of it in the file, part in memory");
    assert!(store.stats().trimmed > JournalPosition(0));
}

#[test]
fn a_crash_leaves_what_was_durable_and_nobody_appends_to_it_again() {
    for (seed, how) in [(5, Crash::Process), (6, Crash::Power)] {
        let (bench, store, mut entries) = begun(seed);
        let mut bytes = fill(&bench, &store, &mut entries, 4);
        bench.flush(&store).expect("a disk that works");
        bytes.extend(fill(&bench, &store, &mut entries, 5));

        let (store, recovered) = bench.restart(store, how);
        assert_eq!(recovered_lengths(&recovered), [(entries.position.0, false)]);
        let contents = recovered[0].contents.expect("entries");
        assert_eq!(contents.last.header().next_offset(), Offset(entries.offset));
        assert_eq!(contents.first_offset, Offset(0));
        assert_eq!(bench.read(&store, &entries), bytes);
        let length = entries.position;
        assert_eq!(entries.append(&store, 1), Err(StoreError::Recovered { length }));
        let end = store.seal(&entries.id, length).expect("at its length");
        bench.durable(&store, end);
        bench.flush(&store).expect("a disk that works");
        let mut next = Entries { offset: entries.offset, ..Entries::new(segment(0, 1, 2)) };
        store.create(next.id).expect("a higher term");
        fill(&bench, &store, &mut next, 2);

        let (store, recovered) = bench.restart(store, how);
        assert_eq!(recovered_lengths(&recovered), [(length.0, true), (next.position.0, false)]);
        assert_eq!(bench.read(&store, &entries), bytes);
    }
}

#[test]
fn a_sealed_segment_has_its_length_for_ever() {
    let (bench, store, mut entries) = begun(7);
    fill(&bench, &store, &mut entries, 3);
    let length = entries.position;
    fill(&bench, &store, &mut entries, 3);
    bench.flush(&store).expect("a disk that works");
    let beyond = Position(entries.position.0 + 1);
    let refused = store.seal(&entries.id, beyond);
    assert_eq!(refused, Err(StoreError::SealBeyondEnd { length: beyond, appended: entries.position }));
    let end = store.seal(&entries.id, length).expect("below what is in the file");
    assert_eq!(store.seal(&entries.id, length), Ok(end), "again is no error");
    assert_eq!(store.seal(&entries.id, Position(0)), Err(StoreError::Sealed { length }));
    bench.durable(&store, end);
    bench.flush(&store).expect("a disk that works");
    let path = bench.files(".seg").pop().expect("a file");
    assert_eq!(bench.node.disk().contents(&path).map(|bytes| bytes.len() as u64), Some(length.0), "cut");
    let contents = store.info(&entries.id).expect("there").contents.expect("read again");
    assert_eq!(contents.last.header().entry_id.0, 2);
    let (store, recovered) = bench.restart(store, Crash::Power);
    assert_eq!(recovered_lengths(&recovered), [(length.0, true)]);
    assert_eq!(recovered[0].contents, Some(contents));
    assert_eq!(entries.append(&store, 1), Err(StoreError::Sealed { length }));
}

#[test]
fn a_deleted_segment_is_gone_with_its_files_and_stays_gone() {
    let (bench, store, mut entries) = begun(8);
    fill(&bench, &store, &mut entries, 3);
    bench.seal(&store, &entries);
    let end = store.delete(&entries.id).expect("there");
    assert_eq!(store.appended(&entries.id), Err(StoreError::Unknown(entries.id)));
    bench.durable(&store, end);
    bench.flush(&store).expect("a disk that works");
    assert_eq!(bench.files(".seg").len() + bench.files(".idx").len(), 0);
    assert_eq!(store.stats().pending_bytes, 0);
    let (_store, recovered) = bench.restart(store, Crash::Power);
    assert_eq!(recovered, []);
}

#[test]
fn directories_go_with_the_last_segment_in_them_and_come_back_with_the_next_one() {
    let bench = Bench::new(81);
    let (store, _) = bench.open(quiet());
    let names = |dir: &str| bench.node.env().disk().list(&PathBuf::from(DATA).join("segments").join(dir));
    let stream = shard(0).stream.to_string();
    let mut kept = Entries::new(segment(1, 0, 1));
    for number in 0..2 {
        let mut entries = Entries::new(segment(0, number, 1));
        store.create(entries.id).expect("fresh");
        fill(&bench, &store, &mut entries, 3);
        if number == 0 {
            store.create(kept.id).expect("fresh");
            fill(&bench, &store, &mut kept, 3);
        }
        bench.flush(&store).expect("a disk that works");
        assert_eq!(names(&stream).expect("there"), ["0", "1"], "round {number}");
        bench.delete(&store, &entries);
        assert_eq!(names(&stream).expect("the other shard is there"), ["1"], "round {number}");
    }
    let mut again = Entries::new(segment(0, 2, 1));
    store.create(again.id).expect("fresh");
    let bytes = fill(&bench, &store, &mut again, 3);
    bench.flush(&store).expect("a disk that works");
    let (store, _) = bench.restart(store, Crash::Power);
    assert_eq!(bench.read(&store, &again), bytes, "names are durable in a directory that was made again");
    for id in [again.id, kept.id] {
        let end = store.delete(&id).expect("there");
        bench.durable(&store, end);
    }
    bench.flush(&store).expect("a disk that works");
    assert!(!names("").expect("there").contains(&stream));
}

#[test]
fn empty_directories_that_a_crash_left_are_removed_at_the_next_start() {
    let bench = Bench::new(82);
    let dir = PathBuf::from(DATA).join("segments").join(shard(0).stream.to_string()).join("0");
    bench.node.env().disk().create_dir_all(&dir).expect("a disk that works");
    let (_store, recovered) = bench.open(quiet());
    assert_eq!(recovered, []);
    let names = bench.node.env().disk().list(&PathBuf::from(DATA).join("segments")).expect("there");
    assert!(!names.contains(&shard(0).stream.to_string()), "{names:?}");
}

#[test]
fn a_full_disk_refuses_appends_says_so_keeps_what_was_acknowledged_and_resumes() {
    let (bench, store, mut entries) = begun(9);
    let bytes = fill(&bench, &store, &mut entries, 8);
    let disk = bench.node.disk();
    disk.set_capacity(disk.used());
    assert!(matches!(bench.flush(&store), Err(StoreError::NoSpace { .. })));
    let refused = entries.append(&store, 5).expect_err("no room");
    assert!(matches!(&refused, StoreError::NoSpace { free_bytes: 0, .. }), "{refused}");
    assert_eq!(bench.read(&store, &entries), bytes);
    store.seal(&entries.id, entries.position).expect("metadata has room");

    disk.set_capacity(u64::MAX);
    bench.resumed(&store);
    let mut next = Entries { offset: entries.offset, ..Entries::new(segment(0, 1, 1)) };
    store.create(next.id).expect("service resumes by itself");
    fill(&bench, &store, &mut next, 2);
    assert_eq!(bench.read(&store, &entries), bytes);
}

/// [`SEGMENTS_MANY`] segments with twenty entries each, in their files.
fn fill_many(bench: &Bench, store: &SegmentStore) -> Vec<Entries> {
    let mut entries: Vec<Entries> =
        (0..SEGMENTS_MANY).map(|number| Entries::new(segment(number, 0, 1))).collect();
    for entries in &mut entries {
        store.create(entries.id).expect("fresh");
        fill(bench, store, entries, 20);
    }
    bench.flush(store).expect("a disk that works");
    entries
}

#[test]
fn on_a_full_disk_a_restarted_store_scans_a_segment_once_however_often_it_is_looked_at() {
    let bench = Bench::new(31);
    let (store, _) = bench.open(roomy());
    let mut entries = fill_many(&bench, &store);
    // Of some the end is in the journal only.
    for entries in entries.iter_mut().step_by(2) {
        fill(&bench, &store, entries, 20);
    }
    let find = |store: &SegmentStore, entries: &[Entries]| {
        let (store, ids): (_, Vec<_>) = (store.clone(), entries.iter().map(|entries| entries.id).collect());
        bench.run(async move {
            let mut found = Vec::new();
            for id in ids {
                for offset in [0, 7, 14, 28] {
                    found.push(store.locate_offset(&id, Offset(offset)).await.expect("there"));
                }
                found.push(store.locate_transaction_id(&id, TransactionId(30)).await.expect("there"));
            }
            found
        })
    };
    let known = find(&store, &entries);
    assert_eq!(store.stats().file_reads, 0, "a segment that is followed from its beginning has its index");
    drop(store);

    let disk = bench.node.disk();
    disk.set_capacity(disk.used());
    bench.node.restart(Crash::Process);
    let (store, recovered) = bench.open(roomy());
    assert!(recovered.iter().all(|segment| !segment.sealed));
    let found = find(&store, &entries);
    let scans = store.stats().file_reads;
    assert_eq!(scans, entries.len() as u64, "each is scanned once");
    for (found, known) in found.iter().zip(&known) {
        assert!(*found <= *known && known.0 - found.0 < 2 * 256, "{found} is not close to {known}");
    }
    assert_eq!(find(&store, &entries), found);
    assert_eq!(store.stats().file_reads, scans, "and not again, though nothing is sealed");

    disk.set_capacity(u64::MAX);
    // One that is cut has no point behind its end.
    let (cut, length) = (entries[1].id, found[5 + 2]);
    let ends: Vec<_> = entries
        .iter()
        .map(|entries| match entries.id == cut {
            true => store.seal(&entries.id, length),
            false => store.seal(&entries.id, entries.position),
        })
        .collect();
    for end in ends {
        bench.durable(&store, end.expect("there is room"));
    }
    bench.flush(&store).expect("there is room");
    let behind = find(&store, &entries[1..2]);
    assert!(length > Position(0) && behind.iter().all(|position| *position < length), "{behind:?}");
    assert_eq!(find(&store, &entries[..1]), found[..5], "the sidecar has the same points");
}

#[test]
fn after_a_failed_sync_the_file_is_replaced_and_nothing_is_lost() {
    let faults = [
        Faults { sync: Fault::Next(1), ..Faults::default() },
        Faults { sync: Fault::Next(2), ..Faults::default() },
        Faults { sync_dir: Fault::Next(1), ..Faults::default() },
        Faults { write: Fault::Next(1), ..Faults::default() },
        Faults { create: Fault::Next(1), ..Faults::default() },
        Faults { read: Fault::Next(1), sync: Fault::Next(1), ..Faults::default() },
    ];
    for (seed, faults) in faults.into_iter().enumerate() {
        for filled_before in [false, true] {
            let (bench, store, mut entries) = begun(10 + seed as u64);
            let mut bytes = Vec::new();
            if filled_before {
                bytes = fill(&bench, &store, &mut entries, 6);
                bench.flush(&store).expect("a disk that works");
            }
            bytes.extend(fill(&bench, &store, &mut entries, 6));
            bench.faults(faults);
            let flushed = bench.flush(&store);
            // A file that is there is not created again, nor its name synced; and the journal may be the one whose
            // name can't be synced, which it gets over by itself.
            let spared = (filled_before && faults.create != Fault::Never) || faults.sync_dir != Fault::Never;
            match &flushed {
                Ok(()) => assert!(spared, "{faults:?} was not noticed"),
                Err(StoreError::DiskFailed(why)) => assert!(why.contains("injected"), "{why}"),
                Err(other) => panic!("{faults:?}: {other}"),
            }
            assert_eq!(store.stats().rounds_failed, u64::from(flushed.is_err()), "{faults:?}");
            // One failure costs a replacement: appends are taken all the time, and nothing is missing.
            assert_eq!(store.refusal(), None, "{faults:?}");
            bench.faults(Faults::default());
            assert_eq!(bench.read(&store, &entries), bytes);
            bench.flush(&store).expect("the second attempt");
            assert_eq!(store.stats().pending_bytes, 0);
            assert_eq!(bench.read(&store, &entries), bytes);
            assert_eq!(store.refusal(), None);
            entries.append(&store, 5).expect("open for appends");
            let (store, recovered) = bench.restart(store, Crash::Power);
            assert!(recovered[0].length.0 >= bytes.len() as u64 && recovered[0].damaged.is_none());
            let read = store.clone();
            let to = Position(bytes.len() as u64);
            let id = entries.id;
            let found = bench.run(async move { read_all(&read, &id, Position(0), to).await });
            assert_eq!(found.as_deref(), Ok(&bytes[..]), "{faults:?}");
        }
    }
}

#[test]
fn files_that_can_not_be_synced_refuse_appends_with_the_reason_and_lose_nothing() {
    let always = Fault::PerMillion(1_000_000);
    let faults = [
        Faults { sync: always, ..Faults::default() },
        Faults { sync_dir: always, ..Faults::default() },
        Faults { write: always, ..Faults::default() },
    ];
    for (seed, faults) in faults.into_iter().enumerate() {
        let (bench, store, mut entries) = begun(40 + seed as u64);
        let mut bytes = fill(&bench, &store, &mut entries, 6);
        bench.faults(faults);
        for _ in 0..2 {
            let failed = bench.flush(&store).expect_err("nothing becomes durable in files");
            assert!(matches!(&failed, StoreError::DiskFailed(why) if why.contains("injected")), "{failed}");
        }
        // The second failure in a row is told to whoever appends or begins a segment, with what is wrong and where.
        let refused = entries.append(&store, 50).expect_err("the disk fails");
        assert_eq!(Some(&refused), store.refusal().as_ref());
        let why = refused.to_string();
        assert!(why.contains("injected") && why.contains("/data"), "{why}");
        assert_eq!(store.create(segment(1, 0, 1)), Err(refused));
        assert_eq!(bench.read(&store, &entries), bytes, "{faults:?}");
        assert_eq!(store.durable_length(&entries.id), Ok(entries.position));

        // The disk works again: service resumes by itself, in the same segment, since the journal lost nothing.
        bench.faults(Faults::default());
        bench.resumed(&store);
        bytes.extend(fill(&bench, &store, &mut entries, 3));
        assert_eq!(bench.read(&store, &entries), bytes);
        bench.flush(&store).expect("a disk that works");
        let (store, recovered) = bench.restart(store, Crash::Power);
        assert_eq!(recovered_lengths(&recovered), [(entries.position.0, false)], "{faults:?}");
        assert_eq!(bench.read(&store, &entries), bytes, "{faults:?}");
    }
}

#[test]
fn a_failed_sync_of_the_journal_cuts_what_was_not_acknowledged_and_a_new_segment_goes_on() {
    for seed in 50..58 {
        let (bench, store, mut entries) = begun(seed);
        let bytes = fill(&bench, &store, &mut entries, 3);
        let durable = entries.position;
        let acknowledged = entries.clone();
        // Syncs fail, and so does every attempt to begin another journal file.
        let always = Fault::PerMillion(1_000_000);
        bench.faults(Faults { sync: always, sync_dir: always, create: always, ..Faults::default() });
        let end = entries.append(&store, 9).expect("taken before the disk is asked");
        let waiting = store.journal().durable();
        let lost = bench.run(async move { waiting.wait_for(end).await }).expect_err("not durable");
        assert!(!lost.closed, "{lost:?}");
        // What was acknowledged is read, what was not is not, and nothing more is taken.
        assert_eq!(store.durable_length(&entries.id), Ok(durable));
        assert_eq!(bench.read(&store, &acknowledged), bytes);
        let (reading, id) = (store.clone(), entries.id);
        let beyond = Position(durable.0 + 1);
        let read = bench.run(async move { reading.read(&id, beyond, 10).await });
        assert_eq!(read, Err(StoreError::BeyondDurable { position: beyond, durable }));
        let refused = entries.append(&store, 9).expect_err("this segment is over");
        assert_eq!(refused, StoreError::Lost { durable });
        assert!(refused.to_string().contains("seal it there"), "{refused}");
        let next = Entries { offset: acknowledged.offset, ..Entries::new(segment(0, 1, 1)) };
        let refused = store.create(next.id).expect_err("its writer has to know");
        assert_eq!(refused, StoreError::LostBefore { id: entries.id, durable });
        let refused = store.create(segment(1, 0, 1)).expect_err("the journal has no file to go on in");
        assert!(
            matches!(&refused, StoreError::Journal(_)) && refused.to_string().contains("injected"),
            "{refused}"
        );
        assert_eq!(bench.read(&store, &acknowledged), bytes);

        // The disk works again: the segment is sealed where it ends, and a new one goes on from there.
        bench.faults(Faults::default());
        bench.ready(&store);
        let end = store.seal(&entries.id, durable).expect("where it ends");
        bench.durable(&store, end);
        let mut next = next;
        store.create(next.id).expect("service resumes");
        let more = fill(&bench, &store, &mut next, 4);
        assert_eq!(bench.read(&store, &next), more);
        // The lost entry may be whole on the disk: it stays away all the same.
        let (store, recovered) = bench.restart(store, Crash::Power);
        assert_eq!(
            recovered_lengths(&recovered),
            [(durable.0, true), (next.position.0, false)],
            "seed {seed}"
        );
        assert_eq!(bench.read(&store, &acknowledged), bytes, "seed {seed}");
        assert_eq!(bench.read(&store, &next), more, "seed {seed}");
    }
}

#[test]
fn names_that_could_not_be_synced_are_not_counted_on() {
    for seed in 100..116 {
        let (bench, store, mut entries) = begun(seed);
        let bytes = fill(&bench, &store, &mut entries, 6);
        // The directories of data, segments, stream and shard; the checkpoint's own can be synced.
        bench.faults(Faults { sync_dir: Fault::Next(4), ..Faults::default() });
        bench.flush(&store).expect_err("no name is durable");
        let (store, recovered) = bench.restart(store, Crash::Power);
        assert_eq!(recovered_lengths(&recovered), [(entries.position.0, false)], "seed {seed}");
        assert_eq!(bench.read(&store, &entries), bytes);
    }
}

#[test]
fn a_sidecar_that_only_a_kill_has_left_is_not_counted_on() {
    for seed in 120..136 {
        let (bench, store, mut entries) = begun(seed);
        fill(&bench, &store, &mut entries, 6);
        bench.flush(&store).expect("a disk that works");
        let end = store.seal(&entries.id, entries.position).expect("at its end");
        bench.durable(&store, end);
        bench.faults(Faults { sync_dir: Fault::Next(100), ..Faults::default() });
        bench.flush(&store).expect_err("the sidecar's name is not durable");
        assert_eq!(bench.files(".idx").len(), 1);
        bench.faults(Faults::default());
        let (store, recovered) = bench.restart(store, Crash::Process);
        assert_eq!(recovered_lengths(&recovered), [(entries.position.0, true)], "seed {seed}");
        bench.flush(&store).expect("a disk that works");
        let (_store, recovered) = bench.restart(store, Crash::Power);
        assert_eq!(recovered_lengths(&recovered), [(entries.position.0, true)], "seed {seed}");
    }
}

#[test]
fn what_the_journal_lost_is_cut_and_its_segment_is_over() {
    let bench = Bench::new(20);
    let (store, _) = bench.open(quiet());
    let mut entries = Entries::new(segment(0, 0, 1));
    let mut other = Entries::new(segment(1, 0, 1));
    store.create(entries.id).expect("fresh");
    store.create(other.id).expect("fresh");
    fill(&bench, &store, &mut other, 1);
    let bytes = fill(&bench, &store, &mut entries, 3);
    let durable = entries.position;
    bench.faults(Faults { sync: Fault::Next(1), ..Faults::default() });
    let end = entries.append(&store, 9).expect("taken");
    let waiting = store.journal().durable();
    bench.run(async move { waiting.wait_for(end).await }).expect_err("lost");
    bench.faults(Faults::default());
    // The journal goes on in another file, beyond the positions that were lost.
    bench.ready(&store);
    fill(&bench, &store, &mut other, 2);
    assert_eq!(store.durable_length(&entries.id), Ok(durable));
    assert_eq!(store.appended(&entries.id), Ok(durable));
    assert_eq!(entries.append(&store, 9), Err(StoreError::Lost { durable }));
    let end = store.seal(&entries.id, durable).expect("where it ends");
    bench.durable(&store, end);
    bench.flush(&store).expect("a disk that works");
    let (store, recovered) = bench.restart(store, Crash::Power);
    assert_eq!(recovered_lengths(&recovered), [(durable.0, true), (other.position.0, false)]);
    entries.position = durable;
    assert_eq!(bench.read(&store, &entries), bytes);
}

/// Appends an entry that the journal loses. It takes records again after that.
fn lose(bench: &Bench, store: &SegmentStore, entries: &mut Entries) {
    // All that came before is synced.
    let mut other = Entries::new(segment(7, 0, 1));
    store.create(other.id).expect("fresh");
    fill(bench, store, &mut other, 1);
    bench.faults(Faults { sync: Fault::Next(1), ..Faults::default() });
    let end = entries.append(store, 9).expect("taken");
    let waiting = store.journal().durable();
    bench.run(async move { waiting.wait_for(end).await }).expect_err("lost");
    bench.faults(Faults::default());
    bench.ready(store);
}

#[test]
fn a_segment_does_not_begin_behind_what_the_journal_lost_of_the_one_before_it() {
    for (seed, count) in [(21, 3), (22, 0)] {
        let (bench, store, mut entries) = begun(seed);
        let whole = if count > 0 { fill(&bench, &store, &mut entries, count) } else { Vec::new() };
        let acknowledged = entries.clone();
        let durable = entries.position;
        lose(&bench, &store, &mut entries);
        // The journal would take it. Its writer does not know yet, and goes on behind the lost entry.
        let refused = store.create(segment(0, 1, 1)).expect_err("there would be a gap");
        assert_eq!(refused, StoreError::LostBefore { id: entries.id, durable });
        assert!(refused.to_string().contains("seal it there first"), "{refused}");
        store.create(segment(1, 0, 1)).expect("another shard");
        // It knows by now.
        store.seal(&entries.id, durable).expect("where it ends");
        let mut next = Entries { offset: acknowledged.offset, ..Entries::new(segment(0, 1, 1)) };
        store.create(next.id).expect("behind the end");
        let more = fill(&bench, &store, &mut next, 2);
        let (store, _) = bench.restart(store, Crash::Power);
        assert_eq!(bench.read(&store, &acknowledged), whole);
        assert_eq!(bench.read(&store, &next), more);
    }
}

#[test]
fn a_segment_of_a_higher_term_begins_and_one_begins_behind_a_deletion_whatever_was_lost_before() {
    let (bench, store, mut entries) = begun(23);
    lose(&bench, &store, &mut entries);
    let refused = store.create(segment(0, 1, 1)).expect_err("there would be a gap");
    assert_eq!(refused, StoreError::LostBefore { id: entries.id, durable: Position(0) });
    store.delete(&entries.id).expect("there");
    store.create(segment(0, 1, 1)).expect("nothing is before it");

    let (bench, store, mut entries) = begun(24);
    lose(&bench, &store, &mut entries);
    store.create(segment(0, 1, 2)).expect("its owner has looked where the shard ends");
}

#[test]
fn pending_memory_is_bounded_and_comes_back() {
    let bench = Bench::new(21);
    let config = StoreConfig { pending_bytes_max: 2_000, ..quiet() };
    let (store, _) = bench.open(config);
    let mut entries = Entries::new(segment(0, 0, 1));
    store.create(entries.id).expect("fresh");
    let refused = loop {
        match entries.append(&store, 100) {
            Ok(end) => bench.durable(&store, end),
            Err(refused) => break refused,
        }
    };
    assert!(matches!(refused, StoreError::Full { pending_bytes_max: 2_000, .. }), "{refused}");
    bench.flush(&store).expect("a disk that works");
    entries.append(&store, 100).expect("room again");
}

#[test]
fn a_file_whose_sidecar_has_no_points_is_scanned_once_however_many_there_are() {
    let bench = Bench::new(32);
    let (store, _) = bench.open(roomy());
    let entries = fill_many(&bench, &store);
    drop(store);
    // Sealed by the next start, as the log does with those that were open: nobody has their points then.
    bench.node.restart(Crash::Process);
    let (store, _) = bench.open(roomy());
    for entries in &entries {
        bench.durable(&store, store.seal(&entries.id, entries.position).expect("at its end"));
    }
    bench.flush(&store).expect("a disk that works");
    assert_eq!(bench.files(".idx").len(), entries.len());
    let find = || {
        let (store, ids): (_, Vec<_>) = (store.clone(), entries.iter().map(|entries| entries.id).collect());
        bench.run(async move {
            let mut found = Vec::new();
            for id in ids {
                found.push(store.locate_offset(&id, Offset(14)).await.expect("there"));
            }
            found
        })
    };
    let found = find();
    assert!(found.iter().all(|position| *position > Position(0)), "{found:?}");
    let scans = store.stats().file_reads;
    assert_eq!(scans, entries.len() as u64, "each is scanned once");
    for _ in 0..3 {
        assert_eq!(find(), found);
    }
    assert_eq!(store.stats().file_reads, scans, "and not again");
}

#[test]
fn lookups_find_entries_in_memory_in_sidecars_and_after_these_are_damaged() {
    let (bench, store, mut entries) = begun(22);
    fill(&bench, &store, &mut entries, 40);
    let find = |store: &SegmentStore| {
        let (store, id) = (store.clone(), entries.id);
        bench.run(async move {
            let offset = store.locate_offset(&id, Offset(25)).await.expect("there");
            let time = store.locate_transaction_id(&id, TransactionId(60)).await.expect("there");
            (offset, time)
        })
    };
    let found = find(&store);
    assert!(found.0 > Position(0) && found.1 > Position(0));
    bench.seal(&store, &entries);
    assert_eq!(bench.files(".idx").len(), 1);
    assert_eq!(find(&store), found);
    let (store, _) = bench.restart(store, Crash::Power);
    assert_eq!(find(&store), found);
    // A point is damaged: scanned. Then the header: the segment counts as unsealed, and loses nothing else.
    let sidecar = bench.files(".idx").pop().expect("one");
    assert!(bench.node.disk().flip_bit(&sidecar, 180, 1));
    let (store, recovered) = bench.restart(store, Crash::Power);
    assert_eq!(recovered_lengths(&recovered), [(entries.position.0, true)]);
    assert_eq!(find(&store), found);
    assert!(bench.node.disk().flip_bit(&sidecar, 40, 1));
    let (store, recovered) = bench.restart(store, Crash::Power);
    assert_eq!(recovered_lengths(&recovered), [(entries.position.0, false)]);
    assert_eq!(find(&store), found);
}

#[test]
fn a_damaged_checkpoint_costs_a_scan_and_nothing_else() {
    let (bench, store, mut entries) = begun(23);
    let mut bytes = fill(&bench, &store, &mut entries, 5);
    bench.flush(&store).expect("a disk that works");
    bytes.extend(fill(&bench, &store, &mut entries, 5));
    let checkpoint = bench.files("checkpoint").pop().expect("one");
    assert!(bench.node.disk().flip_bit(&checkpoint, 12, 3));
    let (store, recovered) = bench.restart(store, Crash::Power);
    assert_eq!(recovered_lengths(&recovered), [(entries.position.0, false)]);
    assert_eq!(bench.read(&store, &entries), bytes);
}

#[test]
fn a_second_owner_of_the_data_directory_is_told_who_has_it() {
    let bench = Bench::new(24);
    let env = bench.node.env();
    let path = std::path::Path::new(DATA);
    let first = tailwater_store::lock_data_dir(&env, path).expect("free");
    let refused = tailwater_store::lock_data_dir(&env, path).err().expect("held").to_string();
    assert!(refused.contains(&format!("process {}", std::process::id())), "{refused}");
    drop(first);
    tailwater_store::lock_data_dir(&env, path).expect("free again");
}
