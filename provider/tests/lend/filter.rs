//! A process that the kernel refuses system calls, as in a container with a strict filter.
#![expect(unsafe_code)]
// UNSAFETY: prctl(2), which rustix does not have for filters.

use rustix::io::Errno;

const LOAD_NUMBER: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
const IF_EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
const ANSWER: u32 = libc::BPF_RET | libc::BPF_K;

fn step(code: u32, k: u32, skip_unless: u8) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt: 0, jf: skip_unless, k }
}

/// io_uring_setup(2), io_uring_register(2), io_uring_enter(2).
pub const URING: [libc::c_long; 3] = [libc::SYS_io_uring_setup, libc::SYS_io_uring_register, libc::SYS_io_uring_enter];

/// From here on userfaultfd(2) fails in this thread with `EPERM`.
pub fn without_userfaultfd() {
    refuse(&[(libc::SYS_userfaultfd, Errno::PERM)]);
}

/// From here on these system calls fail with these errors, in this thread and those that it starts.
pub fn refuse(calls: &[(libc::c_long, Errno)]) {
    let mut steps = vec![step(LOAD_NUMBER, 0, 0)];
    for (call, error) in calls {
        steps.push(step(IF_EQUAL, *call as u32, 1));
        steps.push(step(ANSWER, libc::SECCOMP_RET_ERRNO | error.raw_os_error() as u32, 0));
    }
    steps.push(step(ANSWER, libc::SECCOMP_RET_ALLOW, 0));
    let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    // SAFETY: a program that outlives the call, of which the kernel takes a copy.
    let done = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0
    };
    assert!(done, "a filter: {}", std::io::Error::last_os_error());
}
