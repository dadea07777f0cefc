//! Memory of owned frames: aligned, recycled, and given back when the last array over it is gone.
use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ffi::c_int;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use pyo3::prelude::*;

use crate::aeron::lock;
use crate::fork::Owner;

const ALIGNMENT: usize = 64;
const SMALLEST: usize = 4096;
const KEPT_BUFFERS: usize = 64;
const KEPT_BYTES: usize = 256 << 20;

pub struct Memory {
    address: NonNull<u8>,
    capacity: usize,
}

// SAFETY: plain owned memory.
unsafe impl Send for Memory {}
// SAFETY: plain owned memory; a shared reference only gives its address away.
unsafe impl Sync for Memory {}

impl Memory {
    fn new(length: usize) -> Self {
        let layout = Self::layout(length.max(1).next_multiple_of(SMALLEST));
        // SAFETY: the layout's size is above 0.
        let address = unsafe { alloc(layout) };
        let Some(address) = NonNull::new(address) else { handle_alloc_error(layout) };
        Self { address, capacity: layout.size() }
    }

    fn layout(capacity: usize) -> Layout {
        Layout::from_size_align(capacity, ALIGNMENT).expect("a frame has at most 2^31 bytes")
    }

    pub fn pointer(&self) -> *mut u8 {
        self.address.as_ptr()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this very layout.
        unsafe { dealloc(self.pointer(), Self::layout(self.capacity)) };
    }
}

#[derive(Default)]
struct Free {
    buffers: Vec<Memory>,
    bytes: usize,
}

/// Buffers that no frame uses now: fresh memory costs a page fault for every 4 KiB, these cost nothing.
#[derive(Default)]
pub struct BufferPool(Mutex<Free>);

impl BufferPool {
    pub fn take(&self, length: usize) -> Memory {
        let mut free = lock(&self.0);
        let fits = |memory: &Memory| memory.capacity >= length && memory.capacity <= 2 * length.max(SMALLEST);
        match free.buffers.iter().rposition(fits) {
            Some(index) => {
                let memory = free.buffers.swap_remove(index);
                free.bytes -= memory.capacity;
                memory
            }
            None => {
                drop(free);
                Memory::new(length)
            }
        }
    }

    pub fn give(&self, memory: Memory) {
        let mut free = lock(&self.0);
        if free.buffers.len() < KEPT_BUFFERS && free.bytes + memory.capacity <= KEPT_BYTES {
            free.bytes += memory.capacity;
            free.buffers.push(memory);
        }
    }
}

#[pyclass(frozen, module = "tensor_pool._native")]
pub struct FrameBuffer {
    memory: Option<Memory>,
    length: usize,
    pool: Arc<BufferPool>,
    owner: Owner,
}

impl FrameBuffer {
    pub fn new(memory: Memory, length: usize, pool: Arc<BufferPool>, owner: Owner) -> Self {
        Self { memory: Some(memory), length, pool, owner }
    }
}

#[pymethods]
impl FrameBuffer {
    /// # Safety
    /// Called by Python with a valid `view`.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut pyo3::ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let (pointer, length) = {
            let this = slf.get();
            (this.memory.as_ref().map_or(std::ptr::null_mut(), Memory::pointer), this.length)
        };
        // SAFETY: the memory lives as long as this object, of which the view takes a reference.
        unsafe { fill_view(slf.as_any(), view, pointer, length, false, flags) }
    }

    fn __len__(&self) -> usize {
        self.length
    }
}

impl Drop for FrameBuffer {
    fn drop(&mut self) {
        let Some(memory) = self.memory.take() else { return };
        if self.owner.is_here() {
            self.pool.give(memory);
        } else {
            // the pool's lock may have been held by a thread that this child does not have
            std::mem::forget(memory);
        }
    }
}

/// Describe `length` bytes at `pointer` to Python.
///
/// # Safety
/// `view` is Python's; the bytes live as long as `owner`.
pub unsafe fn fill_view(
    owner: &Bound<'_, PyAny>,
    view: *mut pyo3::ffi::Py_buffer,
    pointer: *mut u8,
    length: usize,
    is_readonly: bool,
    flags: c_int,
) -> PyResult<()> {
    let length = isize::try_from(length)?;
    // SAFETY: the caller vouches for all of it.
    if unsafe { pyo3::ffi::PyBuffer_FillInfo(view, owner.as_ptr(), pointer.cast(), length, c_int::from(is_readonly), flags) } < 0 {
        return Err(PyErr::fetch(owner.py()));
    }
    Ok(())
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<FrameBuffer>()
}
