//! Aeron's C media driver on threads of this process.
use std::ffi::{CString, c_char, c_int};
use std::path::Path;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Mutex, PoisonError};

use libaeron_driver_sys as sys;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyMapping};

use crate::aeron::{self, AeronError, SignalsBlocked, c_string, lock};
use crate::cnc::Cnc;
use crate::fork::{self, Owner};

type Context = *mut sys::aeron_driver_context_t;

#[derive(Debug, Clone)]
enum Value {
    Flag(bool),
    Number(u64),
    Text(CString),
}

/// What a setting does with its value.
enum Setter {
    Flag(unsafe extern "C" fn(Context, bool) -> c_int),
    Bytes(unsafe extern "C" fn(Context, usize) -> c_int),
    Milliseconds(unsafe extern "C" fn(Context, u64) -> c_int),
    MillisecondsAsNanoseconds(unsafe extern "C" fn(Context, u64) -> c_int),
    Texts(&'static [unsafe extern "C" fn(Context, *const c_char) -> c_int]),
    ThreadingMode,
}

/// The settings, in the order in which they are applied: an idle strategy reads its arguments when it is set.
const SETTINGS: &[(&str, Setter)] = &[
    ("threading_mode", Setter::ThreadingMode),
    (
        "idle_strategy_arguments",
        Setter::Texts(&[
            sys::aeron_driver_context_set_shared_idle_strategy_init_args,
            sys::aeron_driver_context_set_sharednetwork_idle_strategy_init_args,
            sys::aeron_driver_context_set_conductor_idle_strategy_init_args,
            sys::aeron_driver_context_set_sender_idle_strategy_init_args,
            sys::aeron_driver_context_set_receiver_idle_strategy_init_args,
        ]),
    ),
    (
        "idle_strategy",
        Setter::Texts(&[
            sys::aeron_driver_context_set_shared_idle_strategy,
            sys::aeron_driver_context_set_sharednetwork_idle_strategy,
            sys::aeron_driver_context_set_conductor_idle_strategy,
            sys::aeron_driver_context_set_sender_idle_strategy,
            sys::aeron_driver_context_set_receiver_idle_strategy,
        ]),
    ),
    ("timer_interval_ms", Setter::MillisecondsAsNanoseconds(sys::aeron_driver_context_set_timer_interval_ns)),
    (
        "untethered_window_limit_timeout_ms",
        Setter::MillisecondsAsNanoseconds(sys::aeron_driver_context_set_untethered_window_limit_timeout_ns),
    ),
    ("untethered_linger_timeout_ms", Setter::MillisecondsAsNanoseconds(sys::aeron_driver_context_set_untethered_linger_timeout_ns)),
    ("untethered_resting_timeout_ms", Setter::MillisecondsAsNanoseconds(sys::aeron_driver_context_set_untethered_resting_timeout_ns)),
    ("client_liveness_timeout_ms", Setter::MillisecondsAsNanoseconds(sys::aeron_driver_context_set_client_liveness_timeout_ns)),
    ("publication_unblock_timeout_ms", Setter::MillisecondsAsNanoseconds(sys::aeron_driver_context_set_publication_unblock_timeout_ns)),
    ("image_liveness_timeout_ms", Setter::MillisecondsAsNanoseconds(sys::aeron_driver_context_set_image_liveness_timeout_ns)),
    ("driver_timeout_ms", Setter::Milliseconds(sys::aeron_driver_context_set_driver_timeout_ms)),
    ("sparse_term_buffers", Setter::Flag(sys::aeron_driver_context_set_term_buffer_sparse_file)),
    ("storage_checks", Setter::Flag(sys::aeron_driver_context_set_perform_storage_checks)),
    ("ipc_term_length_bytes", Setter::Bytes(sys::aeron_driver_context_set_ipc_term_buffer_length)),
    ("term_length_bytes", Setter::Bytes(sys::aeron_driver_context_set_term_buffer_length)),
    ("mtu_bytes", Setter::Bytes(sys::aeron_driver_context_set_mtu_length)),
    ("socket_send_buffer_bytes", Setter::Bytes(sys::aeron_driver_context_set_socket_so_sndbuf)),
    ("socket_receive_buffer_bytes", Setter::Bytes(sys::aeron_driver_context_set_socket_so_rcvbuf)),
    ("receiver_window_bytes", Setter::Bytes(sys::aeron_driver_context_set_rcv_initial_window_length)),
    ("counters_buffer_bytes", Setter::Bytes(sys::aeron_driver_context_set_counters_buffer_length)),
];

fn value_of(name: &str, value: &Bound<'_, PyAny>) -> PyResult<Value> {
    if let Ok(flag) = value.cast::<PyBool>() {
        return Ok(Value::Flag(flag.is_true()));
    }
    if let Ok(text) = value.extract::<String>() {
        return Ok(Value::Text(c_string(&text, name)?));
    }
    value.extract::<u64>().map(Value::Number).map_err(|_| {
        PyTypeError::new_err(format!("media driver setting {name}: {value} is not a string, a bool or a number of at least 0"))
    })
}

fn apply(context: Context, name: &str, setter: &Setter, value: Value) -> PyResult<()> {
    let wrong_type = |wanted: &str| PyTypeError::new_err(format!("media driver setting {name}: {wanted} is wanted"));
    let out_of_range = |number: u64| PyValueError::new_err(format!("media driver setting {name}: {number} is too large"));
    // SAFETY: the context is open and no driver uses it yet; strings are copied by Aeron.
    let code = unsafe {
        match (setter, value) {
            (Setter::Flag(set), Value::Flag(flag)) => set(context, flag),
            (Setter::Flag(_), _) => return Err(wrong_type("true or false")),
            (Setter::Bytes(set), Value::Number(number)) => set(context, usize::try_from(number).map_err(|_| out_of_range(number))?),
            (Setter::Milliseconds(set), Value::Number(number)) => set(context, number),
            (Setter::MillisecondsAsNanoseconds(set), Value::Number(number)) => {
                set(context, number.checked_mul(1_000_000).ok_or_else(|| out_of_range(number))?)
            }
            (Setter::Bytes(_) | Setter::Milliseconds(_) | Setter::MillisecondsAsNanoseconds(_), _) => {
                return Err(wrong_type("a number"));
            }
            (Setter::Texts(setters), Value::Text(text)) => {
                setters.iter().map(|set| set(context, text.as_ptr())).find(|code| *code < 0).unwrap_or(0)
            }
            (Setter::ThreadingMode, Value::Text(text)) => {
                use sys::aeron_threading_mode_enum as mode;
                let mode = match text.to_bytes() {
                    b"shared" => mode::AERON_THREADING_MODE_SHARED,
                    b"shared_network" => mode::AERON_THREADING_MODE_SHARED_NETWORK,
                    b"dedicated" => mode::AERON_THREADING_MODE_DEDICATED,
                    _ => {
                        let text = text.to_string_lossy();
                        return Err(PyValueError::new_err(format!(
                            "media driver setting threading_mode: {text:?} is not one of shared, shared_network, dedicated"
                        )));
                    }
                };
                sys::aeron_driver_context_set_threading_mode(context, mode)
            }
            (Setter::Texts(_) | Setter::ThreadingMode, _) => return Err(wrong_type("a string")),
        }
    };
    if code < 0 { Err(AeronError::last(&format!("media driver setting {name} was refused")).into()) } else { Ok(()) }
}

struct Running {
    driver: *mut sys::aeron_driver_t,
    context: Context,
}

// SAFETY: the driver has threads of its own; we only stop it, once, from whichever thread.
unsafe impl Send for Running {}

impl Running {
    fn start(directory: &str, settings: Vec<(&'static str, &'static Setter, Value)>) -> PyResult<Self> {
        let path = c_string(directory, "directory")?;
        let existed = Path::new(directory).exists();
        AeronError::forget_last();
        let mut running = Self { driver: null_mut(), context: null_mut() };
        // SAFETY: the context is made here; the strings are copied. `dir_delete_on_start` would delete the files of a live driver, so the environment
        // must not switch it on; nor may it switch off rejoining, which lets the driver free a counter of another client (with `tether=false`).
        unsafe {
            if sys::aeron_driver_context_init(&mut running.context) < 0
                || sys::aeron_driver_context_set_dir(running.context, path.as_ptr()) < 0
                || sys::aeron_driver_context_set_dir_delete_on_start(running.context, false) < 0
                || sys::aeron_driver_context_set_dir_delete_on_shutdown(running.context, true) < 0
                || sys::aeron_driver_context_set_dir_warn_if_exists(running.context, false) < 0
                || sys::aeron_driver_context_set_print_configuration(running.context, false) < 0
                || sys::aeron_driver_context_set_rejoin_stream(running.context, true) < 0
            {
                return Err(running.refused("the media driver could not be prepared", true).into());
            }
        }
        for (name, setter, value) in settings {
            if let Err(error) = apply(running.context, name, setter, value) {
                running.keep_directory();
                return Err(error);
            }
        }
        let _blocked = SignalsBlocked::new();
        // SAFETY: the context is complete; a driver that could not be made leaves its context to us.
        unsafe {
            if sys::aeron_driver_init(&mut running.driver, running.context) < 0 {
                running.driver = null_mut();
                return Err(running.refused(&format!("no media driver on {directory}"), existed).into());
            }
            if sys::aeron_driver_start(running.driver, false) < 0 {
                return Err(AeronError::last(&format!("the media driver of {directory} did not start")).into());
            }
        }
        Ok(running)
    }

    /// The error of the last call. A directory that was there before us may be another driver's, so it stays.
    fn refused(&self, attempt: &str, keeps_directory: bool) -> AeronError {
        let error = AeronError::last(attempt);
        if keeps_directory {
            self.keep_directory();
        }
        error
    }

    fn keep_directory(&self) {
        if !self.context.is_null() {
            // SAFETY: the context is open.
            unsafe { sys::aeron_driver_context_set_dir_delete_on_shutdown(self.context, false) };
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // SAFETY: made by `start` and dropped once; the driver's threads end before its context, which deletes the directory.
        unsafe {
            if !self.driver.is_null() {
                sys::aeron_driver_close(self.driver);
            }
            if !self.context.is_null() {
                sys::aeron_driver_context_close(self.context);
            }
        }
    }
}

#[pyclass(frozen, module = "tensor_pool._native")]
pub struct MediaDriver {
    owner: Owner,
    directory: String,
    running: Mutex<Option<Running>>,
    errors_taken_ms: AtomicI64,
}

#[pymethods]
impl MediaDriver {
    #[new]
    fn new(py: Python<'_>, directory: String, settings: &Bound<'_, PyMapping>) -> PyResult<Self> {
        let given = PyDict::new(py);
        given.update(settings)?;
        for name in given.keys() {
            let name = name.extract::<String>()?;
            if !SETTINGS.iter().any(|(known, _)| *known == name) {
                return Err(PyValueError::new_err(format!("there is no media driver setting {name:?}")));
            }
        }
        let mut values = Vec::new();
        for (name, setter) in SETTINGS {
            if let Some(value) = given.get_item(name)? {
                values.push((*name, setter, value_of(name, &value)?));
            }
        }
        let running = py.detach(|| Running::start(&directory, values))?;
        Ok(Self { owner: Owner::current(), directory, running: Mutex::new(Some(running)), errors_taken_ms: AtomicI64::new(i64::MIN) })
    }

    #[getter]
    fn directory(&self) -> &str {
        &self.directory
    }

    fn take_errors(&self, py: Python<'_>) -> PyResult<Vec<(c_int, String)>> {
        if !self.owner.is_here() {
            return Err(AeronError::Closed(fork::words("media driver")).into());
        }
        Ok(py.detach(|| {
            let mut logged = Cnc::open(Path::new(&self.directory)).map(|cnc| cnc.errors()).unwrap_or_default();
            logged.sort_by_key(|(_, last_ms, _)| *last_ms);
            let taken_ms = self.errors_taken_ms.load(Ordering::Relaxed);
            if let Some((_, last_ms, _)) = logged.last() {
                self.errors_taken_ms.fetch_max(*last_ms, Ordering::Relaxed);
            }
            let fresh = logged.into_iter().filter(|(_, last_ms, _)| *last_ms > taken_ms);
            fresh.map(|(count, _, text)| coded(&text, count)).chain(aeron::take_notices()).collect()
        }))
    }

    fn close(&self, py: Python<'_>) {
        py.detach(|| self.stop());
    }
}

/// The driver's log has texts that begin with `(code) words`.
fn coded(text: &str, count: i32) -> (c_int, String) {
    let code = text.strip_prefix('(').and_then(|rest| rest.split_once(')')).and_then(|(code, _)| code.parse().ok()).unwrap_or(0);
    let words = aeron::cause(text);
    (code, if count > 1 { format!("{words} ({count} times)") } else { words })
}

impl MediaDriver {
    fn stop(&self) {
        if self.owner.is_here() {
            drop(lock(&self.running).take());
        }
    }
}

impl Drop for MediaDriver {
    fn drop(&mut self) {
        self.stop();
        if !self.owner.is_here() {
            // The driver is the parent's: its threads are not in this process, and its directory is in use.
            std::mem::forget(self.running.get_mut().unwrap_or_else(PoisonError::into_inner).take());
        }
    }
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<MediaDriver>()
}
