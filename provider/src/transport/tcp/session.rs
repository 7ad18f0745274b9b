//! An encrypted stream: bytes go into messages of the Noise protocol, each behind its length in two bytes, and come out of them.
//!
//! Towards the rest it is a socket: [`Session::send`] takes as much as fits, [`Session::recv`] fills the pieces as far as there is something. What was
//! taken is copied: the pieces may change at once. It may lie here until the socket has room ([`Session::push`]), and what arrived may lie
//! here until it is asked for ([`Session::has_more`]); of either no more than [`BATCH`] bytes.

use super::proof::TAG;
use crate::mem::user::{gather_into, scatter_bytes};
use crate::sys::tcp::{self, Piece};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use snow::TransportState;

/// Bytes of text in one message.
pub(super) const TEXT: usize = 16 << 10;
/// Bytes of the length before a message.
const PREFIX: usize = 2;
const LONGEST: usize = TEXT + TAG;
/// Bytes that wait for the socket, or are taken out of it, at a time.
const BATCH: usize = 8 * (PREFIX + LONGEST);

/// Bytes that come in behind and go out in front. The memory is there from the start, and used as far as it is needed.
struct Queue {
    bytes: Vec<u8>,
    from: usize,
    to: usize,
}

impl Queue {
    fn new(room: usize) -> Queue {
        Queue { bytes: vec![0; room], from: 0, to: 0 }
    }

    fn rest(&self) -> &[u8] {
        &self.bytes[self.from..self.to]
    }

    fn is_empty(&self) -> bool {
        self.from == self.to
    }

    /// The first `n` bytes are done with.
    fn done(&mut self, n: usize) {
        self.from += n;
        if self.is_empty() {
            (self.from, self.to) = (0, 0);
        }
    }

    /// The place behind the bytes that are here; what is put there counts once [`came`](Self::came) says so.
    fn room(&mut self) -> &mut [u8] {
        &mut self.bytes[self.to..]
    }

    fn came(&mut self, n: usize) {
        self.to += n;
    }

    /// All room is behind.
    fn compact(&mut self) {
        self.bytes.copy_within(self.from..self.to, 0);
        (self.from, self.to) = (0, self.to - self.from);
    }
}

/// What encrypts a connection.
pub(super) struct Session {
    noise: TransportState,
    /// Messages that are to leave.
    out: Queue,
    /// Messages that came, the last one perhaps in part.
    came: Queue,
    /// Text that came.
    text: Queue,
    scratch: Vec<u8>,
}

impl Session {
    pub fn new(noise: TransportState) -> Session {
        let [out, came, text] = [BATCH, BATCH, TEXT].map(Queue::new);
        Session { noise, out, came, text, scratch: Vec::new() }
    }

    /// Takes as much of the pieces as there is room for, and sends it if the socket has room.
    ///
    /// # Errors
    /// `EAGAIN` if nothing was taken; what the socket says.
    pub fn send(&mut self, fd: &OwnedFd, pieces: &[Piece<'_>]) -> Result<usize, Errno> {
        let mut taken = 0;
        if !self.push(fd)? {
            return Err(Errno::AGAIN);
        }
        loop {
            let len = self.encrypt(pieces, taken)?;
            taken += len;
            if len < TEXT {
                self.push(fd)?;
                return Ok(taken);
            }
            if self.out.room().len() < PREFIX + LONGEST && !self.push(fd)? {
                return Ok(taken);
            }
        }
    }

    /// One message of what is in the pieces from `skip` on. Returns the bytes of its text; 0: there were none.
    fn encrypt(&mut self, pieces: &[Piece<'_>], mut skip: usize) -> Result<usize, Errno> {
        let mut text = std::mem::take(&mut self.scratch);
        text.clear();
        for piece in pieces {
            let len = piece.len().saturating_sub(skip).min(TEXT - text.len());
            if len > 0 {
                match piece {
                    Piece::Own(mem, at, _) => mem.append_to(at + skip, len, &mut text),
                    Piece::User(seg) => gather_into(&[*seg], skip, len, &mut text),
                }
            }
            skip = skip.saturating_sub(piece.len());
        }
        let len = text.len();
        if len > 0 {
            let (prefix, message) = self.out.room().split_at_mut(PREFIX);
            // Never: there is room, and 2^64 messages are not sent.
            let n = self.noise.write_message(&text, message).map_err(|_| Errno::IO)?;
            prefix.copy_from_slice(&(n as u16).to_le_bytes());
            self.out.came(PREFIX + n);
        }
        self.scratch = text;
        Ok(len)
    }

    /// Sends what was taken. Whether that was all.
    ///
    /// # Errors
    /// What the socket says.
    pub fn push(&mut self, fd: &OwnedFd) -> Result<bool, Errno> {
        while !self.out.is_empty() {
            match tcp::send_bytes(fd, self.out.rest()) {
                Ok(n) => self.out.done(n),
                Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM) => return Ok(false),
                Err(Errno::INTR) => {}
                Err(why) => return Err(why),
            }
        }
        Ok(true)
    }

    /// Whether something lies here that the socket does not tell of.
    pub fn has_more(&self) -> bool {
        !self.text.is_empty() || self.message().is_some_and(|len| self.came.rest().len() >= PREFIX + len)
    }

    /// Fills the pieces as far as there is something. If they are not full, there is nothing more. 0 is the end.
    ///
    /// # Errors
    /// `EAGAIN` if there is nothing; `EBADMSG`: what came was not sent by the other side.
    pub fn recv(&mut self, fd: &OwnedFd, pieces: &[Piece<'_>]) -> Result<usize, Errno> {
        let room: usize = pieces.iter().map(Piece::len).sum();
        let (mut placed, mut empty) = (0, false);
        loop {
            placed += self.place(pieces, placed);
            if placed == room {
                return Ok(placed);
            }
            if self.decrypt()? {
                continue;
            }
            let read = if empty { Err(Errno::AGAIN) } else { self.read(fd) };
            match read {
                Ok(whole) => empty = !whole,
                Err(Errno::INTR) => {}
                Err(_) if placed > 0 => return Ok(placed),
                // The end, in the middle of a message or between two: who has more to say says goodbye.
                Err(Errno::PIPE) => return Ok(0),
                Err(why) => return Err(why),
            }
        }
    }

    /// Reads once. Whether there may be more; `EPIPE` is the end.
    fn read(&mut self, fd: &OwnedFd) -> Result<bool, Errno> {
        self.came.compact();
        let got = tcp::recv_bytes(fd, self.came.room())?;
        if got == 0 {
            return Err(Errno::PIPE);
        }
        self.came.came(got);
        Ok(self.came.room().is_empty())
    }

    /// Bytes of the first message, if its length is here.
    fn message(&self) -> Option<usize> {
        self.came.rest().first_chunk::<PREFIX>().map(|len| u16::from_le_bytes(*len).into())
    }

    /// Takes the next message apart, if it is all here.
    fn decrypt(&mut self) -> Result<bool, Errno> {
        let Some(len) = self.message() else { return Ok(false) };
        if !(TAG + 1..=LONGEST).contains(&len) {
            return Err(Errno::BADMSG);
        }
        let Some(message) = self.came.rest().get(PREFIX..PREFIX + len) else { return Ok(false) };
        let text = self.noise.read_message(message, self.text.room()).map_err(|_| Errno::BADMSG)?;
        self.text.came(text);
        self.came.done(PREFIX + len);
        Ok(true)
    }

    /// Puts text that is here into the pieces, behind their first `skip` bytes. Returns how much.
    fn place(&mut self, pieces: &[Piece<'_>], mut skip: usize) -> usize {
        let (text, mut placed) = (self.text.rest(), 0);
        for piece in pieces {
            let part = &text[placed..];
            let part = &part[..part.len().min(piece.len().saturating_sub(skip))];
            if !part.is_empty() {
                match piece {
                    Piece::Own(mem, at, _) => mem.fill_bytes(at + skip, part),
                    Piece::User(seg) => _ = scatter_bytes(&[*seg], skip, part),
                }
                placed += part.len();
            }
            skip = skip.saturating_sub(piece.len());
        }
        self.text.done(placed);
        placed
    }
}
