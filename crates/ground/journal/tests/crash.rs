//! The machine stops, or the disk fails, at every single call: what was acknowledged is replayed, in order, and
//! nothing is replayed after a gap.

mod world;

use std::path::Path;
use std::time::Duration;

use futures::FutureExt;
use futures::stream::{FuturesUnordered, StreamExt};
use tailwater_journal::{
    FileSequence, Incarnation, Journal, JournalAppendError, JournalAppendOptions, JournalConfig,
    JournalPosition, Lost, Tag,
};
use world::{Fault, TestDisk, World, splitmix};

const TAGS: [Tag; 2] = [Tag(1), Tag(2)];

fn config() -> JournalConfig {
    JournalConfig {
        file_bytes: 64 << 10,
        files_max: 5,
        reserve_bytes: 8 << 10,
        backlog_bytes: 32 << 10,
        record_bytes_max: 8 << 10,
        sync_interval: Duration::from_millis(20),
    }
}

fn dir() -> &'static Path {
    Path::new("/data/journal")
}

/// What became of a record, as its appender knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Unknown,
    Acknowledged,
    Lost,
}

/// Every record that was taken, in order, over all starts.
#[derive(Default)]
struct Model {
    records: Vec<Record>,
    /// The workload needs nothing of a tag that ends at or before this, by tag.
    trimmed: [JournalPosition; 2],
}

#[derive(Clone, Copy, Debug)]
struct Record {
    incarnation: Incarnation,
    tag: usize,
    end: JournalPosition,
    fate: Fate,
}

impl Model {
    /// Appends records of both tags in bursts, waits for some, trims now and then, and goes on after losses.
    async fn work(&mut self, world: &World, journal: &Journal, seed: u64, steps: usize) {
        let mut seed = seed;
        let mut waits = FuturesUnordered::new();
        for _ in 0..steps {
            let mut append = JournalAppendOptions::new(journal.incarnation());
            append.sync = !splitmix(&mut seed).is_multiple_of(4);
            for _ in 0..splitmix(&mut seed) % 4 {
                let tag = (splitmix(&mut seed) % 2) as usize;
                let length = if splitmix(&mut seed).is_multiple_of(5) { 6000 } else { 40 };
                let number = self.records.len();
                let mut bytes = vec![number as u8; length + (splitmix(&mut seed) % 100) as usize];
                bytes[..8].copy_from_slice(&(number as u64).to_le_bytes());
                let end = match journal.append(TAGS[tag], &[&bytes], append) {
                    Ok(end) => end,
                    Err(JournalAppendError::Stale { .. }) => break,
                    Err(JournalAppendError::Closed | JournalAppendError::TooLarge { .. }) => {
                        unreachable!("neither")
                    }
                    Err(_) => {
                        // A failing disk may take its time; a full journal waits for the trim below.
                        world.env.sleep(Duration::from_millis(200)).await;
                        break;
                    }
                };
                let incarnation = append.incarnation;
                self.records.push(Record { incarnation, tag, end, fate: Fate::Unknown });
                waits.push(journal.durable().wait_for(end).map(move |answer| (number, answer)));
            }
            if splitmix(&mut seed).is_multiple_of(2)
                && let Some((number, answer)) = waits.next().await
            {
                self.learn(number, answer);
            }
            while let Some(Some((number, answer))) = waits.next().now_or_never() {
                self.learn(number, answer);
            }
            if splitmix(&mut seed).is_multiple_of(3) {
                let tag = (splitmix(&mut seed) % 2) as usize;
                let durable = journal.durable().position();
                self.trimmed[tag] = durable;
                journal.trim(TAGS[tag], durable);
            }
        }
        while let Some((number, answer)) = waits.next().await {
            self.learn(number, answer);
        }
    }

    fn learn(&mut self, number: usize, answer: Result<(), Lost>) {
        self.records[number].fate = if answer.is_ok() { Fate::Acknowledged } else { Fate::Lost };
    }

    /// Opens what is on the disk and holds it against what is known.
    fn check_and_open(&mut self, world: &World) -> Option<Journal> {
        let mut replayed = Vec::new();
        let mut replay = |tag, end, bytes: &[u8]| {
            let number = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes")) as usize;
            assert!(bytes[8..].iter().all(|byte| *byte == number as u8), "record {number} is as it was");
            replayed.push((tag, end, number));
            Ok(())
        };
        let opened = Journal::open(&world.env, dir(), config(), &mut replay);
        let journal = match opened {
            Ok(journal) => journal,
            Err(error) if world.disk.calls() == 0 => panic!("{error}"),
            Err(error) => {
                assert!(matches!(error, tailwater_journal::JournalOpenError::Disk(_)), "{error}");
                return None;
            }
        };
        for (tag, end, number) in &replayed {
            let record = &self.records[*number];
            assert_eq!((TAGS[record.tag], record.end), (*tag, *end), "record {number}");
        }
        let numbers: Vec<usize> = replayed.iter().map(|(_, _, number)| *number).collect();
        assert!(numbers.is_sorted_by(|a, b| a < b), "in order: {numbers:?}");
        let newest = numbers.last().map(|number| self.records[*number].incarnation);
        let oldest = numbers.first().copied().unwrap_or(self.records.len());
        for (number, record) in self.records.iter().enumerate() {
            let found = numbers.binary_search(&number).is_ok();
            let trimmed = record.end <= self.trimmed[record.tag];
            match record.fate {
                Fate::Acknowledged => assert!(found || trimmed, "record {number} was acknowledged"),
                Fate::Lost if newest > Some(record.incarnation) => {
                    assert!(!found, "record {number} was cut, and the journal went on");
                }
                Fate::Lost | Fate::Unknown => {}
            }
            // No gap: what comes before a record that is found, and was not cut or trimmed, is found.
            let before_one_found = number > oldest && numbers.last() > Some(&number);
            if before_one_found && !found && !trimmed {
                assert_eq!(record.fate, Fate::Lost, "record {number} is missing before others");
            }
        }
        // From here on the replay is what is known: a record that was not in it is gone.
        for (number, record) in self.records.iter_mut().enumerate() {
            let found = numbers.binary_search(&number).is_ok();
            record.fate = if found { Fate::Acknowledged } else { Fate::Lost };
        }
        Some(journal)
    }
}

/// Runs the workload with the planned faults, then crashes and checks, twice.
fn run(seed: u64, faults: &[(u64, Fault)], steps: usize) -> u64 {
    let mut model = Model::default();
    let disk = std::sync::Arc::new(TestDisk::new(seed));
    for (call, fault) in faults {
        disk.fault_at(*call, *fault);
    }
    let world = World::with_disk(seed, disk);
    let mut calls = 0;
    if let Some(journal) = model.check_and_open(&world) {
        world.run(model.work(&world, &journal, seed, steps));
        calls = world.disk.calls();
    }
    let mut disk = world.disk.after_crash();
    drop(world);
    for round in 0..2 {
        let world = World::with_disk(seed + round, disk);
        let journal = model.check_and_open(&world).expect("a sound disk");
        world.run(model.work(&world, &journal, seed ^ 0xabc ^ round, steps / 4)).expect("no crash");
        disk = world.disk.after_crash();
    }
    let world = World::with_disk(seed, disk);
    model.check_and_open(&world).expect("a sound disk");
    calls
}

const STEPS: usize = 60;

/// `CRASH_SEEDS=n` tries more than the usual few.
fn seeds() -> std::ops::Range<u64> {
    let count = std::env::var("CRASH_SEEDS").map_or(2, |text| text.parse().expect("a number of seeds"));
    0..count
}

#[test]
fn the_machine_stops_at_every_call() {
    for seed in seeds() {
        let calls = run(seed, &[], STEPS);
        assert!(calls > 60, "the workload reaches the disk: {calls}");
        for call in 1..=calls {
            run(seed, &[(call, Fault::Crash)], STEPS);
        }
    }
}

#[test]
fn every_call_fails_once_and_the_journal_goes_on() {
    for seed in seeds() {
        let calls = run(seed, &[], STEPS);
        for call in 1..=calls {
            run(seed, &[(call, Fault::Fail)], STEPS);
        }
    }
}

#[test]
fn calls_fail_in_a_row_and_then_the_machine_stops() {
    for seed in seeds() {
        let calls = run(seed, &[], STEPS);
        for call in 1..=calls {
            let failing = 1 + call % 4;
            let mut faults: Vec<_> = (0..failing).map(|at| (call + at, Fault::Fail)).collect();
            faults.push((call + failing + (call ^ seed) % 8, Fault::Crash));
            run(seed, &faults, STEPS);
        }
    }
}

#[test]
fn the_machine_stops_again_while_the_journal_is_being_recovered() {
    for seed in seeds() {
        let mut call = 1;
        loop {
            let mut model = Model::default();
            let world = World::new(seed);
            let journal = model.check_and_open(&world).expect("a sound disk");
            world.run(model.work(&world, &journal, seed, 30)).expect("no crash");
            let disk = world.disk.after_crash();
            disk.fault_at(call, Fault::Crash);
            drop((journal, world));
            let world = World::with_disk(seed, disk);
            let opened = model.check_and_open(&world).is_some();
            let crashed = world.disk.has_crashed();
            let disk = world.disk.after_crash();
            drop(world);
            model.check_and_open(&World::with_disk(seed, disk)).expect("a sound disk");
            if opened && !crashed {
                break;
            }
            call += 1;
        }
        assert!(call > 10, "recovery reaches the disk");
    }
}

/// A canary: if the checks above could not fail, they would prove nothing.
#[test]
#[should_panic(expected = "was acknowledged")]
fn the_check_notices_a_record_that_is_gone() {
    let mut model = Model::default();
    let world = World::new(40);
    let journal = model.check_and_open(&world).expect("a sound disk");
    world.run(async {
        let append = JournalAppendOptions::new(journal.incarnation());
        let mut last = JournalPosition(0);
        for number in 0..2u64 {
            last = journal.append(TAGS[0], &[&number.to_le_bytes()], append).expect("room");
            let (incarnation, fate) = (append.incarnation, Fate::Acknowledged);
            model.records.push(Record { incarnation, tag: 0, end: last, fate });
        }
        journal.durable().wait_for(last).await.expect("durable");
    });
    let disk = world.disk.after_crash();
    disk.edit(&dir().join(format!("{:020}.journal", FileSequence(1).0)), |bytes| bytes.truncate(4096 + 32));
    model.check_and_open(&World::with_disk(41, disk));
}
