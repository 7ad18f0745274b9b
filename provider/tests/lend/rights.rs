//! What a peer may do to memory that was lent to it, as the kernel sees it: a mapping that was agreed to be read cannot be written, whatever its process does.

use super::common::process::alone;
use super::common::watchdog;
use super::plain::{at, until_mapped};
use super::{bytes, forced, message, pair, space};
use rustmx::Config;

/// Longer than the receiver copies before the sender has its turn.
const PAGES: usize = space::FILE_PAGES;
const N: usize = PAGES * space::PAGE - 300;

/// The rights of all mappings of the tests' files but those at these addresses, in order.
fn others(own: &[usize]) -> Vec<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
    let mut rights = Vec::new();
    for line in maps.lines().filter(|line| line.contains("/memfd:torture")) {
        let (range, rest) = line.split_once(' ').expect("rights");
        let start = usize::from_str_radix(range.split('-').next().unwrap_or(range), 16).expect("an address");
        if !own.iter().any(|own| (*own..own + PAGES * space::PAGE).contains(&start)) {
            rights.push(rest[..4].to_string());
        }
    }
    rights
}

/// All that the peer has of the lender's memory (that, and a page to map it again by), for each kind of terms on both sides.
#[test]
fn what_is_lent_to_be_read_is_mapped_to_be_read() {
    let _dog = watchdog("rights", 180);
    alone("rights::what_is_lent_to_be_read_is_mapped_to_be_read", || {
        for (lender, peer, rights) in [(1, 0, "r--s"), (0, 1, "r--s"), (1, 1, "r--s"), (0, 0, "rw-s")] {
            let config = |lend| Config { lend, ..forced() };
            let (mut a, mut b) = pair(config(lender), config(peer));
            let fds = [space::memfd(true), space::memfd(true)];
            let own = [at(0, PAGES, (&fds[0], 0)), at(2 * PAGES, PAGES, (&fds[1], 0))];
            let mut into = vec![0; N];
            until_mapped(&mut a, &mut b, own[0], &mut into);
            assert_eq!(others(&own), [rights; 2], "the sender's; lender {lender}, peer {peer}");
            // Now both lend: what is received into is of use only if it may be written.
            let before = a.stats().stored;
            (0..6).for_each(|seed| message(&mut a, &mut b, own[0], bytes(own[1], N), seed));
            let written = rights == "rw-s";
            assert_eq!(a.stats().stored > before, written, "lender {lender}, peer {peer}");
            assert!(others(&own).iter().all(|found| found == rights), "{:?}", others(&own));
            drop((a, b));
            own.iter().for_each(|own| space::unmap(*own, PAGES));
            assert_eq!(others(&[]), Vec::<String>::new());
        }
    });
}
