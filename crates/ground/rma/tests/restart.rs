//! Servers that go away and come back: readers get to know, and never take the new one's memory for the old one's.

#![allow(missing_docs)]

mod world;

use std::time::Duration;

use bytes::Bytes;
use tailwater_rma::{
    Address, Backing, CallError, ConnectError, LocalDoorbell, OpError, ReadOp, Server, ServerConfig, connect,
    local,
};

use world::{
    METHOD_ECHO, METHOD_HANG, TestService, Transport, World, on_every_socket, on_every_transport, run,
};

#[test]
fn everything_under_way_ends_when_the_server_does() {
    on_every_transport(async |mut world: World| {
        let connection = world.connection.clone();
        let seen = connection.watch(0, Duration::ZERO).await.expect("it is there");
        let call = connection.call(METHOD_HANG, Bytes::new());
        let watch = connection.watch(seen, Duration::from_secs(600));
        let stop = async {
            // The call is with the application; the watch was polled before this.
            while world.service.hanging.lock().expect("no test panics with it").is_empty() {
                world.env.sleep(Duration::from_millis(1)).await;
            }
            world.end();
        };
        let (call, watch, ()) = futures::future::join3(call, watch, stop).await;
        assert!(matches!(call, Err(CallError::Lost(_))), "{call:?}");
        watch.expect_err("nobody rings any more");
        let lost = connection.lost().expect("it is known by now");
        let address = world.address.as_ref().map_or("local".to_owned(), ToString::to_string);
        assert_eq!(lost.peer, address);
        let mut out = [0; 4];
        assert_eq!(connection.read(&[world.op(0, 0, 4)], &mut out).await, Err(lost.clone()));
        assert_eq!(connection.call(METHOD_ECHO, Bytes::new()).await, Err(CallError::Lost(lost.clone())));
        assert_eq!(connection.watch(seen, Duration::from_secs(600)).await, Err(lost));
    });
}

#[test]
fn a_connection_to_a_service_of_this_process_that_has_ended_is_lost_from_the_begin() {
    run(async {
        let bell = LocalDoorbell::new();
        let (service, env) = (TestService::new(Backing::Private), tailwater_env::Env::real());
        bell.close();
        let late = local::connect(service, bell, &env);
        assert!(late.lost().is_some());
        let call = late.call(METHOD_ECHO, Bytes::new()).await;
        assert!(matches!(call, Err(CallError::Lost(_))), "{call:?}");
    });
}

#[test]
fn the_next_server_at_the_address_refuses_the_old_ones_generation() {
    on_every_socket(async |mut world: World| {
        let old = world.op(0, 0, 4);
        drop(world.server.take());
        let address = world.address.clone().expect("it had a server");
        let config = match &address {
            Address::Tcp(address) => ServerConfig { tcp: Some(*address), ..ServerConfig::default() },
            Address::Tls(address) => ServerConfig {
                tcp: Some(*address),
                tls: world.tls.acceptor.clone(),
                ..ServerConfig::default()
            },
            Address::Ofi(address) => ServerConfig {
                tcp: Some(*address),
                ofi: Some("tcp;ofi_rxm".to_owned()),
                ..ServerConfig::default()
            },
            Address::Unix(path) => ServerConfig { unix: Some(path.clone()), ..ServerConfig::default() },
        };
        let backing =
            if world.transport == Transport::UnixFrames { Backing::Private } else { Backing::Shared };
        let service = TestService::new(backing);
        service.regions[0].write(0, b"new!");
        let _server = Server::start(&world.env, config, service.clone()).expect("the address is free again");
        let connection = world.connect().await.expect("it listens");
        let new = ReadOp { generation: service.regions[0].generation(), ..old };
        let mut out = [0; 8];
        let results = connection.read(&[old, new], &mut out).await;
        assert_eq!(results, Ok(vec![Err(OpError::StaleRegion), Ok(())]));
        assert_eq!(&out[4..], b"new!");
    });
}

#[test]
fn a_connection_that_is_dropped_is_gone_from_the_server() {
    on_every_socket(async |world: World| {
        let World { connection, server, env, .. } = world;
        let server = server.expect("it has one");
        assert_eq!(server.connections(), 1);
        drop(connection);
        while server.connections() > 0 {
            env.sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(server.memory(), 0);
    });
}

#[test]
fn nobody_listens_where_a_server_was() {
    on_every_socket(async |mut world: World| {
        drop(world.server.take());
        let address = world.address.clone().expect("it had a server");
        match world.connect().await.err() {
            Some(ConnectError::Io { .. }) => {}
            other => panic!("{other:?}"),
        }
        if let Address::Unix(path) = address {
            assert!(!path.exists(), "the socket's file is removed");
        }
    });
}

#[test]
fn a_second_server_is_refused_while_the_first_listens_and_replaces_one_that_was_killed() {
    run(async {
        let world = World::new(Transport::Shm).await;
        let path = world.server.as_ref().and_then(Server::unix_path).expect("it listens there").to_owned();
        let config = ServerConfig { unix: Some(path.clone()), ..ServerConfig::default() };
        let service = TestService::new(Backing::Shared);
        let error = Server::start(&world.env, config.clone(), service.clone()).expect_err("it is taken");
        assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);

        // A killed process leaves its socket's file behind.
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("left");
        drop(std::os::unix::net::UnixListener::bind(&path).expect("the name is free"));
        assert!(path.exists());
        let config = ServerConfig { unix: Some(path), ..config };
        let server = Server::start(&world.env, config, service).expect("nobody listens there");
        connect(&world.env, &world::address_of(&server)).await.expect("it listens");
    });
}

#[test]
fn who_takes_over_from_a_killed_server_waits_until_the_kernel_has_let_go_of_its_sockets() {
    run(async {
        let world = World::new(Transport::Shm).await;
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("left");
        // As an io_uring does that outlives its process.
        let held = std::os::unix::net::UnixListener::bind(&path).expect("the name is free");
        let config = ServerConfig { unix: Some(path), ..ServerConfig::default() };
        let service = TestService::new(Backing::Shared);
        let mut taking_over = std::pin::pin!(Server::take_over(&world.env, config, service));
        assert!(futures::poll!(&mut taking_over).is_pending());
        drop(held);
        let server = taking_over.await.expect("nobody listens there any more");
        connect(&world.env, &world::address_of(&server)).await.expect("it listens");
    });
}
