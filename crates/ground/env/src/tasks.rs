//! Where tasks run.

use std::sync::{Arc, Weak};
use std::task::Poll;

use futures::future::BoxFuture;

use crate::Env;

/// Tasks of a group below which the group does not look for tasks that are over.
const LOOK_AT_MIN: usize = 64;

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

/// Tasks that end by themselves one by one, and at the latest when the group is dropped: such as those of a listener's
/// connections. It holds at most as many again, or 64, that are over.
#[derive(Debug, Default)]
pub struct TaskGroup {
    /// What the task holds while it runs, and the task.
    tasks: Vec<(Weak<()>, Task)>,
    /// So many tasks are enough to look which of them are over.
    look_at: usize,
}

impl TaskGroup {
    /// Starts one more, as [`Env::spawn`] does.
    pub fn spawn(
        &mut self,
        env: &Env,
        name: &'static str,
        future: impl Future<Output = ()> + Send + 'static,
    ) {
        if self.tasks.len() >= self.look_at.max(LOOK_AT_MIN) {
            self.tasks.retain(|(running, _)| running.strong_count() > 0);
            self.look_at = 2 * self.tasks.len();
        }
        let running = Arc::new(());
        let watched = Arc::downgrade(&running);
        let task = env.spawn(name, async move {
            future.await;
            drop(running);
        });
        self.tasks.push((watched, task));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_group_forgets_tasks_that_are_over_and_ends_the_others() {
        let (env, mut group) = (Env::real(), TaskGroup::default());
        let (held, mut end) = tokio::sync::mpsc::channel::<()>(1);
        for _ in 0..3 {
            let held = held.clone();
            group.spawn(&env, "stays", async move {
                std::future::pending::<()>().await;
                drop(held);
            });
        }
        drop(held);
        for _ in 0..20 * LOOK_AT_MIN {
            let (over, is_over) = tokio::sync::oneshot::channel();
            group.spawn(&env, "is over", async move {
                let _ = over.send(());
            });
            is_over.await.expect("it ran");
            yield_once().await;
        }
        assert!(group.tasks.len() <= 2 * LOOK_AT_MIN, "{}", group.tasks.len());
        drop(group);
        assert_eq!(end.recv().await, None, "those that stayed are cancelled");
    }
}
