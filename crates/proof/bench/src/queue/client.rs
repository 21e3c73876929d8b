//! A lean client of SQS's protocol: one connection that is kept, requests as strings, no SDK.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::Value;
use tailwater_sqs_wire::{Unsigned, sign};

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// What requests are signed with.
#[derive(Clone, Debug)]
pub struct LoadCredentials {
    /// The access key's id.
    pub key_id: String,
    /// Its secret.
    pub secret: String,
}

/// One connection.
pub struct Client {
    node: SocketAddr,
    credentials: Option<LoadCredentials>,
    stream: Option<TcpStream>,
    answer: Vec<u8>,
}

impl Client {
    /// Of one node; it connects when it is used.
    pub fn new(node: SocketAddr) -> Self {
        Self { node, credentials: None, stream: None, answer: Vec::new() }
    }

    /// Signs its requests.
    pub fn signed(self, credentials: Option<LoadCredentials>) -> Self {
        Self { credentials, ..self }
    }

    /// Goes to another node.
    pub fn turn_to(&mut self, node: SocketAddr) {
        (self.node, self.stream) = (node, None);
    }

    /// One action; the answer's body. After an error the connection is made anew.
    pub fn call(&mut self, action: &str, parameters: &Value) -> anyhow::Result<Value> {
        self.call_of("AmazonSQS", action, parameters)
    }

    /// An action that only Tailwater has.
    pub fn call_own(&mut self, action: &str, parameters: &Value) -> anyhow::Result<Value> {
        self.call_of("Tailwater", action, parameters)
    }

    /// Sends a request, and goes away before its answer.
    pub fn call_deaf(&mut self, action: &str, parameters: &Value) {
        let _ = self.call(action, parameters);
        self.stream = None;
    }

    fn call_of(&mut self, service: &str, action: &str, parameters: &Value) -> anyhow::Result<Value> {
        let (status, value) = self.ask(service, action, parameters)?;
        if status != 200 {
            self.stream = None;
            bail!("{action} is answered {status}: {value}");
        }
        Ok(value)
    }

    /// One action of a service; the answer's status and body, over a connection that is kept whatever they are.
    pub fn ask(&mut self, service: &str, action: &str, parameters: &Value) -> anyhow::Result<(u16, Value)> {
        let mut stream = match self.stream.take() {
            Some(stream) => stream,
            None => {
                let stream = TcpStream::connect_timeout(&self.node, PATIENCE)?;
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(PATIENCE))?;
                stream
            }
        };
        let (body, host) = (parameters.to_string(), self.node.to_string());
        let target = format!("{service}.{action}");
        let mut request = format!(
            "POST / HTTP/1.1\r\nhost: {host}\r\nx-amz-target: {target}\r\ncontent-type: \
             application/x-amz-json-1.0\r\ncontent-length: {}\r\n",
            body.len()
        );
        if let Some(LoadCredentials { key_id, secret }) = &self.credentials {
            let target = Some(target.as_str());
            let unsigned =
                Unsigned { method: "POST", path: "/", query: "", host: &host, target, body: body.as_bytes() };
            let (date, authorization) =
                sign(&unsigned, jiff::Timestamp::now(), (key_id, secret), "us-east-1");
            request += &format!("x-amz-date: {date}\r\nauthorization: {authorization}\r\n");
        }
        request += "\r\n";
        request += &body;
        stream.write_all(request.as_bytes())?;
        let (status, from) = self.read(&mut stream)?;
        let value: Value = serde_json::from_slice(&self.answer[from..]).unwrap_or_default();
        self.stream = Some(stream);
        Ok((status, value))
    }

    /// Reads an answer; its status, and where its body begins.
    fn read(&mut self, stream: &mut TcpStream) -> anyhow::Result<(u16, usize)> {
        self.answer.clear();
        let mut buffer = [0; 16 << 10];
        loop {
            let read = stream.read(&mut buffer)?;
            if read == 0 {
                bail!("the connection ended");
            }
            self.answer.extend_from_slice(&buffer[..read]);
            let Some(end) = self.answer.windows(4).position(|four| four == b"\r\n\r\n") else { continue };
            let head = std::str::from_utf8(&self.answer[..end])?;
            let status = head.get(9..12).context("no status")?.parse()?;
            let length = head
                .lines()
                .filter_map(|line| line.split_once(':'))
                .find(|(name, _)| name.eq_ignore_ascii_case("content-length"));
            let length: usize = length.context("no length")?.1.trim().parse()?;
            while self.answer.len() < end + 4 + length {
                let read = stream.read(&mut buffer)?;
                if read == 0 {
                    bail!("the connection ended within an answer");
                }
                self.answer.extend_from_slice(&buffer[..read]);
            }
            return Ok((status, end + 4));
        }
    }
}
