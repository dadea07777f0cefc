//! Where slots are: a header ring and its payload pools, checked for size once.
use crate::commit;
use crate::error::{CoreError, Result};
use crate::layout::{shm_region_superblock, slot};
use crate::region::Region;
use crate::sync::AtomicU64;
use std::sync::Arc;

pub const SUPERBLOCK_LENGTH: usize = shm_region_superblock::BLOCK_LENGTH;
pub const WORDS_PER_SLOT: usize = slot::LENGTH / 8;

pub struct Pool {
    pub id: u16,
    pub stride_bytes: usize,
    pub region: Arc<Region>,
}

/// Pools are in order of stride.
pub struct Ring {
    header: Arc<Region>,
    pools: Vec<Pool>,
    nslots: u64,
}

impl Ring {
    pub fn new(header: Arc<Region>, mut pools: Vec<Pool>, nslots: u64) -> Result<Self> {
        if !nslots.is_power_of_two() || nslots > u64::from(u32::MAX) {
            return Err(CoreError::argument(format!("a ring has a power of two of slots, not {nslots}")));
        }
        let slots = usize::try_from(nslots).map_err(|_| CoreError::argument("too many slots"))?;
        ensure_length(&header, slots, slot::LENGTH)?;
        pools.sort_by_key(|pool| pool.stride_bytes);
        for (index, pool) in pools.iter().enumerate() {
            if pool.stride_bytes == 0 || !pool.stride_bytes.is_multiple_of(64) {
                return Err(CoreError::argument(format!("a stride is a multiple of 64 bytes, not {}", pool.stride_bytes)));
            }
            if pools[..index].iter().any(|other| other.id == pool.id) {
                return Err(CoreError::argument(format!("pool {} is there twice", pool.id)));
            }
            ensure_length(&pool.region, slots, pool.stride_bytes)?;
        }
        if pools.is_empty() {
            return Err(CoreError::argument("a ring needs a payload pool"));
        }
        Ok(Self { header, pools, nslots })
    }

    pub fn ensure_writable(&self) -> Result<()> {
        self.header.ensure_writable()?;
        self.pools.iter().try_for_each(|pool| pool.region.ensure_writable())
    }

    pub fn nslots(&self) -> u64 {
        self.nslots
    }

    #[inline]
    pub fn index(&self, seq: u64) -> usize {
        (seq & (self.nslots - 1)) as usize
    }

    /// The 32 words of the slot of `seq`; the first is the commit word.
    #[inline]
    pub fn slot(&self, seq: u64) -> &[AtomicU64] {
        let offset = SUPERBLOCK_LENGTH + self.index(seq) * slot::LENGTH;
        self.header.mapping().words(offset, WORDS_PER_SLOT).expect("the length was checked")
    }

    #[inline]
    pub fn commit_word(&self, seq: u64) -> &AtomicU64 {
        &self.slot(seq)[0]
    }

    pub fn largest_stride_bytes(&self) -> usize {
        self.pools.last().map_or(0, |pool| pool.stride_bytes)
    }

    /// The pool with the smallest stride that takes `length` bytes.
    pub fn pool_for(&self, length: usize) -> Option<&Pool> {
        self.pools.iter().find(|pool| pool.stride_bytes >= length)
    }

    pub fn pool(&self, id: u16) -> Option<&Pool> {
        self.pools.iter().find(|pool| pool.id == id)
    }

    /// The payload of the slot of `seq` in `pool`.
    #[inline]
    pub fn payload(&self, pool: &Pool, seq: u64) -> *mut u8 {
        let offset = SUPERBLOCK_LENGTH + self.index(seq) * pool.stride_bytes;
        pool.region.mapping().pointer(offset, pool.stride_bytes).expect("the length was checked")
    }

    /// The highest sequence that is committed now, None for a ring nobody wrote.
    pub fn newest_committed(&self) -> Option<u64> {
        newest_committed(&self.header, self.nslots).expect("the length was checked")
    }
}

pub fn newest_committed(header: &Region, nslots: u64) -> Result<Option<u64>> {
    ensure_length(header, nslots as usize, slot::LENGTH)?;
    let mut newest = None;
    for index in 0..nslots as usize {
        let words = header.mapping().words(SUPERBLOCK_LENGTH + index * slot::LENGTH, 1).expect("the length was checked");
        let word = commit::first_load(&words[0]);
        // a slot may only hold the seqs of its index
        if commit::is_committed(word) && commit::sequence(word) & (nslots - 1) == index as u64 {
            newest = newest.max(Some(commit::sequence(word)));
        }
    }
    Ok(newest)
}

fn ensure_length(region: &Region, slots: usize, stride: usize) -> Result<()> {
    let need = slots.checked_mul(stride).and_then(|bytes| bytes.checked_add(SUPERBLOCK_LENGTH));
    match need {
        Some(need) if need <= region.mapping().length() => Ok(()),
        _ => Err(CoreError::region(
            region.path(),
            format!("{} has {} bytes: too short for {slots} slots of {stride} bytes", region.path().display(), region.mapping().length()),
        )),
    }
}
