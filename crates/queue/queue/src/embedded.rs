//! The embedded store as a [`QueueStore`].

use std::sync::Arc;
use std::time::Duration;

use tailwater_env::BoxFuture;

use crate::contract::{Answer, Outcomes, QueueStore, SentEach};
use crate::ids::{Receipt, Secret, Sequence};
use crate::queues::Queues;
use crate::request::{Change, Figures, Message, Receive, Send, Sent};
use crate::settings::{MoveTask, QueueRecord};
use crate::view::View;

impl QueueStore for Queues {
    fn secret(&self) -> &Secret {
        self.secret()
    }

    fn find<'a>(&'a self, account: &'a str, name: &'a str) -> Answer<'a, Option<Arc<View>>> {
        Box::pin(async move { Ok(self.find(account, name)) })
    }

    fn list<'a>(
        &'a self,
        account: &'a str,
        prefix: &'a str,
        after: Option<&'a str>,
        most: usize,
    ) -> Answer<'a, Vec<Arc<View>>> {
        Box::pin(async move { Ok(self.list(account, prefix, after, most)) })
    }

    fn all(&self) -> Answer<'_, Vec<Arc<View>>> {
        Box::pin(async move { Ok(self.all()) })
    }

    fn create(&self, record: QueueRecord) -> Answer<'_, Arc<View>> {
        Box::pin(self.create(record))
    }

    fn update<'a>(&'a self, queue: &'a View, change: Change) -> Answer<'a, ()> {
        Box::pin(self.update(queue, change))
    }

    fn delete_queue<'a>(&'a self, queue: &'a View) -> Answer<'a, ()> {
        Box::pin(self.delete_queue(queue))
    }

    fn purge<'a>(&'a self, queue: &'a View) -> Answer<'a, ()> {
        Box::pin(self.purge(queue))
    }

    fn send<'a>(&'a self, queue: &'a View, sends: Vec<Send>) -> Answer<'a, Vec<Sent>> {
        Box::pin(self.send(queue, sends))
    }

    /// All are sent, or none.
    fn send_each<'a>(&'a self, queue: &'a View, sends: Vec<Send>) -> Answer<'a, SentEach> {
        Box::pin(async move { Ok(self.send(queue, sends).await?.into_iter().map(Ok).collect()) })
    }

    fn receive<'a>(&'a self, queue: &'a View, receive: Receive) -> Answer<'a, Vec<Message>> {
        Box::pin(self.receive(queue, receive))
    }

    fn peek<'a>(&'a self, queue: &'a View, from: Sequence, count: usize) -> Answer<'a, Vec<Message>> {
        Box::pin(self.peek(queue, from, count))
    }

    fn delete<'a>(&'a self, queue: &'a View, receipts: Vec<Receipt>) -> Answer<'a, Outcomes> {
        Box::pin(self.delete(queue, receipts))
    }

    fn change_visibility<'a>(
        &'a self,
        queue: &'a View,
        changes: Vec<(Receipt, Duration)>,
    ) -> Answer<'a, Outcomes> {
        Box::pin(self.change_visibility(queue, changes))
    }

    fn give_back<'a>(&'a self, queue: &'a View, receipts: Vec<Receipt>) -> Answer<'a, ()> {
        Box::pin(async move { self.give_back(queue, receipts) })
    }

    fn figures<'a>(&'a self, queue: &'a View) -> Answer<'a, Figures> {
        Box::pin(self.figures(queue))
    }

    fn start_move(&self, task: MoveTask) -> Answer<'_, u64> {
        Box::pin(self.start_move(task))
    }

    fn cancel_move<'a>(&'a self, account: &'a str, task: u64) -> Answer<'a, u64> {
        Box::pin(self.cancel_move(account, task))
    }

    fn list_moves<'a>(&'a self, account: &'a str, source: &'a str) -> Answer<'a, Vec<MoveTask>> {
        Box::pin(self.list_moves(account, source))
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.close())
    }
}
