//! The short way in: arrays of the one shape and type that a producer declared, compared by identity and a few integers.
use std::ffi::c_int;
use std::mem::MaybeUninit;

use numpy::npyffi::{NpyTypes, get_type_object};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::{ffi, intern};
use tensor_pool_core::header::FrameInfo;

/// What every frame of a producer is.
pub struct Declared {
    dtype: Py<PyAny>,
    shape: Vec<isize>,
    /// The header of each frame but for its time and metadata version.
    pub info: FrameInfo,
    pub publish_timestamp: bool,
}

impl Declared {
    pub fn new(dtype: &Bound<'_, PyAny>, info: FrameInfo, publish_timestamp: bool) -> PyResult<Self> {
        if !dtype.is_instance(&dtype.py().import("numpy")?.getattr("dtype")?)? {
            return Err(PyTypeError::new_err("declared is a numpy dtype"));
        }
        let shape = info.dims[..info.ndims.into()].iter().map(|dim| *dim as isize).collect();
        Ok(Self { dtype: dtype.clone().unbind(), shape, info, publish_timestamp })
    }

    /// The bytes of an array that is exactly what was declared, row-major and contiguous. None for any other: it goes the long way, and is refused
    /// there with words.
    pub fn export<'py>(&self, array: &Bound<'py, PyAny>) -> PyResult<Option<Export<'py>>> {
        let py = array.py();
        // no subclass: it could say anything about itself
        // SAFETY: with the GIL; the type lives as long as the interpreter.
        if array.get_type_ptr() != unsafe { get_type_object(py, NpyTypes::PyArray_Type) } {
            return Ok(None);
        }
        // numpy's own types exist once, so identity is enough; another spelling of the same type goes the long way
        if !array.getattr(intern!(py, "dtype"))?.is(self.dtype.bind(py)) {
            return Ok(None);
        }
        let Some(export) = Export::of(array, ffi::PyBUF_C_CONTIGUOUS) else { return Ok(None) };
        Ok((export.shape() == self.shape).then_some(export))
    }
}

/// An exported buffer, on the stack.
pub struct Export<'py> {
    view: ffi::Py_buffer,
    _py: Python<'py>,
}

impl<'py> Export<'py> {
    /// A buffer that can be written, in one piece. None where the object has no such.
    pub fn writable(object: &Bound<'py, PyAny>) -> Option<Self> {
        Self::of(object, ffi::PyBUF_C_CONTIGUOUS | ffi::PyBUF_WRITABLE)
    }

    fn of(object: &Bound<'py, PyAny>, flags: c_int) -> Option<Self> {
        let mut view = MaybeUninit::<ffi::Py_buffer>::uninit();
        // SAFETY: the GIL is held; `view` is filled when the call succeeds.
        unsafe {
            if ffi::PyObject_GetBuffer(object.as_ptr(), view.as_mut_ptr(), flags) != 0 {
                ffi::PyErr_Clear();
                return None;
            }
            Some(Self { view: view.assume_init(), _py: object.py() })
        }
    }

    pub fn pointer(&self) -> *const u8 {
        self.view.buf.cast()
    }

    pub fn length(&self) -> usize {
        self.view.len as usize
    }

    fn shape(&self) -> &[isize] {
        if self.view.shape.is_null() {
            return &[];
        }
        // SAFETY: the exporter describes `ndim` dimensions for as long as the export lasts.
        unsafe { std::slice::from_raw_parts(self.view.shape, self.view.ndim as usize) }
    }
}

impl Drop for Export<'_> {
    fn drop(&mut self) {
        // SAFETY: exported in `of`, released once, with the GIL (`_py`).
        unsafe { ffi::PyBuffer_Release(&mut self.view) };
    }
}
