//! Works off a queue; each message stays invisible for as long as that takes, is deleted when it is done, and comes
//! again when it failed: `cargo run -p tailwater-client --example worker -- ENDPOINT QUEUE COUNT`, which ends when so
//! many are done.
//!
//! The work: a message says for how many milliseconds, and fails at the first receive if there is a `!` behind that.

use std::time::Duration;

use tailwater_client::queue::{Credentials, Endpoint};
use tailwater_env::Env;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [address, queue, count] = &args[..] else {
        eprintln!("usage: worker ENDPOINT QUEUE COUNT");
        std::process::exit(2);
    };
    let env = Env::real();
    let queue = Endpoint::new(&env, address, Credentials::from_env())?.queue(queue).await?;
    let mut left: usize = count.parse()?;
    while left > 0 {
        for message in queue.receive(1).await? {
            let work = async {
                let ms = message.body.trim_end_matches('!').parse().map_err(|_| "no number")?;
                env.sleep(Duration::from_millis(ms)).await;
                if message.body.ends_with('!') && message.receives == 1 {
                    Err("the first time")
                } else {
                    Ok(ms)
                }
            };
            match queue.handle(&message, work).await {
                Ok(ms) => {
                    println!("{ms} done, receive {}", message.receives);
                    left -= 1;
                }
                Err(failed) => println!("{} failed: {failed}", message.body),
            }
        }
    }
    Ok(())
}
