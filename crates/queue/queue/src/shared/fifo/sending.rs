//! Sending to groups: an id is seen and its message is there by the same write.

use std::collections::BTreeMap;

use bytes::Bytes;
use futures::future::join_all;
use serde::{Deserialize, Serialize};

use super::group::GroupSeen;
use super::{BUSY, group_key};
use crate::contract::SentEach;
use crate::deduplication::DeduplicationKey;
use crate::ids::{Number, QueueId, Sequence};
use crate::limits::{CLAIM_MS, DEDUPLICATION_MS, GROUP_ATTEMPTS, GROUP_TTL_S, SETTLE_MS};
use crate::request::{QueueError, Send, Sent};
use crate::settings::Scope;
use crate::shared::rows::{Body, GroupKey};
use crate::shared::{KnownQueue, SharedFront};

/// A message on its way into a group.
pub(in crate::shared) struct Arrival {
    /// Its number, and whether its body is there.
    number: Number,
    is_put: bool,
    body: Body,
    key: Option<DeduplicationKey>,
    /// How long its id is seen, in seconds.
    seen_s: u32,
}

/// Which group a deduplication id belongs to, and since when, in JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct SendClaim {
    group: u64,
    at: u64,
}

/// Where an id's claim is. Each has a place of its own: conditional writes of one place wait for each other.
fn claim_space(queue: QueueId, key: &DeduplicationKey) -> String {
    let key: String = key.0.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("ids/{queue}/{key}")
}

const CLAIM: &str = "claim";

impl SharedFront {
    pub(in crate::shared) async fn send_fifo(
        &self,
        known: &KnownQueue,
        sends: Vec<Send>,
    ) -> Result<SentEach, QueueError> {
        let fifo = known.record().settings.fifo.unwrap_or_default();
        let mut groups: BTreeMap<GroupKey, (Vec<usize>, Vec<Arrival>)> = BTreeMap::new();
        let count = sends.len();
        for (place, send) in sends.into_iter().enumerate() {
            let name = send.group.as_deref().unwrap_or_default();
            let at = group_key(name);
            let key = send.deduplication.as_ref().map(|id| DeduplicationKey::new(fifo.scope, name, id));
            let number = self.numbers.next(&self.env, self.now())?;
            let body = Body { content: send.content, source: None, group: Some(at) };
            let (places, arrivals) = groups.entry(at).or_default();
            places.push(place);
            let seen_s = (DEDUPLICATION_MS / 1_000) as u32;
            arrivals.push(Arrival { number, is_put: false, body, key, seen_s });
        }
        let into_groups = groups.into_iter().map(async |(at, (places, arrivals))| {
            (places, self.send_to(known, at, arrivals, fifo.scope).await)
        });
        let mut sent: SentEach = vec![Err(BUSY); count];
        // Those of a group together.
        for (places, done) in join_all(into_groups).await {
            for (at, place) in places.into_iter().enumerate() {
                sent[place] = match &done {
                    Ok(seen) => seen.get(at).ok_or(BUSY).map(|GroupSeen { number, sequence }| Sent {
                        number: Number(*number),
                        generation: 0,
                        sequence: Sequence(*sequence),
                    }),
                    Err(error) => Err(error.clone()),
                };
            }
        }
        known.sent.notify_one();
        Ok(sent)
    }

    /// Sends messages to one group, but for those whose ids were seen, in this one or in another one; the message of
    /// each.
    async fn send_to(
        &self,
        known: &KnownQueue,
        at: GroupKey,
        arrivals: Vec<Arrival>,
        scope: Scope,
    ) -> Result<Vec<GroupSeen>, QueueError> {
        let _turn = known.turns.take(at).await;
        let began = self.now();
        let claims = arrivals.iter().map(async |arrival| match (scope, &arrival.key) {
            (Scope::Queue, Some(key)) => self.claim(known, at, key).await,
            _ => Ok(None),
        });
        let elsewhere = join_all(claims).await.into_iter().collect::<Result<Vec<Option<GroupSeen>>, _>>()?;
        let (mut here, mut places) = (Vec::new(), Vec::new());
        for (arrival, seen) in arrivals.into_iter().zip(&elsewhere) {
            places.push(seen.is_none().then_some(here.len()));
            here.extend(seen.is_none().then_some(arrival));
        }
        let sent = self.append(known, at, here, began).await?;
        let all = places.into_iter().zip(elsewhere);
        Ok(all.filter_map(|(place, seen)| place.map_or(seen, |place| sent.get(place).copied())).collect())
    }

    /// Makes sure that an id belongs to this group for as long as it can be seen; or the message that another group has
    /// seen it with.
    async fn claim(
        &self,
        known: &KnownQueue,
        at: GroupKey,
        key: &DeduplicationKey,
    ) -> Result<Option<GroupSeen>, QueueError> {
        let space = claim_space(known.id, key);
        for _ in 0..GROUP_ATTEMPTS {
            let now = self.now();
            let ours =
                Bytes::from(serde_json::to_vec(&SendClaim { group: at.0, at: now }).expect("plain data"));
            let ttl_s = (CLAIM_MS / 1_000) as u32;
            let Some(record) = self.rows.record(&space, CLAIM).await? else {
                if self.rows.write_record(&space, CLAIM, Some(ours), None, ttl_s).await? {
                    return Ok(None);
                }
                continue;
            };
            let claim: SendClaim = serde_json::from_slice(&record.value)
                .map_err(|error| QueueError::Unavailable(format!("a claim makes no sense: {error}")))?;
            // What is sent by it now is seen for as long as it lasts.
            let is_young = now < claim.at + CLAIM_MS / 4;
            if claim.group == at.0 && is_young {
                return Ok(None);
            }
            if claim.group != at.0 {
                let other = GroupKey(claim.group);
                let (_, seen) = self.state(known, other, std::slice::from_ref(key)).await?;
                if let Some(seen) = seen.get(key) {
                    return Ok(Some(*seen));
                }
                // Who had it while it was young may still be about to send; what is older can't happen any more after a
                // write.
                let is_old = now >= claim.at + CLAIM_MS / 4 + SETTLE_MS + self.config.skew_ms;
                let group = self.group(known, other).await?;
                if !is_old || !self.write(known, other, group).await? {
                    return Err(QueueError::Unavailable(
                        "a message with this deduplication id is being sent to another group".to_owned(),
                    ));
                }
                // What came just before that write is known now.
                let (_, seen) = self.state(known, other, std::slice::from_ref(key)).await?;
                if let Some(seen) = seen.get(key) {
                    return Ok(Some(*seen));
                }
            }
            let version = Some(record.version);
            if self.rows.write_record(&space, CLAIM, Some(ours), version, ttl_s).await? {
                return Ok(None);
            }
        }
        Err(BUSY)
    }

    /// Puts messages behind the others of a group, in their order, but for those whose ids it has seen; their claims
    /// were looked at after `began`.
    async fn append(
        &self,
        known: &KnownQueue,
        at: GroupKey,
        mut arrivals: Vec<Arrival>,
        began: u64,
    ) -> Result<Vec<GroupSeen>, QueueError> {
        let keys: Vec<DeduplicationKey> = arrivals.iter().filter_map(|arrival| arrival.key).collect();
        let delay_ms = u64::from(known.record().settings.delay_s) * 1_000;
        for _ in 0..GROUP_ATTEMPTS {
            let (mut group, mut seen) = self.state(known, at, &keys).await?;
            // A claim is good for longer than this, and a body that is in no group is not deleted before. Behind the
            // read: whoever makes what is too late fail changes the group after that time.
            if self.now() > began + SETTLE_MS {
                break;
            }
            let mut sent = Vec::with_capacity(arrivals.len());
            for arrival in &mut arrivals {
                let known_as = arrival.key.as_ref().and_then(|key| seen.get(key).copied());
                if let Some(known_as) = known_as {
                    if std::mem::take(&mut arrival.is_put) && known_as.number != arrival.number.0 {
                        // It was not seen before the body was put. If this fails the sweeper does it.
                        let place = known.body_at(arrival.number);
                        let _ = self.rows.delete_body(super::LEVEL, place, arrival.number).await;
                    }
                    sent.push(known_as);
                    continue;
                }
                if !arrival.is_put {
                    arrival.number = self.put_body_in_time(known, arrival.number, &arrival.body).await?;
                    arrival.is_put = true;
                }
                let key = arrival.key.as_ref().map(|key| (key, arrival.seen_s));
                let appended = group.append(arrival.number, self.now() + delay_ms, key);
                seen.extend(arrival.key.map(|key| (key, appended)));
                sent.push(appended);
            }
            let count =
                sent.iter().zip(&arrivals).filter(|(sent, arrival)| sent.number == arrival.number.0).count();
            if !group.is_changed() || self.write(known, at, group).await? {
                known.happened.lock().sent += count as u64;
                return Ok(sent);
            }
        }
        Err(BUSY)
    }

    /// Puts a message that comes from another queue behind the others of a group. Done again it is done once, however
    /// late: `mark` says what it is.
    pub(in crate::shared) async fn put_in_group(
        &self,
        known: &KnownQueue,
        at: GroupKey,
        body: Body,
        mark: &str,
    ) -> Result<(), QueueError> {
        let number = self.numbers.next(&self.env, self.now())?;
        let key = Some(DeduplicationKey::new(Scope::Group, "", mark));
        let body = Body { group: Some(at), ..body };
        // Who brings it may die, and nobody receive there for as long as it is kept.
        let arrival = Arrival { number, is_put: false, body, key, seen_s: GROUP_TTL_S };
        self.append(known, at, vec![arrival], self.now()).await?;
        known.sent.notify_one();
        Ok(())
    }
}

const _: () = assert!(CLAIM_MS / 4 >= DEDUPLICATION_MS && SETTLE_MS < DEDUPLICATION_MS / 4);
