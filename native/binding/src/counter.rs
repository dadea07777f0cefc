//! An Aeron counter that this client owns.
use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use libaeron_sys as sys;
use pyo3::prelude::*;

use crate::aeron::{AeronError, lock};
use crate::client::{AddFailure, Child, ClientInner, KeepWaiting, forked, is_closed, refused};

const MAX_KEY_LENGTH: usize = 112;
const MAX_LABEL_LENGTH: usize = 380;

struct Open {
    counter: *mut sys::aeron_counter_t,
    client: *mut sys::aeron_t,
    value: *const AtomicI64,
}

// SAFETY: the value is an aligned word that anyone may change atomically; the lock around `Open` decides until when it is mapped.
unsafe impl Send for Open {}

struct CounterState(Mutex<Option<Open>>);

impl Child for CounterState {
    fn close(&self) {
        let mut state = lock(&self.0);
        let Some(open) = state.take() else { return };
        // SAFETY: the client is open (it closes its children first), and the pointer leaves `Open` here.
        unsafe { sys::aeron_counter_close(open.counter, None, null_mut()) };
    }
}

/// The value of a counter, for native code that changes it.
#[derive(Clone)]
pub struct CounterWord(Arc<CounterState>);

impl CounterWord {
    /// Nothing happens once the counter or its client is closed.
    pub fn add(&self, delta: i64) {
        if let Some(open) = lock(&self.0.0).as_ref()
            && !is_closed(open.client)
        {
            // SAFETY: as in `with_value`.
            unsafe { &*open.value }.fetch_add(delta, Ordering::Relaxed);
        }
    }
}

#[pyclass(frozen, module = "tensor_pool._native")]
pub struct Counter {
    client: Arc<ClientInner>,
    state: Arc<CounterState>,
    child_id: u64,
    counter_id: i32,
}

impl Counter {
    pub fn word(&self) -> CounterWord {
        CounterWord(self.state.clone())
    }

    pub(crate) fn create(
        client: &Arc<ClientInner>,
        type_id: i32,
        key: &[u8],
        label: &str,
        timeout: Duration,
        keep_waiting: KeepWaiting<'_>,
    ) -> Result<Self, AeronError> {
        if key.len() > MAX_KEY_LENGTH || label.len() > MAX_LABEL_LENGTH {
            return Err(AeronError::Invalid(format!(
                "a counter's key has at most {MAX_KEY_LENGTH} bytes (this has {}) and its label {MAX_LABEL_LENGTH} (this has {})",
                key.len(),
                label.len()
            )));
        }
        client.with_handle(|handle| {
            let mut request = null_mut();
            // SAFETY: the client is open inside `with_handle`; key and label are copied.
            let code = unsafe {
                sys::aeron_async_add_counter(
                    &mut request,
                    handle.client,
                    type_id,
                    key.as_ptr(),
                    key.len(),
                    label.as_ptr().cast(),
                    label.len(),
                )
            };
            if code < 0 {
                return Err(refused(client, handle, "could not add a counter"));
            }
            let counter = client
                .await_added(handle, &format!("the counter {label:?}"), timeout, keep_waiting, || {
                    let mut counter = null_mut();
                    // SAFETY: Aeron frees the request only after this poll has reported an end, or when it is withdrawn below.
                    let code = unsafe { sys::aeron_async_add_counter_poll(&mut counter, request) };
                    (code as c_int, counter)
                })
                .map_err(|failure| match failure {
                    AddFailure::Answered(error) => error,
                    AddFailure::Pending(error) => {
                        // SAFETY: the request is still pending, so it is ours to withdraw; it is not used afterwards.
                        unsafe { sys::aeron_async_add_counter_cancel(handle.client, request) };
                        error
                    }
                })?;
            // SAFETY: all-zero bytes are a valid value of this struct of integers.
            let mut constants = unsafe { std::mem::zeroed::<sys::aeron_counter_constants_t>() };
            // SAFETY: the counter was just made; its value is an aligned word in the mapped counters file.
            let value = unsafe {
                sys::aeron_counter_constants(counter, &mut constants);
                sys::aeron_counter_addr(counter).cast_const().cast::<AtomicI64>()
            };
            let state = Arc::new(CounterState(Mutex::new(Some(Open { counter, client: handle.client, value }))));
            Ok(Self { child_id: client.adopt(state.clone()), client: client.clone(), state, counter_id: constants.counter_id })
        })
    }

    /// Once Aeron closed the client its counter may belong to somebody else, so it is not touched any more.
    fn with_value<T>(&self, work: impl FnOnce(&AtomicI64) -> T) -> PyResult<T> {
        if !self.client.is_here() {
            return Err(forked("counter").into());
        }
        match lock(&self.state.0).as_ref() {
            None => Err(AeronError::Closed("the counter is closed".to_owned()).into()),
            Some(open) if is_closed(open.client) => Err(self.client.lost().into()),
            // SAFETY: the counters file is mapped while the client is open, which the lock guarantees.
            Some(open) => Ok(work(unsafe { &*open.value })),
        }
    }
}

#[pymethods]
impl Counter {
    #[getter]
    fn counter_id(&self) -> i32 {
        self.counter_id
    }

    fn get(&self) -> PyResult<i64> {
        // SYNC POINT: a counter is a number of its own; no other memory is published with it, so nothing but atomicity is needed below.
        self.with_value(|value| value.load(Ordering::Relaxed))
    }

    fn set(&self, value: i64) -> PyResult<()> {
        self.with_value(|word| word.store(value, Ordering::Relaxed))
    }

    fn add(&self, delta: i64) -> PyResult<i64> {
        self.with_value(|word| word.fetch_add(delta, Ordering::Relaxed).wrapping_add(delta))
    }

    fn close(&self) {
        if self.client.is_here() {
            self.state.close();
            self.client.forget(self.child_id);
        }
    }
}

impl Drop for Counter {
    fn drop(&mut self) {
        self.close();
    }
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Counter>()
}
