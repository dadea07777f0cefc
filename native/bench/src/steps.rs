//! The lowest steps of the way of a frame: the copy alone, and the ring without Python and Aeron, timed over a row of frames.
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use tensor_pool_core::clock::monotonic_ns;
use tensor_pool_core::copy;
use tensor_pool_core::reader::{self, Located};
use tensor_pool_core::ring::Ring;
use tensor_pool_core::writer::Writer;

use crate::bare::failed;
use crate::payload;
use crate::ring;
use crate::source::{Source, Window};

/// Twice what the last level of a cache holds.
const MORE_THAN_A_CACHE_WORDS: usize = (64 << 20) / 8;

struct Inner {
    writer: Writer,
    reading: Ring,
    taken: Vec<u64>,
    copied: u64,
    elsewhere: Vec<u64>,
}

/// Both ends of a ring of one's own, in one thread. Every method does its work `frames` times and returns how long that took, in nanoseconds.
#[pyclass(frozen)]
pub struct CoreRing {
    nbytes: usize,
    inner: Mutex<Inner>,
}

impl CoreRing {
    fn held(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("no panic while held")
    }

    fn timed(&self, frames: u64, work: impl Fn(&mut Inner, u64) -> Option<()>) -> PyResult<u64> {
        let mut inner = self.held();
        let began_ns = monotonic_ns();
        for frame in 0..frames {
            work(&mut inner, frame).ok_or_else(|| PyRuntimeError::new_err("the ring of one thread refused a frame"))?;
        }
        Ok(monotonic_ns() - began_ns)
    }

    fn limit_of_memory(&self, seconds: f64) -> Option<(f64, f64)> {
        let inner = self.held();
        let ring = inner.writer.ring();
        let pool = ring.pool_for(self.nbytes)?;
        let words = self.nbytes / 8;
        let (_memory, payloads) = payload::windows(words);
        // SAFETY: windows into memory that is not used otherwise while the source is.
        let mut source = unsafe { Source::new(payloads, words) };
        source.start(Window { begin_ns: 0, end_ns: u64::MAX }, 0);
        let written = rate(self.nbytes, seconds, |turn| {
            let pattern = source.advance().expect("the window has no end");
            // SAFETY: one frame, from memory of that length into a slot that is no shorter.
            unsafe { copy::copy_in(payloads[pattern].cast(), ring.payload(pool, turn), self.nbytes) };
        });
        let mut total = 0_u64;
        let read = rate(self.nbytes, seconds, |turn| {
            // SAFETY: a slot of the mapped ring, which nobody writes now.
            let slot = unsafe { std::slice::from_raw_parts(ring.payload(pool, turn).cast::<u64>(), words) };
            total = total.wrapping_add(payload::sum(slot));
        });
        std::hint::black_box(total);
        Some((written, read))
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

fn rate(nbytes: usize, seconds: f64, mut work: impl FnMut(u64)) -> f64 {
    let limit = Duration::from_secs_f64(seconds);
    let began = Instant::now();
    let mut turns = 0;
    while began.elapsed() < limit {
        work(turns);
        turns += 1;
    }
    (turns * nbytes as u64) as f64 / began.elapsed().as_secs_f64()
}

#[pymethods]
impl CoreRing {
    #[new]
    #[pyo3(signature = (directory, nbytes, slots, pool = None))]
    fn new(directory: PathBuf, nbytes: usize, slots: usize, pool: Option<PathBuf>) -> PyResult<Self> {
        let pool = pool.unwrap_or_else(|| ring::own_pool(&directory));
        let make = || {
            let writer = Writer::new(ring::create(&directory, &pool, nbytes, slots)?)?;
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>((writer, ring::open(&directory, &pool, nbytes, slots)?))
        };
        let (writer, reading) = make().map_err(failed)?;
        // not zero: the pages have to be there
        let taken = vec![1; nbytes / 8];
        Ok(Self { nbytes, inner: Mutex::new(Inner { writer, reading, taken, copied: 0, elsewhere: Vec::new() }) })
    }

    /// Bytes a second that this thread copies into the slots, one after the other, and that it adds up out of them.
    fn limit(&self, py: Python<'_>, seconds: f64) -> PyResult<(f64, f64)> {
        py.detach(|| self.limit_of_memory(seconds)).ok_or_else(|| PyRuntimeError::new_err("the ring has no slot for a frame"))
    }

    /// Drive everything else out of the caches: what comes next finds no slot in them, as in a ring that they do not hold.
    fn forget(&self) {
        let mut inner = self.held();
        inner.elsewhere.resize(MORE_THAN_A_CACHE_WORDS, 1);
        std::hint::black_box(payload::sum(&inner.elsewhere));
    }

    /// memcpy into slot after slot, and nothing else.
    fn copy_in_ns(&self, address: usize, frames: u64) -> PyResult<u64> {
        let from = source(address)?;
        self.timed(frames, |inner, _| {
            let ring = inner.writer.ring();
            let pool = ring.pool_for(self.nbytes)?;
            // SAFETY: the caller's frame has `nbytes`, and so has each slot.
            unsafe { copy::copy_in(from, ring.payload(pool, inner.copied), self.nbytes) };
            inner.copied += 1;
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
