//! Stands in front of the C library's heap by `LD_PRELOAD` and counts what one thread asks for, whoever asks: Rust, Aeron, CPython, numpy.
//!
//! glibc exports its own functions under a second name, so nothing here looks symbols up, and nothing here allocates.
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering};

unsafe extern "C" {
    fn __libc_malloc(size: usize) -> *mut c_void;
    fn __libc_calloc(count: usize, size: usize) -> *mut c_void;
    fn __libc_realloc(old: *mut c_void, size: usize) -> *mut c_void;
    fn __libc_memalign(alignment: usize, size: usize) -> *mut c_void;
}

/// The thread that is counted, 0 for none: an address, as pthreads have.
static COUNTED: AtomicU64 = AtomicU64::new(0);
static CALLS: AtomicU64 = AtomicU64::new(0);

fn count() {
    // Relaxed: the counted thread reads what it wrote itself
    // SAFETY: asks for nothing but the thread's own name.
    if COUNTED.load(Ordering::Relaxed) == unsafe { libc::pthread_self() } {
        CALLS.fetch_add(1, Ordering::Relaxed);
    }
}

/// Count from now on what the calling thread asks for.
#[unsafe(no_mangle)]
pub extern "C" fn allocations_begin() {
    CALLS.store(0, Ordering::Relaxed);
    // SAFETY: as above.
    COUNTED.store(unsafe { libc::pthread_self() }, Ordering::Relaxed);
}

/// How many calls there were. Nobody is counted any more.
#[unsafe(no_mangle)]
pub extern "C" fn allocations_end() -> u64 {
    COUNTED.store(0, Ordering::Relaxed);
    CALLS.load(Ordering::Relaxed)
}

/// # Safety
/// As the C library's, like every function below.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc(size: usize) -> *mut c_void {
    count();
    // SAFETY: the caller's promises are those of the function that is called.
    unsafe { __libc_malloc(size) }
}

/// # Safety
/// See `malloc`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn calloc(number: usize, size: usize) -> *mut c_void {
    count();
    // SAFETY: see `malloc`.
    unsafe { __libc_calloc(number, size) }
}

/// # Safety
/// See `malloc`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn realloc(old: *mut c_void, size: usize) -> *mut c_void {
    count();
    // SAFETY: see `malloc`.
    unsafe { __libc_realloc(old, size) }
}

/// # Safety
/// See `malloc`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memalign(alignment: usize, size: usize) -> *mut c_void {
    count();
    // SAFETY: see `malloc`.
    unsafe { __libc_memalign(alignment, size) }
}

/// # Safety
/// See `malloc`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aligned_alloc(alignment: usize, size: usize) -> *mut c_void {
    // SAFETY: see `malloc`.
    unsafe { memalign(alignment, size) }
}

/// # Safety
/// See `malloc`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_memalign(into: *mut *mut c_void, alignment: usize, size: usize) -> c_int {
    if !alignment.is_power_of_two() || !alignment.is_multiple_of(size_of::<*mut c_void>()) {
        return libc::EINVAL;
    }
    // SAFETY: see `malloc`.
    let made = unsafe { memalign(alignment, size) };
    if made.is_null() {
        return libc::ENOMEM;
    }
    // SAFETY: the caller's place for the result.
    unsafe { *into = made };
    0
}
