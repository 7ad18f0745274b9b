//! A venue without a kernel: segments, bells and conversations of one process, with delays and faults.
//!
//! ```text
//! engine a ─ writes ─▶ segment ── walked after each call ──▶ queue (due times, in order) ── delivered ──▶ copy ─ read ─▶ engine b
//! ```
//! Each direction is two memories. After every call of an engine the net walks what it published, record by record, and queues it; a
//! record, a change of the control words or a bell bit shows in the reader's copy when it is due, never earlier and never out of order. A hello or
//! an end says what was published before it, and brings that along, as the kernel's sockets do.

mod door;

use crate::arena::{Arena, BYTES, Buf};
use crate::common::Rng;
use crate::trace::Trace;
use rustmx::mem::atomic::{Ordering, Words};
use rustmx::mem::shared::SharedMem;
use rustmx::shm::bell::Bell;
use rustmx::shm::layout::{
    BACK, CONSUMED, CONTROL_LINES, COPIED, CREDIT, FRONT, HOT, INVITATION, LINE_WORDS, PLACED, STATE, TAKEN, ring_lines,
};
use rustmx::shm::ring::{Consumer, Peeked};
use rustmx::transport::{Greeting, Handed, Venue};
use rustmx::types::PeerId;
use rustmx::wire::header::{HEAD, Header, Kind, flag};
use rustmx::wire::hello::Refusal;
use rustmx::wire::loan::Loan;
use rustmx::wire::offer::Named;
use std::collections::VecDeque;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard};

/// Words of a segment that its owner changes besides the ring.
const CONTROL: [usize; 4] = [CONSUMED, CREDIT, HOT, STATE];
/// A word that no engine uses, for the net: which way a segment is.
const WAY: usize = 4 * LINE_WORDS - 1;
/// Words of which the engines need one order that both see: they are shown at once.
const SHARES: [usize; 12] = {
    const I: usize = INVITATION;
    [FRONT, BACK, COPIED, TAKEN, PLACED, I, I + 1, I + 2, I + 3, I + 4, I + 5, I + 6]
};
const RING: usize = CONTROL_LINES * LINE_WORDS;

/// How unkind the net is. Chances are one in so many; 0: never.
#[derive(Clone, Copy, Debug, Default)]
pub struct Weather {
    /// Longest delay, in nanoseconds.
    pub delay: u64,
    /// A call cannot be made now.
    pub busy: u64,
    /// A hello cannot be said now: half of a contact, if it is the answer.
    pub mute: u64,
    /// A bit of a bell is lost.
    pub deaf: u64,
    /// What is lent is lost on the way: it cannot be mapped.
    pub thin: u64,
}

enum Shown {
    Record {
        at: usize,
        words: Vec<u64>,
        next: (usize, u64),
    },
    /// A record whose writer died before the last store.
    Torn {
        at: usize,
        words: Vec<u64>,
    },
    Control {
        word: usize,
        value: u64,
    },
}

struct Item {
    due: u64,
    /// When it was published, among all that its engine published.
    seq: u64,
    what: Shown,
}

/// One direction of a link.
struct Way {
    owner: usize,
    /// Known once it was handed over.
    to: Option<usize>,
    written: SharedMem,
    shown: SharedMem,
    rx: Consumer<SharedMem>,
    control: [u64; CONTROL.len()],
    queue: VecDeque<Item>,
    last_due: u64,
    /// The reader has it.
    heard: bool,
    /// Numbers of the messages that were published whole, in one record, and when.
    whole: Vec<(u64, usize)>,
}

struct SimBell {
    rung: Bell<SharedMem>,
    own: Bell<SharedMem>,
    /// Due time, and who rang.
    queue: VecDeque<(u64, u32)>,
}

enum Packet {
    Hello(Box<Greeting>),
    Refusal(Refusal),
    Loan(Loan, Option<SharedMem>),
    Wake,
    End,
}

struct End {
    node: usize,
    open: bool,
    /// Due time, what its sender had published before, what it says.
    inbox: VecDeque<(u64, u64, Packet)>,
    last_due: u64,
    watched: Option<PeerId>,
    stranger: bool,
}

struct Place {
    /// The name that it listens at.
    listens: Option<String>,
    alive: bool,
    published: u64,
    /// The kernel lets nobody reach into this process.
    closed_to_kernel: bool,
    /// The next record that it publishes gets a wrong header.
    spoil: bool,
    /// Its memory that others could map, and the number of the next such.
    arenas: Vec<Arena>,
    next: u32,
    /// Numbers that are not lent any more, of which its engine has not asked yet.
    ended: VecDeque<u32>,
}

/// Everything between the engines.
pub struct Net {
    pub clock: Arc<AtomicU64>,
    pub weather: Weather,
    /// Bytes of an arena, at least.
    pub arena_bytes: usize,
    pub trace: Trace,
    rng: Rng,
    places: Vec<Place>,
    ways: Vec<Way>,
    bells: Vec<SimBell>,
    lines: Vec<[End; 2]>,
    /// The way with the spoilt record.
    spoilt: Option<usize>,
    /// Who was handed what by whom and was not told of its end: lender, other, number.
    loans: Vec<(usize, usize, u32)>,
    /// What happened to contact, for the tests of the test.
    pub told: Told,
}

/// Counts of what the net did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Told {
    pub records: u64,
    pub busy: u64,
    pub mute: u64,
    pub lost_bits: u64,
    pub calls: u64,
    pub lent: u64,
    pub lost_loans: u64,
    pub recalled: u64,
}

/// The net, as the places and the world share it.
#[derive(Clone)]
pub struct Shared(Arc<Mutex<Net>>);

impl Shared {
    pub fn new(seed: u64, weather: Weather, clock: Arc<AtomicU64>) -> Shared {
        Shared(Arc::new(Mutex::new(Net {
            clock,
            weather,
            arena_bytes: BYTES,
            trace: Trace::default(),
            rng: Rng(seed ^ 0x6e65_7400),
            places: Vec::new(),
            ways: Vec::new(),
            bells: Vec::new(),
            lines: Vec::new(),
            spoilt: None,
            loans: Vec::new(),
            told: Told::default(),
        })))
    }

    pub fn lock(&self) -> MutexGuard<'_, Net> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// A place for one more process; its number.
    pub fn place(&self) -> (usize, Arc<dyn Venue>) {
        let mut net = self.lock();
        net.places.push(Place {
            listens: None,
            alive: true,
            published: 0,
            closed_to_kernel: false,
            spoil: false,
            arenas: Vec::new(),
            next: 1,
            ended: VecDeque::new(),
        });
        let node = net.places.len() - 1;
        (node, Arc::new(door::At { net: self.clone(), node }))
    }
}

/// The process id of a place, as its peers see it.
pub fn pid(node: usize) -> u32 {
    // Above what Linux hands out.
    (1 << 23) + node as u32
}

impl Net {
    fn now(&self) -> u64 {
        self.clock.load(Ordering::Relaxed)
    }

    pub fn note(&mut self, what: std::fmt::Arguments<'_>) {
        let now = self.now();
        self.trace.add(now, what);
    }

    fn chance(&mut self, one_in: u64) -> bool {
        one_in > 0 && self.rng.one_in(one_in)
    }

    fn due(&mut self) -> u64 {
        let delay = self.weather.delay;
        // Mostly short, now and then as long as it gets.
        let most = if self.rng.one_in(4) { delay } else { delay / 8 };
        self.now() + self.rng.below(most + 1)
    }

    /// Queues what `node` published since it was last looked at.
    pub fn collect(&mut self, node: usize) {
        if !self.places[node].alive {
            return;
        }
        for at in 0..self.ways.len() {
            if self.ways[at].owner == node {
                self.collect_records(at, node);
                self.collect_control(at, node);
            }
        }
        for at in 0..self.bells.len() {
            let mut slots = Vec::new();
            self.bells[at].rung.take(|slot| slots.push(slot));
            for slot in slots {
                if self.chance(self.weather.deaf) {
                    self.told.lost_bits += 1;
                    continue;
                }
                let due = self.due();
                self.bells[at].queue.push_back((due, slot));
            }
        }
    }

    fn collect_records(&mut self, at: usize, node: usize) {
        loop {
            let way = &mut self.ways[at];
            let before = way.rx.consumed();
            let (from, to_end) = (way.rx.offset(), way.rx.contiguous());
            let found = way.rx.peek();
            if way.rx.consumed() != before {
                // A skip is a publication of its own.
                self.publish(at, node, from, to_end, false);
            }
            let way = &mut self.ways[at];
            let Peeked::Record(words) = found else {
                assert_eq!(found, Peeked::Empty, "node {node} wrote a wrong skip");
                return;
            };
            let header = Header::parse(words, way.rx.consumed(), way.rx.contiguous()).expect("an engine's header");
            let (from, lines) = (way.rx.offset(), header.lines());
            let body = RING + (from + HEAD) / 8;
            let named = match header.kind {
                Kind::Offer => Named::of(way.written.word(body + 1).load(Ordering::Relaxed)).lent,
                Kind::Accept => Named::of(header.tag).lent,
                _ => 0,
            };
            way.rx.release(lines);
            self.check_loans(at, node, &header, named);
            self.note(format_args!("{node} publishes {:?} of {} at way {at}", header.kind, header.len));
            self.publish(at, node, from, lines, true);
            if matches!(header.kind, Kind::Inline | Kind::Eager) && header.flags & flag::CQ_DATA != 0 && self.spoilt.is_none() {
                let published = self.places[node].published;
                self.ways[at].whole.push((published, header.data as usize));
            }
        }
    }

    /// A record names only what its reader was handed and not told the end of.
    fn check_loans(&mut self, at: usize, node: usize, header: &Header, named: u32) {
        // Who has heard a call may lend before its own segment is handed over.
        let to = self.ways[at].to;
        let of = |number: u32, fits: &dyn Fn(usize) -> bool| {
            self.loans.iter().position(|loan| loan.0 == node && loan.2 == number && fits(loan.1))
        };
        let handed = |other: usize| self.ways.iter().any(|way| way.owner == node && way.to == Some(other));
        let lent = |number: u32| match to {
            Some(to) => of(number, &|other| to == other),
            None => of(number, &|other| !handed(other)).or_else(|| of(number, &|_| true)),
        };
        if header.kind == Kind::Done && header.flags & flag::RECALLED != 0 {
            let known = lent(header.tag as u32).unwrap_or_else(|| panic!("node {node} ends a loan that there was not"));
            self.loans.swap_remove(known);
            self.told.recalled += 1;
        } else if named != 0 {
            assert!(lent(named).is_some(), "node {node} names memory {named}, which is not lent to {to:?}");
        }
    }

    /// A buffer of `node` with these bytes, in memory that others could map or not.
    pub fn buffer(&mut self, node: usize, bytes: Vec<u8>) -> Buf {
        let roomy = self.arena_bytes > BYTES;
        if self.places.len() <= node || self.rng.one_in(if roomy { 10 } else { 3 }) {
            return Buf::Own(bytes);
        }
        if let Some(piece) = self.places[node].arenas.last_mut().and_then(|arena| arena.carve(&bytes)) {
            return piece;
        }
        let writable = !self.rng.one_in(if roomy { 10 } else { 4 });
        let place = &mut self.places[node];
        place.arenas.push(Arena::new(place.next, writable, bytes.len().max(self.arena_bytes)));
        place.next += 1;
        place.arenas.last_mut().and_then(|arena| arena.carve(&bytes)).unwrap_or(Buf::Own(bytes))
    }

    /// Some memory of `node` is not known as what it was any more: it is lent under another number from now on, or not at all.
    pub fn end_arena(&mut self, node: usize) {
        if self.places.get(node).is_none_or(|place| place.arenas.is_empty()) {
            return;
        }
        let again = !self.rng.one_in(4);
        let which = self.rng.range(0, self.places[node].arenas.len());
        let place = &mut self.places[node];
        let arena = &mut place.arenas[which];
        if arena.number == 0 {
            return;
        }
        place.ended.push_back(arena.number);
        let number = if again { place.next } else { 0 };
        place.next += u32::from(again);
        let before = std::mem::replace(&mut arena.number, number);
        self.note(format_args!("memory {before} of {node} is {number} now"));
    }

    /// Two of whom one has not been told the end of what the other lent it.
    pub fn owes_recall(&self) -> Option<(usize, usize)> {
        let is_over = |loan: &&(usize, usize, u32)| {
            let (from, to, number) = **loan;
            let both = self.places[from].alive && self.places[to].alive;
            both && self.places[from].arenas.iter().all(|arena| arena.number != number)
        };
        self.loans.iter().find(is_over).map(|(from, to, _)| (*from, *to))
    }

    fn publish(&mut self, at: usize, node: usize, from: usize, lines: u32, whole: bool) {
        self.told.records += 1;
        let due = self.due();
        let place = &mut self.places[node];
        place.published += 1;
        let (seq, spoil) = (place.published, whole && std::mem::take(&mut place.spoil));
        let way = &mut self.ways[at];
        let first = RING + from / 8;
        // Of a skip the first word counts, and no other is touched.
        let n = if whole { lines as usize * LINE_WORDS } else { 1 };
        let mut words: Vec<u64> = (first..first + n).map(|w| way.written.word(w).load(Ordering::Relaxed)).collect();
        if spoil {
            // The low byte of the position.
            words[0] ^= 0x5a00;
            self.spoilt = Some(at);
        }
        let ring = ring_lines(way.written.bytes()) as usize * LINE_WORDS;
        let behind = RING + (first - RING + lines as usize * LINE_WORDS) % ring;
        // Whatever stood there when this was published: a zero, or our writer forgot it.
        let next = if way.rx.ready() { 0 } else { way.written.word(behind).load(Ordering::Relaxed) };
        way.last_due = way.last_due.max(due);
        let what = Shown::Record { at: first, words, next: (behind, next) };
        way.queue.push_back(Item { due: way.last_due, seq, what });
    }

    fn collect_control(&mut self, at: usize, node: usize) {
        let Way { written, shown, .. } = &self.ways[at];
        for word in SHARES {
            shown.word(word).store(written.word(word).load(Ordering::Relaxed), Ordering::Relaxed);
        }
        for (i, word) in CONTROL.into_iter().enumerate() {
            let value = self.ways[at].written.word(word).load(Ordering::Relaxed);
            if value == self.ways[at].control[i] {
                continue;
            }
            let due = self.due();
            self.places[node].published += 1;
            let seq = self.places[node].published;
            let way = &mut self.ways[at];
            way.control[i] = value;
            way.last_due = way.last_due.max(due);
            way.queue.push_back(Item { due: way.last_due, seq, what: Shown::Control { word, value } });
        }
    }

    /// Shows the readers what is due.
    pub fn deliver(&mut self) {
        let now = self.now();
        for way in &mut self.ways {
            while way.queue.front().is_some_and(|i| i.due <= now) {
                way.show_next();
            }
        }
        for b in &mut self.bells {
            while b.queue.front().is_some_and(|q| q.0 <= now) {
                if let Some((_, slot)) = b.queue.pop_front() {
                    b.own.ring(slot);
                }
            }
        }
    }

    /// Shows what `node` had published up to `seq`.
    pub fn flush(&mut self, node: usize, seq: u64) {
        for way in self.ways.iter_mut().filter(|w| w.owner == node) {
            while way.queue.front().is_some_and(|i| i.seq <= seq) {
                way.show_next();
            }
        }
    }

    /// The process ends, at any point of what nobody has seen yet: what it did after that never happened.
    pub fn kill(&mut self, node: usize) {
        self.collect(node);
        let mut points: Vec<u64> =
            self.ways.iter().filter(|w| w.owner == node).flat_map(|w| w.queue.iter().map(|i| i.seq)).collect();
        points.sort_unstable();
        let last = match self.rng.below(4) {
            0 => points.last().copied().unwrap_or(0),
            1 => 0,
            _ if points.is_empty() => 0,
            _ => self.rng.pick(&points),
        };
        let torn = self.rng.one_in(2);
        self.note(format_args!("{node} dies; of {} items unseen those up to {last} were published", points.len()));
        for way in self.ways.iter_mut().filter(|w| w.owner == node) {
            let cut = way.queue.iter().position(|i| i.seq > last).unwrap_or(way.queue.len());
            let rest = way.queue.split_off(cut);
            if let Some(first) = rest.front() {
                way.whole.retain(|w| w.0 < first.seq);
            }
            if let Some(Item { due, seq, what: Shown::Record { at, words, .. } }) = rest.into_iter().next()
                && torn
            {
                way.queue.push_back(Item { due, seq, what: Shown::Torn { at, words } });
            }
        }
        for at in 0..self.lines.len() {
            for end in 0..2 {
                if self.lines[at][end].node == node && self.lines[at][end].open {
                    // What it said after its end it did not say.
                    self.lines[at][1 - end].inbox.retain(|p| p.1 <= last || points.first().is_none_or(|f| p.1 < *f));
                    self.hang_up(at, end);
                }
            }
        }
        self.places[node].alive = false;
        self.places[node].listens = None;
    }

    fn hang_up(&mut self, at: usize, end: usize) {
        self.lines[at][end].open = false;
        self.lines[at][end].watched = None;
        let node = self.lines[at][end].node;
        self.say(at, end, self.places[node].published, Packet::End);
    }

    fn say(&mut self, at: usize, end: usize, seq: u64, packet: Packet) {
        let (now, due) = (self.now(), self.due());
        let other = &mut self.lines[at][1 - end];
        if matches!(packet, Packet::Loan(..)) {
            // It is with the peer at once, as is what stands before it: records that name it may be.
            other.inbox.iter_mut().for_each(|packet| packet.0 = packet.0.min(now));
            other.inbox.push_back((now, seq, packet));
            return;
        }
        other.last_due = other.last_due.max(due);
        other.inbox.push_back((other.last_due, seq, packet));
    }

    fn hear(&mut self, at: usize, end: usize) -> Option<Packet> {
        let now = self.now();
        let other = self.lines[at][1 - end].node;
        let here = &mut self.lines[at][end];
        let (due, seq, packet) = here.inbox.front()?;
        if *due > now {
            return None;
        }
        let seq = *seq;
        if matches!(packet, Packet::End) {
            // It stays: an end is heard as often as one listens.
            self.flush(other, seq);
            return Some(Packet::End);
        }
        let (_, _, packet) = here.inbox.pop_front()?;
        self.flush(other, seq);
        if let Packet::Hello(greeting) = &packet
            && let Handed::Own(segment) = &greeting.segment
        {
            self.ways[segment.word(WAY).load(Ordering::Relaxed) as usize].heard = true;
        }
        Some(packet)
    }

    /// The kernel lets nobody reach into `node` any more.
    pub fn close_to_kernel(&mut self, node: usize) {
        self.places[node].closed_to_kernel = true;
    }

    /// The next record of `node` gets a header that no engine writes.
    pub fn spoil(&mut self, node: usize) {
        self.places[node].spoil = true;
    }

    /// Nothing is spoilt any more. Whether something was of which the reader is not known yet.
    pub fn calm(&mut self, node: usize) -> bool {
        self.places[node].spoil = false;
        self.spoilt.is_some()
    }

    /// Who wrote a spoilt record to whom, once that is known.
    pub fn take_spoilt(&mut self) -> Option<(usize, usize)> {
        let way = &self.ways[self.spoilt?];
        let to = way.to?;
        self.spoilt = None;
        Some((way.owner, to))
    }

    /// Numbers of the messages that `from` published whole where `to` can read them.
    pub fn whole(&self, from: usize, to: usize) -> Vec<usize> {
        let ways = self.ways.iter().filter(|w| w.owner == from && w.to == Some(to) && w.heard);
        ways.flat_map(|w| w.whole.iter().map(|w| w.1)).collect()
    }

    /// Whether nobody is here: the engines meet elsewhere.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }
}

impl Way {
    fn show_next(&mut self) {
        let Some(item) = self.queue.pop_front() else { return };
        let set = |word: usize, value| self.shown.word(word).store(value, Ordering::Relaxed);
        match item.what {
            Shown::Record { at, words, next } => {
                (1..words.len()).for_each(|i| set(at + i, words[i]));
                set(next.0, next.1);
                set(at, words[0]);
            }
            Shown::Torn { at, words } => (1..words.len()).for_each(|i| set(at + i, words[i])),
            Shown::Control { word, value } => set(word, value),
        }
    }
}
