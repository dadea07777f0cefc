//! The commit protocol under a model checker: `RUSTFLAGS="--cfg loom" cargo test --release -p tensor-pool-core --test commit_model`.
//!
//! Every execution that the C++11 memory model allows of one writer who reuses a slot and one reader is tried, on the very functions that move frames.
//! The three variants that lack a fence must be caught accepting a torn frame: a model that cannot fail would prove nothing.
#![cfg(loom)]

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;
use std::sync::atomic::{AtomicU64 as Tally, Ordering as TallyOrdering};
use tensor_pool_core::commit::controls::{NoFences, NoReaderFence, NoWriterFence};
use tensor_pool_core::commit::{self, BothFences, Fences};
use tensor_pool_core::copy::{load_words, store_words};

const SLOTS: u64 = 1;

struct Slot {
    word: AtomicU64,
    data: [AtomicU64; 2],
}

/// One writer writes the frames 1 and 2 over frame 0; one reader looks once. Returns whether a torn frame was accepted in some execution.
fn accepts_a_torn_frame<F: Fences + 'static>() -> bool {
    static TORN: Tally = Tally::new(0);
    static ACCEPTED: Tally = Tally::new(0);
    static EXECUTIONS: Tally = Tally::new(0);
    EXECUTIONS.store(0, TallyOrdering::Relaxed);
    TORN.store(0, TallyOrdering::Relaxed);
    ACCEPTED.store(0, TallyOrdering::Relaxed);
    loom::model(|| {
        EXECUTIONS.fetch_add(1, TallyOrdering::Relaxed);
        let slot = Arc::new(Slot { word: AtomicU64::new(commit::committed(0)), data: [AtomicU64::new(0), AtomicU64::new(0)] });
        let written = slot.clone();
        let writer = thread::spawn(move || {
            for seq in [SLOTS, 2 * SLOTS] {
                commit::begin::<F>(&written.word, seq);
                store_words(&written.data, &[seq, seq]);
                commit::commit(&written.word, seq);
            }
        });
        let first = commit::first_load(&slot.word);
        if commit::is_committed(first) {
            let mut copy = [u64::MAX; 2];
            load_words(&slot.data, &mut copy);
            if commit::recheck::<F>(&slot.word, first) {
                ACCEPTED.fetch_add(1, TallyOrdering::Relaxed);
                let seq = commit::sequence(first);
                if copy != [seq, seq] {
                    TORN.fetch_add(1, TallyOrdering::Relaxed);
                }
            }
        }
        writer.join().expect("the writer does not panic");
        assert_eq!(slot.word.load(Ordering::Relaxed), commit::committed(2 * SLOTS));
    });
    // `make faults` reads this line as figures of F2
    println!(
        "variant {} executions {} accepted {} torn {}",
        std::any::type_name::<F>().rsplit("::").next().expect("a name"),
        EXECUTIONS.load(TallyOrdering::Relaxed),
        ACCEPTED.load(TallyOrdering::Relaxed),
        TORN.load(TallyOrdering::Relaxed)
    );
    assert!(ACCEPTED.load(TallyOrdering::Relaxed) > 0, "a model in which nothing is ever accepted shows nothing");
    TORN.load(TallyOrdering::Relaxed) > 0
}

// One test: the tallies are shared, and loom's models are best run one after the other.
#[test]
fn only_both_fences_keep_torn_frames_out() {
    assert!(!accepts_a_torn_frame::<BothFences>(), "the protocol accepted a torn frame");
    assert!(accepts_a_torn_frame::<NoWriterFence>(), "without the writer's fence nothing went wrong");
    assert!(accepts_a_torn_frame::<NoReaderFence>(), "without the reader's fence nothing went wrong");
    assert!(accepts_a_torn_frame::<NoFences>(), "without any fence nothing went wrong");
}
