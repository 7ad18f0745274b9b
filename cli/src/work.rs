//! What a started process does: it reads commands from its standard input and answers on its standard output, until its input ends.
//!
//! ```text
//! probe                                     "<pid> <address>", then for the other one's such line: "yes" or why not
//! heap                                      "heap" if it has memory that can be exported, or why not
//! open <core> <longest> <path>              pins itself, makes its buffers, maps the memory of both   "<pid> <address> <address> <heap?>"
//! other <pid> <address> <address>           the other process                                        "ok"
//! lanes <lane> …                            opens an endpoint for each                               "<name> …"
//! peers <name> …                            the other process's                                      "ok"
//! cell <lane> <bytes> <times> <memory> <state> [read]  second: "ready", then answers each message; first: "<ns> <messages that went another way>"
//! echo …                                    as cell, but the answers are like the messages, and the time is that of both
//! limit <memory> <bytes> <times> <state>    both copy a half                                         "<ns>"
//! line                                      hands a cache line to and fro                            "<ns>"
//! copy <bytes> <times>                      memcpy                                                   "<ns>"
//! ```
//! For the network, where the second process may be on another host (`listen.rs`), there is no memory of both:
//! ```text
//! far <core or -> <longest> <iface or ->    as open, and lanes go by the network                     "<link or none>"
//! raw                                       second: waits for a plain connection                     "<port>"
//! raw <address>:<port>                      first: calls                                             "ok"
//! ping <bytes> <burst> <times>              by that: second: "ready", then answers; first: "<ns>"
//! flood <lane> <bytes> <times>              as cell, with many messages under way                    "<ns of a message>"
//! ```

use crate::figures::median;
use crate::kind::{Lane, State};
use crate::limit::{Ground, Share};
use crate::node::{Buffer, Node};
use crate::raw::Raw;
use crate::{Failure, environment, heap, reach};
use rustix::process::{Signal, set_parent_process_death_signal};
use rustix::thread::{CpuSet, sched_setaffinity};
use rustmx::config::network::Iface;
use rustmx::select::model::Memory;
use rustmx::select::profile::Standing;
use rustmx::sys::interfaces;
use rustmx::sys::refusal::{self, Call};
use rustmx::sys::tcp::scoped;
use rustmx::{Addr, Config, mem::remote};
use std::io::{BufRead, Write};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

/// # Errors
/// What went wrong; the process that started this one has lost its partner then.
pub(crate) fn run(role: &str) -> Result<(), Failure> {
    // Who polls an endpoint does not see that nobody reads what it says any more.
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|e| format!("cannot ask to end with the process that started this one ({e})"))?;
    match role {
        "probe" => probe(),
        "heap" => heap::tell(),
        "first" | "second" => {
            let orders = std::io::stdin().lock().lines().map_while(Result::ok);
            Worker::default().serve(role == "first", orders, &mut std::io::stdout())
        }
        "initiator" | "target" => reach::serve(role == "initiator"),
        _ => Err(format!("`{role}` is no role; this command is for `rustmx` itself")),
    }
}

/// Says something to the process that started this one.
pub(crate) fn say(line: &str) -> Result<(), Failure> {
    say_to(&mut std::io::stdout(), line)
}

/// Says something to the process that measures.
fn say_to(out: &mut dyn Write, line: &str) -> Result<(), Failure> {
    let gone = |e| format!("the process that started this one is gone ({e})");
    // One write: what goes to another host leaves at once.
    out.write_all(format!("{line}\n").as_bytes()).and_then(|()| out.flush()).map_err(gone)
}

fn number<T: std::str::FromStr>(word: Option<&str>) -> Result<T, Failure> {
    word.and_then(|w| w.parse().ok()).ok_or_else(|| "a command lacks a number".into())
}

fn probe() -> Result<(), Failure> {
    // As an endpoint does.
    rustmx::sys::tracer::let_in(rustmx::domain::let_in(&environment::read().0));
    let word = Box::new(std::process::id());
    say(&format!("{} {}", std::process::id(), std::ptr::from_ref::<u32>(&word).addr()))?;
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let mut words = line.split_whitespace();
        let (pid, at) = (number(words.next())?, number::<u64>(words.next())?);
        // A word has eight bytes; half of these may lie behind the box, in the same page.
        say(&remote::ask(pid, at & !7).map_or_else(|errno| refusal::to_this_process(pid, errno, Call::Read), |()| "yes".into()))?;
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

/// One of two that measure.
#[derive(Default)]
pub(crate) struct Worker {
    open: Vec<Open>,
    private: Option<Pair>,
    /// In the preloaded heap.
    exported: Option<Pair>,
    ground: Option<Ground>,
    /// All peers are reached by the network, by an interface if one is named.
    far: Option<Option<String>>,
    raw: Option<Raw>,
    /// It is told what to do by another host, only what cannot do harm there, until this is set: then that host is gone.
    remote: Option<Arc<AtomicBool>>,
}

/// What another host may ask for: nothing that names a file, or somebody else's address.
const FROM_AFAR: [&str; 6] = ["far", "lanes", "peers", "cell", "ping", "flood"];

/// Longest buffers that are made for somebody on another host, in bytes.
const LONGEST_FAR: usize = 1 << 30;

/// Messages under way at a time, where their rate is measured.
const WINDOW: usize = 16;

const EARLY: &str = "not opened yet";

impl Worker {
    /// One that is told by another host, until that is `gone`.
    pub fn for_others(gone: Arc<AtomicBool>) -> Worker {
        Worker { remote: Some(gone), ..Worker::default() }
    }

    /// Does what it is told until there are no more orders.
    ///
    /// # Errors
    /// What went wrong.
    pub fn serve(&mut self, first: bool, orders: impl Iterator<Item = String>, out: &mut dyn Write) -> Result<(), Failure> {
        for line in orders {
            let mut words = line.split_whitespace();
            let order = words.clone().next().unwrap_or_default();
            if self.remote.is_some() && !FROM_AFAR.contains(&order) && line != "raw" {
                return Err(format!("the other host asks for `{order}`, which is not done for others"));
            }
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
                    if first { self.measure(lane, &share)? } else { self.answer(lane, &share, out)? }
                }
                Some("echo") => {
                    let lane = Lane::named(words.next().unwrap_or_default())?;
                    let share = share_of(&mut words)?;
                    if first { self.ask(lane, &share)? } else { self.echo(lane, &share, out)? }
                }
                Some("limit") => {
                    let share = share_of(&mut words)?;
                    self.ground.as_mut().ok_or(EARLY)?.copy(&share)?
                }
                Some("line") => self.ground.as_ref().ok_or(EARLY)?.hand_over()?,
                Some("far") => self.far(&mut words)?,
                Some("raw") => self.connect(words.next())?,
                Some("ping") => {
                    let (len, burst, times) = (number(words.next())?, number(words.next())?, number(words.next())?);
                    self.ping(first, (len, burst, times), out)?
                }
                Some("flood") => {
                    let lane = Lane::named(words.next().unwrap_or_default())?;
                    let (len, times) = (number(words.next())?, number(words.next())?);
                    if first { self.flood(lane, len, times)? } else { self.drain(lane, (len, times), out)? }
                }
                Some("copy") => self.copy(number(words.next())?, number(words.next())?)?,
                _ => return Err(format!("`{line}` is no command")),
            };
            if !answer.is_empty() {
                say_to(out, &answer)?;
            }
        }
        Ok(())
    }

    fn far<'a>(&mut self, words: &mut impl Iterator<Item = &'a str>) -> Result<String, Failure> {
        let (core, longest) = (words.next().unwrap_or_default(), number(words.next())?);
        let iface = words.next().filter(|word| *word != "-");
        if longest > LONGEST_FAR {
            return Err(format!("{longest} bytes are too much to ask for"));
        }
        if let Ok(core) = core.parse() {
            pin(core)?;
        }
        self.private = Some(buffers(longest)?);
        self.far = Some(iface.map(str::to_owned));
        Ok("ok".into())
    }

    fn connect(&mut self, to: Option<&str>) -> Result<String, Failure> {
        let Some(to) = to else {
            let any = self.raw_address();
            let (raw, port) = Raw::listen(any, self.remote.clone().unwrap_or_default())?;
            self.raw = Some(raw);
            return Ok(port.to_string());
        };
        self.raw = Some(Raw::call(to.parse().map_err(|_| format!("`{to}` is no address"))?)?);
        Ok("ok".into())
    }

    /// Where plain sockets listen: on this host only, if endpoints do.
    fn raw_address(&self) -> SocketAddr {
        let named: Option<IpAddr> = self.far.as_ref().and_then(|iface| iface.as_ref()?.parse().ok());
        let Some(ip) = named else { return SocketAddr::from(([0u16; 8], 0)) };
        let scope = interfaces::all().iter().find(|i| i.ip == ip).map_or(0, |i| i.scope_id);
        scoped(ip, scope, 0)
    }

    fn ping(&mut self, first: bool, what: (usize, usize, usize), out: &mut dyn Write) -> Result<String, Failure> {
        let (len, burst, times) = what;
        let raw = self.raw.as_mut().ok_or(EARLY)?;
        // The longest of them is not longer than what was opened.
        let mut bytes = vec![1u8; len.min(LONGEST_FAR)];
        if first {
            return Ok(raw.ask(&mut bytes, burst, times)?.to_string());
        }
        say_to(out, "ready")?;
        raw.answer(&mut bytes, burst, times)?;
        Ok(String::new())
    }

    /// Many messages, and an empty answer to all of them: nanoseconds for each.
    fn flood(&mut self, lane: Lane, len: usize, times: usize) -> Result<String, Failure> {
        let (Open { node, to, .. }, [out, into]) = self.ready(lane, Memory::Private)?;
        let fail = |e| failed(lane, len, e);
        node.recv(&into, 0).map_err(fail)?;
        let begun = Instant::now();
        for i in 0..times {
            if i >= WINDOW {
                node.wait(1).map_err(fail)?;
            }
            node.send(*to, &out, len).map_err(fail)?;
        }
        node.wait(times.min(WINDOW) + 1).map_err(fail)?;
        Ok((begun.elapsed().as_secs_f64() * 1e9 / times as f64).to_string())
    }

    fn drain(&mut self, lane: Lane, what: (usize, usize), out: &mut dyn Write) -> Result<String, Failure> {
        let (len, times) = what;
        let (Open { node, to, .. }, [from, into]) = self.ready(lane, Memory::Private)?;
        let fail = |e| failed(lane, len, e);
        for _ in 0..times.min(WINDOW) {
            node.recv(&into, len).map_err(fail)?;
        }
        say_to(out, "ready")?;
        for i in 0..times {
            node.wait(1).map_err(fail)?;
            if i + WINDOW < times {
                node.recv(&into, len).map_err(fail)?;
            }
        }
        node.answer(*to, &from).map_err(fail)?;
        node.let_leave();
        Ok(String::new())
    }

    fn open<'a>(&mut self, first: bool, words: &mut impl Iterator<Item = &'a str>) -> Result<String, Failure> {
        let (core, longest): (usize, usize) = (number(words.next())?, number(words.next())?);
        pin(core)?;
        let own = buffers(longest)?;
        let exported = Buffer::exported(longest).zip(Buffer::exported(longest));
        (self.private, self.exported) = (Some(own), exported.map(Into::into));
        let ground = self.ground.insert(Ground::open(first, words.next().unwrap_or_default(), longest, own)?);
        Ok(format!("{} {}", ground.place(), if self.exported.is_some() { "heap" } else { "none" }))
    }

    fn lanes<'a>(&mut self, words: &mut impl Iterator<Item = &'a str>) -> Result<String, Failure> {
        let (config, _) = crate::environment::read();
        // What was measured to be best is for all ways, not only for the one that chooses.
        let config = Standing::look(&config).applied(&config);
        let mut names = Vec::new();
        for word in words {
            let lane = Lane::named(word)?;
            let opened = match &self.far {
                None => Node::open(&lane.config(&config), lane == Lane::Chosen),
                Some(iface) => Node::open(&far(&lane.config(&config), iface.as_deref()), lane == Lane::Chosen),
            };
            let mut node = opened?;
            node.until(self.remote.clone());
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
        let &Share { memory, len, times, state, .. } = share;
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

    fn answer(&mut self, lane: Lane, share: &Share, say: &mut dyn Write) -> Result<String, Failure> {
        let &Share { memory, len, times, state, read } = share;
        let (Open { node, to, .. }, [out, mut into]) = self.ready(lane, memory)?;
        let fail = |e: rustmx::Error| failed(lane, len, e);
        let arrived = into;
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
            say_to(say, "ready")?;
            prepare(node).map_err(fail)?;
        } else {
            prepare(node).map_err(fail)?;
            say_to(say, "ready")?;
        }
        for i in 1..=all {
            node.wait(1).map_err(fail)?;
            if read {
                arrived.look(len);
            }
            if state != State::Cold && i < all {
                prepare(node).map_err(fail)?;
            }
            node.answer(*to, &out).map_err(fail)?;
            if state == State::Cold && i < all {
                prepare(node).map_err(fail)?;
            }
        }
        node.let_leave();
        Ok(String::new())
    }

    /// Messages there, and ones like them back: the median of the times for both, and how many messages there went another way than was asked for.
    fn ask(&mut self, lane: Lane, share: &Share) -> Result<String, Failure> {
        let &Share { memory, len, times, read, .. } = share;
        let (Open { node, to, .. }, mut buffers) = self.ready(lane, memory)?;
        let (before, warm_up) = (lane.carried(&node.stats()), Lane::warm_up(len));
        let mut took = Vec::with_capacity(times);
        for i in 0..warm_up + times {
            let spent = meet(node, *to, &mut buffers, share, i).and_then(|()| {
                let begun = Instant::now();
                node.send(*to, &buffers[0], len)?;
                node.wait(2)?;
                if read {
                    buffers[1].look(len);
                }
                Ok(begun.elapsed())
            });
            let ns = spent.map_err(|e| failed(lane, len, e))?.as_secs_f64() * 1e9;
            took.extend((i >= warm_up).then_some(ns));
        }
        // What the last answer asks of us.
        node.let_leave();
        let arrived = lane.carried(&node.stats()) - before;
        Ok(format!("{} {}", median(&took), ((warm_up + times) as u64).saturating_sub(arrived)))
    }

    /// What [`ask`](Self::ask) waits for.
    fn echo(&mut self, lane: Lane, share: &Share, say: &mut dyn Write) -> Result<String, Failure> {
        let &Share { memory, len, times, read, .. } = share;
        let (Open { node, to, .. }, mut buffers) = self.ready(lane, memory)?;
        say_to(say, "ready")?;
        for i in 0..Lane::warm_up(len) + times {
            let answered = meet(node, *to, &mut buffers, share, i).and_then(|()| {
                node.wait(1)?;
                if read {
                    buffers[1].look(len);
                }
                node.send(*to, &buffers[0], len)?;
                node.wait(1)
            });
            answered.map_err(|e| failed(lane, len, e))?;
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

/// Both have prepared their buffers, wait for a message, and are in step.
fn meet(node: &mut Node, to: Addr, buffers: &mut Pair, share: &Share, number: usize) -> Result<(), rustmx::Error> {
    let [out, into] = buffers;
    match share.state {
        State::Reused => {}
        State::Fresh => out.rewrite(share.len, number as u8),
        State::Cold => {
            out.flush(share.len);
            into.flush(share.len);
        }
    }
    node.recv(into, 0)?;
    node.recv(into, share.len)?;
    node.answer(to, out)?;
    node.wait(1)
}

/// The configuration of an endpoint that reaches all others by the network.
pub(crate) fn far(config: &Config, iface: Option<&str>) -> Config {
    let named = iface.map(|iface| Iface::parse(iface).0);
    Config { shm: 0, tcp: 1, iface: named.unwrap_or_else(|| config.iface.clone()), ..config.clone() }
}

/// Keeps this process on a core.
pub(crate) fn pin(core: usize) -> Result<(), Failure> {
    let mut set = CpuSet::new();
    set.set(core);
    sched_setaffinity(None, &set).map_err(|e| format!("cannot pin a process to core {core} ({e})"))
}

fn buffers(longest: usize) -> Result<Pair, Failure> {
    let fail = |e| format!("not enough memory for messages of {longest} bytes ({e}); choose a smaller --max");
    Ok([Buffer::private(longest).map_err(fail)?, Buffer::private(longest).map_err(fail)?])
}

fn failed(lane: Lane, len: usize, why: rustmx::Error) -> Failure {
    format!("a message of {len} bytes by {}: {why}", lane.name())
}

fn share_of<'a>(words: &mut impl Iterator<Item = &'a str>) -> Result<Share, Failure> {
    let (len, times) = (number(words.next())?, number(words.next())?);
    let memory = Memory::named(words.next().unwrap_or_default()).ok_or("no such memory")?;
    let state = State::named(words.next().unwrap_or_default()).ok_or("no such state")?;
    Ok(Share { memory, len, times, state, read: words.next() == Some("read") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_host_cannot_ask_for_everything() {
        let asked = |order: &str| {
            let mut said = Vec::new();
            let done = Worker::for_others(Arc::default()).serve(false, order.lines().map(str::to_owned), &mut said);
            (done, String::from_utf8(said).expect("text"))
        };
        for order in ["open 0 4096 /dev/null\n", "raw 127.0.0.1 22\n", "limit private 1 1 reused\n", "nonsense\n", "\n"] {
            let (done, said) = asked(order);
            assert!(done.is_err_and(|why| why.contains("not done for others")) && said.is_empty(), "{order}");
        }
        assert!(asked(&format!("far - {} -\n", LONGEST_FAR + 1)).0.is_err_and(|why| why.contains("too much")));
        let (done, said) = asked("far - 4096 127.0.0.1\nraw\n");
        let port = said.strip_prefix("ok\n").and_then(|port| port.trim().parse::<u16>().ok());
        assert!(done.is_ok() && port.is_some_and(|port| port > 0), "{said}");
    }
}
