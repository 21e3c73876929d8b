//! Reading ahead: contents of a backlog come from the tree before they are received.
//!
//! A receive that had to wait for the tree begins with it: what will be received next is read in one go, and again each
//! time half of that was received, for as long as there is something that is not in memory. One such reading of a queue
//! is under way at a time. Nobody waits for it: whoever is faster reads for himself.

use bytes::Bytes;

use super::Core;
use crate::ids::{Number, QueueId, Sequence};
use crate::limits::READ_AHEAD_MESSAGES;
use crate::queue::Taken;

/// How far a queue has read ahead.
#[derive(Default)]
pub(crate) struct Ahead {
    /// Messages to be received before the next reading; none where receives find everything in memory.
    left: Option<usize>,
    is_reading: bool,
}

/// Contents of a queue that are to be read.
pub(crate) struct ReadAhead {
    pub(crate) queue: QueueId,
    pub(crate) wanted: Vec<(Sequence, Number)>,
}

impl Core {
    /// Messages were received, and some of their contents are not in memory, or all are.
    pub(super) fn read_ahead(&mut self, id: QueueId, taken: &[Taken], is_missing: bool) {
        let Some(hosted) = self.shelf.queues.get_mut(&id) else { return };
        let ahead = &mut hosted.ahead;
        ahead.left = ahead.left.map(|left| left.saturating_sub(taken.len()));
        let is_due = is_missing || ahead.left.is_some_and(|left| left <= READ_AHEAD_MESSAGES / 2);
        if !is_due || ahead.is_reading {
            return;
        }
        let upcoming = hosted.queue.upcoming(taken, READ_AHEAD_MESSAGES);
        let ahead = &mut hosted.ahead;
        let contents = &self.shelf.contents;
        let wanted = upcoming.into_iter().filter(|(_, number)| !contents.has(*number));
        let wanted: Vec<(Sequence, Number)> = wanted.collect();
        ahead.is_reading = !wanted.is_empty();
        ahead.left = ahead.is_reading.then_some(READ_AHEAD_MESSAGES);
        if ahead.is_reading {
            self.reads.push(ReadAhead { queue: id, wanted });
        }
    }

    /// What was asked for has been read, as far as it is there.
    pub(crate) fn have_read(&mut self, id: QueueId, read: Vec<(Sequence, Number, Bytes)>) {
        let Some(hosted) = self.shelf.queues.get_mut(&id) else { return };
        hosted.ahead.is_reading = false;
        for (sequence, number, content) in read {
            // It may have been deleted since: nobody would ask for it.
            if hosted.queue.entry(sequence).is_some_and(|entry| entry.number == number) {
                self.shelf.contents.insert_read(number, content);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::sync::oneshot;

    use super::*;
    use crate::core::Numbers;
    use crate::limits::HOT_BYTES;
    use crate::pages::PageEntry;
    use crate::queue::ChangesState;
    use crate::request::{QueueRequest, Receive};
    use crate::settings::{Fifo, QueueRecord, Settings};
    use crate::shelf::Shelf;

    const QUEUE: QueueId = QueueId(1);
    const BACKLOG: u64 = 1_000;
    const NOW: u64 = 1_000_000;

    /// A queue whose messages are in the tree only, in seven groups if it is of such.
    fn core(is_fifo: bool) -> Core {
        let settings = Settings { fifo: is_fifo.then(Fifo::default), ..Settings::default() };
        let mut shelf = Shelf::default();
        let queue = shelf.restore(QUEUE, QueueRecord::new("account", "q", settings));
        for sequence in 1..=BACKLOG {
            let entry = PageEntry::new(Number(sequence), NOW, NOW);
            let group = is_fifo.then(|| Arc::from(format!("group-{}", sequence % 7)));
            queue.restore(Sequence(sequence), ChangesState { entry, group, source: None }, NOW);
        }
        Core::new(shelf, Arc::new(Numbers::default()), 1)
    }

    #[test]
    fn of_a_backlog_only_the_first_receive_waits_for_the_tree_and_nothing_of_it_stays() {
        for is_fifo in [false, true] {
            for count in [1, 10] {
                let mut core = core(is_fifo);
                // However much there is that the tree does not have yet.
                let sent = Bytes::from(vec![0; 1 << 20]);
                for number in 0..4 * (HOT_BYTES >> 20) {
                    core.shelf.contents.insert(Number(1_000_000 + number), sent.clone());
                }
                let bytes = core.shelf.contents.bytes();
                let (mut missing, mut readings, mut received) = (0, 0, 0);
                while received < BACKLOG {
                    let (reply, mut answer) = oneshot::channel();
                    let receive = Receive { count, ..Receive::default() };
                    core.take(QueueRequest::Receive(QUEUE, receive, reply), NOW);
                    let found = answer.try_recv().expect("answered").expect("received");
                    assert!(!found.is_empty());
                    received += found.len() as u64;
                    missing += usize::from(found.iter().any(|found| !found.is_here));
                    for ReadAhead { queue, wanted } in std::mem::take(&mut core.reads) {
                        readings += 1;
                        let content = |(sequence, number)| (sequence, number, Bytes::from_static(b"content"));
                        core.have_read(queue, wanted.into_iter().map(content).collect());
                    }
                    for found in found {
                        let queue = &mut core.shelf.queues.get_mut(&QUEUE).expect("the queue").queue;
                        queue.apply_delete(found.message.receipt.sequence, NOW);
                        core.shelf.forget_dropped(QUEUE);
                    }
                }
                assert_eq!(missing, 1, "FIFO {is_fifo}, {count} at a time");
                assert!(readings <= 2 + 2 * BACKLOG as usize / READ_AHEAD_MESSAGES, "{readings} readings");
                assert_eq!(core.shelf.contents.bytes(), bytes);
            }
        }
    }

    #[test]
    fn what_was_deleted_while_it_was_read_is_not_kept() {
        let mut core = core(false);
        let (reply, _answer) = oneshot::channel();
        core.take(QueueRequest::Receive(QUEUE, Receive { count: 1, ..Receive::default() }, reply), NOW);
        let ahead = core.reads.pop().expect("it reads ahead");
        let queue = &mut core.shelf.queues.get_mut(&QUEUE).expect("the queue").queue;
        for (sequence, _) in &ahead.wanted {
            queue.apply_delete(*sequence, NOW);
        }
        let content = |(sequence, number)| (sequence, number, Bytes::from_static(b"content"));
        core.have_read(QUEUE, ahead.wanted.into_iter().map(content).collect());
        assert_eq!(core.shelf.contents.bytes(), 0);
    }
}
