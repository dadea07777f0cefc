//! What frames are filled with, and how a reader finds out whether it got all of one.
//!
//! A frame of pattern `k` is the words `mix(j + 8 k)`, but for the first two: its number and the time it was made. Patterns differ in every word, and
//! three of them go round: three divides no ring, so a slot never holds the same pattern twice in a row, and a frame that was not written, or only
//! half of it, does not add up.
use std::hint::black_box;

pub const PATTERNS: usize = 3;
/// Words by which a pattern lies behind the one before, so that all three can be windows into one piece of memory.
pub const SHIFT_WORDS: usize = 8;
/// The number of the frame, and the time it was made.
pub const STAMP_WORDS: usize = 2;

const fn mix(position: u64) -> u64 {
    let word = position.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word ^ (word >> 27)
}

pub const fn pattern_word(pattern: usize, index: usize) -> u64 {
    mix((index + SHIFT_WORDS * pattern) as u64)
}

pub const fn pattern_of(number: u64) -> usize {
    (number % PATTERNS as u64) as usize
}

/// Memory for all patterns of a frame of `words` words, on cache lines, and where each begins in it.
pub fn windows(words: usize) -> (Vec<u64>, [*mut u64; PATTERNS]) {
    let mut memory = vec![0_u64; words + SHIFT_WORDS * PATTERNS];
    let aligned = memory.as_ptr().align_offset(SHIFT_WORDS * 8);
    let starts = std::array::from_fn(|pattern| memory[aligned + SHIFT_WORDS * pattern..].as_mut_ptr());
    (memory, starts)
}

/// What the words behind the stamp of a frame of `words` words add up to.
pub fn pattern_sum(pattern: usize, words: usize) -> u64 {
    (STAMP_WORDS..words).fold(0, |sum: u64, index| sum.wrapping_add(pattern_word(pattern, index)))
}

#[inline(always)]
fn added_up(words: &[u64]) -> u64 {
    let (blocks, rest) = words.as_chunks::<32>();
    let mut sums = [0_u64; 32];
    for block in blocks {
        for (sum, word) in sums.iter_mut().zip(block) {
            *sum = sum.wrapping_add(*word);
        }
    }
    sums.iter().chain(rest).fold(0, |sum, word| sum.wrapping_add(*word))
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn added_up_avx2(words: &[u64]) -> u64 {
    added_up(words)
}

/// The sum of all words. The same code for everybody who is measured.
pub fn sum(words: &[u64]) -> u64 {
    // a producer may write these words meanwhile: the optimiser must not think that it has seen them before
    let words = black_box(words);
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has what the function was compiled for.
        return unsafe { added_up_avx2(words) };
    }
    added_up(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_is_of_every_word_once() {
        for length in [0, 1, 31, 32, 33, 1024, 1027] {
            let words: Vec<u64> = (0..length).map(|index| pattern_word(1, index as usize)).collect();
            let expected = words.iter().fold(0_u64, |sum, word| sum.wrapping_add(*word));
            assert_eq!(sum(&words), expected);
        }
    }

    #[test]
    fn patterns_differ_in_every_word() {
        for index in 0..4096 {
            let words: Vec<u64> = (0..PATTERNS).map(|pattern| pattern_word(pattern, index)).collect();
            assert!(words[0] != words[1] && words[1] != words[2] && words[0] != words[2]);
        }
    }
}
