//! A head and little behind it, by one call for one place: the kernel is quicker with that than with a list of places.
//!
//! Mostly that is a frame of records, and the place is the mirror: the head comes to stand before the line with which they begin, at the end of a line that the
//! reader has given back, and they stand where they belong. Where there is no such line, or it may not be written to yet, all is received elsewhere and copied.

use super::guess::Guess;
use super::{Incoming, Stop, came};
use crate::shm::layout::LINE;
use crate::sys::tcp::{self, FLAT};
use crate::wire::frame::{Body, FRAME_HEAD, Frame};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::mem::MaybeUninit;

impl Incoming {
    /// One call for a head and `bytes` bytes of lines behind it.
    #[inline]
    pub(super) fn receive_little(&mut self, fd: &OwnedFd, bytes: usize) -> Result<Option<(usize, usize)>, Stop> {
        match self.mirror.as_ref().and_then(|mirror| mirror.place_with_head(bytes)) {
            Some(place) => self.receive_in_place(fd, place, bytes),
            None => self.receive_elsewhere(fd, FRAME_HEAD + bytes),
        }
    }

    /// To the mirror, from byte `place` of its lines on.
    fn receive_in_place(&mut self, fd: &OwnedFd, place: usize, bytes: usize) -> Result<Option<(usize, usize)>, Stop> {
        let Some(mirror) = &mut self.mirror else { return Err(Stop::Garbage) };
        let room = FRAME_HEAD + bytes;
        let Some(got) = came(tcp::recv_own(fd, mirror.lines(), place, room))? else { return Ok(None) };
        let Some(rest) = got.checked_sub(FRAME_HEAD) else {
            let mut head = [0; FRAME_HEAD];
            mirror.lines().read_bytes(place, &mut head[..got]);
            self.scratch.fill_bytes(0, &head[..got]);
            self.head_came(got)?;
            return Ok(Some((room, got)));
        };
        let head = mirror.head_at(place);
        if let Ok(frame @ Frame { body: Body::Records { position, skipped: 0, lines }, .. }) = Frame::parse(head)
            && rest == lines as usize * LINE
            && mirror.takes(position, 0, lines)
        {
            self.records_came(&frame, lines);
            return Ok(Some((room, got)));
        }
        self.head_is(head)?;
        self.tidy(Guess::Records { bytes }, rest);
        Ok(Some((room, got)))
    }

    /// To a place from which it is copied when it is known what it is.
    fn receive_elsewhere(&mut self, fd: &OwnedFd, room: usize) -> Result<Option<(usize, usize)>, Stop> {
        let mut bytes = [MaybeUninit::uninit(); FLAT];
        let got = match tcp::recv_into(fd, &mut bytes[..room]) {
            Ok([]) => return Err(Stop::Ended),
            Ok(got) => got,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            Err(why) => return Err(why.into()),
        };
        if !self.take_whole(got) {
            let read = self.take(got)?;
            self.carried.extend_from_slice(&got[read..]);
        }
        Ok(Some((room, got.len())))
    }

    /// What mostly came: a head, the lines that it says, and nothing else. Whether that is what these are; if not, nothing has happened.
    fn take_whole(&mut self, bytes: &[u8]) -> bool {
        let Some((head, body)) = bytes.split_first_chunk() else { return false };
        let (Ok(frame), Some(mirror)) = (Frame::parse(*head), &mut self.mirror) else { return false };
        let Body::Records { position, skipped, lines } = frame.body else { return false };
        if body.len() != lines as usize * LINE || !mirror.takes(position, skipped, lines) {
            return false;
        }
        mirror.put(0, body);
        self.records_came(&frame, lines);
        true
    }

    /// All lines of a frame are in their place.
    #[inline]
    fn records_came(&mut self, frame: &Frame, lines: u32) {
        if let Some(mirror) = &mut self.mirror {
            mirror.hear(frame);
            mirror.show(lines);
        }
        self.records_begin(lines);
    }

    /// One call for a short message whose envelope the engine has not seen yet: all of it is carried.
    pub(super) fn receive_ahead(&mut self, fd: &OwnedFd, room: usize) -> Result<Option<(usize, usize)>, Stop> {
        Ok(came(tcp::recv_behind(fd, &mut self.carried, room))?.map(|got| (room, got)))
    }
}
