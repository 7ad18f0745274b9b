//! Operations that follow each other without anybody's waiting: what a domain says of their order (`FI_ORDER_WAR`, `RAW`, `WAW`, of any length).

use super::{all_rights, both_ways, pair, region, rma};
use crate::common::{Deadline, pattern, seg, watchdog};
use rustmx::RemoteSeg;

const LEN: usize = 3_000_000;

/// A read, a write over all of what is read, another read, a write over the middle, a read: each sees what its place in the row says.
#[test]
fn each_sees_what_came_before_it() {
    let _dog = watchdog("orders", 60);
    for cma in both_ways() {
        for len in [100, 5_000, 70_000, LEN] {
            let (mut a, mut b, to) = pair(cma);
            let mut theirs = pattern(len, 1);
            b.domain.mr_register(Some(7), region(&mut theirs, all_rights())).expect("registered");
            let (mut first, mut second, mut third) = (vec![0; len], vec![0; len], vec![0; len]);
            let (mut all, mut middle) = (pattern(len, 2), pattern(len / 3, 3));
            let place = |addr: usize, len: usize| [RemoteSeg { addr: addr as u64, len, key: 7 }];
            let calls = [
                (false, seg(&mut first), 0),
                (true, seg(&mut all), 0),
                (false, seg(&mut second), 0),
                (true, seg(&mut middle), len / 3),
                (false, seg(&mut third), 0),
            ];
            for (ctx, (write, memory, at)) in calls.into_iter().enumerate() {
                let (memory, places) = ([memory], place(at, memory.len()));
                a.domain.rma(a.ep, &rma(to, write, &memory, &places, ctx)).expect("started");
            }
            let (until, mut done) = (Deadline::new(20), 0);
            while done < calls.len() {
                done += a.poll().len();
                b.domain.progress();
                until.check(|| format!("{done} operations ended"));
            }
            let mut end = pattern(len, 2);
            end[len / 3..len / 3 + len / 3].copy_from_slice(&middle);
            assert!(first == pattern(len, 1), "{len} bytes, the kernel {cma}: a read sees what was written after it");
            assert!(second == pattern(len, 2), "{len} bytes, the kernel {cma}: between two writes");
            assert!(third == end && theirs == end, "{len} bytes, the kernel {cma}: after all");
        }
    }
}
