//! The producer's end of a ring: a slot in shared memory, then the descriptor, then the wake-up of whoever waits.
use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyBufferError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use tensor_pool_core::clock::monotonic_ns;
use tensor_pool_core::descriptor::{self, Descriptor};
use tensor_pool_core::error::CoreError;
use tensor_pool_core::failpoint::{self, Point};
use tensor_pool_core::header::{self, FrameInfo, MAX_DIMS, element_bytes};
use tensor_pool_core::layout::major_order;
use tensor_pool_core::region::Region as CoreRegion;
use tensor_pool_core::ring::{Pool, Ring};
use tensor_pool_core::wait;
use tensor_pool_core::writer::{OpenSlot, Writer};

use crate::aeron::lock;
use crate::declared::Declared;
use crate::errors;
use crate::fork::{self, Owner};
use crate::memory::fill_view;
use crate::publication::{BACK_PRESSURED, CLOSED, Publication, PublicationInner};
use crate::region::Region;
use crate::waiters::{Waiters, WaitersState};

/// Below this the copy is done before another thread could have used the GIL.
const SMALL_FRAME_BYTES: usize = 32 * 1024;

#[derive(Clone, Copy, Default)]
struct Counters {
    frames_published: u64,
    frames_aborted: u64,
    frames_dropped_too_large: u64,
    descriptors_sent: u64,
    descriptors_back_pressured: u64,
    descriptors_not_connected: u64,
    descriptors_closed: u64,
    wakes_sent: u64,
}

struct State {
    writer: Writer,
    /// The claim that is open, by its number: an aborted claim gives its seq to the next one, so the seq does not tell them apart.
    open_claim: Option<(u64, OpenSlot)>,
    claims_made: u64,
    counters: Counters,
}

/// Why a call was refused. It becomes an exception only when `state` is free again: raising needs the GIL, whose holder may wait for `state`.
enum Refused {
    OtherProcess,
    Closed(u32),
    Claimed(u64),
    Settled(u64),
    Core(CoreError),
}

impl From<CoreError> for Refused {
    fn from(error: CoreError) -> Self {
        Self::Core(error)
    }
}

impl From<Refused> for PyErr {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::OtherProcess => errors::closed(fork::words("producer")),
            Refused::Closed(stream_id) => errors::closed(format!("the writer of stream {stream_id} is closed")),
            Refused::Claimed(seq) => PyRuntimeError::new_err(format!("frame {seq} is claimed: commit or abort it first")),
            Refused::Settled(seq) => errors::closed(format!("the claim of frame {seq} was committed or aborted before")),
            Refused::Core(error) => errors::from_core(error),
        }
    }
}

struct WriterInner {
    owner: Owner,
    stream_id: u32,
    epoch: u64,
    publication: Option<Arc<PublicationInner>>,
    waiters_expected: AtomicBool,
    waiters: Option<Arc<WaitersState>>,
    declared: OnceLock<Declared>,
    state: Mutex<(Option<State>, Counters)>,
}

/// The words of a frame that come from Python with every commit.
#[derive(Clone, Copy)]
struct Announcement {
    timestamp_ns: u64,
    meta_version: u32,
    trace_id: u64,
    publish_timestamp: bool,
}

#[derive(Clone, Copy)]
struct Source(*const u8);

// SAFETY: points into a buffer whose export the caller holds.
unsafe impl Send for Source {}
// SAFETY: as above.
unsafe impl Sync for Source {}

impl WriterInner {
    fn ensure_here(&self) -> Result<(), Refused> {
        if self.owner.is_here() { Ok(()) } else { Err(Refused::OtherProcess) }
    }

    fn with_state<T>(&self, work: impl FnOnce(&mut State) -> Result<T, Refused>) -> Result<T, Refused> {
        self.ensure_here()?;
        lock(&self.state).0.as_mut().map_or(Err(Refused::Closed(self.stream_id)), work)
    }

    fn announce(&self, state: &mut State, seq: u64, words: Announcement) -> Result<(), Refused> {
        state.counters.frames_published += 1;
        if let Some(publication) = &self.publication {
            let descriptor = Descriptor {
                stream_id: self.stream_id,
                epoch: self.epoch,
                seq,
                timestamp_ns: words.publish_timestamp.then(monotonic_ns),
                meta_version: words.meta_version,
                trace_id: words.trace_id,
            };
            let bytes = descriptor.encode();
            let code = publication.try_claim_with(descriptor::LENGTH, |into| into.copy_from_slice(&bytes));
            let counters = &mut state.counters;
            match code {
                code if code > 0 => counters.descriptors_sent += 1,
                BACK_PRESSURED => counters.descriptors_back_pressured += 1,
                CLOSED => counters.descriptors_closed += 1,
                _ => counters.descriptors_not_connected += 1,
            }
            failpoint::pass(Point::WriteAfterDescriptor)?;
        }
        // SYNC POINT: the flag only saves a system call; a reader that it misses wakes by its own bound of 5 ms.
        if self.waiters_expected.load(Ordering::Relaxed) {
            let word = state.writer.ring().commit_word(seq);
            let woke = match &self.waiters {
                Some(waiters) => waiters.wake(word),
                None => {
                    wait::wake_first(word);
                    true
                }
            };
            state.counters.wakes_sent += u64::from(woke);
        }
        Ok(())
    }

    fn stamped(&self, declared: &Declared, timestamp_ns: Option<u64>, trace_id: u64) -> (FrameInfo, Announcement) {
        let timestamp_ns = timestamp_ns.unwrap_or_else(monotonic_ns);
        let info = FrameInfo { timestamp_ns, ..declared.info };
        (info, Announcement { timestamp_ns, meta_version: 0, trace_id, publish_timestamp: declared.publish_timestamp })
    }

    fn open_slot(state: &mut State, length: usize) -> Result<OpenSlot, Refused> {
        if let Some((_, slot)) = state.open_claim {
            return Err(Refused::Claimed(slot.seq));
        }
        let opened = state.writer.open(length);
        state.counters.frames_dropped_too_large += u64::from(matches!(opened, Err(CoreError::FrameTooLarge { .. })));
        Ok(opened?)
    }

    fn publish(&self, from: Source, length: usize, info: &FrameInfo, words: Announcement) -> Result<u64, Refused> {
        self.with_state(|state| {
            let slot = Self::open_slot(state, length)?;
            // SAFETY: the caller holds the export of `length` bytes; the slot was just opened by this writer.
            unsafe { state.writer.fill(&slot, from.0) }?;
            let seq = state.writer.close(&slot, info)?;
            self.announce(state, seq, words)?;
            Ok(seq)
        })
    }
}

fn frame_info(dtype: i16, major_order: i16, shape: &[u64], length: usize, words: Announcement) -> PyResult<FrameInfo> {
    if shape.is_empty() || shape.len() > MAX_DIMS {
        return Err(PyValueError::new_err(format!("a frame has 1 to {MAX_DIMS} dimensions, not {}", shape.len())));
    }
    let element = element_bytes(dtype).ok_or_else(|| PyValueError::new_err(format!("{dtype} is no dtype of the wire")))?;
    if !(1..=2).contains(&major_order) {
        return Err(PyValueError::new_err(format!("{major_order} is no major order: 1 for rows, 2 for columns")));
    }
    let mut dims = [0; MAX_DIMS];
    let mut nbytes = Some(element);
    for (dim, given) in dims.iter_mut().zip(shape) {
        *dim = i32::try_from(*given).map_err(|_| PyValueError::new_err(format!("a dimension of {given} is too long")))?;
        nbytes = nbytes.and_then(|bytes| bytes.checked_mul(*given));
    }
    if nbytes != Some(length as u64) {
        return Err(PyValueError::new_err(format!("{length} bytes are not a frame of shape {shape:?} with {element} bytes an element")));
    }
    let info = FrameInfo {
        dtype,
        major_order,
        ndims: shape.len() as u8,
        dims,
        values_len_bytes: u32::try_from(length).map_err(|_| PyValueError::new_err("a frame has less than 4 GiB"))?,
        timestamp_ns: words.timestamp_ns,
        meta_version: words.meta_version,
    };
    // an empty frame may have dimensions whose strides no header can hold
    header::check(&info).map_err(|rule| PyValueError::new_err(format!("no reader takes a frame of shape {shape:?}: {}", rule.0)))?;
    Ok(info)
}

/// The ring that Python described, over regions that stay mapped with it.
pub fn ring_of(header: &Region, pools: Vec<(u16, usize, PyRef<'_, Region>)>, nslots: u64) -> PyResult<Ring> {
    let pools = pools
        .into_iter()
        .map(|(id, stride_bytes, region)| Ok(Pool { id, stride_bytes, region: region.share()? }))
        .collect::<PyResult<Vec<_>>>()?;
    Ring::new(header.share()?, pools, nslots).map_err(errors::from_core)
}

#[pyclass(frozen, module = "tensor_pool._native")]
pub struct RingWriter {
    inner: Arc<WriterInner>,
}

#[pymethods]
impl RingWriter {
    #[new]
    #[pyo3(signature = (header, pools, *, nslots, stream_id, epoch, publication, waiters = None))]
    fn new(
        header: &Region,
        pools: Vec<(u16, usize, PyRef<'_, Region>)>,
        nslots: u64,
        stream_id: u32,
        epoch: u64,
        publication: Option<PyRef<'_, Publication>>,
        waiters: Option<PyRef<'_, Waiters>>,
    ) -> PyResult<Self> {
        let writer = Writer::new(ring_of(header, pools, nslots)?).map_err(errors::from_core)?;
        let state = State { writer, open_claim: None, claims_made: 0, counters: Counters::default() };
        Ok(Self {
            inner: Arc::new(WriterInner {
                owner: Owner::current(),
                stream_id,
                epoch,
                publication: publication.map(|publication| publication.inner.clone()),
                waiters_expected: AtomicBool::new(true),
                waiters: waiters.map(|waiters| waiters.state.clone()),
                declared: OnceLock::new(),
                state: Mutex::new((Some(state), Counters::default())),
            }),
        })
    }

    #[getter]
    fn next_seq(&self) -> PyResult<u64> {
        Ok(self.inner.with_state(|state| Ok(state.writer.next_seq()))?)
    }

    #[getter]
    fn largest_stride_bytes(&self) -> PyResult<usize> {
        Ok(self.inner.with_state(|state| Ok(state.writer.ring().largest_stride_bytes()))?)
    }

    fn set_waiters(&self, expected: bool) {
        self.inner.waiters_expected.store(expected, Ordering::Relaxed);
    }

    #[pyo3(signature = (payload, dtype, major_order, shape, *, timestamp_ns, meta_version, trace_id, publish_timestamp))]
    #[expect(clippy::too_many_arguments, reason = "one call a frame, so everything travels in it")]
    fn publish(
        &self,
        py: Python<'_>,
        payload: &Bound<'_, PyAny>,
        dtype: i16,
        major_order: i16,
        shape: Vec<u64>,
        timestamp_ns: u64,
        meta_version: u32,
        trace_id: u64,
        publish_timestamp: bool,
    ) -> PyResult<u64> {
        let buffer = PyUntypedBuffer::get(payload)?;
        if !buffer.is_c_contiguous() && !buffer.is_fortran_contiguous() {
            return Err(PyBufferError::new_err("the payload must be a contiguous buffer"));
        }
        let words = Announcement { timestamp_ns, meta_version, trace_id, publish_timestamp };
        let length = buffer.len_bytes();
        let info = frame_info(dtype, major_order, &shape, length, words)?;
        let source = Source(buffer.buf_ptr().cast::<u8>());
        if length <= SMALL_FRAME_BYTES {
            return Ok(self.inner.publish(source, length, &info, words)?);
        }
        Ok(py.detach(|| self.inner.publish(source, length, &info, words))?)
    }

    #[pyo3(signature = (dtype, code, shape, *, publish_timestamp))]
    fn declare(&self, dtype: &Bound<'_, PyAny>, code: i16, shape: Vec<u64>, publish_timestamp: bool) -> PyResult<()> {
        let element = element_bytes(code).ok_or_else(|| PyValueError::new_err(format!("{code} is no dtype of the wire")))?;
        let length = shape.iter().try_fold(element, |bytes, dim| bytes.checked_mul(*dim)).and_then(|bytes| usize::try_from(bytes).ok());
        let length = length.ok_or_else(|| PyValueError::new_err("a frame has less than 4 GiB"))?;
        let words = Announcement { timestamp_ns: 0, meta_version: 0, trace_id: 0, publish_timestamp };
        let declared = Declared::new(dtype, frame_info(code, major_order::ROW, &shape, length, words)?, publish_timestamp)?;
        self.inner.declared.set(declared).map_err(|_| PyRuntimeError::new_err("the frame of this writer was declared before"))
    }

    #[pyo3(signature = (array, timestamp_ns = None, trace_id = 0))]
    fn publish_declared(
        &self,
        py: Python<'_>,
        array: &Bound<'_, PyAny>,
        timestamp_ns: Option<u64>,
        trace_id: u64,
    ) -> PyResult<Option<u64>> {
        let Some(declared) = self.inner.declared.get() else { return Ok(None) };
        let Some(export) = declared.export(array)? else { return Ok(None) };
        let (info, words) = self.inner.stamped(declared, timestamp_ns, trace_id);
        let (source, length) = (Source(export.pointer()), export.length());
        let seq = if length <= SMALL_FRAME_BYTES {
            self.inner.publish(source, length, &info, words)?
        } else {
            py.detach(|| self.inner.publish(source, length, &info, words))?
        };
        Ok(Some(seq))
    }

    fn claim(&self, nbytes: usize) -> PyResult<Claim> {
        Ok(self.inner.with_state(|state| {
            let slot = WriterInner::open_slot(state, nbytes)?;
            state.claims_made += 1;
            let number = state.claims_made;
            state.open_claim = Some((number, slot));
            let pool = state.writer.ring().pool(slot.pool_id).expect("the slot came from this ring");
            Ok(Claim { inner: self.inner.clone(), slot, number, _mapped: pool.region.clone() })
        })?)
    }

    fn counters(&self) -> PyResult<HashMap<&'static str, u64>> {
        self.inner.ensure_here()?;
        let state = lock(&self.inner.state);
        let counters = state.0.as_ref().map_or(state.1, |open| open.counters);
        Ok(HashMap::from([
            ("frames_published", counters.frames_published),
            ("frames_aborted", counters.frames_aborted),
            ("frames_dropped_too_large", counters.frames_dropped_too_large),
            ("descriptors_sent", counters.descriptors_sent),
            ("descriptors_back_pressured", counters.descriptors_back_pressured),
            ("descriptors_not_connected", counters.descriptors_not_connected),
            ("descriptors_closed", counters.descriptors_closed),
            ("wakes_sent", counters.wakes_sent),
        ]))
    }

    fn close(&self, py: Python<'_>) {
        if !self.inner.owner.is_here() {
            return;
        }
        py.detach(|| {
            let mut state = lock(&self.inner.state);
            if let Some(mut open) = state.0.take() {
                open.counters.frames_aborted += u64::from(open.open_claim.is_some());
                state.1 = open.counters;
            }
        });
    }
}

/// A slot being filled in place.
#[pyclass(frozen, module = "tensor_pool._native")]
pub struct Claim {
    inner: Arc<WriterInner>,
    slot: OpenSlot,
    number: u64,
    _mapped: Arc<CoreRegion>,
}

// SAFETY: the pointer in `slot` is only handed to Python's buffer protocol, whose users race only with themselves.
unsafe impl Sync for Claim {}

impl Claim {
    fn is_open(&self, state: &State) -> bool {
        state.open_claim.is_some_and(|(number, _)| number == self.number)
    }

    fn close(&self, info: &FrameInfo, words: Announcement) -> PyResult<u64> {
        Ok(self.inner.with_state(|state| {
            if !self.is_open(state) {
                return Err(Refused::Settled(self.slot.seq));
            }
            state.open_claim = None;
            let seq = state.writer.close(&self.slot, info)?;
            self.inner.announce(state, seq, words)?;
            Ok(seq)
        })?)
    }
}

#[pymethods]
impl Claim {
    /// # Safety
    /// Called by Python with a valid `view`.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut pyo3::ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let claim = slf.get();
        claim.inner.ensure_here()?;
        // a settled slot belongs to readers, or to the next frame
        let is_open = lock(&claim.inner.state).0.as_ref().is_some_and(|state| claim.is_open(state));
        let slot = claim.slot;
        // SAFETY: the mapping lives as long as this object, of which the view takes a reference; the length fits the slot.
        unsafe { fill_view(slf.as_any(), view, slot.payload, slot.length, !is_open, flags) }
    }

    #[getter]
    fn seq(&self) -> PyResult<u64> {
        self.inner.ensure_here()?;
        Ok(self.slot.seq)
    }

    /// For whoever holds the buffer already. No system call, unlike asking for the process id.
    fn check_here(&self) -> PyResult<()> {
        Ok(self.inner.ensure_here()?)
    }

    #[pyo3(signature = (dtype, major_order, shape, *, timestamp_ns, meta_version, trace_id, publish_timestamp))]
    #[expect(clippy::too_many_arguments, reason = "one call a frame, so everything travels in it")]
    fn commit(
        &self,
        dtype: i16,
        major_order: i16,
        shape: Vec<u64>,
        timestamp_ns: u64,
        meta_version: u32,
        trace_id: u64,
        publish_timestamp: bool,
    ) -> PyResult<u64> {
        let words = Announcement { timestamp_ns, meta_version, trace_id, publish_timestamp };
        let info = frame_info(dtype, major_order, &shape, self.slot.length, words)?;
        self.close(&info, words)
    }

    #[pyo3(signature = (timestamp_ns = None, trace_id = 0))]
    fn commit_declared(&self, timestamp_ns: Option<u64>, trace_id: u64) -> PyResult<u64> {
        let declared = self.inner.declared.get().filter(|declared| declared.info.values_len_bytes as usize == self.slot.length);
        let Some(declared) = declared else {
            return Err(PyValueError::new_err("this claim is not of the size that was declared"));
        };
        let (info, words) = self.inner.stamped(declared, timestamp_ns, trace_id);
        self.close(&info, words)
    }

    fn abort(&self) {
        if !self.inner.owner.is_here() {
            return;
        }
        if let Some(state) = lock(&self.inner.state).0.as_mut()
            && self.is_open(state)
        {
            state.open_claim = None;
            state.counters.frames_aborted += 1;
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.abort();
    }
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<RingWriter>()?;
    module.add_class::<Claim>()
}
