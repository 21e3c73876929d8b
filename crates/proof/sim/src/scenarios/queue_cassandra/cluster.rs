//! A model of Cassandra: three replicas that get writes sooner or later, timestamps, levels, calls that fail and are
//! done all the same. As little as the algorithm may count on, and no more.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tailwater_env::{Env, Instant};
use tailwater_queue::shared::rows::{
    Body, Done, GroupKey, Letter, Record, RowCell, RowKind, RowPartition, Rows, RowsError, Tuple, stamp,
};
use tailwater_queue::{Consistency, FrontReport, Number, QueueId};
use tokio::sync::mpsc;

use crate::planted::Plant;
use crate::rng::Rng;
use crate::world::Outside;

pub(super) const REPLICAS: usize = 3;
const TIMEOUT: Duration = Duration::from_secs(2);
/// Pause between two looks whether a replica is back.
const HINT_PAUSE: Duration = Duration::from_millis(500);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ClusterKey {
    Tuple(RowPartition, u64, Number),
    Body(RowPartition, Number),
    Bucket(QueueId, RowKind, u64),
    Floor(QueueId, RowKind),
    Forward(QueueId, Number, u32),
    Letter(QueueId, Number, Letter),
    Report(u64),
}

#[derive(Clone, Debug)]
enum ClusterValue {
    Tuple(Tuple),
    Body(Body),
    Bucket,
    Floor(u64),
    Forward(u64, u32),
    Letter,
    Report(FrontReport),
}

#[derive(Clone, Debug)]
enum ClusterWrite {
    /// A row, or its deletion.
    Row(ClusterKey, i64, Option<ClusterValue>),
    /// The deletion of a partition.
    Clear(RowKind, RowPartition, i64),
}

#[derive(Default)]
struct Replica {
    rows: BTreeMap<ClusterKey, (i64, Option<ClusterValue>)>,
    cleared: BTreeMap<(RowKind, RowPartition), i64>,
}

impl Replica {
    fn apply(&mut self, write: ClusterWrite) {
        match write {
            ClusterWrite::Row(key, stamp, value) => {
                let known = self.rows.get(&key);
                if known.is_none_or(|(at, _)| stamp > *at || (stamp == *at && value.is_none())) {
                    self.rows.insert(key, (stamp, value));
                }
            }
            ClusterWrite::Clear(kind, at, upto) => {
                let known = self.cleared.entry((kind, at)).or_insert(upto);
                *known = upto.max(*known);
            }
        }
    }
}

/// What the replicas of a read say together, `most` rows of it: of each row what is latest. What comes after those is
/// not looked at: a partition may have many thousands.
fn merged(
    replicas: &[&Replica],
    from: ClusterKey,
    upto: ClusterKey,
    most: usize,
) -> Vec<(ClusterKey, ClusterValue)> {
    let is_cleared = |key: &ClusterKey, stamp: i64| {
        let partition = match key {
            ClusterKey::Tuple(at, ..) => (RowKind::Tuples, *at),
            ClusterKey::Body(at, _) => (RowKind::Bodies, *at),
            _ => return false,
        };
        replicas.iter().any(|replica| replica.cleared.get(&partition).is_some_and(|upto| stamp <= *upto))
    };
    let mut rows: Vec<_> =
        replicas.iter().map(|replica| replica.rows.range(from..=upto).peekable()).collect();
    let mut found = Vec::new();
    while found.len() < most {
        let Some(key) = rows.iter_mut().filter_map(|rows| rows.peek().map(|(key, _)| **key)).min() else {
            break;
        };
        let said = rows.iter_mut().filter_map(|rows| rows.next_if(|(other, _)| **other == key));
        let latest = said.map(|(_, row)| row).max_by_key(|(stamp, value)| (*stamp, value.is_none()));
        if let Some((stamp, Some(value))) = latest
            && !is_cleared(&key, *stamp)
        {
            found.push((key, value.clone()));
        }
    }
    found
}

/// Records are linearizable: one copy is a model of many.
type ClusterRecords = BTreeMap<(String, String), (Record, Option<Duration>)>;

/// So are groups: their cells, and until when each is there.
type ClusterGroups = BTreeMap<(QueueId, GroupKey), BTreeMap<Bytes, (RowCell, Duration)>>;

/// A conditional write of a group.
#[derive(Clone)]
struct GroupWrite {
    at: (QueueId, GroupKey),
    expected: u64,
    cells: Vec<RowCell>,
    gone: Vec<Bytes>,
}

/// The cluster.
pub(super) struct Cluster {
    outside: Outside,
    replicas: Mutex<[Replica; REPLICAS]>,
    records: Mutex<ClusterRecords>,
    groups: Mutex<ClusterGroups>,
    rng: Mutex<Rng>,
    /// Replicas that are away: they get what was written meanwhile when they are back.
    away: Mutex<[bool; REPLICAS]>,
    /// Calls of a million that are lost, and replicas that get a write late.
    pub(super) faults_per_million: Mutex<u32>,
    /// Tuples and groups that were read, by all front ends.
    pub(super) rows_read: Mutex<u64>,
    /// When it was noted of each dead letter that it is about to be put.
    pub(super) noted: Mutex<BTreeMap<Number, Instant>>,
}

/// The cluster, as one front end reaches it.
pub(super) struct SimRows {
    cluster: Arc<Cluster>,
    env: Env,
    plant: Plant,
    /// With the bug, messages that are on their way to a dead-letter queue.
    moving: Mutex<BTreeSet<Number>>,
    /// With the bug, tuples that this front end put.
    own: Mutex<BTreeSet<(u64, Number)>>,
    /// With the bug, reports as they were read last.
    reports_before: Mutex<Vec<FrontReport>>,
}

impl Cluster {
    pub(super) fn new(outside: Outside, rng: Rng, faults_per_million: u32) -> Arc<Self> {
        Arc::new(Self {
            outside,
            replicas: Mutex::default(),
            records: Mutex::default(),
            groups: Mutex::default(),
            rng: Mutex::new(rng),
            away: Mutex::default(),
            faults_per_million: Mutex::new(faults_per_million),
            rows_read: Mutex::default(),
            noted: Mutex::default(),
        })
    }

    fn fails(&self) -> bool {
        let faults = *self.faults_per_million.lock();
        self.rng.lock().chance(faults)
    }

    /// Takes a replica away, or lets it be back.
    pub(super) fn set_up(&self, replica: usize, is_up: bool) {
        self.away.lock()[replica] = !is_up;
    }

    async fn wait_until_up(&self, replica: usize) {
        while self.away.lock()[replica] {
            self.outside.sleep(HINT_PAUSE).await;
        }
    }

    fn now(&self) -> Duration {
        Duration::from_nanos(self.outside.now().as_ns())
    }

    /// Does a conditional write; whether it compared well.
    fn write_group(&self, write: &GroupWrite, plant: Plant) -> bool {
        let now = self.now();
        let mut groups = self.groups.lock();
        let group = groups.entry(write.at).or_default();
        group.retain(|_, (_, until)| now < *until);
        let first = &write.cells[0];
        let version = group.get(&first.key).map_or(0, |(cell, _)| cell.version);
        let is_compared = plant != Plant::ConditionNotChecked || self.rng.lock().below(3) > 0;
        if version != write.expected && is_compared {
            return false;
        }
        for cell in &write.cells {
            let is_kept = plant != Plant::SeenNotKept || cell.key[0] != 2;
            if is_kept {
                let until = now + Duration::from_secs(cell.ttl_s.into());
                group.insert(cell.key.clone(), (cell.clone(), until));
            }
        }
        for key in &write.gone {
            group.remove(key);
        }
        true
    }

    fn delay(&self, may_be_late: bool) -> Duration {
        let is_late = may_be_late && self.fails();
        let us = match is_late {
            true => self.rng.lock().between(100_000, 20_000_000),
            false => self.rng.lock().between(100, 4_000),
        };
        Duration::from_micros(us)
    }
}

fn timed_out<T>() -> Result<T, RowsError> {
    Err(RowsError("the model: timed out".to_owned()))
}

impl SimRows {
    pub(super) fn new(cluster: &Arc<Cluster>, env: &Env, plant: Plant) -> Self {
        Self {
            cluster: Arc::clone(cluster),
            env: env.clone(),
            plant,
            moving: Mutex::default(),
            own: Mutex::default(),
            reports_before: Mutex::default(),
        }
    }

    fn put(&self, level: Consistency, key: ClusterKey, stamp: i64, value: ClusterValue) -> Done<'_, ()> {
        self.write(level, ClusterWrite::Row(key, stamp, Some(value)))
    }

    /// A call comes to the cluster, or fails on its way there.
    async fn arrive(&self) -> Result<(), RowsError> {
        if self.cluster.fails() {
            self.env.sleep(TIMEOUT).await;
            return timed_out();
        }
        self.env.sleep(self.cluster.delay(false)).await;
        Ok(())
    }

    fn write(&self, level: Consistency, write: ClusterWrite) -> Done<'_, ()> {
        let cluster = Arc::clone(&self.cluster);
        Box::pin(async move {
            if cluster.fails() {
                cluster.outside.sleep(TIMEOUT).await;
                return timed_out();
            }
            let (done, mut answers) = mpsc::channel(REPLICAS);
            let only = (self.plant == Plant::QuorumOfOne).then(|| cluster.rng.lock().index(REPLICAS));
            for number in 0..REPLICAS {
                let (delay, cluster, write, done) =
                    (cluster.delay(true), Arc::clone(&cluster), write.clone(), done.clone());
                let is_written = only.is_none_or(|only| only == number);
                let outside = cluster.outside.clone();
                let arrive = async move {
                    cluster.outside.sleep(delay).await;
                    cluster.wait_until_up(number).await;
                    if is_written {
                        cluster.replicas.lock()[number].apply(write);
                    }
                    let _ = done.send(()).await;
                };
                outside.spawn("replica", arrive).detach();
            }
            let needed = if level == Consistency::Quorum { 2 } else { 1 };
            let answered = async {
                for _ in 0..needed {
                    answers.recv().await;
                }
            };
            match self.env.timeout(TIMEOUT, answered).await {
                Some(()) => Ok(()),
                None => timed_out(),
            }
        })
    }

    fn read(
        &self,
        level: Consistency,
        from: ClusterKey,
        upto: ClusterKey,
        most: usize,
    ) -> Done<'_, Vec<(ClusterKey, ClusterValue)>> {
        let cluster = Arc::clone(&self.cluster);
        Box::pin(async move {
            self.arrive().await?;
            let first = cluster.rng.lock().index(REPLICAS);
            let is_quorum = level == Consistency::Quorum && self.plant != Plant::ReadOfOne;
            let needed = if is_quorum { 2 } else { 1 };
            let read = {
                let (replicas, away) = (cluster.replicas.lock(), *cluster.away.lock());
                let up = (first..first + REPLICAS).map(|at| at % REPLICAS).filter(|at| !away[*at]);
                let asked: Vec<&Replica> = up.take(needed).map(|at| &replicas[at]).collect();
                (asked.len() == needed).then(|| merged(&asked, from, upto, most))
            };
            let Some(read) = read else {
                self.env.sleep(TIMEOUT).await;
                return timed_out();
            };
            self.env.sleep(cluster.delay(false)).await;
            Ok(read)
        })
    }
}

impl Rows for SimRows {
    fn tuples(
        &self,
        level: Consistency,
        at: RowPartition,
        from: u64,
        upto: u64,
        most: usize,
    ) -> Done<'_, Vec<Tuple>> {
        Box::pin(async move {
            if from > upto {
                return Ok(Vec::new());
            }
            let (from, upto) =
                (ClusterKey::Tuple(at, from, Number(0)), ClusterKey::Tuple(at, upto, Number(u64::MAX)));
            let rows = self.read(level, from, upto, most).await?.into_iter();
            let tuples = rows.filter_map(|(_, value)| match value {
                ClusterValue::Tuple(tuple) => Some(tuple),
                _ => None,
            });
            let tuples: Vec<Tuple> = tuples.collect();
            *self.cluster.rows_read.lock() += tuples.len() as u64;
            Ok(self.as_planted(tuples))
        })
    }

    fn tuple(
        &self,
        level: Consistency,
        at: RowPartition,
        visible_at: u64,
        number: Number,
    ) -> Done<'_, Option<Tuple>> {
        Box::pin(async move {
            let tuples = self.tuples(level, at, visible_at, visible_at, usize::MAX).await?;
            Ok(tuples.into_iter().find(|tuple| tuple.number == number))
        })
    }

    fn put_tuple(&self, level: Consistency, at: RowPartition, tuple: Tuple) -> Done<'_, ()> {
        if self.plant == Plant::OthersSeenFirst {
            self.own.lock().insert((tuple.visible_at, tuple.number));
        }
        let key = ClusterKey::Tuple(at, tuple.visible_at, tuple.number);
        let stamp = stamp(tuple.number, tuple.moves);
        self.put(level, key, stamp, ClusterValue::Tuple(tuple))
    }

    fn delete_tuple(&self, level: Consistency, at: RowPartition, tuple: Tuple) -> Done<'_, ()> {
        let key = ClusterKey::Tuple(at, tuple.visible_at, tuple.number);
        self.write(level, ClusterWrite::Row(key, stamp(tuple.number, tuple.moves) + 1, None))
    }

    fn body(&self, level: Consistency, at: RowPartition, number: Number) -> Done<'_, Option<Body>> {
        Box::pin(async move {
            let key = ClusterKey::Body(at, number);
            Ok(self.read(level, key, key, 1).await?.into_iter().find_map(|(_, value)| match value {
                ClusterValue::Body(body) => Some(body),
                _ => None,
            }))
        })
    }

    fn put_body(&self, level: Consistency, at: RowPartition, number: Number, body: Body) -> Done<'_, ()> {
        if self.plant == Plant::BodyNotPut && self.cluster.rng.lock().below(20) == 0 {
            return Box::pin(async { Ok(()) });
        }
        if self.plant == Plant::LetterNotPut && body.source.is_some() && self.cluster.rng.lock().below(4) == 0
        {
            return Box::pin(async { Ok(()) });
        }
        self.put(level, ClusterKey::Body(at, number), stamp(number, 0), ClusterValue::Body(body))
    }

    fn delete_body(&self, level: Consistency, at: RowPartition, number: Number) -> Done<'_, ()> {
        if self.plant == Plant::BodyNotDeleted || self.moving.lock().remove(&number) {
            return Box::pin(async { Ok(()) });
        }
        self.write(level, ClusterWrite::Row(ClusterKey::Body(at, number), stamp(number, 0) + 1, None))
    }

    fn bodies(
        &self,
        level: Consistency,
        at: RowPartition,
        after: Number,
        most: usize,
    ) -> Done<'_, Vec<(Number, Option<GroupKey>)>> {
        Box::pin(async move {
            // Whoever looks for one only wants to know whether the bucket may be dropped.
            if self.plant == Plant::FullBucketDropped && most == 1 {
                return Ok(Vec::new());
            }
            let (from, upto) =
                (ClusterKey::Body(at, Number(after.0 + 1)), ClusterKey::Body(at, Number(u64::MAX)));
            let rows = self.read(level, from, upto, most).await?.into_iter();
            let numbers = rows.filter_map(|(key, value)| match (key, value) {
                (ClusterKey::Body(_, number), ClusterValue::Body(body)) => Some((number, body.group)),
                _ => None,
            });
            Ok(numbers.collect())
        })
    }

    fn put_bucket(&self, level: Consistency, queue: QueueId, kind: RowKind, bucket: u64) -> Done<'_, ()> {
        self.put(level, ClusterKey::Bucket(queue, kind, bucket), 2, ClusterValue::Bucket)
    }

    fn buckets(
        &self,
        level: Consistency,
        queue: QueueId,
        kind: RowKind,
        from: u64,
        most: usize,
    ) -> Done<'_, Vec<u64>> {
        Box::pin(async move {
            let (from, upto) =
                (ClusterKey::Bucket(queue, kind, from), ClusterKey::Bucket(queue, kind, u64::MAX));
            let rows = self.read(level, from, upto, most).await?.into_iter();
            let buckets = rows.filter_map(|(key, _)| match key {
                ClusterKey::Bucket(_, _, bucket) => Some(bucket),
                _ => None,
            });
            Ok(buckets.collect())
        })
    }

    fn clear(&self, level: Consistency, kind: RowKind, at: RowPartition, upto_us: i64) -> Done<'_, ()> {
        self.write(level, ClusterWrite::Clear(kind, at, upto_us))
    }

    fn delete_bucket(&self, level: Consistency, queue: QueueId, kind: RowKind, bucket: u64) -> Done<'_, ()> {
        self.write(level, ClusterWrite::Row(ClusterKey::Bucket(queue, kind, bucket), 3, None))
    }

    fn floor(&self, level: Consistency, queue: QueueId, kind: RowKind) -> Done<'_, u64> {
        Box::pin(async move {
            let key = ClusterKey::Floor(queue, kind);
            let row = self.read(level, key, key, 1).await?.pop();
            Ok(row.map_or(0, |(_, value)| if let ClusterValue::Floor(bucket) = value { bucket } else { 0 }))
        })
    }

    fn put_floor(&self, level: Consistency, queue: QueueId, kind: RowKind, bucket: u64) -> Done<'_, ()> {
        let stamp = i64::try_from(bucket).expect("a time");
        self.put(level, ClusterKey::Floor(queue, kind), stamp, ClusterValue::Floor(bucket))
    }

    fn forward(
        &self,
        level: Consistency,
        queue: QueueId,
        number: Number,
        token: u32,
    ) -> Done<'_, Option<(u64, u32)>> {
        Box::pin(async move {
            let key = ClusterKey::Forward(queue, number, token);
            let row = self.read(level, key, key, 1).await?.pop();
            Ok(row.and_then(|(_, value)| match value {
                ClusterValue::Forward(visible_at, moves) => Some((visible_at, moves)),
                _ => None,
            }))
        })
    }

    fn put_forward(
        &self,
        level: Consistency,
        queue: QueueId,
        number: Number,
        token: u32,
        (visible_at, moves): (u64, u32),
    ) -> Done<'_, ()> {
        let key = ClusterKey::Forward(queue, number, token);
        self.put(level, key, stamp(number, moves), ClusterValue::Forward(visible_at, moves))
    }

    fn put_letter(&self, level: Consistency, queue: QueueId, number: Number, letter: Letter) -> Done<'_, ()> {
        self.cluster.noted.lock().insert(letter.number, self.cluster.outside.now());
        if self.plant == Plant::MovedAndKept {
            self.moving.lock().insert(number);
        }
        if self.plant == Plant::LetterNotNoted {
            return Box::pin(async { Ok(()) });
        }
        let key = ClusterKey::Letter(queue, number, letter);
        self.put(level, key, stamp(letter.number, 0), ClusterValue::Letter)
    }

    fn letters(
        &self,
        level: Consistency,
        queue: QueueId,
        number: Number,
        most: usize,
    ) -> Done<'_, Vec<Letter>> {
        Box::pin(async move {
            let letter = |end: u64, part: u16| {
                let at = RowPartition { queue: QueueId(end), bucket: end, part };
                ClusterKey::Letter(queue, number, Letter { at, number: Number(end) })
            };
            let rows =
                self.read(level, letter(0, 0), letter(u64::MAX, u16::MAX), usize::MAX).await?.into_iter();
            let letters = rows.filter_map(|(key, _)| match key {
                ClusterKey::Letter(_, _, letter) => Some(letter),
                _ => None,
            });
            let mut letters: Vec<Letter> = letters.collect();
            letters.sort_unstable_by_key(|letter| std::cmp::Reverse((letter.at.queue, letter.number)));
            letters.truncate(most);
            Ok(letters)
        })
    }

    fn put_report(&self, report: FrontReport) -> Done<'_, ()> {
        if self.plant == Plant::ReportNotPut {
            return Box::pin(async { Ok(()) });
        }
        let (key, stamp) = (ClusterKey::Report(report.front), report.number.cast_signed());
        self.put(Consistency::Quorum, key, stamp, ClusterValue::Report(report))
    }

    fn reports(&self) -> Done<'_, Vec<FrontReport>> {
        Box::pin(async move {
            let (from, upto) = (ClusterKey::Report(0), ClusterKey::Report(u64::MAX));
            let rows = self.read(Consistency::Quorum, from, upto, usize::MAX).await?.into_iter();
            let reports = rows.filter_map(|(_, value)| match value {
                ClusterValue::Report(report) => Some(report),
                _ => None,
            });
            let reports: Vec<FrontReport> = reports.collect();
            if self.plant == Plant::ReportsReadTooEarly {
                return Ok(std::mem::replace(&mut *self.reports_before.lock(), reports));
            }
            Ok(reports)
        })
    }

    fn record<'a>(&'a self, space: &'a str, key: &'a str) -> Done<'a, Option<Record>> {
        Box::pin(async move {
            let records = self.read_records(space, key, Some(key)).await?;
            Ok(records.into_iter().next().map(|(_, record)| record))
        })
    }

    fn records<'a>(&'a self, space: &'a str) -> Done<'a, Vec<(String, Record)>> {
        Box::pin(self.read_records(space, "", None))
    }

    fn write_record<'a>(
        &'a self,
        space: &'a str,
        key: &'a str,
        value: Option<Bytes>,
        expected: Option<u64>,
        ttl_s: u32,
    ) -> Done<'a, bool> {
        Box::pin(async move {
            self.arrive().await?;
            let is_done = {
                let now = Duration::from_nanos(self.cluster.outside.now().as_ns());
                let mut records = self.cluster.records.lock();
                let name = (space.to_owned(), key.to_owned());
                let known = records.get(&name).filter(|(_, until)| until.is_none_or(|until| now < until));
                let version = known.map(|(record, _)| record.version);
                if version == expected {
                    let until = (ttl_s > 0).then(|| now + Duration::from_secs(ttl_s.into()));
                    match value {
                        None => drop(records.remove(&name)),
                        Some(value) => {
                            let version = version.unwrap_or(0) + 1;
                            records.insert(name, (Record { value, version }, until));
                        }
                    }
                }
                version == expected
            };
            self.env.sleep(self.cluster.delay(false)).await;
            // Done, and not known to be.
            if self.cluster.fails() {
                return timed_out();
            }
            Ok(is_done)
        })
    }

    fn cells(&self, queue: QueueId, group: GroupKey, keys: Vec<Bytes>) -> Done<'_, Vec<RowCell>> {
        Box::pin(async move {
            let cells = self.group(queue, group).await?;
            Ok(cells.into_iter().filter(|cell| keys.contains(&cell.key)).collect())
        })
    }

    fn cells_from(
        &self,
        queue: QueueId,
        group: GroupKey,
        from: Bytes,
        upto: Bytes,
        most: usize,
    ) -> Done<'_, Vec<RowCell>> {
        Box::pin(async move {
            let cells = self.group(queue, group).await?.into_iter();
            Ok(cells.filter(|cell| cell.key >= from && cell.key < upto).take(most).collect())
        })
    }

    fn write_cells(
        &self,
        queue: QueueId,
        group: GroupKey,
        expected: u64,
        cells: Vec<RowCell>,
        gone: Vec<Bytes>,
    ) -> Done<'_, bool> {
        Box::pin(async move {
            let (cluster, plant) = (Arc::clone(&self.cluster), self.plant);
            let write = GroupWrite { at: (queue, group), expected, cells, gone };
            if cluster.fails() {
                // Not done; or another write that finds it half decided does it, when nobody waits for it any more.
                if cluster.rng.lock().below(2) == 0 {
                    let (delay, outside) = (cluster.delay(true) * 2, cluster.outside.clone());
                    let late = async move {
                        cluster.outside.sleep(delay).await;
                        cluster.write_group(&write, plant);
                    };
                    outside.spawn("late", late).detach();
                }
                self.env.sleep(TIMEOUT).await;
                return timed_out();
            }
            // Who asks may die meanwhile.
            let (done, mut answer) = mpsc::channel(1);
            let delay = cluster.delay(false);
            let outside = cluster.outside.clone();
            let arrive = async move {
                cluster.outside.sleep(delay).await;
                let _ = done.send(cluster.write_group(&write, plant)).await;
            };
            outside.spawn("group", arrive).detach();
            let is_done = answer.recv().await.unwrap_or(false);
            self.env.sleep(self.cluster.delay(false)).await;
            // Done, and not known to be.
            if self.cluster.fails() {
                return timed_out();
            }
            Ok(is_done)
        })
    }
}

impl SimRows {
    /// Tuples that were read, with the bug in them if it is one of how receives see each other.
    fn as_planted(&self, mut tuples: Vec<Tuple>) -> Vec<Tuple> {
        // What is not visible yet is read by whoever looks for other receivers of a message.
        let now = u64::try_from(self.env.wall_ms()).unwrap_or(0);
        match self.plant {
            Plant::OthersNotSeen => tuples.retain(|tuple| tuple.visible_at <= now),
            Plant::OthersSeenFirst => {
                let own = self.own.lock();
                let others =
                    tuples.iter_mut().filter(|tuple| !own.contains(&(tuple.visible_at, tuple.number)));
                others.filter(|tuple| tuple.visible_at > now).for_each(|tuple| tuple.received_at = 0);
            }
            _ => {}
        }
        tuples
    }

    /// The records of a space from a key on, up to one.
    async fn read_records(
        &self,
        space: &str,
        from: &str,
        upto: Option<&str>,
    ) -> Result<Vec<(String, Record)>, RowsError> {
        self.arrive().await?;
        let now = self.cluster.now();
        let records = self.cluster.records.lock();
        let there = records
            .range((space.to_owned(), from.to_owned())..)
            .take_while(|((of, key), _)| of == space && upto.is_none_or(|upto| key.as_str() <= upto))
            .filter(|(_, (_, until))| until.is_none_or(|until| now < until));
        Ok(there.map(|((_, key), (record, _))| (key.clone(), record.clone())).collect())
    }

    /// The cells of a group, by key.
    async fn group(&self, queue: QueueId, group: GroupKey) -> Result<Vec<RowCell>, RowsError> {
        self.arrive().await?;
        *self.cluster.rows_read.lock() += 1;
        let now = self.cluster.now();
        let cells = {
            let groups = self.cluster.groups.lock();
            let group = groups.get(&(queue, group)).into_iter().flat_map(BTreeMap::values);
            group.filter(|(_, until)| now < *until).map(|(cell, _)| cell.clone()).collect()
        };
        self.env.sleep(self.cluster.delay(false)).await;
        Ok(cells)
    }
}
