//! Publishes in a broadcast stream, and hears what was published, by a callback: `cargo run -p tailwater-client
//! --example broadcast -- ADDRESS REGION/STREAM publish KEY VALUE`, which makes earlier events with that key obsolete,
//! and `… listen COUNT [TOKEN]`, which ends after so many events with a token to go on from; with the address of
//! broadcasts.

use std::ops::ControlFlow;

use tailwater_client::broadcast::{
    Collect, Content, HeardEvent, ListenError, Listener, Positions, Publisher, Stream, listen_with,
};
use tailwater_env::Env;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let env = Env::real();
    match args[..] {
        [address, stream, "publish", key, value] => {
            let publisher = Publisher::new(&env, vec![address.to_owned()]);
            let content = Content {
                key: Some(key.to_owned().into()),
                payload: value.to_owned().into(),
                ..Content::default()
            };
            // Every replica of the region has it when this is answered.
            let stream = Stream::parse(stream)?;
            let published = publisher.publish(&stream, &content, Some(&Collect::SameKey)).await?;
            println!("{}", published.seq);
        }
        [address, stream, "listen", count, ref token @ ..] if token.len() <= 1 => {
            let positions = match token.first() {
                Some(token) => Positions::parse(token)?,
                None => Positions::of([Stream::parse(stream)?]),
            };
            let mut listener = Listener::new(&env, vec![address.to_owned()], positions);
            let mut left: u64 = count.parse()?;
            let mut heard = |event: HeardEvent<'_>| {
                let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                if event.is_tombstone() {
                    println!("{} {} to {}: obsolete", event.stream, event.after() + 1, event.seq());
                } else {
                    let key = event.key().map(text).unwrap_or_default();
                    println!("{} {}: {key} is {}", event.stream, event.seq(), text(event.payload()));
                }
                left = left.saturating_sub(1);
                if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            };
            while let Err(error) = listen_with(&mut listener, &mut heard).await {
                match error {
                    // What follows is another stream by the same name: whoever keeps something of the one before drops
                    // it.
                    ListenError::Anew(region) => println!("{region} has begun anew"),
                    // What those before would have changed is unknown.
                    ListenError::Removed { stream, last } => println!("{stream} up to {last}: removed"),
                    error => return Err(error.into()),
                }
            }
            println!("{}", listener.positions().token());
        }
        _ => {
            eprintln!("usage: broadcast ADDRESS REGION/STREAM publish KEY VALUE");
            eprintln!("       broadcast ADDRESS REGION/STREAM listen COUNT [TOKEN]");
            std::process::exit(2);
        }
    }
    Ok(())
}
