//! One frame in: open the slot, fill it, close it. Never waits for anybody.
use crate::commit::{self, BothFences};
use crate::copy;
use crate::error::{CoreError, Result};
use crate::failpoint::{self, Point};
use crate::header::{self, FrameInfo};
use crate::ring::{Pool, Ring};

/// A slot that is open for writing.
#[derive(Clone, Copy, Debug)]
pub struct OpenSlot {
    pub seq: u64,
    pub pool_id: u16,
    pub payload: *mut u8,
    pub length: usize,
}

// SAFETY: a pointer into a mapping that the holder keeps alive; who may write through it is the writer's lock's matter.
unsafe impl Send for OpenSlot {}

/// The producer's end of a ring. `next_seq` moves on when a frame is committed.
pub struct Writer {
    ring: Ring,
    next_seq: u64,
}

impl Writer {
    pub fn new(ring: Ring) -> Result<Self> {
        ring.ensure_writable()?;
        Ok(Self { ring, next_seq: 0 })
    }

    pub fn ring(&self) -> &Ring {
        &self.ring
    }

    pub fn next_seq(&self) -> u64 {
        self.next_seq
    }

    fn pool_for(&self, length: usize) -> Result<&Pool> {
        self.ring
            .pool_for(length)
            .ok_or(CoreError::FrameTooLarge { need_bytes: length as u64, largest_stride_bytes: self.ring.largest_stride_bytes() as u64 })
    }

    /// Open the next slot for `length` bytes: from here on readers refuse what it held.
    pub fn open(&self, length: usize) -> Result<OpenSlot> {
        let pool = self.pool_for(length)?;
        let seq = self.next_seq;
        if seq > commit::HIGHEST_SEQ {
            return Err(CoreError::argument("this epoch has used up its sequence numbers"));
        }
        failpoint::pass(Point::WriteBeforeInProgress)?;
        commit::begin::<BothFences>(self.ring.commit_word(seq), seq);
        failpoint::pass(Point::WriteAfterInProgress)?;
        Ok(OpenSlot { seq, pool_id: pool.id, payload: self.ring.payload(pool, seq), length })
    }

    /// Copy a whole payload into an open slot.
    ///
    /// # Safety
    /// `from` is readable for `slot.length` bytes, and the slot was opened by this writer.
    pub unsafe fn fill(&self, slot: &OpenSlot, from: *const u8) -> Result<()> {
        // split only while a test is watching
        let first = if failpoint::any_armed() { slot.length / 2 } else { slot.length };
        // SAFETY: `open` made sure that `length` bytes are inside the pool's slot, the caller vouches for the source.
        unsafe { copy::copy_in(from, slot.payload, first) };
        if failpoint::any_armed() {
            failpoint::pass(Point::WriteMidPayload)?;
            // SAFETY: the rest of the same two ranges.
            unsafe { copy::copy_in(from.add(first), slot.payload.add(first), slot.length - first) };
        }
        failpoint::pass(Point::WriteAfterPayload)
    }

    /// Write the header and close the slot: from here on readers may accept it.
    pub fn close(&mut self, slot: &OpenSlot, info: &FrameInfo) -> Result<u64> {
        let index = self.ring.index(slot.seq);
        let words = header::compose(info, slot.pool_id, index as u32);
        let shared = self.ring.slot(slot.seq);
        copy::store_words(&shared[1..], &words[1..]);
        failpoint::pass(Point::WriteAfterHeader)?;
        failpoint::pass(Point::WriteBeforeCommitted)?;
        commit::commit(&shared[0], slot.seq);
        self.next_seq = slot.seq + 1;
        failpoint::pass(Point::WriteAfterCommitted)?;
        Ok(slot.seq)
    }
}
