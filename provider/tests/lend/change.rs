//! What a program does to memory of which a message is under way.

use super::space::{self, PAGE, Raised, Space};
use rustix::fd::OwnedFd;
use rustix::mm::Advice;

/// Pages that are changed at a time.
const STEP: usize = 25;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// munmap(2), then mmap(2) of another file.
    Unmap,
    /// mmap(2), MAP_FIXED.
    Over,
    /// mremap(2) to elsewhere, and another file there.
    Move,
    /// brk(2): the break falls below the file, and rises again below another one.
    Break,
    /// madvise(2), MADV_DONTNEED: shared memory stays what it is.
    Empty,
    /// madvise(2), MADV_REMOVE: shared memory is zeroes.
    Remove,
    /// fork(2), and the child unmaps its own.
    Fork,
}

pub const ALL: [Change; 7] =
    [Change::Unmap, Change::Over, Change::Move, Change::Break, Change::Empty, Change::Remove, Change::Fork];

impl Change {
    pub fn name(self) -> &'static str {
        match self {
            Change::Unmap => "munmap",
            Change::Over => "MAP_FIXED",
            Change::Move => "mremap",
            Change::Break => "brk",
            Change::Empty => "MADV_DONTNEED",
            Change::Remove => "MADV_REMOVE",
            Change::Fork => "fork",
        }
    }

    /// Whether the addresses stand for another file afterwards. If not, nobody needs to be told: a mapping of the file shows what is in it.
    pub fn replaces(self) -> bool {
        matches!(self, Change::Unmap | Change::Over | Change::Move | Change::Break)
    }
}

/// Where a message lies.
pub struct Place {
    pub at: usize,
    pages: usize,
    /// Memory above the program break, if it is that.
    raised: Option<Raised>,
}

impl Place {
    /// A file, mapped where this change can be made: at these pages of the space, or above the break.
    pub fn new(change: Change, page: usize, pages: usize, file: &OwnedFd) -> Place {
        let raised = (change == Change::Break).then(|| Raised::new(pages).expect("the break can be raised"));
        let at = raised.as_ref().map_or(Space::address(page), Raised::address);
        assert!(space::map(at, pages, Some((file, 0)), raised.is_some()));
        Place { at, pages, raised }
    }

    /// Changes it bit by bit, from the end: the receiver copies from the front. Whether it could be done: somebody else may have raised the break.
    pub fn make(&mut self, change: Change, other: &OwnedFd) -> bool {
        if change == Change::Break {
            return self.move_the_break(other);
        }
        for page in (0..self.pages).step_by(STEP).rev() {
            let at = self.at + page * PAGE;
            let put = |over| assert!(space::map(at, STEP, Some((other, page)), over));
            match change {
                Change::Unmap => {
                    space::unmap(at, STEP);
                    put(false);
                }
                Change::Over => put(true),
                Change::Move => {
                    let away = at + 2 * self.pages * PAGE;
                    assert!(space::remap(at, STEP, STEP, Some(away), false));
                    put(false);
                    space::unmap(away, STEP);
                }
                Change::Empty => assert!(space::advise(at, STEP, Advice::LinuxDontNeed)),
                Change::Remove => assert!(space::advise(at, STEP, Advice::LinuxRemove)),
                Change::Fork => {
                    let child = || {
                        space::unmap(at, STEP);
                        0
                    };
                    assert_eq!(space::fork(child), 0);
                }
                Change::Break => unreachable!("see above"),
            }
        }
        true
    }

    fn move_the_break(&mut self, other: &OwnedFd) -> bool {
        let Some(mut raised) = self.raised.take() else { return false };
        let fell = (0..self.pages / STEP).all(|_| raised.give_back(STEP)) && raised.lower();
        self.raised = if fell { Raised::new(self.pages) } else { None };
        let again = self.raised.as_ref().is_some_and(|raised| raised.address() == self.at);
        // If not, something is there all the same: who copies must find memory.
        assert!(space::map(self.at, self.pages, again.then_some((other, 0)), true));
        again
    }

    /// Nothing is there any more, or, above the break, private memory: who knows of no change must meet each address once.
    pub fn end(self) {
        match self.raised {
            Some(_) => assert!(space::map(self.at, self.pages, None, true)),
            None => space::unmap(self.at, self.pages),
        }
    }
}
