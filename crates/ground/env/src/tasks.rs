//! Where tasks run.

use std::task::Poll;

use futures::future::BoxFuture;

/// Starts tasks.
pub trait Tasks: Send + Sync + 'static {
    /// Starts a task that never blocks.
    fn spawn(&self, name: &'static str, future: BoxFuture<'static, ()>) -> Task;
    /// Starts a task on a thread of its own; it may block.
    fn spawn_dedicated(&self, name: &'static str, future: BoxFuture<'static, ()>) -> Task;
}

/// A running task. Dropping it cancels the task at its next await point; [`Task::detach`] lets it run on.
#[must_use = "dropping a task cancels it"]
pub struct Task {
    cancel: Option<Box<dyn FnOnce() + Send + Sync>>,
}

impl Task {
    /// A task that `cancel` stops.
    pub fn new(cancel: impl FnOnce() + Send + Sync + 'static) -> Self {
        Self { cancel: Some(Box::new(cancel)) }
    }

    /// Lets the task run until it ends by itself.
    pub fn detach(mut self) {
        self.cancel = None;
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        if let Some(cancel) = self.cancel.take() {
            cancel();
        }
    }
}

impl std::fmt::Debug for Task {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Task")
    }
}

/// Lets other tasks run first; a task that was dropped ends here.
pub async fn yield_once() {
    let mut yielded = false;
    std::future::poll_fn(|context| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
