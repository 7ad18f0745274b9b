//! An endpoint of a job with a key, perhaps one that encrypts, and those who call it or whom it calls: strangers that do not know the key, whatever they
//! say, also of what they have overheard; and one who knows it, and lies behind the proof.

use super::liar::{Liar, TAG, TEXT, Voice};
use super::{Scene, Script, TURNS, hear, somebody};
use rustmx::config::network::Secret;
use rustmx::sys::host;
use rustmx::wire::hello::{HELLO_LEN, Hello, Refusal};
use rustmx::wire::key::{Key, PROOF_HEAD, Proof};
use rustmx::{Config, Name};
use snow::{Builder, HandshakeState, TransportState};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use zerocopy::IntoBytes;

const KEY: &[u8] = b"a key that only some of them know";
const PATTERN: &str = "Noise_NNpsk0_25519_AESGCM_SHA256";
/// Bytes of a message of the proof, and of it with its head.
const MESSAGE: usize = 32 + TAG;
const FIRST: usize = PROOF_HEAD + MESSAGE;
/// Strangers at a time.
const MOST: usize = 4;
const SECOND: u64 = 1_000_000_000;

/// First how it goes on, then a script: bit 0: encrypted, 1: somebody who knows the key, 2: whom the victim calls, 3: and who calls by the same connection.
pub fn keyed(bytes: &[u8]) {
    let mut script = Script(bytes);
    let how = script.byte();
    let encrypt = how & 1 != 0;
    let mut scene = Scene::with(true, Config { auth_key: Secret::new(KEY), encrypt: encrypt.into(), ..Config::default() });
    let part = match how >> 2 & 3 {
        0 | 2 => Part::Calls,
        1 => Part::IsCalled,
        _ => Part::Crosses,
    };
    if how & 2 != 0 {
        lies(&mut scene, &mut script, encrypt, part);
    } else {
        guesses(&mut scene, &mut script, encrypt, part != Part::Calls);
        // Who belongs to the job gets in as before.
        scene.another_good();
    }
    scene.end();
}

/// What somebody does on a connection with the victim.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Calls,
    IsCalled,
    /// He is called, and has called himself, and both are the same connection.
    Crosses,
}

/// Connects `name` with the victim; where it is found if it is called.
fn meet(scene: &mut Scene, name: Name, is_called: bool) -> (TcpStream, Name) {
    if !is_called {
        return (scene.stranger(), name);
    }
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("bind");
    listener.set_nonblocking(true).expect("nonblocking");
    let at = listener.local_addr().expect("address");
    let name = name.at(&[(at.ip(), 0)], at.port());
    let to = scene.victim.av.insert(&name);
    scene.tell(to, 8);
    for _ in 0..TURNS {
        if let Ok((stream, _)) = listener.accept() {
            stream.set_nonblocking(true).expect("nonblocking");
            stream.set_nodelay(true).expect("nodelay");
            return (stream, name);
        }
        scene.turns(1);
    }
    panic!("the victim does not call");
}

fn head(encrypt: bool) -> [u8; PROOF_HEAD] {
    Proof::Follows { encrypted: encrypt }.emit()
}

/// The Noise protocol of who knows the key.
fn noise(encrypt: bool, calls: bool) -> HandshakeState {
    let (head, key) = (head(encrypt), Key::new(KEY).shared());
    let builder = Builder::new(PATTERN.parse().expect("a pattern")).psk(0, &key).and_then(|b| b.prologue(&head));
    builder.and_then(|b| if calls { b.build_initiator() } else { b.build_responder() }).expect("noise")
}

/// One side of a proof that is made as it should be.
struct Prover<'a> {
    scene: &'a mut Scene,
    stream: &'a mut TcpStream,
    encrypt: bool,
    said: Vec<u8>,
    heard: Vec<u8>,
}

impl Prover<'_> {
    fn say(&mut self, bytes: &[u8]) {
        assert!(self.scene.write(self.stream, bytes), "hung up on who knows the key");
        self.said.extend(bytes);
    }

    /// So many bytes, which are said now or soon.
    fn hear(&mut self, n: usize) -> Vec<u8> {
        use std::io::Read;
        let (mut bytes, mut got) = (vec![0; n], 0);
        for _ in 0..TURNS {
            got += self.stream.read(&mut bytes[got..]).unwrap_or(0);
            if got == n {
                self.heard.extend(&bytes);
                return bytes;
            }
            self.scene.turns(1);
        }
        panic!("{got} of {n} bytes are told to who knows the key");
    }

    fn say_message(&mut self, noise: &mut HandshakeState) -> [u8; MESSAGE] {
        let mut message = [0; MESSAGE];
        noise.write_message(&[], &mut message).expect("a message");
        self.say(&[&head(self.encrypt)[..], &message].concat());
        message
    }

    fn hear_message(&mut self) -> Vec<u8> {
        let heard = self.hear(FIRST);
        assert_eq!(heard[..PROOF_HEAD], head(self.encrypt));
        heard[PROOF_HEAD..].to_vec()
    }

    /// The caller's part, once it has said its message.
    fn confirm(&mut self, mut noise: HandshakeState) -> TransportState {
        let answer = self.hear_message();
        noise.read_message(&answer, &mut []).expect("the victim knows the key");
        let (mut noise, mut message) = (noise.into_transport_mode().expect("proved"), [0; TAG]);
        noise.write_message(&[], &mut message).expect("a confirmation");
        self.say(&message);
        noise
    }

    /// The part of who has been called by this.
    fn answer(&mut self, call: &[u8]) -> TransportState {
        let mut noise = noise(self.encrypt, false);
        noise.read_message(call, &mut []).expect("the victim knows the key");
        self.say_message(&mut noise);
        let mut noise = noise.into_transport_mode().expect("proved");
        let confirmation = self.hear(TAG);
        noise.read_message(&confirmation, &mut []).expect("a confirmation");
        noise
    }

    fn prove(&mut self, part: Part) -> TransportState {
        let mut ours = noise(self.encrypt, true);
        match part {
            Part::Calls => {
                self.say_message(&mut ours);
                self.confirm(ours)
            }
            Part::IsCalled => {
                let call = self.hear_message();
                self.answer(&call)
            }
            Part::Crosses => {
                let message = self.say_message(&mut ours);
                let call = self.hear_message();
                if message[..] < call[..] { self.confirm(ours) } else { self.answer(&call) }
            }
        }
    }
}

/// Somebody of the job who proves that, and what was said for it by him and by the victim.
fn member(scene: &mut Scene, encrypt: bool, part: Part) -> (Liar, [Vec<u8>; 2]) {
    let (mut stream, name) = meet(scene, somebody(host::id() ^ 1), part != Part::Calls);
    let mut prover = Prover { scene, stream: &mut stream, encrypt, said: vec![], heard: vec![] };
    let noise = prover.prove(part);
    let said = [prover.said, prover.heard];
    let voice = if encrypt { Voice::encrypted(stream, noise) } else { Voice::plain(stream) };
    (Liar::new(scene, name, voice), said)
}

/// Who knows the key says frames as anybody would, and packets that are none.
fn lies(scene: &mut Scene, script: &mut Script<'_>, encrypt: bool, part: Part) {
    let (mut liar, _) = member(scene, encrypt, part);
    let mut hello = liar.hello(scene);
    let mut listens = match script.byte() % 8 {
        6 => {
            let n = script.number() as usize;
            liar.voice.say(scene, script.bytes(n))
        }
        odd => {
            match odd {
                5 => hello = Hello::lane(script.number()),
                7 => [hello.segment, hello.slot] = [0; 2].map(|_: u8| (script.number() as u32).into()),
                _ => {}
            }
            liar.voice.say(scene, hello.as_bytes())
        }
    };
    scene.turns(100);
    while listens && !script.is_over() {
        let voice = &mut liar.voice;
        listens = match script.byte() % 16 {
            0 => {
                let (length, n) = (script.number() as u16, script.number() as usize % TEXT);
                voice.say_as_long_as(scene, script.bytes(n), length)
            }
            1 => {
                let n = script.number() as usize;
                voice.say_unsealed(scene, script.bytes(n))
            }
            2 => voice.say_at_once(scene, script.number() as usize % (usize::from(u16::MAX) - TAG + 1)),
            3 => voice.say_again(scene),
            4 => voice.leave_one_out(scene),
            5 => {
                voice.text = 1 + script.number() as usize % TEXT;
                voice.cut = script.byte().into();
                true
            }
            6 => !voice.hear(),
            _ => liar.act(scene, script),
        };
    }
    scene.turns(100);
    liar.voice.check_end(scene);
    liar.voice.hear();
    let said = liar.voice.understood();
    if let Some(hello) = said.get(..HELLO_LEN) {
        let refused = (1..).map_while(Refusal::from_number).any(|why| Hello::refusal(why).as_bytes() == hello);
        let sound = Hello::parse(hello).is_ok_and(|hello| hello.from == scene.victim.name().to_bytes());
        assert!(refused || sound, "neither a hello nor a refusal");
    }
}

/// Somebody without the key.
struct Stranger {
    stream: TcpStream,
    is_called: bool,
    said: Vec<u8>,
    heard: Vec<u8>,
    /// Bytes that are written at a time, and a turn after each; 0: all.
    cut: usize,
}

impl Stranger {
    fn new(scene: &mut Scene, is_called: bool) -> Stranger {
        // Another one than who is overheard: that one is gone.
        let (stream, _) = meet(scene, Name::new(0x57a6 | 1, 0, host::id() ^ 1, None), is_called);
        Stranger { stream, is_called, said: vec![], heard: vec![], cut: 0 }
    }

    fn say(&mut self, scene: &mut Scene, bytes: &[u8]) {
        let cut = if self.cut == 0 { bytes.len().max(1) } else { self.cut };
        for piece in bytes.chunks(cut) {
            // Who hung up hears no more.
            if !scene.write(&mut self.stream, piece) {
                return;
            }
            self.said.extend(piece);
            scene.turns(usize::from(self.cut > 0));
        }
    }

    /// One thing out of the script: bytes, a piece of what was overheard with a byte altered or none, a head, a hello, time, an echo, or how it is cut.
    fn act(&mut self, what: u8, scene: &mut Scene, script: &mut Script<'_>, overheard: &[Vec<u8>; 2], encrypt: bool) {
        match what {
            0 => {
                let n = script.number() as usize;
                self.say(scene, script.bytes(n));
            }
            1 => {
                let whose = &overheard[usize::from(script.byte()) % 2];
                let from = (script.number() as usize).min(whose.len());
                let end = from.saturating_add(script.number() as usize).min(whose.len());
                let mut piece = whose[from..end].to_vec();
                let (at, change) = (script.number() as usize, script.byte());
                piece.get_mut(at).into_iter().for_each(|byte| *byte ^= change);
                self.say(scene, &piece);
            }
            2 => {
                let mut head = head(encrypt);
                head[PROOF_HEAD - 1] = script.byte();
                self.say(scene, &head);
            }
            3 => self.say(scene, &overheard[0][FIRST + TAG..]),
            4 => scene.turns(script.byte().into()),
            5 => {
                let from = self.heard.len();
                self.is_hung_up();
                let echo = self.heard[from..].to_vec();
                self.say(scene, &echo);
            }
            _ => self.cut = script.byte().into(),
        }
    }

    fn is_hung_up(&mut self) -> bool {
        hear(&mut self.stream, &mut self.heard)
    }

    fn check_gone(&mut self) {
        let is_hung_up = self.is_hung_up();
        self.check_heard();
        assert!(is_hung_up || self.may_stay(), "{} bytes without the key, and still connected", self.said.len());
    }

    /// Nothing but refusals and messages of the proof, in which there is nothing to be learnt.
    fn check_heard(&self) {
        let heard = &self.heard;
        if heard.starts_with(&Hello::refusal(Refusal::KeyMissing).as_bytes()[..PROOF_HEAD]) {
            assert!(heard.len() <= HELLO_LEN && heard.iter().skip(16).all(|b| *b == 0), "a hello that names somebody");
            return;
        }
        // Who is called by the victim hears its call, and an answer if he has called himself, as it seems.
        assert!(heard.len() <= FIRST * (1 + usize::from(self.is_called)), "{} bytes are told to a stranger", heard.len());
        for message in heard.chunks(FIRST) {
            let head = message.first_chunk().copied().expect("a whole head");
            assert!(Proof::parse(head).is_some(), "{head:?}");
        }
    }

    /// Whether the victim may wait for him: whom it has called, as long as he has said less than anybody needs.
    fn may_stay(&self) -> bool {
        self.is_called && self.said.len() < 2 * FIRST + TAG && Proof::may_begin(&self.said[..self.said.len().min(PROOF_HEAD)])
    }
}

/// What was said for a proof that was made, by both, and the caller's hello behind it: somebody who knows the key proves that, says hello, and goes.
fn overhear(scene: &mut Scene, encrypt: bool) -> [Vec<u8>; 2] {
    let (mut known, mut said) = member(scene, encrypt, Part::Calls);
    let hello = known.hello(scene);
    assert!(known.voice.say(scene, hello.as_bytes()), "hung up on who knows the key");
    said[0].extend(hello.as_bytes());
    scene.turns(100);
    drop(known);
    scene.turns(100);
    said
}

/// Who does not know the key says what he likes, of what he has overheard, too.
fn guesses(scene: &mut Scene, script: &mut Script<'_>, encrypt: bool, is_called: bool) {
    let overheard = overhear(scene, encrypt);
    let counts = |scene: &Scene| (scene.victim.stats().peers, scene.victim.stats().received);
    let before = counts(scene);
    let (mut all, mut who) = (vec![Stranger::new(scene, is_called)], 0);
    while !script.is_over() {
        match script.byte() % 8 {
            6 => {
                who = (usize::from(script.byte()) % MOST).min(all.len());
                if who == all.len() {
                    all.push(Stranger::new(scene, false));
                }
            }
            what => all[who].act(what, scene, script, &overheard, encrypt),
        }
    }
    scene.turns(100);
    scene.wait(SECOND);
    scene.wait(6 * SECOND);
    // Who repeats a call may be somebody who computes, and goes later.
    let repeats = |stranger: &Stranger| stranger.said.starts_with(&overheard[0][..FIRST]);
    all.iter_mut().filter(|stranger| !repeats(stranger)).for_each(Stranger::check_gone);
    if all.iter().any(repeats) {
        scene.wait(60 * SECOND);
        all.iter_mut().for_each(Stranger::check_gone);
    }
    assert_eq!(counts(scene), before, "a stranger is a peer");
}
