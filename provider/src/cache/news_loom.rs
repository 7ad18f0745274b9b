//! Every interleaving of monitor, changing thread and look-ups. The kernel is a lock, a queue and a count.

use super::*;
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

type Board = Arc<Vec<AtomicU64>>;

/// The kernel's side of one address space.
#[derive(Default)]
struct Space {
    /// What is mapped at the one place there is: 0 nothing, else a number of the mapping.
    mapped: u64,
    /// `mmap_changing`.
    changing: u64,
    /// An event waits to be read.
    event: bool,
    /// It was read.
    read: bool,
}

#[derive(Clone)]
struct Kernel(Arc<(Mutex<Space>, Condvar)>);

impl Kernel {
    fn new() -> Kernel {
        Kernel(Arc::new((Mutex::new(Space { mapped: 1, ..Space::default() }), Condvar::new())))
    }

    fn space(&self) -> loom::sync::MutexGuard<'_, Space> {
        self.0.0.lock().expect("kernel")
    }

    fn until(&self, holds: fn(&Space) -> bool) -> loom::sync::MutexGuard<'_, Space> {
        let mut space = self.space();
        while !holds(&space) {
            space = self.0.1.wait(space).expect("kernel");
        }
        space
    }

    /// munmap(2): unmaps under the lock, queues the event without it, waits until that was read.
    fn unmap(&self) {
        {
            let mut space = self.space();
            space.mapped = 0;
            space.changing += 1;
        }
        self.space().event = true;
        self.0.1.notify_all();
        self.until(|space| space.read).changing -= 1;
    }

    /// mmap(2), to the place, if it is free. Whether it was.
    fn map(&self) -> bool {
        let mut space = self.space();
        let free = space.mapped == 0;
        if free {
            space.mapped = 2;
        }
        free
    }

    /// poll(2).
    fn wait(&self) {
        drop(self.until(|space| space.event));
    }

    /// read(2) of the event.
    fn read(&self) {
        let mut space = self.space();
        (space.event, space.read) = (false, true);
        drop(space);
        self.0.1.notify_all();
    }
}

const PLACE: Range<usize> = 4096..8192;

#[derive(Clone, Copy, PartialEq)]
enum Raise {
    BeforeReading,
    Never,
}

fn monitor(board: Board, kernel: Kernel, raise: Raise) {
    let mut teller = Teller::new(News { words: board });
    kernel.wait();
    if raise == Raise::BeforeReading {
        teller.doubt();
    }
    kernel.read();
    teller.tell(Kind::Gone, PLACE);
    teller.calm();
}

/// A cache that holds mapping 1 for the place: whether a look-up hits.
fn hits(news: &News<Board>, seen: u64) -> bool {
    if news.sequence().load(Ordering::Acquire) == seen {
        return true;
    }
    let mut hit = true;
    match news.since(seen, |_, range| hit &= range != PLACE) {
        Since::Told(_) => hit,
        Since::Lost(_) | Since::InDoubt | Since::Elsewhere => false,
    }
}

fn board() -> Board {
    Arc::new((0..WORDS).map(|_| AtomicU64::new(0)).collect())
}

/// Who unmapped, and whom it told, do not hit.
fn after_the_call(raise: Raise) {
    loom::model(move || {
        let (board, kernel) = (board(), Kernel::new());
        let news = News::new(board.clone());
        let watcher = {
            let (board, kernel) = (board.clone(), kernel.clone());
            thread::spawn(move || monitor(board, kernel, raise))
        };
        kernel.unmap();
        assert!(!hits(&news, 2), "a stale answer");
        watcher.join().expect("monitor");
    });
}

#[test]
fn after_the_call_nothing_stale_is_hit() {
    after_the_call(Raise::BeforeReading);
}

#[test]
#[should_panic(expected = "a stale answer")]
fn without_the_raise_it_is() {
    after_the_call(Raise::Never);
}

/// A second thread maps the place while the first is still in its call.
fn meanwhile(asks: bool) {
    loom::model(move || {
        let (board, kernel) = (board(), Kernel::new());
        let news = News::new(board.clone());
        let (its_board, its_kernel) = (board.clone(), kernel.clone());
        let watcher = thread::spawn(move || monitor(its_board, its_kernel, Raise::BeforeReading));
        let its_kernel = kernel.clone();
        let changer = thread::spawn(move || its_kernel.unmap());
        if kernel.map() && hits(&news, 2) {
            // Settled: nothing under way, and then still the same number.
            let settled = kernel.space().changing == 0 && news.sequence().load(Ordering::Acquire) == 2;
            assert!(asks && !settled, "a stale answer");
        }
        changer.join().expect("changer");
        watcher.join().expect("monitor");
    });
}

#[test]
fn who_maps_the_place_meanwhile_and_asks_is_safe() {
    meanwhile(true);
}

/// The exception of ADR 0015 is real.
#[test]
#[should_panic(expected = "a stale answer")]
fn who_does_not_ask_is_not() {
    meanwhile(false);
}

/// A reader never takes a slot that is being overwritten for a change: two slots, three changes in two turns.
#[test]
fn slots_are_whole() {
    loom::model(|| {
        let board = board();
        let news = News::new(board.clone());
        let writer = thread::spawn(move || {
            let mut teller = Teller::new(News { words: board });
            for turn in [&[1usize, 2][..], &[3]] {
                teller.doubt();
                for n in turn {
                    teller.tell(Kind::Gone, n << 12..(n << 12) + n);
                }
                teller.calm();
            }
        });
        let (mut seen, mut next) = (2, 1);
        for _ in 0..2 {
            let mut got = Vec::new();
            match news.since(seen, |_, range| got.push(range)) {
                Since::Told(now) => {
                    for range in got {
                        assert_eq!(range, next << 12..(next << 12) + next, "a torn change");
                        next += 1;
                    }
                    seen = now;
                }
                Since::Lost(now) => {
                    next = 4;
                    seen = now;
                }
                Since::InDoubt => thread::yield_now(),
                Since::Elsewhere => unreachable!(),
            }
        }
        writer.join().expect("writer");
    });
}
