//! The allocator of the whole program, and what it does with memory that is freed.

use std::ffi::{c_int, c_long};

/// Chunks, batches and answers of some kilobytes are allocated on one thread and freed on another all the time, which
/// takes the C library's allocator several times as long ([what it
/// changed](../../../../docs/figures/binary.md#the-allocator)).
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// How long freed memory is kept before it goes back to the kernel, in ms. By default that is a second: what a window,
/// a journal's queue or a round of reads takes and frees again many times a minute then costs a fault for each page,
/// each time (3 us and more on a virtual machine, ten times what is done with its bytes).
const KEPT_MS: c_long = 60_000;

/// `mi_option_purge_delay` of mimalloc 3, for which its Rust binding has no name.
const PURGE_DELAY: c_int = 15;

/// Has the allocator keep freed memory for [`KEPT_MS`], if the environment does not say otherwise
/// (`MIMALLOC_PURGE_DELAY`). To be called while there is one thread.
pub fn keep_freed_memory() {
    // SAFETY: writes one number of the allocator's table of options, in which this one is; it is not to be called by
    // two threads at once, and `main` is the only one yet.
    #[allow(unsafe_code)]
    unsafe {
        libmimalloc_sys::mi_option_set_default(PURGE_DELAY, KEPT_MS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_the_option_is_that_of_the_delay_of_a_second() {
        // SAFETY: reads one number of the allocator's table of options.
        #[allow(unsafe_code)]
        let before = unsafe { libmimalloc_sys::mi_option_get(PURGE_DELAY) };
        assert_eq!(before, 1000, "mimalloc has another option there, or another default");
    }
}
