//! Long messages over open rings, whose payload goes into cells as long as there are some (`FI_RUSTMX_RINGS=open`), whether who reads takes the lines, or not (`taken`).

use crate::common::{Msg, Node, Rng, Want, attr, by_network_only, pattern, run, watchdog};
use crate::{SIZES, ok, settle};
use rustmx::{Addr, Config, OpFlags};

fn pair(a: u64, b: u64) -> (Node, Node, Addr, Addr) {
    // However they are copied, and announced.
    let node = |rings| {
        let (record_copy, announce_min) = ((2 * a + b) % 4, [1 << 10, 16 << 10, 64 << 10][rings as usize]);
        Node::with(Config { rings, record_copy, announce_min, eager_max: 60 << 10, ..Config::default() }, attr())
    };
    let (a, b) = (node(a), node(b));
    let (to_b, from_a) = (a.knows(&b), b.knows(&a));
    (a, b, to_b, from_a)
}

/// One message from `from` to `to`, all of whose bytes are looked at.
fn one(from: &mut Node, to: &mut Node, addr: Addr, rng: &mut Rng, round: usize) {
    let n = match rng.below(4) {
        0 => rng.range(0, 3000),
        1 => rng.pick(&[1023, 1024, 1025, 4096, 32_768, 32_769, 65_536]),
        2 => rng.range(1000, 70_000),
        _ => rng.range(1000, 400_000),
    };
    let level = rng.pick(&[OpFlags::TRANSMIT_COMPLETE, OpFlags::DELIVERY_COMPLETE]);
    let (mut out, mut into) = (pattern(n, round), vec![0xee; n + 8]);
    let early = rng.one_in(2);
    let unexpected = to.stats().unexpected;
    if early {
        to.recv(Want::tag(round as u64), &mut into).expect("recv");
    }
    from.send(Msg::new(addr, round as u64).with(level), &mut out).expect("send");
    if !early {
        settle(from, to, unexpected + 1);
        to.recv(Want::tag(round as u64), &mut into).expect("recv");
    }
    let got = run(&mut [from, to], &[1, 1]);
    assert_eq!(ok(&got[1][0]).len, n);
    assert!(into[..n] == out[..] && into[n..].iter().all(|b| *b == 0xee), "round {round}, {n} bytes, {level:?}");
}

/// Whoever speaks, in whatever order, and whether both rings are open, or one, or none.
#[test]
fn whoever_speaks() {
    let _dog = watchdog("whoever_speaks", 120);
    let pairs = [(1, 1), (1, 0), (0, 1), (0, 0), (2, 2), (2, 1), (0, 2)];
    // No ring is between hosts.
    let pairs = if by_network_only() { &pairs[..1] } else { &pairs };
    for &(open_a, open_b) in pairs {
        let (mut a, mut b, to_b, to_a) = pair(open_a, open_b);
        let mut rng = Rng(17 + open_a * 2 + open_b);
        for round in 0..300 {
            // Some in a row, so that one side has all the cells for a while.
            if rng.one_in(2) {
                one(&mut a, &mut b, to_b, &mut rng, round);
            } else {
                (0..3).for_each(|_| one(&mut b, &mut a, to_a, &mut rng, round));
            }
        }
    }
}

/// Both at once, more than there are cells, all of them early.
#[test]
fn both_at_once() {
    let _dog = watchdog("both_at_once", 120);
    const N: usize = 20;
    // Each of the four pairs twice. Further rounds would differ by their payload only, and take a sanitizer a minute to look at.
    for round in 0..8 {
        let (mut a, mut b, to_b, to_a) = pair(1 + round as u64 % 2, 1 + round as u64 / 2 % 2);
        for n in SIZES {
            let mut out: Vec<_> = (0..2 * N).map(|i| pattern(n, round + i)).collect();
            let mut into = vec![vec![0; n]; 2 * N];
            let (into_a, into_b) = into.split_at_mut(N);
            for i in 0..N {
                a.recv(Want::tag(i as u64), &mut into_a[i]).expect("recv");
                b.recv(Want::tag(i as u64), &mut into_b[i]).expect("recv");
            }
            let (out_a, out_b) = out.split_at_mut(N);
            let mut sent = [0, 0];
            while sent != [N, N] {
                if sent[0] < N && a.send(Msg::new(to_b, sent[0] as u64), &mut out_a[sent[0]]).is_ok() {
                    sent[0] += 1;
                } else {
                    a.domain.progress();
                }
                if sent[1] < N && b.send(Msg::new(to_a, sent[1] as u64), &mut out_b[sent[1]]).is_ok() {
                    sent[1] += 1;
                } else {
                    b.domain.progress();
                }
            }
            run(&mut [&mut a, &mut b], &[2 * N, 2 * N]).iter().flatten().for_each(|e| _ = ok(e));
            assert!(into[..N] == out[N..] && into[N..] == out[..N], "round {round}, {n} bytes");
        }
    }
}
