//! What a started process does: it reads commands from its standard input and answers on its standard output, until its input ends.
//!
//! ```text
//! probe                                     "<pid> <address>", then for the other one's such line: "yes" or why not
//! open <core> <longest> <path>              pins itself, makes its buffers, maps the memory of both   "<pid> <address> <address> <heap?>"
//! other <pid> <address> <address>           the other process                                        "ok"
//! lanes <lane> …                            opens an endpoint for each                               "<name> …"
//! peers <name> …                            the other process's                                      "ok"
//! cell <lane> <bytes> <times> <memory> <state>  second: "ready", then answers each message; first: "<ns> <messages that went another way>"
//! limit <memory> <bytes> <times> <state>    both copy a half                                         "<ns>"
//! line                                      hands a cache line to and fro                            "<ns>"
//! copy <bytes> <times>                      memcpy                                                   "<ns>"
//! ```

use crate::Failure;
use crate::figures::median;
use crate::kind::{Lane, State};
use crate::limit::{Ground, Share};
use crate::node::{Buffer, Node};
use rustix::thread::{CpuSet, sched_setaffinity};
use rustmx::select::model::Memory;
use rustmx::{Addr, mem::remote};
use std::io::{BufRead, Write};
use std::time::Instant;

/// # Errors
/// What went wrong; the process that started this one has lost its partner then.
pub(crate) fn run(role: &str) -> Result<(), Failure> {
    match role {
        "probe" => probe(),
        "first" | "second" => Worker::default().serve(role == "first"),
        _ => Err(format!("`{role}` is no role; this command is for `rustmx` itself")),
    }
}

/// Says something to the process that started this one.
pub(crate) fn say(line: &str) -> Result<(), Failure> {
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

/// An endpoint, ready to be measured.
struct Open {
    lane: Lane,
    node: Node,
    to: Addr,
}

/// Source and destination.
type Pair = [Buffer; 2];

#[derive(Default)]
struct Worker {
    open: Vec<Open>,
    private: Option<Pair>,
    /// In the preloaded heap.
    exported: Option<Pair>,
    ground: Option<Ground>,
}

const EARLY: &str = "not opened yet";

impl Worker {
    fn serve(&mut self, first: bool) -> Result<(), Failure> {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            let mut words = line.split_whitespace();
            let answer = match words.next() {
                Some("open") => self.open(first, &mut words)?,
                Some("other") => {
                    let (pid, at) = (number(words.next())?, [number(words.next())?, number(words.next())?]);
                    self.ground.as_mut().ok_or(EARLY)?.other(pid, at);
                    "ok".into()
                }
                Some("lanes") => self.lanes(&mut words)?,
                Some("peers") => self.peers(&mut words)?,
                Some("cell") => {
                    let lane = Lane::named(words.next().unwrap_or_default())?;
                    let share = share_of(&mut words)?;
                    if first { self.measure(lane, &share)? } else { self.answer(lane, &share)? }
                }
                Some("limit") => {
                    let share = share_of(&mut words)?;
                    self.ground.as_mut().ok_or(EARLY)?.copy(&share)?
                }
                Some("line") => self.ground.as_ref().ok_or(EARLY)?.hand_over()?,
                Some("copy") => self.copy(number(words.next())?, number(words.next())?)?,
                _ => return Err(format!("`{line}` is no command")),
            };
            if !answer.is_empty() {
                say(&answer)?;
            }
        }
        Ok(())
    }

    fn open<'a>(&mut self, first: bool, words: &mut impl Iterator<Item = &'a str>) -> Result<String, Failure> {
        let (core, longest): (usize, usize) = (number(words.next())?, number(words.next())?);
        let mut set = CpuSet::new();
        set.set(core);
        sched_setaffinity(None, &set).map_err(|e| format!("cannot pin a process to core {core} ({e})"))?;
        let fail = |e| format!("not enough memory for messages of {longest} bytes ({e}); choose a smaller --max");
        let own = [Buffer::private(longest).map_err(fail)?, Buffer::private(longest).map_err(fail)?];
        let exported = Buffer::exported(longest).zip(Buffer::exported(longest));
        (self.private, self.exported) = (Some(own), exported.map(Into::into));
        let ground = self.ground.insert(Ground::open(first, words.next().unwrap_or_default(), longest, own)?);
        Ok(format!("{} {}", ground.place(), if self.exported.is_some() { "heap" } else { "none" }))
    }

    fn lanes<'a>(&mut self, words: &mut impl Iterator<Item = &'a str>) -> Result<String, Failure> {
        let (config, _) = crate::environment::read();
        let mut names = Vec::new();
        for word in words {
            let lane = Lane::named(word)?;
            let opened = Node::open(&lane.config(&config), lane == Lane::Chosen);
            let node = opened.map_err(|e| format!("cannot open an endpoint ({e})"))?;
            names.push(node.name().map_err(|e| e.to_string())?);
            self.open.push(Open { lane, node, to: Addr::UNSPEC });
        }
        Ok(names.join(" "))
    }

    fn peers<'a>(&mut self, words: &mut impl Iterator<Item = &'a str>) -> Result<String, Failure> {
        for (open, name) in self.open.iter_mut().zip(words) {
            open.to = open.node.knows(name)?;
        }
        Ok("ok".into())
    }

    fn ready(&mut self, lane: Lane, memory: Memory) -> Result<(&mut Open, Pair), Failure> {
        let buffers = if memory == Memory::Exported { self.exported } else { self.private };
        let open = self.open.iter_mut().find(|o| o.lane == lane).ok_or("this way was not opened")?;
        Ok((open, buffers.ok_or("there is no such memory")?))
    }

    /// Messages there, empty answers back: the median of the times, and how many messages went another way than was asked for.
    fn measure(&mut self, lane: Lane, share: &Share) -> Result<String, Failure> {
        let &Share { memory, len, times, state } = share;
        let (Open { node, to, .. }, [mut out, into]) = self.ready(lane, memory)?;
        let (before, warm_up) = (lane.carried(&node.stats()), Lane::warm_up(len));
        let mut took = Vec::with_capacity(times);
        let mut turn = |node: &mut Node, i: usize| -> Result<f64, rustmx::Error> {
            match state {
                State::Reused => {}
                State::Fresh => out.rewrite(len, i as u8),
                State::Cold => {
                    // The other one says when its buffer is cold.
                    node.recv(&into, 0)?;
                    node.wait(1)?;
                    out.flush(len);
                }
            }
            node.recv(&into, 0)?;
            let begun = Instant::now();
            node.send(*to, &out, len)?;
            node.wait(2)?;
            Ok(begun.elapsed().as_secs_f64() * 1e9)
        };
        for i in 0..warm_up + times {
            let ns = turn(node, i).map_err(|e| failed(lane, len, e))?;
            took.extend((i >= warm_up).then_some(ns));
        }
        let arrived = lane.carried(&node.stats()) - before;
        Ok(format!("{} {}", median(&took), ((warm_up + times) as u64).saturating_sub(arrived)))
    }

    fn answer(&mut self, lane: Lane, share: &Share) -> Result<String, Failure> {
        let &Share { memory, len, times, state } = share;
        let (Open { node, to, .. }, [out, mut into]) = self.ready(lane, memory)?;
        let fail = |e: rustmx::Error| failed(lane, len, e);
        let mut prepare = |node: &mut Node| {
            node.recv(&into, len)?;
            if state == State::Cold {
                into.flush(len);
                node.answer(*to, &out)?;
            }
            Ok(())
        };
        let all = Lane::warm_up(len) + times;
        if state == State::Cold {
            say("ready")?;
            prepare(node).map_err(fail)?;
        } else {
            prepare(node).map_err(fail)?;
            say("ready")?;
        }
        for i in 1..=all {
            node.wait(1).map_err(fail)?;
            if state != State::Cold && i < all {
                prepare(node).map_err(fail)?;
            }
            node.answer(*to, &out).map_err(fail)?;
            if state == State::Cold && i < all {
                prepare(node).map_err(fail)?;
            }
        }
        Ok(String::new())
    }

    fn copy(&mut self, len: usize, times: usize) -> Result<String, Failure> {
        let [out, mut into] = self.private.ok_or(EARLY)?;
        let took: Vec<f64> = (0..=times)
            .map(|_| {
                let begun = Instant::now();
                into.copy_part(&out, 0, len);
                begun.elapsed().as_secs_f64() * 1e9
            })
            .collect();
        Ok(median(&took[1..]).to_string())
    }
}

fn failed(lane: Lane, len: usize, why: rustmx::Error) -> Failure {
    format!("a message of {len} bytes by {}: {why}", lane.name())
}

fn share_of<'a>(words: &mut impl Iterator<Item = &'a str>) -> Result<Share, Failure> {
    let (len, times) = (number(words.next())?, number(words.next())?);
    let memory = Memory::named(words.next().unwrap_or_default()).ok_or("no such memory")?;
    let state = State::named(words.next().unwrap_or_default()).ok_or("no such state")?;
    Ok(Share { memory, len, times, state })
}
