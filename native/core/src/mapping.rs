//! A shared mapping of a file, and pointers into it that are checked once and for all.
use crate::sync::AtomicU64;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;

/// Bytes that other processes write at any time. Never lent as a plain slice.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    length: usize,
    writable: bool,
}

// SAFETY: the memory is reached through atomics and through `copy`, never through references to plain data.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    pub fn new(file: &OwnedFd, length: usize, writable: bool) -> io::Result<Self> {
        let protection = if writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), length, protection, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast::<u8>()).expect("mmap does not map address 0");
        Ok(Self { base, length, writable })
    }

    pub fn length(&self) -> usize {
        self.length
    }

    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// Where `length` bytes from `offset` are, None when they are not all inside.
    #[inline]
    pub fn pointer(&self, offset: usize, length: usize) -> Option<*mut u8> {
        if offset.checked_add(length)? > self.length {
            return None;
        }
        // SAFETY: inside the mapping.
        Some(unsafe { self.base.as_ptr().add(offset) })
    }

    /// `count` aligned words from `offset`, None when they are not all inside or not aligned.
    #[inline]
    pub fn words(&self, offset: usize, count: usize) -> Option<&[AtomicU64]> {
        let pointer = self.pointer(offset, count.checked_mul(8)?)?;
        if !offset.is_multiple_of(8) {
            return None;
        }
        // SAFETY: inside the mapping, aligned (mappings start on pages), and atomics may be shared with other processes. A read-only mapping is only loaded from.
        Some(unsafe { std::slice::from_raw_parts(pointer.cast::<AtomicU64>(), count) })
    }

    /// Touch every page, for writing where that is allowed, without changing a byte.
    pub fn prefault(&self) -> io::Result<()> {
        const MADV_POPULATE_READ: libc::c_int = 22;
        const MADV_POPULATE_WRITE: libc::c_int = 23;
        let advice = if self.writable { MADV_POPULATE_WRITE } else { MADV_POPULATE_READ };
        // SAFETY: the whole of a live mapping.
        if unsafe { libc::madvise(self.base.as_ptr().cast(), self.length, advice) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::EINVAL) {
            // touching by hand what the kernel could not bring would end the process with a signal
            return Err(error);
        }
        // kernels before 5.14: touch by hand
        for offset in (0..self.length).step_by(4096) {
            // SAFETY: inside the mapping; a volatile load, which neither races with our own code nor is optimised away.
            unsafe { self.base.as_ptr().add(offset).read_volatile() };
        }
        Ok(())
    }

    pub fn lock(&self) -> io::Result<()> {
        // SAFETY: the whole of a live mapping.
        if unsafe { libc::mlock(self.base.as_ptr().cast(), self.length) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`, and every pointer into it was borrowed from `self` or is kept beside an owner of it.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.length) };
    }
}
