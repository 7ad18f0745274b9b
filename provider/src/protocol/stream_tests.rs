//! What streams promise, and what they do with peers that lie.

use super::*;
use crate::mem::atomic::{Ordering, Words};
use crate::mem::user::of_slice;
use crate::request::Special;
use crate::shm::layout::{CONTROL_LINES, LINE_WORDS, MIN_SEGMENT};
use crate::shm::segment;
use crate::types::{CompFlags, UserCtx};
use crate::wire::header::HEAD;

/// A peer that changes the body of its RTS while we look at it: what was validated is what counts.
#[test]
fn the_body_of_an_rts_is_read_once() {
    let (theirs, mine) = (segment::private(MIN_SEGMENT), segment::private(MIN_SEGMENT));
    let mut liar = Link::new(theirs.clone(), 1 << 20);
    let mut link = Link::new(mine, 1 << 20);
    link.attach(theirs.clone(), None);
    let honest = Rts { total: 1000, stream: 7, promise: 100 };
    let draft = Draft { kind: Kind::Rts, body: honest.emit(), len: 10, bytes: &[1; 10], ..control(Kind::Rts, 5, 0) };
    liar.send(&draft, Class::Envelope).expect("room");
    let (mut streams, mut copies, mut pool) = (Streams::new(256), Default::default(), Pool::default());
    let mut wire = Wire { link: &mut link, streams: &mut streams, copies: &mut copies, pool: &mut pool };
    let header = wire.link.peek().expect("sound").expect("there");
    let said = Stream::announced(&mut wire, &header).expect("sound");
    let body = CONTROL_LINES * LINE_WORDS + HEAD / 8;
    for (i, word) in (Rts { total: 1 << 40, stream: 8, promise: u32::MAX }).emit().into_iter().enumerate() {
        theirs.word(body + i).store(word, Ordering::Relaxed);
    }
    let held = Stream::hold(&mut wire, &header, &said).expect("sound");
    assert!(matches!(held, Held::Stream(7)), "{held:?}");
    let stream = &streams.rx[&7];
    assert_eq!((stream.env.total, stream.promise, stream.goal, stream.arrived), (1000, 100, 100, 10));
}

/// What goes from buffer to buffer has been told where: a peer that sends some of it by the ring would have it written where somebody else writes, or into memory
/// that was given back.
#[test]
fn from_buffer_to_buffer_nothing_comes_by_the_ring() {
    let (theirs, mine) = (segment::private(MIN_SEGMENT), segment::private(MIN_SEGMENT));
    let mut liar = Link::new(theirs.clone(), 1 << 20);
    let mut link = Link::new(mine, 1 << 20).far();
    link.attach(theirs, None);
    let (mut streams, mut copies, mut pool) = (Streams::new(256), Default::default(), Pool::default());
    let mut wire = Wire { link: &mut link, streams: &mut streams, copies: &mut copies, pool: &mut pool };
    for (stream, len) in [(7, 10), (8, 0)] {
        let rts = Rts { total: 100, stream, promise: 100 };
        let draft = Draft { kind: Kind::Rts, body: rts.emit(), len, bytes: &[1; 10][..len], ..control(Kind::Rts, 5, 0) };
        liar.send(&draft, Class::Envelope).expect("room");
        let header = wire.link.peek().expect("sound").expect("there");
        let said = Stream::announced(&mut wire, &header).expect("sound");
        assert_eq!(open(&mut wire, &header, &said, Dest::Matched).is_ok(), len == 0, "{len} bytes with an envelope");
        wire.link.consume(header.lines());
    }
    let data = Draft { len: 10, bytes: &[1; 10], ..control(Kind::Data, 8, 0) };
    liar.send(&data, Class::Fragment).expect("room");
    let header = wire.link.peek().expect("sound").expect("there");
    assert!(wire.streams.on_data(wire.link, &header).is_err(), "a fragment");
}

/// Half of what is left of the window each time, as far as that is worth a part; what is short has all of it promised.
#[test]
fn no_scrap_of_a_long_message_is_promised() {
    let (theirs, mine) = (segment::private(MIN_SEGMENT), segment::private(MIN_SEGMENT));
    let mut link = Link::new(mine.clone(), 1 << 20);
    let mut reader = Link::new(theirs.clone(), 1 << 16);
    link.attach(theirs, None);
    reader.attach(mine, None);
    let (mut streams, mut copies, mut pool) = (Streams::new(4 << 10), Default::default(), Pool::default());
    let mut wire = Wire { link: &mut link, streams: &mut streams, copies: &mut copies, pool: &mut pool };
    let mut memory = vec![7; 1 << 17];
    let mut promised = |len| {
        let iov = [of_slice(&mut memory[..len])];
        let message =
            Message { tagged: true, tag: 0, data: None, iov: &iov, bytes: &[], len, at_once: false, lent: 0, presumed: None };
        let req =
            SendReq { ctx: UserCtx(0), level: Level::Transmit, report: true, special: Special::NOTHING, flags: CompFlags::SEND };
        Stream::start(&mut wire, &message, &req).expect("room for the envelope");
        let header = reader.peek().expect("sound").expect("there");
        let rts = Rts::parse(reader.body(), header.len).expect("sound");
        reader.consume(header.lines());
        rts.promise as usize
    };
    let of_long_ones = [0; 7].map(|_| promised(1 << 17));
    assert_eq!(of_long_ones, [32 << 10, 16 << 10, 8 << 10, 4 << 10, 0, 0, 0]);
    assert_eq!([promised(1000), promised(1 << 17), promised(1400)], [1000, 0, 1400]);
}
