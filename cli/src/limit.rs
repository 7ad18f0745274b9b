//! What the machine allows at best: a hand-over of a cache line, and two processes that copy a half of the same bytes each, and do nothing
//! else.

use crate::Failure;
use crate::figures::median;
use crate::kind::State;
use crate::node::Buffer;
use crate::work::say;
use rustmx::mem::atomic::{AtomicU64, Ordering, Words};
use rustmx::mem::remote;
use rustmx::mem::shared::SharedMem;
use rustmx::select::model::Memory;
use std::fs::File;
use std::time::{Duration, Instant};

/// Times that a line goes there and back for one figure.
const HANDOVERS: u64 = 5_000;
/// Bytes before the buffers in the memory of both.
const LINES: usize = 4096;

/// Bytes of memory for two buffers of `longest` bytes and the lines.
pub(crate) fn bytes(longest: usize) -> usize {
    LINES + 2 * longest.next_multiple_of(LINES)
}

/// One of two processes that map the same memory.
pub(crate) struct Ground {
    first: bool,
    lines: SharedMem,
    /// Turns so far.
    turn: u64,
    /// Source and destination in the memory of both.
    common: [Buffer; 2],
    /// Those of the private memory of this one.
    own: [Buffer; 2],
    /// The other process, and where its two are.
    other: Option<(u32, [u64; 2])>,
}

/// What is to be copied.
pub(crate) struct Share {
    /// By the kernel, or in mapped memory.
    pub memory: Memory,
    pub len: usize,
    pub times: usize,
    pub state: State,
    /// Who receives a message looks at all of it before anything else.
    pub read: bool,
}

impl Ground {
    /// On the memory that a file names.
    pub fn open(first: bool, path: &str, longest: usize, own: [Buffer; 2]) -> Result<Ground, Failure> {
        let fail = |e: std::io::Error| format!("cannot map {path} ({e})");
        let file = File::options().read(true).write(true).open(path).map_err(fail)?;
        let lines = rustmx::sys::memfd::attach(&file, bytes(longest), true).map_err(|e| fail(e.into()))?;
        let at = |i: usize| Buffer::of_file(&file, LINES + i * longest.next_multiple_of(LINES), longest).map_err(fail);
        Ok(Ground { first, lines: SharedMem::new(lines), turn: 0, common: [at(0)?, at(1)?], own, other: None })
    }

    /// What the other one must know: the process and its buffers.
    pub fn place(&self) -> String {
        format!("{} {} {}", std::process::id(), self.own[0].address(), self.own[1].address())
    }

    /// What the other one said.
    pub fn other(&mut self, pid: u32, at: [u64; 2]) {
        self.other = Some((pid, at));
    }

    /// Two words on lines of their own: the time of one hand-over.
    pub fn hand_over(&self) -> Result<String, Failure> {
        let (a, b) = (self.lines.word(0), self.lines.word(64));
        let start = b.load(Ordering::Acquire);
        if !self.first {
            say("ready")?;
        }
        let begun = Instant::now();
        for i in start + 1..=start + HANDOVERS {
            if self.first {
                a.store(i, Ordering::Release);
                while b.load(Ordering::Acquire) != i {}
            } else {
                while a.load(Ordering::Acquire) != i {}
                b.store(i, Ordering::Release);
            }
        }
        let ns = begun.elapsed().as_secs_f64() * 1e9 / HANDOVERS as f64 / 2.0;
        Ok(if self.first { ns.to_string() } else { String::new() })
    }

    /// Both copy a half: the first process, whose source it is, the second one, and the second process the first one. The time until the first
    /// process knows that all is there.
    pub fn copy(&mut self, share: &Share) -> Result<String, Failure> {
        if !self.first {
            say("ready")?;
        }
        let mut took = Vec::with_capacity(share.times);
        for i in 0..=share.times {
            self.turn += 1;
            let ns = if self.first { self.lead(share, i as u8)? } else { self.follow(share)? };
            // The first one warms up.
            took.extend((i > 0).then_some(ns));
        }
        Ok(if self.first { median(&took).to_string() } else { String::new() })
    }

    fn lead(&mut self, share: &Share, with: u8) -> Result<f64, Failure> {
        let mut from = self.source(share.memory);
        match share.state {
            State::Reused => {}
            State::Fresh => from.rewrite(share.len, with),
            State::Cold => from.flush(share.len),
        }
        let (a, b) = (self.lines.word(128), self.lines.word(192));
        await_turn(b, 2 * self.turn - 1)?;
        let begun = Instant::now();
        a.store(self.turn, Ordering::Release);
        let half = share.len / 2;
        match (share.memory, self.other) {
            (Memory::Exported, _) => self.common[1].copy_part(&from, half, share.len - half),
            (Memory::Private, Some((pid, [_, into]))) => {
                remote::store(pid, into + half as u64, &[from.segment(share.len)], half, share.len - half)
                    .map_err(|_| refused())?;
            }
            (Memory::Private, None) => return Err(refused()),
        }
        await_turn(b, 2 * self.turn)?;
        Ok(begun.elapsed().as_secs_f64() * 1e9)
    }

    fn follow(&mut self, share: &Share) -> Result<f64, Failure> {
        let mut into = if share.memory == Memory::Exported { self.common[1] } else { self.own[1] };
        if share.state == State::Cold {
            into.flush(share.len);
        }
        let (a, b) = (self.lines.word(128), self.lines.word(192));
        b.store(2 * self.turn - 1, Ordering::Release);
        await_turn(a, self.turn)?;
        let half = share.len / 2;
        match (share.memory, self.other) {
            (Memory::Exported, _) => into.copy_part(&self.common[0], 0, half),
            (Memory::Private, Some((pid, [from, _]))) => {
                remote::fetch(pid, from, &[into.segment(share.len)], 0, half).map_err(|_| refused())?;
            }
            (Memory::Private, None) => return Err(refused()),
        }
        b.store(2 * self.turn, Ordering::Release);
        Ok(0.0)
    }

    fn source(&self, memory: Memory) -> Buffer {
        if memory == Memory::Exported { self.common[0] } else { self.own[0] }
    }
}

/// Spins until the other process has come so far. It may have ended: then this one must, too.
fn await_turn(word: &AtomicU64, turn: u64) -> Result<(), Failure> {
    let begun = Instant::now();
    loop {
        for _ in 0..SPINS {
            if word.load(Ordering::Acquire) >= turn {
                return Ok(());
            }
        }
        if begun.elapsed() > PATIENCE {
            return Err(format!("the other process did not come within {} s", PATIENCE.as_secs()));
        }
    }
}

/// Looks at a word between two at the clock.
const SPINS: u32 = 1 << 16;
/// More than any copy takes, also of processes that have to wait for a core.
const PATIENCE: Duration = Duration::from_secs(60);

fn refused() -> Failure {
    "the kernel let a process copy at first, and then did not any more".into()
}
