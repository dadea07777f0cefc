//! An exclusive publication, and a claimed part of its log.
use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use libaeron_sys as sys;
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::prelude::*;

use crate::aeron::{AeronError, c_string, lock};
use crate::buffer_claim::BufferClaim;
use crate::client::{AddFailure, Child, ClientInner, Handle, KeepWaiting, forked, is_closed, refused};

pub const NOT_CONNECTED: i64 = sys::AERON_PUBLICATION_NOT_CONNECTED;
pub const BACK_PRESSURED: i64 = sys::AERON_PUBLICATION_BACK_PRESSURED;
pub const ADMIN_ACTION: i64 = sys::AERON_PUBLICATION_ADMIN_ACTION;
pub const CLOSED: i64 = sys::AERON_PUBLICATION_CLOSED;
pub const MAX_POSITION_EXCEEDED: i64 = sys::AERON_PUBLICATION_MAX_POSITION_EXCEEDED;
const ERROR: i64 = sys::AERON_PUBLICATION_ERROR;

/// A term change asks for one more call; more than a few in a row would be a loop in a producer's way.
const ADMIN_ACTION_RETRIES: usize = 8;

struct Open {
    publication: *mut sys::aeron_exclusive_publication_t,
    client: *mut sys::aeron_t,
    claims: Vec<(u64, sys::aeron_buffer_claim_t)>,
}

// SAFETY: Aeron's exclusive publication wants one caller at a time, not one thread; the lock around `Open` gives that.
unsafe impl Send for Open {}

impl Open {
    fn try_claim(&mut self, length: usize) -> Result<sys::aeron_buffer_claim_t, i64> {
        let mut claim = sys::aeron_buffer_claim_t { frame_header: null_mut(), data: null_mut(), length: 0 };
        // SAFETY: the publication is open while `Open` exists.
        let code = retry(|| unsafe { sys::aeron_exclusive_publication_try_claim(self.publication, length, &mut claim) });
        if code > 0 { Ok(claim) } else { Err(code) }
    }
}

fn retry(mut call: impl FnMut() -> i64) -> i64 {
    let mut code = call();
    for _ in 0..ADMIN_ACTION_RETRIES {
        if code != ADMIN_ACTION {
            break;
        }
        code = call();
    }
    code
}

/// Gives a claim's place up as padding unless it was committed: a hole in the log would stop every consumer of this publication.
struct ClaimGuard(sys::aeron_buffer_claim_t);

impl ClaimGuard {
    fn commit(mut self) {
        // SAFETY: the claim is open, its log is mapped (the publication's lock is held).
        unsafe { sys::aeron_buffer_claim_commit(&mut self.0) };
        std::mem::forget(self);
    }
}

impl Drop for ClaimGuard {
    fn drop(&mut self) {
        // SAFETY: as in `commit`.
        unsafe { sys::aeron_buffer_claim_abort(&mut self.0) };
    }
}

#[derive(Default)]
struct PublicationState(Mutex<Option<Open>>);

impl Child for PublicationState {
    fn close(&self) {
        let mut state = lock(&self.0);
        let Some(open) = state.take() else { return };
        for (_, claim) in open.claims {
            drop(ClaimGuard(claim));
        }
        // SAFETY: the client is open (it closes its children first), and the pointer leaves `Open` here, so it is used no more.
        unsafe { sys::aeron_exclusive_publication_close(open.publication, None, null_mut()) };
    }
}

pub struct PublicationInner {
    client: Arc<ClientInner>,
    state: Arc<PublicationState>,
    child_id: u64,
    next_claim: AtomicU64,
    channel: String,
    stream_id: i32,
    session_id: i32,
    max_message_length: usize,
    max_payload_length: usize,
}

impl PublicationInner {
    fn add(
        client: &Arc<ClientInner>,
        channel: &str,
        stream_id: i32,
        timeout: Duration,
        keep_waiting: KeepWaiting<'_>,
    ) -> Result<Self, AeronError> {
        let uri = c_string(channel, "channel")?;
        client.with_handle(|handle| {
            let mut request = null_mut();
            // SAFETY: the client is open inside `with_handle`; the URI is copied.
            if unsafe { sys::aeron_async_add_exclusive_publication(&mut request, handle.client, uri.as_ptr(), stream_id) } < 0 {
                return Err(refused(client, handle, &format!("could not add a publication on {channel}")));
            }
            let what = format!("a publication on {channel} stream {stream_id}");
            let publication = client
                .await_added(handle, &what, timeout, keep_waiting, || {
                    let mut publication = null_mut();
                    // SAFETY: Aeron frees the request only after this poll has reported an end, or when it is withdrawn below.
                    let code = unsafe { sys::aeron_async_add_exclusive_publication_poll(&mut publication, request) };
                    (code as c_int, publication)
                })
                .map_err(|failure| match failure {
                    AddFailure::Answered(error) => error,
                    AddFailure::Pending(error) => {
                        // SAFETY: the request is still pending, so it is ours to withdraw; it is not used afterwards.
                        unsafe { sys::aeron_async_add_exclusive_publication_cancel(handle.client, request) };
                        error
                    }
                })?;
            Ok(Self::open(client, handle, channel, publication))
        })
    }

    fn open(client: &Arc<ClientInner>, handle: Handle, channel: &str, publication: *mut sys::aeron_exclusive_publication_t) -> Self {
        // SAFETY: all-zero bytes are a valid value of this struct of integers and pointers.
        let mut constants = unsafe { std::mem::zeroed::<sys::aeron_publication_constants_t>() };
        // SAFETY: the publication was just made.
        unsafe { sys::aeron_exclusive_publication_constants(publication, &mut constants) };
        let open = Open { publication, client: handle.client, claims: Vec::new() };
        let state = Arc::new(PublicationState(Mutex::new(Some(open))));
        Self {
            child_id: client.adopt(state.clone()),
            client: client.clone(),
            state,
            next_claim: AtomicU64::new(1),
            channel: channel.to_owned(),
            stream_id: constants.stream_id,
            session_id: constants.session_id,
            max_message_length: constants.max_message_length,
            max_payload_length: constants.max_payload_length,
        }
    }

    /// The most that `try_claim_with` takes.
    pub fn max_payload_length(&self) -> usize {
        self.max_payload_length
    }

    /// Claims `length` bytes, lets `fill` write them, commits. Returns the new position or Aeron's negative code, which costs nothing to ignore.
    /// Never waits; `fill` must not take the GIL.
    pub fn try_claim_with(&self, length: usize, fill: impl FnOnce(&mut [u8])) -> i64 {
        self.with_open(|open| match open.try_claim(length) {
            Err(code) => code,
            Ok(claim) => {
                let guard = ClaimGuard(claim);
                // SAFETY: the claim is `length` bytes of a mapped log that nobody else writes, until it is committed.
                fill(unsafe { std::slice::from_raw_parts_mut(claim.data, claim.length) });
                guard.commit();
                1
            }
        })
    }

    /// Copies a message of any allowed length into the log. Returns as `try_claim_with`.
    pub fn offer(&self, message: &[u8]) -> i64 {
        self.with_open(|open| {
            // SAFETY: the publication is open while its lock is held; the message is copied.
            retry(|| unsafe {
                let (data, length) = (message.as_ptr(), message.len());
                sys::aeron_exclusive_publication_offer(open.publication, data, length, None, null_mut())
            })
        })
    }

    fn with_open(&self, work: impl FnOnce(&mut Open) -> i64) -> i64 {
        if !self.client.is_here() {
            return CLOSED;
        }
        lock(&self.state.0).as_mut().map_or(CLOSED, work)
    }

    /// What a result of CLOSED means: closed by us, or Aeron closed the client.
    pub fn closed_reason(&self) -> AeronError {
        if !self.client.is_here() {
            return forked("publication");
        }
        match lock(&self.state.0).as_ref() {
            Some(open) if is_closed(open.client) => self.client.lost(),
            _ => AeronError::Closed(format!("the publication on {} stream {} is closed", self.channel, self.stream_id)),
        }
    }

    pub fn is_connected(&self) -> bool {
        // SAFETY: the publication is open while its lock is held.
        self.with_open(|open| i64::from(unsafe { sys::aeron_exclusive_publication_is_connected(open.publication) })) == 1
    }

    pub(crate) fn finish_claim(&self, id: u64, staged: Option<&[u8]>) -> bool {
        let mut found = false;
        self.with_open(|open| {
            if let Some(index) = open.claims.iter().position(|(claim_id, _)| *claim_id == id) {
                found = true;
                let guard = ClaimGuard(open.claims.swap_remove(index).1);
                if let Some(bytes) = staged {
                    // SAFETY: the staging buffer was made with the claim's length; the log is mapped while the lock is held.
                    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), guard.0.data, bytes.len()) };
                    guard.commit();
                }
            }
            0
        });
        found
    }

    fn close(&self) {
        if self.client.is_here() {
            self.state.close();
            self.client.forget(self.child_id);
        }
    }
}

impl Drop for PublicationInner {
    fn drop(&mut self) {
        self.close();
    }
}

#[pyclass(frozen, module = "tensor_pool._native")]
pub struct Publication {
    pub inner: Arc<PublicationInner>,
}

impl Publication {
    pub(crate) fn add(
        client: &Arc<ClientInner>,
        channel: &str,
        stream_id: i32,
        timeout: Duration,
        keep_waiting: KeepWaiting<'_>,
    ) -> Result<Self, AeronError> {
        Ok(Self { inner: Arc::new(PublicationInner::add(client, channel, stream_id, timeout, keep_waiting)?) })
    }

    fn code_or_error(&self, code: i64, attempt: &str) -> PyResult<i64> {
        match code {
            CLOSED => Err(self.inner.closed_reason().into()),
            ERROR => Err(AeronError::last(attempt).into()),
            _ => Ok(code),
        }
    }
}

#[pymethods]
impl Publication {
    #[getter]
    fn channel(&self) -> &str {
        &self.inner.channel
    }

    #[getter]
    fn stream_id(&self) -> i32 {
        self.inner.stream_id
    }

    #[getter]
    fn session_id(&self) -> i32 {
        self.inner.session_id
    }

    #[getter]
    fn max_message_length(&self) -> usize {
        self.inner.max_message_length
    }

    #[getter]
    fn max_payload_length(&self) -> usize {
        self.inner.max_payload_length
    }

    #[getter]
    fn is_connected(&self) -> bool {
        self.inner.is_connected()
    }

    fn offer(&self, message: &Bound<'_, PyAny>) -> PyResult<i64> {
        let buffer = contiguous(message)?;
        if buffer.len_bytes() > self.inner.max_message_length {
            return Err(PyValueError::new_err(format!(
                "a message of {} bytes is longer than the {} that this channel takes (an eighth of its term)",
                buffer.len_bytes(),
                self.inner.max_message_length
            )));
        }
        // SAFETY: the buffer is contiguous and exported to us while `buffer` lives, and the GIL is held.
        let bytes = unsafe { bytes_of(&buffer) };
        self.code_or_error(self.inner.offer(bytes), "the message could not be offered")
    }

    fn try_claim(&self, py: Python<'_>, length: usize) -> PyResult<Py<PyAny>> {
        if length > self.inner.max_payload_length {
            return Err(PyValueError::new_err(format!(
                "a claim of {length} bytes is longer than the {} of one fragment",
                self.inner.max_payload_length
            )));
        }
        let id = self.inner.next_claim.fetch_add(1, Ordering::Relaxed);
        let code = self.inner.with_open(|open| match open.try_claim(length) {
            Err(code) => code,
            Ok(claim) => {
                open.claims.push((id, claim));
                1
            }
        });
        if code > 0 {
            let claim = BufferClaim::new(self.inner.clone(), id, length);
            return Ok(Py::new(py, claim)?.into_any());
        }
        Ok(self.code_or_error(code, "no part of the log could be claimed")?.into_pyobject(py)?.into_any().unbind())
    }

    fn close(&self) {
        self.inner.close();
    }
}

pub(crate) fn contiguous(message: &Bound<'_, PyAny>) -> PyResult<PyUntypedBuffer> {
    let buffer = PyUntypedBuffer::get(message)?;
    if !buffer.is_c_contiguous() {
        return Err(PyBufferError::new_err("the message must be a contiguous buffer"));
    }
    Ok(buffer)
}

/// # Safety
/// The buffer is contiguous, and nobody writes to it while the slice lives.
pub(crate) unsafe fn bytes_of(buffer: &PyUntypedBuffer) -> &[u8] {
    if buffer.len_bytes() == 0 {
        return &[];
    }
    // SAFETY: a contiguous buffer of that many bytes, by contract unchanged meanwhile.
    unsafe { std::slice::from_raw_parts(buffer.buf_ptr().cast::<u8>(), buffer.len_bytes()) }
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("NOT_CONNECTED", NOT_CONNECTED)?;
    module.add("BACK_PRESSURED", BACK_PRESSURED)?;
    module.add("ADMIN_ACTION", ADMIN_ACTION)?;
    module.add("PUBLICATION_CLOSED", CLOSED)?;
    module.add("MAX_POSITION_EXCEEDED", MAX_POSITION_EXCEEDED)?;
    module.add_class::<Publication>()?;
    module.add_class::<BufferClaim>()
}
