//! Deferred work: what the engine promises to fi_trigger(3), through the public API.

mod common;

use common::{Deadline, Node, Want, attr, pattern, seg, watchdog};
use rustmx::{
    Access, Addr, CntrEvents, CntrId, CompFlags, CqRead, Deferral, Error, OpFlags, RecvArgs, Tell, UserCtx, UserSeg, Work,
};

/// An endpoint that sends to itself, with a counter to wait for and one for what is done.
struct Alone {
    node: Node,
    to: Addr,
    when: CntrId,
    done: CntrId,
}

impl Alone {
    fn new() -> Alone {
        let mut node = Node::new();
        let to = node.av.insert(&node.name());
        let (when, done) = (node.domain.cntr_open(), node.domain.cntr_open());
        Alone { node, to, when, done }
    }

    fn send_at(&mut self, threshold: u64, tell: Tell, tag: u64, iov: &[UserSeg]) -> Result<(), Error> {
        let when = Deferral { cntr: self.when, threshold, tell };
        let (to, ctx) = (self.to, UserCtx(tag as usize));
        let args = rustmx::SendArgs { to, tagged: true, tag, data: None, iov, ctx, flags: Some(OpFlags::empty()), inject: false };
        self.node.domain.defer(when, &Work::Send(self.node.ep, args), tag as usize)
    }

    fn received(&mut self) -> Vec<u64> {
        (0..20)
            .flat_map(|_| self.node.poll())
            .map(|e| e.expect("no error"))
            .filter(|c| c.flags.contains(CompFlags::RECV))
            .map(|c| c.tag)
            .collect()
    }
}

#[test]
fn triggers_fire_in_the_order_of_their_thresholds() {
    let mut a = Alone::new();
    let mut buf = [1u8; 8];
    let mut bufs = [[0u8; 8]; 5];
    for b in &mut bufs {
        a.node.recv(Want::any(), b).expect("posted");
    }
    let iov = [seg(&mut buf)];
    for (tag, threshold) in [(30, 3), (10, 1), (31, 3), (20, 2), (50, 5)] {
        a.send_at(threshold, Tell::Endpoint, tag, &iov).expect("deferred");
    }
    assert!(a.received().is_empty());
    a.node.domain.cntr_add(a.when, 1);
    assert_eq!(a.received(), [10]);
    // Past several thresholds at once.
    a.node.domain.cntr_add(a.when, 3);
    assert_eq!(a.received(), [20, 30, 31]);
    assert_eq!(a.node.domain.cntr_close(a.when), Err(Error::Busy));
    a.node.domain.cancel(a.node.ep, UserCtx(50)).expect("cancelled");
    let told = a.node.poll();
    assert!(matches!(&told[..], [Err(e)] if e.error == Error::Cancelled), "{told:?}");
    a.node.domain.cntr_close(a.when).expect("nothing waits for it any more");
}

/// What cannot be started when it is due fails as what it is: in the counters of its kind, and in its entry; of work of the queue, with an entry if one was asked for.
#[test]
fn what_cannot_be_started_fails_as_what_it_is() {
    let mut a = Alone::new();
    let (ep, cq) = (a.node.domain.ep_open(attr()).expect("endpoint"), a.node.domain.cq_open());
    let cntrs = [CntrEvents::SEND, CntrEvents::RECV, CntrEvents::READ, CntrEvents::WRITE].map(|events| {
        let cntr = a.node.domain.cntr_open();
        a.node.domain.ep_bind_cntr(ep, cntr, events).expect("counter");
        cntr
    });
    a.node.domain.ep_bind_av(ep, a.node.av.clone()).expect("av");
    a.node.domain.ep_bind_cq(ep, cq, true, true, false).expect("cq");
    a.node.domain.ep_enable(ep).expect("enable");
    let nobody = Addr(99);
    let mut buf = [1u8; 8];
    let (iov, places) = ([seg(&mut buf)], [rustmx::RemoteSeg { addr: 0, len: 8, key: 1 }]);
    let mut failed = [0; 4];
    for (tell, flags) in [
        (Tell::Endpoint, OpFlags::COMPLETION),
        (Tell::Counter(Some(a.done)), OpFlags::COMPLETION),
        (Tell::Counter(Some(a.done)), OpFlags::empty()),
    ] {
        for kind in 0..4 {
            let (ctx, flags) = (UserCtx(kind), Some(flags));
            let work = match kind {
                0 => Work::Send(
                    ep,
                    rustmx::SendArgs { to: nobody, tagged: true, tag: 1, data: None, iov: &iov, ctx, flags, inject: false },
                ),
                1 => Work::Recv(ep, RecvArgs { from: nobody, tagged: true, tag: 1, ignore: 0, iov: &iov, ctx, flags }),
                _ => Work::Rma(
                    ep,
                    rustmx::RmaArgs {
                        to: nobody,
                        write: kind == 3,
                        iov: &iov,
                        places: &places,
                        data: None,
                        ctx,
                        flags,
                        inject: false,
                    },
                ),
            };
            let quiet = tell != Tell::Endpoint && !flags.is_some_and(|f| f.contains(OpFlags::COMPLETION));
            let told = a.node.domain.cntr_counts(a.done).1;
            a.node.domain.defer(Deferral { cntr: a.when, threshold: 0, tell }, &work, 1).expect("deferred");
            failed[kind] += u64::from(!quiet);
            let expected = [
                CompFlags::SEND | CompFlags::TAGGED,
                CompFlags::RECV | CompFlags::TAGGED,
                CompFlags::RMA | CompFlags::READ,
                CompFlags::RMA | CompFlags::WRITE,
            ][kind];
            let entry = a.node.domain.cq_read_error(cq).map(|e| (e.c.ctx, e.c.flags, e.error));
            assert_eq!(entry, (!quiet).then_some((ctx, expected, Error::UnknownAddress)), "{tell:?} {kind}");
            assert_eq!(cntrs.map(|c| a.node.domain.cntr_counts(c)), failed.map(|n| (0, n)), "{tell:?} {kind}");
            assert_eq!(a.node.domain.cntr_counts(a.done).1 - told, u64::from(tell != Tell::Endpoint));
        }
    }
    // Who looks for a message in vain has not failed to receive one.
    let flags = Some(OpFlags::PEEK | OpFlags::COMPLETION);
    let peek = RecvArgs { from: Addr::UNSPEC, tagged: true, tag: 1, ignore: 0, iov: &[], ctx: UserCtx(9), flags };
    a.node.domain.recv(ep, &peek).expect("looked");
    let entry = a.node.domain.cq_read_error(cq).map(|e| (e.c.ctx, e.error));
    assert_eq!(entry, Some((UserCtx(9), Error::NoMessage)));
    assert_eq!(cntrs.map(|c| a.node.domain.cntr_counts(c)), failed.map(|n| (0, n)));
}

/// A counter that waiting work will change, or be told to, cannot be closed: another one could get its place.
#[test]
fn counters_of_waiting_work_stay() {
    let mut a = Alone::new();
    let mut buf = [1u8; 8];
    a.send_at(1, Tell::Counter(Some(a.done)), 1, &[seg(&mut buf)]).expect("deferred");
    assert_eq!(a.node.domain.cntr_close(a.done), Err(Error::Busy));
    a.node.domain.cancel_deferred(1).expect("cancelled");
    let when = Deferral { cntr: a.when, threshold: 1, tell: Tell::Counter(None) };
    a.node.domain.defer(when, &Work::Add(a.done, 1), 2).expect("deferred");
    assert_eq!(a.node.domain.cntr_close(a.done), Err(Error::Busy));
    a.node.domain.cntr_add(a.when, 1);
    assert_eq!(a.node.domain.cntr_counts(a.done), (1, 0));
    a.node.domain.cntr_close(a.done).expect("closed");
    assert_eq!(a.node.domain.defer(when, &Work::Add(a.done, 1), 3), Err(Error::Invalid));
}

#[test]
fn work_of_the_queue_is_told_to_its_counter_only() {
    let mut a = Alone::new();
    let events = CntrEvents::SEND | CntrEvents::RECV;
    let all = a.node.domain.cntr_open();
    let (ep, cq) = (a.node.domain.ep_open(attr()).expect("endpoint"), a.node.domain.cq_open());
    a.node.domain.ep_bind_av(ep, a.node.av.clone()).expect("av");
    a.node.domain.ep_bind_cq(ep, cq, true, true, false).expect("cq");
    a.node.domain.ep_bind_cntr(ep, all, events).expect("counter");
    a.node.domain.ep_enable(ep).expect("enable");
    let to = a.node.av.insert(&a.node.domain.ep_name(ep).expect("name"));
    let (mut out, mut into) = (pattern(5000, 1), vec![0u8; 5000]);
    let when = Deferral { cntr: a.when, threshold: 1, tell: Tell::Counter(Some(a.done)) };
    let (give, take) = ([seg(&mut out)], [seg(&mut into)]);
    let flags = Some(OpFlags::empty());
    let recv = RecvArgs { from: Addr::UNSPEC, tagged: false, tag: 0, ignore: 0, iov: &take, ctx: UserCtx(1), flags };
    let send = rustmx::SendArgs { to, tagged: false, tag: 0, data: None, iov: &give, ctx: UserCtx(2), flags, inject: false };
    a.node.domain.defer(when, &Work::Recv(ep, recv), 1).expect("deferred");
    a.node.domain.defer(when, &Work::Send(ep, send), 2).expect("deferred");
    // Work can wait for work.
    let then = Deferral { cntr: a.done, threshold: 2, tell: Tell::Counter(None) };
    a.node.domain.defer(then, &Work::Add(all, 100), 3).expect("deferred");
    // Failures count, too.
    a.node.domain.cntr_add_err(a.when, 1);
    let until = Deadline::new(20);
    while a.node.domain.cntr_read(all) != 100 {
        until.check(|| "the chain does not end".into());
    }
    assert_eq!(a.node.domain.cntr_counts(a.done), (2, 0));
    assert_eq!(into, pattern(5000, 1));
    assert_eq!(a.node.domain.cq_read(cq, 1, &mut |c| panic!("{c:?}")), CqRead::Empty);
}

#[test]
fn deferred_memory_operations() {
    let _dog = watchdog("deferred_rma", 60);
    let mut a = Alone::new();
    let (mut out, mut there) = (pattern(64, 5), vec![0u8; 64]);
    let access = Access::REMOTE_WRITE | Access::REMOTE_READ;
    let region = rustmx::Region { memory: seg(&mut there), access, by_address: false };
    let key = a.node.domain.mr_register(Some(3), region).expect("registered");
    let (iov, places) = ([seg(&mut out)], [rustmx::RemoteSeg { addr: 0, len: 64, key }]);
    for (mark, key) in [(1, 3), (2, 4)] {
        let places = [rustmx::RemoteSeg { key, ..places[0] }];
        let flags = Some(OpFlags::empty());
        let args = rustmx::RmaArgs {
            to: a.to,
            write: true,
            iov: &iov,
            places: &places,
            data: None,
            ctx: UserCtx(0),
            flags,
            inject: false,
        };
        let when = Deferral { cntr: a.when, threshold: 1, tell: Tell::Counter(Some(a.done)) };
        a.node.domain.defer(when, &Work::Rma(a.node.ep, args), mark).expect("deferred");
    }
    a.node.domain.cntr_set(a.when, 1);
    let until = Deadline::new(20);
    while a.node.domain.cntr_counts(a.done) != (1, 1) {
        a.node.domain.progress();
        until.check(|| "one succeeds, and one has no key".into());
    }
    assert_eq!(there, pattern(64, 5));
    a.node.domain.mr_close(key).expect("closed");
}

#[test]
fn queued_work_can_be_taken_back() {
    let mut a = Alone::new();
    let mut buf = [1u8; 8];
    let iov = [seg(&mut buf)];
    for tag in 1..4 {
        a.send_at(1, Tell::Counter(Some(a.done)), tag, &iov).expect("deferred");
    }
    a.node.domain.cancel_deferred(2).expect("cancelled");
    assert_eq!(a.node.domain.cancel_deferred(2), Err(Error::NoMessage));
    a.node.domain.flush_deferred(Some(a.done));
    assert_eq!(a.node.domain.cntr_close(a.when), Err(Error::Busy));
    a.node.domain.flush_deferred(Some(a.when));
    a.node.domain.cntr_add(a.when, 5);
    assert!(a.node.poll().is_empty());
    assert_eq!(a.node.domain.cntr_counts(a.done), (0, 0));
    // What is due already happens at once; what is nonsense is refused.
    let mut into = [0u8; 8];
    a.node.recv(Want::any(), &mut into).expect("posted");
    a.send_at(5, Tell::Endpoint, 9, &iov).expect("sent");
    assert_eq!(a.received(), [9]);
    let nowhere = Deferral { cntr: CntrId(99), threshold: 0, tell: Tell::Endpoint };
    assert_eq!(a.node.domain.defer(nowhere, &Work::Add(a.done, 1), 0), Err(Error::Invalid));
}

/// Work that finds no room is done when there is room, and what waits for an endpoint goes with it.
#[test]
fn work_without_room_waits() {
    let _dog = watchdog("deferred_room", 60);
    let (mut a, mut n) = (Alone::new(), Node::new());
    // Before they have met any number of messages waits for that.
    common::acquaint(&mut a.node, &mut n);
    let to = a.node.knows(&n);
    let mut buf = [1u8; 8];
    let iov = [seg(&mut buf)];
    a.to = to;
    let many = 20_000;
    for tag in 0..many {
        a.send_at(1, Tell::Counter(Some(a.done)), tag, &iov).expect("deferred");
    }
    a.node.domain.cntr_add(a.when, 1);
    assert!(a.node.domain.cntr_counts(a.done).0 < many, "there is no room for all of them");
    // What waits for other counters, whichever is looked at first, is not held up by that.
    let changed = a.node.domain.cntr_open();
    let others = [(); 16].map(|()| a.node.domain.cntr_open());
    for other in others {
        let when = Deferral { cntr: other, threshold: 1, tell: Tell::Counter(None) };
        a.node.domain.defer(when, &Work::Add(changed, 1), many as usize).expect("deferred");
    }
    for (n, other) in others.into_iter().enumerate() {
        a.node.domain.cntr_add(other, 1);
        assert_eq!(a.node.domain.cntr_counts(changed), (n as u64 + 1, 0));
    }
    let mut into = vec![[0u8; 8]; many as usize];
    for (tag, b) in into.iter_mut().enumerate() {
        n.recv(Want::tag(tag as u64), b).expect("posted");
    }
    let (mut got, until) = (0, Deadline::new(30));
    while got < many as usize {
        got += n.poll().len();
        a.node.domain.progress();
        until.check(|| format!("{got} of {many}"));
    }
    while a.node.domain.cntr_read(a.done) != many {
        n.domain.progress();
        until.check(|| "sends do not complete".into());
    }
    a.send_at(7, Tell::Endpoint, 1, &iov).expect("deferred");
    a.node.domain.ep_close(a.node.ep).expect("closed");
    a.node.domain.cntr_close(a.when).expect("nothing waits for it any more");
}
