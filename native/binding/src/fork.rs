//! Which process made a handle. A child made by `fork` has the memory of its parent but not its threads: it must not touch what they share.
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

static GENERATION: AtomicU64 = AtomicU64::new(0);
static INSTALLED: Once = Once::new();

extern "C" fn on_fork_child() {
    // SYNC POINT: none needed. The child has one thread when this runs; its later threads start after it.
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

/// Count forks from now on. Called once, when the module is imported.
pub fn install() {
    INSTALLED.call_once(|| {
        // SAFETY: the handler only adds to an atomic, which is allowed between fork and exec.
        unsafe { libc::pthread_atfork(None, None, Some(on_fork_child)) };
    });
}

/// What every handle says in a child of the process that made it. `tensor_pool.client.services` has the same words.
pub fn words(what: &str) -> String {
    format!("this {what} belongs to the parent of this process; make a new one after fork")
}

/// The process (by count of forks) that a handle belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Owner(u64);

impl Owner {
    pub fn current() -> Self {
        Self(GENERATION.load(Ordering::Relaxed))
    }

    pub fn is_here(self) -> bool {
        self == Self::current()
    }
}
