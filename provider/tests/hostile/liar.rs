//! The liar: an engine's side of a connection, done by hand.

use crate::BYTES;
use crate::common::{Deadline, Node, pattern, seg};
use rustix::fd::{AsFd, OwnedFd};
use rustmx::mem::atomic::Words;
use rustmx::mem::shared::SharedMem;
use rustmx::shm::bell::{self, Bell};
use rustmx::shm::layout::{CONTROL_LINES, LINE_WORDS};
use rustmx::shm::segment::{self, Shape};
use rustmx::sys::{host, memfd, socket};
use rustmx::transport::link::{Class, Draft, Link};
use rustmx::transport::{Greeting, Handed, Reply, local};
use rustmx::wire::header::{Kind, flag};
use rustmx::wire::hello::Hello;
use rustmx::wire::loan::Loan;
use rustmx::{Error, Name};
use std::sync::atomic::AtomicU64;
use zerocopy::IntoBytes;

/// Where the liar says that its memory is.
pub const BASE: u64 = 0x1234_5000;

pub fn any_name() -> Name {
    Name::new(host::random() | 1, 0, host::id(), None)
}

/// What is said to who has called and not been welcomed yet.
pub enum Answer {
    /// Nothing yet, or nothing that makes sense now.
    Nothing,
    Welcome(Box<Greeting>),
    Refused(Error),
    Ended,
}

/// What came by a call since.
pub fn answer(fd: &OwnedFd) -> Answer {
    match local::receive(fd) {
        Reply::Greeting(g) => Answer::Welcome(g),
        Reply::Refused(e) => Answer::Refused(e),
        Reply::Ended => Answer::Ended,
        _ => Answer::Nothing,
    }
}

/// The liar, connected by its own call.
pub struct Liar {
    pub name: Name,
    pub fd: OwnedFd,
    pub mem: SharedMem,
    pub link: Link,
    pub theirs: Option<SharedMem>,
    /// The same, to be written, if the victim's rings are open.
    pub open: Option<SharedMem>,
    pub bell: Option<Bell<SharedMem>>,
}

impl Liar {
    /// Calls `victim` and says a proper hello under `name`.
    pub fn call(victim: &Name, name: Name, slot: u32) -> Liar {
        Liar::call_with(victim, name, slot, segment::create(Shape::without_cells(BYTES), false).expect("segment"))
    }

    fn call_with(victim: &Name, name: Name, slot: u32, (segment, mem): (OwnedFd, SharedMem)) -> Liar {
        let fd = socket::connect(&victim.socket_name()).expect("connect");
        let (bell, _map) = memfd::create("liar-bell", bell::BYTES, false).expect("bell");
        let hello = Hello::new(name.to_bytes(), victim.to_bytes(), mem.bytes() as u32, slot, [u64::MAX; 16]);
        local::greet(&fd, &hello, &segment, &bell).expect("hello");
        Liar { name, fd, link: Link::new(mem.clone(), 1 << 20), mem, theirs: None, open: None, bell: None }
    }

    /// Waits for the victim's answer.
    pub fn settle(&mut self, victim: &mut Node) {
        let until = Deadline::new(5);
        loop {
            victim.domain.progress();
            match answer(&self.fd) {
                Answer::Welcome(g) => {
                    if let Handed::Descriptor(fd) = &g.segment {
                        self.open = memfd::attach(fd, g.hello.segment.get() as usize, true).ok().map(|map| SharedMem::new(map));
                    }
                    let theirs = g.segment.segment(g.hello.segment.get() as usize, false).expect("the victim's segment");
                    self.theirs = Some(theirs.clone());
                    self.link.attach(theirs, None);
                    self.bell = Some(Bell::new(g.bell.bell().expect("the victim's bell")));
                    return;
                }
                Answer::Nothing => until.check(|| "no answer".into()),
                Answer::Refused(e) => panic!("refused: {e}"),
                Answer::Ended => panic!("no answer"),
            }
        }
    }

    pub fn connected(victim: &mut Node) -> Liar {
        let mut liar = Liar::call(&victim.name(), any_name(), 0);
        liar.settle(victim);
        liar
    }

    /// With an open segment, which has cells.
    pub fn with_cells(victim: &mut Node) -> Liar {
        let mut liar = Liar::call_with(
            &victim.name(),
            any_name(),
            0,
            segment::create(Shape { ring: 256 << 10, cells: 4 }, true).expect("segment"),
        );
        liar.settle(victim);
        liar
    }

    pub fn ended(&self) -> bool {
        matches!(answer(&self.fd), Answer::Ended)
    }

    /// Lends a page, as if it were at [`BASE`].
    pub fn lend(&self, number: u32) {
        let (fd, _mapping) = memfd::create("liar-page", 4096, false).expect("memfd");
        socket::send(&self.fd, Loan::new(number, BASE, 0, 4096).as_bytes(), &[fd.as_fd()]).expect("lent");
    }

    /// Writes a record, if there is room.
    pub fn write(&mut self, kind: Kind, tag: u64, data: u64, body: [u64; 2], payload: &mut [u8]) -> bool {
        let iov = [seg(payload)];
        let flags = match kind {
            Kind::Inline | Kind::Eager | Kind::Rts | Kind::Offer => flag::TAGGED,
            Kind::Data | Kind::Cts | Kind::Accept | Kind::Done | Kind::Fin => 0,
            Kind::Put | Kind::Get | Kind::Atomic | Kind::Event | Kind::Answer => flag::LAST,
        };
        let draft = Draft { kind, flags, tag, data, body, iov: &iov, skip: 0, len: payload.len(), bytes: &[] };
        self.link.send(&draft, Class::Control).is_ok()
    }

    /// Word `i` of the ring.
    pub fn ring(&self, i: usize) -> &AtomicU64 {
        self.mem.word(CONTROL_LINES * LINE_WORDS + i)
    }
}

/// What an offer says of where it is.
pub fn pieces(list: &[(u64, u64)]) -> Vec<u8> {
    list.iter().flat_map(|(at, len)| [*at, *len]).flat_map(u64::to_le_bytes).collect()
}

pub fn payload(n: usize) -> Vec<u8> {
    pattern(n, 5)
}
