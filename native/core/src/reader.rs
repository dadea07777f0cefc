//! One frame out: what a slot says, checked on a copy, and its payload, believed only when the slot did not change meanwhile.
use crate::commit::{self, BothFences};
use crate::copy;
use crate::header::{self, InvalidHeader, SlotFields};
use crate::ring::{Ring, WORDS_PER_SLOT};

/// Why a frame that was announced is not delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The producer came round: the slot holds, or is about to hold, another frame.
    Late,
    /// Announced, and still in progress.
    NotCommitted,
    /// Committed, and its header breaks a rule.
    Invalid(InvalidHeader),
}

/// A frame whose header was accepted. Its payload is still to be copied, or looked at, and then `is_still` asked.
#[derive(Clone, Copy, Debug)]
pub struct Located {
    pub seq: u64,
    pub fields: SlotFields,
    pub payload: *const u8,
    pub length: usize,
}

// SAFETY: a pointer into a mapping that the holder keeps alive, only ever read through `copy`.
unsafe impl Send for Located {}
// SAFETY: as above.
unsafe impl Sync for Located {}

/// Find the frame `seq`: commit word, header copied, word again, and only then the copy parsed.
pub fn locate(ring: &Ring, seq: u64) -> Result<Located, Refusal> {
    let shared = ring.slot(seq);
    let first = commit::first_load(&shared[0]);
    if commit::sequence(first) != seq {
        return Err(Refusal::Late);
    }
    if !commit::is_committed(first) {
        return Err(Refusal::NotCommitted);
    }
    let mut words = [0; WORDS_PER_SLOT];
    copy::load_words(&shared[1..], &mut words[1..]);
    if !commit::recheck::<BothFences>(&shared[0], first) {
        return Err(Refusal::Late);
    }
    let fields = header::parse(&words, ring.index(seq)).map_err(Refusal::Invalid)?;
    let pool = ring.pool(fields.pool_id).ok_or(Refusal::Invalid(InvalidHeader("pool id")))?;
    let length = fields.info.values_len_bytes as usize;
    if length > pool.stride_bytes {
        return Err(Refusal::Invalid(InvalidHeader("payload longer than its slot")));
    }
    Ok(Located { seq, fields, payload: ring.payload(pool, seq), length })
}

/// Whether the slot holds that frame still; what was copied or seen of it before this call is then whole.
#[inline]
pub fn is_still(ring: &Ring, seq: u64) -> bool {
    commit::recheck::<BothFences>(ring.commit_word(seq), commit::committed(seq))
}

/// Copy the payload of a located frame. False when the slot changed: then `into` holds nothing of use.
///
/// # Safety
/// `into` is writable for `located.length` bytes; `located` came from this ring.
pub unsafe fn copy_payload(ring: &Ring, located: &Located, into: *mut u8) -> bool {
    if located.length > 0 {
        // SAFETY: `locate` made sure that the payload is inside its slot; the caller vouches for the destination.
        unsafe { copy::copy_out(located.payload, into, located.length) };
    }
    is_still(ring, located.seq)
}
