//! How the store is opened: what is there is found, whoever wrote it is shut out, and its end is found.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures::future::join_all;
use futures::{StreamExt, stream};
use parking_lot::Mutex;
use tailwater_bookkeeper::{
    BookKeeper, BookiePlaces, EntryId, LedgerFault, LedgerId, LedgerMetadata, LedgerStatus, LedgerTimes,
    LedgersSecurity, LedgersUri, Quorums, VersionedMetadata,
};
use tailwater_env::{BoxFuture, Env, Progress};
use tailwater_format::{Position, SegmentId, ShardId, StreamId, parse_entry_header};
use tailwater_store::{
    IndexContents, OpenSegments, OpenedSegments, RawHeader, RecoveredSegment, ShardTakeOver, StoreContract,
    WriteRight, WriteRightFault,
};
use uuid::Uuid;

use crate::held::HeldSegment;
use crate::limits::{LEDGERS_AT_A_TIME, RETRY, UNREAD_MAX};
use crate::names::{PASSWORD, segment_of};
use crate::store::{LedgerStore, LedgersShared};

/// A store of segments in ledgers, to be opened.
#[derive(Clone, Debug)]
pub struct LedgerOpening {
    /// Where BookKeeper's metadata are.
    pub uri: LedgersUri,
    /// How its servers are reached.
    pub security: LedgersSecurity,
    /// Of the ledgers of new segments.
    pub quorums: Quorums,
    /// Where bookies are.
    pub places: BookiePlaces,
    /// The client's times.
    pub times: LedgerTimes,
}

impl OpenSegments for LedgerOpening {
    fn open<'a>(
        &'a self,
        env: &'a Env,
        right: Arc<dyn WriteRight>,
        cluster: Uuid,
        recorded: &'a (dyn Fn(&SegmentId) -> bool + Sync),
        progress: &'a Progress,
    ) -> BoxFuture<'a, Result<OpenedSegments, String>> {
        Box::pin(self.open_ledgers(env, right, cluster, recorded, progress))
    }

    fn open_shared<'a>(
        &'a self,
        env: &'a Env,
        right: Arc<dyn WriteRight>,
        cluster: Uuid,
        progress: &'a Progress,
    ) -> BoxFuture<'a, Result<Arc<dyn StoreContract>, String>> {
        Box::pin(async move { Ok(self.share_ledgers(env, right, cluster, progress).await) })
    }
}

/// A ledger of one of our segments.
struct FoundLedger {
    id: SegmentId,
    ledger: LedgerId,
    metadata: LedgerMetadata,
}

/// A ledger that is closed.
struct ClosedLedger {
    id: SegmentId,
    ledger: LedgerId,
    entries: i64,
    length: Position,
    contents: Option<IndexContents>,
    damaged: Option<String>,
}

impl LedgerOpening {
    async fn open_ledgers(
        &self,
        env: &Env,
        right: Arc<dyn WriteRight>,
        cluster: Uuid,
        recorded: &(dyn Fn(&SegmentId) -> bool + Sync),
        progress: &Progress,
    ) -> Result<OpenedSegments, String> {
        let client = self.reach(env, progress).await;
        progress.begin("ledgers that are looked for", 0);
        let unread = UnreadLedgers::default();
        let found = until_done(env, "ledgers", || find(&client, cluster, &unread, &|_| true)).await;
        // Among what was listed before another process took over is nothing of that one's.
        until_done(env, "the right to write", || async {
            match right.confirm(None).await {
                Ok(()) => Ok(Ok(())),
                Err(WriteRightFault::Lost(why)) => Ok(Err(why)),
                Err(WriteRightFault::Unknown(why)) => Err(why),
            }
        })
        .await?;
        progress.begin("ledgers", found.len() as u64);
        let shared = LedgersShared::new(env.clone(), client, right, cluster, self.quorums);
        let store = LedgerStore::new(shared);
        let segments = store.adopt(found, recorded, progress).await;
        tracing::info!(ledgers = segments.len(), "the segments of {} are open", self.uri);
        Ok((Arc::new(store), segments))
    }

    /// The client, once enough of BookKeeper is there.
    async fn reach(&self, env: &Env, progress: &Progress) -> BookKeeper {
        progress.begin("the wait for ZooKeeper", 0);
        let client = until_done(env, "ZooKeeper", || self.connect(env)).await;
        progress.begin("the wait for bookies", 0);
        until_done(env, "bookies", || self.enough_bookies(&client)).await;
        client
    }

    async fn share_ledgers(
        &self,
        env: &Env,
        right: Arc<dyn WriteRight>,
        cluster: Uuid,
        progress: &Progress,
    ) -> Arc<dyn StoreContract> {
        let client = self.reach(env, progress).await;
        Arc::new(LedgerStore::new(LedgersShared::new(env.clone(), client, right, cluster, self.quorums)))
    }

    async fn connect(&self, env: &Env) -> Result<BookKeeper, String> {
        let connected =
            BookKeeper::connect_with(env.clone(), self.uri.clone(), self.security.clone(), self.times).await;
        let connected = connected.map_err(|fault| format!("{}: {fault}", self.uri))?;
        Ok(connected.with_places(self.places.clone()))
    }

    /// Whether so many bookies take entries that something may be acknowledged.
    async fn enough_bookies(&self, client: &BookKeeper) -> Result<(), String> {
        let bookies = client.ledgers().bookies().await.map_err(|fault| format!("{}: {fault}", self.uri))?;
        let (have, need) = (bookies.len(), self.quorums.ack());
        if have < need {
            return Err(format!("{}: {have} bookies take entries, and {need} have to", self.uri));
        }
        Ok(())
    }
}

/// What `try_it` answers once it works; until then the log tells why it does not.
async fn until_done<T, F: Future<Output = Result<T, String>>>(
    env: &Env,
    what: &str,
    mut try_it: impl FnMut() -> F,
) -> T {
    let mut told = None;
    loop {
        match try_it().await {
            Ok(done) => return done,
            Err(why) => {
                // Once for each reason: a wait may be long.
                if told.as_ref() != Some(&why) {
                    tracing::warn!("waiting for {what}: {why}");
                    told = Some(why);
                }
            }
        }
        env.sleep(RETRY).await;
    }
}

impl LedgerStore {
    /// Closes ledgers that were found, and has their segments. Where one segment has several, the longest is it.
    async fn adopt(
        &self,
        found: Vec<FoundLedger>,
        recorded: &(dyn Fn(&SegmentId) -> bool + Sync),
        progress: &Progress,
    ) -> Vec<RecoveredSegment> {
        let (env, client) = (&self.shared.env, &self.shared.client);
        let closing = found.into_iter().map(|found| async {
            let closed = close(env, client, found, recorded).await;
            progress.advance(1);
            closed
        });
        let closed = stream::iter(closing).buffered(LEDGERS_AT_A_TIME).filter_map(std::future::ready);
        let closed: Vec<ClosedLedger> = closed.collect().await;
        let (by_name, superfluous) = one_of_each(closed);
        let mut segments = Vec::new();
        for ClosedLedger { id, ledger, entries, length, contents, damaged } in by_name.into_values() {
            self.hold(HeldSegment::found(id, ledger, entries, length));
            segments.push(RecoveredSegment { id, length, contents, sealed: damaged.is_none(), damaged });
        }
        for ledger in superfluous {
            let shared = Arc::clone(&self.shared);
            let delete = async move { shared.delete_ledger(ledger).await };
            env.spawn("ledger-deletion", delete).detach();
        }
        segments
    }

    /// See [`StoreContract::take_over`].
    pub(crate) async fn take_over_shards<'a>(
        &'a self,
        shards: &BTreeSet<ShardId>,
        recorded: &'a (dyn Fn(&SegmentId) -> bool + Sync),
    ) -> BTreeMap<ShardId, ShardTakeOver<'a>> {
        let found = self.look_for(shards).await;
        self.taking_over(shards, found, recorded)
    }

    /// See [`StoreContract::take_over_again`].
    pub(crate) async fn take_over_shards_again<'a>(
        &'a self,
        shards: &BTreeSet<ShardId>,
        recorded: &'a (dyn Fn(&SegmentId) -> bool + Sync),
    ) -> BTreeMap<ShardId, ShardTakeOver<'a>> {
        let found = self.look_again(shards).await;
        self.taking_over(shards, found, recorded)
    }

    /// The ledgers of these shards among all that there are.
    async fn look_for(&self, shards: &BTreeSet<ShardId>) -> Vec<FoundLedger> {
        let shared = &self.shared;
        let of_these = |id: &SegmentId| shards.contains(&id.shard);
        let look = || find(&shared.client, shared.cluster, &shared.unread, &of_these);
        let found = until_done(&shared.env, "ledgers", look).await;
        let mut listed = self.listed.lock();
        listed.extend(shards.iter().map(|shard| (*shard, BTreeSet::new())));
        for FoundLedger { id, ledger, .. } in &found {
            listed.entry(id.shard).or_default().insert(*ledger);
        }
        found
    }

    /// The same among those that were found of these shards before, and those whose metadata could not be read.
    async fn look_again(&self, shards: &BTreeSet<ShardId>) -> Vec<FoundLedger> {
        let shared = &self.shared;
        let mut ledgers = shared.unread.all();
        let mut unlisted = BTreeSet::new();
        {
            let listed = self.listed.lock();
            for shard in shards {
                match listed.get(shard) {
                    Some(of_shard) => ledgers.extend(of_shard),
                    None => _ = unlisted.insert(*shard),
                }
            }
        }
        let mut found = match unlisted.is_empty() {
            true => Vec::new(),
            false => self.look_for(&unlisted).await,
        };
        let of_these = |id: &SegmentId| shards.contains(&id.shard) && !unlisted.contains(&id.shard);
        let look = || find_among(&shared.client, shared.cluster, &shared.unread, &ledgers, &of_these);
        let again = until_done(&shared.env, "ledgers", look).await;
        let mut listed = self.listed.lock();
        for FoundLedger { id, ledger, .. } in &again {
            listed.entry(id.shard).or_default().insert(*ledger);
        }
        found.extend(again);
        found
    }

    fn taking_over<'a>(
        &'a self,
        shards: &BTreeSet<ShardId>,
        found: Vec<FoundLedger>,
        recorded: &'a (dyn Fn(&SegmentId) -> bool + Sync),
    ) -> BTreeMap<ShardId, ShardTakeOver<'a>> {
        let mut of_shards: BTreeMap<ShardId, Vec<FoundLedger>> = BTreeMap::new();
        for ledger in found {
            of_shards.entry(ledger.id.shard).or_default().push(ledger);
        }
        let of_one = |shard: &ShardId| {
            let (shard, found) = (*shard, of_shards.remove(shard).unwrap_or_default());
            let taking: ShardTakeOver<'a> = Box::pin(async move {
                self.drop_segments(&shard);
                self.adopt(found, recorded, &Progress::default()).await
            });
            (shard, taking)
        };
        shards.iter().map(of_one).collect()
    }
}

impl LedgerStore {
    /// See [`StoreContract::delete_stream`].
    pub(crate) async fn delete_ledgers_of(&self, stream: StreamId) -> Result<(), String> {
        let shared = &self.shared;
        let of_stream = |id: &SegmentId| id.shard.stream == stream;
        let found = find(&shared.client, shared.cluster, &shared.unread, &of_stream).await?;
        let deletions = found.into_iter().map(|found| shared.delete_ledger(found.ledger));
        stream::iter(deletions).buffer_unordered(LEDGERS_AT_A_TIME).collect::<()>().await;
        Ok(())
    }
}

/// Ledgers whose metadata could not be read, when they were looked at last: at most [`UNREAD_MAX`] of them.
#[derive(Default)]
pub(crate) struct UnreadLedgers(Mutex<BTreeSet<LedgerId>>);

impl UnreadLedgers {
    fn all(&self) -> BTreeSet<LedgerId> {
        self.0.lock().clone()
    }

    fn note(&self, ledger: LedgerId, fault: &LedgerFault) {
        let mut unread = self.0.lock();
        if unread.len() < UNREAD_MAX && unread.insert(ledger) {
            tracing::warn!(
                %ledger, %fault,
                "its metadata can't be read, and it is passed over: if a shard misses it, have it as it was before, or upgrade"
            );
        }
    }

    fn forget(&self, ledger: LedgerId) {
        self.0.lock().remove(&ledger);
    }
}

/// The ledgers of this cluster's segments that are `wanted`.
async fn find(
    client: &BookKeeper,
    cluster: Uuid,
    unread: &UnreadLedgers,
    wanted: &(dyn Fn(&SegmentId) -> bool + Sync),
) -> Result<Vec<FoundLedger>, String> {
    let scan = client.ledgers().scan().await.map_err(|fault| fault.to_string())?;
    let scan = &scan;
    let look = |ledger| async move { (ledger, scan.read(ledger).await) };
    let ledgers = scan.ledgers().iter().copied();
    let mut looks = stream::iter(ledgers.map(look)).buffered(LEDGERS_AT_A_TIME);
    let mut found = Vec::new();
    while let Some((ledger, read)) = looks.next().await {
        found.extend(found_in(ledger, read, cluster, unread, wanted)?);
    }
    Ok(found)
}

/// The same among these ledgers alone.
async fn find_among(
    client: &BookKeeper,
    cluster: Uuid,
    unread: &UnreadLedgers,
    ledgers: &BTreeSet<LedgerId>,
    wanted: &(dyn Fn(&SegmentId) -> bool + Sync),
) -> Result<Vec<FoundLedger>, String> {
    let ledgers: Vec<LedgerId> = ledgers.iter().copied().collect();
    let mut found = Vec::new();
    for some in ledgers.chunks(LEDGERS_AT_A_TIME) {
        let mut reads = Vec::new();
        for ledger in some {
            reads.push(client.ledgers().read_latest(*ledger));
        }
        for (ledger, read) in some.iter().zip(join_all(reads).await) {
            found.extend(found_in(*ledger, read, cluster, unread, wanted)?);
        }
    }
    Ok(found)
}

/// A ledger that was read, if it is of a segment of this cluster that is `wanted`.
fn found_in(
    ledger: LedgerId,
    read: Result<VersionedMetadata, LedgerFault>,
    cluster: Uuid,
    unread: &UnreadLedgers,
    wanted: &(dyn Fn(&SegmentId) -> bool + Sync),
) -> Result<Option<FoundLedger>, String> {
    match read {
        Ok(VersionedMetadata { metadata, .. }) => {
            unread.forget(ledger);
            let id = segment_of(cluster, &metadata).filter(wanted);
            Ok(id.map(|id| FoundLedger { id, ledger, metadata }))
        }
        // Deleted since.
        Err(LedgerFault::NoLedger) => {
            unread.forget(ledger);
            Ok(None)
        }
        // Nothing that this program ever wrote, or it is damaged.
        Err(fault @ LedgerFault::Metadata(_)) => {
            unread.note(ledger, &fault);
            Ok(None)
        }
        Err(fault) => Err(format!("ledger {ledger}: {fault}")),
    }
}

/// A ledger with its end, which is found where it was left open; `None` if it is gone. Waits for bookies that are not
/// there.
async fn close(
    env: &Env,
    client: &BookKeeper,
    found: FoundLedger,
    recorded: &(dyn Fn(&SegmentId) -> bool + Sync),
) -> Option<ClosedLedger> {
    let FoundLedger { id, ledger, metadata } = found;
    let mut closed =
        ClosedLedger { id, ledger, entries: 0, length: Position(0), contents: None, damaged: None };
    let state = match metadata.state {
        LedgerStatus::Closed { .. } => Ok(metadata.state),
        _ => {
            let recover = || async {
                match client.recover(ledger, PASSWORD).await {
                    // Deleted since it was listed: an empty one by its maker, or one that another owner had no use for.
                    Err(LedgerFault::NoLedger) => gone_or_again(client, ledger).await,
                    recovered => final_or_again(ledger, recovered.map(|metadata| metadata.state)).map(Some),
                }
            };
            let state = until_done(env, "bookies", recover).await?;
            tracing::info!(segment = %id, %ledger, "its writer is shut out, and its end is found");
            state
        }
    };
    match state {
        Ok(LedgerStatus::Closed { last, length }) => {
            (closed.entries, closed.length) = (last.get() + 1, Position(length));
        }
        Ok(_) => closed.damaged = Some(format!("ledger {ledger} has no end")),
        Err(why) => closed.damaged = Some(why),
    }
    if closed.damaged.is_none() && closed.entries > 0 && !recorded(&id) {
        let read = || async {
            match contents_of(client, &id, ledger, closed.entries).await {
                Err(LedgerFault::NoLedger) => gone_or_again(client, ledger).await,
                read => final_or_again(ledger, read).map(|read| Some(read.and_then(|contents| contents))),
            }
        };
        match until_done(env, "bookies", read).await? {
            Ok(contents) => closed.contents = Some(contents),
            Err(why) => closed.damaged = Some(why),
        }
    }
    Some(closed)
}

/// The ledger of each segment, and those that are not needed. Where the answer of a ledger's creation was lost, another
/// one was made, which has the entries. Beside one that is damaged none is superfluous: which of them has the entries
/// is not known.
fn one_of_each(closed: Vec<ClosedLedger>) -> (BTreeMap<SegmentId, ClosedLedger>, Vec<LedgerId>) {
    let mut by_name: BTreeMap<SegmentId, ClosedLedger> = BTreeMap::new();
    let mut superfluous = Vec::new();
    for ledger in closed {
        let kept = match by_name.remove(&ledger.id) {
            None => ledger,
            Some(other) if other.damaged.is_some() => other,
            Some(_) if ledger.damaged.is_some() => ledger,
            Some(other) => {
                let (kept, left) =
                    if other.length >= ledger.length { (other, ledger) } else { (ledger, other) };
                superfluous.push(left.ledger);
                kept
            }
        };
        by_name.insert(kept.id, kept);
    }
    (by_name, superfluous)
}

/// `None` of a ledger that is not there, as the newest metadata say. What was read before may be older than the ledger:
/// one with acknowledged entries would be passed over.
async fn gone_or_again<T>(client: &BookKeeper, ledger: LedgerId) -> Result<Option<T>, String> {
    match client.ledgers().read_latest(ledger).await {
        Err(LedgerFault::NoLedger) => Ok(None),
        Ok(_) => Err(format!("ledger {ledger} was not found, and is there")),
        Err(fault) => Err(format!("ledger {ledger}: {fault}")),
    }
}

/// What no waiting changes is the inner error, and what another try may is the outer one.
fn final_or_again<T>(ledger: LedgerId, result: Result<T, LedgerFault>) -> Result<Result<T, String>, String> {
    let told = |fault: &LedgerFault| format!("ledger {ledger}: {fault}");
    match result {
        Ok(done) => Ok(Ok(done)),
        Err(
            fault @ (LedgerFault::Lost(_)
            | LedgerFault::Damaged(_)
            | LedgerFault::NoEntry(..)
            | LedgerFault::Unauthorized
            | LedgerFault::NoLedger
            | LedgerFault::Metadata(_)),
        ) => Ok(Err(told(&fault))),
        Err(fault) => Err(told(&fault)),
    }
}

/// The first and the last of so many entries of a closed ledger.
async fn contents_of(
    client: &BookKeeper,
    id: &SegmentId,
    ledger: LedgerId,
    entries: i64,
) -> Result<Result<IndexContents, String>, LedgerFault> {
    let reader = client.open(ledger, PASSWORD).await?;
    let first = reader.read(EntryId::FIRST).await?;
    let last = reader.read(EntryId::new(entries - 1)).await?;
    let contents = || {
        let header = parse_entry_header(&first.payload).map_err(|error| error.to_string())?;
        let last = RawHeader::of(&last.payload).map_err(|error| error.to_string())?;
        if header.segment_id() != *id || last.header().segment_id() != *id {
            return Err(format!("ledger {ledger} has entries of another segment"));
        }
        Ok(IndexContents { last, ..IndexContents::first(&header, last) })
    };
    Ok(contents())
}

#[cfg(test)]
mod tests {
    use tailwater_format::{SegmentNumber, ShardId, ShardNumber, StreamId, Term};

    use super::*;

    fn ledger(number: i64, segment: u64, length: u64, damaged: Option<&str>) -> ClosedLedger {
        let shard = ShardId { stream: StreamId(Uuid::from_u128(1)), shard: ShardNumber(0) };
        let id = SegmentId { shard, term: Term(1), number: SegmentNumber(segment) };
        let ledger = LedgerId::new(number).expect("a number");
        let damaged = damaged.map(str::to_owned);
        ClosedLedger { id, ledger, entries: 0, length: Position(length), contents: None, damaged }
    }

    #[test]
    fn of_two_ledgers_of_a_segment_the_one_with_entries_stays_and_beside_a_damaged_one_none_goes() {
        let whole = one_of_each(vec![ledger(1, 0, 0, None), ledger(2, 0, 90, None), ledger(3, 0, 0, None)]);
        let of = |number| LedgerId::new(number).expect("a number");
        assert_eq!(whole.0.values().map(|kept| kept.ledger).collect::<Vec<_>>(), [of(2)]);
        assert_eq!(whole.1, [of(1), of(3)]);
        for twins in [
            vec![ledger(1, 0, 0, None), ledger(2, 0, 0, Some("it can't be recovered"))],
            vec![ledger(2, 0, 0, Some("it can't be recovered")), ledger(1, 0, 90, None)],
        ] {
            let (kept, superfluous) = one_of_each(twins);
            assert!(superfluous.is_empty(), "{superfluous:?}");
            assert!(kept.values().all(|kept| kept.damaged.is_some()), "it is not taken for an empty one");
        }
    }
}
