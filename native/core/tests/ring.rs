//! A ring in one process: headers there and back, hostile headers, sleeping and waking, and threads that write and read as fast as they can.
#![cfg(not(loom))]

mod common;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::{Directory, Numbers, assert_sound, info, write};
use tensor_pool_core::commit;
use tensor_pool_core::header::{self, FrameInfo};
use tensor_pool_core::open::{Method, open_file_by};
use tensor_pool_core::reader::{self, Refusal};
use tensor_pool_core::ring::WORDS_PER_SLOT;
use tensor_pool_core::wait::{self, Awaited, Woken};

#[test]
fn what_was_composed_is_parsed_again() {
    let info = FrameInfo {
        dtype: 10,
        major_order: 2,
        ndims: 3,
        dims: [2, 3, 4, 0, 0, 0, 0, 0],
        values_len_bytes: 192,
        timestamp_ns: u64::MAX,
        meta_version: 9,
    };
    let fields = header::parse(&header::compose(&info, 65535, 6), 6).expect("our own");
    assert_eq!((fields.info, fields.pool_id, fields.payload_slot, fields.strides), (info, 65535, 6, None));
    assert!(header::parse(&header::compose(&info, 65535, 6), 5).is_err());
}

#[test]
fn of_a_million_hostile_headers_only_sound_ones_are_accepted() {
    let mut numbers = Numbers(0x9E37_79B9_7F4A_7C15);
    let good = header::compose(&info(24), 1, 3);
    let mut accepted = 0;
    for _ in 0..1_000_000 {
        let mut bytes: Vec<u8> = good.iter().flat_map(|word| word.to_le_bytes()).collect();
        let values = [0, 1, 2, 3, 4, 7, 8, 9, 10, 16, 24, 64, 192, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFF, numbers.next()];
        for _ in 0..numbers.next() % 6 {
            // any of the fields behind the commit word: the TensorHeader four times in five
            let offset = if numbers.next().is_multiple_of(5) { 8 + numbers.next() % 72 } else { 72 + numbers.next() % 72 } as usize;
            let width = numbers.one_of(&[1, 2, 4]) as usize;
            bytes[offset..offset + width].copy_from_slice(&numbers.one_of(&values).to_le_bytes()[..width]);
        }
        let mut words = [0; WORDS_PER_SLOT];
        for (word, chunk) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_le_bytes(chunk.try_into().expect("eight"));
        }
        if let Ok(fields) = header::parse(&words, 3) {
            accepted += 1;
            assert_sound(&fields);
        }
    }
    assert!(accepted > 10_000, "{accepted}");
}

#[test]
fn frames_are_whole_or_refused_while_a_thread_overwrites_them() {
    const WORDS: usize = 4096;
    let directory = Directory::new();
    let (mut writer, ring) = directory.ring(4, 8 * WORDS);
    let stop = Arc::new(AtomicBool::new(false));
    let told = stop.clone();
    let writing = std::thread::spawn(move || {
        while !told.load(Ordering::Relaxed) {
            let seq = writer.next_seq();
            write(&mut writer, &[seq; WORDS]);
        }
    });
    let (mut whole, mut refused) = (0_u64, 0_u64);
    let mut into = vec![0_u64; WORDS];
    let started = Instant::now();
    while started.elapsed() < Duration::from_millis(500) || whole < 100 || refused < 100 {
        assert!(started.elapsed() < Duration::from_secs(30), "{whole} whole, {refused} refused");
        let Some(newest) = ring.newest_committed() else { continue };
        let seq = newest.saturating_sub((whole + refused) % 4);
        let located = match reader::locate(&ring, seq) {
            Ok(located) => located,
            Err(Refusal::Invalid(rule)) => panic!("{rule:?}"),
            Err(_) => {
                refused += 1;
                continue;
            }
        };
        assert_eq!(located.length, 8 * WORDS);
        // SAFETY: the vector is that long, and the frame was located in this ring.
        if unsafe { reader::copy_payload(&ring, &located, into.as_mut_ptr().cast()) } {
            assert!(into.iter().all(|word| *word == seq), "torn");
            whole += 1;
        } else {
            refused += 1;
        }
    }
    stop.store(true, Ordering::Relaxed);
    writing.join().expect("no panic");
}

#[test]
fn the_writer_wakes_one_sleeper_and_each_wakes_the_next() {
    let directory = Directory::new();
    let (mut writer, ring) = directory.ring(4, 64);
    let ring = Arc::new(ring);
    let sleepers: Vec<_> = (0..5)
        .map(|_| {
            let sleeping = ring.clone();
            std::thread::spawn(move || {
                let Awaited { word, seen, .. } = wait::next_word(&sleeping, 0);
                if wait::sleep_on(word, seen, Duration::from_secs(20)) == Woken::ByOthers {
                    wait::pass_on(word);
                }
                commit::sequence(commit::first_load(word))
            })
        })
        .collect();
    std::thread::sleep(Duration::from_millis(50));
    write(&mut writer, &[1]);
    wait::wake_first(ring.commit_word(0));
    let started = Instant::now();
    for sleeper in sleepers {
        assert_eq!(sleeper.join().expect("no panic"), 0);
    }
    assert!(started.elapsed() < Duration::from_secs(10), "somebody slept until the end");
}

#[test]
fn a_sleep_ends_in_time_and_does_not_begin_on_a_word_that_changed() {
    let directory = Directory::new();
    let (mut writer, ring) = directory.ring(4, 64);
    write(&mut writer, &[1]);
    let Awaited { word, seen, .. } = wait::next_word(&ring, 1);
    let started = Instant::now();
    assert_eq!(wait::sleep_on(word, seen, Duration::from_millis(10)), Woken::LookAgain);
    assert!(started.elapsed() >= Duration::from_millis(10));
    assert_eq!(wait::sleep_on(word, seen + 2, Duration::from_secs(20)), Woken::LookAgain);
}

#[test]
fn a_reader_sleeps_on_the_first_slot_that_is_not_full() {
    let directory = Directory::new();
    let (mut writer, ring) = directory.ring(4, 64);
    let slot_of = |next_seq| {
        let awaited = wait::next_word(&ring, next_seq);
        (0..4).find(|seq| std::ptr::eq(awaited.word, ring.commit_word(*seq)))
    };
    assert_eq!(slot_of(0), Some(0));
    for _ in 0..6 {
        write(&mut writer, &[1]);
    }
    // 4 and 5 are in the slots 0 and 1, and 6 comes next
    assert_eq!(slot_of(0), Some(2));
    assert_eq!(slot_of(5), Some(2));
    assert_eq!(slot_of(6), Some(2));
    assert_eq!([0, 5, 6].map(|next_seq| wait::next_word(&ring, next_seq).seq), [6, 6, 6]);
    let _open = writer.open(8).expect("it fits");
    assert_eq!(slot_of(5), Some(2));
    // a ring whose words are all hostile ends the search too
    for seq in 0..4 {
        ring.commit_word(seq).store(commit::committed(commit::HIGHEST_SEQ - 3 + seq), Ordering::Relaxed);
    }
    assert!(slot_of(0).is_some());
}

#[test]
fn both_ways_of_opening_say_the_same() {
    let directory = Directory::new();
    let base = &directory.0;
    std::fs::create_dir(base.join("deep")).expect("new");
    std::fs::write(base.join("deep/file"), [7; 100]).expect("new");
    std::os::unix::fs::symlink("deep", base.join("link")).expect("new");
    std::os::unix::fs::symlink("deep/file", base.join("name")).expect("new");
    std::os::unix::fs::symlink("/etc", base.join("out")).expect("new");
    let cases = [
        ("deep/file", true),
        ("deep/./../deep//file", true),
        // realpath would go to the parent of what the link points to, or say that there is nothing
        ("link/../deep/file", false),
        ("out/../deep/file", false),
        ("missing/../deep/file", false),
        ("name/../deep/file", false),
        ("deep/file/../file", false),
        ("deep/../../../deep/file", false),
        ("deep", false),
        ("name", false),
        ("link/file", false),
        ("out/passwd", false),
        ("missing", false),
        ("../../etc/passwd", false),
        ("deep/file/", false),
        ("deep/file/more", false),
    ];
    for (relative, is_opened) in cases {
        for method in [Method::Openat2, Method::Walk] {
            for writable in [false, true] {
                let path = format!("{}/{relative}", base.display());
                let opened = open_file_by(method, &path, std::slice::from_ref(base), writable);
                assert_eq!(opened.is_ok(), is_opened, "{relative} {method:?}: {opened:?}");
                if let Ok(file) = opened {
                    assert_eq!((file.length, file.path.as_path()), (100, Path::new(&base.join("deep/file"))));
                }
            }
        }
    }
}
