//! The reader's side of a measured run: every frame added up, compared, and counted when it was accepted.
use crate::payload::{PATTERNS, STAMP_WORDS, pattern_of, pattern_sum, sum};
use crate::source::Window;
use tensor_pool_core::clock::monotonic_ns;

#[derive(Clone, Copy)]
struct Seen {
    number: u64,
    is_whole: bool,
    latency_ns: u64,
    counts: bool,
}

/// What a reader has seen. A frame counts with the look at the next one, so that a borrowed one can be taken back until then.
pub struct Tally {
    nbytes: usize,
    expected: [u64; PATTERNS],
    window: Window,
    last: Option<Seen>,
    first_number: Option<u64>,
    last_number: u64,
    accepted: u64,
    wrong: u64,
    overwritten: u64,
    latencies_ns: Vec<u64>,
}

/// Longer runs keep the first of their latencies.
const LATENCIES_KEPT: usize = 1 << 16;

impl Tally {
    pub fn new(nbytes: usize) -> Self {
        Self {
            nbytes,
            expected: std::array::from_fn(|pattern| pattern_sum(pattern, nbytes / 8)),
            window: Window::default(),
            last: None,
            first_number: None,
            last_number: 0,
            accepted: 0,
            wrong: 0,
            overwritten: 0,
            latencies_ns: Vec::with_capacity(LATENCIES_KEPT),
        }
    }

    pub fn start(&mut self, window: Window) {
        self.window = window;
        self.last = None;
        self.first_number = None;
        (self.last_number, self.accepted, self.wrong, self.overwritten) = (0, 0, 0, 0);
        self.latencies_ns.clear();
    }

    pub fn is_over(&self) -> bool {
        monotonic_ns() >= self.window.end_ns
    }

    /// Add a frame up. False when the run is over.
    ///
    /// # Safety
    /// `payload` is aligned to words and readable for the length of a frame.
    pub unsafe fn check(&mut self, payload: *const u8) -> bool {
        let now_ns = monotonic_ns();
        // SAFETY: the caller vouches for the memory; a producer may write it meanwhile, and then `retract` follows.
        let words = unsafe { std::slice::from_raw_parts(payload.cast::<u64>(), self.nbytes / 8) };
        let (number, made_ns) = (words[0], words[1]);
        let behind_the_stamp = sum(&words[STAMP_WORDS..]);
        self.settle();
        self.last = Some(Seen {
            number,
            is_whole: behind_the_stamp == self.expected[pattern_of(number)],
            latency_ns: now_ns.saturating_sub(made_ns),
            counts: self.window.holds(now_ns),
        });
        now_ns < self.window.end_ns
    }

    /// The transport took the last frame back: it was overwritten while it was looked at.
    pub fn retract(&mut self) {
        self.overwritten += u64::from(self.last.take().is_some_and(|seen| seen.counts));
    }

    fn settle(&mut self) {
        let Some(seen) = self.last.take().filter(|seen| seen.counts) else { return };
        if !seen.is_whole {
            self.wrong += 1;
            return;
        }
        self.accepted += 1;
        self.first_number.get_or_insert(seen.number);
        self.last_number = seen.number;
        if self.latencies_ns.len() < LATENCIES_KEPT {
            self.latencies_ns.push(seen.latency_ns);
        }
    }

    /// Count the last frame too. No more are checked in this run.
    pub fn finish(&mut self) -> Counts {
        self.settle();
        self.latencies_ns.sort_unstable();
        let spanned = self.first_number.map_or(0, |first| self.last_number.wrapping_sub(first).wrapping_add(1));
        Counts {
            accepted: self.accepted,
            wrong: self.wrong,
            overwritten: self.overwritten,
            lost: spanned.saturating_sub(self.accepted),
            p50_ns: self.latency_at(50),
            p99_ns: self.latency_at(99),
        }
    }

    fn latency_at(&self, percent: usize) -> u64 {
        let index = (self.latencies_ns.len() * percent / 100).min(self.latencies_ns.len().saturating_sub(1));
        self.latencies_ns.get(index).copied().unwrap_or(0)
    }
}

/// What a run came to. `lost` are the frames between the first and the last that were not accepted, those taken back among them.
#[derive(Clone, Copy, Debug)]
pub struct Counts {
    pub accepted: u64,
    pub wrong: u64,
    pub overwritten: u64,
    pub lost: u64,
    pub p50_ns: u64,
    pub p99_ns: u64,
}
