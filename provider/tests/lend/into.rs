//! Memory that is changed while a message *into* it is under way, which both sides copy. The program may not do that, and nobody comes to harm: what the
//! sender writes goes to the file that was lent, what the receiver copies by itself to what is at its addresses by then, and nothing else of either
//! file is touched. The next message, into what is there then, must be there whole: without the monitor its sender writes to the old file.

use super::change::{Change, Place};
use super::common::{Deadline, Msg, Want, acquaint, all_ok, pattern, run};
use super::during::ROUNDS;
use super::space::{self, PAGE};
use super::{bytes, forced, message, node};
use rustix::fd::OwnedFd;
use rustmx::cache::Oversight;

/// Eight chunks: a side copies two in a turn, at most, and three turns leave some.
const PAGES: usize = 1000;
const N: usize = PAGES * PAGE - 300;
const OLD: u8 = 0xee;
const NEW: u8 = 0xdd;

/// A file of so many pages; and what is in it, now or later.
struct File(OwnedFd);

impl File {
    fn new(filler: u8) -> File {
        let file = File(space::memfd(true));
        file.fill(filler);
        file
    }

    fn fill(&self, filler: u8) {
        let bytes = vec![filler; PAGES * PAGE];
        assert_eq!(rustix::io::pwrite(&self.0, &bytes, 0), Ok(bytes.len()));
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; PAGES * PAGE];
        assert_eq!(rustix::io::pread(&self.0, &mut bytes, 0), Ok(bytes.len()));
        bytes
    }
}

/// Messages with a byte that is nowhere, or that touched what is not theirs, and messages after that with a wrong byte.
pub fn torture(change: Change, oversight: Oversight) -> (usize, usize) {
    let (mut a, mut b) = (node(forced(), Oversight::Tireless), node(forced(), oversight));
    acquaint(&mut a, &mut b);
    let to_b = a.knows(&b);
    let source = File::new(0);
    let from = Place::new(Change::Over, 4 * PAGES * ROUNDS, PAGES, &source.0).at;
    let (mut during, mut after, mut both) = (0, 0, 0);
    for round in 0..ROUNDS {
        let (old, new) = (File::new(OLD), File::new(NEW));
        // Each round elsewhere.
        let mut place = Place::new(change, round * 4 * PAGES, PAGES, &old.0);
        let here = place.at;
        let (before, until) = (a.stats().stored, Deadline::new(20));
        for seed in 0.. {
            message(&mut a, &mut b, from, bytes(here, N), seed);
            if a.stats().stored > before {
                break;
            }
            until.check(|| format!("{change:?}, round {round}: it is not lent, {:?}", a.stats()));
        }
        old.fill(OLD);
        let (sent, stored) = (pattern(N, round), a.stats().stored);
        bytes(from, N).copy_from_slice(&sent);
        b.recv(Want::tag(5), bytes(here, N)).expect("recv");
        a.send(Msg::new(to_b, 5), bytes(from, N)).expect("send");
        // Before the receiver has heard of it, once it has begun, and once both have.
        for turn in 0..round % 4 {
            let before = a.stats().stored + b.stats().fetched;
            for _ in 0..100 {
                [&mut b, &mut a][turn % 2].quiet(1);
                if a.stats().stored + b.stats().fetched > before {
                    break;
                }
            }
        }
        both += usize::from(a.stats().stored > stored);
        assert!(place.make(change, &new.0), "somebody else has raised the break");
        let got = run(&mut [&mut a, &mut b], &[1, 1]);
        assert_eq!(all_ok(&got[0]) + all_ok(&got[1]), 2);
        let holes = if change == Change::Remove { 0 } else { OLD };
        let (was, is) = (old.bytes(), new.bytes());
        let beyond = was[N..].iter().all(|byte| [OLD, holes].contains(byte)) && is[N..].iter().all(|byte| *byte == NEW);
        let came = |i: usize| {
            let (in_old, in_new) = (was[i] == sent[i] || was[i] == holes, is[i] == sent[i] || is[i] == NEW);
            in_old && in_new && (was[i] == sent[i] || is[i] == sent[i] || was[i] == 0 && change == Change::Remove)
        };
        // Most pages are all in one of both files, or all in the other.
        let (empty, untouched) = ([holes; PAGE], [NEW; PAGE]);
        let page_came = |at: usize| {
            let place = at..N.min(at + PAGE);
            let (sent, was, is, len) = (&sent[place.clone()], &was[place.clone()], &is[place.clone()], place.len());
            was == sent && is == &untouched[..len] || was == &empty[..len] && is == sent || place.into_iter().all(came)
        };
        during += usize::from(!(beyond && (0..N).step_by(PAGE).all(page_came)));
        // What is there now, at once.
        let next = pattern(N, ROUNDS + round);
        bytes(from, N).copy_from_slice(&next);
        b.recv(Want::tag(6), bytes(here, N)).expect("recv");
        a.send(Msg::new(to_b, 6), bytes(from, N)).expect("send");
        let got = run(&mut [&mut a, &mut b], &[1, 1]);
        assert_eq!(all_ok(&got[0]) + all_ok(&got[1]), 2);
        after += usize::from(*bytes(here, N) != next[..]);
        place.end();
    }
    assert!(both > ROUNDS / 4, "{change:?}: only {both} messages were changed after the sender had written");
    (during, after)
}
