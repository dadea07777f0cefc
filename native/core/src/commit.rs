//! The commit protocol of a slot: who may believe which bytes, and when.
//!
//! One word a slot holds `seq << 1 | committed`. The writer announces its intent, writes, and commits; the reader loads the word, copies, and loads it
//! again. A plain release store and acquire load are not enough: the in-progress store does not keep later data stores behind it, and the second load
//! may be satisfied before the copies it is to vouch for. Both sides need a fence, and one of the two alone still accepts a torn read.
//!
//! ```text
//! writer                                  reader
//! store(IN_PROGRESS, Release)             first = load(Acquire)
//! fence(Release)            ----------+   copy
//! data                                |   fence(Acquire)
//! store(COMMITTED, Release) --+       +-> load(Acquire) == first
//!                             +---------> first = load(Acquire)
//! ```
//!
//! This file is what `tests/commit_model.rs` explores under loom, with the fences as written and with each of them left out.
use crate::sync::{AtomicU64, Ordering, fence};

/// Sequences have 63 bits; the last bit of the word says committed.
pub const HIGHEST_SEQ: u64 = u64::MAX >> 1;

pub const fn in_progress(seq: u64) -> u64 {
    seq << 1
}

pub const fn committed(seq: u64) -> u64 {
    (seq << 1) | 1
}

pub const fn sequence(word: u64) -> u64 {
    word >> 1
}

pub const fn is_committed(word: u64) -> bool {
    word & 1 == 1
}

/// Where the two fences stand. Everything but the model's negative controls uses [`BothFences`].
pub trait Fences {
    fn after_in_progress();
    fn before_recheck();
}

/// The protocol.
pub struct BothFences;

impl Fences for BothFences {
    #[inline(always)]
    fn after_in_progress() {
        // SYNC POINT: a reader that saw any data store after this fence, and then passed its acquire fence, also sees IN_PROGRESS.
        // Pairs with the fence in `before_recheck`.
        fence(Ordering::Release);
    }

    #[inline(always)]
    fn before_recheck() {
        // SYNC POINT: the copies stay before the second load, and take what the writer fenced with them.
        // Pairs with the fence in `after_in_progress`.
        fence(Ordering::Acquire);
    }
}

/// Open the slot for writing: from here on no reader accepts what it holds.
#[inline(always)]
pub fn begin<F: Fences>(word: &AtomicU64, seq: u64) {
    // SYNC POINT: everything the writer did with the slot's last frame stays before. The fence that follows is what keeps the new data behind.
    word.store(in_progress(seq), Ordering::Release);
    F::after_in_progress();
}

/// Close the slot: from here on readers may accept it.
#[inline(always)]
pub fn commit(word: &AtomicU64, seq: u64) {
    // SYNC POINT: publishes payload and header. Pairs with the acquire load in `first_load`.
    word.store(committed(seq), Ordering::Release);
}

/// The word before anything is copied.
#[inline(always)]
pub fn first_load(word: &AtomicU64) -> u64 {
    // SYNC POINT: when the word is committed, payload and header of that frame are visible. Pairs with the release store in `commit`.
    word.load(Ordering::Acquire)
}

/// Whether everything copied since `first_load` belongs to the frame it saw.
#[inline(always)]
pub fn recheck<F: Fences>(word: &AtomicU64, first: u64) -> bool {
    F::before_recheck();
    // SYNC POINT: acquire, so that a later use of the copies cannot be ahead of the verdict either.
    word.load(Ordering::Acquire) == first
}

/// Negative controls: each lacks a fence, and the model must find a torn read in each. Nothing else uses them.
#[cfg(any(loom, test))]
pub mod controls {
    use super::{BothFences, Fences};

    pub struct NoWriterFence;

    impl Fences for NoWriterFence {
        fn after_in_progress() {}

        fn before_recheck() {
            BothFences::before_recheck();
        }
    }

    pub struct NoReaderFence;

    impl Fences for NoReaderFence {
        fn after_in_progress() {
            BothFences::after_in_progress();
        }

        fn before_recheck() {}
    }

    pub struct NoFences;

    impl Fences for NoFences {
        fn after_in_progress() {}

        fn before_recheck() {}
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_last_bit_says_committed_and_the_rest_is_the_sequence() {
        for seq in [0, 1, 63, 1 << 40, HIGHEST_SEQ] {
            assert_eq!(sequence(in_progress(seq)), seq);
            assert_eq!(sequence(committed(seq)), seq);
            assert!(!is_committed(in_progress(seq)));
            assert!(is_committed(committed(seq)));
        }
    }

    #[test]
    fn a_reader_refuses_what_was_reopened_since() {
        let word = AtomicU64::new(0);
        begin::<BothFences>(&word, 4);
        assert!(!is_committed(first_load(&word)));
        commit(&word, 4);
        let first = first_load(&word);
        assert!(recheck::<BothFences>(&word, first));
        begin::<BothFences>(&word, 12);
        assert!(!recheck::<BothFences>(&word, first));
    }
}
