//! `fid_av`: address vectors, both types alike: handles are 0, 1, 2 … in insertion order.
//!
//! One with a name is shared by processes (`provider/docs/adr/0011-shared-av.md`): who opened it first inserts and removes, the others read.
//! Opened with `FI_EVENT`, insertions still happen within the call; what they would return goes to the bound event queue.
#![expect(unsafe_code)]
// UNSAFETY: receives C handles and reads and writes the client's arrays.

use super::cell::DomainCell;
use super::domain::Domain;
use super::eq::{Eq, ErrorEvent, Queue};
use super::{Uses, fid as slots};
use crate::abi::domain::*;
use crate::abi::eq::FI_AV_COMPLETE;
use crate::abi::errno::*;
use crate::abi::fabric::*;
use crate::boundary::{self, Answer, Errno, Object, class_of, copy_out, copy_text, object, put, reclaim, refuse, status};
use crate::resolve;
use libc::{c_char, c_int, c_void};
use parking_lot::Mutex;
use rustmx::{Addr, AddressVector, Error, LogLevel, LogSubsystem, NAME_LEN, Name, version_differs};
use std::sync::{Arc, Once};

/// An opened address vector.
#[repr(C)]
pub(crate) struct Av {
    head: fid_av,
    pub(crate) table: Arc<AddressVector>,
    pub(crate) cell: Arc<DomainCell>,
    /// Endpoints bound to it.
    pub(crate) uses: Uses,
    /// Opened with `FI_EVENT`.
    events: bool,
    eq: Mutex<Option<(Arc<Queue>, Uses)>>,
    /// Of a shared one: `attr.map_addr`, an array of the handles (fi_av(3)), which are the same numbers in every process.
    _handles: Box<[fi_addr_t]>,
    _domain: Uses,
}

// SAFETY: repr(C), starts with a fid_av whose class is set in `open`.
unsafe impl Object for Av {
    const CLASS: usize = FI_CLASS_AV;
}

static FID: fi_ops = slots::ops(close, bind, slots::no_control);
static OPS: fi_ops_av = fi_ops_av {
    size: size_of::<fi_ops_av>(),
    insert,
    insertsvc,
    insertsym,
    remove,
    lookup,
    straddr,
    av_set,
    insert_auth_key,
    lookup_auth_key,
    set_user_id,
};

/// One insertion call: where its results go.
struct Insertion<'a> {
    av: &'a Av,
    fi_addr: *mut fi_addr_t,
    flags: u64,
    context: *mut c_void,
    queue: Option<Arc<Queue>>,
    index: usize,
    good: usize,
}

/// The vector that processes know as `name`.
fn open_shared(name: &str, must_exist: bool, count: usize) -> Answer<AddressVector> {
    AddressVector::shared(name, must_exist, count).map_err(|no| {
        // Asking for one that is not there is how clients find out.
        let level = if no.error == Error::NoVector { LogLevel::Info } else { LogLevel::Warn };
        crate::entry::start().log.say(level, LogSubsystem::Av, || format!("shared address vector {name:?}: {}", no.why));
        Errno::from(no.error)
    })
}

impl Av {
    /// # Safety
    /// `asked` is null or lives during the call and is writable.
    pub(super) unsafe fn open(domain: &Domain, asked: *mut fi_av_attr, context: *mut c_void) -> Answer<Av> {
        if asked.is_null() {
            return refuse(FI_EINVAL);
        }
        // SAFETY: as the caller promises.
        let (kind, count, name, flags) = unsafe { ((*asked).r#type, (*asked).count, (*asked).name, (*asked).flags) };
        if flags & !(FI_EVENT | FI_SYMMETRIC | FI_READ) != 0 || kind > FI_AV_TABLE {
            return refuse(FI_EINVAL);
        }
        // SAFETY: null or a C string (fi_av(3)).
        let table = match (name.is_null(), unsafe { boundary::text(name) }) {
            (false, Some(name)) => open_shared(name, flags & FI_READ != 0, count)?,
            (true, _) if flags & FI_READ == 0 => AddressVector::new(),
            _ => return refuse(FI_EINVAL),
        };
        let handles: Box<[fi_addr_t]> = (0..table.capacity().unwrap_or(0) as u64).collect();
        if !handles.is_empty() {
            // SAFETY: writable (caller). Who brings an address asks for the handles of others that brought the same: any is right.
            unsafe {
                if (*asked).map_addr.is_null() {
                    (*asked).map_addr = handles.as_ptr().cast_mut().cast();
                }
            }
        }
        if kind == FI_AV_UNSPEC {
            // SAFETY: writable (caller); the client learns the type here (fi_av(3)).
            unsafe { (*asked).r#type = FI_AV_TABLE };
        }
        // A hint, and a client's: not worth failing for.
        table.reserve(count.min(1 << 20));
        Ok(Av {
            head: fid_av { fid: slots::header(FI_CLASS_AV, context, &FID), ops: &OPS },
            table: Arc::new(table),
            cell: domain.cell.clone(),
            uses: Uses::default(),
            events: flags & FI_EVENT != 0,
            eq: Mutex::new(None),
            _handles: handles,
            _domain: domain.uses.clone(),
        })
    }

    fn insertion(&self, fi_addr: *mut fi_addr_t, flags: u64, context: *mut c_void) -> Answer<Insertion<'_>> {
        if self.table.is_read_only() {
            return refuse(FI_EACCES);
        }
        let allowed = if self.events { FI_MORE } else { FI_MORE | FI_SYNC_ERR };
        if flags & !allowed != 0 {
            return refuse(FI_EBADFLAGS);
        }
        if flags & FI_SYNC_ERR != 0 && context.is_null() {
            return refuse(FI_EINVAL);
        }
        let queue = match (self.events, &*self.eq.lock()) {
            (false, _) => None,
            (true, Some((queue, _))) => Some(queue.clone()),
            (true, None) => return refuse(FI_ENOEQ),
        };
        Ok(Insertion { av: self, fi_addr, flags, context, queue, index: 0, good: 0 })
    }
}

/// A name is of another version's format, or of an endpoint of another version. The job fails by it, and MPIs do not say why.
#[cold]
fn tell_of_versions(name: &[u8]) {
    static TOLD: Once = Once::new();
    TOLD.call_once(|| {
        let why = Name::foreign(name).map_or_else(
            || "it is of another version of rustmx; install the same rustmx for all ranks, on all hosts".into(),
            version_differs,
        );
        crate::entry::start().log.insist(|| format!("the address of a rank is not taken: {why}"));
    });
}

impl Insertion<'_> {
    /// Enters one name, or notes why it cannot be.
    ///
    /// # Safety
    /// The arrays given to the insertion call are longer than the names added so far.
    unsafe fn add(&mut self, name: Result<Name, Error>) {
        let (handle, error) = match name.and_then(|name| self.av.table.add(&name)) {
            Ok(handle) => (handle.0, None),
            Err(e) => (FI_ADDR_NOTAVAIL, Some(e)),
        };
        let errno = error.map_or(0, |e| Errno::from(e).0);
        // SAFETY: long enough (caller); with FI_SYNC_ERR `context` is an array of int (fi_av(3)).
        unsafe {
            if !self.fi_addr.is_null() {
                self.fi_addr.add(self.index).write(handle);
            }
            if self.flags & FI_SYNC_ERR != 0 {
                self.context.cast::<c_int>().add(self.index).write(errno);
            }
        }
        match (&self.queue, error) {
            (Some(queue), Some(error)) => queue.push_error(ErrorEvent {
                fid: core::ptr::from_ref(self.av) as usize,
                context: self.context as usize,
                data: self.index as u64,
                error,
                errno,
            }),
            (_, None) => self.good += 1,
            _ => {}
        }
        self.index += 1;
    }

    /// The return value of the call.
    fn finish(self) -> Answer<c_int> {
        match self.queue {
            Some(queue) => {
                let fid = core::ptr::from_ref(self.av).cast_mut().cast();
                queue.push(FI_AV_COMPLETE, fid, self.context, self.good as u64);
                Ok(0)
            }
            None => c_int::try_from(self.good).map_err(|_| Errno(FI_EINVAL)),
        }
    }
}

fn number(answer: Answer<c_int>) -> c_int {
    answer.unwrap_or_else(|Errno(e)| -e)
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    // SAFETY: libfabric passes the fid of a live address vector.
    let answer = unsafe { object::<Av, _>(fid) }.and_then(|av| {
        if av.uses.any() {
            return refuse(FI_EBUSY);
        }
        // SAFETY: no endpoint is bound to it any more, and the client gives the handle up (fi_close(3)).
        drop(unsafe { reclaim::<Av>(fid) });
        Ok(())
    });
    status(answer)
}

unsafe extern "C" fn bind(fid: *mut fid, other: *mut fid, flags: u64) -> c_int {
    // SAFETY: fi_av(3): both handles are live.
    let answer = unsafe { object::<Av, _>(fid).and_then(|av| Ok((av, class_of(other)?))) }.and_then(|(av, class)| {
        if class != FI_CLASS_EQ || flags != 0 {
            return refuse(FI_EINVAL);
        }
        // SAFETY: a live event queue.
        let eq = unsafe { object::<Eq, _>(other)? };
        *av.eq.lock() = Some((eq.queue.clone(), eq.uses.clone()));
        Ok(())
    });
    status(answer)
}

unsafe extern "C" fn insert(
    av: *mut fid_av,
    addr: *const c_void,
    count: usize,
    fi_addr: *mut fi_addr_t,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    // SAFETY: fi_av(3): a live vector.
    let answer = unsafe { object::<Av, _>(av) }.and_then(|av| {
        if addr.is_null() && count > 0 {
            return refuse(FI_EINVAL);
        }
        let mut insertion = av.insertion(fi_addr, flags, context)?;
        for i in 0..count {
            // SAFETY: `count` names of the fixed length, back to back, and arrays as long (fi_av(3)).
            unsafe {
                let bytes = core::slice::from_raw_parts(addr.cast::<u8>().add(i * NAME_LEN), NAME_LEN);
                let name = Name::from_bytes(bytes);
                if name == Err(Error::Version) {
                    tell_of_versions(bytes);
                }
                insertion.add(name);
            }
        }
        insertion.finish()
    });
    number(answer)
}

unsafe extern "C" fn insertsvc(
    av: *mut fid_av,
    node: *const c_char,
    service: *const c_char,
    fi_addr: *mut fi_addr_t,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    // SAFETY: fi_av(3): a live vector, two strings, places for one result.
    let answer = unsafe {
        object::<Av, _>(av).and_then(|av| {
            let Some(node) = boundary::text(node) else { return refuse(FI_EINVAL) };
            let mut insertion = av.insertion(fi_addr, flags, context)?;
            insertion.add(resolve::contact(node, boundary::text(service), false).ok_or(Error::UnknownAddress));
            insertion.finish()
        })
    };
    number(answer)
}

unsafe extern "C" fn insertsym(
    av: *mut fid_av,
    node: *const c_char,
    nodes: usize,
    service: *const c_char,
    services: usize,
    fi_addr: *mut fi_addr_t,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    // SAFETY: fi_av(3): a live vector, two strings, places for nodes * services results.
    let answer = unsafe {
        object::<Av, _>(av).and_then(|av| {
            let (Some(node), Some(service)) = (boundary::text(node), boundary::text(service)) else {
                return refuse(FI_EINVAL);
            };
            let mut insertion = av.insertion(fi_addr, flags, context)?;
            for n in 0..nodes {
                let node = resolve::nth(node, n);
                for s in 0..services {
                    let name = node.as_deref().zip(resolve::nth(service, s));
                    let name = name.and_then(|(node, service)| resolve::contact(node, Some(&service), false));
                    insertion.add(name.ok_or(Error::UnknownAddress));
                }
            }
            insertion.finish()
        })
    };
    number(answer)
}

unsafe extern "C" fn remove(av: *mut fid_av, fi_addr: *mut fi_addr_t, count: usize, flags: u64) -> c_int {
    // SAFETY: fi_av(3): a live vector.
    let answer = unsafe { object::<Av, _>(av) }.and_then(|av| {
        if flags != 0 || (fi_addr.is_null() && count > 0) {
            return refuse(FI_EINVAL);
        }
        if av.table.is_read_only() {
            return refuse(FI_EACCES);
        }
        let mut unknown = false;
        for i in 0..count {
            // SAFETY: an array of `count` handles (fi_av(3)).
            let handle = Addr(unsafe { *fi_addr.add(i) });
            // Go on after one that is not there: the rest shall not stay because of it.
            unknown |= av.table.remove(handle).is_err();
        }
        if unknown { refuse(FI_EINVAL) } else { Ok(()) }
    });
    status(answer)
}

unsafe extern "C" fn lookup(av: *mut fid_av, handle: fi_addr_t, addr: *mut c_void, len: *mut usize) -> c_int {
    // SAFETY: fi_av(3): a live vector, a buffer of `*len` bytes.
    let answer = unsafe { object::<Av, _>(av) }.and_then(|av| {
        let name = av.table.lookup(Addr(handle)).map_err(|_| Errno(FI_EINVAL))?;
        // SAFETY: as above.
        match unsafe { copy_out(&name.to_bytes(), addr, len) } {
            // A short buffer gets what fits; the length says so (fi_av(3)).
            Err(Errno(FI_ETOOSMALL)) => Ok(()),
            other => other,
        }
    });
    status(answer)
}

unsafe extern "C" fn straddr(_av: *mut fid_av, addr: *const c_void, buf: *mut c_char, len: *mut usize) -> *const c_char {
    if addr.is_null() || len.is_null() {
        return core::ptr::null();
    }
    // SAFETY: fi_av(3): an address of our format, a buffer of `*len` bytes.
    unsafe {
        let bytes = core::slice::from_raw_parts(addr.cast::<u8>(), NAME_LEN);
        let text = Name::from_bytes(bytes).map_or_else(|_| "(not a rustmx name)".into(), |n| n.to_string());
        copy_text(&text, buf, *len);
        put(len, text.len() + 1);
    }
    buf
}

// Sets are for collectives, authorization keys and user ids for capabilities that are not offered.

unsafe extern "C" fn av_set(_av: *mut fid_av, _asked: *mut opaque, _out: *mut *mut opaque, _context: *mut c_void) -> c_int {
    -FI_ENOSYS
}

unsafe extern "C" fn insert_auth_key(
    _av: *mut fid_av,
    _key: *const c_void,
    _len: usize,
    _fi_addr: *mut fi_addr_t,
    _flags: u64,
) -> c_int {
    -FI_ENOSYS
}

unsafe extern "C" fn lookup_auth_key(_av: *mut fid_av, _fi_addr: fi_addr_t, _key: *mut c_void, _len: *mut usize) -> c_int {
    -FI_ENOSYS
}

unsafe extern "C" fn set_user_id(_av: *mut fid_av, _fi_addr: fi_addr_t, _id: fi_addr_t, _flags: u64) -> c_int {
    -FI_ENOSYS
}
