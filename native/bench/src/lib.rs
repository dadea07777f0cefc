//! The Python module `_bench`: payloads and their check for everybody who is measured, and what one thread can do to memory at best.
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

mod payload;
mod ring;
mod source;
mod steps;
mod tally;

use tensor_pool_core::clock::monotonic_ns;

use payload::{PATTERNS, SHIFT_WORDS};
use source::Window;

struct Payloads {
    source: source::Source,
    handed: [Py<PyAny>; PATTERNS],
    dropped: u64,
    _exports: Vec<PyUntypedBuffer>,
}

// SAFETY: the pointers are into buffers whose exports are held beside them; who uses them holds the lock and the GIL.
unsafe impl Send for Payloads {}

/// The frames of a writer: `next()` gives one of three objects, stamped and at its time, until the run is over.
#[pyclass(frozen)]
struct Source(Mutex<Payloads>);

impl Source {
    fn held(&self) -> MutexGuard<'_, Payloads> {
        self.0.lock().expect("no panic while held")
    }
}

#[pymethods]
impl Source {
    /// `payloads` are three writable buffers, `handed` what `next` gives in their stead.
    #[new]
    fn new(payloads: [Bound<'_, PyAny>; PATTERNS], handed: [Py<PyAny>; PATTERNS], nbytes: usize) -> PyResult<Self> {
        let exports = payloads.iter().map(PyUntypedBuffer::get).collect::<PyResult<Vec<_>>>()?;
        let mut pointers = [std::ptr::null_mut(); PATTERNS];
        for (pointer, export) in pointers.iter_mut().zip(&exports) {
            *pointer = export.buf_ptr().cast::<u64>();
            if export.readonly() || !export.is_c_contiguous() || export.len_bytes() < nbytes || !pointer.is_aligned() {
                return Err(PyValueError::new_err(format!("a payload is a writable, contiguous, aligned buffer of {nbytes} bytes")));
            }
        }
        // SAFETY: the exports are as long as `nbytes` and are held with the pointers.
        let source = unsafe { source::Source::new(pointers, nbytes / 8) };
        Ok(Self(Mutex::new(Payloads { source, handed, dropped: 0, _exports: exports })))
    }

    fn start(&self, begin_ns: u64, end_ns: u64, rate_hz: u64) {
        let mut payloads = self.held();
        payloads.source.start(Window { begin_ns, end_ns }, rate_hz);
        payloads.dropped = 0;
    }

    /// The next payload, or None when the run is over.
    fn next(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        let mut payloads = self.held();
        let due_ns = payloads.source.due_ns();
        if due_ns > 0 {
            drop(payloads);
            py.detach(|| source::sleep_until(due_ns));
            payloads = self.held();
        }
        payloads.source.advance().map(|pattern| payloads.handed[pattern].clone_ref(py))
    }

    /// The transport did not take the last frame.
    fn drop_last(&self) {
        let mut payloads = self.held();
        payloads.dropped += u64::from(payloads.source.window.holds(monotonic_ns()));
    }

    /// (offered, dropped) while the run counted.
    fn counts(&self) -> (u64, u64) {
        let payloads = self.held();
        (payloads.source.offered(), payloads.dropped)
    }
}

/// The check of a reader.
#[pyclass(frozen)]
struct Tally {
    nbytes: usize,
    tally: Mutex<tally::Tally>,
}

impl Tally {
    fn held(&self) -> MutexGuard<'_, tally::Tally> {
        self.tally.lock().expect("no panic while held")
    }
}

#[pymethods]
impl Tally {
    #[new]
    fn new(nbytes: usize) -> Self {
        Self { nbytes, tally: Mutex::new(tally::Tally::new(nbytes)) }
    }

    fn start(&self, begin_ns: u64, end_ns: u64) {
        self.held().start(Window { begin_ns, end_ns });
    }

    /// Add up a frame that is a buffer. False when the run is over.
    fn check(&self, frame: &Bound<'_, PyAny>) -> PyResult<bool> {
        let export = PyUntypedBuffer::get(frame)?;
        let mut tally = self.held();
        if export.len_bytes() != self.nbytes || !export.buf_ptr().cast::<u64>().is_aligned() || !export.is_c_contiguous() {
            return Err(PyValueError::new_err(format!("a frame has {} bytes here, this one {}", self.nbytes, export.len_bytes())));
        }
        // SAFETY: the export is held, and as long as a frame.
        Ok(unsafe { tally.check(export.buf_ptr().cast::<u8>()) })
    }

    /// Add up a frame that is an address: whoever gives out nothing but pointers is not charged for an object around them.
    fn check_at(&self, address: usize) -> PyResult<bool> {
        if address == 0 || !address.is_multiple_of(8) {
            return Err(PyValueError::new_err(format!("{address:#x} is no address of words")));
        }
        // SAFETY: the transport lends that address for the length of a frame until its sample is given back.
        Ok(unsafe { self.held().check(std::ptr::with_exposed_provenance(address)) })
    }

    fn retract(&self) {
        self.held().retract();
    }

    #[getter]
    fn is_over(&self) -> bool {
        self.held().is_over()
    }

    fn finish<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let counts = self.held().finish();
        let result = PyDict::new(py);
        for (name, value) in [
            ("accepted", counts.accepted),
            ("wrong", counts.wrong),
            ("overwritten", counts.overwritten),
            ("lost", counts.lost),
            ("p50_ns", counts.p50_ns),
            ("p99_ns", counts.p99_ns),
        ] {
            result.set_item(name, value)?;
        }
        Ok(result)
    }
}

/// Bytes a second that this thread copies into a ring of `slots` frames, and that it adds up out of it.
#[pyfunction]
fn memory_limit(py: Python<'_>, nbytes: usize, slots: usize, seconds: f64) -> PyResult<(f64, f64)> {
    if nbytes < 64 || !nbytes.is_multiple_of(64) || slots == 0 {
        return Err(PyValueError::new_err("a ring has slots, and frames of a multiple of 64 bytes"));
    }
    Ok(py.detach(|| {
        let words = nbytes / 8;
        let mut memory = vec![1_u64; words + SHIFT_WORDS * (PATTERNS - 1)];
        let payloads = std::array::from_fn(|pattern| memory[SHIFT_WORDS * pattern..].as_mut_ptr());
        // SAFETY: windows into `memory`, which is not used otherwise while the source is.
        let mut source = unsafe { source::Source::new(payloads, words) };
        source.start(Window { begin_ns: 0, end_ns: u64::MAX }, 0);
        // not zero: every page is there before the clock runs
        let mut ring = vec![1_u64; words * slots];
        let written = rate(nbytes, seconds, |turn| {
            let pattern = source.advance().expect("the window has no end");
            // SAFETY: one frame, from memory of that length into a slot of that length elsewhere.
            unsafe { libc::memcpy(ring[turn % slots * words..][..words].as_mut_ptr().cast(), payloads[pattern].cast(), nbytes) };
        });
        let mut total = 0_u64;
        let read = rate(nbytes, seconds, |turn| total = total.wrapping_add(payload::sum(&ring[turn % slots * words..][..words])));
        std::hint::black_box(total);
        (written, read)
    }))
}

/// How long one memcpy takes.
#[pyfunction]
fn copy_ns(into: usize, source: usize, nbytes: usize) -> PyResult<u64> {
    if into == 0 || source == 0 {
        return Err(PyValueError::new_err("a copy needs two addresses"));
    }
    let began_ns = monotonic_ns();
    // SAFETY: the caller's arrays, which it holds, have that many bytes.
    unsafe { libc::memcpy(std::ptr::with_exposed_provenance_mut(into), std::ptr::with_exposed_provenance(source), nbytes) };
    Ok(monotonic_ns() - began_ns)
}

fn rate(nbytes: usize, seconds: f64, mut work: impl FnMut(usize)) -> f64 {
    let limit = Duration::from_secs_f64(seconds);
    let began = Instant::now();
    let mut turns = 0;
    while began.elapsed() < limit {
        work(turns);
        turns += 1;
    }
    (turns * nbytes) as f64 / began.elapsed().as_secs_f64()
}

#[pymodule]
fn _bench(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("PATTERNS", PATTERNS)?;
    module.add("SHIFT_BYTES", SHIFT_WORDS * 8)?;
    module.add_class::<Source>()?;
    module.add_class::<Tally>()?;
    module.add_class::<steps::CoreRing>()?;
    module.add_function(wrap_pyfunction!(copy_ns, module)?)?;
    module.add_function(wrap_pyfunction!(memory_limit, module)?)
}
