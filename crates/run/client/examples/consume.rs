//! Prints a stream from its beginning, and follows it for as long as something comes:
//! `cargo run -p tailwater-client --example consume -- ADDRESS STREAM [SECONDS]`.

use std::time::Duration;

use tailwater_client::{Client, ConsumerConfig, Error, Start};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let mut args = std::env::args().skip(1);
    let (Some(address), Some(stream)) = (args.next(), args.next()) else {
        eprintln!("usage: consume ADDRESS STREAM [SECONDS]");
        std::process::exit(2);
    };
    let patience = Duration::from_secs(args.next().and_then(|count| count.parse().ok()).unwrap_or(5));

    let client = Client::connect(&address).await?;
    let from_the_beginning = ConsumerConfig { start: Start::Beginning, ..Default::default() };
    let mut consumer = client.consumer(&stream, from_the_beginning).await?;
    while let Some(batch) = consumer.next_within(patience).await? {
        for record in batch.records() {
            let value = String::from_utf8_lossy(record.value.unwrap_or_default());
            println!("{}\t{}\t{value}", batch.shard, record.offset);
        }
    }
    Ok(())
}
