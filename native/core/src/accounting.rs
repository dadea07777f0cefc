//! The books of one reader and epoch: every seq from the first to the last is delivered, skipped, a gap, late or invalid, and only one of them.
use std::collections::VecDeque;

/// A frame that was announced and not yet looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pending {
    pub seq: u64,
    pub timestamp_ns: Option<u64>,
    pub trace_id: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub delivered: u64,
    pub skipped: u64,
    pub gap: u64,
    pub late: u64,
    pub invalid: u64,
}

/// What happened to a frame that was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Delivered,
    Late,
    Invalid,
}

/// What `push` made of a seq.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pushed {
    Kept,
    /// From before this reader joined.
    BeforeFirst,
    /// Not above what came before: the producer started again without a new epoch, or is broken.
    WentBack,
}

/// The queue of announced frames and their books.
#[derive(Debug)]
pub struct Accounting {
    first_seq: u64,
    /// One past the last seq that is booked.
    next_booked: u64,
    /// One past the highest seq that was announced.
    next_announced: u64,
    /// Announced since the last booked one, kept or not.
    announced_since: u64,
    pending: VecDeque<Pending>,
    capacity: usize,
    max_outstanding_gap: u64,
    counts: Counts,
}

impl Accounting {
    pub fn new(first_seq: u64, capacity: usize, max_outstanding_gap: u64) -> Self {
        Self {
            first_seq,
            next_booked: first_seq,
            next_announced: first_seq,
            announced_since: 0,
            // a ring may claim 2^31 slots: the queue grows to what is really announced
            pending: VecDeque::with_capacity(capacity.min(1024)),
            capacity: capacity.max(1),
            max_outstanding_gap: max_outstanding_gap.max(1),
            counts: Counts::default(),
        }
    }

    /// Go on after the mapping was lost, with another one of the same epoch: what was announced and not taken will be a gap, and descriptors count
    /// from the last booked seq on.
    pub fn resume(&mut self, capacity: usize, max_outstanding_gap: u64) {
        self.pending.clear();
        self.announced_since = 0;
        self.next_announced = self.next_booked;
        self.capacity = capacity.max(1);
        self.max_outstanding_gap = max_outstanding_gap.max(1);
    }

    pub fn first_seq(&self) -> u64 {
        self.first_seq
    }

    pub fn next_booked(&self) -> u64 {
        self.next_booked
    }

    pub fn next_announced(&self) -> u64 {
        self.next_announced
    }

    pub fn counts(&self) -> Counts {
        self.counts
    }

    pub fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    pub fn push(&mut self, pending: Pending) -> Pushed {
        if pending.seq < self.next_announced {
            let nothing_came = self.next_announced == self.first_seq;
            return if nothing_came { Pushed::BeforeFirst } else { Pushed::WentBack };
        }
        if self.pending.len() == self.capacity {
            self.pending.pop_front();
        }
        self.pending.push_back(pending);
        self.next_announced = pending.seq + 1;
        self.announced_since += 1;
        Pushed::Kept
    }

    /// The next frame to look at; what lies between it and the last one is booked as a gap. A reader too far behind goes to the newest.
    pub fn take_next(&mut self) -> Option<Pending> {
        let newest = *self.pending.back()?;
        if newest.seq - self.next_booked >= self.max_outstanding_gap {
            self.pending.clear();
            return Some(self.book_up_to(newest, 0));
        }
        let next = self.pending.pop_front()?;
        Some(self.book_up_to(next, 0))
    }

    /// The newest frame; announced ones before it are booked as skipped, because the caller asked for that.
    pub fn take_newest(&mut self) -> Option<Pending> {
        let newest = *self.pending.back()?;
        self.pending.clear();
        Some(self.book_up_to(newest, self.announced_since - 1))
    }

    fn book_up_to(&mut self, taken: Pending, skipped: u64) -> Pending {
        let missing = taken.seq - self.next_booked;
        self.counts.skipped += skipped;
        self.counts.gap += missing - skipped;
        self.next_booked = taken.seq + 1;
        self.announced_since = self.pending.len() as u64;
        taken
    }

    /// The fate of the frame that was taken last, or of a lent one afterwards.
    pub fn book(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Delivered => self.counts.delivered += 1,
            Outcome::Late => self.counts.late += 1,
            Outcome::Invalid => self.counts.invalid += 1,
        }
    }

    /// A lent frame was overwritten while it was looked at.
    pub fn lent_was_late(&mut self) {
        self.counts.delivered -= 1;
        self.counts.late += 1;
    }

    /// A taken frame was not wanted after all (the caller's buffer is too small): it is next again.
    pub fn put_back(&mut self, pending: Pending) {
        self.pending.push_front(pending);
        self.next_booked = pending.seq;
        self.announced_since += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pending(seq: u64) -> Pending {
        Pending { seq, timestamp_ns: None, trace_id: 0 }
    }

    fn balance(books: &Accounting) -> bool {
        let counts = books.counts();
        counts.delivered + counts.skipped + counts.gap + counts.late + counts.invalid == books.next_booked() - books.first_seq()
    }

    #[test]
    fn what_was_never_announced_is_a_gap() {
        let mut books = Accounting::new(10, 8, 100);
        assert_eq!(books.push(pending(9)), Pushed::BeforeFirst);
        assert_eq!(books.push(pending(12)), Pushed::Kept);
        assert_eq!(books.push(pending(12)), Pushed::WentBack);
        assert_eq!(books.take_next().map(|taken| taken.seq), Some(12));
        books.book(Outcome::Delivered);
        assert_eq!(books.counts(), Counts { delivered: 1, gap: 2, ..Counts::default() });
        assert!(balance(&books));
    }

    #[test]
    fn the_newest_skips_what_was_announced_and_books_the_rest_as_gap() {
        let mut books = Accounting::new(0, 4, 100);
        for seq in [0, 1, 3, 4, 5, 6, 7] {
            books.push(pending(seq));
        }
        assert_eq!(books.take_newest().map(|taken| taken.seq), Some(7));
        books.book(Outcome::Late);
        assert_eq!(books.counts(), Counts { skipped: 6, gap: 1, late: 1, ..Counts::default() });
        assert!(balance(&books));
    }

    #[test]
    fn a_full_queue_keeps_the_newest() {
        let mut books = Accounting::new(0, 4, 100);
        for seq in 0..10 {
            books.push(pending(seq));
        }
        assert_eq!(books.take_next().map(|taken| taken.seq), Some(6));
        books.book(Outcome::Delivered);
        assert_eq!(books.counts().gap, 6);
        // 7, 8 and 9 are left: two of them are skipped now
        assert_eq!(books.take_newest().map(|taken| taken.seq), Some(9));
        books.book(Outcome::Delivered);
        assert_eq!(books.counts().skipped, 2);
        assert!(balance(&books));
    }

    #[test]
    fn a_reader_too_far_behind_goes_to_the_newest() {
        let mut books = Accounting::new(0, 64, 8);
        for seq in 0..9 {
            books.push(pending(seq));
        }
        assert_eq!(books.take_next().map(|taken| taken.seq), Some(8));
        books.book(Outcome::Delivered);
        assert_eq!(books.counts().gap, 8);
        assert!(balance(&books));
    }

    #[test]
    fn a_mapping_that_was_lost_and_won_back_goes_on_with_the_same_books() {
        let mut books = Accounting::new(5, 8, 1000);
        for seq in [5, 6, 7, 900] {
            books.push(pending(seq));
        }
        books.take_next();
        books.book(Outcome::Delivered);
        books.resume(4, 100);
        assert_eq!(books.take_next(), None);
        // neither what was announced before nor a descriptor from nowhere keeps the true ones out
        assert_eq!(books.push(pending(9)), Pushed::Kept);
        assert_eq!(books.push(pending(10)), Pushed::Kept);
        assert_eq!(books.take_newest().map(|taken| taken.seq), Some(10));
        books.book(Outcome::Delivered);
        assert_eq!(books.counts(), Counts { delivered: 2, skipped: 1, gap: 3, ..Counts::default() });
        assert_eq!((books.first_seq(), books.next_booked()), (5, 11));
        assert!(balance(&books));
    }

    #[test]
    fn a_lent_frame_moves_from_delivered_to_late_and_an_unwanted_one_is_next_again() {
        let mut books = Accounting::new(0, 8, 100);
        books.push(pending(0));
        books.push(pending(1));
        books.take_next();
        books.book(Outcome::Delivered);
        books.lent_was_late();
        let taken = books.take_next().expect("announced");
        books.put_back(taken);
        assert_eq!(books.take_next(), Some(taken));
        books.book(Outcome::Invalid);
        assert_eq!(books.counts(), Counts { late: 1, invalid: 1, ..Counts::default() });
        assert!(balance(&books));
    }
}
