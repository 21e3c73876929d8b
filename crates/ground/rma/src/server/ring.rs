//! An io_uring with a safe top: polls, multishot receives into buffers of its own, and sends of buffers that it
//! keeps until the kernel is done with them.
//!
//! The rules that the kernel relies on, and who keeps them:
//! - Memory given to the kernel stays where it is until the operation completed: a send's buffer is moved into
//!   [`Ring::sends`] and comes back with its completion; receive buffers live as long as the ring. If the ring is
//!   dropped with operations that do not end, their memory is leaked.
//! - A receive buffer belongs to the kernel from when it is put on the buffer ring until a completion names it,
//!   and to us from then until it is put there again.
//!
//! Descriptors may be closed while operations on them run (the kernel holds on to the file), but not between
//! queueing an operation and submitting it; the caller keeps them until nothing of theirs is [outstanding].
//!
//! [outstanding]: Completion

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use io_uring::types::{BufRingEntry, CancelBuilder, Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode, squeue};
use rustix::mm::{MapFlags, ProtFlags};
use tailwater_env::HashMap;

/// Operations queued before they are submitted; more are submitted in between.
const QUEUE: u32 = 512;
/// Completions that the kernel keeps without allocating for them.
const COMPLETIONS: u32 = 4096;
/// Receive buffers, a power of two. Each is given back as soon as its completion was looked at, so what matters is
/// how many completions one wait may find.
const BUFFERS: u16 = 64;
const BUFFER_BYTES: usize = 32 << 10;
const BUFFER_GROUP: u16 = 0;
/// The buffer ring's entries, in front of the buffers.
const ENTRIES_BYTES: usize = 4096;

/// How long a dropped ring waits for its operations to end.
const CANCEL_DEADLINE: Duration = Duration::from_secs(1);

const _: () = {
    assert!(BUFFERS.is_power_of_two());
    assert!(BUFFERS as usize * size_of::<BufRingEntry>() <= ENTRIES_BYTES);
    assert!(BUFFER_BYTES.is_multiple_of(4096) && ENTRIES_BYTES.is_multiple_of(4096));
};

/// The top byte of an operation's user data; the rest is the caller's token.
const OP_POLL: u8 = 1;
const OP_RECEIVE: u8 = 2;
const OP_SEND: u8 = 3;
const OP_CANCEL: u8 = 4;

/// The largest token.
pub(crate) const TOKEN_MAX: u64 = (1 << 56) - 1;

/// What became of an operation. Every poll and send ends with one; a receive ends with the first that is not
/// `more`.
pub(crate) enum Completion<'a> {
    /// A descriptor became readable.
    Polled { token: u64 },
    /// Bytes came (none: the far side closed), or the receive ended without.
    Received { token: u64, result: io::Result<&'a [u8]>, more: bool },
    /// So many bytes of the buffer went.
    Sent { token: u64, buffer: Vec<u8>, result: io::Result<usize> },
}

/// An io_uring for one thread.
pub(crate) struct Ring {
    ring: ManuallyDrop<IoUring>,
    buffers: ManuallyDrop<Buffers>,
    /// Buffers that the kernel is sending from.
    sends: ManuallyDrop<HashMap<u64, Vec<u8>>>,
    /// Operations submitted, or about to be, that have not ended.
    outstanding: usize,
}

impl Ring {
    /// A ring for the thread that calls this, and no other.
    ///
    /// # Errors
    /// If the kernel has no io_uring, or not all of it that is needed (6.1), or forbids it.
    pub(crate) fn new() -> io::Result<Self> {
        let ring: IoUring = IoUring::builder()
            .setup_clamp()
            .setup_cqsize(COMPLETIONS)
            .setup_submit_all()
            .setup_coop_taskrun()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .build(QUEUE)?;
        let params = ring.params();
        if !(params.is_feature_nodrop() && params.is_feature_ext_arg() && params.is_feature_fast_poll()) {
            return Err(io::Error::from(io::ErrorKind::Unsupported));
        }
        let buffers = Buffers::new()?;
        // SAFETY: the entries are page-aligned, `BUFFERS` of them, and live as long as the ring: `Drop` frees them
        // behind it.
        unsafe {
            ring.submitter().register_buf_ring_with_flags(
                buffers.base.addr() as u64,
                BUFFERS,
                BUFFER_GROUP,
                0,
            )?;
        }
        Ok(Self {
            ring: ManuallyDrop::new(ring),
            buffers: ManuallyDrop::new(buffers),
            sends: ManuallyDrop::new(HashMap::default()),
            outstanding: 0,
        })
    }

    /// Completes once when `fd` is readable.
    pub(crate) fn poll(&mut self, fd: BorrowedFd<'_>, token: u64) -> io::Result<()> {
        let entry = opcode::PollAdd::new(Fd(fd.as_raw_fd()), libc::POLLIN as u32).build();
        // SAFETY: names no memory.
        unsafe { self.queue(entry, OP_POLL, token) }
    }

    /// Receives from a blocking socket whenever something comes, until a completion says that it ended.
    pub(crate) fn receive(&mut self, fd: BorrowedFd<'_>, token: u64) -> io::Result<()> {
        let entry = opcode::RecvMulti::new(Fd(fd.as_raw_fd()), BUFFER_GROUP).build();
        // SAFETY: names no memory but the registered buffers.
        unsafe { self.queue(entry, OP_RECEIVE, token) }
    }

    /// Ends a receive, which then completes.
    pub(crate) fn cancel_receive(&mut self, token: u64) -> io::Result<()> {
        let entry = opcode::AsyncCancel::new(user_data(OP_RECEIVE, token)).build();
        // SAFETY: names no memory.
        unsafe { self.queue(entry, OP_CANCEL, token) }
    }

    /// Sends `buffer` from index `from` on, or a part of it, over a blocking socket. One send for each token at a
    /// time.
    pub(crate) fn send(
        &mut self,
        fd: BorrowedFd<'_>,
        token: u64,
        buffer: Vec<u8>,
        from: usize,
    ) -> io::Result<()> {
        let bytes = &buffer[from..];
        let len = u32::try_from(bytes.len()).expect("output is limited");
        let entry =
            opcode::Send::new(Fd(fd.as_raw_fd()), bytes.as_ptr(), len).flags(libc::MSG_NOSIGNAL).build();
        // Moving the vector leaves its heap memory where it is.
        let earlier = self.sends.insert(token, buffer);
        assert!(earlier.is_none(), "one send at a time");
        // SAFETY: the memory is in `sends` until the operation completed, and nobody touches it there.
        unsafe { self.queue(entry, OP_SEND, token) }
    }

    /// Submits what is queued, waits until something completed or the time is over, and hands all completions to
    /// `take`.
    pub(crate) fn wait(&mut self, timeout: Duration, mut take: impl FnMut(Completion<'_>)) -> io::Result<()> {
        let timeout = Timespec::from(timeout);
        match self.ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&timeout)) {
            Ok(_) => {}
            Err(error) if is(&error, &[libc::ETIME, libc::EINTR, libc::EBUSY, libc::EAGAIN]) => {}
            Err(error) => return Err(error),
        }
        for entry in self.ring.completion() {
            let (op, token) = ((entry.user_data() >> 56) as u8, entry.user_data() & TOKEN_MAX);
            let result = entry.result();
            let result = usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result));
            let more = cqueue::more(entry.flags());
            if !more {
                self.outstanding -= 1;
            }
            match op {
                OP_POLL => take(Completion::Polled { token }),
                OP_RECEIVE => match (result, cqueue::buffer_select(entry.flags())) {
                    (Ok(count), Some(buffer)) => {
                        // SAFETY: the kernel named the buffer in a completion, so it is ours until it is put
                        // back, which is behind the use of `bytes`.
                        let bytes = unsafe { self.buffers.filled(buffer, count) };
                        take(Completion::Received { token, result: Ok(bytes), more });
                        self.buffers.put(buffer);
                    }
                    (Ok(_), None) => take(Completion::Received { token, result: Ok(&[]), more }),
                    (Err(error), buffer) => {
                        take(Completion::Received { token, result: Err(error), more });
                        if let Some(buffer) = buffer {
                            self.buffers.put(buffer);
                        }
                    }
                },
                OP_SEND => {
                    let buffer = self.sends.remove(&token).expect("a send keeps its buffer");
                    take(Completion::Sent { token, buffer, result });
                }
                // Whether there was anything to cancel shows in that itself.
                _ => {}
            }
        }
        Ok(())
    }

    /// Queues an operation.
    ///
    /// # Safety
    /// What memory it names must stay as it is until it completed.
    unsafe fn queue(&mut self, entry: squeue::Entry, op: u8, token: u64) -> io::Result<()> {
        let entry = entry.user_data(user_data(op, token));
        loop {
            // SAFETY: the entry is well-formed, and its memory valid by this function's own contract.
            if unsafe { self.ring.submission().push(&entry) }.is_ok() {
                self.outstanding += 1;
                return Ok(());
            }
            self.ring.submit()?;
        }
    }

    /// Ends everything; whether everything ended.
    fn cancel_all(&mut self) -> bool {
        let all = CancelBuilder::any();
        // An error says that there was nothing, or that it takes longer: what is outstanding tells.
        let _ = self.ring.submit();
        let _ = self.ring.submitter().register_sync_cancel(Some(Timespec::from(CANCEL_DEADLINE)), all);
        for _ in 0..100 {
            if self.outstanding == 0 {
                break;
            }
            if self.wait(CANCEL_DEADLINE / 100, |_| {}).is_err() {
                break;
            }
        }
        self.outstanding == 0
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        let ended = self.cancel_all();
        // SAFETY: dropped here, once, and not used behind this.
        unsafe { ManuallyDrop::drop(&mut self.ring) };
        if ended {
            // SAFETY: as above; and the kernel, done with all operations and the ring, has no use for them.
            unsafe {
                ManuallyDrop::drop(&mut self.buffers);
                ManuallyDrop::drop(&mut self.sends);
            }
        } else {
            tracing::error!(
                operations = self.outstanding,
                "operations of the kernel do not end: leaking memory"
            );
        }
    }
}

fn user_data(op: u8, token: u64) -> u64 {
    assert!(token <= TOKEN_MAX);
    u64::from(op) << 56 | token
}

/// Whether `error` is one of the given.
pub(crate) fn is(error: &io::Error, numbers: &[i32]) -> bool {
    error.raw_os_error().is_some_and(|number| numbers.contains(&number))
}

/// Memory shared with the kernel: the ring of buffers that it may fill, and the buffers.
struct Buffers {
    /// The ring's entries, then the buffers.
    base: *mut u8,
    /// Entries put on the ring so far; the kernel reads a copy at the ring's start.
    tail: u16,
}

impl Buffers {
    fn new() -> io::Result<Self> {
        // SAFETY: a fresh mapping at an address of the kernel's choice aliases nothing of ours.
        let base = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                Self::BYTES,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )?
        };
        let mut buffers = Self { base: base.cast(), tail: 0 };
        for buffer in 0..BUFFERS {
            buffers.put(buffer);
        }
        Ok(buffers)
    }

    const BYTES: usize = ENTRIES_BYTES + BUFFERS as usize * BUFFER_BYTES;

    fn at(&self, buffer: u16) -> *mut u8 {
        assert!(buffer < BUFFERS);
        self.base.wrapping_add(ENTRIES_BYTES + usize::from(buffer) * BUFFER_BYTES)
    }

    /// The first `count` bytes of a buffer.
    ///
    /// # Safety
    /// The kernel must have filled them, and not been given the buffer again.
    unsafe fn filled(&self, buffer: u16, count: usize) -> &[u8] {
        assert!(count <= BUFFER_BYTES);
        // SAFETY: in the mapping, and by contract nobody writes there while the borrow of `self` lasts: `put`
        // needs it exclusively.
        unsafe { std::slice::from_raw_parts(self.at(buffer), count) }
    }

    /// Gives a buffer to the kernel.
    fn put(&mut self, buffer: u16) {
        let address = self.at(buffer).addr() as u64;
        let place = usize::from(self.tail % BUFFERS);
        let entry = self.base.cast::<BufRingEntry>().wrapping_add(place);
        // SAFETY: the entry is in the mapping; the kernel looks at it only behind the store of the tail below. The
        // setters leave the tail, which lies in the first entry's unused field, alone.
        unsafe {
            (*entry).set_addr(address);
            (*entry).set_len(BUFFER_BYTES as u32);
            (*entry).set_bid(buffer);
        }
        self.tail = self.tail.wrapping_add(1);
        // SAFETY: `base` is the ring's first entry; the tail is 2-aligned in it, and shared with the kernel, which
        // loads it with acquire.
        unsafe {
            let tail = BufRingEntry::tail(self.base.cast()).cast_mut();
            AtomicU16::from_ptr(tail).store(self.tail, Ordering::Release);
        }
    }
}

impl Drop for Buffers {
    fn drop(&mut self) {
        // SAFETY: mapped with this length, and nobody uses it any more.
        let unmapped = unsafe { rustix::mm::munmap(self.base.cast(), Self::BYTES) };
        unmapped.expect("a mapping of our own can be unmapped");
    }
}

#[cfg(test)]
mod tests;
