//! Telling this host from others, and random numbers.

use rustix::rand::{GetRandomFlags, getrandom};
use std::hash::{Hash, Hasher};
use std::os::linux::fs::MetadataExt;
use std::sync::OnceLock;

/// A number that two processes share exactly if they can reach each other's abstract sockets: above a hash of the kernel's boot id
/// ([`same_machine`]), below the number of the network namespace. Never 0. Random if /proc tells neither (then this process finds no local peers).
pub fn id() -> u64 {
    static ID: OnceLock<u64> = OnceLock::new();
    *ID.get_or_init(|| {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
        let netns = std::fs::metadata("/proc/self/ns/net");
        let (Ok(boot), Ok(netns)) = (boot, netns) else {
            return random() | 1;
        };
        let mut h = rustc_hash::FxHasher::default();
        boot.trim().hash(&mut h);
        let (boot, space) = (h.finish() | 1 << 32, netns.st_ino());
        // The kernel numbers namespaces by 32 bits.
        boot & !u64::from(u32::MAX) | (space ^ space >> 32) & u64::from(u32::MAX)
    })
}

/// Whether two [`id`]s are of one kernel: the same host, or containers and namespaces of one.
pub fn same_machine(a: u64, b: u64) -> bool {
    a >> 32 == b >> 32
}

/// 64 random bits (getrandom(2)).
pub fn random() -> u64 {
    let mut bytes = [0u8; 8];
    if getrandom(&mut bytes, GetRandomFlags::empty()) == Ok(8) {
        return u64::from_ne_bytes(bytes);
    }
    // Only before the kernel's pool is ready, or under a filter that forbids the call.
    let mut h = std::hash::DefaultHasher::new();
    (std::time::SystemTime::now(), std::process::id(), std::thread::current().id()).hash(&mut h);
    h.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_has_several_hosts() {
        let here = id();
        assert!(here != 0 && same_machine(here, here));
        assert!(same_machine(here, here ^ 1), "another namespace");
        assert!(!same_machine(here, here ^ 1 << 32), "another kernel");
    }
}
