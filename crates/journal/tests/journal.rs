//! The journal over its life: appending, rolling, trimming, closing, and what a start finds.

mod world;

use std::path::Path;
use std::time::Duration;

use tailwater_journal::{
    Append, AppendError, Journal, JournalConfig, JournalPosition, Lost, OpenError, Priority, Tag,
};
use world::World;

const TAG: Tag = Tag(2);
const OTHER: Tag = Tag(9);

fn config() -> JournalConfig {
    JournalConfig {
        file_bytes: 64 << 10,
        files_max: 6,
        reserve_bytes: 8 << 10,
        backlog_bytes: 64 << 10,
        record_bytes_max: 16 << 10,
        sync_interval: Duration::from_millis(200),
    }
}

fn dir() -> &'static Path {
    Path::new("/data/journal")
}

type Replayed = Vec<(Tag, JournalPosition, Vec<u8>)>;

fn try_open(world: &World) -> Result<(Journal, Replayed), OpenError> {
    let mut replayed = Vec::new();
    let mut replay = |tag, position, bytes: &[u8]| {
        replayed.push((tag, position, bytes.to_vec()));
        Ok(())
    };
    let journal = Journal::open(&world.env, dir(), config(), &mut replay)?;
    Ok((journal, replayed))
}

fn open(world: &World) -> (Journal, Replayed) {
    try_open(world).expect("it opens")
}

fn append(journal: &Journal, record: &[u8]) -> JournalPosition {
    journal.append(TAG, &[record], Append::new(journal.incarnation())).expect("there is room")
}

async fn append_durably(journal: &Journal, record: &[u8]) -> JournalPosition {
    let position = append(journal, record);
    journal.durable().wait_for(position).await.expect("the disk works");
    position
}

#[test]
fn what_was_acknowledged_is_replayed_in_order_after_a_crash() {
    let world = World::new(1);
    let (journal, replayed) = open(&world);
    assert!(replayed.is_empty());
    let positions = world
        .run(async {
            let mut positions = Vec::new();
            for number in 0..20u8 {
                positions.push(append_durably(&journal, &[number; 100]).await);
            }
            positions
        })
        .expect("no crash");
    let world = World::with_disk(2, world.disk.after_crash());
    let (_journal, replayed) = open(&world);
    let expected: Replayed =
        positions.into_iter().zip(0..).map(|(position, number)| (TAG, position, vec![number; 100])).collect();
    assert_eq!(replayed, expected);
}

#[test]
fn a_record_is_given_in_parts_and_comes_back_as_one() {
    let world = World::new(1);
    let (journal, _) = open(&world);
    world.run(async {
        let append = Append::new(journal.incarnation());
        let position = journal.append(TAG, &[b"a", b"", b"bc"], append).expect("room");
        let empty = journal.append(OTHER, &[], append).expect("room");
        assert!(empty > position);
        journal.close().await.expect("closed");
    });
    drop(journal);
    let world = World::with_disk(2, world.disk.after_crash());
    let (_journal, replayed) = open(&world);
    let records: Vec<_> = replayed.iter().map(|(tag, _, bytes)| (*tag, bytes.as_slice())).collect();
    assert_eq!(records, [(TAG, b"abc".as_slice()), (OTHER, b"".as_slice())]);
}
