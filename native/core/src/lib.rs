//! The shared-memory ring of tensor_pool: layout, safe opening, the commit protocol, copies, waiting. No Aeron, no Python, no policy.
//!
//! | file | what it holds |
//! | --- | --- |
//! | `layout` | generated: every offset, length and id |
//! | `commit` | the commit protocol, the only file with its memory order; the model checker runs on it |
//! | `copy` | the only copies that may race with the other side |
//! | `open`, `region`, `mapping` | files: safe opening, creation with reserved space, the mapping itself |
//! | `ring` | where slots are |
//! | `header` | a slot's header written, and checked on a copy |
//! | `writer`, `reader` | one frame in, one frame out |
//! | `descriptor`, `accounting` | what announces a frame, and the books that count every seq once |
//! | `wait`, `failpoint`, `clock` | sleeping on a slot, named steps for tests, time |

#[cfg(target_endian = "big")]
compile_error!("tensor_pool keeps shared memory little-endian and does not swap bytes: big-endian hosts are not supported (wire 15.1)");

pub mod commit;
pub mod copy;
pub mod sync;

#[cfg(not(loom))]
pub mod accounting;
#[cfg(not(loom))]
pub mod clock;
#[cfg(not(loom))]
pub mod descriptor;
#[cfg(not(loom))]
pub mod error;
#[cfg(not(loom))]
pub mod failpoint;
#[cfg(not(loom))]
pub mod header;
#[cfg(not(loom))]
pub mod layout;
#[cfg(not(loom))]
pub mod mapping;
#[cfg(not(loom))]
pub mod open;
#[cfg(not(loom))]
pub mod reader;
#[cfg(not(loom))]
pub mod region;
#[cfg(not(loom))]
pub mod ring;
#[cfg(not(loom))]
pub mod wait;
#[cfg(not(loom))]
pub mod writer;
