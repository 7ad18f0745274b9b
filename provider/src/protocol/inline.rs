//! Inline: header and payload in one record of at most four lines.
//!
//! ```text
//! sender                         receiver
//!   record [head|payload] ─────▶   match → copy out → done
//! ```
//! An inline message needs no window: like an envelope it is always taken, and if nobody asked for it, its few bytes
//! are kept beside its envelope. That is what lets inject calls complete at once.

use super::{
    Announced, Delivery, Placed, Protocol, Refused, Started, Wire, envelope_of, first, flags_of, hold_whole, place_held,
    place_whole,
};
use crate::mem::user::UserSeg;
use crate::request::{Envelope, Held, Message, RecvReq, SendReq};
use crate::transport::link::{Class, Corrupt, Link, NotSent};
use crate::types::{INJECT_MAX, ProtoId};
use crate::wire::header::{Header, INLINE_MAX, Kind};

const _: () = assert!(INLINE_MAX == INJECT_MAX);

/// The protocol.
pub struct Inline;

impl Protocol for Inline {
    type Body = ();
    const ID: ProtoId = ProtoId::Inline;
    const WHAT: &'static str = "payload beside the header";

    #[inline]
    fn start(wire: &mut Wire<'_>, msg: &Message<'_>, _req: &SendReq) -> Result<Started, Refused> {
        let draft = first(Kind::Inline, msg, [0; 2], msg.len);
        Ok(Started::Sent(wire.link.send(&draft, Class::Envelope)?))
    }

    #[inline]
    fn announced(_wire: &mut Wire<'_>, header: &Header) -> Result<Announced<()>, Corrupt> {
        Ok(Announced { env: envelope_of(header, header.len as usize), body: () })
    }

    #[inline]
    fn place(wire: &mut Wire<'_>, header: &Header, _said: &Announced<()>, req: &RecvReq) -> Result<Placed, Corrupt> {
        Ok(place_whole(wire, header, req))
    }

    fn hold(wire: &mut Wire<'_>, header: &Header, _said: &Announced<()>) -> Result<Held, Corrupt> {
        Ok(Held::Inline(hold_whole(wire, header)))
    }
}

/// [`Inline::start`](Protocol::start) of a message in one piece of at most [`INLINE_MAX`] bytes. Returns the position behind it.
#[inline]
pub fn send(link: &mut Link, tagged: bool, tag: u64, data: Option<u64>, piece: &UserSeg) -> Result<u32, NotSent> {
    let flags = flags_of(tagged, data.is_some());
    link.send_inline((flags, tag, data.unwrap_or(0)), std::slice::from_ref(piece), piece.len())
}

/// The record at the head of the ring and what matching needs of it, if it is an inline message. `waited`: its reader had nothing to do until it came.
#[inline]
pub fn at_head(link: &mut Link, waited: bool) -> Option<(Header, Envelope)> {
    let header = link.peek_inline()?;
    let lines = Header::inline_lines(header.len.into());
    if lines > 1 && waited {
        link.fetch(lines);
    }
    Some((header, envelope_of(&header, header.len.into())))
}

/// [`Inline::place`](Protocol::place) of that message; then its record is done with. Returns the bytes placed.
#[inline]
pub fn place_at_head(link: &mut Link, header: &Header, req: &RecvReq) -> usize {
    let placed = link.inline_payload_to(header, &req.iov, req.cap);
    link.consume(Header::inline_lines(header.len.into()));
    placed
}

pub(super) fn deliver_held(wire: &mut Wire<'_>, bytes: Vec<u8>, env: Envelope, req: RecvReq) -> Delivery {
    let received = place_held(&bytes, env, req);
    wire.pool.give(bytes);
    Delivery::Done(received)
}
