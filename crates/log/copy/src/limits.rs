//! Every bound of this crate, with its unit and its reason.

use std::time::Duration;

/// Answers that a copy has under way at a time. Together with [`ANSWER_BYTES`] this is the window: 16 MiB, which is
/// what a link of 1 Gbit/s with 134 ms there and back holds.
pub const WINDOW: usize = 16;
/// Bytes of entries after which an answer is full. An entry is never divided, so one may be larger.
pub const ANSWER_BYTES: usize = 1 << 20;
/// Questions that a copy has under way at most: those of the window, and some that tell of shards that are held or go
/// on.
pub const QUESTIONS_MAX: usize = WINDOW + 16;
/// Bytes of a shard that its log may have taken and not answered before it is looked whether it answers at all.
pub const SHARD_BYTES_MAX: u64 = 16 << 20;
/// How long a shard with [`SHARD_BYTES_MAX`] may be answered nothing before it is held, and the others go on without
/// it.
pub const SHARD_PATIENCE: Duration = Duration::from_millis(100);
/// Answers that one session has under way at most, whatever the other cluster asks for.
pub const CREDITS_MAX: usize = 64;
/// Sessions of a node at a time. Each has a cursor for every shard, and answers under way.
pub const SESSIONS_MAX: usize = 1_024;
/// A session without news answers after this, so that the other cluster knows that it lives, and by which way it has
/// what it has.
pub const ANSWER_AFTER: Duration = Duration::from_millis(500);
/// How often a session looks for entries that are not durable yet (`interval`), which nobody tells of.
pub const SYNC_LOOK: Duration = Duration::from_millis(10);
/// A session that is asked nothing for so long ends.
pub const SESSION_IDLE: Duration = Duration::from_secs(30);
/// A copy that is answered nothing for so long begins a new session.
pub const SILENCE_MAX: Duration = Duration::from_secs(8);
/// Pause before the first attempt to begin again; it doubles up to [`RETRY_MAX`].
pub const RETRY_MIN: Duration = Duration::from_millis(50);
/// The longest such pause.
pub const RETRY_MAX: Duration = Duration::from_secs(2);
/// Pause before an entry is offered again to a log that has too much to do.
pub const BUSY_PAUSE: Duration = Duration::from_millis(5);
/// How long another cluster may take to connect and to answer a short question.
pub const ASK_MAX: Duration = Duration::from_secs(3);
/// How often the source looks whether a cluster has to be told of a plan.
pub const TELL_EVERY: Duration = Duration::from_secs(1);
/// A cluster that knows a plan is told again after this, in case it was set up anew.
pub const TELL_AGAIN: Duration = Duration::from_secs(30);
/// Clusters that are told of plans at the same time: those that do not answer hold the others up.
pub const TELL_AT_ONCE: usize = 64;
/// How long whoever moves a source waits for it; the move goes on by itself.
pub const MOVE_MAX: Duration = Duration::from_secs(20);
/// Pause between two times that sources are asked where they end.
pub const ASK_ENDS_EVERY: Duration = Duration::from_millis(50);
/// How often the cluster that hands a source over asks the other one whether it has everything.
pub const LEAD_EVERY: Duration = Duration::from_millis(100);
/// By how much a forced move raises the terms. A source that is gone may have claimed terms that nobody else has seen,
/// one with each start.
pub const TERM_LEAP: u32 = 1_000;
/// Forced moves of a stream's source: a plan has the ends of all shards for each.
pub const FORKS_MAX: usize = 16;
/// Longest plan of a source that was moved by force, in bytes. It is told with one CALL.
pub const PLAN_BYTES_MAX: usize = tailwater_format::limits::CALL_INFO_BYTES_MAX - 4_096;
/// Greatest number of a plan, and of moves of its source: there is always a next one.
pub const PLAN_NUMBER_MAX: u64 = i64::MAX as u64;
/// How often a cluster asks its neighbours in a copy tree what groups have committed there.
pub const OFFSETS_EVERY: Duration = Duration::from_secs(1);
/// Answers of one neighbour that are taken at a time: the rest comes with the next look.
pub const OFFSETS_ANSWERS: usize = 64;
/// Least that a link to another cluster may be bounded to, in bytes a second: an answer of [`ANSWER_BYTES`] is then
/// paid for before its session ends, which it does when it is asked nothing for [`SESSION_IDLE`].
pub const LINK_BYTES_PER_S_MIN: u64 = 64 << 10;
/// Clusters that are stored with one commit of metadata.
pub const CLUSTERS_PER_COMMIT: usize = 128;
/// Longest address of a cluster, in bytes.
pub const ADDRESS_BYTES_MAX: usize = 256;

/// Operations into which the shards of a stream are divided at most, where workers run them: each has a session with
/// the cluster above. More of them would cost more sessions, and balance little better.
pub const PARTS_MAX: u32 = 8;
/// Workers of a cluster. The node hears each of them twice a second.
pub const WORKERS_MAX: usize = 256;
/// Longest name of a worker, in bytes.
pub const WORKER_NAME_BYTES_MAX: usize = 128;
/// Workers that may push the same operation at a time: one, the one after it, and those that other schedulers told.
pub const INTAKES_MAX: usize = 4;
/// What is known of an operation at a worker is forgotten when that has pushed nothing for so long.
pub const INTAKE_IDLE: Duration = Duration::from_secs(10);
/// A worker that has nothing else to do is answered after this.
pub const WORK_AFTER: Duration = Duration::from_millis(500);
/// How long a node whose cluster had workers before it began only listens to them. A worker tells what it runs every
/// [`WORK_AFTER`], and connects anew within [`RETRY_MAX`] of a node's start.
pub const LEARN: Duration = Duration::from_millis(2_500);
/// How often a scheduler looks what has become of workers and operations.
pub const SCHEDULE_EVERY: Duration = Duration::from_millis(100);
/// How often it is measured what an operation copies, and how late it is.
pub const MEASURE_EVERY: Duration = Duration::from_secs(1);
/// How often a worker asks whether a shard that is held may go on.
pub const HELD_LOOK: Duration = Duration::from_millis(50);
/// How long a node may take to accept what a worker pushes: the link's bound may make it wait.
pub const PUSH_MAX: Duration = Duration::from_secs(25);
/// How long a worker that is to end waits until others run what it ran.
pub const LEAVE_MAX: Duration = Duration::from_secs(60);

const _: () = assert!(
    (ANSWER_BYTES as u64) < LINK_BYTES_PER_S_MIN * SESSION_IDLE.as_secs(),
    "a session with the least bound lives"
);
const _: () = assert!(QUESTIONS_MAX <= CREDITS_MAX, "a copy's own questions are granted");
const _: () =
    assert!(ANSWER_AFTER.as_millis() * 3 <= SILENCE_MAX.as_millis(), "one late answer is no silence");
const _: () =
    assert!(SILENCE_MAX.as_millis() * 2 <= SESSION_IDLE.as_millis(), "the upper end outlives a retry");
const _: () = assert!(PUSH_MAX.as_secs() < SESSION_IDLE.as_secs(), "a session outlives a push");
