//! One Aeron client: its conductor thread, what was added to it, and an orderly end of both.
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::Path;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use libaeron_sys as sys;
use pyo3::prelude::*;

use crate::aeron::{self, AeronError, DRIVER_TIMEOUT, ErrorLog, NapsTogether, SignalsBlocked, c_string, lock};
use crate::cnc;
use crate::counter::Counter;
use crate::fork::{self, Owner};
use crate::images::ImageRegistry;
use crate::publication::Publication;
use crate::subscription::Subscription;

const NAP: Duration = Duration::from_micros(300);
const SIGNAL_CHECK_INTERVAL: Duration = Duration::from_millis(25);

/// Called now and then by waits: whether to go on.
pub type KeepWaiting<'a> = &'a mut dyn FnMut() -> Result<(), AeronError>;

/// Something added to a client. Closed under its own lock, so that it is gone before the client is.
pub trait Child: Send + Sync {
    fn close(&self);
}

#[derive(Clone, Copy)]
pub(crate) struct Handle {
    pub client: *mut sys::aeron_t,
    context: *mut sys::aeron_context_t,
}

// SAFETY: Aeron's client may be called from any thread; the lock around `Handle` decides until when.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

pub struct ClientInner {
    owner: Owner,
    directory: String,
    client_id: i64,
    errors: Arc<ErrorLog>,
    handle: RwLock<Option<Handle>>,
    closing: AtomicBool,
    close_order: Mutex<()>,
    children: Mutex<HashMap<u64, Arc<dyn Child>>>,
    next_child: AtomicU64,
    pub(crate) images: Arc<ImageRegistry>,
}

impl ClientInner {
    fn open(
        directory: &str,
        driver_timeout: Duration,
        idle_sleep: &str,
        name: &str,
        keep_waiting: KeepWaiting<'_>,
    ) -> Result<Self, AeronError> {
        await_driver(directory, driver_timeout, keep_waiting)?;
        AeronError::forget_last();
        let errors = Arc::new(ErrorLog::default());
        let context = new_context(directory, driver_timeout, idle_sleep, name, &errors)?;
        let mut client = null_mut();
        let _inherited = (SignalsBlocked::new(), NapsTogether::new());
        // SAFETY: `context` came from `new_context`; on failure `aeron_init` frees its own half and the context is ours to close.
        unsafe {
            if sys::aeron_init(&mut client, context) < 0 {
                let error = AeronError::last(&format!("no Aeron client on {directory}"));
                sys::aeron_context_close(context);
                return Err(error);
            }
            if sys::aeron_start(client) < 0 {
                let error = AeronError::last("the Aeron client thread did not start");
                sys::aeron_close(client);
                sys::aeron_context_close(context);
                return Err(error);
            }
        }
        Ok(Self {
            owner: Owner::current(),
            directory: directory.to_owned(),
            // SAFETY: the client was just made.
            client_id: unsafe { sys::aeron_client_id(client) },
            errors,
            handle: RwLock::new(Some(Handle { client, context })),
            closing: AtomicBool::new(false),
            close_order: Mutex::new(()),
            children: Mutex::new(HashMap::new()),
            next_child: AtomicU64::new(1),
            images: Arc::new(ImageRegistry::default()),
        })
    }

    pub fn ensure_here(&self) -> Result<(), AeronError> {
        if self.owner.is_here() { Ok(()) } else { Err(forked("Aeron client")) }
    }

    pub fn is_here(&self) -> bool {
        self.owner.is_here()
    }

    /// Runs `work` on the open client; the client is not closed before it returns. Never call this with the GIL held: `work` may wait.
    pub(crate) fn with_handle<T>(&self, work: impl FnOnce(Handle) -> Result<T, AeronError>) -> Result<T, AeronError> {
        self.ensure_here()?;
        let guard = self.handle.read().unwrap_or_else(PoisonError::into_inner);
        match *guard {
            Some(handle) if !self.closing.load(Ordering::Relaxed) => work(handle),
            _ => Err(closed_client()),
        }
    }

    /// Waits until `poll` has a resource, gives up at the deadline, at the death of the client, at `close`, and when `keep_waiting` says so.
    pub(crate) fn await_added<T>(
        &self,
        handle: Handle,
        what: &str,
        timeout: Duration,
        keep_waiting: KeepWaiting<'_>,
        mut poll: impl FnMut() -> (c_int, *mut T),
    ) -> Result<*mut T, AddFailure> {
        let deadline = Instant::now() + timeout;
        let mut next_check = Instant::now() + SIGNAL_CHECK_INTERVAL;
        loop {
            match poll() {
                (0, _) => {}
                (code, resource) if code > 0 => return Ok(resource),
                _ => return Err(AddFailure::Answered(AeronError::last(&format!("could not add {what}")))),
            }
            let now = Instant::now();
            if self.closing.load(Ordering::Relaxed) {
                return Err(AddFailure::Pending(closed_client()));
            }
            if is_closed(handle.client) {
                return Err(AddFailure::Pending(self.lost()));
            }
            if now >= deadline {
                let text = format!("the media driver did not answer within {timeout:?} to the request to add {what}");
                return Err(AddFailure::Pending(AeronError::DriverLost { code: DRIVER_TIMEOUT, text }));
            }
            if now >= next_check {
                next_check = now + SIGNAL_CHECK_INTERVAL;
                keep_waiting().map_err(AddFailure::Pending)?;
            }
            std::thread::sleep(NAP);
        }
    }

    pub(crate) fn adopt(&self, child: Arc<dyn Child>) -> u64 {
        let id = self.next_child.fetch_add(1, Ordering::Relaxed);
        lock(&self.children).insert(id, child);
        id
    }

    pub(crate) fn forget(&self, id: u64) {
        lock(&self.children).remove(&id);
    }

    /// The error for calls after Aeron closed this client.
    pub fn lost(&self) -> AeronError {
        AeronError::DriverLost {
            code: DRIVER_TIMEOUT,
            text: format!("the media driver of {} is gone, or gave this client up: open a new session", self.directory),
        }
    }

    pub fn is_closed(&self) -> bool {
        if !self.owner.is_here() {
            return true;
        }
        let guard = self.handle.read().unwrap_or_else(PoisonError::into_inner);
        guard.is_none_or(|handle| is_closed(handle.client))
    }

    pub fn close(&self) {
        if !self.owner.is_here() {
            return;
        }
        self.closing.store(true, Ordering::Relaxed);
        let _order = lock(&self.close_order);
        let taken = self.handle.write().unwrap_or_else(PoisonError::into_inner).take();
        let Some(handle) = taken else { return };
        let children: Vec<_> = lock(&self.children).drain().collect();
        for (_, child) in children {
            child.close();
        }
        // SAFETY: every child gave up its pointers under its own lock, nobody else can reach the handle any more; `aeron_close` joins the conductor
        // thread, so no callback runs after it, and only then may the context and the image records go.
        unsafe {
            if sys::aeron_close(handle.client) < 0 {
                if let AeronError::Failed { code, text } = AeronError::last("closing the Aeron client") {
                    self.errors.push(code, text);
                }
                return;
            }
            sys::aeron_context_close(handle.context);
        }
        self.images.clear();
    }
}

impl Drop for ClientInner {
    fn drop(&mut self) {
        self.close();
        if !self.owner.is_here() {
            // The parent's conductor thread still writes to its own copy; here the record is simply left alone.
            std::mem::forget(self.errors.clone());
        }
    }
}

/// Why an add did not give a resource.
pub(crate) enum AddFailure {
    /// The driver said no; Aeron frees the request itself.
    Answered(AeronError),
    /// Nobody answered; the request has to be withdrawn.
    Pending(AeronError),
}

pub fn forked(what: &str) -> AeronError {
    AeronError::Closed(fork::words(what))
}

fn closed_client() -> AeronError {
    AeronError::Closed("the Aeron client is closed".to_owned())
}

pub fn is_closed(client: *mut sys::aeron_t) -> bool {
    // SAFETY: callers hold a lock under which the client is open.
    unsafe { sys::aeron_is_closed(client) }
}

/// The error of an add that was refused before it was sent.
pub(crate) fn refused(client: &ClientInner, handle: Handle, attempt: &str) -> AeronError {
    let error = AeronError::last(attempt);
    if is_closed(handle.client) { client.lost() } else { error }
}

fn await_driver(directory: &str, timeout: Duration, keep_waiting: KeepWaiting<'_>) -> Result<(), AeronError> {
    let deadline = Instant::now() + timeout;
    let mut next_check = Instant::now() + SIGNAL_CHECK_INTERVAL;
    while !cnc::has_heartbeat(Path::new(directory), timeout) {
        let now = Instant::now();
        if now >= deadline {
            let text = format!("no media driver answered on {directory} within {timeout:?}");
            return Err(AeronError::DriverLost { code: DRIVER_TIMEOUT, text });
        }
        if now >= next_check {
            next_check = now + SIGNAL_CHECK_INTERVAL;
            keep_waiting()?;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

unsafe extern "C" fn on_error(clientd: *mut c_void, code: c_int, message: *const c_char) {
    // SAFETY: `clientd` is the ErrorLog that ClientInner keeps alive until the client is closed; the message is NUL-terminated.
    let (errors, text) = unsafe { (&*clientd.cast::<ErrorLog>(), CStr::from_ptr(message)) };
    errors.push(code, aeron::cause(&text.to_string_lossy()));
}

fn new_context(
    directory: &str,
    driver_timeout: Duration,
    idle_sleep: &str,
    name: &str,
    errors: &Arc<ErrorLog>,
) -> Result<*mut sys::aeron_context_t, AeronError> {
    let (directory, idle_sleep, name) = (c_string(directory, "directory")?, c_string(idle_sleep, "idle_sleep")?, c_string(name, "name")?);
    // Aeron looks for the death of its driver once per keepalive: so it is noticed at most a tenth after the time-out.
    let keepalive_interval = (driver_timeout / 10).clamp(Duration::from_millis(10), Duration::from_millis(500));
    let mut context = null_mut();
    // SAFETY: the setters copy the strings. The idle strategy's arguments have to be set before the strategy, which reads them.
    let done = unsafe {
        sys::aeron_context_init(&mut context) == 0
            && sys::aeron_context_set_dir(context, directory.as_ptr()) == 0
            && sys::aeron_context_set_driver_timeout_ms(context, driver_timeout.as_millis() as u64) == 0
            && sys::aeron_context_set_keepalive_interval_ns(context, keepalive_interval.as_nanos() as u64) == 0
            && sys::aeron_context_set_client_name(context, name.as_ptr()) == 0
            && sys::aeron_context_set_pre_touch_mapped_memory(context, true) == 0
            && sys::aeron_context_set_error_handler(context, Some(on_error), Arc::as_ptr(errors) as *mut c_void) == 0
            && sys::aeron_context_set_idle_strategy_init_args(context, idle_sleep.as_ptr()) == 0
            && sys::aeron_context_set_idle_strategy(context, c"sleep-ns".as_ptr()) == 0
    };
    if done {
        return Ok(context);
    }
    let error = AeronError::last("the Aeron client settings were refused");
    // SAFETY: closing NULL or a context that no client uses.
    unsafe { sys::aeron_context_close(context) };
    Err(error)
}

/// Lets Ctrl-C end a wait that runs without the GIL.
pub fn check_signals() -> Result<(), AeronError> {
    Python::attach(|py| py.check_signals()).map_err(AeronError::Interrupted)
}

#[pyclass(frozen, module = "tensor_pool._native")]
pub struct AeronClient {
    pub inner: Arc<ClientInner>,
}

#[pymethods]
impl AeronClient {
    #[new]
    #[pyo3(signature = (directory, *, driver_timeout_ms = 10_000, idle_sleep = "4ms", name = ""))]
    fn new(py: Python<'_>, directory: &str, driver_timeout_ms: u64, idle_sleep: &str, name: &str) -> PyResult<Self> {
        let timeout = Duration::from_millis(driver_timeout_ms);
        let inner = py.detach(|| ClientInner::open(directory, timeout, idle_sleep, name, &mut check_signals))?;
        Ok(Self { inner: Arc::new(inner) })
    }

    #[getter]
    fn client_id(&self) -> i64 {
        self.inner.client_id
    }

    #[getter]
    fn is_closed(&self, py: Python<'_>) -> bool {
        py.detach(|| self.inner.is_closed())
    }

    #[getter]
    fn directory(&self) -> &str {
        &self.inner.directory
    }

    #[pyo3(signature = (channel, stream_id, *, timeout_ns = 10_000_000_000))]
    fn add_exclusive_publication(&self, py: Python<'_>, channel: &str, stream_id: i32, timeout_ns: u64) -> PyResult<Publication> {
        let timeout = Duration::from_nanos(timeout_ns);
        Ok(py.detach(|| Publication::add(&self.inner, channel, stream_id, timeout, &mut check_signals))?)
    }

    #[pyo3(signature = (channel, stream_id, *, timeout_ns = 10_000_000_000))]
    fn add_subscription(&self, py: Python<'_>, channel: &str, stream_id: i32, timeout_ns: u64) -> PyResult<Subscription> {
        let timeout = Duration::from_nanos(timeout_ns);
        Ok(py.detach(|| Subscription::add(&self.inner, channel, stream_id, timeout, &mut check_signals))?)
    }

    #[pyo3(signature = (type_id, key, label, *, timeout_ns = 10_000_000_000))]
    fn add_counter(&self, py: Python<'_>, type_id: i32, key: &[u8], label: &str, timeout_ns: u64) -> PyResult<Counter> {
        let timeout = Duration::from_nanos(timeout_ns);
        Ok(py.detach(|| Counter::create(&self.inner, type_id, key, label, timeout, &mut check_signals))?)
    }

    fn take_errors(&self) -> PyResult<Vec<(c_int, String)>> {
        self.inner.ensure_here()?;
        let mut errors = self.inner.errors.take();
        errors.extend(aeron::take_notices());
        Ok(errors)
    }

    fn counters(&self, py: Python<'_>) -> PyResult<Vec<(i32, i32, i64, String)>> {
        let counters = py.detach(|| {
            self.inner.with_handle(|handle| {
                if is_closed(handle.client) {
                    return Err(self.inner.lost());
                }
                // SAFETY: the client is open while `with_handle` runs, and its counters stay mapped.
                Ok(unsafe { cnc::read_counters(sys::aeron_counters_reader(handle.client)) })
            })
        })?;
        Ok(counters)
    }

    fn close(&self, py: Python<'_>) {
        py.detach(|| self.inner.close());
    }
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<AeronClient>()
}
