//! Raising the exceptions of `tensor_pool.errors`.
use std::path::Path;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use tensor_pool_core::error::CoreError;

fn raise(name: &str, message: String, fields: impl FnOnce(&Bound<'_, PyDict>) -> PyResult<()>) -> PyErr {
    Python::attach(|py| {
        let made = || -> PyResult<PyErr> {
            let class = py.import("tensor_pool.errors")?.getattr(name)?;
            let keywords = PyDict::new(py);
            fields(&keywords)?;
            Ok(PyErr::from_value(class.call((message,), Some(&keywords))?))
        };
        made().unwrap_or_else(|error| error)
    })
}

pub fn closed(message: String) -> PyErr {
    raise("ClosedError", message, |_| Ok(()))
}

pub fn frame_overwritten(stream_id: u32, seq: u64) -> PyErr {
    raise("FrameOverwrittenError", format!("frame {seq} of stream {stream_id} was overwritten while it was borrowed"), |fields| {
        fields.set_item("seq", seq)?;
        fields.set_item("hint", "use read() for a copy, do less in the block, or give the producer more slots")
    })
}

pub fn transport(message: String, code: i32) -> PyErr {
    raise("TransportError", message, |fields| fields.set_item("code", code))
}

pub fn media_driver_timeout(message: String, code: i32) -> PyErr {
    raise("MediaDriverTimeoutError", message, |fields| fields.set_item("code", code))
}

/// The exception for what the core refused.
pub fn from_core(error: CoreError) -> PyErr {
    let message = error.to_string();
    match error {
        CoreError::Region { path, hint, .. } => region("RegionError", message, &path, &hint),
        CoreError::PathNotAllowed { path, hint, .. } => region("PathNotAllowedError", message, &path, &hint),
        CoreError::SuperblockMismatch { path, .. } => region("SuperblockMismatchError", message, &path, ""),
        CoreError::StorageSpace { path, need_bytes, have_bytes, hint, .. } => raise("StorageSpaceError", message, |fields| {
            fields.set_item("path", path.to_string_lossy())?;
            fields.set_item("need_bytes", need_bytes)?;
            fields.set_item("have_bytes", have_bytes)?;
            fields.set_item("hint", hint)
        }),
        CoreError::FrameTooLarge { need_bytes, largest_stride_bytes } => raise("FrameTooLargeError", message, |fields| {
            fields.set_item("need_bytes", need_bytes)?;
            fields.set_item("largest_stride_bytes", largest_stride_bytes)
        }),
        CoreError::Failpoint(_) => region("RegionError", message, Path::new(""), ""),
        CoreError::Argument(_) => PyValueError::new_err(message),
    }
}

fn region(class: &str, message: String, path: &Path, hint: &str) -> PyErr {
    raise(class, message, |fields| {
        fields.set_item("path", path.to_string_lossy())?;
        fields.set_item("hint", hint)
    })
}
