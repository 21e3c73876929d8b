//! From a cell into a broadcast stream: which keys have changed.
//!
//! What holds:
//! - For each key that has changed there is an event with the key's hash. It is told as often as [`CellFollower`] tells
//!   of it: by each backend that applies the change, so up to three times.
//! - What can't be told is an event without a key: any key may have changed. That is the first event of each start of
//!   the bridge, and of each time that it could not publish. It collects all events before it.
//! - Once a second there is an event that says until when all changes are told. Behind it in the stream nothing is
//!   missing that changed before then. Listeners that hear none know that nobody tells them.
//!
//! Nothing of it is written down: what a bridge misses while it is gone is told as a gap.
//!
//! [`CellFollower`]: tailwater_cache::CellFollower

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use bytes::Bytes;
use tailwater_broadcast::client::Publisher;
use tailwater_broadcast::{Batch, Collect, Content, Stream, Writer};
use tailwater_cache::CellNews;
use tailwater_client::broadcast::{CELL_AS_OF_KEY, cell_event_key_of};

use super::{BridgeContext, BridgeStatus, FROM_HEADER, for_ever};
use crate::config::BridgeConfig;

/// How often it is said until when all changes are told.
const AS_OF_EVERY: Duration = Duration::from_secs(1);
/// Bytes of events that are published together, roughly.
const EVENTS_BYTES: usize = 256 << 10;

/// Tells of all changes, until it is dropped.
pub(super) async fn run(
    context: BridgeContext,
    config: BridgeConfig,
    name: String,
    to: Stream,
    status: Arc<BridgeStatus>,
) {
    let once = || tell(&context, &config, &name, &to, &status);
    for_ever(&context.env, &config, &status, once).await;
}

async fn tell(
    context: &BridgeContext,
    config: &BridgeConfig,
    name: &str,
    to: &Stream,
    status: &BridgeStatus,
) -> anyhow::Result<Infallible> {
    let env = &context.env;
    status.begins(0);
    let cell = context.cells.cell(name).await;
    let cell = cell.with_context(|| format!("cell {name}: create it with `tailwater cell create {name}`"))?;
    let addresses = context.regions.get(to.region()).context("the region is not known")?;
    let publisher = Publisher::new(env, addresses.clone());
    let mut follower = cell.follow();
    // 0 is none that is known.
    let mut lineage = 0;
    let mut said = None;
    let mut say_at = env.now() + AS_OF_EVERY;
    loop {
        let batches = tokio::select! {
            news = follower.next() => events_of(config, news)?,
            () = env.sleep_until(say_at) => {
                say_at = env.now() + AS_OF_EVERY;
                let as_of = follower.as_of();
                let Some(news) = as_of.filter(|as_of| Some(*as_of) > said) else { continue };
                said = Some(news);
                let ago = i64::try_from(env.now().since(news).as_millis()).unwrap_or(i64::MAX);
                vec![as_of_event(config, env.wall_ms().saturating_sub(ago))?]
            }
        };
        for batch in batches {
            let count = u64::from(batch.count);
            publisher.publish_batch(to, batch).await?;
            BridgeStatus::count(&status.carried, count);
            status.works(0, 0);
            let newest = publisher.newest().lineage;
            if lineage != 0 && newest > lineage {
                bail!("region {} has begun anew: what changed meanwhile is not known", to.region());
            }
            lineage = newest;
        }
    }
}

fn content(config: &BridgeConfig, key: Option<Bytes>, payload: Bytes) -> Content {
    let from = (Bytes::from_static(FROM_HEADER.as_bytes()), Bytes::from(config.from.clone()));
    Content { key, headers: vec![from], payload }
}

/// The events that tell of it, in batches.
fn events_of(config: &BridgeConfig, news: CellNews) -> anyhow::Result<Vec<Batch>> {
    let mut batches = Vec::new();
    let mut writer = Writer::new(0);
    match news {
        CellNews::Everything => {
            writer.publish(&content(config, None, Bytes::new()), Some(&Collect::KeepLast(0)))?;
        }
        CellNews::Keys(hashes) => {
            for hash in hashes {
                let content = content(config, Some(cell_event_key_of(hash)), Bytes::new());
                writer.publish(&content, Some(&Collect::SameKey))?;
                if writer.len() >= EVENTS_BYTES {
                    batches.push(std::mem::replace(&mut writer, Writer::new(0)).finish(0));
                }
            }
        }
    }
    if writer.count() > 0 {
        batches.push(writer.finish(0));
    }
    Ok(batches)
}

/// The event that says that all changes before then are told.
fn as_of_event(config: &BridgeConfig, as_of_ms: i64) -> anyhow::Result<Batch> {
    let key = Bytes::from_static(CELL_AS_OF_KEY.as_bytes());
    let content = content(config, Some(key), as_of_ms.to_string().into());
    let mut writer = Writer::new(0);
    writer.publish(&content, Some(&Collect::SameKey))?;
    Ok(writer.finish(0))
}

#[cfg(test)]
mod tests {
    use tailwater_broadcast::Kind;
    use tailwater_cache::layout::KeyHash;

    use super::*;
    use crate::config::BridgeStart;

    fn told(batches: &[Batch]) -> Vec<(Option<Bytes>, Collect)> {
        let events = batches.iter().flat_map(|batch| batch.events().map(|event| event.expect("well-formed")));
        let told = events.map(|event| match event.kind.clone() {
            Kind::Collection(content, collect) => (content.key, collect),
            kind => panic!("{kind:?} collects nothing"),
        });
        told.collect()
    }

    #[test]
    fn many_keys_are_told_in_batches_one_event_each_and_everything_is_told_without_a_key() {
        let config = BridgeConfig {
            from: "cell:tiles".to_owned(),
            to: "broadcast:local/tiles".to_owned(),
            collect: String::new(),
            shards: Vec::new(),
            start: BridgeStart::Start,
        };
        let hashes: Vec<KeyHash> = (0..16_384).map(KeyHash).collect();
        let batches = events_of(&config, CellNews::Keys(hashes.clone())).expect("they fit");
        assert!(batches.len() > 1);
        assert!(batches.iter().all(|batch| batch.bytes.len() < 2 * EVENTS_BYTES));
        let expected: Vec<_> =
            hashes.iter().map(|hash| (Some(cell_event_key_of(*hash)), Collect::SameKey)).collect();
        assert_eq!(told(&batches), expected);
        let everything = events_of(&config, CellNews::Everything).expect("it fits");
        assert_eq!(told(&everything), [(None, Collect::KeepLast(0))]);
        let as_of = as_of_event(&config, 1_700_000_000_000).expect("it fits");
        assert_eq!(told(&[as_of]), [(Some("as-of".into()), Collect::SameKey)]);
        assert!(events_of(&config, CellNews::Keys(Vec::new())).expect("nothing").is_empty());
    }
}
