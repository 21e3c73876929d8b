//! Those who use metadata: a few clients that commit, read and hold leases, and one that watches.

use std::time::Duration;

use bytes::Bytes;
use tailwater_env::Env;
use tailwater_meta::{EmbeddedMeta, Expect, Meta, MetaError, Versioned, WatchEnd};

use crate::checkers::{Violation, ensure};
use crate::scenarios::outcome::{Outcome, spawn_client};

use super::Outside;
use super::model::LEASES;

/// Keys that all clients write.
const SHARED_KEYS: u64 = 6;

pub(super) struct Client {
    env: Env,
    meta: EmbeddedMeta,
    model: Outside,
    /// A key that nobody else writes, and what is there.
    own_key: String,
    own: Option<u64>,
    lease_key: String,
}

impl Client {
    /// Starts one as a task of `env`.
    pub(super) fn start(env: &Env, meta: &EmbeddedMeta, model: &Outside, number: u64) {
        let client = Self {
            env: env.clone(),
            meta: meta.clone(),
            model: model.clone(),
            own_key: format!("own/{number}"),
            own: None,
            lease_key: format!("{LEASES}{number}"),
        };
        spawn_client(env, model, "client", client.run());
    }

    async fn run(mut self) {
        self.own = self.get(&self.own_key.clone()).await.map(|found| found.version);
        while !self.model.lock().is_over() {
            match self.env.random_below(12) {
                0..5 => self.write_own().await,
                5..8 => self.write_shared().await,
                8 => self.tidy().await,
                9 => self.hold_lease().await,
                _ => {
                    let key = self.shared_key();
                    self.get(&key).await;
                }
            }
            self.env.sleep(Duration::from_micros(self.env.random_below(1_500))).await;
        }
    }

    fn shared_key(&self) -> String {
        format!("shared/{}", self.env.random_below(SHARED_KEYS))
    }

    async fn get(&self, key: &str) -> Option<Versioned> {
        let floor = self.model.lock().floor(key);
        let found = self.meta.get(key).await;
        let mut model = self.model.lock();
        match found {
            Ok(found) => {
                let got = model.got(key, found.as_ref(), floor);
                model.note(got);
                found
            }
            Err(error) => {
                model.note(Err(Violation::new(format!("reading {key:?}: {error}"))));
                None
            }
        }
    }

    /// What nobody else writes is as this client left it: its expectation always holds.
    async fn write_own(&mut self) {
        let expect = self.own.map_or(Expect::Absent, Expect::Version);
        let key = (self.own_key.clone(), expect);
        let delete = self.own.is_some() && self.env.random_below(4) == 0;
        let (puts, deletes) = if delete { (vec![], vec![key]) } else { (vec![key], vec![]) };
        let (number, ops) = self.model.lock().begin(&puts, &deletes);
        match self.meta.commit(ops).await {
            Ok(version) => {
                self.own = (!delete).then_some(version);
                self.answered(number, version);
            }
            Err(MetaError::Unavailable(_)) => self.unavailable().await,
            Err(error) => {
                let what = format!("a commit of what nobody else writes was refused: {error}");
                self.model.lock().note(Err(Violation::new(what)));
            }
        }
    }

    /// Two keys that others write too, as they were when looked at or in any case.
    async fn write_shared(&mut self) {
        let first = self.env.random_below(SHARED_KEYS);
        let second = (first + 1 + self.env.random_below(SHARED_KEYS - 1)) % SHARED_KEYS;
        let keys = [first, second].map(|number| format!("shared/{number}"));
        let mut expects = [Expect::Any, Expect::Any];
        if self.env.random_below(2) == 0 {
            for (key, expect) in keys.iter().zip(&mut expects) {
                let found = self.get(key).await;
                *expect = found.map_or(Expect::Absent, |found| Expect::Version(found.version));
            }
        }
        let mut changes = keys.into_iter().zip(expects).collect::<Vec<_>>();
        let deletes = if self.env.random_below(4) == 0 { changes.split_off(1) } else { vec![] };
        let (number, ops) = self.model.lock().begin(&changes, &deletes);
        match self.meta.commit(ops).await {
            Ok(version) => self.answered(number, version),
            Err(MetaError::Conflict { .. }) => self.model.lock().count("conflicts", 1),
            Err(MetaError::Unavailable(_)) => self.unavailable().await,
            Err(error) => self.model.lock().note(Err(Violation::new(format!("refused: {error}")))),
        }
    }

    async fn tidy(&self) {
        let Some((number, ops)) = self.model.lock().begin_tidying() else { return };
        match self.meta.commit(ops).await {
            Ok(version) => self.answered(number, version),
            Err(MetaError::Unavailable(_)) => self.unavailable().await,
            Err(error) => self.model.lock().note(Err(Violation::new(format!("tidying up: {error}")))),
        }
    }

    /// Nobody else wants it: it is to be had, is there while it is held, and gone afterwards.
    async fn hold_lease(&self) {
        let ttl = Duration::from_millis(10 + self.env.random_below(100));
        let lease = match self.meta.lease(&self.lease_key, Bytes::new(), ttl).await {
            Ok(lease) => lease,
            Err(MetaError::Unavailable(_)) => return self.unavailable().await,
            Err(error) => {
                return self.model.lock().note(Err(Violation::new(format!("a free lease: {error}"))));
            }
        };
        self.env.sleep(Duration::from_micros(self.env.random_below(3_000))).await;
        let found = self.meta.get(&self.lease_key).await;
        let version = found.ok().flatten().map(|found| found.version);
        let there = ensure(lease.is_lost() || version == Some(lease.version()), || {
            format!("a lease of version {} is held, but its key is {version:?}", lease.version())
        });
        {
            let mut model = self.model.lock();
            model.count("leases", 1);
            model.note(there);
        }
        drop(lease);
        let found = self.meta.get(&self.lease_key).await;
        let gone =
            ensure(!matches!(found, Ok(Some(_))), || "a lease was dropped, and its key is there".to_owned());
        self.model.lock().note(gone);
    }

    fn answered(&self, number: usize, version: u64) {
        let mut model = self.model.lock();
        let answered = model.answer(number, version);
        model.note(answered);
    }

    async fn unavailable(&self) {
        self.model.lock().count("unavailable", 1);
        self.env.sleep(Duration::from_micros(500 + self.env.random_below(5_000))).await;
    }
}

/// Follows all keys: watches, lists, and takes in what comes; lists again where it was too slow.
pub(super) async fn watch(env: Env, meta: EmbeddedMeta, model: Outside) {
    let Ok(mut watch) = meta.watch("").await else { return };
    loop {
        let Ok(found) = meta.list("").await else { return };
        let anew = model.lock().watch_anew(&found);
        model.lock().note(anew);
        loop {
            match watch.next().await {
                Ok(event) => {
                    let told = model.lock().watch_event(&event.key, event.value.as_ref());
                    model.lock().note(told);
                }
                Err(WatchEnd::Lagged) => break,
                Err(WatchEnd::Closed) => return,
            }
            if env.random_below(20) == 0 {
                env.sleep(Duration::from_micros(env.random_below(5_000))).await;
            }
        }
    }
}
