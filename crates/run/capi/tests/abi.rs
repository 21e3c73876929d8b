//! The ABI as its users see it: the header, a program in C, and what Rust can try that C would rather not.

#![allow(clippy::disallowed_methods)] // real files, sockets and processes
#![allow(unsafe_code)] // what is tested is a C ABI

use std::ffi::{CStr, CString, c_char};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::ptr::{null, null_mut};
use std::sync::Arc;

use tailwater::*;
use tailwater_cache::{Backend, BackendConfig, Backends, Cell, CellConfig, Configuration, Mode};
use tailwater_env::Env;
use tailwater_rma::{Backing, Server, ServerConfig, Service};

fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn the_header_is_what_the_code_says() {
    let config = cbindgen::Config::from_file(folder().join("cbindgen.toml")).expect("a configuration");
    let bindings = cbindgen::generate_with_config(folder(), config).expect("the crate can be read");
    let mut made = Vec::new();
    bindings.write(&mut made);
    let made = String::from_utf8(made).expect("text").replace("# Safety\n", "Safety\n");
    let path = folder().join("include/tailwater.h");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, &made).expect("the header can be written");
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    let differs = made.lines().zip(committed.lines()).find(|(made, committed)| made != committed);
    assert!(
        made == committed,
        "include/tailwater.h is older than the code (first difference: {differs:?}); make it anew: \
         UPDATE=1 cargo test -p tailwater-capi --test abi"
    );
}

/// A cell of three backends in this process, which clients reach by a socket.
struct ServedCell {
    seed: CString,
    _cell: Cell,
    _served: Vec<(Server, Arc<Backend>)>,
    _runtime: tokio::runtime::Runtime,
    _dir: tempfile::TempDir,
}

impl ServedCell {
    fn start() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let dir = tempfile::tempdir().expect("a directory");
        let within = runtime.enter();
        let env = Env::real();
        let serve = |number: usize| {
            let backend = BackendConfig::data(4 << 20, 4_096, 0, Backing::Shared);
            let backend = Backend::start(&env, backend).expect("memory");
            let unix = Some(dir.path().join(number.to_string()));
            let config = ServerConfig { unix, ..ServerConfig::default() };
            let service = Arc::clone(&backend) as Arc<dyn Service>;
            let server = Server::start(&env, config, service).expect("a server");
            let doorbell = server.doorbell();
            backend.ring_on_change(move || doorbell.ring());
            (server, backend)
        };
        let served: Vec<_> = (0..3).map(serve).collect();
        let address =
            |(server, _): &(Server, _)| format!("unix:{}", server.unix_path().expect("its path").display());
        let addresses: Vec<Vec<String>> = served.iter().map(|served| vec![address(served)]).collect();
        let seed = CString::new(addresses[1][0].clone()).expect("a path");
        let first = Configuration::first_id(env.wall_ms(), 0);
        let configuration =
            Configuration::first(first, "tiles", Mode::R32, addresses).expect("three backends");
        let config = CellConfig::of(configuration, Backends::by_address(&env), 1);
        let cell = runtime.block_on(Cell::connect(&env, config)).expect("a cell");
        drop(within);
        Self { seed, _cell: cell, _served: served, _runtime: runtime, _dir: dir }
    }

    /// A handle on it that waits as long as a busy machine needs.
    fn open(&self) -> *mut TailwaterCell {
        let options = TailwaterOptions {
            name: null(),
            ca_file: null(),
            certificate_file: null(),
            key_file: null(),
            transport: 0,
            deadline_ms: 60_000,
        };
        let seeds = [self.seed.as_ptr()];
        // SAFETY: the seed and the options are there until the call returns, and the operation is this function's.
        unsafe {
            let opening = tailwater_cell_at(seeds.as_ptr(), 1, &options, null(), 0);
            assert_eq!(tailwater_operation_wait(opening, -1), TailwaterStatus::Ok, "{}", why(opening));
            let cell = tailwater_operation_cell(opening);
            assert!(!cell.is_null());
            assert!(tailwater_operation_cell(opening).is_null(), "it is taken once");
            tailwater_operation_free(opening);
            cell
        }
    }
}

/// What an operation says went wrong.
///
/// # Safety
/// It is one, and is not freed.
unsafe fn why(operation: *const TailwaterOperation) -> String {
    // SAFETY: as this function's.
    unsafe { CStr::from_ptr(tailwater_operation_error(operation)) }.to_str().expect("UTF-8").to_owned()
}

/// Frees an operation that has to have been refused, with these words.
///
/// # Safety
/// It is one, and nobody else's.
unsafe fn assert_refused(operation: *mut TailwaterOperation, status: TailwaterStatus, words: &str) {
    // SAFETY: as this function's.
    unsafe {
        let why = why(operation);
        assert_eq!(tailwater_operation_wait(operation, -1), status, "{why}");
        assert!(why.contains(words), "{why:?} does not say {words:?}");
        assert!(
            tailwater_operation_cell(operation).is_null() && tailwater_operation_batch(operation).is_null()
        );
        tailwater_operation_free(operation);
    }
}

fn bytes(text: &[u8]) -> TailwaterBytes {
    TailwaterBytes { data: text.as_ptr(), len: text.len() }
}

/// The directory in which cargo puts the library that it builds for this test.
fn built() -> PathBuf {
    std::env::current_exe().expect("this program").parent().expect("its directory").to_owned()
}

#[test]
fn a_program_in_c_sets_and_gets_a_key() {
    let served = ServedCell::start();
    let program = served._dir.path().join("tea");
    let mut compile = Command::new("cc");
    compile
        .args(["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-I"])
        .arg(folder().join("include"));
    compile
        .arg(folder().join("examples/tea.c"))
        .arg("-L")
        .arg(built())
        .args(["-ltailwater", "-o"])
        .arg(&program);
    assert!(compile.status().expect("a C compiler links Rust programs too").success());
    let mut run = Command::new(&program);
    run.arg(served.seed.to_str().expect("text")).env("LD_LIBRARY_PATH", built());
    let ran = run.output().expect("it starts");
    assert_eq!(
        (ran.status.success(), String::from_utf8_lossy(&ran.stdout).as_ref()),
        (true, "tea is Darjeeling\n"),
        "{}",
        String::from_utf8_lossy(&ran.stderr)
    );
}

#[test]
fn a_notifier_tells_of_each_operation_once_and_its_descriptor_is_readable_until_all_are_taken() {
    let served = ServedCell::start();
    let cell = served.open();
    // SAFETY: handles are this function's, and freed once; what is lent is there as long as it is used.
    unsafe {
        let notifier = tailwater_notifier_new();
        let descriptor = tailwater_notifier_fd(notifier);
        let item = TailwaterItem { key: bytes(b"k"), value: bytes(b"v"), ttl_ms: 0 };
        let started: Vec<_> = (0..50)
            .map(|tag| (tag, tailwater_cell_set(cell, &item, 1, notifier, tag)))
            .filter(|(_, operation)| tailwater_operation_status(*operation) == TailwaterStatus::Pending)
            .collect();
        assert!(!started.is_empty(), "a SET waits for an answer");
        let mut told = Vec::new();
        while told.len() < started.len() {
            assert!(is_readable(descriptor, -1));
            let mut tags = [0; 8];
            let count = tailwater_notifier_take(notifier, tags.as_mut_ptr(), tags.len());
            told.extend_from_slice(&tags[..count]);
        }
        // Those that were seen pending may have ended between.
        told.sort_unstable();
        assert!(started.iter().all(|(tag, _)| told.binary_search(tag).is_ok()), "{told:?}");
        for (_, operation) in started {
            assert_eq!(tailwater_operation_status(operation), TailwaterStatus::Ok);
            let mut count = 0;
            let change = tailwater_operation_changes(operation, &mut count);
            assert_eq!((count, (*change).changed), (1, TailwaterChanged::Applied));
            tailwater_operation_free(operation);
        }
        tailwater_notifier_free(notifier);
        tailwater_cell_free(cell);
    }
}

/// Whether a descriptor can be read from, now or within so many milliseconds; -1 is as long as it takes.
fn is_readable(descriptor: i32, within_ms: i64) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    // SAFETY: it is open as long as its notifier is not freed.
    let borrowed = unsafe { std::os::fd::BorrowedFd::borrow_raw(descriptor) };
    let mut waited = [PollFd::new(&borrowed, PollFlags::IN)];
    let timeout = Timespec { tv_sec: within_ms / 1_000, tv_nsec: within_ms % 1_000 * 1_000_000 };
    poll(&mut waited, (within_ms >= 0).then_some(&timeout)).expect("it is polled") > 0
}

#[test]
fn what_makes_no_sense_is_refused_in_words_and_nothing_else_happens() {
    let served = ServedCell::start();
    let cell = served.open();
    // SAFETY: handles are this function's, and freed once; null pointers are what is tried.
    unsafe {
        use TailwaterStatus::InvalidArgument;
        let key = bytes(b"k");
        assert_refused(
            tailwater_cell_get(null(), &key, 1, 0, null(), 0),
            InvalidArgument,
            "cell: a null pointer",
        );
        assert_refused(
            tailwater_cell_get(cell, null(), 1, 0, null(), 0),
            InvalidArgument,
            "keys: a null pointer",
        );
        assert_refused(
            tailwater_cell_get(cell, &key, 1, 9, null(), 0),
            InvalidArgument,
            "TailwaterLookupMode",
        );
        assert_refused(
            tailwater_cell_get(cell, &key, 1 << 20, 0, null(), 0),
            InvalidArgument,
            "at most 65536",
        );
        let wild = TailwaterBytes { data: null(), len: 3 };
        assert_refused(
            tailwater_cell_get(cell, &wild, 1, 0, null(), 0),
            InvalidArgument,
            "key: a null pointer",
        );
        let endless = TailwaterBytes { data: key.data, len: usize::MAX };
        assert_refused(tailwater_cell_get(cell, &endless, 1, 0, null(), 0), InvalidArgument, "key: ");
        assert_refused(
            tailwater_cell_cas(cell, null(), null(), null(), 0),
            InvalidArgument,
            "item: a null pointer",
        );
        assert_refused(tailwater_cell_at(null(), 0, null(), null(), 0), InvalidArgument, "no seed");
        let not_text: *const c_char = c"\xff".as_ptr();
        assert_refused(tailwater_cell_at(&not_text, 1, null(), null(), 0), InvalidArgument, "not UTF-8");
        assert_refused(tailwater_client_open(null(), null(), null(), 0), InvalidArgument, "address: a null");
        assert_refused(tailwater_consumer_poll(null(), 0, null(), 0), InvalidArgument, "consumer: a null");
        for nothing in [tailwater_operation_status(null_mut()), tailwater_operation_wait(null_mut(), -1)] {
            assert_eq!(nothing, InvalidArgument);
        }
        // Nothing to be freed is no reason to crash, and neither is no key.
        tailwater_operation_free(null_mut());
        tailwater_cell_free(null_mut());
        tailwater_notifier_free(null_mut());
        let nothing = tailwater_cell_get(cell, null(), 0, 0, null(), 0);
        assert_eq!(tailwater_operation_wait(nothing, -1), TailwaterStatus::Ok);
        let mut count = 9;
        tailwater_operation_lookups(nothing, &mut count);
        assert_eq!(count, 0);
        assert!(tailwater_operation_changes(nothing, &mut count).is_null(), "it was no change");
        tailwater_operation_free(nothing);
        tailwater_cell_free(cell);
    }
}

#[test]
fn an_operation_without_a_notifier_goes_on_where_it_is_waited_for_and_is_cancelled_by_freeing() {
    let served = ServedCell::start();
    let cell = served.open();
    // SAFETY: handles are this function's, and freed once; what is lent is there as long as it is used.
    unsafe {
        let item = TailwaterItem { key: bytes(b"k"), value: bytes(b"v"), ttl_ms: 0 };
        let setting = tailwater_cell_set(cell, &item, 1, null(), 0);
        while tailwater_operation_wait(setting, 1) == TailwaterStatus::Pending {}
        assert_eq!(tailwater_operation_status(setting), TailwaterStatus::Ok);
        tailwater_operation_free(setting);
        // Nobody has to wait for one.
        let abandoned = tailwater_cell_set(cell, &item, 1, null(), 0);
        tailwater_operation_free(abandoned);
        // An operation holds what it needs: the handle may go first.
        let getting = tailwater_cell_get(cell, &item.key, 1, 0, null(), 0);
        tailwater_cell_free(cell);
        assert_eq!(tailwater_operation_wait(getting, -1), TailwaterStatus::Ok);
        let mut count = 0;
        let lookup = *tailwater_operation_lookups(getting, &mut count);
        assert_eq!((count, lookup.found), (1, TailwaterFound::Hit));
        assert_eq!(std::slice::from_raw_parts(lookup.value.data, lookup.value.len), b"v");
        tailwater_operation_free(getting);
    }
}
