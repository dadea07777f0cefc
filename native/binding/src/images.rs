//! The images (one for each publication) of a client's subscriptions, as Aeron's conductor thread reports them.
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use libaeron_sys as sys;
use tensor_pool_core::clock::monotonic_ns;

use crate::aeron::lock;

/// Join times of images that went away are kept for messages of theirs that are still on their way through this process; no more than so many.
const GONE_IMAGES_KEPT: usize = 256;

/// The image records of a client. Aeron's conductor thread writes to them, so they stay until Aeron has let go of the subscription or is closed.
#[derive(Default)]
pub struct ImageRegistry {
    next: AtomicU64,
    tables: Mutex<HashMap<u64, Arc<ImageTable>>>,
}

impl ImageRegistry {
    pub fn register(self: &Arc<Self>) -> Arc<ImageTable> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let table = Arc::new(ImageTable { id, registry: Arc::downgrade(self), images: Mutex::default() });
        lock(&self.tables).insert(id, table.clone());
        table
    }

    pub fn clear(&self) {
        lock(&self.tables).clear();
    }
}

#[derive(Clone, Copy)]
struct ImageRecord {
    join_ns: u64,
    available: bool,
}

#[derive(Default)]
struct Images {
    records: HashMap<i32, ImageRecord>,
    /// For `take_unavailable`.
    reported_gone: Vec<i32>,
    /// Sessions whose half-assembled messages are to be thrown away by the next poll.
    assembly_gone: Vec<i32>,
}

impl Images {
    fn remove(&mut self, session_id: i32) {
        if let Some(record) = self.records.get_mut(&session_id) {
            record.available = false;
        }
        if self.reported_gone.len() < GONE_IMAGES_KEPT {
            self.reported_gone.push(session_id);
        } else {
            self.reported_gone.rotate_left(1);
            self.reported_gone[GONE_IMAGES_KEPT - 1] = session_id;
        }
        if !self.assembly_gone.contains(&session_id) {
            self.assembly_gone.push(session_id);
        }
        self.forget_oldest_gone();
    }

    fn forget_oldest_gone(&mut self) {
        let gone = self.records.iter().filter(|(_, record)| !record.available);
        if gone.clone().count() <= GONE_IMAGES_KEPT {
            return;
        }
        if let Some(oldest) = gone.min_by_key(|(_, record)| record.join_ns).map(|(session_id, _)| *session_id) {
            self.records.remove(&oldest);
        }
    }
}

pub struct ImageTable {
    id: u64,
    registry: Weak<ImageRegistry>,
    images: Mutex<Images>,
}

impl ImageTable {
    /// What Aeron's callbacks get. The table outlives them: see `ImageRegistry`.
    pub fn as_clientd(self: &Arc<Self>) -> *mut c_void {
        Arc::as_ptr(self) as *mut c_void
    }

    /// CLOCK_MONOTONIC when the image of this session became available. A session whose notice is still on its way joined just now.
    pub fn join_ns(&self, session_id: i32) -> u64 {
        let mut images = lock(&self.images);
        images.records.entry(session_id).or_insert_with(|| ImageRecord { join_ns: monotonic_ns(), available: false }).join_ns
    }

    /// (session id, join time) of every image there is, oldest first.
    pub fn available(&self) -> Vec<(i32, u64)> {
        let images = lock(&self.images);
        let available = images.records.iter().filter(|(_, record)| record.available);
        let mut rows: Vec<_> = available.map(|(session_id, record)| (*session_id, record.join_ns)).collect();
        rows.sort_by_key(|(_, join_ns)| *join_ns);
        rows
    }

    pub fn take_reported_gone(&self) -> Vec<i32> {
        std::mem::take(&mut lock(&self.images).reported_gone)
    }

    pub fn take_assembly_gone(&self) -> Vec<i32> {
        std::mem::take(&mut lock(&self.images).assembly_gone)
    }
}

fn session_of(image: *mut sys::aeron_image_t) -> Option<i32> {
    // SAFETY: all-zero bytes are a valid value of this struct of integers and pointers.
    let mut constants = unsafe { std::mem::zeroed::<sys::aeron_image_constants_t>() };
    // SAFETY: Aeron passes a live image to its callbacks.
    (unsafe { sys::aeron_image_constants(image, &mut constants) } == 0).then_some(constants.session_id)
}

pub unsafe extern "C" fn on_available(clientd: *mut c_void, _subscription: *mut sys::aeron_subscription_t, image: *mut sys::aeron_image_t) {
    // SAFETY: the registry keeps the table until Aeron has closed the subscription.
    let table = unsafe { &*clientd.cast::<ImageTable>() };
    if let Some(session_id) = session_of(image) {
        let record = ImageRecord { join_ns: monotonic_ns(), available: true };
        lock(&table.images).records.insert(session_id, record);
    }
}

pub unsafe extern "C" fn on_unavailable(
    clientd: *mut c_void,
    _subscription: *mut sys::aeron_subscription_t,
    image: *mut sys::aeron_image_t,
) {
    // SAFETY: as in `on_available`.
    let table = unsafe { &*clientd.cast::<ImageTable>() };
    if let Some(session_id) = session_of(image) {
        lock(&table.images).remove(session_id);
    }
}

pub unsafe extern "C" fn on_closed(clientd: *mut c_void) {
    let (id, registry) = {
        // SAFETY: as in `on_available`; this is the last time that Aeron uses the pointer.
        let table = unsafe { &*clientd.cast::<ImageTable>() };
        (table.id, table.registry.clone())
    };
    if let Some(registry) = registry.upgrade() {
        let last = lock(&registry.tables).remove(&id);
        drop(last);
    }
}
