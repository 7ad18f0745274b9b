//! Many threads in one domain, through the C ABI and linked into one program, so that the thread sanitizer sees all of it
//! (`ci/test.sh --only tsan`): two nodes whose threads exchange messages, write each other's memory and add to each other's counters.
//!
//! What it cannot see: the rings between processes, and fences (the sanitizer does not know them); those are loom's.
#![expect(unsafe_code)]
// UNSAFETY: calls the provider's functions as an application does.

use rustmx_fi::abi::domain::{fi_av_attr, fid_av, fid_domain, fid_mr};
use rustmx_fi::abi::endpoint::fid_ep;
use rustmx_fi::abi::eq::{FI_CQ_FORMAT_CONTEXT, FI_WAIT_NONE, FI_WAIT_UNSPEC, fi_cq_attr, fi_cq_entry, fid_cq};
use rustmx_fi::abi::fabric::*;
use std::ffi::{c_int, c_void};
use std::mem::zeroed;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const LANES: usize = 3;
const ROUNDS: usize = 60;
const AREA: usize = 4096;
const FI_EAGAIN: isize = 11;
const FI_UINT64: u32 = 7;
const FI_SUM: u32 = 2;

/// How a node is opened and waits.
#[derive(Clone, Copy, Debug)]
struct Style {
    threading: u32,
    progress: u32,
    sleeps: bool,
}

/// One endpoint with what belongs to it. Never closed before its threads have ended.
struct Node {
    domain: *mut fid_domain,
    ep: *mut fid_ep,
    cq: *mut fid_cq,
    av: *mut fid_av,
    mr: *mut fid_mr,
    to: u64,
    /// A part for each lane of the other node, then the counter.
    memory: Box<[AtomicU64]>,
    style: Style,
}

// SAFETY: FI_THREAD_SAFE means that these handles may be used by any thread; under FI_THREAD_DOMAIN the test keeps to one for data.
unsafe impl Sync for Node {}

#[track_caller]
fn done(rc: c_int) {
    assert_eq!(rc, 0, "a call was refused");
}

impl Node {
    fn open(style: Style) -> Node {
        let memory: Box<[AtomicU64]> = (0..LANES * AREA / 8 + 1).map(|_| AtomicU64::new(0)).collect();
        // SAFETY: the calls as their man pages say; every structure is filled with what zero means "default" for.
        unsafe {
            let provider = &*rustmx_fi::fi_prov_ini();
            let (mut info, mut fabric, mut domain) = (null_mut(), null_mut(), null_mut());
            done((provider.getinfo)(version(1, 17), null(), null(), 0, null(), &mut info));
            let attr = &mut *(*info).domain_attr;
            (attr.threading, attr.data_progress, attr.mr_mode) = (style.threading, style.progress, 0);
            done((provider.fabric)((*info).fabric_attr, &mut fabric, null_mut()));
            done(((*(*fabric).ops).domain)(fabric, info, &mut domain, null_mut()));
            let ops = &*(*domain).ops;
            let (mut ep, mut cq, mut av, mut mr) = (null_mut(), null_mut(), null_mut(), null_mut());
            let wait_obj = if style.sleeps { FI_WAIT_UNSPEC } else { FI_WAIT_NONE };
            let mut cq_attr = fi_cq_attr { format: FI_CQ_FORMAT_CONTEXT, wait_obj, ..zeroed() };
            done((ops.cq_open)(domain, &mut cq_attr, &mut cq, null_mut()));
            done((ops.av_open)(domain, &mut fi_av_attr { r#type: FI_AV_TABLE, ..zeroed() }, &mut av, null_mut()));
            done((ops.endpoint)(domain, info, &mut ep, null_mut()));
            let fid = &mut (*ep).fid;
            done(((*fid.ops).bind)(fid, &mut (*cq).fid, FI_SEND | FI_RECV));
            done(((*fid.ops).bind)(fid, &mut (*av).fid, 0));
            done(((*fid.ops).control)(fid, FI_ENABLE, null_mut()));
            let (at, bytes) = (memory.as_ptr().cast(), memory.len() * 8);
            let access = FI_REMOTE_READ | FI_REMOTE_WRITE;
            done(((*(*domain).mr).reg)(&mut (*domain).fid, at, bytes, access, 0, 1, 0, &mut mr, null_mut()));
            Node { domain, ep, cq, av, mr, to: 0, memory, style }
        }
    }

    fn name(&self) -> Vec<u8> {
        let mut name = vec![0u8; 64];
        let mut len = name.len();
        // SAFETY: room for `len` bytes.
        unsafe { done(((*(*self.ep).cm).getname)(&mut (*self.ep).fid, name.as_mut_ptr().cast(), &mut len)) };
        name.truncate(len);
        name
    }

    fn meet(&mut self, name: &[u8]) {
        // SAFETY: one name of the provider's format, room for one handle.
        let n = unsafe { ((*(*self.av).ops).insert)(self.av, name.as_ptr().cast(), 1, &mut self.to, 0, null_mut()) };
        assert_eq!(n, 1);
    }

    /// Reads the queue once, and tells the owners of what is complete.
    fn poll(&self) {
        let mut got = [const { fi_cq_entry { op_context: null_mut() } }; 4];
        let into = (&raw mut got).cast();
        // SAFETY: room for as many entries of the queue's format.
        let n = unsafe {
            let ops = &*(*self.cq).ops;
            if self.style.sleeps {
                (ops.sread)(self.cq, into, got.len(), null(), 5)
            } else {
                (ops.read)(self.cq, into, got.len())
            }
        };
        if n == -FI_EAGAIN {
            return std::thread::yield_now();
        }
        for entry in &got[..usize::try_from(n).expect("an operation failed")] {
            // SAFETY: contexts of this test are flags that live until they are set.
            unsafe { (*entry.op_context.cast::<AtomicBool>()).store(true, Ordering::Release) };
        }
    }

    /// Starts an operation; makes progress while there is no room.
    fn start(&self, call: impl Fn() -> isize) {
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            match call() {
                0 => return,
                rc => assert_eq!(rc, -FI_EAGAIN),
            }
            self.poll();
            assert!(Instant::now() < until, "no room");
        }
    }

    fn wait(&self, flags: &[&AtomicBool]) {
        let until = Instant::now() + Duration::from_secs(60);
        while !flags.iter().all(|f| f.load(Ordering::Acquire)) {
            self.poll();
            assert!(Instant::now() < until, "an operation does not end: {:?}", self.style);
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // SAFETY: in the order that the man pages ask for; nothing is used afterwards.
        unsafe {
            for fid in
                [&mut (*self.ep).fid, &mut (*self.mr).fid, &mut (*self.cq).fid, &mut (*self.av).fid, &mut (*self.domain).fid]
            {
                done(((*fid.ops).close)(fid));
            }
        }
    }
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + seed * 17 + (i >> 8)) as u8).collect()
}

fn context(flag: &AtomicBool) -> *mut c_void {
    (&raw const *flag).cast_mut().cast()
}

/// One thread's work: messages both ways in step with its partner of the same lane, and each time a write and an addition.
fn lane(node: &Node, lane: usize, mine: usize) {
    // SAFETY: the tables live as long as the endpoint.
    let (tagged, rma, atomic) = unsafe { (&*(*node.ep).tagged, &*(*node.ep).rma, &*(*node.ep).atomic) };
    for round in 0..ROUNDS {
        let len = [0, 8, 200, 1000, 5000, 20_000, 100_000][(round * 5 + lane) % 7];
        let tag = (lane * ROUNDS + round) as u64;
        let flags = [const { AtomicBool::new(false) }; 4];
        let (ours, mut theirs) = (pattern(len, round * 2 + mine), vec![0u8; len]);
        let (block, one) = (vec![(round + 1) as u8; AREA], 1u64);
        // SAFETY: buffers and flags live until `wait` has seen all four.
        unsafe {
            let into = theirs.as_mut_ptr().cast();
            node.start(|| (tagged.recv)(node.ep, into, len, null_mut(), node.to, tag, 0, context(&flags[0])));
            node.start(|| (tagged.send)(node.ep, ours.as_ptr().cast(), len, null_mut(), node.to, tag, context(&flags[1])));
            let at = (lane * AREA) as u64;
            node.start(|| (rma.write)(node.ep, block.as_ptr().cast(), AREA, null_mut(), node.to, at, 1, context(&flags[2])));
            let (operand, counter) = ((&raw const one).cast(), (LANES * AREA) as u64);
            node.start(|| {
                (atomic.write)(node.ep, operand, 1, null_mut(), node.to, counter, 1, FI_UINT64, FI_SUM, context(&flags[3]))
            });
        }
        node.wait(&flags.each_ref());
        assert!(theirs == pattern(len, round * 2 + 1 - mine), "lane {lane}, round {round}: wrong bytes");
    }
}

/// Two nodes with a thread a lane each, until all are done.
fn exchange(style: Style, lanes: usize) {
    let (mut a, mut b) = (Node::open(style), Node::open(style));
    a.meet(&b.name());
    b.meet(&a.name());
    let left = AtomicUsize::new(2 * lanes);
    std::thread::scope(|s| {
        let mut threads = Vec::new();
        for (mine, node) in [&a, &b].into_iter().enumerate() {
            for i in 0..lanes {
                let left = &left;
                threads.push(s.spawn(move || {
                    lane(node, i, mine);
                    left.fetch_sub(1, Ordering::AcqRel);
                    // The others may need this node's progress.
                    while left.load(Ordering::Acquire) > 0 {
                        node.poll();
                    }
                }));
            }
            if style.threading == FI_THREAD_DOMAIN {
                let left = &left;
                threads.push(s.spawn(move || control_calls(node, left)));
            }
        }
        // The end of a scope is ordered inside std, which the sanitizer does not see; a join it knows.
        for thread in threads {
            thread.join().expect("a thread without a failure");
        }
    });
    for node in [&a, &b] {
        let words = lanes * AREA / 8;
        assert_eq!(node.memory[LANES * AREA / 8].load(Ordering::Relaxed), (lanes * ROUNDS) as u64, "additions");
        let last = u64::from_ne_bytes([ROUNDS as u8; 8]);
        assert!(node.memory[..words].iter().all(|w| w.load(Ordering::Relaxed) == last), "the last writes");
    }
}

/// What fi_domain(3) lets other threads do meanwhile under FI_THREAD_DOMAIN.
fn control_calls(node: &Node, left: &AtomicUsize) {
    let name = node.name();
    let mut bytes = [0u8; 64];
    while left.load(Ordering::Acquire) > 0 {
        let (mut addr, mut mr) = (0, null_mut());
        // SAFETY: an AV insert and a registration with its end.
        unsafe {
            assert_eq!(((*(*node.av).ops).insert)(node.av, name.as_ptr().cast(), 1, &mut addr, 0, null_mut()), 1);
            let at = bytes.as_mut_ptr().cast_const().cast();
            done(((*(*node.domain).mr).reg)(&mut (*node.domain).fid, at, 64, FI_REMOTE_READ, 0, 2, 0, &mut mr, null_mut()));
            done(((*(*mr).fid.ops).close)(&mut (*mr).fid));
        }
        std::thread::sleep(Duration::from_micros(200));
    }
}

#[test]
fn threads_share_a_domain() {
    exchange(Style { threading: FI_THREAD_SAFE, progress: FI_PROGRESS_MANUAL, sleeps: false }, LANES);
}

#[test]
fn threads_sleep_in_one_queue() {
    exchange(Style { threading: FI_THREAD_SAFE, progress: FI_PROGRESS_MANUAL, sleeps: true }, LANES);
}

#[test]
fn a_progress_thread_works_beside_them() {
    exchange(Style { threading: FI_THREAD_SAFE, progress: FI_PROGRESS_AUTO, sleeps: true }, LANES);
}

#[test]
fn one_thread_moves_data_while_another_makes_control_calls() {
    exchange(Style { threading: FI_THREAD_DOMAIN, progress: FI_PROGRESS_MANUAL, sleeps: false }, 1);
}
