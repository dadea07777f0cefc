//! What every Aeron handle shares: errors with their text, strings for C, signals kept off native threads.
use std::collections::VecDeque;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

use libaeron_driver_sys as driver_sys;
use libaeron_sys as sys;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::errors;

/// Client error codes of Aeron, as `aeron_errcode` gives them (negative).
pub const DRIVER_TIMEOUT: c_int = -(sys::AERON_CLIENT_ERROR_DRIVER_TIMEOUT as c_int);
const CLIENT_TIMEOUT: c_int = -(sys::AERON_CLIENT_ERROR_CLIENT_TIMEOUT as c_int);
const SERVICE_TIMEOUT: c_int = -(sys::AERON_CLIENT_ERROR_CONDUCTOR_SERVICE_TIMEOUT as c_int);

const KEPT_ERRORS: usize = 256;

/// Why a call into Aeron did not do what was asked.
#[derive(Debug)]
pub enum AeronError {
    /// The handle was closed, or belongs to the parent of this process.
    Closed(String),
    /// The media driver is gone, or gave this client up.
    DriverLost { code: c_int, text: String },
    /// Anything else, with Aeron's code.
    Failed { code: c_int, text: String },
    /// An argument that C cannot take.
    Invalid(String),
    /// A Python signal handler raised while we waited.
    Interrupted(PyErr),
}

impl AeronError {
    /// The error of the last failed call on this thread, with what was attempted in front.
    pub fn last(attempt: &str) -> Self {
        // SAFETY: both only read this thread's error state.
        let (code, text) = unsafe { (sys::aeron_errcode(), CStr::from_ptr(sys::aeron_errmsg())) };
        Self::from_code(code, format!("{attempt}: {}", cause(&text.to_string_lossy())))
    }

    /// What this thread's last error was is kept until the next, and Aeron's code sometimes asks for it without having failed.
    pub fn forget_last() {
        // SAFETY: only writes this thread's error state.
        unsafe { driver_sys::aeron_err_clear() };
    }

    pub fn from_code(code: c_int, text: String) -> Self {
        match code {
            DRIVER_TIMEOUT | CLIENT_TIMEOUT | SERVICE_TIMEOUT => Self::DriverLost { code, text },
            _ => Self::Failed { code, text },
        }
    }
}

impl AeronError {
    /// The same error for one more caller.
    pub fn again(&self) -> Self {
        match self {
            Self::Closed(text) => Self::Closed(text.clone()),
            Self::DriverLost { code, text } => Self::DriverLost { code: *code, text: text.clone() },
            Self::Failed { code, text } => Self::Failed { code: *code, text: text.clone() },
            Self::Invalid(text) => Self::Invalid(text.clone()),
            Self::Interrupted(error) => Self::Interrupted(Python::attach(|py| error.clone_ref(py))),
        }
    }
}

impl From<AeronError> for PyErr {
    fn from(error: AeronError) -> Self {
        match error {
            AeronError::Closed(text) => errors::closed(text),
            AeronError::DriverLost { code, text } => errors::media_driver_timeout(text, code),
            AeronError::Failed { code, text } => errors::transport(text, code),
            AeronError::Invalid(text) => PyValueError::new_err(text),
            AeronError::Interrupted(error) => error,
        }
    }
}

/// Aeron's error text is a stack of lines `[function, file:line] words`, innermost first, below a headline `(code) words`; what came from the driver is one
/// more such stack inside. The cause is the innermost line of the last stack.
pub fn cause(text: &str) -> String {
    let (mut headline, mut cause) = ("no reason given", None);
    for words in text.lines().map(without_position).filter(|words| !words.is_empty() && !words.ends_with("registration error")) {
        match headline_words(words) {
            Some(words) => (headline, cause) = (words, None),
            None => _ = cause.get_or_insert(words),
        }
    }
    cause.unwrap_or(headline).to_owned()
}

fn headline_words(line: &str) -> Option<&str> {
    let (code, words) = line.strip_prefix('(')?.split_once(')')?;
    code.parse::<i32>().ok()?;
    Some(words.trim())
}

fn without_position(line: &str) -> &str {
    let line = line.trim();
    match line.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((position, words)) if position.contains(".c:") || position.contains(".h:") => words.trim(),
        _ => line,
    }
}

pub fn c_string(text: &str, what: &str) -> Result<CString, AeronError> {
    CString::new(text).map_err(|_| AeronError::Invalid(format!("{what} must not hold a NUL character")))
}

/// A lock whose owner panicked still guards consistent data here: every critical section only moves pointers and queues.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Errors heard on threads that must never take the GIL, until Python asks for them. Repeated ones are folded.
#[derive(Default)]
pub struct ErrorLog(Mutex<VecDeque<(c_int, String, u64)>>);

impl ErrorLog {
    pub fn push(&self, code: c_int, text: String) {
        let mut kept = lock(&self.0);
        if let Some(last) = kept.iter_mut().find(|(other, words, _)| *other == code && *words == text) {
            last.2 += 1;
            return;
        }
        if kept.len() == KEPT_ERRORS {
            kept.pop_front();
        }
        kept.push_back((code, text, 1));
    }

    pub fn take(&self) -> Vec<(c_int, String)> {
        lock(&self.0)
            .drain(..)
            .map(|(code, text, count)| (code, if count > 1 { format!("{text} ({count} times)") } else { text }))
            .collect()
    }
}

static NOTICES: Mutex<VecDeque<String>> = Mutex::new(VecDeque::new());

/// What Aeron would have printed on stderr since the last call.
pub fn take_notices() -> Vec<(c_int, String)> {
    lock(&NOTICES).drain(..).map(|text| (0, text)).collect()
}

/// Send what Aeron prints to `take_notices` instead of the terminal of the program that imported us.
pub fn redirect_output() {
    // SAFETY: `on_print` has the C signature of the handler: on the Linux ABIs that we build for (x86-64, AArch64) a `va_list` parameter travels as a pointer.
    unsafe {
        let handler = std::mem::transmute::<*const (), sys::aeron_fprintf_handler_t>(on_print as *const ());
        sys::aeron_set_fprintf_handler(handler);
    }
}

unsafe extern "C" {
    fn vsnprintf(buffer: *mut c_char, size: usize, format: *const c_char, arguments: *mut c_void) -> c_int;
}

unsafe extern "C" fn on_print(
    _source: *const c_char,
    _line: u64,
    _stream: *mut c_void,
    format: *const c_char,
    arguments: *mut c_void,
) -> c_int {
    let mut buffer = [0_u8; 2048];
    // SAFETY: the buffer is as long as said; format and arguments come from Aeron's own call.
    let length = unsafe { vsnprintf(buffer.as_mut_ptr().cast(), buffer.len(), format, arguments) };
    let text = String::from_utf8_lossy(&buffer[..buffer.iter().position(|byte| *byte == 0).unwrap_or(0)]).trim().to_owned();
    if !text.is_empty() {
        let mut notices = lock(&NOTICES);
        if notices.len() == KEPT_ERRORS {
            notices.pop_front();
        }
        notices.push_back(text);
    }
    length
}

/// Blocks signals on this thread for a while: threads started meanwhile inherit that, so that Ctrl-C reaches Python's main thread and interrupts its waits.
pub struct SignalsBlocked(libc::sigset_t);

impl SignalsBlocked {
    pub fn new() -> Self {
        // SAFETY: both sets are initialised by the calls before they are used; faults stay deliverable, they belong to the thread that made them.
        unsafe {
            let mut all = std::mem::zeroed::<libc::sigset_t>();
            let mut before = std::mem::zeroed::<libc::sigset_t>();
            libc::sigfillset(&mut all);
            for fault in [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGABRT, libc::SIGTRAP] {
                libc::sigdelset(&mut all, fault);
            }
            libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
            Self(before)
        }
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        // SAFETY: the set was filled by `pthread_sigmask` in `new`, on this same thread.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, std::ptr::null_mut()) };
    }
}

/// Threads that are started while this lives take naps that may last a millisecond longer, so that the kernel ends many of them by one interrupt.
/// With fifty sessions on a machine every other interrupt would otherwise be for one nap, and fall into somebody's publish.
pub struct NapsTogether(libc::c_int);

impl NapsTogether {
    const SLACK_NS: libc::c_ulong = 1_000_000;

    pub fn new() -> Self {
        // SAFETY: these concern the calling thread's timers alone; a new thread begins with its maker's value.
        unsafe {
            let before = libc::prctl(libc::PR_GET_TIMERSLACK);
            libc::prctl(libc::PR_SET_TIMERSLACK, Self::SLACK_NS);
            Self(before)
        }
    }
}

impl Drop for NapsTogether {
    fn drop(&mut self) {
        if let Ok(before) = libc::c_ulong::try_from(self.0) {
            // SAFETY: as above.
            unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, before) };
        }
    }
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    // SAFETY: a static, NUL-terminated string.
    let version = unsafe { CStr::from_ptr(sys::aeron_version_text()) };
    module.add("aeron_version", format!("aeron {}", version.to_string_lossy()))
}
