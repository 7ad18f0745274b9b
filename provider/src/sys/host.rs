//! Telling this host from others, and random numbers.

use rustix::rand::{GetRandomFlags, getrandom};
use std::hash::{Hash, Hasher};
use std::os::linux::fs::MetadataExt;
use std::sync::OnceLock;

/// A number that two processes share exactly if they can reach each other's abstract sockets: a hash of the kernel's boot id, of which the lower half
/// is combined with the number of the network namespace, so that the upper half is the machine's ([`same_machine`]). Never 0. Random if /proc tells
/// neither (then this process finds no local peers).
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
        number(h.finish(), netns.st_ino())
    })
}

/// The kernel numbers namespaces by 32 bits, so no two of a machine get the same number; and those that all machines number alike differ by what is left of
/// the hash, 63 bits.
fn number(boot: u64, space: u64) -> u64 {
    (boot | 1 << 32) ^ (space ^ space >> 32) & u64::from(u32::MAX)
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
        assert!(id() != 0 && same_machine(id(), id()));
        let [here, there, elsewhere] =
            [number(7 << 33, 4_026_531_840), number(7 << 33, 4_026_532_001), number(7 << 33 | 9, 4_026_531_840)];
        assert!(here != there && same_machine(here, there), "another namespace");
        assert_ne!(here, elsewhere, "another kernel, of whose hash only the lower half is another one");
        assert!(!same_machine(here, number(8 << 33, 4_026_531_840)), "another kernel");
        assert_ne!(number(0, 0), 0);
    }
}
