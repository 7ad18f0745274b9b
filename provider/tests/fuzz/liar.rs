//! A peer by network that says frames by a script: raw bytes, heads that lie, records of all kinds, payload. Its voice is the socket, or packets of the
//! Noise protocol, which may lie as well.

use super::{Scene, Script, TURNS, hear};
use rustmx::mem::shared::SharedMem;
use rustmx::shm::layout::{CONTROL_LINES, LINE};
use rustmx::shm::segment;
use rustmx::transport::link::{Class, Draft, Link};
use rustmx::wire::frame::FRAME_HEAD;
use rustmx::wire::header::Kind;
use rustmx::wire::hello::Hello;
use rustmx::{Addr, Name};
use snow::TransportState;
use std::net::TcpStream;

/// Bytes of the liar's ring.
pub const BYTES: usize = 24 << 10;
/// Bytes of text that one packet may have, and what encryption adds to them.
pub const TEXT: usize = 16 << 10;
pub const TAG: usize = 16;
/// Pieces that one thing is said in, at most.
const PIECES: usize = 64;

/// A ring of the liar's, for records that are sound to look at.
pub struct Writer {
    pub mem: SharedMem,
    link: Link,
    framed: u32,
}

const KINDS: [Kind; 14] = [
    Kind::Inline,
    Kind::Eager,
    Kind::Rts,
    Kind::Data,
    Kind::Cts,
    Kind::Put,
    Kind::Get,
    Kind::Atomic,
    Kind::Event,
    Kind::Answer,
    Kind::Offer,
    Kind::Accept,
    Kind::Done,
    Kind::Fin,
];

impl Writer {
    pub fn new(mem: SharedMem) -> Writer {
        Writer { link: Link::new(mem.clone(), 1 << 20), mem, framed: 0 }
    }

    /// A record of any kind, with any words and payload. Where it is, if there was room.
    pub fn record(&mut self, script: &mut Script<'_>) -> Option<(u32, u32)> {
        let kind = KINDS[usize::from(script.byte()) % KINDS.len()];
        let flags = script.byte() & 15;
        let [tag, data, first, second] = [0; 4].map(|_: u8| script.number());
        let bytes = script.number() as usize % 600;
        let bytes = script.bytes(bytes);
        let draft = Draft { kind, flags, tag, data, body: [first, second], iov: &[], skip: 0, len: bytes.len(), bytes };
        let behind = self.link.send(&draft, Class::Control).ok()?;
        let from = std::mem::replace(&mut self.framed, behind);
        Some((from, behind - from))
    }

    fn lines(&self, from: u32, lines: u32) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.mem.append_to((CONTROL_LINES + from as usize) * LINE, lines as usize * LINE, &mut bytes);
        bytes
    }
}

/// A head of a frame, with whatever in it. The upper half of `kind` is what it says of loans.
fn head(kind: u8, length: u64, rest: [u64; 4]) -> [u8; FRAME_HEAD] {
    let mut bytes = [0; FRAME_HEAD];
    bytes[..4].copy_from_slice(&[kind & 15, kind >> 4, b'r', b'm']);
    bytes[4..8].copy_from_slice(&(length as u32).to_le_bytes());
    bytes[8..12].copy_from_slice(&(rest[0] as u32).to_le_bytes());
    bytes[12..16].copy_from_slice(&(rest[1] as u32).to_le_bytes());
    bytes[16..24].copy_from_slice(&rest[2].to_le_bytes());
    bytes[24..].copy_from_slice(&rest[3].to_le_bytes());
    bytes
}

/// Who says frames, sound ones or not.
pub struct Liar {
    pub voice: Voice,
    writer: Writer,
    name: Name,
    to_liar: Addr,
}

impl Liar {
    pub fn new(scene: &Scene, name: Name, voice: Voice) -> Liar {
        Liar { voice, writer: Writer::new(segment::private(BYTES)), to_liar: scene.victim.av.insert(&name), name }
    }

    pub fn hello(&self, scene: &Scene) -> Hello {
        Hello::new(self.name.to_bytes(), scene.victim.name().to_bytes(), BYTES as u32, 0, [0; 16])
    }

    /// One thing out of the script: raw bytes, a head that lies, a record of any kind, payload, time, or a message from the victim. Whether somebody
    /// still listens.
    pub fn act(&mut self, scene: &mut Scene, script: &mut Script<'_>) -> bool {
        match script.byte() % 6 {
            0 => {
                let n = script.number() as usize;
                self.voice.say(scene, script.bytes(n))
            }
            1 => {
                let kind = script.byte();
                let length = script.number();
                let rest = [0; 4].map(|_: u8| script.number());
                self.voice.say(scene, &head(kind, length, rest))
            }
            2 => match self.writer.record(script) {
                Some((from, lines)) => {
                    let consumed = script.number();
                    let frame = head(1, u64::from(lines) * LINE as u64, [consumed, from.into(), 1 << 20, 0]);
                    self.voice.say(scene, &frame) && self.voice.say(scene, &self.writer.lines(from, lines))
                }
                None => false,
            },
            3 => {
                let [id, offset, length] = [0; 3].map(|_: u8| script.number());
                // Above the length: what it says of loans.
                let (length, loans) = (length % (1 << 17), (length >> 17) as u8 % 4);
                let sound = self.voice.say(scene, &head(2 | loans << 4, length, [0, id, 1 << 20, offset]));
                sound && self.voice.say(scene, &vec![0x5a; length as usize])
            }
            4 => {
                let n = script.byte();
                scene.turns(usize::from(n));
                true
            }
            _ => {
                scene.tell(self.to_liar, script.number() as usize);
                true
            }
        }
    }
}

/// Whether what was said so far can still be read on the other side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sealed {
    Well,
    /// A packet was said to be longer than it is: what follows belongs to it, as far as that goes.
    Longer,
    /// There is something that no packet of ours is: who reads on as far as that must notice.
    Badly,
}

/// What bytes leave by.
pub struct Voice {
    pub stream: TcpStream,
    noise: Option<TransportState>,
    /// Bytes of text in a packet, at most.
    pub text: usize,
    /// Bytes that are written at a time, and a turn after each; 0: all.
    pub cut: usize,
    sealed: Sealed,
    last: Vec<u8>,
    heard: Vec<u8>,
}

impl Voice {
    pub fn plain(stream: TcpStream) -> Voice {
        Voice { stream, noise: None, text: TEXT, cut: 0, sealed: Sealed::Well, last: Vec::new(), heard: Vec::new() }
    }

    pub fn encrypted(stream: TcpStream, noise: TransportState) -> Voice {
        Voice { noise: Some(noise), ..Voice::plain(stream) }
    }

    /// Says it so that it is understood, if nothing was said badly before. Whether somebody still listens.
    pub fn say(&mut self, scene: &mut Scene, bytes: &[u8]) -> bool {
        if self.noise.is_none() {
            return self.write(scene, bytes);
        }
        let text = self.text.max(bytes.len() / PIECES);
        bytes.chunks(text).all(|text| {
            let packet = self.seal(text);
            self.write(scene, &packet)
        })
    }

    /// A packet; without encryption the text.
    fn seal(&mut self, text: &[u8]) -> Vec<u8> {
        let Some(noise) = &mut self.noise else { return text.to_vec() };
        let mut packet = vec![0; 2 + text.len() + TAG];
        let n = noise.write_message(text, &mut packet[2..]).expect("sealed");
        packet[..2].copy_from_slice(&(n as u16).to_le_bytes());
        self.last.clone_from(&packet);
        packet
    }

    fn write(&mut self, scene: &mut Scene, bytes: &[u8]) -> bool {
        let cut = if self.cut == 0 { bytes.len() } else { self.cut.max(bytes.len() / PIECES) };
        bytes.chunks(cut.max(1)).enumerate().all(|(i, piece)| {
            scene.turns(usize::from(i > 0));
            scene.write(&mut self.stream, piece)
        })
    }

    fn was(&mut self, sealed: Sealed) {
        if self.sealed == Sealed::Well && self.noise.is_some() {
            self.sealed = sealed;
        }
    }

    /// A packet with another length before it than it has.
    pub fn say_as_long_as(&mut self, scene: &mut Scene, text: &[u8], length: u16) -> bool {
        let mut packet = self.seal(text);
        if self.noise.is_some() {
            let is = packet.len() - 2;
            packet[..2].copy_from_slice(&length.to_le_bytes());
            match usize::from(length) {
                n if n == is => {}
                n if n > is && n <= TEXT + TAG => self.was(Sealed::Longer),
                _ => self.was(Sealed::Badly),
            }
        }
        self.write(scene, &packet)
    }

    /// What looks like a packet, and was sealed by nobody.
    pub fn say_unsealed(&mut self, scene: &mut Scene, bytes: &[u8]) -> bool {
        self.was(Sealed::Badly);
        let packet = [&(bytes.len() as u16).to_le_bytes()[..], bytes].concat();
        self.write(scene, &packet)
    }

    /// A packet with so many zeros in it, in one piece: none, and more than one may have, too.
    pub fn say_at_once(&mut self, scene: &mut Scene, n: usize) -> bool {
        if !(1..=TEXT).contains(&n) {
            self.was(Sealed::Badly);
        }
        let packet = self.seal(&vec![0; n]);
        self.write(scene, &packet)
    }

    /// The last packet once more.
    pub fn say_again(&mut self, scene: &mut Scene) -> bool {
        if !self.last.is_empty() {
            self.was(Sealed::Badly);
        }
        let packet = self.last.clone();
        self.write(scene, &packet)
    }

    /// A packet that gets lost, and one that follows it.
    pub fn leave_one_out(&mut self, scene: &mut Scene) -> bool {
        self.was(Sealed::Badly);
        let [_, packet] = [0; 2].map(|_: u8| self.seal(b"one of them"));
        self.write(scene, &packet)
    }

    /// Hears what there is. Whether the other side has hung up.
    pub fn hear(&mut self) -> bool {
        hear(&mut self.stream, &mut self.heard)
    }

    /// What the victim has said, as far as it has come: whatever it was told, it says sound packets only.
    pub fn understood(&mut self) -> Vec<u8> {
        let Some(noise) = &mut self.noise else { return std::mem::take(&mut self.heard) };
        let (mut said, mut text) = (vec![], vec![0; TEXT]);
        let mut rest = self.heard.as_slice();
        while let Some((len, behind)) = rest.split_first_chunk()
            && let Some((packet, behind)) = behind.split_at_checked(u16::from_le_bytes(*len).into())
        {
            let n = noise.read_message(packet, &mut text).expect("a sound packet");
            said.extend(&text[..n]);
            rest = behind;
        }
        said
    }

    /// Nobody goes on listening to packets that are none.
    pub fn check_end(&mut self, scene: &mut Scene) {
        if self.sealed == Sealed::Badly {
            for _ in 0..TURNS {
                if self.hear() {
                    return;
                }
                scene.turns(1);
            }
            panic!("the victim takes packets that nobody sealed");
        }
    }
}
