//! A sender that is gone before its messages are looked at.

use crate::common::process::{Copy, hear, say};
use crate::common::{Deadline, Msg, Node, Want, attr, by_network, closing_in, not_by_network, pattern, seg, watchdog};
use crate::{ok, peer, start};
use rustmx::{Addr, AddressVector, Domain, EpId, Error, INJECT_MAX, Log, Name, OpFlags, RecvArgs, SendArgs, UserCtx};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const PARTING: [usize; 5] = [0, 40, 232, 4000, 4096];

/// Sends a few messages and is gone: by `exit` without closing anything, by SIGKILL, or in good order.
pub fn sender(name: &str, how: &str) {
    let mut node = Node::new();
    let to = peer(&node, name);
    let mut bufs: Vec<Vec<u8>> = PARTING.iter().enumerate().map(|(i, n)| pattern(*n, i)).collect();
    for (i, buf) in bufs.iter_mut().enumerate() {
        node.send(Msg::new(to, i as u64), buf).expect("send");
    }
    // The other side need not do anything for that.
    node.complete(PARTING.len());
    say("sent");
    match how {
        "exits" => std::process::exit(0),
        "killed" => drop(hear()),
        _ => drop(node),
    }
}

/// Transmit-complete means: it arrives, whatever becomes of the sender, and the receiver need not even have noticed that somebody called.
#[test]
fn a_message_to_a_computing_process_outlives_its_sender() {
    if not_by_network("who calls and may be called says nothing before he is answered; whoever then dies has sent nothing") {
        return;
    }
    let _dog = watchdog("outlives", 60);
    for how in ["exits", "killed", "closes"] {
        let mut b = Node::new();
        let mut other = start(&format!("sender {} {how}", b.name()));
        assert_eq!(other.hear(), "sent");
        if how == "killed" {
            other.kill();
        } else {
            assert!(other.ended().success());
        }
        // Only now does this process do anything.
        for (i, n) in PARTING.into_iter().enumerate().rev() {
            let mut into = vec![0u8; n];
            b.recv(Want::tag(i as u64), &mut into).expect("recv");
            let until = Deadline::new(5);
            let mut got = Vec::new();
            while got.is_empty() {
                got = b.poll();
                until.check(|| format!("message {i} of a sender that {how} is lost: {:?}", b.stats()));
            }
            assert_eq!(ok(&got[0]).len, n);
            assert_eq!(into, pattern(n, i));
        }
    }
}

const TAKEN: usize = 200;

/// Sends more than a receiver takes unasked out of a buffer that it has back each time, and closes.
pub fn injector(name: &str, how: &str) {
    let mut node = Node::with(closing_in(100, how == "said"), attr());
    let to = peer(&node, name);
    let mut buf = vec![0; INJECT_MAX];
    for i in 0..TAKEN {
        buf.copy_from_slice(&pattern(INJECT_MAX, i));
        while node.send(Msg::new(to, i as u64).inject(), &mut buf) == Err(Error::Again) {
            node.quiet(1);
        }
        buf.fill(0x55);
    }
    say(&node.name().to_string());
    drop(node);
    say("closed");
}

/// The address of an [`injector`], once it has sent all.
fn injected_by(other: &mut Copy, b: &mut Node) -> Addr {
    let until = Deadline::new(20);
    loop {
        assert!(b.poll().is_empty());
        if let Some(name) = other.heard() {
            return peer(b, &name);
        }
        until.check(|| "nothing is sent".into());
    }
}

/// Who was told that his message is sent may close. If the time for that is set he is held to it; else all of it is received first, though that takes longer than is waited for other things.
#[test]
fn what_was_taken_outlives_the_time_for_closing() {
    let _dog = watchdog("closing", 60);
    for how in ["said", "unsaid"] {
        let mut b = Node::new();
        let mut other = start(&format!("injector {} {how}", b.name()));
        let until = Deadline::new(20);
        let from = injected_by(&mut other, &mut b);
        let began = Instant::now();
        while how == "said" && other.heard().is_none() || how != "said" && began.elapsed() < Duration::from_millis(700) {
            assert!(b.poll().is_empty());
            until.check(|| "it does not close".into());
        }
        assert!(other.heard().is_none(), "{how}: it has closed");
        let (mut came, mut into) = (0, vec![0u8; INJECT_MAX]);
        for i in 0..TAKEN {
            let mut got = Vec::new();
            match b.recv(Want::tag(i as u64).from(from), &mut into) {
                Err(Error::PeerGone) => continue,
                posted => posted.expect("recv"),
            }
            while got.is_empty() {
                got = b.poll();
                until.check(|| format!("message {i} of a sender that was {how} to close: {:?}", b.stats()));
            }
            if got[0].is_ok() {
                assert_eq!(into, pattern(INJECT_MAX, i));
                came += 1;
            }
        }
        assert_eq!(came == TAKEN, how == "unsaid", "{came} came");
        assert!(other.ended().success());
    }
}

/// Two that close, each of which has sent the other more than is taken unasked: neither will receive anything any more, so neither is waited for.
#[test]
fn two_that_close_do_not_wait_for_each_other() {
    let _dog = watchdog("both_close", 60);
    let mut b = Node::with(closing_in(100, false), attr());
    let mut other = start(&format!("injector {} unsaid", b.name()));
    let to = injected_by(&mut other, &mut b);
    for i in 0..TAKEN {
        while b.send(Msg::new(to, i as u64).inject(), &mut pattern(INJECT_MAX, i)) == Err(Error::Again) {
            b.quiet(1);
        }
    }
    assert_eq!(other.heard(), None, "it has closed");
    drop(b);
    assert!(other.ended().success());
}

/// An endpoint whose messages wait in a shared receive context.
struct Member {
    domain: Domain,
    ep: EpId,
    av: Arc<AddressVector>,
}

impl Member {
    fn new() -> Member {
        let mut domain = Domain::new(Arc::new(by_network(closing_in(100, false))), Log::silent());
        let (srx, cq, av) = (domain.srx_open(OpFlags::COMPLETION, false), domain.cq_open(), Arc::new(AddressVector::new()));
        let ep = domain.ep_open(attr()).expect("endpoint");
        domain.ep_bind_av(ep, av.clone()).expect("av");
        domain.ep_bind_cq(ep, cq, true, true, false).expect("cq");
        domain.ep_bind_srx(ep, srx).expect("context");
        domain.ep_enable(ep).expect("enable");
        Member { domain, ep, av }
    }

    fn name(&self) -> Name {
        self.domain.ep_name(self.ep).expect("name")
    }

    /// As the [`injector`] does.
    fn inject(&mut self, name: &str) {
        let to = self.av.insert(&name.parse::<Name>().expect("a name"));
        let mut buf = pattern(INJECT_MAX, 1);
        let iov = [seg(&mut buf)];
        for tag in 0..TAKEN as u64 {
            let args = SendArgs { to, tagged: true, tag, data: None, iov: &iov, ctx: UserCtx(0), flags: None, inject: true };
            while self.domain.send(self.ep, &args) == Err(Error::Again) {
                self.domain.progress();
            }
        }
    }
}

/// An [`injector`] that is a member of a context.
pub fn member(name: &str) {
    let mut member = Member::new();
    member.inject(name);
    say(&member.name().to_string());
    drop(member);
}

/// The same of two whose messages wait in shared receive contexts.
#[test]
fn nor_do_members_of_contexts() {
    let _dog = watchdog("members_close", 60);
    let mut member = Member::new();
    let mut other = start(&format!("member {}", member.name()));
    let until = Deadline::new(20);
    let name = loop {
        member.domain.progress();
        if let Some(name) = other.heard() {
            break name;
        }
        until.check(|| "nothing is sent".into());
    };
    member.inject(&name);
    drop(member);
    assert!(other.ended().success());
}

/// A domain with two endpoints.
struct Two {
    domain: Domain,
    eps: [EpId; 2],
    av: Arc<AddressVector>,
}

impl Two {
    fn new() -> Two {
        let mut domain = Domain::new(Arc::new(by_network(closing_in(20_000, true))), Log::silent());
        let (cq, av) = (domain.cq_open(), Arc::new(AddressVector::new()));
        let eps = [(); 2].map(|()| {
            let ep = domain.ep_open(attr()).expect("endpoint");
            domain.ep_bind_av(ep, av.clone()).expect("av");
            domain.ep_bind_cq(ep, cq, true, true, false).expect("cq");
            domain.ep_enable(ep).expect("enable");
            ep
        });
        Two { domain, eps, av }
    }

    fn name(&self, at: usize) -> Name {
        self.domain.ep_name(self.eps[at]).expect("name")
    }

    /// Sends from one endpoint, receives with the other.
    fn talk(&mut self, [from, at]: [usize; 2], to: &Name, out: &mut [u8], into: &mut [u8]) {
        let (to, iov) = (self.av.insert(to), [seg(out)]);
        let args = SendArgs { to, tagged: true, tag: 1, data: None, iov: &iov, ctx: UserCtx(1), flags: None, inject: false };
        self.domain.send(self.eps[from], &args).expect("sent");
        let iov = [seg(into)];
        let receive = RecvArgs { from: Addr::UNSPEC, tagged: true, tag: 1, ignore: 0, iov: &iov, ctx: UserCtx(2), flags: None };
        self.domain.recv(self.eps[at], &receive).expect("posted");
    }
}

/// Each of two processes closes the endpoint by which it sends, while that of the other waits with the endpoint by which it receives: it goes on meanwhile.
#[test]
fn endpoints_that_stay_go_on_while_others_close() {
    let _dog = watchdog("others_close", 60);
    const LEN: usize = 3_000_000;
    let (mut a, mut b) = (Two::new(), Two::new());
    let names = [a.name(0), a.name(1), b.name(0), b.name(1)];
    let [mut from_a, mut from_b] = [1, 2].map(|seed| pattern(LEN, seed));
    let [mut to_a, mut to_b] = [(); 2].map(|()| vec![0; LEN]);
    // By the first of a to the first of b, and by the second of b to the second of a.
    a.talk([0, 1], &names[2], &mut from_a, &mut to_a);
    b.talk([1, 0], &names[1], &mut from_b, &mut to_b);
    let (begun, closed) = (Instant::now(), AtomicUsize::new(0));
    std::thread::scope(|threads| {
        for (two, which) in [(&mut a, 0), (&mut b, 1)] {
            let closed = &closed;
            threads.spawn(move || {
                two.domain.ep_close(two.eps[which]).expect("closed");
                closed.fetch_add(1, Ordering::Relaxed);
                while closed.load(Ordering::Relaxed) < 2 {
                    two.domain.progress();
                }
            });
        }
    });
    assert!(begun.elapsed() < Duration::from_secs(10), "they wait for each other");
    let until = Deadline::new(10);
    while to_a != pattern(LEN, 2) || to_b != pattern(LEN, 1) {
        a.domain.progress();
        b.domain.progress();
        until.check(|| "something was lost".into());
    }
}
