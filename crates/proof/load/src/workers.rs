//! Worker processes of one run ([`crate::worker`]), and what they answer.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::child::Child;
use crate::measuring::until;

/// Whose line it is, and what it says: an answer, why the worker can't go on, or that nothing comes any more.
type WorkerLine<A> = (usize, Option<Result<A, String>>);

/// All workers of a run. A worker's number is how many were started before it.
pub struct Workers<A> {
    children: Vec<Child>,
    sender: Sender<WorkerLine<A>>,
    answers: Receiver<WorkerLine<A>>,
}

impl<A> Default for Workers<A> {
    fn default() -> Self {
        let (sender, answers) = channel();
        Self { children: Vec::new(), sender, answers }
    }
}

impl<A: DeserializeOwned + Send + 'static> Workers<A> {
    /// Starts another one: this binary with `args`, whose first line is its `role`.
    ///
    /// # Errors
    /// It can't be started, or does not listen.
    pub fn start(
        &mut self,
        name: &str,
        args: &[&str],
        dir: &Path,
        role: &impl Serialize,
    ) -> anyhow::Result<()> {
        let (mut child, output) = Child::start_worker(name, args, dir)?;
        child.tell(role)?;
        let (number, sender) = (self.children.len(), self.sender.clone());
        let read = move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let answer = serde_json::from_str(&line);
                let answer = answer.unwrap_or_else(|error| Err(format!("{line} is no answer: {error}")));
                if sender.send((number, Some(answer))).is_err() {
                    return;
                }
            }
            // Nobody may be listening any more.
            let _ = sender.send((number, None));
        };
        std::thread::Builder::new().name(format!("read-{name}")).spawn(read)?;
        self.children.push(child);
        Ok(())
    }

    /// The processes.
    pub fn children(&self) -> &[Child] {
        &self.children
    }

    /// Fails if one has ended.
    ///
    /// # Errors
    /// What it wrote last.
    pub fn check(&mut self) -> anyhow::Result<()> {
        self.children.iter_mut().try_for_each(Child::check)
    }

    /// Tells the first `count` of them something.
    ///
    /// # Errors
    /// One does not listen any more.
    pub fn tell_first(&mut self, count: usize, what: &impl Serialize) -> anyhow::Result<()> {
        self.children.iter_mut().take(count).try_for_each(|child| child.tell(what))
    }

    /// Tells one of them something.
    ///
    /// # Errors
    /// It does not listen any more.
    pub fn tell_one(&mut self, number: usize, what: &impl Serialize) -> anyhow::Result<()> {
        self.children[number].tell(what)
    }

    /// Tells the others behind those.
    ///
    /// # Errors
    /// One does not listen any more.
    pub fn tell_behind(&mut self, count: usize, what: &impl Serialize) -> anyhow::Result<()> {
        self.children.iter_mut().skip(count).try_for_each(|child| child.tell(what))
    }

    /// Tells all of them something.
    ///
    /// # Errors
    /// One does not listen any more.
    pub fn tell(&mut self, what: &impl Serialize) -> anyhow::Result<()> {
        self.tell_first(self.children.len(), what)
    }

    /// Whose answer comes next, and what it is; `None` if there is none within `limit`.
    ///
    /// # Errors
    /// One failed.
    pub fn hear(&mut self, limit: Duration) -> anyhow::Result<Option<(usize, A)>> {
        // As long as it is no answer: there is always a sender, this one's.
        while let Ok((number, answer)) = self.answers.recv_timeout(limit) {
            match answer {
                Some(Ok(answer)) => return Ok(Some((number, answer))),
                Some(Err(why)) => return Err(self.children[number].failure(&format!("failed: {why}"))),
                None => self.children[number].end()?,
            }
        }
        Ok(None)
    }

    /// Waits for something of each of them, while `check` finds no fault; in the order of their numbers. What `take`
    /// does not take is passed over.
    ///
    /// # Errors
    /// Those of [`Workers::hear`] and of `check`, and that one does not answer within `limit`.
    pub fn gather<T>(
        &mut self,
        limit: Duration,
        mut check: impl FnMut() -> anyhow::Result<()>,
        mut take: impl FnMut(A) -> Option<T>,
    ) -> anyhow::Result<Vec<T>> {
        let mut all: Vec<Option<T>> = self.children.iter().map(|_| None).collect();
        until("each worker answers", limit, || {
            check()?;
            while let Some((number, answer)) = self.hear(Duration::ZERO)? {
                if let Some(taken) = take(answer) {
                    all[number] = Some(taken);
                }
            }
            Ok(all.iter().all(Option::is_some).then_some(()))
        })?;
        Ok(all.into_iter().flatten().collect())
    }
}
