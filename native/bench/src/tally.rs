//! The reader's side of a measured run: every frame added up, compared, and counted when it was accepted.
use crate::payload::{PATTERNS, STAMP_WORDS, pattern_of, pattern_sum, sum};
use crate::source::Window;
use tensor_pool_core::clock::monotonic_ns;

#[derive(Clone, Copy)]
struct Seen {
    number: u64,
    made_ns: u64,
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
    /// The last one of this run that was right, whether it counted or not: those that follow were made after it.
    newest: Option<Seen>,
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
            newest: None,
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
        (self.last, self.newest, self.first_number) = (None, None, None);
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
            made_ns,
            is_whole: behind_the_stamp == self.expected[pattern_of(number)] && made_ns <= now_ns,
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
        let Some(seen) = self.last.take() else { return };
        // a frame that came before, or came twice, adds up all the same
        let follows = self.newest.is_none_or(|newest| seen.number > newest.number && seen.made_ns >= newest.made_ns);
        if !seen.is_whole || !follows {
            self.wrong += 1;
            return;
        }
        self.newest = Some(seen);
        if !seen.counts {
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
        let total_ns: u64 = self.latencies_ns.iter().sum();
        Counts {
            accepted: self.accepted,
            wrong: self.wrong,
            overwritten: self.overwritten,
            // every accepted number is above the one before: there are no more of them than numbers between the first and the last
            lost: self.first_number.map_or(0, |first| self.last_number - first + 1 - self.accepted),
            p50_ns: self.latency_at(50),
            p99_ns: self.latency_at(99),
            mean_ns: total_ns / (self.latencies_ns.len() as u64).max(1),
        }
    }

    fn latency_at(&self, percent: usize) -> u64 {
        let index = (self.latencies_ns.len() * percent / 100).min(self.latencies_ns.len().saturating_sub(1));
        self.latencies_ns.get(index).copied().unwrap_or(0)
    }
}

/// What a run came to. `lost` are the frames between the first and the last that were not accepted, those taken back among them. `wrong` are also
/// those that did not count: words that do not add up, or a number or time that does not follow the ones before.
#[derive(Clone, Copy, Debug)]
pub struct Counts {
    pub accepted: u64,
    pub wrong: u64,
    pub overwritten: u64,
    pub lost: u64,
    pub p50_ns: u64,
    pub p99_ns: u64,
    pub mean_ns: u64,
}

impl Counts {
    /// As they go to the coordinator.
    pub fn named(&self) -> [(&'static str, u64); 7] {
        [
            ("accepted", self.accepted),
            ("wrong", self.wrong),
            ("overwritten", self.overwritten),
            ("lost", self.lost),
            ("p50_ns", self.p50_ns),
            ("p99_ns", self.p99_ns),
            ("mean_ns", self.mean_ns),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::payload::pattern_word;

    const WORDS: usize = 64;

    fn frame(number: u64, made_ns: u64) -> Vec<u64> {
        let mut words: Vec<u64> = (0..WORDS).map(|index| pattern_word(pattern_of(number), index)).collect();
        (words[0], words[1]) = (number, made_ns);
        words
    }

    fn counts_of(frames: &[Vec<u64>]) -> Counts {
        let mut tally = Tally::new(WORDS * 8);
        tally.start(Window { begin_ns: 0, end_ns: u64::MAX });
        for words in frames {
            // SAFETY: a frame of that length.
            assert!(unsafe { tally.check(words.as_ptr().cast()) });
        }
        tally.finish()
    }

    #[test]
    fn frames_between_two_that_came_are_lost() {
        let counts = counts_of(&[frame(7, 1), frame(8, 2), frame(12, 3)]);
        assert_eq!((counts.accepted, counts.wrong, counts.lost), (3, 0, 3));
    }

    #[test]
    fn a_frame_that_comes_twice_is_wrong() {
        let counts = counts_of(&[frame(7, 1), frame(7, 1), frame(9, 2)]);
        assert_eq!((counts.accepted, counts.wrong, counts.lost), (2, 1, 1));
    }

    #[test]
    fn a_frame_that_comes_after_a_later_one_is_wrong() {
        let counts = counts_of(&[frame(7, 1), frame(9, 3), frame(8, 2)]);
        assert_eq!((counts.accepted, counts.wrong, counts.lost), (2, 1, 1));
    }

    #[test]
    fn a_time_that_goes_back_or_is_to_come_is_wrong() {
        let counts = counts_of(&[frame(7, 5), frame(8, 4), frame(9, u64::MAX)]);
        assert_eq!((counts.accepted, counts.wrong), (1, 2));
    }

    #[test]
    fn a_word_that_changed_is_wrong() {
        let mut torn = frame(8, 2);
        torn[WORDS - 1] ^= 1;
        assert_eq!(counts_of(&[frame(7, 1), torn]).wrong, 1);
    }

    #[test]
    fn a_frame_from_before_the_window_is_no_repetition_but_what_repeats_it_is() {
        let mut tally = Tally::new(WORDS * 8);
        tally.start(Window { begin_ns: u64::MAX, end_ns: u64::MAX });
        let lead = frame(7, 1);
        for _ in 0..2 {
            // SAFETY: a frame of that length.
            unsafe { tally.check(lead.as_ptr().cast()) };
        }
        let counts = tally.finish();
        assert_eq!((counts.accepted, counts.wrong), (0, 1));
    }
}
