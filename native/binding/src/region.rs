//! A mapped shared-memory file.
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use tensor_pool_core::region::{Creation, Region as CoreRegion};
use tensor_pool_core::ring;

use crate::aeron::lock;
use crate::errors;
use crate::fork::{self, Owner};
use crate::publication::{bytes_of, contiguous};

#[pyclass(frozen, module = "tensor_pool._native")]
pub struct Region {
    inner: Mutex<Option<Arc<CoreRegion>>>,
    owner: Owner,
    path: String,
    length: usize,
    writable: bool,
    identity: (u64, u64),
}

impl Region {
    fn new(inner: CoreRegion) -> Self {
        Self {
            path: inner.path().to_string_lossy().into_owned(),
            length: inner.mapping().length(),
            writable: inner.mapping().is_writable(),
            identity: inner.identity(),
            owner: Owner::current(),
            inner: Mutex::new(Some(Arc::new(inner))),
        }
    }

    /// The region itself; it stays mapped for as long as somebody holds it.
    pub fn share(&self) -> PyResult<Arc<CoreRegion>> {
        if !self.owner.is_here() {
            return Err(errors::closed(fork::words("region")));
        }
        // a statement of its own: raising runs Python, which may hand the GIL to somebody who waits for this lock
        let shared = lock(&self.inner).clone();
        shared.ok_or_else(|| errors::closed(format!("the region {} is closed", self.path)))
    }
}

#[pymethods]
impl Region {
    #[staticmethod]
    #[pyo3(signature = (base_dir, relative_path, length, *, mode = 0o660, reserve = true, hugepages = false))]
    fn create(
        py: Python<'_>,
        base_dir: &str,
        relative_path: &str,
        length: u64,
        mode: u32,
        reserve: bool,
        hugepages: bool,
    ) -> PyResult<Self> {
        let creation = Creation { length, mode, reserve, hugepages };
        py.detach(|| CoreRegion::create(Path::new(base_dir), relative_path, creation)).map(Self::new).map_err(errors::from_core)
    }

    #[staticmethod]
    #[pyo3(signature = (path, allowed_base_dirs, *, writable, minimum_length, require_hugepages = false))]
    fn open(
        py: Python<'_>,
        path: &str,
        allowed_base_dirs: Vec<PathBuf>,
        writable: bool,
        minimum_length: u64,
        require_hugepages: bool,
    ) -> PyResult<Self> {
        py.detach(|| CoreRegion::open(path, &allowed_base_dirs, writable, minimum_length, require_hugepages))
            .map(Self::new)
            .map_err(errors::from_core)
    }

    #[getter]
    fn path(&self) -> &str {
        &self.path
    }

    #[getter]
    fn length(&self) -> usize {
        self.length
    }

    #[getter]
    fn writable(&self) -> bool {
        self.writable
    }

    #[getter]
    fn identity(&self) -> (u64, u64) {
        self.identity
    }

    fn read<'py>(&self, py: Python<'py>, offset: usize, length: usize) -> PyResult<Bound<'py, PyBytes>> {
        let region = self.share()?;
        if offset.checked_add(length).is_none_or(|end| end > self.length) {
            return Err(PyValueError::new_err(format!("{length} bytes at {offset} are not inside {} of {} bytes", self.path, self.length)));
        }
        PyBytes::new_with(py, length, |into| region.read(offset, into).map_err(errors::from_core))
    }

    fn write(&self, offset: usize, data: &Bound<'_, PyAny>) -> PyResult<()> {
        let region = self.share()?;
        let buffer = contiguous(data)?;
        // SAFETY: contiguous, exported to us while `buffer` lives, and the GIL is held.
        region.write(offset, unsafe { bytes_of(&buffer) }).map_err(errors::from_core)
    }

    fn load_u64(&self, offset: usize) -> PyResult<u64> {
        let region = self.share()?;
        let word = region.word(offset).map_err(errors::from_core)?;
        // SYNC POINT: pairs with the release store of the word's owner (`store_u64`).
        Ok(word.load(Ordering::Acquire))
    }

    fn store_u64(&self, offset: usize, value: u64) -> PyResult<()> {
        let region = self.share()?;
        region.ensure_writable().map_err(errors::from_core)?;
        let word = region.word(offset).map_err(errors::from_core)?;
        // SYNC POINT: pairs with the acquire load of readers (`load_u64`).
        word.store(value, Ordering::Release);
        Ok(())
    }

    fn reserve(&self, py: Python<'_>) -> PyResult<()> {
        let region = self.share()?;
        py.detach(|| region.reserve()).map_err(errors::from_core)
    }

    fn prefault(&self, py: Python<'_>) -> PyResult<()> {
        let region = self.share()?;
        py.detach(|| region.prefault()).map_err(errors::from_core)
    }

    fn lock(&self, py: Python<'_>) -> PyResult<()> {
        let region = self.share()?;
        py.detach(|| region.lock()).map_err(errors::from_core)
    }

    fn close(&self) {
        if self.owner.is_here() {
            lock(&self.inner).take();
        }
    }
}

#[pyfunction]
fn canonical_base_dirs(paths: &Bound<'_, PyAny>) -> PyResult<Vec<String>> {
    paths
        .try_iter()?
        .map(|path| {
            let canonical = tensor_pool_core::open::canonical_base_dir(&path?.extract::<PathBuf>()?).map_err(errors::from_core)?;
            canonical.into_os_string().into_string().map_err(|_| PyValueError::new_err("a base directory must be UTF-8"))
        })
        .collect()
}

#[pyfunction]
fn newest_committed_seq(header: &Region, nslots: u64) -> PyResult<Option<u64>> {
    if !nslots.is_power_of_two() {
        return Err(PyValueError::new_err(format!("a ring has a power of two of slots, not {nslots}")));
    }
    let region = header.share()?;
    ring::newest_committed(&region, nslots).map_err(errors::from_core)
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Region>()?;
    module.add_function(wrap_pyfunction!(canonical_base_dirs, module)?)?;
    module.add_function(wrap_pyfunction!(newest_committed_seq, module)?)
}
