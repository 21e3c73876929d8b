//! Appends numbered lines to a stream: `cargo run -p tailwater-client --example produce -- ADDRESS STREAM [COUNT]`.

use tailwater_client::{Client, Error, ProducerSettings};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let mut args = std::env::args().skip(1);
    let (Some(address), Some(stream)) = (args.next(), args.next()) else {
        eprintln!("usage: produce ADDRESS STREAM [COUNT]");
        std::process::exit(2);
    };
    let count = args.next().and_then(|count| count.parse().ok()).unwrap_or(1_000);

    let client = Client::connect(&address).await?;
    let producer = client.producer(&stream, ProducerSettings::default()).await?;
    let mut acks = Vec::new();
    for number in 0..count {
        let (key, value) = (format!("key-{}", number % 16), format!("line {number}"));
        producer.room().await; // back pressure: completes when less than the buffer's bound waits
        acks.push(producer.send(Some(key.as_bytes()), value.as_bytes())?);
    }
    for ack in acks {
        let acked = ack.await?; // as durable as the stream promises
        println!("{}\t{}", acked.shard, acked.offset);
    }
    Ok(())
}
