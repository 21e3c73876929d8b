use std::ffi::CString;

use rustix::fs::MemfdFlags;

use super::*;

fn run(test: impl AsyncFnOnce()) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    runtime.expect("a runtime").block_on(async { test().await });
}

/// Two ends of a connection, by a path.
async fn connected() -> (PassingSocket, PassingSocket) {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("socket");
    let listener = PassingListener::bind(&path).expect("bound");
    let client = PassingSocket::connect(&path).await.expect("connected");
    (listener.accept().await.expect("accepted"), client)
}

/// All that comes with the first bytes.
async fn files_of(socket: &PassingSocket) -> Vec<OwnedFd> {
    let (mut buffer, mut files) = ([0; 64], Vec::new());
    assert!(socket.receive(&mut buffer, &mut files).await.expect("received") > 0);
    files
}

#[test]
fn what_was_published_is_borrowed_where_it_is_and_outlives_its_writer() {
    run(async || {
        let (window, reader) = connected().await;
        let notice = NoticeWriter::create("notice", 1).expect("memory");
        let mut arena = ArenaWriter::create("arena", 64 << 10).expect("memory");
        window.send(b"x", &[notice.file(), notice.bell(0), arena.file()]).await.expect("sent");
        let [page, bell, file] = files_of(&reader).await.try_into().expect("three files");
        let same = reader.same_user().expect("it is this process");
        let seen = NoticeReader::open(same, &page, bell).expect("a notice");
        let mapped = ArenaReader::open(same, &file, 64 << 10).expect("sealed");
        drop((page, file));
        assert_eq!((seen.published(), seen.beats()), (0, 0));
        assert_eq!(arena.append(&[b"hello ", b"world"]), Some(0));
        assert_eq!(arena.append(&[b"more"]), Some(16), "aligned");
        notice.publish(arena.filled() as u64);
        notice.beat();
        notice.ring(0);
        seen.rung().await.expect("it was rung");
        assert_eq!((seen.published(), seen.beats()), (24, 1));
        let borrowed = mapped.bytes(0..11).expect("in the arena");
        let again = mapped.bytes(0..11).expect("in the arena");
        assert_eq!(borrowed.as_ptr(), again.as_ptr(), "nothing is copied");
        drop((mapped, arena, notice));
        assert_eq!((&borrowed[..], &again[6..]), (&b"hello world"[..], &b"world"[..]));
    });
}

#[test]
fn an_arena_that_is_full_takes_no_more_and_what_lies_outside_is_nothing() {
    let mut arena = ArenaWriter::create("arena", 4096).expect("memory");
    assert_eq!(arena.append(&[&[1; 4000]]), Some(0));
    assert_eq!(arena.append(&[&[2; 97]]), None);
    assert_eq!(arena.append(&[&[2; 90], &[3; 6]]), Some(4000));
    assert_eq!(arena.append(&[&[4]]), None);
    let file = arena.file().try_clone_to_owned().expect("a descriptor");
    let mapped = ArenaReader::open(SameUser(()), &file, 4096).expect("sealed");
    assert_eq!(mapped.bytes(4089..4097), None);
    assert_eq!(mapped.bytes(Range { start: 8, end: 0 }), None);
    assert_eq!(mapped.bytes(4090..4096).as_deref(), Some(&[3; 6][..]));
    assert!(ArenaReader::open(SameUser(()), &file, 1 << 20).is_err(), "it is not as long as that");
}

#[test]
fn memory_that_others_could_write_to_or_cut_off_is_refused() {
    let all = SealFlags::FUTURE_WRITE | SealFlags::GROW | SealFlags::SHRINK;
    for missing in [SealFlags::FUTURE_WRITE, SealFlags::GROW, SealFlags::SHRINK, all] {
        let name = CString::new("unsealed").expect("text");
        let file = rustix::fs::memfd_create(&name, MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC);
        let file = file.expect("memory");
        rustix::fs::ftruncate(&file, 4096).expect("memory");
        rustix::fs::fcntl_add_seals(&file, all - missing).expect("sealed");
        let refused = ArenaReader::open(SameUser(()), &file, 4096).expect_err("it is not sealed");
        assert_eq!(refused.kind(), io::ErrorKind::InvalidData, "without {missing:?}: {refused}");
    }
    let arena = ArenaWriter::create("arena", 4096).expect("memory");
    assert!(rustix::fs::ftruncate(arena.file(), 0).is_err(), "a reader can't cut it off");
    assert!(rustix::io::pwrite(arena.file(), b"x", 0).is_err(), "nor write to it");
    assert!(Mapping::owner(arena.file(), 4096).is_err(), "nor map it to write");
}

#[test]
fn an_end_of_the_connection_shows_as_no_bytes() {
    run(async || {
        let (window, reader) = connected().await;
        drop(window);
        assert_eq!(reader.receive(&mut [0; 8], &mut Vec::new()).await.expect("the end"), 0);
    });
}

#[test]
fn every_reader_is_woken_by_each_notice_though_nobody_empties_the_event() {
    run(async || {
        let notice = NoticeWriter::create("notice", 1).expect("memory");
        let open = || {
            let [page, bell] =
                [notice.file(), notice.bell(0)].map(|file| file.try_clone_to_owned().expect("one"));
            NoticeReader::open(SameUser(()), &page, bell).expect("a notice")
        };
        let readers: Vec<_> = std::iter::repeat_with(open).take(20).collect();
        for published in 1..=50 {
            notice.publish(published);
            notice.ring(0);
            for reader in &readers {
                reader.rung().await.expect("it was rung");
                assert_eq!(reader.published(), published);
            }
        }
    });
}

#[test]
fn an_event_that_somebody_filled_is_rung_all_the_same() {
    run(async || {
        let notice = NoticeWriter::create("notice", 1).expect("memory");
        rustix::io::write(notice.bell(0), &(u64::MAX - 1).to_ne_bytes()).expect("filled");
        let [page, bell] =
            [notice.file(), notice.bell(0)].map(|file| file.try_clone_to_owned().expect("one"));
        let reader = NoticeReader::open(SameUser(()), &page, bell).expect("a notice");
        reader.rung().await.expect("it was rung when it was filled");
        notice.publish(7);
        notice.ring(0);
        reader.rung().await.expect("and again");
        assert_eq!(reader.published(), 7);
    });
}

#[test]
fn what_can_t_be_waited_for_is_no_event() {
    run(async || {
        let notice = NoticeWriter::create("notice", 1).expect("memory");
        let page = notice.file().try_clone_to_owned().expect("one");
        let no_event = tempfile::tempfile().expect("a file").into();
        assert!(NoticeReader::open(SameUser(()), &page, no_event).is_err());
    });
}
