//! `fid_cq`: completion queues.
//!
//! Reading writes the engine's records straight to the client's array, in the format the queue was opened with. The blocking
//! reads poll a few times, and then sleep or give the core away, as the wait object says (`wait.rs`).
#![expect(unsafe_code)]
// UNSAFETY: receives C handles and writes completion entries to the client's buffers.

use super::cell::DomainCell;
use super::domain::Domain;
use super::eq::MessageBuffer;
use super::wait::{Joined, Look, Sleeper, Waitable, Wish};
use super::{Deadline, Uses, fid as slots};
use crate::abi::eq::*;
use crate::abi::errno::*;
use crate::abi::fabric::*;
use crate::boundary::{self, Answer, Errno, Object, attr, count, object, reclaim, refuse, status};
use crate::convert::{CqFormat, Format};
use libc::{c_char, c_int, c_void};
use parking_lot::Mutex;
use rustmx::{Completion, CqId, CqRead, ErrorEntry, NAME_LEN};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// An opened completion queue.
#[repr(C)]
pub(crate) struct Cq {
    head: fid_cq,
    pub(crate) cell: Arc<DomainCell>,
    pub(crate) id: CqId,
    pub(crate) source: Arc<Source>,
    /// Poll sets that it is in.
    pub(crate) uses: Uses,
    format: Format,
    /// Whether the blocking calls may be used.
    waits: bool,
    /// `FI_CQ_COND_THRESHOLD`: the blocking calls take a count to wait for.
    threshold: bool,
    joined: Joined,
    api_version: u32,
    last_error: Mutex<LastError>,
    message: MessageBuffer,
    _domain: Uses,
}

/// What the blocking calls, wait sets and poll sets look at; the fast calls need no detour through it.
pub(crate) struct Source {
    pub(crate) id: CqId,
    sleeper: Sleeper,
    /// A signal that no blocking read has returned for.
    signalled: AtomicBool,
    /// A signal that no look has told. Looks and blocking reads have one each, for a client may use either.
    untold: AtomicBool,
}

impl Waitable for Source {
    fn look(&self) -> Answer<Look> {
        // Told once: who was told finds nothing to read that would end it.
        self.sleeper.look(|engine| self.untold.swap(false, Ordering::AcqRel) || !engine.cq_is_empty(self.id))
    }

    fn fd(&self) -> Answer<BorrowedFd<'_>> {
        self.sleeper.fd()
    }

    fn wake(&self) {
        self.sleeper.wake_all();
    }
}

impl Source {
    /// Whether there is nothing that a blocking read would return for.
    fn is_idle(&self, engine: &rustmx::Domain) -> bool {
        engine.cq_is_empty(self.id) && !self.signalled.load(Ordering::Acquire)
    }
}

/// The error read last: `fi_cq_strerror` describes it, and `err_data` may point into it until the next read.
struct LastError {
    entry: Option<ErrorEntry>,
    peer: Box<[u8; NAME_LEN]>,
}

/// Where a read puts its results: arrays of the client's.
#[derive(Clone, Copy)]
struct Room {
    buf: *mut c_void,
    max: usize,
    /// Null: sources are not asked for.
    src: *mut fi_addr_t,
}

// SAFETY: repr(C), starts with a fid_cq whose class is set in `open`.
unsafe impl Object for Cq {
    const CLASS: usize = FI_CLASS_CQ;
}

static FID: fi_ops = slots::ops(close, slots::no_bind, control);
static OPS: fi_ops_cq = fi_ops_cq { size: size_of::<fi_ops_cq>(), read, readfrom, readerr, sread, sreadfrom, signal, strerror };

impl Cq {
    /// # Safety
    /// `asked` is null or lives during the call and is writable.
    pub(super) unsafe fn open(domain: &Domain, asked: *mut fi_cq_attr, context: *mut c_void) -> Answer<Cq> {
        // SAFETY: as the caller promises.
        let Some(a) = (unsafe { attr(asked) }) else { return refuse(FI_EINVAL) };
        if a.flags & !FI_AFFINITY != 0 {
            return refuse(FI_EINVAL);
        }
        // SAFETY: a live wait set where one is named (fi_cq(3)).
        let wish = unsafe { Wish::new(a.wait_obj, a.wait_set)? };
        let format = Format::of(a.format).ok_or(Errno(FI_EINVAL))?;
        let (waits, threshold) = (a.wait_obj != FI_WAIT_NONE, a.wait_cond == FI_CQ_COND_THRESHOLD);
        let sleeper = Sleeper::new(&domain.cell, &wish)?;
        let id = domain.cell.control()?.cq_open();
        let source = Arc::new(Source { id, sleeper, signalled: AtomicBool::new(false), untold: AtomicBool::new(false) });
        let joined = wish.join(source.clone()).inspect_err(|_| {
            let _ = domain.cell.let_go(|d| d.cq_close(id));
        })?;
        Ok(Cq {
            head: fid_cq { fid: slots::header(FI_CLASS_CQ, context, &FID), ops: &OPS },
            cell: domain.cell.clone(),
            id,
            source,
            uses: Uses::default(),
            format,
            waits,
            threshold,
            joined,
            api_version: domain.api_version,
            last_error: Mutex::new(LastError { entry: None, peer: Box::new([0; NAME_LEN]) }),
            message: MessageBuffer::new(),
            _domain: domain.uses.clone(),
        })
    }

    /// Reads what is there.
    ///
    /// # Safety
    /// `buf` is null or holds `max` entries of the queue's format; `src` is null or holds `max` addresses.
    #[inline]
    unsafe fn read_some(&self, Room { buf, max, src }: Room) -> Answer<usize> {
        if buf.is_null() || max == 0 {
            // Some clients make progress this way; 0 would end Open MPI (contract 0.13).
            self.cell.reading((), |engine| engine.progress())?;
            return refuse(FI_EAGAIN);
        }
        // SAFETY: as the caller promises, by format.
        let got = unsafe {
            match self.format {
                Format::Context => self.read_as::<fi_cq_entry>(buf.cast(), max, src),
                Format::Msg => self.read_as::<fi_cq_msg_entry>(buf.cast(), max, src),
                Format::Data => self.read_as::<fi_cq_data_entry>(buf.cast(), max, src),
                Format::Tagged => self.read_as::<fi_cq_tagged_entry>(buf.cast(), max, src),
            }
        }?;
        match got {
            CqRead::Got(n) => Ok(n),
            CqRead::Empty => refuse(FI_EAGAIN),
            CqRead::ErrorPending => refuse(FI_EAVAIL),
        }
    }

    /// # Safety
    /// `buf` holds `max` entries `E`; `src` is null or holds `max` addresses.
    #[inline]
    unsafe fn read_as<E: CqFormat>(&self, buf: *mut E, max: usize, src: *mut fi_addr_t) -> Answer<CqRead> {
        let mut n = 0;
        let mut sink = |c: &Completion| {
            // SAFETY: the engine calls this at most `max` times, and the arrays are that long (caller).
            unsafe {
                buf.add(n).write(E::from(c));
                if !src.is_null() {
                    src.add(n).write(c.src.0);
                }
            }
            n += 1;
        };
        Ok(self.cell.reading(CqRead::Empty, |engine| engine.cq_read(self.id, max, &mut sink))?)
    }

    /// # Safety
    /// As for [`Cq::read_some`].
    unsafe fn wait_some(&self, room: Room, cond: usize, timeout: c_int) -> Answer<usize> {
        let Room { buf, max, src } = room;
        if !self.waits {
            return refuse(FI_ENOSYS);
        }
        let deadline = Deadline::after(timeout);
        let want = if self.threshold { cond.clamp(1, max.max(1)) } else { 1 };
        let mut have = 0;
        loop {
            // SAFETY: the rest of the client's arrays.
            let got = unsafe {
                let src = if src.is_null() { src } else { src.add(have) };
                self.read_some(Room { buf: self.format.entry(buf, have), max: max - have, src })
            };
            match got {
                Ok(n) => have += n,
                Err(Errno(FI_EAGAIN)) => {}
                // What was read comes first; the error is still there for the next call.
                Err(e) => return if have > 0 { Ok(have) } else { Err(e) },
            }
            if have >= want {
                return Ok(have);
            }
            if self.source.signalled.swap(false, Ordering::AcqRel) {
                return if have > 0 { Ok(have) } else { refuse(FI_ECANCELED) };
            }
            if deadline.passed() {
                return if have > 0 { Ok(have) } else { refuse(FI_EAGAIN) };
            }
            self.source.sleeper.pause(&deadline, |engine| self.source.is_idle(engine))?;
        }
    }

    /// # Safety
    /// `out` is writable for the structure of the client's API version.
    unsafe fn read_error(&self, out: *mut fi_cq_err_entry) -> Answer<usize> {
        if out.is_null() {
            return refuse(FI_EINVAL);
        }
        let e = self.cell.reading(None, |engine| engine.cq_read_error(self.id))?.ok_or(Errno(FI_EAGAIN))?;
        let mut last = self.last_error.lock();
        last.entry = Some(e);
        if let Some(peer) = &e.peer {
            *last.peer = peer.to_bytes();
        }
        let size = if e.peer.is_some() { NAME_LEN } else { 0 };
        // SAFETY: a writable entry (fi_cq(3)); `src_addr` exists from 1.20 on, and the client's `err_data` and its size are
        // set on entry from 1.5 on (contract 2.3).
        unsafe {
            (*out).op_context = e.c.ctx.0 as *mut c_void;
            (*out).flags = e.c.flags.bits();
            (*out).len = e.c.len;
            (*out).buf = e.c.buf as *mut c_void;
            (*out).data = e.c.data;
            (*out).tag = e.c.tag;
            (*out).olen = e.olen;
            (*out).err = Errno::from(e.error).0;
            (*out).prov_errno = boundary::prov_errno(e.error);
            let room = if self.api_version >= version(1, 5) { (*out).err_data_size } else { 0 };
            if room > 0 && !(*out).err_data.is_null() {
                let n = room.min(size);
                core::ptr::copy_nonoverlapping(last.peer.as_ptr(), (*out).err_data.cast(), n);
                (*out).err_data_size = n;
            } else {
                (*out).err_data = if size > 0 { last.peer.as_mut_ptr().cast() } else { core::ptr::null_mut() };
                // Before, the structure ended here.
                if self.api_version >= version(1, 5) {
                    (*out).err_data_size = size;
                }
            }
            if self.api_version >= version(1, 20) {
                (*out).src_addr = e.c.src.0;
            }
        }
        Ok(1)
    }
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    // SAFETY: libfabric passes the fid of a live completion queue.
    let answer = unsafe { object::<Cq, _>(fid) }.and_then(|cq| {
        if cq.uses.any() {
            return refuse(FI_EBUSY);
        }
        cq.cell.let_go(|d| d.cq_close(cq.id))?;
        // SAFETY: the engine has let go of it, and the client gives the handle up (fi_close(3)).
        drop(unsafe { reclaim::<Cq>(fid) });
        Ok(())
    });
    status(answer)
}

unsafe extern "C" fn control(fid: *mut fid, command: c_int, arg: *mut c_void) -> c_int {
    // SAFETY: fi_cq(3): a live queue, an argument that suits the command.
    unsafe { status(object::<Cq, _>(fid).and_then(|cq| cq.joined.control(&*cq.source, command, arg))) }
}

unsafe extern "C" fn read(cq: *mut fid_cq, buf: *mut c_void, max: usize) -> isize {
    // SAFETY: fi_cq(3): a live queue, an array of `max` entries in its format.
    unsafe { count(object::<Cq, _>(cq).and_then(|cq| cq.read_some(Room { buf, max, src: core::ptr::null_mut() }))) }
}

unsafe extern "C" fn readfrom(cq: *mut fid_cq, buf: *mut c_void, max: usize, src: *mut fi_addr_t) -> isize {
    // SAFETY: fi_cq(3): a live queue, arrays of `max` entries and addresses.
    unsafe { count(object::<Cq, _>(cq).and_then(|cq| cq.read_some(Room { buf, max, src }))) }
}

unsafe extern "C" fn readerr(cq: *mut fid_cq, out: *mut fi_cq_err_entry, _flags: u64) -> isize {
    // SAFETY: fi_cq(3): a live queue, a place for the entry.
    unsafe { count(object::<Cq, _>(cq).and_then(|cq| cq.read_error(out))) }
}

unsafe extern "C" fn sread(cq: *mut fid_cq, buf: *mut c_void, max: usize, cond: *const c_void, timeout: c_int) -> isize {
    // SAFETY: the same call without addresses.
    unsafe { sreadfrom(cq, buf, max, core::ptr::null_mut(), cond, timeout) }
}

unsafe extern "C" fn sreadfrom(
    cq: *mut fid_cq,
    buf: *mut c_void,
    max: usize,
    src: *mut fi_addr_t,
    cond: *const c_void,
    timeout: c_int,
) -> isize {
    // The threshold travels as the pointer's value, as in the stock providers.
    // SAFETY: fi_cq(3): a live queue, arrays of `max` entries and addresses.
    unsafe { count(object::<Cq, _>(cq).and_then(|cq| cq.wait_some(Room { buf, max, src }, cond as usize, timeout))) }
}

unsafe extern "C" fn signal(cq: *mut fid_cq) -> c_int {
    // SAFETY: fi_cq(3): a live queue.
    let answer = unsafe { object::<Cq, _>(cq) }.and_then(|cq| {
        if !cq.waits {
            return refuse(FI_ENOSYS);
        }
        cq.source.signalled.store(true, Ordering::Release);
        cq.source.untold.store(true, Ordering::Release);
        cq.source.sleeper.wake_all();
        Ok(())
    });
    status(answer)
}

/// `err_data` is not read: how long the client's copy is, it does not say. The queue remembers the error it reported last.
unsafe extern "C" fn strerror(
    cq: *mut fid_cq,
    prov_errno: c_int,
    _err_data: *const c_void,
    buf: *mut c_char,
    len: usize,
) -> *const c_char {
    // SAFETY: fi_cq(3): a live queue.
    let Ok(cq) = (unsafe { object::<Cq, _>(cq) }) else { return core::ptr::null() };
    let last = cq.last_error.lock().entry.filter(|e| boundary::prov_errno(e.error) == prov_errno);
    let text = match (last, boundary::error_of(prov_errno)) {
        (Some(entry), _) => entry.describe(),
        (None, Some(error)) => error.to_string(),
        (None, None) => "unknown error".into(),
    };
    // SAFETY: `buf` is null or holds `len` bytes (fi_cq(3)).
    unsafe { cq.message.show(&text, buf, len) }
}
