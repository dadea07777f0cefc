//! The writer's side of a measured run: the next frame, at its time, until the run is over.
use crate::payload::{PATTERNS, STAMP_WORDS, pattern_of, pattern_word};
use std::time::Duration;
use tensor_pool_core::clock::monotonic_ns;

/// When a run counts: from `begin_ns` to `end_ns`. What comes before is warming up.
#[derive(Clone, Copy, Debug, Default)]
pub struct Window {
    pub begin_ns: u64,
    pub end_ns: u64,
}

impl Window {
    pub fn holds(&self, now_ns: u64) -> bool {
        (self.begin_ns..self.end_ns).contains(&now_ns)
    }
}

/// Three payloads and whose turn it is.
pub struct Source {
    payloads: [*mut u64; PATTERNS],
    next_number: u64,
    pub window: Window,
    interval_ns: u64,
    due_ns: u64,
    offered: u64,
}

impl Source {
    /// Fill `payloads` with their patterns.
    ///
    /// # Safety
    /// Each points to `words` writable words that outlive this; they may overlap as windows that lie `SHIFT_WORDS` apart.
    pub unsafe fn new(payloads: [*mut u64; PATTERNS], words: usize) -> Self {
        for (pattern, payload) in payloads.iter().enumerate() {
            for index in 0..words {
                // SAFETY: the caller vouches for `words` words.
                unsafe { payload.add(index).write(pattern_word(pattern, index)) };
            }
        }
        Self { payloads, next_number: 0, window: Window::default(), interval_ns: 0, due_ns: 0, offered: 0 }
    }

    /// Begin a run: as fast as possible, or `rate_hz` frames a second.
    pub fn start(&mut self, window: Window, rate_hz: u64) {
        self.window = window;
        self.interval_ns = 1_000_000_000_u64.checked_div(rate_hz).unwrap_or(0);
        self.due_ns = if rate_hz == 0 { 0 } else { monotonic_ns() + self.interval_ns };
        self.offered = 0;
    }

    /// When the next frame is due, 0 for at once.
    pub fn due_ns(&self) -> u64 {
        self.due_ns
    }

    /// The pattern whose turn it is, stamped; None when the run is over. Called when it is due.
    pub fn advance(&mut self) -> Option<usize> {
        self.advance_until(self.window.end_ns)
    }

    /// The same, None from `end_ns` on: with the beginning of the window the frames that do not count yet.
    pub fn advance_until(&mut self, end_ns: u64) -> Option<usize> {
        let now_ns = monotonic_ns();
        if now_ns >= end_ns {
            return None;
        }
        if self.interval_ns > 0 {
            // a late frame does not make those after it come in a burst
            self.due_ns = now_ns.max(self.due_ns) + self.interval_ns;
        }
        let number = self.next_number;
        let pattern = pattern_of(number);
        // SAFETY: the first words of payloads that `new` was given.
        unsafe {
            // windows overlap: the stamp of the last frame lies inside this one
            let last = pattern_of(number + PATTERNS as u64 - 1);
            for index in 0..STAMP_WORDS {
                self.payloads[last].add(index).write(pattern_word(last, index));
            }
            self.payloads[pattern].write(number);
            self.payloads[pattern].add(1).write(now_ns);
        }
        self.next_number += 1;
        self.offered += u64::from(self.window.holds(now_ns));
        Some(pattern)
    }

    /// Frames offered while the run counted.
    pub fn offered(&self) -> u64 {
        self.offered
    }
}

pub fn sleep_until(due_ns: u64) {
    if due_ns == 0 {
        return;
    }
    let left_ns = due_ns.saturating_sub(monotonic_ns());
    if left_ns > 0 {
        std::thread::sleep(Duration::from_nanos(left_ns));
    }
}
