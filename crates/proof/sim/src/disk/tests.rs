use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::Arc;

use tailwater_env::{Disk, File, OpenMode};

use super::*;
use crate::world::{Node, World};

fn root() -> &'static Path {
    Path::new("/")
}

fn path() -> &'static Path {
    Path::new("/f")
}

/// A disk with a file of `length` zeros, all synced.
fn with_file(seed: u64, length: usize) -> (World, Node, Arc<dyn Disk>, Arc<dyn File>) {
    let world = World::new(seed);
    let node = world.node("a");
    let disk = node.env().disk().clone();
    let file = disk.open(path(), OpenMode::CreateNew).expect("a new name");
    file.write_all_at(&vec![0; length], 0).expect("there is room");
    file.sync_data().expect("no faults");
    disk.sync_dir(root()).expect("no faults");
    (world, node, disk, file)
}

/// The byte of each sector that survived the crash of a disk whose unsynced write was all of `value`.
fn sectors_after_crash(seed: u64, sectors: usize, write: impl Fn(&dyn File)) -> Vec<u8> {
    let sector = SECTOR_BYTES as usize;
    let (_world, node, _disk, file) = with_file(seed, sectors * sector);
    write(file.as_ref());
    node.crash(Crash::Power);
    let bytes = node.disk().contents(path()).expect("its name was synced");
    bytes
        .chunks(sector)
        .map(|chunk| {
            assert!(chunk.iter().all(|byte| *byte == chunk[0]), "a sector is never torn");
            chunk[0]
        })
        .collect()
}

#[test]
fn an_unsynced_write_survives_whole_or_torn_at_sectors_or_not_at_all() {
    let outcomes: BTreeSet<Vec<u8>> = (0..300)
        .map(|seed| {
            sectors_after_crash(seed, 4, |file| {
                file.write_all_at(&[7; 4 * SECTOR_BYTES as usize], 0).expect("there is room");
            })
        })
        .collect();
    assert!(outcomes.contains(&vec![0, 0, 0, 0]), "not at all");
    assert!(outcomes.contains(&vec![7, 7, 7, 7]), "whole");
    assert!(outcomes.contains(&vec![7, 0, 0, 0]), "its beginning");
    assert!(outcomes.contains(&vec![0, 0, 7, 7]), "its end");
}

#[test]
fn a_later_write_may_survive_without_an_earlier_one() {
    let outcomes: BTreeSet<Vec<u8>> = (0..300)
        .map(|seed| {
            sectors_after_crash(seed, 2, |file| {
                file.write_all_at(&[1; SECTOR_BYTES as usize], 0).expect("there is room");
                file.write_all_at(&[2; SECTOR_BYTES as usize], SECTOR_BYTES).expect("there is room");
            })
        })
        .collect();
    let all = [vec![0, 0], vec![0, 2], vec![1, 0], vec![1, 2]];
    assert_eq!(outcomes, BTreeSet::from(all));
}

#[test]
fn synced_bytes_survive_every_power_failure_and_all_bytes_a_killed_process() {
    for seed in 0..100 {
        let (_world, node, _disk, file) = with_file(seed, 2_000);
        file.write_all_at(b"synced", 100).expect("there is room");
        file.sync_data().expect("no faults");
        file.write_all_at(b"unsynced", 1_000).expect("there is room");
        node.crash(Crash::Process);
        let bytes = node.disk().contents(path()).expect("it is there");
        assert_eq!((&bytes[100..106], &bytes[1_000..1_008]), (&b"synced"[..], &b"unsynced"[..]));

        node.start();
        node.crash(Crash::Power);
        let bytes = node.disk().contents(path()).expect("it is there");
        assert_eq!(&bytes[100..106], b"synced");
    }
}

#[test]
fn growth_that_was_not_synced_leaves_any_length_in_between() {
    let lengths: BTreeSet<u64> = (0..300)
        .map(|seed| {
            let (_world, node, _disk, file) = with_file(seed, 100);
            file.write_all_at(&[9; 5_000], 100).expect("there is room");
            node.crash(Crash::Power);
            let bytes = node.disk().contents(path()).expect("its name was synced");
            assert!(bytes[100..].iter().all(|byte| *byte == 0 || *byte == 9));
            bytes.len() as u64
        })
        .collect();
    assert!(lengths.contains(&100) && lengths.contains(&5_100) && lengths.len() > 10, "{lengths:?}");
}

#[test]
fn names_that_their_directory_did_not_sync_may_go_or_stay_each_by_itself() {
    let mut outcomes = BTreeSet::new();
    for seed in 0..300 {
        let world = World::new(seed);
        let node = world.node("a");
        let disk = node.env().disk().clone();
        let create = |name: &str| drop(disk.open(Path::new(name), OpenMode::CreateNew).expect("new"));
        create("/old");
        create("/gone");
        disk.sync_dir(root()).expect("no faults");
        create("/new");
        disk.rename(Path::new("/old"), Path::new("/renamed")).expect("it is there");
        disk.remove_file(Path::new("/gone")).expect("it is there");
        assert_eq!(disk.list(root()).expect("no faults"), ["new", "renamed"]);
        node.crash(Crash::Power);
        let names = node.disk().files().into_iter().map(|(path, _)| path.display().to_string());
        let names: Vec<String> = names.collect();
        assert_ne!(
            names.iter().any(|name| name == "/old"),
            names.iter().any(|name| name == "/renamed"),
            "a rename is atomic: {names:?}"
        );
        outcomes.insert(names);
    }
    assert_eq!(outcomes.len(), 8, "each of the three changes happened or not: {outcomes:?}");
}

#[test]
fn a_directory_whose_parent_was_not_synced_may_vanish_with_what_is_in_it() {
    let mut outcomes = BTreeSet::new();
    for seed in 0..100 {
        let world = World::new(seed);
        let node = world.node("a");
        let disk = node.env().disk().clone();
        disk.create_dir_all(Path::new("/a/b")).expect("no faults");
        disk.open(Path::new("/a/b/f"), OpenMode::CreateNew).expect("new");
        disk.sync_dir(Path::new("/a/b")).expect("no faults");
        disk.sync_dir(Path::new("/a")).expect("no faults");
        node.crash(Crash::Power);
        outcomes.insert(node.disk().files().len());
    }
    assert_eq!(outcomes, BTreeSet::from([0, 1]));
}

#[test]
fn after_a_failed_sync_a_later_one_brings_nothing_back() {
    let mut lost = 0;
    for seed in 0..100 {
        let (_world, node, _disk, file) = with_file(seed, 4_096);
        file.write_all_at(&[5; 4_096], 0).expect("there is room");
        node.disk().set_faults(Faults { sync: Fault::Next(1), ..Faults::default() });
        assert!(file.sync_data().is_err());
        file.sync_data().expect("it says that all is well");
        node.crash(Crash::Power);
        lost += usize::from(node.disk().contents(path()).expect("its name was synced") != [5; 4_096]);
    }
    assert!(lost > 50, "{lost}");
}

#[test]
fn a_full_disk_refuses_growth_but_not_overwriting() {
    let (_world, node, disk, file) = with_file(1, 8_192);
    node.disk().set_capacity(3 * 4_096);
    assert_eq!(disk.free_bytes(root()).expect("no faults"), 4_096);
    file.write_all_at(&[1; 8_192], 0).expect("it does not grow");
    file.write_all_at(&[1; 4_096], 8_192).expect("there is room");
    let error = file.write_all_at(&[1; 10], 12_280).expect_err("no room");
    assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    disk.remove_file(path()).expect("it is there");
    assert_eq!(disk.free_bytes(root()).expect("no faults"), 3 * 4_096);
}

#[test]
fn any_call_can_be_made_the_last() {
    let work = |node: &Node| -> io::Result<()> {
        let disk = node.env().disk().clone();
        let file = disk.open(path(), OpenMode::CreateNew)?;
        file.write_all_at(&[1; 1_000], 0)?;
        file.sync_data()?;
        disk.sync_dir(root())?;
        disk.rename(path(), Path::new("/g"))?;
        disk.sync_dir(root())
    };
    let calls = {
        let world = World::new(0);
        let node = world.node("a");
        work(&node).expect("no faults");
        node.disk().changes()
    };
    assert_eq!(calls, 6);
    let mut outcomes = BTreeSet::new();
    for seed in 0..40 {
        for last in 1..=calls {
            let world = World::new(seed);
            let node = world.node("a");
            node.disk().crash_at_change(Some(last));
            assert!(work(&node).is_err(), "the last call is never answered");
            assert!(!node.is_up());
            let names: Vec<_> = node.disk().files().into_iter().map(|(path, _)| path).collect();
            outcomes.insert((last, names));
        }
    }
    let left = |last: u64| outcomes.iter().filter(|(at, _)| *at == last).count();
    assert_eq!(left(4), 2, "in the first directory sync the name is there or not: {outcomes:?}");
    assert_eq!(left(5), 2, "in the rename it is the old name or the other: {outcomes:?}");
}

#[test]
fn injected_faults_strike_as_often_as_asked() {
    let (_world, node, _disk, file) = with_file(1, 100);
    node.disk().set_faults(Faults { write: Fault::Next(2), read: Fault::Next(1), ..Faults::default() });
    let writes: Vec<bool> = (0..4).map(|_| file.write_all_at(&[1; 10], 0).is_ok()).collect();
    assert_eq!(writes, [false, false, true, true]);
    assert!(file.read_at(&mut [0; 10], 0).is_err());
    assert_eq!(file.read_at(&mut [0; 10], 95).expect("once only"), 5);
    assert!(node.disk().flip_bit(path(), 3, 7));
    let mut byte = [0];
    file.read_at(&mut byte, 3).expect("no faults");
    assert_eq!(byte, [0x81]);
}

#[test]
fn a_disk_that_another_node_has_taken_answers_its_former_processes_nothing() {
    let (world, before, disk, file) = with_file(3, 10);
    file.write_all_at(&[7; 10], 0).expect("no faults");
    file.sync_data().expect("no faults");
    let after = world.node("b");
    after.crash(Crash::Process);
    after.take_disk_of(&before);
    assert!(before.is_up());
    assert_eq!(file.write_all_at(&[8; 10], 0).expect_err("detached").kind(), io::ErrorKind::NotConnected);
    assert!(file.sync_data().is_err() && disk.list(root()).is_err());
    assert!(before.env().disk().list(root()).expect("its new disk").is_empty());
    after.start();
    let disk = after.env().disk().clone();
    let mut bytes = [0; 10];
    disk.open(path(), OpenMode::Read).expect("synced").read_at(&mut bytes, 0).expect("no faults");
    assert_eq!(bytes, [7; 10]);
}
