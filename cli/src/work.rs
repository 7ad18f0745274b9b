//! What a started process does: it reads commands from its standard input and answers on its standard output, until its input ends.
//!
//! ```text
//! probe                               "<pid> <address>", then for the other one's such line: "yes" or why not
//! open <core> <longest> <way> …       pins itself, opens an endpoint for each way        "<name> …"
//! peers <name> …                      the other process's                                "ok"
//! cell <way> <bytes> <times> <fresh>  second: "ready", then answers each message; first: "<ns> <messages that went another way>"
//! line <path>                         hands a cache line to and fro                      "<ns>"
//! copy <bytes> <times>                memcpy                                             "<ns>"
//! ```

use crate::Failure;
use crate::bench::{Way, carried, forced};
use crate::figures::median;
use crate::node::{Buffer, Node};
use rustix::thread::{CpuSet, sched_setaffinity};
use rustmx::mem::atomic::{Ordering, Words};
use rustmx::mem::shared::SharedMem;
use rustmx::{Addr, mem::remote};
use std::io::{BufRead, Write};
use std::time::Instant;

/// Times that a line goes there and back for one figure.
const HANDOVERS: u64 = 5_000;

/// # Errors
/// What went wrong; the process that started this one has lost its partner then.
pub(crate) fn run(role: &str) -> Result<(), Failure> {
    match role {
        "probe" => probe(),
        "first" | "second" => Worker::default().serve(role == "first"),
        _ => Err(format!("`{role}` is no role; this command is for `rustmx` itself")),
    }
}

fn say(line: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).map_err(|e| format!("the process that started this one is gone ({e})"))
}

fn number<T: std::str::FromStr>(word: Option<&str>) -> Result<T, Failure> {
    word.and_then(|w| w.parse().ok()).ok_or_else(|| "a command lacks a number".into())
}

fn probe() -> Result<(), Failure> {
    let word = Box::new(std::process::id());
    say(&format!("{} {}", std::process::id(), std::ptr::from_ref::<u32>(&word).addr()))?;
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let mut words = line.split_whitespace();
        let (pid, at) = (number(words.next())?, number::<u64>(words.next())?);
        // A word has eight bytes; half of these may lie behind the box, in the same page.
        say(&remote::ask(pid, at & !7).map_or_else(remote::cause, |()| "yes".into()))?;
    }
    drop(word);
    Ok(())
}

/// One way, ready to be measured.
struct Lane {
    way: Way,
    node: Node,
    to: Addr,
}

#[derive(Default)]
struct Worker {
    lanes: Vec<Lane>,
    buffers: Option<[Buffer; 2]>,
}

impl Worker {
    fn serve(&mut self, first: bool) -> Result<(), Failure> {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            let mut words = line.split_whitespace();
            let answer = match words.next() {
                Some("open") => self.open(&mut words)?,
                Some("peers") => self.peers(&mut words)?,
                Some("cell") => {
                    let way: Way = words.next().and_then(Way::named).ok_or("no such way")?;
                    let (len, times, fresh) = (number(words.next())?, number(words.next())?, words.next() == Some("true"));
                    if first { self.measure(way, len, times, fresh)? } else { self.answer(way, len, times)? }
                }
                Some("line") => hand_over(first, words.next().unwrap_or_default())?,
                Some("copy") => self.copy(number(words.next())?, number(words.next())?)?,
                _ => return Err(format!("`{line}` is no command")),
            };
            if !answer.is_empty() {
                say(&answer)?;
            }
        }
        Ok(())
    }

    fn open<'a>(&mut self, words: &mut impl Iterator<Item = &'a str>) -> Result<String, Failure> {
        let (core, longest): (usize, usize) = (number(words.next())?, number(words.next())?);
        let mut set = CpuSet::new();
        set.set(core);
        sched_setaffinity(None, &set).map_err(|e| format!("cannot pin a process to core {core} ({e})"))?;
        self.buffers = Some([Buffer::new(longest), Buffer::new(longest)]);
        let (config, _) = crate::environment::read();
        let mut names = Vec::new();
        for way in words.filter_map(Way::named) {
            let node = Node::open(&forced(way, &config)).map_err(|e| format!("cannot open an endpoint ({e})"))?;
            names.push(node.name().map_err(|e| e.to_string())?);
            self.lanes.push(Lane { way, node, to: Addr::UNSPEC });
        }
        Ok(names.join(" "))
    }

    fn peers<'a>(&mut self, words: &mut impl Iterator<Item = &'a str>) -> Result<String, Failure> {
        for (lane, name) in self.lanes.iter_mut().zip(words) {
            lane.to = lane.node.knows(name)?;
        }
        Ok("ok".into())
    }

    fn lane(&mut self, way: Way) -> Result<(&mut Lane, [Buffer; 2]), Failure> {
        let buffers = self.buffers.ok_or("not opened yet")?;
        let lane = self.lanes.iter_mut().find(|l| l.way == way).ok_or("this way was not opened")?;
        Ok((lane, buffers))
    }

    /// Messages there, empty answers back: the median of the times, and how many messages went another way than was asked for.
    fn measure(&mut self, way: Way, len: usize, times: usize, fresh: bool) -> Result<String, Failure> {
        let (Lane { node, to, .. }, [mut out, into]) = self.lane(way)?;
        let before = carried(way, &node.stats());
        let mut took = Vec::with_capacity(times);
        let mut turn = |node: &mut Node, i: usize| -> Result<f64, rustmx::Error> {
            node.recv(&into, 0)?;
            if fresh {
                out.rewrite(len, i as u8);
            }
            let begun = Instant::now();
            node.send(*to, &out, len)?;
            node.wait(2)?;
            Ok(begun.elapsed().as_secs_f64() * 1e9)
        };
        for i in 0..=times {
            let ns = turn(node, i).map_err(|e| format!("a message of {len} bytes by {}: {e}", way.name()))?;
            // The first one warms up.
            if i > 0 {
                took.push(ns);
            }
        }
        let arrived = carried(way, &node.stats()) - before;
        Ok(format!("{} {}", median(&took), (times as u64 + 1).saturating_sub(arrived)))
    }

    fn answer(&mut self, way: Way, len: usize, times: usize) -> Result<String, Failure> {
        let (Lane { node, to, .. }, [out, into]) = self.lane(way)?;
        let fail = |e: rustmx::Error| format!("a message of {len} bytes by {}: {e}", way.name());
        node.recv(&into, len).map_err(fail)?;
        say("ready")?;
        for i in 0..=times {
            node.wait(1).map_err(fail)?;
            if i < times {
                node.recv(&into, len).map_err(fail)?;
            }
            node.answer(*to, &out).map_err(fail)?;
        }
        Ok(String::new())
    }

    fn copy(&mut self, len: usize, times: usize) -> Result<String, Failure> {
        let [out, mut into] = self.buffers.ok_or("not opened yet")?;
        let took: Vec<f64> = (0..=times)
            .map(|_| {
                let begun = Instant::now();
                into.copy_from(&out, len);
                begun.elapsed().as_secs_f64() * 1e9
            })
            .collect();
        Ok(median(&took[1..]).to_string())
    }
}

/// Two words on lines of their own in memory that both processes map: the time of one hand-over.
fn hand_over(first: bool, path: &str) -> Result<String, Failure> {
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path).map_err(|e| format!("cannot open {path} ({e})"))?;
    let map = rustmx::sys::memfd::attach(&file, 4096, true).map_err(|e| format!("cannot map {path} ({e})"))?;
    let mem = SharedMem::new(map);
    let (a, b) = (mem.word(0), mem.word(64));
    let start = b.load(Ordering::Acquire);
    if !first {
        say("ready")?;
    }
    let begun = Instant::now();
    for i in start + 1..=start + HANDOVERS {
        if first {
            a.store(i, Ordering::Release);
            while b.load(Ordering::Acquire) != i {}
        } else {
            while a.load(Ordering::Acquire) != i {}
            b.store(i, Ordering::Release);
        }
    }
    let ns = begun.elapsed().as_secs_f64() * 1e9 / HANDOVERS as f64 / 2.0;
    Ok(if first { ns.to_string() } else { String::new() })
}
