//! Endpoints of libfabric, through the shim in C beside this file.
//!
//! A [`FabricEndpoint`] owns what others read of it, or what it reads into: memory that is registered, or that a read
//! is under way into, is given back behind the end of the endpoint only. An endpoint that libfabric does not end is
//! left as it is, with that memory, for as long as the process lives.
//!
//! Endpoints of the provider `shm` that are in one process have pointers to each other, which that provider follows
//! when the other one is closed. So where one serves and one reads, all are closed together, behind the last of them
//! ([`SHM`]). They do nothing meanwhile.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::fabric::pool::{FabricSlot, SlotPool};
use crate::frame::RegionKey;
use crate::limits::{FABRIC_NAME_BYTES_MAX, FABRIC_SLOTS};
use crate::region::Region;

/// Room behind a peer's name, which no format is longer than.
const NAME_ROOM: usize = 2 * FABRIC_NAME_BYTES_MAX;
/// Completions that one poll takes.
const POLLED_MAX: usize = 64;

#[repr(C)]
struct RawEndpoint {
    _opaque: [u8; 0],
}

#[repr(C)]
struct RawMemory {
    _opaque: [u8; 0],
}

/// As `tw_ofi_region`.
#[repr(C)]
struct RawRegion {
    memory: *mut RawMemory,
    desc: *mut c_void,
    key: u64,
    base: u64,
}

/// As `tw_ofi_done`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct RawDone {
    slot: u32,
    error: i32,
}

unsafe extern "C" {
    fn tw_ofi_load() -> *const c_char;
    fn tw_ofi_strerror(error: c_int) -> *const c_char;
    fn tw_ofi_open(
        provider: *const c_char,
        node: *const c_char,
        serves: c_int,
        slots: u32,
        out: *mut *mut RawEndpoint,
        step: *mut *const c_char,
    ) -> c_int;
    fn tw_ofi_close_endpoint(ofi: *mut RawEndpoint) -> c_int;
    fn tw_ofi_close(ofi: *mut RawEndpoint);
    fn tw_ofi_wait_fd(ofi: *const RawEndpoint) -> c_int;
    fn tw_ofi_trywait(ofi: *mut RawEndpoint) -> c_int;
    fn tw_ofi_format(ofi: *const RawEndpoint) -> u32;
    fn tw_ofi_name(ofi: *mut RawEndpoint, name: *mut c_void, len: *mut usize) -> c_int;
    fn tw_ofi_insert(ofi: *mut RawEndpoint, name: *const c_void, peer: *mut u64) -> c_int;
    fn tw_ofi_registers_local(ofi: *const RawEndpoint) -> c_int;
    fn tw_ofi_register(
        ofi: *mut RawEndpoint,
        base: *mut c_void,
        len: usize,
        key: u64,
        remote: c_int,
        out: *mut RawRegion,
    ) -> c_int;
    fn tw_ofi_deregister(memory: *mut RawMemory) -> c_int;
    fn tw_ofi_read(
        ofi: *mut RawEndpoint,
        slot: u32,
        to: *mut c_void,
        len: usize,
        desc: *mut c_void,
        peer: u64,
        address: u64,
        key: u64,
    ) -> c_int;
    fn tw_ofi_poll(ofi: *mut RawEndpoint, done: *mut RawDone, max: usize) -> c_int;
}

/// A peer that an endpoint knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FabricPeer(u64);

/// libfabric's provider of shared memory.
const SHM_PROVIDER: &str = "shm";

/// The endpoints of that provider in this process.
static SHM: Mutex<ShmEndpoints> =
    Mutex::new(ShmEndpoints { serving: 0, reading: 0, is_shared: false, parked: Vec::new() });

struct ShmEndpoints {
    serving: usize,
    reading: usize,
    /// There were some of both kinds, so that some may know each other.
    is_shared: bool,
    /// Those that are to be closed with the last.
    parked: Vec<OpenEndpoint>,
}

impl ShmEndpoints {
    fn count(&mut self, serves: bool) -> &mut usize {
        if serves { &mut self.serving } else { &mut self.reading }
    }
}

/// What a read asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FabricRead {
    pub(crate) peer: FabricPeer,
    pub(crate) key: u64,
    pub(crate) address: u64,
    /// At most a slot's.
    pub(crate) len: usize,
}

/// What became of a read that was begun.
pub(crate) enum BegunRead {
    /// It is under way.
    UnderWay,
    /// There is no room for it at the moment, or no connection yet.
    Again(FabricSlot),
    /// It will not be.
    Failed(io::Error),
}

/// One endpoint, with what it owns; see the module. Its functions are called by one thread at a time, as they take it
/// exclusively.
pub(crate) struct FabricEndpoint {
    /// There until it is dropped.
    open: Option<OpenEndpoint>,
    wait: Option<OwnedFd>,
    pool_desc: *mut c_void,
    /// Whether it serves, of one that is counted in [`SHM`].
    counted: Option<bool>,
}

// SAFETY: libfabric binds none of its objects to a thread, and what `pool_desc` and `open` point to is used by whoever
// has the value exclusively.
unsafe impl Send for FabricEndpoint {}

/// What has to be ended together.
struct OpenEndpoint {
    raw: NonNull<RawEndpoint>,
    registered: Vec<NonNull<RawMemory>>,
    /// Read by peers as long as it is registered.
    regions: Vec<Arc<Region>>,
    /// What reads are under way into.
    pool: Option<Arc<SlotPool>>,
    under_way: Vec<Option<FabricSlot>>,
}

// SAFETY: as of `FabricEndpoint`.
unsafe impl Send for OpenEndpoint {}

/// Loads libfabric.
///
/// # Errors
/// Where there is none, with what to install.
fn load() -> io::Result<()> {
    // SAFETY: takes nothing, may be called by several threads, and answers null or a text that stays.
    let why = unsafe { tw_ofi_load().as_ref().map(|why| CStr::from_ptr(why)) };
    why.map_or(Ok(()), |why| {
        let why = why.to_string_lossy();
        Err(io::Error::new(
            io::ErrorKind::Unsupported,
            format!(
                "libfabric is not there ({why}): install it, for example: sudo apt-get install libfabric1"
            ),
        ))
    })
}

/// One of libfabric's errors, whatever its sign.
pub(super) fn error_of(code: c_int, what: &str) -> io::Error {
    // SAFETY: any number has a text, which stays.
    let text = unsafe { CStr::from_ptr(tw_ofi_strerror(code)) };
    io::Error::other(format!("{what}: {}", text.to_string_lossy()))
}

fn checked(code: c_int, what: &str) -> io::Result<()> {
    if code == 0 { Ok(()) } else { Err(error_of(code, what)) }
}

fn is_again(code: c_int) -> bool {
    code == -libc::EAGAIN
}

impl FabricEndpoint {
    /// Opens one that serves regions, at `node` if its provider has addresses of IP.
    pub(crate) fn serving(provider: &str, node: Option<&str>) -> io::Result<Self> {
        Self::opened(provider, node, true)
    }

    /// Opens one that reads into `pool`, from where `node` is reached.
    pub(crate) fn reading(provider: &str, node: Option<&str>, pool: Arc<SlotPool>) -> io::Result<Self> {
        let mut endpoint = Self::opened(provider, node, false)?;
        // SAFETY: the endpoint is open.
        let registers = unsafe { tw_ofi_registers_local(endpoint.raw()) } != 0;
        let memory = pool.memory();
        let open = endpoint.open();
        open.pool = Some(Arc::clone(&pool));
        open.under_way.resize_with(FABRIC_SLOTS, || None);
        if registers {
            let registered = endpoint.register(memory.as_ptr(), memory.len(), 1, false)?;
            endpoint.pool_desc = registered.desc;
        }
        Ok(endpoint)
    }

    fn opened(provider: &str, node: Option<&str>, serves: bool) -> io::Result<Self> {
        load()?;
        let text = |text: &str| CString::new(text).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput));
        let (name, node) = (text(provider)?, node.map(text).transpose()?);
        let node = node.as_ref().map_or(std::ptr::null(), |node| node.as_ptr());
        let (mut raw, mut step) = (std::ptr::null_mut(), c"".as_ptr());
        let slots = FABRIC_SLOTS as u32;
        // SAFETY: both texts end in zero and live until the call is over, and so do the places for its results.
        let code = unsafe { tw_ofi_open(name.as_ptr(), node, serves.into(), slots, &mut raw, &mut step) };
        // SAFETY: `step` is a text of the program's, whether ours or the shim's.
        let step = unsafe { CStr::from_ptr(step) }.to_string_lossy();
        if code == -libc::ENODATA {
            let why = format!(
                "this libfabric has no provider {provider:?} here that does one-sided reads: `fi_info` of the package \
                 libfabric-bin lists those that it has, as tcp;ofi_rxm"
            );
            return Err(io::Error::new(io::ErrorKind::Unsupported, why));
        }
        checked(code, &step)?;
        let raw = NonNull::new(raw).expect("it is there after success");
        let open = OpenEndpoint {
            raw,
            registered: Vec::new(),
            regions: Vec::new(),
            pool: None,
            under_way: Vec::new(),
        };
        let counted = (provider == SHM_PROVIDER).then_some(serves);
        if counted.is_some() {
            let mut shm = SHM.lock();
            *shm.count(serves) += 1;
            shm.is_shared |= shm.serving > 0 && shm.reading > 0;
        }
        let mut endpoint = Self { open: Some(open), wait: None, pool_desc: std::ptr::null_mut(), counted };
        // SAFETY: the endpoint is open.
        let fd = unsafe { tw_ofi_wait_fd(raw.as_ptr()) };
        if fd >= 0 {
            // SAFETY: the descriptor is the endpoint's, which is there until the borrow is over.
            let fd = unsafe { BorrowedFd::borrow_raw(fd) };
            // Of our own: it can be waited for while somebody else has the endpoint.
            endpoint.wait = Some(rustix::io::fcntl_dupfd_cloexec(fd, 0)?);
        }
        Ok(endpoint)
    }

    fn open(&mut self) -> &mut OpenEndpoint {
        self.open.as_mut().expect("it is there until it is dropped")
    }

    fn raw(&self) -> *mut RawEndpoint {
        self.open.as_ref().expect("it is there until it is dropped").raw.as_ptr()
    }

    /// # Errors
    /// Whatever the provider says.
    fn register(&mut self, base: *mut u8, len: usize, key: u64, remote: bool) -> io::Result<RawRegion> {
        let mut out = RawRegion { memory: std::ptr::null_mut(), desc: std::ptr::null_mut(), key: 0, base: 0 };
        // SAFETY: the endpoint is open; the callers own the memory from `base` on, of `len` bytes, for as long as
        // `self` does, which gives it back behind what is registered. Peers read it only, or it is read into.
        let code = unsafe { tw_ofi_register(self.raw(), base.cast(), len, key, remote.into(), &mut out) };
        checked(code, "fi_mr_reg")?;
        self.open().registered.push(NonNull::new(out.memory).expect("it is there after success"));
        Ok(out)
    }

    /// Has peers read `region` under a key, which is `key` if the provider takes wishes.
    pub(crate) fn serve(&mut self, region: Arc<Region>, key: u64) -> io::Result<RegionKey> {
        let memory = region.memory();
        let (base, len) = (memory.as_ptr(), memory.len());
        self.open().regions.push(region);
        let registered = self.register(base, len, key, true)?;
        Ok(RegionKey { key: registered.key, base: registered.base })
    }

    /// The format of names, in libfabric's numbering.
    pub(crate) fn format(&self) -> u32 {
        // SAFETY: the endpoint is open.
        unsafe { tw_ofi_format(self.raw()) }
    }

    /// The name that peers reach it by.
    pub(crate) fn name(&mut self) -> io::Result<Vec<u8>> {
        let mut name = vec![0; FABRIC_NAME_BYTES_MAX];
        let mut len = name.len();
        // SAFETY: the endpoint is open, and `name` has as much room as is said.
        let code = unsafe { tw_ofi_name(self.raw(), name.as_mut_ptr().cast(), &mut len) };
        checked(code, "fi_getname")?;
        name.truncate(len);
        Ok(name)
    }

    /// Makes a peer known by its name, which is a peer's word in the format of this endpoint.
    pub(crate) fn know(&mut self, name: &[u8]) -> io::Result<FabricPeer> {
        if name.len() > FABRIC_NAME_BYTES_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a name of too many bytes"));
        }
        let mut room = [0; NAME_ROOM];
        room[..name.len()].copy_from_slice(name);
        let mut peer = 0;
        // SAFETY: the endpoint is open; behind the name there are more zeros than any address of a fixed size has
        // bytes, and a text ends at the first of them.
        let code = unsafe { tw_ofi_insert(self.raw(), room.as_ptr().cast(), &mut peer) };
        checked(code, "fi_av_insert")?;
        Ok(FabricPeer(peer))
    }

    /// A descriptor that becomes readable when there is something to poll, if [`FabricEndpoint::may_wait`] said so
    /// before; none where the provider can only be asked.
    pub(crate) fn wait_descriptor(&self) -> Option<&OwnedFd> {
        self.wait.as_ref()
    }

    /// Whether there is nothing to poll, and the descriptor tells when there is.
    pub(crate) fn may_wait(&mut self) -> bool {
        // SAFETY: the endpoint is open.
        unsafe { tw_ofi_trywait(self.raw()) == 0 }
    }

    /// Begins a read into a slot, which is the endpoint's until it ends.
    ///
    /// # Panics
    /// If the slot is none of its pool.
    pub(crate) fn begin(&mut self, slot: FabricSlot, read: &FabricRead) -> BegunRead {
        let pool = self.open().pool.as_ref().expect("it reads");
        assert!(slot.is_of(pool), "another pool's memory may be gone before the endpoint");
        let to = pool.slot_memory(slot.place(), read.len);
        let place = slot.place();
        // SAFETY: the endpoint is open. `to` has `len` bytes in the pool, which `self` keeps; nobody else uses them
        // while the slot is under way, and the place is below the number of slots that the endpoint was opened with.
        let code = unsafe {
            tw_ofi_read(
                self.raw(),
                place as u32,
                to.cast(),
                read.len,
                self.pool_desc,
                read.peer.0,
                read.address,
                read.key,
            )
        };
        if code == 0 {
            self.open().under_way[place] = Some(slot);
            return BegunRead::UnderWay;
        }
        // Whatever it says, the provider has not taken the slot.
        if is_again(code) { BegunRead::Again(slot) } else { BegunRead::Failed(error_of(code, "fi_read")) }
    }

    /// Lets the provider go on, and hands out the slots of reads that have ended, each with its error if it failed.
    ///
    /// # Errors
    /// If the endpoint is of no use any more.
    pub(crate) fn poll(&mut self, mut ended: impl FnMut(FabricSlot, Option<io::Error>)) -> io::Result<()> {
        let mut done = [RawDone::default(); POLLED_MAX];
        loop {
            // SAFETY: the endpoint is open, and there is room for as many as is said.
            let count = unsafe { tw_ofi_poll(self.raw(), done.as_mut_ptr(), done.len()) };
            let count = usize::try_from(count).map_err(|_| error_of(count, "fi_cq_read"))?;
            for done in &done[..count] {
                if let Some(slot) = self.open().under_way.get_mut(done.slot as usize).and_then(Option::take) {
                    ended(slot, (done.error != 0).then(|| error_of(done.error, "fi_read")));
                }
            }
            if count < done.len() {
                return Ok(());
            }
        }
    }
}

impl Drop for FabricEndpoint {
    fn drop(&mut self) {
        let open = self.open.take();
        let Some(serves) = self.counted else { return };
        let mut shm = SHM.lock();
        *shm.count(serves) -= 1;
        if shm.is_shared {
            shm.parked.extend(open);
        }
        if shm.serving + shm.reading == 0 {
            shm.is_shared = false;
            shm.parked.clear();
        }
    }
}

impl Drop for OpenEndpoint {
    fn drop(&mut self) {
        // SAFETY: the endpoint is open, and nobody uses it behind this.
        let mut code = unsafe { tw_ofi_close_endpoint(self.raw.as_ptr()) };
        while code == 0
            && let Some(memory) = self.registered.pop()
        {
            // SAFETY: it was registered once, and is forgotten here; the endpoint that used it is closed.
            code = unsafe { tw_ofi_deregister(memory.as_ptr()) };
        }
        if code != 0 {
            tracing::error!(error = %error_of(code, "fi_close"), "an endpoint of libfabric does not end: its memory is kept");
            // Whatever still points to it.
            std::mem::forget((
                std::mem::take(&mut self.regions),
                self.pool.take(),
                std::mem::take(&mut self.under_way),
            ));
            return;
        }
        // SAFETY: the endpoint is closed, nothing is registered, and `self` is not used again.
        unsafe { tw_ofi_close(self.raw.as_ptr()) };
    }
}
