//! A peer with a sound hello that then lies in its frames: it is disconnected, nothing of what it wrote is taken for a message, and
//! nobody else notices.

use crate::common::{Deadline, Msg, Want, pattern, seg, watchdog};
use crate::scene::{Scene, is_hung_up};
use rustmx::INLINE_MAX;
use rustmx::mem::shared::SharedMem;
use rustmx::shm::layout::{CONTROL_LINES, LINE};
use rustmx::shm::segment;
use rustmx::sys::{host, tcp};
use rustmx::transport::link::{Class, Draft, Link};
use rustmx::wire::frame::{Body, Frame};
use rustmx::wire::header::{Kind, Part, Place, Rts};
use rustmx::wire::hello::{HELLO_LEN, Hello};
use rustmx::{Name, OpFlags};
use std::io::Write;
use std::net::TcpStream;
use zerocopy::IntoBytes;

const BYTES: usize = 24 << 10;

/// An engine's side of a connection, by hand.
pub struct Liar {
    pub stream: TcpStream,
    pub name: Name,
    pub heard: Vec<u8>,
    /// Writes sound records into memory.
    link: Link,
    mem: SharedMem,
    /// Lines of that which have been put into frames.
    framed: u32,
}

impl Liar {
    pub fn connect(scene: &mut Scene) -> Liar {
        let name = Name::new(host::random() | 1, 0, host::id() ^ 1, None);
        let mut stream = scene.stranger();
        let hello = Hello::new(name.to_bytes(), scene.victim.name().to_bytes(), BYTES as u32, 0, [0; 16]);
        stream.write_all(hello.as_bytes()).expect("hello");
        let mem = segment::private(BYTES);
        let mut liar = Liar { stream, name, heard: Vec::new(), link: Link::new(mem.clone(), 1 << 20), mem, framed: 0 };
        let until = Deadline::new(5);
        while liar.heard.len() < HELLO_LEN {
            scene.victim.domain.progress();
            assert!(!is_hung_up(&mut liar.stream, &mut liar.heard), "a sound hello is refused");
            until.check(|| "no answer".into());
        }
        liar
    }

    fn say(&mut self, frame: Frame) {
        self.stream.write_all(&frame.emit()).expect("write");
    }

    pub fn body(&mut self, body: Body) {
        self.say(Frame { consumed: 0, credit: 0, body });
    }

    /// The announcement of a long message, in a frame.
    pub fn announce(&mut self, rts: Rts, tag: u64) {
        self.record(&Draft { kind: Kind::Rts, flags: 1, tag, data: 0, body: rts.emit(), iov: &[], skip: 0, len: 0, bytes: &[] });
    }

    /// A message of one record, in a frame. Bytes of the record.
    pub fn message(&mut self, tag: u64, bytes: &[u8]) -> usize {
        let kind = if bytes.len() > INLINE_MAX { Kind::Eager } else { Kind::Inline };
        let len = bytes.len();
        self.record(&Draft { kind, flags: 1, tag, data: 0, body: [0; 2], iov: &[], skip: 0, len, bytes })
    }

    /// A put, or an answer, whose bytes come past the ring; `said`: what it says of them.
    pub fn part(&mut self, kind: Kind, said: &[u8]) {
        let place = Place { addr: 0, id: 0, extra: [0; 2] }.emit();
        // Flag 1: past the ring.
        self.record(&Draft { kind, flags: 1, tag: 0, data: 0, body: place, iov: &[], skip: 0, len: said.len(), bytes: said });
    }

    fn record(&mut self, draft: &Draft<'_>) -> usize {
        let behind = self.link.send(draft, Class::Envelope).expect("room");
        let (position, lines) = (self.framed, behind - self.framed);
        self.framed = behind;
        let mut bytes = Vec::new();
        self.mem.append_to((CONTROL_LINES + position as usize) * LINE, lines as usize * LINE, &mut bytes);
        self.body(Body::Records { position, skipped: 0, lines });
        self.stream.write_all(&bytes).expect("write");
        bytes.len()
    }

    /// Returns when all that was said is in the victim's kernel.
    pub fn arrives(&self) {
        let (socket, until) = (self.stream.try_clone().expect("another one").into(), Deadline::new(10));
        while tcp::unacknowledged(&socket) > 0 {
            until.check(|| "it does not arrive".into());
        }
    }

    pub fn payload(&mut self, id: u32, offset: u64, bytes: &[u8]) {
        self.body(Body::Payload { id, offset, len: bytes.len() as u32, lent: false, tell: false });
        self.stream.write_all(bytes).expect("write");
    }
}

/// A lie; what is told apart by name in what fails.
type Lie = (&'static str, fn(&mut Liar));

const LIES: [Lie; 28] = [
    ("zeros", |l| l.stream.write_all(&[0; 64]).expect("write")),
    ("noise", |l| l.stream.write_all(&[0xa5; 64]).expect("write")),
    ("a kind that there is not", |l| {
        let mut head = Frame { consumed: 0, credit: 0, body: Body::News }.emit();
        head[0] = 9;
        l.stream.write_all(&head).expect("write");
    }),
    ("half a line", |l| {
        let mut head = Frame { consumed: 0, credit: 0, body: Body::Records { position: 0, skipped: 0, lines: 1 } }.emit();
        head[4] = 63;
        l.stream.write_all(&head).expect("write");
    }),
    ("that payload was read which nobody lent", |l| l.body(Body::Read { frames: 1 })),
    ("a body of nothing", |l| l.body(Body::Payload { id: 1, offset: 0, len: 0, lent: false, tell: false })),
    ("a body without end", |l| l.body(Body::Payload { id: 1, offset: 0, len: u32::MAX, lent: false, tell: false })),
    ("lines at another position", |l| l.body(Body::Records { position: 5, skipped: 0, lines: 1 })),
    ("more lines than there is room for", |l| {
        l.body(Body::Records { position: 0, skipped: 0, lines: (BYTES / LINE) as u32 + 1 })
    }),
    ("lines without end", |l| l.body(Body::Records { position: 0, skipped: 0, lines: (1 << 25) - 1 })),
    ("a skip that is not the rest of the ring", |l| l.body(Body::Records { position: 0, skipped: 7, lines: 1 })),
    ("a skip longer than any ring", |l| l.body(Body::Records { position: 0, skipped: u32::MAX, lines: 1 })),
    ("the same lines again", |l| {
        l.announce(Rts { total: 100_000, stream: 1, promise: 0 }, 1);
        l.framed = 0;
        l.body(Body::Records { position: 0, skipped: 0, lines: 1 });
    }),
    ("lines of garbage", |l| {
        l.body(Body::Records { position: 0, skipped: 0, lines: 1 });
        l.stream.write_all(&[0xff; LINE]).expect("write");
    }),
    ("payload that nobody asked for", |l| l.payload(77, 0, &[1; 100])),
    ("payload of a message without promise", |l| {
        l.announce(Rts { total: 100_000, stream: 1, promise: 0 }, 99);
        l.payload(1, 0, &[1; 100]);
    }),
    ("payload from behind its beginning", |l| {
        l.announce(Rts { total: 100_000, stream: 1, promise: 1000 }, 1);
        l.payload(1, 8, &[1; 100]);
    }),
    ("payload beyond its end", |l| {
        l.announce(Rts { total: 100_000, stream: 1, promise: 1000 }, 1);
        l.payload(1, 0, &[1; 1001]);
    }),
    ("two messages of one name", |l| {
        l.announce(Rts { total: 100_000, stream: 1, promise: 1000 }, 1);
        l.announce(Rts { total: 100_000, stream: 1, promise: 10 }, 1);
    }),
    ("a message by the name of a part", |l| l.announce(Rts { total: 100_000, stream: Part::NAMES, promise: 10 }, 1)),
    ("a part by the name of a message", |l| l.part(Kind::Put, &Part { name: 1, len: 100 }.emit())),
    ("a part of nothing", |l| l.part(Kind::Put, &Part { name: Part::NAMES, len: 0 }.emit())),
    ("a part longer than any", |l| l.part(Kind::Put, &Part { name: Part::NAMES, len: Part::MOST as u32 + 1 }.emit())),
    ("half a word of a part", |l| l.part(Kind::Put, &[1, 0, 0, 0])),
    ("two parts of one name", |l| {
        l.part(Kind::Put, &Part { name: Part::NAMES, len: 100 }.emit());
        l.part(Kind::Put, &Part { name: Part::NAMES, len: 100 }.emit());
    }),
    ("bytes beyond the end of a part", |l| {
        l.part(Kind::Put, &Part { name: Part::NAMES, len: 100 }.emit());
        l.payload(Part::NAMES, 0, &[1; 101]);
    }),
    ("a part of an answer to nothing", |l| l.part(Kind::Answer, &Part { name: Part::NAMES, len: 100 }.emit())),
    ("a promise beyond the credit", |l| l.announce(Rts { total: 1 << 40, stream: 1, promise: u32::MAX }, 1)),
];

#[test]
fn a_lie_in_a_frame_ends_the_connection_and_nothing_else() {
    let _dog = watchdog("frames", 100);
    let mut scene = Scene::new();
    // A receive that what is announced matches: its buffer must not be written beyond what was promised and came.
    for matched in [false, true] {
        for (what, lie) in LIES {
            let mut into = vec![0u8; 3000];
            let (lost, mut liar) = (scene.victim.stats().lost, Liar::connect(&mut scene));
            let from = scene.victim.av.insert(&liar.name);
            if matched {
                scene.victim.recv(Want::tag(1).from(from), &mut into[1000..2000]).expect("recv");
            }
            lie(&mut liar);
            scene.hangs_up(&mut liar.stream, 5, what);
            assert_eq!(scene.victim.stats().lost, lost + 1, "{what}");
            scene.exchange();
            let outside = into[..1000].iter().chain(&into[2000..]);
            assert!(outside.into_iter().all(|b| *b == 0), "{what}: written beside the buffer");
        }
    }
    let lines = scene.lines.all();
    assert!(lines.len() < 2 * LIES.len(), "{lines:#?}");
}

/// What we are told of our own ring is checked when it is used.
#[test]
fn who_has_read_what_was_never_written() {
    let _dog = watchdog("consumed", 60);
    let mut scene = Scene::new();
    // What is behind is old news, and no error.
    for consumed in [1000, i32::MAX as u32] {
        let (lost, mut liar) = (scene.victim.stats().lost, Liar::connect(&mut scene));
        let to = scene.victim.av.insert(&liar.name);
        liar.say(Frame { consumed, credit: 0, body: Body::News });
        scene.victim.send(Msg::new(to, 1).with(OpFlags::DELIVERY_COMPLETE), &mut [1; 100]).expect("send");
        scene.hangs_up(&mut liar.stream, 5, "consumed");
        assert_eq!(scene.victim.stats().lost, lost + 1);
        scene.exchange();
    }
}

/// Credit that was given cannot be taken back, and credit without end is no harm to us.
#[test]
fn credit_that_goes_backwards_or_has_no_end() {
    let _dog = watchdog("credit", 60);
    let (mut scene, mut out) = (Scene::new(), pattern(100_000, 3));
    let mut liar = Liar::connect(&mut scene);
    let to = scene.victim.av.insert(&liar.name);
    for credit in [1 << 20, 5, u64::MAX, 0] {
        liar.say(Frame { consumed: 0, credit, body: Body::News });
        let before = liar.heard.len();
        scene.victim.sendv(Msg::new(to, 1), &[seg(&mut out)], true).expect("send");
        let until = Deadline::new(5);
        while liar.heard.len() == before {
            scene.victim.domain.progress();
            assert!(!is_hung_up(&mut liar.stream, &mut liar.heard));
            until.check(|| "nothing leaves".into());
        }
        scene.exchange();
    }
    drop(liar);
    let until = Deadline::new(5);
    while scene.victim.stats().lost == 0 {
        scene.victim.poll();
        until.check(|| "its end is not noticed".into());
    }
    scene.exchange();
}

/// Half a frame, and silence: its kernel answers, so it may go on. Nobody else waits, and when it goes it is gone.
#[test]
fn half_a_frame_and_silence() {
    let _dog = watchdog("half", 60);
    let mut scene = Scene::new();
    let halves: [fn(&mut Liar); 4] = [
        |l| l.stream.write_all(&Frame { consumed: 0, credit: 0, body: Body::News }.emit()[..17]).expect("write"),
        |l| {
            l.body(Body::Records { position: 0, skipped: 0, lines: 2 });
            l.stream.write_all(&[0xff; LINE + 3]).expect("write");
        },
        |l| {
            l.announce(Rts { total: 100_000, stream: 1, promise: 1000 }, 1);
            l.body(Body::Payload { id: 1, offset: 0, len: 1000, lent: false, tell: false });
            l.stream.write_all(&[1; 500]).expect("write");
        },
        |l| {
            l.announce(Rts { total: 100_000, stream: 1, promise: 1000 }, 1);
            l.body(Body::Payload { id: 1, offset: 0, len: 1000, lent: false, tell: false });
        },
    ];
    for (i, half) in halves.into_iter().enumerate() {
        let (lost, mut liar) = (scene.victim.stats().lost, Liar::connect(&mut scene));
        half(&mut liar);
        for _ in 0..50 {
            scene.exchange();
        }
        assert!(!is_hung_up(&mut liar.stream, &mut liar.heard), "half {i}");
        assert_eq!(scene.victim.stats().lost, lost, "half {i}");
        drop(liar);
        let until = Deadline::new(5);
        while scene.victim.stats().lost == lost {
            scene.victim.poll();
            until.check(|| format!("half {i}: its end is not noticed"));
        }
    }
    scene.exchange();
}
