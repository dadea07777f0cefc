//! What the tests of the ring share.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tensor_pool_core::header::{self, FrameInfo, MAX_DIMS, element_bytes};
use tensor_pool_core::layout;
use tensor_pool_core::region::{Creation, Region};
use tensor_pool_core::ring::{Pool, Ring, SUPERBLOCK_LENGTH};
use tensor_pool_core::writer::Writer;

/// A directory in shared memory that goes away with everything in it.
pub struct Directory(pub PathBuf);

impl Directory {
    pub fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!("/dev/shm/tp-core-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        std::fs::create_dir(&name).expect("a new name");
        Self(PathBuf::from(name))
    }

    pub fn region(&self, name: &str, length: usize) -> Arc<Region> {
        let creation = Creation { length: length as u64, mode: 0o600, reserve: true, hugepages: false };
        Arc::new(Region::create(&self.0, name, creation).expect("space for a test"))
    }

    /// A writer and a reader's ring over the same files.
    pub fn ring(&self, nslots: usize, stride_bytes: usize) -> (Writer, Ring) {
        let header = self.region("header", SUPERBLOCK_LENGTH + nslots * layout::slot::LENGTH);
        let pool = self.region("pool", SUPERBLOCK_LENGTH + nslots * stride_bytes);
        let ring =
            || Ring::new(header.clone(), vec![Pool { id: 3, stride_bytes, region: pool.clone() }], nslots as u64).expect("a good ring");
        (Writer::new(ring()).expect("writable"), ring())
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub fn info(words: usize) -> FrameInfo {
    let mut dims = [0; MAX_DIMS];
    dims[0] = words as i32;
    let values_len_bytes = 8 * words as u32;
    FrameInfo { dtype: 7, major_order: 1, ndims: 1, dims, values_len_bytes, timestamp_ns: 1, meta_version: 2 }
}

pub fn write(writer: &mut Writer, words: &[u64]) -> u64 {
    let slot = writer.open(8 * words.len()).expect("it fits");
    // SAFETY: the slice is that long, and the slot was opened by this writer.
    unsafe { writer.fill(&slot, words.as_ptr().cast()) }.expect("no failpoint");
    writer.close(&slot, &info(words.len())).expect("no failpoint")
}

/// xorshift: the same numbers in every run.
pub struct Numbers(pub u64);

impl Numbers {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub fn one_of(&mut self, values: &[u64]) -> u64 {
        values[(self.next() % values.len() as u64) as usize]
    }
}

/// The extent once more, in numbers that cannot overflow.
pub fn assert_sound(fields: &header::SlotFields) {
    let info = fields.info;
    let ndims = usize::from(info.ndims);
    let element = i128::from(element_bytes(info.dtype).expect("a dtype"));
    let (mut span, mut end, mut is_empty) = (element, element, info.values_len_bytes == 0);
    for step in 0..ndims {
        let dimension = if info.major_order == 1 { ndims - 1 - step } else { step };
        let stride = fields.strides.map_or(span, |strides| i128::from(strides[dimension]));
        assert!(stride >= span && info.dims[dimension] >= 0, "{fields:?}");
        is_empty |= info.dims[dimension] == 0;
        let dim = i128::from(info.dims[dimension].max(1));
        end += (dim - 1) * stride;
        span = dim * stride;
    }
    assert!(is_empty || end <= i128::from(info.values_len_bytes), "{fields:?}");
}
