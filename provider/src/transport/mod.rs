//! Ways to a peer: the data side of a connection ([`link`]), and how one comes about on this host ([`local`]) and between hosts ([`tcp`]).
//!
//! In this file is the seam between the two floors: what the endpoint needs of the place where it meets others. Behind it are the
//! kernel's sockets, or a simulation (`tests/simulation/`). Towards peers of this host it is crossed at first contact, at ends, and now and then
//! by a poll, never for a message; what goes to other hosts needs system calls, and they are behind it.
//!
//! ```text
//! Venue   where endpoints meet     open(name) ─▶ Door
//! Door    one endpoint's place     call(name) ─▶ Line · poll ─▶ Event::Call(Line), Event::Peer · segment, bell ─▶ memory to hand over
//! Line    one conversation         greet(hello, memory) · lend(memory) · hear ─▶ Reply · watch · turn_away · wake; dropped: hung up
//! ```

pub mod link;
pub mod local;
pub mod tcp;

pub use crate::cache::own::{Lendable, NotLendable};
use crate::config::network::Secret;
use crate::error::Error;
use crate::mem::shared::SharedMem;
use crate::mem::user::UserSeg;
use crate::peer::name::{Addresses, Name};
use crate::shm::bell;
use crate::shm::segment::{self, Shape};
use crate::sys::absence::Absence;
use crate::sys::backing::Why;
use crate::sys::memfd;
use crate::sys::wake::Wake;
use crate::types::PeerId;
use crate::wire::hello::{Hello, Refusal};
use crate::wire::loan::Loan;
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::sync::Arc;
use tcp::{By, Lessons};

/// Where endpoints meet.
pub trait Venue: Send + Sync {
    /// The door of the endpoint `name`.
    ///
    /// # Errors
    /// [`Error::AddressInUse`] if somebody else is there, [`Error::NoResources`].
    fn open(&self, name: &Name) -> Result<Box<dyn Door>, Error>;

    /// The same for an endpoint that has a job's key of its own; an empty one: that of the venue, if it has one.
    ///
    /// # Errors
    /// As [`open`](Self::open); [`Error::Invalid`]: the key cannot be used, which is said in the log.
    fn open_with_key(&self, name: &Name, _key: &Secret) -> Result<Box<dyn Door>, Error> {
        self.open(name)
    }

    /// 64 random bits: for names, and so that calls are not repeated in step.
    fn random(&self) -> u64;
}

/// Nanoseconds to wait instead of `pause`, so that many who began at the same moment do not go on in step: half of it to one and a half.
pub fn out_of_step(pause: u64, random: u64) -> u64 {
    pause / 2 + random % pause.max(1)
}

/// How a peer is reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reach {
    /// It is on this host: memory can be handed over.
    #[default]
    Host,
    /// By the network.
    Network,
}

/// Where an endpoint listens for other hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The addresses that others are told, best first.
    pub addresses: Addresses,
    /// Port.
    pub port: u16,
}

/// What became of guesses where bytes belong that a line had not heard of yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Guessed {
    /// So many were right.
    pub right: u64,
    /// So many were wrong.
    pub wrong: u64,
    /// Bytes that were read to where they belong by that, and needed no call of their own.
    pub placed: u64,
    /// Bytes that were read to a wrong place, and copied out of it.
    pub moved: u64,
    /// Times that it did not pay, and was stopped for a while.
    pub stops: u64,
    /// Lines on which it is stopped now.
    pub paused: u64,
}

impl Guessed {
    /// Both together.
    pub fn plus(self, other: Guessed) -> Guessed {
        Guessed {
            right: self.right + other.right,
            wrong: self.wrong + other.wrong,
            placed: self.placed + other.placed,
            moved: self.moved + other.moved,
            stops: self.stops + other.stops,
            paused: self.paused + other.paused,
        }
    }
}

/// How some connections send long messages (by how many of them, without a copy by the kernel), for people.
#[derive(Clone, Debug)]
pub struct Tale {
    /// What it is about.
    pub about: &'static str,
    /// Whether they do so.
    pub on: bool,
    /// How many.
    pub connections: usize,
    /// Why, or why not.
    pub why: String,
    /// The link by which they leave, if that is known.
    pub link: Option<Arc<str>>,
    /// Who found out what they go by, if somebody did.
    pub by: Option<By>,
    /// Connections of a pair, where it is about these.
    pub number: Option<usize>,
}

/// The place of one endpoint at the venue. Dropped, it is closed.
pub trait Door: Send {
    /// Where it listens for other hosts; `None` if it does not.
    fn place(&self) -> Option<&Place> {
        None
    }

    /// Endpoints of this process that listen at that port, this one included.
    fn listening(&self) -> usize {
        1
    }

    /// How the endpoint `name` can be reached.
    ///
    /// # Errors
    /// [`Error::Unreachable`]: not at all.
    fn reach(&self, name: &Name) -> Result<Reach, Error>;

    /// Calls the endpoint that listens as `name`; on this host, checks that it is this user's. Returns its process, too, 0 if it has no number here.
    ///
    /// # Errors
    /// [`NoCall`]; nothing happened.
    fn call(&mut self, name: &Name, reach: Reach) -> Result<(Arc<dyn Line>, u32), NoCall>;

    /// The time for a [call](Self::call) of `name` is up: says what was tried, and gives it up.
    fn give_up(&mut self, _name: &Name) {}

    /// One turn of what needs system calls for each message. Returns how much there was, and whether something is held up
    /// ([`is_held_up`](Self::is_held_up)). `now` as in [`poll`](Self::poll), perhaps some turns old; without `look` nothing new is taken in: what came
    /// before is still to be read.
    fn turn(&mut self, _now: u64, _look: bool, _events: &mut Vec<Event>) -> (usize, bool) {
        (0, false)
    }

    /// Whether [`turn`](Self::turn) does anything: there are peers on the network, or may be.
    fn has_turns(&self) -> bool {
        false
    }

    /// Further connections for long messages that there are or were, and bytes that left by them.
    fn lanes(&self) -> (u64, u64) {
        (0, 0)
    }

    /// Bytes that were given to the kernel to be sent without a copy, those of registered buffers, and how many of both it copied all the same.
    fn zerocopy(&self) -> [u64; 3] {
        [0; 3]
    }

    /// How connections send long messages.
    fn tales(&self) -> Vec<Tale> {
        Vec::new()
    }

    /// Somebody is about to sleep on [`as_fd`](Self::as_fd): everything that comes must make it readable.
    fn arm(&mut self) {}

    /// Nanoseconds that may be slept there; `None`: as long as anybody likes.
    fn longest_nap(&self) -> Option<u64> {
        None
    }

    /// Whether something can be read further once the endpoint has read what is in its rings.
    fn is_held_up(&self) -> bool {
        false
    }

    /// Nobody sleeps there any more.
    fn disarm(&mut self) {}

    /// Notes there from now on what is kept back until the next turn.
    fn note_at(&mut self, _absence: &Arc<Absence>) {}

    /// From now on what is found out about links is written down there, and what others found serves from the start.
    fn learn(&mut self, _lessons: &Arc<Lessons>) {}

    /// Whether something is kept back until the next turn.
    fn keeps_back(&self) -> bool {
        false
    }

    /// The endpoint closes: sends what is left. Whether it is out of this process's hands.
    fn part(&mut self) -> bool {
        true
    }

    /// Looks once for what there is, without waiting. `now` in nanoseconds. Whether there was anything, also such as is no event yet.
    fn poll(&mut self, now: u64, events: &mut Vec<Event>) -> bool;

    /// What of that has its time, without a look for what is new where that would be a system call.
    fn tend(&mut self, now: u64, events: &mut Vec<Event>) {
        self.poll(now, events);
    }

    /// Memory for a ring towards one peer that only this process can write, and what hands it over.
    ///
    /// # Errors
    /// Why there is none.
    fn segment(&mut self, reach: Reach, shape: Shape) -> Result<(Handed, SharedMem), Errno>;

    /// Memory for a bell that all peers can write, and what hands it over.
    ///
    /// # Errors
    /// Why there is none.
    fn bell(&mut self) -> Result<(Handed, SharedMem), Errno>;

    /// What wakes this endpoint from inside.
    ///
    /// # Errors
    /// [`Error::NoResources`]: naps must be short.
    fn own_waker(&mut self) -> Result<Arc<dyn Wake>, Error>;

    /// What the kernel calls process `pid` when it is asked for that one's memory; 0: it is not to be asked.
    fn kernel_pid(&self, pid: u32) -> u32;

    /// Readable while there is something to be polled for; `None` if nobody can sleep here.
    fn as_fd(&self) -> Option<BorrowedFd<'_>>;

    /// The memory in which a buffer of this process lies, or its first part, if peers could map that. Asked for each long message: for memory that
    /// cannot be lent it makes no system call but now and then.
    fn lendable(&mut self, _address: usize, _len: usize) -> Option<Lendable> {
        None
    }

    /// Why [`lendable`](Self::lendable) just found nothing for a buffer that begins at `address`. For people.
    fn why_not_lendable(&self, _address: usize) -> NotLendable {
        NotLendable::Known(Why::Private)
    }

    /// After [`lendable`](Self::lendable) has found nothing for a buffer that begins at `address`: of how many further messages out of it the same would be found. They count as asked for.
    fn as_before(&mut self, _address: usize) -> u8 {
        0
    }

    /// The number of memory that was lendable and is no more, or counts as new from now on; peers may let go of it. Asked now and then: one load
    /// if nothing happened.
    fn ended(&mut self) -> Option<u32> {
        None
    }

    /// Of how much of this process's memory something is kept, in mappings and bytes.
    fn kept(&self) -> (usize, usize) {
        (0, 0)
    }

    /// What hands that memory over; `None`: it cannot be handed over now.
    fn lend(&mut self, _memory: &Lendable, _writable: bool) -> Option<Handed> {
        None
    }
}

/// A conversation with one peer. Dropped, it is hung up, and the other side hears of the end.
pub trait Line: Wake {
    /// Says hello, with our memory. To whom has turned us away already, but for a reason that is still to be [heard](Self::hear), nothing is said.
    ///
    /// # Errors
    /// [`NoCall`]; nothing was said.
    fn greet(&self, hello: &Hello, segment: &Handed, bell: &Handed) -> Result<(), NoCall>;

    /// Hands memory over that the peer may map. It is with the peer when this returns.
    ///
    /// # Errors
    /// [`NoCall`]; nothing was said.
    fn lend(&self, _loan: &Loan, _memory: &Handed) -> Result<(), NoCall> {
        Err(NoCall::Never(Error::Unsupported))
    }

    /// How it reaches the peer.
    fn reach(&self) -> Reach {
        Reach::Host
    }

    /// The peer's hello is accepted: what it writes may come. How far we have read it will stand in `mine`.
    fn begin(&self, _mine: &SharedMem) {}

    /// What moves payload past the rings, if it does not come by itself.
    fn in_place(self: Arc<Self>) -> Option<Arc<dyn InPlace>> {
        None
    }

    /// What the peer said.
    fn hear(&self) -> Reply;

    /// Tells a caller why it is not wanted. Best effort: hanging up says enough.
    fn turn_away(&self, why: Refusal);

    /// What became of guesses on it.
    fn guessed(&self) -> Guessed {
        Guessed::default()
    }

    /// It belongs to `peer` from now on: when it has something to say, that is an [`Event::Peer`] at our door.
    fn watch(&self, peer: PeerId);

    /// No events of it any more.
    fn forget(&self);
}

/// A part of a message that goes from the application's memory to the application's memory.
pub struct Bulk<'a> {
    /// The sender's name for the message.
    pub id: u32,
    /// All of its memory.
    pub iov: &'a [UserSeg],
    /// Where the part begins.
    pub skip: usize,
    /// Its bytes, not 0.
    pub len: usize,
    /// Of these the first ones that the receiver has not asked for; the rest, it has.
    pub promised: usize,
}

/// How far a part got by the time of which it was spoken of first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moved {
    /// All of it has left, or is there: nothing more is said of it.
    AtOnce,
    /// [`Reply::Left`] or [`Reply::Landed`] will name it.
    Later,
}

/// Moves parts of messages without a stop in a ring. If it is not done at once the memory must stay until [`Reply::Left`] or [`Reply::Landed`] names
/// the message, or the line is [forgotten](Line::forget).
pub trait InPlace: Send + Sync {
    /// Sends a part that the peer expects, or will as soon as it reads the record before it.
    fn post(&self, bulk: Bulk<'_>) -> Moved;

    /// A part will come. Said before the peer is asked for it, if it is.
    fn expect(&self, bulk: Bulk<'_>) -> Moved;

    /// The same of a part whose place others look at: nothing is written there but the part, not even for a moment, by a guess.
    fn expect_exactly(&self, bulk: Bulk<'_>) -> Moved;

    /// Sends a part, one piece of memory, of which nothing is lent to the kernel or the peer: what it has not taken may be [elsewhere](Self::relocate) by then.
    fn post_fickle(&self, bulk: Bulk<'_>) -> Moved;

    /// All of a part that was [posted](Self::post_fickle) is there as well, and where it was is not read any more once this returns.
    fn relocate(&self, id: u32, there: UserSeg);

    /// The memory for a part that is expected is not to be written any more once this returns: what has not come of it is dropped. It still
    /// [lands](Reply::Landed).
    fn disown(&self, id: u32);

    /// Much of what came by the ring has been read: the peer hears of it now, if it is so much that it may wait for room.
    fn tell_of_room(&self);
}

/// Memory on its way between two endpoints.
pub enum Handed {
    /// Of another process of this host; not looked at yet.
    Descriptor(OwnedFd),
    /// Of this process.
    Own(SharedMem),
}

/// Memory that a peer lends, which can be mapped at any time, as often as wanted.
pub enum Anchor {
    /// A part of a file.
    File(memfd::Anchor),
    /// Memory of this process.
    Own(SharedMem),
}

impl Anchor {
    /// Its bytes.
    pub fn bytes(&self) -> usize {
        match self {
            Anchor::File(file) => file.bytes(),
            Anchor::Own(mem) => mem.bytes(),
        }
    }

    /// Maps it.
    ///
    /// # Errors
    /// What mremap(2) says: there are no addresses left, or too many mappings.
    pub fn attach(&self) -> Result<SharedMem, Errno> {
        match self {
            Anchor::File(file) => Ok(SharedMem::new(file.attach()?)),
            Anchor::Own(mem) => Ok(mem.clone()),
        }
    }
}

impl Handed {
    /// Maps a peer's segment, for reading only (`open`: as [`segment::attach`] says).
    ///
    /// # Errors
    /// `EINVAL` if it is not a sound segment of this size.
    pub fn segment(&self, bytes: usize, open: bool) -> Result<SharedMem, Errno> {
        match self {
            Handed::Descriptor(fd) => segment::attach(fd, bytes, open),
            Handed::Own(mem) if mem.bytes() == bytes => Ok(mem.clone()),
            Handed::Own(_) => Err(Errno::INVAL),
        }
    }

    /// What a peer lends, to be mapped: `length` bytes from `offset` on.
    ///
    /// # Errors
    /// `EINVAL` if it is not a sound file, or shorter; what mmap(2) says.
    pub fn loan(&self, offset: u64, length: usize, writable: bool) -> Result<Anchor, Errno> {
        match self {
            Handed::Descriptor(fd) => Ok(Anchor::File(memfd::anchor(fd, offset, length, writable)?)),
            Handed::Own(mem) => {
                let start =
                    usize::try_from(offset).ok().filter(|start| start.checked_add(length).is_some_and(|end| end <= mem.bytes()));
                Ok(Anchor::Own(mem.slice(start.ok_or(Errno::INVAL)?, length)))
            }
        }
    }

    /// Maps a peer's bell.
    ///
    /// # Errors
    /// `EINVAL` if it is none.
    pub fn bell(&self) -> Result<SharedMem, Errno> {
        match self {
            Handed::Descriptor(fd) => Ok(SharedMem::new(memfd::attach(fd, bell::BYTES, true)?)),
            Handed::Own(mem) if mem.bytes() == bell::BYTES => Ok(mem.clone()),
            Handed::Own(_) => Err(Errno::INVAL),
        }
    }
}

/// A hello that came with its memory.
pub struct Greeting {
    /// The message.
    pub hello: Hello,
    /// The sender's segment.
    pub segment: Handed,
    /// The sender's bell.
    pub bell: Handed,
}

/// What happened at a door.
pub enum Event {
    /// Somebody called.
    Call {
        /// The connection.
        line: Arc<dyn Line>,
        /// Which process, by the kernel's word.
        pid: u32,
        /// What it said.
        greeting: Box<Greeting>,
    },
    /// A line of this peer has something to say ([`Line::hear`]).
    Peer(PeerId),
    /// We sent something to ourselves and seemed to sleep.
    Own,
    /// A caller was turned away, and for which error if for one; for the log.
    TurnedAway(String, Option<Error>),
    /// A caller had to be turned away, or must wait, because of what the kernel said: something is lacking here.
    Lacking(String, Errno),
}

/// Why a call did not go through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoCall {
    /// Try again in a moment.
    Later,
    /// It is under way: ask again at the next look.
    Soon,
    /// Never.
    Never(Error),
}

/// What a peer said.
pub enum Reply {
    /// Nothing yet.
    Nothing,
    /// Only that we seemed to sleep.
    Wake,
    /// Its hello.
    Greeting(Box<Greeting>),
    /// It lends memory; `None`: that was lost on the way, for want of descriptors.
    Loan(Loan, Option<Handed>),
    /// All of a part that we [posted](InPlace::post) has left.
    Left(u32),
    /// All of a part that we [expected](InPlace::expect) has come.
    Landed(u32),
    /// It has called, too, and that call counts.
    Crossed,
    /// It is not whom we called; its name has other addresses, and a further call tries these.
    Elsewhere,
    /// It does not want us, or cannot be used.
    Refused(Error),
    /// What it handed over was lost, for this process has no descriptors for it.
    Lost,
    /// It speaks this other version of the protocol.
    Foreign(u32),
    /// It is gone.
    Ended,
}
