//! What every frame passes, under damaged bytes: descriptors as they come from Aeron, and slots as they lie in shared memory.
//!
//! `HOSTILE_INPUTS` says how many of each, `HOSTILE_SEED` where the numbers begin, `HOSTILE_ANSWERS` names a file of known answers (`descriptor HEX` or
//! `slot HEX` a line). Experiment F14 runs this under AddressSanitizer.
#![cfg(not(loom))]

mod common;

use common::{Directory, Numbers, assert_sound, info};
use tensor_pool_core::commit;
use tensor_pool_core::copy;
use tensor_pool_core::descriptor::{self, Descriptor, Received};
use tensor_pool_core::header;
use tensor_pool_core::layout;
use tensor_pool_core::reader;
use tensor_pool_core::ring::WORDS_PER_SLOT;

const STRIDE_BYTES: usize = 4096;
const ODD: [u64; 12] =
    [0, 1, 7, 8, 255, 256, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFF, STRIDE_BYTES as u64, STRIDE_BYTES as u64 + 1, u64::MAX];

fn setting(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |text| text.parse().expect("a number"))
}

fn inputs() -> u64 {
    setting("HOSTILE_INPUTS", 20_000)
}

fn numbers() -> Numbers {
    Numbers(setting("HOSTILE_SEED", 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
}

/// The known answers of that kind, or `own` where none are given.
fn answers(kind: &str, own: Vec<u8>) -> Vec<Vec<u8>> {
    let Ok(path) = std::env::var("HOSTILE_ANSWERS") else { return vec![own] };
    let text = std::fs::read_to_string(path).expect("the file of known answers");
    let bytes_of = |hex: &str| (0..hex.len() / 2).map(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).expect("hex")).collect();
    let found: Vec<Vec<u8>> =
        text.lines().filter_map(|line| line.split_once(' ')).filter(|(name, _)| *name == kind).map(|(_, hex)| bytes_of(hex)).collect();
    assert!(!found.is_empty(), "no known answer of a {kind}");
    found
}

/// A few fields overwritten, bits flipped, or the end cut off.
fn damage(numbers: &mut Numbers, from: &[Vec<u8>], may_cut: bool) -> Vec<u8> {
    let mut bytes = from[numbers.next() as usize % from.len()].clone();
    for _ in 0..numbers.next() % 5 {
        if bytes.is_empty() {
            break;
        }
        let at = numbers.next() as usize % bytes.len();
        match numbers.next() % 6 {
            0 if may_cut => bytes.truncate(at),
            1 | 2 => bytes[at] ^= 1 << (numbers.next() % 8),
            3 => bytes[at] = numbers.next() as u8,
            _ => {
                let width = [1, 2, 4, 8][numbers.next() as usize % 4].min(bytes.len() - at);
                bytes[at..at + width].copy_from_slice(&numbers.one_of(&ODD).to_le_bytes()[..width]);
            }
        }
    }
    // exactly as long as the message: what is read behind its end is somebody else's
    bytes.shrink_to_fit();
    bytes
}

fn words_of(bytes: &[u8]) -> [u64; WORDS_PER_SLOT] {
    let mut words = [0; WORDS_PER_SLOT];
    for (word, chunk) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
        *word = u64::from_le_bytes(*chunk);
    }
    words
}

fn slot_answers() -> Vec<Vec<u8>> {
    let own = header::compose(&info(24), 3, 0).iter().flat_map(|word| word.to_le_bytes()).collect();
    let mut found = answers("slot", own);
    for bytes in &mut found {
        bytes.resize(8 * WORDS_PER_SLOT, 0);
        // of the ring of these tests: otherwise nearly every one would be refused at once
        bytes[layout::slot_header::PAYLOAD_SLOT_OFFSET..][..4].copy_from_slice(&0_u32.to_le_bytes());
        bytes[layout::slot_header::POOL_ID_OFFSET..][..2].copy_from_slice(&3_u16.to_le_bytes());
    }
    found
}

#[test]
fn a_damaged_descriptor_is_a_descriptor_another_message_or_malformed() {
    let good = Descriptor { stream_id: 7, epoch: 1 << 40, seq: 9, timestamp_ns: Some(5), meta_version: 2, trace_id: 0 };
    let from = answers("descriptor", good.encode().to_vec());
    let (mut numbers, mut descriptors, mut others, mut malformed) = (numbers(), 0_u64, 0_u64, 0_u64);
    for _ in 0..inputs() {
        let bytes = damage(&mut numbers, &from, true);
        match descriptor::decode(&bytes) {
            Received::Descriptor(found) => {
                descriptors += 1;
                assert_eq!(descriptor::decode(&found.encode()), Received::Descriptor(found), "{bytes:?}");
            }
            Received::Other => others += 1,
            Received::Malformed => malformed += 1,
        }
    }
    println!("hostile descriptor inputs {} accepted {descriptors} refused {}", inputs(), others + malformed);
    assert!(descriptors > 0 && others > 0 && malformed > 0);
}

#[test]
fn a_damaged_slot_is_refused_or_its_payload_lies_in_its_slot() {
    let directory = Directory::new();
    let (_, ring) = directory.ring(1, STRIDE_BYTES);
    let from = slot_answers();
    let (mut numbers, mut accepted, mut refused) = (numbers(), 0_u64, 0_u64);
    for seq in 0..inputs() {
        let words = words_of(&damage(&mut numbers, &from, false));
        copy::store_words(&ring.slot(seq)[1..], &words[1..]);
        commit::commit(ring.commit_word(seq), seq);
        let Ok(located) = reader::locate(&ring, seq) else {
            refused += 1;
            continue;
        };
        accepted += 1;
        assert_sound(&located.fields);
        assert!(located.length <= STRIDE_BYTES);
        let mut into = vec![0_u8; located.length];
        // SAFETY: the vector has that length, and the frame was located in this ring.
        assert!(unsafe { reader::copy_payload(&ring, &located, into.as_mut_ptr()) });
    }
    println!("hostile slot inputs {} accepted {accepted} refused {refused}", inputs());
    assert!(accepted > 0 && refused > 0);
}

/// Run by F14 alone, which wants to see it caught: a sanitizer that sees nothing shows nothing.
#[test]
#[ignore = "reads behind the end of its memory on purpose"]
fn a_sanitizer_sees_a_read_behind_the_end() {
    let bytes = Box::new([1_u8; 24]);
    // SAFETY: none, that is the point. Without a sanitizer this reads the allocator's own bytes.
    let behind = unsafe { std::hint::black_box(bytes.as_ptr()).add(24).read_volatile() };
    println!("read {behind}");
}
