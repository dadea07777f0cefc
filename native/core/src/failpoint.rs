//! Named steps at which a test can stop the world. Disarmed, a step costs one relaxed load.
use crate::error::{CoreError, Result};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The steps, in the order in which a producer passes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    RegionAfterCreate,
    RegionAfterReserve,
    RegionAfterMap,
    /// `error` here acts as a kernel without openat2.
    OpenBeforeOpenat2,
    WriteBeforeInProgress,
    WriteAfterInProgress,
    WriteMidPayload,
    WriteAfterPayload,
    WriteAfterHeader,
    WriteBeforeCommitted,
    WriteAfterCommitted,
    WriteAfterDescriptor,
}

const POINTS: [(Point, &str); 12] = [
    (Point::RegionAfterCreate, "region.after_create"),
    (Point::RegionAfterReserve, "region.after_reserve"),
    (Point::RegionAfterMap, "region.after_map"),
    (Point::OpenBeforeOpenat2, "open.before_openat2"),
    (Point::WriteBeforeInProgress, "write.before_in_progress"),
    (Point::WriteAfterInProgress, "write.after_in_progress"),
    (Point::WriteMidPayload, "write.mid_payload"),
    (Point::WriteAfterPayload, "write.after_payload"),
    (Point::WriteAfterHeader, "write.after_header"),
    (Point::WriteBeforeCommitted, "write.before_committed"),
    (Point::WriteAfterCommitted, "write.after_committed"),
    (Point::WriteAfterDescriptor, "write.after_descriptor"),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// SIGKILL to this process.
    Kill,
    /// SIGSTOP to this process.
    Pause,
    /// The step fails with `CoreError::Failpoint`.
    Error,
    Delay(Duration),
}

struct Armed {
    action: Action,
    passes_left: u64,
}

static ANY_ARMED: AtomicBool = AtomicBool::new(false);
static ARMED: Mutex<[Option<Armed>; POINTS.len()]> = Mutex::new([const { None }; POINTS.len()]);

pub fn names() -> Vec<&'static str> {
    POINTS.iter().map(|(_, name)| *name).collect()
}

pub fn find(name: &str) -> Option<Point> {
    POINTS.iter().find(|(_, known)| *known == name).map(|(point, _)| *point)
}

/// Act at the (`skip` + 1)th passing of `point`, once.
pub fn arm(point: Point, action: Action, skip: u64) {
    let mut armed = table();
    armed[point as usize] = Some(Armed { action, passes_left: skip });
    ANY_ARMED.store(true, Ordering::Relaxed);
}

pub fn disarm(point: Option<Point>) {
    let mut armed = table();
    match point {
        Some(point) => armed[point as usize] = None,
        None => armed.iter_mut().for_each(|slot| *slot = None),
    }
    ANY_ARMED.store(armed.iter().any(Option::is_some), Ordering::Relaxed);
}

/// Whether a step may act: the writer copies in two halves only then.
#[inline(always)]
pub fn any_armed() -> bool {
    ANY_ARMED.load(Ordering::Relaxed)
}

/// Pass a step.
#[inline(always)]
pub fn pass(point: Point) -> Result<()> {
    if any_armed() { pass_armed(point) } else { Ok(()) }
}

#[cold]
fn pass_armed(point: Point) -> Result<()> {
    let Some(action) = take(point) else { return Ok(()) };
    match action {
        Action::Kill => send_to_self(libc::SIGKILL),
        Action::Pause => send_to_self(libc::SIGSTOP),
        Action::Error => return Err(CoreError::Failpoint(POINTS[point as usize].1)),
        Action::Delay(duration) => std::thread::sleep(duration),
    }
    Ok(())
}

fn take(point: Point) -> Option<Action> {
    let mut table = table();
    let armed = table[point as usize].as_mut()?;
    if armed.passes_left > 0 {
        armed.passes_left -= 1;
        return None;
    }
    let action = armed.action;
    table[point as usize] = None;
    ANY_ARMED.store(table.iter().any(Option::is_some), Ordering::Relaxed);
    Some(action)
}

fn table() -> std::sync::MutexGuard<'static, [Option<Armed>; POINTS.len()]> {
    ARMED.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn send_to_self(signal: libc::c_int) {
    // SAFETY: sends a signal to this very process.
    unsafe { libc::kill(libc::getpid(), signal) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_the_order_of_the_enum() {
        for (index, (point, name)) in POINTS.iter().enumerate() {
            assert_eq!(*point as usize, index);
            assert_eq!(find(name), Some(*point));
        }
        assert_eq!(find("write.nowhere"), None);
    }

    #[test]
    fn an_armed_step_acts_once_after_the_skipped_passes() {
        let point = Point::RegionAfterMap;
        arm(point, Action::Error, 2);
        assert!(pass(point).is_ok());
        assert!(pass(point).is_ok());
        assert!(matches!(pass(point), Err(CoreError::Failpoint("region.after_map"))));
        assert!(pass(point).is_ok());
    }

    #[test]
    fn disarming_takes_it_back() {
        arm(Point::OpenBeforeOpenat2, Action::Error, 0);
        disarm(Some(Point::OpenBeforeOpenat2));
        assert!(pass(Point::OpenBeforeOpenat2).is_ok());
    }
}
