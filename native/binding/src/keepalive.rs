//! A message that the pump sends again and again.
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use tensor_pool_core::clock::monotonic_ns;

use crate::fork::Owner;
use crate::publication::{self, PublicationInner};

const TIMESTAMP_LENGTH: usize = 8;

pub struct KeepaliveInner {
    publication: Arc<PublicationInner>,
    message: Box<[u8]>,
    timestamp_offset: usize,
    interval_ns: u64,
    last_sent_ns: AtomicU64,
    refused: AtomicU64,
    closed: AtomicBool,
}

impl KeepaliveInner {
    pub fn new(publication: Arc<PublicationInner>, message: &[u8], timestamp_offset: usize, interval_ns: u64) -> PyResult<Self> {
        if timestamp_offset.checked_add(TIMESTAMP_LENGTH).is_none_or(|end| end > message.len()) {
            return Err(PyValueError::new_err(format!(
                "a timestamp at offset {timestamp_offset} is not inside a message of {} bytes",
                message.len()
            )));
        }
        if message.len() > publication.max_payload_length() {
            return Err(PyValueError::new_err(format!(
                "a keepalive of {} bytes is longer than the {} of one fragment",
                message.len(),
                publication.max_payload_length()
            )));
        }
        Ok(Self {
            publication,
            message: message.into(),
            timestamp_offset,
            interval_ns,
            last_sent_ns: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            closed: AtomicBool::new(false),
        })
    }

    /// Sends the message when it is due. Returns whether to call again.
    pub fn poll(&self) -> bool {
        if self.closed.load(Ordering::Relaxed) {
            return false;
        }
        let now_ns = monotonic_ns();
        let last_sent_ns = self.last_sent_ns.load(Ordering::Relaxed);
        if last_sent_ns != 0 && now_ns.saturating_sub(last_sent_ns) < self.interval_ns {
            return true;
        }
        let code = self.publication.try_claim_with(self.message.len(), |log| {
            log.copy_from_slice(&self.message);
            log[self.timestamp_offset..self.timestamp_offset + TIMESTAMP_LENGTH].copy_from_slice(&now_ns.to_le_bytes());
        });
        if code > 0 {
            self.last_sent_ns.store(now_ns, Ordering::Relaxed);
            return true;
        }
        self.refused.fetch_add(1, Ordering::Relaxed);
        code != publication::CLOSED
    }
}

#[pyclass(frozen, module = "tensor_pool._native")]
pub struct Keepalive {
    owner: Owner,
    inner: Arc<KeepaliveInner>,
}

impl Keepalive {
    pub fn new(inner: Arc<KeepaliveInner>) -> Self {
        Self { owner: Owner::current(), inner }
    }

    fn ensure_here(&self) -> PyResult<()> {
        if self.owner.is_here() { Ok(()) } else { Err(crate::client::forked("keepalive").into()) }
    }
}

#[pymethods]
impl Keepalive {
    #[getter]
    fn last_sent_ns(&self) -> PyResult<u64> {
        self.ensure_here()?;
        Ok(self.inner.last_sent_ns.load(Ordering::Relaxed))
    }

    #[getter]
    fn refused(&self) -> PyResult<u64> {
        self.ensure_here()?;
        Ok(self.inner.refused.load(Ordering::Relaxed))
    }

    fn close(&self) {
        self.inner.closed.store(true, Ordering::Relaxed);
    }
}

impl Drop for Keepalive {
    fn drop(&mut self) {
        self.close();
    }
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Keepalive>()
}
