//! Little that is received by one call: where it comes to stand, and what it says of the messages that come.

use super::tests::{Scene, draft};
use crate::mem::shared::{Heap, SharedMem};
use crate::shm::layout::{LINE, MIN_SEGMENT, ring_lines};
use crate::sys::tcp::{self, Piece};
use crate::transport::link::Class;
use crate::transport::tcp::connection::Read;
use crate::wire::frame::{Body, FRAME_HEAD, Frame};
use crate::wire::header::{Header, Kind};

/// Bytes that the scene's network brings B at once.
const ALL: usize = 1 << 16;

/// A sends these records, and B's connection reads them.
fn carry(scene: &mut Scene, lens: &[usize]) -> Read {
    for len in lens {
        scene.a.link.send(&draft(&vec![*len as u8; *len]), Class::Envelope).expect("room");
    }
    scene.turn();
    hear(scene)
}

/// B's connection reads what the network brings.
fn hear(scene: &mut Scene) -> Read {
    assert!((0..1_000_000).any(|_| scene.there.pass(ALL) > 0), "A sent nothing");
    first_read(scene)
}

/// The first read that finds something.
fn first_read(scene: &Scene) -> Read {
    let mut reads = std::iter::repeat_with(|| scene.b.connection.read(true)).take(1_000_000);
    reads.find(|read| read.any).expect("nothing came")
}

/// B's engine reads these records, and A hears of it.
fn consume(scene: &mut Scene, lens: &[usize]) {
    for len in lens {
        let header = scene.b.link.peek().expect("sound").expect("a record");
        let mut got = Vec::new();
        scene.b.link.payload_append(&header, &mut got);
        assert_eq!(got, vec![*len as u8; *len]);
        scene.b.link.consume(header.lines());
    }
    assert!(scene.b.link.peek().expect("sound").is_none(), "no more than that came");
    scene.b.link.tell();
    scene.answer();
}

#[test]
fn a_message_of_more_than_a_segment_is_long() {
    let mut scene = Scene::of_segments(500);
    let records: [(&[usize], bool); 7] = [
        (&[8], false),
        (&[500], false),
        (&[501], true),
        (&[700], true),
        (&[10, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8], false),
        (&[300, 300, 300], false),
        (&[800], true),
    ];
    // In many laps, so that some go round the end.
    for round in 0..40 {
        for (lens, long) in records {
            let read = carry(&mut scene, lens);
            assert_eq!(read.long, long, "round {round}: {lens:?}");
            consume(&mut scene, lens);
            assert!(!scene.b.connection.read(true).long, "nothing came");
        }
    }
}

/// Neither half of a long message says that it is one; nor does what came before it.
#[test]
fn half_a_message_is_not_long() {
    let mut scene = Scene::of_segments(350);
    assert!(carry(&mut scene, &[600]).long);
    consume(&mut scene, &[600]);
    scene.a.link.send(&draft(&[0x58; 600]), Class::Envelope).expect("room");
    scene.turn();
    assert_eq!(scene.there.pass(FRAME_HEAD + 6 * LINE), FRAME_HEAD + 6 * LINE);
    assert!(!first_read(&scene).long && scene.b.link.peek().expect("sound").is_none());
    assert!(!hear(&mut scene).long, "less than a segment");
    consume(&mut scene, &[600]);
}

/// A frame that skips the rest of the ring though its record had room there is none that we write, but it is clear what it says.
#[test]
fn what_needs_no_skip_may_skip() {
    let mut scene = Scene::new();
    let lines = ring_lines(MIN_SEGMENT);
    let mut at = 0;
    while at < lines - 20 {
        carry(&mut scene, &[100]);
        consume(&mut scene, &[100]);
        at += Header::lines_of(Kind::Eager, 100);
    }
    let skipped = lines - at;
    let record = Header { kind: Kind::Eager, flags: 0, len: 40, ack: 0, tag: 1, data: 2 };
    let frame = Frame { consumed: 0, credit: 0, body: Body::Records { position: at, skipped, lines: 1 } };
    let words = record.emit(at + skipped).map(u64::to_ne_bytes).concat();
    let bytes = [&frame.emit()[..], &words, &[40; 40]].concat();
    let memory = SharedMem::new(Heap::new(bytes.len()));
    memory.fill_bytes(0, &bytes);
    assert_eq!(tcp::send(&scene.there.to, &[Piece::Own(&memory, 0, bytes.len())]), Ok(FRAME_HEAD + LINE));
    first_read(&scene);
    let header = scene.b.link.peek().expect("sound").expect("a record");
    assert_eq!((header.len, scene.b.link.peek().expect("sound").map(|again| again.tag)), (40, Some(1)));
}
