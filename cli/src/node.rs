//! An endpoint of the engine in a domain of its own, and the few calls that measuring needs.
#![expect(unsafe_code)]
// UNSAFETY: maps memory, and tells the engine where buffers are; they live as long as the process that measures (`Buffer`).

use crate::Failure;
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous};
use rustmx::domain::Told;
use rustmx::log::{LogLevel, LogSink, LogSubsystem};
use rustmx::select::model::Operation;
use rustmx::select::profile::Profiles;
use rustmx::sys::heap;
use rustmx::{
    Access, Addr, AddressVector, AtomicArgs, AtomicForm, AtomicOp, AtomicType, Config, CqId, CqRead, Domain, EpAttr, EpId, Error,
    INJECT_MAX, Log, Name, OpFlags, Order, RecvArgs, Region, RemoteSeg, RmaArgs, SendArgs, Stats, UserCtx, UserSeg,
};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Memory that is never freed: the engine may be told of it without a thought about when its operations end.
#[derive(Clone, Copy)]
pub(crate) struct Buffer {
    at: *mut u8,
    len: usize,
}

impl Buffer {
    /// Of `len` bytes that only this process has, all touched. Not of `malloc`, which may be the preloaded heap.
    pub fn private(len: usize) -> std::io::Result<Buffer> {
        // SAFETY: a fresh mapping at an address of the kernel's choice disturbs nothing.
        let at = unsafe { mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE) }?;
        let mut buffer = Buffer { at: at.cast(), len };
        buffer.rewrite(len, 1);
        Ok(buffer)
    }

    /// Of `len` bytes that peers can map, all touched; nothing without the preloaded heap.
    pub fn exported(len: usize) -> Option<Buffer> {
        let heap = heap::heap()?;
        // Short blocks are not in it, whatever RUSTMX_HEAP_MIN may reasonably be.
        let bytes = vec![1u8; len.max(1 << 20)].leak();
        let buffer = Buffer { at: bytes.as_mut_ptr(), len };
        heap.find(buffer.at.addr()).map(|_| buffer)
    }

    /// Of `len` bytes of a file from a page on, all touched. It is a memfd that nobody makes shorter.
    pub fn of_file(file: &std::fs::File, from: usize, len: usize) -> std::io::Result<Buffer> {
        // SAFETY: as above.
        let at =
            unsafe { mmap(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, file, from as u64) }?;
        let mut buffer = Buffer { at: at.cast(), len };
        buffer.rewrite(len, 1);
        Ok(buffer)
    }

    /// Its address.
    pub fn address(&self) -> usize {
        self.at.addr()
    }

    /// Writes every byte.
    pub fn rewrite(&mut self, len: usize, with: u8) {
        // SAFETY: within the memory, which stays mapped and which no operation of the engine uses while it is rewritten: the caller waits for each.
        unsafe { std::ptr::write_bytes(self.at, with, len.min(self.len)) };
    }

    /// Loads a byte of each of its lines, as a program does that looks at what it was sent.
    pub fn look(&self, len: usize) {
        for at in (0..len.min(self.len)).step_by(64) {
            // SAFETY: within the memory, which stays mapped and which no operation of the engine writes meanwhile: the caller waits for each.
            std::hint::black_box(unsafe { self.at.add(at).read_volatile() });
        }
    }

    /// Copies bytes `from..from + len` of another one.
    pub fn copy_part(&mut self, other: &Buffer, from: usize, len: usize) {
        assert!(from + len <= self.len.min(other.len));
        // SAFETY: two separate mappings (a `Buffer` is not split), each at least so long.
        unsafe { std::ptr::copy_nonoverlapping(other.at.add(from), self.at.add(from), len) };
        std::hint::black_box(self.at);
    }

    /// Takes its lines out of all caches, where a processor can be told to.
    pub fn flush(&mut self, len: usize) {
        #[cfg(target_arch = "x86_64")]
        for line in (0..len.min(self.len)).step_by(64) {
            // SAFETY: an address of the buffer; writing lines back and dropping them changes no byte.
            unsafe { std::arch::x86_64::_mm_clflush(self.at.add(line)) };
        }
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a fence.
        unsafe {
            std::arch::x86_64::_mm_mfence();
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = len;
    }

    /// Its first bytes, as the engine knows them.
    pub fn segment(&self, len: usize) -> UserSeg {
        // SAFETY: never freed or unmapped, so valid for ever.
        unsafe { UserSeg::new(self.at, len.min(self.len)) }
    }
}

/// The engine's warnings while an endpoint opens: its errors are words for programs, these are sentences for users.
struct Warnings(Mutex<Option<Vec<String>>>);

impl Warnings {
    fn keep(&self, text: &str) {
        if let Some(kept) = self.0.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
            kept.push(text.into());
        }
    }

    /// Those so far; none are kept from then on.
    fn end(&self) -> Vec<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take().unwrap_or_default()
    }
}

impl LogSink for Warnings {
    fn enabled(&self, level: LogLevel, _: LogSubsystem) -> bool {
        level == LogLevel::Warn
    }

    fn write(&self, _: LogLevel, _: LogSubsystem, text: &str) {
        self.keep(text);
    }
}

/// Of the memory that a measured process lets the other one reach.
const KEY: u64 = 1;

/// The endpoint, and what it is bound to.
pub(crate) struct Node {
    domain: Domain,
    ep: EpId,
    cq: CqId,
    av: Arc<AddressVector>,
    /// Set by somebody else: nothing more will come.
    end: Option<Arc<AtomicBool>>,
    /// What it warned of as it opened.
    warnings: Vec<String>,
}

impl Node {
    /// An endpoint that sends as `config` says; if wanted, by the profile in force.
    ///
    /// # Errors
    /// Why there is none, and what helps.
    pub fn open(config: &Config, profile: bool) -> Result<Node, Failure> {
        let warnings = Arc::new(Warnings(Mutex::new(Some(Vec::new()))));
        let opened = Node::with_log(config, profile, Log::new(warnings.clone()));
        let said = warnings.end();
        match opened {
            Ok(node) => Ok(Node { warnings: said, ..node }),
            Err(e) if said.is_empty() => Err(format!("cannot open an endpoint ({e})")),
            Err(_) => Err(format!("cannot open an endpoint: {}", said.join("; "))),
        }
    }

    fn with_log(config: &Config, profile: bool, log: Log) -> Result<Node, Error> {
        // A poll that gives its core away would measure the scheduler. What is measured here is no job from which others are to learn, nor did it.
        let config = Config { yield_when_idle: 1, explain: 0, stats: 0, learn: 1, ..config.clone() };
        let profiles = if profile { Profiles::new(|_| {}) } else { Profiles::off() };
        let mut domain = Domain::new(Arc::new(config), log).with_profiles(Arc::new(profiles));
        let cq = domain.cq_open();
        let flags = OpFlags::COMPLETION;
        let attr = EpAttr {
            tx_flags: flags,
            rx_flags: flags,
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
        let ep = domain.ep_open(attr)?;
        let av = Arc::new(AddressVector::new());
        domain.ep_bind_av(ep, av.clone())?;
        domain.ep_bind_cq(ep, cq, true, true, true)?;
        domain.ep_enable(ep)?;
        Ok(Node { domain, ep, cq, av, end: None, warnings: Vec::new() })
    }

    /// Its name, for [`knows`](Self::knows) of the other one.
    pub fn name(&self) -> Result<String, Error> {
        Ok(self.domain.ep_name(self.ep)?.to_string())
    }

    /// Waiting fails from when this is set on: a receive from anybody does not end because one peer does.
    pub fn until(&mut self, end: Option<Arc<AtomicBool>>) {
        self.end = end;
    }

    fn is_over(&self) -> bool {
        self.end.as_ref().is_some_and(|end| end.load(Ordering::Acquire))
    }

    /// Where other hosts reach it, and why there.
    pub fn addresses(&self) -> Vec<Told> {
        self.domain.ep_addresses(self.ep).unwrap_or_default()
    }

    /// What it warned of as it opened.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
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
                Err(Error::Again) if self.is_over() => return Err(Error::PeerGone),
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
                Err(Error::Again) if self.is_over() => return Err(Error::PeerGone),
                Err(Error::Again) => self.domain.progress(),
                other => return other,
            }
        }
    }

    /// Lets leave what was sent to other hosts: a turn carries away what came after the first message of the turn before.
    pub fn let_leave(&mut self) {
        const TURNS: usize = 8;
        (0..TURNS).for_each(|_| self.domain.progress());
    }

    /// Posts a receive.
    pub fn recv(&mut self, into: &Buffer, len: usize) -> Result<(), Error> {
        let iov = [into.segment(len)];
        let args = RecvArgs { from: Addr::UNSPEC, tagged: true, tag: 1, ignore: 0, iov: &iov, ctx: UserCtx(2), flags: None };
        self.domain.recv(self.ep, &args)
    }

    /// Lets others read and write a buffer.
    pub fn register(&mut self, buffer: &Buffer, len: usize) -> Result<(), Error> {
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
        let region = Region { memory: buffer.segment(len), access, by_address: false };
        self.domain.mr_register(Some(KEY), region).map(drop)
    }

    /// Reads or writes the memory that the other one has [registered](Self::register), or adds to it.
    pub fn reach(&mut self, to: Addr, operation: Operation, own: &Buffer, len: usize) -> Result<(), Error> {
        let (iov, places) = ([own.segment(len)], [RemoteSeg { addr: 0, len, key: KEY }]);
        let (ctx, write) = (UserCtx(4), operation == Operation::Write);
        let order = Order { op: AtomicOp::Sum, kind: AtomicType::U64, form: AtomicForm::Base };
        let (data, flags, inject) = (None, None, false);
        loop {
            let started = match operation {
                Operation::Atomic => self.domain.atomic(
                    self.ep,
                    &AtomicArgs { to, order, operands: &iov, comparands: &[], results: &[], places: &places, ctx, flags, inject },
                ),
                _ => self.domain.rma(self.ep, &RmaArgs { to, write, iov: &iov, places: &places, data, ctx, flags, inject }),
            };
            match started {
                Err(Error::Again) => self.domain.progress(),
                other => return other,
            }
        }
    }

    /// Polls until `n` operations are complete.
    pub fn wait(&mut self, mut n: usize) -> Result<(), Error> {
        while n > 0 {
            match self.domain.cq_read(self.cq, n, &mut |_| {}) {
                CqRead::Got(k) => n -= k,
                CqRead::Empty if self.is_over() => return Err(Error::PeerGone),
                CqRead::Empty => {}
                CqRead::ErrorPending => {
                    return Err(self.domain.cq_read_error(self.cq).map_or(Error::BadState, |entry| entry.error));
                }
            }
        }
        Ok(())
    }
}
