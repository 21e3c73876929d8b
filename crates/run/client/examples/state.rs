//! A server of keys and values that starts in seconds: it loads the newest snapshot of a stream, follows the updates
//! behind it, and answers reads meanwhile. `cargo run -p tailwater-client --example state -- ADDRESS STREAM [LISTEN]`.
//!
//! It prints where it listens, and then what it has loaded. Who connects writes a key on each line, and gets a line for
//! each: `+` and the value, `-` if there is none, `!` while the state is not loaded.

use std::sync::Arc;

use parking_lot::RwLock;
use tailwater_client::{Client, Error, KeyedState, StateConfig, StateConsumer, StateNews};
use tailwater_env::Env;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

/// Longest key, in bytes, with the line's end.
const KEY_BYTES_MAX: u64 = 64 << 10;
const CONNECTIONS_MAX: usize = 1_000;

/// What is served.
struct Served {
    values: KeyedState,
    is_loaded: bool,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(address), Some(stream)) = (args.next(), args.next()) else {
        eprintln!("usage: state ADDRESS STREAM [LISTEN]");
        std::process::exit(2);
    };
    let env = Env::real();
    let listener = TcpListener::bind(args.next().unwrap_or_else(|| "127.0.0.1:0".to_owned())).await?;
    println!("listening on {}", listener.local_addr()?);

    let state = Client::connect(&address).await?.state(&stream, StateConfig::default()).await?;
    let values = KeyedState::new(state.stream().shards);
    let served = Arc::new(RwLock::new(Served { values, is_loaded: false }));
    let serving = env.spawn("serve", serve(env.clone(), listener, Arc::clone(&served)));
    follow(&env, state, &served).await?;
    drop(serving);
    Ok(())
}

/// Applies what comes, for ever.
async fn follow(env: &Env, mut state: StateConsumer, served: &RwLock<Served>) -> Result<(), Error> {
    let began = env.now();
    let mut has_told = false;
    loop {
        let news = match state.next().await {
            // What is known is served, however old.
            Err(error) if error.is_retriable() => continue,
            news => news?,
        };
        let mut served = served.write();
        served.values.apply(&news);
        served.is_loaded = state.is_loaded();
        if let StateNews::Loaded { shard, snapshot: Some(snapshot) } = &news {
            let up_to = snapshot.manifest.up_to.position;
            println!("shard {shard}: {} keys up to offset {up_to}", served.values.entries(*shard).len());
        }
        if served.is_loaded && !has_told {
            println!("loaded after {} ms", env.now().since(began).as_millis());
            has_told = true;
        }
    }
}

async fn serve(env: Env, listener: TcpListener, served: Arc<RwLock<Served>>) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    while let Ok(place) = Arc::clone(&places).acquire_owned().await {
        // One that can't be accepted is its client's trouble, or passes.
        let Ok((socket, _)) = listener.accept().await else { continue };
        let served = Arc::clone(&served);
        let answering = async move {
            // Who goes away needs no answer.
            let _ = answer(socket, &served).await;
            drop(place);
        };
        env.spawn("answer", answering).detach();
    }
}

async fn answer(mut socket: TcpStream, served: &RwLock<Served>) -> std::io::Result<()> {
    let (input, mut output) = socket.split();
    let mut input = BufReader::new(input);
    let mut line = Vec::new();
    loop {
        line.clear();
        (&mut input).take(KEY_BYTES_MAX).read_until(b'\n', &mut line).await?;
        // It ends with the connection, or with a key that is too long.
        let Some(key) = line.strip_suffix(b"\n") else { return Ok(()) };
        let answer = {
            let served = served.read();
            match served.values.get(key) {
                _ if !served.is_loaded => b"!\n".to_vec(),
                Some(value) => [b"+", value, b"\n"].concat(),
                None => b"-\n".to_vec(),
            }
        };
        output.write_all(&answer).await?;
    }
}
