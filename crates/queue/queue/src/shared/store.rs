//! A front end as a [`QueueStore`], and its start.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tailwater_env::{BoxFuture, Env};
use tokio::sync::Semaphore;

use super::numbers::{FRONTS_MAX, Numbers, PLACE_S};
use super::rows::{Rows, RowsError};
use super::sweeper::Suspects;
use super::whole::SMALL_KIB;
use super::{SharedFront, SharedQueues};
use crate::contract::{FrontReport, Outcomes, QueueStore, SentEach, StoreAnswer};
use crate::ids::{Receipt, Secret, Sequence};
use crate::limits::CALLS_KIB;
use crate::request::{Figures, Message, QueueError, Receive, Send, Sent, VisibilityChange};
use crate::settings::{MoveTask, QueueRecord};
use crate::shared_config::SharedConfig;
use crate::view::QueueView;

/// Where the store's own records are.
const STORE: &str = "store";
const SECRET: &str = "secret";

/// Where the front ends' places are, each with a mark of whoever has it.
const FRONTS: &str = "fronts";

/// How often a place is renewed: several times while it lasts.
const RENEW_EVERY: Duration = Duration::from_secs(PLACE_S as u64 / 4);

/// How long a renewed place is used: shorter than it lasts, as clocks run at different speeds.
const PLACE_USED: Duration = Duration::from_secs(PLACE_S as u64 * 3 / 4);

impl SharedQueues {
    /// A front end of the queues in `rows`, whose tables are there.
    pub async fn start(env: &Env, rows: Arc<dyn Rows>, config: SharedConfig) -> Result<Self, QueueError> {
        let secret = secret(env, rows.as_ref()).await?;
        let front = Arc::new(SharedFront {
            env: env.clone(),
            rows,
            config,
            secret,
            numbers: Numbers::default(),
            directory: Default::default(),
            known: Default::default(),
            calls: Arc::new(Semaphore::new(CALLS_KIB)),
        });
        let place = front.take_place().await?;
        let tasks = vec![
            env.spawn("queue-place", Arc::clone(&front).keep_place(place)),
            env.spawn("queue-sweeper", Arc::clone(&front).sweep_all()),
            env.spawn("queue-tasks", Arc::clone(&front).adopt_tasks()),
        ];
        Ok(Self { front, _tasks: Arc::new(tasks) })
    }

    /// Sweeps all queues twice, as the front end's own sweeper does in its time; for tests.
    pub async fn sweep(&self) -> Result<(), QueueError> {
        let mut suspects = Suspects::default();
        for view in self.front.directory.all(&self.front).await? {
            let known = self.front.known(&view).await?;
            let found = self.front.sweep_queue(&known, &Default::default()).await?;
            suspects.insert(known.id, self.front.sweep_queue(&known, &found).await?);
        }
        Ok(())
    }
}

/// The key of receipts: whoever comes first makes it.
async fn secret(env: &Env, rows: &dyn Rows) -> Result<Secret, QueueError> {
    loop {
        if let Some(record) = rows.record(STORE, SECRET).await? {
            let secret = record.value.as_ref().try_into();
            let secret =
                secret.map_err(|_| QueueError::Unavailable("the key of receipts is no key".to_owned()))?;
            return Ok(Secret(secret));
        }
        let mut secret = Vec::with_capacity(32);
        while secret.len() < 32 {
            secret.extend(env.random_u64().to_le_bytes());
        }
        rows.write_record(STORE, SECRET, Some(secret.into()), None, 0).await?;
    }
}

/// A front end's place.
struct TuplePlace {
    front: u64,
    version: u64,
    mark: Bytes,
}

impl SharedFront {
    async fn take_place(&self) -> Result<TuplePlace, QueueError> {
        let mark = Bytes::copy_from_slice(&self.env.random_u64().to_le_bytes());
        for _ in 0..64 {
            let front = self.env.random_below(FRONTS_MAX);
            let began = self.env.now();
            let key = front.to_string();
            if self.rows.write_record(FRONTS, &key, Some(mark.clone()), None, PLACE_S).await? {
                self.numbers.place(front, began + PLACE_USED);
                return Ok(TuplePlace { front, version: 1, mark });
            }
        }
        Err(QueueError::Overloaded("there are too many front ends"))
    }

    async fn keep_place(self: Arc<Self>, mut place: TuplePlace) {
        loop {
            self.env.sleep(RENEW_EVERY).await;
            match self.renew(&mut place).await {
                Ok(true) => {}
                Err(error) => tracing::warn!(%error, "the front end's place could not be renewed yet"),
                // It lasted too long without: somebody else may have it.
                Ok(false) => match self.take_place().await {
                    Ok(other) => place = other,
                    Err(error) => tracing::warn!(%error, "the front end has no place"),
                },
            }
        }
    }

    async fn renew(&self, place: &mut TuplePlace) -> Result<bool, RowsError> {
        let began = self.env.now();
        let key = place.front.to_string();
        let value = Some(place.mark.clone());
        if !self.rows.write_record(FRONTS, &key, value, Some(place.version), PLACE_S).await? {
            // An answer may have been lost that it was renewed by.
            let record = self.rows.record(FRONTS, &key).await?;
            let Some(record) = record.filter(|record| record.value == place.mark) else { return Ok(false) };
            place.version = record.version;
            return Ok(true);
        }
        place.version += 1;
        self.numbers.place(place.front, began + PLACE_USED);
        Ok(true)
    }
}

impl QueueStore for SharedQueues {
    fn secret(&self) -> &Secret {
        &self.front.secret
    }

    fn exchange_reports(&self, report: FrontReport) -> StoreAnswer<'_, Option<Vec<FrontReport>>> {
        Box::pin(async move {
            // One after the other: of two front ends that put something, one at least reads what the other one put.
            self.front.rows.put_report(report).await?;
            Ok(Some(self.front.rows.reports().await?))
        })
    }

    fn find<'a>(&'a self, account: &'a str, name: &'a str) -> StoreAnswer<'a, Option<Arc<QueueView>>> {
        Box::pin(async move {
            let found = self.front.directory.find(&self.front, account, name).await?;
            Ok(found.map(|(view, _)| view))
        })
    }

    fn list<'a>(
        &'a self,
        account: &'a str,
        prefix: &'a str,
        after: Option<&'a str>,
        most: usize,
    ) -> StoreAnswer<'a, Vec<Arc<QueueView>>> {
        Box::pin(self.front.directory.list(&self.front, account, prefix, after, most))
    }

    fn all(&self) -> StoreAnswer<'_, Vec<Arc<QueueView>>> {
        Box::pin(self.front.directory.all(&self.front))
    }

    fn create(&self, record: QueueRecord) -> StoreAnswer<'_, Arc<QueueView>> {
        Box::pin(self.front.directory.create(&self.front, record))
    }

    fn update<'a>(&'a self, queue: &'a QueueView, change: VisibilityChange) -> StoreAnswer<'a, ()> {
        Box::pin(self.front.directory.update(&self.front, queue, change))
    }

    fn delete_queue<'a>(&'a self, queue: &'a QueueView) -> StoreAnswer<'a, ()> {
        Box::pin(async move {
            let known = self.front.known(queue).await?;
            let front = Arc::clone(&self.front);
            let delete = async move {
                front.directory.delete(&front, &known.view).await?;
                front.drop_tasks(&known.view.account, &known.view.name).await?;
                front.clear(&known).await
            };
            self.front.whole(SMALL_KIB, delete).await
        })
    }

    fn purge<'a>(&'a self, queue: &'a QueueView) -> StoreAnswer<'a, ()> {
        Box::pin(async move {
            let known = self.front.known(queue).await?;
            let front = Arc::clone(&self.front);
            let purge = async move {
                front.directory.purge(&front, &known.view).await?;
                front.purge(&known).await
            };
            self.front.whole(SMALL_KIB, purge).await
        })
    }

    fn send<'a>(&'a self, queue: &'a QueueView, sends: Vec<Send>) -> StoreAnswer<'a, Vec<Sent>> {
        Box::pin(async move { self.send_each(queue, sends).await?.into_iter().collect() })
    }

    fn send_each<'a>(&'a self, queue: &'a QueueView, sends: Vec<Send>) -> StoreAnswer<'a, SentEach> {
        Box::pin(async move {
            let known = self.front.known(queue).await?;
            let bytes: usize = sends.iter().map(|send| send.content.len()).sum();
            let front = Arc::clone(&self.front);
            let send = async move { front.send(&known, sends).await };
            self.front.whole(SMALL_KIB + bytes / 1024, send).await
        })
    }

    fn receive<'a>(&'a self, queue: &'a QueueView, receive: Receive) -> StoreAnswer<'a, Vec<Message>> {
        Box::pin(async move {
            let known = self.front.known(queue).await?;
            let messages = self.front.receive(&known, receive).await;
            self.front.drop_buckets(&known);
            messages
        })
    }

    fn peek<'a>(
        &'a self,
        queue: &'a QueueView,
        from: Sequence,
        count: usize,
    ) -> StoreAnswer<'a, Vec<Message>> {
        Box::pin(async move {
            let known = self.front.known(queue).await?;
            self.front.peek(&known, from, count).await
        })
    }

    fn delete<'a>(&'a self, queue: &'a QueueView, receipts: Vec<Receipt>) -> StoreAnswer<'a, Outcomes> {
        Box::pin(async move {
            let known = self.front.known(queue).await?;
            self.front.delete(&known, receipts).await
        })
    }

    fn change_visibility<'a>(
        &'a self,
        queue: &'a QueueView,
        changes: Vec<(Receipt, Duration)>,
    ) -> StoreAnswer<'a, Outcomes> {
        Box::pin(async move {
            let known = self.front.known(queue).await?;
            let front = Arc::clone(&self.front);
            let change = async move { front.change_visibility(&known, changes).await };
            self.front.whole(SMALL_KIB, change).await
        })
    }

    fn give_back<'a>(&'a self, queue: &'a QueueView, receipts: Vec<Receipt>) -> StoreAnswer<'a, ()> {
        Box::pin(async move {
            let known = self.front.known(queue).await?;
            self.front.give_back(&known, receipts).await
        })
    }

    fn figures<'a>(&'a self, queue: &'a QueueView) -> StoreAnswer<'a, Figures> {
        Box::pin(async move {
            let known = self.front.known(queue).await?;
            self.front.figures(&known).await
        })
    }

    fn start_move(&self, task: MoveTask) -> StoreAnswer<'_, u64> {
        Box::pin(self.front.start_move(task))
    }

    fn cancel_move<'a>(&'a self, account: &'a str, task: u64) -> StoreAnswer<'a, u64> {
        Box::pin(self.front.cancel_move(account, task))
    }

    fn list_moves<'a>(&'a self, account: &'a str, source: &'a str) -> StoreAnswer<'a, Vec<MoveTask>> {
        Box::pin(self.front.list_moves(account, source))
    }

    /// There is nothing to be kept: what is under way is done or not done.
    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }
}
