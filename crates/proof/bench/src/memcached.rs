//! memcached's text protocol over TCP on the loopback, spoken as plainly as it can be; and memcached itself, beside a
//! cell.
//!
//! One connection, one request after the other, as `bench cache` reads a cell. A batch of keys is one `get` with all
//! of them; a batch of values is that many `set`s, written together before the first answer is read. memcached keeps
//! one copy of a value, a cell with R=3.2 three.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use tailwater_load::measuring::until;

/// How long it may take to listen.
const START_DEADLINE: Duration = Duration::from_secs(10);
/// Longest line of an answer, in bytes: a key has at most 250.
const LINE_BYTES_MAX: u64 = 4 << 10;

/// A memcached of our own. Dropping it ends it.
pub struct Memcached {
    process: std::process::Child,
    address: SocketAddr,
}

/// A connection to a server that speaks its protocol.
pub struct TextClient {
    answers: BufReader<TcpStream>,
    requests: TcpStream,
    buffer: Vec<u8>,
}

/// Keys asked for and found in one call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ValueFound {
    /// Values that came.
    pub hits: usize,
    /// Keys without one.
    pub misses: usize,
}

impl Memcached {
    /// Starts one with room for `capacity` bytes of values, and so many threads; `None` if it is not installed.
    pub fn start(capacity: u64, threads: usize) -> anyhow::Result<Option<Self>> {
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let mut command = Command::new("memcached");
        command.args(["-l", "127.0.0.1", "-p", &port.to_string(), "-U", "0"]);
        command.args(["-t", &threads.to_string()]);
        // A value with its key is one item, and the largest item is 1 MiB unless told otherwise.
        command.args(["-m", &(capacity >> 20).max(64).to_string(), "-I", "8m"]);
        if rustix::process::getuid().is_root() {
            command.args(["-u", "root"]);
        }
        let process = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::inherit()).spawn();
        let mut process = match process {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            process => process.context("memcached can't be started")?,
        };
        let listens = until("memcached listens", START_DEADLINE, || {
            if let Some(status) = process.try_wait()? {
                bail!("memcached ended with {status}");
            }
            Ok(TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok())
        });
        if listens.is_err() {
            // It may have ended by itself.
            let _ = process.kill();
        }
        listens?;
        Ok(Some(Self { process, address: (Ipv4Addr::LOCALHOST, port).into() }))
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The server's process.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }
}

impl TextClient {
    /// Connects to a server.
    pub fn connect(address: SocketAddr) -> anyhow::Result<Self> {
        let requests = TcpStream::connect(address)?;
        requests.set_nodelay(true)?;
        let answers = BufReader::with_capacity(256 << 10, requests.try_clone()?);
        Ok(Self { answers, requests, buffer: Vec::new() })
    }

    /// What the server says its version is.
    pub fn version(&mut self) -> anyhow::Result<String> {
        self.requests.write_all(b"version\r\n")?;
        let answer = self.line()?;
        Ok(answer.strip_prefix("VERSION ").unwrap_or(&answer).to_owned())
    }

    /// Sets every key to `value`.
    pub fn set(&mut self, keys: &[impl AsRef<[u8]>], value: &[u8]) -> anyhow::Result<()> {
        self.buffer.clear();
        for key in keys {
            self.buffer.extend_from_slice(b"set ");
            self.buffer.extend_from_slice(key.as_ref());
            write!(self.buffer, " 0 0 {}\r\n", value.len())?;
            self.buffer.extend_from_slice(value);
            self.buffer.extend_from_slice(b"\r\n");
        }
        self.requests.write_all(&self.buffer)?;
        for _ in keys {
            let answer = self.line()?;
            ensure!(answer == "STORED", "memcached answers {answer:?} to a set");
        }
        Ok(())
    }

    /// Gets every key; each value is read whole, and has to be `value_bytes` long.
    pub fn get(&mut self, keys: &[impl AsRef<[u8]>], value_bytes: usize) -> anyhow::Result<ValueFound> {
        self.buffer.clear();
        self.buffer.extend_from_slice(b"get");
        for key in keys {
            self.buffer.push(b' ');
            self.buffer.extend_from_slice(key.as_ref());
        }
        self.buffer.extend_from_slice(b"\r\n");
        self.requests.write_all(&self.buffer)?;
        let mut hits = 0;
        loop {
            let line = self.line()?;
            if line == "END" {
                return Ok(ValueFound { hits, misses: keys.len().saturating_sub(hits) });
            }
            let bytes = value_len(&line).with_context(|| format!("memcached answers {line:?} to a get"))?;
            ensure!(bytes == value_bytes, "a value of {bytes} bytes where {value_bytes} were set");
            self.buffer.resize(bytes + 2, 0);
            self.answers.read_exact(&mut self.buffer)?;
            ensure!(self.buffer.ends_with(b"\r\n"), "a value that does not end where it should");
            hits += 1;
        }
    }

    fn line(&mut self) -> anyhow::Result<String> {
        let mut line = Vec::new();
        (&mut self.answers).take(LINE_BYTES_MAX).read_until(b'\n', &mut line)?;
        let line = line.strip_suffix(b"\r\n").context("memcached hung up, or sent a line without an end")?;
        Ok(String::from_utf8_lossy(line).into_owned())
    }
}

impl Drop for Memcached {
    fn drop(&mut self) {
        // Both fail only if it is gone.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The length in `VALUE <key> <flags> <bytes>`.
fn value_len(line: &str) -> Option<usize> {
    line.strip_prefix("VALUE ")?.split(' ').nth(2)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_length_of_a_value_is_the_third_word_behind_value() {
        assert_eq!(value_len("VALUE key 0 4096"), Some(4096));
        assert_eq!(value_len("VALUE key 0 4096 77"), Some(4096), "with a cas number");
        assert_eq!(value_len("VALUE key 0"), None);
        assert_eq!(value_len("SERVER_ERROR out of memory"), None);
    }

    #[test]
    fn what_was_set_is_got_back_if_it_is_installed() {
        let Some(server) = Memcached::start(64 << 20, 1).expect("it starts") else {
            eprintln!("memcached is not installed: nothing was tested");
            return;
        };
        let mut client = TextClient::connect(server.address()).expect("connected");
        client.set(&["a", "b"], &[7; 5_000]).expect("stored");
        assert_eq!(client.get(&["a", "c", "b"], 5_000).expect("answered"), ValueFound { hits: 2, misses: 1 });
        assert!(client.get(&["a"], 4_999).is_err(), "a value of another length");
    }
}
