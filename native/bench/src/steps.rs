//! The lowest steps of the way of a frame: the copy alone, and the ring without Python and Aeron, timed over a row of frames.
use std::path::PathBuf;
use std::sync::Mutex;

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use tensor_pool_core::clock::monotonic_ns;
use tensor_pool_core::copy;
use tensor_pool_core::reader::{self, Located};
use tensor_pool_core::ring::Ring;
use tensor_pool_core::writer::Writer;

use crate::ring;

struct Inner {
    writer: Writer,
    reading: Ring,
    taken: Vec<u64>,
}

/// Both ends of a ring of one's own, in one thread. Every method does its work `frames` times and returns how long that took, in nanoseconds.
#[pyclass(frozen)]
pub struct CoreRing {
    nbytes: usize,
    inner: Mutex<Inner>,
}

impl CoreRing {
    fn timed(&self, frames: u64, work: impl Fn(&mut Inner, u64) -> Option<()>) -> PyResult<u64> {
        let mut inner = self.inner.lock().expect("no panic while held");
        let began_ns = monotonic_ns();
        for frame in 0..frames {
            work(&mut inner, frame).ok_or_else(|| PyRuntimeError::new_err("the ring of one thread refused a frame"))?;
        }
        Ok(monotonic_ns() - began_ns)
    }

    /// One of the frames that were written last, oldest first.
    fn recent(inner: &Inner, frames: u64, frame: u64) -> Option<Located> {
        let seq = (inner.writer.next_seq() + frame).checked_sub(frames)?;
        reader::locate(&inner.reading, seq).ok()
    }
}

fn source(address: usize) -> PyResult<*const u8> {
    if address == 0 {
        return Err(PyValueError::new_err("a copy needs an address"));
    }
    Ok(std::ptr::with_exposed_provenance(address))
}

#[pymethods]
impl CoreRing {
    #[new]
    fn new(directory: PathBuf, nbytes: usize, slots: usize) -> PyResult<Self> {
        let make = || {
            let writer = Writer::new(ring::create(&directory, nbytes, slots)?)?;
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>((writer, ring::open(&directory, nbytes, slots)?))
        };
        let (writer, reading) = make().map_err(|error| PyRuntimeError::new_err(error.to_string()))?;
        // not zero: the pages have to be there
        Ok(Self { nbytes, inner: Mutex::new(Inner { writer, reading, taken: vec![1; nbytes / 8] }) })
    }

    /// memcpy into slot after slot, and nothing else: into those across the ring, for the next ones must not be warmer than others.
    fn copy_in_ns(&self, address: usize, frames: u64) -> PyResult<u64> {
        let from = source(address)?;
        self.timed(frames, |inner, frame| {
            let ring = inner.writer.ring();
            let pool = ring.pool_for(self.nbytes)?;
            let seq = inner.writer.next_seq() + ring.nslots() / 2 + frame;
            // SAFETY: the caller's frame has `nbytes`, and so has each slot.
            unsafe { copy::copy_in(from, ring.payload(pool, seq), self.nbytes) };
            Some(())
        })
    }

    /// The commit protocol and the slot header around that copy.
    fn write_ns(&self, address: usize, frames: u64) -> PyResult<u64> {
        let from = source(address)?;
        self.timed(frames, |inner, _| {
            let info = ring::frame_info(self.nbytes).ok()?;
            let slot = inner.writer.open(self.nbytes).ok()?;
            // SAFETY: as above, into the slot that was just opened.
            unsafe { inner.writer.fill(&slot, from) }.ok()?;
            inner.writer.close(&slot, &info).ok().map(|_| ())
        })
    }

    /// memcpy out of the frames that were written last.
    fn copy_out_ns(&self, frames: u64) -> PyResult<u64> {
        self.timed(frames, |inner, frame| {
            let pool = inner.writer.ring().pool_for(self.nbytes)?;
            let seq = (inner.writer.next_seq() + frame).checked_sub(frames)?;
            // SAFETY: both have `nbytes`.
            unsafe { copy::copy_out(inner.reading.payload(pool, seq), inner.taken.as_mut_ptr().cast(), self.nbytes) };
            Some(())
        })
    }

    /// Find those frames, check their headers, and check again: what a borrowed frame takes.
    fn borrow_ns(&self, frames: u64) -> PyResult<u64> {
        self.timed(frames, |inner, frame| {
            let located = Self::recent(inner, frames, frame)?;
            reader::is_still(&inner.reading, std::hint::black_box(located).seq).then_some(())
        })
    }

    /// The same with the copy in between: what an owned frame takes.
    fn read_ns(&self, frames: u64) -> PyResult<u64> {
        self.timed(frames, |inner, frame| {
            let located = Self::recent(inner, frames, frame)?;
            // SAFETY: `taken` has `nbytes`, and the pool has no longer frames.
            unsafe { reader::copy_payload(&inner.reading, &located, inner.taken.as_mut_ptr().cast()) }.then_some(())
        })
    }
}
