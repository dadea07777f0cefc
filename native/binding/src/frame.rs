//! One accepted frame as Python sees it.
use std::ffi::c_int;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};

use numpy::npyffi::flags::{NPY_ARRAY_CARRAY, NPY_ARRAY_CARRAY_RO};
use numpy::npyffi::{NpyTypes, PY_ARRAY_API, get_type_object, npy_intp};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyMemoryView, PySlice, PyTuple};
use tensor_pool_core::accounting::Pending;
use tensor_pool_core::header::{FrameInfo, MAX_DIMS, SlotFields};
use tensor_pool_core::layout::{dtype, major_order};
use tensor_pool_core::reader::{self, Located};
use tensor_pool_core::ring::Ring;

use crate::aeron::lock;
use crate::errors;
use crate::memory::{FrameBuffer, Loan, fill_view};
use crate::reader::FrameReaderInner;

/// Where the bytes of a frame are.
pub enum Payload {
    Owned(Loan),
    Given,
    Lent { reader: Arc<FrameReaderInner>, ring: Arc<Ring>, generation: u64 },
}

enum Bytes {
    Unmade(Payload),
    Given(Py<PyAny>),
    Made(Option<Py<PyAny>>),
}

#[pyclass(frozen, subclass, module = "tensor_pool._native")]
pub struct ReadFrame {
    located: Located,
    pending: Pending,
    #[pyo3(get)]
    epoch: u64,
    #[pyo3(get)]
    stream_id: u32,
    bytes: Mutex<Bytes>,
    array: PyOnceLock<Py<PyAny>>,
}

impl ReadFrame {
    pub fn new(located: Located, pending: Pending, stream_id: u32, epoch: u64, payload: Payload) -> Self {
        Self { located, pending, epoch, stream_id, bytes: Mutex::new(Bytes::Unmade(payload)), array: PyOnceLock::new() }
    }

    /// The caller's object, into which the bytes were copied.
    pub fn given(&mut self, out: Py<PyAny>) {
        *self.bytes.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner) = Bytes::Given(out);
    }

    fn make(&self, py: Python<'_>, payload: Payload) -> PyResult<Option<Py<PyAny>>> {
        Ok(match payload {
            Payload::Given => None,
            Payload::Owned(memory) => Some(Py::new(py, FrameBuffer::new(memory, self.located.length))?.into_any()),
            Payload::Lent { reader, ring, generation } => {
                let view = View { reader, ring, located: self.located, generation, verdict: AtomicU8::new(UNSETTLED) };
                Some(Py::new(py, view)?.into_any())
            }
        })
    }

    fn dims(&self) -> &[i32] {
        &self.located.fields.info.dims[..self.located.fields.info.ndims.into()]
    }

    /// The payload as numpy where it is contiguous and row-major, as nearly every frame is, and in memory of ours. None for the rest, and for types
    /// numpy does not have.
    fn usual_array<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let info = &self.located.fields.info;
        if self.located.fields.strides.is_some() || info.major_order != major_order::ROW || self.located.length == 0 {
            return Ok(None);
        }
        let Some(dtype) = numpy_dtype(py, info.dtype)? else { return Ok(None) };
        let (pointer, flags) = match &*lock(&self.bytes) {
            Bytes::Unmade(Payload::Owned(memory)) => (memory.pointer(), NPY_ARRAY_CARRAY),
            Bytes::Unmade(Payload::Lent { .. }) => (self.located.payload.cast_mut(), NPY_ARRAY_CARRAY_RO),
            // made before: numpy asks the object itself
            _ => return Ok(None),
        };
        let Some(buffer) = self.buffer(py)? else { return Ok(None) };
        let mut dims = [0 as npy_intp; MAX_DIMS];
        for (dim, given) in dims.iter_mut().zip(self.dims()) {
            *dim = *given as npy_intp;
        }
        // SAFETY: with the GIL. The header was checked: the dimensions times the element are no more than the payload's length, which lies inside the
        // memory that `buffer` keeps alive. numpy takes over the references to the type and to `buffer`, also when it fails.
        unsafe {
            let array = PY_ARRAY_API.PyArray_NewFromDescr(
                py,
                get_type_object(py, NpyTypes::PyArray_Type),
                dtype.clone().into_ptr().cast(),
                self.dims().len() as c_int,
                dims.as_mut_ptr(),
                std::ptr::null_mut(),
                pointer.cast(),
                flags,
                std::ptr::null_mut(),
            );
            let array = Bound::from_owned_ptr_or_err(py, array)?;
            if PY_ARRAY_API.PyArray_SetBaseObject(py, array.as_ptr().cast(), buffer.into_ptr()) < 0 {
                return Err(PyErr::fetch(py));
            }
            Ok(Some(array))
        }
    }
}

#[pymethods]
impl ReadFrame {
    #[getter]
    fn buffer(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        let out = match &*lock(&self.bytes) {
            Bytes::Given(out) => Some(out.clone_ref(py)),
            _ => None,
        };
        if let Some(out) = out {
            // Python's own code runs in here: not under the lock
            let view = PyMemoryView::from(out.bind(py))?.call_method1("cast", ("B",))?;
            *lock(&self.bytes) = Bytes::Made(Some(view.unbind()));
        }
        // held with the GIL, and nothing in here lets go of it
        let mut bytes = lock(&self.bytes);
        let made = match std::mem::replace(&mut *bytes, Bytes::Made(None)) {
            Bytes::Unmade(payload) => self.make(py, payload)?,
            Bytes::Given(out) => Some(out),
            Bytes::Made(made) => made,
        };
        let shared = made.as_ref().map(|object| object.clone_ref(py));
        *bytes = Bytes::Made(made);
        Ok(shared)
    }

    /// The payload as numpy, without a copy. BYTES and BIT frames have no numpy type: use `payload`.
    #[getter]
    fn array<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let array = self.array.get_or_try_init(py, || {
            let array = match self.usual_array(py)? {
                Some(array) => array,
                None => python(py, "tensor_pool.tensors", "array_from_buffer")?.call1((
                    self.buffer(py)?,
                    self.located.fields.info.dtype,
                    self.major_order(),
                    self.shape(py)?,
                    self.strides(py)?,
                ))?,
            };
            Ok::<_, PyErr>(array.unbind())
        })?;
        Ok(array.bind(py).clone())
    }

    /// The bytes as they lie in memory, read-only.
    #[getter]
    fn payload<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let Some(buffer) = self.buffer(py)? else { return Err(PyRuntimeError::new_err("this frame was read into memory that is gone")) };
        let whole = PyMemoryView::from(buffer.bind(py))?.call_method0("toreadonly")?;
        whole.get_item(PySlice::new(py, 0, isize::try_from(self.located.length)?, 1))
    }

    /// (stream id, epoch, seq): names this frame of this host for good.
    #[getter]
    fn key(&self) -> (u32, u64, u64) {
        (self.stream_id, self.epoch, self.pending.seq)
    }

    fn __repr__(slf: &Bound<'_, Self>) -> PyResult<String> {
        let (py, frame) = (slf.py(), slf.get());
        let dtype: String = frame.dtype(py)?.getattr("name")?.extract()?;
        let (stream_id, epoch, seq, shape) = (frame.stream_id, frame.epoch, frame.pending.seq, frame.shape(py)?);
        Ok(format!("<{} stream {stream_id} epoch {epoch} seq {seq} {} {shape}>", slf.get_type().name()?, dtype.to_lowercase()))
    }

    #[getter]
    fn seq(&self) -> u64 {
        self.pending.seq
    }

    #[getter]
    fn timestamp_ns(&self) -> u64 {
        self.located.fields.info.timestamp_ns
    }

    #[getter]
    fn publish_timestamp_ns(&self) -> Option<u64> {
        self.pending.timestamp_ns
    }

    #[getter]
    fn meta_version(&self) -> u32 {
        self.located.fields.info.meta_version
    }

    #[getter]
    fn trace_id(&self) -> u64 {
        self.pending.trace_id
    }

    /// Element type as on the wire; `array.dtype` is numpy's.
    #[getter]
    fn dtype<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        static DTYPE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let class = DTYPE.get_or_try_init(py, || Ok::<_, PyErr>(python(py, "tensor_pool.sbe.control", "Dtype")?.unbind()))?;
        class.bind(py).call1((self.located.fields.info.dtype,))
    }

    #[getter]
    fn major_order(&self) -> i16 {
        self.located.fields.info.major_order
    }

    /// Of an empty payload with a shape that promises more: `(0,)`.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        if self.located.length == 0 && !self.dims().contains(&0) {
            return PyTuple::new(py, [0]);
        }
        PyTuple::new(py, self.dims())
    }

    #[getter]
    fn strides<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyTuple>>> {
        match (&self.located.fields.strides, self.located.length) {
            (None, _) | (_, 0) => Ok(None),
            (Some(strides), _) => Ok(Some(PyTuple::new(py, &strides[..self.dims().len()])?)),
        }
    }

    #[getter]
    fn nbytes(&self) -> usize {
        self.located.length
    }
}

/// What is written in Python, because it is rare.
fn python<'py>(py: Python<'py>, module: &str, name: &str) -> PyResult<Bound<'py, PyAny>> {
    py.import(module)?.getattr(name)
}

/// A validated copy of one frame. It is yours: keep it, change it, pickle it, give it to torch.
#[pyclass(frozen, subclass, extends = ReadFrame, module = "tensor_pool.consumer.frame")]
pub struct Frame;

impl Frame {
    pub fn own(py: Python<'_>, frame: ReadFrame) -> PyResult<Py<Self>> {
        Py::new(py, PyClassInitializer::from(frame).add_subclass(Self))
    }
}

/// `tensor_pool.consumer.frame.FrameFields`.
#[derive(FromPyObject)]
struct Fields {
    buffer: Py<PyAny>,
    seq: u64,
    epoch: u64,
    timestamp_ns: u64,
    publish_timestamp_ns: Option<u64>,
    meta_version: u32,
    trace_id: u64,
    dtype: i16,
    major_order: i16,
    shape: Vec<i32>,
    strides: Option<Vec<i32>>,
    nbytes: usize,
}

fn padded(values: &[i32]) -> PyResult<[i32; MAX_DIMS]> {
    let mut padded = [0; MAX_DIMS];
    let Some(filled) = padded.get_mut(..values.len()) else {
        return Err(PyValueError::new_err(format!("a frame has at most {MAX_DIMS} dimensions, not {}", values.len())));
    };
    filled.copy_from_slice(values);
    Ok(padded)
}

#[pymethods]
impl Frame {
    /// From plain values: a recording's, or an unpickled frame's.
    #[new]
    fn new(fields: Fields, stream_id: u32) -> PyResult<PyClassInitializer<Self>> {
        let info = FrameInfo {
            dtype: fields.dtype,
            major_order: fields.major_order,
            ndims: fields.shape.len() as u8,
            dims: padded(&fields.shape)?,
            values_len_bytes: u32::try_from(fields.nbytes)?,
            timestamp_ns: fields.timestamp_ns,
            meta_version: fields.meta_version,
        };
        let strides = fields.strides.as_deref().map(padded).transpose()?;
        let fields_of_slot = SlotFields { info, pool_id: 0, payload_slot: 0, strides };
        let located = Located { seq: fields.seq, fields: fields_of_slot, payload: std::ptr::null(), length: fields.nbytes };
        let pending = Pending { seq: fields.seq, timestamp_ns: fields.publish_timestamp_ns, trace_id: fields.trace_id };
        let mut frame = ReadFrame::new(located, pending, stream_id, fields.epoch, Payload::Given);
        frame.bytes = Mutex::new(Bytes::Made(Some(fields.buffer)));
        Ok(PyClassInitializer::from(frame).add_subclass(Self))
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        python(slf.py(), "tensor_pool.consumer.frame", "reduced")?.call1((slf,))
    }

    #[pyo3(signature = (**options))]
    fn __dlpack__<'py>(slf: &Bound<'py, Self>, options: Option<&Bound<'py, PyDict>>) -> PyResult<Bound<'py, PyAny>> {
        slf.as_super().get().array(slf.py())?.call_method("__dlpack__", (), options)
    }

    fn __dlpack_device__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.as_super().get().array(slf.py())?.call_method0("__dlpack_device__")
    }
}

/// The slot itself, read-only, for the length of a `with` block. Leaving the block checks the slot a last time.
#[pyclass(frozen, extends = ReadFrame, module = "tensor_pool.consumer.frame")]
pub struct BorrowedFrame;

impl BorrowedFrame {
    pub fn lend(py: Python<'_>, frame: ReadFrame) -> PyResult<Py<Self>> {
        Py::new(py, PyClassInitializer::from(frame).add_subclass(Self))
    }

    /// The last check; its verdict is not raised in place of another error.
    fn give_back(slf: &Bound<'_, Self>, has_failed: bool) -> PyResult<()> {
        if Self::view(slf)?.get().release() || has_failed {
            return Ok(());
        }
        let frame = slf.as_super().get();
        Err(errors::frame_overwritten(frame.stream_id, frame.pending.seq))
    }

    fn view<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, View>> {
        let buffer = slf.as_super().get().buffer(slf.py())?.expect("a lent frame has a view");
        Ok(buffer.into_bound(slf.py()).cast_into::<View>()?)
    }
}

#[pymethods]
impl BorrowedFrame {
    /// Whether the slot still holds this frame. A yes is about the past: only the check on leaving the block counts.
    fn still_valid(slf: &Bound<'_, Self>) -> PyResult<bool> {
        Ok(Self::view(slf)?.get().still_valid())
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __exit__(slf: &Bound<'_, Self>, _kind: &Bound<'_, PyAny>, error: &Bound<'_, PyAny>, _trace: &Bound<'_, PyAny>) -> PyResult<()> {
        Self::give_back(slf, !error.is_none())
    }

    /// What leaving the block does, for views that are not used in one. In a forked child: nothing.
    fn close(slf: &Bound<'_, Self>) -> PyResult<()> {
        let is_here = Self::view(slf)?.get().reader.owner().is_here();
        if is_here { Self::give_back(slf, false) } else { Ok(()) }
    }
}

static DTYPES: PyOnceLock<Vec<Option<Py<PyAny>>>> = PyOnceLock::new();

/// The numpy dtype of a wire number that was checked.
fn numpy_dtype(py: Python<'_>, code: i16) -> PyResult<Option<&Bound<'_, PyAny>>> {
    const NAMES: [(i16, &str); 11] = [
        (dtype::UINT8, "uint8"),
        (dtype::INT8, "int8"),
        (dtype::UINT16, "uint16"),
        (dtype::INT16, "int16"),
        (dtype::UINT32, "uint32"),
        (dtype::INT32, "int32"),
        (dtype::UINT64, "uint64"),
        (dtype::INT64, "int64"),
        (dtype::FLOAT32, "float32"),
        (dtype::FLOAT64, "float64"),
        (dtype::BOOLEAN, "bool"),
    ];
    let known = DTYPES.get_or_try_init(py, || {
        let make = py.import("numpy")?.getattr("dtype")?;
        let mut known: Vec<Option<Py<PyAny>>> = (0..16).map(|_| None).collect();
        for (code, name) in NAMES {
            known[code as usize] = Some(make.call1((name,))?.unbind());
        }
        Ok::<_, PyErr>(known)
    })?;
    Ok(known.get(code as usize).and_then(Option::as_ref).map(|object| object.bind(py)))
}

const UNSETTLED: u8 = 0;
const WHOLE: u8 = 1;
const OVERWRITTEN: u8 = 2;

/// A lent slot, read-only. Its mapping lives as long as an array uses it.
#[pyclass(frozen, module = "tensor_pool._native")]
pub struct View {
    reader: Arc<FrameReaderInner>,
    ring: Arc<Ring>,
    located: Located,
    generation: u64,
    verdict: AtomicU8,
}

#[pymethods]
impl View {
    /// # Safety
    /// Called by Python with a valid `view`.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut pyo3::ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let located = slf.get().located;
        // SAFETY: the mapping lives as long as this object, of which the view takes a reference; the length was checked against the slot.
        unsafe { fill_view(slf.as_any(), view, located.payload.cast_mut(), located.length, true, flags) }
    }

    fn __len__(&self) -> usize {
        self.located.length
    }

    fn still_valid(&self) -> bool {
        reader::is_still(&self.ring, self.located.seq)
    }

    fn release(&self) -> bool {
        // two threads may release at once: the one that moves the verdict books it
        // SYNC POINT: the verdict carries no other data with it.
        if self.verdict.compare_exchange(UNSETTLED, WHOLE, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            if !self.reader.owner().is_here() {
                return self.still_valid();
            }
            if !self.reader.settle_lent(&self.ring, &self.located, self.generation) {
                self.verdict.store(OVERWRITTEN, Ordering::Relaxed);
            }
        }
        self.verdict.load(Ordering::Relaxed) == WHOLE
    }
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<ReadFrame>()?;
    module.add_class::<Frame>()?;
    module.add_class::<BorrowedFrame>()?;
    module.add_class::<View>()
}
