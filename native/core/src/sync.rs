//! The atomics of the protocol: the machine's in a build, the model checker's under `--cfg loom`.
#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU64, Ordering, fence};
#[cfg(not(loom))]
pub use std::sync::atomic::{AtomicU64, Ordering, fence};
