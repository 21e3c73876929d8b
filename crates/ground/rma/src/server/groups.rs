//! The groups of the process at the other end of a Unix socket.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Groups that a process may be in besides its own.
const GROUPS_MAX: usize = 1024;

/// The groups that the process of a connection was in when it connected, its own group not among them unless it is
/// listed twice. They are the kernel's, so no process can say others.
///
/// # Errors
/// More than [`GROUPS_MAX`] of them: not all could be looked for in rules.
pub(super) fn groups_of(socket: BorrowedFd<'_>) -> io::Result<Vec<libc::gid_t>> {
    let mut groups = vec![0; GROUPS_MAX];
    let mut bytes = libc::socklen_t::try_from(size_of_val(&groups[..])).expect("some KiB");
    // SAFETY: `groups` is memory of `bytes` bytes that nobody else uses, and the kernel writes no more than that many.
    // `bytes` is read and written during the call alone. Any bits are a `gid_t`.
    let done = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERGROUPS,
            groups.as_mut_ptr().cast(),
            &raw mut bytes,
        )
    };
    if done != 0 {
        let error = io::Error::last_os_error();
        return match error.raw_os_error() {
            Some(libc::ERANGE) => {
                Err(io::Error::other(format!("its process is in more than {GROUPS_MAX} groups")))
            }
            _ => Err(error),
        };
    }
    groups.truncate(bytes as usize / size_of::<libc::gid_t>());
    Ok(groups)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    #[test]
    #[expect(
        clippy::disallowed_methods,
        reason = "what the kernel says of this process is in no simulated world"
    )]
    fn the_groups_of_a_process_are_those_that_it_says_of_itself() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("socket");
        let listener = UnixListener::bind(&path).expect("a free name");
        let _connected = UnixStream::connect(&path).expect("it listens");
        let (accepted, _) = listener.accept().expect("somebody connected");
        let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
        let own = status.lines().find_map(|line| line.strip_prefix("Groups:")).expect("a line of it");
        let own: Vec<libc::gid_t> =
            own.split_whitespace().map(|gid| gid.parse().expect("a number")).collect();
        assert_eq!(groups_of(accepted.as_fd()).expect("known"), own);
    }
}
