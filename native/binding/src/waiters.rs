//! Who sleeps on a stream's slots, seen by its producer for the price of a load: every consumer owns an Aeron counter that says how many of its reads
//! sleep now, and how often one began to. A counter goes with its owner, so a dead consumer waits for nothing.
use std::ffi::{c_char, c_void};
use std::ptr::slice_from_raw_parts;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use libaeron_sys as sys;
use pyo3::prelude::*;
use tensor_pool_core::wait;

use crate::aeron::lock;
use crate::client::{AeronClient, Child, ClientInner, check_signals, is_closed};
use crate::counter::Counter;

/// Ours among the types that Aeron leaves to applications (1000 and more).
const TYPE_ID: i32 = 21_584;
const KEY_LENGTH: usize = 8;
/// With more consumers than this a needless wake (0.4 us) is cheaper than looking at everybody's counter.
const MOST_WATCHED: usize = 8;

type Key = [u8; KEY_LENGTH];

fn key(stream_id: u32, consumer_id: u32) -> Key {
    (u64::from(stream_id) << 32 | u64::from(consumer_id)).to_le_bytes()
}

/// The low bits of a counter: reads that sleep now. Above them: how many sleeps were begun, so that no two sleeps look alike.
const ASLEEP_BITS: u32 = 16;
/// What a read adds to its consumer's counter, and takes back when it wakes.
pub const BEGINS_TO_SLEEP: i64 = (1 << ASLEEP_BITS) + 1;
pub const IS_AWAKE: i64 = -1;
/// Wakes that found nobody while somebody said that it sleeps. A read sleeps on the slot that is written next, or on the one before it: it was there
/// for one of the first two. It was stopped, or killed, and is not asleep: it looks before it sleeps again.
const WAKES_IN_VAIN: u32 = 4;

struct Watched {
    words: Vec<*const AtomicI64>,
    /// What the counters added up to at the last wake that found nobody, and how many such there were in a row.
    in_vain: (i64, u32),
}

// SAFETY: aligned words in the mapped counters file; the lock around `Watched` decides until when they are mapped.
unsafe impl Send for Watched {}

/// None while somebody may sleep of whom nothing is known.
#[derive(Default)]
pub struct WaitersState(Mutex<Option<Watched>>);

impl WaitersState {
    /// Wake one read that sleeps on the word, where one sleeps or could. Whether that took a system call.
    pub fn wake(&self, slot: &AtomicU64) -> bool {
        let mut watched = lock(&self.0);
        let Some(watched) = watched.as_mut() else {
            wait::wake_first(slot);
            return true;
        };
        // SYNC POINT: after the commit and before the look. The reader says that it sleeps before it looks at the slot a last time, with this fence
        // in between: so either we see it, or it sees the frame. If ever neither did, it would wake by its own bound of 5 ms.
        fence(Ordering::SeqCst);
        let (mut sum, mut asleep) = (0_i64, false);
        for word in &watched.words {
            // SAFETY: `close` takes the words away before the client unmaps them.
            let value = unsafe { &**word }.load(Ordering::Relaxed);
            sum = sum.wrapping_add(value);
            asleep |= value & ((1 << ASLEEP_BITS) - 1) != 0;
        }
        let times = if watched.in_vain.0 == sum { watched.in_vain.1 } else { 0 };
        if !asleep || times >= WAKES_IN_VAIN {
            return false;
        }
        let found_somebody = wait::wake_first(slot);
        watched.in_vain = (sum, if found_somebody { 0 } else { times + 1 });
        true
    }
}

impl Child for WaitersState {
    fn close(&self) {
        *lock(&self.0) = None;
    }
}

/// The producer's look at the consumers of its stream.
#[pyclass(frozen, module = "tensor_pool._native")]
pub struct Waiters {
    client: Arc<ClientInner>,
    pub state: Arc<WaitersState>,
    child_id: u64,
    stream_id: u32,
}

#[pymethods]
impl Waiters {
    #[new]
    fn new(client: &AeronClient, stream_id: u32) -> Self {
        let (client, state) = (client.inner.clone(), Arc::<WaitersState>::default());
        Self { child_id: client.adopt(state.clone()), client, state, stream_id }
    }

    /// Find the counters of these consumers. When one has none, or they are many, somebody may always be asleep.
    fn watch(&self, py: Python<'_>, consumer_ids: Vec<u32>) -> PyResult<bool> {
        let wanted: Vec<Key> = consumer_ids.iter().map(|consumer_id| key(self.stream_id, *consumer_id)).collect();
        Ok(py.detach(|| {
            self.client.with_handle(|handle| {
                let words = if wanted.len() <= MOST_WATCHED && !is_closed(handle.client) {
                    // SAFETY: the client is open while `with_handle` runs.
                    unsafe { find(handle.client, &wanted) }
                } else {
                    None
                };
                // still inside `with_handle`: the client cannot close its children before the words are where it finds them
                let mut watched = lock(&self.state.0);
                *watched = words.map(|words| Watched { words, in_vain: (0, 0) });
                Ok(watched.is_some())
            })
        })?)
    }

    fn close(&self) {
        if self.client.is_here() {
            self.state.close();
            self.client.forget(self.child_id);
        }
    }
}

impl Drop for Waiters {
    fn drop(&mut self) {
        self.close();
    }
}

struct Search<'a> {
    wanted: &'a [Key],
    found: Vec<Option<i32>>,
}

/// The counters' words in the order of `wanted`. None when one is missing.
///
/// # Safety
/// The client is open during the call.
unsafe fn find(client: *mut sys::aeron_t, wanted: &[Key]) -> Option<Vec<*const AtomicI64>> {
    let mut search = Search { wanted, found: vec![None; wanted.len()] };
    // SAFETY: the reader belongs to the open client; the callback gets our search and only during the call.
    unsafe {
        let reader = sys::aeron_counters_reader(client);
        sys::aeron_counters_reader_foreach_counter(reader, Some(on_counter), (&raw mut search).cast());
        search.found.into_iter().map(|id| Some(sys::aeron_counters_reader_addr(reader, id?).cast_const().cast::<AtomicI64>())).collect()
    }
}

unsafe extern "C" fn on_counter(
    _value: i64,
    id: i32,
    type_id: i32,
    key: *const u8,
    key_length: usize,
    _label: *const c_char,
    _label_length: usize,
    clientd: *mut c_void,
) {
    if type_id != TYPE_ID || key_length < KEY_LENGTH {
        return;
    }
    // SAFETY: `clientd` is the search of `find`; the key has its length in the counters' metadata.
    let (search, key) = unsafe { (&mut *clientd.cast::<Search<'_>>(), &*slice_from_raw_parts(key, KEY_LENGTH)) };
    if let Some(index) = search.wanted.iter().position(|wanted| wanted == key) {
        search.found[index] = Some(id);
    }
}

/// A consumer's own counter, for its `FrameReader`.
#[pyfunction]
#[pyo3(signature = (client, stream_id, consumer_id, *, timeout_ns = 10_000_000_000))]
fn sleeping_counter(py: Python<'_>, client: &AeronClient, stream_id: u32, consumer_id: u32, timeout_ns: u64) -> PyResult<Counter> {
    let label = format!("tensor_pool: sleeping reads of consumer {consumer_id}, stream {stream_id}");
    let timeout = Duration::from_nanos(timeout_ns);
    Ok(py.detach(|| Counter::create(&client.inner, TYPE_ID, &key(stream_id, consumer_id), &label, timeout, &mut check_signals))?)
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Waiters>()?;
    module.add_function(wrap_pyfunction!(sleeping_counter, module)?)
}
