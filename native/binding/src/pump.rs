//! The one native thread of a session: keeps subscriptions drained, sends keepalives, signals an eventfd. Never takes the GIL.
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use tensor_pool_core::clock::monotonic_ns;

use crate::aeron::{AeronError, NapsTogether, SignalsBlocked, lock};
use crate::client::{check_signals, forked};
use crate::fork::Owner;
use crate::inbox::{Inbox, InboxInner};
use crate::keepalive::{Keepalive, KeepaliveInner};
use crate::publication::{Publication, bytes_of, contiguous};
use crate::reader::{FrameReader, FrameReaderInner};
use crate::subscription::Subscription;

/// Whoever reads polls for himself; after this long without a poll the pump takes over.
const READER_IDLE_NS: u64 = 20_000_000;
/// Without anything to do the rest between rounds grows to this many intervals. No log fills in that time.
const QUIET_INTERVALS: u32 = 8;
/// Rounds without work before it grows: an answer is often on its way.
const ROUNDS_UNTIL_QUIET: u32 = 10;

#[derive(Default)]
struct SignalState {
    messages: usize,
    woken: bool,
    readable: bool,
}

/// An eventfd that is readable while there are messages, and after `wake` until somebody has waited.
pub struct Signal {
    event: OwnedFd,
    state: Mutex<SignalState>,
}

impl Signal {
    fn new() -> std::io::Result<Self> {
        // SAFETY: makes a file descriptor, which is ours alone.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(std::io::Error::last_os_error());
        }
        // SAFETY: just made and owned by nobody else.
        Ok(Self { event: unsafe { OwnedFd::from_raw_fd(fd) }, state: Mutex::default() })
    }

    pub fn change_messages(&self, difference: isize) {
        self.update(|state| state.messages = state.messages.saturating_add_signed(difference));
    }

    pub fn wake(&self) {
        self.update(|state| state.woken = true);
    }

    fn update(&self, change: impl FnOnce(&mut SignalState)) {
        let mut state = lock(&self.state);
        change(&mut state);
        let readable = state.messages > 0 || state.woken;
        if readable == state.readable {
            return;
        }
        state.readable = readable;
        let mut count = 1_u64;
        // SAFETY: the descriptor is open and `count` has the eight bytes that an eventfd takes and gives. Neither call can block or fill the counter:
        // it goes from 0 to 1 and back.
        unsafe {
            if readable {
                libc::write(self.event.as_raw_fd(), (&raw const count).cast(), 8);
            } else {
                libc::read(self.event.as_raw_fd(), (&raw mut count).cast(), 8);
            }
        }
    }

    /// Waits until the eventfd is readable, and takes a `wake` back. False on time-out.
    fn wait(&self, timeout: Duration) -> Result<bool, AeronError> {
        let deadline_ns = monotonic_ns().saturating_add(u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX));
        loop {
            let left_ns = deadline_ns.saturating_sub(monotonic_ns());
            let left = libc::timespec {
                tv_sec: i64::try_from(left_ns / 1_000_000_000).unwrap_or(i64::MAX),
                tv_nsec: (left_ns % 1_000_000_000) as i64,
            };
            let mut waited = libc::pollfd { fd: self.event.as_raw_fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: one valid pollfd; no signal mask is changed.
            match unsafe { libc::ppoll(&mut waited, 1, &left, std::ptr::null()) } {
                0 => return Ok(false),
                code if code > 0 => {
                    self.update(|state| state.woken = false);
                    return Ok(true);
                }
                _ => check_signals()?,
            }
        }
    }
}

#[derive(Default)]
struct Work {
    inboxes: Vec<Arc<InboxInner>>,
    keepalives: Vec<Arc<KeepaliveInner>>,
    readers: Vec<Arc<FrameReaderInner>>,
}

struct PumpShared {
    owner: Owner,
    signal: Arc<Signal>,
    interval: Duration,
    work: Mutex<Work>,
    stopped: AtomicBool,
    /// Guards nothing but the nap, so that adding work never waits for a round.
    nap: Mutex<()>,
    alarm: Condvar,
}

impl PumpShared {
    fn run(&self) {
        let mut quiet_rounds = 0;
        let mut nap = lock(&self.nap);
        while !self.stopped.load(Ordering::Relaxed) {
            drop(nap);
            quiet_rounds = if self.round() { 0 } else { quiet_rounds + 1 };
            nap = lock(&self.nap);
            if !self.stopped.load(Ordering::Relaxed) {
                let rest = if quiet_rounds > ROUNDS_UNTIL_QUIET { self.interval * QUIET_INTERVALS } else { self.interval };
                let (woken, by_time) = self.alarm.wait_timeout(nap, rest).unwrap_or_else(PoisonError::into_inner);
                nap = woken;
                if !by_time.timed_out() {
                    quiet_rounds = 0;
                }
            }
        }
    }

    /// Whether there was anything to do, or somebody waits for more than this thread's own rhythm.
    fn round(&self) -> bool {
        let now_ns = monotonic_ns();
        let mut work = lock(&self.work);
        let mut is_busy = false;
        work.keepalives.retain(|keepalive| keepalive.poll());
        work.inboxes.retain(|inbox| {
            let polled = if inbox.is_closed() { None } else { inbox.poll() };
            is_busy |= polled.is_some_and(|messages| messages > 0);
            polled.is_some()
        });
        for reader in &work.readers {
            if reader.has_fileno() || now_ns.saturating_sub(reader.last_polled_ns()) >= READER_IDLE_NS {
                // a log lasts for many rounds: draining it for somebody who does not read is no hurry
                reader.poll();
                is_busy |= reader.has_fileno();
            }
        }
        is_busy
    }

    fn add(&self, add: impl FnOnce(&mut Work)) -> Result<(), AeronError> {
        let mut work = lock(&self.work);
        if self.stopped.load(Ordering::Relaxed) {
            return Err(closed());
        }
        add(&mut work);
        drop(work);
        self.alarm.notify_one();
        Ok(())
    }
}

fn closed() -> AeronError {
    AeronError::Closed("the pump is closed".to_owned())
}

#[pyclass(frozen, module = "tensor_pool._native")]
pub struct Pump {
    shared: Arc<PumpShared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Pump {
    fn ensure_open(&self) -> Result<(), AeronError> {
        if !self.shared.owner.is_here() {
            return Err(forked("pump"));
        }
        if self.shared.stopped.load(Ordering::Relaxed) { Err(closed()) } else { Ok(()) }
    }

    fn stop(&self) {
        if !self.shared.owner.is_here() {
            return;
        }
        {
            let _nap = lock(&self.shared.nap);
            self.shared.stopped.store(true, Ordering::Relaxed);
            self.shared.alarm.notify_one();
        }
        if let Some(thread) = lock(&self.thread).take() {
            // A round that panicked has nothing more to say than that it ended.
            drop(thread.join());
        }
        let left = std::mem::take(&mut *lock(&self.shared.work));
        drop(left);
        self.shared.signal.wake();
    }
}

#[pymethods]
impl Pump {
    #[new]
    #[pyo3(signature = (*, interval_ns = 2_000_000))]
    fn new(interval_ns: u64) -> PyResult<Self> {
        if interval_ns == 0 {
            return Err(PyValueError::new_err("interval_ns must be at least 1"));
        }
        let shared = Arc::new(PumpShared {
            owner: Owner::current(),
            signal: Arc::new(Signal::new()?),
            interval: Duration::from_nanos(interval_ns),
            work: Mutex::default(),
            stopped: AtomicBool::new(false),
            nap: Mutex::new(()),
            alarm: Condvar::new(),
        });
        let runs = shared.clone();
        let _inherited = (SignalsBlocked::new(), NapsTogether::new());
        let thread = std::thread::Builder::new().name("tensor-pool-pump".to_owned()).spawn(move || runs.run())?;
        Ok(Self { shared, thread: Mutex::new(Some(thread)) })
    }

    #[pyo3(signature = (subscription, accept, *, capacity = 8192))]
    fn add_inbox(&self, py: Python<'_>, subscription: &Subscription, accept: Vec<(u16, u16)>, capacity: usize) -> PyResult<Inbox> {
        self.ensure_open()?;
        if capacity == 0 {
            return Err(PyValueError::new_err("capacity must be at least 1"));
        }
        let signal = self.shared.signal.clone();
        let inner = Arc::new(InboxInner::new(subscription.inner.clone(), accept, capacity, signal));
        py.detach(|| self.shared.add(|work| work.inboxes.push(inner.clone())))?;
        Ok(Inbox::new(inner))
    }

    fn add_reader(&self, py: Python<'_>, reader: &FrameReader) -> PyResult<()> {
        self.ensure_open()?;
        let inner = reader.inner.clone();
        Ok(py.detach(|| {
            self.shared.add(|work| {
                if !work.readers.iter().any(|known| Arc::ptr_eq(known, &inner)) {
                    work.readers.push(inner);
                }
            })
        })?)
    }

    fn remove_reader(&self, py: Python<'_>, reader: &FrameReader) {
        if self.shared.owner.is_here() {
            py.detach(|| lock(&self.shared.work).readers.retain(|known| !Arc::ptr_eq(known, &reader.inner)));
        }
    }

    #[pyo3(signature = (publication, message, *, timestamp_offset, interval_ns))]
    fn add_keepalive(
        &self,
        py: Python<'_>,
        publication: &Publication,
        message: &Bound<'_, PyAny>,
        timestamp_offset: usize,
        interval_ns: u64,
    ) -> PyResult<Keepalive> {
        self.ensure_open()?;
        let buffer = contiguous(message)?;
        // SAFETY: the buffer is contiguous and exported to us while `buffer` lives, and the GIL is held.
        let bytes = unsafe { bytes_of(&buffer) };
        let inner = Arc::new(KeepaliveInner::new(publication.inner.clone(), bytes, timestamp_offset, interval_ns)?);
        py.detach(|| self.shared.add(|work| work.keepalives.push(inner.clone())))?;
        Ok(Keepalive::new(inner))
    }

    fn fileno(&self) -> PyResult<RawFd> {
        self.ensure_open()?;
        Ok(self.shared.signal.event.as_raw_fd())
    }

    fn wait(&self, py: Python<'_>, timeout_ns: u64) -> PyResult<bool> {
        self.ensure_open()?;
        Ok(py.detach(|| self.shared.signal.wait(Duration::from_nanos(timeout_ns)))?)
    }

    fn wake(&self) -> PyResult<()> {
        self.ensure_open()?;
        self.shared.signal.wake();
        Ok(())
    }

    fn close(&self, py: Python<'_>) {
        py.detach(|| self.stop());
    }
}

impl Drop for Pump {
    fn drop(&mut self) {
        self.stop();
        if !self.shared.owner.is_here() {
            // There is no such thread in this process.
            std::mem::forget(self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take());
        }
    }
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Pump>()
}
