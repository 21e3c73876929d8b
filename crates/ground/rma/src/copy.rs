//! The one way in and out of region memory.
//!
//! Region memory changes at any time under a reader, and in another process, so no Rust reference to it may
//! exist: a `&[u8]` promises that the bytes stay as they are. Bytes are moved by the functions of this module
//! only, which take raw pointers. (The nearest thing to a reference is the `&AtomicU64` that a single atomic
//! load or store is spelled with in Rust; it promises nothing of the value behind it and ends with the
//! operation.)
//!
//! Two implementations:
//! - x86-64 with AVX: inline assembly. The compiler may assume nothing of the memory it touches but what a
//!   racing relaxed access would allow, and the machine's own order (stores stay in order, loads stay in
//!   order) makes a later release store publish what was copied in before it.
//! - Everywhere else, and under Miri: aligned words by relaxed atomics. A word that is only partly in the range
//!   is still accessed as a whole (loads take the part they need, stores exchange it), so that all accesses to
//!   one word have one size, without which the memory model defines nothing.
//!
//! Why assembly, and why these instructions (AMD Genoa, 4 KiB out of 256 MiB, best of three runs):
//!
//! | way                | cold         | hot in L2   |
//! |--------------------|--------------|-------------|
//! | AtomicU64 loop     | 620-1080 ns  | 146 ns      |
//! | AVX loop           | 408-740 ns   | 35-49 ns    |
//! | `rep movsb`        | 429-800 ns   | 41-46 ns    |
//! | `rep movsb`, destination up to 16 bytes further into its page than the source | 2.2-2.5 us | 1.6-1.8 us |
//!
//! `rep movsb` needs no feature detection and is as fast where it is fast, but its bad case is one that callers
//! cannot see, and glibc's `memcpy` falls into it too.

use std::sync::atomic::{AtomicU64, Ordering};

const WORD: usize = size_of::<u64>();

/// Copies `len` bytes of region memory at `from` to private memory at `to`.
///
/// What arrives may be torn at any byte and mix values of any age. Words are not promised to be whole: use
/// [`load_acquire`] for one that must be.
///
/// # Safety
/// The aligned words that hold `from..from + len` lie in one live mapping; `to..to + len` is writable memory
/// of the caller's own, outside any region.
#[inline]
pub(crate) unsafe fn copy_out(from: *const u8, to: *mut u8, len: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if len >= avx::LEN_MIN && std::arch::is_x86_feature_detected!("avx") {
        // SAFETY: both ranges are valid by this function's own contract, at least `LEN_MIN` long, and the
        // processor has AVX.
        unsafe { avx::copy(from, to, len) };
        return;
    }
    // SAFETY: the same contract.
    unsafe { words_out(from, to, len) }
}

/// Copies `len` bytes of private memory at `from` into region memory at `to`.
///
/// Several threads may write to disjoint ranges at the same time, even of one word.
///
/// # Safety
/// `from..from + len` is readable memory of the caller's own, outside any region; the aligned words that hold
/// `to..to + len` lie in one live mapping that is writable.
#[inline]
pub(crate) unsafe fn copy_in(from: *const u8, to: *mut u8, len: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if len >= avx::LEN_MIN && std::arch::is_x86_feature_detected!("avx") {
        // SAFETY: as in `copy_out`.
        unsafe { avx::copy(from, to, len) };
        return;
    }
    // SAFETY: the same contract.
    unsafe { words_in(from, to, len) }
}

/// Loads one word; pairs with [`store_release`] of whoever writes the region.
///
/// # Safety
/// `at` is 8-aligned and lies in a live mapping.
#[inline]
pub(crate) unsafe fn load_acquire(at: *const u8) -> u64 {
    // SAFETY: aligned and mapped by contract. A relaxed or acquire load of this size is allowed on memory that
    // is mapped read-only.
    unsafe { AtomicU64::from_ptr(at.cast_mut().cast()) }.load(Ordering::Acquire)
}

/// Stores one word, and with it publishes everything this thread copied in before; pairs with
/// [`load_acquire`] of the readers.
///
/// # Safety
/// `at` is 8-aligned and lies in a live mapping that is writable.
#[inline]
pub(crate) unsafe fn store_release(at: *mut u8, value: u64) {
    // SAFETY: aligned, mapped and writable by contract.
    unsafe { AtomicU64::from_ptr(at.cast()) }.store(value, Ordering::Release);
}

/// Asks the processor to fetch the cache line at `at`; a hint that never faults.
#[inline]
pub(crate) fn prefetch(at: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: SSE is part of x86-64, and a prefetch of any address is harmless.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at.cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = at;
}

/// The aligned word that holds `at`, and `at`'s place in it.
fn word_of(at: *const u8) -> (*const u8, usize) {
    let skip = at.addr() % WORD;
    (at.wrapping_sub(skip), skip)
}

/// [`copy_out`] by relaxed loads of aligned words.
///
/// # Safety
/// As for [`copy_out`].
unsafe fn words_out(from: *const u8, to: *mut u8, len: usize) {
    let mut done = 0;
    while done < len {
        let (word, skip) = word_of(from.wrapping_add(done));
        let count = (WORD - skip).min(len - done);
        // SAFETY: the word overlaps `from..from + len`, so it is mapped, and it is aligned.
        let value = unsafe { AtomicU64::from_ptr(word.cast_mut().cast()) }.load(Ordering::Relaxed);
        let bytes = value.to_ne_bytes();
        // SAFETY: `done + count <= len`, and `to` has `len` bytes; `skip + count <= 8`.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr().add(skip), to.add(done), count) };
        done += count;
    }
}

/// [`copy_in`] by relaxed stores of aligned words, and exchanges of those that are only partly written.
///
/// # Safety
/// As for [`copy_in`].
unsafe fn words_in(from: *const u8, to: *mut u8, len: usize) {
    let mut done = 0;
    while done < len {
        let (word, skip) = word_of(to.wrapping_add(done));
        let count = (WORD - skip).min(len - done);
        // SAFETY: the word overlaps `to..to + len`, so it is mapped writable, and it is aligned.
        let word = unsafe { AtomicU64::from_ptr(word.cast_mut().cast()) };
        let patch = |old: u64| {
            let mut bytes = old.to_ne_bytes();
            // SAFETY: `done + count <= len`, and `from` has `len` bytes; `skip + count <= 8`.
            unsafe {
                std::ptr::copy_nonoverlapping(from.add(done), bytes.as_mut_ptr().add(skip), count);
            }
            u64::from_ne_bytes(bytes)
        };
        if count == WORD {
            word.store(patch(0), Ordering::Relaxed);
        } else {
            // Another thread may be writing the rest of this word: exchange until nothing of it is undone.
            let mut old = word.load(Ordering::Relaxed);
            while let Err(found) =
                word.compare_exchange_weak(old, patch(old), Ordering::Relaxed, Ordering::Relaxed)
            {
                old = found;
            }
        }
        done += count;
    }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod avx {
    use std::arch::asm;

    /// Shorter copies have no whole vector in them.
    pub(super) const LEN_MIN: usize = 32;

    /// Copies `len` bytes in blocks of 128, then vectors of 32; the rest as one more vector that ends where
    /// the range ends and overlaps the one before.
    ///
    /// # Safety
    /// The processor has AVX; `len >= LEN_MIN`; `from..from + len` is readable, `to..to + len` writable, and
    /// they do not overlap.
    #[inline]
    pub(super) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
        debug_assert!(len >= LEN_MIN);
        // SAFETY: by contract every address accessed is inside the two ranges: the loops stop where fewer bytes
        // are left than they move, and the last vector starts at `len - 32 >= 0`. The block clobbers the four
        // vector registers and flags and says so, and touches no stack. It is not `nomem`, so the compiler keeps
        // it in order with atomics before and after.
        unsafe {
            asm!(
                "mov {left}, {len}",
                "cmp {left}, 128",
                "jb 3f",
                "2:",
                "vmovdqu ymm0, [{from}]",
                "vmovdqu ymm1, [{from} + 32]",
                "vmovdqu ymm2, [{from} + 64]",
                "vmovdqu ymm3, [{from} + 96]",
                "vmovdqu [{to}], ymm0",
                "vmovdqu [{to} + 32], ymm1",
                "vmovdqu [{to} + 64], ymm2",
                "vmovdqu [{to} + 96], ymm3",
                "add {from}, 128",
                "add {to}, 128",
                "sub {left}, 128",
                "cmp {left}, 128",
                "jae 2b",
                "3:",
                "cmp {left}, 32",
                "jb 4f",
                "vmovdqu ymm0, [{from}]",
                "vmovdqu [{to}], ymm0",
                "add {from}, 32",
                "add {to}, 32",
                "sub {left}, 32",
                "jmp 3b",
                "4:",
                "test {left}, {left}",
                "jz 5f",
                "vmovdqu ymm0, [{from} + {left} - 32]",
                "vmovdqu [{to} + {left} - 32], ymm0",
                "5:",
                "vzeroupper",
                from = inout(reg) from => _,
                to = inout(reg) to => _,
                len = in(reg) len,
                left = out(reg) _,
                out("ymm0") _,
                out("ymm1") _,
                out("ymm2") _,
                out("ymm3") _,
                options(nostack),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Region memory for tests: words, so that it is aligned, reached by raw pointers only.
    struct Words(*mut [u64]);

    impl Words {
        fn new(bytes: usize) -> Self {
            Self(Box::into_raw(vec![0u64; bytes / WORD].into_boxed_slice()))
        }

        fn at(&self, offset: usize) -> *mut u8 {
            self.0.cast::<u8>().wrapping_add(offset)
        }
    }

    // SAFETY: what it points to is accessed by the functions that are tested only, which may race.
    unsafe impl Sync for Words {}

    impl Drop for Words {
        fn drop(&mut self) {
            // SAFETY: made by `Box::into_raw` in `new`, and dropped once.
            drop(unsafe { Box::from_raw(self.0) });
        }
    }

    fn pattern(len: usize, seed: u8) -> Vec<u8> {
        (0..len).map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed)).collect()
    }

    type Copy = unsafe fn(*const u8, *mut u8, usize);

    /// Bytes around what is copied. Miri is some thousand times slower.
    const AROUND: usize = if cfg!(miri) { 256 } else { 1024 };

    fn every_length_and_alignment(copy_in: Copy, copy_out: Copy) {
        let memory = Words::new(AROUND);
        let lengths: &[usize] = if cfg!(miri) {
            &[0, 1, 7, 8, 9, 31, 33, 100]
        } else {
            &[0, 1, 7, 8, 9, 15, 31, 32, 33, 63, 64, 65, 127, 128, 129, 159, 160, 161, 255, 256, 300, 511]
        };
        for &len in lengths {
            for offset in 64..72 {
                let background = pattern(AROUND, 7);
                let bytes = pattern(len, 99);
                let mut around = vec![0; AROUND];
                let mut out = vec![0xee; len + 2];
                // SAFETY: all ranges lie in the memory, and nobody else has them.
                unsafe {
                    copy_in(background.as_ptr(), memory.at(0), AROUND);
                    copy_in(bytes.as_ptr(), memory.at(offset), len);
                    copy_out(memory.at(offset), out.as_mut_ptr().add(1), len);
                    copy_out(memory.at(0), around.as_mut_ptr(), AROUND);
                }
                assert_eq!(out[1..=len], bytes, "length {len} at {offset}");
                assert_eq!((out[0], out[len + 1]), (0xee, 0xee), "length {len} at {offset}");
                assert_eq!(around[..offset], background[..offset]);
                assert_eq!(around[offset + len..], background[offset + len..]);
            }
        }
    }

    #[test]
    fn copies_of_every_length_and_alignment_move_exactly_their_bytes() {
        every_length_and_alignment(copy_in, copy_out);
    }

    #[test]
    fn copies_by_words_move_exactly_their_bytes() {
        every_length_and_alignment(words_in, words_out);
    }

    #[test]
    fn two_threads_that_write_parts_of_one_word_do_not_undo_each_other() {
        let memory = &Words::new(64);
        let rounds = if cfg!(miri) { 20 } else { 10_000 };
        std::thread::scope(|scope| {
            for half in 0..2 {
                scope.spawn(move || {
                    for round in 0..rounds as u32 {
                        let mut back = [0; 4];
                        // SAFETY: both halves lie in the word, which outlives the scope.
                        unsafe {
                            words_in(round.to_ne_bytes().as_ptr(), memory.at(half * 4), 4);
                            words_out(memory.at(half * 4), back.as_mut_ptr(), 4);
                        }
                        assert_eq!(u32::from_ne_bytes(back), round);
                    }
                });
            }
        });
    }
}
