//! A subscription with a fragment assembler.
use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, TryLockError};
use std::time::Duration;

use libaeron_sys as sys;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::aeron::{AeronError, c_string, lock};
use crate::client::{AddFailure, Child, ClientInner, Handle, KeepWaiting, forked, is_closed, refused};
use crate::images::{ImageTable, on_available, on_closed, on_unavailable};

type Handler<'a> = dyn FnMut(&[u8], i32) + 'a;

/// The handler of the poll that is running, for the C callback.
struct Delivery {
    handler: Option<*mut Handler<'static>>,
    panic: Option<Box<dyn std::any::Any + Send>>,
}

unsafe extern "C" fn on_message(clientd: *mut c_void, buffer: *const u8, length: usize, header: *mut sys::aeron_header_t) {
    // SAFETY: `clientd` is the Delivery of the poll that runs on this thread; nobody else touches it meanwhile.
    let delivery = unsafe { &mut *clientd.cast::<Delivery>() };
    let Some(handler) = delivery.handler else { return };
    // SAFETY: all-zero bytes are a valid value of this struct of integers.
    let mut values = unsafe { std::mem::zeroed::<sys::aeron_header_values_t>() };
    // SAFETY: Aeron passes a valid header.
    unsafe { sys::aeron_header_values(header, &mut values) };
    let session_id = values.frame.session_id;
    let message: &[u8] = if length == 0 {
        &[]
    } else {
        // SAFETY: the message has `length` bytes and stays for the length of this call.
        unsafe { std::slice::from_raw_parts(buffer, length) }
    };
    // SAFETY: `poll_with` keeps the handler alive until the poll has returned.
    let handler = unsafe { &mut *handler };
    // A panic must not unwind through C: it goes on once the poll has returned.
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| handler(message, session_id))) {
        delivery.handler = None;
        delivery.panic = Some(panic);
    }
}

struct Open {
    subscription: *mut sys::aeron_subscription_t,
    client: *mut sys::aeron_t,
    assembler: *mut sys::aeron_fragment_assembler_t,
    delivery: *mut Delivery,
    table: Arc<ImageTable>,
}

// SAFETY: a subscription wants one poller at a time, not one thread; the lock around `Open` gives that.
unsafe impl Send for Open {}

impl Open {
    fn poll(&mut self, limit: usize, handler: &mut Handler<'_>) -> c_int {
        for session_id in self.table.take_assembly_gone() {
            // SAFETY: the assembler is ours and used by this thread only.
            unsafe { sys::aeron_fragment_assembler_delete_session_buffer(self.assembler, session_id) };
        }
        // SAFETY: only the lifetime is dropped; the pointer is taken back below, before the borrow ends.
        let handler = unsafe { std::mem::transmute::<*mut Handler<'_>, *mut Handler<'static>>(handler) };
        // SAFETY: the delivery is ours (see `Open`); the subscription is open; the assembler calls back during this call only.
        let (code, panic) = unsafe {
            (*self.delivery).handler = Some(handler);
            let code =
                sys::aeron_subscription_poll(self.subscription, Some(sys::aeron_fragment_assembler_handler), self.assembler.cast(), limit);
            (*self.delivery).handler = None;
            (code, (*self.delivery).panic.take())
        };
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
        code
    }
}

#[derive(Default)]
struct SubscriptionState(Mutex<Option<Open>>);

impl Child for SubscriptionState {
    fn close(&self) {
        let mut state = lock(&self.0);
        let Some(open) = state.take() else { return };
        // SAFETY: the client is open (it closes its children first) and the pointers leave `Open` here. Aeron keeps using the image table until
        // `on_closed`, the assembler and the delivery are used by our polls only.
        unsafe {
            sys::aeron_subscription_close(open.subscription, Some(on_closed), open.table.as_clientd());
            sys::aeron_fragment_assembler_delete(open.assembler);
            drop(Box::from_raw(open.delivery));
        }
    }
}

pub struct SubscriptionInner {
    client: Arc<ClientInner>,
    state: Arc<SubscriptionState>,
    table: Arc<ImageTable>,
    child_id: u64,
    channel: String,
    stream_id: i32,
}

impl SubscriptionInner {
    fn add(
        client: &Arc<ClientInner>,
        channel: &str,
        stream_id: i32,
        timeout: Duration,
        keep_waiting: KeepWaiting<'_>,
    ) -> Result<Self, AeronError> {
        let uri = c_string(channel, "channel")?;
        client.with_handle(|handle| {
            let table = client.images.register();
            let clientd = table.as_clientd();
            let mut request = null_mut();
            // SAFETY: the client is open inside `with_handle`; the URI is copied; the registry keeps the table for the callbacks.
            let code = unsafe {
                sys::aeron_async_add_subscription(
                    &mut request,
                    handle.client,
                    uri.as_ptr(),
                    stream_id,
                    Some(on_available),
                    clientd,
                    Some(on_unavailable),
                    clientd,
                )
            };
            if code < 0 {
                return Err(refused(client, handle, &format!("could not add a subscription on {channel}")));
            }
            let what = format!("a subscription on {channel} stream {stream_id}");
            let subscription = client
                .await_added(handle, &what, timeout, keep_waiting, || {
                    let mut subscription = null_mut();
                    // SAFETY: Aeron frees the request only after this poll has reported an end, or when it is withdrawn below.
                    let code = unsafe { sys::aeron_async_add_subscription_poll(&mut subscription, request) };
                    (code as c_int, subscription)
                })
                .map_err(|failure| match failure {
                    AddFailure::Answered(error) => error,
                    AddFailure::Pending(error) => {
                        // SAFETY: the request is still pending, so it is ours to withdraw; it is not used afterwards.
                        unsafe { sys::aeron_async_add_subscription_cancel(handle.client, request) };
                        error
                    }
                })?;
            Self::open(client, handle, channel, stream_id, subscription, table)
        })
    }

    fn open(
        client: &Arc<ClientInner>,
        handle: Handle,
        channel: &str,
        stream_id: i32,
        subscription: *mut sys::aeron_subscription_t,
        table: Arc<ImageTable>,
    ) -> Result<Self, AeronError> {
        let delivery = Box::into_raw(Box::new(Delivery { handler: None, panic: None }));
        let mut assembler = null_mut();
        // SAFETY: the delivery lives until the assembler is deleted; on failure nothing refers to it and the subscription is closed.
        unsafe {
            if sys::aeron_fragment_assembler_create(&mut assembler, Some(on_message), delivery.cast()) < 0 {
                let error = AeronError::last("no memory for a fragment assembler");
                drop(Box::from_raw(delivery));
                sys::aeron_subscription_close(subscription, Some(on_closed), table.as_clientd());
                return Err(error);
            }
        }
        let open = Open { subscription, client: handle.client, assembler, delivery, table: table.clone() };
        let state = Arc::new(SubscriptionState(Mutex::new(Some(open))));
        Ok(Self { child_id: client.adopt(state.clone()), client: client.clone(), state, table, channel: channel.to_owned(), stream_id })
    }

    /// Hands at most `limit` fragments to `handler` as whole messages with their session ids. Returns the number of fragments; 0 at once when another
    /// thread is polling. Never waits; the handler must not take the GIL.
    pub fn poll_with(&self, limit: usize, handler: &mut Handler<'_>) -> Result<usize, AeronError> {
        if !self.client.is_here() {
            return Err(forked("subscription"));
        }
        let mut state = match self.state.0.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Ok(0),
        };
        let Some(open) = state.as_mut() else { return Err(self.closed()) };
        match open.poll(limit, handler) {
            0 if is_closed(open.client) => Err(self.client.lost()),
            code => usize::try_from(code).map_err(|_| AeronError::last("polling failed")),
        }
    }

    /// When the image of this session became available (CLOCK_MONOTONIC).
    pub fn join_ns(&self, session_id: i32) -> u64 {
        self.table.join_ns(session_id)
    }

    fn closed(&self) -> AeronError {
        AeronError::Closed(format!("the subscription on {} stream {} is closed", self.channel, self.stream_id))
    }

    fn ensure_here(&self) -> Result<(), AeronError> {
        if self.client.is_here() { Ok(()) } else { Err(forked("subscription")) }
    }

    fn is_connected(&self) -> bool {
        let connected = |open: &Open| {
            // SAFETY: the subscription is open while its lock is held.
            !is_closed(open.client) && unsafe { sys::aeron_subscription_is_connected(open.subscription) }
        };
        self.client.is_here() && lock(&self.state.0).as_ref().is_some_and(connected)
    }

    fn close(&self) {
        if self.client.is_here() {
            self.state.close();
            self.client.forget(self.child_id);
        }
    }
}

impl Drop for SubscriptionInner {
    fn drop(&mut self) {
        self.close();
    }
}

#[pyclass(frozen, module = "tensor_pool._native")]
pub struct Subscription {
    pub inner: Arc<SubscriptionInner>,
}

impl Subscription {
    pub(crate) fn add(
        client: &Arc<ClientInner>,
        channel: &str,
        stream_id: i32,
        timeout: Duration,
        keep_waiting: KeepWaiting<'_>,
    ) -> Result<Self, AeronError> {
        Ok(Self { inner: Arc::new(SubscriptionInner::add(client, channel, stream_id, timeout, keep_waiting)?) })
    }
}

#[pymethods]
impl Subscription {
    #[getter]
    fn channel(&self) -> &str {
        &self.inner.channel
    }

    #[getter]
    fn stream_id(&self) -> i32 {
        self.inner.stream_id
    }

    #[pyo3(signature = (limit = 64))]
    fn poll<'py>(&self, py: Python<'py>, limit: usize) -> PyResult<Vec<(Bound<'py, PyBytes>, i32)>> {
        let messages = py.detach(|| {
            let mut messages = Vec::new();
            self.inner.poll_with(limit, &mut |message, session_id| messages.push((message.to_vec(), session_id)))?;
            Ok::<_, AeronError>(messages)
        })?;
        Ok(messages.into_iter().map(|(message, session_id)| (PyBytes::new(py, &message), session_id)).collect())
    }

    fn images(&self) -> PyResult<Vec<(i32, u64)>> {
        self.inner.ensure_here()?;
        Ok(self.inner.table.available())
    }

    fn take_unavailable(&self) -> PyResult<Vec<i32>> {
        self.inner.ensure_here()?;
        Ok(self.inner.table.take_reported_gone())
    }

    #[getter]
    fn is_connected(&self, py: Python<'_>) -> bool {
        py.detach(|| self.inner.is_connected())
    }

    fn close(&self, py: Python<'_>) {
        py.detach(|| self.inner.close());
    }
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Subscription>()
}
