//! The embedded store as a [`QueueStore`].

use std::sync::Arc;
use std::time::Duration;

use tailwater_env::BoxFuture;

use crate::contract::{FrontReport, Outcomes, QueueStore, SentEach, StoreAnswer};
use crate::ids::{Receipt, Secret, Sequence};
use crate::queues::Queues;
use crate::request::{Figures, Message, Receive, Send, Sent, VisibilityChange};
use crate::settings::{MoveTask, QueueRecord};
use crate::view::QueueView;

impl QueueStore for Queues {
    fn secret(&self) -> &Secret {
        self.secret()
    }

    /// The queues are this process's alone.
    fn exchange_reports(&self, _: FrontReport) -> StoreAnswer<'_, Option<Vec<FrontReport>>> {
        Box::pin(async { Ok(None) })
    }

    fn find<'a>(&'a self, account: &'a str, name: &'a str) -> StoreAnswer<'a, Option<Arc<QueueView>>> {
        Box::pin(async move { Ok(self.find(account, name)) })
    }

    fn list<'a>(
        &'a self,
        account: &'a str,
        prefix: &'a str,
        after: Option<&'a str>,
        most: usize,
    ) -> StoreAnswer<'a, Vec<Arc<QueueView>>> {
        Box::pin(async move { Ok(self.list(account, prefix, after, most)) })
    }

    fn all(&self) -> StoreAnswer<'_, Vec<Arc<QueueView>>> {
        Box::pin(async move { Ok(self.all()) })
    }

    fn create(&self, record: QueueRecord) -> StoreAnswer<'_, Arc<QueueView>> {
        Box::pin(self.create(record))
    }

    fn update<'a>(&'a self, queue: &'a QueueView, change: VisibilityChange) -> StoreAnswer<'a, ()> {
        Box::pin(self.update(queue, change))
    }

    fn delete_queue<'a>(&'a self, queue: &'a QueueView) -> StoreAnswer<'a, ()> {
        Box::pin(self.delete_queue(queue))
    }

    fn purge<'a>(&'a self, queue: &'a QueueView) -> StoreAnswer<'a, ()> {
        Box::pin(self.purge(queue))
    }

    fn send<'a>(&'a self, queue: &'a QueueView, sends: Vec<Send>) -> StoreAnswer<'a, Vec<Sent>> {
        Box::pin(self.send(queue, sends))
    }

    /// All are sent, or none.
    fn send_each<'a>(&'a self, queue: &'a QueueView, sends: Vec<Send>) -> StoreAnswer<'a, SentEach> {
        Box::pin(async move { Ok(self.send(queue, sends).await?.into_iter().map(Ok).collect()) })
    }

    fn receive<'a>(&'a self, queue: &'a QueueView, receive: Receive) -> StoreAnswer<'a, Vec<Message>> {
        Box::pin(self.receive(queue, receive))
    }

    fn peek<'a>(
        &'a self,
        queue: &'a QueueView,
        from: Sequence,
        count: usize,
    ) -> StoreAnswer<'a, Vec<Message>> {
        Box::pin(self.peek(queue, from, count))
    }

    fn delete<'a>(&'a self, queue: &'a QueueView, receipts: Vec<Receipt>) -> StoreAnswer<'a, Outcomes> {
        Box::pin(self.delete(queue, receipts))
    }

    fn change_visibility<'a>(
        &'a self,
        queue: &'a QueueView,
        changes: Vec<(Receipt, Duration)>,
    ) -> StoreAnswer<'a, Outcomes> {
        Box::pin(self.change_visibility(queue, changes))
    }

    fn give_back<'a>(&'a self, queue: &'a QueueView, receipts: Vec<Receipt>) -> StoreAnswer<'a, ()> {
        Box::pin(async move { self.give_back(queue, receipts) })
    }

    fn figures<'a>(&'a self, queue: &'a QueueView) -> StoreAnswer<'a, Figures> {
        Box::pin(self.figures(queue))
    }

    fn start_move(&self, task: MoveTask) -> StoreAnswer<'_, u64> {
        Box::pin(self.start_move(task))
    }

    fn cancel_move<'a>(&'a self, account: &'a str, task: u64) -> StoreAnswer<'a, u64> {
        Box::pin(self.cancel_move(account, task))
    }

    fn list_moves<'a>(&'a self, account: &'a str, source: &'a str) -> StoreAnswer<'a, Vec<MoveTask>> {
        Box::pin(self.list_moves(account, source))
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.close())
    }
}
