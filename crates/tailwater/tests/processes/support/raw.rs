//! Kafka's protocol, request by request.

use std::io::{Read, Write};
use std::net::TcpStream;

use tailwater_kafka_wire::api::Request;
use tailwater_kafka_wire::messages::header::{read_response, request};

use super::{Node, PATIENCE};

/// A connection.
pub struct Raw {
    pub stream: TcpStream,
    correlation_id: i32,
}

impl Raw {
    pub fn connect(node: &Node) -> Self {
        let stream = TcpStream::connect(&node.kafka).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("it can have one");
        Self { stream, correlation_id: 0 }
    }

    /// Sends a request, and reads no answer.
    pub fn send<R: Request>(&mut self, version: i16, asked: &R) {
        self.correlation_id += 1;
        let frame = request(asked, version, self.correlation_id, "raw").concat();
        self.stream.write_all(&frame).expect("sent");
    }

    /// Reads the answer to a request.
    pub fn receive<R: Request>(&mut self, version: i16) -> R::Response {
        let mut len = [0; 4];
        self.stream.read_exact(&mut len).expect("an answer");
        let mut answer = vec![0; u32::from_be_bytes(len) as usize];
        self.stream.read_exact(&mut answer).expect("a whole answer");
        let (id, answer) = read_response(R::API, version, answer.into()).expect("it makes sense");
        assert_eq!(id, self.correlation_id);
        answer
    }

    pub fn call<R: Request>(&mut self, version: i16, asked: &R) -> R::Response {
        self.send(version, asked);
        self.receive::<R>(version)
    }

    /// In the newest version.
    pub fn ask<R: Request>(&mut self, asked: &R) -> R::Response {
        self.call(*R::API.versions().end(), asked)
    }
}
