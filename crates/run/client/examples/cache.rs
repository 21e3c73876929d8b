//! Answers from a cache that a broadcast stream keeps up to date, and changes what it is about: `cargo run -p
//! tailwater-client --example cache -- ADDRESS REGION/STREAM KEY`, with the address of broadcasts. With `watch` as one
//! more argument it goes on, and says when its value may be stale and when it is not any more.

use std::sync::atomic::{AtomicU32, Ordering};

use tailwater_client::broadcast::{
    Cached, Content, InvalidatingCache, InvalidatingConfig, Publisher, Stream,
};
use tailwater_env::Env;

/// Stands for a database.
static PRICE: AtomicU32 = AtomicU32::new(1);

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (address, stream, key, watches) = match &args[..] {
        [address, stream, key] => (address, stream, key, false),
        [address, stream, key, watch] if watch == "watch" => (address, stream, key, true),
        _ => {
            eprintln!("usage: cache ADDRESS REGION/STREAM KEY [watch]");
            std::process::exit(2);
        }
    };
    let (env, proxy, stream) = (Env::real(), vec![address.clone()], Stream::parse(stream)?);
    let cache = InvalidatingCache::new(&env, proxy.clone(), stream.clone(), InvalidatingConfig::default());
    let publisher = Publisher::new(&env, proxy);
    let read = async || Ok::<u32, std::convert::Infallible>(PRICE.load(Ordering::Relaxed));

    let changed = Content { key: Some(key.clone().into()), ..Content::default() };
    // The first event makes the stream; before it the proxy says nothing of it, and nothing is fresh.
    publisher.publish(&stream, &changed, None).await?;
    cache.fresh().await;
    for _ in 0..3 {
        println!("{key} costs {}", cache.get_or_load(key.as_bytes(), read).await?);
        // Whoever changes something says so; every cache of every region forgets it.
        PRICE.fetch_add(1, Ordering::Relaxed);
        let published = publisher.publish(&stream, &changed, None).await?;
        // From here on this process reads what it wrote.
        cache.reached(published.seq).await;
    }
    if !watches {
        return Ok(());
    }
    loop {
        cache.fresh().await;
        println!("{key} costs {}", cache.get_or_load(key.as_bytes(), read).await?);
        // It is out of reach of those who may change something.
        cache.stale().await;
        if let Some(Cached::MaybeStale(price)) = cache.get(key.as_bytes()) {
            println!("{key} cost {price} when this was last known");
        }
    }
}
