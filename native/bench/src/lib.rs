//! The Python module `_bench`: payloads and their check for everybody who is measured, the bare ring, and clocks.
use std::sync::{Mutex, MutexGuard};

use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

mod bare;
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

    /// What stands for the payload whose turn it is, at its time.
    fn handed(&self, py: Python<'_>, advance: impl Fn(&mut source::Source) -> Option<usize>) -> Option<Py<PyAny>> {
        let mut payloads = self.held();
        let due_ns = payloads.source.due_ns();
        if due_ns > 0 {
            drop(payloads);
            py.detach(|| source::sleep_until(due_ns));
            payloads = self.held();
        }
        advance(&mut payloads.source).map(|pattern| payloads.handed[pattern].clone_ref(py))
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
        self.handed(py, source::Source::advance)
    }

    /// The next payload of those that do not count yet, or None when the run begins to count.
    fn lead(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.handed(py, |source| source.advance_until(source.window.begin_ns))
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
        for (name, value) in counts.named() {
            result.set_item(name, value)?;
        }
        Ok(result)
    }
}

/// How long one memcpy takes, from a buffer into another as long.
#[pyfunction]
fn copy_ns(into: &Bound<'_, PyAny>, source: &Bound<'_, PyAny>) -> PyResult<u64> {
    let (into, source) = (PyUntypedBuffer::get(into)?, PyUntypedBuffer::get(source)?);
    if into.readonly() || !into.is_c_contiguous() || !source.is_c_contiguous() || into.len_bytes() != source.len_bytes() {
        return Err(PyValueError::new_err("a copy needs two contiguous buffers of one length"));
    }
    let began_ns = monotonic_ns();
    // SAFETY: both exports are held, and a slot does not overlap the frame that goes into it.
    unsafe { libc::memcpy(into.buf_ptr(), source.buf_ptr(), source.len_bytes()) };
    Ok(monotonic_ns() - began_ns)
}

/// How long a call takes, by the same two looks at the clock.
#[pyfunction]
fn call_ns(callable: &Bound<'_, PyAny>, argument: &Bound<'_, PyAny>) -> PyResult<u64> {
    let began_ns = monotonic_ns();
    let result = callable.call1((argument,));
    let took_ns = monotonic_ns() - began_ns;
    result.map(|_| took_ns)
}

#[pymodule]
fn _bench(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("PATTERNS", PATTERNS)?;
    module.add("SHIFT_BYTES", SHIFT_WORDS * 8)?;
    module.add_class::<Source>()?;
    module.add_class::<Tally>()?;
    module.add_class::<steps::CoreRing>()?;
    module.add_class::<bare::BareWriter>()?;
    module.add_class::<bare::BareReader>()?;
    module.add_function(wrap_pyfunction!(copy_ns, module)?)?;
    module.add_function(wrap_pyfunction!(call_ns, module)?)
}
