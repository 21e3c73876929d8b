use super::*;

fn backings() -> Vec<Backing> {
    // Miri knows no memory files.
    if cfg!(miri) { vec![Backing::Private] } else { vec![Backing::Private, Backing::Shared] }
}

#[test]
fn bytes_come_back_as_written_and_the_rest_is_zero() {
    for backing in backings() {
        let region = Region::create("test", 10_000, 3, backing).expect("there is memory");
        region.write(4_093, b"across a page");
        let mut out = [0xff; 15];
        region.read(4_092, &mut out);
        assert_eq!(&out, b"\0across a page\0");
        assert_eq!((region.len(), region.kind()), (10_000, 3));
        let mut appended = vec![1];
        region.append_to(4_093, 6, &mut appended);
        assert_eq!(appended, b"\x01across");
    }
}

#[test]
fn every_region_has_a_generation_of_its_own() {
    let one = Region::create("test", 1, 0, Backing::Private).expect("there is memory");
    let other = Region::create("test", 1, 0, Backing::Private).expect("there is memory");
    assert_ne!(one.generation(), other.generation());
}

#[test]
fn a_region_of_no_bytes_is_refused() {
    let error = Region::create("test", 0, 0, Backing::Private).expect_err("no bytes");
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
}

#[test]
fn a_region_larger_than_memory_is_refused() {
    for backing in backings() {
        if !cfg!(miri) {
            Region::create("test", 1 << 60, 0, backing).expect_err("nobody has that much");
        }
    }
}

#[test]
#[should_panic(expected = "do not lie in")]
fn a_write_behind_the_end_panics() {
    let region = Region::create("test", 100, 0, Backing::Private).expect("there is memory");
    region.write(97, b"four");
}

#[test]
#[should_panic(expected = "do not lie in")]
fn a_read_whose_end_overflows_panics() {
    let region = Region::create("test", 100, 0, Backing::Private).expect("there is memory");
    region.read(u64::MAX, &mut [0; 2]);
}

#[test]
fn what_was_written_before_a_release_is_there_after_its_acquire() {
    for backing in backings() {
        let region = Region::create("test", 4_096, 0, backing).expect("there is memory");
        let rounds = if cfg!(miri) { 10u64 } else { 20_000 };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..=rounds {
                    region.write(64 + (round % 2) * 64, &round.to_le_bytes());
                    region.store_release_u64(0, round);
                    while region.load_acquire_u64(8) < round {
                        std::thread::yield_now();
                    }
                }
            });
            scope.spawn(|| {
                for round in 1..=rounds {
                    while region.load_acquire_u64(0) < round {
                        std::thread::yield_now();
                    }
                    let mut bytes = [0; 8];
                    region.read(64 + (round % 2) * 64, &mut bytes);
                    assert_eq!(u64::from_le_bytes(bytes), round);
                    region.store_release_u64(8, round);
                }
            });
        });
    }
}

#[test]
fn readers_that_race_with_a_writer_see_no_undefined_behaviour_only_torn_bytes() {
    let region = Region::create("test", 256, 0, Backing::Private).expect("there is memory");
    let rounds = if cfg!(miri) { 5 } else { 10_000 };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..rounds {
                region.write(3, &[round as u8; 201]);
            }
        });
        scope.spawn(|| {
            for _ in 0..rounds {
                let mut out = [0; 199];
                region.read(5, &mut out);
            }
        });
    });
}

#[cfg(not(miri))]
mod sealed {
    use super::*;
    use rustix::io::Errno;
    use rustix::mm::{MapFlags, ProtFlags};

    fn region() -> Region {
        Region::create("sealed", 8_192, 0, Backing::Shared).expect("there is memory")
    }

    fn map(region: &Region, protection: ProtFlags) -> Result<(), Errno> {
        let file = region.file().expect("shared regions have a file");
        // SAFETY: a fresh mapping at an address of the kernel's choice; it is leaked, and the process ends soon.
        unsafe { rustix::mm::mmap(std::ptr::null_mut(), 4_096, protection, MapFlags::SHARED, file, 0) }
            .map(drop)
    }

    #[test]
    fn nobody_maps_a_region_writable_any_more() {
        let region = region();
        assert_eq!(map(&region, ProtFlags::READ | ProtFlags::WRITE), Err(Errno::PERM));
        assert_eq!(map(&region, ProtFlags::READ), Ok(()));
    }

    #[test]
    fn nobody_writes_or_punches_or_resizes_the_file_of_a_region() {
        let region = region();
        let file = region.file().expect("shared regions have a file");
        assert_eq!(rustix::io::pwrite(file, b"x", 0), Err(Errno::PERM));
        assert_eq!(rustix::fs::ftruncate(file, 4_096), Err(Errno::PERM));
        assert_eq!(rustix::fs::ftruncate(file, 16_384), Err(Errno::PERM));
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        assert_eq!(rustix::fs::fallocate(file, punch, 0, 4_096), Err(Errno::PERM));
    }

    #[test]
    fn the_seals_of_a_region_are_final() {
        let region = region();
        let file = region.file().expect("shared regions have a file");
        assert_eq!(rustix::fs::fcntl_add_seals(file, SealFlags::WRITE), Err(Errno::PERM));
    }

    #[test]
    fn a_reader_sees_what_the_owner_writes_until_it_blanks_its_mapping() {
        let region = region();
        let reader = Mapping::reader(region.file().expect("shared"), 8_192).expect("it is sealed");
        region.write(5_000, b"hello");
        let mut out = [0; 5];
        reader.read(5_000, &mut out);
        assert_eq!(&out, b"hello");
        reader.blank().expect("memory for a mapping of nothing");
        reader.read(5_000, &mut out);
        assert_eq!(out, [0; 5]);
    }

    #[test]
    fn a_file_that_could_shrink_is_not_mapped() {
        let file = rustix::fs::memfd_create("loose", MemfdFlags::ALLOW_SEALING).expect("a memory file");
        rustix::fs::ftruncate(&file, 8_192).expect("it is not sealed");
        let error = Mapping::reader(file.as_fd(), 8_192).expect_err("it could shrink");
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn a_file_that_is_shorter_than_announced_is_not_mapped() {
        let region = region();
        let error = Mapping::reader(region.file().expect("shared"), 8_193).expect_err("one byte more");
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    #[should_panic(expected = "only its owner writes")]
    fn a_reader_that_writes_panics_before_it_faults() {
        let region = region();
        let reader = Mapping::reader(region.file().expect("shared"), 8_192).expect("it is sealed");
        reader.write(0, b"x");
    }
}
