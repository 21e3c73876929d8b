//! `tailwater consume --group`: the same in a group.

use std::io::Write;
use std::time::Duration;

use tailwater_client::{Client, ConsumerConfig, Error, GroupConfig, GroupConsumer, Start};
use tailwater_env::Env;
use tailwater_format::Offset;
use tailwater_node::signal::StopSignals;

use super::{Args, tell, write_record};

/// How long a pause is after which the command looks whether it is at the end, or tries again what failed.
const PAUSE: Duration = Duration::from_millis(200);

/// Writes records to standard output until it is interrupted, or has what it wants; then it commits, and leaves.
pub(super) async fn consume(client: &Client, kafka: String, args: Args) -> anyhow::Result<()> {
    let ends: Option<Vec<(u32, Offset)>> = match args.exit_at_end {
        true => {
            let config = ConsumerConfig { start: Start::End, ..ConsumerConfig::default() };
            Some(client.consumer(&args.name, config).await?.offsets().collect())
        }
        false => None,
    };
    let config =
        GroupConfig { start: args.from, ..GroupConfig::new(args.group.clone().unwrap_or_default(), kafka) };
    let mut consumer = client.group_consumer(&args.name, config).await?;
    let consumed = consume_from(&mut consumer, &args, ends.as_deref()).await;
    // Whatever happened, what was written is not to come again.
    let closed = consumer.close().await;
    consumed?;
    Ok(closed?)
}

async fn consume_from(
    consumer: &mut GroupConsumer,
    args: &Args,
    ends: Option<&[(u32, Offset)]>,
) -> anyhow::Result<()> {
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let mut left = args.count.unwrap_or(u64::MAX);
    let mut stop = StopSignals::caught();
    let env = Env::real();
    while left > 0 {
        let next = tokio::select! {
            biased;
            () = stop.next() => return Ok(()),
            next = consumer.next_within(PAUSE) => next,
        };
        let batch = match next {
            Ok(Some(batch)) => batch,
            Ok(None) if ends.is_some_and(|ends| is_at_end(consumer, ends)) => return Ok(()),
            Ok(None) => continue,
            Err(error) if error.is_retriable() => {
                eprintln!("tailwater: {error}; trying again");
                env.sleep(PAUSE).await;
                continue;
            }
            Err(error @ Error::Truncated { .. }) => {
                tell(error)?;
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        let mut next_offset = batch.next_offset();
        for record in batch.records() {
            if left == 0 {
                next_offset = record.offset;
                break;
            }
            left -= 1;
            write_record(&mut out, args, &batch, &record)?;
        }
        // Only what has left this process is done.
        out.flush()?;
        consumer.done(batch.shard, next_offset);
    }
    Ok(())
}

/// Whether the shards that it has are consumed up to where they ended at the start.
fn is_at_end(consumer: &GroupConsumer, ends: &[(u32, Offset)]) -> bool {
    let end = |shard| ends.iter().find(|(of, _)| *of == shard).map_or(Offset(0), |(_, end)| *end);
    consumer.is_joined() && consumer.offsets().all(|(shard, offset)| offset >= end(shard))
}
