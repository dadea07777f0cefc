//! Sleeping on a slot's commit word, across processes, and waking whoever sleeps. Futexes are shared ones: they work on read-only mappings too.
//!
//! Waking a process takes the waker 10 to 25 us on a virtual machine, so the producer wakes one reader only, and whoever was woken wakes two more before
//! it does anything else: publishing takes the same time with one reader as with fifty. A reader that dies in between costs the others their bound of 5 ms.
use crate::commit;
use crate::ring::Ring;
use crate::sync::{AtomicU64, Ordering};
use std::time::Duration;

/// How a sleep ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    /// Somebody woke us: pass it on.
    ByOthers,
    /// The word changed before we slept, or the time is over: look again.
    LookAgain,
    /// A signal came: whoever owns the signal handlers must look at it.
    BySignal,
}

/// Where to sleep for the frame `next_seq`.
pub struct Awaited<'a> {
    pub word: &'a AtomicU64,
    /// The word as it was loaded.
    pub seen: u64,
    /// The seq that the word will have; more than `next_seq` where full slots were passed over.
    pub seq: u64,
}

/// The slot and the word to sleep on when the next frame is `next_seq`. Slots that hold a newer frame already are passed over: a descriptor that was
/// refused must not make a reader sleep on a full slot.
pub fn next_word(ring: &Ring, next_seq: u64) -> Awaited<'_> {
    let mut seq = next_seq;
    for _ in 0..ring.nslots() {
        let word = commit::first_load(ring.commit_word(seq));
        let is_full = commit::is_committed(word) && commit::sequence(word) >= seq;
        if !is_full {
            return Awaited { word: ring.commit_word(seq), seen: word, seq };
        }
        seq = commit::sequence(word) + 1;
    }
    Awaited { word: ring.commit_word(seq), seen: ring.commit_word(seq).load(Ordering::Relaxed), seq }
}

/// Sleep until the word's low half is no longer that of `seen`, at most `longest`.
pub fn sleep_on(word: &AtomicU64, seen: u64, longest: Duration) -> Woken {
    let timeout = libc::timespec { tv_sec: longest.as_secs() as libc::time_t, tv_nsec: longest.subsec_nanos().into() };
    // SAFETY: an aligned word that outlives the call; little-endian, so its low half comes first.
    let code = unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, seen as u32, &raw const timeout, std::ptr::null::<u32>(), 0)
    };
    if code == 0 {
        return Woken::ByOthers;
    }
    if std::io::Error::last_os_error().raw_os_error() == Some(libc::EINTR) {
        return Woken::BySignal;
    }
    Woken::LookAgain
}

/// Wake one of those who sleep on the word. Whether anybody did; 0.4 us when nobody does.
pub fn wake_first(word: &AtomicU64) -> bool {
    wake(word, 1) > 0
}

/// For whoever was woken: wake the next ones.
pub fn pass_on(word: &AtomicU64) {
    wake(word, 2);
}

fn wake(word: &AtomicU64, count: i32) -> libc::c_long {
    // SAFETY: an aligned word that outlives the call.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, count) }
}
