//! A process that the kernel refuses system calls, as in a container with a strict filter.
#![expect(unsafe_code)]
// UNSAFETY: prctl(2), which rustix does not have for filters.

use rustix::io::Errno;

const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
const IF_EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
const ANSWER: u32 = libc::BPF_RET | libc::BPF_K;

/// Where the number of the call is in what a filter sees (`struct seccomp_data`), and the lower half of an argument of at most 32 bits.
const NUMBER: u32 = 0;
const fn argument(which: u32) -> u32 {
    16 + 8 * which + if cfg!(target_endian = "big") { 4 } else { 0 }
}

fn step(code: u32, k: u32, skip_unless: u8) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt: 0, jf: skip_unless, k }
}

/// io_uring_setup(2), io_uring_register(2), io_uring_enter(2).
pub const URING: [libc::c_long; 3] = [libc::SYS_io_uring_setup, libc::SYS_io_uring_register, libc::SYS_io_uring_enter];

/// From here on userfaultfd(2) fails in this thread with `EPERM`.
pub fn without_userfaultfd() {
    refuse(&[(libc::SYS_userfaultfd, Errno::PERM)]);
}

fn fail_with(error: Errno) -> libc::sock_filter {
    step(ANSWER, libc::SECCOMP_RET_ERRNO | error.raw_os_error() as u32, 0)
}

/// From here on these system calls fail with these errors, in this thread and those that it starts.
pub fn refuse(calls: &[(libc::c_long, Errno)]) {
    let mut steps = vec![step(LOAD, NUMBER, 0)];
    for (call, error) in calls {
        steps.push(step(IF_EQUAL, *call as u32, 1));
        steps.push(fail_with(*error));
    }
    load(steps);
}

/// From here on setsockopt(2) does not know this option, in this thread and those that it starts.
pub fn refuse_option(level: libc::c_int, option: libc::c_int) {
    load(vec![
        step(LOAD, NUMBER, 0),
        step(IF_EQUAL, libc::SYS_setsockopt as u32, 5),
        step(LOAD, argument(1), 0),
        step(IF_EQUAL, level as u32, 3),
        step(LOAD, argument(2), 0),
        step(IF_EQUAL, option as u32, 1),
        fail_with(Errno::NOPROTOOPT),
    ]);
}

fn load(mut steps: Vec<libc::sock_filter>) {
    steps.push(step(ANSWER, libc::SECCOMP_RET_ALLOW, 0));
    let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    // SAFETY: a program that outlives the call, of which the kernel takes a copy.
    let done = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0
    };
    assert!(done, "a filter: {}", std::io::Error::last_os_error());
}
