//! Messages that the pump kept for Python.
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::aeron::{AeronError, lock};
use crate::fork::Owner;
use crate::pump::Signal;
use crate::subscription::SubscriptionInner;

const FRAGMENTS_PER_POLL: usize = 64;
/// A peer that floods us must not keep one round of the pump going for ever.
const POLLS_PER_ROUND: usize = 64;
/// Whatever the sizes of messages: more than this is not kept, and the oldest go first.
const KEPT_BYTES: usize = 64 << 20;

const SBE_HEADER_LENGTH: usize = 8;

/// (schema id, template id) of a message, None for one that is too short to have a header.
fn kind_of(message: &[u8]) -> Option<(u16, u16)> {
    let header = message.get(..SBE_HEADER_LENGTH)?;
    Some((u16::from_le_bytes([header[4], header[5]]), u16::from_le_bytes([header[2], header[3]])))
}

#[derive(Default)]
struct Kept {
    messages: VecDeque<(Vec<u8>, u64)>,
    bytes: usize,
    /// Why no more messages will come.
    end: Option<AeronError>,
}

pub struct InboxInner {
    subscription: Arc<SubscriptionInner>,
    accept: Mutex<Vec<(u16, u16)>>,
    capacity: usize,
    signal: Arc<Signal>,
    kept: Mutex<Kept>,
    closed: AtomicBool,
    received: AtomicU64,
    refused: AtomicU64,
    dropped: AtomicU64,
}

impl InboxInner {
    pub fn new(subscription: Arc<SubscriptionInner>, accept: Vec<(u16, u16)>, capacity: usize, signal: Arc<Signal>) -> Self {
        Self {
            subscription,
            accept: Mutex::new(accept),
            capacity,
            signal,
            kept: Mutex::default(),
            closed: AtomicBool::new(false),
            received: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
        }
    }

    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Takes what is there. Returns how many messages were kept, or None once the subscription has ended and there is no need to call again.
    pub fn poll(&self) -> Option<usize> {
        let mut kept = 0;
        for _ in 0..POLLS_PER_ROUND {
            let polled = self.subscription.poll_with(FRAGMENTS_PER_POLL, &mut |message, session_id| {
                kept += usize::from(self.keep(message, session_id));
            });
            match polled {
                Ok(fragments) if fragments < FRAGMENTS_PER_POLL => break,
                Ok(_) => {}
                Err(error) => {
                    lock(&self.kept).end = Some(error);
                    self.signal.wake();
                    return None;
                }
            }
        }
        Some(kept)
    }

    fn keep(&self, message: &[u8], session_id: i32) -> bool {
        self.received.fetch_add(1, Ordering::Relaxed);
        let accepted = kind_of(message).is_some_and(|kind| lock(&self.accept).contains(&kind));
        if !accepted {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        let join_ns = self.subscription.join_ns(session_id);
        let mut kept = lock(&self.kept);
        if self.is_closed() {
            return false;
        }
        kept.bytes += message.len();
        kept.messages.push_back((message.to_vec(), join_ns));
        let mut dropped = 0;
        while kept.messages.len() > self.capacity || (kept.bytes > KEPT_BYTES && kept.messages.len() > 1) {
            let Some((oldest, _)) = kept.messages.pop_front() else { break };
            kept.bytes -= oldest.len();
            dropped += 1;
        }
        self.dropped.fetch_add(dropped, Ordering::Relaxed);
        self.signal.change_messages(1 - dropped as isize);
        true
    }

    /// From now on messages of this kind are kept too.
    fn accept(&self, kind: (u16, u16)) {
        let mut accept = lock(&self.accept);
        if !accept.contains(&kind) {
            accept.push(kind);
        }
    }

    fn drain(&self, limit: usize) -> Result<Vec<(Vec<u8>, u64)>, AeronError> {
        let mut kept = lock(&self.kept);
        if self.is_closed() {
            return Err(AeronError::Closed("the inbox is closed".to_owned()));
        }
        let count = limit.min(kept.messages.len());
        if count == 0 && limit > 0 {
            return kept.end.as_ref().map_or(Ok(Vec::new()), |end| Err(end.again()));
        }
        let taken: Vec<_> = kept.messages.drain(..count).collect();
        kept.bytes -= taken.iter().map(|(message, _)| message.len()).sum::<usize>();
        self.signal.change_messages(-(count as isize));
        Ok(taken)
    }

    fn close(&self) {
        let mut kept = lock(&self.kept);
        if !self.closed.swap(true, Ordering::Relaxed) {
            self.signal.change_messages(-(kept.messages.len() as isize));
            *kept = Kept::default();
        }
    }
}

#[pyclass(frozen, module = "tensor_pool._native")]
pub struct Inbox {
    owner: Owner,
    inner: Arc<InboxInner>,
}

impl Inbox {
    pub fn new(inner: Arc<InboxInner>) -> Self {
        Self { owner: Owner::current(), inner }
    }

    fn ensure_here(&self) -> Result<(), AeronError> {
        if self.owner.is_here() { Ok(()) } else { Err(crate::client::forked("inbox")) }
    }
}

#[pymethods]
impl Inbox {
    #[pyo3(signature = (limit = 1024))]
    fn drain<'py>(&self, py: Python<'py>, limit: usize) -> PyResult<Vec<(Bound<'py, PyBytes>, u64)>> {
        self.ensure_here()?;
        let messages = py.detach(|| self.inner.drain(limit))?;
        Ok(messages.into_iter().map(|(message, join_ns)| (PyBytes::new(py, &message), join_ns)).collect())
    }

    fn accept(&self, schema_id: u16, template_id: u16) -> PyResult<()> {
        self.ensure_here()?;
        self.inner.accept((schema_id, template_id));
        Ok(())
    }

    fn counters<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.ensure_here()?;
        let counters = PyDict::new(py);
        counters.set_item("messages_received", self.inner.received.load(Ordering::Relaxed))?;
        counters.set_item("messages_refused", self.inner.refused.load(Ordering::Relaxed))?;
        counters.set_item("messages_dropped", self.inner.dropped.load(Ordering::Relaxed))?;
        Ok(counters)
    }

    fn close(&self, py: Python<'_>) {
        if self.owner.is_here() {
            py.detach(|| self.inner.close());
        }
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        if self.owner.is_here() {
            self.inner.close();
        }
    }
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Inbox>()
}
