//! Shared receive contexts: what the engine promises to `fi_srx_context`, through the public API.

#![allow(clippy::result_large_err, reason = "an error entry is passed on as the engine gave it")]

mod common;

use common::{Deadline, Event, Msg, Node, Want, attr, not_by_network, pattern, seg, watchdog};
use rustmx::{Addr, AddressVector, CompFlags, Config, CqId, CqRead, Domain, EpId, Error, Log, OpFlags, RecvArgs, SrxId, UserCtx};
use std::sync::Arc;

/// A domain with several endpoints that share one context, a queue each.
struct Host {
    domain: Domain,
    srx: SrxId,
    eps: Vec<(EpId, CqId)>,
    av: Arc<AddressVector>,
}

impl Host {
    fn new(members: usize) -> Host {
        Host::with(members, Config::default())
    }

    fn with(members: usize, config: Config) -> Host {
        let mut domain = Domain::new(Arc::new(common::by_network(config)), Log::silent());
        let srx = domain.srx_open(OpFlags::COMPLETION, false);
        let mut host = Host { domain, srx, eps: Vec::new(), av: Arc::new(AddressVector::new()) };
        for _ in 0..members {
            host.join();
        }
        host
    }

    fn join(&mut self) {
        self.join_by(false);
    }

    /// `selective`: entries for those who ask.
    fn join_by(&mut self, selective: bool) {
        let cq = self.domain.cq_open();
        let ep = self.domain.ep_open(attr()).expect("endpoint");
        self.domain.ep_bind_av(ep, self.av.clone()).expect("av");
        self.domain.ep_bind_cq(ep, cq, true, true, selective).expect("cq");
        self.domain.ep_bind_srx(ep, self.srx).expect("context");
        self.domain.ep_enable(ep).expect("enable");
        self.eps.push((ep, cq));
    }

    /// The handle of member `i` at `n`.
    fn known_by(&self, n: &Node, i: usize) -> Addr {
        n.av.insert(&self.domain.ep_name(self.eps[i].0).expect("name"))
    }

    fn post(&mut self, w: Want, buf: &mut [u8]) -> Result<(), Error> {
        let iov = [seg(buf)];
        let (from, tag, ignore, ctx) = (w.from, w.tag, w.ignore, UserCtx(w.ctx));
        let args = RecvArgs { from, tagged: true, tag, ignore, iov: &iov, ctx, flags: Some(w.flags) };
        self.domain.srx_recv(self.srx, &args)
    }

    fn poll(&mut self, i: usize) -> Vec<Event> {
        let mut got = Vec::new();
        loop {
            match self.domain.cq_read(self.eps[i].1, 64, &mut |c| got.push(Ok(*c))) {
                CqRead::ErrorPending => got.extend(self.domain.cq_read_error(self.eps[i].1).map(Err)),
                CqRead::Got(_) => {}
                CqRead::Empty => return got,
            }
        }
    }

    /// The next event of member `i`, while `other` makes progress.
    #[track_caller]
    fn next(&mut self, i: usize, other: &mut Node) -> Event {
        let until = Deadline::new(20);
        loop {
            let mut got = self.poll(i);
            assert!(got.len() < 2, "{got:?}");
            if let Some(e) = got.pop() {
                return e;
            }
            other.domain.progress();
            until.check(|| format!("no completion at member {i}"));
        }
    }
}

#[test]
fn the_first_message_gets_the_oldest_receive_whoever_it_came_to() {
    let _dog = watchdog("shared_order", 60);
    let (mut host, mut n) = (Host::new(3), Node::new());
    let to: Vec<Addr> = (0..3).map(|i| host.known_by(&n, i)).collect();
    for size in [8usize, 3000, 100_000] {
        let mut bufs = vec![vec![0u8; size]; 3];
        for (i, buf) in bufs.iter_mut().enumerate() {
            host.post(Want::any().ctx(i), buf).expect("posted");
        }
        for (nth, member) in [2, 0, 1].into_iter().enumerate() {
            let mut out = pattern(size, nth);
            n.send(Msg::new(to[member], 7), &mut out).expect("send");
            let c = host.next(member, &mut n).expect("received");
            assert_eq!((c.ctx, c.len), (UserCtx(nth), size));
            assert_eq!(bufs[nth], pattern(size, nth));
        }
    }
}

#[test]
fn messages_wait_for_receives_of_the_context() {
    let _dog = watchdog("shared_unexpected", 60);
    let (mut host, mut n) = (Host::new(2), Node::new());
    let to: Vec<Addr> = (0..2).map(|i| host.known_by(&n, i)).collect();
    for size in [8usize, 3000, 100_000] {
        let mut out = [pattern(size, 1), pattern(size, 2)];
        for (i, out) in out.iter_mut().enumerate() {
            n.send(Msg::new(to[i], i as u64), out).expect("send");
        }
        for _ in 0..200 {
            host.domain.progress();
            n.domain.progress();
        }
        // The other way round: tags decide.
        for i in [1usize, 0] {
            let mut buf = vec![0u8; size];
            host.post(Want::tag(i as u64), &mut buf).expect("posted");
            let c = host.next(i, &mut n).expect("received");
            assert_eq!((c.tag, c.len), (i as u64, size));
            assert_eq!(buf, pattern(size, i + 1));
        }
    }
}

#[test]
fn one_buffer_takes_messages_of_all_members() {
    let _dog = watchdog("shared_multi", 60);
    let (mut host, mut n) = (Host::new(2), Node::new());
    let to: Vec<Addr> = (0..2).map(|i| host.known_by(&n, i)).collect();
    let mut buf = vec![0u8; 4096];
    // Two come early, to different members, and two late.
    for (i, to) in to.iter().enumerate() {
        n.send(Msg::new(*to, 0), &mut pattern(100, i)).expect("send");
    }
    for _ in 0..100 {
        host.domain.progress();
    }
    host.post(Want::any().ctx(9).with(OpFlags::MULTI_RECV), &mut buf).expect("posted");
    for (i, to) in to.iter().enumerate() {
        n.send(Msg::new(*to, 0), &mut pattern(100, i + 2)).expect("send");
    }
    let (mut places, mut got) = (Vec::new(), [Vec::new(), Vec::new()]);
    let until = Deadline::new(20);
    while places.len() < 4 {
        for (i, got) in got.iter_mut().enumerate() {
            for c in host.poll(i) {
                let c = c.expect("received");
                assert_eq!((c.ctx, c.len), (UserCtx(9), 100));
                let at = c.buf - buf.as_ptr() as usize;
                got.extend((0..4).find(|nth| buf[at..at + 100] == pattern(100, *nth)));
                places.push(at);
            }
        }
        n.domain.progress();
        until.check(|| format!("{} messages", places.len()));
    }
    // Those of one sender to one member keep their order; between members there is none.
    assert_eq!(got, [[0, 2], [1, 3]], "each member's messages are its own");
    places.sort_unstable();
    assert!(places.windows(2).all(|two| two[1] - two[0] >= 100), "{places:?}");
}

/// A long message that gets whole while its endpoint only sends: the buffer goes back all the same, and so does one whose message breaks off with the endpoint.
#[test]
fn a_buffer_goes_back_after_long_messages() {
    if not_by_network("what one side copies by itself is of shared memory") {
        return;
    }
    let _dog = watchdog("shared_long", 60);
    const LEN: usize = 2 << 20;
    for closes in [false, true] {
        let config = Config { syscall_min: 64 << 10, ..Config::default() };
        let (mut host, mut n) = (Host::with(2, config.clone()), Node::with(config, attr()));
        let to = host.known_by(&n, 0);
        let back = host.av.insert(&n.name());
        let (mut buf, mut out, mut answer) = (vec![0u8; LEN], pattern(LEN, 3), pattern(100_000, 4));
        // They know each other.
        host.post(Want::tag(1), &mut [0]).expect("posted");
        n.send(Msg::new(to, 1), &mut [1]).expect("send");
        host.next(0, &mut n).expect("received");
        host.post(Want::any().ctx(9).with(OpFlags::MULTI_RECV), &mut buf).expect("posted");
        n.send(Msg::new(to, 2), &mut out).expect("send");
        // It is matched, and a part of it is there.
        host.domain.progress();
        let c = if closes {
            host.domain.ep_close(host.eps[0].0).expect("closed");
            let until = Deadline::new(20);
            loop {
                if let Some(e) = host.poll(0).pop() {
                    break e.expect("an entry");
                }
                until.check(|| "the buffer does not come back".into());
            }
        } else {
            let iov = [seg(&mut answer)];
            for _ in 0..LEN >> 18 {
                let flags = Some(OpFlags::empty());
                let args = rustmx::SendArgs {
                    to: back,
                    tagged: true,
                    tag: 3,
                    data: None,
                    iov: &iov,
                    ctx: UserCtx(3),
                    flags,
                    inject: false,
                };
                host.domain.send(host.eps[0].0, &args).expect("send");
            }
            host.next(0, &mut n).expect("received")
        };
        assert_eq!((c.ctx, c.flags.contains(CompFlags::MULTI_RECV)), (UserCtx(9), true), "closes {closes}: {c:?}");
        assert!(closes || (c.len == LEN && buf == out));
    }
}

#[test]
fn peek_claim_and_discard() {
    let _dog = watchdog("shared_peek", 60);
    let (mut host, mut n) = (Host::new(2), Node::new());
    let to = host.known_by(&n, 1);
    let mut buf = [0u8; 64];
    let nothing = Want::tag(5).ctx(1).with(OpFlags::PEEK);
    host.post(nothing, &mut []).expect("a peek");
    // It belongs to no message, so some member's queue takes it.
    let told: Vec<Event> = (0..2).flat_map(|i| host.poll(i)).collect();
    assert!(matches!(&told[..], [Err(e)] if e.error == Error::NoMessage), "{told:?}");
    n.send(Msg::new(to, 5), &mut pattern(40, 3)).expect("send");
    n.send(Msg::new(to, 6), &mut pattern(40, 4)).expect("send");
    // Over the network a first message may have to wait for an answer.
    let until = Deadline::new(10);
    while host.domain.ep_stats(host.eps[1].0).expect("stats").unexpected < 2 {
        host.domain.progress();
        n.domain.progress();
        until.check(|| "the messages have not come".into());
    }
    host.post(Want::tag(5).ctx(2).with(OpFlags::PEEK | OpFlags::CLAIM), &mut []).expect("a claim");
    let c = host.next(1, &mut n).expect("found");
    assert_eq!((c.len, c.flags.contains(CompFlags::CLAIM)), (40, true));
    assert_eq!(host.post(Want::tag(6).ctx(2).with(OpFlags::PEEK | OpFlags::CLAIM), &mut []), Err(Error::Invalid));
    host.post(Want::tag(5).ctx(2).with(OpFlags::CLAIM), &mut buf).expect("received");
    assert_eq!(host.next(1, &mut n).expect("received").len, 40);
    assert_eq!(buf[..40], pattern(40, 3)[..]);
    host.post(Want::tag(6).ctx(3).with(OpFlags::PEEK | OpFlags::DISCARD), &mut []).expect("dropped");
    host.next(1, &mut n).expect("dropped");
    assert_eq!(host.post(Want::tag(5).ctx(2).with(OpFlags::CLAIM), &mut buf), Err(Error::NoMessage));
}

#[test]
fn cancelled_receives_complete_somewhere() {
    let mut host = Host::new(2);
    let mut buf = [0u8; 8];
    host.post(Want::any().ctx(4), &mut buf).expect("posted");
    host.domain.srx_cancel(host.srx, UserCtx(4)).expect("cancelled");
    let told: Vec<Event> = (0..2).flat_map(|i| host.poll(i)).collect();
    assert!(matches!(&told[..], [Err(e)] if e.error == Error::Cancelled && e.c.ctx == UserCtx(4)), "{told:?}");
    assert_eq!(host.domain.srx_cancel(host.srx, UserCtx(4)), Err(Error::NoMessage));
}

#[test]
fn members_come_and_go() {
    let _dog = watchdog("shared_leave", 60);
    let (mut host, mut n) = (Host::new(2), Node::new());
    let to: Vec<Addr> = (0..2).map(|i| host.known_by(&n, i)).collect();
    // One message for each; then the first member goes, and its message with it.
    for (i, to) in to.iter().enumerate() {
        n.send(Msg::new(*to, 1).ctx(i), &mut pattern(50, i)).expect("send");
    }
    for _ in 0..100 {
        host.domain.progress();
    }
    assert_eq!(host.domain.srx_close(host.srx), Err(Error::Busy));
    host.domain.ep_close(host.eps[0].0).expect("closed");
    let mut buf = [0u8; 50];
    host.post(Want::tag(1), &mut buf).expect("posted");
    assert_eq!(host.next(1, &mut n).expect("received").len, 50);
    assert_eq!(buf[..], pattern(50, 1)[..]);
    // A receive posted before a member joins serves it, too.
    host.post(Want::tag(2), &mut buf).expect("posted");
    host.join();
    let late = host.known_by(&n, 2);
    n.send(Msg::new(late, 2), &mut pattern(50, 7)).expect("send");
    assert_eq!(host.next(2, &mut n).expect("received").len, 50);
    for i in [1, 2] {
        host.domain.ep_close(host.eps[i].0).expect("closed");
    }
    host.domain.srx_close(host.srx).expect("closed");
}

/// A sender closes while a stream of it waits for a receive: the held message goes, the others stay, whatever the peer's number.
#[test]
fn what_is_broken_goes_and_the_rest_stays() {
    let _dog = watchdog("shared_broken", 60);
    let config = Config { close_timeout: 0, ..Config::default() };
    let mut host = Host::new(2);
    let (mut a, mut b) = (Node::with(config.clone(), attr()), Node::with(config, attr()));
    // Both are peer 0 of their member.
    let (to_0, to_1) = (host.known_by(&a, 0), host.known_by(&b, 1));
    let (mut long, mut other) = (pattern(1_000_000, 1), pattern(500_000, 2));
    a.send(Msg::new(to_0, 1), &mut long).expect("send");
    b.send(Msg::new(to_1, 1), &mut other).expect("send");
    for _ in 0..200 {
        host.domain.progress();
        a.domain.progress();
        b.domain.progress();
    }
    drop(a);
    // Nobody waited for it, so nobody is told; the sockets are looked at every 20 microseconds.
    for _ in 0..200 {
        (0..32).for_each(|_| host.domain.progress());
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let mut buf = vec![0u8; 1_000_000];
    host.post(Want::tag(1), &mut buf).expect("posted");
    assert_eq!(host.next(1, &mut b).expect("received").len, 500_000);
    assert_eq!(buf[..500_000], pattern(500_000, 2)[..]);
}

#[test]
fn what_a_context_refuses() {
    let mut host = Host::new(1);
    let mut buf = [0u8; 8];
    let directed = host.domain.srx_open(OpFlags::empty(), true);
    let iov = [seg(&mut buf)];
    let args = |from| RecvArgs { from, tagged: false, tag: 0, ignore: 0, iov: &iov, ctx: UserCtx(0), flags: None };
    assert_eq!(host.domain.srx_recv(directed, &args(Addr(0))), Err(Error::Unsupported));
    assert_eq!(host.domain.srx_recv(directed, &args(Addr::UNSPEC)), Ok(()));
    // A member of one context cannot join another, and one address vector serves all members.
    assert_eq!(host.domain.ep_bind_srx(host.eps[0].0, directed), Err(Error::BadState));
    let (cq, ep) = (host.domain.cq_open(), host.domain.ep_open(attr()).expect("endpoint"));
    host.domain.ep_bind_av(ep, Arc::new(AddressVector::new())).expect("av");
    host.domain.ep_bind_cq(ep, cq, true, true, false).expect("cq");
    host.domain.ep_bind_srx(ep, host.srx).expect("context");
    assert_eq!(host.domain.ep_enable(ep), Err(Error::Invalid));
}

/// Whether a message has an entry is said by its receive and by the queue of the endpoint to which it comes, whichever was first.
#[test]
fn each_member_tells_as_its_queue_is_bound() {
    let _dog = watchdog("selective_members", 30);
    for flags in [OpFlags::empty(), OpFlags::COMPLETION] {
        let mut host = Host::new(0);
        let (mut early, mut late) = (vec![[0u8; 8]; 3], vec![[0u8; 8]; 3]);
        let post = |host: &mut Host, bufs: &mut [[u8; 8]]| {
            for buf in bufs {
                host.post(Want { flags, ..Want::tag(1) }, buf).expect("posted");
            }
        };
        // Before there is a member, and with the first one's settings in sight.
        post(&mut host, &mut early);
        [true, false, true].into_iter().for_each(|selective| host.join_by(selective));
        post(&mut host, &mut late);
        let mut a = Node::new();
        let to: Vec<_> = (0..3).map(|i| host.known_by(&a, i)).collect();
        let (mut out, mut told) = ([7u8; 8], [0; 3]);
        let until = Deadline::new(10);
        for _ in 0..2 {
            for (i, to) in to.iter().enumerate() {
                let before = early.iter().chain(&late).filter(|buf| **buf == out).count();
                a.send(Msg::new(*to, 1), &mut out).expect("send");
                while early.iter().chain(&late).filter(|buf| **buf == out).count() == before {
                    a.poll();
                    told[i] += host.poll(i).len();
                    until.check(|| format!("member {i}"));
                }
            }
        }
        (0..3).for_each(|i| told[i] += host.poll(i).len());
        let asked = flags.contains(OpFlags::COMPLETION);
        assert_eq!(told, if asked { [2, 2, 2] } else { [0, 2, 0] }, "asked for: {asked}");
    }
}
