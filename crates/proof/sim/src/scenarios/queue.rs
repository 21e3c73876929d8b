//! Queues in their embedded store, through many lives: clients that send, receive, delete and change visibility in a
//! standard and in a FIFO queue, both with dead letters that are brought back, purge the latter, and delete queues
//! whose messages have gone to their dead-letter queue; checkpoints all the time; a disk that fails or gets full, and
//! crashes at any I/O, of the tree and of recovery too.
//!
//! Checked against a plain model ([`model`]) that knows messages by what is in them: what was acknowledged and not
//! asked to be deleted is there after every start; what was deleted never comes back; nothing is there that was not
//! sent, or twice; nobody receives what is invisible; a FIFO queue's groups stay in order, also where they are dead
//! letters: what others of its group have passed is not there any more, whatever the disk does; and a deduplication id
//! is one message until a purge takes it.

mod client;
mod model;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tailwater_env::Env;
use tailwater_journal::{Journal, JournalConfig};
use tailwater_queue::{Fifo, QueueError, QueueRecord, Queues, QueuesConfig, Recovery, Redrive, Settings};

use crate::checkers::{Report, Violation};
use crate::planted::Plant;
use crate::rng::Rng;
use crate::world::World;

use super::lives::{self, Lives, Living};
use super::outcome::Outcome;
use client::Client;
use model::Model;

const DIR: &str = "/data";

const ACCOUNT: &str = "account";
const STANDARD: &str = "standard";
const DEAD: &str = "dead";
const FIFO: &str = "queue.fifo";
const FIFO_DEAD: &str = "dead.fifo";
/// Queues that are deleted once their messages have gone to [`LETTERS`] begin with this.
const WORK: &str = "work-";
const LETTERS: &str = "letters";

/// What the world outside of the node knows.
type Outside = Arc<Mutex<Model>>;

const LIVES: Lives = Lives {
    name: "queue",
    most: 5,
    changes_max: 400,
    length_max: Duration::from_millis(60),
    calm: Duration::from_millis(10),
    resume_max: Duration::from_secs(60),
    every_io: (400, 60),
};

/// Runs the scenario.
pub fn run(world: &mut World, plant: Plant) -> Result<Report, Violation> {
    LIVES.drawn(world, plant, Model::default(), live)
}

/// The power fails at every I/O: seed after seed at the next one, then at every one of the recovery after it.
pub fn run_every_io(world: &mut World, plant: Plant) -> Result<Report, Violation> {
    LIVES.every_io(world, plant, |_| Model::default(), live)
}

/// From a start to a crash or a close.
fn live(living: &Living<'_, Model>, rng: &mut Rng) -> Result<(), Violation> {
    let Living { env, model, plant, .. } = living;
    let config = QueuesConfig {
        owners: rng.between(1, 2) as usize,
        checkpoint_bytes: rng.between(1, 16) * 512,
        // All tasks of a world run on one thread.
        one_at_the_tree: true,
        ..QueuesConfig::default()
    };
    let journal = JournalConfig {
        file_bytes: 128 << 10,
        reserve_bytes: 16 << 10,
        record_bytes_max: 64 << 10,
        ..lives::draw_journal(rng, (3, 6), (64, 128))
    };
    let Some((queues, journal)) = living.open(open(env.clone(), journal, config))? else { return Ok(()) };
    match living.run("list", client::list(env.clone(), queues.clone()))? {
        None => return Ok(()),
        Some(Some(found)) => model.lock().recovered(&found, living.world.now())?,
        // A disk that refuses a read leaves nothing to be compared.
        Some(None) => model.lock().count("unread listings", 1),
    }

    for _ in 0..rng.between(1, 4) {
        Client::start(env, &queues, model, *plant);
    }
    living.end(|| living.world.run(end_in_order(living, queues, journal))?)
}

/// With a disk that works sends are answered again, everything can be received and deleted, and all closes.
async fn end_in_order(living: &Living<'_, Model>, queues: Queues, journal: Journal) -> Result<(), Violation> {
    let Living { env, model, .. } = living;
    let before = model.lock().answered;
    let otherwise = "the disk works again, but no send is answered";
    living.until(otherwise, |model| model.answered != before).await?;
    living.stop_clients().await?;
    let drain = living.finish("drain", client::drain(env.clone(), queues.clone(), Arc::clone(model)));
    living.in_time("not everything can be received and deleted", drain).await??;
    model.lock().take_violation()?;
    model.lock().drained()?;
    let close = async move {
        queues.close().await;
        journal.close().await
    };
    living.close(close).await
}

/// Opens everything as a node does, and makes the queues if they are not there; an error in words.
async fn open(env: Env, journal: JournalConfig, config: QueuesConfig) -> Result<(Queues, Journal), String> {
    let dir = Path::new(DIR);
    let mut recovery = Recovery::begin(&env, &dir.join("queues")).map_err(|error| error.to_string())?;
    let journal = Journal::open(&env, &dir.join("journal"), journal, &mut |tag, end, bytes| {
        assert_eq!(tag, tailwater_queue::TAG, "nobody else writes here");
        recovery.replay(end, bytes)
    })
    .map_err(|error| error.to_string())?;
    let queues = recovery.finish(&env, journal.clone(), config);
    let redrive = |target: &str, receives_max| Some(Redrive { target: target.to_owned(), receives_max });
    for (name, redrive, fifo) in [
        (DEAD, None, None),
        (LETTERS, None, None),
        (STANDARD, redrive(DEAD, 3), None),
        (FIFO_DEAD, None, Some(Fifo::default())),
        (FIFO, redrive(FIFO_DEAD, 2), Some(Fifo::default())),
    ] {
        let settings = Settings { redrive, fifo, ..Settings::default() };
        let record = QueueRecord::new(ACCOUNT, name, settings);
        // A disk that is full stays so.
        let begun = env.now();
        while let Err(error) = queues.create(record.clone()).await {
            match error {
                QueueError::Exists(_) => break,
                QueueError::Unavailable(_) if env.now() < begun + LIVES.resume_max => {
                    env.sleep(Duration::from_millis(5)).await;
                }
                other => return Err(other.to_string()),
            }
        }
    }
    Ok((queues, journal))
}
