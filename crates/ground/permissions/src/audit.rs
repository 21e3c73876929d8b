//! The audit: who did what to which resource, and whether they were let, as lines of JSON in a file.
//!
//! Whoever decides never waits for it. Events wait in a bounded queue for the one thread that writes them. Where the
//! queue is full, or the disk does not take a line, events are dropped and counted, and the file says how many as soon
//! as it can. The file is put aside as `FILE.1` when it is full ([`limits`](crate::limits)), over an older one.
//!
//! A follower has the same events in a queue of its own, with the same bound. What it misses is counted apart.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use futures::StreamExt;
use futures::channel::mpsc;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tailwater_env::{Env, File, OpenMode, Task};

use crate::limits::{AUDIT_FILE_BYTES_MAX, AUDIT_NAME_CHARS_MAX, AUDIT_WAITING_MAX};

/// Events that can be asked for without reading the file.
const RECENT: usize = 1000;

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditEvent {
    /// Milliseconds since 1970.
    pub time_ms: i64,
    /// Its number since the node started.
    pub number: u64,
    /// `allowed`, `refused`, `would_refuse` (refused if rules were enforced), or `dropped`.
    pub outcome: String,
    /// On whose behalf.
    pub principal: String,
    /// From where.
    pub address: String,
    /// By which way in.
    pub protocol: String,
    /// The protocol's own name for what was asked for.
    pub request: String,
    /// The right that it needs: an operation.
    pub operation: String,
    /// To a resource of this kind.
    pub kind: String,
    /// Its name, of which the first characters are kept.
    pub name: String,
    /// Events that are missing before this one.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub dropped: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// What was counted since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AuditStats {
    /// Events that were written.
    pub written: u64,
    /// Events that were not.
    pub dropped: u64,
    /// Events that the follower did not get.
    pub missed: u64,
}

/// Takes events, and writes them.
pub struct Audit {
    waiting: EventQueue,
    following: OnceLock<EventQueue>,
    shared: Arc<AuditShared>,
    _writer: Task,
}

/// The one sender to a bounded queue: each clone of it would have a place of its own beyond the bound.
struct EventQueue(Mutex<mpsc::Sender<AuditEvent>>);

impl EventQueue {
    fn new() -> (Self, mpsc::Receiver<AuditEvent>) {
        let (sender, events) = mpsc::channel(AUDIT_WAITING_MAX);
        (Self(Mutex::new(sender)), events)
    }

    /// Whether there was room for it.
    fn offer(&self, event: AuditEvent) -> bool {
        self.0.lock().try_send(event).is_ok()
    }
}

#[derive(Default)]
struct AuditShared {
    recent: Mutex<VecDeque<AuditEvent>>,
    begun: AtomicU64,
    written: AtomicU64,
    dropped: AtomicU64,
    /// Of the dropped ones, those that the file does not tell of yet.
    untold: AtomicU64,
    missed: AtomicU64,
}

impl Audit {
    /// One in the file at `path`, which goes on where it ends.
    ///
    /// # Errors
    /// A file that can't be opened. Blocks on the disk.
    pub fn open(env: &Env, path: &Path) -> io::Result<Self> {
        let shared = Arc::new(AuditShared::default());
        let (waiting, events) = EventQueue::new();
        let file = AuditFile::open(env, path, AUDIT_FILE_BYTES_MAX)?;
        let writer = env.spawn_dedicated("audit", write_all(file, events, Arc::clone(&shared)));
        Ok(Self { waiting, following: OnceLock::new(), shared, _writer: writer })
    }

    /// Takes an event, whose number is given here. Waits for nothing: it may be dropped, and is counted then.
    pub fn tell(&self, mut event: AuditEvent) {
        event.number = self.shared.begun.fetch_add(1, Ordering::Relaxed) + 1;
        for text in [&mut event.name, &mut event.principal] {
            if let Some((end, _)) = text.char_indices().nth(AUDIT_NAME_CHARS_MAX) {
                text.truncate(end);
            }
        }
        {
            let mut recent = self.shared.recent.lock();
            if recent.len() == RECENT {
                recent.pop_front();
            }
            recent.push_back(event.clone());
        }
        if self.following.get().is_some_and(|following| !following.offer(event.clone())) {
            self.shared.missed.fetch_add(1, Ordering::Relaxed);
        }
        if !self.waiting.offer(event) {
            self.shared.drop_one();
        }
    }

    /// The newest events with numbers above `after`, in order.
    pub fn recent(&self, after: u64, max: usize) -> Vec<AuditEvent> {
        let recent = self.shared.recent.lock();
        let newer = recent.iter().filter(|event| event.number > after).count();
        recent.iter().skip(recent.len() - newer.min(max)).cloned().collect()
    }

    /// All events from now on, of which so many wait as for the file: others are missed. `None` once there is a
    /// follower.
    pub fn follow(&self) -> Option<mpsc::Receiver<AuditEvent>> {
        let (following, events) = EventQueue::new();
        self.following.set(following).ok().map(|()| events)
    }

    /// What was counted since the start.
    pub fn stats(&self) -> AuditStats {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let AuditShared { written, dropped, missed, .. } = &*self.shared;
        AuditStats { written: of(written), dropped: of(dropped), missed: of(missed) }
    }
}

impl AuditShared {
    fn drop_one(&self) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
        self.untold.fetch_add(1, Ordering::Relaxed);
    }
}

async fn write_all(mut file: AuditFile, mut events: mpsc::Receiver<AuditEvent>, shared: Arc<AuditShared>) {
    while let Some(mut event) = events.next().await {
        event.dropped = shared.untold.swap(0, Ordering::Relaxed);
        match file.write(&event) {
            Ok(()) => drop(shared.written.fetch_add(1, Ordering::Relaxed)),
            Err(error) => {
                shared.untold.fetch_add(event.dropped, Ordering::Relaxed);
                shared.drop_one();
                // Once for each run of failures: the next line that is written tells how many there were.
                if event.dropped == 0 {
                    tracing::warn!(path = %file.path.display(), %error, "the audit can't be written");
                }
            }
        }
    }
}

struct AuditFile {
    env: Env,
    path: PathBuf,
    file: Arc<dyn File>,
    length: u64,
    bytes_max: u64,
}

impl AuditFile {
    fn open(env: &Env, path: &Path, bytes_max: u64) -> io::Result<Self> {
        let file = match env.disk().open(path, OpenMode::CreateNew) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                env.disk().open(path, OpenMode::ReadWrite)?
            }
            opened => opened?,
        };
        let length = file.len()?;
        Ok(Self { env: env.clone(), path: path.to_owned(), file, length, bytes_max })
    }

    fn write(&mut self, event: &AuditEvent) -> io::Result<()> {
        if self.length >= self.bytes_max {
            let mut aside = self.path.clone().into_os_string();
            aside.push(".1");
            self.env.disk().rename(&self.path, Path::new(&aside))?;
            *self = Self::open(&self.env, &self.path, self.bytes_max)?;
        }
        let mut line = serde_json::to_vec(event)?;
        line.push(b'\n');
        self.file.write_all_at(&line, self.length)?;
        self.length += line.len() as u64;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(name: &str) -> AuditEvent {
        AuditEvent {
            time_ms: 0,
            number: 0,
            outcome: "refused".to_owned(),
            principal: "alice".to_owned(),
            address: String::new(),
            protocol: "kafka".to_owned(),
            request: "Produce".to_owned(),
            operation: "write".to_owned(),
            kind: "stream".to_owned(),
            name: name.to_owned(),
            dropped: 0,
        }
    }

    fn lines(path: &Path) -> Vec<AuditEvent> {
        let file = Env::real().disk().open(path, OpenMode::Read).expect("the file");
        let mut bytes = vec![0; file.len().expect("a length") as usize];
        file.read_at(&mut bytes, 0).expect("read");
        let text = String::from_utf8(bytes).expect("text");
        text.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
    }

    #[tokio::test]
    async fn a_full_file_is_put_aside_and_what_comes_then_is_in_a_new_one() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("audit.jsonl");
        let mut file = AuditFile::open(&Env::real(), &path, 300).expect("open");
        for number in 0..3 {
            file.write(&event(&number.to_string())).expect("write");
        }
        let names = |path: &Path| lines(path).into_iter().map(|event| event.name).collect::<Vec<_>>();
        assert_eq!(names(&dir.path().join("audit.jsonl.1")), ["0", "1"]);
        assert_eq!(names(&path), ["2"]);
        drop(file);
        let mut again = AuditFile::open(&Env::real(), &path, 300).expect("open");
        again.write(&event("3")).expect("write");
        assert_eq!(names(&path), ["2", "3"]);
    }

    #[tokio::test]
    async fn a_follower_that_is_behind_misses_events_and_the_file_does_not() {
        let dir = tempfile::tempdir().expect("a directory");
        let audit = Audit::open(&Env::real(), &dir.path().join("audit.jsonl")).expect("open");
        audit.tell(event("before"));
        let mut events = audit.follow().expect("the first one");
        assert!(audit.follow().is_none(), "there is one");
        for number in 0..3 {
            audit.tell(event(&number.to_string()));
        }
        let followed: Vec<String> = (&mut events).take(3).map(|event| event.name).collect().await;
        assert_eq!(followed, ["0", "1", "2"]);
        // It takes nothing any more.
        for _ in 0..2 * AUDIT_WAITING_MAX {
            audit.tell(event("more"));
        }
        let missed = audit.stats().missed;
        assert!((1..=AUDIT_WAITING_MAX as u64).contains(&missed), "{missed}");
        let rest = events.take(2 * AUDIT_WAITING_MAX - missed as usize).collect::<Vec<_>>().await;
        assert!(
            rest.windows(2).all(|pair| pair[0].number + 1 == pair[1].number),
            "a queue, of the oldest ones"
        );
    }

    #[tokio::test]
    async fn what_the_disk_does_not_take_is_counted_and_the_next_line_says_how_much_is_missing() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("audit.jsonl");
        let env = Env::real();
        // The file is full at once and can't be put aside, as a directory has its name.
        let mut file = AuditFile::open(&env, &path, 0).expect("open");
        env.disk().create_dir_all(&dir.path().join("audit.jsonl.1/x")).expect("in the way");
        file.write(&event("0")).expect_err("nothing can be put aside");
        let shared = Arc::new(AuditShared::default());
        let (mut waiting, events) = mpsc::channel(8);
        waiting.try_send(event("1")).expect("room");
        waiting.try_send(event("2")).expect("room");
        drop(waiting);
        write_all(file, events, Arc::clone(&shared)).await;
        assert_eq!(shared.dropped.load(Ordering::Relaxed), 2);
        env.disk().remove_dir_all(&dir.path().join("audit.jsonl.1")).expect("no more");
        let file = AuditFile::open(&env, &path, 300).expect("open");
        let (mut waiting, events) = mpsc::channel(8);
        waiting.try_send(event("3")).expect("room");
        drop(waiting);
        write_all(file, events, Arc::clone(&shared)).await;
        assert_eq!(lines(&path)[0].dropped, 2);
    }
}
