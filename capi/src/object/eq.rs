//! `fid_eq`: a queue of control events. The engine needs none; address vectors opened with `FI_EVENT` and the application
//! write to it.
//!
//! The blocking read waits for a condition variable, whatever the wait object; with one that has a descriptor, that is readable
//! while there are events. The application's writes are bounded by the size asked for (`-FI_EOVERRUN`); events that we owe are never dropped.
#![expect(unsafe_code)]
// UNSAFETY: receives C handles and copies events to and from the client's buffers.

use super::fabric::Fabric;
use super::wait::{Joined, Look, Waitable, Wish};
use super::{Deadline, Uses, fid as slots};
use crate::abi::eq::*;
use crate::abi::errno::*;
use crate::abi::fabric::*;
use crate::boundary::{self, Answer, Errno, Object, count, object, reclaim, refuse, status};
use libc::{c_char, c_int, c_void};
use parking_lot::{Condvar, Mutex};
use rustmx::EventFd;
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

/// Entries when the client does not say (`size` 0).
const DEFAULT_SIZE: usize = 256;

/// An event, or an error in its place among them.
enum Event {
    Plain { kind: u32, bytes: Vec<u8> },
    Error(ErrorEvent),
}

/// What `fi_eq_readerr` reports.
#[derive(Clone, Copy)]
pub(crate) struct ErrorEvent {
    pub(crate) fid: usize,
    pub(crate) context: usize,
    pub(crate) data: u64,
    pub(crate) error: rustmx::Error,
    pub(crate) errno: c_int,
}

/// The queue, shared with the objects bound to it.
pub(crate) struct Queue {
    events: Mutex<VecDeque<Event>>,
    arrived: Condvar,
    /// Readable while there are events, if the client waits on descriptors.
    readable: Option<EventFd>,
    size: usize,
}

impl Waitable for Queue {
    fn look(&self) -> Answer<Look> {
        self.fd()?;
        Ok(if self.events.lock().is_empty() { Look::Quiet } else { Look::Pending })
    }

    fn fd(&self) -> Answer<BorrowedFd<'_>> {
        self.readable.as_ref().map_or_else(|| refuse(FI_ENODATA), |r| Ok(r.as_fd()))
    }
}

impl Queue {
    /// Adds an event whose body is a `fi_eq_entry`.
    pub(crate) fn push(&self, kind: u32, fid: *mut fid, context: *mut c_void, data: u64) {
        let mut bytes = Vec::with_capacity(size_of::<fi_eq_entry>());
        for word in [fid as u64, context as u64, data] {
            bytes.extend_from_slice(&word.to_ne_bytes());
        }
        self.add(Event::Plain { kind, bytes });
    }

    /// Adds an error.
    pub(crate) fn push_error(&self, error: ErrorEvent) {
        self.add(Event::Error(error));
    }

    /// Takes the first event away.
    fn pop(&self, events: &mut VecDeque<Event>) {
        events.pop_front();
        if events.is_empty()
            && let Some(readable) = &self.readable
        {
            readable.lower();
        }
    }

    fn add(&self, event: Event) {
        let mut events = self.events.lock();
        if events.is_empty()
            && let Some(readable) = &self.readable
        {
            readable.raise();
        }
        events.push_back(event);
        drop(events);
        self.arrived.notify_all();
    }
}

/// An opened event queue.
#[repr(C)]
pub(crate) struct Eq {
    head: fid_eq,
    pub(crate) queue: Arc<Queue>,
    /// Who is bound to it.
    pub(crate) uses: Uses,
    writable: bool,
    waits: bool,
    joined: Joined,
    message: MessageBuffer,
    _fabric: Uses,
}

// SAFETY: repr(C), starts with a fid_eq whose class is set in `open`.
unsafe impl Object for Eq {
    const CLASS: usize = FI_CLASS_EQ;
}

static FID: fi_ops = slots::ops(close, slots::no_bind, control);
static OPS: fi_ops_eq = fi_ops_eq { size: size_of::<fi_ops_eq>(), read, readerr, write, sread, strerror };

impl Eq {
    /// # Safety
    /// The wait set that `asked` names, if any, is live.
    pub(super) unsafe fn open(fabric: &Fabric, asked: Option<&fi_eq_attr>, context: *mut c_void) -> Answer<Eq> {
        let (size, flags, wait) = asked.map_or((0, 0, FI_WAIT_NONE), |a| (a.size, a.flags, a.wait_obj));
        if flags & !(FI_WRITE | FI_AFFINITY) != 0 {
            return refuse(FI_EINVAL);
        }
        // SAFETY: as the caller promises.
        let wish = unsafe { Wish::new(wait, asked.map_or(core::ptr::null_mut(), |a| a.wait_set))? };
        let readable = match wait {
            FI_WAIT_FD | FI_WAIT_POLLFD | FI_WAIT_SET => Some(EventFd::new().map_err(|_| Errno(FI_ENOMEM))?),
            _ => None,
        };
        let size = if size == 0 { DEFAULT_SIZE } else { size };
        let queue = Arc::new(Queue { events: Mutex::default(), arrived: Condvar::new(), readable, size });
        let joined = wish.join(queue.clone())?;
        Ok(Eq {
            head: fid_eq { fid: slots::header(FI_CLASS_EQ, context, &FID), ops: &OPS },
            queue,
            uses: Uses::default(),
            writable: flags & FI_WRITE != 0,
            waits: wait != FI_WAIT_NONE,
            joined,
            message: MessageBuffer::new(),
            _fabric: fabric.uses.clone(),
        })
    }
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    // SAFETY: libfabric passes the fid of a live event queue.
    let answer = unsafe { object::<Eq, _>(fid) }.and_then(|eq| {
        if eq.uses.any() {
            return refuse(FI_EBUSY);
        }
        // SAFETY: nothing is bound to it any more, and the client gives the handle up (fi_close(3)).
        drop(unsafe { reclaim::<Eq>(fid) });
        Ok(())
    });
    status(answer)
}

unsafe extern "C" fn control(fid: *mut fid, command: c_int, arg: *mut c_void) -> c_int {
    // SAFETY: fi_eq(3): a live event queue, an argument that suits the command.
    unsafe { status(object::<Eq, _>(fid).and_then(|eq| eq.joined.control(&*eq.queue, command, arg))) }
}

/// Takes (or, with `FI_PEEK`, shows) the next event.
///
/// # Safety
/// `event` is null or writable; `buf` is null or writable for `len` bytes.
unsafe fn take(
    queue: &Queue,
    events: &mut VecDeque<Event>,
    event: *mut u32,
    (buf, len): (*mut c_void, usize),
    flags: u64,
) -> Answer<usize> {
    let (kind, bytes) = match events.front() {
        None => return refuse(FI_EAGAIN),
        Some(Event::Error(_)) => return refuse(FI_EAVAIL),
        Some(Event::Plain { kind, bytes }) => (*kind, bytes),
    };
    let n = if buf.is_null() { 0 } else { len.min(bytes.len()) };
    // SAFETY: `buf` holds at least n bytes (caller), which are the client's.
    unsafe {
        core::ptr::copy_nonoverlapping(bytes.as_ptr(), buf.cast(), n);
        boundary::put(event, kind);
    }
    if flags & FI_PEEK == 0 {
        queue.pop(events);
    }
    Ok(n)
}

unsafe extern "C" fn read(eq: *mut fid_eq, event: *mut u32, buf: *mut c_void, len: usize, flags: u64) -> isize {
    // SAFETY: fi_eq(3): a live event queue, places for the results.
    unsafe { count(object::<Eq, _>(eq).and_then(|eq| take(&eq.queue, &mut eq.queue.events.lock(), event, (buf, len), flags))) }
}

unsafe extern "C" fn sread(eq: *mut fid_eq, event: *mut u32, buf: *mut c_void, len: usize, timeout: c_int, flags: u64) -> isize {
    // SAFETY: fi_eq(3): a live event queue.
    let answer = unsafe { object::<Eq, _>(eq) }.and_then(|eq| {
        if !eq.waits {
            return refuse(FI_ENOSYS);
        }
        let deadline = Deadline::after(timeout);
        let mut events = eq.queue.events.lock();
        while events.is_empty() {
            match deadline.at() {
                None => eq.queue.arrived.wait(&mut events),
                Some(at) => {
                    if eq.queue.arrived.wait_until(&mut events, at).timed_out() {
                        break;
                    }
                }
            }
        }
        // SAFETY: places for the results (fi_eq(3)).
        unsafe { take(&eq.queue, &mut events, event, (buf, len), flags) }
    });
    count(answer)
}

unsafe extern "C" fn readerr(eq: *mut fid_eq, out: *mut fi_eq_err_entry, flags: u64) -> isize {
    // SAFETY: fi_eq(3): a live event queue.
    let answer = unsafe { object::<Eq, _>(eq) }.and_then(|eq| {
        if out.is_null() {
            return refuse(FI_EINVAL);
        }
        let mut events = eq.queue.events.lock();
        let Some(Event::Error(e)) = events.front() else { return refuse(FI_EAGAIN) };
        // No error data: the index in `data` says it all. The client's err_data buffer, if it gave one, stays its own.
        // SAFETY: a writable entry (fi_eq(3)), whose fields are written one by one.
        unsafe {
            (*out).fid = e.fid as *mut fid;
            (*out).context = e.context as *mut c_void;
            (*out).data = e.data;
            (*out).err = e.errno;
            (*out).prov_errno = boundary::prov_errno(e.error);
            (*out).err_data_size = 0;
        }
        if flags & FI_PEEK == 0 {
            eq.queue.pop(&mut events);
        }
        Ok(size_of::<fi_eq_err_entry>())
    });
    count(answer)
}

unsafe extern "C" fn write(eq: *mut fid_eq, event: u32, buf: *const c_void, len: usize, _flags: u64) -> isize {
    // SAFETY: fi_eq(3): a live event queue.
    let answer = unsafe { object::<Eq, _>(eq) }.and_then(|eq| {
        if !eq.writable || (buf.is_null() && len > 0) {
            return refuse(FI_EINVAL);
        }
        if eq.queue.events.lock().len() >= eq.queue.size {
            return refuse(FI_EOVERRUN);
        }
        let mut bytes = vec![0; len];
        // SAFETY: the client's buffer holds `len` bytes (fi_eq(3)).
        unsafe { core::ptr::copy_nonoverlapping(buf.cast(), bytes.as_mut_ptr(), len) };
        eq.queue.add(Event::Plain { kind: event, bytes });
        Ok(len)
    });
    count(answer)
}

unsafe extern "C" fn strerror(
    eq: *mut fid_eq,
    prov_errno: c_int,
    _err_data: *const c_void,
    buf: *mut c_char,
    len: usize,
) -> *const c_char {
    let text = boundary::error_of(prov_errno).map_or_else(|| "unknown error".into(), |e| e.to_string());
    // SAFETY: fi_eq(3): a live event queue; `buf` is null or holds `len` bytes.
    unsafe { object::<Eq, _>(eq).map_or(core::ptr::null(), |eq| eq.message.show(&text, buf, len)) }
}

/// Where the `strerror` calls put a message when the client brings no buffer: at a fixed place in the object, overwritten by the
/// next one, so that the pointer stays valid until the object closes.
pub(super) struct MessageBuffer(Mutex<Box<[c_char; 512]>>);

impl MessageBuffer {
    pub(super) fn new() -> MessageBuffer {
        MessageBuffer(Mutex::new(Box::new([0; 512])))
    }

    /// Shows `text` in `buf`, if there is one, else here.
    ///
    /// # Safety
    /// `buf` is null or valid for `len` bytes.
    pub(super) unsafe fn show(&self, text: &str, buf: *mut c_char, len: usize) -> *const c_char {
        if buf.is_null() || len == 0 {
            let mut own = self.0.lock();
            let at = own.as_mut_ptr();
            // SAFETY: our own 512 bytes.
            unsafe { boundary::copy_text(text, at, 512) };
            return at;
        }
        // SAFETY: as the caller promises.
        unsafe { boundary::copy_text(text, buf, len) };
        buf
    }
}
