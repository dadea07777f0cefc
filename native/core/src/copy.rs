//! The only copies that may race with the other side. What they bring is worth nothing until `commit::recheck` has said so.
//!
//! Headers go word by word through relaxed atomics, which is defined behaviour whatever the other side does. Payloads are megabytes and go by the
//! C library's memcpy: a data race by the letter of the language, kept out of the optimiser's sight behind a call that is never inlined, with fences
//! on both sides of it and nothing but bytes in it. Under miri the payload goes byte by byte through relaxed atomics, so that miri can follow it.
use crate::sync::{AtomicU64, Ordering};

/// Copy words out of shared memory.
#[inline]
pub fn load_words(shared: &[AtomicU64], into: &mut [u64]) {
    assert_eq!(shared.len(), into.len());
    for (word, slot) in into.iter_mut().zip(shared) {
        // Relaxed: the fences of the commit protocol order these loads.
        *word = slot.load(Ordering::Relaxed);
    }
}

/// Copy words into shared memory.
#[inline]
pub fn store_words(shared: &[AtomicU64], from: &[u64]) {
    assert_eq!(shared.len(), from.len());
    for (word, slot) in from.iter().zip(shared) {
        // Relaxed: the fences of the commit protocol order these stores.
        slot.store(*word, Ordering::Relaxed);
    }
}

/// Copy payload bytes out of shared memory.
///
/// # Safety
/// `shared` is readable and `into` writable for `length` bytes, and they do not overlap.
#[cfg(not(loom))]
#[inline]
pub unsafe fn copy_out(shared: *const u8, into: *mut u8, length: usize) {
    #[cfg(miri)]
    for offset in 0..length {
        // SAFETY: inside the two ranges that the caller vouches for.
        unsafe { into.add(offset).write(byte(shared.add(offset).cast_mut()).load(Ordering::Relaxed)) };
    }
    #[cfg(not(miri))]
    // SAFETY: the caller vouches for both ranges.
    unsafe {
        racy_memcpy(shared, into, length);
    }
}

/// Copy payload bytes into shared memory.
///
/// # Safety
/// `from` is readable and `shared` writable for `length` bytes, and they do not overlap.
#[cfg(not(loom))]
#[inline]
pub unsafe fn copy_in(from: *const u8, shared: *mut u8, length: usize) {
    #[cfg(miri)]
    for offset in 0..length {
        // SAFETY: inside the two ranges that the caller vouches for.
        unsafe { byte(shared.add(offset)).store(from.add(offset).read(), Ordering::Relaxed) };
    }
    #[cfg(not(miri))]
    // SAFETY: the caller vouches for both ranges.
    unsafe {
        racy_memcpy(from, shared, length);
    }
}

#[cfg(miri)]
unsafe fn byte<'a>(address: *mut u8) -> &'a std::sync::atomic::AtomicU8 {
    // SAFETY: the caller vouches for the address; a byte is always aligned.
    unsafe { std::sync::atomic::AtomicU8::from_ptr(address) }
}

#[cfg(not(any(loom, miri)))]
#[inline(never)]
unsafe fn racy_memcpy(from: *const u8, into: *mut u8, length: usize) {
    // SAFETY: the caller vouches for both ranges.
    unsafe { libc::memcpy(into.cast(), from.cast(), length) };
}
