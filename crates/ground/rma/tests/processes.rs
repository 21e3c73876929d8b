//! Real processes: servers that are killed or stopped, and readers that try to write.

#![allow(missing_docs)]
#![allow(clippy::disallowed_methods)] // it looks at real processes
#![allow(unsafe_code)] // tries to map what the server passed

mod world;

use std::io::{BufRead, BufReader, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use bytes::Bytes;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use rustix::process::{Pid, Signal, kill_process};
use tailwater_env::Env;
use tailwater_rma::{Address, Backing, CallError, Connection, ReadOp, Server, ServerConfig, connect};

use world::{METHOD_ECHO, TestService, Transport, World, run};

const SERVE: &str = "RMA_TEST_SERVE";

/// No test: the server's process of the tests below, which start this binary again with a path to listen at. It
/// lives until its standard input ends.
#[test]
fn serve_for_another_process() {
    let Ok(path) = std::env::var(SERVE) else {
        return;
    };
    run(async {
        let env = Env::real();
        let service = TestService::new(Backing::Shared);
        service.regions[0].write(0, b"served");
        let config = ServerConfig {
            unix: Some(path.into()),
            tcp: Some(([127, 0, 0, 1], 0).into()),
            ofi: cfg!(feature = "ofi").then(|| world::PROVIDERS[0].to_owned()),
            ..ServerConfig::default()
        };
        let server = Server::start(&env, config, service).expect("it starts");
        let address = server.tcp_addr().expect("it listens at TCP");
        // On a line of its own: the test harness has begun one.
        println!("\nserving {}", Address::Tcp(address));
        std::io::stdout().flush().expect("somebody reads");
        std::io::stdin().lines().count();
    });
}

struct ServerProcess {
    child: Child,
    tcp: Address,
    unix: Address,
    _dir: tempfile::TempDir,
}

impl ServerProcess {
    fn start() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("socket");
        let mut child = Command::new(std::env::current_exe().expect("we run"))
            .args(["--exact", "serve_for_another_process", "--nocapture"])
            .env(SERVE, &path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut lines = BufReader::new(child.stdout.take().expect("it is a pipe")).lines();
        let address = lines.find_map(|line| Some(line.ok()?.strip_prefix("serving ")?.parse()));
        let tcp = address.expect("it tells").expect("it is an address");
        Self { child, tcp, unix: Address::Unix(path), _dir: dir }
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).expect("process ids are small");
        let pid = Pid::from_raw(pid).expect("process ids are not 0");
        kill_process(pid, signal).expect("it is our child, not waited for");
    }

    /// Stops the process, and returns once all its threads have stopped.
    fn stop(&self) {
        self.signal(Signal::STOP);
        let is_stopped = || {
            let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).expect("it lives");
            tasks.into_iter().all(|task| {
                let stat = task.and_then(|task| std::fs::read_to_string(task.path().join("stat")));
                stat.expect("threads do not end meanwhile")
                    .rsplit(')')
                    .next()
                    .is_some_and(|rest| rest.trim_start().starts_with('T'))
            })
        };
        while !is_stopped() {
            std::thread::yield_now();
        }
    }

    fn kill(&mut self) {
        self.child.kill().expect("it is our child");
        self.child.wait().expect("it is our child");
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // A test that failed leaves no process behind.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn op(connection: &dyn Connection, len: u32) -> ReadOp {
    let info = connection.regions()[0];
    ReadOp { region: info.id, generation: info.generation, offset: 0, len }
}

/// The inodes of what a server passes.
fn inodes(server: &ServerProcess) -> Vec<u64> {
    let Address::Unix(path) = &server.unix else { panic!("it is a Unix socket") };
    let mut socket = UnixStream::connect(path).expect("it listens");
    socket.write_all(&hello()).expect("it is there");
    let (_, files) = receive(&socket);
    files.iter().map(|file| rustix::fs::fstat(file).expect("it is open").st_ino).collect()
}

/// How many of the files are mapped into this process.
fn mapped(inodes: &[u64]) -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("Linux tells");
    let inode_of = |line: &str| line.split_whitespace().nth(4)?.parse::<u64>().ok();
    maps.lines().filter(|line| inode_of(line).is_some_and(|inode| inodes.contains(&inode))).count()
}

#[test]
fn readers_of_a_server_that_is_killed_learn_of_it_and_give_its_memory_back() {
    run(async {
        let env = Env::real();
        let mut server = ServerProcess::start();
        let regions = &inodes(&server)[1..];
        let shm = connect(&env, &server.unix).await.expect("it listens");
        let tcp = connect(&env, &server.tcp).await.expect("it listens");
        let Address::Tcp(at) = server.tcp else { panic!("it is one of TCP") };
        let ofi = connect(&env, &Address::Ofi(at)).await.expect("it listens");
        assert_eq!(mapped(regions), 2);
        for connection in [&shm, &tcp, &ofi] {
            let mut out = [0; 6];
            let read = connection.read(&[op(&**connection, 6)], &mut out).await;
            assert_eq!((read, &out), (Ok(vec![Ok(())]), b"served"));
        }
        let watch = shm.watch(shm.watch(0, Duration::ZERO).await.expect("alive"), Duration::from_secs(600));
        server.kill();
        watch.await.expect_err("nobody rings any more");
        for connection in [&shm, &tcp, &ofi] {
            while connection.lost().is_none() {
                env.sleep(Duration::from_millis(1)).await;
            }
            let mut out = [0; 6];
            connection.read(&[op(&**connection, 6)], &mut out).await.expect_err("the server is dead");
        }
        // The connection is still held, its memory is not.
        while mapped(regions) > 0 {
            env.sleep(Duration::from_millis(1)).await;
        }
    });
}

#[test]
fn a_server_that_is_stopped_is_read_on_by_mapping_and_answers_calls_when_it_goes_on() {
    run(async {
        let env = Env::real();
        let server = ServerProcess::start();
        let shm = connect(&env, &server.unix).await.expect("it listens");
        server.stop();
        let mut out = [0; 6];
        let read = shm.read(&[op(&*shm, 6)], &mut out).await;
        assert_eq!((read, &out), (Ok(vec![Ok(())]), b"served"));
        let call = shm.call(METHOD_ECHO, Bytes::from_static(b"hello"));
        let call = match futures::future::select(call, env.sleep(Duration::from_millis(50))).await {
            futures::future::Either::Left((answer, _)) => panic!("it is stopped: {answer:?}"),
            futures::future::Either::Right(((), call)) => call,
        };
        server.signal(Signal::CONT);
        assert_eq!(call.await, Ok(Bytes::from_static(b"hello")));
    });
}

#[test]
fn a_client_that_is_killed_is_noticed_by_its_server_only() {
    // The client is a process in as far as its socket closes without a word.
    run(async {
        let world = World::new(Transport::Shm).await;
        let address = world.address.clone().expect("it has a server");
        let Address::Unix(path) = address else { panic!("it is a Unix socket") };
        let mut socket = UnixStream::connect(path).expect("it listens");
        socket.write_all(&hello()).expect("it is there");
        let (_, files) = receive(&socket);
        assert_eq!(files.len(), 3);
        drop(socket);
        while world.server.as_ref().is_some_and(|server| server.connections() > 1) {
            world.env.sleep(Duration::from_millis(1)).await;
        }
        let answer = world.connection.call(METHOD_ECHO, Bytes::new()).await;
        assert_eq!(answer, Ok::<_, CallError>(Bytes::new()));
    });
}

#[test]
fn what_a_server_passes_can_be_read_and_in_no_way_be_written() {
    let server = ServerProcess::start();
    let Address::Unix(path) = &server.unix else { panic!("it is a Unix socket") };
    let mut socket = UnixStream::connect(path).expect("it listens");
    socket.write_all(&hello()).expect("it is there");
    let (bytes, files) = receive(&socket);
    assert!(bytes > 0);
    // The doorbell and two regions.
    assert_eq!(files.len(), 3);
    for file in &files {
        let map = |protection| {
            // SAFETY: a fresh mapping at an address of the kernel's choice; it is leaked.
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), 4096, protection, MapFlags::SHARED, file, 0) }
        };
        assert_eq!(map(ProtFlags::READ | ProtFlags::WRITE), Err(Errno::PERM));
        let readable = map(ProtFlags::READ).expect("that is what it is passed for");
        // SAFETY: our own mapping of one page; what changes its protection changes nothing else.
        let made_writable = unsafe {
            rustix::mm::mprotect(
                readable,
                4096,
                rustix::mm::MprotectFlags::READ | rustix::mm::MprotectFlags::WRITE,
            )
        };
        assert_eq!(made_writable, Err(Errno::ACCESS));
        assert_eq!(rustix::io::pwrite(file, b"x", 0), Err(Errno::PERM));
        assert_eq!(rustix::fs::ftruncate(file, 0), Err(Errno::PERM));
        // Opened again by its name, it is the same file with the same seals.
        let name = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(file));
        let again = rustix::fs::open(name, rustix::fs::OFlags::RDWR, rustix::fs::Mode::empty());
        let again = again.expect("the file's mode allows it");
        // SAFETY: as above.
        let mapped = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                4096,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                again,
                0,
            )
        };
        assert_eq!(mapped, Err(Errno::PERM));
    }
}

/// A HELLO as it is on the wire.
fn hello() -> [u8; 24] {
    *b"\x08\0\0\0\x02\x01\0\0\0\0\0\0\0\0\0\0rma\0\x02\x02\0\0"
}

fn receive(socket: &UnixStream) -> (usize, Vec<OwnedFd>) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut buffer = [0; 1000];
    let buffers = &mut [IoSliceMut::new(&mut buffer)];
    let message = rustix::net::recvmsg(socket, buffers, &mut control, RecvFlags::CMSG_CLOEXEC);
    let bytes = message.expect("it answers").bytes;
    let mut files = Vec::new();
    for control in control.drain() {
        if let RecvAncillaryMessage::ScmRights(passed) = control {
            files.extend(passed);
        }
    }
    (bytes, files)
}
