//! Eager copy: the whole message in one record, through the ring as its bounce buffer.
//!
//! ```text
//! sender                            receiver
//!   window ≥ n? copy in              match → copy out → window += n
//!   record [head|payload] ────────▶  no match → copy to the heap; window += n when somebody asks
//! ```
//! The window (credit) bounds what a sender can make a receiver keep. When it is used up, `start` refuses and the message goes as a stream,
//! whose envelope needs no window.

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
pub struct Eager;

impl Protocol for Eager {
    type Body = ();
    const ID: ProtoId = ProtoId::Eager;
    const WHAT: &'static str = "one copy in, one copy out";

    fn start(wire: &mut Wire<'_>, msg: &Message<'_>, _req: &SendReq) -> Result<Started, Refused> {
        // The table knows the longest rings; where there are many peers they are shorter.
        if msg.len > wire.link.max_payload(Kind::Eager) {
            return Err(Refused::Unable);
        }
        if !wire.link.spend(msg.len) {
            return Err(Refused::Window);
        }
        let draft = first(Kind::Eager, msg, [0; 2], msg.len);
        match wire.link.send(&draft, Class::Envelope) {
            Ok(position) => Ok(Started::Sent(position)),
            Err(e) => {
                wire.link.unspend(msg.len);
                Err(e.into())
            }
        }
    }

    fn announced(wire: &mut Wire<'_>, header: &Header) -> Result<Announced<()>, Corrupt> {
        wire.link.take(header.len as usize)?;
        Ok(Announced { env: envelope_of(header, header.len as usize), body: () })
    }

    fn place(wire: &mut Wire<'_>, header: &Header, said: &Announced<()>, req: &RecvReq) -> Result<Placed, Corrupt> {
        wire.link.release(said.env.total);
        Ok(place_whole(wire, header, req))
    }

    fn hold(wire: &mut Wire<'_>, header: &Header, _said: &Announced<()>) -> Result<Held, Corrupt> {
        Ok(Held::Eager(hold_whole(wire, header)))
    }
}

impl OneRecord for Eager {
    const BEGINS: bool = true;

    #[inline]
    fn send(link: &mut Link, flags: u8, tag: u64, data: u64, piece: &UserSeg) -> Result<u32, Refused> {
        let len = piece.len();
        if len > link.max_payload(Kind::Eager) {
            return Err(Refused::Unable);
        }
        if !link.spend(len) {
            return Err(Refused::Window);
        }
        link.send_eager((flags, tag, data), piece).map_err(|e| {
            link.unspend(len);
            e.into()
        })
    }

    #[inline]
    fn at_head(link: &mut Link, waited: bool) -> Option<(Header, Envelope)> {
        let header = link.peek_eager(waited)?;
        Some((header, envelope_of(&header, header.len.into())))
    }

    #[inline]
    fn place_at_head(link: &mut Link, header: &Header, req: &RecvReq) -> Taken {
        let len = usize::from(header.len);
        if link.take(len).is_err() {
            return Taken::Not;
        }
        if !link.is_all_there(header) && !link.follow(header, &req.iov, 0, req.cap) {
            return Taken::Begun;
        }
        link.release(len);
        let placed = link.payload_to(header, &req.iov, 0, req.cap);
        link.consume(header.lines());
        Taken::Whole(placed)
    }
}

pub(super) fn deliver_held(wire: &mut Wire<'_>, bytes: Vec<u8>, env: Envelope, req: RecvReq) -> Delivery {
    let received = place_held(&bytes, env, req);
    discard_held(wire, bytes);
    Delivery::Done(received)
}

pub(super) fn discard_held(wire: &mut Wire<'_>, bytes: Vec<u8>) {
    wire.link.release(bytes.len());
    wire.link.tell();
    wire.pool.give(bytes);
}
