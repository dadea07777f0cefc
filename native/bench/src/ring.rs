//! A ring on its own, in files of a directory, every page there before the clock runs.
use std::error::Error;
use std::path::Path;
use std::sync::Arc;

use tensor_pool_core::clock::monotonic_ns;
use tensor_pool_core::header::FrameInfo;
use tensor_pool_core::layout::{dtype, major_order, slot};
use tensor_pool_core::region::{Creation, Region};
use tensor_pool_core::ring::{Pool, Ring, SUPERBLOCK_LENGTH};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Make the files of a ring and map them for writing.
pub fn create(directory: &Path, nbytes: usize, slots: usize) -> Result<Ring> {
    mapped(directory, nbytes, slots, |name, length| {
        Ok(Region::create(directory, name, Creation { length, mode: 0o600, reserve: true, hugepages: false })?)
    })
}

/// Map a ring that was made, for reading.
pub fn open(directory: &Path, nbytes: usize, slots: usize) -> Result<Ring> {
    let allowed = [directory.canonicalize()?];
    mapped(directory, nbytes, slots, |name, length| {
        let path = allowed[0].join(name);
        Ok(Region::open(path.to_str().ok_or("a path of bytes")?, &allowed, false, length, false)?)
    })
}

fn mapped(directory: &Path, nbytes: usize, slots: usize, map: impl Fn(&str, u64) -> Result<Region>) -> Result<Ring> {
    let lengths = [slots * slot::LENGTH, slots * nbytes].map(|length| (SUPERBLOCK_LENGTH + length) as u64);
    if !directory.is_dir() {
        return Err(format!("{} is no directory", directory.display()).into());
    }
    let header = map("header.ring", lengths[0])?;
    let pool = map("pool", lengths[1])?;
    header.prefault()?;
    pool.prefault()?;
    Ok(Ring::new(Arc::new(header), vec![Pool { id: 1, stride_bytes: nbytes, region: Arc::new(pool) }], slots as u64)?)
}

/// The header of a frame of 64-bit words, taken now.
pub fn frame_info(nbytes: usize) -> Result<FrameInfo> {
    let mut dims = [0; 8];
    dims[0] = i32::try_from(nbytes / 8)?;
    Ok(FrameInfo {
        dtype: dtype::UINT64,
        major_order: major_order::ROW,
        ndims: 1,
        dims,
        values_len_bytes: u32::try_from(nbytes)?,
        timestamp_ns: monotonic_ns(),
        meta_version: 0,
    })
}
