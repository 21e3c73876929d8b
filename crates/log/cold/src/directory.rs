//! A directory as cold storage: of another disk, or of a file server.
//!
//! An object is a file. It is written under another name, synced and renamed, and the names down to it are synced: so
//! it is there as a whole or not at all. Two threads of its own do that, one for readers and one for everybody else, so
//! that a slow one keeps nobody else's disk busy.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use tailwater_env::{Disk, Env, OpenMode, Task};
use tokio::sync::{mpsc, oneshot};

use crate::limits::DIRECTORY_QUEUE;
use crate::objects::{ColdError, ColdObjects, FromCold};

type DirectoryJob = Box<dyn FnOnce() + Send>;

/// What is done on a thread that may wait for the disk.
struct DirectoryThread {
    jobs: mpsc::Sender<DirectoryJob>,
    _task: Task,
}

impl DirectoryThread {
    fn start(env: &Env, name: &'static str) -> Self {
        let (jobs, mut waiting) = mpsc::channel::<DirectoryJob>(DIRECTORY_QUEUE);
        let work = async move {
            while let Some(job) = waiting.recv().await {
                job();
            }
        };
        Self { jobs, _task: env.spawn_dedicated(name, work) }
    }
}

/// See the module.
pub struct ColdDirectory {
    env: Env,
    dir: PathBuf,
    reading: DirectoryThread,
    writing: DirectoryThread,
}

impl std::fmt::Debug for ColdDirectory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("ColdDirectory").field(&self.dir).finish()
    }
}

impl ColdDirectory {
    /// The directory `dir`. Where it is not there, nothing of it is: it is not made, as it may be one of a disk that is
    /// not mounted yet.
    pub fn new(env: &Env, dir: &Path) -> Self {
        Self {
            env: env.clone(),
            dir: dir.to_owned(),
            reading: DirectoryThread::start(env, "cold-read"),
            writing: DirectoryThread::start(env, "cold-write"),
        }
    }

    /// Has a thread do `job`, whose failure is told with `what`.
    async fn run<T: Send + 'static>(
        &self,
        thread: &DirectoryThread,
        what: &str,
        job: impl FnOnce(&dyn Disk, &Path) -> io::Result<T> + Send + 'static,
    ) -> Result<T, ColdError> {
        let (reply, answer) = oneshot::channel();
        let (disk, dir) = (Arc::clone(self.env.disk()), self.dir.clone());
        let job = move || {
            // Of a directory that is not there nothing can be said.
            let done = disk.list(&dir).map_err(not_here).and_then(|_| job(&*disk, &dir));
            let _ = reply.send(done);
        };
        let ended = || ColdError::Unavailable("its thread has ended: restart the node".to_owned());
        thread.jobs.send(Box::new(job)).await.map_err(|_| ended())?;
        let done = answer.await.map_err(|_| ended())?;
        done.map_err(|error| {
            if error.kind() == io::ErrorKind::NotFound {
                ColdError::Missing(what.to_owned())
            } else {
                ColdError::Unavailable(format!("{}: {what}: {error}", self.dir.display()))
            }
        })
    }
}

fn not_here(error: io::Error) -> io::Error {
    io::Error::other(format!("the directory can't be listed: {error}; make it, or mount its disk"))
}

/// Writes a file in its place. `scratch` is a name that nobody else has.
fn put_file(disk: &dyn Disk, dir: &Path, name: &str, scratch: u64, bytes: &[u8]) -> io::Result<()> {
    let path = dir.join(name);
    let parent = path.parent().unwrap_or(dir);
    disk.create_dir_all(parent)?;
    let new = path.with_extension(format!("{scratch:016x}.new"));
    let written = (|| {
        let file = disk.open(&new, OpenMode::CreateNew)?;
        file.write_all_at(bytes, 0)?;
        file.sync_data()?;
        disk.rename(&new, &path)
    })();
    if written.is_err() {
        // A full disk should not be kept full by what nobody reads.
        let _ = disk.remove_file(&new);
        return written;
    }
    for folder in parent.ancestors() {
        disk.sync_dir(folder)?;
        if folder == dir {
            break;
        }
    }
    Ok(())
}

fn read_file(disk: &dyn Disk, path: &Path, from: u64, length: usize) -> io::Result<Bytes> {
    let file = disk.open(path, OpenMode::Read)?;
    let left = usize::try_from(file.len()?.saturating_sub(from)).unwrap_or(usize::MAX);
    let mut bytes = BytesMut::zeroed(length.min(left));
    let mut at = 0;
    while at < bytes.len() {
        match file.read_at(&mut bytes[at..], from + at as u64)? {
            0 => break,
            read => at += read,
        }
    }
    bytes.truncate(at);
    Ok(bytes.freeze())
}

/// What `absent` is where there is no such thing.
fn unless_missing<T>(done: io::Result<T>, absent: T) -> io::Result<T> {
    match done {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(absent),
        done => done,
    }
}

impl ColdObjects for ColdDirectory {
    fn put<'a>(&'a self, name: &'a str, bytes: Bytes) -> FromCold<'a, ()> {
        let (scratch, owned) = (self.env.random_u64(), name.to_owned());
        let put = move |disk: &dyn Disk, dir: &Path| put_file(disk, dir, &owned, scratch, &bytes);
        Box::pin(self.run(&self.writing, name, put))
    }

    fn read<'a>(&'a self, name: &'a str, from: u64, length: usize) -> FromCold<'a, Bytes> {
        let owned = name.to_owned();
        let read = move |disk: &dyn Disk, dir: &Path| read_file(disk, &dir.join(owned), from, length);
        Box::pin(self.run(&self.reading, name, read))
    }

    fn list<'a>(&'a self, folder: &'a str) -> FromCold<'a, Vec<String>> {
        let owned = folder.to_owned();
        let list = move |disk: &dyn Disk, dir: &Path| unless_missing(disk.list(&dir.join(owned)), Vec::new());
        Box::pin(self.run(&self.writing, folder, list))
    }

    fn remove<'a>(&'a self, folder: &'a str) -> FromCold<'a, ()> {
        let owned = folder.to_owned();
        let remove = move |disk: &dyn Disk, dir: &Path| {
            let path = dir.join(owned);
            unless_missing(disk.remove_dir_all(&path), ())?;
            path.parent().map_or(Ok(()), |parent| unless_missing(disk.sync_dir(parent), ()))
        };
        Box::pin(self.run(&self.writing, folder, remove))
    }
}
