//! Workers that run the application's CALLs, so that engines never wait for it.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use tailwater_access::Peer;
use tailwater_env::{Env, panics};

use crate::atomics::{AtomicUsize, Ordering};
use crate::frame::CallAnswer;
use crate::limits::CALL_BYTES_MAX;
use crate::server::mailbox::{Mailbox, Message};
use crate::service::{REFUSED_TOO_LARGE, Refusal, Reply, Service};

/// A CALL on its way to the application, and the way back.
pub(crate) struct CallJob {
    pub(crate) peer: Arc<Peer>,
    pub(crate) method: u16,
    pub(crate) payload: Bytes,
    pub(crate) connection: u64,
    pub(crate) request: u64,
    pub(crate) engine: Arc<Mailbox>,
}

impl CallJob {
    /// Has the application carry it out, on this thread.
    pub(crate) fn run(self, service: &dyn Service) {
        let CallJob { peer, method, payload, connection, request, engine } = self;
        let reply = Reply::new(move |answer| {
            let answer = checked(answer);
            engine.send(Message::Answer { connection, request, answer });
        });
        // A panic has dropped, and so answered, the reply; the thread is there for what comes next.
        if panics::catch(|| service.call(&peer, method, payload, reply)).is_err() {
            tracing::error!(peer = peer.address, method, "the application panicked in a call");
        }
    }
}

/// How many of one connection's CALLs the workers have. What comes behind them queues up as well, however short it
/// is, or it would overtake them.
#[derive(Default)]
pub(crate) struct AtWorkers(Arc<AtomicUsize>);

impl AtWorkers {
    /// Whether all that were handed over have been carried out.
    pub(crate) fn is_none(&self) -> bool {
        // Acquire: with the Release of the last one's end. What that one did is seen by what runs next.
        self.0.load(Ordering::Acquire) == 0
    }

    /// Counts one, as long as what is returned lives.
    pub(crate) fn one_more(&self) -> AtWorker {
        self.0.fetch_add(1, Ordering::Relaxed);
        AtWorker(Arc::clone(&self.0))
    }
}

/// A CALL that is counted in [`AtWorkers`].
pub(crate) struct AtWorker(Arc<AtomicUsize>);

impl Drop for AtWorker {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}

struct Queue {
    jobs: VecDeque<(CallJob, AtWorker)>,
    bytes: usize,
    stopped: bool,
}

/// A bounded queue, in CALLs and in bytes, with a fixed number of workers behind it.
pub(crate) struct Calls {
    queue: Mutex<Queue>,
    ready: Condvar,
    jobs_max: usize,
    bytes_max: usize,
}

impl Calls {
    /// Starts `workers` threads that end after [`Calls::stop`].
    pub(crate) fn start(
        env: &Env,
        service: &Arc<dyn Service>,
        workers: usize,
        jobs_max: usize,
        bytes_max: usize,
    ) -> Arc<Self> {
        let queue = Queue { jobs: VecDeque::new(), bytes: 0, stopped: false };
        let calls = Arc::new(Self { queue: Mutex::new(queue), ready: Condvar::new(), jobs_max, bytes_max });
        for _ in 0..workers.max(1) {
            let calls = calls.clone();
            let service = service.clone();
            env.spawn_dedicated("rma-call", async move { calls.work(&*service) }).detach();
        }
        calls
    }

    /// Queues a CALL, or answers `false` if the queue is full.
    pub(crate) fn submit(&self, job: CallJob, counted: AtWorker) -> bool {
        let mut queue = self.queue.lock();
        let bytes = queue.bytes + job.payload.len();
        if queue.stopped || queue.jobs.len() >= self.jobs_max || bytes > self.bytes_max {
            return false;
        }
        queue.bytes = bytes;
        queue.jobs.push_back((job, counted));
        drop(queue);
        self.ready.notify_one();
        true
    }

    /// Ends the workers, each behind the CALL it runs, and forgets what is queued.
    pub(crate) fn stop(&self) {
        let mut queue = self.queue.lock();
        queue.stopped = true;
        queue.jobs.clear();
        drop(queue);
        self.ready.notify_all();
    }

    fn work(&self, service: &dyn Service) {
        while let Some((job, counted)) = self.next() {
            job.run(service);
            drop(counted);
        }
    }

    fn next(&self) -> Option<(CallJob, AtWorker)> {
        let mut queue = self.queue.lock();
        loop {
            if queue.stopped {
                return None;
            }
            if let Some(next) = queue.jobs.pop_front() {
                queue.bytes -= next.0.payload.len();
                return Some(next);
            }
            self.ready.wait(&mut queue);
        }
    }
}

fn checked(answer: Result<Bytes, Refusal>) -> CallAnswer {
    match answer {
        Ok(bytes) if bytes.len() > CALL_BYTES_MAX => {
            let message = format!("an answer of {} bytes is longer than {CALL_BYTES_MAX}", bytes.len());
            CallAnswer::Refused(Refusal { code: REFUSED_TOO_LARGE, message })
        }
        Ok(bytes) => CallAnswer::Done(bytes),
        Err(refusal) => CallAnswer::Refused(refusal),
    }
}
