//! What arrives by a connection: a hello, then frames, whose bodies go where they belong without a stop: lines into the mirror of the
//! other side's ring, payload into the application's buffer.
//!
//! What is guessed of what comes next stands in `guess.rs`, reads of little by one call in `little.rs`, what
//! waits for the engine in `waiting.rs`.
//!
//! **What is half there is not seen.** The reader of the mirror looks at the first word of a record. The first word of a frame's lines (or of the skip before them) is put in
//! last, when all of them are there, and the word behind them is cleared before (`shm/ring.rs` has the rule).
//!
//! Nothing that is read from a head is believed: positions must follow each other, lines must fit into what the reader has given back,
//! payload must have a place in a message that is expected (`expected.rs`).

mod guess;
mod little;
mod waiting;

use super::Guesses;
use super::expected::{By, Expectations};
use super::mirror::Mirror;
use super::stop::{Stop, came};
use super::stream::Stream;
use crate::mem::shared::{Heap, SharedMem};
use crate::mem::user::scatter_bytes;
use crate::shm::layout::LINE;
use crate::sys::tcp::{self, FLAT, Piece};
use crate::wire::frame::{Body, FRAME_HEAD, Frame};
use crate::wire::hello::{HELLO_LEN, Hello};
use crate::wire::key::Proof;
use guess::Guess;
use rustix::io::Errno;
use smallvec::SmallVec;
use std::collections::VecDeque;

/// Most bytes of records that are guessed.
const GUESS: usize = 16 << 10;
/// Shorter frames after which less is guessed. Whoever sends many messages at once sends the first by itself, until that is known to be his habit (`bursts.rs`): short and long frames take turns.
const SHORTER: u32 = 4;
/// Most pieces of application memory in one system call.
const SEGMENTS: usize = 32;
/// Longest payload that is read along with its envelope, before it is known where it goes: to copy so much takes less than a further system call.
const AHEAD: usize = 32 << 10;
/// Bytes of a message that arrives by one packet or two: mostly all of it is there if some is. Inside of a host and by virtual cables packets have 64 KiB.
const AT_ONCE: usize = 96 << 10;
/// Most memory that is kept for bytes that are read again: more than what is read ahead takes.
const KEPT: usize = 2 * AHEAD;
/// Bytes that one call of [`Incoming::pump`] takes, so that others get their turn.
const TURN: usize = 1 << 20;

/// What the head of payload said of loans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Loan {
    /// It is lent to us.
    lent: bool,
    /// The other side wants to hear soon what of its loans has been read.
    tell: bool,
}

/// Where the stream stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// In the hello.
    Hello(usize),
    /// In a head.
    Head(usize),
    /// In the lines of a frame.
    Records { lines: u32, got: usize },
    /// In payload, which belongs at `start` of the part that is expected.
    Payload { id: u32, start: usize, len: usize, got: usize, loan: Loan },
    /// Before payload of a message whose envelope the engine has not read yet.
    Waiting { id: u32, offset: u64, len: usize, loan: Loan },
}

/// The incoming half of a connection.
pub(super) struct Incoming {
    at: At,
    /// The hello, then each head.
    scratch: SharedMem,
    mirror: Option<Mirror>,
    /// Also for the lanes.
    pub expected: Expectations,
    /// What the other side said of lanes last, until somebody asks: how many, and the token.
    pub lanes: Option<(u32, u64)>,
    /// Frames that were lent to us and that we have read.
    pub lent_read: u32,
    /// Such that may be anything, for who lent them may have taken them back before; and how many messages were all there before the first of them.
    doubtful: u32,
    certain: usize,
    /// Who lent them wants to hear of it.
    pub tells: bool,
    /// How many that we lent the other side has read, as it said last, until somebody asks.
    pub returned: Option<u32>,
    /// Bytes that stood where they did not belong, to be read again; the first of them are.
    carried: Vec<u8>,
    read: usize,
    /// What the last body was.
    last: Guess,
    /// Whose payload came last.
    last_payload: u32,
    /// Bytes of records that are guessed, and how many frames in a row were shorter.
    usual: usize,
    shorter: u32,
    /// Bytes of the frame of payload that came last.
    last_len: usize,
    /// Where bytes go that nobody wants, once there may be some.
    sink: Option<SharedMem>,
    /// The last call got less than it asked for.
    is_dry: bool,
    /// Bytes that came after the last turn, when it was known where they belong; who waits there is read in the next one, too.
    early: usize,
    /// The last turn brought a message of more than a segment.
    pub long: bool,
    /// Messages that are all there.
    pub done: VecDeque<u32>,
    pub guesses: Guesses,
    pub said_goodbye: bool,
}

const SCRATCH: usize = 512;
const SINK: usize = 4096;
const _: () = assert!(HELLO_LEN <= SCRATCH);

impl Incoming {
    pub fn new() -> Incoming {
        Incoming {
            at: At::Hello(0),
            scratch: SharedMem::new(Heap::new(SCRATCH)),
            mirror: None,
            expected: Expectations::default(),
            lanes: None,
            lent_read: 0,
            doubtful: 0,
            certain: 0,
            tells: false,
            returned: None,
            carried: Vec::new(),
            read: 0,
            last: Guess::Nothing,
            last_payload: 0,
            usual: 4 * LINE,
            shorter: 0,
            last_len: 0,
            sink: None,
            is_dry: false,
            early: 0,
            long: false,
            done: VecDeque::new(),
            guesses: Guesses::new(),
            said_goodbye: false,
        }
    }

    /// The bytes of the hello, once they are all there; `None` before.
    pub fn hello(&mut self, stream: &Stream) -> Result<Option<Vec<u8>>, Stop> {
        let At::Hello(mut got) = self.at else { return Err(Stop::Garbage) };
        while got < HELLO_LEN {
            match stream.recv(&[Piece::Own(&self.scratch, got, HELLO_LEN - got)]) {
                Ok(0) => return Err(Stop::Ended),
                Ok(n) => got += n,
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(why) => return Err(why.into()),
            }
            self.at = At::Hello(got);
        }
        let mut bytes = Vec::new();
        self.scratch.append_to(0, got, &mut bytes);
        // Who speaks another language is not waited for.
        match Hello::may_begin(&bytes) {
            true => Ok((got == HELLO_LEN || Hello::foreign(&bytes).is_some()).then_some(bytes)),
            false if Proof::may_begin(&bytes) => Err(Stop::Keyed),
            false => Err(Stop::Garbage),
        }
    }

    /// The hello is done: frames follow, of a ring that `theirs` becomes the mirror of. `mine` is what the other side mirrors.
    pub fn begin(&mut self, theirs: SharedMem, mine: SharedMem) {
        self.mirror = Some(Mirror::new(theirs, mine));
        self.at = At::Head(0);
    }

    /// Whether frames are read.
    pub fn has_begun(&self) -> bool {
        self.mirror.is_some()
    }

    /// Whether payload waits for the engine.
    pub fn is_parked(&self) -> bool {
        matches!(self.at, At::Waiting { .. })
    }

    /// Whether records wait that the engine must be told of.
    pub fn has_unseen(&self) -> bool {
        self.mirror.as_ref().is_some_and(Mirror::waits)
    }

    /// Of records that are not all there nothing is seen, whoever looks now; also if nothing more comes: then they never will be.
    #[inline]
    fn leave<T>(&mut self, did: Result<T, Stop>) -> Result<T, Stop> {
        if let (At::Records { .. }, Some(mirror)) = (self.at, &mut self.mirror) {
            mirror.withhold();
        }
        if did.is_err() {
            self.refuse();
        }
        did
    }

    /// Nothing more comes: nor is anything seen of what stands behind a head that was refused, and what was lent, and not taken back as far as was known, may have been since.
    #[cold]
    fn refuse(&mut self) {
        if let Some(mirror) = &mut self.mirror {
            mirror.clear_head();
        }
        if self.doubtful > 0 {
            self.done.truncate(self.certain);
        }
    }

    /// Payload of `len` bytes begins, or is there: what follows from that for guesses.
    fn remember(&mut self, id: u32, start: usize, len: usize) {
        (self.last, self.last_payload) = (Guess::Payload { id, start, bytes: 0 }, id);
        self.last_len = len;
    }

    /// Reads what is there, as far as this turn goes. Whether there was anything. `ready`: the poller says that the socket has something;
    /// else only the engine may have made room for what is here already.
    ///
    /// # Errors
    /// [`Stop`]: nothing more comes.
    #[inline]
    pub fn pump(&mut self, stream: &Stream, ready: bool) -> Result<bool, Stop> {
        let any = self.pump_in(stream, ready);
        self.leave(any)
    }

    #[inline]
    fn pump_in(&mut self, stream: &Stream, ready: bool) -> Result<bool, Stop> {
        let (mut taken, was_parked) = (std::mem::take(&mut self.early), self.is_parked());
        let goes_on = self.resume()?;
        self.confirm(stream)?;
        if !goes_on {
            self.long = false;
            return Ok(taken > 0);
        }
        while taken < TURN && (ready || !self.is_dry) {
            let got = self.receive_more(stream)?;
            taken += got;
            self.confirm(stream)?;
            if matches!(self.at, At::Waiting { .. }) {
                break;
            }
            if self.is_dry {
                break;
            }
        }
        self.long = taken > stream.segment() && self.last_is_long(stream.segment());
        Ok(taken > 0 || was_parked)
    }

    /// One call, and what is read again after it. How many bytes came.
    #[inline]
    fn receive_more(&mut self, stream: &Stream) -> Result<usize, Stop> {
        let Some((asked, got)) = self.receive(stream)? else {
            self.is_dry = true;
            return Ok(0);
        };
        self.is_dry = got < asked;
        self.read_again()?;
        Ok(got)
    }

    /// Whether bytes came since the last turn.
    pub fn came_early(&self) -> bool {
        self.early > 0
    }

    /// Whether what came last, or begins to come, begins with a message (or a frame of payload) of more than so many bytes that arrives by one packet or two. (Many short ones may come in one
    /// frame.)
    fn last_is_long(&self, bytes: usize) -> bool {
        let len = match (self.at, self.last, &self.mirror) {
            (At::Waiting { len, .. } | At::Payload { len, .. }, ..) => len,
            (At::Head(_), Guess::Payload { .. }, _) => self.last_len,
            (At::Head(_), Guess::Records { bytes: all }, Some(mirror)) => mirror.said_payload(all),
            // Of records a part is missing.
            _ => 0,
        };
        len > bytes && len <= AT_ONCE
    }

    /// Pages that were lent have been read: they are what the sender meant if he has not taken them back, by breaking the connection off, before.
    /// Otherwise no message is all there by them.
    ///
    /// # Errors
    /// [`Stop::Ended`]: he has.
    #[inline]
    fn confirm(&mut self, stream: &Stream) -> Result<(), Stop> {
        if self.doubtful == 0 { Ok(()) } else { self.confirm_read(stream) }
    }

    #[inline(never)]
    fn confirm_read(&mut self, stream: &Stream) -> Result<(), Stop> {
        if tcp::is_reset(stream.fd()) {
            self.done.truncate(self.certain);
            return Err(Stop::Ended);
        }
        self.lent_read = self.lent_read.wrapping_add(std::mem::take(&mut self.doubtful));
        Ok(())
    }

    fn payload_begins(&mut self, id: u32, offset: u64, len: usize, loan: Loan) -> Result<(), Stop> {
        self.at = At::Waiting { id, offset, len, loan };
        let claimed = self.expected.claim(id, offset, len, By::First).map_err(|_| Stop::Garbage)?;
        let Some(start) = claimed else { return Ok(()) };
        self.remember(id, start, len);
        self.at = At::Payload { id, start, len, got: 0, loan };
        Ok(())
    }

    /// One call: what is certain, and what is guessed. Returns the bytes that there was room for, and those that came; `None`: none.
    fn receive(&mut self, stream: &Stream) -> Result<Option<(usize, usize)>, Stop> {
        let head = match self.at {
            At::Head(got) => FRAME_HEAD - got,
            _ => FRAME_HEAD,
        };
        self.guesses.turn();
        let plain = stream.plain().filter(|_| self.at == At::Head(0));
        let guess = self.guess(plain.is_some());
        if let (Guess::Records { bytes }, Some(fd)) = (guess, plain)
            && FRAME_HEAD + bytes <= FLAT
        {
            return match self.ahead() {
                0 => self.receive_little(fd, bytes),
                payload => self.receive_ahead(fd, 2 * FRAME_HEAD + bytes + payload),
            };
        }
        let mut pieces = SmallVec::<[Piece<'_>; 8]>::new();
        self.name_body(self.body_left(), &mut pieces);
        let named: usize = pieces.iter().map(Piece::len).sum();
        // A body in too many pieces is asked for by itself.
        if named == self.body_left() {
            pieces.push(Piece::Own(&self.scratch, FRAME_HEAD - head, head));
            self.name_guess(guess, &mut pieces);
        }
        let room = pieces.iter().map(Piece::len).sum();
        let Some(got) = came(stream.recv(&pieces))? else { return Ok(None) };
        drop(pieces);
        let of_body = got.min(named);
        let of_head = (got - of_body).min(head);
        self.body_came(of_body);
        if of_head > 0 {
            self.head_came(of_head)?;
        }
        self.settle(guess, got - of_body - of_head);
        Ok(Some((room, got)))
    }

    /// A frame of so many lines is what came last: what follows from that for guesses.
    #[inline]
    fn records_begin(&mut self, lines: u32) {
        self.last = Guess::Records { bytes: lines as usize * LINE };
        // A line more: who gets less than he asks for need not ask again.
        let wanted = (lines as usize * LINE + LINE).min(GUESS);
        self.shorter += 1;
        if wanted >= self.usual || self.shorter == SHORTER {
            (self.usual, self.shorter) = (wanted, 0);
        }
    }

    /// Reads what was carried.
    #[inline]
    fn read_again(&mut self) -> Result<(), Stop> {
        if self.carried.is_empty() { Ok(()) } else { self.read_carried() }
    }

    fn read_carried(&mut self) -> Result<(), Stop> {
        let mut carried = std::mem::take(&mut self.carried);
        self.read += self.take(&carried[self.read..])?;
        if self.read == carried.len() {
            self.read = 0;
            // The memory serves again. What a wrong guess of much took is given back: each connection would keep as much for ever.
            match carried.capacity() {
                ..=KEPT => carried.clear(),
                _ => carried = Vec::new(),
            }
        }
        self.carried = carried;
        Ok(())
    }

    /// The next bytes are these: puts them where they belong. How many; what is behind them must wait for the engine.
    fn take(&mut self, all: &[u8]) -> Result<usize, Stop> {
        let mut bytes = all;
        while !bytes.is_empty() && !self.is_parked() {
            let n = if let At::Head(got) = self.at {
                let n = bytes.len().min(FRAME_HEAD - got);
                match bytes.first_chunk() {
                    Some(head) if got == 0 => self.head_is(*head)?,
                    _ => {
                        self.scratch.fill_bytes(got, &bytes[..n]);
                        self.head_came(n)?;
                    }
                }
                n
            } else {
                let n = bytes.len().min(self.body_left());
                let placed = self.place_body(&bytes[..n]);
                self.body_came(placed);
                placed
            };
            bytes = &bytes[n..];
        }
        Ok(all.len() - bytes.len())
    }

    /// Copies the next bytes of the body to their places. How many.
    fn place_body(&self, bytes: &[u8]) -> usize {
        if let (At::Records { got, .. }, Some(mirror)) = (self.at, &self.mirror) {
            mirror.put(got, bytes);
            return bytes.len();
        }
        let mut pieces = SmallVec::<[Piece<'_>; 8]>::new();
        self.name_body(bytes.len(), &mut pieces);
        let mut placed = 0;
        for piece in pieces {
            let part = &bytes[placed..placed + piece.len()];
            match piece {
                Piece::Own(mem, at, _) => mem.fill_bytes(at, part),
                Piece::User(seg) => _ = scatter_bytes(&[seg], 0, part),
            }
            placed += part.len();
        }
        placed
    }

    /// `n` further bytes of a head are here.
    fn head_came(&mut self, n: usize) -> Result<(), Stop> {
        let before = if let At::Head(got) = self.at { got } else { 0 };
        self.at = At::Head(before + n);
        if before + n < FRAME_HEAD {
            return Ok(());
        }
        let mut bytes = [0; FRAME_HEAD];
        self.scratch.read_bytes(0, &mut bytes);
        self.head_is(bytes)
    }

    fn head_is(&mut self, bytes: [u8; FRAME_HEAD]) -> Result<(), Stop> {
        let frame = Frame::parse(bytes).map_err(|_| Stop::Garbage)?;
        let Some(mirror) = &mut self.mirror else { return Err(Stop::Garbage) };
        mirror.hear(&frame);
        self.at = match frame.body {
            Body::Records { position, skipped, lines } => {
                if !mirror.takes(position, skipped, lines) {
                    return Err(Stop::Garbage);
                }
                self.records_begin(lines);
                At::Records { lines, got: 0 }
            }
            Body::Payload { id, offset, len, lent, tell } => {
                return self.payload_begins(id, offset, len as usize, Loan { lent, tell });
            }
            Body::News => At::Head(0),
            Body::Lanes { count, token } => {
                self.lanes = Some((count, token));
                At::Head(0)
            }
            Body::Read { frames } => {
                self.returned = Some(frames);
                At::Head(0)
            }
            Body::Goodbye => {
                mirror.close();
                self.said_goodbye = true;
                At::Head(0)
            }
        };
        Ok(())
    }

    /// `n` further bytes of a body are in their place.
    fn body_came(&mut self, n: usize) {
        match &mut self.at {
            At::Records { lines, got } => {
                *got += n;
                if *got == *lines as usize * LINE {
                    let lines = *lines;
                    if let Some(mirror) = &mut self.mirror {
                        mirror.show(lines);
                    }
                    self.at = At::Head(0);
                }
            }
            At::Payload { id, len, got, loan, .. } => {
                *got += n;
                let (id, whole) = (*id, *got == *len);
                if whole && loan.lent {
                    self.certain = if self.doubtful == 0 { self.done.len() } else { self.certain };
                    self.doubtful += 1;
                }
                self.tells |= whole && loan.tell;
                if self.expected.came(id, n) {
                    self.done.push_back(id);
                }
                if whole {
                    self.at = At::Head(0);
                }
            }
            At::Hello(_) | At::Head(_) | At::Waiting { .. } => {}
        }
    }

    /// The places of the next `bytes` of the body.
    fn name_body<'a>(&'a self, bytes: usize, pieces: &mut SmallVec<[Piece<'a>; 8]>) {
        match (self.at, &self.mirror) {
            (At::Records { got, .. }, Some(mirror)) => mirror.name(mirror.first(), got, bytes, pieces),
            (At::Payload { id, start, got, .. }, _) => self.name_payload(id, start + got, bytes, pieces),
            _ => {}
        }
    }

    fn name_payload<'a>(&'a self, id: u32, at: usize, bytes: usize, pieces: &mut SmallVec<[Piece<'a>; 8]>) {
        if let Some(expected) = self.expected.get(id)
            && bytes > 0
        {
            let placed = expected.placed(at, bytes);
            if placed > 0 {
                let iov = expected.place(at, placed);
                pieces.extend(iov.iter().take(SEGMENTS).copied().map(Piece::User));
                if iov.len() > SEGMENTS {
                    return;
                }
            }
            if placed < bytes
                && let Some(sink) = &self.sink
            {
                pieces.push(Piece::Own(sink, 0, (bytes - placed).min(SINK)));
            }
        }
    }

    /// Bytes of the body that are still to come.
    fn body_left(&self) -> usize {
        match self.at {
            At::Records { lines, got } => lines as usize * LINE - got,
            At::Payload { len, got, .. } => len - got,
            At::Hello(_) | At::Head(_) | At::Waiting { .. } => 0,
        }
    }
}
