//! Looking at a media driver's command-and-control file without being its client.
use std::ffi::{c_char, c_void};
use std::path::Path;
use std::ptr::null_mut;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use libaeron_sys as sys;
use pyo3::prelude::*;

use crate::aeron::c_string;

/// An open, read-only cnc file.
pub struct Cnc(*mut sys::aeron_cnc_t);

// SAFETY: reads of a mapping; nothing in it is bound to a thread.
unsafe impl Send for Cnc {}

impl Cnc {
    /// None where there is no complete file of our Aeron version. Never waits.
    pub fn open(directory: &Path) -> Option<Self> {
        let directory = c_string(directory.to_str()?, "directory").ok()?;
        let mut cnc = null_mut();
        // SAFETY: the path is NUL-terminated; with a timeout of 0 this looks once and checks the file's length before reading it.
        (unsafe { sys::aeron_cnc_init(&mut cnc, directory.as_ptr(), 0) } == 0).then_some(Self(cnc))
    }

    pub fn pid(&self) -> i64 {
        // SAFETY: all-zero bytes are a valid value of this struct of integers.
        let mut constants = unsafe { std::mem::zeroed::<sys::aeron_cnc_constants_t>() };
        // SAFETY: the handle is open and the struct is ours.
        unsafe { sys::aeron_cnc_constants(self.0, &mut constants) };
        constants.pid
    }

    pub fn heartbeat_age(&self) -> Option<Duration> {
        // SAFETY: the handle is open.
        let heartbeat_ms = unsafe { sys::aeron_cnc_to_driver_heartbeat(self.0) };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
        (heartbeat_ms > 0).then(|| now.saturating_sub(Duration::from_millis(heartbeat_ms as u64)))
    }

    /// The driver's distinct errors: (observations, last seen in ms since 1970, text).
    pub fn errors(&self) -> Vec<(i32, i64, String)> {
        let mut errors = Vec::new();
        // SAFETY: the handle is open; the callback gets our vector and only during the call.
        unsafe { sys::aeron_cnc_error_log_read(self.0, Some(on_logged_error), (&raw mut errors).cast(), 0) };
        errors
    }
}

impl Drop for Cnc {
    fn drop(&mut self) {
        // SAFETY: opened by us, closed once.
        unsafe { sys::aeron_cnc_close(self.0) };
    }
}

unsafe extern "C" fn on_logged_error(count: i32, _first_ms: i64, last_ms: i64, error: *const c_char, length: usize, clientd: *mut c_void) {
    // SAFETY: `clientd` is the vector that `errors` passed; the text has `length` bytes in the error log.
    let (errors, text) =
        unsafe { (&mut *clientd.cast::<Vec<(i32, i64, String)>>(), std::slice::from_raw_parts(error.cast::<u8>(), length)) };
    errors.push((count, last_ms, String::from_utf8_lossy(text).into_owned()));
}

/// Whether a driver of this directory gave a sign of life within `timeout`.
pub fn has_heartbeat(directory: &Path, timeout: Duration) -> bool {
    Cnc::open(directory).and_then(|cnc| cnc.heartbeat_age()).is_some_and(|age| age <= timeout)
}

fn process_exists(pid: i64) -> bool {
    let Ok(pid) = libc::pid_t::try_from(pid) else { return false };
    // SAFETY: signal 0 only asks. EPERM means that there is such a process, of another user.
    pid > 0 && (unsafe { libc::kill(pid, 0) } == 0 || std::io::Error::last_os_error().raw_os_error() == Some(libc::EPERM))
}

type CounterRow = (i32, i32, i64, String);

/// (counter id, type id, value, label) of every counter.
///
/// # Safety
/// `reader` belongs to a client or cnc handle that stays open during the call.
pub unsafe fn read_counters(reader: *mut sys::aeron_counters_reader_t) -> Vec<CounterRow> {
    let mut rows: Vec<CounterRow> = Vec::new();
    // SAFETY: the reader is open by contract; the callback gets our vector and only during the call.
    unsafe { sys::aeron_counters_reader_foreach_counter(reader, Some(on_counter), (&raw mut rows).cast()) };
    rows
}

unsafe extern "C" fn on_counter(
    value: i64,
    id: i32,
    type_id: i32,
    _key: *const u8,
    _key_length: usize,
    label: *const c_char,
    label_length: usize,
    clientd: *mut c_void,
) {
    // SAFETY: `clientd` is the vector of `read_counters`; the label has `label_length` bytes (at most 380) in the counters' metadata.
    let (rows, label) =
        unsafe { (&mut *clientd.cast::<Vec<CounterRow>>(), std::slice::from_raw_parts(label.cast::<u8>(), label_length.min(380))) };
    rows.push((id, type_id, value, String::from_utf8_lossy(label).into_owned()));
}

#[pyfunction]
fn media_driver_is_active(py: Python<'_>, directory: &str, timeout_ms: u64) -> bool {
    py.detach(|| {
        Cnc::open(Path::new(directory))
            .is_some_and(|cnc| cnc.heartbeat_age().is_some_and(|age| age <= Duration::from_millis(timeout_ms)) && process_exists(cnc.pid()))
    })
}

#[pyfunction]
fn media_driver_pid(py: Python<'_>, directory: &str) -> Option<i64> {
    py.detach(|| Cnc::open(Path::new(directory)).map(|cnc| cnc.pid()))
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(media_driver_is_active, module)?)?;
    module.add_function(wrap_pyfunction!(media_driver_pid, module)?)
}
