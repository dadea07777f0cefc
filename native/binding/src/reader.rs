//! The consumer's end of a ring: descriptors in, validated frames out, every seq booked once.
//!
//! A thread that holds `state` never waits for the GIL, and nobody waits for `state` for longer than one copy takes: so any thread may wait for it
//! with the GIL or without.
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pyo3::exceptions::{PyBufferError, PyOSError, PyValueError};
use pyo3::prelude::*;
use tensor_pool_core::accounting::{Accounting, Outcome, Pending, Pushed};
use tensor_pool_core::clock::monotonic_ns;
use tensor_pool_core::commit::HIGHEST_SEQ;
use tensor_pool_core::descriptor::{self, Descriptor, Received};
use tensor_pool_core::reader::{self, Located, Refusal};
use tensor_pool_core::ring::Ring;
use tensor_pool_core::wait::{self, Woken};

use crate::aeron::{AeronError, lock};
use crate::counter::{Counter, CounterWord};
use crate::declared::Export;
use crate::errors;
use crate::fork::{self, Owner};
use crate::frame::{BorrowedFrame, Frame, Payload, ReadFrame};
use crate::memory::BufferPool;
use crate::region::Region;
use crate::subscription::{Subscription, SubscriptionInner};
use crate::waiters;
use crate::writer::ring_of;

/// A reader looks again at least this often: for producers that wake nobody, and for a new epoch, which has another word to sleep on.
const LONGEST_SLEEP: Duration = Duration::from_millis(5);
/// The first sleep behind a frame that is committed and not announced yet.
const UNANNOUNCED_SLEEP: Duration = Duration::from_micros(100);
const SIGNAL_CHECK_INTERVAL_NS: u64 = 50_000_000;
const POLL_LIMIT: usize = 256;
/// A publisher that never stops must not keep a read in here; what is left over comes with the next poll.
const POLLS_IN_A_ROW: usize = 64;

struct Mapped {
    ring: Arc<Ring>,
    epoch: u64,
    generation: u64,
    books: Accounting,
}

#[derive(Clone, Copy, Default)]
struct LifeCounts {
    wrong_epoch: u64,
    unmapped: u64,
    not_committed: u64,
    malformed: u64,
    descriptors_received: u64,
}

/// What was counted in a mapping that is gone: a view of it may still be given back, and the next mapping may be of the same epoch.
struct Ended {
    epoch: u64,
    generation: u64,
    books: Accounting,
    newest_committed: Option<u64>,
}

impl Ended {
    fn of(mapped: Mapped) -> Self {
        let Mapped { ring, epoch, generation, books } = mapped;
        Self { epoch, generation, books, newest_committed: ring.newest_committed() }
    }
}

#[derive(Default)]
struct State {
    mapped: Option<Mapped>,
    /// Of the last mapping, while there is none.
    ended: Option<Ended>,
    generation: u64,
    life: LifeCounts,
    needs_remap: bool,
}

impl State {
    fn receive(&mut self, message: &[u8], stream_id: u32) -> bool {
        match descriptor::decode(message) {
            Received::Descriptor(descriptor) if descriptor.stream_id == stream_id => self.announced(&descriptor),
            Received::Descriptor(_) | Received::Other => false,
            Received::Malformed => {
                self.life.malformed += 1;
                false
            }
        }
    }

    /// True when the descriptor was kept.
    fn announced(&mut self, descriptor: &Descriptor) -> bool {
        self.life.descriptors_received += 1;
        let Some(mapped) = &mut self.mapped else {
            self.life.unmapped += 1;
            return false;
        };
        if descriptor.epoch != mapped.epoch {
            self.life.wrong_epoch += 1;
            return false;
        }
        if descriptor.seq > HIGHEST_SEQ {
            self.life.malformed += 1;
            return false;
        }
        let pending = Pending { seq: descriptor.seq, timestamp_ns: descriptor.timestamp_ns, trace_id: descriptor.trace_id };
        match mapped.books.push(pending) {
            Pushed::Kept => true,
            Pushed::BeforeFirst => false,
            Pushed::WentBack => {
                self.needs_remap = true;
                false
            }
        }
    }

    /// Map `ring`; with `first_seq` books of its own, without one those of the last mapping go on. None where that was another epoch's.
    fn map(&mut self, ring: Arc<Ring>, epoch: u64, first_seq: Option<u64>, max_outstanding_gap: u64) -> Option<u64> {
        let nslots = ring.nslots() as usize;
        let (generation, books) = match first_seq {
            Some(first_seq) => (self.generation + 1, Accounting::new(first_seq, nslots, max_outstanding_gap)),
            None => {
                if self.mapped.as_ref().is_some_and(|mapped| mapped.epoch == epoch) {
                    self.unmap();
                }
                let Ended { generation, mut books, .. } = self.ended.take_if(|ended| ended.epoch == epoch)?;
                books.resume(nslots, max_outstanding_gap);
                (generation, books)
            }
        };
        let first_seq = books.first_seq();
        self.generation = generation;
        self.ended = None;
        self.mapped = Some(Mapped { ring, epoch, generation, books });
        self.needs_remap = false;
        Some(first_seq)
    }

    fn unmap(&mut self) {
        if let Some(mapped) = self.mapped.take() {
            self.ended = Some(Ended::of(mapped));
        }
    }

    /// The books of a mapping, as long as none with other books came after it.
    fn books_of(&mut self, generation: u64) -> Option<&mut Accounting> {
        let mapped = self.mapped.as_mut().map(|mapped| (mapped.generation, &mut mapped.books));
        let (own, books) = mapped.or_else(|| self.ended.as_mut().map(|ended| (ended.generation, &mut ended.books)))?;
        (own == generation).then_some(books)
    }

    fn counters(&self) -> HashMap<&'static str, i128> {
        let mut counters = HashMap::new();
        let mut put = |name, value: i128| counters.insert(name, value);
        for name in ["delivered", "skipped", "gap", "late", "invalid", "first_seq"] {
            put(name, 0);
        }
        for name in ["last_seq", "newest_committed"] {
            put(name, -1);
        }
        let mapped = self.mapped.as_ref().map(|mapped| (mapped.epoch, &mapped.books, mapped.ring.newest_committed()));
        let ended = self.ended.as_ref().map(|ended| (ended.epoch, &ended.books, ended.newest_committed));
        if let Some((epoch, books, newest_committed)) = mapped.or(ended) {
            let counts = books.counts();
            put("delivered", counts.delivered.into());
            put("skipped", counts.skipped.into());
            put("gap", counts.gap.into());
            put("late", counts.late.into());
            put("invalid", counts.invalid.into());
            put("first_seq", books.first_seq().into());
            put("last_seq", i128::from(books.next_booked()) - 1);
            let first = i128::from(books.first_seq());
            put("newest_committed", newest_committed.map_or(first - 1, |seq| i128::from(seq).max(first - 1)));
            put("epoch", epoch.into());
        }
        put("wrong_epoch", self.life.wrong_epoch.into());
        put("unmapped", self.life.unmapped.into());
        put("not_committed", self.life.not_committed.into());
        put("malformed", self.life.malformed.into());
        put("descriptors_received", self.life.descriptors_received.into());
        counters
    }
}

/// Where a payload goes.
#[derive(Clone, Copy)]
enum Target {
    Owned,
    Into(*mut u8, usize),
    Lend,
}

// SAFETY: the pointer is into a buffer whose export the caller holds for the whole read.
unsafe impl Send for Target {}
// SAFETY: as above.
unsafe impl Sync for Target {}

/// How a read is to be done.
#[derive(Clone, Copy)]
struct Request {
    target: Target,
    newest: bool,
    spin: bool,
    timeout_ns: Option<u64>,
}

/// Why regions were not mapped.
enum Unmapped {
    Closed,
    OtherEpoch,
}

enum Failure {
    Aeron(AeronError),
    TooShort { need: usize, have: usize },
    Closed,
    Signal(PyErr),
}

/// How long to sleep when full slots were passed over. Their descriptors are on the way, as a rule, and their wakes go to the words passed over: so the
/// first sleep is short. A descriptor that was refused never comes: so each further one is twice as long.
struct Patience {
    seq: u64,
    sleep: Duration,
}

impl Patience {
    fn longest(&mut self, awaited_seq: u64, next_seq: u64) -> Duration {
        if awaited_seq == next_seq {
            return LONGEST_SLEEP;
        }
        self.sleep = if awaited_seq == self.seq { (2 * self.sleep).min(LONGEST_SLEEP) } else { UNANNOUNCED_SLEEP };
        self.seq = awaited_seq;
        self.sleep
    }
}

/// While it lives the consumer's counter says that a read sleeps.
struct Sleeping(Option<CounterWord>);

impl Sleeping {
    fn say(counter: Option<CounterWord>) -> Self {
        if let Some(counter) = &counter {
            counter.add(waiters::BEGINS_TO_SLEEP);
            // SYNC POINT: see `WaitersState::wake`.
            fence(Ordering::SeqCst);
        }
        Self(counter)
    }
}

impl Drop for Sleeping {
    fn drop(&mut self) {
        if let Some(counter) = &self.0 {
            counter.add(waiters::IS_AWAKE);
        }
    }
}

pub struct FrameReaderInner {
    owner: Owner,
    stream_id: u32,
    subscription: Option<Arc<SubscriptionInner>>,
    state: Mutex<State>,
    buffers: Arc<BufferPool>,
    last_polled_ns: AtomicU64,
    eventfd: AtomicI32,
    sleeping: Mutex<Option<CounterWord>>,
    closed: AtomicBool,
}

impl FrameReaderInner {
    fn poll_locked(&self, state: &mut State) -> Result<usize, AeronError> {
        let Some(subscription) = &self.subscription else { return Ok(0) };
        let mut kept = 0;
        let mut was_empty = false;
        for _ in 0..POLLS_IN_A_ROW {
            let polled = subscription.poll_with(POLL_LIMIT, &mut |message, _session| {
                kept += usize::from(state.receive(message, self.stream_id));
            })?;
            // a poll ends with its term, and what comes next is in the next one: only two empty polls say that there is nothing
            if (polled > 0 && polled < POLL_LIMIT) || (polled == 0 && was_empty) {
                break;
            }
            was_empty = polled == 0;
        }
        if kept > 0 {
            self.signal();
        }
        Ok(kept)
    }

    /// For the pump: take descriptors while nobody reads. Leaves at once when somebody does.
    pub fn poll(&self) -> usize {
        if self.closed.load(Ordering::Relaxed) || !self.owner.is_here() {
            return 0;
        }
        // Aeron's failure reaches the user by the reads and by the session's control traffic
        self.state.try_lock().ok().and_then(|mut state| self.poll_locked(&mut state).ok()).unwrap_or(0)
    }

    pub fn stream_id(&self) -> u32 {
        self.stream_id
    }

    pub fn last_polled_ns(&self) -> u64 {
        self.last_polled_ns.load(Ordering::Relaxed)
    }

    /// Which process reads: frames and views may first be looked at in a child of it.
    pub fn owner(&self) -> Owner {
        self.owner
    }

    pub fn has_fileno(&self) -> bool {
        self.eventfd.load(Ordering::Relaxed) >= 0
    }

    fn signal(&self) {
        let eventfd = self.eventfd.load(Ordering::Relaxed);
        if eventfd >= 0 {
            let one = 1_u64;
            // SAFETY: eight bytes to an eventfd of ours; a full counter is readable already.
            unsafe { libc::write(eventfd, (&raw const one).cast(), 8) };
        }
    }

    fn clear_signal(&self) {
        let mut value = 0_u64;
        // SAFETY: eight bytes from an eventfd of ours, which does not block.
        unsafe { libc::read(self.eventfd.load(Ordering::Relaxed), (&raw mut value).cast(), 8) };
    }

    fn ensure_open(&self) -> Result<(), Failure> {
        if self.closed.load(Ordering::Relaxed) { Err(Failure::Closed) } else { Ok(()) }
    }

    /// One look: a frame, or None when there is none now.
    fn attempt(self: &Arc<Self>, request: &Request) -> Result<Option<ReadFrame>, Failure> {
        let mut guard = lock(&self.state);
        self.ensure_open()?;
        self.poll_locked(&mut guard).map_err(Failure::Aeron)?;
        let state = &mut *guard;
        let Some(mapped) = &mut state.mapped else { return Ok(None) };
        loop {
            let taken = if request.newest { mapped.books.take_newest() } else { mapped.books.take_next() };
            let Some(pending) = taken else { return Ok(None) };
            let outcome = match reader::locate(&mapped.ring, pending.seq) {
                Err(Refusal::Late) => Outcome::Late,
                Err(Refusal::NotCommitted) => {
                    state.life.not_committed += 1;
                    Outcome::Late
                }
                Err(Refusal::Invalid(_)) => Outcome::Invalid,
                Ok(located) => match self.take_payload(mapped, &located, pending, request.target)? {
                    Some(payload) => {
                        mapped.books.book(Outcome::Delivered);
                        return Ok(Some(ReadFrame::new(located, pending, self.stream_id, mapped.epoch, payload)));
                    }
                    None => Outcome::Late,
                },
            };
            mapped.books.book(outcome);
        }
    }

    fn take_payload(
        self: &Arc<Self>,
        mapped: &mut Mapped,
        located: &Located,
        pending: Pending,
        target: Target,
    ) -> Result<Option<Payload>, Failure> {
        match target {
            Target::Owned => {
                let memory = self.buffers.take(located.length);
                // SAFETY: the memory has at least that length, and the frame was located in this ring.
                Ok(unsafe { reader::copy_payload(&mapped.ring, located, memory.pointer()) }.then_some(Payload::Owned(memory)))
            }
            Target::Into(pointer, have) => {
                if located.length > have {
                    mapped.books.put_back(pending);
                    return Err(Failure::TooShort { need: located.length, have });
                }
                // SAFETY: checked against the length of the caller's buffer, whose export is held.
                Ok(unsafe { reader::copy_payload(&mapped.ring, located, pointer) }.then_some(Payload::Given))
            }
            Target::Lend => Ok(Some(Payload::Lent { reader: self.clone(), ring: mapped.ring.clone(), generation: mapped.generation })),
        }
    }

    /// Look, sleep, look again, until there is a frame or the time is over.
    fn read(self: &Arc<Self>, request: &Request) -> Result<Option<ReadFrame>, Failure> {
        let started_ns = monotonic_ns();
        self.last_polled_ns.store(started_ns, Ordering::Relaxed);
        if let Some(frame) = self.attempt(request)? {
            return Ok(Some(frame));
        }
        if self.has_fileno() {
            // cleared before a last look: what comes after that look makes it readable again
            self.clear_signal();
            if let Some(frame) = self.attempt(request)? {
                return Ok(Some(frame));
            }
        }
        let deadline_ns = request.timeout_ns.map(|timeout| started_ns.saturating_add(timeout));
        let mut next_signal_check_ns = started_ns + SIGNAL_CHECK_INTERVAL_NS;
        let mut patience = Patience { seq: 0, sleep: UNANNOUNCED_SLEEP };
        loop {
            let now_ns = monotonic_ns();
            self.last_polled_ns.store(now_ns, Ordering::Relaxed);
            let left = deadline_ns.map_or(LONGEST_SLEEP, |deadline| Duration::from_nanos(deadline.saturating_sub(now_ns)));
            if left.is_zero() {
                return self.attempt(request);
            }
            let (frame, woken) = if request.spin {
                std::hint::spin_loop();
                (self.attempt(request)?, Woken::LookAgain)
            } else {
                self.attempt_and_sleep(request, left, &mut patience)?
            };
            if frame.is_some() {
                return Ok(frame);
            }
            if woken == Woken::BySignal || now_ns >= next_signal_check_ns {
                next_signal_check_ns = now_ns + SIGNAL_CHECK_INTERVAL_NS;
                Python::attach(|py| py.check_signals()).map_err(Failure::Signal)?;
            }
        }
    }

    /// The word is loaded before the last look: what is committed after that look ends the sleep at once.
    fn attempt_and_sleep(
        self: &Arc<Self>,
        request: &Request,
        left: Duration,
        patience: &mut Patience,
    ) -> Result<(Option<ReadFrame>, Woken), Failure> {
        let expected = lock(&self.state).mapped.as_ref().map(|mapped| (mapped.ring.clone(), mapped.books.next_announced()));
        let Some((ring, next_seq)) = expected else {
            std::thread::sleep(left.min(Duration::from_millis(1)));
            return Ok((self.attempt(request)?, Woken::LookAgain));
        };
        let awaited = wait::next_word(&ring, next_seq);
        let longest = left.min(patience.longest(awaited.seq, next_seq));
        let sleeping = Sleeping::say(lock(&self.sleeping).clone());
        if let Some(frame) = self.attempt(request)? {
            return Ok((Some(frame), Woken::LookAgain));
        }
        let woken = wait::sleep_on(awaited.word, awaited.seen, longest);
        drop(sleeping);
        if woken == Woken::ByOthers {
            wait::pass_on(awaited.word);
        }
        if woken == Woken::LookAgain {
            // time is up, or the word changed: the caller comes back, and looks before it sleeps
            return Ok((None, woken));
        }
        Ok((self.attempt(request)?, woken))
    }

    /// The last look at a lent frame: False moves it from delivered to late.
    pub fn settle_lent(&self, ring: &Ring, located: &Located, generation: u64) -> bool {
        let is_whole = reader::is_still(ring, located.seq);
        if !is_whole
            && self.owner.is_here()
            && let Some(books) = lock(&self.state).books_of(generation)
        {
            books.lent_was_late();
        }
        is_whole
    }

    fn close(&self) {
        if !self.owner.is_here() {
            return;
        }
        self.closed.store(true, Ordering::Relaxed);
        lock(&self.state).unmap();
        self.buffers.close();
        self.signal();
    }
}

impl Drop for FrameReaderInner {
    fn drop(&mut self) {
        let eventfd = *self.eventfd.get_mut();
        if eventfd >= 0 {
            // SAFETY: ours, and nobody else can reach it any more.
            unsafe { libc::close(eventfd) };
        }
    }
}

#[pyclass(frozen, module = "tensor_pool._native")]
pub struct FrameReader {
    pub inner: Arc<FrameReaderInner>,
}

impl FrameReader {
    fn ensure_here(&self) -> PyResult<()> {
        if self.inner.owner.is_here() {
            return Ok(());
        }
        Err(errors::closed(fork::words("consumer")))
    }

    fn read_as(&self, py: Python<'_>, request: Request) -> PyResult<Option<ReadFrame>> {
        self.ensure_here()?;
        let inner = &self.inner;
        py.detach(|| inner.read(&request)).map_err(|failure| match failure {
            Failure::Aeron(error) => error.into(),
            Failure::Signal(error) => error,
            Failure::Closed => errors::closed(format!("the reader of stream {} is closed", inner.stream_id)),
            Failure::TooShort { need, have } => PyValueError::new_err(format!("the next frame has {need} bytes and the buffer {have}")),
        })
    }
}

#[pymethods]
impl FrameReader {
    #[new]
    #[pyo3(signature = (subscription, *, stream_id))]
    fn new(subscription: Option<PyRef<'_, Subscription>>, stream_id: u32) -> Self {
        Self {
            inner: Arc::new(FrameReaderInner {
                owner: Owner::current(),
                stream_id,
                subscription: subscription.map(|subscription| subscription.inner.clone()),
                state: Mutex::default(),
                buffers: BufferPool::new(),
                last_polled_ns: AtomicU64::new(0),
                eventfd: AtomicI32::new(-1),
                sleeping: Mutex::default(),
                closed: AtomicBool::new(false),
            }),
        }
    }

    #[pyo3(signature = (header, pools, *, nslots, epoch, first_seq, max_outstanding_gap, resume = false))]
    #[expect(clippy::too_many_arguments, reason = "what a mapping is")]
    fn map(
        &self,
        py: Python<'_>,
        header: &Region,
        pools: Vec<(u16, usize, PyRef<'_, Region>)>,
        nslots: u64,
        epoch: u64,
        first_seq: Option<u64>,
        max_outstanding_gap: u64,
        resume: bool,
    ) -> PyResult<u64> {
        self.ensure_here()?;
        if first_seq.is_some_and(|seq| seq > HIGHEST_SEQ) {
            return Err(PyValueError::new_err("first_seq has at most 63 bits"));
        }
        let ring = Arc::new(ring_of(header, pools, nslots)?);
        let mapped = py.detach(|| {
            let mut state = lock(&self.inner.state);
            if self.inner.closed.load(Ordering::Relaxed) {
                return Err(Unmapped::Closed);
            }
            let first_seq = (!resume).then(|| first_seq.unwrap_or_else(|| ring.newest_committed().map_or(0, |seq| seq + 1)));
            state.map(ring, epoch, first_seq, max_outstanding_gap).ok_or(Unmapped::OtherEpoch)
        });
        // raising needs the GIL, whose holder may wait for `state`: not in there
        mapped.map_err(|refused| match refused {
            Unmapped::Closed => errors::closed(format!("the reader of stream {} is closed", self.inner.stream_id)),
            Unmapped::OtherEpoch => {
                PyValueError::new_err(format!("epoch {epoch} cannot be resumed: it is not the one that was mapped last"))
            }
        })
    }

    fn unmap(&self, py: Python<'_>) -> PyResult<HashMap<&'static str, i128>> {
        self.ensure_here()?;
        // the last counts and the end in one step: a frame that is read between them would be in neither
        Ok(py.detach(|| {
            let mut state = lock(&self.inner.state);
            state.unmap();
            state.counters()
        }))
    }

    #[getter]
    fn epoch(&self) -> PyResult<Option<u64>> {
        self.ensure_here()?;
        Ok(lock(&self.inner.state).mapped.as_ref().map(|mapped| mapped.epoch))
    }

    #[pyo3(signature = (timeout_ns, *, newest = false, spin = false))]
    fn read(&self, py: Python<'_>, timeout_ns: Option<u64>, newest: bool, spin: bool) -> PyResult<Option<Py<Frame>>> {
        let frame = self.read_as(py, Request { target: Target::Owned, newest, spin, timeout_ns })?;
        frame.map(|frame| Frame::own(py, frame)).transpose()
    }

    #[pyo3(signature = (out, timeout_ns, *, newest = false, spin = false))]
    fn read_into(
        &self,
        py: Python<'_>,
        out: &Bound<'_, PyAny>,
        timeout_ns: Option<u64>,
        newest: bool,
        spin: bool,
    ) -> PyResult<Option<Py<Frame>>> {
        let Some(export) = Export::writable(out) else {
            return Err(PyBufferError::new_err("frames are read into a writable, contiguous buffer"));
        };
        let target = Target::Into(export.pointer().cast_mut(), export.length());
        let frame = self.read_as(py, Request { target, newest, spin, timeout_ns })?;
        frame
            .map(|mut frame| {
                frame.given(out.clone().unbind());
                Frame::own(py, frame)
            })
            .transpose()
    }

    #[pyo3(signature = (timeout_ns, *, newest = false, spin = false))]
    fn borrow(&self, py: Python<'_>, timeout_ns: Option<u64>, newest: bool, spin: bool) -> PyResult<Option<Py<BorrowedFrame>>> {
        let frame = self.read_as(py, Request { target: Target::Lend, newest, spin, timeout_ns })?;
        frame.map(|frame| BorrowedFrame::lend(py, frame)).transpose()
    }

    #[pyo3(signature = (epoch, seq, timestamp_ns = None, trace_id = 0))]
    fn inject(&self, epoch: u64, seq: u64, timestamp_ns: Option<u64>, trace_id: u64) -> PyResult<()> {
        self.ensure_here()?;
        let descriptor = Descriptor { stream_id: self.inner.stream_id, epoch, seq, timestamp_ns, meta_version: 0, trace_id };
        if lock(&self.inner.state).announced(&descriptor) {
            self.inner.signal();
        }
        Ok(())
    }

    fn poll(&self, py: Python<'_>) -> PyResult<usize> {
        self.ensure_here()?;
        let inner = &self.inner;
        inner.last_polled_ns.store(monotonic_ns(), Ordering::Relaxed);
        Ok(py.detach(|| inner.poll_locked(&mut lock(&inner.state)))?)
    }

    fn fileno(&self) -> PyResult<i32> {
        self.ensure_here()?;
        let _guard = lock(&self.inner.state);
        if !self.inner.has_fileno() {
            // SAFETY: makes a new descriptor.
            let made = unsafe { libc::eventfd(1, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) };
            if made < 0 {
                return Err(PyOSError::new_err(std::io::Error::last_os_error().to_string()));
            }
            self.inner.eventfd.store(made, Ordering::Relaxed);
        }
        Ok(self.inner.eventfd.load(Ordering::Relaxed))
    }

    /// Where this reader says how many of its reads sleep.
    fn set_sleeping_counter(&self, counter: Option<PyRef<'_, Counter>>) -> PyResult<()> {
        self.ensure_here()?;
        *lock(&self.inner.sleeping) = counter.map(|counter| counter.word());
        Ok(())
    }

    /// Whoever waits on the fileno shall look.
    fn wake(&self) -> PyResult<()> {
        self.ensure_here()?;
        self.inner.signal();
        Ok(())
    }

    fn needs_remap(&self) -> PyResult<bool> {
        self.ensure_here()?;
        Ok(lock(&self.inner.state).needs_remap)
    }

    fn counters(&self) -> PyResult<HashMap<&'static str, i128>> {
        self.ensure_here()?;
        Ok(lock(&self.inner.state).counters())
    }

    fn close(&self, py: Python<'_>) {
        py.detach(|| self.inner.close());
    }
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<FrameReader>()
}
