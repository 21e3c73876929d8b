//! The task of a segment that is written: from its first entry to the end of its ledger.
//!
//! 1. It waits until everything of the shard's segment before it is acknowledged. If that segment is given up, so
//!    is this one, and nothing of it was sent.
//! 2. It makes a ledger, and then has it confirmed that this process may write: whoever takes over later finds the
//!    ledger, and shuts the process out. That may take some tries, and then what was appended is given up.
//! 3. It hands entries to the ledger's writer, and tells of what is acknowledged. Where the writer fails,
//!    everything that is not acknowledged is given up.
//! 4. It waits for the segment to be sealed, deleted or discarded, and closes, recovers or deletes the ledger, however
//!    long that takes.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures::stream::FuturesOrdered;
use futures::{FutureExt, StreamExt};
use tailwater_bookkeeper::digest::DigestKind;
use tailwater_bookkeeper::{EntryId, LedgerFault, LedgerId, LedgerOptions, LedgerWriter, Quorums};
use tailwater_env::Instant;
use tailwater_store::{SegmentWatch, WriteRightFault};
use tokio::sync::mpsc;

use crate::cache::HeldEntry;
use crate::held::{Command, HeldSegment, LedgerAppend, UnfinishedLedger, WrittenLedger};
use crate::limits::{CREATE_PATIENCE, RETRY, SENT_BYTES_MAX};
use crate::names::{PASSWORD, custom_of};
use crate::store::LedgersShared;

/// What becomes of the ledger, until it is done.
enum LedgerEnd {
    Close(UnfinishedLedger),
    Delete(UnfinishedLedger),
    Discard,
}

impl LedgerEnd {
    /// What becomes of a ledger whose segment goes.
    fn of_deletion(command: Command) -> Option<Self> {
        match command {
            Command::Delete(unfinished) => Some(Self::Delete(unfinished)),
            Command::Discard => Some(Self::Discard),
            Command::Append(_) | Command::Seal(_) => None,
        }
    }
}

/// Why nothing more is written.
enum Stopped {
    /// The segment was ended: with the writer, if everything that was handed to it is acknowledged.
    Ended(LedgerEnd, Option<LedgerWriter>),
    /// What is not acknowledged is given up; whoever appended is told why, unless the segment before has told it.
    GivenUp(Option<String>),
}

/// The task's state.
pub(crate) struct SegmentWriting {
    pub(crate) shared: Arc<LedgersShared>,
    pub(crate) held: Arc<HeldSegment>,
    pub(crate) quorums: Quorums,
    /// Regions that every ack quorum is to be in.
    pub(crate) min_regions: usize,
    /// The shard's segment before it, if that may not be settled.
    pub(crate) previous: Option<Arc<HeldSegment>>,
    pub(crate) commands: mpsc::UnboundedReceiver<Command>,
    pub(crate) watch: Arc<dyn SegmentWatch>,
}

impl SegmentWriting {
    /// The whole of it.
    pub(crate) async fn run(mut self) {
        let (end, writer) = match self.write().await {
            Stopped::Ended(end, writer) => (end, writer),
            Stopped::GivenUp(why) => {
                let was_over = self.held.change(|state| std::mem::replace(&mut state.is_over, true));
                // Of what is deleted meanwhile nobody wants to know.
                if let Some(why) = why.filter(|_| !was_over) {
                    self.shared.counters.given_up.fetch_add(1, Ordering::Relaxed);
                    self.watch.lost(&why);
                }
                match self.end_of_given_up().await {
                    Some(end) => (end, None),
                    None => return,
                }
            }
        };
        let ledger = self.held.state.lock().ledger;
        let end = match (end, ledger) {
            (LedgerEnd::Close(unfinished), Some(ledger)) => self.close(ledger, writer, unfinished).await,
            (LedgerEnd::Close(_), None) => None,
            (end, _) => Some(end),
        };
        // Whoever comes later does it without this task.
        self.commands.close();
        let late = std::iter::from_fn(|| self.commands.try_recv().ok()).find_map(LedgerEnd::of_deletion);
        match (late.or(end), ledger) {
            (Some(LedgerEnd::Delete(_unfinished)), Some(ledger)) => self.shared.delete_ledger(ledger).await,
            (Some(LedgerEnd::Discard), Some(ledger)) => self.shared.discard_ledger(ledger).await,
            _ => {}
        }
    }

    async fn write(&mut self) -> Stopped {
        if let Some(previous) = self.previous.take()
            && !previous.is_settled().await
        {
            return Stopped::GivenUp(None);
        }
        match self.create().await {
            Ok(writer) => self.pump(writer).await,
            Err(why) => Stopped::GivenUp(why),
        }
    }

    /// A ledger, or why there is none, if anybody wants to know.
    async fn create(&self) -> Result<LedgerWriter, Option<String>> {
        let shared = &self.shared;
        let mut options = LedgerOptions {
            quorums: self.quorums,
            digest: DigestKind::Crc32c,
            password: PASSWORD.into(),
            custom: custom_of(shared.cluster, &self.held.id, self.min_regions),
        };
        let begun = shared.env.now();
        loop {
            match shared.client.create(&options).await {
                Ok(writer) => {
                    if options.quorums != self.quorums {
                        shared.counters.begun_short.fetch_add(1, Ordering::Relaxed);
                        let (ledger, has, wanted) = (writer.ledger(), options.quorums, self.quorums);
                        tracing::warn!(%ledger, %has, %wanted, "a segment has fewer copies than its stream wants: add bookies");
                    }
                    let (metadata, wanted) = (writer.watch_metadata(), self.quorums.write());
                    // There is one ledger for each segment that is written.
                    let _ = self.held.written.set(WrittenLedger { metadata, wanted });
                    self.held.change(|state| state.ledger = Some(writer.ledger()));
                    return self.confirm(begun).await.map(|()| writer);
                }
                Err(_) if self.held.state.lock().is_over => return Err(None),
                // The stream goes on with fewer copies as long as enough can acknowledge.
                Err(LedgerFault::TooFewBookies { have, .. }) if have >= self.quorums.ack() => {
                    options.quorums = self.quorums.within(have);
                    continue;
                }
                Err(fault) => {
                    options.quorums = self.quorums;
                    let why = format!("no ledger for segment {}: {fault}", self.held.id);
                    shared.note_trouble(&why);
                    if shared.env.now().since(begun) >= CREATE_PATIENCE {
                        return Err(Some(why));
                    }
                }
            }
            shared.env.sleep(RETRY).await;
        }
    }

    /// Has it confirmed that the ledger was made while this process had the right to write.
    async fn confirm(&self, begun: Instant) -> Result<(), Option<String>> {
        let shared = &self.shared;
        loop {
            let (why, is_final) = match shared.right.confirm(Some(&self.held.id)).await {
                Ok(()) => return Ok(()),
                Err(WriteRightFault::Lost(why)) => (why, true),
                Err(WriteRightFault::Unknown(why)) => (why, false),
            };
            let why = format!("no ledger for segment {}: {why}", self.held.id);
            shared.note_trouble(&why);
            if is_final || shared.env.now().since(begun) >= CREATE_PATIENCE {
                return Err(Some(why));
            }
            shared.env.sleep(RETRY).await;
        }
    }

    async fn pump(&mut self, writer: LedgerWriter) -> Stopped {
        let ledger = writer.ledger();
        let mut acks = FuturesOrdered::new();
        let mut sent_bytes = 0;
        loop {
            tokio::select! {
                biased;
                Some(acked) = acks.next(), if !acks.is_empty() => {
                    let mut next = Some(acked);
                    let mut upto = None;
                    let mut failed = None;
                    while let Some((result, appended)) = next {
                        match self.acknowledged(ledger, result, &appended) {
                            Ok(()) => upto = Some(appended.place),
                            Err(fault) => {
                                failed = Some(fault);
                                break;
                            }
                        }
                        sent_bytes -= appended.bytes.len();
                        next = acks.next().now_or_never().flatten();
                    }
                    // One piece of news for all that came together.
                    if let Some(upto) = upto {
                        self.shared.note_health();
                        self.watch.durable(upto);
                    }
                    if let Some(fault) = failed {
                        return self.given_up(ledger, &fault);
                    }
                }
                command = self.commands.recv(), if sent_bytes < SENT_BYTES_MAX => match command {
                    Some(Command::Append(appended)) => {
                        sent_bytes += appended.bytes.len();
                        match writer.send(appended.bytes.clone()).await {
                            Ok(pending) => acks.push_back(async move { (pending.acknowledged().await, appended) }),
                            Err(fault) => return self.given_up(ledger, &fault),
                        }
                    }
                    Some(Command::Seal(unfinished)) => {
                        return Stopped::Ended(LedgerEnd::Close(unfinished), acks.is_empty().then_some(writer));
                    }
                    Some(Command::Delete(unfinished)) => {
                        return Stopped::Ended(LedgerEnd::Delete(unfinished), None);
                    }
                    Some(Command::Discard) => return Stopped::Ended(LedgerEnd::Discard, None),
                    None => return Stopped::GivenUp(None),
                },
            }
        }
    }

    /// Takes in how an append ended.
    fn acknowledged(
        &self,
        ledger: LedgerId,
        result: Result<EntryId, LedgerFault>,
        appended: &LedgerAppend,
    ) -> Result<(), LedgerFault> {
        let entry = result?;
        let point = &appended.point;
        assert_eq!(entry.get(), point.entry, "{}: entries are acknowledged in their order", self.held.id);
        let held = HeldEntry { position: point.position, bytes: appended.bytes.clone() };
        self.shared.counters.entries.fetch_add(1, Ordering::Relaxed);
        // Before readers may ask for it.
        self.shared.cache.put(ledger, point.entry, held);
        self.held.change(|state| {
            if state.sealed.is_none() {
                state.durable.advance(point.end, state.appended);
                state.entries = point.entry + 1;
                assert!(
                    state.entries <= state.taken,
                    "{}: more is acknowledged than was taken",
                    self.held.id
                );
            }
        });
        Ok(())
    }

    fn given_up(&self, ledger: LedgerId, fault: &LedgerFault) -> Stopped {
        let why = format!("ledger {ledger} of segment {}: {fault}", self.held.id);
        if *fault != LedgerFault::Fenced {
            self.shared.note_trouble(&why);
        }
        Stopped::GivenUp(Some(why))
    }

    /// What becomes of a segment that was given up; entries that come meanwhile are, too.
    async fn end_of_given_up(&mut self) -> Option<LedgerEnd> {
        loop {
            match self.commands.recv().await? {
                Command::Append(_) => {}
                Command::Seal(unfinished) => return Some(LedgerEnd::Close(unfinished)),
                deletion => return LedgerEnd::of_deletion(deletion),
            }
        }
    }

    /// Closes the ledger, by its writer or, where that can't, as anybody could. A ledger is closed behind its segment's
    /// length where entries that were given up are in it: nobody reads them. Answers a deletion that came meanwhile.
    async fn close(
        &mut self,
        ledger: LedgerId,
        writer: Option<LedgerWriter>,
        _unfinished: UnfinishedLedger,
    ) -> Option<LedgerEnd> {
        if let Some(writer) = writer {
            match writer.close().await {
                Ok(_) => return None,
                Err(fault) => {
                    tracing::warn!(%ledger, %fault, "its writer does not close it; it is recovered")
                }
            }
        }
        loop {
            match self.shared.client.recover(ledger, PASSWORD).await {
                Ok(_) | Err(LedgerFault::NoLedger) => return None,
                Err(fault) => tracing::warn!(%ledger, %fault, "it is not closed yet"),
            }
            tokio::select! {
                biased;
                command = self.commands.recv() => match command {
                    Some(command) => {
                        if let Some(end) = LedgerEnd::of_deletion(command) {
                            return Some(end);
                        }
                    }
                    None => return None,
                },
                () = self.shared.env.sleep(RETRY) => {}
            }
        }
    }
}
