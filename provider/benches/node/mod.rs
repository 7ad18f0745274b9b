//! What the benchmarks share: an endpoint with everything bound, and a second process that runs the same program in another role.
#![allow(dead_code, reason = "each benchmark uses its part")]

use rustmx::sys::clock::Clock;
use rustmx::{
    Addr, AddressVector, Config, CqId, Domain, EpAttr, EpId, Error, INJECT_MAX, Log, Name, OpFlags, RecvArgs, Result, SendArgs,
    UserCtx, UserSeg,
};
use std::io::BufReader;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;

/// An endpoint in a domain of its own.
pub struct Node {
    pub domain: Domain,
    pub ep: EpId,
    pub cq: CqId,
    pub av: Arc<AddressVector>,
}

impl Node {
    /// Sends have `tx_flags` if they do not say otherwise.
    pub fn new(config: Config, tx_flags: OpFlags) -> Node {
        Node::on(Clock::of_process(), config, tx_flags)
    }

    /// The same by another time.
    pub fn on(clock: Clock, config: Config, tx_flags: OpFlags) -> Node {
        let mut domain = Domain::with_clock(Arc::new(config), Log::silent(), clock);
        let cq = domain.cq_open();
        let rx_flags = OpFlags::COMPLETION;
        let attr = EpAttr {
            tx_flags,
            rx_flags,
            source: false,
            directed_recv: true,
            sends: true,
            reaches: true,
            receives: true,
            msg: true,
            tagged: true,
            service: None,
            auth_key: Default::default(),
            inject_max: INJECT_MAX,
        };
        let ep = domain.ep_open(attr).expect("endpoint");
        let av = Arc::new(AddressVector::new());
        domain.ep_bind_av(ep, av.clone()).expect("av");
        domain.ep_bind_cq(ep, cq, true, true, true).expect("cq");
        domain.ep_enable(ep).expect("enable");
        Node { domain, ep, cq, av }
    }

    pub fn name(&self) -> Name {
        self.domain.ep_name(self.ep).expect("name")
    }

    /// One call.
    pub fn try_send(&mut self, to: Addr, buf: &mut [u8], data: Option<u64>, inject: bool) -> Result<()> {
        let iov = [seg(buf)];
        let args = SendArgs { to, tagged: true, tag: 1, data, iov: &iov, ctx: UserCtx(1), flags: None, inject };
        self.domain.send(self.ep, &args)
    }

    /// As many calls as it takes until there is room.
    pub fn send(&mut self, to: Addr, buf: &mut [u8], inject: bool) {
        while let Err(e) = self.try_send(to, buf, Some(3), inject) {
            assert_eq!(e, Error::Again);
            self.domain.progress();
        }
    }

    pub fn recv(&mut self, buf: &mut [u8]) {
        let iov = [seg(buf)];
        let args = RecvArgs { from: Addr::UNSPEC, tagged: true, tag: 1, ignore: 0, iov: &iov, ctx: UserCtx(2), flags: None };
        self.domain.recv(self.ep, &args).expect("recv");
    }
}

/// A segment over `buf`. Every benchmark keeps its buffers until the operations on them have ended.
pub fn seg(buf: &mut [u8]) -> UserSeg {
    // SAFETY: see above.
    #[expect(unsafe_code)]
    unsafe {
        UserSeg::new(buf.as_mut_ptr(), buf.len())
    }
}

/// This program once more, with `args`, and what it says.
pub fn partner(args: [&str; 2]) -> (Child, BufReader<ChildStdout>) {
    let mut command = Command::new(std::env::current_exe().expect("exe"));
    let mut child = command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("partner");
    let out = BufReader::new(child.stdout.take().expect("stdout"));
    (child, out)
}
