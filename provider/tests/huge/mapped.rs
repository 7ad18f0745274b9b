//! Messages of more than 4 GiB out of memory that was lent, and into such memory: without the kernel, by the receiver, or by both. What is lent is one mapping
//! of one file, so its memory is all there: where that is too little, these tests are skipped, and say so.

use super::common::{Msg, Want, process::say, watchdog};
use super::vast::{BLANK, Vast};
use super::{LONG, OVER_4, Side, both, end, numbers, turn};
use crate::common::left_out::left_out;
use rustmx::{Error, UserSeg};

const WARM: u64 = 3;
/// Bytes of messages before: some more than are ever copied without being shared.
const LITTLE: usize = 200_000;
/// Memory is lent from its second use on.
const USES: usize = 6;

impl Side {
    fn put(&mut self, tag: u64, iov: &[UserSeg]) {
        self.node.sendv(Msg::new(self.peer, tag), iov, true).expect("send");
        self.complete();
    }
}

pub fn sends(how: &str, len: usize) {
    let from = Vast::sealed_full(len);
    let mut side = Side::new(how);
    side.acquaint(true);
    for _ in 0..USES {
        // There is room for little of it. Then it is little, that begins elsewhere: what is known is what was asked for where a message begins.
        side.put(WARM, &from.pieces(&[]));
        side.put(WARM, &from.pieces(&[len - LITTLE])[1..]);
    }
    let before = side.node.stats();
    side.put(LONG, &from.pieces(&[]));
    let s = side.node.stats();
    let went = [s.mapped - before.mapped, s.stored - before.stored, s.past_caches - before.past_caches];
    say(&went.map(|n| n.to_string()).join(" "));
    side.hear();
}

pub fn receives(how: &str, len: usize) {
    let into = Vast::sealed(len);
    let mut side = Side::new(how);
    side.acquaint(false);
    for _ in 0..USES {
        let mut room = vec![BLANK; LITTLE];
        side.node.recv(Want::tag(WARM), &mut room).expect("recv");
        assert_eq!(side.event().expect_err("not all of it").error, Error::Truncated);
        side.node.recvv(Want::tag(WARM), &into.pieces(&[]), true).expect("recv");
        assert_eq!(side.complete().len, LITTLE);
    }
    into.blank_again(LITTLE);
    let before = side.node.stats();
    side.node.recvv(Want::tag(LONG), &into.pieces(&[]), true).expect("recv");
    let c = side.complete();
    into.check(len).unwrap_or_else(|why| panic!("{how}: {why}"));
    let s = side.node.stats();
    say(&format!("{} {} {}", c.len, s.fetched - before.fetched, s.past_caches - before.past_caches));
    side.hear();
}

/// Whether there is memory for two buffers of so many bytes, and some more for others.
fn is_room(len: usize) -> bool {
    let all = std::fs::read_to_string("/proc/meminfo").expect("meminfo");
    let available =
        all.lines().find_map(|line| line.strip_prefix("MemAvailable:")?.trim().strip_suffix(" kB")?.parse::<usize>().ok());
    let (needed, available) = (2 * len + (2 << 30), available.expect("a number") << 10);
    if available < needed {
        let takes = needed.div_ceil(1 << 30);
        left_out("much_memory", &format!("{} GiB of memory are available, and this takes {takes}", available >> 30));
    }
    available >= needed
}

/// Bytes that the receiver copied, that the sender did, and that either wrote past the caches. `None`: it was not tried.
#[track_caller]
fn mapped(how: &str) -> Option<[usize; 3]> {
    let _turn = turn();
    if !is_room(OVER_4) {
        return None;
    }
    let _dog = watchdog("a huge lent message", 300);
    let (mut a, mut b) = both(&format!("lends {how} {OVER_4}"), &format!("is-lent {how} {OVER_4}"));
    let [came, fetched, past] = numbers(&mut b);
    let [mapped, stored, past_too] = numbers(&mut a);
    end([&mut a, &mut b]);
    assert_eq!((came, mapped, fetched + stored), (OVER_4, 1, OVER_4), "{how}: every byte once, in lent memory");
    Some([fetched, stored, past + past_too])
}

#[test]
fn both_copy_lent_memory() {
    let Some([fetched, stored, past]) = mapped("mapped") else { return };
    assert!(fetched > 0 && stored > 0 && past == 0, "{fetched} and {stored}, {past} past the caches");
}

#[test]
fn the_receiver_copies_lent_memory() {
    let Some(went) = mapped("mapped-alone") else { return };
    assert_eq!(went, [OVER_4, 0, 0]);
}

#[test]
fn lent_memory_is_copied_past_the_caches() {
    let Some([_, _, past]) = mapped("mapped-streaming") else { return };
    // Where the processor has such stores.
    assert!(past == OVER_4 || past == 0 && cfg!(not(target_arch = "x86_64")), "{past} bytes past the caches");
}
