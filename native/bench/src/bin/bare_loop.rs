//! The bare loop: the ring and the commit protocol between two processes, and nothing else. No Aeron, no Python, no locks, no control traffic.
//!
//! `bare_loop writer|reader DIRECTORY NBYTES SLOTS`, then a line `[begin_ns, end_ns, rate_hz, copies]` on standard input for each run, and a line of
//! JSON on standard output for each result.
use std::error::Error;
use std::io::{BufRead, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use tensor_pool_core::writer::Writer;

#[path = "../payload.rs"]
mod payload;
#[path = "../ring.rs"]
mod ring;
#[path = "../source.rs"]
mod source;
#[path = "../tally.rs"]
mod tally;

use ring::Follower;
use source::{Source, Window, sleep_until};
use tally::Tally;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

struct Order {
    window: Window,
    rate_hz: u64,
    copies: bool,
}

impl Order {
    fn parse(line: &str) -> Result<Self> {
        let numbers: Vec<u64> =
            line.trim_matches(['[', ']']).split(',').map(|part| part.trim().parse()).collect::<std::result::Result<_, _>>()?;
        let &[begin_ns, end_ns, rate_hz, copies] = numbers.as_slice() else {
            return Err(format!("an order has four numbers, not {}", numbers.len()).into());
        };
        Ok(Self { window: Window { begin_ns, end_ns }, rate_hz, copies: copies == 1 })
    }
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [role, directory, nbytes, slots] = arguments.as_slice() else {
        return Err("usage: bare_loop writer|reader DIRECTORY NBYTES SLOTS".into());
    };
    let (directory, nbytes, slots) = (PathBuf::from(directory), nbytes.parse()?, slots.parse()?);
    match role.as_str() {
        "writer" => write(&directory, nbytes, slots),
        "reader" => read(&directory, nbytes, slots),
        role => Err(format!("{role} is neither writer nor reader").into()),
    }
}

fn write(directory: &Path, nbytes: usize, slots: usize) -> Result<()> {
    let mut writer = Writer::new(ring::create(directory, &ring::own_pool(directory), nbytes, slots)?)?;
    let words = nbytes / 8;
    let (_memory, payloads) = payload::windows(words);
    // SAFETY: windows into memory that lives to the end of this function and is not used otherwise.
    let mut source = unsafe { Source::new(payloads, words) };
    each_order(|order| {
        source.start(order.window, order.rate_hz);
        loop {
            sleep_until(source.due_ns());
            let Some(pattern) = source.advance() else { break };
            let info = ring::frame_info(nbytes)?;
            let slot = writer.open(nbytes)?;
            // SAFETY: the payload has `nbytes` bytes, and the slot was just opened by this writer.
            unsafe { writer.fill(&slot, payloads[pattern].cast())? };
            writer.close(&slot, &info)?;
        }
        Ok(format!("\"offered\":{},\"dropped\":0", source.offered()))
    })
}

fn read(directory: &Path, nbytes: usize, slots: usize) -> Result<()> {
    let mut follower = Follower::new(ring::open(directory, &ring::own_pool(directory), nbytes, slots)?);
    let mut tally = Tally::new(nbytes);
    let mut copy = vec![1_u64; nbytes / 8];
    each_order(|order| {
        tally.start(order.window);
        follower.skip_old();
        loop {
            let Some(located) = follower.following() else {
                if tally.is_over() {
                    break;
                }
                std::hint::spin_loop();
                continue;
            };
            let goes_on = if order.copies {
                // SAFETY: the copy has the length of a frame, and `locate` found no longer one.
                let is_whole = unsafe { follower.copy(&located, copy.as_mut_ptr().cast()) };
                // SAFETY: as above.
                !is_whole || unsafe { tally.check(copy.as_ptr().cast()) }
            } else {
                // SAFETY: a slot of the mapped ring.
                let goes_on = unsafe { tally.check(located.payload) };
                if !follower.is_still(&located) {
                    tally.retract();
                }
                goes_on
            };
            if !goes_on {
                break;
            }
        }
        let named = tally.finish().named().map(|(name, value)| format!("\"{name}\":{value}"));
        Ok(named.join(","))
    })
}

/// Run every order that comes, until there are no more.
fn each_order(mut run: impl FnMut(&Order) -> Result<String>) -> Result<()> {
    say("{\"event\":\"ready\"}")?;
    for line in std::io::stdin().lock().lines() {
        let order = Order::parse(&line?)?;
        let (began, began_cpu_s) = (Instant::now(), cpu_s());
        let result = run(&order)?;
        let (wall_s, cpu_s) = (began.elapsed().as_secs_f64(), cpu_s() - began_cpu_s);
        say(&format!(
            "{{\"event\":\"result\",\"begin_ns\":{},\"cpu_s\":{cpu_s:.6},\"wall_s\":{wall_s:.6},{result}}}",
            order.window.begin_ns
        ))?;
    }
    Ok(())
}

fn say(line: &str) -> Result<()> {
    let mut stdout = std::io::stdout();
    writeln!(stdout, "{line}")?;
    Ok(stdout.flush()?)
}

/// Processor time of this process, in seconds.
fn cpu_s() -> f64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is a timespec to write to; this clock exists on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut now) };
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}
