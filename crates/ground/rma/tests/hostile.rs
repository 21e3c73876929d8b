//! Peers that send garbage, say nothing, read nothing, or come in crowds: it costs them their connection, and
//! everybody else nothing.

#![allow(missing_docs)]
#![allow(clippy::disallowed_methods)] // the hostile side is no part of any world

mod world;

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use tailwater_rma::{Address, ConnectError, ServerConfig, connect};

use world::{METHOD_ECHO, METHOD_HANG, Transport, World, run};

/// A raw socket to the server, blocking, with a deadline that only a failing test reaches.
trait Raw: Read + Write {}
impl<T: Read + Write> Raw for T {}

fn raw(world: &World) -> Box<dyn Raw> {
    let patience = Some(Duration::from_secs(60));
    match world.address.as_ref().expect("it has a server") {
        Address::Tcp(address) | Address::Ofi(address) => {
            let socket = TcpStream::connect(address).expect("it listens");
            socket.set_read_timeout(patience).expect("a valid time");
            socket.set_write_timeout(patience).expect("a valid time");
            Box::new(socket)
        }
        Address::Tls(address) => {
            let socket = TcpStream::connect(address).expect("it listens");
            socket.set_read_timeout(patience).expect("a valid time");
            socket.set_write_timeout(patience).expect("a valid time");
            Box::new(StreamOwned::new(in_tls(world), socket))
        }
        Address::Unix(path) => {
            let socket = UnixStream::connect(path).expect("it listens");
            socket.set_read_timeout(patience).expect("a valid time");
            socket.set_write_timeout(patience).expect("a valid time");
            Box::new(socket)
        }
    }
}

/// TLS of which the socket's owner sends what it likes.
fn in_tls(world: &World) -> ClientConnection {
    let mut roots = RootCertStore::empty();
    let pem = std::fs::read(world.dir().join("ca.pem")).expect("there");
    roots.add(CertificateDer::from_pem_slice(&pem).expect("PEM")).expect("a CA");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from("127.0.0.1").expect("a name");
    ClientConnection::new(Arc::new(config), name).expect("a configuration")
}

fn on_every_socket_with(config: ServerConfig, test: impl AsyncFn(&World)) {
    world::on_every_socket_with(&config, async |world: World| {
        test(&world).await;
        // Whatever happened, a decent client is served.
        let answer = world.connection.call(METHOD_ECHO, Bytes::from_static(b"still here")).await;
        assert_eq!(answer, Ok(Bytes::from_static(b"still here")));
    });
}

fn frame(len: u32, version: u8, kind: u8, argument: u16, body: &[u8]) -> Vec<u8> {
    let mut bytes = len.to_le_bytes().to_vec();
    bytes.extend_from_slice(&[version, kind]);
    bytes.extend_from_slice(&argument.to_le_bytes());
    bytes.extend_from_slice(&7u64.to_le_bytes());
    bytes.extend_from_slice(body);
    bytes
}

fn hello() -> Vec<u8> {
    frame(8, 2, 1, 0, b"rma\0\x02\x02\0\0")
}

/// Whether the server closed the connection: with an end, or with a reset if it had not read everything.
fn is_closed(socket: &mut dyn Raw) -> bool {
    let mut bytes = Vec::new();
    match socket.read_to_end(&mut bytes) {
        Ok(_) => true,
        // In TLS an end is told, or else it is an error.
        Err(error) => [ErrorKind::ConnectionReset, ErrorKind::UnexpectedEof, ErrorKind::BrokenPipe]
            .contains(&error.kind()),
    }
}

#[test]
fn what_is_no_frame_costs_its_sender_the_connection() {
    on_every_socket_with(ServerConfig::default(), async |world| {
        let after_hello = |bytes: Vec<u8>| [hello(), bytes].concat();
        let attacks = [
            b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec(),
            vec![0xff; 100],
            vec![0; 16],
            frame(8, 2, 1, 0, b"rmb\0\x02\x02\0\0"),
            frame(8, 2, 1, 0, b"rma\0\x03\x04\0\0"),
            frame(24, 2, 2, 1, &[0; 24]),
            after_hello(hello()),
            after_hello(frame(u32::MAX, 2, 2, u16::MAX, b"")),
            after_hello(frame(u32::MAX, 2, 5, 0, b"")),
            after_hello(frame(24, 2, 2, 0xffff, &[0; 24])),
            after_hello(frame(8, 2, 0x84, 0, &[0; 8])),
            // A batch of 1,024 reads of a megabyte each.
            after_hello(frame(24 * 1024, 2, 2, 1024, &[0, 0, 0, 0, 0, 0, 0x10, 0].repeat(3 * 1024))),
        ];
        for attack in attacks {
            let mut socket = raw(world);
            // The server may close before it has all of it.
            let _ = socket.write_all(&attack);
            assert!(is_closed(&mut *socket), "{:?}", &attack[..attack.len().min(64)]);
        }
    });
}

#[test]
fn random_garbage_costs_nobody_else_anything() {
    on_every_socket_with(ServerConfig::default(), async |world| {
        let mut runner = TestRunner::new(Config { cases: 100, ..Config::default() });
        let input = (any::<bool>(), prop::collection::vec(any::<u8>(), 0..500));
        let result = runner.run(&input, |(greets, garbage)| {
            let mut socket = raw(world);
            if greets {
                socket.write_all(&hello()).expect("it was just connected");
            }
            let _ = socket.write_all(&garbage);
            Ok(())
        });
        result.expect("the server takes connections throughout");
    });
}

#[test]
fn who_says_nothing_or_half_a_frame_is_dropped_in_time() {
    let short = Duration::from_secs(2);
    let config = ServerConfig { hello_deadline: short, frame_deadline: short, ..ServerConfig::default() };
    on_every_socket_with(config, async |world| {
        let half = [hello(), frame(8, 2, 4, 0, b"half")].concat();
        let partial: [&[u8]; 4] = [b"", &hello()[..3], &hello()[..20], &half];
        let sockets = partial.map(|bytes| {
            let mut socket = raw(world);
            // Dropped by then, if this test stood still.
            let _ = socket.write_all(bytes);
            socket
        });
        for mut socket in sockets {
            assert!(is_closed(&mut *socket));
        }
    });
}

#[test]
fn an_idle_tcp_client_is_dropped_and_is_told() {
    let config = ServerConfig { idle_deadline: Some(Duration::from_millis(100)), ..ServerConfig::default() };
    run(async {
        let world = World::with_config(Transport::Tcp, config).await;
        while world.connection.lost().is_none() {
            world.env.sleep(Duration::from_millis(5)).await;
        }
    });
}

#[test]
fn who_never_reads_its_answers_holds_little_memory_and_is_dropped() {
    let config = ServerConfig { drain_deadline: Duration::from_millis(500), ..ServerConfig::default() };
    on_every_socket_with(config, async |world| {
        let generation = world.service.regions[0].generation();
        let mut op = vec![0, 0, 0, 0, 0, 0, 0x10, 0];
        op.extend_from_slice(&generation.to_le_bytes());
        op.extend_from_slice(&[0; 8]);
        // Four megabytes each.
        let reads = frame(24 * 4, 2, 2, 4, &op.repeat(4)).repeat(200);
        let mut socket = raw(world);
        socket.write_all(&hello()).expect("it was just connected");
        // Dropped at the latest when the deadline passes, so the writing ends one way or the other.
        let _ = socket.write_all(&reads);
        let server = world.server.as_ref().expect("it has one");
        let mut most = 0;
        while server.connections() > 1 {
            most = most.max(server.memory());
            // A decent client is served meanwhile.
            let answer = world.connection.call(METHOD_ECHO, Bytes::from_static(b"hi")).await;
            assert_eq!(answer, Ok(Bytes::from_static(b"hi")));
        }
        assert!(most < 16 << 20, "{most} bytes were held");
    });
}

#[test]
fn who_fills_the_memory_of_all_is_dropped_and_not_who_finds_no_room_left() {
    const MEMORY_BYTES_MAX: usize = 1 << 20;
    const GREEDY: usize = 64 << 10;
    const MODEST: usize = 2 << 10;
    let patient = Duration::from_secs(600);
    let config = ServerConfig {
        memory_bytes_max: MEMORY_BYTES_MAX,
        frame_deadline: patient,
        ..ServerConfig::default()
    };
    on_every_socket_with(config, async |world| {
        let server = world.server.as_ref().expect("it has one");
        // A CALL of so many bytes, of which so many are sent, and held.
        let begin = |bytes: usize, sent: usize| {
            let mut socket = raw(world);
            socket.write_all(&hello()).expect("it was just connected");
            // From its answer on the connection counts; what follows the header of that nobody needs here.
            socket.read_exact(&mut [0; 16]).expect("it is answered");
            let length = u32::try_from(bytes).expect("short");
            socket.write_all(&frame(length, 2, 5, METHOD_ECHO, &vec![1; sent])).expect("there is room");
            socket
        };
        // As many who promise much as there is room for.
        let mut greedy = Vec::new();
        let mut connections = server.connections();
        while server.connections() == connections {
            greedy.push(begin(8 << 20, GREEDY));
            connections += 1;
            // What all of them hold, never the growth by one: the sum also falls, as when a hello has been answered.
            while server.memory() < greedy.len() * GREEDY && server.connections() == connections {
                world.env.sleep(Duration::from_millis(1)).await;
            }
        }
        // Together they are more than is left, and each of them is far below its share. A greedy one whose bytes come
        // only now is dropped, and may leave them room: so the connections are counted before.
        let connections = server.connections() + 80;
        let mut modest: Vec<_> = (0..80).map(|_| begin(2 * MODEST, MODEST)).collect();
        while server.memory() <= MEMORY_BYTES_MAX && server.connections() == connections {
            world.env.sleep(Duration::from_millis(1)).await;
        }
        // Greed that goes on ends the greedy.
        let mut first = greedy.swap_remove(0);
        let _ = first.write_all(&vec![1; MEMORY_BYTES_MAX]);
        assert!(is_closed(&mut *first));
        for socket in &mut modest {
            socket.write_all(&vec![1; MODEST]).expect("it is there");
            socket.read_exact(&mut vec![0; 2 * MODEST]).expect("an answer");
        }
    });
}

#[test]
fn a_crowd_of_connections_is_cut_off_at_the_limit() {
    let config = ServerConfig { connections_max: 10, ..ServerConfig::default() };
    on_every_socket_with(config, async |world| {
        // One is the world's own.
        let mut kept: Vec<_> = (0..9).map(|_| raw(world)).collect();
        for socket in &mut kept {
            socket.write_all(&hello()).expect("it was just connected");
            socket.read_exact(&mut [0; 16]).expect("it is answered");
        }
        let mut one_more = raw(world);
        assert!(is_closed(&mut *one_more));
        world.connect().await.err().expect("there is no room");
        drop(kept);
        while world.server.as_ref().is_some_and(|server| server.connections() > 1) {
            world.env.sleep(Duration::from_millis(1)).await;
        }
        world.connect().await.expect("there is room again");
    });
}

#[test]
fn calls_that_hang_fill_the_limit_and_leave_reads_alone() {
    on_every_socket_with(ServerConfig::default(), async |world| {
        let calls = (0..300).map(|_| world.connection.call(METHOD_HANG, Bytes::new()));
        let mut calls: Vec<_> = calls.collect();
        let mut overloaded = 0;
        // All are polled, so all are sent; those over the limit are answered.
        while overloaded < 300 - tailwater_rma::limits::CALLS_PER_CONNECTION_MAX {
            let (answer, _, rest) = futures::future::select_all(calls).await;
            assert!(matches!(answer, Err(tailwater_rma::CallError::Overloaded { .. })), "{answer:?}");
            overloaded += 1;
            calls = rest;
        }
        let mut out = [0; 8];
        let read = world.connection.read(&[world.op(0, 0, 8)], &mut out).await;
        assert_eq!(read, Ok(vec![Ok(())]));
        // The workers may still be handing the last ones to the service.
        let all_hang = || {
            let mut hanging = world.service.hanging.lock().expect("no test panics with it");
            let all = hanging.len() == tailwater_rma::limits::CALLS_PER_CONNECTION_MAX;
            if all {
                hanging.clear();
            }
            all
        };
        while !all_hang() {
            world.env.sleep(Duration::from_millis(1)).await;
        }
        for answer in futures::future::join_all(calls).await {
            assert!(matches!(answer, Err(tailwater_rma::CallError::Refused { .. })), "{answer:?}");
        }
    });
}

#[test]
fn a_server_that_speaks_another_language_is_no_server_of_ours() {
    run(async {
        let env = tailwater_env::Env::real();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = Address::Tcp(listener.local_addr().expect("it is bound"));
        let answers = [
            b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(),
            frame(8, 2, 0x81, 0, &[9, 0, 0, 0, 0, 0, 0, 0]),
            frame(8 + 24, 2, 0x81, 1, &[1; 32]),
            // Announces files that do not come.
            frame(8, 2, 0x81, 0, &[2, 2, 0, 0, 0, 0, 0, 0]),
            frame(4, 2, 0x84, 0, &[0; 4]),
            vec![],
        ];
        let server = std::thread::spawn(move || {
            for answer in answers {
                let (mut socket, _) = listener.accept().expect("a client comes");
                socket.read_exact(&mut [0; 24]).expect("it says hello");
                socket.write_all(&answer).expect("it is there");
            }
        });
        for _ in 0..6 {
            match connect(&env, &address).await.err() {
                Some(ConnectError::Greeting { .. }) => {}
                other => panic!("{other:?}"),
            }
        }
        server.join().expect("the server's side does not panic");
    });
}

#[test]
fn a_server_that_turns_hostile_costs_the_client_that_connection_only() {
    run(async {
        let env = tailwater_env::Env::real();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = Address::Tcp(listener.local_addr().expect("it is bound"));
        let attacks = [
            vec![0xff; 64],
            // An answer to nothing that was asked.
            [&frame(4, 2, 0x85, 0, b"what")[..8], &u64::MAX.to_le_bytes(), b"what"].concat(),
            // An answer of another kind than the question; its id is the first request's.
            [&frame(1, 2, 0x82, 1, b"")[..8], &1u64.to_le_bytes(), b"\0"].concat(),
            frame(u32::MAX, 2, 0x82, 1, b""),
            vec![],
        ];
        let count = attacks.len();
        let server = std::thread::spawn(move || {
            for attack in attacks {
                let (mut socket, _) = listener.accept().expect("a client comes");
                socket.read_exact(&mut [0; 24]).expect("it says hello");
                let greeting = frame(8, 2, 0x81, 0, &[2, 0, 0, 0, 1, 0, 0, 0]);
                socket.write_all(&greeting).expect("it is there");
                socket.read_exact(&mut [0; 16]).expect("it asks for something");
                socket.write_all(&attack).expect("it is there");
            }
        });
        for _ in 0..count {
            let connection = connect(&env, &address).await.expect("it greets");
            let call = connection.call(METHOD_ECHO, Bytes::new()).await;
            assert!(matches!(call, Err(tailwater_rma::CallError::Lost(_))), "{call:?}");
            assert!(connection.lost().is_some());
        }
        server.join().expect("the server's side does not panic");
    });
}
