//! What the keys of a store of metadata have to be: the commits that survived, one after the other.
//!
//! Every commit also writes a key of its own, its *mark*, so that which commits survived is seen, with their
//! versions, from the keys alone. Marks are removed by later commits now and then.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use tailwater_meta::{Expect, Op, Versioned};

use crate::checkers::{Violation, ensure};
use crate::scenarios::outcome::{Noted, Outcome};

const MARKS: &str = "mark/";
pub(super) const LEASES: &str = "lease/";
/// Marks that are left when some are removed.
const MARKS_KEPT: usize = 40;

/// A commit that was handed in.
#[derive(Debug)]
struct ModelCommit {
    ops: Vec<Op>,
    /// Its version, once it was answered, seen by somebody, or found by a start: then it stays.
    version: Option<u64>,
    /// A start did not find it.
    gone: bool,
}

#[derive(Default)]
pub(super) struct Model {
    commits: Vec<ModelCommit>,
    /// Highest version that was answered or seen, by key; a read after that is not older.
    floors: BTreeMap<String, u64>,
    /// The keys and versions that the watcher was told of.
    watched: BTreeMap<String, u64>,
    pub(super) answered: u64,
    noted: Noted,
}

fn mark(commit: usize) -> String {
    format!("{MARKS}{commit:06}")
}

/// The value that `commit` puts under a key.
fn value(commit: usize, key: &str) -> Bytes {
    let length = 20 + (commit * 7 + key.len()) % 200;
    let text = format!("{commit}:{key}:");
    let filler = (0..length).map(|at| (commit as u8).wrapping_add(at as u8));
    text.bytes().chain(filler).collect::<Vec<u8>>().into()
}

/// The commit that a value is of.
fn commit_of(value: &[u8]) -> Option<usize> {
    let number = value.split(|byte| *byte == b':').next()?;
    std::str::from_utf8(number).ok()?.parse().ok()
}

impl Outcome for Model {
    fn noted(&mut self) -> &mut Noted {
        &mut self.noted
    }

    fn begin_life(&mut self) {
        self.watched.clear();
    }
}

impl Model {
    /// The operations of a new commit: it puts `puts`, deletes `deletes`, and leaves its mark.
    pub(super) fn begin(
        &mut self,
        puts: &[(String, Expect)],
        deletes: &[(String, Expect)],
    ) -> (usize, Vec<Op>) {
        let number = self.commits.len();
        let put = |key: &str, expect| Op::Put { key: key.to_owned(), value: value(number, key), expect };
        let mut ops: Vec<Op> = puts.iter().map(|(key, expect)| put(key, *expect)).collect();
        ops.extend(deletes.iter().map(|(key, expect)| Op::Delete { key: key.clone(), expect: *expect }));
        ops.push(put(&mark(number), Expect::Absent));
        self.commits.push(ModelCommit { ops: ops.clone(), version: None, gone: false });
        (number, ops)
    }

    /// A commit that removes old marks, if there are many.
    pub(super) fn begin_tidying(&mut self) -> Option<(usize, Vec<Op>)> {
        let marks: Vec<String> =
            self.surviving().keys().filter(|key| key.starts_with(MARKS)).cloned().collect();
        let surplus = marks.len().checked_sub(MARKS_KEPT).filter(|surplus| *surplus > 10)?;
        let deletes: Vec<_> = marks.into_iter().take(surplus).map(|key| (key, Expect::Any)).collect();
        Some(self.begin(&[], &deletes))
    }

    /// What was handed in as `number` is answered.
    pub(super) fn answer(&mut self, number: usize, version: u64) -> Result<(), Violation> {
        self.answered += 1;
        self.count("commits", 1);
        self.is_there(number, version)?;
        let keys: Vec<String> = self.commits[number].ops.iter().map(|op| op.key().to_owned()).collect();
        for key in keys {
            let floor = self.floors.entry(key).or_default();
            *floor = version.max(*floor);
        }
        Ok(())
    }

    /// A commit was answered or seen: from here on it stays, with that version.
    fn is_there(&mut self, number: usize, version: u64) -> Result<(), Violation> {
        let Some(commit) = self.commits.get_mut(number) else {
            return Err(Violation::new(format!("commit {number} was never handed in")));
        };
        ensure(!commit.gone, || format!("commit {number} came back, though a start had not found it"))?;
        let known = *commit.version.get_or_insert(version);
        ensure(known == version, || format!("commit {number} has version {version}, and had {known}"))
    }

    /// The latest version that a read of `key` may not be older than.
    pub(super) fn floor(&self, key: &str) -> u64 {
        self.floors.get(key).copied().unwrap_or_default()
    }

    /// Somebody got `found` for `key`; reads after `floor` was known are not older.
    pub(super) fn got(&mut self, key: &str, found: Option<&Versioned>, floor: u64) -> Result<(), Violation> {
        self.count("reads", 1);
        let Some(found) = found else { return Ok(()) };
        ensure(found.version >= floor, || {
            format!("{key:?} was got at version {}, but version {floor} was answered before", found.version)
        })?;
        let number = commit_of(&found.value);
        let number = number.ok_or_else(|| Violation::new(format!("{key:?} has a value of nobody")))?;
        ensure(found.value == value(number, key), || format!("the value of {key:?} is damaged"))?;
        self.is_there(number, found.version)
    }

    /// The keys after all commits that are known to be there, in the order of their versions. Answers also the first
    /// expectation that did not hold.
    fn replay(&self) -> (BTreeMap<String, (u64, Bytes)>, Result<(), Violation>) {
        let mut order: Vec<(u64, usize)> = (0..self.commits.len())
            .filter_map(|number| self.commits[number].version.map(|version| (version, number)))
            .collect();
        order.sort_unstable();
        let mut keys: BTreeMap<String, (u64, Bytes)> = BTreeMap::new();
        let mut held = Ok(());
        for (version, number) in order {
            let ops = &self.commits[number].ops;
            for op in ops {
                let before = keys.get(op.key()).map(|(version, _)| *version);
                let holds = op.expect().holds(before);
                held = held.and(ensure(holds, || {
                    let (key, expect) = (op.key(), op.expect());
                    format!("commit {number} expects {expect:?} of {key:?}, whose version is {before:?}")
                }));
            }
            for op in ops {
                match op {
                    Op::Put { key, value, .. } => {
                        keys.insert(key.clone(), (version, value.clone()));
                    }
                    Op::Delete { key, .. } => {
                        keys.remove(key);
                    }
                    Op::Check { .. } => {}
                }
            }
        }
        (keys, held)
    }

    fn surviving(&self) -> BTreeMap<String, (u64, Bytes)> {
        self.replay().0
    }

    /// Checks what a start found, and takes it as what there is.
    pub(super) fn recovered(&mut self, found: Vec<(String, Versioned)>) -> Result<(), Violation> {
        let found: BTreeMap<String, Versioned> = found.into_iter().collect();
        for (key, versioned) in &found {
            ensure(!key.starts_with(LEASES), || format!("the lease {key:?} is there after a restart"))?;
            self.got(key, Some(versioned), 0)?;
        }
        let versions: Vec<u64> = self.commits.iter().filter_map(|commit| commit.version).collect();
        let different: BTreeSet<u64> = versions.iter().copied().collect();
        ensure(versions.len() == different.len(), || "two commits have the same version".to_owned())?;
        let (keys, held) = self.replay();
        held?;
        for (key, (version, _)) in &keys {
            ensure(found.contains_key(key), || {
                format!("{key:?} of version {version} was committed and is not there")
            })?;
        }
        for (key, versioned) in &found {
            let expected = keys.get(key).map(|(version, _)| *version);
            ensure(expected == Some(versioned.version), || {
                format!("{key:?} has version {}, but commits leave {expected:?}", versioned.version)
            })?;
        }
        for commit in self.commits.iter_mut().filter(|commit| commit.version.is_none()) {
            commit.gone = true;
        }
        self.count("keys recovered", found.len() as u64);
        Ok(())
    }

    // ---- what is watched ----

    /// The watcher lists anew.
    pub(super) fn watch_anew(&mut self, found: &[(String, Versioned)]) -> Result<(), Violation> {
        self.watched.clear();
        for (key, versioned) in found {
            if !key.starts_with(LEASES) {
                self.got(key, Some(versioned), 0)?;
            }
            self.watched.insert(key.clone(), versioned.version);
        }
        Ok(())
    }

    /// The watcher is told of a change.
    pub(super) fn watch_event(&mut self, key: &str, value: Option<&Versioned>) -> Result<(), Violation> {
        self.count("events watched", 1);
        match value {
            None => {
                self.watched.remove(key);
            }
            Some(versioned) => {
                if !key.starts_with(LEASES) {
                    self.got(key, Some(versioned), 0)?;
                }
                // What came between watching and listing comes again as an event.
                let known = self.watched.entry(key.to_owned()).or_default();
                *known = versioned.version;
            }
        }
        Ok(())
    }

    pub(super) fn watcher_has(&self, found: &[(String, Versioned)]) -> bool {
        self.watched.len() == found.len()
            && found.iter().all(|(key, versioned)| self.watched.get(key) == Some(&versioned.version))
    }

    pub(super) fn describe_watcher(&self, found: &[(String, Versioned)]) -> String {
        let found: BTreeMap<&str, u64> = found.iter().map(|(key, v)| (key.as_str(), v.version)).collect();
        format!("whoever watches was told of {:?}, but there is {found:?}", self.watched)
    }
}
