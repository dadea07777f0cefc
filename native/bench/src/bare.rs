//! The bare ring for a loop in Python: the same writer and reader as the bare loop's, called once a frame. What it is slower by than the bare loop
//! is what any loop in Python takes, whatever it calls.
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard};

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use tensor_pool_core::error::CoreError;
use tensor_pool_core::reader::Located;
use tensor_pool_core::writer::Writer;

use crate::ring::{self, Follower};

/// A ring that could not be made, or does not take a frame.
pub fn failed(error: impl std::fmt::Display) -> PyErr {
    PyRuntimeError::new_err(error.to_string())
}

/// The writer of a ring that it makes.
#[pyclass(frozen)]
pub struct BareWriter {
    nbytes: usize,
    writer: Mutex<Writer>,
}

#[pymethods]
impl BareWriter {
    #[new]
    fn new(directory: PathBuf, nbytes: usize, slots: usize) -> PyResult<Self> {
        let ring = ring::create(&directory, &ring::own_pool(&directory), nbytes, slots).map_err(failed)?;
        Ok(Self { nbytes, writer: Mutex::new(Writer::new(ring).map_err(failed)?) })
    }

    /// The frame at `address` into the next slot.
    fn write(&self, address: usize) -> PyResult<()> {
        if address == 0 {
            return Err(PyValueError::new_err("a frame needs an address"));
        }
        let mut writer = self.writer.lock().expect("no panic while held");
        let info = ring::frame_info(self.nbytes).map_err(failed)?;
        let mut put = || {
            let slot = writer.open(self.nbytes)?;
            // SAFETY: the caller's frame has `nbytes`, and the slot was just opened by this writer.
            unsafe { writer.fill(&slot, std::ptr::with_exposed_provenance(address))? };
            writer.close(&slot, &info)
        };
        put().map(|_| ()).map_err(|error: CoreError| failed(error))
    }
}

struct Reading {
    follower: Follower,
    lent: Option<Located>,
    copy: Vec<u64>,
}

/// The reader of a ring that was made.
#[pyclass(frozen)]
pub struct BareReader(Mutex<Reading>);

impl BareReader {
    fn held(&self) -> MutexGuard<'_, Reading> {
        self.0.lock().expect("no panic while held")
    }
}

#[pymethods]
impl BareReader {
    #[new]
    fn new(directory: PathBuf, nbytes: usize, slots: usize) -> PyResult<Self> {
        let follower = Follower::new(ring::open(&directory, &ring::own_pool(&directory), nbytes, slots).map_err(failed)?);
        // not zero: the pages have to be there
        Ok(Self(Mutex::new(Reading { follower, lent: None, copy: vec![1; nbytes / 8] })))
    }

    /// What is in the ring now does not count.
    fn skip_old(&self) {
        self.held().follower.skip_old();
    }

    /// The address of the next frame in its slot, None while there is none.
    fn borrow(&self) -> Option<usize> {
        let mut reading = self.held();
        reading.lent = reading.follower.following();
        reading.lent.map(|located| located.payload.expose_provenance())
    }

    /// Whether the frame that was borrowed last was not overwritten so far.
    fn is_still(&self) -> bool {
        let reading = self.held();
        reading.lent.is_some_and(|located| reading.follower.is_still(&located))
    }

    /// The address of a copy of the next frame, None while there is none. The next copy goes to the same place.
    fn read(&self) -> Option<usize> {
        let mut reading = self.held();
        let Reading { follower, copy, .. } = &mut *reading;
        loop {
            let located = follower.following()?;
            // SAFETY: the copy has the length of a frame of this ring.
            if unsafe { follower.copy(&located, copy.as_mut_ptr().cast()) } {
                return Some(copy.as_ptr().expose_provenance());
            }
        }
    }
}
