//! Receiving from groups: the one whose tuple is the oldest first, as much of it as is wanted, then the next.

use bytes::Bytes;
use futures::future::try_join_all;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tailwater_env::HashSet;

use super::group::{Group, GroupListed, GroupReceived, GroupSlot, Want};
use super::{BUSY, LEVEL};
use crate::ids::{Number, QueueId, Receipt, Sequence, Token};
use crate::limits::{ATTEMPT_MS, GROUP_ATTEMPTS, GROUPS_READ, SETTLE_MS};
use crate::request::{Message, QueueError};
use crate::shared::numbers::sent_at;
use crate::shared::receiving;
use crate::shared::rows::{Body, GroupKey, Tuple};
use crate::shared::{KnownQueue, SharedFront};

/// What an attempt has received, in JSON: group, sequence and token of each.
#[derive(Debug, Serialize, Deserialize)]
struct ReceiveAttempt(Vec<(u64, u64, u32)>);

/// Where an attempt is.
fn attempt_space(queue: QueueId, attempt: &str) -> String {
    let hash: String = Sha256::digest(attempt)[..16].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("attempts/{queue}/{hash}")
}

const ATTEMPT: &str = "attempt";

impl SharedFront {
    /// Receives what is visible, without waiting.
    pub(in crate::shared) async fn receive_fifo(
        &self,
        known: &KnownQueue,
        want: receiving::Want,
    ) -> Result<Vec<Message>, QueueError> {
        let mut messages = Vec::new();
        let mut tried: HashSet<(u64, Number)> = HashSet::default();
        loop {
            let now = self.now();
            self.refresh(known, now).await?;
            let tuples = self.oldest(known, now, GROUPS_READ).await?;
            let mut is_new = false;
            for tuple in tuples {
                if !tried.insert((tuple.visible_at, tuple.number)) {
                    continue;
                }
                is_new = true;
                let left = receiving::Want { count: want.count - messages.len(), ..want };
                match self.receive_from(known, tuple, left).await {
                    Ok(received) => messages.extend(received),
                    // What was received is handed out.
                    Err(_) if !messages.is_empty() => return Ok(messages),
                    Err(error) => return Err(error),
                }
                if messages.len() == want.count {
                    return Ok(messages);
                }
            }
            if !is_new || !messages.is_empty() {
                return Ok(messages);
            }
        }
    }

    /// Receives from the group of a tuple.
    async fn receive_from(
        &self,
        known: &KnownQueue,
        tuple: Tuple,
        want: receiving::Want,
    ) -> Result<Vec<Message>, QueueError> {
        let at = GroupKey(tuple.number.0);
        let _turn = known.turns.take(at).await;
        let record = known.record();
        let redrive = record.settings.redrive.as_ref();
        let target = match redrive {
            Some(redrive) => self.dead_letters(known, &redrive.target).await?,
            None => None,
        };
        for _ in 0..GROUP_ATTEMPTS {
            let mut group = self.group(known, at).await?;
            let listed = GroupListed { visible_at: tuple.visible_at, moves: tuple.moves };
            if group.state.tuple.map(|tuple| tuple.visible_at) != Some(listed.visible_at) {
                self.forget_tuple(known, at, listed, group).await?;
                return Ok(Vec::new());
            }
            let now = self.now();
            let want = Want {
                count: want.count,
                visibility_ms: want.visibility_ms,
                token: Token(self.env.random_below(1 << 32) as u32),
                kept_ms: known.kept_ms(),
                receives_max: target.as_ref().and(redrive.map(|redrive| redrive.receives_max)),
            };
            if let Some(target) = &target {
                let overdue = group.claim(now, now + SETTLE_MS, &want);
                if !overdue.is_empty() {
                    if !self.write(known, at, group).await? {
                        continue;
                    }
                    self.bring(known, target, at, &overdue).await?;
                    // The next of the group, if it is visible, has a tuple of its own now.
                    return Ok(Vec::new());
                }
            }
            let received = group.receive(now, &want);
            let bodies = received.taken.iter().map(|slot| {
                let number = Number(slot.number);
                self.rows.body(LEVEL, known.body_at(number), number)
            });
            let mut messages = Vec::with_capacity(received.taken.len());
            let bodies = try_join_all(bodies).await?;
            for (slot, body) in received.taken.iter().zip(bodies) {
                match body {
                    Some(body) => messages.push(message(known.id, at, slot, body)),
                    // Purged: its body was there before it was in the group.
                    None => group.remove(Sequence(slot.sequence)),
                }
            }
            if !group.is_changed() {
                // Its first message is not visible, whatever the tuple says; or there is none.
                group.list_again();
            }
            if self.write(known, at, group).await? {
                count(known, &received);
                self.forget_bodies(known, &received.expired).await;
                return Ok(messages);
            }
        }
        Err(BUSY)
    }

    /// A tuple was found that its group does not have.
    async fn forget_tuple(
        &self,
        known: &KnownQueue,
        at: GroupKey,
        listed: GroupListed,
        group: Group,
    ) -> Result<(), QueueError> {
        if u64::from(listed.moves) > group.version {
            // The write that it was put for may be under way. If it takes too long it is made to fail.
            let is_old = listed.visible_at + SETTLE_MS + self.config.skew_ms <= self.now();
            if !is_old || !self.write(known, at, group).await? {
                return Ok(());
            }
        }
        self.unlist(known, at, listed).await
    }

    /// The FIFO queue that messages go to which were received too often.
    async fn dead_letters(
        &self,
        known: &KnownQueue,
        name: &str,
    ) -> Result<Option<std::sync::Arc<KnownQueue>>, QueueError> {
        let found = self.directory.find(self, &known.record().account, name).await?;
        let found = found.filter(|(view, _)| view.id != known.id && view.record().settings.fifo.is_some());
        match found {
            Some((view, _)) => Ok(Some(self.known(&view).await?)),
            None => Ok(None),
        }
    }

    /// Brings messages to the dead-letter queue that were claimed for it, before they go here. While they are claimed
    /// nobody deletes them; when that is over, because this took long or ended in between, somebody else claims them.
    async fn bring(
        &self,
        known: &KnownQueue,
        target: &KnownQueue,
        at: GroupKey,
        claimed: &[GroupSlot],
    ) -> Result<(), QueueError> {
        for slot in claimed {
            self.copy_to(known, target, at, slot).await?;
        }
        for _ in 0..GROUP_ATTEMPTS {
            let mut group = self.group(known, at).await?;
            let taken = group.take_claimed(claimed);
            if taken.is_empty() || self.write(known, at, group).await? {
                known.happened.lock().redriven += taken.len() as u64;
                self.forget_bodies(known, &taken).await;
                return Ok(());
            }
        }
        Err(BUSY)
    }

    /// Puts a message into the dead-letter queue, in the same group. If it is still here later it is done again, once.
    async fn copy_to(
        &self,
        known: &KnownQueue,
        target: &KnownQueue,
        at: GroupKey,
        slot: &GroupSlot,
    ) -> Result<(), QueueError> {
        let number = Number(slot.number);
        let Some(body) = self.rows.body(LEVEL, known.body_at(number), number).await? else { return Ok(()) };
        let origin = body.source.map_or(number, |(_, origin)| origin);
        let source = Some((known.record().name.clone(), origin));
        let body = Body { content: body.content, source, group: None };
        self.put_in_group(target, at, body, &format!("from {}/{}", known.id, slot.sequence)).await
    }

    /// What an attempt has received, invisible from now on again, if all of it is still in flight by that receive.
    pub(in crate::shared) async fn receive_again(
        &self,
        known: &KnownQueue,
        attempt: &str,
        visibility_ms: u64,
    ) -> Result<Option<Vec<Message>>, QueueError> {
        let space = attempt_space(known.id, attempt);
        let Some(record) = self.rows.record(&space, ATTEMPT).await? else { return Ok(None) };
        let Ok(ReceiveAttempt(taken)) = serde_json::from_slice(&record.value) else { return Ok(None) };
        let mut messages = Vec::with_capacity(taken.len());
        for group_taken in taken.chunk_by(|one, other| one.0 == other.0) {
            let at = GroupKey(group_taken[0].0);
            let _turn = known.turns.take(at).await;
            let mut is_written = false;
            for _ in 0..GROUP_ATTEMPTS {
                let mut group = self.group(known, at).await?;
                let now = self.now();
                let before = messages.len();
                for (_, sequence, token) in group_taken {
                    let (sequence, token) = (Sequence(*sequence), Token(*token));
                    if group.change(sequence, token, visibility_ms, now).is_err() {
                        return Ok(None);
                    }
                    let slot = *group.slot(sequence).expect("it was changed");
                    let number = Number(slot.number);
                    let body = self.rows.body(LEVEL, known.body_at(number), number).await?;
                    let Some(body) = body else { return Ok(None) };
                    messages.push(message(known.id, at, &slot, body));
                }
                is_written = self.write(known, at, group).await?;
                if is_written {
                    break;
                }
                messages.truncate(before);
            }
            if !is_written {
                return Err(BUSY);
            }
        }
        Ok(Some(messages))
    }

    /// Notes what an attempt has received. A front end that dies before this has received it for nobody until its
    /// timeout is over.
    pub(in crate::shared) async fn remember_attempt(
        &self,
        known: &KnownQueue,
        attempt: &str,
        messages: &[Message],
    ) -> Result<(), QueueError> {
        let space = attempt_space(known.id, attempt);
        let of = |receipt: &Receipt| (receipt.place, receipt.sequence.0, receipt.token.0);
        let taken = ReceiveAttempt(messages.iter().map(|message| of(&message.receipt)).collect());
        let value = Bytes::from(serde_json::to_vec(&taken).expect("it is plain data"));
        let version = self.rows.record(&space, ATTEMPT).await?.map(|record| record.version);
        let ttl_s = (ATTEMPT_MS / 1_000) as u32;
        self.rows.write_record(&space, ATTEMPT, Some(value), version, ttl_s).await?;
        Ok(())
    }
}

fn count(known: &KnownQueue, received: &GroupReceived) {
    let mut happened = known.happened.lock();
    happened.received += received.taken.len() as u64;
    // Its timeout, or the end of a change of visibility: nobody deleted it.
    happened.timeouts += received.taken.iter().filter(|slot| slot.receives > 1).count() as u64;
    happened.expired += received.expired.len() as u64;
}

fn message(queue: QueueId, at: GroupKey, slot: &GroupSlot, body: Body) -> Message {
    let number = Number(slot.number);
    let origin = body.source.as_ref().map_or(number, |(_, origin)| *origin);
    Message {
        receipt: Receipt { queue, sequence: Sequence(slot.sequence), token: Token(slot.token), place: at.0 },
        number: origin,
        generation: 0,
        sent_at: sent_at(origin),
        first_received_at: slot.first_received_at,
        visible_at: slot.visible_at,
        receives: slot.receives,
        source: body.source.map(|(source, _)| source.into()),
        content: body.content,
    }
}
