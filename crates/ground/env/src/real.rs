//! The real world: tokio's tasks and timers, the machine's clocks, the file system.

#![allow(clippy::disallowed_methods)] // this is the one place that the seams lead to

use std::io::{self, IoSlice};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures::future::BoxFuture;
use rustix::fs::FlockOperation;
use tokio::runtime::Handle;

use crate::{Clock, Disk, Env, File, Instant, LockGuard, OpenMode, Random, Task, Tasks};

/// Most pieces that Linux takes in one write (`IOV_MAX`).
const WRITE_PIECES_MAX: usize = 1_024;

pub(crate) fn env(runtime: Handle) -> Env {
    Env::new(
        Arc::new(RealClock { origin: std::time::Instant::now() }),
        Arc::new(RealRandom),
        Arc::new(RealTasks { runtime }),
        Arc::new(RealDisk),
    )
}

struct RealClock {
    origin: std::time::Instant,
}

impl Clock for RealClock {
    fn now(&self) -> Instant {
        let elapsed = self.origin.elapsed();
        Instant::from_ns(u64::try_from(elapsed.as_nanos()).expect("584 years of uptime"))
    }

    fn wall_ms(&self) -> i64 {
        match SystemTime::now().duration_since(SystemTime::UNIX_EPOCH) {
            Ok(since) => i64::try_from(since.as_millis()).unwrap_or(i64::MAX),
            Err(before) => -i64::try_from(before.duration().as_millis()).unwrap_or(i64::MAX),
        }
    }

    fn sleep_until(&self, deadline: Instant) -> BoxFuture<'static, ()> {
        let deadline = self.origin + Duration::from_nanos(deadline.as_ns());
        Box::pin(tokio::time::sleep_until(deadline.into()))
    }
}

struct RealRandom;

impl Random for RealRandom {
    fn next_u64(&self) -> u64 {
        rand::random()
    }
}

struct RealTasks {
    runtime: Handle,
}

impl Tasks for RealTasks {
    fn spawn(&self, _name: &'static str, future: BoxFuture<'static, ()>) -> Task {
        let handle = self.runtime.spawn(future);
        Task::new(move || handle.abort())
    }

    fn spawn_dedicated(&self, name: &'static str, future: BoxFuture<'static, ()>) -> Task {
        let (future, abort) = futures::future::abortable(future);
        std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                // Timers of its own: those of `runtime` panic in whoever still sleeps when it ends, and this thread may
                // outlive it.
                let timers = tokio::runtime::Builder::new_current_thread()
                    .enable_time()
                    .build()
                    .expect("timers take nothing of the operating system");
                // The output says only whether it was aborted.
                let _ = timers.block_on(future);
            })
            .expect("the operating system starts a thread for each of the few dedicated tasks");
        Task::new(move || abort.abort())
    }
}

struct RealDisk;

impl Disk for RealDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        let mut options = std::fs::OpenOptions::new();
        options.read(true);
        match mode {
            OpenMode::Read => {}
            OpenMode::ReadWrite => {
                options.write(true);
            }
            OpenMode::CreateNew => {
                options.write(true).create_new(true);
            }
        }
        Ok(Arc::new(RealFile(options.open(path)?)))
    }

    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        std::fs::create_dir_all(dir)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(dir)? {
            // Our own names are ASCII; what is not UTF-8 was put there by somebody else.
            if let Ok(name) = entry?.file_name().into_string() {
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::rename(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_file(path)
    }

    fn remove_dir_all(&self, dir: &Path) -> io::Result<()> {
        std::fs::remove_dir_all(dir)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        std::fs::File::open(dir)?.sync_all()
    }

    fn free_bytes(&self, dir: &Path) -> io::Result<u64> {
        let stat = rustix::fs::statvfs(dir)?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }

    fn lock(&self, path: &Path) -> io::Result<LockGuard> {
        let file =
            std::fs::OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        Ok(Box::new(file))
    }
}

struct RealFile(std::fs::File);

impl File for RealFile {
    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.0.read_at(&mut buffer[filled..], position + filled as u64) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }

    fn write_all_at(&self, bytes: &[u8], position: u64) -> io::Result<()> {
        self.0.write_all_at(bytes, position)
    }

    fn write_pieces_at(&self, pieces: &[&[u8]], mut position: u64) -> io::Result<()> {
        for some in pieces.chunks(WRITE_PIECES_MAX) {
            let mut slices: Vec<IoSlice<'_>> = some.iter().map(|piece| IoSlice::new(piece)).collect();
            let mut left = &mut slices[..];
            // Those that are empty at the beginning are not worth a call.
            IoSlice::advance_slices(&mut left, 0);
            while !left.is_empty() {
                match rustix::io::pwritev(&self.0, left, position) {
                    Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                    Ok(count) => {
                        position += count as u64;
                        IoSlice::advance_slices(&mut left, count);
                    }
                    Err(rustix::io::Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.0.set_len(length)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn begin_sync(&self, position: u64, len: u64) {
        // `sync_file_range` would say so more plainly; to let go of a range, Linux writes what is dirty in it first,
        // and does not wait. An error shows in the next sync.
        let len = std::num::NonZeroU64::new(len);
        let _ = rustix::fs::fadvise(&self.0, position, len, rustix::fs::Advice::DontNeed);
    }

    fn read_nothing_ahead(&self) {
        let _ = rustix::fs::fadvise(&self.0, 0, None, rustix::fs::Advice::Random);
    }

    fn drop_cached(&self) {
        // Advice: nothing depends on its being taken. Without a length Linux drops the last page too, and whoever
        // appends next waits until it is read again.
        let page = rustix::param::page_size() as u64;
        let whole = self.len().ok().and_then(|len| std::num::NonZeroU64::new(len / page * page));
        if let Some(whole) = whole {
            let _ = rustix::fs::fadvise(&self.0, 0, Some(whole), rustix::fs::Advice::DontNeed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_runtime(test: impl FnOnce(Env)) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build();
        let runtime = runtime.expect("a runtime");
        let _entered = runtime.enter();
        test(Env::real());
    }

    #[test]
    fn the_page_that_is_appended_to_next_stays_in_memory_when_a_file_leaves_it() {
        use std::io::IoSliceMut;

        use rustix::io::{Errno, ReadWriteFlags};

        in_runtime(|env| {
            let dir = tempfile::tempdir().expect("a directory");
            let path = dir.path().join("file");
            let page = rustix::param::page_size();
            let file = env.disk().open(&path, OpenMode::CreateNew).expect("new");
            file.write_all_at(&vec![7; 16 * page + 100], 0).expect("written");
            file.sync_data().expect("synced");
            file.drop_cached();
            // Reads what is in memory only.
            let read = std::fs::File::open(&path).expect("there");
            let mut byte = [0];
            let last = 16 * page as u64 + 50;
            match rustix::io::preadv2(&read, &mut [IoSliceMut::new(&mut byte)], last, ReadWriteFlags::NOWAIT)
            {
                Ok(count) => assert_eq!((count, byte), (1, [7])),
                // What the file system below does not know.
                Err(Errno::OPNOTSUPP) => {}
                Err(error) => panic!("the last page has to be read from the disk: {error}"),
            }
        });
    }

    #[test]
    fn more_pieces_than_one_write_takes_are_written_one_behind_the_other() {
        in_runtime(|env| {
            let dir = tempfile::tempdir().expect("a directory");
            let file = env.disk().open(&dir.path().join("file"), OpenMode::CreateNew).expect("new");
            let pieces: Vec<Vec<u8>> =
                (0..2 * WRITE_PIECES_MAX + 3).map(|number| vec![number as u8; number % 5]).collect();
            let pieces: Vec<&[u8]> = pieces.iter().map(|piece| &piece[..]).collect();
            let whole = pieces.concat();
            file.write_pieces_at(&pieces, 7).expect("written");
            assert_eq!(file.len().expect("a length"), 7 + whole.len() as u64);
            let mut read = vec![1; 7 + whole.len()];
            assert_eq!(file.read_at(&mut read, 0).expect("readable"), read.len());
            assert!(read == [&[0; 7][..], &whole].concat());
            file.write_pieces_at(&[], 0).expect("nothing to write");
            file.write_pieces_at(&[b"", b""], 0).expect("nothing to write");
        });
    }

    #[test]
    fn a_second_lock_on_the_same_file_is_refused_until_the_first_is_given_up() {
        in_runtime(|env| {
            let dir = tempfile::tempdir().expect("a directory");
            let path = dir.path().join("lock");
            let first = env.disk().lock(&path).expect("free");
            let refused = env.disk().lock(&path).err().expect("held");
            assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
            drop(first);
            env.disk().lock(&path).expect("free again");
        });
    }

    #[test]
    fn reading_past_the_end_answers_what_is_there() {
        in_runtime(|env| {
            let dir = tempfile::tempdir().expect("a directory");
            let file = env.disk().open(&dir.path().join("f"), OpenMode::CreateNew).expect("new");
            file.write_all_at(b"abc", 2).expect("written");
            let mut buffer = [0xff; 8];
            assert_eq!(file.read_at(&mut buffer, 0).expect("read"), 5);
            assert_eq!(&buffer[..5], b"\0\0abc");
        });
    }

    #[test]
    fn a_dedicated_task_may_block_and_a_dropped_task_is_cancelled() {
        in_runtime(|env| {
            let (sender, receiver) = std::sync::mpsc::channel();
            let clock = env.clone();
            let task = env.spawn_dedicated("test", async move {
                clock.sleep(Duration::from_millis(1)).await;
                sender.send(1).expect("received");
                futures::future::pending::<()>().await;
                sender.send(2).expect("received");
            });
            assert_eq!(receiver.recv(), Ok(1));
            drop(task);
            assert!(receiver.recv().is_err(), "its future and the sender in it were dropped");
        });
    }
}
