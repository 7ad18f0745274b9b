//! Two endpoints of one process over real sockets and real segments: what the public API promises.

use rustmx::{
    Addr, AddressVector, Completion, Config, CqId, CqRead, Domain, EpAttr, EpId, Error, ErrorEntry, Log, OpFlags, RecvArgs,
    SendArgs, UserCtx, UserSeg,
};
use std::sync::Arc;
use std::time::{Duration, Instant};

struct Node {
    domain: Domain,
    ep: EpId,
    cq: CqId,
    av: Arc<AddressVector>,
}

fn attr() -> EpAttr {
    EpAttr {
        tx_flags: OpFlags::COMPLETION,
        rx_flags: OpFlags::COMPLETION,
        source: true,
        directed_recv: true,
        msg: true,
        tagged: true,
        service: None,
    }
}

impl Node {
    fn with(config: Config, attr: EpAttr) -> Node {
        let mut domain = Domain::new(Arc::new(config), Log::silent());
        let cq = domain.cq_open();
        let ep = domain.ep_open(attr).expect("endpoint");
        let av = Arc::new(AddressVector::new());
        domain.ep_bind_av(ep, av.clone()).expect("av");
        domain.ep_bind_cq(ep, cq, true, true, false).expect("cq");
        domain.ep_enable(ep).expect("enable");
        Node { domain, ep, cq, av }
    }

    fn new() -> Node {
        Node::with(Config::default(), attr())
    }

    fn knows(&self, other: &Node) -> Addr {
        self.av.insert(&other.domain.ep_name(other.ep).expect("name"))
    }

    fn poll(&mut self) -> Vec<Result<Completion, ErrorEntry>> {
        let mut got = Vec::new();
        if let CqRead::ErrorPending = self.domain.cq_read(self.cq, 16, &mut |c| got.push(Ok(*c))) {
            got.extend(self.domain.cq_read_error(self.cq).map(Err));
        }
        got
    }

    fn send(&mut self, to: Addr, tag: u64, buf: &mut [u8], ctx: usize, flags: OpFlags) -> Result<(), Error> {
        // SAFETY: every test keeps its buffers until the completions came.
        #[expect(unsafe_code)]
        let iov = [unsafe { UserSeg::new(buf.as_mut_ptr(), buf.len()) }];
        let args = SendArgs {
            to, tagged: true, tag, data: Some(tag ^ 7), iov: &iov, ctx: UserCtx(ctx), flags: Some(flags | OpFlags::COMPLETION), inject: false,
        };
        self.domain.send(self.ep, &args)
    }

    fn recv(&mut self, from: Addr, tag: u64, ignore: u64, buf: &mut [u8], ctx: usize, flags: OpFlags) -> Result<(), Error> {
        // SAFETY: as in `send`.
        #[expect(unsafe_code)]
        let iov = [unsafe { UserSeg::new(buf.as_mut_ptr(), buf.len()) }];
        let args = RecvArgs { from, tagged: true, tag, ignore, iov: &iov, ctx: UserCtx(ctx), flags: Some(flags | OpFlags::COMPLETION) };
        self.domain.recv(self.ep, &args)
    }
}

/// Polls all nodes until `want` completions came on each, or fails.
fn run(nodes: &mut [&mut Node], want: &[usize]) -> Vec<Vec<Result<Completion, ErrorEntry>>> {
    let until = Instant::now() + Duration::from_secs(10);
    let mut got: Vec<Vec<_>> = nodes.iter().map(|_| Vec::new()).collect();
    while got.iter().zip(want).any(|(g, w)| g.len() < *w) {
        for (node, got) in nodes.iter_mut().zip(&mut got) {
            got.extend(node.poll());
        }
        assert!(Instant::now() < until, "only {:?} of {want:?} came: {got:?}", got.iter().map(Vec::len).collect::<Vec<_>>());
    }
    got
}

fn pattern(n: usize, seed: usize) -> Vec<u8> {
    (0..n).map(|i| (i * 31 + seed * 17 + (i >> 8)) as u8).collect()
}

#[test]
fn every_size_posted_and_unexpected_at_every_level() {
    let (mut a, mut b) = (Node::new(), Node::new());
    let to_b = a.knows(&b);
    let from_a = b.knows(&a);
    let sizes = [0usize, 1, 39, 40, 41, 104, 105, 231, 232, 233, 1000, 4095, 4096, 4097, 8192, 65536, 300_000, 5_000_000];
    for (i, n) in sizes.into_iter().enumerate() {
        for level in [OpFlags::INJECT_COMPLETE, OpFlags::TRANSMIT_COMPLETE, OpFlags::DELIVERY_COMPLETE] {
            for early in [true, false] {
                let mut out = pattern(n, i);
                let mut into = vec![0xeeu8; n + 8];
                let tag = (i as u64) << 40 | n as u64;
                if early {
                    b.recv(from_a, tag, 0, &mut into, 7, OpFlags::empty()).expect("recv");
                }
                a.send(to_b, tag, &mut out, 5, level).expect("send");
                if !early {
                    for _ in 0..200 {
                        assert!(b.poll().is_empty());
                        a.domain.progress();
                    }
                    b.recv(Addr::UNSPEC, tag, 0, &mut into, 7, OpFlags::empty()).expect("recv");
                }
                // With an early posting the send may have completed during the unexpected phase.
                let got = run(&mut [&mut b], &[0]);
                assert_eq!(got[0].len(), 0);
                let mut all = run_both(&mut a, &mut b);
                let c = all.remove(0);
                assert_eq!((c.len, c.tag, c.data, c.src, c.ctx.0), (n, tag, tag ^ 7, from_a, 7));
                assert_eq!(&into[..n], &out[..], "{n} bytes, {level:?}, early {early}");
                assert!(into[n..].iter().all(|b| *b == 0xee));
            }
        }
    }
}

/// One send completion on `a` and one receive completion on `b`.
fn run_both(a: &mut Node, b: &mut Node) -> Vec<Completion> {
    let mut got = run(&mut [a, b], &[1, 1]);
    let b = got.remove(1);
    b.into_iter().map(|c| c.expect("received")).collect()
}
