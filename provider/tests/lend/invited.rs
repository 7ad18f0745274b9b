//! Receives that invite their sender, in two threads, so that they are cancelled while it makes up its mind: a buffer of which the cancel was told is the application's, and no byte of
//! it changes any more; and what is not cancelled has its message, to the last byte.

use super::change::{Change, Place};
use super::common::process::alone;
use super::common::{Deadline, Msg, Node, Rng, Want, acquaint, all_ok, pattern};
use super::space::{self, PAGE};
use super::{bytes, forced, node};
use rustmx::cache::Oversight;
use rustmx::{Error, UserCtx};
use std::sync::atomic::{AtomicUsize, Ordering};

const ROUNDS: usize = 1200;
const PAGES: usize = 64;
const N: usize = 100_000;
const OURS: u8 = 0x55;
const WITHDRAWN: usize = 1;
const WANTED: usize = 2;

/// Sends message `n` as soon as `go` says `n`.
fn sender(mut a: Node, to: rustmx::Addr, from: usize, go: &AtomicUsize) {
    let mut rng = Rng(7);
    for round in 1..=ROUNDS {
        let until = Deadline::new(60);
        while go.load(Ordering::Acquire) < round {
            a.quiet(1);
            until.check(|| "nobody waits".into());
        }
        bytes(from, N).copy_from_slice(&pattern(N, round));
        for _ in 0..rng.below(200) {
            std::hint::spin_loop();
        }
        a.send(Msg::new(to, 1), bytes(from, N)).expect("send");
        let until = Deadline::new(20);
        while all_ok(&a.poll()) == 0 {
            until.check(|| format!("message {round} is not taken"));
        }
    }
}

#[test]
fn cancelled_or_written() {
    alone("invited::cancelled_or_written", || {
        let (mut a, mut b) = (node(forced(), Oversight::Tireless), node(forced(), Oversight::Tireless));
        acquaint(&mut a, &mut b);
        let (to, source) = (a.knows(&b), b.knows(&a));
        let (sent, got) = (space::memfd(true), space::memfd(true));
        let from = Place::new(Change::Over, 0, PAGES, &sent).at;
        let here = Place::new(Change::Over, 4 * PAGES, PAGES, &got).at;
        let there = here + (PAGES / 2) * PAGE;
        let go = AtomicUsize::new(0);
        let (mut cancelled, mut refused) = (0, 0);
        std::thread::scope(|s| {
            s.spawn(|| sender(a, to, from, &go));
            let mut rng = Rng(3);
            for round in 1..=ROUNDS {
                let mut place = here;
                b.recv(Want::tag(1).from(source).ctx(WITHDRAWN), bytes(here, N)).expect("recv");
                go.store(round, Ordering::Release);
                if round % 2 == 0 {
                    // About as long as the sender needs to write the message, and to find the invitation.
                    for _ in 0..rng.below(40_000) {
                        std::hint::spin_loop();
                    }
                    match b.domain.cancel(b.ep, UserCtx(WITHDRAWN)) {
                        Ok(()) => {
                            let told = b.poll();
                            assert!(matches!(&told[..], [Err(e)] if e.error == Error::Cancelled), "{told:?}");
                            bytes(here, N).fill(OURS);
                            cancelled += 1;
                            place = there;
                            b.recv(Want::tag(1).from(source).ctx(WANTED), bytes(there, N)).expect("recv");
                        }
                        Err(why) => {
                            assert_eq!(why, Error::NoMessage);
                            refused += 1;
                        }
                    }
                }
                let until = Deadline::new(20);
                while all_ok(&b.poll()) == 0 {
                    until.check(|| format!("message {round} did not come: {:?}", b.stats()));
                }
                assert!(*bytes(place, N) == pattern(N, round)[..], "round {round}");
                assert!(
                    place == here || bytes(here, N).iter().all(|byte| *byte == OURS),
                    "round {round}: written behind our back"
                );
            }
        });
        let invited = b.stats().invited;
        eprintln!("{invited} of {ROUNDS} invited, {cancelled} cancelled, {refused} too late");
        assert!(invited > 0 && cancelled > 0);
    });
}
