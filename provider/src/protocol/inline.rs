//! Inline: header and payload in one record of at most four lines.
//!
//! ```text
//! sender                         receiver
//!   record [head|payload] ─────▶   match → copy out → done
//! ```
//! An inline message needs no window: like an envelope it is always taken, and if nobody asked for it, its few bytes
//! are kept beside its envelope. That is what lets inject calls complete at once.

use super::{
    Announced, Delivery, OneRecord, Placed, Protocol, Refused, Started, Taken, Wire, envelope_of, first, hold_whole, place_held,
    place_whole,
};
use crate::mem::user::UserSeg;
use crate::request::{Envelope, Held, Message, RecvReq, SendReq};
use crate::transport::link::{Class, Corrupt, Link};
use crate::types::ProtoId;
use crate::wire::header::{Header, Kind};

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

impl OneRecord for Inline {
    const BEGINS: bool = false;

    #[inline]
    fn send(link: &mut Link, flags: u8, tag: u64, data: u64, piece: &UserSeg) -> Result<u32, Refused> {
        Ok(link.send_inline((flags, tag, data), std::slice::from_ref(piece), piece.len())?)
    }

    #[inline]
    fn at_head(link: &mut Link, waited: bool) -> Option<(Header, Envelope)> {
        let header = link.peek_inline()?;
        let lines = Header::inline_lines(header.len.into());
        if lines > 1 && waited {
            link.fetch(lines);
        }
        Some((header, envelope_of(&header, header.len.into())))
    }

    #[inline]
    fn place_at_head(link: &mut Link, header: &Header, req: &RecvReq) -> Taken {
        let placed = link.inline_payload_to(header, &req.iov, req.cap);
        link.consume(Header::inline_lines(header.len.into()));
        Taken::Whole(placed)
    }
}

pub(super) fn deliver_held(wire: &mut Wire<'_>, bytes: Vec<u8>, env: Envelope, req: RecvReq) -> Delivery {
    let received = place_held(&bytes, env, req);
    wire.pool.give(bytes);
    Delivery::Done(received)
}
