//! `fi_ops_atomic`: atomic operations on peers' memory.
#![expect(unsafe_code)]
// UNSAFETY: the slots have C's signatures; handles and buffers are passed on as C gave them.

use super::later::{self, Later};
use super::values::{Values, ioc};
use crate::abi::atomic::{fi_ioc, fi_msg_atomic, fi_ops_atomic, fi_rma_ioc};
use crate::abi::endpoint::fid_ep;
use crate::abi::errno::{FI_EINVAL, FI_EOPNOTSUPP};
use crate::abi::fabric::{FI_TAGGED, c_enum, fi_addr_t};
use crate::boundary::{Answer, Errno, attr, object, refuse, status};
use crate::convert;
use crate::object::ep::Ep;
use libc::{c_int, c_void};
use rustmx::{
    ATOMIC_MAX, Addr, AtomicArgs, AtomicForm, AtomicOp, AtomicType, IOV_LIMIT, MAX_PLACES, OpFlags, Order, RemoteSeg, UserCtx,
    Work, is_valid_atomic,
};

/// The table of every endpoint.
pub(crate) static OPS: fi_ops_atomic = fi_ops_atomic {
    size: size_of::<fi_ops_atomic>(),
    write,
    writev,
    writemsg,
    inject,
    readwrite,
    readwritev,
    readwritemsg,
    compwrite,
    compwritev,
    compwritemsg,
    writevalid,
    readwritevalid,
    compwritevalid,
};

/// What the operation is: `-FI_EOPNOTSUPP` for numbers that are none, or that do not go together.
pub(crate) fn order(datatype: c_enum, op: c_enum, form: AtomicForm) -> Answer<Order> {
    match (AtomicOp::from_number(op), AtomicType::from_number(datatype)) {
        (Some(op), Some(kind)) if is_valid_atomic(op, kind, form) => Ok(Order { op, kind, form }),
        _ => refuse(FI_EOPNOTSUPP),
    }
}

/// Values that one operation may have.
pub(crate) fn most(order: Order) -> usize {
    ATOMIC_MAX / order.kind.bytes()
}

/// An operation without its memory.
struct What {
    to: fi_addr_t,
    context: *mut c_void,
    /// `None`: the endpoint's default flags.
    flags: Option<OpFlags>,
    inject: bool,
    /// Not now.
    later: Option<Later>,
}

impl What {
    fn plain(to: fi_addr_t, context: *mut c_void) -> What {
        What { to, context, flags: None, inject: false, later: None }
    }
}

/// Starts an operation on `places`, with operands, comparands and results.
///
/// # Safety
/// `ep` is a live endpoint; the lists are as long as they say; buffers live until completion (fi_atomic(3)).
unsafe fn start(ep: *mut fid_ep, order: Answer<Order>, lists: [Values; 3], places: &[fi_rma_ioc], what: What) -> isize {
    // SAFETY: as the caller promises.
    status(unsafe { object::<Ep, _>(ep).and_then(|ep| begin(ep, order, lists, places, what)) }) as isize
}

/// The same.
///
/// # Safety
/// The lists are as long as they say; buffers live until completion (fi_atomic(3)).
unsafe fn begin(
    ep: &Ep,
    order: Answer<Order>,
    [operands, comparands, results]: [Values; 3],
    places: &[fi_rma_ioc],
    what: What,
) -> Answer<()> {
    // SAFETY: as the caller promises; zero bytes at no address.
    unsafe {
        let none = [convert::segment(core::ptr::null(), 0); IOV_LIMIT];
        let (mut x, mut y, mut z) = (none, none, none);
        order.and_then(|order| {
            let size = order.kind.bytes();
            // Operands of a read are ignored, whatever they are (fi_atomic(3)).
            let operands = if order.op == AtomicOp::Read { Values::NONE } else { operands };
            let (nx, ny, nz) =
                (operands.segments(size, &mut x)?, comparands.segments(size, &mut y)?, results.segments(size, &mut z)?);
            let mut there = [RemoteSeg { addr: 0, len: 0, key: 0 }; MAX_PLACES];
            for (to, one) in there.iter_mut().zip(places) {
                *to = RemoteSeg { addr: one.addr, len: one.count.checked_mul(size).ok_or(Errno(FI_EINVAL))?, key: one.key };
            }
            let args = AtomicArgs {
                to: Addr(what.to),
                order,
                operands: &x[..nx],
                comparands: &y[..ny],
                results: &z[..nz],
                places: there.get(..places.len()).ok_or(Errno(FI_EINVAL))?,
                ctx: UserCtx(what.context as usize),
                flags: what.flags,
                inject: what.inject,
            };
            match what.later {
                None => ep.atomic(args),
                Some(later) => ep.defer(later, &Work::Atomic(ep.id, args)),
            }
        })
    }
}

/// An operation as the message structures tell it: comparands and results come beside the message.
pub(super) struct Described<'a> {
    pub(super) msg: &'a fi_msg_atomic,
    pub(super) form: AtomicForm,
    pub(super) comparands: Values,
    pub(super) results: Values,
}

/// An operation from a message structure.
///
/// # Safety
/// As for [`start`]; `msg` is null or lives during the call with its arrays.
unsafe fn message(
    ep: *mut fid_ep,
    msg: *const fi_msg_atomic,
    [comparands, results]: [Values; 2],
    form: AtomicForm,
    flags: u64,
) -> isize {
    // SAFETY: as the caller promises.
    let answer = unsafe {
        object::<Ep, _>(ep).and_then(|ep| {
            let msg = attr(msg).ok_or(Errno(FI_EINVAL))?;
            let (flags, later) = later::flags_of(ep, flags, msg.context)?;
            prepared(ep, &Described { msg, form, comparands, results }, flags, later)
        })
    };
    status(answer) as isize
}

/// An operation whose flags are known to be offered; a call's, or deferred work.
///
/// # Safety
/// The message's and the other lists live during the call; buffers until completion.
pub(super) unsafe fn prepared(ep: &Ep, op: &Described<'_>, flags: OpFlags, later: Option<Later>) -> Answer<()> {
    let m = op.msg;
    // The target would be a tagged receive, and not the region of that key (fi_atomic(3)).
    if flags.bits() & FI_TAGGED != 0 {
        return refuse(FI_EOPNOTSUPP);
    }
    if m.rma_iov_count > MAX_PLACES || m.rma_iov.is_null() {
        return refuse(FI_EINVAL);
    }
    let lists = [Values::new(m.msg_iov, m.iov_count), op.comparands, op.results];
    let what = What { flags: Some(flags), later, ..What::plain(m.addr, m.context) };
    // SAFETY: as the caller promises.
    unsafe {
        let places = core::slice::from_raw_parts(m.rma_iov, m.rma_iov_count);
        begin(ep, order(m.datatype, m.op, op.form), lists, places, what)
    }
}

unsafe extern "C" fn write(
    ep: *mut fid_ep,
    buf: *const c_void,
    count: usize,
    _desc: *mut c_void,
    dest: fi_addr_t,
    addr: u64,
    key: u64,
    datatype: c_enum,
    op: c_enum,
    context: *mut c_void,
) -> isize {
    let (one, there) = (ioc(buf, count), [fi_rma_ioc { addr, count, key }]);
    let lists = [Values::of(&one), Values::NONE, Values::NONE];
    // SAFETY: fi_atomic(3): a live endpoint, a buffer that lives until completion.
    unsafe { start(ep, order(datatype, op, AtomicForm::Base), lists, &there, What::plain(dest, context)) }
}

unsafe extern "C" fn writev(
    ep: *mut fid_ep,
    iov: *const fi_ioc,
    _desc: *mut *mut c_void,
    count: usize,
    dest: fi_addr_t,
    addr: u64,
    key: u64,
    datatype: c_enum,
    op: c_enum,
    context: *mut c_void,
) -> isize {
    let operands = Values::new(iov, count);
    // SAFETY: fi_atomic(3): a live endpoint, lists that live during the call, buffers that live until completion.
    unsafe {
        let there = operands.place(addr, key);
        let lists = [operands, Values::NONE, Values::NONE];
        start(ep, order(datatype, op, AtomicForm::Base), lists, &there, What::plain(dest, context))
    }
}

unsafe extern "C" fn writemsg(ep: *mut fid_ep, msg: *const fi_msg_atomic, flags: u64) -> isize {
    // SAFETY: fi_atomic(3): a live endpoint, a message that lives during the call, buffers that live until completion.
    unsafe { message(ep, msg, [Values::NONE; 2], AtomicForm::Base, flags) }
}

unsafe extern "C" fn inject(
    ep: *mut fid_ep,
    buf: *const c_void,
    count: usize,
    dest: fi_addr_t,
    addr: u64,
    key: u64,
    datatype: c_enum,
    op: c_enum,
) -> isize {
    let (one, there) = (ioc(buf, count), [fi_rma_ioc { addr, count, key }]);
    let what = What { inject: true, ..What::plain(dest, core::ptr::null_mut()) };
    let lists = [Values::of(&one), Values::NONE, Values::NONE];
    // SAFETY: fi_atomic(3): a live endpoint, a buffer that is read during the call.
    unsafe { start(ep, order(datatype, op, AtomicForm::Base), lists, &there, what) }
}

unsafe extern "C" fn readwrite(
    ep: *mut fid_ep,
    buf: *const c_void,
    count: usize,
    _desc: *mut c_void,
    result: *mut c_void,
    _result_desc: *mut c_void,
    dest: fi_addr_t,
    addr: u64,
    key: u64,
    datatype: c_enum,
    op: c_enum,
    context: *mut c_void,
) -> isize {
    let (one, back, there) = (ioc(buf, count), ioc(result, count), [fi_rma_ioc { addr, count, key }]);
    let lists = [Values::of(&one), Values::NONE, Values::of(&back)];
    // SAFETY: fi_atomic(3): a live endpoint, buffers that live until completion.
    unsafe { start(ep, order(datatype, op, AtomicForm::Fetch), lists, &there, What::plain(dest, context)) }
}

unsafe extern "C" fn readwritev(
    ep: *mut fid_ep,
    iov: *const fi_ioc,
    _desc: *mut *mut c_void,
    count: usize,
    resultv: *mut fi_ioc,
    _result_desc: *mut *mut c_void,
    result_count: usize,
    dest: fi_addr_t,
    addr: u64,
    key: u64,
    datatype: c_enum,
    op: c_enum,
    context: *mut c_void,
) -> isize {
    let (operands, results) = (Values::new(iov, count), Values::new(resultv, result_count));
    // SAFETY: fi_atomic(3): a live endpoint, lists that live during the call, buffers that live until completion.
    unsafe {
        // A read may come without operands.
        let there = results.place(addr, key);
        let lists = [operands, Values::NONE, results];
        start(ep, order(datatype, op, AtomicForm::Fetch), lists, &there, What::plain(dest, context))
    }
}

unsafe extern "C" fn readwritemsg(
    ep: *mut fid_ep,
    msg: *const fi_msg_atomic,
    resultv: *mut fi_ioc,
    _result_desc: *mut *mut c_void,
    result_count: usize,
    flags: u64,
) -> isize {
    let results = Values::new(resultv, result_count);
    // SAFETY: fi_atomic(3): a live endpoint, a message that lives during the call, buffers that live until completion.
    unsafe { message(ep, msg, [Values::NONE, results], AtomicForm::Fetch, flags) }
}

unsafe extern "C" fn compwrite(
    ep: *mut fid_ep,
    buf: *const c_void,
    count: usize,
    _desc: *mut c_void,
    compare: *const c_void,
    _compare_desc: *mut c_void,
    result: *mut c_void,
    _result_desc: *mut c_void,
    dest: fi_addr_t,
    addr: u64,
    key: u64,
    datatype: c_enum,
    op: c_enum,
    context: *mut c_void,
) -> isize {
    let (one, with, back) = (ioc(buf, count), ioc(compare, count), ioc(result, count));
    let there = [fi_rma_ioc { addr, count, key }];
    let lists = [Values::of(&one), Values::of(&with), Values::of(&back)];
    // SAFETY: fi_atomic(3): a live endpoint, buffers that live until completion.
    unsafe { start(ep, order(datatype, op, AtomicForm::Compare), lists, &there, What::plain(dest, context)) }
}

unsafe extern "C" fn compwritev(
    ep: *mut fid_ep,
    iov: *const fi_ioc,
    _desc: *mut *mut c_void,
    count: usize,
    comparev: *const fi_ioc,
    _compare_desc: *mut *mut c_void,
    compare_count: usize,
    resultv: *mut fi_ioc,
    _result_desc: *mut *mut c_void,
    result_count: usize,
    dest: fi_addr_t,
    addr: u64,
    key: u64,
    datatype: c_enum,
    op: c_enum,
    context: *mut c_void,
) -> isize {
    let operands = Values::new(iov, count);
    let lists = [operands, Values::new(comparev, compare_count), Values::new(resultv, result_count)];
    // SAFETY: fi_atomic(3): a live endpoint, lists that live during the call, buffers that live until completion.
    unsafe {
        let there = operands.place(addr, key);
        start(ep, order(datatype, op, AtomicForm::Compare), lists, &there, What::plain(dest, context))
    }
}

unsafe extern "C" fn compwritemsg(
    ep: *mut fid_ep,
    msg: *const fi_msg_atomic,
    comparev: *const fi_ioc,
    _compare_desc: *mut *mut c_void,
    compare_count: usize,
    resultv: *mut fi_ioc,
    _result_desc: *mut *mut c_void,
    result_count: usize,
    flags: u64,
) -> isize {
    let lists = [Values::new(comparev, compare_count), Values::new(resultv, result_count)];
    // SAFETY: fi_atomic(3): a live endpoint, a message that lives during the call, buffers that live until completion.
    unsafe { message(ep, msg, lists, AtomicForm::Compare, flags) }
}

/// # Safety
/// `count` is null or valid for a write.
unsafe fn valid(datatype: c_enum, op: c_enum, count: *mut usize, form: AtomicForm) -> c_int {
    let answer = order(datatype, op, form).and_then(|order| {
        if count.is_null() {
            return refuse(FI_EINVAL);
        }
        // SAFETY: valid for a write (caller).
        unsafe { count.write(most(order)) };
        Ok(())
    });
    status(answer)
}

unsafe extern "C" fn writevalid(_ep: *mut fid_ep, datatype: c_enum, op: c_enum, count: *mut usize) -> c_int {
    // SAFETY: fi_atomic(3): a place for the count.
    unsafe { valid(datatype, op, count, AtomicForm::Base) }
}

unsafe extern "C" fn readwritevalid(_ep: *mut fid_ep, datatype: c_enum, op: c_enum, count: *mut usize) -> c_int {
    // SAFETY: fi_atomic(3): a place for the count.
    unsafe { valid(datatype, op, count, AtomicForm::Fetch) }
}

unsafe extern "C" fn compwritevalid(_ep: *mut fid_ep, datatype: c_enum, op: c_enum, count: *mut usize) -> c_int {
    // SAFETY: fi_atomic(3): a place for the count.
    unsafe { valid(datatype, op, count, AtomicForm::Compare) }
}
