//! Which configuration of its cell a backend goes by, who tells it another one, and who is told.
//!
//! A change goes through the table in steps, under a lock that is free between them:
//! 1. What comes under the configuration before is refused from now on. If that was another cell's, all is forgotten.
//! 2. Each bucket is named with the new id. Readers by the configuration before find no bucket from then on.
//! 3. What the backend does not hold any more is forgotten: after all buckets are named, so that no reader by the
//!    configuration before takes that for a miss.
//! 4. The index header is named, and whoever waits to be told is answered.
//!
//! Nothing of it is durable: a backend that starts again knows no configuration until it is told one.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use parking_lot::Mutex;
use prost::Message;
use tailwater_env::Instant;
use tailwater_rma::{Refusal, Reply};

use super::{Backend, malformed};
use crate::cell::Placement;
use crate::configuration::Configuration;
use crate::layout::KeyHash;
use crate::limits::{BUCKETS_PER_STEP, CONFIG_WAIT_MAX, CONFIG_WAITS_MAX};
use crate::protocol::{ConfigReply, ConfigRequest, ConfigureRequest, REFUSED_CONFIG};

/// What a backend was told.
pub(super) struct BackendTold {
    /// The cell that it is for, if that was said: configurations of others are refused.
    cell: OnceLock<String>,
    /// The newest; held while the table follows, so that who asks meanwhile waits for the end of that.
    pub(super) newest: Mutex<Option<ToldConfiguration>>,
    /// The id of the configuration that the table has followed to its end. Written with `newest` held.
    followed: AtomicU64,
    /// Those who are answered when there is a newer one, the longest waiting first.
    waiting: Mutex<VecDeque<ToldWaiting>>,
}

pub(super) struct ToldConfiguration {
    id: u64,
    bytes: Bytes,
    said: ToldPlaces,
}

/// A configuration as a backend goes by it.
#[derive(Clone)]
pub(super) struct ToldPlaces {
    pub(super) configuration: Arc<Configuration>,
    /// Who is read.
    pub(super) placement: Arc<Placement>,
    /// Who else has to acknowledge, while a change is under way.
    pub(super) other: Option<Arc<Placement>>,
    /// Which backend this is.
    pub(super) number: u32,
}

impl ToldPlaces {
    /// The tables of which a lookup by quorum needs an answer each.
    pub(super) fn read(&self) -> impl Iterator<Item = &Placement> {
        let other = self.other.as_deref().filter(|_| self.configuration.reads_both());
        std::iter::once(&*self.placement).chain(other)
    }

    /// Whether the backend at `place` is one that is read for a key.
    pub(super) fn is_read(&self, hash: KeyHash, place: usize) -> bool {
        self.read().any(|table| table.replica_at(hash, place).is_some())
    }

    /// Whether it is a replica by the table that counted before a change that is under way, or counts without one.
    pub(super) fn is_of_before(&self, hash: KeyHash, place: usize) -> bool {
        let is_copied = self.configuration.change.as_ref().is_some_and(|change| change.is_copied);
        let before = self.other.as_ref().filter(|_| is_copied).unwrap_or(&self.placement);
        before.replica_at(hash, place).is_some()
    }

    /// Whether it holds the key.
    pub(super) fn holds(&self, hash: KeyHash, place: usize) -> bool {
        let mut tables = std::iter::once(&self.placement).chain(&self.other);
        tables.any(|table| table.replica_at(hash, place).is_some())
    }
}

struct ToldWaiting {
    since: Instant,
    reply: Reply,
}

impl BackendTold {
    /// Of a backend that starts with `config_id`, or with 0 and is told one.
    pub(super) fn new(config_id: u64) -> Self {
        Self {
            cell: OnceLock::new(),
            newest: Mutex::new(None),
            followed: AtomicU64::new(config_id),
            waiting: Mutex::default(),
        }
    }
}

impl Backend {
    /// Takes configurations of the cell with that name only. Said once, before it is served.
    pub fn is_for(&self, cell: &str) {
        // A second name would be a mistake of the caller's, whose first one stands.
        let _ = self.told.cell.set(cell.to_owned());
    }

    /// The id of the configuration that it goes by; 0 before it knows one.
    pub fn config_id(&self) -> u64 {
        self.told.followed.load(Ordering::Acquire)
    }

    /// The configuration that it goes by, if it was told one.
    pub fn configuration(&self) -> Option<Configuration> {
        self.told().map(|told| (*told.configuration).clone())
    }

    /// The same, and what follows from it.
    pub(super) fn told(&self) -> Option<ToldPlaces> {
        self.told.newest.lock().as_ref().map(|told| told.said.clone())
    }

    /// Does something that holds by the configuration with that id. `None` if the backend was told another one: it may
    /// have begun anew with that.
    pub(super) fn while_told<T>(&self, id: u64, what: impl FnOnce() -> T) -> Option<T> {
        // Held meanwhile, so that no other one is told.
        let newest = self.told.newest.lock();
        newest.as_ref().filter(|told| told.id == id).map(|_| what())
    }

    /// Answers which configuration it goes by: at once, or when there is a newer one than the asker knows. Who waits
    /// longest is answered with what there is when too many wait, or after [`CONFIG_WAIT_MAX`].
    pub(super) fn answer_config(&self, payload: Bytes, reply: Reply) {
        let request = match ConfigRequest::decode(payload) {
            Ok(request) => request,
            Err(error) => return reply.send(Err(malformed(&error.to_string()))),
        };
        let newest = self.told.newest.lock();
        let answer = config_reply(newest.as_ref());
        let is_news = newest.as_ref().is_some_and(|told| told.id > request.after);
        if request.after == 0 || is_news {
            drop(newest);
            return reply.send(Ok(answer));
        }
        // With `newest` held: the next one can't come in between.
        let mut waiting = self.told.waiting.lock();
        waiting.push_back(ToldWaiting { since: self.env.now(), reply });
        let first = (waiting.len() > CONFIG_WAITS_MAX).then(|| waiting.pop_front()).flatten();
        drop((waiting, newest));
        if let Some(first) = first {
            first.reply.send(Ok(answer));
        }
    }

    /// Answers those who have waited for too long; they ask again if they are still there.
    pub(crate) fn answer_long_waiting(&self) {
        let now = self.env.now();
        let first = || {
            let mut waiting = self.told.waiting.lock();
            waiting.pop_front_if(|first| now.since(first.since) >= CONFIG_WAIT_MAX)
        };
        while let Some(first) = first() {
            let answer = config_reply(self.told.newest.lock().as_ref());
            first.reply.send(Ok(answer));
        }
    }

    /// Goes by another configuration, as the backend with that number, if its id is greater than that of what it was
    /// told before. Forgets what is not its own any more, and all of another cell of the same name. Takes a
    /// millisecond for some ten thousand buckets; who reads or writes meanwhile waits for a fraction of that at most.
    pub(super) fn configure(&self, payload: Bytes) -> Result<Bytes, Refusal> {
        let request = ConfigureRequest::decode(payload).map_err(|error| malformed(&error.to_string()))?;
        let configuration =
            Configuration::decode(&request.configuration).map_err(|error| malformed(&error.to_string()))?;
        let refused = |message| Err(Refusal { code: REFUSED_CONFIG, message });
        if self.config.config_id != 0 {
            let ours = self.config.config_id;
            return refused(format!("this backend was started with config {ours}, and takes no other"));
        }
        let mut newest = self.told.newest.lock();
        let before = newest.as_ref().map_or(0, |told| told.id);
        if configuration.id <= before {
            return Ok(config_reply(newest.as_ref()));
        }
        let name = self.told.cell.get_or_init(|| configuration.name.clone());
        if *name != configuration.name {
            let other = configuration.name;
            return refused(format!("this backend is for the cell {name}, and not for {other}"));
        }
        let said = ToldPlaces {
            placement: Arc::new(configuration.placement()),
            other: configuration.other_placement().map(Arc::new),
            configuration: Arc::new(configuration),
            number: request.number,
        };
        self.take_over(&said, newest.as_ref().map(|told| &*told.said.configuration));
        let (id, bytes, number) = (said.configuration.id, request.configuration, request.number);
        tracing::info!(cell = said.configuration.name, id, number, "cache backend configured");
        *newest = Some(ToldConfiguration { id, bytes, said });
        let answer = config_reply(newest.as_ref());
        let waiting = std::mem::take(&mut *self.told.waiting.lock());
        drop(newest);
        self.cohort.changed.notify_one();
        waiting.into_iter().for_each(|waiting| waiting.reply.send(Ok(answer.clone())));
        self.ring();
        Ok(answer)
    }

    fn take_over(&self, told: &ToldPlaces, before: Option<&Configuration>) {
        let ToldPlaces { configuration, number, .. } = told;
        let id = configuration.id;
        let was_same_cell = before.is_some_and(|before| Configuration::is_same_cell(before.id, id));
        if before.is_some() && !was_same_cell {
            self.table.lock().set_config_id(0);
            self.clear();
        }
        if !(was_same_cell && before.is_some_and(|before| before.place_of(*number).is_some())) {
            self.begin_in(configuration, *number);
        }
        let before = before.filter(|_| was_same_cell);
        self.begin_reading(told, before);
        self.table.lock().set_config_id(id);
        self.for_all_buckets(|buckets| self.table.lock().name_buckets(buckets));
        let place = configuration.place_of(*number);
        let keep = |hash: KeyHash| place.is_some_and(|place| told.holds(hash, place));
        self.for_all_buckets(|buckets| self.table.lock().keep_only(buckets, self.env.now(), keep));
        self.end_reading(told, before);
        self.told.followed.store(id, Ordering::Release);
        self.write_header();
    }

    pub(super) fn for_all_buckets(&self, mut each: impl FnMut(std::ops::Range<u64>)) {
        let mut first = 0;
        while first < self.config.buckets {
            let behind = (first + BUCKETS_PER_STEP).min(self.config.buckets);
            each(first..behind);
            first = behind;
        }
    }
}

fn config_reply(told: Option<&ToldConfiguration>) -> Bytes {
    let reply = told.map(|told| ConfigReply { configuration: told.bytes.clone(), number: told.said.number });
    reply.unwrap_or_default().encode_to_vec().into()
}
