//! A ring on its own, in files of a directory, every page there before the clock runs.
use std::error::Error;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tensor_pool_core::clock::monotonic_ns;
use tensor_pool_core::commit;
use tensor_pool_core::header::FrameInfo;
use tensor_pool_core::layout::{dtype, major_order, slot};
use tensor_pool_core::reader::{self, Located};
use tensor_pool_core::region::{Creation, Region};
use tensor_pool_core::ring::{Pool, Ring, SUPERBLOCK_LENGTH};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const SMALLEST_STRIDE: usize = 64;
const LARGEST_OUTSTANDING_GAP: u64 = 256;

/// How far apart slots lie: as far as those of a stream that the package makes (`tensor_pool.tensors.next_stride_bytes`).
pub fn stride_bytes(nbytes: usize) -> usize {
    nbytes.max(SMALLEST_STRIDE).next_power_of_two()
}

/// The payloads of a ring in a directory, where they are not those of another ring.
pub fn own_pool(directory: &Path) -> PathBuf {
    directory.join("pool")
}

/// Make the files of a ring and map them for writing. A pool that is there already belongs to another ring, and is written by both.
pub fn create(directory: &Path, pool: &Path, nbytes: usize, slots: usize) -> Result<Ring> {
    mapped(directory, pool, nbytes, slots, |path, length| {
        if path.exists() {
            return existing(path, length, true);
        }
        let (Some(base), Some(name)) = (path.parent(), path.file_name().and_then(OsStr::to_str)) else {
            return Err(format!("{} is no file's path", path.display()).into());
        };
        Ok(Region::create(base, name, Creation { length, mode: 0o600, reserve: true, hugepages: false })?)
    })
}

/// Map a ring that was made, for reading.
pub fn open(directory: &Path, pool: &Path, nbytes: usize, slots: usize) -> Result<Ring> {
    mapped(directory, pool, nbytes, slots, |path, length| existing(path, length, false))
}

fn existing(path: &Path, length: u64, writable: bool) -> Result<Region> {
    let path = path.canonicalize()?;
    let allowed = [path.parent().ok_or("a file lies in a directory")?.to_owned()];
    Ok(Region::open(path.to_str().ok_or("a path of bytes")?, &allowed, writable, length, false)?)
}

fn mapped(directory: &Path, pool: &Path, nbytes: usize, slots: usize, map: impl Fn(&Path, u64) -> Result<Region>) -> Result<Ring> {
    let stride_bytes = stride_bytes(nbytes);
    let lengths = [slots * slot::LENGTH, slots * stride_bytes].map(|length| (SUPERBLOCK_LENGTH + length) as u64);
    if !directory.is_dir() {
        return Err(format!("{} is no directory", directory.display()).into());
    }
    let header = map(&directory.join("header.ring"), lengths[0])?;
    let pool = map(pool, lengths[1])?;
    header.prefault()?;
    pool.prefault()?;
    Ok(Ring::new(Arc::new(header), vec![Pool { id: 1, stride_bytes, region: Arc::new(pool) }], slots as u64)?)
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

/// A reader without books. It keeps the rule of the package: more than min(256, slots / 2) behind, it goes to the newest.
pub struct Follower {
    ring: Ring,
    next: u64,
    gap: u64,
}

impl Follower {
    pub fn new(ring: Ring) -> Self {
        let gap = LARGEST_OUTSTANDING_GAP.min(ring.nslots() / 2);
        Self { ring, next: 0, gap }
    }

    /// What is in the ring now does not count.
    pub fn skip_old(&mut self) {
        self.next = self.ring.newest_committed().map_or(0, |seq| seq + 1);
    }

    /// The next frame, None while there is none.
    #[inline]
    pub fn following(&mut self) -> Option<Located> {
        loop {
            let ahead = commit::first_load(self.ring.commit_word(self.next + self.gap));
            if commit::is_committed(ahead) && commit::sequence(ahead) >= self.next + self.gap {
                self.next = self.ring.newest_committed().unwrap_or(self.next);
            }
            let word = commit::first_load(self.ring.commit_word(self.next));
            if commit::sequence(word) < self.next || !commit::is_committed(word) {
                return None;
            }
            let found = reader::locate(&self.ring, self.next);
            self.next += 1;
            if let Ok(located) = found {
                return Some(located);
            }
        }
    }

    /// Whether the frame was not overwritten so far.
    #[inline]
    pub fn is_still(&self, located: &Located) -> bool {
        reader::is_still(&self.ring, located.seq)
    }

    /// Copy a frame out. False when it was overwritten meanwhile.
    ///
    /// # Safety
    /// `into` is writable for the length of a frame of this ring.
    #[inline]
    pub unsafe fn copy(&self, located: &Located, into: *mut u8) -> bool {
        // SAFETY: the frame came from this ring; the caller vouches for the destination.
        unsafe { reader::copy_payload(&self.ring, located, into) }
    }
}
