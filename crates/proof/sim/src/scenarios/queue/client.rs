//! Those who use the queues.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tailwater_env::{Env, Instant};
use tailwater_queue::{
    Message, MoveStatus, MoveTask, QueueError, QueueRecord, QueueView, Queues, ReceiptError, Receive,
    Redrive, Send, Sequence, Settings,
};

use crate::checkers::Violation;
use crate::planted::Plant;
use crate::scenarios::outcome::{Outcome, spawn_client};

use super::model::{ModelSeen, QueueName, SLACK};
use super::{ACCOUNT, DEAD, FIFO, FIFO_DEAD, LETTERS, Outside, STANDARD, WORK};

/// How often everything is looked at after a start, while a move task goes on.
const LOOKS_MAX: usize = 200;
/// Groups of the FIFO queue.
const GROUPS: u64 = 3;

pub(super) struct Client {
    env: Env,
    queues: Queues,
    model: Outside,
    plant: Plant,
}

fn body(env: &Env, name: QueueName) -> Bytes {
    let mut body = name.to_le_bytes().to_vec();
    body.resize(8 + env.random_below(300) as usize, b'x');
    body.into()
}

fn seen(queue: &'static str, message: &Message) -> ModelSeen {
    // What is in it is checked by the journal and the tree; one that is cut is no message of ours.
    let name = message.content.first_chunk().map_or(0, |first| QueueName::from_le_bytes(*first));
    ModelSeen { queue, name, sequence: message.receipt.sequence.0, generation: message.generation }
}

fn find(queues: &Queues, name: &str) -> Arc<QueueView> {
    queues.find(ACCOUNT, name).expect("it was created before anything else")
}

/// Everything that is in the queues, looked at and not received; `None` if the disk refuses.
pub(super) async fn list(env: Env, queues: Queues) -> Option<Vec<ModelSeen>> {
    let mut found = Vec::new();
    // A move task goes on meanwhile, and what it has in hand is seen in neither queue until that is durable.
    for _ in 0..LOOKS_MAX {
        let runs_before = runs_move(&queues).await?;
        found.extend(list_once(&env, &queues).await?);
        if !runs_before {
            return Some(found);
        }
        env.sleep(Duration::from_millis(1)).await;
    }
    None
}

/// Whether a move task runs; `None` if the disk refuses.
async fn runs_move(queues: &Queues) -> Option<bool> {
    let mut runs = false;
    for dead in [DEAD, FIFO_DEAD] {
        let tasks = queues.list_moves(ACCOUNT, dead).await.ok()?;
        runs |= tasks.iter().any(|task| task.status == MoveStatus::Running);
    }
    Some(runs)
}

async fn list_once(env: &Env, queues: &Queues) -> Option<Vec<ModelSeen>> {
    let mut found = Vec::new();
    // What a move task brings back is seen at the second look.
    let known =
        [STANDARD, DEAD, STANDARD, FIFO, FIFO_DEAD, FIFO, LETTERS].map(|name| (name, find(queues, name)));
    let work = works(queues).into_iter().map(|work| (WORK, work));
    for (name, queue) in known.into_iter().chain(work) {
        found.extend(look(env, queues, name, &queue).await?);
    }
    Some(found)
}

/// Queues that were to be deleted and are still there.
fn works(queues: &Queues) -> Vec<Arc<QueueView>> {
    queues.list(ACCOUNT, WORK, None, usize::MAX)
}

/// Everything that is in a queue; `None` if the disk refuses.
async fn look(env: &Env, queues: &Queues, name: &'static str, queue: &QueueView) -> Option<Vec<ModelSeen>> {
    let (mut found, mut from) = (Vec::new(), Sequence(0));
    loop {
        match queues.peek(queue, from, 50).await {
            Ok(messages) => {
                found.extend(messages.iter().map(|message| seen(name, message)));
                let Some(last) = messages.last() else { return Some(found) };
                from = Sequence(last.receipt.sequence.0 + 1);
            }
            Err(QueueError::Unavailable(_)) => return None,
            Err(_) => env.sleep(Duration::from_millis(1)).await,
        }
    }
}

/// Receives and deletes until nothing is left: twice, as a message may just be on its way from one queue to another.
pub(super) async fn drain(env: Env, queues: Queues, model: Outside) {
    let client = Client { env, queues, model, plant: Plant::None };
    let mut empty = 0;
    while empty < 2 && !client.model.lock().has_failed() {
        empty += 1;
        for work in works(&client.queues) {
            client.end_work(&work).await;
            empty = 0;
        }
        for name in [STANDARD, FIFO, DEAD, FIFO_DEAD, LETTERS] {
            let visibility = Duration::from_secs(600);
            if let Some((messages, until)) = client.receive(name, visibility, Duration::ZERO).await {
                for message in &messages {
                    client.delete(name, message, until).await;
                }
            }
            let figures = client.queues.figures(&find(&client.queues, name)).await;
            if !figures.is_ok_and(|figures| figures.counts == Default::default()) {
                empty = 0;
            }
        }
        client.env.sleep(Duration::from_millis(50)).await;
    }
}

impl Client {
    /// Starts one as a task of `env`.
    pub(super) fn start(env: &Env, queues: &Queues, model: &Outside, plant: Plant) {
        let client = Self { env: env.clone(), queues: queues.clone(), model: model.clone(), plant };
        spawn_client(env, model, "client", client.run());
    }

    async fn run(self) {
        while !self.model.lock().is_over() {
            match self.env.random_below(18) {
                0..4 => self.send().await,
                4..6 => self.send_fifo().await,
                6..9 => self.work(STANDARD).await,
                9..12 => self.work(FIFO).await,
                12 => self.work(DEAD).await,
                13 => self.work(FIFO_DEAD).await,
                14 => self.work(LETTERS).await,
                15 => self.pass_through().await,
                16 => self.bring_back(FIFO_DEAD).await,
                _ if self.env.random_below(8) == 0 => self.purge().await,
                _ => self.bring_back(DEAD).await,
            }
            self.env.sleep(Duration::from_micros(self.env.random_below(1_500))).await;
        }
    }

    async fn send(&self) {
        self.send_to(&find(&self.queues, STANDARD)).await;
    }

    async fn send_to(&self, queue: &QueueView) {
        let count = 1 + self.env.random_below(4);
        let names: Vec<QueueName> = (0..count).map(|_| self.model.lock().begin_send(None)).collect();
        self.model.lock().sends_to(&queue.name, &names);
        let delay = (self.env.random_below(4) == 0).then(|| Duration::from_millis(self.env.random_below(10)));
        let sends = names.iter();
        let sends =
            sends.map(|name| Send { content: body(&self.env, *name), delay, ..Send::default() }).collect();
        match self.queues.send(queue, sends).await {
            Ok(sent) => {
                let mut model = self.model.lock();
                names.into_iter().zip(sent).for_each(|(name, sent)| model.sent(name, sent.sequence.0));
            }
            Err(error) => self.failed(error).await,
        }
    }

    /// Makes a queue, has messages go from there to its dead-letter queue, and deletes it.
    async fn pass_through(&self) {
        let name = format!("{WORK}{}", self.model.lock().begin_work());
        let redrive = Some(Redrive { target: LETTERS.to_owned(), receives_max: 1 });
        let record = QueueRecord::new(ACCOUNT, name, Settings { redrive, ..Settings::default() });
        match self.queues.create(record).await {
            Ok(work) => {
                self.send_to(&work).await;
                self.env.sleep(Duration::from_micros(self.env.random_below(8_000))).await;
                self.end_work(&work).await;
            }
            Err(error) => self.failed(error).await,
        }
    }

    /// Has messages go to the dead-letter queue, and deletes the queue: with those that have not got there yet.
    async fn end_work(&self, work: &QueueView) {
        for _ in 0..1 + self.env.random_below(3) {
            let receive = Receive { count: 10, visibility: Some(Duration::ZERO), ..Receive::default() };
            if let Err(error) = self.queues.receive(work, receive).await {
                self.failed(error).await;
            }
            self.env.sleep(Duration::from_micros(self.env.random_below(2_000))).await;
        }
        // What is seen there is durable there. The others may be on their way, and go with the queue if they stay.
        let letters = find(&self.queues, LETTERS);
        let Some(there) = look(&self.env, &self.queues, LETTERS, &letters).await else { return };
        self.model.lock().begin_end_work(&work.name, &there);
        match self.queues.delete_queue(work).await {
            Ok(()) => self.model.lock().count("deleted queues", 1),
            Err(error) => self.failed(error).await,
        }
    }

    /// Purges the FIFO queue.
    async fn purge(&self) {
        let before = self.model.lock().begin_purge();
        let purged = self.queues.purge(&find(&self.queues, FIFO)).await;
        self.model.lock().end_purge();
        match purged {
            Ok(()) => self.model.lock().purged(before, self.env.now()),
            Err(QueueError::PurgedRecently) => {}
            Err(error) => self.failed(error).await,
        }
    }

    /// Sends until it is answered: by its id it is one message, unless a purge takes it meanwhile.
    async fn send_fifo(&self) {
        let group = self.env.random_below(GROUPS);
        let name = self.model.lock().begin_send(Some(group));
        let content = body(&self.env, name);
        for attempt in 0..5 {
            let id = match self.plant {
                Plant::DeduplicationIdAnew => format!("{name}/{attempt}"),
                _ => name.to_string(),
            };
            let send = Send {
                content: content.clone(),
                delay: None,
                group: Some(match self.plant {
                    Plant::GroupNotKept => format!("{group}/{name}"),
                    _ => group.to_string(),
                }),
                deduplication: Some(id),
            };
            // Now and then it is not sure that it was answered, and sends again.
            let is_unsure = self.env.random_below(3) == 0;
            if attempt > 0 {
                self.model.lock().begin_resend(name);
            }
            let sent = self.queues.send(&find(&self.queues, FIFO), vec![send]).await;
            self.model.lock().end_resend(name);
            match sent {
                Ok(sent) => self.model.lock().sent(name, sent[0].sequence.0),
                Err(error) => self.failed(error).await,
            }
            if !is_unsure || self.model.lock().noted.stop {
                return;
            }
        }
    }

    async fn work(&self, queue: &'static str) {
        let visibility = Duration::from_millis(5 + self.env.random_below(20));
        let wait = Duration::from_millis(self.env.random_below(6));
        let Some((messages, until)) = self.receive(queue, visibility, wait).await else { return };
        for message in &messages {
            match self.env.random_below(6) {
                0 => {} // dies with it
                1 => self.change(queue, message, until).await,
                _ => self.delete(queue, message, until).await,
            }
        }
    }

    /// Messages, and until when they are invisible at least.
    async fn receive(
        &self,
        queue: &'static str,
        visibility: Duration,
        wait: Duration,
    ) -> Option<(Vec<Message>, Instant)> {
        let asked = if self.plant == Plant::VisibleAtOnce { Duration::ZERO } else { visibility };
        let receive = Receive {
            count: 1 + self.env.random_below(10) as usize,
            visibility: Some(asked),
            wait: Some(wait),
            attempt: None,
        };
        let begun: Instant = self.env.now();
        match self.queues.receive(&find(&self.queues, queue), receive).await {
            Ok(messages) => {
                let all: Vec<ModelSeen> = messages.iter().map(|message| seen(queue, message)).collect();
                let mut model = self.model.lock();
                let received = model.received(&all, (begun, self.env.now()), visibility);
                model.note(received);
                Some((messages, begun + visibility))
            }
            Err(error) => {
                self.failed(error).await;
                None
            }
        }
    }

    async fn delete(&self, queue: &'static str, message: &Message, until: Instant) {
        let name = seen(queue, message).name;
        self.model.lock().begin_delete(name);
        match self.queues.delete(&find(&self.queues, queue), vec![message.receipt]).await {
            Ok(outcomes) => match outcomes[0] {
                // Later it may have gone to another queue, and come back as another message.
                Ok(()) if self.env.now() + SLACK < until => self.model.lock().deleted(name, self.env.now()),
                Ok(()) | Err(ReceiptError::Expired) => {}
                Err(error) => {
                    let what = format!("message {name} of {queue} can't be deleted: {error}");
                    self.model.lock().note(Err(Violation::new(what)));
                }
            },
            Err(error) => self.failed(error).await,
        }
    }

    async fn change(&self, queue: &'static str, message: &Message, until: Instant) {
        let name = seen(queue, message).name;
        if self.env.random_below(2) == 0 {
            // Just before the timeout ends, so that it may while this is brought to the disk.
            let before = Duration::from_micros(self.env.random_below(4_000));
            self.env.sleep(until.since(self.env.now()).saturating_sub(before)).await;
        }
        self.model.lock().forget_hidden(queue, name);
        let visibility = Duration::from_millis(self.env.random_below(20));
        let (begun, changes) = (self.env.now(), vec![(message.receipt, visibility)]);
        match self.queues.change_visibility(&find(&self.queues, queue), changes).await {
            Ok(outcomes) if outcomes[0].is_ok() => {
                let mut model = self.model.lock();
                let changed = model.changed(queue, name, (begun, self.env.now()), visibility);
                model.note(changed);
            }
            // It was received again.
            Ok(_) => {}
            Err(error) => self.failed(error).await,
        }
    }

    async fn bring_back(&self, dead: &str) {
        if self.plant == Plant::BroughtBackBySending && dead == FIFO_DEAD {
            return self.bring_back_by_sending().await;
        }
        let task = MoveTask::new(ACCOUNT, dead);
        match self.queues.start_move(task).await {
            Ok(_) => self.model.lock().count("move tasks", 1),
            Err(QueueError::TaskRuns) => {}
            Err(error) => self.failed(error).await,
        }
    }

    async fn bring_back_by_sending(&self) {
        let (queue, dead) = (find(&self.queues, FIFO), find(&self.queues, FIFO_DEAD));
        let Ok(messages) = self.queues.receive(&dead, Receive { count: 1, ..Receive::default() }).await
        else {
            return;
        };
        for message in messages {
            let id = seen(FIFO_DEAD, &message).name.to_string();
            let send = Send {
                content: message.content,
                delay: None,
                group: Some("0".to_owned()),
                deduplication: Some(id),
            };
            if self.queues.send(&queue, vec![send]).await.is_ok() {
                let _ = self.queues.delete(&dead, vec![message.receipt]).await;
            }
        }
    }

    async fn failed(&self, error: QueueError) {
        match error {
            QueueError::Unavailable(_) => {
                self.model.lock().count("unavailable", 1);
                self.env.sleep(Duration::from_micros(500 + self.env.random_below(5_000))).await;
            }
            error => self.model.lock().note(Err(Violation::new(format!("refused: {error}")))),
        }
    }
}
