//! What callers hand in: checked, and copied where it has to outlive the call.

use std::ffi::{CStr, c_char};

use bytes::Bytes;

use crate::limits::{ITEMS_MAX, TEXT_BYTES_MAX};
use crate::status::NotDone;

/// Bytes somewhere in memory. `data` is null where there are none to be had, which is not the same as no bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TailwaterBytes {
    /// The first one.
    pub data: *const u8,
    /// How many.
    pub len: usize,
}

impl TailwaterBytes {
    /// None to be had.
    pub(crate) const NONE: Self = Self { data: std::ptr::null(), len: 0 };

    /// Lends bytes, for as long as whoever holds them says.
    pub(crate) fn lent(bytes: &[u8]) -> Self {
        Self { data: bytes.as_ptr(), len: bytes.len() }
    }

    /// A copy of them.
    ///
    /// # Safety
    /// `data` is null, or there are `len` bytes, which nobody writes meanwhile.
    pub(crate) unsafe fn copied(self, what: &str) -> Result<Bytes, NotDone> {
        // SAFETY: as this function's.
        Ok(Bytes::copy_from_slice(unsafe { slice(self.data, self.len, isize::MAX as usize, what) }?))
    }
}

/// `count` things from `first` on.
///
/// # Safety
/// `first` is null, or there are so many of them, which nobody writes as long as `'a` lasts.
unsafe fn slice<'a, T>(first: *const T, count: usize, max: usize, what: &str) -> Result<&'a [T], NotDone> {
    match (first.is_null(), count) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(NotDone::invalid(format!("{what}: a null pointer, and a length of {count}"))),
        (false, _) if count > max => {
            Err(NotDone::invalid(format!("{what}: {count}, at most {max} are taken")))
        }
        (false, _) if !first.is_aligned() => {
            Err(NotDone::invalid(format!("{what}: a pointer that is not aligned")))
        }
        // SAFETY: not null, aligned and, as the caller says, so many, which nobody writes.
        (false, _) => Ok(unsafe { std::slice::from_raw_parts(first, count) }),
    }
}

/// An array of [`ITEMS_MAX`] things at most.
///
/// # Safety
/// `first` is null, or there are `count` of them, which nobody writes as long as `'a` lasts.
pub(crate) unsafe fn array<'a, T>(first: *const T, count: usize, what: &str) -> Result<&'a [T], NotDone> {
    // SAFETY: as this function's.
    unsafe { slice(first, count, ITEMS_MAX, what) }
}

/// A text; `None` where the pointer is null.
///
/// # Safety
/// `text` is null, or ends with a 0.
pub(crate) unsafe fn text(text: *const c_char, what: &str) -> Result<Option<String>, NotDone> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: not null and, as the caller says, ends with a 0.
    let bytes = unsafe { CStr::from_ptr(text) }.to_bytes();
    if bytes.len() > TEXT_BYTES_MAX {
        let len = bytes.len();
        return Err(NotDone::invalid(format!("{what}: {len} bytes, at most {TEXT_BYTES_MAX} are taken")));
    }
    let text = std::str::from_utf8(bytes).map_err(|_| NotDone::invalid(format!("{what}: not UTF-8")))?;
    Ok(Some(text.to_owned()))
}

/// A text that has to be there.
///
/// # Safety
/// As [`text`].
pub(crate) unsafe fn wanted_text(given: *const c_char, what: &str) -> Result<String, NotDone> {
    // SAFETY: as this function's.
    unsafe { text(given, what) }?.ok_or_else(|| NotDone::invalid(format!("{what}: a null pointer")))
}

/// What a handle points to.
///
/// # Safety
/// `handle` is null, or is one of ours that is not freed as long as `'a` lasts.
pub(crate) unsafe fn handle<'a, T>(handle: *const T, what: &str) -> Result<&'a T, NotDone> {
    // SAFETY: the caller says that it is one of ours.
    unsafe { handle.as_ref() }.ok_or_else(|| NotDone::invalid(format!("{what}: a null pointer")))
}
