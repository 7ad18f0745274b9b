//! Who may connect: endpoints with a job's key, with another one, and without; who listens on the way, and who alters what is said.

use crate::common::{Deadline, Event, Msg, Node, Want, attr, pattern, watchdog};
use crate::scene::{Lines, is_hung_up, network, open, place, quiet};
use rustmx::config::network::{Secret, SecretFile};
use rustmx::log::Log;
use rustmx::sys::clock::Clock;
use rustmx::sys::host;
use rustmx::wire::hello::{BadHello, HELLO_LEN, Hello, Refusal};
use rustmx::{Addr, Config, Domain, EpAttr, Error, ErrorEntry, Name, OpFlags};
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use zerocopy::IntoBytes;

const KEY: &str = "0123456789abcdef0123456789abcdef";
const OTHER: &str = "another key of another job of this user";

fn keyed(key: &str, encrypt: u64) -> Config {
    Config { auth_key: Secret::parse(key).0, encrypt, ..network() }
}

/// On one host, by shared memory.
fn near(key: &str) -> Config {
    Config { auth_key: Secret::parse(key).0, ..Config::default() }
}

/// Messages of many sizes one way and the other, several under way at a time.
#[track_caller]
fn talk(a: &mut Node, b: &mut Node, to_b: Addr, to_a: Addr) {
    const SIZES: [usize; 9] = [0, 8, 500, 5000, 16 << 10, 70_000, 300_000, (1 << 20) + 3, 5 << 20];
    let mut out: Vec<_> = SIZES.iter().enumerate().map(|(i, n)| pattern(*n, i)).collect();
    let mut back = out.clone();
    let mut into: Vec<_> = SIZES.iter().map(|n| [vec![0; *n], vec![0; *n]]).collect();
    for (i, [ours, theirs]) in into.iter_mut().enumerate() {
        // Half of them come before there is a receive.
        if i % 2 == 0 {
            a.recv(Want::tag(i as u64), ours).expect("recv");
            b.recv(Want::tag(i as u64), theirs).expect("recv");
        }
    }
    let until = Deadline::new(60);
    let (mut sent, mut posted, mut done) = (0, 1, 0);
    while done < 4 * SIZES.len() {
        if sent < SIZES.len() {
            a.send(Msg::new(to_b, sent as u64), &mut out[sent]).expect("send");
            b.send(Msg::new(to_a, sent as u64), &mut back[sent]).expect("send");
            sent += 1;
        } else if posted < SIZES.len() {
            a.recv(Want::tag(posted as u64), &mut into[posted][0]).expect("recv");
            b.recv(Want::tag(posted as u64), &mut into[posted][1]).expect("recv");
            posted += 2;
        }
        done += a.poll().iter().chain(&b.poll()).inspect(|e| assert!(e.is_ok(), "{e:?}")).count();
        until.check(|| format!("{done} of {}", 4 * SIZES.len()));
    }
    for (i, [ours, theirs]) in into.iter().enumerate() {
        assert!(*ours == out[i] && *theirs == out[i], "message {i} is another one");
    }
}

/// A sends to B until that fails. The error.
#[track_caller]
fn fails(a: &mut Node, b: &mut Node, to_b: Addr) -> ErrorEntry {
    let mut out = [1; 8];
    let until = Deadline::new(10);
    a.send(Msg::new(to_b, 1).with(OpFlags::DELIVERY_COMPLETE), &mut out).expect("send");
    let mut into = [0; 8];
    b.recv(Want::tag(1), &mut into).expect("recv");
    loop {
        let _ = b.poll();
        if let Some(event) = a.poll().pop() {
            return event.expect_err("nobody takes it");
        }
        until.check(|| "no error".into());
    }
}

#[test]
fn who_has_the_key_is_talked_to() {
    let _dog = watchdog("keys", 100);
    for encrypt in [0, 1] {
        let ((mut a, a_said), (mut b, b_said)) = (open(keyed(KEY, encrypt)), open(keyed(KEY, encrypt)));
        let (to_b, to_a) = (a.knows(&b), b.knows(&a));
        talk(&mut a, &mut b, to_b, to_a);
        talk(&mut a, &mut b, to_b, to_a);
        assert_eq!([a_said.all(), b_said.all()].concat(), Vec::<String>::new());
    }
    // The key that the application gives goes before that of the environment, and need not be long.
    let own = || EpAttr { auth_key: Secret::new(&[7]), ..attr() };
    let (mut a, mut b) = (Node::with(keyed(KEY, 1), own()), Node::with(keyed(OTHER, 1), own()));
    let (to_b, to_a) = (a.knows(&b), b.knows(&a));
    talk(&mut a, &mut b, to_b, to_a);
    let (mut a, mut b) = (Node::with(near(KEY), attr()), Node::with(near(KEY), attr()));
    let (to_b, to_a) = (a.knows(&b), b.knows(&a));
    talk(&mut a, &mut b, to_b, to_a);
}

/// Whoever calls: both sides hear what is wrong, by name, and what to set; and no key is in what they say.
#[test]
fn who_has_another_key_or_none_is_refused() {
    let _dog = watchdog("refused", 60);
    let cases = [
        (keyed(KEY, 0), keyed(OTHER, 0), Error::KeyDiffers, Error::KeyDiffers),
        (keyed(KEY, 1), keyed(OTHER, 1), Error::KeyDiffers, Error::KeyDiffers),
        (keyed(KEY, 0), keyed("", 0), Error::KeyUnknown, Error::KeyMissing),
        (keyed(KEY, 1), keyed("", 0), Error::KeyUnknown, Error::KeyMissing),
        (keyed("", 0), keyed(KEY, 0), Error::KeyMissing, Error::KeyUnknown),
        (keyed("", 0), keyed(KEY, 1), Error::KeyMissing, Error::KeyUnknown),
        (keyed(KEY, 1), keyed(KEY, 0), Error::EncryptionDiffers, Error::EncryptionDiffers),
        (keyed(KEY, 0), keyed(KEY, 1), Error::EncryptionDiffers, Error::EncryptionDiffers),
        (near(KEY), near(OTHER), Error::KeyDiffers, Error::KeyDiffers),
        (near(KEY), near(""), Error::KeyUnknown, Error::KeyMissing),
        (near(""), near(KEY), Error::KeyMissing, Error::KeyUnknown),
    ];
    for (i, (ours, theirs, why, and_there)) in cases.into_iter().enumerate() {
        let ((mut a, a_said), (mut b, b_said)) = (open(ours), open(theirs));
        let to_b = a.knows(&b);
        let entry = fails(&mut a, &mut b, to_b);
        assert_eq!((entry.error, entry.peer.map(|p| p.port())), (why, Some(b.name().port())), "case {i}");
        let until = Deadline::new(5);
        while b_said.all().is_empty() {
            let _ = b.poll();
            until.check(|| format!("case {i}: the listener says nothing"));
        }
        for (said, why) in [(a_said.all(), why), (b_said.all(), and_there)] {
            let said = said.join("\n");
            assert!(said.contains(&why.to_string()) && said.contains("FI_RUSTMX_"), "case {i}: {said}");
            assert!(!said.contains(KEY) && !said.contains(OTHER), "case {i}: {said}");
        }
    }
}

/// Without a log to be read both sides say why, once of each kind: many ranks, or strangers, do not fill standard error.
#[test]
fn what_ranks_set_differently_is_told_without_a_log() {
    let _dog = watchdog("told", 100);
    for kinds in [[keyed("", 0), keyed(OTHER, 0)], [near(""), near(OTHER)]] {
        let ours = if kinds[0].shm == 0 { keyed(KEY, 0) } else { near(KEY) };
        let (mut b, b_said) = quiet(ours);
        for kind in &kinds {
            for _ in 0..8 {
                let (mut a, a_said) = quiet(kind.clone());
                let to_b = a.knows(&b);
                let why = fails(&mut a, &mut b, to_b).error;
                let said = a_said.all();
                assert!(said.len() == 1 && said[0].contains(&why.to_string()), "{said:?}");
            }
        }
        let until = Deadline::new(10);
        while b_said.all().len() < 2 {
            let _ = b.poll();
            until.check(|| format!("{:?}", b_said.all()));
        }
        let said = b_said.all();
        let each = [Error::KeyUnknown, Error::KeyDiffers].map(|why| said.iter().filter(|s| s.contains(&why.to_string())).count());
        assert!(each == [1, 1] && said.len() == 2, "{said:?}");
    }
}

/// Another version is told of, too; whoever says nothing sensible is not.
#[test]
fn another_version_is_told_without_a_log_and_noise_is_not() {
    let _dog = watchdog("versions", 60);
    let (mut node, said) = quiet(network());
    let until = Deadline::new(30);
    for text in ["GET / HTTP/1.0\r\n\r\n", "SSH-2.0-OpenSSH_9.2p1\r\n"] {
        let mut stream = TcpStream::connect(place(&node)).expect("connect");
        stream.set_nonblocking(true).expect("nonblocking");
        stream.write_all(text.as_bytes()).expect("said");
        let mut heard = Vec::new();
        while !is_hung_up(&mut stream, &mut heard) {
            let _ = node.poll();
            until.check(|| "still connected".into());
        }
    }
    assert_eq!(said.all(), Vec::<String>::new());
    let from = Name::new(host::random() | 1, 0, host::id() ^ 1, None);
    let hello = Hello::new(from.to_bytes(), node.name().to_bytes(), 24 << 10, 0, [0; 16]);
    let mut hello = hello.as_bytes().to_vec();
    // Behind eight bytes by which both know that it is a hello.
    hello[8..12].copy_from_slice(&999u32.to_le_bytes());
    for _ in 0..3 {
        let mut stream = TcpStream::connect(place(&node)).expect("connect");
        stream.set_nonblocking(true).expect("nonblocking");
        stream.write_all(&hello).expect("hello");
        let mut heard = Vec::new();
        while !is_hung_up(&mut stream, &mut heard) {
            let _ = node.poll();
            until.check(|| "still connected".into());
        }
    }
    let said = said.all();
    assert!(said.len() == 1 && said[0].contains("999"), "{said:?}");
}

/// Nothing of the listener's is told before the proof, not even its name.
#[test]
fn a_hello_without_a_proof_tells_nothing() {
    let _dog = watchdog("nothing", 30);
    let (mut node, lines) = open(keyed(KEY, 0));
    let from = Name::new(host::random() | 1, 0, host::id() ^ 1, None);
    let hello = Hello::new(from.to_bytes(), node.name().to_bytes(), 24 << 10, 0, [0; 16]);
    let mut stream = TcpStream::connect(place(&node)).expect("connect");
    stream.set_nonblocking(true).expect("nonblocking");
    stream.write_all(hello.as_bytes()).expect("hello");
    let (mut said, until) = (Vec::new(), Deadline::new(3));
    while !is_hung_up(&mut stream, &mut said) {
        let _ = node.poll();
        until.check(|| "still connected".into());
    }
    assert_eq!(said.len(), HELLO_LEN);
    assert_eq!(Hello::parse(&said).map(|_| ()), Err(BadHello::Refused(Refusal::KeyMissing)));
    assert!(said[16..].iter().all(|b| *b == 0), "{said:?}");
    let lines = lines.all();
    assert!(lines.len() == 1 && lines[0].contains("FI_RUSTMX_AUTH_KEY"), "{lines:?}");
}

/// Between two that talk. The bytes that went through, and one of them flipped if `flip` says which (of those to the listener).
pub struct Between {
    listener: TcpListener,
    to: std::net::SocketAddr,
    ends: Option<[TcpStream; 2]>,
    /// By the caller, and by the listener.
    pub said: [Vec<u8>; 2],
    flip: Option<usize>,
}

impl Between {
    fn new(to: &Node, flip: Option<usize>) -> (Between, Name) {
        Between::at("127.0.0.1".parse().expect("an address"), to, flip)
    }

    /// Listens there.
    pub fn at(ip: IpAddr, to: &Node, flip: Option<usize>) -> (Between, Name) {
        let listener = TcpListener::bind((ip, 0)).expect("bind");
        listener.set_nonblocking(true).expect("nonblocking");
        let here = listener.local_addr().expect("address");
        let between = Between { listener, to: place(to), ends: None, said: [vec![], vec![]], flip };
        (between, to.name().at(&[(here.ip(), 0)], here.port()))
    }

    pub fn pass(&mut self) {
        if self.ends.is_none()
            && let Ok((caller, _)) = self.listener.accept()
        {
            let there = TcpStream::connect(self.to).expect("connect");
            [&caller, &there].iter().for_each(|s| s.set_nonblocking(true).expect("nonblocking"));
            self.ends = Some([caller, there]);
        }
        let Some(ends) = &mut self.ends else { return };
        for from in 0..2 {
            let mut bytes = [0; 8 << 10];
            match ends[from].read(&mut bytes) {
                Ok(0) => _ = ends[1 - from].shutdown(std::net::Shutdown::Write),
                Ok(n) => {
                    let before = self.said[from].len();
                    self.said[from].extend(&bytes[..n]);
                    if let Some(at) = self.flip
                        && from == 0
                        && (before..before + n).contains(&at)
                    {
                        bytes[at - before] ^= 16;
                    }
                    let mut sent = 0;
                    while sent < n {
                        match ends[1 - from].write(&bytes[sent..n]) {
                            Ok(n) => sent += n,
                            Err(e) if e.kind() == ErrorKind::WouldBlock => std::thread::yield_now(),
                            Err(_) => break,
                        }
                    }
                }
                Err(_) => {}
            }
        }
    }
}

/// Sends `out` from A through somebody between. What came of it at both.
fn through(between: &mut Between, name: Name, a: &mut Node, b: &mut Node, out: &mut [u8]) -> [Option<Event>; 2] {
    let to_b = a.av.insert(&name);
    let _ = b.knows(a);
    let mut into = vec![0; out.len()];
    b.recv(Want::tag(1), &mut into).expect("recv");
    a.send(Msg::new(to_b, 1).with(OpFlags::DELIVERY_COMPLETE), out).expect("send");
    let (mut came, until) = ([None, None], Deadline::new(20));
    while came.iter().any(Option::is_none) {
        between.pass();
        for (node, came) in [&mut *a, &mut *b].into_iter().zip(&mut came) {
            for event in node.poll() {
                came.get_or_insert(event);
            }
        }
        // A receive that names nobody goes on waiting.
        if came[0].as_ref().is_some_and(Result::is_err) {
            break;
        }
        until.check(|| "no end".into());
    }
    if came[1].as_ref().is_some_and(Result::is_ok) {
        assert!(into == out);
    }
    came
}

/// Whoever listens sees the text if it is not encrypted, and nothing of it if it is.
#[test]
fn who_listens_understands_nothing() {
    let _dog = watchdog("listens", 60);
    for encrypt in [0, 1] {
        for len in [100, 4000, 200_000] {
            let (mut a, mut b) = (Node::with(keyed(KEY, encrypt), attr()), Node::with(keyed(KEY, encrypt), attr()));
            let (mut between, name) = Between::new(&b, None);
            let mut out = pattern(len, 5);
            let came = through(&mut between, name, &mut a, &mut b, &mut out);
            assert!(came.iter().flatten().all(Result::is_ok), "{came:?}");
            let heard = between.said[0].windows(64).any(|w| w == &out[..64]);
            assert_eq!(heard, encrypt == 0, "{len} bytes");
            let nonce = a.name().to_bytes()[32..40].to_vec();
            assert_eq!(between.said[0].windows(8).any(|w| w == nonce), encrypt == 0, "the name");
        }
    }
}

/// A bit that is flipped on the way ends an encrypted connection, with an error that names the peer; never another text.
#[test]
fn who_alters_what_is_said_ends_it() {
    let _dog = watchdog("alters", 60);
    // In the proof, in the hello, in a record's head, in its text, in a long message.
    for at in [20, 60, 80, 200, 500, 560, 900, 30_000, 100_000] {
        let ((mut a, _), (mut b, b_said)) = (open(keyed(KEY, 1)), open(keyed(KEY, 1)));
        let (mut between, name) = Between::new(&b, Some(at));
        let mut out = pattern(200_000, 5);
        let [sent, came] = through(&mut between, name, &mut a, &mut b, &mut out);
        assert!(between.said[0].len() > at, "nothing was altered");
        let Some(Err(entry)) = sent else { panic!("byte {at}: {sent:?}") };
        assert_eq!(entry.peer.map(|p| p.identity()), Some(b.name().identity()), "byte {at}: {entry:?}");
        assert!(came.is_none_or(|e| e.is_err()), "byte {at}");
        let said = b_said.all().join("\n");
        let why = if at < 72 { Error::KeyDiffers } else { Error::Altered };
        assert!(said.contains(&why.to_string()), "byte {at}: {said}");
    }
}

/// Who is called may compute for longer than a call may take, and who calls for longer than a listener waits for a proof.
#[test]
fn who_computes_is_waited_for() {
    let _dog = watchdog("computes", 60);
    for caller_sleeps in [false, true] {
        let config = Config { connect_timeout: if caller_sleeps { 10_000 } else { 300 }, ..keyed(KEY, 1) };
        let (mut a, mut b) = (Node::with(config.clone(), attr()), Node::with(config, attr()));
        let (to_b, _) = (a.knows(&b), b.knows(&a));
        let (mut out, mut into) = (pattern(500, 1), vec![0; 500]);
        b.recv(Want::tag(1), &mut into).expect("recv");
        a.send(Msg::new(to_b, 1), &mut out).expect("send");
        let at = Instant::now();
        // The call is out, and its first message.
        while at.elapsed() < Duration::from_millis(300) {
            assert!(a.poll().iter().all(Result::is_ok));
        }
        let awake = if caller_sleeps { &mut b } else { &mut a };
        while at.elapsed() < Duration::from_secs(if caller_sleeps { 6 } else { 2 }) {
            assert!(awake.poll().iter().all(Result::is_ok));
            std::thread::sleep(Duration::from_millis(1));
        }
        let until = Deadline::new(10);
        loop {
            // What is written to it nobody sees here.
            if std::hint::black_box(&into) == &out {
                break;
            }
            for event in a.poll().into_iter().chain(b.poll()) {
                event.expect("no error");
            }
            until.check(|| "nothing comes".into());
        }
    }
}

/// Whether an endpoint opens, and what is said if not.
fn opens(config: Config) -> (Result<(), Error>, String) {
    let lines = Arc::new(Lines::default());
    let mut domain = Domain::with_clock(Arc::new(config), Log::new(lines.clone()), Clock::machine());
    let (cq, ep) = (domain.cq_open(), domain.ep_open(attr()).expect("endpoint"));
    domain.ep_bind_av(ep, Arc::new(rustmx::AddressVector::new())).expect("av");
    domain.ep_bind_cq(ep, cq, true, true, false).expect("cq");
    (domain.ep_enable(ep), lines.all().join("\n"))
}

#[test]
fn a_key_that_is_none_is_an_error_and_not_ignored() {
    let place = std::env::temp_dir().join(format!("rustmx-key-{}", std::process::id()));
    std::fs::create_dir_all(&place).expect("made");
    let path = place.join("key");
    let file = || SecretFile::parse(path.to_str().expect("text")).0;
    let with_file = || Config { auth_key_file: file(), ..keyed("", 1) };
    assert!(opens(with_file()).1.contains("there is no such file"));
    let write = |text: &str, mode| {
        std::fs::write(&path, text).expect("written");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).expect("mode");
    };
    write(&format!("{KEY}\n"), 0o644);
    let (opened, said) = opens(with_file());
    assert!(opened == Err(Error::Invalid) && said.contains("chmod go=") && !said.contains(KEY), "{said}");
    write(&format!("{KEY}\n"), 0o600);
    assert_eq!(opens(with_file()), (Ok(()), String::new()));
    let (mut a, mut b) = (Node::with(with_file(), attr()), Node::with(keyed(KEY, 1), attr()));
    let (to_b, to_a) = (a.knows(&b), b.knows(&a));
    talk(&mut a, &mut b, to_b, to_a);
    write("short", 0o600);
    let cases = [
        (with_file(), "16 to 4096 bytes, not 5"),
        (keyed("too short", 0), "16 to 4096 bytes, not 9"),
        (keyed("", 1), "FI_RUSTMX_ENCRYPT needs a key"),
        (Config { auth_key_file: file(), ..keyed(KEY, 0) }, "both set"),
        (Config { require_key: 1, ..keyed("", 0) }, "FI_RUSTMX_REQUIRE_KEY"),
    ];
    for (config, what) in cases {
        let (opened, said) = opens(config);
        assert!(opened == Err(Error::Invalid) && said.contains(what), "{what}: {said}");
        assert!(!said.contains("too short") && !said.contains("short,"), "{said}");
    }
    assert_eq!(opens(Config { require_key: 1, ..keyed(KEY, 0) }).0, Ok(()));
    let _ = std::fs::remove_dir_all(&place);
}
