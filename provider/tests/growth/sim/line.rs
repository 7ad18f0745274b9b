//! One end of a connection: what `transport/tcp/connection/` does, over packets instead of a socket.
//!
//! Records leave with the first one after a turn, or together in the next turn; what was read of the other side's stands in every
//! frame, and in one of its own if nothing else goes there; the ring of whoever calls is carried once both hellos are said, or at once if its call counts.

use super::fabric::{Fabric, Shared};
use rustmx::error::Error;
use rustmx::mem::atomic::{Ordering, Words};
use rustmx::mem::shared::{Heap, SharedMem};
use rustmx::peer::name::Name;
use rustmx::shm::bell;
use rustmx::shm::layout::{CONSUMED, CONTROL_LINES, CREDIT, HOT, LINE, LINE_WORDS, ring_lines};
use rustmx::shm::ring::{Consumer, Peeked};
use rustmx::shm::segment;
use rustmx::shm::stance::Stance;
use rustmx::sys::wake::Wake;
use rustmx::transport::tcp::{ENOUGH, OWED_FOR};
use rustmx::transport::{Greeting, Handed, Line, NoCall, Reach, Reply};
use rustmx::types::PeerId;
use rustmx::wire::frame::FRAME_HEAD;
use rustmx::wire::header::Header;
use rustmx::wire::hello::{HELLO_LEN, Hello, Refusal};

/// What travels.
pub enum Packet {
    Hello(Box<Hello>),
    /// A frame: lines of the ring (none: news), and what was read of the other direction.
    Frame {
        lines: Vec<u8>,
        consumed: u64,
        credit: u64,
    },
    Refusal(Refusal),
    End,
}

impl Packet {
    pub fn bytes(&self) -> usize {
        match self {
            Packet::Hello(_) | Packet::Refusal(_) => HELLO_LEN,
            Packet::Frame { lines, .. } => FRAME_HEAD + lines.len(),
            Packet::End => 0,
        }
    }
}

/// Our ring, as it is carried away.
struct Carried {
    lines: SharedMem,
    walk: Consumer<SharedMem>,
    framed: u32,
    at: u32,
    count: u32,
}

/// The other side's ring as it is here.
struct Mirror {
    theirs: SharedMem,
    lines: SharedMem,
    count: u32,
    at: u32,
    position: u32,
}

/// What an end of a line keeps.
#[derive(Default)]
pub struct Half {
    pub accepted: bool,
    pub stranger: bool,
    peer: Option<PeerId>,
    mine: Option<SharedMem>,
    out: Option<Carried>,
    theirs: Option<SharedMem>,
    into: Option<Mirror>,
    said_hello: bool,
    counts: bool,
    greeting: Option<Box<Greeting>>,
    crossed: bool,
    ended: Option<Error>,
    told: (u64, u64),
    sent_in: u64,
    is_dirty: bool,
    is_owing: bool,
    gone: bool,
}

impl Half {
    /// Our ring is carried once both hellos are said.
    fn start(&mut self) {
        if self.said_hello
            && (self.counts || self.into.is_some())
            && self.out.is_none()
            && let Some(mine) = &self.mine
        {
            let count = ring_lines(mine.bytes());
            let lines = mine.slice(CONTROL_LINES * LINE, count as usize * LINE);
            self.told = (0, mine.word(CREDIT).load(Ordering::Relaxed));
            self.out = Some(Carried { walk: Consumer::new(lines.clone(), count), lines, framed: 0, at: 0, count });
        }
    }

    fn now(&self) -> (u64, u64) {
        let word = |at| self.mine.as_ref().map_or(0, |m| m.word(at).load(Ordering::Relaxed));
        (word(CONSUMED), word(CREDIT))
    }

    /// What the other side is to know of what we read: a quarter of the ring at least (`much`), or anything.
    pub fn owes(&self, much: bool) -> bool {
        let Some(out) = &self.out else { return false };
        let (consumed, credit) = self.now();
        match much {
            true => consumed.wrapping_sub(self.told.0) >= u64::from(out.count) / 4,
            false => (consumed, credit) != self.told,
        }
    }

    /// Its peer, if the endpoint is to hear something.
    fn speaks(&self) -> Option<PeerId> {
        let unseen = self.into.as_ref().zip(self.mine.as_ref()).is_some_and(|(into, mine)| {
            let hot = Stance::of(mine.word(HOT).load(Ordering::Relaxed)).hot;
            !hot && mine.word(CONSUMED).load(Ordering::Relaxed) as u32 != into.position
        });
        let speaks = self.ended.is_some() || self.greeting.is_some() || unseen;
        self.peer.filter(|_| speaks && !self.gone)
    }
}

impl Carried {
    /// Lines of whole records that have not left.
    fn waiting(&mut self) -> u32 {
        while let Peeked::Record(words) = self.walk.peek() {
            let Ok(header) = Header::parse(words, self.walk.consumed(), self.walk.contiguous()) else { break };
            self.walk.release(header.lines());
        }
        self.walk.consumed().wrapping_sub(self.framed)
    }

    fn take(&mut self, lines: u32) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(lines as usize * LINE);
        let first = lines.min(self.count - self.at);
        for (at, lines) in [(self.at, first), (0, lines - first)] {
            self.lines.append_to(at as usize * LINE, lines as usize * LINE, &mut bytes);
        }
        self.framed = self.framed.wrapping_add(lines);
        self.at = (self.at + lines) % self.count;
        bytes
    }
}

impl Mirror {
    fn new(theirs: SharedMem) -> Mirror {
        let count = ring_lines(theirs.bytes());
        let lines = theirs.slice(CONTROL_LINES * LINE, count as usize * LINE);
        // Whoever writes to the other side must hear of it each time.
        Stance { hot: true, nap: 1 }.show(&theirs);
        Mirror { theirs, lines, count, at: 0, position: 0 }
    }

    fn show(&mut self, bytes: &[u8]) {
        let lines = (bytes.len() / LINE) as u32;
        let behind = (self.at + lines) % self.count;
        self.lines.word(behind as usize * LINE_WORDS).store(0, Ordering::Relaxed);
        let first = bytes.len().min((self.count - self.at) as usize * LINE);
        self.lines.fill_bytes(self.at as usize * LINE, &bytes[..first]);
        self.lines.fill_bytes(0, &bytes[first..]);
        self.position = self.position.wrapping_add(lines);
        self.at = behind;
    }
}

impl Fabric {
    fn half(&mut self, at: (usize, usize)) -> &mut Half {
        &mut self.lines[at.0].ends[at.1].half
    }

    /// Sends what there is; `news`: also if that is only what we read.
    pub fn flush(&mut self, at: (usize, usize), news: bool) {
        let half = self.half(at);
        let now = half.now();
        let news = news && now != half.told;
        if half.ended.is_some() || half.gone {
            return;
        }
        let Some(out) = &mut half.out else { return };
        let lines = out.waiting();
        if lines == 0 && !news {
            return;
        }
        let lines = out.take(lines);
        half.told = now;
        self.told.news += u64::from(lines.is_empty());
        self.told.frames += u64::from(!lines.is_empty());
        self.send(at.0, at.1, Packet::Frame { lines, consumed: now.0, credit: now.1 });
    }

    pub fn flush_dirty(&mut self, at: (usize, usize)) {
        self.half(at).is_dirty = false;
        self.flush(at, false);
    }

    /// Tells the other side what we have read, if nothing has told it.
    pub fn pay(&mut self, at: (usize, usize)) {
        self.half(at).is_owing = false;
        if self.half(at).owes(false) {
            self.flush(at, true);
        }
    }

    /// Takes what is in a socket. Returns its peer if the endpoint is to hear of it, and the hello of a stranger.
    pub fn read(&mut self, at: (usize, usize)) -> (Option<PeerId>, Option<Box<Hello>>) {
        let here = &mut self.lines[at.0].ends[at.1];
        here.is_ready = false;
        let host = here.host;
        let cost = self.terms.io[1];
        self.spend(host, cost);
        let mut stranger = None;
        loop {
            let here = &mut self.lines[at.0].ends[at.1];
            let half = &mut here.half;
            // Frames wait until the endpoint has taken the hello.
            let early = half.into.is_none() && matches!(here.inbox.front(), Some(Packet::Frame { .. }));
            if early || half.ended.is_some() {
                break;
            }
            match here.inbox.pop_front() {
                Some(Packet::Hello(hello)) if half.stranger => stranger = Some(hello),
                Some(Packet::Hello(hello)) => self.greeted(at, &hello),
                Some(Packet::Frame { lines, consumed, credit }) => {
                    if let Some(into) = &mut half.into {
                        into.theirs.word(CONSUMED).store(consumed, Ordering::Release);
                        into.theirs.word(CREDIT).store(credit, Ordering::Relaxed);
                        if !lines.is_empty() {
                            into.show(&lines);
                        }
                    }
                    if !half.is_owing && !lines.is_empty() {
                        half.is_owing = true;
                        let time = self.time(host);
                        self.hosts[host].owing.push((at.0, at.1, time));
                        self.look(host, time + OWED_FOR);
                    }
                }
                Some(Packet::Refusal(why)) => {
                    half.crossed = why == Refusal::Crossed;
                    self.told.crossed += u64::from(why == Refusal::Crossed);
                    half.ended = Some(if half.crossed { Error::PeerGone } else { Error::Refused });
                }
                Some(Packet::End) => half.ended = Some(Error::PeerGone),
                None => break,
            }
        }
        if self.half(at).owes(true) {
            self.flush(at, true);
        }
        (self.half(at).speaks(), stranger)
    }

    /// A hello came: makes the mirror that it asks for.
    pub fn greeted(&mut self, at: (usize, usize), hello: &Hello) {
        let theirs = segment::private(hello.segment.get() as usize);
        let bell = self.bell.get_or_insert_with(|| SharedMem::new(Heap::new(bell::BYTES))).clone();
        let half = self.half(at);
        half.theirs = Some(theirs.clone());
        half.greeting = Some(Box::new(Greeting { hello: *hello, segment: Handed::Own(theirs), bell: Handed::Own(bell) }));
    }

    /// The hello of a stranger, who is none any more.
    pub fn admit(&mut self, at: (usize, usize)) -> Option<Box<Greeting>> {
        self.half(at).stranger = false;
        self.half(at).greeting.take()
    }
}

/// One end of a conversation, as an endpoint has it.
pub struct Talk {
    pub fabric: Shared,
    pub at: (usize, usize),
}

impl Wake for Talk {
    fn wake(&self) {
        let mut fabric = self.fabric.lock();
        let host = fabric.lines[self.at.0].ends[self.at.1].host;
        let turn = fabric.hosts[host].turn;
        let half = fabric.half(self.at);
        let waiting = half.out.as_mut().map_or(0, |o| o.waiting() as usize * LINE);
        if half.sent_in != turn || waiting >= ENOUGH[0] {
            half.sent_in = turn;
            fabric.flush(self.at, false);
        } else if !std::mem::replace(&mut half.is_dirty, true) {
            fabric.hosts[host].dirty.push(self.at);
        }
    }
}

impl Line for Talk {
    fn greet(&self, hello: &Hello, segment: &Handed, _bell: &Handed) -> Result<(), NoCall> {
        let Handed::Own(mine) = segment else { return Err(NoCall::Never(Error::Unsupported)) };
        let mut fabric = self.fabric.lock();
        let half = fabric.half(self.at);
        if half.ended.is_some() {
            return Err(NoCall::Never(Error::PeerGone));
        }
        half.said_hello = true;
        half.mine = Some(mine.clone());
        half.counts = Name::call_counts(&hello.from, &hello.to);
        half.start();
        fabric.send(self.at.0, self.at.1, Packet::Hello(Box::new(*hello)));
        fabric.flush(self.at, false);
        Ok(())
    }

    fn reach(&self) -> Reach {
        Reach::Network
    }

    fn begin(&self, mine: &SharedMem) {
        let mut fabric = self.fabric.lock();
        let half = fabric.half(self.at);
        if let Some(theirs) = half.theirs.take() {
            half.mine = Some(mine.clone());
            half.into = Some(Mirror::new(theirs));
        }
        half.start();
        fabric.told.met += u64::from(self.at.1 == 0);
        fabric.flush(self.at, false);
        if !fabric.lines[self.at.0].ends[self.at.1].inbox.is_empty() {
            fabric.make_ready(self.at.0, self.at.1);
        }
    }

    fn hear(&self) -> Reply {
        let mut fabric = self.fabric.lock();
        let half = fabric.half(self.at);
        match (half.greeting.take(), half.ended) {
            (Some(greeting), _) => Reply::Greeting(greeting),
            (None, None) => Reply::Nothing,
            _ if half.crossed => Reply::Crossed,
            (None, Some(Error::PeerGone)) => Reply::Ended,
            (None, Some(why)) => Reply::Refused(why),
        }
    }

    fn turn_away(&self, why: Refusal) {
        let mut fabric = self.fabric.lock();
        if !fabric.over {
            fabric.send(self.at.0, self.at.1, Packet::Refusal(why));
        }
    }

    fn watch(&self, peer: PeerId) {
        self.fabric.lock().half(self.at).peer = Some(peer);
    }

    fn forget(&self) {
        self.fabric.lock().half(self.at).gone = true;
    }
}

impl Drop for Talk {
    fn drop(&mut self) {
        let mut fabric = self.fabric.lock();
        if !fabric.over {
            // What it refused, or gave up, ends there.
            fabric.send(self.at.0, self.at.1, Packet::End);
        }
        *fabric.half(self.at) = Half { accepted: true, gone: true, ended: Some(Error::PeerGone), ..Half::default() };
    }
}
