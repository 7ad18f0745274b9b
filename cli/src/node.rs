//! An endpoint of the engine in a domain of its own, and the few calls that measuring needs.
#![expect(unsafe_code)]
// UNSAFETY: tells the engine where buffers are; they live as long as the process that measures (`Buffer`).

use crate::Failure;
use rustmx::{
    Addr, AddressVector, Config, CqId, CqRead, Domain, EpAttr, EpId, Error, Log, Name, OpFlags, RecvArgs, SendArgs, Stats,
    UserCtx, UserSeg,
};
use std::sync::Arc;

/// Memory that is never freed: the engine may be told of it without a thought about when its operations end.
#[derive(Clone, Copy)]
pub(crate) struct Buffer {
    at: *mut u8,
    len: usize,
}

impl Buffer {
    /// Of `len` bytes, all touched.
    pub fn new(len: usize) -> Buffer {
        let bytes = vec![1u8; len].leak();
        Buffer { at: bytes.as_mut_ptr(), len }
    }

    /// Writes every byte.
    pub fn rewrite(&mut self, len: usize, with: u8) {
        // SAFETY: within the leaked memory, which no operation of the engine uses while it is rewritten: the caller waits for each.
        unsafe { std::ptr::write_bytes(self.at, with, len.min(self.len)) };
    }

    /// Copies from another one.
    pub fn copy_from(&mut self, other: &Buffer, len: usize) {
        let len = len.min(self.len).min(other.len);
        // SAFETY: two separate allocations (a `Buffer` is not split), each at least `len` bytes long.
        unsafe { std::ptr::copy_nonoverlapping(other.at, self.at, len) };
        std::hint::black_box(self.at);
    }

    fn segment(&self, len: usize) -> UserSeg {
        // SAFETY: leaked, so valid for ever.
        unsafe { UserSeg::new(self.at, len.min(self.len)) }
    }
}

/// The endpoint, and what it is bound to.
pub(crate) struct Node {
    domain: Domain,
    ep: EpId,
    cq: CqId,
    av: Arc<AddressVector>,
}

impl Node {
    /// An endpoint that sends as `config` says.
    pub fn open(config: &Config) -> Result<Node, Error> {
        // A poll that gives its core away would measure the scheduler.
        let config = Config { yield_when_idle: 1, explain: 0, stats: 0, ..config.clone() };
        let mut domain = Domain::new(Arc::new(config), Log::silent());
        let cq = domain.cq_open();
        let flags = OpFlags::COMPLETION;
        let attr = EpAttr {
            tx_flags: flags,
            rx_flags: flags,
            source: false,
            directed_recv: true,
            msg: true,
            tagged: true,
            service: None,
        };
        let ep = domain.ep_open(attr)?;
        let av = Arc::new(AddressVector::new());
        domain.ep_bind_av(ep, av.clone())?;
        domain.ep_bind_cq(ep, cq, true, true, true)?;
        domain.ep_enable(ep)?;
        Ok(Node { domain, ep, cq, av })
    }

    /// Its name, for [`knows`](Self::knows) of the other one.
    pub fn name(&self) -> Result<String, Error> {
        Ok(self.domain.ep_name(self.ep)?.to_string())
    }

    /// A handle for the endpoint of a name.
    pub fn knows(&self, name: &str) -> Result<Addr, Failure> {
        let name: Name = name.parse().map_err(|_| format!("`{name}` is no endpoint's name"))?;
        Ok(self.av.insert(&name))
    }

    /// What it did so far.
    pub fn stats(&self) -> Stats {
        self.domain.stats()
    }

    /// Sends bytes of a buffer.
    pub fn send(&mut self, to: Addr, from: &Buffer, len: usize) -> Result<(), Error> {
        let iov = [from.segment(len)];
        let args = SendArgs { to, tagged: true, tag: 1, data: None, iov: &iov, ctx: UserCtx(1), flags: None, inject: false };
        loop {
            match self.domain.send(self.ep, &args) {
                Err(Error::Again) => self.domain.progress(),
                other => return other,
            }
        }
    }

    /// Sends an empty message, inline whatever is forced, without a completion.
    pub fn answer(&mut self, to: Addr, from: &Buffer) -> Result<(), Error> {
        let iov = [from.segment(0)];
        let args = SendArgs { to, tagged: true, tag: 1, data: None, iov: &iov, ctx: UserCtx(3), flags: None, inject: true };
        loop {
            match self.domain.send(self.ep, &args) {
                Err(Error::Again) => self.domain.progress(),
                other => return other,
            }
        }
    }

    /// Posts a receive.
    pub fn recv(&mut self, into: &Buffer, len: usize) -> Result<(), Error> {
        let iov = [into.segment(len)];
        let args = RecvArgs { from: Addr::UNSPEC, tagged: true, tag: 1, ignore: 0, iov: &iov, ctx: UserCtx(2), flags: None };
        self.domain.recv(self.ep, &args)
    }

    /// Polls until `n` operations are complete.
    pub fn wait(&mut self, mut n: usize) -> Result<(), Error> {
        while n > 0 {
            match self.domain.cq_read(self.cq, n, &mut |_| {}) {
                CqRead::Got(k) => n -= k,
                CqRead::Empty => {}
                CqRead::ErrorPending => {
                    return Err(self.domain.cq_read_error(self.cq).map_or(Error::BadState, |entry| entry.error));
                }
            }
        }
        Ok(())
    }
}
