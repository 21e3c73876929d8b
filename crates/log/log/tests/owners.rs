//! Processes that believe what they like of each other: whoever takes itself for a shard's owner, what is acknowledged
//! is there once and in order.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use common::members::{Member, World, all_owned, in_world, stream};
use common::{shard, values, values_of};
use futures::future::join_all;
use tailwater_format::StreamId;
use tailwater_log::ShardMember;
use tailwater_meta::Meta;
use tailwater_meta::testing::FailingMeta;

const MEMBERS: usize = 3;
const ROUNDS: usize = 16;
/// How long an append is waited for.
const PATIENCE: Duration = Duration::from_secs(1);
/// Shards that are written to.
const WRITTEN: u32 = 3;

/// Numbers that look random, the same in each run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        // splitmix64
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }
}

/// What was sent to each shard, in order, and what was answered.
#[derive(Default)]
struct Sent {
    acknowledged: BTreeMap<u32, Vec<String>>,
    unknown: BTreeSet<String>,
    next: u64,
    /// Who has acknowledged something of each shard.
    owners: BTreeMap<u32, BTreeSet<u64>>,
}

impl Sent {
    /// All members append to the same shard at once, each of which may take itself for its owner.
    async fn append_everywhere(&mut self, world: &World, members: &[Member], stream: StreamId, number: u32) {
        let appends = members.iter().map(|member| {
            let value = self.next.to_string();
            self.next += 1;
            async move {
                let append = member.append(stream, number, values(&[&value]));
                // Without metadata it may wait for long: what comes of it then is as unknown as after an error.
                let answer = world.env.timeout(PATIENCE, append).await;
                (member.member.owner, value, answer)
            }
        });
        for (owner, value, answer) in join_all(appends.collect::<Vec<_>>()).await {
            match answer {
                Some(Ok(_)) => {
                    self.acknowledged.entry(number).or_default().push(value);
                    self.owners.entry(number).or_default().insert(owner);
                }
                _ => _ = self.unknown.insert(value),
            }
        }
    }
}

/// One looks, and believes that these are there.
async fn look(world: &World, member: &mut Member, others: &[ShardMember]) {
    let mut there: Vec<ShardMember> = others.to_vec();
    there.retain(|other| other.id != member.member.id);
    there.push(member.member.clone());
    member.sharing.seen().look(world.env.now(), &there);
    // Metadata may be away from it.
    let _ = member.sharing.look(&there).await;
}

async fn run(world: World, seed: u64) {
    let mut numbers = Numbers(seed);
    let metas: Vec<Arc<FailingMeta>> = (0..MEMBERS).map(|_| FailingMeta::new(world.meta.meta())).collect();
    let id = |number: usize| format!("member-{number}");
    let mut members = Vec::new();
    for (number, meta) in metas.iter().enumerate() {
        members.push(world.start_on(&id(number), Arc::clone(meta) as Arc<dyn Meta>).await);
    }
    let stream = stream(&members[0]).await;
    world.look_until(&mut members.iter_mut().collect::<Vec<_>>(), all_owned).await;
    let mut sent = Sent::default();
    // Each shard has had two owners at least, of which the first one does not know of the second one.
    for number in 0..WRITTEN {
        while !sent.owners.contains_key(&number) {
            sent.append_everywhere(&world, &members, stream, number).await;
        }
        // It may take itself for the owner, too: of all shards, since it was alone.
        let has_not = |member: &Member| !sent.owners[&number].contains(&member.member.owner);
        let taker = members.iter().position(has_not).expect("one of three has");
        while sent.owners[&number].len() < 2 {
            look(&world, &mut members[taker], &[]).await;
            sent.append_everywhere(&world, &members, stream, number).await;
        }
    }
    for _ in 0..ROUNDS {
        let all: Vec<ShardMember> = members.iter().map(|member| member.member.clone()).collect();
        let at = numbers.below(MEMBERS as u64) as usize;
        match numbers.below(8) {
            // It is alone, as it believes, for as long as it takes to claim all.
            0 | 1 => {
                for _ in 0..4 {
                    look(&world, &mut members[at], &[]).await;
                    world.env.sleep(Duration::from_millis(600)).await;
                }
            }
            // It is cut off from metadata, or comes back.
            2 => metas[at].take(numbers.below(3) as i64),
            3 => metas[at].take(i64::MAX),
            // It ends, and starts again.
            4 => {
                metas[at].take(i64::MAX);
                drop(members.remove(at));
                let meta = Arc::clone(&metas[at]) as Arc<dyn Meta>;
                members.insert(at, world.start_on(&id(at), meta).await);
            }
            _ => look(&world, &mut members[at], &all).await,
        }
        let number = numbers.below(u64::from(WRITTEN)) as u32;
        sent.append_everywhere(&world, &members, stream, number).await;
    }

    metas.iter().for_each(|meta| meta.take(i64::MAX));
    world.look_until(&mut members.iter_mut().collect::<Vec<_>>(), all_owned).await;
    for number in 0..WRITTEN {
        let owner = members.iter().find(|member| member.owns(stream, number)).expect("all are owned");
        let read = values_of(&owner.log, shard(stream, number)).await;
        let unique: BTreeSet<&String> = read.iter().collect();
        assert_eq!(unique.len(), read.len(), "seed {seed}, shard {number}: once, {read:?}");
        let acknowledged = sent.acknowledged.remove(&number).unwrap_or_default();
        let kept: Vec<&String> = read.iter().filter(|value| !sent.unknown.contains(*value)).collect();
        assert_eq!(kept, acknowledged.iter().collect::<Vec<_>>(), "seed {seed}, shard {number}: {read:?}");
        owner.append(stream, number, values(&["last"])).await.expect("durable");
    }
}

#[test]
fn what_is_acknowledged_is_there_once_and_in_order_whatever_processes_believe_of_each_other() {
    for seed in 1..=2 {
        in_world(|world| run(world, seed));
    }
}
