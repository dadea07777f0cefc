//! A claimed part of a publication's log, as Python fills it.
use std::ffi::c_int;
use std::sync::Arc;

use pyo3::prelude::*;

use crate::aeron::AeronError;
use crate::publication::PublicationInner;

/// A claimed part of the log. Python fills memory of ours, which is copied into the log at `commit`: so a view that outlives the claim, the publication or
/// the client never points into an unmapped log.
#[pyclass(frozen, module = "tensor_pool._native")]
pub struct BufferClaim {
    publication: Arc<PublicationInner>,
    id: u64,
    staged: Box<[std::cell::UnsafeCell<u8>]>,
}

// SAFETY: the staging bytes are shared with Python's buffer protocol, whose users race only with themselves; we read them with the GIL held, as plain bytes.
unsafe impl Sync for BufferClaim {}

impl BufferClaim {
    pub(crate) fn new(publication: Arc<PublicationInner>, id: u64, length: usize) -> Self {
        let staged = (0..length).map(|_| std::cell::UnsafeCell::new(0)).collect();
        Self { publication, id, staged }
    }
}

#[pymethods]
impl BufferClaim {
    /// # Safety
    /// Called by Python with a valid `view`.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut pyo3::ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let (data, length) = {
            let staged = &slf.get().staged;
            (staged.as_ptr() as *mut std::ffi::c_void, staged.len() as isize)
        };
        // SAFETY: the staging bytes live as long as this object, of which the view takes a reference.
        if unsafe { pyo3::ffi::PyBuffer_FillInfo(view, slf.as_ptr(), data, length, 0, flags) } < 0 {
            return Err(PyErr::fetch(slf.py()));
        }
        Ok(())
    }

    fn commit(&self) -> PyResult<()> {
        // SAFETY: UnsafeCell<u8> has the layout of u8; the GIL is held, so Python code does not write meanwhile.
        let bytes = unsafe { std::slice::from_raw_parts(self.staged.as_ptr().cast::<u8>(), self.staged.len()) };
        if self.publication.finish_claim(self.id, Some(bytes)) {
            return Ok(());
        }
        Err(match self.publication.closed_reason() {
            AeronError::DriverLost { code, text } => AeronError::DriverLost { code, text },
            _ => AeronError::Closed("this claim was committed or aborted before, or its publication is closed".to_owned()),
        }
        .into())
    }

    fn abort(&self) {
        self.publication.finish_claim(self.id, None);
    }
}

impl Drop for BufferClaim {
    fn drop(&mut self) {
        self.publication.finish_claim(self.id, None);
    }
}
