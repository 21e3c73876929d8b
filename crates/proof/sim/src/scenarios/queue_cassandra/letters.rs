//! Dead letters, move tasks, delays, and queues that are purged, deleted and created again, in a store that front ends
//! share: the same faults as in [`super`], and clocks as far apart.
//!
//! Two queues, `work` and `side`, have the same dead-letter queue, and clients that leave much to it: they forget
//! messages, and delete them by receipts whose timeout is over. All three are standard queues, or, at a quorum, FIFO
//! queues.
//!
//! Checked, by what is in the messages:
//! - At the end whatever was acknowledged and not asked to be deleted is received, from one of the queues; of FIFO
//!   queues without move tasks exactly once. A purge takes what was in its queue, and a deleted queue takes what was
//!   not known to be a dead letter.
//! - Where nothing fails and there are no move tasks, a message of a standard queue becomes a dead letter once, and is
//!   nowhere else then: but for receives at the same time, each of which may move it.
//! - Nothing is received before its delay is over, as far as clocks agree.
//! - At a quorum, what was deleted is not received again: in the same queue never, and as a dead letter neither,
//!   whenever it was moved there, unless a move task may have brought it back; of a FIFO queue if its timeout was not
//!   over.
//! - At a quorum, what was received as often as it may be is received from the dead-letter queue only, and says where
//!   it came from.
//! - No move task fails.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tailwater_env::{Env, Instant};
use tailwater_queue::SharedConfig;
use tailwater_queue::shared::SharedQueues;
use tailwater_queue::{
    Consistency, Fifo, Message, MoveStatus, MoveTask, Number, OrderHint, QueueError, QueueId, QueueRecord,
    QueueStore, QueueView, Receive, Redrive, Send, Settings,
};

use super::cluster::Cluster;
use super::fronts::{self, Doing, FrontSeen, Once, SKEW, number_of};
use crate::checkers::{Report, Violation, ensure};
use crate::planted::Plant;
use crate::rng::Rng;
use crate::world::World;

const LOAD: Duration = Duration::from_secs(80);
/// Longer than any timeout, those of move tasks' steps included, any late write, and the pause after a queue's
/// deletion.
const REST: Duration = Duration::from_secs(70);
/// Longer than a message is on its way to the dead-letter queue where nothing fails: some eight calls after each other.
const AT_ONCE: Duration = Duration::from_millis(100);
/// Until everybody knows that a queue was deleted.
const KNOWN: Duration = Duration::from_secs(2);

const ACCOUNT: &str = "account";
const QUEUES: [&str; 3] = ["work", "side", "dead"];
const WORK: usize = 0;
const SIDE: usize = 1;
const DEAD: usize = 2;
const RECEIVES_MAX: u16 = 2;
const GROUPS: u64 = 4;

/// What happens in a run.
#[derive(Clone, Copy, Debug)]
struct Case {
    level: Consistency,
    is_fifo: bool,
    hint: OrderHint,
    moves: bool,
    drops_side: bool,
    purges: bool,
}

/// A message that was about to be sent.
#[derive(Clone, Copy)]
struct Sending {
    queue: usize,
    begun: Instant,
    delay: Duration,
}

/// A message in a queue.
type LetterPlace = (QueueId, u64, u64);

/// What the world outside knows.
#[derive(Default)]
struct Model {
    seen: FrontSeen,
    sends: BTreeMap<u64, Sending>,
    /// When deletes were answered: of messages, wherever they are, and of those in one place.
    deleted: BTreeMap<u64, Instant>,
    gone: BTreeMap<LetterPlace, Instant>,
    /// Messages that were received as dead letters, and their numbers there.
    letters: BTreeMap<u64, BTreeSet<Number>>,
    /// Where each message was at the end.
    there: BTreeMap<u64, BTreeSet<LetterPlace>>,
    /// When move tasks began.
    moves: Vec<Instant>,
    purge: Once,
    drop: Once,
}

type Outside = Arc<Mutex<Model>>;

impl AsMut<FrontSeen> for Model {
    fn as_mut(&mut self) -> &mut FrontSeen {
        &mut self.seen
    }
}

impl Model {
    /// Messages that are about to be sent, so many of them.
    fn begin_sends(&mut self, count: u64, sending: Sending) -> std::ops::Range<u64> {
        let next = self.sends.len() as u64;
        let numbers = next..next + count;
        self.sends.extend(numbers.clone().map(|number| (number, sending)));
        let is_going =
            self.purge.takes(sending.begun) || sending.queue == SIDE && self.drop.takes(sending.begun);
        if is_going {
            self.seen.going.begin(numbers.clone());
        }
        numbers
    }

    /// Whether a move task may have moved a message, as a letter, before a time.
    fn may_be_moved(&self, number: u64, before: Instant) -> bool {
        let begun = self.sends.get(&number).map_or(Instant::from_ns(0), |sending| sending.begun);
        // It moves what has a number up to its start's, and the skew: by another clock that may be so much later again.
        self.moves.iter().any(|start| *start <= before && begun <= *start + 2 * SKEW)
    }

    /// That messages became dead letters once, where nothing has failed; and when each was noted as one.
    fn moved_once(&self, noted: &BTreeMap<Number, Instant>) -> Result<(), Violation> {
        for (number, letters) in &self.letters {
            let mut times: Vec<Instant> = letters.iter().map(|letter| noted[letter]).collect();
            times.sort_unstable();
            let apart = times[times.len() - 1].since(times[0]);
            ensure(apart <= AT_ONCE, || {
                format!("message {number} became a dead letter again, {apart:?} after it had")
            })?;
        }
        // Several of its tuples may be received, of one place.
        for number in self.seen.kept() {
            let (there, letters) =
                (self.there[&number].len(), self.letters.get(&number).map_or(0, BTreeSet::len));
            ensure(there <= letters.max(1), || {
                format!("message {number} is in {there} places at the end, and {letters} times a dead letter")
            })?;
        }
        Ok(())
    }

    /// A message was received from a queue, by a receive that began and ended then.
    fn received(
        &mut self,
        case: Case,
        (queue, message): (usize, &Message),
        (begun, ended): (Instant, Instant),
    ) -> Result<(), Violation> {
        let number = number_of(message);
        self.seen.report.count(if queue == DEAD { "letters received" } else { "received" }, 1);
        let Some(sending) = self.sends.get(&number).copied() else {
            return Err(Violation::new(format!("message {number} was never sent")));
        };
        ensure(ended + SKEW >= sending.begun + sending.delay, || {
            format!("message {number} was received before its delay of {:?} was over", sending.delay)
        })?;
        if queue == DEAD {
            self.letters.entry(number).or_default().insert(Number(message.receipt.sequence.0));
        }
        if case.level != Consistency::Quorum {
            return Ok(());
        }
        let is_gone = self.gone.get(&place_of(message)).is_some_and(|gone| *gone < begun);
        let is_deleted = self
            .deleted
            .get(&number)
            .is_some_and(|deleted| *deleted < begun && !self.may_be_moved(number, *deleted));
        let name = QUEUES[queue];
        ensure(!is_gone, || format!("message {number} was deleted and came back in {name}"))?;
        ensure(!is_deleted, || format!("message {number} was deleted elsewhere and came back in {name}"))?;
        let is_right =
            queue != DEAD || message.source.as_deref().is_some_and(|source| QUEUES.contains(&source));
        ensure(is_right, || format!("message {number} is a dead letter from {:?}", message.source))?;
        ensure(queue == DEAD || message.receives <= RECEIVES_MAX, || {
            format!("message {number} was received {} times and is no dead letter", message.receives)
        })
    }
}

fn place_of(message: &Message) -> LetterPlace {
    (message.receipt.queue, message.receipt.sequence.0, number_of(message))
}

/// Runs the scenario.
pub fn run(world: &mut World, plant: Plant) -> Result<Report, Violation> {
    world.set_steps_max(20_000_000);
    let mut rng = Rng::new(world.seed(), "scenario/queue-cassandra-letters");
    let level = if rng.below(5) == 0 { Consistency::One } else { Consistency::Quorum };
    let case = Case {
        level,
        is_fifo: level == Consistency::Quorum && rng.below(3) == 0,
        hint: [OrderHint::K(1), OrderHint::K(3), OrderHint::Auto][rng.index(3)],
        moves: rng.below(2) == 0,
        drops_side: rng.below(3) == 0,
        purges: rng.below(4) == 0,
    };
    let faults = [0, 2_000, 20_000][rng.index(3)];
    let cluster = Cluster::new(world.outside(), Rng::new(world.seed(), "cluster"), faults);
    let config = fronts::config(level, &mut rng);
    let model = Outside::default();
    let starting =
        LettersStarting { case, cluster: Arc::clone(&cluster), config, plant, model: Arc::clone(&model) };
    let start = {
        let starting = starting.clone();
        move |env| starting.start(env)
    };
    fronts::run(world, rng, &cluster, &model, (LOAD, REST), start, |env| last(env, starting))?;
    let model = model.lock();
    let seen = &model.seen;
    seen.nothing_is_lost()?;
    let twice: Vec<u64> = seen.kept().filter(|one| seen.drained.get(one) > Some(&1)).collect();
    ensure(!case.is_fifo || case.moves || twice.is_empty(), || format!("message {twice:?} is there twice"))?;
    let is_calm = faults == 0 && !seen.report.counts.contains_key("crashes");
    if is_calm && !case.is_fifo && !case.moves {
        model.moved_once(&cluster.noted.lock())?;
    }
    let mut report = seen.report.clone();
    let again: usize = model.letters.values().map(|letters| letters.len() - 1).sum();
    report.count("letters again", again as u64);
    report.count("sent", seen.sent.len() as u64);
    report.count("kept", seen.kept().count() as u64);
    report.count("letters", model.letters.len() as u64);
    report.count("fifo", u64::from(case.is_fifo));
    Ok(report)
}

/// What a front end is started with.
#[derive(Clone)]
struct LettersStarting {
    case: Case,
    cluster: Arc<Cluster>,
    config: SharedConfig,
    plant: Plant,
    model: Outside,
}

impl LettersStarting {
    fn start(&self, env: Env) {
        fronts::start(&env, self.clone().open(env.clone()), LettersFront::client);
    }

    /// A front end of the queues, as soon as the cluster lets it be.
    async fn open(self, env: Env) -> Option<Arc<LettersFront>> {
        let Self { case, cluster, config, plant, model } = self;
        let opened = fronts::open(&env, &cluster, &config, plant, |store| {
            let (env, views, model) = (env.clone(), Mutex::default(), Arc::clone(&model));
            let front = LettersFront { env, store, views, model, case, plant };
            async move {
                let (dead, work) = (front.open(DEAD).await, front.open(WORK).await);
                dead.and(work).map(|_| Arc::new(front))
            }
        });
        opened.await
    }
}

/// A front end and its clients.
struct LettersFront {
    env: Env,
    store: SharedQueues,
    views: Mutex<[Option<Arc<QueueView>>; QUEUES.len()]>,
    model: Outside,
    case: Case,
    plant: Plant,
}

impl LettersFront {
    /// Finds a queue, or creates it.
    async fn open(&self, queue: usize) -> Option<Arc<QueueView>> {
        let redrive = Redrive { target: QUEUES[DEAD].to_owned(), receives_max: RECEIVES_MAX };
        let settings = Settings {
            fifo: self.case.is_fifo.then(Fifo::default),
            order_hint: self.case.hint,
            redrive: Some(redrive).filter(|_| queue != DEAD),
            ..Settings::default()
        };
        let record = QueueRecord::new(ACCOUNT, QUEUES[queue], settings);
        let view = fronts::create(&self.store, record).await.ok();
        self.views.lock()[queue].clone_from(&view);
        view
    }

    /// A queue as it is known here.
    async fn view(&self, queue: usize) -> Option<Arc<QueueView>> {
        let known = self.views.lock()[queue].clone();
        match known {
            Some(view) => Some(view),
            None => self.open(queue).await,
        }
    }

    /// What a call answered, if well.
    fn answered<T>(&self, queue: usize, answer: Result<T, QueueError>) -> Option<T> {
        match answer {
            Ok(answer) => Some(answer),
            Err(error) => {
                if matches!(error, QueueError::NoQueue) {
                    self.views.lock()[queue] = None;
                }
                self.model.lock().seen.report.count("failed calls", 1);
                None
            }
        }
    }

    async fn client(self: Arc<Self>) {
        while !self.model.lock().seen.stop {
            self.env.sleep(Duration::from_millis(100 + self.env.random_below(2_500))).await;
            let other = if self.env.random_below(3) == 0 { SIDE } else { WORK };
            match self.env.random_below(40) {
                0..15 => self.send(other).await,
                15..32 => self.receive(other).await,
                32..37 => self.receive(DEAD).await,
                37 if self.case.purges => self.purge().await,
                38 if self.case.drops_side => self.drop_side().await,
                39 if self.case.moves => self.begin_move().await,
                _ => {}
            }
        }
    }

    async fn send(&self, queue: usize) {
        let Some(view) = self.view(queue).await else { return };
        let count = 1 + self.env.random_below(3);
        let is_delayed = !self.case.is_fifo && self.env.random_below(3) == 0;
        let delay = Duration::from_millis(if is_delayed { self.env.random_below(20_000) } else { 0 });
        let sending = Sending { queue, begun: self.env.now(), delay };
        let numbers: Vec<u64> = self.model.lock().begin_sends(count, sending).collect();
        let sends = numbers.iter().map(|number| Send {
            content: Bytes::copy_from_slice(&number.to_le_bytes()),
            delay: is_delayed.then_some(delay).filter(|_| self.plant != Plant::DelayNotSent),
            group: Some((number % GROUPS).to_string()),
            deduplication: Some(number.to_string()),
        });
        let answer = self.store.send(&view, sends.collect()).await;
        if self.answered(queue, answer).is_some() {
            self.model.lock().seen.sent.extend(numbers);
        }
    }

    async fn receive(self: &Arc<Self>, queue: usize) {
        let Some(view) = self.view(queue).await else { return };
        let most_ms = if self.case.is_fifo { 12_000 } else { 3_000 };
        let visibility = Duration::from_millis(500 + self.env.random_below(most_ms));
        let receive = Receive {
            count: 1 + self.env.random_below(3) as usize,
            visibility: Some(visibility),
            wait: Some(Duration::from_millis(self.env.random_below(300))),
            attempt: None,
        };
        let begun = self.env.now();
        let answer = self.store.receive(&view, receive).await;
        let Some(messages) = self.answered(queue, answer) else { return };
        self.check(queue, &messages, begun);
        // By its receiver's clock, and by that of any other.
        let until = begun + visibility.saturating_sub(SKEW);
        for message in messages {
            match self.env.random_below(8) {
                0..3 => self.model.lock().seen.report.count("forgotten", 1),
                3 => {
                    let change = (message.receipt, Duration::from_millis(self.env.random_below(3_000)));
                    let _ = self.store.change_visibility(&view, vec![change]).await;
                }
                4 if queue != DEAD => {
                    let late = Arc::clone(self).delete_late(view.clone(), queue, message, until);
                    self.env.spawn("late", late).detach();
                }
                _ if queue == DEAD && self.env.random_below(2) == 0 => {}
                _ => self.delete(&view, queue, &message, until).await,
            }
        }
    }

    fn check(&self, queue: usize, messages: &[Message], begun: Instant) {
        let mut model = self.model.lock();
        for message in messages {
            let checked = model.received(self.case, (queue, message), (begun, self.env.now()));
            model.seen.note(checked);
        }
    }

    /// Deletes a message when somebody else may have it, or it is a dead letter by now.
    async fn delete_late(
        self: Arc<Self>,
        view: Arc<QueueView>,
        queue: usize,
        message: Message,
        until: Instant,
    ) {
        self.env.sleep(Duration::from_millis(self.env.random_below(12_000))).await;
        self.model.lock().seen.report.count("late deletes", 1);
        self.delete(&view, queue, &message, until).await;
    }

    /// Deletes a message, which is its receiver's until then.
    async fn delete(&self, view: &QueueView, queue: usize, message: &Message, until: Instant) {
        let number = number_of(message);
        self.model.lock().seen.going.begin([number]);
        let answer = self.store.delete(view, vec![message.receipt]).await;
        let Some(outcomes) = self.answered(queue, answer) else { return };
        let mut model = self.model.lock();
        if outcomes[0].is_err() {
            return model.seen.going.in_vain(number);
        }
        let now = self.env.now();
        model.gone.entry(place_of(message)).or_insert(now);
        if queue != DEAD && (!self.case.is_fifo || now < until) {
            model.deleted.entry(number).or_insert(now);
            model.seen.report.count("deleted", 1);
        }
    }

    /// Purges the dead-letter queue, if nobody has.
    async fn purge(&self) {
        let Some(view) = self.view(DEAD).await else { return };
        {
            let mut model = self.model.lock();
            if !matches!(model.purge, Once::No) {
                return;
            }
            model.purge = Once::Now;
            let all: Vec<u64> = model.sends.keys().copied().collect();
            model.seen.going.begin(all);
        }
        // Where nobody is told its end, it may take what is sent by clocks that are behind.
        let mut purging = Doing {
            env: &self.env,
            model: &self.model,
            which: |model| &mut model.purge,
            takes_after: 2 * SKEW,
        };
        let is_done = self.store.purge(&view).await.is_ok();
        if is_done {
            purging.takes_after = Duration::ZERO;
        }
        let what = if is_done { "purges" } else { "failed purges" };
        self.model.lock().seen.report.count(what, 1);
    }

    /// Deletes the second queue, if nobody has. Its dead letters stay.
    async fn drop_side(&self) {
        let Some(view) = self.view(SIDE).await else { return };
        {
            let mut model = self.model.lock();
            if !matches!(model.drop, Once::No) {
                return;
            }
            model.drop = Once::Now;
            let of_it = model.sends.iter().filter(|(number, sending)| {
                // What a move task brings back is in the other one; where there are any it may be on its way.
                sending.queue == SIDE && !model.letters.contains_key(number)
            });
            let of_it: Vec<u64> = of_it.map(|(number, _)| *number).collect();
            model.seen.going.begin(of_it);
        }
        // Also if it failed: it may be gone all the same, and is in the end.
        let dropping =
            Doing { env: &self.env, model: &self.model, which: |model| &mut model.drop, takes_after: KNOWN };
        let is_done = self.store.delete_queue(&view).await.is_ok();
        drop(dropping);
        let what = if is_done { "deleted queues" } else { "failed deletions of queues" };
        self.model.lock().seen.report.count(what, 1);
        self.views.lock()[SIDE] = None;
    }

    /// Begins a move task, or ends the one that there is.
    async fn begin_move(&self) {
        if self.env.random_below(4) == 0 {
            return self.cancel_moves().await;
        }
        // Where a queue is deleted nothing goes back to it.
        let is_free = !self.case.drops_side && self.env.random_below(2) == 0;
        let task = MoveTask {
            target: (!is_free).then(|| QUEUES[WORK].to_owned()),
            rate_max: [None, Some(3)][self.env.random_below(2) as usize],
            ..MoveTask::new(ACCOUNT, QUEUES[DEAD])
        };
        self.model.lock().moves.push(self.env.now());
        if self.store.start_move(task).await.is_ok() {
            self.model.lock().seen.report.count("moves", 1);
        }
    }

    async fn cancel_moves(&self) {
        for task in self.store.list_moves(ACCOUNT, QUEUES[DEAD]).await.unwrap_or_default() {
            if task.status == MoveStatus::Running {
                let _ = self.store.cancel_move(ACCOUNT, task.id).await;
            }
        }
    }
}

/// Nobody else is there any more, and nothing fails: sweeps, and receives and deletes everything.
async fn last(env: Env, starting: LettersStarting) -> Result<(), String> {
    let front = starting.open(env.clone()).await.ok_or("the queues can't be opened")?;
    front.cancel_moves().await;
    let tasks = front.store.list_moves(ACCOUNT, QUEUES[DEAD]).await.map_err(|error| error.to_string())?;
    for task in tasks {
        front.model.lock().seen.report.count("moved", task.moved);
        if task.status == MoveStatus::Failed {
            return Err(format!("a move task failed: {:?}", task.failure));
        }
    }
    front.store.sweep().await.map_err(|error| error.to_string())?;
    let mut silent = 0;
    while silent < 2 * QUEUES.len() {
        for queue in [WORK, SIDE, DEAD] {
            let view = front.view(queue).await.ok_or("a queue can't be opened")?;
            let wait = Some(Duration::from_secs(2));
            let receive = Receive { count: 10, wait, ..Receive::default() };
            let begun = env.now();
            let messages = front.store.receive(&view, receive).await.map_err(|error| error.to_string())?;
            front.check(queue, &messages, begun);
            silent = if messages.is_empty() { silent + 1 } else { 0 };
            for message in &messages {
                let number = number_of(message);
                *front.model.lock().seen.drained.entry(number).or_default() += 1;
                front.model.lock().there.entry(number).or_default().insert(place_of(message));
                let deleted = front.store.delete(&view, vec![message.receipt]).await;
                let outcomes = deleted.map_err(|error| error.to_string())?;
                if outcomes[0].is_err() {
                    return Err(format!("a fresh receipt is refused: {:?}", outcomes[0]));
                }
            }
        }
    }
    Ok(())
}
