//! The cells alone, with writers that duel: owners of growing terms, each of which begins while those before still
//! run and write, now and then under a segment number that the one before has used too, as after a loss of all that
//! it had; backends that die, a bad network.
//!
//! The code that runs is `tail`'s writer and `cache`. Checked, by one who looks here and there: what the data cell
//! has under a segment's name, term included, is a prefix of that segment's bytes; no published length is beyond
//! what its owner has made durable; and when only the last owner is left, its tail is what is published in the end.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tailwater_cache::Lookup;
use tailwater_format::tails::{tail_page_key, tail_page_of};
use tailwater_format::{
    ChunkKey, DurableTo, Offset, Position, SegmentId, SegmentNumber, ShardId, ShardNumber, StreamId, Tail,
    TailPage, Term,
};
use tailwater_tail::{Cells, TailWriter};

use crate::checkers::{Report, Violation, ensure};
use crate::net::{Net, Weather};
use crate::planted::Plant;
use crate::rng::Rng;
use crate::world::{Crash, World};

use super::outcome::{Noted, Outcome};
use super::{cells, clients};

const OWNERS: [&str; 3] = ["owner-0", "owner-1", "owner-2"];
/// Longest time between a takeover and the end of the lock's holder before, several times.
const SETTLED_MAX: Duration = Duration::from_secs(60);
const CHUNK_BYTES: u32 = 512;

#[derive(Default)]
struct DuelState {
    /// What each segment's owner has made durable.
    segments: BTreeMap<(u64, u32), Vec<u8>>,
    /// The term of the tail that was found last.
    published: Option<Term>,
    noted: Noted,
}

type DuelShared = Arc<Mutex<DuelState>>;

impl Outcome for DuelState {
    fn noted(&mut self) -> &mut Noted {
        &mut self.noted
    }
}

fn shard() -> ShardId {
    ShardId { stream: StreamId(uuid::Uuid::from_u128(0xd0e1)), shard: ShardNumber(0) }
}

fn segment(number: u64, term: u32) -> SegmentId {
    SegmentId { shard: shard(), number: SegmentNumber(number), term: Term(term) }
}

/// Runs the scenario.
pub fn run(world: &mut World, plant: Plant) -> Result<Report, Violation> {
    let mut rng = Rng::new(world.seed(), "scenario/duel");
    let net = Net::new(world);
    let backends = cells::backend_nodes(world);
    for (number, node) in backends.iter().enumerate() {
        cells::start_backends(&net, node, number, 16);
    }
    clients::draw_weather(&net, &mut rng);
    let state = DuelShared::default();
    let auditor = world.node("auditor");
    let auditing =
        audit(auditor.env(), cells::connect_both(world, &net, &auditor, Plant::None)?, state.clone());
    auditor.env().spawn("audit", auditing).detach();

    let mut number = rng.below(3);
    let mut owners = Vec::new();
    for (term, name) in (1..).zip(OWNERS) {
        let node = world.node(name);
        let cells = cells::connect_both(world, &net, &node, plant)?;
        let owner = Owner { rng: Rng::new(world.seed(), name), term, state: state.clone() };
        node.env()
            .spawn("owner", owner.run(node.env(), TailWriter::start(&node.env(), Some(cells)), number))
            .detach();
        owners.push(node);
        world.run_for(Duration::from_millis(rng.between(50, 250)))?;
        if rng.below(4) == 0 {
            let dying = rng.index(backends.len());
            backends[dying].restart(Crash::Process);
            cells::start_backends(&net, &backends[dying], dying, 16);
        }
        // The next one begins with the number after all that are known, or with the first of this one.
        let used = state.lock().segments.keys().map(|(number, _)| *number).max().unwrap_or(number);
        number = if rng.below(2) == 0 { used } else { used + 1 };
    }
    net.set_weather(Weather::FAIR);
    for owner in &owners[..OWNERS.len() - 1] {
        owner.crash(Crash::Process);
    }
    state.lock().published = None;
    let outside = world.outside();
    let last = Some(Term(OWNERS.len() as u32));
    let settled = async {
        while state.lock().published != last && !state.lock().has_failed() {
            outside.sleep(Duration::from_millis(5)).await;
        }
    };
    let settled = world.run(outside.timeout(SETTLED_MAX, settled))?;
    state.lock().take_violation()?;
    ensure(settled.is_some(), || "the last owner's tail is never published".to_owned())?;
    let report = state.lock().report();
    Ok(report)
}

/// The owner of one term: makes bytes durable in one segment after the other, and shadows them.
struct Owner {
    rng: Rng,
    term: u32,
    state: DuelShared,
}

impl Owner {
    async fn run(mut self, env: tailwater_env::Env, writer: TailWriter, first: u64) {
        for number in first.. {
            let id = segment(number, self.term);
            let mut length = 0;
            for _ in 0..self.rng.between(5, 60) {
                let count = self.rng.between(1, 700);
                let fill = (number as u8).wrapping_mul(16).wrapping_add(self.term as u8);
                let bytes: Vec<u8> =
                    (0..count).map(|at| fill.wrapping_mul((length + at) as u8 | 1)).collect();
                self.state.lock().segments.entry((number, self.term)).or_default().extend_from_slice(&bytes);
                length += count;
                let durable = DurableTo::new(Position(length));
                writer.extend(id, &Bytes::from(bytes), durable, self.tail(id, length), env.now());
                env.sleep(Duration::from_micros(self.rng.between(100, 20_000))).await;
                if self.state.lock().has_failed() {
                    return;
                }
            }
        }
    }

    fn tail(&self, id: SegmentId, length: u64) -> Tail {
        Tail {
            segment: id.number,
            term: id.term,
            base_offset: Offset(0),
            cached: Position(0),
            durable: Position(length),
            next_offset: Offset(length),
            sealed: false,
            previous: None,
            chunk_bytes: CHUNK_BYTES,
            cells: true,
            log_start: Offset(0),
        }
    }
}

/// Looks into both cells, for as long as the scenario lasts.
async fn audit(env: tailwater_env::Env, cells: Cells, state: DuelShared) {
    loop {
        env.sleep(Duration::from_micros(env.random_below(8_000))).await;
        let looked =
            cells.metadata.get_relaxed(&[tail_page_key(shard().stream, tail_page_of(shard().shard).0)]).await;
        if let Some(Lookup::Hit { value, .. }) = looked.into_iter().next() {
            let page = TailPage::decode(&value);
            let mut state = state.lock();
            let checked = match page {
                Ok(page) => {
                    page.tails.first().copied().flatten().map_or(Ok(()), |tail| state.check_tail(&tail))
                }
                Err(error) => Err(Violation::new(format!("a page of tails is damaged: {error}"))),
            };
            state.note(checked);
        }
        let picked = {
            let state = state.lock();
            let segments: Vec<_> = state.segments.iter().rev().take(4).collect();
            if segments.is_empty() {
                continue;
            }
            let ((number, term), bytes) = segments[env.random_below(segments.len() as u64) as usize];
            let chunks = (bytes.len() as u64).div_ceil(u64::from(CHUNK_BYTES));
            let chunk = chunks - 1 - env.random_below(chunks.min(4));
            ChunkKey { segment: segment(*number, *term), chunk_bytes: CHUNK_BYTES, chunk }
        };
        let looked = cells.data.get_relaxed(&[picked.to_bytes()]).await;
        let Some(Lookup::Hit { value, .. }) = looked.into_iter().next() else { continue };
        let mut state = state.lock();
        let checked = state.check_chunk(&picked, &value);
        state.note(checked);
    }
}

impl DuelState {
    fn bytes(&self, id: &SegmentId) -> &[u8] {
        self.segments.get(&(id.number.0, id.term.0)).map_or(&[], |bytes| bytes)
    }

    fn check_tail(&mut self, tail: &Tail) -> Result<(), Violation> {
        self.count("audits of lengths", 1);
        self.published = Some(tail.term);
        let id = tail.segment_id(shard());
        let durable = self.bytes(&id).len() as u64;
        ensure(tail.cached <= tail.durable && tail.durable.0 <= durable, || {
            let Tail { cached, durable: published, .. } = tail;
            format!(
                "{id}: cached {cached} and durable {published} were published, but only {durable} is durable"
            )
        })
    }

    fn check_chunk(&mut self, key: &ChunkKey, value: &[u8]) -> Result<(), Violation> {
        self.count("audits of chunks", 1);
        let bytes = self.bytes(&key.segment).get(key.start().0 as usize..).unwrap_or_default();
        ensure(bytes.starts_with(value), || {
            let (chunk, length) = (key.chunk, value.len());
            let id = key.segment;
            format!("chunk {chunk} of {id}: its {length} bytes in the cell are no prefix of the durable ones")
        })
    }
}
